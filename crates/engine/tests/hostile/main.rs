//! The offline tools meet directories that somebody has changed: they say so, return nothing that
//! was never written, and never panic.
//!
//! Each loop runs a fixed number of rounds, or as many seconds as `STILLPOINT_FUZZ_SECONDS` says,
//! from `STILLPOINT_FUZZ_SEED` on if that is set; a failure prints the seed of its round.

mod directory;
#[expect(dead_code, reason = "shared with the tests of the format, which use more of it")]
#[path = "../../../format/tests/format/common/forge.rs"]
mod forge;
#[expect(dead_code, reason = "shared with the tests of the format, which use more of it")]
#[path = "../../../format/tests/format/common/mutate.rs"]
mod mutate;

use directory::{Sample, sample_script};
use stillpoint_io::{Clock, RealClock};

fn run(rounds: u64, mut round: impl FnMut(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now_s = || RealClock.monotonic_ns() / 1_000_000_000;
    let first = number("STILLPOINT_FUZZ_SEED").unwrap_or(1);
    let deadline_s = number("STILLPOINT_FUZZ_SECONDS").map(|seconds| now_s() + seconds);
    let mut seed = first;
    while deadline_s.map_or(seed < first + rounds, |deadline_s| now_s() < deadline_s) {
        let guard = PrintOnPanic(seed);
        round(seed);
        std::mem::forget(guard);
        seed += 1;
    }
    assert!(seed > first, "no round was run");
}

struct PrintOnPanic(u64);

impl Drop for PrintOnPanic {
    #[expect(clippy::print_stderr, reason = "a failing test says how to repeat it")]
    fn drop(&mut self) {
        eprintln!("failed with STILLPOINT_FUZZ_SEED={}", self.0);
    }
}

#[test]
fn a_directory_as_it_was_is_sound_and_dumped_whole() {
    let mut sample = Sample::new(&std::env::temp_dir());
    let verdict = sample.judge(&[]);
    assert_eq!(verdict.checked.expect("checked").damage, Vec::<String>::new());
    let rows = verdict.dumped.expect("dumped");
    assert!(rows.len() > 25, "{} rows", rows.len());
    assert!(rows.iter().all(|(key, value)| sample.was_written(key, value)));
}

#[test]
fn what_was_changed_is_reported_and_never_returned() {
    let mut sample = Sample::new(&std::env::temp_dir());
    let (mut refused, mut dumped) = (0, 0);
    run(400, |seed| {
        let verdict = sample.judge(&sample_script(seed, false));
        let sound = verdict.checked.as_ref().is_ok_and(|checked| checked.damage.is_empty());
        match verdict.dumped {
            Ok(rows) => {
                dumped += 1;
                for (key, value) in &rows {
                    assert!(sample.was_written(key, value), "{key:?} never had {value:?}");
                }
            }
            Err(error) => {
                refused += 1;
                assert!(!sound, "called sound, and not recovered: {error}");
            }
        }
    });
    assert!(refused > 0 && dumped > 0, "{refused} refused, {dumped} dumped");
}

#[test]
fn what_was_changed_with_its_checksums_does_no_harm() {
    let mut sample = Sample::new(&std::env::temp_dir());
    let mut dumped = 0;
    run(400, |seed| {
        let verdict = sample.judge(&sample_script(seed, true));
        dumped += u64::from(verdict.dumped.is_ok());
    });
    assert!(dumped > 0, "nothing was dumped: the forgery is clumsy");
}
