//! Shows memory while keys come and go: reads of missing keys, and a queue, round after round.
//!
//! ```text
//! cargo run --release -p stillpoint-store --example churn
//! ```
//! Each line shows the bytes that the store holds, and the cells and records of its table. The
//! numbers of cells and records stay constant. The bytes grow a little, ever more slowly, since the
//! index keeps each overflow bucket that it has ever needed. Arguments: rounds (1,000), keys of a
//! round (10,000), rounds that a record of the queue stays (10).
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::sync::Arc;
use stillpoint_store::{
    CellRules, KeySet, Mode, NoLog, Procedure, Slot, Stamp, Store, StoreConfig, TableId, Tx,
    TxError, Worker,
};

const TABLE: TableId = TableId(0);
const VALUE: [u8; 100] = [7; 100];

/// Action on each key of a range, in one transaction.
#[derive(Clone, Copy)]
enum Step {
    ReadMissing,
    Put,
    Delete,
}

struct Batch {
    keys: std::ops::Range<u64>,
    step: Step,
}

impl Procedure for Batch {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in self.keys.clone() {
            let (mode, len) = match self.step {
                Step::ReadMissing => (Mode::Read, 0),
                Step::Put | Step::Delete => (Mode::Write, VALUE.len()),
            };
            keys.push(TABLE, &key.to_be_bytes(), mode, len);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for slot in (0..(self.keys.end - self.keys.start) as u32).map(Slot) {
            match self.step {
                Step::ReadMissing => assert!(tx.value(slot).is_none(), "nobody made the key"),
                Step::Put => tx.put_slot(slot, &VALUE)?,
                Step::Delete => assert!(tx.delete_slot(slot)?, "the key was put"),
            }
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("memory for a round");
    }
}

fn main() {
    let numbers: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse().expect("arguments are numbers")).collect();
    let at = |index: usize, default: u64| numbers.get(index).copied().unwrap_or(default).max(1);
    let (rounds, keys, stay) = (at(0, 1_000), at(1, 10_000), at(2, 10));
    churn("missing keys", rounds, |worker, round| {
        run(worker, round * keys..(round + 1) * keys, Step::ReadMissing);
    });
    churn("a queue", rounds, |worker, round| {
        run(worker, round * keys..(round + 1) * keys, Step::Put);
        if let Some(oldest) = round.checked_sub(stay) {
            run(worker, oldest * keys..(oldest + 1) * keys, Step::Delete);
        }
    });
}

fn run(worker: &mut Worker, keys: std::ops::Range<u64>, step: Step) {
    worker.execute(&mut [Batch { keys, step }][..]);
}

/// Runs the rounds on a store of their own, and prints a line after each tenth of them.
fn churn(name: &str, rounds: u64, mut round: impl FnMut(&mut Worker, u64)) {
    let store = Arc::new(Store::new(&StoreConfig::default(), CellRules::IN_PLACE).expect("space"));
    store.add_table(TABLE, 1).expect("space");
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    for number in 0..rounds {
        round(&mut worker, number);
        if (number + 1) % (rounds / 10).max(1) == 0 {
            store.maintain();
            println!(
                "{name}: round {:>6}: {:>10} bytes, {:>8} cells, {:>8} records",
                number + 1,
                store.held_bytes(),
                store.cell_count(TABLE),
                store.record_count(TABLE),
            );
        }
    }
}
