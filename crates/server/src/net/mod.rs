//! Sockets and event loops.
//!
//! Each event loop is a thread with its own poll, its own clients and its own engine
//! session; they share nothing but the store and some counters. The first one also
//! accepts, and hands each client to the loop with the fewest.
//!
//! One pass of a loop: wait for sockets; read what is there; parse whole pipelines
//! into a batch; execute it; write the replies. In strict durability the replies wait for a
//! flush, and the loop goes on with other clients until a thread of its own has made it.

mod conn;
mod connections;
mod flusher;
mod listener;
mod loading;
mod plan;
mod round;
mod worker;

pub(crate) use listener::Listener;
pub(crate) use loading::{Handover, LoadingLoop};
pub(crate) use worker::{MAILBOX, Worker};
