//! Tests of paged tables over a backing in memory. `STILLPOINT_PAGED_SEEDS` sets the number of random lives.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{random, threads};

#[test]
fn a_table_is_like_a_map_across_evictions_and_crashes() {
    random::a_table_is_like_a_map_across_evictions_and_crashes();
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
