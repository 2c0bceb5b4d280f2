//! Places of keys that were asked for ahead of their use.
//!
//! All keys of a batch descend together, so that the misses of the processor's caches overlap. Each later
//! lock takes the place that was found, if the leaf has not changed since.

use std::ops::Range;

use stillpoint_txn::{KeyList, TableId};

use crate::kind::Paged;
use crate::tree::{Descent, DescentEnd, KeyPlace};

/// Keys that descend together. The lines that they prefetch fit the first cache.
const TOGETHER: usize = 32;

/// Keys that may be used next. Who asks for keys may use them in nearly the order in which it asked.
const NEXT: usize = 4;

/// A key that was asked for.
#[derive(Debug)]
struct Hint {
    hash: u64,
    table: TableId,
    key: Range<usize>,
    place: Option<KeyPlace>,
}

/// Places that were found, in the order in which they will be used.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    hints: Vec<Hint>,
    keys: Vec<u8>,
    next: usize,
    walks: Vec<Descent>,
}

impl Ahead {
    /// Descends for all keys of a list. `alone` is called with the number of each key whose place was not
    /// found.
    pub(crate) fn find_all(&mut self, kind: &Paged, keys: &KeyList, mut alone: impl FnMut(usize)) {
        self.hints.clear();
        self.keys.clear();
        self.next = 0;
        let mut first = 0;
        while first < keys.len() {
            let end = keys.len().min(first + TOGETHER);
            self.walks.clear();
            for number in first..end {
                let asked = keys.get(number);
                let hash = kind.locks.hash(asked.table, asked.key);
                kind.locks.prefetch(kind.locks.key(hash));
                let start = self.keys.len();
                self.keys.extend_from_slice(asked.key);
                let key = start..self.keys.len();
                self.hints.push(Hint { hash, table: asked.table, key, place: None });
                self.walks.push(Descent::new(kind.pool.root(asked.table)));
            }
            let Self { hints, keys, walks, .. } = self;
            kind.pool.walk_all(walks, |at| &keys[hints[first + at].key.clone()]);
            for (number, walk) in (first..end).zip(walks) {
                match walk.end() {
                    Some(DescentEnd::At(place)) => hints[number].place = Some(place),
                    _ => alone(number),
                }
            }
            first = end;
        }
    }

    /// The place of a key, if it is among the next ones of those that were asked for.
    #[inline]
    pub(crate) fn take(&mut self, hash: u64, table: TableId, key: &[u8]) -> Option<KeyPlace> {
        let is_it = |hint: &Hint| {
            hint.hash == hash && hint.table == table && self.keys[hint.key.clone()] == *key
        };
        let number = self.hints[self.next..].iter().take(NEXT).position(is_it)?;
        self.next += number + 1;
        self.hints[self.next - 1].place
    }

    /// Whether a key is the next one of those that were asked for.
    pub(crate) fn is_next(&self, hash: u64, table: TableId) -> bool {
        self.hints.get(self.next).is_some_and(|hint| hint.hash == hash && hint.table == table)
    }
}
