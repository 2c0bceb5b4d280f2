//! Tests of state arrays: schema, images, log of actions, their fixtures, and hostile bytes.

use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::state::{
    ActionBatchBuilder, ActionSegmentHeader, ArraySchema, BLOCK_HEADER_BYTES, ImageHeader,
    ImageLayout, ImageTrailer, StateSchema, actions_name, open_block, parse_actions_name,
    read_action_batch, seal_block, valid_batch_behind,
};
use stillpoint_format::{DecodeCause, DecodeError};

use crate::common::mutate::{Stream, mutate};
use crate::hostile::run;

macro_rules! fixture {
    ($name:literal) => {
        ($name, include_bytes!(concat!("fixtures/v2/", $name)))
    };
}

const SCHEMA: (&str, &[u8]) = fixture!("state-schema");
const IMAGE: (&str, &[u8]) = fixture!("state-image");
const IMAGE_FLIPPED: (&str, &[u8]) = fixture!("state-image-flipped");
const IMAGE_UNFINISHED: (&str, &[u8]) = fixture!("state-image-unfinished");
const ACTIONS: (&str, &[u8]) = fixture!("state-actions");
const ACTIONS_TORN: (&str, &[u8]) = fixture!("state-actions-torn");
const ACTIONS_DAMAGED: (&str, &[u8]) = fixture!("state-actions-damaged");

const STORE: StoreId = StoreId(*b"state of fixture");

fn schema() -> StateSchema {
    let array =
        |name: &str, cell_bytes, cells| ArraySchema { name: name.into(), cell_bytes, cells };
    let arrays = vec![
        array("words", 4, 5000),
        array("none of it", 8, 0),
        array("pages", 4096, 3),
        array("a name of sixty-four bytes, which is the longest that is allowed", 24, 341),
    ];
    StateSchema { store: STORE, created_ms: 1_700_000_000_000, arrays }
}

fn header() -> ImageHeader {
    ImageHeader {
        store: STORE,
        created_ms: 1_700_000_000_001,
        capture: 7,
        tick: 123_456,
        schema: schema().checksum(),
        block_bytes: 8192,
        slot: 1,
    }
}

fn layout() -> ImageLayout {
    ImageLayout::new(&schema().arrays, header().block_bytes).expect("it is small")
}

fn image() -> Vec<u8> {
    let (header, layout) = (header(), layout());
    let mut bytes = vec![0; layout.file_bytes() as usize];
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    let mut checksums = Vec::new();
    for number in 0..layout.blocks() {
        let place = layout.place(number).expect("there are so many");
        let at = place.offset as usize;
        let block = &mut bytes[at..at + place.len];
        for (n, byte) in block[BLOCK_HEADER_BYTES..][..place.payload_bytes].iter_mut().enumerate() {
            *byte = (n as u64 * 7 + number) as u8;
        }
        checksums.push(seal_block(header.identity(), &place, block));
    }
    let trailer = ImageTrailer {
        capture: header.capture,
        tick: header.tick,
        blocks: layout.blocks(),
        chain: ImageTrailer::chain_of(&checksums),
    };
    let at = layout.trailer_at();
    bytes[at as usize..].copy_from_slice(&trailer.encode(header.identity(), at));
    bytes
}

/// The cells of an image, array after array.
fn read_image(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let header = ImageHeader::decode(bytes)?;
    header.expect(&schema(), 1)?;
    let layout = ImageLayout::new(&schema().arrays, header.block_bytes)?;
    let rest = |at: u64| bytes.get(at as usize..).unwrap_or_default();
    let trailer = ImageTrailer::decode(&header, &layout, rest(layout.trailer_at()))?;
    let (mut cells, mut checksums) = (Vec::new(), Vec::new());
    for number in 0..layout.blocks() {
        let place = layout.place(number).expect("there are so many");
        let block = rest(place.offset);
        let block = &block[..block.len().min(place.len)];
        let (payload, checksum) = open_block(header.identity(), &place, block)?;
        cells.extend_from_slice(payload);
        checksums.push(checksum);
    }
    trailer.verify_chain(&layout, &checksums)?;
    Ok(cells)
}

fn segment_header() -> ActionSegmentHeader {
    let (created_ms, first_tick, nonce) = (1_700_000_000_002, 41, 0xDEAD_BEEF);
    ActionSegmentHeader { store: STORE, created_ms, first_tick, nonce }
}

/// The ticks of the fixture's batches, and their actions.
fn ticks() -> [Vec<Vec<&'static [u8]>>; 3] {
    [
        vec![vec![], vec![b"jump", b""], vec![], vec![b"run"]],
        vec![vec![]],
        vec![vec![&[7; 5000]], vec![b"last"]],
    ]
}

fn segment() -> Vec<u8> {
    let header = segment_header();
    let mut bytes = header.encode().to_vec();
    let mut batch = ActionBatchBuilder::new();
    let mut tick = header.first_tick;
    for (number, ticks) in (0..).zip(ticks()) {
        for actions in ticks {
            let mut encoded = Vec::new();
            for action in actions {
                ActionBatchBuilder::put_action(&mut encoded, action);
            }
            assert!(batch.push(tick, &encoded));
            tick += 1;
        }
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(batch.seal(header.identity(), offset, number));
        batch.clear();
    }
    bytes.resize(bytes.len() + 8192, 0);
    bytes
}

type Ticks = Vec<(u64, Vec<Vec<u8>>)>;

/// The ticks with actions, the end of the segment, and whether a valid batch follows it.
fn read_segment(header: &ActionSegmentHeader, bytes: &[u8]) -> (Ticks, usize, bool) {
    let identity = header.identity();
    let (mut ticks, mut offset, mut number) = (Ticks::new(), HEADER_BYTES, 0);
    loop {
        let rest = bytes.get(offset..).unwrap_or_default();
        let Ok(batch) = read_action_batch(identity, offset as u64, number, rest) else {
            let is_behind = valid_batch_behind(identity, offset as u64, number, rest).is_some();
            return (ticks, offset, is_behind);
        };
        let _ = batch.for_each_step::<DecodeError>(|step| {
            let step = step?;
            let (mut rest, mut actions) = (step.actions, Vec::new());
            while let Some((len, more)) = rest.split_first_chunk::<4>() {
                let (action, more) = more.split_at(u32::from_le_bytes(*len) as usize);
                actions.push(action.to_vec());
                rest = more;
            }
            ticks.push((step.tick, actions));
            Ok(())
        });
        (offset, number) = (offset + batch.len, number + 1);
    }
}

fn wanted_ticks() -> Ticks {
    let all = ticks().into_iter().flatten();
    let owned = all.map(|actions| actions.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
    (41..).zip(owned).filter(|(_, actions)| !actions.is_empty()).collect()
}

fn all() -> Vec<(&'static str, Vec<u8>)> {
    let (image, segment) = (image(), segment());
    let mut flipped = image.clone();
    flipped[9000] ^= 2;
    let mut unfinished = image.clone();
    let at = layout().trailer_at() as usize;
    unfinished[at..].fill(0);
    let (mut torn, mut damaged) = (segment.clone(), segment.clone());
    torn[4096 * 3 + 600..].fill(0);
    damaged[4096 + 70] ^= 1;
    vec![
        (SCHEMA.0, schema().encode().to_vec()),
        (IMAGE.0, image),
        (IMAGE_FLIPPED.0, flipped),
        (IMAGE_UNFINISHED.0, unfinished),
        (ACTIONS.0, segment),
        (ACTIONS_TORN.0, torn),
        (ACTIONS_DAMAGED.0, damaged),
    ]
}

#[test]
fn encoders_still_write_the_same_bytes() {
    let kept =
        [SCHEMA, IMAGE, IMAGE_FLIPPED, IMAGE_UNFINISHED, ACTIONS, ACTIONS_TORN, ACTIONS_DAMAGED];
    for ((name, kept), (_, today)) in kept.into_iter().zip(all()) {
        assert!(today == kept, "{name} differs: the format changed without a new version");
    }
}

/// Writes the fixtures anew, for a new format version only. Run this test by name with `--ignored`.
#[test]
#[ignore = "overwrites the fixtures"]
#[expect(
    clippy::disallowed_methods,
    reason = "a tool for authors; the crate itself knows no files"
)]
fn write_state_fixtures() {
    for (name, bytes) in all() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format/fixtures/v2");
        let path = format!("{dir}/{name}");
        std::fs::write(&path, &bytes).expect("write");
        assert_eq!(std::fs::read(&path).expect("read"), bytes);
    }
}

#[test]
fn fixtures_decode_or_say_why_not() {
    assert_eq!(StateSchema::decode(SCHEMA.1), Ok(schema()));
    assert_eq!(ImageHeader::decode(IMAGE.1), Ok(header()));
    let cells = read_image(IMAGE.1).expect("it is whole");
    assert_eq!(cells.len(), 5000 * 4 + 3 * 4096 + 341 * 24);
    let error = read_image(IMAGE_FLIPPED.1).expect_err("a bit is flipped").to_string();
    assert!(error.starts_with("state image block at byte 4096: checksum mismatch"), "{error}");
    let error = read_image(IMAGE_UNFINISHED.1).expect_err("it has no trailer").to_string();
    assert!(error.contains("state image trailer") && error.contains("bad magic"), "{error}");
    let header = ActionSegmentHeader::decode(ACTIONS.1).expect("a header");
    assert_eq!(header, segment_header());
    assert_eq!(header.expect(STORE, 41), Ok(()));
    assert!(header.expect(STORE, 42).is_err() && header.expect(StoreId([0; 16]), 41).is_err());
    assert_eq!(read_segment(&header, ACTIONS.1), (wanted_ticks(), 4096 * 5, false));
    let (ticks, end, is_behind) = read_segment(&header, ACTIONS_TORN.1);
    assert_eq!((ticks.len(), end, is_behind), (2, 4096 * 3, false), "its tail is torn");
    let (ticks, end, is_behind) = read_segment(&header, ACTIONS_DAMAGED.1);
    assert_eq!((ticks.len(), end, is_behind), (0, 4096, true), "a later batch was written");
}

/// Files of version 1 are refused, since that version has no third image and no second trailer.
#[test]
fn version_1_is_refused() {
    let refused = [
        StateSchema::decode(include_bytes!("fixtures/v1/state-schema")).map(drop),
        ImageHeader::decode(include_bytes!("fixtures/v1/state-image")).map(drop),
        ActionSegmentHeader::decode(include_bytes!("fixtures/v1/state-actions")).map(drop),
    ];
    for refused in refused {
        let cause = refused.expect_err("version 1").cause;
        assert_eq!(cause, DecodeCause::UnknownVersion { found: 1, reads: 2 });
    }
}

#[test]
fn blocks_fill_the_image_without_gaps() {
    for block_bytes in [8192, 12288, 1 << 20] {
        let layout = ImageLayout::new(&schema().arrays, block_bytes).expect("it is small");
        let (mut at, mut cells) = (HEADER_BYTES as u64, [0; 4]);
        for number in 0..layout.blocks() {
            let place = layout.place(number).expect("there are so many");
            assert_eq!((place.block, place.offset), (number, at));
            let array = place.array as usize;
            assert_eq!(place.first_cell, cells[array]);
            let bytes = place.cells * u64::from(schema().arrays[array].cell_bytes);
            assert_eq!(place.payload_bytes as u64, bytes);
            let room = place.len as u64 - BLOCK_HEADER_BYTES as u64;
            assert!(
                place.len <= block_bytes as usize
                    && place.len.is_multiple_of(4096)
                    && bytes <= room
            );
            (at, cells[array]) = (at + place.len as u64, cells[array] + place.cells);
        }
        assert_eq!((cells, at), ([5000, 0, 3, 341], layout.trailer_at()));
        assert!(layout.place(layout.blocks()).is_none());
    }
}

#[test]
fn names_of_segments_sort() {
    assert_eq!(actions_name(4711), "00000000000000004711");
    for tick in [0, 9, 10, u64::MAX] {
        assert_eq!(parse_actions_name(&actions_name(tick)), Some(tick));
    }
    for bad in ["4711", "+0000000000000004711", "", "00000000000000004711.tmp"] {
        assert_eq!(parse_actions_name(bad), None, "{bad}");
    }
}

#[test]
fn changed_states_are_refused() {
    run(3_000, |stream| {
        let whole = schema().encode().to_vec();
        let mut changed = whole.clone();
        mutate(stream, &mut changed);
        let decoded = StateSchema::decode(&changed);
        assert!(changed.starts_with(&whole) || decoded.is_err(), "a changed schema was accepted");
        let mut changed = IMAGE.1.to_vec();
        mutate(stream, &mut changed);
        let read = read_image(&changed);
        // The image has no padding behind its trailer, so every cut or change within its length
        // must be refused.
        assert!(changed.starts_with(IMAGE.1) || read.is_err(), "a changed image was accepted");
        let mut changed = ACTIONS.1.to_vec();
        mutate(stream, &mut changed);
        if let Ok(header) = ActionSegmentHeader::decode(&changed) {
            let (ticks, _, _) = read_segment(&header, &changed);
            assert!(wanted_ticks().starts_with(&ticks), "changed actions were accepted");
        }
    });
}

/// Mutations with corrected checksums reach the decoders behind the checksums.
#[test]
fn forged_batches_never_panic() {
    let header = segment_header();
    let mut reached = 0;
    run(5_000, |stream: &mut Stream| {
        let mut encoded: Vec<u8> = (0..stream.below(60)).map(|_| stream.next() as u8 % 9).collect();
        let mut batch = ActionBatchBuilder::new();
        if stream.below(2) == 0 {
            encoded = 3u32.to_le_bytes().into_iter().chain(*b"abc").collect();
        }
        let first = [1, 41, (1 << 62) + 1, u64::MAX - 1][stream.below(4)];
        assert!(batch.push(first, &encoded));
        let mut bytes = batch.seal(header.identity(), HEADER_BYTES as u64, 0).to_vec();
        let mut file = header.encode().to_vec();
        file.append(&mut bytes);
        reached += usize::from(read_segment(&header, &file).1 > HEADER_BYTES);
    });
    assert!(reached > 100, "only {reached} batches were read");
}
