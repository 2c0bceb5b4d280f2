//! The plan of a recovery, made before anything is loaded.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{CheckpointEntry, IncarnationEntry, Manifest};
use stillpoint_io::Disk;
use stillpoint_journal::{
    Ends, LogEnd, Logs, Loss, ReplayStart, ScanInput, scan, scan_accepting_loss,
};
use stillpoint_sync::{mutant, planted};

use crate::error::RecoveryError;
use crate::gathered::Gathered;
use crate::newer::newer_checkpoints;

/// The plan of a recovery.
#[derive(Debug)]
pub struct Plan {
    /// The manifest that this recovery has read.
    pub manifest: Manifest,
    /// Number of the next incarnation.
    pub incarnation: u32,
    /// Floor of the next incarnation's gsns, not less than any gsn ever seen.
    pub gsn_floor: u64,
    /// The epoch in which the next incarnation begins.
    pub epoch: u64,
    pub(crate) logs: Logs,
    /// The writes of the logs, if they were gathered with the scan, and until a recovery takes them.
    pub(crate) gathered: Mutex<Option<Gathered>>,
}

/// Scans the logs that matter and finds the cut: the greatest set of per-log prefixes that is
/// closed under dependencies. Changes nothing on disk.
///
/// # Errors
/// Damage, a missing file, or a disk that refuses. A torn tail is none of these.
pub fn plan(
    disk: &Arc<dyn Disk>,
    manifest: Manifest,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Plan, RecoveryError> {
    plan_with(disk, manifest, threads, progress, |disk, input| Ok((scan(disk, input)?, None)))
}

/// The scanned logs, and the writes that were gathered meanwhile.
pub(crate) type Scanned = (Logs, Option<Gathered>);

/// As [`plan`]. `scan` scans the logs, and may gather their writes.
pub(crate) fn plan_with(
    disk: &Arc<dyn Disk>,
    manifest: Manifest,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
    scan: impl FnOnce(&Arc<dyn Disk>, &ScanInput<'_>) -> Result<Scanned, RecoveryError>,
) -> Result<Plan, RecoveryError> {
    if let Some(newer) = newer_checkpoints(&**disk, &manifest)?.first() {
        return Err(RecoveryError::NewerCheckpoint {
            path: disk.describe(&newer.path),
            serial: newer.serial,
            next_serial: manifest.next_serial,
        });
    }
    let start = start_of(&manifest);
    let (logs, gathered) = scan(disk, &input(&manifest, &start, threads, progress))?;
    let latest = manifest.incarnations.last().map_or(0, |latest| latest.number);
    Ok(Plan { gathered: Mutex::new(gathered), ..Plan::new(manifest, latest, logs) })
}

/// As [`plan`], but gives up records that are damaged, missing or unknown to the manifest, and
/// records that may depend on them. The checkpoints that the manifest names must be sound.
/// `published` is the manifest with the checkpoints that have been given up. `logs_are_lost` says
/// that nothing of the logs counts.
///
/// # Errors
/// A disk that refuses.
pub fn plan_accepting_loss(
    disk: &Arc<dyn Disk>,
    manifest: Manifest,
    published: &Manifest,
    logs_are_lost: bool,
    threads: usize,
) -> Result<(Plan, Vec<Loss>), RecoveryError> {
    let mut start = start_without(&manifest, published);
    start.is_lost |= logs_are_lost;
    let mut limits: Vec<LogGsn> = Vec::new();
    loop {
        let all_epochs = Manifest { next_epoch: u64::MAX, ..manifest.clone() };
        let input = input(&all_epochs, &start, threads, &|_, _| {});
        let (logs, losses) = scan_accepting_loss(disk, &input, &limits)?;
        let (kept, unnamed) = logs.incarnations();
        let latest = manifest.incarnations.last().map_or(0, |latest| latest.number);
        let mut left = manifest.clone();
        left.incarnations.retain(|entry| kept.contains(&entry.number));
        left.next_epoch = left.next_epoch.max(logs.epoch_max().saturating_add(1));
        if !losses.is_empty()
            && let Some(last) = left.incarnations.last_mut()
        {
            left.clean_shutdown = None;
            if last.cut.is_some() {
                let cut = logs.cut();
                last.tails.retain(|tail| {
                    cut.iter().any(|end| end.log == tail.log && end.gsn >= tail.first_gsn)
                });
                last.cut = Some(cut);
            }
        }
        let plan = Plan::new(left, latest.max(unnamed), logs);
        match plan.verify_records(disk, threads) {
            Ok(()) => return Ok((plan, losses)),
            Err(RecoveryError::NewerTable { log, gsn, .. }) => {
                limits.retain(|limit| limit.log != log);
                limits.push(LogGsn { log, gsn });
            }
            Err(RecoveryError::Apply { gsn, .. }) => {
                // A log lacks a record that this one depends on, and nothing tells which log.
                let logs = manifest.incarnations.iter().map(|of| of.logs).max().unwrap_or(0);
                limits = (0..logs).map(|log| LogGsn { log, gsn }).collect();
            }
            Err(error) => return Err(error),
        }
    }
}

fn start_of(manifest: &Manifest) -> ReplayStart {
    mutant!(ReplaysFromTheBeginning => return ReplayStart::default());
    let start = manifest.newest_chain().last().map_or_else(ReplayStart::default, |checkpoint| {
        ReplayStart::after(checkpoint, &manifest.incarnations)
    });
    ReplayStart { kinds: manifest.kinds.clone(), ..start }
}

/// Start of the replay if the newest published checkpoint may be lost. The publication of that
/// checkpoint has freed the logs of earlier incarnations, and a part of the logs of its own
/// incarnation.
fn start_without(left: &Manifest, published: &Manifest) -> ReplayStart {
    let mut start = start_of(left);
    let (newest, lost) = (left.newest_chain(), published.newest_chain());
    let (newest, Some(lost)) = (newest.last(), lost.last()) else { return start };
    if newest.is_some_and(|newest| newest.epoch == lost.epoch) {
        return start;
    }
    let taken_in = |of: &CheckpointEntry| of.positions.iter().map(|at| at.incarnation).max();
    let has_logs = published.incarnations.iter().any(|of| Some(of.number) == taken_in(lost));
    // Without a checkpoint, replay begins with the first incarnation, which began with an empty
    // store.
    let begins = newest.map_or(Some(1), |newest| taken_in(newest));
    start.is_lost = !has_logs || begins != taken_in(lost);
    start.flushed.extend_from_slice(&lost.positions);
    start
}

fn input<'a>(
    manifest: &'a Manifest,
    start: &'a ReplayStart,
    threads: usize,
    progress: &'a (dyn Fn(u64, u64) + Sync),
) -> ScanInput<'a> {
    ScanInput {
        store: manifest.store,
        incarnations: &manifest.incarnations,
        clean_shutdown: manifest.clean_shutdown.as_ref(),
        next_epoch: manifest.next_epoch,
        start,
        threads: threads.max(1),
        progress,
    }
}

impl Plan {
    /// `latest` is the greatest incarnation that has written a batch.
    fn new(manifest: Manifest, latest: u32, logs: Logs) -> Self {
        let checkpoint_floor = manifest.checkpoints.iter().map(|c| c.gsn_floor).max().unwrap_or(0);
        Plan {
            incarnation: latest.saturating_add(1),
            gsn_floor: logs.gsn_max().max(checkpoint_floor),
            epoch: manifest.next_epoch,
            manifest,
            logs,
            gathered: Mutex::default(),
        }
    }

    /// The manifest that begins the new incarnation, with `logs` logs, which may hold calls if
    /// `calls` says so. The manifest holds the cut
    /// of the latest incarnation and the copied ends of its logs. Incarnations without a record for
    /// replay are left out.
    pub fn successor(&self, (logs, calls): (u8, bool), ends: &Ends) -> Manifest {
        let mut next = self.manifest.clone();
        if let Some(latest) = next.incarnations.last_mut()
            && latest.cut.is_none()
        {
            let valid = |end: &LogEnd| LogGsn { log: end.log, gsn: end.valid_gsn };
            let all = || self.logs.ends().iter().map(valid).collect();
            latest.cut = Some(mutant!(self.logs.cut(), CutNotRecorded => all()));
            latest.tails = ends.tails.clone();
        }
        let needed: Vec<u32> = self.logs.needed().collect();
        next.incarnations.retain(|entry| needed.contains(&entry.number));
        next.incarnations.push(IncarnationEntry {
            number: self.incarnation,
            gsn_floor: self.gsn_floor,
            logs,
            cut: None,
            calls,
            tails: Vec::new(),
            scheme: None,
        });
        next.clean_shutdown = None;
        next.next_epoch = self.epoch.saturating_add(1);
        next
    }

    /// Copies kept batches that may be in the page cache only, and makes the copies durable. To be
    /// called before the next manifest is published. Changes no file that the manifest names.
    ///
    /// # Errors
    /// An error of the disk. The call can be repeated.
    pub fn copy_ends(&self, created_ms: u64) -> Result<Ends, RecoveryError> {
        Ok(self.logs.copy_ends(self.incarnation, created_ms)?)
    }

    /// Removes files of the logs that the published next manifest has given up.
    ///
    /// # Errors
    /// An error of the disk. The call can be repeated.
    pub fn trim(&self, ends: &Ends) -> Result<(), RecoveryError> {
        Ok(self.logs.trim(self.incarnation, ends)?)
    }

    /// Whether a checkpoint may hold commits that the logs have beyond the cut.
    pub fn may_undo(&self) -> bool {
        !self.logs.beyond_cut().is_empty()
    }

    /// The epoch of the newest checkpoint, if it may hold commits that an earlier start has undone. A later
    /// checkpoint had that undo, if the newest one did hold them. Nothing undoes them any more.
    pub fn brings_back(&self) -> Option<u64> {
        let newest = *self.manifest.newest_chain().last()?;
        let taken_in = newest.positions.iter().map(|of| of.incarnation).max();
        let taken_in = self.manifest.incarnations.iter().find(|of| Some(of.number) == taken_in);
        let kept = |log: u8| match taken_in {
            // No record of it is needed, so the positions of the checkpoint are its end.
            None => 0,
            // The records beyond the cut are there, and are undone.
            Some(IncarnationEntry { cut: None, .. }) => u64::MAX,
            Some(IncarnationEntry { cut: Some(cut), .. }) => {
                cut.iter().find(|end| end.log == log).map_or(0, |end| end.gsn)
            }
        };
        newest.active.iter().any(|last| last.gsn > kept(last.log)).then_some(newest.epoch)
    }

    /// Bytes of log that replay will read.
    pub fn replay_bytes(&self) -> u64 {
        self.logs.replay_bytes()
    }
}
