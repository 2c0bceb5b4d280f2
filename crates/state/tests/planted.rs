//! Bugs planted in schemes, writer, logger and recovery, each of which the suites must catch.
//!
//! `cargo test -p stillpoint-state --features planted-bugs --test planted` Only one bug:
//! `STILLPOINT_PLANTED=<bug>` before the command.

#[path = "crash/lives.rs"]
mod lives;
#[path = "crash/pointed.rs"]
mod pointed;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/threads.rs"]
mod threads;
#[path = "crash/world.rs"]
mod world;

use std::panic::{RefUnwindSafe, catch_unwind};

use stillpoint_io::Fault;
use stillpoint_state::planted::{Bug, plant};
use stillpoint_state::registry;

/// Steps of each cell size within which a bug of a scheme must show itself.
const STEPS: u64 = 20_000;
/// Runs with threads of their own within which a bug of a scheme must show itself. Two threads
/// seldom meet on a loaded machine.
const RUNS: u64 = 2_000;
/// Lives within which a bug of writer, logger or recovery must show itself.
const LIVES: u64 = 60;

const HOURGLASS: &[&str] = &["hg", "hg-interleaved", "hg-naive"];
const PIGGYBACK: &[&str] = &["pb", "pb-bits", "pb-interleaved", "pb-packed"];

/// The name of the scheme that a bug is in, and whether only runs with threads show the bug.
fn scheme_of(bug: Bug) -> Option<(&'static [&'static str], bool)> {
    Some(match bug {
        Bug::PartLosesTheRest => (&["none", "ipp"], false),
        Bug::SnapshotMissesACell => (&["ns"], false),
        Bug::ForkReadsTheParent => (&["fork"], false),
        Bug::OnePageOfEachRange => (&["uffd-wp"], false),
        Bug::CopyOnUpdateSavesTheNew | Bug::CopyOnUpdateKeepsBits => (&["bacou", "cou"], false),
        Bug::ZigzagForgetsAMark | Bug::ZigzagBringsNothingOver => {
            (&["bazz", "nzz", "izz", "pzz"], false)
        }
        Bug::LinesLoseTheirRest => (&["hg", "hg-naive", "ipp", "npp", "pb", "pb-packed"], false),
        Bug::PingPongBringsNothingOver => (&["ipp", "npp"], false),
        Bug::HourglassReadsOneCopy | Bug::HourglassBringsNothingOver => (HOURGLASS, false),
        Bug::ForgetsAFailedCapture | Bug::ForgetsALostBase => {
            (&["hg", "hg-interleaved", "ipp", "npp"], false)
        }
        Bug::PiggybackDoesNotWaitForTheCopier | Bug::PiggybackSettlesTooEarly => (PIGGYBACK, false),
        Bug::PiggybackIgnoresThePieceUnderWay | Bug::PiggybackAnnouncesTooLate => {
            (&["pb", "pb-interleaved"], true)
        }
        Bug::ChunksShareMarks => (&["bazz", "pb-bits"], true),
        Bug::ChunksIgnoreTheCopier => (&["pb", "pb-bits"], true),
        // In layouts that copy cell by cell only a model (shuttle) meets this bug.
        Bug::PiggybackOverlooksTheWriter => (&["pb"], true),
        // Hourglass clears no marks.
        Bug::MarksClearedBeforeDurable => (&["ipp", "npp"], false),
        _ => return None,
    })
}

#[test]
fn every_planted_bug_is_caught() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("STILLPOINT_PLANTED").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}"));
    for bug in Bug::ALL.iter().copied().filter(wanted) {
        plant(Some(bug));
        for (name, complaint) in complaints(bug) {
            match complaint {
                Some(by) => report(&format!("{bug:?} in {name}: caught: {by}")),
                None => missed.push((bug, name)),
            }
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// The complaint of the suite about the bug, for each scheme whose code contains it.
fn complaints(bug: Bug) -> Vec<(&'static str, Option<String>)> {
    let Some((names, takes_threads)) = scheme_of(bug) else {
        return vec![("lives and scenarios", complaint_of_lives())];
    };
    let judge = |name: &'static str| {
        if takes_threads {
            (0..RUNS).find_map(|seed| complaint(&|| threads::run(name, seed)))
        } else {
            complaint(&|| {
                steps::run_all_sizes(name, 0, STEPS);
            })
        }
    };
    let is_here = |name: &&&'static str| registry::names_here().any(|here| here == **name);
    names.iter().filter(is_here).map(|name| (*name, judge(name))).collect()
}

/// The complaint of the crash tests about the bug.
fn complaint_of_lives() -> Option<String> {
    let mut scenarios = pointed::SCENARIOS.iter();
    let pointed = scenarios.find_map(|(name, run)| Some(format!("{name}: {}", complaint(run)?)));
    let faults = || {
        (1..LIVES).find_map(|nth| {
            complaint(&|| {
                lives::run_with_fault("hg", 1, nth, Fault::PowerLoss);
            })
        })
    };
    let pointed = pointed.or_else(faults);
    pointed.or_else(|| {
        (0..LIVES).find_map(|seed| {
            let names = ["hg", "pb", "ipp"];
            names.iter().find_map(|name| {
                complaint(&|| {
                    lives::run_seed(name, seed);
                })
            })
        })
    })
}

/// The first line of the message with which a check fails.
fn complaint(run: &(dyn Fn() + RefUnwindSafe)) -> Option<String> {
    let payload = catch_unwind(run).err()?;
    let said = match payload.downcast::<String>() {
        Ok(said) => *said,
        Err(payload) => (*payload.downcast::<&str>().ok()?).to_owned(),
    };
    Some(said.lines().next().unwrap_or_default().to_owned())
}

fn report(line: &str) {
    use std::io::Write;
    let written = writeln!(std::io::stderr(), "{line}");
    written.expect("a terminal or a file");
}
