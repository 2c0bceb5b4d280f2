//! Cancellation of a piece of work that reads a disk.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use stillpoint_mem::Target;

use crate::disk::{
    Caching, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space,
};

/// The work goes on, and may be cancelled.
const OPEN: u8 = 0;
/// The work is to end.
const CANCELLED: u8 = 1;
/// The work has passed the point up to which it may be cancelled.
const SEALED: u8 = 2;

/// A handle to cancel one piece of work. Clones share the state.
///
/// ```
/// use stillpoint_io::Cancel;
/// let cancel = Cancel::default();
/// assert!(cancel.seal()); // from here on the work is done to its end
/// cancel.cancel();
/// assert!(!cancel.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicU8>);

impl Cancel {
    /// Asks for the end of the work, unless it is [sealed](Self::seal).
    pub fn cancel(&self) {
        // Relaxed: the state guards no other memory.
        let _ = self.0.compare_exchange(OPEN, CANCELLED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the work is to end.
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: partner of the exchange in `cancel`.
        self.0.load(Ordering::Relaxed) == CANCELLED
    }

    /// Ends the time in which the work can be cancelled. Returns false if it is cancelled already.
    pub fn seal(&self) -> bool {
        // Relaxed: one exchange decides between this call and `cancel`.
        let sealed = self.0.compare_exchange(OPEN, SEALED, Ordering::Relaxed, Ordering::Relaxed);
        sealed != Err(CANCELLED)
    }
}

/// A disk whose calls, and those of its files, fail once the work is cancelled. So a reader ends
/// soon, in the same way as after any failure of the disk.
#[derive(Debug)]
pub struct CancellableDisk {
    disk: Arc<dyn Disk>,
    cancel: Cancel,
}

impl CancellableDisk {
    /// A disk for one piece of work.
    pub fn new(disk: Arc<dyn Disk>, cancel: Cancel) -> Self {
        Self { disk, cancel }
    }

    fn check(&self, op: &str, path: &Path) -> DiskResult<()> {
        check(&self.cancel, op, || self.disk.describe(path))
    }
}

fn check(cancel: &Cancel, op: &str, path: impl FnOnce() -> PathBuf) -> DiskResult<()> {
    if cancel.is_cancelled() {
        return Err(DiskError::new(op, path(), io::Error::other("the work was cancelled")));
    }
    Ok(())
}

impl Disk for CancellableDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        self.check("open", path)?;
        let file = self.disk.open(path, mode, caching)?;
        Ok(Arc::new(CancellableFile { file, cancel: self.cancel.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.check("create directory", path)?;
        self.disk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.check("list", path)?;
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.check("look for", path)?;
        self.disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.check("rename", from)?;
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.check("remove", path)?;
        self.disk.remove(path)
    }
    fn remove_soon(&self, path: &Path) -> DiskResult<()> {
        self.check("remove", path)?;
        self.disk.remove_soon(path)
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.check("flush directory", path)?;
        self.disk.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        self.check("lock", path)?;
        self.disk.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.check("lock", path)?;
        self.disk.lock_shared(path)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        self.disk.space()
    }
    fn describe(&self, path: &Path) -> PathBuf {
        self.disk.describe(path)
    }
    fn simulation_seed(&self) -> Option<u64> {
        self.disk.simulation_seed()
    }
}

#[derive(Debug)]
struct CancellableFile {
    file: Arc<dyn DiskFile>,
    cancel: Cancel,
}

impl CancellableFile {
    fn check(&self, op: &str) -> DiskResult<()> {
        check(&self.cancel, op, || self.file.path().to_owned())
    }
}

impl DiskFile for CancellableFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.check("read")?;
        self.file.read_at(buf, offset)
    }
    fn read_into(&self, target: &Target, offset: u64) -> DiskResult<usize> {
        self.check("read")?;
        self.file.read_into(target, offset)
    }
    fn descriptor(&self, writes: bool) -> DiskResult<Option<BorrowedFd<'_>>> {
        self.check("read or write")?;
        self.file.descriptor(writes)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.check("write")?;
        self.file.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> DiskResult<()> {
        self.check("write")?;
        self.file.write_vectored_at(bufs, offset)
    }
    fn sync(&self) -> DiskResult<()> {
        self.check("flush")?;
        self.file.sync()
    }
    fn len(&self) -> DiskResult<u64> {
        self.check("look at")?;
        self.file.len()
    }
    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.check("change the length of")?;
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.check("reserve space of")?;
        self.file.allocate(len)
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn a_cancelled_disk_and_its_files_do_nothing_more() {
        let cancel = Cancel::default();
        let sim = SimDisk::new(1);
        let disk = CancellableDisk::new(Arc::new(sim.clone()), cancel.clone());
        let file = disk.open(Path::new("a"), OpenMode::CreateNew, Caching::Buffered);
        let file = file.expect("nothing is cancelled yet");
        file.write_at(b"before", 0).expect("nor now");
        cancel.cancel();
        let calls = sim.call_counts().total();
        let refused = file.write_at(b"after", 0).expect_err("cancelled");
        assert_eq!(refused.to_string(), "write /sim/a: the work was cancelled");
        assert!(file.read_at(&mut [0; 3], 0).is_err() && file.sync().is_err());
        assert!(file.set_len(0).is_err() && file.allocate(9).is_err() && file.len().is_err());
        assert!(disk.list(Path::new("")).is_err() && disk.remove(Path::new("a")).is_err());
        assert!(disk.rename(Path::new("a"), Path::new("b")).is_err());
        assert_eq!(sim.call_counts().total(), calls, "no call reaches the disk");
        assert!(!cancel.seal(), "it is too late");
    }

    #[test]
    fn what_is_sealed_is_not_cancelled() {
        let cancel = Cancel::default();
        assert!(cancel.seal() && cancel.seal());
        cancel.cancel();
        assert!(!cancel.is_cancelled());
    }
}
