//! Tests of paged tables over a backing in memory. `STILLPOINT_PAGED_SEEDS` sets the number of random lives.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{large, protocols, random, scans, threads};

#[test]
fn a_table_is_like_a_map_across_evictions_and_crashes() {
    random::a_table_is_like_a_map_across_evictions_and_crashes();
}

#[test]
fn lanes_leave_what_one_leaves() {
    random::lanes_leave_what_one_leaves();
}

#[test]
fn ascending_insertions_fill_their_pages() {
    random::ascending_insertions_fill_their_pages();
}

#[test]
fn a_flush_gives_all_pages_back() {
    random::a_flush_gives_all_pages_back();
}

#[test]
fn what_a_flush_cannot_read_is_freed_later() {
    random::what_a_flush_cannot_read_is_freed_later();
}

#[test]
fn what_does_not_fit_is_refused() {
    random::what_does_not_fit_is_refused();
}

#[test]
fn transfers_keep_the_sum_while_pages_come_and_go() {
    threads::transfers_keep_the_sum_while_pages_come_and_go();
}

#[test]
fn a_range_that_was_found_empty_stays_empty() {
    threads::a_range_that_was_found_empty_stays_empty();
}

#[test]
fn a_checkpoint_waits_for_a_page_that_is_being_changed() {
    threads::a_checkpoint_waits_for_a_page_that_is_being_changed();
}

#[test]
fn unlocked_reads_see_whole_committed_values() {
    threads::unlocked_reads_see_whole_committed_values();
}

#[test]
fn a_range_waits_for_open_changes() {
    protocols::a_range_waits_for_open_changes();
}

#[test]
fn a_stretch_that_was_read_does_not_change() {
    protocols::a_stretch_that_was_read_does_not_change();
}

#[test]
fn who_splits_a_stretch_keeps_both_parts() {
    protocols::who_splits_a_stretch_keeps_both_parts();
}

#[test]
fn a_range_that_had_to_wait_is_found_anew() {
    protocols::a_range_that_had_to_wait_is_found_anew();
}

#[test]
fn a_table_that_is_emptied_during_a_checkpoint_stays_empty() {
    protocols::a_table_that_is_emptied_during_a_checkpoint_stays_empty();
}

#[test]
fn declared_keys_are_found_together() {
    protocols::declared_keys_are_found_together();
}

#[test]
fn a_deleted_record_stays_until_its_deletion_has_ended() {
    protocols::a_deleted_record_stays_until_its_deletion_has_ended();
}

#[test]
fn an_abort_finds_the_room_of_what_it_has_deleted() {
    protocols::an_abort_finds_the_room_of_what_it_has_deleted();
}

#[test]
fn who_reads_later_depends_on_the_end_of_a_change() {
    protocols::who_reads_later_depends_on_the_end_of_a_change();
}

#[test]
fn deleted_records_make_room_for_others() {
    protocols::deleted_records_make_room_for_others();
}

#[test]
fn values_of_any_length_are_what_they_were() {
    large::values_of_any_length_are_what_they_were();
}

#[test]
fn a_rollback_frees_what_it_has_written() {
    large::a_rollback_frees_what_it_has_written();
}

#[test]
fn a_start_frees_what_nothing_refers_to() {
    large::a_start_frees_what_nothing_refers_to();
}

#[test]
fn a_flush_frees_large_values() {
    large::a_flush_frees_large_values();
}

#[test]
fn a_leaf_that_was_read_is_not_merged() {
    protocols::a_leaf_that_was_read_is_not_merged();
}

#[test]
fn who_merges_a_stretch_keeps_it() {
    protocols::who_merges_a_stretch_keeps_it();
}

#[test]
fn a_queue_keeps_few_pages() {
    protocols::a_queue_keeps_few_pages();
}

#[test]
fn a_long_scan_reads_ahead_and_a_short_one_does_not() {
    scans::a_long_scan_reads_ahead_and_a_short_one_does_not();
}

#[test]
fn a_read_ahead_that_fails_is_told_to_who_needs_the_page() {
    scans::a_read_ahead_that_fails_is_told_to_who_needs_the_page();
}
