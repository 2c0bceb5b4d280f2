//! The synthetic game of SIGMOD 2011, §5.1 and §5.4: 2,000 players whose attributes change by a
//! Markov model ([`model`]), as a trace in memory.

pub(crate) mod model;

use stillpoint_state::{Array, Cells, Scheme};

use self::model::{ATTRIBUTES, Event, Player};
use crate::workloads::load::{Declare, Load};
use crate::workloads::random::Random;
use crate::workloads::trace::{Access, Trace, TraceLoad};

/// Warm-up: ticks until the Markov model is near its stationary distribution.
const WARM_UP_TICKS: usize = 1_000;

/// Counts of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Number of ticks.
    pub(crate) ticks: u64,
    /// Updates by the simulation.
    pub(crate) simulated: u64,
    /// Updates by actions of players.
    pub(crate) acted: u64,
    /// Number of actions.
    pub(crate) actions: u64,
}

/// A game: the updates and the actions of its ticks. After the last tick the first one follows
/// again.
#[derive(Debug)]
pub(crate) struct Game {
    load: TraceLoad<u32>,
    actions: Vec<u8>,
    ends: Vec<usize>,
    /// Counts of the trace.
    pub(crate) totals: Totals,
    /// Size of the state in words of 4 bytes.
    pub(crate) words: usize,
}

/// Bytes of an action: the player's number (4), behaviour (1), state (1).
const ACTION_BYTES: usize = 6;

impl Game {
    /// Plays the given number of ticks.
    ///
    /// # Panics
    /// If there is no player or tick.
    pub(crate) fn new(players: usize, ticks: usize, seed: u64) -> Game {
        assert!(players > 0 && ticks > 0, "a game has players and ticks");
        let mut world: Vec<(Player, Random)> =
            (0..players).map(|it| (Player::default(), Random::for_thread(seed, it))).collect();
        for (player, random) in &mut world {
            for _ in 0..WARM_UP_TICKS {
                player.tick(random, |_, _| {});
            }
        }
        let mut totals = Totals { ticks: ticks as u64, ..Totals::default() };
        let (mut accesses, mut access_ends) = (Vec::new(), Vec::with_capacity(ticks));
        let (mut actions, mut ends) = (Vec::new(), Vec::with_capacity(ticks));
        for _ in 0..ticks {
            for (number, (player, random)) in world.iter_mut().enumerate() {
                player.tick(random, |event, random| match event {
                    Event::Action(behaviour, state) => {
                        totals.actions += 1;
                        actions.extend((number as u32).to_le_bytes());
                        actions.extend([behaviour as u8, state as u8]);
                    }
                    Event::Update(word) | Event::Acted(word) => {
                        let is_acted = matches!(event, Event::Acted(_));
                        totals.acted += u64::from(is_acted);
                        totals.simulated += u64::from(!is_acted);
                        let word = number * ATTRIBUTES + word;
                        accesses.push(Access::write(word as u32, random.next_u64() as u32));
                    }
                });
            }
            access_ends.push(accesses.len());
            ends.push(actions.len());
        }
        let words = players * ATTRIBUTES;
        let trace = Trace::with_ends(accesses, access_ends);
        let load = TraceLoad::new(trace, words);
        Game { load, actions, ends, totals, words }
    }

    /// The accesses of a tick.
    #[cfg(test)]
    pub(crate) fn changes(&self, tick: u64) -> impl Iterator<Item = usize> {
        self.load.trace().tick(tick).flatten().map(|access| access.word())
    }

    /// Share of the words that the updates of so many ticks touch.
    pub(crate) fn dirty_share(&self, ticks: u64) -> f64 {
        self.load.trace().dirty_share(1..=ticks, self.words, 1)
    }

    /// The actions of a tick, the first of which has number 1.
    fn actions_of(&self, tick: u64) -> &[u8] {
        let number = ((tick - 1) % self.ends.len() as u64) as usize;
        let first = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.actions[first..self.ends[number]]
    }
}

impl Load for Game {
    type Arrays = Array<u32>;

    fn declare(&self, builder: &mut impl Declare) -> Array<u32> {
        self.load.declare(builder)
    }

    fn first<S: Scheme>(&self, array: Array<u32>, cells: &mut Cells<S>) {
        self.load.first(array, cells);
    }

    fn step<S: Scheme>(&self, array: Array<u32>, cells: &mut Cells<S>, tick: u64) -> u64 {
        self.load.step(array, cells, tick)
    }

    /// The players' actions. The effects of actions are in the trace already, and a replay takes
    /// them from the trace, as in the paper (§5.4).
    fn actions(&self, tick: u64, log: &mut dyn FnMut(&[u8])) {
        for action in self.actions_of(tick).chunks_exact(ACTION_BYTES) {
            log(action);
        }
    }

    fn first_difference<A: Scheme, B: Scheme>(
        &self,
        one: (Array<u32>, &Cells<A>),
        other: (Array<u32>, &Cells<B>),
    ) -> Option<String> {
        self.load.first_difference(one, other)
    }
}

#[cfg(test)]
mod tests;
