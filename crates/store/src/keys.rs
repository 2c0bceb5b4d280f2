use stillpoint_format::hash::KeyHasher;

use crate::table::TableId;

/// What a transaction does to a declared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Reads it; others may read it too.
    Read,
    /// Reads and writes it, alone.
    Write,
}

/// A key of a transaction, by its place in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

#[derive(Clone, Copy, Debug)]
pub(crate) struct DeclaredKey {
    pub(crate) hash: u64,
    /// A cell that may hold the key, found when its line was prefetched; 0 for none.
    pub(crate) candidate: u64,
    start: u32,
    len: u32,
    /// Expected length of the value, for the size of a new cell.
    pub(crate) value_len: u32,
    pub(crate) table: TableId,
    pub(crate) mode: Mode,
}

/// The keys of one transaction, or of a batch of them.
#[derive(Debug)]
pub struct KeySet {
    hasher: KeyHasher,
    bytes: Vec<u8>,
    pub(crate) keys: Vec<DeclaredKey>,
    /// Where the transaction that is declaring begins.
    first: usize,
}

impl KeySet {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self { hasher, bytes: Vec::new(), keys: Vec::new(), first: 0 }
    }

    /// Declares a key; `value_len` is the length of the value that will be written, if known, so
    /// that a new record gets a cell of the right size. Naming a key twice is fine: both slots are
    /// the same record.
    #[inline]
    pub fn push(&mut self, table: TableId, key: &[u8], mode: Mode, value_len: usize) -> Slot {
        let hash = self.hasher.hash(table.0, key);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.keys.push(DeclaredKey {
            hash,
            candidate: 0,
            start,
            len: key.len() as u32,
            value_len: value_len.min(u32::MAX as usize) as u32,
            table,
            mode,
        });
        Slot((self.keys.len() - self.first - 1) as u32)
    }

    /// Number of keys of the transaction that is declaring.
    pub fn len(&self) -> usize {
        self.keys.len() - self.first
    }

    /// The keys of the transaction that is declaring, with their tables, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (TableId, &[u8])> {
        (self.first..self.keys.len()).map(|index| (self.keys[index].table, self.key(index)))
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
        self.first = 0;
    }

    /// Begins the next transaction of a batch.
    pub(crate) fn next_transaction(&mut self) {
        self.first = self.keys.len();
    }

    #[inline]
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let key = &self.keys[index];
        &self.bytes[key.start as usize..(key.start + key.len) as usize]
    }
}
