//! Damaged, stale and misplaced pages and blocks of the map.

use std::path::Path;

use stillpoint_format::DecodeCause;
use stillpoint_format::pages::{
    MAP_BLOCK_BYTES, MAP_BLOCK_ENTRIES, PageId, map_block_offset, pages_data_path, pages_map_path,
};
use stillpoint_io::{AlignedBuf, Caching, Disk, OpenMode, Rng, SeededRng, SimDisk};

use super::world::{PAGE_BYTES, World, config};
use crate::backing::Purpose;
use crate::pages::{PageStore, PagesError};

/// A store with some pages of which a round counts.
fn world() -> (World, Vec<u64>) {
    let mut world = World::new(3);
    let pages: Vec<u64> = (0..9).map(|_| world.allocate().expect("room")).collect();
    save(&mut world);
    pages.iter().for_each(|page| world.change(*page));
    save(&mut world);
    (world, pages)
}

fn save(world: &mut World) {
    world.write(&world.dirty(), Purpose::Checkpoint).expect("written");
    world.begin_round().expect("written");
    world.end_round(true).expect("counts");
}

fn edit(disk: &SimDisk, path: &str, change: impl FnOnce(&mut [u8])) {
    let file = disk.open(Path::new(path), OpenMode::ReadWrite, Caching::Buffered).expect("there");
    let mut bytes = vec![0; file.len().expect("length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    change(&mut bytes);
    file.write_at(&bytes, 0).expect("written");
    file.sync().expect("flushed");
}

fn slot_of(world: &World, page: u64) -> usize {
    world.store.map.entry(PageId(page)).expect("placed").slot as usize
}

fn reopen(world: &World) -> Result<std::sync::Arc<PageStore>, PagesError> {
    PageStore::open(&world.disk.crash_image(1), config(world.counts.number))
}

/// The only defect that a check finds.
fn defect(world: &World) -> PagesError {
    let mut defects = Vec::new();
    world.store.check_pages(|_| Ok(()), |defect| defects.push(defect)).expect("memory");
    assert_eq!(defects.len(), 1, "{defects:?}");
    defects.remove(0)
}

#[test]
fn every_flipped_bit_of_a_page_is_found() {
    let rng = SeededRng::new(1);
    let (world, pages) = world();
    for round in 0..60 {
        let page = pages[rng.below(9) as usize];
        let slot = slot_of(&world, page);
        let at = if round < 40 { round } else { rng.below(PAGE_BYTES as u64) as usize };
        let flip = |bytes: &mut [u8]| bytes[slot * PAGE_BYTES + at] ^= 1 << (round % 8);
        edit(&world.disk, &pages_data_path(), flip);
        let found = defect(&world);
        let named = format!("/sim/pages/data: slot {slot}, page {page}");
        assert!(found.to_string().starts_with(&named), "{found}");
        edit(&world.disk, &pages_data_path(), flip);
    }
}

#[test]
fn a_misplaced_page_is_found() {
    let (world, pages) = world();
    let [to, from] = [slot_of(&world, pages[1]), slot_of(&world, pages[4])];
    edit(&world.disk, &pages_data_path(), |bytes| {
        bytes.copy_within(from * PAGE_BYTES..(from + 1) * PAGE_BYTES, to * PAGE_BYTES);
    });
    let PagesError::Page { page, cause, .. } = defect(&world) else { panic!("another error") };
    assert_eq!(page, PageId(pages[1]));
    assert!(matches!(cause.cause, DecodeCause::Checksum { .. }), "{cause}");
}

/// A write that the device has lost leaves an older page of the same number, or another one.
#[test]
pub(super) fn a_stale_page_is_found() {
    let (mut world, pages) = world();
    let slot = slot_of(&world, pages[2]);
    let mut old = vec![0; PAGE_BYTES];
    let range = slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES;
    edit(&world.disk, &pages_data_path(), |bytes| old.copy_from_slice(&bytes[range.clone()]));
    world.change(pages[2]);
    save(&mut world);
    let slot = slot_of(&world, pages[2]);
    let range = slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES;
    edit(&world.disk, &pages_data_path(), |bytes| bytes[range].copy_from_slice(&old));
    let found = defect(&world);
    assert!(found.to_string().contains("of table 7: page at byte 0: the page has gsn"), "{found}");
}

#[test]
fn one_damaged_copy_of_a_block_is_harmless_and_two_are_refused() {
    let rng = SeededRng::new(1);
    let block = PageId::FIRST.0 / MAP_BLOCK_ENTRIES as u64;
    for round in 0..30 {
        let (world, pages) = world();
        let flip = |place: u64| {
            let at = map_block_offset(block, place) + rng.below(MAP_BLOCK_BYTES as u64);
            edit(&world.disk, &pages_map_path(), |bytes| bytes[at as usize] ^= 1 << (round % 8));
        };
        flip(round % 2);
        let store = reopen(&world).expect("the other copy is whole");
        let mut defects = Vec::new();
        let count = store.check_pages(|_| Ok(()), |defect| defects.push(defect.to_string()));
        assert_eq!(count.expect("memory"), pages.len() as u64);
        assert!(defects.len() == 1 && defects[0].contains("map block at"), "{defects:?}");
        flip(1 - round % 2);
        let refused = reopen(&world).expect_err("both copies are damaged");
        assert!(refused.to_string().starts_with("/sim/pages/map: page map block at"), "{refused}");
        assert!(refused.to_string().ends_with("restore a backup"), "{refused}");
    }
}

#[test]
fn one_damaged_header_is_harmless_and_two_are_refused() {
    for place in 0..2 {
        let (world, _) = world();
        let flip = |place: usize| {
            edit(&world.disk, &pages_map_path(), |bytes| bytes[place * 4096 + 70] ^= 4);
        };
        flip(place);
        reopen(&world).expect("the other header is whole");
        flip(1 - place);
        let refused = reopen(&world).expect_err("both headers are damaged");
        assert!(refused.to_string().contains("page map header at byte 0: checksum"), "{refused}");
    }
}

/// A crash keeps the other place from the bytes of a round that counts. Then damage of the newer
/// copy must not bring the older one back.
#[test]
pub(super) fn an_older_block_is_never_taken_for_the_newer_one() {
    let (mut world, pages) = world();
    world.change(pages[0]);
    world.write(&world.dirty(), Purpose::Checkpoint).expect("written");
    world.begin_round().expect("written");
    world.counts = world.open.take().expect("a round");
    world.disk = world.disk.kill();
    let number = world.counts.number;
    PageStore::open(&world.disk, config(number)).expect("nothing is damaged");
    let block = PageId::FIRST.0 / MAP_BLOCK_ENTRIES as u64;
    let at = map_block_offset(block, 0) as usize + 500;
    let mut is_newer = false;
    edit(&world.disk, &pages_map_path(), |bytes| {
        let number_of = |place: u64| bytes[map_block_offset(block, place) as usize + 16];
        is_newer = number_of(0) > number_of(1);
        bytes[at] ^= 1;
    });
    assert!(is_newer, "the round has written the first place");
    let refused = PageStore::open(&world.disk, config(number)).expect_err("a block is missing");
    assert!(refused.to_string().contains("has written 1 blocks, and 0 of them"), "{refused}");
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let (world, _) = world();
    let disk = world.disk.kill();
    let number = world.counts.number.expect("a round");
    let refused = |config| PageStore::open(&disk, config).expect_err("refused").to_string();
    let other = refused(config(Some(number + 1)));
    assert!(other.contains(&format!("MANIFEST names round {}", number + 1)), "{other}");
    let mut sized = config(Some(number));
    sized.page_bytes = 8192;
    assert!(refused(sized).contains("its pages have 4096 bytes, the store's 8192"));
    let mut named = config(Some(number));
    named.store = stillpoint_format::ident::StoreId([9; 16]);
    assert!(refused(named).contains("belongs to store"), "{}", refused(named));
    let data = disk.open(Path::new(&pages_data_path()), OpenMode::ReadWrite, Caching::Buffered);
    data.expect("there").set_len(5 * PAGE_BYTES as u64).expect("cut");
    let cut = refused(config(Some(number)));
    assert!(cut.contains("/sim/pages/data: it was cut off"), "{cut}");
    disk.remove(Path::new(&pages_data_path())).expect("removed");
    assert!(refused(config(Some(number))).contains("open /sim/pages/data"));
}

#[test]
fn leftover_files_of_an_empty_store_are_removed() {
    let (world, _) = world();
    let disk = world.disk.kill();
    let store = PageStore::open(&disk, config(None)).expect("an empty store");
    assert_eq!((store.stats().pages, store.stats().slots), (0, 0));
    let mut buf = AlignedBuf::zeroed(4096);
    let map = disk.open(Path::new(&pages_map_path()), OpenMode::Read, Caching::Direct);
    assert_eq!(map.expect("there").read_at(&mut buf, 0).expect("read"), 0);
}
