//! Typed errors.

use stillpoint_mem::RegionError;

use crate::arrays::{ARRAYS_MAX, NAME_BYTES_MAX};

/// Arrays that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ArraysError {
    /// None, or too many.
    #[error("a state of {arrays} arrays: 1 to {ARRAYS_MAX} are allowed; put more into one cell")]
    Count {
        /// How many were named.
        arrays: usize,
    },
    /// A name that is empty or too long.
    #[error("array name {name:?}: 1 to {NAME_BYTES_MAX} bytes are allowed")]
    Name {
        /// The name.
        name: String,
    },
    /// Two arrays of one name.
    #[error("two arrays are named {name:?}; names tell them apart on the disk")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The memory of an array cannot be had.
    #[error("array {name:?}: {source}")]
    Memory {
        /// The array.
        name: String,
        /// Why.
        #[source]
        source: RegionError,
    },
    /// Cells are filled before the first tick only.
    #[error("cells are filled before the first tick, and {ticks} have ended; write them instead")]
    AlreadyTicking {
        /// Ticks ended so far.
        ticks: u64,
    },
}
