//! The model of the players' behaviours, and of the attributes that they change.
//!
//! SIGMOD 2011, §5.1, gives 2,000 players, each with an object of about 100 KB, "corresponding to a
//! wide variety of character attributes". The paper also gives "a set of five semi-independent
//! probabilistic state machines associated with common gameplay behaviors". There are 531,530
//! updates per second in all, and ticks of 0.1 s. From §5.4: "About 80 percent of the attributes
//! are only updated in response to player actions, which are human initiated and thus occur
//! infrequently."
//!
//! The paper does not name the behaviours, their states, rates and transitions. This model chooses
//! all of these so that they give the paper's totals and resemble such games. A player stands or
//! moves, fights now and then, and carries effects that run out. A player also works (gathers,
//! crafts, trades), and talks or plays in a group. The machines are *semi-independent*: a fighting
//! player runs more and does not begin to work.
//!
//! - In each tick a state updates a number of the behaviour's own attributes: the 20 % that the
//!   simulation itself changes. The first of these change most often (a word is drawn as ⌊n·u²⌋).
//! - To enter certain states is an action of the player. An action is a log entry, and writes to a
//!   run of attributes that nothing else changes: the other 80 %.

use crate::workloads::random::Random;

/// Number of players.
pub(crate) const PLAYERS: usize = 2_000;
/// Attributes of a player, of 4 bytes each: 100 KB.
pub(crate) const ATTRIBUTES: usize = 25_000;
/// Attributes that the simulation changes. The others change by actions of the player only.
#[cfg(test)]
pub(crate) const SIMULATED: usize = 5_000;
/// Updates per second of all players.
pub(crate) const UPDATES_PER_S: f64 = 531_530.0;
/// Ticks per second.
pub(crate) const TICKS_PER_S: f64 = 10.0;
/// Number of behaviours.
pub(crate) const MACHINES: usize = 5;

/// A run of adjacent attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Number of the first attribute.
    pub(crate) first: usize,
    /// Number of attributes.
    pub(crate) count: usize,
}

const fn group(first: usize, count: usize) -> Group {
    Group { first, count }
}

/// A state of a behaviour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    /// Name of the player's activity.
    pub(crate) name: &'static str,
    /// Mean updates of the behaviour's own attributes in a tick.
    pub(crate) updates: f64,
    /// Attributes written by the action that leads into this state. 0 if no action does.
    pub(crate) action: usize,
    /// Probability per tick of a transition into each other state.
    pub(crate) to: &'static [(usize, f64)],
}

/// A behaviour, as a state machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Machine {
    /// Name of the behaviour.
    pub(crate) name: &'static str,
    /// Attributes that the simulation changes.
    pub(crate) simulated: Group,
    /// Attributes that actions change.
    pub(crate) acted: Group,
    /// States of the machine. A player begins in the first.
    pub(crate) states: &'static [State],
}

const fn state(
    name: &'static str,
    updates: f64,
    action: usize,
    to: &'static [(usize, f64)],
) -> State {
    State { name, updates, action, to }
}

const MOVEMENT: usize = 0;
const COMBAT: usize = 1;
const WORK: usize = 3;
const RUNNING: usize = 2;
const PEACE: usize = 0;

/// The behaviours. Times between transitions are seconds to minutes, as with human players.
pub(crate) const BEHAVIOURS: [Machine; MACHINES] = [
    Machine {
        name: "movement",
        simulated: group(0, 600),
        acted: group(5_000, 2_000),
        states: &[
            state("standing", 1.0, 0, &[(1, 0.02), (2, 0.02), (3, 0.002)]),
            state("walking", 9.0, 0, &[(0, 0.03), (2, 0.02)]),
            state("running", 14.0, 0, &[(0, 0.02), (1, 0.02), (3, 0.001)]),
            state("riding", 14.0, 4, &[(0, 0.01)]),
        ],
    },
    Machine {
        name: "combat",
        simulated: group(600, 1_400),
        acted: group(7_000, 3_000),
        states: &[
            state("peace", 0.5, 0, &[(1, 0.008)]),
            state("fighting", 18.0, 10, &[(0, 0.012), (2, 0.004), (3, 0.001)]),
            state("fleeing", 9.0, 2, &[(0, 0.02), (1, 0.02)]),
            state("dead", 1.0, 20, &[(0, 0.01)]),
        ],
    },
    Machine {
        name: "effects",
        simulated: group(2_000, 1_600),
        acted: group(10_000, 2_000),
        states: &[
            state("none", 1.0, 0, &[(1, 0.02)]),
            state("some", 8.5, 3, &[(0, 0.01), (2, 0.01)]),
            state("many", 18.4, 6, &[(1, 0.03)]),
        ],
    },
    Machine {
        name: "work",
        simulated: group(3_600, 600),
        acted: group(12_000, 8_000),
        states: &[
            state("none", 0.0, 0, &[(1, 0.004), (2, 0.001), (3, 0.002)]),
            state("gathering", 4.0, 6, &[(0, 0.02), (2, 0.002)]),
            state("crafting", 5.0, 24, &[(0, 0.02), (1, 0.002)]),
            state("trading", 2.0, 40, &[(0, 0.02)]),
        ],
    },
    Machine {
        name: "company",
        simulated: group(4_200, 800),
        acted: group(20_000, 5_000),
        states: &[
            state("alone", 0.2, 0, &[(1, 0.01), (2, 0.002)]),
            state("talking", 1.0, 8, &[(0, 0.02), (2, 0.004)]),
            state("group", 8.0, 16, &[(0, 0.002), (1, 0.01)]),
        ],
    },
];

/// A player's state in each behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Player {
    states: [u8; MACHINES],
}

/// An event of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The simulation changes an attribute.
    Update(usize),
    /// An action changes an attribute.
    Acted(usize),
    /// The player has acted: behaviour and state.
    Action(usize, usize),
}

impl Player {
    /// The state of a behaviour.
    pub(crate) fn state(&self, machine: usize) -> usize {
        usize::from(self.states[machine])
    }

    /// Plays one tick of the player.
    pub(crate) fn tick(&mut self, random: &mut Random, mut event: impl FnMut(Event, &mut Random)) {
        for (number, machine) in BEHAVIOURS.iter().enumerate() {
            let state = &machine.states[self.state(number)];
            let count = state.updates.floor() + f64::from(random.chance(state.updates.fract()));
            for _ in 0..count as usize {
                let u = random.unit();
                let word = (u * u * machine.simulated.count as f64) as usize;
                event(Event::Update(machine.simulated.first + word), random);
            }
            let Some(next) = self.next(number, state, random) else {
                continue;
            };
            self.states[number] = next as u8;
            let action = machine.states[next].action;
            if action > 0 {
                event(Event::Action(number, next), random);
                let first = random.below((machine.acted.count - action) as u64) as usize;
                for word in first..first + action {
                    event(Event::Acted(machine.acted.first + word), random);
                }
            }
        }
    }

    /// Draws the behaviour's transition, if there is one.
    fn next(&self, machine: usize, state: &State, random: &mut Random) -> Option<usize> {
        let mut draw = random.unit();
        let fights = self.state(COMBAT) != PEACE;
        for &(to, probability) in state.to {
            let probability = match machine {
                MOVEMENT if fights && to == RUNNING => probability * 3.0,
                WORK if fights && to != 0 => 0.0,
                _ => probability,
            };
            if draw < probability {
                return Some(to);
            }
            draw -= probability;
        }
        None
    }
}
