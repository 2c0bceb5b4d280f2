//! The keyspace: databases of keys, each with a typed value and perhaps an expiry.
//!
//! Only this room knows how a value lies in a record of the store.
//!
//! ```text
//! value      kinds, tags, and the bytes of the expiry
//! access     the keys of one command: look up, set, delete, rename, expire
//! databases  iteration, length, flushing
//! listed     all keys of some databases, as keys of one transaction
//! watch      what a client saw of a key
//! expire     background deletion of expired keys
//! counts     hits, misses, keys with an expiry
//! lock       commands of single keys against commands of whole databases
//! ```

mod access;
mod counts;
mod databases;
mod expire;
mod listed;
mod lock;
mod value;
mod watch;

pub(crate) use access::{Keys, LoopKeys};
pub(crate) use databases::Keyspace;
pub(crate) use expire::ExpiryCycle;
pub(crate) use listed::{ListedKeys, ListedNames};
pub use value::StoredValue;
pub(crate) use value::{Entry, Kind};
pub(crate) use watch::Watched;
