//! The harness of experiments on engines of records: it opens engines and loads them.
//!
//! The baseline is the scheme `none`, an engine without any checkpoint hook. Baseline and
//! competitors are open in the same process and run in turn on the same data. So other work of the
//! machine hits all of them alike.

use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::measure::machine::available_bytes;
use crate::measure::process::own_huge_page_bytes;
use crate::report::result::ExperimentResult;
use crate::subjects::adapter::{LabEngine, OpenEngine};
use crate::subjects::records::{Row, setup};
use crate::sys;

/// The means of an experiment: the context, and a function that opens an engine of records.
pub(crate) struct Harness<'a> {
    /// Folder, mode and progress of the run.
    pub(crate) context: &'a Context,
    /// Opens an engine.
    pub(crate) open: &'a OpenEngine,
    /// Whether the context's binary knows `lab child`, which callgrind and the crash check run.
    pub(crate) children: bool,
}

impl std::fmt::Debug for Harness<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").field("context", self.context).finish_non_exhaustive()
    }
}

/// An engine of a row, loaded.
pub(crate) struct Instance<'a> {
    /// The row for which the engine was opened.
    pub(crate) row: Row,
    /// The engine.
    pub(crate) engine: Box<dyn LabEngine + 'a>,
    dir: std::path::PathBuf,
}

impl std::fmt::Debug for Instance<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("row", &self.row).finish_non_exhaustive()
    }
}

impl Harness<'_> {
    /// Opens a row's engine on a fresh directory and loads the records.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open_loaded(
        &self,
        row: Row,
        records: u64,
        journal: &str,
    ) -> LabResult<Instance<'_>> {
        let name: String =
            row.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let dir = self.context.fresh_dir(&format!("{name}-{journal}"))?;
        self.context
            .note(format!("loading {records} records into {}, journal {journal}", row.name));
        let engine = (self.open)(&setup(row, records, journal, dir.clone()))?;
        engine.load(records)?;
        self.context.saw_huge_pages(own_huge_page_bytes());
        Ok(Instance { row, engine, dir })
    }
}

/// The rows that are opened together in this much memory: those that claims name, and as many of the
/// others as fit beside these.
fn fitting(rows: &[Row], named: &[&str], records: u64, available: u64) -> (Vec<Row>, Vec<Row>) {
    let is_named = |row: &&Row| named.contains(&row.name);
    let needed: u64 = rows.iter().filter(is_named).map(|row| row.memory_bytes(records)).sum();
    // A tenth stays free for buffers and the system.
    let mut left = (available / 10 * 9).saturating_sub(needed);
    rows.iter().copied().partition(|row| {
        let bytes = row.memory_bytes(records);
        let fits = is_named(&row) || bytes <= left;
        left -= if fits && !is_named(&row) { bytes } else { 0 };
        fits
    })
}

impl Harness<'_> {
    /// Opens the engines of rows that are compared, and loads them. Rows that no claim names are left
    /// out, with a note, if the memory does not suffice for all.
    ///
    /// # Errors
    /// When an engine refuses.
    pub(crate) fn open_compared(
        &self,
        rows: &[Row],
        named: &[&str],
        records: u64,
        result: &mut ExperimentResult,
    ) -> LabResult<Vec<Instance<'_>>> {
        let (rows, left_out) = fitting(rows, named, records, available_bytes());
        for row in left_out {
            let gb = row.memory_bytes(records) as f64 / 1e9;
            result.note(format!(
                "{} was left out: no room for {gb:.1} GB beside the others",
                row.name
            ));
        }
        rows.into_iter().map(|row| self.open_loaded(row, records, "none")).collect()
    }
}

/// The index of a row among the open engines.
pub(crate) fn position(beds: &[Instance<'_>], name: &str) -> usize {
    let found = beds.iter().position(|bed| bed.row.name == name);
    found.unwrap_or_else(|| panic!("{name} is opened, since claims name it"))
}

impl Instance<'_> {
    /// Takes a first checkpoint, if the row's later ones may then hold only what has changed.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) fn take_base(&self) -> LabResult<()> {
        if !self.row.takes_changes {
            return Ok(());
        }
        let before = self.engine.status().checkpoints;
        self.engine.start_checkpoint()?;
        loop {
            let status = self.engine.status();
            if let Some(reason) = status.failed {
                return Err(LabError::Engine { engine: self.row.name.to_owned(), reason });
            }
            if status.checkpoints > before {
                return Ok(());
            }
            sys::sleep(std::time::Duration::from_millis(4));
        }
    }

    /// Closes the engine and removes its data.
    ///
    /// # Errors
    /// When the data cannot be removed.
    pub(crate) fn clear(self) -> LabResult<()> {
        drop(self.engine);
        sys::remove_dir_all(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::records::{BASELINE, CALC_PACED, ROWS};

    #[test]
    fn what_claims_name_is_opened_and_the_rest_as_it_fits() {
        let named = [BASELINE, CALC_PACED];
        let names = |rows: &[Row]| rows.iter().map(|row| row.name).collect::<Vec<_>>();
        let (rows, left_out) = fitting(&ROWS, &named, 1_000, u64::MAX);
        assert_eq!((rows.len(), left_out.len()), (ROWS.len(), 0));
        let (rows, left_out) = fitting(&ROWS, &named, 1_000, 0);
        assert_eq!((names(&rows), left_out.len()), (named.to_vec(), ROWS.len() - 2));
        // Room for one more row of one copy.
        let available = 3 * 172_000 * 10 / 9 + 10;
        let (rows, _) = fitting(&ROWS, &named, 1_000, available);
        assert_eq!((rows.len(), rows[0].name), (3, BASELINE));
    }
}
