//! What the fuzzers share.

use std::path::PathBuf;

/// Names the directory that a target fills with inputs to begin with.
pub const SEEDS: &str = "STILLPOINT_FUZZ_SEEDS";
/// How many it makes.
const COUNT: u64 = 200;

/// Writes the inputs that `make` gives for the numbers from 1 on, if [`SEEDS`] says where to.
///
/// # Panics
/// If they cannot be written.
pub fn write_seeds(mut make: impl FnMut(u64) -> Vec<u8>) {
    let Some(directory) = std::env::var_os(SEEDS).map(PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&directory).expect("a directory for the corpus");
    for seed in 1..=COUNT {
        std::fs::write(directory.join(format!("seed-{seed:03}")), make(seed)).expect("a seed");
    }
}
