//! Tests of tables by name.

use std::sync::{Arc, Barrier};

use stillpoint::{AddressSpace, Config, Durability, Engine, Error, TableId};
use stillpoint_io::{SimDisk, spawn};

/// A store on a simulated disk, strict, with few threads.
fn config_on(disk: &Arc<SimDisk>) -> Config {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.logs = 2;
    config.recovery_threads = 1;
    config.max_memory_bytes = 4 << 30;
    config.log_segment_bytes = 1 << 20;
    config.environment.disk = Some(disk.clone());
    config
}

fn put(engine: &Engine, table: TableId, key: &[u8]) {
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, key, b"value")).expect("a commit");
}

fn has(engine: &Engine, table: TableId, key: &[u8]) -> bool {
    let mut session = engine.session().expect("a session");
    session.read(table, key, &mut Vec::new()).expect("the table").is_some()
}

#[test]
fn threads_that_make_the_same_table_lose_nothing() {
    const THREADS: usize = 4;
    let disk = Arc::new(SimDisk::new(1));
    let engine = Arc::new(Engine::open(config_on(&disk)).expect("an empty directory"));
    for round in 0..150 {
        let name = format!("table {round}");
        let start = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS as u8)
            .map(|thread| {
                let (engine, name, start) = (engine.clone(), name.clone(), start.clone());
                spawn("maker", move || {
                    start.wait();
                    let table = engine.table(&name).expect("a table");
                    put(&engine, table, &[thread]);
                    table
                })
                .expect("a thread")
            })
            .collect();
        let made: Vec<TableId> =
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert!(made.iter().all(|table| *table == made[0]), "{made:?}");
        for thread in 0..THREADS as u8 {
            assert!(has(&engine, made[0], &[thread]), "round {round}: key {thread} is gone");
        }
    }
}

/// From the n-th request on, every request for address space fails, for each n. Tables are made and
/// emptied meanwhile.
#[test]
fn address_space_that_ends_at_any_request_loses_nothing() {
    for end in 0..12 {
        let disk = Arc::new(SimDisk::new(2));
        let space = Arc::new(AddressSpace::default());
        let mut config = config_on(&disk);
        config.environment.space = space.clone();
        // No other thread asks for address space.
        config.environment.background = false;
        let engine = Engine::open(config.clone()).expect("an empty directory");
        let old = engine.tables_named(&["a", "b", "c"]).expect("tables");
        for &table in &old {
            put(&engine, table, b"before");
        }
        space.end_after(space.requests() + end);
        let made = engine.tables_named(&["d", "e", "f", "g", "h"]);
        if let Err(refused) = &made {
            assert!(matches!(refused, Error::TableSpace { open: 3, .. }), "{refused}");
        }
        let emptied = engine.flush_tables(&old);
        space.end_after(usize::MAX);
        assert_eq!(emptied.is_ok(), end >= 8, "{end}: {emptied:?}");
        engine.health().expect("a refusal is no failure");
        for &table in &old {
            assert_eq!(has(&engine, table, b"before"), emptied.is_err(), "all or none");
            put(&engine, table, b"after");
        }
        let tables = engine.tables().len();
        assert_eq!(tables, if made.is_ok() { 8 } else { 3 }, "all or none");
        drop(engine);
        let engine = Engine::open(config).expect("the next opening");
        assert_eq!(engine.tables().len(), tables);
        for &table in &old {
            assert_eq!(has(&engine, table, b"before"), emptied.is_err(), "{end}");
            assert!(has(&engine, table, b"after"), "{end}: an acknowledged commit is lost");
        }
    }
}

#[test]
fn thousands_of_tables_take_little_address_space() {
    const TABLES: usize = 5_000;
    let disk = Arc::new(SimDisk::new(3));
    let space = Arc::new(AddressSpace::default());
    let mut config = config_on(&disk);
    config.environment.space = space.clone();
    let names: Vec<String> = (0..TABLES).map(|number| format!("table {number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let engine = Engine::open(config.clone()).expect("an empty directory");
    let tables = engine.tables_named(&names).expect("address space");
    assert!(space.requests() < TABLES + 10, "{}", space.requests());
    let mut session = engine.session().expect("a session");
    session
        .transact(|tx| {
            tables.iter().step_by(100).try_for_each(|&table| tx.put(table, b"key", b"value"))
        })
        .expect("a commit");
    engine.flush_tables(&tables[..1000]).expect("address space");
    drop(session);
    drop(engine);
    let engine = Engine::open(config).expect("the same disk");
    assert_eq!(engine.tables_named(&names).expect("known"), tables);
    for (at, &table) in tables.iter().enumerate().step_by(50) {
        assert_eq!(has(&engine, table, b"key"), at % 100 == 0 && at >= 1000, "table {at}");
    }
}

#[test]
fn tables_are_made_together_and_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(Config::new(dir.path())).expect("an empty directory");
    let one = engine.table("one").expect("a name");
    let made = engine.tables_named(&["two", "one", "three", "two"]).expect("names");
    assert_eq!(made[1], one);
    assert_eq!(made[0], made[3]);
    assert!(made[0] != one && made[2] != one && made[0] != made[2]);
    assert_eq!(engine.tables_named(&[]).expect("nothing to do"), []);
    // A bad name among good ones makes nothing.
    let long = "x".repeat(256);
    for bad in ["", &long] {
        let refused = engine.tables_named(&["four", bad]);
        assert!(matches!(refused, Err(Error::TableName { .. })), "{refused:?}");
    }
    assert_eq!(engine.tables().len(), 3);
    engine.close().expect("closed");
    let engine = Engine::open(Config::new(dir.path())).expect("the same directory");
    assert_eq!(engine.tables_named(&["two", "one", "three"]).expect("known"), made[..3]);
    assert_eq!(engine.tables().len(), 3);
}
