//! A chain of checkpoints that is open for single keys, while it is loaded.
//!
//! ```text
//! key ─▶ newest checkpoint: the key maps of its parts name the blocks that may have the key
//!   ─▶ each such block is read, verified and searched ─▶ not there: the next older checkpoint
//! ```
//! The key maps are in memory while the chain is open. So a key that no checkpoint has reads hardly
//! any block, and a key that one has reads that block, as a rule.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::hash::{KeyHasher, partition_of};
use stillpoint_format::manifest::{CheckpointEntry, PartEntry};
use stillpoint_format::part::{BlockEntry, BlockReader, Content, Entry, FragmentJoiner, KeyMap};
use stillpoint_format::{DecodeError, Label};
use stillpoint_io::{AlignedBuf, Disk, in_parallel};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

use super::decode::inconsistent;
use super::load::StagedPart;
use super::part::{KeyedPart, OPEN_PARTS_MAX, Part};
use super::{LoadOptions, LoadSummary, LoadedRecord, Visit, damage, dir_of};
use crate::error::LoadError;
use crate::progress::Progress;

/// What the newest checkpoint with a key has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No checkpoint has the key.
    Nothing,
    /// The key was deleted.
    Deletion,
    /// The key has this value.
    Value {
        /// Tag and deadline kept with the value.
        label: Label,
        /// The value.
        value: Vec<u8>,
    },
}

/// A key to be found.
#[derive(Clone, Copy, Debug)]
pub struct SoughtKey<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table. Records of other generations are passed over.
    pub generation: u32,
    /// Keyed hash of table and key.
    pub hash: u64,
    /// Key.
    pub key: &'a [u8],
}

/// Counts of looks for single keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindCounts {
    /// Keys that were looked for.
    pub keys: u64,
    /// Blocks that were read for them.
    pub blocks: u64,
}

/// Takes the values of a block that was read, that of the sought key among them. Returns whether all of
/// them are loaded now.
pub type Beside<'a> = dyn FnMut(&[LoadedRecord<'_>]) -> bool + 'a;

/// A block with more newer checkpoints than these gives the sought record alone. Others would have to be
/// looked up in the key maps of all of them.
const BESIDE_LINKS_MAX: usize = 4;

/// Keys of a checkpoint that are looked up in the newer ones, to estimate what is left of it.
const SAMPLE_KEYS: usize = 256;

/// The buffers of a thread that looks for keys.
#[derive(Default)]
struct Finder {
    buf: AlignedBuf,
    joiner: FragmentJoiner,
}

/// The values of a block that no newer checkpoint has.
struct Values<'a, 'b> {
    hasher: KeyHasher,
    block: &'b BlockEntry,
    records: Vec<LoadedRecord<'a>>,
}

impl<'a, 'b> Values<'a, 'b> {
    fn new(hasher: KeyHasher, block: &'b BlockEntry) -> Self {
        Self { hasher, block, records: Vec::with_capacity(block.values as usize) }
    }

    fn add(&mut self, entry: &Entry<'a>, partitions_log2: u8, is_in_newer: impl Fn(u64) -> bool) {
        let (Content::Value(value), key) = (entry.content, entry.key) else { return };
        let hash = self.hasher.hash(key.table, key.key);
        // The load tells of a key in the block of another partition.
        if partition_of(hash, partitions_log2) == self.block.partition && !is_in_newer(hash) {
            let (label, value) = (entry.label, Some(value));
            let (table, generation, key) = (key.table, key.generation, key.key);
            self.records.push(LoadedRecord { table, generation, key, hash, label, value, gsn: 0 });
        }
    }

    /// Whether the block has nothing else.
    fn are_all(&self) -> bool {
        let BlockEntry { values, tombstones, value_bytes, .. } = *self.block;
        let bytes = |record: &LoadedRecord<'_>| record.value.map_or(0, <[u8]>::len) as u64;
        tombstones == 0
            && u64::from(values) == self.records.len() as u64
            && u64::from(value_bytes) == self.records.iter().map(bytes).sum::<u64>()
    }
}

struct Link {
    entry: CheckpointEntry,
    parts: Vec<KeyedPart>,
}

/// A chain of checkpoints whose headers, indexes and key maps were read and verified.
pub struct OpenChain {
    disk: Arc<dyn Disk>,
    /// The checkpoints, newest first.
    links: Vec<Link>,
    options: LoadOptions,
    /// Buffers for reuse.
    finders: Mutex<Vec<Finder>>,
    keys: AtomicU64,
    blocks: AtomicU64,
}

impl std::fmt::Debug for OpenChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let links = self.links.len();
        f.debug_struct("OpenChain").field("links", &links).finish_non_exhaustive()
    }
}

/// The key map of a part, which has one: see [`OpenChain::open`].
fn map_of(keyed: &KeyedPart) -> &KeyMap {
    keyed.keys.as_ref().expect("a chain with a part without a map is not opened")
}

impl OpenChain {
    /// Opens a chain, given oldest first, on so many threads. `None` if a part has no key map: an earlier
    /// release wrote it.
    ///
    /// # Errors
    /// Damage, with file, offset and cure; an error of the disk.
    pub fn open(
        disk: &Arc<dyn Disk>,
        chain: &[&CheckpointEntry],
        options: &LoadOptions,
        threads: usize,
    ) -> Result<Option<Self>, LoadError> {
        let mut all: Vec<(&CheckpointEntry, &PartEntry)> = Vec::new();
        for &entry in chain.iter().rev() {
            all.extend(entry.parts.iter().map(|part| (entry, part)));
        }
        let open = |at: usize| {
            let (entry, part) = all[at];
            let dir = dir_of(entry);
            let mut keyed = Part::open_keyed(&**disk, &dir, entry, part, options)?;
            if at >= OPEN_PARTS_MAX {
                keyed.part.read_from(disk, dir.join(&part.file));
            }
            Ok::<_, LoadError>(keyed)
        };
        let threads = threads.clamp(1, all.len().max(1));
        let (open, parts) = (&open, all.len());
        let jobs = (0..threads).map(|first| {
            move || (first..parts).step_by(threads).map(open).collect::<Result<Vec<_>, _>>()
        });
        let mut opened = Vec::new();
        for of_thread in in_parallel("open", jobs.collect())? {
            opened.push(of_thread?.into_iter());
        }
        let mut in_order = (0..parts).filter_map(|at| opened[at % threads].next());
        let mut links = Vec::new();
        for &entry in chain.iter().rev() {
            let parts: Vec<KeyedPart> = in_order.by_ref().take(entry.parts.len()).collect();
            if parts.iter().any(|part| part.keys.is_none()) {
                return Ok(None);
            }
            links.push(Link { entry: entry.clone(), parts });
        }
        Ok(Some(Self {
            disk: disk.clone(),
            links,
            options: options.clone(),
            finders: Mutex::default(),
            keys: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
        }))
    }

    /// Bytes of memory that the key maps take while the chain is open.
    pub fn held_bytes(&self) -> usize {
        let maps = self.links.iter().flat_map(|link| &link.parts);
        maps.filter_map(|part| part.keys.as_ref()).map(KeyMap::held_bytes).sum()
    }

    /// Records that no newer checkpoint of the chain replaces, and bytes of their entries in plain form.
    /// The records of each checkpoint are counted. A sample of their keys says how many of them newer
    /// checkpoints have, too.
    pub fn newest_records_and_bytes(&self) -> (u64, u64) {
        let (mut records, mut bytes) = (0, 0);
        for (at, link) in self.links.iter().enumerate() {
            let (mut values, mut plain) = (0, 0);
            for part in &link.parts {
                let totals = part.index.totals();
                values += totals.values;
                plain += totals.uncompressed_bytes;
            }
            let (kept, of) = self.sample(at);
            let share =
                |whole: u64| (u128::from(whole) * u128::from(kept) / u128::from(of.max(1))) as u64;
            records += if of == 0 { values } else { share(values) };
            bytes += if of == 0 { plain } else { share(plain) };
        }
        (records, bytes)
    }

    /// Keys of a sample of a link that no newer link has, and the size of the sample. 0 and 0 for the
    /// newest link.
    fn sample(&self, at: usize) -> (u64, u64) {
        let newer = &self.links[..at];
        if newer.is_empty() {
            return (0, 0);
        }
        let parts = &self.links[at].parts;
        let has = |begin| {
            newer.iter().flat_map(|link| &link.parts).any(|part| map_of(part).may_have(begin))
        };
        let (mut kept, mut of) = (0, 0);
        for part in parts {
            for begin in map_of(part).sample(SAMPLE_KEYS.div_ceil(parts.len())) {
                of += 1;
                kept += u64::from(!has(begin));
            }
        }
        (kept, of)
    }

    /// Bytes of the files that a load reads.
    pub fn file_bytes(&self) -> u64 {
        let parts = self.links.iter().flat_map(|link| &link.parts);
        parts.map(|part| part.part.file_bytes()).sum()
    }

    /// Counts since the chain was opened.
    pub fn counts(&self) -> FindCounts {
        // Relaxed: statistics.
        FindCounts { keys: self.keys.load(Relaxed), blocks: self.blocks.load(Relaxed) }
    }

    /// Whether [`find`](Self::find) reads a block for a key with this hash.
    pub fn reads_for(&self, hash: u64) -> bool {
        self.links.iter().any(|link| {
            link.parts.iter().any(|keyed| map_of(keyed).blocks_of(hash).next().is_some())
        })
    }

    /// Finds what the newest checkpoint with this key has of it. Any number of threads may do so. `beside`
    /// gets the values of the blocks that are read, but those that a newer checkpoint may have. A
    /// [load](Self::load) leaves out a block whose records `beside` has all loaded.
    ///
    /// # Errors
    /// Damage in a block that may have the key, or an error of the disk.
    pub fn find(
        &self,
        sought: &SoughtKey<'_>,
        beside: &mut Beside<'_>,
    ) -> Result<Found, LoadError> {
        // Relaxed: a statistic.
        self.keys.fetch_add(1, Relaxed);
        let mut finder = self.finders.lock().pop().unwrap_or_default();
        let found = self.find_with(&mut finder, sought, beside);
        if found.is_ok() {
            self.finders.lock().push(finder);
        }
        found
    }

    fn find_with(
        &self,
        finder: &mut Finder,
        sought: &SoughtKey<'_>,
        beside: &mut Beside<'_>,
    ) -> Result<Found, LoadError> {
        for (at, link) in self.links.iter().enumerate() {
            let partition = partition_of(sought.hash, link.entry.partitions_log2);
            for keyed in &link.parts {
                let blocks = keyed.index.partition(partition);
                for number in map_of(keyed).blocks_of(sought.hash) {
                    let place = (keyed, &blocks[number]);
                    let found = self.find_in_block(finder, at, place, (sought, beside))?;
                    if found != Found::Nothing {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(Found::Nothing)
    }

    /// Whether a link newer than number `at` may have a record of a key with this hash.
    fn is_in_newer(&self, at: usize, hash: u64) -> bool {
        let has = |part| map_of(part).blocks_of(hash).next().is_some();
        let is_in_newer = self.links[..at].iter().flat_map(|link| &link.parts).any(has);
        mutant!(is_in_newer, BesideIsOlder => false)
    }

    /// Searches a block of link number `at` for the begin of a record of the key.
    fn find_in_block(
        &self,
        Finder { buf, joiner }: &mut Finder,
        at: usize,
        (keyed, block): (&KeyedPart, &BlockEntry),
        (sought, beside): (&SoughtKey<'_>, &mut Beside<'_>),
    ) -> Result<Found, LoadError> {
        let is_sought = |entry: &Entry<'_>| {
            let key = entry.key;
            let goes_on = matches!(entry.content, Content::Fragment(of, _) if of.offset > 0);
            !goes_on
                && (key.table, key.generation) == (sought.table, sought.generation)
                && key.key == sought.key
        };
        let part = &keyed.part;
        let (mut found, mut is_large) = (Found::Nothing, false);
        let mut values = Values::new(KeyHasher::new(self.options.hash_seed), block);
        let wrong = |error: DecodeError| damage(part.path(), block.offset, error.into());
        let from = self.read(buf, part, block)?;
        let mut reader = BlockReader::new(part.identity());
        for entry in reader.open_indexed(block, &buf[from..]).map_err(wrong)?.entries() {
            let entry = entry.map_err(wrong)?;
            if found == Found::Nothing && is_sought(&entry) {
                match entry.content {
                    Content::Value(value) => {
                        found = Found::Value { label: entry.label, value: value.to_vec() };
                    }
                    Content::Tombstone => found = Found::Deletion,
                    Content::Fragment(..) => {
                        is_large = true;
                        *joiner = FragmentJoiner::default();
                        let begun = joiner.push(&entry).map(|_| ());
                        begun.map_err(|cause| inconsistent(part, block.offset, cause))?;
                    }
                }
            }
            if at <= BESIDE_LINKS_MAX {
                values.add(&entry, part.partitions_log2(), |hash| self.is_in_newer(at, hash));
            }
        }
        if !values.records.is_empty() && beside(&values.records) && values.are_all() {
            part.note_loaded(block.offset);
        }
        if is_large { self.join(buf, joiner, part, block) } else { Ok(found) }
    }

    /// Reads the rest of a large value, whose first fragment was read, in the blocks behind that one.
    fn join(
        &self,
        buf: &mut AlignedBuf,
        joiner: &mut FragmentJoiner,
        part: &Part,
        first: &BlockEntry,
    ) -> Result<Found, LoadError> {
        let blocks = part.all_blocks();
        let at = blocks.partition_point(|block| block.offset <= first.offset);
        let mut found = Found::Nothing;
        for block in &blocks[at..] {
            let wrong = |error: DecodeError| damage(part.path(), block.offset, error.into());
            let from = self.read(buf, part, block)?;
            let mut reader = BlockReader::new(part.identity());
            for entry in reader.open_indexed(block, &buf[from..]).map_err(wrong)?.entries() {
                let joined = joiner.push(&entry.map_err(wrong)?);
                let joined = joined.map_err(|cause| inconsistent(part, block.offset, cause))?;
                if let (Found::Nothing, Some(whole)) = (&found, joined) {
                    found = Found::Value { label: whole.label, value: whole.value.to_vec() };
                }
            }
            if found != Found::Nothing {
                return Ok(found);
            }
        }
        let cause = stillpoint_format::DecodeCause::Inconsistent("a large value lacks fragments");
        Err(inconsistent(part, first.offset, cause).into())
    }

    /// Reads a block. Returns where in the buffer it begins.
    fn read(
        &self,
        buf: &mut AlignedBuf,
        part: &Part,
        block: &BlockEntry,
    ) -> Result<usize, LoadError> {
        // Relaxed: a statistic.
        self.blocks.fetch_add(1, Relaxed);
        part.read_blocks(std::slice::from_ref(block), buf)
    }

    /// Loads the chain as [`load_chain`](super::load_chain) does, with a thread for each visitor. Keys can
    /// be found meanwhile.
    ///
    /// # Errors
    /// As [`load_chain`](super::load_chain).
    ///
    /// # Panics
    /// Without a visitor.
    pub fn load(
        &self,
        visitors: Vec<Box<dyn Visit>>,
        progress: &Arc<Progress>,
    ) -> Result<LoadSummary, LoadError> {
        let staged = self.links.iter().enumerate().flat_map(|(stage, link)| {
            link.parts.iter().map(move |keyed| StagedPart { stage, part: keyed.part.clone() })
        });
        let entries: Vec<&CheckpointEntry> = self.links.iter().map(|link| &link.entry).collect();
        let of = (&*self.disk, &*entries);
        super::load_stages(of, staged.collect(), &self.options, visitors, progress)
    }
}

#[cfg(test)]
mod tests;
