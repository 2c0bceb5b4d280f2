//! Tests of requests for checkpoints, and of changes of the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{Config, Engine, Error, Session, TableId};
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
    assert!(engine.full_checkpoint_in_background());
    assert!(!engine.checkpoint_in_background(), "one is requested");
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
        wait_until("the request is forgotten", || engine.checkpoint_in_background());
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
