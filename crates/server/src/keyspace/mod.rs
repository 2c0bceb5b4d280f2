//! The keyspace: databases of keys, each with a typed value and perhaps an expiry.
//!
//! Only this room knows how a value lies in a record of the store.
//!
//! ```text
//! kinds      the kinds of values, a row each
//! value      tags, and the bytes of the expiry
//! encoding   numbers and strings in the bytes of a value
//! fields     the bytes of a field of a hash
//! elements   the elements of a collection: a tree of nodes, and their reclaim
//! access     the keys of one command: look up, set, delete, expire
//! open       the same for collections: open, save
//! copying    copy, rename, collections that a command makes as a whole
//! databases  iteration, length, flushing
//! listed     all keys of some databases, as keys of one transaction
//! waiters    clients that wait for a key to be made
//! serving    those that the transaction which makes the key serves
//! watch      what a client saw of a key
//! deletions  transactions that delete what has expired
//! expire     background deletion of expired keys and fields
//! eviction   what a full cache gives up: policies, marks of accesses
//! victims    choosing such keys, and deleting them
//! counts     hits, misses, keys with an expiry
//! lock       commands of single keys against commands of whole databases
//! ```

mod access;
mod copying;
mod counts;
mod databases;
mod deletions;
mod elements;
mod encoding;
mod eviction;
mod expire;
mod fields;
mod kinds;
mod listed;
mod lock;
mod open;
mod serving;
mod value;
mod victims;
mod waiters;
mod watch;

pub(crate) use access::{Keys, LoopKeys};
pub(crate) use copying::NewElements;
pub(crate) use databases::Keyspace;
pub use elements::{
    CollectionCheck, CollectionFault, CollectionsOfKind, DamagedCollection, VerifiedCollections,
};
pub(crate) use elements::{Contents, Draft, Drafting, Elements, Reclaimer, Written, ranges_of};
pub use eviction::eviction_policies;
pub(crate) use eviction::{KeyUse, Policy, Woken};
pub(crate) use expire::ExpiryCycle;
pub(crate) use fields::Field;
pub(crate) use kinds::{Kind, SCORE_BYTES, SmallLimits};
pub(crate) use listed::{ListedKeys, ListedNames};
pub(crate) use serving::ReadyKey;
pub(crate) use value::Entry;
pub use value::StoredValue;
pub(crate) use victims::{BuriedNodes, Victims};
pub(crate) use waiters::{Begun, Claim, NextWaiter, Served, WaiterId, Waiting, Wanted};
pub(crate) use watch::Watched;
