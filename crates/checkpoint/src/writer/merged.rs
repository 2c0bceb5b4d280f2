//! The part file of a merge or of a start's undo: records that come one by one, on the calling thread.

use std::collections::BTreeMap;

use stillpoint_format::EncodeError;
use stillpoint_format::hash::partition_of;
use stillpoint_format::manifest::{PartEntry, TableRecords};
use stillpoint_format::part::{BlockBuilder, FRAGMENT_BYTES, KeyRef};

use super::lane::COPIED_BYTES_MAX;
use super::part::{PartFile, PartTarget, push_record};
use crate::error::CheckpointError;
use crate::progress::Progress;
use crate::reader::LoadedRecord;

/// A part that a merge writes, begun when the first record comes. Without a record it is begun at the
/// end.
pub(crate) struct MergedPart<'a> {
    target: &'a PartTarget,
    progress: &'a Progress,
    file: Option<PartFile>,
    /// The open block of each partition.
    open: BTreeMap<u32, BlockBuilder>,
    /// Blocks to use again.
    free: Vec<BlockBuilder>,
    block_bytes: usize,
    records: BTreeMap<u16, u64>,
}

/// The records that a merge has written.
pub(crate) struct MergedRecords {
    /// The file and the bytes of its values.
    pub(crate) part: (PartEntry, u64),
    pub(crate) table_records: Vec<TableRecords>,
}

impl<'a> MergedPart<'a> {
    pub(crate) fn new(target: &'a PartTarget, block_bytes: usize, progress: &'a Progress) -> Self {
        Self {
            target,
            progress,
            file: None,
            open: BTreeMap::new(),
            free: Vec::new(),
            block_bytes,
            records: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, record: &LoadedRecord<'_>) -> Result<(), CheckpointError> {
        let partition = partition_of(record.hash, self.target.header.partitions_log2);
        let key = KeyRef { table: record.table, generation: record.generation, key: record.key };
        *self.records.entry(record.table).or_default() += 1;
        if let Some(value) = record.value
            && value.len() > COPIED_BYTES_MAX.min(FRAGMENT_BYTES)
        {
            let (file, progress) = (Self::file(&mut self.file, self.target)?, self.progress);
            let label_and_gsn = (record.label, record.gsn);
            return file.add_large_value(partition, key, label_and_gsn, value, progress);
        }
        loop {
            let (free, target) = (&mut self.free, self.block_bytes);
            let block = self.open.entry(partition).or_insert_with(|| match free.pop() {
                Some(mut block) => {
                    block.reset(partition);
                    block
                }
                None => BlockBuilder::with_target(partition, target),
            });
            let pushed = match record.value {
                Some(value) => push_record(block, key, (record.label, record.gsn), value),
                None => block.push_stamped_tombstone(key, record.gsn),
            };
            match pushed {
                Ok(()) => return Ok(()),
                Err(EncodeError::BlockFull) => self.end_block(partition)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes all open blocks. The next records belong to other partitions.
    pub(crate) fn end_partitions(&mut self) -> Result<(), CheckpointError> {
        while let Some((&partition, _)) = self.open.first_key_value() {
            self.end_block(partition)?;
        }
        Ok(())
    }

    fn end_block(&mut self, partition: u32) -> Result<(), CheckpointError> {
        if let Some(mut block) = self.open.remove(&partition) {
            Self::file(&mut self.file, self.target)?.add_block(&mut block, self.progress)?;
            self.free.push(block);
        }
        Ok(())
    }

    fn file<'f>(
        file: &'f mut Option<PartFile>,
        target: &PartTarget,
    ) -> Result<&'f mut PartFile, CheckpointError> {
        match file {
            Some(file) => Ok(file),
            none => Ok(none.insert(PartFile::create(target)?)),
        }
    }

    /// Writes the remaining blocks, and flushes the file. The file is there though it may have no
    /// record, so that the directory says which checkpoint it is.
    pub(crate) fn finish(mut self) -> Result<MergedRecords, CheckpointError> {
        self.end_partitions()?;
        Self::file(&mut self.file, self.target)?;
        let file = self.file.take().expect("it was made");
        let part = file.finish(self.progress)?;
        let of_table = |(table, records)| TableRecords { table, records };
        let table_records = std::mem::take(&mut self.records).into_iter().map(of_table).collect();
        Ok(MergedRecords { part, table_records })
    }
}
