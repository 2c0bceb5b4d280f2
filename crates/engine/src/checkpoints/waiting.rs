//! What checkpoints wait for, and when they are taken for memory or for logs. Deleted keys hold memory until a
//! checkpoint has their deletions, and tables of other kinds keep the logs.

use std::time::Duration;

use stillpoint_checkpoint::Wanted;
use stillpoint_sync::{mutant, planted};

use super::{State, Wish, attempt};
use crate::error::Error;
use crate::shared::Shared;

/// Shortest time between two checkpoints that are taken for the memory of deleted keys, or for the notes
/// of emptied tables.
const FREES_EVERY: Duration = Duration::from_secs(1);
/// Least bytes that a deleted key holds while its cell waits for a checkpoint.
const WAITING_CELL_BYTES: usize = 64;
/// A checkpoint is taken for deleted keys only if they hold this fraction of the memory.
const WAITING_PART: usize = 256;
/// If they hold this fraction, there is no time for the usual pause between two such checkpoints. A cache that
/// gives up keys stops at twice as much.
const PRESSING_PART: usize = 16;

/// Shortest time from a checkpoint that took so long to another that frees memory.
pub(super) fn pause_after(last_took: Duration, is_pressing: bool) -> Duration {
    if is_pressing { FREES_EVERY } else { FREES_EVERY.max(last_took * 4) }
}

/// Bytes that deleted keys hold while they wait for a checkpoint.
fn waiting_bytes(shared: &Shared) -> usize {
    let least = shared.store.waiting_cells() * WAITING_CELL_BYTES;
    least.max(shared.store.returning_bytes().1)
}

/// Whether deleted keys that wait for a checkpoint hold enough to take one for them.
pub(super) fn is_worth_it(shared: &Shared) -> bool {
    waiting_bytes(shared) >= shared.store.max_memory_bytes() / WAITING_PART
}

/// Whether deleted keys that wait for a checkpoint hold so much that others may soon find no memory.
pub(super) fn is_pressing(shared: &Shared) -> bool {
    waiting_bytes(shared) >= shared.store.max_memory_bytes() / PRESSING_PART
}

/// Whether the logs have half of their limit, and a checkpoint frees a quarter. For stores with tables of other
/// kinds, whose open transactions keep a part of the logs. Without a scheme a checkpoint of these tables frees
/// nothing, and shortens the next start alone. Then one is due for each half of the limit. `logged_bytes` were
/// logged since the last one.
pub(super) fn frees_half(shared: &Shared, limit: u64, logged_bytes: u64) -> bool {
    if !shared.kinds.have_tables() {
        return false;
    }
    let (open, aside) = (shared.open.kept_bytes(), shared.journal.set_aside_bytes());
    if shared.scheme.is_none() {
        return logged_bytes >= limit / 2 && logged_bytes.saturating_sub(open) >= limit / 4;
    }
    let kept = shared.journal.holders().iter().map(|holder| holder.bytes).max().unwrap_or(0);
    let is_half = kept.saturating_add(aside) >= limit / 2 && kept.saturating_sub(open) >= limit / 4;
    // Beyond that, open transactions are ended first.
    let frees = open.saturating_add(aside) <= limit / 4 * 3;
    is_half || frees && shared.journal.limit_left() < limit / 8
}

/// Whether the next checkpoint is one of changes, however many there are.
pub(super) fn are_changes_due(shared: &Shared) -> bool {
    let takes_changes = shared.scheme.as_ref().is_some_and(|scheme| scheme.takes_changes());
    takes_changes
        && !shared.checkpoints.state.lock().owes_full
        && matches!(attempt::wanted(shared, Wish::Due), Wanted::Changes { .. })
}

/// Whether the load has ended, or the background thread takes a checkpoint of changes before. It takes one
/// that was asked for. It takes one that is due if the load takes long.
pub(super) fn may_take_now(shared: &Shared) -> bool {
    let load = &shared.load;
    let asked = || shared.checkpoints.state.lock().requested;
    let takes_long = || load.takes_long(shared.config.environment.clock.monotonic_ns());
    load.is_done() || !load.has_stopped() && (asked() || takes_long()) && are_changes_due(shared)
}

/// Whether the background thread takes a checkpoint, now or when the load has ended.
pub(super) fn will_take(shared: &Shared) -> bool {
    takes_any(shared) && !shared.load.has_stopped() && shared.health().is_ok()
}

/// Waits until the next checkpoint lacks nothing: for the whole load, or before a checkpoint of changes for
/// the writes of the logs.
///
/// # Errors
/// [`Error::NotLoaded`]. A request is answered by that.
pub(super) fn wait_for_load(shared: &Shared) -> Result<(), Error> {
    if shared.load.is_done() {
        return Ok(());
    }
    if !are_changes_due(shared) {
        return shared.load.wait(shared);
    }
    let entered = mutant!(shared.load.enter_replayed(shared), CheckpointLacksReplayed => Ok(()));
    entered.or_else(|error| {
        shared.checkpoints.state.lock().requested = false;
        shared.checkpoints.note(shared, shared.commit_count(), Err(error)).map(|_| ())
    })
}

impl State {
    /// No checkpoint will be taken. Whoever waits for one counts the attempts that have failed.
    pub(super) fn give_up_request(&mut self, shared: &Shared) {
        if let Some(reason) = shared.load.failure().filter(|_| self.requested) {
            self.failures += 1;
            self.last_error = Some(Error::NotLoaded(reason).to_string());
        }
        self.requested = false;
    }
}

/// Whether there are checkpoints: by the scheme, or of tables of other kinds alone.
pub(super) fn takes_any(shared: &Shared) -> bool {
    shared.scheme.is_some() || shared.kinds.have_tables()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_follow_each_other_soon_if_memory_presses() {
        let seconds = Duration::from_secs;
        assert_eq!(pause_after(Duration::ZERO, false), seconds(1));
        assert_eq!(pause_after(seconds(10), false), seconds(40));
        assert_eq!(pause_after(seconds(10), true), seconds(1));
    }
}
