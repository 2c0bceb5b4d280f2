//! Large values: a table of reference-counted chunks.
//!
//! ```text
//! table:  [ references | length and flag | chunk number × n | deadline, if the flag is set ]
//! chunk:  [ references | 64 KiB − 8 bytes of the value ]
//! ```
//! A value is never changed in place. A partial write makes a new table that shares the untouched
//! chunks. So the old table is the before-image of a checkpoint, without a copy. The drop of the
//! last reference to a table drops the table's references to its chunks. References are dropped a
//! grace period after the value was replaced, so that readers without a lock can finish.

use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::MemoryLimit;

use crate::memory::Memory;
use crate::memory::arena::{Arena, CELL_BYTES_MAX, CellCache, Kind, bytes_of_class};
use crate::memory::words;

const TABLE_HEADER_WORDS: usize = 2;
const CHUNK_HEADER_WORDS: usize = 1;
/// Bytes of value per chunk. A whole chunk fills 64 KiB.
pub(crate) const CHUNK_BYTES: usize = (64 << 10) - CHUNK_HEADER_WORDS * 8;
/// The flag of the second word of a table: the table has a deadline.
const HAS_DEADLINE: u64 = 1 << 63;
/// Longest value in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 512 << 20;

/// A large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) table: u64,
    pub(crate) len: usize,
}

const fn chunk_count(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

fn chunk_of(table: &[AtomicU64], index: usize) -> u64 {
    table.get(TABLE_HEADER_WORDS + index).map_or(0, |word| word.load(Relaxed))
}

fn chunk_words(memory: &Memory, number: u64) -> &[AtomicU64] {
    memory.arena.cell(number).get(CHUNK_HEADER_WORDS..).unwrap_or(&[])
}

/// Words of the table of a value of `len` bytes, without a deadline.
pub(crate) const fn table_words(len: usize) -> usize {
    TABLE_HEADER_WORDS + chunk_count(len)
}

const _: () = assert!((table_words(VALUE_BYTES_MAX) + 1) * 8 <= CELL_BYTES_MAX);

/// Bytes of the block of a chunk with so many bytes of value.
fn chunk_bytes(bytes: usize) -> usize {
    CHUNK_HEADER_WORDS * 8 + bytes
}

/// Bytes of memory that a value of `len` bytes takes, if it shares none with another.
pub(crate) fn taken_bytes(len: usize) -> usize {
    let last = match len % CHUNK_BYTES {
        0 => 0,
        rest => bytes_of_class(chunk_bytes(rest)),
    };
    let whole = len / CHUNK_BYTES * bytes_of_class(chunk_bytes(CHUNK_BYTES));
    bytes_of_class(table_words(len) * 8) + whole + last
}

/// The numbers of the chunks in the words of a table, little-endian.
pub(crate) fn chunks_in(table: &[[u8; 8]]) -> impl Iterator<Item = u64> {
    table.iter().skip(TABLE_HEADER_WORDS).map(|word| u64::from_le_bytes(*word))
}

/// Whether a deadline follows the words of a table, little-endian.
pub(crate) fn has_deadline(table: &[[u8; 8]]) -> bool {
    table.get(1).is_some_and(|word| u64::from_le_bytes(*word) & HAS_DEADLINE != 0)
}

/// The deadline of a value, 0 for none. Torn numbers give a wrong one, never a fault.
pub(crate) fn deadline(memory: &Memory, blob: Blob) -> u64 {
    let table = memory.arena.cell(blob.table);
    let word = |at: usize| table.get(at).map_or(0, |word| word.load(Relaxed));
    if word(1) & HAS_DEADLINE == 0 { 0 } else { word(table_words(blob.len)) }
}

/// Index in the region of the first word of a chunk's bytes.
pub(crate) fn first_word_of_chunk(number: u64) -> usize {
    Arena::first_word(number) + CHUNK_HEADER_WORDS
}

/// Whether table and length belong together. A torn read may combine a table with another value's
/// length.
pub(crate) fn is_plausible(memory: &Memory, blob: Blob) -> bool {
    let table = memory.arena.cell(blob.table);
    table.len() >= TABLE_HEADER_WORDS + chunk_count(blob.len)
        && table[1].load(Relaxed) & !HAS_DEADLINE == blob.len as u64
}

/// Appends a range of the value. Torn numbers give wrong bytes, never a fault.
pub(crate) fn read(memory: &Memory, blob: Blob, offset: usize, count: usize, out: &mut Vec<u8>) {
    let table = memory.arena.cell(blob.table);
    let mut at = offset;
    let end = offset + count;
    while at < end {
        let inside = at % CHUNK_BYTES;
        let part = (CHUNK_BYTES - inside).min(end - at);
        let words = chunk_words(memory, chunk_of(table, at / CHUNK_BYTES));
        if words.len() * 8 < inside + part {
            return;
        }
        words::read(words, inside, part, out);
        at += part;
    }
}

/// Fills `out` with the value from `offset` on. The caller keeps the value from changing.
pub(crate) fn read_into(memory: &Memory, blob: Blob, offset: usize, out: &mut [u8]) {
    let table = memory.arena.cell(blob.table);
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let inside = at % CHUNK_BYTES;
        let (part, later) = rest.split_at_mut(rest.len().min(CHUNK_BYTES - inside));
        words::read_into(chunk_words(memory, chunk_of(table, at / CHUNK_BYTES)), inside, part);
        at += part.len();
        rest = later;
    }
}

/// Allocates a large value of `len` bytes with a deadline, 0 for none. The value's chunks are not touched
/// before [`fill`], so until then they need no pages of the system. The caller continues with `fill` or
/// [`discard`].
pub(crate) fn allocate(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    (len, deadline): (usize, u64),
) -> Result<Blob, MemoryLimit> {
    let blob = new_table(memory, cache, owner, (len, deadline))?;
    let table = memory.arena.cell(blob.table);
    for index in 0..chunk_count(len) {
        let chunk_len = CHUNK_BYTES.min(len - index * CHUNK_BYTES);
        match take_chunk(memory, cache, owner, chunk_len) {
            Ok(number) => table[TABLE_HEADER_WORDS + index].store(number, Relaxed),
            Err(full) => {
                discard(memory, cache, blob);
                return Err(full);
            }
        }
    }
    Ok(blob)
}

/// Writes `bytes` into an allocated value that nobody can find yet, from `offset` on: a multiple of
/// [`CHUNK_BYTES`]. The value's chunks have one reference each then.
pub(crate) fn fill(memory: &Memory, blob: Blob, offset: usize, bytes: &[u8]) {
    let table = memory.arena.cell(blob.table);
    for (index, bytes) in (offset / CHUNK_BYTES..).zip(bytes.chunks(CHUNK_BYTES)) {
        let number = chunk_of(table, index);
        memory.arena.cell(number)[0].store(1, Relaxed);
        words::fill(chunk_words(memory, number), bytes);
    }
}

/// Frees an allocated value that was not filled.
pub(crate) fn discard(memory: &Memory, cache: &mut CellCache, blob: Blob) {
    let table = memory.arena.cell(blob.table);
    let chunks = (0..chunk_count(blob.len)).map(|index| chunk_of(table, index));
    for number in chunks.filter(|&number| number != 0) {
        cache.free(&memory.arena, number);
    }
    cache.free(&memory.arena, blob.table);
}

/// A value like `old` with `bytes` written at `offset` (at most its length, so it may grow).
/// Unchanged chunks are shared.
pub(crate) fn patched(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    old: Blob,
    offset: usize,
    bytes: &[u8],
) -> Result<Blob, MemoryLimit> {
    let end = offset + bytes.len();
    let len = old.len.max(end);
    let blob = new_table(memory, cache, owner, (len, deadline(memory, old)))?;
    let old_table = memory.arena.cell(old.table);
    let table = memory.arena.cell(blob.table);
    let mut scratch = Vec::new();
    for index in 0..chunk_count(len) {
        let from = index * CHUNK_BYTES;
        let to = (from + CHUNK_BYTES).min(len);
        let shared = from < old.len && to <= old.len && (to <= offset || from >= end);
        let number = if shared {
            let number = chunk_of(old_table, index);
            // Relaxed: the caller's own reference keeps the chunk alive.
            memory.arena.cell(number)[0].fetch_add(1, Relaxed);
            Ok(number)
        } else {
            scratch.clear();
            let kept = to.min(old.len).saturating_sub(from);
            read(memory, old, from, kept, &mut scratch);
            scratch.resize(to - from, 0);
            let (first, last) = (offset.max(from), end.min(to));
            if first < last {
                let source = &bytes[first - offset..last - offset];
                scratch[first - from..last - from].copy_from_slice(source);
            }
            new_chunk(memory, cache, owner, to - from).inspect(|&number| {
                words::fill(chunk_words(memory, number), &scratch);
            })
        };
        match number {
            Ok(number) => table[TABLE_HEADER_WORDS + index].store(number, Relaxed),
            Err(full) => {
                release(memory, cache, blob);
                return Err(full);
            }
        }
    }
    Ok(blob)
}

/// The same value with another deadline, 0 for none. All chunks are shared.
pub(crate) fn with_deadline(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    (old, deadline): (Blob, u64),
) -> Result<Blob, MemoryLimit> {
    let blob = new_table(memory, cache, owner, (old.len, deadline))?;
    let (from, to) = (memory.arena.cell(old.table), memory.arena.cell(blob.table));
    for index in 0..chunk_count(old.len) {
        let number = chunk_of(from, index);
        // Relaxed: the caller's own reference keeps the chunk alive.
        memory.arena.cell(number)[0].fetch_add(1, Relaxed);
        to[TABLE_HEADER_WORDS + index].store(number, Relaxed);
    }
    Ok(blob)
}

/// Whether a block of a live value is to be moved elsewhere, and may be. A chunk that other values share
/// stays. Without the lock of the value's record, the answer is a hint.
pub(crate) fn is_leaving(memory: &Memory, blob: Blob) -> bool {
    let table = memory.arena.cell(blob.table);
    let mut chunks = (0..chunk_count(blob.len)).map(|index| chunk_of(table, index));
    memory.arena.is_leaving(blob.table)
        || !is_shared(memory, blob) && chunks.any(|number| is_leaving_chunk(memory, number))
}

/// Whether several records have the same table, and so all its chunks.
fn is_shared(memory: &Memory, blob: Blob) -> bool {
    // Relaxed: a count that changes meanwhile makes the choice worse, and nothing wrong.
    memory.arena.cell(blob.table).first().is_some_and(|refs| refs.load(Relaxed) > 1)
}

fn is_leaving_chunk(memory: &Memory, number: u64) -> bool {
    // Relaxed: a count that changes meanwhile makes the choice worse, and nothing wrong.
    let is_alone = || memory.arena.cell(number).first().is_some_and(|refs| refs.load(Relaxed) == 1);
    memory.arena.is_leaving(number) && is_alone()
}

/// The same value in a new table, and the bytes that were copied from blocks that are to be moved
/// elsewhere, `most` of them, about. Chunks that other values share stay.
pub(crate) fn moved(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    (old, most): (Blob, usize),
) -> Result<(Blob, usize), MemoryLimit> {
    let is_shared = is_shared(memory, old);
    let kept = mutant!(deadline(memory, old), DeadlineNotMoved => 0);
    let blob = new_table(memory, cache, owner, (old.len, kept))?;
    let mut copied = 0;
    if memory.arena.is_leaving(old.table) {
        copied += table_words(old.len) * 8;
    }
    let (from, to) = (memory.arena.cell(old.table), memory.arena.cell(blob.table));
    for index in 0..chunk_count(old.len) {
        let number = chunk_of(from, index);
        let chunk = memory.arena.cell(number);
        let number = if !is_shared && copied < most && is_leaving_chunk(memory, number) {
            let bytes = CHUNK_BYTES.min(old.len - index * CHUNK_BYTES);
            match new_chunk(memory, cache, owner, bytes) {
                Ok(new) => {
                    let words = chunk_words(memory, new).iter().zip(chunk_words(memory, number));
                    words.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
                    copied += bytes;
                    new
                }
                Err(full) => {
                    release(memory, cache, blob);
                    return Err(full);
                }
            }
        } else {
            // Relaxed: the caller's own reference keeps the chunk alive.
            chunk[0].fetch_add(1, Relaxed);
            number
        };
        to[TABLE_HEADER_WORDS + index].store(number, Relaxed);
    }
    Ok((blob, copied))
}

fn new_table(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    (len, deadline): (usize, u64),
) -> Result<Blob, MemoryLimit> {
    let words = table_words(len);
    let more = usize::from(deadline != 0);
    let number = cache.allocate(&memory.arena, owner, Kind::Block, (words + more) * 8)?;
    let table = memory.arena.cell(number);
    table[0].store(1, Relaxed);
    let flag = if deadline == 0 { 0 } else { HAS_DEADLINE };
    table[1].store(len as u64 | flag, Relaxed);
    for word in &table[TABLE_HEADER_WORDS..words] {
        word.store(0, Relaxed);
    }
    if deadline != 0 {
        table[words].store(deadline, Relaxed);
    }
    Ok(Blob { table: number, len })
}

fn new_chunk(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    bytes: usize,
) -> Result<u64, MemoryLimit> {
    let number = take_chunk(memory, cache, owner, bytes)?;
    memory.arena.cell(number)[0].store(1, Relaxed);
    Ok(number)
}

/// A chunk whose references are not counted yet.
fn take_chunk(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    bytes: usize,
) -> Result<u64, MemoryLimit> {
    cache.allocate(&memory.arena, owner, Kind::Block, chunk_bytes(bytes))
}

/// Takes another reference to a live value.
pub(crate) fn retain(memory: &Memory, blob: Blob) {
    // Relaxed: the caller's read section or lock keeps the table alive.
    memory.arena.cell(blob.table)[0].fetch_add(1, Relaxed);
}

/// Drops a reference. The last drop frees table and chunks.
pub(crate) fn release(memory: &Memory, cache: &mut CellCache, blob: Blob) {
    let table = memory.arena.cell(blob.table);
    if table[0].fetch_sub(1, AcqRel) != 1 {
        return;
    }
    for index in 0..chunk_count(blob.len) {
        let number = chunk_of(table, index);
        // 0 stands for a chunk that a failed allocation never got.
        if number != 0 && memory.arena.cell(number)[0].fetch_sub(1, AcqRel) == 1 {
            cache.free(&memory.arena, number);
        }
    }
    cache.free(&memory.arena, blob.table);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stillpoint_sync::ReadSections;

    const ALL: usize = usize::MAX;

    fn create(memory: &Memory, cache: &mut CellCache, value: &[u8]) -> Result<Blob, MemoryLimit> {
        let blob = allocate(memory, cache, 1, (value.len(), 0))?;
        fill(memory, blob, 0, value);
        Ok(blob)
    }

    fn bytes_of(memory: &Memory, blob: Blob) -> Vec<u8> {
        let mut out = Vec::new();
        read(memory, blob, 0, blob.len, &mut out);
        let mut slice = vec![0; blob.len];
        read_into(memory, blob, 0, &mut slice);
        assert_eq!(slice, out);
        out
    }

    #[test]
    fn a_patch_shares_chunks_and_both_versions_live() {
        let memory =
            Memory::new(64 << 20, 1, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        let mut model: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let mut blob = create(&memory, &mut cache, &model).expect("memory");
        assert_eq!(bytes_of(&memory, blob), model);
        let mut seed = 9u64;
        for _ in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (seed >> 33) as usize % (model.len() + 1);
            let len = (seed >> 20) as usize % 100_000;
            let patch = vec![seed as u8; len];
            let next = patched(&memory, &mut cache, 1, blob, offset, &patch).expect("memory");
            assert_eq!(bytes_of(&memory, blob), model, "the old version is untouched");
            let end = offset + len;
            if model.len() < end {
                model.resize(end, 0);
            }
            model[offset..end].copy_from_slice(&patch);
            assert_eq!(bytes_of(&memory, next), model);
            release(&memory, &mut cache, blob);
            blob = next;
        }
        assert!(
            memory.arena.held_bytes() < 3 * model.len() + (16 << 20),
            "replaced chunks are used again"
        );
        release(&memory, &mut cache, blob);
    }

    /// A chunk that two values share cannot move, and so is no reason to choose its values.
    #[test]
    fn shared_chunks_do_not_count_as_moved() {
        let memory =
            Memory::new(64 << 20, 1, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        let value = vec![1; 3 * CHUNK_BYTES];
        let blobs: Vec<Blob> =
            (0..100).map(|_| create(&memory, &mut cache, &value).expect("memory")).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = (0..).zip(blobs).partition(|(at, _)| at % 10 == 0);
        freed.into_iter().for_each(|(_, blob)| release(&memory, &mut cache, blob));
        cache.drain(&memory.arena);
        (0..10).for_each(|_| _ = memory.arena.trim());
        memory.arena.choose_leaving().expect("most groups are nearly empty");
        let leaves = |&(_, blob): &(usize, Blob)| {
            let table = memory.arena.cell(blob.table);
            let chunks = (0..3).map(|index| chunk_of(table, index));
            !memory.arena.is_leaving(blob.table) && { chunks }.all(|it| memory.arena.is_leaving(it))
        };
        let (_, blob) = kept.into_iter().find(leaves).expect("a value of which the chunks leave");
        assert!(is_leaving(&memory, blob));
        let patch = patched(&memory, &mut cache, 1, blob, 0, &[2; 10]).expect("memory");
        let (moved_once, copied) = moved(&memory, &mut cache, 1, (blob, ALL)).expect("memory");
        assert_eq!(copied, CHUNK_BYTES, "two chunks are those of the patched value, too");
        release(&memory, &mut cache, blob);
        assert!(!is_leaving(&memory, moved_once) && !is_leaving(&memory, patch));
        assert_eq!(moved(&memory, &mut cache, 1, (moved_once, ALL)).expect("memory").1, 0);
        assert_eq!(bytes_of(&memory, moved_once), value);
    }

    /// A value of many blocks moves in parts.
    #[test]
    fn a_long_value_moves_a_part_at_a_time() {
        let memory =
            Memory::new(64 << 20, 1, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        let value: Vec<u8> = (0..20 * CHUNK_BYTES).map(|at| (at / 7) as u8).collect();
        let beside = vec![1; CHUNK_BYTES];
        // Each block of the value lies among others, which go.
        let blob = allocate(&memory, &mut cache, 1, (0, 0)).expect("memory");
        let (mut blob, mut others) = (blob, Vec::new());
        for part in value.chunks(CHUNK_BYTES) {
            let longer = patched(&memory, &mut cache, 1, blob, blob.len, part).expect("memory");
            release(&memory, &mut cache, std::mem::replace(&mut blob, longer));
            let other = || create(&memory, &mut cache, &beside).expect("memory");
            others.extend(std::iter::repeat_with(other).take(15));
        }
        others.into_iter().for_each(|other| release(&memory, &mut cache, other));
        cache.drain(&memory.arena);
        memory.arena.choose_leaving().expect("most slabs are nearly empty");
        let mut steps = 0;
        while is_leaving(&memory, blob) {
            let most = 2 * CHUNK_BYTES;
            let (now, copied) = moved(&memory, &mut cache, 1, (blob, most)).expect("memory");
            assert!((1..=3 * CHUNK_BYTES).contains(&copied), "{copied} bytes at once");
            release(&memory, &mut cache, std::mem::replace(&mut blob, now));
            assert_eq!(bytes_of(&memory, blob), value);
            steps += 1;
        }
        assert!(steps > 3, "{steps} steps");
    }

    /// Patches keep a deadline, and another deadline keeps the chunks.
    #[test]
    fn a_deadline_goes_with_the_value() {
        let memory =
            Memory::new(64 << 20, 1, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        for len in [1, CHUNK_BYTES, 300_000] {
            let value = vec![7; len];
            let first = create(&memory, &mut cache, &value).expect("memory");
            assert_eq!(deadline(&memory, first), 0);
            let second = with_deadline(&memory, &mut cache, 1, (first, 99)).expect("memory");
            let third = patched(&memory, &mut cache, 1, second, len, &[8; 70_000]).expect("memory");
            assert_eq!((deadline(&memory, second), deadline(&memory, third)), (99, 99));
            let fourth = with_deadline(&memory, &mut cache, 1, (third, 0)).expect("memory");
            assert_eq!(deadline(&memory, fourth), 0);
            release(&memory, &mut cache, first);
            assert_eq!(bytes_of(&memory, second), value, "{len}");
            assert!(is_plausible(&memory, second) && is_plausible(&memory, fourth));
            let longer = [&value[..], &[8; 70_000]].concat();
            for blob in [third, second] {
                release(&memory, &mut cache, blob);
            }
            assert_eq!(bytes_of(&memory, fourth), longer, "{len}");
            release(&memory, &mut cache, fourth);
        }
    }

    #[test]
    fn running_out_of_memory_gives_all_chunks_back() {
        let memory =
            Memory::new(8 << 20, 1, &Arc::default(), ReadSections::new(1)).expect("address space");
        let mut cache = CellCache::default();
        let big = vec![1; 8 << 20];
        assert!(create(&memory, &mut cache, &big).is_err());
        let small = vec![2; 9 << 19];
        let blob = create(&memory, &mut cache, &small).expect("room again");
        let patch = vec![3; 5 << 20];
        assert!(patched(&memory, &mut cache, 1, blob, 10, &patch).is_err());
        assert_eq!(bytes_of(&memory, blob), small);
    }
}
