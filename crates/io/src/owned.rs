//! A disk that only the holder of a lock file may change.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use stillpoint_mem::Target;

use crate::disk::{
    Caching, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space,
};

/// The reason why a directory takes no more changes from this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOwner {
    /// The lock file's name now names another file or none. So the directory was replaced or
    /// removed, and another process may have opened it.
    #[error(
        "{} is not the file that this process has locked: the directory was moved, removed or \
         replaced and may belong to another process; end this one and look which directory is right",
        .0.display()
    )]
    LockReplaced(PathBuf),
    /// The lock was released, since the store is closed.
    #[error("the store is closed and has given {} back; open it again", .0.display())]
    GivenBack(PathBuf),
}

/// State of the lock: held, released or lost.
struct Ownership {
    /// Absolute path of the lock file.
    path: PathBuf,
    /// `None` after the release. Changes under way share the lock, so that the release waits for
    /// them.
    lock: RwLock<Option<Box<dyn DiskLock>>>,
    /// Whether the lock file was found replaced, which is final.
    replaced: AtomicBool,
}

impl Ownership {
    /// The reason why nothing may be changed any more, if there is one.
    fn refusal(&self) -> Option<NotOwner> {
        // Acquire: pairs with the Release in `confirm`.
        if self.replaced.load(Ordering::Acquire) {
            return Some(NotOwner::LockReplaced(self.path.clone()));
        }
        let is_held = self.lock.read_recursive().is_some();
        (!is_held).then(|| NotOwner::GivenBack(self.path.clone()))
    }

    /// Checks that the lock file is still the locked one.
    fn confirm(&self) -> DiskResult<Option<NotOwner>> {
        if let Some(lock) = &*self.lock.read_recursive()
            && !lock.is_in_place()?
        {
            // Release: pairs with the Acquire in `refusal`.
            self.replaced.store(true, Ordering::Release);
        }
        Ok(self.refusal())
    }

    /// Runs a change of a file's content, unless the directory is not ours any more.
    fn change<R>(
        &self,
        op: &str,
        path: &Path,
        change: impl FnOnce() -> DiskResult<R>,
    ) -> DiskResult<R> {
        // Recursive: a simulated disk may let others act in the middle of a call.
        let _under_way = self.lock.read_recursive();
        match self.refusal() {
            None => change(),
            Some(reason) => Err(DiskError::new(op, path, io::Error::other(reason))),
        }
    }
}

/// A disk that is changed only while this value holds a lock file of it.
///
/// A lock belongs to an inode, and changes go by path. So each creation, renaming and removal first
/// compares the lock file's name with the locked file. A mismatch is final: from then on every
/// change is refused, also of open files. Between check and change another process may still
/// replace the directory, which no check can exclude.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
/// use stillpoint_io::{Disk, NotOwner, OwnedDisk, SimDisk};
/// let disk = Arc::new(SimDisk::new(1));
/// let owned = OwnedDisk::lock(disk.clone(), Path::new("LOCK"))?.expect("nobody holds it");
/// owned.create_dir_all(Path::new("log"))?;
/// disk.remove(Path::new("LOCK"))?; // by somebody else
/// let refused = owned.create_dir_all(Path::new("other")).unwrap_err();
/// assert!(matches!(refused.not_owner(), Some(NotOwner::LockReplaced(_))));
/// # Ok::<(), stillpoint_io::DiskError>(())
/// ```
pub struct OwnedDisk {
    inner: Arc<dyn Disk>,
    ownership: Arc<Ownership>,
}

impl OwnedDisk {
    /// Takes the lock file; `None` if another process or value holds the lock.
    ///
    /// # Errors
    /// An error of the disk.
    pub fn lock(inner: Arc<dyn Disk>, path: &Path) -> DiskResult<Option<Self>> {
        Ok(inner.lock(path)?.map(|lock| {
            let path = inner.describe(path);
            let (lock, replaced) = (RwLock::new(Some(lock)), AtomicBool::new(false));
            Self { inner, ownership: Arc::new(Ownership { path, lock, replaced }) }
        }))
    }

    /// Checks that the lock file is still in its place. If not, returns the reason why the
    /// directory may not be changed any more.
    ///
    /// # Errors
    /// An error of the disk. Then nothing is known.
    pub fn confirm(&self) -> DiskResult<Option<NotOwner>> {
        self.ownership.confirm()
    }

    /// Refuses further changes, waits for those under way, and releases the lock.
    pub fn give_back(&self) {
        *self.ownership.lock.write() = None;
    }

    /// Runs a change of names.
    fn rename_with<R>(
        &self,
        op: &str,
        path: &Path,
        change: impl FnOnce() -> DiskResult<R>,
    ) -> DiskResult<R> {
        self.ownership.change(op, &self.inner.describe(path), || {
            match self.ownership.confirm()? {
                None => change(),
                Some(reason) => {
                    let path = self.inner.describe(path);
                    Err(DiskError::new(op, path, io::Error::other(reason)))
                }
            }
        })
    }
}

impl fmt::Debug for OwnedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedDisk")
            .field("inner", &self.inner)
            .field("refusal", &self.ownership.refusal())
            .finish()
    }
}

impl Disk for OwnedDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let open = || self.inner.open(path, mode, caching);
        let file = match mode {
            OpenMode::Read => return open(),
            OpenMode::ReadWrite => open()?,
            OpenMode::CreateNew => self.rename_with("create", path, open)?,
        };
        Ok(Arc::new(OwnedFile { file, ownership: self.ownership.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.rename_with("create directory", path, || self.inner.create_dir_all(path))
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.inner.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.inner.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.rename_with("rename", from, || self.inner.rename(from, to))
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.rename_with("remove", path, || self.inner.remove(path))
    }
    fn remove_soon(&self, path: &Path) -> DiskResult<()> {
        self.rename_with("remove", path, || self.inner.remove_soon(path))
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        let described = self.inner.describe(path);
        self.ownership.change("flush directory", &described, || self.inner.sync_dir(path))
    }
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        self.inner.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.inner.lock_shared(path)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        self.inner.space()
    }
    fn describe(&self, path: &Path) -> PathBuf {
        self.inner.describe(path)
    }
    fn simulation_seed(&self) -> Option<u64> {
        self.inner.simulation_seed()
    }
}

/// An open file that is changed only while the lock is held.
struct OwnedFile {
    file: Arc<dyn DiskFile>,
    ownership: Arc<Ownership>,
}

impl fmt::Debug for OwnedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl OwnedFile {
    fn change(&self, op: &str, change: impl FnOnce() -> DiskResult<()>) -> DiskResult<()> {
        self.ownership.change(op, self.file.path(), change)
    }
}

impl DiskFile for OwnedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.file.read_at(buf, offset)
    }
    fn read_into(&self, target: &Target, offset: u64) -> DiskResult<usize> {
        self.file.read_into(target, offset)
    }
    fn descriptor(&self, writes: bool) -> DiskResult<Option<BorrowedFd<'_>>> {
        if writes {
            self.change("write", || Ok(()))?;
        }
        self.file.descriptor(writes)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.change("write", || self.file.write_at(buf, offset))
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> DiskResult<()> {
        self.change("write", || self.file.write_vectored_at(bufs, offset))
    }
    fn sync(&self) -> DiskResult<()> {
        self.change("flush", || self.file.sync())
    }
    fn len(&self) -> DiskResult<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.change("set the length of", || self.file.set_len(len))
    }
    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.change("reserve space for", || self.file.allocate(len))
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RealDisk, SimDisk, read_all, write_file_durably};

    const LOCK: &str = "LOCK";

    /// A way in which another process replaces or removes the directory.
    type Way<'a> = &'a dyn Fn(&dyn Disk);

    /// After another process has replaced or removed the directory, its owner changes no file any
    /// more.
    fn is_final(disk: Arc<dyn Disk>, replace: Way) {
        let (lock, data) = (Path::new(LOCK), Path::new("data"));
        let owned = OwnedDisk::lock(disk.clone(), lock).expect("a disk").expect("free");
        write_file_durably(&owned, data, b"ours").expect("it is ours");
        let file = owned.open(data, OpenMode::ReadWrite, Caching::Buffered).expect("a file");
        assert_eq!(owned.confirm().expect("a look"), None);
        replace(&*disk);
        // A write to an open file makes no check. After a failed check elsewhere the write is
        // refused, too.
        file.write_at(b"more", 0).expect("nobody has looked");
        let lost = NotOwner::LockReplaced(disk.describe(lock));
        let is_lost = |refused: DiskResult<()>| {
            let error = refused.expect_err("not ours");
            assert_eq!(error.not_owner(), Some(&lost), "{error}");
            assert!(error.to_string().contains("LOCK is not the file"), "{error}");
        };
        is_lost(owned.rename(data, Path::new("other")));
        assert_eq!(owned.confirm().expect("a look"), Some(lost.clone()));
        is_lost(file.write_at(b"more", 0));
        is_lost(file.sync());
        is_lost(owned.remove(data));
        is_lost(owned.create_dir_all(Path::new("log")));
        is_lost(owned.sync_dir(Path::new("")));
        is_lost(write_file_durably(&owned, data, b"theirs"));
        // Another owner is not disturbed by the end of this one.
        let next = OwnedDisk::lock(disk.clone(), lock).expect("a disk").expect("free");
        drop(owned);
        write_file_durably(&next, data, b"theirs").expect("it is theirs");
        assert_eq!(read_all(&*disk, data).expect("there"), b"theirs");
        assert!(disk.lock(lock).expect("a disk").is_none(), "still theirs");
    }

    #[test]
    fn a_replaced_lock_file_ends_every_change() {
        let lock = Path::new(LOCK);
        let remove = |disk: &dyn Disk| disk.remove(lock).expect("removed");
        let rename = |disk: &dyn Disk| disk.rename(lock, Path::new("old")).expect("renamed");
        let replace = |disk: &dyn Disk| {
            let other = Path::new("other lock");
            disk.open(other, OpenMode::CreateNew, Caching::Buffered).expect("made");
            disk.rename(other, lock).expect("renamed");
        };
        let ways: [Way; 3] = [&remove, &rename, &replace];
        for way in ways {
            is_final(Arc::new(SimDisk::new(1)), way);
            let scratch = tempfile::tempdir().expect("a directory");
            is_final(Arc::new(RealDisk::new(scratch.path().join("data")).expect("made")), way);
        }
    }

    #[test]
    fn a_lock_given_back_ends_every_change() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let owned = OwnedDisk::lock(disk.clone(), Path::new(LOCK)).expect("a disk").expect("free");
        write_file_durably(&owned, Path::new("data"), b"ours").expect("it is ours");
        assert!(disk.lock(Path::new(LOCK)).expect("a disk").is_none());
        owned.give_back();
        let refused = write_file_durably(&owned, Path::new("data"), b"late").expect_err("over");
        assert!(matches!(refused.not_owner(), Some(NotOwner::GivenBack(_))), "{refused}");
        assert!(disk.lock(Path::new(LOCK)).expect("a disk").is_some(), "free again");
    }
}
