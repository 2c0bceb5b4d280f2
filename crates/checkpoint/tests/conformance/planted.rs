//! Bugs planted in the phases. A check of this suite catches each bug, and no check complains
//! without a bug. Each check runs in a process of its own, since a broken store may panic anywhere.

use std::process::{Command, Stdio};
use std::time::Duration;

use stillpoint_io::{Clock, RealClock};
use stillpoint_store::{Bug, PointOfConsistency};

use crate::bank::{self, Plan, Share, rows_that_take_checkpoints};
use crate::faults::cancel_everywhere;
use crate::mirror;
use crate::traps::{commits_under_way, every_span};
use crate::world::World;

const BUG: &str = "STILLPOINT_TEST_BUG";
const CHECK: &str = "STILLPOINT_TEST_CHECK";
const SCHEME: &str = "STILLPOINT_TEST_SCHEME";
const PATIENCE: Duration = Duration::from_secs(60);
const CHECKS: u64 = 5;

/// The schemes whose code contains the bug, and which are in the share of this run: at least one.
fn schemes_of_run(bug: Bug) -> impl Iterator<Item = &'static str> {
    let (share, schemes) = (Share::of_run(), schemes_with(bug));
    let (k, n) = (share.k as usize, (share.n as usize).min(schemes.len().max(1)));
    schemes.iter().copied().skip(k % n).step_by(n)
}

/// The schemes whose code contains the bug.
fn schemes_with(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::NextCopyKept => &["zigzag", "zigzag:partial"],
        Bug::CopyReused => &[
            "zigzag",
            "zigzag:partial",
            "calc-stored",
            "cou",
            "fuzzy",
            "fuzzy:partial",
            "fuzzy-undo",
            "hourglass",
            "piggyback",
            "ping-pong:partial",
        ],
        Bug::DirtyForgotten
        | Bug::DirtyCellReused
        | Bug::MarkNotNoted
        | Bug::ChainForgotten
        | Bug::MovedWithoutStatus => &OF_CHANGES_AND_FUZZY[2..],
        Bug::TombstoneDropped => OF_CHANGES_AND_FUZZY,
        Bug::DeadlineUnmarked => &OF_CHANGES_AND_FUZZY[2..],
        Bug::DeadlineNotCopied => OF_COPIES,
        Bug::StopEndsEarly => &["naive", "naive:partial"],
        Bug::NotBroughtOver => &["hourglass", "piggyback", "ping-pong:partial"],
        Bug::WriteRuleForgotten => OF_COPIES,
        Bug::ParentRead => &["fork"],
        Bug::ShadowLost => &["cou", "cou:partial", "calc-stored", "calc-stored:partial"],
        Bug::MarksForgotten => &["calc", "calc:partial", "cou", "calc-stored"],
        Bug::MarksNotSeen => &["calc", "calc:partial"],
        // A race of a few instructions. The models of the store see these.
        Bug::StatusLost | Bug::CopyNotAwaited => &[],
        // These worlds have no keys under others.
        Bug::ParentNotReadAgain | Bug::ParentEndedFirst => &[],
        // The pool of these worlds is large. The models of the store have a small one.
        Bug::ExceededUnclaimed => &[],
        Bug::RelocatedWithoutMark => &["calc:partial", "naive:partial", "fuzzy:partial"],
        Bug::RelocatedNotReplaced => &["calc", "calc:partial", "naive", "fuzzy"],
        Bug::RelocatedWithoutStatus | Bug::RelocatedUnclaimed => &["calc", "calc:partial"],
        _ => &["calc"],
    }
}

const OF_CHANGES_AND_FUZZY: &[&str] = &[
    "fuzzy",
    "fuzzy-undo",
    "fuzzy:partial",
    "naive:partial",
    "calc:partial",
    "calc-stored:partial",
    "cou:partial",
    "zigzag:partial",
    "ping-pong:partial",
    "hourglass",
    "fuzzy-undo:partial",
];

const OF_COPIES: &[&str] = &[
    "cou",
    "cou:partial",
    "zigzag",
    "zigzag:partial",
    "ping-pong",
    "ping-pong:partial",
    "hourglass",
    "piggyback",
];

/// Runs the check of this number. False if there is none.
fn check(number: usize, scheme: &str, bug: Option<Bug>) -> bool {
    let row = rows_that_take_checkpoints().find(|row| row.name == scheme).expect("it is a row");
    let plant = |world: &World| {
        if let Some(bug) = bug {
            world.store.driver().plant(bug);
        }
    };
    let stops = row.capabilities.point == Some(PointOfConsistency::PhysicalThroughout);
    match number {
        // Transactions cannot run at each step of a checkpoint that stops them.
        0 | 2 if stops => {}
        0 => {
            let world = World::new(row, 1);
            plant(&world);
            every_span(&world);
        }
        1 => cancel_everywhere(row, &plant),
        2 => commits_under_way(row, &plant),
        3 => {
            for seed in 1..=4 {
                let mut world = World::new(row, seed);
                let plan = Plan { bug, ..Plan::new(seed) };
                let outcome = bank::run(&mut world, plan);
                bank::check(&world, plan, &outcome);
            }
        }
        4 => mirror::compare(row, 1, &plant),
        _ => return false,
    }
    true
}

/// Not a test of its own: [`every_planted_bug_is_caught`] starts it in a process.
#[test]
#[ignore = "started by another test, with a bug in its environment"]
fn child() {
    let number = std::env::var(CHECK).expect("the number of a check");
    let name = std::env::var(BUG).expect("the name of a bug, or none");
    let bug = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    assert_eq!(bug.is_none(), name == "none");
    let scheme = std::env::var(SCHEME).expect("the name of a scheme");
    assert!(check(number.parse().expect("a number"), &scheme, bug));
}

/// True if the check passed.
fn passes(number: usize, scheme: &str, bug: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().expect("a test runs"))
        .args(["--exact", "planted::child", "--ignored"])
        .env(CHECK, number.to_string())
        .env(SCHEME, scheme)
        .env(BUG, bug)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let start_ns = RealClock.monotonic_ns();
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.success();
        }
        if RealClock.monotonic_ns() - start_ns > PATIENCE.as_nanos() as u64 {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            panic!("check {number} of {scheme} with {bug} does not end");
        }
        RealClock.sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let share = Share::of_run();
    let has_bug = |name: &str| Bug::ALL.into_iter().any(|bug| schemes_with(bug).contains(&name));
    let without = rows_that_take_checkpoints().map(|row| row.name).find(|name| !has_bug(name));
    assert_eq!(without, None, "no bug is planted in this row");
    for (at, scheme) in rows_that_take_checkpoints().map(|row| row.name).enumerate() {
        // Without a bug these checks are tests of their own.
        for number in (0..CHECKS).filter(|number| share.has(CHECKS * at as u64 + number)) {
            let number = number as usize;
            let context = format!("check {number} of {scheme} fails without a bug");
            assert!(passes(number, scheme, "none"), "{context}");
        }
    }
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        for scheme in schemes_of_run(bug) {
            if (0..CHECKS as usize).all(|number| passes(number, scheme, &format!("{bug:?}"))) {
                missed.push(format!("{bug:?} in {scheme}"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
