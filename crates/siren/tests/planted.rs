//! Bugs planted in pages, checkpointer, log and recovery, each of which a named test must catch.
//!
//! `cargo test -p stillpoint-siren --features planted-bugs --test planted`. The two bugs that need
//! threads are caught by the model (`shuttle_pages`).

mod common;
#[path = "common/kind.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod of_kind;
#[path = "common/scenarios.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod scenarios;

use std::panic::catch_unwind;

use stillpoint_siren::planted::{Bug, plant};

/// The test that catches a bug; `None` if only the model with threads does.
fn catcher(bug: Bug) -> Option<(&'static str, fn())> {
    Some(match bug {
        Bug::PendingCommitLost => {
            ("a_commit_on_a_frozen_page_stays", scenarios::a_commit_on_a_frozen_page_stays)
        }
        Bug::FrozenPageChanged => {
            ("a_frozen_page_keeps_its_image", scenarios::a_frozen_page_keeps_its_image)
        }
        Bug::FreedBeforeHeader => (
            "a_half_written_checkpoint_leaves_the_one_before",
            scenarios::a_half_written_checkpoint_leaves_the_one_before,
        ),
        Bug::StatementRolledBackTwice => (
            "a_rollback_in_the_checkpoint_is_not_repeated",
            scenarios::a_rollback_in_the_checkpoint_is_not_repeated,
        ),
        Bug::HeaderBeforePages => {
            ("a_header_follows_its_pages", scenarios::a_header_follows_its_pages)
        }
        Bug::AnswersBeforeFlush => {
            ("a_strict_commit_survives", scenarios::a_strict_commit_survives)
        }
        Bug::ForgetsWrittenPages => (
            "a_checkpoint_after_a_given_up_one_is_whole",
            scenarios::a_checkpoint_after_a_given_up_one_is_whole,
        ),
        Bug::RemovedTupleTwice => (
            "a_tuple_removed_behind_the_copy_is_stored_once",
            scenarios::a_tuple_removed_behind_the_copy_is_stored_once,
        ),
        Bug::LosersKept => ("an_opening_aborts_for_good", scenarios::an_opening_aborts_for_good),
        Bug::CommittedLeftOpen | Bug::RepeatedTwice | Bug::UndoWithoutStamp => {
            ("a_table_is_like_a_map_across_crashes", of_kind::a_table_is_like_a_map_across_crashes)
        }
        Bug::GapUnclaimed => {
            ("who_has_read_a_gap_keeps_both_parts", of_kind::who_has_read_a_gap_keeps_both_parts)
        }
        Bug::RangeNotReadAgain => (
            "a_reader_that_has_waited_for_a_gap_looks_again",
            of_kind::a_reader_that_has_waited_for_a_gap_looks_again,
        ),
        Bug::PurgedUnderGapLock => ("a_gap_outlives_its_key", of_kind::a_gap_outlives_its_key),
        Bug::CommitWithoutStamp => (
            "a_read_without_a_lock_finds_value_and_stamp",
            of_kind::a_read_without_a_lock_finds_value_and_stamp,
        ),
        Bug::ChangesAtLaterLevel => (
            "a_checkpoint_that_begins_amid_a_commit_holds_it",
            of_kind::declared::a_checkpoint_that_begins_amid_a_commit_holds_it,
        ),
        Bug::AppendsToFrozenPage => (
            "what_is_appended_gathers_on_no_frozen_page",
            scenarios::what_is_appended_gathers_on_no_frozen_page,
        ),
        Bug::TakenBeforeSettled | Bug::TurnPassesWriters => return None,
    })
}

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for &bug in Bug::ALL {
        let Some((name, run)) = catcher(bug) else { continue };
        plant(None);
        run();
        plant(Some(bug));
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let is_caught = catch_unwind(run).is_err();
        std::panic::set_hook(hook);
        if !is_caught {
            missed.push((bug, name));
        }
    }
    plant(None);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
