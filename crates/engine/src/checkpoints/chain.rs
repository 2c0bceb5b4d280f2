//! Chains of checkpoints: a full one, and those of changes that go on from it.
//!
//! A checkpoint of changes goes on from the newest checkpoint in the MANIFEST. Memory was loaded
//! from that checkpoint, or the checkpoint was taken from memory. Every record written since is
//! marked as dirty. So the same scheme must have taken that checkpoint, since the scheme's marks
//! began then.
//!
//! The newest checkpoints, as many as the settings keep, are the *points* that a restore offers. A
//! merge takes away only points of consistency before these.

use stillpoint_checkpoint::Wanted;
use stillpoint_format::manifest::{CheckpointEntry, CheckpointKind, IncarnationEntry, Manifest};
use stillpoint_sync::{mutant, planted};

/// Most checkpoints of changes that go on from one full checkpoint, if chains are not merged. A
/// start reads each checkpoint.
const LINKS_MAX: usize = 16;
/// A chain whose checkpoints of changes have fewer bytes is not worth a merge for its bytes alone.
const LINK_BYTES_MIN: u64 = 1 << 20;

/// Whether a checkpoint of changes may go on from the newest one: if the same scheme has taken the
/// whole chain.
fn goes_on(manifest: &Manifest, scheme: &str) -> bool {
    let chain = manifest.newest_chain();
    !chain.is_empty() && chain.iter().all(|checkpoint| checkpoint.scheme == scheme)
}

/// Whether a start marks the records that it replays, so that the first checkpoint may be of changes.
/// Other schemes may have reused the cells of deleted keys at once. With marks their logs might need
/// more memory than their runs did.
pub(crate) fn marks_replayed(manifest: &Manifest, scheme: &str) -> bool {
    let is_of_scheme = |of: &IncarnationEntry| of.scheme.as_deref().is_none_or(|of| of == scheme);
    goes_on(manifest, scheme) && manifest.incarnations.iter().all(is_of_scheme)
}

/// What the next checkpoint of a scheme should hold. `merges` says that chains are merged.
///
/// A checkpoint of changes is wanted if no more than `percent_max` percent of the records have
/// changed.
pub(super) fn wanted(
    manifest: &Manifest,
    scheme: &str,
    (percent_max, merges): (u64, bool),
) -> Wanted {
    let chain = manifest.newest_chain();
    let Some((full, links)) = chain.split_first() else { return Wanted::Full };
    let is_long = links.len() >= LINKS_MAX && !(merges && may_merge(&chain));
    if !goes_on(manifest, scheme)
        || is_long
        || sum_bytes(links) > bytes_of(full).max(LINK_BYTES_MIN)
    {
        return Wanted::Full;
    }
    Wanted::Changes { percent_max }
}

/// The most checkpoints of a chain that is merged in time. Twice as many are allowed as make a merge
/// due, since checkpoints are taken while a merge is under way. Points that are kept cannot be merged.
pub(super) fn links_max(keep: usize, merge_after: Option<usize>) -> usize {
    let links = merge_after.map_or(LINKS_MAX, |links| links.saturating_mul(2));
    links.saturating_add(keep.max(1))
}

/// Whether checkpoints come faster than they are merged. The chain is longer than its bound, or a full
/// checkpoint will soon cost less than to go on.
pub(super) fn is_late(manifest: &Manifest, keep: usize, merge_after: Option<usize>) -> bool {
    let chain = manifest.newest_chain();
    let Some((full, links)) = chain.split_first() else { return false };
    let full_bytes = bytes_of(full).max(LINK_BYTES_MIN);
    links.len() > links_max(keep, merge_after) || sum_bytes(links) > full_bytes / 4 * 3
}

/// The run of checkpoints that a merge should turn into one, oldest first, if a merge is due. `live`
/// is the number of records that the store has.
///
/// A merge is due after `links_max` checkpoints of changes. It is also due when these have half the
/// bytes of the full checkpoint, or when half of the run's records are superseded or deleted. In these
/// two cases the full checkpoint is part of the run.
pub(super) fn due_run(
    manifest: &Manifest,
    keep: usize,
    links_max: usize,
    live: u64,
) -> Vec<CheckpointEntry> {
    let run = whole_run(manifest, keep);
    let Some((full, links)) = run.split_first() else { return Vec::new() };
    let links: Vec<&CheckpointEntry> = links.iter().collect();
    let link_bytes = sum_bytes(&links);
    let records: u64 = run.iter().map(|entry| entry.records).sum();
    let is_half_dead = records.saturating_sub(live) > records / 2;
    let is_worth_it = link_bytes + bytes_of(full) >= LINK_BYTES_MIN;
    if link_bytes >= (bytes_of(full) / 2).max(LINK_BYTES_MIN) || (is_half_dead && is_worth_it) {
        return run;
    }
    match links.len() >= links_max {
        true => run[1..].to_vec(),
        false => Vec::new(),
    }
}

/// The longest run that may be merged, oldest first: from the full one to the oldest of the `keep`
/// points that a restore offers. Empty if there are fewer than two such checkpoints.
pub(crate) fn whole_run(manifest: &Manifest, keep: usize) -> Vec<CheckpointEntry> {
    let chain = manifest.newest_chain();
    let kept_within = mutant!(keep.saturating_sub(1), MergesOverKeptPoint => 0);
    let run = &chain[..chain.len().saturating_sub(kept_within)];
    match run.len() < 2 || !may_merge(run) {
        true => Vec::new(),
        false => run.iter().map(|&entry| entry.clone()).collect(),
    }
}

/// Whether checkpoints can be merged. A merge keeps no stamps, which a fuzzy one needs.
fn may_merge(run: &[&CheckpointEntry]) -> bool {
    run.iter().all(|entry| !entry.fuzzy)
}

/// Puts a merged checkpoint in the place of its run; false if the MANIFEST has not all of the run.
pub(crate) fn replace_run(
    manifest: &mut Manifest,
    run: &[CheckpointEntry],
    merged: CheckpointEntry,
) -> bool {
    let first = manifest.checkpoints.iter().position(|entry| Some(entry) == run.first());
    let Some(first) = first else { return false };
    let end = first + run.len();
    if manifest.checkpoints.get(first..end) != Some(run) {
        return false;
    }
    manifest.checkpoints.splice(first..end, [merged]);
    true
}

/// Bytes of a checkpoint's files.
pub(super) fn bytes_of(checkpoint: &CheckpointEntry) -> u64 {
    checkpoint.parts.iter().map(|part| part.bytes).sum()
}

fn sum_bytes(checkpoints: &[&CheckpointEntry]) -> u64 {
    checkpoints.iter().map(|checkpoint| bytes_of(checkpoint)).sum()
}

/// Bytes of the files that a start loads: an upper bound of what a full checkpoint takes.
pub(super) fn newest_bytes(manifest: &Manifest) -> u64 {
    sum_bytes(&manifest.newest_chain())
}

/// Removes from a MANIFEST each checkpoint that neither a start nor one of the `keep` newest points
/// needs.
pub(super) fn drop_surplus(manifest: &mut Manifest, keep: usize) -> Vec<CheckpointEntry> {
    let checkpoints = &mut manifest.checkpoints;
    let oldest_point = checkpoints.len().saturating_sub(keep.max(1));
    let up_to_it = checkpoints.iter().take(oldest_point + 1);
    let is_full = |checkpoint: &CheckpointEntry| checkpoint.kind == CheckpointKind::Full;
    let kept_from = up_to_it.enumerate().rfind(|(_, entry)| is_full(entry));
    let kept_from = kept_from.map_or(0, |(at, _)| at);
    checkpoints.drain(..kept_from).collect()
}

#[cfg(test)]
mod tests;
