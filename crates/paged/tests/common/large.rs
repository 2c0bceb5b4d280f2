//! Values that have pages of their own: longer than the pool, replaced, deleted, rolled back, and across
//! crashes.

use stillpoint_txn::{TableKind, TxError};

use super::{Map, TABLE, World};

/// Bytes of a page, and frames of the pool.
const PAGE_BYTES: usize = 512;
const FRAMES: usize = 12;

fn value(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Lengths around those at which another page, or another level, begins.
fn lengths() -> Vec<usize> {
    let page = PAGE_BYTES - 64;
    let children = page / 8;
    let edges = [page, 2 * page, children * page, children * page + page];
    let around = edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]);
    [0, 1, 127, 128, 129].into_iter().chain(around).chain([3 * FRAMES * PAGE_BYTES]).collect()
}

fn put_all(world: &World, seed: u8) -> Map {
    let (mut session, mut map) = (world.session(0), Map::new());
    for (number, bytes) in lengths().into_iter().enumerate() {
        let (key, value) = (vec![number as u8], value(seed, bytes));
        session.transact(|tx| tx.put(&key, Some(&value))).expect("commits");
        assert_eq!(session.transact(|tx| tx.get(&key)).expect("reads").as_ref(), Some(&value));
        map.insert(key, value);
    }
    map
}

pub(crate) fn values_of_any_length_are_what_they_were() {
    let world = World::new(FRAMES, PAGE_BYTES, 3);
    let map = put_all(&world, 1);
    assert!(world.content() == map);
    for (key, value) in &map {
        // Who reads without a lock finds short values alone.
        let read = world.read(key);
        assert!(read.is_none() || read == Some(Some(value.clone())), "{key:?}");
    }
    let mut session = world.session(1);
    let found = session.transact(|tx| tx.range_in(.., usize::MAX, true)).expect("reads");
    assert!(found == map, "in descending order");
    let summary = world.kind.pool().check_table(TABLE).expect("sound");
    assert!(summary.large > 10 && summary.records as usize == map.len(), "{summary:?}");
    // Others take their place.
    let map = put_all(&world, 2);
    assert!(world.content() == map);
    world.assert_no_page_is_lost();
    for key in map.keys().step_by(2) {
        session.transact(|tx| tx.put(key, None)).expect("commits");
    }
    assert_eq!(world.content().len(), map.len() / 2);
    world.assert_no_page_is_lost();
    assert!(world.kind.is_unlocked());
}

pub(crate) fn a_rollback_frees_what_it_has_written() {
    let world = World::new(FRAMES, PAGE_BYTES, 4);
    let map = put_all(&world, 1);
    let mut session = world.session(1);
    for turn in 0..3 {
        let ended = session.transact(|tx| {
            for key in map.keys() {
                // One key gets several values, and none at the end.
                tx.put(key, Some(&value(7, 900)))?;
                tx.put(key, Some(&value(8, 40)))?;
                tx.put(key, Some(&value(9, 700)))?;
                if turn > 0 {
                    tx.put(key, None)?;
                }
                if turn > 1 {
                    tx.put(key, Some(&value(10, 600)))?;
                }
            }
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(ended.is_err());
        assert!(world.content() == map, "turn {turn}");
        world.assert_no_page_is_lost();
    }
    let after = world.restart(FRAMES, PAGE_BYTES, None, 1);
    assert!(after.content() == map);
    after.assert_no_page_is_lost();
}

/// A crash comes before the checkpoint that would free a replaced value, and after it.
pub(crate) fn a_start_frees_what_nothing_refers_to() {
    for published in [false, true] {
        let world = World::new(FRAMES, PAGE_BYTES, 5);
        put_all(&world, 1);
        let before = world.checkpoint(true);
        let map = put_all(&world, 2);
        let section = if published { world.checkpoint(true) } else { before };
        let after = world.restart(FRAMES, PAGE_BYTES, Some(&section), 2);
        assert!(after.content() == map, "{published}");
        after.assert_no_page_is_lost();
    }
}

pub(crate) fn a_flush_frees_large_values() {
    let world = World::new(FRAMES, PAGE_BYTES, 6);
    put_all(&world, 1);
    world.checkpoint(true);
    let mut locked = world.kind.lock_tables(&[TABLE], &|| true).expect("a table");
    locked.empty(&[2]);
    drop(locked);
    assert!(world.content().is_empty());
    world.assert_no_page_is_lost();
    let map = put_all(&world, 3);
    assert!(world.content() == map);
}
