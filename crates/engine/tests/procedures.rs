//! Tests that procedures and their tables exist before the store is opened.

use std::sync::Arc;

use stillpoint::{
    Config, Durability, Engine, EngineBuilder, Error, KeySet, Mode, Slot, StoredProcedure, TableId,
    Tx, TxError,
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
        "setting procedure: \"add\" is given twice: procedures differ in their names"
    );
    let unnamed = builder(&disk)
        .procedure("add", |tables| Ok(Add { numbers: tables.table("")? }))
        .open()
        .expect_err("a table without a name");
    assert!(matches!(unnamed, Error::TableName { .. }), "{unnamed}");
    let engine = builder(&disk).open().expect("opens");
    assert_eq!(engine.tables(), []);
    let mut session = engine.session().expect("a session");
    let unknown = session.call::<_, u64>("add", &("n".to_owned(), 1_u64)).expect_err("not given");
    assert!(matches!(unknown, Error::NoSuchProcedure(_)), "{unknown}");
}
