//! Tests of decoders with arbitrary bytes. The decoders return errors, never panic, never allocate
//! an announced length, and never accept changed bytes.
//!
//! Each loop runs a fixed number of rounds, or for the seconds of `STILLPOINT_FUZZ_SECONDS`.
//! `STILLPOINT_FUZZ_SEED` sets the first seed. A failure prints the seed of its round, which then
//! fails at once.

use proptest::prelude::*;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{BatchReader, SegmentHeader, Step};
use stillpoint_format::manifest::Manifest;
use stillpoint_format::part::{BLOCK_HEADER_BYTES, BlockReader, Codec, PartHeader, PartIndex};
use stillpoint_io::seeded_rounds;

use crate::common::forge::{forge_batch, forge_batch_name, forge_block};
use crate::common::judge::{judge_document, read_segment};
use crate::common::mutate::{Stream, mutate};
use crate::common::part::{part_header, read_part};
use crate::common::sample::{sample_part, sample_segment};
use crate::common::segment_header;

/// Runs `round` with the stream of one seed after the other.
pub(crate) fn run(rounds: u64, mut round: impl FnMut(&mut Stream)) {
    seeded_rounds(rounds, |seed| {
        round(&mut Stream(seed.wrapping_mul(0xD134_2543_DE82_EF95)));
    });
}

#[test]
fn mutated_segments_never_panic() {
    run(20_000, |stream| {
        let (header, mut segment) = sample_segment(stream);
        let _ = read_segment(&header, &segment);
        mutate(stream, &mut segment);
        if let Ok(header) = SegmentHeader::decode(&segment) {
            assert_eq!(header, segment_header(), "a changed header was accepted");
        }
        read_segment(&header, &segment);
    });
}

/// Mutations with corrected checksums reach the decoders behind the checksums.
#[test]
fn forged_batches_never_panic() {
    let mut reached = 0;
    run(40_000, |stream| {
        let (header, mut segment) = sample_segment(stream);
        let first = segment.split_off(HEADER_BYTES);
        let total = u32::from_le_bytes([first[12], first[13], first[14], first[15]]) as usize;
        let mut forged = first[..total].to_vec();
        if stream.below(4) == 0 {
            mutate(stream, &mut forged);
        } else {
            let mut payload = forged.split_off(64);
            mutate(stream, &mut payload);
            forged.extend_from_slice(&payload);
        }
        forged.resize(forged.len().next_multiple_of(8).max(64), 0);
        if stream.below(8) > 0 {
            forge_batch_name(&mut forged);
        }
        forge_batch(&header, 4096, &mut forged);
        segment.extend_from_slice(&forged);
        reached += read_segment(&header, &segment);
    });
    assert!(reached > 10_000, "only {reached} writes were decoded: the forgery is clumsy");
}

#[test]
fn mutated_parts_are_refused() {
    run(10_000, |stream| {
        let file = sample_part(stream);
        let mut mutated = file.clone();
        mutate(stream, &mut mutated);
        let read = read_part(&mutated);
        assert!(mutated == file || read.is_err(), "a changed part was accepted");
        // Every piece is also decoded by itself.
        let identity = part_header(Codec::None).identity();
        let at = stream.below(mutated.len() + 1);
        let _ = BlockReader::new(identity).open(&mutated[at..], at as u64).map(|_| ());
        let _ = PartIndex::of_file(identity, &mutated[at..], 4);
    });
}

#[test]
fn forged_blocks_never_panic() {
    let mut reached = 0;
    run(40_000, |stream| {
        let file = sample_part(stream);
        let header = PartHeader::decode(&file).expect("own header");
        let Ok(index) = PartIndex::of_file(header.identity(), &file, 4) else {
            panic!("own index");
        };
        let Some(entry) = index.blocks().first() else {
            return;
        };
        let at = entry.offset as usize;
        let mut block = file[at..at + entry.bytes as usize].to_vec();
        let mut payload = block.split_off(BLOCK_HEADER_BYTES);
        mutate(stream, &mut payload);
        if stream.below(2) == 0 {
            block[36] = 0;
            block[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        } else if stream.below(4) == 0 {
            let field = 16 + 4 * stream.below(2);
            let nasty = [0, 1, u32::MAX, 1 << 20, 2 << 20][stream.below(5)];
            block[field..field + 4].copy_from_slice(&nasty.to_le_bytes());
        }
        block.extend_from_slice(&payload);
        forge_block(header.identity(), 4096, &mut block);
        let mut reader = BlockReader::new(header.identity());
        if let Ok(block) = reader.open(&block, 4096) {
            reached += block.entries().filter(Result::is_ok).count();
        }
    });
    assert!(reached > 10_000, "only {reached} entries were decoded: the forgery is clumsy");
}

#[test]
fn mutated_pages_and_map_blocks_are_refused() {
    run(20_000, crate::pages::judge_mutation);
}

#[test]
fn mutated_records_of_pages_never_panic() {
    let mut accepted = 0;
    run(20_000, |stream| accepted += u64::from(crate::page_log::judge_mutation(stream)));
    assert!(accepted > 0, "no record was accepted: the mutations are clumsy");
}

#[test]
fn mutated_siren_files_are_refused() {
    run(20_000, crate::siren::judge_mutation);
}

#[test]
fn forged_siren_files_never_panic() {
    let mut reached = 0;
    run(20_000, |stream| reached += crate::siren::judge_forgery(stream));
    assert!(reached > 10_000, "only {reached} things were decoded: the forgery is clumsy");
}

#[test]
fn mutated_manifests_are_refused() {
    let original = crate::common::manifest::manifest().encode().expect("consistent");
    run(20_000, |stream| {
        let mut bytes = original.clone();
        mutate(stream, &mut bytes);
        let decoded = Manifest::decode(&bytes);
        assert!(bytes == original || decoded.is_err(), "a changed manifest was accepted");
    });
}

/// With a corrected first line the document is refused, or means the same after it is written and
/// read again.
#[test]
fn forged_manifests_never_panic() {
    let original = crate::common::manifest::manifest().encode().expect("consistent");
    let start = original.iter().position(|&byte| byte == b'\n').expect("first line") + 1;
    let mut accepted = 0;
    run(20_000, |stream| {
        let mut document = original[start..].to_vec();
        mutate(stream, &mut document);
        accepted += u64::from(judge_document(&document));
    });
    assert!(accepted > 100, "only {accepted} documents were accepted: the forgery is clumsy");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..9000),
        offset in any::<u32>(),
    ) {
        let offset = u64::from(offset);
        let header = segment_header();
        prop_assert!(SegmentHeader::decode(&bytes).is_err());
        prop_assert!(PartHeader::decode(&bytes).is_err());
        prop_assert!(Manifest::decode(&bytes).is_err());
        prop_assert_eq!(read_segment(&header, &bytes), 0);
        let identity = part_header(Codec::None).identity();
        prop_assert!(BlockReader::new(identity).open(&bytes, offset).is_err());
        prop_assert!(PartIndex::of_file(identity, &bytes, 16).is_err());
        let _ = stillpoint_format::log::WriteIter::new(&bytes, offset).count();
        for magic in [*b"SPLB", *b"SPCB", *b"SPCF", *b"SPCT"] {
            if let Some(start) = bytes.first_chunk_mut() {
                *start = magic;
            }
            prop_assert!(BlockReader::new(identity).open(&bytes, offset).is_err());
            let mut reader = BatchReader::window(&header, &bytes, 4096, 100, 0);
            prop_assert!(matches!(reader.next_batch(), Step::End(_)));
        }
    }
}
