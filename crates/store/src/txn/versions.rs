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
        let (pool, driver) = (pool(memory), store.driver());
        if !pool.can_have(wanted) {
            pool.exceed(phase.epoch());
            driver.spoil(phase.epoch());
        }
        if driver.is_spoilt(phase.epoch()) {
            // The checkpoint is given up, but its scan may still be under way. A scan that wins a claim
            // relies on what it has read.
            unmarked().for_each(|cell| stable::claim_alone(memory, cell, claim));
            return None;
        }
        if !pool.fill(slots, wanted) {
            return Some(Shortage::Stable(wanted));
        }
        unmarked().for_each(|cell| stable::store_version(memory, (slots, cache), cell, claim));
        pool.return_surplus(slots);
        None
    }
}

impl Participant {
    /// Waits for slots of the pool, or until the capture has ended or was given up. Outside of the read
    /// section.
    pub(super) fn wait_for_slots(&mut self, wanted: usize) {
        let Self { store, slots, .. } = self;
        let driver = store.driver();
        let sink = store.sink();
        let is_over = || {
            let now = driver.now();
            if let Some(sink) = &sink {
                sink.let_commits_pass();
            }
            if now.is_gated() && now.is_capturing() {
                // Who stops all commits waits for this one. That is not to last until the scan comes by.
                driver.spoil(now.epoch());
            }
            !now.is_capturing() || driver.is_spoilt(now.epoch())
        };
        pool(store.memory()).wait(slots, wanted, is_over);
    }

    /// Gives back what a wait has brought and the commit has not used.
    pub(super) fn return_surplus_slots(&mut self) {
        if let Some(pool) = &self.store.memory().pool {
            pool.return_surplus(&mut self.slots);
        }
    }
}
