//! Tests of the manifest: round trips, validation, damage.

use crate::common::forge::forge_manifest;
use crate::common::manifest::{checkpoint, manifest, positions};
use proptest::prelude::*;
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{
    CheckpointKind, CleanShutdown, KindEntry, LogPositions, Manifest, ManifestError, Partitioning,
    TableEntry, TableGeneration, TableKind,
};

#[test]
fn round_trip() {
    let mut manifest = manifest();
    let bytes = manifest.encode().expect("consistent");
    assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
    manifest.clean_shutdown =
        Some(CleanShutdown { incarnation: 3, last: positions(&[(0, 7000), (254, 6999)]) });
    let bytes = manifest.encode().expect("consistent");
    assert_eq!(Manifest::decode(&bytes), Ok(manifest));
}

#[test]
fn a_person_can_read_it() {
    let bytes = manifest().encode().expect("consistent");
    let text = String::from_utf8(bytes).expect("text");
    let (first, document) = text.split_once('\n').expect("two parts");
    assert!(first.starts_with("stillpoint-manifest 2 crc32c="), "{first}");
    assert!(first.ends_with(&format!(" len={}", document.len())), "{first}");
    assert!(document.contains("\"hash_seed\": \"0123456789abcdef\""), "{document}");
    assert!(document.contains("\"kind\": \"partial\",\n      \"base\": 5"), "{document}");
    assert!(document.ends_with("}\n"));
}

#[test]
fn every_bit_flip_and_every_truncation_is_detected() {
    let bytes = manifest().encode().expect("consistent");
    let mut flipped = bytes.clone();
    for bit in 0..bytes.len() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
    for len in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    let longer = [&bytes[..], b"\n"].concat();
    assert!(matches!(Manifest::decode(&longer), Err(ManifestError::Length { .. })));
}

#[test]
fn errors_name_the_cure() {
    let bytes = manifest().encode().expect("consistent");
    let text = String::from_utf8(bytes).expect("text");
    let newer = text.replacen("manifest 2 ", "manifest 3 ", 1);
    let error = Manifest::decode(newer.as_bytes()).expect_err("newer");
    assert_eq!(error, ManifestError::UnknownVersion { found: 3 });
    assert!(error.to_string().contains("this build reads 2"), "{error}");
    assert!(error.to_string().contains("release that wrote it"), "{error}");
    let edited = text.replacen("calc", "cola", 1);
    let error = Manifest::decode(edited.as_bytes()).expect_err("edited");
    assert!(matches!(error, ManifestError::Checksum { .. }), "{error}");
    for bad in [
        text.replacen("crc32c=", "crc32c=0", 1),
        text.replacen("len=", "len=+", 1),
        text.replacen("len=", "len=0", 1),
        text.replacen(" 2 ", " 02 ", 1),
        text.replacen(" 2 ", "  2 ", 1),
        String::new(),
        "\n".into(),
    ] {
        assert_eq!(Manifest::decode(bad.as_bytes()), Err(ManifestError::FirstLine));
    }
}

#[test]
fn documents_of_other_shapes_are_refused() {
    let bytes = manifest().encode().expect("consistent");
    let text = String::from_utf8(bytes).expect("text");
    let document = text.split_once('\n').expect("two parts").1;
    assert_eq!(Manifest::decode(&forge_manifest(document.as_bytes())), Ok(manifest()));
    for bad in [
        document.replacen("\"next_epoch\"", "\"nxt_epoch\"", 1),
        document.replacen("\"next_epoch\": 10", "\"next_epoch\": -1", 1),
        document.replacen("\"0123456789abcdef\"", "\"0123456789ABCDEF\"", 1),
        document.replacen("\"0123456789abcdef\"", "81985529216486895", 1),
        document.replacen("\"lz4\"", "\"lzma\"", 1),
        document.replacen("\"id\": 7", "\"id\": 65536", 1),
        document.replacen("cafe0000", "cafe", 1),
        "[".repeat(100_000),
        String::new(),
    ] {
        let error = Manifest::decode(&forge_manifest(bad.as_bytes())).expect_err("bad document");
        assert!(matches!(error, ManifestError::Document(_)), "{error}");
    }
}

type Change = fn(&mut Manifest);

/// Each change makes the manifest inconsistent, and the message names the defect.
const CONTRADICTIONS: &[(&str, Change)] = &[
    ("has no name", |m| m.tables[0].name.clear()),
    ("listed twice", |m| m.tables[1].id = 0),
    ("listed twice", |m| m.tables[1].name = "default".into()),
    ("later than the next epoch", |m| m.next_epoch = 8),
    ("not sorted", |m| m.checkpoints.swap(1, 2)),
    ("is listed twice", |m| m.checkpoints.push(checkpoint(9, Some(7)))),
    ("chain has a gap", |m| drop(m.checkpoints.remove(1))),
    ("chain has a gap", |m| drop(m.checkpoints.remove(0))),
    ("7 is older than checkpoint 5, its base: gsn floor 5999 after 6000", |m| {
        m.checkpoints[1].gsn_floor = 5999;
    }),
    ("gsn 5989 of log 1 in incarnation 3 after 5990", |m| {
        m.checkpoints[2].positions[0].logs[1].gsn = 5989;
    }),
    ("gsn 0 of log 1 in incarnation 3 after 5990", |m| {
        m.checkpoints[1].positions[0].logs.truncate(1);
    }),
    ("generation 3 of table 0 after 4", |m| m.checkpoints[2].generations[0].generation = 3),
    ("needs a base", |m| m.checkpoints[1].base = None),
    ("has no base", |m| m.checkpoints[0].base = Some(1)),
    ("is not earlier", |m| m.checkpoints[1].base = Some(7)),
    ("partitions", |m| m.checkpoints[0].partitions_log2 = 17),
    ("part name", |m| m.checkpoints[0].parts[0].file = "../part-000".into()),
    ("part name", |m| m.checkpoints[0].parts[0].file = "part-001".into()),
    ("records", |m| m.checkpoints[0].records = 99),
    ("records", |m| m.checkpoints[0].parts[0].records = u64::MAX),
    ("its tables have 199 records", |m| m.checkpoints[0].table_records[1].records = 100),
    ("its tables have 99 records", |m| m.checkpoints[0].table_records.truncate(1)),
    ("records of table 0 are listed twice", |m| m.checkpoints[0].table_records[1].table = 0),
    ("gsn floor", |m| m.checkpoints[0].gsn_floor = 1 << 52),
    ("two generations", |m| {
        m.checkpoints[0].generations.push(TableGeneration { table: 0, generation: 1 });
    }),
    ("two positions", |m| {
        m.checkpoints[0].positions.push(LogPositions { incarnation: 3, logs: vec![] });
    }),
    ("log 0 is listed twice", |m| {
        m.checkpoints[0].positions[0].logs = positions(&[(0, 1), (0, 2)]);
    }),
    ("impossible position", |m| {
        m.incarnations[0].cut = Some(vec![LogGsn { log: 255, gsn: 1 }]);
    }),
    ("out of order", |m| m.incarnations[1].number = 1),
    ("out of order", |m| m.incarnations[1].gsn_floor = 5001),
    ("has no cut", |m| m.incarnations[1].cut = None),
    ("above the floor", |m| m.incarnations[0].cut = Some(positions(&[(0, 1001)]))),
    ("no epoch after", |m| m.next_epoch = u64::MAX),
    ("there is none after it", |m| m.incarnations[2].number = u32::MAX),
    ("gsn floor above", |m| m.incarnations[2].gsn_floor = 1 << 52),
    ("of log 1, of 1 logs", |m| m.incarnations[0].logs = 1),
    ("log 1 has two ends", |m| {
        let tail = m.incarnations[0].tails[0];
        m.incarnations[0].tails.push(tail);
    }),
    ("copied by incarnation 1", |m| m.incarnations[0].tails[0].made_by = 1),
    ("above what was kept", |m| m.incarnations[0].tails[0].first_gsn = 881),
    ("above what was kept", |m| m.incarnations[0].tails[0].log = 2),
    ("partitioning \"slots\" of table", |m| {
        m.tables[1].partitioning = Partitioning::Other("slots".into());
    }),
    ("private section of table", |m| m.tables[1].private = Some("bytes".into())),
    ("kind \"memory\" is listed twice", |m| m.kinds.push(kind("memory", &[]))),
    ("kind \"paged\" is listed twice", |m| {
        m.kinds.extend([kind("paged", &[(0, 4)]), kind("paged", &[])]);
    }),
    ("kind \"paged\": log 1 is listed twice", |m| m.kinds.push(kind("paged", &[(1, 4), (1, 5)]))),
    ("kind \"paged\": gsn floor above", |m| {
        m.kinds.push(KindEntry { gsn_floor: 1 << 53, ..kind("paged", &[]) });
    }),
    ("not the latest", |m| {
        m.clean_shutdown = Some(CleanShutdown { incarnation: 2, last: vec![] });
    }),
    ("impossible position", |m| {
        let last = positions(&[(0, 1 << 52)]);
        m.clean_shutdown = Some(CleanShutdown { incarnation: 3, last });
    }),
];

fn kind(name: &str, logs: &[(u8, u64)]) -> KindEntry {
    KindEntry { name: name.to_owned(), gsn_floor: 3, positions: positions(logs) }
}

#[test]
fn a_kind_stands_at_its_floor_in_a_log_that_is_not_listed() {
    let kind = kind("paged", &[(1, 7)]);
    assert_eq!([0, 1, 2].map(|log| kind.position(log)), [3, 7, 3]);
}

#[test]
fn a_kind_of_table_is_refused_unless_it_is_given() {
    let mut manifest = manifest();
    manifest.tables[0].kind = TableKind::Other("paged".into());
    manifest.tables[0].private = Some("root page 7".to_owned());
    manifest.kinds = vec![kind("paged", &[(0, 9), (1, 8)])];
    let bytes = manifest.encode().expect("written by who has the kind");
    for kinds in [&[][..], &["siren"]] {
        let error = Manifest::decode_with_kinds(&bytes, kinds).expect_err("not given").to_string();
        assert!(error.contains("kind \"paged\" of table"), "{error}");
    }
    assert!(matches!(Manifest::decode(&bytes), Err(ManifestError::Unsupported { .. })));
    assert_eq!(Manifest::decode_with_kinds(&bytes, &["siren", "paged"]), Ok(manifest));
}

#[test]
fn contradictions_are_refused() {
    for (n, (message, change)) in CONTRADICTIONS.iter().enumerate() {
        let mut manifest = manifest();
        change(&mut manifest);
        let error = manifest.encode().expect_err(message).to_string();
        assert!(error.contains(message), "case {n}: {error}");
        // Decoding refuses the contradiction as well.
        let document = serde_json::to_string(&manifest).expect("json");
        let error =
            Manifest::decode(&forge_manifest(document.as_bytes())).expect_err(message).to_string();
        assert!(error.contains(message), "case {n}: {error}");
    }
}

#[test]
fn the_newest_chain_is_base_first() {
    let mut manifest = manifest();
    let epochs = |m: &Manifest| -> Vec<_> {
        m.newest_chain().iter().map(|c| (c.epoch, c.kind == CheckpointKind::Full)).collect()
    };
    assert_eq!(epochs(&manifest), [(5, true), (7, false), (9, false)]);
    // A merge made a full checkpoint 7 beside the partial one, so the chain begins there.
    manifest.checkpoints.insert(2, checkpoint(7, None));
    assert_eq!(manifest.validate(), Ok(()));
    assert_eq!(epochs(&manifest), [(7, true), (9, false)]);
    manifest.checkpoints.push(checkpoint(9, None));
    assert_eq!(epochs(&manifest), [(9, true)]);
    manifest.checkpoints.clear();
    assert!(epochs(&manifest).is_empty());
    assert_eq!(checkpoint(5, None).position(3, 1), Some(5990));
    assert_eq!(checkpoint(5, None).position(3, 2), None);
    assert_eq!(checkpoint(5, None).position(2, 1), None);
}

/// Fate of an entry of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Missing,
    Doubled,
    /// The point of consistency lies before that of its base.
    Stale,
}

/// Every fate of every entry of a chain of four, rotated by every number of places.
#[test]
fn only_a_beginning_of_a_chain_in_its_order_is_accepted() {
    const FATES: [Fate; 4] = [Fate::Kept, Fate::Missing, Fate::Doubled, Fate::Stale];
    let link = |n: u64, gsn: u64| {
        let mut entry = checkpoint(4 + n, (n > 0).then_some(3 + n));
        entry.gsn_floor = gsn;
        entry.positions[0].logs = positions(&[(0, gsn)]);
        entry
    };
    let mut accepted = 0;
    for fates in 0..4usize.pow(4) {
        let fates: Vec<Fate> = (0..4).map(|n| FATES[fates >> (2 * n) & 3]).collect();
        if fates[0] == Fate::Stale {
            // No entry precedes the full checkpoint.
            continue;
        }
        let mut list = Vec::new();
        for (n, fate) in (0u64..).zip(&fates) {
            let gsn = 6000 + 10 * n;
            match fate {
                Fate::Kept => list.push(link(n, gsn)),
                Fate::Missing => {}
                Fate::Doubled => list.extend([link(n, gsn), link(n, gsn)]),
                Fate::Stale => list.push(link(n, gsn - 15)),
            }
        }
        for turn in 0..list.len().max(1) {
            let mut manifest = manifest();
            manifest.checkpoints = list.clone();
            manifest.checkpoints.rotate_left(turn);
            let length = fates.iter().take_while(|fate| **fate == Fate::Kept).count();
            let is_beginning = fates[length..].iter().all(|fate| *fate == Fate::Missing);
            let is_sound = is_beginning && turn == 0;
            let said = manifest.validate();
            assert_eq!(said.is_ok(), is_sound, "{fates:?}, turned by {turn}: {said:?}");
            if is_sound {
                assert_eq!(manifest.newest_chain(), list.iter().collect::<Vec<_>>());
                accepted += 1;
            }
        }
    }
    assert_eq!(accepted, 5);
}

proptest! {
    #[test]
    fn any_names_and_numbers_round_trip(
        names in prop::collection::hash_set(".{1,20}", 0..5),
        scheme in ".*",
        numbers in prop::array::uniform8(any::<u64>()),
    ) {
        let mut manifest = manifest();
        manifest.tables = names
            .into_iter()
            .enumerate()
            .map(|(n, name)| TableEntry::new(n as u16, name, numbers[0] as u32))
            .collect();
        manifest.checkpoints[0].scheme = scheme;
        manifest.checkpoints[0].value_bytes = numbers[1];
        manifest.checkpoints[0].parts[0].bytes = numbers[2];
        manifest.checkpoints[0].parts[0].crc = numbers[3] as u32;
        (manifest.hash_seed, manifest.created_ms) = (numbers[4], numbers[5]);
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
    }
}
