//! Random transactions on a paged table beside a map, with aborts, checkpoints and crashes. Pools have 8 to
//! 16 frames, and pages are tiny.

use std::ops::Bound;
use std::sync::atomic::Ordering::SeqCst;

use super::{Map, Positions, TABLE, Tx, World};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_txn::{TableKind, TxError};

fn key(rng: &SeededRng, keys: u64) -> Vec<u8> {
    let number = rng.below(keys);
    let mut key = format!("key{:05}", number * 7).into_bytes();
    key.resize(key.len() + (number % 5) as usize * 4, b'x');
    key
}

fn value(rng: &SeededRng, longest: u64) -> Vec<u8> {
    let byte = rng.below(256) as u8;
    vec![byte; rng.below(longest + 1) as usize]
}

/// A value with a few other bytes.
fn patched(rng: &SeededRng, mut value: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.below(4).min(value.len() as u64) {
        let at = rng.below(value.len() as u64) as usize;
        value[at] = rng.below(256) as u8;
    }
    value
}

/// Runs a random transaction; `map` has its effect if it commits.
fn transaction(world: &World, rng: &SeededRng, keys: u64, map: &mut Map) {
    let mut session = world.session(rng.below(3) as u8);
    session.log.refusals = rng.below(3) / 2;
    let (mut after, gives_up) = (map.clone(), rng.below(4) == 0);
    let longest = world.kind.pool().page_bytes() as u64 / 5;
    // Some values have pages of their own.
    let longest = if rng.below(8) == 0 { longest * 40 } else { longest };
    let ended = session.transact(|tx| {
        for _ in 0..1 + rng.below(6) {
            let key = key(rng, keys);
            match rng.below(8) {
                0 => assert_eq!(tx.get(&key)?.as_ref(), after.get(&key)),
                1 | 2 => {
                    tx.put(&key, None)?;
                    after.remove(&key);
                }
                3 => range(tx, rng, &key, &after)?,
                _ => {
                    let value = match after.get(&key) {
                        Some(value) if rng.below(2) == 0 => patched(rng, value.clone()),
                        _ => value(rng, longest),
                    };
                    tx.put(&key, Some(&value))?;
                    assert_eq!(world.read(&key), None, "an uncommitted value is shown");
                    let read = world.session(8).read_alone(std::slice::from_ref(&key));
                    assert_eq!(read, [None], "a declared read sees an uncommitted value");
                    after.insert(key, value);
                }
            }
        }
        if gives_up { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
    });
    assert_eq!(ended.is_err(), gives_up);
    let key = key(rng, keys);
    let committed = if gives_up { map.get(&key) } else { after.get(&key) };
    // A large value is left to transactions.
    let is_large = committed.is_some_and(|value| value.len() > world.kind.pool().page_bytes() / 4);
    let found = world.read(&key);
    let declared = world.session(8).read_alone(&[key.clone(), b"-".to_vec(), key]);
    assert_eq!(declared, [found.clone(), Some(None), found.clone()]);
    match found {
        Some(found) => assert!(!is_large && found.as_ref() == committed),
        None => assert!(is_large, "nobody writes"),
    }
    if !gives_up {
        *map = after;
    }
}

fn range(tx: &mut Tx<'_>, rng: &SeededRng, from: &[u8], map: &Map) -> Result<(), TxError> {
    let to = [from, b"~"].concat();
    let upper = [Bound::Unbounded, Bound::Included(&to[..]), Bound::Excluded(&to[..])];
    let bounds = (
        if rng.below(2) == 0 { Bound::Included(from) } else { Bound::Excluded(from) },
        upper[rng.below(3) as usize],
    );
    let most = 1 + rng.below(60) as usize;
    let is_descending = rng.below(2) == 0;
    let found = tx.range_in(bounds, most, is_descending)?;
    let all = map.range::<[u8], _>(bounds);
    let skipped = if is_descending { all.clone().count() - found.len() } else { 0 };
    assert!(found.iter().eq(all.skip(skipped).take(found.len())), "a range differs");
    if found.len() < most {
        assert_eq!(found.len(), map.range::<[u8], _>(bounds).count(), "the range ends early");
    }
    Ok(())
}

/// Transactions, checkpoints and crashes.
fn life(seed: u64) {
    let rng = SeededRng::new(seed);
    let page_bytes = [512, 1024][rng.below(2) as usize];
    let frames = 8 + rng.below(9) as usize;
    let keys = 20 + rng.below(400);
    let mut world = World::new(frames, page_bytes, seed);
    let (mut map, mut section): (Map, Option<(String, Positions)>) = (Map::new(), None);
    for step in 0..250 {
        transaction(&world, &rng, keys, &mut map);
        match rng.below(60) {
            0 | 1 => {
                let is_published = rng.below(3) > 0;
                let taken = world.checkpoint(is_published);
                if is_published {
                    // A start may begin to replay anywhere before: open transactions may need it.
                    let earlier = section.map(|(_, positions)| positions).unwrap_or_default();
                    let (text, positions) = taken;
                    section = Some((text, if rng.below(2) == 0 { positions } else { earlier }));
                }
            }
            2 => {
                world = world.restart(frames, page_bytes, section.as_ref(), seed + step);
                assert!(
                    world.content() == map,
                    "seed {seed}, step {step}: a crash has lost something"
                );
            }
            _ => {}
        }
        if rng.below(40) == 0 {
            assert!(world.content() == map, "seed {seed}, step {step}");
        }
    }
    assert!(world.content() == map, "seed {seed}");
    assert!(world.kind.is_unlocked());
    world.assert_no_page_is_lost();
}

pub(crate) fn a_table_is_like_a_map_across_evictions_and_crashes() {
    let seeds = std::env::var("STILLPOINT_PAGED_SEEDS").ok();
    for seed in 1..=seeds.map_or(24, |seeds| seeds.parse().expect("a number")) {
        life(seed);
    }
}

/// However many lanes repeat the records: the same tree comes of them, on the same pages.
pub(crate) fn lanes_leave_what_one_leaves() {
    for seed in 1..=6 {
        let (rng, size) = (SeededRng::new(seed), (16, 512));
        let (world, mut map) = (World::new(size.0, size.1, seed), Map::new());
        let mut section = None;
        for step in 0..200 {
            transaction(&world, &rng, 300, &mut map);
            if step == 60 {
                section = Some(world.checkpoint(true));
            }
        }
        let of_lanes = |lanes| {
            let after = world.restart_in(lanes, size, section.as_ref(), seed);
            let summary = after.kind.pool().check_table(TABLE).expect("a sound tree");
            assert!(after.content() == map, "seed {seed}: {lanes} lanes");
            after.assert_no_page_is_lost();
            summary.pages
        };
        let alone = of_lanes(1);
        (2..=4).for_each(|lanes| assert_eq!(of_lanes(lanes), alone, "seed {seed}: {lanes} lanes"));
    }
}

pub(crate) fn ascending_insertions_fill_their_pages() {
    let world = World::new(16, 1024, 1);
    let mut session = world.session(0);
    for number in 0u32..3000 {
        session.transact(|tx| tx.put(&number.to_be_bytes(), Some(&[7; 40]))).expect("commits");
    }
    let summary = world.kind.pool().check_table(TABLE).expect("a sound tree");
    assert_eq!((summary.records, summary.ghosts), (3000, 0));
    assert!(summary.pages.len() < 3000 / 14 + 20, "{} pages", summary.pages.len());
    assert!(world.kind.stats().evictions > 100, "larger than its pool");
    assert_eq!(world.content().len(), 3000);
}

pub(crate) fn a_flush_gives_all_pages_back() {
    let world = World::new(12, 512, 5);
    let (rng, mut map) = (SeededRng::new(5), Map::new());
    for _ in 0..200 {
        transaction(&world, &rng, 200, &mut map);
    }
    assert!(world.content().len() > 20);
    let mut locked = world.kind.lock_tables(&[TABLE], &|| true).expect("a table");
    locked.empty(&[2]);
    drop(locked);
    assert!(world.content().is_empty());
    world.assert_no_page_is_lost();
    let mut map = Map::new();
    for _ in 0..100 {
        transaction(&world, &rng, 200, &mut map);
    }
    assert!(world.content() == map);
}

/// All reads fail while a table is emptied.
pub(crate) fn what_a_flush_cannot_read_is_freed_later() {
    let world = World::new(12, 512, 7);
    let (rng, mut map) = (SeededRng::new(7), Map::new());
    for _ in 0..300 {
        transaction(&world, &rng, 300, &mut map);
    }
    world.checkpoint(true);
    let mut locked = world.kind.lock_tables(&[TABLE], &|| true).expect("a table");
    world.memory.fails.store(true, SeqCst);
    locked.empty(&[2]);
    world.memory.fails.store(false, SeqCst);
    drop(locked);
    assert!(world.content().is_empty());
    world.assert_no_page_is_lost();
}

pub(crate) fn what_does_not_fit_is_refused() {
    let world = World::new(8, 512, 5);
    let mut session = world.session(0);
    let refused = session.transact(|tx| tx.put(&[7; 65], Some(b"value")));
    assert!(
        matches!(refused, Err(TxError::OrderedKeyTooLong { len: 65, limit: 64 })),
        "{refused:?}"
    );
    session.transact(|tx| tx.put(&[7; 64], Some(&[7; 128]))).expect("fits");
    session.transact(|tx| tx.put(b"key", Some(&[7; 129]))).expect("it has pages of its own");
    assert!(world.kind.is_unlocked());
}
