//! The reader of log segments.
//!
//! Input: one byte, then batches. If the byte is a multiple of 3, the batches are read unchanged,
//! and the same bytes are also decoded as a header. Otherwise the checksums of the batches are
//! corrected. In every second of these cases the first 24 bytes describe the header.

#![no_main]

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/format/tests/format/common/mod.rs"]
mod common;

use common::forge::{forge_batches, forge_file_header};
use common::judge::read_segment;
use common::mutate::Stream;
use common::sample::sample_segment;
use common::segment_header;
use libfuzzer_sys::fuzz_target;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::SegmentHeader;
use stillpoint_fuzz::write_seeds;

fuzz_target!(
    init: write_seeds(|seed| {
        let (_, mut segment) = sample_segment(&mut Stream(seed));
        segment.drain(..HEADER_BYTES);
        segment.insert(0, [1, 1, 0][seed as usize % 3]);
        segment
    }),
    |input: &[u8]| {
        let [mode, batches @ ..] = input else { return };
        let mut segment = segment_header().encode().to_vec();
        if mode % 3 == 2 && let [params @ ..] = &batches[..batches.len().min(24)] {
            segment[64..64 + params.len()].copy_from_slice(params);
            forge_file_header(&mut segment);
        }
        segment.extend_from_slice(batches);
        let Ok(header) = SegmentHeader::decode(&segment) else { return };
        if mode % 3 == 0 {
            let _ = SegmentHeader::decode(batches);
        } else {
            forge_batches(&header, &mut segment);
        }
        read_segment(&header, &segment);
    }
);
