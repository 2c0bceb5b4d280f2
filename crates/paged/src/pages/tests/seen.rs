//! The tests see planted bugs.

use super::{damage, random, states};
use crate::pages::planted::{Bug, plant};

/// The test that sees a bug.
fn seen_by(bug: Bug) -> fn() {
    match bug {
        Bug::PersistedBeforeWritten => random::a_failed_write_or_flush_is_final,
        Bug::StaleNotSeen => damage::a_stale_page_is_found,
        Bug::RoundNotCounted => damage::an_older_block_is_never_taken_for_the_newer_one,
        Bug::UndoHeldBack => random::a_full_disk_refuses_evictions_and_never_a_checkpoint,
        Bug::StartFreesSlots => random::a_start_that_stops_again_has_moved_nothing_that_counts,
        Bug::OldSlotReused => states::no_state_loses_a_page_that_a_map_names,
        Bug::PageIdTooEarly
        | Bug::FreedTooEarly
        | Bug::MapInPlace
        | Bug::MapNotFlushed
        | Bug::PagesNotFlushed
        | Bug::NewestBlockTaken => random::what_counts_survives_crashes_at_any_call,
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let bugs = [
        Bug::PersistedBeforeWritten,
        Bug::PagesNotFlushed,
        Bug::OldSlotReused,
        Bug::StartFreesSlots,
        Bug::PageIdTooEarly,
        Bug::FreedTooEarly,
        Bug::MapInPlace,
        Bug::MapNotFlushed,
        Bug::StaleNotSeen,
        Bug::RoundNotCounted,
        Bug::NewestBlockTaken,
        Bug::UndoHeldBack,
    ];
    let caught = |bug: &Bug| {
        plant(Some(*bug));
        let ended = std::panic::catch_unwind(seen_by(*bug));
        plant(None);
        ended.is_err()
    };
    let missed: Vec<Bug> = bugs.into_iter().filter(|bug| !caught(bug)).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
