//! TPC-C in arrays: all nine tables, all five transactions, one thread (specification revision
//! 5.11; used so by SIGMOD 2011, §5.1 and §5.5).
//!
//! - [`schema`]: tables as arrays of rows with a fixed capacity;
//! - [`load`]: what they hold at first, from a seed;
//! - [`input`]: transactions as clients ask for them, in a trace in memory; their bytes are the
//!   logical actions;
//! - [`memory`]: what transactions read and write, so that the same ones run in the cells of any
//!   scheme and in the arrays of the competitor [`aries`](super::aries);
//! - [`transactions`]: the five;
//! - [`check`]: the specification's consistency conditions;
//! - [`bed`], [`experiments`]: all of it under every scheme, and the figures.
//!
//! Deviations: no think times (as the paper); ten deliveries in a transaction, not deferred; the mix
//! lies within the specification's bounds with slightly more deliveries than it asks for, so that
//! waiting orders do not pile up in a ring; NURand's constant C is fixed.

pub mod bed;
pub mod check;
pub mod experiments;
pub mod input;
pub mod kill;
pub mod load;
pub mod memory;
pub mod schema;
pub mod transactions;

#[cfg(test)]
mod tests;
