//! Tests of SIREN as a kind of table. More random lives: `STILLPOINT_SIREN_SEEDS=1000`.
#![cfg(not(any(loom, shuttle)))]

#[path = "common/kind.rs"]
mod of_kind;

#[test]
fn a_table_is_like_a_map_across_crashes() {
    of_kind::a_table_is_like_a_map_across_crashes();
}

#[test]
fn open_transactions_are_like_a_map() {
    of_kind::interactive::open_transactions_are_like_a_map();
}

#[test]
fn a_checkpoint_that_begins_amid_a_commit_holds_it() {
    of_kind::declared::a_checkpoint_that_begins_amid_a_commit_holds_it();
}

#[test]
fn a_range_that_was_found_empty_stays_empty() {
    of_kind::a_range_that_was_found_empty_stays_empty();
}

#[test]
fn a_gap_outlives_its_key() {
    of_kind::a_gap_outlives_its_key();
}

#[test]
fn who_has_read_a_gap_keeps_both_parts() {
    of_kind::who_has_read_a_gap_keeps_both_parts();
}

#[test]
fn a_reader_that_has_waited_for_a_gap_looks_again() {
    of_kind::a_reader_that_has_waited_for_a_gap_looks_again();
}

#[test]
fn a_read_without_a_lock_finds_value_and_stamp() {
    of_kind::a_read_without_a_lock_finds_value_and_stamp();
}

#[test]
fn a_thousand_checkpoints_leave_the_kind_flat() {
    of_kind::a_thousand_checkpoints_leave_the_kind_flat();
}

#[test]
fn operations_come_amid_checkpoints_of_the_kind() {
    of_kind::operations_come_amid_checkpoints_of_the_kind();
}

#[test]
fn a_slow_checkpoint_hurries_at_the_end() {
    of_kind::a_slow_checkpoint_hurries_at_the_end();
}

#[test]
fn an_emptied_table_leaves_no_memory_in_use() {
    of_kind::an_emptied_table_leaves_no_memory_in_use();
}
