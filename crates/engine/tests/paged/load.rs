//! Loads of sorted records: what a crash leaves of them, and what comes after.

use std::collections::BTreeMap;

use stillpoint::{Config, Engine, Kind, Session, TableId};
use stillpoint_io::{Fault, SimDisk};

use super::{all, configure, fill, put};

const RECORDS: u32 = 4000;

/// With this limit of the log a load has many steps.
const LIMIT: u64 = 1 << 20;
/// A limit with room for many puts, each of which is flushed.
const WIDE_LIMIT: u64 = 64 << 20;

fn open(disk: &SimDisk, log_limit_bytes: u64) -> (Engine, TableId) {
    let settings = Config { log_limit_bytes, ..configure(disk, 16) };
    let engine = Engine::open(settings).expect("opens");
    let table = engine.table_with("orders", Kind::Paged).expect("a table");
    (engine, table)
}

fn limit_log(engine: &Engine, bytes: u64) {
    engine.change_checkpoint_policy(|policy| policy.log_limit_bytes = bytes).expect("a limit");
}

fn record(number: u32) -> ([u8; 4], Vec<u8>) {
    (number.to_be_bytes(), vec![number as u8; 20 + number as usize % 100])
}

/// Checks that the table has the first records of the load and no others. Returns their number.
fn check_first(engine: &Engine, session: &mut Session, table: TableId) -> u32 {
    let records = all(session, table);
    for ((key, value), number) in records.iter().zip(0..) {
        let (loaded, bytes) = record(number);
        assert_eq!((&key[..], value), (&loaded[..], &bytes), "record {number}");
    }
    assert_eq!(engine.len(table), records.len() as u64);
    records.len() as u32
}

/// The machine stops at one call of the disk after the other, and between the steps of the load.
pub(crate) fn a_crash_amid_a_load_leaves_its_first_records() {
    let (mut nth, mut parts) = (1, 0);
    loop {
        let disk = SimDisk::new(nth);
        let (engine, table) = open(&disk, LIMIT);
        let mut session = engine.session().expect("a session");
        let first = (0..RECORDS / 4).map(record);
        session.load_sorted(table, first).expect("a sound disk");
        let before = disk.call_counts().changes();
        disk.fail_at(nth, Fault::PowerLoss);
        let loaded = session.load_sorted(table, (RECORDS / 4..RECORDS).map(record));
        let is_over = disk.call_counts().changes() - before < nth;
        drop(session);
        drop(engine);
        let (engine, table) = open(&disk.crash(nth), LIMIT);
        let mut session = engine.session().expect("a session");
        let count = check_first(&engine, &mut session, table);
        let acknowledged = if loaded.is_ok() { RECORDS } else { RECORDS / 4 };
        assert!(count >= acknowledged, "call {nth}: {count} of {acknowledged} records");
        parts += u32::from(count > RECORDS / 4 && count < RECORDS);
        // The load may go on where it was cut off.
        let rest = session.load_sorted(table, (count..RECORDS).map(record)).expect("a sound disk");
        assert_eq!(
            (rest, check_first(&engine, &mut session, table)),
            (u64::from(RECORDS - count), RECORDS)
        );
        if is_over {
            break;
        }
        nth += 1 + nth / 6;
    }
    assert!(parts > 3, "{parts} crashes left a part");
}

/// Keys that do not ascend, long values, and keys that the table has: a load leaves what puts in its order
/// would leave. Ordinary changes and crashes follow.
pub(crate) fn a_load_leaves_what_puts_would_leave() {
    let disk = SimDisk::new(7);
    let (engine, table) = open(&disk, WIDE_LIMIT);
    let mut session = engine.session().expect("a session");
    let mut records = fill(&mut session, table, 3);
    let mut given: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for number in 0..2500u64 {
        let key = (10_000 + number).to_be_bytes().to_vec();
        let bytes = if number % 600 == 500 { 9000 } else { 30 + number as usize % 200 };
        given.push((key, vec![number as u8; bytes]));
    }
    // Below the last one, the same one again, a long key, and one of before.
    given.push((10_100u64.to_be_bytes().to_vec(), b"again".to_vec()));
    given.push((10_100u64.to_be_bytes().to_vec(), b"once more".to_vec()));
    given.push((vec![200; 500], b"a long key".to_vec()));
    given.push((5u64.to_be_bytes().to_vec(), b"in between".to_vec()));
    engine.checkpoint().expect("a sound disk");
    limit_log(&engine, 2 * LIMIT);
    let count = session.load_sorted(table, given.iter().map(|(key, value)| (key, value)));
    assert_eq!(count.expect("a sound disk"), given.len() as u64);
    limit_log(&engine, WIDE_LIMIT);
    records.extend(given);
    assert!(all(&mut session, table) == records);
    for number in (0..2600u64).step_by(7) {
        let key = (10_000 + number).to_be_bytes();
        put(&mut session, table, &key, b"later");
        records.insert(key.to_vec(), b"later".to_vec());
        let key = (10_003 + number).to_be_bytes();
        session.transact(|tx| tx.delete(table, &key)).expect("commits");
        records.remove(&key[..]);
    }
    for turn in 0..3u64 {
        if turn == 1 {
            engine.checkpoint().expect("a sound disk");
        }
        let (again, table) = open(&disk.crash_image(turn), WIDE_LIMIT);
        let mut session = again.session().expect("a session");
        assert!(all(&mut session, table) == records, "crash {turn}");
        assert_eq!(again.len(table), records.len() as u64, "crash {turn}");
        let key = (90_000 + turn).to_be_bytes();
        session.load_sorted(table, [(key, b"behind")]).expect("a sound disk");
    }
    let memory = engine.table("memory").expect("a table");
    let given: BTreeMap<_, _> = (0..200).map(record).collect();
    assert_eq!(session.load_sorted(memory, given).expect("a sound disk"), 200);
    assert_eq!(engine.len(memory), 200, "tables of any kind");
}
