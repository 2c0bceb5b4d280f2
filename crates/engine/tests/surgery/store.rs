//! Small stores in directories, their acknowledged records, and the results of the tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stillpoint::offline;
use stillpoint::{Config, Durability, Engine, Error};
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, read_all};

pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;
/// Keys and values of table `keys`.
pub(crate) type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

/// Shape of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) logs: usize,
    /// Commits of each life. Each has 4 KiB.
    pub(crate) lives: &'static [usize],
    /// Checkpoints in the last life, at even distances among its commits.
    pub(crate) checkpoints: usize,
    pub(crate) closes: bool,
}

pub(crate) fn config(dir: &Path, logs: usize) -> Config {
    // With huge pages, small stores would spend most of their time on clearing pages.
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new(dir);
    config.durability = Durability::Strict;
    config.logs = logs;
    config.sessions = 4;
    config.recovery_threads = 1;
    config.checkpoint_threads = 1;
    config.checkpoint_every = None;
    config.keep_checkpoints = 2;
    config.max_memory_bytes = 64 << 20;
    config.log_segment_bytes = 32 << 10;
    config.environment.background = false;
    config
}

/// Makes a store of that shape. Returns the acknowledged records.
pub(crate) fn make(dir: &Path, shape: Shape) -> Keys {
    let mut acknowledged = Keys::new();
    for (life, &commits) in shape.lives.iter().enumerate() {
        let engine = Engine::open(config(dir, shape.logs)).expect("opens");
        let table = engine.table("keys").expect("a table");
        let mut sessions: Vec<_> =
            (0..shape.logs).map(|_| engine.session().expect("a session")).collect();
        let last = life + 1 == shape.lives.len();
        let every = if last { commits / (shape.checkpoints + 1) + 1 } else { usize::MAX };
        for n in 0..commits {
            if n > 0 && n % every == 0 {
                engine.checkpoint().expect("a checkpoint");
            }
            let key = format!("{:02}", n % 20).into_bytes();
            let value = format!("{life} {n} {}", "x".repeat(3000)).into_bytes();
            let session = &mut sessions[n % shape.logs];
            session.transact(|tx| tx.put(table, &key, &value)).expect("commits");
            acknowledged.insert(key, value);
        }
        drop(sessions);
        if last && shape.closes {
            engine.close().expect("closes");
        }
    }
    acknowledged
}

/// All files but `LOCK`.
pub(crate) fn files(dir: &Path) -> Files {
    let disk = RealDisk::new(dir).expect("a disk");
    let mut found = Files::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for name in disk.list(&dir).expect("lists") {
            let path = dir.join(name);
            if disk.list(&path).is_ok() {
                todo.push(path);
            } else if path != Path::new("LOCK") {
                let bytes = read_all(&disk, &path).expect("reads");
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// A directory with these files.
pub(crate) fn directory(files: &Files) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::new(dir.path()).expect("a disk");
    for (path, bytes) in files {
        disk.create_dir_all(path.parent().expect("below the root")).expect("a directory");
        let file = disk.open(path, OpenMode::CreateNew, Caching::Buffered).expect("a file");
        file.write_at(bytes, 0).expect("writes");
    }
    dir
}

/// The served records, after a dump and a check of the same files. Panics if the tools disagree.
pub(crate) fn judge(all: &Files, context: &str) -> Result<Keys, Error> {
    let dir = directory(all);
    let dir = dir.path();
    let checked = offline::check(dir);
    let sound = checked.as_ref().is_ok_and(|checked| checked.damage.is_empty());
    let mut dumped = Keys::new();
    let dump = offline::dump(dir, None, &mut |table, key, value| {
        let mut bytes = Vec::new();
        value.copy_to(&mut bytes);
        if table == "keys" {
            dumped.insert(key.to_vec(), bytes);
        }
        Ok(())
    });
    let served = serve(dir);
    if served.is_err() {
        assert!(files(dir) == *all, "{context}: a start that was refused has changed something");
    }
    match (&served, &dump) {
        (Ok(served), Ok(_)) => assert!(*served == dumped, "{context}: dump and serve differ"),
        (Err(error), Err(_)) => {
            assert!(!sound, "{context}: check finds nothing, and the start: {error}");
            assert!(error.is_damage(), "{context}: {error}");
        }
        (Ok(_), Err(error)) => panic!("{context}: served, and not dumped: {error}"),
        (Err(error), Ok(_)) => panic!("{context}: dumped, and not served: {error}"),
    }
    served
}

/// The records that a start serves.
pub(crate) fn serve(dir: &Path) -> Result<Keys, Error> {
    Ok(scan(&Engine::open(config(dir, 2))?))
}

/// The records that an engine serves.
pub(crate) fn scan(engine: &Engine) -> Keys {
    let mut session = engine.session().expect("a session");
    let mut found = Keys::new();
    let tables = engine.tables();
    for (_, table) in tables.iter().filter(|(name, _)| name == "keys") {
        let mut cursor = 0;
        loop {
            let next = session.scan(*table, cursor, 100, &mut |key, value| {
                found.insert(key.to_vec(), value.to_vec());
            });
            cursor = next.expect("scans");
            if cursor == 0 {
                break;
            }
        }
    }
    found
}
