//! The four flag bits that a cell keeps below its stamp.

use stillpoint_format::Stamp;

/// The cell is being written, so readers try again.
pub(crate) const BUSY: u64 = 1;
/// The key has no value.
pub(crate) const ABSENT: u64 = 2;
/// The cell belongs to no key any more.
pub(crate) const DEAD: u64 = 4;
/// The newest value is in the second copy of the cell.
pub(crate) const SECOND: u64 = 8;

/// The word of a stamp with flags.
#[inline]
pub(crate) fn word(stamp: Stamp, flags: u64) -> u64 {
    stamp.to_bits() | flags
}
