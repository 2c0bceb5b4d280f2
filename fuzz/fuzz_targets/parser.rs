//! The parser of requests finds the same, however the stream is cut.
//!
//! Input: two bytes, which say whether the client is authenticated and where to cut; the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stillpoint_fuzz::write_seeds;
use stillpoint_server::fuzzing::{cut_anywhere, sample_stream};

fuzz_target!(
    init: write_seeds(|seed| [&[seed as u8, (seed >> 1) as u8], &sample_stream(seed)[..]].concat()),
    |input: &[u8]| {
        if let [first, second, stream @ ..] = input {
            let cuts = [usize::from(*first), usize::from(*second), usize::from(*first ^ *second)];
            cut_anywhere(stream, &cuts, first % 2 == 0);
        }
    }
);
