//! Choosing keys that a full cache gives up, and deleting them.
//!
//! As in Redis, some keys are drawn at random, and the best of them are kept for the next choices, too.
//! Each deletion is a logged transaction of its own. It looks at the key again under its lock, and
//! leaves a key alone that was used since it was drawn.

use stillpoint::{Batch, KeySet, Mode, RecordUse, Session, Slot, Stamp, Tx, TxError};
use stillpoint_io::{Rng, SeededRng};

use super::counts::KeyCounters;
use super::databases::Keyspace;
use super::elements::bury;
use super::eviction::{Choice, Policy, frequency, idle_ms};
use super::value::{EXPIRY_BYTES, Entry, has_expiry};
use crate::config::{DATABASES, Db};

/// Candidates that are kept for the next choices.
const CANDIDATES_MAX: usize = 16;
/// Times that keys are drawn to find enough, each time from more places. A table may have few keys in
/// many places, or no key with an expiry among millions.
const DRAWS_MAX: u32 = 16;
/// Times that keys are drawn where none with an expiry is known.
const VAIN_DRAWS: u32 = 6;
/// Places of one draw, at most, unless the samples are more.
const PLACES_MAX: usize = 8 << 10;
/// Places of one draw, at most, in multiples of the samples.
const PLACES_LOG2_MAX: u32 = 10;
/// Keys that one call deletes, at most.
const DELETED_AT_ONCE: usize = 32;

/// Bytes of a node of a collection, about.
pub(super) const NODE_BYTES: usize = 1 << 10;

/// A key that may be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// Higher for keys that are given up first.
    score: u64,
    db: Db,
    key: Box<[u8]>,
    used: RecordUse,
}

/// What one call has given up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenUp {
    /// Keys that were chosen. One that was used since it was drawn is left alone.
    pub(crate) chosen: usize,
    pub(crate) keys: usize,
    /// Bytes that these keys took. They are free once the deletions survive any crash.
    pub(crate) bytes: usize,
    /// The last deletion.
    pub(crate) last: Option<Stamp>,
}

/// The choice of keys.
#[derive(Debug)]
pub(crate) struct Victims {
    rng: SeededRng,
    /// By score; the last is given up first.
    candidates: Vec<Candidate>,
    /// The policy by which the candidates were chosen.
    policy: Policy,
}

impl Victims {
    pub(crate) fn new(seed: u64, policy: Policy) -> Self {
        Self { rng: SeededRng::new(seed), candidates: Vec::new(), policy }
    }

    /// Deletes keys by the policy in force, until they took `bytes` or some dozens are deleted. Counts
    /// them as those of event loop or thread `worker`.
    pub(crate) fn delete_some(
        &mut self,
        (session, keyspace): (&mut Session, &Keyspace),
        worker: usize,
        bytes: usize,
        now_ms: u64,
    ) -> GivenUp {
        let policy = keyspace.eviction.policy();
        if policy != self.policy {
            self.candidates.clear();
            self.policy = policy;
        }
        let (mut chosen, mut sum) = (Vec::new(), 0);
        // What a collection takes is known when it is deleted, so few are chosen at a time.
        let most = if keyspace.has_nodes() { DELETED_AT_ONCE / 8 } else { DELETED_AT_ONCE };
        while chosen.len() < most && sum < bytes {
            for db in 0..DATABASES {
                self.draw(session, keyspace, db, &chosen, now_ms);
            }
            let Some(best) = self.candidates.pop() else { break };
            sum += best.used.bytes;
            chosen.push(best);
        }
        let _stripe = keyspace.lock.enter(worker);
        let counters = keyspace.counts.of(worker);
        let mut deletions = Evictions {
            keyspace,
            counters,
            policy,
            chosen: &chosen,
            deleted: None,
            given_up: GivenUp { chosen: chosen.len(), ..GivenUp::default() },
        };
        // Another key is as good as one that somebody works on.
        session.execute_if_free(&mut deletions);
        deletions.given_up
    }

    /// Draws some keys of a database.
    fn draw(
        &mut self,
        session: &mut Session,
        keyspace: &Keyspace,
        db: Db,
        chosen: &[Candidate],
        now_ms: u64,
    ) {
        let Self { rng, candidates, policy, .. } = self;
        if keyspace.len(db) == 0 {
            return;
        }
        // The count of keys with an expiry is that of the last scan, and 0 after a start.
        let seems_vain = policy.is_volatile && keyspace.expiring(db) == 0;
        let samples = keyspace.eviction.samples();
        let mut met = 0;
        for draw in 0..if seems_vain { VAIN_DRAWS } else { DRAWS_MAX } {
            let places = (samples << draw.min(PLACES_LOG2_MAX)).min(PLACES_MAX.max(samples));
            let (table, cursor) = (keyspace.table(db), rng.next_u64());
            let chance = rng.next_u64();
            // If the table is gone, nothing is met.
            let _ =
                session.scan_uses(table, cursor, places, EXPIRY_BYTES, &mut |key, value, used| {
                    let entry = Entry::new(value);
                    if met >= samples || policy.is_volatile && entry.expire_at_ms.is_none() {
                        return;
                    }
                    met += 1;
                    let score = match policy.choice {
                        Choice::LastUse => idle_ms(used.access, now_ms),
                        Choice::Frequency => u64::from(255 - frequency(used.access, now_ms)),
                        Choice::Expiry => u64::MAX - entry.expire_at_ms.unwrap_or(u64::MAX),
                        Choice::Chance | Choice::Nothing => chance.rotate_left(met as u32),
                    };
                    keep(candidates, chosen, (score, db, key, used));
                });
            if met >= samples {
                return;
            }
        }
    }
}

/// Keeps a key that was drawn if it is better than one of the candidates.
fn keep(
    candidates: &mut Vec<Candidate>,
    chosen: &[Candidate],
    (score, db, key, used): (u64, Db, &[u8], RecordUse),
) {
    let is_full = candidates.len() >= CANDIDATES_MAX;
    if is_full && candidates[0].score >= score {
        return;
    }
    let is_it = |other: &Candidate| other.db == db && *other.key == *key;
    if chosen.iter().any(is_it) {
        return;
    }
    if let Some(at) = candidates.iter().position(is_it) {
        // It may have been used since it was drawn before.
        candidates.remove(at);
    } else if is_full {
        candidates.remove(0);
    }
    let at = candidates.partition_point(|other| other.score < score);
    candidates.insert(at, Candidate { score, db, key: key.into(), used });
}

/// The deletions of chosen keys, a transaction each.
struct Evictions<'a> {
    keyspace: &'a Keyspace,
    counters: &'a KeyCounters,
    policy: Policy,
    chosen: &'a [Candidate],
    /// If the running transaction deletes its key: whether the key has an expiry, and the bytes of the
    /// nodes below its record.
    deleted: Option<(bool, usize)>,
    given_up: GivenUp,
}

impl Batch for Evictions<'_> {
    fn len(&self) -> usize {
        self.chosen.len()
    }

    fn declare(&mut self, i: usize, keys: &mut KeySet) {
        let Candidate { db, key, .. } = &self.chosen[i];
        self.keyspace.declare(keys, *db, key, Mode::Write, 0);
    }

    fn run(&mut self, i: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.deleted = None;
        let Candidate { db, used, .. } = &self.chosen[i];
        let Some(value) = tx.value(Slot(0)) else { return Ok(()) };
        let expires = has_expiry(&value);
        let was_used = self.policy.needs_marks() && tx.access(Slot(0)) != Some(used.access);
        if was_used || self.policy.is_volatile && !expires {
            return Ok(());
        }
        tx.use_reserve();
        let nodes = bury(tx, Slot(0), self.keyspace.remains(*db))?;
        tx.delete_slot(Slot(0))?;
        self.deleted = Some((expires, nodes * NODE_BYTES));
        Ok(())
    }

    fn ended(&mut self, i: usize, result: Result<Option<Stamp>, TxError>) {
        // A key whose deletion is refused may be drawn again.
        let (Ok(Some(stamp)), Some((expires, below))) = (result, self.deleted.take()) else {
            return;
        };
        self.counters.evicted.add(1);
        if expires {
            self.counters.expiring_changed(self.chosen[i].db, -1);
        }
        self.given_up.keys += 1;
        self.given_up.bytes += self.chosen[i].used.bytes + below;
        self.given_up.last = Some(stamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_candidates_are_kept_once() {
        let used = RecordUse { bytes: 1, access: 0 };
        let mut candidates = Vec::new();
        for n in 0..40u64 {
            let key = [n as u8 % 30];
            keep(&mut candidates, &[], (n * 7 % 30, 0, &key, used));
        }
        let scores: Vec<u64> = candidates.iter().map(|candidate| candidate.score).collect();
        assert!(scores.is_sorted() && scores.len() == CANDIDATES_MAX, "{scores:?}");
        assert_eq!(scores.last(), Some(&29));
        let mut keys: Vec<_> = candidates.iter().map(|candidate| candidate.key.clone()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), CANDIDATES_MAX, "no key twice");
        let chosen = [candidates.pop().expect("some")];
        keep(&mut candidates, &chosen, (99, 0, &chosen[0].key, used));
        assert!(candidates.iter().all(|candidate| candidate.score < 99), "it is given up already");
    }
}
