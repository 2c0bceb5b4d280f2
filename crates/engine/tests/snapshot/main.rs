//! Tests of snapshots: a consistent view beside commits, and the ways in which it ends early.

mod kept;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kept::{all_of, config_on, put};
use stillpoint::{
    Engine, Error, KeySet, Procedure, Snapshot, SnapshotEnd, Stamp, TableId, Tx, TxError,
    checkpoint_schemes,
};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng, SimDisk, spawn};

#[test]
fn a_snapshot_clears_no_mark() {
    kept::a_snapshot_clears_no_mark();
}

/// Under every scheme with snapshots that takes changes.
#[test]
fn no_scheme_clears_marks_for_a_snapshot() {
    let of_changes = |scheme: &&str| scheme.ends_with(":partial") || *scheme == "hourglass";
    schemes().into_iter().filter(of_changes).for_each(kept::clears_no_mark);
}

#[test]
fn a_snapshot_ends_when_a_table_is_emptied() {
    kept::a_snapshot_ends_when_a_table_is_emptied();
}

/// The key under which the movers count their moves.
const MOVES: &[u8] = b"moves";
const ACCOUNTS: u64 = 300;
const MONEY: u64 = 1000;

/// Money moves between accounts of two tables, some accounts are closed and opened again, and some have
/// large values. A view has all the money, and the moves up to one moment.
fn moves_money(
    engine: &Engine,
    tables: [TableId; 2],
    seed: u64,
    stops: &AtomicBool,
    done: &AtomicU64,
) {
    let rng = SeededRng::new(seed);
    let mut session = engine.session().expect("a session");
    while !stops.load(Relaxed) {
        let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
        let amount = rng.below(20);
        let is_long = rng.below(40) == 0;
        let moved = session.transact(|tx| {
            let mut balance = |table: usize, of: u64| -> Result<Option<u64>, TxError> {
                let value = tx.get(tables[table], &of.to_le_bytes())?;
                Ok(value.map(|value| {
                    let mut bytes = [0; 8];
                    value.read_range(0, &mut bytes);
                    u64::from_le_bytes(bytes)
                }))
            };
            let (Some(there), here) = (balance(0, from)?, balance(1, to)?.unwrap_or(0)) else {
                return Ok(());
            };
            let amount = amount.min(there);
            let mut left = (there - amount).to_le_bytes().to_vec();
            left.resize(if is_long { 40_000 } else { 60 }, 9);
            tx.put(tables[0], &from.to_le_bytes(), &left)?;
            match here + amount {
                0 => drop(tx.delete(tables[1], &to.to_le_bytes())?),
                sum => tx.put(tables[1], &to.to_le_bytes(), &sum.to_le_bytes())?,
            }
            Ok(())
        });
        moved.expect("commits");
        // Some of it goes back.
        let back = session.transact(|tx| {
            let found = tx.get(tables[1], &to.to_le_bytes())?.map(|value| value.to_vec());
            let Some(sum) = found.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8")))
            else {
                return Ok(());
            };
            let value = tx.get(tables[0], &from.to_le_bytes())?.map(|value| value.to_vec());
            let there =
                value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().expect("8")));
            tx.put(tables[0], &from.to_le_bytes(), &(there + sum).to_le_bytes())?;
            tx.delete(tables[1], &to.to_le_bytes()).map(drop)
        });
        back.expect("commits");
        let counted = session.transact(|tx| {
            let found = tx.get(tables[1], MOVES)?.map(|value| value.to_vec());
            let moves = found.map_or(0, |it| u64::from_le_bytes(it.try_into().expect("8 bytes")));
            tx.put(tables[1], MOVES, &(moves + 1).to_le_bytes())
        });
        counted.expect("commits");
        done.fetch_add(1, Relaxed);
    }
}

/// The schemes that have snapshots.
fn schemes() -> Vec<&'static str> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (scheme, _) in checkpoint_schemes() {
        let disk = Arc::new(SimDisk::new(1));
        let journal = if scheme.starts_with("fuzzy-undo") { "undo-redo" } else { "redo" };
        let engine = Engine::open(config_on(&disk, scheme, journal)).expect("an empty directory");
        match engine.snapshot() {
            Ok(_) => with.push(scheme),
            Err(Error::NoSnapshots { .. }) => without.push(scheme),
            Err(error) => panic!("{scheme}: {error}"),
        }
    }
    let refused = ["none", "naive", "naive:partial"];
    let has_none = |scheme: &&str| {
        refused.contains(scheme) || scheme.starts_with("fuzzy") || scheme.starts_with("siren")
    };
    assert!(without.iter().all(has_none) && !with.iter().any(has_none), "{without:?}");
    with
}

#[test]
fn a_view_is_consistent_under_every_scheme() {
    for scheme in schemes() {
        let disk = Arc::new(SimDisk::new(1));
        let engine =
            Arc::new(Engine::open(config_on(&disk, scheme, "redo")).expect("an empty directory"));
        let tables = engine.tables_named(&["from", "to"]).expect("tables");
        let tables = [tables[0], tables[1]];
        for account in 0..ACCOUNTS {
            put(&engine, tables[0], &account.to_le_bytes(), &MONEY.to_le_bytes());
        }
        let (stops, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let movers: Vec<_> = (0..2)
            .map(|seed| {
                let (engine, stops, done) = (engine.clone(), stops.clone(), done.clone());
                let run = move || moves_money(&engine, tables, seed, &stops, &done);
                spawn("mover", run).expect("a thread")
            })
            .collect();
        for round in 0..4 {
            let before = done.load(Relaxed);
            while done.load(Relaxed) < before + 20 {
                std::thread::yield_now();
            }
            let returned = done.load(Relaxed);
            let mut snapshot = engine.snapshot().expect("a snapshot");
            // Each mover may have committed once more than it has counted.
            let begun = done.load(Relaxed) + 2;
            if round == 1 {
                continue; // dropped unread
            }
            let (mut sum, mut moves, mut seen) = (0, 0, BTreeMap::new());
            while let Some(batch) = snapshot.next_batch().expect("a whole view") {
                for record in batch.records() {
                    if record.key == MOVES {
                        moves = u64::from_le_bytes(record.value.try_into().expect("8 bytes"));
                        continue;
                    }
                    sum += u64::from_le_bytes(record.value[..8].try_into().expect("8 bytes"));
                    let rest = &record.value[8..];
                    assert!(rest.iter().all(|byte| *byte == 9), "a torn value");
                    let again = seen.insert((record.table, record.key.to_vec()), ());
                    assert!(again.is_none(), "{scheme}: a key that comes twice");
                }
            }
            assert_eq!(sum, ACCOUNTS * MONEY, "{scheme}, round {round}");
            assert!(
                (returned..=begun).contains(&moves),
                "{scheme}: {moves} of {returned} to {begun}"
            );
            drop(snapshot);
            if round == 2 {
                engine.checkpoint().expect("a checkpoint after a snapshot");
            }
        }
        stops.store(true, Relaxed);
        movers.into_iter().for_each(|mover| mover.join().expect("no panic"));
    }
}

/// A store with some MiB of records, whose capture waits for its reader.
fn filled(disk: &Arc<SimDisk>) -> (Engine, TableId) {
    let mut config = config_on(disk, "calc:partial", "redo");
    config.snapshot_memory_bytes = 1 << 20;
    config.snapshot_max_age = Duration::from_millis(300);
    config.log_limit_bytes = 64 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    overwrite(&engine, table, 1);
    (engine, table)
}

fn overwrite(engine: &Engine, table: TableId, byte: u8) {
    let mut session = engine.session().expect("a session");
    for batch in 0..300u32 {
        session
            .transact(|tx| {
                let key = |number: u32| (batch * 100 + number).to_le_bytes();
                (0..100).try_for_each(|number| tx.put(table, &key(number), &[byte; 100]))
            })
            .expect("commits");
    }
}

#[test]
fn a_slow_reader_holds_up_no_commit_and_is_told() {
    let disk = Arc::new(SimDisk::new(1));
    let (engine, table) = filled(&disk);
    let mut snapshot = engine.snapshot().expect("a snapshot");
    assert!(matches!(engine.snapshot(), Err(Error::SnapshotOpen)));
    overwrite(&engine, table, 2);
    let read = all_of(&mut snapshot, table).map(|found| found.len());
    let ended = read.expect_err("more was overwritten than may be kept");
    assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::MemoryLimit)), "{ended}");
    let (peak, limit) = (snapshot.waiting_bytes_peak(), 1 << 20);
    assert!(
        peak <= limit && peak >= limit - (200 << 10),
        "{peak} bytes: the limit is reached, not passed"
    );
    assert!(snapshot.next_batch().is_err(), "it stays so");
    drop(snapshot);
    let mut snapshot = engine.snapshot().expect("another snapshot");
    let found = all_of(&mut snapshot, table).expect("a whole view");
    assert!(found.len() == 30_000 && found.values().all(|value| *value == [2; 100]));
}

/// The thread that reads a snapshot writes, too. Its commit waits for the scan once the pool of old values
/// is used up, and the scan waits for the reader. So the snapshot ends.
#[test]
fn a_pool_that_is_used_up_ends_the_snapshot_and_holds_up_no_commit() {
    for scheme in ["calc-stored", "calc-stored:partial"] {
        let disk = Arc::new(SimDisk::new(1));
        let mut config = config_on(&disk, scheme, "none");
        config.stable_pool_bytes = Some(1 << 20);
        let engine = Engine::open(config).expect("an empty directory");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut overwrite = |byte: u8| {
            for key in 0..20_000u32 {
                let put = |tx: &mut Tx<'_>| tx.put(table, &key.to_le_bytes(), &[byte; 1_000]);
                session.transact(put).expect("commits");
            }
        };
        overwrite(1);
        let mut snapshot = engine.snapshot().expect("a snapshot");
        snapshot.next_batch().expect("a batch").expect("records");
        overwrite(2);
        let read = all_of(&mut snapshot, table).map(|found| found.len());
        let ended = read.expect_err("the pool was used up");
        assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::MemoryLimit)), "{ended}");
        drop(snapshot);
        let mut snapshot = engine.snapshot().expect("another snapshot");
        let found = all_of(&mut snapshot, table).expect("a whole view");
        assert!(found.len() == 20_000 && found.values().all(|value| *value == [2; 1_000]));
    }
}

/// A forked child's large values are copied. The scan asks for room after each, so that the reader has a
/// chance before the limit.
#[cfg(target_os = "linux")]
#[test]
fn large_values_side_by_side_do_not_end_a_snapshot_under_fork() {
    let disk = Arc::new(SimDisk::new(1));
    let mut config = config_on(&disk, "fork", "none");
    config.snapshot_memory_bytes = 20 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    for key in 0..40u8 {
        session.transact(|tx| tx.put(table, &[key], &vec![key; 1 << 20])).expect("commits");
    }
    let mut snapshot = engine.snapshot().expect("a snapshot");
    // The reader comes late. The scan waits for it with a few values.
    while snapshot.waiting_bytes_peak() < 8 << 20 {
        RealClock.sleep(Duration::from_millis(1));
    }
    RealClock.sleep(Duration::from_millis(50));
    let found = all_of(&mut snapshot, table).expect("a whole view");
    assert!(
        found.len() == 40
            && found.iter().all(|(key, value)| value.len() == 1 << 20 && value[7] == key[0])
    );
}

#[test]
fn a_checkpoint_that_is_due_waits_for_a_time() {
    let disk = Arc::new(SimDisk::new(1));
    let (engine, table) = filled(&disk);
    let mut snapshot = engine.snapshot().expect("a snapshot");
    assert!(snapshot.next_batch().expect("the first records").is_some());
    assert!(engine.stats().checkpoints.running.is_none(), "a snapshot is no checkpoint");
    engine.checkpoint().expect("a checkpoint, after a wait");
    let read = all_of(&mut snapshot, table).map(|found| found.len());
    let ended = read.expect_err("it was open for too long");
    assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::TooOld { .. })), "{ended}");
}

#[test]
fn a_store_closes_in_spite_of_a_snapshot() {
    let disk = Arc::new(SimDisk::new(1));
    let (engine, table) = filled(&disk);
    let mut snapshot = engine.snapshot().expect("a snapshot");
    engine.close().expect("closes");
    let read = all_of(&mut snapshot, table).map(|found| found.len());
    let ended = read.expect_err("the store is closed");
    assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::Closed)), "{ended}");
}

#[test]
fn a_view_that_is_complete_outlives_a_flush_and_the_store() {
    let disk = Arc::new(SimDisk::new(1));
    let engine = Engine::open(config_on(&disk, "calc", "redo")).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    put(&engine, table, b"rex", b"dog");
    let mut snapshot = engine.snapshot().expect("a snapshot");
    // The capture of one record is over at once. Its end is what the checkpoint waits for.
    engine.checkpoint().expect("a checkpoint");
    engine.flush_tables(&[table]).expect("emptied");
    engine.close().expect("closes");
    let found = all_of(&mut snapshot, table).expect("a whole view");
    assert_eq!(found.get(&b"rex"[..]).map(|value| &value[..]), Some(&b"dog"[..]));
    assert_eq!(snapshot.tables().collect::<Vec<_>>(), [(table, "things")]);
}

/// A store whose values are large: the scan keeps them by reference, far beyond the limit of batches.
#[test]
fn large_values_are_read_and_given_back() {
    let disk = Arc::new(SimDisk::new(1));
    let mut config = config_on(&disk, "calc", "none");
    config.snapshot_memory_bytes = 1 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    let value = |key: u8, round: u8| vec![key ^ round; 1 << 20];
    (0..60).for_each(|key| put(&engine, table, &[key], &value(key, 1)));
    let before = engine.stats().memory_bytes;
    let mut snapshot = engine.snapshot().expect("a snapshot");
    let read = |snapshot: &mut Snapshot, round: u8| {
        let mut found = 0;
        while let Some(batch) = snapshot.next_batch().expect("a whole view") {
            for record in batch.records() {
                assert!(record.value == value(record.key[0], round), "another value");
                found += 1;
            }
        }
        assert_eq!(found, 60);
    };
    (0..60).for_each(|key| put(&engine, table, &[key], &value(key, 2)));
    read(&mut snapshot, 1);
    drop(snapshot);
    // One that is dropped in the middle, and one that ends early.
    drop(engine.snapshot().expect("a snapshot"));
    let mut snapshot = engine.snapshot().expect("a snapshot");
    assert!(snapshot.next_batch().expect("the first value").is_some());
    engine.flush_tables(&[]).expect("nothing to empty");
    read(&mut engine_after(&engine, snapshot), 2);
    let begun_ns = RealClock.monotonic_ns();
    while engine.stats().memory_bytes > before + (8 << 20) {
        assert!(
            RealClock.monotonic_ns() < begun_ns + 20_000_000_000,
            "memory of large values is not given back"
        );
        std::thread::yield_now();
    }
}

/// Another snapshot, in the place of one that is dropped in the middle.
fn engine_after(engine: &Engine, snapshot: Snapshot) -> Snapshot {
    drop(snapshot);
    engine.snapshot().expect("a snapshot")
}

/// What a snapshot keeps of the store's memory costs no commit an error.
#[test]
fn a_store_that_gets_full_ends_the_snapshot_first() {
    let disk = Arc::new(SimDisk::new(1));
    let mut config = config_on(&disk, "calc:partial", "none");
    config.max_memory_bytes = 256 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut overwrite = |round: u8| {
        for key in 0..50u8 {
            let written = session.transact(|tx| tx.put(table, &[key], &vec![round; 1 << 20]));
            written.expect("a commit beside a snapshot has memory");
            RealClock.sleep(Duration::from_millis(1));
        }
    };
    overwrite(0);
    let mut snapshot = engine.snapshot().expect("a snapshot");
    (1..8).for_each(&mut overwrite);
    let read = all_of(&mut snapshot, table).map(|found| found.len());
    match read {
        Ok(found) => assert_eq!(found, 50),
        Err(ended) => {
            assert!(matches!(ended, Error::SnapshotEnded(SnapshotEnd::StoreMemory)), "{ended}");
        }
    }
}

/// A full store, such as a cache, holds all of its memory, and has spare bytes in it. A snapshot that keeps
/// nothing of it is read to the end.
#[test]
fn a_full_store_has_complete_snapshots() {
    let disk = Arc::new(SimDisk::new(1));
    let mut config = config_on(&disk, "calc:partial", "none");
    config.max_memory_bytes = 64 << 20;
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let key = |number: u32| number.to_be_bytes();
    let is_full =
        |number: &u32| session.transact(|tx| tx.put(table, &key(*number), &[1; 100])).is_err();
    let full = (0u32..).find(is_full).expect("the limit is reached");
    for number in (0..full).step_by(10) {
        session.transact(|tx| tx.delete(table, &key(number))).expect("a deletion");
    }
    while session.idle() {}
    // The background counts what others hold.
    RealClock.sleep(Duration::from_millis(20));
    // Others have grown meanwhile, so that more is held than the limit allows.
    let held = engine.stats().memory_bytes;
    engine.set_max_memory_bytes(held - (1 << 20));
    let spare = engine.memory_room().spare_bytes;
    assert!(spare > 2 << 20 && held > 60 << 20, "{spare} bytes spare, {held} held");
    let mut snapshot = engine.snapshot().expect("a snapshot");
    for number in (1..10_000).step_by(10) {
        let written = session.transact(|tx| tx.put(table, &key(number), &[2; 100]));
        written.expect("a value of the same size");
    }
    // The queue of deleted keys grows.
    for number in (10_001..60_000).step_by(10) {
        session.transact(|tx| tx.delete(table, &key(number))).expect("a deletion");
    }
    RealClock.sleep(Duration::from_millis(50));
    let found = all_of(&mut snapshot, table).expect("it is complete");
    assert_eq!(found.len() as u32, full - full.div_ceil(10));
}

#[test]
fn a_snapshot_is_neither_read_in_a_batch_nor_waits_there() {
    struct Reads(Option<Snapshot>, bool);
    impl Procedure for Reads {
        fn declare(&mut self, _: &mut KeySet) {}
        fn run(&mut self, _: &mut Tx<'_>) -> Result<(), TxError> {
            let refused = self.0.as_mut().expect("it is open").next_batch().map(drop);
            self.1 = matches!(refused, Err(Error::InsideTransaction { .. }));
            self.0 = None;
            Ok(())
        }
        fn ended(&mut self, _: Result<Option<Stamp>, TxError>) {}
    }
    let disk = Arc::new(SimDisk::new(1));
    let (engine, _) = filled(&disk);
    let mut session = engine.session().expect("a session");
    let mut reads = [Reads(Some(engine.snapshot().expect("a snapshot")), false)];
    session.execute(&mut reads[..]);
    assert!(reads[0].1, "a batch may not wait for a snapshot");
    drop(engine.snapshot().expect("another one, once the capture of the first has ended"));
}
