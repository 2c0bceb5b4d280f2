//! The stable versions that a commit stores, where the store has a pool of them ([`crate::stable`]).

use crate::participant::Participant;
use crate::phase::PhaseWord;
use crate::stable::{self, pool, slots_of};
use crate::txn::Transaction;
use crate::txn::commit::Shortage;

impl Transaction {
    /// Stores the stable versions of the records that this commit is the first to change after the
    /// point of consistency. Returns the shortage if the pool lacks the slots; nothing has changed then.
    #[inline(never)]
    pub(super) fn store_versions(
        &self,
        local: &mut Participant,
        phase: PhaseWord,
    ) -> Option<Shortage> {
        let Participant { store, cache, slots, .. } = local;
        let (memory, claim) = (store.memory(), store.claim_in(phase));
        let unmarked = || self.written_cells().filter(|&cell| store.is_unmarked(cell, claim));
        let wanted = unmarked().map(|cell| slots_of(memory, cell)).sum();
        let pool = pool(memory);
        if !pool.can_have(wanted) {
            pool.exceed(phase.epoch());
            store.driver().spoil(phase.epoch());
            return None;
        }
        if !pool.fill(slots, wanted) {
            return Some(Shortage::Stable(wanted));
        }
        unmarked().for_each(|cell| stable::store_version(memory, (slots, cache), cell, claim));
        None
    }
}

impl Participant {
    /// Waits for slots of the pool, or until the capture has ended. Outside of the read section.
    pub(super) fn wait_for_slots(&mut self, wanted: usize) {
        let Self { store, slots, .. } = self;
        let is_over = || !store.driver().now().is_capturing();
        pool(store.memory()).wait(slots, wanted, is_over);
    }
}
