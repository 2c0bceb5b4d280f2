//! Two clients of a server send bytes in turns: whole replies come back, and a third is served.
//!
//! Input: the bytes; 0xFF passes from one client to the other.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use stillpoint_fuzz::write_seeds;
use stillpoint_server::fuzzing::{Alone, sample_stream};

/// Inputs before the engine is a new one, so that none ages beyond what a run can repeat.
const INPUTS_EACH: u32 = 10_000;

thread_local! {
    static SERVERS: RefCell<(Alone, u32)> = RefCell::new((Alone::new(), 0));
}

fuzz_target!(
    init: write_seeds(sample_stream),
    |input: &[u8]| {
        SERVERS.with_borrow_mut(|(servers, inputs)| {
            if *inputs == INPUTS_EACH {
                (*servers, *inputs) = (Alone::new(), 0);
            }
            *inputs += 1;
            servers.serve(input);
        });
    }
);
