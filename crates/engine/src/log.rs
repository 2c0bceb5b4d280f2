//! The glue between the store, which knows no journal, and the journal, which knows no store.

use std::sync::Arc;

use stillpoint_format::log::{
    BODY_ROOM, PatchRange, RECORD_BYTES_MAX, RecordKind, Splice, WritesEncoder,
    encode_before_images,
};
use stillpoint_format::{EncodeError, Stamp};
use stillpoint_journal::{Entry, Journal, JournalError};
use stillpoint_store::{
    Change, Commit, CommitLog, LogRefused, Patches, Splices, ValueRef, Write, WriteSet,
};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{LogFreed, LogFull};

use crate::call::CALL_ALONE;
use crate::kinds::{Lack, OpenTransactions};
use crate::undone::Overwritten;

/// Commits of one session.
pub(crate) type CommitCounter = Arc<CachePadded<AtomicU64>>;

/// Commits of all sessions since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct CommitCounters {
    of_sessions: Vec<CommitCounter>,
    /// Commits of ended sessions, and flushes of tables that no journal records.
    before: u64,
}

impl CommitCounters {
    /// The counter of a new session. Counters of ended sessions are added up and dropped.
    pub(crate) fn add(&mut self) -> CommitCounter {
        let before = &mut self.before;
        self.of_sessions.retain_mut(|counter| match Arc::get_mut(counter) {
            // Relaxed: `get_mut` has seen the end of the session and all its writes.
            Some(last) => {
                *before += last.load(Relaxed);
                false
            }
            None => true,
        });
        let counter = CommitCounter::default();
        self.of_sessions.push(Arc::clone(&counter));
        counter
    }

    /// Counts a change that no session has committed: tables were emptied.
    pub(crate) fn note_flush(&mut self) {
        self.before += 1;
    }

    pub(crate) fn sum(&self) -> u64 {
        // Relaxed: a statistic.
        self.before + self.of_sessions.iter().map(|counter| counter.load(Relaxed)).sum::<u64>()
    }
}

/// The handle through which one session writes to its log.
pub(crate) struct SessionLog {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) log: u8,
    pub(crate) commits: CommitCounter,
    pub(crate) wants_dependencies: bool,
    /// Present if records have before-images.
    pub(crate) overwritten: Option<Arc<Overwritten>>,
    /// The writes of a long commit that were encoded ahead, behind [`BODY_ROOM`] bytes. Else empty.
    pub(crate) ahead: Vec<u8>,
    /// Those who wait at the limit of the logs.
    pub(crate) open: Arc<OpenTransactions>,
    /// What an append lacked at that limit.
    pub(crate) lack: Arc<Lack>,
}

/// Bytes of overwritten values that a commit may log without counting them.
const UNCOUNTED_BYTES: usize = 1 << 20;

impl SessionLog {
    #[inline]
    fn count(&self) {
        // Relaxed: a statistic with one writer.
        self.commits.store(self.commits.load(Relaxed) + 1, Relaxed);
    }

    /// Appends a record with before-images.
    #[inline(never)]
    fn append_with_before_images(
        &self,
        overwritten: &Overwritten,
        commit: &Commit<'_>,
    ) -> Result<Stamp, LogRefused> {
        self.check_before_images(&commit.writes)?;
        commit.writes.overwritten().for_each(|stamp| overwritten.note(self.log, stamp));
        let &Commit { epoch, touched, call, .. } = commit;
        let kind = if call.is_empty() { RecordKind::UndoWrites } else { RecordKind::UndoCommand };
        let body = &|body: &mut Vec<u8>| {
            encode_before_images(body, |images| {
                let mut writes = commit.writes.with_before_images();
                writes.try_for_each(|(write, before)| encode_before(images, write, before))
            })?;
            body.extend_from_slice(call);
            encode_writes(&mut WritesEncoder::new(body), &commit.writes)
        };
        self.journal.append(self.log, &Entry { kind, epoch, touched, body }).map_err(refused)
    }

    /// Refuses a commit that overwrites more than a record or the memory may hold. Its record has the
    /// values, in memory of the log until they are written. All but the longest of them count against the
    /// memory limit. So a single key can always be deleted or overwritten.
    fn check_before_images(&self, writes: &WriteSet<'_>) -> Result<(), LogRefused> {
        if writes.overwritten_bytes() <= UNCOUNTED_BYTES {
            return Ok(());
        }
        let (mut all, mut longest) = (0, 0);
        for (write, before) in writes.with_before_images() {
            let bytes = before.map_or(0, |before| Before::of(&write, &before).bytes());
            (all, longest) = (all + bytes, bytes.max(longest));
        }
        if all > RECORD_BYTES_MAX {
            let source = EncodeError::RecordTooLong { bytes: all, max: RECORD_BYTES_MAX };
            return Err(refused(JournalError::Encode { log: self.log, source }));
        }
        if all - longest > UNCOUNTED_BYTES {
            writes.check_room(all - longest)?;
        }
        Ok(())
    }
}

impl CommitLog for SessionLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let &Commit { epoch, touched, call, .. } = commit;
        let stamp = if let Some(overwritten) = &self.overwritten {
            let stamp = self.append_with_before_images(overwritten, commit)?;
            self.count();
            return Ok(stamp);
        } else if !self.ahead.is_empty() {
            let body = &|_: &mut Vec<u8>| Ok(());
            let entry = Entry { kind: RecordKind::Writes, epoch, touched, body };
            let stamp = self.journal.append_buffer(self.log, &entry, &mut self.ahead);
            if stamp.is_ok() {
                // The buffer that the batch has had.
                self.ahead = Vec::new();
            }
            stamp
        } else if call.is_empty() {
            let body =
                &|body: &mut Vec<u8>| encode_writes(&mut WritesEncoder::new(body), &commit.writes);
            let entry = Entry { kind: RecordKind::Writes, epoch, touched, body };
            self.journal.append(self.log, &entry)
        } else if call[0] == CALL_ALONE {
            let body = &|body: &mut Vec<u8>| {
                body.extend_from_slice(&call[1..]);
                Ok(())
            };
            let entry = Entry { kind: RecordKind::Call, epoch, touched, body };
            self.journal.append(self.log, &entry)
        } else {
            let body = &|body: &mut Vec<u8>| {
                body.extend_from_slice(call);
                encode_writes(&mut WritesEncoder::new(body), &commit.writes)
            };
            let entry = Entry { kind: RecordKind::Command, epoch, touched, body };
            self.journal.append(self.log, &entry)
        };
        let stamp = match stamp {
            Err(JournalError::AtLimit { bytes, .. }) => {
                self.lack.note(bytes, None);
                return Err(LogRefused::NoRoom);
            }
            stamp => stamp.map_err(refused)?,
        };
        self.count();
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        self.open.wait_for(&self.lack)?;
        self.journal.admit(self.log).map_err(refused)
    }

    fn encode_ahead(&mut self, commit: &Commit<'_>) {
        // Before-images and calls are encoded together with the writes.
        if self.overwritten.is_some() || !commit.call.is_empty() {
            return;
        }
        self.ahead.resize(BODY_ROOM, 0);
        if encode_writes(&mut WritesEncoder::new(&mut self.ahead), &commit.writes).is_err() {
            // The commit itself meets the error.
            self.forget_ahead();
        }
    }

    fn forget_ahead(&mut self) {
        self.ahead = Vec::new();
    }

    fn is_closed(&self, stamp: Stamp) -> bool {
        self.journal.is_closed(stamp)
    }

    fn wants_dependencies(&self) -> bool {
        self.wants_dependencies
    }
}

/// Converts an error of the journal for a commit.
#[cold]
pub(crate) fn refused(error: JournalError) -> LogRefused {
    match error {
        JournalError::NoRoom { .. } => LogRefused::NoRoom,
        JournalError::AtLimit { limit, .. } => {
            LogFull { limit, waited_ms: 0, freed: LogFreed::InTime }.into()
        }
        error => LogRefused::Refused(Box::new(error)),
    }
}

/// Encodes the writes of a commit.
#[inline]
pub(crate) fn encode_writes(
    encoder: &mut WritesEncoder<'_>,
    writes: &WriteSet<'_>,
) -> Result<(), EncodeError> {
    mutant!(EvictionNotLogged => if writes.only_deletes() { return Ok(()) });
    writes.iter().try_for_each(|write| encode(encoder, write))
}

#[inline]
fn encode(encoder: &mut WritesEncoder<'_>, write: Write<'_>) -> Result<(), EncodeError> {
    let Write { table, generation, key, change, splices } = write;
    if let Some(splices) = splices {
        return encode_splices(encoder, (table, generation, key), splices);
    }
    match change {
        Change::Put { label, value } => encoder.put(table, generation, key, label, value),
        Change::Share { label, value } => {
            let shape = (label, value.len());
            encoder.put_with(table, generation, key, shape, |out| value.copy_to(out))
        }
        Change::Delete => encoder.delete(table, generation, key),
        Change::Patch(patches) => match patches.only() {
            Some((offset, bytes)) => {
                encoder.patch_range(table, generation, key, offset as u32, bytes)
            }
            None => {
                let range =
                    |(offset, bytes): (usize, _)| PatchRange { offset: offset as u32, bytes };
                let ranges: Vec<_> = patches.map(range).collect();
                encoder.patch(table, generation, key, &ranges)
            }
        },
        Change::Until { deadline, ranges } => {
            let range = |(offset, bytes): (usize, _)| PatchRange { offset: offset as u32, bytes };
            let ranges: Vec<_> = ranges.map(range).collect();
            encoder.patch_until((table, generation, key), deadline, &ranges)
        }
    }
}

/// Encodes what a write overwrites.
fn encode_before(
    encoder: &mut WritesEncoder<'_>,
    write: Write<'_>,
    before: Option<ValueRef<'_>>,
) -> Result<(), EncodeError> {
    let Write { table, generation, key, change, .. } = write;
    let Some(before) = before else {
        mutant!(AbsentTakenAsPresent => return encoder.put(table, generation, key, 0, &[]));
        return encoder.delete(table, generation, key);
    };
    if let Change::Patch(patches) = change
        && let Some((offset, bytes)) = patches.only()
        && let Ok(len) = <[u8; 8]>::try_from(bytes)
        && offset + len.len() <= before.len()
    {
        let mut word = [0; 8];
        before.read_range(offset, &mut word);
        return encoder.patch_range(table, generation, key, offset as u32, &word);
    }
    match Before::of(&write, &before) {
        Before::Whole(_) => {
            let shape = (before.label(), before.len());
            encoder.put_with(table, generation, key, shape, |out| before.copy_to(out))
        }
        Before::Ranges { patches, grown: 0, .. } => {
            let old = ranges_before(patches, &before);
            let ranges = old.iter().map(|(offset, bytes)| PatchRange { offset: *offset, bytes });
            let ranges: Vec<_> = ranges.collect();
            if matches!(change, Change::Until { .. }) {
                let deadline = before.label().deadline;
                return encoder.patch_until((table, generation, key), deadline, &ranges);
            }
            encoder.patch(table, generation, key, &ranges)
        }
        Before::Ranges { patches, grown, .. } => {
            let old = ranges_before(patches, &before);
            let behind = Splice { offset: before.len() as u32, removed: grown as u32, bytes: &[] };
            let back = old.iter().filter(|(_, bytes)| !bytes.is_empty());
            let back = back.map(|(offset, bytes)| {
                let removed = bytes.len() as u32;
                Splice { offset: *offset, removed, bytes }
            });
            let splices: Vec<_> = std::iter::once(behind).chain(back).collect();
            encoder.splice(table, generation, key, splices.iter().copied())
        }
        Before::Replaced(Replaced { start, old_end, new_end }) => {
            let mut old = vec![0; old_end - start];
            before.read_range(start, &mut old);
            let removed = (new_end - start) as u32;
            let splice = Splice { offset: start as u32, removed, bytes: &old };
            encoder.splice(table, generation, key, std::iter::once(splice))
        }
    }
}

/// The form in which a record has what a write overwrites. It says how to get from the value that the
/// write leaves to the one before.
enum Before<'a> {
    /// The whole value, of so many bytes.
    Whole(usize),
    /// The old bytes of the ranges of a patch, `bytes` in all with what is around them. What lies behind
    /// the old end of the value, `grown` bytes, is cut off.
    Ranges { patches: Patches<'a>, grown: usize, bytes: usize },
    /// The bytes that splices have replaced.
    Replaced(Replaced),
}

/// Bytes of a range or splice beside its own.
const SPLICE_BYTES: usize = 12;

impl<'a> Before<'a> {
    /// The shortest form.
    fn of(write: &Write<'a>, before: &ValueRef<'_>) -> Self {
        let form = match (write.change, write.splices) {
            (Change::Patch(patches) | Change::Until { ranges: patches, .. }, _) => {
                let (mut end, mut bytes) = (before.len(), SPLICE_BYTES);
                for (offset, new) in patches {
                    end = end.max(offset + new.len());
                    bytes += SPLICE_BYTES + kept_of(offset, new.len(), before);
                }
                Self::Ranges { patches, grown: end - before.len(), bytes }
            }
            (Change::Put { .. }, Some(splices)) => Self::Replaced(replaced(splices)),
            _ => return Self::Whole(before.len()),
        };
        let is_until = matches!(write.change, Change::Until { .. });
        match form {
            // Ranges inside the value are never replaced by the whole: so a patch stays one.
            Self::Ranges { grown: 0, .. } => form,
            // Splices keep a deadline.
            Self::Ranges { .. } if is_until => Self::Whole(before.len()),
            _ if form.bytes() < before.len() => form,
            _ => Self::Whole(before.len()),
        }
    }

    /// About the bytes that this form takes in a record.
    fn bytes(&self) -> usize {
        match *self {
            Self::Whole(bytes) | Self::Ranges { bytes, .. } => bytes,
            Self::Replaced(Replaced { start, old_end, .. }) => SPLICE_BYTES + old_end - start,
        }
    }
}

/// How much of a range lies inside the value of before.
fn kept_of(offset: usize, len: usize, before: &ValueRef<'_>) -> usize {
    before.len().saturating_sub(offset).min(len)
}

/// The old bytes of the ranges of a patch, as far as the value of before has them.
fn ranges_before(patches: Patches<'_>, before: &ValueRef<'_>) -> Vec<(u32, Vec<u8>)> {
    let old = patches.map(|(offset, bytes)| {
        let mut old = vec![0; kept_of(offset, bytes.len(), before)];
        if !old.is_empty() {
            before.read_range(offset, &mut old);
        }
        (offset as u32, old)
    });
    old.collect()
}

/// The part of a value that splices have changed: it began at `start` before and after, and ended at
/// `old_end` before and at `new_end` after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replaced {
    start: usize,
    old_end: usize,
    new_end: usize,
}

/// The part that these splices change, one after the other: offset, number of the replaced bytes, and the
/// bytes that replace them.
fn replaced<'b>(mut splices: impl Iterator<Item = (usize, usize, &'b [u8])>) -> Replaced {
    let Some((start, removed, bytes)) = splices.next() else {
        return Replaced { start: 0, old_end: 0, new_end: 0 };
    };
    let first = Replaced { start, old_end: start + removed, new_end: start + bytes.len() };
    splices.fold(first, |part, (offset, removed, bytes)| {
        let end = part.new_end.max(offset + removed);
        Replaced {
            start: part.start.min(offset),
            old_end: part.old_end + (end - part.new_end),
            new_end: end - removed + bytes.len(),
        }
    })
}

#[cold]
fn encode_splices(
    encoder: &mut WritesEncoder<'_>,
    (table, generation, key): (u16, u32, &[u8]),
    splices: Splices<'_>,
) -> Result<(), EncodeError> {
    let splice = |(offset, removed, bytes): (usize, usize, _)| Splice {
        offset: offset as u32,
        removed: removed as u32,
        bytes,
    };
    let splices: Vec<_> = splices.map(splice).collect();
    encoder.splice(table, generation, key, splices.iter().copied())
}

#[cfg(test)]
mod tests {
    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    /// The changed part, put back, makes the old value of the new one.
    #[test]
    fn splices_are_undone_by_the_part_that_they_change() {
        for seed in 0..2_000 {
            let random = SeededRng::new(seed);
            let below = |limit: usize| random.below(limit as u64 + 1) as usize;
            let old: Vec<u8> = (0..below(60)).map(|at| at as u8).collect();
            let mut new = old.clone();
            let mut splices = Vec::new();
            for step in 0..1 + below(5) {
                let offset = below(new.len());
                let removed = below((new.len() - offset).min(9));
                let bytes = vec![100 + step as u8; below(9)];
                new.splice(offset..offset + removed, bytes.iter().copied());
                splices.push((offset, removed, bytes));
            }
            let splices =
                splices.iter().map(|(offset, removed, bytes)| (*offset, *removed, &bytes[..]));
            let Replaced { start, old_end, new_end } = replaced(splices);
            new.splice(start..new_end, old[start..old_end].iter().copied());
            assert_eq!(new, old, "seed {seed}");
        }
    }

    #[test]
    fn commits_of_ended_sessions_count_and_take_no_memory() {
        let mut counters = CommitCounters::default();
        let first = counters.add();
        first.store(7, Relaxed);
        for n in 0..1000 {
            counters.add().store(1, Relaxed);
            assert_eq!(counters.sum(), 7 + n + 1);
        }
        assert!(counters.of_sessions.len() <= 2, "{} counters", counters.of_sessions.len());
        first.store(8, Relaxed);
        assert_eq!(counters.sum(), 1008);
    }
}
