//! A checkpoint in memory, and a driver that enters the phases one by one. For tests that place
//! single transactions at exact points.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::Wanted;
use stillpoint_format::names::CheckpointKind;
use stillpoint_store::{
    Capture, Checkpointer, DeletedKey, Label, Lane, Outcome, Phase, PointOfConsistency,
    RecordImage, Sink, Store,
};

use crate::model::{Changes, Key};
use crate::world::World;

/// A sink that keeps all records and deletions.
#[derive(Default)]
pub(crate) struct MemorySink {
    changes: Mutex<Changes>,
    gsns: Mutex<BTreeMap<Key, u64>>,
    /// Keys of table generations after the first.
    later: Mutex<Vec<(u32, Vec<u8>)>>,
    twice: Mutex<Vec<String>>,
}

impl MemorySink {
    /// The records and deletions that the sink has taken.
    ///
    /// # Panics
    /// If a key came twice.
    pub(crate) fn changes(&self, context: &str) -> Changes {
        let twice = self.twice.lock();
        assert!(twice.is_empty(), "{context}: emitted twice: {twice:?}");
        self.changes.lock().clone()
    }
}

impl MemorySink {
    /// The gsn that each record came with.
    pub(crate) fn gsns(&self) -> BTreeMap<Key, u64> {
        self.gsns.lock().clone()
    }
}

impl MemorySink {
    /// Keys of table generations after the first, in order.
    pub(crate) fn later(&self) -> Vec<(u32, Vec<u8>)> {
        let mut later = self.later.lock().clone();
        later.sort();
        later
    }
}

impl MemorySink {
    fn take(&self, record: Record) {
        let Record { generation, key, value, gsn } = record;
        if generation != 1 {
            return self.later.lock().push((generation, key.1));
        }
        self.gsns.lock().insert(key.clone(), gsn);
        if self.changes.lock().insert(key.clone(), value).is_some() {
            self.twice.lock().push(String::from_utf8_lossy(&key.1).into_owned());
        }
    }
}

impl Sink for MemorySink {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut lane = MemoryLane { sink: self, last: None };
        with(&mut lane);
        lane.settle();
    }
}

struct Record {
    generation: u32,
    key: Key,
    value: Option<(Label, Vec<u8>)>,
    gsn: u64,
}

/// Holds the last record, which may be taken back.
struct MemoryLane<'a> {
    sink: &'a MemorySink,
    last: Option<Record>,
}

impl MemoryLane<'_> {
    fn settle(&mut self) {
        if let Some(record) = self.last.take() {
            self.sink.take(record);
        }
    }
}

impl Lane for MemoryLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.settle();
        self.last = Some(Record {
            generation: record.generation,
            key: (record.table, record.key.to_vec()),
            value: Some((record.value.label(), record.value.to_vec())),
            gsn: record.gsn,
        });
    }
    fn emit_deletion(&mut self, deleted: &DeletedKey<'_>) {
        self.settle();
        self.last = Some(Record {
            generation: deleted.generation,
            key: (deleted.table, deleted.key.to_vec()),
            value: None,
            gsn: deleted.gsn,
        });
    }
    fn take_back(&mut self) {
        assert!(self.last.take().is_some(), "nothing to take back");
    }
}

/// The state of a checkpoint under way, its capture scan included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Rest,
    Prepare,
    Resolve,
    Capture,
    /// Half of the slabs are scanned.
    Halfway,
    Walked,
    Complete,
    RestAgain,
}

impl Step {
    pub(crate) const ALL: [Step; 8] = [
        Step::Rest,
        Step::Prepare,
        Step::Resolve,
        Step::Capture,
        Step::Halfway,
        Step::Walked,
        Step::Complete,
        Step::RestAgain,
    ];
}

/// Takes one checkpoint of a world step by step, on the calling thread.
pub(crate) struct Steps<'w> {
    world: &'w World,
    pub(crate) sink: Arc<MemorySink>,
    as_sink: Arc<dyn Sink>,
    pub(crate) epoch: u64,
    pub(crate) kind: CheckpointKind,
    pub(crate) at: Step,
    walked: usize,
}

impl<'w> Steps<'w> {
    pub(crate) fn new(world: &'w World) -> Self {
        let sink = Arc::new(MemorySink::default());
        Self {
            world,
            as_sink: sink.clone(),
            sink,
            epoch: world.store.driver().now().epoch() + 1,
            kind: match world.scheme().takes_changes() && world.wanted() != Wanted::Full {
                true => CheckpointKind::Partial,
                false => CheckpointKind::Full,
            },
            at: Step::Rest,
            walked: 0,
        }
    }

    /// Moves on until `step`.
    pub(crate) fn to(&mut self, step: Step) {
        while self.at < step {
            let next = Step::ALL[self.at as usize + 1];
            match next {
                Step::Rest => unreachable!("it is the first"),
                Step::Prepare => {
                    self.do_work_left();
                    let driver = self.world.store.driver();
                    driver.choose_changes(self.kind == CheckpointKind::Partial);
                    self.world.store.set_sink(Some(self.as_sink.clone()));
                    self.enter(Phase::Prepare);
                    let scheme = self.world.scheme();
                    let begun = scheme.begin(self.epoch, &*self.world.log());
                    begun.expect("a log without limits");
                    if scheme.takes_changes() {
                        self.pass(|scheme, store, unit, slot| {
                            scheme.settle(store, unit, slot);
                        });
                        self.world.store.end_settling();
                    }
                    if scheme.takes_changes() && self.kind == CheckpointKind::Full {
                        self.world.store.begin_chain();
                        self.visit(0..self.units(), |scheme, store, unit, to| {
                            scheme.before_full(store, unit, to);
                        });
                    }
                }
                Step::Resolve => self.pass_point_of_consistency(),
                Step::Capture => self.enter(Phase::Capture),
                Step::Halfway => self.walk(self.units() / 2),
                Step::Walked => self.walk(self.units()),
                Step::Complete => {
                    let scheme = self.world.scheme();
                    scheme.release(&self.world.store).expect("all was captured");
                    self.enter(Phase::Complete);
                }
                Step::RestAgain => {
                    self.world.store.driver().advance(Phase::Rest);
                    self.world.store.set_sink(None);
                    self.world.cycle().ended(self.epoch, Outcome::Published);
                }
            }
            self.at = next;
        }
    }

    /// What the checkpoint before has left to do.
    fn do_work_left(&self) {
        let (scheme, epoch) = (self.world.scheme(), self.epoch - 1);
        if scheme.has_work_left(epoch) {
            self.visit(0..self.units(), |scheme, store, unit, to| {
                scheme.after_capture(store, unit, to);
            });
            scheme.after_capture_ended(epoch);
        }
    }

    fn units(&self) -> usize {
        self.world.store.group_count()
    }

    fn enter(&self, phase: Phase) {
        self.world.store.driver().advance(phase);
    }

    fn pass_point_of_consistency(&self) {
        let (store, scheme) = (&self.world.store, self.world.scheme());
        let point = scheme.point_of_consistency();
        let stops = !matches!(point, PointOfConsistency::Virtual | PointOfConsistency::Fuzzy);
        let quiesced = stops.then(|| store.driver().quiesce());
        if quiesced.is_some() {
            self.pass(|scheme, store, unit, slot| {
                scheme.at_point_of_consistency(store, unit, slot);
            });
            scheme.hold().expect("memory for a child");
        }
        self.enter(Phase::Resolve);
    }

    /// Calls `visit` for every unit.
    fn pass(&self, visit: impl Fn(&dyn Checkpointer, &Store, usize, usize)) {
        let store = &self.world.store;
        let slot = store.driver().read_sections().claim().expect("a free slot");
        (0..self.units()).for_each(|unit| visit(&**self.world.scheme(), store, unit, slot));
        store.driver().read_sections().unclaim(slot);
    }

    fn walk(&mut self, until: usize) {
        self.visit(self.walked..until, |scheme, store, unit, to| scheme.capture(store, unit, to));
        self.walked = until;
    }

    /// Calls `visit` for units, as a capture thread.
    fn visit(
        &self,
        units: std::ops::Range<usize>,
        visit: impl Fn(&dyn Checkpointer, &Store, usize, &mut dyn Capture),
    ) {
        let read_sections = self.world.store.driver().read_sections();
        let slot = read_sections.claim().expect("a free slot");
        let mut hand = CaptureThread { slot, sink: &self.sink };
        units.for_each(|unit| visit(&**self.world.scheme(), &self.world.store, unit, &mut hand));
        read_sections.unclaim(slot);
    }
}

struct CaptureThread<'a> {
    slot: usize,
    sink: &'a MemorySink,
}

impl Capture for CaptureThread<'_> {
    fn slot(&self) -> usize {
        self.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.sink.with_lane(self.slot, with);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}
