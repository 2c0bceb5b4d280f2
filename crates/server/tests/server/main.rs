//! The server from outside: over sockets, beside a real redis-server and with the
//! clients that people use.

mod clients;
mod commands;
mod common;
mod differential;
mod durability;
mod limits;
mod strict;
mod transactions;
