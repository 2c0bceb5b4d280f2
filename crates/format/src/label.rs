//! What a record keeps beside its value.

/// Tag and deadline of a record. The store keeps both, and gives neither a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// Eight bits for the program's own use, such as a type.
    pub tag: u8,
    /// A time after which the program takes the record for gone, in a unit of its own; 0 for none.
    pub deadline: u64,
}

impl Label {
    /// Bytes of a deadline.
    pub const DEADLINE_BYTES: usize = 8;

    /// Bytes that the record takes for its deadline.
    #[inline]
    pub const fn deadline_bytes(self) -> usize {
        if self.deadline == 0 { 0 } else { Self::DEADLINE_BYTES }
    }
}

impl From<u8> for Label {
    #[inline]
    fn from(tag: u8) -> Self {
        Self { tag, deadline: 0 }
    }
}
