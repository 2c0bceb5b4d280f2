//! Damaged, stale and misplaced pages, and a damaged map: typed errors, and nothing wrong is returned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stillpoint::{Engine, Error, Kind, PagesError, TableId, TxError};
use stillpoint_format::manifest::Manifest;
use stillpoint_format::names;
use stillpoint_format::node::{KindWord, NODE_HEADER_BYTES};
use stillpoint_format::pages::{
    MAP_BLOCK_BYTES, MAP_BLOCK_ENTRIES, MapBlock, MapEntry, PageHeader, map_block_offset,
    pages_data_path, pages_map_path,
};
use stillpoint_io::{Caching, Disk, OpenMode, SimDisk, read_all};
use stillpoint_paged::KIND_NAME;

use super::{PAGE_BYTES, Records, all, configure, fill, open, put};

/// The bytes of a file of pages.
fn bytes_of(disk: &SimDisk, path: &str) -> Vec<u8> {
    read_all(disk, Path::new(path)).expect("it is there")
}

fn edit(disk: &SimDisk, path: &str, change: impl FnOnce(&mut [u8])) {
    let mut bytes = bytes_of(disk, path);
    change(&mut bytes);
    let file = disk.open(Path::new(path), OpenMode::ReadWrite, Caching::Buffered).expect("there");
    file.write_at(&bytes, 0).expect("written");
    file.sync().expect("flushed");
}

/// Where each page lies, by the map on the disk.
fn slots(disk: &SimDisk) -> BTreeMap<u64, u64> {
    let manifest = bytes_of(disk, names::MANIFEST);
    let store = Manifest::decode_with_kinds(&manifest, &[KIND_NAME]).expect("sound").store;
    let (map, mut slots) = (bytes_of(disk, &pages_map_path()), BTreeMap::new());
    for block in 0.. {
        let at = map_block_offset(block, 0) as usize;
        let Some(bytes) = map.get(at..at + MAP_BLOCK_BYTES) else { return slots };
        let Ok(found) = MapBlock::decode(store, (block, 0), bytes) else { continue };
        let first = block * MAP_BLOCK_ENTRIES as u64;
        let entries = (first..).zip(found.entries());
        slots.extend(entries.filter_map(|(page, word)| Some((page, MapEntry::unpack(word)?.slot))));
    }
    slots
}

/// Level of the page in a slot.
fn level(data: &[u8], slot: u64) -> u8 {
    let word = data[slot as usize * PAGE_BYTES..].first_chunk().expect("a page");
    KindWord::unpack(u64::from_le_bytes(*word)).level
}

/// A directory that was closed in order, its records, and the slots of its leaves.
fn closed(disk: &SimDisk, seed: u64) -> (Records, BTreeMap<u64, u64>) {
    let (engine, table) = open(disk);
    let mut session = engine.session().expect("a session");
    fill(&mut session, table, seed);
    let records = all(&mut session, table);
    engine.checkpoint().expect("a sound disk");
    drop(session);
    engine.close().expect("closes");
    let data = bytes_of(disk, &pages_data_path());
    let mut leaves = slots(disk);
    leaves.retain(|&page, &mut slot| page > 1 << 16 && level(&data, slot) == 0);
    assert!(leaves.len() > 40, "{leaves:?}");
    (records, leaves)
}

fn in_slot(data: &mut [u8], slot: u64) -> &mut [u8] {
    &mut data[slot as usize * PAGE_BYTES..][..PAGE_BYTES]
}

/// How a page is spoilt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spoilt {
    /// One bit is wrong.
    Flipped,
    /// The device has lost the last write of the page.
    Stale,
    /// The device has written another page there.
    Misplaced,
}

/// Makes a store with a leaf that is spoilt. Returns the store's records, and page and slot of the leaf.
fn spoilt(disk: &SimDisk, how: Spoilt) -> (Records, u64, u64) {
    let (records, leaves) = closed(disk, 1);
    let (&page, &slot) = leaves.iter().nth(leaves.len() / 2).expect("there are so many");
    match how {
        Spoilt::Flipped => edit(disk, &pages_data_path(), |data| {
            in_slot(data, slot)[NODE_HEADER_BYTES + 100] ^= 4;
        }),
        Spoilt::Stale => {
            let mut before = bytes_of(disk, &pages_data_path());
            let old = in_slot(&mut before, slot).to_vec();
            let (records, leaves) = closed(disk, 2);
            let slot = leaves[&page];
            let gsn = |bytes: &[u8]| PageHeader::read(bytes).expect("a header").gsn;
            edit(disk, &pages_data_path(), |data| {
                assert!(gsn(&old) < gsn(in_slot(data, slot)), "the page has changed since");
                in_slot(data, slot).copy_from_slice(&old);
            });
            return (records, page, slot);
        }
        Spoilt::Misplaced => {
            let other = *leaves.values().next().expect("there are so many");
            edit(disk, &pages_data_path(), |data| {
                let from = in_slot(data, other).to_vec();
                in_slot(data, slot).copy_from_slice(&from);
            });
        }
    }
    (records, page, slot)
}

/// Whether an error is the typed one of a page of a table.
fn names_page(error: &Error, (page, slot, table): (u64, u64, TableId)) -> bool {
    let text = error.to_string();
    let named = format!("pages/data: slot {slot}, page {page} of table {}: ", table.0);
    let is_it = match error.damaged_pages() {
        Some(PagesError::Page { slot: found, page: of, table: Some(number), .. }) => {
            (*found, of.0, *number) == (slot, page, table.0)
        }
        _ => false,
    };
    is_it && error.is_damage() && text.contains(&named)
}

pub(crate) fn a_spoilt_page_is_an_error_and_others_go_on(how: Spoilt) {
    let disk = SimDisk::new(3);
    let (records, page, slot) = spoilt(&disk, how);
    let checked = Engine::builder(configure(&disk, 16)).check().expect("it can be read");
    assert_eq!(checked.damage.len(), 1, "{how:?}: {:?}", checked.damage);
    let named = format!("/sim/pages/data: slot {slot}, page {page} of table 0: ");
    assert!(checked.damage[0].starts_with(&named), "{how:?}: {:?}", checked.damage);
    assert!(checked.damage[0].ends_with("(table \"orders\")"), "{how:?}: {:?}", checked.damage);

    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let (mut found, mut missed) = (Records::new(), BTreeSet::new());
    // More often than the pool has frames: a failed read keeps none.
    for _ in 0..3 {
        for number in 0..2000u64 {
            let key = number.to_be_bytes();
            let read = session.transact(|tx| Ok(tx.get(table, &key)?.map(|value| value.to_vec())));
            match read {
                Ok(value) => drop(value.map(|value| found.insert(key.to_vec(), value))),
                Err(error) => {
                    assert!(names_page(&error, (page, slot, table)), "{how:?}: {error}");
                    missed.insert(key.to_vec());
                }
            }
        }
    }
    assert!(missed.len() > 3 && found.len() > 500, "{how:?}: {} {}", missed.len(), found.len());
    let readable = records.into_iter().filter(|(key, _)| !missed.contains(key));
    let readable: Records = readable.collect();
    assert!(found == readable, "{how:?}: something wrong was returned");

    // A transaction that meets the page is rolled back, and others commit.
    let bad = missed.first().expect("there are some").clone();
    let good = found.keys().next().expect("there are some").clone();
    let refused = session.transact(|tx| {
        tx.put(table, &good, b"never")?;
        tx.put(table, &bad, b"never")
    });
    let refused = refused.expect_err("the page is spoilt");
    assert!(names_page(&refused, (page, slot, table)), "{how:?}: {refused}");
    let range = session.transact(|tx| {
        let mut range = tx.range(table, ..)?;
        while range.next_record()?.is_some() {}
        Ok(())
    });
    let refused = range.expect_err("the page is spoilt");
    assert!(names_page(&refused, (page, slot, table)), "{how:?}: {refused}");
    let value = session.transact(|tx| Ok(tx.get(table, &good)?.map(|value| value.to_vec())));
    assert_eq!(value.expect("reads").as_ref(), found.get(&good), "{how:?}");
    put(&mut session, table, &good, b"later");
    engine.health().expect("a spoilt page is no failure of the store");
}

pub(crate) fn a_damaged_map_falls_back_or_is_refused() {
    let disk = SimDisk::new(3);
    let (records, _) = closed(&disk, 1);
    let map = bytes_of(&disk, &pages_map_path());
    let blocks = (0..).take_while(|&block| map_block_offset(block + 1, 0) as usize <= map.len());
    let manifest = bytes_of(&disk, names::MANIFEST);
    let store = Manifest::decode_with_kinds(&manifest, &[KIND_NAME]).expect("sound").store;
    let used = blocks.filter(|&block| {
        let at = map_block_offset(block, 0) as usize;
        let found = MapBlock::decode(store, (block, 0), &map[at..at + MAP_BLOCK_BYTES]);
        found.is_ok_and(|found| found.entries().any(|word| word != 0))
    });
    let used: Vec<u64> = used.collect();
    assert!(used.len() >= 2, "that of the roots, and one of leaves: {used:?}");
    let flip = |disk: &SimDisk, at: u64| {
        edit(disk, &pages_map_path(), |bytes| bytes[at as usize] ^= 1);
    };
    // The header, and each block.
    let places = [[70, 4096 + 70]]
        .into_iter()
        .chain(used.iter().map(|&block| [0, 1].map(|place| map_block_offset(block, place) + 300)));
    for [first, second] in places {
        for (one, other) in [(first, second), (second, first)] {
            let damaged = disk.kill();
            flip(&damaged, one);
            let checked = Engine::builder(configure(&damaged, 16)).check().expect("readable");
            assert!(checked.damage.is_empty(), "{:?}", checked.damage);
            assert_eq!(checked.harmless.len(), 1, "place {one}: {:?}", checked.harmless);
            assert!(checked.harmless[0].starts_with("/sim/pages/map: page map "), "{checked:?}");
            let (engine, table) = open(&damaged);
            let mut session = engine.session().expect("a session");
            assert!(all(&mut session, table) == records, "place {one}");
            put(&mut session, table, b"more", b"more");
            engine.checkpoint().expect("a sound disk");
            drop(session);
            engine.close().expect("closes");
            let checked = Engine::builder(configure(&damaged, 16)).check().expect("readable");
            let (damage, harmless) = (&checked.damage, &checked.harmless);
            assert!(damage.is_empty() && harmless.is_empty(), "place {one}: {checked:?}");
            let damaged = disk.kill();
            flip(&damaged, one);
            flip(&damaged, other);
            let refused = Engine::open(configure(&damaged, 16)).map(drop).expect_err("refused");
            assert!(matches!(refused, Error::Pages(_)) && refused.is_damage(), "{refused}");
            let text = refused.to_string();
            assert!(
                text.contains("/sim/pages/map: ") && text.contains("restore a backup"),
                "{text}"
            );
            let checked = Engine::builder(configure(&damaged, 16)).check().expect("readable");
            assert!(checked.damage.iter().any(|said| said.contains("/sim/pages/map: ")));
            let dumped = Engine::builder(configure(&damaged, 16)).dump(None, &mut |_, _, _| Ok(()));
            assert!(dumped.is_err_and(|error| error.is_damage()));
        }
    }
}

/// Changes the MANIFEST, with a right checksum.
fn edit_manifest(disk: &SimDisk, change: impl FnOnce(&mut Manifest)) {
    let bytes = bytes_of(disk, names::MANIFEST);
    let mut manifest = Manifest::decode_with_kinds(&bytes, &[KIND_NAME]).expect("sound");
    change(&mut manifest);
    let bytes = manifest.encode().expect("sound");
    let path = Path::new(names::MANIFEST);
    stillpoint_io::write_file_durably(disk, path, &bytes).expect("room");
}

/// Sections that this build does not understand, or that contradict each other: nothing is removed.
pub(crate) fn sections_that_cannot_be_read_remove_nothing() {
    let disk = SimDisk::new(3);
    let (engine, _) = open(&disk);
    engine.table_with("more", Kind::Paged).expect("a table");
    drop(engine);
    closed(&disk, 1);
    let sized = |text: &str, bytes: u32| text.replace("page=4096", &format!("page={bytes}"));
    let changes: [&dyn Fn(&str) -> String; 4] = [
        &|text| format!("{text} x=1"),
        &|text| sized(text, 1000),
        &|text| sized(text, 8192),
        &|_| "later".to_owned(),
    ];
    for change in changes {
        let changed = disk.kill();
        edit_manifest(&changed, |manifest| {
            let section = manifest.tables[0].private.as_mut().expect("a section");
            *section = change(section);
        });
        let files = || [pages_data_path(), pages_map_path()].map(|path| bytes_of(&changed, &path));
        let before = files();
        for page_bytes in [None, Some(PAGE_BYTES)] {
            let mut config = configure(&changed, 16);
            config.page_bytes = page_bytes;
            let refused = Engine::open(config).map(drop).expect_err("refused");
            let is_it = matches!(&refused, Error::Pages(PagesError::Section { .. }));
            assert!(is_it && refused.is_damage(), "{refused}");
        }
        let checked = Engine::builder(configure(&changed, 16)).check().expect("readable");
        assert!(checked.damage[0].starts_with("the MANIFEST says \""), "{:?}", checked.damage);
        let dumped = Engine::builder(configure(&changed, 16)).dump(None, &mut |_, _, _| Ok(()));
        assert!(dumped.is_err_and(|error| error.is_damage()));
        assert!(files() == before, "nothing has changed");
    }
}

/// A root that the device has kept from before a flush of the table. And pages that a flush has given up.
pub(crate) fn pages_of_another_generation_are_found() {
    let disk = SimDisk::new(3);
    closed(&disk, 1);
    let older = disk.crash_image(1);
    edit_manifest(&older, |manifest| manifest.tables[0].generation += 1);
    let checked = Engine::builder(configure(&older, 16)).check().expect("readable");
    let said = checked.damage.iter().find(|said| said.contains("page 1 of table 0: "));
    assert!(said.is_some_and(|said| said.contains("another generation")), "{checked:?}");
    let (engine, table) = open(&disk);
    engine.flush_tables(&[table]).expect("a sound disk");
    engine.checkpoint().expect("a sound disk");
    engine.close().expect("closes");
    let checked = Engine::builder(configure(&disk, 16)).check().expect("readable");
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
    assert!(checked.harmless.len() == 1, "{:?}", checked.harmless);
    assert!(checked.harmless[0].contains("belong to no table any more"), "{:?}", checked.harmless);
}

/// The MANIFEST counts one record more than the pages have.
pub(crate) fn a_wrong_number_of_records_is_found() {
    let disk = SimDisk::new(3);
    closed(&disk, 1);
    let (mut records, mut wrong) = (0, 0);
    edit_manifest(&disk, |manifest| {
        let section = manifest.tables[0].private.as_mut().expect("a section");
        let (before, rest) = section.split_once("records=").expect("a number");
        let (number, after) = rest.split_once(' ').expect("more");
        records = number.parse::<i64>().expect("a number");
        wrong = records + 1;
        *section = format!("{before}records={wrong} {after}");
    });
    let checked = Engine::builder(configure(&disk, 16)).check().expect("it can be read");
    let said = format!("hold {records} records, and MANIFEST and logs count {wrong}");
    assert!(checked.damage.len() == 1 && checked.damage[0].contains(&said), "{checked:?}");
}

/// A transaction is refused for another reason than damage.
pub(crate) fn an_error_of_the_program_is_no_damage() {
    let (engine, table) = open(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    let refused = session.transact(|tx| {
        tx.put(table, b"key", b"value")?;
        Err::<(), _>(TxError::abandon("as the test wants it"))
    });
    let refused = refused.expect_err("as the test wants it");
    assert!(refused.damaged_pages().is_none() && !refused.is_damage(), "{refused}");
}
