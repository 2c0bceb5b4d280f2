//! Tests that a cancelled opening ends, leaves every file unchanged, and that the next one finds
//! everything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint::{Cancel, Config, Durability, Engine, Error, Stage};
use stillpoint_io::{Disk, ManualClock, SimDisk, read_all};

fn config(disk: &SimDisk) -> Config {
    let mut config = Config::new("unused");
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.clock = Arc::new(ManualClock::self_advancing(0));
    config.environment.background = false;
    config.recovery_threads = 2;
    config.logs = 2;
    config.log_segment_bytes = 64 << 10;
    config.durability = Durability::Strict;
    config
}

/// A store with a checkpoint and a log after it, killed.
fn killed() -> SimDisk {
    let disk = SimDisk::new(1);
    let engine = Engine::open(config(&disk)).expect("an empty directory");
    let table = engine.table("t").expect("a table");
    let mut session = engine.session().expect("a session");
    for number in 0..200_u32 {
        let put = session.transact(|tx| tx.put(table, &number.to_le_bytes(), &[7; 100]));
        put.expect("memory");
        if number == 100 {
            engine.checkpoint().expect("a checkpoint");
        }
    }
    disk.kill()
}

/// Every file but the lock, with its bytes.
fn files(disk: &SimDisk, dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for name in disk.list(dir).expect("a directory") {
        let path = dir.join(&name);
        if disk.list(&path).is_ok() {
            files(disk, &path, found);
        } else if name != "LOCK" {
            found.insert(path.clone(), read_all(disk, &path).expect("readable"));
        }
    }
}

fn all_files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    files(disk, Path::new(""), &mut found);
    found
}

#[test]
fn a_cancelled_opening_changes_and_loses_nothing() {
    for stage in [Stage::Scan, Stage::Load, Stage::Replay] {
        let disk = killed();
        let before = all_files(&disk);
        let cancel = Cancel::default();
        let mut reached = false;
        let opened = Engine::builder(config(&disk))
            .cancel(&cancel)
            .progress(|progress| {
                if progress.stage == stage {
                    reached = true;
                    cancel.cancel();
                }
            })
            .open();
        let error = opened.expect_err("it was cancelled");
        assert!(reached && matches!(error, Error::Cancelled), "{stage:?}: {error}");
        assert!(all_files(&disk) == before, "{stage:?}: a file has changed");
        let engine = Engine::open(config(&disk)).expect("nothing has changed");
        assert_eq!(engine.len(engine.table("t").expect("it is there")), 200, "{stage:?}");
    }
}

#[test]
fn an_opening_that_waits_for_the_lock_can_be_cancelled() {
    let disk = SimDisk::new(1);
    let _held = disk.lock(Path::new("LOCK")).expect("a lock").expect("nobody holds it");
    let cancel = Cancel::default();
    cancel.cancel();
    let opened = Engine::builder(config(&disk)).cancel(&cancel).open();
    assert!(matches!(opened, Err(Error::Cancelled)));
}
