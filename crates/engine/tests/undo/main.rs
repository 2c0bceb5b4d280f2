//! Tests of logs with before-images, on a simulated disk.

mod images;

use std::path::Path;
use std::sync::Arc;

use stillpoint::{Config, Durability, Environment};
use stillpoint_io::{ManualClock, SeededRng, SimDisk};

/// Settings with a journal, one log and strict durability.
fn config(disk: &SimDisk, journal: &str) -> Config {
    // With huge pages, small stores would spend most of their time on clearing pages.
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new(Path::new("unused"));
    config.journal = journal.to_owned();
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.sessions = 4;
    config.logs = 1;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = 1 << 20;
    config.environment = Environment {
        disk: Some(Arc::new(disk.clone())),
        clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
        rng: Arc::new(SeededRng::new(1)),
        background: false,
        ..config.environment
    };
    config
}
