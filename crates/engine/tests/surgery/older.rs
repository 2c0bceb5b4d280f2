//! An older MANIFEST put back, of every stage of a store's life.

use std::path::Path;

use stillpoint::Engine;
use stillpoint_io::{Disk, RealDisk, read_all};

use crate::store::{Keys, config, files, judge};

/// Remembers the MANIFEST if it is another one.
fn note(dir: &Path, seen: &mut Vec<Vec<u8>>) {
    let disk = RealDisk::new(dir).expect("a disk");
    if disk.exists(Path::new("MANIFEST")).expect("looks") {
        let bytes = read_all(&disk, Path::new("MANIFEST")).expect("reads");
        if seen.last() != Some(&bytes) {
            seen.push(bytes);
        }
    }
}

/// Puts each MANIFEST back in turn; returns how many are refused. The last one is the right one.
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
            // Starts without a commit: the ends of logs have been copied, and nothing else.
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
