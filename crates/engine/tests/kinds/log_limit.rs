//! The limit of the log: who writes waits for the checkpoint that frees it, and who reads goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use stillpoint::{Config, Engine, Error, Kind, LogFreed, TxError};
use stillpoint_io::{Clock, RealClock, SimDisk, spawn};

use crate::world::{World, configure_all};

const LIMIT: u64 = 1 << 20;
const WRITERS: u8 = 4;
const COMMITS: u8 = 200;
/// Longer than any step of a test.
const SOON: Duration = Duration::from_secs(20);

fn open(disk: &SimDisk, logs: usize, lock_timeout: Duration) -> Arc<World> {
    let mut config = configure_all(disk, 1, logs);
    config.log_limit_bytes = LIMIT;
    config.lock_timeout = Some(lock_timeout);
    config.environment.background = true;
    config.environment.clock = Arc::new(RealClock);
    Arc::new(World::open_with(config, 1, 0).expect("opens"))
}

/// Bytes of the logs that somebody keeps.
fn kept_bytes(engine: &Engine) -> u64 {
    engine.stats().log_holders.iter().map(|holder| holder.bytes).max().unwrap_or(0)
}

#[track_caller]
fn check_peak(peak: u64) {
    assert!(peak > LIMIT / 2 && peak <= LIMIT + LIMIT / 20, "{peak} bytes of log at the peak");
}

/// One writer: to paged tables and to memory in one transaction, and to memory alone.
fn write(world: &World, writer: u8) -> Result<(), Error> {
    let (paged, memory) = (world.table_of(2), world.tables[0]);
    let mut session = world.engine.session()?;
    for number in 0..COMMITS {
        let key = [writer, number];
        session.transact(|tx| {
            (0..3u8).try_for_each(|part| tx.put(paged, &[writer, number, part], &[part; 900]))?;
            tx.put(memory, &key, &key)
        })?;
        session.transact(|tx| tx.put(memory, &[writer], &[number; 2000]))?;
    }
    Ok(())
}

/// Many writers, and a transaction that nobody uses. The log never exceeds its limit by a twentieth. Every
/// writer commits, and the idle transaction is rolled back and told.
pub(crate) fn writers_wait_for_the_checkpoint_that_frees_the_log() {
    let disk = SimDisk::new(1);
    let world = open(&disk, 2, Duration::from_secs(5));
    let aside = world.engine.table_with("aside", Kind::Paged).expect("a table");
    let mut session = world.engine.session().expect("a session");
    let mut reader = world.engine.session().expect("a session");
    reader.transact(|tx| tx.put(aside, b"read", b"read")).expect("room");
    let mut idle = session.begin().expect("begins");
    idle.tx().expect("no batch").put(aside, b"idle", b"idle").expect("room");
    idle.tx().expect("no batch").put(world.tables[0], b"idle", b"idle").expect("room");
    let ended = Arc::new(AtomicUsize::new(0));
    let writers = (0..WRITERS).map(|writer| {
        let (world, ended) = (world.clone(), ended.clone());
        let body = move || {
            let written = write(&world, writer);
            ended.fetch_add(1, SeqCst);
            written
        };
        spawn("writer", body).expect("a thread")
    });
    let (writers, mut peak) = (writers.collect::<Vec<_>>(), 0);
    while ended.load(SeqCst) < usize::from(WRITERS) {
        peak = peak.max(kept_bytes(&world.engine));
        let found = reader.read(aside, b"read", &mut Vec::new()).expect("who reads goes on");
        assert!(found.is_some());
        RealClock.sleep(Duration::from_micros(200));
    }
    for writer in writers {
        writer.join().expect("no panic").expect("every writer commits");
    }
    check_peak(peak);
    let told = idle.tx().map(drop);
    assert!(matches!(told, Err(Error::Transaction(TxError::PinsLog(_)))), "{told:?}");
    let told = idle.commit();
    assert!(matches!(told, Err(Error::Transaction(TxError::PinsLog(_)))), "{told:?}");
    assert_eq!(reader.read(aside, b"idle", &mut Vec::new()).expect("reads"), None);
    session.transact(|tx| tx.put(aside, b"idle", b"later")).expect("the session goes on");
    let again = World::open_all(&disk.crash_image(1), 1, 2, 0).expect("opens");
    let records = u64::from(WRITERS) * u64::from(COMMITS);
    assert_eq!(again.engine.len(again.table_of(2)), 3 * records);
    assert_eq!(again.engine.len(again.tables[0]), records + u64::from(WRITERS));
}

/// The body of a transaction stands still and keeps the log. Who writes gets an error after a while, and who
/// reads goes on. The body is told at its next step.
pub(crate) fn a_log_that_nothing_frees_refuses_writes_alone() {
    // All sessions share one log.
    let world = open(&SimDisk::new(1), 1, Duration::from_millis(100));
    let (paged, memory) = (world.table_of(2), world.tables[0]);
    let aside = world.engine.table_with("aside", Kind::Paged).expect("a table");
    let ((begun, begins), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let mut session = world.engine.session().expect("a session");
    let standing = spawn("stands still", move || {
        session.transact(|tx| {
            tx.put(aside, b"still", b"first")?;
            begun.send(()).expect("somebody waits");
            goes.recv_timeout(SOON).expect("it goes on");
            tx.put(aside, b"still", b"second")
        })
    });
    begins.recv_timeout(SOON).expect("it begins");
    let mut session = world.engine.session().expect("a session");
    let mut refused = Vec::new();
    for number in 0..2000u16 {
        let key = number.to_be_bytes();
        let put = session.transact(|tx| match number % 2 {
            0 => tx.put(paged, &key, &[1; 900]),
            _ => tx.put(memory, &key, &[1; 900]),
        });
        // A key may share the word of the one that the standing transaction has locked.
        let waits =
            |error: &Error| matches!(error, Error::Transaction(TxError::LockTimeout { .. }));
        refused.extend(put.err().filter(|error| !waits(error)));
        if refused.len() == 4 {
            break;
        }
    }
    let is_full = |error: &Error| matches!(error, Error::Transaction(TxError::LogFull(_)));
    assert!(refused.len() == 4 && refused.iter().all(is_full), "{refused:?}");
    check_peak(kept_bytes(&world.engine));
    let seen = session.transact(|tx| Ok(tx.get(paged, &[0, 0])?.map(|value| value.len())));
    assert_eq!(seen.expect("who reads goes on"), Some(900));
    go.send(()).expect("it stands still");
    let told = standing.expect("a thread").join().expect("no panic");
    assert!(matches!(told, Err(Error::Transaction(TxError::PinsLog(_)))), "{told:?}");
    let freed = (0..100).any(|_| session.transact(|tx| tx.put(paged, b"key", b"value")).is_ok());
    assert!(freed, "writes resume");
    assert_eq!(session.read(aside, b"still", &mut Vec::new()).expect("reads"), None);
}

/// Writes to paged tables and to memory until a write is refused. Returns the number of commits, and what the
/// error says about who frees the logs.
fn write_until_full(world: &World) -> (u32, LogFreed) {
    let (paged, memory) = (world.table_of(2), world.tables[0]);
    let mut session = world.engine.session().expect("a session");
    for number in 0..4000u32 {
        let key = number.to_be_bytes();
        let put = session.transact(|tx| {
            tx.put(paged, &key, &[1; 900])?;
            tx.put(memory, &key, &[1; 300])
        });
        let kept = kept_bytes(&world.engine);
        assert!(kept <= LIMIT + LIMIT / 20, "{kept} bytes of log");
        match put {
            Ok(()) => {}
            Err(Error::Transaction(TxError::LogFull(full))) => return (number, full.freed),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no write is refused");
}

fn without_threads(disk: &SimDisk, checkpoint: &str) -> Config {
    let mut config = configure_all(disk, 1, 2);
    config.log_limit_bytes = LIMIT;
    config.checkpoint = checkpoint.to_owned();
    config
}

/// No thread of the store frees the log. Writes are refused at once, and the error says what to do.
pub(crate) fn a_log_that_no_thread_frees_ends_at_its_limit() {
    for (checkpoint, background) in [("calc", false), ("none", false), ("none", true)] {
        let disk = SimDisk::new(1);
        let mut config = without_threads(&disk, checkpoint);
        if background {
            (config.environment.background, config.environment.clock) = (true, Arc::new(RealClock));
        }
        let world = World::open_with(config, 1, 0).expect("opens");
        let (records, freed) = write_until_full(&world);
        let published = || world.engine.stats().checkpoints.published;
        let before = published();
        match checkpoint {
            "none" => {
                assert_eq!(freed, LogFreed::Never);
                if background {
                    RealClock.sleep(Duration::from_millis(300));
                }
                let raised = |policy: &mut stillpoint::CheckpointPolicy| {
                    policy.log_limit_bytes = 2 * LIMIT;
                };
                assert!(
                    published() <= before + 1,
                    "checkpoints that free nothing follow each other"
                );
                world.engine.change_checkpoint_policy(raised).expect("a limit");
            }
            _ => {
                assert_eq!(freed, LogFreed::ByCaller);
                world.engine.checkpoint().expect("a sound disk");
            }
        }
        let mut session = world.engine.session().expect("a session");
        session.transact(|tx| tx.put(world.table_of(2), b"key", b"value")).expect("writes resume");
        let mut config = without_threads(&disk.crash_image(1), checkpoint);
        config.serve_while_loading = true;
        let again = World::open_with(config, 1, 0).expect("opens");
        assert!(again.engine.loading().is_done, "no load lets the log grow beside it");
        assert_eq!(again.engine.len(again.table_of(2)), u64::from(records) + 1);
        assert_eq!(again.engine.len(again.tables[0]), u64::from(records));
    }
}
