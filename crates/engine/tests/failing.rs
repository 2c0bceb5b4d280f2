//! Tests of failing checkpoints and of panics anywhere. Attempts are few, parts do not pile up, and
//! nothing waits for ever. Either the store fails with a reason, or the next checkpoint is whole.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{Config, Durability, Engine, Error, FileHolder, Session, TableId};
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, Manifest};
use stillpoint_format::names;
use stillpoint_io::{
    Call, Clock, Disk, Fault, FaultPlan, Lasts, ManualClock, RealClock, SeededRng, SimDisk,
    read_all,
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

fn config(disk: &SimDisk, clock: Arc<dyn Clock>) -> Config {
    let mut config = Config::new("data");
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.clock = clock;
    config.durability = Durability::Strict;
    config.max_memory_bytes = 64 << 20;
    config.sessions = 4;
    config.logs = 2;
    config.log_segment_bytes = 64 << 10;
    config.recovery_threads = 1;
    config.checkpoint_every = None;
    config
}

fn put(session: &mut Session, table: TableId, key: u32, value: &[u8]) -> Result<(), Error> {
    session.transact(|tx| tx.put(table, &key.to_be_bytes(), value))
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

#[test]
fn attempts_that_fail_are_few_and_leave_nothing() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    // The log is always beyond its limit, so that a checkpoint is due at every check.
    config.log_limit_bytes = 1;
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    // No part file can be made. All other calls of the disk succeed.
    let fail = || {
        disk.inject(FaultPlan {
            calls: vec![Call::CreateDir],
            nth: 1,
            fault: Fault::InputOutput,
            lasts: Lasts::UntilCleared,
        });
    };
    fail();
    let failures = || engine.stats().checkpoints.failures;
    let mut expected = failures();
    for seconds in [1, 2, 4, 8] {
        put(&mut session, table, seconds, b"value").expect("commits go on");
        wait_until("an attempt fails", || failures() > expected);
        expected += 1;
        // Several checks pass without an attempt.
        RealClock.sleep(Duration::from_millis(150));
        assert_eq!(failures(), expected, "tried again without a pause of {seconds} s");
        let status = engine.stats().checkpoints;
        assert_eq!(status.next_attempt, Some(Duration::from_secs(seconds.into())));
        assert_eq!(u64::from(status.failures_since), expected);
        assert!(status.last_error.is_some_and(|why| why.contains("injected")));
        clock.0.fetch_add(u64::from(seconds) * 1_000_000_000, SeqCst);
    }
    wait_until("the pause is over", || failures() > expected);
    // A request ends the pause.
    let asked = engine.checkpoint().expect_err("the fault is still there");
    assert!(matches!(asked, Error::Checkpoint(_)), "{asked}");
    disk.clear_faults();
    engine.checkpoint().expect("a sound disk");
    let status = engine.stats().checkpoints;
    assert_eq!((status.failures_since, status.next_attempt, status.last_error), (0, None, None));
    let named = disk.list(Path::new("checkpoint")).expect("a directory");
    assert_eq!(named.len(), 1, "{named:?}");
    drop(session);
    engine.close().expect("closed");
}

#[test]
fn a_failed_flush_of_the_directory_of_checkpoints_fails_the_store() {
    let disk = SimDisk::new(1);
    let engine = Engine::open(config(&disk, Arc::new(RealClock))).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    put(&mut session, table, 1, b"value").expect("commits");
    // A checkpoint flushes three directories. The first flush belongs to the MANIFEST that reserves
    // the epoch. The next belongs to the checkpoint's own directory, and the last to `checkpoint`.
    disk.inject(FaultPlan {
        calls: vec![Call::SyncDir],
        nth: 3,
        fault: Fault::InputOutput,
        lasts: Lasts::Once,
    });
    let error = engine.checkpoint().expect_err("the flush fails");
    assert!(error.to_string().contains("/sim/checkpoint"), "{error}");
    let health = engine.health().expect_err("no checkpoint can ever succeed");
    assert!(health.to_string().contains("/sim/checkpoint"), "{health}");
    assert!(put(&mut session, table, 2, b"value").is_err(), "a store that has failed");
}

/// The end of a hold lets the background thread remove files. If the flush of their directory fails, the store has failed. Until
/// the drop the status shows the age of the hold.
#[test]
fn a_failed_flush_at_the_drop_of_a_hold_fails_the_store() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let engine = Engine::open(config(&disk, clock.clone())).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let held = engine.hold_files("backup").expect("nobody else");
    for value in [b"one", b"two"] {
        put(&mut session, table, 1, value).expect("commits");
        let done = engine.checkpoint().expect("published");
        assert_eq!(done.kind, CheckpointKind::Full, "all records have changed");
    }
    let count = || disk.list(Path::new("checkpoint")).expect("a directory").len();
    assert_eq!(count(), 2, "the first one is held");
    clock.0.fetch_add(5_000_000_000, SeqCst);
    let holder = FileHolder { name: "backup".to_owned(), held_for: Duration::from_secs(5) };
    assert_eq!(engine.stats().checkpoints.holders, [holder]);
    disk.inject(FaultPlan {
        calls: vec![Call::SyncDir],
        nth: 1,
        fault: Fault::InputOutput,
        lasts: Lasts::Once,
    });
    drop(held);
    wait_until("the background thread finds out", || engine.health().is_err());
    assert_eq!(count(), 1, "the first one is removed");
    let health = engine.health().expect_err("no checkpoint can ever succeed");
    assert!(health.to_string().contains("/sim/checkpoint"), "{health}");
}

/// Records are overwritten until the log would need three times the disk. Writes are refused only
/// until a checkpoint has freed the log, every checkpoint finds its space, and reads go on.
#[test]
fn a_small_disk_is_freed_by_checkpoints() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(16 << 20));
    let mut config = config(&disk, Arc::new(RealClock));
    config.log_segment_bytes = 64 << 20;
    let engine = Engine::open(config).expect("segments fit the disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let mut reader = engine.session().expect("a seat");
    for number in 0..5000u32 {
        let key = number % 100;
        wait_until("a checkpoint frees the log", || {
            match put(&mut session, table, key, &number.to_le_bytes().repeat(2500)) {
                Ok(()) => true,
                Err(error) => {
                    assert!(error.is_disk_full(), "{error}");
                    let mut value = Vec::new();
                    reader.read(table, &key.to_be_bytes(), &mut value).expect("reads go on");
                    engine.health().expect("a full disk is no failure");
                    false
                }
            }
        });
    }
    let status = engine.stats().checkpoints;
    assert!(status.published > 0, "{status:?}");
    assert_eq!(status.failures, 0, "{status:?}");
    drop((session, reader));
    engine.close().expect("closed");
}

/// The status says so when commits of three periods ago are in no checkpoint, and takes it back with
/// the next one.
#[test]
fn a_checkpoint_that_does_not_come_is_overdue() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    // No thread takes the checkpoint that is due.
    config.environment.background = false;
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let every = Some(Duration::from_secs(60));
    engine.change_checkpoint_policy(|policy| policy.every = every).expect("a sound policy");
    let pass = |seconds: u64| clock.0.fetch_add(seconds * 1_000_000_000, SeqCst);
    let is_overdue = || engine.stats().checkpoints.is_overdue;
    pass(300);
    assert!(!is_overdue(), "nothing was committed");
    (0..100).for_each(|key| put(&mut session, table, key, &[7; 20_000]).expect("commits"));
    disk.set_capacity(Some(disk.used_bytes() + (1 << 20)));
    assert!(!is_overdue(), "these commits are new");
    pass(181);
    assert!(is_overdue(), "{:?}", engine.stats().checkpoints);
    engine.checkpoint().expect_err("two megabytes do not fit");
    assert!(is_overdue(), "{:?}", engine.stats().checkpoints);
    disk.set_capacity(Some(64 << 20));
    engine.checkpoint().expect("there is space");
    assert!(!is_overdue(), "one was published");
    drop(session);
    engine.close().expect("closed");
}

/// Without a journal only a checkpoint makes a flush of tables durable.
#[test]
fn emptied_tables_are_a_change_that_a_checkpoint_is_due_for() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    config.journal = "none".to_owned();
    config.checkpoint_every = Some(Duration::from_secs(60));
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    put(&mut session, table, 1, b"value").expect("commits");
    let before = engine.checkpoint().expect("there is space").epoch;
    assert_eq!(engine.stats().checkpoints.commits_since, 0);
    engine.flush_tables(&[table]).expect("flushed");
    assert_eq!(engine.stats().checkpoints.commits_since, 1);
    wait_until("the flush is in a checkpoint", || {
        clock.0.fetch_add(1_000_000_000, SeqCst);
        engine.stats().checkpoints.last.is_some_and(|last| last.epoch > before && last.records == 0)
    });
    drop(session);
    engine.close().expect("closed");
}

/// Another program fills the disk. The checkpoint fails with a full disk, leaves no part, and takes
/// no byte that the log needs. Once there is space, a checkpoint is taken soon.
#[test]
fn a_checkpoint_leaves_the_log_its_space() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let engine = Engine::open(config(&disk, clock.clone())).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key, &[7; 20_000]).expect("commits"));
    disk.set_capacity(Some(disk.used_bytes() + (1 << 20)));
    let before = disk.used_bytes();
    let error = engine.checkpoint().expect_err("two megabytes do not fit");
    assert!(error.is_disk_full(), "{error}");
    assert!(error.to_string().contains("left to the log"), "{error}");
    engine.checkpoint().expect_err("nor do they now");
    assert!(disk.used_bytes() <= before, "{} before, {} now", before, disk.used_bytes());
    disk.set_capacity(Some(64 << 20));
    wait_until("writes resume", || put(&mut session, table, 1, &[8; 20_000]).is_ok());
    engine
        .change_checkpoint_policy(|policy| policy.every = Some(Duration::ZERO))
        .expect("a sound policy");
    clock.0.fetch_add(1_000_000_000, SeqCst);
    wait_until("space has appeared", || engine.stats().checkpoints.published > 0);
    drop(session);
    engine.close().expect("closed");
}

/// Acknowledged commits, and those in doubt.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<u32, u64>,
    /// A transaction that panicked or failed, and may have committed.
    maybe: Vec<(u32, u64)>,
}

impl Known {
    fn write(&mut self, session: &mut Session, table: TableId, key: u32, value: u64) {
        let bytes = value.to_le_bytes().repeat(40);
        let done = catch_unwind(AssertUnwindSafe(|| put(session, table, key, &bytes)));
        match done {
            Ok(Ok(())) => {
                self.acknowledged.insert(key, value);
            }
            Ok(Err(_)) | Err(_) => self.maybe.push((key, value)),
        }
    }

    fn confirm(&self, session: &mut Session, table: TableId, context: &str) {
        for (&key, &value) in &self.acknowledged {
            let found = session
                .transact(|tx| Ok(tx.get(table, &key.to_be_bytes())?.map(|value| value.to_vec())))
                .unwrap_or_else(|error| panic!("{context}: {error}"))
                .unwrap_or_else(|| panic!("{context}: key {key} is gone"));
            let found = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            let may_be = self.maybe.contains(&(key, found));
            assert!(found == value || may_be, "{context}: key {key} is {found}, not {value}");
        }
    }
}

/// A clock that panics once, in the next thread that sleeps.
#[derive(Debug, Default)]
struct PanickingClock(AtomicBool);

impl Clock for PanickingClock {
    fn monotonic_ns(&self) -> u64 {
        RealClock.monotonic_ns()
    }
    fn wall_ms(&self) -> u64 {
        RealClock.wall_ms()
    }
    fn sleep(&self, duration: Duration) {
        assert!(!self.0.swap(false, SeqCst), "injected");
        RealClock.sleep(duration);
    }
}

/// The threads of maintenance and of merges sleep between two looks. If one panics the store fails, since
/// nothing would check the data directory, reclaim memory, or merge any more.
#[test]
fn a_panic_of_a_background_thread_fails_the_store() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(PanickingClock::default());
    let engine = Engine::open(config(&disk, clock.clone())).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    put(&mut session, table, 1, b"before").expect("commits");
    clock.0.store(true, SeqCst);
    wait_until("the store fails", || engine.health().is_err());
    let why = engine.health().expect_err("it has failed").to_string();
    let is_named = ["maintenance", "merge"].iter().any(|thread| why.contains(thread));
    assert!(is_named && why.contains("injected"), "{why}");
    put(&mut session, table, 2, b"after").expect_err("nothing is acknowledged any more");
}

/// The n-th call of the disk panics, in any thread, while commits and checkpoints go on. Either the
/// store fails with a reason, or the next checkpoint is whole. In both cases a close ends, and a
/// restart finds all acknowledged commits.
#[test]
fn a_panic_at_any_call_of_the_disk_loses_nothing() {
    let step = std::env::var("STILLPOINT_FAULTS_ALL").map_or(7, |_| 1);
    let mut nth = 1;
    loop {
        let context = format!("panic at call {nth}");
        let disk = SimDisk::new(nth);
        let mut known = Known::default();
        let engine = Engine::open(config(&disk, Arc::new(RealClock))).expect("an empty disk");
        let table = engine.table("t").expect("a name");
        let mut session = engine.session().expect("a seat");
        (0..20).for_each(|key| known.write(&mut session, table, key, 1));
        let before = disk.call_counts().total();
        disk.inject(FaultPlan {
            calls: Call::ALL.to_vec(),
            nth,
            fault: Fault::Panic,
            lasts: Lasts::Once,
        });
        for round in 2..5 {
            for key in 0..20 {
                known.write(&mut session, table, key, round);
            }
            if round == 3 {
                let _ = catch_unwind(AssertUnwindSafe(|| engine.checkpoint()));
            }
        }
        let calls = disk.call_counts().total() - before;
        disk.clear_faults();
        let next = catch_unwind(AssertUnwindSafe(|| engine.checkpoint()));
        match next.unwrap_or_else(|_| panic!("{context}: the next checkpoint panics")) {
            Ok(_) => {}
            Err(error) => {
                let health = engine.health().expect_err(&context);
                let why = health.to_string();
                assert!(why.contains("panicked"), "{context}: {error}: {why}");
            }
        }
        drop(session);
        // The call must end, with any result.
        let _ = engine.close();
        let after = disk.crash(nth);
        let clock = Arc::new(ManualClock::self_advancing(0));
        let mut again = config(&after, clock);
        again.environment.background = false;
        let engine = Engine::open(again).unwrap_or_else(|error| panic!("{context}: {error}"));
        let table = engine.table("t").expect("a name");
        known.confirm(&mut engine.session().expect("a seat"), table, &context);
        if calls < nth {
            break;
        }
        nth += step;
    }
}

/// The clock stands still, so a paced checkpoint would wait for ever before its next bytes.
#[test]
fn the_end_of_the_store_waits_for_no_pace() {
    for journal in ["redo", "none"] {
        let disk = SimDisk::new(3);
        let mut config = config(&disk, Arc::new(TestClock::default()));
        config.journal = journal.to_owned();
        config.checkpoint_pace = Some(1);
        let engine = Engine::open(config.clone()).expect("an empty disk");
        let table = engine.table("t").expect("a name");
        let mut session = engine.session().expect("a seat");
        for key in 0..1000 {
            put(&mut session, table, key, &[7; 3000]).expect("memory");
        }
        drop(session);
        assert!(engine.checkpoint_in_background().is_some());
        let captured = |engine: &Engine| {
            engine.stats().checkpoints.running.is_some_and(|running| running.units_total > 0)
        };
        wait_until("the capture has begun", || captured(&engine));
        let closing = stillpoint_io::spawn("closing", move || engine.close()).expect("a thread");
        wait_until("the store is closed", || closing.is_finished());
        closing.join().expect("no panic").expect("closed");
        assert_eq!(
            disk.list(Path::new("checkpoint")).map_or(0, |found| found.len()),
            usize::from(journal == "none"),
            "{journal}: a checkpoint that was given up leaves nothing"
        );
        config.checkpoint_pace = None;
        let engine = Engine::open(config).expect("opens");
        let table = engine.table("t").expect("a name");
        assert_eq!(engine.len(table), 1000, "{journal}");
        engine.close().expect("closed");
    }
}

/// No attempt uses the directory name of an earlier one. The earlier attempt may have failed before
/// or after it made its directory, or in an earlier life of the engine.
#[test]
fn no_name_of_a_checkpoint_is_used_twice() {
    let disk = SimDisk::new(4);
    let mut used = Vec::new();
    for life in 0..3 {
        let engine = Engine::open(config(&disk, Arc::new(TestClock::default()))).expect("opens");
        let table = engine.table("t").expect("a name");
        let mut session = engine.session().expect("a seat");
        for calls in [Call::CreateDir, Call::Open, Call::Write, Call::Sync] {
            put(&mut session, table, life, b"value").expect("memory");
            // The first call publishes the MANIFEST.
            let nth = if calls == Call::CreateDir { 1 } else { 2 };
            let fault = Fault::InputOutput;
            disk.inject(FaultPlan { calls: vec![calls], nth, fault, lasts: Lasts::Once });
            engine.checkpoint().expect_err("a fault");
            disk.clear_faults();
            used.push(manifest(&disk).next_serial - 1);
            engine.checkpoint().expect("no fault");
            let manifest = manifest(&disk);
            let newest = manifest.checkpoints.last().expect("published");
            let listed = disk.list(Path::new("checkpoint")).expect("a directory");
            let name = |of: &CheckpointEntry| names::checkpoint_name(of.serial, of.kind);
            let named: Vec<String> = manifest.checkpoints.iter().map(name).collect();
            assert_eq!(listed, named);
            used.push(newest.serial);
        }
        drop(session);
        engine.close().expect("closed");
    }
    assert!(used.windows(2).all(|pair| pair[0] < pair[1]), "{used:?}");
}

fn manifest(disk: &SimDisk) -> Manifest {
    let bytes = read_all(disk, Path::new("MANIFEST")).expect("a MANIFEST");
    Manifest::decode(&bytes).expect("sound")
}

#[test]
fn a_disk_that_hangs_for_space_holds_up_no_checkpoint() {
    let sim = SimDisk::new(1);
    let config = Config {
        durability: Durability::Relaxed,
        ..config(&sim, Arc::new(ManualClock::self_advancing(1)))
    };
    let engine = Arc::new(Engine::open(config).expect("an empty directory"));
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    put(&mut session, table, 1, b"before").expect("commits");
    sim.stall(&[Call::Allocate]);
    let done = Arc::new(AtomicBool::new(false));
    let committing = {
        let done = done.clone();
        stillpoint_io::spawn("commit", move || {
            // The record is longer than a segment, so a file of its own is prepared for it.
            let committed = put(&mut session, table, 2, &vec![7; 300 << 10]);
            done.store(true, SeqCst);
            (session, committed)
        })
    };
    let committing = committing.expect("a thread");
    wait_until("the commit asks for space", || sim.waiting_calls() > 0);
    let captured = Arc::new(AtomicBool::new(false));
    let checkpointing = {
        let (engine, captured) = (engine.clone(), captured.clone());
        stillpoint_io::spawn("checkpoint", move || {
            let taken = engine.checkpoint();
            captured.store(true, SeqCst);
            taken
        })
    };
    let checkpointing = checkpointing.expect("a thread");
    wait_until("the checkpoint is there", || captured.load(SeqCst));
    assert!(!done.load(SeqCst), "the disk hangs no more: the test shows nothing");
    sim.resume();
    let taken = checkpointing.join().expect("no panic").expect("a checkpoint");
    assert_eq!(taken.records, 1, "the commit is not part of it");
    let (mut session, committed) = committing.join().expect("no panic");
    committed.expect("there is space");
    let mut value = Vec::new();
    session.read(table, &2u32.to_be_bytes(), &mut value).expect("a read").expect("acknowledged");
    assert_eq!(value.len(), 300 << 10);
}

/// Keys that were deleted keep their memory until a published checkpoint has the deletions. So a
/// checkpoint is taken when memory is nearly used up, although the period is long.
#[test]
fn deleted_keys_give_their_memory_back_before_it_runs_out() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    config.checkpoint = "calc:partial".to_owned();
    config.checkpoint_every = Some(Duration::from_secs(3600));
    config.max_memory_bytes = 64 << 20;
    disk.set_capacity(None);
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let is_refused = |error: &Error| error.to_string().contains("memory");
    let mut keys = 0..;
    let full = keys.find_map(|key| put(&mut session, table, key, &[7; 900]).err());
    assert!(full.as_ref().is_some_and(is_refused), "{full:?}");
    for key in 10..keys.start {
        let deleted = session.transact(|tx| tx.delete(table, &key.to_be_bytes()));
        assert!(deleted.is_ok() || deleted.as_ref().is_err_and(is_refused));
    }
    wait_until("memory has come back", || {
        clock.0.fetch_add(1_000_000_000, SeqCst);
        put(&mut session, table, 1_000_000, &[8; 900]).is_ok()
    });
    drop(session);
    engine.close().expect("closed");
}

/// Memory is nearly used up by records that live. No checkpoint would free any of it, so none is taken
/// for that, whatever is written.
#[test]
fn records_that_live_ask_for_no_checkpoint() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    config.checkpoint = "calc:partial".to_owned();
    config.log_segment_bytes = 1 << 20;
    config.log_limit_bytes = u64::MAX;
    disk.set_capacity(None);
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    let mut keys = 0..;
    keys.find_map(|key| put(&mut session, table, key, &[7; 900]).err()).expect("a limit");
    engine.checkpoint().expect("published");
    for _ in 0..10 {
        put(&mut session, table, 1, &[8; 900]).expect("the record has its memory");
        clock.0.fetch_add(60_000_000_000, SeqCst);
        // The background thread looks every 50 ms.
        RealClock.sleep(Duration::from_millis(120));
    }
    assert_eq!(engine.stats().checkpoints.published, 1);
    drop(session);
    engine.close().expect("closed");
}

/// A link of the chain cannot be read any more. The merge that finds out asks for a checkpoint of
/// every record, which memory still has.
#[test]
fn a_chain_that_cannot_be_read_is_replaced() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    config.checkpoint = "calc:partial".to_owned();
    config.merge_after = None;
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key, &[7; 100]).expect("commits"));
    for key in 0..4 {
        engine.checkpoint().expect("published");
        put(&mut session, table, key, &[8; 100]).expect("commits");
    }
    let status = || engine.stats().checkpoints;
    assert_eq!(status().chain_links, 4);
    let manifest = manifest(&disk);
    let link = &manifest.checkpoints[2];
    let dir = names::checkpoint_dir(link.serial, link.kind);
    disk.remove(&Path::new(&dir).join(&link.parts[0].file)).expect("removed");
    engine.change_checkpoint_policy(|policy| policy.merge_after = Some(2)).expect("a sound policy");
    wait_until("a full one replaces the chain", || {
        clock.0.fetch_add(1_000_000_000, SeqCst);
        status().chain_links == 1
    });
    let merging = status().merging;
    assert!(merging.failures > 0 && merging.last_error.is_some(), "{merging:?}");
    drop(session);
    engine.close().expect("closed");
}

/// The disk takes no checkpoint, and a link of the chain cannot be read. Merges find that out again and
/// again, and each time want a full checkpoint. The pauses between failed checkpoints stay.
#[test]
fn a_chain_that_cannot_be_read_ends_no_pause() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(TestClock::default());
    let mut config = config(&disk, clock.clone());
    config.checkpoint = "calc:partial".to_owned();
    config.merge_after = None;
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key, &[7; 100]).expect("commits"));
    for key in 0..4 {
        engine.checkpoint().expect("published");
        put(&mut session, table, key, &[8; 100]).expect("commits");
    }
    let named = manifest(&disk).checkpoints;
    let link = &named[2];
    let dir = names::checkpoint_dir(link.serial, link.kind);
    disk.remove(&Path::new(&dir).join(&link.parts[0].file)).expect("removed");
    let (calls, fault) = (vec![Call::CreateDir], Fault::InputOutput);
    disk.inject(FaultPlan { calls, nth: 1, fault, lasts: Lasts::UntilCleared });
    let status = || engine.stats().checkpoints;
    let pass = |seconds: u64| clock.0.fetch_add(seconds * 1_000_000_000, SeqCst);
    engine.change_checkpoint_policy(|policy| policy.merge_after = Some(2)).expect("a sound policy");
    for (earlier, pause) in [1, 2, 4, 8, 16].into_iter().enumerate() {
        wait_until("a full one fails", || status().failures == earlier as u64 + 1);
        pass(pause);
    }
    wait_until("the sixth has failed", || status().failures == 6);
    assert_eq!(status().next_attempt, Some(Duration::from_secs(32)));
    let merges = status().merging.failures;
    pass(11);
    wait_until("another merge fails", || status().merging.failures > merges);
    RealClock.sleep(Duration::from_millis(150));
    assert_eq!(status().failures, 6, "the pause of 32 s is not over");
    disk.clear_faults();
    pass(32);
    wait_until("a full one replaces the chain", || status().chain_links == 1);
    drop(session);
    engine.close().expect("closed");
}

/// The next checkpoint has every record in any case, so a replay marks nothing. Marks would keep the
/// cells of deleted keys, and the log has more of them than fit into memory.
#[test]
fn a_log_of_another_scheme_is_replayed_within_its_memory() {
    for scheme in ["none", "calc"] {
        let disk = SimDisk::new(1);
        let mut config = config(&disk, Arc::new(TestClock::default()));
        config.checkpoint = scheme.to_owned();
        config.max_memory_bytes = 32 << 20;
        config.log_segment_bytes = 1 << 20;
        config.log_limit_bytes = u64::MAX;
        let engine = Engine::open(config.clone()).expect("an empty disk");
        let table = engine.table("t").expect("a name");
        let mut session = engine.session().expect("a seat");
        // Keys of 900 bytes that live for 100 commits: 60,000 of them need 54 MB.
        for key in 0..60_000u32 {
            put(&mut session, table, key, &[7; 900]).expect("commits");
            let old = key.wrapping_sub(100).to_be_bytes();
            session.transact(|tx| tx.delete(table, &old)).expect("commits");
        }
        drop((session, engine));
        config.checkpoint = "calc:partial".to_owned();
        let engine = Engine::open(config).expect("the log fits as it did");
        let mut session = engine.session().expect("a seat");
        assert_eq!(session.len(table).expect("counts"), 100, "{scheme}");
        let done = engine.checkpoint().expect("published");
        assert_eq!((done.kind, done.records), (CheckpointKind::Full, 100), "{scheme}");
    }
}

/// A scheme's chain, and then a run of `none` that reuses the cells of deleted keys at once. Replay of
/// that run marks nothing, so that it needs no more memory, and the next checkpoint is full. So is the
/// one after a further start without a checkpoint.
#[test]
fn a_log_of_another_scheme_beyond_a_chain_is_replayed_within_its_memory() {
    for changed in [10, 20_000] {
        replay_beyond_a_chain(changed);
    }
}

fn replay_beyond_a_chain(changed: u32) {
    let disk = SimDisk::new(1);
    let mut config = config(&disk, Arc::new(TestClock::default()));
    config.checkpoint = "calc:partial".to_owned();
    config.max_memory_bytes = 32 << 20;
    config.log_segment_bytes = 1 << 20;
    config.log_limit_bytes = u64::MAX;
    disk.set_capacity(None);
    let scheme_of = |number: usize| manifest(&disk).incarnations[number].scheme.clone();
    let engine = Engine::open(config.clone()).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    let mut session = engine.session().expect("a seat");
    (0..20_000).for_each(|key| put(&mut session, table, key, &[7; 900]).expect("commits"));
    engine.checkpoint().expect("published");
    assert_eq!(scheme_of(0).as_deref(), Some("calc:partial"));
    drop((session, engine));
    config.checkpoint = "none".to_owned();
    let engine = Engine::open(config.clone()).expect("a chain");
    let mut session = engine.session().expect("a seat");
    for key in 0..changed {
        let deleted = session.transact(|tx| tx.delete(table, &key.to_be_bytes()));
        assert!(deleted.expect("commits"));
        put(&mut session, table, 20_000 + key, &[8; 900]).expect("memory is reused");
    }
    drop((session, engine));
    config.checkpoint = "calc:partial".to_owned();
    for _ in 0..2 {
        let engine = Engine::open(config.clone()).expect("the log fits as it did");
        let mut session = engine.session().expect("a seat");
        assert_eq!(session.len(table).expect("counts"), 20_000);
    }
    let engine = Engine::open(config.clone()).expect("the log fits as it did");
    let mut session = engine.session().expect("a seat");
    put(&mut session, table, 50_000, &[9; 900]).expect("commits");
    let done = engine.checkpoint().expect("published");
    assert_eq!((done.kind, done.records), (CheckpointKind::Full, 20_001));
    put(&mut session, table, 50_001, &[9; 900]).expect("commits");
    let done = engine.checkpoint().expect("published");
    assert_eq!((done.kind, done.records), (CheckpointKind::Partial, 1));
    drop((session, engine));
    let engine = Engine::open(config).expect("a chain");
    let mut session = engine.session().expect("a seat");
    assert_eq!(session.len(table).expect("counts"), 20_002);
}

/// A key that no published checkpoint has gives its memory back once it is deleted, however long
/// checkpoints fail. They fail at their begin, or in the middle of their capture. Other deleted keys keep
/// their cells, no more than the last published checkpoint had keys.
#[test]
fn keys_that_live_shortly_hold_no_memory_while_checkpoints_fail() {
    for call in [Call::CreateDir, Call::Write] {
        let disk = SimDisk::new(1);
        let mut config = config(&disk, Arc::new(TestClock::default()));
        config.journal = "none".to_owned();
        config.max_memory_bytes = 32 << 20;
        let engine = Engine::open(config.clone()).expect("an empty disk");
        let table = engine.table("t").expect("a name");
        let mut session = engine.session().expect("a seat");
        (0..5_000).for_each(|key| put(&mut session, table, key, &[7; 900]).expect("commits"));
        engine.checkpoint().expect("a sound disk");
        let calls = vec![call];
        let (fault, lasts) = (Fault::InputOutput, Lasts::UntilCleared);
        disk.inject(FaultPlan { calls, nth: 1, fault, lasts });
        // Keys of 900 bytes that live for 1,000 commits: all of them together need 90 MB.
        for key in 5_000..105_000u32 {
            put(&mut session, table, key, &[7; 900]).expect("there is memory");
            let old = key.wrapping_sub(1_000).to_be_bytes();
            session.transact(|tx| tx.delete(table, &old)).expect("commits");
            if key % 10_000 == 0 {
                engine.checkpoint().expect_err("no checkpoint succeeds");
            }
        }
        disk.clear_faults();
        let done = engine.checkpoint().expect("a sound disk");
        assert_eq!(session.len(table).expect("counts"), 5_000, "{call:?}");
        drop((session, engine));
        let engine = Engine::open(config).expect("a chain");
        let mut session = engine.session().expect("a seat");
        assert_eq!(session.len(table).expect("counts"), 5_000, "{call:?}: {done:?}");
        let mut value = Vec::new();
        for (key, is_there) in [(3_999, true), (4_000, false), (103_999, false), (104_000, true)] {
            let found = session.read(table, &u32::to_be_bytes(key), &mut value).expect("a read");
            assert_eq!(found.is_some(), is_there, "{call:?} {key}");
        }
    }
}
