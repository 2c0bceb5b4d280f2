//! Tests of looking back: every retained tick can be shown again, and that changes nothing.

use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{RealClock, RealRng, SimDisk};
use stillpoint_state::schemes::{Hourglass, PingPong};
use stillpoint_state::{
    Actions, Advance, Array, Arrays, Background, Cells, Config, Disk, Environment, Every,
    Interleaved, Packed, Scheme, State, StateError,
};

const CELLS: usize = 500;
const TICKS: u64 = 90;

fn environment(disk: &SimDisk) -> Environment {
    let (clock, rng) = (Arc::new(RealClock), Arc::new(RealRng));
    Environment { disk: Arc::new(disk.clone()), clock, rng }
}

/// Ticks with a remainder of 0 have no action.
fn step<S: Scheme>(cells: &mut Cells<S>, sums: Array<u64>, tick: u64, actions: Actions<'_>) {
    for action in actions {
        let index = usize::from(action[0]);
        cells.update(sums, index, |sum| *sum = *sum * 31 + tick);
    }
    cells.update(sums, tick as usize % CELLS, |sum| *sum += 1);
}

fn at_tick<S: Scheme>(disk: &SimDisk, tick: u64) -> Result<Vec<u64>, StateError> {
    let mut builder = State::<S>::builder();
    let sums = builder.array::<u64>("sums", CELLS);
    let again = |cells: &mut Cells<S>, tick: u64, actions: Actions<'_>| {
        step(cells, sums, tick, actions);
    };
    let arrays: Arrays<S> = builder.at_tick(environment(disk), tick, |_| {}, again)?;
    assert_eq!(arrays.ticks(), tick);
    Ok(arrays.iter(sums).collect())
}

/// The files of a state with their bytes.
fn files(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for dir in ["", "actions"] {
        for name in disk.list(Path::new(dir)).expect("a directory") {
            let path = Path::new(dir).join(&name);
            let bytes = stillpoint_io::read_all(disk, &path).unwrap_or_default();
            files.push((path.display().to_string(), bytes));
        }
    }
    files
}

/// Runs a state that takes images at these ticks. Returns the cells after each tick.
fn history<S: Scheme>(disk: &SimDisk, images: &[u64]) -> Vec<Vec<u64>> {
    let config = Config {
        background: Background::Manual,
        every: Every::OnRequest,
        segment_bytes: 256,
        ..Config::default()
    };
    let mut builder = State::<S>::builder();
    let sums = builder.array::<u64>("sums", CELLS);
    let again = |cells: &mut Cells<S>, tick: u64, actions: Actions<'_>| {
        step(cells, sums, tick, actions);
    };
    let (mut state, _) = builder.open(environment(disk), &config, |_| {}, again).expect("a disk");
    let mut history = vec![state.iter(sums).collect()];
    for tick in 1..=TICKS {
        if images.contains(&tick) {
            state.checkpoint();
        }
        for action in 0..tick % 3 {
            state.log(&[(tick * 7 + action) as u8]).expect("it is short");
        }
        state.step(|cells, tick, actions| step(cells, sums, tick, actions)).expect("it ends");
        history.push(state.iter(sums).collect());
        while state.flush_actions().expect("a disk") {}
        while let Advance::Wrote { .. } = state.advance_writer().expect("a disk") {}
        if tick == TICKS / 2 {
            let error = at_tick::<S>(disk, 1).expect_err("the state is open");
            assert!(matches!(error, StateError::InUse { .. }), "{error}");
        }
    }
    state.close().expect("a disk");
    history
}

fn every_retained_tick<S: Scheme>() {
    let disk = SimDisk::new(1);
    let history = history::<S>(&disk, &[20, 40, 60, 70]);
    let before = files(&disk);
    let mut retained = 0;
    for (tick, wanted) in (0..).zip(&history) {
        match at_tick::<S>(&disk, tick) {
            Ok(found) => {
                assert_eq!(&found, wanted, "tick {tick}");
                retained += 1;
            }
            Err(StateError::TickNotRetained { tick: refused, image }) => {
                assert!(refused == tick && tick < image && image <= 60, "{tick} {image}");
            }
            Err(error) => panic!("tick {tick}: {error}"),
        }
    }
    // The retained ticks are those since the image before the newest, and perhaps those since the
    // image before that.
    assert!((31..90).contains(&retained), "{retained}");
    let error = at_tick::<S>(&disk, TICKS + 1).expect_err("it has not come").to_string();
    assert!(error.contains("tick 91 has not ended; the last one that has is 90"), "{error}");
    let error = at_tick::<S>(&disk, 1).expect_err("its actions are gone").to_string();
    assert!(error.contains("tick 1 is not retained") && error.contains("next image"), "{error}");
    assert!(files(&disk) == before, "looking back changes no file");
}

#[test]
fn every_retained_tick_can_be_looked_at() {
    every_retained_tick::<Hourglass<Packed>>();
    every_retained_tick::<PingPong<Interleaved>>();
}

#[test]
fn without_an_image_the_log_leads_to_every_tick() {
    let disk = SimDisk::new(2);
    let history = history::<Hourglass<Packed>>(&disk, &[]);
    for (tick, wanted) in (0..).zip(&history) {
        assert_eq!(&at_tick::<Hourglass<Packed>>(&disk, tick).expect("retained"), wanted);
    }
}

#[test]
fn a_directory_without_a_state_has_its_beginning_only() {
    let disk = SimDisk::new(3);
    assert_eq!(at_tick::<Hourglass<Packed>>(&disk, 0).expect("the beginning"), [0; CELLS]);
    let error = at_tick::<Hourglass<Packed>>(&disk, 1).expect_err("nothing has run");
    assert!(matches!(error, StateError::TickNotEnded { tick: 1, ended: 0 }), "{error}");
}
