//! The tests of the on-disk format.

mod common;
mod fixtures;
mod hostile;
mod keys;
mod log;
mod manifest;
mod operations;
mod page_log;
mod pages;
mod part;
mod siren;
mod state;
