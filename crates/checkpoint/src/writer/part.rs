//! One part file. Plain blocks are written to the disk from the memory in which they were filled.
//! Compressed blocks, and blocks of large values, go through a buffer.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::hash::KeyHasher;
use stillpoint_format::ident::Identity;
use stillpoint_format::manifest::PartEntry;
use stillpoint_format::names::part_name;
use stillpoint_format::part::{
    BlockBuilder, Codec, Compressor, FRAGMENT_BYTES, IndexBuilder, KeyRef, PartHeader, fragments,
};
use stillpoint_format::{EncodeError, Label};
use stillpoint_io::{AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskFile, OpenMode};

use super::Part;
use super::queue::{Item, Large, Queue};
use super::room::Room;
use crate::error::CheckpointError;
use crate::progress::Progress;

/// The path and the settings of a part file.
pub(crate) struct PartTarget {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) header: PartHeader,
    pub(super) zstd_level: i32,
    pub(super) write_bytes: usize,
    pub(super) room: Arc<Room>,
}

/// A part that is being written.
pub(super) struct PartFile {
    room: Arc<Room>,
    file: Arc<dyn DiskFile>,
    name: String,
    identity: Identity,
    write_bytes: usize,
    /// Bytes that were not written yet. The bytes begin at `written` in the file. Whole alignment
    /// units unless blocks are compressed.
    buf: AlignedBuf,
    written: u64,
    index: IndexBuilder,
    compressor: Compressor,
    /// Blocks of large values, one entry each.
    large: BlockBuilder,
    value: Vec<u8>,
}

impl PartFile {
    pub(super) fn create(target: &PartTarget) -> Result<Self, CheckpointError> {
        let name = part_name(target.header.part);
        let path = target.dir.join(&name);
        let file = target.disk.open(&path, OpenMode::CreateNew, Caching::Direct)?;
        let mut buf = AlignedBuf::new();
        buf.extend_from_slice(&target.header.encode());
        Ok(Self {
            room: target.room.clone(),
            file,
            name,
            identity: target.header.identity(),
            write_bytes: target.write_bytes,
            buf,
            written: 0,
            index: IndexBuilder::with_keys(
                KeyHasher::new(target.header.hash_seed),
                target.header.partitions_log2,
            ),
            compressor: Compressor::new(target.header.codec, target.zstd_level)?,
            large: BlockBuilder::with_target(0, 1),
            value: Vec::new(),
        })
    }

    pub(super) fn write(
        &mut self,
        items: &mut [Item],
        queue: &Queue,
    ) -> Result<(), CheckpointError> {
        for item in &mut *items {
            match item {
                Item::Large(large) => self.add_large(large, queue)?,
                Item::Block(_) if self.is_plain() => {}
                Item::Block(block) => self.add_block(block, queue.progress())?,
            }
        }
        if self.is_plain() {
            self.write_in_place(items, queue.progress())?;
        }
        Ok(())
    }

    fn is_plain(&self) -> bool {
        self.compressor.codec() == Codec::None
    }

    /// Writes blocks from their memory, without another copy.
    fn write_in_place(
        &mut self,
        items: &mut [Item],
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        if !items.iter().any(|item| matches!(item, Item::Block(_))) {
            return Ok(());
        }
        self.write_whole_units(progress)?;
        let start = self.written;
        let mut slices = Vec::with_capacity(items.len());
        let mut end = start;
        for item in items {
            if let Item::Block(block) = item {
                self.index.note_keys(block);
                let (sealed, entry) = block.seal_in_place(self.identity, end);
                self.index.push(entry);
                end += sealed.len() as u64;
                slices.push(IoSlice::new(sealed));
            }
        }
        let _claim = self.room.claim(&*self.file, (end - start) as usize)?;
        self.file.write_vectored_at(&slices, start)?;
        Progress::add(&progress.written_bytes, end - start);
        self.written = end;
        Ok(())
    }

    /// Puts a block into the buffer.
    pub(super) fn add_block(
        &mut self,
        block: &mut BlockBuilder,
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        let Self { buf, compressor, .. } = self;
        let offset = self.written + buf.len() as u64;
        self.index.note_keys(block);
        let entry = if compressor.codec() == Codec::None {
            let (sealed, entry) = block.seal_in_place(self.identity, offset);
            buf.extend_from_slice(sealed);
            entry
        } else {
            let append = |bytes: &[u8]| buf.extend_from_slice(bytes);
            block.seal_with(compressor, self.identity, offset, append)?
        };
        self.index.push(entry);
        if self.buf.len() >= self.write_bytes {
            self.write_whole_units(progress)?;
        }
        Ok(())
    }

    /// The blocks of a large value follow each other directly.
    fn add_large(&mut self, large: &Large, queue: &Queue) -> Result<(), CheckpointError> {
        let key = KeyRef { table: large.table, generation: large.generation, key: &large.key };
        let of = (large.partition, key, (large.label, large.gsn));
        let read = |offset, bytes: &mut [u8]| large.value.read(queue.store(), offset, bytes);
        self.add_fragments(of, large.value.len(), read, queue.progress())
    }

    /// As [`add_large`](Self::add_large), for a large value that is in memory as a whole.
    pub(super) fn add_large_value(
        &mut self,
        partition: u32,
        key: KeyRef<'_>,
        label_and_gsn: (Label, u64),
        value: &[u8],
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        let read = |offset: usize, bytes: &mut [u8]| {
            bytes.copy_from_slice(&value[offset..offset + bytes.len()]);
        };
        self.add_fragments((partition, key, label_and_gsn), value.len(), read, progress)
    }

    /// Adds a value of `len` bytes in fragments. `read` fills a buffer with the bytes from an
    /// offset on.
    fn add_fragments(
        &mut self,
        (partition, key, (label, gsn)): (u32, KeyRef<'_>, (Label, u64)),
        len: usize,
        read: impl Fn(usize, &mut [u8]),
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        for (fragment, bytes) in fragments(len as u32) {
            self.value.resize(bytes, 0);
            read(fragment.offset as usize, &mut self.value);
            let mut block = std::mem::replace(&mut self.large, BlockBuilder::with_target(0, 1));
            block.reset(partition);
            let pushed = if len > FRAGMENT_BYTES {
                block.push_fragment(key, (label, gsn), fragment, &self.value)
            } else {
                push_record(&mut block, key, (label, gsn), &self.value)
            };
            let added = pushed
                .map_err(CheckpointError::from)
                .and_then(|()| self.add_block(&mut block, progress));
            self.large = block;
            added?;
        }
        Ok(())
    }

    /// Writes the part of the buffer that is whole alignment units.
    fn write_whole_units(&mut self, progress: &Progress) -> Result<(), CheckpointError> {
        let whole = self.buf.len() / DIRECT_ALIGN * DIRECT_ALIGN;
        if whole == 0 {
            return Ok(());
        }
        self.write_claimed(whole)?;
        Progress::add(&progress.written_bytes, whole as u64);
        let rest = self.buf.len() - whole;
        self.buf.copy_within(whole.., 0);
        self.buf.truncate(rest);
        self.written += whole as u64;
        Ok(())
    }

    /// Writes the first `bytes` bytes of the buffer to its position in the file.
    fn write_claimed(&self, bytes: usize) -> Result<(), CheckpointError> {
        let _claim = self.room.claim(&*self.file, bytes)?;
        Ok(self.file.write_at(&self.buf[..bytes], self.written)?)
    }

    /// Writes index and trailer and flushes the file.
    pub(super) fn finish(mut self, progress: &Progress) -> Result<Part, CheckpointError> {
        let totals = self.index.totals();
        let offset = self.written + self.buf.len() as u64;
        let (end, crc) = std::mem::take(&mut self.index).finish(self.identity, offset);
        self.buf.extend_from_slice(&end);
        self.write_claimed(self.buf.len())?;
        Progress::add(&progress.written_bytes, self.buf.len() as u64);
        self.file.sync()?;
        let entry = PartEntry {
            file: self.name,
            bytes: self.written + self.buf.len() as u64,
            records: totals.values + totals.tombstones,
            crc,
        };
        Ok((entry, totals.value_bytes))
    }
}

/// Appends a value with its label and the gsn of its last writer, 0 for none.
pub(super) fn push_record(
    block: &mut BlockBuilder,
    key: KeyRef<'_>,
    (label, gsn): (Label, u64),
    bytes: &[u8],
) -> Result<(), EncodeError> {
    let of = (key.table, key.generation);
    let (to, value) = block.reserve_record(of, key.key.len(), (label, gsn), bytes.len())?;
    to.copy_from_slice(key.key);
    value.copy_from_slice(bytes);
    Ok(())
}
