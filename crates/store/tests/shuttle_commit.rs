//! Tests of commit, capture and reclamation under random schedules, with the real store and small
//! memory. Every history must be strictly serializable and every checkpoint exact.
#![cfg(shuttle)]

#[path = "history/attempt.rs"]
mod attempt;
#[path = "history/checker.rs"]
mod checker;
mod common;

use attempt::Attempt;
use checker::{Committed, History, Observed, RecordingLog};
use common::{Gathered, Key, Random, assert_same, checkpoint};
use parking_lot::Mutex;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_store::{CellRules, Store, StoreConfig, TableId, Worker};

const SCHEDULES: usize = 4_000;

/// State shared by the threads of one schedule. Only the store's own accesses are scheduled.
struct World {
    store: Arc<Store>,
    gathered: Arc<Gathered>,
    keys: Vec<Key>,
    clock: AtomicU64,
    commits: Arc<Mutex<Vec<Committed>>>,
    observed: Mutex<Vec<Observed>>,
}

impl World {
    fn new() -> Arc<Self> {
        let gathered = Arc::new(Gathered::default());
        let config = StoreConfig {
            max_memory_bytes: 1 << 20,
            workers: 4,
            hash_seed: 1,
            ..Default::default()
        };
        let store =
            Arc::new(Store::new(&config, CellRules::BEFORE_IMAGES).expect("a model's memory"));
        store.add_table(TableId(0), 1).expect("a model's memory");
        Arc::new(Self {
            store,
            gathered,
            keys: [b"a", b"b", b"c"].map(|key| (0, key.to_vec())).into(),
            clock: AtomicU64::new(0),
            commits: Arc::default(),
            observed: Mutex::default(),
        })
    }

    fn worker(&self, number: u8) -> Worker {
        let log = RecordingLog {
            number,
            gsn: 0,
            commits: self.commits.clone(),
            closed: Arc::new(AtomicU64::new(u64::MAX)),
        };
        Worker::new(self.store.clone(), Box::new(log)).expect("a free slot")
    }

    fn work(&self, number: u8, transactions: u64) {
        let mut worker = self.worker(number);
        let mut random = Random::new(thread_rng().r#gen());
        for turn in 0..transactions {
            let id = u64::from(number) << 32 | turn;
            let mut attempt = Attempt::random(&mut random, id, &self.keys, 60);
            let began = self.clock.load(SeqCst);
            if random.one_in(2) {
                worker.execute(std::slice::from_mut(&mut attempt));
            } else {
                attempt.run_undeclared(&mut worker);
            }
            let ended = self.clock.fetch_add(1, SeqCst) + 1;
            self.observed.lock().push(attempt.observed(began, ended));
            worker.idle();
        }
    }

    fn check(&self, captured: &[(u64, common::Contents)]) {
        let commits = std::mem::take(&mut *self.commits.lock());
        let observed = std::mem::take(&mut *self.observed.lock());
        let history = History::new(commits, observed);
        history.check_strictly_serializable();
        for (epoch, contents) in captured {
            let what = format!("checkpoint of epoch {epoch}");
            assert_same(contents, &history.before_epoch(*epoch), &what);
        }
    }
}

#[test]
fn two_workers_and_a_checkpoint() {
    let work = || {
        let world = World::new();
        let workers = [1u8, 2].map(|number| {
            let world = world.clone();
            thread::spawn(move || world.work(number, 3))
        });
        let contents = checkpoint(&world.store, &world.gathered, |_| {});
        let epoch = world.store.driver().now().epoch();
        for worker in workers {
            worker.join().expect("no panic");
        }
        world.check(&[(epoch, contents)]);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}

#[test]
fn three_workers_on_three_keys() {
    let work = || {
        let world = World::new();
        let workers = [1u8, 2, 3].map(|number| {
            let world = world.clone();
            thread::spawn(move || world.work(number, 2))
        });
        for worker in workers {
            worker.join().expect("no panic");
        }
        world.check(&[]);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
