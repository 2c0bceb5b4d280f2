//! The reason why a node refuses a change. The node is unchanged then.

/// A change that a node cannot take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The node has no room. Compact or split the node, and try again.
    #[error("the node has no room for {needed_bytes} bytes: compact or split it")]
    Full {
        /// Bytes of the heap and the slots that the change needs.
        needed_bytes: usize,
    },
    /// A record with this key exists already.
    #[error("slot {slot} holds a record with this key: update it")]
    Exists {
        /// The record's slot.
        slot: usize,
    },
    /// The key is too long for pages of this size.
    #[error("key of {bytes} bytes: pages of this size take at most {bytes_max}")]
    KeyTooLong {
        /// The key's length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The value is too long to lie in a node.
    #[error("value of {bytes} bytes: nodes of this size take at most {bytes_max}")]
    ValueTooLong {
        /// The value's length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A patch reaches beyond the end of the value.
    #[error("patch up to byte {end} of a value of {bytes} bytes: update the value to lengthen it")]
    PatchBeyondEnd {
        /// End of the patch, in bytes from the beginning of the value.
        end: usize,
        /// The value's length in bytes.
        bytes: usize,
    },
}
