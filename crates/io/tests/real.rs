//! Tests of the operating system's own refusals, which only the real disk shows.

use std::io::IoSlice;
use std::os::unix::fs::symlink;
use std::path::Path;

use stillpoint_io::{
    AlignedBuf, Caching, DIRECT_ALIGN, Disk, OpenMode, RealDisk, SimDisk, read_all,
    write_file_durably,
};

fn scratch() -> (tempfile::TempDir, RealDisk) {
    let scratch = tempfile::tempdir().expect("temporary directory");
    let disk = RealDisk::new(scratch.path().join("data")).expect("real disk");
    (scratch, disk)
}

#[test]
fn the_root_is_created_and_errors_name_absolute_paths() {
    let (scratch, disk) = scratch();
    let missing = Path::new("./log/none");
    let error = disk.open(missing, OpenMode::Read, Caching::Buffered).expect_err("missing");
    let named = scratch.path().join("data/log/none");
    assert!(error.is_not_found());
    assert_eq!(error.path, named);
    assert!(error.to_string().starts_with(&format!("open {}: ", named.display())), "{error}");
    assert_eq!(disk.describe(missing), named);
    for outside in ["/etc/hostname", "../x", "a/../../x"] {
        let error = disk
            .open(Path::new(outside), OpenMode::Read, Caching::Buffered)
            .expect_err("outside of the root");
        assert!(error.to_string().contains("relative to the disk's root"), "{error}");
    }
    disk.open(Path::new("file"), OpenMode::CreateNew, Caching::Buffered).expect("create");
    RealDisk::new(scratch.path().join("data/file")).expect_err("a file is no root");
}

#[test]
fn direct_and_buffered_handles_see_the_same_bytes() {
    let (_scratch, disk) = scratch();
    let path = Path::new("f");
    let direct = disk.open(path, OpenMode::CreateNew, Caching::Direct).expect("create");
    let buffered = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    let mut block = AlignedBuf::new();
    block.resize(3 * DIRECT_ALIGN, 7);
    direct.write_at(&block, DIRECT_ALIGN as u64).expect("direct write");
    buffered.write_at(b"ragged", 4 * DIRECT_ALIGN as u64).expect("buffered write");
    direct.sync().expect("flush");
    let bytes = read_all(&disk, path).expect("readable");
    assert_eq!(bytes.len(), 4 * DIRECT_ALIGN + 6);
    assert!(bytes[..DIRECT_ALIGN].iter().all(|byte| *byte == 0));
    assert_eq!(&bytes[DIRECT_ALIGN..4 * DIRECT_ALIGN], &*block);
    // A read past the ragged end returns the existing bytes.
    let mut around_end = AlignedBuf::zeroed(4 * DIRECT_ALIGN);
    let n = direct.read_at(&mut around_end, 3 * DIRECT_ALIGN as u64).expect("direct read");
    assert_eq!((n, &around_end[DIRECT_ALIGN..n]), (DIRECT_ALIGN + 6, &b"ragged"[..]));
    for (buf, offset) in [(&block[1..], 0), (&block[..100], 0), (&block[..], 7)] {
        let error = direct.write_at(buf, offset).expect_err("not aligned");
        assert!(error.to_string().contains("use AlignedBuf"), "{error}");
    }
}

/// More buffers than the system takes in one call, empty ones among them, on both disks.
#[test]
fn buffers_are_written_behind_each_other() {
    let (_scratch, real) = scratch();
    let sim = SimDisk::new(1);
    let path = Path::new("f");
    for (caching, unit) in [(Caching::Direct, DIRECT_ALIGN), (Caching::Buffered, 7)] {
        let mut all = AlignedBuf::zeroed(2500 * unit);
        for (at, byte) in all.iter_mut().enumerate() {
            *byte = (at / unit % 251) as u8;
        }
        let mut slices: Vec<IoSlice<'_>> = all.chunks(unit).map(IoSlice::new).collect();
        slices.insert(0, IoSlice::new(&all[..0]));
        slices.insert(1100, IoSlice::new(&all[..0]));
        for disk in [&real as &dyn Disk, &sim] {
            let file = disk.open(path, OpenMode::CreateNew, caching).expect("create");
            file.write_vectored_at(&slices, unit as u64).expect("written");
            file.write_vectored_at(&[], 3 * unit as u64).expect("nothing to write");
            let found = read_all(disk, path).expect("readable");
            assert!(found[..unit].iter().all(|byte| *byte == 0));
            assert_eq!(&found[unit..], &*all);
            let error = file.write_vectored_at(&slices, u64::MAX - 8).expect_err("far outside");
            assert!(error.to_string().contains("write"), "{error}");
            disk.remove(path).expect("removed");
        }
    }
    let direct = real.open(path, OpenMode::CreateNew, Caching::Direct).expect("create");
    let block = AlignedBuf::zeroed(2 * DIRECT_ALIGN);
    let ragged = [IoSlice::new(&block[..DIRECT_ALIGN]), IoSlice::new(&block[..100])];
    let error = direct.write_vectored_at(&ragged, 0).expect_err("not aligned");
    assert!(error.to_string().contains("use AlignedBuf"), "{error}");
    assert_eq!(direct.len().expect("measured"), 0, "nothing was written");
}

/// procfs has no `O_DIRECT`.
#[cfg(target_os = "linux")]
#[test]
fn a_file_system_that_refuses_direct_access_is_read_through_the_cache() {
    let (scratch, disk) = scratch();
    symlink("/proc/version", scratch.path().join("data/version")).expect("link");
    let read = |caching| {
        let file = disk.open(Path::new("version"), OpenMode::Read, caching).expect("open");
        let mut buf = AlignedBuf::zeroed(DIRECT_ALIGN);
        let n = file.read_at(&mut buf, 0).expect("read");
        buf[..n].to_vec()
    };
    let bytes = read(Caching::Direct);
    assert!(bytes.starts_with(b"Linux"));
    assert_eq!(bytes, read(Caching::Buffered));
}

/// A lock on a pipe protects nothing, and the opening of a pipe may wait for ever.
#[test]
fn only_a_regular_file_is_locked() {
    use rustix::fs::{FileType, Mode, mknodat};
    let (scratch, disk) = scratch();
    let root = scratch.path().join("data");
    mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .expect("a pipe");
    std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
    symlink("/dev/null", root.join("device")).expect("a link");
    for name in ["pipe", "socket", "device"] {
        let path = Path::new(name);
        for error in [disk.lock(path).err(), disk.lock_shared(path).err()] {
            let text = error.unwrap_or_else(|| panic!("{name} is locked")).to_string();
            assert!(text.starts_with(&format!("lock {}: ", root.join(name).display())), "{text}");
        }
    }
}

#[test]
fn a_second_lock_is_refused_until_the_first_is_dropped() {
    let (scratch, disk) = scratch();
    let path = Path::new("LOCK");
    let lock = disk.lock(path).expect("lock").expect("free");
    assert!(disk.lock(path).expect("lock").is_none());
    let other = RealDisk::new(scratch.path().join("data")).expect("the same place");
    assert!(other.lock(path).expect("lock").is_none());
    drop(lock);
    let lock = other.lock(path).expect("lock");
    assert!(lock.is_some() && disk.lock(path).expect("lock").is_none());
}

#[test]
fn a_device_has_space() {
    let (_scratch, disk) = scratch();
    let space = disk.space().expect("the system tells").expect("and knows");
    assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0, "{space:?}");
}

/// `/dev/full` refuses every byte with "no space left", and flushes with "invalid argument".
#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_told_from_other_errors() {
    let (scratch, disk) = scratch();
    symlink("/dev/full", scratch.path().join("data/full")).expect("link");
    let file = disk.open(Path::new("full"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    let error = file.write_at(b"x", 0).expect_err("full");
    assert!(error.is_disk_full(), "{error}");
    let error = file.write_at(b"x", u64::MAX).expect_err("beyond any file");
    assert!(!error.is_disk_full() && error.to_string().contains("largest file size"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_flush_poisons_the_path() {
    let (scratch, disk) = scratch();
    let link = scratch.path().join("data/f");
    symlink("/dev/full", &link).expect("link");
    let (f, g) = (Path::new("f"), Path::new("g"));
    let file = disk.open(f, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    file.sync().expect_err("the device has no flush");
    let error = file.write_at(b"x", 0).expect_err("poisoned");
    assert!(error.to_string().contains("an earlier flush of it failed"), "{error}");
    drop(file);

    let refused = |path: &Path| {
        let file = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("open");
        let error = file.write_at(b"x", 0).expect_err("poisoned or full");
        assert_eq!(file.sync().is_err(), !error.is_disk_full());
        !error.is_disk_full()
    };
    assert!(refused(f), "reopened");
    disk.rename(f, g).expect("rename");
    assert!(refused(g), "renamed");
    disk.remove(g).expect("remove");
    let file = disk.open(g, OpenMode::CreateNew, Caching::Buffered).expect("create");
    file.write_at(b"x", 0).expect("another file of the same name");
    file.sync().expect("flush");
    // If a rename replaces a failed file, its failure does not pass on to the new file of the name.
    symlink("/dev/full", &link).expect("link");
    let bad = disk.open(f, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    bad.sync().expect_err("the device has no flush");
    disk.rename(g, f).expect("rename over it");
    file.write_at(b"y", 0).expect("the good file is good under its new name");
    assert!(bad.write_at(b"x", 0).is_err());
    let reopened = disk.open(f, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    reopened.sync().expect("flush");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_this_disk_never_opened_may_replace_a_poisoned_one() {
    let (scratch, disk) = scratch();
    symlink("/dev/full", scratch.path().join("data/f")).expect("link");
    let other = RealDisk::new(scratch.path().join("data")).expect("the same place");
    write_file_durably(&other, Path::new("new"), b"bytes").expect("write");
    let path = Path::new("f");
    let bad = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    bad.sync().expect_err("the device has no flush");
    disk.rename(Path::new("new"), path).expect("rename");
    let good = disk.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("open");
    good.write_at(b"B", 0).expect("no mark of its own");
    good.sync().expect("flush");
}

#[test]
fn a_handle_for_reading_changes_nothing() {
    let (_scratch, real) = scratch();
    let disks: [&dyn Disk; 2] = [&real, &SimDisk::new(1)];
    for disk in disks {
        let path = Path::new("f");
        write_file_durably(disk, path, b"bytes").expect("write");
        let file = disk.open(path, OpenMode::Read, Caching::Buffered).expect("open");
        for refused in [file.write_at(b"x", 0), file.set_len(0), file.allocate(99)] {
            let error = refused.expect_err("reads only");
            assert!(error.to_string().ends_with("the file was opened for reads only"), "{error}");
        }
        assert_eq!(read_all(disk, path).expect("readable"), b"bytes");
        assert_eq!(disk.list(Path::new("")).expect("list"), ["f"]);
    }
}

/// Directories that are flushed once, as those of checkpoints are, take no descriptor afterwards. Those
/// near the root, and those that are flushed again and again, need no new one.
#[test]
fn few_directories_stay_open() {
    let (scratch, disk) = scratch();
    let kept = || -> Vec<std::path::PathBuf> {
        let links = std::fs::read_dir("/proc/self/fd").expect("Linux");
        let link = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_link(entry.expect("a descriptor").path()).ok()
        };
        let mut kept: Vec<_> =
            links.filter_map(link).filter(|to| to.starts_with(scratch.path())).collect();
        kept.sort();
        kept
    };
    for number in 0..40 {
        let dir = format!("checkpoint/{number}");
        disk.create_dir_all(Path::new(&dir)).expect("a directory");
        disk.sync_dir(Path::new(&dir)).expect("flushes");
    }
    assert_eq!(kept(), Vec::<std::path::PathBuf>::new());
    disk.create_dir_all(Path::new("log/000")).expect("a directory");
    for dir in ["", "checkpoint", "log/000", "log/000"] {
        disk.sync_dir(Path::new(dir)).expect("flushes");
    }
    let root = scratch.path().join("data");
    assert_eq!(kept(), [root.clone(), root.join("checkpoint"), root.join("log/000")]);
}
