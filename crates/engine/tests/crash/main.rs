//! Tests with crashes of a simulated machine at any instant, up to three in a row. Acknowledged
//! commits are recovered, the recovered set is closed under dependency, and nothing else is there.
//!
//! A seed decides everything: a workload of several sessions over several logs on one thread, and
//! the instant of the crash. The seed also decides which unflushed bytes the disk keeps, crashes
//! during recovery, and the next life. `history` records and judges, and `workload` acts. `stage`
//! is a disk and a clock that let commits happen in the middle of a checkpoint.
//!
//! `cargo test -p stillpoint --test crash` judges 1,000 crash states for each journal and durability with
//! `none` and both forms of `calc`. Other schemes get 60 each, and a log of calls gets a third.
//! With `STILLPOINT_CRASH_SHARE=K/N` before the command, the K-th of N shares of these get 1,000, too.
//! 10,000 for all:  `STILLPOINT_CRASH_STATES=10000 cargo test -p stillpoint --test crash`
//! One seed again:  `STILLPOINT_CRASH_SEED=<seed> cargo test -p stillpoint --test crash <durability>`

mod chains;
mod deadlines;
mod doubt;
mod emptied;
mod faults;
mod gate;
mod history;
mod lives;
mod merging;
mod pointed;
mod published;
mod schemes;
mod serials;
mod served;
mod settings;
mod small;
mod stage;
mod starts;
mod steps;
mod undone;
mod workload;

use lives::run_seed;
use settings::{Setting, matrix};
use stillpoint::Durability;
use stillpoint_store::rules::WriteRule;

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
fn nothing_is_lost_or_stale_wherever_the_load_stands() {
    served::nothing_is_lost_or_stale_wherever_the_load_stands();
}

#[test]
fn a_checkpoint_of_changes_waits_for_no_load() {
    served::a_checkpoint_of_changes_waits_for_no_load();
}

#[test]
fn a_load_overwrites_nothing_newer() {
    served::a_load_overwrites_nothing_newer();
}

#[test]
fn what_only_the_log_has_is_loaded() {
    served::what_only_the_log_has_is_loaded();
}

#[test]
fn a_replayed_patch_waits_for_its_base() {
    served::a_replayed_patch_waits_for_its_base();
}

#[test]
fn logs_are_read_by_those_who_need_them() {
    served::logs_are_read_by_those_who_need_them();
}

#[test]
fn a_log_that_is_damaged_late_is_told() {
    served::a_log_that_is_damaged_late_is_told();
}

#[test]
fn a_deleted_key_stays_deleted() {
    served::a_deleted_key_stays_deleted();
}

#[test]
fn a_deleted_key_stays_deleted_without_tombstones() {
    served::a_deleted_key_stays_deleted_without_tombstones();
}

#[test]
fn a_wait_for_the_disk_holds_up_nobody() {
    served::a_wait_for_the_disk_holds_up_nobody();
}

#[test]
fn keys_that_come_and_go_take_no_memory() {
    served::keys_that_come_and_go_take_no_memory();
}

#[test]
fn an_emptied_table_gets_nothing_of_the_load() {
    served::an_emptied_table_gets_nothing_of_the_load();
}

#[test]
fn a_flush_of_what_is_damaged_ends_the_load() {
    served::a_flush_of_what_is_damaged_ends_the_load();
}

#[test]
fn memory_is_kept_for_what_still_counts() {
    served::memory_is_kept_for_what_still_counts();
}

#[test]
fn a_long_chain_is_served_within_the_limit() {
    served::a_long_chain_is_served_within_the_limit();
}

#[test]
fn a_run_that_misses_a_record_does_not_commit() {
    served::a_run_that_misses_a_record_does_not_commit();
}

#[test]
fn damage_that_shows_late_is_told() {
    served::damage_that_shows_late_is_told();
}

#[test]
fn deadlines_survive_with_every_scheme_and_journal() {
    deadlines::deadlines_survive();
    deadlines::deadlines_survive_with_every_scheme_and_journal();
}

#[test]
fn what_is_given_up_stays_away() {
    deadlines::what_is_given_up_stays_away();
}

#[test]
fn deadlines_stay_when_blocks_move() {
    deadlines::deadlines_stay_when_blocks_move();
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
fn what_a_session_calls_durable_is_there() {
    serials::what_a_session_calls_durable_is_there();
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
fn a_count_rests_on_what_it_counts() {
    pointed::a_count_rests_on_what_it_counts();
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
fn each_scheme_opens_what_another_has_left() {
    schemes::each_scheme_opens_what_another_has_left();
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

#[test]
fn what_a_checkpoint_holds_beyond_the_cut_is_undone() {
    undone::what_a_checkpoint_holds_beyond_the_cut_is_undone();
}

#[test]
fn commits_after_a_repair_are_newer_than_what_a_checkpoint_has() {
    undone::commits_after_a_repair_are_newer_than_what_a_checkpoint_has();
}

#[test]
fn what_a_fuzzy_checkpoint_holds_is_closed() {
    undone::what_a_fuzzy_checkpoint_holds_is_closed();
}

/// The crash states of each setting: by default 1,000 without checkpoints and where commits save
/// before-images, and 60 otherwise. `STILLPOINT_CRASH_SHARE=K/N` names the share of these that get as many
/// as the others, so that N runs cover all. Beside `STILLPOINT_CRASH_STATES` it names the share of all
/// settings that get so many, and the others get a quarter. `STILLPOINT_CRASH_SETTINGS=K/N` runs the K-th
/// of N shares of the settings alone.
fn states_of_each() -> Vec<(Setting, u64)> {
    let wanted = std::env::var("STILLPOINT_CRASH_STATES")
        .ok()
        .map(|text| text.parse::<u64>().expect("STILLPOINT_CRASH_STATES is a number"));
    let share = share("STILLPOINT_CRASH_SHARE");
    let mut others = 0;
    let states = |(number, setting): (usize, Setting)| {
        let capabilities = setting.row().capabilities;
        let saves_images = capabilities.cells.write == WriteRule::SaveBeforeImage;
        let is_usual = saves_images || !capabilities.takes_checkpoints();
        let is_undone = capabilities.needs_before_images();
        let at = others;
        others += usize::from(!is_usual);
        let is_chosen = is_usual || share.is_some_and(|(k, n)| at % n == k);
        let few = if is_undone { 200 } else { 60 };
        let states = match (wanted, share) {
            (Some(wanted), Some((k, n))) if number % n != k => wanted.div_ceil(4),
            (Some(wanted), _) => wanted,
            (None, _) => {
                if is_chosen {
                    1000
                } else {
                    few
                }
            }
        };
        // The logs are those of redo, but for the calls or the before-images in them.
        let share = match setting.journal {
            "command" => 3,
            "undo-redo" if !capabilities.needs_before_images() => 6,
            _ => 1,
        };
        (setting, states / share)
    };
    let all = matrix().into_iter().enumerate().map(states).enumerate();
    let (k, n) = self::share("STILLPOINT_CRASH_SETTINGS").unwrap_or((0, 1));
    all.filter(|(at, _)| at % n == k).map(|(_, of)| of).collect()
}

/// The share `K/N` that an environment variable names.
fn share(name: &str) -> Option<(usize, usize)> {
    let text = std::env::var(name).ok()?;
    let share = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let (k, n): (usize, usize) = share.unwrap_or_else(|| panic!("{name}={text}: K/N is wanted"));
    assert!(k < n, "{name}={text}: K below N");
    Some((k, n))
}

/// Runs seeds on every scheme and journal of this durability.
fn campaign(durability: Durability) {
    let only = std::env::var("STILLPOINT_CRASH_SEED").ok().and_then(|text| text.parse().ok());
    let settings = states_of_each().into_iter();
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
