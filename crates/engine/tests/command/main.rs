//! Tests of the command log: calls that a start makes again, among records of writes.

mod mix;
mod pointed;
mod random;
mod threads;

use stillpoint::Config;
use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_io::SimDisk;

macro_rules! tests {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            pointed::$name();
        })+
    };
}

tests! {
    who_overwrites_what_another_has_read_comes_after
    writes_come_in_their_order_among_calls
    a_write_of_an_absent_key_is_replayed_after_deletions_beside_it
    a_call_reads_what_a_table_held_before_it_was_emptied
    time_and_random_numbers_are_logged
    a_batch_reads_time_and_random_numbers_under_every_journal
    a_call_with_long_arguments_comes_back
    a_repair_goes_back_to_before_a_table_was_emptied
    the_journal_may_change_between_two_starts
    a_start_needs_the_versions_that_the_logs_name
    a_call_that_writes_something_else_is_refused
    a_call_that_fails_or_asks_for_more_is_refused
    a_procedure_with_an_unlogged_input_shows_itself
    a_sound_procedure_may_run_twice
    a_call_that_hangs_on_a_limit_is_logged_by_its_writes
    calls_of_many_keys_are_replayed_together
    a_replay_overwrites_nothing_that_is_still_to_be_read
    a_dump_makes_procedures_for_calls_alone
    many_flushes_make_a_full_checkpoint_due
}

#[test]
fn only_consistent_checkpoints_go_with_calls() {
    let mut refused = 0;
    for row in REGISTRY.iter() {
        let mut config: Config = mix::config(&SimDisk::new(1), "command", 1);
        config.checkpoint = row.name.to_owned();
        let opened = mix::with_mix(config).open();
        assert_eq!(opened.is_ok(), !row.capabilities.needs_journal(), "{}: {opened:?}", row.name);
        if let Err(error) = opened {
            assert!(error.to_string().contains("no point of consistency"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "no scheme without a point of consistency was tried");
}
