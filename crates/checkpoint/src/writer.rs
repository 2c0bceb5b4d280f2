//! The sink that writes part files.
//!
//! ```text
//! lane (one per read section slot)            queue                 writer thread (one per part)
//! ┌ block of partition 0 ┐   full    ┌─────────┐  seal, checksum, compress   ┌──────────┐
//! │ block of partition 1 │ ────────► │ blocks, │ ──────────────────────────► │ part-000 │
//! │ …                    │ ◄──────── │ large   │      writes of 1 MiB,       ├──────────┤
//! └──────────────────────┘  empty    │ values  │      past the page cache    │ part-001 │
//!                                    └─────────┘                             └──────────┘
//! ```
//! A commit emits into its own lane, which it takes once: two copies and no I/O. Plain blocks are
//! written from where they were filled. The queue is the *pool* of the CALC paper
//! (docs/decisions/0002). Large values are queued by reference and read when their turn comes.
//!
//! If records come faster than the device writes, before-images go first, whatever the pace:
//! - Once a few writes per part are queued, half of the pool's limit at most, the capture scan waits.
//! - Above three quarters of the limit a commit that would save before-images waits. The commit has
//!   changed nothing yet, so reads without locks go on. These waits are counted and shown.
//! - At the limit every thread that emits waits, if need be in the middle of a long commit.
//!
//! [`PartSink::finish`] makes the files durable: it flushes the parts, then their directory, then
//! its parents. This module publishes nothing.

mod lane;
mod merged;
mod part;
mod queue;
mod room;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::{
    CheckpointEntry, LogPositions, PartEntry, TableGeneration, TableRecords,
};
use stillpoint_format::names::{CHECKPOINT_DIR, CheckpointKind, checkpoint_dir};
use stillpoint_format::part::{BLOCK_TARGET_BYTES, Codec, PartHeader};
use stillpoint_io::{Clock, Disk, JoinHandle, catch_panic, spawn};
use stillpoint_store::{Demand, Lane, Sink, Store};
use stillpoint_sync::CachePadded;

use crate::error::CheckpointError;
use crate::progress::Progress;
use lane::LaneSlot;
pub(crate) use merged::{MergedPart, MergedRecords};
use part::{PartFile, PartTarget};
use queue::Queue;
use room::Room;

/// The settings with which a checkpoint is written.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Name of the store, for the files' headers.
    pub store: StoreId,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// The key hash has 2^this partitions, at most 2^16. Each lane holds a block per partition.
    pub partitions_log2: u8,
    /// Compression of blocks.
    pub codec: Codec,
    /// Number of the attempt, and of its directory. No earlier attempt had the same number.
    pub serial: u64,
    /// Epoch of the checkpoint that one of changes goes on from.
    pub base: Option<u64>,
    /// Level of zstd, 1 to 19.
    pub zstd_level: i32,
    /// Part files, and threads that write them.
    pub parts: u32,
    /// Bytes at which a block is full.
    pub block_bytes: usize,
    /// Bytes per write.
    pub write_bytes: usize,
    /// Free bytes of the disk that the checkpoint leaves to others. A write that would take these
    /// bytes fails as on a full disk.
    pub leave_bytes: u64,
    /// Limit of the pool: bytes of blocks and large values that wait to be written.
    pub pool_bytes_max: usize,
}

impl WriterConfig {
    /// The defaults: 16 partitions, no compression, two parts, writes of 1 MiB, a pool of 32 MiB.
    pub fn new(store: StoreId, hash_seed: u64, serial: u64) -> Self {
        Self {
            store,
            hash_seed,
            partitions_log2: 4,
            codec: Codec::None,
            serial,
            base: None,
            zstd_level: 1,
            parts: 2,
            block_bytes: BLOCK_TARGET_BYTES,
            write_bytes: 1 << 20,
            leave_bytes: 0,
            pool_bytes_max: 32 << 20,
        }
    }
}

/// A checkpoint whose files are durable. The checkpoint exists once a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The epoch that the checkpoint began. The checkpoint holds the commits of all earlier epochs.
    pub epoch: u64,
    /// Serial of the checkpoint's directory.
    pub serial: u64,
    /// Full or partial.
    pub kind: CheckpointKind,
    /// Codec asked for.
    pub codec: Codec,
    /// The key hash has 2^this partitions.
    pub partitions_log2: u8,
    /// Part files of the checkpoint.
    pub parts: Vec<PartEntry>,
    /// Records in the checkpoint.
    pub records: u64,
    /// Number of the checkpoint's records of each table.
    pub table_records: Vec<TableRecords>,
    /// Bytes of the records' values.
    pub value_bytes: u64,
    /// Wall clock when the checkpoint began, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Wall clock when the last part was durable.
    pub finished_ms: u64,
    /// Whether the checkpoint is fuzzy: it has no point of consistency, and its records have
    /// stamps.
    pub fuzzy: bool,
    /// Statistics of the writing.
    pub stats: SinkStats,
}

impl Written {
    /// The checkpoint's entry in the manifest. The engine adds the scheme's name, and for a
    /// checkpoint of changes the epoch of its base. The engine also adds the tables' generations
    /// and the logs' positions, both at the point of consistency.
    pub fn into_entry(
        self,
        scheme: &str,
        base: Option<u64>,
        generations: Vec<TableGeneration>,
        positions: Vec<LogPositions>,
        gsn_floor: u64,
    ) -> CheckpointEntry {
        CheckpointEntry {
            epoch: self.epoch,
            serial: self.serial,
            kind: self.kind,
            base,
            scheme: scheme.to_owned(),
            private: None,
            fuzzy: self.fuzzy,
            active: Vec::new(),
            codec: self.codec,
            partitions_log2: self.partitions_log2,
            records: self.records,
            table_records: self.table_records,
            value_bytes: self.value_bytes,
            parts: self.parts,
            generations,
            positions,
            gsn_floor,
            started_ms: self.started_ms,
            finished_ms: self.finished_ms,
        }
    }
}

/// Statistics of the writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    /// Bytes of records taken, in plain form.
    pub taken_bytes: u64,
    /// Bytes in the pool now.
    pub pool_bytes: u64,
    /// Most bytes that were in the pool.
    pub pool_bytes_peak: u64,
    /// How often a worker had to wait because the pool was full.
    pub worker_waits: u64,
    /// Sum of all workers' waits for room in the pool, in nanoseconds.
    pub worker_wait_ns: u64,
}

/// A finished part, and the bytes of its values.
type Part = (PartEntry, u64);
type WriterThread = JoinHandle<Option<Part>>;

/// Takes the records of one checkpoint and writes them to part files.
pub struct PartSink {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    config: WriterConfig,
    epoch: u64,
    kind: CheckpointKind,
    started_ms: u64,
    queue: Arc<Queue>,
    lanes: Box<[CachePadded<LaneSlot>]>,
    threads: Mutex<Vec<WriterThread>>,
}

impl std::fmt::Debug for PartSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartSink")
            .field("dir", &self.dir)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl PartSink {
    /// Makes the checkpoint's directory and starts the writer threads.
    ///
    /// # Errors
    /// The disk refused, or a thread could not be started.
    pub fn create(
        disk: Arc<dyn Disk>,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        progress: Arc<Progress>,
        epoch: u64,
        kind: CheckpointKind,
        config: WriterConfig,
    ) -> Result<Self, CheckpointError> {
        let dir = PathBuf::from(checkpoint_dir(config.serial, kind));
        disk.create_dir_all(&dir)?;
        let lanes = store.driver().read_sections().capacity();
        let partitions_log2 = config.partitions_log2;
        let lane = || CachePadded::new(LaneSlot::new(partitions_log2));
        let mut sink = Self {
            queue: Arc::new(Queue::new(store, clock.clone(), progress, &config)),
            disk,
            dir,
            started_ms: clock.wall_ms(),
            clock,
            config,
            epoch,
            kind,
            lanes: (0..lanes).map(|_| lane()).collect(),
            threads: Mutex::default(),
        };
        sink.start_threads()?;
        Ok(sink)
    }

    fn start_threads(&mut self) -> Result<(), CheckpointError> {
        let room = self.room();
        for part in 0..self.config.parts.max(1) {
            let target = self.target(part, &room);
            let queue = self.queue.clone();
            let run = move || write_part(&queue, target);
            // If this fails, dropping the sink ends the threads that were started.
            let thread = spawn(&format!("writer-{part}"), run)?;
            self.threads.get_mut().push(thread);
        }
        Ok(())
    }

    fn room(&self) -> Arc<Room> {
        Arc::new(Room::new(self.disk.clone(), self.config.leave_bytes))
    }

    fn target(&self, part: u32, room: &Arc<Room>) -> PartTarget {
        PartTarget {
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            header: PartHeader {
                store: self.config.store,
                created_ms: self.started_ms,
                epoch: self.epoch,
                part,
                kind: self.kind,
                partitions_log2: self.config.partitions_log2,
                codec: self.config.codec,
                hash_seed: self.config.hash_seed,
                base: self.config.base.filter(|_| self.kind == CheckpointKind::Partial),
            },
            zstd_level: self.config.zstd_level,
            write_bytes: self.config.write_bytes,
            room: room.clone(),
        }
    }

    /// Statistics of the writing.
    pub fn stats(&self) -> SinkStats {
        SinkStats { taken_bytes: self.taken_bytes(), ..self.queue.stats() }
    }

    /// Writes the remaining records, and flushes the parts, then their directory, then its parents.
    ///
    /// # Errors
    /// The first failure since the sink was made. The files are removed.
    pub fn finish(&self) -> Result<Written, CheckpointError> {
        self.drain();
        let parts = self.end_threads();
        let flushed = match (self.queue.take_failure(), parts) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(error),
            (None, Ok(parts)) => self.write_any(parts).and_then(|parts| {
                self.flush_dirs()?;
                Ok(parts)
            }),
        };
        let parts = flushed.inspect_err(|_| self.remove_files())?;
        Ok(Written {
            epoch: self.epoch,
            serial: self.config.serial,
            kind: self.kind,
            codec: self.config.codec,
            partitions_log2: self.config.partitions_log2,
            records: parts.iter().map(|(part, _)| part.records).sum(),
            table_records: self.table_records(),
            value_bytes: parts.iter().map(|(_, bytes)| bytes).sum(),
            parts: parts.into_iter().map(|(part, _)| part).collect(),
            started_ms: self.started_ms,
            finished_ms: self.clock.wall_ms(),
            fuzzy: false,
            stats: self.stats(),
        })
    }

    /// Gives the checkpoint up: drops the queue and removes the files. Returns the first earlier
    /// failure, if there was one.
    pub fn abandon(&self) -> Option<CheckpointError> {
        self.queue.set_failed();
        self.drain();
        let ended = self.end_threads();
        self.remove_files();
        self.queue.take_failure().or(ended.err())
    }

    fn table_records(&self) -> Vec<TableRecords> {
        let mut sums = BTreeMap::new();
        for lane in &self.lanes {
            for TableRecords { table, records } in lane.table_records() {
                *sums.entry(table).or_insert(0) += records;
            }
        }
        sums.into_iter().map(|(table, records)| TableRecords { table, records }).collect()
    }

    /// Writes a part without records if no other was written: its header says which checkpoint the
    /// directory has.
    fn write_any(&self, mut parts: Vec<Part>) -> Result<Vec<Part>, CheckpointError> {
        if parts.is_empty() {
            let file = PartFile::create(&self.target(0, &self.room()))?;
            parts.push(file.finish(self.queue.progress())?);
        }
        Ok(parts)
    }

    fn flush_dirs(&self) -> Result<(), CheckpointError> {
        self.disk.sync_dir(&self.dir)?;
        let shared = |dir| self.disk.sync_dir(Path::new(dir)).map_err(CheckpointError::Directory);
        shared(CHECKPOINT_DIR).and_then(|()| shared(""))
    }

    fn remove_files(&self) {
        // If even the removal fails, the files stay until the next start, which removes files that
        // no manifest names.
        let _ = self.disk.remove(&self.dir);
    }

    fn end_threads(&self) -> Result<Vec<Part>, CheckpointError> {
        self.queue.close();
        let mut parts = Vec::new();
        let mut panicked = None;
        for thread in self.threads.lock().drain(..) {
            match thread.join() {
                Ok(part) => parts.extend(part),
                Err(error) => panicked = Some(error),
            }
        }
        self.queue.free_blocks();
        panicked.map_or(Ok(parts), |error| Err(error.into()))
    }
}

impl Sink for PartSink {
    #[inline]
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.lanes[lane].open(&self.queue, with);
    }

    fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    fn wait_for_room(&self, _: usize) {
        self.queue.wait_before_saves();
    }

    fn demand(&self) -> Demand {
        self.queue.demand()
    }

    fn taken_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.taken_bytes()).sum()
    }

    fn drain(&self) {
        for lane in &self.lanes {
            lane.flush(&self.queue);
        }
        self.queue.wait_until_empty();
    }
}

impl Drop for PartSink {
    fn drop(&mut self) {
        if !self.threads.get_mut().is_empty() {
            self.abandon();
        }
    }
}

/// The target of a merge, which writes one part.
pub(crate) fn merge_target(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    header: PartHeader,
    config: &WriterConfig,
) -> PartTarget {
    PartTarget {
        disk: disk.clone(),
        dir: dir.to_owned(),
        header,
        zstd_level: config.zstd_level,
        write_bytes: config.write_bytes,
        room: Arc::new(Room::new(disk.clone(), config.leave_bytes)),
    }
}

/// Removes a checkpoint's files durably. Call this once no manifest names the checkpoint any more.
///
/// # Errors
/// The files cannot be removed, or [`CheckpointError::Directory`].
pub fn remove_checkpoint(
    disk: &dyn Disk,
    serial: u64,
    kind: CheckpointKind,
) -> Result<(), CheckpointError> {
    disk.remove(Path::new(&checkpoint_dir(serial, kind)))?;
    disk.sync_dir(Path::new(CHECKPOINT_DIR)).map_err(CheckpointError::Directory)
}

/// As [`remove_checkpoint`], for who waits for the names alone. The space may become free later.
///
/// # Errors
/// As [`remove_checkpoint`].
pub fn remove_checkpoint_soon(
    disk: &dyn Disk,
    serial: u64,
    kind: CheckpointKind,
) -> Result<(), CheckpointError> {
    disk.remove_soon(Path::new(&checkpoint_dir(serial, kind)))?;
    disk.sync_dir(Path::new(CHECKPOINT_DIR)).map_err(CheckpointError::Directory)
}

/// Runs a writer thread, which writes one part, begun when the first block comes. After a failure
/// or a panic the queue drops all records, so that no thread waits for room.
fn write_part(queue: &Queue, target: PartTarget) -> Option<Part> {
    let written = catch_panic(&format!("writer-{}", target.header.part), || {
        let mut part: Option<PartFile> = None;
        while let Some(mut batch) = queue.take() {
            if queue.has_failed() {
                continue;
            }
            let part = match &mut part {
                Some(part) => part,
                none => none.insert(PartFile::create(&target)?),
            };
            part.write(&mut batch.items, queue)?;
        }
        match part {
            Some(part) if !queue.has_failed() => part.finish(queue.progress()).map(Some),
            _ => Ok(None),
        }
    });
    let written: Result<Option<Part>, CheckpointError> =
        written.map_err(CheckpointError::from).flatten();
    written.unwrap_or_else(|error| {
        queue.fail(error);
        None
    })
}
