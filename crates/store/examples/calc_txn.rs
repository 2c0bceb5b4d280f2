//! A fixed number of CALC microbenchmark transactions on one thread, always the same, for counting
//! instructions:
//!
//! ```text
//! cargo build --release -p stillpoint-store --example calc_txn
//! valgrind --tool=callgrind target/release/examples/calc_txn 100000 200000
//! valgrind --tool=callgrind target/release/examples/calc_txn 100000 100000
//! ```
//! The difference of two counts, divided by the difference of transactions, is what one costs.
//! Arguments: records, transactions, transactions per batch.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../benches/calc/mod.rs"]
mod calc;

fn main() {
    let numbers: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse().expect("arguments are numbers")).collect();
    let at = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (records, transactions) = (at(0, 100_000), at(1, 100_000));
    let batch = at(2, 6).max(1);
    let store = calc::filled(records);
    calc::run(&store, 1, records, transactions, batch as usize);
    let expected = transactions.div_ceil(batch) * batch * calc::KEYS_PER_TRANSACTION;
    assert_eq!(calc::sum(&store), expected);
    println!("{transactions} transactions on {records} records in batches of {batch}");
}
