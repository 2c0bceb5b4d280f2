//! Records are the same after encoding, and patches hold what differs.

use super::*;

fn samples() -> Vec<PageRecord<'static>> {
    let image = PageImage { head: &[7; 72], heap_start: 10, heap: &[9; 16] };
    vec![
        PageRecord::Change {
            page: 9,
            key: b"key",
            before: None,
            after: Some(StoredValue::in_leaf(7, b"value")),
        },
        PageRecord::Undo {
            page: u64::MAX,
            key: b"",
            had: true,
            after: Some(StoredValue::in_leaf(0, b"")),
        },
        PageRecord::Change { page: 9, key: b"key", before: Some(LARGE_VALUE), after: None },
        PageRecord::Split { left: 1, right: 2, parent: 3, separator: b"s", image },
        PageRecord::Load { left: 1, right: 2, parent: 3, separator: b"s", image },
        PageRecord::Raise { root: 1, child: 2, image },
        PageRecord::Kept,
        PageRecord::Purge { page: 7, slots: &[1, 0, 0, 1] },
        PageRecord::Large { page: 7, level: 1, bytes: &[1; 16] },
        PageRecord::Freed { page: 7 },
        PageRecord::Merge { left: 1, right: 2, parent: 3, separator: b"s", image },
        PageRecord::Patch {
            page: 7,
            key: b"key",
            ranges: PatchedRanges { bytes: &[1, 0, 2, 0, 3, 4, 5, 6], has_after: true },
        },
        PageRecord::Restore {
            page: 7,
            key: b"key",
            ranges: PatchedRanges { bytes: &[1, 0, 2, 0, 3, 4], has_after: false },
        },
    ]
}

const LARGE_VALUE: StoredValue<'static> = StoredValue { tag: 3, bytes: &[9; 24], is_large: true };

#[test]
fn the_only_page_of_a_record_is_known_without_the_rest() {
    for record in samples() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let only = PageRecord::only_page(&bytes);
        match record {
            PageRecord::Large { page, .. } | PageRecord::Freed { page } => {
                assert_eq!(only, Some(page));
            }
            PageRecord::Merge { .. } | PageRecord::Raise { .. } | PageRecord::Kept => {
                assert_eq!(only, None);
            }
            record => assert!(only.is_none() || [only, None] == record.changed_pages()),
        }
    }
}

#[test]
fn an_undo_needs_a_begin_of_the_record() {
    for record in samples() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let found = ToUndo::decode(ToUndo::part_of(&bytes));
        assert_eq!(found, ToUndo::decode(&bytes));
        match (record, found) {
            (PageRecord::Change { key, before, after, .. }, found) => {
                let has = after.is_some();
                assert_eq!(found, Ok(ToUndo::Change { key, before, has }));
                let mut undo = Vec::new();
                PageRecord::Undo { page: 1, key, had: has, after: before }.encode(&mut undo);
                assert_eq!(undo.len(), ToUndo::part_of(&bytes).len());
                assert_eq!(undo.len(), ToUndo::record_bytes(ToUndo::part_of(&bytes)));
            }
            (PageRecord::Large { page, .. }, found) => {
                assert_eq!(found, Ok(ToUndo::Large { page }));
                let mut undo = Vec::new();
                PageRecord::Freed { page }.encode(&mut undo);
                assert!(undo.len() <= ToUndo::part_of(&bytes).len());
            }
            (PageRecord::Patch { key, ranges, .. }, found) => {
                assert_eq!(found, Ok(ToUndo::Patch { key, ranges }));
                let mut undo = Vec::new();
                PageRecord::Restore { page: 1, key, ranges }.encode(&mut undo);
                assert_eq!(undo.len(), ToUndo::record_bytes(ToUndo::part_of(&bytes)));
            }
            (
                PageRecord::Undo { .. }
                | PageRecord::Kept
                | PageRecord::Freed { .. }
                | PageRecord::Restore { .. },
                found,
            ) => assert!(found.is_err(), "an undo is never undone"),
            (_, found) => assert_eq!(found, Ok(ToUndo::Structure)),
        }
    }
}

#[test]
fn a_reference_has_its_length() {
    let mut bytes = Vec::new();
    let after = Some(StoredValue { bytes: &[9; 23], ..LARGE_VALUE });
    PageRecord::Undo { page: 1, key: b"k", had: true, after }.encode(&mut bytes);
    assert!(PageRecord::decode(&bytes).is_err());
}

#[test]
fn records_are_the_same_after_encoding() {
    for record in samples() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(PageRecord::decode(&bytes), Ok(record));
    }
    let mut bytes = Vec::new();
    samples()[0].encode(&mut bytes);
    let expected = b"\x01\x09\0\0\0\0\0\0\0\x03\0key\0\x01\x07\x05\0\0\0value";
    assert_eq!(bytes, expected, "as specified");
}

/// The value after a patch, or before it.
fn patched(value: &[u8], ranges: PatchedRanges<'_>, is_undone: bool) -> Vec<u8> {
    let mut value = value.to_vec();
    for PatchedRange { offset, before, after } in ranges.iter() {
        let (from, to) = if is_undone { (after, before) } else { (before, after) };
        let bytes = &mut value[offset..offset + from.len()];
        assert_eq!(bytes, from);
        bytes.copy_from_slice(to);
    }
    value
}

#[test]
fn a_change_of_some_bytes_is_a_patch() {
    for length in 0..40 {
        let before: Vec<u8> = (0..length).collect();
        for (first, second) in (0..length).flat_map(|a| (a..length).map(move |b| (a, b))) {
            let mut after = before.clone();
            after[usize::from(first)] ^= 0x80;
            after[usize::from(second)] ^= 0x40;
            let values = [&before, &after].map(|bytes| Some(StoredValue::in_leaf(7, bytes)));
            let mut bytes = Vec::new();
            PageRecord::encode_change(5, b"key", values, &mut bytes);
            match PageRecord::decode(&bytes).expect("a record") {
                PageRecord::Patch { page: 5, key: b"key", ranges } => {
                    assert_eq!(patched(&before, ranges, false), after);
                    assert_eq!(patched(&after, ranges, true), before);
                    let mut undo = Vec::new();
                    PageRecord::Restore { page: 5, key: b"key", ranges }.encode(&mut undo);
                    let Ok(PageRecord::Restore { ranges: bare, .. }) = PageRecord::decode(&undo)
                    else {
                        panic!("an undo");
                    };
                    let both = bare.iter().zip(ranges.iter());
                    for (bare, range) in both {
                        assert_eq!((bare.offset, bare.before), (range.offset, range.before));
                        assert!(bare.after.is_empty());
                    }
                    assert_eq!(bare.iter().count(), ranges.iter().count());
                    assert!(ranges.iter().count() == 2 || second - first < 16);
                }
                PageRecord::Change { before, after, .. } => {
                    assert_eq!([before, after], values);
                    assert!(length < 12, "two bytes of {length}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn other_changes_hold_both_values() {
    let value = |tag, bytes| Some(StoredValue::in_leaf(tag, bytes));
    let long = &[7; 40][..];
    for values in [
        [value(1, long), value(2, long)],
        [value(1, long), value(1, &long[1..])],
        [value(1, long), None],
        [None, value(1, long)],
        [value(1, &[1; 20]), value(1, &[2; 20])],
        [Some(LARGE_VALUE), Some(LARGE_VALUE)],
    ] {
        let mut bytes = Vec::new();
        PageRecord::encode_change(5, b"key", values, &mut bytes);
        let [before, after] = values;
        let change = PageRecord::Change { page: 5, key: b"key", before, after };
        assert_eq!(PageRecord::decode(&bytes), Ok(change));
    }
    let mut same = Vec::new();
    PageRecord::encode_change(5, b"key", [value(1, long); 2], &mut same);
    let ranges = PatchedRanges { bytes: b"", has_after: true };
    assert_eq!(PageRecord::decode(&same), Ok(PageRecord::Patch { page: 5, key: b"key", ranges }));
}

#[test]
fn ranges_ascend_and_are_whole() {
    for ranges in [
        &[0, 0, 0, 0][..],
        &[0, 0, 1, 0, 1],
        &[1, 0, 1, 0, 1, 2, 1, 0, 1, 0, 1, 2],
        &[1, 0, 1, 0, 1, 2, 0],
    ] {
        let bytes = [&[PATCH][..], &[0; 8], &[1, 0, b'k'], ranges].concat();
        assert!(PageRecord::decode(&bytes).is_err(), "{ranges:?}");
    }
}

#[test]
fn an_undo_is_no_longer_than_its_change() {
    let (before, after) = (Some(StoredValue::in_leaf(1, b"before")), None);
    let mut bytes = [Vec::new(), Vec::new()];
    PageRecord::Change { page: 1, key: b"k", before, after }.encode(&mut bytes[0]);
    let undo = PageRecord::Undo { page: 1, key: b"k", had: false, after: before };
    undo.encode(&mut bytes[1]);
    assert!(bytes[1].len() <= bytes[0].len());
}

#[test]
fn shortened_and_changed_records_are_errors_or_other_records() {
    for record in samples() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for end in 0..bytes.len() {
            assert_ne!(PageRecord::decode(&bytes[..end]), Ok(record.clone()), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(PageRecord::decode(&other), Ok(record.clone()));
            }
        }
        bytes.push(0);
        let is_bare = matches!(record, PageRecord::Kept | PageRecord::Freed { .. });
        assert!(PageRecord::decode(&bytes).is_err() || !is_bare);
    }
}
