//! Scenarios of a few steps: frozen pages, half-written checkpoints, open transactions, limits.

mod common;
#[path = "common/scenarios.rs"]
mod scenarios;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{config, open};
use scenarios::{TABLE, get, put};
use stillpoint_io::{
    Caching, Clock, Disk, ManualClock, OpenMode, RealClock, Rng, SeededRng, SimDisk, in_parallel,
};
use stillpoint_siren::{Config, Logging, ROWS, Removes, SirenError, Store, TableId};

/// Opens a store with other limits.
fn start_with(disk: &SimDisk, change: impl FnOnce(&mut Config)) -> (Store, TableId) {
    let mut config = config(Removes::Pend, Logging::Relaxed, 1);
    change(&mut config);
    let store = Store::open(Arc::new(disk.clone()), config).expect("a store");
    let table = store.table("table").expect("a log");
    (store, table)
}

#[test]
fn a_commit_on_a_frozen_page_stays() {
    scenarios::a_commit_on_a_frozen_page_stays();
}

#[test]
fn a_frozen_page_keeps_its_image() {
    scenarios::a_frozen_page_keeps_its_image();
}

#[test]
fn a_half_written_checkpoint_leaves_the_one_before() {
    scenarios::a_half_written_checkpoint_leaves_the_one_before();
}

#[test]
fn a_header_follows_its_pages() {
    scenarios::a_header_follows_its_pages();
}

#[test]
fn a_rollback_in_the_checkpoint_is_not_repeated() {
    scenarios::a_rollback_in_the_checkpoint_is_not_repeated();
}

#[test]
fn a_strict_commit_survives() {
    scenarios::a_strict_commit_survives();
}

#[test]
fn a_checkpoint_after_a_given_up_one_is_whole() {
    scenarios::a_checkpoint_after_a_given_up_one_is_whole();
}

#[test]
fn a_tuple_removed_behind_the_copy_is_stored_once() {
    scenarios::a_tuple_removed_behind_the_copy_is_stored_once();
}

#[test]
fn what_is_appended_gathers_on_no_frozen_page() {
    scenarios::what_is_appended_gathers_on_no_frozen_page();
}

#[test]
fn a_write_splits_off_one_page_at_most() {
    scenarios::a_write_splits_off_one_page_at_most();
}

#[test]
fn an_opening_aborts_for_good() {
    scenarios::an_opening_aborts_for_good();
}

#[test]
fn open_transactions_are_in_the_image_and_end_as_the_log_says() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let (store, table) = start_with(&disk, |config| config.removes = removes);
        let session = store.session().expect("a session");
        let open_ones = [b"a", b"b", b"c"].map(|key| {
            let mut transaction = session.begin();
            transaction.put(table, key, b"1").expect("a lock");
            transaction
        });
        store.checkpoint().expect("a disk");
        let [mut first, second, third] = open_ones;
        first.put(table, b"d", b"2").expect("a lock");
        first.commit().expect("a log");
        second.abort();
        store.flush().expect("a log");
        let disk = disk.crash(3);
        drop(third);
        let after = open(&disk, removes, Logging::Relaxed, 1);
        let recovered = after.recovered();
        assert_eq!((recovered.reopened, recovered.aborted), (3, 1), "{recovered:?}");
        let found = [b"a", b"b", b"c", b"d"].map(|key| get(&after, key));
        assert_eq!(found, [Some(b"1".to_vec()), None, None, Some(b"2".to_vec())]);
        after.check().expect("sound pages");
    }
}

/// A steady load over a thousand checkpoints takes no more memory, disk or segments at the end.
#[test]
fn a_thousand_checkpoints_leave_memory_and_disk_flat() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let (store, table) = start_with(&disk, |config| config.removes = removes);
        let rng = SeededRng::new(5);
        let mut seen = Vec::new();
        for round in 0..1000u32 {
            let mut checkpoint = store.begin_checkpoint().expect("a disk");
            for _ in 0..20 {
                let key = rng.below(60).to_le_bytes();
                if rng.below(3) == 0 {
                    let session = store.session().expect("a session");
                    let mut transaction = session.begin();
                    transaction.delete(table, &key).expect("a lock");
                    transaction.commit().expect("a log");
                } else {
                    put(&store, &key, &round.to_le_bytes().repeat(10));
                }
                checkpoint.step().expect("a disk");
            }
            let done = checkpoint.finish().expect("a disk");
            seen.push((done.file_pages, disk.used_bytes(), store.occupancy(table)));
        }
        store.check().expect("sound pages");
        let most = |rounds: &[(u64, u64, stillpoint_siren::Occupancy)]| {
            rounds
                .iter()
                .map(|it| (it.0, it.1, it.2.tuples, it.2.pages))
                .fold((0, 0, 0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1), a.2.max(b.2), a.3.max(b.3)))
        };
        let (early, late) = (most(&seen[50..300]), most(&seen[750..]));
        assert!(
            late.0 <= early.0 + 8 && late.2 <= 60 && late.3 <= early.3 + 8,
            "{early:?} {late:?}"
        );
        assert!(late.1 <= early.1 * 5 / 4, "{early:?} {late:?}");
        assert!(seen.iter().all(|it| it.2.removed == 0 && it.2.pending == 0));
        assert!(disk.list(Path::new("siren")).expect("a directory").len() <= 4);
    }
}

#[test]
fn limits_are_told_by_typed_errors() {
    let clock = Arc::new(ManualClock::self_advancing(0));
    let disk = SimDisk::new(1);
    let (store, table) = start_with(&disk, |config| {
        config.clock = clock.clone();
        config.transaction_age_max = Duration::from_secs(5);
        config.transaction_bytes_max = 1000;
        config.lock_timeout = Duration::from_millis(30);
        config.sessions = 2;
    });
    let session = store.session().expect("a session");
    let mut older = session.begin();
    let mut younger = session.begin();
    older.put(table, b"a", b"1").expect("a lock");
    younger.put(table, b"b", b"1").expect("a lock");
    let refused = younger.get(table, b"a").expect_err("an older one holds it");
    assert!(matches!(refused, SirenError::Conflict { .. }) && refused.is_retryable());
    let late = older.get(table, b"b").expect_err("nobody releases it");
    assert!(matches!(late, SirenError::LockTimeout { waited_ms: 30.., .. }), "{late}");
    let large = older.put(table, b"c", &[0; 1000]).expect_err("too large");
    assert!(matches!(large, SirenError::TooLarge { bytes: 1003, limit: 1000 }), "{large}");
    let long = older.get(table, &[0; 70_000]).expect_err("too long");
    assert!(matches!(long, SirenError::KeyTooLong { bytes: 70_000 }), "{long}");
    let savepoint = older.savepoint();
    let foreign = younger.roll_back_to(savepoint).expect_err("another one's");
    assert!(matches!(foreign, SirenError::NoSavepoint), "{foreign}");
    clock.advance(Duration::from_secs(6));
    let old = older.put(table, b"c", b"1").expect_err("too old");
    assert!(matches!(old, SirenError::TooOld { limit_ms: 5000, .. }), "{old}");
    older.abort();
    younger.commit().expect("a log");
    let missing = session.begin().get(TableId(9), b"a").expect_err("no table");
    assert!(matches!(missing, SirenError::NoSuchTable { table: 9 }), "{missing}");
    let wrong = Config { page_bytes: 5000, ..config(Removes::Pend, Logging::None, 1) };
    let wrong = Store::open(Arc::new(SimDisk::new(2)), wrong).expect_err("no multiple of 4096");
    assert!(matches!(wrong, SirenError::Setting { setting: "page_bytes", .. }), "{wrong}");
    let mut sessions = Vec::new();
    let none = loop {
        match store.session() {
            Ok(session) => sessions.push(session),
            Err(error) => break error,
        }
    };
    assert!(matches!(none, SirenError::NoSession { limit: 2 }), "{none}");
}

#[test]
fn tuples_larger_than_a_page_come_back() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let store = open(&disk, removes, Logging::None, 1);
        store.table("table").expect("no log");
        let value = |round: u8| vec![round; 20_000];
        put(&store, b"a", &value(1));
        put(&store, b"b", b"small");
        store.checkpoint().expect("a disk");
        let checkpoint = {
            put(&store, b"a", &value(2));
            store.begin_checkpoint().expect("a disk")
        };
        put(&store, b"a", &value(3));
        checkpoint.finish().expect("a disk");
        let after = open(&disk.crash(2), removes, Logging::None, 1);
        assert_eq!(get(&after, b"a"), Some(value(2)));
        assert_eq!(get(&after, b"b").as_deref(), Some(&b"small"[..]));
    }
}

#[test]
fn damage_is_a_typed_error() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Removes::Pend, Logging::None, 1);
    store.table("table").expect("no log");
    for number in 0..60u8 {
        put(&store, &[number], &[number; 100]);
    }
    store.checkpoint().expect("a disk");
    drop(store);
    let pages = Path::new("siren/pages");
    let disk = disk.kill();
    let file = disk.open(pages, OpenMode::ReadWrite, Caching::Buffered).expect("the pages");
    let len = file.len().expect("a length");
    let mut seen = 0;
    for at in (12288..len).step_by(1000) {
        let mut byte = [0];
        file.read_at(&mut byte, at).expect("a byte");
        file.write_at(&[byte[0] ^ 0x10], at).expect("a byte");
        let opened = Store::open(Arc::new(disk.clone()), config(Removes::Pend, Logging::None, 1));
        match opened {
            Err(SirenError::Damaged { path, .. } | SirenError::DamagedPage { path, .. }) => {
                assert!(path.ends_with("pages"));
                seen += 1;
            }
            Ok(store) => assert_eq!(store.records(TABLE), 60, "a free page"),
            Err(error) => panic!("{error}"),
        }
        file.write_at(&byte, at).expect("a byte");
    }
    assert!(seen > 5, "{seen}");
}

/// A store whose file of pages is gone is not begun anew: its log would be removed.
#[test]
fn a_log_without_its_pages_is_a_typed_error() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Removes::Pend, Logging::Strict, 1);
    store.table("table").expect("a log");
    put(&store, b"key", b"value");
    drop(store);
    let disk = disk.kill();
    let (pages, kept) = (Path::new("siren/pages"), Path::new("siren/kept"));
    disk.rename(pages, kept).expect("it is there");
    let opened = || Store::open(Arc::new(disk.clone()), config(Removes::Pend, Logging::Strict, 1));
    let refused = opened().map(drop).expect_err("its log is there");
    assert!(matches!(refused, SirenError::Missing { .. }) && refused.is_damage(), "{refused}");
    assert!(refused.to_string().contains("siren/pages"), "{refused}");
    disk.rename(kept, pages).expect("it is there");
    assert_eq!(opened().expect("a store").records(TABLE), 1, "nothing was lost");
}

/// A missing segment, and damage that no crash explains, are told. Nothing is cut off.
#[test]
fn a_gap_in_the_log_is_a_typed_error() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Removes::Pend, Logging::Strict, 1);
    store.table("table").expect("a log");
    put(&store, b"a", b"1");
    // Each given-up checkpoint begins a segment.
    for value in [b"2", b"3"] {
        drop(store.begin_checkpoint().expect("a log"));
        put(&store, b"a", value);
        put(&store, b"b", value);
    }
    drop(store);
    let log = |number: u64| std::path::PathBuf::from(format!("siren/log-{number:010}"));
    let reopened = |disk: &SimDisk| {
        Store::open(Arc::new(disk.clone()), config(Removes::Pend, Logging::Strict, 1))
    };
    assert_eq!(
        get(&reopened(&disk.crash_image(1)).expect("whole"), b"a").as_deref(),
        Some(&b"3"[..])
    );
    for number in [0, 1] {
        let gap = disk.crash_image(1);
        gap.remove(&log(number)).expect("it is there");
        let error = reopened(&gap).expect_err("a segment is missing");
        assert!(error.to_string().contains(&format!("segment {number} ")), "{error}");
    }
    for number in 0..3 {
        let damaged = disk.crash_image(1);
        let file = damaged.open(&log(number), OpenMode::ReadWrite, Caching::Buffered).expect("it");
        let len = file.len().expect("a length");
        let mut byte = [0];
        file.read_at(&mut byte, 4096 + 50).expect("a byte");
        file.write_at(&[byte[0] ^ 1], 4096 + 50).expect("a byte");
        let error = reopened(&damaged).expect_err("a batch is damaged");
        assert!(error.to_string().contains("damaged"), "{error}");
        assert_eq!(file.len().expect("a length"), len, "nothing is cut off");
    }
}

/// The rival changes pages in place, also while they are copied, and is not opened again.
#[test]
fn a_fuzzy_store_is_measured_and_refused_afterwards() {
    let disk = SimDisk::new(1);
    let (store, table) = start_with(&disk, |config| config.removes = Removes::AtOnce);
    let rng = SeededRng::new(7);
    for round in 0..20u8 {
        let mut checkpoint = store.begin_checkpoint().expect("a disk");
        for _ in 0..40 {
            let session = store.session().expect("a session");
            let mut transaction = session.begin();
            let key = rng.below(60).to_le_bytes();
            match rng.below(3) {
                0 => drop(transaction.delete(table, &key).expect("a lock")),
                _ => transaction.put(table, &key, &[round; 90]).expect("a lock"),
            }
            transaction.commit().expect("a log");
            checkpoint.step().expect("a disk");
        }
        checkpoint.finish().expect("a disk");
        store.check().expect("sound pages");
        assert_eq!(store.occupancy(table).removed_max, 0, "nothing is held twice");
    }
    let reopened = |removes| Store::open(Arc::new(disk.kill()), config(removes, Logging::None, 1));
    let refused = reopened(Removes::Pend).expect_err("its pages are fuzzy");
    assert!(matches!(refused, SirenError::Fuzzy { .. }), "{refused}");
}

/// Threads transfer among accounts beside checkpoints. No checkpoint and no crash loses money.
#[test]
fn threads_transfer_beside_checkpoints() {
    let rows = ROWS.iter().map(|row| row.removes);
    for (removes, logging) in rows.flat_map(|row| Logging::ALL.map(|logging| (row, logging))) {
        let disk = SimDisk::new(1);
        let mut config = config(removes, logging, 1);
        config.clock = Arc::new(RealClock);
        config.lock_timeout = Duration::from_millis(20);
        let store = Store::open(Arc::new(disk.clone()), config).expect("a store");
        let table = store.table("table").expect("a log");
        let key = |number: u64| number.to_be_bytes();
        for number in 0..50 {
            put(&store, &key(number), &100i64.to_le_bytes());
        }
        let read = |value: Option<Arc<[u8]>>| {
            i64::from_le_bytes(value.expect("an account").as_ref().try_into().expect("8 bytes"))
        };
        let transfer = |seed: u64| {
            let rng = SeededRng::new(seed);
            let session = store.session().expect("a session");
            let mut done = 0;
            while done < 300 {
                let (from, to) = (rng.below(50), rng.below(50));
                let mut transaction = session.begin();
                let mut run = || {
                    let left = read(transaction.get(table, &key(from))?) - 1;
                    transaction.put(table, &key(from), &left.to_le_bytes())?;
                    let more = read(transaction.get(table, &key(to))?) + 1;
                    transaction.put(table, &key(to), &more.to_le_bytes())
                };
                match run() {
                    Ok(()) => {
                        transaction.commit().expect("a log");
                        done += 1;
                    }
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        };
        let checkpoints = || {
            for _ in 0..20 {
                store.checkpoint().expect("a disk");
                RealClock.sleep(Duration::from_millis(1));
            }
        };
        let jobs: Vec<Box<dyn FnOnce() + Send>> =
            vec![Box::new(|| transfer(1)), Box::new(|| transfer(2)), Box::new(checkpoints)];
        in_parallel("transfer", jobs).expect("no panic");
        store.check().expect("sound pages");
        assert!(store.waited_turns_max() <= 1, "{}", store.waited_turns_max());
        let after = open(&disk.crash(4), removes, logging, 1);
        let session = after.session().expect("a session");
        let mut transaction = session.begin();
        let sum: i64 =
            (0..50).map(|it| read(transaction.get(table, &key(it)).expect("a lock"))).sum();
        assert_eq!(sum, 5000, "{removes:?} {logging:?}");
    }
}
