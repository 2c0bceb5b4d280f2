//! Compares every scheme, layout and cell size with a sequential model, failing captures included.
//! Each read must equal the model's, and each image the model at its point of consistency.
//!
//! `STILLPOINT_STATE_STEPS=10000000` runs ten million steps of each scheme, layout and cell size.
//! `STILLPOINT_STATE_SEED` sets the first seed. `STILLPOINT_STATE_SCHEME=piggyback` takes the
//! schemes whose names begin with that word. `--nocapture` shows the counts of events of each.

mod steps;
mod threads;

use stillpoint_state::registry;

/// Steps of each scheme, layout and cell size unless the environment says otherwise.
const STEPS: u64 = 20_000;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
#[expect(clippy::print_stdout, reason = "what a long run went through")]
fn every_scheme_layout_and_cell_size_equals_the_model() {
    let steps = number("STILLPOINT_STATE_STEPS", STEPS);
    let seed = number("STILLPOINT_STATE_SEED", 0);
    let chosen = std::env::var("STILLPOINT_STATE_SCHEME").unwrap_or_default();
    for name in registry::names_here().filter(|name| name.starts_with(&chosen)) {
        let seen = steps::run_all_sizes(name, seed, steps);
        println!("{name}: {steps} steps of each layout and cell size, {seen:?}");
        let row = registry::REGISTRY.find(name).expect("it is in the table");
        let captures = row.content != stillpoint_state::Content::Nothing;
        assert_eq!(seen.images > 0 && seen.failures > 0, captures, "{name}: {seen:?}");
        assert!(seen.reads > 0 && seen.ticks > 0, "{name}: {seen:?}");
    }
}

#[test]
fn every_scheme_under_a_writer_of_its_own() {
    for name in registry::names_here() {
        threads::run(name, number("STILLPOINT_STATE_SEED", 0));
    }
}
