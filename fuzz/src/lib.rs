//! The code that all fuzzers share.

use std::path::PathBuf;

/// Name of the environment variable with the directory that a target fills with its first inputs.
pub const SEEDS: &str = "STILLPOINT_FUZZ_SEEDS";
/// Number of first inputs that a target makes.
const COUNT: u64 = 200;

/// Writes the inputs that `make` gives for the numbers from 1 on, if the environment variable
/// [`SEEDS`] names a directory.
///
/// # Panics
/// If the inputs cannot be written.
pub fn write_seeds(mut make: impl FnMut(u64) -> Vec<u8>) {
    let Some(directory) = std::env::var_os(SEEDS).map(PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&directory).expect("a directory for the corpus");
    for seed in 1..=COUNT {
        std::fs::write(directory.join(format!("seed-{seed:03}")), make(seed)).expect("a seed");
    }
}
