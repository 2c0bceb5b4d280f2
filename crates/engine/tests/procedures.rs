//! Tests that procedures and their tables exist before the store is opened.

use std::sync::Arc;

use stillpoint::{
    Arguments, Call, Config, Durability, Engine, EngineBuilder, Error, KeySet, Mode, Procedure,
    Slot, Stamp, StoredProcedure, TableId, Tx, TxError, offline,
};
use stillpoint_io::{ManualClock, SeededRng, SimDisk};

fn builder<'a>(disk: &SimDisk) -> EngineBuilder<'a> {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.clock = Arc::new(ManualClock::self_advancing(1_700_000_000_000));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = false;
    Engine::builder(config)
}

/// Adds to a number.
struct Add {
    numbers: TableId,
}

impl StoredProcedure for Add {
    /// Key of the number, and the amount to add.
    type Input = (String, u64);
    type Output = u64;

    fn declare(&self, (name, _): &Self::Input, keys: &mut KeySet) {
        keys.push(self.numbers, name.as_bytes(), Mode::Write, 8);
    }

    fn run(&self, (_, more): &Self::Input, tx: &mut Tx<'_>) -> Result<u64, TxError> {
        let now = tx.value(Slot(0)).and_then(|value| value.u64_at(0)).unwrap_or(0) + more;
        tx.put_slot(Slot(0), &now.to_le_bytes())?;
        Ok(now)
    }
}

fn with_add(disk: &SimDisk) -> Result<Engine, Error> {
    builder(disk)
        .procedure("add", |tables| Ok(Add { numbers: tables.table("numbers")? }))
        .procedure("add to others", |tables| Ok(Add { numbers: tables.table("others")? }))
        .open()
}

fn add(engine: &Engine, procedure: &str, more: u64) -> u64 {
    let mut session = engine.session().expect("a session");
    session.call(procedure, &("n".to_owned(), more)).expect("commits")
}

#[test]
fn a_procedure_makes_its_tables_and_finds_them_after_a_crash() {
    let disk = SimDisk::new(1);
    let engine = with_add(&disk).expect("opens");
    assert_eq!((add(&engine, "add", 3), add(&engine, "add to others", 50)), (3, 50));
    assert_eq!(add(&engine, "add", 4), 7);
    let tables = engine.tables();
    // The table of a later call gets a number of its own.
    engine.table("third").expect("a table");

    let after = disk.crash(1);
    let engine = with_add(&after).expect("recovers");
    assert_eq!(tables[..], engine.tables()[..2], "the same numbers");
    assert_eq!((add(&engine, "add", 1), add(&engine, "add to others", 1)), (8, 51));
    assert_eq!(engine.len(engine.table("numbers").expect("it is there")), 1);
}

#[test]
fn a_procedure_is_made_before_replay() {
    let disk = SimDisk::new(1);
    let engine = with_add(&disk).expect("opens");
    add(&engine, "add", 3);
    let after = disk.kill();
    // Order of the callbacks of the opening.
    let order = parking_lot::Mutex::new(Vec::new());
    builder(&after)
        .progress(|progress| order.lock().push(progress.stage.as_str()))
        .procedure("add", |tables| {
            order.lock().push("procedure");
            Ok(Add { numbers: tables.table("numbers")? })
        })
        .open()
        .expect("recovers");
    let order = order.into_inner();
    let procedure = order.iter().position(|stage| *stage == "procedure").expect("it was made");
    let replay = order.iter().position(|stage| *stage == "replaying logs").expect("there is a log");
    assert!(procedure < replay, "{order:?}");
}

#[test]
fn an_opening_whose_procedures_are_refused_changes_no_table() {
    let disk = SimDisk::new(1);
    drop(builder(&disk).open().expect("opens"));
    let twice = builder(&disk)
        .procedure("add", |tables| Ok(Add { numbers: tables.table("numbers")? }))
        .procedure("add", |tables| Ok(Add { numbers: tables.table("others")? }))
        .open();
    let refused = twice.expect_err("one name, two procedures").to_string();
    assert_eq!(
        refused,
        "setting procedure: \"add\" is given twice: procedures differ in their names or versions"
    );
    let unnamed = builder(&disk)
        .procedure("add", |tables| Ok(Add { numbers: tables.table("")? }))
        .open()
        .expect_err("a table without a name");
    assert!(matches!(unnamed, Error::TableName { .. }), "{unnamed}");
    for name in ["".to_owned(), "n".repeat(256)] {
        let refused = builder(&disk)
            .procedure(&name, |tables| Ok(Add { numbers: tables.table("numbers")? }))
            .open()
            .expect_err("a name that the log cannot hold");
        assert!(matches!(refused, Error::Config { setting: "procedure", .. }), "{refused}");
    }
    let engine = builder(&disk).open().expect("opens");
    assert_eq!(engine.tables(), []);
    let mut session = engine.session().expect("a session");
    let unknown = session.call::<_, u64>("add", &("n".to_owned(), 1_u64)).expect_err("not given");
    assert!(matches!(unknown, Error::NoSuchProcedure(_)), "{unknown}");
}

/// A call as a test compares it: name, version, arguments, inputs.
type Logged = (String, u32, Vec<u8>, Vec<u8>);

fn logged(dir: &std::path::Path) -> Vec<Logged> {
    let (mut found, mut last) = (Vec::new(), 0);
    let listed = offline::calls(dir, &mut |call| {
        assert!(call.gsn > last, "in the order of their commits");
        last = call.gsn;
        let (arguments, inputs) = (call.arguments.to_vec(), call.inputs.to_vec());
        found.push((call.name.to_owned(), call.version, arguments, inputs));
        Ok(())
    });
    listed.expect("a sound directory");
    found
}

fn on_disk(dir: &std::path::Path, log_calls: bool) -> Engine {
    let mut config = Config::new(dir);
    config.durability = Durability::Strict;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    // The gsns of one log give the order of its calls.
    config.logs = 1;
    config.log_calls = log_calls;
    Engine::builder(config)
        .procedure("add", |tables| Ok(Add { numbers: tables.table("numbers")? }))
        .open()
        .expect("opens")
}

/// A procedure that names a call, or none, when it is asked for its call.
struct Named {
    table: TableId,
    name: Option<&'static str>,
    was_asked: bool,
}

impl Procedure for Named {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, b"named", Mode::Write, 1);
    }
    fn call(&mut self, call: &mut Call) {
        self.was_asked = true;
        if let Some(name) = self.name {
            call.set(name, 9);
            call.inputs.extend_from_slice(b"noon");
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), b"1")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        assert_eq!(result.is_err(), self.name.is_some_and(|name| name.len() > 255), "{result:?}");
    }
}

#[test]
fn the_log_names_the_call_of_each_transaction_that_has_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = on_disk(dir.path(), true);
    let table = engine.table("others").expect("a table");
    let mut session = engine.session().expect("a session");
    let call = |session: &mut stillpoint::Session, key: &str, more: u64| {
        session.call::<_, u64>("add", &(key.to_owned(), more)).expect("commits")
    };
    assert_eq!(call(&mut session, "a", 3), 3);
    // Two transactions without a call: one without declared keys, and one whose procedure names no
    // call.
    session.transact(|tx| tx.put(table, b"key", b"value")).expect("commits");
    let named = |name| Named { table, name, was_asked: false };
    session.execute(&mut [named(None), named(Some("given")), named(None)][..]);
    let long: &str = "n".repeat(256).leak();
    session.execute(&mut [named(Some(long))][..]);
    assert_eq!(call(&mut session, "b", 4), 4);
    // A call that writes nothing has no record.
    let read = session.transact(|tx| Ok(tx.get(table, b"named")?.map(|value| value.to_vec())));
    assert_eq!(read.expect("commits").as_deref(), Some(&b"1"[..]));
    session.flush().expect("flushes");
    drop(session);
    assert!(matches!(offline::calls(dir.path(), &mut |_| Ok(())), Err(Error::InUse(_))));
    engine.close().expect("closes");

    let add = |key: &str, more: u64| -> Logged {
        let mut arguments = Vec::new();
        (key.to_owned(), more).encode(&mut arguments);
        ("add".to_owned(), 1, arguments, Vec::new())
    };
    let given = ("given".to_owned(), 9, Vec::new(), b"noon".to_vec());
    assert_eq!(logged(dir.path()), [add("a", 3), given, add("b", 4)]);

    // The writes of the calls are recovered, as from any record.
    let engine = on_disk(dir.path(), false);
    let mut session = engine.session().expect("a session");
    assert_eq!(call(&mut session, "a", 1), 4);
    let mut quiet = [named(Some("not logged"))];
    session.execute(&mut quiet[..]);
    assert!(!quiet[0].was_asked, "nobody asks for a call that is not logged");
    session.flush().expect("flushes");
    drop(session);
    engine.close().expect("closes");
    assert_eq!(logged(dir.path()).len(), 3);
}

/// The calls of the logs, made again on an empty engine, leave the same records. A call depends on
/// nothing but name, version and arguments.
#[test]
fn calls_that_are_made_again_leave_the_same_records() {
    let dirs = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
    let engine = on_disk(dirs[0].path(), true);
    let mut session = engine.session().expect("a session");
    for round in 0..200_u64 {
        let key = format!("key {}", round * 7 % 13);
        session.call::<_, u64>("add", &(key, round * round)).expect("commits");
    }
    let records = |engine: &Engine| {
        let mut session = engine.session().expect("a session");
        let table = engine.table("numbers").expect("a table");
        let (mut records, mut cursor) = (std::collections::BTreeMap::new(), 0);
        loop {
            let next = session.scan(table, cursor, 100, &mut |key, value| {
                records.insert(key.to_vec(), value.to_vec());
            });
            cursor = next.expect("a sound store");
            if cursor == 0 {
                return records;
            }
        }
    };
    let expected = records(&engine);
    assert_eq!(expected.len(), 13);
    drop(session);
    engine.close().expect("closes");
    let again = on_disk(dirs[1].path(), false);
    let mut session = again.session().expect("a session");
    for (name, version, arguments, _) in logged(dirs[0].path()) {
        assert_eq!(version, <Add as StoredProcedure>::VERSION);
        session.call_encoded(&name, &arguments).expect("commits");
    }
    assert_eq!(records(&again), expected);
}
