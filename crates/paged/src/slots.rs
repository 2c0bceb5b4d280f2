//! The keys of a transaction with their values, in buffers that are used again.

use std::ops::Range;

use stillpoint_format::large::LARGE_REFERENCE_BYTES;
use stillpoint_format::page_log::{LoggedValue, StoredValue};
use stillpoint_txn::{Lookup, Mode, TableId};

use crate::large::LargePages;
use crate::tree::{KeyPlace, Value};

/// Slots up to which a search looks at each of them.
const SEARCHED: usize = 8;
/// Bytes of a buffer that are kept from one transaction to the next.
const KEPT_BYTES: usize = 1 << 20;
/// Slots, and bytes of their keys and values, from which on a slot that nobody uses is forgotten.
const MANY: usize = 4096;
const MANY_BYTES: usize = 1 << 20;

/// A key of a transaction.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) table: TableId,
    hash: u64,
    key: Range<usize>,
    pub(crate) mode: Mode,
    /// Number of the key's word among the held ones.
    pub(crate) held: usize,
    pub(crate) existed: bool,
    /// The tag, if the transaction sees a value.
    tag: Option<u8>,
    value: Range<usize>,
    /// The pages of the value, if it is large.
    large: Option<Box<LargeValue>>,
    /// Where the key was found. It may be elsewhere by now.
    pub(crate) place: Option<KeyPlace>,
}

/// A large value of a slot: its reference as bytes, and its pages.
#[derive(Debug)]
struct LargeValue {
    packed: [u8; LARGE_REFERENCE_BYTES],
    pages: LargePages,
}

impl LargeValue {
    fn new(pages: LargePages) -> Box<Self> {
        Box::new(Self { packed: pages.reference.pack(), pages })
    }
}

/// All keys of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    keys: Vec<u8>,
    values: Vec<u8>,
    at: Lookup,
}

impl Slots {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        for bytes in [&mut self.keys, &mut self.values] {
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES);
        }
        if !self.at.is_empty() {
            self.at.clear();
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: usize) -> &Slot {
        &self.slots[slot]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.slots[slot]
    }

    #[inline]
    pub(crate) fn key(&self, slot: usize) -> &[u8] {
        &self.keys[self.slots[slot].key.clone()]
    }

    /// Tag and value of a slot, as the transaction sees them.
    #[inline]
    pub(crate) fn value(&self, slot: usize) -> Value<'_> {
        let slot = &self.slots[slot];
        slot.tag.map(|tag| (tag, &self.values[slot.value.clone()]))
    }

    /// The value of a slot as its leaf has it.
    #[inline]
    pub(crate) fn stored(&self, slot: usize) -> LoggedValue<'_> {
        let (tag, bytes) = self.value(slot)?;
        Some(match &self.slots[slot].large {
            None => StoredValue::in_leaf(tag, bytes),
            Some(large) => StoredValue { tag, bytes: &large.packed, is_large: true },
        })
    }

    /// The slot of a key with this hash.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, table: TableId, key: &[u8]) -> Option<usize> {
        let Self { slots, keys, at, .. } = self;
        let is_it = |slot: &Slot| {
            slot.hash == hash && slot.table == table && keys[slot.key.clone()] == *key
        };
        if slots.len() <= SEARCHED {
            return slots.iter().position(is_it);
        }
        while at.covered() < slots.len() {
            let hash = slots[at.covered()].hash;
            at.cover(Some(hash), |number| slots[number].hash);
        }
        at.find(hash, |number| is_it(&slots[number]))
    }

    /// The buffer to which the value of the next slot is appended.
    #[inline]
    pub(crate) fn values(&mut self) -> &mut Vec<u8> {
        &mut self.values
    }

    /// Adds a slot, whose value is the last bytes of the buffer, from `start` on.
    #[inline]
    pub(crate) fn push(
        &mut self,
        (hash, table, key): (u64, TableId, &[u8]),
        (mode, held): (Mode, usize),
        (place, tag, start): (KeyPlace, Option<u8>, usize),
        large: Option<LargePages>,
    ) -> u32 {
        let key_start = self.keys.len();
        self.keys.extend_from_slice(key);
        self.slots.push(Slot {
            table,
            hash,
            key: key_start..self.keys.len(),
            mode,
            held,
            existed: tag.is_some(),
            tag,
            value: start..self.values.len(),
            large: large.map(LargeValue::new),
            place: Some(place),
        });
        (self.slots.len() - 1) as u32
    }

    /// Gives a slot a value, and its pages if it is large. Returns the pages of the value before.
    pub(crate) fn set(
        &mut self,
        slot: usize,
        value: Value<'_>,
        large: Option<LargePages>,
    ) -> Option<LargePages> {
        let Self { slots, values, .. } = self;
        let is_last = slot + 1 == slots.len();
        let slot = &mut slots[slot];
        slot.tag = value.map(|(tag, _)| tag);
        let before = std::mem::replace(&mut slot.large, large.map(LargeValue::new));
        let before = before.map(|before| before.pages);
        let Some((_, bytes)) = value else { return before };
        if is_last && slot.value.end == values.len() {
            values.truncate(slot.value.start);
        } else if bytes.len() <= slot.value.len() {
            slot.value.end = slot.value.start + bytes.len();
            values[slot.value.clone()].copy_from_slice(bytes);
            return before;
        }
        slot.value = values.len()..values.len() + bytes.len();
        values.extend_from_slice(bytes);
        before
    }

    /// Forgets the last slot, if there are many. The leaf of its key has its value. Returns whether it is
    /// forgotten.
    pub(crate) fn forget(&mut self, slot: usize) -> bool {
        let are_many = self.slots.len() > MANY || self.keys.len() + self.values.len() > MANY_BYTES;
        let is_last = slot + 1 == self.slots.len() && self.at.covered() <= slot;
        if !are_many || !is_last {
            return false;
        }
        if let Some(Slot { key, value, .. }) = self.slots.pop() {
            self.keys.truncate(key.start);
            if value.end == self.values.len() {
                self.values.truncate(value.start);
            }
        }
        true
    }
}
