//! Tests in which a flush fails, the process dies, and the next process reads bytes that only a
//! cache may hold.

use stillpoint::Engine;
use stillpoint_io::{Fault, SeededRng, SimDisk};

use crate::lives::open_and_read;
use crate::small::{REDO, config, put};

/// A store whose process has died after the flush of key 20's commit failed at a call of the disk.
/// The written bytes can still be read.
fn flush_failed(logs: usize, nth: u64, fault: Fault) -> Option<SimDisk> {
    let disk = SimDisk::new(nth);
    let engine = Engine::open(config(&disk, logs)).expect("opens");
    put(&engine, 10..20).expect("commits");
    disk.fail_at(nth, fault);
    let failed = put(&engine, 20..23).is_err();
    drop(engine);
    disk.clear_faults();
    failed.then(|| disk.kill())
}

/// A start serves records although a flush failed in the process before. These records must survive
/// a power loss at each call of that start, and further ones.
pub(crate) fn what_only_a_cache_held_is_not_named() {
    let mut in_doubt = 0;
    for logs in [1, 2] {
        for nth in 1..12 {
            let Some(before) = flush_failed(logs, nth, Fault::InputOutput) else { continue };
            let copy = before.kill();
            let served = open_and_read(&REDO, &copy, &SeededRng::new(nth)).expect("recovers").state;
            in_doubt += u32::from(served.len() > 10);
            for seed in 0..4 {
                let context = format!("{logs} logs, flush fails at call {nth}, crash {seed}");
                let mut disk = copy.crash(seed);
                for deep in 0..3 {
                    let found = open_and_read(&REDO, &disk, &SeededRng::new(seed));
                    let found = found.unwrap_or_else(|e| panic!("{context}, {deep} deep: {e}"));
                    assert!(found.state == served, "{context}, {deep} deep");
                    disk = disk.crash(seed + 10);
                }
            }
            lose_power_at_each_call(&before, logs, nth);
        }
    }
    assert!(in_doubt > 0, "no flush failed after its write");
}

fn lose_power_at_each_call(before: &SimDisk, logs: usize, nth: u64) {
    for call in (1..).step_by(2) {
        let context = format!("{logs} logs, flush fails at call {nth}, power is lost at {call}");
        let disk = before.kill();
        disk.fail_at(call, Fault::PowerLoss);
        let opened = Engine::open(config(&disk, logs)).map(drop);
        let disk = disk.crash(call);
        let first = open_and_read(&REDO, &disk, &SeededRng::new(call));
        let first = first.unwrap_or_else(|error| panic!("{context}: {error}")).state;
        assert!(first.len() >= 10, "{context}: {} keys", first.len());
        let again = open_and_read(&REDO, &disk.crash(call + 1), &SeededRng::new(call));
        let again = again.unwrap_or_else(|error| panic!("{context}, again: {error}")).state;
        assert!(again == first, "{context}: served, and lost");
        if opened.is_ok() {
            return;
        }
    }
}

/// If the disk is full when the ends of logs are copied, the start is refused, and nothing is lost.
pub(crate) fn a_full_disk_refuses_a_start_that_copies() {
    for nth in 1..12 {
        let Some(before) = flush_failed(1, nth, Fault::InputOutput) else { continue };
        before.set_capacity(Some(before.used_bytes()));
        let refused = Engine::open(config(&before, 1)).map(drop);
        before.set_capacity(None);
        let after = before.kill();
        let found = open_and_read(&REDO, &after, &SeededRng::new(nth)).expect("recovers").state;
        assert!(found.len() >= 10, "call {nth}: {refused:?}");
        let again =
            open_and_read(&REDO, &after.crash(nth), &SeededRng::new(nth)).expect("recovers");
        assert!(again.state == found, "call {nth}");
    }
}
