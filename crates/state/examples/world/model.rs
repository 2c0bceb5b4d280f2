//! The world of the example: agents, food, and one step of all.

use stillpoint_state::{Actions, Array, Cells, Plain, Scheme, StateBuilder};

/// An agent of the world.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
pub(crate) struct Agent {
    /// Place, in cells of the map.
    #[field(X)]
    pub(crate) x: f32,
    /// Place, in cells of the map.
    #[field(Y)]
    pub(crate) y: f32,
    /// Direction, in radians.
    #[field(HEADING)]
    pub(crate) heading: f32,
    /// Hunger kills at 0.
    #[field(ENERGY)]
    pub(crate) energy: f32,
    /// Ticks lived.
    #[field(AGE)]
    pub(crate) age: u32,
    /// Number of the agent's earlier lives.
    #[field(LIVES)]
    pub(crate) lives: u32,
    /// Meals of all lives.
    #[field(MEALS)]
    pub(crate) meals: u64,
}

/// Cells of the map, in each direction.
pub(crate) const SIDE: usize = 256;

/// The arrays of the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// All agents.
    pub(crate) agents: Array<Agent>,
    /// The food of each cell of the map.
    pub(crate) food: Array<f32>,
}

/// A number that follows from these two: the same whenever a tick is run.
fn mix(tick: u64, index: u64) -> u64 {
    let z = (tick.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 32)
}

fn fraction(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 24) as f32
}

fn cell_of(x: f32, y: f32) -> usize {
    let at = |z: f32| (z.max(0.0) as usize).min(SIDE - 1);
    at(y) * SIDE + at(x)
}

impl World {
    /// Defines the arrays.
    pub(crate) fn define<S: Scheme>(builder: &mut StateBuilder<S>, agents: usize) -> Self {
        World {
            agents: builder.array::<Agent>("agents", agents),
            food: builder.array::<f32>("food", SIDE * SIDE),
        }
    }

    /// Fills the map, and lets all agents be born.
    pub(crate) fn first<S: Scheme>(self, cells: &mut Cells<S>) {
        let born = |index: usize| Agent {
            x: fraction(mix(1, index as u64)) * SIDE as f32,
            y: fraction(mix(2, index as u64)) * SIDE as f32,
            heading: fraction(mix(3, index as u64)) * std::f32::consts::TAU,
            energy: 1.0,
            age: 0,
            lives: 0,
            meals: 0,
        };
        let filled = cells.fill(self.agents, born);
        filled.and_then(|()| cells.fill(self.food, |_| 1.0)).expect("no tick has ended");
    }

    /// Runs one step. A tenth of the agents act in each tick; the arithmetic is the same on every run.
    pub(crate) fn step<S: Scheme>(self, cells: &mut Cells<S>, tick: u64, actions: Actions<'_>) {
        for action in actions {
            let place = u64::from_le_bytes(action.try_into().unwrap_or_default());
            self.meteor(cells, place);
        }
        let count = cells.array(self.agents).len();
        for index in ((tick % 10) as usize..count).step_by(10) {
            self.act(cells, tick, index);
        }
        let row = (tick as usize % SIDE) * SIDE;
        let mut food = cells.array_mut(self.food);
        for at in row..row + SIDE {
            let grown = (food.read(at) + 0.2).min(1.0);
            food.write(at, grown);
        }
    }

    fn act<S: Scheme>(self, cells: &mut Cells<S>, tick: u64, index: usize) {
        let mut agent = cells.read(self.agents, index);
        let random = mix(tick, index as u64);
        agent.heading += (fraction(random) - 0.5) * 0.8;
        let side = SIDE as f32;
        agent.x = (agent.x + agent.heading.cos()).rem_euclid(side);
        agent.y = (agent.y + agent.heading.sin()).rem_euclid(side);
        agent.energy -= 0.02;
        agent.age += 10;
        let at = cell_of(agent.x, agent.y);
        let food = cells.read(self.food, at);
        if food >= 0.1 {
            cells.write(self.food, at, food - 0.1);
            agent.energy = (agent.energy + 0.05).min(1.0);
            agent.meals += 1;
        }
        if agent.energy <= 0.0 {
            agent = Agent {
                x: fraction(mix(random, 1)) * side,
                y: fraction(mix(random, 2)) * side,
                energy: 0.5,
                age: 0,
                lives: agent.lives + 1,
                ..agent
            };
        }
        cells.write(self.agents, index, agent);
    }

    /// Burns the food of a region. Agents there may then starve.
    fn meteor<S: Scheme>(self, cells: &mut Cells<S>, place: u64) {
        let (x, y) = (place as usize % SIDE, (place >> 32) as usize % SIDE);
        for dy in 0..24 {
            for dx in 0..24 {
                cells.write(self.food, (y + dy) % SIDE * SIDE + (x + dx) % SIDE, 0.0);
            }
        }
    }
}
