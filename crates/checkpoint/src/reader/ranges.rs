//! Reading some partitions of a checkpoint at a time, on the calling thread.

use std::ops::Range;
use std::sync::Arc;

use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_io::{AlignedBuf, Disk};

use super::decode::{BlockLocation, Decoder, Take};
use super::part::{Part, open_chain};
use super::{LoadOptions, LoadSummary, LoadedRecord, check_totals};
use crate::error::LoadError;

/// A checkpoint that is open for reading.
pub(crate) struct OpenCheckpoint<'a> {
    entry: &'a CheckpointEntry,
    parts: Vec<Part>,
    decoder: Decoder,
    buf: AlignedBuf,
    /// The summary of the blocks that were read so far, each counted once.
    total: LoadSummary,
}

/// Takes each record that is read.
pub(crate) type Each<'a> = dyn FnMut(&LoadedRecord<'_>) -> Result<(), LoadError> + 'a;

struct One<'a, 'b>(&'a mut Each<'b>);

impl Take for One<'_, '_> {
    fn take(&mut self, _: BlockLocation, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError> {
        batch.iter().try_for_each(&mut *self.0)
    }
}

impl<'a> OpenCheckpoint<'a> {
    /// Opens the checkpoints of a chain, given newest first.
    pub(crate) fn open_chain(
        disk: &Arc<dyn Disk>,
        newest_first: &[&'a CheckpointEntry],
        options: &LoadOptions,
    ) -> Result<Vec<Self>, LoadError> {
        let opened = open_chain(disk, newest_first, options)?;
        let of = |(&entry, parts)| {
            let (decoder, total) = (Decoder::new(options), LoadSummary::default());
            Self { entry, parts, decoder, buf: AlignedBuf::new(), total }
        };
        Ok(newest_first.iter().zip(opened).map(of).collect())
    }

    pub(crate) fn partitions_log2(&self) -> u8 {
        self.entry.partitions_log2
    }

    /// Plain bytes of the blocks of these partitions.
    pub(crate) fn plain_bytes(&self, partitions: &Range<u32>) -> u64 {
        let blocks = self.parts.iter().flat_map(Part::all_blocks);
        let of_them = blocks.filter(|block| partitions.contains(&block.partition));
        of_them.map(|block| u64::from(block.uncompressed_bytes)).sum()
    }

    /// Reads the records of these partitions; `counts` says that none of these partitions was read
    /// before. `before` is told how many bytes are read next, and may end the reading.
    pub(crate) fn read(
        &mut self,
        partitions: &Range<u32>,
        counts: bool,
        before: &mut dyn FnMut(u64) -> Result<(), LoadError>,
        each: &mut Each<'_>,
    ) -> Result<(), LoadError> {
        for (number, part) in self.parts.iter().enumerate() {
            let part = part.with_partitions(partitions);
            for unit in part.units() {
                before(part.unit_bytes(unit))?;
                let (at, take) = ((number, &part), &mut One(each));
                let read = if part.is_oversize(unit) {
                    self.decoder.stream_unit(at, unit, take)?
                } else {
                    let from = part.read_blocks(part.blocks(unit), &mut self.buf)?;
                    self.decoder.unit(at, unit, &self.buf[from..], take)?
                };
                if counts {
                    self.total.add(&read);
                }
            }
        }
        Ok(())
    }

    /// Compares the numbers of records with the manifest. Call this after all partitions were read.
    pub(crate) fn finish(self, disk: &dyn Disk) -> Result<(), LoadError> {
        check_totals(disk, self.entry, self.total).map(|_| ())
    }
}
