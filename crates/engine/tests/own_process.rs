//! Tests that need a process of their own, one after the other: with little address space, and of the memory
//! that a large transaction takes.
//!
//! The limit of address space holds for a process. The standard library ends the process if a new thread finds no space for its signal stack. So
//! tables must leave some space, and threads start while the limit holds. The allocator's heap of
//! the thread that makes the tables is reserved before.

use std::sync::{Arc, Barrier};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stillpoint::{Config, Durability, Engine, Error, Kind, Session, TableId, TxError};
use stillpoint_io::resident_bytes;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// Threads that start once the tables have used all the space that they may.
const THREADS: usize = 4;

#[test]
fn one_table_too_many_is_refused_and_the_store_opens_again() {
    let _alone = ALONE.lock();
    // Every thread but the first has a heap whose address space is reserved as a whole.
    let limited = stillpoint_io::spawn("limited", run_into_the_limit).expect("a thread");
    limited.join().unwrap_or_else(|panic| panic!("{panic}"));
}

fn run_into_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::new(dir.path());
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.max_memory_bytes = 64 << 20;
    config.log_segment_bytes = 1 << 20;
    config.logs = 1;
    config.recovery_threads = 1;
    config.environment.background = false;
    let engine = Engine::open(config.clone()).expect("an empty directory");
    engine.table("first").expect("address space");
    let limit = getrlimit(Resource::As);
    // The largest limit that this address space exceeds soon.
    let bytes = address_space_bytes() + (64 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: limit.maximum })
        .expect("a lower limit");
    let mut made = 1;
    let refused = loop {
        let names: Vec<String> = (0..500).map(|at| format!("table {}", made + at)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match engine.tables_named(&names) {
            Ok(_) => made += names.len(),
            Err(refused) => break refused,
        }
        assert!(made < 60_000, "the limit was never met");
    };
    // All threads run at the same time, so that each has a stack of its own.
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let start = start.clone();
            stillpoint_io::spawn("late", move || start.wait()).expect("space for a thread")
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    setrlimit(Resource::As, limit).expect("the limit as it was");
    assert!(matches!(refused, Error::TableSpace { open, .. } if open == made), "{refused}");
    assert!(made > 1_000, "{made} tables in 64 MiB");
    engine.health().expect("a refusal is no failure");
    drop(engine);
    config.environment.background = true;
    let engine = Engine::open(config).expect("the next opening");
    assert_eq!(engine.tables().len(), made);
}

/// Mapped address space: the first number of `statm`, in pages (proc(5)).
#[expect(clippy::disallowed_methods, reason = "the system's file, not the store's")]
fn address_space_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = statm.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * rustix::param::page_size() as u64
}

const POOL_BYTES: usize = 8 << 20;
/// Records that have three times the bytes of the pool.
const RECORDS: u32 = 3 * (POOL_BYTES / VALUE_BYTES) as u32;
const VALUE_BYTES: usize = 1000;
/// Bytes that a transaction may take beside the pool. Some are what the allocator keeps of buffers of the log.
const TAKEN_BYTES: u64 = 32 << 20;

/// Memory of the process without the buffers of the log.
fn taken_bytes(engine: &Engine) -> u64 {
    resident_bytes().saturating_sub(engine.stats().journal.buffer_bytes)
}

/// Puts a value of so many bytes under each key. Returns the most memory that was taken meanwhile.
fn change_all(
    engine: &Engine,
    session: &mut Session,
    table: TableId,
    (value, bytes): (u8, usize),
    commits: bool,
) -> u64 {
    let mut most = 0;
    let ended = session.transact(|tx| {
        for number in 0..RECORDS {
            // The keys do not ascend.
            let key = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
            tx.put(table, &key, &vec![value; bytes])?;
            if number % 1000 == 0 {
                most = most.max(taken_bytes(engine));
            }
        }
        if commits { Ok(()) } else { Err(TxError::abandon("as the test wants it")) }
    });
    assert_eq!(ended.is_ok(), commits, "{ended:?}");
    most.max(taken_bytes(engine))
}

/// A transaction changes three times what the pool holds, with a limit of the log of twice what it logs. It
/// takes little memory, whether it commits or rolls back.
#[test]
fn a_transaction_of_three_pools_takes_little_memory() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::new(dir.path());
    config.checkpoint_every = None;
    config.max_memory_bytes = 64 << 20;
    config.log_segment_bytes = 4 << 20;
    config.logs = 1;
    config.page_bytes = Some(4096);
    config.pool_bytes = Some(POOL_BYTES);
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table_with("large", Kind::Paged).expect("a table");
    let mut session = engine.session().expect("a session");
    let logged = || engine.stats().journal.record_bytes;
    // Fills the pool, and all buffers.
    change_all(&engine, &mut session, table, (1, VALUE_BYTES), true);
    let (before, logged_before) = (taken_bytes(&engine), logged());
    let most = change_all(&engine, &mut session, table, (2, VALUE_BYTES - 10), true);
    let of_one = logged() - logged_before;
    assert!(of_one > 2 * u64::from(RECORDS) * 900, "{of_one} bytes: no patches");
    assert!(most <= before + TAKEN_BYTES, "{before} bytes became {most}: a commit");
    engine.checkpoint().expect("room");
    let limit = |policy: &mut stillpoint::CheckpointPolicy| policy.log_limit_bytes = 2 * of_one;
    engine.change_checkpoint_policy(limit).expect("a limit");
    for (value, commits) in [(3, true), (4, false)] {
        let most = change_all(&engine, &mut session, table, (value, VALUE_BYTES - 9), commits);
        assert!(most <= before + TAKEN_BYTES, "{before} bytes became {most}: value {value}");
        let mut out = Vec::new();
        session.read(table, &[0; 4], &mut out).expect("reads").expect("a record");
        assert_eq!(out, vec![if commits { value } else { 3 }; VALUE_BYTES - 9]);
        engine.checkpoint().expect("room");
    }
    assert_eq!(engine.len(table), u64::from(RECORDS));
    let names = std::fs::read_dir(dir.path().join("undo"));
    assert_eq!(names.expect("it was used").count(), 0, "files of undos");
}
