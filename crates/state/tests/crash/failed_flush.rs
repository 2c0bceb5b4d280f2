//! Tests of failed flushes. A flush fails, the process dies, and the next process finds bytes in
//! the cache that the disk may not hold.
//!
//! Each case ends a first life by a failed flush and a kill. Up to three recoveries follow, each
//! cut off at any of its calls, by a kill or by a loss of power. After each recovery, every tick
//! that was reported as durable must be there. The recovered state must be one that existed.

use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};
use stillpoint_state::schemes::{Hourglass, Piggyback};
use stillpoint_state::{
    Advance, Background, Config, Every, Interleaved, Scheme, State, StateError,
};

use crate::number;
use crate::world::{Handles, Mix, Model, OnState, contents, open, step};

/// Stories of each kind unless the environment says otherwise.
const STORIES: u64 = 40;

fn config(logs_actions: bool) -> Config {
    Config {
        background: Background::Manual,
        every: Every::OnRequest,
        block_bytes: 8192,
        segment_bytes: 16384,
        recovery_threads: 1,
        logs_actions,
        ..Config::default()
    }
}

/// The ticks that the lives so far have reported as durable, and their states.
struct Story {
    at: String,
    config: Config,
    disk: SimDisk,
    /// The state after each tick, from tick 0.
    history: Vec<Model>,
    durable: u64,
    mix: Mix,
}

impl Story {
    fn new(kind: &str, seed: u64, config: Config) -> Self {
        Self {
            at: format!("{kind}, seed {seed}"),
            config,
            disk: SimDisk::new(seed),
            history: vec![Model::new()],
            durable: 0,
            mix: Mix(seed),
        }
    }

    fn tick<S: Scheme>(&mut self, state: &mut State<S>, handles: Handles) {
        let tick = state.ticks() + 1;
        let action = self.mix.next().to_le_bytes();
        if self.config.logs_actions {
            state.log(&action).expect("it is short");
        }
        let ended = state.step(|cells, tick, actions| {
            step(&mut OnState(cells, handles), tick, actions);
        });
        assert_eq!(ended.expect("the log is well"), tick);
        self.history.truncate(tick as usize);
        self.history.push(contents(state, handles));
    }

    /// Opens the state; `None` if a fault has prevented it.
    fn open<S: Scheme>(&mut self, disk: &SimDisk) -> Option<(State<S>, Handles)> {
        let at = &self.at;
        let (state, recovered, handles) = match open::<S>(disk, &self.config, self.mix.next()) {
            Ok(opened) => opened,
            Err(StateError::Disk(_)) => return None,
            Err(error) => panic!("{at}: {error}"),
        };
        let damaged = &recovered.damaged_images;
        assert!(damaged.is_empty(), "{at}: a crash is no damage: {damaged:?}");
        let tick = state.ticks();
        assert!(tick >= self.durable, "{at}: durable up to {}, found {tick}", self.durable);
        assert!(contents(&*state, handles) == self.history[tick as usize], "{at}: tick {tick}");
        assert_eq!(state.durable_tick(), tick, "{at}: what is served is durable");
        self.durable = tick;
        Some((state, handles))
    }

    /// Runs recoveries. Each but the last is cut off at a call of the disk.
    fn recover<S: Scheme>(&mut self) {
        self.disk = self.disk.kill();
        for _ in 0..3 {
            let fault = [Fault::PowerLoss, Fault::InputOutput, Fault::DiskFull][self.mix.below(3)];
            let nth = 1 + self.mix.below(14) as u64;
            self.disk.inject(FaultPlan { calls: Vec::new(), nth, fault, lasts: Lasts::Once });
            if self.mix.below(4) == 0 {
                self.disk.set_capacity(Some(0));
            }
            let disk = self.disk.clone();
            if let Some((mut state, handles)) = self.open::<S>(&disk)
                && self.mix.below(2) == 0
            {
                self.tick(&mut state, handles);
                let _ = state.flush_actions();
                self.durable = self.durable.max(state.durable_tick());
            }
            disk.set_capacity(None);
            self.end_life();
        }
        let disk = self.disk.clone();
        let (state, _) = self.open::<S>(&disk).unwrap_or_else(|| panic!("{}: a disk", self.at));
        drop(state);
        for seed in 0..4 {
            let after = disk.crash_image(seed);
            self.open::<S>(&after).unwrap_or_else(|| panic!("{}: a disk", self.at));
        }
    }

    fn end_life(&mut self) {
        self.disk = match self.mix.below(2) {
            0 => self.disk.kill(),
            _ => self.disk.crash(self.mix.next()),
        };
    }
}

/// The next flush fails, and the process dies.
fn fail_next_flush(disk: &SimDisk) {
    let (calls, fault, lasts) = (vec![Call::Sync], Fault::InputOutput, Lasts::Once);
    disk.inject(FaultPlan { calls, nth: 1, fault, lasts });
}

fn stories(kind: &str, run: impl Fn(Story), logs_actions: bool) {
    let first = number("STILLPOINT_STATE_SEED", 0);
    for seed in first..first + number("STILLPOINT_STATE_CRASH_SEEDS", STORIES) {
        run(Story::new(kind, seed, config(logs_actions)));
    }
}

/// Ticks whose flush failed.
#[test]
fn actions_that_only_a_cache_holds_are_not_durable() {
    stories(
        "actions",
        |mut story| {
            type S = Hourglass<Interleaved>;
            let disk = story.disk.clone();
            let (mut state, handles) = story.open::<S>(&disk).expect("a new state");
            for _ in 0..story.mix.below(4) {
                story.tick(&mut state, handles);
                if story.mix.below(2) == 0 {
                    state.flush_actions().expect("a disk");
                }
            }
            while state.flush_actions().expect("a disk") {}
            story.durable = state.durable_tick();
            story.tick(&mut state, handles);
            fail_next_flush(&disk);
            state.flush_actions().expect_err("the flush fails");
            state.flush_actions().expect_err("a failed flush is not retried");
            drop(state);
            story.recover::<S>();
        },
        true,
    );
}

/// Images whose last flush failed: all ticks, if no actions are logged.
fn images<S: Scheme>(kind: &str, logs_actions: bool) {
    stories(
        kind,
        |mut story| {
            let disk = story.disk.clone();
            let (mut state, handles) = story.open::<S>(&disk).expect("a new state");
            let images = 1 + story.mix.below(3);
            for image in 0..=images {
                state.checkpoint();
                story.tick(&mut state, handles);
                while state.flush_actions().expect("a disk") {}
                if image == images {
                    break;
                }
                while !matches!(state.advance_writer().expect("a disk"), Advance::Durable { .. }) {}
                story.durable = state.durable_tick();
            }
            // The flush of the trailer is the third of an image. No file can be removed either, so
            // whatever was written is there after the kill.
            let (calls, fault, lasts) = (vec![Call::Sync], Fault::InputOutput, Lasts::Once);
            disk.inject(FaultPlan { calls, nth: 3, fault, lasts });
            let (calls, nth) = (vec![Call::Remove], 1);
            disk.inject(FaultPlan { calls, nth, fault, lasts: Lasts::UntilCleared });
            while state.advance_writer().is_ok() {}
            story.durable = state.durable_tick();
            drop(state);
            disk.clear_faults();
            story.recover::<S>();
        },
        logs_actions,
    );
}

#[test]
fn images_that_only_a_cache_holds_are_not_durable() {
    images::<Hourglass<Interleaved>>("hg, images and actions", true);
    images::<Piggyback<Interleaved>>("pb, images and actions", true);
    images::<Piggyback<Interleaved>>("pb, images alone", false);
}
