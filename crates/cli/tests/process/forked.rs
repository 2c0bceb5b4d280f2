//! Tests of the scheme `fork`, and of the pages whose copies it costs, in a process of its own.

use std::process::Command;

use crate::common::{Client, Serving, wait_for};

/// A file of the system about a process. Empty if the process is gone.
#[expect(clippy::disallowed_methods, reason = "reads /proc, which is no part of the store")]
fn proc_file(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// A process whose parent is `parent`.
fn child_of(parent: u32) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").expect("Linux");
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|&pid| {
        let stat = proc_file(pid, "stat");
        // The state and the parent stand behind the name.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&parent.to_string())
    })
}

#[expect(clippy::print_stderr, reason = "what was not tested must be seen")]
fn skipped() {
    eprintln!("SKIPPED: the system has no huge pages, so the choice of pages was not tested");
}

/// KiB of the mappings of a process that have a flag.
fn flagged_kib(pid: u32, flag: &str) -> u64 {
    let (mut size, mut sum) = (0, 0);
    for line in proc_file(pid, "smaps").lines() {
        if let Some(rest) = line.strip_prefix("Size:") {
            size = rest.trim().trim_end_matches(" kB").parse().expect("a number");
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|it| it == flag)
        {
            sum += size;
        }
    }
    sum
}

fn shown(client: &mut Client, name: &str) -> String {
    let info = client.ask(&["INFO", "persistence"]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("a field").trim().to_owned()
}

/// The system kills the child in the middle of a checkpoint. That checkpoint fails, and the server and
/// its next checkpoint do not.
#[test]
fn a_killed_child_costs_that_checkpoint_alone() {
    let home = tempfile::tempdir().expect("a directory");
    let serving =
        Serving::start(home.path(), &["--checkpoint", "fork", "--checkpoint-every", "never"]);
    let mut client = serving.client();
    let value = "x".repeat(1 << 20);
    for n in 0..8 {
        assert_eq!(client.ask(&["SET", &n.to_string(), &value]), "OK");
    }
    assert_eq!(client.ask(&["CONFIG", "SET", "checkpoint-pace", "2mb"]), "OK");
    assert!(client.ask(&["BGSAVE"]).contains("started"));
    let child = wait_for("a child", || child_of(serving.child.id()));
    let killed = Command::new("kill").args(["-s", "KILL", &child.to_string()]).status();
    assert!(killed.expect("kill runs").success());
    wait_for("a failure", || (shown(&mut client, "checkpoint_failures") == "1").then_some(()));
    let error = shown(&mut client, "checkpoint_last_error");
    assert!(error.contains("cannot read a child's memory"), "{error}");
    assert_eq!(shown(&mut client, "rdb_last_bgsave_status"), "err");
    assert_eq!(client.ask(&["SET", "0", "later"]), "OK");
    assert_eq!(client.ask(&["CONFIG", "SET", "checkpoint-pace", "0"]), "OK");
    assert_eq!(client.ask(&["SAVE"]), "OK");
    assert_eq!(shown(&mut client, "rdb_last_bgsave_status"), "ok");
    assert_eq!(shown(&mut client, "checkpoint_child_bytes"), "0");
    assert_eq!(child_of(serving.child.id()), None, "no child is left");
    assert_eq!(client.ask(&["GET", "0"]), "later");
}

/// `--pages small` asks the system for its own pages, and otherwise for huge ones.
#[test]
fn the_size_of_pages_can_be_chosen() {
    const MEMORY_KIB: u64 = 256 << 10;
    let advised = |pages: &[&str]| {
        let home = tempfile::tempdir().expect("a directory");
        let arguments = [&["--max-memory", "256MiB"], pages].concat();
        let serving = Serving::start(home.path(), &arguments);
        assert_eq!(serving.client().ask(&["SET", "k", "v"]), "OK");
        ["hg", "nh"].map(|flag| flagged_kib(serving.child.id(), flag))
    };
    let [huge, _] = advised(&[]);
    if huge == 0 {
        return skipped();
    }
    let [huge_when_small, small] = advised(&["--pages", "small"]);
    assert!(small >= MEMORY_KIB, "{small} KiB on small pages");
    assert!(huge_when_small + MEMORY_KIB <= huge, "{huge_when_small} and {huge} KiB on huge pages");
}
