//! Tests of the log.

use std::io::Write;
use std::path::Path;

use serde_json::Value;
use stillpoint_io::{Disk, RealDisk, read_all};

use crate::common::{Serving, free_port, stillpoint, wait_for};

/// The text of a file; empty if there is none.
pub(crate) fn text_of(path: &Path) -> String {
    let dir = RealDisk::new(path.parent().expect("a directory")).expect("it is there");
    let bytes = read_all(&dir, Path::new(path.file_name().expect("a file")));
    String::from_utf8(bytes.unwrap_or_default()).expect("text")
}

/// The lines of a log in JSON.
fn lines_of(path: &Path) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    text_of(path).lines().map(parse).collect()
}

fn find<'a>(lines: &'a [Value], message: &str) -> &'a Value {
    let mut of = lines.iter().filter(|line| line["message"] == message);
    of.next().unwrap_or_else(|| panic!("no {message:?} in {lines:#?}"))
}

#[test]
fn what_happens_is_told_with_time_and_level() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, log) = (dir.path().join("data"), dir.path().join("server.log"));
    let path = log.display().to_string();
    let arguments = ["--log-file", &path, "--log-format", "json", "--requirepass", "the right one"];
    let serving = Serving::start(&data, &arguments);
    let mut client = serving.client();
    assert!(client.ask(&["AUTH", "a wrong one"]).starts_with("-WRONGPASS"));
    let mut client = serving.client();
    assert_eq!(client.ask(&["AUTH", "the right one"]), "OK");
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert_eq!(client.ask(&["SAVE"]), "OK");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let lines = lines_of(&log);
    for line in &lines {
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert!(["info", "warn"].contains(&line["level"].as_str().expect("a level")), "{line}");
    }
    let start = find(&lines, "stillpoint starts");
    assert_eq!((&start["threads"], &start["password"]), (&2.into(), &true.into()));
    assert!(find(&lines, "ready to accept connections")["addresses"].is_string());
    assert!(find(&lines, "recovered").is_object());
    assert_eq!(find(&lines, "wrong password")["level"], "warn");
    find(&lines, "a checkpoint begins");
    assert_eq!(find(&lines, "a checkpoint is published")["records"], 1);
    assert_eq!(find(&lines, "ends: a second one ends it at once")["signal"], "SIGTERM");
    assert_eq!(lines.last().expect("lines")["message"], "ended");
    let text = text_of(&log);
    assert!(!text.contains("the right one") && !text.contains("a wrong one"), "{text}");
}

#[test]
fn sighup_opens_a_file_that_was_moved_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, log) = (dir.path().join("data"), dir.path().join("server.log"));
    let path = log.display().to_string();
    let serving = Serving::start(&data, &["--log-file", &path]);
    let disk = RealDisk::new(dir.path()).expect("it is there");
    disk.rename(Path::new("server.log"), Path::new("server.log.1")).expect("renamed");
    serving.signal("HUP");
    wait_for("a new file", || text_of(&log).contains("the log is opened anew").then_some(()));
    assert!(text_of(&dir.path().join("server.log.1")).contains("stillpoint starts"));
}

#[test]
fn the_level_can_be_changed_while_the_server_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, log) = (dir.path().join("data"), dir.path().join("server.log"));
    let path = log.display().to_string();
    let serving = Serving::start(&data, &["--log-file", &path]);
    let mut client = serving.client();
    let said = client.ask(&["CONFIG", "SET", "loglevel", "loud"]);
    assert!(said.contains("debug, verbose, notice, warning"), "{said}");
    assert_eq!(client.ask(&["CONFIG", "SET", "loglevel", "warning"]), "OK");
    assert_eq!(client.ask(&["SAVE"]), "OK");
    assert_eq!(client.ask(&["CONFIG", "SET", "loglevel", "notice"]), "OK");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let text = text_of(&log);
    assert!(text.contains("ready to accept connections") && text.contains("ended"), "{text}");
    assert!(!text.contains("a checkpoint begins"), "{text}");
}

/// Thousands of refused writes make a few log lines, which count all of them.
#[test]
fn writes_that_are_refused_are_told_and_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, log) = (dir.path().join("data"), dir.path().join("server.log"));
    let path = log.display().to_string();
    let arguments = ["--log-file", &path, "--log-format", "json", "--max-memory", "32MiB"];
    let serving = Serving::start(&data, &arguments);
    let mut client = serving.client();
    let value = "x".repeat(1 << 20);
    let mut refused = 0_u64;
    for number in 0..1000 {
        let said = client.ask(&["SET", &format!("key {number}"), &value]);
        refused += u64::from(said.starts_with("-OOM"));
        if refused == 500 {
            break;
        }
    }
    assert_eq!(refused, 500);
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let lines = lines_of(&log);
    let message = "writes are refused: memory is full; delete keys, or raise maxmemory";
    let told: Vec<&Value> = lines.iter().filter(|line| line["message"] == message).collect();
    assert!((1..20).contains(&told.len()), "{told:#?}");
    let count: u64 = told.iter().map(|line| line["more"].as_u64().unwrap_or(0)).sum();
    let own = told.iter().filter(|line| line["reason"].is_string()).count() as u64;
    assert_eq!(count + own, refused, "{told:#?}");
}

/// The pipe is full before the server begins to log, and nobody reads it.
#[test]
fn a_log_that_nobody_reads_holds_up_neither_start_nor_service_nor_end() {
    let (_reader, mut pipe) = std::io::pipe().expect("a pipe");
    fill(&mut pipe);
    let dir = tempfile::tempdir().expect("a directory");
    let serving =
        Serving::begin_logging_to(pipe.into(), free_port(), stillpoint(), dir.path(), &[]);
    let mut client = serving.client();
    wait_for("the end of the loading", || (client.ask(&["SET", "key", "1"]) == "OK").then_some(()));
    serving.signal("TERM");
    let (status, said, _) = serving.ended();
    assert!(status.success() && said.contains("has saved everything"), "{said}");
}

/// Writes into a pipe until it takes no more.
fn fill(pipe: &mut std::io::PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(&pipe).expect("flags");
    rustix::fs::fcntl_setfl(&pipe, flags | rustix::fs::OFlags::NONBLOCK).expect("flags");
    while pipe.write(&[b'.'; 4096]).is_ok_and(|count| count > 0) {}
    while pipe.write(b".").is_ok_and(|count| count > 0) {}
    rustix::fs::fcntl_setfl(&pipe, flags).expect("flags");
}
