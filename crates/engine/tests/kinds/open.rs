//! Transactions that stay open across calls, and batches that must not wait, beside the locks of a kind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{
    Call, Error, Executed, KeySet, Mode, Procedure, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_format::manifest::Manifest;
use stillpoint_io::{Clock, Disk, RealClock, SimDisk, read_all, spawn};
use stillpoint_store::RUNS_MAX;

use crate::in_place::NAME;
use crate::world::{World, configure};

fn world(absences: u64) -> World {
    World::open(&SimDisk::new(1), 1, 2, absences).expect("opens")
}

/// A signal from one thread to another.
#[derive(Clone, Default)]
struct Signal(Arc<AtomicBool>);

impl Signal {
    fn give(&self) {
        self.0.store(true, SeqCst);
    }
    fn is_given(&self) -> bool {
        self.0.load(SeqCst)
    }
    fn wait(&self) {
        while !self.is_given() {
            RealClock.sleep(Duration::from_millis(1));
        }
    }
}

/// Writes one declared key, or panics.
struct Put {
    table: TableId,
    panics: bool,
}

impl Procedure for Put {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, b"key", Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        assert!(!self.panics, "as the test wants it");
        tx.put_slot(Slot(0), b"value")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

/// A flush locks whole tables of a kind, and would wait for the open transaction of its own thread.
#[test]
fn tables_are_not_changed_beside_an_open_transaction_of_the_thread() {
    let world = world(0);
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session().expect("a session");
    let mut transaction = session.begin().expect("begins");
    let is_refused = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::InsideTransaction { .. })), "{result:?}");
    };
    transaction.tx().expect("not in a batch").put(in_place, b"one", b"first").expect("free");
    for tables in [&[in_place][..], &[memory], &[memory, in_place]] {
        is_refused(world.engine.flush_tables(tables));
    }
    is_refused(world.engine.table("new").map(drop));
    is_refused(world.engine.table_of_kind("new", NAME).map(drop));
    assert_eq!(world.engine.table("in memory").expect("it is known"), memory);
    transaction.commit().expect("commits");
    assert_eq!(world.engine.len(in_place), 1);
    world.engine.flush_tables(&[memory, in_place]).expect("flushes");
    assert_eq!(world.engine.len(in_place), 0);
}

/// As in memory: a thread waits neither for a lock of its own open transaction, nor for the holder of
/// the permit.
#[test]
fn a_thread_does_not_wait_for_its_own_open_transaction() {
    let world = world(0);
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    let mut older = session.begin().expect("begins");
    let mut younger = other.begin().expect("begins");
    younger.tx().expect("not in a batch").put(in_place, b"key", b"younger").expect("free");
    let met = older.tx().expect("not in a batch").put(in_place, b"key", b"older");
    assert!(matches!(met, Err(TxError::WaitsForItself)), "{met:?}");
    drop(older);
    let ended = session.transact(|tx| tx.put(in_place, b"key", b"third"));
    assert!(matches!(ended, Err(Error::Transaction(TxError::WaitsForItself))), "{ended:?}");
    let read = session.read(in_place, b"key", &mut Vec::new());
    assert!(matches!(read, Err(Error::Transaction(TxError::WaitsForItself))), "{read:?}");
    let scanned = session.scan(in_place, 0, 10, &mut |_, _| {});
    assert!(matches!(scanned, Err(Error::Transaction(TxError::WaitsForItself))), "{scanned:?}");
    struct Declared(TableId, bool);
    impl Procedure for Declared {
        fn declare(&mut self, keys: &mut KeySet) {
            keys.push(self.0, b"key", Mode::Write, 8);
        }
        fn run(&mut self, _: &mut Tx<'_>) -> Result<(), TxError> {
            Ok(())
        }
        fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
            self.1 = matches!(result, Err(TxError::WaitsForItself));
        }
    }
    let mut declared = Declared(in_place, false);
    session.execute(std::slice::from_mut(&mut declared));
    assert!(declared.1, "a declared transaction does not wait either");
    // Whoever has the permit waits for the open transaction for a moment, and then without the permit.
    // Until then nothing begins here, and the thread is told.
    let mut third = world.engine.session().expect("a session");
    let has_permit = Signal::default();
    let permits = has_permit.clone();
    let holder = spawn("holder", move || {
        let mut runs = 0;
        third.transact(|tx| {
            runs += 1;
            if runs < RUNS_MAX {
                return Err(TxError::Conflict);
            }
            permits.give();
            tx.put(in_place, b"key", b"holder")
        })
    });
    has_permit.wait();
    let is_told = |error: &Error| matches!(error, Error::Transaction(TxError::WaitsForItself));
    while let Err(error) = session.begin().map(drop) {
        assert!(is_told(&error), "{error:?}");
    }
    while let Err(error) = session.transact(|tx| tx.put(memory, b"unrelated", b"1")) {
        assert!(is_told(&error), "{error:?}");
    }
    younger.commit().expect("commits");
    holder.expect("a thread").join().expect("no panic").expect("commits");
    session.transact(|tx| tx.put(in_place, b"key", b"third")).expect("it is free");
    assert!(world.kind.is_unlocked());
}

/// The holder of the permit waits for every lock. So no transaction begins meanwhile, on whatever kind.
#[test]
fn no_transaction_begins_beside_the_permit() {
    let world = world(0);
    let in_place = world.tables[1];
    let mut first = world.engine.session().expect("a session");
    let mut second = world.engine.session().expect("a session");
    let (has_permit, may_end) = (Signal::default(), Signal::default());
    let (permits, ends) = (has_permit.clone(), may_end.clone());
    let holder = spawn("holder", move || {
        let mut runs = 0;
        first.transact(|tx| {
            runs += 1;
            if runs < RUNS_MAX {
                return Err(TxError::Conflict);
            }
            permits.give();
            ends.wait();
            tx.put(in_place, b"first", b"1")
        })
    });
    has_permit.wait();
    let has_begun = Signal::default();
    let begins = has_begun.clone();
    let other = spawn("other", move || {
        second.transact(|tx| {
            begins.give();
            tx.put(in_place, b"second", b"2")
        })
    });
    RealClock.sleep(Duration::from_millis(50));
    assert!(!has_begun.is_given(), "a transaction has begun beside the permit");
    may_end.give();
    for thread in [holder, other] {
        thread.expect("a thread").join().expect("no panic").expect("commits");
    }
    assert!(has_begun.is_given());
}

/// After a call that must not wait, however it has ended, the next call waits for its keys.
#[test]
fn only_the_call_that_must_not_wait_does_not() {
    let world = world(40);
    let table = world.tables[1];
    let mut session = world.engine.session().expect("a session");
    let mut here = |panics: bool| {
        let mut batch = [Put { table, panics }];
        match session.execute_here(&mut batch[..], 0) {
            Executed::All => true,
            Executed::Before { .. } => false,
        }
    };
    while here(false) {}
    let panicked = loop {
        match catch_unwind(AssertUnwindSafe(|| here(true))) {
            Ok(all) => assert!(!all, "a body that runs panics"),
            Err(panic) => break panic,
        }
    };
    drop(panicked);
    for _ in 0..100 {
        session.execute(&mut [Put { table, panics: false }][..]);
        session.transact(|tx| tx.put(table, b"other", b"value")).expect("waits for its key");
    }
    assert!(world.kind.is_unlocked());
}

/// In strict durability an answer rests on what is durable, also if it has read from a table of a kind.
#[test]
fn an_acknowledged_read_of_a_kind_rests_on_what_is_durable() {
    for is_open in [false, true] {
        let world = world(0);
        let table = world.tables[1];
        let mut writer = world.engine.session().expect("a session");
        let mut reader = world.engine.session().expect("a session");
        writer.execute(&mut [Put { table, panics: false }][..]);
        let written = writer.unflushed();
        assert!(!world.engine.is_durable(&written), "nobody has flushed it");
        if is_open {
            let mut transaction = reader.begin().expect("begins");
            let mut tx = transaction.tx().expect("not in a batch");
            assert!(tx.get(table, b"key").expect("free").is_some());
            drop(tx);
            transaction.commit().expect("acknowledged");
        } else {
            let found = reader.transact(|tx| Ok(tx.get(table, b"key")?.is_some()));
            assert!(found.expect("acknowledged"));
        }
        assert!(world.engine.is_durable(&written), "the answer shows it; open: {is_open}");
    }
}

/// A transaction that is rolled back has read, too.
#[test]
fn what_a_rolled_back_transaction_has_read_is_a_dependency() {
    let world = world(0);
    let table = world.tables[1];
    let mut writer = world.engine.session().expect("a session");
    let mut reader = world.engine.session().expect("a session");
    writer.execute(&mut [Put { table, panics: false }][..]);
    let written = writer.unflushed();
    let mut transaction = reader.begin().expect("begins");
    let mut tx = transaction.tx().expect("not in a batch");
    assert!(tx.get(table, b"key").expect("free").is_some());
    drop(tx);
    drop(transaction);
    assert!(!world.engine.is_durable(&written), "a drop waits for nothing");
    reader.flush().expect("flushes");
    assert!(world.engine.is_durable(&written), "what the caller knows of it");
}

/// Calls are in the log for transactions on every kind, unless the transaction changes a table in place:
/// then its last record is no call.
#[test]
fn the_log_names_calls_beside_other_kinds() {
    /// Writes to a key of the first table, and only reads the others.
    struct Named(Vec<TableId>);
    impl Procedure for Named {
        fn declare(&mut self, keys: &mut KeySet) {
            for (at, &table) in self.0.iter().enumerate() {
                let mode = if at == 0 { Mode::Write } else { Mode::Read };
                keys.push(table, b"key", mode, 8);
            }
        }
        fn call(&mut self, call: &mut Call) {
            call.set("named", 0x0102_0304);
            call.arguments.push(self.0.len() as u8);
        }
        fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
            tx.put_slot(Slot(0), b"value")
        }
        fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
            result.expect("commits");
        }
    }
    let disk = SimDisk::new(1);
    let mut config = configure(&disk, 1, 1);
    config.log_calls = true;
    let world = World::open_with(config, 1, 0).expect("opens");
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session().expect("a session");
    let batch = [vec![memory], vec![memory, in_place], vec![in_place, memory], vec![in_place]];
    session.execute(&mut batch.map(Named)[..]);
    session.flush().expect("flushes");
    let disk: Arc<dyn Disk> = Arc::new(disk.kill());
    let manifest = read_all(&*disk, Path::new("MANIFEST")).expect("reads");
    let manifest = Manifest::decode_with_kinds(&manifest, &[NAME]).expect("a sound MANIFEST");
    let plan = stillpoint_recovery::plan(&disk, manifest, 1, &|_, _| {}).expect("sound logs");
    let mut found = Vec::new();
    let listed = plan.each_call(1, &mut |_, _, call| {
        found.push((call.name.to_owned(), call.version, call.arguments.to_vec()));
    });
    listed.expect("sound logs");
    let named = |tables: u8| ("named".to_owned(), 0x0102_0304, vec![tables]);
    assert_eq!(found, [named(1), named(2)]);
}
