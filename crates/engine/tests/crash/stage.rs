//! A disk and a clock that let a guest act while a checkpoint is under way.
//!
//! All sessions live on one thread, so nothing would commit between the begin of a checkpoint and
//! its publication. But the checkpoint calls the disk and the clock. In these calls a guest that
//! waits in [`while_visiting`] may commit. Such calls come before the phases, between them, and
//! after the capture until the MANIFEST is renamed.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{
    Caching, Clock, Disk, DiskFile, DiskLock, DiskResult, ManualClock, OpenMode, RealClock,
    RealDisk, SharedLock, SimDisk, Space,
};

/// A moment at which a guest may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// No other thread of the engine is active, and only the catalog's lock is held.
    Quiet,
    /// Between two phases. Part files may be being written.
    Phases,
}

/// A guest, which acts in the middle of a checkpoint.
pub(crate) trait Guest: std::any::Any + Send {
    fn act(&mut self, moment: Moment);
}

#[derive(Default)]
struct Visit {
    guest: Option<Box<dyn Guest>>,
    /// Between the publication that reserves the checkpoint's epoch, or the making of its directory,
    /// and the next call of the disk.
    in_phases: bool,
    /// The epoch is reserved.
    began: bool,
}

thread_local! {
    static VISIT: RefCell<Visit> = RefCell::default();
}

/// Lets the guest act while `run` runs.
pub(crate) fn while_visiting<R>(
    guest: Box<dyn Guest>,
    run: impl FnOnce() -> R,
) -> (R, Box<dyn Guest>) {
    let before = VISIT.replace(Visit { guest: Some(guest), ..Visit::default() });
    let result = run();
    let visit = VISIT.replace(before);
    (result, visit.guest.expect("a guest comes back from every act"))
}

/// Runs a closure on a thread of its own, and waits for it. On a thread inside a transaction the
/// engine refuses calls that wait for transactions. Here one thread stands for several, so such a
/// call needs another thread.
pub(crate) fn elsewhere<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let thread = stillpoint_io::spawn("elsewhere", run).expect("a thread");
    thread.join().unwrap_or_else(|panic| panic!("{panic}"))
}

fn ask(moment: Moment) {
    let guest = VISIT.with_borrow_mut(|visit| {
        if moment == Moment::Phases && !visit.in_phases { None } else { visit.guest.take() }
    });
    if let Some(mut guest) = guest {
        guest.act(moment);
        VISIT.with_borrow_mut(|visit| visit.guest = Some(guest));
    }
}

fn set_in_phases(in_phases: bool) {
    VISIT.with_borrow_mut(|visit| visit.in_phases = in_phases && visit.guest.is_some());
}

/// A MANIFEST is durable: the first one of a checkpoint reserves its epoch.
fn manifest_is_durable() {
    VISIT.with_borrow_mut(|visit| {
        visit.in_phases = visit.guest.is_some() && !visit.began;
        visit.began = true;
    });
}

/// A clock that moves by itself, and asks guests between the phases.
#[derive(Debug)]
pub(crate) struct StageClock {
    pub(crate) clock: ManualClock,
    /// Whether commits may happen between the phases.
    pub(crate) guests: bool,
}

impl Clock for StageClock {
    fn monotonic_ns(&self) -> u64 {
        if self.guests {
            ask(Moment::Phases);
        }
        self.clock.monotonic_ns()
    }
    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
    fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
        // A sleep waits for another thread, so it yields the processor.
        RealClock.sleep(Duration::from_micros(50));
    }
}

/// A simulated disk that asks guests at changes of a checkpoint's directory and of the MANIFEST.
#[derive(Debug)]
pub(crate) struct StageDisk(pub(crate) SimDisk);

impl StageDisk {
    fn before(&self, path: &Path) {
        set_in_phases(false);
        if path.starts_with("checkpoint") || path.ends_with("MANIFEST.next") {
            ask(Moment::Quiet);
        }
    }
}

impl Disk for StageDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        self.0.open(path, mode, caching)
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        let made = self.0.create_dir_all(path);
        set_in_phases(made.is_ok() && path.starts_with("checkpoint"));
        made
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.0.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.0.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.before(from);
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.before(path);
        self.0.remove(path)
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.before(path);
        let synced = self.0.sync_dir(path);
        if synced.is_ok() && path == Path::new("") {
            manifest_is_durable();
        }
        synced
    }
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        self.0.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.0.lock_shared(path)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        self.0.space()
    }
    fn describe(&self, path: &Path) -> PathBuf {
        self.0.describe(path)
    }
    fn simulation_seed(&self) -> Option<u64> {
        self.0.simulation_seed()
    }
}

/// Copies every file of a simulated disk to a directory.
pub(crate) fn copy(from: &SimDisk, dir: &Path) {
    let to = RealDisk::new(dir).expect("a directory");
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        if let Ok(names) = from.list(&path) {
            to.create_dir_all(&path).expect("a directory");
            todo.extend(names.iter().map(|name| path.join(name)));
            continue;
        }
        let file = from.open(&path, OpenMode::Read, Caching::Buffered).expect("a file");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        let mut read = 0;
        while read < bytes.len() {
            read += file.read_at(&mut bytes[read..], read as u64).expect("reads");
        }
        let copy = to.open(&path, OpenMode::CreateNew, Caching::Buffered).expect("a new file");
        copy.write_at(&bytes, 0).expect("writes");
    }
}
