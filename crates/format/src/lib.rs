//! Encodes, decodes and checksums every byte that Stillpoint writes to a disk. Knows no I/O and no
//! threads.
//!
//! `docs/formats.md` is the specification, and this crate is its only implementation. All integers
//! are little-endian. A CRC32C covers every byte of a file, seeded with the identity of the file
//! ([`ident`]). So a flipped, swapped, stale or misplaced block is reported and never returned as
//! data.
//!
//! | module | what it describes |
//! |---|---|
//! | [`hash`] | the keyed hash of a key, and the partition that it selects |
//! | [`ident`] | store ids, file headers, seeded checksums |
//! | [`stamp`] | who wrote a cell last |
//! | [`Label`] | tag and deadline of a record |
//! | [`names`] | files and directories under the data directory |
//! | [`node`] | slotted nodes of ordered indexes: header, slots, entries |
//! | [`pages`] | pages of paged tables, and the map of their places |
//! | [`large`] | values of paged tables that are too long for a leaf |
//! | [`log`] | redo log: segments, batches, records |
//! | [`page_log`] | records of paged tables, in operations of the log |
//! | [`part`] | checkpoint part files: blocks, records, index |
//! | [`manifest`] | the one document that says which files count |
//! | [`registry`] | tables of what a file or an option may name |
//! | [`siren`] | SIREN stores: pages of tuples, directory, header, log |
//! | [`state`] | state arrays: schema, images, log of actions |

mod bytes;
mod error;
pub mod hash;
pub mod ident;
mod label;
pub mod large;
pub mod log;
pub mod manifest;
pub mod names;
pub mod node;
pub mod page_log;
pub mod pages;
pub mod part;
pub mod registry;
pub mod siren;
pub mod stamp;
pub mod state;

pub use error::{DecodeCause, DecodeError, EncodeError};
pub use label::Label;
pub use stamp::Stamp;

/// The version of the MANIFEST, of log segments and of checkpoint parts that this build writes,
/// and the only one it reads.
pub const FORMAT_VERSION: u32 = 2;

/// The version of the files of state arrays that this build writes, and the only one it reads.
pub const STATE_FORMAT_VERSION: u32 = 2;

/// The version of the files of SIREN stores that this build writes, and the only one it reads.
pub const SIREN_FORMAT_VERSION: u32 = 1;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 65_536;

/// Longest value, in bytes (512 MiB).
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// Largest global sequence number: 52 bits.
pub const GSN_MAX: u64 = (1 << 52) - 1;

/// Logs are numbered `0..=254`. 255 means "no log".
pub const LOG_NONE: u8 = 255;

/// Most partitions of a checkpoint, as a power of two.
pub const PARTITIONS_LOG2_MAX: u8 = 16;

/// A position in one log: the record of `log` that has this global sequence number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct LogGsn {
    /// Number of the log, `0..=254`.
    pub log: u8,
    /// Global sequence number, at most [`GSN_MAX`].
    pub gsn: u64,
}
