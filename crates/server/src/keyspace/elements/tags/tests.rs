use super::*;

pub(in crate::keyspace::elements) fn content(score: f64, member: &[u8]) -> Vec<u8> {
    let bits = score.to_bits();
    let score = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
    [&score.to_be_bytes()[..], member].concat()
}

#[test]
fn short_elements_are_told_from_whole_ones() {
    let scores = [0.0, 1.0, -1.0, 0.1, 1e300, -1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY];
    for score in scores {
        let whole = content(score, b"member");
        assert_eq!((tag_in(&whole), short_parts(&whole)), (None, None), "{score}");
        for of in [0, 1, 300, tag(u64::MAX)] {
            let short = short(of, &whole);
            assert_eq!(tag_in(&short), Some(of));
            let (tag, bytes) = short_parts(&short).expect("a short one");
            assert_eq!((tag, &bytes[..]), (of, &whole[..8]), "{score}");
        }
    }
    // An integer of 20 bits has four bytes that are no zeros.
    assert_eq!(short(7, &content(1_000_001.0, b"member")).len(), 9);
    for damaged in [&[0][..], &[0, 1, 2, 3], &[0; 14], &[]] {
        assert_eq!(short_parts(damaged), None);
    }
}

#[test]
fn hashes_of_a_tag_begin_with_it() {
    for hash in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
        assert!(hashes_of(tag(hash)).contains(&hash));
    }
    assert_eq!(*hashes_of(0).end() + 1, *hashes_of(1).start());
}
