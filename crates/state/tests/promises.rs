//! Tests of the promises of a state's calls: durability without a log, reported failures, steps
//! that panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{Call, Clock, Fault, FaultPlan, Lasts, RealClock, RealRng, SimDisk};
use stillpoint_state::schemes::{Hourglass, NoCheckpoints, Piggyback};
use stillpoint_state::{
    Actions, Array, Background, Cells, Config, Environment, Every, Interleaved, Naive, Pace,
    Scheme, State, StateError,
};

const CELLS: usize = 10_000;

type Hg = Hourglass<Interleaved>;
type Pb = Piggyback<Interleaved>;

fn open<S: Scheme>(disk: &SimDisk, config: &Config) -> (State<S>, Array<u64>) {
    let environment = Environment {
        disk: Arc::new(disk.clone()),
        clock: Arc::new(RealClock),
        rng: Arc::new(RealRng),
    };
    let mut builder = State::<S>::builder();
    let sums = builder.array::<u64>("sums", CELLS);
    let again = |cells: &mut Cells<S>, tick: u64, actions: Actions<'_>| {
        step(cells, sums, tick, actions);
    };
    let (state, _) = builder.open(environment, config, |_| {}, again).expect("a disk");
    (state, sums)
}

fn step<S: Scheme>(cells: &mut Cells<S>, sums: Array<u64>, tick: u64, actions: Actions<'_>) {
    let sum: u64 = actions.into_iter().flatten().map(|byte| u64::from(*byte)).sum();
    cells.write(sums, tick as usize % CELLS, tick + sum);
}

fn run<S: Scheme>(state: &mut State<S>, sums: Array<u64>, ticks: u64) {
    for _ in 0..ticks {
        state.step(|cells, tick, actions| step(cells, sums, tick, actions)).expect("it ends");
    }
}

fn no_log(background: Background) -> Config {
    let pace = Pace::BytesPerSecond(1);
    let every = Every::OnRequest;
    Config { logs_actions: false, block_bytes: 8192, background, pace, every, ..Config::default() }
}

const BOTH: [Background; 2] = [Background::Threads, Background::Manual];

fn kept_without_a_log<S: Scheme>(background: Background) {
    let disk = SimDisk::new(1);
    let (mut state, sums) = open::<S>(&disk, &no_log(background));
    run(&mut state, sums, 100);
    assert_eq!(state.durable_tick(), 0);
    state.wait_durable(60).expect("an image");
    assert_eq!(state.durable_tick(), 100, "of now");
    run(&mut state, sums, 400);
    state.close().expect("an image");
    let (state, sums) = open::<S>(&disk.crash(5), &no_log(background));
    assert_eq!((state.ticks(), state.read(sums, 500), state.read(sums, 501)), (500, 500, 0));
}

#[test]
fn without_a_log_close_and_waiting_take_an_image() {
    for background in BOTH {
        kept_without_a_log::<Hg>(background);
        kept_without_a_log::<Pb>(background);
    }
}

#[test]
fn what_cannot_become_durable_is_refused() {
    for background in BOTH {
        let disk = SimDisk::new(1);
        let (mut state, sums) = open::<NoCheckpoints<Naive>>(&disk, &no_log(background));
        run(&mut state, sums, 3);
        let error = state.wait_durable(2).expect_err("nothing keeps it");
        assert!(matches!(error, StateError::NothingKeepsTicks { tick: 2 }), "{error}");
        let error = state.wait_durable(4).expect_err("it has not ended");
        assert!(matches!(error, StateError::TickNotEnded { tick: 4, ended: 3 }), "{error}");
        state.close().expect("nothing was promised");

        let (mut state, sums) = open::<Hg>(&SimDisk::new(2), &no_log(background));
        run(&mut state, sums, 3);
        state.write(sums, 7, 7);
        let error = state.close().expect_err("no image can be as of tick 3");
        assert!(matches!(error, StateError::CellsChanged { ended: 3 }), "{error}");
    }
}

/// From now on no image can be begun.
fn refuse_images(disk: &SimDisk) {
    let (calls, fault) = (vec![Call::Allocate], Fault::InputOutput);
    disk.inject(FaultPlan { calls, nth: 1, fault, lasts: Lasts::UntilCleared });
}

#[test]
fn close_says_why_there_is_no_image() {
    for background in BOTH {
        let disk = SimDisk::new(1);
        let (mut state, sums) = open::<Hg>(&disk, &no_log(background));
        refuse_images(&disk);
        run(&mut state, sums, 3);
        let error = state.close().expect_err("no image");
        assert!(matches!(error, StateError::ImagesFail { failures: 3, .. }), "{error}");
    }
}

/// Ends ticks until one returns an error, or until `done` is true.
fn tick_until(
    state: &mut State<Hg>,
    mut is_enough: impl FnMut(&State<Hg>) -> bool,
) -> Option<StateError> {
    loop {
        let before = state.ticks();
        let ended = state.tick();
        assert_eq!(state.ticks(), before + 1, "the tick has ended, whatever it says");
        if ended.is_err() || is_enough(state) {
            return ended.err();
        }
        state.checkpoint(); // the image comes sooner than after a pause
        RealClock.sleep(Duration::from_micros(200));
    }
}

#[test]
fn images_that_fail_are_told_once_until_one_is_durable() {
    let disk = SimDisk::new(1);
    let config = Config { logs_actions: false, block_bytes: 8192, ..Config::default() };
    let (mut state, _) = open::<Hg>(&disk, &config);
    for round in 1..=2 {
        refuse_images(&disk);
        let error = tick_until(&mut state, |_| false).expect("images fail");
        assert!(matches!(error, StateError::ImagesFail { failures: 5.., .. }), "{error}");
        let failures = state.progress().snapshot().failures;
        let more = |state: &State<Hg>| state.progress().snapshot().failures > failures + 5;
        assert!(tick_until(&mut state, more).is_none(), "told twice");
        disk.clear_faults();
        let images = state.progress().snapshot().images;
        let is_well = |state: &State<Hg>| state.progress().snapshot().images > images + 1;
        assert!(tick_until(&mut state, is_well).is_none(), "round {round}");
    }
    // `close` returns the error, if no tick has returned it.
    refuse_images(&disk);
    let fails = |state: &State<Hg>| state.progress().snapshot().failures_in_a_row > 0;
    assert!(tick_until(&mut state, fails).is_none());
    state.close().expect_err("no image");
}

fn panicking_step(logs_actions: bool, background: Background) {
    let disk = SimDisk::new(1);
    let config = Config { logs_actions, ..no_log(background) };
    let (mut state, sums) = open::<Hg>(&disk, &config);
    run(&mut state, sums, 3);
    if !logs_actions {
        state.wait_durable(3).expect("an image");
    }
    state.log(&[7]).expect("it is short");
    let half = AssertUnwindSafe(|| {
        state.step(|cells, _, _| {
            cells.write(sums, 1, 999);
            panic!("a bug of the step");
        })
    });
    catch_unwind(half).expect_err("it panics");
    let error = state.tick().expect_err("it cannot end");
    assert!(matches!(error, StateError::StepPanicked { tick: 4 }), "{error}");
    state.log(&[8]).expect_err("nothing more is added");
    state.step(|_, _, _| unreachable!("no step runs")).expect_err("no step runs");
    assert_eq!((state.ticks(), state.read(sums, 1)), (3, 999), "cells can be read");
    state.close().expect("the ticks before it are durable");
    let (mut state, sums) = open::<Hg>(&disk.crash(5), &config);
    assert_eq!((state.ticks(), state.read(sums, 1)), (3, 1));
    run(&mut state, sums, 1);
    assert_eq!(state.read(sums, 4), 4, "its actions are gone");
}

#[test]
fn a_step_that_panics_never_ends() {
    for background in BOTH {
        panicking_step(true, background);
        panicking_step(false, background);
    }
}

#[test]
fn a_step_does_not_run_twice_for_one_tick() {
    let disk = SimDisk::new(1);
    let every = Every::OnRequest;
    let background = Background::Manual;
    let config = Config { queue_bytes_max: 100, background, every, ..Config::default() };
    let (mut state, sums) = open::<Hg>(&disk, &config);
    run(&mut state, sums, 1);
    disk.set_capacity(Some(0));
    state.flush_actions().expect_err("there is no space");
    state.log(&[5]).expect("it is short");
    state.step(|cells, tick, actions| step(cells, sums, tick, actions)).expect("an empty queue");
    state.log(&[7; 200]).expect("it is short");
    let once =
        |state: &mut State<Hg>| state.step(|cells, tick, actions| step(cells, sums, tick, actions));
    let error = once(&mut state).expect_err("there is no room");
    assert!(matches!(error, StateError::LogFull(_)), "{error}");
    let error = once(&mut state).expect_err("it has run");
    assert!(matches!(error, StateError::StepHasRun { tick: 3 }), "{error}");
    disk.set_capacity(None);
    while state.flush_actions().expect("space again") {}
    assert_eq!(state.tick().expect("room again"), 3);
    assert_eq!(once(&mut state).expect("another step"), 4);
}
