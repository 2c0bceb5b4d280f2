//! Paged tables through sessions, beside hash tables: insertions, single reads, batches of declared reads,
//! and scans.
//!
//! `cargo bench -p stillpoint --bench paged -- [RECORDS] [BATCH]`: one thread, values of 100 bytes, keys of
//! 8 bytes in random order, pages of 16 KiB, relaxed durability. The pool holds everything. Prints
//! operations per second.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::error::Error;

use stillpoint::{
    Batch, Config, Engine, KeySet, Kind, Mode, Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng};

const PAGE_BYTES: usize = 16 << 10;
/// Insertions of one transaction.
const TOGETHER: u64 = 8;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn measure(what: &str, count: u64, run: impl FnOnce()) {
    let start = RealClock.monotonic_ns();
    run();
    let seconds = (RealClock.monotonic_ns() - start) as f64 / 1e9;
    println!("{what}: {:.3} M/s ({count} in {seconds:.2} s)", count as f64 / seconds / 1e6);
}

/// Transactions that read one key each, or that write one key each.
struct Ones {
    table: TableId,
    keys: Vec<[u8; 8]>,
    writes: bool,
    found: usize,
}

impl Batch for Ones {
    fn len(&self) -> usize {
        self.keys.len()
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        let mode = if self.writes { Mode::Write } else { Mode::Read };
        keys.push(self.table, &self.keys[index], mode, 100);
    }
    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        if self.writes {
            return tx.put_slot(Slot(0), &[8; 100]);
        }
        self.found += usize::from(tx.value(Slot(0)).is_some());
        Ok(())
    }
    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        result.expect("nobody else is there");
    }
}

fn measure_table(
    session: &mut Session,
    (kind, table): (Kind, TableId),
    records: u64,
    batch: usize,
) {
    measure(&format!("{kind:?}: insertions, {TOGETHER} a transaction"), records, || {
        for first in (0..records).step_by(TOGETHER as usize) {
            let inserted = session.transact(|tx| {
                (first..records.min(first + TOGETHER))
                    .try_for_each(|number| tx.put(table, &key(number), &[7; 100]))
            });
            inserted.expect("commits");
        }
    });
    let (rng, mut out) = (SeededRng::new(2), Vec::new());
    measure(&format!("{kind:?}: single reads"), records, || {
        for _ in 0..records {
            out.clear();
            let read = session.read(table, &key(rng.below(records)), &mut out);
            assert!(read.expect("reads").is_some() && out.len() == 100);
        }
    });
    for writes in [false, true] {
        let what = if writes { "updates" } else { "reads" };
        measure(&format!("{kind:?}: {what} declared in batches of {batch}"), records, || {
            let mut ones = Ones { table, keys: Vec::new(), writes, found: 0 };
            for _ in 0..records / batch as u64 {
                ones.keys.clear();
                ones.keys.extend((0..batch).map(|_| key(rng.below(records))));
                session.execute(&mut ones);
            }
            let all = records as usize / batch * batch;
            assert_eq!(ones.found, if writes { 0 } else { all });
        });
    }
    if kind == Kind::Memory {
        return;
    }
    measure(&format!("{kind:?}: records scanned"), records, || {
        let read = session.transact(|tx| {
            let (mut range, mut found) = (tx.range(table, ..)?, 0);
            while range.next_record()?.is_some() {
                found += 1;
            }
            Ok(found)
        });
        assert_eq!(read.expect("reads"), records);
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let records: u64 = arguments.next().unwrap_or(1_000_000);
    let batch = arguments.next().unwrap_or(64) as usize;
    let directory = tempfile::tempdir()?;
    let mut config = Config::new(directory.path());
    let pool = (records as usize * 260 / PAGE_BYTES + 64) * PAGE_BYTES;
    (config.pool_bytes, config.page_bytes) = (Some(pool), Some(PAGE_BYTES));
    config.max_memory_bytes = 2 * pool + (1 << 30);
    let engine = Engine::open(config)?;
    for kind in [Kind::Paged, Kind::Memory] {
        let table = engine.table_with(&format!("{kind:?}"), kind)?;
        measure_table(&mut engine.session()?, (kind, table), records, batch);
    }
    println!("{:?}", engine.stats().pool);
    engine.close()?;
    Ok(())
}
