//! ARIES for a database in memory, as in SIGMOD 2011, §5.1. ARIES is the competitor of the state
//! arrays under TPC-C.
//!
//! What remains of ARIES is **physical redo logging with periodic fuzzy checkpoints**. There is no
//! undo: "As FC applications do not have transactions in flight at points of consistency,
//! checkpointing does not need to be aware of transaction aborts". There is no table of dirty pages
//! either, since everything is in memory and no buffer pool keeps one.
//!
//! - `records`: what a record is: table, column, row, the new bytes;
//! - `redo`: the log, one flush for each batch of transactions (group commit), overlapped with the
//!   next batch;
//! - `pages`: the checkpoint: pages that have changed, copied and written while transactions go on;
//! - `fuzzy`: the arrays below, which are those of `crates/state` without any capture of old values.
//!
//! ```text
//! crash → pages of the last complete checkpoint → batches that came after it began → go on
//! ```
//!
//! Deviation: clean pages are not written. The paper does not say so, and the deviation favours
//! this competitor.

mod fuzzy;
mod pages;
mod records;
mod redo;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use stillpoint_io::{Disk, JoinHandle, read_all};
use stillpoint_state::{Arrays, Cells, Field, FieldValue, Intent, Scheme};

pub(crate) use fuzzy::Fuzzy;
pub(crate) use pages::Taken;

use self::pages::{Complete, Dirty, Job, Pages, WriteScheduler};
use self::records::Codes;
use self::redo::{Log, failed};
use crate::error::LabResult;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::memory::{Memory, Rows};
use crate::workloads::tpcc::schema::{TableRow, Tables};

/// The database, its log and its checkpoints.
#[derive(Debug)]
pub(crate) struct Aries {
    arrays: Arrays<Fuzzy>,
    tables: Tables,
    codes: Codes,
    pages: Pages,
    /// Records of the batch that runs.
    records: Vec<u8>,
    /// Pages that have changed since the last checkpoint began.
    dirty: Dirty,
    /// Pages that changed between the last checkpoint and the one before.
    dirty_before: Dirty,
    /// The last batch that has ended.
    batch: u64,
    log: Arc<Log>,
    scheduler: Arc<WriteScheduler>,
    threads: Vec<JoinHandle<()>>,
}

impl Aries {
    /// Opens the database on a disk, or makes it with the population's first rows.
    ///
    /// # Errors
    /// When memory or the disk refuse, or what is on the disk cannot be read.
    pub(crate) fn open(disk: Arc<dyn Disk>, population: &Population) -> LabResult<Self> {
        let mut builder = Arrays::<Fuzzy>::builder();
        let tables = Tables::declare(&mut builder, &population.scale);
        let mut arrays = builder.build().map_err(failed)?;
        let (codes, pages) = (Codes::new(&tables), Pages::new(arrays.infos()));
        let (newest, batch) = recover(&*disk, population, &mut arrays, &tables, &codes, &pages)?;
        let (log, scheduler) = (Arc::new(Log::new(batch)), Arc::new(WriteScheduler::default()));
        scheduler.runs(batch);
        let threads = vec![
            redo::start(disk.clone(), log.clone())?,
            pages::start(disk, pages.clone(), log.clone(), scheduler.clone(), newest)?,
        ];
        // After a recovery nobody knows which pages differ from those on the disk.
        let (dirty, dirty_before) = (pages.all(1), pages.all(1));
        Ok(Aries {
            arrays,
            tables,
            codes,
            pages,
            records: Vec::new(),
            dirty,
            dirty_before,
            batch,
            log,
            scheduler,
            threads,
        })
    }

    /// Runs a batch of transactions, waits until the batch before it is durable, and passes the
    /// records to the logger. Returns the batch's number.
    ///
    /// # Errors
    /// The disk's; nothing more becomes durable then.
    pub(crate) fn batch(&mut self, run: impl FnOnce(&mut Self)) -> LabResult<u64> {
        self.batch += 1;
        self.scheduler.runs(self.batch);
        run(self);
        let records = std::mem::take(&mut self.records);
        self.records = self.log.push(self.batch, records)?;
        self.arrays.end_tick();
        Ok(self.batch)
    }

    /// Begins a checkpoint between two batches. Returns false if one is under way.
    ///
    /// # Errors
    /// What has ended the checkpointer.
    pub(crate) fn checkpoint(&mut self) -> LabResult<bool> {
        let Some(capture) = self.arrays.point_of_consistency() else {
            return Ok(false);
        };
        self.log.end_segment();
        let changed = std::mem::replace(&mut self.dirty, self.pages.all(0));
        let mut dirty = std::mem::replace(&mut self.dirty_before, changed);
        for (page, changed) in dirty.iter_mut().flatten().zip(self.dirty_before.iter().flatten()) {
            *page |= changed;
        }
        self.scheduler.give(Job { capture, dirty, before: self.batch })?;
        Ok(true)
    }

    /// The last batch that has ended.
    pub(crate) fn batches(&self) -> u64 {
        self.batch
    }

    /// The last batch that survives a crash.
    #[cfg(test)]
    pub(crate) fn durable(&self) -> u64 {
        self.log.durable()
    }

    /// Waits until all batches survive a crash.
    ///
    /// # Errors
    /// An error of the disk.
    #[cfg(test)]
    pub(crate) fn wait_durable(&self) -> LabResult<()> {
        self.log.wait_durable(self.batch)
    }

    /// Number of checkpoints since the database was opened.
    pub(crate) fn taken(&self) -> Taken {
        self.scheduler.taken()
    }

    /// Bytes logged since the database was opened.
    pub(crate) fn logged_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// The tables of the database.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The cells of the database.
    pub(crate) fn cells(&self) -> &Cells<Fuzzy> {
        &self.arrays
    }
}

impl Drop for Aries {
    fn drop(&mut self) {
        self.scheduler.stop();
        self.log.stop();
        for thread in self.threads.drain(..) {
            // A panic shows as a log that has ended.
            let _ = thread.join();
        }
    }
}

impl Rows for Aries {
    #[inline]
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        self.arrays.read_field(T::array(&self.tables), row, column)
    }

    #[inline]
    fn row<T: TableRow>(&self, row: usize) -> T {
        self.arrays.read(T::array(&self.tables), row)
    }
}

impl Memory for Aries {
    #[inline]
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        self.codes.put_column::<T, F>(&mut self.records, row, column.offset(), value);
        self.arrays.write_field(T::array(&self.tables), row, column, value);
        self.mark::<T>(row);
    }

    #[inline]
    fn put<T: TableRow>(&mut self, row: usize, value: T) {
        let array = T::array(&self.tables);
        self.arrays.write(array, row, value);
        let read = |bytes: &mut [u8]| self.arrays.read_part(array, row, 0, bytes);
        self.codes.put_row::<T>(&mut self.records, row, read);
        self.mark::<T>(row);
    }

    #[inline]
    fn announce<T: TableRow, F: FieldValue>(
        &self,
        row: usize,
        column: Field<T, F>,
        intent: Intent,
    ) {
        self.arrays.prefetch_field(T::array(&self.tables), row, column, intent);
    }
}

impl Aries {
    #[inline]
    fn mark<T: TableRow>(&mut self, row: usize) {
        let page = self.pages.page_of(T::TABLE, row);
        self.dirty[usize::from(T::TABLE)][page] = 1;
    }
}

/// Recovers the arrays. Returns the loaded checkpoint and the last batch.
fn recover<S: Scheme>(
    disk: &dyn Disk,
    population: &Population,
    arrays: &mut Arrays<S>,
    tables: &Tables,
    codes: &Codes,
    pages: &Pages,
) -> LabResult<(Option<Complete>, u64)> {
    let newest = pages.load(disk, arrays, tables)?;
    if newest.is_none() {
        population.fill(arrays, tables).map_err(failed)?;
    }
    let mut last = newest.map_or(0, |newest| newest.before);
    for first in redo::segments(disk).map_err(failed)? {
        let path = redo::segment_path(first);
        let bytes = read_all(disk, &path).map_err(failed)?;
        let mut rest = &bytes[..];
        while let Some((number, records, len)) = redo::read_batch(rest) {
            rest = rest.get(len..).unwrap_or_default();
            if number <= last {
                continue;
            }
            if number != last + 1 {
                return Err(failed(format!("batch {number} follows batch {last} in the log")));
            }
            codes.apply(records, arrays, tables).map_err(failed)?;
            last = number;
        }
        // The recovered state rests on bytes that may lie only in the system's cache, so they must
        // be flushed to survive the next crash.
        let file =
            disk.open(&path, stillpoint_io::OpenMode::ReadWrite, stillpoint_io::Caching::Buffered);
        file.and_then(|file| file.sync()).map_err(failed)?;
    }
    Ok((newest, last))
}
