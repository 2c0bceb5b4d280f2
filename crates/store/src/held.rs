//! A capture of records that another process holds: a forked child, whose memory is that of the point of
//! consistency. The child does nothing. This process reads the child's slabs at the addresses of its own
//! slabs, a stride of cells at a time. It finds its way by the child's table of slabs.
//!
//! ```text
//! parent   commits go on in these slabs │ 0 │ 1 │ 2 │ …
//! child    the same slabs as they were  │ 0 │ 1 │ 2 │ …  ──▶ stride of cells ──▶ lane
//!                                             └ key or value in blocks ──▶ read one by one
//! ```
//! Nothing here takes a reference to memory of this process, except for the addresses. So a record that
//! is overwritten or deleted meanwhile, and a slab that is freed, change nothing.

use std::sync::OnceLock;

use stillpoint_format::Label;
use stillpoint_io::{ForkError, ForkedMemory};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;

use crate::checkpointer::Capture;
use crate::memory::arena::{Arena, Slab};
use crate::memory::blob::{self, Blob};
use crate::memory::cell::Cell;
use crate::memory::stamp::ABSENT;
use crate::memory::value::ValueRef;
use crate::planted;
use crate::sink::RecordImage;
use crate::store::Store;

/// Bytes of cells that are read at a time.
const STRIDE_BYTES: usize = 256 << 10;
/// Cells whose records go to the lane in one call.
const CELLS_PER_LANE: usize = 64;

/// Memory of this process as it was at some moment.
pub trait HeldMemory: Send + Sync {
    /// Fills `bytes` with what `words` were at that moment, little-endian. `bytes` is as long as `words`.
    ///
    /// # Errors
    /// The memory is gone, or cannot be read.
    fn read(&self, words: &[AtomicU64], bytes: &mut [u8]) -> Result<(), ForkError>;

    /// Bytes of memory that only hold that moment.
    fn private_bytes(&self) -> u64;
}

impl HeldMemory for ForkedMemory {
    fn read(&self, words: &[AtomicU64], bytes: &mut [u8]) -> Result<(), ForkError> {
        const { assert!(cfg!(target_endian = "little"), "memory has the order of words") };
        ForkedMemory::read(self, words, bytes)
    }

    fn private_bytes(&self) -> u64 {
        self.copied_bytes()
    }
}

/// The records of a store at the moment that a [`HeldMemory`] holds. No commit was under way then.
pub struct HeldRecords {
    held: Box<dyn HeldMemory>,
    /// The table of slabs, once it was read.
    slabs: OnceLock<Vec<u64>>,
}

impl std::fmt::Debug for HeldRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldRecords").finish_non_exhaustive()
    }
}

/// The buffers of one stride.
#[derive(Default)]
struct Buffers {
    bytes: Vec<u8>,
    /// The words of the stride's cells.
    words: Vec<AtomicU64>,
    key: Vec<u8>,
    /// A large value, or the table of its blocks.
    value: Vec<u8>,
}

/// The bytes of the present copy of a large value, which the store counts.
struct Copied<'s>(&'s Store, usize);

impl Copied<'_> {
    fn set(&mut self, bytes: usize) {
        self.0.note_copied(std::mem::replace(&mut self.1, bytes), bytes);
    }
}

impl Drop for Copied<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl HeldRecords {
    /// The records that this memory holds.
    pub fn new(held: Box<dyn HeldMemory>) -> Self {
        Self { held, slabs: OnceLock::new() }
    }

    /// Bytes of memory that only hold the moment.
    pub fn private_bytes(&self) -> u64 {
        self.held.private_bytes()
    }

    /// Emits each record with a value that a group of slabs had at the moment. `store` is the store of the
    /// memory.
    ///
    /// # Errors
    /// The memory cannot be read. Some records may have been emitted.
    pub fn capture(
        &self,
        store: &Store,
        group: usize,
        to: &mut dyn Capture,
    ) -> Result<(), ForkError> {
        let mut buffers = Buffers::default();
        Arena::slabs_of(group).try_for_each(|slab| self.capture_slab(store, slab, to, &mut buffers))
    }

    /// As [`capture`](Self::capture), for one slab.
    fn capture_slab(
        &self,
        store: &Store,
        slab: usize,
        to: &mut dyn Capture,
        buffers: &mut Buffers,
    ) -> Result<(), ForkError> {
        let arena = &store.memory().arena;
        let Some(found) = self.slab(arena, slab)? else { return Ok(()) };
        // A table that was emptied since is not in the checkpoint.
        let owner = found.is_of_records().then(|| store.catalog().owner(found.owner));
        let Some(table) = owner.flatten() else { return Ok(()) };
        let mut copied = Copied(store, 0);
        let cell_words = found.cell_words();
        let per_stride = (STRIDE_BYTES / 8 / cell_words).max(1);
        for first in (0..found.cells()).step_by(per_stride) {
            if to.is_abandoned() {
                return Ok(());
            }
            let cells = per_stride.min(found.cells() - first);
            let place = arena.span(found.first_word(first), cells * cell_words);
            self.read_words(store, place, buffers)?;
            let words = std::mem::take(&mut buffers.words);
            let mut left = words[..cells * cell_words].chunks(cell_words);
            while left.len() > 0 {
                let mut emitted = Ok(());
                to.with_lane(&mut |lane| {
                    for words in left.by_ref().take(CELLS_PER_LANE) {
                        let cell = Cell::of_words(words, store.memory());
                        if !cell.is_record() || cell.stamp_word() & ABSENT != 0 {
                            continue;
                        }
                        emitted = self.read_key(arena, cell, buffers);
                        let Some(value) = cell.value().filter(|_| emitted.is_ok()) else { break };
                        let mut is_large = false;
                        let value = match value.large_in() {
                            None => value,
                            Some((_, blob)) => {
                                is_large = true;
                                // The buffer keeps the room of the largest one.
                                copied.set(blob.len.max(copied.1));
                                // The table of the parent may be that of another value by now.
                                let deadline = self.read_large(arena, blob, buffers);
                                let label = Label {
                                    tag: value.tag(),
                                    deadline: *deadline.as_ref().unwrap_or(&0),
                                };
                                emitted = deadline.map(drop);
                                ValueRef::from_bytes(label, &buffers.value)
                            }
                        };
                        if emitted.is_ok() {
                            let hash = store.hash(table.id, &buffers.key);
                            let (id, generation) = (table.id.0, table.generation);
                            lane.emit(&RecordImage::new(id, generation, hash, &buffers.key, value));
                        }
                        // The lane has copied the value. Its sink is asked for room before the next.
                        if is_large || emitted.is_err() {
                            break;
                        }
                    }
                });
                emitted?;
                to.pause();
            }
            buffers.words = words;
        }
        Ok(())
    }

    /// What the child's table says of a slab. `None` if it was free or empty.
    fn slab(&self, arena: &Arena, slab: usize) -> Result<Option<Slab>, ForkError> {
        let slabs = match self.slabs.get() {
            Some(slabs) => slabs,
            None => {
                let mut bytes = vec![0; size_of_val(arena.descriptions())];
                self.held.read(arena.descriptions(), &mut bytes)?;
                let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
                self.slabs.get_or_init(|| words.collect())
            }
        };
        Ok(slabs.get(slab).and_then(|&description| Slab::described(slab, description)))
    }

    /// Reads words into the words of the buffers.
    fn read_words(
        &self,
        store: &Store,
        place: &[AtomicU64],
        buffers: &mut Buffers,
    ) -> Result<(), ForkError> {
        let Buffers { bytes, words, .. } = buffers;
        bytes.resize(size_of_val(place), 0);
        self.held.read(place, bytes)?;
        if words.len() < place.len() {
            words.resize_with(place.len(), AtomicU64::default);
        }
        mutant!(in store.driver(); ParentRead => {
            let pairs = words.iter().zip(place);
            pairs.for_each(|(word, now)| word.store(now.load(Relaxed), Relaxed));
            return Ok(());
        });
        for (word, bytes) in words.iter().zip(bytes.as_chunks().0) {
            // Relaxed: the words are this thread's own.
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        Ok(())
    }

    /// Reads the key of a cell into the buffer of keys.
    fn read_key(
        &self,
        arena: &Arena,
        cell: Cell<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), ForkError> {
        match cell.long_key() {
            None => cell.read_key(&mut buffers.key),
            Some((len, block)) => {
                let words = arena.span(Arena::first_word(block), len.div_ceil(8));
                buffers.key.resize(size_of_val(words), 0);
                self.held.read(words, &mut buffers.key)?;
                buffers.key.truncate(len);
            }
        }
        Ok(())
    }

    /// Reads a large value into the buffer of values, by the child's table of its blocks. Gives its
    /// deadline, 0 for none.
    fn read_large(
        &self,
        arena: &Arena,
        blob: Blob,
        buffers: &mut Buffers,
    ) -> Result<u64, ForkError> {
        let Buffers { bytes, value, .. } = buffers;
        let (first, words) = (Arena::first_word(blob.table), blob::table_words(blob.len));
        let table = arena.span(first, words);
        bytes.resize(size_of_val(table), 0);
        self.held.read(table, bytes)?;
        let has_deadline = blob::has_deadline(bytes.as_chunks().0);
        value.resize(blob.len.next_multiple_of(8), 0);
        let chunks = value.chunks_mut(blob::CHUNK_BYTES);
        for (number, chunk) in blob::chunks_in(bytes.as_chunks().0).zip(chunks) {
            let words = arena.span(blob::first_word_of_chunk(number), chunk.len() / 8);
            self.held.read(words, chunk)?;
        }
        value.truncate(blob.len);
        let mut deadline = [0; 8];
        if has_deadline {
            self.held.read(arena.span(first + words, 1), &mut deadline)?;
        }
        Ok(u64::from_le_bytes(deadline))
    }
}
