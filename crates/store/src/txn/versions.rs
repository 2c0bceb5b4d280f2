//! The stable versions that a commit stores, where the store has a pool of them ([`crate::stable`]).

use stillpoint_sync::mutant;

use crate::participant::Participant;
use crate::phase::PhaseWord;
use crate::planted;
use crate::stable::{self, pool, slots_of};
use crate::txn::Transaction;
use crate::txn::commit::Shortage;

impl Transaction {
    /// Stores the stable versions of the records that this commit is the first to change after the
    /// point of consistency. Returns the shortage if the pool lacks the slots; nothing has changed then.
    /// Stores nothing if the pool is too small, or if the checkpoint is given up.
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
        if !pool.can_have(wanted) || driver.is_spoilt(phase.epoch()) {
            return None;
        }
        if !pool.fill(slots, wanted) {
            return Some(Shortage::Stable(wanted));
        }
        unmarked().for_each(|cell| stable::store_version(memory, (slots, cache), cell, claim));
        pool.return_surplus(slots);
        None
    }

    /// Claims the records whose stable versions were not stored. The log has taken the commit, so the
    /// checkpoint is given up. Its scan may still be under way, and a scan that wins a claim relies on what
    /// it has read.
    #[inline(never)]
    pub(super) fn claim_without_versions(&self, local: &Participant, phase: PhaseWord) {
        let store = &local.store;
        let (memory, driver, claim) = (store.memory(), store.driver(), store.claim_in(phase));
        for cell in self.written_cells().filter(|&cell| store.is_unmarked(cell, claim)) {
            if !driver.is_spoilt(phase.epoch()) {
                pool(memory).exceed(phase.epoch());
                driver.spoil(phase.epoch());
            }
            mutant!(in driver; stable::claim_alone(memory, cell, claim), ExceededUnclaimed => ());
        }
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
