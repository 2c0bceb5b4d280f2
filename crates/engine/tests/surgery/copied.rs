//! Tests with directories copied file by file, in any order, while the engine runs. A copy is
//! refused, or holds a closed state from the time of the copy.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint::{Config, Engine, Error, Session, TableId};
use stillpoint_io::{
    Caching, Disk, ManualClock, OpenMode, Rng, SeededRng, SimDisk, read_all, seeded_rounds,
};

use crate::store::config;

const KEYS: u64 = 12;

/// Reads and writes of a transaction: keys, and the versions of the read ones.
struct Done {
    reads: Vec<(usize, u64)>,
    writes: Vec<usize>,
}

/// A working store. The value of a key is the number of the transaction that wrote it.
struct Work<'a> {
    rng: &'a SeededRng,
    engine: Engine,
    table: TableId,
    sessions: Vec<Session>,
    now: Vec<u64>,
    done: Vec<Done>,
}

fn on(disk: &SimDisk, logs: usize) -> Config {
    let mut config = config("unused".as_ref(), logs);
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.clock = Arc::new(ManualClock::self_advancing(1));
    config
}

impl<'a> Work<'a> {
    fn begin(rng: &'a SeededRng, disk: &SimDisk) -> Self {
        let logs = 1 + rng.below(3) as usize;
        let engine = Engine::open(on(disk, logs)).expect("opens");
        let table = engine.table("keys").expect("a table");
        let sessions = (0..logs).map(|_| engine.session().expect("a session")).collect();
        let now = vec![0; KEYS as usize];
        Self { rng, engine, table, sessions, now, done: Vec::new() }
    }

    fn steps(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.rng.below(15) == 0 {
                self.engine.checkpoint().expect("a checkpoint");
            } else {
                self.commit();
            }
        }
    }

    fn commit(&mut self) {
        let key = || self.rng.below(KEYS) as usize;
        let (read, mut writes) = ([key(), key()], vec![key(), key()]);
        writes.dedup();
        let number = self.done.len() as u64 + 1;
        let mut value = vec![0; 1 + self.rng.below(4000) as usize + 8];
        value[..8].copy_from_slice(&number.to_le_bytes());
        let log = self.rng.below(self.sessions.len() as u64) as usize;
        let table = self.table;
        let committed = self.sessions[log].transact(|tx| {
            for key in read {
                tx.get(table, &[key as u8])?;
            }
            writes.iter().try_for_each(|key| tx.put(table, &[*key as u8], &value))
        });
        committed.expect("commits");
        let reads = read.iter().map(|&key| (key, self.now[key])).collect();
        writes.iter().for_each(|&key| self.now[key] = number);
        self.done.push(Done { reads, writes });
    }

    /// Copies all files in some order, while the store works on.
    fn copy(&mut self, from: &SimDisk) -> SimDisk {
        let to = SimDisk::new(self.rng.next_u64());
        let mut todo = vec![PathBuf::new()];
        while !todo.is_empty() {
            let path = todo.swap_remove(self.rng.below(todo.len() as u64) as usize);
            if let Ok(names) = from.list(&path) {
                to.create_dir_all(&path).expect("a directory");
                todo.extend(names.iter().map(|name| path.join(name)));
            } else if let Ok(bytes) = read_all(from, &path) {
                let file = to.open(&path, OpenMode::CreateNew, Caching::Buffered).expect("a file");
                file.write_at(&bytes, 0).expect("writes");
            }
            self.steps(self.rng.below(4));
        }
        to.kill()
    }
}

fn read(disk: &SimDisk) -> Result<Vec<u64>, Error> {
    let engine = Engine::open(on(disk, 2))?;
    let table = engine.table("keys")?;
    let mut session = engine.session()?;
    let mut found = Vec::new();
    for key in 0..KEYS {
        let mut value = Vec::new();
        let there = session.read(table, &[key as u8], &mut value)?.is_some();
        let number = value.first_chunk().copied().map_or(0, u64::from_le_bytes);
        found.push(if there { number } else { 0 });
    }
    Ok(found)
}

#[test]
fn a_copy_is_refused_or_a_closed_state_of_its_time() {
    let (mut refused, mut served) = (0, 0);
    seeded_rounds(60, |seed| {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::new(rng.next_u64());
        let mut work = Work::begin(&rng, &disk);
        work.steps(rng.below(60));
        let before = work.now.clone();
        let copy = work.copy(&disk);
        let found = match read(&copy) {
            Ok(found) => found,
            Err(error) => {
                assert!(error.is_damage(), "{error}");
                refused += 1;
                return;
            }
        };
        served += 1;
        for key in 0..KEYS as usize {
            let (first, last) = (before[key], work.now[key]);
            let there = found[key];
            assert!((first..=last).contains(&there), "key {key}: {there}, not {first} to {last}");
        }
        for (number, done) in (1..).zip(&work.done) {
            if done.writes.iter().any(|&key| found[key] == number) {
                let whole = done.writes.iter().all(|&key| found[key] >= number);
                let closed = done.reads.iter().all(|&(key, seen)| found[key] >= seen);
                assert!(whole && closed, "transaction {number} without all it rests on");
            }
        }
    });
    assert!(refused > 0 && served > 0, "{refused} refused, {served} served");
}
