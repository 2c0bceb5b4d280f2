//! The keys that a transaction has locked, and what a declared one writes at its commit.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::siren::{TupleChange, TupleOperation};

use crate::proxy::{Proxy, untagged};
use crate::table::Author;

/// A locked key.
pub(crate) struct HeldKey {
    /// Number of its table among the used ones.
    pub(crate) table: usize,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) is_exclusive: bool,
    pub(crate) is_written: bool,
    pub(crate) existed: bool,
    /// The stamp of the key when it was locked.
    pub(crate) stamp: Stamp,
    /// What a declared transaction writes at its commit.
    pub(crate) deferred: Option<Deferred>,
}

/// A write that waits for the commit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deferred {
    Delete,
    /// A value with its tag: where it begins and ends in the room.
    Put(usize, usize),
}

impl Deferred {
    /// The value, in this room.
    pub(crate) fn value(self, room: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Delete => None,
            Self::Put(start, end) => Some(&room[start..end]),
        }
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Self::Delete => 0,
            Self::Put(start, end) => end - start,
        }
    }

    /// Defers a write in place of an earlier one.
    pub(crate) fn replace(
        before: Option<Self>,
        value: Option<(u8, &[u8])>,
        room: &mut Vec<u8>,
    ) -> Self {
        let Some((tag, value)) = value else { return Self::Delete };
        let len = 1 + value.len();
        if let Some(Self::Put(start, end)) = before
            && start + len <= end
        {
            room[start] = tag;
            room[start + 1..start + len].copy_from_slice(value);
            return Self::Put(start, start + len);
        }
        let start = room.len();
        room.push(tag);
        room.extend_from_slice(value);
        Self::Put(start, start + len)
    }
}

impl HeldKey {
    /// Lends the value that the transaction sees to `with`. Deferred ones are in `room`.
    pub(crate) fn with_value<R>(&self, room: &[u8], with: impl FnOnce(Option<&[u8]>) -> R) -> R {
        match self.deferred {
            Some(deferred) => with(deferred.value(room)),
            None => {
                self.proxy.with_value(self.is_written, |value| with(value.map(|value| &**value)))
            }
        }
    }

    /// The operation that gives the key its deferred value.
    pub(crate) fn operation<'o>(
        &'o self,
        room: &'o [u8],
        level: u64,
        author: Author,
    ) -> Option<TupleOperation<'o>> {
        let change = self.deferred?.value(room).map_or(TupleChange::Delete, |value| {
            let (tag, bytes) = untagged(value);
            TupleChange::Put(tag, bytes)
        });
        let Author { transaction, statement } = author;
        let key = &self.proxy.key;
        Some(TupleOperation { level, transaction, statement, replaces: false, key, change })
    }
}
