//! Tests of histories of concurrent transactions. Declared, undeclared, batched and lock-free
//! transactions must be strictly serializable. Checkpoints must hold exactly the commits before
//! them.

mod attempt;
mod checker;
#[path = "../common/mod.rs"]
mod common;

use attempt::{Attempt, Step};
use checker::{Committed, History, Observed, Read, RecordingLog};
use common::{Gathered, Key, Random, assert_same, checkpoint, env_or, for_seeds, store_with};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use stillpoint_store::{CellRules, Store, TableId, Worker};

const THREADS: usize = 3;

/// State shared by all threads of a run.
struct Run {
    store: Arc<Store>,
    gathered: Arc<Gathered>,
    keys: Vec<Key>,
    clock: AtomicU64,
    closed: Arc<AtomicU64>,
    commits: Arc<Mutex<Vec<Committed>>>,
    observed: Mutex<Vec<Observed>>,
    stop: AtomicBool,
}

impl Run {
    fn new(seed: u64) -> Arc<Self> {
        let mut random = Random::new(seed);
        let gathered = Arc::new(Gathered::default());
        let store = store_with(512 << 20, THREADS + 2, seed, CellRules::BEFORE_IMAGES);
        let count = [2, 5, 12, 60][random.below(4)];
        let keys = (0..count)
            .map(|at| {
                let len = [8, 8, 8, 3, 1500][random.below(5)];
                let mut key = random.bytes(len);
                key[0] = at;
                (random.below(2) as u16, key)
            })
            .collect();
        let all_closed = if random.one_in(4) { 0 } else { u64::MAX };
        Arc::new(Self {
            store,
            gathered,
            keys,
            clock: AtomicU64::new(0),
            closed: Arc::new(AtomicU64::new(all_closed)),
            commits: Arc::default(),
            observed: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    fn worker(&self, number: u8) -> Worker {
        let log = RecordingLog {
            number,
            gsn: 0,
            commits: self.commits.clone(),
            closed: self.closed.clone(),
        };
        Worker::new(self.store.clone(), Box::new(log)).expect("a free slot")
    }

    fn observe(&self, began: u64, attempts: impl IntoIterator<Item = Attempt>) {
        let ended = self.clock.fetch_add(1, SeqCst) + 1;
        let mut observed = self.observed.lock();
        observed.extend(attempts.into_iter().map(|attempt| attempt.observed(began, ended)));
    }

    fn work(&self, number: usize, seed: u64, transactions: u64) {
        let mut random = Random::new(seed ^ (number as u64) << 40);
        let mut worker = self.worker(number as u8);
        for turn in 0..transactions {
            let id = (number as u64) << 32 | turn;
            let mut attempt = Attempt::random(&mut random, id, &self.keys, 70_000);
            let began = self.clock.load(SeqCst);
            match random.below(10) {
                0..=2 => {
                    attempt.run_undeclared(&mut worker);
                    self.observe(began, [attempt]);
                }
                3..=5 => {
                    worker.execute(std::slice::from_mut(&mut attempt));
                    self.observe(began, [attempt]);
                }
                6 => {
                    let more = (1..10).map(|at| {
                        let id = id | at << 48;
                        Attempt::random(&mut random, id, &self.keys, 70_000)
                    });
                    let mut batch: Vec<Attempt> = more.chain([attempt]).collect();
                    worker.execute(&mut batch[..]);
                    self.observe(began, batch);
                }
                7..=8 => self.read_singly(&mut worker, &attempt.steps),
                _ => _ = worker.idle(),
            }
        }
    }

    /// Reads without locks, one after the other. Each is a transaction of its own, and none may see
    /// less than the one before it.
    fn read_singly(&self, worker: &mut Worker, steps: &[(Key, Step)]) {
        for (key, _) in steps {
            let began = self.clock.load(SeqCst);
            let mut value = Vec::new();
            let seen = worker.read(TableId(key.0), &key.1, &mut value);
            let ended = self.clock.fetch_add(1, SeqCst) + 1;
            let Some(seen) = seen.expect("the table exists") else {
                continue;
            };
            let read = Read {
                key: key.clone(),
                stamp: seen.stamp,
                value: Some((seen.tag.into(), value)),
                locked: false,
            };
            self.observed.lock().push(Observed { began, ended, stamp: None, reads: vec![read] });
        }
    }
}

#[test]
fn histories_are_strictly_serializable_and_checkpoints_are_exact() {
    let transactions = env_or("STORE_TEST_TRANSACTIONS", 1_500);
    for_seeds(env_or("STORE_TEST_SEEDS", 8), |seed| {
        let run = Run::new(seed);
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let run = run.clone();
                let work = move || run.work(number, seed, transactions);
                stillpoint_io::spawn(&format!("history-{number}"), work).expect("a thread")
            })
            .collect();
        let others = run.clone();
        let driver = stillpoint_io::spawn("checkpoints", move || {
            let mut captured = Vec::new();
            while !others.stop.load(SeqCst) && captured.len() < 200 {
                let contents = checkpoint(&others.store, &others.gathered, |_| {
                    for _ in 0..20 {
                        std::thread::yield_now();
                    }
                });
                captured.push((others.store.driver().now().epoch(), contents));
                others.store.maintain();
            }
            captured
        })
        .expect("a thread");
        let failed: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        run.stop.store(true, SeqCst);
        let captured = driver.join().expect("no panic");
        for thread in failed {
            thread.expect("no panic");
        }
        let commits = std::mem::take(&mut *run.commits.lock());
        let observed = std::mem::take(&mut *run.observed.lock());
        let history = History::new(commits, observed);
        history.check_strictly_serializable();
        assert!(!captured.is_empty());
        for (epoch, contents) in &captured {
            let expected = history.before_epoch(*epoch);
            assert_same(contents, &expected, &format!("checkpoint of epoch {epoch}"));
        }
        let mut worker = run.worker(200);
        let end = history.before_epoch(u64::MAX);
        assert_same(&common::contents_of(&mut worker), &end, "the end");
        let (commits, seen) = history.len();
        assert!(commits > 200 && seen > commits, "{commits} commits, {seen} seen");
    });
}
