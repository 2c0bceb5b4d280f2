//! One checkpoint from REST to REST: moves the phases, owns the capture threads, keeps the pace.
//!
//! ```text
//! claim slots ─ PREPARE ─ (quiesce) ─ RESOLVE ─ (go on, if physical) ─ CAPTURE: threads walk units
//!   ─ (go on, if quiesced throughout) ─ COMPLETE: the sink is drained ─ REST
//! ```
//! Every way out passes through all phases: a checkpoint that fails or is cancelled is walked to
//! its end without output, so that the scheme's marks are as the next one needs them.

use std::sync::Arc;

use stillpoint_format::names::CheckpointKind;
use stillpoint_io::{Clock, Disk, JoinHandle, is_interrupted_soon, spawn};
use stillpoint_store::{
    Bug, Capture, Checkpointer, Demand, Lane, Outcome, Phase, PointOfConsistency, RecordImage,
    Sink, Store,
};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::CheckpointError;
use crate::pace::{Meter, Pace};
use crate::progress::Progress;
use crate::writer::{PartSink, WriterConfig, Written};

/// Bytes that a capture thread emits between two looks at the pace.
const METERED_BYTES: u64 = 16 << 10;
/// Bytes that it emits between two looks at what the transactions hand out. As much in the time of
/// a nap is near what a device takes.
const GIVE_WAY_BYTES: u64 = 256 << 10;

/// A capture thread rests after so many pauses, each of dozens of records, or so many bytes: less than
/// a quarter of a millisecond of work. Whoever wakes up on its core meanwhile waits that long; without
/// rests, until the scheduler's next tick, which is milliseconds. Each rest costs the walk its turn.
const BURST_PAUSES: u32 = 40;
const BURST_BYTES: u64 = 512 << 10;
/// Where the scheduler [interrupts](is_interrupted_soon) it sooner by itself, it works for so many
/// times as long. Saves under load then take two thirds of the time; without any rest they take half of
/// it, and one answer in a thousand waits longer.
const BURSTS_WHERE_INTERRUPTED: u32 = 5;

/// What is told of each phase, after it was entered and its grace period has passed.
pub type Observer = Arc<dyn Fn(Phase, u64) + Send + Sync>;

/// What a checkpoint is taken of, and how.
#[derive(Clone)]
pub struct Cycle {
    /// The store.
    pub store: Arc<Store>,
    /// The scheme that the store was made with.
    pub scheme: Arc<dyn Checkpointer>,
    /// For the pace and for durations.
    pub clock: Arc<dyn Clock>,
    /// Capture threads, the calling one included; at least 1. Each needs a window slot.
    pub threads: usize,
    /// How fast.
    pub pace: Pace,
    /// Numbers to watch, and the way to cancel.
    pub progress: Arc<Progress>,
    /// Told of every phase with the checkpoint's epoch: in [`Phase::Capture`] every commit of the
    /// epochs before it is in its log.
    pub observer: Option<Observer>,
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
    /// The epoch that began at its point of consistency; it holds the commits of those before.
    pub epoch: u64,
    /// Units walked.
    pub units: usize,
    /// Threads that walked; fewer than asked for if slots or threads were not to be had.
    pub threads: usize,
    /// From entering PREPARE to the end of RESOLVE's grace period, in nanoseconds.
    pub consistency_ns: u64,
    /// From there to the end of the walk, in nanoseconds.
    pub capture_ns: u64,
    /// From there until everything emitted was written, in nanoseconds.
    pub drain_ns: u64,
}

/// Takes a checkpoint into part files under `checkpoint/`, and makes them durable. It exists once
/// a manifest names it; then the caller tells the scheme that it
/// [ended](Checkpointer::ended) as [`Outcome::Published`].
///
/// # Errors
/// Whatever was in the way. Its files are removed, the scheme has been told, and the store is
/// ready for the next one.
pub fn take_checkpoint(
    cycle: &Cycle,
    disk: &Arc<dyn Disk>,
    config: &WriterConfig,
) -> Result<(Written, Captured), CheckpointError> {
    let turn = cycle.store.driver().try_turn().ok_or(CheckpointError::Busy)?;
    let epoch = cycle.store.driver().now().epoch() + 1;
    let sink = Arc::new(PartSink::create(
        disk.clone(),
        cycle.store.clone(),
        cycle.clock.clone(),
        cycle.progress.clone(),
        epoch,
        CheckpointKind::Full,
        config.clone(),
    )?);
    let as_sink: Arc<dyn Sink> = sink.clone();
    let captured = match run_phases(cycle, epoch, &as_sink) {
        Ok(captured) => captured,
        Err(error) => return Err(sink.abandon().unwrap_or(error)),
    };
    let written = sink.finish().inspect_err(|_| {
        cycle.scheme.ended(epoch, Outcome::Abandoned);
    })?;
    drop(turn);
    Ok((written, captured))
}

/// Takes a checkpoint into a sink: moves the phases from REST to REST and walks every unit.
///
/// # Errors
/// Another one is under way, there is no slot for a capture thread, it was cancelled, a thread
/// panicked, or the sink gave up. The scheme has been told, and the store is ready for the next.
pub fn run_checkpoint(cycle: &Cycle, sink: &Arc<dyn Sink>) -> Result<Captured, CheckpointError> {
    let _turn = cycle.store.driver().try_turn().ok_or(CheckpointError::Busy)?;
    run_phases(cycle, cycle.store.driver().now().epoch() + 1, sink)
}

fn run_phases(
    cycle: &Cycle,
    epoch: u64,
    sink: &Arc<dyn Sink>,
) -> Result<Captured, CheckpointError> {
    if cycle.progress.is_cancelled() {
        return Err(CheckpointError::Cancelled);
    }
    let store = &cycle.store;
    let slots = Slots::claim(store, cycle.threads)?;
    let threads = slots.slots.len();
    let begin_ns = cycle.clock.monotonic_ns();
    cycle.progress.begin(epoch, begin_ns);
    let enter = |phase: Phase| {
        Progress::set(&cycle.progress.phase, phase as u64);
        cycle.scheme.enter(phase, epoch, sink);
        store.driver().advance(phase);
        if let Some(observer) = &cycle.observer {
            observer(phase, epoch);
        }
    };
    store.set_sink(Some(sink.clone()));
    enter(Phase::Prepare);
    let mut quiesced = match cycle.scheme.point_of_consistency() {
        PointOfConsistency::Virtual => None,
        PointOfConsistency::Physical | PointOfConsistency::PhysicalThroughout => {
            Some(store.driver().quiesce())
        }
    };
    let pace = match cycle.scheme.point_of_consistency() {
        // Whoever is stopped wants to go on.
        PointOfConsistency::PhysicalThroughout => Pace::Unpaced,
        PointOfConsistency::Virtual | PointOfConsistency::Physical => cycle.pace,
    };
    let meter = Meter::new(pace, cycle.clock.clone());
    enter(Phase::Resolve);
    if cycle.scheme.point_of_consistency() == PointOfConsistency::Physical {
        quiesced = None;
    }
    enter(Phase::Capture);
    let consistent_ns = cycle.clock.monotonic_ns();
    let walk = Arc::new(Walk::new(cycle, sink, meter));
    let walked = walk.run(slots);
    drop(quiesced);
    let walked_ns = cycle.clock.monotonic_ns();
    enter(Phase::Complete);
    sink.drain();
    let drained_ns = cycle.clock.monotonic_ns();
    store.driver().advance(Phase::Rest);
    store.set_sink(None);
    cycle.scheme.enter(Phase::Rest, epoch, sink);
    Progress::set(&cycle.progress.phase, Phase::Rest as u64);
    if let Some(observer) = &cycle.observer {
        observer(Phase::Rest, epoch);
    }
    if let Err(error) = walked {
        cycle.scheme.ended(epoch, Outcome::Abandoned);
        return Err(error);
    }
    Ok(Captured {
        epoch,
        units: walk.units,
        threads,
        consistency_ns: consistent_ns - begin_ns,
        capture_ns: walked_ns - consistent_ns,
        drain_ns: drained_ns - walked_ns,
    })
}

/// Window slots, given back when dropped.
struct Slots {
    store: Arc<Store>,
    slots: Vec<usize>,
}

impl Slots {
    fn claim(store: &Arc<Store>, wanted: usize) -> Result<Self, CheckpointError> {
        let windows = store.driver().windows();
        let slots: Vec<usize> = (0..wanted.max(1)).map_while(|_| windows.claim()).collect();
        let claimed = Self { store: store.clone(), slots };
        if claimed.slots.is_empty() {
            let slots = windows.capacity();
            return Err(CheckpointError::NoSlot { slots });
        }
        Ok(claimed)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for &slot in &self.slots {
            self.store.driver().windows().unclaim(slot);
        }
    }
}

/// What the capture threads share.
struct Walk {
    store: Arc<Store>,
    scheme: Arc<dyn Checkpointer>,
    sink: Arc<dyn Sink>,
    progress: Arc<Progress>,
    meter: Meter,
    units: usize,
    next: AtomicUsize,
    abandoned: AtomicBool,
    /// Bursts that it works between two rests; none where commits wait for its end.
    bursts: Option<u32>,
    /// Bytes that the capture threads have emitted themselves.
    walked_bytes: AtomicU64,
}

impl Walk {
    fn new(cycle: &Cycle, sink: &Arc<dyn Sink>, meter: Meter) -> Self {
        let units = cycle.scheme.units(&cycle.store);
        Progress::set(&cycle.progress.units_total, units as u64);
        let bursts = match cycle.scheme.point_of_consistency() {
            PointOfConsistency::PhysicalThroughout => None,
            _ if is_interrupted_soon() => Some(BURSTS_WHERE_INTERRUPTED),
            _ => Some(1),
        };
        Self {
            store: cycle.store.clone(),
            scheme: cycle.scheme.clone(),
            sink: sink.clone(),
            progress: cycle.progress.clone(),
            meter,
            units,
            next: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            bursts,
            walked_bytes: AtomicU64::new(0),
        }
    }

    /// Walks all units with a thread per slot, the calling one first among them.
    fn run(self: &Arc<Self>, slots: Slots) -> Result<(), CheckpointError> {
        let (&own, others) = slots.slots.split_first().expect("at least one");
        let start = |(at, &slot): (usize, &usize)| -> Option<JoinHandle<()>> {
            let walk = self.clone();
            // With fewer threads it takes longer, which is better than none at all.
            spawn(&format!("capture-{}", at + 1), move || walk.walk(slot)).ok()
        };
        let threads: Vec<_> = others.iter().enumerate().filter_map(start).collect();
        self.walk(own);
        let mut panicked = None;
        for thread in threads {
            panicked = thread.join().err().or(panicked);
        }
        if let Some(panic) = panicked {
            // What that thread had begun is not finished: once more, without output.
            self.abandoned.store(true, Release);
            self.next.store(0, Relaxed);
            self.walk(own);
            return Err(panic.into());
        }
        match (self.is_abandoned(), self.progress.is_cancelled()) {
            (false, _) => Ok(()),
            (true, true) => Err(CheckpointError::Cancelled),
            (true, false) => Err(CheckpointError::Sink),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    fn walk(&self, slot: usize) {
        let mut hand = Hand {
            walk: self,
            slot,
            unmetered: 0,
            unseen: 0,
            handed_out: 0,
            burst_pauses: 0,
            burst_bytes: 0,
        };
        loop {
            // Relaxed: the units were there before the threads were.
            let unit = self.next.fetch_add(1, Relaxed);
            if unit >= self.units {
                return;
            }
            hand.pause();
            if self.is_abandoned() && self.store.driver().has_planted(Bug::MarksForgotten) {
                return;
            }
            self.scheme.capture(&self.store, unit, &mut hand);
            Progress::add(&self.progress.units_done, 1);
        }
    }
}

/// One capture thread.
struct Hand<'a> {
    walk: &'a Walk,
    slot: usize,
    /// Bytes emitted since the last look at the pace.
    unmetered: u64,
    /// Bytes emitted since the last look at what is handed out, and what that was then.
    unseen: u64,
    handed_out: u64,
    /// Pauses and bytes since the last rest.
    burst_pauses: u32,
    burst_bytes: u64,
}

impl Hand<'_> {
    fn should_stop(&self) -> bool {
        let stop = self.walk.progress.is_cancelled() || self.walk.sink.demand() == Demand::GiveUp;
        if stop {
            self.walk.abandoned.store(true, Release);
        }
        stop
    }

    #[cold]
    fn wait_for_room(&self) {
        while self.walk.sink.demand() == Demand::Wait && !self.should_stop() {
            self.walk.meter.nap();
        }
    }

    /// Stands back while the transactions hand out as much as the walk would emit: they do its
    /// work as they go, and have better use for the core than to meet it there.
    fn give_way(&mut self) {
        // Relaxed: sums for a rule of thumb.
        self.walk.walked_bytes.fetch_add(std::mem::take(&mut self.unseen), Relaxed);
        loop {
            let walked = self.walk.walked_bytes.load(Relaxed);
            let handed_out = self.walk.sink.taken_bytes().saturating_sub(walked);
            let before = std::mem::replace(&mut self.handed_out, handed_out);
            if handed_out < before + GIVE_WAY_BYTES || self.should_stop() {
                return;
            }
            self.walk.meter.nap();
        }
    }
}

impl Capture for Hand<'_> {
    fn slot(&self) -> usize {
        self.slot
    }

    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        if self.walk.is_abandoned() {
            return with(&mut Nowhere);
        }
        let mut bytes = 0;
        self.walk.sink.with_lane(self.slot, &mut |lane| {
            let mut metered = Metered { lane, bytes: 0, last: 0 };
            with(&mut metered);
            bytes = metered.bytes;
        });
        self.unmetered += bytes;
        self.unseen += bytes;
        self.burst_bytes += bytes;
    }

    fn pause(&mut self) {
        if self.walk.is_abandoned() || self.should_stop() {
            return;
        }
        if self.walk.sink.demand() == Demand::Wait {
            self.wait_for_room();
        }
        if self.walk.meter.is_paced() && self.unmetered >= METERED_BYTES {
            self.unmetered = 0;
            let taken = || self.walk.sink.taken_bytes();
            self.walk.meter.wait(taken, || self.should_stop());
        }
        if self.unseen >= GIVE_WAY_BYTES {
            self.give_way();
        }
        self.burst_pauses += 1;
        if let Some(bursts) = self.walk.bursts
            && (self.burst_pauses >= bursts * BURST_PAUSES
                || self.burst_bytes >= u64::from(bursts) * BURST_BYTES)
        {
            (self.burst_pauses, self.burst_bytes) = (0, 0);
            self.walk.meter.rest();
        }
    }

    fn is_abandoned(&self) -> bool {
        self.walk.is_abandoned()
    }
}

/// A lane whose bytes are counted.
struct Metered<'a> {
    lane: &'a mut dyn Lane,
    bytes: u64,
    /// Those of the last record.
    last: u64,
}

impl Lane for Metered<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.last = (record.key.len() + record.value.len()) as u64;
        self.bytes += self.last;
        self.lane.emit(record);
    }

    fn take_back(&mut self) {
        self.bytes -= self.last;
        self.lane.take_back();
    }
}

/// Where the records of a checkpoint go that is given up.
struct Nowhere;

impl Lane for Nowhere {
    fn emit(&mut self, _: &RecordImage<'_>) {}
    fn take_back(&mut self) {}
}
