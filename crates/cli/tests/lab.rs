//! `stillpoint lab`, as an operator runs it: experiments of state arrays end to end in seconds, with
//! a process that is killed, and advice.

use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_stillpoint"))
        .arg("lab")
        .args(arguments)
        .output()
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn experiments_of_state_arrays_run_in_quick_mode() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().to_string_lossy();
    for id in ["fc-words", "snap-fig3"] {
        let (status, said, progress) = lab(&["run", id, "--quick", "--out", &out]);
        assert_eq!(status, Some(0), "{said}{progress}");
        assert!(said.contains(&format!("{id}: State arrays")), "{said}");
        assert!(dir.path().join(format!("{id}.json")).is_file());
    }
    let (_, said, _) = lab(&["run", "fc-words", "--quick", "--part", "sizes", "--out", &out]);
    assert!(said.contains("report: "), "{said}");
}

#[test]
fn a_killed_process_is_part_of_the_quick_mode() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().to_string_lossy();
    let (status, said, progress) =
        lab(&["run", "fc-words", "--quick", "--part", "latency", "--out", &out]);
    assert_eq!(status, Some(0), "{said}{progress}");
    assert!(progress.contains("hg: killed with an image under way, and recovered"), "{progress}");
}

#[test]
fn advice_tells_by_its_status_whether_the_limits_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().to_string_lossy();
    let line = "advise --state --cells 20000 --updates-per-second 20000 --tick-ms 5 --seconds 0.2 \
                --image-every-ms 50 --worst-tick-us";
    let ask = |worst_tick_us: &str| {
        let words = line.split_whitespace().chain([worst_tick_us, "--dir", &at]);
        lab(&words.collect::<Vec<_>>())
    };
    let (status, said, progress) = ask("1e9");
    assert_eq!(status, Some(0), "{said}{progress}");
    let (status, said, _) = ask("0.001");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no scheme keeps the worst tick"), "{said}");
}
