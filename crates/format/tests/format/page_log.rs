//! Mutated records of paged tables.

use stillpoint_format::page_log::{PageImage, PageRecord, StoredValue, ToUndo};

use crate::common::mutate::{Stream, mutate};

/// A record of any sort.
fn sample(stream: &mut Stream, out: &mut Vec<u8>) {
    let bytes: Vec<u8> = (0..200).map(|_| stream.next() as u8).collect();
    let (key, rest) = bytes.split_at(stream.below(20));
    let [page, right, parent] = [(); 3].map(|()| stream.next());
    let image = PageImage { head: &rest[..80], heap_start: 300, heap: &rest[80..160] };
    let before = Some(StoredValue::in_leaf(3, rest));
    let mut changed = rest.to_vec();
    for _ in 0..stream.below(4) {
        let at = stream.below(changed.len());
        changed[at] ^= 1;
    }
    let after = Some(StoredValue::in_leaf(3, &changed));
    match stream.below(11) {
        0 => PageRecord::Change { page, key, before, after: None }.encode(out),
        1 => PageRecord::Undo { page, key, had: true, after }.encode(out),
        2 => {
            PageRecord::Split { left: page, right, parent, separator: key, image }.encode(out);
        }
        3 => {
            PageRecord::Merge { left: page, right, parent, separator: key, image }.encode(out);
        }
        10 => PageRecord::Load { left: page, right, parent, separator: key, image }.encode(out),
        4 => PageRecord::Raise { root: page, child: right, image }.encode(out),
        5 => PageRecord::Purge { page, slots: &[1, 0, 5, 0, 9, 0] }.encode(out),
        6 => PageRecord::Large { page, level: 1, bytes: &rest[..160] }.encode(out),
        7 => PageRecord::Freed { page }.encode(out),
        8 => {
            let mut patch = Vec::new();
            PageRecord::encode_change(page, key, [before, after], &mut patch);
            match PageRecord::decode(&patch).expect("own record") {
                PageRecord::Patch { page, key, ranges } => {
                    PageRecord::Restore { page, key, ranges }.encode(out);
                }
                other => other.encode(out),
            }
        }
        _ => PageRecord::encode_change(page, key, [before, after], out),
    }
}

/// Mutates a record. What is accepted has lengths within the bytes, and is written as it was read. Returns
/// whether the record was accepted.
pub(crate) fn judge_mutation(stream: &mut Stream) -> bool {
    let mut bytes = Vec::new();
    sample(stream, &mut bytes);
    assert!(PageRecord::decode(&bytes).is_ok(), "an own record was refused");
    mutate(stream, &mut bytes);
    // A batch has the checksum, so a mutated record may be a record.
    let undone = ToUndo::decode(ToUndo::part_of(&bytes));
    if let Ok(ToUndo::Patch { ranges, .. }) = undone {
        assert!(ranges.iter().all(|range| range.before.len() == range.after.len()));
    }
    let Ok(record) = PageRecord::decode(&bytes) else { return false };
    if let PageRecord::Patch { ranges, .. } | PageRecord::Restore { ranges, .. } = &record {
        let mut end = 0;
        for range in ranges.iter() {
            assert!(range.offset >= end && !range.before.is_empty(), "ranges ascend");
            end = range.offset + range.before.len();
        }
    }
    let _ = record.changed_pages();
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, bytes, "{record:?} is written in another way");
    true
}
