//! Choosing keys that a full cache gives up, and deleting them.
//!
//! As in Redis, some keys are drawn at random, and the best of them are kept for the next choices, too.
//! Each deletion is a logged transaction of its own. It looks at the key again under its lock. A key that
//! was used since it was drawn is left alone, and so is one whose expiry has changed.
//!
//! If random places show too few keys, the database is searched from end to end, some places at a
//! time. So keys with an expiry are found among millions without one. A whole search that finds none is not
//! repeated until another key gets an expiry.

use stillpoint::{Batch, KeySet, Mode, RecordUse, Session, Slot, Stamp, Tx, TxError, ValueRef};
use stillpoint_io::{Rng, SeededRng};

use super::counts::KeyCounters;
use super::databases::Keyspace;
use super::elements::{bury, has_nodes};
use super::eviction::{Choice, Policy, frequency, idle_ms};
use super::value::{EXPIRY_BYTES, Entry};
use crate::config::{DATABASES, Db};

/// Candidates that are kept for the next choices.
const CANDIDATES_MAX: usize = 16;
/// Times that keys are drawn at a random place to find enough, each time from more places.
const DRAWS_MAX: u32 = 6;
/// Places that one call looks at in all databases together, about.
const PLACES_PER_CALL: usize = 64 << 10;
/// Places of one step of a search.
const PLACES_PER_STEP: usize = 1 << 10;
/// Bytes that a key takes, about, before any was chosen.
const RECORD_BYTES: usize = 256;
/// Keys that one call deletes, at most.
const DELETED_AT_ONCE: usize = 32;

/// A key that may be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// Higher for keys that are given up first.
    score: u64,
    db: Db,
    key: Box<[u8]>,
    used: RecordUse,
    expire_at_ms: Option<u64>,
    has_nodes: bool,
}

/// The search through a database, if few of its keys may be given up. It goes on where it has stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// The place to go on from, 0 at the beginning.
    cursor: u64,
    /// Whether random places have shown too few keys.
    is_needed: bool,
    /// Whether the search has met a key since its beginning.
    has_met: bool,
    /// How often a key had got an expiry, ever, at the beginning.
    set_at_start: u64,
    /// The value of `set_at_start` of the last whole search by a policy for keys with an expiry, if
    /// that search met none.
    vain_at: Option<u64>,
}

impl Search {
    /// Notes that the search has met so many keys, and goes on from `next`. True at the end.
    fn note(&mut self, met: usize, next: u64) -> bool {
        self.has_met |= met > 0;
        self.cursor = next;
        next == 0
    }
}

/// Nodes of collections that are still to be removed, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BuriedNodes {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl BuriedNodes {
    /// Adds others.
    pub(crate) fn add(&mut self, others: Self) {
        self.count += others.count;
        self.bytes += others.bytes;
    }

    /// Takes off so many nodes. Any node that is gone may be one of these.
    pub(crate) fn remove(&mut self, gone: usize) {
        let bytes = self.bytes.checked_div(self.count).unwrap_or(0);
        self.count = self.count.saturating_sub(gone);
        self.bytes = self.bytes.min(self.count.saturating_mul(bytes));
    }
}

/// What one call has given up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenUp {
    /// Keys that were chosen. One that was used since it was drawn is left alone.
    pub(crate) chosen: usize,
    pub(crate) keys: usize,
    /// Bytes that these keys took. They are free once the deletions survive any crash.
    pub(crate) bytes: usize,
    /// Number and bytes of the nodes of collections that are removed later, about.
    pub(crate) buried: BuriedNodes,
    /// The last deletion.
    pub(crate) last: Option<Stamp>,
    /// Whether the search for keys goes on with the next call.
    pub(crate) searches: bool,
}

/// The choice of keys.
#[derive(Debug)]
pub(crate) struct Victims {
    rng: SeededRng,
    /// By score; the last is given up first.
    candidates: Vec<Candidate>,
    /// The policy by which the candidates were chosen.
    policy: Policy,
    searches: [Search; DATABASES as usize],
    /// Bytes that the last chosen key took.
    record_bytes: usize,
}

impl Victims {
    pub(crate) fn new(seed: u64, policy: Policy) -> Self {
        let searches = Default::default();
        let rng = SeededRng::new(seed);
        Self { rng, candidates: Vec::new(), policy, searches, record_bytes: RECORD_BYTES }
    }

    /// Deletes keys by the policy in force, until they took `bytes` or some dozens are deleted. Counts
    /// them as those of event loop or thread `worker`. Looks at a bounded number of places.
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
            self.searches = Default::default();
            self.policy = policy;
        }
        let (mut chosen, mut sum, mut searches) = (Vec::new(), 0, false);
        let most = DELETED_AT_ONCE;
        let filled: Vec<Db> = (0..DATABASES).filter(|&db| keyspace.len(db) > 0).collect();
        let mut places = vec![PLACES_PER_CALL / filled.len().max(1); filled.len()];
        // What a collection takes is known when it is deleted, so it is the last that is chosen.
        while chosen.len() < most
            && sum < bytes
            && chosen.last().is_none_or(|last: &Candidate| !last.has_nodes)
        {
            if let ([db], [places]) = (&filled[..], &mut places[..]) {
                let goal = (most - chosen.len(), bytes - sum);
                let place = (&mut *session, keyspace);
                let taken = self.choose_together(place, (*db, now_ms), goal, &mut chosen, places);
                sum += taken;
                if taken > 0 {
                    continue;
                }
            }
            for (&db, places) in filled.iter().zip(&mut places) {
                searches |= self.draw((session, keyspace), (db, now_ms), &chosen, places);
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
            given_up: GivenUp { chosen: chosen.len(), searches, ..GivenUp::default() },
        };
        // Another key is as good as one that somebody works on.
        session.execute_if_free(&mut deletions);
        deletions.given_up
    }

    /// Chooses up to `most` keys of a database that take `bytes`, about, from one random place on, whose records
    /// are fetched together. Each is the best of the candidates after some more were drawn. Gives the bytes of
    /// the chosen keys, 0 if there were too few keys there.
    fn choose_together(
        &mut self,
        place: (&mut Session, &Keyspace),
        (db, now_ms): (Db, u64),
        (most, bytes): (usize, usize),
        chosen: &mut Vec<Candidate>,
        places: &mut usize,
    ) -> usize {
        let samples = place.1.eviction.samples();
        let victims = (bytes / self.record_bytes + 1).min(most);
        let count = (samples * victims).min(*places);
        if count < samples || self.searches[usize::from(db)].is_needed {
            return 0;
        }
        *places -= count;
        let (mut met, mut sum, mut is_over) = (0, 0, false);
        let cursor = self.rng.next_u64();
        self.look(place, (db, now_ms), (cursor, count), &mut |candidates, drawn| {
            if is_over || met == victims * samples || sum >= bytes {
                return;
            }
            keep(candidates, chosen, drawn);
            met += 1;
            if met % samples == 0
                && let Some(best) = candidates.pop()
            {
                sum += best.used.bytes;
                is_over = best.has_nodes;
                chosen.push(best);
            }
        });
        if let Some(last) = chosen.last() {
            self.record_bytes = last.used.bytes.max(1);
        }
        sum
    }

    /// Draws some keys of a database, and looks at `places` places at most, which it takes off. Whether a
    /// search is to go on, since there were too few places for it.
    fn draw(
        &mut self,
        (session, keyspace): (&mut Session, &Keyspace),
        (db, now_ms): (Db, u64),
        chosen: &[Candidate],
        places: &mut usize,
    ) -> bool {
        let (at, is_volatile) = (usize::from(db), self.policy.is_volatile);
        let set = keyspace.counts.expiring_set(db);
        if is_volatile && self.searches[at].vain_at == Some(set) {
            return false;
        }
        let samples = keyspace.eviction.samples();
        let (mut met, mut draws) = (0, 0);
        while met < samples && draws < DRAWS_MAX && *places > 0 && !self.searches[at].is_needed {
            let count = (samples << draws).min(*places);
            let place = (self.rng.next_u64(), count);
            self.look((session, keyspace), (db, now_ms), place, &mut |candidates, drawn| {
                if met < samples {
                    met += 1;
                    keep(candidates, chosen, drawn);
                }
            });
            *places -= count;
            draws += 1;
        }
        let mut steps = 0;
        while met < samples && *places > 0 {
            let search = &mut self.searches[at];
            search.is_needed = true;
            if search.cursor == 0 {
                (search.has_met, search.set_at_start) = (false, set);
            }
            let count = PLACES_PER_STEP.min(*places);
            let (before, place) = (met, (search.cursor, count));
            let take = &mut |candidates: &mut Vec<Candidate>, drawn: Met<'_>| {
                met += 1;
                keep(candidates, chosen, drawn);
            };
            let next = self.look((session, keyspace), (db, now_ms), place, take);
            *places -= count;
            steps += 1;
            let search = &mut self.searches[at];
            if search.note(met - before, next) {
                search.vain_at = (is_volatile && !search.has_met).then_some(search.set_at_start);
                // What the search has met may be given up by now, and the next one may meet others. So may one
                // of keys that have got their expiry behind this search.
                return search.has_met || is_volatile && search.set_at_start != set;
            }
        }
        // Keys are no longer rare if one step finds enough.
        self.searches[at].is_needed &= steps != 1 || met < samples;
        met < samples
    }

    /// Looks at `count` places of a database from a cursor on. `take` gets the candidates, and each key that may
    /// be given up. Gives the next cursor, 0 at the end.
    fn look(
        &mut self,
        (session, keyspace): (&mut Session, &Keyspace),
        (db, now_ms): (Db, u64),
        (cursor, count): (u64, usize),
        take: &mut dyn FnMut(&mut Vec<Candidate>, Met<'_>),
    ) -> u64 {
        let Self { rng, candidates, policy, .. } = self;
        let mut visit = |key: &[u8], value: ValueRef<'_>, used: RecordUse| {
            let entry = Entry::new(value);
            let (expire_at_ms, has_nodes) = (entry.expire_at_ms, has_nodes(&entry));
            if policy.is_volatile && expire_at_ms.is_none() {
                return;
            }
            let score = match policy.choice {
                Choice::LastUse => idle_ms(used.access, now_ms),
                Choice::Frequency => u64::from(255 - frequency(used.access, now_ms)),
                Choice::Expiry => u64::MAX - expire_at_ms.unwrap_or(u64::MAX),
                Choice::Chance | Choice::Nothing => rng.next_u64(),
            };
            take(candidates, Met { score, db, key, used, expire_at_ms, has_nodes });
        };
        let table = keyspace.table(db);
        let next = session.scan_uses(table, cursor, count, EXPIRY_BYTES, &mut visit);
        // If the table is gone, nothing is met.
        next.unwrap_or(0)
    }
}

/// A key that was drawn, as a [`Candidate`] without a copy of the key.
struct Met<'a> {
    score: u64,
    db: Db,
    key: &'a [u8],
    used: RecordUse,
    expire_at_ms: Option<u64>,
    has_nodes: bool,
}

/// Keeps a key that was drawn if it is better than one of the candidates.
fn keep(candidates: &mut Vec<Candidate>, chosen: &[Candidate], met: Met<'_>) {
    let Met { score, db, key, used, expire_at_ms, has_nodes } = met;
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
    candidates.insert(at, Candidate { score, db, key: key.into(), used, expire_at_ms, has_nodes });
}

/// The deletions of chosen keys, a transaction each.
struct Evictions<'a> {
    keyspace: &'a Keyspace,
    counters: &'a KeyCounters,
    policy: Policy,
    chosen: &'a [Candidate],
    /// `None` if the running transaction leaves its key. Whether the key has an expiry, the bytes of the nodes
    /// that go with the key, and the nodes that are removed later.
    deleted: Option<(bool, usize, BuriedNodes)>,
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
        let Candidate { db, used, expire_at_ms, .. } = &self.chosen[i];
        let Some(value) = tx.value(Slot(0)) else { return Ok(()) };
        let now_expires = Entry::new(value).expire_at_ms;
        let expires = now_expires.is_some();
        let was_used = self.policy.needs_marks() && tx.access(Slot(0)) != Some(used.access);
        if was_used || self.policy.is_volatile && now_expires != *expire_at_ms {
            return Ok(());
        }
        tx.use_reserve();
        let remains = self.keyspace.remains(*db);
        let nodes = bury(tx, Slot(0), remains)?;
        let (count, bytes) = nodes.left(tx, Slot(0), remains.nodes)?;
        tx.delete_slot(Slot(0))?;
        self.deleted = Some((expires, nodes.removed_bytes, BuriedNodes { count, bytes }));
        Ok(())
    }

    fn ended(&mut self, i: usize, result: Result<Option<Stamp>, TxError>) {
        // A key whose deletion is refused may be drawn again.
        let (Ok(Some(stamp)), Some(deleted)) = (result, self.deleted.take()) else { return };
        let (expires, node_bytes, buried) = deleted;
        self.counters.evicted.add(1);
        if expires {
            self.counters.expiring_changed(self.chosen[i].db, -1);
        }
        self.given_up.keys += 1;
        self.given_up.bytes += self.chosen[i].used.bytes + node_bytes;
        self.given_up.buried.add(buried);
        self.given_up.last = Some(stamp);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stillpoint::{Config, Engine, TableId};
    use stillpoint_io::SimDisk;

    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn keyspace() -> (Keyspace, Session, TableId) {
        let mut config = Config::new("unused");
        (config.checkpoint, config.journal) = ("none".to_owned(), "none".to_owned());
        config.environment.disk = Some(Arc::new(SimDisk::new(1)));
        config.environment.background = false;
        let engine = Arc::new(Engine::open(config).expect("the engine opens"));
        let session = engine.session().expect("a session");
        let keyspace = Keyspace::open(engine, 1).expect("tables");
        let table = keyspace.table(0);
        (keyspace, session, table)
    }

    fn put(session: &mut Session, table: TableId, key: &[u8], expire_at_ms: u64) {
        session.transact(|tx| tx.put_until(table, key, b"value", expire_at_ms)).expect("memory");
    }

    fn policy(name: &str) -> Policy {
        Policy::named(name).expect("a policy")
    }

    #[test]
    fn the_best_candidates_are_kept_once() {
        fn met(score: u64, key: &[u8]) -> Met<'_> {
            let used = RecordUse { bytes: 1, access: 0 };
            Met { score, db: 0, key, used, expire_at_ms: None, has_nodes: false }
        }
        let mut candidates = Vec::new();
        for n in 0..40u64 {
            let key = [n as u8 % 30];
            keep(&mut candidates, &[], met(n * 7 % 30, &key));
        }
        let scores: Vec<u64> = candidates.iter().map(|candidate| candidate.score).collect();
        assert!(scores.is_sorted() && scores.len() == CANDIDATES_MAX, "{scores:?}");
        assert_eq!(scores.last(), Some(&29));
        let mut keys: Vec<_> = candidates.iter().map(|candidate| candidate.key.clone()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), CANDIDATES_MAX, "no key twice");
        let chosen = [candidates.pop().expect("some")];
        keep(&mut candidates, &chosen, met(99, &chosen[0].key));
        assert!(candidates.iter().all(|candidate| candidate.score < 99), "it is given up already");
    }

    /// One key in a great many has an expiry. No call looks at all of them, and some calls find it. A whole
    /// search in vain is not repeated.
    #[test]
    fn a_rare_key_with_an_expiry_is_found_in_the_end() {
        const KEYS: u32 = 300_000;
        let (keyspace, mut session, table) = keyspace();
        for keys in (0..KEYS).collect::<Vec<_>>().chunks(1_000) {
            let put = |tx: &mut Tx<'_>| {
                keys.iter().try_for_each(|key| tx.put(table, &key.to_be_bytes(), b"value"))
            };
            session.transact(put).expect("memory");
        }
        keyspace.eviction.set_policy(policy("volatile-random"), NOW_MS);
        let mut victims = Victims::new(1, policy("volatile-random"));
        let mut search = |session: &mut Session| -> (u32, u64) {
            for calls in 1..30 {
                let given_up = victims.delete_some((session, &keyspace), 0, 1 << 20, NOW_MS);
                if given_up.chosen > 0 || !given_up.searches {
                    return (calls, given_up.keys as u64);
                }
            }
            panic!("the search has no end");
        };
        for round in 0..3u8 {
            let rare = [round; 9];
            put(&mut session, table, &rare, NOW_MS + 60_000);
            keyspace.counts.of(0).expiring_changed(0, 1);
            assert_eq!(search(&mut session).1, 1, "round {round}");
            assert_eq!(session.read(table, &rare, &mut Vec::new()).expect("a table"), None);
            // The rest of this search, and another one, which meets no key.
            let (calls, keys) = search(&mut session);
            assert!(calls > 3 && keys == 0, "{calls} calls for a whole search, {keys} keys");
            assert_eq!(search(&mut session), (1, 0), "the next search would be vain");
        }
        assert_eq!(keyspace.len(0), u64::from(KEYS));
    }

    /// The expiry of a candidate changes after it was drawn. It is left alone.
    #[test]
    fn a_key_whose_expiry_was_changed_is_left_alone() {
        for name in ["volatile-ttl", "volatile-random"] {
            let (keyspace, mut session, table) = keyspace();
            for key in 0..200u32 {
                put(&mut session, table, &key.to_be_bytes(), NOW_MS + u64::from(key) * 1_000);
            }
            keyspace.eviction.set_policy(policy(name), NOW_MS);
            let mut victims = Victims::new(2, policy(name));
            let (mut left_alone, mut deleted) = (0, 0);
            for round in 0..40 {
                if let Some(best) = victims.candidates.last().map(|best| best.key.clone()) {
                    put(&mut session, table, &best, NOW_MS + 1_000_000_000 + round);
                    let given_up = victims.delete_some((&mut session, &keyspace), 0, 1, NOW_MS);
                    let found = session.read(table, &best, &mut Vec::new()).expect("a table");
                    // A key that was drawn once more may be given up.
                    left_alone += u64::from(given_up.keys == 0);
                    assert!(found.is_some() || name == "volatile-random", "{name}: {best:?}");
                }
                let given_up = victims.delete_some((&mut session, &keyspace), 0, 1, NOW_MS);
                deleted += given_up.keys as u64;
            }
            assert!(left_alone > 10 && deleted > 10, "{name}: {left_alone}, {deleted}");
        }
    }
}
