//! The operations of a transaction that are not undone, the last ones in memory and the earlier ones in a file.
//!
//! ```text
//!  file: [ block ][ block ][ block ]      memory: [ undo │ tail ][ undo │ tail ] …
//!                                                                       newest ┘
//! ```
//! A block is what memory had when it was full. The file is never flushed: after a crash the logs have all
//! that it has. A crash leaves the file, and the next start removes it (decision 0052).

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::log::{LoggedOperation, RECORD_HEAD_BYTES};
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, DiskError, DiskFile, DiskResult, OpenMode};
use stillpoint_store::TableId;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

/// Bytes of undos in memory after which they go to the file.
const MEMORY_BYTES: usize = if cfg!(test) { 300 } else { 1 << 20 };
/// Bytes behind each undo in the buffer: its gsn and its table, and the bytes of the undo, of its record and of
/// the operation. Each has at most some more bytes than the longest value.
const TAIL_BYTES: usize = 8 + 2 + 3 * 4;

/// An operation of an open transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) gsn: u64,
    pub(crate) table: TableId,
    /// What the undo needs of the operation's bytes.
    pub(crate) undo: Vec<u8>,
    /// Bytes that the kind writes into the record of the undo, at most.
    pub(crate) undo_bytes: usize,
    /// Number of the operation's bytes.
    pub(crate) bytes: usize,
}

/// The files of the undos that memory has no place for.
#[derive(Debug)]
pub(crate) struct UndoFiles {
    disk: Arc<dyn Disk>,
    next: AtomicU64,
}

impl UndoFiles {
    /// The files of a start, which removes those that a crash has left.
    ///
    /// # Errors
    /// The disk refuses.
    pub(crate) fn begin(disk: &Arc<dyn Disk>) -> DiskResult<Arc<Self>> {
        let dir = Path::new(names::UNDO_DIR);
        if disk.exists(dir)? {
            disk.remove(dir)?;
        }
        Ok(Arc::new(Self { disk: disk.clone(), next: AtomicU64::new(0) }))
    }

    fn make(&self) -> DiskResult<(PathBuf, Arc<dyn DiskFile>)> {
        self.disk.create_dir_all(Path::new(names::UNDO_DIR))?;
        // Relaxed: numbers are unique, and order nothing.
        let name = names::undo_name(self.next.fetch_add(1, Relaxed));
        let path = Path::new(names::UNDO_DIR).join(name);
        let file = self.disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
        Ok((path, file))
    }
}

/// A part of the file, which memory had once.
#[derive(Debug)]
struct Block {
    bytes: usize,
    checksum: u32,
    operations: usize,
    /// The gsn of its last operation.
    last_gsn: u64,
}

impl Block {
    /// Reads the block, which begins at `start`. Leaves nothing in `out` after an error.
    fn read(&self, file: &dyn DiskFile, start: u64, out: &mut Vec<u8>) -> DiskResult<()> {
        out.resize(self.bytes, 0);
        let read = file.read_at(out, start).and_then(|read| {
            let is_whole = read == self.bytes && crc32c::crc32c(out) == self.checksum;
            if mutant!(is_whole, UndoFileTrusted => true) {
                return Ok(());
            }
            let source = Error::new(ErrorKind::InvalidData, "other bytes were written");
            let op = format!("read {} bytes of undos at {start} of", self.bytes);
            Err(DiskError::new(op, file.path(), source))
        });
        read.inspect_err(|_| out.clear())
    }
}

/// The file of one transaction. A drop removes it.
#[derive(Debug)]
struct UndoFile {
    files: Arc<UndoFiles>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    blocks: Vec<Block>,
    /// Bytes of all blocks.
    bytes: u64,
    /// How often the record of an undo in the file has so many bytes.
    undo_bytes: BTreeMap<usize, u64>,
}

impl Drop for UndoFile {
    fn drop(&mut self) {
        // The next start removes what stays.
        let _ = self.files.disk.remove(&self.path);
    }
}

/// The operations of a transaction that are not undone, oldest first.
#[derive(Debug, Default)]
pub(crate) struct DoneList {
    /// Undos, each with its tail behind it.
    buffer: Vec<u8>,
    /// Operations in the buffer.
    in_memory: usize,
    file: Option<Box<UndoFile>>,
    operations: usize,
    /// Bytes of all operations, and of the records of all undos.
    operation_bytes: usize,
    undo_bytes: usize,
}

/// The numbers behind an undo.
struct Tail {
    gsn: u64,
    table: TableId,
    undo_len: usize,
    undo_bytes: usize,
    bytes: usize,
}

impl Tail {
    /// The tail of the last undo in a buffer.
    fn last(buffer: &[u8]) -> Option<Self> {
        let (_, tail) = buffer.split_last_chunk::<TAIL_BYTES>()?;
        let (gsn, rest) = tail.split_first_chunk()?;
        let (table, rest) = rest.split_first_chunk()?;
        let number = |at: usize| Some(u32::from_le_bytes(*rest.get(at * 4..)?.first_chunk()?));
        Some(Self {
            gsn: u64::from_le_bytes(*gsn),
            table: TableId(u16::from_le_bytes(*table)),
            undo_len: number(0)? as usize,
            undo_bytes: number(1)? as usize,
            bytes: number(2)? as usize,
        })
    }

    #[inline]
    fn pack(&self) -> [u8; TAIL_BYTES] {
        let mut tail = [0; TAIL_BYTES];
        tail[..8].copy_from_slice(&self.gsn.to_le_bytes());
        tail[8..10].copy_from_slice(&self.table.0.to_le_bytes());
        let numbers = [self.undo_len, self.undo_bytes, self.bytes];
        for (place, number) in tail[10..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&(number as u32).to_le_bytes());
        }
        tail
    }
}

/// The tails of a buffer, the newest first.
fn tails(mut buffer: &[u8]) -> impl Iterator<Item = Tail> {
    std::iter::from_fn(move || {
        let tail = Tail::last(buffer)?;
        buffer = &buffer[..buffer.len() - TAIL_BYTES - tail.undo_len];
        Some(tail)
    })
}

impl DoneList {
    /// Bytes of the records that would undo all.
    pub(crate) fn undo_record_bytes(&self) -> u64 {
        let each = RECORD_HEAD_BYTES as u64 + LoggedOperation::UNDO_HEAD_BYTES;
        self.operations as u64 * each + self.undo_bytes as u64
    }

    /// Number of operations.
    pub(crate) fn len(&self) -> usize {
        self.operations
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Bytes of the operations.
    pub(crate) fn operation_bytes(&self) -> usize {
        self.operation_bytes
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.shrink_to(MEMORY_BYTES);
        *self = Self { buffer, ..Self::default() };
    }

    /// Removes the file. Nobody needs the operations any more.
    pub(crate) fn end(&mut self) {
        if self.file.is_some() {
            self.clear();
        }
    }

    /// Adds an operation of `bytes` bytes. The record of its undo has `undo_bytes` of the kind.
    pub(crate) fn push(
        &mut self,
        (gsn, table): (u64, TableId),
        undo: &[u8],
        (undo_bytes, bytes): (usize, usize),
    ) {
        self.buffer.extend_from_slice(undo);
        let tail = Tail { gsn, table, undo_len: undo.len(), undo_bytes, bytes };
        self.buffer.extend_from_slice(&tail.pack());
        self.in_memory += 1;
        self.operations += 1;
        self.operation_bytes += bytes;
        self.undo_bytes += undo_bytes;
    }

    /// Whether so much is in memory that it should go to a [file](Self::file_away).
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.len() >= MEMORY_BYTES
    }

    /// Brings what is in memory to a file.
    ///
    /// # Errors
    /// The disk refuses. Nothing has changed.
    pub(crate) fn file_away(&mut self, files: &Arc<UndoFiles>) -> DiskResult<()> {
        let Some(last_gsn) = self.last_gsn().filter(|_| self.in_memory > 0) else { return Ok(()) };
        if self.file.is_none() {
            let (path, file) = files.make()?;
            let (files, blocks, undo_bytes) = (files.clone(), Vec::new(), BTreeMap::new());
            let file = UndoFile { files, path, file, blocks, bytes: 0, undo_bytes };
            self.file = Some(Box::new(file));
        }
        let Self { buffer, in_memory, file, .. } = self;
        let file = file.as_mut().expect("made above");
        file.file.write_at(buffer, file.bytes)?;
        for tail in tails(buffer) {
            *file.undo_bytes.entry(tail.undo_bytes).or_insert(0) += 1;
        }
        let (bytes, operations) = (buffer.len(), std::mem::take(in_memory));
        let checksum = crc32c::crc32c(buffer);
        file.blocks.push(Block { bytes, checksum, operations, last_gsn });
        file.bytes += bytes as u64;
        buffer.clear();
        buffer.shrink_to(2 * MEMORY_BYTES);
        Ok(())
    }

    /// The gsn of the last operation.
    pub(crate) fn last_gsn(&self) -> Option<u64> {
        let in_file = || Some(self.file.as_ref()?.blocks.last()?.last_gsn);
        Tail::last(&self.buffer).map(|tail| tail.gsn).or_else(in_file)
    }

    /// Brings the last block back, if memory has nothing.
    fn back_from_file(&mut self) -> DiskResult<()> {
        let Self { buffer, in_memory, file, .. } = self;
        let Some(file) = file.as_mut().filter(|_| *in_memory == 0) else { return Ok(()) };
        let Some(block) = file.blocks.last() else { return Ok(()) };
        let start = file.bytes - block.bytes as u64;
        block.read(&*file.file, start, buffer)?;
        for tail in tails(buffer) {
            let count = file.undo_bytes.get_mut(&tail.undo_bytes).expect("it was counted");
            *count -= 1;
        }
        *in_memory = block.operations;
        file.bytes = start;
        file.blocks.pop();
        mutant!(UndoFileInOrder => self.reverse());
        Ok(())
    }

    /// Takes the last operation.
    ///
    /// # Errors
    /// The file cannot be read. Nothing has changed.
    pub(crate) fn pop(&mut self) -> DiskResult<Option<Done>> {
        self.back_from_file()?;
        Ok(self.pop_in_memory())
    }

    fn pop_in_memory(&mut self) -> Option<Done> {
        let Tail { gsn, table, undo_len, undo_bytes, bytes } = Tail::last(&self.buffer)?;
        let end = self.buffer.len() - TAIL_BYTES;
        let undo = self.buffer[end - undo_len..end].to_vec();
        self.buffer.truncate(end - undo_len);
        self.in_memory -= 1;
        self.operations -= 1;
        self.operation_bytes -= bytes;
        self.undo_bytes -= undo_bytes;
        Some(Done { gsn, table, undo, undo_bytes, bytes })
    }

    /// Turns the order of the operations in memory round. For planted bugs.
    pub(crate) fn reverse(&mut self) {
        let all: Vec<Done> = std::iter::from_fn(|| self.pop_in_memory()).collect();
        for Done { gsn, table, undo, undo_bytes, bytes } in all {
            self.push((gsn, table), &undo, (undo_bytes, bytes));
        }
    }

    /// The tables of the operations from a number on. A table may be there more than once.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn tables(&self, from: usize) -> DiskResult<Vec<TableId>> {
        let mut found = Vec::new();
        let mut note = |buffer: &[u8], count: usize| {
            for tail in tails(buffer).take(count) {
                if found.last() != Some(&tail.table) {
                    found.push(tail.table);
                }
            }
        };
        let mut left = self.operations.saturating_sub(from);
        note(&self.buffer, left);
        left = left.saturating_sub(self.in_memory);
        let Some(file) = &self.file else { return Ok(found) };
        let (mut end, mut bytes) = (file.bytes, Vec::new());
        for block in file.blocks.iter().rev() {
            if left == 0 {
                break;
            }
            end -= block.bytes as u64;
            block.read(&*file.file, end, &mut bytes)?;
            note(&bytes, left);
            left = left.saturating_sub(block.operations);
        }
        Ok(found)
    }

    /// The bytes that the kind writes into the record of each undo, in no order.
    pub(crate) fn undo_bytes(&self) -> impl Iterator<Item = usize> {
        let in_file = self.file.iter().flat_map(|file| &file.undo_bytes);
        let in_file = in_file.flat_map(|(&bytes, &count)| (0..count).map(move |_| bytes));
        tails(&self.buffer).map(|tail| tail.undo_bytes).chain(in_file)
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_io::{Rng, SeededRng, SimDisk};

    use super::*;

    fn files(disk: &SimDisk) -> Arc<UndoFiles> {
        UndoFiles::begin(&(Arc::new(disk.clone()) as Arc<dyn Disk>)).expect("a sound disk")
    }

    fn count(disk: &SimDisk) -> usize {
        disk.list(Path::new(names::UNDO_DIR)).map_or(0, |names| names.len())
    }

    /// Compares a list with all that should be in it.
    fn check(list: &DoneList, all: &[Done], from: usize) {
        assert_eq!((list.len(), list.is_empty()), (all.len(), all.is_empty()));
        assert_eq!(list.last_gsn(), all.last().map(|done| done.gsn));
        assert_eq!(list.operation_bytes(), all.iter().map(|done| done.bytes).sum::<usize>());
        let mut lens: Vec<usize> = all.iter().map(|done| done.undo_bytes).collect();
        let mut found: Vec<usize> = list.undo_bytes().collect();
        assert_eq!(list.undo_bytes, lens.iter().sum::<usize>());
        lens.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, lens);
        let set = |tables: Vec<TableId>| {
            let mut tables: Vec<u16> = tables.into_iter().map(|table| table.0).collect();
            tables.sort_unstable();
            tables.dedup();
            tables
        };
        let expected = all[from..].iter().map(|done| done.table).collect();
        assert_eq!(set(list.tables(from).expect("a sound disk")), set(expected), "from {from}");
    }

    #[test]
    fn a_list_is_a_stack_whatever_is_in_the_file() {
        let disk = SimDisk::new(1);
        let files = files(&disk);
        for seed in 0..60 {
            let rng = SeededRng::new(seed);
            let (mut list, mut all, mut gsn) = (DoneList::default(), Vec::<Done>::new(), 0);
            let mut most = 0;
            for _ in 0..300 {
                if rng.below(5) < 2 + seed % 2 {
                    gsn += 1 + rng.below(3);
                    let undo = vec![gsn as u8; rng.below(60) as usize];
                    let table = TableId(rng.below(3) as u16);
                    let (undo_bytes, bytes) = (undo.len() / 2, undo.len() + 7);
                    list.push((gsn, table), &undo, (undo_bytes, bytes));
                    all.push(Done { gsn, table, undo, undo_bytes, bytes });
                } else {
                    assert_eq!(list.pop().expect("a sound disk"), all.pop());
                }
                if list.is_full() {
                    list.file_away(&files).expect("a sound disk");
                    assert!(!list.is_full());
                }
                most = most.max(count(&disk));
                check(&list, &all, rng.below(all.len() as u64 + 1) as usize);
            }
            assert!(most < 2);
            list.end();
            assert_eq!(count(&disk), 0);
        }
    }

    #[test]
    fn a_start_removes_what_a_crash_has_left() {
        let disk = SimDisk::new(1);
        let mut list = DoneList::default();
        list.push((1, TableId(1)), b"undo", (4, 4));
        list.file_away(&files(&disk)).expect("a sound disk");
        std::mem::forget(list);
        assert_eq!(count(&disk), 1);
        let next = files(&disk);
        assert!(!disk.exists(Path::new(names::UNDO_DIR)).expect("a sound disk"));
        let mut list = DoneList::default();
        list.push((1, TableId(1)), b"undo", (4, 4));
        list.file_away(&next).expect("the name is free");
    }
}
