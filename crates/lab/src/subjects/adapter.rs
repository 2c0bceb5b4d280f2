//! The traits of an engine that is measured inside this process.
//!
//! The experiments on records know only these traits, so another engine can be compared with ours
//! by implementing them. Calls are per *batch* of transactions, never per record, so that the
//! traits cost nothing measurable.

use std::path::PathBuf;

use crate::error::LabResult;
use crate::workloads::calc::{CalcTransaction, Change, Check, LongTransaction};

/// Settings with which an engine is opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// The data directory.
    pub(crate) dir: PathBuf,
    /// The checkpoint scheme, by its registered name.
    pub(crate) scheme: String,
    /// The journal, by its registered name.
    pub(crate) journal: String,
    /// Bytes per second that a checkpoint may write. Without a number, a checkpoint writes as fast
    /// as it can.
    pub(crate) pace_bytes_per_s: Option<u64>,
    /// Records that will be loaded, for the engine's limits.
    pub(crate) records: u64,
    /// Bytes of every value: the paper's 100, or the large 1,000.
    pub(crate) value_bytes: usize,
    /// Most sessions at a time.
    pub(crate) sessions: usize,
    /// Whether checkpoint schemes stop as they were published: until no transaction is open.
    pub(crate) published_points: bool,
    /// Bytes of the pool of stable versions, if not the engine's default.
    pub(crate) stable_pool_bytes: Option<usize>,
}

/// A start from the data that a crash has left.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Recovered {
    /// Commits that were replayed.
    pub(crate) commits: u64,
    /// Bytes of the logs.
    pub(crate) log_bytes: u64,
    /// Keys whose newest commits the checkpoint had and the logs had lost.
    pub(crate) keys_undone: u64,
    /// Seconds of the load, of the undo, and of the replay.
    pub(crate) load_s: f64,
    pub(crate) undo_s: f64,
    pub(crate) replay_s: f64,
}

/// Status of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// Checkpoints finished since the engine was opened.
    pub(crate) checkpoints: u64,
    /// Whether a checkpoint is under way.
    pub(crate) running: bool,
    /// The reason why the last checkpoint failed, if it did.
    pub(crate) failed: Option<String>,
    /// Records of the last checkpoint.
    pub(crate) last_records: u64,
    /// Bytes of the last checkpoint.
    pub(crate) last_bytes: u64,
    /// Bytes that the engine holds by its own account: records, indexes, copies for a checkpoint
    /// under way.
    pub(crate) held_bytes: u64,
    /// Bytes of them in buffers of the log.
    pub(crate) log_buffer_bytes: u64,
    /// Peak of the before-images that waited for the disk in the last checkpoint, in bytes.
    pub(crate) waiting_bytes_max: u64,
    /// Seconds in which no commit could begin in the last checkpoint.
    pub(crate) last_stopped_s: f64,
    /// Seconds of the last checkpoint's capture scan. 0 if the engine does not tell it.
    pub(crate) last_scan_s: f64,
    /// Seconds from the begin of the last checkpoint until the next one could begin. Not-a-number if
    /// that was cut off.
    pub(crate) last_ready_s: f64,
    /// Bytes of the pool of stable versions.
    pub(crate) stable_pool_bytes: u64,
    /// The most bytes that the last checkpoint had in use in that pool.
    pub(crate) stable_bytes_max: u64,
    /// How often a commit waited for room in the output of the last checkpoint.
    pub(crate) last_waits: u64,
    /// The sum of these waits, in seconds.
    pub(crate) last_waited_s: f64,
    /// Bytes that the journal has written since the engine was opened.
    pub(crate) journal_bytes: u64,
    /// What the start has recovered.
    pub(crate) recovered: Recovered,
}

/// An engine that takes checkpoints on request.
pub(crate) trait Checkpointed: Sync {
    /// Begins a checkpoint in the background and returns at once.
    ///
    /// # Errors
    /// When one is under way, or the scheme takes none.
    fn start_checkpoint(&self) -> LabResult<()>;
    /// Merges the checkpoints that go on from each other, and returns when that is done. False if
    /// there is nothing to merge.
    ///
    /// # Errors
    /// When the merge fails.
    fn merge(&self) -> LabResult<bool> {
        Ok(false)
    }
    /// The engine's status.
    fn status(&self) -> Status;
}

/// A client of an engine, used by one thread. The client draws its own transactions.
pub(crate) trait Client {
    /// Draws `count` transactions and runs them to their end. Returns how many have committed: all
    /// but those that the client rolls back.
    ///
    /// # Errors
    /// When a transaction cannot be committed.
    fn run(&mut self, count: usize) -> LabResult<usize>;
    /// Upkeep, called when no transaction is due.
    fn idle(&mut self) {}
}

/// An engine with the table of the CALC microbenchmark.
pub(crate) trait LabEngine: Checkpointed {
    /// Writes the records `0..records` with their initial values.
    ///
    /// # Errors
    /// When the engine refuses.
    fn load(&self, records: u64) -> LabResult<()>;
    /// A session for the calling thread.
    ///
    /// # Errors
    /// When there are too many sessions.
    fn session(&self) -> LabResult<Box<dyn LabSession + '_>>;
    /// Reads every record and checks it.
    ///
    /// # Errors
    /// The first record that is wrong or missing.
    fn check(&self, change: Change) -> LabResult<Check>;
}

/// A session of an engine, used by one thread.
pub(crate) trait LabSession {
    /// Runs the transactions, all of them to their commit.
    ///
    /// # Errors
    /// When a transaction cannot be committed.
    fn run(&mut self, transactions: &[CalcTransaction], change: Change) -> LabResult<()>;
    /// Runs a batch write as one transaction, calling `pause` after each of its writes.
    ///
    /// # Errors
    /// When the transaction cannot be committed.
    fn run_long(
        &mut self,
        transaction: &LongTransaction,
        change: Change,
        pause: &mut dyn FnMut(),
    ) -> LabResult<()>;
    /// Upkeep, called when no transaction is due.
    fn idle(&mut self) {}
}

/// Opens an engine, and recovers the data in its directory.
pub(crate) type OpenEngine = dyn Fn(&Setup) -> LabResult<Box<dyn LabEngine>> + Sync;
