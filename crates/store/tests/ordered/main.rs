//! Tests of ordered tables: ranges, numbers of records, and what transactions may do beside them.

#[path = "../common/mod.rs"]
mod common;
mod histories;
mod locks;
mod scenarios;
mod worlds;

#[test]
fn transactions_on_an_ordered_table_are_like_a_map() {
    common::for_seeds(3, scenarios::like_a_map);
}

#[test]
fn elle_finds_no_phantom() {
    common::for_seeds(3, histories::no_phantom);
}

#[test]
fn reclaimed_keys_leave_the_index() {
    scenarios::reclaimed_keys_leave_the_index();
}

#[test]
fn what_was_loaded_and_replayed_is_in_order() {
    scenarios::what_was_loaded_and_replayed_is_in_order();
}
