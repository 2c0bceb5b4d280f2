//! When checkpoints are taken for memory that deleted keys hold until a checkpoint has their deletions, and for
//! the logs of tables of other kinds.

use std::time::Duration;

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
/// kinds, whose open transactions keep a part of the logs.
pub(super) fn frees_half(shared: &Shared, limit: u64) -> bool {
    if !shared.kinds.have_tables() {
        return false;
    }
    let kept = shared.journal.holders().iter().map(|holder| holder.bytes).max().unwrap_or(0);
    kept >= limit / 2 && kept.saturating_sub(shared.open.kept_bytes()) >= limit / 4
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
