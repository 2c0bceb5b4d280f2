//! A capture by before-image (CALC's protocol) while others commit. Whatever the schedule, the
//! checkpoint holds exactly the commits of the epochs before its own, and each record once. The
//! capture leaves the marks of all cells equal, even if it is given up midway. A checkpoint of
//! changes holds these commits together with the checkpoints that it goes on from. The same holds
//! where commits write the copy of their epoch, beside a copier. So it does where a stop of all commits is
//! the point of consistency. A checkpoint without a point of consistency gives the state of all commits, once
//! a replay has completed it.
//!
//! ```text
//! two committers:  insert, overwrite, patch, grow, delete, reinsert, abort; wait-die; reclaiming, relocation
//! driver:          REST … REST twice, the first time perhaps given up midway; or three times, of changes
//! two walkers:     one unit each at a time, in read sections of their own
//! ```

mod history;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use shuttle::{FailurePersistence, Runner};
use stillpoint_sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use stillpoint_sync::{Mutex, lock_word};

use crate::memory::arena::Kind;
use crate::rules::status::{CAPTURED, NEXT_COPY};
use crate::rules::{DirtyRule, Reuse, StatusChanges, WriteRule, alternate_copy, second_copy};
use crate::{
    Bug, Capture, CellRules, Lane, Mode, Phase, Sink, Store, StoreConfig, TableId, Tx, TxError,
    Worker,
};
use history::{History, Paper, Recorder, State};

const TABLE: TableId = TableId(0);
const KEYS: u8 = 3;
/// Transactions of each of a committer's two workers.
const TRANSACTIONS: u8 = 2;
const SCHEDULES: usize = 10_000;
/// As [`SCHEDULES`], where the rules differ little from others.
const SCHEDULES_FEW: usize = 4_000;
/// Schedules within which each planted bug must be seen.
const SCHEDULES_PLANTED: usize = 200_000;

/// The rules of a store whose commits write the copy of their epoch, while a copier brings the rest over.
const COPIES: CellRules = CellRules {
    copies: 2,
    write: WriteRule::AlternateCopies,
    status_changes: StatusChanges::AtAnyTime,
    reuse: Reuse::OutsideOfCaptures,
    ..CellRules::IN_PLACE
};

/// The rules of a store whose commits write the copy of their epoch, and whose checkpoints may be of
/// changes.
const COPIES_OF_CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenCleanOutsideOfCaptures,
    ..COPIES
};

/// As [`COPIES_OF_CHANGES`], with copy 0 beside the two copies of the epochs.
const COPIES_ALONGSIDE: CellRules =
    CellRules { copies: 3, write: WriteRule::WriteAlongside, ..COPIES_OF_CHANGES };

/// The rules of a store whose commits write the copy that the last stop has chosen.
const SWITCHED: CellRules = CellRules {
    copies: 2,
    write: WriteRule::SwitchCopies,
    status_changes: StatusChanges::WhileQuiesced,
    reuse: Reuse::OutsideOfCaptures,
    ..CellRules::IN_PLACE
};

/// As [`SWITCHED`], for checkpoints of changes.
const SWITCHED_OF_CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenCleanOutsideOfCaptures,
    ..SWITCHED
};

/// The rules of a store whose commits write a second copy, which the scan merges into an image.
const MERGED: CellRules = CellRules {
    copies: 4,
    write: WriteRule::WriteBoth,
    status_changes: StatusChanges::InCapture,
    reuse: Reuse::WhenMerged,
    ..CellRules::IN_PLACE
};

/// The rules of a store whose commits keep the old value in copy 1.
const SHADOWS: CellRules = CellRules {
    copies: 2,
    write: WriteRule::KeepShadow,
    reuse: Reuse::OutsideOfCaptures,
    ..CellRules::BEFORE_IMAGES
};

/// The rules of a store whose commits keep the old value in a pool.
const STORED: CellRules = CellRules { copies: 1, write: WriteRule::StoreStable, ..SHADOWS };

/// As [`STORED`], for checkpoints of changes.
const STORED_OF_CHANGES: CellRules = CellRules { write: WriteRule::StoreStable, ..CHANGES };

/// Bytes of the pool, which has room for the old values of one transaction. So commits wait for the scan.
const STABLE_POOL_BYTES: usize = 3 * 128;

/// Room for one old value. A transaction on two records exceeds it, which gives the checkpoint up.
const SMALL_POOL_BYTES: usize = 2 * 128;

/// The rules of a store whose checkpoints have no point of consistency.
const FUZZY: CellRules = CellRules { reuse: Reuse::OutsideOfCheckpoints, ..CellRules::IN_PLACE };

/// The rules of a store whose checkpoints may be of changes.
const CHANGES: CellRules = CellRules {
    dirty: DirtyRule::ByEpoch,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::WhenClean,
    ..CellRules::BEFORE_IMAGES
};

#[derive(Clone)]
struct World {
    store: Arc<Store>,
    history: Arc<History>,
    bug: Option<Bug>,
    /// State at the last published checkpoint, where checkpoints may be of changes.
    published: Arc<Mutex<Option<State>>>,
    /// Whether the last checkpoint was published.
    is_settled: Arc<AtomicBool>,
    /// What each slab held when it was last looked at: kind, and number of cells.
    slabs: Arc<Mutex<BTreeMap<u64, (u8, usize)>>>,
}

/// Slabs that were found with cells of another kind or size than before, in all schedules. Made of
/// std's atomic, so that the counter adds no order to the model.
static REUSED_SLABS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl World {
    fn new((rules, pool_bytes): (CellRules, usize), bug: Option<Bug>) -> Self {
        let config = StoreConfig {
            max_memory_bytes: 1 << 20,
            workers: 6,
            stable_pool_bytes: Some(pool_bytes),
            ..Default::default()
        };
        let store = Store::new(&config, rules).expect("a model's memory");
        store.add_table(TABLE, 1).expect("a model's memory");
        store.note_loaded_chain(true);
        Self {
            store: Arc::new(store),
            history: Arc::default(),
            bug,
            published: Arc::default(),
            is_settled: Arc::default(),
            slabs: Arc::default(),
        }
    }

    /// Does the copier's work after a capture: brings over the records that no commit has written
    /// in the epoch. Brings over only the records of some slabs if `is_cut_off`.
    fn bring_over(&self, is_cut_off: bool) {
        let read_sections = self.store.driver().read_sections();
        let slot = read_sections.claim().expect("a free slot");
        for slab in 0..self.store.group_count() {
            if self.bug != Some(Bug::NotBroughtOver) && !(is_cut_off && thread_rng().gen_bool(0.5))
            {
                self.store.visit_records(slab, slot, &mut |cell| cell.bring_over());
            }
        }
        read_sections.unclaim(slot);
    }

    /// Settles the marks of the checkpoint before, in PREPARE.
    fn settle(&self) {
        let published = self.is_settled.load(SeqCst) || self.bug == Some(Bug::DirtyForgotten);
        let read_sections = self.store.driver().read_sections();
        let slot = read_sections.claim().expect("a free slot");
        for slab in 0..self.store.group_count() {
            if writes_alternate(self) && !published && self.bug != Some(Bug::NotBroughtOver) {
                self.store.visit_ended_marks(slab, slot, &mut |cell| cell.bring_over());
            }
            self.store.settle_marks(slab, slot, published);
        }
        self.store.end_settling();
        read_sections.unclaim(slot);
    }

    /// A worker that goes on with log `number`.
    fn worker(&self, number: u8) -> Worker {
        let gsn = self.history.positions().get(&number).copied().unwrap_or(0);
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
        for slab in (0..arena.group_count()).filter_map(|index| arena.slab(index)) {
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
                    assert_eq!(mark, now.captured(), "cell {number} has another mark");
                }
            }
        }
    }
}

/// What a transaction does to a key.
#[derive(Clone, Copy, Debug)]
enum Action {
    Put,
    PutLonger,
    /// The value is far longer than those before and after.
    PutRoomy,
    PutLarge,
    Patch,
    /// Another deadline alone. The first one finds no room in the cell.
    Until,
    Delete,
    DeleteAndPut,
    Read,
    /// Locks the record as a writer does, and does not change it. The scan may claim the record
    /// meanwhile.
    LockOnly,
}

const DEEDS: [Action; 10] = [
    Action::Put,
    Action::PutLonger,
    Action::PutRoomy,
    Action::PutLarge,
    Action::Patch,
    Action::Until,
    Action::Delete,
    Action::DeleteAndPut,
    Action::Read,
    Action::LockOnly,
];

fn run(tx: &mut Tx<'_>, key: u8, deed: Action, tag: u8) -> Result<(), TxError> {
    let key = [key];
    match deed {
        Action::Put => tx.put_tagged(TABLE, &key, tag, &[tag; 20]),
        // The value is too long for its cell and gets a larger one. If the cell must not be replaced,
        // the value gets blocks.
        Action::PutLonger => tx.put_tagged(TABLE, &key, tag, &[tag; 36]),
        // A short value has a smaller cell afterwards.
        Action::PutRoomy => tx.put_tagged(TABLE, &key, tag, &[tag; 60]),
        Action::PutLarge => tx.put_tagged(TABLE, &key, tag, &[tag; 61]),
        Action::Patch => match tx.get(TABLE, &key)? {
            Some(_) => tx.patch(TABLE, &key, 3, &[tag; 14]),
            None => Ok(()),
        },
        Action::Until => {
            let slot = tx.key(TABLE, &key, Mode::Write)?;
            match tx.value(slot) {
                Some(_) => tx.set_slot_deadline(slot, tag.into()),
                None => Ok(()),
            }
        }
        Action::Delete => tx.delete(TABLE, &key).map(|_| ()),
        Action::DeleteAndPut => {
            tx.delete(TABLE, &key)?;
            tx.put_tagged(TABLE, &key, tag, &[tag; 20])
        }
        Action::Read => tx.get(TABLE, &key).map(|_| ()),
        Action::LockOnly => tx.key(TABLE, &key, Mode::Write).map(|_| ()),
    }
}

/// Random transactions of one or two keys. The second worker takes over the absent cells that the
/// first has left.
fn commit(world: &World, number: u8) {
    for life in 0..2 {
        let mut worker = world.worker(number);
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
            // The idle worker frees cells, so that slabs become empty and serve other sizes.
            match thread_rng().gen_range(0..6) {
                0 | 1 => drop(worker.idle()),
                2 => {
                    worker.local.relocate_all();
                    worker.idle();
                }
                _ => {}
            }
        }
    }
}

/// State that the capture threads of a checkpoint share.
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
            let store = &self.world.store;
            let now = store.driver().now();
            if let Some(stable) = stable_copy(&self.world, now.epoch()) {
                store.scan_wanted(unit, &mut hand, &mut |cell| cell.take_copy(stable));
            } else if store.rules().write == WriteRule::KeepShadow {
                store.capture_or_shadow(unit, &mut hand);
            } else if store.rules().write == WriteRule::StoreStable {
                store.capture_or_stable(unit, &mut hand);
            } else if store.rules().write == WriteRule::SwitchCopies {
                if !hand.is_abandoned() {
                    store.scan_wanted(unit, &mut hand, &mut |cell| {
                        cell.take_copy(usize::from(cell.status() & NEXT_COPY == 0));
                    });
                }
            } else if store.rules().write == WriteRule::WriteBoth {
                store.capture_merged(unit, &mut hand);
            } else if is_fuzzy(&self.world) {
                store.scan_records(unit, &mut hand, &mut |cell| {
                    let _ = cell.take_stamped();
                });
            } else if !hand.is_abandoned() || !now.is_of_changes() {
                // A checkpoint of changes that is given up may leave cells unvisited, since the
                // next one needs no marks of it.
                store.capture_unmarked(unit, &mut hand);
            }
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

/// Takes a checkpoint, which is given up after `gives_up` units. The checkpoint is one of changes
/// if the store has dirty marks and a checkpoint was published before.
fn checkpoint(world: &World, gives_up: Option<usize>) {
    let driver = world.store.driver();
    let paper = Arc::new(Paper::default());
    world.store.set_sink(Some(paper.clone()));
    let wants_changes = takes_changes(world) && thread_rng().gen_range(0..4) != 0;
    let base = world.published.lock().clone().filter(|_| wants_changes);
    driver.choose_changes(base.is_some());
    driver.advance(Phase::Prepare);
    let positions = world.history.positions();
    if takes_changes(world) {
        world.settle();
        if base.is_none() {
            world.store.begin_chain();
        }
    }
    // Before a full checkpoint every record is brought over.
    if writes_alternate(world) && base.is_none() {
        world.bring_over(false);
    }
    let epoch = pass_point(world);
    driver.advance(Phase::Capture);
    let walk = Arc::new(CaptureScan {
        world: world.clone(),
        paper: paper.clone(),
        next: AtomicUsize::new(0),
        units: world.store.group_count(),
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
    if writes_alternate(world) {
        if !takes_changes(world) {
            world.bring_over(true);
        }
    } else if is_fuzzy(world) {
        if gives_up.is_none() {
            let (all, replayed) = world.history.replayed(&paper, &positions);
            assert_eq!(replayed, all, "checkpoint {epoch}");
        }
        return;
    } else if has_marks(world) {
        let slot = driver.read_sections().claim().expect("a free slot");
        world.assert_marked(slot);
        driver.read_sections().unclaim(slot);
    }
    // A commit beyond the pool has spoilt the checkpoint.
    let is_published = gives_up.is_none() && !driver.is_spoilt(epoch);
    world.is_settled.store(is_published, SeqCst);
    world.store.end_chain(is_published);
    if is_published {
        let (state, _) = paper.state_after(base.unwrap_or_default());
        assert_eq!(state, world.history.state_before(epoch), "checkpoint {epoch}");
        *world.published.lock() = Some(state);
    } else if world.store.rules().write == WriteRule::StoreStable {
        paper.assert_part_of(&world.history.state_before(epoch));
    }
}

/// Passes the point of consistency. Under some rules all commits stop for it. Then they get other copies to
/// write, or have all written the copy of the ended epoch.
fn pass_point(world: &World) -> u64 {
    let (store, driver) = (&world.store, world.store.driver());
    if !matches!(store.rules().write, WriteRule::SwitchCopies | WriteRule::WriteBoth) {
        return driver.advance(Phase::Resolve).epoch();
    }
    let slot = driver.read_sections().claim().expect("a free slot");
    let quiesced = driver.quiesce();
    let switches = store.rules().write == WriteRule::SwitchCopies;
    if switches && world.bug != Some(Bug::NextCopyKept) {
        (0..store.group_count()).for_each(|slab| store.switch_copies(slab, slot));
    }
    let epoch = driver.advance(Phase::Resolve).epoch();
    drop(quiesced);
    driver.read_sections().unclaim(slot);
    epoch
}

/// Whether a full checkpoint marks each record that it has.
fn has_marks(world: &World) -> bool {
    matches!(
        world.store.rules().write,
        WriteRule::SaveBeforeImage | WriteRule::KeepShadow | WriteRule::StoreStable
    )
}

fn writes_alternate(world: &World) -> bool {
    stable_copy(world, 0).is_some()
}

/// The copy that a capture in this epoch reads, under rules that name one for all cells.
fn stable_copy(world: &World, epoch: u64) -> Option<usize> {
    match world.store.rules().write {
        WriteRule::AlternateCopies => Some(alternate_copy(epoch + 1)),
        WriteRule::WriteAlongside => Some(second_copy(epoch + 1)),
        _ => None,
    }
}

fn is_fuzzy(world: &World) -> bool {
    world.store.rules().reuse == Reuse::OutsideOfCheckpoints
}

fn takes_changes(world: &World) -> bool {
    world.store.rules().dirty == DirtyRule::ByEpoch
}

fn model(rules: (CellRules, usize), bug: Option<Bug>) {
    let world = World::new(rules, bug);
    if let Some(bug) = bug {
        world.store.driver().plant(bug);
    }
    let mut setup = world.worker(0);
    for key in 0..2 {
        setup.transact(|tx| tx.put_tagged(TABLE, &[key], 77, &[77; 20])).expect("memory");
    }
    drop(setup);
    if takes_changes(&world) {
        checkpoint(&world, None);
    }
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

fn explore(scheduler: impl Scheduler + 'static, rules: CellRules, bug: Option<Bug>) {
    explore_with(scheduler, (rules, STABLE_POOL_BYTES), bug);
}

fn explore_with(scheduler: impl Scheduler + 'static, rules: (CellRules, usize), bug: Option<Bug>) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 17;
    if bug.is_some() {
        config.failure_persistence = FailurePersistence::None;
    }
    Runner::new(scheduler, config).run(move || model(rules, bug));
}

#[test]
fn a_checkpoint_is_the_state_at_its_point_of_consistency() {
    explore(RandomScheduler::new(SCHEDULES), CellRules::BEFORE_IMAGES, None);
    explore(PctScheduler::new(4, SCHEDULES), CellRules::BEFORE_IMAGES, None);
    assert!(REUSED_SLABS.load(SeqCst) > 0, "no slab served two sizes");
}

#[test]
fn a_checkpoint_of_changes_goes_on_from_the_one_before() {
    explore(RandomScheduler::new(SCHEDULES), CHANGES, None);
    explore(PctScheduler::new(4, SCHEDULES), CHANGES, None);
}

#[test]
fn a_copier_brings_over_what_no_commit_writes() {
    explore(RandomScheduler::new(SCHEDULES), COPIES, None);
    explore(PctScheduler::new(4, SCHEDULES), COPIES, None);
}

#[test]
fn a_checkpoint_of_changes_has_the_copy_of_its_epoch() {
    explore(RandomScheduler::new(SCHEDULES), COPIES_OF_CHANGES, None);
    explore(PctScheduler::new(4, SCHEDULES), COPIES_OF_CHANGES, None);
}

#[test]
fn a_checkpoint_of_changes_has_the_copy_beside_the_first() {
    explore(RandomScheduler::new(SCHEDULES_FEW), COPIES_ALONGSIDE, None);
    explore(PctScheduler::new(4, SCHEDULES_FEW), COPIES_ALONGSIDE, None);
}

#[test]
fn a_checkpoint_has_the_shadows_of_overwritten_values() {
    explore(RandomScheduler::new(SCHEDULES_FEW), SHADOWS, None);
    explore(PctScheduler::new(4, SCHEDULES_FEW), SHADOWS, None);
}

#[test]
fn a_checkpoint_has_the_copy_that_commits_write_no_more() {
    for rules in [SWITCHED, SWITCHED_OF_CHANGES] {
        explore(RandomScheduler::new(SCHEDULES_FEW), rules, None);
        explore(PctScheduler::new(4, SCHEDULES_FEW), rules, None);
    }
}

#[test]
fn a_checkpoint_merges_the_second_copies_into_an_image() {
    explore(RandomScheduler::new(SCHEDULES_FEW), MERGED, None);
    explore(PctScheduler::new(4, SCHEDULES_FEW), MERGED, None);
}

#[test]
fn a_checkpoint_has_the_stable_versions_of_overwritten_values() {
    for rules in [STORED, STORED_OF_CHANGES] {
        explore(RandomScheduler::new(SCHEDULES_FEW), rules, None);
        explore(PctScheduler::new(4, SCHEDULES_FEW), rules, None);
    }
}

/// Beyond the pool a commit goes on without versions. The scan must not take what it overwrites for a
/// value: it would follow a reference that never was.
#[test]
fn a_commit_beyond_the_pool_is_not_captured() {
    for rules in [STORED, STORED_OF_CHANGES] {
        let small = (rules, SMALL_POOL_BYTES);
        explore_with(RandomScheduler::new(SCHEDULES_FEW), small, None);
        explore_with(PctScheduler::new(4, SCHEDULES_FEW), small, None);
    }
}

#[test]
fn a_replay_completes_a_fuzzy_checkpoint() {
    explore(RandomScheduler::new(SCHEDULES), FUZZY, None);
    explore(PctScheduler::new(4, SCHEDULES), FUZZY, None);
}

/// Bugs of scans and stops that no model makes, one that takes a small pool, and those of keys under a key.
const OF_OTHERS: [Bug; 5] = [
    Bug::ParentRead,
    Bug::StopEndsEarly,
    Bug::ExceededUnclaimed,
    Bug::ParentNotReadAgain,
    Bug::ParentEndedFirst,
];

/// Bugs in the code of cells of several copies.
const OF_COPIES: [Bug; 5] = [
    Bug::WriteRuleForgotten,
    Bug::CopyReused,
    Bug::NotBroughtOver,
    Bug::CopyNotAwaited,
    Bug::DeadlineNotCopied,
];

/// Bugs in the code of dirty marks.
const OF_CHANGES: [Bug; 8] = [
    Bug::DeadlineUnmarked,
    Bug::DirtyForgotten,
    Bug::TombstoneDropped,
    Bug::DirtyCellReused,
    Bug::MarkNotNoted,
    Bug::ChainForgotten,
    Bug::MovedWithoutStatus,
    Bug::RelocatedWithoutMark,
];

#[test]
fn every_planted_bug_is_seen() {
    for bug in Bug::ALL.into_iter().filter(|bug| !OF_OTHERS.contains(bug)) {
        let rules = match bug {
            _ if OF_CHANGES.contains(&bug) => CHANGES,
            _ if OF_COPIES.contains(&bug) => COPIES,
            Bug::ShadowLost => SHADOWS,
            Bug::NextCopyKept => SWITCHED,
            _ => CellRules::BEFORE_IMAGES,
        };
        assert!(is_seen(bug, rules), "{bug:?} was not seen in {SCHEDULES_PLANTED} schedules");
    }
    assert!(is_seen(Bug::TombstoneDropped, FUZZY), "a fuzzy checkpoint needs no deletions?");
    for bug in [Bug::NotBroughtOver, Bug::CopyReused, Bug::DirtyForgotten] {
        assert!(
            is_seen(bug, COPIES_OF_CHANGES),
            "{bug:?} was not seen where copies are of changes"
        );
    }
    for bug in [Bug::NotBroughtOver, Bug::CopyNotAwaited] {
        assert!(is_seen(bug, COPIES_ALONGSIDE), "{bug:?} was not seen beside copy 0");
    }
    for (bug, rules) in [
        (Bug::ShadowLost, STORED),
        (Bug::ShadowLost, STORED_OF_CHANGES),
        (Bug::CopyReused, STORED),
        (Bug::CopyReused, SWITCHED),
        (Bug::CopyNotAwaited, COPIES_OF_CHANGES),
        (Bug::NextCopyKept, SWITCHED_OF_CHANGES),
        (Bug::WriteRuleForgotten, SWITCHED),
        (Bug::WriteRuleForgotten, MERGED),
    ] {
        assert!(is_seen(bug, rules), "{bug:?} was not seen with {rules:?}");
    }
    // A lock that is given back by a plain store loses what others change in CAPTURE, in PREPARE, or at
    // any time.
    for rules in [STORED, CHANGES, SWITCHED_OF_CHANGES, COPIES_OF_CHANGES, COPIES, MERGED] {
        assert!(is_seen(Bug::StatusLost, rules), "a lost status was not seen with {rules:?}");
    }
    for rules in [STORED, STORED_OF_CHANGES] {
        let small = (rules, SMALL_POOL_BYTES);
        assert!(is_seen_in(Bug::ExceededUnclaimed, small), "not seen beyond the pool: {rules:?}");
    }
}

fn is_seen(bug: Bug, rules: CellRules) -> bool {
    is_seen_in(bug, (rules, STABLE_POOL_BYTES))
}

fn is_seen_in(bug: Bug, rules: (CellRules, usize)) -> bool {
    let explored = catch_unwind(AssertUnwindSafe(|| {
        explore_with(RandomScheduler::new(SCHEDULES_PLANTED), rules, Some(bug));
    }));
    explored.is_err()
}
