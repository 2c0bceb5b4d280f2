//! ⚠ unsafe lives here, in small documented blocks.
//!
//! Reserved memory regions on huge pages, and prefetch. Knows no transactions.
//!
//! A [`Region`] is a slice of atomic words over a large reservation of address space, which becomes
//! usable as it grows; [`Segments`] are words that take address space by need. Both come through an
//! [`AddressSpace`]. Everything
//! above it (cells, indexes, large values) is safe code over `&[AtomicU64]`: no stale cell number
//! and no torn read can be undefined behaviour. A [`Table`] does the same for cells of plain data in
//! several copies, which one thread changes while another captures them.

mod prefetch;
mod region;
mod segments;
mod table;

pub use prefetch::{prefetch, prefetch_to_write};
pub use region::{AddressSpace, HUGE_PAGE_BYTES, PageSize, Region, RegionError};
pub use segments::Segments;
pub use table::{CellCursor, Grain, Placement, Spot, Table, TableShape, copy_grains};
