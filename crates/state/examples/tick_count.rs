//! Counts the instructions of a tick of the world (see the example `world`), under callgrind:
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted*' \
//!     target/release/examples/tick_count DIR 2000 hg
//! ```
//!
//! DIR must be empty. Arguments two and three are the number of agents and the scheme. Callgrind
//! counts 100 ticks, after 20 that warm up. The first image begins at the first tick. No other image
//! begins.

use std::time::Duration;

use stillpoint_state::{Config, Environment, Every, Scheme, State, StateError, registry};

use model::World;

#[path = "world/model.rs"]
mod model;

struct Count {
    dir: String,
    agents: usize,
}

impl registry::Program for Count {
    type Output = Result<(), StateError>;

    fn run<S: Scheme>(self) -> Self::Output {
        let mut builder = State::<S>::builder();
        let world = World::define(&mut builder, self.agents);
        let every = Every::Interval(Duration::from_secs(3600));
        let (mut state, _) = builder.open(
            Environment::at(&self.dir)?,
            &Config { every, ..Config::default() },
            |cells| world.first(cells),
            |cells, tick, actions| world.step(cells, tick, actions),
        )?;
        for _ in 0..20 {
            state.step(|cells, tick, actions| world.step(cells, tick, actions))?;
        }
        counted(&mut state, world)?;
        state.close()
    }
}

#[inline(never)]
fn counted<S: Scheme>(state: &mut State<S>, world: World) -> Result<(), StateError> {
    for _ in 0..100 {
        state.step(|cells, tick, actions| world.step(cells, tick, actions))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: tick_count DIR [AGENTS] [SCHEME]")?;
    let agents = args.next().map_or(Ok(2_000), |text| text.parse())?;
    let scheme = args.next().unwrap_or_else(|| "hg".to_owned());
    registry::run(&scheme, Count { dir, agents })??;
    Ok(())
}
