//! ⚠ unsafe lives here, in small documented blocks.
//!
//! Reserved memory regions on huge pages, and prefetch. Knows no transactions.
//!
//! A [`Region`] is a slice of atomic words over a large reservation of address space. Everything
//! above it (cells, indexes, large values) is safe code over `&[AtomicU64]`: no stale cell number
//! and no torn read can be undefined behaviour.

mod prefetch;
mod region;

pub use prefetch::{prefetch, prefetch_to_write};
pub use region::{HUGE_PAGE_BYTES, Region, RegionError};
