//! Tests of `stillpoint load`: it loads a whole dump, or nothing.

use std::path::Path;

use stillpoint::{Config, Engine};
use stillpoint_io::{Rng, SeededRng};

use crate::common::{Serving, run_with};

fn dump(dir: &Path, more: &[&str]) -> String {
    let (code, said, errors) = run_with("dump", dir, more, b"");
    assert_eq!(code, Some(0), "{errors}");
    said
}

/// The lines of a dump in an order that does not depend on the store.
fn sorted(dump: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = dump.lines().collect();
    lines.sort_unstable();
    lines
}

/// A store with random records: bytes and text, short and long, with and without expiry, and a
/// table that is empty.
fn filled(seed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(Config::new(dir.path())).expect("an empty directory");
    let names = ["db0", "db3", "empty", "a \"table\" of ✓ its own\n"];
    let tables = engine.tables_named(&names).expect("room");
    let mut session = engine.session().expect("a session");
    let rng = SeededRng::new(seed);
    let bytes = |len: u64, is_text: bool| -> Vec<u8> {
        let byte = |random: u64| if is_text { (random % 128) as u8 } else { random as u8 };
        (0..len).map(|_| byte(rng.next_u64())).collect()
    };
    for number in 0..600 {
        let table = tables[[0, 1, 3][(rng.next_u64() % 3) as usize]];
        let key = bytes(rng.next_u64() % 20, rng.next_u64().is_multiple_of(2));
        let len = match number {
            // This value exceeds a batch of the loader, and takes several blocks.
            7 => 3 << 20,
            8 => 0,
            _ => rng.next_u64() % 200,
        };
        let mut value = bytes(len, rng.next_u64().is_multiple_of(2));
        // Bit 7 of a database's tag says that an expiry precedes the value. A dump must also keep a
        // value that is too short for an expiry.
        let tag = [0, 3, 128][(rng.next_u64() % 3) as usize];
        if tag == 128 && number % 5 != 0 {
            let at_ms = 1 + rng.next_u64() % 40_000_000_000_000;
            value.splice(0..0, at_ms.to_le_bytes());
        }
        session.transact(|tx| tx.put_tagged(table, &key, tag, &value)).expect("commits");
    }
    drop(session);
    engine.close().expect("closed");
    dir
}

#[test]
fn a_dump_that_is_loaded_is_dumped_again_as_it_was() {
    for seed in [1, 2] {
        let from = filled(seed);
        let before = dump(from.path(), &[]);
        let to = tempfile::tempdir().expect("a directory");
        let new = to.path().join("new");
        let (code, said, errors) = run_with("load", &new, &["--json"], before.as_bytes());
        assert_eq!(code, Some(0), "seed {seed}: {errors}");
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(json["records"], before.lines().count() - 2, "seed {seed}");
        let after = dump(&new, &[]);
        assert!(sorted(&before) == sorted(&after), "seed {seed}: the dumps differ");
        assert_eq!(run_with("check", &new, &[], b"").0, Some(0), "seed {seed}");
    }
}

#[test]
fn records_that_are_there_stay_unless_the_load_may_add_to_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(dir.path(), &["--durability", "strict"]);
    let mut client = serving.client();
    for key in ["kept", "replaced"] {
        assert_eq!(client.ask(&["SET", key, "old"]), "OK");
    }
    drop(serving); // The process was killed, so the records are in the log.
    let line = r#"{"table":"db0","key":"replaced","tag":0,"value":"new"}"#;
    let (code, _, errors) = run_with("load", dir.path(), &[], line.as_bytes());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("holds 2 records"), "{errors}");
    let (code, said, errors) = run_with("load", dir.path(), &["--add"], line.as_bytes());
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.starts_with("1 records"), "{said}");
    let serving = Serving::start(dir.path(), &[]);
    let mut client = serving.client();
    assert_eq!(client.ask(&["GET", "kept"]), "old");
    assert_eq!(client.ask(&["GET", "replaced"]), "new");
    assert_eq!(client.ask(&["SET", "later", "1"]), "OK");
}

#[test]
fn what_is_no_whole_dump_is_refused_with_its_place_and_loads_nothing() {
    let head = "{\"stillpoint_dump\":1}\n";
    let one = "{\"table\":\"db0\",\"key\":\"a\",\"tag\":0,\"value\":\"1\"}\n";
    let end = "{\"end\":true,\"records\":1,\"tables\":[\"db0\"]}\n";
    let wrong = |line: &str| format!("{head}{one}{line}\n{end}");
    let long = format!(
        "{{\"table\":\"db0\",\"key\":\"{}\",\"tag\":0,\"value\":\"\"}}",
        "k".repeat(70_000)
    );
    let cases: Vec<(String, &str)> = vec![
        (
            format!("{head}{one}"),
            "line 3, which begins at byte 68: the dump ends here, after 1 rec",
        ),
        (format!("{head}{}", &one[..20]), "line 2, which begins at byte 22: "),
        (String::new(), "there is no dump"),
        (one.to_owned() + end, "its first line is missing"),
        (format!("{head}{end}"), "had 1 records when it was written, and 0 came"),
        (format!("{head}{one}{head}"), "the one before has not ended"),
        (format!("{head}{one}{end}{one}"), "behind the end"),
        (head.replace('1', "2") + one + end, "a dump of version 2"),
        (wrong("garbage"), "line 3, which begins at byte 68: expected value, at byte 1"),
        (wrong("{}"), "has not the fields of a record"),
        (wrong("{\"table\":\"db0\",\"key\":\"a\",\"tag\":0}"), "has not the fields of a record"),
        (wrong(&one.replace("}", ",\"more\":1}")), "unknown field `more`"),
        (wrong(&one.replace(":0", ":256")), "256"),
        (wrong(&one.replace("\"1\"", "{\"base16\":\"abc\"}")), "3 digits, which is odd"),
        (wrong(&one.replace("\"1\"", "{\"base16\":\"zz\"}")), "no digit"),
        (wrong(&one.replace("\"1\"", "{\"base64\":\"AA==\"}")), "unknown field `base64`"),
        (wrong(&one.replace("\"1\"", "{}")), "missing field `base16`"),
        (wrong(&one.replace("db0", "")), "1 to 255 bytes"),
        (wrong(&one.replace("}", ",\"expires_ms\":0}")), "leave out expires_ms"),
        (wrong(&one.replace(":0", ":128").replace("}", ",\"expires_ms\":1}")), "below 128"),
        (wrong(&long), "a key of 70000 bytes is too long"),
    ];
    let dir = tempfile::tempdir().expect("a directory");
    for (text, reason) in cases {
        let (code, said, errors) = run_with("load", dir.path(), &[], text.as_bytes());
        assert_eq!((code, said.as_str()), (Some(2), ""), "{text}");
        assert!(errors.contains(reason), "{text}: {errors}");
        assert!(errors.ends_with("; nothing was loaded\n"), "{text}: {errors}");
    }
    let left = dump(dir.path(), &[]);
    assert_eq!(left.lines().count(), 2, "no record: {left}");
    // After any failure the same directory accepts another load.
    let (code, _, errors) =
        run_with("load", dir.path(), &[], format!("{head}{one}{end}").as_bytes());
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn a_dump_of_an_earlier_release_is_loaded() {
    let lines = "\
        {\"key\":\"plain\",\"table\":\"db0\",\"tag\":0,\"value\":\"1\"}\n\
        {\"key\":{\"base16\":\"00FF\"},\"table\":\"t\",\"tag\":9,\"value\":\"\"}\n\
        {\"key\":\"t\",\"table\":\"db0\",\"tag\":128,\"value\":{\"base16\":\"00d4ffff8f1d000068656c6c6f\"}}";
    let dir = tempfile::tempdir().expect("a directory");
    let (code, _, errors) = run_with("load", dir.path(), &[], lines.as_bytes());
    assert_eq!(code, Some(0), "{errors}");
    let dumped = dump(dir.path(), &[]);
    for part in [
        "{\"table\":\"db0\",\"key\":\"plain\",\"tag\":0,\"value\":\"1\"}\n",
        "{\"table\":\"t\",\"key\":{\"base16\":\"00ff\"},\"tag\":9,\"value\":\"\"}\n",
        "\"key\":\"t\",\"tag\":0,\"value\":\"hello\",\"expires_ms\":",
        "{\"end\":true,\"records\":3,\"tables\":[\"db0\",\"t\"]}\n",
    ] {
        assert!(dumped.contains(part), "{part} {dumped}");
    }
}

#[test]
fn memory_that_does_not_suffice_is_told_with_the_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let value = "v".repeat(4 << 20);
    let line =
        |n: u32| format!("{{\"table\":\"t\",\"key\":\"{n}\",\"tag\":0,\"value\":\"{value}\"}}\n");
    let text: String = (0..12).map(line).collect();
    let (code, _, errors) =
        run_with("load", dir.path(), &["--max-memory", "32MiB"], text.as_bytes());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.starts_with("stillpoint: line "), "{errors}");
    assert!(errors.contains("memory") && errors.contains("nothing was loaded"), "{errors}");
}
