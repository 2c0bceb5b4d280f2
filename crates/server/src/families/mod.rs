//! Commands: one file for each family, with its rows and their code.
//!
//! A row holds the facts about a command: arity, flags, positions of its keys, and the handler that
//! runs it. `COMMAND` replies from the rows, and the planner declares keys from them.
//! Authentication and `MULTI` ask their flags.
//!
//! A new family is a file with `ROWS`, and its name in the two lists below.

mod acl;
mod bits;
mod blocking;
mod client;
mod conditions;
mod config;
mod connection;
mod databases;
mod debug;
mod docs;
mod dump;
mod elements;
mod expiry;
mod field_expiry;
mod geo;
mod hashes;
mod help;
mod hyperloglog;
mod info;
mod key_uses;
mod keys;
mod lists;
mod long_double;
mod memory;
mod monitor;
mod numbers;
mod pubsub;
mod server;
mod sets;
mod sort;
mod sorted_sets;
mod strings;
mod transactions;

use std::sync::LazyLock;

use crate::session::commands::Commands;

/// The command table.
pub(crate) static COMMANDS: LazyLock<Commands> = LazyLock::new(|| {
    let families = [
        acl::ROWS,
        bits::ROWS,
        blocking::ROWS,
        client::ROWS,
        conditions::ROWS,
        config::ROWS,
        connection::ROWS,
        databases::ROWS,
        debug::ROWS,
        docs::ROWS,
        dump::ROWS,
        expiry::ROWS,
        field_expiry::ROWS,
        geo::ROWS,
        geo::search::ROWS,
        hashes::ROWS,
        hyperloglog::ROWS,
        info::ROWS,
        keys::ROWS,
        lists::ROWS,
        memory::ROWS,
        monitor::ROWS,
        numbers::ROWS,
        pubsub::ROWS,
        server::ROWS,
        sets::ROWS,
        sort::ROWS,
        sorted_sets::ROWS,
        sorted_sets::combine::ROWS,
        sorted_sets::range::ROWS,
        strings::ROWS,
        transactions::ROWS,
    ];
    Commands::new(&families, blocking::serve)
});

#[cfg(test)]
mod tests;
