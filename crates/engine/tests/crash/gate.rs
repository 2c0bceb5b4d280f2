//! A disk on which the reads of a load wait until they are let pass. Those of other threads go on, unless
//! they are held, too.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{Caching, Disk, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space};

/// Holds the reads of a load until they are let pass.
#[derive(Debug, Default)]
pub(crate) struct ReadGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    permits: usize,
    /// Reads of the load that have passed.
    passed: usize,
    /// How the names of other threads begin whose reads wait.
    held: Vec<&'static str>,
    /// Reads of these threads that wait.
    waiting: usize,
}

impl ReadGate {
    /// Waits for a permit, on a thread that reads for a load.
    fn pass(&self) {
        let is_named = |prefix: &str| {
            std::thread::current().name().is_some_and(|name| name.starts_with(prefix))
        };
        let mut state = self.state.lock();
        if state.held.iter().any(|prefix| is_named(prefix)) {
            state.waiting += 1;
            self.changed.notify_all();
            while !state.held.is_empty() {
                self.changed.wait(&mut state);
            }
            state.waiting -= 1;
            return;
        }
        if !is_named("read-") {
            return;
        }
        while !state.is_open && state.permits == 0 {
            self.changed.wait(&mut state);
        }
        state.permits = state.permits.saturating_sub(1);
        state.passed += 1;
    }

    pub(crate) fn let_pass(&self, reads: usize) {
        self.state.lock().permits += reads;
        self.changed.notify_all();
    }

    /// Has the reads of other threads wait, too, whose names begin so.
    pub(crate) fn hold(&self, threads: &'static str) {
        self.state.lock().held.push(threads);
    }

    /// Waits until so many reads of these threads wait.
    pub(crate) fn await_held(&self, reads: usize) {
        let mut state = self.state.lock();
        while state.waiting < reads {
            self.changed.wait(&mut state);
        }
    }

    /// Lets the reads of the other threads go on.
    pub(crate) fn release(&self) {
        self.state.lock().held.clear();
        self.changed.notify_all();
    }

    /// Whether so many reads of the load have passed.
    pub(crate) fn has_passed(&self, reads: usize) -> bool {
        self.state.lock().passed >= reads
    }

    pub(crate) fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }
}

#[derive(Debug)]
pub(crate) struct GatedDisk(pub(crate) Arc<dyn Disk>, pub(crate) Arc<ReadGate>);

#[derive(Debug)]
struct GatedFile(Arc<dyn DiskFile>, Arc<ReadGate>);

impl Disk for GatedDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let file = self.0.open(path, mode, caching)?;
        Ok(Arc::new(GatedFile(file, self.1.clone())))
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.0.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.0.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.0.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.0.remove(path)
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.0.sync_dir(path)
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
}

impl DiskFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.1.pass();
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.0.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> DiskResult<()> {
        self.0.write_vectored_at(bufs, offset)
    }
    fn sync(&self) -> DiskResult<()> {
        self.0.sync()
    }
    fn len(&self) -> DiskResult<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.0.allocate(len)
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}
