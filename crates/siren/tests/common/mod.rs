//! The settings of a store on a simulated disk, for all test programs.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{ManualClock, SeededRng, SimDisk};
use stillpoint_siren::{Config, Logging, Removes, Store};

pub(crate) fn config(removes: Removes, logging: Logging, seed: u64) -> Config {
    Config {
        removes,
        logging,
        page_bytes: 4096,
        page_buffers: 2,
        fill_percent: 15,
        sessions: 4,
        lock_timeout: Duration::from_millis(1),
        removes_bytes_max: 2000,
        slow_down_max: Duration::from_micros(200),
        clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
        rng: Arc::new(SeededRng::new(seed)),
        ..Config::default()
    }
}

pub(crate) fn open(disk: &SimDisk, removes: Removes, logging: Logging, seed: u64) -> Store {
    match Store::open(Arc::new(disk.clone()), config(removes, logging, seed)) {
        Ok(store) => store,
        Err(error) => panic!("seed {seed}: the store does not open: {error}"),
    }
}
