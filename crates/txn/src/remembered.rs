//! The keys that the runs of one transaction have met. A later run locks these keys first.

use stillpoint_format::hash::KeyHasher;

use crate::keys::{KeySet, Mode};
use crate::lookup::Lookup;
use crate::table::TableId;

/// The keys that the runs of one transaction have met.
#[derive(Debug)]
pub struct Remembered {
    keys: KeySet,
    slots: Lookup,
}

impl Remembered {
    /// Nothing is remembered.
    pub fn new(hasher: KeyHasher) -> Self {
        Self { keys: KeySet::new(hasher), slots: Lookup::default() }
    }

    /// Adds a key, or strengthens the mode of a known key.
    pub fn add(&mut self, table: TableId, key: &[u8], mode: Mode) {
        let Self { keys, slots } = self;
        let hash = keys.hash(table, key);
        match slots.find(hash, |slot| keys.declared()[slot].table == table && keys.key(slot) == key)
        {
            Some(slot) => keys.declared_mut()[slot].mode = keys.declared()[slot].mode.max(mode),
            None => {
                keys.push(table, key, mode, 0);
                slots.cover(Some(hash), |slot| keys.declared()[slot].hash);
            }
        }
    }

    /// The remembered keys.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// Forgets all keys.
    #[inline]
    pub fn clear(&mut self) {
        if !self.keys.declared().is_empty() {
            self.keys.clear();
            self.slots.clear();
        }
    }
}
