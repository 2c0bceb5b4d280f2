//! The order of a replay of calls: which records of a stretch a record has to wait for.
//!
//! For each of its keys, a record waits for the last one before it that writes the key. If it writes the
//! key, it also waits for those that have read the key since. Records without calls are blind writers of their keys.
//! Threads take records in the order of gsns, so the first record that has not ended never waits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_io::catch_panic;
use stillpoint_journal::{ReplayCall, ReplayWrite, Round};
use stillpoint_store::{KeySet, Mode, Store, TableId};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::Calls;
use crate::error::RecoveryError;

/// Records that a thread takes at once. Their keys are prefetched together.
const TAKEN: usize = 8;

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

/// Whom each record of a stretch waits for, and how far the stretch is.
pub(super) struct Schedule {
    /// End of each record's part of `before`. Empty if one thread takes all records.
    ends: Vec<u32>,
    /// Numbers of the records that a record waits for.
    before: Vec<u32>,
    done: Vec<AtomicBool>,
    next: AtomicUsize,
    count: usize,
    has_failed: AtomicBool,
    failure: Mutex<Option<(usize, RecoveryError)>>,
}

/// The last records of a stretch that have accessed a key.
#[derive(Default)]
struct Accessed {
    writer: Option<u32>,
    /// Those that have read the key since.
    readers: Vec<u32>,
}

impl Schedule {
    /// The schedule of one thread.
    pub(super) fn one_after_the_other(count: usize) -> Self {
        Self {
            ends: Vec::new(),
            before: Vec::new(),
            done: Vec::new(),
            next: AtomicUsize::new(0),
            count,
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// The schedule of several threads.
    pub(super) fn new(
        store: &Arc<Store>,
        calls: &dyn Calls,
        records: &[InOrder<'_, '_>],
    ) -> Result<Self, RecoveryError> {
        let mut schedule = Self::one_after_the_other(records.len());
        schedule.done = records.iter().map(|_| AtomicBool::new(false)).collect();
        let mut accessed: HashMap<u64, Accessed> = HashMap::new();
        let mut keys = KeySet::new(store.hasher());
        for (number, record) in (0..).zip(records) {
            keys.clear();
            match record {
                InOrder::Call(call) => {
                    let declare = || calls.prepare(&call.call).map(|call| call.declare(&mut keys));
                    catch_panic("replay", declare)
                        .unwrap_or_else(|panic| Err(panic.to_string()))
                        .map_err(|why| diverged(call, why))?;
                }
                InOrder::Writes(writes) => {
                    for write in writes.iter().map(|write| &write.write) {
                        keys.push(TableId(write.table), write.key, Mode::Write, 0);
                    }
                }
            }
            for key in keys.declared() {
                let accessed = accessed.entry(key.hash).or_default();
                schedule.before.extend(accessed.writer.filter(|&writer| writer != number));
                if key.mode == Mode::Write {
                    let readers = accessed.readers.drain(..).filter(|&reader| reader != number);
                    schedule.before.extend(readers);
                    accessed.writer = Some(number);
                } else if accessed.writer != Some(number) {
                    accessed.readers.push(number);
                }
            }
            schedule.ends.push(schedule.before.len() as u32);
        }
        Ok(schedule)
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

    /// Waits until a record may be replayed. False after a failure.
    pub(super) fn wait_for_turn(&self, number: usize) -> bool {
        let Some(&end) = self.ends.get(number) else { return !self.has_failed() };
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        for &before in &self.before[start as usize..end as usize] {
            let mut backoff = Backoff::new();
            // Acquire: partner of the Release in `note_done`, so that the record's writes are seen.
            while !self.done[before as usize].load(Acquire) {
                if self.has_failed() {
                    return false;
                }
                backoff.wait();
            }
        }
        !self.has_failed()
    }

    pub(super) fn note_done(&self, number: usize) {
        if let Some(done) = self.done.get(number) {
            // Release: partner of the Acquire in `wait_for_turn`.
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
