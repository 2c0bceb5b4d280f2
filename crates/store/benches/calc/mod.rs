//! The microbenchmark of the CALC paper (SIGMOD 2016, §5.1) on the bare store. Records have an
//! 8-byte key and 100 bytes. A transaction reads ten records and changes eight bytes of each.

use std::sync::Arc;
use stillpoint_store::{
    CellRules, KeySet, Mode, NoLog, Procedure, Slot, Stamp, Store, StoreConfig, TableId, Tx,
    TxError, Worker,
};

/// The only table.
pub(crate) const TABLE: TableId = TableId(0);
/// Records that a transaction reads and updates.
pub(crate) const KEYS_PER_TRANSACTION: u64 = 10;
const VALUE_BYTES: usize = 100;

/// Fixed random numbers (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

/// One transaction: adds one to the counter of each of its records.
#[derive(Clone, Default)]
pub(crate) struct CalcTransaction {
    keys: [u64; KEYS_PER_TRANSACTION as usize],
}

impl CalcTransaction {
    /// Draws other records uniformly. A record that is drawn twice counts twice.
    pub(crate) fn draw(&mut self, numbers: &mut Numbers, records: u64) {
        for key in &mut self.keys {
            *key = numbers.below(records);
        }
    }
}

impl Procedure for CalcTransaction {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in self.keys {
            keys.push(TABLE, &key.to_le_bytes(), Mode::Write, VALUE_BYTES);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for slot in 0..KEYS_PER_TRANSACTION as u32 {
            let value = tx.value(Slot(slot)).expect("loaded");
            let counter = value.u64_at(0).expect("eight bytes");
            tx.patch_slot(Slot(slot), 0, &(counter + 1).to_le_bytes())?;
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// A store without a journal whose cells follow `rules`, filled with `records` records.
pub(crate) fn filled(records: u64, rules: CellRules) -> Arc<Store> {
    let config = StoreConfig { max_memory_bytes: 64 << 30, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, rules).expect("address space"));
    store.add_table(TABLE, 1).expect("address space");
    store.reserve(TABLE, records);
    let mut worker = worker(&store);
    for key in 0..records {
        let put = worker.transact(|tx| {
            let mut value = [0; VALUE_BYTES];
            value[8..16].copy_from_slice(&key.to_le_bytes());
            tx.put(TABLE, &key.to_le_bytes(), &value)
        });
        put.expect("memory");
    }
    drop(worker);
    store
}

/// A worker without a journal.
pub(crate) fn worker(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

/// Runs about `transactions` in batches of `batch`.
pub(crate) fn run(store: &Arc<Store>, seed: u64, records: u64, transactions: u64, batch: usize) {
    let mut numbers = Numbers(seed);
    let mut worker = worker(store);
    let mut calls = vec![CalcTransaction::default(); batch];
    for _ in 0..transactions.div_ceil(batch as u64) {
        for call in &mut calls {
            call.draw(&mut numbers, records);
        }
        worker.execute(&mut calls[..]);
    }
}

/// The sum of all counters.
pub(crate) fn sum(store: &Arc<Store>) -> u64 {
    let mut worker = worker(store);
    let (mut sum, mut cursor) = (0, 0);
    loop {
        let visit = &mut |_: &[u8], value: stillpoint_store::ValueRef<'_>| {
            sum += value.u64_at(0).expect("eight bytes");
        };
        cursor = worker.scan(TABLE, cursor, 1_000, visit).expect("the table");
        if cursor == 0 {
            return sum;
        }
    }
}
