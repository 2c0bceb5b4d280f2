//! A small world of agents that survives any end of its process.
//!
//! `cargo run --release -p stillpoint-state --example world -- [DIR] [AGENTS] [SCHEME] [SECONDS]`
//!
//! Agents walk about on a torus, are drawn to food, grow hungry, and are born again where they die.
//! Meteors, which fall at random, are the actions from outside: they are logged. Kill the program
//! in any way (Ctrl-C, `kill -9`, the plug). Started again, the world goes on at the tick that was
//! durable, with every agent where it was. DIR defaults to `world`, AGENTS to 200,000, SCHEME to
//! `hg`. With SECONDS the program ends by itself.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::io::{IsTerminal, Write};
use std::time::Duration;

use stillpoint_state::{
    Cells, Clock, Config, Environment, Every, RealClock, RealRng, Recovered, Rng, Scheme, State,
    StateError, registry,
};

use model::{SIDE, World};

mod model;

/// Ticks per second that the world aims for.
const TICKS_PER_SECOND: u64 = 60;
/// Columns and rows of the picture.
const PICTURE: (usize, usize) = (64, 20);

struct Options {
    dir: String,
    agents: usize,
    seconds: u64,
}

impl registry::Program for Options {
    type Output = Result<(), StateError>;

    fn run<S: Scheme>(self) -> Self::Output {
        let mut builder = State::<S>::builder();
        let world = World::define(&mut builder, self.agents);
        let config = Config { every: Every::Interval(Duration::from_secs(2)), ..Config::default() };
        let opened = builder.open(
            Environment::at(&self.dir)?,
            &config,
            |cells| world.first(cells),
            |cells, tick, actions| world.step(cells, tick, actions),
        );
        let (state, recovered) = opened?;
        live(state, world, &recovered, self.seconds)
    }
}

/// Runs ticks until the end of the program.
fn live<S: Scheme>(
    mut state: State<S>,
    world: World,
    recovered: &Recovered,
    seconds: u64,
) -> Result<(), StateError> {
    let mut view = View::new(recovered);
    let (start_ns, period_ns) = (RealClock.monotonic_ns(), 1_000_000_000 / TICKS_PER_SECOND);
    let mut next_ns = start_ns;
    loop {
        let begin_ns = RealClock.monotonic_ns();
        if seconds > 0 && begin_ns - start_ns > seconds * 1_000_000_000 {
            println!("tick {}, durable up to {}", state.ticks(), state.durable_tick());
            return state.close();
        }
        if RealRng.below(TICKS_PER_SECOND) == 0 {
            state.log(&RealRng.next_u64().to_le_bytes())?;
        }
        state.step(|cells, tick, actions| world.step(cells, tick, actions))?;
        view.ticked(RealClock.monotonic_ns() - begin_ns);
        view.show(&state, world);
        next_ns = (next_ns + period_ns).max(RealClock.monotonic_ns());
        RealClock.sleep(Duration::from_nanos(next_ns - RealClock.monotonic_ns()));
    }
}

/// The picture that the terminal shows, twice a second.
struct View {
    found: String,
    is_live: bool,
    ticks: u64,
    worst_ns: u64,
    total_ns: u64,
    shown_ns: u64,
}

impl View {
    fn new(recovered: &Recovered) -> Self {
        let found = if recovered.is_new {
            "a new world".to_owned()
        } else {
            format!(
                "went on at tick {}: image of tick {:?} in {:.2} s, {} ticks again in {:.2} s",
                recovered.tick,
                recovered.image_tick.unwrap_or(0),
                recovered.image_ns as f64 / 1e9,
                recovered.replayed_ticks,
                recovered.replay_ns as f64 / 1e9
            )
        };
        let is_live = std::io::stdout().is_terminal();
        println!("{found}");
        Self { found, is_live, ticks: 0, worst_ns: 0, total_ns: 0, shown_ns: 0 }
    }

    fn ticked(&mut self, ns: u64) {
        self.ticks += 1;
        self.total_ns += ns;
        self.worst_ns = self.worst_ns.max(ns);
    }

    fn show<S: Scheme>(&mut self, state: &State<S>, world: World) {
        let now_ns = RealClock.monotonic_ns();
        let passed_ns = now_ns - self.shown_ns;
        if passed_ns < 500_000_000 {
            return;
        }
        let rate = self.ticks as f64 * 1e9 / passed_ns as f64;
        let mean_us = self.total_ns as f64 / self.ticks.max(1) as f64 / 1e3;
        let progress = state.progress().snapshot();
        let line = format!(
            "tick {:>8}   {rate:>5.1} ticks/s   mean {mean_us:>6.0} us   worst {:>6.0} us   \
             durable {:>8}   images {:>4} (of tick {}, {} of {} blocks of the next)",
            state.ticks(),
            self.worst_ns as f64 / 1e3,
            progress.durable_tick,
            progress.images,
            progress.image_tick,
            progress.blocks_done,
            progress.blocks_total,
        );
        if self.is_live {
            let picture = picture(state, world);
            print!("\x1b[2J\x1b[H{}\n{line}\n{picture}", self.found);
            // A terminal that is gone is no reason to stop.
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
        }
        *self = Self {
            found: std::mem::take(&mut self.found),
            is_live: self.is_live,
            ticks: 0,
            worst_ns: 0,
            total_ns: 0,
            shown_ns: now_ns,
        };
    }
}

/// Where agents are, and where food is left.
fn picture<S: Scheme>(cells: &Cells<S>, world: World) -> String {
    let (columns, rows) = PICTURE;
    let mut counts = vec![0usize; columns * rows];
    let total = cells.array(world.agents).len();
    for agent in cells.iter(world.agents) {
        let (x, y) = (agent.x as usize * columns / SIDE, agent.y as usize * rows / SIDE);
        counts[y.min(rows - 1) * columns + x.min(columns - 1)] += 1;
    }
    let mean = (total / counts.len()).max(1);
    let shade = |count: usize| b" .:-=+*#%@"[(count * 4 / mean).min(9)] as char;
    counts.chunks(columns).fold(String::new(), |mut text, row| {
        text.extend(row.iter().map(|count| shade(*count)));
        text.push('\n');
        text
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "world".to_owned());
    let mut number = |otherwise: u64| {
        args.next().map_or(Ok(otherwise), |text| text.parse::<u64>().map_err(|_| text))
    };
    let agents = number(200_000);
    let name = std::env::args().nth(3).unwrap_or_else(|| "hg".to_owned());
    let seconds =
        std::env::args().nth(4).map_or(Ok(0), |text| text.parse::<u64>().map_err(|_| text));
    let (agents, seconds) = match (agents, seconds) {
        (Ok(agents), Ok(seconds)) => (agents as usize, seconds),
        (Err(text), _) | (_, Err(text)) => {
            eprintln!("{text:?} is no number; usage: world [DIR] [AGENTS] [SCHEME] [SECONDS]");
            std::process::exit(2);
        }
    };
    let ended = registry::run(&name, Options { dir, agents, seconds });
    let said = match ended {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    eprintln!("{said}");
    std::process::exit(1);
}
