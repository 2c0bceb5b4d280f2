//! The time that the first event loop gives to the nodes of deleted collections.

use super::{Worker, leave_what_waits};

/// Time that the first event loop gives to the reclaim of collections, of every [`RECLAIM_EVERY_MS`]. Its
/// clients wait meanwhile, so it is short, and comes often.
pub(super) const RECLAIM_NS: u64 = 50_000;
/// As [`RECLAIM_NS`], while memory is nearly full and writes are refused or soon will be.
const FULL_RECLAIM_NS: u64 = 500_000;
/// As [`RECLAIM_NS`], for a writer that waits for the memory.
pub(super) const ASKED_RECLAIM_NS: u64 = 2_000_000;
/// Time between two reclaims while there is something to reclaim.
const RECLAIM_EVERY_MS: u64 = 2;

impl Worker {
    /// Removes nodes of deleted collections for some time, or for longer while memory is nearly full.
    pub(super) fn reclaim(&mut self, usual_ns: u64) {
        let Self { shared, session, reclaimer, number, .. } = self;
        let (keyspace, clock) = (&shared.keyspace, &*shared.config.clock);
        if *number > 0 {
            return;
        }
        let limit = shared.max_memory_bytes();
        let is_nearly_full = || limit > 0 && shared.used_memory() > limit - limit / 16;
        let start_ns = clock.monotonic_ns();
        let mut budget_ns = None;
        leave_what_waits(session, self.long.is_some());
        let has_more = loop {
            if !reclaimer.step(session, keyspace) {
                break false;
            }
            let budget_ns = budget_ns.get_or_insert_with(|| match is_nearly_full() {
                true => FULL_RECLAIM_NS.max(usual_ns),
                false => usual_ns,
            });
            if clock.monotonic_ns() - start_ns >= *budget_ns {
                break true;
            }
        };
        leave_what_waits(session, false);
        self.next_reclaim_ms = if has_more { self.now_ms + RECLAIM_EVERY_MS } else { u64::MAX };
    }
}
