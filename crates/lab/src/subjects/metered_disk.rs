//! A disk that counts what is written, and writes at a rate that can be set.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_io::{
    Caching, Clock, Disk, DiskFile, DiskLock, DiskResult, OpenMode, RealClock, RealDisk,
    SharedLock, Space,
};

/// Lost time that the disk makes up for, since sleeps end late.
const LATE_NS_MAX: u64 = 10_000_000;

/// What a disk has written, and its rate.
#[derive(Debug, Default)]
pub(crate) struct DiskMeter {
    /// Bytes written.
    written: AtomicU64,
    /// Bytes per second; 0 for as fast as the device.
    rate: AtomicU64,
    /// When the disk has written all that it was given before.
    free_at_ns: Mutex<u64>,
}

impl DiskMeter {
    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        // Relaxed: a count.
        self.written.load(Relaxed)
    }

    /// From here on the disk writes at this rate, in bytes per second. 0 stands for as fast as it can.
    pub(crate) fn set_rate(&self, bytes_per_s: u64) {
        // Relaxed: a setting.
        self.rate.store(bytes_per_s, Relaxed);
    }

    /// Waits until a disk of the rate has written so many further bytes, behind all others.
    fn write(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
        let rate = self.rate.load(Relaxed);
        if rate == 0 {
            return;
        }
        let now_ns = RealClock.monotonic_ns();
        let mut free_at_ns = self.free_at_ns.lock();
        let begin_ns = (*free_at_ns).max(now_ns.saturating_sub(LATE_NS_MAX));
        *free_at_ns = begin_ns + bytes * 1_000_000_000 / rate;
        let wait_ns = free_at_ns.saturating_sub(now_ns);
        drop(free_at_ns);
        RealClock.sleep(Duration::from_nanos(wait_ns));
    }
}

/// The disk below a directory, with a meter.
#[derive(Debug)]
pub(crate) struct MeteredDisk {
    disk: RealDisk,
    meter: Arc<DiskMeter>,
}

impl MeteredDisk {
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn new(dir: &Path, meter: Arc<DiskMeter>) -> DiskResult<Self> {
        Ok(Self { disk: RealDisk::new(dir)?, meter })
    }
}

#[derive(Debug)]
struct MeteredFile {
    file: Arc<dyn DiskFile>,
    meter: Arc<DiskMeter>,
}

impl Disk for MeteredDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let (file, meter) = (self.disk.open(path, mode, caching)?, self.meter.clone());
        Ok(Arc::new(MeteredFile { file, meter }))
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.disk.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        self.disk.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.disk.lock_shared(path)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        self.disk.space()
    }
    fn describe(&self, path: &Path) -> PathBuf {
        self.disk.describe(path)
    }
}

impl DiskFile for MeteredFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.file.write_at(buf, offset)?;
        self.meter.write(buf.len() as u64);
        Ok(())
    }
    fn sync(&self) -> DiskResult<()> {
        self.file.sync()
    }
    fn len(&self) -> DiskResult<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.file.allocate(len)
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}
