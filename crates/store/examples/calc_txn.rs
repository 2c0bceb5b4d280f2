//! A fixed number of transactions on one thread, always the same, to count instructions:
//!
//! ```text
//! cargo build --release -p stillpoint-store --example calc_txn
//! valgrind --tool=callgrind target/release/examples/calc_txn calc 100000 200000
//! valgrind --tool=callgrind target/release/examples/calc_txn calc 100000 100000
//! ```
//! The cost of a transaction is the difference of two counts, divided by the difference of
//! transactions. Arguments: kind, records, transactions, transactions per batch. The kinds:
//! - `calc`: ten records are read and patched, as in the CALC microbenchmark;
//! - `partial`: the same, and commits mark what they write, as for checkpoints of changes;
//! - `none`: the same, without anything for checkpoints;
//! - `cou`, `zigzag`, `ping-pong`, `hourglass`, `stored`: the same, with the cells of these schemes at rest;
//! - `get`: one value of 100 bytes is read without a lock;
//! - `set`: one value of 100 bytes is replaced.
//!
//! In `calc`, `partial`, `get` and `set` every record carries a mark, as under a scheme that saves
//! before-images.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../benches/calc/mod.rs"]
mod calc;

use std::sync::Arc;
use stillpoint_store::{
    CellRules, DirtyRule, KeySet, Mode, Procedure, Reuse, Slot, Stamp, StatusChanges, Store, Tx,
    TxError, WriteRule,
};

/// Reads or replaces one value.
#[derive(Clone, Default)]
struct OneKey {
    key: u64,
    writes: bool,
    /// A buffer for the value before the transaction.
    value: Vec<u8>,
}

impl Procedure for OneKey {
    fn declare(&mut self, keys: &mut KeySet) {
        let mode = if self.writes { Mode::Write } else { Mode::Read };
        keys.push(calc::TABLE, &self.key.to_le_bytes(), mode, 100);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        if self.writes {
            return tx.put_slot(Slot(0), &[self.key as u8; 100]);
        }
        self.value.clear();
        tx.value(Slot(0)).expect("loaded").copy_to(&mut self.value);
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// Runs `transactions` of one key each.
fn run_one_key(store: &Arc<Store>, writes: bool, records: u64, transactions: u64, batch: usize) {
    let mut numbers = calc::Numbers(1);
    let mut worker = calc::worker(store);
    let mut calls = vec![OneKey { writes, ..OneKey::default() }; batch];
    for _ in 0..transactions.div_ceil(batch as u64) {
        for call in &mut calls {
            call.key = numbers.below(records);
        }
        worker.execute(&mut calls[..]);
    }
}

/// Cells of several copies, or with a stable version.
fn copies(copies: usize, write: WriteRule) -> CellRules {
    let (status_changes, reuse) = (StatusChanges::InCapture, Reuse::OutsideOfCaptures);
    CellRules { copies, write, status_changes, reuse, ..CellRules::IN_PLACE }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "calc".to_owned());
    let numbers: Vec<u64> =
        arguments.map(|text| text.parse().expect("arguments are numbers")).collect();
    let at = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (records, transactions) = (at(0, 100_000), at(1, 100_000));
    let batch = at(2, 6).max(1);
    let rules = match kind.as_str() {
        "none" => CellRules::IN_PLACE,
        "partial" => CellRules {
            dirty: DirtyRule::ByEpoch,
            status_changes: StatusChanges::InPrepareAndCapture,
            reuse: Reuse::WhenClean,
            ..CellRules::BEFORE_IMAGES
        },
        "cou" => copies(2, WriteRule::KeepShadow),
        "zigzag" => copies(2, WriteRule::SwitchCopies),
        "ping-pong" => copies(4, WriteRule::WriteBoth),
        "hourglass" => copies(2, WriteRule::AlternateCopies),
        "stored" => copies(1, WriteRule::StoreStable),
        _ => CellRules::BEFORE_IMAGES,
    };
    let store = calc::filled(records, rules);
    match kind.as_str() {
        "calc" | "partial" | "none" | "cou" | "zigzag" | "ping-pong" | "hourglass" | "stored" => {
            calc::run(&store, 1, records, transactions, batch as usize);
            let expected = transactions.div_ceil(batch) * batch * calc::KEYS_PER_TRANSACTION;
            assert_eq!(calc::sum(&store), expected);
        }
        "get" => run_one_key(&store, false, records, transactions, batch as usize),
        "set" => run_one_key(&store, true, records, transactions, batch as usize),
        other => panic!("no kind {other}: see the head of this file"),
    }
    println!("{transactions} transactions ({kind}) on {records} records in batches of {batch}");
}
