//! Tests of serials, named sessions, and waits for what is durable. `crash/serials.rs` has the crashes.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use stillpoint::{
    Config, Durability, Durable, Engine, Error, Phase, Session, TableId, Tx, offline,
};
use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SeededRng, SimDisk};

fn config(disk: &SimDisk, journal: &str) -> Config {
    let mut config = Config::new("data");
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.durability = Durability::Relaxed;
    config.journal = journal.to_owned();
    config.max_memory_bytes = 64 << 20;
    config.sessions = 4;
    config.logs = 2;
    config.log_segment_bytes = 64 << 10;
    config.recovery_threads = 1;
    config.checkpoint_every = None;
    // Nothing is flushed unless somebody asks.
    config.flush_interval = Duration::from_secs(3600);
    config
}

fn put(session: &mut Session, table: TableId, key: &[u8]) {
    session.transact(|tx| tx.put(table, key, b"value")).expect("commits");
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on(future: Durable) -> Result<(), Error> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ended) => return ended,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_serial_is_durable_when_its_log_is_flushed_or_a_checkpoint_has_it() {
    for journal in ["redo", "command", "undo-redo", "none"] {
        let engine = Engine::open(config(&SimDisk::new(1), journal)).expect("opens");
        let table = engine.table("t").expect("a table");
        let mut writer = engine.session().expect("a session");
        let mut reader = engine.session().expect("a session");
        assert_eq!((writer.serial(), writer.durable_serial()), (0, 0), "{journal}");
        for key in 1..=200_u8 {
            put(&mut writer, table, &[key]);
        }
        let mut seen = Vec::new();
        reader.read(table, &[200], &mut seen).expect("reads").expect("a value");
        assert_eq!((writer.serial(), writer.durable_serial()), (200, 0), "{journal}");
        assert_eq!((reader.serial(), reader.durable_serial()), (1, 0), "{journal}");
        writer.wait_durable(1).expect("durable");
        assert!(writer.durable_serial() >= 1, "{journal}");
        block_on(reader.durable(1).expect("ran")).expect("durable");
        assert_eq!(reader.durable_serial(), 1, "{journal}");
        // What a checkpoint has counts, with a journal too.
        put(&mut writer, table, b"last");
        engine.checkpoint().expect("a checkpoint");
        assert_eq!(writer.durable_serial(), 201, "{journal}");
        // A commit after the begin of the checkpoint is not in it.
        put(&mut writer, table, b"behind it");
        assert_eq!(writer.durable_serial(), 201, "{journal}");
        let refused = writer.wait_durable(203);
        assert!(matches!(refused, Err(Error::NoSuchSerial { serial: 203, last: 202 })));
        block_on(writer.durable(202).expect("ran")).expect("durable");
        assert_eq!(writer.durable_serial(), 202, "{journal}");
        // Who begins to ask late gets an answer about what came before.
        let mut late = engine.session().expect("a session");
        put(&mut late, table, b"late");
        assert_eq!(late.durable_serial(), 0, "{journal}");
        late.wait_durable(1).expect("durable");
        assert_eq!(late.durable_serial(), 1, "{journal}");
        drop((writer, reader, late));
        engine.close().expect("closes");
    }
}

#[test]
fn what_is_durable_already_takes_no_checkpoint() {
    let engine = Engine::open(config(&SimDisk::new(1), "none")).expect("opens");
    let table = engine.table("t").expect("a table");
    let (mut idle, mut writer) = (engine.session().expect("1"), engine.session().expect("2"));
    put(&mut writer, table, b"key");
    idle.wait_durable(0).expect("nothing to wait for");
    block_on(idle.durable(0).expect("ran")).expect("nothing to wait for");
    assert_eq!(engine.stats().checkpoints.published, 0);
    block_on(writer.durable(1).expect("ran")).expect("durable");
    assert_eq!(engine.stats().checkpoints.published, 1);
}

#[test]
fn a_commit_inside_a_checkpoint_is_made_durable_by_the_next() {
    for scheme in ["calc:partial", "zigzag", "hourglass", "calc-stored"] {
        let disk = SimDisk::new(1);
        let mut slow = config(&disk, "none");
        slow.checkpoint = scheme.to_owned();
        slow.checkpoint_pace = Some(4 << 20);
        let engine = Engine::open(slow).expect("opens");
        let table = engine.table("t").expect("a table");
        let mut writer = engine.session().expect("a session");
        let many =
            |tx: &mut Tx<'_>| (0..200_u8).try_for_each(|key| tx.put(table, &[key], &[key; 10_000]));
        writer.transact(many).expect("commits");
        assert_eq!(writer.durable_serial(), 0, "{scheme}");
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| engine.checkpoint());
            let is_captured = || {
                let running = engine.stats().checkpoints.running;
                running.is_some_and(|progress| progress.phase == Phase::Capture)
            };
            while !is_captured() && !taken.is_finished() {
                std::thread::yield_now();
            }
            disk.stall(&[Call::Rename]);
            put(&mut writer, table, b"inside");
            assert_eq!(writer.durable_serial(), 0, "{scheme}: nothing is published");
            disk.resume();
            taken.join().expect("no panic").expect("a checkpoint");
        });
        let durable = writer.durable_serial();
        let again = Engine::open(config(&disk.crash_image(7), "none")).expect("recovers");
        let records = again.len(again.table("t").expect("a table"));
        assert_eq!((durable, records), (1, 200), "{scheme}");
        engine.checkpoint().expect("a checkpoint");
        assert_eq!(writer.durable_serial(), 2, "{scheme}");
    }
}

#[test]
fn a_wait_ends_with_the_reason_of_a_failure() {
    let disk = SimDisk::new(1);
    let engine = Engine::open(config(&disk, "redo")).expect("opens");
    let table = engine.table("t").expect("a table");
    let mut session = engine.session().expect("a session");
    put(&mut session, table, b"flushed");
    session.wait_durable(1).expect("durable");
    put(&mut session, table, b"not flushed");
    let never_polled = session.durable(2).expect("ran");
    let calls = vec![Call::Sync];
    let plan = FaultPlan { calls, nth: 1, fault: Fault::InputOutput, lasts: Lasts::UntilCleared };
    disk.inject(plan);
    let failed = block_on(session.durable(2).expect("ran"));
    assert!(matches!(failed, Err(Error::Journal(_) | Error::Failed(_))), "{failed:?}");
    assert!(session.wait_durable(2).is_err());
    assert_eq!(session.durable_serial(), 1);
    session.wait_durable(1).expect("what was durable still is");
    drop(engine);
    let ended = block_on(never_polled);
    assert!(matches!(ended, Err(Error::Ended)), "{ended:?}");
    assert!(matches!(session.wait_durable(2), Err(Error::Ended)));
}

#[test]
fn a_transaction_awaits_nothing_that_waits_for_it() {
    for journal in ["redo", "none"] {
        let engine = Engine::open(config(&SimDisk::new(1), journal)).expect("opens");
        let table = engine.table("t").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut other = engine.session().expect("a session");
        put(&mut session, table, b"key");
        let waits = session.durable(1).expect("ran");
        let mut polled = pin!(session.durable(1).expect("ran"));
        let mut waits = Some(waits);
        let mut refused = Vec::new();
        let ran = other.transact(|_| {
            refused.extend(waits.take().map(block_on));
            Ok(())
        });
        ran.expect("commits");
        assert!(
            matches!(refused[..], [Err(Error::InsideTransaction { .. })]),
            "{journal}: {refused:?}"
        );
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        while polled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
        let read = other.transact(|_| Ok(block_on(session.durable(1).expect("ran")).is_ok()));
        assert!(read.expect("commits"), "{journal}: what is durable is not waited for");
    }
}

#[test]
fn futures_that_nobody_awaits_leave_nothing() {
    let engine = Engine::open(config(&SimDisk::new(1), "none")).expect("opens");
    let table = engine.table("t").expect("a table");
    let mut session = engine.session().expect("a session");
    put(&mut session, table, b"key");
    let waker = Arc::new(Unpark(std::thread::current()));
    for _ in 0..1000 {
        let mut future = pin!(session.durable(1).expect("ran"));
        let waker = Waker::from(waker.clone());
        let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
    }
    session.wait_durable(1).expect("durable");
    assert!(engine.stats().checkpoints.published < 100, "futures share checkpoints");
    drop(engine);
    assert_eq!(Arc::strong_count(&waker), 1, "no waker is kept");
}

#[test]
fn names_of_sessions_are_checked() {
    let engine = Engine::open(config(&SimDisk::new(1), "redo")).expect("opens");
    let reason = |name: &str| match engine.session_named(name) {
        Err(Error::SessionName { name: named, reason }) if named == name => reason,
        other => panic!("{name}: {other:?}"),
    };
    assert!(reason("").contains("empty"));
    assert!(reason(&"n".repeat(256)).contains("too long"));
    let longest = engine.session_named(&"n".repeat(255)).expect("a name");
    let first = engine.session_named("a").expect("a name");
    assert!(reason("a").contains("lives"));
    drop(first);
    let again = engine.session_named("a").expect("free again");
    drop((longest, again));
    let mut session = engine.session().expect("a session");
    session
        .transact(|_| {
            let refused = engine.session_named("b");
            assert!(matches!(refused, Err(Error::InsideTransaction { what: "session_named" })));
            Ok(())
        })
        .expect("commits");
}

#[test]
fn a_named_session_goes_on_and_its_table_is_not_seen() {
    let directory = tempfile::tempdir().expect("a directory");
    let copy = tempfile::tempdir().expect("a directory");
    let open = |dir: &std::path::Path| {
        let mut config = config(&SimDisk::new(1), "redo");
        config.data = dir.to_owned();
        config.environment.disk = None;
        config
    };
    let engine = Engine::open(open(directory.path())).expect("opens");
    let table = engine.table("t").expect("a table");
    let mut session = engine.session_named("importer").expect("a name");
    put(&mut session, table, b"1");
    session.transact(|tx| Ok(tx.get(table, b"1")?.is_some())).expect("reads");
    put(&mut session, table, b"3");
    session.transact(|tx| Ok(tx.get(table, b"1")?.is_some())).expect("reads");
    assert_eq!(session.serial(), 4);
    drop(session);
    // The last commit counts, not the read behind it.
    let session = engine.session_named("importer").expect("a name");
    assert_eq!(session.serial(), 3);
    drop(session);
    assert_eq!(engine.tables(), [("t".to_owned(), table)]);
    let own = engine.table("stillpoint:sessions");
    assert!(matches!(own, Err(Error::TableName { .. })), "{own:?}");
    engine.flush_tables(&[table]).expect("empties");
    engine.close().expect("closes");

    // A dump takes the serials along, so that the program goes on with the copy.
    let mut loader = offline::Loader::open(open(copy.path()), false).expect("empty");
    let mut records = Vec::new();
    offline::dump(directory.path(), None, &mut |table, key, value| {
        records.push((table.to_owned(), key.to_vec(), value.tag(), value.to_vec()));
        Ok(())
    })
    .expect("dumps");
    for (table, key, tag, value) in records {
        loader.put(&table, key, tag, value).expect("loads");
    }
    assert_eq!(loader.finish().expect("loads"), 1);
    let engine = Engine::open(open(copy.path())).expect("opens");
    let mut session = engine.session_named("importer").expect("a name");
    assert_eq!((session.serial(), session.durable_serial()), (3, 3));
    drop(session);
    engine.close().expect("closes");
}
