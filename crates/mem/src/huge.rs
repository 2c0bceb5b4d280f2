//! Huge pages for large vectors, and for many small allocations.

use std::collections::BTreeMap;

use crate::region::HUGE_PAGE_BYTES;

/// Advice goes up to a multiple of this address. The GNU allocator gives the heaps of threads such sizes, so what
/// lies beyond belongs to others.
const HEAP_BYTES: usize = 64 << 20;

/// Asks the system for huge pages behind the room of a large vector. The system takes the advice for pages that
/// are not in use yet, so the best moment is after the vector has got more room. A refusal costs only speed.
pub fn prefer_huge_pages<T>(of: &Vec<T>) {
    #[cfg(not(any(loom, shuttle)))]
    {
        let bytes = of.capacity() * size_of::<T>();
        let start = of.as_ptr().cast::<u8>();
        let skipped = start.align_offset(HUGE_PAGE_BYTES);
        let whole = bytes.saturating_sub(skipped) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if whole == 0 {
            return;
        }
        advise(start.wrapping_add(skipped), whole);
    }
    #[cfg(any(loom, shuttle))]
    let _ = of;
}

/// A slice of `count` values, on huge pages where it is large enough and the system has them.
pub fn huge_slice<T>(count: usize, make: impl FnMut() -> T) -> Box<[T]> {
    let mut values = Vec::with_capacity(count);
    prefer_huge_pages(&values);
    values.resize_with(count, make);
    values.into_boxed_slice()
}

#[cfg(not(any(loom, shuttle)))]
fn advise(start: *const u8, bytes: usize) {
    // SAFETY: the advice changes no contents, whoever owns them. The system skips what is not mapped.
    let _ = unsafe {
        rustix::mm::madvise(start.cast_mut().cast(), bytes, rustix::mm::Advice::LinuxHugepage)
    };
}

/// Asks for huge pages where the allocator puts small values next, as long as its memory grows. It helps once
/// the allocator takes memory in steps of several huge pages. A refusal costs only speed.
#[derive(Debug, Default)]
pub struct HugeHeap {
    /// Of each part of the address space, the address up to which nothing is to be done.
    seen: BTreeMap<usize, usize>,
}

impl HugeHeap {
    /// Takes notice of a new allocation.
    pub fn note<T>(&mut self, new: &T) {
        let place = std::ptr::from_ref(new).cast::<u8>();
        let heap = place.addr() / HEAP_BYTES;
        let seen = self.seen.entry(heap).or_default();
        if place.addr() < *seen {
            return;
        }
        // The page of the allocation itself is in use.
        *seen = (place.addr() + 1).next_multiple_of(HUGE_PAGE_BYTES);
        let (skipped, end) = (*seen - place.addr(), (heap + 1) * HEAP_BYTES);
        #[cfg(not(any(loom, shuttle)))]
        if *seen < end {
            advise(place.wrapping_add(skipped), end - *seen);
        }
        #[cfg(any(loom, shuttle))]
        let _ = (skipped, end);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_all_sizes_keep_their_contents() {
        for len in [0, 1, 1 << 10, 1 << 20] {
            let mut values: Vec<u64> = (0..len).collect();
            prefer_huge_pages(&values);
            values.reserve_exact(len as usize);
            prefer_huge_pages(&values);
            values.extend(len..2 * len);
            assert!(values.iter().copied().eq(0..2 * len), "{len} values");
        }
        prefer_huge_pages(&vec![(); 3]);
    }

    #[test]
    fn a_slice_has_so_many_values() {
        for count in [0, 3, 1 << 19] {
            let mut next = 0..;
            let values = huge_slice(count, || next.next());
            assert!(values.iter().copied().eq((0..count).map(Some)), "{count} values");
        }
    }

    #[test]
    fn small_values_keep_their_contents() {
        let mut heap = HugeHeap::default();
        let values: Vec<Box<[u64; 32]>> = (0..40_000).map(|value| Box::new([value; 32])).collect();
        for value in &values {
            heap.note(&**value);
        }
        assert!(!heap.seen.is_empty());
        assert!(values.iter().zip(0..).all(|(value, of)| **value == [of; 32]));
    }
}
