//! ⚠ unsafe lives here, in small documented blocks.
//!
//! Reserved memory regions on huge pages, bytes in atomic words, and prefetch. Knows no transactions.
//!
//! A [`Region`] is a slice of atomic words over a large reservation of address space, which becomes
//! usable as the region grows. [`Segments`] are words that take address space only when they grow.
//! Both get their memory from an [`AddressSpace`]. Cells, indexes and large values are safe code over
//! `&[AtomicU64]`, so a stale cell number or a torn read is never undefined behaviour. A [`Table`]
//! holds cells of plain data in several copies, which one thread changes while another captures them.
//! [`Frames`] are the pages of a buffer pool, which a device fills by address.

mod frames;
mod huge;
mod prefetch;
mod region;
mod segments;
mod table;
pub mod words;

pub use frames::{Frames, Target};
pub use huge::{HugeHeap, huge_slice, prefer_huge_pages};
pub use prefetch::{prefetch, prefetch_shared, prefetch_to_write};
pub use region::{AddressSpace, HUGE_PAGE_BYTES, PageSize, Region, RegionError};
pub use segments::Segments;
pub use table::{CellCursor, Grain, Placement, Spot, Table, TableShape, copy_grains};
