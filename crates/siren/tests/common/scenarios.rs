//! Scenarios of a few steps, each of which one planted bug spoils.

use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};
use stillpoint_siren::{Logging, Progress, Removes, Store, TableId, Transaction};

use crate::common::open;

pub(crate) const TABLE: TableId = TableId(1);

pub(crate) fn put(store: &Store, key: &[u8], value: &[u8]) {
    let session = store.session().expect("a session");
    let mut transaction = session.begin();
    transaction.put(TABLE, key, value).expect("a lock");
    transaction.commit().expect("a log");
}

pub(crate) fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let session = store.session().expect("a session");
    let mut transaction = session.begin();
    transaction.get(TABLE, key).expect("a lock").map(|value| value.to_vec())
}

fn start(disk: &SimDisk, removes: Removes, logging: Logging) -> Store {
    let store = open(disk, removes, logging, 1);
    assert_eq!(store.table("table").expect("a log"), TABLE);
    store
}

fn begin<'s>(session: &'s stillpoint_siren::Session<'s>, key: &[u8]) -> Transaction<'s> {
    let mut transaction = session.begin();
    transaction.put(TABLE, key, b"new").expect("a lock");
    transaction
}

/// A commit on a frozen page reaches the next checkpoint.
pub(crate) fn a_commit_on_a_frozen_page_stays() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let store = start(&disk, removes, Logging::None);
        let session = store.session().expect("a session");
        let transaction = begin(&session, b"a");
        let checkpoint = store.begin_checkpoint().expect("a disk");
        transaction.commit().expect("no log");
        checkpoint.finish().expect("a disk");
        assert_eq!(get(&open(&disk.crash_image(1), removes, Logging::None, 1), b"a"), None);
        store.checkpoint().expect("a disk");
        let after = open(&disk.crash(2), removes, Logging::None, 1);
        assert_eq!(get(&after, b"a").as_deref(), Some(&b"new"[..]), "committed before the second");
        assert_eq!(after.recovered().reopened, 0);
    }
}

/// What happens after the begin of a checkpoint is not in it.
pub(crate) fn a_frozen_page_keeps_its_image() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let store = start(&disk, removes, Logging::None);
        put(&store, b"a", b"old");
        put(&store, b"b", b"old");
        let checkpoint = store.begin_checkpoint().expect("a disk");
        put(&store, b"a", b"new");
        put(&store, b"c", b"new");
        let session = store.session().expect("a session");
        let mut transaction = session.begin();
        assert!(transaction.delete(TABLE, b"b").expect("a lock"));
        transaction.commit().expect("no log");
        checkpoint.finish().expect("a disk");
        store.check().expect("sound pages");
        let after = open(&disk.crash(2), removes, Logging::None, 1);
        let found = [b"a", b"b", b"c"].map(|key| get(&after, key));
        assert_eq!(found, [Some(b"old".to_vec()), Some(b"old".to_vec()), None]);
    }
}

fn fill(store: &Store, round: u8) {
    for number in 0..40u8 {
        put(store, &[number], &[round; 100]);
    }
}

/// Takes a second checkpoint with a loss of power at one of its calls. The first or the second is
/// found, whole.
fn second_checkpoint(calls: &[Call], nth: u64, seeds: std::ops::Range<u64>) -> bool {
    let disk = SimDisk::new(nth);
    let store = start(&disk, Removes::Pend, Logging::None);
    fill(&store, 1);
    store.checkpoint().expect("a disk");
    fill(&store, 2);
    let plan =
        FaultPlan { calls: calls.to_vec(), nth, fault: Fault::PowerLoss, lasts: Lasts::Once };
    disk.inject(plan);
    let is_whole = store.checkpoint().is_ok();
    for seed in seeds {
        let after = open(&disk.crash(seed), Removes::Pend, Logging::None, 1);
        let value = get(&after, &[0]).expect("the first checkpoint had it");
        assert!(!is_whole || value == [2; 100], "a finished checkpoint is found");
        for number in 0..40u8 {
            assert_eq!(get(&after, &[number]).as_ref(), Some(&value), "one checkpoint, whole");
        }
    }
    is_whole
}

/// Half-written pages, directories and headers leave the checkpoint before.
pub(crate) fn a_half_written_checkpoint_leaves_the_one_before() {
    let mut nth = 1;
    while !second_checkpoint(&[Call::Write, Call::Sync], nth, 0..6) {
        nth += 1;
    }
    assert!(nth > 5, "{nth} calls");
}

/// The header is written when the pages are durable.
pub(crate) fn a_header_follows_its_pages() {
    let mut nth = 1;
    while !second_checkpoint(&[Call::Sync], nth, 0..60) {
        nth += 1;
    }
}

/// A rollback that the checkpoint holds is not repeated.
pub(crate) fn a_rollback_in_the_checkpoint_is_not_repeated() {
    let disk = SimDisk::new(1);
    let store = start(&disk, Removes::Pend, Logging::Relaxed);
    let session = store.session().expect("a session");
    let mut transaction = begin(&session, b"a");
    // The log of both levels is in one segment: the first one that the checkpoint needs.
    let savepoint = transaction.savepoint();
    transaction.put(TABLE, b"b", b"rolled back").expect("a lock");
    transaction.roll_back_to(savepoint).expect("its own");
    transaction.put(TABLE, b"b", b"kept").expect("a lock");
    store.checkpoint().expect("a disk");
    transaction.commit().expect("a log");
    store.flush().expect("a log");
    let after = open(&disk.crash(2), Removes::Pend, Logging::Relaxed, 1);
    assert_eq!((after.recovered().reopened, after.recovered().aborted), (1, 0));
    assert_eq!(get(&after, b"a").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(&after, b"b").as_deref(), Some(&b"kept"[..]));
}

/// What a strict commit has acknowledged survives.
pub(crate) fn a_strict_commit_survives() {
    let disk = SimDisk::new(1);
    let store = start(&disk, Removes::Pend, Logging::Strict);
    put(&store, b"a", b"1");
    for seed in 0..5 {
        let after = open(&disk.crash(seed), Removes::Pend, Logging::Strict, 1);
        assert_eq!(get(&after, b"a").as_deref(), Some(&b"1"[..]), "seed {seed}");
    }
}

/// A checkpoint after one that was given up holds what that one had copied.
pub(crate) fn a_checkpoint_after_a_given_up_one_is_whole() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let store = start(&disk, removes, Logging::None);
        fill(&store, 1);
        store.checkpoint().expect("a disk");
        fill(&store, 2);
        let mut checkpoint = store.begin_checkpoint().expect("a disk");
        put(&store, &[3], b"pending");
        while checkpoint.step().expect("a disk") == Progress::More {}
        drop(checkpoint);
        store.check().expect("sound pages");
        put(&store, &[4], b"later");
        store.checkpoint().expect("a disk");
        let after = open(&disk.crash(2), removes, Logging::None, 1);
        assert_eq!(get(&after, &[3]).as_deref(), Some(&b"pending"[..]));
        assert_eq!(get(&after, &[4]).as_deref(), Some(&b"later"[..]));
        assert_eq!(get(&after, &[5]), Some(vec![2; 100]));
    }
}

/// A tuple that is removed after its copy stands in the checkpoint once.
pub(crate) fn a_tuple_removed_behind_the_copy_is_stored_once() {
    let disk = SimDisk::new(1);
    let store = start(&disk, Removes::ToPages, Logging::None);
    put(&store, b"a", b"old");
    put(&store, b"b", b"old");
    let mut checkpoint = store.begin_checkpoint().expect("a disk");
    checkpoint.step().expect("the page is begun");
    checkpoint.step().expect("one tuple is copied");
    put(&store, b"a", b"new");
    put(&store, b"b", b"new");
    let done = checkpoint.finish().expect("a disk");
    assert_eq!(done.removes, 1, "the tuple that was not copied");
    let after = open(&disk.crash(2), Removes::ToPages, Logging::None, 1);
    let found = [b"a", b"b"].map(|key| get(&after, key));
    assert_eq!(found, [Some(b"old".to_vec()), Some(b"old".to_vec())]);
}

/// An opening aborts what was open, for all later openings too.
pub(crate) fn an_opening_aborts_for_good() {
    let disk = SimDisk::new(1);
    let store = start(&disk, Removes::Pend, Logging::Relaxed);
    let session = store.session().expect("a session");
    let lost = begin(&session, b"a");
    store.flush().expect("a log");
    let second = disk.crash(2);
    drop(lost);
    let store = open(&second, Removes::Pend, Logging::Relaxed, 1);
    assert_eq!(store.recovered().aborted, 1);
    let session = store.session().expect("a session");
    let mut transaction = session.begin();
    let savepoint = transaction.savepoint();
    transaction.put(TABLE, b"a", b"2").expect("a lock");
    transaction.roll_back_to(savepoint).expect("its own");
    transaction.commit().expect("a log");
    store.flush().expect("a log");
    let after = open(&second.crash(3), Removes::Pend, Logging::Relaxed, 1);
    assert_eq!(get(&after, b"a"), None, "nobody has committed it");
}

/// While the last page waits for its copy, keys are appended and put before all others. Nothing gathers on
/// the two pages, and the checkpoint holds none of these keys.
pub(crate) fn what_is_appended_gathers_on_no_frozen_page() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let disk = SimDisk::new(1);
        let store = start(&disk, removes, Logging::None);
        let key = |number: u32| number.to_be_bytes();
        for number in 1000..1040 {
            put(&store, &key(number), &[1; 100]);
        }
        store.checkpoint().expect("a disk");
        put(&store, &key(1000), &[2; 100]);
        put(&store, &key(1039), &[2; 100]);
        let mut checkpoint = store.begin_checkpoint().expect("a disk");
        checkpoint.step().expect("a disk");
        for number in 0..500 {
            put(&store, &key(2000 + number), &[3; 100]);
            put(&store, &key(999 - number), &[3; 100]);
        }
        let occupancy = store.occupancy(TABLE);
        assert!(occupancy.pending < 10, "{occupancy:?}");
        assert!(occupancy.pages > 100, "a page of 15 % holds few tuples: {occupancy:?}");
        while checkpoint.step().expect("a disk") == Progress::More {}
        let done = checkpoint.finish().expect("a disk");
        assert!(done.pages < 10, "those that were dirty, and not {done:?}");
        store.check().expect("sound pages");
        assert_eq!(open(&disk.crash_image(1), removes, Logging::None, 1).records(TABLE), 40);
        store.checkpoint().expect("a disk");
        assert_eq!(open(&disk.crash_image(1), removes, Logging::None, 1).records(TABLE), 1040);
    }
}

/// Many keys are put into the middle of a page that waits for its copy. Afterwards each write splits off one
/// page at most.
pub(crate) fn a_write_splits_off_one_page_at_most() {
    let disk = SimDisk::new(1);
    let store = start(&disk, Removes::ToPages, Logging::None);
    put(&store, b"a", &[1; 100]);
    put(&store, b"z", &[1; 100]);
    let mut checkpoint = store.begin_checkpoint().expect("a disk");
    for number in 0..2000u32 {
        put(&store, &[b"m", &number.to_be_bytes()[..]].concat(), &[1; 100]);
    }
    let mut steps = 0;
    while store.occupancy(TABLE).pending > 0 {
        checkpoint.step().expect("a disk");
        steps += 1;
    }
    assert!(steps < 500, "{steps} turns for 2,000 pending operations");
    checkpoint.step().expect("the page is frozen no more");
    let before = store.occupancy(TABLE).pages;
    put(&store, b"n", &[1; 100]);
    let after = store.occupancy(TABLE).pages;
    assert!(after <= before + 1, "{before} pages, {after} after one write");
    checkpoint.finish().expect("a disk");
    store.check().expect("sound pages");
    assert!(store.occupancy(TABLE).pages > 200, "the checkpointer has split the page");
}
