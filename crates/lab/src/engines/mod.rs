//! Engines behind the lab's adapter trait.

pub mod stillpoint;
