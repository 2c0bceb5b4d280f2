//! Insertions, point reads, and transactions that read and change ten records of a SIREN table.
//!
//! `cargo bench -p stillpoint-siren -- [RECORDS]`: one thread, keys of 8 bytes in random order, values of
//! 100 bytes. Each read is a transaction with its lock, or one without a lock. The log is a buffer. Prints operations per second,
//! and the bytes that a tuple takes.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::ident::StoreId;
use stillpoint_io::{Clock, OpenMode, RealClock, Rng, SeededRng, SimDisk};
use stillpoint_siren::{Config, KindConfig, Siren};
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{
    DeferredLog, Discipline, KeyList, KindKey, KindPart, KindTable, LogRefused, Mode, Operation,
    OperationLog, Presence, TableId, TableKind,
};

const TABLE: TableId = TableId(1);
const VALUE_BYTES: usize = 100;
/// Records of a transaction.
const TOUCHED: usize = 10;

/// A log that keeps the last records.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    gsn: u64,
}

impl OperationLog for Buffer {
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused> {
        if self.bytes.len() > 1 << 20 {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(operation.body);
        self.gsn += 1;
        Ok(Stamp::new(self.gsn, 0))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn measure(what: &str, count: u64, run: impl FnOnce()) {
    let start = RealClock.monotonic_ns();
    run();
    let seconds = (RealClock.monotonic_ns() - start) as f64 / 1e9;
    println!("{what}: {:.3} M/s ({count} in {seconds:.2} s)", count as f64 / seconds / 1e6);
}

fn lock(part: &mut dyn KindPart, key: &[u8], mode: Mode) -> u32 {
    match part.lock(KindKey { table: TABLE, key, mode }, &|| true) {
        Ok(Presence::Here(slot)) => slot,
        other => panic!("all is in memory: {other:?}"),
    }
}

fn put(part: &mut dyn KindPart, log: &mut Buffer, slot: u32, value: &[u8]) {
    let put = part.put(slot, Some((0, value)), log, &|| true);
    assert!(matches!(put, Ok(Presence::Here(()))));
}

impl DeferredLog for Buffer {
    fn add(&mut self, _: TableId, _: u32, encode: &mut dyn FnMut(&mut Vec<u8>)) {
        if self.bytes.len() > 1 << 20 {
            self.bytes.clear();
        }
        encode(&mut self.bytes);
    }

    fn commit(&mut self) -> Result<Stamp, LogRefused> {
        self.gsn += 1;
        Ok(Stamp::new(self.gsn, 0))
    }
}

fn commit(part: &mut dyn KindPart, log: &mut Buffer) {
    part.prepare().expect("nothing fails");
    let stamp = if part.deferred_bytes() > 0 {
        part.commit_deferred(log).expect("there is room")
    } else {
        DeferredLog::commit(log).expect("there is room")
    };
    part.install(stamp);
    part.release(Some(stamp));
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let records: u64 = arguments.next().unwrap_or(1_000_000);
    let config = Config { sessions: 2, ..Config::default() };
    let settings = KindConfig { store: StoreId([7; 16]), memory_bytes: usize::MAX, config };
    let disk = SimDisk::new(1);
    let kind = Siren::open(&disk, settings, OpenMode::ReadWrite, &[]).expect("opens");
    kind.add_table(&KindTable { id: TABLE, generation: 1, section: None }, &disk).expect("a table");
    let (mut log, mut value) = (Buffer::default(), vec![7; VALUE_BYTES]);
    let mut part = Arc::clone(&kind).new_part();
    let part = &mut *part;
    measure("insertions", records, || {
        for number in 0..records {
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            let slot = lock(part, &key(number), Mode::Write);
            put(part, &mut log, slot, &value);
            commit(part, &mut log);
        }
    });
    println!("{} bytes a tuple", kind.stats().held_bytes as u64 / records);
    let (rng, mut out) = (SeededRng::new(2), Vec::new());
    measure("point reads", records, || {
        for _ in 0..records {
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            let slot = lock(part, &key(rng.below(records)), Mode::Read);
            out.clear();
            assert!(part.value(slot, &mut out).is_some() && out.len() == VALUE_BYTES);
            part.release(None);
        }
    });
    measure("point reads without a lock", records, || {
        for _ in 0..records {
            out.clear();
            let read = kind.read(TABLE, &key(rng.below(records)), &mut out);
            assert!(matches!(read, Ok(Presence::Here(Some(_)))) && out.len() == VALUE_BYTES);
        }
    });
    let (mut asked, mut slots) = (KeyList::default(), Vec::new());
    let transactions = records / TOUCHED as u64;
    measure(&format!("transactions of {TOUCHED} updates"), transactions, || {
        for number in 0..transactions {
            let keys: [[u8; 8]; TOUCHED] = std::array::from_fn(|_| key(rng.below(records)));
            asked.clear();
            for key in &keys {
                asked.push(KindKey { table: TABLE, key, mode: Mode::Write });
            }
            // As the engine does before declared transactions.
            part.ask(&asked, &mut |_, _| {});
            part.begin(Priority::DECLARED, Discipline::Declared);
            let locked = part.lock_all(&asked, &|| true, &mut slots);
            assert!(matches!(locked, Ok(Presence::Here(()))));
            for &slot in &slots {
                out.clear();
                part.value(slot, &mut out);
                value[..8].copy_from_slice(&number.to_le_bytes());
                put(part, &mut log, slot, &value);
            }
            commit(part, &mut log);
        }
    });
}
