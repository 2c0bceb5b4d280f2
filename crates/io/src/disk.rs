//! The traits at the disk, their errors, and what both implementations share.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::owned::NotOwner;

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
    pub source: io::Error,
}

impl DiskError {
    /// An error of `op` (a verb phrase) on `path` (absolute).
    pub fn new(op: impl Into<String>, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self { op: op.into(), path: path.into(), source }
    }
    /// True when the device has no space left; the caller may retry after space returns.
    pub fn is_disk_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
    /// Why the directory takes no more changes from this process, if [`OwnedDisk`](crate::OwnedDisk)
    /// refused this one.
    pub fn not_owner(&self) -> Option<&NotOwner> {
        self.source.get_ref()?.downcast_ref()
    }
    /// True when the file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
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

/// Space of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What files may still take.
    pub free_bytes: u64,
    /// Bytes of the whole file system.
    pub total_bytes: u64,
}

/// A place where files live. Paths are relative to the disk's root; an absolute
/// path or one with `..` is refused.
///
/// A created, renamed or removed name is durable only after
/// [`sync_dir`](Disk::sync_dir) of its directory; file contents only after
/// [`DiskFile::sync`].
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file.
    ///
    /// # Errors
    /// The disk's: no such file, or one that must not exist yet; no permission; no space.
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>>;
    /// Creates a directory and its missing parents. Not durable before `sync_dir` of each parent.
    ///
    /// # Errors
    /// An error of the disk.
    fn create_dir_all(&self, path: &Path) -> DiskResult<()>;
    /// Names of the entries of a directory (files and directories), sorted; a missing directory is an error.
    ///
    /// # Errors
    /// The disk's; a missing directory is one.
    fn list(&self, path: &Path) -> DiskResult<Vec<String>>;
    /// True if a file or directory of that name is there.
    ///
    /// # Errors
    /// The disk's, if it cannot tell.
    fn exists(&self, path: &Path) -> DiskResult<bool>;
    /// Renames a file, replacing the target atomically. (A directory may be renamed too, onto a
    /// name that is free or an empty directory.)
    ///
    /// # Errors
    /// The disk's; a missing file is one.
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()>;
    /// Removes a file, or a directory with everything in it. Missing is not an error.
    ///
    /// # Errors
    /// An error of the disk.
    fn remove(&self, path: &Path) -> DiskResult<()>;
    /// Makes created, renamed and removed names in this directory durable. After a failure every
    /// later call on this directory fails too: a failed flush is never retried.
    ///
    /// # Errors
    /// The disk's. What was not durable before may never be.
    fn sync_dir(&self, path: &Path) -> DiskResult<()>;
    /// Takes the lock file at `path` (created if missing) until the guard is dropped;
    /// `None` if another process (or another engine on this disk) holds it.
    ///
    /// # Errors
    /// The disk's; that another holds the lock is none.
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>>;
    /// Keeps others from [`lock`](Self::lock)ing `path` while the guard lives; several may do so at
    /// a time. Writes nothing, so that a disk that takes no writes will do.
    ///
    /// # Errors
    /// The disk's; that another holds the lock is none.
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock>;
    /// How much space the device has; `None` where nobody knows.
    ///
    /// # Errors
    /// An error of the disk.
    fn space(&self) -> DiskResult<Option<Space>>;
    /// The absolute path for messages.
    fn describe(&self, path: &Path) -> PathBuf;
}

/// What [`Disk::lock_shared`] found.
pub enum SharedLock {
    /// Nobody else holds the lock, and nobody gets it before this is dropped.
    Held(Box<dyn DiskLock>),
    /// There is no lock file, so no process holds the lock.
    Absent,
    /// Another process, or another engine on this disk, holds it.
    InUse,
}

/// A lock file that is held; dropping it gives the lock back.
pub trait DiskLock: Send + Sync {
    /// True while the path that was locked still names the file that was locked. A lock belongs to
    /// the file: whoever replaces it can be locked out no longer.
    ///
    /// # Errors
    /// The disk's, if it cannot tell.
    fn is_in_place(&self) -> DiskResult<bool>;
}

/// An open file. All calls take `&self` and may run in parallel.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    ///
    /// # Errors
    /// An error of the disk.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize>;
    /// Writes all of `buf`. After an error the file's content in that range is unspecified.
    ///
    /// # Errors
    /// The disk's; a full disk is one.
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()>;
    /// Writes these buffers behind each other from `offset` on, as one
    /// [`write_at`](Self::write_at) of them all would, if the system can.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], mut offset: u64) -> DiskResult<()> {
        for buf in bufs {
            self.write_at(buf, offset)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }
    /// Makes the file's contents and length durable (`fdatasync`). After a failure every later
    /// write, sync and change of length on this file fails too, through this handle and through
    /// any other that the same disk opens: a failed flush is never retried.
    ///
    /// # Errors
    /// The disk's. What was not durable before may never be.
    fn sync(&self) -> DiskResult<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// An error of the disk.
    fn len(&self) -> DiskResult<u64>;
    /// True if the file is empty.
    ///
    /// # Errors
    /// An error of the disk.
    fn is_empty(&self) -> DiskResult<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros) the file.
    ///
    /// # Errors
    /// An error of the disk.
    fn set_len(&self, len: u64) -> DiskResult<()>;
    /// Reserves space up to `len` and extends the length to it, reading as zeros, so that later
    /// writes below `len` need no new space and no new length. (File systems still note, at the
    /// first flush of a reserved block, that it now holds data; overwriting old bytes is what
    /// changes no metadata at all.) Never shortens the file. Disk-full shows here.
    /// Where the file system cannot reserve, zeros are written beyond the present end; then no
    /// other thread may write there at the same time.
    ///
    /// # Errors
    /// The disk's; a full disk is one.
    fn allocate(&self, len: u64) -> DiskResult<()>;
    /// The absolute path for messages.
    fn path(&self) -> &Path;
}

/// The parts of a relative path, without `.`; refuses what would leave the root.
pub(crate) fn parts(path: &Path) -> io::Result<Vec<&str>> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) if !name.contains('\0') => parts.push(name),
                _ => return refuse("a path must be UTF-8 without NUL"),
            },
            _ => return refuse("a path must be relative to the disk's root, without `..`"),
        }
    }
    Ok(parts)
}

/// Refuses what `O_DIRECT` would refuse, whether or not the file system has it.
pub(crate) fn check_aligned(caching: Caching, buf: &[u8], offset: u64) -> io::Result<()> {
    if caching == Caching::Buffered {
        return Ok(());
    }
    let align = DIRECT_ALIGN as u64;
    let aligned = (buf.as_ptr().addr() as u64).is_multiple_of(align)
        && (buf.len() as u64).is_multiple_of(align)
        && offset.is_multiple_of(align);
    if aligned {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "direct I/O needs buffer, offset and length in multiples of 4096; use AlignedBuf",
        ))
    }
}

/// The last byte of every access must have an offset that the file systems can name.
pub(crate) fn check_range(len: u64, offset: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "offset and length exceed the largest file size",
        )),
    }
}

/// The refusal of every change to a file after its flush failed.
pub(crate) fn poisoned() -> io::Error {
    io::Error::other(
        "an earlier flush of it failed, so what is on the disk is unknown; \
         stop, check the disk, and restart to recover",
    )
}

/// The refusal of a change through a handle opened with [`OpenMode::Read`].
pub(crate) fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened for reads only")
}
