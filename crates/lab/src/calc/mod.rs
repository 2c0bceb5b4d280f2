//! The experiments of the CALC paper (Ren, Diamond, Abadi, Thomson: *Low-overhead
//! asynchronous checkpointing in main-memory database systems*, SIGMOD 2016).
//!
//! The baseline is the scheme `none`, an engine without any checkpoint hook.
//! It and every competitor are open in the same process, on the same data, and
//! run in turn, so that whatever else the machine does hits all of them.

pub mod crash;
pub mod fig2;
pub mod fig6;
pub mod instructions;
pub mod measures;
pub mod profiled;

use crate::adapter::{LabEngine, OpenEngine, Setup};
use crate::context::Context;
use crate::error::LabResult;
use crate::sys;
use crate::workload::calc::{KEY_BYTES, VALUE_BYTES};

/// Bytes per second of the paper's disk: 100–150 MB/s (§4).
pub const PAPER_PACE_BYTES_PER_S: u64 = 125_000_000;

/// A scheme and a writer mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name in figures.
    pub name: &'static str,
    /// The scheme's registered name.
    pub scheme: &'static str,
    /// Bytes per second that its checkpoints may write.
    pub pace_bytes_per_s: Option<u64>,
    /// Bytes of every value.
    pub value_bytes: usize,
}

const fn row(name: &'static str, scheme: &'static str, pace_bytes_per_s: Option<u64>) -> Row {
    Row { name, scheme, pace_bytes_per_s, value_bytes: VALUE_BYTES }
}

/// The engine without checkpoints.
pub const BASELINE: Row = row("none", "none", None);
/// CALC at the speed of the paper's disk.
pub const CALC_PACED: Row = row("calc, paced", "calc", Some(PAPER_PACE_BYTES_PER_S));
/// CALC as fast as it can.
pub const CALC_UNPACED: Row = row("calc, unpaced", "calc", None);
/// The naive snapshot at the speed of the paper's disk.
pub const NAIVE_PACED: Row = row("naive, paced", "naive", Some(PAPER_PACE_BYTES_PER_S));
/// The naive snapshot as fast as it can.
pub const NAIVE_UNPACED: Row = row("naive, unpaced", "naive", None);

/// Where the experiments run: the context, and how an engine is opened.
pub struct Bench<'a> {
    /// Folder, mode, progress.
    pub context: &'a Context,
    /// Opens an engine.
    pub open: &'a OpenEngine,
    /// True where the context's binary knows `lab child`, which callgrind and
    /// the crash check run.
    pub children: bool,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("context", self.context).finish_non_exhaustive()
    }
}

/// An engine of a row, loaded.
pub struct Bed<'a> {
    /// Which.
    pub row: Row,
    /// The engine.
    pub engine: Box<dyn LabEngine + 'a>,
    dir: std::path::PathBuf,
}

impl std::fmt::Debug for Bed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bed").field("row", &self.row).finish_non_exhaustive()
    }
}

impl Bench<'_> {
    /// Opens a row's engine on a fresh directory and loads the records.
    ///
    /// # Errors
    /// When the engine refuses.
    pub fn bed(&self, row: Row, records: u64, journal: &str) -> LabResult<Bed<'_>> {
        let name: String =
            row.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let dir = self.context.fresh_dir(&format!("{name}-{journal}"))?;
        self.context
            .note(format!("loading {records} records into {}, journal {journal}", row.name));
        let engine = (self.open)(&setup(row, records, journal, dir.clone()))?;
        engine.load(records)?;
        Ok(Bed { row, engine, dir })
    }
}

/// How a row's engine is opened.
pub fn setup(row: Row, records: u64, journal: &str, dir: std::path::PathBuf) -> Setup {
    Setup {
        dir,
        scheme: row.scheme.to_owned(),
        journal: journal.to_owned(),
        pace_bytes_per_s: row.pace_bytes_per_s,
        records,
        value_bytes: row.value_bytes,
        sessions: 8,
    }
}

impl Bed<'_> {
    /// Closes the engine and removes its data.
    ///
    /// # Errors
    /// When the data cannot be removed.
    pub fn clear(self) -> LabResult<()> {
        drop(self.engine);
        sys::remove_dir_all(&self.dir)
    }
}

/// Bytes of the keys and values of so many records.
pub fn data_bytes(records: u64) -> u64 {
    records * (KEY_BYTES + VALUE_BYTES) as u64
}
