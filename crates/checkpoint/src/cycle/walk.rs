//! The capture scan of a checkpoint: capture threads that visit all units, at the pace.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{JoinHandle, Meter, Pace, is_interrupted_soon, spawn};
use stillpoint_store::{
    Capture, Checkpointer, DeletedKey, Demand, Lane, PointOfConsistency, RecordImage, Sink, Store,
    planted,
};
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::mutant;

use super::{Cycle, lost_record, ran};
use crate::error::CheckpointError;
use crate::progress::Progress;

/// Bytes that a capture thread emits between two looks at the pace.
const METERED_BYTES: u64 = 16 << 10;
/// Bytes that a capture thread emits between two looks at the bytes of saved before-images. So many
/// bytes during one nap of a millisecond are near the write rate of a device.
const GIVE_WAY_BYTES: u64 = 256 << 10;

/// Length of a pause of the capture scan. The records emitted before keep the writers busy for
/// longer.
const NAP: Duration = Duration::from_millis(1);

/// Rest of a capture thread between two bursts of work. The rest is long enough for another thread to
/// get the core.
const REST: Duration = Duration::from_micros(50);

/// A capture thread rests after so many pauses, or after [`BURST_BYTES`]. A pause comes every few
/// dozen records, so both are less than a quarter of a millisecond of work. A thread that wakes up
/// on this core waits until the next rest. Without rests such a thread would wait for the
/// scheduler's next tick, which comes after milliseconds. Each rest costs the capture thread its
/// turn on the core.
const BURST_PAUSES: u32 = 40;
/// A capture thread rests after it has emitted so many bytes, or after [`BURST_PAUSES`].
const BURST_BYTES: u64 = 512 << 10;
/// Factor of the work between two rests where the scheduler [interrupts](is_interrupted_soon) a
/// capture thread sooner by itself. A checkpoint under load then takes two thirds of the time.
/// Without any rest it would take half of the time, but one answer in a thousand would wait longer.
const BURSTS_WHERE_INTERRUPTED: u32 = 5;

/// Read section slots of the capture threads. A drop gives the slots back.
pub(super) struct Slots {
    store: Arc<Store>,
    slots: Vec<usize>,
}

impl Slots {
    /// Claims free slots, at least one and at most `wanted`.
    pub(super) fn claim(store: &Arc<Store>, wanted: usize) -> Result<Self, CheckpointError> {
        let read_sections = store.driver().read_sections();
        let slots: Vec<usize> = (0..wanted.max(1)).map_while(|_| read_sections.claim()).collect();
        let claimed = Self { store: store.clone(), slots };
        if claimed.slots.is_empty() {
            let slots = read_sections.capacity();
            return Err(CheckpointError::NoSlot { slots });
        }
        Ok(claimed)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of the calling thread.
    pub(super) fn own(&self) -> usize {
        self.slots[0]
    }

    /// The slots of the other threads.
    pub(super) fn others(&self) -> &[usize] {
        &self.slots[1..]
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for &slot in &self.slots {
            self.store.driver().read_sections().unclaim(slot);
        }
    }
}

/// The work on each unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    BeforeFull,
    Capture,
    AfterCapture,
}

/// State that the capture threads share.
pub(super) struct CaptureScan {
    store: Arc<Store>,
    scheme: Arc<dyn Checkpointer>,
    sink: Arc<dyn Sink>,
    progress: Arc<Progress>,
    meter: Meter,
    /// The pace at the begin. `None` if commits wait for the end of the scan, so that it has no pace.
    pace: Option<Pace>,
    epoch: u64,
    pub(super) units: usize,
    next: AtomicUsize,
    abandoned: AtomicBool,
    /// Bursts of a capture thread between two rests. `None` if commits wait for the end of the
    /// scan, so that it never rests.
    bursts: Option<u32>,
    /// Bytes that the capture threads have emitted themselves.
    walked_bytes: AtomicU64,
    /// Bytes that the capture threads have moved in memory.
    moved_bytes: AtomicU64,
    work: Work,
}

impl CaptureScan {
    pub(super) fn new(
        cycle: &Cycle,
        epoch: u64,
        sink: &Arc<dyn Sink>,
        start_ns: u64,
        work: Work,
    ) -> Self {
        let units = cycle.store.group_count();
        Progress::set(&cycle.progress.units_done, 0);
        Progress::set(&cycle.progress.units_total, units as u64);
        let bursts = match cycle.scheme.point_of_consistency() {
            PointOfConsistency::PhysicalThroughout => None,
            _ if is_interrupted_soon() => Some(BURSTS_WHERE_INTERRUPTED),
            _ => Some(1),
        };
        let pace = bursts.map(|_| cycle.pace);
        let meter = Meter::since(pace.unwrap_or_default(), cycle.clock.clone(), start_ns);
        Self {
            store: cycle.store.clone(),
            scheme: cycle.scheme.clone(),
            sink: sink.clone(),
            progress: cycle.progress.clone(),
            meter,
            pace,
            epoch,
            units,
            next: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            bursts,
            walked_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            work,
        }
    }

    /// Visits all units with a thread for each slot. The calling thread is among these threads.
    /// When this returns, every unit was visited, with output or without.
    pub(super) fn run(self: &Arc<Self>, slots: &Slots) -> Result<(), CheckpointError> {
        let (&own, others) = slots.slots.split_first().expect("at least one");
        let start = |(at, &slot): (usize, &usize)| -> Option<JoinHandle<()>> {
            let walk = self.clone();
            // If a thread cannot be started, the others do its work.
            spawn(&format!("capture-{}", at + 1), move || walk.walk(slot)).ok()
        };
        let threads: Vec<_> = others.iter().enumerate().filter_map(start).collect();
        let mut panicked = ran(|| self.walk(own)).err();
        for thread in threads {
            panicked = thread.join().err().map(Into::into).or(panicked);
        }
        if let Some(panic) = panicked {
            // The unit that the panicked thread had begun is not finished.
            if self.work == Work::Capture {
                finish_marks(&self.store, &*self.scheme, own)?;
            }
            return Err(panic);
        }
        match (self.is_abandoned(), self.progress.is_cancelled()) {
            (false, _) => Ok(()),
            (true, true) => Err(CheckpointError::Cancelled),
            (true, false) if self.store.driver().is_spoilt(self.epoch) => {
                Err(lost_record(&self.store, self.epoch))
            }
            (true, false) => Err(CheckpointError::Sink),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    fn pace(&self) -> Pace {
        self.pace.map_or(Pace::Unpaced, |at_begin| self.progress.pace(at_begin))
    }

    fn walk(&self, slot: usize) {
        let unfinished = Unfinished(self);
        let mut hand = CaptureThread {
            walk: self,
            slot,
            unmetered: 0,
            unseen: 0,
            saved: 0,
            burst_pauses: 0,
            burst_bytes: 0,
        };
        loop {
            // Relaxed: the units existed before the threads were started.
            let unit = self.next.fetch_add(1, Relaxed);
            if unit >= self.units {
                break;
            }
            hand.pause();
            mutant!(in self.store.driver(); MarksForgotten => if self.is_abandoned() { break });
            match self.work {
                Work::BeforeFull => self.scheme.before_full(&self.store, unit, &mut hand),
                Work::Capture => self.scheme.capture(&self.store, unit, &mut hand),
                Work::AfterCapture => self.scheme.after_capture(&self.store, unit, &mut hand),
            }
            Progress::add(&self.progress.units_done, 1);
        }
        std::mem::forget(unfinished);
    }
}

/// Dropped only when a capture thread panics. The other threads then go on without output.
struct Unfinished<'a>(&'a CaptureScan);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Release);
    }
}

/// Visits all units without output, so that every record has the mark of the present epoch. A unit
/// whose visit panics is visited once more.
///
/// # Errors
/// The second visit panics, too. Then records may lack their marks, and the next checkpoint would
/// take them for captured. So the store takes no further checkpoint.
pub(super) fn finish_marks(
    store: &Store,
    scheme: &dyn Checkpointer,
    slot: usize,
) -> Result<(), CheckpointError> {
    let walk = |unit| ran(|| scheme.capture(store, unit, &mut Silent(slot)));
    let walked = (0..store.group_count()).try_for_each(|unit| walk(unit).or_else(|_| walk(unit)));
    walked.map_err(|panic| {
        store.driver().spoil(u64::MAX);
        CheckpointError::MarksLost(Box::new(panic))
    })
}

/// A capture thread without output, with its read section slot.
struct Silent(usize);

impl Capture for Silent {
    fn slot(&self) -> usize {
        self.0
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut DiscardLane);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        true
    }
}

/// One capture thread.
struct CaptureThread<'a> {
    walk: &'a CaptureScan,
    slot: usize,
    /// Bytes emitted since the last look at the pace.
    unmetered: u64,
    /// Bytes emitted since the last look at the saved before-images, and the bytes saved by then.
    unseen: u64,
    saved: u64,
    /// Pauses and bytes since the last rest.
    burst_pauses: u32,
    burst_bytes: u64,
}

impl CaptureThread<'_> {
    fn should_stop(&self) -> bool {
        let walk = self.walk;
        // What is left to do after a capture is not lost with the checkpoint.
        let is_lost =
            || walk.work != Work::AfterCapture && walk.store.driver().is_spoilt(walk.epoch);
        let stop =
            walk.progress.is_cancelled() || walk.sink.demand() == Demand::GiveUp || is_lost();
        if stop {
            self.walk.abandoned.store(true, Release);
        }
        stop
    }

    #[cold]
    fn wait_for_room(&self) {
        while self.walk.sink.demand() == Demand::Wait && !self.should_stop() {
            self.walk.meter.pause(NAP);
        }
    }

    /// Rests while transactions save before-images as fast as the scan would emit records. Each
    /// before-image is one record less for the scan, so the transactions use the core better.
    fn give_way(&mut self) {
        // Relaxed: sums for a rule of thumb.
        self.walk.walked_bytes.fetch_add(std::mem::take(&mut self.unseen), Relaxed);
        loop {
            let walked = self.walk.walked_bytes.load(Relaxed);
            let saved = self.walk.sink.taken_bytes().saturating_sub(walked);
            let before = std::mem::replace(&mut self.saved, saved);
            if saved < before + GIVE_WAY_BYTES || self.should_stop() {
                return;
            }
            self.walk.meter.pause(NAP);
        }
    }
}

impl Capture for CaptureThread<'_> {
    fn slot(&self) -> usize {
        self.slot
    }

    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        if self.walk.is_abandoned() {
            return with(&mut DiscardLane);
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
        if self.unmetered >= METERED_BYTES {
            self.unmetered = 0;
            // Relaxed: a sum for the pace.
            let moved = || self.walk.moved_bytes.load(Relaxed);
            let taken = || self.walk.sink.taken_bytes() + moved();
            self.walk.meter.wait_at(|| self.walk.pace(), taken, || self.should_stop());
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
            self.walk.meter.pause(REST);
        }
    }

    fn is_abandoned(&self) -> bool {
        self.walk.is_abandoned()
    }

    fn moved(&mut self, bytes: u64) {
        self.unmetered += bytes;
        self.burst_bytes += bytes;
        // Relaxed: as in `pause`.
        self.walk.moved_bytes.fetch_add(bytes, Relaxed);
    }
}

/// A lane that counts the emitted bytes.
struct Metered<'a> {
    lane: &'a mut dyn Lane,
    bytes: u64,
    /// Bytes of the last record.
    last: u64,
}

impl Lane for Metered<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.last = (record.key.len() + record.value.len()) as u64;
        self.bytes += self.last;
        self.lane.emit(record);
    }

    fn emit_deletion(&mut self, key: &DeletedKey<'_>) {
        self.bytes += key.key.len() as u64;
        self.lane.emit_deletion(key);
    }

    fn take_back(&mut self) {
        self.bytes -= self.last;
        self.lane.take_back();
    }
}

/// A sink that discards all records. For work after the capture, and for a checkpoint that is given
/// up before its own sink is made.
pub(super) struct DiscardSink;

impl Sink for DiscardSink {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut DiscardLane);
    }
}

/// A lane that discards all records.
struct DiscardLane;

impl Lane for DiscardLane {
    fn emit(&mut self, _: &RecordImage<'_>) {}
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {}
    fn take_back(&mut self) {}
}
