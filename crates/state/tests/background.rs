//! Writer and logger on threads of their own, on a real disk.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{
    Call, Clock, Disk, Fault, FaultPlan, Lasts, RealClock, RealDisk, RealRng, SimDisk,
};
use stillpoint_state::{
    Actions, Array, Cells, Config, Content, Environment, Every, Merge, Naive, Pace, Recovered,
    Scheme, State, StateError, registry,
};

const CELLS: usize = 20_000;
const TICKS: u64 = 400;

/// Opens a state, runs ticks, drops the state, and opens it again.
struct Lives {
    merge: Merge,
    pace: Pace,
}

fn step<S: Scheme>(cells: &mut Cells<S>, sums: Array<u64>, tick: u64, actions: Actions<'_>) {
    for action in actions {
        let at = u64::from_le_bytes(action.try_into().expect("eight bytes"));
        for n in 0..50 {
            let index = (at.wrapping_mul(n + 1) % CELLS as u64) as usize;
            let sum = cells.read(sums, index);
            cells.write(sums, index, sum.wrapping_mul(31).wrapping_add(tick));
        }
    }
}

fn open<S: Scheme>(
    dir: &std::path::Path,
    config: &Config,
) -> Result<(State<S>, Array<u64>, Recovered), StateError> {
    open_on(Arc::new(RealDisk::new(dir)?), config)
}

fn open_on<S: Scheme>(
    disk: Arc<dyn Disk>,
    config: &Config,
) -> Result<(State<S>, Array<u64>, Recovered), StateError> {
    let environment = Environment { disk, clock: Arc::new(RealClock), rng: Arc::new(RealRng) };
    let mut builder = State::<S>::builder();
    let sums = builder.array::<u64>("sums", CELLS);
    let first = |cells: &mut Cells<S>| {
        cells.fill(sums, |index| index as u64).expect("no tick has ended");
    };
    let again = |cells: &mut Cells<S>, tick, actions: Actions<'_>| {
        step(cells, sums, tick, actions);
    };
    let (state, recovered) = builder.open(environment, config, first, again)?;
    Ok((state, sums, recovered))
}

impl registry::Program for Lives {
    type Output = u64;

    fn run<S: Scheme>(self) -> u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config {
            merge: self.merge,
            pace: self.pace,
            block_bytes: 16384,
            segment_bytes: 65536,
            every: Every::Interval(Duration::from_millis(2)),
            ..Config::default()
        };
        let mut images = 0;
        let mut wanted: Vec<u64> = (0..CELLS as u64).collect();
        for life in 0..3 {
            let (mut state, sums, recovered) = open::<S>(dir.path(), &config).expect("a disk");
            assert_eq!(recovered.tick, life * TICKS, "all of it was durable");
            assert!(state.iter(sums).eq(wanted.iter().copied()), "life {life}: {recovered:?}");
            for n in 0..TICKS {
                let action = (life * TICKS + n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                state.log(&action.to_le_bytes()).expect("it is short");
                let ended = state.step(|cells, tick, actions| step(cells, sums, tick, actions));
                assert_eq!(ended.expect("a disk"), life * TICKS + n + 1);
                if n % 50 == 0 {
                    state.wait_durable(life * TICKS + n + 1).expect("a disk");
                    RealClock.sleep(Duration::from_millis(3));
                }
            }
            wanted = state.iter(sums).collect();
            let progress = state.progress().snapshot();
            assert_eq!(progress.failures, 0, "{:?}", progress.last_failure);
            images += progress.images;
            if life == 0 {
                state.close().expect("a disk");
            } else {
                state.wait_durable((life + 1) * TICKS).expect("a disk");
            }
        }
        images
    }
}

#[test]
fn every_scheme_goes_on_where_it_was() {
    for name in registry::names_here() {
        let takes_images =
            registry::REGISTRY.find(name).expect("a row").content != Content::Nothing;
        let (merge, pace) = (Merge::FromDisk, Pace::Unpaced);
        let images = registry::run(name, Lives { merge, pace }).expect("it is in the table");
        assert_eq!(images > 3, takes_images, "{name}: {images} images");
    }
}

#[test]
fn copies_in_memory_and_paced_writers() {
    for name in ["hg", "ipp", "pb"] {
        let (merge, pace) = (Merge::Copy, Pace::BytesPerSecond(8 << 20));
        let images = registry::run(name, Lives { merge, pace }).expect("it is in the table");
        assert!(images > 0, "{name}");
    }
}

/// A disk on which the write of one block fails. The capture fails, and the next one becomes
/// durable and is right.
struct FailsOnce;

impl registry::Program for FailsOnce {
    type Output = ();

    fn run<S: Scheme>(self) {
        if S::CONTENT == Content::Nothing {
            return;
        }
        let disk = SimDisk::new(1);
        let config = Config { block_bytes: 8192, logs_actions: false, ..Config::default() };
        let (mut state, sums, _) = open_on::<S>(Arc::new(disk.clone()), &config).expect("a disk");
        let mut history: Vec<Vec<u64>> = Vec::new();
        let progress = state.progress().clone();
        // Runs until one capture has failed and two later ones are durable, within a bound.
        let mut images_at_failure = None;
        while images_at_failure.is_none_or(|images| progress.snapshot().images < images + 2) {
            assert!(history.len() < 20_000, "{:?}", progress.snapshot());
            let tick = state.ticks();
            if tick == 3 {
                let (calls, fault) = (vec![Call::Write], Fault::InputOutput);
                disk.inject(FaultPlan { calls, nth: 9, fault, lasts: Lasts::Once });
            }
            for n in 0..20 {
                let index = (tick * 31 + n * n) as usize % CELLS;
                state.write(sums, index, tick * 100 + n);
            }
            state.tick().expect("nothing is logged");
            history.push(state.iter(sums).collect());
            RealClock.sleep(Duration::from_millis(1));
            let snapshot = progress.snapshot();
            if snapshot.failures > 0 {
                images_at_failure.get_or_insert(snapshot.images);
            }
        }
        drop(state);
        let image_tick = progress.snapshot().image_tick;
        let (state, sums, recovered) =
            open_on::<S>(Arc::new(disk.kill()), &config).expect("a disk");
        assert_eq!(recovered.image_tick, Some(image_tick));
        assert!(state.iter(sums).eq(history[image_tick as usize - 1].iter().copied()));
        assert_eq!(progress.snapshot().failures, 1);
    }
}

#[test]
fn a_block_that_cannot_be_written_fails_its_capture_and_no_other() {
    for name in registry::names_here() {
        registry::run(name, FailsOnce).expect("it is in the table");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_fork_has_cost_is_told() {
    type Forked = stillpoint_state::schemes::Fork<Naive>;
    let config = Config { logs_actions: false, ..Config::default() };
    let disk = Arc::new(SimDisk::new(1));
    let (mut state, sums, _) = open_on::<Forked>(disk, &config).expect("a disk");
    let progress = state.progress().clone();
    let mut round = 0;
    // Runs until an image is durable and the system has copied pages for its child.
    while progress.snapshot().images == 0 || progress.snapshot().copied_bytes == 0 {
        round += 1;
        for index in 0..CELLS {
            state.write(sums, index, round);
        }
        state.tick().expect("nothing is logged");
    }
    let now = progress.snapshot();
    assert!(now.fork_ns > 0 && now.copied_bytes.is_multiple_of(4096), "{now:?}");
}

#[test]
fn options_out_of_range_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { block_bytes: 5000, ..Config::default() };
    type S = stillpoint_state::schemes::Piggyback<Naive>;
    let error = open::<S>(dir.path(), &config).expect_err("no multiple of 4096");
    assert!(error.to_string().starts_with("option block_bytes is 5000; a multiple"), "{error}");
}
