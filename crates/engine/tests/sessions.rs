//! Tests of the number of sessions, of calls refused inside a transaction, and of the dependencies
//! of answers in strict durability.

use std::sync::Arc;
use std::time::Duration;

use stillpoint::{
    Config, Durability, Engine, Error, KeySet, Mode, Procedure, Session, Slot, Stamp,
    StoredProcedure, TableId, Tx, TxError,
};
use stillpoint_io::{Clock, Disk, ManualClock, RealClock, SeededRng, SimDisk, spawn};

fn open(disk: &SimDisk, sessions: usize) -> Engine {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.sessions = sessions;
    config.checkpoint_threads = 2;
    config.logs = 2;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    config.environment.disk = Some(disk);
    config.environment.clock = Arc::new(ManualClock::self_advancing(1_700_000_000_000));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = false;
    Engine::builder(config).procedure("tell", |_| Ok(Tell)).open().expect("opens")
}

#[test]
fn sessions_beyond_their_number_are_refused_and_take_nothing_else() {
    let engine = open(&SimDisk::new(1), 3);
    let mut sessions: Vec<Session> = (0..3).map(|_| engine.session().expect("room")).collect();
    for _ in 0..10 {
        let refused = engine.session();
        assert!(matches!(refused, Err(Error::TooManySessions(3))), "{refused:?}");
    }
    engine.checkpoint().expect("capture threads have their places");
    sessions.pop();
    sessions.push(engine.session().expect("a place was given back"));
    assert!(engine.session().is_err());
    drop(sessions);
    engine.checkpoint().expect("a checkpoint");
    (0..20).for_each(|_| drop(engine.session().expect("given back each time")));
}

/// Runs some code inside a declared transaction.
struct Inside<F>(F);

impl<F: FnMut()> Procedure for Inside<F> {
    fn declare(&mut self, _: &mut KeySet) {}
    fn run(&mut self, _: &mut Tx<'_>) -> Result<(), TxError> {
        (self.0)();
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

#[test]
fn what_waits_for_transactions_is_refused_inside_of_one() {
    let disk = SimDisk::new(1);
    let engine = open(&disk, 3);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    let check = |from: &str| {
        let is_refused = |what: &str, result: Result<(), Error>| {
            let named =
                matches!(result, Err(Error::InsideTransaction { what: named }) if named == what);
            assert!(named, "{what} from {from}: {result:?}");
        };
        is_refused("flush_tables", engine.flush_tables(&[table]));
        is_refused("checkpoint", engine.checkpoint().map(drop));
    };
    session.execute(&mut [Inside(|| check("a declared transaction"))][..]);
    let put = session.transact(|tx| {
        check("an undeclared transaction");
        tx.put(table, b"key", b"value")
    });
    put.expect("commits");
    // The call is outside of the transaction again.
    engine.checkpoint().expect("a checkpoint");
    engine.flush_tables(&[table]).expect("flushes");
    // A close inside a transaction ends the engine, without a wait for the transaction itself.
    let mut engine = Some(engine);
    session.execute(
        &mut [Inside(|| {
            let refused = engine.take().expect("once").close();
            assert!(
                matches!(refused, Err(Error::InsideTransaction { what: "close" })),
                "{refused:?}"
            );
        })][..],
    );
    assert!(matches!(session.flush(), Err(Error::Ended)));
    open(&disk, 3);
}

#[test]
fn no_session_is_used_inside_a_declared_transaction() {
    let disk = SimDisk::new(1);
    let engine = open(&disk, 3);
    let table = engine.table("table").expect("a table");
    let (mut outer, mut inner) =
        (engine.session().expect("a session"), engine.session().expect("a session"));
    let mut check = |from: &str| {
        let is_refused = |what: &str, result: Result<(), Error>| {
            let named =
                matches!(result, Err(Error::InsideTransaction { what: named }) if named == what);
            assert!(named, "{what} from {from}: {result:?}");
        };
        is_refused("read", inner.read(table, b"key", &mut Vec::new()).map(drop));
        is_refused("scan", inner.scan(table, 0, 10, &mut |_, _| ()).map(drop));
        is_refused("transact", inner.transact(|tx| tx.put(table, b"key", b"inner")));
        is_refused("call", inner.call_encoded("none", b"").map(drop));
        let mut refused = RefusedWrite { table, reason: None };
        inner.execute(std::slice::from_mut(&mut refused));
        assert!(refused.reason.is_some_and(|reason| reason.contains("execute")), "{from}");
        inner.idle();
    };
    outer.execute(&mut [Inside(|| check("a declared transaction"))][..]);
    // Nested calls are refused in the same way.
    let mut innermost = engine.session().expect("a session");
    outer
        .transact(|_| {
            innermost.execute(&mut [Inside(|| check("a declared one in another"))][..]);
            Ok(())
        })
        .expect("commits");
    inner.transact(|tx| tx.put(table, b"key", b"inner")).expect("outside again");
}

/// A worker that ends waits for all read sections, including that of the transaction around it.
#[test]
fn a_session_may_be_dropped_inside_a_transaction() {
    let done = spawn("dropping", || {
        let disk = SimDisk::new(1);
        let engine = open(&disk, 2);
        let table = engine.table("table").expect("a table");
        let mut outer = engine.session().expect("a session");
        let inner = |engine: &Engine| {
            let mut inner = engine.session().expect("its place was given back");
            inner.transact(|tx| tx.put(table, b"key", b"value")).expect("commits");
            inner.transact(|tx| tx.delete(table, b"key").map(drop)).expect("commits");
            Some(inner)
        };
        let mut left = inner(&engine);
        outer.execute(&mut [Inside(|| left = None)][..]);
        let mut left = inner(&engine);
        let body = |tx: &mut Tx<'_>| {
            left = None;
            tx.put(table, b"other", b"value")
        };
        outer.transact(body).expect("commits");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut left = inner(&engine);
            outer.execute(
                &mut [Inside(|| {
                    left = None;
                    panic!("on purpose");
                })][..],
            );
        }));
        assert!(panicked.is_err());
        drop(inner(&engine));
        drop(outer);
        engine.close().expect("nothing is left of the sessions");
    })
    .expect("a thread");
    for _ in 0..20_000 {
        if done.is_finished() {
            return done.join().expect("no panic");
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("waited in vain for the session to end");
}

/// A write that must not run.
struct RefusedWrite {
    table: TableId,
    reason: Option<String>,
}

impl Procedure for RefusedWrite {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, b"key", Mode::Write, 8);
    }
    fn run(&mut self, _: &mut Tx<'_>) -> Result<(), TxError> {
        panic!("it is refused");
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.reason = result.err().map(|error| error.to_string());
    }
}

/// The visitor stands in no read section, so a wait for read sections does not wait for it.
#[test]
fn a_scans_visitor_may_use_the_engine() {
    let disk = SimDisk::new(1);
    let engine = open(&disk, 3);
    let tables = engine.tables_named(&["scanned", "flushed"]).expect("tables");
    let (scanned, flushed) = (tables[0], tables[1]);
    let (mut scanning, mut other) =
        (engine.session().expect("a session"), engine.session().expect("a session"));
    for key in 0..20u8 {
        scanning.transact(|tx| tx.put(scanned, &[key], b"value")).expect("commits");
    }
    let mut visited = 0;
    let visit = &mut |key: &[u8], _: stillpoint::ValueRef<'_>| {
        visited += 1;
        engine.flush_tables(&[flushed]).expect("waits for all read sections");
        other.transact(|tx| tx.put(flushed, key, b"seen")).expect("commits");
        assert!(other.read(flushed, key, &mut Vec::new()).expect("reads").is_some());
        if visited == 1 {
            engine.checkpoint().expect("waits for a grace period");
            engine.table("made meanwhile").expect("a table");
        }
    };
    let mut cursor = 0;
    loop {
        cursor = scanning.scan(scanned, cursor, 7, visit).expect("reads");
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(visited, 20);
    assert_eq!(other.len(flushed).expect("counts"), 1);
}

/// Puts or deletes a key. The transaction commits without a flush.
struct Write<'a>(TableId, &'a [u8], Option<&'a [u8]>);

impl Procedure for Write<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.0, self.1, Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        match self.2 {
            Some(value) => tx.put_slot(Slot(0), value),
            None => tx.delete_slot(Slot(0)).map(drop),
        }
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

/// Fails with the read value as its error.
struct Tell;

impl StoredProcedure for Tell {
    type Input = ();
    type Output = ();
    fn declare(&self, _: &(), keys: &mut KeySet) {
        keys.push(TableId(0), b"key", Mode::Read, 0);
        keys.push(TableId(0), b"other", Mode::Read, 0);
    }
    fn run(&self, _: &(), tx: &mut Tx<'_>) -> Result<(), TxError> {
        Err(tell(tx.value(Slot(0)).map(|value| value.to_vec())))
    }
}

fn tell(value: Option<Vec<u8>>) -> TxError {
    TxError::abandon(format!("found {value:?}"))
}

/// The ways in which a session reveals that a key was changed or deleted.
type Answer = fn(&mut Session, TableId) -> String;

fn told(result: Result<(), Error>) -> String {
    result.expect_err("it always fails").to_string()
}

const ANSWERS: [(&str, Answer); 6] = [
    ("the error of an undeclared transaction", |session, table| {
        told(session.transact(|tx| {
            let value = tx.get(table, b"key")?.map(|value| value.to_vec());
            Err(tell(value))
        }))
    }),
    ("the error of a procedure", |session, _| told(session.call("tell", &()))),
    ("an abandoned write", |session, table| {
        told(session.transact(|tx| {
            let value = tx.get(table, b"key")?.map(|value| value.to_vec());
            tx.put(table, b"another", b"never written")?;
            Err(tell(value))
        }))
    }),
    ("a scan", |session, table| {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: stillpoint::ValueRef<'_>| {
            found.push((key.to_vec(), value.to_vec()));
        };
        // One call scans an index of two keys.
        assert_eq!(session.scan(table, 0, 1 << 20, &mut visit).expect("reads"), 0);
        session.flush().expect("flushes");
        format!("{found:?}")
    }),
    ("a count", |session, table| {
        let count = session.len(table).expect("counts");
        session.flush().expect("flushes");
        count.to_string()
    }),
    ("a read", |session, table| {
        let mut value = Vec::new();
        let seen = session.read(table, b"key", &mut value).expect("reads");
        session.flush().expect("flushes");
        format!("{:?}", seen.map(|_| value))
    }),
];

/// An answer of a strict session must be the same after a crash.
#[test]
fn whatever_is_told_survives_a_crash() {
    for (name, answer) in ANSWERS {
        for new in [None, Some(b"new")] {
            for seed in 0..20 {
                let disk = SimDisk::new(seed);
                let engine = open(&disk, 4);
                let table = engine.table("table").expect("a table");
                let mut writer = engine.session().expect("a session");
                let mut reader = engine.session().expect("a session");
                writer.execute(&mut [Write(table, b"key", Some(b"old"))][..]);
                writer.flush().expect("flushes");
                writer.execute(&mut [Write(table, b"key", new.map(|new| &new[..]))][..]);
                let before = answer(&mut reader, table);
                let after_crash = disk.crash(seed);
                drop((writer, reader, engine));
                let engine = open(&after_crash, 4);
                let mut reader = engine.session().expect("a session");
                let after = answer(&mut reader, table);
                assert_eq!(before, after, "{name}, {new:?}, crash {seed}");
            }
        }
    }
}

#[test]
fn statistics_wait_for_nothing() {
    let disk = SimDisk::new(1);
    let engine = open(&disk, 4);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    session.execute(&mut [Write(table, b"key", Some(b"value"))][..]);
    let flushes = disk.call_counts();
    assert_eq!(engine.len(table), 1);
    assert_eq!(engine.stats().epoch, 1);
    assert_eq!(disk.call_counts(), flushes, "the disk is asked for nothing");
    let waits = session.unflushed();
    assert!(!waits.is_empty(), "the commit itself");
    assert!(session.unflushed().is_empty());
    session.len(table).expect("counts");
    let answer = session.unflushed();
    assert!(!answer.is_empty() && !engine.is_durable(&answer), "a count waits for every log");
}

#[test]
fn statistics_say_who_holds_the_log_and_how_much() {
    let disk = SimDisk::new(1);
    let held = |engine: &Engine| {
        let holders = engine.stats().log_holders;
        let [checkpoint] = &holders[..] else { panic!("one holder: {holders:?}") };
        assert_eq!(checkpoint.name, "checkpoint");
        checkpoint.bytes
    };
    let engine = open(&disk, 4);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    assert_eq!(held(&engine), 0);
    for key in 0..100_u8 {
        session.execute(&mut [Write(table, &[key], Some(&[key; 1000]))][..]);
    }
    session.flush().expect("flushes");
    assert!(held(&engine) >= 100_000, "{} bytes", held(&engine));
    engine.checkpoint().expect("a checkpoint");
    assert_eq!(held(&engine), 0);
    session.execute(&mut [Write(table, b"key", Some(b"value"))][..]);
    session.flush().expect("flushes");
    let after = held(&engine);
    assert!((1..100_000).contains(&after), "{after} bytes");

    // Segments of earlier incarnations are kept until the first checkpoint of this one.
    drop((session, engine));
    let engine = open(&disk.kill(), 4);
    assert!(held(&engine) > 0, "the last run's log");
    engine.checkpoint().expect("a checkpoint");
    assert_eq!(held(&engine), 0);
}

/// A transaction that needs the keys of an open transaction takes the permit of the store in the
/// end. The open transaction still goes on, with further keys.
#[test]
fn an_open_transaction_goes_on_while_others_wait_for_it() {
    let engine = open(&SimDisk::new(1), 8);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut transaction = session.begin().expect("begins");
    transaction.tx().expect("not in a batch").put(table, b"wanted", b"1").expect("no conflict");
    let mut waiting = engine.session().expect("a session");
    let waiter = spawn("waiter", move || {
        waiting.transact(|tx| {
            let found = tx.get(table, b"wanted")?.map(|value| value.to_vec());
            tx.put(table, b"seen", found.as_deref().unwrap_or(b"none"))
        })
    });
    let waiter = waiter.expect("a thread");
    for round in 0..50_u8 {
        RealClock.sleep(Duration::from_millis(2));
        transaction
            .tx()
            .expect("not in a batch")
            .put(table, &[round], b"more")
            .expect("nobody else has these keys");
    }
    transaction.commit().expect("commits");
    waiter.join().expect("no panic").expect("commits");
    let seen = session.transact(|tx| Ok(tx.get(table, b"seen")?.map(|value| value.to_vec())));
    assert_eq!(seen.expect("commits").as_deref(), Some(&b"1"[..]));
    assert_eq!(engine.len(table), 52);
}

/// Deletes a key.
struct Deletes {
    table: TableId,
    key: &'static [u8],
    ended: Option<Result<(), TxError>>,
}

impl Procedure for Deletes {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, self.key, Mode::Write, 0);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.delete_slot(Slot(0)).map(drop)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result.map(drop));
    }
}

#[test]
fn upkeep_leaves_out_a_key_that_somebody_has_locked() {
    let engine = open(&SimDisk::new(1), 8);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    for key in [b"held", b"free"] {
        session.transact(|tx| tx.put(table, key, b"value")).expect("commits");
    }
    let mut holding = engine.session().expect("a session");
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let holder = spawn("holder", move || {
        let mut transaction = holding.begin().expect("begins");
        transaction.tx().expect("not in a batch").put(table, b"held", b"1").expect("no conflict");
        begun.send(()).expect("the test waits");
        // A transaction that waits for the lock goes on after this.
        let _ = is_over.recv_timeout(Duration::from_secs(5));
        transaction.commit().expect("commits");
    });
    has_begun.recv().expect("it has begun");
    let deletes = |key| Deletes { table, key, ended: None };
    let mut upkeep = [deletes(b"held"), deletes(b"free")];
    session.execute_if_free(&mut upkeep[..]);
    over.send(()).expect("the holder waits");
    let [held, free] = upkeep.map(|one| one.ended.expect("it has ended"));
    assert!(matches!(held, Err(TxError::WaitsForItself)), "{held:?}");
    assert!(free.is_ok(), "{free:?}");
    holder.expect("a thread").join().expect("no panic");
    // Other batches wait as before.
    let mut last = [deletes(b"held")];
    session.execute(&mut last[..]);
    assert!(matches!(last[0].ended, Some(Ok(()))));
    assert_eq!(engine.len(table), 0);
}

/// A table that is emptied meanwhile conflicts with the transaction that has read it.
#[test]
fn an_open_transaction_does_not_outlive_its_table() {
    let engine = open(&SimDisk::new(1), 3);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut transaction = session.begin().expect("begins");
    transaction.tx().expect("not in a batch").put(table, b"key", b"value").expect("no conflict");
    engine.flush_tables(&[table]).expect("flushes");
    let ended = transaction.commit();
    assert!(matches!(ended, Err(Error::Transaction(TxError::Conflict))), "{ended:?}");
    assert_eq!(engine.len(table), 0);
    session.transact(|tx| tx.put(table, b"key", b"value")).expect("the session goes on");
}

/// A table that is made or emptied meanwhile does not concern a transaction that has met no key of it.
#[test]
fn an_open_transaction_outlives_changes_of_other_tables() {
    let engine = open(&SimDisk::new(1), 3);
    let tables = engine.tables_named(&["table", "other"]).expect("two tables");
    let mut session = engine.session().expect("a session");
    let mut transaction = session.begin().expect("begins");
    transaction.tx().expect("not in a batch").put(tables[0], b"key", b"1").expect("no conflict");
    engine.table("third").expect("a table");
    engine.flush_tables(&tables[1..]).expect("flushes");
    transaction.tx().expect("not in a batch").put(tables[0], b"more", b"2").expect("no conflict");
    transaction.commit().expect("commits");
    assert_eq!(engine.len(tables[0]), 2);
}

/// A body that panics, and a transaction that is leaked.
#[test]
fn a_panic_rolls_an_open_transaction_back_and_a_leak_ends_its_session() {
    let engine = open(&SimDisk::new(1), 3);
    let table = engine.table("table").expect("a table");
    let mut session = engine.session().expect("a session");
    let panicked = stillpoint_io::catch_panic("test", || {
        let mut transaction = session.begin().expect("begins");
        transaction
            .tx()
            .expect("not in a batch")
            .put(table, b"key", b"value")
            .expect("no conflict");
        panic!("in the middle");
    });
    assert!(panicked.is_err());
    session.transact(|tx| tx.put(table, b"key", b"free")).expect("its locks are given back");
    let mut leaked = session.begin().expect("begins");
    leaked.tx().expect("not in a batch").put(table, b"other", b"value").expect("no conflict");
    std::mem::forget(leaked);
    let used = stillpoint_io::catch_panic("test", || {
        let _ = session.transact(|tx| tx.put(table, b"third", b"value"));
    });
    assert!(used.is_err_and(|panic| panic.to_string().contains("leaked")));
    let mut another = engine.session().expect("a session");
    another.transact(|tx| tx.put(table, b"third", b"value")).expect("other keys are free");
}
