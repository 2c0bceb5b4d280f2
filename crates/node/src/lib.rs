//! Slotted nodes of ordered indexes, over atomic words. This crate does not know where nodes live.
//! The words belong to the caller, and a child is a number that only the caller can follow.
//!
//! Nodes that are read without a latch come from Leis, Haubenschild, Neumann, *LeanStore* (ICDE
//! 2018) and *Optimistic lock coupling* (2019). Fences, prefixes, heads and ghosts come from
//! Graefe, *Modern B-tree techniques* (2011). Short separators come from Bayer and Unterauer,
//! *Prefix B-trees* (1977).
//!
//! A node holds the keys from its *lower fence* on, below its *upper fence*. The common prefix of
//! both fences is the *prefix* of all keys. The node stores the *rest* of each key. A *slot* holds
//! the first four bytes of a rest, its *head*, so a search seldom leaves the slots. A deleted
//! record becomes a *ghost*, which keeps its place until [`Node::compact`] may drop it.
//!
//! **Readers without a latch.** All words are atomics, accessed Relaxed. A reader takes the version
//! of the node's latch, reads, and validates the version. Only then may the reader use the read
//! values. Until then the words may mix two states. So every reading function is *total*: on any
//! words it ends without a panic, with some answer.
//!
//! **Writers** hold the node's latch exclusively. Writers expect a sound node: one made by
//! [`Node::init`], or one from outside that [`Node::check`] has accepted.
//!
//! ```
//! use stillpoint_node::{Node, NodeKind};
//! use stillpoint_sync::atomic::AtomicU64;
//!
//! let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
//! let node = Node::new(&words);
//! node.init(NodeKind::Leaf, 0, b"user:", Some(b"user;"));
//! node.insert(b"user:7", b"Ada", 0)?;
//! let slot = node.search(b"user:7").expect("just inserted");
//! let mut value = Vec::new();
//! node.read_value(slot, &mut value);
//! assert_eq!(value, b"Ada");
//! assert_eq!(node.prefix_bytes(), 4);
//! # Ok::<(), stillpoint_node::NodeError>(())
//! ```

mod check;
mod error;
mod inner;
mod move_entries;
mod node;
mod record;
mod search;
mod split;
mod write;

pub use error::NodeError;
pub use inner::Child;
pub use node::Node;
pub use record::Record;
pub use search::Near;
pub use split::Split;
pub use stillpoint_format::node::{
    NODE_BYTES_MAX, NODE_BYTES_MIN, NodeKind, node_key_bytes_max, node_value_bytes_max,
};
