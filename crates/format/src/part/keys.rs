//! The key map of a part: which block has a key, by the key's hash.
//!
//! Blocks fill in the order in which records are taken, so the keys of a block have no order. Each block
//! of a partition may have any key of it. A filter for each block would be asked as often
//! as a partition has blocks. The map has an entry for each key instead: a tag of 16 bits of the hash,
//! and the number of the block. Entries lie in buckets by the bits of the hash before these. In a small
//! partition a tag has all 32 bits behind those of the partition.
//!
//! ```text
//! hash = partition bits · bucket bits · 16 bits of the entry · the rest
//! ```
//! The map lies in the footer, behind the entries of blocks, where readers of before ignore it.

use std::ops::Range;

use super::block::BlockBuilder;
use super::entry::Content;
use super::index::{BlockEntry, PartIndex};
use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::hash::KeyHasher;

/// First four bytes of a key map: "SPCK".
const MAGIC: u32 = u32::from_le_bytes(*b"SPCK");
/// The map begins at a multiple of this many bytes in the footer, and so does each partition in it.
const ALIGN: usize = 8;
const HEAD_BYTES: usize = 16;
const PARTITION_HEAD_BYTES: usize = 16;
/// Keys of a bucket, on average, at most, unless a partition has more than 2^20 keys.
const BUCKET_KEYS: usize = 16;
const BUCKETS_LOG2_MAX: u32 = 16;
/// With fewer buckets than 2 to this power, a tag has 32 bits instead of 16. Else keys of small
/// partitions would have too few bits that tell them apart.
const SHORT_TAGS_LOG2: u32 = 8;

const WHAT: &str = "key map of a checkpoint part";

/// Collects the hashes of the keys of blocks.
#[derive(Clone, Debug)]
pub(super) struct KeysBuilder {
    hasher: KeyHasher,
    partitions_log2: u8,
    /// The 32 bits of each hash behind the partition's bits, block by block.
    prefixes: Vec<u32>,
    /// Where the keys of the block before end.
    end: usize,
}

impl KeysBuilder {
    pub(super) fn new(hasher: KeyHasher, partitions_log2: u8) -> Self {
        Self { hasher, partitions_log2, prefixes: Vec::new(), end: 0 }
    }

    /// Takes the keys that begin in a block, which is the next to be added to the index.
    pub(super) fn take(&mut self, block: &BlockBuilder) {
        self.prefixes.truncate(self.end);
        // The builder has made these entries itself, so each of them decodes.
        for entry in block.entries().flatten() {
            let goes_on = matches!(entry.content, Content::Fragment(of, _) if of.offset > 0);
            if !goes_on {
                let hash = self.hasher.hash(entry.key.table, entry.key.key);
                self.prefixes.push(prefix_of(hash, self.partitions_log2));
            }
        }
    }

    /// The keys taken since the last call.
    pub(super) fn end_block(&mut self) -> Range<usize> {
        let begin = std::mem::replace(&mut self.end, self.prefixes.len());
        begin..self.end
    }

    /// Appends the map to a footer of these blocks, which are in the order of the index, each with
    /// its keys.
    pub(super) fn append(&self, blocks: &[(BlockEntry, Range<usize>)], out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        let begin = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        let mut keys: Vec<(u32, u32)> = Vec::new();
        for same in blocks.chunk_by(|one, next| one.0.partition == next.0.partition) {
            keys.clear();
            for (number, (_, range)) in (0u32..).zip(same) {
                keys.extend(self.prefixes[range.clone()].iter().map(|&prefix| (prefix, number)));
            }
            keys.sort_unstable();
            append_partition(same[0].0.partition, same.len(), &keys, out);
        }
        let bytes = (out.len() - begin) as u64;
        put(out, begin, &MAGIC.to_le_bytes());
        put(out, begin + 8, &bytes.to_le_bytes());
    }
}

/// Appends the map of a partition with so many blocks. `keys` are sorted: hash and block of each.
fn append_partition(partition: u32, blocks: usize, keys: &[(u32, u32)], out: &mut Vec<u8>) {
    let wanted = keys.len().div_ceil(BUCKET_KEYS).next_power_of_two();
    let buckets_log2 = wanted.trailing_zeros().min(BUCKETS_LOG2_MAX);
    let (tag_bytes, number_bytes) = (tag_bytes(buckets_log2), number_bytes(blocks));
    let mut head = [0; PARTITION_HEAD_BYTES];
    put(&mut head, 0, &partition.to_le_bytes());
    put(&mut head, 4, &(keys.len() as u32).to_le_bytes());
    head[8] = buckets_log2 as u8;
    head[9] = number_bytes as u8;
    head[10] = tag_bytes as u8;
    out.extend_from_slice(&head);
    let mut end = 0;
    for bucket in 0..1u32 << buckets_log2 {
        end += keys[end..].partition_point(|key| bucket_of(key.0, buckets_log2) <= bucket);
        out.extend_from_slice(&(end as u32).to_le_bytes());
    }
    for &(prefix, _) in keys {
        out.extend_from_slice(&tag_of(prefix, buckets_log2).to_le_bytes()[..tag_bytes]);
    }
    for &(_, number) in keys {
        out.extend_from_slice(&number.to_le_bytes()[..number_bytes]);
    }
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

/// The 32 bits of a hash behind those of its partition.
fn prefix_of(hash: u64, partitions_log2: u8) -> u32 {
    ((hash << partitions_log2) >> 32) as u32
}

fn bucket_of(prefix: u32, buckets_log2: u32) -> u32 {
    (u64::from(prefix) >> (32 - buckets_log2)) as u32
}

/// The tag of a key: the 16 bits behind those of the bucket, or all 32 bits.
fn tag_of(prefix: u32, buckets_log2: u32) -> u32 {
    match tag_bytes(buckets_log2) {
        2 => (prefix << buckets_log2) >> 16,
        _ => prefix,
    }
}

/// Bytes of a tag in the map of a partition with so many buckets.
fn tag_bytes(buckets_log2: u32) -> usize {
    if buckets_log2 < SHORT_TAGS_LOG2 { 4 } else { 2 }
}

/// Bytes of a block's number in the map of a partition with so many blocks.
fn number_bytes(blocks: usize) -> usize {
    if blocks <= 1 << 16 { 2 } else { 4 }
}

/// Where the map of a partition lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartitionMap {
    partition: u32,
    buckets_log2: u32,
    number_bytes: usize,
    ends_at: usize,
    tags_at: usize,
    numbers_at: usize,
}

/// The first bits of a key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashBegin {
    /// The hash; bits that are not known are 0.
    pub hash: u64,
    /// Number of the known bits.
    pub bits: u32,
}

/// The key map of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMap {
    footer: Vec<u8>,
    partitions_log2: u8,
    partitions: Vec<PartitionMap>,
}

impl KeyMap {
    /// Decodes the key map in a footer whose [index](PartIndex::decode) was decoded and found intact.
    /// `None` if the part has none: it is of an earlier release.
    ///
    /// # Errors
    /// A map that contradicts the index or itself. Offsets in the error count in the file.
    pub fn decode(
        footer: Vec<u8>,
        footer_offset: u64,
        index: &PartIndex,
        partitions_log2: u8,
    ) -> Result<Option<Self>, DecodeError> {
        let begin = index.end_of_entries().next_multiple_of(ALIGN);
        let fail = |at: usize, cause| DecodeError {
            what: WHAT,
            offset: footer_offset + at as u64,
            cause: DecodeCause::Inconsistent(cause),
        };
        let head = footer.get(begin..begin + HEAD_BYTES);
        if head.is_none_or(|head| u32_at(head, 0) != MAGIC) {
            return Ok(None);
        }
        let room = (footer.len() - begin) as u64;
        let bytes = u64_at(&footer, begin + 8);
        if bytes < HEAD_BYTES as u64 || bytes > room {
            return Err(fail(begin, "the map is longer than the footer"));
        }
        let end = begin + bytes as usize;
        let mut at = begin + HEAD_BYTES;
        let mut partitions = Vec::new();
        let mut blocks = index.blocks();
        while let Some(first) = blocks.first() {
            let count = blocks.partition_point(|block| block.partition == first.partition);
            let (of_partition, rest) = blocks.split_at(count);
            let map = PartitionMap::decode(&footer[..end], &mut at, of_partition)
                .map_err(|cause| fail(at, cause))?;
            partitions.push(map);
            blocks = rest;
        }
        if at != end {
            return Err(fail(at, "the map does not end behind its last partition"));
        }
        Ok(Some(Self { footer, partitions_log2, partitions }))
    }

    /// The blocks that may have the key with this hash: numbers among the blocks of the
    /// [hash's partition](PartIndex::partition). The block that has the key, or in which its large
    /// value begins, is among them. Another block is with a probability of 2⁻¹⁶, or less, for each
    /// key of the bucket, which has 16 as a rule.
    pub fn blocks_of(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let partition = crate::hash::partition_of(hash, self.partitions_log2);
        let found = self.partitions.binary_search_by_key(&partition, |map| map.partition);
        let map = found.ok().map(|at| self.partitions[at]);
        let prefix = prefix_of(hash, self.partitions_log2);
        let keys = map.map_or(0..0, |map| map.bucket(&self.footer, prefix));
        let mut last = None;
        keys.filter_map(move |key| {
            let map = map?;
            let tag = map.tag(&self.footer, key);
            let number =
                (tag == tag_of(prefix, map.buckets_log2)).then(|| map.number(&self.footer, key))?;
            // Keys of one hash are sorted by their blocks. Others of the tag may lie between them.
            (last.replace(number) != Some(number)).then_some(number)
        })
    }

    /// Bits of the hashes of about `count` keys, spread over the whole map.
    pub fn sample(&self, count: usize) -> Vec<HashBegin> {
        let keys = |map: &PartitionMap| map.keys(&self.footer);
        let all: usize = self.partitions.iter().map(keys).sum();
        let step = (all / count.max(1)).max(1);
        let (mut sample, mut skip) = (Vec::new(), step / 2);
        for map in &self.partitions {
            let keys = keys(map);
            while skip < keys {
                sample.push(map.begin_of(&self.footer, skip, self.partitions_log2));
                skip += step;
            }
            skip -= keys;
        }
        sample
    }

    /// Whether the map may have a key whose hash begins so. False alarms are rare: see
    /// [`blocks_of`](Self::blocks_of).
    pub fn may_have(&self, begin: HashBegin) -> bool {
        let partition = crate::hash::partition_of(begin.hash, self.partitions_log2);
        let found = self.partitions.binary_search_by_key(&partition, |map| map.partition);
        let Ok(at) = found else { return false };
        let map = self.partitions[at];
        let prefix = prefix_of(begin.hash, self.partitions_log2);
        let known = begin.bits.saturating_sub(self.partitions_log2.into()).min(32);
        // With fewer bits than those of a bucket, the key may lie in any of several.
        let Some(of_tag) = known.checked_sub(map.buckets_log2) else { return true };
        let tag_bits = 8 * tag_bytes(map.buckets_log2) as u32;
        // A tag of 32 bits has those of the bucket, too.
        let unknown = match tag_bits {
            32 => 32 - known,
            _ => tag_bits.saturating_sub(of_tag),
        };
        let same = |tag: u32| u64::from(tag) >> unknown;
        let wanted = same(tag_of(prefix, map.buckets_log2));
        map.bucket(&self.footer, prefix).any(|key| same(map.tag(&self.footer, key)) == wanted)
    }

    /// Bytes of memory that the map takes.
    pub fn held_bytes(&self) -> usize {
        self.footer.len() + self.partitions.len() * size_of::<PartitionMap>()
    }
}

impl PartitionMap {
    /// Decodes the map of the partition of these blocks, which begins at `at`. Moves `at` behind it.
    fn decode(bytes: &[u8], at: &mut usize, blocks: &[BlockEntry]) -> Result<Self, &'static str> {
        let begin = *at;
        let Some(head) = bytes.get(begin..begin + PARTITION_HEAD_BYTES) else {
            return Err("the map of a partition is missing");
        };
        let keys = u32_at(head, 4) as usize;
        let (buckets_log2, number_bytes) = (u32::from(head[8]), usize::from(head[9]));
        let tag_bytes = tag_bytes(buckets_log2);
        let counted: u64 =
            blocks.iter().map(|block| u64::from(block.values) + u64::from(block.tombstones)).sum();
        if u32_at(head, 0) != blocks[0].partition || keys as u64 != counted {
            return Err("the map of a partition has other keys than its blocks");
        }
        if buckets_log2 > BUCKETS_LOG2_MAX
            || number_bytes != self::number_bytes(blocks.len())
            || usize::from(head[10]) != tag_bytes
        {
            return Err("the map of a partition has an unknown form");
        }
        let ends_at = begin + PARTITION_HEAD_BYTES;
        let tags_at = ends_at + (4usize << buckets_log2);
        let numbers_at = tags_at + tag_bytes * keys;
        let end = (numbers_at + number_bytes * keys).next_multiple_of(ALIGN);
        if end > bytes.len() {
            return Err("the map of a partition is cut off");
        }
        let partition = blocks[0].partition;
        let map = Self { partition, buckets_log2, number_bytes, ends_at, tags_at, numbers_at };
        let ends = bytes[ends_at..tags_at].chunks_exact(4).map(|end| u32_at(end, 0) as usize);
        let last = ends.clone().next_back();
        if !ends.is_sorted() || last != Some(keys) {
            return Err("the buckets of a partition do not add up");
        }
        if (0..keys).any(|key| map.number(bytes, key) >= blocks.len()) {
            return Err("the map names a block that is not there");
        }
        *at = end;
        Ok(map)
    }

    /// Number of the keys.
    fn keys(&self, bytes: &[u8]) -> usize {
        self.end_of(bytes, (1 << self.buckets_log2) - 1)
    }

    fn end_of(&self, bytes: &[u8], bucket: usize) -> usize {
        u32_at(bytes, self.ends_at + 4 * bucket) as usize
    }

    /// The known bits of a key's hash.
    fn begin_of(&self, bytes: &[u8], key: usize, partitions_log2: u8) -> HashBegin {
        let (mut low, mut high) = (0, (1usize << self.buckets_log2) - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.end_of(bytes, middle) > key { high = middle } else { low = middle + 1 }
        }
        let tag = self.tag(bytes, key);
        let (prefix, bits) = match tag_bytes(self.buckets_log2) {
            2 => {
                let bits = self.buckets_log2 + 16;
                ((((low as u64) << 16) | u64::from(tag)) << (32 - bits), bits)
            }
            _ => (u64::from(tag), 32),
        };
        let partition = u64::from(self.partition).checked_shl(64 - u32::from(partitions_log2));
        let below = (prefix << 32) >> partitions_log2;
        HashBegin { hash: partition.unwrap_or(0) | below, bits: bits + u32::from(partitions_log2) }
    }

    /// The keys of the bucket of a hash.
    fn bucket(&self, bytes: &[u8], prefix: u32) -> Range<usize> {
        let bucket = bucket_of(prefix, self.buckets_log2) as usize;
        let end_of = |bucket| self.end_of(bytes, bucket);
        bucket.checked_sub(1).map_or(0, end_of)..end_of(bucket)
    }

    fn tag(&self, bytes: &[u8], key: usize) -> u32 {
        match tag_bytes(self.buckets_log2) {
            2 => u16_at(bytes, self.tags_at + 2 * key).into(),
            _ => u32_at(bytes, self.tags_at + 4 * key),
        }
    }

    fn number(&self, bytes: &[u8], key: usize) -> usize {
        match self.number_bytes {
            2 => usize::from(u16_at(bytes, self.numbers_at + 2 * key)),
            _ => u32_at(bytes, self.numbers_at + 4 * key) as usize,
        }
    }
}
