//! Collections that are built before their key has them: crashes, changes and flushes meanwhile. So for the
//! removal of deleted ones.

use stillpoint::{Batch, Config, Durability, KeySet, Mode, Session, Stamp, Tx, TxError};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use super::alone::Alone;
use super::crash::verified;
use crate::error::CmdError;
use crate::keyspace::{Contents, Draft, Keys, Kind, LoopKeys, NewElements, Reclaimer, Written};
use crate::planted::{Bug, plant};

const SOURCE: &[u8] = b"source";
const TARGET: &[u8] = b"target";
/// Members of the collections, enough for several transactions.
const MEMBERS: usize = 9_000;

/// Runs a closure as one transaction that reads the source and writes the target.
struct Run<'a, F> {
    alone: &'a Alone,
    body: F,
    result: Result<(), CmdError>,
}

impl<F: FnMut(&mut Tx<'_>) -> Result<(), CmdError>> Batch for Run<'_, F> {
    fn len(&self) -> usize {
        1
    }

    fn declare(&mut self, _: usize, keys: &mut KeySet) {
        self.alone.keyspace.declare(keys, 0, SOURCE, Mode::Read, 0);
        self.alone.keyspace.declare(keys, 0, TARGET, Mode::Write, 0);
    }

    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.result = (self.body)(tx);
        self.result.clone().map_err(|_| TxError::abandon("it is rolled back"))
    }

    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        if result.is_err() && self.result.is_ok() {
            self.result = Err(CmdError::fixed("ERR the commit was refused"));
        }
    }
}

fn run(
    (alone, session): (&Alone, &mut Session),
    body: impl FnMut(&mut Tx<'_>) -> Result<(), CmdError>,
) -> Result<(), CmdError> {
    let mut batch = Run { alone, body, result: Ok(()) };
    session.execute(&mut batch);
    batch.result
}

fn members(seed: u64) -> Contents {
    let rng = SeededRng::new(seed);
    let mut contents = Contents::default();
    for i in 0..MEMBERS {
        let score = (1 << 63 | rng.below(500)).to_be_bytes();
        contents.push_parts(&[&score, format!("member:{i:06}").as_bytes()]);
    }
    contents
}

/// A draft of a sorted set at the target, by a command that has read the source.
fn draft(alone: &Alone, session: &mut Session, local: &mut LoopKeys) -> Box<Draft> {
    let contents = members(7);
    local.drafting = alone.keyspace.drafting();
    local.drafting.keys = 2;
    let made = run((alone, session), |tx| {
        let mut keys = Keys::new(&alone.keyspace, local, 0, 0);
        keys.store(tx, 1, &NewElements::of(Kind::SORTED_SET, &contents))?;
        Err(CmdError::DRAFTED)
    });
    assert_eq!(made, Err(CmdError::DRAFTED));
    local.drafting.made.take().expect("a large collection")
}

/// Gives the target its collection; false if the draft is out of date.
fn link(alone: &Alone, session: &mut Session, local: &mut LoopKeys, draft: &Draft) -> bool {
    let mut linked = false;
    let done = run((alone, session), |tx| {
        linked = Keys::new(&alone.keyspace, local, 0, 0).link(tx, draft)?;
        Ok(())
    });
    assert_eq!(done, Ok(()));
    linked
}

/// Removes all that is to be removed.
fn reclaim(alone: &Alone, session: &mut Session) {
    let mut reclaimer = Reclaimer::default();
    while reclaimer.step(session, &alone.keyspace) {}
}

fn alone(disk: &SimDisk, seed: u64) -> Alone {
    let mut config = Config::new("unused");
    config.checkpoint = ["calc", "calc:partial"][seed as usize % 2].to_owned();
    config.journal = "redo".to_owned();
    config.durability = Durability::Strict;
    config.logs = 2;
    Alone::over(config, disk.clone())
}

/// The reclaimer runs between any two steps, and the collection is whole.
fn the_reclaimer_leaves_drafts_alone() {
    let alone = alone(&SimDisk::new(1), 0);
    let mut session = alone.engine.session().expect("a session");
    let mut other = alone.engine.session().expect("another one");
    let mut local = alone.keyspace.loop_keys(0, &SeededRng::new(3));
    let mut first = draft(&alone, &mut session, &mut local);
    while first.step(&mut session, &alone.keyspace) == Written::Some {}
    assert!(link(&alone, &mut session, &mut local, &first));
    drop(first);
    let delete = |tx: &mut Tx<'_>| Ok(Keys::new(&alone.keyspace, &mut local, 0, 0).delete(tx, 1)?);
    assert_eq!(run((&alone, &mut session), delete), Ok(()));
    assert!(alone.keyspace.has_graves(), "so the reclaimer looks at all graves");
    let mut draft = draft(&alone, &mut session, &mut local);
    let mut steps = 1;
    while draft.step(&mut session, &alone.keyspace) == Written::Some {
        reclaim(&alone, &mut other);
        steps += 1;
    }
    assert!(steps > 4, "{steps}");
    assert!(!alone.keyspace.has_graves(), "a draft is no work for the reclaimer");
    reclaim(&alone, &mut other);
    assert!(link(&alone, &mut session, &mut local, &draft));
    drop(draft);
    reclaim(&alone, &mut other);
    let found = verified(&alone, &mut session);
    assert_eq!((found.damage, found.collections, found.graves), (vec![], 1, 0));
    assert_eq!(found.kinds[0].elements, MEMBERS as u64);
}

/// After a crash at any moment the key has the whole collection or none, and no node is left over.
fn a_crash_leaves_all_or_nothing() {
    for seed in 0..12 {
        let (disk, rng) = (SimDisk::new(seed), SeededRng::new(seed));
        let alone = alone(&disk, seed);
        let mut session = alone.engine.session().expect("a session");
        // The command may end on another thread, with another log.
        let mut other = alone.engine.session().expect("another one");
        let mut local = alone.keyspace.loop_keys(0, &rng);
        let mut draft = draft(&alone, &mut session, &mut local);
        let mut written = Written::Some;
        for _ in 0..rng.below(14) {
            if rng.below(8) == 0 {
                alone.engine.checkpoint().expect("a checkpoint");
            }
            if written == Written::Some {
                written = draft.step(&mut session, &alone.keyspace);
            }
        }
        let last = if rng.below(2) == 0 { &mut session } else { &mut other };
        if written == Written::All {
            assert!(link(&alone, last, &mut local, &draft));
        }
        if rng.below(2) == 0 {
            last.flush().expect("a sound disk");
        }
        crashed(&disk.crash_image(rng.next_u64()), seed);
    }
}

fn crashed(disk: &SimDisk, seed: u64) {
    let alone = alone(disk, seed);
    let mut session = alone.engine.session().expect("a session");
    let before = verified(&alone, &mut session);
    assert_eq!(before.damage, [], "seed {seed}");
    assert_eq!(before.collections + before.graves, u64::from(before.nodes > 0), "seed {seed}");
    reclaim(&alone, &mut session);
    let found = verified(&alone, &mut session);
    assert_eq!((found.damage, found.graves), (vec![], 0), "seed {seed}");
    assert_eq!(found.collections, before.collections, "seed {seed}");
    let elements = found.kinds.first().map_or(0, |kind| kind.elements);
    assert_eq!(elements, MEMBERS as u64 * found.collections, "seed {seed}");
    assert!(found.collections > 0 || found.nodes == 0, "seed {seed}");
}

/// A crash that loses a deletion loses the removal of its nodes, too, although that is in another log.
fn a_reclaim_is_lost_with_its_deletion() {
    for seed in 0..8 {
        let (disk, rng) = (SimDisk::new(seed), SeededRng::new(seed));
        let alone = alone(&disk, seed);
        let mut session = alone.engine.session().expect("a session");
        let mut other = alone.engine.session().expect("another one");
        let mut local = alone.keyspace.loop_keys(0, &rng);
        let mut draft = draft(&alone, &mut session, &mut local);
        while draft.step(&mut session, &alone.keyspace) == Written::Some {}
        assert!(link(&alone, &mut session, &mut local, &draft));
        drop(draft);
        session.flush().expect("a sound disk");
        let delete =
            |tx: &mut Tx<'_>| Ok(Keys::new(&alone.keyspace, &mut local, 0, 0).delete(tx, 1)?);
        assert_eq!(run((&alone, &mut session), delete), Ok(()));
        let mut reclaimer = Reclaimer::default();
        assert!(reclaimer.step(&mut other, &alone.keyspace), "it has found the grave");
        // What the session has read is not what its commits depend on, and no flush is to wait for it.
        other.unflushed();
        for _ in 0..1 + rng.below(4) {
            assert!(reclaimer.step(&mut other, &alone.keyspace));
        }
        if rng.below(4) > 0 {
            other.flush().expect("a sound disk");
        }
        crashed(&disk.crash_image(rng.next_u64()), seed);
    }
}

/// A key of the command changes, databases are emptied, or memory is full: the draft is given up, and goes.
fn an_outdated_draft_is_given_up() {
    for what in 0..6 {
        let alone = alone(&SimDisk::new(what), 0);
        let mut session = alone.engine.session().expect("a session");
        let mut local = alone.keyspace.loop_keys(0, &SeededRng::new(what));
        let mut draft = draft(&alone, &mut session, &mut local);
        assert_eq!(draft.step(&mut session, &alone.keyspace), Written::Some);
        let key = if what == 0 { SOURCE } else { TARGET };
        match what {
            0 | 1 => session
                .transact(|tx| {
                    let table = alone.engine.table("db0").expect("a table");
                    tx.put(table, key, b"another")
                })
                .expect("memory"),
            2 => alone.keyspace.flush(&mut session, &[0]).expect("emptied"),
            3 => alone.keyspace.flush(&mut session, &(0..16).collect::<Vec<_>>()).expect("emptied"),
            4 => alone.keyspace.swap(&mut session, 0, 1).expect("exchanged"),
            _ => alone.engine.set_max_memory_bytes(1),
        }
        let written = loop {
            match draft.step(&mut session, &alone.keyspace) {
                Written::Some => {}
                end => break end,
            }
        };
        assert_eq!(written, if what < 2 { Written::All } else { Written::Refused }, "{what}");
        // A refused draft is linked by nobody.
        if what < 5 {
            assert!(!link(&alone, &mut session, &mut local, &draft), "{what}");
        }
        drop(draft);
        reclaim(&alone, &mut session);
        let found = verified(&alone, &mut session);
        assert_eq!((found.damage, found.nodes, found.graves), (vec![], 0, 0), "{what}");
    }
}

#[test]
fn drafts_are_left_alone_until_their_key_has_them() {
    the_reclaimer_leaves_drafts_alone();
}

#[test]
fn a_crash_in_the_middle_of_a_draft_leaves_nothing_of_it() {
    a_crash_leaves_all_or_nothing();
}

#[test]
fn nodes_are_removed_after_the_deletion_is_closed() {
    a_reclaim_is_lost_with_its_deletion();
}

#[test]
fn a_draft_is_not_used_once_a_key_of_its_command_has_changed() {
    an_outdated_draft_is_given_up();
}

#[test]
fn each_planted_bug_is_seen() {
    for (bug, check) in [
        (Bug::ConstructionSwept, the_reclaimer_leaves_drafts_alone as fn()),
        (Bug::DraftUngraved, a_crash_leaves_all_or_nothing),
        (Bug::DraftOutdated, an_outdated_draft_is_given_up),
        (Bug::FlushUnseen, an_outdated_draft_is_given_up),
        (Bug::ReclaimBeforeClosed, a_reclaim_is_lost_with_its_deletion),
    ] {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(check);
        plant(None);
        assert!(seen.is_err(), "{bug:?} is not seen");
    }
}
