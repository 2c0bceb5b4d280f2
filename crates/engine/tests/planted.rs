//! Bugs planted in commit, acknowledgement, publication and recovery, each of which the crash
//! suite must catch. Those of phases and capture are planted in the conformance suite of
//! `stillpoint-checkpoint`.
//!
//! `cargo test -p stillpoint --features planted-bugs --test planted`
//! Only one: `STILLPOINT_PLANTED=<bug>` before it.
//!
//! | bug | what is wrong |
//! |---|---|
//! | `NamesOnlyUnflushed` | two hops: a flushed dependency that itself hangs is not named |
//! | `CutNotRecorded` | second crash: what recovery has dropped comes back |
//! | `AnswersBeforeFlush` | acknowledged, not yet flushed |
//! | `AnswersWhenFlushed` | acknowledged, flushed, but not closed |
//! | `AnswersReadsAtOnce` | an answer shows what a crash takes back |
//! | `CommitsInDoubt` | half a transaction lies in tables that a failing flush has emptied |
//! | `RemovesBeforePublishing` | the older checkpoint goes before the newer exists |
//! | `PublishesBeforeLogs` | what a checkpoint holds has passed in its log what a crash takes away |
//! | `DirectoryNotFlushed` | a log segment whose name a crash takes back |
//! | `ReplaysFromTheBeginning` | what is in the checkpoint is replayed over it |
//! | `PositionsTooLate` | what came after the point of consistency counts as in the checkpoint |
//! | `EndsNotCopied` | what a cache may hold is named by the cut |
//! | `CutNotClosed` | recovery keeps records that rest on lost ones |
//! | `EmptiesBeforeLogs` | a flush of tables is durable before what was committed earlier |
//! | `ReclaimsBeforeClosed` | a key is inserted again without resting on its lost deletion |
//! | `FloorNotRaised` | a key that is inserted again goes back in order |

#[path = "crash/doubt.rs"]
mod doubt;
#[path = "crash/history.rs"]
mod history;
#[path = "crash/interleaved.rs"]
mod interleaved;
#[path = "crash/lives.rs"]
mod lives;
#[path = "crash/pointed.rs"]
mod pointed;
#[path = "crash/settings.rs"]
mod settings;
#[path = "crash/stage.rs"]
mod stage;
#[path = "crash/workload.rs"]
mod workload;

use lives::run_seed;
use settings::{Setting, matrix};
use stillpoint_sync::planted::{Bug, plant};

/// Seeds that may pass before the bug must have shown itself.
const SEEDS: u64 = 60;
/// Scenarios that are tried first.
const SCENARIOS: [(&str, fn()); 12] = [
    (
        "sessions interleaved at the steps of a commit",
        interleaved::sessions_interleave_at_the_steps_of_a_commit,
    ),
    ("two hops", pointed::two_hops),
    ("what only a cache held", doubt::what_only_a_cache_held_is_not_named),
    ("a start on a full disk", doubt::a_full_disk_refuses_a_start_that_copies),
    ("second crash", pointed::second_crash),
    ("an answered read", pointed::an_answered_read),
    ("an insertion rests on the deletion", pointed::an_insertion_rests_on_the_deletion),
    ("an insertion comes after the deletion", pointed::an_insertion_comes_after_the_deletion),
    ("a checkpoint cut off at any call", pointed::a_checkpoint_cut_off_at_any_call),
    (
        "a transaction across a flush of tables",
        pointed::a_transaction_open_across_a_flush_of_tables_begins_again,
    ),
    (
        "a transaction across a failing flush of tables",
        pointed::a_transaction_open_across_a_failing_flush_of_tables_stays_whole,
    ),
    (
        "a reader across a flush of tables",
        pointed::a_reader_open_across_a_flush_of_tables_begins_again,
    ),
];

#[test]
fn every_planted_bug_is_caught() {
    let is_default = |setting: &Setting| setting.scheme == "calc" && setting.journal == "redo";
    let settings: Vec<Setting> = matrix().into_iter().filter(is_default).collect();
    for (_, scenario) in SCENARIOS {
        scenario();
    }
    assert!((0..3).all(|seed| run_seed(seed, &settings[0]) > 0));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("STILLPOINT_PLANTED").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}"));
    for bug in Bug::ALL.iter().copied().filter(wanted) {
        plant(Some(bug));
        match caught(&settings) {
            Some(by) => report(&format!("{bug:?}: caught by {by}")),
            None => missed.push(bug),
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught by {SEEDS} seeds: {missed:?}");
}

/// Which check complains first, and how.
fn caught(settings: &[Setting]) -> Option<String> {
    let pointed = SCENARIOS
        .iter()
        .find_map(|(name, scenario)| Some(format!("{name}: {}", complaint(scenario)?)));
    pointed.or_else(|| {
        let runs = (0..SEEDS).flat_map(|seed| settings.iter().map(move |at| (seed, at)));
        runs.into_iter().find_map(|(seed, at)| complaint(&|| drop_count(run_seed(seed, at))))
    })
}

/// The first line of what a check says when it fails.
fn complaint(run: &(dyn Fn() + std::panic::RefUnwindSafe)) -> Option<String> {
    let payload = std::panic::catch_unwind(run).err()?;
    let said = match payload.downcast::<String>() {
        Ok(said) => *said,
        Err(payload) => (*payload.downcast::<&str>().ok()?).to_owned(),
    };
    said.lines().next().map(str::to_owned)
}

/// The crash states are of no interest here.
fn drop_count(_states: u64) {}

fn report(line: &str) {
    use std::io::Write;
    let written = writeln!(std::io::stderr(), "{line}");
    written.expect("a terminal or a file");
}
