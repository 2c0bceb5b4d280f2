//! The logical logger: actions of ended ticks go to the disk in batches of whole ticks, each flushed
//! before the next is written. A tick is durable when its batch is.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_format::ident::{HEADER_BYTES, Identity};
use stillpoint_format::state::{
    ACTIONS_DIR, ActionBatchBuilder, ActionSegmentHeader, BATCH_PAYLOAD_BYTES_MAX, FRAME_BYTES,
};
use stillpoint_io::{Caching, DiskError, DiskFile, OpenMode};
use stillpoint_sync::mutant;

use crate::error::StateError;
use crate::files::Files;
use crate::planted;
use crate::progress::Progress;

/// Most bytes of actions in a tick, four more for each of them included.
pub const TICK_BYTES_MAX: usize = BATCH_PAYLOAD_BYTES_MAX - FRAME_BYTES;

/// What the mutator hands to the logger.
#[derive(Debug)]
pub(crate) struct LogQueue {
    state: Mutex<Queued>,
    came: Condvar,
    flushed: Condvar,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Queued {
    /// Batches that are closed, and whether each begins a segment.
    ready: VecDeque<(ActionBatchBuilder, bool)>,
    filling: ActionBatchBuilder,
    filling_begins_segment: bool,
    bytes: usize,
    /// Somebody waits for a flush.
    is_urgent: bool,
    stops: bool,
    failure: Option<Failure>,
}

#[derive(Clone, Debug)]
enum Failure {
    /// The disk is full; the logger tries again.
    Full(Arc<DiskError>),
    /// For good.
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

impl LogQueue {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (came, flushed) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::default(), came, flushed, bytes_max }
    }

    /// Adds an ended tick. Waits for room if `may_wait`.
    ///
    /// # Errors
    /// The log has failed; or there is no room, since the disk is full. Nothing was added then.
    pub(crate) fn push(&self, tick: u64, actions: &[u8], may_wait: bool) -> Result<(), StateError> {
        let mut state = self.state.lock();
        loop {
            match &state.failure {
                Some(failure @ Failure::Dead(_)) => return Err(failure.error()),
                _ if state.bytes == 0 || state.bytes + actions.len() <= self.bytes_max => break,
                Some(failure) => return Err(failure.error()),
                None if !may_wait => break,
                None => {
                    state.is_urgent = true;
                    self.came.notify_one();
                    self.flushed.wait(&mut state);
                }
            }
        }
        if !state.filling.push(tick, actions) {
            state.close_batch(false);
            assert!(state.filling.push(tick, actions), "an empty batch has room for any tick");
        }
        state.bytes += actions.len();
        Ok(())
    }

    /// What is added from here on goes into another segment.
    pub(crate) fn end_segment(&self) {
        self.state.lock().close_batch(true);
    }

    /// Waits until all up to a tick is durable.
    pub(crate) fn wait_for(&self, tick: u64, progress: &Progress) -> Result<(), StateError> {
        let mut state = self.state.lock();
        while progress.durable_tick() < tick {
            if let Some(failure) = &state.failure {
                return Err(failure.error());
            }
            state.is_urgent = true;
            self.came.notify_one();
            self.flushed.wait(&mut state);
        }
        Ok(())
    }

    /// The logger ends once everything is flushed, or nothing can be any more.
    pub(crate) fn stop(&self) {
        self.state.lock().stops = true;
        self.came.notify_one();
    }

    /// Bytes of actions that wait for a flush.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Why nothing more becomes durable.
    fn death(&self) -> Option<StateError> {
        self.state
            .lock()
            .failure
            .as_ref()
            .filter(|it| matches!(it, Failure::Dead(_)))
            .map(Failure::error)
    }

    fn take(&self) -> Option<(ActionBatchBuilder, bool)> {
        let mut state = self.state.lock();
        if state.ready.is_empty() && !state.filling.is_empty() {
            state.close_batch(false);
        }
        state.ready.pop_front()
    }

    fn fail(&self, failure: Failure) {
        self.state.lock().failure = Some(failure);
        self.flushed.notify_all();
    }

    fn batch_is_durable(&self, payload_bytes: usize) {
        let mut state = self.state.lock();
        // Frames are counted here and not when ticks are added; it is a bound, not an account.
        state.bytes = state.bytes.saturating_sub(payload_bytes);
        if state.ready.is_empty() && state.filling.is_empty() {
            (state.bytes, state.is_urgent) = (0, false);
        }
        state.failure = None;
        self.flushed.notify_all();
    }
}

impl Queued {
    fn close_batch(&mut self, next_begins_segment: bool) {
        if !self.filling.is_empty() {
            let batch = std::mem::take(&mut self.filling);
            self.ready.push_back((batch, self.filling_begins_segment));
            self.filling_begins_segment = false;
        }
        self.filling_begins_segment |= next_begins_segment;
    }
}

/// Writes batches.
#[derive(Debug)]
pub(crate) struct LogWriter {
    files: Arc<Files>,
    progress: Arc<Progress>,
    queue: Arc<LogQueue>,
    segment_bytes: u64,
    segment: Option<Segment>,
    /// A batch that is not durable yet.
    pending: Option<(ActionBatchBuilder, bool)>,
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

impl LogWriter {
    pub(crate) fn new(
        files: Arc<Files>,
        progress: Arc<Progress>,
        queue: Arc<LogQueue>,
        segment_bytes: u64,
    ) -> Self {
        Self { files, progress, queue, segment_bytes, segment: None, pending: None }
    }

    /// Writes and flushes one batch; false if there is none.
    ///
    /// # Errors
    /// The disk's. If it is full the batch is kept, and tried again next time. After any other error
    /// nothing is tried again.
    pub(crate) fn flush_one(&mut self) -> Result<bool, StateError> {
        if let Some(error) = self.queue.death() {
            return Err(error);
        }
        if self.pending.is_none() {
            self.pending = self.queue.take();
        }
        let Some((mut batch, begins)) = self.pending.take() else {
            return Ok(false);
        };
        match self.write(&mut batch, begins) {
            Ok(()) => {
                let last = batch.last_tick().expect("a batch has ticks");
                self.progress.ticks_are_durable(last);
                self.queue.batch_is_durable(batch.payload_bytes());
                Ok(true)
            }
            Err(error) => {
                let is_full = error.is_disk_full();
                let error = Arc::new(error);
                let failure = if is_full { Failure::Full(error) } else { Failure::Dead(error) };
                self.queue.fail(failure.clone());
                // If a segment could not be begun, it is begun again.
                self.pending = Some((batch, begins && self.segment.is_none()));
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

/// Makes what was written to a segment durable, and with its first batch its name.
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
    // A crash may have left one without any batch.
    disk.remove(&path)?;
    let file = disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
    let begun = file.allocate(bytes).and_then(|()| file.write_at(&header.encode(), 0));
    if let Err(error) = begun {
        // It would take the space that the next attempt needs.
        let _ = disk.remove(&path);
        return Err(error);
    }
    let offset = HEADER_BYTES as u64;
    Ok(Segment { file, identity: header.identity(), offset, batches: 0 })
}

/// Nobody waits for a logger that has panicked.
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
            let mut state = queue.state.lock();
            if !state.is_urgent && !state.stops {
                queue.came.wait_for(&mut state, flush_interval);
            }
            state.stops
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
                let mut state = queue.state.lock();
                if !state.stops {
                    queue.came.wait_for(&mut state, RETRY);
                }
            }
            Err(_) => return,
            Ok(()) if stops => return,
            Ok(()) => {}
        }
    }
}
