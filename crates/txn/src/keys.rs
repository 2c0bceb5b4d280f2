//! The keys of a transaction, declared beforehand or met on the way.

use stillpoint_format::KEY_BYTES_MAX;
use stillpoint_format::hash::KeyHasher;

use crate::error::TxError;
use crate::table::TableId;

/// Access of a transaction to a declared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Shared: the transaction reads the key, and others may read it too.
    Read,
    /// Exclusive: the transaction reads and writes the key alone.
    Write,
}

/// Number of a key of a transaction, in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// The entry of one key in a key set.
#[derive(Clone, Copy, Debug)]
pub struct DeclaredKey {
    /// Hash of the key and its table.
    pub hash: u64,
    /// The record's probable cell, found when its index line was prefetched. 0 for none.
    pub candidate: u64,
    start: u32,
    len: u32,
    /// Expected length of the value, for the size of a new cell.
    pub value_len: u32,
    /// Table.
    pub table: TableId,
    /// The transaction's access to the key.
    pub mode: Mode,
}

/// The keys of one transaction, or of a batch of them.
#[derive(Debug)]
pub struct KeySet {
    hasher: KeyHasher,
    bytes: Vec<u8>,
    keys: Vec<DeclaredKey>,
    /// Number of the first key of the transaction that is declaring.
    first: usize,
    /// Refused keys, with their lengths.
    refused: Vec<(usize, usize)>,
}

/// Most bytes of all keys of a batch, since a key's start has 32 bits. Tests have a lower limit.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { u32::MAX as usize };

impl KeySet {
    /// An empty set. `hasher` is the store's.
    pub fn new(hasher: KeyHasher) -> Self {
        Self { hasher, bytes: Vec::new(), keys: Vec::new(), first: 0, refused: Vec::new() }
    }

    /// Hash of a key and its table.
    #[inline]
    pub fn hash(&self, table: TableId, key: &[u8]) -> u64 {
        self.hasher.hash(table.0, key)
    }

    /// Declares a key. `value_len` is the length of the value to be written, if known, so that a
    /// new record gets a cell of the right size. A much shorter value may lose that room as soon as
    /// another one replaces it. A key may be declared twice; both slots are the
    /// same record. The transaction is refused if a key is longer than 65,536 bytes, or if the keys
    /// together reach 4 GiB.
    #[inline]
    pub fn push(&mut self, table: TableId, key: &[u8], mode: Mode, value_len: usize) -> Slot {
        // This branch returns, rather than continue with an empty key. So a caller with keys of
        // constant length keeps that constant in the copy and the hash.
        if !self.has_room(key) {
            return self.refuse(table, key.len(), mode);
        }
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

    #[inline]
    fn has_room(&self, key: &[u8]) -> bool {
        key.len() <= KEY_BYTES_MAX && self.bytes.len() + key.len() <= BYTES_MAX
    }

    /// Notes a refused key. The empty key replaces the refused one.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, table: TableId, len: usize, mode: Mode) -> Slot {
        self.refused.push((self.keys.len(), len));
        self.push(table, &[], mode, 0)
    }

    /// Refuses a transaction with a refused key.
    ///
    /// # Errors
    /// [`TxError::KeyTooLong`], [`TxError::KeysTooLong`].
    #[inline]
    pub fn check(&self, keys: std::ops::Range<usize>) -> Result<(), TxError> {
        if self.refused.is_empty() { Ok(()) } else { self.check_refused(&keys) }
    }

    #[cold]
    fn check_refused(&self, keys: &std::ops::Range<usize>) -> Result<(), TxError> {
        match self.refused.iter().find(|(index, _)| keys.contains(index)) {
            None => Ok(()),
            Some(&(_, len)) if len > KEY_BYTES_MAX => Err(TxError::KeyTooLong { len }),
            Some(_) => Err(TxError::KeysTooLong { limit_bytes: BYTES_MAX }),
        }
    }

    /// Takes back the last key.
    pub fn pop(&mut self) {
        if let Some(last) = self.keys.pop() {
            self.bytes.truncate(last.start as usize);
            self.refused.retain(|&(index, _)| index < self.keys.len());
        }
    }

    /// Appends copies of some keys, so that more keys can follow them; gives the number of the first.
    #[cold]
    pub fn copy_to_end(&mut self, keys: std::ops::Range<usize>) -> usize {
        let first = self.keys.len();
        for index in keys {
            let key = self.keys[index];
            self.keys.push(key);
        }
        first
    }

    /// Forgets the keys from number `len` on.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if self.keys.len() > len {
            self.truncate_bytes(len);
        }
    }

    #[cold]
    fn truncate_bytes(&mut self, len: usize) {
        self.keys.truncate(len);
        // The bytes of copied keys are those of their originals.
        let end = self.keys.iter().map(|key| (key.start + key.len) as usize).max();
        self.bytes.truncate(end.unwrap_or(0));
        self.refused.retain(|&(index, _)| index < len);
    }

    /// Number of keys of the transaction that is declaring.
    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len() - self.first
    }

    /// The keys of the transaction that is declaring, with their tables, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (TableId, &[u8])> {
        (self.first..self.keys.len()).map(|index| (self.keys[index].table, self.key(index)))
    }

    /// Whether the transaction has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all keys.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
        self.refused.clear();
        self.first = 0;
    }

    /// Forgets the probable cells, since the read section that found them has ended.
    #[inline]
    pub fn forget_candidates(&mut self) {
        for key in &mut self.keys {
            key.candidate = 0;
        }
    }

    /// Begins the next transaction of a batch.
    #[inline]
    pub fn next_transaction(&mut self) {
        self.first = self.keys.len();
    }

    /// All keys of the batch.
    #[inline]
    pub fn declared(&self) -> &[DeclaredKey] {
        &self.keys
    }

    /// All keys of the batch, to be changed.
    #[inline]
    pub fn declared_mut(&mut self) -> &mut [DeclaredKey] {
        &mut self.keys
    }

    /// The bytes of a key of the batch.
    ///
    /// # Panics
    /// If there is no such key.
    #[inline]
    pub fn key(&self, index: usize) -> &[u8] {
        let key = &self.keys[index];
        &self.bytes[key.start as usize..key.start as usize + key.len as usize]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_taken_refuse_their_transaction_only() {
        let table = TableId(0);
        let mut keys = KeySet::new(KeyHasher::new(1));
        let longest = vec![7; KEY_BYTES_MAX];
        let too_long = vec![7; KEY_BYTES_MAX + 1];
        keys.push(table, &longest, Mode::Read, 0);
        keys.next_transaction();
        assert_eq!(keys.push(table, b"good", Mode::Read, 0), Slot(0));
        assert_eq!(keys.push(table, &too_long, Mode::Read, 0), Slot(1));
        keys.next_transaction();
        keys.push(table, b"other", Mode::Read, 0);
        keys.check(0..1).expect("as long as a key may be");
        let refused = keys.check(1..3).expect_err("one is too long");
        assert!(matches!(refused, TxError::KeyTooLong { len } if len == too_long.len()));
        keys.check(3..4).expect("another transaction");
        assert_eq!(keys.bytes.len(), KEY_BYTES_MAX + 9, "what is refused takes no memory");
        // A removed key leaves no trace.
        keys.push(table, &too_long, Mode::Read, 0);
        keys.pop();
        keys.pop();
        keys.push(table, b"next", Mode::Read, 0);
        keys.check(3..4).expect("taken back");
        assert_eq!((keys.key(3), keys.key(0)), (&b"next"[..], &longest[..]));
    }

    #[test]
    fn keys_that_follow_copies_are_forgotten_with_them() {
        let table = TableId(0);
        let mut keys = KeySet::new(KeyHasher::new(1));
        keys.push(table, b"one", Mode::Read, 0);
        keys.next_transaction();
        keys.push(table, b"other", Mode::Write, 9);
        assert_eq!(keys.copy_to_end(0..1), 2);
        keys.push(table, b"more", Mode::Read, 0);
        assert_eq!((keys.key(2), keys.key(3)), (&b"one"[..], &b"more"[..]));
        assert_eq!(keys.declared()[2].hash, keys.declared()[0].hash);
        keys.truncate(2);
        assert_eq!((keys.key(0), keys.key(1)), (&b"one"[..], &b"other"[..]));
        assert_eq!((keys.declared().len(), keys.bytes.len()), (2, 8));
        keys.truncate(2);
        keys.push(table, b"next", Mode::Read, 0);
        assert_eq!(keys.key(2), b"next");
    }

    #[test]
    fn keys_beyond_the_limit_refuse_their_transaction() {
        let mut keys = KeySet::new(KeyHasher::new(1));
        let key = vec![1; KEY_BYTES_MAX];
        let room = BYTES_MAX / KEY_BYTES_MAX;
        for _ in 0..=room {
            keys.push(TableId(0), &key, Mode::Read, 0);
        }
        keys.check(0..room).expect("they fit");
        let refused = keys.check(0..room + 1).expect_err("one too many");
        assert!(matches!(refused, TxError::KeysTooLong { limit_bytes: BYTES_MAX }), "{refused}");
        assert!((0..room).all(|index| keys.key(index) == key));
        // A key that is removed and declared again is refused again.
        for _ in 0..3 {
            keys.pop();
            keys.check(0..room).expect("they fit");
            keys.push(TableId(0), &key, Mode::Read, 0);
            assert!(keys.check(0..room + 1).is_err());
        }
    }
}
