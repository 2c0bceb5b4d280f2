//! Hints to the processor: which cache lines will be needed soon.

/// Prefetches the cache line in which `place` begins. Never faults, never blocks.
#[inline]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on memory, and the reference is a valid address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = place;
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches the cache lines of `place` for writing. Without the prefetch, the first store to a line
/// that another core has used waits for that line. Never faults, never blocks.
#[inline]
pub fn prefetch_to_write<T>(place: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of_val(place)).step_by(LINE_BYTES) {
        let line = place.as_ptr().cast::<u8>().wrapping_add(offset);
        // SAFETY: prefetching has no effect on memory, and `line` lies in `place`.
        // Processors without the instruction execute it as a no-op.
        unsafe {
            std::arch::asm!(
                "prefetchw [{line}]",
                line = in(reg) line,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
