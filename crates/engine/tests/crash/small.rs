//! A small store with one table, for tests that fail a call of the disk.

use stillpoint::{Config, Durability, Engine};
use stillpoint_io::{SeededRng, SimDisk};

use crate::lives::configure;
use crate::settings::Setting;

/// Settings in which acknowledged commits survive any crash.
pub(crate) const REDO: Setting =
    Setting { scheme: "calc", journal: "redo", durability: Durability::Strict };

/// Settings with a number of logs.
pub(crate) fn config(disk: &SimDisk, logs: usize) -> Config {
    let mut config = configure(&REDO, disk, &SeededRng::new(1), 3);
    (config.logs, config.recovery_threads) = (logs, 1);
    config
}

/// Commits one key after the other, each by the session of the next log.
pub(crate) fn put(engine: &Engine, keys: std::ops::Range<u8>) -> Result<(), stillpoint::Error> {
    let table = engine.table("keys")?;
    let mut sessions = [engine.session()?, engine.session()?];
    for key in keys {
        let session = &mut sessions[usize::from(key) % 2];
        session.transact(|tx| tx.put(table, &[key], &[key; 900]))?;
    }
    Ok(())
}
