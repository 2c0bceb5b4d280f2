//! Tests that the tests of paged tables see planted bugs.
//!
//! `cargo test -p stillpoint-paged --features planted-bugs --test planted`, as `.ci/run` does.
#![cfg(all(feature = "planted-bugs", not(any(loom, shuttle))))]

#[expect(dead_code, reason = "the other tests use the rest")]
mod common;

use common::{large, protocols, random, threads};
use stillpoint_paged::planted::{Bug, plant};

/// The test that sees a bug.
fn seen_by(bug: Bug) -> fn() {
    match bug {
        Bug::FrameOnDisk
        | Bug::SplitWithoutEntries
        | Bug::ParentLeftOut
        | Bug::RedoneAtSameGsn
        | Bug::PatchesOneRange
        | Bug::LogForgotten
        | Bug::UnlockedReadIgnoresWord => {
            random::a_table_is_like_a_map_across_evictions_and_crashes
        }
        Bug::StretchUnclaimed => protocols::a_stretch_that_was_read_does_not_change,
        Bug::NewStretchNotShared => protocols::who_splits_a_stretch_keeps_both_parts,
        Bug::RangeOverOpenChanges => protocols::a_range_waits_for_open_changes,
        Bug::RangeNotReadAgain => protocols::a_range_that_had_to_wait_is_found_anew,
        Bug::MergesUnclaimed => protocols::a_leaf_that_was_read_is_not_merged,
        Bug::MergedStretchNotKept => protocols::who_merges_a_stretch_keeps_it,
        Bug::MergedPageNotFreed => protocols::a_queue_keeps_few_pages,
        Bug::UnreadNotFreed => random::what_a_flush_cannot_read_is_freed_later,
        Bug::StampsLeft | Bug::RangeNamesNothing => {
            protocols::who_reads_later_depends_on_the_end_of_a_change
        }
        Bug::PurgesOpenGhosts => protocols::a_deleted_record_stays_until_its_deletion_has_ended,
        Bug::InsertsBesideGhost => protocols::an_abort_finds_the_room_of_what_it_has_deleted,
        Bug::EmptiesWhileWritten => {
            protocols::a_table_that_is_emptied_during_a_checkpoint_stays_empty
        }
        Bug::LargeNotFreed => large::values_of_any_length_are_what_they_were,
        Bug::LargeNotFreedByStart => large::a_start_frees_what_nothing_refers_to,
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
