//! The traits of a disk, their errors, and code shared by both implementations.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use stillpoint_mem::{Target, words};

use crate::aligned::AlignedBuf;
use crate::owned::NotOwner;

/// An error of the disk: the operation, the file and the reason.
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
    /// Whether the device has no space left. The caller may retry once there is space.
    pub fn is_disk_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
    /// The reason why [`OwnedDisk`](crate::OwnedDisk) refused this change, if it did.
    pub fn not_owner(&self) -> Option<&NotOwner> {
        self.source.get_ref()?.downcast_ref()
    }
    /// Whether the process or the machine is short of descriptors or of memory. Nothing is known of the
    /// file, and the call may be made again later.
    pub fn is_shortage(&self) -> bool {
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
        self.source.raw_os_error().is_some_and(|errno| short.contains(&errno))
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
    /// Bytes that files may still take.
    pub free_bytes: u64,
    /// Bytes of the whole file system.
    pub total_bytes: u64,
}

/// A disk. Paths are relative to the disk's root. An absolute path or one with `..` is refused.
///
/// A created, renamed or removed name is durable only after [`sync_dir`](Disk::sync_dir) of its
/// directory. File contents are durable only after [`DiskFile::sync`].
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file.
    ///
    /// # Errors
    /// An error of the disk: the file is missing, or must not exist yet; no permission; no space.
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>>;
    /// Creates a directory and its missing parents. Not durable before `sync_dir` of each parent.
    ///
    /// # Errors
    /// An error of the disk.
    fn create_dir_all(&self, path: &Path) -> DiskResult<()>;
    /// Sorted names of the entries of a directory (files and directories).
    ///
    /// # Errors
    /// An error of the disk, also for a missing directory.
    fn list(&self, path: &Path) -> DiskResult<Vec<String>>;
    /// Whether a file or directory of that name exists.
    ///
    /// # Errors
    /// An error of the disk, if it cannot tell.
    fn exists(&self, path: &Path) -> DiskResult<bool>;
    /// Renames a file, replacing the target atomically. (A directory may be renamed too, onto a
    /// name that is free or an empty directory.)
    ///
    /// # Errors
    /// An error of the disk, also for a missing file.
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()>;
    /// Removes a file, or a directory with everything in it. A missing file is no error.
    ///
    /// # Errors
    /// An error of the disk.
    fn remove(&self, path: &Path) -> DiskResult<()>;
    /// As [`remove`](Self::remove), for who waits for the names alone. The space of large files may become
    /// free later.
    ///
    /// # Errors
    /// An error of the disk.
    fn remove_soon(&self, path: &Path) -> DiskResult<()> {
        self.remove(path)
    }
    /// Makes created, renamed and removed names in this directory durable. After a failure every
    /// later call on this directory fails too, since a failed flush is never retried.
    ///
    /// # Errors
    /// An error of the disk. Data that were not durable before may never be.
    fn sync_dir(&self, path: &Path) -> DiskResult<()>;
    /// Locks the file at `path` (created if missing) until the guard is dropped. `None` if another
    /// process, or another engine on this disk, holds the lock.
    ///
    /// # Errors
    /// An error of the disk. A lock that another holds is no error.
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>>;
    /// Keeps others from [`lock`](Self::lock)ing `path` while the guard lives. Several may hold
    /// such a guard. Writes nothing, so it works on a read-only disk.
    ///
    /// # Errors
    /// An error of the disk. A lock that another holds is no error.
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock>;
    /// Space of the device. `None` if unknown.
    ///
    /// # Errors
    /// An error of the disk.
    fn space(&self) -> DiskResult<Option<Space>>;
    /// The absolute path for messages.
    fn describe(&self, path: &Path) -> PathBuf;
    /// A seed for the order in which a [`Queue`](crate::Queue) ends transfers, if the disk is a
    /// simulated one. `None` for a disk that has an order of its own.
    fn simulation_seed(&self) -> Option<u64> {
        None
    }
}

/// Result of [`Disk::lock_shared`].
pub enum SharedLock {
    /// The shared lock. Nobody gets the exclusive lock before this value is dropped.
    Held(Box<dyn DiskLock>),
    /// There is no lock file, so no process holds the lock.
    Absent,
    /// Another process, or another engine on this disk, holds the lock.
    InUse,
}

/// A locked file. A drop releases the lock.
pub trait DiskLock: Send + Sync {
    /// Whether the locked path still names the locked file. A lock belongs to the file, so it does
    /// not keep out a process that replaces the file.
    ///
    /// # Errors
    /// An error of the disk, if it cannot tell.
    fn is_in_place(&self) -> DiskResult<bool>;
}

/// An open file. All calls take `&self` and may run in parallel.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads until `buf` is full or the file ends. Returns the bytes read.
    ///
    /// # Errors
    /// An error of the disk.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize>;
    /// Reads into a frame until it is full or the file ends. Returns the bytes read. Other threads
    /// may read the frame as words meanwhile.
    ///
    /// # Errors
    /// An error of the disk. Some words may have changed.
    fn read_into(&self, target: &Target, offset: u64) -> DiskResult<usize> {
        let mut buf = AlignedBuf::zeroed(target.bytes());
        let bytes = self.read_at(&mut buf, offset)?;
        words::write(target.words(), 0, &buf[..bytes]);
        Ok(bytes)
    }
    /// The descriptor with which a queue has the system make transfers of this file. `writes` asks
    /// for the checks that precede a write. `None` if the system has no such file.
    ///
    /// # Errors
    /// The file may not be written.
    fn descriptor(&self, _writes: bool) -> DiskResult<Option<BorrowedFd<'_>>> {
        Ok(None)
    }
    /// Writes all of `buf`. After an error the file's content in that range is unspecified.
    ///
    /// # Errors
    /// An error of the disk, also if the disk is full.
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()>;
    /// Writes these buffers one after the other from `offset` on. Equals one
    /// [`write_at`](Self::write_at) of all, if the system can.
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
    /// write, sync and change of length on this file fails too. The refusal holds for this handle
    /// and for any other that the same disk opens, since a failed flush is never retried.
    ///
    /// # Errors
    /// An error of the disk. Data that were not durable before may never be.
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
    /// Reserves space up to `len` and extends the length to it, with zeros. So later writes below
    /// `len` need no new space and no new length. (At the first flush of a reserved block, file
    /// systems still record that it holds data. Only overwrites of old bytes change no metadata at
    /// all.) Never shortens the file. A full disk shows here. If the file system cannot reserve,
    /// zeros are written beyond the present end. Then no other thread may write there at the same
    /// time.
    ///
    /// # Errors
    /// An error of the disk, also if the disk is full.
    fn allocate(&self, len: u64) -> DiskResult<()>;
    /// The absolute path for messages.
    fn path(&self) -> &Path;
}

/// The parts of a relative path, without `.`. Refuses paths that leave the root.
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

/// Refuses accesses that `O_DIRECT` would refuse, whether or not the file system has it.
pub(crate) fn check_aligned(caching: Caching, buf: &[u8], offset: u64) -> io::Result<()> {
    check_aligned_at(caching, buf.as_ptr().addr(), buf.len(), offset)
}

/// As [`check_aligned`], of `bytes` bytes at an address.
pub(crate) fn check_aligned_at(
    caching: Caching,
    address: usize,
    bytes: usize,
    offset: u64,
) -> io::Result<()> {
    if caching == Caching::Buffered {
        return Ok(());
    }
    let align = DIRECT_ALIGN as u64;
    let aligned = (address as u64).is_multiple_of(align)
        && (bytes as u64).is_multiple_of(align)
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
