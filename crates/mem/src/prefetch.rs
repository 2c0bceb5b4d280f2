use stillpoint_sync::atomic::AtomicU64;

/// Asks the processor to bring the cache line of this word nearer. Never faults, never blocks.
#[inline]
pub fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on memory, and the reference is a valid address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = word;
}
