//! Tests of checkpoint parts: round trips, limits, damage.

use crate::common::forge::forge_block;
use crate::common::part::{KeyAndValue, part_file, part_header, read_part};
use crate::common::segment_header;
use proptest::prelude::*;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::names::CheckpointKind;
use stillpoint_format::part::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockBuilder, BlockReader, Codec, Compressor, Content,
    Entry, FRAGMENT_BYTES, Fragment, FragmentJoiner, IndexBuilder, KeyRef, PartHeader, PartIndex,
    TRAILER_BYTES, Trailer, fragments,
};
use stillpoint_format::{DecodeCause, EncodeError, KEY_BYTES_MAX, Label, VALUE_BYTES_MAX};

const CODECS: [Codec; 3] = [Codec::None, Codec::Lz4, Codec::Zstd];
const KEY: KeyRef<'static> = KeyRef { table: 3, generation: 9, key: b"key" };

fn label() -> impl Strategy<Value = Label> {
    let deadline = prop_oneof![Just(0), any::<u64>()];
    (any::<u8>(), deadline).prop_map(|(tag, deadline)| Label { tag, deadline })
}

fn rows() -> impl Strategy<Value = Vec<(u32, KeyAndValue)>> {
    let value = prop_oneof![
        1 => Just(None),
        4 => (label(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(Some),
        2 => (label(), any::<u8>(), 0usize..5000)
            .prop_map(|(label, byte, len)| Some((label, vec![byte; len]))),
    ];
    let key = prop::collection::vec(any::<u8>(), 0..40);
    let row = (0u32..16, (any::<u16>(), any::<u32>(), key, value));
    prop::collection::vec(row, 0..60).prop_map(|mut rows| {
        rows.sort_by_key(|row| row.0);
        rows
    })
}

proptest! {
    #[test]
    fn parts_round_trip(
        rows in rows(),
        codec in prop::sample::select(CODECS.to_vec()),
        target in 1usize..5000,
    ) {
        let header = part_header(codec);
        let (file, crc) = part_file(&header, target, &rows);
        prop_assert!(file.len().is_multiple_of(4096));
        prop_assert_eq!(read_part(&file).unwrap(), rows.clone());
        let index = PartIndex::of_file(header.identity(), &file, 4).unwrap();
        prop_assert_eq!(index.crc(), crc);
        let values = rows.iter().filter_map(|(_, row)| row.3.as_ref());
        prop_assert_eq!(index.totals().values, values.clone().count() as u64);
        prop_assert_eq!(index.totals().tombstones as usize, rows.len() - values.clone().count());
        prop_assert_eq!(index.totals().value_bytes, values.map(|v| v.1.len() as u64).sum::<u64>());
        for partition in 0..16 {
            let of: u64 = index.partition(partition).iter().map(|e| u64::from(e.values + e.tombstones)).sum();
            prop_assert_eq!(of as usize, rows.iter().filter(|row| row.0 == partition).count());
        }
    }
}

#[test]
fn headers_round_trip_and_expect() {
    for codec in CODECS {
        let header = part_header(codec);
        assert_eq!(PartHeader::decode(&header.encode()), Ok(header));
    }
    let header = part_header(Codec::None);
    let (store, kind) = (header.store, header.kind);
    assert_eq!(header.expect(store, 7, kind, 3), Ok(()));
    for (epoch, kind, part, field) in [
        (8, kind, 3, "epoch"),
        (7, CheckpointKind::Full, 3, "checkpoint kind"),
        (7, kind, 4, "part"),
    ] {
        let error = header.expect(store, epoch, kind, part).expect_err(field);
        assert!(matches!(error.cause, DecodeCause::WrongFile { field: f, .. } if f == field));
    }
    // A log segment is not a part.
    let error = PartHeader::decode(&segment_header().encode()).expect_err("another kind");
    assert!(matches!(error.cause, DecodeCause::WrongFile { field: "file kind", .. }));
}

#[test]
fn the_longest_keys_and_values_round_trip() {
    let long_key = vec![5; KEY_BYTES_MAX];
    let text: Vec<u8> = (0..3 * FRAGMENT_BYTES + 17).map(|n| (n % 251) as u8).collect();
    let rows = vec![
        (0, (1, 1, long_key.clone(), Some((1.into(), text[..FRAGMENT_BYTES].to_vec())))),
        (1, (1, 1, b"small".to_vec(), Some((0.into(), b"v".to_vec())))),
        (1, (1, 1, long_key, Some((2.into(), text.clone())))),
        (1, (1, 1, b"exact".to_vec(), Some((3.into(), text[..2 * FRAGMENT_BYTES].to_vec())))),
        (1, (1, 1, b"after".to_vec(), None)),
    ];
    for codec in CODECS {
        let (file, _) = part_file(&part_header(codec), 64 << 10, &rows);
        assert_eq!(read_part(&file).expect("own file"), rows, "{codec:?}");
        let index = PartIndex::of_file(part_header(codec).identity(), &file, 4).expect("index");
        assert_eq!(index.totals().values, 4);
        assert!(index.blocks().iter().all(|b| b.uncompressed_bytes as usize <= BLOCK_BYTES_MAX));
        if codec != Codec::None {
            assert!(file.len() < 1 << 20, "{codec:?}: {} bytes", file.len());
        }
    }
}

#[test]
fn fragments_cover_a_value() {
    assert_eq!(fragments(0).count(), 0);
    for len in [1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, VALUE_BYTES_MAX] {
        let mut at = 0;
        for (fragment, bytes) in fragments(len as u32) {
            assert_eq!((fragment.offset as usize, fragment.total as usize), (at, len));
            assert!((1..=FRAGMENT_BYTES).contains(&bytes));
            at += bytes;
        }
        assert_eq!(at, len);
    }
}

#[test]
fn joiner_refuses_gaps_repeats_and_strangers() {
    let piece = |key, offset, bytes: &'static [u8]| Entry {
        key,
        label: Label { tag: 1, deadline: 5 },
        gsn: 0,
        content: Content::Fragment(Fragment { offset, total: 4 }, bytes),
    };
    let (a, b) = (piece(KEY, 0, b"ab"), piece(KEY, 2, b"cd"));
    let other = KeyRef { key: b"other", ..KEY };
    let value = Entry { content: Content::Value(b""), ..a };
    let later = Entry { label: Label { tag: 1, deadline: 6 }, ..b };
    for bad in [
        vec![b],
        vec![a, a],
        vec![a, piece(KEY, 3, b"d")],
        vec![a, piece(other, 2, b"cd")],
        vec![a, value],
        vec![a, later],
        vec![a, piece(KEY, 2, b"")],
    ] {
        let mut joiner = FragmentJoiner::default();
        let last = bad.len() - 1;
        for (n, entry) in bad.iter().enumerate() {
            assert_eq!(joiner.push(entry).is_err(), n == last, "{bad:?}");
        }
    }
    let mut joiner = FragmentJoiner::default();
    assert_eq!(joiner.push(&a), Ok(None));
    assert!(joiner.finish().is_err());
    let joined = joiner.push(&b).expect("fits").expect("complete");
    assert_eq!((joined.key, joined.label, joined.value), (KEY, a.label, &b"abcd"[..]));
    assert_eq!(joiner.finish(), Ok(()));
}

#[test]
fn builder_fills_rolls_back_and_refuses() {
    let mut block = BlockBuilder::with_target(5, 100);
    let long = vec![0; KEY_BYTES_MAX + 1];
    let bytes = KEY_BYTES_MAX + 1;
    let too_long = KeyRef { key: &long, ..KEY };
    assert_eq!(block.push_value(too_long, 0, b""), Err(EncodeError::KeyTooLong { bytes }));
    let big = vec![0; FRAGMENT_BYTES + 1];
    let bytes = FRAGMENT_BYTES + 1;
    assert_eq!(block.push_value(KEY, 0, &big), Err(EncodeError::ValueTooLong { bytes }));
    let outside = Fragment { offset: 3, total: 4 };
    let error = block.push_fragment(KEY, (Label::default(), 0), outside, b"xy");
    assert_eq!(error, Err(EncodeError::ValueTooLong { bytes: 5 }));
    assert!(block.is_empty());

    // An empty block takes a long entry; then it is full.
    block.push_value(KEY, 0, &[1; 500]).expect("empty block");
    assert_eq!(block.push_tombstone(KEY), Err(EncodeError::BlockFull));
    block.reset(6);
    block.push_value(KEY, 1, b"first").expect("room");
    let mark = block.mark();
    block.push_tombstone(KEY).expect("room");
    let (key, value) = block.reserve_value(1, 1, 2, 7, 3).expect("room");
    assert_eq!((key.len(), value.len()), (2, 3));
    block.rollback(mark);
    let (key, value) = block.reserve_value(3, 9, 3, 8, 6).expect("room");
    key.copy_from_slice(b"key");
    value.copy_from_slice(b"second");
    assert_eq!((block.entry_count(), block.partition()), (2, 6));
    assert_eq!(block.push_value(KEY, 0, &[0; 60]), Err(EncodeError::BlockFull));

    let mut bytes = Vec::new();
    let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
    let identity = part_header(Codec::None).identity();
    let entry = block.seal(&mut compressor, identity, 4096, &mut bytes).expect("no codec");
    assert_eq!((entry.values, entry.tombstones, entry.value_bytes), (2, 0, 11));
    let mut reader = BlockReader::new(identity);
    let read = reader.open_indexed(&entry, &bytes).expect("own block");
    let read: Vec<_> = read.entries().map(|entry| entry.expect("own entry")).collect();
    let expected = [(1, Content::Value(b"first")), (8, Content::Value(b"second"))]
        .map(|(tag, content): (u8, _)| Entry { key: KEY, label: tag.into(), gsn: 0, content });
    assert_eq!(read, expected);
}

/// Stamps take eight bytes of the entries that have one.
#[test]
fn stamps_come_back_and_others_pay_nothing() {
    let mut block = BlockBuilder::new(0);
    let of = (8u8.into(), 41);
    let (key, value) = block.reserve_record((3, 9), 3, of, 6).expect("room");
    key.copy_from_slice(KEY.key);
    value.copy_from_slice(b"second");
    let with = block.bytes();
    block.push_value(KEY, 8, b"second").expect("room");
    assert_eq!(with, block.bytes() - with + 8);
    block.push_stamped_tombstone(KEY, 42).expect("room");
    let fragment = Fragment { offset: 2, total: 8 };
    let until = Label { tag: 7, deadline: 99 };
    block.push_fragment(KEY, (until, 43), fragment, b"middle").expect("room");
    block.push_value(KEY, until, b"later").expect("room");
    let mut bytes = Vec::new();
    let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
    let identity = part_header(Codec::None).identity();
    let entry = block.seal(&mut compressor, identity, 4096, &mut bytes).expect("no codec");
    let mut reader = BlockReader::new(identity);
    let read = reader.open_indexed(&entry, &bytes).expect("own block");
    let read: Vec<_> = read.entries().map(|entry| entry.expect("own entry")).collect();
    let expected = [
        (Label::from(8), 41, Content::Value(b"second")),
        (8.into(), 0, Content::Value(b"second")),
        (0.into(), 42, Content::Tombstone),
        (until, 43, Content::Fragment(fragment, b"middle")),
        (until, 0, Content::Value(b"later")),
    ];
    assert_eq!(read, expected.map(|(label, gsn, content)| Entry { key: KEY, label, gsn, content }));
    // The stamp of the first entry lies behind the head of 16 bytes. The gsn of a stamp is neither
    // 0 nor as great as 2^52.
    for gsn in [0, 1 << 52] {
        let mut forged = bytes.clone();
        forged[56..64].copy_from_slice(&u64::to_le_bytes(gsn));
        forge_block(identity, 4096, &mut forged);
        let read = reader.open(&forged, 4096).expect("right checksums");
        let error = read.entries().find_map(Result::err).expect("an impossible stamp");
        assert!(error.to_string().contains("impossible stamp"), "{error}");
    }
}

/// A part with several blocks, compressed and plain ones, without fragments.
fn sample(codec: Codec) -> Vec<u8> {
    let rows: Vec<(u32, KeyAndValue)> = (0..40u32)
        .map(|n| {
            let value = (n % 5 != 4).then(|| ((n as u8).into(), vec![n as u8; 60]));
            (n / 13, (n as u16 % 3, 1, format!("key:{n}").into_bytes(), value))
        })
        .collect();
    part_file(&part_header(codec), 600, &rows).0
}

#[test]
fn every_bit_flip_is_detected() {
    for codec in CODECS {
        let file = sample(codec);
        assert!(read_part(&file).is_ok());
        let mut flipped = file.clone();
        for bit in 0..file.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read_part(&flipped).is_err(), "{codec:?}, bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_truncation_is_detected() {
    let file = sample(Codec::Lz4);
    for len in 0..file.len() {
        assert!(read_part(&file[..len]).is_err(), "{len} bytes");
    }
    let longer = [&file[..], &[0; 4096]].concat();
    assert!(read_part(&longer).is_err());
}

#[test]
fn swapped_stale_and_misplaced_blocks_are_detected() {
    let header = part_header(Codec::None);
    let mut bytes = Vec::new();
    let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
    let mut block = BlockBuilder::new(1);
    block.push_value(KEY, 0, b"value").expect("room");
    block.seal(&mut compressor, header.identity(), 4096, &mut bytes).expect("no codec");
    let cause = |identity, offset| {
        BlockReader::new(identity).open(&bytes, offset).map(|_| ()).map_err(|error| error.cause)
    };
    assert_eq!(cause(header.identity(), 4096), Ok(()));
    let others = [
        (header.identity(), 8192),
        (PartHeader { epoch: 6, ..header }.identity(), 4096),
        (PartHeader { part: 4, ..header }.identity(), 4096),
        (PartHeader { kind: CheckpointKind::Full, ..header }.identity(), 4096),
        (PartHeader { created_ms: 5, ..header }.identity(), 4096),
        (segment_header().identity(), 4096),
    ];
    for (identity, offset) in others {
        let cause = cause(identity, offset);
        assert!(matches!(cause, Err(DecodeCause::Checksum { .. })), "{cause:?}");
    }
}

#[test]
fn a_block_of_another_attempt_does_not_match_the_index() {
    let header = part_header(Codec::None);
    let make = |value: &[u8]| {
        let row = (1, 1, b"k".to_vec(), Some((0.into(), value.to_vec())));
        part_file(&header, 4096, &[(0, row)]).0
    };
    let (mut file, other) = (make(b"new"), make(b"old"));
    // Both blocks have the same identity, offset and lengths, so only the index tells them apart.
    file[HEADER_BYTES..HEADER_BYTES + 60].copy_from_slice(&other[HEADER_BYTES..HEADER_BYTES + 60]);
    let mut reader = BlockReader::new(header.identity());
    assert!(reader.open(&file[HEADER_BYTES..], 4096).is_ok());
    let error = read_part(&file).expect_err("stale block");
    assert!(matches!(error.cause, DecodeCause::Checksum { .. }), "{error}");
}

#[test]
fn blocks_can_be_walked_without_the_index() {
    let file = sample(Codec::Zstd);
    let header = PartHeader::decode(&file).expect("own header");
    let tail = &file[file.len() - TRAILER_BYTES..];
    let trailer = Trailer::decode(header.identity(), tail, file.len() as u64).expect("trailer");
    let mut reader = BlockReader::new(header.identity());
    let (mut at, mut entries) = (HEADER_BYTES, 0);
    while (at as u64) < trailer.footer_offset {
        let len = reader.block_len(&file[at..], at as u64).expect("block");
        let block = reader.open(&file[at..at + len], at as u64).expect("block");
        entries += block.entries().inspect(|entry| assert!(entry.is_ok())).count();
        at += len;
    }
    assert_eq!((at as u64, entries), (trailer.footer_offset, 40));
}

/// Announced lengths are bounded before anything is allocated. The header has right checksums and
/// absurd lengths.
#[test]
fn forged_lengths_are_refused() {
    let identity = part_header(Codec::Lz4).identity();
    let mut block = BlockBuilder::new(0);
    block.push_value(KEY, 0, &[0; 1000]).expect("room");
    let mut bytes = Vec::new();
    let mut compressor = Compressor::new(Codec::Lz4, 0).expect("lz4");
    block.seal(&mut compressor, identity, 4096, &mut bytes).expect("lz4");
    for (len, matches) in [
        (u32::MAX, "block uncompressed length"),
        (BLOCK_BYTES_MAX as u32, "lz4 payload"),
        (999, "lz4 payload"),
        (15, "entry count"),
    ] {
        let mut forged = bytes.clone();
        forged[16..20].copy_from_slice(&len.to_le_bytes());
        forge_block(identity, 4096, &mut forged);
        let mut reader = BlockReader::new(identity);
        let error = reader.open(&forged, 4096).map(|_| ()).expect_err("forged").to_string();
        assert!(error.contains(matches), "{len}: {error}");
    }
}

/// Entries that no builder writes are refused, in a block with right checksums.
#[test]
fn forged_entries_are_refused() {
    let identity = part_header(Codec::None).identity();
    let mut block = BlockBuilder::new(0);
    let fragment = Fragment { offset: 4, total: 8 };
    block.push_fragment(KEY, (7.into(), 0), fragment, b"tail").expect("room");
    let mut bytes = Vec::new();
    let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
    block.seal(&mut compressor, identity, 4096, &mut bytes).expect("no codec");
    // The entry is at 40: flags at 42, lengths at 48 and 52, offset and total at 56 and 60.
    let cases: &[(usize, u32, &str)] = &[
        (48, KEY_BYTES_MAX as u32 + 1, "key length"),
        (48, 100, "truncated"),
        (52, FRAGMENT_BYTES as u32 + 1, "value length"),
        (52, 3, "do not fill"),
        (56, 5, "fragment outside its value"),
        (56, u32::MAX, "fragment outside its value"),
        (60, 7, "fragment outside its value"),
        (60, VALUE_BYTES_MAX as u32 + 1, "fragment outside its value"),
        (40, 0x0703_0003, "unknown entry flags 3"),
        (40, 0x0700_0003, "unknown entry flags 0"),
        (40, 0x0002_0003, "unknown entry flags 2"),
    ];
    for &(at, value, message) in cases {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&value.to_le_bytes());
        forge_block(identity, 4096, &mut forged);
        let mut reader = BlockReader::new(identity);
        let opened = reader.open(&forged, 4096).expect("checksums are right");
        let mut entries = opened.entries();
        let error = entries.by_ref().find_map(Result::err).expect(message).to_string();
        assert!(error.contains(message), "{at}: {error}");
        assert!(entries.next().is_none(), "the iterator goes on after an error");
    }
}

/// Footers with right checksums and contradicting fields are refused.
#[test]
fn forged_footers_are_refused() {
    let header = part_header(Codec::None);
    let file = sample(Codec::None);
    let len = file.len();
    let trailer = Trailer::decode(header.identity(), &file[len - TRAILER_BYTES..], len as u64);
    let trailer = trailer.expect("trailer");
    let (start, end) = (trailer.footer_offset as usize, len - TRAILER_BYTES);
    let footer = |change: &dyn Fn(&mut [u8])| {
        let mut footer = file[start..end].to_vec();
        change(&mut footer);
        let crc = header.identity().checksum(trailer.footer_offset, &footer[8..]);
        footer[4..8].copy_from_slice(&crc.to_le_bytes());
        PartIndex::decode(header.identity(), &footer, &trailer, 4).map_err(|e| e.to_string())
    };
    assert!(footer(&|_| {}).is_ok());
    // Counts, totals, then fields of the first entry: partition, offset, length, counts.
    for (at, value, message) in [
        (8, u64::MAX, "does not hold its entries"),
        (8, 1, "do not add up"),
        (16, 7, "do not add up"),
        (24, 7, "do not add up"),
        (32, 7, "do not add up"),
        (40, 7, "do not add up"),
        (48, 16, "outside the part"),
        (48, 15, "do not add up"),
        (56, 0, "outside the part"),
        (56, trailer.footer_offset, "outside the part"),
        (56, u64::MAX, "outside the part"),
        (64, 39, "outside the part"),
    ] {
        let width = if at == 48 || at == 64 { 4 } else { 8 };
        let forged = footer(&|footer| {
            footer[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        });
        let error = forged.expect_err(message);
        assert!(error.contains(message), "{at}, {value}: {error}");
    }
    // A block is missing, or is a byte shorter, and everything else is consistent.
    let shorter = footer(&|footer| {
        let bytes = u32::from_le_bytes([footer[64], footer[65], footer[66], footer[67]]) - 1;
        footer[64..68].copy_from_slice(&bytes.to_le_bytes());
    });
    assert!(shorter.expect_err("a gap").contains("do not add up"));
}

#[test]
fn forged_trailers_are_refused() {
    let header = part_header(Codec::None);
    let file = sample(Codec::None);
    let len = file.len();
    for (at, value) in [(8, 0), (8, u64::MAX), (16, 0), (16, u64::MAX), (24, 4096)] {
        let mut trailer = file[len - TRAILER_BYTES..].to_vec();
        trailer[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        let crc = header.identity().checksum((len - TRAILER_BYTES) as u64, &trailer[8..]);
        trailer[4..8].copy_from_slice(&crc.to_le_bytes());
        let error = Trailer::decode(header.identity(), &trailer, len as u64).expect_err("forged");
        assert!(matches!(error.cause, DecodeCause::Inconsistent(_)), "{error}");
    }
}

#[test]
#[should_panic(expected = "blocks do not fill the part")]
fn an_index_with_a_hole_is_never_written() {
    IndexBuilder::default().finish(part_header(Codec::None).identity(), 8192);
}

#[test]
fn an_empty_part_round_trips() {
    let (file, _) = part_file(&part_header(Codec::None), 100, &[]);
    assert_eq!(file.len(), 8192);
    assert_eq!(read_part(&file), Ok(vec![]));
}

/// A plain block is padded with zeros. The block's entries read the same, its checksum covers the
/// padding, and only zeros count as padding.
#[test]
fn a_block_sealed_in_place_is_whole_units() {
    let identity = part_header(Codec::None).identity();
    let mut reader = BlockReader::new(identity);
    for value_bytes in [0, 1, 4000, 4096 - 40 - 16 - KEY.key.len(), 70_000] {
        let mut block = BlockBuilder::new(3);
        block.push_value(KEY, 7, &vec![5; value_bytes]).expect("empty block");
        let plain_bytes = block.bytes();
        let (sealed, entry) = block.seal_in_place(identity, 8192);
        assert_eq!((sealed.as_ptr().addr() % 4096, sealed.len() % 4096), (0, 0));
        assert!(sealed.len() - BLOCK_HEADER_BYTES - plain_bytes < 4096);
        assert_eq!((entry.bytes as usize, entry.partition), (sealed.len(), 3));
        assert_eq!(entry.uncompressed_bytes as usize, plain_bytes);
        let sealed = sealed.to_vec();
        let opened = reader.open_indexed(&entry, &sealed).expect("intact");
        let entries: Vec<_> = opened.entries().map(|entry| entry.expect("intact")).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].content, Content::Value(&vec![5; value_bytes]));
        let padding = BLOCK_HEADER_BYTES + plain_bytes..sealed.len();
        for at in padding.step_by(97) {
            let mut flipped = sealed.clone();
            flipped[at] ^= 1;
            reader.open(&flipped, 8192).expect_err("the checksum covers it");
            forge_block(identity, 8192, &mut flipped);
            let error = reader.open(&flipped, 8192).map(|_| ()).expect_err("not zero").to_string();
            assert!(error.contains("padding"), "{error}");
        }
        // Entries go on after a reset, as in a new block.
        block.reset(4);
        assert!(block.is_empty());
        block.push_tombstone(KEY).expect("room");
        let (_, entry) = block.seal_in_place(identity, 4096);
        assert_eq!((entry.bytes, entry.partition, entry.tombstones), (4096, 4, 1));
    }
}

/// A stored length that is too short, or longer by a whole unit of padding, is refused.
#[test]
fn forged_padding_is_refused() {
    let identity = part_header(Codec::None).identity();
    let mut block = BlockBuilder::new(0);
    block.push_value(KEY, 7, b"v").expect("room");
    let plain_bytes = block.bytes() as u32;
    let mut forged = block.seal_in_place(identity, 4096).0.to_vec();
    forged.resize(2 * 4096, 0);
    for stored in [plain_bytes - 1, plain_bytes + 4096] {
        forged.truncate(BLOCK_HEADER_BYTES + stored as usize);
        forged[12..16].copy_from_slice(&stored.to_le_bytes());
        forge_block(identity, 4096, &mut forged);
        let error = BlockReader::new(identity).open(&forged, 4096).map(|_| ()).expect_err("forged");
        assert!(error.to_string().contains("two lengths"), "{stored}: {error}");
        forged.resize(2 * 4096, 0);
    }
}
