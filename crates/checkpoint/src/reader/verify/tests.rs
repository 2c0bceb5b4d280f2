//! Tests with files whose checksums are right and whose content is wrong.

use std::path::Path;

use stillpoint_format::hash::partition_of;
use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::manifest::PartEntry;
use stillpoint_format::names::{checkpoint_dir, part_name};
use stillpoint_format::part::{
    BlockBuilder, Codec, Compressor, FRAGMENT_BYTES, Fragment, IndexBuilder, KeyRef, PartHeader,
    PartIndex,
};
use stillpoint_io::{Caching, OpenMode, SimDisk, read_all};

use super::*;
use crate::error::Damage;

const SEED: u64 = 5;
const PARTITIONS_LOG2: u8 = 2;
const FRAGMENT: u32 = FRAGMENT_BYTES as u32;
/// Length of a value of three fragments.
const LARGE: u32 = 2 * FRAGMENT + 10;

#[derive(Clone, Copy, Debug)]
enum Item {
    Value,
    Tombstone,
    /// A fragment of a large value: offset, bytes, total length.
    Piece(u32, u32, u32),
}

#[derive(Clone, Debug)]
struct Put {
    table: u16,
    generation: u32,
    key: Vec<u8>,
    item: Item,
}

fn put(table: u16, key: &str) -> Put {
    Put { table, generation: 1, key: key.into(), item: Item::Value }
}

fn piece(key: &str, offset: u32, bytes: u32) -> Put {
    Put { item: Item::Piece(offset, bytes, LARGE), ..put(1, key) }
}

fn partition(put: &Put) -> u32 {
    partition_of(KeyHasher::new(SEED).hash(put.table, &put.key), PARTITIONS_LOG2)
}

/// Keys of a table that lie in one partition.
fn keys_of(table: u16, wanted: u32) -> impl Iterator<Item = Put> {
    (0..)
        .map(move |number| put(table, &format!("key {number}")))
        .filter(move |p| partition(p) == wanted)
}

fn push(block: &mut BlockBuilder, put: &Put) {
    let Put { table, generation, key, item } = put;
    let key = KeyRef { table: *table, generation: *generation, key };
    let pushed = match *item {
        Item::Value => block.push_value(key, 7, b"value"),
        Item::Tombstone => block.push_tombstone(key),
        Item::Piece(offset, bytes, total) => block.push_fragment(
            key,
            (7.into(), 0),
            Fragment { offset, total },
            &vec![1; bytes as usize],
        ),
    };
    pushed.expect("it fits");
}

type Blocks = Vec<(u32, Vec<Put>)>;

/// A checkpoint of these parts. Each part consists of blocks, and each block comes with its claimed
/// partition.
fn checkpoint(parts: &[Blocks]) -> (Arc<dyn Disk>, CheckpointEntry) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let kind = CheckpointKind::Full;
    let dir = checkpoint_dir(11, kind);
    disk.create_dir_all(Path::new(&dir)).expect("no fault");
    let mut entry = CheckpointEntry {
        epoch: 9,
        serial: 11,
        kind,
        base: None,
        scheme: "test".into(),
        private: None,
        fuzzy: false,
        active: Vec::new(),
        codec: Codec::None,
        partitions_log2: PARTITIONS_LOG2,
        records: 0,
        table_records: Vec::new(),
        value_bytes: 0,
        parts: Vec::new(),
        generations: Vec::new(),
        positions: Vec::new(),
        gsn_floor: 0,
        started_ms: 0,
        finished_ms: 0,
    };
    let mut tables = BTreeMap::new();
    for (number, blocks) in (0u32..).zip(parts) {
        let header = PartHeader {
            store: StoreId([3; 16]),
            created_ms: 1,
            epoch: 9,
            part: number,
            kind,
            partitions_log2: PARTITIONS_LOG2,
            codec: Codec::None,
            hash_seed: SEED,
            base: None,
        };
        let mut file = header.encode().to_vec();
        let mut index = IndexBuilder::default();
        let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
        for (claimed, puts) in blocks {
            let mut block = BlockBuilder::with_target(*claimed, 1 << 20);
            for put in puts {
                push(&mut block, put);
                let begins = !matches!(put.item, Item::Piece(offset, ..) if offset > 0);
                *tables.entry(put.table).or_insert(0) += u64::from(begins);
            }
            let offset = file.len() as u64;
            let entry = block.seal(&mut compressor, header.identity(), offset, &mut file);
            index.push(entry.expect("no codec"));
        }
        let totals = index.totals();
        let (end, crc) = index.finish(header.identity(), file.len() as u64);
        file.extend_from_slice(&end);
        let name = part_name(number);
        let path = Path::new(&dir).join(&name);
        let opened = disk.open(&path, OpenMode::CreateNew, Caching::Buffered).expect("no fault");
        opened.write_at(&file, 0).expect("no fault");
        let records = totals.values + totals.tombstones;
        entry.parts.push(PartEntry { file: name, bytes: file.len() as u64, records, crc });
        entry.records += records;
        entry.value_bytes += totals.value_bytes;
    }
    entry.table_records =
        tables.into_iter().map(|(table, records)| TableRecords { table, records }).collect();
    (disk, entry)
}

fn options() -> LoadOptions {
    LoadOptions { store: StoreId([3; 16]), hash_seed: SEED, generations: None }
}

/// Verifies in one pass, and again in one pass for each partition. Both results must agree.
fn verified(disk: &Arc<dyn Disk>, entry: &CheckpointEntry) -> Result<LoadSummary, Damage> {
    all_of(disk, entry).sound().map_err(|error| match error {
        LoadError::Damaged(damage) => *damage,
        other => panic!("no damage: {other}"),
    })
}

fn all_of(disk: &Arc<dyn Disk>, entry: &CheckpointEntry) -> Verified {
    let mut results = [1 << 20, 0].map(|pass_records| {
        let progress = Arc::new(Progress::default());
        let result = verify_in_passes(disk, entry, &options(), 1, &progress, pass_records);
        let snapshot = progress.snapshot();
        assert_eq!(snapshot.units_done, snapshot.units_total);
        result.expect("readable")
    });
    // The place at which a broken value is noticed depends on the passes. So only the files are
    // compared.
    let files = |verified: &Verified| -> BTreeSet<_> {
        verified.damage.iter().map(|damage| damage.file.clone()).collect()
    };
    assert_eq!(files(&results[0]), files(&results[1]));
    std::mem::take(&mut results[0])
}

fn damage_of(parts: &[Blocks]) -> Damage {
    let (disk, entry) = checkpoint(parts);
    verified(&disk, &entry).expect_err("it was not seen")
}

/// Two blocks of each partition, in two parts; table 2 has the keys of table 1.
fn sound() -> Vec<Blocks> {
    let part = |skip| {
        let block = |partition| {
            let table = |table| keys_of(table, partition).skip(skip).take(3);
            (partition, table(1).chain(table(2).take(1)).collect())
        };
        (0..4).map(block).collect()
    };
    vec![part(0), part(3)]
}

#[test]
fn a_sound_checkpoint_is_said_to_be_sound() {
    let mut parts = sound();
    // A value in fragments, and a key of an earlier generation of its table.
    let mut large = piece("large", 0, FRAGMENT);
    let home = partition(&large);
    parts[0].push((home, vec![large.clone()]));
    large.item = Item::Piece(FRAGMENT, FRAGMENT, LARGE);
    parts[0].push((home, vec![large]));
    parts[0].push((home, vec![piece("large", 2 * FRAGMENT, 10)]));
    let again = Put { generation: 2, ..parts[1][0].1[0].clone() };
    parts[1][0].1.push(again);
    let (disk, entry) = checkpoint(&parts);
    let summary = verified(&disk, &entry).expect("sound");
    assert_eq!((summary.records, summary.stale_records), (4 * 2 * 4 + 2, 0));
    let bytes: u64 = entry.parts.iter().map(|part| part.bytes).sum();
    assert_eq!(summary.file_bytes, bytes);
}

/// The bound of memory depends on these numbers, which count values and deletions of both parts.
#[test]
fn the_records_of_a_pass_are_those_of_its_partition() {
    let mut parts = sound();
    let gone = keys_of(3, 2).next().map(|put| Put { item: Item::Tombstone, ..put });
    parts[1][2].1.extend(gone);
    let (disk, entry) = checkpoint(&parts);
    let open = |part| Part::open(&*disk, &dir_of(&entry), &entry, part, &options());
    let parts: Vec<Part> = entry.parts.iter().map(|part| open(part).expect("sound")).collect();
    let alone: Vec<_> = passes(parts.iter().flat_map(Part::all_blocks), &entry, 0)
        .iter()
        .map(|pass| pass.records)
        .collect();
    assert_eq!(alone, [8, 8, 9, 8]);
    assert_eq!(passes(parts.iter().flat_map(Part::all_blocks), &entry, entry.records).len(), 1);
}

#[test]
fn a_key_that_comes_twice_is_told_wherever_it_is() {
    for (part, block) in [(0, 0), (0, 3), (1, 0), (1, 3)] {
        for same_block in [false, true] {
            let mut parts = sound();
            let key = parts[part][block].1[1].clone();
            if same_block {
                parts[part][block].1.push(key.clone());
            } else {
                let mut other: Vec<Put> = keys_of(1, block as u32).skip(20).take(2).collect();
                other.push(key.clone());
                parts[1 - part].push((block as u32, other));
            }
            let damage = damage_of(&parts);
            let DamageCause::RepeatedKey { table, key: told, other, other_offset } = &damage.cause
            else {
                panic!("{damage}");
            };
            assert_eq!((*table, told), (1, &key.key));
            assert!(damage.offset >= HEADER_BYTES as u64 && *other_offset >= HEADER_BYTES as u64);
            assert_eq!(same_block, (&damage.file, damage.offset) == (other, *other_offset));
            let said = damage.to_string();
            assert!(said.contains("part-00") && said.contains("key "), "{said}");
        }
    }
}

#[test]
fn a_large_value_that_comes_twice_is_told() {
    let pieces = || {
        let home = partition(&piece("large", 0, FRAGMENT));
        let of = |offset, bytes| (home, vec![piece("large", offset, bytes)]);
        vec![of(0, FRAGMENT), of(FRAGMENT, FRAGMENT), of(2 * FRAGMENT, 10)]
    };
    let damage = damage_of(&[pieces(), pieces()]);
    assert!(matches!(damage.cause, DamageCause::RepeatedKey { .. }), "{damage}");
}

#[test]
fn a_key_in_another_partition_is_told() {
    let mut parts = sound();
    let (stray, claimed) = (keys_of(1, 3).nth(30).expect("endless"), 1);
    parts[1][claimed].1.push(stray);
    let damage = damage_of(&parts);
    assert!(damage.to_string().contains("another partition"), "{damage}");
    assert!(damage.file.ends_with("part-001"), "{damage}");
}

#[test]
fn counts_other_than_the_manifests_are_told() {
    let (disk, sound) = checkpoint(&sound());
    let changes: [fn(&mut CheckpointEntry); 4] = [
        |entry| {
            entry.table_records[0].records += 1;
            entry.table_records[1].records -= 1;
        },
        |entry| entry.table_records[1].table = 3,
        |entry| entry.table_records.push(TableRecords { table: 4, records: 1 }),
        |entry| entry.table_records.clear(),
    ];
    for change in changes {
        let mut entry = sound.clone();
        change(&mut entry);
        let damage = verified(&disk, &entry).expect_err("it was not seen");
        let DamageCause::TableRecords { table, found, expected } = damage.cause else {
            panic!("{damage}");
        };
        let records = |of: &CheckpointEntry| {
            let stated = of.table_records.iter().find(|stated| stated.table == table);
            stated.map_or(0, |stated| stated.records)
        };
        assert_eq!((found, expected), (records(&sound), records(&entry)));
    }
    let mut entry = sound.clone();
    changes[0](&mut entry);
    assert_eq!(all_of(&disk, &entry).damage.len(), 2, "one of each table");
    let mut entry = sound.clone();
    entry.parts[0].records += 1;
    entry.parts[1].records -= 1;
    let verified = all_of(&disk, &entry);
    assert_eq!(verified.damage.len(), 2, "one of each part");
    for damage in &verified.damage {
        assert!(damage.to_string().contains("number of records in the index"), "{damage}");
    }
}

#[test]
fn a_deletion_in_a_full_checkpoint_is_told() {
    let mut parts = sound();
    let mut deleted = keys_of(2, 2).nth(40).expect("endless");
    deleted.item = Item::Tombstone;
    parts[0][2].1.push(deleted);
    let (disk, mut entry) = checkpoint(&parts);
    let damage = verified(&disk, &entry).expect_err("it was not seen");
    assert!(damage.to_string().contains("a deletion in a full checkpoint"), "{damage}");
    assert!(damage.offset > HEADER_BYTES as u64);
    // An entry of another kind names another directory, so the files are missing.
    entry.kind = CheckpointKind::Partial;
    let damage = verified(&disk, &entry).expect_err("another directory");
    assert_eq!(damage.cause, DamageCause::Missing);
}

/// Every way to spoil a value in three fragments.
#[test]
fn a_large_value_that_is_not_whole_is_told() {
    let (first, second, third) = (
        piece("large", 0, FRAGMENT),
        piece("large", FRAGMENT, FRAGMENT),
        piece("large", 2 * FRAGMENT, 10),
    );
    let home = partition(&first);
    let other = Put { key: b"other".to_vec(), ..second.clone() };
    let longer = Put { item: Item::Piece(FRAGMENT, FRAGMENT, LARGE + 1), ..second.clone() };
    let of_other_table = Put { table: 2, ..second.clone() };
    let later = Put { generation: 2, ..second.clone() };
    let between = keys_of(1, home).nth(50).expect("endless");
    let elsewhere = keys_of(1, (home + 1) % 4).next().expect("endless");
    let spoilt: Vec<Vec<&Put>> = vec![
        vec![&first, &second],
        vec![&first, &third],
        vec![&second, &third],
        vec![&first],
        vec![&third],
        vec![&first, &third, &second],
        vec![&second, &first, &third],
        vec![&first, &second, &second, &third],
        vec![&first, &second, &third, &third],
        vec![&first, &other, &second, &third],
        vec![&first, &longer, &third],
        vec![&first, &of_other_table, &third],
        vec![&first, &later, &third],
        vec![&first, &between, &second, &third],
        vec![&first, &elsewhere, &second, &third],
    ];
    for (number, pieces) in spoilt.iter().enumerate() {
        let blocks: Blocks =
            pieces.iter().map(|&put| (partition(put), vec![put.clone()])).collect();
        let damage = damage_of(&[blocks]);
        let said = damage.to_string();
        assert!(
            damage.offset >= HEADER_BYTES as u64 && said.contains("part-000"),
            "{number}: {said}"
        );
    }
    // The fragments of a value lie in two files.
    let of = |put: &Put| (home, vec![put.clone()]);
    let damage = damage_of(&[vec![of(&first), of(&second)], vec![of(&third)]]);
    assert!(damage.to_string().contains("large value"), "{damage}");
}

/// Changes a byte of some blocks of a part, given by their number in the file. Returns the blocks'
/// offsets.
fn spoil(disk: &Arc<dyn Disk>, entry: &CheckpointEntry, part: usize, blocks: &[usize]) -> Vec<u64> {
    let path = Path::new(&dir_of(entry)).join(&entry.parts[part].file);
    let bytes = read_all(&**disk, &path).expect("no fault");
    let header = PartHeader::decode(&bytes).expect("sound");
    let index = PartIndex::of_file(header.identity(), &bytes, PARTITIONS_LOG2).expect("sound");
    let mut offsets: Vec<u64> = index.blocks().iter().map(|block| block.offset).collect();
    offsets.sort_unstable();
    let file = disk.open(&path, OpenMode::ReadWrite, Caching::Buffered).expect("no fault");
    let spoilt = blocks.iter().map(|number| {
        // The byte lies in the first key, behind the heads of block and entry.
        let at = offsets[*number] + 60;
        file.write_at(&[!bytes[at as usize]], at).expect("no fault");
        offsets[*number]
    });
    spoilt.collect()
}

fn places(verified: &Verified) -> Vec<(String, u64)> {
    let name = |damage: &Damage| damage.file.file_name().map(|name| name.to_string_lossy().into());
    verified.damage.iter().map(|damage| (name(damage).expect("a file"), damage.offset)).collect()
}

#[test]
fn every_damaged_block_and_file_is_told() {
    let mut parts = sound();
    parts.push(sound().remove(0));
    // One block of the last part repeats keys of the first part. The file has no other damage.
    parts[2].truncate(1);
    let twice = parts[2][0].1.len();
    let stray = keys_of(1, 3).nth(30).expect("endless");
    parts[2].push((1, vec![stray]));
    let (disk, entry) = checkpoint(&parts);
    let spoilt = spoil(&disk, &entry, 0, &[1, 3]);
    disk.remove(&Path::new(&dir_of(&entry)).join("part-001")).expect("no fault");
    let verified = all_of(&disk, &entry);
    let mut expected: Vec<(String, u64)> =
        spoilt.into_iter().map(|offset| ("part-000".to_owned(), offset)).collect();
    expected.push(("part-001".to_owned(), 0));
    expected.extend(vec![("part-002".to_owned(), HEADER_BYTES as u64); twice]);
    let told = places(&verified);
    assert_eq!(told[..told.len() - 1], expected, "{verified:?}");
    let causes: Vec<String> =
        verified.damage.iter().map(|damage| damage.cause.to_string()).collect();
    assert!(causes[0].contains("checksum") && causes[2].contains("does not exist"), "{causes:?}");
    assert!(causes.last().is_some_and(|last| last.contains("another partition")), "{causes:?}");
    assert_eq!(verified.damage_more, 0);
}

/// The fragments behind the damaged one are not reported as well. The records behind them are read.
#[test]
fn a_large_value_with_a_damaged_fragment_is_told_once() {
    let home = partition(&piece("large", 0, FRAGMENT));
    let of = |put: &Put| (home, vec![put.clone()]);
    let sizes = [(0, FRAGMENT), (FRAGMENT, FRAGMENT), (2 * FRAGMENT, 10)];
    let fragments = sizes.map(|(offset, bytes)| of(&piece("large", offset, bytes)));
    let twice = keys_of(1, home).nth(20).expect("endless");
    for damaged in 0..3 {
        let mut blocks: Blocks = fragments.to_vec();
        blocks.extend([of(&twice), of(&twice)]);
        let (disk, entry) = checkpoint(&[blocks]);
        let at = spoil(&disk, &entry, 0, &[damaged])[0];
        let verified = all_of(&disk, &entry);
        assert_eq!(verified.damage.len(), 2, "{verified:?}");
        assert_eq!(verified.damage[0].offset, at);
        assert!(matches!(verified.damage[1].cause, DamageCause::RepeatedKey { .. }));
    }
}

#[test]
fn of_much_damage_the_first_is_told_and_the_rest_counted() {
    let blocks = DAMAGE_MAX * 5 / 2;
    let part: Blocks = keys_of(1, 2).take(blocks + 1).map(|put| (2, vec![put])).collect();
    let (disk, entry) = checkpoint(&[part]);
    // The first block stays sound.
    let spoilt = spoil(&disk, &entry, 0, &(1..=blocks).collect::<Vec<_>>());
    let verified = all_of(&disk, &entry);
    let told: Vec<u64> = verified.damage.iter().map(|damage| damage.offset).collect();
    assert_eq!(told, spoilt[..DAMAGE_MAX]);
    assert_eq!(verified.damage_more, (blocks - DAMAGE_MAX) as u64);
}

#[test]
fn a_pass_takes_as_many_partitions_as_the_bound_allows() {
    let ends = |of_partition: &[u64], records_max| -> Vec<(u32, u64)> {
        let passes = grouped(of_partition, records_max);
        passes.iter().map(|pass| (pass.partitions.end, pass.records)).collect()
    };
    assert_eq!(ends(&[3, 3, 3, 0, 5, 9, 1], 6), [(2, 6), (4, 3), (5, 5), (6, 9), (7, 1)]);
    assert_eq!(ends(&[1, 1, 1], u64::MAX), [(3, 3)]);
}
