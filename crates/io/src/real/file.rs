//! One open file of this machine.

#![expect(clippy::disallowed_methods, reason = "this is the disk that the lint points to")]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(any(loom, shuttle)))]
use stillpoint_mem::Target;

use super::FlushState;
#[cfg(not(any(loom, shuttle)))]
use super::by_address::read_once;
use crate::aligned::AlignedBuf;
#[cfg(not(any(loom, shuttle)))]
use crate::disk::check_aligned_at;
use crate::disk::{
    Caching, DIRECT_ALIGN, DiskError, DiskFile, DiskResult, OpenMode, check_aligned, check_range,
    read_only,
};

/// Buffers in one call of the system, at most.
const IOV_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct RealFile {
    file: File,
    path: PathBuf,
    mode: OpenMode,
    caching: Caching,
    /// Whether accesses bypass the page cache: requested, and not refused by the file system.
    direct: AtomicBool,
    flush: Arc<FlushState>,
}

impl RealFile {
    pub(super) fn open(
        path: PathBuf,
        mode: OpenMode,
        caching: Caching,
        flush: Arc<FlushState>,
    ) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read).create_new(mode == OpenMode::CreateNew);
        let file = options.open(&path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(ErrorKind::IsADirectory));
        }
        // The flag is set after opening: a refused O_CREAT | O_DIRECT would leave the file behind.
        let direct = AtomicBool::new(caching == Caching::Direct && set_direct(&file, true));
        Ok(Self { file, path, mode, caching, direct, flush })
    }

    fn fail(&self, op: impl Into<String>, source: io::Error) -> DiskError {
        DiskError::new(op, &self.path, source)
    }

    /// Makes the checks that precede every change.
    fn check_writable(&self) -> io::Result<()> {
        if self.mode == OpenMode::Read {
            return Err(read_only());
        }
        self.flush.check()
    }

    /// Runs a read or write. If the file system refuses `O_DIRECT` only now, repeats it through the
    /// page cache.
    fn transfer<T>(&self, mut once: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match once() {
            // Relaxed: the flag is a hint; a second thread at worst clears the descriptor's flag too.
            Err(e)
                if e.kind() == ErrorKind::InvalidInput && self.direct.load(Ordering::Relaxed) =>
            {
                if !set_direct(&self.file, false) {
                    return Err(e);
                }
                self.direct.store(false, Ordering::Relaxed);
                once()
            }
            result => result,
        }
    }

    fn read_fully(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_until_full(buf.len(), |filled| {
            self.file.read_at(&mut buf[filled..], offset + filled as u64)
        })
    }

    /// Reads `bytes` bytes by calls that get the number of bytes read so far.
    fn read_until_full(
        &self,
        bytes: usize,
        mut read_once: impl FnMut(usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes {
            match read_once(filled) {
                Ok(0) => break,
                Ok(n) => {
                    filled += n;
                    // Past the cache a ragged end is the file's end; going on would be misaligned.
                    if self.caching == Caching::Direct && !n.is_multiple_of(DIRECT_ALIGN) {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn write_fully(&self, bufs: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut bufs = bufs.to_vec();
        let mut rest = &mut bufs[..];
        IoSlice::advance_slices(&mut rest, 0); // leaves out empty buffers
        while !rest.is_empty() {
            let count = rest.len().min(IOV_MAX);
            match rustix::io::pwritev(&self.file, &rest[..count], offset) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(n) => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Zeros from the present end up to `len`, for file systems that cannot reserve. The last
    /// partial 4 KiB are not reserved.
    fn extend_by_writing(&self, len: u64) -> io::Result<()> {
        const CHUNK: usize = 256 << 10;
        let align = DIRECT_ALIGN as u64;
        let end = self.file.metadata()?.len();
        if end >= len {
            return Ok(());
        }
        let zeros = AlignedBuf::zeroed(CHUNK);
        let mut at = end.next_multiple_of(align);
        while at + align <= len {
            let n = ((len - at) / align * align).min(CHUNK as u64);
            self.transfer(|| self.file.write_all_at(&zeros[..n as usize], at))?;
            at += n;
        }
        self.file.set_len(len)
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        check_range(buf.len() as u64, offset)
            .and_then(|()| check_aligned(self.caching, buf, offset))
            .and_then(|()| self.transfer(|| self.read_fully(buf, offset)))
            .map_err(|e| self.fail(format!("read {} bytes at {offset} of", buf.len()), e))
    }

    #[cfg(not(any(loom, shuttle)))]
    fn read_into(&self, target: &Target, offset: u64) -> DiskResult<usize> {
        let bytes = target.bytes();
        let read_fully = || {
            self.read_until_full(bytes, |filled| {
                read_once(self.file.as_fd(), target, filled, offset + filled as u64)
            })
        };
        check_range(bytes as u64, offset)
            .and_then(|()| {
                check_aligned_at(self.caching, target.address().addr().get(), bytes, offset)
            })
            .and_then(|()| self.transfer(read_fully))
            .map_err(|e| self.fail(format!("read {bytes} bytes at {offset} of"), e))
    }

    fn descriptor(&self, writes: bool) -> DiskResult<Option<BorrowedFd<'_>>> {
        if writes {
            self.check_writable().map_err(|e| self.fail("write", e))?;
        }
        Ok(Some(self.file.as_fd()))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.check_writable()
            .and_then(|()| check_range(buf.len() as u64, offset))
            .and_then(|()| check_aligned(self.caching, buf, offset))
            .and_then(|()| self.transfer(|| self.file.write_all_at(buf, offset)))
            .map_err(|e| self.fail(format!("write {} bytes at {offset} of", buf.len()), e))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> DiskResult<()> {
        let mut len = 0;
        let aligned = bufs.iter().try_for_each(|buf| {
            let at = offset.saturating_add(len);
            len += buf.len() as u64;
            check_aligned(self.caching, buf, at)
        });
        self.check_writable()
            .and_then(|()| check_range(len, offset))
            .and(aligned)
            .and_then(|()| self.transfer(|| self.write_fully(bufs, offset)))
            .map_err(|e| self.fail(format!("write {len} bytes at {offset} of"), e))
    }

    fn sync(&self) -> DiskResult<()> {
        self.flush.flush(&self.path, || self.file.sync_data()).map_err(|e| self.fail("flush", e))
    }

    fn len(&self) -> DiskResult<u64> {
        self.file.metadata().map(|found| found.len()).map_err(|e| self.fail("measure", e))
    }

    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.check_writable()
            .and_then(|()| check_range(len, 0))
            .and_then(|()| self.file.set_len(len))
            .map_err(|e| self.fail(format!("set to {len} bytes the length of"), e))
    }

    fn allocate(&self, len: u64) -> DiskResult<()> {
        let reserve = || match reserve(&self.file, len) {
            Err(e) if e.kind() == ErrorKind::Unsupported => self.extend_by_writing(len),
            result => result,
        };
        self.check_writable()
            .and_then(|()| check_range(len, 0))
            .and_then(|()| if len == 0 { Ok(()) } else { reserve() })
            .map_err(|e| self.fail(format!("reserve {len} bytes for"), e))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Turns the page cache off or on for this open file; false if the file system refuses.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, direct: bool) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let changed = fcntl_getfl(file).and_then(|mut flags| {
        flags.set(OFlags::DIRECT, direct);
        fcntl_setfl(file, flags)
    });
    changed.is_ok()
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_file: &File, direct: bool) -> bool {
    !direct
}

/// Reserves space and extends the file. `Unsupported` if the file system cannot.
#[cfg(target_os = "linux")]
fn reserve(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::{Errno, retry_on_intr};
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::Error::from(ErrorKind::Unsupported)),
        result => Ok(result?),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_file: &File, _len: u64) -> io::Result<()> {
    Err(io::Error::from(ErrorKind::Unsupported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn writing_zeros_reserves_where_the_file_system_cannot() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        for (number, caching) in [Caching::Buffered, Caching::Direct].into_iter().enumerate() {
            for (start, len) in [(0, 8192), (10, 1 << 20), (5000, 300_001), (9000, 100)] {
                let path = scratch.path().join(format!("{number}-{start}"));
                let open = |mode, caching| {
                    RealFile::open(path.clone(), mode, caching, Arc::default()).expect("open")
                };
                let file = open(OpenMode::CreateNew, caching);
                // A direct handle takes no ragged write.
                let buffered = open(OpenMode::ReadWrite, Caching::Buffered);
                buffered.write_at(&vec![1; start], 0).expect("write");
                file.extend_by_writing(len).expect("extend");
                let found = file.file.metadata().expect("metadata");
                assert_eq!(found.len(), len.max(start as u64));
                let whole = found.len() / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
                assert!(found.blocks() * 512 >= whole, "{start}..{len} has no holes");
                let mut bytes = AlignedBuf::zeroed((found.len() as usize).next_multiple_of(4096));
                let n = file.read_at(&mut bytes, 0).expect("read");
                assert_eq!(n as u64, found.len());
                assert!(bytes[..start].iter().all(|byte| *byte == 1));
                assert!(bytes[start..n].iter().all(|byte| *byte == 0));
            }
        }
    }
}
