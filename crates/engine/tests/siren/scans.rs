//! Scans beside open transactions, and what their findings depend on.

use std::time::Duration;

use stillpoint::{Config, Engine, Kind, Session, TableId, ValueRef};
use stillpoint_io::SimDisk;

use crate::{configure, put};

fn open(disk: &SimDisk, kind: Kind) -> (Engine, TableId) {
    let mut config = Config { pool_bytes: Some(64 * 4096), ..configure(disk) };
    config.lock_timeout = Some(Duration::ZERO);
    let engine = Engine::open(config).expect("opens");
    let table = engine.table_with("table", kind).expect("a table");
    (engine, table)
}

/// All keys of a table, by a scan.
fn scanned(session: &mut Session, table: TableId) -> Vec<Vec<u8>> {
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        let mut visit = |key: &[u8], _: ValueRef<'_>| keys.push(key.to_vec());
        cursor = session.scan(table, cursor, 2, &mut visit).expect("nobody holds the scan up");
        if cursor == 0 {
            keys.sort_unstable();
            return keys;
        }
    }
}

/// Whoever was shown by a scan that a key is gone finds it gone after a crash.
#[test]
fn a_scan_depends_on_what_it_did_not_meet() {
    for kind in [Kind::Siren, Kind::Paged] {
        let disk = SimDisk::new(1);
        let (engine, table) = open(&disk, kind);
        let session = || engine.session().expect("a session");
        let (mut writer, mut reader) = (session(), session());
        for key in [b"a", b"b", b"c"] {
            put(&mut writer, table, key, b"value");
        }
        writer.flush().expect("a sound disk");
        writer.transact(|tx| tx.delete(table, b"b")).expect("commits");
        assert_eq!(scanned(&mut reader, table), [b"a", b"c"], "{kind:?}");
        reader.flush().expect("a sound disk");
        let after = disk.crash_image(2);
        drop((writer, reader));
        drop(engine);
        let (engine, table) = open(&after, kind);
        let mut session = engine.session().expect("a session");
        assert_eq!(scanned(&mut session, table), [b"a", b"c"], "{kind:?}, after a crash");
    }
}

/// A scan of a SIREN table waits for no open transaction. It shows what was committed.
#[test]
fn a_scan_passes_open_transactions() {
    let disk = SimDisk::new(1);
    let (engine, table) = open(&disk, Kind::Siren);
    let session = || engine.session().expect("a session");
    let (mut holder, mut reader) = (session(), session());
    for key in [b"a", b"b", b"c"] {
        put(&mut holder, table, key, b"value");
    }
    let mut open = holder.begin().expect("begins");
    let mut tx = open.tx().expect("open");
    tx.put(table, b"a", b"other").expect("free");
    assert!(tx.delete(table, b"b").expect("free"));
    tx.put(table, b"new", b"value").expect("free");
    std::thread::scope(|scope| {
        let scan = scope.spawn(|| scanned(&mut reader, table));
        assert_eq!(scan.join().expect("no panic"), [b"a", b"b", b"c"]);
    });
    drop(tx);
    open.commit().expect("commits");
    assert_eq!(scanned(&mut reader, table), [&b"a"[..], b"c", b"new"]);
}
