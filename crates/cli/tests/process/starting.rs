//! Tests of a server's start: the port, the loading, the settings.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use stillpoint_io::{Disk, RealDisk};

use crate::common::{Client, Serving, free_port, stillpoint, wait_for};
use crate::log::text_of;

fn write(path: &Path, text: &str) {
    let file = stillpoint_io::AppendFile::open(path).expect("it can be made");
    file.append(text).expect("room");
}

#[test]
fn a_port_that_is_taken_is_told_before_the_data_is_touched() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let serving = Serving::begin_at(port, stillpoint(), &data, &[]);
    let (status, _, said) = serving.ended();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{said}");
    assert!(!data.exists(), "the data directory was made");
}

/// A server waits two seconds for a directory whose lock another process holds.
fn while_locked(dir: &Path) -> (Box<dyn Send + Sync>, Serving, Client) {
    let disk = RealDisk::new(dir).expect("it is there");
    let lock = disk.lock(Path::new("LOCK")).expect("a lock").expect("nobody holds it");
    let serving = Serving::begin(dir, &["--requirepass", "secret"]);
    let client = serving.client();
    (lock, serving, client)
}

#[test]
fn while_data_is_loaded_health_is_answered_and_all_else_is_told_to_come_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (lock, mut serving, mut client) = while_locked(dir.path());
    assert!(client.ask(&["PING"]).starts_with("-NOAUTH "));
    assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
    assert_eq!(client.ask(&["PING"]), "PONG");
    assert!(client.ask(&["SET", "a", "1"]).starts_with("-LOADING "));
    let info = client.ask(&["INFO", "persistence"]);
    for field in
        ["loading:1", "loading_start_time:", "loading_total_bytes:", "loading_eta_seconds:"]
    {
        assert!(info.contains(field), "{info}");
    }
    assert!(!info.contains("redis_version"), "{info}");
    assert!(client.ask(&["INFO"]).contains("redis_version:"));
    assert_eq!(client.ask(&["CLIENT", "SETINFO", "LIB-NAME", "probe"]), "OK");
    drop(lock);
    serving.wait_until_served();
    // The connection from before the opening of the directory is still logged in.
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert!(client.ask(&["CLIENT", "INFO"]).contains("lib-name=probe"));
    assert!(client.ask(&["INFO", "persistence"]).contains("loading:0"));
}

#[test]
fn sigterm_ends_the_loading_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (lock, serving, mut client) = while_locked(dir.path());
    assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
    serving.signal("TERM");
    let (status, _, said) = serving.ended();
    assert!(status.success(), "{said}");
    assert!(said.contains("ends before the data was loaded"), "{said}");
    assert!(!dir.path().join("MANIFEST").exists());
    drop(lock);
}

#[test]
fn a_wrong_password_while_loading_costs_the_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_lock, _serving, mut client) = while_locked(dir.path());
    assert!(client.ask(&["AUTH", "guess"]).starts_with("-WRONGPASS "));
    assert!(client.try_ask(&["AUTH", "secret"]).is_err());
}

#[test]
fn names_are_listened_on_and_the_environment_gives_settings() {
    let dir = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let mut command = stillpoint();
    command.env("STILLPOINT_BIND", "localhost").env("STILLPOINT_PORT", "1");
    command.env("STILLPOINT_REQUIREPASS", "secret").env("STILLPOINT_CHECKPOINT_EVERY", "7s");
    let mut serving = Serving::begin_at(port, command, dir.path(), &[]);
    serving.wait_until_served();
    let mut client = serving.client();
    assert!(client.ask(&["PING"]).starts_with("-NOAUTH"));
    assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
    assert!(client.ask(&["CONFIG", "GET", "save"]).starts_with('*'));
}

#[test]
fn a_wrong_configuration_file_is_named_with_line_field_and_form() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("stillpoint.json");
    write(&file, "{\n  \"checkpoint_every\": 60\n}\n");
    let path = file.display().to_string();
    let serving = Serving::begin(&dir.path().join("data"), &["--config", &path]);
    let (status, _, said) = serving.ended();
    assert_eq!(status.code(), Some(2), "{said}");
    for part in [&*path, "checkpoint_every: ", "\"60s\"", "line 2"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_supervisor_is_told_and_finds_the_number_of_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
    let pidfile = dir.path().join("pid");
    let mut command = stillpoint();
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let pid_path = pidfile.display().to_string();
    let data = dir.path().join("data");
    let mut serving = Serving::begin_as(command, &data, &["--pidfile", &pid_path]);
    serving.wait_until_served();
    let pid = serving.child.id();
    assert_eq!(text_of(&pidfile), format!("{pid}\n"));
    serving.signal("TERM");
    let mut told = String::new();
    while !told.contains("STOPPING=1") {
        let mut message = [0; 512];
        let length = socket.recv(&mut message).expect("a message");
        told.push_str(&String::from_utf8_lossy(&message[..length]));
    }
    assert!(serving.ended().0.success());
    let (loading, ready) = (told.find("STATUS=loading"), told.find("READY=1"));
    assert!(loading.is_some() && loading < ready && ready < told.find("STOPPING=1"), "{told}");
    wait_for("the end of the file", || (!pidfile.exists()).then_some(()));
}
