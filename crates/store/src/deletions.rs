//! The keys that newer checkpoints of a chain have deleted, while older ones are loaded.
//!
//! Deleted keys have no cells. Cells of deleted keys would lie between those of records, and the
//! slabs would stay half empty after the load. Here a key takes its bytes, a head, and a slot of a
//! hash table. The memory counts while the load lasts, and is freed as a whole.
//!
//! Loaders on several threads share the set. A load ends one checkpoint before it begins an older
//! one, so a loader finds every deletion that hides its record.
//!
//! The high bits of the hash choose a shard, as they choose the partition of a checkpoint. So the keys of
//! a block are in one shard, or in few, and a batch of them takes its lock once. Almost every look for a
//! key misses the cache twice. So a batch first prefetches its slots, and then the entries that they
//! name.

use std::convert::Infallible;

use stillpoint_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::{CachePadded, RwLock};
use stillpoint_txn::TableId;

/// Bits of the hash that choose a shard: those of the partition, by default.
const SHARDS_LOG2: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 4 };
/// Bytes before a key: table, length.
const HEAD_BYTES: usize = 2 + 4;
/// An entry begins at a multiple of this many bytes.
const ALIGN: usize = 8;
/// Slots of a shard with its first entry.
const SLOTS_MIN: usize = 16;

/// The deleted keys.
pub(crate) struct Deletions {
    shards: Box<[CachePadded<RwLock<Shard>>]>,
    /// Bytes of all shards.
    bytes: AtomicUsize,
}

impl std::fmt::Debug for Deletions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deletions").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Default for Deletions {
    fn default() -> Self {
        let shards = (0..1 << SHARDS_LOG2).map(|_| CachePadded::new(RwLock::default())).collect();
        Self { shards, bytes: AtomicUsize::new(0) }
    }
}

impl Deletions {
    /// Bytes that the keys take.
    pub(crate) fn bytes(&self) -> usize {
        // Relaxed: a loader that needs to see a deletion has waited for the end of its checkpoint.
        self.bytes.load(Relaxed)
    }

    /// Makes `found` say, for each key with its hash, whether the key was deleted.
    pub(crate) fn find<'a>(
        &self,
        table: TableId,
        keys: impl Iterator<Item = (u64, &'a [u8])> + Clone,
        found: &mut Vec<bool>,
    ) {
        found.clear();
        if self.bytes() == 0 {
            found.extend(keys.map(|_| false));
            return;
        }
        each_run(keys, |number, run| {
            let shard = self.shards[number].read();
            run.clone().for_each(|(hash, _)| shard.prefetch_slot(hash));
            run.clone().for_each(|(hash, _)| shard.prefetch_entry(hash));
            found.extend(run.map(|(hash, key)| shard.has(hash, table, key)));
            Ok::<(), Infallible>(())
        })
        .unwrap_or_else(|never| match never {});
    }

    /// Adds keys with their hashes, none of which is there. If the keys need more memory, `may_grow` is
    /// asked whether they may take so many bytes more.
    ///
    /// # Errors
    /// The error of `may_grow`. Then the keys from some one on are not added.
    pub(crate) fn add<'a, E>(
        &self,
        table: TableId,
        keys: impl Iterator<Item = (u64, &'a [u8])> + Clone,
        may_grow: impl Fn(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        each_run(keys, |number, run| {
            let mut shard = self.shards[number].write();
            let (slots, bytes) = shard.wanted(run.clone().map(|(_, key)| key.len()));
            let more =
                (slots - shard.slots.len()) * size_of::<Slot>() + bytes - shard.entries.capacity();
            if more > 0 {
                may_grow(more)?;
                shard.grow(slots, bytes);
                self.bytes.fetch_add(more, Relaxed);
            }
            run.clone().for_each(|(hash, _)| shard.prefetch_slot(hash));
            run.for_each(|(hash, key)| shard.add(hash, table, key));
            Ok(())
        })
    }
}

/// Calls `each` for each run of successive keys in one shard.
fn each_run<'a, I, E>(
    keys: I,
    mut each: impl FnMut(usize, std::iter::Take<I>) -> Result<(), E>,
) -> Result<(), E>
where
    I: Iterator<Item = (u64, &'a [u8])> + Clone,
{
    let mut rest = keys;
    while let Some((first, _)) = rest.clone().next() {
        let number = shard_of(first);
        let count = rest.clone().take_while(|key| shard_of(key.0) == number).count();
        each(number, rest.clone().take(count))?;
        rest.nth(count - 1);
    }
    Ok(())
}

/// A slot of a hash table. An empty one begins at 0.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// The low bits of the hash. Few other keys of the shard have the same, so a look for a key that is
    /// not there reads slots alone.
    tag: u32,
    /// Where the entry begins, in units of [`ALIGN`] and from 1 on.
    at: u32,
}

#[derive(Default)]
struct Shard {
    /// The number of slots is a power of two, and a quarter of the slots is empty.
    slots: Vec<Slot>,
    /// Entries one after the other.
    entries: Vec<u8>,
    count: usize,
}

impl Shard {
    /// Slots, and bytes of entries, with more keys of these lengths.
    fn wanted(&self, key_lens: impl Iterator<Item = usize>) -> (usize, usize) {
        let (mut count, mut needed) = (self.count, self.entries.len());
        for len in key_lens {
            count += 1;
            needed += (HEAD_BYTES + len).next_multiple_of(ALIGN);
        }
        let (mut slots, capacity) = (self.slots.len(), self.entries.capacity());
        while count * 4 > slots * 3 {
            slots = (2 * slots).max(SLOTS_MIN);
        }
        (slots, if needed > capacity { needed.max(capacity / 2 * 3) } else { capacity })
    }

    fn grow(&mut self, slots: usize, bytes: usize) {
        self.entries.reserve_exact(bytes - self.entries.len());
        if slots == self.slots.len() {
            return;
        }
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots]);
        for slot in old.into_iter().filter(|slot| slot.at != 0) {
            let free = self.probe(slot.tag, |_| false);
            self.slots[free] = slot;
        }
    }

    fn add(&mut self, hash: u64, table: TableId, key: &[u8]) {
        let begin = self.entries.len();
        let at = u32::try_from(begin / ALIGN + 1).expect("a shard has less than 32 GiB");
        self.entries.extend_from_slice(&table.0.to_le_bytes());
        self.entries.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.entries.extend_from_slice(key);
        self.entries.resize(self.entries.len().next_multiple_of(ALIGN), 0);
        let tag = tag_of(hash);
        let free = self.probe(tag, |_| false);
        self.slots[free] = Slot { tag, at };
        self.count += 1;
    }

    /// Prefetches the slots where a look for a key of this hash begins.
    fn prefetch_slot(&self, hash: u64) {
        if !self.slots.is_empty() {
            let mask = self.slots.len() - 1;
            stillpoint_mem::prefetch(&self.slots[tag_of(hash) as usize & mask]);
        }
    }

    /// Prefetches the first entry that may be of a key of this hash.
    fn prefetch_entry(&self, hash: u64) {
        if !self.slots.is_empty() {
            let slot = self.slots[self.probe(tag_of(hash), |_| true)];
            if slot.at != 0 {
                stillpoint_mem::prefetch(&self.entries[(slot.at as usize - 1) * ALIGN]);
            }
        }
    }

    fn has(&self, hash: u64, table: TableId, key: &[u8]) -> bool {
        let is_key = |at: u32| {
            let entry = &self.entries[(at as usize - 1) * ALIGN..];
            entry[..2] == table.0.to_le_bytes()
                && entry[2..HEAD_BYTES] == (key.len() as u32).to_le_bytes()
                && entry[HEAD_BYTES..][..key.len()] == *key
        };
        !self.slots.is_empty() && self.slots[self.probe(tag_of(hash), is_key)].at != 0
    }

    /// The slot with this tag and an entry that `is_it` accepts, or the first empty one.
    fn probe(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = tag as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.at == 0 || slot.tag == tag && is_it(slot.at) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }
}

fn shard_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARDS_LOG2)) as usize
}

fn tag_of(hash: u64) -> u32 {
    hash as u32
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_though_their_hashes_are_equal() {
        let deletions = Deletions::default();
        let (one, two) = (TableId(1), TableId(2));
        let keys: Vec<Vec<u8>> = (0..200u8).map(|len| vec![7; usize::from(len)]).collect();
        for (at, key) in keys.iter().enumerate() {
            let hash = at as u64 % 3;
            assert!(!has(&deletions, hash, one, key));
            add(&deletions, one, std::iter::once((hash, &key[..])));
            assert!(has(&deletions, hash, one, key) && !has(&deletions, hash, two, key));
            assert!(!has(&deletions, hash + 3, one, key), "another hash");
        }
        for (at, key) in keys.iter().enumerate() {
            assert!(has(&deletions, at as u64 % 3, one, key), "key {at} is lost as the set grows");
        }
    }

    fn add<'a>(
        deletions: &Deletions,
        table: TableId,
        keys: impl Iterator<Item = (u64, &'a [u8])> + Clone,
    ) {
        let Ok(()) = deletions.add::<Infallible>(table, keys, |_| Ok(()));
    }

    fn has(deletions: &Deletions, hash: u64, table: TableId, key: &[u8]) -> bool {
        let mut found = Vec::new();
        deletions.find(table, std::iter::once((hash, key)), &mut found);
        found == [true]
    }

    /// Keys of a batch may be in any shards, in any order.
    #[test]
    fn each_key_of_a_batch_is_found_in_its_shard() {
        let deletions = Deletions::default();
        let table = TableId(1);
        let keys: Vec<(u64, [u8; 8])> = (0..1_000u64)
            .map(|key| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15), key.to_le_bytes()))
            .collect();
        let batch = || keys.iter().map(|(hash, key)| (*hash, &key[..]));
        let mut found = vec![true; 3];
        deletions.find(table, batch(), &mut found);
        assert_eq!(found, [false; 1_000], "none is there yet");
        add(&deletions, table, batch().step_by(3));
        deletions.find(table, batch(), &mut found);
        let expected: Vec<bool> = (0..1_000).map(|at| at % 3 == 0).collect();
        assert_eq!(found, expected);
        deletions.find(table, batch().take(0), &mut found);
        assert!(found.is_empty());
    }

    #[test]
    fn all_bytes_are_asked_for() {
        let deletions = Deletions::default();
        let (asked, mut keys) = (std::cell::Cell::new(0), 0u64);
        let refused = loop {
            let hash = keys.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let bytes = keys.to_le_bytes();
            let key = std::iter::once((hash, &bytes[..]));
            let added = deletions.add(TableId(0), key, |more| {
                asked.set(asked.get() + more);
                (asked.get() <= 1 << 20).then_some(()).ok_or(more)
            });
            match added {
                Ok(()) => keys += 1,
                Err(more) => break more,
            }
        };
        assert_eq!(deletions.bytes(), asked.get() - refused);
        let of_shard = |shard: &CachePadded<RwLock<Shard>>| {
            let shard = shard.read();
            shard.slots.capacity() * size_of::<Slot>() + shard.entries.capacity()
        };
        assert_eq!(deletions.bytes(), deletions.shards.iter().map(of_shard).sum::<usize>());
        assert!(deletions.bytes() as u64 / keys < 48, "{keys} keys of 8 bytes");
    }
}
