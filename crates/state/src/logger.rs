//! The logical logger: actions of ended ticks go to the disk in batches of whole ticks, each flushed
//! before the next is written. A tick is durable when its batch is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use stillpoint_format::ident::{HEADER_BYTES, Identity};
use stillpoint_format::state::{
    ACTIONS_DIR, ActionBatchBuilder, ActionSegmentHeader, BATCH_PAYLOAD_BYTES_MAX, FRAME_BYTES,
};
use stillpoint_io::{Caching, DiskError, DiskFile, OpenMode};
use stillpoint_mem::prefetch;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Release},
};
use stillpoint_sync::{CachePadded, mutant};

use crate::config::{Background, Config};
use crate::error::StateError;
use crate::files::Files;
use crate::handover::{self, ReceivedTick, TickReceiver, TickSender, stream_bytes};
use crate::planted;
use crate::progress::Progress;

/// Most bytes of actions in a tick, four more for each of them included.
pub const TICK_BYTES_MAX: usize = BATCH_PAYLOAD_BYTES_MAX - FRAME_BYTES;

/// Data that the mutator and the logger share besides the stream of ticks.
#[derive(Debug)]
pub(crate) struct LogQueue {
    control: Mutex<Control>,
    came: Condvar,
    flushed: Condvar,
    /// Bytes of the stream that need no room any more. Only the logger writes this number.
    flushed_bytes: CachePadded<AtomicU64>,
    /// True while there is a failure. Every tick reads this flag, and only failures change it.
    has_failed: CachePadded<AtomicBool>,
}

#[derive(Debug, Default)]
struct Control {
    /// Whether a thread waits for a flush.
    is_urgent: bool,
    stops: bool,
    failure: Option<Failure>,
}

#[derive(Clone, Debug)]
enum Failure {
    /// The disk is full; the logger tries again.
    Full(Arc<DiskError>),
    /// The log has failed for good.
    Dead(Arc<DiskError>),
}

impl Failure {
    fn error(&self) -> StateError {
        match self {
            Self::Full(error) => StateError::LogFull(error.clone()),
            Self::Dead(error) => StateError::LogFailed(error.clone()),
        }
    }
}

/// The mutator's end of the log.
#[derive(Debug)]
pub(crate) struct LogSender {
    queue: Arc<LogQueue>,
    ticks: TickSender,
    /// Whether the end of a tick may wait for room, since another thread flushes.
    may_wait: bool,
    bytes_max: u64,
    sent_bytes: u64,
    /// The newest known value of the queue's counter.
    flushed_bytes: u64,
}

impl LogSender {
    /// Prefetches the memory that the end of a tick reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.ticks.prefetch();
        prefetch(&*self.queue.has_failed);
    }

    /// Puts the actions of the tick that has not ended where the logger will find them. So the end of the
    /// tick has less to do.
    pub(crate) fn write_ahead(&mut self, actions: &[u8]) {
        self.ticks.write_ahead(actions);
    }

    /// Adds an ended tick. Waits for room if waiting is allowed. Takes no lock while there is room.
    ///
    /// After a long step neither data nor code are in the cache. So the usual path is short, and
    /// all other paths are calls.
    ///
    /// # Errors
    /// The log has failed; or there is no room, since the disk is full. Nothing was added then.
    #[inline]
    pub(crate) fn push(&mut self, tick: u64, actions: &[u8]) -> Result<(), StateError> {
        let bytes = stream_bytes(actions.len());
        // Acquire: pairs with the Release in `set_failure`.
        if self.queue.has_failed.load(Acquire) || !self.fits(bytes) {
            self.wait_for_room(bytes)?;
        }
        self.ticks.send(tick, actions);
        self.sent_bytes += bytes;
        Ok(())
    }

    /// True if `bytes` more bytes may wait for a flush, as far as the mutator knows. An empty queue
    /// has room for any tick.
    #[inline]
    fn fits(&self, bytes: u64) -> bool {
        let waiting = self.sent_bytes - self.flushed_bytes;
        waiting == 0 || waiting + bytes <= self.bytes_max
    }

    #[cold]
    #[inline(never)]
    fn wait_for_room(&mut self, bytes: u64) -> Result<(), StateError> {
        self.flushed_bytes = self.queue.flushed_bytes();
        // Acquire: as in `push`.
        if !self.queue.has_failed.load(Acquire) && self.fits(bytes) {
            return Ok(());
        }
        let queue = self.queue.clone();
        let mut control = queue.control.lock();
        loop {
            self.flushed_bytes = queue.flushed_bytes();
            match &control.failure {
                Some(failure @ Failure::Dead(_)) => return Err(failure.error()),
                _ if self.fits(bytes) => return Ok(()),
                Some(failure) => return Err(failure.error()),
                None if !self.may_wait => return Ok(()),
                None => queue.hurry(&mut control),
            }
        }
    }

    /// Makes later ticks go into a new segment.
    pub(crate) fn end_segment(&mut self) {
        self.ticks.begin_segment();
    }

    /// Waits until every tick up to `tick` is durable.
    pub(crate) fn wait_for(&self, tick: u64, progress: &Progress) -> Result<(), StateError> {
        let mut control = self.queue.control.lock();
        while progress.durable_tick() < tick {
            if let Some(failure) = &control.failure {
                return Err(failure.error());
            }
            self.queue.hurry(&mut control);
        }
        Ok(())
    }

    /// The logger ends once everything is flushed, or nothing can be any more.
    pub(crate) fn stop(&self) {
        self.queue.control.lock().stops = true;
        self.queue.came.notify_one();
    }

    /// Bytes of ended ticks that wait for a flush, a word of length for each tick included.
    pub(crate) fn waiting_bytes(&self) -> usize {
        (self.sent_bytes - self.queue.flushed_bytes()) as usize
    }
}

impl LogQueue {
    fn new() -> Self {
        Self {
            control: Mutex::default(),
            came: Condvar::new(),
            flushed: Condvar::new(),
            flushed_bytes: CachePadded::new(AtomicU64::new(0)),
            has_failed: CachePadded::new(AtomicBool::new(false)),
        }
    }

    fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Acquire) // pairs with the Release in `batch_is_durable`
    }

    /// Asks for a flush at once, and waits for the next one.
    fn hurry(&self, control: &mut MutexGuard<'_, Control>) {
        control.is_urgent = true;
        self.came.notify_one();
        self.flushed.wait(control);
    }

    fn set_failure(&self, control: &mut Control, failure: Option<Failure>) {
        // Every tick looks at the flag, so its cache line changes as seldom as it can.
        if control.failure.is_some() != failure.is_some() {
            // Release: pairs with the Acquire in `push`.
            self.has_failed.store(failure.is_some(), Release);
        }
        control.failure = failure;
    }

    /// The reason why no further tick becomes durable.
    fn death(&self) -> Option<StateError> {
        let control = self.control.lock();
        let death = control.failure.as_ref().filter(|it| matches!(it, Failure::Dead(_)));
        death.map(Failure::error)
    }

    fn fail(&self, failure: Failure) {
        self.set_failure(&mut self.control.lock(), Some(failure));
        self.flushed.notify_all();
    }

    fn batch_is_durable(&self, bytes: u64, is_last: bool) {
        let mut control = self.control.lock();
        // Release: pairs with the Acquire in `flushed_bytes`.
        self.flushed_bytes.fetch_add(bytes, Release);
        if is_last {
            control.is_urgent = false;
        }
        self.set_failure(&mut control, None);
        self.flushed.notify_all();
    }
}

/// Ticks to be written together.
#[derive(Debug, Default)]
struct Batch {
    ticks: ActionBatchBuilder,
    begins_segment: bool,
    /// Bytes that the ticks took in the stream.
    bytes: u64,
}

/// Takes ticks from the stream and collects them into batches.
#[derive(Debug)]
struct Collector {
    ticks: TickReceiver,
    /// A tick for the next batch. `actions` holds the tick's actions.
    held: Option<ReceivedTick>,
    actions: Vec<u8>,
}

impl Collector {
    /// The ticks that were sent so far, as many as go into one batch; `None` if there are none.
    fn collect(&mut self) -> Option<Batch> {
        let until = self.ticks.published();
        let mut batch = Batch::default();
        while let Some(tick) = self.held.take().or_else(|| self.receive(until)) {
            let is_first = batch.ticks.is_empty();
            let ends_batch = tick.begins_segment && !is_first;
            if ends_batch || !batch.ticks.push(tick.tick, &self.actions) {
                self.held = Some(tick);
                break;
            }
            batch.begins_segment |= tick.begins_segment;
            batch.bytes += stream_bytes(self.actions.len());
        }
        self.ticks.prepare();
        (!batch.ticks.is_empty()).then_some(batch)
    }

    fn receive(&mut self, until: u64) -> Option<ReceivedTick> {
        self.ticks.receive(until, &mut self.actions)
    }

    /// True if no tick after this one was sent.
    fn is_last(&self, tick: u64) -> bool {
        self.ticks.published() == tick
    }
}

/// Writes batches.
#[derive(Debug)]
pub(crate) struct LogWriter {
    files: Arc<Files>,
    progress: Arc<Progress>,
    queue: Arc<LogQueue>,
    collector: Collector,
    segment_bytes: u64,
    segment: Option<Segment>,
    /// A batch that is not durable yet.
    pending: Option<Batch>,
}

#[derive(Debug)]
struct Segment {
    file: Arc<dyn DiskFile>,
    identity: Identity,
    offset: u64,
    batches: u64,
}

/// How long the logger waits before it tries a full disk again.
const RETRY: Duration = Duration::from_millis(50);

/// The two ends of the log of a state that has ended `last_tick`.
pub(crate) fn open_log(
    files: &Arc<Files>,
    progress: &Arc<Progress>,
    config: &Config,
    last_tick: u64,
) -> (LogSender, LogWriter) {
    let queue = Arc::new(LogQueue::new());
    let (sender, receiver) = handover::stream(last_tick);
    let sender = LogSender {
        queue: queue.clone(),
        ticks: sender,
        may_wait: config.background == Background::Threads,
        bytes_max: config.queue_bytes_max as u64,
        sent_bytes: 0,
        flushed_bytes: 0,
    };
    let writer = LogWriter {
        files: files.clone(),
        progress: progress.clone(),
        queue,
        collector: Collector { ticks: receiver, held: None, actions: Vec::new() },
        segment_bytes: config.segment_bytes,
        segment: None,
        pending: None,
    };
    (sender, writer)
}

impl LogWriter {
    /// Writes and flushes one batch; false if there is none.
    ///
    /// # Errors
    /// The disk's. If the disk is full the batch is kept, and tried again next time. After any
    /// other error nothing is tried again.
    pub(crate) fn flush_one(&mut self) -> Result<bool, StateError> {
        if let Some(error) = self.queue.death() {
            return Err(error);
        }
        if self.pending.is_none() {
            self.pending = self.collector.collect();
        }
        let Some(mut batch) = self.pending.take() else {
            return Ok(false);
        };
        match self.write(&mut batch.ticks, batch.begins_segment) {
            Ok(()) => {
                let last = batch.ticks.last_tick().expect("a batch has ticks");
                self.progress.ticks_are_durable(last);
                self.queue.batch_is_durable(batch.bytes, self.collector.is_last(last));
                Ok(true)
            }
            Err(error) => {
                let is_full = error.is_disk_full();
                let error = Arc::new(error);
                let failure = if is_full { Failure::Full(error) } else { Failure::Dead(error) };
                self.queue.fail(failure.clone());
                // If a segment could not be begun, it is begun again.
                batch.begins_segment &= self.segment.is_none();
                self.pending = Some(batch);
                Err(failure.error())
            }
        }
    }

    fn write(&mut self, batch: &mut ActionBatchBuilder, begins: bool) -> Result<(), DiskError> {
        let first = batch.first_tick().expect("a batch has ticks");
        if begins || self.segment.as_ref().is_some_and(|it| it.offset >= self.segment_bytes) {
            self.segment = None;
        }
        let segment = match &mut self.segment {
            Some(segment) => segment,
            none => none.insert(begin_segment(&self.files, first, self.segment_bytes)?),
        };
        let bytes = batch.seal(segment.identity, segment.offset, segment.batches);
        segment.file.write_at(bytes, segment.offset)?;
        mutant!(flush(&self.files, segment)?, DurableBeforeFlush => ());
        let len = batch.sealed_bytes() as u64;
        segment.offset += len;
        segment.batches += 1;
        Progress::add(&self.progress.logged_bytes, len);
        Progress::add(&self.progress.flushes, 1);
        Ok(())
    }
}

/// A flush that fails is not retried, even if the disk was merely full.
fn flush_failed_is_final(flushed: Result<(), DiskError>) -> Result<(), DiskError> {
    flushed.map_err(|error| {
        let why = std::io::Error::other(error.source.to_string());
        DiskError::new(error.op, error.path, why)
    })
}

/// Flushes a segment. With the segment's first batch, also makes the segment's name durable.
fn flush(files: &Files, segment: &Segment) -> Result<(), DiskError> {
    flush_failed_is_final(segment.file.sync())?;
    if segment.batches == 0 {
        flush_failed_is_final(files.disk().sync_dir(Path::new(ACTIONS_DIR)))?;
    }
    Ok(())
}

/// Makes a segment; its header becomes durable with its first batch.
fn begin_segment(files: &Files, first_tick: u64, bytes: u64) -> Result<Segment, DiskError> {
    let header = ActionSegmentHeader {
        store: files.schema.store,
        created_ms: files.environment.clock.wall_ms(),
        first_tick,
        nonce: files.environment.rng.next_u64(),
    };
    let (disk, path) = (files.disk(), Files::segment_path(first_tick));
    // A crash may have left a segment of this name without any batch.
    disk.remove(&path)?;
    let file = disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
    let begun = file.allocate(bytes).and_then(|()| file.write_at(&header.encode(), 0));
    if let Err(error) = begun {
        // The file would take the space that the next attempt needs.
        let _ = disk.remove(&path);
        return Err(error);
    }
    let offset = HEADER_BYTES as u64;
    Ok(Segment { file, identity: header.identity(), offset, batches: 0 })
}

/// The drop of this value in a logger that panics ends all waits for the logger.
struct FailOnPanic(Arc<LogQueue>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = std::io::Error::other("the logger's thread has panicked");
            let error = DiskError::new("log actions to", ACTIONS_DIR, why);
            self.0.fail(Failure::Dead(Arc::new(error)));
        }
    }
}

/// The logger's thread.
pub(crate) fn run(mut writer: LogWriter, flush_interval: Duration) {
    let queue = writer.queue.clone();
    let _guard = FailOnPanic(queue.clone());
    loop {
        let stops = {
            let mut control = queue.control.lock();
            if !control.is_urgent && !control.stops {
                queue.came.wait_for(&mut control, flush_interval);
            }
            control.stops
        };
        let result = loop {
            match writer.flush_one() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match result {
            Err(StateError::LogFull(_)) if !stops => {
                let mut control = queue.control.lock();
                if !control.stops {
                    queue.came.wait_for(&mut control, RETRY);
                }
            }
            Err(_) => return,
            Ok(()) if stops => return,
            Ok(()) => {}
        }
    }
}
