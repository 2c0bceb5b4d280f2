//! Tests with a disk that fails or fills up.

use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};
use stillpoint_journal::{JournalError, ReplayStart};

use crate::support::{World, entry, open, put, scan_first, small};

fn fail(disk: &SimDisk, call: Call, nth: u64) {
    disk.inject(FaultPlan {
        calls: vec![call],
        nth,
        fault: Fault::InputOutput,
        lasts: Lasts::Once,
    });
}

#[test]
fn a_failed_write_or_flush_ends_the_log_for_good() {
    for call in [Call::Write, Call::Sync] {
        let disk = SimDisk::new(1);
        let journal = open(&disk, &small(1, 0, 2));
        let sound = put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
        journal.flush(0).expect("flushes");
        let lost = put(&*journal, 0, 1, &[], b"b", b"").expect("appends");
        let over = put(&*journal, 1, 1, &[lost], b"c", b"").expect("appends");
        fail(&disk, call, 1);
        let error = journal.flush(0).expect_err("the disk fails");
        assert!(matches!(error, JournalError::Poisoned { log: 0, .. }), "{error}");
        assert!(error.is_fatal() && !error.is_refusal());
        assert!(error.to_string().contains("nothing more is acknowledged"), "{error}");

        // The flush is not retried, and no dependent record is closed.
        let written = journal.stats().written_bytes;
        assert!(journal.flush(0).is_err() && journal.make_closed(&[lost]).is_err());
        assert_eq!(journal.stats().written_bytes, written, "{call:?} is not repeated");
        let error = journal.make_closed(&[over]).expect_err("rests on the failed log");
        assert!(matches!(error, JournalError::Poisoned { log: 0, .. }), "{error}");
        assert!(!journal.is_closed(lost) && !journal.is_closed(over));
        assert!(put(&*journal, 0, 1, &[], b"d", b"").is_err());
        assert!(journal.admit(0).is_err() && journal.health().is_err());
        assert!(journal.flush_all().is_err() && journal.close().is_err());

        // Records that were closed before stay closed, and survive.
        assert!(journal.is_closed(sound));
        let cut = scan_first(&disk.crash(2)).expect("sound").cut();
        assert!(cut[0].gsn >= sound.gsn(), "{cut:?}");
    }
}

#[test]
fn a_failed_name_of_a_new_segment_ends_the_log() {
    for (call, nth) in [(Call::Rename, 1), (Call::SyncDir, 1), (Call::Open, 2)] {
        let disk = SimDisk::new(1);
        let journal = open(&disk, &small(1, 0, 1));
        let mut acknowledged = std::collections::BTreeSet::new();
        let mut world = World::default();
        fail(&disk, call, nth);
        let ended = (0..100).find_map(|key| {
            let done = world.transact(&*journal, 0, 1, &[], &[key], &[key; 3000]);
            let done = done.and_then(|stamp| journal.make_closed(&[stamp]).map(|()| stamp));
            done.map(|stamp| acknowledged.insert(stamp)).err()
        });
        let error = ended.expect("the second segment cannot be named");
        assert!(error.is_fatal(), "{call:?}: {error}");
        let finals = [entry(1, 0, None)];
        for seed in 0..20 {
            let logs = scan_first(&disk.crash(seed)).expect("sound");
            let context = format!("{call:?} crash {seed}");
            world.check(&context, &logs, &acknowledged, &ReplayStart::default(), &finals);
        }
    }
}

#[test]
fn a_full_disk_refuses_records_and_service_resumes() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 1));
    let mut world = World::default();
    disk.set_capacity(Some(disk.used_bytes()));
    let refused = (0..200)
        .find_map(|key| world.transact(&*journal, 0, 1, &[], &[key % 50], &[key; 3000]).err())
        .expect("the segment fills up");
    assert!(refused.is_refusal() && !refused.is_fatal(), "{refused}");
    assert!(refused.to_string().contains("free space on the device"), "{refused}");
    assert!(journal.stats().refusals > 0);
    // Every accepted record has its space, so all of them are flushed and closed.
    journal.flush_all().expect("flushes into allocated space");
    let acknowledged = world.history.iter().map(|of| of.stamp).collect();
    journal.health().expect("a full disk is no failure");

    disk.set_capacity(None);
    for key in 0..50 {
        world.transact(&*journal, 0, 1, &[], &[key], &[key; 3000]).expect("space is back");
    }
    journal.flush_all().expect("flushes");
    let logs = scan_first(&disk.crash(1)).expect("sound");
    world.check("full", &logs, &acknowledged, &ReplayStart::default(), &[entry(1, 0, None)]);
    assert_eq!(logs.cut()[0].gsn, world.history.len() as u64);
}

#[test]
fn every_call_of_a_run_may_fail_or_find_the_disk_full() {
    let run = |disk: &SimDisk| -> Result<(World, Vec<stillpoint_format::Stamp>), JournalError> {
        let redo = stillpoint_journal::registry::REGISTRY.find("redo").expect("listed");
        let journal = (redo.open)(&crate::support::environment(disk), &small(1, 0, 2))?;
        let (mut world, mut acknowledged) = (World::default(), Vec::new());
        for n in 0..60u8 {
            let (log, key) = (n % 2, n % 7);
            let done = world.transact(&*journal, log, 1, &[key + 1], &[key], &[n; 4000]);
            let done = done.and_then(|stamp| journal.make_closed(&[stamp]).map(|()| stamp));
            match done {
                Ok(stamp) => acknowledged.push(stamp),
                Err(error) if error.is_refusal() => {}
                Err(_) => break,
            }
        }
        Ok((world, acknowledged))
    };
    let quiet = SimDisk::new(1);
    run(&quiet).expect("without faults");
    let sites = quiet.call_counts().changes();
    assert!(sites > 100, "{sites}");
    for fault in [Fault::InputOutput, Fault::DiskFull] {
        for nth in 1..=sites {
            let disk = SimDisk::new(nth);
            disk.fail_at(nth, fault);
            let Ok((world, acknowledged)) = run(&disk) else {
                continue;
            };
            let acknowledged = acknowledged.into_iter().collect();
            let context = format!("{fault:?} at call {nth}");
            let logs = scan_first(&disk.crash(nth)).unwrap_or_else(|e| panic!("{context}: {e}"));
            let finals = [entry(1, 0, None)];
            world.check(&context, &logs, &acknowledged, &ReplayStart::default(), &finals);
        }
    }
}
