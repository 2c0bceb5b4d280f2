//! Tests that put back an older MANIFEST, of every stage of a store's life.

use std::path::Path;

use stillpoint::Engine;
use stillpoint_io::{Disk, RealDisk, read_all};

use crate::store::{Keys, config, directory, files, judge, serve};

/// Remembers the MANIFEST if it has changed.
fn note(dir: &Path, seen: &mut Vec<Vec<u8>>) {
    let disk = RealDisk::new(dir).expect("a disk");
    if disk.exists(Path::new("MANIFEST")).expect("looks") {
        let bytes = read_all(&disk, Path::new("MANIFEST")).expect("reads");
        if seen.last() != Some(&bytes) {
            seen.push(bytes);
        }
    }
}

/// Puts each MANIFEST back in turn. Returns how many are refused. The last MANIFEST is the current
/// one.
fn put_each_back(dir: &Path, seen: &[Vec<u8>], acknowledged: &Keys, when: &str) -> usize {
    let last = seen.len() - 1;
    let mut refused = 0;
    for (n, older) in seen.iter().enumerate() {
        let mut all = files(dir);
        all.insert("MANIFEST".into(), older.clone());
        let context = format!("{when}, MANIFEST {n} of {last}");
        match judge(&all, &context) {
            Ok(found) => assert!(found == *acknowledged, "{context}: {} keys", found.len()),
            Err(error) => {
                assert!(n != last, "{context}: {error}");
                refused += 1;
            }
        }
    }
    refused
}

#[test]
fn is_refused_or_loses_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path();
    let (mut seen, mut acknowledged) = (Vec::new(), Keys::new());
    for life in 0..4 {
        let engine = Engine::open(config(dir, 2)).expect("opens");
        note(dir, &mut seen);
        let other = engine.table(&format!("other {life}")).expect("a table");
        note(dir, &mut seen);
        let table = engine.table("keys").expect("a table");
        note(dir, &mut seen);
        let mut sessions = [0; 2].map(|_| engine.session().expect("a session"));
        for n in 0..12 {
            let (key, value) = (vec![n], vec![life; 2000]);
            let session = &mut sessions[usize::from(n) % 2];
            session
                .transact(|tx| {
                    tx.put(other, &key, b"beside")?;
                    tx.put(table, &key, &value)
                })
                .expect("commits");
            acknowledged.insert(key, value);
            if n == 6 && life > 0 {
                engine.checkpoint().expect("a checkpoint");
                note(dir, &mut seen);
            }
            if n == 3 && life == 2 {
                engine.flush_tables(&[other]).expect("flushes");
                note(dir, &mut seen);
            }
        }
        drop(sessions);
        if life == 1 {
            engine.close().expect("closes");
            note(dir, &mut seen);
        } else if life == 2 {
            drop(engine);
            // These starts committed nothing, and only copied the ends of logs.
            for _ in 0..2 {
                drop(Engine::open(config(dir, 2)).expect("opens"));
                note(dir, &mut seen);
                put_each_back(dir, &seen, &acknowledged, "after a start without a commit");
            }
        }
        let refused = put_each_back(dir, &seen, &acknowledged, &format!("life {life}"));
        let last = seen.len() - 1;
        assert!(refused * 2 >= last, "life {life}: {refused} of {last} are refused");
    }
}

/// The newest checkpoint holds all commits, and the last life has added none. So no batch of a log
/// shows that the MANIFEST is older. Only an unknown checkpoint or incarnation shows the MANIFEST's
/// age.
#[test]
fn is_refused_although_no_log_holds_a_batch() {
    for (journal, keep) in [("redo", 1), ("redo", 2), ("none", 2)] {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path();
        let (mut seen, mut acknowledged) = (Vec::new(), Keys::new());
        for life in 0..4 {
            let mut config = config(dir, 1);
            config.journal = journal.to_owned();
            config.keep_checkpoints = keep;
            let engine = Engine::open(config).expect("opens");
            let table = engine.table("keys").expect("a table");
            if life == 1 || life == 2 {
                let mut session = engine.session().expect("a session");
                session.transact(|tx| tx.put(table, &[life], b"value")).expect("commits");
                acknowledged.insert(vec![life], b"value".to_vec());
                engine.checkpoint().expect("a checkpoint");
            }
            note(dir, &mut seen);
            engine.close().expect("closes");
            note(dir, &mut seen);
        }
        let context = format!("journal {journal}, keep {keep}");
        put_each_back(dir, &seen, &acknowledged, &context);
        let mut all = files(dir);
        all.insert("MANIFEST".into(), seen[0].clone());
        let older = directory(&all);
        let newest = files(older.path());
        let newest = newest.keys().rfind(|path| path.starts_with("checkpoint"));
        let bytes = &all[newest.expect("a checkpoint")];
        let done = stillpoint::offline::repair(older.path(), true).expect("repairs");
        let kept = files(older.path());
        assert!(kept.values().any(|kept| kept == bytes), "{context}: the checkpoint is gone");
        let told = done.gives_up.iter().any(|what| what.contains("set-aside"));
        assert!(told, "{context}: {:?}", done.gives_up);
        drop(serve(older.path()).expect("opens"));
        let kept = files(older.path());
        assert!(kept.values().any(|kept| kept == bytes), "{context}: a start removes it");
    }
}

/// A merge would remove the only checkpoint that shows that the MANIFEST is older.
#[test]
fn a_merge_refuses_what_a_start_refuses() {
    for journal in ["redo", "none"] {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path();
        let mut config = config(dir, 1);
        config.journal = journal.to_owned();
        config.checkpoint = "calc:partial".to_owned();
        config.merge_after = None;
        let engine = Engine::open(config).expect("opens");
        let table = engine.table("keys").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut seen = Vec::new();
        for n in 0..40u8 {
            session.transact(|tx| tx.put(table, &[n], &[n; 100])).expect("commits");
            if n >= 37 {
                engine.checkpoint().expect("a checkpoint");
                note(dir, &mut seen);
            }
        }
        drop(session);
        engine.close().expect("closes");
        let mut all = files(dir);
        all.insert("MANIFEST".into(), seen[1].clone());
        let older = directory(&all);
        let error = stillpoint::offline::merge(older.path(), 1).expect_err("it is older");
        assert!(error.to_string().contains("older than the checkpoint"), "{error}");
        assert!(files(older.path()) == all, "{journal}: a refused merge changes nothing");
        let merged = stillpoint::offline::merge(dir, 1).expect("the newest is sound");
        // Without a journal, the close takes one more checkpoint.
        let expected = if journal == "none" { 4 } else { 3 };
        assert_eq!(merged.expect("a chain").merged, expected, "{journal}");
    }
}
