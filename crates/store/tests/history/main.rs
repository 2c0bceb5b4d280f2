//! Histories of concurrent transactions, checked: strict serializability of declared, undeclared,
//! batched and lock-free transactions, and checkpoints that hold exactly the commits before them.

mod checker;
#[path = "../common/mod.rs"]
mod common;

use checker::{Committed, History, Observed, Read, RecordingLog};
use common::{Gathered, Key, Random, assert_same, checkpoint, env_or, for_seeds, store_with};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use stillpoint_store::{
    KeySet, Mode, Procedure, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const THREADS: usize = 3;

/// What a transaction does to one key after it has read it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Read,
    /// Adds the transaction's number to the list that the value is.
    Append,
    /// A new value of about this length.
    Put(usize),
    Delete,
}

/// A transaction under way, declared or not.
#[derive(Clone, Debug)]
struct Attempt {
    id: u64,
    steps: Vec<(Key, Step)>,
    yields: bool,
    abandons: bool,
    slots: Vec<Slot>,
    reads: Vec<Read>,
    ended: Option<Option<Stamp>>,
}

impl Attempt {
    fn random(random: &mut Random, id: u64, keys: &[Key]) -> Self {
        let most = if random.one_in(20) { keys.len() } else { 4 };
        let mut steps: Vec<(Key, Step)> = Vec::new();
        for _ in 0..1 + random.below(most) {
            let key = &keys[random.below(keys.len())];
            if steps.iter().any(|(known, _)| known == key) {
                continue;
            }
            let step = match random.below(20) {
                0..=8 => Step::Read,
                9..=14 => Step::Append,
                15..=16 => Step::Delete,
                17 if random.one_in(4) => Step::Put(3_000 + random.below(70_000)),
                _ => Step::Put(random.below(200)),
            };
            steps.push((key.clone(), step));
        }
        Self {
            id,
            steps,
            yields: random.one_in(3),
            abandons: random.one_in(20),
            slots: Vec::new(),
            reads: Vec::new(),
            ended: None,
        }
    }

    fn mode(step: Step) -> Mode {
        if step == Step::Read {
            Mode::Read
        } else {
            Mode::Write
        }
    }

    fn step(&mut self, tx: &mut Tx<'_>, slot: Slot, at: usize) -> Result<(), TxError> {
        let (key, step) = self.steps[at].clone();
        let value = tx.value(slot).map(|value| (value.tag(), value.to_vec()));
        let len = value.as_ref().map(|value| value.1.len());
        let locked = self.steps.len() > 1 || step != Step::Read;
        self.reads.push(Read {
            key,
            stamp: tx.stamp(slot),
            value,
            locked,
        });
        let number = self.id.to_le_bytes();
        match (step, len) {
            (Step::Append, Some(len)) if len < 4_000 => tx.patch_slot(slot, len, &number)?,
            (Step::Append, _) => tx.put_slot(slot, 1, &number)?,
            (Step::Put(len), _) => {
                let filled = number.iter().copied().cycle().take(len);
                tx.put_slot(slot, 2, &filled.collect::<Vec<u8>>())?;
            }
            (Step::Delete, _) => assert_eq!(tx.delete_slot(slot)?, len.is_some()),
            (Step::Read, _) => {}
        }
        if self.yields {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn end(&self) -> Result<(), TxError> {
        match self.abandons {
            true => Err(TxError::abandon("by chance")),
            false => Ok(()),
        }
    }
}

impl Procedure for Attempt {
    fn declare(&mut self, keys: &mut KeySet) {
        for (key, step) in &self.steps {
            let slot = keys.push(TableId(key.0), &key.1, Self::mode(*step), 8);
            self.slots.push(slot);
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for at in 0..self.steps.len() {
            self.step(tx, self.slots[at], at)?;
        }
        self.end()
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        match result {
            Ok(stamp) => self.ended = Some(stamp),
            Err(TxError::Abandoned(_)) => assert!(self.abandons),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What all threads of a run share.
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
        let store = store_with(512 << 20, THREADS + 2, seed, gathered.clone());
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
        for attempt in attempts {
            // One that gave up has read a consistent state all the same.
            observed.push(Observed {
                began,
                ended,
                stamp: attempt.ended.flatten(),
                reads: attempt.reads,
            });
        }
    }

    fn work(&self, number: usize, seed: u64, transactions: u64) {
        let mut random = Random::new(seed ^ (number as u64) << 40);
        let mut worker = self.worker(number as u8);
        for turn in 0..transactions {
            let id = (number as u64) << 32 | turn;
            let mut attempt = Attempt::random(&mut random, id, &self.keys);
            let began = self.clock.load(SeqCst);
            match random.below(10) {
                0..=2 => {
                    self.undeclared(&mut worker, &mut attempt);
                    self.observe(began, [attempt]);
                }
                3..=5 => {
                    worker.execute(std::slice::from_mut(&mut attempt));
                    self.observe(began, [attempt]);
                }
                6 => {
                    let more = (1..10).map(|at| {
                        let id = id | at << 48;
                        Attempt::random(&mut random, id, &self.keys)
                    });
                    let mut batch: Vec<Attempt> = more.chain([attempt]).collect();
                    worker.execute(&mut batch[..]);
                    self.observe(began, batch);
                }
                7..=8 => self.read_singly(&mut worker, &attempt.steps),
                _ => worker.idle(),
            }
        }
    }

    fn undeclared(&self, worker: &mut Worker, attempt: &mut Attempt) {
        let ended = worker.transact_stamped(|tx| {
            attempt.reads.clear();
            for at in 0..attempt.steps.len() {
                let ((table, key), step) = attempt.steps[at].clone();
                // Half of the writers read first and upgrade the lock.
                let mut mode = Attempt::mode(step);
                if (attempt.id as usize + at).is_multiple_of(2) {
                    tx.key(TableId(table), &key, Mode::Read)?;
                    mode = Attempt::mode(step);
                }
                let slot = tx.key(TableId(table), &key, mode)?;
                attempt.step(tx, slot, at)?;
                let last = attempt.reads.last_mut().expect("just read");
                last.locked = true;
            }
            attempt.end()
        });
        attempt.ended(ended.map(|((), stamp)| stamp));
    }

    /// Reads without locks, one after the other: each is a transaction of its own, and none may see
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
                value: Some((seen.tag, value)),
                locked: false,
            };
            self.observed.lock().push(Observed {
                began,
                ended,
                stamp: None,
                reads: vec![read],
            });
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
