//! The order of a replay of calls: which records of a stretch a record has to wait for.
//!
//! ```text
//! thread A   prepares 0–7 │ declares │ runs 0, 1, … 7  │ prepares 16–23 │ declares │ runs 16, …
//! thread B   prepares 8–15 │ waits   │ declares │ runs 8, 9, … 15       │ …
//! ```
//! Threads take records in the order of gsns, some at a time. They prepare these side by side, and declare
//! their keys in turn. For each key a record notes the last one before it that has written the key, and
//! the last one that has read it. It runs after the writer. If it writes the key, it also runs after the
//! readers. Readers do not wait for each other, so it waits for all records up to the last of them.
//! Records without calls are blind writers of their keys. So a record waits for earlier ones alone, and
//! the first one that has not ended never waits.
//!
//! Each thread runs what it has taken in the order of gsns, and tells which record it is at. So a record
//! has ended if no thread is at it or before it in the same eight.
//!
//! Keys share entries of a table by their hash. A record may wait for one with other keys, seldom and not
//! for long.

use std::ops::Range;

use stillpoint_mem::prefetch_to_write;
use stillpoint_store::Mode;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Backoff, CachePadded, Mutex, mutant, planted};

/// Records that a thread takes at once. Their keys are prefetched together.
const TAKEN: usize = if cfg!(shuttle) { 2 } else { 8 };
/// Entries of the table of accesses: 512 KiB.
const ENTRIES: usize = if cfg!(shuttle) { 4 } else { 1 << 16 };
/// The place of a thread that runs nothing.
const NOWHERE: u32 = u32::MAX;

/// The last records that have accessed a key of an entry, each by its number plus one. 0 for none.
/// Relaxed: only the thread whose turn it is to declare accesses an entry.
#[derive(Default)]
struct Accessed {
    writer: AtomicU32,
    reader: AtomicU32,
}

/// How far the records of a stretch are. `E` is the error of a record.
pub(super) struct Schedule<E> {
    /// Empty if one thread takes all records.
    accessed: Box<[Accessed]>,
    /// Number of records whose keys have been declared.
    declared: CachePadded<AtomicUsize>,
    next: CachePadded<AtomicUsize>,
    /// For each thread, the first record that it has taken and that has not ended.
    places: Box<[CachePadded<AtomicU32>]>,
    count: usize,
    has_failed: CachePadded<AtomicBool>,
    failure: Mutex<Option<(usize, E)>>,
}

/// Whom a record waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    /// Numbers of records.
    writers: Vec<u32>,
    /// All records before this number.
    before: u32,
}

impl<E> Schedule<E> {
    /// The schedule of `count` records for `threads` threads.
    pub(super) fn new(count: usize, threads: usize) -> Self {
        assert!(count < NOWHERE as usize, "a stretch has more records than its numbers can tell");
        let entries = if threads > 1 { ENTRIES } else { 0 };
        Self {
            accessed: (0..entries).map(|_| Accessed::default()).collect(),
            declared: CachePadded::default(),
            next: CachePadded::default(),
            places: (0..threads).map(|_| CachePadded::new(AtomicU32::new(NOWHERE))).collect(),
            count,
            has_failed: CachePadded::default(),
            failure: Mutex::new(None),
        }
    }

    fn of(&self, hash: u64) -> &Accessed {
        &self.accessed[(hash >> 24) as usize % self.accessed.len()]
    }

    /// Notes whom a record waits for: record `own`, counted from 1.
    fn declare(
        &self,
        own: u32,
        keys: &(impl Iterator<Item = (u64, Mode)> + Clone),
        waits: &mut Waits,
    ) {
        waits.writers.clear();
        waits.before = 0;
        let of = |mode| keys.clone().filter(move |key| key.1 == mode).map(|key| self.of(key.0));
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
            if mutant!(reader > writer, ReadersNotAwaited => false) {
                waits.before = waits.before.max(reader);
            }
            accessed.writer.store(own, Relaxed);
        }
        for accessed in of(Mode::Read) {
            after_writer(accessed.writer.load(Relaxed));
            accessed.reader.store(own, Relaxed);
        }
    }

    /// Notes a failure of a record. That of the first record counts.
    pub(super) fn fail(&self, number: usize, error: E) {
        let mut failure = self.failure.lock();
        if failure.as_ref().is_none_or(|(first, _)| number < *first) {
            *failure = Some((number, error));
        }
        drop(failure);
        // Release: partner of the Acquire in `has_failed`.
        self.has_failed.store(true, Release);
    }

    fn has_failed(&self) -> bool {
        // Acquire: partner of the Release in `fail`.
        self.has_failed.load(Acquire)
    }

    /// The outcome, once no thread works any more.
    pub(super) fn result(&self) -> Result<(), E> {
        self.failure.lock().take().map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// A thread that runs records of a schedule.
pub(super) struct Runner<'s, E> {
    schedule: &'s Schedule<E>,
    /// Number of the thread.
    thread: usize,
    /// The records that the thread has taken last.
    taken: Range<usize>,
    /// All records before this number have ended.
    ended: u32,
}

impl<'s, E> Runner<'s, E> {
    /// Thread number `thread` of the schedule.
    pub(super) fn new(schedule: &'s Schedule<E>, thread: usize) -> Self {
        Self { schedule, thread, taken: 0..0, ended: 0 }
    }

    /// The next records to be replayed by this thread. `None` at the end and after a failure.
    pub(super) fn take(&mut self) -> Option<Range<usize>> {
        let schedule = self.schedule;
        if schedule.has_failed() {
            return None;
        }
        // Relaxed: only the number counts.
        let first = schedule.next.fetch_add(TAKEN, Relaxed);
        if first >= schedule.count {
            return None;
        }
        self.taken = first..schedule.count.min(first + TAKEN);
        // Release: as in `note_ended`, since others may see this place instead of the one before.
        schedule.places[self.thread].store(first as u32, Release);
        Some(self.taken.clone())
    }

    /// Prefetches what [`declare`](Self::declare) looks at for a key with this hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        if !self.schedule.accessed.is_empty() {
            prefetch_to_write(std::slice::from_ref(self.schedule.of(hash)));
        }
    }

    /// Notes whom each of the records taken last waits for. Their keys are `keys`. Waits until all
    /// records before these have been declared. False after a failure.
    pub(super) fn declare<K>(&self, keys: impl Fn(usize) -> K, waits: &mut [Waits]) -> bool
    where
        K: Iterator<Item = (u64, Mode)> + Clone,
    {
        let schedule = self.schedule;
        if schedule.accessed.is_empty() {
            return true;
        }
        let mut backoff = Backoff::new();
        // Acquire: partner of the Release below, for the accesses and places of the records before.
        while schedule.declared.load(Acquire) != self.taken.start {
            if schedule.has_failed() {
                return false;
            }
            backoff.wait();
        }
        for ((index, number), waits) in self.taken.clone().enumerate().zip(waits) {
            schedule.declare(number as u32 + 1, &keys(index), waits);
        }
        schedule.declared.store(self.taken.end, Release);
        true
    }

    /// Waits until record `number`, one of those taken last, may be replayed. False after a failure.
    pub(super) fn wait_for_turn(&mut self, number: usize, waits: &Waits) -> bool {
        self.wait_until(|runner| runner.all_ended_before(number, waits.before))
            && self.wait_until(|runner| {
                waits.writers.iter().all(|&writer| runner.has_ended(number, writer))
            })
            && !self.schedule.has_failed()
    }

    fn wait_until(&mut self, is_over: impl Fn(&mut Self) -> bool) -> bool {
        let mut backoff = Backoff::new();
        while !is_over(self) {
            if self.schedule.has_failed() {
                return false;
            }
            backoff.wait();
        }
        true
    }

    /// The places of the other threads.
    fn other_places(&self) -> impl Iterator<Item = u32> {
        let others = self.schedule.places.iter().enumerate();
        // Acquire: partner of the Release in `note_ended`, so that the record's writes are seen.
        others.filter(|(thread, _)| *thread != self.thread).map(|(_, place)| place.load(Acquire))
    }

    /// Whether all records before `before` have ended. The thread is at record `number`.
    fn all_ended_before(&mut self, number: usize, before: u32) -> bool {
        if self.ended < before {
            self.ended = self.other_places().fold(number as u32, u32::min);
        }
        self.ended >= before
    }

    /// Whether a record before `number`, where the thread is, has ended.
    fn has_ended(&mut self, number: usize, earlier: u32) -> bool {
        if self.ended > earlier {
            return true;
        }
        let taken = |of: u32| of as usize / TAKEN;
        let is_at = |place: u32| place <= earlier && taken(place) == taken(earlier);
        let mut first = number as u32;
        for place in self.other_places() {
            if is_at(place) {
                return false;
            }
            first = first.min(place);
        }
        self.ended = first;
        true
    }

    /// Notes that a record has ended, the first one of those taken last that had not.
    pub(super) fn note_ended(&self, number: usize) {
        let next = if number + 1 == self.taken.end { NOWHERE } else { number as u32 + 1 };
        // Release: partner of the Acquire in `other_places`.
        self.schedule.places[self.thread].store(next, Release);
    }
}

#[cfg(all(test, shuttle))]
#[path = "schedule/models.rs"]
mod models;
#[cfg(all(test, not(shuttle)))]
mod tests;
