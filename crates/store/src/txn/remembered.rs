//! The keys that the runs of one transaction have met, for locking them first in a later run.

use stillpoint_format::hash::KeyHasher;

use crate::table::TableId;
use crate::txn::keys::{KeySet, Mode};
use crate::txn::lookup::Lookup;

/// The keys that the runs of one transaction have met.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) keys: KeySet,
    slots: Lookup,
}

impl Remembered {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self { keys: KeySet::new(hasher), slots: Lookup::default() }
    }

    /// Adds a key, or makes the mode of a known one the stronger.
    pub(crate) fn add(&mut self, table: TableId, key: &[u8], mode: Mode) {
        let Self { keys, slots } = self;
        let hash = keys.hash(table, key);
        match slots.find(hash, |slot| keys.keys[slot].table == table && keys.key(slot) == key) {
            Some(slot) => keys.keys[slot].mode = keys.keys[slot].mode.max(mode),
            None => {
                keys.push(table, key, mode, 0);
                slots.cover(Some(hash), |slot| keys.keys[slot].hash);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        if !self.keys.keys.is_empty() {
            self.keys.clear();
            self.slots.clear();
        }
    }
}
