//! The Redis protocol, as a client speaks it: replies, and single commands one after the other.

pub(crate) mod admin;
pub(crate) mod codec;
