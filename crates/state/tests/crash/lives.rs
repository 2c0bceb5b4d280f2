//! Lives of a state on a simulated disk. Each life ends in a crash, and the next life begins with
//! the disk after the crash. Durable ticks must be recovered, and the recovered state must equal an
//! earlier one down to the bit.

use stillpoint_io::{Fault, FaultPlan, Lasts, SimDisk, Tearing};
use stillpoint_state::{
    Background, Config, Content, Every, Merge, Recovered, Scheme, State, StateError, registry,
};

use crate::world::{Handles, Mix, Model, OnState, contents, open, step};

/// Lives of a run.
const LIVES: usize = 4;
/// Crash states that are judged at the end of each life.
const STATES: u64 = 4;

/// Counts of events in the runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) states: u64,
    pub(crate) images_loaded: u64,
    pub(crate) replayed_ticks: u64,
    pub(crate) failures: u64,
}

/// Runs one seed.
pub(crate) fn run_seed(name: &str, seed: u64) -> Coverage {
    registry::run(name, Run { name, seed, fault: None }).expect("it is in the table")
}

/// Runs one seed. In its first life the `nth` call that may change the disk fails. Returns the
/// number of such calls.
pub(crate) fn run_with_fault(name: &str, seed: u64, nth: u64, fault: Fault) -> Coverage {
    registry::run(name, Run { name, seed, fault: Some((nth, fault)) }).expect("it is in the table")
}

struct Run<'a> {
    name: &'a str,
    seed: u64,
    fault: Option<(u64, Fault)>,
}

impl registry::Program for Run<'_> {
    type Output = Coverage;

    fn run<S: Scheme>(self) -> Coverage {
        let mut mix = Mix(self.seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 7);
        let mut story = Story::<S> {
            at: format!("{}, seed {}, fault {:?}", self.name, self.seed, self.fault),
            disk: SimDisk::new(self.seed),
            history: vec![Model::new()],
            durable: 0,
            seen: Coverage::default(),
            scheme: std::marker::PhantomData,
        };
        let tearing = [Tearing::Garbage, Tearing::ChangedBytes, Tearing::Never];
        story.disk.set_tearing(tearing[mix.below(3)]);
        if let Some((nth, fault)) = self.fault {
            story.disk.fail_at(nth, fault);
        }
        for life in 0..LIVES {
            story.live(life, self.fault.is_none(), &mut mix);
        }
        story.seen
    }
}

struct Story<S> {
    at: String,
    disk: SimDisk,
    /// The state after each tick, from tick 0.
    history: Vec<Model>,
    /// The last tick that was reported as durable.
    durable: u64,
    seen: Coverage,
    scheme: std::marker::PhantomData<S>,
}

fn config(mix: &mut Mix) -> Config {
    Config {
        merge: [Merge::Copy, Merge::FromDisk][mix.below(2)],
        every: [Every::Continuous, Every::OnRequest][mix.below(2)],
        block_bytes: [8192, 12288][mix.below(2)],
        segment_bytes: [8192, 65536][mix.below(2)],
        recovery_threads: 1 + mix.below(2),
        background: Background::Manual,
        ..Config::default()
    }
}

impl<S: Scheme> Story<S> {
    fn live(&mut self, life: usize, has_faults: bool, mix: &mut Mix) {
        let config = config(mix);
        if let Ok((mut state, recovered, handles)) = self.open(&self.disk.clone(), &config) {
            let tick = self.judge(&state, &recovered, handles, life);
            self.history.truncate(tick as usize + 1);
            self.durable = tick;
            if has_faults && mix.below(2) == 0 {
                self.plan_fault(mix);
            }
            self.run_program(&mut state, handles, mix);
            self.durable = self.durable.max(state.durable_tick());
        }
        for _ in 0..STATES {
            let after = self.disk.crash_image(mix.next());
            self.judge_disk(&after, &config, life);
        }
        self.disk = match mix.below(3) {
            0 => self.disk.kill(),
            _ => self.disk.crash(mix.next()),
        };
    }

    /// Opens the state. Only a fault may prevent the opening.
    fn open(
        &self,
        disk: &SimDisk,
        config: &Config,
    ) -> Result<(State<S>, Recovered, Handles), StateError> {
        let opened = open::<S>(disk, config, self.history.len() as u64);
        match &opened {
            Err(StateError::Disk(_)) | Ok(_) => {}
            Err(error) => panic!("{}: {error}", self.at),
        }
        opened
    }

    fn judge_disk(&mut self, disk: &SimDisk, config: &Config, life: usize) {
        let opened = open::<S>(disk, config, 99);
        let (state, recovered, handles) = match opened {
            Ok(opened) => opened,
            Err(error) => panic!("{}, life {life}: {error}", self.at),
        };
        self.judge(&state, &recovered, handles, life);
    }

    /// Returns the tick at which the state goes on.
    fn judge(
        &mut self,
        state: &State<S>,
        recovered: &Recovered,
        handles: Handles,
        life: usize,
    ) -> u64 {
        let (at, tick) = (&self.at, state.ticks());
        let damaged = &recovered.damaged_images;
        assert!(damaged.is_empty(), "{at}, life {life}: a crash is no damage: {damaged:?}");
        assert!(
            tick >= self.durable,
            "{at}, life {life}: durable up to {}, found {tick}: {recovered:?}",
            self.durable
        );
        let Some(wanted) = self.history.get(tick as usize) else {
            panic!("{at}, life {life}: tick {tick} was never run");
        };
        assert!(
            contents(state, handles) == *wanted,
            "{at}, life {life}: not what it was at tick {tick}: {recovered:?}"
        );
        self.seen.states += 1;
        self.seen.images_loaded += u64::from(recovered.image_tick.is_some());
        self.seen.replayed_ticks += recovered.replayed_ticks;
        tick
    }

    fn plan_fault(&self, mix: &mut Mix) {
        let faults = [Fault::DiskFull, Fault::InputOutput, Fault::PowerLoss];
        let nth = 1 + mix.below(60) as u64;
        let lasts = [Lasts::Once, Lasts::UntilCleared][mix.below(2)];
        let fault = faults[mix.below(3)];
        self.disk.inject(FaultPlan { calls: Vec::new(), nth, fault, lasts });
    }

    fn run_program(&mut self, state: &mut State<S>, handles: Handles, mix: &mut Mix) {
        for _ in 0..20 + mix.below(150) {
            match mix.below(12) {
                0..=2 if !self.run_tick(state, handles, mix) => return,
                0..=2 => {}
                3..=8 => {
                    // The next capture makes up for a failed one.
                    self.seen.failures += u64::from(state.advance_writer().is_err());
                }
                9..=10 => {
                    // A failure is judged at the end: no further tick becomes durable.
                    self.seen.failures += u64::from(state.flush_actions().is_err());
                }
                _ if S::CONTENT != Content::Nothing => state.checkpoint(),
                _ => {}
            }
            if mix.below(40) == 0 {
                self.disk.clear_faults();
            }
            self.durable = self.durable.max(state.durable_tick());
        }
    }

    /// False if no tick can end any more.
    fn run_tick(&mut self, state: &mut State<S>, handles: Handles, mix: &mut Mix) -> bool {
        let actions: Vec<Vec<u8>> = (0..mix.below(4))
            .map(|_| {
                let most = if mix.below(10) == 0 { 9000 } else { 30 };
                let len = mix.below(most);
                (0..len).map(|_| mix.next() as u8).collect()
            })
            .collect();
        for action in &actions {
            state.log(action).expect("it is short");
        }
        let ended = state.step(|cells, tick, actions| {
            step(&mut OnState(cells, handles), tick, actions);
        });
        let mut model = self.history.last().expect("there is a beginning").clone();
        let tick = self.history.len() as u64;
        step(&mut model, tick, actions.iter().map(Vec::as_slice));
        assert_eq!(contents(state, handles), model, "{}: tick {tick}", self.at);
        match ended {
            Ok(ended) => {
                assert_eq!(ended, tick);
                self.history.push(model);
                true
            }
            // The log has failed. The tick has not ended, and no later tick can. The program stops.
            Err(StateError::LogFailed(_)) => {
                assert_eq!(state.ticks() + 1, tick, "{}", self.at);
                false
            }
            Err(error) => panic!("{}: {error}", self.at),
        }
    }
}
