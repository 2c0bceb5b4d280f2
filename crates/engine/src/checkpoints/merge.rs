//! Merging the checkpoints of a chain while the store is served.
//!
//! ```text
//! run chosen ─▶ serial reserved in the MANIFEST ─▶ files written and flushed ─▶ MANIFEST names the
//!   merged one in the place of the run ─▶ files of the run removed
//! ```
//! Checkpoints are published meanwhile. The last step reads the MANIFEST of that moment: if a full
//! checkpoint has replaced the run there, the merged files are removed.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_checkpoint::{
    LoadError, MERGE_KEY_BYTES, Merge, MergeError, Pace, Progress, WriterConfig,
};
use stillpoint_format::manifest::{CheckpointEntry, Manifest};
use stillpoint_io::{catch_panic, go_behind, go_far_behind, spawn};
use stillpoint_sync::atomic::Ordering::Acquire;

use super::{MergeStatus, chain, pace_of, publication};
use crate::error::Error;
use crate::shared::Shared;

/// How often the background thread looks whether a merge is due.
const TICK: Duration = Duration::from_millis(50);
/// Pause between a failed merge and the next one.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Checkpoints that were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointsMerged {
    /// Epoch of the merged checkpoint.
    pub epoch: u64,
    /// Number of checkpoints that the merged checkpoint replaces.
    pub merged: usize,
    /// Bytes of the replaced checkpoints' files.
    pub bytes_before: u64,
    /// Bytes of the merged checkpoint's files.
    pub bytes: u64,
}

/// The merge that is under way.
#[derive(Debug, Default)]
pub(super) struct Merging {
    /// Serial of the merged checkpoint's directory, which no MANIFEST names yet.
    pub(super) serial: Option<u64>,
    progress: Option<Arc<Progress>>,
    /// Serials of the checkpoints that are merged.
    run: Vec<u64>,
    /// Merges of this run, and those that failed.
    done: u64,
    failures: u64,
    last_error: Option<String>,
    /// Monotonic clock before which the background thread begins no merge.
    not_before_ns: u64,
}

impl Merging {
    /// Gives the merge under way up.
    pub(super) fn cancel(&self) {
        if let Some(progress) = &self.progress {
            progress.cancel();
        }
    }

    /// Changes the pace of the merge under way.
    pub(super) fn change_pace(&self, pace: Pace) {
        if let Some(progress) = &self.progress {
            progress.change_pace(pace);
        }
    }

    /// Gives the merge under way up if the MANIFEST does not name one of its checkpoints any more.
    /// Their files would take space until its end, and no merge of the new chain could begin.
    pub(super) fn cancel_without(&self, dropped: &[CheckpointEntry]) {
        if dropped.iter().any(|entry| self.run.contains(&entry.serial)) {
            self.cancel();
        }
    }

    pub(super) fn status(&self) -> MergeStatus {
        MergeStatus {
            running: self.progress.as_ref().map(|progress| progress.snapshot()),
            done: self.done,
            failures: self.failures,
            last_error: self.last_error.clone(),
        }
    }
}

/// The background thread: merges whenever a merge is due.
pub(crate) fn run_in_background(shared: &Arc<Shared>) {
    while !shared.stopping.load(Acquire) {
        let may_merge = shared.scheme.is_some() && shared.load.is_done();
        if may_merge && shared.health().is_ok() && is_allowed(shared) {
            // The status shows an error to the operator.
            let _ = merge(shared, false);
        }
        shared.config.environment.clock.sleep(TICK);
    }
}

fn is_allowed(shared: &Shared) -> bool {
    let now_ns = shared.config.environment.clock.monotonic_ns();
    now_ns >= shared.checkpoints.state.lock().merging.not_before_ns
}

/// Merges the checkpoints that are due. With `all`, merges all checkpoints that may be merged.
/// `None` if there is nothing to merge, if another merge is under way, or if a newer checkpoint has
/// replaced the merged run.
///
/// # Errors
/// The reason of the failure. The checkpoints stay as they are.
pub(crate) fn merge(shared: &Arc<Shared>, all: bool) -> Result<Option<CheckpointsMerged>, Error> {
    let manifest = shared.catalog.now();
    let keep = shared.config.keep_checkpoints;
    let run = match (all, shared.checkpoints.policy().merge_after) {
        (true, _) => chain::whole_run(&manifest, keep),
        (false, Some(links)) => chain::due_run(&manifest, keep, links, shared.store.record_total()),
        (false, None) => Vec::new(),
    };
    if run.is_empty() {
        return Ok(None);
    }
    let Some(turn) = MergePermit::take(shared, &run) else { return Ok(None) };
    // The merge may have panicked in the middle of a publication.
    let merged = catch_panic("merge", || merge_run(shared, &turn, &run))
        .unwrap_or_else(|panic| Err(shared.fail_by_panic(panic)));
    let now_ns = shared.config.environment.clock.monotonic_ns();
    note(shared, &merged, now_ns);
    shared.checkpoints.note_chain(&shared.catalog.now());
    merged
}

/// Notes how a merge has ended.
fn note(shared: &Shared, merged: &Result<Option<CheckpointsMerged>, Error>, now_ns: u64) {
    let mut state = shared.checkpoints.state.lock();
    match merged {
        Ok(Some(done)) => {
            state.merging.done += 1;
            state.merging.last_error = None;
            let CheckpointsMerged { epoch, merged, bytes_before, bytes } = *done;
            tracing::info!(epoch, merged, bytes_before, bytes, "checkpoints are merged");
        }
        Ok(None) => {}
        Err(error) => {
            state.merging.failures += 1;
            state.merging.last_error = Some(error.to_string());
            state.merging.not_before_ns = now_ns + RETRY_AFTER.as_nanos() as u64;
            if shows_damage(error) {
                // Memory still has the records that cannot be read. A full checkpoint needs no file
                // of the chain. The pause after failed checkpoints stays.
                (state.owes_full, state.chain_is_damaged) = (true, true);
            }
            tracing::warn!(%error, "checkpoints could not be merged; they are kept");
        }
    }
}

/// The right to merge: one merge at a time.
struct MergePermit<'a> {
    shared: &'a Shared,
    progress: Arc<Progress>,
}

impl<'a> MergePermit<'a> {
    fn take(shared: &'a Shared, run: &[CheckpointEntry]) -> Option<Self> {
        let mut state = shared.checkpoints.state.lock();
        if state.merging.progress.is_some() || state.is_stopping {
            return None;
        }
        let progress = Arc::<Progress>::default();
        state.merging.progress = Some(progress.clone());
        state.merging.run = run.iter().map(|entry| entry.serial).collect();
        Some(Self { shared, progress })
    }
}

impl Drop for MergePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.checkpoints.state.lock();
        state.merging.progress = None;
        state.merging.serial = None;
        state.merging.run.clear();
    }
}

fn merge_run(
    shared: &Arc<Shared>,
    turn: &MergePermit<'_>,
    run: &[CheckpointEntry],
) -> Result<Option<CheckpointsMerged>, Error> {
    // No directory may be made before the MANIFEST counts its serial. And no checkpoint may take the
    // directory for one that a crash has left.
    let serial = shared.publish(|manifest| {
        manifest.next_serial += 1;
        manifest.next_serial - 1
    })?;
    shared.checkpoints.state.lock().merging.serial = Some(serial);
    let manifest = shared.catalog.now();
    if !has_all(&manifest, run) {
        // They were replaced before this merge was known. Later ones cancel it.
        return Ok(None);
    }
    let mut writer = WriterConfig::new(manifest.store, manifest.hash_seed, serial);
    writer.codec = shared.config.codec;
    writer.leave_bytes = shared.reserve_space();
    let merge = Merge {
        writer,
        clock: shared.config.environment.clock.clone(),
        pace: pace_of(&shared.checkpoints.policy()),
        key_bytes_max: MERGE_KEY_BYTES,
        progress: turn.progress.clone(),
    };
    let entry = match write(shared, &manifest, merge, run)? {
        Ok(entry) => entry,
        Err(error) => return give_up(shared, run, error),
    };
    let done = CheckpointsMerged {
        epoch: entry.epoch,
        merged: run.len(),
        bytes_before: run.iter().map(chain::bytes_of).sum(),
        bytes: chain::bytes_of(&entry),
    };
    let kind = entry.kind;
    let published = publication::exchange(shared, Some((serial, kind)), |manifest| {
        chain::replace_run(manifest, run, entry).then(|| run.to_vec())
    });
    published.map(|is_published| is_published.then_some(done))
}

/// Writes the files of a merge on a thread of its own, which leaves the CPU to everything else. If the
/// chain is about to be too long, the thread has the priority of a checkpoint. The caller keeps its
/// priority, since others wait while it publishes.
fn write(
    shared: &Shared,
    manifest: &Manifest,
    merge: Merge,
    run: &[CheckpointEntry],
) -> Result<Result<CheckpointEntry, MergeError>, Error> {
    let merge_after = shared.checkpoints.policy().merge_after;
    let is_late = chain::is_late(manifest, shared.config.keep_checkpoints, merge_after);
    let (disk, run) = (shared.disk.clone(), run.to_vec());
    let thread = spawn("merge-writer", move || {
        if is_late {
            go_behind();
        } else {
            go_far_behind();
        }
        merge.run(&disk, &run.iter().collect::<Vec<_>>())
    })?;
    thread.join().map_err(|panic| shared.fail_by_panic(panic))
}

/// Ends a merge that could not be written. The merge has not failed if the run is not in the
/// MANIFEST any more.
fn give_up(
    shared: &Shared,
    run: &[CheckpointEntry],
    error: MergeError,
) -> Result<Option<CheckpointsMerged>, Error> {
    if error.is_fatal() {
        shared.fail(error.to_string());
    }
    match has_all(&shared.catalog.now(), run) {
        true => Err(error.into()),
        false => Ok(None),
    }
}

fn has_all(manifest: &Manifest, run: &[CheckpointEntry]) -> bool {
    run.iter().all(|entry| manifest.checkpoints.contains(entry))
}

/// Whether a merge has failed since a checkpoint of the chain cannot be read. Then a start could not
/// read it either. A shortage of descriptors or memory says nothing about the files.
fn shows_damage(error: &Error) -> bool {
    match error {
        Error::Merge(MergeError::Read(LoadError::Damaged(_))) => true,
        Error::Merge(MergeError::Read(LoadError::Disk(error))) => !error.is_shortage(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_checkpoint::{Damage, DamageCause};
    use stillpoint_io::DiskError;

    use super::*;

    #[test]
    fn a_shortage_is_no_damage() {
        let read = |error| shows_damage(&Error::Merge(MergeError::Read(error)));
        let refused = |errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            LoadError::Disk(DiskError::new("read", "part-000", error))
        };
        let missing = Damage { file: "part-000".into(), offset: 0, cause: DamageCause::Missing };
        assert!(read(Box::new(missing).into()));
        // EIO, then ENOMEM, ENFILE and EMFILE.
        assert!(read(refused(5)));
        for errno in [12, 23, 24] {
            assert!(!read(refused(errno)), "{errno}");
        }
        assert!(!read(LoadError::Cancelled));
    }
}
