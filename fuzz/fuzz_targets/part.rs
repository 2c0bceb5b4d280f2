//! The reader of checkpoint parts.
//!
//! Input: one byte, then data by its remainder modulo 3. With 0 the data is a whole part. With 1
//! the data is blocks, from which a part with right checksums is made. With 2 the data is the end
//! of a part (footer and trailer), whose checksums are corrected.

#![no_main]

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/format/tests/format/common/mod.rs"]
mod common;

use common::forge::{blocks_of, forge_index, forge_part};
use common::mutate::Stream;
use common::part::{part_header, read_part};
use common::sample::sample_part;
use libfuzzer_sys::fuzz_target;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::part::Codec;
use stillpoint_fuzz::write_seeds;

fuzz_target!(
    init: write_seeds(|seed| {
        let part = sample_part(&mut Stream(seed));
        match seed % 8 {
            0 => [&[0], &part[..]].concat(),
            1..6 => [&[1], blocks_of(&part)].concat(),
            _ => [&[2], &part[HEADER_BYTES..]].concat(),
        }
    }),
    |input: &[u8]| {
        let [mode, bytes @ ..] = input else { return };
        let header = part_header(Codec::None);
        let part = match mode % 3 {
            0 => bytes.to_vec(),
            1 => forge_part(&header, bytes).0,
            _ => {
                let mut part = [&header.encode()[..], bytes].concat();
                forge_index(header.identity(), &mut part);
                part
            }
        };
        // Damage is an error; anything else that goes wrong ends the process.
        let _ = read_part(&part);
    }
);
