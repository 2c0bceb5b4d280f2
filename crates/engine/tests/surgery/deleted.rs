//! Tests that delete each file, and each pair of files, in turn.

use std::path::{Path, PathBuf};

use crate::store::{Shape, directory, files, judge, make};

const SHAPES: &[Shape] = &[
    Shape { logs: 1, lives: &[3], checkpoints: 0, closes: false },
    Shape { logs: 1, lives: &[20], checkpoints: 0, closes: false },
    Shape { logs: 1, lives: &[20], checkpoints: 0, closes: true },
    Shape { logs: 3, lives: &[40], checkpoints: 0, closes: false },
    Shape { logs: 3, lives: &[40], checkpoints: 1, closes: false },
    Shape { logs: 1, lives: &[30], checkpoints: 2, closes: true },
    Shape { logs: 2, lives: &[5, 20], checkpoints: 2, closes: false },
    Shape { logs: 2, lives: &[5, 0, 3], checkpoints: 0, closes: false },
];

/// Number of pairs deleted of each shape, unless all are asked for.
const PAIRS: usize = 30;

/// Whether the file may be missing without a loss.
fn is_spare(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("spare-") || name.ends_with(".next")
}

fn delete(
    shape: Shape,
    keeps_directories: bool,
    which: impl Fn(&[PathBuf]) -> Vec<Vec<PathBuf>>,
) -> (u32, u32) {
    let home = tempfile::tempdir().expect("a directory");
    let acknowledged = make(home.path(), shape);
    let all = files(home.path());
    let (mut served, mut refused) = (0, 0);
    assert_eq!(judge(&all, "as it was").expect("sound"), acknowledged, "{shape:?}");
    let names: Vec<PathBuf> = all.keys().filter(|path| !is_spare(path)).cloned().collect();
    for gone in which(&names) {
        let context = format!("{shape:?} without {gone:?}");
        let mut left = all.clone();
        left.retain(|path, _| !gone.contains(path));
        if keeps_directories {
            // Directories of deleted files still exist.
            for dir in all.keys().filter_map(|path| path.parent()) {
                left.insert(dir.join("other"), Vec::new());
            }
        }
        match judge(&left, &context) {
            Ok(found) => {
                assert!(found == acknowledged, "{context}: {} keys", found.len());
                served += 1;
            }
            Err(_) => refused += 1,
        }
    }
    (served, refused)
}

#[test]
fn each_file() {
    let mut refused = 0;
    for &shape in SHAPES {
        let each = |names: &[PathBuf]| names.iter().map(|name| vec![name.clone()]).collect();
        refused += delete(shape, true, each).1;
    }
    assert!(refused > 30, "only {refused} deletions are noticed");
}

#[test]
fn each_directory() {
    for &shape in SHAPES {
        delete(shape, false, |names| {
            let mut dirs: Vec<&Path> = names.iter().flat_map(|name| name.ancestors()).collect();
            dirs.retain(|dir| !dir.as_os_str().is_empty());
            dirs.sort();
            dirs.dedup();
            let below = |dir: &&Path| -> Vec<PathBuf> {
                names.iter().filter(|name| name.starts_with(dir)).cloned().collect()
            };
            dirs.iter().map(below).collect()
        });
    }
}

#[test]
fn pairs_of_files() {
    let all = std::env::var("STILLPOINT_SURGERY_PAIRS").is_ok();
    for (n, &shape) in SHAPES.iter().enumerate() {
        delete(shape, true, |names| {
            let mut pairs = Vec::new();
            for (at, one) in names.iter().enumerate() {
                pairs.extend(names[at + 1..].iter().map(|other| vec![one.clone(), other.clone()]));
            }
            let step = if all { 1 } else { pairs.len().div_ceil(PAIRS) };
            pairs.into_iter().skip(n % step).step_by(step).collect()
        });
    }
}

/// `check` and `dump` change nothing.
#[test]
fn looking_changes_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    make(home.path(), SHAPES[6]);
    let all = files(home.path());
    let dir = directory(&all);
    stillpoint::offline::check(dir.path()).expect("checks");
    stillpoint::offline::dump(dir.path(), None, &mut |_, _, _| Ok(())).expect("dumps");
    stillpoint::offline::repair(dir.path(), false).expect("looks");
    assert!(files(dir.path()) == all);
}
