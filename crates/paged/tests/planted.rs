//! Tests that the tests of paged tables see planted bugs.
//!
//! `cargo test -p stillpoint-paged --features planted-bugs --test planted`; the tests of the workspace
//! have the feature.
#![cfg(all(feature = "planted-bugs", not(any(loom, shuttle))))]

#[expect(dead_code, reason = "the other tests use the rest")]
mod common;

use common::{random, threads};
use stillpoint_paged::planted::{Bug, plant};

/// The test that sees a bug.
fn seen_by(bug: Bug) -> fn() {
    match bug {
        Bug::FrameOnDisk | Bug::SplitWithoutEntries | Bug::ParentLeftOut | Bug::RedoneAtSameGsn => {
            random::a_table_is_like_a_map_across_evictions_and_crashes
        }
        Bug::GapAtLeafEndUnchecked | Bug::RangeNotReadAgain => {
            threads::a_range_that_was_found_empty_stays_empty
        }
        Bug::SkipsLatched => threads::a_checkpoint_waits_for_a_page_that_is_being_changed,
        Bug::LoadsWithoutParent | Bug::PresentGsnPersisted => {
            threads::transfers_keep_the_sum_while_pages_come_and_go
        }
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = |bug: &&Bug| {
        plant(Some(**bug));
        let ended = std::panic::catch_unwind(seen_by(**bug));
        plant(None);
        ended.is_err()
    };
    let missed: Vec<&Bug> = Bug::ALL.iter().filter(|bug| !caught(bug)).collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
