//! Models of a capture with before-images (CALC's protocol) while others commit. In every schedule
//! the checkpoint holds exactly the commits of the epochs before its own, and each record once. All
//! marks are equal afterwards, also if the capture is given up midway.
//!
//! ```text
//! two committers:  insert, overwrite, patch, grow, delete, reinsert, abort; wait-die; reclaiming
//! driver:          REST … REST twice, the first time perhaps given up midway
//! two walkers:     one unit each at a time, in read sections of their own
//! ```

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use shuttle::{FailurePersistence, Runner};
use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use stillpoint_sync::{Mutex, lock_word};

use crate::memory::arena::Kind;
use crate::rules::{captured_in, status::CAPTURED};
use crate::{
    Bug, Capture, CellRules, Change, Commit, CommitLog, DeletedKey, Lane, LogRefused, Mode, Phase,
    RecordImage, Sink, Store, StoreConfig, TableId, Tx, TxError, Worker,
};

const TABLE: TableId = TableId(0);
const KEYS: u8 = 3;
/// Transactions of a committer, by each of its two workers.
const TRANSACTIONS: u8 = 2;
const SCHEDULES: usize = 10_000;
/// Number of schedules within which each planted bug must be detected.
const SCHEDULES_PLANTED: usize = 20_000;

type Value = (u8, Vec<u8>);
type State = BTreeMap<Vec<u8>, Value>;

/// A sink that keeps records in the order of their arrival.
#[derive(Default)]
struct Paper(Mutex<Vec<(Vec<u8>, Value)>>);

impl Sink for Paper {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut lines = Lines(Vec::new());
        with(&mut lines);
        self.0.lock().append(&mut lines.0);
    }
    fn has_room(&self) -> bool {
        thread_rng().gen_range(0..4) != 0
    }
    fn wait_for_room(&self, _: usize) {
        thread::yield_now();
    }
}

/// The records of one lane during one call.
struct Lines(Vec<(Vec<u8>, Value)>);

impl Lane for Lines {
    fn emit(&mut self, record: &RecordImage<'_>) {
        // The copy goes word by word, so that other threads may run in between.
        let value = (record.value.tag(), record.value.to_vec());
        self.0.push((record.key.to_vec(), value));
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a checkpoint of everything");
    }
    fn take_back(&mut self) {
        assert!(self.0.pop().is_some(), "nothing to take back");
    }
}

impl Paper {
    fn state(&self) -> State {
        let mut state = State::new();
        for (key, value) in self.0.lock().drain(..) {
            let twice = state.insert(key.clone(), value);
            assert!(twice.is_none(), "key {key:?} was emitted twice");
        }
        state
    }
}

/// A commit: stamp, epoch and writes.
type Committed = (Stamp, u64, Vec<(Vec<u8>, Op)>);

enum Op {
    Put(Value),
    Delete,
    Patch(usize, Vec<u8>),
}

/// All commits, unordered.
#[derive(Default)]
struct History(Mutex<Vec<Committed>>);

impl History {
    /// The state after the commits of epochs below `epoch`.
    fn state_before(&self, epoch: u64) -> State {
        let mut commits = self.0.lock();
        commits.sort_by_key(|(stamp, _, _)| (stamp.gsn(), stamp.log()));
        let mut state = State::new();
        let early = commits.iter().filter(|commit| commit.1 < epoch);
        for (key, op) in early.flat_map(|commit| &commit.2) {
            match op {
                Op::Put(value) => {
                    state.insert(key.clone(), value.clone());
                }
                Op::Delete => {
                    state.remove(key);
                }
                Op::Patch(offset, bytes) => {
                    let (_, value) = state.get_mut(key).expect("a patch needs a value");
                    value[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        state
    }
}

/// A log that remembers.
struct Recorder {
    number: u8,
    gsn: u64,
    history: Arc<History>,
}

impl CommitLog for Recorder {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        // The commit waits outside of its read section, and phases pass meanwhile.
        if thread_rng().gen_range(0..4) == 0 {
            return Err(LogRefused::NoRoom);
        }
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max().unwrap_or(0);
        self.gsn = self.gsn.max(touched) + 1;
        let stamp = Stamp::new(self.gsn, self.number);
        let op = |change| match change {
            Change::Put { tag, value } => Op::Put((tag, value.to_vec())),
            Change::Delete => Op::Delete,
            Change::Patch(ranges) => {
                let (offset, bytes) = ranges.only().expect("one range");
                Op::Patch(offset, bytes.to_vec())
            }
        };
        let writes = commit.writes.iter().map(|write| (write.key.to_vec(), op(write.change)));
        self.history.0.lock().push((stamp, commit.epoch, writes.collect()));
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        thread::yield_now();
        Ok(())
    }

    /// Everything counts as closed, so that absent cells are reclaimed and used again as early as
    /// possible.
    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}

#[derive(Clone)]
struct World {
    store: Arc<Store>,
    history: Arc<History>,
    bug: Option<Bug>,
    /// Kind and number of cells of each slab at the last visit.
    slabs: Arc<Mutex<BTreeMap<u64, (u8, usize)>>>,
}

/// Number of slabs found with cells of another kind or size than before, over all schedules. Not an
/// atomic of the model checker, since it orders nothing.
static REUSED_SLABS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl World {
    fn new(bug: Option<Bug>) -> Self {
        let config = StoreConfig { max_memory_bytes: 1 << 20, workers: 6, ..Default::default() };
        let store = Store::new(&config, CellRules::BEFORE_IMAGES).expect("a model's memory");
        store.add_table(TABLE, 1).expect("a model's memory");
        Self { store: Arc::new(store), history: Arc::default(), bug, slabs: Arc::default() }
    }

    /// A worker that continues log `number` after gsn `gsn`.
    fn worker(&self, number: u8, gsn: u64) -> Worker {
        let log = Recorder { number, gsn, history: self.history.clone() };
        Worker::new(self.store.clone(), Box::new(log)).expect("a free slot")
    }

    /// Outside of checkpoints every record has the mark of the epoch.
    fn assert_marked(&self, slot: usize) {
        let driver = self.store.driver();
        let _read_section = driver.read_sections().read_section(slot);
        let now = driver.now();
        assert_eq!(now.phase(), Phase::Rest);
        let arena = &self.store.memory().arena;
        let mut slabs = self.slabs.lock();
        for slab in (0..arena.slab_count()).filter_map(|index| arena.slab(index)) {
            let numbers: Vec<u64> = slab.numbers(0..usize::MAX).collect();
            let held = (slab.kind, numbers.len());
            if slabs.insert(numbers[0], held).is_some_and(|before| before != held) {
                REUSED_SLABS.fetch_add(1, SeqCst);
            }
            if slab.kind == Kind::Block as u8 {
                continue;
            }
            for number in numbers {
                let cell = self.store.cell(number);
                if cell.is_record() {
                    let mark = lock_word::status(cell.lock().load(SeqCst)) & CAPTURED;
                    assert_eq!(mark, captured_in(now.epoch()), "cell {number} has another mark");
                }
            }
        }
    }
}

/// Action of a transaction on a key.
#[derive(Clone, Copy, Debug)]
enum Action {
    Put,
    PutLonger,
    Patch,
    Delete,
    DeleteAndPut,
    Read,
    /// Locks the key as a writer does, and does not change it. The scan may claim it meanwhile.
    LockOnly,
}

const DEEDS: [Action; 7] = [
    Action::Put,
    Action::PutLonger,
    Action::Patch,
    Action::Delete,
    Action::DeleteAndPut,
    Action::Read,
    Action::LockOnly,
];

fn run(tx: &mut Tx<'_>, key: u8, deed: Action, tag: u8) -> Result<(), TxError> {
    let key = [key];
    match deed {
        Action::Put => tx.put_tagged(TABLE, &key, tag, &[tag; 20]),
        // The value of a present record leaves the cell. An absent record gets a larger cell.
        Action::PutLonger => tx.put_tagged(TABLE, &key, tag, &[tag; 36]),
        Action::Patch => match tx.get(TABLE, &key)? {
            Some(_) => tx.patch(TABLE, &key, 3, &[tag; 14]),
            None => Ok(()),
        },
        Action::Delete => tx.delete(TABLE, &key).map(|_| ()),
        Action::DeleteAndPut => {
            tx.delete(TABLE, &key)?;
            tx.put_tagged(TABLE, &key, tag, &[tag; 20])
        }
        Action::Read => tx.get(TABLE, &key).map(|_| ()),
        Action::LockOnly => tx.key(TABLE, &key, Mode::Write).map(|_| ()),
    }
}

/// Random transactions of one or two keys. The second worker takes over the garbage of the first.
fn commit(world: &World, number: u8) {
    for life in 0..2 {
        let mut worker = world.worker(number, u64::from(life) * 1000);
        for turn in 0..TRANSACTIONS {
            let tag = 1 + number * 2 * TRANSACTIONS + life * TRANSACTIONS + turn;
            let deed = || DEEDS[thread_rng().gen_range(0..DEEDS.len())];
            let key = thread_rng().gen_range(0..KEYS);
            let deeds = [(key, deed()), ((key + 1) % KEYS, deed())];
            let count = thread_rng().gen_range(1..=2);
            let aborts = thread_rng().gen_range(0..8) == 0;
            let ended = worker.transact(|tx| {
                for &(key, deed) in &deeds[..count] {
                    run(tx, key, deed, tag)?;
                }
                if aborts { Err(TxError::abandon("as the model wants it")) } else { Ok(()) }
            });
            assert_eq!(ended.is_err(), aborts, "{ended:?}");
            // Cells of another size, so that slabs become empty and serve other sizes.
            if thread_rng().gen_range(0..3) == 0 {
                worker.idle();
            }
        }
    }
}

/// State shared by the capture threads of a checkpoint.
struct CaptureScan {
    world: World,
    paper: Arc<Paper>,
    next: AtomicUsize,
    units: usize,
    abandoned: AtomicBool,
}

impl CaptureScan {
    fn walk(&self) {
        let read_sections = self.world.store.driver().read_sections();
        let slot = read_sections.claim().expect("a free slot");
        let mut hand = CaptureThread { walk: self, slot };
        loop {
            let unit = self.next.fetch_add(1, SeqCst);
            let forgets = self.world.bug == Some(Bug::MarksForgotten);
            if unit >= self.units || forgets && hand.is_abandoned() {
                break;
            }
            self.world.store.capture_unmarked(unit, &mut hand);
        }
        read_sections.unclaim(slot);
    }
}

struct CaptureThread<'a> {
    walk: &'a CaptureScan,
    slot: usize,
}

impl Capture for CaptureThread<'_> {
    fn slot(&self) -> usize {
        self.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.walk.paper.with_lane(self.slot, with);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        self.walk.abandoned.load(SeqCst)
    }
}

/// Takes a checkpoint. With `gives_up`, the checkpoint is given up after that number of units.
fn checkpoint(world: &World, gives_up: Option<usize>) {
    let driver = world.store.driver();
    let paper = Arc::new(Paper::default());
    world.store.set_sink(Some(paper.clone()));
    driver.advance(Phase::Prepare);
    let epoch = driver.advance(Phase::Resolve).epoch();
    driver.advance(Phase::Capture);
    let walk = Arc::new(CaptureScan {
        world: world.clone(),
        paper: paper.clone(),
        next: AtomicUsize::new(0),
        units: world.store.slab_count(),
        abandoned: AtomicBool::new(false),
    });
    let others = walk.clone();
    let walker = thread::spawn(move || others.walk());
    if let Some(units) = gives_up {
        while walk.next.load(SeqCst) < units.min(walk.units) {
            thread::yield_now();
        }
        walk.abandoned.store(true, SeqCst);
    }
    walk.walk();
    walker.join().expect("no panic");
    driver.advance(Phase::Complete);
    driver.advance(Phase::Rest);
    world.store.set_sink(None);
    let slot = driver.read_sections().claim().expect("a free slot");
    world.assert_marked(slot);
    driver.read_sections().unclaim(slot);
    if gives_up.is_none() {
        assert_eq!(paper.state(), world.history.state_before(epoch), "checkpoint {epoch}");
    }
}

fn model(bug: Option<Bug>) {
    let world = World::new(bug);
    if let Some(bug) = bug {
        world.store.driver().plant(bug);
    }
    let mut setup = world.worker(0, 0);
    for key in 0..2 {
        setup.transact(|tx| tx.put_tagged(TABLE, &[key], 77, &[77; 20])).expect("memory");
    }
    drop(setup);
    let committers = [1, 2].map(|number| {
        let world = world.clone();
        thread::spawn(move || commit(&world, number))
    });
    let gives_up = Some(thread_rng().gen_range(0..4)).filter(|&units| units < 3);
    checkpoint(&world, gives_up);
    checkpoint(&world, None);
    for committer in committers {
        committer.join().expect("no panic");
    }
    // A checkpoint without concurrent commits holds everything.
    checkpoint(&world, None);
}

fn explore(scheduler: impl Scheduler + 'static, bug: Option<Bug>) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 17;
    if bug.is_some() {
        config.failure_persistence = FailurePersistence::None;
    }
    Runner::new(scheduler, config).run(move || model(bug));
}

#[test]
fn a_checkpoint_is_the_state_at_its_point_of_consistency() {
    explore(RandomScheduler::new(SCHEDULES), None);
    explore(PctScheduler::new(4, SCHEDULES), None);
    assert!(REUSED_SLABS.load(SeqCst) > 0, "no slab served two sizes");
}

/// Bugs in the code of cells of several copies and of dirty marks, which this store does not use.
const OF_OTHER_RULES: [Bug; 4] =
    [Bug::NextCopyKept, Bug::WriteRuleForgotten, Bug::CopyReused, Bug::DirtyForgotten];

#[test]
fn every_planted_bug_is_seen() {
    for bug in Bug::ALL.into_iter().filter(|bug| !OF_OTHER_RULES.contains(bug)) {
        let explored = catch_unwind(AssertUnwindSafe(|| {
            explore(RandomScheduler::new(SCHEDULES_PLANTED), Some(bug));
        }));
        assert!(explored.is_err(), "{bug:?} was not seen in {SCHEDULES_PLANTED} schedules");
    }
}
