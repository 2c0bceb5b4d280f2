//! Records of any length, each of which counts its updates. A transaction reads some of them and updates
//! others. The number of updates survives a restart, so a recovered state can be compared.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use stillpoint::{
    Batch, Config, Durability, Engine, KeySet, Mode, Session, Slot, Stamp, TableId, Tx, TxError,
};

use crate::error::LabResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::records::stable_bytes;
use crate::subjects::stillpoint::{failed, measured, start_checkpoint, status};
use crate::workloads::random::Random;

/// Bytes of the counter at the begin of a value.
pub(crate) const COUNTER_BYTES: usize = 8;
/// Records that one loading batch writes.
const LOAD_BATCH: u64 = 64;

/// The records, and the transactions on them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Records.
    pub(crate) records: u64,
    /// Bytes of each value: those of the counter at least.
    pub(crate) value_bytes: usize,
    /// Records that a transaction touches, and how many of them it updates.
    pub(crate) touched: usize,
    pub(crate) updated: usize,
    /// Share of the records that transactions touch.
    pub(crate) hot_share: f64,
    /// Whether an update writes the whole value. Otherwise it writes the counter.
    pub(crate) is_whole: bool,
}

impl Shape {
    fn hot(&self) -> u64 {
        ((self.records as f64 * self.hot_share) as u64).clamp(1, self.records)
    }

    /// Number of the n-th hot record. Hot records lie scattered.
    fn hot_record(&self, n: u64) -> u64 {
        (u128::from(n) * u128::from(self.records) / u128::from(self.hot())) as u64
    }
}

/// How an engine is opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// The checkpoint scheme's registered name.
    pub(crate) scheme: &'static str,
    /// The journal's registered name.
    pub(crate) journal: String,
    /// Whether a commit is acknowledged when it is durable.
    pub(crate) is_strict: bool,
    /// Bytes per second that a checkpoint may write.
    pub(crate) pace_bytes_per_s: Option<u64>,
}

/// The engine with such records.
pub(crate) struct Counters {
    choice: Choice,
    engine: Engine,
    table: TableId,
    shape: Shape,
    /// Updates that have committed since the engine was opened.
    updates: AtomicU64,
}

/// What all records hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Number of the records.
    pub(crate) records: u64,
    /// Sum of their counters.
    pub(crate) updates: u64,
}

fn key(record: u64) -> [u8; 8] {
    record.to_be_bytes()
}

/// Writes a value: the counter, and a filling that depends on the record alone.
fn write_value(room: &mut [u8], record: u64, count: u64) {
    room[..COUNTER_BYTES].copy_from_slice(&count.to_le_bytes());
    for (at, byte) in room[COUNTER_BYTES..].iter_mut().enumerate() {
        *byte = (record as usize).wrapping_mul(31).wrapping_add(at) as u8;
    }
}

impl Counters {
    /// Opens the engine and recovers the data in the directory.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open(choice: &Choice, shape: &Shape, dir: &Path) -> LabResult<Self> {
        let opened = |e| failed(choice.scheme, e);
        let config = Config {
            durability: if choice.is_strict { Durability::Strict } else { Durability::Relaxed },
            checkpoint_pace: choice.pace_bytes_per_s,
            stable_pool_bytes: choice
                .scheme
                .starts_with("calc-stored")
                .then(|| shape.records as usize * stable_bytes(shape.value_bytes) + (1 << 20)),
            ..measured(dir, choice.scheme, &choice.journal)
        };
        let engine = Engine::open(config).map_err(opened)?;
        let table = engine.table("counters").map_err(opened)?;
        let (choice, shape) = (choice.clone(), shape.clone());
        Ok(Counters { choice, engine, table, shape, updates: AtomicU64::new(0) })
    }

    fn failed(&self, reason: impl ToString) -> crate::error::LabError {
        failed(self.choice.scheme, reason)
    }

    /// Writes all records.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn load(&self) -> LabResult<()> {
        let threads = stillpoint_io::cpu_count() as u64;
        let part = |n: u64| self.shape.records * n / threads;
        let jobs = (0..threads).map(|n| {
            move || {
                let mut session = self.engine.session().map_err(|e| self.failed(e))?;
                let mut value = vec![0; self.shape.value_bytes];
                let mut records = part(n)..part(n + 1);
                while !records.is_empty() {
                    let batch: Vec<u64> = records.by_ref().take(LOAD_BATCH as usize).collect();
                    let put = session.transact(|tx| {
                        batch.iter().try_for_each(|&record| {
                            write_value(&mut value, record, 0);
                            tx.put(self.table, &key(record), &value)
                        })
                    });
                    put.map_err(|e| self.failed(e))?;
                }
                session.flush().map_err(|e| self.failed(e))
            }
        });
        let done = stillpoint_io::in_parallel("load", jobs.collect());
        done.map_err(|e| self.failed(e))?.into_iter().collect()
    }

    /// The client of worker number `worker`.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn client(&self, worker: usize, seed: u64) -> LabResult<Box<dyn Client + '_>> {
        let session = self.engine.session().map_err(|e| self.failed(e))?;
        Ok(Box::new(CountersClient {
            subject: self,
            session,
            random: Random::for_thread(seed, worker),
            records: Vec::new(),
            value: vec![0; self.shape.value_bytes],
        }))
    }

    /// Takes a checkpoint, and returns when it is published. Does nothing if the scheme takes none.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) fn checkpoint(&self) -> LabResult<()> {
        if self.engine.takes_checkpoints() {
            self.engine.checkpoint().map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Makes all commits durable.
    ///
    /// # Errors
    /// When a log cannot be flushed.
    pub(crate) fn flush(&self) -> LabResult<()> {
        let unflushed = self.engine.appended();
        self.engine.make_durable(&unflushed).map_err(|e| self.failed(e))
    }

    /// Updates that have committed since the engine was opened.
    pub(crate) fn updates(&self) -> u64 {
        // Relaxed: a sum of the clients, which have ended.
        self.updates.load(Ordering::Relaxed)
    }

    /// Reads and checks every record.
    ///
    /// # Errors
    /// The first record that no update has left so.
    pub(crate) fn check(&self) -> LabResult<Contents> {
        let mut session = self.engine.session().map_err(|e| self.failed(e))?;
        let (mut held, mut found) = (Contents::default(), Vec::new());
        let mut expected = vec![0; self.shape.value_bytes];
        for record in 0..self.shape.records {
            found.clear();
            let read = session.read(self.table, &key(record), &mut found);
            let is_there = read.map_err(|e| self.failed(e))?.is_some();
            let count = found.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            write_value(&mut expected, record, count);
            if !is_there || found != expected {
                return Err(self.failed(format!("record {record} is missing or wrong")));
            }
            held = Contents { records: held.records + 1, updates: held.updates + count };
        }
        Ok(held)
    }
}

impl Checkpointed for Counters {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(self.choice.scheme, &self.engine)
    }

    fn status(&self) -> Status {
        status(&self.engine)
    }
}

struct CountersClient<'a> {
    subject: &'a Counters,
    session: Session,
    random: Random,
    /// The records of a batch of transactions, one transaction after the other.
    records: Vec<u64>,
    value: Vec<u8>,
}

impl CountersClient<'_> {
    /// Draws different records for each of `count` transactions.
    fn draw(&mut self, count: usize) {
        let shape = &self.subject.shape;
        self.records.clear();
        for _ in 0..count {
            let first = self.records.len();
            while self.records.len() < first + shape.touched {
                let record = shape.hot_record(self.random.below(shape.hot()));
                if !self.records[first..].contains(&record) {
                    self.records.push(record);
                }
            }
        }
    }
}

impl Client for CountersClient<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        self.draw(count);
        let CountersClient { subject, session, records, value, .. } = self;
        let mut running = Running {
            table: subject.table,
            shape: &subject.shape,
            records,
            value,
            computed: 0,
            failed: None,
        };
        session.execute(&mut running);
        std::hint::black_box(running.computed);
        if let Some(reason) = running.failed {
            return Err(subject.failed(reason));
        }
        if subject.choice.is_strict {
            session.flush().map_err(|e| subject.failed(e))?;
        }
        let updates = (count * subject.shape.updated) as u64;
        // Relaxed: a statistic.
        subject.updates.fetch_add(updates, Ordering::Relaxed);
        Ok(count)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

struct Running<'a> {
    table: TableId,
    shape: &'a Shape,
    records: &'a [u64],
    value: &'a mut [u8],
    /// Checksum of the reads, kept so that the compiler cannot remove them.
    computed: u64,
    failed: Option<String>,
}

impl Running<'_> {
    fn of(&self, index: usize) -> &[u64] {
        &self.records[index * self.shape.touched..][..self.shape.touched]
    }
}

impl Batch for Running<'_> {
    fn len(&self) -> usize {
        self.records.len() / self.shape.touched
    }

    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        for (at, &record) in self.of(index).iter().enumerate() {
            let mode = if at < self.shape.updated { Mode::Write } else { Mode::Read };
            keys.push(self.table, &key(record), mode, self.shape.value_bytes);
        }
    }

    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for at in 0..self.shape.touched {
            let (slot, record) = (Slot(at as u32), self.of(index)[at]);
            match tx.value(slot) {
                Some(value) if value.len() == self.value.len() => value.read_range(0, self.value),
                _ => return Err(TxError::abandon(format!("record {record} is not as loaded"))),
            }
            let count = self.value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let last = self.value.last().copied().unwrap_or(0);
            self.computed = self.computed.wrapping_add(count + u64::from(last));
            if at >= self.shape.updated {
                continue;
            }
            let count = (count + 1).to_le_bytes();
            if self.shape.is_whole {
                self.value[..COUNTER_BYTES].copy_from_slice(&count);
                tx.put_slot(slot, self.value)?;
            } else {
                tx.patch_slot(slot, 0, &count)?;
            }
        }
        Ok(())
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::{Drive, run_clients};

    #[test]
    fn updates_are_counted_and_come_back() -> LabResult<()> {
        for (journal, value_bytes, is_whole) in
            [("none", 8, true), ("redo", 300, false), ("redo", 5_000, true)]
        {
            let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
            let (touched, updated, hot_share) = (4, 3, 0.1);
            let shape = Shape { records: 500, value_bytes, touched, updated, hot_share, is_whole };
            let journal = journal.to_owned();
            let choice = Choice {
                scheme: "calc:partial",
                journal,
                is_strict: false,
                pace_bytes_per_s: None,
            };
            let subject = Counters::open(&choice, &shape, dir.path())?;
            subject.load()?;
            let drive = Drive { seconds: 0.2, warm_up_s: 0.0, ..Drive::new(0) };
            run_clients(&subject, &drive, &|worker| subject.client(worker, 1))?;
            let held = Contents { records: 500, updates: subject.updates() };
            assert!(held.updates > 0 && held.updates.is_multiple_of(3));
            assert_eq!(subject.check()?, held);
            subject.checkpoint()?;
            drop(subject);
            assert_eq!(Counters::open(&choice, &shape, dir.path())?.check()?, held);
        }
        Ok(())
    }

    #[test]
    fn hot_records_lie_scattered() {
        let shape = Shape {
            records: 1_000,
            value_bytes: 8,
            touched: 1,
            updated: 1,
            hot_share: 0.01,
            is_whole: true,
        };
        let hot: Vec<u64> = (0..shape.hot()).map(|n| shape.hot_record(n)).collect();
        assert_eq!(hot, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }
}
