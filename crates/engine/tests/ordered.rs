//! Tests of ordered tables through the engine: their kind in the MANIFEST, and their order after
//! restarts, under several schemes and journals.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint::{Config, Durability, Engine, Error, Kind, Session, TableId, TxError};
use stillpoint_io::{Rng, SeededRng, SimDisk};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config(disk: &Arc<SimDisk>, scheme: &str, journal: &str) -> Config {
    let mut config = Config::new("unused");
    config.checkpoint = scheme.to_owned();
    config.journal = journal.to_owned();
    config.durability = match journal {
        "none" => Durability::Checkpoint,
        _ => Durability::Strict,
    };
    config.checkpoint_every = None;
    config.logs = 2;
    config.recovery_threads = 2;
    config.max_memory_bytes = 1 << 30;
    config.log_segment_bytes = 1 << 20;
    config.environment.disk = Some(disk.clone());
    config.environment.background = false;
    config
}

/// All records, read in order and then against it.
fn all(session: &mut Session, table: TableId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let read = |session: &mut Session, is_descending: bool| {
        session.transact(|tx| {
            let mut found = Vec::new();
            let mut range = match is_descending {
                true => tx.range_descending(table, ..)?,
                false => tx.range(table, ..)?,
            };
            while let Some((key, value)) = range.next_record()? {
                found.push((key.to_vec(), value.to_vec()));
            }
            Ok(found)
        })
    };
    let up = read(session, false).expect("a range");
    let mut down = read(session, true).expect("a range");
    down.reverse();
    assert_eq!(up, down);
    let count = session.transact(|tx| tx.count(table, ..)).expect("a count");
    assert_eq!(count, up.len() as u64);
    up
}

#[test]
fn the_kind_of_a_table_is_recorded_and_stays() {
    let disk = Arc::new(SimDisk::new(1));
    let open = || Engine::open(config(&disk, "calc", "redo")).expect("opens");
    let engine = open();
    let orders = engine.table_with("orders", Kind::Ordered).expect("a table");
    let plain = engine.table("plain").expect("a table");
    assert_eq!(engine.table_with("plain", Kind::Memory).expect("it is one"), plain);
    assert_eq!(
        engine.table_with("more", Kind::Memory).expect("a table"),
        engine.table("more").expect("it")
    );
    drop(engine);
    let engine = open();
    assert_eq!(engine.table("orders").expect("any kind"), orders);
    assert_eq!(engine.table_with("orders", Kind::Ordered).expect("its kind"), orders);
    for (name, kind) in [("orders", Kind::Memory), ("plain", Kind::Ordered)] {
        let refused = engine.table_with(name, kind).expect_err("another kind");
        assert!(matches!(&refused, Error::TableName { name: of, .. } if of == name), "{refused}");
    }
    assert!(matches!(engine.table_with("", Kind::Ordered), Err(Error::TableName { .. })));
    let mut session = engine.session().expect("a session");
    let refused = session.transact(|tx| tx.range(plain, ..).map(|_| ())).expect_err("not ordered");
    assert!(matches!(refused, Error::Transaction(TxError::NotOrdered(table)) if table == plain));
    assert!(all(&mut session, orders).is_empty());
    drop(session);
    engine.close().expect("closes");
    let manifest = stillpoint_io::read_all(&*disk, std::path::Path::new("MANIFEST")).expect("it");
    let text = String::from_utf8_lossy(&manifest).into_owned();
    assert_eq!(text.matches(r#""kind": "ordered""#).count(), 1, "{text}");
    assert_eq!(text.matches(r#""kind": "memory""#).count(), 2, "{text}");
}

#[test]
fn a_lock_that_a_range_holds_is_held_by_an_open_transaction() {
    let disk = Arc::new(SimDisk::new(1));
    let engine = Engine::open(config(&disk, "calc", "redo")).expect("opens");
    let orders = engine.table_with("orders", Kind::Ordered).expect("a table");
    let (mut first, mut second) = (engine.session().expect("one"), engine.session().expect("two"));
    let mut open = first.begin().expect("begins");
    assert!(
        open.tx()
            .expect("its view")
            .range(orders, ..)
            .expect("it")
            .next_record()
            .expect("a range")
            .is_none()
    );
    let beside = second.transact(|tx| tx.put(orders, b"phantom", b""));
    assert!(matches!(beside, Err(Error::Transaction(TxError::WaitsForItself))), "{beside:?}");
    open.commit().expect("commits");
    second.transact(|tx| tx.put(orders, b"phantom", b"")).expect("nobody is in the way");
}

/// A life of a store: writes, checkpoints, emptied tables and aborts.
fn live(engine: &Engine, orders: TableId, model: &mut Model, rng: &SeededRng) {
    let below = |limit: u64| rng.next_u64() % limit;
    let mut session = engine.session().expect("a session");
    for turn in 0..120 {
        let mut next = model.clone();
        let abandons = below(5) == 0;
        let count = 1 + below(6);
        let changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..count)
            .map(|_| {
                let key = format!("order:{:03}", below(200)).into_bytes();
                (key, (below(3) > 0).then(|| vec![turn as u8; 1 + below(300) as usize]))
            })
            .collect();
        let ended = session.transact(|tx| {
            for (key, value) in &changes {
                match value {
                    Some(value) => tx.put(orders, key, value)?,
                    None => tx.delete(orders, key).map(|_| ())?,
                }
            }
            if abandons { Err(TxError::abandon("at random")) } else { Ok(()) }
        });
        if ended.is_ok() {
            for (key, value) in changes {
                match value {
                    Some(value) => drop(next.insert(key, value)),
                    None => drop(next.remove(&key)),
                }
            }
            *model = next;
        }
        if below(60) == 0 {
            drop(session);
            engine.flush_tables(&[orders]).expect("flushes");
            model.clear();
            session = engine.session().expect("a session");
        }
        if below(50) == 0 {
            engine.checkpoint().expect("a checkpoint");
        }
    }
}

#[test]
fn contents_and_order_agree_after_every_restart() {
    let settings = [
        ("calc", "redo"),
        ("calc:partial", "redo"),
        ("naive", "redo"),
        ("calc", "command"),
        ("calc:partial", "none"),
        ("fuzzy", "undo-redo"),
        ("zigzag", "redo"),
    ];
    for (number, (scheme, journal)) in settings.into_iter().enumerate() {
        let mut disk = Arc::new(SimDisk::new(number as u64));
        let rng = SeededRng::new(number as u64);
        let mut model = Model::new();
        for life in 0..3 {
            let engine = Engine::open(config(&disk, scheme, journal)).expect("opens");
            let orders = engine.table_with("orders", Kind::Ordered).expect("a table");
            let mut session = engine.session().expect("a session");
            let expected: Vec<_> = model.clone().into_iter().collect();
            assert_eq!(all(&mut session, orders), expected, "{scheme} {journal}, life {life}");
            drop(session);
            live(&engine, orders, &mut model, &rng);
            if journal == "none" {
                engine.checkpoint().expect("what was committed is durable");
            }
            let mut session = engine.session().expect("a session");
            assert_eq!(all(&mut session, orders).len(), model.len());
            drop(session);
            drop(engine);
            disk = Arc::new(disk.crash(life));
        }
    }
}
