//! A state on a disk: arrays, their writer, and the log of actions.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use stillpoint_format::names;
use stillpoint_format::state::ImageLayout;
use stillpoint_io::DiskLock;
use stillpoint_mem::PageSize;

use crate::actions::{ActionLog, Actions};
use crate::arrays::{Array, Arrays, ArraysBuilder, Cells};
use crate::background::{BackgroundWork, start_threads};
use crate::config::{Background, Config, Every};
use crate::error::StateError;
use crate::files::{Environment, Files};
use crate::logger::{LogSender, LogWriter, TICK_BYTES_MAX, open_log};
use crate::mailbox::Mailbox;
use crate::plain::Plain;
use crate::progress::Progress;
use crate::recovery::{Recovered, open_schema, read_schema, recover, restore_at};
use crate::scheme::{Content, Last, Scheme};
use crate::writer::{Advance, ImageWriter};

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

    /// Opens the state, or makes it. `first` gives the cells their first values, if there is no
    /// image. `step` runs a tick again, with its actions. `step` must do what the program did when
    /// that tick ran first, down to the bit.
    ///
    /// # Errors
    /// See [`StateError`]; a state that cannot be read is never taken for a new one.
    pub fn open(
        self,
        environment: Environment,
        config: &Config,
        mut first: impl FnMut(&mut Cells<S>),
        mut step: impl FnMut(&mut Cells<S>, u64, Actions<'_>),
    ) -> Result<(State<S>, Recovered), StateError> {
        config.check()?;
        let lock = lock(&environment)?;
        let mut arrays = self.0.build()?;
        let (schema, is_new) = open_schema(&environment, &arrays)?;
        let layout = ImageLayout::new(&schema.arrays, config.block_bytes);
        let layout = layout.map_err(|source| StateError::Damaged {
            path: environment.disk.describe(Path::new("")),
            source,
            cure: "use fewer or shorter arrays",
        })?;
        let files = Arc::new(Files { environment, schema });
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
            found.image,
            found.next_capture,
        );
        let last_tick = arrays.ticks();
        let log = config.logs_actions.then(|| open_log(&files, &progress, config, last_tick));
        let (log, log_writer) = log.unzip();
        let is_wanted = config.every != Every::OnRequest;
        let mailbox = Arc::new(Mailbox::new(arrays.shared().clone(), is_wanted));
        let background = match config.background {
            Background::Manual => BackgroundWork::Own {
                writer: Box::new(writer),
                log: log_writer,
                every: config.every,
            },
            Background::Threads => {
                start_threads(&files, &progress, &mailbox, config, writer, log_writer)?
            }
        };
        let actions = ActionLog::default();
        let state = State {
            arrays,
            is_changed: false,
            step: Step::None,
            progress,
            log,
            actions,
            mailbox,
            background,
            has_told: false,
            _files: files,
            _lock: lock,
        };
        Ok((state, found.recovered))
    }
}

impl<S: Scheme> StateBuilder<S> {
    /// The arrays as they were when a tick had ended: a look back. Loads the newest image that is not
    /// younger than the tick, and runs the steps since that image again with their actions. Changes
    /// no file of the state, and keeps the state locked meanwhile.
    ///
    /// The ticks from the image before the newest on are retained. Ticks before that image are
    /// retained as long as their actions are.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use stillpoint_state::{Actions, Array, Cells, Config, Environment, Interleaved, State};
    /// # use stillpoint_state::{RealClock, SeededRng, SimDisk, schemes::Hourglass};
    /// # type Scheme = Hourglass<Interleaved>;
    /// # let (disk, clock) = (Arc::new(SimDisk::new(1)), Arc::new(RealClock));
    /// # let environment = || Environment {
    /// #     disk: disk.clone(), clock: clock.clone(), rng: Arc::new(SeededRng::new(1)),
    /// # };
    /// fn step(cells: &mut Cells<Scheme>, sums: Array<u64>, tick: u64) {
    ///     cells.write(sums, 0, cells.read(sums, 0) + tick);
    /// }
    /// let mut builder = State::<Scheme>::builder();
    /// let sums = builder.array::<u64>("sums", 100);
    /// let again = |cells: &mut Cells<Scheme>, tick, _: Actions<'_>| step(cells, sums, tick);
    /// let (mut state, _) = builder.open(environment(), &Config::default(), |_| {}, again)?;
    /// for _ in 0..4 {
    ///     state.step(|cells, tick, _| step(cells, sums, tick))?;
    /// }
    /// state.close()?;
    /// let mut builder = State::<Scheme>::builder();
    /// let sums = builder.array::<u64>("sums", 100);
    /// let again = |cells: &mut Cells<Scheme>, tick, _: Actions<'_>| step(cells, sums, tick);
    /// let then = builder.at_tick(environment(), 3, |_| {}, again)?;
    /// assert_eq!((then.ticks(), then.read(sums, 0)), (3, 1 + 2 + 3));
    /// # Ok::<(), stillpoint_state::StateError>(())
    /// ```
    ///
    /// # Errors
    /// [`StateError::TickNotRetained`] and [`StateError::TickNotEnded`] tell which ticks there are;
    /// [`StateError::InUse`] while the state is open; otherwise as [`open`](Self::open).
    pub fn at_tick(
        self,
        environment: Environment,
        tick: u64,
        mut first: impl FnMut(&mut Cells<S>),
        mut step: impl FnMut(&mut Cells<S>, u64, Actions<'_>),
    ) -> Result<Arrays<S>, StateError> {
        let _lock = lock(&environment)?;
        let mut arrays = self.0.build()?;
        match read_schema(&environment, &arrays)? {
            Some(schema) => {
                let files = Arc::new(Files { environment, schema });
                let threads = Config::default().recovery_threads;
                restore_at(&files, &mut arrays, threads, tick, &mut first, &mut step)?;
            }
            None if tick > 0 => return Err(StateError::TickNotEnded { tick, ended: 0 }),
            None => first(&mut arrays),
        }
        Ok(arrays)
    }
}

/// Locks the files of a state.
fn lock(environment: &Environment) -> Result<Box<dyn DiskLock>, StateError> {
    let path = Path::new(names::LOCK);
    let locked = environment.disk.lock(path)?;
    locked.ok_or_else(|| StateError::InUse { path: environment.disk.describe(path) })
}

/// The progress of [`State::step`] in the tick that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    None,
    HasRun,
    HasPanicked,
}

/// Failures in a row after which [`State::tick`] tells that images fail.
const FAILURES_TO_TELL: u64 = 5;
/// How often an image that is waited for is tried.
const ATTEMPTS: usize = 3;

/// A state on a disk, owned by its one mutator: arrays whose ticks survive a crash.
///
/// A program's loop logs the actions that come from outside, runs its step, and ends the tick. The
/// writer takes images in the background, and the logger flushes the actions. After a crash the
/// newest image is read and the steps since are run again, with the same actions.
///
/// ```
/// use std::sync::Arc;
/// use stillpoint_state::{Actions, Array, Cells, Config, Environment, Interleaved, State};
/// use stillpoint_state::{RealClock, SeededRng, SimDisk, schemes::Hourglass};
/// type Scheme = Hourglass<Interleaved>;
///
/// /// Adds to each sum what the actions say.
/// fn step(cells: &mut Cells<Scheme>, sums: Array<u64>, actions: Actions<'_>) {
///     for action in actions {
///         let index = usize::from(action[0]);
///         cells.write(sums, index, cells.read(sums, index) + u64::from(action[1]));
///     }
/// }
///
/// let disk = SimDisk::new(1);
/// let environment = |disk: SimDisk| Environment {
///     disk: Arc::new(disk),
///     clock: Arc::new(RealClock),
///     rng: Arc::new(SeededRng::new(1)),
/// };
/// let open = |disk: SimDisk| {
///     let mut builder = State::<Scheme>::builder();
///     let sums = builder.array::<u64>("sums", 100);
///     let again = move |cells: &mut Cells<Scheme>, _, actions: Actions<'_>| step(cells, sums, actions);
///     let opened = builder.open(environment(disk), &Config::default(), |_| {}, again)?;
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
    /// Whether cells may have changed since the last tick.
    is_changed: bool,
    step: Step,
    progress: Arc<Progress>,
    log: Option<LogSender>,
    actions: ActionLog,
    mailbox: Arc<Mailbox<S>>,
    background: BackgroundWork<S>,
    /// Whether the caller has been told that images fail.
    has_told: bool,
    _files: Arc<Files>,
    _lock: Box<dyn DiskLock>,
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
        self.is_changed = true;
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
    /// [`StateError::ActionsTooLong`] or [`StateError::StepPanicked`]; the action was not added.
    pub fn log(&mut self, action: &[u8]) -> Result<(), StateError> {
        self.check_step()?;
        let bytes = self.actions.bytes_with(action.len());
        if bytes > TICK_BYTES_MAX {
            let (tick, max) = (self.ticks() + 1, TICK_BYTES_MAX);
            return Err(StateError::ActionsTooLong { tick, bytes, max });
        }
        self.actions.push(action);
        if let Some(log) = &mut self.log {
            log.write_ahead(self.actions.encoded());
        }
        Ok(())
    }

    /// Runs a step with the actions logged for it, and ends the tick.
    ///
    /// If the step panics, its tick never ends: the cells are half changed, and neither its actions
    /// nor its changes become durable. Cells can still be read. [`close`](Self::close) keeps the
    /// earlier ticks, and the next opening goes on from the last of them.
    ///
    /// # Errors
    /// As [`tick`](Self::tick). The step has run in any case. If its tick has not ended, call
    /// `tick` to end it. Until then every other step is refused ([`StateError::StepHasRun`]).
    pub fn step(
        &mut self,
        run: impl FnOnce(&mut Cells<S>, u64, Actions<'_>),
    ) -> Result<u64, StateError> {
        self.check_step()?;
        let tick = self.arrays.ticks() + 1;
        if self.step == Step::HasRun {
            return Err(StateError::StepHasRun { tick });
        }
        self.step = Step::HasPanicked; // unless it returns
        run(&mut self.arrays, tick, Actions::of(self.actions.encoded()));
        self.step = Step::HasRun;
        self.tick()
    }

    #[inline]
    fn check_step(&self) -> Result<(), StateError> {
        if self.step == Step::HasPanicked {
            return Err(StateError::StepPanicked { tick: self.arrays.ticks() + 1 });
        }
        Ok(())
    }

    /// Ends a tick and returns its number. The tick's actions are on their way to the disk. The
    /// tick is durable once [`durable_tick`](Self::durable_tick) has reached its number. Waits only
    /// while the queue of actions is full.
    ///
    /// # Errors
    /// [`StateError::LogFull`]: there is no room. Nothing has changed, and the tick can be ended
    /// later. [`StateError::LogFailed`]: nothing more becomes durable; the tick has not ended.
    /// [`StateError::StepPanicked`]: the tick cannot end. [`StateError::ImagesFail`],
    /// [`StateError::WriterPanicked`]: the tick *has* ended, and the program may go on. The error
    /// is returned once until an image is durable. The writer tries again, with longer and longer
    /// pauses.
    pub fn tick(&mut self) -> Result<u64, StateError> {
        self.check_step()?;
        self.mailbox.prefetch();
        if let Some(log) = &mut self.log {
            log.prefetch();
            log.push(self.arrays.ticks() + 1, self.actions.encoded())?;
        }
        self.actions.clear();
        self.arrays.end_tick();
        (self.is_changed, self.step) = (false, Step::None);
        if self.mailbox.is_wanted() {
            let last = self.arrays.last_capture();
            self.begin_capture();
            // The failures are read only if they may matter, since the writer changes their cache
            // line all the time.
            if last != Some(Last::Durable) || self.has_told || self.mailbox.is_dead() {
                self.tell_failures(FAILURES_TO_TELL)?;
            }
        }
        Ok(self.arrays.ticks())
    }

    #[inline]
    fn begin_capture(&mut self) {
        if self.mailbox.is_dead() {
            return;
        }
        let Some(point) = S::point_of_consistency(&mut self.arrays) else {
            return;
        };
        self.mailbox.want(false);
        if let Some(log) = &mut self.log {
            log.end_segment();
        }
        self.mailbox.put(point);
    }

    /// Returns once the error that so many images in a row have failed. If the caller runs the
    /// writer, it knows that already.
    #[cold]
    #[inline(never)]
    fn tell_failures(&mut self, failures_min: u64) -> Result<(), StateError> {
        if matches!(self.background, BackgroundWork::Own { .. }) {
            return Ok(());
        }
        let failures = self.progress.failures_in_a_row();
        let error = if self.mailbox.is_dead() {
            self.mailbox.want(false);
            Some(StateError::WriterPanicked)
        } else if failures >= failures_min {
            self.images_fail()
        } else {
            self.has_told &= failures > 0;
            None
        };
        match error {
            Some(error) if !std::mem::replace(&mut self.has_told, true) => Err(error),
            _ => Ok(()),
        }
    }

    fn images_fail(&self) -> Option<StateError> {
        let failures = self.progress.failures_in_a_row();
        let source = Box::new(self.progress.last_failure()?);
        Some(StateError::ImagesFail { failures, source })
    }

    /// Asks for an image. The image will be as of the end of the next tick at which no capture is
    /// under way. If the last capture, one of changes, has failed, this asks for that capture
    /// again.
    pub fn checkpoint(&self) {
        if S::CONTENT != Content::Nothing {
            self.mailbox.want(true);
        }
    }

    /// All ticks up to this one survive any crash.
    pub fn durable_tick(&self) -> u64 {
        self.progress.durable_tick()
    }

    /// Waits until all ticks up to this one are durable. If actions are not logged, that takes an
    /// image, which is written without pauses.
    ///
    /// # Errors
    /// [`StateError::TickNotEnded`]. With a log: the log has failed, or waits for space on the
    /// disk. Without a log: [`StateError::ImagesFail`] after three attempts;
    /// [`StateError::CellsChanged`] between two ticks, and [`StateError::NothingKeepsTicks`] if the
    /// scheme takes no images.
    pub fn wait_durable(&mut self, tick: u64) -> Result<(), StateError> {
        let ended = self.ticks();
        if tick > ended {
            return Err(StateError::TickNotEnded { tick, ended });
        }
        if matches!(self.background, BackgroundWork::Own { .. }) {
            while self.progress.durable_tick() < tick && self.flush_actions()? {}
        }
        match &self.log {
            Some(log) => log.wait_for(tick, &self.progress),
            None => self.wait_for_image(tick),
        }
    }

    /// Waits for an image that holds a tick, and begins it if none is under way.
    fn wait_for_image(&mut self, tick: u64) -> Result<(), StateError> {
        let mut failures = 0;
        while self.durable_tick() < tick {
            if S::CONTENT == Content::Nothing {
                return Err(StateError::NothingKeepsTicks { tick });
            }
            if let Some(last) = self.arrays.last_capture() {
                let is_between_ticks = self.is_changed || self.step != Step::None;
                if is_between_ticks && !self.arrays.captures_again(last) {
                    return Err(StateError::CellsChanged { ended: self.ticks() });
                }
                self.begin_capture();
            }
            if !self.finish_capture()? {
                failures += 1;
                if failures == ATTEMPTS {
                    self.has_told = true;
                    let error = self.images_fail();
                    return Err(error.expect("a capture that failed has said why"));
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of the capture under way; false if it has failed.
    fn finish_capture(&mut self) -> Result<bool, StateError> {
        if matches!(self.background, BackgroundWork::Own { .. }) {
            return Ok(loop {
                match self.advance_writer() {
                    Ok(Advance::Wrote { .. }) => {}
                    Ok(Advance::Durable { .. } | Advance::Idle) => break true,
                    Err(_) => break false,
                }
            });
        }
        let arrays = &self.arrays;
        if !self.mailbox.wait_for_end(|| arrays.last_capture().is_some()) {
            self.has_told = true;
            return Err(StateError::WriterPanicked);
        }
        Ok(self.arrays.last_capture() == Some(Last::Durable))
    }

    /// Bytes of ended ticks that wait for a flush: their actions in whole words, and a word for each
    /// tick.
    pub fn queued_bytes(&self) -> usize {
        self.log.as_ref().map_or(0, LogSender::waiting_bytes)
    }

    /// Numbers of the writer and the logger, which other threads may read.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Does the next part of an image, if the caller runs the writer.
    ///
    /// # Errors
    /// The error that has ended the capture.
    ///
    /// # Panics
    /// If a thread runs the writer.
    pub fn advance_writer(&mut self) -> Result<Advance, StateError> {
        let BackgroundWork::Own { writer, every, .. } = &mut self.background else {
            panic!("the writer has a thread of its own");
        };
        if writer.is_idle()
            && let Some(capture) = self.mailbox.take()
        {
            writer.begin(capture);
        }
        let advanced = writer.advance();
        let has_ended = !matches!(advanced, Ok(Advance::Wrote { .. } | Advance::Idle));
        if has_ended && *every != Every::OnRequest {
            self.mailbox.want(true);
        }
        advanced
    }

    /// Writes and flushes a batch of actions, if the caller runs the logger. False if there is
    /// none.
    ///
    /// # Errors
    /// An error of the disk.
    ///
    /// # Panics
    /// If a thread runs the logger.
    pub fn flush_actions(&mut self) -> Result<bool, StateError> {
        let BackgroundWork::Own { log, .. } = &mut self.background else {
            panic!("the logger has a thread of its own");
        };
        log.as_mut().map_or(Ok(false), LogWriter::flush_one)
    }

    /// Makes all ended ticks durable and ends the threads. If actions are not logged, that takes a
    /// last image; otherwise an image under way is given up. A program that wants neither, with a
    /// scheme that takes no images and no log, keeps nothing, and that is no error.
    ///
    /// # Errors
    /// As [`wait_durable`](Self::wait_durable), if ticks could not become durable. Otherwise the
    /// reason why the last images failed, if [`tick`](Self::tick) has not returned it. Or the panic
    /// of a thread.
    pub fn close(mut self) -> Result<(), StateError> {
        let kept = match (S::CONTENT, &self.log) {
            (Content::Nothing, None) => Ok(()),
            _ => self.wait_durable(self.ticks()),
        };
        let told = self.tell_failures(1);
        kept.and(told).and(self.stop())
    }

    fn stop(&mut self) -> Result<(), StateError> {
        self.mailbox.stop();
        if let Some(log) = &self.log {
            log.stop();
        }
        let mut stopped = Ok(());
        if let BackgroundWork::Threads { writer, logger } = &mut self.background {
            for thread in [writer.take(), logger.take()].into_iter().flatten() {
                stopped = stopped.and(thread.join().map_err(StateError::from));
            }
        }
        stopped
    }
}

impl<S: Scheme> Drop for State<S> {
    fn drop(&mut self) {
        // A panic of a thread is ignored: `close` has returned it, or the program has not called
        // `close`.
        let _ = self.stop();
    }
}
