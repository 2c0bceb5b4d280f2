//! The harness of experiments on engines of records: it opens engines and loads them.
//!
//! The baseline is the scheme `none`, an engine without any checkpoint hook. Baseline and
//! competitors are open in the same process and run in turn on the same data. So other work of the
//! machine hits all of them alike.

use crate::context::Context;
use crate::error::LabResult;
use crate::measure::process::own_huge_page_bytes;
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

impl Instance<'_> {
    /// Closes the engine and removes its data.
    ///
    /// # Errors
    /// When the data cannot be removed.
    pub(crate) fn clear(self) -> LabResult<()> {
        drop(self.engine);
        sys::remove_dir_all(&self.dir)
    }
}
