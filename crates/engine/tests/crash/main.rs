//! Crashes of a simulated machine, at any instant, up to three deep: what was acknowledged is
//! recovered, what is recovered is closed under what was read and overwritten, and nothing else is
//! there.
//!
//! A seed decides everything: a workload of several sessions over several logs on one thread, the
//! instant of the crash, what the disk keeps of what was not flushed, crashes during recovery, and
//! how the next life goes on. `history` records and judges, `workload` acts, `stage` is the disk
//! and the clock with their entrances for commits in the middle of a checkpoint.
//!
//! 1,000 crash states for each scheme × journal:  `cargo test -p stillpoint --test crash`
//! 10,000:  `STILLPOINT_CRASH_STATES=10000 cargo test -p stillpoint --test crash`
//! One seed again:  `STILLPOINT_CRASH_SEED=<seed> cargo test -p stillpoint --test crash <test>`

mod faults;
mod history;
mod lives;
mod pointed;
mod stage;
mod workload;

use lives::{Setting, run_seed};
use stillpoint::Durability;

const fn setting(scheme: &'static str, journal: &'static str, durability: Durability) -> Setting {
    Setting { scheme, journal, durability }
}

#[test]
fn calc_redo_strict() {
    campaign("calc_redo_strict", &setting("calc", "redo", Durability::Strict), 2);
}

#[test]
fn calc_redo_relaxed() {
    campaign("calc_redo_relaxed", &setting("calc", "redo", Durability::Relaxed), 2);
}

#[test]
fn calc_none() {
    campaign("calc_none", &setting("calc", "none", Durability::Relaxed), 1);
}

#[test]
fn naive_redo_strict() {
    campaign("naive_redo_strict", &setting("naive", "redo", Durability::Strict), 2);
}

#[test]
fn naive_redo_relaxed() {
    campaign("naive_redo_relaxed", &setting("naive", "redo", Durability::Relaxed), 2);
}

#[test]
fn naive_none() {
    campaign("naive_none", &setting("naive", "none", Durability::Relaxed), 1);
}

#[test]
fn a_transaction_open_across_a_flush_of_tables_begins_again() {
    pointed::a_transaction_open_across_a_flush_of_tables_begins_again();
}

#[test]
fn a_reader_open_across_a_flush_of_tables_begins_again() {
    pointed::a_reader_open_across_a_flush_of_tables_begins_again();
}

#[test]
fn two_hops() {
    pointed::two_hops();
}

#[test]
fn second_crash() {
    pointed::second_crash();
}

#[test]
fn an_answered_read() {
    pointed::an_answered_read();
}

#[test]
fn a_checkpoint_cut_off_at_any_call() {
    pointed::a_checkpoint_cut_off_at_any_call();
}

/// Runs seeds until the share of this test, one of `tests` of its scheme and journal, is done.
fn campaign(test: &str, setting: &Setting, tests: u64) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("STILLPOINT_CRASH_SEED") {
        run_seed(seed, setting);
        return;
    }
    let wanted = number("STILLPOINT_CRASH_STATES").unwrap_or(1000).div_ceil(tests);
    let (mut states, mut seed) = (0, 0);
    while states < wanted {
        let ran = std::panic::catch_unwind(|| run_seed(seed, setting));
        states += ran.unwrap_or_else(|_| {
            panic!(
                "seed {seed} fails; again: STILLPOINT_CRASH_SEED={seed} \
                 cargo test -p stillpoint --test crash {test}"
            )
        });
        seed += 1;
    }
}
