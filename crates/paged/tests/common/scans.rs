//! Long scans of tables that are larger than the pool.

use std::sync::atomic::Ordering::SeqCst;

use super::{Map, TABLE, World};

/// Bytes of a page, and frames of the pool: the fewest with which pages are read ahead while all are in use.
const PAGE_BYTES: usize = 512;
const FRAMES: usize = 1024;
/// About three leaves for each frame.
const RECORDS: u32 = 9_000;

/// A table that is larger than the pool, and what is in it.
fn table() -> (World, Map) {
    let world = World::new(FRAMES, PAGE_BYTES, 5);
    let mut session = world.session(0);
    session.log.is_checked = false;
    let mut map = Map::new();
    for number in 0..RECORDS {
        let (key, value) = (number.reverse_bits().to_be_bytes(), [number as u8; 80]);
        session.transact(|tx| tx.put(&key, Some(&value))).expect("commits");
        map.insert(key.to_vec(), value.to_vec());
    }
    (world, map)
}

pub(crate) fn a_long_scan_reads_ahead_and_a_short_one_does_not() {
    let (world, map) = table();
    let leaves = world.kind.pool().check_table(TABLE).expect("sound").pages.len() as u64;
    assert!(leaves > 2 * FRAMES as u64, "{leaves} leaves");
    let mut session = world.session(1);
    // Scans that end early leave pages in frames for which nobody asks.
    for start in 0..200u8 {
        let lower = &[start][..];
        session.transact(|tx| tx.range(lower.., 100)).expect("reads");
    }
    for is_descending in [false, true] {
        let begun = world.memory.begun.load(SeqCst);
        world.memory.most_waiting.store(0, SeqCst);
        let found = session.transact(|tx| tx.range_in(.., usize::MAX, is_descending));
        assert!(found.expect("reads") == map, "descending: {is_descending}");
        let most = world.memory.most_waiting.load(SeqCst);
        // An inner node that is not here ends the looking ahead, and such small ones have a dozen children.
        assert!(most >= 8, "{most} reads at a time, descending: {is_descending}");
        let begun = world.memory.begun.load(SeqCst) - begun;
        assert!(begun <= leaves + leaves / 8, "{begun} reads of {leaves} pages");
    }
    // A range of few records reads one page after the other.
    world.memory.most_waiting.store(0, SeqCst);
    let lower = &[0x40][..];
    let found = session.transact(|tx| tx.range(lower.., 20)).expect("reads");
    assert!(found.len() >= 20 && world.memory.most_waiting.load(SeqCst) <= 1);
}

/// A page that cannot be read ahead is an error of who needs it.
pub(crate) fn a_read_ahead_that_fails_is_told_to_who_needs_the_page() {
    let (world, map) = table();
    let mut session = world.session(1);
    world.memory.fails.store(true, SeqCst);
    let mut seen = 0;
    let failed = session.transact(|tx| {
        let found = tx.range(.., usize::MAX)?;
        seen = found.len();
        Ok(())
    });
    assert!(failed.is_err() && seen == 0, "a page cannot be read");
    world.memory.fails.store(false, SeqCst);
    assert!(world.content() == map);
}
