//! Tests of starts: the changes before a start succeeds, and the files that failed starts leave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stillpoint::Engine;
use stillpoint_io::{Disk, Fault, SeededRng, SimDisk, read_all};

use crate::lives::open_and_read;
use crate::small::{REDO, config, put};

/// A store with a checkpoint and records behind it, whose process has died.
fn killed(logs: usize) -> SimDisk {
    let disk = SimDisk::new(1);
    let engine = Engine::open(config(&disk, logs)).expect("opens");
    put(&engine, 0..10).expect("commits");
    engine.checkpoint().expect("a checkpoint");
    put(&engine, 10..20).expect("commits");
    drop(engine);
    disk.kill()
}

/// All files with their bytes.
fn files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for name in disk.list(&dir).expect("lists") {
            let path = dir.join(name);
            match disk.list(&path) {
                Ok(_) => todo.push(path),
                Err(_) => {
                    let bytes = read_all(disk, &path).expect("reads");
                    found.insert(path, bytes);
                }
            }
        }
    }
    found
}

fn manifest(disk: &SimDisk) -> Vec<u8> {
    read_all(disk, Path::new("MANIFEST")).expect("a manifest")
}

/// A start that fails at any call has changed neither the MANIFEST nor a file that it names, unless
/// it had published its own MANIFEST.
#[test]
fn a_failed_start_changes_nothing() {
    for logs in [1, 2] {
        let before = killed(logs);
        let (named, known) = (files(&before), manifest(&before));
        let mut published = 0;
        for nth in 1.. {
            let disk = before.kill();
            disk.fail_at(nth, [Fault::InputOutput, Fault::DiskFull][nth as usize % 2]);
            let opened = Engine::open(config(&disk, logs)).map(drop);
            disk.clear_faults();
            if opened.is_ok() {
                break;
            }
            let after = disk.kill();
            if manifest(&after) == known {
                assert_eq!(published, 0, "call {nth}: it had published before");
                let found = files(&after);
                for (path, bytes) in &named {
                    let kept = found.get(path) == Some(bytes);
                    assert!(kept, "{logs} logs, call {nth}: {} changed", path.display());
                }
            } else {
                published += 1;
            }
            let found = open_and_read(&REDO, &after, &SeededRng::new(nth)).expect("recovers");
            assert_eq!(found.state.len(), 20, "{logs} logs, call {nth}");
        }
    }
}

/// Failed starts leave stray files, and the next start uses or removes them.
#[test]
fn many_failed_starts_leave_what_one_leaves() {
    let starts = std::env::var("STILLPOINT_FAILED_STARTS").ok().and_then(|text| text.parse().ok());
    let before = killed(2);
    let clean = before.kill();
    drop(Engine::open(config(&clean, 2)).expect("opens"));
    let expected: Vec<PathBuf> = files(&clean.kill()).into_keys().collect();
    for nth in [8, 14, 18, 20, 22, 24] {
        let mut disk = before.kill();
        let mut first = None;
        for start in 0..starts.unwrap_or(25) {
            disk.fail_at(nth, Fault::InputOutput);
            assert!(Engine::open(config(&disk, 2)).is_err(), "call {nth}, start {start}");
            disk = disk.kill();
            let left: Vec<(PathBuf, usize)> =
                files(&disk).into_iter().map(|(path, bytes)| (path, bytes.len())).collect();
            let first = first.get_or_insert_with(|| left.clone());
            assert_eq!(first, &left, "call {nth}, start {start}");
        }
        drop(Engine::open(config(&disk, 2)).expect("opens"));
        let left: Vec<PathBuf> = files(&disk.kill()).into_keys().collect();
        let spare = |path: &&PathBuf| !path.to_string_lossy().contains("spare");
        let left: Vec<&PathBuf> = left.iter().filter(spare).collect();
        let expected: Vec<&PathBuf> = expected.iter().filter(spare).collect();
        assert_eq!(left, expected, "call {nth}");
    }
}

/// Starts without a commit make neither the MANIFEST nor the logs grow.
#[test]
fn starts_without_a_commit_leave_what_one_leaves() {
    for closes in [false, true] {
        let mut disk = killed(2);
        let mut first: Option<(usize, usize)> = None;
        for start in 0..20 {
            let engine = Engine::open(config(&disk, 2)).expect("opens");
            if closes {
                engine.close().expect("closes");
            } else {
                drop(engine);
            }
            disk = disk.kill();
            let names: Vec<PathBuf> = files(&disk).into_keys().collect();
            // Numbers in the MANIFEST may get another digit, so lengths are compared roughly.
            let left = (names.len(), manifest(&disk).len() / 64);
            assert_eq!(*first.get_or_insert(left), left, "start {start}: {names:?}");
        }
        let found = open_and_read(&REDO, &disk, &SeededRng::new(1)).expect("recovers");
        assert_eq!(found.state.len(), 20);
    }
}

/// After a failed first start, another start succeeds in the same directory.
#[test]
fn a_first_start_may_fail_anywhere() {
    for nth in 1.. {
        let disk = SimDisk::new(nth);
        disk.fail_at(nth, Fault::InputOutput);
        let opened = Engine::open(config(&disk, 2)).map(drop);
        disk.clear_faults();
        let mut disk = disk.kill();
        if nth % 2 == 0 {
            disk = disk.crash(nth);
        }
        let engine = Engine::open(config(&disk, 2)).unwrap_or_else(|e| panic!("call {nth}: {e}"));
        put(&engine, 0..4).expect("commits");
        drop(engine);
        let found = open_and_read(&REDO, &disk.crash(nth), &SeededRng::new(nth)).expect("recovers");
        assert_eq!(found.state.len(), 4, "call {nth}");
        if opened.is_ok() {
            return;
        }
    }
}
