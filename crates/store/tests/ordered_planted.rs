//! Tests that the tests of ordered tables see planted bugs.
//!
//! `cargo test -p stillpoint-store --features planted-bugs --test ordered_planted`; the tests of
//! the workspace have the feature.
#![cfg(feature = "planted-bugs")]

#[path = "common/mod.rs"]
mod common;
#[path = "ordered/histories.rs"]
mod histories;
#[path = "ordered/scenarios.rs"]
mod scenarios;
#[path = "ordered/worlds.rs"]
mod worlds;

use stillpoint_store::ordered_bugs::{Bug, plant};

/// The test that sees a bug.
fn seen_by(bug: Bug) -> fn() {
    match bug {
        Bug::GapNotLocked | Bug::RangeNotReadAgain => || (1..=10).for_each(histories::no_phantom),
        Bug::EntryLeft => scenarios::reclaimed_keys_leave_the_index,
        Bug::ReplayedUnordered => scenarios::what_was_loaded_and_replayed_is_in_order,
        Bug::RecordNotCounted => || scenarios::like_a_map(1),
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
