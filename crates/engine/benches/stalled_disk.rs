//! Phases of a checkpoint while the disk of the logs stalls.
//!
//! `cargo bench -p stillpoint --bench stalled_disk -- [STALL_MS] [CHECKPOINTS]`: each flush of a
//! log takes STALL_MS (default 300), and two sessions write values of 16 KiB as fast as they may.
//! So commits wait for room in the logs nearly always. The phases up to the point of consistency
//! hold two grace periods. The time of these phases tells how long a grace period waits for such
//! commits.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::error::Error;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use stillpoint::{Config, Durability, Engine};
use stillpoint_io::{
    Caching, Clock, Disk, DiskFile, DiskLock, DiskResult, OpenMode, RealClock, RealDisk,
    SharedLock, Space,
};

/// Prefix of the paths of the logs' files.
const LOG_DIR: &str = "log/";
const KEYS: u64 = 1_000;
const VALUE_BYTES: usize = 16 << 10;
/// Bytes of a segment: far fewer than two sessions write during one stall, so that segments run
/// out.
const SEGMENT_BYTES: u64 = 4 << 20;

/// A disk whose flushes of logs take a while.
#[derive(Debug)]
struct StallingDisk {
    disk: RealDisk,
    stall: Arc<Stall>,
}

#[derive(Debug, Default)]
struct Stall {
    nanoseconds: AtomicU64,
    flushes: AtomicU64,
}

#[derive(Debug)]
struct StallingFile(Arc<dyn DiskFile>, Arc<Stall>);

impl Disk for StallingDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode, caching)?;
        if !path.starts_with(LOG_DIR) {
            return Ok(file);
        }
        Ok(Arc::new(StallingFile(file, self.stall.clone())))
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

impl DiskFile for StallingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.0.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> DiskResult<()> {
        self.0.write_vectored_at(bufs, offset)
    }
    fn sync(&self) -> DiskResult<()> {
        self.1.flushes.fetch_add(1, Relaxed);
        RealClock.sleep(Duration::from_nanos(self.1.nanoseconds.load(Relaxed)));
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let stall_ms: u64 = numbers.next().map_or(Ok(300), |text| text.parse())?;
    let checkpoints: usize = numbers.next().map_or(Ok(30), |text| text.parse())?;
    let home = tempfile::tempdir()?;
    let stall = Arc::new(Stall::default());
    let mut config = Config::new(home.path());
    config.checkpoint = "calc".to_owned();
    config.durability = Durability::Relaxed;
    config.log_segment_bytes = SEGMENT_BYTES;
    config.logs = 2;
    config.environment.disk =
        Some(Arc::new(StallingDisk { disk: RealDisk::new(home.path())?, stall: stall.clone() }));
    let engine = Engine::open(config)?;
    let table = engine.table("values")?;
    println!("stall_ms phases_median_us phases_worst_us flushes commits");
    for stall_ms in [0, stall_ms] {
        stall.nanoseconds.store(stall_ms * 1_000_000, Relaxed);
        let (flushes, commits) = (stall.flushes.load(Relaxed), engine.stats().commits);
        let stop = AtomicBool::new(false);
        let mut phases = std::thread::scope(|scope| -> Result<Vec<Duration>, Box<dyn Error>> {
            for writer in 0..2 {
                let (mut session, stop) = (engine.session()?, &stop);
                scope.spawn(move || {
                    let value = vec![7; VALUE_BYTES];
                    let mut key = writer;
                    while !stop.load(Relaxed) {
                        key = (key + 2) % KEYS;
                        let put =
                            session.transact(|tx| tx.put(table, &u64::to_be_bytes(key), &value));
                        put.expect("commits");
                    }
                });
            }
            let phases: Result<Vec<_>, _> = (0..checkpoints)
                .map(|_| engine.checkpoint().map(|done| done.consistency))
                .collect();
            stop.store(true, Relaxed);
            Ok(phases?)
        })?;
        phases.sort();
        println!(
            "{stall_ms:>8} {:>16} {:>15} {:>7} {:>7}",
            phases[phases.len() / 2].as_micros(),
            phases[phases.len() - 1].as_micros(),
            stall.flushes.load(Relaxed) - flushes,
            engine.stats().commits - commits,
        );
    }
    stall.nanoseconds.store(0, Relaxed);
    engine.close()?;
    Ok(())
}
