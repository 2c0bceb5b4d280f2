//! Parts that the tests of ordered tables share.

use std::sync::Arc;

use stillpoint_store::{CellRules, NoLog, Store, StoreConfig, TableId, Tx, TxError, Worker};

/// The ordered table.
pub(crate) const T: TableId = TableId(0);
/// A table that is not ordered.
pub(crate) const PLAIN: TableId = TableId(1);

pub(crate) fn ordered_store(workers: usize, seed: u64) -> Arc<Store> {
    let config = StoreConfig { workers, hash_seed: seed, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("address space"));
    let table = store.new_ordered_table(T, 1).expect("address space");
    store.add_tables(vec![table]).expect("the first table");
    store.add_table(PLAIN, 1).expect("address space");
    store
}

pub(crate) fn worker_of(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

/// A key and its value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// All records of the ordered table, upwards.
pub(crate) fn all(tx: &mut Tx<'_>) -> Result<Vec<Record>, TxError> {
    let mut found = Vec::new();
    let mut range = tx.range(T, ..)?;
    while let Some((key, value)) = range.next_record()? {
        found.push((key.to_vec(), value.to_vec()));
    }
    Ok(found)
}
