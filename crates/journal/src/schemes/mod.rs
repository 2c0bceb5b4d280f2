//! The journals, one file each; `registry.rs` has a row for every one.

pub(crate) mod none;
pub(crate) mod redo;
