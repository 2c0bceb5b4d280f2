//! Reading logs back: which records there are, and which of them are kept.
//!
//! ```text
//!  names ──▶ segments that matter ──▶ walked in parallel ──▶ joined to chains per log
//!  (manifest, checkpoint)             (checksums, needs)     (torn tail or damage?)
//!                                                                  │
//!              replay in rounds ◀── cut recorded by the caller ◀── greatest closed cut
//! ```
//!
//! A crash may lose any subset of what was written since the last flush. So a log ends at
//! its first invalid batch, if that one was possibly never flushed; each batch states what
//! was flushed before it, and a later one that covers the missing one proves damage. Names
//! of segments appear only after their headers are durable, so a bad header is damage.
//!
//! Incarnations before the latest have a cut on record, which is final; theirs must reach
//! it. The latest one's is found here, from the summaries of the batches first and the
//! exact records where a summary does not fit. Memory is bounded: windows, and one note
//! per run of batches that have dependencies.

mod chain;
mod cutting;
mod error;
mod segment;
mod walk;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::EndCause;
use stillpoint_format::manifest::{CheckpointEntry, CleanShutdown, IncarnationEntry};
use stillpoint_format::{LOG_NONE, LogGsn, names};
use stillpoint_io::{Disk, DiskFile, OpenMode};

pub(crate) use chain::Chain;
pub use error::{Proof, ScanError};
pub(crate) use segment::{Place, SegmentFile, Window, after};
pub(crate) use walk::Walked;

use chain::join;
use walk::{list_segments, walk_all};

/// What the checkpoint that is loaded holds already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayStart {
    /// Records of epochs before this one are in the checkpoint.
    pub epoch: u64,
    /// Every record with a gsn up to this one is in the checkpoint: at least the floor of
    /// the incarnation that took it. 0 without a checkpoint.
    pub floor: u64,
    /// Per log, a gsn up to which every record is in the checkpoint, where that is above
    /// the floor.
    pub positions: Vec<LogGsn>,
}

impl ReplayStart {
    /// After a checkpoint. `incarnations` are those of the manifest.
    pub fn after(checkpoint: &CheckpointEntry, incarnations: &[IncarnationEntry]) -> Self {
        let taken_in = checkpoint.positions.iter().map(|of| of.incarnation).max();
        let taken_in = incarnations.iter().find(|entry| Some(entry.number) == taken_in);
        ReplayStart {
            epoch: checkpoint.epoch,
            floor: taken_in.map_or(0, |entry| entry.gsn_floor).max(checkpoint.gsn_floor),
            positions: checkpoint.positions.iter().flat_map(|of| of.logs.iter().copied()).collect(),
        }
    }

    /// Up to here every record of the log is in the checkpoint.
    pub(crate) fn position(&self, log: u8) -> u64 {
        let of_log = self.positions.iter().filter(|position| position.log == log);
        of_log.map(|position| position.gsn).fold(self.floor, u64::max)
    }
}

/// What to read, from the manifest.
#[derive(Clone, Copy)]
pub struct ScanInput<'a> {
    /// The store.
    pub store: StoreId,
    /// The openings of the store whose logs may matter, oldest first.
    pub incarnations: &'a [IncarnationEntry],
    /// Set if the store was closed in order.
    pub clean_shutdown: Option<&'a CleanShutdown>,
    /// Number of logs that the latest incarnation was opened with, if known: each has a
    /// segment then, so that one without is missing and not empty.
    pub logs: Option<u8>,
    /// Where replay starts.
    pub start: &'a ReplayStart,
    /// Threads to use, at least one.
    pub threads: usize,
    /// Told how many bytes of how many are read, now and then, from any thread.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl fmt::Debug for ScanInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScanInput")
            .field("store", &self.store)
            .field("incarnations", &self.incarnations)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

/// How a log of the latest incarnation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The log.
    pub log: u8,
    /// The last valid gsn; the floor of the incarnation if it has no record.
    pub valid_gsn: u64,
    /// The last gsn that is kept: smaller if a dependency of a later record is lost.
    pub kept_gsn: u64,
    /// The segment in which the valid records end, its offset there, and why; `None` if
    /// the log has no segment that matters.
    pub end: Option<(PathBuf, u64, Option<EndCause>)>,
}

/// The logs of a store, validated, with the cut found.
#[derive(Debug)]
pub struct Logs {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) start: ReplayStart,
    /// Per incarnation, oldest first: its logs' chains.
    pub(crate) incarnations: Vec<Vec<Chain>>,
    ends: Vec<LogEnd>,
    latest: Option<u32>,
    gsn_max: u64,
}

/// Finds and validates the segments that matter, and the cut of the latest incarnation.
///
/// # Errors
/// [`ScanError`]: damage, a missing file, or a disk that refuses. A torn tail is none.
pub fn scan(disk: &Arc<dyn Disk>, input: &ScanInput<'_>) -> Result<Logs, ScanError> {
    let listed = list_segments(&**disk, input)?;
    let walked = walk_all(disk, input, listed)?;
    let mut gsn_max = input.incarnations.iter().map(|entry| entry.gsn_floor).max().unwrap_or(0);
    gsn_max = input.start.positions.iter().map(|p| p.gsn).fold(gsn_max, u64::max);
    gsn_max = walked.iter().flatten().flatten().map(Walked::gsn_max).fold(gsn_max, u64::max);
    let mut incarnations = Vec::new();
    for (entry, logs) in input.incarnations.iter().zip(walked) {
        let kept = kept_before(entry, input.clean_shutdown);
        let mut chains = Vec::new();
        for (log, segments) in (0..LOG_NONE).zip(logs) {
            let base = input.start.position(log).max(entry.gsn_floor);
            // Without a place in the cut a log keeps nothing.
            let kept = kept
                .map(|cut| cut.iter().find(|of| of.log == log).map_or(0, |of| of.gsn).max(base));
            chains.push(join(&**disk, log, base, kept, segments)?);
        }
        incarnations.push(chains);
    }
    if let (Some(chains), Some(logs)) = (incarnations.last(), input.logs) {
        let floor = input.incarnations.last().map_or(0, |entry| entry.gsn_floor);
        chains
            .iter()
            .take(logs.into())
            .try_for_each(|chain| chain.expect_segment(&**disk, floor))?;
    }
    let ends = match incarnations.last_mut() {
        Some(chains) => cutting::cut(chains, input.start.epoch)?,
        None => Vec::new(),
    };
    for chain in incarnations.iter_mut().flatten() {
        chain.drop_beyond_end();
    }
    Ok(Logs {
        disk: Arc::clone(disk),
        start: input.start.clone(),
        incarnations,
        ends,
        latest: input.incarnations.last().map(|entry| entry.number),
        gsn_max,
    })
}

/// What an earlier recovery or a clean shutdown has promised of an incarnation.
fn kept_before<'a>(
    entry: &'a IncarnationEntry,
    clean: Option<&'a CleanShutdown>,
) -> Option<&'a [LogGsn]> {
    let clean = clean.filter(|clean| clean.incarnation == entry.number);
    entry.cut.as_deref().or(clean.map(|clean| &clean.last[..]))
}

impl Logs {
    /// The cut of the latest incarnation, for the manifest: per log with a record kept, the
    /// last one. It must be durable there before anything is served.
    pub fn cut(&self) -> Vec<LogGsn> {
        let kept = self.ends.iter().map(|end| LogGsn { log: end.log, gsn: end.kept_gsn });
        kept.collect()
    }

    /// How the logs of the latest incarnation ended.
    pub fn ends(&self) -> &[LogEnd] {
        &self.ends
    }

    /// The greatest gsn seen anywhere, kept or not: the floor of the next incarnation.
    pub fn gsn_max(&self) -> u64 {
        self.gsn_max
    }

    /// Bytes of log that replay will read.
    pub fn replay_bytes(&self) -> u64 {
        self.incarnations.iter().flatten().map(Chain::bytes).sum()
    }

    /// Flushes the segments that are kept. After the death of a process what was read may be in
    /// the page cache only: it must be durable before a cut that promises it is.
    ///
    /// # Errors
    /// The disk's.
    pub fn flush(&self) -> Result<(), ScanError> {
        for chain in self.incarnations.iter().flatten() {
            for segment in &chain.segments {
                segment.file.flush()?;
            }
            if !chain.segments.is_empty() {
                self.disk.sync_dir(Path::new(&names::log_dir(chain.log)))?;
            }
        }
        Ok(())
    }

    /// Removes what lies beyond the cut, which must be durable in the manifest, and gives
    /// preallocated space back. May be interrupted and repeated.
    ///
    /// # Errors
    /// The disk's.
    pub fn trim(&self) -> Result<(), ScanError> {
        let Some(latest) = self.latest else {
            return Ok(());
        };
        for chain in self.incarnations.last().into_iter().flatten() {
            for path in chain.beyond(latest) {
                self.disk.remove(path)?;
            }
            if let Some((path, end)) = chain.end_of_kept()? {
                let file =
                    self.disk.open(path, OpenMode::ReadWrite, stillpoint_io::Caching::Buffered)?;
                if end < file.len()? {
                    file.set_len(end)?;
                    DiskFile::sync(&*file)?;
                }
            }
        }
        Ok(())
    }
}
