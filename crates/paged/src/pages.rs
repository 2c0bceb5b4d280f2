//! The page store: pages in slots of a file, written out of place, and found through a map.
//!
//! Out-of-place writing follows *How to Write to SSDs* (arXiv 2603.09927). Batches and the order of
//! their steps follow Haubenschild, Sauer, Neumann, Leis, *Rethinking Logging, Checkpoints, and
//! Recovery* (SIGMOD 2020), section 3.5. Decision 0037 says where durability comes from.
//!
//! ```text
//! claim ─▶ copy ─▶ free slots ─▶ large writes ─▶ map in memory ─▶ persisted gsn, old slot
//!                                                     │
//!      round of the map on the disk ◀── flush ◀── checkpoint
//! ```
//! 1. A page never overwrites another one, nor itself. So there are no torn pages.
//! 2. What a round of the map names that counts, or may soon count, is overwritten by nothing. So a
//!    crash finds all pages as that round has left them, whatever was written since.
//! 3. The persisted gsn of a frame becomes that of its *copy*, and only after the write. So a change
//!    that came during the write-back makes the frame dirty. Reads find what was written. A crash finds
//!    the pages of the round that counts alone, so one flush for each round is enough.
//! 4. A failed write or flush is final: nothing advances, and the store takes no further write.
//! 5. A page from the disk is used only if its checksum, its number, and the gsn bits of its map
//!    entry are right.

mod backed;
mod bits;
mod error;
mod ids;
mod map;
mod map_file;
mod planted;
mod read;
mod slots;
mod store;
mod write_back;

pub use error::PagesError;
pub use store::{GROWTH_BYTES, PageStore, PageStoreConfig, PageStoreStats};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
