//! Files in a directory of this machine.

#![expect(clippy::disallowed_methods, reason = "this is the disk that the lint points to")]

#[cfg(not(any(loom, shuttle)))]
#[expect(unsafe_code, reason = "the system writes by address, see the notes there")]
mod by_address;
mod file;
mod removal;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use self::file::RealFile;
use crate::clock::{Clock, RealClock};
use crate::disk::{
    Caching, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space, parts,
    poisoned,
};

/// The log reports a flush that takes this long. A healthy disk needs some milliseconds.
const SLOW_FLUSH_NS: u64 = 500_000_000;

/// A disk over a directory of this machine.
///
/// The disk remembers failed flushes by path for the life of this value. A rename moves the mark
/// with the file, and a removal ends it.
#[derive(Debug)]
pub struct RealDisk {
    /// The absolute path of the disk's root.
    root: PathBuf,
    /// One entry for each file opened and directory flushed, by path below the root. Held while
    /// names change, so that a mark stays with its file.
    flushes: Mutex<BTreeMap<PathBuf, Arc<FlushState>>>,
    /// Large files without a name for whose blocks nobody waits.
    freeing: removal::Freeing,
}

/// Whether a flush of this file or directory has failed.
#[derive(Debug, Default)]
struct FlushState {
    failed: AtomicBool,
    /// The open handle of a flushed directory, so that the next flush needs no new descriptor.
    directory: Mutex<Option<Arc<File>>>,
    /// Whether a directory was flushed before.
    was_flushed: AtomicBool,
    /// Lock held during a flush. The kernel reports a failed write-back to one caller only. A
    /// concurrent second caller would get no error.
    one_at_a_time: Mutex<()>,
}

impl FlushState {
    fn check(&self) -> io::Result<()> {
        // Acquire: pairs with the Release below, so that a thread that learns of the failure comes
        // after it.
        if self.failed.load(Ordering::Acquire) { Err(poisoned()) } else { Ok(()) }
    }

    /// The directory of that name. A directory whose handle is kept and that still has the name needs no
    /// further descriptor. `keeps` says that the handle is kept from the first flush on. Otherwise it is
    /// kept from the second one on: a directory that is flushed once, and lives long, takes no descriptor.
    fn directory(&self, path: &Path, keeps: bool) -> io::Result<Arc<File>> {
        let named = std::fs::metadata(path)?;
        if !named.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let mut open = self.directory.lock();
        if let Some(open) = &*open {
            let found = open.metadata()?;
            if (found.dev(), found.ino()) == (named.dev(), named.ino()) {
                return Ok(open.clone());
            }
        }
        let found = Arc::new(File::open(path)?);
        // Relaxed: a hint. A second thread at worst opens the directory once more.
        if keeps || self.was_flushed.swap(true, Ordering::Relaxed) {
            *open = Some(found.clone());
        }
        Ok(found)
    }

    /// Flushes the file or directory at `path`, unless a flush of it has failed before. Remembers a
    /// failure, and reports a slow flush.
    fn flush(&self, path: &Path, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _turn = self.one_at_a_time.lock();
        self.check()?;
        let start_ns = RealClock.monotonic_ns();
        // Release: pairs with the Acquire above.
        let flushed = flush().inspect_err(|_| self.failed.store(true, Ordering::Release));
        let took_ns = RealClock.monotonic_ns() - start_ns;
        if let Err(error) = &flushed {
            tracing::error!(path = %path.display(), %error, "a flush has failed");
        } else if took_ns >= SLOW_FLUSH_NS {
            let ms = took_ns / 1_000_000;
            tracing::warn!(path = %path.display(), ms, "the disk is slow: a flush took long");
        }
        flushed
    }
}

impl RealDisk {
    /// A disk whose paths lie below `root`, which is created if it is missing.
    ///
    /// ```
    /// use std::path::Path;
    /// use stillpoint_io::{Caching, Disk, OpenMode, RealDisk};
    /// # let scratch = tempfile::tempdir().unwrap();
    /// let disk = RealDisk::new(scratch.path().join("data"))?;
    /// let file = disk.open(Path::new("log"), OpenMode::CreateNew, Caching::Buffered)?;
    /// file.write_at(b"hello", 0)?;
    /// file.sync()?; // the contents are durable
    /// disk.sync_dir(Path::new(""))?; // and now the name is too
    /// # Ok::<(), stillpoint_io::DiskError>(())
    /// ```
    ///
    /// # Errors
    /// When the directory cannot be created, or the path is a file.
    pub fn new(root: impl AsRef<Path>) -> DiskResult<Self> {
        let given = root.as_ref();
        let fail = |op, source| DiskError::new(op, given, source);
        let root = std::path::absolute(given).map_err(|e| fail("resolve", e))?;
        std::fs::create_dir_all(&root).map_err(|e| fail("create directory", e))?;
        Ok(Self { root, flushes: Mutex::default(), freeing: removal::Freeing::default() })
    }

    /// The path below the root, cleaned, and the absolute one.
    fn resolve(&self, op: &str, path: &Path) -> DiskResult<(PathBuf, PathBuf)> {
        let relative: PathBuf = parts(path)
            .map_err(|source| DiskError::new(op, self.root.join(path), source))?
            .iter()
            .collect();
        let absolute = if relative.as_os_str().is_empty() {
            self.root.clone()
        } else {
            self.root.join(&relative)
        };
        Ok((relative, absolute))
    }

    /// Removes a file, or a directory with all that it has.
    /// `soon` says that nobody waits for the blocks of large files.
    fn remove_all(&self, relative: &Path, absolute: &Path, soon: bool) -> io::Result<()> {
        let is_dir = match std::fs::symlink_metadata(absolute) {
            Err(error) if is_absent(&error) => false,
            found => found?.is_dir(),
        };
        if is_dir {
            for entry in std::fs::read_dir(absolute)? {
                let name = entry?.file_name();
                self.remove_all(&relative.join(&name), &absolute.join(&name), soon)?;
            }
        }
        let mut flushes = self.flushes.lock();
        let removed = match is_dir {
            true => std::fs::remove_dir(absolute).map(|()| None),
            false => removal::unlink(absolute),
        };
        let nameless = match removed {
            Err(error) if !is_absent(&error) => return Err(error),
            removed => removed.ok().flatten(),
        };
        flushes.retain(|path, _| !path.starts_with(relative));
        drop(flushes);
        match nameless {
            Some(nameless) if soon => self.freeing.free(nameless),
            Some(nameless) => nameless.free(),
            None => {}
        }
        Ok(())
    }

    fn remove_with(&self, path: &Path, soon: bool) -> DiskResult<()> {
        let (relative, absolute) = self.resolve_entry("remove", path)?;
        self.remove_all(&relative, &absolute, soon)
            .map_err(|source| DiskError::new("remove", absolute, source))
    }

    /// Resolves a path as `resolve` does, but refuses the root itself.
    fn resolve_entry(&self, op: &str, path: &Path) -> DiskResult<(PathBuf, PathBuf)> {
        let (relative, absolute) = self.resolve(op, path)?;
        if relative.as_os_str().is_empty() {
            let why = io::Error::new(ErrorKind::InvalidInput, "this is the disk's root");
            return Err(DiskError::new(op, absolute, why));
        }
        Ok((relative, absolute))
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let (relative, absolute) = self.resolve("open", path)?;
        let op = if mode == OpenMode::CreateNew { "create" } else { "open" };
        let mut flushes = self.flushes.lock();
        let flush = flushes.get(&relative).cloned().unwrap_or_default();
        let file = RealFile::open(absolute.clone(), mode, caching, flush.clone())
            .map_err(|source| DiskError::new(op, absolute, source))?;
        flushes.insert(relative, flush);
        Ok(Arc::new(file))
    }

    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        let (_, absolute) = self.resolve("create directory", path)?;
        std::fs::create_dir_all(&absolute)
            .map_err(|source| DiskError::new("create directory", absolute, source))
    }

    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        let (_, absolute) = self.resolve("list", path)?;
        let names: io::Result<Vec<String>> = std::fs::read_dir(&absolute).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        });
        let mut names = names.map_err(|source| DiskError::new("list", absolute, source))?;
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> DiskResult<bool> {
        let (_, absolute) = self.resolve("look for", path)?;
        match std::fs::symlink_metadata(&absolute) {
            Ok(_) => Ok(true),
            Err(e) if is_absent(&e) => Ok(false),
            Err(source) => Err(DiskError::new("look for", absolute, source)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        let (from, from_absolute) = self.resolve_entry("rename", from)?;
        let (to, to_absolute) = self.resolve_entry("rename to", to)?;
        let mut flushes = self.flushes.lock();
        std::fs::rename(&from_absolute, &to_absolute).map_err(|source| {
            DiskError::new(
                format!("rename to {} the file", to_absolute.display()),
                from_absolute,
                source,
            )
        })?;
        if from != to {
            flushes.retain(|path, _| !path.starts_with(&to));
            for (path, state) in
                flushes.extract_if(.., |path, _| path.starts_with(&from)).collect::<Vec<_>>()
            {
                let below = path.strip_prefix(&from).unwrap_or(Path::new(""));
                let moved = if below.as_os_str().is_empty() { to.clone() } else { to.join(below) };
                flushes.insert(moved, state);
            }
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.remove_with(path, false)
    }

    fn remove_soon(&self, path: &Path) -> DiskResult<()> {
        self.remove_with(path, true)
    }

    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        let (relative, absolute) = self.resolve("flush directory", path)?;
        let fail = |source| DiskError::new("flush directory", absolute.clone(), source);
        let is_near_root = relative.components().count() <= 1;
        let state = self.flushes.lock().entry(relative).or_default().clone();
        let directory = state.directory(&absolute, is_near_root).map_err(fail)?;
        state.flush(&absolute, || directory.sync_all()).map_err(fail)
    }

    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        let (_, absolute) = self.resolve("lock", path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = open_regular(&mut options, &absolute);
        let file = file.map_err(|source| DiskError::new("lock", absolute.clone(), source))?;
        // flock belongs to the open file, so a second engine in this process is refused as well.
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(LockGuard { file, path: absolute }))),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(source)) => {
                Err(DiskError::new("lock", absolute, source))
            }
        }
    }

    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        let (_, absolute) = self.resolve("lock", path)?;
        let file = match open_regular(OpenOptions::new().read(true), &absolute) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(SharedLock::Absent),
            Err(source) => return Err(DiskError::new("lock", absolute, source)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(SharedLock::Held(Box::new(LockGuard { file, path: absolute }))),
            Err(std::fs::TryLockError::WouldBlock) => Ok(SharedLock::InUse),
            Err(std::fs::TryLockError::Error(source)) => {
                Err(DiskError::new("lock", absolute, source))
            }
        }
    }

    fn space(&self) -> DiskResult<Option<Space>> {
        let found = rustix::fs::statvfs(&self.root)
            .map_err(|error| DiskError::new("ask for the space of", &self.root, error.into()))?;
        Ok(Some(Space {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        }))
    }

    fn describe(&self, path: &Path) -> PathBuf {
        self.resolve("", path).map_or_else(|refused| refused.path, |(_, absolute)| absolute)
    }
}

/// Opens a file, which must be a regular one. A lock on a pipe or device protects nothing, and its
/// opening may wait for ever.
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file =
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file: remove it"));
    }
    Ok(file)
}

/// Whether the error says that the name, or a directory on the way to it, is missing.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Holds the lock until dropped.
struct LockGuard {
    file: File,
    /// The absolute path of the lock file.
    path: PathBuf,
}

impl DiskLock for LockGuard {
    fn is_in_place(&self) -> DiskResult<bool> {
        let fail = |source| DiskError::new("look for", &self.path, source);
        let locked = self.file.metadata().map_err(fail)?;
        match std::fs::metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (locked.dev(), locked.ino())),
            Err(e) if is_absent(&e) => Ok(false),
            Err(source) => Err(fail(source)),
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // The lock is released explicitly, since a forked child may still hold the descriptor. An
        // error is ignored, since closing the file releases the lock, too.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flush_that_waits_for_a_failing_one_fails_too() {
        let state = Arc::new(FlushState::default());
        let running = Arc::new(AtomicBool::new(false));
        let first = {
            let (state, running) = (state.clone(), running.clone());
            crate::spawn("first", move || {
                state.flush(Path::new("first"), || {
                    running.store(true, Ordering::Release);
                    RealClock.sleep(Duration::from_millis(20));
                    Err(io::Error::other("the only report of the failure"))
                })
            })
            .expect("thread starts")
        };
        // Acquire: pairs with the Release in the thread.
        while !running.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let second = state.flush(Path::new("second"), || Ok(()));
        assert!(second.is_err(), "the kernel would have said that all is well");
        assert!(first.join().expect("no panic").is_err());
    }
}
