//! The glue between the store, which knows no journal, and the journal, which knows no store.

use std::sync::Arc;

use stillpoint_format::log::{PatchRange, WritesEncoder};
use stillpoint_format::{EncodeError, Stamp};
use stillpoint_journal::{CommitInput, Journal};
use stillpoint_store::{Change, Commit, CommitLog, LogRefused, Write};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Commits of one session.
pub(crate) type CommitCounter = Arc<CachePadded<AtomicU64>>;

/// One session's way into its log.
pub(crate) struct SessionLog {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) log: u8,
    pub(crate) commits: CommitCounter,
    pub(crate) wants_dependencies: bool,
}

impl CommitLog for SessionLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let input = CommitInput {
            epoch: commit.epoch,
            floor: 0,
            touched: commit.touched,
            writes: &|encoder| commit.writes.iter().try_for_each(|write| encode(encoder, write)),
        };
        let appended =
            self.journal.append(self.log, &input).map_err(|error| LogRefused(Box::new(error)))?;
        // Relaxed: a statistic with one writer.
        self.commits.store(self.commits.load(Relaxed) + 1, Relaxed);
        Ok(appended.stamp)
    }

    fn is_closed(&self, stamp: Stamp) -> bool {
        self.journal.is_closed(stamp)
    }

    fn wants_dependencies(&self) -> bool {
        self.wants_dependencies
    }
}

#[inline]
fn encode(encoder: &mut WritesEncoder<'_>, write: Write<'_>) -> Result<(), EncodeError> {
    let Write { table, generation, key, change } = write;
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
