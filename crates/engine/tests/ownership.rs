//! Tests that one engine at a time changes a data directory. Neither sessions of a closed engine
//! nor an engine whose directory was replaced may change it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{
    Config, Durability, Engine, Error, KeySet, NotOwner, Procedure, Session, Stamp, TableId, Tx,
    TxError,
};
use stillpoint_io::{
    Call, Clock, Disk, ManualClock, RealClock, RealDisk, SeededRng, SimDisk, read_all,
};

fn config(disk: &Arc<dyn Disk>, background: bool) -> Config {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.logs = 2;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    config.environment.disk = Some(disk.clone());
    config.environment.clock = Arc::new(ManualClock::self_advancing(1_700_000_000_000));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = background;
    config
}

fn put(session: &mut Session, table: TableId, key: &[u8]) -> Result<(), Error> {
    session.transact(|tx| tx.put(table, key, b"value"))
}

fn keys(engine: &Engine, table: TableId) -> Vec<Vec<u8>> {
    let mut session = engine.session().expect("a session");
    let (mut cursor, mut found) = (0, Vec::new());
    loop {
        let next = session.scan(table, cursor, 64, &mut |key, _| found.push(key.to_vec()));
        cursor = next.expect("reads");
        if cursor == 0 {
            found.sort();
            return found;
        }
    }
}

/// A declared transaction without keys, and its outcome.
struct Nothing(Option<Result<(), TxError>>);

impl Procedure for Nothing {
    fn declare(&mut self, _: &mut KeySet) {}
    fn run(&mut self, _: &mut Tx<'_>) -> Result<(), TxError> {
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.0 = Some(result.map(drop));
    }
}

/// Makes every call of a session whose engine is gone.
fn assert_ended(session: &mut Session, table: TableId) {
    let is_ended = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Ended)), "{result:?}");
    };
    is_ended(put(session, table, b"late"));
    is_ended(session.transact(|tx| tx.get(table, b"early").map(drop)));
    is_ended(session.read(table, b"early", &mut Vec::new()).map(drop));
    is_ended(session.scan(table, 0, 1, &mut |_, _| {}).map(drop));
    is_ended(session.len(table).map(drop));
    is_ended(session.call_encoded("unknown", b"").map(drop));
    is_ended(session.flush());
    let mut nothing = Nothing(None);
    session.execute(std::slice::from_mut(&mut nothing));
    let told = nothing.0.expect("told how it ended").expect_err("refused").to_string();
    assert!(told.contains("the engine was closed or dropped"), "{told}");
    session.idle();
}

#[test]
fn a_session_does_nothing_once_its_engine_is_gone() {
    for closed in [false, true] {
        for background in [false, true] {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
            let engine = Engine::open(config(&disk, background)).expect("an empty directory");
            let table = engine.table("table").expect("a table");
            let mut session = engine.session().expect("a session");
            put(&mut session, table, b"early").expect("commits");
            if closed {
                engine.close().expect("closes");
            } else {
                drop(engine);
            }
            let second = Engine::open(config(&disk, background)).expect("the directory is free");
            assert_ended(&mut session, table);
            let mut other = second.session().expect("a session");
            put(&mut other, table, b"next").expect("commits");
            assert_ended(&mut session, table);
            drop((session, other));
            drop(second);
            let third = Engine::open(config(&disk, background)).expect("free again");
            assert_eq!(keys(&third, table), [b"early".to_vec(), b"next".to_vec()]);
        }
    }
}

#[test]
fn a_call_under_way_is_waited_for_or_refused() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let engine = Engine::open(config(&disk, false)).expect("an empty directory");
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    sim.stall(&[Call::Sync]);
    let committing = stillpoint_io::spawn("commit", move || put(&mut session, table, b"under way"));
    let committing = committing.expect("a thread");
    while sim.waiting_calls() == 0 {
        std::thread::yield_now();
    }
    let dropping = stillpoint_io::spawn("drop", move || drop(engine)).expect("a thread");
    for _ in 0..1000 {
        std::thread::yield_now();
        let free = sim.lock(Path::new("LOCK")).expect("a disk").is_some();
        assert!(!free, "the directory is given away while a flush is under way");
    }
    sim.resume();
    dropping.join().expect("no panic");
    let committed = committing.join().expect("no panic");
    let next = Engine::open(config(&disk, false)).expect("the directory is free");
    let found = !keys(&next, table).is_empty();
    assert!(found || committed.is_err(), "acknowledged and lost");
}

/// Checks that an engine does nothing once its directory belongs to another.
fn assert_not_owner(engine: &Engine, session: &mut Session, table: TableId) {
    let is_refused = |result: Result<(), Error>| {
        let lost = matches!(&result, Err(Error::NotOwner(NotOwner::LockReplaced(path)))
            if path.ends_with("LOCK"));
        assert!(lost, "{result:?}");
        let told = result.expect_err("refused").to_string();
        assert!(told.contains("LOCK is not the file that this process has locked"), "{told}");
    };
    is_refused(engine.checkpoint().map(drop).map_err(|error| match error {
        // The scheme's errors are texts.
        Error::Checkpoint(_) => engine.health().expect_err("fails with the checkpoint"),
        error => error,
    }));
    is_refused(engine.health());
    is_refused(engine.table("another").map(drop));
    is_refused(engine.flush_tables(&[table]));
    is_refused(put(session, table, b"late"));
    let seen = session.read(table, b"ours", &mut Vec::new()).expect("reads are served");
    assert!(seen.is_some());
}

#[test]
fn an_engine_whose_lock_file_was_replaced_changes_nothing_more() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let first = Engine::open(config(&disk, false)).expect("an empty directory");
    let table = first.table("table").expect("a table");
    let mut session = first.session().expect("a session");
    put(&mut session, table, b"ours").expect("commits");
    disk.remove(Path::new("LOCK")).expect("removed");
    let second = Engine::open(config(&disk, false)).expect("the name is free");
    let mut other = second.session().expect("a session");
    put(&mut other, table, b"theirs").expect("commits");
    let manifest = read_all(&*disk, Path::new("MANIFEST")).expect("a manifest");
    assert_not_owner(&first, &mut session, table);
    drop((session, first));
    assert_eq!(read_all(&*disk, Path::new("MANIFEST")).expect("a manifest"), manifest);
    second.checkpoint().expect("a checkpoint");
    put(&mut other, table, b"theirs, too").expect("commits");
    drop((other, second));
    let third = Engine::open(config(&disk, false)).expect("free");
    assert_eq!(keys(&third, table).len(), 3);
}

#[test]
fn a_server_whose_directory_was_removed_leaves_the_next_one_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let root = RealDisk::new(scratch.path()).expect("a directory");
    let open = || {
        let disk: Arc<dyn Disk> =
            Arc::new(RealDisk::new(scratch.path().join("data")).expect("made"));
        Engine::open(config(&disk, false)).expect("opens")
    };
    let first = open();
    let table = first.table("table").expect("a table");
    let mut session = first.session().expect("a session");
    put(&mut session, table, b"ours").expect("commits");
    root.remove(Path::new("data")).expect("removed");
    let second = open();
    let other_table = second.table("table").expect("a table");
    let mut other = second.session().expect("a session");
    put(&mut other, other_table, b"theirs").expect("commits");
    second.checkpoint().expect("a checkpoint");
    assert_not_owner(&first, &mut session, table);
    drop((session, first));
    // As after a kill.
    drop((other, second));
    let third = open();
    assert_eq!(keys(&third, other_table), [b"theirs".to_vec()]);
}

#[test]
fn a_replaced_lock_file_is_noticed_without_any_call() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let engine = Engine::open(config(&disk, true)).expect("an empty directory");
    disk.rename(Path::new("LOCK"), Path::new("LOCK.old")).expect("renamed");
    // The clock of the test moves by itself, so a second of it is soon over.
    let start_ns = RealClock.monotonic_ns();
    while engine.health().is_ok() {
        let waited = Duration::from_nanos(RealClock.monotonic_ns() - start_ns);
        assert!(waited < Duration::from_secs(100), "nobody looks");
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(matches!(engine.health(), Err(Error::NotOwner(_))));
}
