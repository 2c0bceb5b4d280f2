//! What an engine must offer to be measured inside this process.
//!
//! The lab's workloads and experiments know this trait alone, so that another
//! engine stands beside ours by implementing it. Calls are per *batch* of
//! transactions, never per record: the trait must cost nothing that is measured.

use std::path::PathBuf;

use crate::error::LabResult;
use crate::workloads::calc::{CalcTransaction, Change, Check, LongTransaction};

/// How an engine is opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// Its data directory.
    pub(crate) dir: PathBuf,
    /// The checkpoint scheme, by its registered name.
    pub(crate) scheme: String,
    /// The journal, by its registered name.
    pub(crate) journal: String,
    /// Bytes per second that a checkpoint may write; as fast as it can when absent.
    pub(crate) pace_bytes_per_s: Option<u64>,
    /// Records that will be loaded, for the engine's limits.
    pub(crate) records: u64,
    /// Bytes of every value: those of the paper, or the large ones.
    pub(crate) value_bytes: usize,
    /// Sessions at a time.
    pub(crate) sessions: usize,
}

/// How an engine is, now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// Checkpoints finished since it was opened.
    pub(crate) checkpoints: u64,
    /// True while one is under way.
    pub(crate) running: bool,
    /// Why the last one failed, if it did.
    pub(crate) failed: Option<String>,
    /// Records and bytes of the last one.
    pub(crate) last_records: u64,
    /// See `last_records`.
    pub(crate) last_bytes: u64,
    /// Bytes that the engine says it holds: records, indexes, copies for a checkpoint under way.
    pub(crate) held_bytes: u64,
    /// Most bytes of old values that waited for the disk in the last checkpoint.
    pub(crate) waiting_bytes_max: u64,
    /// Bytes that the journal has written since the engine was opened.
    pub(crate) journal_bytes: u64,
}

/// An engine that takes checkpoints when it is asked to.
pub(crate) trait Checkpointed: Sync {
    /// Begins a checkpoint in the background and returns at once.
    ///
    /// # Errors
    /// When one is under way, or the scheme takes none.
    fn start_checkpoint(&self) -> LabResult<()>;
    /// How it is.
    fn status(&self) -> Status;
}

/// One thread's client of an engine: it draws its own transactions.
pub(crate) trait Client {
    /// Draws so many transactions and runs them to their end. Returns how many have committed: all
    /// but those whose client rolls them back.
    ///
    /// # Errors
    /// When one cannot be committed.
    fn run(&mut self, count: usize) -> LabResult<usize>;
    /// Called when there is nothing to do for a moment.
    fn idle(&mut self) {}
}

/// An engine with the table of the CALC microbenchmark.
pub(crate) trait LabEngine: Checkpointed {
    /// Writes the records `0..records` with their initial values.
    ///
    /// # Errors
    /// When it refuses.
    fn load(&self, records: u64) -> LabResult<()>;
    /// A session for the calling thread.
    ///
    /// # Errors
    /// When there are too many.
    fn session(&self) -> LabResult<Box<dyn LabSession + '_>>;
    /// Reads every record and checks it.
    ///
    /// # Errors
    /// The first record that is wrong, or that the engine does not give back.
    fn check(&self, change: Change) -> LabResult<Check>;
}

/// One thread's way into an engine.
pub(crate) trait LabSession {
    /// Runs the transactions, all of them to their commit.
    ///
    /// # Errors
    /// When one cannot be committed.
    fn run(&mut self, transactions: &[CalcTransaction], change: Change) -> LabResult<()>;
    /// Runs a batch write as one transaction, calling `pause` after each of its writes.
    ///
    /// # Errors
    /// When it cannot be committed.
    fn run_long(
        &mut self,
        transaction: &LongTransaction,
        change: Change,
        pause: &mut dyn FnMut(),
    ) -> LabResult<()>;
    /// Called when there is nothing to do for a moment.
    fn idle(&mut self) {}
}

/// Opens an engine; a directory with data is recovered.
pub(crate) type OpenEngine = dyn Fn(&Setup) -> LabResult<Box<dyn LabEngine>> + Sync;
