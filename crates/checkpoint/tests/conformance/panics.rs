//! Panics at the n-th call of everything that a checkpoint calls: scheme, sink, lane, observer,
//! clock, disk. A checkpoint that meets a panic fails or is whole. No thread waits for ever, and
//! the next checkpoint equals the model.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{Captured, CheckpointError, Cycle, Row, Scheme, run_checkpoint};
use stillpoint_io::{Call, Clock, Fault, FaultPlan, Lasts, RealClock};
use stillpoint_store::{
    Capture, CaptureError, Checkpointer, DeletedKey, Demand, Lane, LogRefused, Outcome, Phase,
    PointOfConsistency, RecordImage, SchemeLog, Sink, Store, TableId, Worker,
};

use crate::bank::{Share, rows_that_take_checkpoints};
use crate::memory::MemorySink;
use crate::model::assert_same;
use crate::world::{World, may_commit};

const TABLE: TableId = TableId(0);
const KEYS: u32 = 28;
/// Every fifth call panics in turn, or every call if the environment asks for all. A run has its share of
/// these.
const STEP: u64 = 5;
/// Checkpoints after which a new world begins, since the cost of the model grows with its history.
const WORLD_ENDS: u64 = 40;

/// The first call that panics, and the number of calls between two panics. The kernel takes tens of
/// milliseconds to fork a process of tests, and the row `fork` does so for each checkpoint.
fn calls(row: &str) -> (u64, u64) {
    let step = std::env::var("STILLPOINT_FAULTS_ALL").map_or(STEP, |_| 1);
    let share = Share::of_run();
    let shares = if row == "fork" { share.n.max(16) } else { share.n };
    (1 + step * (share.k + 1), step * shares)
}

/// Counts calls, and panics at those from the `first`-th to the `last`-th.
#[derive(Debug)]
struct Fuse {
    calls: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

impl Fuse {
    fn new() -> Arc<Self> {
        let never = || AtomicU64::new(u64::MAX);
        Arc::new(Self { calls: AtomicU64::new(0), first: never(), last: never() })
    }

    fn set(&self, first: u64, last: u64) {
        self.calls.store(0, SeqCst);
        self.first.store(first, SeqCst);
        self.last.store(last, SeqCst);
    }

    fn burn(&self) {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        if (self.first.load(SeqCst)..=self.last.load(SeqCst)).contains(&call) {
            // Unwinds like a panic, but prints no message, since the tests inject thousands of
            // panics.
            resume_unwind(Box::new("injected panic"));
        }
    }
}

struct FusedScheme(Arc<dyn Checkpointer>, Arc<Fuse>);

impl Checkpointer for FusedScheme {
    fn point_of_consistency(&self) -> PointOfConsistency {
        self.0.point_of_consistency()
    }
    fn takes_changes(&self) -> bool {
        self.0.takes_changes()
    }
    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.1.burn();
        let settled = self.0.settle(store, unit, slot);
        self.1.burn();
        settled
    }
    fn works_before_full(&self) -> bool {
        self.0.works_before_full()
    }
    fn before_full(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.1.burn();
        self.0.before_full(store, unit, to);
        self.1.burn();
    }
    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        self.1.burn();
        self.0.begin(epoch, log)
    }
    fn has_work_left(&self, epoch: u64) -> bool {
        self.0.has_work_left(epoch)
    }
    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.1.burn();
        self.0.after_capture(store, unit, to);
        self.1.burn();
    }
    fn after_capture_ended(&self, epoch: u64) {
        self.1.burn();
        self.0.after_capture_ended(epoch);
    }
    fn has_pass_at_point(&self) -> bool {
        self.0.has_pass_at_point()
    }
    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        self.1.burn();
        self.0.at_point_of_consistency(store, unit, slot);
        self.1.burn();
    }
    fn hold(&self) -> Result<(), CaptureError> {
        self.1.burn();
        self.0.hold()
    }
    fn release(&self, store: &Store) -> Result<(), CaptureError> {
        self.1.burn();
        self.0.release(store)
    }
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.1.burn();
        self.0.capture(store, unit, to);
        self.1.burn();
    }
    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.1.burn();
        self.0.ended(epoch, outcome);
    }
}

struct FusedSink(Arc<MemorySink>, Arc<Fuse>);

impl Sink for FusedSink {
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.1.burn();
        self.0.with_lane(lane, &mut |lane| with(&mut FusedLane(lane, &self.1)));
        self.1.burn();
    }
    fn has_room(&self) -> bool {
        self.1.burn();
        false
    }
    fn wait_for_room(&self, _: usize) {
        self.1.burn();
    }
    fn demand(&self) -> Demand {
        self.1.burn();
        Demand::Go
    }
    fn taken_bytes(&self) -> u64 {
        self.1.burn();
        0
    }
    fn drain(&self) {
        self.1.burn();
    }
}

struct FusedLane<'a>(&'a mut dyn Lane, &'a Fuse);

impl Lane for FusedLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.1.burn();
        self.0.emit(record);
        self.1.burn();
    }
    fn emit_deletion(&mut self, key: &DeletedKey<'_>) {
        self.1.burn();
        self.0.emit_deletion(key);
        self.1.burn();
    }
    fn take_back(&mut self) {
        self.1.burn();
        self.0.take_back();
    }
}

#[derive(Debug)]
struct FusedClock(Arc<Fuse>);

impl Clock for FusedClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.burn();
        RealClock.monotonic_ns()
    }
    fn wall_ms(&self) -> u64 {
        self.0.burn();
        RealClock.wall_ms()
    }
    fn sleep(&self, duration: Duration) {
        self.0.burn();
        RealClock.sleep(duration);
    }
}

/// A world whose scheme and clock burn a fuse, and in whose phases a worker commits.
struct Fused {
    world: World,
    fuse: Arc<Fuse>,
    point: Option<PointOfConsistency>,
}

/// One commit, which may panic. If the log did not get the commit, nothing has changed.
fn put(worker: &mut Worker, number: u32, round: u64) {
    let mut value = round.to_le_bytes().to_vec();
    value.resize(8 + (number as usize % 3) * 60, number as u8);
    let key = number.to_be_bytes();
    let _ = catch_unwind(AssertUnwindSafe(|| {
        worker.transact(|tx| match (u64::from(number) + round).is_multiple_of(5) {
            true => tx.delete(TABLE, &key).map(|_| ()),
            false => tx.put_tagged(TABLE, &key, number as u8, &value),
        })
    }));
}

impl Fused {
    fn new(row: &Row) -> Self {
        let fuse = Fuse::new();
        let Scheme { cells, checkpointer } = row.build();
        let checkpointer = checkpointer.expect("a row that takes checkpoints");
        let scheme =
            Scheme { cells, checkpointer: Some(Arc::new(FusedScheme(checkpointer, fuse.clone()))) };
        let mut world = World::with_scheme(scheme, 9);
        world.threads = 1;
        world.clock = Arc::new(FusedClock(fuse.clone()));
        let mut worker = world.worker(0);
        (0..KEYS).for_each(|number| put(&mut worker, number, 1));
        worker.transact(|tx| tx.put_tagged(TABLE, b"large", 1, &[7; 40_000])).expect("memory");
        drop(worker);
        Self { world, fuse, point: row.capabilities.point }
    }

    /// A cycle in each of whose phases every seventh record is changed.
    fn cycle(&self) -> Cycle {
        let (fuse, point) = (self.fuse.clone(), self.point);
        let (store, history) = (self.world.store.clone(), self.world.history.clone());
        let observer = move |phase, epoch| {
            fuse.burn();
            if may_commit(point, phase) {
                let log = Box::new(history.log(0));
                let mut worker = Worker::new(store.clone(), log).expect("a free slot");
                (phase as u32..KEYS).step_by(7).for_each(|n| put(&mut worker, n, epoch));
            }
            fuse.burn();
        };
        Cycle { observer: Some(Arc::new(observer)), ..self.world.cycle() }
    }

    fn take_into_memory(&self) -> (Arc<MemorySink>, Result<Captured, CheckpointError>) {
        let kept = Arc::new(MemorySink::default());
        let sink: Arc<dyn Sink> = Arc::new(FusedSink(kept.clone(), self.fuse.clone()));
        let taken = run_checkpoint(&self.cycle(), &sink);
        (kept, taken)
    }

    /// Checks that the phase is REST, and that the next checkpoint is whole.
    fn confirm(&self, context: &str) {
        self.fuse.set(u64::MAX, u64::MAX);
        assert_eq!(self.world.store.driver().now().phase(), Phase::Rest, "{context}");
        assert_eq!(self.world.unmarked(), 0, "{context}: unmarked records");
        let (written, _) = self
            .world
            .take_with(&self.cycle())
            .unwrap_or_else(|error| panic!("{context}, the next one: {error}"));
        let expected = self.world.expected(written.epoch);
        let found = self.world.load(&crate::world::entry(written));
        assert_same(&found, &expected, context);
    }
}

#[test]
fn a_panic_costs_at_most_that_checkpoint() {
    for row in rows_that_take_checkpoints() {
        let mut fused = Fused::new(row);
        let (mut nth, step) = calls(row.name);
        let (mut tried, mut failed) = (0, 0);
        loop {
            tried += 1;
            if tried % WORLD_ENDS == 0 {
                fused = Fused::new(row);
            }
            let context = format!("{}, panic at call {nth}", row.name);
            fused.fuse.set(nth, nth);
            let (kept, taken) = fused.take_into_memory();
            let calls = fused.fuse.calls.load(SeqCst);
            match taken {
                Ok(captured) => {
                    let expected = fused.world.expected(captured.epoch);
                    let of = (captured.kind, captured.epoch);
                    let found = fused.world.unpublished(&kept, of, &context);
                    assert_same(&found, &expected, &context);
                }
                Err(error) => {
                    assert!(!error.is_fatal(), "{context}: {error}");
                    failed += 1;
                }
            }
            fused.confirm(&context);
            if calls < nth {
                break;
            }
            nth += step;
        }
        assert!(failed > tried / 4, "{}: {failed} of {tried} failed", row.name);
    }
}

#[test]
fn a_panic_at_a_call_of_the_disk_costs_at_most_that_checkpoint() {
    for row in rows_that_take_checkpoints() {
        let fused = Fused::new(row);
        let mut nth = 0;
        loop {
            nth += 1;
            let context = format!("{}, panic at call {nth} of the disk", row.name);
            let before = fused.world.sim.call_counts().total();
            fused.world.sim.inject(FaultPlan {
                calls: Call::ALL.to_vec(),
                nth,
                fault: Fault::Panic,
                lasts: Lasts::Once,
            });
            let taken = fused.world.take_with(&fused.cycle());
            let calls = fused.world.sim.call_counts().total() - before;
            fused.world.sim.clear_faults();
            match taken {
                Ok((written, _)) => {
                    assert!(calls < nth, "{context}: it did not fail");
                    let expected = fused.world.expected(written.epoch);
                    let found = fused.world.load(&crate::world::entry(written));
                    assert_same(&found, &expected, &context);
                }
                Err(error) => assert!(matches!(error, CheckpointError::Thread(_)), "{error}"),
            }
            fused.confirm(&context);
            if calls < nth {
                break;
            }
        }
    }
}

/// The scan panics at each record. No checkpoint may be taken any more, since it would lack the
/// records that were left without their marks.
#[test]
fn a_walk_that_always_panics_is_the_last() {
    for row in rows_that_take_checkpoints() {
        let fused = Fused::new(row);
        let fuse = fused.fuse.clone();
        let mut cycle = fused.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase == Phase::Capture {
                // Three calls, of `units` and of the clock, come before the scan.
                fuse.set(4, u64::MAX);
            }
        }));
        let error = fused.world.take_with(&cycle).expect_err("the walk panics");
        assert!(error.is_fatal(), "{}: {error}", row.name);
        assert!(error.to_string().contains("injected panic"), "{error}");
        fused.fuse.set(u64::MAX, u64::MAX);
        assert_eq!(fused.world.store.driver().now().phase(), Phase::Rest, "{}", row.name);
        let again = fused.world.take();
        assert!(matches!(again, Err(CheckpointError::Refused)), "{}: {again:?}", row.name);
    }
}

/// A scheme whose first capture of one unit panics. The captures of later units wait until the
/// checkpoint is given up.
struct PanicsOnce {
    scheme: Arc<dyn Checkpointer>,
    unit: usize,
    panicked: AtomicBool,
    told: AtomicU64,
}

impl Checkpointer for PanicsOnce {
    fn point_of_consistency(&self) -> PointOfConsistency {
        self.scheme.point_of_consistency()
    }
    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        self.scheme.begin(epoch, log)
    }
    fn has_work_left(&self, epoch: u64) -> bool {
        self.scheme.has_work_left(epoch)
    }
    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        self.scheme.settle(store, unit, slot)
    }
    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.scheme.after_capture(store, unit, to);
    }
    fn after_capture_ended(&self, epoch: u64) {
        self.scheme.after_capture_ended(epoch);
    }
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if unit == self.unit && !self.panicked.swap(true, SeqCst) {
            resume_unwind(Box::new("injected panic"));
        }
        for _ in 0..if unit > self.unit { 10_000 } else { 0 } {
            if to.is_abandoned() {
                self.told.fetch_add(1, SeqCst);
                break;
            }
            RealClock.sleep(Duration::from_millis(1));
        }
        self.scheme.capture(store, unit, to);
    }
}

/// After a panic the other threads go on without output, and the marks of all records are set.
#[test]
fn after_a_panic_the_other_threads_go_on_without_output() {
    let mut unit = 0;
    while unit < units_with_a_panic_in(unit) {
        unit += 1;
    }
    assert!(unit > 1, "one thread is not enough");
}

/// Takes a checkpoint whose capture scan panics in a unit, one of the ranges of cells that capture
/// threads scan. Returns the number of units.
fn units_with_a_panic_in(unit: usize) -> usize {
    let row = stillpoint_checkpoint::registry::REGISTRY.find("calc").expect("it is in the table");
    let mut scheme = row.build();
    let panics = Arc::new(PanicsOnce {
        scheme: scheme.checkpointer.take().expect("it takes checkpoints"),
        unit,
        panicked: AtomicBool::new(false),
        told: AtomicU64::new(0),
    });
    scheme.checkpointer = Some(panics.clone());
    let world = World::with_scheme(scheme, 1);
    let mut worker = world.worker(0);
    for table in 0..2 {
        worker.transact(|tx| tx.put(TableId(table), b"key", b"value")).expect("memory");
    }
    let units = world.store.group_count();
    let kept = Arc::new(MemorySink::default());
    let sink: Arc<dyn Sink> = kept.clone();
    let taken = run_checkpoint(&world.cycle(), &sink);
    assert_eq!(taken.is_err(), unit < units, "{taken:?}");
    if let Err(error) = taken {
        assert!(matches!(error, CheckpointError::Thread(_)), "{error}");
        // The later units are captured twice: in the scan, and then once more for their marks.
        assert_eq!(panics.told.load(SeqCst), 2 * (units - unit - 1) as u64, "unit {unit}");
    }
    assert_eq!(world.unmarked(), 0, "unit {unit}");
    units
}

/// After a panic in any phase, the checkpoint still enters all later phases, and the observer is
/// called for each.
#[test]
fn after_a_panic_every_phase_is_still_entered_and_told() {
    const PHASES: [Phase; 5] =
        [Phase::Prepare, Phase::Resolve, Phase::Capture, Phase::Complete, Phase::Rest];
    for bad in PHASES {
        let fused = Fused::new(rows_that_take_checkpoints().next().expect("a row"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        let mut cycle = fused.world.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            told.lock().push(phase);
            if phase == bad {
                resume_unwind(Box::new("injected panic"));
            }
        }));
        let taken = fused.world.take_with(&cycle);
        assert!(matches!(taken, Err(CheckpointError::Thread(_))), "{bad:?}: {taken:?}");
        assert_eq!(*seen.lock(), PHASES, "{bad:?}");
    }
}
