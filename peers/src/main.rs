//! `cargo run --release -- --records 2000000 --out results`: the CALC transaction and YCSB on other
//! embedded stores, beside Stillpoint, in one run and at equal durability.
//!
//! Each store is a file here with one function that opens it. The stores, their durabilities, and what
//! each of them does when a commit is durable:
//!
//! | store | relaxed | strict |
//! |---|---|---|
//! | redb | `Durability::Eventual` | `Durability::Immediate` |
//! | fjall, one writer at a time | the journal is written, not flushed | `PersistMode::SyncData` |
//! | LMDB (heed) | `NO_SYNC`, `WRITE_MAP` | a flush at each commit |
//! | SQLite (rusqlite), WAL | `synchronous=OFF` | `synchronous=FULL` |
//! | RocksDB, transactions with locks | the log is written, not flushed | `sync` at each commit |
//! | WiredTiger, snapshots | `transaction_sync` off | `transaction_sync` by `fsync` |
//!
//! RocksDB and WiredTiger need installed libraries, in Debian `librocksdb-dev` and `libwiredtiger-dev`. So
//! they are features: `cargo run --release --features rocksdb,wiredtiger -- …`.

#[cfg(any(feature = "rocksdb", feature = "wiredtiger"))]
mod c_store;
mod fjall_store;
mod lmdb;
mod redb_store;
mod sqlite;
#[cfg(test)]
mod tests;

use clap::Parser;
use stillpoint_lab::peers::{PeersArgs, Row, run};

/// Compares Stillpoint with other embedded stores.
#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: PeersArgs,
}

/// All stores.
fn rows() -> Vec<Row> {
    let row = |name: &str, open| Row { name: name.to_owned(), open };
    vec![
        row("redb 2.6", redb_store::open),
        row("fjall 2.11", fjall_store::open),
        row("LMDB (heed 0.22)", lmdb::open),
        row("SQLite (rusqlite 0.32)", sqlite::open),
        #[cfg(feature = "rocksdb")]
        row("RocksDB", c_store::rocksdb),
        #[cfg(feature = "wiredtiger")]
        row("WiredTiger", c_store::wiredtiger),
    ]
}

/// The error of a store, in words.
fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Says that a key has no value.
fn absent(key: [u8; 8]) -> String {
    format!("key {key:02x?} has no value")
}

fn main() -> std::process::ExitCode {
    let program = Program::parse();
    let commit = option_env!("STILLPOINT_COMMIT").unwrap_or("unknown");
    match run(&rows(), &program.args, commit, &mut std::io::stdout()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
