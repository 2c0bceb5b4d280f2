//! ⚠ unsafe lives here, in small documented blocks.
//!
//! Disk, clock, randomness and threads: the real ones and the simulated ones.
//! Nothing in this crate knows what the bytes mean.
//!
//! Every other crate reaches files, time, random numbers and threads through
//! these traits, so that production, power loss and fault injection run the
//! same engine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was being done to which file when the disk refused.
#[derive(Debug, thiserror::Error)]
#[error("{op} {}: {source}", path.display())]
pub struct DiskError {
    /// The operation, as a verb phrase: `"open"`, `"write 4096 bytes at 8192 of"`.
    pub op: String,
    /// The file or directory concerned.
    pub path: PathBuf,
    /// The operating system's (or the simulator's) reason.
    #[source]
    pub source: std::io::Error,
}

impl DiskError {
    /// True when the device has no space left; the caller may retry after space returns.
    pub fn is_disk_full(&self) -> bool {
        self.source.kind() == std::io::ErrorKind::StorageFull
    }
    /// True when the file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == std::io::ErrorKind::NotFound
    }
}

/// Result of a disk operation.
pub type DiskResult<T> = Result<T, DiskError>;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing file, reads only.
    Read,
    /// Existing file, reads and writes.
    ReadWrite,
    /// The file must not exist; it is created empty for reads and writes.
    CreateNew,
}

/// Whether writes and reads go through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache: small appends, metadata.
    Buffered,
    /// Past the page cache (`O_DIRECT` where the file system has it). Buffers,
    /// offsets and lengths must be multiples of [`DIRECT_ALIGN`].
    Direct,
}

/// Alignment in bytes of buffers, offsets and lengths for [`Caching::Direct`].
pub const DIRECT_ALIGN: usize = 4096;

/// A place where files live. Paths are relative to the disk's root.
///
/// A created, renamed or removed name is durable only after
/// [`sync_dir`](Disk::sync_dir) of its directory; file contents only after
/// [`DiskFile::sync`].
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>>;
    /// Creates a directory and its missing parents. Not durable before `sync_dir` of each parent.
    fn create_dir_all(&self, path: &Path) -> DiskResult<()>;
    /// Names of the entries of a directory (files and directories), sorted; a missing directory is an error.
    fn list(&self, path: &Path) -> DiskResult<Vec<String>>;
    /// True if a file or directory of that name is there.
    fn exists(&self, path: &Path) -> DiskResult<bool>;
    /// Renames a file, replacing the target atomically.
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()>;
    /// Removes a file, or a directory with everything in it. Missing is not an error.
    fn remove(&self, path: &Path) -> DiskResult<()>;
    /// Makes created, renamed and removed names in this directory durable.
    fn sync_dir(&self, path: &Path) -> DiskResult<()>;
    /// Takes the lock file at `path` (created if missing) until the guard is dropped;
    /// `None` if another process (or another engine on this disk) holds it.
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn Send + Sync>>>;
    /// The absolute path for messages.
    fn describe(&self, path: &Path) -> PathBuf;
}

/// An open file. All calls take `&self` and may run in parallel.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize>;
    /// Writes all of `buf`. After an error the file's content in that range is unspecified.
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()>;
    /// Makes the file's contents and length durable (`fdatasync`). After a failure every
    /// later call on this file fails too: a failed flush is never retried.
    fn sync(&self) -> DiskResult<()>;
    /// Length in bytes.
    fn len(&self) -> DiskResult<u64>;
    /// True if the file is empty.
    fn is_empty(&self) -> DiskResult<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> DiskResult<()>;
    /// Reserves space up to `len` and extends the length to it, reading as zeros, so that later
    /// writes below `len` change no metadata. Disk-full shows here.
    fn allocate(&self, len: u64) -> DiskResult<()>;
    /// The absolute path for messages.
    fn path(&self) -> &Path;
}

/// Time. The real clock, or one that a test moves.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Nanoseconds since an arbitrary start; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> u64;
    /// Blocks the calling thread.
    fn sleep(&self, duration: std::time::Duration);
}

/// Seeds. The operating system's randomness, or a fixed stream.
pub trait Rng: Send + Sync + fmt::Debug {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}
