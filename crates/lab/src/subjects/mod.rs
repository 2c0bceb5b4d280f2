//! Measured subjects: engines of records behind [`adapter::LabEngine`], servers as processes,
//! states of every scheme, a SIREN store, and the
//! competitor [`aries`].

pub(crate) mod adapter;
pub(crate) mod aries;
pub(crate) mod arrays;
pub(crate) mod counters;
pub(crate) mod metered_disk;
pub(crate) mod null_server;
pub(crate) mod paged;
pub(crate) mod records;
pub(crate) mod resp;
pub(crate) mod server;
pub(crate) mod siren;
pub(crate) mod stillpoint;
pub(crate) mod tpcc;
pub(crate) mod tpcc_records;
pub(crate) mod ycsb;
