//! A file of lines for people, which only grows.

#![expect(clippy::disallowed_methods, reason = "the lines are no part of the store")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::disk::{DiskError, DiskResult};

/// An append-only file of lines. Several processes may append to the same file.
///
/// ```
/// # let scratch = tempfile::tempdir().unwrap();
/// # let path = scratch.path().join("server.log");
/// let file = stillpoint_io::AppendFile::open(&path)?;
/// file.append("one\n")?;
/// std::fs::rename(&path, scratch.path().join("server.log.1")).unwrap();
/// file.reopen()?; // a new file of the old name
/// file.append("two\n")?;
/// assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
/// # Ok::<(), stillpoint_io::DiskError>(())
/// ```
#[derive(Debug)]
pub struct AppendFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl AppendFile {
    /// Opens the file of that name, or makes it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: impl AsRef<Path>) -> DiskResult<Self> {
        let path = path.as_ref().to_owned();
        let file = Mutex::new(open(&path)?);
        Ok(Self { path, file })
    }

    /// Opens the file of that name anew. The file is a new one if the old one was renamed or
    /// removed. After an error the old file stays in use.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn reopen(&self) -> DiskResult<()> {
        *self.file.lock() = open(&self.path)?;
        Ok(())
    }

    /// Appends a line in one piece. The line is not flushed.
    ///
    /// # Errors
    /// When the system refuses. A part of the line may have been written.
    pub fn append(&self, line: &str) -> DiskResult<()> {
        let written = self.file.lock().write_all(line.as_bytes());
        written.map_err(|source| DiskError::new("append to", &self.path, source))
    }
}

fn open(path: &Path) -> DiskResult<File> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map_err(|source| DiskError::new("open", path, source))
}
