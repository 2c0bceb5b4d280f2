//! Random schedules of operations against the begin of a checkpoint and the copy of its pages. Each
//! checkpoint holds exactly the commits of its level and of those below. No writer waits for more than
//! the copy of one tuple.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p stillpoint-siren --release --test shuttle_pages`; with
//! `--features planted-bugs` the model must catch the bugs that need threads, too.
#![cfg(shuttle)]

use std::time::Duration;

use shuttle::sync::Arc;
use shuttle::thread;
use stillpoint_io::{ManualClock, SeededRng, SimDisk};
use stillpoint_siren::{Config, Logging, Removes, Store, TableId};

const SCHEDULES: usize = 3_000;
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];
const TABLE: TableId = TableId(1);

/// What one schedule has.
#[derive(Clone, Copy, Debug)]
struct Shape {
    removes: Removes,
    writers: usize,
    /// Transactions of each writer.
    transactions: usize,
    /// Checkpoints beside the writers.
    checkpoints: usize,
}

fn open(disk: &SimDisk, removes: Removes) -> Store {
    let config = Config {
        removes,
        logging: Logging::None,
        page_bytes: 4096,
        page_buffers: 1,
        sessions: 3,
        recovery_threads: 1,
        lock_timeout: Duration::from_millis(2),
        clock: Arc::new(ManualClock::self_advancing(1)),
        rng: Arc::new(SeededRng::new(1)),
        ..Config::default()
    };
    Store::open(Arc::new(disk.clone()), config).expect("a store")
}

/// Adds one to two counters in each transaction. Returns the level and the keys of each commit.
fn count(store: &Store, first: usize, most: usize) -> Vec<(u64, [usize; 2])> {
    let session = store.session().expect("a session");
    let mut done = Vec::new();
    let mut runs = 0;
    while done.len() < most && runs < 10 * most {
        runs += 1;
        let keys = [(first + done.len()) % KEYS.len(), (first + done.len() + 1) % KEYS.len()];
        let mut transaction = session.begin();
        let mut run = || {
            for key in keys {
                let value = transaction.get(TABLE, KEYS[key])?;
                let count = value.map_or(0, |value| value[0]) + 1;
                transaction.put(TABLE, KEYS[key], &[count])?;
            }
            Ok::<(), stillpoint_siren::SirenError>(())
        };
        match run() {
            Ok(()) => done.push((transaction.commit().expect("no log").level, keys)),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    done
}

fn side_by_side(shape: Shape) {
    let Shape { removes, writers, transactions, checkpoints } = shape;
    let disk = SimDisk::new(1);
    let store = Arc::new(open(&disk, removes));
    assert_eq!(store.table("counters").expect("no log"), TABLE);
    let mut commits = count(&store, 0, 2);
    let writers: Vec<_> = (0..writers)
        .map(|first| {
            let store = store.clone();
            thread::spawn(move || count(&store, first, transactions))
        })
        .collect();
    let mut images = Vec::new();
    for _ in 0..checkpoints {
        let done = store.checkpoint().expect("a disk");
        images.push((done.level, disk.crash_image(1)));
    }
    for writer in writers {
        commits.extend(writer.join().expect("no panic"));
    }
    store.check().expect("sound pages");
    let waited = store.waited_turns_max();
    assert!(waited <= 1, "a writer has waited for {waited} tuples");
    let last = store.checkpoint().expect("a disk");
    images.push((last.level, disk.crash_image(1)));
    for (level, image) in images {
        let found = open(&image, removes);
        found.check().expect("sound pages");
        let session = found.session().expect("a session");
        let mut transaction = session.begin();
        for (number, key) in KEYS.iter().enumerate() {
            let held = commits.iter().filter(|(of, keys)| *of <= level && keys.contains(&number));
            let value = transaction.get(TABLE, key).expect("nobody holds it");
            let value = value.map_or(0, |value| usize::from(value[0]));
            assert_eq!(value, held.count(), "key {number} at level {level}");
        }
    }
}

/// Runs random schedules of many steps. Then schedules of few in which one thread stands still for long. A writer
/// that stands between its level and its operation is met by one schedule of forty then, and by hardly any random
/// one.
fn explore(removes: Removes) {
    let shape = Shape { removes, writers: 2, transactions: 2, checkpoints: 2 };
    shuttle::check_random(move || side_by_side(shape), SCHEDULES);
    let shape = Shape { removes, writers: 1, transactions: 1, checkpoints: 1 };
    shuttle::check_pct(move || side_by_side(shape), SCHEDULES, 2);
}

// A planted bug is in the whole process.
#[cfg(not(feature = "planted-bugs"))]
#[test]
fn a_checkpoint_holds_exactly_its_levels() {
    [Removes::Pend, Removes::ToPages].into_iter().for_each(explore);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_of_threads_are_caught() {
    use stillpoint_siren::planted::{Bug, plant};
    for bug in [Bug::TakenBeforeSettled, Bug::TurnPassesWriters, Bug::FrozenPageChanged] {
        plant(Some(bug));
        let is_caught = std::panic::catch_unwind(|| explore(Removes::Pend)).is_err();
        plant(None);
        assert!(is_caught, "{bug:?} was not caught");
    }
}
