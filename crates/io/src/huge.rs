//! Bytes on huge pages. ⚠ unsafe lives here, in small documented blocks.
//!
//! A device transfers pieces of contiguous physical memory. A buffer of 2 MiB is one piece on a
//! huge page, and 512 pieces without. The device takes a step for each piece.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a huge page that this module assumes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that begin at a huge page, zero at first; whole huge pages, if the system has any free.
#[derive(Debug)]
pub(crate) struct HugeBytes {
    mapping: NonNull<c_void>,
    mapped_bytes: usize,
    bytes: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value and is reached through borrows of it only.
unsafe impl Send for HugeBytes {}
// SAFETY: as above; a shared borrow gives shared bytes only.
unsafe impl Sync for HugeBytes {}

impl HugeBytes {
    /// At least `len` zeros, rounded up to whole huge pages. Costs no memory until touched.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = len.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_long)?;
        let mapped_bytes = len.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_long)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let offset = mapping.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: offset is less than a huge page, which the mapping has in excess of `len`.
        let aligned = unsafe { mapping.byte_add(offset) };
        // SAFETY: the range lies inside the mapping made above. Advice changes no contents; a
        // refusal (no huge pages) only costs speed.
        let _ = unsafe { madvise(aligned, len, Advice::LinuxHugepage) };
        let bytes = NonNull::new(aligned.cast()).expect("a mapping is never at zero");
        let mapping = NonNull::new(mapping).expect("a mapping is never at zero");
        Ok(Self { mapping, mapped_bytes, bytes, len })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` points to `len` bytes inside the mapping, zero or written, alive as long
        // as `self`. A writer borrows `self` mutably.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for HugeBytes {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `zeroed`, is unmapped once, and no borrow of it outlives
        // `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr(), self.mapped_bytes) };
    }
}

/// A vector of zeros whose whole huge pages are huge, if the system has any free. Costs no memory
/// until touched.
pub fn huge_zeros(len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let address = bytes.as_ptr().addr();
    let offset = address.next_multiple_of(HUGE_PAGE_BYTES) - address;
    let whole = bytes.len().saturating_sub(offset) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole > 0 {
        // SAFETY: the range lies inside the vector's allocation, which nobody else uses. Advice
        // changes no contents; a refusal (no huge pages) only costs speed.
        let _ = unsafe {
            madvise(bytes[offset..].as_mut_ptr().cast::<c_void>(), whole, Advice::LinuxHugepage)
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_on_huge_pages_is_a_vector() {
        for len in [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES * 2, HUGE_PAGE_BYTES * 3 + 5] {
            let mut bytes = huge_zeros(len);
            assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
            bytes.resize(len + 10, 7);
            assert!(bytes.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn bytes_begin_at_a_huge_page_and_are_zero() {
        let mut bytes = HugeBytes::zeroed(HUGE_PAGE_BYTES + 1).expect("memory");
        assert_eq!(bytes.as_slice().len(), 2 * HUGE_PAGE_BYTES);
        assert!(bytes.as_slice().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert!(bytes.as_slice().iter().all(|&byte| byte == 0));
        bytes.as_mut_slice().fill(7);
        assert!(bytes.as_slice().iter().all(|&byte| byte == 7));
        assert!(HugeBytes::zeroed(usize::MAX).is_err());
    }
}
