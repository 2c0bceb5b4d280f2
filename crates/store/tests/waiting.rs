//! Tests of a commit that finds no room. The commit waits with its locks, outside of its read
//! section, so no grace period and no phase waits for it. The attempt after the wait reads the
//! phase anew.

mod common;

use common::{Gathered, store_with, walk};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{
    CellRules, Commit, CommitLog, KeySet, Lane, LogRefused, Mode, NoLog, Phase, Procedure,
    RUNS_MAX, Replaced, Shortage, Sink, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);
/// Number of yields after which a test assumes that an event does not happen.
const YIELDS: usize = 20_000;

/// A door at which commits wait.
#[derive(Debug, Default)]
struct Door {
    open: AtomicBool,
    fails: AtomicBool,
    /// Number of commits that have reached the door.
    waited: AtomicU64,
}

impl Door {
    fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    fn wait(&self) {
        self.waited.fetch_add(1, SeqCst);
        while !self.is_open() {
            std::thread::yield_now();
        }
    }

    /// Waits until a commit waits at the door.
    fn await_commit(&self) {
        while self.waited.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A log behind a door, which notes the epoch of each commit.
struct DoorLog {
    door: Arc<Door>,
    epochs: Arc<Mutex<Vec<u64>>>,
    gsn: u64,
}

impl CommitLog for DoorLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        if !self.door.is_open() {
            return Err(LogRefused::NoRoom);
        }
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max();
        self.gsn = self.gsn.max(touched.unwrap_or(0)) + 1;
        self.epochs.lock().push(commit.epoch);
        Ok(Stamp::new(self.gsn, 1))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        self.door.wait();
        if self.door.fails.load(SeqCst) {
            return Err(LogRefused::Refused("the disk is gone".into()));
        }
        Ok(())
    }

    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}

/// A sink behind a door, which passes records on to another sink.
struct DoorSink(Arc<Door>, Arc<Gathered>);

impl Sink for DoorSink {
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.1.with_lane(lane, with);
    }
    fn has_room(&self) -> bool {
        self.0.is_open()
    }
    fn wait_for_room(&self, _: usize) {
        self.0.wait();
    }
}

/// Gives a key a value, and counts its runs.
struct Put {
    key: &'static [u8],
    value: Vec<u8>,
    runs: u64,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Put {
    fn new(key: &'static [u8], value: &[u8]) -> Self {
        Self { key, value: value.to_vec(), runs: 0, ended: None }
    }
}

impl Procedure for Put {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(T, self.key, Mode::Write, self.value.len());
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.runs += 1;
        tx.put_slot(Slot(0), &self.value)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

struct World {
    store: Arc<Store>,
    gathered: Arc<Gathered>,
    door: Arc<Door>,
    epochs: Arc<Mutex<Vec<u64>>>,
}

impl World {
    /// A store with one record, written before the door closes.
    fn new() -> Self {
        let gathered = Arc::new(Gathered::default());
        let store = store_with(64 << 20, 8, 1, CellRules::BEFORE_IMAGES);
        let world = Self { store, gathered, door: Arc::default(), epochs: Arc::default() };
        world.door.open.store(true, SeqCst);
        let mut first = [Put::new(b"key", b"before")];
        world.worker().execute(&mut first[..]);
        assert!(matches!(first[0].ended, Some(Ok(Some(_)))));
        world.door.open.store(false, SeqCst);
        world.epochs.lock().clear();
        world
    }

    fn worker(&self) -> Worker {
        let (door, epochs) = (self.door.clone(), self.epochs.clone());
        Worker::new(self.store.clone(), Box::new(DoorLog { door, epochs, gsn: 1 })).expect("a slot")
    }

    /// Runs two transactions as one batch on a thread of their own. The first one waits at the
    /// door.
    fn put_behind_the_door(&self) -> stillpoint_io::JoinHandle<[Put; 2]> {
        let mut worker = self.worker();
        let commit = move || {
            let mut batch = [Put::new(b"key", b"after"), Put::new(b"other", b"too")];
            worker.execute(&mut batch[..]);
            batch
        };
        let thread = stillpoint_io::spawn("committer", commit).expect("a thread");
        self.door.await_commit();
        thread
    }

    fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let seen = self.worker().read(T, key, &mut out).expect("the table");
        seen.map(|_| out)
    }
}

fn assert_committed(batch: &[Put; 2]) {
    for put in batch {
        assert!(matches!(put.ended, Some(Ok(Some(_)))), "{:?}", put.ended);
        assert_eq!(put.runs, 1, "a declared transaction runs once");
    }
}

/// Whether a grace period that begins now passes within many yields.
fn a_grace_period_passes(store: &Store) -> bool {
    let read_sections = store.driver().read_sections();
    let mut token = read_sections.token();
    (0..YIELDS).any(|_| {
        std::thread::yield_now();
        read_sections.has_passed(&mut token)
    })
}

#[test]
fn no_grace_period_and_no_phase_waits_for_a_commit_without_room_in_the_log() {
    let world = World::new();
    let store = &world.store;
    let waiting = world.put_behind_the_door();
    assert!(a_grace_period_passes(store), "the commit waits inside of its read section");
    // The point of consistency passes while the commit waits: the commit belongs to the new epoch.
    let epoch = store.driver().now().epoch();
    store.set_sink(Some(world.gathered.clone()));
    for phase in [Phase::Prepare, Phase::Resolve, Phase::Capture] {
        store.driver().advance(phase);
    }
    assert_eq!(world.value(b"key").as_deref(), Some(&b"before"[..]));
    world.door.open.store(true, SeqCst);
    assert_committed(&waiting.join().expect("no panic"));
    assert_eq!(*world.epochs.lock(), [epoch + 1, epoch + 1]);
    walk(store, &world.gathered);
    for phase in [Phase::Complete, Phase::Rest] {
        store.driver().advance(phase);
    }
    assert_eq!(world.gathered.saved.load(SeqCst), 1, "the before-image of the overwritten record");
    let checkpoint = world.gathered.contents(store);
    assert_eq!(checkpoint.len(), 1);
    assert_eq!(checkpoint[&(0, b"key".to_vec())].1, b"before");
    assert_eq!(world.value(b"key").as_deref(), Some(&b"after"[..]));
}

#[test]
fn no_grace_period_waits_for_a_commit_without_room_in_the_sink() {
    let world = World::new();
    let store = &world.store;
    store.set_sink(Some(Arc::new(DoorSink(world.door.clone(), world.gathered.clone()))));
    for phase in [Phase::Prepare, Phase::Resolve, Phase::Capture] {
        store.driver().advance(phase);
    }
    let waiting = world.put_behind_the_door();
    assert!(a_grace_period_passes(store), "the commit waits inside of its read section");
    assert_eq!(world.gathered.saved.load(SeqCst), 0);
    world.door.open.store(true, SeqCst);
    assert_committed(&waiting.join().expect("no panic"));
    walk(store, &world.gathered);
    for phase in [Phase::Complete, Phase::Rest] {
        store.driver().advance(phase);
    }
    assert_eq!(world.gathered.contents(store)[&(0, b"key".to_vec())].1, b"before");
}

#[test]
fn tables_are_not_replaced_while_a_commit_waits() {
    let world = World::new();
    let waiting = world.put_behind_the_door();
    let is_replaced = Arc::new(AtomicBool::new(false));
    let (store, done) = (world.store.clone(), is_replaced.clone());
    let replace = move || {
        let quiesced = store.driver().quiesce();
        let new = store.new_table(T, 2).expect("address space");
        store.replace_tables(&quiesced, vec![new], Replaced::Captured);
        done.store(true, SeqCst);
    };
    let flusher = stillpoint_io::spawn("flusher", replace).expect("a thread");
    for _ in 0..YIELDS {
        std::thread::yield_now();
        assert!(!is_replaced.load(SeqCst), "what the commit has locked was replaced");
    }
    world.door.open.store(true, SeqCst);
    assert_committed(&waiting.join().expect("no panic"));
    flusher.join().expect("no panic");
    assert_eq!(world.value(b"key"), None, "the commit came before the replacement");
}

#[test]
fn a_log_that_will_have_no_room_ends_the_commit() {
    let world = World::new();
    let waiting = world.put_behind_the_door();
    world.door.fails.store(true, SeqCst);
    world.door.open.store(true, SeqCst);
    let [first, second] = waiting.join().expect("no panic");
    assert!(matches!(first.ended, Some(Err(TxError::Log(LogRefused::Refused(_))))));
    assert!(matches!(second.ended, Some(Ok(Some(_)))), "the worker goes on: {:?}", second.ended);
    drop(world.store.driver().quiesce());
    assert_eq!(world.value(b"key").as_deref(), Some(&b"before"[..]));
    // The lock was given back.
    let mut again = [Put::new(b"key", b"again")];
    world.worker().execute(&mut again[..]);
    assert_eq!(world.value(b"key").as_deref(), Some(&b"again"[..]));
}

/// A thread's result. A thread that has not ended after many yields counts as hanging.
fn ended<T>(what: &str, thread: stillpoint_io::JoinHandle<T>) -> T {
    for _ in 0..60_000 {
        if thread.is_finished() {
            return thread.join().expect("no panic");
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("{what} never ends");
}

/// A transaction whose last run has the permit of the store. `permitted` is called in that run.
fn put_with_permit(worker: &mut Worker, permitted: impl Fn()) -> Result<(), TxError> {
    let mut runs = 0;
    worker.transact(|tx| {
        runs += 1;
        if runs < RUNS_MAX {
            return Err(TxError::Conflict);
        }
        permitted();
        tx.put(T, b"key", b"permitted")
    })
}

/// A transaction with the permit keeps it over a wait. No other transaction begins before its end.
#[test]
fn a_commit_with_the_permit_waits_for_room_as_any_other() {
    let world = World::new();
    let mut worker = world.worker();
    let put = move || put_with_permit(&mut worker, || ());
    let waiting = stillpoint_io::spawn("permitted", put).expect("a thread");
    world.door.await_commit();
    world.door.open.store(true, SeqCst);
    ended("the commit with the permit", waiting).expect("it commits");
    assert_eq!(world.value(b"key").as_deref(), Some(&b"permitted"[..]));
}

#[test]
fn a_commit_that_has_waited_does_not_pass_the_permit_on_to_the_next() {
    let world = World::new();
    let (has_permit, goes_on) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let waiting = world.put_behind_the_door();
    let mut worker = Worker::new(world.store.clone(), Box::new(NoLog::default())).expect("a slot");
    let (entered, released) = (has_permit.clone(), goes_on.clone());
    let permitted = move || {
        let hold = || {
            entered.store(true, SeqCst);
            while !released.load(SeqCst) {
                std::thread::yield_now();
            }
        };
        put_with_permit(&mut worker, hold)
    };
    let permitted = stillpoint_io::spawn("permitted", permitted).expect("a thread");
    while !has_permit.load(SeqCst) {
        std::thread::yield_now();
    }
    world.door.open.store(true, SeqCst);
    while world.epochs.lock().is_empty() {
        std::thread::yield_now();
    }
    for _ in 0..YIELDS {
        std::thread::yield_now();
        assert_eq!(world.epochs.lock().len(), 1, "the second of the batch began beside the permit");
    }
    goes_on.store(true, SeqCst);
    ended("the transaction with the permit", permitted).expect("it commits");
    assert_committed(&ended("the batch", waiting));
}

/// A commit that somebody takes step by step may hold locks outside of the store, for which the holder of the
/// permit waits. So the end of its last step waits for no permit.
#[test]
fn a_commit_in_steps_ends_beside_the_permit() {
    let world = World::new();
    let flag = || Arc::new(AtomicBool::new(false));
    let (has_permit, goes_on, has_ended) = (flag(), flag(), flag());
    let (mut in_steps, ended_steps) = (world.worker(), has_ended.clone());
    let commit = move || {
        in_steps.run_until_ended(|open| {
            open.tx().put(T, b"key", b"after")?;
            let mut steps = open.begin_commit()?;
            steps.wait(Shortage::Log)?;
            while let Some(shortage) = steps.prepare()? {
                steps.wait(shortage)?;
            }
            let stamp = steps.append()?;
            steps.install(stamp);
            let stamp = steps.release();
            ended_steps.store(true, SeqCst);
            Ok(stamp)
        })
    };
    let waiting = stillpoint_io::spawn("committer", commit).expect("a thread");
    world.door.await_commit();
    let mut worker = Worker::new(world.store.clone(), Box::new(NoLog::default())).expect("a slot");
    let (entered, released) = (has_permit.clone(), goes_on.clone());
    let hold = move || {
        entered.store(true, SeqCst);
        while !released.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    let permitted = move || put_with_permit(&mut worker, hold);
    let permitted = stillpoint_io::spawn("permitted", permitted).expect("a thread");
    while !has_permit.load(SeqCst) {
        std::thread::yield_now();
    }
    world.door.open.store(true, SeqCst);
    for _ in 0..60_000 {
        if has_ended.load(SeqCst) {
            break;
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(has_ended.load(SeqCst), "the end of the commit waits for the permit");
    goes_on.store(true, SeqCst);
    ended("the transaction with the permit", permitted).expect("it commits");
    ended("the commit in steps", waiting).expect("it commits");
}

/// A transaction that writes its keys.
struct PutAll(Vec<&'static [u8]>);

impl Procedure for PutAll {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in &self.0 {
            keys.push(T, key, Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (0..self.0.len() as u32).try_for_each(|slot| tx.put_slot(Slot(slot), b"all"))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// A declared transaction waits for `middle` and may hold `low`. The holder of the permit takes
/// `high` and wants `low`. The two must not wait for each other.
fn all_end_beside_the_permit([low, middle, high]: [&'static [u8]; 3]) {
    let store = store_with(64 << 20, 8, 1, CellRules::IN_PLACE);
    let worker = || Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    let (mut holder, mut declared, mut permitted) = (worker(), worker(), worker());
    for key in [b"a", b"b", b"c"] {
        holder.transact(|tx| tx.put(T, key, b"old")).expect("memory");
    }
    let mut threads = Vec::new();
    let mut works = Some((
        move || declared.execute(&mut [PutAll(vec![low, middle, high])][..]),
        move || {
            let mut runs = 0;
            let ended = permitted.transact(|tx| {
                runs += 1;
                if runs < RUNS_MAX {
                    return Err(TxError::Conflict);
                }
                tx.put(T, high, b"permitted")?;
                RealClock.sleep(Duration::from_millis(30));
                tx.put(T, low, b"permitted")
            });
            ended.expect("it commits");
        },
    ));
    let ended_holder = holder.transact(|tx| {
        tx.put(T, middle, b"held")?;
        let (declared, permitted) = works.take().expect("nobody is in the way of the first run");
        threads.push(stillpoint_io::spawn("declared", declared).expect("a thread"));
        // The transaction locks the free keys, and waits for the rest.
        RealClock.sleep(Duration::from_millis(20));
        threads.push(stillpoint_io::spawn("permitted", permitted).expect("a thread"));
        RealClock.sleep(Duration::from_millis(20));
        Ok(())
    });
    ended_holder.expect("it commits");
    for thread in threads {
        ended("one of the two", thread);
    }
}

/// Locks are taken in the order of cells, which the test does not know, so it tries each order.
#[test]
fn who_waits_for_a_lock_gives_its_own_back_to_the_holder_of_the_permit() {
    const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        all_end_beside_the_permit(order.map(|at: usize| KEYS[at]));
    }
}
