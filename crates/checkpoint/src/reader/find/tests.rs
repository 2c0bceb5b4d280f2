//! Tests of single keys in chains of checkpoints, and of damage there.

use std::collections::BTreeMap;
use std::path::Path;

use stillpoint_format::hash::KeyHasher;
use stillpoint_format::ident::StoreId;
use stillpoint_format::names::{CheckpointKind, checkpoint_dir, part_name};
use stillpoint_format::part::{
    BlockBuilder, Codec, Compressor, FRAGMENT_BYTES, IndexBuilder, KeyRef, PartHeader, fragments,
};
use stillpoint_io::{Caching, OpenMode, Rng, SeededRng, SimDisk};

use super::*;
use crate::error::DamageCause;
use crate::reader::Visit;

const STORE: StoreId = StoreId([3; 16]);
const SEED: u64 = 11;
const TABLE: u16 = 4;
const BLOCK_BYTES: usize = 2_000;

type Records = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn options() -> LoadOptions {
    LoadOptions { store: STORE, hash_seed: SEED, generations: None }
}

fn hash(key: &[u8]) -> u64 {
    KeyHasher::new(SEED).hash(TABLE, key)
}

/// Writes the checkpoint of this number with these records, some to each of two parts.
fn write(
    disk: &Arc<dyn Disk>,
    (number, partitions_log2, codec): (u64, u8, Codec),
    records: &Records,
    has_maps: bool,
) -> CheckpointEntry {
    let kind = if number == 0 { CheckpointKind::Full } else { CheckpointKind::Partial };
    let dir = checkpoint_dir(number, kind);
    disk.create_dir_all(Path::new(&dir)).expect("no fault");
    let mut parts = Vec::new();
    for part in 0..2u32 {
        let of_part = |key: &[u8]| key.last().is_some_and(|byte| u32::from(byte & 1) == part);
        let of_part: Vec<_> = records.iter().filter(|(key, _)| of_part(key)).collect();
        let (epoch, created_ms, base) = (number + 1, 1, None);
        let (store, hash_seed) = (STORE, SEED);
        let header = PartHeader {
            store,
            created_ms,
            epoch,
            part,
            kind,
            partitions_log2,
            codec,
            hash_seed,
            base,
        };
        let mut file = File::new(header, has_maps);
        for (key, value) in of_part {
            file.add(key, value.as_deref());
        }
        parts.push(file.write(disk, &dir));
    }
    let of_values = records.values().flatten().map(|value| value.len() as u64);
    CheckpointEntry {
        epoch: number + 1,
        serial: number,
        kind,
        base: number.checked_sub(1).map(|base| base + 1),
        scheme: "test".into(),
        private: None,
        fuzzy: false,
        active: Vec::new(),
        codec,
        partitions_log2,
        records: records.len() as u64,
        table_records: Vec::new(),
        value_bytes: of_values.sum(),
        parts,
        generations: Vec::new(),
        positions: Vec::new(),
        gsn_floor: 0,
        started_ms: 0,
        finished_ms: 0,
    }
}

struct File {
    header: PartHeader,
    bytes: Vec<u8>,
    index: IndexBuilder,
    compressor: Compressor,
    open: BTreeMap<u32, BlockBuilder>,
}

impl File {
    fn new(header: PartHeader, has_maps: bool) -> Self {
        let index = match has_maps {
            true => IndexBuilder::with_keys(KeyHasher::new(SEED), header.partitions_log2),
            false => IndexBuilder::default(),
        };
        let compressor = Compressor::new(header.codec, 3).expect("a codec");
        Self { bytes: header.encode().to_vec(), header, index, compressor, open: BTreeMap::new() }
    }

    fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        let partition = partition_of(hash(key), self.header.partitions_log2);
        let of = KeyRef { table: TABLE, generation: 1, key };
        let value = match value {
            Some(value) if value.len() > FRAGMENT_BYTES => {
                return self.add_large(partition, of, value);
            }
            value => value,
        };
        loop {
            let block = self.open.entry(partition);
            let block = block.or_insert_with(|| BlockBuilder::with_target(partition, BLOCK_BYTES));
            let pushed = match value {
                Some(value) => block.push_value(of, 5, value),
                None => block.push_tombstone(of),
            };
            if pushed.is_ok() {
                return;
            }
            let block = self.open.remove(&partition).expect("it is full");
            self.seal(&block);
        }
    }

    fn add_large(&mut self, partition: u32, key: KeyRef<'_>, value: &[u8]) {
        for (fragment, len) in fragments(value.len() as u32) {
            let mut block = BlockBuilder::with_target(partition, 1);
            let at = fragment.offset as usize;
            let pushed = block.push_fragment(key, (5.into(), 0), fragment, &value[at..at + len]);
            pushed.expect("an empty block takes any entry");
            self.seal(&block);
        }
    }

    fn seal(&mut self, block: &BlockBuilder) {
        let (at, identity) = (self.bytes.len() as u64, self.header.identity());
        self.index.note_keys(block);
        let entry = block.seal(&mut self.compressor, identity, at, &mut self.bytes);
        self.index.push(entry.expect("compressible"));
    }

    fn write(mut self, disk: &Arc<dyn Disk>, dir: &str) -> PartEntry {
        for block in std::mem::take(&mut self.open).into_values() {
            self.seal(&block);
        }
        let totals = self.index.totals();
        let (end, crc) = self.index.finish(self.header.identity(), self.bytes.len() as u64);
        self.bytes.extend_from_slice(&end);
        let file = part_name(self.header.part);
        let path = Path::new(dir).join(&file);
        let opened = disk.open(&path, OpenMode::CreateNew, Caching::Buffered).expect("no fault");
        opened.write_at(&self.bytes, 0).expect("no fault");
        let records = totals.values + totals.tombstones;
        PartEntry { file, bytes: self.bytes.len() as u64, records, crc }
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// A full checkpoint of 20,000 records, and fifteen of changes. Also what a key has in the end.
fn chain_of_16(disk: &Arc<dyn Disk>) -> (Vec<CheckpointEntry>, Records) {
    let rng = SeededRng::new(7);
    let (mut chain, mut now) = (Vec::new(), Records::new());
    for number in 0..16u64 {
        let records: Records = match number {
            0 => (0..20_000).map(|at| (key(at), Some(key(at).repeat(3)))).collect(),
            _ => (0..800)
                .map(|_| {
                    let value = (rng.below(4) > 0).then(|| rng.next_u64().to_le_bytes().repeat(5));
                    (key(rng.below(25_000)), value)
                })
                .collect(),
        };
        now.extend(records.clone());
        let codec = if number.is_multiple_of(2) { Codec::None } else { Codec::Lz4 };
        // A checkpoint may have another number of partitions than the one before.
        chain.push(write(disk, (number, 2 + number as u8 % 3, codec), &records, true));
    }
    (chain, now)
}

fn find(open: &OpenChain, key: &[u8]) -> Result<Found, LoadError> {
    open.find(&SoughtKey { table: TABLE, generation: 1, hash: hash(key), key }, &mut |_| false)
}

#[test]
fn a_hit_reads_two_blocks_at_most_and_a_miss_over_sixteen_checkpoints_hardly_one() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (chain, now) = chain_of_16(&disk);
    let links: Vec<&CheckpointEntry> = chain.iter().collect();
    let open = OpenChain::open(&disk, &links, &options(), 2).expect("sound").expect("maps");
    let (mut most, mut blocks) = (0, 0);
    for (key, value) in &now {
        let found = find(&open, key).expect("sound");
        let expected = match value.clone() {
            Some(value) => Found::Value { label: 5.into(), value },
            None => Found::Deletion,
        };
        assert_eq!(found, expected, "{}", key.escape_ascii());
        let after = open.counts().blocks;
        most = most.max(after - blocks);
        blocks = after;
    }
    let mean = blocks as f64 / now.len() as f64;
    assert!(most <= 2 && mean < 1.01, "{most} blocks at most, {mean} on average");
    for at in 0..10_000 {
        let found = find(&open, format!("other {at}").as_bytes()).expect("sound");
        assert_eq!(found, Found::Nothing);
    }
    let for_absent = open.counts().blocks - blocks;
    assert!(for_absent < 500, "{for_absent} blocks for 10,000 absent keys");
    // Another generation of the table has none of them.
    let other = key(3);
    let sought = SoughtKey { table: TABLE, generation: 2, hash: hash(&other), key: &other };
    assert_eq!(open.find(&sought, &mut |_| false).expect("sound"), Found::Nothing);
}

/// The other records of a block that was read are given, but those that a newer checkpoint has.
#[test]
fn what_lies_beside_a_key_is_the_newest_of_its_own() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (chain, now) = chain_of_16(&disk);
    let links: Vec<&CheckpointEntry> = chain.iter().collect();
    let open = OpenChain::open(&disk, &links, &options(), 2).expect("sound").expect("maps");
    let mut given = 0;
    for key in now.keys() {
        let sought = SoughtKey { table: TABLE, generation: 1, hash: hash(key), key };
        let found = open.find(&sought, &mut |all| {
            given += all.len();
            for beside in all {
                assert_eq!(beside.hash, hash(beside.key));
                let newest = now.get(beside.key).and_then(|value| value.as_deref());
                assert_eq!(beside.value, newest, "{}", beside.key.escape_ascii());
            }
            false
        });
        found.expect("sound");
    }
    assert!(given > now.len(), "{given} records beside {} keys", now.len());
}

/// Keeps the first record of each key, and counts all of them.
struct Keeping(Arc<Mutex<(Records, usize)>>);

impl Visit for Keeping {
    fn records(
        &mut self,
        batch: &[LoadedRecord<'_>],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (kept, count) = &mut *self.0.lock();
        *count += batch.len();
        for record in batch {
            let value = record.value.map(<[u8]>::to_vec);
            kept.entry(record.key.to_vec()).or_insert(value);
        }
        Ok(())
    }
}

/// A load leaves out the blocks whose values were all taken before, and no others.
#[test]
fn a_load_leaves_out_what_was_taken() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (chain, now) = chain_of_16(&disk);
    for links in [1, chain.len()] {
        let links: Vec<&CheckpointEntry> = chain[..links].iter().collect();
        let open = || OpenChain::open(&disk, &links, &options(), 2).expect("sound").expect("maps");
        let load = |open: &OpenChain, taken: Records| {
            let kept = Arc::new(Mutex::new((taken, 0)));
            let visitor: Box<dyn Visit> = Box::new(Keeping(kept.clone()));
            open.load(vec![visitor], &Arc::default()).expect("sound");
            std::mem::take(&mut *kept.lock())
        };
        let (expected, all) = load(&open(), Records::new());
        if links.len() > 1 {
            assert_eq!(expected, now);
        }
        for takes_all in [true, false] {
            let (open, mut taken, mut calls) = (open(), Records::new(), 0);
            for key in now.keys() {
                let sought = SoughtKey { table: TABLE, generation: 1, hash: hash(key), key };
                let found = open.find(&sought, &mut |records| {
                    calls += 1;
                    let takes = takes_all || calls % 3 == 0;
                    for record in records.iter().filter(|_| takes) {
                        taken.insert(record.key.to_vec(), record.value.map(<[u8]>::to_vec));
                    }
                    takes
                });
                found.expect("sound");
            }
            let (loaded, count) = load(&open, taken);
            assert_eq!(loaded, expected, "{} links", links.len());
            assert!(count < all, "{count} of {all} records were loaded again");
            assert!(links.len() > 1 || !takes_all || count == 0, "{count} records again");
        }
    }
}

/// A chain needs memory for what counts of it, about.
#[test]
fn what_newer_checkpoints_have_is_not_counted_again() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (chain, now) = chain_of_16(&disk);
    let links: Vec<&CheckpointEntry> = chain.iter().collect();
    let open = OpenChain::open(&disk, &links, &options(), 2).expect("sound").expect("maps");
    let all: u64 = chain.iter().map(|entry| entry.records).sum();
    let live = now.values().filter(|value| value.is_some()).count() as u64;
    let (records, _) = open.newest_records_and_bytes();
    assert!(records < all, "{records} of {all} records, {live} live");
    assert!(records.abs_diff(live) <= live / 5 + 50, "{records} of {all} records, {live} live");
}

#[test]
fn a_chain_with_a_part_of_an_earlier_release_is_not_opened_for_keys() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let records: Records = (0..100).map(|at| (key(at), Some(vec![1]))).collect();
    let full = write(&disk, (0, 2, Codec::None), &records, true);
    let changes = write(&disk, (1, 2, Codec::None), &records, false);
    let open = |links: &[&CheckpointEntry]| OpenChain::open(&disk, links, &options(), 1);
    assert!(open(&[&full]).expect("sound").is_some());
    assert!(open(&[&full, &changes]).expect("sound").is_none());
}

#[test]
fn a_large_value_comes_whole_and_damage_is_told() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let large: Vec<u8> = (0..2 * FRAGMENT_BYTES + 9).map(|at| (at / 100) as u8).collect();
    let mut records: Records = (0..500).map(|at| (key(at), Some(key(at)))).collect();
    records.insert(b"large".to_vec(), Some(large.clone()));
    let full = write(&disk, (0, 1, Codec::None), &records, true);
    let open = || OpenChain::open(&disk, &[&full], &options(), 3).expect("sound").expect("maps");
    let chain = open();
    let found = find(&chain, b"large").expect("sound");
    assert_eq!(found, Found::Value { label: 5.into(), value: large });
    assert_eq!(chain.counts(), FindCounts { keys: 1, blocks: 3 });
    // A byte of the block of one key.
    let sought = key(77);
    let part = usize::from(sought[sought.len() - 1] & 1);
    let path = Path::new(&dir_of(&full)).join(part_name(part as u32));
    let keyed = &chain.links[0].parts[part];
    let number = keyed.keys.as_ref().and_then(|map| map.blocks_of(hash(&sought)).next());
    let block = keyed.index.partition(partition_of(hash(&sought), 1))[number.expect("it has it")];
    let file = disk.open(&path, OpenMode::ReadWrite, Caching::Buffered).expect("no fault");
    file.write_at(&[0xFF], block.offset + 60).expect("no fault");
    match find(&open(), &sought) {
        Err(LoadError::Damaged(damage)) => {
            assert_eq!(damage.offset, block.offset);
            assert!(matches!(damage.cause, DamageCause::Decode(_)), "{damage}");
        }
        other => panic!("damage was returned as data: {other:?}"),
    }
    let sound = (0..500).filter(|&at| find(&open(), &key(at)).is_ok()).count();
    assert!((400..500).contains(&sound), "{sound} other keys are found");
}

#[test]
fn a_verification_finds_keys_to_which_the_map_does_not_lead() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let records: Records = (0..300).map(|at| (key(at), Some(key(at)))).collect();
    let full = write(&disk, (0, 1, Codec::None), &records, true);
    let progress = Arc::new(Progress::default());
    let verify = |entry: &CheckpointEntry, options: &LoadOptions| {
        crate::verify(&disk, entry, options, 1, &progress).expect("no fault")
    };
    let told = verify(&full, &options()).damage;
    let table_records =
        |damage: &crate::Damage| matches!(damage.cause, DamageCause::TableRecords { .. });
    assert!(told.iter().all(table_records), "{told:?}");
    // The map of the second part is made with another seed, as by a writer with a bug.
    let mut wrong = full.clone();
    wrong.serial = 1;
    let dir = checkpoint_dir(1, CheckpointKind::Full);
    disk.create_dir_all(Path::new(&dir)).expect("no fault");
    for (at, part) in wrong.parts.iter_mut().enumerate() {
        let header = PartHeader {
            store: STORE,
            created_ms: 1,
            epoch: 1,
            part: at as u32,
            kind: CheckpointKind::Full,
            partitions_log2: 1,
            codec: Codec::None,
            hash_seed: SEED,
            base: None,
        };
        let mut file = File::new(header, true);
        file.index = IndexBuilder::with_keys(KeyHasher::new(SEED + at as u64), 1);
        for (key, value) in records.iter().filter(|(key, _)| usize::from(key[9] & 1) == at) {
            file.add(key, value.as_deref());
        }
        *part = file.write(&disk, &dir);
    }
    let told = verify(&wrong, &options()).damage;
    assert!(
        told.iter().any(|damage| damage.to_string().contains("key map"))
            && told.iter().all(|damage| damage.file.ends_with("part-001") || table_records(damage)),
        "{told:?}"
    );
}
