//! Tests of SIREN as a kind of table. More random lives: `STILLPOINT_SIREN_SEEDS=1000`.
#![cfg(not(any(loom, shuttle)))]

#[path = "common/kind.rs"]
mod of_kind;

#[test]
fn a_table_is_like_a_map_across_crashes() {
    of_kind::a_table_is_like_a_map_across_crashes();
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
