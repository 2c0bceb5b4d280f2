//! The manifest.
//!
//! Input: a document. The target puts a first line with the right length and checksum before it. An
//! input that begins like a first line is also decoded as it is.

#![no_main]

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/format/tests/format/common/mod.rs"]
mod common;

use common::judge::judge_document;
use common::manifest::manifest;
use common::mutate::{Stream, mutate};
use libfuzzer_sys::fuzz_target;
use stillpoint_format::manifest::Manifest;
use stillpoint_fuzz::write_seeds;

fuzz_target!(
    init: write_seeds(|seed| {
        let whole = manifest().encode().expect("consistent");
        let start = whole.iter().position(|byte| *byte == b'\n').expect("first line") + 1;
        let mut bytes = if seed % 16 == 0 { whole } else { whole[start..].to_vec() };
        if seed > 16 {
            mutate(&mut Stream(seed), &mut bytes);
        }
        bytes
    }),
    |input: &[u8]| {
        if input.starts_with(b"still") {
            let _ = Manifest::decode(input);
        }
        judge_document(input);
    }
);
