//! Keys of tables of other kinds, in one buffer that is used again.

use crate::keys::Mode;
use crate::kind::KindKey;
use crate::table::TableId;

/// Keys to be asked for or to be locked together.
#[derive(Debug, Default)]
pub struct KeyList {
    bytes: Vec<u8>,
    /// Of each key: its table, the transaction's access, and where its bytes end.
    keys: Vec<(TableId, Mode, usize)>,
}

impl KeyList {
    /// Appends a key.
    #[inline]
    pub fn push(&mut self, key: KindKey<'_>) {
        self.bytes.extend_from_slice(key.key);
        self.keys.push((key.table, key.mode, self.bytes.len()));
    }

    /// Number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of this number.
    ///
    /// # Panics
    /// If there is no such key.
    #[inline]
    pub fn get(&self, number: usize) -> KindKey<'_> {
        let (table, mode, end) = self.keys[number];
        let start = number.checked_sub(1).map_or(0, |before| self.keys[before].2);
        KindKey { table, key: &self.bytes[start..end], mode }
    }

    /// The keys in their order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KindKey<'_>> {
        (0..self.len()).map(|number| self.get(number))
    }

    /// Changes the access to a key.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn set_mode(&mut self, number: usize, mode: Mode) {
        self.keys[number].1 = mode;
    }

    /// Removes the last key. Returns the access to it.
    pub fn pop(&mut self) -> Option<Mode> {
        let (_, mode, _) = self.keys.pop()?;
        self.bytes.truncate(self.keys.last().map_or(0, |(.., end)| *end));
        Some(mode)
    }

    /// Forgets all keys.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_they_were() {
        let mut list = KeyList::default();
        for _ in 0..2 {
            assert!(list.is_empty());
            for (table, key) in [(1, &b"one"[..]), (2, b""), (1, b"three")] {
                list.push(KindKey { table: TableId(table), key, mode: Mode::Read });
            }
            list.set_mode(1, Mode::Write);
            let all: Vec<_> = list.iter().map(|key| (key.table.0, key.key, key.mode)).collect();
            let expected = [
                (1, &b"one"[..], Mode::Read),
                (2, &b""[..], Mode::Write),
                (1, &b"three"[..], Mode::Read),
            ];
            assert_eq!(all, expected);
            assert_eq!(
                (list.pop(), list.pop(), list.len()),
                (Some(Mode::Read), Some(Mode::Write), 1)
            );
            list.push(KindKey { table: TableId(4), key: b"four", mode: Mode::Write });
            let last = list.get(1);
            assert_eq!((list.get(0).key, last.table.0, last.key), (&b"one"[..], 4, &b"four"[..]));
            list.clear();
            assert_eq!(list.pop(), None);
        }
    }
}
