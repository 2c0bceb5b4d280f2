//! Hints to the processor: which cache lines will be needed soon.

use std::sync::Arc;

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
/// Bytes before the value of an `Arc` that its clone and its drop meet: the two counts, and the size of the
/// allocation.
const SHARED_HEAD_BYTES: usize = 3 * size_of::<usize>();
/// The processor itself fetches lines behind these.
const SHARED_LINES_MAX: usize = 4;

/// Prefetches the cache lines of a shared value, those of its counts included, the first four at most. Never
/// faults, never blocks.
#[inline]
pub fn prefetch_shared<T: ?Sized>(shared: &Arc<T>) {
    let first = Arc::as_ptr(shared).cast::<u8>().wrapping_sub(SHARED_HEAD_BYTES);
    let bytes = SHARED_HEAD_BYTES + size_of_val(&**shared);
    let lines = (first.addr() % LINE_BYTES + bytes).div_ceil(LINE_BYTES);
    for line in 0..lines.min(SHARED_LINES_MAX) {
        let line = first.wrapping_add(line * LINE_BYTES);
        #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: prefetching has no effect on memory, also at an address that is not valid.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
        let _ = line;
    }
}

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
