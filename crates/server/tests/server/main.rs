//! The server from outside: over sockets, beside a real redis-server and with the
//! clients that people use.

mod buffers;
mod clients;
mod commands;
mod common;
mod differential;
mod durability;
mod floats;
mod limits;
mod loading;
mod long;
mod memory;
mod panics;
mod secrets;
mod strict;
mod transactions;
