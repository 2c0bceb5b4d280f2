//! The redo log of a store: an operation has one record, and a flush makes all earlier ones durable.
//!
//! A segment ends when a checkpoint begins and no operation of the old level is under way any more.
//! So the segments before the one that was open at the begin hold no level above the checkpoint's. They
//! go once the checkpoint is durable.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::names;
use stillpoint_format::siren::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, LogRecord, SegmentHeader, seal_batch,
};
use stillpoint_io::{Caching, Clock, Disk, DiskError, DiskFile, OpenMode};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_sync::{Mutex, mutant};

use crate::config::Logging;
use crate::error::{SirenError, SirenResult};
use crate::planted;

/// Appended bytes that a relaxed log writes, with no flush.
const WRITTEN_AT: usize = 256 << 10;

/// Where a record ends, counted from the opening of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

/// The log.
#[derive(Debug)]
pub(crate) struct RedoLog {
    logging: Logging,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    store: StoreId,
    incarnation: u64,
    appended: Mutex<Appended>,
    writer: Mutex<Option<Writer>>,
    /// Bytes of records that are flushed.
    flushed: AtomicU64,
    /// Number of the open segment.
    segment: AtomicU64,
    /// Bytes of records when the last checkpoint began.
    checkpointed: AtomicU64,
    /// Bytes written, with headers and padding.
    written: AtomicU64,
}

#[derive(Debug, Default)]
struct Appended {
    /// Room for the batch's header, and records that are not written.
    batch: Vec<u8>,
    /// Bytes of all records.
    bytes: u64,
    /// Why nothing more is appended.
    failed: Option<String>,
}

#[derive(Debug)]
struct Writer {
    file: Arc<dyn DiskFile>,
    header: SegmentHeader,
    offset: u64,
    batches: u64,
    flushed_batches: u64,
    spare: Vec<u8>,
}

/// The path of a segment.
pub(crate) fn segment_path(number: u64) -> PathBuf {
    [names::SIREN_DIR, &names::siren_segment_name(number)].iter().collect()
}

impl RedoLog {
    /// A log whose first segment has this number.
    pub(crate) fn open(
        (logging, disk, clock): (Logging, Arc<dyn Disk>, Arc<dyn Clock>),
        store: StoreId,
        incarnation: u64,
        segment: u64,
    ) -> SirenResult<Self> {
        let log = Self {
            logging,
            disk,
            clock,
            store,
            incarnation,
            appended: Mutex::new(Appended { batch: room(), ..Appended::default() }),
            writer: Mutex::new(None),
            flushed: AtomicU64::new(0),
            segment: AtomicU64::new(segment),
            checkpointed: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        if logging != Logging::None {
            *log.writer.lock() = Some(log.new_segment(segment)?);
        }
        Ok(log)
    }

    fn new_segment(&self, number: u64) -> Result<Writer, DiskError> {
        let (created_ms, path) = (self.clock.wall_ms(), segment_path(number));
        let header =
            SegmentHeader { store: self.store, created_ms, number, incarnation: self.incarnation };
        // A crash may have left a segment of that number whose name alone is durable.
        self.disk.remove(&path)?;
        let file = self.disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        self.disk.sync_dir(names::SIREN_DIR.as_ref())?;
        let offset = HEADER_BYTES as u64;
        Ok(Writer { file, header, offset, batches: 0, flushed_batches: 0, spare: room() })
    }

    /// Appends a record. Call this inside the read section in which the level was read.
    pub(crate) fn append(
        &self,
        level: u64,
        transaction: u64,
        record: &LogRecord<'_>,
    ) -> SirenResult<Position> {
        if self.logging == Logging::None {
            return Ok(Position::default());
        }
        let mut appended = self.appended.lock();
        if let Some(reason) = &appended.failed {
            return Err(SirenError::LogFailed { reason: reason.clone() });
        }
        let before = appended.batch.len();
        record.encode(level, transaction, &mut appended.batch);
        if appended.batch.len() > BATCH_BYTES_MAX {
            appended.batch.truncate(before);
            let reason = "more than 2 GiB wait to be written".to_owned();
            return Err(SirenError::LogFailed { reason });
        }
        let bytes = appended.batch.len() - before;
        appended.bytes += bytes as u64;
        Ok(Position(appended.bytes))
    }

    /// The end of the last record.
    pub(crate) fn end(&self) -> Position {
        Position(self.appended.lock().bytes)
    }

    /// What a commit owes the log, outside of any read section: strict waits for the flush.
    pub(crate) fn settle(&self, position: Position) -> SirenResult<()> {
        match self.logging {
            Logging::None => Ok(()),
            Logging::Relaxed => self.write_much(),
            Logging::Strict => mutant!(self.flush(position), AnswersBeforeFlush => Ok(())),
        }
    }

    /// Writes what was appended if it is much, without a flush.
    pub(crate) fn write_much(&self) -> SirenResult<()> {
        if self.appended.lock().batch.len() < WRITTEN_AT {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        match &mut *writer {
            Some(writer) => self.fail_on_error(self.write(writer).map(drop)),
            None => Ok(()),
        }
    }

    /// Makes everything up to a position durable. Whoever waits for the writer meanwhile finds its
    /// own records flushed.
    pub(crate) fn flush(&self, position: Position) -> SirenResult<()> {
        let mut writer = self.writer.lock();
        let Some(writer) = &mut *writer else {
            return Ok(());
        };
        // SeqCst: the lock orders it; pairs with the store in `flush_all`.
        if self.flushed.load(SeqCst) >= position.0 {
            return Ok(());
        }
        self.flush_all(writer)
    }

    fn flush_all(&self, writer: &mut Writer) -> SirenResult<()> {
        if let Some(reason) = &self.appended.lock().failed {
            return Err(SirenError::LogFailed { reason: reason.clone() });
        }
        let end = self.fail_on_error(self.write(writer))?;
        self.fail_on_error(writer.file.sync())?;
        writer.flushed_batches = writer.batches;
        self.flushed.store(end.0, SeqCst);
        Ok(())
    }

    /// Writes all appended records as one batch.
    fn write(&self, writer: &mut Writer) -> Result<Position, DiskError> {
        let mut appended = self.appended.lock();
        let end = Position(appended.bytes);
        if appended.batch.len() == BATCH_HEADER_BYTES {
            return Ok(end);
        }
        let mut batch = std::mem::replace(&mut appended.batch, std::mem::take(&mut writer.spare));
        drop(appended);
        let numbers = (writer.batches, writer.flushed_batches);
        seal_batch(&mut batch, writer.header.identity(), writer.offset, numbers);
        writer.file.write_at(&batch, writer.offset)?;
        writer.offset += batch.len() as u64;
        writer.batches += 1;
        self.written.fetch_add(batch.len() as u64, SeqCst);
        batch.clear();
        batch.resize(BATCH_HEADER_BYTES, 0);
        writer.spare = batch;
        Ok(end)
    }

    /// After an error the log takes nothing more.
    fn fail_on_error<T>(&self, result: Result<T, DiskError>) -> SirenResult<T> {
        result.map_err(|error| {
            let mut appended = self.appended.lock();
            let reason = appended.failed.get_or_insert_with(|| error.to_string()).clone();
            SirenError::LogFailed { reason }
        })
    }

    /// Ends the open segment, durably, and begins the next one.
    pub(crate) fn rotate(&self) -> SirenResult<()> {
        let mut writer = self.writer.lock();
        let Some(open) = &mut *writer else {
            return Ok(());
        };
        self.flush_all(open)?;
        let number = open.header.number + 1;
        *open = self.fail_on_error(self.new_segment(number))?;
        self.segment.store(number, SeqCst);
        Ok(())
    }

    /// Number of this opening of the store.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Number of the open segment.
    pub(crate) fn segment(&self) -> u64 {
        self.segment.load(SeqCst)
    }

    /// Removes the segments from one on and below another. What cannot be removed goes at the next
    /// opening.
    pub(crate) fn remove(&self, from: u64, below: u64) {
        for number in from..below {
            let _ = self.disk.remove(&segment_path(number));
        }
    }

    /// Bytes of records since the last call of [`checkpoint_began`](Self::checkpoint_began).
    pub(crate) fn bytes_since_checkpoint(&self) -> u64 {
        self.end().0 - self.checkpointed.load(SeqCst)
    }

    pub(crate) fn checkpoint_began(&self) {
        self.checkpointed.store(self.end().0, SeqCst);
    }

    /// Bytes of all records, and bytes written for them.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.end().0, self.written.load(SeqCst))
    }
}

/// An empty batch.
fn room() -> Vec<u8> {
    vec![0; BATCH_HEADER_BYTES]
}
