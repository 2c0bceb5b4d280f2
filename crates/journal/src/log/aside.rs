//! Room in a log that is set aside for records which must never be refused: undos and aborts.
//!
//! ```text
//!  present segment                      prepared segments
//!  │ batches ▶ │ others may │ kept back ││ pinned │ pinned │ others may take │
//!                           └────────── room set aside ────┘
//! ```
//! Each expected record counts as a *unit*: the bytes of a batch with that record alone, since a
//! flush may come between any two records. A unit is a multiple of 4096 bytes, and so is the room
//! of a segment. If a unit does not fit at the end of a segment, the bytes left there are fewer
//! than the largest unit. So a segment holds units of at least its room − the largest unit + 4096
//! bytes.
//!
//! Invariant: the pinned segments and the reserved part of the present segment together have room
//! for the sum of the units. Other records never use this room. A unit that is used takes as much
//! from the sum as from the room.

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{BATCH_HEADER_BYTES, CONTINUATION_BYTES, RECORD_HEAD_BYTES};
use stillpoint_io::DIRECT_ALIGN;
use stillpoint_sync::{mutant, planted};

const ALIGN: u64 = DIRECT_ALIGN as u64;

/// Room set aside in one log.
#[derive(Debug)]
pub(super) struct Aside {
    /// Room of a prepared segment of ordinary length.
    capacity: u64,
    /// Bytes of a unit besides the body of its record, including dependencies on all other logs.
    overhead: u64,
    /// Sum of the units.
    units: u64,
    /// The largest unit since the last time when no room was set aside.
    largest: u64,
    /// Prepared segments that are pinned for units.
    pub(super) pinned: usize,
}

impl Aside {
    pub(super) fn new(segment_bytes: u64, logs: u8) -> Self {
        // A dependency is in the record and in the summary of the batch.
        let around = BATCH_HEADER_BYTES + RECORD_HEAD_BYTES + 2 * 8 * usize::from(logs);
        Aside {
            capacity: segment_bytes - (HEADER_BYTES + CONTINUATION_BYTES) as u64,
            overhead: around as u64,
            units: 0,
            largest: 0,
            pinned: 0,
        }
    }

    /// The unit of a record with a body of `body_bytes` bytes.
    fn unit(&self, body_bytes: u64) -> u64 {
        (self.overhead + body_bytes).next_multiple_of(ALIGN)
    }

    /// Bytes of units that a segment with this room holds for certain.
    fn certain(room: u64, largest: u64) -> u64 {
        (room + ALIGN).saturating_sub(largest)
    }

    /// Number of segments that must be pinned to set a further record aside, if `left` bytes of
    /// room are left in the present segment. `None` if no segment has room for the record.
    pub(super) fn pinned_with(&self, body_bytes: u64, left: u64) -> Option<usize> {
        let unit = self.unit(body_bytes);
        let largest = self.largest.max(unit);
        if unit > self.capacity {
            return None;
        }
        let rest = (self.units + unit).saturating_sub(Self::certain(left, largest));
        let per_segment = Self::certain(self.capacity, largest);
        Some((rest.div_ceil(per_segment) as usize).max(self.pinned))
    }

    /// Number of segments that must be pinned so that nothing of the present one need be kept back.
    pub(super) fn pinned_for_all(&self) -> usize {
        self.units.div_ceil(Self::certain(self.capacity, self.largest)) as usize
    }

    /// Sets room aside for a record. From now on `pinned` segments are pinned for all units.
    pub(super) fn add(&mut self, body_bytes: u64, pinned: usize) {
        let unit = self.unit(body_bytes);
        self.units += unit;
        self.largest = self.largest.max(unit);
        self.pinned = pinned;
    }

    /// Gives the room of a record back. True if no room is set aside any more.
    pub(super) fn give_back(&mut self, body_bytes: u64) -> bool {
        self.units -= self.unit(body_bytes);
        if self.units == 0 {
            (self.largest, self.pinned) = (0, 0);
        }
        self.units == 0
    }

    /// Bytes of the present segment that other records leave.
    #[inline]
    pub(super) fn kept_back(&self) -> usize {
        if self.units == 0 { 0 } else { self.kept_back_of_present() }
    }

    #[cold]
    fn kept_back_of_present(&self) -> usize {
        mutant!(UndoRoomNotKept => return 0);
        let pinned = self.pinned as u64 * Self::certain(self.capacity, self.largest);
        match self.units.saturating_sub(pinned) {
            0 => 0,
            rest => (rest + self.largest - ALIGN) as usize,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    /// A model of a log takes random records and units. Every unit finds room.
    #[test]
    fn every_unit_finds_room() {
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

    #[test]
    fn a_record_that_no_segment_holds_is_not_set_aside() {
        let aside = Aside::new(4 * ALIGN, 1);
        assert_eq!(aside.pinned_with(3 * ALIGN, 2 * ALIGN), None);
        assert_eq!(aside.pinned_with(100, 2 * ALIGN), Some(0));
        assert_eq!(aside.pinned_with(100, 0), Some(1));
    }
}
