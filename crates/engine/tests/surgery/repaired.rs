//! Tests of repairs and restores of data directories that a start refuses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stillpoint::offline;
use stillpoint_format::names;

use crate::store::{Keys, Shape, directory, files, judge, make, serve};

/// Any file may be missing. Without `accept_loss` a repair changes nothing. With `accept_loss` the
/// store starts and `check` finds it sound. The store holds nothing that was never written, and the
/// repair announced every loss.
#[test]
fn every_refusal_has_a_way_on() {
    let shapes = [
        Shape { logs: 1, lives: &[20], checkpoints: 0, closes: false },
        Shape { logs: 2, lives: &[20, 10], checkpoints: 1, closes: false },
        Shape { logs: 2, lives: &[10, 10, 10], checkpoints: 0, closes: true },
    ];
    let mut repaired = 0;
    for shape in shapes {
        let home = tempfile::tempdir().expect("a directory");
        let acknowledged = make(home.path(), shape);
        let all = files(home.path());
        let names: Vec<PathBuf> = all.keys().cloned().collect();
        for name in names.iter().filter(|name| *name != "MANIFEST") {
            let context = format!("{shape:?} without {}", name.display());
            let mut left = all.clone();
            left.remove(name);
            if judge(&left, &context).is_ok() {
                continue;
            }
            let dir = directory(&left);
            let announced = offline::repair(dir.path(), false).expect(&context);
            assert!(!announced.gives_up.is_empty() && !announced.done, "{context}: {announced:?}");
            assert!(files(dir.path()) == left, "{context}: changed");
            let done = offline::repair(dir.path(), true).expect(&context);
            assert!(done.done && done.gives_up == announced.gives_up, "{context}: {done:?}");
            let checked = offline::check(dir.path()).expect(&context);
            assert_eq!(checked.damage, Vec::<String>::new(), "{context}");
            let again = offline::repair(dir.path(), true).expect(&context);
            assert!(again.gives_up.is_empty(), "{context}: {again:?}");
            let found = serve(dir.path()).expect(&context);
            assert!(found.keys().all(|key| acknowledged.contains_key(key)), "{context}");
            let empty = done.gives_up.iter().any(|what| what.contains("nothing is left"));
            assert_eq!(found.is_empty(), empty, "{context}: {done:?}");
            repaired += 1;
        }
    }
    assert!(repaired > 8, "only {repaired} were refused");
}

/// Only the MANIFEST is missing, so no acknowledged commit is lost, and no value is outdated.
#[test]
fn a_lost_manifest_is_made_anew_from_the_other_files() {
    let shapes = [
        Shape { logs: 1, lives: &[20], checkpoints: 0, closes: false },
        Shape { logs: 2, lives: &[20, 10], checkpoints: 1, closes: false },
        Shape { logs: 2, lives: &[10, 10, 10], checkpoints: 0, closes: true },
        Shape { logs: 2, lives: &[10, 40], checkpoints: 2, closes: true },
        Shape { logs: 3, lives: &[10, 9, 8, 7], checkpoints: 0, closes: false },
    ];
    for shape in shapes {
        let home = tempfile::tempdir().expect("a directory");
        let acknowledged = make(home.path(), shape);
        let all = files(home.path());
        let bytes = &all[Path::new("MANIFEST")];
        let flipped = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            Some(bytes)
        };
        let end = bytes.len() - 3;
        for spoilt in
            [None, Some(Vec::new()), flipped(3), flipped(end), Some(bytes[..end].to_vec())]
        {
            let length = spoilt.as_ref().map(Vec::len);
            let context = format!("{shape:?}, MANIFEST of {length:?} of {} bytes", bytes.len());
            let mut left = all.clone();
            left.remove(Path::new("MANIFEST"));
            left.extend(spoilt.map(|bytes| (PathBuf::from("MANIFEST"), bytes)));
            let refused = judge(&left, &context).expect_err(&context);
            assert!(refused.to_string().contains("repair --accept-loss"), "{context}: {refused}");
            let dir = directory(&left);
            let announced = offline::repair(dir.path(), false).expect(&context);
            assert!(files(dir.path()) == left, "{context}: changed");
            let done = offline::repair(dir.path(), true).expect(&context);
            assert!(done.done && done.gives_up == announced.gives_up, "{context}: {done:?}");
            let checked = offline::check(dir.path()).expect(&context);
            assert_eq!(checked.damage, Vec::<String>::new(), "{context}");
            let mut found = Keys::new();
            let mut tables = BTreeSet::new();
            offline::dump(dir.path(), None, &mut |table, key, value| {
                let mut bytes = Vec::new();
                value.copy_to(&mut bytes);
                found.insert(key.to_vec(), bytes);
                tables.insert(table.to_owned());
                Ok(())
            })
            .expect(&context);
            assert!(found == acknowledged, "{context}: {:?}", done.gives_up);
            let told = done.gives_up.iter().any(|what| what.contains("names of tables"));
            let kinds = done.gives_up.iter().any(|what| what.contains("ordered"));
            assert_eq!(kinds, told, "{context}: {:?}", done.gives_up);
            let name = if told { "table-0" } else { "keys" };
            assert_eq!(tables, BTreeSet::from([name.to_owned()]), "{context}");
            serve(dir.path()).expect(&context);
        }
    }
}

/// A power loss takes bytes of a segment that were in the page cache only. The copy that the start
/// before had made counts.
#[test]
fn a_manifest_made_anew_names_the_copies_of_ends() {
    let home = tempfile::tempdir().expect("a directory");
    let shape = Shape { logs: 1, lives: &[5, 3], checkpoints: 0, closes: false };
    let acknowledged = make(home.path(), shape);
    let mut left = files(home.path());
    left.remove(Path::new("MANIFEST"));
    let path = Path::new(&names::log_dir(0)).join(names::segment_name(1, 1));
    let segment = left.get_mut(&path).expect("the first life has one segment");
    let begins = |at: &usize| segment[*at..].starts_with(b"SPLB");
    let last = (0..segment.len()).step_by(4096).rfind(begins).expect("a batch");
    segment[last..].fill(0);
    let dir = directory(&left);
    let done = offline::repair(dir.path(), true).expect("repairs");
    assert!(!done.gives_up.iter().any(|what| what.starts_with("log ")), "{done:?}");
    let mut found = Keys::new();
    offline::dump(dir.path(), None, &mut |_, key, value| {
        let mut bytes = Vec::new();
        value.copy_to(&mut bytes);
        found.insert(key.to_vec(), bytes);
        Ok(())
    })
    .expect("dumps");
    assert!(found == acknowledged, "{done:?}");
}

/// A damaged copy is not published, and does not block another attempt.
#[test]
fn a_damaged_checkpoint_is_not_restored() {
    let home = tempfile::tempdir().expect("a directory");
    make(home.path(), Shape { logs: 1, lives: &[10], checkpoints: 1, closes: true });
    let mut all = files(home.path());
    let (part, bytes) =
        all.iter_mut().find(|(path, _)| path.starts_with("checkpoint")).expect("a checkpoint");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let part = part.clone();
    let spoilt = directory(&all);
    let epoch = offline::inspect(spoilt.path()).expect("reads").manifest.checkpoints[0].epoch;
    let target = tempfile::tempdir().expect("a directory");
    let refused = offline::restore(spoilt.path(), epoch, target.path()).expect_err("damaged");
    assert!(refused.is_damage(), "{refused}");
    assert!(files(target.path()).is_empty(), "something is left");
    let bytes = all.get_mut(&part).expect("it is there");
    bytes[middle] ^= 1;
    let sound = directory(&all);
    offline::restore(sound.path(), epoch, target.path()).expect("the next try succeeds");
    assert!(!serve(target.path()).expect("opens").is_empty());
}

/// Files of a killed restore do not block the next one. Any other file does.
#[test]
fn a_restore_that_was_killed_can_be_begun_again() {
    let home = tempfile::tempdir().expect("a directory");
    let acknowledged =
        make(home.path(), Shape { logs: 1, lives: &[10], checkpoints: 1, closes: false });
    let epoch = offline::inspect(home.path()).expect("reads").manifest.checkpoints[0].epoch;
    let left = [("LOCK", vec![]), ("restoring/checkpoint/0000000001-full/part-000", vec![7; 99])];
    let target = directory(&left.map(|(path, bytes)| (PathBuf::from(path), bytes)).into());
    offline::restore(home.path(), epoch, target.path()).expect("restores");
    let found = serve(target.path()).expect("opens");
    assert!(!found.is_empty() && found.keys().all(|key| acknowledged.contains_key(key)));
    let again = offline::restore(home.path(), epoch, target.path()).expect_err("not empty");
    assert!(matches!(again, stillpoint::Error::NotEmpty(_)), "{again}");
}

/// With a damaged log the operator needs the number of a checkpoint to restore.
#[test]
fn the_checkpoints_of_a_damaged_directory_are_listed() {
    let home = tempfile::tempdir().expect("a directory");
    make(home.path(), Shape { logs: 1, lives: &[10], checkpoints: 1, closes: false });
    let mut all = files(home.path());
    all.retain(|path, _| !path.starts_with("log"));
    let damaged = directory(&all);
    let found = offline::inspect(damaged.path()).expect("the MANIFEST is sound");
    assert_eq!(found.manifest.checkpoints.len(), 1);
    assert!(found.damage.is_some_and(|damage| damage.contains("log/000")), "nothing is told");
}

/// A repair gives up damaged records and those that may depend on them, and announces no more than
/// that.
#[test]
fn a_repair_announces_exactly_what_it_gives_up() {
    // Each log fills a segment with 6 commits. In the first case both logs lose a segment, in the
    // second one the first log loses its last segment.
    type Case<'a> = (&'static [usize], &'a [(u8, u64)], usize, &'a [&'a str]);
    let cases: [Case<'_>; 2] = [
        (
            &[40],
            &[(0, 7), (1, 13)],
            12,
            &[
                "log 0, all gsns above 6 of incarnation 1: ",
                "log 0, all gsns above 6 of incarnation 1: ",
                "log 0, gsns 7 to 12 of incarnation 1: ",
                "log 1, all gsns above 12 of incarnation 1: ",
                "log 1, all gsns above 12 of incarnation 1: ",
                "log 1, gsns 7 to 12 of incarnation 1: it may rest on what is lost elsewhere",
            ],
        ),
        (&[37], &[(0, 19)], 36, &["log 0, all gsns above 18 of incarnation 1: "; 2]),
    ];
    for (lives, damaged, kept, losses) in cases {
        let home = tempfile::tempdir().expect("a directory");
        make(home.path(), Shape { logs: 2, lives, checkpoints: 0, closes: false });
        let mut left = files(home.path());
        for &(log, first_gsn) in damaged {
            let name = names::segment_name(1, first_gsn);
            let segment = Path::new(&names::log_dir(log)).join(name);
            left.get_mut(&segment).expect("a segment of 6 records")[9] ^= 1;
        }
        let dir = directory(&left);
        let mut done = offline::repair(dir.path(), true).expect("repairs");
        done.gives_up.sort();
        let heads = done.gives_up.iter().zip(losses).all(|(loss, head)| loss.starts_with(head));
        assert!(heads && done.gives_up.len() == losses.len(), "{lives:?}: {:#?}", done.gives_up);
        // The first life's commits go to the two logs in turn; key n % 20 has its latest value.
        let expected: Keys = (0..kept)
            .map(|n| (format!("{:02}", n % 20), format!("0 {n} {}", "x".repeat(3000))))
            .map(|(key, value)| (key.into_bytes(), value.into_bytes()))
            .collect();
        assert!(serve(dir.path()).expect("opens") == expected, "{lives:?}: other records");
    }
}
