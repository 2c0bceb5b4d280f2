//! The server from outside: over sockets, beside a real redis-server and with the
//! clients that people use.

mod common;
mod differential;
