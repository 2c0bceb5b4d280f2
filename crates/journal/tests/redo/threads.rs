//! Tests with many threads on a real disk: group commit, the background threads, and waits for
//! room.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::Stamp;
use stillpoint_format::manifest::IncarnationEntry;
use stillpoint_io::{Clock, Disk, RealClock, RealDisk, in_parallel};
use stillpoint_journal::{
    Config, Durability, Environment, Journal, ReplayOptions, ReplayStart, ScanInput, registry, scan,
};

use crate::support::{STORE, count_logs, entry, put};

struct Real {
    disk: Arc<dyn Disk>,
    env: Environment,
    _dir: tempfile::TempDir,
}

fn real() -> Real {
    let dir = tempfile::tempdir().expect("a directory");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()).expect("a disk"));
    let env = Environment { disk: Arc::clone(&disk), clock: Arc::new(RealClock) };
    Real { disk, env, _dir: dir }
}

fn config(logs: u8, durability: Durability) -> Config {
    Config {
        durability,
        segment_bytes: 1 << 20,
        batch_bytes: 16 << 10,
        buffer_bytes: 64 << 10,
        ..Config::new(STORE, 1, 0, logs)
    }
}

fn open(real: &Real, config: &Config) -> Arc<dyn Journal> {
    let redo = registry::REGISTRY.find("redo").expect("listed");
    (redo.open)(&real.env, config).expect("opens")
}

fn replayed(real: &Real) -> u64 {
    let start = ReplayStart::default();
    let input = ScanInput {
        store: STORE,
        incarnations: &[IncarnationEntry { logs: count_logs(&*real.disk), ..entry(1, 0, None) }],
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start: &start,
        threads: 2,
        progress: &|_, _| (),
    };
    let logs = scan(&real.disk, &input).expect("sound");
    let options = ReplayOptions::new(4, 256 << 10, 2);
    let mut replay = logs.replay(options, &|_, key| usize::from(key[0]) % 4);
    let mut records = 0;
    while let Some(round) = replay.next_round().expect("sound") {
        records += round.records();
    }
    records
}

#[test]
fn concurrent_strict_commits_share_flushes() {
    let real = real();
    let journal = open(&real, &config(2, Durability::Strict));
    let commits = 60;
    let worker = |id: u8| {
        let journal = &journal;
        move || {
            let mut touched = Stamp::NONE;
            for n in 0..commits {
                let log = (id + n) % 2;
                touched = put(&**journal, log, 1, &[touched], &[id], &[n; 100]).expect("appends");
                journal.make_closed(&[touched]).expect("closes");
                assert!(journal.is_closed(touched));
            }
        }
    };
    in_parallel("client", (0..8).map(worker).collect()).expect("no panic");
    let stats = journal.stats();
    assert_eq!(stats.records, 8 * u64::from(commits));
    assert!(stats.flushes < stats.records, "flushes are shared: {stats:?}");
    assert_eq!(stats.open_dependencies, 0);
    drop(journal);
    assert_eq!(replayed(&real), 8 * u64::from(commits));
}

#[test]
fn relaxed_commits_become_durable_by_themselves() {
    let real = real();
    let config = Config { interval: Duration::from_millis(40), ..config(3, Durability::Relaxed) };
    let journal = open(&real, &config);
    let a = put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
    let b = put(&*journal, 1, 1, &[a], b"b", b"").expect("appends");
    let begin = RealClock.monotonic_ns();
    while !(journal.is_closed(a) && journal.is_closed(b)) {
        assert!(RealClock.monotonic_ns() - begin < 10_000_000_000, "never flushed");
        RealClock.sleep(Duration::from_millis(1));
    }
    journal.close().expect("closes");
}

#[test]
fn appends_wait_for_the_disk_and_memory_stays_bounded() {
    let real = real();
    let config = config(2, Durability::Relaxed);
    let journal = open(&real, &config);
    let worker = |log: u8| {
        let (journal, config) = (&journal, &config);
        move || {
            for n in 0..2000u32 {
                let key = n.to_le_bytes();
                put(&**journal, log, 1, &[], &key, &[n as u8; 4000]).expect("appends");
                if n % 100 == 0 {
                    let bound = 4 * (config.buffer_bytes + 2 * config.batch_bytes) as u64;
                    let stats = journal.stats();
                    assert!(stats.buffer_bytes < bound, "{stats:?}");
                }
            }
        }
    };
    in_parallel("writer", (0..2).map(worker).collect()).expect("no panic");
    let last = journal.close().expect("closes");
    assert_eq!(last.iter().map(|end| end.gsn).collect::<Vec<_>>(), [2000, 2000]);
    assert!(journal.stats().waits > 0, "{:?}", journal.stats());
    drop(journal);
    assert_eq!(replayed(&real), 4000);
}

#[test]
fn dropping_a_journal_ends_its_threads() {
    let real = real();
    let journal = open(&real, &config(1, Durability::Relaxed));
    put(&*journal, 0, 1, &[], b"k", b"v").expect("appends");
    drop(journal);
    assert_eq!(replayed(&real), 0, "a drop is not a clean end");
}
