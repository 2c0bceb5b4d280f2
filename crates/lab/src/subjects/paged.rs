//! Tables of any kind with records of 100 bytes, and the settings of an engine with a pool.

use std::path::Path;

use serde::Serialize;
use stillpoint::{
    Batch, CHECKPOINT_SCHEME_DEFAULT, Config, Engine, KeySet, Kind, Mode, PoolStats, Session, Slot,
    Stamp, TableId, Tx, TxError,
};

use crate::error::LabResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::stillpoint::{failed, measured, start_checkpoint, status};
use crate::workloads::random::Random;

/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 100;
/// Records of one transaction of a load.
const LOAD_RECORDS: u64 = 256;
/// Records of one transaction of a scan.
const SCAN_RECORDS: u64 = 10_000;
/// Log at which a checkpoint begins.
const LOG_LIMIT_BYTES: u64 = 1 << 30;

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PoolSize {
    /// Bytes of all frames.
    pub(crate) pool_bytes: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
}

/// Settings of an engine with a pool, for a measurement: journal redo, relaxed durability. Checkpoints
/// begin by the length of the log.
pub(crate) fn with_pool(dir: &Path, pool: PoolSize) -> Config {
    let mut config = measured(dir, CHECKPOINT_SCHEME_DEFAULT, "redo");
    config.log_limit_bytes = LOG_LIMIT_BYTES;
    config.pool_bytes = Some(pool.pool_bytes as usize);
    config.page_bytes = Some(pool.page_bytes);
    config
}

/// Numbers of the pool of an engine.
///
/// # Errors
/// When there is no pool.
pub(crate) fn pool_of(name: &str, engine: &Engine) -> LabResult<PoolStats> {
    engine.stats().pool.ok_or_else(|| failed(name, "there is no pool"))
}

/// How a point is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// One read at a time, without a transaction around it.
    Read,
    /// One transaction for each read.
    Transact,
    /// Declared transactions of one read each, many in a batch.
    Declared,
}

/// An engine with one table of points.
pub(crate) struct Points {
    name: &'static str,
    engine: Engine,
    table: TableId,
    records: u64,
}

fn key(record: u64) -> [u8; 8] {
    record.to_be_bytes()
}

fn value(record: u64) -> [u8; VALUE_BYTES] {
    let mut value = [record as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&record.to_le_bytes());
    value
}

impl Points {
    /// Opens the engine, with a table of this kind for so many records.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open(
        name: &'static str,
        config: Config,
        kind: Kind,
        records: u64,
    ) -> LabResult<Self> {
        let engine = Engine::open(config).map_err(|e| failed(name, e))?;
        let table = engine.table_with("points", kind).map_err(|e| failed(name, e))?;
        Ok(Points { name, engine, table, records })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Writes all records, in the order of their keys, and takes a checkpoint.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn load(&self) -> LabResult<()> {
        let threads = stillpoint_io::cpu_count() as u64;
        let part = |n: u64| self.records * n / threads;
        let jobs = (0..threads).map(|n| {
            move || {
                let mut session = self.engine.session().map_err(|e| failed(self.name, e))?;
                let mut records = part(n)..part(n + 1);
                while !records.is_empty() {
                    let some = records.start..records.end.min(records.start + LOAD_RECORDS);
                    let put = |record| (key(record), value(record));
                    let put: Vec<_> = some.clone().map(put).collect();
                    let written = session.transact(|tx| {
                        put.iter().try_for_each(|(key, value)| tx.put(self.table, key, value))
                    });
                    written.map_err(|e| failed(self.name, e))?;
                    records.start = some.end;
                }
                Ok(())
            }
        });
        let done = stillpoint_io::in_parallel("load", jobs.collect());
        done.map_err(|e| failed(self.name, e))?.into_iter().collect::<LabResult<()>>()?;
        self.engine.checkpoint().map_err(|e| failed(self.name, e)).map(drop)
    }

    /// A client that reads uniform points.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn reader(
        &self,
        how: How,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        Ok(Box::new(Reader {
            subject: self,
            session: self.engine.session().map_err(|e| failed(self.name, e))?,
            how,
            random: Random::for_thread(seed, worker),
            batch: Vec::new(),
            out: Vec::new(),
        }))
    }

    /// A scan of the whole table, in transactions of 10,000 records. Returns the number of records and a
    /// sum over their values.
    ///
    /// # Errors
    /// A record is wrong or missing, or the engine refuses.
    pub(crate) fn scan(&self) -> LabResult<u64> {
        let mut session = self.engine.session().map_err(|e| failed(self.name, e))?;
        let (mut next, mut sum) = (0u64, 0u64);
        while next < self.records {
            let end = (next + SCAN_RECORDS).min(self.records);
            let read = session.transact(|tx| {
                let (mut count, mut sum) = (0, 0u64);
                let mut range = tx.range(self.table, &key(next)[..]..&key(end)[..])?;
                while let Some((_, value)) = range.next_record()? {
                    sum = sum.wrapping_add(value.u64_at(0).unwrap_or(0));
                    count += 1;
                }
                Ok((count, sum))
            });
            let (count, of_range) = read.map_err(|e| failed(self.name, e))?;
            if count != end - next {
                let reason = format!("{count} of {} records behind {next}", end - next);
                return Err(failed(self.name, reason));
            }
            sum = sum.wrapping_add(of_range);
            next = end;
        }
        let expected = (0..self.records).fold(0u64, u64::wrapping_add);
        if sum != expected {
            return Err(failed(
                self.name,
                format!("the values have the sum {sum}, not {expected}"),
            ));
        }
        Ok(self.records)
    }

    /// Closes the engine.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn close(self) -> LabResult<()> {
        self.engine.close().map_err(|e| failed(self.name, e))
    }
}

impl Checkpointed for Points {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(self.name, &self.engine)
    }

    fn status(&self) -> Status {
        status(&self.engine)
    }
}

struct Reader<'a> {
    subject: &'a Points,
    session: Session,
    how: How,
    random: Random,
    batch: Vec<u64>,
    out: Vec<u8>,
}

impl Reader<'_> {
    fn check(&self, record: u64, found: bool) -> LabResult<()> {
        match found && self.out == value(record) {
            true => Ok(()),
            false => Err(failed(self.subject.name, format!("record {record} is not as loaded"))),
        }
    }
}

impl Client for Reader<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let (table, name) = (self.subject.table, self.subject.name);
        self.batch.clear();
        self.batch.extend((0..count).map(|_| self.random.below(self.subject.records)));
        if self.how == How::Declared {
            let mut reads = Reads { table, batch: &self.batch, failed: None };
            self.session.execute(&mut reads);
            return reads.failed.map_or(Ok(count), |reason| Err(failed(name, reason)));
        }
        for at in 0..count {
            let record = self.batch[at];
            self.out.clear();
            let out = &mut self.out;
            let found = match self.how {
                How::Transact => self.session.transact(|tx| {
                    out.clear();
                    let found = tx.get(table, &key(record))?;
                    Ok(found.inspect(|value| value.copy_to(out)).is_some())
                }),
                _ => self.session.read(table, &key(record), out).map(|found| found.is_some()),
            };
            self.check(record, found.map_err(|e| failed(name, e))?)?;
        }
        Ok(count)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

struct Reads<'a> {
    table: TableId,
    batch: &'a [u64],
    failed: Option<String>,
}

impl Batch for Reads<'_> {
    fn len(&self) -> usize {
        self.batch.len()
    }

    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        keys.push(self.table, &key(self.batch[index]), Mode::Read, VALUE_BYTES);
    }

    #[inline]
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let record = self.batch[index];
        match tx.value(Slot(0)) {
            Some(value) if value.u64_at(0) == Some(record) => Ok(()),
            _ => Err(TxError::abandon(format!("record {record} is not as loaded"))),
        }
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}
