//! Reads and writes whole files.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Caching, Disk, DiskError, DiskResult, OpenMode};

/// The bytes of a file.
///
/// # Errors
/// An error of the disk. Also if memory does not suffice, or the file shrinks while it is read.
pub fn read_all(disk: &dyn Disk, path: &Path) -> DiskResult<Vec<u8>> {
    let fail = |source| DiskError::new("read", disk.describe(path), source);
    let file = disk.open(path, OpenMode::Read, Caching::Buffered)?;
    let len = usize::try_from(file.len()?).map_err(|_| fail(io::ErrorKind::FileTooLarge.into()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| fail(io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(len, 0);
    if file.read_at(&mut bytes, 0)? < len {
        return Err(fail(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

/// Replaces a file atomically and durably. The new file is [written beside](write_beside) the old
/// one and renamed, and the directory is flushed. After a crash the file is the whole old one or
/// the whole new one. After success the file is the new one. Two writers of one path must take
/// turns.
///
/// # Errors
/// An error of the disk. Before the rename the old file is untouched. If the flush of the directory
/// fails, the new file is visible, but its durability is in doubt.
pub fn write_file_durably(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> DiskResult<()> {
    let beside = write_beside(disk, path, bytes)?;
    replace_by(disk, path, &beside)
}

/// Writes a new version of the file at `path` beside it, as `<path>.next`, and flushes it. The file
/// itself stays untouched, also after an error.
///
/// # Errors
/// An error of the disk.
pub fn write_beside(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> DiskResult<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    let beside = PathBuf::from(name);
    disk.remove(&beside)?; // a crash may have left an old one
    let written = (|| {
        let file = disk.open(&beside, OpenMode::CreateNew, Caching::Buffered)?;
        file.write_at(bytes, 0)?;
        file.sync()
    })();
    if let Err(error) = written {
        // On a full disk the half-written file would take space that others wait for. If the
        // removal fails, the next call removes the file.
        let _ = disk.remove(&beside);
        return Err(error);
    }
    Ok(beside)
}

/// Gives a file that was [written beside](write_beside) its name, durably.
///
/// # Errors
/// An error of the disk. After an error either of the two files may have the name.
pub fn replace_by(disk: &dyn Disk, path: &Path, beside: &Path) -> DiskResult<()> {
    if let Err(error) = disk.rename(beside, path) {
        let _ = disk.remove(beside);
        return Err(error);
    }
    disk.sync_dir(path.parent().unwrap_or(Path::new("")))
}
