//! The allocator's setting for freed memory. ⚠ unsafe lives here, in one small documented block.

/// Allocations of this many bytes and more are given back to the system when they are freed.
pub const RETURNED_BYTES_MIN: usize = 256 << 10;

/// Makes the allocator return large freed memory to the system at once: allocations of
/// [`RETURNED_BYTES_MIN`] and more. Otherwise the GNU allocator keeps such memory once a large
/// allocation was freed. Memory that the allocator has kept until this call is returned, too.
/// Returns false for another allocator, whose settings stay unchanged.
pub fn return_large_allocations() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: mallopt takes two numbers. It may be called at any time and locks what it changes.
        // The call changes no memory that is allocated.
        let set = |option, bytes: usize| unsafe { libc::mallopt(option, bytes as libc::c_int) };
        // The allocator never raises a threshold that was set, only its own default.
        let is_set = set(libc::M_MMAP_THRESHOLD, RETURNED_BYTES_MIN) == 1
            && set(libc::M_TRIM_THRESHOLD, 16 * RETURNED_BYTES_MIN) == 1;
        return_freed_memory();
        is_set
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}

/// Makes the allocator return all whole pages of freed memory to the system, also those between memory that
/// is in use. Otherwise the GNU allocator keeps these, and returns the free end of a heap alone. While the
/// call looks at a heap, nobody allocates there. Another allocator is left alone.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number. It may be called at any time and locks what it changes. The call
    // changes no memory that is allocated.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Bytes that the allocator takes from the system at a time after [`grow_heap_in_large_steps`].
const STEP_BYTES: usize = 32 << 20;

/// Makes the allocator take memory for small values in large steps, so that huge pages fit in. Costs no memory
/// until it is used, but so much may be kept once it was. From here on each allocation of 128 KiB or more has a
/// mapping of its own, unless another size was set. Returns false for another allocator than that of GNU.
pub fn grow_heap_in_large_steps() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: as in `return_large_allocations`.
        unsafe { libc::mallopt(libc::M_TOP_PAD, STEP_BYTES as libc::c_int) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn large_memory_stays_in_mappings_of_its_own() {
        assert!(return_large_allocations());
        // Without the setting, this free would make the allocator give mappings only to allocations
        // larger than this one.
        drop(std::hint::black_box(vec![1u8; 16 << 20]));
        // An allocation with a mapping of its own begins behind a page's first two words of
        // bookkeeping.
        let own = |bytes: &Vec<u8>| bytes.as_ptr().addr() % rustix::param::page_size() == 16;
        let held: Vec<Vec<u8>> = (0..16).map(|_| vec![1; RETURNED_BYTES_MIN]).collect();
        assert!(held.iter().all(own), "freed, it would be kept");
    }
}
