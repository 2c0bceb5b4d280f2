//! Tests that the same calls have the same results on the simulated disk and on the real one.

use std::path::Path;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use stillpoint_io::{
    AlignedBuf, Caching, DIRECT_ALIGN, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode,
    RealDisk, SharedLock, SimDisk, read_all,
};

const PATHS: [&str; 12] =
    ["a", "b", "d", "d/a", "d/b", "d/f", "d/f/a", "e", "e/a", "a/under-a-file", "", "../outside"];
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Open { slot: usize, path: &'static str, mode: OpenMode, caching: Caching },
    Close { slot: usize },
    Write { slot: usize, offset: u64, len: usize, fill: u8 },
    Read { slot: usize, offset: u64, len: usize },
    SetLen { slot: usize, len: u64 },
    Allocate { slot: usize, len: u64 },
    Len { slot: usize },
    Sync { slot: usize },
    CreateDir { path: &'static str },
    List { path: &'static str },
    Exists { path: &'static str },
    Rename { from: &'static str, to: &'static str },
    Remove { path: &'static str },
    SyncDir { path: &'static str },
    Lock { slot: usize, path: &'static str },
    LockShared { slot: usize, path: &'static str },
    Unlock { slot: usize },
}

/// Ragged numbers, and multiples of what direct I/O needs.
fn bytes(max: u64) -> impl Strategy<Value = u64> {
    let align = DIRECT_ALIGN as u64;
    prop_oneof![0..max, (0..=max / align).prop_map(move |n| n * align)]
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::sample::select(&PATHS[..]);
    let slot = || 0..SLOTS;
    let mode = prop::sample::select(vec![OpenMode::Read, OpenMode::ReadWrite, OpenMode::CreateNew]);
    let caching = prop::sample::select(vec![Caching::Buffered, Caching::Buffered, Caching::Direct]);
    let len = || bytes(20_000).prop_map(|len| len as usize);
    prop_oneof![
        6 => (slot(), path(), mode, caching)
            .prop_map(|(slot, path, mode, caching)| Step::Open { slot, path, mode, caching }),
        1 => slot().prop_map(|slot| Step::Close { slot }),
        8 => (slot(), bytes(40_000), len(), any::<u8>())
            .prop_map(|(slot, offset, len, fill)| Step::Write { slot, offset, len, fill }),
        4 => (slot(), bytes(60_000), len())
            .prop_map(|(slot, offset, len)| Step::Read { slot, offset, len }),
        2 => (slot(), bytes(50_000)).prop_map(|(slot, len)| Step::SetLen { slot, len }),
        2 => (slot(), bytes(50_000)).prop_map(|(slot, len)| Step::Allocate { slot, len }),
        1 => slot().prop_map(|slot| Step::Len { slot }),
        1 => slot().prop_map(|slot| Step::Sync { slot }),
        4 => path().prop_map(|path| Step::CreateDir { path }),
        2 => path().prop_map(|path| Step::List { path }),
        1 => path().prop_map(|path| Step::Exists { path }),
        4 => (path(), path()).prop_map(|(from, to)| Step::Rename { from, to }),
        2 => path().prop_map(|path| Step::Remove { path }),
        1 => path().prop_map(|path| Step::SyncDir { path }),
        2 => (slot(), path()).prop_map(|(slot, path)| Step::Lock { slot, path }),
        2 => (slot(), path()).prop_map(|(slot, path)| Step::LockShared { slot, path }),
        1 => slot().prop_map(|slot| Step::Unlock { slot }),
    ]
}

/// One of the two sides, with its handles.
struct Side {
    disk: Box<dyn Disk>,
    files: [Option<Arc<dyn DiskFile>>; SLOTS],
    locks: [Option<Box<dyn DiskLock>>; SLOTS],
}

/// The properties of an error that a caller acts upon.
#[derive(Debug, PartialEq)]
struct Refusal {
    not_found: bool,
    disk_full: bool,
}

impl Side {
    fn new(disk: impl Disk + 'static) -> Self {
        Self { disk: Box::new(disk), files: Default::default(), locks: Default::default() }
    }

    /// Runs a step. Returns its result as text.
    fn run(&mut self, step: &Step) -> Result<String, Refusal> {
        self.try_run(step).map_err(|error: DiskError| Refusal {
            not_found: error.is_not_found(),
            disk_full: error.is_disk_full(),
        })
    }

    fn try_run(&mut self, step: &Step) -> DiskResult<String> {
        let file = |slot: usize| self.files[slot].clone();
        let done = |()| "done".to_owned();
        match *step {
            Step::Open { slot, path, mode, caching } => {
                self.files[slot] = Some(self.disk.open(Path::new(path), mode, caching)?);
                Ok("opened".to_owned())
            }
            Step::Close { slot } => {
                self.files[slot] = None;
                Ok("closed".to_owned())
            }
            Step::Write { slot, offset, len, fill } => {
                let mut buf = AlignedBuf::new();
                buf.resize(len, fill);
                file(slot).map_or(Ok(String::new()), |f| f.write_at(&buf, offset).map(done))
            }
            Step::Read { slot, offset, len } => {
                let mut buf = AlignedBuf::zeroed(len);
                file(slot).map_or(Ok(String::new()), |f| {
                    let n = f.read_at(&mut buf, offset)?;
                    Ok(format!("{n} {:?}", runs(&buf[..n])))
                })
            }
            Step::SetLen { slot, len } => {
                file(slot).map_or(Ok(String::new()), |f| f.set_len(len).map(done))
            }
            Step::Allocate { slot, len } => {
                file(slot).map_or(Ok(String::new()), |f| f.allocate(len).map(done))
            }
            Step::Len { slot } => {
                file(slot).map_or(Ok(String::new()), |f| f.len().map(|len| len.to_string()))
            }
            Step::Sync { slot } => file(slot).map_or(Ok(String::new()), |f| f.sync().map(done)),
            Step::CreateDir { path } => self.disk.create_dir_all(Path::new(path)).map(done),
            Step::List { path } => self.disk.list(Path::new(path)).map(|names| names.join(" ")),
            Step::Exists { path } => self.disk.exists(Path::new(path)).map(|is| is.to_string()),
            Step::Rename { from, to } => self.disk.rename(Path::new(from), Path::new(to)).map(done),
            Step::Remove { path } => self.disk.remove(Path::new(path)).map(done),
            Step::SyncDir { path } => self.disk.sync_dir(Path::new(path)).map(done),
            Step::Lock { slot, path } => {
                let lock = self.disk.lock(Path::new(path))?;
                let got = lock.is_some();
                if got {
                    self.locks[slot] = lock;
                }
                Ok(got.to_string())
            }
            Step::LockShared { slot, path } => {
                let found = self.disk.lock_shared(Path::new(path))?;
                let name = match &found {
                    SharedLock::Held(_) => "held",
                    SharedLock::Absent => "absent",
                    SharedLock::InUse => "in use",
                };
                if let SharedLock::Held(lock) = found {
                    self.locks[slot] = Some(lock);
                }
                Ok(name.to_owned())
            }
            Step::Unlock { slot } => {
                self.locks[slot] = None;
                Ok("unlocked".to_owned())
            }
        }
    }

    /// Every name below `path` with its contents.
    fn walk(&self, path: &Path, found: &mut Vec<String>) {
        for name in self.disk.list(path).expect("a directory") {
            let below = path.join(name);
            if self.disk.list(&below).is_ok() {
                found.push(format!("{}/", below.display()));
                self.walk(&below, found);
            } else {
                let bytes = read_all(&*self.disk, &below).expect("readable");
                found.push(format!("{} {:?}", below.display(), runs(&bytes)));
            }
        }
    }
}

/// Bytes as (value, how many) for short messages.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_disks_show_the_same(steps in vec(step(), 1..80), seed: u64) {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let mut real = Side::new(RealDisk::new(scratch.path()).expect("real disk"));
        let mut sim = Side::new(SimDisk::new(seed));
        for (number, step) in steps.iter().enumerate() {
            let (expected, got) = (real.run(step), sim.run(step));
            prop_assert_eq!(got, expected, "step {}: {:?}", number, step);
        }
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        real.walk(Path::new(""), &mut expected);
        sim.walk(Path::new(""), &mut got);
        prop_assert_eq!(got, expected);
    }
}
