//! Merges of checkpoints that are cut off by a crash, or by an error of the disk.

use std::path::Path;

use stillpoint_format::names;
use stillpoint_io::{Disk, Fault, SimDisk};

use crate::chains::{KEYS, chain_of_five, kinds, open, put, recovered, value};

/// A merge that a crash cuts off at any call of the disk leaves the old checkpoints, or is
/// complete. The next start removes its stray files, and the next merge succeeds.
pub(crate) fn a_merge_cut_off_at_any_call() {
    let calls = {
        let disk = SimDisk::new(1);
        let (engine, _, _session) = chain_of_five(&disk, 2);
        let before = disk.call_counts().changes();
        engine.merge_checkpoints().expect("merges").expect("something");
        disk.call_counts().changes() - before
    };
    assert!(calls > 10, "{calls} calls");
    let expected = {
        let disk = SimDisk::new(1);
        drop(chain_of_five(&disk, 2));
        recovered(&disk.crash(0))
    };
    let mut merged = 0;
    for nth in 1..=calls {
        for seed in 0..3 {
            let disk = SimDisk::new(1);
            let (engine, _, session) = chain_of_five(&disk, 2);
            let before = kinds(&disk);
            disk.fail_at(nth, Fault::PowerLoss);
            let _ = engine.merge_checkpoints();
            drop((session, engine));
            let disk = disk.crash(seed);
            disk.clear_faults();
            let context = format!("call {nth} of {calls}, crash {seed}");
            let after = kinds(&disk);
            assert!(after == before || after.len() == 2, "{context}: {after:?}");
            merged += u64::from(after.len() == 2);
            assert_eq!(recovered(&disk.crash_image(seed)), expected, "{context}");
            let (engine, _, session) = open(&disk, 2, None);
            let again = engine.merge_checkpoints().expect("merges");
            assert_eq!(again.is_some(), after == before, "{context}");
            drop((session, engine));
            assert_eq!(kinds(&disk).len(), 2, "{context}");
            let named = kinds(&disk).len();
            let left = disk.list(Path::new(names::CHECKPOINT_DIR));
            assert_eq!(left.expect("lists").len(), named, "{context}: files are left");
            assert_eq!(recovered(&disk.crash(seed)), expected, "{context}, merged");
        }
    }
    assert!(merged > 0, "the last calls come after the publication");
}

/// An error at any call costs the merge, and nothing else.
pub(crate) fn a_merge_that_fails_is_made_again() {
    let mut nth = 0;
    loop {
        nth += 1;
        let disk = SimDisk::new(1);
        let (engine, table, mut session) = chain_of_five(&disk, 1);
        let before = disk.call_counts().changes();
        disk.fail_at(nth, Fault::InputOutput);
        let merged = engine.merge_checkpoints();
        let calls = disk.call_counts().changes() - before;
        disk.clear_faults();
        if merged.is_ok() && calls < nth {
            return;
        }
        if engine.health().is_ok() {
            put(&mut session, table, 99, b"after the merge");
            engine.checkpoint().expect("a checkpoint");
            engine.merge_checkpoints().expect("merges");
            drop((session, engine));
            let found = recovered(&disk.crash(1));
            assert_eq!(value(&found, table, 99), Some(&b"after the merge"[..]), "call {nth}");
            assert_eq!(found.len(), usize::from(KEYS) - 4, "call {nth}");
        }
    }
}
