//! The client's side of the Redis protocol: replies, and single commands one after the other.

pub(crate) mod admin;
pub(crate) mod codec;
