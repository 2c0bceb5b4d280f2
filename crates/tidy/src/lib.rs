//! The house rules as tests: the linter is part of `cargo test --workspace`.
//!
//! Every rule is a pure function from text to a list of complaints. So a test can show each rule to
//! fail on a bad sample. `tests/tidy.rs` runs all rules over the repository. A complaint names the
//! file, the line if there is one, and the cure.
//!
//! No product code depends on this crate.

pub mod arrows;
pub mod circles;
pub mod forbidden;
pub mod glossary;
pub mod links;
pub mod lints;
pub mod partners;
pub mod registry;
pub mod rooms;
pub mod sentences;
pub mod sizes;

pub mod tokens;
pub mod tree;
pub mod words;
