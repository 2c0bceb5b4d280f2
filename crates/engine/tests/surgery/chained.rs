//! Tests of chains of checkpoints: repairs of damaged links, and restores.

use std::path::{Path, PathBuf};

use stillpoint::{Config, Engine, Error, Session, TableId, offline};
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::manifest::{CheckpointEntry, Manifest};
use stillpoint_format::names;

use crate::store::{Files, Keys, config, directory, files, scan, serve};

/// A store with a chain, and the state at each point of consistency, by epoch.
#[derive(Default)]
pub(crate) struct Chain {
    pub(crate) now: Keys,
    points: Vec<(u64, Keys)>,
}

pub(crate) fn chain_config(dir: &Path) -> Config {
    let mut config = config(dir, 1);
    config.checkpoint = "calc:partial".to_owned();
    config.merge_after = None;
    config.keep_checkpoints = 1;
    config
}

pub(crate) fn open(dir: &Path) -> (Engine, TableId, Session) {
    let engine = Engine::open(chain_config(dir)).expect("opens");
    let table = engine.table("keys").expect("a table");
    let session = engine.session().expect("a session");
    (engine, table, session)
}

impl Chain {
    pub(crate) fn put(
        &mut self,
        (_, table, session): &mut (Engine, TableId, Session),
        key: u8,
        value: &[u8],
    ) {
        session.transact(|tx| tx.put(*table, &[key], value)).expect("commits");
        self.now.insert(vec![key], value.to_vec());
    }

    pub(crate) fn delete(&mut self, (_, table, session): &mut (Engine, TableId, Session), key: u8) {
        session.transact(|tx| tx.delete(*table, &[key])).expect("commits");
        self.now.remove(&[key][..]);
    }

    pub(crate) fn checkpoint(&mut self, (engine, ..): &(Engine, TableId, Session)) {
        let epoch = engine.checkpoint().expect("a checkpoint").epoch;
        self.points.push((epoch, self.now.clone()));
    }

    pub(crate) fn at(&self, epoch: u64) -> &Keys {
        &self.points.iter().find(|point| point.0 == epoch).expect("a point").1
    }
}

/// Three lives. The first life takes a full checkpoint and a checkpoint of changes. Each later life
/// takes one checkpoint of changes. Commits come before and after each checkpoint of changes. Each
/// checkpoint frees the logs of the lives before.
fn three_lives(dir: &Path) -> Chain {
    let mut chain = Chain::default();
    for life in 0..3u8 {
        let mut store = open(dir);
        if life == 0 {
            (0..40).for_each(|key| chain.put(&mut store, key, b"old"));
            chain.checkpoint(&store);
        }
        chain.put(&mut store, 1, &[life; 30]);
        chain.put(&mut store, 10 + life, b"before the checkpoint");
        chain.delete(&mut store, 20 + life);
        chain.checkpoint(&store);
        chain.put(&mut store, 2, &[life; 30]);
        chain.put(&mut store, 30 + life, b"after the checkpoint");
    }
    chain
}

/// The checkpoints that the MANIFEST names, oldest first.
pub(crate) fn entries(dir: &Path) -> Vec<CheckpointEntry> {
    offline::inspect(dir).expect("inspects").manifest.checkpoints
}

pub(crate) fn part_of(entry: &CheckpointEntry) -> PathBuf {
    Path::new(&names::checkpoint_dir(entry.serial, entry.kind)).join(&entry.parts[0].file)
}

/// Damages the first block of a part. The header stays intact.
fn spoil(all: &mut Files, entry: &CheckpointEntry) {
    all.get_mut(&part_of(entry)).expect("a part")[HEADER_BYTES + 50] ^= 1;
}

fn dumped(dir: &Path) -> Keys {
    let mut found = Keys::new();
    offline::dump(dir, None, &mut |_, key, value| {
        let mut bytes = Vec::new();
        value.copy_to(&mut bytes);
        found.insert(key.to_vec(), bytes);
        Ok(())
    })
    .expect("dumps");
    found
}

/// Repairs a directory that a start refuses, and reads it.
fn repaired(all: &Files, context: &str) -> (Keys, Vec<String>) {
    let dir = directory(all);
    let refused = Engine::open(chain_config(dir.path())).err();
    assert!(refused.is_some_and(|error| error.is_damage()), "{context}: it is served");
    let announced = offline::repair(dir.path(), false).expect(context);
    assert!(files(dir.path()) == *all, "{context}: changed");
    let done = offline::repair(dir.path(), true).expect(context);
    assert!(done.done && done.gives_up == announced.gives_up, "{context}: {done:?}");
    let checked = offline::check(dir.path()).expect(context);
    assert_eq!(checked.damage, Vec::<String>::new(), "{context}");
    let found = dumped(dir.path());
    serve(dir.path()).expect(context);
    (found, done.gives_up)
}

/// The damaged checkpoints have freed logs, so the logs that are left do not go on from what is
/// sound. Only the names of the files tell that logs were freed.
#[test]
fn a_repair_replays_no_log_across_a_gap() {
    let home = tempfile::tempdir().expect("a directory");
    let chain = three_lives(home.path());
    let (entries, sound) = (entries(home.path()), files(home.path()));
    assert_eq!(entries.len(), 4);
    // The damaged links, and the newest sound one.
    for (damaged, left) in [(2..4, Some(1)), (1..4, Some(0)), (3..4, Some(2)), (0..4, None)] {
        for manifest in [true, false] {
            let context = format!("links {damaged:?} damaged, MANIFEST {manifest}");
            let mut all = sound.clone();
            entries[damaged.clone()].iter().for_each(|entry| spoil(&mut all, entry));
            if !manifest {
                all.remove(Path::new("MANIFEST"));
            }
            let (found, told) = repaired(&all, &context);
            let expected = left.map_or_else(Keys::new, |at| chain.at(entries[at].epoch).clone());
            assert!(found == expected, "{context}: {found:?}, not {expected:?}; {told:#?}");
            assert!(told.iter().any(|what| what.contains("log")), "{context}: {told:#?}");
        }
    }
}

/// A damaged checkpoint that was never published has freed no log, so nothing is lost.
#[test]
fn a_repair_replays_a_log_that_reaches_back() {
    let home = tempfile::tempdir().expect("a directory");
    let mut chain = Chain::default();
    let mut store = open(home.path());
    (0..40).for_each(|key| chain.put(&mut store, key, b"old"));
    for round in 0..2 {
        chain.checkpoint(&store);
        chain.put(&mut store, round, b"new");
        chain.delete(&mut store, 20 + round);
    }
    let (mut all, before) = (files(home.path()), chain.now.clone());
    chain.checkpoint(&store);
    drop(store);
    let unpublished = entries(home.path()).pop().expect("a checkpoint");
    let part = part_of(&unpublished);
    all.insert(part.clone(), files(home.path()).remove(&part).expect("a part"));
    spoil(&mut all, &unpublished);
    all.remove(Path::new("MANIFEST"));
    let (found, told) = repaired(&all, "an unpublished checkpoint");
    assert!(found == before, "{found:?}; {told:#?}");
}

/// A merged link is damaged, and the lost MANIFEST alone knew which epochs the link had. The repair
/// gives up the links behind it, and does not take them for changes of the checkpoint before it.
#[test]
fn a_repair_does_not_bridge_a_damaged_merged_link() {
    let home = tempfile::tempdir().expect("a directory");
    let mut chain = Chain::default();
    let mut store = open(home.path());
    (0..40).for_each(|key| chain.put(&mut store, key, b"old"));
    chain.checkpoint(&store);
    for round in 0..3 {
        chain.put(&mut store, round, b"new");
        chain.delete(&mut store, 20 + round);
        chain.checkpoint(&store);
    }
    store
        .0
        .change_checkpoint_policy(|policy| policy.merge_after = Some(2))
        .expect("a sound policy");
    chain.put(&mut store, 5, b"in the last link");
    // A merge follows the publication.
    chain.checkpoint(&store);
    store.0.change_checkpoint_policy(|policy| policy.merge_after = None).expect("a sound policy");
    chain.put(&mut store, 6, b"in the link after the merged one");
    chain.checkpoint(&store);
    chain.put(&mut store, 7, b"in the log");
    drop(store);
    let entries = entries(home.path());
    assert_eq!(entries.len(), 3, "a full one, a merged one, and one more");
    let mut all = files(home.path());
    spoil(&mut all, &entries[1]);
    all.remove(Path::new("MANIFEST"));
    let (found, told) = repaired(&all, "merged");
    // The publication of the last link has freed the log before it.
    assert!(found == *chain.at(entries[0].epoch), "{found:?}; {told:#?}");
    let dir = names::checkpoint_dir(entries[2].serial, entries[2].kind);
    assert!(told.iter().any(|what| what.starts_with(&dir)), "{told:#?}");
}

/// Every point of a chain can be restored, with what it goes on from. The new store takes a
/// checkpoint of its own.
#[test]
fn each_point_of_a_chain_is_restored() {
    let home = tempfile::tempdir().expect("a directory");
    let mut chain = three_lives(home.path());
    let entries = entries(home.path());
    for (at, entry) in entries.iter().enumerate() {
        let target = tempfile::tempdir().expect("a directory");
        offline::restore(home.path(), entry.epoch, target.path()).expect("restores");
        let restored = self::entries(target.path());
        assert_eq!(restored, entries[..=at], "checkpoint {}", entry.epoch);
        chain.now = chain.at(entry.epoch).clone();
        assert!(serve(target.path()).expect("opens") == chain.now, "checkpoint {}", entry.epoch);
        let mut store = open(target.path());
        chain.put(&mut store, 3, b"after the restore");
        chain.delete(&mut store, 4);
        store.0.checkpoint().expect("a checkpoint");
        drop(store);
        assert!(serve(target.path()).expect("opens") == chain.now, "after {}", entry.epoch);
    }
}

/// An epoch that was merged away is named with the checkpoint that holds it, and with those that
/// `restore` offers.
#[test]
fn a_point_that_was_merged_away_is_told() {
    let home = tempfile::tempdir().expect("a directory");
    three_lives(home.path());
    let before: Vec<u64> = entries(home.path()).iter().map(|entry| entry.epoch).collect();
    offline::merge(home.path(), 2).expect("merges").expect("a chain");
    let after: Vec<u64> = entries(home.path()).iter().map(|entry| entry.epoch).collect();
    assert_eq!(after, before[2..], "two points are left");
    let target = tempfile::tempdir().expect("a directory");
    let restore = |epoch| offline::restore(home.path(), epoch, target.path());
    for gone in &before[..2] {
        let told = restore(*gone).expect_err("it is gone").to_string();
        let (into, offers) = (format!("merged away into {},", after[0]), format!("{after:?}"));
        assert!(told.contains(&into) && told.ends_with(&offers), "{told}");
    }
    let told = restore(after[1] + 1).expect_err("it never was").to_string();
    assert!(!told.contains("merged away") && told.contains("offers no checkpoint"), "{told}");
    restore(after[0]).expect("it is offered");
}

/// A copy is merged elsewhere, and the directory adopts the result, though it has gone on meanwhile. A
/// result is refused that is damaged, of other checkpoints, or over a point that is kept.
#[test]
fn what_was_merged_in_a_copy_is_adopted() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut chain = Chain::default();
    let mut store = open(dir);
    (0..9).for_each(|key| chain.put(&mut store, key, b"old"));
    for link in 0..3 {
        chain.checkpoint(&store);
        chain.put(&mut store, link, b"new");
        chain.delete(&mut store, link + 3);
    }
    drop(store);
    let copy = directory(&files(dir));
    let refusal = |keep| match offline::adopt(dir, copy.path(), keep) {
        Err(Error::NotAdopted { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refusal(1).contains("no checkpoint that"), "{}", refusal(1));
    offline::merge(copy.path(), 1).expect("merges").expect("a chain");
    // Another life after the copy was made.
    let mut store = open(dir);
    chain.put(&mut store, 8, b"newer");
    chain.checkpoint(&store);
    drop(store);
    let before = files(dir);
    assert!(refusal(3).contains("kept"), "{}", refusal(3));
    assert!(files(dir) == before, "a refusal changes nothing");
    // A damaged copy.
    let merged = &entries(copy.path())[0];
    let mut damaged = files(copy.path());
    let part = damaged.get_mut(&part_of(merged)).expect("its file");
    let middle = part.len() / 2;
    part[middle] ^= 1;
    let error = offline::adopt(dir, directory(&damaged).path(), 1).expect_err("it is damaged");
    assert!(error.is_damage(), "{error}");
    let serials = |dir: &Path| entries(dir).iter().map(|entry| entry.serial).collect::<Vec<_>>();
    assert_eq!(serials(dir).len(), 4);
    let done = offline::adopt(dir, copy.path(), 2).expect("adopts");
    assert_eq!((done.merged, entries(dir).len()), (3, 2));
    assert!(offline::check(dir).expect("a store").damage.is_empty());
    assert!(refusal(1).contains("no more"), "{}", refusal(1));
    let (engine, ..) = open(dir);
    assert!(scan(&engine) == chain.now, "the state is the same");
}

/// Another life of the same store has checkpoints of the same epochs, with other checksums.
#[test]
fn a_merge_of_other_checkpoints_is_not_adopted() {
    let (first, second) = (tempfile::tempdir(), tempfile::tempdir());
    let (first, second) = (first.expect("a directory"), second.expect("a directory"));
    drop(open(first.path()));
    drop(second);
    let second = directory(&files(first.path()));
    for (dir, value) in [(first.path(), b"one"), (second.path(), b"two")] {
        let (mut chain, mut store) = (Chain::default(), open(dir));
        (0..9).for_each(|key| chain.put(&mut store, key, value));
        chain.checkpoint(&store);
        chain.put(&mut store, 1, value);
        chain.checkpoint(&store);
    }
    offline::merge(second.path(), 1).expect("merges").expect("a chain");
    let refused = offline::adopt(first.path(), second.path(), 1).expect_err("another life");
    assert!(refused.to_string().contains("other checksums"), "{refused}");
    assert_eq!(entries(first.path()).len(), 2);
}

/// A chain is copied while it is merged away: the MANIFEST, then the checkpoints that it names. A restore
/// from the copy has the state at each of its points.
#[test]
fn a_held_chain_is_copied_and_restored() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut chain, mut store) = (Chain::default(), open(dir.path()));
    (0..9).for_each(|key| chain.put(&mut store, key, b"old"));
    for link in 0..4 {
        chain.checkpoint(&store);
        chain.put(&mut store, link, b"new");
        chain.delete(&mut store, link + 3);
    }
    let held = store.0.hold_files("backup").expect("nobody else");
    let manifest = Path::new(names::MANIFEST);
    let mut copied = Files::from([(manifest.to_owned(), files(dir.path())[manifest].clone())]);
    let named = entries(directory(&copied).path());
    store.0.merge_checkpoints().expect("merges").expect("a chain");
    chain.checkpoint(&store);
    let all = files(dir.path());
    for path in named.iter().map(part_of) {
        copied.insert(path.clone(), all[&path].clone());
    }
    drop(held);
    let copy = directory(&copied);
    for entry in &named {
        let to = tempfile::tempdir().expect("a directory");
        offline::restore(copy.path(), entry.epoch, to.path()).expect("restores");
        assert!(serve(to.path()).expect("a store") == *chain.at(entry.epoch), "{}", entry.epoch);
    }
}

/// A copy's MANIFEST says which files were merged. What it says of positions, generations and epochs is
/// not believed, since the directory knows that itself.
#[test]
fn an_adopted_merge_takes_only_its_files_from_the_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (mut chain, mut store) = (Chain::default(), open(dir));
    (0..9).for_each(|key| chain.put(&mut store, key, b"old"));
    for link in 0..3 {
        chain.checkpoint(&store);
        chain.put(&mut store, link, b"new");
        chain.delete(&mut store, link + 3);
    }
    drop(store);
    let newest = entries(dir).pop().expect("a checkpoint");
    let copy = directory(&files(dir));
    offline::merge(copy.path(), 1).expect("merges").expect("a chain");
    let mut changed = files(copy.path());
    let bytes = changed.get_mut(Path::new(names::MANIFEST)).expect("a MANIFEST");
    let mut manifest = Manifest::decode(bytes).expect("sound");
    let merged = &mut manifest.checkpoints[0];
    merged.generations.clear();
    merged.positions.iter_mut().flat_map(|of| &mut of.logs).for_each(|of| of.gsn += 1_000);
    merged.scheme = "calc".to_owned();
    *bytes = manifest.encode().expect("encodes");
    offline::adopt(dir, directory(&changed).path(), 1).expect("adopts");
    let adopted = entries(dir).pop().expect("a checkpoint");
    assert_eq!(adopted.generations, newest.generations);
    assert_eq!((adopted.positions, adopted.scheme), (newest.positions, newest.scheme));
    assert!(serve(dir).expect("a store") == chain.now);
}

/// A checkpoint without changes has a file with its epoch. So a MANIFEST that is made anew has it, and
/// those that go on from it.
#[test]
fn a_checkpoint_without_records_survives_the_loss_of_the_manifest() {
    let home = tempfile::tempdir().expect("a directory");
    let (mut chain, mut store) = (Chain::default(), open(home.path()));
    (0..40).for_each(|key| chain.put(&mut store, key, b"old"));
    chain.checkpoint(&store);
    chain.checkpoint(&store);
    (30..50).for_each(|key| chain.put(&mut store, key, b"new"));
    chain.checkpoint(&store);
    drop(store);
    let records: Vec<u64> = entries(home.path()).iter().map(|entry| entry.records).collect();
    assert_eq!(records, [40, 0, 20]);
    let mut all = files(home.path());
    all.remove(Path::new(names::MANIFEST));
    let (found, told) = repaired(&all, "an empty checkpoint");
    assert!(found == chain.now, "{found:?}; {told:#?}");
    assert!(!told.iter().any(|what| what.contains("checkpoint/")), "{told:#?}");
}

/// A restore that is killed at any of its last steps is begun again. Checkpoints that are not those of
/// a restore are never removed.
#[test]
fn a_killed_restore_is_begun_again() {
    let home = tempfile::tempdir().expect("a directory");
    let chain = three_lives(home.path());
    let epoch = entries(home.path()).last().expect("a checkpoint").epoch;
    let whole = tempfile::tempdir().expect("a directory");
    offline::restore(home.path(), epoch, whole.path()).expect("restores");
    let whole = files(whole.path());
    let is_part = |path: &Path| path.starts_with(names::CHECKPOINT_DIR);
    let in_copy = |path: &Path| Path::new("restoring").join(path);
    // Nothing is moved, or the checkpoints are.
    for moved in [false, true] {
        let left = whole.iter().map(|(path, bytes)| match moved && is_part(path) {
            true => (path.clone(), bytes.clone()),
            false => (in_copy(path), bytes.clone()),
        });
        let target = directory(&left.collect());
        offline::restore(home.path(), epoch, target.path())
            .unwrap_or_else(|error| panic!("moved {moved}: {error}"));
        assert!(serve(target.path()).expect("a store") == *chain.at(epoch), "moved {moved}");
    }
    let lost: Files = whole
        .iter()
        .filter(|(path, _)| is_part(path))
        .map(|(p, b)| (p.clone(), b.clone()))
        .collect();
    let target = directory(&lost);
    let refused = offline::restore(home.path(), epoch, target.path()).expect_err("not empty");
    assert!(matches!(refused, Error::NotEmpty(_)), "{refused}");
    assert!(files(target.path()) == lost, "nothing is removed");
}
