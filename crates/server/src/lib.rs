//! The Redis-protocol server. Knows no files.
//!
//! Thread per core: each event loop has its own clients and its own engine session, and all execute
//! directly on the shared store. A pass of a loop parses whole pipelines and executes them as
//! batches whose memory is fetched together. If so configured, the pass makes the batches durable
//! before it sends the replies.
//!
//! Rooms, lowest first; each knows only those below it:
//!
//! ```text
//! resp      bytes to arguments, values to bytes; pure
//! keyspace  databases of keys: typed values, expiry, iteration, counts, watching
//! shared    what all event loops share: parameters, passwords, clients, statistics
//! session   the state of a client, the table of commands, MULTI and EXEC
//! families  commands: one file for each family, with its rows
//! repeat    commands of a log of calls, which a start runs again
//! net       sockets, event loops, planning of batches
//! server    start and end
//! ```

mod args;
mod config;
mod counter;
mod error;
mod families;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod heap;
mod keyspace;
mod log;
mod net;
mod planted;
mod repeat;
pub mod resp;
mod server;
mod session;
mod shared;

pub use config::{DATABASES, DebugCommand, ServerConfig};
pub use error::ServerError;
pub use keyspace::eviction_policies;
pub use keyspace::{
    CollectionCheck, CollectionFault, CollectionsOfKind, DamagedCollection, StoredValue,
    VerifiedCollections,
};
pub use log::LogLevel;
pub use repeat::{logged_requests, with_commands};
pub use server::{Bound, Loading, Server, serve};
