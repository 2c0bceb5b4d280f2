//! The offline tools on a data directory that was changed.
//!
//! Input: a script of edits.

#![no_main]

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/engine/tests/hostile/directory.rs"]
mod directory;
#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/format/tests/format/common/forge.rs"]
mod forge;
#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/format/tests/format/common/mutate.rs"]
mod mutate;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use directory::{Sample, sample_script};
use libfuzzer_sys::fuzz_target;
use stillpoint_fuzz::write_seeds;

/// A directory in memory where the system has one, else the directory for temporary files.
fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

thread_local! {
    static SAMPLE: RefCell<Sample> = RefCell::new(Sample::new(&scratch()));
}

fuzz_target!(
    init: write_seeds(|seed| sample_script(seed, seed % 4 > 0)),
    |script: &[u8]| {
        // The result is dropped, since the fuzzer finds checksums that match if it tries long
        // enough. Only the seeded loops of the tests judge what the tools report.
        SAMPLE.with_borrow_mut(|sample| drop(sample.judge(script)));
    }
);
