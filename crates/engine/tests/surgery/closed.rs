//! Tests that a repair leaves an earlier state of the store, without some of the last transactions.
//! Each value was once written, and depends on nothing that is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stillpoint::{Engine, Session, TableId, offline};
use stillpoint_io::{Rng, SeededRng, seeded_rounds};

use crate::store::{Files, Keys, config, directory, files, judge};

const KEYS: u64 = 10;
/// Bytes of a value: number of the transaction that put it, number of the last one that changed it,
/// and padding.
const VALUE_BYTES: usize = 1500;

/// Reads and writes of a transaction: read keys with their last writers, and written keys.
struct Done {
    reads: Vec<(Vec<u8>, u64)>,
    writes: Vec<Vec<u8>>,
}

/// A store that works in several lives.
#[derive(Default)]
struct Work {
    /// Key → the transaction that put the key, and the one that changed it last.
    now: BTreeMap<Vec<u8>, (u64, u64)>,
    /// Key → all pairs that it has ever had in `now`.
    had: BTreeMap<Vec<u8>, Vec<(u64, u64)>>,
    done: Vec<Done>,
}

impl Work {
    fn commit(&mut self, session: &mut Session, table: TableId, steps: &[(&[u8], Step)]) {
        let number = self.done.len() as u64 + 1;
        let mut done = Done { reads: Vec::new(), writes: Vec::new() };
        let committed = session.transact(|tx| {
            for &(key, step) in steps {
                match step {
                    Step::Read => drop(tx.get(table, key)?),
                    Step::Patch => tx.patch(table, key, 8, &number.to_le_bytes())?,
                    Step::Put => {
                        let mut value = vec![0; VALUE_BYTES];
                        value[..8].copy_from_slice(&number.to_le_bytes());
                        value[8..16].copy_from_slice(&number.to_le_bytes());
                        tx.put(table, key, &value)?;
                    }
                }
            }
            Ok(())
        });
        committed.expect("commits");
        for &(key, step) in steps {
            let before = self.now.get(key).copied().unwrap_or_default();
            if step != Step::Put {
                done.reads.push((key.to_vec(), before.1));
            }
            if step != Step::Read {
                let put = if step == Step::Put { number } else { before.0 };
                self.now.insert(key.to_vec(), (put, number));
                self.had.entry(key.to_vec()).or_default().push((put, number));
                done.writes.push(key.to_vec());
            }
        }
        self.done.push(done);
    }

    fn random(&mut self, rng: &SeededRng, session: &mut Session, table: TableId) {
        let key = || vec![b'a' + rng.below(KEYS) as u8];
        let (read, write, other) = (key(), key(), key());
        let is_there = self.now.contains_key(&write) && rng.below(2) == 0;
        let step = if is_there { Step::Patch } else { Step::Put };
        let mut steps: Vec<(&[u8], Step)> = vec![(&write, step)];
        if read != write {
            steps.push((&read, Step::Read));
        }
        if other != write && other != read {
            steps.push((&other, Step::Put));
        }
        self.commit(session, table, &steps);
    }

    /// Runs a few lives of a store. The last life ends in a crash.
    fn live(&mut self, rng: &SeededRng, dir: &Path, lives: u64) {
        let logs = 1 + rng.below(2) as usize;
        let keep = 1 + rng.below(2) as usize;
        for life in 0..lives {
            let mut config = config(dir, logs);
            config.keep_checkpoints = keep;
            let engine = Engine::open(config).expect("opens");
            let table = engine.table("keys").expect("a table");
            let session = |_| engine.session().expect("a session");
            let mut sessions: Vec<Session> = (0..logs).map(session).collect();
            for _ in 0..rng.below(25) {
                if rng.below(10) == 0 {
                    engine.checkpoint().expect("a checkpoint");
                }
                let log = rng.below(logs as u64) as usize;
                self.random(rng, &mut sessions[log], table);
            }
            drop(sessions);
            if life + 1 < lives && rng.below(2) == 0 {
                engine.close().expect("closes");
            }
        }
    }

    /// Checks that each found value was once written, and that no dependency is missing.
    fn confirm(&self, found: &Keys, context: &str) {
        let mut writer = BTreeMap::new();
        for (key, value) in found {
            let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("8"));
            let pair = (number(0), number(8));
            let had = self.had.get(key).is_some_and(|had| had.contains(&pair));
            assert!(had, "{context}: {key:?} is {pair:?}, which it never was");
            writer.insert(key, pair.1);
        }
        let at = |key: &Vec<u8>| writer.get(key).copied().unwrap_or(0);
        for (number, done) in (1..).zip(&self.done) {
            if done.writes.iter().any(|key| at(key) == number) {
                let whole = done.writes.iter().all(|key| at(key) >= number);
                let closed = done.reads.iter().all(|(key, seen)| at(key) >= *seen);
                assert!(whole && closed, "{context}: {number} is there without what it rests on");
            }
        }
    }

    /// Repairs a directory, and judges the result.
    fn repair(&self, damaged: &Files, context: &str) -> (Vec<String>, Keys) {
        let dir = directory(damaged);
        let announced = offline::repair(dir.path(), false).expect(context);
        assert!(files(dir.path()) == *damaged, "{context}: changed");
        let done = offline::repair(dir.path(), true).expect(context);
        assert_eq!(done.gives_up, announced.gives_up, "{context}");
        assert!(!done.gives_up.is_empty(), "{context}: nothing is given up");
        let checked = offline::check(dir.path()).expect(context);
        assert_eq!(checked.damage, Vec::<String>::new(), "{context}: {:?}", done.gives_up);
        let found = judge(&files(dir.path()), context);
        let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
        self.confirm(&found, &format!("{context}: {:?}", done.gives_up));
        (done.gives_up, found)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Put,
    Patch,
}

fn is_named(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name != "MANIFEST" && !name.starts_with("spare-") && !name.ends_with(".next")
}

#[test]
fn a_repair_leaves_a_closed_state() {
    let mut repaired = 0;
    seeded_rounds(25, |seed| {
        let rng = SeededRng::new(seed);
        let home = tempfile::tempdir().expect("a directory");
        let mut work = Work::default();
        work.live(&rng, home.path(), 1 + rng.below(3));
        let mut all = files(home.path());
        let named: Vec<PathBuf> = all.keys().filter(|path| is_named(path)).cloned().collect();
        let path = named[rng.below(named.len() as u64) as usize].clone();
        let bytes = all.get_mut(&path).expect("it is there");
        let context = match rng.below(3) {
            0 => {
                all.remove(&path);
                format!("without {}", path.display())
            }
            1 => {
                let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
                let at = rng.below(used) as usize;
                bytes[at] ^= 1;
                format!("{} changed at {at}", path.display())
            }
            _ => {
                let blocks = rng.below(bytes.len() as u64 / 4096) as usize;
                bytes.truncate(blocks * 4096);
                format!("{} cut to {blocks} blocks", path.display())
            }
        };
        match judge(&all, &context) {
            Ok(found) => work.confirm(&found, &context),
            Err(_) => {
                work.repair(&all, &context);
                repaired += 1;
            }
        }
    });
    assert!(repaired > 5, "only {repaired} were refused");
}

/// The older checkpoint is of an earlier incarnation, whose log the newer one has freed.
#[test]
fn what_rests_on_a_lost_checkpoint_is_given_up() {
    for keep in [1, 2] {
        let home = tempfile::tempdir().expect("a directory");
        let mut work = Work::default();
        for life in 0..2 {
            let mut config = config(home.path(), 1);
            config.keep_checkpoints = keep;
            let engine = Engine::open(config).expect("opens");
            let table = engine.table("keys").expect("a table");
            let mut session = engine.session().expect("a session");
            if life == 0 {
                work.commit(&mut session, table, &[(b"x", Step::Put)]);
                engine.checkpoint().expect("a checkpoint");
                work.commit(&mut session, table, &[(b"x", Step::Put)]);
                work.commit(&mut session, table, &[(b"b", Step::Put)]);
            } else {
                work.commit(&mut session, table, &[(b"x", Step::Patch)]);
                work.commit(&mut session, table, &[(b"b", Step::Read), (b"c", Step::Put)]);
                engine.checkpoint().expect("a checkpoint");
                work.commit(&mut session, table, &[(b"x", Step::Patch)]);
            }
        }
        let mut all = files(home.path());
        let newest = all.keys().rfind(|path| path.starts_with("checkpoint"));
        let newest = newest.expect("a checkpoint").clone();
        all.get_mut(&newest).expect("it is there")[5000] ^= 1;
        let context = format!("keep {keep}");
        let (gives_up, found) = work.repair(&all, &context);
        assert_eq!(found.len(), keep - 1, "{context}: {gives_up:?}");
        let told = gives_up.iter().any(|what| what.contains("all that was committed"));
        assert!(told, "{context}: {gives_up:?}");
    }
}

/// A record does not name dependencies that were closed at its commit.
#[test]
fn what_rests_on_a_lost_log_is_given_up() {
    let home = tempfile::tempdir().expect("a directory");
    let mut work = Work::default();
    let engine = Engine::open(config(home.path(), 2)).expect("opens");
    let table = engine.table("keys").expect("a table");
    let mut sessions = [0; 2].map(|_| engine.session().expect("a session"));
    work.commit(&mut sessions[0], table, &[(b"a", Step::Put)]);
    work.commit(&mut sessions[0], table, &[(b"b", Step::Put)]);
    work.commit(&mut sessions[1], table, &[(b"a", Step::Patch)]);
    work.commit(&mut sessions[1], table, &[(b"a", Step::Read), (b"c", Step::Put)]);
    drop(sessions);
    drop(engine);
    let all = files(home.path());
    let segments = all.keys().filter(|path| path.starts_with("log") && is_named(path));
    for segment in segments {
        let context = format!("without {}", segment.display());
        let mut left = all.clone();
        left.remove(segment);
        let (gives_up, _) = work.repair(&left, &context);
        assert!(gives_up.len() > 1, "{context}: {gives_up:?}");
    }
}
