//! Tests of the offline tools on changed directories. The tools report the damage, return nothing
//! that was never written, and never panic.
//!
//! Each loop runs a fixed number of rounds, or for the seconds of `STILLPOINT_FUZZ_SECONDS`.
//! `STILLPOINT_FUZZ_SEED` sets the first seed. A failure prints the seed of its round.

mod directory;
#[expect(dead_code, reason = "shared with the tests of the format, which use more of it")]
#[path = "../../../format/tests/format/common/forge.rs"]
mod forge;
#[expect(dead_code, reason = "shared with the tests of the format, which use more of it")]
#[path = "../../../format/tests/format/common/mutate.rs"]
mod mutate;

use directory::{Sample, sample_script};
use stillpoint_io::seeded_rounds;

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
    seeded_rounds(400, |seed| {
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
    seeded_rounds(400, |seed| {
        let verdict = sample.judge(&sample_script(seed, true));
        dumped += u64::from(verdict.dumped.is_ok());
    });
    assert!(dumped > 0, "nothing was dumped: the forgery is clumsy");
}
