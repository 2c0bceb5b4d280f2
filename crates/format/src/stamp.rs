//! The last writer of a cell: a log and a global sequence number in one word.

use crate::{GSN_MAX, LOG_NONE};

/// Shift of the log number. The four bits below it are zero here, and free for the holder's flags.
const LOG_SHIFT: u32 = 4;
/// Shift of the global sequence number.
const GSN_SHIFT: u32 = 12;
/// The bits that the holder of a stamp may use for itself.
const FLAGS: u64 = (1 << LOG_SHIFT) - 1;

/// The last writer of a cell: global sequence number (52 bits) and log (8 bits). The remaining four
/// bits are always zero in a `Stamp`, and a cell may use them for flags of its own.
///
/// Stamps are ordered by gsn first. Log 255 means "no log": such a stamp names nothing that a crash
/// could lose.
///
/// ```
/// use stillpoint_format::Stamp;
/// let stamp = Stamp::new(4711, 3);
/// assert_eq!((stamp.gsn(), stamp.log()), (4711, 3));
/// assert!(Stamp::NONE.is_none() && Stamp::NONE < stamp);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// Written by no log: a cell that was never written, or written without a journal.
    pub const NONE: Stamp = Stamp::new(0, LOG_NONE);

    /// The stamp of the record `gsn` of `log`. `gsn` must be at most [`GSN_MAX`].
    #[inline]
    pub const fn new(gsn: u64, log: u8) -> Self {
        debug_assert!(gsn <= GSN_MAX, "a gsn has 52 bits");
        Stamp(gsn << GSN_SHIFT | (log as u64) << LOG_SHIFT)
    }

    /// The stamp in a word, without the four flag bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Stamp(bits & !FLAGS)
    }

    /// The word: gsn, log, and four zero bits.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Global sequence number of the record.
    #[inline]
    pub const fn gsn(self) -> u64 {
        self.0 >> GSN_SHIFT
    }

    /// Number of the log. [`LOG_NONE`] if no log wrote the cell.
    #[inline]
    pub const fn log(self) -> u8 {
        (self.0 >> LOG_SHIFT) as u8
    }

    /// Whether the stamp names no log. Such a stamp may still have a gsn: a floor that later gsns
    /// exceed.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.log() == LOG_NONE
    }
}

impl std::fmt::Debug for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.log(), self.gsn())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_apart_at_their_limits() {
        for gsn in [0, 1, GSN_MAX] {
            for log in [0, 1, 254, LOG_NONE] {
                let stamp = Stamp::new(gsn, log);
                assert_eq!((stamp.gsn(), stamp.log()), (gsn, log));
                assert_eq!(stamp.to_bits() & FLAGS, 0);
                assert_eq!(Stamp::from_bits(stamp.to_bits() | FLAGS), stamp);
            }
        }
    }

    #[test]
    fn stamps_order_by_gsn_before_log() {
        assert!(Stamp::new(5, 254) < Stamp::new(6, 0));
        assert!(Stamp::new(5, 0) < Stamp::new(5, 1));
        assert_eq!(format!("{:?}", Stamp::new(12, 3)), "3@12");
    }
}
