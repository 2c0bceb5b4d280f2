//! A state on a disk: arrays, their writer, and the log of actions.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_format::names;
use stillpoint_format::state::ImageLayout;
use stillpoint_io::{JoinHandle, WriteBehind, go_behind, spawn};
use stillpoint_mem::PageSize;
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::actions::{ActionLog, Actions};
use crate::arrays::{Array, Arrays, ArraysBuilder, Cells};
use crate::capture::Capture;
use crate::config::{Background, Config, Every, Pace};
use crate::error::StateError;
use crate::files::{Files, Place};
use crate::logger::{self, LogQueue, LogWriter, TICK_BYTES_MAX};
use crate::plain::Plain;
use crate::progress::Progress;
use crate::recovery::{Recovered, open_schema, recover};
use crate::scheme::{Content, Scheme};
use crate::writer::{Advance, ImageWriter, WRITES};

/// Says which arrays a state has, and opens it.
#[derive(Debug)]
pub struct StateBuilder<S: Scheme>(ArraysBuilder<S>);

impl<S: Scheme> StateBuilder<S> {
    /// As [`ArraysBuilder::array`].
    pub fn array<T: Plain>(&mut self, name: &str, cells: usize) -> Array<T> {
        self.0.array(name, cells)
    }

    /// As [`ArraysBuilder::pages`].
    pub fn pages(&mut self, pages: PageSize) -> &mut Self {
        self.0.pages(pages);
        self
    }

    /// Opens the state at a place, or makes it. `first` gives the cells their first values, if
    /// there is no image; `step` runs a tick again, with its actions: it must do what the program
    /// did when that tick ran first, down to the bit.
    ///
    /// # Errors
    /// See [`StateError`]; a state that cannot be read is never taken for a new one.
    pub fn open(
        self,
        place: Place,
        config: &Config,
        mut first: impl FnMut(&mut Cells<S>),
        mut step: impl FnMut(&mut Cells<S>, u64, Actions<'_>),
    ) -> Result<(State<S>, Recovered), StateError> {
        config.check()?;
        let lock_path = Path::new(names::LOCK);
        let Some(lock) = place.disk.lock(lock_path)? else {
            return Err(StateError::InUse { path: place.disk.describe(lock_path) });
        };
        let mut arrays = self.0.build()?;
        let (schema, is_new) = open_schema(&place, &arrays)?;
        let layout = ImageLayout::new(&schema.arrays, config.block_bytes);
        let layout = layout.map_err(|source| StateError::Damaged {
            path: place.disk.describe(Path::new("")),
            source,
            cure: "use fewer or shorter arrays",
        })?;
        let files = Arc::new(Files { place, schema });
        let threads = config.recovery_threads;
        let mut found = recover(&files, &mut arrays, threads, &mut first, &mut step)?;
        found.recovered.is_new = is_new;
        let progress = Arc::new(Progress::default());
        progress.starts_from(found.recovered.image_tick.unwrap_or(0), found.recovered.tick);
        let writer = ImageWriter::new(
            files.clone(),
            progress.clone(),
            config,
            layout,
            &found.images,
            found.next_capture,
        );
        let queue = Arc::new(LogQueue::new(config.queue_bytes_max));
        let log = config.logs_actions.then(|| {
            let (progress, queue) = (progress.clone(), queue.clone());
            LogWriter::new(files.clone(), progress, queue, config.segment_bytes)
        });
        let mailbox = Arc::new(Mailbox::new(config.every != Every::Asked));
        let hands = match config.background {
            Background::ByHand => Hands::Own { writer: Box::new(writer), log, every: config.every },
            Background::Threads => start_threads(&files, &mailbox, config, writer, log)?,
        };
        let log = config.logs_actions.then_some(queue);
        let actions = ActionLog::default();
        let state =
            State { arrays, progress, log, actions, mailbox, hands, _files: files, _lock: lock };
        Ok((state, found.recovered))
    }
}

/// Where the mutator leaves a capture for the writer.
#[derive(Debug)]
struct Mailbox<S: Scheme> {
    job: Mutex<Option<Capture<S>>>,
    came: Condvar,
    /// True if the next tick is to begin a capture. Every tick looks at it, and the writer at what
    /// is beside it: they share no line.
    is_wanted: CachePadded<AtomicBool>,
    stops: AtomicBool,
}

impl<S: Scheme> Mailbox<S> {
    fn new(is_wanted: bool) -> Self {
        Self {
            job: Mutex::new(None),
            came: Condvar::new(),
            is_wanted: CachePadded::new(AtomicBool::new(
                is_wanted && S::CONTENT != Content::Nothing,
            )),
            stops: AtomicBool::new(false),
        }
    }

    fn stop(&self) {
        self.stops.store(true, Release); // pairs with the Acquire in `stops`
        self.came.notify_one();
    }

    fn stops(&self) -> bool {
        self.stops.load(Acquire) // pairs with the Release in `stop`
    }
}

/// Who moves the writer and the logger.
#[derive(Debug)]
enum Hands<S: Scheme> {
    Threads { writer: Option<JoinHandle<()>>, logger: Option<JoinHandle<()>> },
    Own { writer: Box<ImageWriter<S>>, log: Option<LogWriter>, every: Every },
}

fn start_threads<S: Scheme>(
    files: &Arc<Files>,
    mailbox: &Arc<Mailbox<S>>,
    config: &Config,
    writer: ImageWriter<S>,
    log: Option<LogWriter>,
) -> Result<Hands<S>, StateError> {
    let (every, pace, interval) = (config.every, config.pace, config.flush_interval);
    let writer = (S::CONTENT != Content::Nothing).then(|| {
        let (files, mailbox) = (files.clone(), mailbox.clone());
        let mut writer = writer;
        writer.set_behind(WriteBehind::start("state-image", WRITES)?);
        spawn("state-writer", move || WriterThread { files, mailbox, every, pace }.run(writer))
    });
    let writer = writer.transpose()?;
    let logger = log.map(|log| spawn("state-logger", move || logger::run(log, interval)));
    match logger.transpose() {
        Ok(logger) => Ok(Hands::Threads { writer, logger }),
        Err(error) => {
            mailbox.stop();
            if let Some(writer) = writer {
                let _ = writer.join();
            }
            Err(error.into())
        }
    }
}

/// A state on a disk, in the hands of its one mutator: arrays whose ticks survive a crash.
///
/// A program's loop logs the actions that come from outside, runs its step, and ends the tick. The
/// writer takes images in the background, the logger flushes the actions. After a crash the newest
/// image is read and the steps since are run again, with the same actions.
///
/// ```
/// use std::sync::Arc;
/// use stillpoint_io::{RealClock, SeededRng, SimDisk};
/// use stillpoint_state::{Actions, Array, Cells, Config, Interleaved, Place, State, schemes::Hourglass};
/// type Scheme = Hourglass<Interleaved>;
///
/// /// Adds what the actions say, and moves everything one on.
/// fn step(cells: &mut Cells<Scheme>, sums: Array<u64>, actions: Actions<'_>) {
///     for action in actions {
///         let index = usize::from(action[0]);
///         cells.write(sums, index, cells.read(sums, index) + u64::from(action[1]));
///     }
/// }
///
/// let disk = SimDisk::new(1);
/// let place = |disk: SimDisk| Place {
///     disk: Arc::new(disk),
///     clock: Arc::new(RealClock),
///     rng: Arc::new(SeededRng::new(1)),
/// };
/// let open = |disk: SimDisk| {
///     let mut builder = State::<Scheme>::builder();
///     let sums = builder.array::<u64>("sums", 100);
///     let again = move |cells: &mut Cells<Scheme>, _, actions: Actions<'_>| step(cells, sums, actions);
///     let opened = builder.open(place(disk), &Config::default(), |_| {}, again)?;
///     Ok::<_, stillpoint_state::StateError>((opened.0, sums))
/// };
/// let (mut state, sums) = open(disk.clone())?;
/// for _ in 0..10 {
///     state.log(&[7, 3])?;
///     state.step(|cells, _, actions| step(cells, sums, actions))?;
/// }
/// state.wait_durable(10)?;
/// drop(state);
/// let (state, sums) = open(disk.crash(2))?; // the machine loses power
/// assert_eq!((state.ticks(), state.read(sums, 7)), (10, 30));
/// # Ok::<(), stillpoint_state::StateError>(())
/// ```
pub struct State<S: Scheme> {
    arrays: Arrays<S>,
    progress: Arc<Progress>,
    log: Option<Arc<LogQueue>>,
    actions: ActionLog,
    mailbox: Arc<Mailbox<S>>,
    hands: Hands<S>,
    _files: Arc<Files>,
    _lock: Box<dyn Send + Sync>,
}

impl<S: Scheme> fmt::Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("arrays", &self.arrays).finish_non_exhaustive()
    }
}

impl<S: Scheme> Deref for State<S> {
    type Target = Cells<S>;
    #[inline]
    fn deref(&self) -> &Cells<S> {
        &self.arrays
    }
}

impl<S: Scheme> DerefMut for State<S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Cells<S> {
        &mut self.arrays
    }
}

impl<S: Scheme> State<S> {
    /// Begins to say which arrays there will be.
    pub fn builder() -> StateBuilder<S> {
        StateBuilder(Arrays::builder())
    }

    /// Adds an action to the tick that has not ended.
    ///
    /// # Errors
    /// [`StateError::ActionsTooLong`]; the action was not added.
    pub fn log(&mut self, action: &[u8]) -> Result<(), StateError> {
        let bytes = self.actions.bytes_with(action.len());
        if bytes > TICK_BYTES_MAX {
            let (tick, max) = (self.ticks() + 1, TICK_BYTES_MAX);
            return Err(StateError::ActionsTooLong { tick, bytes, max });
        }
        self.actions.push(action);
        Ok(())
    }

    /// Runs a step with the actions logged for it, and ends the tick.
    ///
    /// # Errors
    /// As [`tick`](Self::tick): the step has run, its tick has not ended.
    pub fn step(
        &mut self,
        run: impl FnOnce(&mut Cells<S>, u64, Actions<'_>),
    ) -> Result<u64, StateError> {
        let tick = self.arrays.ticks() + 1;
        run(&mut self.arrays, tick, Actions::of(self.actions.encoded()));
        self.tick()
    }

    /// Ends a tick and returns its number. Its actions are on their way to the disk; it is durable
    /// once [`durable_tick`](Self::durable_tick) has come so far. Waits only while the queue of
    /// actions is full.
    ///
    /// # Errors
    /// [`StateError::LogFull`]: there is no room; nothing happened, and the tick can be ended later.
    /// [`StateError::LogFailed`]: nothing more becomes durable.
    pub fn tick(&mut self) -> Result<u64, StateError> {
        if let Some(log) = &self.log {
            let may_wait = matches!(self.hands, Hands::Threads { .. });
            log.push(self.arrays.ticks() + 1, self.actions.encoded(), may_wait)?;
        }
        self.actions.clear();
        self.arrays.end_tick();
        // Relaxed: a hint; what a capture needs is ordered by its gate.
        if self.mailbox.is_wanted.load(Relaxed) {
            self.begin_capture();
        }
        Ok(self.arrays.ticks())
    }

    fn begin_capture(&mut self) {
        let Some(capture) = self.arrays.point_of_consistency() else {
            return;
        };
        self.mailbox.is_wanted.store(false, Relaxed); // a hint, as above
        if let Some(log) = &self.log {
            log.end_segment();
        }
        // The writer looks for it every millisecond: waking it would cost a system call.
        *self.mailbox.job.lock() = Some(capture);
    }

    /// Asks for an image as of the end of the next tick at which none is under way; or, if one of
    /// changes has failed, for that one again.
    pub fn checkpoint(&self) {
        if S::CONTENT != Content::Nothing {
            self.mailbox.is_wanted.store(true, Relaxed); // a hint, as above
        }
    }

    /// All ticks up to this one survive any crash.
    pub fn durable_tick(&self) -> u64 {
        self.progress.durable_tick()
    }

    /// Waits until all ticks up to this one are durable.
    ///
    /// # Errors
    /// The log has failed, or waits for space on the disk.
    ///
    /// # Panics
    /// If the tick has not ended, or actions are not logged.
    pub fn wait_durable(&mut self, tick: u64) -> Result<(), StateError> {
        assert!(tick <= self.ticks(), "tick {tick} has not ended");
        if matches!(self.hands, Hands::Own { .. }) {
            while self.progress.durable_tick() < tick && self.flush_actions()? {}
        }
        match &self.log {
            Some(log) => log.wait_for(tick, &self.progress),
            None => {
                assert!(
                    self.durable_tick() >= tick,
                    "without a log only images make ticks durable"
                );
                Ok(())
            }
        }
    }

    /// Bytes of actions that wait for a flush.
    pub fn queued_bytes(&self) -> usize {
        self.log.as_ref().map_or(0, |log| log.bytes())
    }

    /// Numbers of the writer and the logger; they may be looked at from other threads.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Does the next part of an image, where that is in the caller's hands.
    ///
    /// # Errors
    /// What has ended the capture.
    ///
    /// # Panics
    /// If a thread does it.
    pub fn advance_writer(&mut self) -> Result<Advance, StateError> {
        let Hands::Own { writer, every, .. } = &mut self.hands else {
            panic!("the writer has a thread of its own");
        };
        if writer.is_idle()
            && let Some(capture) = self.mailbox.job.lock().take()
        {
            writer.begin(capture);
        }
        let advanced = writer.advance();
        let has_ended = !matches!(advanced, Ok(Advance::Wrote { .. } | Advance::Idle));
        if has_ended && *every != Every::Asked {
            self.mailbox.is_wanted.store(true, Relaxed); // a hint, as above
        }
        advanced
    }

    /// Writes and flushes a batch of actions, where that is in the caller's hands; false if there
    /// is none.
    ///
    /// # Errors
    /// The disk's.
    ///
    /// # Panics
    /// If a thread does it.
    pub fn flush_actions(&mut self) -> Result<bool, StateError> {
        let Hands::Own { log, .. } = &mut self.hands else {
            panic!("the logger has a thread of its own");
        };
        log.as_mut().map_or(Ok(false), LogWriter::flush_one)
    }

    /// Makes all ended ticks durable, gives up an image under way, and ends the threads.
    ///
    /// # Errors
    /// What kept ticks from becoming durable, or a thread's panic.
    pub fn close(mut self) -> Result<(), StateError> {
        let flushed = if self.log.is_some() {
            let tick = self.ticks();
            self.wait_durable(tick)
        } else {
            Ok(())
        };
        flushed.and(self.stop())
    }

    fn stop(&mut self) -> Result<(), StateError> {
        self.mailbox.stop();
        if let Some(log) = &self.log {
            log.stop();
        }
        let mut stopped = Ok(());
        if let Hands::Threads { writer, logger } = &mut self.hands {
            for thread in [writer.take(), logger.take()].into_iter().flatten() {
                stopped = stopped.and(thread.join().map_err(StateError::from));
            }
        }
        stopped
    }
}

impl<S: Scheme> Drop for State<S> {
    fn drop(&mut self) {
        // A panic of a thread was seen, or is of no more use now.
        let _ = self.stop();
    }
}

/// How often the writer looks whether something is to be done.
const LOOK: Duration = Duration::from_millis(1);
/// How long it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Longest sleep between two blocks, so that it ends soon when told to.
const SLEEP_NS_MAX: u64 = 10_000_000;

struct WriterThread<S: Scheme> {
    files: Arc<Files>,
    mailbox: Arc<Mailbox<S>>,
    every: Every,
    pace: Pace,
}

impl<S: Scheme> WriterThread<S> {
    fn run(self, mut writer: ImageWriter<S>) {
        go_behind();
        let mut may_begin_ns = 0;
        while let Some(capture) = self.wait(may_begin_ns) {
            let begun_ns = self.files.now_ns();
            writer.begin(capture);
            let is_durable = self.write(&mut writer, begun_ns);
            may_begin_ns = match self.every {
                Every::Interval(interval) => begun_ns.saturating_add(nanos(interval)),
                Every::Possible | Every::Asked => 0,
            };
            if !is_durable {
                let now_ns = self.files.now_ns();
                may_begin_ns = may_begin_ns.max(now_ns.saturating_add(nanos(AFTER_FAILURE)));
            }
        }
    }

    /// The next capture, which is asked for in time; `None` at the end.
    fn wait(&self, may_begin_ns: u64) -> Option<Capture<S>> {
        let mut job = self.mailbox.job.lock();
        loop {
            if self.mailbox.stops() {
                return None;
            }
            if let Some(capture) = job.take() {
                return Some(capture);
            }
            if self.every != Every::Asked && self.files.now_ns() >= may_begin_ns {
                self.mailbox.is_wanted.store(true, Relaxed); // a hint, as in `State::tick`
            }
            self.mailbox.came.wait_for(&mut job, LOOK);
        }
    }

    /// Writes an image; false if that failed, or was given up at the end.
    fn write(&self, writer: &mut ImageWriter<S>, begun_ns: u64) -> bool {
        loop {
            match writer.advance() {
                Ok(Advance::Wrote { bytes }) => self.keep_pace(bytes, begun_ns),
                Ok(Advance::Durable { .. }) => return true,
                Ok(Advance::Idle) | Err(_) => return false,
            }
            if self.mailbox.stops() {
                return false;
            }
        }
    }

    fn keep_pace(&self, bytes: u64, begun_ns: u64) {
        let Pace::BytesPerSecond(rate) = self.pace else {
            return;
        };
        let due_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        while !self.mailbox.stops() {
            let passed_ns = u128::from(self.files.now_ns().saturating_sub(begun_ns));
            let ahead_ns = u64::try_from(due_ns.saturating_sub(passed_ns)).unwrap_or(u64::MAX);
            if ahead_ns == 0 {
                return;
            }
            let sleep = Duration::from_nanos(ahead_ns.min(SLEEP_NS_MAX));
            self.files.place.clock.sleep(sleep);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
