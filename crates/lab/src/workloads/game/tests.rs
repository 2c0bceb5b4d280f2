use super::model::{
    ATTRIBUTES, BEHAVIOURS, Event, PLAYERS, Player, SIMULATED, TICKS_PER_S, UPDATES_PER_S,
};
use super::{ACTION_BYTES, Game};
use crate::workloads::load::Load;
use crate::workloads::random::Random;

#[test]
fn the_totals_are_those_of_the_paper() {
    for seed in [1, 2] {
        let game = Game::new(PLAYERS, 100, seed);
        let updates = (game.totals.simulated + game.totals.acted) as f64;
        let per_s = updates / game.totals.ticks as f64 * TICKS_PER_S;
        let off = per_s / UPDATES_PER_S - 1.0;
        assert!(off.abs() < 0.01, "seed {seed}: {per_s} updates per second");
        assert_eq!(game.words * 4, 200_000_000, "2,000 objects of 100 KB");
    }
}

#[test]
fn four_fifths_of_the_attributes_change_by_actions_only() {
    let mut words = vec![false; ATTRIBUTES];
    for machine in &BEHAVIOURS {
        for group in [machine.simulated, machine.acted] {
            for taken in &mut words[group.first..group.first + group.count] {
                assert!(!std::mem::replace(taken, true), "{}: {group:?}", machine.name);
            }
        }
        assert!(machine.simulated.first + machine.simulated.count <= SIMULATED);
        assert!(machine.acted.first >= SIMULATED);
    }
    assert!(words.iter().all(|&it| it), "every attribute belongs to a behaviour");
    assert_eq!(SIMULATED * 5, ATTRIBUTES);

    let game = Game::new(PLAYERS, 42, 3);
    let share = game.totals.acted as f64 / (game.totals.acted + game.totals.simulated) as f64;
    assert!((0.001..0.05).contains(&share), "actions make {share} of the updates");
    // Within a checkpoint period of 4.2 s hardly any attribute that only actions change is touched.
    let mut touched = vec![false; game.words];
    for tick in 1..=42 {
        for word in game.changes(tick) {
            touched[word] = true;
        }
    }
    let acted = touched.iter().enumerate().filter(|(word, _)| word % ATTRIBUTES >= SIMULATED);
    let count = acted.filter(|(_, touched)| **touched).count();
    let share = count as f64 / (PLAYERS * (ATTRIBUTES - SIMULATED)) as f64;
    assert!(share < 0.01, "{share} of the attributes that only actions change were touched");
}

#[test]
fn every_state_is_reached_and_behaviours_depend_on_each_other_a_little() {
    let mut random = Random::new(4);
    let mut seen: Vec<Vec<u64>> =
        BEHAVIOURS.iter().map(|machine| vec![0; machine.states.len()]).collect();
    let (mut running, mut fights) = ([0u64; 2], [0u64; 2]);
    for _ in 0..100 {
        let mut player = Player::default();
        for _ in 0..5_000 {
            player.tick(&mut random, |event, _| {
                if let Event::Action(machine, state) = event {
                    assert!(BEHAVIOURS[machine].states[state].action > 0);
                }
            });
            for (machine, seen) in seen.iter_mut().enumerate() {
                seen[player.state(machine)] += 1;
            }
            let is_fighting = usize::from(player.state(1) != 0);
            fights[is_fighting] += 1;
            running[is_fighting] += u64::from(player.state(0) == 2);
        }
    }
    assert!(seen.iter().flatten().all(|&count| count > 500), "{seen:?}");
    let share = |fighting: usize| running[fighting] as f64 / fights[fighting] as f64;
    assert!(share(1) > 1.2 * share(0), "who fights runs more: {} and {}", share(1), share(0));
    for machine in &BEHAVIOURS {
        for state in machine.states {
            let leaves: f64 = state.to.iter().map(|(_, probability)| probability * 3.0).sum();
            assert!(leaves < 1.0, "{} {}", machine.name, state.name);
        }
    }
}

#[test]
fn a_game_follows_from_its_seed_and_logs_its_actions() {
    let (game, again, other) = (Game::new(20, 50, 5), Game::new(20, 50, 5), Game::new(20, 50, 6));
    assert_eq!((game.totals, &game.actions), (again.totals, &again.actions));
    assert_ne!(game.totals, other.totals);
    let (mut actions, mut wrapped) = (0, 0);
    for tick in 1..=50 {
        game.actions(tick, &mut |action| {
            assert_eq!(action.len(), ACTION_BYTES);
            actions += 1;
        });
        game.actions(tick + 50, &mut |_| wrapped += 1);
    }
    assert_eq!((actions, wrapped), (game.totals.actions, game.totals.actions));
}
