//! The glue between the store, which knows no journal, and the journal, which knows no store.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_journal::{CommitInput, Journal};
use stillpoint_store::{Change, Commit, CommitLog, LogRefused};
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
                            encoder.patch(table, generation, key, patches)?;
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
