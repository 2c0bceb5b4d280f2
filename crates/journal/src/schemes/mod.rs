//! The journals, one file each. `registry.rs` has a row for every journal.

pub(crate) mod command;
pub(crate) mod none;
pub(crate) mod redo;
pub(crate) mod undo_redo;
