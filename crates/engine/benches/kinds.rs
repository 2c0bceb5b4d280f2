//! Tables of all kinds through sessions: insertions, single reads, declared reads and updates in batches,
//! transactions of ten updates, and scans. Then a start after updates of a tenth of a paged table.
//!
//! `cargo bench -p stillpoint --bench kinds -- [RECORDS] [BATCH] [KIND]...`: one thread, values of 100 bytes,
//! keys of 8 bytes in random order, pages of 16 KiB, relaxed durability. The pool holds everything. A kind is
//! `paged`, `siren` or `memory`, by default each of them. Prints operations per second, and the bytes of memory
//! of a record, as the engine counts them and as the process has grown.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::error::Error;

use stillpoint::{Batch, Config, Engine, KeySet, Kind, Mode, Slot, Stamp, TableId, Tx, TxError};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng};

const PAGE_BYTES: usize = 16 << 10;
/// Insertions of one transaction.
const TOGETHER: u64 = 8;
/// Records that the transaction of the CALC paper reads and writes.
const TOUCHED: usize = 10;
const KINDS: [(&str, Kind); 3] =
    [("paged", Kind::Paged), ("siren", Kind::Siren), ("memory", Kind::Memory)];

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

/// Transactions that read and write ten keys each.
struct Tens {
    table: TableId,
    keys: Vec<[[u8; 8]; TOUCHED]>,
}

impl Batch for Tens {
    fn len(&self) -> usize {
        self.keys.len()
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        for key in &self.keys[index] {
            keys.push(self.table, key, Mode::Write, 100);
        }
    }
    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for slot in (0..TOUCHED as u32).map(Slot) {
            let mut value = [0; 100];
            let found = tx.value(slot).map_or_else(Vec::new, |value| value.to_vec());
            value[..found.len()].copy_from_slice(&found);
            value[0] = value[0].wrapping_add(1);
            tx.put_slot(slot, &value)?;
        }
        Ok(())
    }
    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        result.expect("nobody else is there");
    }
}

/// Bytes of memory of the records by the engine's count, and resident bytes of the process.
#[expect(clippy::disallowed_methods, reason = "the system's file, not the store's")]
fn memory(engine: &Engine) -> [u64; 2] {
    let counted = engine.stats().memory_bytes as u64;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    [counted, pages * 4096]
}

fn measure_table(
    engine: &Engine,
    (kind, table): (Kind, TableId),
    records: u64,
    batch: usize,
) -> Result<(), Box<dyn Error>> {
    let session = &mut engine.session()?;
    let before = memory(engine);
    measure(&format!("{kind:?}: insertions, {TOGETHER} a transaction"), records, || {
        for first in (0..records).step_by(TOGETHER as usize) {
            let inserted = session.transact(|tx| {
                (first..records.min(first + TOGETHER))
                    .try_for_each(|number| tx.put(table, &key(number), &[7; 100]))
            });
            inserted.expect("commits");
        }
    });
    let after = memory(engine);
    let [counted, resident] = [0, 1].map(|at| after[at].saturating_sub(before[at]) / records);
    println!("{kind:?}: {counted} bytes of a record are counted, {resident} are resident");
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
    let transactions = records / TOUCHED as u64;
    measure(&format!("{kind:?}: transactions of {TOUCHED} updates"), transactions, || {
        let mut tens = Tens { table, keys: Vec::new() };
        let in_batch = (batch / TOUCHED).max(1) as u64;
        for _ in 0..transactions / in_batch {
            tens.keys.clear();
            let ten = || std::array::from_fn(|_| key(rng.below(records)));
            tens.keys.extend((0..in_batch).map(|_| ten()));
            session.execute(&mut tens);
        }
    });
    if kind == Kind::Memory {
        return Ok(());
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
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let records: u64 = numbers.next().unwrap_or(1_000_000);
    let batch = numbers.next().unwrap_or(64) as usize;
    let asked: Vec<String> = std::env::args().collect();
    let is_known = |name: &str| KINDS.iter().any(|(known, _)| *known == name);
    let asks = asked.iter().any(|name| is_known(name));
    let directory = tempfile::tempdir()?;
    let mut config = Config::new(directory.path());
    let pool = (records as usize * 260 / PAGE_BYTES + 64) * PAGE_BYTES;
    (config.pool_bytes, config.page_bytes) = (Some(pool), Some(PAGE_BYTES));
    let siren = records as usize * 500 + (16 << 20);
    config.siren_bytes = Some(siren);
    config.max_memory_bytes = 2 * (pool + siren) + (1 << 30);
    let engine = Engine::open(config.clone())?;
    for (_, kind) in KINDS.iter().filter(|(name, _)| !asks || asked.iter().any(|it| it == name)) {
        let kind = *kind;
        let table = engine.table_with(&format!("{kind:?}"), kind)?;
        measure_table(&engine, (kind, table), records, batch)?;
    }
    println!("{:?}\n{:?}", engine.stats().pool, engine.stats().siren);
    if asks && !asked.iter().any(|name| name == "paged") {
        return Ok(engine.close()?);
    }
    let table = engine.table_with("Paged", Kind::Paged)?;
    engine.checkpoint()?;
    let (mut session, rng) = (engine.session()?, SeededRng::new(3));
    for _ in 0..records / 10 {
        let key = key(rng.below(records));
        session.transact(|tx| tx.patch(table, &key, 0, &rng.below(records).to_le_bytes()))?;
    }
    session.flush()?;
    let log_bytes = engine.stats().journal.record_bytes;
    drop((session, engine));
    let start = RealClock.monotonic_ns();
    let engine = Engine::open(config)?;
    let seconds = (RealClock.monotonic_ns() - start) as f64 / 1e9;
    println!("start after a crash: {seconds:.3} s, {log_bytes} bytes of records in all");
    println!("{:?}", engine.stats().pool);
    engine.close()?;
    Ok(())
}
