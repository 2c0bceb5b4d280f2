//! Tests of injected errors, of full disks, and of files that stay failed.

use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{
    Caching, Call, Disk, DiskFile, Fault, FaultPlan, Lasts, OpenMode, SimDisk, Space, read_all,
    write_file_durably,
};

const ROOT: &str = "";

fn create(disk: &SimDisk, path: &str) -> Arc<dyn DiskFile> {
    disk.open(Path::new(path), OpenMode::CreateNew, Caching::Buffered).expect("a free name")
}

/// Makes one call of every kind, in the order of [`Call::ALL`], except for calls that must come
/// first.
fn one_of_each(disk: &SimDisk) -> Vec<(Call, bool)> {
    let path = |name: &'static str| Path::new(name);
    let file = disk.open(path("kept"), OpenMode::ReadWrite, Caching::Buffered);
    let mut done = vec![(Call::Open, file.is_ok())];
    done.push((Call::CreateDir, disk.create_dir_all(path("d")).is_ok()));
    done.push((Call::List, disk.list(path(ROOT)).is_ok()));
    done.push((Call::Exists, disk.exists(path("kept")).is_ok()));
    done.push((Call::Rename, disk.rename(path("x"), path("y")).is_ok()));
    done.push((Call::Remove, disk.remove(path("z")).is_ok()));
    done.push((Call::LockShared, disk.lock_shared(path("kept")).is_ok()));
    done.push((Call::Lock, disk.lock(path("LOCK")).is_ok()));
    if let Ok(file) = file {
        done.push((Call::Read, file.read_at(&mut [0; 3], 0).is_ok()));
        done.push((Call::Write, file.write_at(b"abc", 0).is_ok()));
        done.push((Call::Len, file.len().is_ok()));
        done.push((Call::SetLen, file.set_len(9).is_ok()));
        done.push((Call::Allocate, file.allocate(9_000).is_ok()));
        done.push((Call::Sync, file.sync().is_ok()));
    }
    done.push((Call::SyncDir, disk.sync_dir(path(ROOT)).is_ok()));
    done
}

fn prepared(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    for name in ["kept", "x", "z"] {
        create(&disk, name);
    }
    disk
}

#[test]
fn every_kind_of_call_can_fail_once_and_is_counted() {
    for fault in [Fault::DiskFull, Fault::InputOutput] {
        for call in Call::ALL {
            let disk = prepared(1);
            disk.inject(FaultPlan { calls: vec![call], nth: 1, fault, lasts: Lasts::Once });
            let before = disk.call_counts();
            for (kind, succeeded) in one_of_each(&disk) {
                assert_eq!(succeeded, kind != call, "{kind:?} with {fault:?} at {call:?}");
            }
            assert_eq!(disk.call_counts().of(call), before.of(call) + 1);
        }
    }
}

#[test]
fn sites_are_numbered_as_the_counter_says() {
    let disk = prepared(1);
    let before = disk.call_counts();
    assert!(one_of_each(&disk).iter().all(|(_, succeeded)| *succeeded));
    let sites = disk.call_counts().changes() - before.changes();
    assert_eq!(sites, Call::ALL.iter().filter(|call| call.is_change()).count() as u64);
    assert_eq!(disk.call_counts().total() - before.total(), Call::ALL.len() as u64);
    let mut struck = Vec::new();
    for site in 1..=sites {
        let disk = prepared(1);
        disk.fail_at(site, Fault::InputOutput);
        let failed: Vec<Call> =
            one_of_each(&disk).into_iter().filter(|(_, ok)| !ok).map(|(call, _)| call).collect();
        assert_eq!(failed.len(), 1, "site {site}: {failed:?}");
        assert!(failed[0].is_change());
        struck.extend(failed);
    }
    struck.sort_unstable();
    struck.dedup();
    assert_eq!(struck.len() as u64, sites, "every kind of change was struck");
    let disk = prepared(1);
    disk.fail_at(sites + 1, Fault::InputOutput);
    assert!(one_of_each(&disk).iter().all(|(_, succeeded)| *succeeded));
}

#[test]
fn a_lasting_fault_ends_when_cleared() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "f");
    disk.inject(FaultPlan {
        calls: vec![Call::Write],
        nth: 2,
        fault: Fault::DiskFull,
        lasts: Lasts::UntilCleared,
    });
    file.write_at(b"one", 0).expect("before the fault");
    for _ in 0..3 {
        let error = file.write_at(b"two", 0).expect_err("injected");
        assert!(error.is_disk_full(), "{error}");
    }
    disk.clear_faults();
    file.write_at(b"two", 0).expect("cleared");
}

#[test]
fn a_failed_write_leaves_a_part() {
    let mut lens = Vec::new();
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "f");
        file.write_at(&[1; 100], 0).expect("write");
        disk.fail_at(1, Fault::InputOutput);
        let error = file.write_at(&[2; 10_000], 50).expect_err("injected");
        assert!(!error.is_disk_full());
        let found = read_all(&disk, Path::new("f")).expect("readable");
        let part = found.iter().filter(|byte| **byte == 2).count();
        assert!(part < 10_000);
        assert!(found[..50].iter().all(|byte| *byte == 1), "bytes before are untouched");
        assert!(found[50..50 + part].iter().all(|byte| *byte == 2), "the part is the beginning");
        assert_eq!(found.len(), 100.max(50 + part));
        lens.push(part);
        file.write_at(&[3; 10_000], 50).expect("a failed write poisons nothing");
    }
    lens.sort_unstable();
    lens.dedup();
    assert!(lens.len() > 25, "the part varies");
}

#[test]
fn a_failed_flush_poisons_the_file_under_every_name_and_handle() {
    for fault in [Fault::DiskFull, Fault::InputOutput] {
        let disk = SimDisk::new(1);
        let file = create(&disk, "f");
        file.write_at(b"bytes", 0).expect("write");
        disk.fail_at(1, fault);
        let error = file.sync().expect_err("injected");
        assert_eq!(error.is_disk_full(), fault == Fault::DiskFull);
        disk.rename(Path::new("f"), Path::new("g")).expect("rename");
        let again =
            disk.open(Path::new("g"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
        for handle in [&file, &again] {
            assert!(handle.write_at(b"x", 0).is_err());
            assert!(handle.sync().is_err());
            assert!(handle.set_len(1).is_err());
            let error = handle.allocate(1).expect_err("poisoned");
            assert!(error.to_string().contains("an earlier flush of it failed"), "{error}");
            assert_eq!(handle.len().expect("reads go on"), 5);
        }
        // A new file of the same name is not the one whose flush has failed.
        disk.remove(Path::new("g")).expect("remove");
        create(&disk, "g").sync().expect("flush");
    }
}

#[test]
fn a_failed_flush_of_a_directory_is_not_retried() {
    let disk = SimDisk::new(1);
    create(&disk, "f");
    disk.fail_at(1, Fault::InputOutput);
    disk.sync_dir(Path::new(ROOT)).expect_err("injected");
    let error = disk.sync_dir(Path::new(ROOT)).expect_err("poisoned");
    assert!(error.to_string().contains("an earlier flush of it failed"), "{error}");
    let there = |after: SimDisk| after.exists(Path::new("f")).expect("alive");
    let outcomes: Vec<bool> = (0..100).map(|seed| there(disk.crash_image(seed))).collect();
    assert!(outcomes.contains(&true) && outcomes.contains(&false));
}

#[test]
fn replacing_a_file_under_every_error_keeps_the_old_or_has_the_new() {
    let path = Path::new("MANIFEST");
    for fault in [Fault::DiskFull, Fault::InputOutput] {
        for site in 1..=6 {
            for seed in 0..30 {
                let disk = SimDisk::new(seed);
                write_file_durably(&disk, path, b"old").expect("first version");
                disk.fail_at(site, fault);
                write_file_durably(&disk, path, b"new").expect_err("injected");
                let found = read_all(&disk, path).expect("never missing");
                let renamed = site == 6;
                assert_eq!(found, if renamed { b"new" } else { b"old" }, "{fault:?} at {site}");
                assert!(!disk.exists(Path::new("MANIFEST.next")).expect("alive"));
                let after = read_all(&disk.crash_image(seed), path).expect("never missing");
                assert!(after == b"old" || (renamed && after == b"new"));
                let retried = write_file_durably(&disk, path, b"newer");
                assert_eq!(retried.is_err(), renamed, "only the directory stays failed");
            }
        }
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_resumes() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(3 * 4096));
    let (one, two) = (create(&disk, "one"), create(&disk, "two"));
    one.write_at(&[1; 4096], 0).expect("fits");
    two.allocate(4096 + 1).expect("fits exactly");
    assert_eq!(disk.used_bytes(), 3 * 4096);
    let space = disk.space().expect("alive");
    assert_eq!(space, Some(Space { free_bytes: 0, total_bytes: 3 * 4096 }));
    two.write_at(&[2; 8192], 0).expect("reserved space is there");
    one.write_at(&[3; 4096], 0).expect("overwriting takes no space");
    let error = one.write_at(&[4; 4096], 100).expect_err("full");
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(one.len().expect("alive"), 4096, "what fitted was written");
    assert!(one.allocate(4097).expect_err("full").is_disk_full());
    assert_eq!(one.len().expect("alive"), 4096);
    one.sync().expect("a full disk still flushes");

    // Space comes back by removal, once the last handle is gone, by cutting, and from outside.
    disk.remove(Path::new("two")).expect("remove");
    assert_eq!(disk.used_bytes(), 3 * 4096);
    drop(two);
    assert_eq!(disk.used_bytes(), 4096);
    one.write_at(&[4; 8192], 100).expect("fits again");
    one.set_len(10).expect("cut");
    assert_eq!(disk.used_bytes(), 4096);
    disk.set_capacity(Some(0));
    one.write_at(&[5; 4096], 0).expect("what it has it keeps");
    one.write_at(&[5; 1], 4096).expect_err("full");
    disk.set_capacity(None);
    assert_eq!(disk.space().expect("alive"), None);
    one.write_at(&[5; 1 << 20], 4096).expect("no end");
    // A crash keeps the limit and counts what is left.
    disk.set_capacity(Some(1 << 30));
    one.sync().expect("flush");
    disk.sync_dir(Path::new(ROOT)).expect("flush names");
    assert_eq!(disk.crash(1).used_bytes(), (1 << 20) + 4096);
}

#[test]
fn reserving_counts_only_what_is_not_there() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "f");
    file.write_at(&[1], 2 * 4096).expect("write");
    disk.set_capacity(Some(4 * 4096));
    file.allocate(4 * 4096).expect("three pages are missing, three are free");
    assert_eq!(disk.used_bytes(), 4 * 4096);
    file.write_at(&[2; 4 * 4096], 0).expect("reserved");
    assert_eq!(disk.used_bytes(), 4 * 4096);
    assert!(file.allocate(4 * 4096 + 1).expect_err("full").is_disk_full());
}
