//! Tests of the bytes of pages and of the page map.

use stillpoint_format::ident::StoreId;
use stillpoint_format::pages::{
    MAP_BLOCK_BYTES, MAP_BLOCK_ENTRIES, MapBlock, MapEntry, MapHeader, PageHeader, PageId,
    check_page, encode_map_block, map_block_offset, map_file_bytes, seal_page,
};
use stillpoint_format::{DecodeCause, GSN_MAX};

use crate::common::mutate::{Stream, mutate};

const STORE: StoreId = StoreId(*b"0123456789abcdef");

fn page(page: u64, gsn: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..4096u32).map(|at| (at * 7 % 251) as u8).collect();
    let header =
        PageHeader { checksum: 0, page: PageId(page), gsn, log: 4, table: 3, generation: 9 };
    for (at, word) in header.owner_words().iter().enumerate() {
        bytes[8 + at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    seal_page(STORE, PageId(page), &mut bytes);
    bytes
}

fn header() -> MapHeader {
    let created_ms = 12;
    MapHeader {
        store: STORE,
        created_ms,
        number: 7,
        blocks: 9,
        written: 4,
        slots: 99,
        page_bytes: 16384,
    }
}

fn entries(stream: &mut Stream) -> [u64; MAP_BLOCK_ENTRIES] {
    std::array::from_fn(|_| match stream.below(3) {
        0 => 0,
        _ => MapEntry::new(stream.next() >> 25, stream.next()).pack(),
    })
}

#[test]
fn entries_keep_slot_and_gsn_apart() {
    for slot in [0, 1, (1 << 40) - 2] {
        for gsn in [0, 1, (1 << 24) - 1, 1 << 24, GSN_MAX] {
            let entry = MapEntry::new(slot, gsn);
            assert_eq!(MapEntry::unpack(entry.pack()), Some(entry));
            assert!(entry.slot == slot && entry.has_gsn(gsn) && !entry.has_gsn(gsn ^ 1));
        }
    }
    assert_eq!(MapEntry::unpack(0), None);
    assert_eq!(MapEntry::unpack((1 << 24) - 1), None);
}

#[test]
fn pages_are_those_that_the_map_promises() {
    let sealed = page(70_000, 55);
    let entry = MapEntry::new(4, 55);
    let found = check_page(STORE, PageId(70_000), entry, &sealed).expect("whole");
    assert_eq!((found.page, found.gsn, found.log), (PageId(70_000), 55, 4));
    assert_eq!((found.table, found.generation), (3, 9));
    let cause = |store, page, entry, bytes: &[u8]| {
        check_page(store, PageId(page), entry, bytes).expect_err("not that page").cause
    };
    let stale = cause(STORE, 70_000, MapEntry::new(4, 56), &sealed);
    assert_eq!(stale, DecodeCause::StalePage { found: 55, expected: 56 });
    let wrong = cause(STORE, 70_001, entry, &sealed);
    assert!(matches!(wrong, DecodeCause::Checksum { .. }), "{wrong}");
    let other = cause(StoreId([1; 16]), 70_000, entry, &sealed);
    assert!(matches!(other, DecodeCause::Checksum { .. }), "{other}");
    // A page with another's number, sealed for the one asked for.
    let mut renamed = sealed.clone();
    renamed[8] ^= 1;
    seal_page(STORE, PageId(70_000), &mut renamed);
    let renamed = cause(STORE, 70_000, entry, &renamed);
    assert!(matches!(renamed, DecodeCause::WrongFile { field: "page", .. }), "{renamed}");
    assert!(matches!(cause(STORE, 70_000, entry, &sealed[..63]), DecodeCause::Truncated { .. }));
}

#[test]
fn every_flipped_bit_of_a_page_is_found() {
    let sealed = page(70_000, 55);
    for bit in 0..sealed.len() * 8 {
        let mut flipped = sealed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let checked = check_page(STORE, PageId(70_000), MapEntry::new(4, 55), &flipped);
        assert!(checked.is_err(), "bit {bit}");
    }
}

#[test]
fn headers_of_the_map_round_trip_and_refuse_nonsense() {
    assert_eq!(MapHeader::decode(&header().encode()), Ok(header()));
    let nonsense = [
        MapHeader { blocks: u64::MAX, ..header() },
        MapHeader { written: 10, ..header() },
        MapHeader { slots: 1 << 40, ..header() },
        MapHeader { page_bytes: 2048, ..header() },
        MapHeader { page_bytes: 128 << 10, ..header() },
        MapHeader { page_bytes: 12288, ..header() },
    ];
    for header in nonsense {
        assert!(MapHeader::decode(&header.encode()).is_err(), "{header:?}");
    }
}

#[test]
fn blocks_belong_to_their_place() {
    let entries = entries(&mut Stream(1));
    let bytes = encode_map_block(STORE, (5, 1), 44, &entries);
    let block = MapBlock::decode(STORE, (5, 1), &bytes).expect("whole");
    assert_eq!(block.number, 44);
    assert!(block.entries().eq(entries));
    for place in [(5, 0), (4, 1), (6, 1)] {
        assert!(MapBlock::decode(STORE, place, &bytes).is_err(), "{place:?}");
    }
    assert!(MapBlock::decode(StoreId([7; 16]), (5, 1), &bytes).is_err());
    assert!(MapBlock::decode(STORE, (5, 1), &[0; MAP_BLOCK_BYTES]).is_err());
    assert_eq!(map_block_offset(0, 0), 8192);
    assert_eq!(map_block_offset(5, 1), 8192 + 11 * 4096);
    assert_eq!(map_file_bytes(6), 8192 + 12 * 4096);
}

/// Changes a block, a header or a page. The decoder refuses what has changed.
pub(crate) fn judge_mutation(stream: &mut Stream) {
    let originals = [
        encode_map_block(STORE, (5, 1), 44, &entries(stream)).to_vec(),
        header().encode().to_vec(),
        page(70_000, 55),
    ];
    let which = stream.below(3);
    let mut bytes = originals[which].clone();
    mutate(stream, &mut bytes);
    let is_accepted = match which {
        0 => MapBlock::decode(STORE, (5, 1), &bytes).is_ok(),
        1 => MapHeader::decode(&bytes).is_ok(),
        _ => check_page(STORE, PageId(70_000), MapEntry::new(4, 55), &bytes).is_ok(),
    };
    let is_same = bytes.get(..4096) == Some(&originals[which][..]);
    let is_cut_off = which == 2 && bytes.len() != 4096;
    assert!(!is_accepted || (is_same && !is_cut_off), "changed bytes were accepted");
}
