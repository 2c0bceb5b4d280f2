//! Finds pages that were written since the last scan, without any code at the writes. `userfaultfd`
//! protects pages, and the kernel lifts the protection at the first write. `PAGEMAP_SCAN` finds the
//! pages of lifted protection and protects them again. ⚠ unsafe lives here, in small documented
//! blocks.
//!
//! ```text
//! program   write ↯ write write     write ↯     ↯ the kernel lifts the protection of a page
//! scan  ──┤ protects             ├──┤ finds both pages, protects them again
//! ```
//!
//! The first write to a page after a scan costs a page fault. The kernel splits a huge page at that
//! write, so the pages that are found are those of 4 KiB.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

/// The system does not tell which pages were written.
#[derive(Clone, Debug)]
pub struct WrittenPagesError {
    op: &'static str,
    source: Arc<io::Error>,
}

impl WrittenPagesError {
    fn new(op: &'static str, source: impl Into<io::Error>) -> Self {
        Self { op, source: Arc::new(source.into()) }
    }
}

impl fmt::Display for WrittenPagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, source } = self;
        let cure = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "the system forbids userfaultfd (a filter of system calls, or \
                 vm.unprivileged_userfaultfd on a kernel before 5.11)"
            }
            io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => {
                "asynchronous write protection and PAGEMAP_SCAN need Linux 6.7"
            }
            _ => "descriptors or memory are short: raise the limits",
        };
        write!(
            f,
            "cannot {op}: {source}; {cure}, or take a scheme that needs no help of the system"
        )
    }
}

impl std::error::Error for WrittenPagesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// Tells which pages of some memory were written.
///
/// ```no_run
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use stillpoint_io::WrittenPages;
/// let cells: Vec<AtomicU64> = (0..100_000).map(AtomicU64::new).collect();
/// let mut pages = WrittenPages::track(&cells)?;
/// pages.take(|_| {})?; // all of them, once
/// cells[70_000].store(7, Relaxed);
/// pages.take(|bytes| assert!(bytes.contains(&560_000)))?;
/// # Ok::<(), stillpoint_io::WrittenPagesError>(())
/// ```
#[derive(Debug)]
pub struct WrittenPages {
    watch: system::Watch,
    start: usize,
    len: usize,
}

impl WrittenPages {
    /// Checks with one page of its own that the system can tell which pages were written.
    ///
    /// # Errors
    /// The system forbids it, or the kernel is too old.
    pub fn check() -> Result<(), WrittenPagesError> {
        let page = vec![1u64; 4096];
        Self::track(&page)?.take(|_| {})
    }

    /// Watches some memory from this call on. The pages of that memory count as written at first.
    /// The memory must stay at its address as long as this value is used. In unmapped memory no
    /// written page is found.
    ///
    /// # Errors
    /// The system forbids it, the kernel is too old, or the memory is not the process's own (a file, say).
    pub fn track<T>(memory: &[T]) -> Result<Self, WrittenPagesError> {
        let (start, len) = (memory.as_ptr().addr(), size_of_val(memory));
        Ok(Self { watch: system::Watch::new(start, len)?, start, len })
    }

    /// Calls `each` with ranges of bytes of the memory, in order, which cover all bytes written
    /// since the last call. The ranges leave out pages that were never touched.
    ///
    /// # Errors
    /// The system does not tell. Pages reported before the error are not reported again, so the
    /// caller must take all of the memory for written.
    pub fn take(&mut self, mut each: impl FnMut(Range<usize>)) -> Result<(), WrittenPagesError> {
        let (start, end) = (self.start, self.start + self.len);
        self.watch.take(start, end, |pages| {
            let from = pages.start.max(start) - start;
            let to = pages.end.min(end).saturating_sub(start);
            if from < to {
                each(from..to);
            }
        })
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::WrittenPagesError;
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// `UFFD_USER_MODE_ONLY`: needs no privilege.
    const USER_MODE_ONLY: libc::c_int = 1;
    const UFFD_API: u64 = 0xAA;
    /// `UFFD_FEATURE_PAGEFAULT_FLAG_WP` and `UFFD_FEATURE_WP_ASYNC`.
    const FEATURES: u64 = 1 | 1 << 15;
    /// `UFFDIO_REGISTER_MODE_WP`.
    const WRITE_PROTECT: u64 = 1 << 1;
    /// `PM_SCAN_WP_MATCHING`: protects the found pages again.
    const PROTECT_AGAIN: u64 = 1;
    /// `PAGE_IS_WRITTEN`.
    const WRITTEN: u64 = 1 << 1;
    const PAGE_BYTES: usize = 4096;
    /// Ranges that one call returns at most.
    const RANGES: usize = 512;

    /// `struct uffdio_api`.
    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }

    /// `struct uffdio_register`.
    #[repr(C)]
    struct Register {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }

    /// `struct page_region`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default)]
    pub(super) struct Pages {
        start: u64,
        end: u64,
        categories: u64,
    }

    /// `struct pm_scan_arg`.
    #[repr(C)]
    struct Scan {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        vec: u64,
        vec_len: u64,
        max_pages: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }

    /// `_IOWR(kind, number, T)` of the kernel.
    const fn read_write<T>(kind: u64, number: u64) -> u64 {
        3 << 30 | (size_of::<T>() as u64) << 16 | kind << 8 | number
    }

    /// An `ioctl` whose number tells the size of its argument.
    fn call<T>(file: &impl AsRawFd, kind: u64, number: u64, argument: &mut T) -> io::Result<usize> {
        let request = read_write::<T>(kind, number);
        // SAFETY: the number says that the kernel reads and writes size_of::<T>() bytes at the
        // pointer, which are those of `argument`. If a call writes to other memory, too, its caller
        // is responsible for that memory.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), request as _, &raw mut *argument) };
        usize::try_from(rc).map_err(|_| io::Error::last_os_error())
    }

    #[derive(Debug)]
    pub(super) struct Watch {
        /// The memory is protected as long as this descriptor is open.
        _faults: OwnedFd,
        pagemap: File,
        found: Vec<Pages>,
    }

    fn user_faults() -> io::Result<OwnedFd> {
        // SAFETY: a system call without pointers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_userfaultfd,
                libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and no other value owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        call(&faults, UFFD_API, 0x3F, &mut Api { api: UFFD_API, features: FEATURES, ioctls: 0 })?;
        Ok(faults)
    }

    impl Watch {
        #[expect(clippy::disallowed_methods, reason = "reads /proc, which is no part of the store")]
        pub(super) fn new(start: usize, len: usize) -> Result<Self, WrittenPagesError> {
            let failed = |op| move |source: io::Error| WrittenPagesError::new(op, source);
            let faults = user_faults().map_err(failed("watch writes"))?;
            let from = start / PAGE_BYTES * PAGE_BYTES;
            let to = (start + len).next_multiple_of(PAGE_BYTES);
            let (start, len) = (from as u64, (to - from).max(PAGE_BYTES) as u64);
            let mut register = Register { start, len, mode: WRITE_PROTECT, ioctls: 0 };
            // The registration changes no contents. Writes go on, each after a fault that the
            // kernel resolves without this process.
            call(&faults, UFFD_API, 0, &mut register).map_err(failed("watch this memory"))?;
            let pagemap = File::open("/proc/self/pagemap").map_err(failed("open the page map"))?;
            Ok(Self { _faults: faults, pagemap, found: vec![Pages::default(); RANGES] })
        }

        pub(super) fn take(
            &mut self,
            start: usize,
            end: usize,
            mut each: impl FnMut(Range<usize>),
        ) -> Result<(), WrittenPagesError> {
            let (mut at, end) = (start / PAGE_BYTES * PAGE_BYTES, end.next_multiple_of(PAGE_BYTES));
            while at < end {
                let mut scan = Scan {
                    size: size_of::<Scan>() as u64,
                    flags: PROTECT_AGAIN,
                    start: at as u64,
                    end: end as u64,
                    walk_end: 0,
                    vec: self.found.as_mut_ptr().expose_provenance() as u64,
                    vec_len: self.found.len() as u64,
                    max_pages: 0,
                    category_inverted: 0,
                    category_mask: WRITTEN,
                    category_anyof_mask: 0,
                    return_mask: WRITTEN,
                };
                // The kernel writes at most `vec_len` ranges to `found`, which has room for
                // `vec_len` ranges.
                let found = call(&self.pagemap, u64::from(b'f'), 16, &mut scan)
                    .map_err(|error| WrittenPagesError::new("look for written pages", error))?;
                for pages in &self.found[..found] {
                    each(pages.start as usize..pages.end as usize);
                }
                if scan.walk_end as usize <= at {
                    break;
                }
                at = scan.walk_end as usize;
            }
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::WrittenPagesError;
    use std::io::ErrorKind::Unsupported;
    use std::ops::Range;

    #[derive(Debug)]
    pub(super) enum Watch {}

    impl Watch {
        pub(super) fn new(_: usize, _: usize) -> Result<Self, WrittenPagesError> {
            Err(WrittenPagesError::new("watch writes", Unsupported))
        }

        pub(super) fn take(
            &mut self,
            _: usize,
            _: usize,
            _: impl FnMut(Range<usize>),
        ) -> Result<(), WrittenPagesError> {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{Rng, SeededRng};
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// The pages that a look found; `None` where the system does not tell.
    fn take(pages: &mut WrittenPages) -> Vec<usize> {
        let mut found = Vec::new();
        pages.take(|bytes| found.extend(bytes)).expect("it has told before");
        found
    }

    #[test]
    fn what_was_written_is_found_once() {
        const BYTES: usize = 5 << 20;
        if let Err(error) = WrittenPages::check() {
            return assert!(error.to_string().contains("scheme that needs no help"), "{error}");
        }
        let cells: Vec<AtomicU8> = (0..BYTES).map(|at| AtomicU8::new(at as u8)).collect();
        let mut pages = WrittenPages::track(&cells).expect("it was checked");
        assert_eq!(take(&mut pages).len(), BYTES, "all, at first");
        assert_eq!(take(&mut pages), []);
        let rng = SeededRng::new(1);
        for _ in 0..20 {
            let written: Vec<usize> =
                (0..rng.below(3000)).map(|_| rng.below(BYTES as u64) as usize).collect();
            written.iter().for_each(|&at| cells[at].store(7, Relaxed));
            let found = take(&mut pages);
            assert!(written.iter().all(|at| found.binary_search(at).is_ok()));
            let wanted_max = written.len() * 4096;
            assert!(found.len() <= wanted_max, "{} of {wanted_max}", found.len());
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let text = |kind: io::ErrorKind| WrittenPagesError::new("watch", kind).to_string();
        assert!(text(io::ErrorKind::PermissionDenied).contains("userfaultfd"));
        assert!(text(io::ErrorKind::InvalidInput).contains("6.7"));
        assert!(text(io::ErrorKind::OutOfMemory).contains("raise the limits"));
    }
}
