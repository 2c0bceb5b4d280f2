//! Tests of MULTI, EXEC and WATCH as one serializable transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{TestServer, Value, encode};

#[test]
fn a_watched_key_that_changed_makes_exec_do_nothing() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    for (change, fails) in [
        (vec!["SET", "w", "2"], true),
        (vec!["SET", "other", "2"], false),
        (vec!["DEL", "w"], true),
        (vec!["EXPIRE", "w", "100"], true),
        (vec!["GET", "w"], false),
        (vec!["DEL", "missing"], false),
        (vec!["FLUSHDB"], true),
    ] {
        a.call(&["SET", "w", "1"]);
        assert_eq!(a.call(&["WATCH", "w", "absent"]), Value::ok());
        b.call(&change);
        a.call(&["MULTI"]);
        assert_eq!(a.call(&["SET", "result", "x"]).text(), "QUEUED");
        let reply = a.call(&["EXEC"]);
        let expected = if fails { Value::Null } else { Value::Array(vec![Value::ok()]) };
        assert_eq!(reply, expected, "after {change:?}");
    }
    // A missing key that stays missing has not changed, whatever happens to other keys.
    a.call(&["WATCH", "absent"]);
    for i in 0..100 {
        b.call(&["SET", &format!("noise{i}"), "x"]);
        b.call(&["DEL", &format!("noise{i}")]);
    }
    a.call(&["MULTI"]);
    a.call(&["PING"]);
    assert_eq!(a.call(&["EXEC"]), Value::Array(vec![Value::Simple("PONG".to_owned())]));
    a.call(&["WATCH", "absent"]);
    b.call(&["SET", "absent", "x"]);
    a.call(&["MULTI"]);
    assert_eq!(a.call(&["EXEC"]), Value::Null);
}

/// The key is alone or next to another key, is made in each way and deleted in each way.
#[test]
fn a_watched_key_that_was_made_and_is_gone_again_makes_exec_do_nothing() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let ways: [&[&[&str]]; 9] = [
        &[&["SET", "w", "1"], &["DEL", "w"]],
        &[&["MSET", "w", "1", "v", "2"], &["FLUSHDB"]],
        &[&["INCR", "w"], &["GETDEL", "w"]],
        &[&["APPEND", "w", "x"], &["RENAME", "w", "v"]],
        &[&["SET", "v", "1"], &["COPY", "v", "w"], &["EXPIRE", "w", "-1"]],
        &[&["SELECT", "1"], &["SET", "w", "1"], &["MOVE", "w", "0"], &["SELECT", "0"]],
        &[&["MULTI"], &["SET", "w", "1"], &["DEL", "w"], &["EXEC"]],
        &[&["MULTI"], &["FLUSHALL"], &["SET", "w", "1"], &["DEL", "w"], &["EXEC"]],
        &[&["SET", "w", "1", "PX", "1"]],
    ];
    for way in ways {
        for watched in [&["WATCH", "w"][..], &["WATCH", "w", "other"], &["WATCH", "v", "w", "w"]] {
            b.call(&["FLUSHALL"]);
            assert_eq!(a.call(watched), Value::ok());
            for words in way {
                let reply = b.call(words);
                assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
            }
            b.call(&["DEL", "w"]);
            crate::common::eventually("w is gone", || b.call(&["EXISTS", "w"]) == Value::Int(0));
            a.call(&["MULTI"]);
            assert_eq!(a.call(&["EXEC"]), Value::Null, "{watched:?}, {way:?}");
        }
    }
    // Earlier changes, and changes of the same key in another database, do not count.
    a.call(&["WATCH", "w"]);
    b.call(&["SELECT", "1"]);
    b.call(&["SET", "w", "1"]);
    b.call(&["DEL", "w"]);
    a.call(&["MULTI"]);
    assert_eq!(a.call(&["EXEC"]), Value::Array(Vec::new()));
}

#[test]
fn a_key_that_has_expired_is_missing_for_who_watches_it() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    for made_again in [false, true] {
        a.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        b.call(&["SET", "w", "1", "PX", "1"]);
        crate::common::eventually("expiry", || b.call(&["TTL", "w"]) == Value::Int(-2));
        a.call(&["WATCH", "w"]);
        if made_again {
            b.call(&["SET", "w", "2"]);
        }
        b.call(&["DEL", "w"]);
        a.call(&["MULTI"]);
        let expected = if made_again { Value::Null } else { Value::Array(Vec::new()) };
        assert_eq!(a.call(&["EXEC"]), expected);
    }
}

#[test]
fn a_watched_key_that_expires_makes_exec_do_nothing() {
    let server = TestServer::start();
    let mut a = server.client();
    a.call(&["SET", "w", "1", "PX", "30"]);
    a.call(&["WATCH", "w"]);
    crate::common::eventually("expiry", || server.client().call(&["GET", "w"]) == Value::Null);
    a.call(&["MULTI"]);
    a.call(&["SET", "x", "1"]);
    assert_eq!(a.call(&["EXEC"]), Value::Null);
    assert_eq!(a.call(&["EXISTS", "x"]), Value::Int(0));
}

#[test]
fn one_commands_error_leaves_the_others() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "text", "abc"]);
    c.call(&["MULTI"]);
    c.call(&["SET", "a", "1"]);
    c.call(&["INCR", "text"]);
    c.call(&["INCR", "a"]);
    let replies = c.call(&["EXEC"]);
    assert_eq!(replies.items()[0], Value::ok());
    assert_eq!(replies.items()[1].text(), "ERR value is not an integer or out of range");
    assert_eq!(replies.items()[2], Value::Int(2));
}

#[test]
fn a_pipelined_transaction_sees_its_own_writes_across_databases() {
    let server = TestServer::start();
    let mut c = server.client();
    let commands: [&[&[u8]]; 8] = [
        &[b"MULTI"],
        &[b"SET", b"k", b"zero"],
        &[b"SELECT", b"3"],
        &[b"SET", b"k", b"three"],
        &[b"GET", b"k"],
        &[b"SELECT", b"0"],
        &[b"GET", b"k"],
        &[b"EXEC"],
    ];
    let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
    c.send_raw(&bytes);
    let replies: Vec<Value> = (0..8).map(|_| c.read()).collect();
    let last = replies[7].items();
    assert_eq!(last[3], Value::bulk("three"));
    assert_eq!(last[5], Value::bulk("zero"));
    c.call(&["SELECT", "3"]);
    assert_eq!(c.call(&["GET", "k"]), Value::bulk("three"));
}

#[test]
fn whole_keyspace_commands_inside_exec_see_what_came_before_them() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "old", "1"]);
    c.call(&["MULTI"]);
    for words in
        [&["FLUSHDB"][..], &["SET", "new", "1"], &["DBSIZE"], &["KEYS", "*"], &["INCR", "new"]]
    {
        assert_eq!(c.call(words).text(), "QUEUED");
    }
    let replies = c.call(&["EXEC"]);
    let expected = vec![
        Value::ok(),
        Value::ok(),
        Value::Int(1),
        Value::Array(vec![Value::bulk("new")]),
        Value::Int(2),
    ];
    assert_eq!(replies, Value::Array(expected));
    c.call(&["WATCH", "new"]);
    server.client().call(&["SET", "new", "5"]);
    c.call(&["MULTI"]);
    c.call(&["FLUSHALL"]);
    assert_eq!(c.call(&["EXEC"]), Value::Null);
    assert_eq!(c.call(&["DBSIZE"]), Value::Int(1));
}

/// Writes before and after commands over whole databases form one transaction. Each command sees
/// the effects of those before it.
#[test]
fn writes_around_whole_keyspace_commands_are_one_transaction() {
    let server = TestServer::start();
    let mut c = server.client();
    for (db, key) in [("0", "old"), ("0", "older"), ("3", "three"), ("0", "dead")] {
        c.call(&["SELECT", db]);
        c.call(&["SET", key, "1"]);
    }
    c.call(&["PEXPIRE", "dead", "1"]);
    crate::common::eventually("expiry", || server.client().call(&["GET", "dead"]) == Value::Null);
    let bulk = Value::bulk;
    let list = |keys: &[&str]| Value::Array(keys.iter().map(|key| bulk(key)).collect());
    let script: Vec<(&[&str], Value)> = vec![
        (&["SET", "new", "1"], Value::ok()),
        (&["SET", "new", "2"], Value::ok()),
        (&["DEL", "older"], Value::Int(1)),
        (&["KEYS", "*"], list(&["new", "old"])),
        (&["KEYS", "o*"], list(&["old"])),
        (&["SCAN", "17", "MATCH", "n*"], Value::Array(vec![bulk("0"), list(&["new"])])),
        (&["SCAN", "0", "TYPE", "hash"], Value::Array(vec![bulk("0"), list(&[])])),
        (&["FLUSHDB", "SOMEHOW"], Value::Error("ERR syntax error".to_owned())),
        (&["EXISTS", "old", "new"], Value::Int(2)),
        (&["FLUSHDB", "ASYNC"], Value::ok()),
        (&["EXISTS", "old", "new", "older"], Value::Int(0)),
        (&["DBSIZE"], Value::Int(0)),
        (&["RANDOMKEY"], Value::Null),
        (&["SET", "old", "3", "EX", "100"], Value::ok()),
        (&["RANDOMKEY"], bulk("old")),
        (&["DBSIZE"], Value::Int(1)),
        (&["SELECT", "3"], Value::ok()),
        (&["KEYS", "*"], list(&["three"])),
        (&["INCR", "three"], Value::Int(2)),
        (&["SELECT", "5"], Value::ok()),
        (&["SET", "five", "5"], Value::ok()),
        (&["FLUSHALL"], Value::ok()),
        (&["GET", "five"], Value::Null),
        (&["SET", "last", "1"], Value::ok()),
        (&["DBSIZE"], Value::Int(1)),
    ];
    c.call(&["SELECT", "0"]);
    c.call(&["MULTI"]);
    for (words, _) in &script {
        assert_eq!(c.call(words).text(), "QUEUED");
    }
    let replies = c.call(&["EXEC"]);
    for ((words, expected), found) in script.iter().zip(replies.items()) {
        let found = match found {
            Value::Array(keys) if words[0] == "KEYS" => {
                let mut keys = keys.clone();
                keys.sort_by_key(Value::text);
                Value::Array(keys)
            }
            other => other.clone(),
        };
        assert_eq!(&found, expected, "{words:?}");
    }
    assert_eq!(replies.items().len(), script.len());
    for (db, keys) in [("0", 0), ("3", 0), ("5", 1)] {
        c.call(&["SELECT", db]);
        assert_eq!(c.call(&["DBSIZE"]), Value::Int(keys), "database {db}");
    }
    let info = c.call(&["INFO", "keyspace"]).text();
    assert!(info.contains("db5:keys=1,expires=0") && !info.contains("db0"), "{info}");
}

/// A transaction with too many keys is refused as a whole. The error names the cure.
#[test]
fn what_cannot_be_atomic_is_refused() {
    let server = TestServer::start();
    let mut c = server.client();
    for thousand in 0..101 {
        let keys: Vec<String> = (0..1000).map(|n| format!("{}", thousand * 1000 + n)).collect();
        let mut mset = vec!["MSET"];
        mset.extend(keys.iter().flat_map(|key| [key.as_str(), "v"]));
        assert_eq!(c.call(&mset), Value::ok());
    }
    let exec = |c: &mut crate::common::Client, script: &[&[&str]]| {
        c.call(&["MULTI"]);
        for words in script {
            assert_eq!(c.call(words).text(), "QUEUED");
        }
        c.call(&["EXEC"])
    };
    let refused = exec(&mut c, &[&["SET", "a", "1"], &["FLUSHDB"], &["SET", "b", "1"]]).text();
    assert!(refused.starts_with("EXECABORT ") && refused.contains("101000 keys"), "{refused}");
    assert_eq!(c.call(&["EXISTS", "a", "b"]), Value::Int(0));
    // DBSIZE needs no list of keys, and a queue of one step is atomic anyway.
    let counted = exec(&mut c, &[&["SET", "a", "1"], &["DBSIZE"], &["DEL", "a"], &["DBSIZE"]]);
    let expected = [Value::ok(), Value::Int(101_001), Value::Int(1), Value::Int(101_000)];
    assert_eq!(counted.items(), expected);
    let emptied = exec(&mut c, &[&["DBSIZE"], &["FLUSHDB"], &["DBSIZE"]]);
    assert_eq!(emptied.items(), [Value::Int(101_000), Value::ok(), Value::Int(0)]);
}

/// Transfers between accounts, while a reader checks the sum in transactions of its own.
#[test]
fn transactions_of_many_clients_are_isolated() {
    const ACCOUNTS: usize = 6;
    let server = TestServer::start();
    let port = server.port;
    let mut c = server.client();
    for i in 0..ACCOUNTS {
        c.call(&["SET", &format!("acct{i}"), "100"]);
    }
    let done = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4u64)
        .map(|seed| {
            stillpoint_io::spawn("writer", move || {
                let rng = stillpoint_io::SeededRng::new(seed);
                let mut c = crate::common::Client::connect(port);
                use stillpoint_io::Rng;
                for _ in 0..400 {
                    let from = format!("acct{}", rng.below(ACCOUNTS as u64));
                    let to = format!("acct{}", rng.below(ACCOUNTS as u64));
                    c.call(&["MULTI"]);
                    c.call(&["DECRBY", &from, "7"]);
                    c.call(&["INCRBY", &to, "7"]);
                    assert_eq!(c.call(&["EXEC"]).items().len(), 2);
                }
            })
            .expect("thread")
        })
        .collect();
    let stop = Arc::clone(&done);
    let reader = stillpoint_io::spawn("reader", move || {
        let mut c = crate::common::Client::connect(port);
        let keys: Vec<String> = (0..ACCOUNTS).map(|i| format!("acct{i}")).collect();
        let mut mget = vec!["MGET"];
        mget.extend(keys.iter().map(String::as_str));
        let mut looks = 0;
        while !stop.load(Ordering::Relaxed) || looks < 50 {
            let sum: i64 = c
                .call(&mget)
                .items()
                .iter()
                .map(|v| v.text().parse::<i64>().expect("number"))
                .sum();
            assert_eq!(sum, 100 * ACCOUNTS as i64);
            looks += 1;
        }
    })
    .expect("thread");
    for writer in writers {
        writer.join().expect("writer");
    }
    done.store(true, Ordering::Relaxed);
    reader.join().expect("reader");
}

#[test]
fn watch_inside_multi_is_refused_alone_and_spoils_the_queue_only_without_keys() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call(&["MULTI"]);
    let refused = client.call(&["WATCH", "k"]);
    assert_eq!(refused, Value::Error("ERR WATCH inside MULTI is not allowed".to_owned()));
    client.call(&["SET", "k", "v"]);
    assert_eq!(client.call(&["EXEC"]), Value::Array(vec![Value::ok()]));
    client.call(&["MULTI"]);
    assert!(client.call(&["WATCH"]).text().contains("wrong number of arguments"));
    client.call(&["SET", "k", "w"]);
    assert!(client.call(&["EXEC"]).text().starts_with("EXECABORT"));
    assert_eq!(client.call(&["GET", "k"]), Value::bulk("v"));
    assert!(client.call(&["EXEC", "junk"]).text().contains("wrong number of arguments"));
    client.call(&["MULTI"]);
    assert!(client.call(&["EXEC", "junk"]).text().starts_with("EXECABORT"));
    let over = Value::Error("ERR EXEC without MULTI".to_owned());
    assert_eq!(client.call(&["EXEC"]), over);
}
