//! Several transactions that stay open, with savepoints, beside each other's ranges. All are steps of one thread,
//! so a map says what each of them must find.

use std::collections::BTreeMap;

use stillpoint_io::{Rng, SeededRng};
use stillpoint_siren::Removes;
use stillpoint_txn::{TableKind, TxError};

use super::{Map, Positions, Session, TABLE, Tx, World, here, next_number};

const SESSIONS: usize = 3;
const KEYS: u64 = 20;
const TURNS: u64 = 500;

/// What a transaction has written. `None` is a deletion.
type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// First and last key of a range.
type Ends = (Vec<u8>, Vec<u8>);

fn key(number: u64) -> Vec<u8> {
    format!("key {number:02}").into_bytes()
}

fn between(map: &Map, (first, last): &Ends) -> Map {
    let records = map.range::<Vec<u8>, _>(first..=last);
    records.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn apply(writes: &Writes, to: &mut Map) {
    for (key, value) in writes.clone() {
        match value {
            Some(value) => drop(to.insert(key, value)),
            None => drop(to.remove(&key)),
        }
    }
}

/// An open transaction.
struct Open {
    session: Session,
    writes: Writes,
    /// For each savepoint, the number of operations before it, and the writes.
    savepoints: Vec<(usize, Writes)>,
    /// What the transaction has read, as it was committed then. Nobody changes it before the transaction ends.
    seen: Vec<(Ends, Map)>,
}

impl Open {
    fn begin(mut session: Session) -> Self {
        session.begin(next_number());
        Self { session, writes: Writes::new(), savepoints: Vec::new(), seen: Vec::new() }
    }

    /// Takes a random step. `Err` after a conflict.
    fn step(&mut self, rng: &SeededRng, committed: &Map) -> Result<(), TxError> {
        let (one, other) = (rng.below(KEYS), rng.below(KEYS));
        match rng.below(12) {
            0 | 1 => self.get(key(one), committed),
            2..5 => {
                let ends = (key(one.min(other)), key(one.max(other)));
                self.range(ends, rng.below(2) == 0, committed)
            }
            5..10 => {
                let value = (rng.below(5) > 1).then(|| vec![one as u8; rng.below(150) as usize]);
                Tx { session: &mut self.session, waits: false }.put(&key(one), value.as_deref())?;
                self.writes.insert(key(one), value);
                Ok(())
            }
            10 => {
                self.session.part.begin_statement();
                self.savepoints.push((self.session.log.done.len(), self.writes.clone()));
                Ok(())
            }
            _ => {
                self.roll_back(rng);
                Ok(())
            }
        }
    }

    fn get(&mut self, key: Vec<u8>, committed: &Map) -> Result<(), TxError> {
        let found = Tx { session: &mut self.session, waits: false }.get(&key)?;
        let mut expected = committed.clone();
        apply(&self.writes, &mut expected);
        assert_eq!(found.as_ref(), expected.get(&key), "{key:?}");
        let ends = (key.clone(), key);
        self.seen.push((ends.clone(), between(committed, &ends)));
        Ok(())
    }

    fn range(&mut self, ends: Ends, is_descending: bool, committed: &Map) -> Result<(), TxError> {
        let bounds = &ends.0[..]..=&ends.1[..];
        let mut tx = Tx { session: &mut self.session, waits: false };
        let found = tx.read(bounds, usize::MAX, is_descending)?;
        let mut expected = committed.clone();
        apply(&self.writes, &mut expected);
        assert_eq!(found, between(&expected, &ends), "{ends:?}");
        self.seen.push((ends.clone(), between(committed, &ends)));
        Ok(())
    }

    /// Rolls back to a random savepoint, which stays.
    fn roll_back(&mut self, rng: &SeededRng) {
        if self.savepoints.is_empty() {
            return;
        }
        let to = rng.below(self.savepoints.len() as u64) as usize;
        self.savepoints.truncate(to + 1);
        let (operations, writes) = &self.savepoints[to];
        self.session.undo_from(*operations);
        self.session.part.begin_statement();
        self.writes = writes.clone();
    }
}

/// What whoever takes no locks finds: the committed records.
fn check_unlocked(world: &World, committed: &Map) {
    let mut keys = Vec::new();
    here(world.kind.keys(TABLE, 0, usize::MAX, &mut keys)).expect("it lists");
    assert!(keys.iter().eq(committed.keys()), "{keys:?}");
    for number in 0..KEYS {
        let mut value = Vec::new();
        let found = here(world.kind.read(TABLE, &key(number), &mut value)).expect("it reads");
        assert_eq!(found.map(|_| &value), committed.get(&key(number)), "key {number}");
    }
}

fn life(seed: u64) {
    let rng = SeededRng::new(seed);
    let mut world = World::new([Removes::Pend, Removes::ToPages][seed as usize % 2]);
    let mut section: Option<(String, Positions)> = None;
    let mut committed = Map::new();
    let mut all: [Option<Open>; SESSIONS] = std::array::from_fn(|_| None);
    for turn in 0..TURNS {
        let at = rng.below(SESSIONS as u64) as usize;
        let session = || world.session(at as u8);
        let ends = match rng.below(40) {
            0 | 1 => Some(true),
            2 => Some(false),
            3 => {
                section = Some(world.checkpoint(true));
                None
            }
            4 if rng.below(4) == 0 => {
                // What is open is undone by the start.
                std::mem::take(&mut all).into_iter().for_each(std::mem::forget);
                world = world.restart(section.as_ref(), seed * TURNS + turn);
                assert_eq!(world.content(), committed, "seed {seed}, turn {turn}");
                None
            }
            _ => {
                let step = all[at].get_or_insert_with(|| Open::begin(session()));
                let is_ok = step.step(&rng, &committed).is_ok();
                let others = all.iter().flatten().count() - 1;
                assert!(is_ok || others > 0, "seed {seed}, turn {turn}: a conflict with nobody");
                (!is_ok && rng.below(2) == 0).then_some(false)
            }
        };
        if let Some(commits) = ends
            && let Some(mut open) = all[at].take()
        {
            open.session.end(commits);
            if commits {
                apply(&open.writes, &mut committed);
            }
            check_unlocked(&world, &committed);
        }
        for (ends, seen) in all.iter().flatten().flat_map(|open| &open.seen) {
            let now = between(&committed, ends);
            assert_eq!(&now, seen, "seed {seed}, turn {turn}: somebody has changed {ends:?}");
        }
    }
    all.iter_mut().flatten().for_each(|open| open.session.end(false));
    assert_eq!(world.content(), committed, "seed {seed}");
}

pub(crate) fn open_transactions_are_like_a_map() {
    (1..=24).for_each(life);
}
