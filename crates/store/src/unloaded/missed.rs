//! The keys whose records a worker has missed: they are on the disk.

use stillpoint_txn::TableId;

/// Keys that a worker remembers, at most. The others are met again.
const MISSED_MAX: usize = 1 << 15;

/// The keys whose records a worker has missed.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    keys: Vec<MissedKey>,
    /// Whether the run under way has missed one.
    pub(crate) in_run: bool,
}

#[derive(Debug)]
pub(crate) struct MissedKey {
    pub(crate) table: TableId,
    pub(crate) hash: u64,
    pub(crate) key: Box<[u8]>,
}

impl Missed {
    pub(crate) fn note(&mut self, table: TableId, key: &[u8], hash: u64) {
        if self.keys.len() < MISSED_MAX {
            self.keys.push(MissedKey { table, hash, key: key.into() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn forget(&mut self) {
        self.keys.clear();
    }

    /// The keys, in the order in which they were missed.
    pub(crate) fn take(&mut self) -> Vec<MissedKey> {
        std::mem::take(&mut self.keys)
    }

    /// Takes an empty buffer back.
    pub(crate) fn give_back(&mut self, keys: Vec<MissedKey>) {
        self.keys = keys;
    }
}
