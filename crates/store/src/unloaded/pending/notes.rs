//! Where the notes of writes lie: four words for each, in chunks that belong to a partition each.
//!
//! ```text
//! slabs of a thread │ chunk of partition 7 │ chunk of 3 │ chunk of 7 │ chunk of 5 │ …
//! ```
//! A thread appends to the last chunk of a partition, and takes a new one once that is full. New chunks lie
//! one behind the other on huge pages. So a start touches little memory, and what it touches is near. Who
//! sorts a partition puts its notes back into the same chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_format::log::{Write, WriteIter};
use stillpoint_mem::prefer_huge_pages;
use stillpoint_sync::Mutex;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_txn::TableId;

const IS_MODEL: bool = cfg!(any(loom, shuttle));
/// Bits of the hash that choose a partition.
pub(super) const PARTITIONS_LOG2: u32 = if IS_MODEL { 0 } else { 11 };
/// Number of partitions.
pub(crate) const PARTITIONS: usize = 1 << PARTITIONS_LOG2;
/// Words of a note.
const WORDS: usize = 4;
/// Notes of a chunk.
const CHUNK_NOTES: usize = if IS_MODEL { 2 } else { 64 };
/// Bytes of a chunk.
const CHUNK_BYTES: usize = CHUNK_NOTES * WORDS * size_of::<u64>();
/// Chunks of a slab, whose memory is touched chunk by chunk.
const SLAB_CHUNKS: usize = if IS_MODEL { 2 } else { 1 << 14 };
/// Bits of a gsn.
const GSN_BITS: u32 = 52;

const _: () = assert!(stillpoint_format::GSN_MAX < 1 << GSN_BITS);

#[inline]
pub(super) fn partition_of(hash: u64) -> usize {
    ((hash >> 1) >> (63 - PARTITIONS_LOG2)) as usize
}

/// A table, and the generation that a write was made in.
pub(super) type TableOf = (TableId, u32);

/// What a write does to its key, as far as it matters for earlier writes of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteEffect {
    /// It changes what the key had.
    #[default]
    Change,
    /// It puts these bytes into the value: an offset, and a number that is not 0.
    Range(u16, u16),
    /// Nothing is left of what the key had.
    Whole,
}

impl WriteEffect {
    /// Number of bytes 0 stands for no range.
    fn word(self) -> u32 {
        match self {
            Self::Change => 0,
            Self::Whole => 1 << 16,
            Self::Range(offset, len) => u32::from(offset) << 16 | u32::from(len),
        }
    }

    fn of_word(word: u32) -> Self {
        match (word >> 16, word & u32::from(u16::MAX)) {
            (0, 0) => Self::Change,
            (_, 0) => Self::Whole,
            (offset, len) => Self::Range(offset as u16, len as u16),
        }
    }

    /// Whether nothing is left of this write, if the next write of the key is `next`.
    pub(super) fn is_covered_by(self, next: Self) -> bool {
        matches!(self, Self::Range(..)) && self == next
    }
}

/// Where a write lies, and what puts it into order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteLocation {
    pub(super) hash: u64,
    pub(super) gsn: u64,
    /// Number of the window, and the offset in it.
    pub(super) window: u32,
    pub(super) at: u32,
    /// Number of the table.
    pub(super) table: u16,
    /// Another hash of the key.
    pub(super) check: u32,
    pub(super) effect: WriteEffect,
}

impl WriteLocation {
    /// The write to this table that begins these bytes, and its length. `None` if the bytes end before.
    pub(super) fn decode<'b>(of: TableOf, bytes: &'b [u8]) -> Option<(Write<'b>, usize)> {
        let mut reader = WriteIter::behind((of.0.0, of.1), bytes);
        let write = reader.next()?.ok()?;
        Some((write, bytes.len() - reader.undecoded().0.len()))
    }

    /// The write to this table that begins these bytes, which have all of it.
    pub(super) fn decode_whole<'b>(of: TableOf, bytes: &'b [u8]) -> Write<'b> {
        Self::decode(of, bytes).expect("the start has decoded the same bytes").0
    }

    /// The partition has the first bits of the hash. Bits of the table's number take their place, and those
    /// that a gsn leaves.
    #[inline]
    fn words(&self) -> [u64; WORDS] {
        let table = u64::from(self.table);
        let (low, high) = (table << GSN_BITS, table >> (u64::BITS - GSN_BITS));
        debug_assert!(high < 1 << PARTITIONS_LOG2, "a model has few tables");
        let place = u64::from(self.window) << 32 | u64::from(self.at);
        let effect = u64::from(self.check) << 32 | u64::from(self.effect.word());
        [self.hash << PARTITIONS_LOG2 | high, self.gsn | low, place, effect]
    }

    fn of_words(partition: usize, [hash, gsn, place, effect]: [u64; WORDS]) -> Self {
        let high = hash & ((1 << PARTITIONS_LOG2) - 1);
        let table = gsn >> GSN_BITS | high << (u64::BITS - GSN_BITS);
        Self {
            hash: hash_of(partition, hash),
            gsn: gsn & ((1 << GSN_BITS) - 1),
            window: (place >> 32) as u32,
            at: place as u32,
            table: table as u16,
            check: (effect >> 32) as u32,
            effect: WriteEffect::of_word(effect as u32),
        }
    }
}

/// The hash of a note, by its first word.
#[inline]
fn hash_of(partition: usize, word: u64) -> u64 {
    // Two shifts, since one by 64 would overflow in models.
    (partition as u64) << 1 << (63 - PARTITIONS_LOG2) | word >> PARTITIONS_LOG2
}

/// The numbers that notes have of tables, which are the same for all threads.
#[derive(Debug)]
pub(super) struct TableNumbers {
    all: Arc<Mutex<Vec<TableOf>>>,
    /// The numbers that this thread knows.
    known: BTreeMap<(u16, u32), u16>,
    last: Option<(TableOf, u16)>,
}

impl TableNumbers {
    pub(super) fn new(all: Arc<Mutex<Vec<TableOf>>>) -> Self {
        Self { all, known: BTreeMap::new(), last: None }
    }

    #[inline]
    pub(super) fn of(&mut self, table: TableOf) -> u16 {
        match self.last {
            Some((last, number)) if last == table => number,
            _ => self.look_for(table),
        }
    }

    #[cold]
    fn look_for(&mut self, table: TableOf) -> u16 {
        let number = *self.known.entry((table.0.0, table.1)).or_insert_with(|| {
            let mut all = self.all.lock();
            let at = all.iter().position(|one| *one == table).unwrap_or_else(|| {
                all.push(table);
                all.len() - 1
            });
            u16::try_from(at).expect("only the present generation of a table has writes")
        });
        self.last = Some((table, number));
        number
    }

    /// The tables, by their numbers.
    pub(super) fn all(&self) -> Vec<TableOf> {
        self.all.lock().clone()
    }
}

/// The words of a note.
#[inline]
fn words_at(slabs: &[Vec<AtomicU64>], chunk: usize, at: usize) -> &[AtomicU64] {
    let begin = (chunk % SLAB_CHUNKS * CHUNK_NOTES + at) * WORDS;
    &slabs[chunk / SLAB_CHUNKS][begin..begin + WORDS]
}

/// Relaxed: who reads notes has taken a lock, or has seen the order of their partition, since they were
/// stored.
#[inline]
fn store(words: &[AtomicU64], note: &WriteLocation) {
    words.iter().zip(note.words()).for_each(|(word, value)| word.store(value, Relaxed));
}

/// Notes of one thread, in any order.
#[derive(Debug)]
pub(super) struct ThreadNotes {
    slabs: Vec<Vec<AtomicU64>>,
    /// Of each partition, the number of the next note. A multiple of the notes of a chunk if none has room.
    next: Box<[usize]>,
    /// The partition of each chunk.
    owners: Vec<u16>,
}

impl ThreadNotes {
    pub(super) fn new() -> Self {
        Self { slabs: Vec::new(), next: vec![0; PARTITIONS].into(), owners: Vec::new() }
    }

    /// Appends a note. Returns the bytes of memory that it has taken for it and for others to come.
    #[inline]
    pub(super) fn push(&mut self, note: &WriteLocation) -> usize {
        let partition = partition_of(note.hash);
        let is_full = self.next[partition].is_multiple_of(CHUNK_NOTES);
        if is_full {
            self.begin_chunk(partition);
        }
        let number = self.next[partition];
        self.next[partition] = number + 1;
        store(words_at(&self.slabs, number / CHUNK_NOTES, number % CHUNK_NOTES), note);
        if is_full { CHUNK_BYTES } else { 0 }
    }

    #[cold]
    fn begin_chunk(&mut self, partition: usize) {
        let chunk = self.owners.len();
        if chunk.is_multiple_of(SLAB_CHUNKS) {
            let slab = Vec::with_capacity(SLAB_CHUNKS * CHUNK_NOTES * WORDS);
            prefer_huge_pages(&slab);
            self.slabs.push(slab);
        }
        if let Some(slab) = self.slabs.last_mut() {
            slab.resize_with(slab.len() + CHUNK_NOTES * WORDS, || AtomicU64::new(0));
        }
        self.owners.push(partition as u16);
        self.next[partition] = chunk * CHUNK_NOTES;
    }

    /// Notes in a chunk.
    fn len_of(&self, chunk: usize, owner: usize) -> usize {
        let next = self.next[owner];
        if (next - 1) / CHUNK_NOTES == chunk { next - chunk * CHUNK_NOTES } else { CHUNK_NOTES }
    }
}

/// A chunk of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    number: u32,
    /// Notes that it has as long as they are in no order.
    len: u32,
}

/// The notes of all threads.
#[derive(Debug, Default)]
pub(super) struct AllNotes {
    slabs: Vec<Vec<AtomicU64>>,
}

impl AllNotes {
    /// The notes, and the chunks of each partition.
    pub(super) fn gather(threads: Vec<ThreadNotes>) -> (Self, Vec<Vec<Chunk>>) {
        let mut counts = vec![0; PARTITIONS];
        let owners = threads.iter().flat_map(|of| &of.owners);
        owners.for_each(|&owner| counts[usize::from(owner)] += 1);
        let mut chunks: Vec<Vec<Chunk>> = counts.into_iter().map(Vec::with_capacity).collect();
        let mut all = Self::default();
        for mut notes in threads {
            let base = all.slabs.len() * SLAB_CHUNKS;
            for (at, &owner) in notes.owners.iter().enumerate() {
                let owner = usize::from(owner);
                let len = notes.len_of(at, owner) as u32;
                chunks[owner].push(Chunk { number: (base + at) as u32, len });
            }
            all.slabs.append(&mut notes.slabs);
        }
        (all, chunks)
    }

    /// The notes of a partition with these chunks.
    pub(super) fn of_partition<'a>(
        &'a self,
        partition: usize,
        chunks: &'a [Chunk],
    ) -> PartitionNotes<'a> {
        PartitionNotes { slabs: &self.slabs, partition, chunks }
    }
}

/// The notes of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartitionNotes<'a> {
    slabs: &'a [Vec<AtomicU64>],
    partition: usize,
    chunks: &'a [Chunk],
}

impl<'a> PartitionNotes<'a> {
    fn load(&self, words: &[AtomicU64]) -> WriteLocation {
        // Relaxed: see `store`.
        let word = |at: usize| words[at].load(Relaxed);
        WriteLocation::of_words(self.partition, [word(0), word(1), word(2), word(3)])
    }

    fn words_unsorted(self) -> impl Iterator<Item = &'a [AtomicU64]> {
        self.chunks.iter().flat_map(move |chunk| {
            let words = move |at| words_at(self.slabs, chunk.number as usize, at);
            (0..chunk.len as usize).map(words)
        })
    }

    /// The notes, as long as they are in no order.
    pub(super) fn unsorted(self) -> impl Iterator<Item = WriteLocation> {
        self.words_unsorted().map(move |words| self.load(words))
    }

    /// As [`unsorted`](Self::unsorted), those of one hash.
    pub(super) fn unsorted_of_hash(self, hash: u64) -> impl Iterator<Item = WriteLocation> {
        // Relaxed: see `store`.
        let is_one =
            move |words: &&[AtomicU64]| hash_of(self.partition, words[0].load(Relaxed)) == hash;
        self.words_unsorted().filter(is_one).map(move |words| self.load(words))
    }

    /// Puts these notes back in this order, or some of them.
    pub(super) fn put_back(&self, sorted: &[WriteLocation]) {
        for (notes, chunk) in sorted.chunks(CHUNK_NOTES).zip(self.chunks) {
            for (at, note) in notes.iter().enumerate() {
                store(words_at(self.slabs, chunk.number as usize, at), note);
            }
        }
    }

    /// The words of a note once the notes are in order.
    pub(super) fn words(&self, at: usize) -> &'a [AtomicU64] {
        words_at(self.slabs, self.chunks[at / CHUNK_NOTES].number as usize, at % CHUNK_NOTES)
    }

    /// A note once the notes are in order.
    pub(super) fn sorted(&self, at: usize) -> WriteLocation {
        self.load(self.words(at))
    }

    /// The hash of a note once the notes are in order.
    pub(super) fn hash(&self, at: usize) -> u64 {
        // Relaxed: see `store`.
        hash_of(self.partition, self.words(at)[0].load(Relaxed))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_format::GSN_MAX;

    use super::*;

    #[test]
    fn a_note_keeps_all_its_bits() {
        let (window, at) = (u32::MAX, u32::MAX);
        let (hash, gsn, check) = (!0, GSN_MAX, u32::MAX);
        let effect = WriteEffect::Range(u16::MAX, u16::MAX);
        let full = WriteLocation { hash, gsn, window, at, table: u16::MAX, check, effect };
        let notes = [
            WriteLocation { effect: WriteEffect::Whole, ..full },
            WriteLocation { effect: WriteEffect::Range(0, 1), ..full },
            full,
            WriteLocation::default(),
            WriteLocation { hash: 1 << 63, ..WriteLocation::default() },
            WriteLocation { hash: 0, gsn: 0, ..full },
            WriteLocation { table: 1 << 12, ..WriteLocation::default() },
        ];
        for note in notes {
            let mut of_thread = ThreadNotes::new();
            assert_eq!(of_thread.push(&note), CHUNK_BYTES);
            let (all, chunks) = AllNotes::gather(vec![of_thread]);
            let partition = partition_of(note.hash);
            let notes = all.of_partition(partition, &chunks[partition]);
            assert!(notes.unsorted().eq([note]), "{note:?}");
            assert_eq!((notes.sorted(0), notes.hash(0)), (note, note.hash));
        }
    }
}
