//! One checkpoint from REST to REST: moves the phases, owns the capture threads, keeps the pace.
//!
//! ```text
//! claim slots ─ PREPARE: marks settled, kind chosen ─ (quiesce) ─ RESOLVE ─ (go on, if physical) ─ CAPTURE: threads walk units
//!   ─ (go on, if quiesced throughout) ─ COMPLETE: the sink is drained ─ REST
//! ```
//! Every checkpoint passes through all phases. A checkpoint that fails, panics or is cancelled
//! still scans every record, without output: the next checkpoint needs the marks that such a scan
//! leaves.

mod point;
mod walk;

use std::sync::{Arc, OnceLock};

use stillpoint_format::names::CheckpointKind;
use stillpoint_io::{Clock, Disk, Pace, catch_panic};
use stillpoint_store::{
    Checkpointer, LogRefused, Outcome, Phase, PointOfConsistency, SchemeLog, Sink, Stamp, Store,
    planted,
};
use stillpoint_sync::mutant;

use crate::error::CheckpointError;
use crate::progress::Progress;
use crate::writer::{PartSink, WriterConfig, Written};
use point::{PointPass, Stop};
use walk::{CaptureScan, DiscardSink, Slots, Work, finish_marks};

pub use point::QuiesceFor;

/// Called for each phase, after its entry and the grace period that follows, with the phase and the
/// epoch.
pub type Observer = Arc<dyn Fn(Phase, u64) + Send + Sync>;

/// The wanted content of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Every record.
    Full,
    /// The records that have changed since the newest published checkpoint. The checkpoint holds
    /// every record instead if the scheme does not [take changes](Checkpointer::takes_changes), or
    /// if too many records have changed.
    Changes {
        /// The most records that may have changed, in percent of the records with a value. `u64::MAX` for
        /// any number.
        percent_max: u64,
    },
}

impl Wanted {
    /// The kind of checkpoint to take, if `dirty` of `records` records have changed.
    fn kind(self, dirty: u64, records: u64) -> CheckpointKind {
        match self {
            Self::Changes { percent_max }
                if dirty.saturating_mul(100) <= records.max(1).saturating_mul(percent_max) =>
            {
                CheckpointKind::Partial
            }
            Self::Full | Self::Changes { .. } => CheckpointKind::Full,
        }
    }
}

/// No log: the records of a scheme are discarded.
#[derive(Clone, Copy, Debug)]
pub struct NoSchemeLog;

impl SchemeLog for NoSchemeLog {
    fn append(&self, _: &[u8]) -> Result<Stamp, LogRefused> {
        Ok(Stamp::NONE)
    }
}

/// The store, the scheme and the settings of one checkpoint.
#[derive(Clone)]
pub struct Cycle {
    /// The store.
    pub store: Arc<Store>,
    /// The scheme that the store was made with.
    pub scheme: Arc<dyn Checkpointer>,
    /// The wanted content.
    pub wanted: Wanted,
    /// The clock of the pace and of the durations.
    pub clock: Arc<dyn Clock>,
    /// Capture threads, the calling one included; at least 1. Each needs a read section slot.
    pub threads: usize,
    /// The rate at which the capture may emit.
    ///
    /// The [progress](Progress::change_pace) may change it.
    pub pace: Pace,
    /// The progress that others may watch, and the way to cancel.
    pub progress: Arc<Progress>,
    /// What a physical point of consistency waits for.
    pub quiesce_for: QuiesceFor,
    /// The log for records of the scheme itself.
    pub log: Arc<dyn SchemeLog + Send + Sync>,
    /// Called for every phase, with the checkpoint's epoch. At the call for [`Phase::Capture`],
    /// every commit of the earlier epochs is in its log.
    pub observer: Option<Observer>,
    /// Called once in PREPARE, when only the point of consistency is left to do. Work that takes long is
    /// done by then, and open transactions have ended if the point waits for them.
    pub before_point: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cycle")
            .field("threads", &self.threads)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

/// A capture that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The epoch that began at the point of consistency. The capture holds the commits of earlier
    /// epochs.
    pub epoch: u64,
    /// Whether the capture holds every record, or the changes since the newest published
    /// checkpoint.
    pub kind: CheckpointKind,
    /// Keys that had changed before PREPARE ended, if the scheme takes checkpoints of changes.
    pub dirty: u64,
    /// Units walked.
    pub units: usize,
    /// Capture threads that ran. Fewer than wanted if too few slots were free or threads could not
    /// be started.
    pub threads: usize,
    /// From the begin of PREPARE to the end of RESOLVE's grace period, in nanoseconds.
    pub consistency_ns: u64,
    /// Time in which no commit could begin, in nanoseconds. 0 if the point of consistency stops nobody.
    pub stopped_ns: u64,
    /// The most bytes that were in use in the pool of stable versions.
    pub stable_peak_bytes: usize,
    /// From the end of RESOLVE's grace period to the end of the capture scan, in nanoseconds.
    pub capture_ns: u64,
    /// From the end of the scan until all emitted records were written, in nanoseconds.
    pub drain_ns: u64,
}

/// Takes a checkpoint into part files under `checkpoint/`, and makes them durable. The checkpoint
/// exists once a manifest names it. Then the caller tells that the checkpoint has
/// [ended](Cycle::ended) as [`Outcome::Published`].
///
/// # Errors
/// Any reason why the checkpoint could not be taken. The checkpoint's files are removed, the scheme
/// is told, and the store is ready for the next checkpoint.
pub fn take_checkpoint(
    cycle: &Cycle,
    disk: &Arc<dyn Disk>,
    config: &WriterConfig,
) -> Result<(Written, Captured), CheckpointError> {
    let _permit = cycle.store.driver().try_permit().ok_or(CheckpointError::Busy)?;
    let epoch = cycle.store.driver().now().epoch() + 1;
    let made: OnceLock<Arc<PartSink>> = OnceLock::new();
    let create = |kind| -> Result<Arc<dyn Sink>, CheckpointError> {
        let sink = Arc::new(PartSink::create(
            disk.clone(),
            cycle.store.clone(),
            cycle.clock.clone(),
            cycle.progress.clone(),
            epoch,
            kind,
            config.clone(),
        )?);
        Ok(made.get_or_init(|| sink).clone())
    };
    let taken = run_phases(cycle, epoch, &create);
    let (sink, captured) = match (made.get(), taken) {
        (Some(sink), Ok(captured)) => (sink, captured),
        (None, Ok(_)) => unreachable!("what was captured went somewhere"),
        (None, Err(error)) => return Err(error),
        (Some(sink), Err(error)) => {
            let earlier = caught(|| Ok(sink.abandon()))?;
            return Err(if error.is_fatal() { error } else { earlier.unwrap_or(error) });
        }
    };
    let mut written = caught(|| sink.finish()).inspect_err(|_| {
        // The checkpoint may have panicked before its files were removed.
        let _ = caught(|| Ok(sink.abandon()));
        cycle.tell_abandoned(epoch);
    })?;
    written.fuzzy = cycle.scheme.point_of_consistency().is_fuzzy();
    Ok((written, captured))
}

/// Runs `f`, and turns its panic into an error.
fn caught<T>(f: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
    catch_panic("checkpoint", f)?
}

/// As [`caught`], for a function without an error of its own.
fn ran(f: impl FnOnce()) -> Result<(), CheckpointError> {
    Ok(catch_panic("checkpoint", f)?)
}

/// Takes a checkpoint into a sink: changes the phases from REST to REST and captures every unit.
///
/// # Errors
/// Another checkpoint is under way, there is no slot for a capture thread, or this one was
/// cancelled. Or a thread panicked, or the sink gave up. The scheme is told, and the store is ready
/// for the next checkpoint.
pub fn run_checkpoint(cycle: &Cycle, sink: &Arc<dyn Sink>) -> Result<Captured, CheckpointError> {
    let _permit = cycle.store.driver().try_permit().ok_or(CheckpointError::Busy)?;
    run_phases(cycle, cycle.store.driver().now().epoch() + 1, &|_| Ok(sink.clone()))
}

/// Does the work that the scheme has left for after the capture, if any. The work goes unit by
/// unit, in REST, at the pace and with the threads of the capture. The caller calls this between
/// the end of a checkpoint, published or not, and the begin of the next.
///
/// # Errors
/// Another checkpoint is under way, there is no slot, it was cancelled, or a thread panicked. The
/// next checkpoint does the work before it begins, without a pace.
pub fn work_after_capture(cycle: &Cycle) -> Result<(), CheckpointError> {
    let driver = cycle.store.driver();
    if !cycle.scheme.has_work_left(driver.now().epoch()) {
        return Ok(());
    }
    let _permit = driver.try_permit().ok_or(CheckpointError::Busy)?;
    do_work_left(cycle, cycle.pace, &Slots::claim(&cycle.store, cycle.threads)?)
}

/// The work that the scheme has left. The caller has the permit, in REST.
fn do_work_left(cycle: &Cycle, pace: Pace, slots: &Slots) -> Result<(), CheckpointError> {
    let epoch = cycle.store.driver().now().epoch();
    if !cycle.scheme.has_work_left(epoch) {
        return Ok(());
    }
    let nothing: Arc<dyn Sink> = Arc::new(DiscardSink);
    let cycle = &Cycle { pace, ..cycle.clone() };
    let scan =
        CaptureScan::new(cycle, epoch, &nothing, cycle.clock.monotonic_ns(), Work::AfterCapture);
    Arc::new(scan).run(slots)?;
    ran(|| cycle.scheme.after_capture_ended(epoch))
}

/// Makes the sink of a checkpoint of the given kind.
type MakeSink<'a> = dyn Fn(CheckpointKind) -> Result<Arc<dyn Sink>, CheckpointError> + 'a;

fn run_phases(
    cycle: &Cycle,
    epoch: u64,
    make_sink: &MakeSink<'_>,
) -> Result<Captured, CheckpointError> {
    if cycle.store.driver().is_spoilt(u64::MAX) {
        return Err(CheckpointError::Refused);
    }
    if cycle.progress.is_cancelled() {
        return Err(CheckpointError::Cancelled);
    }
    let slots = Slots::claim(&cycle.store, cycle.threads)?;
    // The log or the memory may wait for this checkpoint, so what has to come before it has no pace.
    do_work_left(cycle, Pace::Unpaced, &slots)?;
    let passage = Passage { cycle, epoch, make_sink };
    let taken = caught(|| passage.take(&slots));
    let taken = match passage.come_to_rest(&slots) {
        Ok(()) => taken,
        Err(error) => Err(error),
    };
    // All read sections that could claim a record have ended. So a lost record is noted by now.
    let driver = cycle.store.driver();
    let taken = match taken {
        Ok(_) if driver.is_spoilt(epoch) => Err(lost_record(&cycle.store, epoch)),
        Err(error) if driver.is_spoilt(u64::MAX) && !error.is_fatal() => {
            Err(CheckpointError::MarksLost(Box::new(error)))
        }
        taken => taken,
    };
    taken.inspect_err(|_| cycle.tell_abandoned(epoch))
}

/// The reason why the checkpoint that began this epoch lacks a record.
fn lost_record(store: &Store, epoch: u64) -> CheckpointError {
    match store.exceeds_stable_pool(epoch) {
        true => CheckpointError::StablePool { bytes: store.stable_pool_bytes().bytes },
        false => CheckpointError::BeforeImage,
    }
}

impl Cycle {
    /// Tells store and scheme how the checkpoint of this epoch has ended. Called after a publication is
    /// durable.
    pub fn ended(&self, epoch: u64, outcome: Outcome) {
        self.store.end_chain(outcome == Outcome::Published);
        self.scheme.ended(epoch, outcome);
    }

    /// Tells that the checkpoint was given up. A panic of the scheme changes nothing, since this
    /// checkpoint is lost already.
    fn tell_abandoned(&self, epoch: u64) {
        let _ = ran(|| self.ended(epoch, Outcome::Abandoned));
    }
}

/// The way of one checkpoint through the phases.
struct Passage<'a> {
    cycle: &'a Cycle,
    epoch: u64,
    make_sink: &'a MakeSink<'a>,
}

impl Passage<'_> {
    /// Moves the checkpoint from REST to COMPLETE. After a panic the phase stays where it is.
    fn take(&self, slots: &Slots) -> Result<Captured, CheckpointError> {
        let (cycle, epoch, driver) = (self.cycle, self.epoch, self.cycle.store.driver());
        let point = cycle.quiesce_for.point_of(&*cycle.scheme);
        let begin_ns = cycle.clock.monotonic_ns();
        cycle.progress.begin(epoch, begin_ns);
        // Commits after the point of consistency need a sink for their before-images. The sink set
        // here stays if no other can be made.
        cycle.store.set_sink(Some(Arc::new(DiscardSink)));
        driver.choose_changes(false);
        let mut stop = Stop::new(&*cycle.clock);
        let stops_at_begin = point == PointOfConsistency::FuzzyUndone;
        if stops_at_begin {
            stop.hold(cycle)?;
        }
        self.enter(Phase::Prepare);
        if stops_at_begin {
            stop.begin(cycle, || {})?;
        }
        cycle.scheme.begin(epoch, &*cycle.log).map_err(CheckpointError::Log)?;
        let dirty = self.settle(slots);
        stop.end();
        let kind = match cycle.scheme.takes_changes() {
            true => cycle.wanted.kind(dirty, cycle.store.record_total()),
            false => CheckpointKind::Full,
        };
        driver.choose_changes(kind == CheckpointKind::Partial);
        cycle.progress.choose(kind);
        let sink = (self.make_sink)(kind)?;
        if cycle.scheme.takes_changes() && kind == CheckpointKind::Full {
            cycle.store.begin_chain();
            self.before_full(slots)?;
        }
        cycle.store.set_sink(Some(sink.clone()));
        let before_point = || cycle.before_point.iter().for_each(|call| call());
        if point.stops_commits() && !stops_at_begin {
            let has_pass = cycle.scheme.has_pass_at_point();
            let mut pass = has_pass.then(|| PointPass::start(cycle, slots));
            stop.begin(cycle, before_point)?;
            pass.as_mut().map_or(Ok(()), PointPass::run)?;
            cycle.scheme.hold().map_err(CheckpointError::Memory)?;
            self.pass_point(point, &mut stop);
            pass.map_or(Ok(()), PointPass::end)?;
        } else {
            before_point();
            self.pass_point(point, &mut stop);
        }
        self.enter(Phase::Capture);
        let consistent_ns = cycle.clock.monotonic_ns();
        let walk = Arc::new(CaptureScan::new(cycle, epoch, &sink, consistent_ns, Work::Capture));
        let walked = walk.run(slots);
        let released = cycle.scheme.release(&cycle.store).map_err(CheckpointError::Memory);
        let walked = walked.and(released);
        stop.end();
        let walked_ns = cycle.clock.monotonic_ns();
        self.enter(Phase::Complete);
        sink.drain();
        let drained_ns = cycle.clock.monotonic_ns();
        walked.map(|()| Captured {
            epoch,
            kind,
            dirty,
            units: walk.units,
            threads: slots.len(),
            consistency_ns: consistent_ns - begin_ns,
            stopped_ns: stop.stopped_ns,
            stable_peak_bytes: cycle.store.stable_pool_bytes().peak_bytes,
            capture_ns: walked_ns - consistent_ns,
            drain_ns: drained_ns - walked_ns,
        })
    }

    /// Does the scheme's work before a checkpoint that holds every record.
    fn before_full(&self, slots: &Slots) -> Result<(), CheckpointError> {
        let Self { cycle, epoch, .. } = *self;
        if !cycle.scheme.works_before_full() {
            return Ok(());
        }
        let (nothing, now_ns) = (Arc::new(DiscardSink) as _, cycle.clock.monotonic_ns());
        Arc::new(CaptureScan::new(cycle, epoch, &nothing, now_ns, Work::BeforeFull)).run(slots)
    }

    /// Enters RESOLVE. If the point of consistency is a moment, commits go on.
    fn pass_point(&self, point: PointOfConsistency, stop: &mut Stop<'_>) {
        self.enter(Phase::Resolve);
        let is_moment = point == PointOfConsistency::Physical;
        let driver = self.cycle.store.driver();
        if mutant!(in driver; is_moment, StopEndsEarly => point.stops_commits()) {
            stop.end();
        }
    }

    /// Settles the marks of the checkpoint before, and counts the keys that have changed since.
    fn settle(&self, slots: &Slots) -> u64 {
        let Cycle { store, scheme, .. } = self.cycle;
        if !scheme.takes_changes() {
            return 0;
        }
        let dirty =
            (0..store.group_count()).map(|unit| scheme.settle(store, unit, slots.own())).sum();
        store.end_settling();
        dirty
    }

    /// Enters a phase, and waits until no commit acts in the previous one.
    fn enter(&self, phase: Phase) {
        Progress::set(&self.cycle.progress.phase, phase as u64);
        self.cycle.store.driver().advance(phase);
        self.observe(phase);
    }

    fn observe(&self, phase: Phase) {
        if let Some(observer) = &self.cycle.observer {
            observer(phase, self.epoch);
        }
    }

    /// Goes on to REST from the present phase. That phase is COMPLETE, or an earlier one after a
    /// panic. After a panic nothing more is emitted.
    ///
    /// # Errors
    /// A panic, or marks that could not be set. The phase is REST in any case.
    fn come_to_rest(&self, slots: &Slots) -> Result<(), CheckpointError> {
        let cycle = self.cycle;
        let driver = cycle.store.driver();
        let mut result = Ok(());
        let mut note = |ended: Result<(), CheckpointError>| {
            if result.is_ok() {
                result = ended;
            }
        };
        loop {
            let next = match driver.now().phase() {
                Phase::Rest => break,
                Phase::Prepare => Phase::Resolve,
                Phase::Resolve => Phase::Capture,
                Phase::Capture => {
                    note(finish_marks(&cycle.store, &*cycle.scheme, slots.own()));
                    Phase::Complete
                }
                Phase::Complete => Phase::Rest,
            };
            driver.advance(next);
            if next != Phase::Rest {
                note(ran(|| self.observe(next)));
            }
        }
        cycle.store.set_sink(None);
        // A checkpoint that was given up before the end of its capture has not released yet.
        note(ran(|| drop(cycle.scheme.release(&cycle.store))));
        Progress::set(&cycle.progress.phase, Phase::Rest as u64);
        note(ran(|| self.observe(Phase::Rest)));
        result
    }
}
