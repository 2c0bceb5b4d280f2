//! State arrays under load: the experiments of SIGMOD 2011 and ICDE 2018.
//!
//! A [`load::Load`] is what happens in each tick, the same for every scheme; [`trace::TraceLoad`]
//! takes it from accesses in memory, made from a seed before the run ([`zipf`]). [`drive`] runs a
//! load on a [`State`](stillpoint_state::State) of a scheme, with its own writer and the real disk,
//! and beside it, tick by tick, on arrays without any checkpoint: the raw loop. A run counts only if
//! what is read, what is in memory at the end and what is recovered are the raw loop's.

pub mod advise;
pub mod aries;
pub mod check;
pub mod draw;
pub mod drive;
pub mod killed;
pub mod load;
pub mod memory;
pub mod mmo;
pub mod outcome;
pub mod snap;
pub mod tpcc;
pub mod trace;
pub mod words;
pub mod zipf;
