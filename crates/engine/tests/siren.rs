//! Tests of SIREN tables on the simulated disk: restarts, crashes, and errors at the calls of a checkpoint.
//! Also open transactions across checkpoints, ranges beside insertions, and what is refused.

#[path = "common/histories.rs"]
mod histories;
#[path = "siren/holders.rs"]
mod holders;
#[path = "siren/offline.rs"]
mod offline;
#[path = "siren/scans.rs"]
mod scans;
#[path = "siren/unlogged.rs"]
mod unlogged;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint::{
    Config, Durability, Engine, Environment, Error, KeySet, Kind, Label, Mode, Procedure, Session,
    Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Caching, Disk, Fault, ManualClock, OpenMode, Rng, SeededRng, SimDisk};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn configure(disk: &SimDisk) -> Config {
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new("unused");
    config.checkpoint_every = None;
    config.durability = Durability::Strict;
    config.sessions = 8;
    config.logs = 2;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = 64 << 10;
    config.page_bytes = Some(4096);
    config.siren_bytes = Some(8 << 20);
    config.environment = Environment {
        disk: Some(Arc::new(disk.clone())),
        clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
        rng: Arc::new(SeededRng::new(1)),
        background: false,
        ..config.environment
    };
    config
}

fn open(disk: &SimDisk) -> (Engine, TableId) {
    let engine = Engine::open(configure(disk)).expect("opens");
    let table = engine.table_with("orders", Kind::Siren).expect("a table");
    (engine, table)
}

/// With segments of the log that hold the record of a large value.
fn open_for_large_values(disk: &SimDisk) -> (Engine, TableId) {
    let engine = Engine::open(Config { log_segment_bytes: 8 << 20, ..configure(disk) });
    let engine = engine.expect("opens");
    let table = engine.table_with("orders", Kind::Siren).expect("a table");
    (engine, table)
}

fn put(session: &mut Session, table: TableId, key: &[u8], value: &[u8]) {
    session.transact(|tx| tx.put(table, key, value)).expect("commits");
}

fn read_all(tx: &mut Tx<'_>, table: TableId) -> Result<Records, TxError> {
    let (mut records, mut range) = (Records::new(), tx.range(table, ..)?);
    while let Some((key, value)) = range.next_record()? {
        records.insert(key.to_vec(), value.to_vec());
    }
    let (mut back, mut range) = (Records::new(), tx.range_descending(table, ..)?);
    while let Some((key, value)) = range.next_record()? {
        assert!(back.first_key_value().is_none_or(|(above, _)| **above > *key), "descending");
        back.insert(key.to_vec(), value.to_vec());
    }
    assert_eq!(back, records, "from the end");
    Ok(records)
}

fn all(session: &mut Session, table: TableId) -> Records {
    session.transact(|tx| read_all(tx, table)).expect("reads")
}

/// Random puts, deletions and patches; applies them to `records`, too.
fn change(session: &mut Session, table: TableId, seed: u64, records: &mut Records) {
    let rng = SeededRng::new(seed);
    for _ in 0..400 {
        let key = rng.below(500).to_be_bytes().to_vec();
        match (rng.below(5), records.get_mut(&key)) {
            (0, _) => {
                session.transact(|tx| tx.delete(table, &key)).expect("commits");
                records.remove(&key);
            }
            (1, Some(value)) => {
                let at = rng.below(value.len() as u64) as usize;
                session.transact(|tx| tx.patch(table, &key, at, b"x")).expect("commits");
                value[at] = b'x';
            }
            _ => {
                let value = vec![rng.below(256) as u8; 1 + rng.below(300) as usize];
                put(session, table, &key, &value);
                records.insert(key, value);
            }
        }
    }
}

#[test]
fn a_table_survives_ends_and_crashes() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut records = Records::new();
    for round in 0..3 {
        change(&mut session, table, round, &mut records);
        assert!(all(&mut session, table) == records);
        engine.checkpoint().expect("a sound disk");
        let stats = engine.stats().siren.expect("the kind");
        assert_eq!(stats.tuples, records.len() as u64, "no version is left");
    }
    change(&mut session, table, 7, &mut records);
    session.flush().expect("a sound disk");
    let crashed = disk.crash_image(5);
    drop(session);
    engine.close().expect("closes");
    for (what, mut disk) in [("an end", disk.kill()), ("a crash", crashed)] {
        for round in 0..3 {
            let (engine, table) = open(&disk);
            assert_eq!(engine.len(table), records.len() as u64, "after {what}");
            let mut session = engine.session().expect("a session");
            let found = all(&mut session, table);
            assert!(found == records, "{what} has lost something, round {round}");
            put(&mut session, table, b"more", b"more");
            session.transact(|tx| tx.delete(table, b"more")).expect("commits");
            if round == 1 {
                engine.checkpoint().expect("a sound disk");
            }
            session.flush().expect("a sound disk");
            disk = disk.crash_image(round);
        }
    }
}

#[test]
fn one_transaction_changes_tables_of_all_kinds_or_none() {
    let disk = SimDisk::new(3);
    let (engine, siren) = open(&disk);
    let memory = engine.table("memory").expect("a table");
    let ordered = engine.table_with("ordered", Kind::Ordered).expect("a table");
    let mut session = engine.session().expect("a session");
    for fails in [false, true] {
        let value: &[u8] = if fails { b"never" } else { b"first" };
        let ended = session.transact(|tx| {
            for number in 0u32..200 {
                tx.put(siren, &number.to_be_bytes(), value)?;
            }
            tx.put(memory, b"key", value)?;
            tx.put(ordered, b"key", value)?;
            if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
        });
        assert_eq!(ended.is_err(), fails, "{ended:?}");
    }
    session.flush().expect("a sound disk");
    let (engine, _) = open(&disk.crash_image(7));
    let mut session = engine.session().expect("a session");
    let found = all(&mut session, siren);
    assert_eq!(found.len(), 200);
    assert!(found.values().all(|value| value == b"first"));
    let mut out = Vec::new();
    session.read(memory, b"key", &mut out).expect("reads").expect("a value");
    assert_eq!(out, b"first");
    assert_eq!(all(&mut session, ordered).len(), 1);
}

/// A transaction with writes before, between and behind two checkpoints, and a rollback of others
/// meanwhile. The machine stops before its end, and behind it.
#[test]
fn a_transaction_stays_open_across_checkpoints() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut other = engine.session().expect("a session");
    let keys = [b"a", b"b", b"c"];
    keys.iter().for_each(|key| put(&mut session, table, *key, b"before"));
    engine.checkpoint().expect("a sound disk");
    let mut open_one = session.begin().expect("begins");
    let mut write = |value: &[u8]| {
        let mut tx = open_one.tx().expect("open");
        tx.put(table, b"a", value).expect("free");
        tx.put(table, value, value).expect("free");
        assert!(tx.delete(table, b"b").is_ok());
    };
    write(b"one");
    let checkpoint = || {
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| engine.checkpoint()).join().expect("no panic");
            taken.expect("a sound disk");
        });
    };
    checkpoint();
    write(b"two");
    put(&mut other, table, b"other", b"first");
    checkpoint();
    write(b"three");
    put(&mut other, table, b"other", b"second");
    let before = disk.crash_image(1);
    open_one.commit().expect("commits");
    let behind = disk.crash_image(1);
    let mut expected: Records = keys.iter().map(|key| (key.to_vec(), b"before".to_vec())).collect();
    expected.insert(b"other".to_vec(), b"second".to_vec());
    let undone = expected.clone();
    expected.remove(&b"b"[..]);
    for value in [&b"one"[..], b"two", b"three"] {
        expected.insert(value.to_vec(), value.to_vec());
    }
    expected.insert(b"a".to_vec(), b"three".to_vec());
    for (mut disk, expected) in [(before, undone), (behind, expected)] {
        for life in 0..3 {
            let (engine, table) = open(&disk);
            let found = all(&mut engine.session().expect("a session"), table);
            assert_eq!(found, expected, "life {life}");
            if life == 1 {
                engine.checkpoint().expect("a sound disk");
            }
            disk = disk.crash_image(life);
        }
    }
}

/// A checkpoint is cut off at each of its calls, by an error and by a loss of power. Then the store goes on,
/// or starts again, with all that has committed. The first checkpoint makes the file of pages.
#[test]
fn a_checkpoint_may_fail_at_any_call() {
    for (fault, is_first) in [
        (Fault::PowerLoss, false),
        (Fault::InputOutput, false),
        (Fault::PowerLoss, true),
        (Fault::InputOutput, true),
    ] {
        let mut nth = 1;
        loop {
            let disk = SimDisk::new(3);
            let (engine, table) = open(&disk);
            let mut session = engine.session().expect("a session");
            let mut records = Records::new();
            change(&mut session, table, 1, &mut records);
            if !is_first {
                engine.checkpoint().expect("a sound disk");
            }
            change(&mut session, table, 2, &mut records);
            session.flush().expect("a sound disk");
            disk.fail_at(nth, fault);
            let is_whole = engine.checkpoint().is_ok();
            if fault == Fault::InputOutput && engine.health().is_ok() {
                change(&mut session, table, 3, &mut records);
                let next = engine.checkpoint();
                // After a failed flush, the kind takes no further one.
                let in_doubt = |error: &Error| error.to_string().contains("open it again");
                assert!(next.as_ref().map_or_else(in_doubt, |_| true), "call {nth}: {next:?}");
                assert!(all(&mut session, table) == records, "call {nth}");
                session.flush().expect("a sound disk");
            }
            drop((session, engine));
            let image = disk.crash(nth);
            let (engine, table) = open(&image);
            let found = all(&mut engine.session().expect("a session"), table);
            assert!(found == records, "{fault:?} at call {nth}, of the first: {is_first}");
            if is_whole {
                break;
            }
            nth += 1;
        }
        assert!(nth > 10, "a checkpoint makes calls");
    }
}

#[test]
fn a_flush_empties_a_table_for_good() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let kept = engine.table_with("kept", Kind::Siren).expect("a table");
    let mut session = engine.session().expect("a session");
    let mut records = Records::new();
    change(&mut session, table, 1, &mut records);
    put(&mut session, kept, b"key", b"kept");
    engine.checkpoint().expect("a sound disk");
    engine.flush_tables(&[table]).expect("a sound disk");
    assert!(all(&mut session, table).is_empty());
    put(&mut session, table, b"key", b"new");
    session.flush().expect("a sound disk");
    let expected = Records::from([(b"key".to_vec(), b"new".to_vec())]);
    let crashed = disk.crash_image(9);
    for checkpoints in 0..2 {
        let disk = crashed.crash_image(checkpoints);
        let (engine, table) = open(&disk);
        let mut session = engine.session().expect("a session");
        assert!(all(&mut session, table) == expected);
        assert_eq!(all(&mut session, kept).len(), 1);
        let mut records = expected.clone();
        change(&mut session, table, 2, &mut records);
        for _ in 0..checkpoints {
            engine.checkpoint().expect("a sound disk");
            engine.checkpoint().expect("a sound disk");
        }
        session.flush().expect("a sound disk");
        drop((session, engine));
        let (engine, table) = open(&disk.kill());
        assert!(all(&mut engine.session().expect("a session"), table) == records);
    }
}

/// The file of pages gives back what emptied tables had, and what a start finds there is whole.
#[test]
fn the_file_of_pages_becomes_shorter() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let len = || {
        let pages = disk.open(Path::new("siren/pages"), OpenMode::Read, Caching::Buffered);
        pages.expect("made by a checkpoint").len().expect("a file")
    };
    for number in 0..300u32 {
        put(&mut session, table, &number.to_be_bytes(), &[7; 10_000]);
    }
    engine.checkpoint().expect("a sound disk");
    let full = len();
    assert!(full > 3_000_000, "{full}");
    engine.flush_tables(&[table]).expect("a sound disk");
    // The directory of the first checkpoint may lie at the end.
    for number in 0..2u8 {
        put(&mut session, table, b"key", &[number]);
        engine.checkpoint().expect("a sound disk");
    }
    assert!(len() < full / 20, "{} of {full}", len());
    put(&mut session, table, b"last", b"value");
    session.flush().expect("a sound disk");
    let (engine, table) = open(&disk.crash_image(1));
    assert_eq!(all(&mut engine.session().expect("a session"), table).len(), 2);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let disk = SimDisk::new(3);
    let refused = |setting: &str, change: &dyn Fn(&mut Config)| {
        let mut config = configure(&disk);
        change(&mut config);
        let opened = Engine::open(config).map(drop);
        let is_it =
            matches!(&opened, Err(Error::Config { setting: found, .. }) if *found == setting);
        assert!(is_it, "{setting}: {opened:?}");
    };
    refused("siren_memory", &|config| config.siren_bytes = Some(1000));
    refused("siren_memory", &|config| config.siren_bytes = Some(config.max_memory_bytes));
    for journal in ["none", "command", "undo-redo"] {
        refused("journal", &|config| {
            config.checkpoint = "none".to_owned();
            config.journal = journal.to_owned();
        });
    }
    let plain = |disk: &SimDisk| {
        let mut config = configure(disk);
        config.siren_bytes = None;
        Engine::open(config)
    };
    let without = plain(&SimDisk::new(4)).expect("opens");
    let refused = without.table_with("orders", Kind::Siren);
    assert!(matches!(refused, Err(Error::Config { setting: "siren_memory", .. })), "{refused:?}");
    let (engine, table) = open(&disk);
    for kind in [Kind::Memory, Kind::Ordered] {
        let other = engine.table_with("orders", kind);
        assert!(matches!(other, Err(Error::TableName { .. })), "{other:?}");
    }
    put(&mut engine.session().expect("a session"), table, b"key", b"value");
    engine.close().expect("closes");
    let error = plain(&disk).map(drop).expect_err("the store has such a table").to_string();
    assert!(error.contains("siren") && error.contains("memory"), "{error}");
    open(&disk);
}

/// Histories of lists in SIREN tables, and in those and others. Some transactions stay open across calls and
/// checkpoints. More histories: `STILLPOINT_SIREN_HISTORIES=20`.
#[test]
fn histories_have_no_anomaly() {
    let histories = std::env::var("STILLPOINT_SIREN_HISTORIES").ok();
    let histories = histories.and_then(|count| count.parse().ok()).unwrap_or(1);
    let open = |disk: &SimDisk| {
        let mut config = configure(disk);
        config.pool_bytes = Some(24 * 4096);
        config.page_growth_bytes = 1 << 20;
        Engine::open(config).expect("opens")
    };
    for seed in 0..histories {
        for second in [Kind::Siren, Kind::Ordered, Kind::Paged] {
            let setting =
                histories::Setting { open, kinds: [Kind::Siren, second], stays_open: true };
            histories::no_anomaly_across_crashes(setting, seed, 60);
        }
    }
}

/// Operations of all sorts come between the begin of a checkpoint and its end: commits, aborts, rollbacks, new
/// and emptied tables. The machine stops at the end of each round.
#[test]
fn operations_come_amid_checkpoints() {
    for seed in 0..4 {
        amid_checkpoints(seed);
    }
}

fn amid_checkpoints(seed: u64) {
    let mut disk = SimDisk::new(seed);
    let mut records = [Records::new(), Records::new()];
    for round in 0..3 {
        let (engine, first) = open(&disk);
        let second = engine.table_with("second", Kind::Siren).expect("a table");
        let (engine, is_over, taken) = (&engine, &AtomicBool::new(false), &AtomicU64::new(0));
        std::thread::scope(|scope| {
            let mut writers = Vec::new();
            for (number, (table, records)) in
                [first, second].into_iter().zip(&mut records).enumerate()
            {
                writers.push(scope.spawn(move || {
                    let rng = SeededRng::new(seed * 100 + round * 10 + number as u64);
                    let mut session = engine.session().expect("a session");
                    let mut turn = 0;
                    while turn < 30 || (taken.load(SeqCst) < 3 && turn < 5000) {
                        steps(&mut session, table, &rng, records);
                        if number == 1 && turn == 20 {
                            engine.flush_tables(&[table]).expect("a sound disk");
                            records.clear();
                        }
                        turn += 1;
                    }
                    session.flush().expect("a sound disk");
                }));
            }
            let checkpoints = scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    engine.checkpoint().expect("a sound disk");
                    taken.fetch_add(1, SeqCst);
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, SeqCst);
            ended.into_iter().for_each(|ended| ended.expect("no panic"));
            checkpoints.join().expect("no panic");
        });
        disk = disk.crash_image(seed + round);
        let (engine, first) = open(&disk);
        let mut session = engine.session().expect("a session");
        for (table, records) in [first, second].into_iter().zip(&records) {
            assert!(all(&mut session, table) == *records, "seed {seed}, round {round}");
            assert_eq!(engine.len(table), records.len() as u64);
        }
        drop((session, engine));
        let checked = Engine::builder(configure(&disk)).check().expect("readable");
        assert!(checked.damage.is_empty(), "seed {seed}: {:?}", checked.damage);
    }
}

/// An open transaction with savepoints, some of whose statements are taken back. In the end it commits, or is
/// dropped.
fn steps(session: &mut Session, table: TableId, rng: &SeededRng, records: &mut Records) {
    let mut wanted = records.clone();
    let mut open_one = session.begin().expect("begins");
    for _ in 0..rng.below(12) {
        let before = wanted.clone();
        let savepoint = open_one.savepoint().expect("open");
        for _ in 0..1 + rng.below(3) {
            let key = rng.below(60).to_be_bytes().to_vec();
            let mut tx = open_one.tx().expect("open");
            if rng.below(3) == 0 {
                tx.delete(table, &key).expect("nobody else is here");
                wanted.remove(&key);
            } else {
                let value = vec![rng.below(256) as u8; 1 + rng.below(500) as usize];
                tx.put(table, &key, &value).expect("nobody else is here");
                wanted.insert(key, value);
            }
        }
        std::thread::yield_now();
        if rng.below(3) == 0 {
            open_one.roll_back_to(savepoint).expect("its own");
            wanted = before;
        }
    }
    if rng.below(4) > 0 {
        open_one.commit().expect("commits");
        *records = wanted;
    }
}

/// The log leaves room for the next checkpoint's pages. So on a full disk writes are refused, a checkpoint
/// succeeds, and writes go on.
#[test]
fn a_checkpoint_finds_room_on_a_full_disk() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let key = |number: u32| (number % 400).to_be_bytes();
    (0..400).for_each(|number| put(&mut session, table, &key(number), &[1; 700]));
    engine.checkpoint().expect("a sound disk");
    disk.set_capacity(Some(disk.used_bytes() + (1 << 20)));
    for round in 0..3 {
        let mut written = 0;
        let refused = loop {
            match session.transact(|tx| tx.put(table, &key(written * 7), &[round; 700])) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            // Not every engine of a test takes checkpoints by itself.
            assert!(written < 20_000, "the disk is full");
        };
        assert!(refused.is_disk_full(), "{refused}");
        engine.health().expect("a full disk is no failure");
        engine.checkpoint().unwrap_or_else(|error| panic!("round {round}: {error}"));
        put(&mut session, table, b"more", &[round; 700]);
        assert!(written > 5, "round {round}: {written}");
    }
}

/// The memory of SIREN's tables counts against the limit from the start.
#[test]
fn the_memory_limit_is_that_of_all_tables() {
    let disk = SimDisk::new(3);
    let (engine, table) = open_for_large_values(&disk);
    let limit = configure(&disk).max_memory_bytes;
    assert_eq!(engine.stats().max_memory_bytes, limit);
    let room = engine.memory_room();
    engine.set_max_memory_bytes(limit);
    assert_eq!(engine.stats().max_memory_bytes, limit);
    assert_eq!(engine.memory_room().limit_bytes, room.limit_bytes);
    let before = engine.stats().memory_bytes;
    put(&mut engine.session().expect("a session"), table, b"key", &vec![7; 1 << 20]);
    assert!(engine.stats().memory_bytes >= before + (1 << 20));
}

/// A batch of a range takes few large values at once.
#[test]
fn a_range_takes_few_large_values_at_once() {
    let (engine, table) = open_for_large_values(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    for number in 0..40u8 {
        put(&mut session, table, &[number], &vec![number; 100_000]);
    }
    let mut holder = session.begin().expect("begins");
    let mut tx = holder.tx().expect("open");
    let mut range = tx.range(table, ..).expect("free");
    assert!(range.next_record().expect("reads").is_some());
    drop(range);
    // Only what a batch has taken is locked.
    std::thread::scope(|scope| {
        let beyond = scope.spawn(|| {
            let mut other = engine.session().expect("a session");
            let mut other = other.begin().expect("begins");
            let mut tx = other.tx().expect("open");
            tx.put(table, &[5], b"free").is_ok()
        });
        assert!(beyond.join().expect("no panic"), "a later record is not read yet");
    });
}

#[test]
fn a_write_beyond_the_memory_is_refused_and_leaves_nothing() {
    let (engine, table) = open(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    let mut written = 0u32;
    let refused = loop {
        match session.transact(|tx| tx.put(table, &written.to_be_bytes(), &[7; 10_000])) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the limit is 8 MiB");
    };
    assert!(matches!(refused, Error::Transaction(TxError::Memory(_))), "{refused:?}");
    assert!(written > 600, "{written} values of 10 KB");
    assert_eq!(engine.len(table), u64::from(written));
    let freed = session.transact(|tx| tx.delete(table, &0u32.to_be_bytes()));
    assert!(freed.expect("commits"));
    put(&mut session, table, b"one", &[7; 10_000]);
    let held = engine.stats().siren.expect("the kind").held_bytes;
    assert!(held > 7 << 20 && held <= 8 << 20, "{held}");
}

/// A declared transaction that is too large to be logged with its commit sees what its earlier puts take.
#[test]
fn a_declared_transaction_beyond_the_memory_leaves_nothing() {
    let (engine, table) = open(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    let mut declared = Puts { table, keys: 60_000, ended: None };
    session.execute(std::slice::from_mut(&mut declared));
    let ended = declared.ended;
    assert!(matches!(ended, Some(Err(TxError::Memory(_)))), "{ended:?}");
    assert_eq!(engine.len(table), 0);
    let held = engine.stats().siren.expect("the kind").held_bytes;
    assert!(held <= 8 << 20, "{held}");
}

/// So does one that is logged with its commit, whose new keys take more than their values.
#[test]
fn a_declared_transaction_of_small_values_keeps_within_the_memory() {
    let (engine, table) = open(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    let held = || engine.stats().siren.expect("the kind").held_bytes;
    let mut number = 0u32;
    while held() < (8 << 20) - (300 << 10) {
        put(&mut session, table, format!("large {number}").as_bytes(), &[7; 10_000]);
        number += 1;
    }
    let mut declared = Puts { table, keys: 4_000, ended: None };
    session.execute(std::slice::from_mut(&mut declared));
    let ended = declared.ended;
    assert!(matches!(ended, Some(Err(TxError::Memory(_)))), "{ended:?}, {} bytes", held());
    assert_eq!(engine.len(table), u64::from(number));
    let mut declared = Puts { table, keys: 400, ended: None };
    session.execute(std::slice::from_mut(&mut declared));
    assert!(matches!(declared.ended, Some(Ok(_))), "{:?}", declared.ended);
    assert!(held() <= 8 << 20, "{} bytes", held());
}

/// Threads add and remove neighbours in pairs, while others count a range twice in one transaction.
#[test]
fn a_range_sees_no_phantoms() {
    let (engine, table) = open(&SimDisk::new(3));
    let engine = &engine;
    let key = |number: u64| number.to_be_bytes();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                let (rng, mut session) =
                    (SeededRng::new(seed), engine.session().expect("a session"));
                for _ in 0..400 {
                    let pair = 2 * rng.below(8);
                    let changed = session.transact(|tx| {
                        if tx.delete(table, &key(pair))? {
                            tx.delete(table, &key(pair + 1)).map(drop)
                        } else {
                            tx.put(table, &key(pair + 1), b"one")?;
                            tx.put(table, &key(pair), b"two")
                        }
                    });
                    changed.expect("commits");
                }
            });
        }
        for seed in 2..4 {
            scope.spawn(move || {
                let (rng, mut session) =
                    (SeededRng::new(seed), engine.session().expect("a session"));
                for _ in 0..200 {
                    let (from, to) = (key(2 * rng.below(4)), key(8 + 2 * rng.below(4)));
                    let counts = session.transact(|tx| {
                        let mut counts = [0; 2];
                        for count in &mut counts {
                            let mut range = tx.range(table, &from[..]..&to[..])?;
                            while range.next_record()?.is_some() {
                                *count += 1;
                            }
                            std::thread::yield_now();
                        }
                        Ok(counts)
                    });
                    let [first, second] = counts.expect("commits");
                    assert_eq!((first, first % 2), (second, 0), "a phantom");
                }
            });
        }
    });
}

/// Statements of one transaction, some of which are taken back, with checkpoints between. The machine stops
/// before the end and behind it.
#[test]
fn a_transaction_goes_back_to_savepoints() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let memory = engine.table("memory").expect("a table");
    let mut session = engine.session().expect("a session");
    put(&mut session, table, b"a", b"before");
    let checkpoint = || {
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| engine.checkpoint()).join().expect("no panic");
            taken.expect("a sound disk");
        });
    };
    let mut open_one = session.begin().expect("begins");
    open_one.tx().expect("open").put(memory, b"key", b"first").expect("free");
    open_one.tx().expect("open").put(table, b"a", b"one").expect("free");
    let first = open_one.savepoint().expect("open");
    open_one.tx().expect("open").put(table, b"a", b"two").expect("free");
    open_one.tx().expect("open").put(table, b"b", b"two").expect("free");
    checkpoint();
    let second = open_one.savepoint().expect("open");
    open_one.tx().expect("open").delete(table, b"a").expect("free");
    open_one.tx().expect("open").put(table, b"a", b"three").expect("free");
    open_one.roll_back_to(second).expect("its own");
    let value = |open_one: &mut stillpoint::Transaction<'_>, key: &[u8]| {
        let mut tx = open_one.tx().expect("open");
        tx.get(table, key).expect("its own").map(|value| value.to_vec())
    };
    assert_eq!(value(&mut open_one, b"a").as_deref(), Some(&b"two"[..]));
    open_one.tx().expect("open").put(table, b"c", b"four").expect("free");
    checkpoint();
    open_one.roll_back_to(first).expect("its own");
    assert_eq!(value(&mut open_one, b"a").as_deref(), Some(&b"one"[..]));
    assert_eq!(value(&mut open_one, b"b"), None);
    let gone = open_one.roll_back_to(second);
    assert!(matches!(gone, Err(Error::Transaction(TxError::UnknownSavepoint))), "{gone:?}");
    open_one.tx().expect("open").put(table, b"d", b"five").expect("free");
    checkpoint();
    open_one.tx().expect("open").put(memory, b"key", b"second").expect("free");
    let refused = open_one.roll_back_to(first);
    let is_it = matches!(refused, Err(Error::Transaction(TxError::NoSavepoints("memory"))));
    assert!(is_it, "{refused:?}");
    let before = disk.crash_image(1);
    open_one.commit().expect("commits");
    let undone = Records::from([(b"a".to_vec(), b"before".to_vec())]);
    let expected =
        Records::from([(b"a".to_vec(), b"one".to_vec()), (b"d".to_vec(), b"five".to_vec())]);
    for (disk, expected) in [(before, undone), (disk.crash_image(1), expected)] {
        let (engine, table) = open(&disk);
        let mut session = engine.session().expect("a session");
        assert_eq!(all(&mut session, table), expected);
        engine.checkpoint().expect("a sound disk");
        drop((session, engine));
        let (engine, table) = open(&disk.crash_image(2));
        assert_eq!(all(&mut engine.session().expect("a session"), table), expected);
    }
}

/// No savepoint takes back a write to a table in memory, by whichever call.
#[test]
fn writes_to_memory_are_not_taken_back() {
    type Write = fn(&mut Tx<'_>, TableId) -> Result<(), TxError>;
    let writes: [(&str, Write); 7] = [
        ("put", |tx, table| tx.put(table, b"large", b"x")),
        ("put_until", |tx, table| tx.put_until(table, b"large", b"x", 1 << 50)),
        ("set_deadline", |tx, table| tx.set_deadline(table, b"large", 1 << 50)),
        ("patch", |tx, table| tx.patch(table, b"large", 0, b"x")),
        ("splice", |tx, table| {
            let slot = tx.key(table, b"large", Mode::Write)?;
            tx.splice_slot(slot, 0, 1, b"x")
        }),
        ("delete", |tx, table| tx.delete(table, b"large").map(drop)),
        ("share", |tx, table| {
            let from = tx.key(table, b"large", Mode::Read)?;
            let to = tx.key(table, b"other", Mode::Write)?;
            assert!(tx.share_slot(from, to, Label { tag: 0, deadline: 0 })?, "a large value");
            Ok(())
        }),
    ];
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let memory = engine.table("memory").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut unnoticed = Vec::new();
    for (name, write) in writes {
        put(&mut session, memory, b"large", &vec![7; 200 << 10]);
        let mut open_one = session.begin().expect("begins");
        let savepoint = open_one.savepoint().expect("open");
        open_one.tx().expect("open").put(table, b"key", b"value").expect("free");
        write(&mut open_one.tx().expect("open"), memory).expect(name);
        let refused = open_one.roll_back_to(savepoint);
        let is_it = matches!(refused, Err(Error::Transaction(TxError::NoSavepoints("memory"))));
        if !is_it {
            unnoticed.push((name, refused));
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
    assert!(all(&mut session, table).is_empty());
}

/// Whoever meets a transaction that waits for a person gets an error after the time of the settings. A
/// transaction that is too old or too large is told so.
#[test]
fn an_open_transaction_has_limits() {
    let disk = SimDisk::new(3);
    let mut config = configure(&disk);
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    config.lock_timeout = Some(Duration::from_millis(20));
    config.transaction_age_max = Some(Duration::from_secs(60));
    config.transaction_bytes_max = Some(1000);
    config.environment.clock = Arc::new(stillpoint_io::RealClock);
    let engine = Engine::open(config.clone()).expect("opens");
    let table = engine.table_with("orders", Kind::Siren).expect("a table");
    let mut session = engine.session().expect("a session");
    let mut holder = session.begin().expect("begins");
    holder.tx().expect("open").put(table, b"key", b"held").expect("free");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut other = engine.session().expect("a session");
            let mut declared = Puts { table, keys: 0, ended: None };
            other.execute(std::slice::from_mut(&mut declared));
            (declared.ended, other.transact(|tx| tx.put(table, b"key", b"other")))
        });
        let (declared, found) = waits.join().expect("no panic");
        assert!(matches!(declared, Some(Err(TxError::LockTimeout { waited_ms: 20.. }))));
        let is_it = matches!(found, Err(Error::Transaction(TxError::LockTimeout { .. })));
        assert!(is_it, "{found:?}");
    });
    let large = holder.tx().expect("open").put(table, b"large", &[7; 1000]);
    assert!(matches!(large, Err(TxError::TooLarge { limit: 1000, .. })), "{large:?}");
    holder.tx().expect("open").put(table, b"small", &[7; 100]).expect("it fits");
    holder.commit().expect("commits");
    assert_eq!(all(&mut session, table).len(), 2);
    drop(session);
    engine.close().expect("closes");
    config.environment.clock = clock.clone();
    let engine = Engine::open(config).expect("opens");
    let mut session = engine.session().expect("a session");
    let mut old = session.begin().expect("begins");
    old.tx().expect("open").put(table, b"old", b"old").expect("free");
    clock.advance(Duration::from_secs(61));
    let refused = old.tx().map(drop);
    let is_it =
        matches!(refused, Err(Error::Transaction(TxError::TooOld { limit_ms: 60_000, .. })));
    assert!(is_it, "{refused:?}");
    assert!(old.commit().is_err());
    assert_eq!(all(&mut session, table).len(), 2);
}

/// Puts a key, and more of them, declared.
struct Puts {
    table: TableId,
    /// Keys beside the first.
    keys: u32,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Puts {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, b"key", Mode::Write, 8);
        for key in 0..self.keys {
            keys.push(self.table, &key.to_be_bytes(), Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (0..=self.keys).try_for_each(|slot| tx.put_slot(Slot(slot), b"declared"))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}
