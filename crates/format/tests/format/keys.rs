//! The key map of a part.

use std::collections::HashSet;

use proptest::prelude::*;
use stillpoint_format::DecodeError;
use stillpoint_format::hash::{KeyHasher, partition_of};
use stillpoint_format::part::{
    BlockReader, Codec, Content, FRAGMENT_BYTES, KeyMap, PartHeader, PartIndex, TRAILER_BYTES,
    Trailer,
};

use crate::common::part::{KeyAndValue, keyed_part_file, part_file, part_header};

const TABLE: u16 = 5;

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn rows(count: u32) -> Vec<KeyAndValue> {
    let value =
        |number: u32| (!number.is_multiple_of(7)).then(|| (3.into(), vec![number as u8; 20]));
    (0..count).map(|number| (TABLE, 1, key(number), value(number))).collect()
}

/// The footer of a file, its offset, and the index in it.
fn footer(header: &PartHeader, file: &[u8]) -> (Vec<u8>, u64, PartIndex) {
    let (identity, len) = (header.identity(), file.len());
    let trailer = Trailer::decode(identity, &file[len - TRAILER_BYTES..], len as u64);
    let trailer = trailer.expect("sound");
    let bytes = file[trailer.footer_offset as usize..len - TRAILER_BYTES].to_vec();
    let index = PartIndex::decode(identity, &bytes, &trailer, header.partitions_log2);
    (bytes, trailer.footer_offset, index.expect("sound"))
}

fn map(header: &PartHeader, file: &[u8]) -> (PartIndex, Option<KeyMap>) {
    let (bytes, at, index) = footer(header, file);
    let map = KeyMap::decode(bytes, at, &index, header.partitions_log2).expect("sound");
    (index, map)
}

/// Offsets of the blocks in which the keys of a file begin.
fn begins(header: &PartHeader, file: &[u8], index: &PartIndex) -> Vec<(u64, u64)> {
    let (hasher, mut reader) =
        (KeyHasher::new(header.hash_seed), BlockReader::new(header.identity()));
    let mut begins = Vec::new();
    for block in index.blocks() {
        let opened = reader.open_indexed(block, &file[block.offset as usize..]).expect("sound");
        for entry in opened.entries().map(|entry| entry.expect("sound")) {
            if !matches!(entry.content, Content::Fragment(of, _) if of.offset > 0) {
                begins.push((hasher.hash(entry.key.table, entry.key.key), block.offset));
            }
        }
    }
    begins
}

fn blocks_of(index: &PartIndex, map: &KeyMap, hash: u64, log2: u8) -> Vec<u64> {
    let of_partition = index.partition(partition_of(hash, log2));
    map.blocks_of(hash).map(|number| of_partition[number].offset).collect()
}

#[test]
fn the_map_leads_to_each_key_and_to_hardly_another_block() {
    for (log2, count, target) in [(0, 1, 100), (4, 30_000, 2_000), (0, 30_000, 900), (16, 500, 300)]
    {
        let header = PartHeader { partitions_log2: log2, ..part_header(Codec::Lz4) };
        let (file, _) = keyed_part_file(&header, target, rows(count));
        let (index, map) = map(&header, &file);
        let map = map.expect("this build writes maps");
        let begins = begins(&header, &file, &index);
        assert_eq!(begins.len(), count as usize);
        let mut others = 0;
        for (hash, offset) in begins {
            let named = blocks_of(&index, &map, hash, log2);
            assert!(named.contains(&offset), "the map does not lead to a key");
            let distinct: HashSet<u64> = named.iter().copied().collect();
            assert_eq!(distinct.len(), named.len(), "a block is named twice");
            others += named.len() - 1;
        }
        let hasher = KeyHasher::new(header.hash_seed);
        let absent = (0..10_000).map(|number| hasher.hash(TABLE + 1, &key(number)));
        let for_absent: usize = absent.map(|hash| blocks_of(&index, &map, hash, log2).len()).sum();
        // 16 keys of a bucket have 16 bits each: one in 4,096.
        assert!(others <= count as usize / 500 && for_absent <= 20, "{others} and {for_absent}");
    }
}

/// A sample of a part says which share of its keys another part has, whatever the numbers of their keys.
#[test]
fn a_sample_tells_how_many_keys_two_parts_share() {
    let make = |log2: u8, numbers: &mut dyn Iterator<Item = u32>| {
        let header = PartHeader { partitions_log2: log2, ..part_header(Codec::None) };
        let rows = numbers.map(|number| (TABLE, 1, key(number), Some((0.into(), vec![1; 20]))));
        let (file, _) = keyed_part_file(&header, 2_000, rows);
        map(&header, &file).1.expect("this build writes maps")
    };
    let all = 200_000;
    for log2 in [0, 4] {
        let whole = make(log2, &mut (0..all));
        for every in [2, 10, 1_000] {
            let some = make(4, &mut (0..all).step_by(every));
            let sample = whole.sample(1_000);
            assert!((1_000..1_100).contains(&sample.len()), "{} keys", sample.len());
            let shared = sample.iter().filter(|begin| some.may_have(**begin)).count();
            let expected = sample.len() / every;
            let spread = 20 + 3 * (expected as f64).sqrt() as usize;
            assert!(shared.abs_diff(expected) <= spread, "1 of {every}: {shared} keys");
            // All keys of the smaller part are in the larger one.
            let sample = some.sample(100);
            assert!(!sample.is_empty() && sample.iter().all(|&begin| whole.may_have(begin)));
        }
    }
    assert!(make(4, &mut (0..0)).sample(10).is_empty());
}

#[test]
fn a_large_value_is_found_where_it_begins() {
    let header = part_header(Codec::None);
    let large = (TABLE, 1, b"large".to_vec(), Some((1.into(), vec![7; 2 * FRAGMENT_BYTES + 1])));
    let (file, _) = keyed_part_file(&header, 1_000, rows(50).into_iter().chain([large]));
    let (index, map) = map(&header, &file);
    let hash = KeyHasher::new(header.hash_seed).hash(TABLE, b"large");
    let named = blocks_of(&index, &map.expect("a map"), hash, header.partitions_log2);
    let first = index.blocks().iter().find(|block| named.contains(&block.offset));
    assert_eq!((named.len(), first.map(|block| block.values)), (1, Some(1)));
}

#[test]
fn parts_of_earlier_releases_have_no_map() {
    let header = part_header(Codec::None);
    let (file, _) = part_file(&header, 1_000, &[(3, rows(1).remove(0))]);
    assert_eq!(map(&header, &file).1, None);
    let (empty, _) = keyed_part_file(&header, 1_000, []);
    let (index, map) = map(&header, &empty);
    assert!(
        index.blocks().is_empty() && map.expect("a map of nothing").blocks_of(7).next().is_none()
    );
}

/// Decodes a map whose bytes were changed behind the checksum.
fn forged(change: impl Fn(&mut Vec<u8>, usize)) -> Result<Option<KeyMap>, DecodeError> {
    let header = part_header(Codec::None);
    let (file, _) = keyed_part_file(&header, 500, rows(400));
    let (mut bytes, at, index) = footer(&header, &file);
    let begin = (48 + 36 * index.blocks().len()).next_multiple_of(8);
    change(&mut bytes, begin);
    KeyMap::decode(bytes, at, &index, header.partitions_log2)
}

#[test]
fn forged_maps_are_refused() {
    assert!(forged(|_, _| ()).is_ok_and(|map| map.is_some()));
    assert!(forged(|bytes, at| bytes[at] ^= 1).is_ok_and(|map| map.is_none()), "another magic");
    // Length, partition, keys, buckets, bytes of a number and of a tag, the first bucket's end.
    for (offset, byte) in
        [(8, 1), (8, 255), (15, 1), (16, 9), (20, 1), (24, 17), (25, 3), (26, 2), (33, 9)]
    {
        let error = forged(|bytes, at| bytes[at + offset] = byte);
        assert!(error.is_err(), "byte {offset} as {byte}");
    }
    let error = forged(|bytes, at| {
        let keys = usize::from(bytes[at + 20]);
        let buckets = 4 << bytes[at + 24];
        let numbers = at + 32 + buckets + usize::from(bytes[at + 26]) * keys;
        bytes[numbers + 1] = 200;
    });
    assert!(error.is_err_and(|error| error.to_string().contains("not there")));
}

proptest! {
    /// Whatever the bytes of a map are, decoding and asking end.
    #[test]
    fn no_map_panics(changes in prop::collection::vec((0usize..3000, any::<u8>()), 1..20)) {
        let decoded = forged(|bytes, at| {
            for &(offset, byte) in &changes {
                let len = bytes.len();
                bytes[(at + offset) % len] = byte;
            }
        });
        if let Ok(Some(map)) = decoded {
            for hash in (0..64).map(|number| number << 58 | 0x1234_5678_9ABC) {
                prop_assert!(map.blocks_of(hash).count() <= 400);
            }
        }
    }
}
