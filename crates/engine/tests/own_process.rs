//! Test with little address space. The limit holds for a process, so this test has a process of its
//! own.
//!
//! The standard library ends the process if a new thread finds no space for its signal stack. So
//! tables must leave some space, and threads start while the limit holds. The allocator's heap of
//! the thread that makes the tables is reserved before.

use std::sync::{Arc, Barrier};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stillpoint::{Config, Durability, Engine, Error};

/// Threads that start once the tables have used all the space that they may.
const THREADS: usize = 4;

#[test]
fn one_table_too_many_is_refused_and_the_store_opens_again() {
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
