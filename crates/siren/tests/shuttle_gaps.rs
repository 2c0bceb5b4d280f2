//! Random schedules of transactions that add and remove keys, beside one that reads their range: it sees no
//! phantom, and no half of a transaction.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p stillpoint-siren --release --test shuttle_gaps`; with
//! `--features planted-bugs` the model must catch the bugs of gaps.
#![cfg(shuttle)]

#[path = "common/kind.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod of_kind;

use of_kind::gaps::side_by_side;

const SCHEDULES: usize = 3_000;

// A planted bug is in the whole process.
#[cfg(not(feature = "planted-bugs"))]
#[test]
fn a_range_has_no_phantoms() {
    shuttle::check_random(side_by_side, SCHEDULES);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_of_gaps_are_caught() {
    use stillpoint_siren::planted::{Bug, plant};
    // `PurgedUnderGapLock` needs a purge between two steps of a range. tests/planted.rs catches that bug.
    for bug in [Bug::GapUnclaimed, Bug::RangeNotReadAgain] {
        plant(Some(bug));
        let run = || shuttle::check_random(side_by_side, 10 * SCHEDULES);
        let is_caught = std::panic::catch_unwind(run).is_err();
        plant(None);
        assert!(is_caught, "{bug:?} was not caught");
    }
}
