//! Two clients of a server send bytes in turns: whole replies come back, and a third is served.
//!
//! Input: the bytes; 0xFF passes from one client to the other.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use stillpoint::{Config, Engine};
use stillpoint_fuzz::write_seeds;
use stillpoint_io::{ManualClock, SeededRng, SimDisk};
use stillpoint_server::fuzzing::{Alone, sample_stream};

/// Inputs before the engine is a new one, so that none ages beyond what a run can repeat.
const INPUTS_EACH: u32 = 10_000;

fn alone() -> Alone {
    let clock = Arc::new(ManualClock::self_advancing(1_790_000_000_000));
    let mut config = Config::new("unused");
    config.checkpoint = "none".to_owned();
    config.journal = "none".to_owned();
    config.sessions = 2;
    config.environment.disk = Some(Arc::new(SimDisk::new(1)));
    config.environment.clock = Arc::clone(&clock) as Arc<_>;
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = false;
    Alone::new(Engine::open(config).expect("the engine opens"), clock)
}

thread_local! {
    static SERVERS: RefCell<(Alone, u32)> = RefCell::new((alone(), 0));
}

fuzz_target!(
    init: write_seeds(sample_stream),
    |input: &[u8]| {
        SERVERS.with_borrow_mut(|(servers, inputs)| {
            if *inputs == INPUTS_EACH {
                (*servers, *inputs) = (alone(), 0);
            }
            *inputs += 1;
            servers.serve(input);
        });
    }
);
