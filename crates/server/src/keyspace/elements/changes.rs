//! Which bytes of a record a change gives it.

use std::ops::Range;

use super::node::elements;

/// The bytes of `new` that differ from those of `old`, between what both begin with and what both
/// end with.
pub(super) fn changed_range(old: &[u8], new: &[u8]) -> Range<usize> {
    let same = same_at_start(old, new);
    same..new.len() - same_at_end(&old[same..], &new[same..])
}

/// Bytes of a splice or a patch in the log beside its own.
pub(super) const SPLICE_BYTES: usize = 6;

/// The ranges in which two byte strings of one length differ. Ranges that would cost the log more than the
/// bytes between them are one.
pub(super) fn changed_ranges(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    debug_assert_eq!(old.len(), new.len());
    let mut ranges = Vec::<Range<usize>>::new();
    let chunks = old.chunks(COMPARED_BYTES).zip(new.chunks(COMPARED_BYTES)).enumerate();
    for (i, (old, new)) in chunks.filter(|(_, (old, new))| old != new) {
        for (j, _) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
            let at = i * COMPARED_BYTES + j;
            match ranges.last_mut() {
                Some(last) if at - last.end <= SPLICE_BYTES => last.end = at + 1,
                _ => ranges.push(at..at + 1),
            }
        }
    }
    ranges
}

/// If a leaf has lost elements in several places, and may have got others at its end: the ranges of
/// the lost bytes. `None` if the log gets less by one splice of all between them.
pub(super) fn removed_ranges(old: &[u8], new: &[u8]) -> Option<Vec<Range<usize>>> {
    let (mut kept, mut ranges) = (0, Vec::<Range<usize>>::new());
    for element in elements(old, 0) {
        let bytes = &old[element.at..element.end];
        if new.get(kept..).is_some_and(|rest| rest.starts_with(bytes)) {
            kept += bytes.len();
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == element.at => last.end = element.end,
            _ => ranges.push(element.at..element.end),
        }
    }
    let lost: usize = ranges.iter().map(Range::len).sum();
    if old.len() - lost != kept {
        // These bytes are no leaf.
        return None;
    }
    let added = new.len() - kept;
    let whole = SPLICE_BYTES + changed_range(old, new).len();
    (SPLICE_BYTES * ranges.len() + added < whole).then_some(ranges)
}

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 32;

/// Bytes that two byte strings have in common at their beginning.
pub(super) fn same_at_start(old: &[u8], new: &[u8]) -> usize {
    let (old_chunks, new_chunks) =
        (old.as_chunks::<COMPARED_BYTES>().0, new.as_chunks::<COMPARED_BYTES>().0);
    let chunks = old_chunks.iter().zip(new_chunks).take_while(|(a, b)| a == b).count();
    let from = chunks * COMPARED_BYTES;
    from + old[from..].iter().zip(&new[from..]).take_while(|(a, b)| a == b).count()
}

/// Bytes that two byte strings have in common at their end.
fn same_at_end(old: &[u8], new: &[u8]) -> usize {
    let (old_chunks, new_chunks) =
        (old.as_rchunks::<COMPARED_BYTES>().1, new.as_rchunks::<COMPARED_BYTES>().1);
    let pairs = old_chunks.iter().rev().zip(new_chunks.iter().rev());
    let behind = pairs.take_while(|(a, b)| a == b).count() * COMPARED_BYTES;
    let (old, new) = (&old[..old.len() - behind], &new[..new.len() - behind]);
    behind + old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    #[test]
    fn changed_ranges_have_every_difference_and_few_others() {
        let rng = SeededRng::new(2);
        for _ in 0..2_000 {
            let old: Vec<u8> = (0..rng.below(200)).map(|_| rng.below(256) as u8).collect();
            let mut new = old.clone();
            for _ in 0..rng.below(6) {
                if let Some(byte) = new.get_mut(rng.below(200) as usize) {
                    *byte ^= 1;
                }
            }
            let ranges = changed_ranges(&old, &new);
            let mut made = old.clone();
            for range in ranges.clone() {
                made[range.clone()].copy_from_slice(&new[range.clone()]);
                let ends = [range.start, range.end - 1];
                assert!(
                    ends.iter().all(|&end| old[end] != new[end]),
                    "{range:?} ends in a difference"
                );
            }
            assert_eq!(made, new);
            assert!(ranges.windows(2).all(|pair| pair[1].start > pair[0].end + SPLICE_BYTES));
        }
    }

    #[test]
    fn the_changed_range_is_the_shortest() {
        let rng = SeededRng::new(1);
        for _ in 0..2_000 {
            let old: Vec<u8> = (0..rng.below(150)).map(|_| rng.below(2) as u8).collect();
            let mut new = old.clone();
            for _ in 0..rng.below(3) {
                if let Some(byte) = new.get_mut(rng.below(150) as usize) {
                    *byte ^= 1;
                }
            }
            new.extend(std::iter::repeat_n(1, rng.below(2) as usize * 40));
            let most = old.len().min(new.len());
            let from = (0..most).find(|&at| old[at] != new[at]).unwrap_or(most);
            let is_same =
                |behind: &usize| old[old.len() - 1 - behind] == new[new.len() - 1 - behind];
            let same = (0..most - from).take_while(is_same).count();
            assert_eq!(changed_range(&old, &new), from..new.len() - same, "{old:?} {new:?}");
            let mut made = old.clone();
            made.splice(from..old.len() - same, new[from..new.len() - same].iter().copied());
            assert_eq!(made, new);
        }
    }
}
