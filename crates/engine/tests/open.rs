//! Tests of transactions that stay open across calls: what their thread may do beside them, and what
//! their commit promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{
    Config, Durability, Engine, Error, KeySet, Kind, Mode, Procedure, Session, Slot, Stamp,
    TableId, Transaction, Tx, TxError,
};
use stillpoint_io::{Clock, Disk, JoinHandle, ManualClock, RealClock, SeededRng, SimDisk, spawn};
use stillpoint_store::RUNS_MAX;

fn open(disk: &SimDisk) -> Arc<Engine> {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.sessions = 8;
    config.logs = 2;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    config.environment.disk = Some(disk);
    config.environment.clock = Arc::new(ManualClock::self_advancing(1_700_000_000_000));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = false;
    Arc::new(Engine::open(config).expect("opens"))
}

/// Runs a test on a thread of its own, and fails if it does not end.
fn within_a_minute(what: &str, test: impl FnOnce() + Send + 'static) {
    let thread = spawn("test", test).expect("a thread");
    for _ in 0..6000 {
        if thread.is_finished() {
            return thread.join().expect("no panic");
        }
        RealClock.sleep(Duration::from_millis(10));
    }
    panic!("{what} hangs");
}

/// Another thread, which has taken the permit of the store and waits for the key `wanted`.
struct Waiter {
    thread: JoinHandle<Result<(), Error>>,
}

impl Waiter {
    fn begin(engine: &Engine, table: TableId) -> Self {
        let mut session = engine.session().expect("a session");
        let has_permit = Arc::new(AtomicBool::new(false));
        let told = has_permit.clone();
        let thread = spawn("waiter", move || {
            let mut runs = 0;
            session.transact(|tx| {
                runs += 1;
                if runs < RUNS_MAX {
                    return Err(TxError::Conflict);
                }
                // The last run has the permit.
                told.store(true, SeqCst);
                tx.put(table, b"wanted", b"waiter")
            })
        });
        while !has_permit.load(SeqCst) {
            RealClock.sleep(Duration::from_millis(1));
        }
        Self { thread: thread.expect("a thread") }
    }

    fn end(self) {
        self.thread.join().expect("no panic").expect("commits");
    }
}

/// Writes one declared key.
struct Put(TableId, &'static [u8], Option<Result<(), TxError>>);

impl Procedure for Put {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.0, self.1, Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), b"declared")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.2 = Some(result.map(drop));
    }
}

fn execute(session: &mut Session, table: TableId, key: &'static [u8]) -> Result<(), TxError> {
    let mut batch = [Put(table, key, None), Put(table, key, None)];
    session.execute(&mut batch[..]);
    let [first, second] = batch.map(|put| put.2.expect("told how it ended"));
    assert_eq!(first.is_ok(), second.is_ok(), "{first:?} and {second:?}");
    first
}

fn waits_for_itself(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Transaction(TxError::WaitsForItself)))
}

/// The thread of an open transaction meets the holder of the permit, who waits for that transaction.
/// Whatever would wait for the holder is refused, and the open transaction goes on.
#[test]
fn a_thread_does_not_wait_for_who_waits_for_its_open_transaction() {
    within_a_minute("a call beside the holder of the permit", || {
        let engine = open(&SimDisk::new(1));
        let table = engine.table("table").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut other = engine.session().expect("a session");
        let mut transaction = session.begin().expect("begins");
        transaction.tx().expect("not in a batch").put(table, b"wanted", b"open").expect("free");
        let waiter = Waiter::begin(&engine, table);

        assert!(waits_for_itself(other.transact(|tx| tx.put(table, b"unrelated", b"1"))));
        assert!(waits_for_itself(other.transact(|tx| tx.get(table, b"unrelated").map(drop))));
        let ended = execute(&mut other, table, b"unrelated");
        assert!(matches!(ended, Err(TxError::WaitsForItself)), "{ended:?}");
        let mut second = other.begin().expect("begins");
        let met = second.tx().expect("not in a batch").put(table, b"unrelated", b"2");
        assert!(matches!(met, Err(TxError::WaitsForItself)), "{met:?}");
        let ended = second.commit();
        assert!(matches!(ended, Err(Error::Transaction(TxError::Conflict))), "{ended:?}");
        // What waits for no transaction goes on.
        assert!(other.read(table, b"wanted", &mut Vec::new()).expect("reads").is_none());
        engine.checkpoint().expect("a checkpoint waits for no open transaction");
        drop(engine.session().expect("a session"));
        transaction.tx().expect("not in a batch").put(table, b"more", b"open").expect("free");
        let another = engine.table("another").expect("made");
        engine.flush_tables(&[another]).expect("a flush waits for no open transaction");
        transaction.commit().expect("commits");
        waiter.end();
        other.transact(|tx| tx.put(table, b"unrelated", b"3")).expect("waits as ever");
        let value = other.transact(|tx| Ok(tx.get(table, b"wanted")?.map(|v| v.to_vec())));
        assert_eq!(value.expect("commits").as_deref(), Some(&b"waiter"[..]));
    });
}

/// A thread wants the key of its own open transaction, in every way, without another thread.
#[test]
fn a_thread_does_not_wait_for_its_own_open_transaction() {
    within_a_minute("a wait for the thread's own transaction", || {
        let engine = open(&SimDisk::new(1));
        let table = engine.table("table").expect("a table");
        let [mut first, mut second, mut third] =
            [(); 3].map(|()| engine.session().expect("a session"));
        let mut older = first.begin().expect("begins");
        let mut younger = second.begin().expect("begins");
        younger.tx().expect("not in a batch").put(table, b"key", b"younger").expect("free");
        assert!(waits_for_itself(third.transact(|tx| tx.put(table, b"key", b"third"))));
        let ended = execute(&mut third, table, b"key");
        assert!(matches!(ended, Err(TxError::WaitsForItself)), "{ended:?}");
        execute(&mut third, table, b"another").expect("a free key");
        // The older transaction may wait for the younger one, but not on this thread.
        let met = older.tx().expect("not in a batch").put(table, b"key", b"older");
        assert!(matches!(met, Err(TxError::WaitsForItself)), "{met:?}");
        drop(older);
        // Readers share a lock, which no other transaction of the thread makes exclusive.
        let mut older = first.begin().expect("begins");
        let get = older.tx().expect("not in a batch").get(table, b"shared").map(drop);
        get.expect("free");
        younger.tx().expect("not in a batch").get(table, b"shared").map(drop).expect("shared");
        let met = older.tx().expect("not in a batch").put(table, b"shared", b"older");
        assert!(met.is_err(), "the younger one reads it");
        drop(older);
        younger.commit().expect("commits");
        third.transact(|tx| tx.put(table, b"key", b"third")).expect("it is free");
    });
}

/// While open transactions share a lock, writers of all sorts give up. Others go on to share the lock.
#[test]
fn a_writer_that_gives_up_keeps_no_reader_away() {
    within_a_minute("a reader after a writer that has given up", || {
        let engine = open(&SimDisk::new(1));
        let plain = engine.table("plain").expect("a table");
        let ordered = engine.table_with("ordered", Kind::Ordered).expect("a table");
        let sessions = [(); 6].map(|()| engine.session().expect("a session"));
        let [mut first, mut second, mut third, mut fourth, mut fifth, mut writer] = sessions;
        let read = |open: &mut Transaction<'_>| -> Result<(), TxError> {
            let mut tx = open.tx().expect("not in a batch");
            tx.get(plain, b"shared")?;
            tx.range(ordered, ..)?.next_record().map(drop)
        };
        let mut oldest = first.begin().expect("begins");
        read(&mut oldest).expect("free");

        for table in [plain, ordered] {
            let ended = execute(&mut writer, table, b"shared");
            assert!(matches!(ended, Err(TxError::WaitsForItself)), "{ended:?}");
        }
        let mut reader = second.begin().expect("begins");
        read(&mut reader).expect("declared writers have given up");

        for table in [plain, ordered] {
            assert!(waits_for_itself(writer.transact(|tx| tx.put(table, b"shared", b"new"))));
        }
        let mut reader = third.begin().expect("begins");
        read(&mut reader).expect("undeclared writers have given up");

        for table in [plain, ordered] {
            let met = oldest.tx().expect("not in a batch").put(table, b"shared", b"older");
            assert!(met.is_err(), "others read it");
        }
        let mut reader = fourth.begin().expect("begins");
        read(&mut reader).expect("the oldest has given up");
        drop(oldest);
        let mut reader = fifth.begin().expect("begins");
        read(&mut reader).expect("shared");
    });
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

/// A batch is a read section, which a flush of tables waits for. What enters another read section
/// there would wait for the flush.
#[test]
fn an_open_transaction_is_not_used_inside_a_batch() {
    let engine = open(&SimDisk::new(1));
    let table = engine.table("table").expect("a table");
    let [mut session, mut second, mut third, mut batch] =
        [(); 4].map(|()| engine.session().expect("a session"));
    let mut used = session.begin().expect("begins");
    used.tx().expect("not in a batch").put(table, b"used", b"1").expect("free");
    let mut committed = Some(second.begin().expect("begins"));
    let open = committed.as_mut().expect("open");
    open.tx().expect("not in a batch").put(table, b"committed", b"1").expect("free");
    let is_refused = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::InsideTransaction { .. })), "{result:?}");
    };
    batch.execute(
        &mut [Inside(|| {
            is_refused(used.tx().map(drop));
            is_refused(committed.take().expect("once").commit());
            is_refused(third.begin().map(drop));
        })][..],
    );
    assert_eq!(engine.len(table), 0, "the refused commit has rolled back");
    used.tx().expect("outside again").put(table, b"more", b"1").expect("free");
    used.commit().expect("commits");
    assert_eq!(engine.len(table), 2);
}

/// A commit of an open transaction is acknowledged like any other.
#[test]
fn an_acknowledged_commit_survives_a_crash() {
    for seed in 0..4 {
        let disk = SimDisk::new(seed);
        let engine = open(&disk);
        let table = engine.table("table").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut transaction = session.begin().expect("begins");
        transaction.tx().expect("not in a batch").put(table, b"key", b"value").expect("free");
        transaction.commit().expect("acknowledged");
        let engine = open(&disk.crash(seed));
        let table = engine.table("table").expect("a table");
        assert_eq!(engine.len(table), 1, "seed {seed}");
    }
}

/// The commit of a transaction that has only read waits for the commits that it has seen.
#[test]
fn an_acknowledged_read_rests_on_what_is_durable() {
    let engine = open(&SimDisk::new(1));
    let table = engine.table("table").expect("a table");
    let [mut writer, mut reader] = [(); 2].map(|()| engine.session().expect("a session"));
    execute(&mut writer, table, b"key").expect("commits");
    let written = writer.unflushed();
    assert!(!engine.is_durable(&written), "nobody has flushed it");
    let mut transaction = reader.begin().expect("begins");
    let mut tx = transaction.tx().expect("not in a batch");
    assert!(tx.get(table, b"key").expect("free").is_some());
    drop(tx);
    transaction.commit().expect("acknowledged");
    assert!(engine.is_durable(&written), "the answer shows it");
}

/// A store that has failed commits nothing, and shows nothing of what it has refused.
#[test]
fn a_failed_store_refuses_the_commit() {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    let table = engine.table("table").expect("a table");
    let [mut session, mut reader] = [(); 2].map(|()| engine.session().expect("a session"));
    let mut transaction = session.begin().expect("begins");
    transaction.tx().expect("not in a batch").put(table, b"key", b"value").expect("free");
    // Somebody replaces LOCK. The next publication finds out.
    disk.remove(std::path::Path::new("LOCK")).expect("removed");
    engine.checkpoint().expect_err("the directory is not ours");
    engine.health().expect_err("the store has failed");
    let ended = transaction.commit();
    assert!(matches!(ended, Err(Error::NotOwner(_))), "{ended:?}");
    let found = reader.read(table, b"key", &mut Vec::new()).expect("a failed store serves reads");
    assert!(found.is_none(), "the commit was refused");
}
