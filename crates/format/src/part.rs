//! Checkpoint part files (`docs/formats.md`, "Checkpoint part").
//!
//! ```text
//! part  = header block (4096) · block · block · … · footer · zero padding · trailer (32)
//! block = header (40) · payload, plain or compressed; all its records are of one partition
//! entry = head (16) · [fragment (8)] · key · value
//! ```
//!
//! Parts are written front to back: blocks as they fill, in any order of partitions, then the
//! footer that indexes them. The file's length is a multiple of 4096. Checksums form a chain. The
//! manifest holds the checksum of the index, and the index holds the checksum of each block's
//! header. The header holds the checksum of the block's payload.

mod block;
mod codec;
mod entry;
mod header;
mod index;
mod keys;
mod open;

pub use block::{BLOCK_HEADER_BYTES, BLOCK_TARGET_BYTES, BlockBuilder, BlockMark, KeyRef};
pub use codec::{CODECS, Codec, Compressor};
pub use entry::{
    Content, Entry, EntryIter, FRAGMENT_BYTES, Fragment, FragmentJoiner, Joined, fragments,
};
pub use header::PartHeader;
pub use index::{BlockEntry, IndexBuilder, PartIndex, PartTotals, TRAILER_BYTES, Trailer};
pub use keys::{HashBegin, KeyMap};
pub use open::{BLOCK_BYTES_MAX, Block, BlockReader};
