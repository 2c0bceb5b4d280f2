//! Tests of requests for checkpoints, and of changes of the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{CheckpointDone, Config, Engine, Error, Session, TableId};
use stillpoint_format::manifest::CheckpointKind;
use stillpoint_io::{
    Call, Clock, Disk, Fault, FaultPlan, Lasts, RealClock, SeededRng, SimDisk, spawn,
};

/// A clock that the test moves. Sleeps take time of the machine's clock.
#[derive(Debug, Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(SeqCst)
    }
    fn wall_ms(&self) -> u64 {
        self.0.load(SeqCst) / 1_000_000
    }
    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

fn config(disk: &SimDisk, clock: &Arc<TestClock>) -> Config {
    let mut config = Config::new("data");
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.clock = clock.clone();
    config.environment.background = false;
    config.max_memory_bytes = 64 << 20;
    config.sessions = 4;
    config.logs = 1;
    config.log_segment_bytes = 64 << 10;
    config.checkpoint_threads = 1;
    config.checkpoint_every = None;
    config.merge_after = None;
    config
}

fn put(session: &mut Session, table: TableId, key: u32) {
    let put = session.transact(|tx| tx.put(table, &key.to_be_bytes(), &[7; 200]));
    put.expect("commits");
}

/// Waits until `done`, for a minute of the machine's clock at most.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("waited for ever until {what}");
}

/// Waits until a call of that kind hangs.
fn wait_for_stall(disk: &SimDisk, call: Call) {
    wait_until(&format!("{call:?} hangs"), || disk.waiting_calls() > 0);
}

/// Takes a checkpoint on a thread of its own. When everything is captured, the checkpoint hangs before
/// it flushes its directory, and `act` runs.
fn act_after_the_capture(
    engine: &Arc<Engine>,
    disk: &SimDisk,
    act: impl FnOnce(),
) -> CheckpointDone {
    let taker = engine.clone();
    disk.stall(&[Call::CreateDir]);
    let taken = spawn("taker", move || taker.checkpoint()).expect("a thread");
    wait_for_stall(disk, Call::CreateDir);
    let made = disk.call_counts().of(Call::CreateDir);
    disk.stall(&[Call::SyncDir]);
    wait_until("the directory is made", || disk.call_counts().of(Call::CreateDir) > made);
    wait_for_stall(disk, Call::SyncDir);
    act();
    disk.resume();
    taken.join().expect("no panic").expect("published")
}

/// Commits count from the begin of the last checkpoint, so none is forgotten that came too late for
/// it.
#[test]
fn commits_count_from_the_begin_of_a_checkpoint() {
    let (disk, clock) = (SimDisk::new(1), Arc::default());
    let engine = Arc::new(Engine::open(config(&disk, &clock)).expect("an empty disk"));
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key));
    let late = || put(&mut session, table, 100);
    let done = act_after_the_capture(&engine, &disk, late);
    assert_eq!(done.records, 100);
    assert_eq!(engine.stats().checkpoints.commits_since, 1);
}

/// Without a journal, a flush of tables is durable with the next checkpoint. The flush asks for one if
/// the checkpoint under way has captured the records already.
#[test]
fn a_flush_after_the_capture_asks_for_another_checkpoint() {
    let (disk, clock) = (SimDisk::new(1), Arc::default());
    let mut config = config(&disk, &clock);
    config.journal = "none".to_owned();
    let engine = Arc::new(Engine::open(config).expect("an empty disk"));
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key));
    let flush = || engine.flush_tables(&[table]).expect("flushes");
    let done = act_after_the_capture(&engine, &disk, flush);
    assert_eq!(done.records, 100);
    assert_eq!(engine.checkpoint_in_background(), None, "one is requested");
    assert_eq!(engine.checkpoint().expect("published").records, 0);
    assert!(engine.checkpoint_in_background().is_some(), "none is requested");
}

/// Without a journal, a flush of tables before the capture gives up the checkpoint under way. What is
/// begun anew is what was asked for: a checkpoint of every record, at the present pace.
#[test]
fn a_checkpoint_that_is_given_up_is_begun_anew() {
    let (disk, clock) = (SimDisk::new(1), Arc::default());
    let mut config = config(&disk, &clock);
    config.checkpoint = "calc:partial".to_owned();
    config.journal = "none".to_owned();
    let engine = Arc::new(Engine::open(config).expect("an empty disk"));
    let (table, other) = (engine.table("t").expect("a name"), engine.table("u").expect("a name"));
    let mut session = engine.session().expect("a seat");
    let set_pace = |pace| {
        let changed = engine.change_checkpoint_policy(|policy| policy.pace = pace);
        changed.expect("a sound policy");
    };
    (0..10_000).for_each(|key| put(&mut session, table, key));
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Full);
    put(&mut session, table, 1);
    assert!(engine.full_checkpoint_in_background().is_some());
    // No checkpoint would end at this pace, since the clock stands still.
    set_pace(Some(1));
    let (taker, made) = (engine.clone(), disk.call_counts().of(Call::CreateDir));
    let taken = spawn("taker", move || taker.checkpoint()).expect("a thread");
    wait_until("a checkpoint is taken", || disk.call_counts().of(Call::CreateDir) > made);
    set_pace(None);
    engine.flush_tables(&[other]).expect("flushes");
    let done = taken.join().expect("no panic").expect("published");
    assert_eq!((done.kind, done.records), (CheckpointKind::Full, 10_000));
    put(&mut session, table, 2);
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Partial);
}

/// A merge at a slow pace does not hold up the end of the store.
#[test]
fn the_end_of_the_store_waits_for_no_merge() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let mut config = config(&disk, &clock);
    config.environment.background = true;
    config.checkpoint = "calc:partial".to_owned();
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    // A merge of so many bytes writes some before its end, and then waits for its pace.
    (0..60_000).for_each(|key| put(&mut session, table, key));
    for _ in 0..3 {
        engine.checkpoint().expect("published");
        (0..20_000).for_each(|key| put(&mut session, table, key));
    }
    disk.stall(&[Call::CreateDir]);
    let changed = engine.change_checkpoint_policy(|policy| {
        policy.pace = Some(1);
        policy.merge_after = Some(2);
    });
    changed.expect("a sound policy");
    wait_for_stall(&disk, Call::CreateDir);
    assert!(engine.stats().checkpoints.merging.running.is_some());
    disk.resume();
    drop(session);
    let closes = spawn("close", move || engine.close()).expect("a thread");
    wait_until("the store is closed", || closes.is_finished());
    closes.join().expect("no panic").expect("closes");
}

/// A request for a checkpoint of every record holds until there is one, however many attempts fail.
#[test]
fn a_request_for_every_record_outlives_failures() {
    let (disk, clock) = (SimDisk::new(1), Arc::default());
    let mut config = config(&disk, &clock);
    config.checkpoint = "calc:partial".to_owned();
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key));
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Full);
    put(&mut session, table, 1);
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Partial);
    assert!(engine.full_checkpoint_in_background().is_some());
    assert_eq!(engine.checkpoint_in_background(), None, "one is requested");
    for _ in 0..2 {
        put(&mut session, table, 2);
        disk.inject(FaultPlan {
            calls: vec![Call::CreateDir],
            nth: 1,
            fault: Fault::InputOutput,
            lasts: Lasts::Once,
        });
        engine.checkpoint().expect_err("no directory can be made");
    }
    put(&mut session, table, 3);
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Full);
    put(&mut session, table, 4);
    assert_eq!(engine.checkpoint().expect("published").kind, CheckpointKind::Partial);
}

/// A store that has failed takes no checkpoint, and forgets the request for one.
#[test]
fn a_failed_store_forgets_requests() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let mut config = config(&disk, &clock);
    config.environment.background = true;
    let engine = Engine::open(config).expect("an empty disk");
    disk.remove(std::path::Path::new("LOCK")).expect("removed");
    wait_until("the engine finds out", || {
        clock.0.fetch_add(1_000_000_000, SeqCst);
        engine.health().is_err()
    });
    for _ in 0..3 {
        wait_until("the request is forgotten", || engine.checkpoint_in_background().is_some());
    }
}

/// Two threads change two parts of the policy, and neither change is lost. A policy that cannot be used
/// changes nothing.
#[test]
fn changes_of_the_policy_are_not_lost() {
    let (disk, clock) = (SimDisk::new(1), Arc::default());
    let engine = Arc::new(Engine::open(config(&disk, &clock)).expect("an empty disk"));
    let other = engine.clone();
    let paces = spawn("paces", move || {
        for pace in 1..=20_000 {
            let changed = other.change_checkpoint_policy(|policy| policy.pace = Some(pace));
            changed.expect("a sound policy");
            assert_eq!(other.checkpoint_policy().pace, Some(pace));
        }
    });
    for limit in 1..=20_000 {
        let changed = engine.change_checkpoint_policy(|policy| policy.log_limit_bytes = limit);
        changed.expect("a sound policy");
        assert_eq!(engine.checkpoint_policy().log_limit_bytes, limit);
    }
    paces.expect("a thread").join().expect("no change is lost");
    let before = engine.checkpoint_policy();
    for links in [0, 1] {
        let refused = engine.change_checkpoint_policy(|policy| {
            policy.pace = None;
            policy.merge_after = Some(links);
        });
        assert!(
            matches!(refused, Err(Error::Config { setting: "merge_after", .. })),
            "{refused:?}"
        );
        assert_eq!(engine.checkpoint_policy(), before);
        let mut config = config(&SimDisk::new(1), &clock);
        config.merge_after = Some(links);
        let opened = Engine::open(config);
        assert!(matches!(opened, Err(Error::Config { setting: "merge_after", .. })), "{opened:?}");
    }
}

/// A store with a chain of three, whose first merge hangs in its first read. The thread of the engine
/// that merges has begun it.
fn merge_that_hangs(disk: &SimDisk, clock: &Arc<TestClock>) -> (Engine, TableId, Session) {
    let mut config = config(disk, clock);
    config.environment.background = true;
    config.checkpoint = "calc:partial".to_owned();
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..10_000).for_each(|key| put(&mut session, table, key));
    for key in 0..3 {
        engine.checkpoint().expect("published");
        put(&mut session, table, key);
    }
    disk.stall(&[Call::Read]);
    let changed = engine.change_checkpoint_policy(|policy| {
        policy.pace = Some(1);
        policy.merge_after = Some(2);
    });
    changed.expect("a sound policy");
    wait_for_stall(disk, Call::Read);
    (engine, table, session)
}

fn set_pace(engine: &Engine, pace: Option<u64>) {
    engine.change_checkpoint_policy(|policy| policy.pace = pace).expect("a sound policy");
}

/// A full checkpoint replaces the chain that is being merged. The merge ends, however slow its pace is, so
/// that its files are given back and the new chain can be merged.
#[test]
fn a_merge_ends_when_its_chain_is_replaced() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, ..) = merge_that_hangs(&disk, &clock);
    // The merge finds all its files, so it is not their absence that ends it.
    let _held = engine.hold_files("copy").expect("nobody else");
    set_pace(&engine, None);
    let before = engine.full_checkpoint_in_background().expect("none is under way");
    let status = || engine.stats().checkpoints;
    wait_until("it is published", || status().published > before.published);
    set_pace(&engine, Some(1));
    disk.resume();
    wait_until("the merge has ended", || status().merging.running.is_none());
    let merging = status().merging;
    assert_eq!((merging.done, merging.failures), (0, 0), "{merging:?}");
    assert_eq!(status().chain_links, 1);
}

/// A merge and a checkpoint under way heed a pace that is set. The clock stands still, so neither would
/// end at its first pace.
#[test]
fn a_pace_that_is_set_counts_at_once() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, ..) = merge_that_hangs(&disk, &clock);
    disk.resume();
    let status = || engine.stats().checkpoints;
    let before = engine.full_checkpoint_in_background().expect("none is under way");
    let is_captured = || status().running.is_some_and(|running| running.units_total > 0);
    wait_until("the capture has begun", is_captured);
    assert!(status().merging.running.is_some(), "the merge waits");
    set_pace(&engine, None);
    wait_until("the checkpoint is published", || status().published > before.published);
    wait_until("the merge has ended", || status().merging.running.is_none());
}

/// The counts that a request returns say which checkpoint answers it. That one began after the request,
/// so it has every commit before, though others are taken all the time.
#[test]
fn a_request_is_answered_by_a_later_checkpoint() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let mut config = config(&disk, &clock);
    config.environment.background = true;
    let engine = Arc::new(Engine::open(config).expect("an empty disk"));
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let is_over = Arc::new(AtomicU64::new(0));
    let (taker, over) = (engine.clone(), is_over.clone());
    let others = spawn("taker", move || {
        while over.load(SeqCst) == 0 {
            taker.checkpoint().expect("published");
            RealClock.sleep(Duration::from_millis(1));
        }
    });
    for key in 0..200 {
        put(&mut session, table, key);
        let mut before = None;
        wait_until("a request is taken", || {
            before = engine.checkpoint_in_background();
            before.is_some()
        });
        let before = before.expect("it is taken");
        wait_until("it is answered", || engine.stats().checkpoints.published > before.published);
        assert_eq!(engine.stats().checkpoints.commits_since, 0, "commit {key} is in no checkpoint");
    }
    is_over.store(1, SeqCst);
    others.expect("a thread").join().expect("no panic");
}

/// The time of the last checkpoint is that of its point, and no later merge changes it.
#[test]
fn a_merge_is_no_later_checkpoint() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let mut config = config(&disk, &clock);
    config.checkpoint = "calc:partial".to_owned();
    let engine = Engine::open(config.clone()).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    for key in 0..3 {
        clock.0.fetch_add(1_000_000_000, SeqCst);
        put(&mut session, table, key);
        engine.checkpoint().expect("published");
    }
    let before = engine.stats().checkpoints.last_finished_ms;
    clock.0.fetch_add(60_000_000_000, SeqCst);
    engine.merge_checkpoints().expect("merges").expect("a chain");
    drop(session);
    engine.close().expect("closes");
    let engine = Engine::open(config).expect("a store");
    assert_eq!(engine.stats().checkpoints.last_finished_ms, before);
}

/// Who holds the files no longer does not wait until the disk has removed them.
#[test]
fn the_end_of_a_hold_waits_for_no_disk() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let mut config = config(&disk, &clock);
    config.environment.background = true;
    config.checkpoint = "calc".to_owned();
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let held = engine.hold_files("backup").expect("nobody else");
    for key in 0..3 {
        put(&mut session, table, key);
        engine.checkpoint().expect("published");
    }
    let found = || disk.list(std::path::Path::new("checkpoint")).expect("lists").len();
    assert_eq!(found(), 3);
    disk.stall(&[Call::Remove]);
    let released = spawn("release", move || drop(held)).expect("a thread");
    wait_until("the hold has ended", || released.is_finished());
    wait_for_stall(&disk, Call::Remove);
    disk.resume();
    wait_until("the files are removed", || found() == 1);
    released.join().expect("no panic");
}
