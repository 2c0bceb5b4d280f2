//! A scheme that is in no row, to show that the traits are enough for another kind: copy on update
//! with a physical point of consistency (CALC, SIGMOD 2016, §5, names it; the copy is emitted).
//! Commits stop at the point of consistency for as long as it takes to change a word, and open
//! transactions do not matter.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::Scheme;
use stillpoint_store::{
    Capture, CellPolicy, Checkpointer, Lane, Outcome, Phase, PointOfConsistency, RecordImage, Sink,
    Store,
};

use crate::bank::{self, Plan};
use crate::world::World;

#[derive(Default)]
struct CopyOnUpdate {
    ended: Mutex<Vec<(u64, Outcome)>>,
}

impl CellPolicy for CopyOnUpdate {
    fn wants_first_writes(&self) -> bool {
        true
    }
    fn before_first_write(&self, record: &RecordImage<'_>, lane: &mut dyn Lane) {
        lane.emit(record);
    }
}

impl Checkpointer for CopyOnUpdate {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }
    fn enter(&self, _: Phase, _: u64, _: &Arc<dyn Sink>) {}
    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        store.capture_unmarked(unit, to);
    }
    fn ended(&self, epoch: u64, outcome: Outcome) {
        self.ended.lock().push((epoch, outcome));
    }
}

#[test]
fn another_kind_of_scheme_needs_nothing_but_the_traits() {
    for seed in 1..=2 {
        let scheme = Arc::new(CopyOnUpdate::default());
        let mut world = World::with_scheme(
            Scheme { policy: scheme.clone(), checkpointer: Some(scheme.clone()) },
            seed,
        );
        let plan = Plan::new(seed);
        let outcome = bank::run(&mut world, plan);
        bank::check(&world, plan, &outcome);
        let epochs = (2..).zip(std::iter::repeat_n(Outcome::Published, plan.checkpoints));
        assert!(epochs.eq(scheme.ended.lock().iter().copied()));
    }
}
