//! Tests that an opening reports its recovery correctly.

use std::sync::Arc;

use stillpoint::{Config, Durability, Engine, TableId};
use stillpoint_io::SimDisk;

fn open(disk: &Arc<SimDisk>) -> Engine {
    let mut config = Config::new("unused");
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.logs = 2;
    config.recovery_threads = 1;
    config.max_memory_bytes = 64 << 20;
    config.log_segment_bytes = 1 << 20;
    config.environment.disk = Some(disk.clone());
    config.environment.background = false;
    Engine::open(config).expect("opens")
}

fn put(engine: &Engine, table: TableId, keys: std::ops::Range<u8>) {
    let mut session = engine.session().expect("a session");
    for key in keys {
        session.transact(|tx| tx.put(table, &[key], b"value")).expect("a commit");
    }
}

#[test]
fn the_summary_counts_what_was_loaded_replayed_and_skipped() {
    let disk = Arc::new(SimDisk::new(1));
    let engine = open(&disk);
    let kept = engine.table("kept").expect("a table");
    let emptied = engine.table("emptied").expect("a table");
    put(&engine, kept, 0..10);
    put(&engine, emptied, 0..5);
    let done = engine.checkpoint().expect("a checkpoint");
    assert_eq!(done.records, 15);
    put(&engine, kept, 8..14);
    put(&engine, emptied, 5..7);
    engine.flush_tables(&[emptied]).expect("flushes");
    drop(engine);
    let recovered = open(&disk).stats().recovered;
    assert_eq!(recovered.checkpoint, Some(done.epoch));
    assert_eq!((recovered.records_loaded, recovered.checkpoint_bytes), (10, done.bytes));
    assert_eq!((recovered.commits_replayed, recovered.writes_replayed), (8, 6));
    assert_eq!(recovered.stale, 5 + 2, "five records of the checkpoint, and two writes");
    assert!(recovered.log_bytes > 0, "the log was read");
}
