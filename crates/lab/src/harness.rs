//! The harness of experiments on engines of records: it opens engines and loads them.
//!
//! The baseline is the scheme `none`, an engine without any checkpoint hook. Each competitor is open
//! in the same process as the baseline and runs in turn with it on the same data. So other work of
//! the machine hits both alike.

use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::measure::machine::available_bytes;
use crate::measure::process::own_huge_page_bytes;
use crate::report::result::ExperimentResult;
use crate::subjects::adapter::{LabEngine, OpenEngine, Setup};
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
    /// Whether its checkpoints stop as they were published: until no transaction is open.
    pub(crate) published_points: bool,
    /// The engine.
    pub(crate) engine: Box<dyn LabEngine + 'a>,
    /// The engine's data directory.
    pub(crate) dir: std::path::PathBuf,
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
        self.open_in_form((row, self.context.published_points), records, journal)
    }

    /// As [`open_loaded`](Self::open_loaded), with one form of the point of consistency. `true` stands for
    /// the form as published.
    fn open_in_form(
        &self,
        (row, published_points): (Row, bool),
        records: u64,
        journal: &str,
    ) -> LabResult<Instance<'_>> {
        let name: String =
            row.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let dir = self.context.fresh_dir(&format!("{name}-{journal}"))?;
        self.context
            .note(format!("loading {records} records into {}, journal {journal}", row.name));
        let setup = setup(row, records, journal, dir.clone());
        let engine = (self.open)(&Setup { published_points, ..setup })?;
        engine.load(records)?;
        self.context.saw_huge_pages(own_huge_page_bytes());
        Ok(Instance { row, published_points, engine, dir })
    }
}

impl Harness<'_> {
    /// Compares each row with the baseline, the first of the rows. The two engines are open at the
    /// same time and loaded, and `compare` runs them in turn: baseline, row, baseline, row. The
    /// baseline stays open for all rows, and a row's engine closes before the next one opens. So the
    /// memory has to hold two engines, however many rows there are. A row that does not fit beside
    /// the baseline is left out, with a note.
    ///
    /// # Errors
    /// When an engine refuses, and the errors of `compare`.
    pub(crate) fn in_pairs<T>(
        &self,
        rows: &[Row],
        records: u64,
        result: &mut ExperimentResult,
        compare: impl FnMut([&Instance<'_>; 2]) -> LabResult<T>,
    ) -> LabResult<Vec<T>> {
        let (first, others) = rows.split_first().expect("the baseline is the first row");
        let forms: Vec<_> =
            others.iter().map(|row| (*row, self.context.published_points)).collect();
        self.in_pairs_of_forms(*first, &forms, (records, result), compare)
    }

    /// As [`in_pairs`](Self::in_pairs), each row with a form of its point of consistency. `true` stands for
    /// the form as published.
    ///
    /// # Errors
    /// As [`in_pairs`](Self::in_pairs).
    pub(crate) fn in_pairs_of_forms<T>(
        &self,
        first: Row,
        forms: &[(Row, bool)],
        (records, result): (u64, &mut ExperimentResult),
        mut compare: impl FnMut([&Instance<'_>; 2]) -> LabResult<T>,
    ) -> LabResult<Vec<T>> {
        let baseline = self.open_loaded(first, records, "none")?;
        let mut compared = Vec::new();
        for form @ (row, _) in forms {
            if !fits(row, records, available_bytes()) {
                let gb = row.memory_bytes(records) as f64 / 1e9;
                result.note(format!("{} was left out: no room for {gb:.1} GB", row.name));
                continue;
            }
            let subject = self.open_in_form(*form, records, "none")?;
            compared.push(compare([&baseline, &subject])?);
            subject.clear()?;
        }
        baseline.clear()?;
        Ok(compared)
    }
}

/// Whether the memory suffices for a row. A tenth stays free for buffers and the system.
fn fits(row: &Row, records: u64, available: u64) -> bool {
    row.memory_bytes(records) <= available / 10 * 9
}

impl Instance<'_> {
    /// Takes a first checkpoint, if the row's later ones may then hold only what has changed.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) fn take_base(&self) -> LabResult<()> {
        if self.row.takes_changes { self.take_checkpoint() } else { Ok(()) }
    }

    /// Takes a checkpoint, and waits until it is published. Nothing else asks for one meanwhile.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) fn take_checkpoint(&self) -> LabResult<()> {
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
    use crate::drivers::transactions::tests::Toy;
    use crate::subjects::records::{BASELINE, CALC_PACED, paced_rows, row};

    #[test]
    fn a_row_fits_or_does_not() {
        let calc = row(CALC_PACED);
        assert!(fits(&calc, 1_000, 172_000 * 10 / 9 + 10) && !fits(&calc, 1_000, 172_000));
    }

    #[test]
    fn two_engines_are_open_at_a_time_and_the_baseline_is_one_of_them() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let mut result = context.result("toy", "a toy", "none");
        let rows = paced_rows();
        let seen = bench.in_pairs(&rows, 100, &mut result, |pair| {
            assert!(pair.iter().all(|it| it.dir.is_dir()));
            let dirs = sys::list_dir(&context.work)?.len();
            Ok((pair.map(|it| it.row.name), dirs))
        })?;
        let wanted: Vec<_> = rows[1..].iter().map(|row| ([BASELINE, row.name], 2)).collect();
        assert_eq!(seen, wanted);
        assert_eq!(sys::list_dir(&context.work)?.len(), 0, "nothing is left behind");
        Ok(())
    }
}
