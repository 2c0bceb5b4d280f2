//! Tests of `stillpoint lab`: quick experiments of state arrays end to end, with a process that is
//! killed, and the advice.

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

#[expect(clippy::disallowed_methods, reason = "a result file is no engine's")]
fn json(path: &std::path::Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).expect("the file is there");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn experiments_of_state_arrays_run_in_quick_mode() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().to_string_lossy();
    // The unit tests of the lab run all parts.
    for (id, part) in [("fc-words", "reads"), ("snap-fig3", "rates")] {
        let (status, said, progress) = lab(&["run", id, "--quick", "--part", part, "--out", &out]);
        assert_eq!(status, Some(0), "{said}{progress}");
        assert!(said.contains(&format!("{id}: State arrays")), "{said}");
        assert!(dir.path().join(format!("{id}.json")).is_file());
    }
    let (status, said, progress) =
        lab(&["run", "snap-table1", "--quick", "--processes", "2", "--out", &out]);
    assert_eq!(status, Some(0), "{said}{progress}");
    let result = json(&dir.path().join("snap-table1.json"));
    assert_eq!(result["parameters"]["processes"], 2);
    let claims = result["claims"].as_array().expect("claims");
    assert!(claims.iter().all(|claim| claim["samples"] == "processes"), "{result}");
    assert_eq!(claims[0]["spread"]["runs"], 2);

    let (_, said, _) = lab(&["run", "fc-words", "--quick", "--part", "sizes", "--out", &out]);
    assert!(said.contains("report: "), "{said}");
    let result = json(&dir.path().join("fc-words.json"));
    let claims = result["claims"].as_array().expect("claims");
    assert!(claims.iter().all(|claim| claim["met"].is_null()), "quick runs judge nothing");
    for part in ["reads", "sizes"] {
        assert!(result["parts"][part]["commit"].is_string(), "a part leaves the others: {result}");
    }
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
fn killed_records_of_tpcc_keep_all_conditions() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().to_string_lossy();
    let (status, said, progress) =
        lab(&["run", "calc-fig7", "--quick", "--part", "rest", "--out", &out]);
    assert_eq!(status, Some(0), "{said}{progress}");
    for row in ["calc", "naive", "calc, redo relaxed", "calc, redo strict"] {
        let killed = format!("{row}: killed with a checkpoint under way, recovered");
        assert!(progress.contains(&killed), "{row}: {progress}");
    }
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

#[test]
fn a_result_names_the_commit_of_the_program_and_not_of_the_folder_it_runs_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"];
        let mut command = Command::new("git");
        command.current_dir(dir.path()).args(identity).args(arguments).output()
    };
    // The folder is a repository of another project. If git is missing, the folder is no
    // repository. The result must name the program's commit in both cases.
    let _ = git(&["init", "-q"]);
    let _ = git(&["commit", "-q", "--allow-empty", "-m", "another project"]);
    let output = Command::new(env!("CARGO_BIN_EXE_stillpoint"))
        .current_dir(dir.path())
        .args(["lab", "run", "fc-fig11", "--quick", "--out", "results"])
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let result = json(&dir.path().join("results/fc-fig11.json"));
    let commit = env!("STILLPOINT_COMMIT");
    assert_eq!(result["commit"], commit);
    let digits = commit.trim_end_matches("-dirty");
    let is_hash = digits.len() == 40 && digits.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_hash || !std::path::Path::new("../../.git").exists(), "{commit}");
    assert!(result["conditions"]["load_average_before"].is_number());
}
