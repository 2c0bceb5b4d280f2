//! One part file: blocks go into an aligned buffer, the buffer goes to the disk.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::ident::Identity;
use stillpoint_format::manifest::PartEntry;
use stillpoint_format::names::part_name;
use stillpoint_format::part::{
    BlockBuilder, Compressor, FRAGMENT_BYTES, IndexBuilder, KeyRef, PartHeader, fragments,
};
use stillpoint_io::{AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskFile, OpenMode};

use super::Part;
use super::queue::{Item, Large, Queue};
use crate::error::CheckpointError;
use crate::progress::Progress;

/// Which part file a writer thread makes, and how.
pub(super) struct PartTarget {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) header: PartHeader,
    pub(super) zstd_level: i32,
    pub(super) write_bytes: usize,
}

/// A part that is being written.
pub(super) struct PartFile {
    file: Arc<dyn DiskFile>,
    name: String,
    identity: Identity,
    write_bytes: usize,
    /// What was not written yet; begins at `written` in the file.
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
        let mut buf = AlignedBuf::with_capacity(target.write_bytes + FRAGMENT_BYTES);
        buf.extend_from_slice(&target.header.encode());
        Ok(Self {
            file,
            name,
            identity: target.header.identity(),
            write_bytes: target.write_bytes,
            buf,
            written: 0,
            index: IndexBuilder::default(),
            compressor: Compressor::new(target.header.codec, target.zstd_level)?,
            large: BlockBuilder::with_target(0, 1),
            value: Vec::new(),
        })
    }

    pub(super) fn write(&mut self, item: &Item, queue: &Queue) -> Result<(), CheckpointError> {
        match item {
            Item::Block(block) => self.add_block(block, queue.progress()),
            Item::Large(large) => self.add_large(large, queue),
        }
    }

    fn add_block(
        &mut self,
        block: &BlockBuilder,
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        let Self { buf, compressor, .. } = self;
        let offset = self.written + buf.len() as u64;
        let append = |bytes: &[u8]| buf.extend_from_slice(bytes);
        let entry = block.seal_with(compressor, self.identity, offset, append)?;
        self.index.push(entry);
        if self.buf.len() >= self.write_bytes {
            self.write_whole_units(progress)?;
        }
        Ok(())
    }

    /// The blocks of a large value follow each other directly.
    fn add_large(&mut self, large: &Large, queue: &Queue) -> Result<(), CheckpointError> {
        let key = KeyRef { table: large.table, generation: large.generation, key: &large.key };
        let len = large.value.len();
        for (fragment, bytes) in fragments(len as u32) {
            self.value.resize(bytes, 0);
            let offset = fragment.offset as usize;
            large.value.read_range(queue.store(), offset, &mut self.value);
            let mut block = std::mem::replace(&mut self.large, BlockBuilder::with_target(0, 1));
            block.reset(large.partition);
            let pushed = if len <= FRAGMENT_BYTES {
                block.push_value(key, large.tag, &self.value)
            } else {
                block.push_fragment(key, large.tag, fragment, &self.value)
            };
            let added = pushed
                .map_err(CheckpointError::from)
                .and_then(|()| self.add_block(&block, queue.progress()));
            self.large = block;
            added?;
        }
        Ok(())
    }

    /// Writes the part of the buffer that is whole alignment units.
    fn write_whole_units(&mut self, progress: &Progress) -> Result<(), CheckpointError> {
        let whole = self.buf.len() / DIRECT_ALIGN * DIRECT_ALIGN;
        self.file.write_at(&self.buf[..whole], self.written)?;
        Progress::add(&progress.written_bytes, whole as u64);
        let rest = self.buf.len() - whole;
        self.buf.copy_within(whole.., 0);
        self.buf.truncate(rest);
        self.written += whole as u64;
        Ok(())
    }

    /// Writes index and trailer and flushes the file.
    pub(super) fn finish(mut self, progress: &Progress) -> Result<Part, CheckpointError> {
        let totals = self.index.totals();
        let offset = self.written + self.buf.len() as u64;
        let (end, crc) = self.index.finish(self.identity, offset);
        self.buf.extend_from_slice(&end);
        self.file.write_at(&self.buf, self.written)?;
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
