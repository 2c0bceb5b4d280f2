//! The roles of two copies that a scheme swaps.

/// The two copies' roles in a period, for the schemes that swap two copies. The papers call the roles u
/// and d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveCopy {
    /// The copy that collects updates: 0 or 1, in turn.
    pub up: usize,
    /// The low eight bits of the number of the period. The first period has number 0.
    pub period: u8,
}

impl LiveCopy {
    /// The roles in the first period of a state.
    pub(crate) const FIRST: LiveCopy = LiveCopy { up: 0, period: 0 };

    /// The other copy: d of the papers, which the capture reads.
    #[inline]
    pub fn down(self) -> usize {
        1 - self.up
    }

    /// The roles in the next period.
    pub(crate) fn swapped(self) -> Self {
        Self { up: self.down(), period: self.period.wrapping_add(1) }
    }
}
