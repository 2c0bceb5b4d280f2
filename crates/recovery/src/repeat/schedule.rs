//! The order of a replay of calls: which records of a stretch a record has to wait for.
//!
//! ```text
//! thread A   declares 0–7 │ runs 0, 1, … 7              │ declares 16–23 │ runs 16, …
//! thread B                │ declares 8–15 │ runs 8, 9, … 15            │ …
//! ```
//! Threads take records in the order of gsns, some at a time, and declare their keys in turn. For each key
//! a record notes the last one before it that has written the key, and the last one that has read it. It
//! runs after the writer. If it writes the key, it also runs after the readers. Readers do not wait for
//! each other, so it waits for all records up to the last of them. Records without calls are blind
//! writers of their keys. So a record waits for earlier ones alone, and the first one that has not ended
//! never waits.
//!
//! Keys share entries of a table by their hash. A record may wait for one with other keys, seldom and not
//! for long.

use parking_lot::Mutex;
use stillpoint_journal::{ReplayCall, ReplayWrite, Round};
use stillpoint_store::Mode;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::RecoveryError;

/// Records that a thread takes at once. Their keys are prefetched together.
const TAKEN: usize = 8;
/// Entries of the table of accesses: 512 KiB.
const ENTRIES: usize = 1 << 16;

/// A record to replay.
#[derive(Clone, Debug)]
pub(super) enum InOrder<'m, 'r> {
    /// A call.
    Call(&'m ReplayCall<'r>),
    /// The writes of a transaction.
    Writes(Vec<&'m ReplayWrite<'r>>),
}

impl<'m, 'r> InOrder<'m, 'r> {
    /// Gsn and log of the record.
    fn place(&self) -> (u64, u8) {
        match self {
            Self::Call(call) => (call.gsn, call.log),
            Self::Writes(writes) => writes.first().map_or((0, 0), |first| (first.gsn, first.log)),
        }
    }

    pub(super) fn gsn(&self) -> u64 {
        self.place().0
    }

    pub(super) fn log(&self) -> u8 {
        self.place().1
    }

    /// Drops the writes for which `keep` says so.
    pub(super) fn retain_writes(
        &mut self,
        mut keep: impl FnMut(&ReplayWrite<'_>) -> Result<bool, RecoveryError>,
    ) -> Result<(), RecoveryError> {
        let Self::Writes(writes) = self else { return Ok(()) };
        let mut kept = Vec::with_capacity(writes.len());
        for write in writes.drain(..) {
            if keep(write)? {
                kept.push(write);
            }
        }
        *writes = kept;
        Ok(())
    }

    pub(super) fn writes(&self) -> &[&'m ReplayWrite<'r>] {
        match self {
            Self::Call(_) => &[],
            Self::Writes(writes) => writes,
        }
    }
}

/// The records of a round in the order of gsns.
pub(super) fn records_in_order<'m, 'r>(round: &'m Round<'r>) -> Vec<InOrder<'m, 'r>> {
    let mut records: Vec<InOrder<'m, 'r>> = Vec::new();
    let mut calls = round.calls().iter().peekable();
    for write in round.partition(0) {
        while let Some(call) = calls.next_if(|call| (call.gsn, call.log) < (write.gsn, write.log)) {
            records.push(InOrder::Call(call));
        }
        match records.last_mut() {
            Some(InOrder::Writes(writes))
                if writes.first().is_some_and(|of| (of.gsn, of.log) == (write.gsn, write.log)) =>
            {
                writes.push(write);
            }
            _ => records.push(InOrder::Writes(vec![write])),
        }
    }
    records.extend(calls.map(InOrder::Call));
    records
}

/// The last records that have accessed a key of an entry, each by its number plus one. 0 for none.
/// Relaxed: only the thread whose turn it is to declare accesses an entry.
#[derive(Default)]
struct Accessed {
    writer: AtomicU32,
    reader: AtomicU32,
}

/// How far the records of a stretch are.
pub(super) struct Schedule {
    /// Empty if one thread takes all records.
    accessed: Box<[Accessed]>,
    /// Number of records whose keys have been declared.
    declared: AtomicUsize,
    done: Vec<AtomicBool>,
    next: AtomicUsize,
    count: usize,
    has_failed: AtomicBool,
    failure: Mutex<Option<(usize, RecoveryError)>>,
}

/// Whom a record waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    /// Numbers of records.
    writers: Vec<u32>,
    /// All records before this number.
    before: u32,
}

impl Schedule {
    /// The schedule of `count` records for `threads` threads.
    pub(super) fn new(count: usize, threads: usize) -> Self {
        let (entries, flags) = if threads > 1 { (ENTRIES, count) } else { (0, 0) };
        Self {
            accessed: (0..entries).map(|_| Accessed::default()).collect(),
            declared: AtomicUsize::new(0),
            done: (0..flags).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
            count,
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// Notes whom a record waits for, with keys of these hashes. Waits until the record before it has
    /// done so.
    pub(super) fn declare(
        &self,
        number: usize,
        keys: impl Iterator<Item = (u64, Mode)> + Clone,
        waits: &mut Waits,
    ) {
        waits.writers.clear();
        waits.before = 0;
        if self.accessed.is_empty() {
            return;
        }
        let mut backoff = Backoff::new();
        // Acquire: partner of the Release below, for the accesses of the records before.
        while self.declared.load(Acquire) != number {
            if self.has_failed() {
                return;
            }
            backoff.wait();
        }
        let own = number as u32 + 1;
        let of = |mode| {
            let of_mode = keys.clone().filter(move |key| key.1 == mode);
            of_mode.map(|(hash, _)| &self.accessed[(hash >> 24) as usize % ENTRIES])
        };
        let mut after_writer = |writer: u32| {
            if writer != 0 && writer != own {
                waits.writers.push(writer - 1);
            }
        };
        // Writes come first: a read of the same record would hide the readers before it.
        for accessed in of(Mode::Write) {
            let writer = accessed.writer.load(Relaxed);
            after_writer(writer);
            let reader = accessed.reader.load(Relaxed);
            // The writer has waited for the readers before it.
            if reader > writer {
                waits.before = waits.before.max(reader);
            }
            accessed.writer.store(own, Relaxed);
        }
        for accessed in of(Mode::Read) {
            after_writer(accessed.writer.load(Relaxed));
            accessed.reader.store(own, Relaxed);
        }
        self.declared.store(number + 1, Release);
    }

    /// The next records to be replayed by the calling thread. `None` at the end and after a failure.
    pub(super) fn take(&self) -> Option<std::ops::Range<usize>> {
        if self.has_failed() {
            return None;
        }
        // Relaxed: only the number counts.
        let first = self.next.fetch_add(TAKEN, Relaxed);
        (first < self.count).then(|| first..self.count.min(first + TAKEN))
    }

    /// Waits until a record may be replayed. All records before `ended` have ended, which the call may
    /// move on. False after a failure.
    pub(super) fn wait_for_turn(&self, waits: &Waits, ended: &mut u32) -> bool {
        while *ended < waits.before {
            if !self.wait_for(*ended) {
                return false;
            }
            *ended += 1;
        }
        waits.writers.iter().all(|&writer| writer < *ended || self.wait_for(writer))
            && !self.has_failed()
    }

    /// Waits until a record has ended. False after a failure.
    fn wait_for(&self, number: u32) -> bool {
        let mut backoff = Backoff::new();
        // Acquire: partner of the Release in `note_done`, so that the record's writes are seen.
        while !self.done[number as usize].load(Acquire) {
            if self.has_failed() {
                return false;
            }
            backoff.wait();
        }
        true
    }

    pub(super) fn note_done(&self, number: usize) {
        if let Some(done) = self.done.get(number) {
            // Release: partner of the Acquire in `wait_for`.
            done.store(true, Release);
        }
    }

    /// Notes a failure of a record. That of the first record counts.
    pub(super) fn fail(&self, number: usize, error: RecoveryError) {
        let mut failure = self.failure.lock();
        if failure.as_ref().is_none_or(|(first, _)| number < *first) {
            *failure = Some((number, error));
        }
        // Release: partner of the Acquire in `has_failed`.
        self.has_failed.store(true, Release);
    }

    fn has_failed(&self) -> bool {
        // Acquire: partner of the Release in `fail`.
        self.has_failed.load(Acquire)
    }

    /// The outcome, once no thread works any more.
    pub(super) fn result(&self) -> Result<(), RecoveryError> {
        self.failure.lock().take().map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// The error of a call that does something else than it has done.
pub(super) fn diverged(call: &ReplayCall<'_>, why: String) -> RecoveryError {
    RecoveryError::Diverged {
        log: call.log,
        gsn: call.gsn,
        name: call.call.name.to_owned(),
        version: call.call.version,
        why,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use stillpoint_io::{Rng, SeededRng, in_parallel};

    use super::*;

    const RECORDS: usize = 2_000;
    const KEYS: u64 = 9;

    /// A record: its keys, each once, and whether it writes them.
    fn records(seed: u64) -> Vec<Vec<(u64, Mode)>> {
        let rng = SeededRng::new(seed);
        let mode = || if rng.below(3) == 0 { Mode::Write } else { Mode::Read };
        let some = |_| {
            let keys = (0..KEYS).filter(|_| rng.below(3) == 0).map(|key| (key << 24, mode()));
            keys.collect()
        };
        (0..RECORDS).map(some).collect()
    }

    /// Reads all keys of a record, and writes what follows from them and its number.
    fn run(number: usize, keys: &[(u64, Mode)], values: &[AtomicU64]) {
        let at = |hash: u64| &values[(hash >> 24) as usize];
        let add = |sum: u64, key: &(u64, Mode)| {
            (sum ^ at(key.0).load(Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        let sum = keys.iter().fold(number as u64, add);
        let writes = keys.iter().filter(|key| key.1 == Mode::Write);
        writes.for_each(|key| at(key.0).store(sum ^ key.0, Relaxed));
    }

    fn values() -> Vec<AtomicU64> {
        (0..KEYS).map(AtomicU64::new).collect()
    }

    #[test]
    fn records_in_parallel_see_what_they_see_one_by_one() {
        for seed in 0..30 {
            let records = records(seed);
            let expected = values();
            (0..).zip(&records).for_each(|(number, keys)| run(number, keys, &expected));
            let (found, schedule) = (values(), Schedule::new(RECORDS, 4));
            let work = || {
                let (mut ended, mut waits) = (0, vec![Waits::default(); TAKEN]);
                while let Some(taken) = schedule.take() {
                    for (number, waits) in taken.clone().zip(&mut waits) {
                        schedule.declare(number, records[number].iter().copied(), waits);
                    }
                    for (number, waits) in taken.zip(&waits) {
                        assert!(schedule.wait_for_turn(waits, &mut ended));
                        run(number, &records[number], &found);
                        schedule.note_done(number);
                    }
                }
            };
            in_parallel("records", (0..4).map(|_| work).collect()).expect("no thread panics");
            let of = |values: &[AtomicU64]| -> Vec<u64> {
                values.iter().map(|value| value.load(Relaxed)).collect()
            };
            assert_eq!(of(&found), of(&expected), "seed {seed}");
        }
    }

    #[test]
    fn a_failure_ends_all_waits() {
        let schedule = Schedule::new(20, 2);
        let mut waits = Waits::default();
        schedule.declare(0, [(0, Mode::Write)].into_iter(), &mut waits);
        schedule.declare(1, [(0, Mode::Read)].into_iter(), &mut waits);
        schedule.fail(0, RecoveryError::NoSlot { wanted: 1, found: 0 });
        assert!(!schedule.wait_for_turn(&waits, &mut 0));
        // Record 2 has declared nothing, and never will.
        schedule.declare(3, std::iter::empty(), &mut waits);
        assert!(schedule.take().is_none() && schedule.result().is_err());
    }
}
