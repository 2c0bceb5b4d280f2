//! Paged tables: ordered tables in pages of a file, as large as the disk, over a buffer pool.
//!
//! A paged table is a B+-tree. Its pages lie in the frames of a pool while they are used, and in a
//! *backing* otherwise. Readers take no latch. Transactions lock keys, and stretches of keys, in tables of
//! words that never grow, and change pages in place. Each change has a record in the log, for redo and for undo.
//!
//! | module | what |
//! |---|---|
//! | `backing` | the pages outside of the pool, as a trait |
//! | `pages` | the page store: slots, the map of places, write-back, what a crash leaves |
//! | `swip`, `frame`, `pool` | references to children, headers and latches of frames, the pool |
//! | `loads`, `provider` | pages on their way into frames; cooling, writing and evicting |
//! | `large`, `freeing` | values that are too long for a leaf; who frees pages |
//! | `tree` | the B+-tree: descents, points, ranges, changes, splits |
//! | `locks`, `held`, `open` | words of keys and stretches; those of a transaction; open transactions |
//! | `tables`, `log` | generations and numbers of records |
//! | `check`, `read_only` | the check of all pages on a disk, and of all trees; pages that are only read |
//! | `kind`, `part`, `redo` | the kind of table, its part in a transaction, and its replay |
//! | `slots`, `ahead` | the keys of a transaction; places that were found ahead of their use |
//!
//! This crate knows neither the journal nor the memory store: `stillpoint-txn` has the traits of both
//! sides.

mod ahead;
mod backing;
mod check;
mod frame;
mod freeing;
mod held;
mod kind;
mod large;
mod loads;
mod locks;
mod log;
#[cfg(all(test, loom))]
mod models;
mod open;
mod pages;
mod part;
pub mod planted;
mod pool;
mod provider;
mod read_only;
mod redo;
mod slots;
mod swip;
mod tables;
mod tree;

pub use backing::{
    Backing, BackingError, Copied, DirtyFrames, NewPage, OnFailure, PendingRead, Purpose,
};
pub use check::{CheckedPages, CheckedTrees, TreeDamage, check_pages, count_pages};
pub use kind::{KIND_NAME, PAGE_BYTES_DEFAULT, Paged, is_damage, pages_error};
pub use pages::{GROWTH_BYTES, PageStore, PageStoreConfig, PageStoreStats, PagesError};
pub use pool::{POOL_PAGES_MIN, Pool, PoolError, PoolStats};
pub use tables::NamedPages;
pub use tree::{TreeError, TreeSummary};
