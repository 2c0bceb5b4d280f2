//! Patches that were replayed before the record of their key was found.
//!
//! A replay adds them in gsn order, before the store is served. Afterwards nobody adds any. Who finds the
//! record applies them to it, and the result enters the index if the key has no cell. So two threads may
//! both apply them, and one of the results counts. The patches are forgotten after that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use stillpoint_format::Label;
use stillpoint_sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Mutex, mutant, planted};
use stillpoint_txn::TableId;

use super::{FoundRecord, WholeValue};

/// Bits of the hash that choose a shard.
const SHARDS_LOG2: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 6 };
/// Bytes of one key's patches. With more, a replay finds the key's record at once.
pub(crate) const KEY_PATCH_BYTES_MAX: usize = 64 << 10;
/// Bytes that a key takes beside its own and those of its patches, about.
const KEY_BYTES: usize = 2 * size_of::<Waiting>();
/// Bytes of a change's head: gsn, offset, removed bytes, length.
const HEAD_BYTES: usize = 8 + 4 + 4 + 4;
/// As the number of removed bytes: the change overwrites, and may make the value longer.
const OVERWRITES: u32 = u32::MAX;
/// As the number of removed bytes: the bytes are another deadline.
const DEADLINE: u32 = u32::MAX - 1;

/// The patches of a key do not fit its record. The log or the checkpoint is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log changes a part of a value at offset {offset}, and the checkpoints have {len} bytes of it"
)]
pub struct PatchWithoutBase {
    offset: usize,
    len: usize,
}

/// A change of bytes: offset, removed bytes, and the bytes that take their place. Without a number of
/// removed bytes the bytes overwrite what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteChange<'a> {
    pub(crate) offset: usize,
    pub(crate) removed: Option<usize>,
    pub(crate) bytes: &'a [u8],
}

/// A change that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitingChange<'a> {
    /// Bytes change.
    Bytes(ByteChange<'a>),
    /// The key has another deadline, 0 for none.
    Deadline(u64),
}

/// The patches of a key.
#[derive(Debug)]
struct Waiting {
    table: (TableId, u32),
    key_len: u32,
    /// The key, and behind it the changes, each with its head.
    bytes: Vec<u8>,
}

impl Waiting {
    fn is_of(&self, table: (TableId, u32), key: &[u8]) -> bool {
        self.table == table && self.key() == key
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    fn patches(&self) -> &[u8] {
        &self.bytes[self.key_len as usize..]
    }

    fn memory(&self) -> usize {
        KEY_BYTES + self.bytes.capacity()
    }
}

/// Keys are hashed already, and the highest bits choose the shard.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys of the map are numbers");
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The patches of the keys with a hash, mostly of one key.
type Shard = Mutex<HashMap<u64, Vec<Waiting>, BuildHasherDefault<Hashed>>>;

/// The patches of all keys.
#[derive(Debug)]
pub(crate) struct Pending {
    shards: Box<[Shard]>,
    bytes: AtomicUsize,
}

impl Default for Pending {
    fn default() -> Self {
        let shards = (0..1 << SHARDS_LOG2).map(|_| Shard::default()).collect();
        Self { shards, bytes: AtomicUsize::new(0) }
    }
}

impl Pending {
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[((hash >> 1) >> (63 - SHARDS_LOG2)) as usize]
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        // Acquire: partner of the Release in `forget`. Who finds no patches any more finds the cell that
        // has them. A loader that must see a patch was started after the replay.
        self.bytes.load(Acquire)
    }

    /// Adds changes of one commit to those of a key. Returns the bytes that the key's patches take now.
    pub(crate) fn add<'a>(
        &self,
        table: (TableId, u32),
        (hash, key): (u64, &[u8]),
        gsn: u64,
        changes: impl Iterator<Item = WaitingChange<'a>>,
    ) -> usize {
        let mut shard = self.shard(hash).lock();
        let waiting = shard.entry(hash).or_default();
        let (at, before) = match waiting.iter().position(|waiting| waiting.is_of(table, key)) {
            Some(at) => (at, waiting[at].memory()),
            None => {
                waiting.reserve_exact(1);
                waiting.push(Waiting { table, key_len: key.len() as u32, bytes: key.to_vec() });
                (waiting.len() - 1, 0)
            }
        };
        let bytes = &mut waiting[at].bytes;
        for change in changes {
            let until;
            let (offset, removed, new) = match change {
                WaitingChange::Bytes(ByteChange { offset, removed, bytes }) => {
                    (offset, removed.map_or(OVERWRITES, |removed| removed as u32), bytes)
                }
                WaitingChange::Deadline(deadline) => {
                    until = deadline.to_le_bytes();
                    (0, DEADLINE, &until[..])
                }
            };
            bytes.extend_from_slice(&gsn.to_le_bytes());
            bytes.extend_from_slice(&(offset as u32).to_le_bytes());
            bytes.extend_from_slice(&removed.to_le_bytes());
            bytes.extend_from_slice(&(new.len() as u32).to_le_bytes());
            bytes.extend_from_slice(new);
        }
        self.bytes.fetch_add(waiting[at].memory() - before, Relaxed);
        waiting[at].patches().len()
    }

    /// Whether patches of the key wait.
    pub(crate) fn has(&self, table: (TableId, u32), (hash, key): (u64, &[u8])) -> bool {
        let is_of = |waiting: &Waiting| waiting.is_of(table, key);
        self.bytes() > 0
            && self.shard(hash).lock().get(&hash).is_some_and(|of| of.iter().any(is_of))
    }

    /// Forgets the patches of a key.
    pub(crate) fn forget(&self, table: (TableId, u32), (hash, key): (u64, &[u8])) {
        if self.bytes() == 0 {
            return;
        }
        let mut shard = self.shard(hash).lock();
        let Some(waiting) = shard.get_mut(&hash) else { return };
        let Some(at) = waiting.iter().position(|waiting| waiting.is_of(table, key)) else { return };
        let gone = waiting.swap_remove(at);
        if waiting.is_empty() {
            shard.remove(&hash);
        }
        // Release: partner of the Acquire in `bytes`.
        self.bytes.fetch_sub(gone.memory(), Release);
    }

    /// Forgets the patches of tables whose generation is another one now. Returns a key that is left.
    pub(crate) fn left(&self, generation: impl Fn(TableId) -> Option<u32>) -> Option<Vec<u8>> {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for waiting in shard.values_mut() {
                waiting.retain(|waiting| {
                    let stays = generation(waiting.table.0) == Some(waiting.table.1);
                    if !stays {
                        self.bytes.fetch_sub(waiting.memory(), Release);
                    }
                    stays
                });
                if let Some(first) = waiting.first() {
                    return Some(first.key().to_vec());
                }
            }
            shard.clear();
        }
        None
    }

    /// The value of a key whose record was found: the record with the patches that wait for it.
    ///
    /// # Errors
    /// The patches do not fit the record.
    pub(crate) fn apply(
        &self,
        table: (TableId, u32),
        (hash, key): (u64, &[u8]),
        found: FoundRecord,
    ) -> Result<Option<WholeValue>, PatchWithoutBase> {
        let of_key = || {
            let shard = self.shard(hash).lock();
            let waiting = shard.get(&hash)?.iter().find(|waiting| waiting.is_of(table, key))?;
            Some(waiting.patches().to_vec())
        };
        let patches = if self.bytes() == 0 { None } else { of_key() };
        let (found, patches) =
            (found.map(|(label, value)| WholeValue { label, value, gsn: 0 }), patches);
        let Some(patches) = patches else { return Ok(found) };
        let planted =
            || Some(WholeValue { label: Label::default(), value: vec![0; 1 << 10], gsn: 0 });
        let base = mutant!(found, PatchesWithoutBase => planted());
        let Some(mut whole) = base else {
            let offset = Changes(&patches).find_map(|(_, change)| match change {
                WaitingChange::Bytes(change) => Some(change.offset),
                WaitingChange::Deadline(_) => None,
            });
            let offset = offset.unwrap_or(0);
            return Err(PatchWithoutBase { offset, len: 0 });
        };
        for (gsn, change) in Changes(&patches) {
            match change {
                WaitingChange::Bytes(change) => whole.change(&change)?,
                WaitingChange::Deadline(deadline) => whole.label.deadline = deadline,
            }
            whole.gsn = gsn;
        }
        Ok(Some(whole))
    }
}

impl WholeValue {
    fn change(&mut self, change: &ByteChange<'_>) -> Result<(), PatchWithoutBase> {
        let &ByteChange { offset, removed, bytes } = change;
        let len = self.value.len();
        let wrong = PatchWithoutBase { offset, len };
        let end = match removed {
            Some(removed) => offset.checked_add(removed).filter(|&end| end <= len).ok_or(wrong)?,
            None if offset > len => return Err(wrong),
            None => len.min(offset + bytes.len()),
        };
        self.value.splice(offset..end, bytes.iter().copied());
        Ok(())
    }
}

/// The changes of a key, each with its gsn, in the order in which they were added.
struct Changes<'a>(&'a [u8]);

impl<'a> Iterator for Changes<'a> {
    type Item = (u64, WaitingChange<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("four bytes"));
        let gsn = u64::from_le_bytes(*head.first_chunk().expect("eight bytes"));
        let (bytes, rest) = rest.split_at(word(16) as usize);
        self.0 = rest;
        if word(12) == DEADLINE {
            let deadline = *bytes.first_chunk().expect("eight bytes");
            return Some((gsn, WaitingChange::Deadline(u64::from_le_bytes(deadline))));
        }
        let removed = Some(word(12)).filter(|&removed| removed != OVERWRITES);
        let removed = removed.map(|removed| removed as usize);
        let change = ByteChange { offset: word(8) as usize, removed, bytes };
        Some((gsn, WaitingChange::Bytes(change)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const TABLE: (TableId, u32) = (TableId(3), 7);
    const KEY: (u64, &[u8]) = (0xFEED << 48, b"key");

    fn overwrite(offset: usize, bytes: &[u8]) -> WaitingChange<'_> {
        WaitingChange::Bytes(ByteChange { offset, removed: None, bytes })
    }

    #[test]
    fn patches_are_applied_in_their_order() {
        let pending = Pending::default();
        let splice = ByteChange { offset: 1, removed: Some(2), bytes: b"xyz" };
        let splice = WaitingChange::Bytes(splice);
        pending.add(TABLE, KEY, 5, [overwrite(2, b"CD")].into_iter());
        pending.add(
            TABLE,
            KEY,
            9,
            [splice, WaitingChange::Deadline(77), overwrite(5, b"!!")].into_iter(),
        );
        assert!(pending.has(TABLE, KEY) && !pending.has((TableId(3), 8), KEY));
        let found = || Some((4.into(), b"abcde".to_vec()));
        // abcde, abCDe, axyzDe, axyzD!!
        for _ in 0..2 {
            let whole = pending.apply(TABLE, KEY, found()).expect("they fit").expect("a value");
            assert_eq!((&*whole.value, whole.gsn), (&b"axyzD!!"[..], 9));
            assert_eq!(whole.label, Label { tag: 4, deadline: 77 });
        }
        let other = pending.apply(TABLE, (KEY.0, b"another"), found()).expect("no patches");
        assert_eq!(other.expect("a value").gsn, 0);
        pending.forget(TABLE, KEY);
        assert_eq!(pending.bytes(), 0);
        assert_eq!(pending.apply(TABLE, KEY, found()).expect("none").expect("a value").gsn, 0);
    }

    #[test]
    fn a_patch_without_a_base_is_an_error() {
        let pending = Pending::default();
        pending.add(TABLE, KEY, 5, [overwrite(2, b"CD")].into_iter());
        let wrong = |len| PatchWithoutBase { offset: 2, len };
        assert_eq!(pending.apply(TABLE, KEY, None), Err(wrong(0)));
        assert_eq!(pending.apply(TABLE, KEY, Some((0.into(), b"a".to_vec()))), Err(wrong(1)));
        assert_eq!(pending.left(|_| Some(7)), Some(KEY.1.to_vec()));
        assert_eq!(pending.left(|_| Some(8)), None, "the table was emptied");
        assert_eq!(pending.bytes(), 0);
    }
}
