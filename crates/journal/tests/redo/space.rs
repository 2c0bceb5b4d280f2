//! Tests with a small disk and with one that fills up. Segments fit, the checkpoint's space stays
//! free, and a thread that panics is a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint_format::log::{RecordKind, WritesEncoder};
use stillpoint_io::{Call, Clock, Fault, FaultPlan, Lasts, RealClock, SimDisk};
use stillpoint_journal::{
    Config, Durability, Entry, Environment, Hold, Journal, JournalError, Shortage, registry,
};

use crate::support::{STORE, put, small};

/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(100_000);

fn open_with(disk: &SimDisk, config: &Config) -> Result<Arc<dyn Journal>, JournalError> {
    let env = Environment { disk: Arc::new(disk.clone()), clock: Arc::new(RealClock) };
    (registry::REGISTRY.find("redo").expect("listed").open)(&env, config)
}

/// Waits for a background thread, for a minute of the machine's clock at most.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("waited for ever until {what}");
}

#[test]
fn what_holds_nothing_leaves_a_small_disk_free() {
    for (megabytes, logs) in [(80, 2), (80, 16), (400, 2), (400, 16)] {
        let disk = SimDisk::new(1);
        disk.set_capacity(Some(megabytes << 20));
        let journal = open_with(&disk, &Config::new(STORE, 1, 0, logs)).expect("it fits");
        let used = || disk.used_bytes();
        assert!(used() <= (megabytes << 20) / 10, "{megabytes} MB, {logs} logs: {} used", used());
        // One log is in use, and segments are prepared for it only.
        let value = vec![7; 200_000];
        for key in 0..20u8 {
            put(&*journal, 0, 1, &[], &[key], &value).expect("there is room");
        }
        journal.flush_all().expect("flushes");
        assert!(used() <= (megabytes << 20) / 5, "{megabytes} MB, {logs} logs: {} used", used());
        journal.close().expect("closes");
    }
}

#[test]
fn logs_that_take_nothing_have_no_segments_ahead() {
    let disk = SimDisk::new(1);
    let journal = open_with(&disk, &Config::new(STORE, 1, 0, 16)).expect("opens");
    assert!(disk.used_bytes() <= 300 << 20, "{} bytes", disk.used_bytes());
    assert_eq!(journal.stats().segments_made, 16);
    journal.close().expect("closes");
}

/// The first record of a log starts the preparation of a segment, so that no append waits for one.
#[test]
fn a_log_that_takes_records_has_a_segment_ahead() {
    let disk = SimDisk::new(1);
    let config = Config { background: true, interval: FOREVER, ..small(1, 0, 2) };
    let journal = open_with(&disk, &config).expect("opens");
    put(&*journal, 0, 1, &[], b"k", b"v").expect("there is room");
    journal.flush(0).expect("flushes");
    // The next record wakes the thread that prepares.
    put(&*journal, 0, 1, &[], b"k", &[7; 5000]).expect("there is room");
    wait_until("it is prepared", || journal.stats().segments_made == 3);
    journal.close().expect("closes");
}

/// Each full batch wakes the thread that flushes.
#[test]
fn a_full_batch_is_written_before_anybody_asks() {
    let disk = SimDisk::new(1);
    let config = Config { background: true, interval: FOREVER, ..small(1, 0, 1) };
    let journal = open_with(&disk, &config).expect("opens");
    for round in 1..=3 {
        put(&*journal, 0, 1, &[], b"k", &[7; 5000]).expect("there is room");
        wait_until("it is written", || journal.stats().batches == round);
    }
    assert_eq!(journal.stats().flushes, 0);
    journal.close().expect("closes");
}

/// The machine's clock, with a count of its readings.
#[derive(Debug, Default)]
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(1, SeqCst);
        RealClock.monotonic_ns()
    }
    fn wall_ms(&self) -> u64 {
        RealClock.wall_ms()
    }
    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

/// A thread that polls for work would keep a core busy.
#[test]
fn the_flusher_of_idle_logs_sleeps() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(CountingClock::default());
    let interval = Duration::from_millis(400);
    let config = Config { background: true, interval, ..small(1, 0, 1) };
    let env = Environment { disk: Arc::new(disk), clock: clock.clone() };
    let open = registry::REGISTRY.find("redo").expect("listed").open;
    let journal = open(&env, &config).expect("opens");
    // The thread writes full batches.
    for key in 0..4 {
        put(&*journal, 0, 1, &[], &[key], &[7; 5000]).expect("there is room");
    }
    wait_until("the batches are written", || journal.stats().batches >= 4);
    // The thread wakes up twice per interval, and finds nothing.
    RealClock.sleep(interval);
    let before = clock.0.load(SeqCst);
    RealClock.sleep(interval);
    let asked = clock.0.load(SeqCst) - before;
    assert!(asked < 20, "the clock was asked {asked} times");
    journal.close().expect("closes");
}

/// A directory that cannot be listed may hold prepared segments, whose names are taken.
#[test]
fn a_log_whose_directory_cannot_be_listed_is_not_opened() {
    let disk = SimDisk::new(1);
    drop(open_with(&disk, &small(1, 0, 1)).expect("opens"));
    disk.inject(FaultPlan {
        calls: vec![Call::List],
        nth: 1,
        fault: Fault::InputOutput,
        lasts: Lasts::Once,
    });
    let refused = open_with(&disk, &small(2, 0, 1)).expect_err("the disk refuses");
    assert!(matches!(refused, JournalError::Disk(_)), "{refused}");
    open_with(&disk, &small(2, 0, 1)).expect("it is over");
}

#[test]
fn a_disk_without_room_for_a_segment_is_refused_by_name() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(32 << 10));
    let refused = open_with(&disk, &Config::new(STORE, 1, 0, 2)).expect_err("no room");
    assert!(matches!(refused, JournalError::NoRoomToStart { log: 0, .. }), "{refused}");
    let message = refused.to_string();
    assert!(message.contains("fewer logs") && !message.contains("resume"), "{message}");
}

#[test]
fn the_space_of_the_checkpoint_is_not_taken() {
    let disk = SimDisk::new(1);
    let journal = open_with(&disk, &small(1, 0, 1)).expect("opens");
    let (capacity, reserve) = (2 << 20, 1 << 20);
    disk.set_capacity(Some(capacity));
    journal.set_reserve(reserve);
    assert_eq!(journal.shortage(), Shortage::None);
    let fill =
        || (0..1000).find_map(|key| put(&*journal, 0, 1, &[], &[key as u8], &[7; 3000]).err());
    let refused = fill().expect("the disk is full");
    assert!(refused.is_refusal() && !refused.is_fatal(), "{refused}");
    assert!(refused.to_string().contains("kept for the next checkpoint"), "{refused}");
    assert!(capacity - disk.used_bytes() >= reserve, "{} used", disk.used_bytes());
    journal.flush_all().expect("flushes into allocated space");
    // The checkpoint is published, so the next one needs less space, and writes go on.
    journal.set_reserve(0);
    for key in 0..10 {
        put(&*journal, 0, 1, &[], &[key], &[7; 3000]).expect("there is room again");
    }
    assert!(fill().is_some_and(|refused| refused.is_refusal()), "but no more than there is");
}

#[test]
fn settings_are_checked_at_their_bounds() {
    type Change = fn(&mut Config);
    let cases: [(Change, bool); 9] = [
        (|config| config.segment_bytes = 16 << 10, true),
        (|config| config.segment_bytes = 12 << 10, false),
        (|config| config.segment_bytes = (64 << 10) + 512, false),
        (|config| config.buffer_bytes = config.batch_bytes, true),
        (|config| config.buffer_bytes = config.batch_bytes - 1, false),
        (|config| config.batch_bytes = 0, false),
        (|config| config.logs = 0, false),
        (|config| config.interval = Duration::ZERO, false),
        (|config| config.durability = Durability::Checkpoint, false),
    ];
    for (at, (change, fits)) in cases.into_iter().enumerate() {
        let mut config = small(1, 0, 1);
        change(&mut config);
        let opened = open_with(&SimDisk::new(1), &config);
        assert_eq!(opened.is_ok(), fits, "case {at}: {:?}", opened.err());
    }
}

#[test]
fn segments_ahead_go_first() {
    let disk = SimDisk::new(1);
    let config = Config {
        background: true,
        spare_segments: 4,
        durability: Durability::Relaxed,
        ..small(1, 0, 1)
    };
    let journal = open_with(&disk, &config).expect("opens");
    disk.set_capacity(Some(2 << 20));
    for key in 0..4 {
        put(&*journal, 0, 1, &[], &[key], &[7; 3000]).expect("there is room");
    }
    wait_until("segments are prepared", || disk.used_bytes() >= 5 * config.segment_bytes);
    // All of the disk is wanted, so prepared segments are removed, and none is made again.
    journal.set_reserve(2 << 20);
    journal.shed(2 << 20).expect("removed");
    wait_until("none is ahead", || journal.shortage() == Shortage::NoSegmentAhead);
    assert!(disk.used_bytes() <= 2 * config.segment_bytes, "{} used", disk.used_bytes());
    put(&*journal, 0, 1, &[], &[9], &[7; 3000]).expect("the present segment has room");
    let refused = (10..250).find_map(|key| put(&*journal, 0, 1, &[], &[key], &[7; 3000]).err());
    assert!(refused.is_some_and(|refused| refused.is_refusal()), "the present one is full");
    assert_eq!(journal.shortage(), Shortage::Refuses, "a checkpoint is wanted at once");
    journal.set_reserve(0);
    wait_until("they are back", || disk.used_bytes() >= 5 * config.segment_bytes);
    assert_eq!(journal.shortage(), Shortage::None);
    journal.close().expect("closes");
}

/// Freed segments are kept for the log as long as nobody wants the space.
#[test]
fn a_freed_segment_is_removed_where_space_is_wanted() {
    for wanted in [0, 2 << 20] {
        let disk = SimDisk::new(1);
        let config = small(1, 0, 1);
        let journal = open_with(&disk, &config).expect("opens");
        disk.set_capacity(Some(2 << 20));
        for key in 0..100 {
            put(&*journal, 0, 1, &[], &[key], &[7; 3000]).expect("there is room");
        }
        journal.flush_all().expect("flushes");
        let positions = journal.positions_before_epoch(u64::MAX);
        journal.set_reserve(wanted);
        journal.hold(Hold { holder: "checkpoint", floor: 0, positions }).expect("frees");
        let segments = disk.used_bytes().div_ceil(config.segment_bytes);
        assert_eq!(segments > 2, wanted == 0, "{segments} segments, {wanted} bytes are wanted");
    }
}

/// The thread that flushes, or the one that prepares, panics at its n-th call. Waiting callers get
/// an error, and closing ends.
#[test]
fn a_thread_that_panics_is_a_failure() {
    for call in [Call::Sync, Call::Write, Call::Allocate, Call::Rename] {
        for nth in 1..=4 {
            let disk = SimDisk::new(1);
            let config = Config {
                background: true,
                durability: Durability::Relaxed,
                interval: Duration::from_millis(2),
                ..small(1, 0, 2)
            };
            let journal = open_with(&disk, &config).expect("opens");
            disk.inject(FaultPlan {
                calls: vec![call],
                nth,
                fault: Fault::Panic,
                lasts: Lasts::UntilCleared,
            });
            let context = format!("{call:?} {nth}");
            let mut refused = None;
            wait_until(&context, || {
                // This thread may meet the panic itself, while it leads.
                let put = || put(&*journal, 0, 1, &[], b"key", &[7; 3000]).err();
                refused = catch_unwind(AssertUnwindSafe(put)).unwrap_or_default();
                refused.is_some()
            });
            let refused = refused.expect("just seen");
            assert!(refused.is_fatal(), "{context}: {refused}");
            assert!(refused.to_string().contains("panicked"), "{context}: {refused}");
            assert!(journal.health().is_err(), "{context}");
            disk.clear_faults();
            assert!(journal.close().is_err(), "{context}: what is not flushed is not told as safe");
        }
    }
}

/// Appends one record and ignores the result.
fn try_put(journal: &dyn Journal, key: u8, value: &[u8]) -> Result<(), JournalError> {
    let body = |to: &mut Vec<u8>| WritesEncoder::new(to).put(1, 0, &[key], 0, value);
    let entry = Entry { kind: RecordKind::Writes, epoch: 1, touched: &[], body: &body };
    journal.append(0, &entry).map(drop)
}

#[test]
fn an_append_never_prepares_a_segment() {
    let disk = SimDisk::new(1);
    let journal = open_with(&disk, &small(1, 0, 1)).expect("opens");
    for (key, bytes) in [(0, 300 << 10), (1, 60 << 10), (2, 60 << 10), (3, 1 << 20)] {
        journal.flush_all().expect("flushes");
        let before = disk.call_counts().total();
        let value = vec![key; bytes];
        let refused = try_put(&*journal, key, &value).expect_err("no segment is prepared");
        assert!(matches!(refused, JournalError::NoRoom { log: 0 }), "{refused}");
        assert_eq!(disk.call_counts().total(), before, "record {key}");
        let writes = disk.call_counts().of(Call::Write);
        journal.admit(0).expect("there is space");
        let prepared = disk.call_counts().total();
        assert!(prepared > before);
        // The long record's transaction waits, so the segment's space is reserved and not filled
        // with zeros.
        assert_eq!(disk.call_counts().of(Call::Write), writes, "record {key}: zeros");
        journal.admit(0).expect("the segment is there");
        assert_eq!(disk.call_counts().total(), prepared, "a segment is prepared once");
        try_put(&*journal, key, &value).expect("its segment is there");
    }
    journal.flush_all().expect("flushes");
}

#[test]
fn a_long_segment_waits_for_the_record_that_needs_it() {
    let disk = SimDisk::new(1);
    let journal = open_with(&disk, &small(1, 0, 1)).expect("opens");
    let long = vec![1; 300 << 10];
    try_put(&*journal, 1, &long).expect_err("no segment is prepared");
    journal.admit(0).expect("there is space");
    // Meanwhile the log rolls to segments of ordinary length for ordinary records.
    let made = journal.stats().segments_made;
    for key in 2..8 {
        put(&*journal, 0, 1, &[], &[key], &[7; 50 << 10]).expect("there is space");
    }
    assert!(journal.stats().segments_made > made, "no roll: the test shows nothing");
    journal.flush_all().expect("flushes");
    try_put(&*journal, 1, &long).expect("its segment is still there");
}

#[test]
fn a_segment_that_finds_no_space_refuses_its_record_only() {
    let disk = SimDisk::new(1);
    let journal = open_with(&disk, &small(1, 0, 1)).expect("opens");
    disk.set_capacity(Some(disk.used_bytes() + (200 << 10)));
    for _ in 0..3 {
        let refused = put(&*journal, 0, 1, &[], &[1], &[1; 1 << 20]).expect_err("no space");
        assert!(matches!(refused, JournalError::NoSpace { log: 0, .. }), "{refused}");
    }
    assert_eq!(journal.stats().refusals, 3);
    for key in 2..4 {
        put(&*journal, 0, 1, &[], &[key], &[7; 50 << 10]).expect("an ordinary segment fits");
    }
}

/// Records in room that was set aside, as an abort appends them. No other thread writes the log.
#[test]
fn who_waits_between_records_set_aside_keeps_to_the_memory() {
    let disk = SimDisk::new(1);
    let config = small(1, 0, 1);
    let journal = open_with(&disk, &config).expect("opens");
    let value = vec![7; 3000];
    let body = |to: &mut Vec<u8>| WritesEncoder::new(to).put(1, 0, b"key", 0, &value);
    let entry = Entry { kind: RecordKind::Writes, epoch: 1, touched: &[], body: &body };
    let records = 4 * config.buffer_bytes / value.len();
    for _ in 0..records {
        while let Err(refused) = journal.set_aside(0, 3100) {
            assert!(matches!(refused, JournalError::NoRoom { .. }), "{refused}");
            journal.admit(0).expect("there is space");
        }
    }
    let (most, mut peak) = ((config.buffer_bytes + 3 * config.batch_bytes) as u64, 0);
    for _ in 0..records {
        journal.await_memory(0);
        journal.append_aside(0, &entry, 3100).expect("room was set aside");
        peak = peak.max(journal.stats().buffer_bytes);
    }
    assert!(peak <= most, "{peak} bytes in memory, and {most} are the limit");
    journal.flush_all().expect("flushes");
}
