//! What a recovery will do, decided before anything is loaded.

use std::sync::Arc;

use stillpoint_format::LogGsn;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::Disk;
use stillpoint_journal::{Logs, ReplayStart, ScanInput, scan};
use stillpoint_sync::planted::{Bug, is_planted};

use crate::error::RecoveryError;

/// What a recovery will do.
#[derive(Debug)]
pub struct Plan {
    /// The manifest, with the cut of the latest incarnation. The caller adds its own incarnation
    /// and makes it durable before it serves anything.
    pub manifest: Manifest,
    /// Number of the next incarnation.
    pub incarnation: u32,
    /// Its gsns are greater than this, which is not less than any gsn ever seen.
    pub gsn_floor: u64,
    /// The epoch in which it begins.
    pub epoch: u64,
    pub(crate) logs: Logs,
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
    let mut manifest = manifest;
    let start = manifest.newest_chain().last().map_or_else(ReplayStart::default, |checkpoint| {
        ReplayStart::after(checkpoint, &manifest.incarnations)
    });
    let start =
        if is_planted(Bug::ReplaysFromTheBeginning) { ReplayStart::default() } else { start };
    let logs = scan(
        disk,
        &ScanInput {
            store: manifest.store,
            incarnations: &manifest.incarnations,
            clean_shutdown: manifest.clean_shutdown.as_ref(),
            logs: None,
            start: &start,
            threads: threads.max(1),
            progress,
        },
    )?;
    if let Some(latest) = manifest.incarnations.last_mut() {
        let all = || logs.ends().iter().map(|end| LogGsn { log: end.log, gsn: end.valid_gsn });
        let planted = is_planted(Bug::CutNotRecorded);
        latest.cut = Some(if planted { all().collect() } else { logs.cut() });
    }
    let incarnation = manifest.incarnations.last().map_or(1, |latest| latest.number + 1);
    let checkpoint_floor = manifest.checkpoints.iter().map(|c| c.gsn_floor).max().unwrap_or(0);
    Ok(Plan {
        incarnation,
        gsn_floor: logs.gsn_max().max(checkpoint_floor),
        epoch: manifest.next_epoch,
        manifest,
        logs,
    })
}

impl Plan {
    /// Makes durable what the plan keeps: after the death of a process it may be in the page cache
    /// only. To be done before the plan's manifest is published.
    ///
    /// # Errors
    /// The disk's.
    pub fn flush(&self) -> Result<(), RecoveryError> {
        Ok(self.logs.flush()?)
    }

    /// Removes from disk what the plan has cut away. Its manifest must be durable.
    ///
    /// # Errors
    /// The disk's. It can be begun again.
    pub fn trim(&self) -> Result<(), RecoveryError> {
        if is_planted(Bug::CutNotRecorded) {
            return Ok(());
        }
        Ok(self.logs.trim()?)
    }

    /// Bytes of log that replay will read.
    pub fn replay_bytes(&self) -> u64 {
        self.logs.replay_bytes()
    }
}
