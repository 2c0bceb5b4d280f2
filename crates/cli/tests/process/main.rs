//! Tests of the binary as a process with a port, signals, files and a log.

mod bounds;
mod common;
mod evictions;
mod forked;
mod loading;
mod log;
mod look;
mod paged;
mod restarts;
mod siren;
mod starting;
mod stopping;
