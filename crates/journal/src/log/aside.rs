//! Room in a log that is set aside for records which must never be refused: undos and aborts.
//!
//! ```text
//!  present segment                      prepared segments
//!  │ batches ▶ │ others may │ kept back ││ pinned │ pinned │ others may take │
//!                           └────────── room set aside ────┘
//! ```
//! A flush ends the open batch, and pads it to a multiple of 4096 bytes. So a record takes a block if a
//! flush follows each record, and little more than its bytes otherwise. There are two sufficient measures
//! of the room for all expected records, and the lesser one counts:
//!
//! - **Alone.** Each record has a batch of its own, its *unit*. If a unit does not fit at the end of a
//!   segment, the bytes left there are fewer than the largest unit. So a segment holds units of at least
//!   its room − the largest unit + 4096 bytes.
//! - **Together.** The records share batches. A batch costs its header and the padding, a *break*. The
//!   room is the bytes of the records, and [`BREAKS`] breaks for batches that a flush ends. A sixteenth of
//!   the bytes comes on top, for batches that are full.
//!
//! Invariant: the pinned segments and the reserved part of the present one have room by one of these
//! measures. But breaks may be used up. Other records never use this room. A flush ends a batch
//! only if [`BREAKS_LEFT`] breaks are left behind it, or the records would have room alone. Otherwise it
//! pins more segments, or waits for the records of the abort that is under way.

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{BATCH_HEADER_BYTES, CONTINUATION_BYTES, RECORD_HEAD_BYTES};
use stillpoint_io::DIRECT_ALIGN;
use stillpoint_sync::{mutant, planted};

const ALIGN: u64 = DIRECT_ALIGN as u64;
/// Batches that flushes may end before further room is needed.
const BREAKS: u64 = 1024;
/// Breaks that are left behind each batch. One is for the batch that follows. The other is for records that
/// come between a flush's look at the room and its end of the batch.
const BREAKS_LEFT: u64 = 2;
/// Part of the records' bytes, as a divisor, for the breaks of full batches. A batch is full at the latest
/// when its share of this part pays for its break.
const FULL_BATCHES: u64 = 16;

/// Expected records, and the room that they take.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// Sum of the units.
    units: u64,
    /// The largest unit since the last time when no room was set aside.
    largest: u64,
    /// Sum of the bytes of the records.
    bytes: u64,
    /// Bytes of the longest record since then.
    longest: u64,
}

/// Room set aside in one log.
#[derive(Debug)]
pub(super) struct Aside {
    /// Room of a prepared segment of ordinary length.
    capacity: u64,
    /// Bytes of a record besides its body, including dependencies on all other logs.
    record_overhead: u64,
    /// Bytes of a batch besides its records, including dependencies on all other logs.
    batch_overhead: u64,
    expected: Expected,
    /// Prepared segments that are pinned for the records.
    pub(super) pinned: usize,
}

impl Aside {
    pub(super) fn new(segment_bytes: u64, logs: u8) -> Self {
        // A dependency is in the record and in the summary of the batch.
        let dependencies = 8 * usize::from(logs);
        Aside {
            capacity: segment_bytes - (HEADER_BYTES + CONTINUATION_BYTES) as u64,
            record_overhead: (RECORD_HEAD_BYTES + dependencies) as u64,
            batch_overhead: (BATCH_HEADER_BYTES + dependencies) as u64,
            expected: Expected::default(),
            pinned: 0,
        }
    }

    /// The unit of a record with a body of `body_bytes` bytes.
    fn unit(&self, body_bytes: u64) -> u64 {
        (self.batch_overhead + self.record_overhead + body_bytes).next_multiple_of(ALIGN)
    }

    /// Bytes of a break, at most.
    fn break_bytes(&self) -> u64 {
        self.batch_overhead + ALIGN
    }

    /// What is expected together with a further record.
    fn with(&self, body_bytes: u64) -> Expected {
        let (unit, bytes) = (self.unit(body_bytes), self.record_overhead + body_bytes);
        Expected {
            units: self.expected.units + unit,
            largest: self.expected.largest.max(unit),
            bytes: self.expected.bytes + bytes,
            longest: self.expected.longest.max(bytes),
        }
    }

    /// How much of this room is used for certain by records alone.
    fn certain_alone(room: u64, of: &Expected) -> u64 {
        (room + ALIGN).saturating_sub(of.largest)
    }

    /// How much of this room is used for certain by records together, with their breaks.
    fn certain_together(&self, room: u64, of: &Expected) -> u64 {
        room.saturating_sub(of.longest + self.break_bytes())
    }

    /// Room that the records take together, with so many breaks.
    fn together(&self, of: &Expected, breaks: u64) -> u64 {
        of.bytes + of.bytes.div_ceil(FULL_BATCHES) + breaks * self.break_bytes()
    }

    /// Number of segments that these records need beside `left` bytes of the present one.
    fn segments(&self, of: &Expected, left: u64) -> usize {
        let alone = of.units.saturating_sub(Self::certain_alone(left, of));
        if alone == 0 {
            return 0;
        }
        let alone = alone.div_ceil(Self::certain_alone(self.capacity, of));
        let together = self.together(of, BREAKS).saturating_sub(self.certain_together(left, of));
        let together = match self.certain_together(self.capacity, of) {
            0 => u64::MAX,
            of_segment => together.div_ceil(of_segment),
        };
        alone.min(together) as usize
    }

    /// Number of segments that must be pinned to set a further record aside, if `left` bytes of
    /// room are left in the present segment. `None` if no segment has room for the record.
    pub(super) fn pinned_with(&self, body_bytes: u64, left: u64) -> Option<usize> {
        if self.unit(body_bytes) > self.capacity {
            return None;
        }
        Some(self.segments(&self.with(body_bytes), left).max(self.pinned))
    }

    /// Number of segments that must be pinned so that nothing of the present one need be kept back.
    pub(super) fn pinned_for_all(&self) -> usize {
        self.segments(&self.expected, 0)
    }

    /// Sets room aside for a record. From now on `pinned` segments are pinned for all of them.
    pub(super) fn add(&mut self, body_bytes: u64, pinned: usize) {
        self.expected = self.with(body_bytes);
        self.pinned = pinned;
    }

    /// Gives the room of a record back. True if no room is set aside any more.
    pub(super) fn give_back(&mut self, body_bytes: u64) -> bool {
        self.expected.units -= self.unit(body_bytes);
        self.expected.bytes -= self.record_overhead + body_bytes;
        if self.expected.units == 0 {
            (self.expected, self.pinned) = (Expected::default(), 0);
        }
        self.expected.units == 0
    }

    /// Bytes of the present segment that other records leave.
    #[inline]
    pub(super) fn kept_back(&self) -> usize {
        if self.expected.units == 0 { 0 } else { self.kept_back_of_present() }
    }

    #[cold]
    fn kept_back_of_present(&self) -> usize {
        self.needed_of_present(BREAKS) as usize
    }

    /// Bytes of the present segment that the records need beside the pinned ones, with so many breaks.
    fn needed_of_present(&self, breaks: u64) -> u64 {
        mutant!(UndoRoomNotKept => return 0);
        let (of, pinned) = (&self.expected, self.pinned as u64);
        let alone = of.units.saturating_sub(pinned * Self::certain_alone(self.capacity, of));
        let together = self.together(of, breaks);
        let together = together.saturating_sub(pinned * self.certain_together(self.capacity, of));
        if alone == 0 || together == 0 {
            return 0;
        }
        let alone = alone + of.largest - ALIGN;
        let together = together + of.longest + self.break_bytes();
        alone.min(together.next_multiple_of(ALIGN))
    }

    /// Whether a batch may end, if `left` bytes of the present segment lie behind it.
    #[inline]
    pub(super) fn lets_end(&self, left: u64) -> bool {
        self.expected.units == 0 || self.needed_of_present(BREAKS_LEFT) <= left
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    /// A model of a log takes random records and units. Every unit finds room.
    #[test]
    fn every_record_alone_finds_room() {
        for seed in 0..2000 {
            let rng = SeededRng::new(seed);
            let segment_bytes = ALIGN * (4 + rng.below(12));
            let mut aside = Aside::new(segment_bytes, 1 + rng.below(4) as u8);
            let (capacity, mut spares) = (aside.capacity, 3);
            let mut left = capacity;
            let mut bodies: Vec<u64> = Vec::new();
            for _ in 0..200 {
                match rng.below(3) {
                    0 => {
                        let body = rng.below(2 * ALIGN);
                        if let Some(pinned) = aside.pinned_with(body, left)
                            && pinned <= spares
                        {
                            aside.add(body, pinned);
                            bodies.push(body);
                        }
                    }
                    1 if !bodies.is_empty() => {
                        let body = bodies.swap_remove(rng.below(bodies.len() as u64) as usize);
                        if rng.below(3) > 0 {
                            // A record may be shorter than the room that was set aside for it.
                            let used = aside.unit(rng.below(body + 1));
                            if used > left {
                                assert!(aside.pinned > 0 && spares > 0, "seed {seed}: no room");
                                (aside.pinned, spares, left) =
                                    (aside.pinned - 1, spares - 1, capacity);
                            }
                            left -= used;
                        }
                        aside.give_back(body);
                    }
                    _ => {
                        let other = ALIGN * (1 + rng.below(3));
                        if other + aside.kept_back() as u64 > left && spares > aside.pinned {
                            (spares, left) = (spares - 1, capacity);
                        }
                        if other + aside.kept_back() as u64 <= left {
                            left -= other;
                        } else if rng.below(4) == 0 {
                            spares += 1;
                        }
                    }
                }
            }
        }
    }

    /// A segment of a model: `left` bytes from the begin of the open batch on, of which records have `open`.
    struct Model {
        aside: Aside,
        spares: usize,
        left: u64,
        open: u64,
    }

    impl Model {
        /// Bytes of the open batch with so many more.
        fn padded(&self, more: u64) -> u64 {
            match self.open + more {
                0 => 0,
                bytes => (self.aside.batch_overhead + bytes).next_multiple_of(ALIGN),
            }
        }

        fn end_batch(&mut self) {
            self.left -= self.padded(0);
            self.open = 0;
        }

        fn flush(&mut self) {
            if self.aside.lets_end(self.left - self.padded(0)) {
                self.end_batch();
            }
        }

        fn put_other(&mut self, bytes: u64) {
            if self.padded(bytes) + self.aside.kept_back() as u64 <= self.left {
                self.open += bytes;
            }
        }

        fn set_aside(&mut self, body: u64) -> bool {
            match self.aside.pinned_with(body, self.left - self.padded(0)) {
                Some(pinned) if pinned <= self.spares => {
                    self.aside.add(body, pinned);
                    true
                }
                _ => false,
            }
        }

        fn put_aside(&mut self, body: u64) {
            let bytes = self.aside.record_overhead + body;
            if self.padded(bytes) > self.left {
                assert!(self.aside.pinned > 0 && self.spares > 0, "no room for a record");
                (self.aside.pinned, self.spares) = (self.aside.pinned - 1, self.spares - 1);
                (self.left, self.open) = (self.aside.capacity, 0);
            }
            self.open += bytes;
            self.aside.give_back(body);
        }
    }

    /// Flushes and other records come between very many records. Each of them finds room.
    #[test]
    fn very_many_records_find_room_together() {
        for seed in 0..60 {
            let rng = SeededRng::new(seed);
            let aside = Aside::new(64 * ALIGN * (1 + rng.below(16)), 1 + rng.below(4) as u8);
            let left = aside.capacity;
            let spares = ((12 << 20) / aside.capacity) as usize;
            let mut model = Model { aside, spares, left, open: 0 };
            let mut bodies = Vec::new();
            let longest = 1 + rng.below(300);
            while bodies.len() < 20_000 {
                let body = rng.below(longest);
                if !model.set_aside(body) {
                    break;
                }
                bodies.push(body);
                if rng.below(8) == 0 {
                    model.put_other(rng.below(1000));
                }
            }
            assert!(bodies.len() > 8000, "seed {seed}: {}, far more than blocks", bodies.len());
            // Now and then there are many flushes. A record may be shorter than expected.
            let mut often = false;
            while let Some(body) = bodies.pop() {
                model.put_aside(body);
                if rng.below(1000) == 0 {
                    often = rng.below(3) == 0;
                }
                if often || rng.below(100) == 0 {
                    model.flush();
                }
                if rng.below(20) == 0 {
                    model.put_other(rng.below(5000));
                }
            }
        }
    }

    /// A million short records take little more than their bytes, and few take a block each at most.
    #[test]
    fn room_follows_the_bytes_of_the_records() {
        for (records, most) in [(1, 1), (15, 15), (1_000_000, 65_000)] {
            let mut aside = Aside::new(64 << 20, 2);
            (0..records).for_each(|_| aside.add(100, 0));
            let kept_back = aside.kept_back() as u64;
            assert!(kept_back <= most * ALIGN, "{records} records: {kept_back} bytes");
        }
    }

    #[test]
    fn a_record_that_no_segment_holds_is_not_set_aside() {
        let aside = Aside::new(4 * ALIGN, 1);
        assert_eq!(aside.pinned_with(3 * ALIGN, 2 * ALIGN), None);
        assert_eq!(aside.pinned_with(100, 2 * ALIGN), Some(0));
        assert_eq!(aside.pinned_with(100, 0), Some(1));
    }
}
