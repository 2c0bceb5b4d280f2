//! Tests with crashes of a simulated machine at any instant, up to three in a row. Acknowledged
//! commits are recovered, the recovered set is closed under dependency, and nothing else is there.
//!
//! A seed decides everything: a workload of several sessions over several logs on one thread, and
//! the instant of the crash. The seed also decides which unflushed bytes the disk keeps, crashes
//! during recovery, and the next life. `history` records and judges, and `workload` acts. `stage`
//! is a disk and a clock that let commits happen in the middle of a checkpoint.
//!
//! 1,000 crash states for each scheme, journal and durability, and 200 for each scheme to come. A third
//! of that for a log of calls:
//! `cargo test -p stillpoint --test crash`
//! 10,000:  `STILLPOINT_CRASH_STATES=10000 cargo test -p stillpoint --test crash`
//! One seed again:  `STILLPOINT_CRASH_SEED=<seed> cargo test -p stillpoint --test crash <durability>`

mod chains;
mod doubt;
mod emptied;
mod faults;
mod history;
mod lives;
mod merging;
mod pointed;
mod published;
mod settings;
mod small;
mod stage;
mod starts;
mod steps;
mod workload;

use lives::run_seed;
use settings::{SPIKES, Setting, matrix, settings_of};
use stillpoint::Durability;

#[test]
fn strict() {
    campaign(Durability::Strict);
}

#[test]
fn relaxed() {
    campaign(Durability::Relaxed);
}

#[test]
fn checkpoint() {
    campaign(Durability::Checkpoint);
}

#[test]
fn a_transaction_open_across_a_flush_of_tables_begins_again() {
    pointed::a_transaction_open_across_a_flush_of_tables_begins_again();
}

#[test]
fn a_reader_open_across_a_flush_of_tables_begins_again() {
    pointed::a_reader_open_across_a_flush_of_tables_begins_again();
}

#[test]
fn a_transaction_open_across_a_failing_flush_of_tables_stays_whole() {
    pointed::a_transaction_open_across_a_failing_flush_of_tables_stays_whole();
}

#[test]
fn a_checkpoint_cut_off_at_any_call_around_an_emptied_table() {
    emptied::a_checkpoint_cut_off_at_any_call_around_an_emptied_table();
}

#[test]
fn an_emptied_table_is_free_at_once() {
    emptied::an_emptied_table_is_free_at_once();
}

#[test]
fn a_restored_checkpoint_has_nothing_of_a_table_emptied_meanwhile() {
    emptied::a_restored_checkpoint_has_nothing_of_a_table_emptied_meanwhile();
}

#[test]
fn two_hops() {
    pointed::two_hops();
}

#[test]
fn second_crash() {
    pointed::second_crash();
}

#[test]
fn an_answered_read() {
    pointed::an_answered_read();
}

#[test]
fn an_insertion_rests_on_the_deletion() {
    pointed::an_insertion_rests_on_the_deletion();
}

#[test]
fn an_insertion_comes_after_the_deletion() {
    pointed::an_insertion_comes_after_the_deletion();
}

#[test]
fn a_checkpoint_cut_off_at_any_call() {
    pointed::a_checkpoint_cut_off_at_any_call();
}

#[test]
fn an_acknowledged_commit() {
    published::an_acknowledged_commit();
}

#[test]
fn commits_during_a_checkpoint() {
    published::commits_during_a_checkpoint();
}

#[test]
fn a_log_without_its_beginning() {
    published::a_log_without_its_beginning();
}

#[test]
fn a_flush_of_tables_comes_after_what_was_committed() {
    published::a_flush_of_tables_comes_after_what_was_committed();
}

#[test]
fn what_only_a_cache_held_is_not_named() {
    doubt::what_only_a_cache_held_is_not_named();
}

#[test]
fn a_full_disk_refuses_a_start_that_copies() {
    doubt::a_full_disk_refuses_a_start_that_copies();
}

#[test]
fn a_chain_goes_on_after_a_restart() {
    chains::a_chain_goes_on_after_a_restart();
}

#[test]
fn a_merge_of_changes_keeps_deletions() {
    chains::a_merge_of_changes_keeps_deletions();
}

#[test]
fn a_merge_leaves_the_points_that_are_kept() {
    chains::a_merge_leaves_the_points_that_are_kept();
}

#[test]
fn held_files_stay() {
    chains::held_files_stay();
}

#[test]
fn a_hold_is_dropped_in_the_middle_of_a_checkpoint() {
    chains::a_hold_is_dropped_in_the_middle_of_a_checkpoint();
}

#[test]
fn failures_in_a_row_lose_no_mark() {
    chains::failures_in_a_row_lose_no_mark();
}

#[test]
fn a_merge_cut_off_at_any_call() {
    merging::a_merge_cut_off_at_any_call();
}

#[test]
fn a_merge_that_fails_is_made_again() {
    merging::a_merge_that_fails_is_made_again();
}

/// Runs seeds on every scheme and journal of this durability; fewer on schemes to come.
fn campaign(durability: Durability) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let wanted = number("STILLPOINT_CRASH_STATES").unwrap_or(1000);
    let only = number("STILLPOINT_CRASH_SEED");
    // Logs of calls are those of redo, but for the calls in them.
    let share = |setting: &Setting| if setting.journal == "command" { 3 } else { 1 };
    let products = matrix().into_iter().map(|setting| (setting, wanted / share(&setting)));
    let spikes = settings_of(SPIKES.iter()).into_iter().map(|setting| (setting, wanted / 5));
    let settings = products.chain(spikes);
    for (setting, wanted) in settings.filter(|(setting, _)| setting.durability == durability) {
        let (mut states, mut seed) = (0, only.unwrap_or(0));
        while states < wanted {
            let ran = std::panic::catch_unwind(|| run_seed(seed, &setting));
            states += ran.unwrap_or_else(|_| {
                panic!(
                    "{setting:?} fails; again: STILLPOINT_CRASH_SEED={seed} \
                     cargo test -p stillpoint --test crash {}",
                    durability.as_str()
                )
            });
            seed += 1;
            if only.is_some() {
                break;
            }
        }
    }
}
