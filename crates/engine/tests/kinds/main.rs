//! Tests of kinds of tables. Each kind must pass one suite, alone and together with the memory
//! store in one transaction. Crashes of a simulated machine come in the middle of such
//! transactions.
//!
//! The second kind is `in_place`. The third and the fourth one are the engine's paged tables and its
//! SIREN tables. A further kind gets its row in `suite::KINDS`.
//!
//! One seed of the crashes again: `STILLPOINT_KINDS_SEED=<seed> cargo test -p stillpoint --test
//! kinds` More seeds: `STILLPOINT_KINDS_SEEDS=1000`

mod checkpoints;
mod crash;
mod in_place;
mod log_limit;
mod open;
mod pages;
mod space;
mod suite;
mod undo_file;
mod world;

#[test]
fn transactions_on_two_kinds_survive_crashes() {
    crash::transactions_on_two_kinds();
}

#[test]
fn transactions_on_memory_and_pages_survive_crashes() {
    crash::transactions_on_memory_and_pages();
}

#[test]
fn transactions_on_memory_and_siren_survive_crashes() {
    crash::transactions_on_memory_and_siren();
}

#[test]
fn a_crash_during_the_undo_is_survived() {
    crash::a_crash_during_the_undo();
}

#[test]
fn a_transaction_open_across_a_checkpoint_is_undone() {
    checkpoints::a_transaction_open_across_a_checkpoint_is_undone();
}

#[test]
fn transactions_beside_a_checkpoint_are_in_it_or_replayed() {
    checkpoints::transactions_beside_a_checkpoint_are_in_it_or_replayed();
}

#[test]
fn a_published_point_waits_for_no_transaction_that_waits_for_it() {
    checkpoints::a_published_point_waits_for_no_transaction_that_waits_for_it();
}

#[test]
fn logs_are_freed_behind_a_checkpoint_of_both_kinds() {
    checkpoints::logs_are_freed_behind_a_checkpoint_of_both_kinds();
}

#[test]
fn a_flush_empties_tables_of_both_kinds() {
    checkpoints::a_flush_empties_tables_of_both_kinds();
}

#[test]
fn a_flush_during_a_checkpoint_empties_what_it_has_copied() {
    checkpoints::a_flush_during_a_checkpoint_empties_what_it_has_copied();
}

#[test]
fn an_abort_finds_room_in_a_full_log() {
    space::an_abort_finds_room_in_a_full_log();
}

#[test]
fn very_many_small_changes_take_little_log() {
    space::very_many_small_changes_take_little_log();
}

#[test]
fn a_commit_gives_the_room_of_its_undo_back() {
    space::a_commit_gives_the_room_of_its_undo_back();
}

#[test]
fn a_flush_before_the_turn_of_a_kind_loses_nothing() {
    pages::a_flush_before_the_turn_of_a_kind_loses_nothing();
}

#[test]
fn a_flush_and_the_holder_of_the_permit_both_end() {
    pages::a_flush_and_the_holder_of_the_permit_both_end();
}

#[test]
fn a_failed_write_of_pages_fails_the_store() {
    pages::a_failed_write_of_pages_fails_the_store();
}

#[test]
fn rollbacks_alone_do_not_fill_the_log() {
    pages::rollbacks_alone_do_not_fill_the_log();
}

#[test]
fn writers_wait_for_the_checkpoint_that_frees_the_log() {
    log_limit::writers_wait_for_the_checkpoint_that_frees_the_log();
}

#[test]
fn a_log_that_nothing_frees_refuses_writes_alone() {
    log_limit::a_log_that_nothing_frees_refuses_writes_alone();
}

#[test]
fn a_log_that_no_thread_frees_ends_at_its_limit() {
    log_limit::a_log_that_no_thread_frees_ends_at_its_limit();
}

#[test]
fn a_transaction_that_keeps_the_log_is_told() {
    pages::a_transaction_that_keeps_the_log_is_told();
}

#[test]
fn a_transaction_larger_than_the_pool_ends_either_way() {
    pages::a_transaction_larger_than_the_pool_ends_either_way();
}

#[test]
fn losers_are_undone_in_threads() {
    pages::losers_are_undone_in_threads();
}

#[test]
fn a_full_disk_refuses_writes_alone() {
    pages::a_full_disk_refuses_writes_alone();
}

#[test]
fn a_large_transaction_ends_either_way() {
    undo_file::a_large_transaction_ends_either_way();
}

#[test]
fn a_savepoint_is_found_in_the_file() {
    undo_file::a_savepoint_is_found_in_the_file();
}

#[test]
fn a_refused_file_of_undos_ends_its_transaction_alone() {
    undo_file::a_refused_file_of_undos_ends_its_transaction_alone();
}

#[test]
fn a_lost_file_of_undos_fails_the_store() {
    undo_file::a_lost_file_of_undos_fails_the_store();
}
