//! What the commands need of the engine, and nothing else: declared-key
//! transactions in prefetched batches, scans, administration.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// A table of the engine; database `n` of the protocol is table `n`.
pub type TableId = u16;

/// What a transaction wants of a declared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// A declared key of the running transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// The last writer of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

/// Why a transaction was not carried out.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum TxError {
    /// The memory limit is reached; reads and deletes go on.
    #[error("out of memory")]
    OutOfMemory,
    /// The log or a checkpoint cannot be written; reads go on.
    #[error("{0}")]
    ReadOnly(String),
    /// A key is longer than 65,536 bytes.
    #[error("key too long")]
    KeyTooLong,
    /// The procedure itself gave up; nothing was written.
    #[error("aborted")]
    Aborted,
}

/// The procedure gives up: nothing of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort;

/// The declared keys of one transaction.
#[derive(Default, Debug)]
pub struct KeySet {
    keys: Vec<(TableId, Vec<u8>)>,
}

impl KeySet {
    /// Keys declared so far.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
    /// Declares a key.
    pub fn push(&mut self, table: TableId, key: &[u8], _mode: Mode, _len_hint: usize) -> Slot {
        self.keys.push((table, key.to_vec()));
        Slot(self.keys.len() as u32 - 1)
    }
}

#[derive(Clone, Debug)]
struct Cell {
    tag: u8,
    value: Vec<u8>,
    stamp: u64,
}

#[derive(Default, Debug)]
struct State {
    tables: HashMap<TableId, BTreeMap<Vec<u8>, Cell>>,
    gsn: u64,
}

/// The store.
#[derive(Default, Debug)]
pub struct Engine {
    state: Mutex<State>,
    last_checkpoint_wall_ms: Mutex<u64>,
}

/// A value as a transaction sees it.
#[derive(Clone, Copy, Debug)]
pub struct ValueRef<'a> {
    tag: u8,
    bytes: &'a [u8],
}

impl ValueRef<'_> {
    /// The tag kept with the value.
    pub fn tag(&self) -> u8 {
        self.tag
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Appends `count` bytes from `offset` on.
    pub fn copy_range_to(&self, offset: usize, count: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[offset..offset + count]);
    }
    /// Eight bytes at `offset`, little-endian.
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        let bytes = self.bytes.get(offset..offset + 8)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

/// A running transaction.
#[derive(Debug)]
pub struct Tx<'a> {
    keys: &'a [(TableId, Vec<u8>)],
    state: MutexGuard<'a, State>,
    writes: HashMap<(TableId, Vec<u8>), Option<(u8, Vec<u8>)>>,
}

impl Tx<'_> {
    /// The value of a declared key, own writes included.
    pub fn get(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let key = &self.keys[slot.0 as usize];
        match self.writes.get(key) {
            Some(write) => write.as_ref().map(|(tag, bytes)| ValueRef { tag: *tag, bytes }),
            None => {
                let cell = self.state.tables.get(&key.0)?.get(&key.1)?;
                Some(ValueRef { tag: cell.tag, bytes: &cell.value })
            }
        }
    }
    /// Sets the value of a declared key.
    pub fn put(&mut self, slot: Slot, tag: u8, value: &[u8]) -> Result<(), TxError> {
        self.writes.insert(self.keys[slot.0 as usize].clone(), Some((tag, value.to_vec())));
        Ok(())
    }
    /// Overwrites part of an existing value.
    pub fn patch(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        let old = self.get(slot).expect("patched value exists");
        let (tag, mut value) = (old.tag, old.bytes.to_vec());
        value[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.put(slot, tag, &value)
    }
    /// Deletes; true if there was a value.
    pub fn delete(&mut self, slot: Slot) -> bool {
        let there = self.get(slot).is_some();
        self.writes.insert(self.keys[slot.0 as usize].clone(), None);
        there
    }
    /// The last writer of the record.
    pub fn stamp(&self, slot: Slot) -> Stamp {
        let key = &self.keys[slot.0 as usize];
        Stamp(self.state.tables.get(&key.0).and_then(|t| t.get(&key.1)).map_or(0, |c| c.stamp))
    }
}

/// Transactions to run one after the other, whose memory is fetched together.
pub trait Batch {
    /// How many.
    fn len(&self) -> usize;
    /// Declares the keys of transaction `i`.
    fn declare(&mut self, i: usize, keys: &mut KeySet);
    /// Runs transaction `i`, all its locks held.
    fn run(&mut self, i: usize, tx: &mut Tx<'_>) -> Result<(), Abort>;
    /// Transaction `i` was carried out; tells whether it wrote.
    fn done(&mut self, _i: usize, _wrote: bool) {}
    /// Transaction `i` was not carried out.
    fn failed(&mut self, i: usize, error: TxError);
}

/// One thread's access to the store.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
}

/// What `INFO` says of checkpoints and the log.
#[derive(Default, Debug, Clone)]
pub struct CheckpointState {
    pub(crate) running: bool,
    pub(crate) running_for_ms: Option<u64>,
    pub(crate) last_duration_ms: Option<u64>,
    pub(crate) last_failed: bool,
    pub(crate) completed: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) last_copied_bytes: u64,
    pub(crate) records_done: u64,
    pub(crate) records_total: u64,
    pub(crate) changes_since: u64,
    pub(crate) log_bytes: u64,
    pub(crate) log_failed: bool,
}

impl Engine {
    /// A session for one thread.
    pub fn session(self: &Arc<Self>) -> Result<Session, crate::error::ServerError> {
        Ok(Session { engine: Arc::clone(self) })
    }
    /// Keys in a table.
    pub fn table_len(&self, table: TableId) -> u64 {
        self.state.lock().tables.get(&table).map_or(0, |t| t.len() as u64)
    }
    /// Bytes held.
    pub fn held_bytes(&self) -> u64 {
        0
    }
    /// Limit of bytes held; 0: none.
    pub fn max_memory_bytes(&self) -> u64 {
        0
    }
    /// Sets the limit.
    pub fn set_max_memory_bytes(&self, _bytes: u64) {}
    /// True if commits are logged.
    pub fn has_journal(&self) -> bool {
        true
    }
    /// True while a checkpoint runs.
    pub fn checkpoint_running(&self) -> bool {
        false
    }
    /// Starts a checkpoint; false if one runs.
    pub fn checkpoint_start(&self) -> bool {
        true
    }
    /// Makes a checkpoint and waits for it.
    pub fn checkpoint_now(&self) -> Result<(), String> {
        Ok(())
    }
    /// Progress.
    pub fn checkpoint_state(&self) -> CheckpointState {
        CheckpointState::default()
    }
    /// Wall time of the last complete checkpoint.
    pub fn last_checkpoint_wall_ms(&self) -> u64 {
        *self.last_checkpoint_wall_ms.lock()
    }
}

impl Session {
    /// Runs the batch.
    pub fn execute(&mut self, batch: &mut impl Batch) {
        for i in 0..batch.len() {
            let mut keys = KeySet::default();
            batch.declare(i, &mut keys);
            let state = self.engine.state.lock();
            let mut tx = Tx { keys: &keys.keys, state, writes: HashMap::new() };
            if batch.run(i, &mut tx).is_err() {
                drop(tx);
                batch.failed(i, TxError::Aborted);
                continue;
            }
            let Tx { mut state, writes, .. } = tx;
            let wrote = !writes.is_empty();
            state.gsn += 1;
            let stamp = state.gsn;
            for ((table, key), write) in writes {
                let table = state.tables.entry(table).or_default();
                match write {
                    Some((tag, value)) => drop(table.insert(key, Cell { tag, value, stamp })),
                    None => drop(table.remove(&key)),
                }
            }
            drop(state);
            batch.done(i, wrote);
        }
    }
    /// Does what waits to be done.
    pub fn idle(&mut self) {}
    /// Makes everything executed so far durable.
    pub fn flush(&mut self) -> Result<(), TxError> {
        Ok(())
    }
    /// Walks about `count` records from `cursor` (0 to begin); returns the cursor to go on, 0 at the end.
    pub fn scan(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], &ValueRef<'_>),
    ) -> u64 {
        let state = self.engine.state.lock();
        let Some(table) = state.tables.get(&table) else { return 0 };
        let mut items = table.range::<[u8], _>((Bound::<&[u8]>::Unbounded, Bound::Unbounded));
        let mut seen = 0;
        for (key, cell) in items.by_ref().skip(cursor as usize).take(count) {
            visit(key, &ValueRef { tag: cell.tag, bytes: &cell.value });
            seen += 1;
        }
        let next = cursor + seen;
        if next >= table.len() as u64 { 0 } else { next }
    }
    /// Visits some records near a random place.
    pub fn sample(&mut self, table: TableId, random: u64, visit: &mut dyn FnMut(&[u8], &ValueRef<'_>)) {
        let state = self.engine.state.lock();
        let Some(table) = state.tables.get(&table) else { return };
        let at = (random % table.len().max(1) as u64) as usize;
        for (key, cell) in table.iter().skip(at).take(1) {
            visit(key, &ValueRef { tag: cell.tag, bytes: &cell.value });
        }
    }
    /// Empties tables.
    pub fn flush_tables(&mut self, tables: &[TableId]) -> Result<(), TxError> {
        let mut state = self.engine.state.lock();
        for table in tables {
            state.tables.remove(table);
        }
        Ok(())
    }
}
