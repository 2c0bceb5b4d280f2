use stillpoint_sync::atomic::AtomicU64;

/// The size of the huge pages that regions ask for (small in the models, whose words are dear).
pub const HUGE_PAGE_BYTES: usize = if cfg!(any(loom, shuttle)) { 1 << 10 } else { 2 << 20 };

/// The address space for a region could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of address space: {reason}; lower max_memory, or raise the process's address-space limit (ulimit -v)"
)]
pub struct RegionError {
    /// Size of the smallest reservation that was tried.
    pub bytes: usize,
    /// The operating system's reason.
    pub reason: std::io::Error,
}

/// The pages of memory that a region asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// Those of the system, 4 KiB.
    Small,
    /// Of 2 MiB, where the system has any.
    #[default]
    Huge,
}

/// A slice of words, all zero at first, whose memory the operating system supplies page by page
/// as it is touched. Its address never changes.
#[derive(Debug)]
pub struct Region(backing::Backing);

impl Region {
    /// Reserves `bytes` (rounded up to huge pages) of address space. Costs no memory until touched.
    pub fn reserve(bytes: usize) -> Result<Self, RegionError> {
        Self::reserve_with(bytes, PageSize::Huge)
    }

    /// As [`reserve`](Self::reserve), on pages of that size.
    pub fn reserve_with(bytes: usize, pages: PageSize) -> Result<Self, RegionError> {
        backing::Backing::reserve(bytes.next_multiple_of(HUGE_PAGE_BYTES), pages).map(Self)
    }

    /// Reserves as much of `bytes` as the system grants, halving down to `least`.
    pub fn reserve_up_to(bytes: usize, least: usize) -> Result<Self, RegionError> {
        let mut bytes = bytes;
        loop {
            match Self::reserve(bytes) {
                Ok(region) => return Ok(region),
                Err(error) if bytes / 2 < least => return Err(error),
                Err(_) => bytes /= 2,
            }
        }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    /// Bytes reserved.
    pub fn len_bytes(&self) -> usize {
        self.words().len() * 8
    }

    /// Touches the pages of `words[first..first + count]` ahead of their use, so that no
    /// transaction pays for it. Best effort.
    pub fn populate(&self, first: usize, count: usize) {
        self.0.populate(first, count);
    }

    /// Leaves this memory out of child processes: a fork then neither copies its page tables nor
    /// makes writes to it copy pages. A child that touches it is killed. Best effort, and for good.
    pub fn keep_from_children(&self) {
        self.0.keep_from_children();
    }

    /// Gives the pages of `words[first..first + count]` back to the system; they read as zero
    /// afterwards. `first` and `count` must be multiples of a huge page. The caller sees to it
    /// that nobody uses them.
    pub fn discard(&self, first: usize, count: usize) {
        assert!((first * 8).is_multiple_of(HUGE_PAGE_BYTES), "unaligned discard");
        assert!((count * 8).is_multiple_of(HUGE_PAGE_BYTES), "unaligned discard");
        self.0.discard(first, count);
    }
}

#[cfg(not(any(loom, shuttle)))]
mod backing {
    use super::{HUGE_PAGE_BYTES, PageSize, RegionError};
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    use std::ffi::c_void;
    use std::ptr::NonNull;
    use stillpoint_sync::atomic::AtomicU64;

    #[derive(Debug)]
    pub(super) struct Backing {
        mapping: NonNull<c_void>,
        mapped_bytes: usize,
        words: NonNull<AtomicU64>,
        len: usize,
    }

    // SAFETY: the mapping is owned by this value, and is only reached as atomics.
    unsafe impl Send for Backing {}
    // SAFETY: as above.
    unsafe impl Sync for Backing {}

    impl Backing {
        pub(super) fn reserve(bytes: usize, pages: PageSize) -> Result<Self, RegionError> {
            let mapped_bytes = bytes + HUGE_PAGE_BYTES;
            // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing
            // that exists.
            let mapping = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    mapped_bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }
            .map_err(|errno| RegionError { bytes, reason: errno.into() })?;
            let advice = match pages {
                PageSize::Small => Advice::LinuxNoHugepage,
                PageSize::Huge => Advice::LinuxHugepage,
            };
            let offset = mapping.align_offset(HUGE_PAGE_BYTES);
            // SAFETY: offset is less than a huge page, which the mapping has in excess of `bytes`.
            let aligned = unsafe { mapping.byte_add(offset) };
            // SAFETY: the range lies inside the mapping made above. Advice changes no contents;
            // a refusal (no huge pages) only costs speed.
            let _ = unsafe { rustix::mm::madvise(aligned, bytes, advice) };
            let words = NonNull::new(aligned.cast()).expect("a mapping is never at zero");
            let mapping = NonNull::new(mapping).expect("a mapping is never at zero");
            Ok(Self { mapping, mapped_bytes, words, len: bytes / 8 })
        }

        #[inline]
        pub(super) fn words(&self) -> &[AtomicU64] {
            // SAFETY: `words` points to `len` zero-initialised or written words inside the
            // mapping, aligned to a huge page, alive as long as `self`, and only ever reached
            // as atomics.
            unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
        }

        pub(super) fn populate(&self, first: usize, count: usize) {
            let words = &self.words()[first..first + count];
            let start = words.as_ptr().cast::<c_void>().cast_mut();
            // SAFETY: the range is inside the mapping; populating keeps contents.
            let done = unsafe { rustix::mm::madvise(start, count * 8, Advice::LinuxPopulateWrite) };
            if done.is_err() {
                for word in words.iter().step_by(512) {
                    // Relaxed: adding nothing changes no value; the touch is what counts.
                    word.fetch_or(0, stillpoint_sync::atomic::Ordering::Relaxed);
                }
            }
        }

        pub(super) fn keep_from_children(&self) {
            #[cfg(target_os = "linux")]
            {
                let start = self.mapping.as_ptr();
                // SAFETY: the range is the mapping made in `reserve`. The advice changes nothing
                // in this process, and there are no children that use the memory: this crate makes
                // none, and whoever forks answers for what the child does.
                let _ =
                    unsafe { rustix::mm::madvise(start, self.mapped_bytes, Advice::LinuxDontFork) };
            }
        }

        pub(super) fn discard(&self, first: usize, count: usize) {
            let words = &self.words()[first..first + count];
            let start = words.as_ptr().cast::<c_void>().cast_mut();
            // SAFETY: the range is inside the mapping and private anonymous, so its words read
            // as zero afterwards, a valid value for an atomic.
            let done = unsafe { rustix::mm::madvise(start, count * 8, Advice::LinuxDontNeed) };
            if done.is_err() {
                for word in words {
                    // Relaxed: the caller sees to it that nobody uses these words.
                    word.store(0, stillpoint_sync::atomic::Ordering::Relaxed);
                }
            }
        }
    }

    impl Drop for Backing {
        fn drop(&mut self) {
            // SAFETY: the mapping was made in `reserve`, is unmapped once, and no borrow of it
            // outlives `self`.
            let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.mapped_bytes) };
        }
    }
}

#[cfg(any(loom, shuttle))]
mod backing {
    use super::{PageSize, RegionError};
    use stillpoint_sync::atomic::{AtomicU64, Ordering};

    /// Words of the model checker; the reservation is cut down to what a model needs.
    #[derive(Debug)]
    pub(super) struct Backing(Vec<AtomicU64>);

    const MODEL_WORDS: usize = 2048;

    impl Backing {
        pub(super) fn reserve(bytes: usize, _: PageSize) -> Result<Self, RegionError> {
            Ok(Self((0..MODEL_WORDS.min(bytes / 8)).map(|_| AtomicU64::new(0)).collect()))
        }
        pub(super) fn words(&self) -> &[AtomicU64] {
            &self.0
        }
        pub(super) fn populate(&self, _: usize, _: usize) {}
        pub(super) fn keep_from_children(&self) {}
        pub(super) fn discard(&self, first: usize, count: usize) {
            for word in &self.0[first..first + count] {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use stillpoint_sync::atomic::Ordering;

    #[test]
    fn words_start_at_zero_and_discard_brings_them_back_to_it() {
        let region = Region::reserve(5 << 20).expect("address space");
        assert_eq!(region.len_bytes(), 6 << 20);
        let words = region.words();
        assert!(std::ptr::from_ref(&words[0]).addr().is_multiple_of(HUGE_PAGE_BYTES));
        let page = HUGE_PAGE_BYTES / 8;
        region.populate(0, page);
        for word in words {
            assert_eq!(word.load(Ordering::Relaxed), 0);
            word.store(7, Ordering::Relaxed);
        }
        region.discard(page, page);
        assert_eq!(words[page - 1].load(Ordering::Relaxed), 7);
        assert_eq!(words[page].load(Ordering::Relaxed), 0);
        assert_eq!(words[2 * page].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_large_reservation_costs_nothing() {
        let region = Region::reserve_up_to(1 << 40, 1 << 30).expect("address space");
        let last = region.words().last().expect("not empty");
        last.store(1, Ordering::Relaxed);
        assert!(region.len_bytes() >= 1 << 30);
    }
}
