//! TPC-C in arrays: all nine tables, all five transactions, one thread (specification revision
//! 5.11; used so by SIGMOD 2011, §5.1 and §5.5).
//!
//! - [`schema`]: tables as arrays of rows with a fixed capacity;
//! - [`load`]: the first rows, made from a seed;
//! - [`input`]: requests of clients, in a trace in memory; their bytes are the logical actions;
//! - [`memory`]: the traits through which transactions read and write. Implementations are the
//!   cells of any scheme, the arrays of the competitor [`aries`](crate::subjects::aries), and
//!   records of an engine;
//! - [`transactions`]: the five;
//! - [`check`]: the specification's consistency conditions;
//! - [`written`]: which rows transactions write.
//!
//! Deviations: there are no think times (as in the paper). A transaction makes all ten deliveries
//! at once, not deferred. The mix has slightly more deliveries than the specification asks for, so
//! that waiting orders do not pile up in a ring. NURand's constant C is fixed.

pub(crate) mod check;
pub(crate) mod input;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod schema;
pub(crate) mod transactions;
pub(crate) mod written;

#[cfg(test)]
mod tests;
