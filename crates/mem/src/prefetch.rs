/// Asks the processor to bring the cache line where this place begins nearer. Never faults, never blocks.
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

/// Asks the processor to bring the cache lines of this place nearer, to be written: without it the
/// first store to a line that another core has used waits for it. Never faults, never blocks.
#[inline]
pub fn prefetch_to_write<T>(place: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of_val(place)).step_by(LINE_BYTES) {
        let line = place.as_ptr().cast::<u8>().wrapping_add(offset);
        // SAFETY: prefetching has no effect on memory, and `line` lies in `place`.
        // Processors without the instruction take it for one that does nothing.
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
