//! Tests that the crash suite catches each planted bug of commit, acknowledgement, publication and
//! recovery. The conformance suite of `stillpoint-checkpoint` plants the bugs of phases and
//! capture.
//!
//! `cargo test -p stillpoint --features planted-bugs --test planted` Only one bug:
//! `STILLPOINT_PLANTED=<bug>` before the command.
//!
//! | bug | what is wrong |
//! |---|---|
//! | `NamesOnlyUnflushed` | two hops: a dependency is flushed, but not closed, and is not named |
//! | `CutNotRecorded` | second crash: records that recovery has dropped come back |
//! | `AnswersBeforeFlush` | acknowledged, not yet flushed |
//! | `AnswersWhenFlushed` | acknowledged, flushed, but not closed |
//! | `AnswersReadsAtOnce` | an answer shows a commit that a crash takes back |
//! | `CommitsInDoubt` | half a transaction lies in tables that a failing flush has emptied |
//! | `RemovesBeforePublishing` | the older checkpoint goes before the newer exists |
//! | `PublishesBeforeLogs` | a checkpoint holds a commit whose log a crash cuts before it |
//! | `DirectoryNotFlushed` | a crash takes the name of a log segment away |
//! | `ReplaysFromTheBeginning` | records of before the checkpoint are replayed over it |
//! | `PositionsTooLate` | commits after the point of consistency count as in the checkpoint |
//! | `EndsNotCopied` | the cut names records that only a cache may hold |
//! | `CutNotClosed` | recovery keeps records that depend on lost ones |
//! | `EmptiesBeforeLogs` | a flush of tables is durable before earlier commits are |
//! | `ReclaimsBeforeClosed` | a key is inserted again without a dependency on its lost deletion |
//! | `UndoLeftOut` | a checkpoint brings a commit back that a crash has taken away |
//! | `UndoesUpwards` | such commits are undone in ascending order |
//! | `PublishesBeforeUndo` | a checkpoint holds a commit before its log has the before-image |
//! | `UndoNotKept` | the next start brings an undone commit back |
//! | `DeadlineNotUndone` | the undo of a change of a deadline leaves the deadline as it is |
//! | `AbsentTakenAsPresent` | the undo of an insertion leaves an empty value |
//! | `LosersKept` | changes in place of a transaction that a crash has cut off stay |
//! | `AbortKeepsChanges` | an abort does not undo changes in place |
//! | `UndoesOldestFirst` | an abort undoes operations in the wrong order |
//! | `UndoFileInOrder` | an abort undoes what was brought to a file in the wrong order |
//! | `UndoFileTrusted` | an abort undoes with damaged bytes of a file |
//! | `UndoRoomNotKept` | other records take the room that an abort needs in the log |
//! | `OpenTransactionsNotHeld` | a checkpoint frees log records with which an open transaction is undone |
//! | `KindPositionTooLate` | changes of a table while its files are written are not replayed |
//! | `PartStampsForgotten` | a commit names no dependency on reads in a table of another kind |
//! | `MemoryWritesLeftOut` | the log has only half of a commit of two kinds |
//! | `ReplaysWithoutMarks` | the first checkpoint of changes after a restart lacks the replayed changes |
//! | `MergeDropsDeletions` | a merge without the full checkpoint brings deleted keys back |
//! | `MergesOverKeptPoint` | a merge removes a point that a restore offers |
//! | `RemovesHeldFiles` | a merge removes files that somebody copies |
//! | `RemovesWhatIsMade` | who lets go of held files removes those of a checkpoint under way |
//! | `FloorNotRaised` | a key that is inserted again gets a smaller gsn |
//! | `ReadStampLeftOut` | who overwrites what a call has read gets a smaller gsn |
//! | `CallsOutOfOrder` | a call is made again before one that it depends on |
//! | `ReadersNotAwaited` | a replay overwrites what a call before it has still to read |
//! | `InputsNotRepeated` | a call that is made again reads another time |
//! | `VersionMistaken` | a call is made again in another version |
//! | `DigestNotCompared` | a changed procedure is served with what it writes now |
//! | `EmptiedTooEarly` | a call reads an empty table, which was emptied after it |
//! | `SerialAheadOfClosed` | a session calls durable what is not flushed |
//! | `SerialWithoutReads` | a session calls a read durable whose writer a crash takes away |
//! | `SerialOfPresentEpoch` | a session calls durable what the next checkpoint will hold |
//! | `SerialBeforeCommit` | a named session resumes behind a commit that was never made |
//! | `SnapshotClearsMarks` | the checkpoint after a snapshot lacks earlier changes |
//! | `SnapshotSurvivesFlush` | a snapshot lacks records of a table that is emptied meanwhile |
//! | `NumberWithoutStamp` | a count has an insertion or deletion that a crash takes back |
//! | `LoadOverwrites` | a record that is loaded while the store is served replaces a newer one |
//! | `PatchesWithoutBase` | a replayed patch is applied before the record that it changes is loaded |
//! | `LoadForgetsDeletions` | a key that is deleted while the store is loaded comes back |
//! | `BesideIsOlder` | a record beside the sought one is entered although a newer checkpoint has it |
//! | `CommitsAfterMiss` | a transaction commits that has missed a record on the disk |
//! | `FlushKeepsMemory` | memory is kept for records on the disk whose table was emptied |
//! | `LoadForgetsNewKeys` | a load beside transactions leaves out the keys that only the log has |
//! | `CheckpointLacksReplayed` | a checkpoint during a load lacks what only the earlier logs have |
//! | `EvictionNotLogged` | a key that a full cache has given up comes back |
//! | `UndosNotRepeated` | a replay leaves changes that an undo has taken back |
//! | `UndoneAgain` | a second crash undoes what was undone and then changed |
//! | `GenerationsBeforePositions` | a table that is emptied amid a checkpoint loses later commits |
//! | `PagesFailUnheard` | commits go on after a failed write of pages |
//! | `RollbacksNotCounted` | transactions that roll back fill the log, and no checkpoint comes |
//! | `LogPinnedForEver` | an open transaction keeps the log without a limit |
//! | `LogLimitIgnored` | the log exceeds its limit |
//! | `IdleKeepsLog` | an open transaction that nobody uses keeps writers out |
//! | `DeadlineNotCaptured` | a checkpoint lacks the deadlines of records |
//! | `DeadlineNotReplayed` | a replay leaves out a deadline that was set alone |
//! | `DeadlineNotMoved` | a large value loses its deadline when its blocks move |

#[path = "crash/chains.rs"]
mod chains;
#[path = "kinds/checkpoints.rs"]
mod checkpoints;
#[path = "crash/deadlines.rs"]
mod deadlines;
#[path = "crash/doubt.rs"]
mod doubt;
#[path = "crash/gate.rs"]
mod gate;
#[path = "crash/history.rs"]
mod history;
#[path = "kinds/in_place.rs"]
mod in_place;
#[path = "crash/interleaved.rs"]
mod interleaved;
#[path = "snapshot/kept.rs"]
mod kept;
#[path = "kinds/crash.rs"]
mod kinds;
#[path = "crash/lives.rs"]
mod lives;
#[path = "kinds/log_limit.rs"]
mod log_limit;
#[path = "command/mix.rs"]
mod mix;
#[path = "command/pointed.rs"]
mod of_calls;
#[path = "kinds/pages.rs"]
mod pages;
#[path = "crash/pointed.rs"]
mod pointed;
#[path = "crash/published.rs"]
mod published;
#[path = "crash/serials.rs"]
mod serials;
#[path = "crash/served.rs"]
mod served;
#[path = "crash/settings.rs"]
mod settings;
#[path = "crash/small.rs"]
mod small;
#[path = "kinds/space.rs"]
mod space;
#[path = "crash/stage.rs"]
mod stage;
#[path = "crash/steps.rs"]
mod steps;
#[path = "kinds/undo_file.rs"]
mod undo_file;
#[path = "crash/undone.rs"]
mod undone;
#[path = "crash/workload.rs"]
mod workload;
#[path = "kinds/world.rs"]
mod world;

use lives::run_seed;
use settings::{Setting, matrix};
use stillpoint_sync::planted::{Bug, plant};

/// What is run with a bug in it.
struct Scenario {
    name: &'static str,
    run: fn(),
    /// Bugs that this scenario is known to see. They meet it before all others.
    sees: &'static [Bug],
}

const fn scenario(name: &'static str, run: fn(), sees: &'static [Bug]) -> Scenario {
    Scenario { name, run, sees }
}

/// Each bug shows in one of these situations. All but the last were made for one bug.
const SCENARIOS: &[Scenario] = &[
    scenario(
        "keys given up for memory",
        deadlines::what_is_given_up_stays_away,
        &[Bug::EvictionNotLogged],
    ),
    scenario(
        "deadlines across a crash",
        deadlines::deadlines_survive,
        &[Bug::DeadlineNotCaptured, Bug::DeadlineNotReplayed],
    ),
    scenario(
        "blocks that move",
        deadlines::deadlines_stay_when_blocks_move,
        &[Bug::DeadlineNotMoved],
    ),
    scenario(
        "a snapshot before a checkpoint of changes",
        kept::a_snapshot_clears_no_mark,
        &[Bug::RemovesBeforePublishing, Bug::SnapshotClearsMarks],
    ),
    scenario(
        "a snapshot across a flush",
        kept::a_snapshot_ends_when_a_table_is_emptied,
        &[Bug::SnapshotSurvivesFlush],
    ),
    scenario(
        "a read before an overwrite",
        of_calls::who_overwrites_what_another_has_read_comes_after,
        &[Bug::AnswersBeforeFlush, Bug::ReadStampLeftOut, Bug::CallsOutOfOrder],
    ),
    scenario(
        "a read behind a slow call",
        of_calls::a_replay_overwrites_nothing_that_is_still_to_be_read,
        &[Bug::ReadersNotAwaited],
    ),
    scenario(
        "logged inputs",
        of_calls::time_and_random_numbers_are_logged,
        &[Bug::InputsNotRepeated],
    ),
    scenario(
        "versions of a procedure",
        of_calls::a_start_needs_the_versions_that_the_logs_name,
        &[Bug::VersionMistaken],
    ),
    scenario(
        "a changed procedure",
        of_calls::a_call_that_writes_something_else_is_refused,
        &[Bug::DigestNotCompared],
    ),
    scenario(
        "a call before a flush",
        of_calls::a_call_reads_what_a_table_held_before_it_was_emptied,
        &[Bug::ReplaysFromTheBeginning, Bug::EmptiedTooEarly],
    ),
    scenario(
        "a chain after a restart",
        chains::a_chain_goes_on_after_a_restart,
        &[Bug::ReplaysWithoutMarks],
    ),
    scenario(
        "a merge of changes",
        chains::a_merge_of_changes_keeps_deletions,
        &[Bug::DirectoryNotFlushed, Bug::MergeDropsDeletions],
    ),
    scenario("held files", chains::held_files_stay, &[Bug::RemovesHeldFiles]),
    scenario(
        "a hold dropped in the middle of a checkpoint",
        chains::a_hold_is_dropped_in_the_middle_of_a_checkpoint,
        &[Bug::RemovesWhatIsMade],
    ),
    scenario(
        "a merge beside kept points",
        chains::a_merge_leaves_the_points_that_are_kept,
        &[Bug::MergesOverKeptPoint],
    ),
    scenario(
        "transactions on two kinds of tables",
        kinds::transactions_on_two_kinds,
        &[
            Bug::AnswersWhenFlushed,
            Bug::AnswersReadsAtOnce,
            Bug::PublishesBeforeLogs,
            Bug::LosersKept,
            Bug::AbortKeepsChanges,
            Bug::UndoesOldestFirst,
            Bug::OpenTransactionsNotHeld,
            Bug::PartStampsForgotten,
            Bug::MemoryWritesLeftOut,
        ],
    ),
    scenario(
        "a crash during the undo",
        kinds::a_crash_during_the_undo,
        &[Bug::UndosNotRepeated, Bug::UndoneAgain],
    ),
    scenario(
        "a transaction across a checkpoint",
        checkpoints::a_transaction_open_across_a_checkpoint_is_undone,
        &[],
    ),
    scenario(
        "transactions beside a checkpoint",
        checkpoints::transactions_beside_a_checkpoint_are_in_it_or_replayed,
        &[Bug::KindPositionTooLate],
    ),
    scenario(
        "an abort in a full log",
        space::an_abort_finds_room_in_a_full_log,
        &[Bug::UndoRoomNotKept],
    ),
    scenario(
        "an undo in a file",
        undo_file::a_large_transaction_ends_either_way,
        &[Bug::UndoFileInOrder],
    ),
    scenario(
        "a lost file of undos",
        undo_file::a_lost_file_of_undos_fails_the_store,
        &[Bug::UndoFileTrusted],
    ),
    scenario("a savepoint in a file of undos", undo_file::a_savepoint_is_found_in_the_file, &[]),
    scenario(
        "a refused file of undos",
        undo_file::a_refused_file_of_undos_ends_its_transaction_alone,
        &[],
    ),
    scenario(
        "a flush before the turn of a kind",
        pages::a_flush_before_the_turn_of_a_kind_loses_nothing,
        &[Bug::GenerationsBeforePositions],
    ),
    scenario(
        "a flush beside the holder of the permit",
        pages::a_flush_and_the_holder_of_the_permit_both_end,
        &[],
    ),
    scenario(
        "a failed write of pages",
        pages::a_failed_write_of_pages_fails_the_store,
        &[Bug::PagesFailUnheard],
    ),
    scenario(
        "rollbacks alone",
        pages::rollbacks_alone_do_not_fill_the_log,
        &[Bug::RollbacksNotCounted],
    ),
    scenario(
        "a transaction that keeps the log",
        pages::a_transaction_that_keeps_the_log_is_told,
        &[Bug::LogPinnedForEver],
    ),
    scenario(
        "writers at the limit of the log",
        log_limit::writers_wait_for_the_checkpoint_that_frees_the_log,
        &[Bug::LogLimitIgnored, Bug::IdleKeepsLog],
    ),
    scenario(
        "a log that nothing frees",
        log_limit::a_log_that_nothing_frees_refuses_writes_alone,
        &[],
    ),
    scenario(
        "a log that no thread frees",
        log_limit::a_log_that_no_thread_frees_ends_at_its_limit,
        &[],
    ),
    scenario("losers and threads", pages::losers_are_undone_in_threads, &[]),
    scenario("freed logs", checkpoints::logs_are_freed_behind_a_checkpoint_of_both_kinds, &[]),
    scenario("a flush of two kinds", checkpoints::a_flush_empties_tables_of_both_kinds, &[]),
    scenario(
        "a flush during a checkpoint",
        checkpoints::a_flush_during_a_checkpoint_empties_what_it_has_copied,
        &[],
    ),
    scenario("an acknowledged commit", published::an_acknowledged_commit, &[]),
    scenario("two hops", pointed::two_hops, &[Bug::NamesOnlyUnflushed, Bug::CutNotClosed]),
    scenario("second crash", pointed::second_crash, &[Bug::CutNotRecorded]),
    scenario("an answered read", pointed::an_answered_read, &[]),
    scenario(
        "a count rests on what it counts",
        pointed::a_count_rests_on_what_it_counts,
        &[Bug::NumberWithoutStamp],
    ),
    scenario(
        "an insertion rests on the deletion",
        pointed::an_insertion_rests_on_the_deletion,
        &[Bug::ReclaimsBeforeClosed],
    ),
    scenario(
        "an insertion comes after the deletion",
        pointed::an_insertion_comes_after_the_deletion,
        &[Bug::FloorNotRaised],
    ),
    scenario(
        "commits during a checkpoint",
        published::commits_during_a_checkpoint,
        &[Bug::PositionsTooLate],
    ),
    scenario("a log without its beginning", published::a_log_without_its_beginning, &[]),
    scenario(
        "a flush of tables",
        published::a_flush_of_tables_comes_after_what_was_committed,
        &[Bug::EmptiesBeforeLogs],
    ),
    scenario(
        "a transaction across a flush of tables",
        pointed::a_transaction_open_across_a_flush_of_tables_begins_again,
        &[],
    ),
    scenario(
        "a transaction across a failing flush of tables",
        pointed::a_transaction_open_across_a_failing_flush_of_tables_stays_whole,
        &[Bug::CommitsInDoubt],
    ),
    scenario(
        "a reader across a flush of tables",
        pointed::a_reader_open_across_a_flush_of_tables_begins_again,
        &[],
    ),
    scenario("a checkpoint cut off at any call", pointed::a_checkpoint_cut_off_at_any_call, &[]),
    scenario(
        "commits that a checkpoint holds beyond the cut",
        undone::what_a_checkpoint_holds_beyond_the_cut_is_undone,
        &[
            Bug::UndoLeftOut,
            Bug::UndoesUpwards,
            Bug::PublishesBeforeUndo,
            Bug::UndoNotKept,
            Bug::DeadlineNotUndone,
            Bug::AbsentTakenAsPresent,
        ],
    ),
    scenario("a fuzzy checkpoint", undone::what_a_fuzzy_checkpoint_holds_is_closed, &[]),
    scenario(
        "commits after a repair",
        undone::commits_after_a_repair_are_newer_than_what_a_checkpoint_has,
        &[],
    ),
    scenario(
        "what only a cache held",
        doubt::what_only_a_cache_held_is_not_named,
        &[Bug::EndsNotCopied],
    ),
    scenario("a start on a full disk", doubt::a_full_disk_refuses_a_start_that_copies, &[]),
    scenario(
        "sessions interleaved at the steps of a commit",
        interleaved::sessions_interleave_at_the_steps_of_a_commit,
        &[],
    ),
    scenario(
        "a load beside writes",
        served::a_load_overwrites_nothing_newer,
        &[Bug::LoadOverwrites],
    ),
    scenario(
        "a checkpoint during a load",
        served::a_checkpoint_of_changes_waits_for_no_load,
        &[Bug::CheckpointLacksReplayed],
    ),
    scenario(
        "a patch before its base",
        served::a_replayed_patch_waits_for_its_base,
        &[Bug::PatchesWithoutBase],
    ),
    scenario(
        "a load of what only the log has",
        served::what_only_the_log_has_is_loaded,
        &[Bug::LoadForgetsNewKeys],
    ),
    scenario("deletions during a load", served::a_deleted_key_stays_deleted, &[Bug::BesideIsOlder]),
    scenario(
        "deletions during a load, without tombstones",
        served::a_deleted_key_stays_deleted_without_tombstones,
        &[Bug::LoadForgetsDeletions],
    ),
    scenario(
        "a run that misses a record",
        served::a_run_that_misses_a_record_does_not_commit,
        &[Bug::CommitsAfterMiss],
    ),
    scenario(
        "a flush during a load",
        served::memory_is_kept_for_what_still_counts,
        &[Bug::FlushKeepsMemory],
    ),
    scenario(
        "durable serials",
        serials::what_a_session_calls_durable_is_there,
        &[
            Bug::SerialAheadOfClosed,
            Bug::SerialWithoutReads,
            Bug::SerialOfPresentEpoch,
            Bug::SerialBeforeCommit,
        ],
    ),
    scenario("random lives", random_lives, &[]),
];

fn random_lives() {
    let is_default =
        |setting: &Setting| setting.scheme == "calc:partial" && setting.journal == "redo";
    for setting in matrix().iter().filter(|setting| is_default(setting)) {
        assert!((0..3).all(|seed| run_seed(seed, setting) > 0));
    }
}

#[test]
fn a_seed_decides_how_sessions_interleave() {
    interleaved::a_seed_decides_the_run();
}

#[test]
fn every_planted_bug_is_caught() {
    for scenario in SCENARIOS {
        (scenario.run)();
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // Another scenario sees this bug first.
    plant(Some(Bug::PublishesBeforeLogs));
    let early = complaint(&undone::what_a_fuzzy_checkpoint_holds_is_closed);
    plant(None);
    assert!(early.is_some(), "a fuzzy checkpoint that is published early is not caught");
    let mut missed = Vec::new();
    let only = std::env::var("STILLPOINT_PLANTED").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}"));
    for bug in Bug::ALL.iter().copied().filter(wanted) {
        plant(Some(bug));
        let (known, others): (Vec<_>, Vec<_>) =
            SCENARIOS.iter().partition(|it| it.sees.contains(&bug));
        let by = known
            .into_iter()
            .chain(others)
            .find_map(|it| Some(format!("{}: {}", it.name, complaint(&it.run)?)));
        plant(None);
        match by {
            Some(by) => report(&format!("{bug:?}: caught by {by}")),
            None => missed.push(bug),
        }
    }
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught by any scenario: {missed:?}");
}

/// The first line of a failed check's message.
fn complaint(run: &(dyn Fn() + std::panic::RefUnwindSafe)) -> Option<String> {
    let payload = std::panic::catch_unwind(run).err()?;
    let said = match payload.downcast::<String>() {
        Ok(said) => *said,
        Err(payload) => (*payload.downcast::<&str>().ok()?).to_owned(),
    };
    said.lines().next().map(str::to_owned)
}

fn report(line: &str) {
    use std::io::Write;
    let written = writeln!(std::io::stderr(), "{line}");
    written.expect("a terminal or a file");
}
