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
//! | `RemovesBeforePublishing` | the older checkpoint goes before the newer exists |
//! | `DirectoryNotFlushed` | a log segment whose name a crash takes back |
//! | `ReplaysFromTheBeginning` | what is in the checkpoint is replayed over it |
//! | `PositionsTooLate` | what came after the point of consistency counts as in the checkpoint |
//! | `CutNotClosed` | recovery keeps records that rest on lost ones |
//! | `EmptiesBeforeLogs` | a flush of tables is durable before what was committed earlier |
//! | `ReclaimsBeforeClosed` | a key is inserted again without resting on its lost deletion |
//! | `FloorNotRaised` | a key that is inserted again goes back in order |

#[path = "crash/history.rs"]
mod history;
#[path = "crash/lives.rs"]
mod lives;
#[path = "crash/pointed.rs"]
mod pointed;
#[path = "crash/stage.rs"]
mod stage;
#[path = "crash/workload.rs"]
mod workload;

use lives::{Setting, run_seed};
use stillpoint::Durability;
use stillpoint_sync::planted::{Bug, plant};

/// Seeds that may pass before the bug must have shown itself.
const SEEDS: u64 = 60;
/// Scenarios that are tried first.
const SCENARIOS: [(&str, fn()); 6] = [
    ("two hops", pointed::two_hops),
    ("second crash", pointed::second_crash),
    ("an answered read", pointed::an_answered_read),
    ("a checkpoint cut off at any call", pointed::a_checkpoint_cut_off_at_any_call),
    (
        "a transaction across a flush of tables",
        pointed::a_transaction_open_across_a_flush_of_tables_begins_again,
    ),
    (
        "a reader across a flush of tables",
        pointed::a_reader_open_across_a_flush_of_tables_begins_again,
    ),
];

#[test]
fn every_planted_bug_is_caught() {
    let setting = |durability| Setting { scheme: "calc", journal: "redo", durability };
    let settings = [setting(Durability::Strict), setting(Durability::Relaxed)];
    let fails =
        |run: &(dyn Fn() + std::panic::RefUnwindSafe)| std::panic::catch_unwind(run).is_err();
    let caught = || {
        let pointed = SCENARIOS.iter().find(|(_, scenario)| fails(scenario));
        if let Some((name, _)) = pointed {
            return Some((*name).to_owned());
        }
        let is_caught =
            |&seed: &u64| settings.iter().any(|at| fails(&|| drop_count(run_seed(seed, at))));
        (0..SEEDS).find(is_caught).map(|seed| format!("seed {seed}"))
    };
    for (name, scenario) in SCENARIOS {
        assert!(!fails(&scenario), "{name} fails without a bug");
    }
    assert!((0..3).all(|seed| run_seed(seed, &settings[0]) > 0));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("STILLPOINT_PLANTED").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}"));
    for bug in Bug::ALL.into_iter().filter(wanted) {
        plant(Some(bug));
        match caught() {
            Some(by) => report(&format!("{bug:?}: caught by {by}")),
            None => missed.push(bug),
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught by {SEEDS} seeds: {missed:?}");
}

/// The crash states are of no interest here.
fn drop_count(_states: u64) {}

fn report(line: &str) {
    use std::io::Write;
    let written = writeln!(std::io::stderr(), "{line}");
    written.expect("a terminal or a file");
}
