//! Tests of keys under a declared key. Only a transaction that holds the lock of the declared key
//! locks the keys under it.

mod common;

use common::{Random, contents_of, store_of};
use std::sync::Arc;
use stillpoint_store::{
    Batch, KeySet, Mode, NoLog, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);
const PARENTS: usize = 3;
const CHILDREN: u64 = 40;

fn worker_of(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

fn parent(number: usize) -> Vec<u8> {
    format!("parent {number}").into_bytes()
}

fn child(parent: usize, number: u64) -> Vec<u8> {
    format!("child {number} of {parent}").into_bytes()
}

fn number(tx: &mut Tx<'_>, slot: Slot) -> u64 {
    tx.value(slot).and_then(|value| value.u64_at(0)).unwrap_or(0)
}

/// What one transaction does to a parent.
#[derive(Clone, Debug)]
struct Call {
    parent: usize,
    /// Children to which the transaction adds one or from which it takes one. Empty if the
    /// transaction only reads.
    changed: Vec<(u64, bool)>,
    /// Whether the parent is declared among others.
    among: bool,
    /// Whether a reader asks for the locks of the children.
    locks: bool,
    fails: bool,
}

/// Batches of calls. A parent holds the sum of its children.
struct Calls {
    calls: Vec<Call>,
    runs: Vec<u32>,
    sums: Vec<Option<(u64, u64)>>,
    failed: Vec<bool>,
}

impl Calls {
    fn new(calls: Vec<Call>) -> Self {
        let len = calls.len();
        Self { calls, runs: vec![0; len], sums: vec![None; len], failed: vec![false; len] }
    }
}

impl Batch for Calls {
    fn len(&self) -> usize {
        self.calls.len()
    }

    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        let call = &self.calls[index];
        let mode = if call.changed.is_empty() { Mode::Read } else { Mode::Write };
        keys.push(T, &parent(call.parent), mode, 8);
        if call.among {
            keys.push(T, b"another", Mode::Read, 8);
        }
    }

    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.runs[index] += 1;
        let Call { parent, changed, fails, locks, .. } = self.calls[index].clone();
        if changed.is_empty() {
            let mut sum = 0;
            for i in 0..CHILDREN {
                let key = child(parent, i);
                if locks {
                    let slot = tx.key_under(Slot(0), T, &key, 8)?;
                    sum += number(tx, slot);
                    continue;
                }
                let mut value = Vec::new();
                let is_there = tx.read_under(Slot(0), T, &key, &mut value)?;
                assert_eq!(is_there, value.len() == 8);
                sum += value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            }
            self.sums[index] = Some((number(tx, Slot(0)), sum));
            return Ok(());
        }
        let mut total = number(tx, Slot(0));
        for (i, gains) in changed {
            let key = child(parent, i);
            let slot = tx.key_under(Slot(0), T, &key, 8)?;
            assert_eq!(tx.key_under(Slot(0), T, &key, 8)?, slot, "the same key, the same slot");
            let old = number(tx, slot);
            match (gains, old) {
                (true, _) => {
                    tx.put_slot(slot, &(old + 1).to_le_bytes())?;
                    total += 1;
                }
                (false, 0) => {}
                (false, 1) => {
                    tx.delete_slot(slot)?;
                    total -= 1;
                }
                (false, old) => {
                    tx.put_slot(slot, &(old - 1).to_le_bytes())?;
                    total -= 1;
                }
            }
        }
        tx.put_slot(Slot(0), &total.to_le_bytes())?;
        if fails { Err(TxError::abandon("on purpose")) } else { Ok(()) }
    }

    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self.failed[index] = result.is_err();
    }
}

fn some_calls(random: &mut Random, count: usize) -> Vec<Call> {
    (0..count)
        .map(|_| {
            let changes = if random.one_in(3) { 0 } else { 1 + random.below(60) };
            let changed = (0..changes)
                .map(|_| (random.below(CHILDREN as usize) as u64, random.one_in(2)))
                .collect();
            Call {
                parent: random.below(PARENTS),
                changed,
                among: random.one_in(3),
                locks: random.one_in(3),
                fails: random.one_in(7),
            }
        })
        .collect()
}

#[test]
fn parents_and_children_change_together() {
    let store = store_of(256 << 20, 5, 1);
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let store = store.clone();
            let work = move || {
                let mut worker = worker_of(&store);
                let mut random = Random::new(seed);
                for _ in 0..400 {
                    let count = 1 + random.below(12);
                    let mut calls = Calls::new(some_calls(&mut random, count));
                    worker.execute(&mut calls);
                    for (index, call) in calls.calls.iter().enumerate() {
                        let writes = !call.changed.is_empty();
                        assert_eq!(calls.failed[index], writes && call.fails, "{call:?}");
                        // Once with the lock, after up to four runs without it.
                        let runs = match writes || call.among {
                            true => 1..=1,
                            false if call.locks => 2..=2,
                            false => 1..=5,
                        };
                        assert!(runs.contains(&calls.runs[index]), "{call:?}");
                        if !writes {
                            let (total, sum) = calls.sums[index].expect("it has run");
                            assert_eq!(total, sum, "a sum that nobody has left: {call:?}");
                        }
                    }
                    worker.idle();
                }
            };
            stillpoint_io::spawn(&format!("test-{seed}"), work).expect("a thread")
        })
        .collect();
    for thread in threads {
        thread.join().expect("no call fails");
    }
    let mut worker = worker_of(&store);
    let contents = contents_of(&mut worker);
    let word = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    for number in 0..PARENTS {
        let of = |name: &[u8]| -> u64 {
            contents
                .iter()
                .filter(|((_, key), _)| key.ends_with(name))
                .map(|(_, v)| word(&v.1))
                .sum()
        };
        let total = of(&parent(number));
        let sum = of(format!(" of {number}").as_bytes());
        assert_eq!(total, sum);
        assert!(total > 0);
    }
}

#[test]
fn keys_are_found_under_undeclared_keys_too() {
    let store = store_of(64 << 20, 1, 1);
    let mut worker = worker_of(&store);
    worker
        .transact(|tx| {
            let parent = tx.key(T, b"parent", Mode::Write)?;
            let child = tx.key_under(parent, T, b"child", 8)?;
            tx.put_slot(child, b"value")?;
            tx.put_slot(parent, b"value")
        })
        .expect("memory");
    worker
        .transact(|tx| {
            let parent = tx.key(T, b"parent", Mode::Read)?;
            let child = tx.key_under(parent, T, b"child", 8)?;
            assert_eq!(tx.value(child).expect("there").to_vec(), b"value");
            let error = tx.put_slot(child, b"x").expect_err("the parent is locked for reading");
            assert!(matches!(error, TxError::DeclaredForReading { .. }), "{error}");
            Ok(())
        })
        .expect("nothing is written");
}
