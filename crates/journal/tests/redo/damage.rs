//! Tests that torn tails count as ends of logs, and that all else is reported as damage.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::log::BATCH_HEADER_BYTES;
use stillpoint_format::manifest::{IncarnationEntry, LogPositions};
use stillpoint_format::{LogGsn, Stamp, names};
use stillpoint_io::{Caching, Disk, OpenMode, SimDisk, read_all};
use stillpoint_journal::{
    JournalError, Logs, ReplayStart, ScanError, ScanInput, scan, scan_accepting_loss,
};

use crate::support::{STORE, entry, open, put, replay, scan_first, scan_with, small};

fn segments(disk: &SimDisk, log: u8) -> Vec<PathBuf> {
    let dir = PathBuf::from(names::log_dir(log));
    let names = disk.list(&dir).expect("lists");
    let names = names.into_iter().filter(|name| names::parse_segment_name(name).is_some());
    names.map(|name| dir.join(name)).collect()
}

fn overwrite(disk: &SimDisk, path: &Path, offset: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("opens");
    file.write_at(bytes, offset).expect("writes");
}

/// A log with `count` batches of one record each, every one flushed before the next.
fn flushed_one_by_one(count: u64, value: &[u8]) -> SimDisk {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    for _ in 0..count {
        put(&*journal, 0, 1, &[], b"k", value).expect("appends");
        journal.flush(0).expect("flushes");
    }
    drop(journal);
    disk.kill()
}

fn end_gsn(disk: &SimDisk) -> Result<u64, ScanError> {
    scan_first(disk).map(|logs| logs.cut()[0].gsn)
}

#[test]
fn a_tail_cut_at_every_byte_is_an_end() {
    let disk = flushed_one_by_one(3, &[9; 300]);
    let path = &segments(&disk, 0)[0];
    let bytes = read_all(&disk, path).expect("reads");
    let last = 3 * 4096;
    let used = BATCH_HEADER_BYTES + 16 + 300;
    for cut in 0..used + 40 {
        let zeros = vec![0; 4096 - cut];
        overwrite(&disk, path, (last + cut) as u64, &zeros);
        let whole = bytes[last + cut..last + 4096].iter().all(|byte| *byte == 0);
        assert_eq!(end_gsn(&disk).expect("a torn tail"), if whole { 3 } else { 2 }, "cut {cut}");
        overwrite(&disk, path, (last + cut) as u64, &bytes[last + cut..last + 4096]);
    }
    assert_eq!(end_gsn(&disk).expect("sound"), 3);
}

#[test]
fn every_flipped_bit_is_detected() {
    let disk = flushed_one_by_one(3, b"value");
    let path = &segments(&disk, 0)[0];
    let bytes = read_all(&disk, path).expect("reads");
    let used = BATCH_HEADER_BYTES + 60;
    // Every used byte of the header, and a sample of its zeros.
    let header = (0..128).chain((128..4092).step_by(61)).chain(4092..4096);
    let batches = [4096, 8192, 12_288].map(|begin| begin..begin + used);
    for at in header.chain(batches.into_iter().flatten()) {
        for bit in 0..8 {
            overwrite(&disk, path, at as u64, &[bytes[at] ^ 1 << bit]);
            match end_gsn(&disk) {
                Ok(2) => assert!(at >= 12_288, "byte {at} bit {bit}: only the last is torn"),
                Ok(gsn) => panic!("byte {at} bit {bit} is not detected: {gsn} records"),
                Err(error) => {
                    assert!(error.is_damage() && at < 12_288, "byte {at} bit {bit}: {error}");
                    assert!(error.to_string().contains("/sim/log/000/"), "{error}");
                    assert!(error.to_string().contains("stillpoint restore"), "{error}");
                }
            }
        }
        overwrite(&disk, path, at as u64, &bytes[at..=at]);
    }
}

#[test]
fn damage_is_proved_by_later_batches_and_later_segments() {
    let disk = flushed_one_by_one(40, &[5; 5000]);
    let paths = segments(&disk, 0);
    assert!(paths.len() >= 3, "{paths:?}");
    // Damage of the last batch of a segment. Only the next segment proves the damage.
    let bytes = read_all(&disk, &paths[0]).expect("reads");
    let last = (bytes.len() / 4096 - 1) * 4096;
    let last = (4096..=last).rev().find(|at| bytes[*at..].starts_with(b"SPLB")).expect("a batch");
    overwrite(&disk, &paths[0], last as u64 + 100, &[0xee]);
    let error = scan_first(&disk).expect_err("damaged");
    let ScanError::Damaged { path, offset, proof: Some(proof), .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((path, *offset), (&disk.describe(&paths[0]), last as u64));
    assert_eq!(proof.path, disk.describe(&paths[1]));
    assert!(error.to_string().contains("proves that it was durable"), "{error}");
}

/// Neither the last batch of a segment nor the mark behind it is sound. The only batch of the next
/// segment proves that both were durable.
#[test]
fn damage_is_proved_by_the_first_batch_of_a_later_segment() {
    let disk = flushed_one_by_one(8, &[5; 5000]);
    let paths = segments(&disk, 0);
    let bytes = read_all(&disk, &paths[0]).expect("reads");
    let begins = |at: &usize| bytes[*at..].starts_with(b"SPLB");
    let last = (0..bytes.len()).step_by(4096).rfind(begins).expect("a batch");
    assert_eq!((paths.len(), end_gsn(&disk).expect("sound")), (2, 8));
    overwrite(&disk, &paths[0], last as u64, &vec![0xee; bytes.len() - last]);
    let error = scan_first(&disk).expect_err("damaged");
    let ScanError::Damaged { offset, proof: Some(proof), .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*offset, &proof.path), (last as u64, &disk.describe(&paths[1])));
}

#[test]
fn a_missing_segment_is_missed() {
    let fresh = || flushed_one_by_one(40, &[5; 5000]);
    let paths = segments(&fresh(), 0);
    let none = ReplayStart::default();
    let scan_without = |which: usize| {
        let disk = fresh();
        disk.remove(&paths[which]).expect("removes");
        scan_with(&disk, &[entry(1, 0, None)], &none, Some(1))
    };
    let error = scan_without(0).expect_err("the first one is missing");
    assert!(matches!(error, ScanError::Missing { after_gsn: 0, .. }), "{error}");
    assert!(error.to_string().contains("/sim/log/000: log 0 has no segment"), "{error}");
    let error = scan_without(1).expect_err("a middle one is missing");
    assert!(matches!(error, ScanError::Missing { found_gsn: Some(_), .. }), "{error}");

    // The predecessor and a recorded cut prove that the last segment is missing.
    let error = scan_without(paths.len() - 1).expect_err("the newest one is missing");
    assert!(matches!(error, ScanError::Missing { found_gsn: None, .. }), "{error}");
    let disk = fresh();
    disk.remove(paths.last().expect("some")).expect("removes");
    let cut = vec![LogGsn { log: 0, gsn: 40 }];
    let known = [entry(1, 0, Some(cut)), entry(2, 40, None)];
    let error = scan_with(&disk, &known, &none, None).expect_err("shorter than its cut");
    assert!(matches!(error, ScanError::Missing { found_gsn: None, .. }), "{error}");

    // All segments of a log are missing. The number of logs or the cut proves the loss.
    let disk = fresh();
    disk.remove(names::log_dir(0).as_ref()).expect("removes");
    assert!(scan_with(&disk, &[entry(1, 0, None)], &none, Some(1)).is_err());
    assert!(scan_with(&disk, &known, &none, None).is_err());

    // Segments whose records a checkpoint holds may be missing, except the newest segment, which is
    // never freed.
    let start = ReplayStart {
        epoch: 2,
        floor: 0,
        positions: vec![LogGsn { log: 0, gsn: 40 }],
        ..ReplayStart::default()
    };
    assert!(scan_with(&disk, &[entry(1, 0, None)], &start, Some(1)).is_err());
    let disk = fresh();
    disk.remove(&paths[0]).expect("removes");
    assert!(scan_with(&disk, &[entry(1, 0, None)], &start, Some(1)).is_ok());
}

#[test]
fn files_of_another_store_or_place_are_refused() {
    let disk = flushed_one_by_one(3, b"value");
    let path = &segments(&disk, 0)[0];
    let renamed = path.with_file_name(names::segment_name(1, 2));
    disk.rename(path, &renamed).expect("renames");
    let error = scan_first(&disk).expect_err("renamed");
    assert!(error.to_string().contains("renamed or swapped"), "{error}");
    disk.rename(&renamed, path).expect("renames back");
    let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("opens");
    file.set_len(4096 + 100).expect("cuts");
    let error = scan_first(&disk).expect_err("shorter than allocated");
    assert!(matches!(error, ScanError::Damaged { .. }), "{error}");
}

/// Nothing in the log proves that these bytes existed. A batch of another log does.
#[test]
fn a_log_that_ends_before_what_another_saw_closed_is_damaged() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    put(&*journal, 1, 1, &[], b"k", b"first").expect("appends");
    journal.flush(1).expect("flushes");
    put(&*journal, 0, 1, &[], b"j", b"independent").expect("appends");
    journal.flush(0).expect("flushes");
    drop(journal);
    let disk = disk.kill();
    assert_eq!(scan_first(&disk).expect("sound").ends().len(), 2);
    let path = &segments(&disk, 1)[0];
    overwrite(&disk, path, 4096, &[0; 4096]);
    let error = scan_first(&disk).expect_err("its end is gone");
    let expected = |error: &ScanError| {
        matches!(error, ScanError::Unclosed { log: 1, last_gsn: 0, closed_gsn: 1, .. })
    };
    assert!(expected(&error), "{error}");
    assert!(error.is_damage() && error.to_string().contains("/sim/log/000/"), "{error}");
}

/// Bytes of a batch with one record, without the record's value.
fn around_value() -> usize {
    let journal = open(&SimDisk::new(1), &small(1, 0, 1));
    put(&*journal, 0, 1, &[], b"k", &[7; 1000]).expect("appends");
    BATCH_HEADER_BYTES + journal.stats().record_bytes as usize - 1000
}

/// A closed record depends on one that is lost without a trace. The batch that states closed
/// positions has room for one watermark only.
#[test]
fn a_closed_record_that_rests_on_a_lost_one_is_refused_or_given_up_by_name() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 3));
    let lost = put(&*journal, 1, 1, &[], b"k", b"first").expect("appends");
    let over = put(&*journal, 0, 1, &[lost], b"j", b"second").expect("appends");
    journal.make_closed(&[over]).expect("flushes");
    let value = vec![7; 4096 - 8 - around_value()];
    put(&*journal, 2, 1, &[], b"i", &value).expect("appends");
    journal.flush(2).expect("flushes");
    drop(journal);
    let disk = disk.kill();
    let kept = |logs: &Logs| logs.cut().iter().map(|end| end.gsn).collect::<Vec<_>>();
    assert_eq!(kept(&scan_first(&disk).expect("sound")), [2, 1, 1]);

    overwrite(&disk, &segments(&disk, 1)[0], 4096, &[0; 4096]);
    let error = scan_first(&disk).expect_err("a closed record cannot be kept");
    let expected = |error: &ScanError| {
        matches!(error, ScanError::Unclosed { log: 1, last_gsn: 0, closed_gsn: 1, .. })
    };
    assert!(expected(&error) && error.is_damage(), "{error}");
    let input = ScanInput {
        store: STORE,
        incarnations: &[IncarnationEntry { logs: 3, ..entry(1, 0, None) }],
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start: &ReplayStart::default(),
        threads: 1,
        progress: &|_, _| {},
    };
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let (logs, losses) = scan_accepting_loss(&disk, &input, &[]).expect("reads");
    assert_eq!(kept(&logs), [0, 0, 1]);
    let told: Vec<_> =
        losses.iter().map(|loss| (loss.log, loss.above_gsn, loss.up_to_gsn)).collect();
    assert_eq!(told, [(0, 0, Some(2))], "{losses:#?}");
}

/// Each damaged segment is reported, with the records that depend on it, for any number of threads.
/// Records before the damage are kept.
#[test]
fn whoever_accepts_loss_learns_of_each_damaged_segment() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 3));
    for log in 0..3 {
        for _ in 0..40 {
            put(&*journal, log, 1, &[], b"k", &[5; 5000]).expect("appends");
            journal.flush(log).expect("flushes");
        }
    }
    drop(journal);
    let disk = disk.kill();
    let first_gsn = |log: u8, which: usize| {
        let path = &segments(&disk, log)[which];
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        names::parse_segment_name(name).expect("a segment").1
    };
    // The headers of the third segment of log 0, and of the second of log 1.
    let (above_0, above_1) = (first_gsn(0, 2) - 1, first_gsn(1, 1) - 1);
    assert!(above_1 < above_0 && above_0 < 40, "{above_0} {above_1}");
    overwrite(&disk, &segments(&disk, 0)[2], 20, &[0xee]);
    overwrite(&disk, &segments(&disk, 1)[1], 20, &[0xee]);
    for threads in [1, 2, 7] {
        let input = ScanInput {
            store: STORE,
            incarnations: &[IncarnationEntry { logs: 3, ..entry(1, 0, None) }],
            clean_shutdown: None,
            next_epoch: u64::MAX,
            start: &ReplayStart::default(),
            threads,
            progress: &|_, _| {},
        };
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (logs, mut losses) = scan_accepting_loss(&shared, &input, &[]).expect("reads");
        losses.sort_by_key(|loss| (loss.log, loss.above_gsn));
        let told: Vec<_> =
            losses.iter().map(|loss| (loss.log, loss.above_gsn, loss.up_to_gsn)).collect();
        let expected = [
            // This record is intact, but comes after the loss in log 1.
            (0, above_1, Some(above_0)),
            // The damaged file, the gap that it leaves, and the statement of log 1 about it.
            (0, above_0, None),
            (0, above_0, None),
            (0, above_0, Some(40)),
            (1, above_1, None),
            (1, above_1, None),
            (2, above_1, Some(40)),
        ];
        assert_eq!(told, expected, "{threads} threads: {losses:#?}");
        for (log, which) in [(0, 2), (1, 1)] {
            let path = disk.describe(&segments(&disk, log)[which]).display().to_string();
            let named = losses.iter().any(|loss| loss.log == log && loss.why.contains(&path));
            assert!(named, "{threads} threads: {path} is not named: {losses:#?}");
        }
        let kept: Vec<u64> = logs.ends().iter().map(|end| end.kept_gsn).collect();
        assert_eq!(kept, [above_1; 3], "{threads} threads");
        let replayed = replay(&logs, 1 << 20);
        assert_eq!(replayed.len() as u64, 3 * above_1, "{threads} threads");
    }
}

/// A failed start leaves files of the next incarnation. A file of a later incarnation shows that
/// the manifest is older than the log, even without a batch.
#[test]
fn a_segment_of_an_incarnation_after_the_next_is_refused() {
    for (number, sound) in [(2, true), (3, false)] {
        let disk = flushed_one_by_one(1, b"value");
        drop(open(&disk, &small(number, 1, 1)));
        let known = [entry(1, 0, None)];
        let scanned = scan_with(&disk, &known, &ReplayStart::default(), Some(1));
        let newer = |error: &ScanError| {
            matches!(error, ScanError::NewerLog { incarnation: 3, latest: 1, .. })
        };
        match scanned {
            Ok(_) => assert!(sound, "incarnation {number}"),
            Err(error) => assert!(!sound && newer(&error), "incarnation {number}: {error}"),
        }
    }
}

/// Behind a recorded cut a file may have any content, since its space was freed.
#[test]
fn a_segment_behind_a_recorded_cut_is_not_opened() {
    let disk = flushed_one_by_one(40, &[5; 5000]);
    let paths = segments(&disk, 0);
    let name = paths[1].file_name().and_then(|name| name.to_str()).expect("a name");
    let cut = names::parse_segment_name(name).expect("a segment").1 - 1;
    for path in &paths[1..] {
        overwrite(&disk, path, 0, &[0xee; 4096]);
    }
    let known = [entry(1, 0, Some(vec![LogGsn { log: 0, gsn: cut }])), entry(2, 40, None)];
    let logs = scan_with(&disk, &known, &ReplayStart::default(), Some(0)).expect("sound");
    assert_eq!(replay(&logs, 1 << 20).len() as u64, cut);
}

/// Records may be given up because their writes are unknown: those from the limit on, and those
/// that depend on them.
#[test]
fn records_from_a_limit_on_are_given_up() {
    let disk: Arc<dyn Disk> = Arc::new(flushed_one_by_one(5, b"value"));
    let input = ScanInput {
        store: STORE,
        incarnations: &[IncarnationEntry { logs: 1, ..entry(1, 0, None) }],
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start: &ReplayStart::default(),
        threads: 1,
        progress: &|_, _| {},
    };
    for (limit, kept, told) in [(3, 2, Some(5)), (5, 4, Some(5)), (6, 5, None)] {
        let limit = LogGsn { log: 0, gsn: limit };
        let (logs, losses) = scan_accepting_loss(&disk, &input, &[limit]).expect("reads");
        assert_eq!(logs.cut(), [LogGsn { log: 0, gsn: kept }], "{limit:?}: {losses:?}");
        let first = losses.first().map(|loss| (loss.log, loss.above_gsn, loss.up_to_gsn));
        assert_eq!(first, told.map(|up_to| (0, kept, Some(up_to))), "{limit:?}: {losses:?}");
    }
}

/// A segment of an incarnation that the manifest does not name is a stray without a batch, or the
/// manifest is older than the log.
#[test]
fn records_that_the_manifest_does_not_know_are_refused() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    put(&*journal, 0, 7, &[], b"k", b"v").expect("appends");
    journal.flush(0).expect("flushes");
    drop(journal);
    drop(open(&disk, &small(2, 1, 1)));
    let known = [entry(1, 0, None)];
    let none = ReplayStart::default();
    assert!(scan_with(&disk, &known, &none, Some(1)).is_ok(), "a stray");
    let journal = open(&disk, &small(2, 1, 1));
    put(&*journal, 0, 7, &[], b"k", b"v").expect("appends");
    journal.flush(0).expect("flushes");
    let error = scan_with(&disk, &known, &none, Some(1)).expect_err("the manifest is older");
    let newer =
        |error: &ScanError| matches!(error, ScanError::NewerLog { incarnation: 2, latest: 1, .. });
    assert!(newer(&error), "{error}");
    assert!(error.to_string().contains("older than the log"), "{error}");

    let disk: Arc<dyn Disk> = Arc::new(disk);
    let known = [
        IncarnationEntry { logs: 1, ..entry(1, 0, Some(vec![LogGsn { log: 0, gsn: 1 }])) },
        IncarnationEntry { logs: 1, ..entry(2, 1, None) },
    ];
    for (next_epoch, sound) in [(8, true), (7, false)] {
        let input = ScanInput {
            store: STORE,
            incarnations: &known,
            clean_shutdown: None,
            next_epoch,
            start: &none,
            threads: 1,
            progress: &|_, _| (),
        };
        match scan(&disk, &input) {
            Ok(_) => assert!(sound),
            Err(error) => {
                let newer = matches!(error, ScanError::NewerEpoch { epoch: 7, next_epoch: 7, .. });
                assert!(newer && !sound, "{error}");
            }
        }
    }
}

/// A dependency that was never given out is an error of the waiting caller, not an endless wait.
#[test]
fn a_dependency_that_nobody_gave_out_is_not_waited_for() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let unknown = Stamp::new(500, 1);
    let stamp = put(&*journal, 0, 1, &[unknown], b"k", b"v").expect("appends");
    let error = journal.make_closed(&[stamp]).expect_err("nobody gave it out");
    assert!(matches!(error, JournalError::UnknownStamp { .. }), "{error}");
}

/// The logs are flushed past the positions of a checkpoint before it is published.
#[test]
fn a_log_that_ends_below_a_published_position_is_damaged() {
    let flushed = vec![LogPositions { incarnation: 1, logs: vec![LogGsn { log: 0, gsn: 2 }] }];
    let positions = flushed[0].logs.clone();
    let start = ReplayStart { epoch: 2, positions, flushed, ..ReplayStart::default() };
    let latest = [entry(1, 0, None)];
    let disk = flushed_one_by_one(2, b"value");
    assert!(scan_with(&disk, &latest, &start, Some(1)).is_ok());
    for records in 0..2 {
        let disk = flushed_one_by_one(records, b"value");
        let error = scan_with(&disk, &latest, &start, Some(1)).expect_err("too short");
        assert!(matches!(error, ScanError::Short { kept_gsn: 2, .. }), "{error}");
        // A recorded cut says that no record was kept beyond the position.
        let cut = Some(vec![LogGsn { log: 0, gsn: 2 }]);
        assert!(scan_with(&disk, &[entry(1, 0, cut)], &start, Some(1)).is_ok());
    }
}

/// The space of a segment is allocated before the segment gets its name.
#[test]
fn a_file_that_is_shorter_than_it_was_made_is_damaged() {
    let disk = flushed_one_by_one(3, b"value");
    let path = &segments(&disk, 0)[0];
    let bytes = read_all(&disk, path).expect("reads").len();
    let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("opens");
    for left in (4096..bytes).step_by(4096).rev() {
        file.set_len(left as u64).expect("cuts");
        let error = scan_first(&disk).expect_err("cut off");
        assert!(matches!(error, ScanError::Damaged { proof: None, .. }), "{left}: {error}");
    }
}
