//! The layout of a cell, and the reads and writes of it.
//!
//! ```text
//! word 0   lock word: transaction lock, scheme status, key length code (sync::lock_word)
//! word 1   stamp: gsn, log, flags BUSY | ABSENT | DEAD | SECOND
//! word 2…  key, padded with zeros to whole words; or, for a key over 1 KiB: length, block number
//! then     as many copies as the scheme asks for, of equal size:
//!            bits 0..16 length, 16..24 tag, 24 large, 25 no value, 27 deadline
//!            bits 32..64 and on: the value's bytes; with bit 27, the last word is the deadline
//!            or, if large: bits 32..64 the length, next word the number of the block table,
//!            which then has the deadline
//! or, with a pool of stable versions: one copy, and at the end two words that refer to such a version:
//!            as a copy whose value is large; or with bit 26, next word the number of a slot
//! ```
//! Flag SECOND says that the newest value is in copy 1, and otherwise it is in copy 0. ABSENT says
//! that the newest copy has no value. In cells of several copies, bit 25 says so for each copy.
//!
//! With an 8-byte key and 100 bytes of value a cell fills two cache lines.
//!
//! **Reads without a lock** copy the words and then read the stamp again. Such a read uses a
//! sequence lock with the stamp as its version. The stamp grows with every commit, so no version
//! repeats.
//! ```text
//! writer: stamp := BUSY; fence Release; words …; stamp := new (Release)
//! reader: stamp (Acquire), not BUSY; words …; fence Acquire; the same stamp again
//! ```

use stillpoint_format::{Label, Stamp};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use stillpoint_sync::lock_word::{self, Priority};

use crate::memory::Memory;
use crate::memory::arena::{Arena, bytes_of_class};
use crate::memory::blob::{self, Blob};
use crate::memory::stamp::{self, ABSENT, BUSY, DEAD, SECOND};
use crate::memory::value::ValueRef;
use crate::memory::words;

const HEADER_WORDS: usize = 2;
/// Longer keys are kept in a block of their own.
const INLINE_KEY_BYTES_MAX: usize = 1024;
const LONG_KEY_CODE: u64 = 2047;
const LONG_KEY_WORDS: usize = 2;
/// Most bytes of a value in the cell. Small in models, whose slabs are small.
pub(crate) const INLINE_VALUE_BYTES_MAX: usize = if cfg!(any(loom, shuttle)) { 60 } else { 2_044 };
const COPY_WORDS_MIN: usize = 2;
/// Words of the last place of a cell that refers to a stable version.
const REFERENCE_WORDS: usize = 2;
const META_BYTES: usize = 4;
const LARGE: u64 = 1 << 24;
const NOTHING: u64 = 1 << 25;
const POOLED: u64 = 1 << 26;
const HAS_DEADLINE: u64 = 1 << 27;

/// The first word of a copy: length and tag of the value, whether the value is large, and whether it has a
/// deadline.
#[derive(Clone, Copy)]
struct Meta(u64);

impl Meta {
    fn inline(len: usize, label: Label) -> u64 {
        len as u64 | Self::labelled(label)
    }
    fn pooled(len: usize, label: Label) -> u64 {
        POOLED | len as u64 | Self::labelled(label)
    }
    fn large(len: usize, label: Label) -> u64 {
        LARGE | Self::labelled(label) | (len as u64) << 32
    }
    fn labelled(label: Label) -> u64 {
        let flag = if label.deadline == 0 { 0 } else { HAS_DEADLINE };
        u64::from(label.tag) << 16 | flag
    }
    fn has_deadline(self) -> bool {
        self.0 & HAS_DEADLINE != 0
    }
    fn tag(self) -> u8 {
        (self.0 >> 16) as u8
    }
    fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }
    fn inline_len(self) -> usize {
        (self.0 & 0xffff) as usize
    }
    fn large_len(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Words of the key area.
fn key_words(key_len: usize) -> usize {
    if key_len <= INLINE_KEY_BYTES_MAX { words::words_for(key_len) } else { LONG_KEY_WORDS }
}

/// Bytes of a cell for a key and a value of `value_len` bytes, deadline included, in each of `copies`
/// copies.
pub(crate) fn cell_bytes(key_len: usize, value_len: usize, copies: usize) -> usize {
    let inline = if value_len <= INLINE_VALUE_BYTES_MAX { value_len } else { 0 };
    let copy = words::words_for(inline + META_BYTES).max(COPY_WORDS_MIN);
    (HEADER_WORDS + key_words(key_len) + copies * copy) * 8
}

impl Memory {
    /// Bytes of a cell for a key and a value of `value_len` bytes, deadline included.
    pub(crate) fn cell_bytes(&self, key_len: usize, value_len: usize) -> usize {
        match self.pool {
            None => cell_bytes(key_len, value_len, self.copies),
            Some(_) => cell_bytes(key_len, value_len, 1) + REFERENCE_WORDS * 8,
        }
    }

    /// About how many bytes of the cells of records hold further copies of values, or refer to stable
    /// versions. Cells that are free count, and keys count as one word.
    pub(crate) fn further_copies_bytes(&self) -> usize {
        const BESIDE_VALUES: usize = (HEADER_WORDS + 1) * 8;
        let (cells, bytes) = self.arena.record_cells();
        match self.pool {
            Some(_) => cells * REFERENCE_WORDS * 8,
            None => {
                let of_values = bytes.saturating_sub(cells * BESIDE_VALUES);
                of_values / self.copies * (self.copies - 1)
            }
        }
    }
}

/// A record's cell.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    words: &'a [AtomicU64],
    memory: &'a Memory,
}

/// Result of a read without a lock.
pub(crate) enum OptimisticRead {
    /// The key has a value with this label and stamp, whose bytes were appended.
    Value(Label, Stamp),
    /// The key has no value.
    Absent(Stamp),
    /// The cell belongs to another key or to none.
    Other,
}

impl<'a> Cell<'a> {
    pub(crate) fn new(memory: &'a Memory, number: u64) -> Self {
        Self { words: memory.arena.cell(number), memory }
    }

    /// The copy of a cell in other words. Its key and value may lie in blocks of `memory`.
    pub(crate) fn of_words(words: &'a [AtomicU64], memory: &'a Memory) -> Self {
        Self { words, memory }
    }

    #[inline]
    pub(crate) fn lock(self) -> &'a AtomicU64 {
        &self.words[0]
    }

    #[inline]
    pub(crate) fn stamp_word(self) -> u64 {
        self.words[1].load(Acquire)
    }

    /// Whether the cell is the key's at this moment.
    #[inline]
    pub(crate) fn is_of(self, key: &[u8]) -> bool {
        self.has_key(key) && !self.is_dead()
    }

    #[inline]
    pub(crate) fn is_dead(self) -> bool {
        self.stamp_word() & DEAD != 0
    }

    /// Whether the cell was published and not freed since. Zeroed memory is no record.
    pub(crate) fn is_record(self) -> bool {
        self.words.len() > HEADER_WORDS && {
            let stamp = self.stamp_word();
            stamp != 0 && stamp & DEAD == 0
        }
    }

    fn key_code(self) -> u64 {
        // Relaxed: the code never changes while the cell lives.
        lock_word::user(self.lock().load(Relaxed))
    }

    #[inline]
    fn key_area(self) -> usize {
        match self.key_code() {
            LONG_KEY_CODE => LONG_KEY_WORDS,
            len => words::words_for(len as usize),
        }
    }

    /// Whether the cell holds this key.
    #[inline]
    pub(crate) fn has_key(self, key: &[u8]) -> bool {
        if self.words.len() <= HEADER_WORDS {
            return false;
        }
        let code = self.key_code();
        if key.len() <= INLINE_KEY_BYTES_MAX {
            return code == key.len() as u64
                && words::starts_with(&self.words[HEADER_WORDS..], key);
        }
        code == LONG_KEY_CODE
            && self.with_long_key(|words, len| len == key.len() && words::starts_with(words, key))
    }

    fn with_long_key<R>(self, look: impl FnOnce(&[AtomicU64], usize) -> R) -> R {
        let len = self.words[HEADER_WORDS].load(Relaxed) as usize;
        // Acquire: a relocation puts another block there, and changes no stamp.
        let block = self.memory.arena.cell(self.words[HEADER_WORDS + 1].load(Acquire));
        look(block, len.min(block.len() * 8))
    }

    /// Replaces the contents of `out` by the key.
    #[inline]
    pub(crate) fn read_key(self, out: &mut Vec<u8>) {
        let mut read = |words: &[AtomicU64], len| {
            out.resize(len, 0);
            words::read_into(words, 0, out);
        };
        match self.key_code() {
            LONG_KEY_CODE => self.with_long_key(read),
            len => read(&self.words[HEADER_WORDS..], len as usize),
        }
    }

    pub(crate) fn long_key_block(self) -> Option<u64> {
        self.long_key().map(|(_, block)| block)
    }

    /// Length in bytes, and block, of a key that lies in a block of its own.
    pub(crate) fn long_key(self) -> Option<(usize, u64)> {
        // Acquire: as in `with_long_key`.
        let word = |at: usize| self.words[HEADER_WORDS + at].load(Acquire);
        (self.key_code() == LONG_KEY_CODE).then(|| (word(0) as usize, word(1)))
    }

    /// Bytes of the cell.
    pub(crate) fn bytes(self) -> usize {
        self.words.len() * 8
    }

    /// Bytes of the cell, its long key, and the blocks of its newest value. Without a lock the value may
    /// be changing.
    pub(crate) fn taken_bytes(self) -> usize {
        let key = self.long_key().map_or(0, |(len, _)| bytes_of_class(len));
        self.bytes() + key + self.record().blob().map_or(0, |blob| blob::taken_bytes(blob.len))
    }

    /// Whether a block of the key or of the value is to be moved elsewhere. Without the lock the answer is a
    /// hint. Call this inside a read section, for a record of one copy.
    pub(crate) fn has_leaving_block(self) -> bool {
        let is_torn = |blob: &Blob| !blob::is_plausible(self.memory, *blob);
        let value = self.record().blob().filter(|blob| !is_torn(blob));
        value.is_some_and(|blob| blob::is_leaving(self.memory, blob))
            || self.long_key().is_some_and(|(_, block)| self.memory.arena.is_leaving(block))
    }

    /// The newest copy of a cell that holds a key.
    #[inline]
    pub(crate) fn record(self) -> Record<'a> {
        if self.memory.copies > 1 {
            return self.newest_copy();
        }
        let copy = &self.words[HEADER_WORDS + self.key_area()..];
        Record { words: self.words, copy, memory: self.memory }
    }

    #[inline(never)]
    fn newest_copy(self) -> Record<'a> {
        self.copy(live_copy(self.stamp_word()))
    }

    /// One copy of a cell that holds a key.
    pub(crate) fn copy(self, copy: usize) -> Record<'a> {
        let at = self.copy_words(copy);
        Record { words: &self.words[..at.end], copy: &self.words[at], memory: self.memory }
    }

    /// Position of a copy among the words of the cell. The function is a separate call, so that the
    /// code of stores of one copy stays small enough to be inlined.
    #[inline(never)]
    fn copy_words(self, copy: usize) -> std::ops::Range<usize> {
        let first = HEADER_WORDS + self.key_area();
        if self.memory.pool.is_some() {
            let reference = self.words.len() - REFERENCE_WORDS;
            return if copy == 0 { first..reference } else { reference..self.words.len() };
        }
        let words = (self.words.len() - first) / self.memory.copies;
        let start = first + copy * words;
        start..start + words
    }

    /// The copies that have a value, as bits of their numbers. The caller holds the lock. Call this
    /// only for a cell of several copies.
    pub(crate) fn copies_with_value(self) -> u8 {
        let has_value = |copy: &usize| self.copy(*copy).has_copy_value();
        (0..self.memory.copies).filter(has_value).map(|copy| 1 << copy).sum()
    }

    /// Calls `visit` with the large value of each copy. Nobody else reaches the cell.
    pub(crate) fn for_each_blob(self, visit: impl FnMut(Blob)) {
        (0..self.memory.copies).filter_map(|copy| self.copy(copy).copy_blob()).for_each(visit);
    }

    /// Position of the newest copy, to find the record again while it is locked. `stamp_word` is
    /// the stamp word under the lock.
    #[inline]
    pub(crate) fn place(self, number: u64, stamp_word: u64) -> CellAddress {
        let start = Arena::first_word(number);
        if self.memory.copies > 1 {
            return self.place_of_copy(start, live_copy(stamp_word));
        }
        let copy = (HEADER_WORDS + self.key_area()) as u32;
        CellAddress { start, len: self.words.len() as u32, copy }
    }

    #[inline(never)]
    fn place_of_copy(self, start: usize, copy: usize) -> CellAddress {
        let at = self.copy_words(copy);
        CellAddress { start, len: at.end as u32, copy: at.start as u32 }
    }

    /// Makes an absent cell for a key. Nobody else may reach the cell before it is in the index.
    pub(crate) fn initialise(self, key: &[u8], long_key: u64, lock: u64, stamp: Stamp) {
        if key.len() <= INLINE_KEY_BYTES_MAX {
            words::fill(&self.words[HEADER_WORDS..], key);
        } else {
            words::fill(self.memory.arena.cell(long_key), key);
            self.words[HEADER_WORDS].store(key.len() as u64, Relaxed);
            self.words[HEADER_WORDS + 1].store(long_key, Relaxed);
        }
        self.lock().store(lock, Relaxed);
        if self.memory.copies > 1 {
            (0..self.memory.copies).for_each(|copy| self.copy(copy).put_nothing());
        }
        self.words[1].store(stamp::word(stamp, ABSENT), Release);
    }

    /// Makes this cell a copy of another one of the same size, whose lock the caller holds. The copy has
    /// this status, and its lock is held, too. Nobody else may reach the cell before it is in the index.
    pub(crate) fn take_over(self, from: Self, status: u8, priority: Priority) {
        let words = self.words.iter().zip(from.words);
        // Relaxed: the holder of the lock alone writes these words.
        words.skip(HEADER_WORDS).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        self.lock().store(lock_word::locked(from.key_code(), status, priority), Relaxed);
        self.words[1].store(from.words[1].load(Relaxed), Release);
    }

    /// Refers to another block with the same key.
    pub(crate) fn set_long_key_block(self, block: u64) {
        // Release: who finds the block finds the key in it.
        self.words[HEADER_WORDS + 1].store(block, Release);
    }

    /// The user field of the lock word for a key, and the bytes of the block it needs, if any.
    pub(crate) fn key_code_for(key: &[u8]) -> (u64, Option<usize>) {
        if key.len() <= INLINE_KEY_BYTES_MAX {
            (key.len() as u64, None)
        } else {
            (LONG_KEY_CODE, Some(key.len()))
        }
    }

    /// The value. The caller holds the lock, so that the value stays, or validates the value later.
    pub(crate) fn value(self) -> Option<ValueRef<'a>> {
        self.record().value()
    }

    /// Reads without a lock. Appends the value if `key` has one. Call this inside a read section.
    pub(crate) fn read_optimistic(self, key: &[u8], out: &mut Vec<u8>) -> OptimisticRead {
        self.read_head_optimistic(key, usize::MAX, out)
    }

    /// As [`read_optimistic`](Self::read_optimistic), but appends only the first `most` bytes.
    #[inline]
    pub(crate) fn read_head_optimistic(
        self,
        key: &[u8],
        most: usize,
        out: &mut Vec<u8>,
    ) -> OptimisticRead {
        let start = out.len();
        let mut backoff = Backoff::new();
        loop {
            let before = self.stamp_word();
            if before & BUSY != 0 {
                backoff.wait();
                continue;
            }
            if before & DEAD != 0 || !self.has_key(key) {
                return OptimisticRead::Other;
            }
            let label =
                if before & ABSENT == 0 { self.copy_unlocked(before, most, out) } else { None };
            fence(Acquire);
            // Relaxed: the fence orders the copy before this load.
            if self.words[1].load(Relaxed) == before {
                let stamp = Stamp::from_bits(before);
                return match label {
                    Some(label) => OptimisticRead::Value(label, stamp),
                    None => OptimisticRead::Absent(stamp),
                };
            }
            out.truncate(start);
        }
    }

    /// Appends the first `most` bytes of the newest value, which may be torn. The caller validates
    /// the stamp.
    #[inline]
    fn copy_unlocked(self, stamp_word: u64, most: usize, out: &mut Vec<u8>) -> Option<Label> {
        let first = HEADER_WORDS + self.key_area();
        let first = if stamp_word & SECOND != 0 { self.copy_words(1).start } else { first };
        let copy = &self.words[first..];
        let meta = Meta(copy[0].load(Relaxed));
        let mut label = Label::from(meta.tag());
        if meta.has_deadline() {
            label.deadline = self.copy(live_copy(stamp_word)).deadline(meta);
        }
        if meta.is_large() {
            // Acquire: a relocation puts another table there, and changes no stamp.
            let blob = Blob { table: copy[1].load(Acquire), len: meta.large_len() };
            // A torn length would copy hundreds of megabytes in vain.
            if blob::is_plausible(self.memory, blob) {
                blob::read(self.memory, blob, 0, blob.len.min(most), out);
            }
        } else {
            let len = meta.inline_len().min(copy.len() * 8 - META_BYTES);
            words::read(copy, META_BYTES, len.min(most), out);
        }
        Some(label)
    }

    /// Marks the cell as belonging to no key any more. The caller holds the lock exclusively, or the
    /// cell was never in the index.
    pub(crate) fn kill(self) {
        // Relaxed: as in `begin_write`.
        let stamp = self.words[1].load(Relaxed);
        self.words[1].store((stamp & !BUSY) | DEAD, Release);
    }
}

/// Number of the copy that is the newest one.
#[inline]
pub(crate) fn live_copy(stamp_word: u64) -> usize {
    usize::from(stamp_word & SECOND != 0)
}

/// Position of the newest copy of a locked record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CellAddress {
    start: usize,
    /// Words from the start of the cell to the end of the copy.
    len: u32,
    copy: u32,
}

/// A stable version in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PooledVersion {
    /// Bytes of the value. If it has a deadline, that follows.
    pub(crate) len: usize,
    pub(crate) tag: u8,
    pub(crate) has_deadline: bool,
    pub(crate) slot: u32,
}

/// A cell that holds a key, and one copy inside of the cell, usually the newest.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    /// From the start of the cell to the end of the copy.
    words: &'a [AtomicU64],
    copy: &'a [AtomicU64],
    memory: &'a Memory,
}

impl<'a> Record<'a> {
    /// The record at an address that was found while the record was locked.
    #[inline]
    pub(crate) fn at(memory: &'a Memory, place: CellAddress) -> Self {
        let words = memory.arena.span(place.start, place.len as usize);
        Self { words, copy: &words[place.copy as usize..], memory }
    }

    #[inline]
    pub(crate) fn lock(self) -> &'a AtomicU64 {
        &self.words[0]
    }

    #[inline]
    pub(crate) fn stamp_word(self) -> u64 {
        self.words[1].load(Acquire)
    }

    /// Whether the key has no value.
    #[inline]
    pub(crate) fn is_absent(self) -> bool {
        self.stamp_word() & ABSENT != 0
    }

    /// Whether a patch may reach to byte `end` of the value. A large value can grow. A value in the
    /// cell is limited by the cell's room.
    #[inline]
    pub(crate) fn can_patch_to(self, end: usize) -> bool {
        end <= self.patch_capacity() || self.blob().is_some()
    }

    /// Whether the value, grown to `end` bytes perhaps, can stay where it is with this deadline.
    pub(crate) fn can_have_until(self, end: usize, deadline: u64) -> bool {
        let bytes = Label { tag: 0, deadline }.deadline_bytes();
        end + bytes <= self.inline_capacity() || self.blob().is_some()
    }

    /// Whether the key has a value, in a cell of one copy, and a value of this length has room in a
    /// smaller one.
    #[inline(never)]
    pub(crate) fn has_spare_room(self, value_len: usize) -> bool {
        if self.memory.copies > 1 || self.is_absent() {
            return false;
        }
        let (bytes, copy) = (self.words.len() * 8, self.copy.len() * 8);
        let least = words::words_for(value_len + META_BYTES).max(COPY_WORDS_MIN) * 8;
        bytes_of_class(bytes - copy + least) < bytes
    }

    /// Longest value that stays in the cell, deadline included.
    #[inline]
    pub(crate) fn inline_capacity(self) -> usize {
        (self.copy.len() * 8 - META_BYTES).min(INLINE_VALUE_BYTES_MAX)
    }

    /// Longest value that stays in the cell beside the deadline that the key has.
    #[inline]
    pub(crate) fn patch_capacity(self) -> usize {
        let kept = Meta(self.copy[0].load(Relaxed)).has_deadline();
        self.inline_capacity() - if kept { Label::DEADLINE_BYTES } else { 0 }
    }

    /// The deadline of this copy, whose first word is `meta`; 0 for none.
    fn deadline(self, meta: Meta) -> u64 {
        if !meta.has_deadline() {
            0
        } else if meta.is_large() {
            // Acquire: as in `copy_unlocked`.
            let blob = Blob { table: self.copy[1].load(Acquire), len: meta.large_len() };
            blob::deadline(self.memory, blob)
        } else {
            self.copy[self.copy.len() - 1].load(Relaxed)
        }
    }

    /// The label of this copy.
    fn label(self, meta: Meta) -> Label {
        let deadline = if meta.has_deadline() { self.deadline(meta) } else { 0 };
        Label { tag: meta.tag(), deadline }
    }

    /// The value. The caller holds the lock, so that the value stays, or validates the value later.
    #[inline]
    pub(crate) fn value(self) -> Option<ValueRef<'a>> {
        if self.is_absent() {
            return None;
        }
        Some(self.present_value())
    }

    /// Length of the value, under the conditions of [`value`](Self::value).
    #[inline]
    pub(crate) fn value_len(self) -> Option<usize> {
        let meta = Meta(self.copy[0].load(Relaxed));
        let len = || if meta.is_large() { meta.large_len() } else { meta.inline_len() };
        (!self.is_absent()).then(len)
    }

    fn present_value(self) -> ValueRef<'a> {
        let meta = Meta(self.copy[0].load(Relaxed));
        let label = self.label(meta);
        if meta.is_large() {
            // Acquire: as in `Cell::copy_unlocked`, for a reader that validates the value later.
            let table = self.copy[1].load(Acquire);
            ValueRef::large(self.memory, Blob { table, len: meta.large_len() }, label)
        } else {
            ValueRef::inline(self.copy, META_BYTES, meta.inline_len(), label)
        }
    }

    /// The large value's blocks, if the value is one.
    pub(crate) fn blob(self) -> Option<Blob> {
        if self.is_absent() {
            return None;
        }
        let meta = Meta(self.copy[0].load(Relaxed));
        // Acquire: as in `present_value`.
        meta.is_large().then(|| Blob { table: self.copy[1].load(Acquire), len: meta.large_len() })
    }

    /// The value of this copy, whatever the newest copy has. Call this only for a cell of several
    /// copies.
    pub(crate) fn copy_value(self) -> Option<ValueRef<'a>> {
        self.has_copy_value().then(|| self.present_value())
    }

    fn has_copy_value(self) -> bool {
        self.copy[0].load(Relaxed) & NOTHING == 0
    }

    /// The stable version to which this place refers, if it is in the pool.
    pub(crate) fn pooled(self) -> Option<PooledVersion> {
        let word = self.copy[0].load(Relaxed);
        let meta = Meta(word);
        (word & POOLED != 0).then(|| PooledVersion {
            len: meta.inline_len(),
            tag: meta.tag(),
            has_deadline: meta.has_deadline(),
            slot: self.copy[1].load(Relaxed) as u32,
        })
    }

    /// Refers to a stable version in the pool, whose value has this length and label.
    pub(crate) fn put_pooled(self, len: usize, label: Label, slot: u32) {
        self.copy[0].store(Meta::pooled(len, label), Relaxed);
        self.copy[1].store(u64::from(slot), Relaxed);
    }

    /// The blocks of this copy, if its value is large. Call this only for a cell of several copies.
    pub(crate) fn copy_blob(self) -> Option<Blob> {
        self.copy_value()?.large_in().map(|(_, blob)| blob)
    }

    /// Removes the value of this copy.
    pub(crate) fn put_nothing(self) {
        self.copy[0].store(NOTHING, Relaxed);
    }

    /// Copies the words of another copy of the cell to this copy. Both then refer to the same
    /// blocks of a large value.
    pub(crate) fn put_copy(self, from: Self) {
        for (to, from) in self.copy.iter().zip(from.copy) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Begins a change that readers without a lock must see as a whole or not at all. A Release
    /// fence must follow before the first write. The caller holds the lock exclusively.
    #[inline]
    pub(crate) fn begin_write(self) {
        // Relaxed: the holder of the lock is the only writer. The fence orders this store before
        // the writes that follow, partner of the Acquire fence in `read_optimistic`.
        let stamp = self.words[1].load(Relaxed);
        self.words[1].store(stamp | BUSY, Relaxed);
    }

    /// Ends a change: the key has a value, written by `stamp`.
    #[inline]
    pub(crate) fn end_write(self, stamp: Stamp) {
        self.words[1].store(stamp::word(stamp, 0), Release);
    }

    /// Ends a change by `stamp` in a cell of several copies: copy `copy` is the newest one.
    pub(crate) fn end_in_copy(self, stamp: Stamp, copy: usize, is_absent: bool) {
        let second = if copy == 1 { SECOND } else { 0 };
        let absent = if is_absent { ABSENT } else { 0 };
        self.words[1].store(stamp::word(stamp, second | absent), Release);
    }

    /// Ends a change: the key has no value, removed by `stamp`.
    pub(crate) fn end_delete(self, stamp: Stamp) {
        self.words[1].store(stamp::word(stamp, ABSENT), Release);
    }

    /// Writes a value that fits together with its deadline.
    #[inline]
    pub(crate) fn put_inline(self, label: Label, value: &[u8]) {
        let (head, rest) = value.split_at(value.len().min(META_BYTES));
        let mut first = [0; 4];
        first[..head.len()].copy_from_slice(head);
        let meta = Meta::inline(value.len(), label) | u64::from(u32::from_le_bytes(first)) << 32;
        self.copy[0].store(meta, Relaxed);
        words::fill(&self.copy[1..], rest);
        if label.deadline != 0 {
            self.copy[self.copy.len() - 1].store(label.deadline, Relaxed);
        }
    }

    /// Gives a value in the cell another deadline, 0 for none. There is room for the deadline.
    pub(crate) fn set_deadline(self, deadline: u64) {
        let meta = self.copy[0].load(Relaxed) & !HAS_DEADLINE;
        if deadline == 0 {
            return self.copy[0].store(meta, Relaxed);
        }
        self.copy[0].store(meta | HAS_DEADLINE, Relaxed);
        self.copy[self.copy.len() - 1].store(deadline, Relaxed);
    }

    /// Writes a reference to a large value, whose table has the deadline of the label.
    pub(crate) fn put_large(self, label: Label, blob: Blob) {
        self.copy[0].store(Meta::large(blob.len, label), Relaxed);
        self.copy[1].store(blob.table, Relaxed);
    }

    /// Refers to another table of blocks with the same value.
    pub(crate) fn set_table(self, table: u64) {
        // Release: who finds the table finds the value in its blocks.
        self.copy[1].store(table, Release);
    }

    /// Overwrites part of an inline value. The value may grow within the cell.
    #[inline]
    pub(crate) fn patch_inline(self, offset: usize, bytes: &[u8]) {
        words::write(self.copy, META_BYTES + offset, bytes);
        let meta = self.copy[0].load(Relaxed);
        let end = (offset + bytes.len()) as u64;
        if end > meta & 0xffff {
            self.copy[0].store((meta & !0xffff) | end, Relaxed);
        }
    }
}
