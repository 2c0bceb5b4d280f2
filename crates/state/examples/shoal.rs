//! A plain `hecs` world that no crash takes back: fish and sharks.
//!
//! `cargo run --release -p stillpoint-state --example shoal -- [DIR] [SECONDS]`
//!
//! Entities live in a `hecs::World`, and systems are queries, as in any such game. The state has an array
//! for each kind of component that must survive. An entity has a *slot*: its index in these arrays. A tick
//! ends by writing the components that changed to their slots. After a crash the arrays come back. The
//! world is spawned from them in the order of the slots, and the steps since are run again.
//!
//! Kill the program in any way and start it again: the world goes on where it was. DIR defaults to
//! `shoal`. With SECONDS the program ends by itself. The actions from outside are sharks that come
//! at random.
//!
//! `hecs` yields entities in an order that depends on what was spawned and despawned before, and the
//! world of a restart has another past. So a system that treats each entity by itself takes the order of
//! the query. A system in which entities meet goes by the slots.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::time::Duration;

use hecs::{Entity, World};
use stillpoint_state::schemes::Piggyback;
use stillpoint_state::{
    Actions, Array, Cells, Clock, Config, Environment, Every, Naive, Plain, RealClock, RealRng,
    Rng, State, StateBuilder, StateError,
};

type Scheme = Piggyback<Naive>;

/// A component: place and speed of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Body {
    at: [f32; 2],
    speed: [f32; 2],
}

/// A component: the species of an entity. Free slots hold `Nobody`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
enum Who {
    Nobody,
    Fish { age: u16 },
    Shark { age: u16, hunger: u16 },
}

/// A component that is not stored: the index of the entity in the arrays.
#[derive(Clone, Copy, Debug)]
struct Slot(usize);

const WIDTH: f32 = 64.0;
const HEIGHT: f32 = 20.0;
const SLOTS: usize = 400;
const FISH_AT_FIRST: usize = 120;
/// A fish has a young one at every multiple of this age.
const BREEDS: u16 = 150;
/// Number of entities from which no fish has young.
const CROWDED: u32 = 300;
/// A shark dies at this hunger, and at this age.
const STARVES: u16 = 400;
const SHARKS_LIVE: u16 = 1_200;
/// A shark eats from this hunger on.
const HUNGRY: u16 = 40;
/// Distance within which a shark eats a fish.
const REACH: f32 = 1.0;

/// The arrays of the components that survive.
#[derive(Clone, Copy)]
struct Stored {
    bodies: Array<Body>,
    whos: Array<Who>,
}

/// A number that follows from two others, the same in every run.
fn mix(a: u64, b: u64) -> u64 {
    let z = (a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 31)
}

/// A body anywhere.
fn body(seed: u64) -> Body {
    let part = |nth: u64| (mix(seed, nth) >> 40) as f32 / (1u64 << 24) as f32;
    let at = [part(1) * WIDTH, part(2) * HEIGHT];
    Body { at, speed: [part(3) - 0.5, (part(4) - 0.5) * 0.5] }
}

impl Stored {
    fn define(builder: &mut StateBuilder<Scheme>) -> Self {
        Self { bodies: builder.array("bodies", SLOTS), whos: builder.array("whos", SLOTS) }
    }

    fn first(self, cells: &mut Cells<Scheme>) {
        let who = |slot: usize| match slot {
            0..FISH_AT_FIRST => Who::Fish { age: (slot * 7) as u16 % BREEDS },
            _ => Who::Nobody,
        };
        let filled = cells.fill(self.whos, who);
        filled
            .and_then(|()| cells.fill(self.bodies, |slot| body(slot as u64)))
            .expect("no tick has ended");
    }
}

/// The world, and which entity has which slot.
#[derive(Default)]
struct Sea {
    world: World,
    slots: Vec<Option<Entity>>,
}

impl Sea {
    /// Spawns the entities that the arrays hold.
    fn spawned_from(stored: Stored, cells: &Cells<Scheme>) -> Self {
        let mut sea = Self { world: World::new(), slots: vec![None; SLOTS] };
        for (slot, (body, who)) in
            cells.iter(stored.bodies).zip(cells.iter(stored.whos)).enumerate()
        {
            if who != Who::Nobody {
                sea.slots[slot] = Some(sea.world.spawn((Slot(slot), body, who)));
            }
        }
        sea
    }

    /// Spawns an entity in the first free slot, if there is one.
    fn spawn(&mut self, body: Body, who: Who) {
        if let Some(slot) = self.slots.iter().position(Option::is_none) {
            self.slots[slot] = Some(self.world.spawn((Slot(slot), body, who)));
        }
    }

    fn despawn(&mut self, slot: usize) {
        if let Some(entity) = self.slots[slot].take() {
            self.world.despawn(entity).expect("its slot names it");
        }
    }

    /// The entities with their slots, in the order of the slots.
    fn in_order(&self) -> Vec<(usize, Entity)> {
        let taken = self.slots.iter().enumerate();
        taken.filter_map(|(slot, entity)| Some((slot, (*entity)?))).collect()
    }

    fn step(&mut self, stored: Stored, cells: &mut Cells<Scheme>, tick: u64, actions: Actions<'_>) {
        for action in actions {
            let seed = u64::from_le_bytes(action.try_into().unwrap_or_default());
            self.spawn(body(seed), Who::Shark { age: 0, hunger: 0 });
        }
        self.swim(tick);
        self.grow();
        self.hunt();
        self.store(stored, cells);
    }

    /// A system that treats each entity by itself.
    fn swim(&mut self, tick: u64) {
        for (body, slot) in self.world.query_mut::<(&mut Body, &Slot)>() {
            let turn = mix(tick, slot.0 as u64);
            body.speed[0] += ((turn & 7) as f32 - 3.5) * 0.01;
            body.speed[1] += ((turn >> 3 & 7) as f32 - 3.5) * 0.01;
            for (n, side) in [WIDTH, HEIGHT].into_iter().enumerate() {
                body.speed[n] = body.speed[n].clamp(-0.5, 0.5);
                body.at[n] = (body.at[n] + body.speed[n]).rem_euclid(side);
            }
        }
    }

    /// Fish have young ones, which take the first free slots: in the order of the slots.
    fn grow(&mut self) {
        for (slot, entity) in self.in_order() {
            let is_crowded = self.world.len() >= CROWDED;
            let (body, who) =
                self.world.query_one_mut::<(&Body, &mut Who)>(entity).expect("see spawn");
            match who {
                Who::Fish { age } => {
                    *age = age.wrapping_add(1);
                    if age.is_multiple_of(BREEDS) && !is_crowded {
                        let young = *body;
                        self.spawn(young, Who::Fish { age: 1 });
                    }
                }
                Who::Shark { age, hunger } if *age >= SHARKS_LIVE || *hunger >= STARVES => {
                    self.despawn(slot);
                }
                Who::Shark { age, hunger } => (*age, *hunger) = (*age + 1, *hunger + 1),
                Who::Nobody => {}
            }
        }
    }

    /// A hungry shark eats the first fish that is near: in the order of the slots.
    fn hunt(&mut self) {
        let all = self.in_order();
        for (_, shark) in &all {
            let found = self.world.query_one_mut::<(&Body, &Who)>(*shark);
            let Ok((Body { at, .. }, Who::Shark { age, hunger: HUNGRY.. })) = found else {
                continue;
            };
            let (at, age) = (*at, *age);
            let prey = all.iter().find(|(_, fish)| {
                let found = self.world.query_one_mut::<(&Body, &Who)>(*fish);
                let Ok((body, Who::Fish { .. })) = found else { return false };
                (0..2).all(|n| (body.at[n] - at[n]).abs() < REACH)
            });
            if let Some((slot, _)) = prey {
                self.despawn(*slot);
                let who = self.world.query_one_mut::<&mut Who>(*shark).expect("it is there");
                *who = Who::Shark { age, hunger: 0 };
            }
        }
    }

    /// Writes the changed components to the arrays. The last system of a tick.
    fn store(&mut self, stored: Stored, cells: &mut Cells<Scheme>) {
        let (mut bodies, mut whos) = cells.arrays_mut((stored.bodies, stored.whos));
        for (slot, body, who) in self.world.query_mut::<(&Slot, &Body, &Who)>() {
            if bodies.read(slot.0) != *body {
                bodies.write(slot.0, *body);
            }
            if whos.read(slot.0) != *who {
                whos.write(slot.0, *who);
            }
        }
        for slot in (0..SLOTS).filter(|slot| self.slots[*slot].is_none()) {
            if whos.read(slot) != Who::Nobody {
                whos.write(slot, Who::Nobody);
            }
        }
    }

    fn show(&mut self, tick: u64, durable: u64) {
        let (width, height) = (WIDTH as usize, HEIGHT as usize);
        let mut picture = vec![vec![' '; width]; height];
        let (mut fish, mut sharks) = (0, 0);
        for (body, who) in self.world.query_mut::<(&Body, &Who)>() {
            let place = |n: usize, most: usize| (body.at[n] as usize).min(most - 1);
            let letter = match who {
                Who::Shark { .. } => 'V',
                _ => '~',
            };
            *if letter == 'V' { &mut sharks } else { &mut fish } += 1;
            picture[place(1, height)][place(0, width)] = letter;
        }
        let rows: String =
            picture.into_iter().flat_map(|row| row.into_iter().chain(['\n'])).collect();
        println!(
            "\x1b[H\x1b[J{rows}tick {tick}, durable up to {durable}: {fish} fish, {sharks} sharks"
        );
    }
}

/// Opens the state. The world is spawned before the first step that runs again, or at the end.
fn open(environment: Environment) -> Result<(State<Scheme>, Stored, Sea), StateError> {
    let mut builder = State::<Scheme>::builder();
    let stored = Stored::define(&mut builder);
    let mut sea = None;
    let config = Config { every: Every::Interval(Duration::from_secs(2)), ..Config::default() };
    let (state, recovered) = builder.open(
        environment,
        &config,
        |cells| stored.first(cells),
        |cells, tick, actions| {
            let sea = sea.get_or_insert_with(|| Sea::spawned_from(stored, cells));
            sea.step(stored, cells, tick, actions);
        },
    )?;
    if !recovered.is_new {
        println!("went on at tick {}, {} run again", recovered.tick, recovered.replayed_ticks);
    }
    let sea = sea.unwrap_or_else(|| Sea::spawned_from(stored, &state));
    Ok((state, stored, sea))
}

fn live(dir: &str, seconds: u64) -> Result<(), StateError> {
    let (mut state, stored, mut sea) = open(Environment::at(dir)?)?;
    let end = state.ticks() + seconds * 30;
    while seconds == 0 || state.ticks() < end {
        if RealRng.below(150) == 0 {
            state.log(&RealRng.next_u64().to_le_bytes())?;
        }
        state.step(|cells, tick, actions| sea.step(stored, cells, tick, actions))?;
        if state.ticks().is_multiple_of(5) {
            sea.show(state.ticks(), state.durable_tick());
        }
        RealClock.sleep(Duration::from_millis(33));
    }
    state.close()
}

fn main() -> std::process::ExitCode {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "shoal".to_owned());
    let seconds = args.next().map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    match live(&dir, seconds) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use stillpoint_state::{SeededRng, SimDisk};

    fn environment(disk: &SimDisk) -> Environment {
        let (disk, clock) = (Arc::new(disk.clone()), Arc::new(RealClock));
        Environment { disk, clock, rng: Arc::new(SeededRng::new(1)) }
    }

    /// Goes on until a tick, with a shark at every 100th.
    fn run(state: &mut State<Scheme>, stored: Stored, sea: &mut Sea, until: u64) {
        while state.ticks() < until {
            let tick = state.ticks() + 1;
            if tick.is_multiple_of(100) {
                state.log(&tick.to_le_bytes()).expect("it is short");
            }
            let stepped = state.step(|cells, tick, actions| sea.step(stored, cells, tick, actions));
            stepped.expect("the disk has room");
        }
    }

    #[test]
    fn a_world_that_loses_power_again_and_again_is_the_one_that_never_did() {
        let quiet = SimDisk::new(1);
        let (mut state, stored, mut sea) = open(environment(&quiet)).expect("a new state");
        run(&mut state, stored, &mut sea, 2_000);
        let all = |state: &State<Scheme>, stored: Stored| -> Vec<(Body, Who)> {
            state.iter(stored.bodies).zip(state.iter(stored.whos)).collect()
        };
        let wanted = all(&state, stored);
        let is = |who: &Who, shark: bool| {
            matches!(who, Who::Shark { .. }) == shark && *who != Who::Nobody
        };
        let count = |shark| wanted.iter().filter(|(_, who)| is(who, shark)).count();
        assert!(
            count(false) > 10 && count(true) > 2,
            "{} fish, {} sharks",
            count(false),
            count(true)
        );

        let (mut disk, mut at) = (SimDisk::new(2), 0);
        while at < 2_000 {
            let (mut state, stored, mut sea) = open(environment(&disk)).expect("it goes on");
            at = (state.ticks() + 130).min(2_000);
            run(&mut state, stored, &mut sea, at);
            state.wait_durable(at).expect("a log");
            if at == 2_000 {
                assert!(all(&state, stored) == wanted, "the worlds differ");
            }
            drop(state);
            disk = disk.crash(at);
        }
    }
}
