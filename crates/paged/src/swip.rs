//! A reference from an inner node to a child: the frame that holds the child, or its page id.
//!
//! ```text
//!  63    62    61                                   0
//! ┌─────┬─────┬──────────────────────────────────────┐
//! │ in  │cool │ frame, or page id if not in a frame  │
//! └─────┴─────┴──────────────────────────────────────┘
//! ```
//! After Leis, Haubenschild, Kemper, Neumann: *LeanStore* (ICDE 2018), where a swip is a pointer. Here
//! the cool state is a mark in the swip, so a reader that meets a cool child needs no shared table.
//! The copy of a page for the disk has page ids alone.

const IN_FRAME: u64 = 1 << 63;
const COOL: u64 = 1 << 62;

/// Where a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swip {
    /// The child is in this frame.
    Hot(u32),
    /// The child is in this frame, and is evicted soon unless somebody reads it.
    Cool(u32),
    /// The child is not attached to a frame, and has this page id.
    Out(u64),
}

impl Swip {
    /// The parts of a word.
    #[inline]
    pub(crate) fn unpack(word: u64) -> Self {
        match word & (IN_FRAME | COOL) {
            0 | COOL => Self::Out(word),
            IN_FRAME => Self::Hot(word as u32),
            _ => Self::Cool(word as u32),
        }
    }

    /// The word.
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Hot(frame) => IN_FRAME | u64::from(frame),
            Self::Cool(frame) => IN_FRAME | COOL | u64::from(frame),
            Self::Out(page) => page,
        }
    }

    /// The frame, if the child is in one.
    #[inline]
    pub(crate) fn frame(self) -> Option<u32> {
        match self {
            Self::Hot(frame) | Self::Cool(frame) => Some(frame),
            Self::Out(_) => None,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_swip_is_the_same_after_packing() {
        for swip in [
            Swip::Hot(0),
            Swip::Hot(u32::MAX),
            Swip::Cool(0),
            Swip::Cool(u32::MAX),
            Swip::Out(0),
            Swip::Out((1 << 62) - 1),
        ] {
            assert_eq!(Swip::unpack(swip.pack()), swip);
        }
        assert_eq!(Swip::Hot(7).frame(), Some(7));
        assert_eq!(Swip::Out(7).frame(), None);
    }
}
