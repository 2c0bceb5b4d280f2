//! The reader of logs. The reader finds the valid records, and those that are kept.
//!
//! ```text
//!  names ──▶ segments that matter ──▶ walked in parallel ──▶ joined to chains per log
//!  (manifest, checkpoint)             (checksums, needs)     (torn tail or damage?)
//!                                                                  │
//!              replay in rounds ◀── cut recorded by the caller ◀── greatest closed cut
//! ```
//!
//! A crash may lose any subset of the writes since the last flush. So a log ends at its first
//! invalid batch, if that batch was possibly never flushed. Each batch states which batches were
//! flushed before it, so a later batch that covers the missing one proves damage. Names of segments
//! appear only after their headers are durable, so a bad header is damage.
//!
//! Missing files are noticed, too. The manifest states the number of logs of an incarnation. A
//! segment that the log has left names the next segment. Batches state the closed positions of
//! other logs. Batches of an unknown incarnation or epoch prove that the manifest is older than the
//! log.
//!
//! Incarnations before the latest have a recorded, final cut, and their logs must reach it. The
//! reader finds the cut of the latest incarnation. For this cut the reader uses the summaries of
//! the batches first, and the exact records where a summary does not suffice. Memory is bounded:
//! buffers, and one note per run of batches with dependencies.

mod beyond;
mod chain;
mod cutting;
pub(crate) mod error;
mod listing;
mod loss;
pub(crate) mod segment;
mod tails;
mod walk;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::LogGsn;
use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{EndCause, SegmentHeader};
use stillpoint_format::manifest::{
    CheckpointEntry, CleanShutdown, IncarnationEntry, KindEntry, LogPositions,
};
use stillpoint_io::Disk;

pub use beyond::BeyondCut;
pub(crate) use chain::Chain;
pub use error::{Proof, ScanError};
pub use listing::{SegmentBegin, segment_begin};
pub use loss::Loss;
pub use segment::LogWindow;
pub(crate) use segment::{InWindow, LogOffset, ReadBuffer, SegmentFile, after, damaged_since};
pub use tails::Ends;
pub(crate) use walk::Walked;

use beyond::beyond_cut;
use listing::list_segments;
use loss::Judge;
use walk::{Hearing, walk_all};

use crate::content::{KeptWrite, ReceiveWrites, ReplayOperation};

/// The records that the loaded checkpoint holds already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayStart {
    /// Records of epochs before this one are in the checkpoint.
    pub epoch: u64,
    /// Every record with a gsn up to this one is in the checkpoint. The number is at least the
    /// floor of the incarnation that took the checkpoint. 0 without a checkpoint.
    pub floor: u64,
    /// Per log, a gsn up to which every record is in the checkpoint, if that is above the floor.
    pub positions: Vec<LogGsn>,
    /// Per incarnation, gsns up to which its logs were flushed before a checkpoint was published.
    pub flushed: Vec<LogPositions>,
    /// Per incarnation, gsns up to which its logs were flushed so that a recovery can undo records that
    /// the checkpoint holds.
    pub active: Vec<LogPositions>,
    /// The positions of other kinds of tables, which no checkpoint holds. Operations on such tables
    /// are replayed from the least of these positions on, if that is before the checkpoint's.
    pub kinds: Vec<KindEntry>,
    /// Whether the state on which the logs build is lost, so that nothing of them can be replayed.
    pub is_lost: bool,
}

impl ReplayStart {
    /// After a checkpoint. `incarnations` are those of the manifest.
    pub fn after(checkpoint: &CheckpointEntry, incarnations: &[IncarnationEntry]) -> Self {
        let taken_in = checkpoint.positions.iter().map(|of| of.incarnation).max();
        let logs = checkpoint.active.clone();
        let active = taken_in.map(|incarnation| LogPositions { incarnation, logs });
        let taken_in = incarnations.iter().find(|entry| Some(entry.number) == taken_in);
        ReplayStart {
            // A fuzzy checkpoint may lack a commit of any epoch that is above its positions.
            epoch: if checkpoint.fuzzy { 0 } else { checkpoint.epoch },
            floor: taken_in.map_or(0, |entry| entry.gsn_floor).max(checkpoint.gsn_floor),
            positions: checkpoint.positions.iter().flat_map(|of| of.logs.iter().copied()).collect(),
            flushed: checkpoint.positions.clone(),
            active: active.into_iter().collect(),
            kinds: Vec::new(),
            is_lost: false,
        }
    }

    /// The gsn up to which every record of the log is in the checkpoint.
    pub(crate) fn position(&self, log: u8) -> u64 {
        let of_log = self.positions.iter().filter(|position| position.log == log);
        of_log.map(|position| position.gsn).fold(self.floor, u64::max)
    }

    /// The gsn up to which replay needs no record of the log, whatever kind of table the record is of.
    pub(crate) fn read_position(&self, log: u8) -> u64 {
        self.kinds.iter().map(|kind| kind.position(log)).fold(self.position(log), u64::min)
    }

    /// The gsn up to which a log of an incarnation was flushed before a checkpoint was published.
    fn flushed(&self, incarnation: u32, log: u8) -> u64 {
        greatest(&self.flushed, incarnation, log)
    }

    /// The gsn up to which a log of an incarnation must be read, so that records can be undone.
    fn active(&self, incarnation: u32, log: u8) -> u64 {
        greatest(&self.active, incarnation, log)
    }
}

/// The greatest of these positions in a log of an incarnation; 0 for none.
fn greatest(positions: &[LogPositions], incarnation: u32, log: u8) -> u64 {
    let of_log = positions.iter().filter(|of| of.incarnation == incarnation);
    let of_log = of_log.flat_map(|of| &of.logs).filter(|of| of.log == log);
    of_log.map(|of| of.gsn).max().unwrap_or(0)
}

/// The logs to read, from the manifest.
#[derive(Clone, Copy)]
pub struct ScanInput<'a> {
    /// The store.
    pub store: StoreId,
    /// The openings of the store whose logs may matter, oldest first.
    pub incarnations: &'a [IncarnationEntry],
    /// Set if the store was closed in order.
    pub clean_shutdown: Option<&'a CleanShutdown>,
    /// No record of any log has this epoch or a later one.
    pub next_epoch: u64,
    /// Where replay starts.
    pub start: &'a ReplayStart,
    /// Threads to use, at least one.
    pub threads: usize,
    /// Called from time to time, from any thread, with the bytes read so far and in all.
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

/// The end of a log of the latest incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The log.
    pub log: u8,
    /// The last valid gsn. The floor of the incarnation if the log has no record.
    pub valid_gsn: u64,
    /// The gsn of the last record that recovery keeps. That gsn is below `valid_gsn` if the records
    /// behind it depend on a record that another log has lost.
    pub kept_gsn: u64,
    /// The segment with the last valid record, the offset behind that record, and why reading stopped
    /// there. `None` if recovery needs no segment of this log.
    pub end: Option<(PathBuf, u64, Option<EndCause>)>,
}

/// The logs of a store, validated, with the cut found.
#[derive(Debug)]
pub struct Logs {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) start: ReplayStart,
    /// Per incarnation, oldest first: its logs' chains.
    pub(crate) incarnations: Vec<Vec<Chain>>,
    /// The records beyond the cut that the checkpoint may hold, in descending order of their gsns.
    pub(crate) beyond: Vec<BeyondCut>,
    /// Whether no such record is missing.
    has_all_beyond: bool,
    /// Whether every valid record that was scanned is kept.
    keeps_all: bool,
    ends: Vec<LogEnd>,
    /// The incarnations' numbers, oldest first.
    numbers: Vec<u32>,
    /// Whether the latest incarnation has a recorded cut already, or was ended in order. Then all
    /// kept records of the incarnation are durable.
    ended: bool,
    store: StoreId,
    gsn_max: u64,
    epoch_max: u64,
    /// The greatest incarnation with batches that the manifest does not name.
    unnamed: u32,
}

/// Finds and validates the segments that matter, and the cut of the latest incarnation.
///
/// # Errors
/// [`ScanError`]: damage, a missing file, or a disk that refuses. A torn tail is no error.
pub fn scan(disk: &Arc<dyn Disk>, input: &ScanInput<'_>) -> Result<Logs, ScanError> {
    judged::<NoReceiver>(disk, input, &[], &mut Judge::default(), &mut [])
}

/// The receivers of the kept writes, and the number of commits.
pub type Received<R> = (Vec<R>, u64);

/// As [`scan`], with one thread for each receiver. The receivers get the writes as
/// [`Logs::replay_unordered`] hands them on, while the logs are scanned. So the logs are read once. Returns
/// the receivers and the number of commits. `None` if a receiver took no more, or if they have writes that
/// are not kept.
///
/// # Errors
/// As [`scan`].
pub fn scan_receiving<R: ReceiveWrites>(
    disk: &Arc<dyn Disk>,
    input: &ScanInput<'_>,
    receivers: Vec<R>,
) -> Result<(Logs, Option<Received<R>>), ScanError> {
    let hearing = |receiver| Hearing { receiver, commits: 0, is_over: false };
    let mut hearings: Vec<_> = receivers.into_iter().map(hearing).collect();
    let input = ScanInput { threads: hearings.len(), ..*input };
    let logs = judged(disk, &input, &[], &mut Judge::default(), &mut hearings)?;
    let is_whole = logs.keeps_all && hearings.iter().all(|of| !of.is_over);
    let received = is_whole.then(|| {
        let commits = hearings.iter().map(|of| of.commits).sum();
        (hearings.into_iter().map(|of| of.receiver).collect(), commits)
    });
    Ok((logs, received))
}

/// Nobody receives writes while the logs are scanned.
enum NoReceiver {}

impl ReceiveWrites for NoReceiver {
    type Error = ScanError;

    fn write(&mut self, _: &KeptWrite<'_>) -> Result<(), ScanError> {
        match *self {}
    }
    fn operation(&mut self, _: &ReplayOperation<'_>) -> Result<(), ScanError> {
        match *self {}
    }
}

/// As [`scan`], but gives up damaged, missing or unknown records, and records that depend on them.
/// `limits` are the first gsns of logs that are given up in any case.
///
/// # Errors
/// A disk that refuses.
pub fn scan_accepting_loss(
    disk: &Arc<dyn Disk>,
    input: &ScanInput<'_>,
    limits: &[LogGsn],
) -> Result<(Logs, Vec<Loss>), ScanError> {
    let mut judge = Judge::accepting();
    let logs = judged::<NoReceiver>(disk, input, limits, &mut judge, &mut [])?;
    Ok((logs, judge.into_losses()))
}

fn judged<R: ReceiveWrites>(
    disk: &Arc<dyn Disk>,
    input: &ScanInput<'_>,
    limits: &[LogGsn],
    judge: &mut Judge,
    hearings: &mut [Hearing<R>],
) -> Result<Logs, ScanError> {
    let listed = list_segments(&**disk, input, judge)?;
    let walked = walk_all(disk, input, listed, judge, hearings)?;
    let all = || walked.iter().flatten().flatten();
    let ends = all().map(|of| (of.file.header, of.end.last_gsn)).collect::<Vec<_>>();
    let mut gsn_max = input.incarnations.iter().map(|entry| entry.gsn_floor).max().unwrap_or(0);
    gsn_max = input.start.positions.iter().map(|p| p.gsn).fold(gsn_max, u64::max);
    gsn_max = all().map(Walked::gsn_max).fold(gsn_max, u64::max);
    let epoch_max = all().map(|of| of.epoch_max).max().unwrap_or(0);
    let mut logs = Logs {
        disk: Arc::clone(disk),
        start: input.start.clone(),
        incarnations: Vec::new(),
        beyond: Vec::new(),
        has_all_beyond: true,
        keeps_all: false,
        ends: Vec::new(),
        numbers: Vec::new(),
        ended: true,
        store: input.store,
        gsn_max,
        epoch_max,
        unnamed: judge.unnamed,
    };
    let mut entries = input.incarnations.iter().zip(walked);
    let replayed = if input.start.is_lost { 0 } else { input.incarnations.len() };
    for (entry, walked) in entries.by_ref().take(replayed) {
        logs.incarnations.push(joined(&**disk, input, entry, walked, limits, judge)?);
        logs.numbers.push(entry.number);
        logs.ended = input.has_ended(entry);
        if judge.lost_above(entry.number).is_some() {
            break;
        }
    }
    for (entry, walked) in entries {
        for segments in walked.iter().filter(|segments| !segments.is_empty()) {
            let log = segments[0].file.header.log;
            let last_gsn = segments.iter().map(|of| of.end.last_gsn).max().unwrap_or(0);
            judge.follow(entry.number, log, entry.gsn_floor, last_gsn);
        }
    }
    if let (Some(chains), Some(&number)) = (logs.incarnations.last_mut(), logs.numbers.last()) {
        logs.ends = cutting::cut(chains, input.start.epoch, (number, logs.ended), judge)?;
    }
    if let (Some(chains), Some(&number)) = (logs.incarnations.last(), logs.numbers.last())
        && !logs.ended
    {
        let active = |log| input.start.active(number, log);
        logs.beyond = beyond_cut(chains, active)?;
        logs.has_all_beyond = chains.iter().all(|chain| chain.valid_gsn >= active(chain.log));
    }
    for chain in logs.incarnations.iter_mut().flatten() {
        chain.drop_beyond_end();
    }
    logs.keeps_all = ends.iter().all(|(header, last_gsn)| logs.keeps(header, *last_gsn));
    Ok(logs)
}

/// Joins the logs of one incarnation.
fn joined(
    disk: &dyn Disk,
    input: &ScanInput<'_>,
    entry: &IncarnationEntry,
    walked: Vec<Vec<Walked>>,
    limits: &[LogGsn],
    judge: &mut Judge,
) -> Result<Vec<Chain>, ScanError> {
    // If an incarnation has not ended in order, every one of its logs must exist.
    let is_latest = input.incarnations.last().is_some_and(|last| last.number == entry.number);
    let expects_segment = !input.has_ended(entry) && is_latest;
    let mut chains = Vec::new();
    for (log, segments) in (0..entry.logs).zip(walked) {
        let base = input.start.read_position(log).max(entry.gsn_floor);
        let kept = input.kept_before(entry, log).map(|gsn| gsn.max(base));
        let mut chain = Chain::new(log, base, segments);
        chain.loaded_gsn = input.start.position(log).max(entry.gsn_floor);
        let mut found = chain.join(disk, kept);
        if found.is_ok() && expects_segment {
            let start = input.start;
            let needed = start.flushed(entry.number, log).max(start.active(entry.number, log));
            found = chain.expect_end(disk, needed);
            // A start that has published a cut frees the space behind the cut.
            if found.is_ok() && !judge.has_later {
                found = chain.expect_whole();
            }
        }
        if let Err(why) = found {
            judge.give_up(why, (entry.number, log), chain.kept_gsn, kept)?;
        }
        let limit = limits.iter().find(|limit| limit.log == log && limit.gsn > base);
        if let Some(&limit) = limit.filter(|limit| limit.gsn <= chain.kept_gsn) {
            let why = loss::unknown(disk, limit);
            judge.give_up(why, (entry.number, log), limit.gsn - 1, Some(chain.kept_gsn))?;
            chain.kept_gsn = chain.last_gsn_below(limit.gsn)?;
        }
        chains.push(chain);
    }
    Ok(chains)
}

impl ScanInput<'_> {
    /// The cut of an incarnation, which an earlier recovery or a clean shutdown has recorded.
    fn recorded_cut<'a>(&'a self, entry: &'a IncarnationEntry) -> Option<&'a [LogGsn]> {
        let clean = self.clean_shutdown.filter(|clean| clean.incarnation == entry.number);
        entry.cut.as_deref().or(clean.map(|clean| &clean.last[..]))
    }

    /// True if an incarnation has a cut on record.
    fn has_ended(&self, entry: &IncarnationEntry) -> bool {
        self.recorded_cut(entry).is_some()
    }

    /// The last gsn of a log that an incarnation with a cut on record must have. A log that the cut
    /// does not list has no record above the checkpoint that counted then.
    fn kept_before(&self, entry: &IncarnationEntry, log: u8) -> Option<u64> {
        let cut = self.recorded_cut(entry)?;
        let listed = cut.iter().find(|of| of.log == log).map_or(0, |of| of.gsn);
        Some(listed.max(self.start.flushed(entry.number, log)))
    }
}

impl Logs {
    /// Whether the records of a segment up to this gsn are kept, but for those that nobody needs.
    fn keeps(&self, header: &SegmentHeader, last_gsn: u64) -> bool {
        let at = self.numbers.iter().position(|&number| number == header.incarnation);
        let chains = at.map_or(&[][..], |at| &self.incarnations[at]);
        chains.iter().any(|chain| {
            let has = |of: &Walked| of.file.header.first_gsn == header.first_gsn;
            let is_kept = chain.kept_gsn >= last_gsn && chain.segments.iter().any(has);
            chain.log == header.log && (last_gsn <= chain.base || is_kept)
        })
    }

    /// The cut of the latest incarnation, for the manifest: the last kept gsn of each log with a
    /// kept record. The cut must be durable in the manifest before anything is served.
    pub fn cut(&self) -> Vec<LogGsn> {
        let kept = self.ends.iter().map(|end| LogGsn { log: end.log, gsn: end.kept_gsn });
        kept.collect()
    }

    /// The records beyond the cut that the checkpoint may hold, in descending order of their gsns. None
    /// unless the checkpoint names active commits.
    pub fn beyond_cut(&self) -> &[BeyondCut] {
        &self.beyond
    }

    /// Whether no record beyond the cut is missing that the checkpoint may hold. Otherwise a loss was
    /// accepted, and some of what the checkpoint holds cannot be undone.
    pub fn has_all_beyond(&self) -> bool {
        self.has_all_beyond
    }

    /// The ends of the logs of the latest incarnation.
    pub fn ends(&self) -> &[LogEnd] {
        &self.ends
    }

    /// The greatest gsn seen anywhere, kept or not. That gsn becomes the floor of the next
    /// incarnation.
    pub fn gsn_max(&self) -> u64 {
        self.gsn_max
    }

    /// The greatest epoch of any record found.
    pub fn epoch_max(&self) -> u64 {
        self.epoch_max
    }

    /// The incarnations that are kept, oldest first, and the greatest whose batches are given up
    /// because no manifest names it.
    pub fn incarnations(&self) -> (&[u32], u32) {
        (&self.numbers, self.unnamed)
    }

    /// Bytes of log that replay will read.
    pub fn replay_bytes(&self) -> u64 {
        self.incarnations.iter().flatten().map(Chain::bytes).sum()
    }

    /// The incarnations of which replay reads a record.
    pub fn needed(&self) -> impl Iterator<Item = u32> {
        let needed = |chains: &Vec<Chain>| chains.iter().any(|chain| chain.kept_gsn > chain.base);
        let of = self.numbers.iter().zip(&self.incarnations);
        of.filter(move |(_, chains)| needed(chains)).map(|(number, _)| *number)
    }
}
