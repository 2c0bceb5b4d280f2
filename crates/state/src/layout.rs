//! Where copies and marks lie: SIGMOD 2011, §4.2 and §4.3.

use std::fmt::Debug;

use stillpoint_mem::Placement;

mod sealed {
    pub trait Sealed {}
}

/// A layout of a state's arrays. Every scheme's logic is written once, for all layouts.
pub trait Layout: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The layout's name in options and figures.
    const NAME: &'static str;
    /// Where copies lie, and marks if marks are bytes.
    const PLACEMENT: Placement;
    /// True if marks are bits in an array of their own.
    const BITS: bool;
}

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $text:literal, $placement:ident, $bits:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Layout for $name {
            const NAME: &'static str = $text;
            const PLACEMENT: Placement = Placement::$placement;
            const BITS: bool = $bits;
        }
    };
}

layout!(
    /// Each copy an array, each mark a byte in an array: NZZ, NPP.
    Naive, "naive", Apart, false
);
layout!(
    /// A cell's copies and mark bytes side by side in a cache line: IZZ, IPP.
    Interleaved, "interleaved", Rows, false
);
layout!(
    /// Column by column inside each cache line, mark bytes together: PZZ, after PAX.
    Packed, "packed", Lines, false
);
layout!(
    /// Copies column by column in a cache line. Marks are bits elsewhere, and the columns of marks
    /// share each of their cache lines: BAZZ, BACOU.
    BitArray, "bit-array", Lines, true
);
