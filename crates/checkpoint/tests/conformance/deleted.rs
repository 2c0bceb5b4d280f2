//! Records of all sizes come and go at every point of a checkpoint, also between two slabs of a pass
//! or of the capture. Cells of deleted keys are reclaimed, and cells are replaced by smaller and by
//! larger ones. Each checkpoint has the records of its point of consistency.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::{CheckpointError, Progress, QuiesceFor, Row, Wanted, run_checkpoint};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_store::rules::status;
use stillpoint_store::{
    Capture, CaptureError, Checkpointer, LogRefused, Outcome, Phase, PointOfConsistency, SchemeLog,
    Sink, Stamp, Store, TableId, Worker, WriteRule,
};

use crate::bank::{Share, rows_that_take_checkpoints};
use crate::memory::MemorySink;
use crate::model::assert_same;
use crate::world::{World, may_commit};

const T: TableId = TableId(0);
const KEYS: u64 = 60;
const ROUNDS: u64 = 25;

/// A scheme between whose visits of slabs something else runs.
pub(crate) struct Interrupted {
    pub(crate) scheme: Arc<dyn Checkpointer>,
    pub(crate) work: Box<dyn Fn() + Send + Sync>,
}

impl Interrupted {
    /// Works if commits go on in this phase.
    fn work_in(&self, phase: Phase) {
        if may_commit(Some(self.scheme.point_of_consistency()), phase) {
            (self.work)();
        }
    }
}

impl Checkpointer for Interrupted {
    fn point_of_consistency(&self) -> PointOfConsistency {
        self.scheme.point_of_consistency()
    }
    fn published_point(&self) -> PointOfConsistency {
        self.scheme.published_point()
    }
    fn takes_changes(&self) -> bool {
        self.scheme.takes_changes()
    }
    fn settle(&self, store: &Store, unit: usize, slot: usize) -> u64 {
        // This scheme settles its marks while commits wait.
        if self.scheme.point_of_consistency() != PointOfConsistency::FuzzyUndone {
            self.work_in(Phase::Prepare);
        }
        self.scheme.settle(store, unit, slot)
    }
    fn works_before_full(&self) -> bool {
        self.scheme.works_before_full()
    }
    fn before_full(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.work_in(Phase::Prepare);
        self.scheme.before_full(store, unit, to);
    }
    fn begin(&self, epoch: u64, log: &dyn SchemeLog) -> Result<(), LogRefused> {
        self.scheme.begin(epoch, log)
    }
    fn met(&self) -> Vec<Stamp> {
        self.scheme.met()
    }
    fn hold(&self) -> Result<(), CaptureError> {
        self.scheme.hold()
    }
    fn release(&self, store: &Store) -> Result<(), CaptureError> {
        self.scheme.release(store)
    }
    fn has_work_left(&self, epoch: u64) -> bool {
        self.scheme.has_work_left(epoch)
    }
    fn after_capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.work_in(Phase::Rest);
        self.scheme.after_capture(store, unit, to);
    }
    fn after_capture_ended(&self, epoch: u64) {
        self.scheme.after_capture_ended(epoch);
    }
    fn section(&self) -> Option<String> {
        self.scheme.section()
    }
    fn has_pass_at_point(&self) -> bool {
        self.scheme.has_pass_at_point()
    }
    fn at_point_of_consistency(&self, store: &Store, unit: usize, slot: usize) {
        self.scheme.at_point_of_consistency(store, unit, slot);
    }
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        self.work_in(Phase::Capture);
        self.scheme.capture(store, unit, to);
    }
    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.scheme.ended(epoch, outcome);
    }
}

/// What runs between the visits: a few transactions, and the reclaiming of cells.
struct Work {
    worker: Worker,
    random: SeededRng,
}

impl Work {
    fn run(&mut self, world: &World) {
        for _ in 0..self.random.below(12) {
            let key = self.random.below(KEYS).to_be_bytes();
            let len = [3, 40, 300, 5_000][self.random.below(4) as usize];
            let value = vec![self.random.below(256) as u8; len];
            let what = self.random.below(8);
            let done = self.worker.transact(|tx| match what {
                0..4 => tx.delete(T, &key).map(drop),
                4 => match tx.get(T, &key)?.map(|old| old.len()) {
                    Some(old) => tx.patch(T, &key, old / 2, &value[..1]),
                    None => Ok(()),
                },
                _ => tx.put_tagged(T, &key, what as u8, &value),
            });
            done.expect("memory");
            if self.random.below(3) == 0 {
                world.history.close_all();
            }
            if self.random.below(2) == 0 {
                self.worker.idle();
            }
        }
    }
}

/// Takes a checkpoint between whose steps transactions run. Sometimes cancels it, and sometimes does
/// not publish it.
fn round(world: &Arc<World>, work: &Arc<Mutex<Work>>, number: u64, context: &str) {
    let below = |bound| work.lock().random.below(bound);
    let wanted = match number > 0 && below(5) > 0 {
        true => Wanted::Changes { percent_max: u64::MAX },
        false => Wanted::Full,
    };
    let (published, cancelled) = (number == 0 || below(3) > 0, number > 0 && below(6) == 0);
    let progress = Arc::new(Progress::default());
    let (inner, between) = (work.clone(), world.clone());
    let canceller = progress.clone();
    let interrupted = Interrupted {
        scheme: world.scheme().clone(),
        work: Box::new(move || {
            let mut work = inner.lock();
            work.run(&between);
            if cancelled && work.random.below(4) == 0 {
                canceller.cancel();
            }
        }),
    };
    let mut cycle = world.cycle();
    let (inner, between) = (work.clone(), world.clone());
    let point = cycle.quiesce_for.point_of(&interrupted);
    // Then new transactions wait from before PREPARE on.
    let holds_first =
        point == PointOfConsistency::FuzzyUndone && cycle.quiesce_for == QuiesceFor::Transactions;
    cycle.observer = Some(Arc::new(move |phase, _| {
        let is_held = holds_first && phase == Phase::Prepare;
        if may_commit(Some(point), phase) && !is_held {
            inner.lock().run(&between);
        }
    }));
    cycle.scheme = Arc::new(interrupted);
    (cycle.wanted, cycle.progress, cycle.threads) = (wanted, progress, 1);
    let sink = Arc::<MemorySink>::default();
    let as_sink: Arc<dyn Sink> = sink.clone();
    match run_checkpoint(&cycle, &as_sink) {
        Err(CheckpointError::Cancelled) => {}
        Err(error) => panic!("{context}: {error}"),
        Ok(captured) if published => {
            let found = world.published(&sink, (captured.kind, captured.epoch), context);
            assert_same(&found, &world.expected(captured.epoch), context);
            cycle.ended(captured.epoch, Outcome::Published);
        }
        Ok(captured) => cycle.ended(captured.epoch, Outcome::Abandoned),
    }
    assert_same(&world.live(), &world.history.state(), context);
}

/// Checks that no cell has a shadow that a capture has yet to meet.
fn assert_no_shadow(world: &World, row: &Row, context: &str) {
    if !matches!(row.capabilities.cells.write, WriteRule::KeepShadow | WriteRule::StoreStable) {
        return;
    }
    let read_sections = world.store.driver().read_sections();
    let slot = read_sections.claim().expect("a free slot");
    for slab in 0..world.store.group_count() {
        world.store.visit_records(slab, slot, &mut |cell| {
            assert_eq!(cell.status() & status::SHADOW, 0, "{context}: {cell:?} has a shadow");
        });
    }
    read_sections.unclaim(slot);
}

#[test]
fn checkpoints_hold_what_was_there_while_cells_are_reclaimed_and_replaced() {
    for row in rows_that_take_checkpoints() {
        for seed in Share::of_run().seeds(row, 4, 2) {
            let mut world = World::new(row, seed);
            if seed % 2 == 0 {
                world.quiesce_for = QuiesceFor::Transactions;
            }
            let world = Arc::new(world);
            let work = Work { worker: world.worker(0), random: SeededRng::new(seed) };
            let work = Arc::new(Mutex::new(work));
            for number in 0..ROUNDS {
                let context = format!("{}, seed {seed}, round {number}", row.name);
                work.lock().run(&world);
                round(&world, &work, number, &context);
                assert_no_shadow(&world, row, &context);
            }
            let mut work = work.lock();
            for key in 0..KEYS {
                let delete = |tx: &mut stillpoint_store::Tx<'_>| tx.delete(T, &key.to_be_bytes());
                work.worker.transact(delete).expect("a deletion");
            }
            world.history.close_all();
            for _ in 0..4 {
                work.worker.idle();
                world.take().expect("no fault was injected");
            }
            work.worker.idle();
            let left = (world.store.cell_count(T), world.store.waiting_cells());
            assert_eq!(left, (0, 0), "{}, seed {seed}: cells are left", row.name);
        }
    }
}
