//! Two clients of a server send bytes in turns. Whole replies come back, and the server still
//! serves a third client.
//!
//! Input: the bytes; 0xFF passes from one client to the other.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use stillpoint_fuzz::write_seeds;
use stillpoint_server::fuzzing::{Alone, sample_stream};

/// Inputs after which a new engine replaces the present one, so that its state stays within what
/// one input can repeat.
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
