//! Regions: atomic words over reserved address space, on huge pages where the system has them.

use std::sync::Arc;
// The atomics of std, not of the model checkers: they count what the system has granted.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stillpoint_sync::atomic::AtomicU64;

/// Size of the huge pages that regions ask for, in bytes. Small in models, where words are expensive.
pub const HUGE_PAGE_BYTES: usize = if cfg!(any(loom, shuttle)) { 1 << 10 } else { 2 << 20 };
/// A multiple of the size of the system's pages, in bytes.
const SMALL_PAGE_BYTES: usize = if cfg!(any(loom, shuttle)) { 1 << 6 } else { 16 << 10 };

/// Bytes of address space that a store leaves to the rest of the process. A thread that finds no
/// address space for its signal stack ends the process. The bytes suffice for several threads.
#[cfg(not(any(loom, shuttle)))]
const LEFT_BYTES: usize = 16 << 20;

/// The system refused the address space of a region.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of address space: {reason}; lower max_memory, use fewer tables, or raise the limits on address space (ulimit -v) and mappings (vm.max_map_count)"
)]
pub struct RegionError {
    /// Size in bytes of the smallest reservation that was tried.
    pub bytes: usize,
    /// The operating system's reason.
    pub reason: std::io::Error,
}

/// The page size that a region asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// The system's pages, of 4 KiB.
    Small,
    /// Huge pages of 2 MiB, where the system has them.
    #[default]
    Huge,
}

/// Requests address space from the system for a store. Whatever the system grants leaves 16 MiB for
/// the rest of the process. The requests are counted, and a test can have them refused from the n-th
/// on.
#[derive(Debug)]
pub struct AddressSpace {
    requests: AtomicUsize,
    requests_max: AtomicUsize,
    /// The pages of regions that grow.
    pages: PageSize,
}

impl Default for AddressSpace {
    fn default() -> Self {
        Self::of_pages(PageSize::default())
    }
}

impl AddressSpace {
    /// Address space whose regions ask for pages of this size when they [grow](Region::grow).
    pub fn of_pages(pages: PageSize) -> Self {
        let requests_max = AtomicUsize::new(usize::MAX);
        Self { requests: AtomicUsize::new(0), requests_max, pages }
    }

    /// Number of requests so far, refused ones included.
    pub fn requests(&self) -> usize {
        // Relaxed: a count.
        self.requests.load(Relaxed)
    }

    /// Refuses every request after the first `requests`, like a system without free address space.
    pub fn end_after(&self, requests: usize) {
        // Relaxed: the test that calls this orders its own threads.
        self.requests_max.store(requests, Relaxed);
    }

    /// Reserves `bytes` that can be used at once. Sizes below a huge page are rounded up to the
    /// system's pages, larger sizes to huge pages.
    ///
    /// # Errors
    /// The system grants no such address space.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Region, RegionError> {
        self.reserve_on(bytes, PageSize::Huge)
    }

    /// As [`reserve`](Self::reserve), on pages of this size or smaller ones.
    ///
    /// # Errors
    /// The system grants no such address space.
    pub fn reserve_on(
        self: &Arc<Self>,
        bytes: usize,
        pages: PageSize,
    ) -> Result<Region, RegionError> {
        let _left = self.admit(bytes)?;
        let (unit, pages) = match bytes < HUGE_PAGE_BYTES {
            true => (SMALL_PAGE_BYTES, PageSize::Small),
            false => (HUGE_PAGE_BYTES, pages),
        };
        let backing = backing::Backing::reserve(bytes.next_multiple_of(unit), pages, true)?;
        Ok(Region { backing, space: Some(self.clone()) })
    }

    /// Reserves as much of `bytes` as the system grants. Each refusal halves the
    /// request, down to `least`. The address space cannot be used, and is not charged as committed
    /// memory, until the region [grows](Region::grow).
    ///
    /// # Errors
    /// The system does not grant `least` bytes either.
    pub fn reserve_to_grow(
        self: &Arc<Self>,
        bytes: usize,
        least: usize,
    ) -> Result<Region, RegionError> {
        let mut bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        loop {
            let reserved = self
                .admit(bytes)
                .and_then(|_left| backing::Backing::reserve(bytes, self.pages, false));
            match reserved {
                Ok(backing) => return Ok(Region { backing, space: Some(self.clone()) }),
                Err(error) if bytes / 2 < least => return Err(error),
                Err(_) => bytes = (bytes / 2).next_multiple_of(HUGE_PAGE_BYTES),
            }
        }
    }

    /// Counts a request for `bytes`. The result keeps address space for the rest of the process.
    /// The caller holds the result while the system serves the request.
    fn admit(&self, bytes: usize) -> Result<backing::Left, RegionError> {
        // Relaxed: counts.
        if self.requests.fetch_add(1, Relaxed) >= self.requests_max.load(Relaxed) {
            let reason = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return Err(RegionError { bytes, reason });
        }
        backing::Left::hold().map_err(|RegionError { reason, .. }| RegionError { bytes, reason })
    }
}

/// A slice of words, all zero at first. The operating system supplies each page at its first access.
/// The address of the slice never changes.
#[derive(Debug)]
pub struct Region {
    backing: backing::Backing,
    /// The address space from which the region grows.
    space: Option<Arc<AddressSpace>>,
}

impl Region {
    /// Reserves `bytes` of address space, rounded up to huge pages. Pages cost memory from their first
    /// access on.
    ///
    /// # Errors
    /// The system grants no such address space.
    pub fn reserve(bytes: usize) -> Result<Self, RegionError> {
        Self::reserve_with(bytes, PageSize::Huge)
    }

    /// Does as [`reserve`](Self::reserve), on pages of the given size.
    ///
    /// # Errors
    /// The system grants no such address space.
    pub fn reserve_with(bytes: usize, pages: PageSize) -> Result<Self, RegionError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        Ok(Self { backing: backing::Backing::reserve(bytes, pages, true)?, space: None })
    }

    /// The words that can be used.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.backing.words()
    }

    /// Bytes that can be used.
    pub fn len_bytes(&self) -> usize {
        self.words().len() * 8
    }

    /// Bytes of address space, including those that cannot be used yet.
    pub fn reserved_bytes(&self) -> usize {
        self.backing.reserved_words() * 8
    }

    /// Makes the first `bytes` usable, rounded up to huge pages.
    ///
    /// # Errors
    /// The system refuses the memory. The region is unchanged.
    ///
    /// # Panics
    /// If the reservation is shorter than `bytes`.
    pub fn grow(&self, bytes: usize) -> Result<(), RegionError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        assert!(bytes <= self.reserved_bytes(), "a region grows within its reservation");
        if bytes <= self.len_bytes() {
            return Ok(());
        }
        let _left = self.space.as_ref().map(|space| space.admit(bytes)).transpose()?;
        self.backing.grow(bytes)
    }

    /// Touches the pages of `words[first..first + count]` before their use, so that no transaction
    /// pays for page faults. Best effort.
    pub fn populate(&self, first: usize, count: usize) {
        self.backing.populate(first, count);
    }

    /// Leaves this memory out of child processes. A fork then copies no page tables of the region, and
    /// later writes copy no pages. A child that touches the region is killed. Best effort, permanent.
    pub fn keep_from_children(&self) {
        self.backing.keep_from_children();
    }

    /// Gives the pages of `words[first..first + count]` back to the system. The words read as zero
    /// afterwards. `first` and `count` must be multiples of a huge page. The caller makes sure that
    /// no thread uses these words.
    pub fn discard(&self, first: usize, count: usize) {
        assert!((first * 8).is_multiple_of(HUGE_PAGE_BYTES), "unaligned discard");
        assert!((count * 8).is_multiple_of(HUGE_PAGE_BYTES), "unaligned discard");
        self.backing.discard(first, count);
    }
}

#[cfg(not(any(loom, shuttle)))]
mod backing {
    use super::{HUGE_PAGE_BYTES, LEFT_BYTES, PageSize, RegionError};
    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
    use std::ffi::c_void;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use stillpoint_sync::atomic::AtomicU64;

    #[derive(Debug)]
    pub(super) struct Backing {
        words: NonNull<AtomicU64>,
        /// Number of words that can be read and written, from the first on. The number never
        /// shrinks.
        usable: AtomicUsize,
        reserved: usize,
        mapping: NonNull<c_void>,
        mapped_bytes: usize,
    }

    // SAFETY: the mapping is owned by this value, and is only reached as atomics.
    unsafe impl Send for Backing {}
    // SAFETY: as above.
    unsafe impl Sync for Backing {}

    impl Backing {
        /// `usable` says whether the memory can be used at once, or only after [`grow`](Self::grow).
        pub(super) fn reserve(
            bytes: usize,
            pages: PageSize,
            usable: bool,
        ) -> Result<Self, RegionError> {
            // The system aligns to its own pages.
            let slack = if bytes < HUGE_PAGE_BYTES { 0 } else { HUGE_PAGE_BYTES };
            let mapped_bytes = bytes + slack;
            let access =
                if usable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
            // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing
            // that exists.
            let mapping = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    mapped_bytes,
                    access,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }
            .map_err(|errno| RegionError { bytes, reason: errno.into() })?;
            let advice = match pages {
                PageSize::Small => Advice::LinuxNoHugepage,
                PageSize::Huge => Advice::LinuxHugepage,
            };
            let offset = if slack == 0 { 0 } else { mapping.align_offset(HUGE_PAGE_BYTES) };
            // SAFETY: offset is less than a huge page, which the mapping has in excess of `bytes`.
            let aligned = unsafe { mapping.byte_add(offset) };
            // SAFETY: the range lies inside the mapping made above. Advice changes no contents;
            // a refusal (no huge pages) only costs speed.
            let _ = unsafe { rustix::mm::madvise(aligned, bytes, advice) };
            let words = NonNull::new(aligned.cast()).expect("a mapping is never at zero");
            let mapping = NonNull::new(mapping).expect("a mapping is never at zero");
            let reserved = bytes / 8;
            let usable = AtomicUsize::new(if usable { reserved } else { 0 });
            Ok(Self { words, usable, reserved, mapping, mapped_bytes })
        }

        #[inline]
        pub(super) fn words(&self) -> &[AtomicU64] {
            // Relaxed: the system made the memory usable for all threads before the number was
            // stored. The allocator that gives out indexes orders the contents of the words.
            let usable = self.usable.load(Relaxed);
            // SAFETY: `words` points to at least `usable` words inside the mapping,
            // zero-initialised or written, aligned, readable and writable. The words live as long
            // as `self`, and are only reached as atomics.
            unsafe { std::slice::from_raw_parts(self.words.as_ptr(), usable) }
        }

        pub(super) fn reserved_words(&self) -> usize {
            self.reserved
        }

        /// Makes the words of the first `bytes` usable, at most those that are reserved.
        pub(super) fn grow(&self, bytes: usize) -> Result<(), RegionError> {
            assert!(bytes <= self.reserved * 8, "beyond the reservation");
            // Relaxed: a smaller number only makes the range longer.
            let usable = self.usable.load(Relaxed).min(bytes / 8);
            // SAFETY: `usable` is inside the mapping.
            let start = unsafe { self.words.as_ptr().add(usable) };
            // SAFETY: the range ends inside the mapping. The call only adds rights: what was usable
            // stays so.
            unsafe {
                rustix::mm::mprotect(
                    start.cast(),
                    bytes - usable * 8,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )
            }
            .map_err(|errno| RegionError { bytes, reason: errno.into() })?;
            // Relaxed: see `words`. All words up to here are usable, whoever made them so.
            self.usable.fetch_max(bytes / 8, Relaxed);
            Ok(())
        }

        pub(super) fn populate(&self, first: usize, count: usize) {
            let words = &self.words()[first..first + count];
            let start = words.as_ptr().cast::<c_void>().cast_mut();
            // SAFETY: the range is inside the mapping; populating keeps contents.
            let done = unsafe { rustix::mm::madvise(start, count * 8, Advice::LinuxPopulateWrite) };
            if done.is_err() {
                for word in words.iter().step_by(512) {
                    // Relaxed: an or with zero changes no value. Only the touch of the page counts.
                    word.fetch_or(0, Relaxed);
                }
            }
        }

        pub(super) fn keep_from_children(&self) {
            #[cfg(target_os = "linux")]
            {
                let start = self.mapping.as_ptr();
                // SAFETY: the range is the mapping made in `reserve`. The advice changes nothing in
                // this process. No child uses the memory: this crate makes none, and a caller that
                // forks is responsible for the child.
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
                    // Relaxed: the caller makes sure that nobody uses these words.
                    word.store(0, Relaxed);
                }
            }
        }
    }

    /// Address space for the rest of the process: reserved while the system grants more, and
    /// released afterwards.
    #[derive(Debug)]
    pub(super) struct Left(#[expect(dead_code, reason = "held, not used")] Backing);

    impl Left {
        pub(super) fn hold() -> Result<Self, RegionError> {
            Backing::reserve(LEFT_BYTES, PageSize::Small, true).map(Self)
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
    use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Words of the model checker; the reservation is cut down to what a model needs.
    #[derive(Debug)]
    pub(super) struct Backing(Vec<AtomicU64>);

    const MODEL_WORDS: usize = 2048;

    /// A model never runs out of memory.
    #[derive(Debug)]
    pub(super) struct Left;

    impl Left {
        pub(super) fn hold() -> Result<Self, RegionError> {
            Ok(Self)
        }
    }

    impl Backing {
        pub(super) fn reserve(bytes: usize, _: PageSize, _: bool) -> Result<Self, RegionError> {
            Ok(Self((0..MODEL_WORDS.min(bytes / 8)).map(|_| AtomicU64::new(0)).collect()))
        }
        pub(super) fn words(&self) -> &[AtomicU64] {
            &self.0
        }
        pub(super) fn reserved_words(&self) -> usize {
            self.0.len()
        }
        pub(super) fn grow(&self, _: usize) -> Result<(), RegionError> {
            Ok(())
        }
        pub(super) fn populate(&self, _: usize, _: usize) {}
        pub(super) fn keep_from_children(&self) {}
        pub(super) fn discard(&self, first: usize, count: usize) {
            for word in &self.0[first..first + count] {
                word.store(0, Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn words_start_at_zero_and_discard_brings_them_back_to_it() {
        let region = Region::reserve(5 << 20).expect("address space");
        assert_eq!(region.len_bytes(), 6 << 20);
        let words = region.words();
        assert!(std::ptr::from_ref(&words[0]).addr().is_multiple_of(HUGE_PAGE_BYTES));
        let page = HUGE_PAGE_BYTES / 8;
        region.populate(0, page);
        for word in words {
            assert_eq!(word.load(Relaxed), 0);
            word.store(7, Relaxed);
        }
        region.discard(page, page);
        assert_eq!(words[page - 1].load(Relaxed), 7);
        assert_eq!(words[page].load(Relaxed), 0);
        assert_eq!(words[2 * page].load(Relaxed), 7);
    }

    #[test]
    fn a_large_reservation_costs_nothing_and_grows() {
        let space = Arc::new(AddressSpace::default());
        let region = space.reserve_to_grow(1 << 40, 1 << 30).expect("address space");
        assert!(region.reserved_bytes() >= 1 << 30);
        assert_eq!(region.words().len(), 0);
        region.grow(3 << 20).expect("memory");
        assert_eq!(region.len_bytes(), 4 << 20);
        region.words().last().expect("not empty").store(1, Relaxed);
        region.grow(1).expect("nothing to do");
        region.grow(64 << 20).expect("memory");
        assert_eq!(region.len_bytes(), 64 << 20);
        assert_eq!(region.words()[(4 << 20) / 8 - 1].load(Relaxed), 1);
    }

    #[test]
    fn address_space_that_ends_is_a_typed_error() {
        let space = Arc::new(AddressSpace::default());
        let region = space.reserve_to_grow(1 << 30, 1 << 30).expect("address space");
        space.end_after(2);
        let small = space.reserve(100).expect("the second request");
        assert!(small.len_bytes() < HUGE_PAGE_BYTES);
        assert!(space.reserve(100).is_err());
        assert!(region.grow(1).is_err());
        assert_eq!(region.words().len(), 0, "a refusal changes nothing");
        assert_eq!(space.requests(), 4);
        space.end_after(usize::MAX);
        region.grow(1).expect("memory");
    }
}
