//! Tests under the system's limits of open files and of the size of a file.

use std::process::Command;

use stillpoint_io::{Clock, RealClock};

use crate::common::{Client, Serving, stillpoint, wait_for};

/// A server under limits that a shell sets with `ulimit`.
fn limited(limits: &str) -> Command {
    let mut command = Command::new("sh");
    let program = stillpoint().get_program().to_owned();
    command.arg("-c").arg(format!("{limits}; exec \"$0\" \"$@\"")).arg(program);
    command
}

/// Idle clients must not use up descriptors that a checkpoint needs.
#[test]
fn idle_clients_leave_files_to_the_store() {
    let home = tempfile::tempdir().expect("a directory");
    let arguments = ["--durability", "strict", "--checkpoint-every", "never"];
    let mut serving = Serving::begin_as(limited("ulimit -n 180"), home.path(), &arguments);
    serving.wait_until_served();
    let mut client = serving.client();
    let mut of_clients = |name: &str| {
        let clients = client.ask(&["INFO", "clients"]);
        let value = clients.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<usize>().ok()).expect("a number")
    };
    let most = of_clients("maxclients:");
    assert!(most < 180, "{most}");
    let idle: Vec<Client> = (0..200).map(|_| serving.client()).collect();
    wait_for("a full house", || (of_clients("connected_clients:") >= most).then_some(()));
    assert!(client.ask(&["CONFIG", "SET", "maxclients", "10000"]).contains("ERR"));
    for n in 0..3 {
        assert_eq!(client.ask(&["SET", "key", &n.to_string()]), "OK");
        assert_eq!(client.ask(&["SAVE"]), "OK");
    }
    drop(idle);
    assert!(serving.runs());
}

/// Where the store needs all descriptors, no client could be served, so the start is refused.
#[test]
fn a_start_without_files_for_clients_says_what_it_needs() {
    let home = tempfile::tempdir().expect("a directory");
    let serving = Serving::begin_as(limited("ulimit -n 64"), home.path(), &[]);
    let (status, _, said) = serving.ended();
    assert!(!status.success());
    assert!(said.contains("the limit of open files is 64") && said.contains("ulimit -n"), "{said}");
    let made = std::fs::read_dir(home.path()).expect("a directory").count();
    assert_eq!(made, 0, "nothing is made");
}

/// A write beyond the limit of file size fails. The process reports the error and goes on.
#[test]
fn a_file_that_may_not_grow_does_not_end_the_process() {
    let home = tempfile::tempdir().expect("a directory");
    let arguments = ["--journal", "none", "--checkpoint-every", "never", "--max-memory", "256MiB"];
    // The limit is 1 MiB, since `ulimit -f` counts blocks of 512 bytes.
    let mut serving = Serving::begin_as(limited("ulimit -f 2048"), home.path(), &arguments);
    serving.wait_until_served();
    let mut client = serving.client();
    let value = "x".repeat(1 << 20);
    for n in 0..4 {
        assert_eq!(client.ask(&["SET", &n.to_string(), &value]), "OK");
    }
    let refused = client.ask(&["SAVE"]);
    assert_ne!(refused, "OK");
    RealClock.sleep(std::time::Duration::from_millis(100));
    assert!(serving.runs());
    assert_eq!(client.ask(&["GET", "0"]), value);
}
