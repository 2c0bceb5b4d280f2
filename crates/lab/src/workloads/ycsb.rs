//! YCSB's core workloads A to F (SoCC 2010, §4), with its published laws of keys. Workload E reads
//! ranges, for which a table must be ordered.
//!
//! A record has ten fields of 100 bytes. A read reads all fields, an update writes one. A field
//! tells its record, its number and the write that made it, so that each can be checked.

use std::fmt;

use crate::workloads::random::{KeyLaw, Keys, Random, YCSB_EXPONENT, Zipf, splitmix64};

/// Fields of a record.
pub(crate) const FIELDS: usize = 10;
/// Bytes of a field.
pub(crate) const FIELD_BYTES: usize = 100;
/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = FIELDS * FIELD_BYTES;

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mix {
    /// YCSB's letter.
    pub(crate) name: &'static str,
    /// Share of reads.
    pub(crate) reads: f64,
    /// Share of updates.
    pub(crate) updates: f64,
    /// Share of inserts.
    pub(crate) inserts: f64,
    /// Share of ranges. The remaining operations read, modify and write.
    pub(crate) ranges: f64,
    /// Whether reads prefer the newest records, by a Zipf law.
    pub(crate) reads_latest: bool,
    /// The law of all other keys.
    pub(crate) law: KeyLaw,
}

const fn mix(name: &'static str, reads: f64, updates: f64, inserts: f64) -> Mix {
    let (ranges, reads_latest, law) = (0.0, inserts > 0.0, KeyLaw::ScrambledZipf);
    Mix { name, reads, updates, inserts, ranges, reads_latest, law }
}

/// The workloads A to D and F.
pub(crate) const MIXES: [Mix; 5] = [
    mix("A", 0.5, 0.5, 0.0),
    mix("B", 0.95, 0.05, 0.0),
    mix("C", 1.0, 0.0, 0.0),
    mix("D", 0.95, 0.0, 0.05),
    mix("F", 0.5, 0.0, 0.0),
];

/// The workload E: ranges of 1 to [`RANGE_RECORDS_MAX`] records, and inserts.
pub(crate) const RANGES: Mix =
    Mix { ranges: 0.95, reads_latest: false, ..mix("E", 0.0, 0.0, 0.05) };

/// Most records of a range. All lengths are equally likely.
pub(crate) const RANGE_RECORDS_MAX: u64 = 100;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reads all fields.
    Read,
    /// Writes one field.
    Update(usize),
    /// Inserts a new record.
    Insert,
    /// Reads all fields and writes one.
    ReadModifyWrite(usize),
    /// Reads so many records in the order of keys, from this one on.
    Range(usize),
}

/// An operation on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The record's number.
    pub(crate) record: u64,
    /// Kind of the operation.
    pub(crate) action: Action,
}

/// The operations of one worker. Records that a worker inserts have numbers behind the loaded ones.
/// The newest records that a worker reads are its own.
#[derive(Debug)]
pub(crate) struct Operations {
    mix: Mix,
    records: u64,
    workers: u64,
    worker: u64,
    inserted: u64,
    keys: Keys,
    /// Age of a read record: its distance from the newest one.
    ages: Zipf,
    random: Random,
}

impl Operations {
    /// The operations of worker number `worker` out of `workers`, on loaded records, after
    /// `inserted` inserts of the same worker.
    ///
    /// # Panics
    /// When there are no records.
    pub(crate) fn new(
        mix: Mix,
        records: u64,
        workers: usize,
        worker: usize,
        inserted: u64,
        seed: u64,
    ) -> Self {
        Operations {
            mix,
            records,
            workers: workers as u64,
            worker: worker as u64,
            inserted,
            keys: Keys::with(mix.law, records),
            ages: Zipf::new(records, YCSB_EXPONENT),
            random: Random::for_thread(seed, worker),
        }
    }

    /// Records that this worker has inserted.
    pub(crate) fn inserted(&self) -> u64 {
        self.inserted
    }

    /// The number of the worker's n-th own record.
    fn own(&self, n: u64) -> u64 {
        self.records + n * self.workers + self.worker
    }

    /// The next operation.
    pub(crate) fn draw(&mut self) -> Operation {
        let choice = self.random.unit();
        let Mix { reads, updates, inserts, ranges, .. } = self.mix;
        let field = self.random.below(FIELDS as u64) as usize;
        if choice < reads {
            let record = if self.mix.reads_latest { self.latest() } else { self.key() };
            Operation { record, action: Action::Read }
        } else if choice < reads + updates {
            Operation { record: self.key(), action: Action::Update(field) }
        } else if choice < reads + updates + inserts {
            self.inserted += 1;
            Operation { record: self.own(self.inserted - 1), action: Action::Insert }
        } else if choice < reads + updates + inserts + ranges {
            let records = 1 + self.random.below(RANGE_RECORDS_MAX) as usize;
            Operation { record: self.key(), action: Action::Range(records) }
        } else {
            Operation { record: self.key(), action: Action::ReadModifyWrite(field) }
        }
    }

    fn key(&mut self) -> u64 {
        self.keys.next(&mut self.random)
    }

    /// Draws a record by its age. The newest is the most likely.
    fn latest(&mut self) -> u64 {
        let age = self.ages.next(&mut self.random) - 1;
        match self.inserted.checked_sub(age + 1) {
            Some(own) => self.own(own),
            None => self.records - 1 - (age - self.inserted),
        }
    }
}

/// Writes the bytes of a field: record, write, and a filling computed from both.
///
/// # Panics
/// When the buffer is shorter than a field.
pub(crate) fn write_field(room: &mut [u8], record: u64, field: usize, write: u64) {
    room[..8].copy_from_slice(&record.to_le_bytes());
    room[8..16].copy_from_slice(&write.to_le_bytes());
    let mut mix = record ^ (field as u64) << 56 ^ write.rotate_left(32);
    let (first, step) = (splitmix64(&mut mix), splitmix64(&mut mix) | 1);
    for (n, word) in room[16..FIELD_BYTES].chunks_mut(8).enumerate() {
        let bytes = first.wrapping_add(step.wrapping_mul(n as u64)).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// The first value of a record.
pub(crate) fn first_record(record: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (field, room) in bytes.chunks_mut(FIELD_BYTES).enumerate() {
        write_field(room, record, field, 0);
    }
    bytes
}

/// Defect of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    record: u64,
    field: Option<usize>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "record {}: no write left field {field} so", self.record),
            None => write!(f, "record {} has another length", self.record),
        }
    }
}

/// Checks that some write made every field of a record.
///
/// # Errors
/// The first wrong field.
pub(crate) fn check(record: u64, bytes: &[u8]) -> Result<(), Wrong> {
    if bytes.len() != RECORD_BYTES {
        return Err(Wrong { record, field: None });
    }
    let mut expected = [0; FIELD_BYTES];
    for (field, found) in bytes.chunks(FIELD_BYTES).enumerate() {
        let write = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
        write_field(&mut expected, record, field, write);
        if found != expected {
            return Err(Wrong { record, field: Some(field) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations(name: &str, records: u64) -> Operations {
        let mix = *MIXES.iter().chain([&RANGES]).find(|mix| mix.name == name).expect("a mix");
        Operations::new(mix, records, 2, 1, 0, 5)
    }

    #[test]
    fn mixes_have_the_published_shares() {
        for (name, expected) in [
            ("A", [0.5, 0.5, 0.0, 0.0, 0.0]),
            ("B", [0.95, 0.05, 0.0, 0.0, 0.0]),
            ("C", [1.0, 0.0, 0.0, 0.0, 0.0]),
            ("D", [0.95, 0.0, 0.05, 0.0, 0.0]),
            ("E", [0.0, 0.0, 0.05, 0.0, 0.95]),
            ("F", [0.5, 0.0, 0.0, 0.5, 0.0]),
        ] {
            let mut operations = operations(name, 1_000);
            let mut counts = [0_u32; 5];
            for _ in 0..40_000 {
                counts[match operations.draw().action {
                    Action::Read => 0,
                    Action::Update(_) => 1,
                    Action::Insert => 2,
                    Action::ReadModifyWrite(_) => 3,
                    Action::Range(records) => {
                        assert!((1..=100).contains(&records));
                        4
                    }
                }] += 1;
            }
            for (count, share) in counts.into_iter().zip(expected) {
                let found = f64::from(count) / 40_000.0;
                assert!((found - share).abs() < 0.015, "{name}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_newest_records_are_read_most_and_inserts_are_read_at_once() {
        let mut operations = operations("D", 10_000);
        let (mut newest, mut reads, mut own) = (0, 0, 0);
        for _ in 0..200_000 {
            let before = operations.inserted();
            let operation = operations.draw();
            if operation.action == Action::Read {
                reads += 1;
                let last = if before == 0 { 9_999 } else { operations.own(before - 1) };
                newest += u32::from(operation.record == last);
                own += u32::from(operation.record >= 10_000);
            } else {
                assert_eq!(operation.record, 10_000 + before * 2 + 1, "its own, in order");
            }
        }
        // Probability of the newest of 10,000 records: 1 ÷ the sum of rank^-0.99.
        let sum: f64 = (1..=10_000).map(|rank| f64::from(rank).powf(-YCSB_EXPONENT)).sum();
        let share = f64::from(newest) / f64::from(reads);
        assert!((share - 1.0 / sum).abs() < 0.005, "{share} and {}", 1.0 / sum);
        assert!(own > reads / 3, "{own} of {reads}");
    }

    #[test]
    fn a_field_that_no_write_left_so_is_found() {
        let mut record = first_record(7);
        assert_eq!(check(7, &record), Ok(()));
        write_field(&mut record[300..400], 7, 3, 99);
        assert_eq!(check(7, &record), Ok(()));
        assert!(check(8, &record).is_err() && check(7, &record[1..]).is_err());
        record[399] ^= 1;
        assert_eq!(check(7, &record), Err(Wrong { record: 7, field: Some(3) }));
        write_field(&mut record[300..400], 7, 4, 99);
        assert!(check(7, &record).is_err(), "another field's bytes");
    }
}
