//! Tests of what a snapshot leaves as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Config, Engine, Error, Snapshot, SnapshotEnd, TableId};
use stillpoint_format::names::CheckpointKind;
use stillpoint_io::SimDisk;

/// A store on a simulated disk that takes checkpoints on request alone.
pub(crate) fn config_on(disk: &Arc<SimDisk>, scheme: &str, journal: &str) -> Config {
    let mut config = Config::new("unused");
    config.checkpoint = scheme.to_owned();
    config.journal = journal.to_owned();
    config.checkpoint_every = None;
    config.logs = 1;
    config.recovery_threads = 1;
    config.max_memory_bytes = 1 << 30;
    config.log_segment_bytes = 1 << 20;
    config.snapshot_max_age = Duration::from_secs(600);
    config.environment.disk = Some(disk.clone());
    config
}

pub(crate) fn put(engine: &Engine, table: TableId, key: &[u8], value: &[u8]) {
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, key, value)).expect("commits");
}

/// All records of a table in a snapshot.
pub(crate) fn all_of(
    snapshot: &mut Snapshot,
    table: TableId,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let mut found = BTreeMap::new();
    while let Some(batch) = snapshot.next_batch()? {
        for record in batch.records().filter(|record| record.table == table) {
            let before = found.insert(record.key.to_vec(), record.value.to_vec());
            assert!(before.is_none(), "a key that comes twice");
        }
    }
    Ok(found)
}

/// A checkpoint of changes after a snapshot has what was changed before the snapshot.
pub(crate) fn a_snapshot_clears_no_mark() {
    clears_no_mark("calc:partial");
}

/// As [`a_snapshot_clears_no_mark`], under a scheme that takes changes.
pub(crate) fn clears_no_mark(scheme: &str) {
    let disk = Arc::new(SimDisk::new(1));
    let config = config_on(&disk, scheme, "none");
    let engine = Engine::open(config.clone()).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    (0..100).for_each(|key| put(&engine, table, &[key], b"old"));
    engine.checkpoint().expect("a full checkpoint");
    put(&engine, table, b"\x01", b"new");
    let mut session = engine.session().expect("a session");
    assert!(session.transact(|tx| tx.delete(table, b"\x02")).expect("commits"));
    let mut snapshot = engine.snapshot().expect("a snapshot");
    put(&engine, table, b"\x03", b"newest");
    let found = all_of(&mut snapshot, table).expect("a whole view");
    drop(snapshot);
    // A second one, and a key that comes back in between.
    put(&engine, table, b"\x04", &[7; 30_000]);
    assert!(session.transact(|tx| tx.delete(table, b"\x05")).expect("commits"));
    drop(engine.snapshot().expect("a snapshot that nobody reads"));
    put(&engine, table, b"\x05", b"again");
    assert_eq!(found.len(), 99, "{scheme}");
    assert_eq!(found.get(&b"\x01"[..]).map(|value| &value[..]), Some(&b"new"[..]));
    assert_eq!(found.get(&b"\x03"[..]).map(|value| &value[..]), Some(&b"old"[..]));
    let done = engine.checkpoint().expect("a checkpoint");
    assert_eq!((done.kind, done.changed), (CheckpointKind::Partial, 5), "{scheme}");
    drop((session, engine));
    let engine = Engine::open(config).expect("opens");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut read = |key: &[u8]| {
        let mut value = Vec::new();
        session.read(table, key, &mut value).expect("the table").map(|_| value)
    };
    assert_eq!(read(b"\x01").as_deref(), Some(&b"new"[..]), "changed before the snapshot");
    assert_eq!(read(b"\x02"), None, "deleted before the snapshot");
    assert_eq!(read(b"\x03").as_deref(), Some(&b"newest"[..]), "changed after the snapshot");
    assert_eq!(read(b"\x04").as_deref(), Some(&[7; 30_000][..]), "changed between two");
    assert_eq!(read(b"\x05").as_deref(), Some(&b"again"[..]), "inserted again after two");
    assert_eq!(read(b"\x06").as_deref(), Some(&b"old"[..]), "never changed");
}

/// A snapshot that is open while its table is emptied has all records, or ends with an error.
pub(crate) fn a_snapshot_ends_when_a_table_is_emptied() {
    let disk = Arc::new(SimDisk::new(1));
    let mut config = config_on(&disk, "calc", "redo");
    config.snapshot_memory_bytes = 1 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    for batch in 0..400u32 {
        let put = |number: u32| (batch * 100 + number).to_le_bytes();
        session
            .transact(|tx| (0..100).try_for_each(|number| tx.put(table, &put(number), &[7; 100])))
            .expect("commits");
    }
    let mut snapshot = engine.snapshot().expect("a snapshot");
    assert!(snapshot.next_batch().expect("the first records").is_some());
    engine.flush_tables(&[table]).expect("emptied");
    // The rest is lost: it was not captured yet.
    let read = all_of(&mut snapshot, table).map(|found| found.len());
    let ended = read.expect_err("records were emptied before the capture");
    assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::TablesEmptied)), "{ended}");
    drop(snapshot);
    let mut snapshot = engine.snapshot().expect("another snapshot");
    assert!(all_of(&mut snapshot, table).expect("a whole view").is_empty());
}
