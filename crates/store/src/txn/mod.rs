//! Transactions: keys, locks, deferred writes, retries and the steps of a commit.

pub(crate) mod commit;
pub(crate) mod commit_log;
pub(crate) mod keys;
pub(crate) mod locking;
pub(crate) mod lookup;
pub(crate) mod pending;
pub(crate) mod retry;
pub(crate) mod tx;
