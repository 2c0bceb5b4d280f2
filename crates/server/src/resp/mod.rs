//! The Redis serialization protocol as a pure codec, from bytes to arguments and from values to
//! bytes. The codec knows no sockets and no commands.
//!
//! Requests are RESP arrays of bulk strings ("multibulk") or inline lines; RESP2
//! and RESP3 clients send the same. Replies differ by version.
//! Source: the protocol specification at redis.io ("RESP protocol spec").

mod number;
mod parse;
mod reply;
mod request;

pub use number::{
    format_f64, parse_bound, parse_f64, parse_i64, parse_number, parse_u64, push_i64,
};
pub use parse::{Limits, Parser, ProtocolError};
pub use reply::{Mark, PIECE_BYTES, Reply, Room};
pub use request::{Args, REDACTED, Span};
