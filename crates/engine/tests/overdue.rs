//! Tests of the warnings that a checkpoint is overdue, and that a chain is too long. They are alone in
//! their process, since they listen to the log of the whole process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{CheckpointPolicy, Config, Engine, Session, TableId};
use stillpoint_format::names::CHECKPOINT_DIR;
use stillpoint_io::{Call, Clock, Disk, Fault, FaultPlan, Lasts, RealClock, SeededRng, SimDisk};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Warnings of overdue checkpoints so far.
static WARNINGS: AtomicU64 = AtomicU64::new(0);
/// Warnings of long chains so far.
static LONG_CHAINS: AtomicU64 = AtomicU64::new(0);

/// Counts the warnings.
struct Listener;

/// The tests share the listener.
fn listen() {
    // A second call changes nothing.
    let _ = tracing::subscriber::set_global_default(Listener);
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() != "message" {
            return;
        }
        let told = format!("{value:?}");
        if told.contains("three periods ago") {
            WARNINGS.fetch_add(1, SeqCst);
        }
        if told.contains("longer than its bound") {
            LONG_CHAINS.fetch_add(1, SeqCst);
        }
    }
}

/// A clock that the test moves.
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

impl TestClock {
    /// Lets a minute pass, and the background threads look around.
    fn pass_minutes(&self, minutes: u64) {
        for _ in 0..minutes {
            self.0.fetch_add(60_000_000_000, SeqCst);
            RealClock.sleep(Duration::from_millis(30));
        }
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..5_000 {
        if done() {
            return;
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("waited for ever until {what}");
}

fn open(checkpoint: &str, disk: &SimDisk, clock: &Arc<TestClock>) -> (Engine, TableId) {
    let mut config = Config::new("data");
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.clock = clock.clone();
    config.max_memory_bytes = 64 << 20;
    config.sessions = 4;
    config.logs = 1;
    config.log_segment_bytes = 64 << 10;
    config.checkpoint = checkpoint.to_owned();
    config.checkpoint_every = Some(Duration::from_secs(60));
    config.checkpoint_pace = Some(1000);
    let engine = Engine::open(config).expect("an empty disk");
    let table = engine.table("t").expect("a name");
    (engine, table)
}

fn put(session: &mut Session, table: TableId, key: u32) {
    let put = session.transact(|tx| tx.put(table, &key.to_be_bytes(), &[7; 1000]));
    put.expect("commits");
}

/// A warning comes once for each time that a checkpoint is late, also while a slow one is under way. A
/// store whose scheme takes none is never late.
#[test]
fn a_late_checkpoint_is_in_the_log_once() {
    listen();
    let warnings = || WARNINGS.load(SeqCst);
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, table) = open("none", &disk, &clock);
    let mut session = engine.session().expect("a seat");
    put(&mut session, table, 1);
    assert!(!engine.stats().checkpoints.is_overdue);
    clock.pass_minutes(5);
    assert_eq!((warnings(), engine.stats().checkpoints.is_overdue), (0, false), "it takes none");
    drop((session, engine));

    // Two megabytes at a thousand bytes per second take more than half an hour.
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, table) = open("calc", &disk, &clock);
    let mut session = engine.session().expect("a seat");
    (0..2000).for_each(|key| put(&mut session, table, key));
    let status = || engine.stats().checkpoints;
    assert!(!status().is_overdue);
    wait_until("a checkpoint begins", || {
        clock.pass_minutes(1);
        status().running.is_some()
    });
    clock.pass_minutes(8);
    assert!(status().running.is_some() && status().is_overdue, "{:?}", status());
    wait_until("the warning", || warnings() == 1);
    clock.pass_minutes(5);
    assert_eq!(warnings(), 1, "once");
    wait_until("it is published", || {
        clock.pass_minutes(1);
        status().published > 0
    });
    assert!(!status().is_overdue);
    // The next one cannot be written.
    disk.inject(FaultPlan {
        calls: vec![Call::CreateDir],
        nth: 1,
        fault: Fault::InputOutput,
        lasts: Lasts::UntilCleared,
    });
    put(&mut session, table, 1);
    wait_until("the next warning", || {
        clock.pass_minutes(1);
        warnings() == 2
    });
}

/// Chains of fuzzy checkpoints are never merged. A full checkpoint ends them, and nobody is warned.
#[test]
fn a_chain_that_cannot_be_merged_is_within_its_bound() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, table) = open("fuzzy:partial", &disk, &clock);
    let merged = |policy: &mut CheckpointPolicy| {
        (policy.every, policy.pace, policy.merge_after) = (None, None, Some(2));
    };
    engine.change_checkpoint_policy(merged).expect("a sound policy");
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key));
    let mut longest = 0;
    for _ in 0..20 {
        engine.checkpoint().expect("published");
        put(&mut session, table, 1);
        let status = engine.stats().checkpoints;
        assert!(status.chain_links <= status.chain_links_max, "{status:?}");
        longest = longest.max(status.chain_links);
    }
    assert_eq!(longest, 17, "one of all records, and 16 of changes");
}

/// Merges were off, and then the chain cannot be read. The log says once that the chain is too long,
/// and once more for the next such chain.
#[test]
fn a_chain_that_is_not_merged_is_in_the_log_once() {
    listen();
    let (disk, clock) = (SimDisk::new(1), Arc::new(TestClock::default()));
    let (engine, table) = open("calc:partial", &disk, &clock);
    let unmerged = |policy: &mut CheckpointPolicy| {
        (policy.every, policy.pace, policy.merge_after) = (None, None, None);
    };
    let mut session = engine.session().expect("a seat");
    (0..100).for_each(|key| put(&mut session, table, key));
    let status = || engine.stats().checkpoints;
    for warnings in 1..=2 {
        engine.change_checkpoint_policy(unmerged).expect("a sound policy");
        for _ in 0..9 {
            engine.checkpoint().expect("published");
            put(&mut session, table, 1);
        }
        let links = status().chain_links;
        assert!(links >= 9 && status().chain_links_max == 17, "{:?}", status());
        assert_eq!(LONG_CHAINS.load(SeqCst), warnings - 1);
        // The directory with the newest changes.
        let names = disk.list(Path::new(CHECKPOINT_DIR)).expect("the checkpoints");
        let newest = names.iter().filter(|name| name.ends_with("-partial")).max();
        let newest = Path::new(CHECKPOINT_DIR).join(newest.expect("changes"));
        disk.remove(&newest).expect("removed");
        let merged = |policy: &mut CheckpointPolicy| policy.merge_after = Some(2);
        engine.change_checkpoint_policy(merged).expect("a sound policy");
        assert_eq!(status().chain_links_max, 5);
        wait_until("the warning", || {
            clock.pass_minutes(1);
            LONG_CHAINS.load(SeqCst) == warnings
        });
        wait_until("a full checkpoint takes its place", || status().chain_links == 1);
    }
}
