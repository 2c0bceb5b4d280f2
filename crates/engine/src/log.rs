//! The glue between the store, which knows no journal, and the journal, which knows no store.

use std::sync::Arc;

use stillpoint_format::log::{PatchRange, WritesEncoder};
use stillpoint_format::{EncodeError, Stamp};
use stillpoint_journal::{CommitInput, Journal};
use stillpoint_store::{Change, Commit, CommitLog, LogRefused, Patches};
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

/// Ranges that fit the stack; more go through a vector.
const RANGES: usize = 4;

fn patch(
    encoder: &mut WritesEncoder<'_>,
    (table, generation, key): (u16, u32, &[u8]),
    mut patches: Patches<'_>,
) -> Result<(), EncodeError> {
    let range = |(offset, bytes): (usize, _)| PatchRange { offset: offset as u32, bytes };
    let mut few = [PatchRange { offset: 0, bytes: &[] }; RANGES];
    for at in 0..RANGES {
        match patches.next() {
            Some(next) => few[at] = range(next),
            None => return encoder.patch(table, generation, key, &few[..at]),
        }
    }
    let all: Vec<_> = few.into_iter().chain(patches.map(range)).collect();
    encoder.patch(table, generation, key, &all)
}

impl CommitLog for SessionLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let floor = commit.touched.iter().map(|stamp| stamp.gsn()).max().unwrap_or(0);
        let input = CommitInput {
            epoch: commit.epoch,
            floor,
            touched: commit.touched,
            writes: &|encoder| {
                for write in commit.writes.iter() {
                    let (table, generation, key) = (write.table, write.generation, write.key);
                    match write.change {
                        Change::Put { tag, value } => {
                            encoder.put(table, generation, key, tag, value)?;
                        }
                        Change::Delete => encoder.delete(table, generation, key)?,
                        Change::Patch(patches) => {
                            patch(encoder, (table, generation, key), patches)?;
                        }
                    }
                }
                Ok(())
            },
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
