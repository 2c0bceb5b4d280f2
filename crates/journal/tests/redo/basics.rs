//! Tests of commits, dependencies, segments, epochs and incarnations.

use stillpoint_format::log::{
    LoggedCall, RecordKind, WriteOp, WritesEncoder, encode_before_images,
};
use stillpoint_format::{EncodeError, LogGsn, Stamp, names};
use stillpoint_io::{Disk, SimDisk};
use stillpoint_journal::{
    Config, EarlierSegment, Entry, Hold, Holder, Journal, JournalError, OperationRecord,
    ReplayOperation, ReplayOptions, ReplayStart, ReplayWrite,
};

use crate::support::{
    World, entry, open, put, replay, scan_first, scan_hands_on, scan_with, small,
};

fn kept(disk: &SimDisk) -> Vec<LogGsn> {
    scan_first(disk).expect("no damage").cut()
}

#[test]
fn what_is_flushed_comes_back() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let a = put(&*journal, 0, 1, &[], b"a", b"one").expect("appends");
    let b = put(&*journal, 1, 1, &[a], b"b", b"two").expect("appends");
    let c = put(&*journal, 0, 1, &[a, b], b"a", b"three").expect("appends");
    assert_eq!([a, b, c], [Stamp::new(1, 0), Stamp::new(2, 1), Stamp::new(3, 0)]);
    assert!(!journal.is_closed(a));
    journal.make_closed(&[c]).expect("flushes both logs");
    assert!([a, b, c].into_iter().all(|stamp| journal.is_closed(stamp)));

    let logs = scan_first(&disk.crash(7)).expect("no damage");
    assert_eq!(logs.cut(), [LogGsn { log: 0, gsn: 3 }, LogGsn { log: 1, gsn: 2 }]);
    let values: Vec<_> = replay(&logs, 1 << 20).into_iter().map(|r| (r.gsn, r.value)).collect();
    let mut values = values;
    values.sort();
    assert_eq!(values, [(1, b"one".to_vec()), (2, b"two".to_vec()), (3, b"three".to_vec())]);
    assert_eq!(logs.gsn_max(), 3);
}

#[test]
fn a_flushed_record_over_a_lost_one_is_lost_and_was_never_closed() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 3));
    let a = put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
    let b = put(&*journal, 1, 1, &[a], b"b", b"").expect("appends");
    let c = put(&*journal, 2, 1, &[b], b"c", b"").expect("appends");
    journal.flush(2).expect("flushes");
    journal.flush(1).expect("flushes");
    assert!(!journal.is_closed(b) && !journal.is_closed(c), "both rest on log 0");
    let end = |log| LogGsn { log, gsn: 0 };
    assert_eq!(kept(&disk.crash_image(3)), [end(0), end(1), end(2)]);
    journal.make_closed(&[c]).expect("flushes log 0");
    assert!(journal.is_closed(a) && journal.is_closed(b) && journal.is_closed(c));
    assert_eq!(kept(&disk.crash(3)).iter().map(|end| end.gsn).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_record_that_names_nothing_falls_with_the_one_before_it() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let lost = put(&*journal, 1, 1, &[], b"a", b"").expect("appends");
    let over = put(&*journal, 0, 1, &[lost], b"b", b"").expect("appends");
    // The record read only records of its own log, so it names no dependency.
    let silent = put(&*journal, 0, 1, &[over], b"c", b"").expect("appends");
    journal.flush(0).expect("flushes");
    assert!(!journal.is_closed(silent));
    assert_eq!(kept(&disk.crash(1)), [LogGsn { log: 0, gsn: 0 }, LogGsn { log: 1, gsn: 0 }]);
}

#[test]
fn a_dependency_named_before_is_not_named_again() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let a = put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
    let bytes = |journal: &dyn Journal| journal.stats().record_bytes;
    let before = bytes(&*journal);
    put(&*journal, 1, 1, &[a], b"b", b"").expect("appends");
    let named = bytes(&*journal) - before;
    let second = put(&*journal, 1, 1, &[a], b"b", b"").expect("appends");
    assert_eq!(bytes(&*journal) - before, 2 * named - 8, "the first one answers for it");
    journal.flush(1).expect("flushes");
    assert!(!journal.is_closed(second));
    assert_eq!(kept(&disk.crash_image(1))[1].gsn, 0);
    journal.flush(0).expect("flushes");
    assert!(journal.is_closed(second));
}

#[test]
fn an_idle_log_neither_waits_nor_holds_back() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 3));
    let mut last = Stamp::NONE;
    for _ in 0..100 {
        last = put(&*journal, 1, 1, &[last], b"k", b"v").expect("appends");
    }
    journal.flush(1).expect("flushes");
    assert!(journal.is_closed(last));
    assert!(!journal.is_closed(Stamp::new(1, 0)) && journal.is_closed(Stamp::new(100, 1)));
    assert!(!journal.is_closed(Stamp::new(101, 1)) && !journal.is_closed(Stamp::new(1, 9)));
    let gsns: Vec<u64> = kept(&disk.crash(1)).iter().map(|end| end.gsn).collect();
    assert_eq!(gsns, [0, 100, 0]);
}

#[test]
fn a_stamp_that_was_never_given_out_is_an_error() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 10, 1));
    for stamp in [Stamp::new(11, 0), Stamp::new(11, 7)] {
        let error = journal.make_closed(&[stamp]).expect_err("unknown");
        assert!(matches!(error, JournalError::UnknownStamp { .. }), "{error}");
    }
    let error = put(&*journal, 0, 1, &[Stamp::new(99, 7)], b"k", b"v").expect_err("no log 7");
    assert_eq!(error.to_string(), "stamp 7@99 was never given out: the journal has 1 logs");
    let error = put(&*journal, 4, 1, &[], b"k", b"v").expect_err("no log 4");
    assert!(matches!(error, JournalError::UnknownLog { log: 4, logs: 1 }), "{error}");
    // The refused record has left nothing behind.
    assert_eq!(put(&*journal, 0, 1, &[], b"k", b"v").expect("appends"), Stamp::new(11, 0));
}

#[test]
fn the_counts_are_those_of_all_logs() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 3));
    let mut last = Stamp::NONE;
    for log in [0, 0, 1, 2] {
        last = put(&*journal, log, 1, &[last], b"k", &[7; 100]).expect("appends");
    }
    let stats = journal.stats();
    assert_eq!((stats.records, stats.batches, stats.written_bytes, stats.flushes), (4, 0, 0, 0));
    assert_eq!(stats.segments_made, 3, "one for each log");
    assert_eq!(stats.buffer_bytes, 3 * 4096, "one open batch for each log");
    for log in [2, 1] {
        journal.flush(log).expect("flushes");
    }
    assert_eq!(journal.stats().open_dependencies, 2, "on log 1, and on log 0");
    journal.flush(0).expect("flushes");
    let stats = journal.stats();
    assert_eq!(stats.open_dependencies, 0);
    assert_eq!((stats.records, stats.batches, stats.flushes), (4, 3, 3));
    assert_eq!(stats.written_bytes, 3 * 4096);
    assert!((400..800).contains(&stats.record_bytes), "{stats:?}");
    assert_eq!((stats.waits, stats.refusals, stats.segments_reused), (0, 0, 0));
}

#[test]
fn records_and_batches_of_any_size_roll_over_segments() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    let mut world = World::default();
    // Some records are tiny, some larger than a batch. Some are larger than a segment, the first of
    // all records among them.
    let sizes = [200_000, 10, 5_000, 60_000, 61_000, 70_000, 1, 1, 300_000, 30_000, 30_000, 30_000];
    for (key, size) in (0..).zip(sizes) {
        let value = vec![key; size];
        world.transact(&*journal, 0, 1, &[], &[key], &value).expect("appends");
    }
    journal.flush(0).expect("flushes");
    let acknowledged = world.history.iter().map(|of| of.stamp).collect();
    let logs = scan_first(&disk.crash(1)).expect("no damage");
    let finals = [entry(1, 0, None)];
    world.check("sizes", &logs, &acknowledged, &ReplayStart::default(), &finals);
}

#[test]
fn checkpoints_free_segments_and_freed_ones_are_reused() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let mut world = World::default();
    let value = [7; 3000];
    for epoch in 1..=20 {
        for n in 0..40 {
            let (log, key) = (n % 2, n % 5);
            world.transact(&*journal, log, epoch, &[key + 1], &[key], &value).expect("appends");
        }
        let start = ReplayStart {
            epoch,
            floor: 0,
            positions: journal.positions_before_epoch(epoch),
            ..ReplayStart::default()
        };
        journal.flush_all().expect("flushes");
        let since = journal.bytes_since(&start.positions);
        assert!((120_000..300_000).contains(&since), "one epoch of both logs: {since} bytes");
        let positions = start.positions.clone();
        journal.hold(Hold { holder: "checkpoint", floor: 0, positions }).expect("frees");
        let acknowledged = world.history.iter().map(|of| of.stamp).collect();
        let finals = [entry(1, 0, None)];
        let logs = scan_with(&disk.crash_image(epoch), &finals, &start, Some(2)).expect("sound");
        world.check(&format!("epoch {epoch}"), &logs, &acknowledged, &start, &finals);
    }
    let stats = journal.stats();
    assert!(stats.segments_reused > 20, "{stats:?}");
    assert!(stats.segments_made < 20, "{stats:?}");
}

/// Paths of the segments in the first log's directory.
fn segments(disk: &SimDisk) -> Vec<String> {
    let listed = disk.list(names::log_dir(0).as_ref()).expect("a directory");
    listed.into_iter().filter(|name| names::parse_segment_name(name).is_some()).collect()
}

#[test]
fn segments_stay_while_any_holder_needs_them() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    let append = || {
        for _ in 0..100 {
            put(&*journal, 0, 1, &[], b"k", &[7; 3000]).expect("appends");
        }
        journal.flush_all().expect("flushes");
        journal.positions_before_epoch(2)
    };
    let (first, second) = (append(), append());
    let all = segments(&disk);
    assert!(all.len() > 6, "{all:?}");
    assert_eq!(journal.holders(), []);

    let hold = |holder, positions: &[LogGsn]| {
        let positions = positions.to_vec();
        journal.hold(Hold { holder, floor: 0, positions }).expect("frees");
    };
    journal.hold(Hold::everything("checkpoint")).expect("nothing to free");
    hold("follower", &second);
    assert_eq!(segments(&disk), all, "the checkpoint needs them all");
    hold("checkpoint", &first);
    let half = segments(&disk);
    assert!(half.len() < all.len() && half.len() > 2, "{half:?} of {all:?}");
    let [checkpoint, follower] = &journal.holders()[..] else { panic!("two have spoken") };
    assert_eq!((checkpoint.name, follower), ("checkpoint", &Holder { name: "follower", bytes: 0 }));
    assert_eq!(checkpoint.bytes, journal.bytes_since(&first));
    hold("checkpoint", &second);
    assert_eq!(segments(&disk).len(), 1);
    hold("follower", &first);
    assert_eq!(segments(&disk).len(), 1, "what is gone is gone");
}

/// Segments of logs that the present incarnation does not have are held and freed like others.
#[test]
fn segments_of_logs_that_are_gone_stay_while_a_holder_needs_them() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    for log in [0, 0, 0, 1] {
        put(&*journal, log, 1, &[], b"k", &[7; 50_000]).expect("appends");
        journal.flush(log).expect("flushes");
    }
    drop(journal);
    let disk = disk.kill();
    let logs = scan_first(&disk).expect("sound");
    let ends = logs.copy_ends(2, 0).expect("copies");
    let floor = logs.gsn_max();
    let bytes_of = |log: u8| -> u64 {
        ends.segments.iter().filter(|of| of.log == log).map(|of| of.bytes).sum()
    };
    let (stays, gone) = (bytes_of(0), bytes_of(1));
    assert!(gone > 0 && stays > gone, "{stays} and {gone} bytes");
    let config = Config { earlier: ends.segments.clone(), ..small(2, floor, 1) };
    let journal = open(&disk, &config);
    let none = [LogGsn { log: 0, gsn: 0 }];
    let all = journal.positions_before_epoch(u64::MAX);
    assert_eq!(journal.bytes_since(&none), stays + gone);
    assert_eq!(journal.bytes_since(&all), gone);

    let hold = |holder, floor, positions: &[LogGsn]| {
        let positions = positions.to_vec();
        journal.hold(Hold { holder, floor, positions }).expect("frees");
    };
    let is_there = |log: u8| {
        let of_log: Vec<_> = ends.segments.iter().filter(|of| of.log == log).collect();
        let there = |of: &&EarlierSegment| disk.exists(&of.path).expect("lists");
        let count = of_log.iter().copied().filter(there).count();
        assert!(count == 0 || count == of_log.len(), "{count} files of log {log}");
        count > 0
    };
    hold("follower", 0, &none);
    hold("checkpoint", floor, &all);
    let bytes: Vec<_> = journal.holders().iter().map(|of| (of.name, of.bytes)).collect();
    assert_eq!(bytes, [("follower", stays + gone), ("checkpoint", 0)]);
    assert!(is_there(0) && is_there(1));
    hold("follower", floor, &all);
    assert!(!is_there(0) && !is_there(1));
    assert_eq!(journal.bytes_since(&none), 0);
}

/// A call is read back when it is asked for, and its writes like those of any commit.
#[test]
fn a_call_is_replayed_by_what_it_wrote() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    let first = put(&*journal, 0, 1, &[], b"k", b"v").expect("appends");
    let call = LoggedCall { name: "transfer", version: 3, arguments: b"1 2 30", inputs: b"noon" };
    let body = |to: &mut Vec<u8>| {
        call.encode_head(to)?;
        WritesEncoder::new(to).put(0, 0, b"k", 0, b"called")
    };
    let entry = Entry { kind: RecordKind::Command, epoch: 1, touched: &[first], body: &body };
    let second = journal.append(0, &entry).expect("appends");
    assert_eq!((first.gsn(), second.gsn()), (1, 2));
    journal.flush_all().expect("flushes");
    let logs = scan_first(&disk.crash(1)).expect("sound");
    assert_eq!(logs.cut(), [LogGsn { log: 0, gsn: 2 }]);
    for with_calls in [false, true] {
        let options = ReplayOptions { with_calls, ..ReplayOptions::new(1, 1 << 20, 1) };
        let mut replay = logs.replay(options, &|_, _| 0);
        let round = replay.next_round().expect("sound").expect("a round");
        let written = |of: &ReplayWrite<'_>| match of.write.op {
            WriteOp::Put { value, .. } => (of.gsn, value.to_vec()),
            _ => panic!("a put"),
        };
        let writes: Vec<_> = round.partition(0).map(written).collect();
        assert_eq!(writes, [(1, b"v".to_vec()), (2, b"called".to_vec())]);
        let calls: Vec<_> = round.operations().iter().collect();
        match calls[..] {
            [] => assert!(!with_calls),
            [ReplayOperation { gsn: 2, log: 0, record: OperationRecord::Call(found) }] => {
                assert!(with_calls && *found == call, "{found:?}");
            }
            _ => panic!("{calls:?}"),
        }
    }
}

/// A scan hands the writes on that a replay of what is kept has, or says that it has handed on more.
#[test]
fn a_scan_hands_on_what_is_kept() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    for number in 0..2_000_u32 {
        let (log, epoch) = (number as usize % 2, 1 + u64::from(number / 1_000));
        let key = number.to_be_bytes();
        put(&*journal, log as u8, epoch, &[], &key, &[number as u8; 200]).expect("appends");
    }
    journal.flush_all().expect("flushes");
    let disk = disk.crash(1);
    let cut = scan_first(&disk).expect("sound").cut();
    let from_begin = ReplayStart::default();
    assert!(scan_hands_on(&disk, &[entry(1, 0, None)], &from_begin));
    assert!(scan_hands_on(&disk, &[entry(1, 0, Some(cut.clone()))], &from_begin));
    let floor = cut.iter().map(|end| end.gsn).min().expect("two logs") / 2;
    let later = ReplayStart { epoch: 2, floor, ..ReplayStart::default() };
    assert!(scan_hands_on(&disk, &[entry(1, 0, None)], &later));
    let lower = cut.iter().map(|end| LogGsn { gsn: end.gsn - 5, ..*end }).collect();
    assert!(!scan_hands_on(&disk, &[entry(1, 0, Some(lower))], &from_begin));
}

/// A replay has no use for before-images. A check decodes them and compares them with the writes.
#[test]
fn before_images_are_checked_when_that_is_asked_for() {
    type Images<'a> = &'a dyn Fn(&mut WritesEncoder<'_>) -> Result<(), EncodeError>;
    let garbage: Images<'_> = &|images| images.delete(0, 0, &[7; 300]);
    let cases: [(&str, Images<'_>); 4] = [
        ("", &|images| images.put(0, 0, b"k", 0, b"before")),
        ("another key", garbage),
        ("more before-images", &|images| {
            images.delete(0, 0, b"k")?;
            images.delete(0, 0, b"l")
        }),
        ("a part of a value", &|images| images.patch_range(0, 0, b"k", 0, b"part")),
    ];
    let fewer: (&str, Images<'_>) = ("fewer before-images", &|_| Ok(()));
    for (wrong, images) in cases.into_iter().chain([fewer]) {
        let disk = SimDisk::new(1);
        let journal = open(&disk, &small(1, 0, 1));
        let body = |to: &mut Vec<u8>| {
            encode_before_images(to, images)?;
            WritesEncoder::new(to).put(0, 0, b"k", 0, b"written")
        };
        let entry = Entry { kind: RecordKind::UndoWrites, epoch: 1, touched: &[], body: &body };
        journal.append(0, &entry).expect("appends");
        journal.flush_all().expect("flushes");
        let logs = scan_first(&disk.crash(1)).expect("sound");
        for checks_before_images in [false, true] {
            let options =
                ReplayOptions { checks_before_images, ..ReplayOptions::new(1, 1 << 20, 1) };
            let mut replay = logs.replay(options, &|_, _| 0);
            match replay.next_round() {
                Ok(round) => {
                    assert!(!checks_before_images || wrong.is_empty(), "not found: {wrong}");
                    assert_eq!(round.expect("a round").partition(0).count(), 1);
                }
                Err(error) => {
                    assert!(checks_before_images && error.is_damage(), "{wrong}: {error}");
                    assert!(!wrong.is_empty() && error.to_string().contains(wrong), "{error}");
                }
            }
        }
    }
}

#[test]
fn positions_follow_epochs_also_out_of_order() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 100, 1));
    let position = |epoch| journal.positions_before_epoch(epoch)[0].gsn;
    assert_eq!((position(1), position(9)), (100, 100));
    for epoch in [3, 3, 4, 3, 4, 6] {
        put(&*journal, 0, epoch, &[], b"k", b"v").expect("appends");
    }
    assert_eq!([1, 3, 4, 5, 6, 7].map(position), [100, 100, 102, 105, 105, 106]);
    journal.flush_all().expect("flushes");
    // A checkpoint of epoch 4 holds gsns 101 and 102 by position, and 104 by its epoch.
    let start = ReplayStart {
        epoch: 4,
        floor: 0,
        positions: vec![LogGsn { log: 0, gsn: 102 }],
        ..ReplayStart::default()
    };
    let logs = scan_with(&disk.crash(1), &[entry(1, 100, None)], &start, None).expect("sound");
    let gsns: Vec<u64> = replay(&logs, 1 << 20).iter().map(|of| of.gsn).collect();
    assert_eq!(gsns, [103, 105, 106]);
}

#[test]
fn a_clean_end_is_exact_and_final() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    put(&*journal, 0, 1, &[], b"k", b"v").expect("appends");
    put(&*journal, 0, 1, &[], b"k", b"w").expect("appends");
    let last = journal.close().expect("closes");
    assert_eq!(last, [LogGsn { log: 0, gsn: 2 }, LogGsn { log: 1, gsn: 0 }]);
    let error = put(&*journal, 0, 1, &[], b"k", b"x").expect_err("closed");
    assert!(matches!(error, JournalError::Closed));
    assert_eq!(kept(&disk.crash(1)), last);
}

#[test]
fn an_incarnation_is_opened_once() {
    // One batch is read as a whole, and the other exceeds the examined length.
    for value in [&[7; 1][..], &[7; 9000]] {
        let disk = SimDisk::new(1);
        let config = small(1, 0, 1);
        // The incarnation crashed before it served, so it is opened again.
        drop(open(&disk, &config));
        let journal = open(&disk, &config);
        put(&*journal, 0, 1, &[], b"k", value).expect("appends");
        journal.flush(0).expect("flushes");
        drop(journal);
        let redo = stillpoint_journal::registry::REGISTRY.find("redo").expect("listed");
        let error = (redo.open)(&crate::support::environment(&disk), &config);
        let error = error.expect_err("it has records").to_string();
        assert!(error.starts_with("incarnation is 1: it has records already"), "{error}");
    }
}
