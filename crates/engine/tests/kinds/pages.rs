//! Paged tables beside the other kinds: flushes amid checkpoints, failures of pages, and transactions that keep
//! the log.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint::{Engine, Error, Session, TableId, TxError};
use stillpoint_io::{Clock, Fault, RealClock, SimDisk, spawn};

use crate::world::{World, configure_all};

/// Runs of a transaction until it has the permit of the store.
const RUNS_MAX: u32 = 17;
/// Longest time for what takes some milliseconds.
const SOON: Duration = Duration::from_secs(10);

fn open(disk: &SimDisk) -> Arc<World> {
    Arc::new(World::open_all(disk, 1, 2, 0).expect("opens"))
}

/// All sessions share one log, so an open transaction keeps what the others write.
fn open_with_log_limit(disk: &SimDisk, limit: u64) -> Arc<World> {
    let mut config = configure_all(disk, 1, 1);
    config.log_limit_bytes = limit;
    Arc::new(World::open_with(config, 1, 0).expect("opens"))
}

fn get(session: &mut Session, table: TableId, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = session.read(table, key, &mut out).expect("reads");
    found.map(|_| out)
}

/// Bytes of the logs that somebody keeps.
fn kept_bytes(engine: &Engine) -> u64 {
    engine.stats().log_holders.iter().map(|holder| holder.bytes).max().unwrap_or(0)
}

/// While a checkpoint asks another kind for its files, a paged table is emptied, and gets a record.
pub(crate) fn a_flush_before_the_turn_of_a_kind_loses_nothing() {
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let paged = world.table_of(2);
    let mut session = world.engine.session().expect("a session");
    let filled = session.transact(|tx| {
        tx.put(world.tables[1], b"key", b"value")?;
        tx.put(paged, b"before", b"before")
    });
    filled.expect("commits");
    let (weak, other) = (Arc::downgrade(&world), Mutex::new(session));
    *world.kind.on_copy.lock() = Some(Arc::new(move || {
        let Some(world) = weak.upgrade() else { return };
        world.engine.flush_tables(&[paged]).expect("a sound disk");
        other.lock().transact(|tx| tx.put(paged, b"after", b"after")).expect("commits");
    }));
    let checkpointed = world.clone();
    let taken = spawn("checkpoint", move || checkpointed.engine.checkpoint().map(drop));
    taken.expect("a thread").join().expect("no panic").expect("a sound disk");
    *world.kind.on_copy.lock() = None;
    let again = open(&disk.crash_image(3));
    let mut session = again.engine.session().expect("a session");
    assert_eq!(get(&mut session, paged, b"before"), None, "the table was emptied");
    assert_eq!(get(&mut session, paged, b"after").as_deref(), Some(&b"after"[..]));
    assert_eq!(again.engine.len(paged), 1);
}

/// A transaction has the permit of the store, and locks keys while a flush of tables takes all locks.
pub(crate) fn a_flush_and_the_holder_of_the_permit_both_end() {
    let world = open(&SimDisk::new(1));
    let table = world.table_of(2);
    for first in 0..6u8 {
        let ((begun, begins), (ended, ends)) = (mpsc::channel(), mpsc::channel());
        let mut session = world.engine.session().expect("a session");
        let done = ended.clone();
        let permitted = move || {
            let mut runs = 0;
            let committed = session.transact(|tx| {
                runs += 1;
                if runs < RUNS_MAX {
                    return Err(TxError::Conflict);
                }
                tx.put(table, &[first], b"first")?;
                begun.send(()).expect("somebody waits");
                RealClock.sleep(Duration::from_millis(20));
                (0..40u8).try_for_each(|key| tx.put(table, &[key, key], b"next"))
            });
            done.send(committed).expect("somebody waits");
        };
        let flushing = world.clone();
        let flush = move || {
            begins.recv().expect("it begins");
            ended.send(flushing.engine.flush_tables(&[table])).expect("somebody waits");
        };
        let threads = [spawn("permit", permitted), spawn("flush", flush)];
        for _ in 0..2 {
            ends.recv_timeout(SOON).expect("both end").expect("a sound disk");
        }
        for thread in threads {
            thread.expect("a thread").join().expect("no panic");
        }
    }
}

/// A write or a flush of pages fails. Nothing more is acknowledged, and a start has all.
pub(crate) fn a_failed_write_of_pages_fails_the_store() {
    let (mut failed, mut after_publication) = (0, 0);
    for nth in 1.. {
        let disk = SimDisk::new(1);
        let world = open(&disk);
        let table = world.table_of(2);
        let mut session = world.engine.session().expect("a session");
        for number in 0..40u8 {
            session.transact(|tx| tx.put(table, &[number], &[number; 900])).expect("commits");
        }
        disk.fail_at(nth, Fault::InputOutput);
        let before = disk.call_counts().changes();
        let taken = world.engine.checkpoint();
        let is_over = disk.call_counts().changes() - before < nth;
        let of_pages = taken.as_ref().is_err_and(|error| error.to_string().contains("pages/"));
        failed += u32::from(of_pages);
        let health = world.engine.health();
        let is_of_pages =
            health.as_ref().is_err_and(|why| why.to_string().contains("flush of pages"));
        assert!(!of_pages || is_of_pages, "call {nth}: {taken:?}, {health:?}");
        if is_of_pages {
            after_publication += u32::from(taken.is_ok());
            let refused = session.transact(|tx| tx.put(table, b"more", b"more"));
            assert!(refused.is_err(), "call {nth}: a commit after a failed write of pages");
        }
        disk.clear_faults();
        let again = open(&disk.crash_image(nth));
        let mut session = again.engine.session().expect("a session");
        for number in 0..40u8 {
            assert_eq!(get(&mut session, table, &[number]), Some(vec![number; 900]), "call {nth}");
        }
        if is_over {
            break;
        }
    }
    assert!(failed > 3 && after_publication > 0, "{failed} {after_publication}");
}

/// All transactions are rolled back. Their records still make a checkpoint due.
pub(crate) fn rollbacks_alone_do_not_fill_the_log() {
    const LIMIT: u64 = 256 << 10;
    let disk = SimDisk::new(1);
    let mut config = configure_all(&disk, 1, 2);
    config.log_limit_bytes = LIMIT;
    // A transaction that finds the log at its limit is rolled back at once.
    config.lock_timeout = Some(Duration::from_millis(100));
    config.environment.background = true;
    config.environment.clock = Arc::new(RealClock);
    let world = World::open_with(config, 1, 0).expect("opens");
    let table = world.table_of(2);
    let mut session = world.engine.session().expect("a session");
    for _ in 0..40 {
        let ended = session.transact(|tx| {
            (0..30u8).try_for_each(|key| tx.put(table, &[key], &[key; 800]))?;
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(ended.is_err());
    }
    let is_freed = |_| {
        RealClock.sleep(SOON / 1000);
        world.engine.stats().checkpoints.published > 0 && kept_bytes(&world.engine) < LIMIT
    };
    assert!((0..1000).any(is_freed), "{} bytes of log are kept", kept_bytes(&world.engine));
}

fn pinned<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Transaction(TxError::PinsLog(_))))
}

/// A transaction that writes too much, and one that idles while others write.
pub(crate) fn a_transaction_that_keeps_the_log_is_told() {
    const LIMIT: u64 = 256 << 10;
    let disk = SimDisk::new(1);
    let world = open_with_log_limit(&disk, LIMIT);
    let table = world.table_of(2);
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    let written =
        session.transact(|tx| (0..200u8).try_for_each(|key| tx.put(table, &[key], &[key; 900])));
    assert!(pinned(&written), "{written:?}");
    assert_eq!(world.engine.len(table), 0, "it is rolled back");
    world.engine.checkpoint().expect("a sound disk");
    let mut idle = session.begin().expect("begins");
    idle.tx().expect("no batch").put(table, b"idle", b"idle").expect("room");
    let mut refused = 0;
    for key in (0..300u16).map(u16::to_be_bytes) {
        // A key may share the word of the one that the open transaction has locked. At the limit of the log, a
        // put is refused after a wait, since no thread of the store takes a checkpoint.
        let put = other.transact(|tx| tx.put(table, &key, &[1; 900]));
        refused += u32::from(
            put.is_err_and(|error| matches!(error, Error::Transaction(TxError::LogFull(_)))),
        );
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3);
    assert!(kept_bytes(&world.engine) > LIMIT / 2, "the open transaction keeps the log");
    world.engine.checkpoint().expect("a sound disk");
    assert_eq!(get(&mut other, table, b"idle"), None, "it is rolled back, although nobody uses it");
    let refused = idle.tx().map(drop);
    assert!(pinned(&refused), "{refused:?}");
    let refused = idle.commit();
    assert!(pinned(&refused), "{refused:?}");
    assert_eq!(get(&mut other, table, b"idle"), None, "a second rollback has nothing to undo");
    assert!(kept_bytes(&world.engine) < LIMIT / 4, "{}", kept_bytes(&world.engine));
    session.transact(|tx| tx.put(table, b"idle", b"later")).expect("the store goes on");
}

/// Writes three times the pool in one transaction. The machine may stop in the middle of it.
fn writes_three_pools(
    world: &World,
    seed: u8,
    fails: bool,
    mut stop: impl FnMut(),
) -> Result<(), Error> {
    let (table, noise) = (world.table_of(2), world.engine.table("noise").expect("a table"));
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    session.transact(|tx| {
        for number in 0..240u8 {
            tx.put(table, &[number, seed], &[number; 800])?;
            if number % 80 == 40 {
                // Makes the log durable, the open operations included.
                other.transact(|tx| tx.put(noise, b"noise", b"noise")).expect("a sound disk");
                stop();
            }
        }
        if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
    })
}

/// The limit of the log is twice what such a transaction logs. One commits, and another one rolls back.
pub(crate) fn a_transaction_larger_than_the_pool_ends_either_way() {
    let world = open(&SimDisk::new(1));
    world.engine.table("noise").expect("a table");
    let before = world.engine.stats().journal.record_bytes;
    writes_three_pools(&world, 1, false, || {}).expect("no limit");
    let logged = world.engine.stats().journal.record_bytes - before;
    let disk = SimDisk::new(2);
    let world = open_with_log_limit(&disk, 2 * logged);
    let table = world.table_of(2);
    world.engine.table("noise").expect("a table");
    let images = RefCell::new(Vec::new());
    let stop = |records: u64| {
        let (mut seed, disk, images) = (0, &disk, &images);
        move || {
            seed += 1;
            images.borrow_mut().push((disk.crash_image(seed), records));
        }
    };
    writes_three_pools(&world, 1, false, stop(0)).expect("it commits");
    assert!(world.engine.stats().pool.expect("a pool").evictions > 10);
    world.engine.checkpoint().expect("a sound disk");
    writes_three_pools(&world, 2, true, stop(240)).expect_err("as wanted");
    assert_eq!(world.engine.len(table), 240);
    images.borrow_mut().push((disk.crash_image(99), 240));
    for (image, records) in images.into_inner() {
        let again = open(&image);
        let mut session = again.engine.session().expect("a session");
        assert_eq!(again.engine.len(table), records);
        for number in 0..240u8 {
            let expected = (records > 0).then(|| vec![number; 800]);
            assert_eq!(get(&mut session, table, &[number, 1]), expected);
            assert_eq!(get(&mut session, table, &[number, 2]), None);
        }
    }
}

/// The disk becomes full amid a transaction. It is rolled back, reads go on, and writes are refused until there is
/// space again.
pub(crate) fn a_full_disk_refuses_writes_alone() {
    const RECORDS: u16 = 500;
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let table = world.table_of(2);
    let mut session = world.engine.session().expect("a session");
    let mut put = |number: u16, value: u8| {
        session.transact(|tx| tx.put(table, &number.to_be_bytes(), &[value; 900]))
    };
    let mut values = vec![0u8; RECORDS.into()];
    (0..RECORDS).for_each(|number| put(number, 0).expect("there is space"));
    let mut reader = world.engine.session().expect("a session");
    let mut changer = world.engine.session().expect("a session");
    let mut refused = 0;
    for turn in 1..8u8 {
        let stopped = changer.transact(|tx| {
            for number in 0..120 {
                if number == 60 {
                    disk.set_capacity(Some(disk.used_bytes()));
                }
                tx.put(table, &(number * 4 + u16::from(turn) % 4).to_be_bytes(), &[99; 900])?;
            }
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(stopped.is_err());
        let health = |what: &str| {
            world.engine.health().unwrap_or_else(|why| panic!("turn {turn}, {what}: {why}"));
        };
        health("rolled back");
        for number in 0..RECORDS {
            match put(number, turn) {
                Ok(()) => values[usize::from(number)] = turn,
                Err(error) => {
                    assert!(error.is_disk_full(), "turn {turn}: {error}");
                    refused += 1;
                    break;
                }
            }
        }
        health("written to");
        for number in 0..RECORDS {
            let found = get(&mut reader, table, &number.to_be_bytes());
            let expected = vec![values[usize::from(number)]; 900];
            assert!(found == Some(expected), "turn {turn}, record {number}");
        }
        disk.set_capacity(None);
        world.engine.checkpoint().expect("there is space again");
    }
    assert!(refused > 3, "{refused}");
    (0..RECORDS).for_each(|number| put(number, 200).expect("there is space again"));
}

const LOSERS: u8 = 6;
const CHANGES: u8 = 30;

/// Opens a store whose start has three threads.
fn open_in_threads(disk: &SimDisk) -> Result<World, Error> {
    let mut config = configure_all(disk, 1, 2);
    (config.environment.background, config.environment.clock) = (true, Arc::new(RealClock));
    config.recovery_threads = 3;
    World::open_with(config, 1, 0)
}

/// Checks that the records of two tables are those from before the transactions that were cut off.
fn check_undone(world: &World, context: &str) {
    let mut session = world.engine.session().expect("a session");
    for table in [world.table_of(2), world.table_of(3)] {
        assert_eq!(
            world.engine.len(table),
            u64::from(LOSERS) * u64::from(CHANGES / 2),
            "{context}"
        );
        for (loser, number) in (0..LOSERS).flat_map(|loser| (0..CHANGES).map(move |n| (loser, n))) {
            let expected = (number % 2 == 0).then(|| vec![number; 300]);
            assert_eq!(get(&mut session, table, &[number, loser]), expected, "{context}");
        }
    }
}

/// Transactions of several sessions have changed records that lie side by side when the machine stops. A start
/// undoes them in threads. It may stop amid that, twice.
pub(crate) fn losers_are_undone_in_threads() {
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let tables = [world.table_of(2), world.table_of(3)];
    let mut session = world.engine.session().expect("a session");
    for (loser, number) in (0..LOSERS).flat_map(|loser| (0..CHANGES / 2).map(move |n| (loser, n))) {
        let put = session.transact(|tx| {
            tables
                .iter()
                .try_for_each(|&table| tx.put(table, &[2 * number, loser], &[2 * number; 300]))
        });
        put.expect("commits");
    }
    let mut sessions: Vec<_> =
        (0..LOSERS).map(|_| world.engine.session().expect("a session")).collect();
    let mut losers: Vec<_> =
        sessions.iter_mut().map(|session| session.begin().expect("begins")).collect();
    for number in 0..CHANGES {
        for (loser, transaction) in (0..).zip(&mut losers) {
            for &table in &tables {
                let Ok(mut tx) = transaction.tx() else { continue };
                // Some keys share a word of locks: their changes are left out.
                let _ = match number % 3 {
                    0 => tx.delete(table, &[number, loser]).map(drop),
                    _ => tx.put(table, &[number, loser], &[99; 700]),
                };
            }
        }
    }
    session.transact(|tx| tx.put(world.tables[0], b"flushes", b"all")).expect("commits");
    let image = disk.crash_image(1);
    drop(losers);
    drop(sessions);
    let mut amid = 0;
    for nth in (1..60).step_by(5) {
        let stopped = image.crash_image(nth);
        stopped.fail_at(nth, Fault::PowerLoss);
        amid += u32::from(open_in_threads(&stopped).is_err());
        let stopped = stopped.crash(nth);
        stopped.fail_at(nth / 2 + 1, Fault::PowerLoss);
        drop(open_in_threads(&stopped));
        let again = open_in_threads(&stopped.crash(nth)).expect("opens");
        check_undone(&again, &format!("call {nth}"));
    }
    assert!(amid > 2, "{amid} starts were stopped");
}
