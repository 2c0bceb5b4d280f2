//! Places of a log by gsn, so that the bytes above a gsn are known nearly to the byte.

use std::collections::VecDeque;

/// Most marks of a log. Beyond them every second one is forgotten.
const MARKS_MAX: usize = 4096;
/// Marks in a segment, about, while there are few.
const MARKS_IN_SEGMENT: u64 = 64;

/// Where records begin.
#[derive(Debug)]
pub(super) struct Marks {
    /// Gsn and place: no record from the gsn on lies before the place. Both ascend.
    marks: VecDeque<(u64, u64)>,
    /// Least bytes between two marks.
    apart: u64,
}

impl Marks {
    pub(super) fn new(segment_bytes: u64) -> Self {
        Self { marks: VecDeque::new(), apart: segment_bytes / MARKS_IN_SEGMENT }
    }

    /// Notes that the records from a gsn on lie behind a place.
    #[inline]
    pub(super) fn note(&mut self, gsn: u64, place: u64) {
        let last = self.marks.back().map_or(0, |last| last.1);
        if place >= last + self.apart {
            self.push(gsn, place);
        }
    }

    #[cold]
    fn push(&mut self, gsn: u64, place: u64) {
        if self.marks.len() == MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.apart *= 2;
        }
        self.marks.push_back((gsn, place));
    }

    /// The place behind which all records above a gsn lie. It is 0 if no mark is so early.
    pub(super) fn place_above(&self, gsn: u64) -> u64 {
        let at = self.marks.partition_point(|mark| mark.0 <= gsn.saturating_add(1));
        at.checked_sub(1).map_or(0, |at| self.marks[at].1)
    }

    /// Forgets what nobody asks for once no record up to a gsn is needed.
    pub(super) fn forget_below(&mut self, gsn: u64) {
        let at = self.marks.partition_point(|mark| mark.0 <= gsn.saturating_add(1));
        self.marks.drain(..at.saturating_sub(1));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// However many marks there are: no record above a gsn lies before the place of the gsn, and not far
    /// behind it.
    #[test]
    fn places_are_never_too_late_and_seldom_early() {
        let mut marks = Marks::new(64 * 100);
        let records = 3 * MARKS_MAX as u64;
        for gsn in 1..=records {
            marks.note(gsn + 1, gsn * 100);
        }
        assert!(marks.marks.len() <= MARKS_MAX);
        for gsn in 1..=records {
            let place = marks.place_above(gsn);
            assert!(place <= gsn * 100 && place + 900 > gsn * 100, "{gsn}: {place}");
        }
        marks.forget_below(records / 2);
        assert!(marks.marks.len() <= MARKS_MAX / 2 + 1);
        assert!(marks.place_above(records / 2) > 0);
    }
}
