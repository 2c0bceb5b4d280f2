//! `--checkpoint siren`: commands, `kill -9` and a restart, the tools on its directory, and what is refused.

use std::path::Path;
use std::process::Output;

use crate::common::{Client, Serving, load_elsewhere, run, stillpoint};

/// The refusal of a start.
fn refusal(dir: &Path, arguments: &[&str]) -> String {
    let mut serve = stillpoint();
    let serve = serve.args(["serve", "--port", "0", "--data"]).arg(dir).args(arguments).output();
    let Output { status, stderr, .. } = serve.expect("the binary runs");
    assert!(!status.success());
    String::from_utf8(stderr).expect("text")
}

fn fill(client: &mut Client, round: u32) {
    for number in 0..200 {
        let (key, value) = (format!("key {number:03}"), format!("{round} {}", "x".repeat(300)));
        assert_eq!(client.ask(&["SET", &key, &value]), "OK");
    }
    assert_eq!(client.ask(&["DEL", "key 000", "key 199"]), ":2");
}

#[test]
fn a_siren_store_serves_and_survives_its_end() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = &home.path().join("data");
    for (round, scheme) in ["siren", "siren-semi-fuzzy", "siren"].into_iter().enumerate() {
        let arguments = ["--checkpoint", scheme, "--durability", "strict"];
        let serving = Serving::start(dir, &arguments);
        let mut client = serving.client();
        if round > 0 {
            assert_eq!(client.ask(&["DBSIZE"]), ":200");
            let value = client.ask(&["GET", "key 007"]);
            assert!(value.starts_with(&format!("{} x", round - 1)), "{value}");
            assert_eq!(client.ask(&["GET", "counter"]), format!("{round}"));
        }
        fill(&mut client, round as u32);
        assert_eq!(client.ask(&["SAVE"]), "OK");
        assert_eq!(client.ask(&["INCR", "counter"]), format!(":{}", round + 1));
        assert_eq!(client.ask(&["HSET", "small", "field", "value"]), [":1", ":0"][round.min(1)]);
        assert_eq!(client.ask(&["CONFIG", "GET", "checkpoint"]), "*2");
        assert_eq!(
            (client.reply().expect("a name"), client.reply().ok()),
            ("checkpoint".to_owned(), Some(scheme.to_owned()))
        );
        // The drop kills the server.
    }
    tools_know_it(dir);
    let in_memory = &home.path().join("loaded");
    // A dump is loaded into tables in memory.
    let said = load_elsewhere(dir, in_memory);
    assert!(said.contains("200 records"), "{said}");
    what_does_not_fit_is_refused(dir, in_memory);
}

/// The memory of an emptied database goes to the system, also where that of another one lies between.
#[test]
fn an_emptied_database_gives_its_memory_back() {
    let home = tempfile::tempdir().expect("a directory");
    let arguments = ["--checkpoint", "siren", "--max-memory", "512MiB"];
    let serving = Serving::start(home.path(), &arguments);
    let mut client = serving.client();
    let resident = |client: &mut Client| {
        let said = client.ask(&["INFO", "memory"]);
        let found = said.lines().find_map(|line| line.strip_prefix("used_memory_rss:"));
        found.and_then(|value| value.trim().parse::<u64>().ok()).expect("a number")
    };
    let value = "x".repeat(16 << 10);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    for first in (0..4000).step_by(100) {
        let both = |number: u32| {
            let key = number.to_string();
            let [stays, goes] = [("0", "stays"), ("1", &value[..])];
            [stays, goes].map(|(database, value)| {
                [words(&["SELECT", database]), words(&["SET", &key, value])]
            })
        };
        let requests: Vec<Vec<String>> = (first..first + 100).flat_map(both).flatten().collect();
        let said = client.try_ask_all(&requests);
        assert!(said.len() == 400 && said.iter().all(|said| said == "OK"), "{said:?}");
    }
    let before = resident(&mut client);
    assert_eq!(client.ask(&["FLUSHDB"]), "OK");
    let after = resident(&mut client);
    assert!(after + (45 << 20) < before, "of 62 MiB: {before} bytes before, {after} after");
    assert_eq!(client.ask(&["SELECT", "0"]), "OK");
    assert_eq!(client.ask(&["DBSIZE"]), ":4000");
}

/// check, inspect and dump.
fn tools_know_it(dir: &Path) {
    let (code, said) = run(&["check"], dir);
    assert!(code == Some(0) && said.ends_with("sound\n"), "{said}");
    assert!(
        said.contains("siren pages: ") && said.contains("siren table db0: 200 records"),
        "{said}"
    );
    let (_, json) = run(&["check", "--json"], dir);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let tables = json["siren_tables"].as_array().expect("tables");
    assert!(tables.iter().any(|of| of["name"] == "db0" && of["records"] == 200), "{json}");
    assert_eq!(json["siren"]["page_bytes"], 16 << 10, "{json}");
    let (code, said) = run(&["inspect"], dir);
    assert!(code == Some(0) && said.contains("siren pages  of 16.0 KiB, in "), "{said}");
    let (_, json) = run(&["inspect", "--json"], dir);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["siren"]["level"].as_u64() > Some(0), "{json}");

    let (code, said) = run(&["dump", "--table", "db0"], dir);
    assert_eq!((code, said.matches("\"key ").count()), (Some(0), 198), "{said}");
}

fn what_does_not_fit_is_refused(dir: &Path, in_memory: &Path) {
    let (code, said) = run(&["repair"], dir);
    assert!(code == Some(0) && said.contains("nothing has to be given up"), "{said}");
    let to = dir.with_extension("restored").display().to_string();
    let (code, said) = run(&["restore", "--checkpoint", "2", "--to", &to], dir);
    assert!(code == Some(2) && said.contains("siren tables (db0"), "{said}");
    let (code, said) = run(&["load"], dir);
    assert!(code == Some(2) && said.contains("such tables need the log"), "{said}");

    let said = refusal(dir, &[]);
    assert!(
        said.contains("tables of kind siren (db0, ") && said.contains("choose checkpoint siren"),
        "{said}"
    );
    let said = refusal(in_memory, &["--checkpoint", "siren"]);
    assert!(
        said.contains("siren is for tables of kind siren, and the store has others ("),
        "{said}"
    );
    assert!(
        said.contains("choose checkpoint calc:partial") && said.contains("stillpoint dump"),
        "{said}"
    );
    for journal in ["none", "command", "undo-redo"] {
        let said = refusal(dir, &["--checkpoint", "siren", "--journal", journal]);
        assert!(said.contains("journal"), "{said}");
    }
    let serving = Serving::start(in_memory, &[]);
    assert_eq!(serving.client().ask(&["GET", "counter"]), "3");
}

/// What tables of the kind cannot do is refused by the kind's name, and nothing changes.
#[test]
fn what_the_kind_lacks_is_refused_by_name() {
    let home = tempfile::tempdir().expect("a directory");
    let serving = Serving::start(&home.path().join("data"), &["--checkpoint", "siren"]);
    let mut client = serving.client();
    assert_eq!(client.ask(&["SET", "key", "value"]), "OK");
    for request in [
        &["SET", "key", "other", "EX", "100"][..],
        &["EXPIRE", "key", "100"],
        &["SETEX", "key", "100", "other"],
    ] {
        let said = client.ask(request);
        assert!(said.starts_with("-ERR tables of kind siren keep no deadlines"), "{said}");
    }
    assert_eq!(client.ask(&["TTL", "key"]), ":-1");
    assert_eq!(client.ask(&["GET", "key"]), "value");
    let mut refused = None;
    for number in 0..5000 {
        let said = client.ask(&["HSET", "hash", &format!("field {number}"), "value"]);
        if said != ":1" {
            refused = Some((number, said));
            break;
        }
    }
    let (count, said) = refused.expect("a large hash needs records below its key");
    assert!(said.starts_with("-ERR tables of kind siren have no keys below a key"), "{said}");
    assert_eq!(client.ask(&["HLEN", "hash"]), format!(":{count}"));
    let said = client.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert!(said.contains("tables of kind siren"), "{said}");
    let drawn = client.ask(&["RANDOMKEY"]);
    assert!(drawn == "key" || drawn == "hash", "{drawn}");
    assert_eq!(client.ask(&["FLUSHALL"]), "OK");
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
}
