//! TPC-C in arrays: all nine tables, all five transactions, one thread (specification revision
//! 5.11; used so by SIGMOD 2011, §5.1 and §5.5).
//!
//! - [`schema`]: tables as arrays of rows with a fixed capacity;
//! - [`load`]: what they hold at first, from a seed;
//! - [`input`]: transactions as clients ask for them, in a trace in memory; their bytes are the
//!   logical actions;
//! - [`memory`]: what transactions read and write, so that the same ones run in the cells of any
//!   scheme, in the arrays of the competitor [`aries`](crate::subjects::aries) and in the records of
//!   an engine;
//! - [`transactions`]: the five;
//! - [`check`]: the specification's consistency conditions.
//!
//! Deviations: no think times (as the paper); ten deliveries in a transaction, not deferred; the mix
//! lies within the specification's bounds with slightly more deliveries than it asks for, so that
//! waiting orders do not pile up in a ring; NURand's constant C is fixed.

pub(crate) mod check;
pub(crate) mod input;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod schema;
pub(crate) mod transactions;

#[cfg(test)]
mod tests;
