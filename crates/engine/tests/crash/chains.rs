//! Tests of chains of checkpoints: restarts between their checkpoints, and merges that are cut off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint::{Durability, Engine, Session, TableId};
use stillpoint_format::manifest::{CheckpointKind, Manifest};
use stillpoint_format::names;
use stillpoint_io::{Call, Disk, Fault, FaultPlan, Lasts, SeededRng, SimDisk, read_all};

use crate::history::State;
use crate::lives::{configure, open_and_read};
use crate::settings::Setting;
use crate::stage::{Guest, Moment, elsewhere, while_visiting};

const CHANGES: Setting =
    Setting { scheme: "calc:partial", journal: "redo", durability: Durability::Strict };
pub(crate) const KEYS: u8 = 100;

pub(crate) fn open(
    disk: &SimDisk,
    keep: usize,
    merge_after: Option<usize>,
) -> (Engine, TableId, Session) {
    let mut config = configure(&CHANGES, disk, &SeededRng::new(1), 4);
    config.keep_checkpoints = keep;
    config.merge_after = merge_after;
    let engine = Engine::open(config).expect("opens");
    let table = engine.table("things").expect("a table");
    let session = engine.session().expect("a session");
    (engine, table, session)
}

pub(crate) fn put(session: &mut Session, table: TableId, key: u8, value: &[u8]) {
    session.transact(|tx| tx.put(table, &[key], value)).expect("commits");
}

fn delete(session: &mut Session, table: TableId, key: u8) {
    assert!(session.transact(|tx| tx.delete(table, &[key])).expect("commits"));
}

fn fill(session: &mut Session, table: TableId) {
    (0..KEYS).for_each(|key| put(session, table, key, b"old"));
}

pub(crate) fn manifest(disk: &SimDisk) -> Manifest {
    let bytes = read_all(disk, Path::new(names::MANIFEST)).expect("reads");
    Manifest::decode(&bytes).expect("a MANIFEST")
}

pub(crate) fn kinds(disk: &SimDisk) -> Vec<(u64, CheckpointKind)> {
    manifest(disk).checkpoints.iter().map(|entry| (entry.epoch, entry.kind)).collect()
}

pub(crate) fn recovered(disk: &SimDisk) -> State {
    open_and_read(&CHANGES, disk, &SeededRng::new(9)).expect("recovers").state
}

pub(crate) fn value(found: &State, table: TableId, key: u8) -> Option<&[u8]> {
    found.get(&(table.0, vec![key])).map(|value| &*value.1)
}

/// The first checkpoint of changes after a restart has the replayed writes and deletions. The
/// checkpoint's publication frees the log of these writes.
pub(crate) fn a_chain_goes_on_after_a_restart() {
    let disk = SimDisk::new(1);
    let (engine, table, mut session) = open(&disk, 1, None);
    fill(&mut session, table);
    engine.checkpoint().expect("a full one");
    put(&mut session, table, 1, b"new");
    delete(&mut session, table, 2);
    put(&mut session, table, 200, b"and another, which needs a cell");
    drop((session, engine));
    let disk = disk.crash(1);
    let (engine, _, session) = open(&disk, 1, None);
    let done = engine.checkpoint().expect("one of changes");
    assert_eq!((done.kind, done.records), (CheckpointKind::Partial, 3));
    drop((session, engine));
    let found = recovered(&disk.crash(2));
    assert_eq!(value(&found, table, 1), Some(&b"new"[..]));
    assert_eq!(value(&found, table, 2), None, "it was deleted");
    assert!(value(&found, table, 200).is_some() && found.len() == usize::from(KEYS));
}

/// Checkpoints of changes are merged without the full checkpoint, which still has a key that the
/// changes delete.
pub(crate) fn a_merge_of_changes_keeps_deletions() {
    let disk = SimDisk::new(1);
    let (engine, table, mut session) = open(&disk, 1, Some(2));
    fill(&mut session, table);
    engine.checkpoint().expect("a full one");
    delete(&mut session, table, 7);
    put(&mut session, table, 8, b"first");
    put(&mut session, table, 201, b"new");
    engine.checkpoint().expect("one of changes");
    put(&mut session, table, 8, b"second");
    delete(&mut session, table, 201);
    // The chain is merged as soon as this checkpoint is published.
    engine.checkpoint().expect("one of changes");
    let kinds: Vec<_> = kinds(&disk).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [CheckpointKind::Full, CheckpointKind::Partial]);
    drop((session, engine));
    let found = recovered(&disk.crash(2));
    assert_eq!(value(&found, table, 7), None, "it was deleted");
    assert_eq!(value(&found, table, 8), Some(&b"second"[..]));
    assert_eq!(value(&found, table, 201), None, "it came and went");
    assert_eq!(found.len(), usize::from(KEYS) - 1);
}

/// A full checkpoint and four of changes; the state is that of the last one.
pub(crate) fn chain_of_five(disk: &SimDisk, keep: usize) -> (Engine, TableId, Session) {
    let (engine, table, mut session) = open(disk, keep, None);
    fill(&mut session, table);
    engine.checkpoint().expect("a full one");
    for round in 0..4 {
        put(&mut session, table, round, b"changed");
        delete(&mut session, table, 10 + round);
        put(&mut session, table, 50, &[round; 30]);
        engine.checkpoint().expect("one of changes");
    }
    assert_eq!(kinds(disk).len(), 5);
    (engine, table, session)
}

/// A merge leaves each point that the settings keep.
pub(crate) fn a_merge_leaves_the_points_that_are_kept() {
    for keep in 1..=5 {
        let disk = SimDisk::new(1);
        let (engine, _, session) = chain_of_five(&disk, keep);
        let before = kinds(&disk);
        let merged = engine.merge_checkpoints().expect("merges");
        assert_eq!(merged.map(|done| done.merged), (keep < 5).then_some(6 - keep), "keep {keep}");
        let after = kinds(&disk);
        let points = |of: &[(u64, CheckpointKind)]| -> Vec<u64> {
            of[of.len() - keep..].iter().map(|entry| entry.0).collect()
        };
        assert_eq!(points(&after), points(&before), "keep {keep}");
        assert_eq!(after[0].1, CheckpointKind::Full);
        assert_eq!(after.len(), keep);
        drop((session, engine));
    }
}

/// Somebody holds the files while checkpoints and merges go on. The files of each checkpoint that the
/// MANIFEST named meanwhile are there, until the last hold is dropped.
pub(crate) fn held_files_stay() {
    let disk = SimDisk::new(1);
    let (engine, table, mut session) = chain_of_five(&disk, 1);
    let held = engine.hold_files("backup").expect("nobody else");
    let refused = engine.hold_files("backup").expect_err("the name is taken");
    assert!(refused.to_string().contains("backup"), "{refused}");
    let other = engine.hold_files("another").expect("another name");
    let holders = engine.stats().checkpoints.holders;
    let names: Vec<&str> = holders.iter().map(|holder| &*holder.name).collect();
    assert_eq!(names, ["backup", "another"]);
    let mut named = manifest(&disk).checkpoints;
    put(&mut session, table, 60, b"before the merge");
    engine.merge_checkpoints().expect("merges").expect("something");
    for round in 61..64 {
        put(&mut session, table, round, b"after the merge");
        engine.checkpoint().expect("published");
        named.extend(manifest(&disk).checkpoints);
    }
    engine.merge_checkpoints().expect("merges").expect("something");
    drop(other);
    for entry in &named {
        let dir = PathBuf::from(names::checkpoint_dir(entry.serial, entry.kind));
        for part in &entry.parts {
            assert!(disk.exists(&dir.join(&part.file)).expect("looks"), "{dir:?} is gone");
        }
    }
    drop(held);
    assert!(engine.stats().checkpoints.holders.is_empty());
    let left = disk.list(Path::new(names::CHECKPOINT_DIR)).expect("lists");
    assert_eq!(left.len(), kinds(&disk).len(), "the rest is removed at once: {left:?}");
    drop((session, engine));
}

/// Somebody who holds the files for a moment, at the n-th change of a checkpoint's directory.
struct Holds {
    engine: Arc<Engine>,
    at: u32,
    seen: u32,
}

impl Guest for Holds {
    fn act(&mut self, moment: Moment) {
        // The catalog's lock may be held, so another thread waits for it.
        self.seen += u32::from(moment == Moment::Quiet);
        if moment == Moment::Quiet && self.seen == self.at {
            let engine = self.engine.clone();
            elsewhere(move || drop(engine.hold_files("backup").expect("nobody else")));
        }
    }
}

/// A hold is dropped while a checkpoint is under way. The files of that checkpoint stay.
pub(crate) fn a_hold_is_dropped_in_the_middle_of_a_checkpoint() {
    // The first two moments are those of the MANIFEST that reserves the epoch.
    for at in 3..=4 {
        let disk = SimDisk::new(1);
        let (engine, table, mut session) = open(&disk, 1, None);
        fill(&mut session, table);
        engine.checkpoint().expect("a full one");
        put(&mut session, table, 1, b"new");
        let engine = Arc::new(engine);
        let guest = Holds { engine: engine.clone(), at, seen: 0 };
        let (taken, guest) = while_visiting(Box::new(guest), || engine.checkpoint());
        let guest: Box<dyn std::any::Any> = guest;
        assert!(guest.downcast::<Holds>().expect("the guest").seen >= at, "moment {at}");
        taken.unwrap_or_else(|error| panic!("moment {at}: {error}"));
        drop((session, engine));
        let found = recovered(&disk.crash(1));
        assert_eq!(value(&found, table, 1), Some(&b"new"[..]), "moment {at}");
        assert_eq!(found.len(), usize::from(KEYS), "moment {at}");
    }
}

/// Two checkpoints of changes fail, one after the other: at the same call, with other changes before
/// each. The next one has what both lacked. If it is in doubt which MANIFEST is on the disk, the store
/// has failed, and a start finds either. No epoch is used twice.
pub(crate) fn failures_in_a_row_lose_no_mark() {
    let mut failed = [0; 2];
    for call in [Call::CreateDir, Call::Open, Call::Write, Call::Sync, Call::Rename, Call::SyncDir]
    {
        for nth in 1..=8 {
            let context = format!("{call:?} {nth}");
            let disk = SimDisk::new(nth);
            let (engine, table, mut session) = open(&disk, 1, None);
            fill(&mut session, table);
            let first = engine.checkpoint().expect("a full one").epoch;
            let (mut failures, mut dead) = (0, false);
            for round in 0..2 {
                put(&mut session, table, round, b"changed");
                delete(&mut session, table, 10 + round);
                let (fault, lasts) = (Fault::InputOutput, Lasts::Once);
                disk.inject(FaultPlan { calls: vec![call], nth, fault, lasts });
                failures += usize::from(engine.checkpoint().is_err());
                disk.clear_faults();
                dead = engine.health().is_err();
                if dead {
                    break;
                }
            }
            failed[usize::from(dead)] += failures;
            let rounds = if dead { failures as u8 } else { 2 };
            drop((session, engine));
            let disk = if dead { disk.crash(nth) } else { disk };
            let (engine, _, mut session) = open(&disk, 1, None);
            put(&mut session, table, 5, b"and another");
            let done = engine.checkpoint().expect("a sound disk");
            assert!(done.epoch > first, "{context}");
            drop((session, engine));
            let epochs: Vec<u64> = kinds(&disk).iter().map(|entry| entry.0).collect();
            assert!(epochs.is_sorted_by(|a, b| a < b), "{context}: {epochs:?}");
            let found = recovered(&disk.crash(nth));
            for round in 0..rounds {
                assert_eq!(value(&found, table, round), Some(&b"changed"[..]), "{context}");
                assert_eq!(value(&found, table, 10 + round), None, "{context}");
            }
            assert_eq!(value(&found, table, 5), Some(&b"and another"[..]), "{context}");
            assert_eq!(found.len(), usize::from(KEYS - rounds), "{context}");
        }
    }
    assert!(failed[0] >= 20 && failed[1] > 0, "{failed:?} attempts failed");
}
