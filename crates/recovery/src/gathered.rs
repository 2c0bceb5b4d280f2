//! What the threads that read the logs gather for a start that serves at once.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use stillpoint_format::hash::KeyHasher;
use stillpoint_format::log::WriteOp;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::AlignedBuf;
use stillpoint_journal::{KeptWrite, LogWindow, ReceiveWrites, ReplayOperation};
use stillpoint_store::{TableId, UnreadableRecord, WaitingWrites, WindowSource, WriteEffect};
use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::RecoveryError;

/// Bytes of memory that a record takes beside its entry in a block, about: its cell's header and its
/// entry in the index.
pub(crate) const RECORD_BYTES: u64 = 32;

/// The writes of the logs, gathered while the logs were scanned.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) gatherers: Vec<Gatherer>,
    pub(crate) commits: u64,
}

/// A window of a log, for the store.
#[derive(Debug)]
struct OfLog(LogWindow);

impl WindowSource for OfLog {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn read(&self, into: &mut [u8]) -> Result<(), UnreadableRecord> {
        Ok(self.0.read(into)?)
    }

    fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, UnreadableRecord> {
        Ok(self.0.read_part(wanted, into)?)
    }
}

/// One gathering thread.
#[derive(Debug)]
pub(crate) struct Gatherer {
    pub(crate) waiting: WaitingWrites,
    hasher: KeyHasher,
    /// Makes other hashes of the same keys.
    checker: KeyHasher,
    /// The generation of each table, by its number.
    generations: Arc<[Option<u32>]>,
    pub(crate) writes: u64,
    pub(crate) stale: u64,
    /// Bytes of memory for the writes, and for the records that they may become.
    pub(crate) bytes: usize,
    /// The part of these bytes that `left` knows.
    told: usize,
    /// Bytes of memory that are left for the writes of all threads.
    left: Arc<AtomicUsize>,
    pub(crate) is_full: bool,
}

impl Gatherer {
    /// Tells the other threads what this one takes.
    fn tell(&mut self) {
        let more = self.bytes + self.waiting.bytes() - self.told;
        self.told += more;
        // Relaxed: a count.
        let fits = |left: usize| left.checked_sub(more);
        self.is_full |= self.left.fetch_update(Relaxed, Relaxed, fits).is_err();
    }
}

/// What a write does to its key.
#[inline]
fn effect_of(op: &WriteOp<'_>) -> WriteEffect {
    match op {
        WriteOp::Put { .. } | WriteOp::Delete => WriteEffect::Whole,
        WriteOp::Patch(ranges) if ranges.len() == 1 => {
            let range = ranges.clone().next();
            let place = range.map(|range| (range.offset.try_into(), range.bytes.len().try_into()));
            match place {
                Some((Ok(offset), Ok(len))) if len > 0 => WriteEffect::Range(offset, len),
                _ => WriteEffect::Change,
            }
        }
        WriteOp::Patch(_) | WriteOp::Until { .. } | WriteOp::Splice(_) => WriteEffect::Change,
    }
}

impl ReceiveWrites for Gatherer {
    type Error = RecoveryError;

    #[inline]
    fn write(&mut self, kept: &KeptWrite<'_>) -> Result<(), RecoveryError> {
        let (table, generation) = (kept.write.table, kept.write.generation);
        let now = self.generations.get(usize::from(table)).copied().flatten();
        match now.map(|now| generation.cmp(&now)) {
            Some(Ordering::Equal) => self.writes += 1,
            Some(Ordering::Less) => {
                self.stale += 1;
                return Ok(());
            }
            Some(Ordering::Greater) | None => {
                let (log, gsn) = (kept.log, kept.gsn);
                return Err(RecoveryError::NewerTable { log, gsn, table, generation });
            }
        }
        if self.is_full {
            return Ok(());
        }
        let hash = self.hasher.hash(table, kept.write.key);
        let held = self.waiting.bytes();
        // What later writes leave nothing of is found by two hashes.
        let check = (self.checker.hash(table, kept.write.key) >> 32) as u32;
        let place = (kept.at, effect_of(&kept.write.op));
        self.waiting.push((hash, check), kept.gsn, (TableId(table), generation), place);
        self.bytes += WaitingWrites::PLACE_BYTES;
        if matches!(kept.write.op, WriteOp::Put { .. }) {
            self.bytes += kept.encoded.len() + RECORD_BYTES as usize;
        }
        if self.waiting.bytes() != held {
            self.tell();
        }
        Ok(())
    }

    fn end_window(&mut self, describe: &dyn Fn() -> LogWindow) {
        let held = self.waiting.bytes();
        self.waiting.end_window(|| Box::new(OfLog(describe())));
        if self.waiting.bytes() != held {
            self.tell();
        }
    }

    fn operation(&mut self, operation: &ReplayOperation<'_>) -> Result<(), RecoveryError> {
        Err(RecoveryError::UnknownKind { log: operation.log, gsn: operation.gsn })
    }
}

/// Receivers for so many threads, which have these bytes of memory together.
pub(crate) fn gatherers(
    manifest: &Manifest,
    (threads, left_bytes): (usize, usize),
) -> Vec<Gatherer> {
    let last = manifest.tables.iter().map(|table| table.id).max().unwrap_or(0);
    let generation = |id| manifest.table(id).map(|table| table.generation);
    let generations: Arc<[Option<u32>]> = (0..=last).map(generation).collect();
    let left = Arc::new(AtomicUsize::new(left_bytes));
    let gatherer = |waiting| Gatherer {
        waiting,
        hasher: KeyHasher::new(manifest.hash_seed),
        checker: KeyHasher::new(!manifest.hash_seed),
        generations: generations.clone(),
        writes: 0,
        stale: 0,
        bytes: 0,
        told: 0,
        left: left.clone(),
        is_full: false,
    };
    WaitingWrites::for_threads(threads).into_iter().map(gatherer).collect()
}
