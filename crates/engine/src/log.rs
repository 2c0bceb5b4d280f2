//! The glue between the store, which knows no journal, and the journal, which knows no store.

use std::sync::Arc;

use stillpoint_format::log::{PatchRange, RecordKind, Splice, WritesEncoder, encode_before_images};
use stillpoint_format::{EncodeError, Stamp};
use stillpoint_journal::{Entry, Journal, JournalError};
use stillpoint_store::{Change, Commit, CommitLog, LogRefused, Splices, ValueRef, Write, WriteSet};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

use crate::call::CALL_ALONE;
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
}

impl SessionLog {
    /// Appends a record with before-images.
    #[inline(never)]
    fn append_with_before_images(
        &self,
        overwritten: &Overwritten,
        commit: &Commit<'_>,
    ) -> Result<Stamp, JournalError> {
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
        self.journal.append(self.log, &Entry { kind, epoch, touched, body })
    }
}

impl CommitLog for SessionLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let &Commit { epoch, touched, call, .. } = commit;
        let stamp = if let Some(overwritten) = &self.overwritten {
            self.append_with_before_images(overwritten, commit)
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
        let stamp = stamp.map_err(refused)?;
        // Relaxed: a statistic with one writer.
        self.commits.store(self.commits.load(Relaxed) + 1, Relaxed);
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        self.journal.admit(self.log).map_err(refused)
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
        error => LogRefused::Refused(Box::new(error)),
    }
}

/// Encodes the writes of a commit.
#[inline]
pub(crate) fn encode_writes(
    encoder: &mut WritesEncoder<'_>,
    writes: &WriteSet<'_>,
) -> Result<(), EncodeError> {
    writes.iter().try_for_each(|write| encode(encoder, write))
}

#[inline]
fn encode(encoder: &mut WritesEncoder<'_>, write: Write<'_>) -> Result<(), EncodeError> {
    let Write { table, generation, key, change, splices } = write;
    if let Some(splices) = splices {
        return encode_splices(encoder, (table, generation, key), splices);
    }
    match change {
        Change::Put { tag, value } => encoder.put(table, generation, key, tag, value),
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
    if let Change::Patch(patches) = change {
        if let Some((offset, bytes)) = patches.only()
            && let Ok(len) = <[u8; 8]>::try_from(bytes)
            && offset + len.len() <= before.len()
        {
            let mut word = [0; 8];
            before.read_range(offset, &mut word);
            return encoder.patch_range(table, generation, key, offset as u32, &word);
        }
        if patches.clone().all(|(offset, bytes)| offset + bytes.len() <= before.len()) {
            let old = patches.map(|(offset, bytes)| {
                let mut old = vec![0; bytes.len()];
                before.read_range(offset, &mut old);
                (offset as u32, old)
            });
            let old: Vec<_> = old.collect();
            let ranges = old.iter().map(|(offset, bytes)| PatchRange { offset: *offset, bytes });
            let ranges: Vec<_> = ranges.collect();
            return encoder.patch(table, generation, key, &ranges);
        }
    }
    let shape = (before.tag(), before.len());
    encoder.put_with(table, generation, key, shape, |out| before.copy_to(out))
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
    use super::*;

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
