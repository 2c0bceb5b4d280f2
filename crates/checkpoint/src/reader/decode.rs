//! From blocks to records: checks, joins fragments, skips stale generations, makes batches.

use stillpoint_format::hash::{KeyHasher, partition_of};
use stillpoint_format::manifest::TableGeneration;
use stillpoint_format::part::{
    BlockEntry, BlockReader, Content, Entry, Fragment, FragmentJoiner, KeyRef,
};
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_io::AlignedBuf;

use super::part::{Part, Unit};
use super::{LoadOptions, LoadSummary, LoadedRecord, damage};
use crate::error::{Damage, DamageCause, LoadError};

/// Records per batch, at most.
const BATCH_RECORDS: usize = 64;

/// The place of records: the number of the part among those that are read, and the offset of the
/// block in which the records end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockLocation {
    pub(super) part: usize,
    pub(super) offset: u64,
}

/// Takes what is decoded.
pub(super) trait Take {
    /// Takes some records, with their place.
    fn take(&mut self, at: BlockLocation, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError>;

    /// Takes note of damage: a block, or a large value that is not whole. Unless this returns an
    /// error, decoding goes on behind the damage.
    fn damaged(&mut self, damage: Box<Damage>) -> Result<(), LoadError> {
        Err(LoadError::Damaged(damage))
    }
}

/// Decodes units; one per thread.
pub(super) struct Decoder {
    hasher: KeyHasher,
    generations: Option<Vec<TableGeneration>>,
    /// The table generation seen last, and whether it counts.
    last: Option<(TableGeneration, bool)>,
    buf: AlignedBuf,
}

impl Decoder {
    pub(super) fn new(options: &LoadOptions) -> Self {
        Self {
            hasher: KeyHasher::new(options.hash_seed),
            generations: options.generations.clone(),
            last: None,
            buf: AlignedBuf::new(),
        }
    }

    /// Reads and decodes a unit block by block.
    pub(super) fn stream_unit(
        &mut self,
        (number, part): (usize, &Part),
        unit: Unit,
        take: &mut dyn Take,
    ) -> Result<LoadSummary, LoadError> {
        let mut buf = std::mem::take(&mut self.buf);
        let mut decoding = UnitDecoder::new(self, number, part);
        for block in part.blocks(unit) {
            let at = part.read_blocks(std::slice::from_ref(block), &mut buf)?;
            decoding.block(block, &buf[at..], take)?;
        }
        let summary = decoding.finish(unit, take)?;
        self.buf = buf;
        Ok(summary)
    }

    /// Decodes a unit that was read as a whole.
    pub(super) fn unit(
        &mut self,
        (number, part): (usize, &Part),
        unit: Unit,
        bytes: &[u8],
        take: &mut dyn Take,
    ) -> Result<LoadSummary, LoadError> {
        let mut decoding = UnitDecoder::new(self, number, part);
        let mut rest = bytes;
        for (block, is_loaded) in part.blocks_to_load(unit) {
            if is_loaded {
                decoding.summary.records += u64::from(block.values);
                decoding.summary.value_bytes += u64::from(block.value_bytes);
            } else {
                decoding.block(block, rest, take)?;
            }
            rest = &rest[block.bytes as usize..];
        }
        decoding.finish(unit, take)
    }

    #[inline]
    fn counts(&mut self, key: &KeyRef<'_>) -> bool {
        let generation = TableGeneration { table: key.table, generation: key.generation };
        match self.last {
            Some((last, counts)) if last == generation => counts,
            _ => {
                let known = self.generations.as_ref();
                let counts = known.is_none_or(|known| known.contains(&generation));
                self.last = Some((generation, counts));
                counts
            }
        }
    }
}

/// Numbers of one block, to be compared with its entry in the index.
#[derive(Default)]
struct Counts {
    values: u64,
    tombstones: u64,
    value_bytes: u64,
}

/// Decodes one unit. The fragments of a value never leave their unit.
struct UnitDecoder<'a> {
    decoder: &'a mut Decoder,
    number: usize,
    part: &'a Part,
    reader: BlockReader,
    joiner: FragmentJoiner,
    /// Whether the last block was damaged. Fragments that continue a value of that block belong to
    /// the damage.
    is_lost: bool,
    summary: LoadSummary,
}

impl<'a> UnitDecoder<'a> {
    fn new(decoder: &'a mut Decoder, number: usize, part: &'a Part) -> Self {
        Self {
            decoder,
            number,
            part,
            reader: BlockReader::new(part.identity()),
            joiner: FragmentJoiner::default(),
            is_lost: false,
            summary: LoadSummary::default(),
        }
    }

    fn finish(self, unit: Unit, take: &mut dyn Take) -> Result<LoadSummary, LoadError> {
        let start = self.part.blocks(unit).first().map_or(0, |block| block.offset);
        if let Err(cause) = self.joiner.finish() {
            take.damaged(inconsistent(self.part, start, cause))?;
        }
        Ok(self.summary)
    }

    fn block(
        &mut self,
        entry: &BlockEntry,
        bytes: &[u8],
        take: &mut dyn Take,
    ) -> Result<(), LoadError> {
        match self.sound_block(entry, bytes, take) {
            Err(LoadError::Damaged(damage)) => {
                self.joiner = FragmentJoiner::default();
                self.is_lost = true;
                take.damaged(damage)
            }
            result => result,
        }
    }

    /// Takes the records of a block, up to its first damage.
    fn sound_block(
        &mut self,
        entry: &BlockEntry,
        bytes: &[u8],
        take: &mut dyn Take,
    ) -> Result<(), LoadError> {
        let Self { decoder, number, part, reader, joiner, is_lost, summary } = self;
        let (at, part): (_, &Part) = (BlockLocation { part: *number, offset: entry.offset }, part);
        let block = reader
            .open_indexed(entry, bytes)
            .map_err(|error| damage(part.path(), entry.offset, error.into()))?;
        let mut counts = Counts::default();
        let mut batch = Vec::with_capacity(BATCH_RECORDS);
        for item in block.entries() {
            let item = item.map_err(|error| damage(part.path(), entry.offset, error.into()))?;
            let hash = decoder.hasher.hash(item.key.table, item.key.key);
            if partition_of(hash, part.partitions_log2()) != entry.partition {
                let cause = DecodeCause::Inconsistent("a key in the block of another partition");
                return Err(inconsistent(part, entry.offset, cause).into());
            }
            let begins = counts.count(&item);
            *is_lost &= !begins;
            if *is_lost {
                continue;
            }
            let joined =
                joiner.push(&item).map_err(|cause| inconsistent(part, entry.offset, cause))?;
            if !decoder.counts(&item.key) {
                summary.stale_records += u64::from(begins);
                continue;
            }
            summary.records += u64::from(begins);
            match (item.content, joined) {
                (Content::Value(value), _) => batch.push(record(&item, hash, Some(value))),
                (Content::Tombstone, _) => batch.push(record(&item, hash, None)),
                (Content::Fragment(..), Some(whole)) => {
                    take.take(at, &[record(&item, hash, Some(whole.value))])?;
                }
                (Content::Fragment(..), None) => {}
            }
            if batch.len() == BATCH_RECORDS {
                take.take(at, &batch)?;
                batch.clear();
            }
        }
        if !batch.is_empty() {
            take.take(at, &batch)?;
        }
        summary.value_bytes += counts.value_bytes;
        counts.check(part, entry)
    }
}

fn record<'a>(item: &Entry<'a>, hash: u64, value: Option<&'a [u8]>) -> LoadedRecord<'a> {
    LoadedRecord {
        table: item.key.table,
        generation: item.key.generation,
        hash,
        key: item.key.key,
        label: item.label,
        value,
        gsn: item.gsn,
    }
}

impl Counts {
    /// Counts an entry. True if a record begins with the entry.
    #[inline]
    fn count(&mut self, item: &Entry<'_>) -> bool {
        match item.content {
            Content::Value(value) => {
                self.values += 1;
                self.value_bytes += value.len() as u64;
                true
            }
            Content::Tombstone => {
                self.tombstones += 1;
                true
            }
            Content::Fragment(Fragment { offset, .. }, bytes) => {
                self.values += u64::from(offset == 0);
                self.value_bytes += bytes.len() as u64;
                offset == 0
            }
        }
    }

    fn check(&self, part: &Part, entry: &BlockEntry) -> Result<(), LoadError> {
        let numbers = [
            ("number of values in a block", self.values, entry.values),
            ("number of deletions in a block", self.tombstones, entry.tombstones),
            ("bytes of values in a block", self.value_bytes, entry.value_bytes),
        ];
        for (what, found, expected) in numbers {
            let expected = u64::from(expected);
            if found != expected {
                let cause = DamageCause::Differs { what, found, expected };
                return Err(damage(part.path(), entry.offset, cause).into());
            }
        }
        Ok(())
    }
}

pub(super) fn inconsistent(part: &Part, offset: u64, cause: DecodeCause) -> Box<Damage> {
    let error = DecodeError { what: "checkpoint block", offset, cause };
    damage(part.path(), offset, error.into())
}
