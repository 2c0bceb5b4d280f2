//! Reads into frames by address. ⚠ unsafe lives here, in one documented block.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use stillpoint_mem::Target;

/// Reads into the bytes of a frame from `from` on, once. Returns the bytes read, 0 at the file's end.
///
/// # Panics
/// If the frame ends before `from`.
pub(super) fn read_once(
    file: BorrowedFd<'_>,
    target: &Target,
    from: usize,
    offset: u64,
) -> io::Result<usize> {
    assert!(from <= target.bytes(), "beyond the frame");
    let address = target.address().as_ptr().wrapping_add(from).cast();
    let offset =
        libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the frame has `bytes` writable bytes, alive as long as `target`. Threads of this process
    // access them as atomics alone, so the system's writes race with no reference to plain bytes.
    let read = unsafe { libc::pread(file.as_raw_fd(), address, target.bytes() - from, offset) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}
