//! Sockets and event loops.
//!
//! Each event loop is a thread with its own poll, its own clients and its own engine session. Event
//! loops share the store and some counters only. The first event loop also accepts clients, and
//! hands each client to the loop with the fewest.
//!
//! One pass of a loop: wait for sockets, read, parse whole pipelines into a batch, execute the
//! batch, write the replies. In strict durability the replies wait for a flush. A thread of the
//! loop's own flushes, and the loop serves other clients meanwhile. A command over many keys or bytes
//! runs on a thread of its own ([`long`]).

mod conn;
mod connections;
mod drafting;
mod evictor;
mod flusher;
mod groups;
mod listener;
mod load;
mod loading;
mod long;
mod plan;
mod round;
mod waits;
mod worker;

pub(crate) use evictor::Evictor;
pub(crate) use listener::Listener;
pub(crate) use loading::{Handover, LoadingLoop};
pub(crate) use long::{LASTING_THREADS, LONG_THREADS, LongCommands, LongThread};
pub(crate) use worker::{MAILBOX, Worker};
