//! Which keys the chain of published checkpoints may have, for stores whose checkpoints may be of
//! changes ([`Reuse::WhenClean`](crate::rules::Reuse)).
//!
//! A deleted key that no published checkpoint has needs no deletion in the next one, so its cell may be
//! reused at once. So keys that live for a short time hold no memory, however long checkpoints fail.
//! Cells of deleted keys that the chain has wait for a published checkpoint. They are no more than
//! the chain has keys.
//!
//! Two bits of a cell's status say that a chain has the key. One stands for the present chain, and one
//! for the chain that a full checkpoint under way would begin:
//!
//! ```text
//!  counts: chain 0 ──▶ full one under way: both ──▶ published: chain 1
//!                                              └──▶ given up:  chain 0
//! ```
//!
//! | who | which bit | when |
//! |---|---|---|
//! | a claim of the full checkpoint | sets the new chain's if the record has a value, else unsets it | in the exchange of the claim |
//! | the pass that settles the marks of a published checkpoint | sets the present chain's in each marked cell | with the marks |
//! | a load | sets the present chain's | when the cell is made |
//!
//! A record that a checkpoint of changes has taken is marked as taken until that pass.

use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rules::status;

/// The chain of this store is not known: any key may be in it.
const UNKNOWN: u64 = u8::MAX as u64;

/// The chains of a store.
///
/// Relaxed everywhere: one thread changes these words. Both chains count from before the point of
/// consistency of a full checkpoint. So a commit after it sees that, since a grace period lies between.
/// Until a commit sees that fewer chains count, it keeps a cell for longer.
#[derive(Debug)]
pub(crate) struct Chains {
    /// The bits of the chains that count, or [`UNKNOWN`].
    counted: AtomicU64,
    /// The bit of the present chain.
    present: AtomicU64,
    /// The bit of the chain that the full checkpoint under way would begin; 0 if there is none.
    begun: AtomicU64,
    /// Full checkpoints that have ended.
    full_ends: AtomicU64,
    /// The epoch in which a pass that settles the marks has last come to its end.
    settled_in: AtomicU64,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            counted: AtomicU64::new(UNKNOWN),
            present: AtomicU64::new(u64::from(status::CHAIN_0)),
            begun: AtomicU64::new(0),
            full_ends: AtomicU64::new(0),
            settled_in: AtomicU64::new(u64::MAX),
        }
    }
}

impl Chains {
    /// Notes the chain that a start loads. It has a key or, if `is_empty`, none.
    pub(crate) fn load(&self, is_empty: bool) {
        let counted = if is_empty { 0 } else { self.present.load(Relaxed) };
        self.counted.store(counted, Relaxed);
    }

    /// A full checkpoint is under way. Called in PREPARE.
    pub(crate) fn begin(&self) {
        let both = u64::from(status::CHAIN_0 | status::CHAIN_1);
        let begun = self.present.load(Relaxed) ^ both;
        self.begun.store(begun, Relaxed);
        self.counted.fetch_or(begun, Relaxed);
    }

    /// The checkpoint under way was published or given up.
    pub(crate) fn end(&self, is_published: bool) {
        let begun = self.begun.swap(0, Relaxed);
        match (begun, is_published) {
            (0, _) => {}
            (_, true) => {
                self.present.store(begun, Relaxed);
                self.counted.store(begun, Relaxed);
            }
            (_, false) if self.counted.load(Relaxed) == UNKNOWN => {}
            (_, false) => drop(self.counted.fetch_and(!begun, Relaxed)),
        }
        if begun != 0 {
            self.full_ends.fetch_add(1, Relaxed);
        }
    }

    /// Number of full checkpoints that have ended. Each may have freed cells for reuse.
    pub(crate) fn full_ends(&self) -> u64 {
        self.full_ends.load(Relaxed)
    }

    /// The epoch in which a pass that settles the marks has last come to its end.
    pub(crate) fn settled_in(&self) -> u64 {
        self.settled_in.load(Relaxed)
    }

    /// A pass has come to its end.
    pub(crate) fn end_settling(&self, epoch: u64) {
        self.settled_in.store(epoch, Relaxed);
    }

    /// The bit that notes that the present chain has a key.
    pub(crate) fn present(&self) -> u8 {
        self.present.load(Relaxed) as u8
    }

    /// The bit that a claim of the full checkpoint under way sets.
    pub(crate) fn begun(&self) -> u8 {
        self.begun.load(Relaxed) as u8
    }

    /// Whether a published checkpoint, or the one under way, may have the key of a cell with this
    /// status.
    pub(crate) fn may_have(&self, status: u8) -> bool {
        let counted = self.counted.load(Relaxed);
        counted == UNKNOWN || status & (counted as u8 | status::TAKEN) != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::status::{CHAIN_0, CHAIN_1, DIRTY_EVEN, TAKEN};
    use super::*;

    #[test]
    fn both_chains_count_while_a_full_checkpoint_is_under_way() {
        let chains = Chains::default();
        assert!(chains.may_have(0), "nothing is known yet");
        chains.load(true);
        assert!(!chains.may_have(CHAIN_0 | CHAIN_1 | DIRTY_EVEN) && chains.may_have(TAKEN));
        chains.begin();
        assert_eq!(chains.begun(), CHAIN_1);
        assert!(chains.may_have(CHAIN_1) && !chains.may_have(CHAIN_0));
        chains.end(false);
        assert!(!chains.may_have(CHAIN_1), "given up");
        chains.begin();
        chains.end(true);
        assert_eq!((chains.present(), chains.begun()), (CHAIN_1, 0));
        assert!(chains.may_have(CHAIN_1) && !chains.may_have(CHAIN_0));
        chains.begin();
        assert!(chains.may_have(CHAIN_1) && chains.may_have(CHAIN_0));
        chains.end(false);
        chains.end(true);
        assert!(chains.may_have(CHAIN_1) && !chains.may_have(CHAIN_0), "no full one was under way");
    }

    #[test]
    fn an_unknown_chain_is_known_once_a_full_checkpoint_is_published() {
        let chains = Chains::default();
        chains.begin();
        chains.end(false);
        assert!(chains.may_have(0));
        chains.begin();
        chains.end(true);
        assert!(!chains.may_have(0) && chains.may_have(CHAIN_1));
        chains.load(false);
        assert!(chains.may_have(CHAIN_1));
    }
}
