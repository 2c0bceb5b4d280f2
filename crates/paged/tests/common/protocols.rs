//! Protocols step by step: two sessions in one thread, in an order that the test chooses.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_io::{Rng, SeededRng};
use stillpoint_sync::Mutex;
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{
    Discipline, KeyList, KindKey, KindRange, Mode, Presence, RangeBatch, TableKind, TxError,
};

use super::memory::OnCopies;
use super::{Session, TABLE, World, until};

fn key(number: u64) -> Vec<u8> {
    format!("key {number:04}").into_bytes()
}

/// A table of one leaf, or of more.
fn world(records: u64) -> World {
    let world = World::new(64, 1024, 1);
    let mut session = world.session(0);
    for number in 0..records {
        session.transact(|tx| tx.put(&key(number * 10), Some(&[7; 20]))).expect("commits");
    }
    world
}

fn is_conflict<T>(result: Result<T, TxError>) -> bool {
    matches!(result, Err(TxError::Conflict))
}

/// A younger transaction must not read a range over what an older one has changed, deletions among it.
pub(crate) fn a_range_waits_for_open_changes() {
    for change in [Some(&b"new"[..]), None] {
        for number in [50, 55] {
            let world = world(10);
            let (mut older, mut younger) = (world.session(1), world.session(2));
            older.begin(1);
            older.tx().put(&key(number), change).expect("nobody has locked it");
            younger.begin(2);
            let absent = change.is_none() && number == 55;
            assert_eq!(is_conflict(younger.tx().range(.., usize::MAX)), !absent);
            younger.roll_back();
            // Another leaf would not matter, and neither does the own change.
            assert_eq!(older.tx().range(.., usize::MAX).expect("its own").len(), {
                match (change, number) {
                    (Some(_), 55) => 11,
                    (None, 50) => 9,
                    _ => 10,
                }
            });
            older.roll_back();
            assert!(world.kind.is_unlocked());
            assert_eq!(world.content().len(), 10);
        }
    }
}

/// Insertions, changes and deletions wait for who has read the range, or give up.
pub(crate) fn a_stretch_that_was_read_does_not_change() {
    for (number, value) in [(55, Some(&b"new"[..])), (50, Some(&b"other"[..])), (50, None)] {
        let world = world(10);
        let (mut older, mut younger) = (world.session(1), world.session(2));
        older.begin(1);
        let before = older.tx().range(.., usize::MAX).expect("nobody writes");
        younger.begin(2);
        assert!(is_conflict(younger.tx().put(&key(number), value)), "a change of {number}");
        younger.roll_back();
        assert_eq!(older.tx().range(.., usize::MAX).expect("its own locks"), before);
        older.end(true);
        assert!(world.kind.is_unlocked());
        // Nobody reads the range any more.
        younger.transact(|tx| tx.put(&key(number), value)).expect("commits");
    }
}

/// A transaction reads a range and then splits its leaf. It keeps what moved to the new page.
pub(crate) fn who_splits_a_stretch_keeps_both_parts() {
    let world = world(10);
    let (mut older, mut younger) = (world.session(1), world.session(2));
    older.begin(1);
    older.tx().range(.., usize::MAX).expect("nobody writes");
    for number in 0..60 {
        older.tx().put(&key(number * 10 + 1), Some(&[1; 30])).expect("its own range");
    }
    let levels = |world: &World| world.kind.pool().check_table(TABLE).expect("sound").levels;
    assert!(levels(&world) > 1, "the leaf was split");
    for number in 0..90 {
        younger.begin(2);
        let put = younger.tx().put(&key(number * 10 + 5), Some(b"phantom"));
        assert!(is_conflict(put), "{number} lies in a range that was read");
        younger.roll_back();
    }
    older.end(true);
    assert!(world.kind.is_unlocked());
}

/// While a range waits for a stretch, its holder splits the leaf and commits.
pub(crate) fn a_range_that_had_to_wait_is_found_anew() {
    let world = world(10);
    let (writer, mut reader) = (RefCell::new(world.session(1)), world.session(2));
    {
        let mut writer = writer.borrow_mut();
        writer.begin(2);
        writer.tx().range(.., usize::MAX).expect("nobody writes");
        writer.tx().put(&key(1), Some(&[1; 30])).expect("its own range");
    }
    let is_done = Cell::new(false);
    let may_wait = || {
        if !is_done.replace(true) {
            let mut writer = writer.borrow_mut();
            for number in 0..60 {
                writer.tx().put(&key(number * 10 + 1), Some(&[1; 30])).expect("its own range");
            }
            writer.end(true);
        }
        true
    };
    reader.begin(1);
    let (mut batch, mut found) = (RangeBatch::default(), Vec::new());
    let mut lower = key(45);
    loop {
        let bounds = (Bound::Included(&lower[..]), Bound::Unbounded);
        let (from, upper) = bounds;
        let range = KindRange { table: TABLE, lower: from, upper, is_descending: false };
        let read = reader.part.range(&range, &may_wait, &mut batch).expect("it waits");
        assert!(matches!(read, Presence::Here(())), "all pages are in frames");
        found.extend((0..batch.len()).map(|number| batch.record(number).0.to_vec()));
        if batch.is_end {
            break;
        }
        lower = batch.next.clone();
    }
    assert!(is_done.get(), "the reader had to wait");
    reader.end(true);
    let expected: Vec<Vec<u8>> =
        world.content().into_keys().filter(|found| *found >= key(45)).collect();
    assert_eq!(found, expected);
}

/// A checkpoint has copied the root of a table and has not placed the copy. The table is emptied meanwhile.
pub(crate) fn a_table_that_is_emptied_during_a_checkpoint_stays_empty() {
    let world = Arc::new(world(10));
    let (emptied, thread) = (world.clone(), Arc::new(Mutex::new(None)));
    let begun = thread.clone();
    *world.memory.on_copies.lock() = Some(OnCopies(Box::new(move || {
        let empty = move || {
            emptied.kind.lock_tables(&[TABLE], &|| true).expect("a table").empty(&[2]);
        };
        *begun.lock() = Some(stillpoint_io::spawn("empties", empty).expect("a thread"));
        let time = std::time::Duration::from_millis(20);
        stillpoint_io::Clock::sleep(&stillpoint_io::RealClock, time);
    })));
    world.checkpoint(false);
    let thread = thread.lock().take().expect("the write-back has copied a page");
    thread.join().expect("no panic");
    assert!(world.content().is_empty());
    let (section, _) = world.checkpoint(true);
    let memory = world.memory.crash(1);
    let root = memory.pages()[&(1 + u64::from(TABLE.0))].clone();
    let word = u64::from_le_bytes(root[24..32].try_into().expect("eight bytes"));
    assert_eq!(word >> 32, 2, "the copy of the root is of the old generation");
    let after = World::over(memory, (64, 1024), (2, Some(&section)), Arc::default());
    assert!(after.content().is_empty(), "what was emptied is back");
}

/// While a deletion is open, others need the room of its record.
pub(crate) fn a_deleted_record_stays_until_its_deletion_has_ended() {
    let world = world(10);
    let (mut older, mut younger) = (world.session(1), world.session(2));
    older.begin(1);
    (0..5).for_each(|number| older.tx().put(&key(number * 10), None).expect("nobody else"));
    for number in 0..40 {
        let own = key(number + 201);
        younger.transact(|tx| tx.put(&own, Some(&[1; 30]))).expect("no common key");
    }
    younger.begin(2);
    assert!(is_conflict(younger.tx().range(.., usize::MAX)), "a deletion that may be undone");
    younger.roll_back();
    older.roll_back();
    assert_eq!(world.content().len(), 50);
    assert!(world.kind.is_unlocked());
}

/// Keys come and go within one small range.
pub(crate) fn deleted_records_make_room_for_others() {
    let world = world(10);
    let (mut session, rng) = (world.session(1), SeededRng::new(5));
    for number in 0..3000 {
        let key = [key(rng.below(10) * 10), rng.below(1 << 20).to_be_bytes().to_vec()].concat();
        session.transact(|tx| tx.put(&key, Some(&[1; 30]))).expect("commits");
        session.transact(|tx| tx.put(&key, None)).expect("commits");
        if number % 500 == 0 {
            assert_eq!(world.content().len(), 10);
        }
    }
    let summary = world.kind.pool().check_table(TABLE).expect("sound");
    assert!(summary.pages.len() < 10, "{} pages for ten records", summary.pages.len());
    assert_eq!(world.restart(64, 1024, None, 1).content(), world.content());
}

fn declared(session: &mut Session, keys: &KeyList) -> Result<Vec<u32>, TxError> {
    session.part.begin(Priority::DECLARED, Discipline::Declared);
    let mut slots = Vec::new();
    until(|| session.part.lock_all(keys, &|| true, &mut slots))?;
    Ok(slots)
}

/// Declared keys have the values that single reads find. Some are declared twice, have no value, or lie on
/// pages that are not in frames.
pub(crate) fn declared_keys_are_found_together() {
    let rng = SeededRng::new(3);
    for frames in [16, 200] {
        let world = World::new(frames, 512, 3);
        let mut session = world.session(0);
        for number in 0..600u64 {
            let value = number.to_le_bytes();
            session.transact(|tx| tx.put(&key(number * 3), Some(&value))).expect("commits");
        }
        for round in 0..60 {
            let mut keys = KeyList::default();
            for _ in 0..1 + rng.below(70) {
                let key = key(rng.below(2000));
                let mode = if rng.below(4) == 0 { Mode::Write } else { Mode::Read };
                keys.push(KindKey { table: TABLE, key: &key, mode });
            }
            if round % 2 == 0 {
                let mut awaited = Vec::new();
                session.part.ask(&keys, &mut |_, arrival| awaited.push(arrival));
                awaited.iter().for_each(|arrival| arrival.wait().expect("it arrives"));
            }
            let slots = declared(&mut session, &keys).expect("nobody else");
            assert_eq!(slots.len(), keys.len());
            for (asked, &slot) in keys.iter().zip(&slots) {
                let (mut out, text) = (Vec::new(), std::str::from_utf8(&asked.key[4..]));
                let number: u64 = text.expect("digits").parse().expect("digits");
                let tag = session.part.value(slot, &mut out);
                let expected = (number.is_multiple_of(3) && number < 1800).then_some(number / 3);
                assert_eq!(tag.is_some(), expected.is_some(), "{number}");
                if let Some(expected) = expected {
                    assert_eq!(out, expected.to_le_bytes());
                }
            }
            session.part.release(None);
            assert!(world.kind.is_unlocked());
        }
        let evictions = world.kind.stats().evictions;
        assert_eq!(evictions > 0, frames == 16, "{evictions}");
    }
}

/// The keys of each leaf.
fn leaves(world: &World) -> Vec<Vec<Vec<u8>>> {
    let mut session = world.session(8);
    let mut leaves = Vec::new();
    session.begin(1);
    let (mut batch, mut next) = (RangeBatch::default(), Vec::new());
    batch.most = usize::MAX;
    loop {
        let lower = Bound::Included(&next[..]);
        let range =
            KindRange { table: TABLE, lower, upper: Bound::Unbounded, is_descending: false };
        // A batch ends at the end of a leaf.
        until(|| session.part.range(&range, &|| true, &mut batch)).expect("nobody writes");
        leaves.push((0..batch.len()).map(|at| batch.record(at).0.to_vec()).collect());
        if batch.is_end {
            session.end(true);
            return leaves;
        }
        next = batch.next.clone();
    }
}

/// Deletes all records of a leaf, each in a transaction of its own.
fn delete_all(session: &mut Session, keys: &[Vec<u8>]) {
    for key in keys {
        session.transact(|tx| tx.put(key, None)).expect("nobody else");
    }
}

/// The leaves of a table. The second one has lost all records but `left`, and then the third one all but some.
/// The others are full.
fn sparse_leaves(world: &World, left: usize) -> Vec<Vec<Vec<u8>>> {
    let leaves = leaves(world);
    let mut session = world.session(3);
    delete_all(&mut session, leaves[1].get(left..).unwrap_or_default());
    // A sixteenth deletion would merge the leaf at once.
    let kept = leaves[2].len() - 15;
    assert!(leaves.len() > 4 && (2..8).contains(&kept), "{leaves:?}");
    delete_all(&mut session, &leaves[2][kept..]);
    leaves
}

/// The range of the first two records of the third leaf.
fn sparse_range(leaves: &[Vec<Vec<u8>>]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(&leaves[2][0][..]), Bound::Included(&leaves[2][1][..]))
}

/// A key between these two records.
fn phantom(leaves: &[Vec<Vec<u8>>]) -> Vec<u8> {
    [&leaves[2][0][..], b"+"].concat()
}

/// A leaf is emptied beside one of which another transaction has read a range.
pub(crate) fn a_leaf_that_was_read_is_not_merged() {
    let world = world(120);
    let leaves = sparse_leaves(&world, usize::MAX);
    let (mut older, mut younger) = (world.session(1), world.session(2));
    older.begin(1);
    let found = older.tx().range(sparse_range(&leaves), usize::MAX).expect("nobody writes");
    assert_eq!(found.len(), 2);
    delete_all(&mut younger, &leaves[1]);
    younger.begin(2);
    let put = younger.tx().put(&phantom(&leaves), Some(b"phantom"));
    assert!(is_conflict(put), "the range was read");
    younger.roll_back();
    older.end(true);
    assert!(world.kind.is_unlocked());
    let put = younger.transact(|tx| tx.put(&phantom(&leaves), Some(b"no phantom")));
    put.expect("nobody reads");
    assert_eq!(world.restart(64, 1024, None, 1).content(), world.content());
}

/// A transaction reads a range of a leaf, and deletes the last record of the leaf before it.
pub(crate) fn who_merges_a_stretch_keeps_it() {
    let world = world(120);
    let leaves = sparse_leaves(&world, 1);
    let (mut older, mut younger) = (world.session(1), world.session(2));
    let pages = || world.kind.pool().check_table(TABLE).expect("sound").pages.len();
    let before = pages();
    older.begin(1);
    let found = older.tx().range(sparse_range(&leaves), usize::MAX).expect("nobody writes");
    assert_eq!(found.len(), 2);
    older.tx().put(&leaves[1][0], None).expect("nobody else");
    assert!(pages() < before, "the leaves were merged");
    younger.begin(2);
    let put = younger.tx().put(&phantom(&leaves), Some(b"phantom"));
    assert!(is_conflict(put), "the range was read");
    younger.roll_back();
    older.end(true);
    assert!(world.kind.is_unlocked());
}

/// Records are inserted at the end and deleted at the front, one at a time or many in one transaction.
pub(crate) fn a_queue_keeps_few_pages() {
    for together in [1, 40] {
        let mut world = World::new(64, 1024, 1);
        let mut session = world.session(0);
        let (mut first, mut next) = (0u64, 0u64);
        for round in 0..60 {
            for _ in 0..50 {
                let key = next.to_be_bytes();
                session.transact(|tx| tx.put(&key, Some(&[7; 40]))).expect("commits");
                next += 1;
            }
            while next - first > 60 {
                let keys = first..(first + together).min(next);
                let delete = |tx: &mut super::Tx<'_>| {
                    keys.clone().try_for_each(|key| tx.put(&key.to_be_bytes(), None))
                };
                session.transact(delete).expect("commits");
                first = keys.end;
            }
            let summary = world.kind.pool().check_table(TABLE).expect("sound");
            assert!(summary.pages.len() < 20, "{round}: {} pages", summary.pages.len());
            if round % 20 == 7 {
                let section = world.checkpoint(true);
                world.assert_no_page_is_lost();
                let expected = world.content();
                world = world.restart(64, 1024, Some(&section), round);
                assert_eq!(world.content(), expected);
                world.assert_no_page_is_lost();
                session = world.session(0);
            }
        }
        let after = world.restart(64, 1024, None, 1);
        assert_eq!(after.content(), world.content());
        after.assert_no_page_is_lost();
    }
}

/// A transaction deletes a record and inserts a shorter one over it. Others fill the leaf, and then it aborts.
pub(crate) fn an_abort_finds_the_room_of_what_it_has_deleted() {
    for others in 0..30u8 {
        let world = World::new(16, 512, 1);
        let [mut first, mut second] = [world.session(0), world.session(1)];
        first.transact(|tx| tx.put(b"k", Some(&[1; 100]))).expect("commits");
        first.begin(1);
        first.tx().put(b"k", None).expect("nobody else");
        first.tx().put(b"k", Some(&[2; 8])).expect("nobody else");
        for other in 0..others {
            second.begin(2);
            let put = second.tx().put(&[b'k', other], Some(&[3; 8]));
            match put {
                Ok(()) => second.end(true),
                // It shares the word of the other key.
                Err(_) => second.roll_back(),
            }
        }
        first.roll_back();
        assert_eq!(world.read(b"k"), Some(Some(vec![1; 100])), "beside {others} others");
        assert_eq!(world.content().get(&b"k"[..]), Some(&vec![1; 100]));
    }
}

/// Insertions and deletions, committed or rolled back. Whoever reads the key later depends on the end of that
/// transaction. Otherwise a crash could keep the reader and lose the end.
pub(crate) fn who_reads_later_depends_on_the_end_of_a_change() {
    let world = World::new(16, 512, 1);
    let mut writer = world.session(0);
    writer.transact(|tx| tx.put(b"a", Some(&[0; 8]))).expect("commits");
    let changes: [(&[u8], Option<&[u8]>); 3] =
        [(b"b", Some(&[1; 8])), (b"a", None), (b"c", Some(&[2; 8]))];
    for (round, (key, value)) in changes.into_iter().enumerate() {
        for commits in [false, true] {
            writer.begin(1);
            writer.tx().put(key, value).expect("changes");
            if commits {
                writer.end(true)
            } else {
                writer.roll_back()
            }
            let end = Stamp::new(world.logs.lock().last[&0], 0);
            let what = format!("change {round}, commits: {commits}");
            let mut out = Vec::new();
            let read = until(|| world.kind.read(TABLE, key, &mut out)).expect("reads");
            assert_eq!(read.expect("no lock").stamp, end, "without a lock: {what}");
            let mut reader = world.session(1);
            for how in ["one", "range", "alone"] {
                reader.begin(2);
                match how {
                    "one" => drop(reader.tx().get(key).expect("reads")),
                    "range" => drop(reader.tx().range(.., usize::MAX).expect("reads")),
                    _ => {
                        let asked = KindKey { table: TABLE, key, mode: Mode::Read };
                        let read = until(|| reader.part.read_alone(asked)).expect("reads");
                        assert_eq!(read.map(|slot| reader.part.stamp(slot)), Some(end), "{what}");
                    }
                }
                let mut touched = Vec::new();
                reader.part.touched(&mut touched);
                assert!(touched.contains(&end), "{how}, {what}: {touched:?}");
                reader.end(true);
            }
        }
    }
}
