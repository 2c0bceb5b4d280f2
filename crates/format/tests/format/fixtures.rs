//! Tests of files of format version 2 that are kept in the repository. The files must decode for as
//! long as the version is read, and today's encoding must equal them.

use stillpoint_format::log::{
    BatchBuilder, BatchPlace, BatchReader, Continuation, EndCause, RecordHead, RecordKind,
    SegmentEnd, SegmentHeader, Step, Tail, classify_tail,
};
use stillpoint_format::manifest::{Manifest, ManifestError};
use stillpoint_format::part::{BLOCK_HEADER_BYTES, Codec, PartHeader, PartIndex};
use stillpoint_format::{DecodeCause, LogGsn};

use crate::common::part::{KeyAndValue, keyed_part_file, part_file, part_header, read_part};
use crate::common::{Op, Transaction, encode_ops, manifest, segment_header, writes_of};

macro_rules! fixture {
    ($name:literal) => {
        ($name, include_bytes!(concat!("fixtures/v2/", $name)))
    };
}

const SEGMENT: (&str, &[u8]) = fixture!("segment.log");
const SEGMENT_TORN: (&str, &[u8]) = fixture!("segment-torn.log");
const SEGMENT_DAMAGED: (&str, &[u8]) = fixture!("segment-damaged.log");
const SEGMENT_RECYCLED: (&str, &[u8]) = fixture!("segment-recycled.log");
const SEGMENT_NEWER: (&str, &[u8]) = fixture!("segment-newer.log");
const PART_NONE: (&str, &[u8]) = fixture!("part-none");
const PART_KEYS: (&str, &[u8]) = fixture!("part-keys");
const PART_LZ4: (&str, &[u8]) = fixture!("part-lz4");
const PART_ZSTD: (&str, &[u8]) = fixture!("part-zstd");
const PART_FLIPPED: (&str, &[u8]) = fixture!("part-flipped");
const PART_SWAPPED: (&str, &[u8]) = fixture!("part-swapped");
const PART_CUT: (&str, &[u8]) = fixture!("part-cut");
const MANIFEST: (&str, &[u8]) = fixture!("MANIFEST");
const MANIFEST_EDITED: (&str, &[u8]) = fixture!("MANIFEST-edited");
const MANIFEST_NEWER: (&str, &[u8]) = fixture!("MANIFEST-newer");

/// The records of the fixture's batches: (gsn, epoch, dependencies, writes).
fn transactions() -> [Vec<Transaction>; 3] {
    let put = |key: &[u8], value: &[u8]| Op::Put {
        table: 0,
        generation: 4,
        key: key.into(),
        label: 2u8.into(),
        value: value.into(),
    };
    let patch = Op::Patch {
        table: 7,
        generation: 0,
        key: b"account8".into(),
        ranges: vec![(0, b"12345678".into()), (92, b"x".into())],
    };
    let wide = Op::Patch {
        table: 7,
        generation: 0,
        key: vec![b'k'; 300],
        ranges: vec![(70_000, b"wide".into())],
    };
    let delete = Op::Delete { table: 0, generation: 4, key: b"".into() };
    let deps = vec![LogGsn { log: 0, gsn: 4998 }, LogGsn { log: 254, gsn: (1 << 52) - 1 }];
    [
        vec![
            (5000, 9, vec![], vec![put(b"a", b"1"), put(b"b", b"2")]),
            (5003, 10, deps, vec![patch]),
        ],
        vec![(5004, 9, vec![LogGsn { log: 1, gsn: 1 }], vec![delete, wide])],
        vec![(6000, 10, vec![], vec![put(b"last", &[7; 200])])],
    ]
}

fn segment() -> Vec<u8> {
    let header = segment_header();
    let mut segment = header.encode().to_vec();
    let mut builder = BatchBuilder::with_capacity(1024);
    let closed = [LogGsn { log: 1, gsn: 4999 }, LogGsn { log: 254, gsn: 5001 }];
    for (n, records) in (0..).zip(transactions()) {
        for (gsn, epoch, deps, ops) in &records {
            let mut body = Vec::new();
            encode_ops(&mut body, ops);
            let head = RecordHead { gsn: *gsn, epoch: *epoch, deps };
            builder.append(head, RecordKind::Writes, &body).expect("legal");
        }
        if n == 1 {
            let head = RecordHead { gsn: 5005, epoch: 9, deps: &[] };
            builder.append(head, RecordKind::Command, b"call me").expect("legal");
        }
        let place = BatchPlace {
            segment: &header,
            offset: segment.len() as u64,
            number: 100 + n,
            flushed_below: 100 + n,
            align: if n == 1 { 512 } else { 8 },
            closed: &closed,
        };
        segment.extend_from_slice(builder.seal(&place));
        builder.clear();
    }
    let offset = segment.len() as u64;
    let mark = Continuation { first_batch: 103, first_gsn: 6001 }.encode(&header, offset);
    segment.extend_from_slice(&mark);
    segment.resize(3 * 4096, 0);
    segment
}

fn rows() -> Vec<(u32, KeyAndValue)> {
    let value = |n: usize| Some(((n as u8).into(), vec![b'a' + n as u8; 40 * n]));
    let row = |n: usize| (0, 4, format!("key:{n}").into_bytes(), value(n));
    vec![
        (0, row(1)),
        (0, row(2)),
        (0, (7, 0, b"gone".into(), None)),
        (2, row(3)),
        (2, (65_535, u32::MAX, vec![], Some((255.into(), vec![])))),
        (15, row(9)),
    ]
}

fn part(codec: Codec) -> Vec<u8> {
    part_file(&part_header(codec), 200, &rows()).0
}

fn read(header: &SegmentHeader, segment: &[u8]) -> (Vec<u64>, SegmentEnd) {
    let mut reader = BatchReader::new(header, segment);
    let mut gsns = Vec::new();
    loop {
        match reader.next_batch() {
            Step::Batch(batch) => gsns.extend(batch.records().map(|r| r.expect("valid").gsn)),
            Step::End(end) => return (gsns, end),
        }
    }
}

#[test]
fn segment_decodes() {
    let header = SegmentHeader::decode(SEGMENT.1).expect("header");
    assert_eq!(header, segment_header());
    let mut reader = BatchReader::new(&header, SEGMENT.1);
    for (n, expected) in (0..).zip(transactions()) {
        let Step::Batch(batch) = reader.next_batch() else { panic!("batch {n}") };
        assert_eq!((batch.number(), batch.flushed_below()), (100 + n, 100 + n));
        // The other batches have no room for watermarks.
        let closed = [LogGsn { log: 1, gsn: 4999 }, LogGsn { log: 254, gsn: 5001 }];
        let expected_closed = if n == 1 { &closed[..] } else { &[] };
        assert_eq!(batch.closed().collect::<Vec<_>>(), expected_closed);
        let records: Vec<_> = batch.records().map(|record| record.expect("valid")).collect();
        for (record, (gsn, epoch, deps, ops)) in records.iter().zip(&expected) {
            assert_eq!((record.gsn, record.epoch), (*gsn, *epoch));
            assert_eq!(&record.deps().collect::<Vec<_>>(), deps);
            assert_eq!(&writes_of(record), ops);
        }
        if n == 1 {
            let command = records.last().expect("two records");
            assert_eq!((command.kind, command.body), (RecordKind::Command, &b"call me"[..]));
        }
    }
    let Step::End(end) = reader.next_batch() else { panic!("three batches") };
    assert_eq!(end.cause, EndCause::Continued { first_gsn: 6001 });
}

#[test]
fn broken_segments_are_told_apart() {
    let header = segment_header();
    let tail = |bytes| {
        let (gsns, end) = read(&header, bytes);
        (gsns, classify_tail(&header, bytes, 0, &end))
    };
    assert_eq!(tail(SEGMENT_TORN.1), (vec![5000, 5003, 5004, 5005], Tail::End));
    let (gsns, damaged) = tail(SEGMENT_DAMAGED.1);
    assert_eq!(gsns, [5000, 5003]);
    assert!(matches!(damaged, Tail::Damaged(Some(later)) if later.number == 102), "{damaged:?}");

    let recycled = SegmentHeader::decode(SEGMENT_RECYCLED.1).expect("header");
    assert_eq!(recycled.incarnation, 3);
    assert!(read(&recycled, SEGMENT_RECYCLED.1).0.is_empty());
    let newer = SegmentHeader::decode(SEGMENT_NEWER.1).expect_err("newer version");
    assert_eq!(newer.cause, DecodeCause::UnknownVersion { found: 3, reads: 2 });
}

#[test]
fn parts_decode() {
    for (codec, fixture) in
        [(Codec::None, PART_NONE), (Codec::Lz4, PART_LZ4), (Codec::Zstd, PART_ZSTD)]
    {
        assert_eq!(PartHeader::decode(fixture.1), Ok(part_header(codec)));
        assert_eq!(read_part(fixture.1), Ok(rows()), "{}", fixture.0);
    }
}

/// A part with a map of its keys. Readers of before pass the map over.
#[test]
fn parts_with_maps_decode() {
    let header = PartHeader::decode(PART_KEYS.1).expect("sound");
    assert_eq!(header, part_header(Codec::None));
    let mut found = read_part(PART_KEYS.1).expect("sound");
    found.sort_by_key(|(_, row)| row.2.clone());
    let rows: Vec<_> = found.into_iter().map(|(_, row)| row).collect();
    assert_eq!(rows, keyed_rows());
}

fn keyed_rows() -> Vec<KeyAndValue> {
    let value = |at: u8| (!at.is_multiple_of(5)).then(|| (at.into(), vec![at; usize::from(at)]));
    (0..100).map(|at| (9, 2, vec![b'k', at], value(at))).collect()
}

fn keyed_part() -> Vec<u8> {
    keyed_part_file(&part_header(Codec::None), 700, keyed_rows()).0
}

#[test]
fn broken_parts_are_refused() {
    for (fixture, message) in [
        (PART_FLIPPED, "checkpoint block at byte 4096: checksum mismatch"),
        (PART_SWAPPED, "checkpoint block at byte 4096: checksum mismatch"),
        (PART_CUT, "checkpoint part trailer at byte 4064: bad magic"),
    ] {
        let error = read_part(fixture.1).expect_err(fixture.0).to_string();
        assert!(error.starts_with(message), "{}: {error}", fixture.0);
    }
}

#[test]
fn manifests_decode_or_say_why_not() {
    assert_eq!(Manifest::decode(MANIFEST.1), Ok(manifest::manifest()));
    let error = Manifest::decode(MANIFEST_EDITED.1);
    assert!(matches!(error, Err(ManifestError::Checksum { .. })), "{error:?}");
    let error = Manifest::decode(MANIFEST_NEWER.1);
    assert_eq!(error, Err(ManifestError::UnknownVersion { found: 3 }));
}

/// Files of version 1 are refused, with the cure.
#[test]
fn version_1_is_refused() {
    let old = |name: &str, error: String| {
        let cure = "the release that wrote";
        assert!(error.contains("version 1 ") && error.contains("dump"), "{name}: {error}");
        assert!(error.contains(cure) && error.contains("this build reads 2"), "{name}: {error}");
    };
    let refused = SegmentHeader::decode(include_bytes!("fixtures/v1/segment.log"));
    old("segment", refused.expect_err("version 1").to_string());
    let refused = PartHeader::decode(include_bytes!("fixtures/v1/part-none"));
    old("part", refused.expect_err("version 1").to_string());
    let refused = Manifest::decode(include_bytes!("fixtures/v1/MANIFEST"));
    let refused = refused.expect_err("version 1");
    assert_eq!(refused, ManifestError::UnknownVersion { found: 1 });
    old("manifest", refused.to_string());
}

/// All fixtures, as this build would write them.
fn all() -> Vec<(&'static str, Vec<u8>)> {
    let (segment, plain) = (segment(), part(Codec::None));
    let mut torn = segment.clone();
    torn[4096 + 700..].fill(0);
    let mut damaged = segment.clone();
    damaged[4096 + 300] ^= 4;
    let mut recycled = segment.clone();
    let header = SegmentHeader { incarnation: 3, first_gsn: 9000, ..segment_header() };
    recycled[..4096].copy_from_slice(&header.encode());
    let mut newer = segment.clone();
    newer[8] = 3;
    let crc = crc32c::crc32c(&newer[..4092]).to_le_bytes();
    newer[4092..4096].copy_from_slice(&crc);
    let mut flipped = plain.clone();
    flipped[4096 + 60] ^= 1;
    let mut swapped = plain.clone();
    let index = PartIndex::of_file(part_header(Codec::None).identity(), &plain, 4).expect("index");
    let second_at = index.blocks()[1].offset as usize;
    let (first, second) = swapped[4096..].split_at_mut(second_at - 4096);
    first[..BLOCK_HEADER_BYTES].swap_with_slice(&mut second[..BLOCK_HEADER_BYTES]);
    let document = manifest::manifest().encode().expect("consistent");
    let text = String::from_utf8(document.clone()).expect("text");
    vec![
        (SEGMENT.0, segment),
        (SEGMENT_TORN.0, torn),
        (SEGMENT_DAMAGED.0, damaged),
        (SEGMENT_RECYCLED.0, recycled),
        (SEGMENT_NEWER.0, newer),
        (PART_NONE.0, plain.clone()),
        (PART_KEYS.0, keyed_part()),
        (PART_LZ4.0, part(Codec::Lz4)),
        (PART_ZSTD.0, part(Codec::Zstd)),
        (PART_FLIPPED.0, flipped),
        (PART_SWAPPED.0, swapped),
        (PART_CUT.0, plain[..4096].to_vec()),
        (MANIFEST.0, document),
        (MANIFEST_EDITED.0, text.replacen("calc", "cola", 1).into()),
        (MANIFEST_NEWER.0, text.replacen("manifest 2 ", "manifest 3 ", 1).into()),
    ]
}

/// This build writes the same bytes as earlier builds of the same version. (Compressors may change
/// their output from release to release, so compressed parts need only decode.)
#[test]
fn encoders_still_write_the_same_bytes() {
    let kept = [
        PART_KEYS,
        SEGMENT,
        SEGMENT_TORN,
        SEGMENT_DAMAGED,
        SEGMENT_RECYCLED,
        SEGMENT_NEWER,
        PART_NONE,
    ]
    .into_iter()
    .chain([PART_FLIPPED, PART_SWAPPED, PART_CUT, MANIFEST, MANIFEST_EDITED, MANIFEST_NEWER]);
    let written = all();
    for (name, bytes) in kept {
        let (_, today) = written.iter().find(|(n, _)| *n == name).expect("in the list");
        assert!(today == bytes, "{name} differs: the format changed without a new version");
    }
}

/// Writes the fixtures anew, for a new format version only. Run this test by name with `--ignored`.
#[test]
#[ignore = "overwrites the fixtures"]
#[expect(
    clippy::disallowed_methods,
    reason = "a tool for authors; the crate itself knows no files"
)]
fn write_fixtures() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format/fixtures/v2");
    std::fs::create_dir_all(dir).expect("directory");
    for (name, bytes) in all() {
        let path = format!("{dir}/{name}");
        std::fs::write(&path, &bytes).expect("write");
        assert_eq!(std::fs::read(&path).expect("read"), bytes);
    }
}
