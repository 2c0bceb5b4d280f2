//! The Redis-protocol server. Knows no files.
//!
//! Thread per core: each event loop has its own clients and its own engine session,
//! and all execute directly on the shared store. A pass of a loop parses whole
//! pipelines, executes them as batches whose memory is fetched together, makes them
//! durable if so configured, and only then sends the replies.
//!
//! ```text
//! resp     bytes to arguments, values to bytes; pure
//! command  one row per command, one file per family
//! net      sockets, event loops, planning of batches
//! value    how protocol values lie in the store's
//! expire   deletion of expired keys
//! ```

mod auth;
mod client;
mod client_memory;
mod command;
mod config;
mod context;
mod databases;
mod error;
mod expire;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod loading;
mod log;
mod net;
mod registry;
pub mod resp;
mod server;
mod shared;
mod slowlog;
mod stats;
mod value;
mod watches;

pub use config::{DATABASES, DebugCommand, ServerConfig};
pub use error::ServerError;
pub use log::LogLevel;
pub use server::{Bound, Loading, Server, serve};
pub use value::StoredValue;
