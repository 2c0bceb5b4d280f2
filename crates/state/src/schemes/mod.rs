//! One file for each scheme; each has its row in [`crate::registry`].

pub(crate) mod copy_on_update;
pub(crate) mod fork;
pub(crate) mod hourglass;
pub(crate) mod naive_snapshot;
pub(crate) mod none;
pub(crate) mod piggyback;
pub(crate) mod ping_pong;
pub(crate) mod written_pages;
pub(crate) mod zigzag;

pub use copy_on_update::CopyOnUpdate;
pub use fork::{Fork, Forked};
pub use hourglass::Hourglass;
pub use naive_snapshot::NaiveSnapshot;
pub use none::NoCheckpoints;
pub use piggyback::Piggyback;
pub use ping_pong::PingPong;
pub use written_pages::CopyWrittenPages;
pub use zigzag::Zigzag;
