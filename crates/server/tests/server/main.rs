//! Tests of the server from outside: over sockets, in comparison with a real redis-server, and with
//! widely used clients.

mod blocking;
mod buffers;
mod clients;
mod collections;
mod commands;
mod common;
mod differential;
mod dump;
mod durability;
mod eviction;
mod expiry;
mod fields;
mod floats;
#[expect(dead_code, reason = "shared with the tests of the engine, which use more of it")]
#[path = "../../../engine/tests/crash/gate.rs"]
mod gate;
mod golden;
mod groups;
mod later;
mod limits;
mod loading;
mod long;
mod memory;
mod older;
mod panics;
mod secrets;
mod serials;
mod serving;
mod siren;
mod strict;
mod transactions;
