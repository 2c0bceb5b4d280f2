//! Frames of a buffer pool: pages of atomic words on huge pages, and the places in them that a
//! device fills by address.
//!
//! Nobody ever has a `&[u8]` or a `&mut [u8]` to a frame. Threads reach a frame as atomic words. A
//! device writes to the address of a [`Target`], which keeps the memory alive.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use stillpoint_sync::atomic::AtomicU64;

use crate::region::{Region, RegionError};

/// Frames of equal size, all zero at first. Their addresses never change. A frame costs memory from
/// its first access on.
#[derive(Debug)]
pub struct Frames {
    region: Region,
    count: usize,
    page_words: usize,
}

impl Frames {
    /// Reserves `count` frames of `page_bytes` bytes, a power of two of at least 512.
    ///
    /// # Errors
    /// The system grants no such address space.
    ///
    /// # Panics
    /// If `page_bytes` is no such number.
    pub fn new(count: usize, page_bytes: usize) -> Result<Arc<Self>, RegionError> {
        assert!(page_bytes.is_power_of_two() && page_bytes >= 512, "no size of a page");
        let Some(bytes) = count.checked_mul(page_bytes) else {
            let reason = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(RegionError { bytes: usize::MAX, reason });
        };
        let region = Region::reserve(bytes)?;
        // A forked child would share the frames until the next write. A device that fills a shared
        // frame by address would fill the child's copy of the page, or ours.
        region.keep_from_children();
        let frames = Self { region, count, page_words: page_bytes / 8 };
        assert!(frames.region.words().len() >= count * frames.page_words, "as long as asked for");
        Ok(Arc::new(frames))
    }

    /// Number of frames.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of a frame.
    pub fn page_bytes(&self) -> usize {
        self.page_words * 8
    }

    /// The words of a frame.
    ///
    /// # Panics
    /// If there is no such frame.
    #[inline]
    pub fn words(&self, frame: usize) -> &[AtomicU64] {
        assert!(frame < self.count, "no such frame");
        &self.region.words()[frame * self.page_words..][..self.page_words]
    }

    /// The frame as the target of a read from a device.
    ///
    /// # Panics
    /// If there is no such frame.
    pub fn target(self: &Arc<Self>, frame: usize) -> Target {
        assert!(frame < self.count, "no such frame");
        Target { frames: self.clone(), frame }
    }

    /// Touches the memory of some frames before their use. Best effort. A pool calls this from a
    /// thread of its own.
    ///
    /// # Panics
    /// If there are no such frames.
    pub fn populate(&self, frames: Range<usize>) {
        assert!(frames.start <= frames.end && frames.end <= self.count, "no such frames");
        self.region.populate(frames.start * self.page_words, frames.len() * self.page_words);
    }
}

/// A frame that a device fills while other threads may read it as words. A clone keeps the memory
/// alive, too.
#[derive(Clone)]
pub struct Target {
    frames: Arc<Frames>,
    frame: usize,
}

impl Target {
    /// The words of the frame.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.frames.words(self.frame)
    }

    /// Bytes of the frame.
    pub fn bytes(&self) -> usize {
        self.frames.page_bytes()
    }

    /// Number of the frame.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// The address of the frame. Its [`bytes`](Self::bytes) bytes can be read and written as long as
    /// this value lives, and threads of this process access them as atomics alone.
    #[cfg(not(any(loom, shuttle)))]
    pub fn address(&self) -> std::ptr::NonNull<u8> {
        std::ptr::NonNull::from(self.words()).cast()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("frame", &self.frame)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn frames_lie_apart_and_are_aligned() {
        let frames = Frames::new(5, 16 << 10).expect("address space");
        frames.populate(0..5);
        frames.populate(5..5);
        for frame in 0..5 {
            let words = frames.words(frame);
            assert!(words.len() == 2048 && words.iter().all(|word| word.load(Relaxed) == 0));
            assert!(frames.target(frame).address().addr().get().is_multiple_of(4096));
            words.iter().for_each(|word| word.store(frame as u64 + 1, Relaxed));
        }
        for frame in 0..5 {
            let target = frames.target(frame);
            assert_eq!((target.bytes(), target.frame()), (16 << 10, frame));
            assert!(target.words().iter().all(|word| word.load(Relaxed) == frame as u64 + 1));
        }
    }

    #[test]
    fn a_target_keeps_the_memory() {
        let frames = Frames::new(2, 4096).expect("address space");
        let target = frames.target(1);
        drop(frames);
        target.words()[511].store(7, Relaxed);
        assert_eq!(target.clone().words()[511].load(Relaxed), 7);
    }

    #[test]
    fn too_many_frames_are_a_typed_error() {
        assert!(Frames::new(usize::MAX / 8, 4096).is_err());
        assert!(Frames::new(1 << 50, 4096).is_err());
    }
}
