//! Tests of check, inspect and dump: they write nothing, and work beside a running server.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use stillpoint::{Config, Engine, ValueRef};
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, read_all};

use crate::common::{Serving, load_elsewhere, stillpoint};

/// A user without any rights.
const NOBODY: u32 = 65534;

fn run_as(mut command: Command, tool: &str, dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        command.arg(tool).arg(dir).args(more).output().expect("the binary runs");
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).expect("text"))
}

fn run(tool: &str, dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    run_as(stillpoint(), tool, dir, more)
}

fn copy(from: &Path, to: &Path) {
    let place = |path: &Path| {
        let dir = RealDisk::new(path.parent().expect("a directory")).expect("it is there");
        (dir, Path::new(path.file_name().expect("a file")).to_owned())
    };
    let ((from, source), (to, target)) = (place(from), place(to));
    let bytes = read_all(&from, &source).expect("it is there");
    let file = to.open(&target, OpenMode::CreateNew, Caching::Buffered);
    file.and_then(|file| file.write_at(&bytes, 0)).expect("room");
}

/// A directory of a server that has ended: `a`, and `t`, which expires.
fn served() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &[]);
    let mut client = serving.client();
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert_eq!(client.ask(&["SET", "t", "hello", "PXAT", "32503680000000"]), "OK");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    dir
}

#[test]
fn looking_makes_no_file() {
    let dir = served();
    let disk = RealDisk::new(dir.path()).expect("it is there");
    disk.remove(Path::new("LOCK")).expect("the server has ended");
    for tool in ["check", "inspect", "dump"] {
        let (code, said) = run(tool, dir.path(), &[]);
        assert_eq!(code, Some(0), "{tool}: {said}");
        assert!(!dir.path().join("LOCK").exists(), "{tool} made LOCK");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_looked_at() {
    let dir = served();
    let bin = tempfile::tempdir().expect("a directory");
    let binary = bin.path().join("stillpoint");
    copy(Path::new(env!("CARGO_BIN_EXE_stillpoint")), &binary);
    let modes = [(bin.path(), 0o755), (&binary, 0o755), (dir.path(), 0o555)];
    for (path, mode) in modes {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("mine");
    }
    for tool in ["check", "inspect", "dump"] {
        let mut command = Command::new(&binary);
        if rustix::process::getuid().is_root() {
            command.uid(NOBODY);
        }
        let (code, said) = run_as(command, tool, dir.path(), &[]);
        assert_eq!(code, Some(0), "{tool}: {said}");
    }
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mine");
}

#[test]
fn beside_a_running_server_the_newest_checkpoint_is_looked_at() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &["--checkpoint-every", "never"]);
    let mut client = serving.client();
    let (code, said) = run("check", dir.path(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no checkpoint yet, without the log"), "{said}");
    assert_eq!(client.ask(&["SET", "saved", "1"]), "OK");
    assert_eq!(client.ask(&["SAVE"]), "OK");
    assert_eq!(client.ask(&["FLUSHALL"]), "OK");
    assert_eq!(client.ask(&["SET", "later", "1"]), "OK");
    for tool in ["check", "inspect", "dump"] {
        let (code, said) = run(tool, dir.path(), &[]);
        assert_eq!(code, Some(0), "{tool}: {said}");
        assert!(said.contains("as of epoch 2, without the log"), "{tool}: {said}");
        if tool == "dump" {
            assert!(said.contains("\"saved\"") && !said.contains("\"later\""), "{said}");
        }
    }
    let (_, said) = run("check", dir.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["extent"]["checkpoint"], 2, "{json}");
    assert_eq!((&json["sound"], &json["log_bytes"]), (&true.into(), &serde_json::Value::Null));
}

/// Checkpoints come and go while a dump and a check look for the newest one.
#[test]
fn a_checkpoint_that_is_superseded_meanwhile_is_no_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &["--checkpoint-every", "never"]);
    let mut client = serving.client();
    assert_eq!(client.ask(&["SET", "kept", "1"]), "OK");
    assert_eq!(client.ask(&["SAVE"]), "OK");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut said = Vec::new();
            for _ in 0..10 {
                for tool in ["check", "dump"] {
                    said.push(run(tool, dir.path(), &[]));
                }
            }
            done.store(true, std::sync::atomic::Ordering::Release);
            said
        });
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            assert_eq!(client.ask(&["SET", "other", "1"]), "OK");
            assert_eq!(client.ask(&["SAVE"]), "OK");
        }
        for (code, said) in looking.join().expect("no panic") {
            assert_eq!(code, Some(0), "{said}");
        }
    });
}

#[test]
fn a_dump_names_the_moment_at_which_a_key_expires() {
    let dir = served();
    let (code, said) = run("dump", dir.path(), &["--table", "db0"]);
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |key: &str| lines.iter().find(|line| line["key"] == key).expect("it is there");
    assert_eq!(of("t")["expires_ms"], 32_503_680_000_000_u64);
    assert_eq!((&of("t")["value"], &of("t")["tag"]), (&"hello".into(), &0.into()));
    assert_eq!((&of("a")["value"], of("a").get("expires_ms")), (&"1".into(), None));
}

#[test]
fn the_commands_in_the_logs_are_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &["--log-calls", "--checkpoint-every", "never"]);
    let mut client = serving.client();
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert_eq!(client.ask(&["GET", "a"]), "1");
    assert_eq!(client.ask(&["MULTI"]), "OK");
    assert_eq!(client.ask(&["INCR", "a"]), "QUEUED");
    assert_eq!(client.ask(&["LPUSH", "list", "x", "y"]), "QUEUED");
    assert_eq!(client.ask(&["CONFIG", "SET", "requirepass", "hush"]), "QUEUED");
    assert_eq!(client.ask(&["EXEC"]), "*3");
    (0..3).for_each(|_| drop(client.reply().expect("a reply of the queue")));
    // A queue with a command over the whole database runs in steps if at most one step writes.
    // Otherwise the queue is one transaction.
    for queue in [&[&["SET", "b", "2"][..], &["DBSIZE"]][..], &[&["SET", "c", "3"], &["FLUSHDB"]]] {
        assert_eq!(client.ask(&["MULTI"]), "OK");
        for command in queue {
            assert_eq!(client.ask(command), "QUEUED");
        }
        assert_eq!(client.ask(&["EXEC"]), "*2");
        queue.iter().for_each(|_| drop(client.reply().expect("a reply of the queue")));
    }
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let (code, said) = run("inspect", dir.path(), &["--calls"]);
    assert_eq!(code, Some(0), "{said}");
    let calls: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let named: Vec<_> = calls.iter().map(|call| (&call["name"], &call["arguments"])).collect();
    let exec = "*2\r\n$4\r\nINCR\r\n$1\r\na\r\n\
        *4\r\n$5\r\nLPUSH\r\n$4\r\nlist\r\n$1\r\nx\r\n$1\r\ny\r\n\
        *4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$11\r\nrequirepass\r\n$10\r\n(redacted)\r\n";
    let expected = [
        ("SET", "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"),
        ("EXEC", exec),
        ("EXEC", "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n"),
        ("EXEC", "*3\r\n$3\r\nSET\r\n$1\r\nc\r\n$1\r\n3\r\n*1\r\n$7\r\nFLUSHDB\r\n"),
    ];
    assert_eq!(named.len(), 4, "a read has no record: {said}");
    // Calls that do not depend on each other have no order.
    for (command, request) in expected {
        let found = named.iter().find(|(_, arguments)| arguments.as_str() == Some(request));
        let (name, _) = found.unwrap_or_else(|| panic!("{request} is not in {said}"));
        assert!(name.as_str().is_some_and(|name| name.eq_ignore_ascii_case(command)), "{said}");
    }
    // The inputs of a call: the time in 8 bytes, and the number of the database in 4.
    let bytes = |call: &serde_json::Value| match &call["inputs"] {
        serde_json::Value::String(text) => text.len(),
        other => other["base16"].as_str().expect("bytes").len() / 2,
    };
    assert!(calls.iter().all(|call| bytes(call) == 12 && call["version"] == 1), "{said}");
    let without = served();
    let (code, said) = run("inspect", without.path(), &["--calls"]);
    assert_eq!((code, &*said), (Some(0), ""));
}

/// With the journal `command` a record is a request, which a killed server's successor runs again. The
/// successor may have another journal.
#[test]
fn commands_of_a_killed_server_run_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let strict = ["--durability", "strict", "--checkpoint-every", "never"];
    let serving = Serving::start(dir.path(), &[&strict[..], &["--journal", "command"]].concat());
    let mut client = serving.client();
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert_eq!(client.ask(&["INCRBY", "a", "41"]), ":42");
    assert_eq!(client.ask(&["SADD", "s", "x", "y", "z"]), ":3");
    let popped = client.ask(&["SPOP", "s"]);
    // Distances, whose last bit another machine might compute otherwise, are logged as written.
    assert_eq!(client.ask(&["GEOADD", "g", "13.3", "38.1", "p", "15.0", "37.5", "c"]), ":2");
    let by_distance = ["GEOSEARCHSTORE", "d", "g", "FROMMEMBER", "p", "BYRADIUS", "200", "km"];
    assert_eq!(client.ask(&[&by_distance[..], &["STOREDIST"]].concat()), ":2");
    drop(serving); // Killed.
    let (code, said) = run("inspect", dir.path(), &["--calls"]);
    assert_eq!(code, Some(0), "{said}");
    let calls: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let requests: Vec<_> =
        calls.iter().map(|call| call["requests"][0]["request"].clone()).collect();
    assert_eq!(requests.len(), 5, "{said}");
    assert!(requests.contains(&serde_json::json!(["INCRBY", "a", "41"])), "{said}");
    let (code, said) = run("check", dir.path(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("a start needs procedure \"commands\" version 2"), "{said}");
    let (code, said) = run("dump", dir.path(), &["--table", "db0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\"value\":\"42\""), "{said}");
    let (code, said) = run("check", dir.path(), &["--collections"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("collections: 3 verified"), "{said}");
    let serving = Serving::start(dir.path(), &strict);
    let mut client = serving.client();
    assert_eq!(client.ask(&["GET", "a"]), "42");
    assert_eq!(client.ask(&["SISMEMBER", "s", &popped]), ":0");
    assert_eq!(client.ask(&["SCARD", "s"]), ":2");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let (_, said) = run("check", dir.path(), &[]);
    assert!(!said.contains("a start needs"), "{said}");
}

/// `check --collections` finds a tree that lacks a node, which no checksum tells.
#[test]
fn damaged_collections_are_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &[]);
    let mut client = serving.client();
    let names: Vec<String> = (0..600).map(|i| format!("member {i}")).collect();
    let mut words = vec!["SADD", "large"];
    words.extend(names.iter().map(String::as_str));
    assert_eq!(client.ask(&words), ":600");
    assert_eq!(client.ask(&["RPUSH", "small", "a", "b"]), ":2");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let (code, said) = run("check", dir.path(), &["--collections"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("collections: 2 verified, with ") && said.contains("; 0 being"),
        "{said}"
    );
    let engine = Engine::open(Config::new(dir.path())).expect("it opens");
    let table = engine.table("db0.nodes").expect("a table");
    let mut session = engine.session().expect("a session");
    let (mut node, mut cursor) = (None, 0);
    while node.is_none() {
        let visit = &mut |key: &[u8], _: ValueRef<'_>| node = Some(key.to_vec());
        cursor = session.scan_heads(table, cursor, 1, 0, visit).expect("a step");
    }
    let node = node.expect("a node");
    session.transact(|tx| tx.delete(table, &node)).expect("deleted");
    drop(session);
    engine.close().expect("closed");
    assert_eq!(run("check", dir.path(), &[]).0, Some(0), "every record is sound");
    let (code, said) = run("check", dir.path(), &["--collections"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("damaged: table db0, key \"large\": node "), "{said}");
    let (code, said) = run("check", dir.path(), &["--collections", "--json"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\"sound\":false") && said.contains("\"verified\":2"), "{said}");
}

/// `inspect --collections` counts collections by kind. A loaded dump has the same ones, and all are sound.
#[test]
fn a_dump_has_collections_whole_and_inspect_counts_them() {
    let (dir, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    let serving = Serving::start(dir.path(), &[]);
    let mut client = serving.client();
    let names: Vec<String> = (0..600).map(|i| format!("{i}")).collect();
    let mut words = vec!["SADD", "large"];
    words.extend(names.iter().map(String::as_str));
    assert_eq!(client.ask(&words), ":600");
    assert_eq!(client.ask(&["SADD", "small", "a", "b"]), ":2");
    let mut words = vec!["ZADD", "board"];
    words.extend(names.iter().flat_map(|name| [&**name, &**name]));
    assert_eq!(client.ask(&words), ":600");
    words[..2].copy_from_slice(&["HSET", "session"]);
    assert_eq!(client.ask(&words), ":600");
    let expiry = ["HPEXPIREAT", "session", "32503680000000", "FIELDS", "1", "7"];
    assert_eq!(client.ask(&expiry), "*1");
    assert_eq!(client.reply().expect("a reply"), ":1");
    assert_eq!(client.ask(&["PEXPIREAT", "board", "32503680000000"]), ":1");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
    let counted = |dir: &Path| {
        let (code, said) = run("inspect", dir, &["--collections"]);
        assert_eq!(code, Some(0), "{said}");
        let lines = said.lines().filter(|line| line.starts_with("collections "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = counted(dir.path());
    assert_eq!(before.len(), 3, "{before:?}");
    let begin = "collections  set: 2 with 602 elements in ";
    assert!(before[1].starts_with(begin), "{before:?}");
    assert!(before[1].ends_with("; largest: 600, table db0, key \"large\""), "{before:?}");
    load_elsewhere(dir.path(), other.path());
    assert_eq!(counted(other.path()), before);
    let (code, said) = run("check", other.path(), &["--collections"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run("inspect", other.path(), &["--collections", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let all: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let kinds = &all["collections"]["kinds"];
    assert_eq!((&kinds[0]["kind"], &kinds[0]["elements"]), (&"hash".into(), &600.into()), "{said}");
    assert_eq!(kinds[2]["largest"]["key"], "board", "{said}");
}
