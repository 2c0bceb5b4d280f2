//! Crash tests on the simulated disk, for every scheme and layout, from seeds.
//!
//! `STILLPOINT_STATE_CRASH_SEEDS=1000` runs 1,000 seeds of each. `STILLPOINT_STATE_SEED` sets the
//! first seed. `STILLPOINT_STATE_FAULTS_ALL=1` lets every call fail in each way, for every scheme.

mod failed_flush;
mod lives;
mod pointed;
mod world;

use stillpoint_io::Fault;
use stillpoint_state::{Content, registry};

/// Seeds of each scheme and layout unless the environment says otherwise.
const SEEDS: u64 = 8;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn what_was_durable_is_there_and_what_is_there_was() {
    let first = number("STILLPOINT_STATE_SEED", 0);
    for name in registry::names_here() {
        let mut all = lives::Coverage::default();
        for seed in first..first + number("STILLPOINT_STATE_CRASH_SEEDS", SEEDS) {
            let seen = lives::run_seed(name, seed);
            all.states += seen.states;
            all.images_loaded += seen.images_loaded;
            all.replayed_ticks += seen.replayed_ticks;
            all.failures += seen.failures;
        }
        let takes_images =
            registry::REGISTRY.find(name).expect("a row").content != Content::Nothing;
        assert_eq!(all.images_loaded > 0, takes_images, "{name}: {all:?}");
        assert!(all.replayed_ticks > 0 && all.failures > 0, "{name}: {all:?}");
    }
}

#[test]
fn faults_at_any_call_of_the_first_life() {
    let is_all = number("STILLPOINT_STATE_FAULTS_ALL", 0) > 0;
    let names: Vec<&str> =
        if is_all { registry::names_here().collect() } else { vec!["hg", "pb", "ipp", "none"] };
    let step = if is_all { 1 } else { 7 };
    for name in names {
        for (at, fault) in
            [Fault::DiskFull, Fault::InputOutput, Fault::PowerLoss].into_iter().enumerate()
        {
            for nth in (1 + at as u64..200).step_by(step) {
                lives::run_with_fault(name, 3, nth, fault);
            }
        }
    }
}

#[test]
fn scenarios() {
    for (name, scenario) in pointed::SCENARIOS {
        let failed = std::panic::catch_unwind(scenario).is_err();
        assert!(!failed, "{name}");
    }
}
