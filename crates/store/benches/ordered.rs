//! Measures an ordered table beside one that is not: insertions in random order, point reads, ranges of 50
//! records, and ranks. Each is a transaction of its own. `cargo bench -p stillpoint-store --bench ordered
//! -- [RECORDS]` (default 1 M), one thread, keys of 16 bytes, values of 100.
#![expect(clippy::print_stdout, reason = "a report on the terminal")]

use std::sync::Arc;

use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{CellRules, NoLog, Store, StoreConfig, TableId, TxError, Worker};

const ORDERED: TableId = TableId(0);
const PLAIN: TableId = TableId(1);
const RANGE: usize = 50;

/// The key of a record. Numbers that follow each other have keys far apart.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut left = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    for digit in key[4..].iter_mut().rev() {
        *digit += (left % 10) as u8;
        left /= 10;
    }
    key
}

fn measure(name: &str, count: u64, mut run: impl FnMut(u64)) {
    let start_ns = RealClock.monotonic_ns();
    (0..count).for_each(&mut run);
    let ns = RealClock.monotonic_ns() - start_ns;
    println!("{name:<28} {:>8} ns", ns / count);
}

fn main() {
    let records = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(1_000_000);
    let store =
        Arc::new(Store::new(&StoreConfig::default(), CellRules::IN_PLACE).expect("address space"));
    let ordered = store.new_ordered_table(ORDERED, 1).expect("address space");
    store.add_tables(vec![ordered]).expect("the first table");
    store.add_table(PLAIN, 1).expect("address space");
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
    let value = [7; 100];
    let mut held = store.held_bytes();
    for (table, name) in [(PLAIN, "plain"), (ORDERED, "ordered")] {
        measure(&format!("insert, {name}"), records, |number| {
            worker.transact(|tx| tx.put(table, &key(number), &value)).expect("memory");
        });
        store.maintain();
        let now = store.held_bytes();
        println!(
            "{:<28} {:>8} bytes a record",
            format!("memory, {name}"),
            (now - held) as u64 / records
        );
        held = now;
    }
    let reads = records.min(1_000_000);
    let random = |number: u64| number.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 20;
    for (table, name) in [(PLAIN, "plain"), (ORDERED, "ordered")] {
        measure(&format!("point read, {name}"), reads, |number| {
            let key = key(random(number) % records);
            let found = worker.transact(|tx| Ok(tx.get(table, &key)?.is_some()));
            assert!(found.expect("a read"), "every key has a record");
        });
    }
    for is_descending in [false, true] {
        let name = if is_descending { "range of 50, descending" } else { "range of 50" };
        let mut seen = 0;
        measure(name, reads / 20, |number| {
            let key = key(random(number) % records);
            let read = worker.transact(|tx| {
                let mut range = match is_descending {
                    true => tx.range_descending(ORDERED, ..&key[..])?,
                    false => tx.range(ORDERED, &key[..]..)?,
                };
                let mut count = 0;
                while count < RANGE && range.next_record()?.is_some() {
                    count += 1;
                }
                Ok::<_, TxError>(count)
            });
            seen += read.expect("a read");
        });
        assert!(seen > 0, "records were read");
    }
    measure("rank", reads / 4, |number| {
        let key = key(random(number) % records);
        worker.transact(|tx| tx.count(ORDERED, ..&key[..])).expect("a read");
    });
    measure("record of a number", reads / 4, |number| {
        let number = random(number) % records;
        let found = worker.transact(|tx| tx.nth(ORDERED, number)).expect("a read");
        assert!(found.is_some(), "there are so many");
    });
    for (table, name) in [(PLAIN, "plain"), (ORDERED, "ordered")] {
        measure(&format!("delete, {name}"), reads / 4, |number| {
            worker.transact(|tx| tx.delete(table, &key(number))).expect("a deletion");
        });
    }
}
