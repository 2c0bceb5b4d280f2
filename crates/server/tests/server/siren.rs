//! A server whose databases are SIREN tables, and open transactions of a program beside its clients.

use std::time::Duration;

use stillpoint::Config as EngineConfig;
use stillpoint_io::{Clock, RealClock};

use crate::clients::redis_crate_works_with;
use crate::common::{TestServer, Value, config, eventually};

fn settings(lock_timeout: Option<Duration>) -> EngineConfig {
    let mut engine = EngineConfig::new("unused");
    engine.checkpoint = "siren".to_owned();
    engine.checkpoint_every = None;
    engine.lock_timeout = lock_timeout;
    engine.max_memory_bytes = 256 << 20;
    engine
}

/// A server with one event loop, which all clients share.
fn start(lock_timeout: Option<Duration>) -> TestServer {
    let mut server = config();
    server.threads = 1;
    TestServer::over(server, settings(lock_timeout))
}

#[test]
fn clients_find_the_usual_commands() {
    let server = start(None);
    redis_crate_works_with(&server);
    let mut client = server.client();
    client.call(&["FLUSHALL"]);
    for number in 0..500 {
        client.call(&["SET", &format!("key {number:03}"), &number.to_string()]);
    }
    assert_eq!(client.call(&["DBSIZE"]), Value::Int(500));
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = client.call(&["SCAN", &cursor, "COUNT", "7"]);
        cursor = reply.items()[0].text();
        found.extend(reply.items()[1].items().iter().map(Value::text));
        if cursor == "0" {
            break;
        }
    }
    found.sort_unstable();
    assert!(found.len() == 500 && found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    for _ in 0..20 {
        assert!(client.call(&["RANDOMKEY"]).text().starts_with("key "));
    }
    // A key that another client changes, or makes, after WATCH.
    let mut other = server.client();
    for (key, changes) in [("key 001", true), ("missing", true), ("key 002", false)] {
        client.call(&["WATCH", key]);
        if changes {
            other.call(&["SET", key, "other"]);
        }
        client.call(&["MULTI"]);
        client.call(&["SET", key, "mine"]);
        let is_done = client.call(&["EXEC"]) != Value::Null;
        assert_eq!(is_done, !changes, "{key}");
    }
    client.call(&["MSET", "a", "1", "b", "2"]);
    assert_eq!(client.call(&["RENAME", "a", "b"]), Value::ok());
    assert_eq!(client.call(&["GET", "b"]), Value::bulk("1"));
    assert_eq!(client.call(&["SWAPDB", "0", "3"]), Value::ok());
    // The server ends as in a crash, so a commit that no flush has reached would be lost.
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    let mut strict = settings(None);
    strict.checkpoint = "siren-semi-fuzzy".to_owned();
    drop((client, other));
    let server = server.restart(config(), strict);
    let mut client = server.client();
    assert_eq!(client.call(&["DBSIZE"]), Value::Int(0));
    client.call(&["SELECT", "3"]);
    assert_eq!(client.call(&["DBSIZE"]), Value::Int(502));
    assert_eq!(client.call(&["GET", "key 499"]), Value::bulk("499"));
}

/// Clients that write faster than the checkpoints free the log wait for it, and get no errors.
#[test]
fn clients_wait_for_the_checkpoint_that_frees_the_log() {
    let mut engine = settings(Some(Duration::from_secs(60)));
    engine.log_limit_bytes = 1 << 20;
    engine.log_segment_bytes = 256 << 10;
    let server = TestServer::over(config(), engine);
    let value = "x".repeat(10_000);
    std::thread::scope(|scope| {
        for first in ["a", "b", "c"] {
            let (server, value) = (&server, &value);
            scope.spawn(move || {
                let mut client = server.client();
                for number in 0..150 {
                    let key = format!("{first} {}", number % 7);
                    assert_eq!(client.call(&["SET", &key, value]), Value::ok());
                    client.call(&["MULTI"]);
                    client.call(&["APPEND", &key, "!"]);
                    client.call(&["SET", first, value]);
                    let replies = vec![Value::Int(10_001), Value::ok()];
                    assert_eq!(client.call(&["EXEC"]), Value::Array(replies));
                }
            });
        }
    });
    assert_eq!(server.client().call(&["DBSIZE"]), Value::Int(24));
}

/// A client whose command meets a lock of an open transaction leaves the event loop. Others are served, and
/// the command is answered once the transaction has ended.
#[test]
fn a_client_that_meets_an_open_transaction_is_parked() {
    let server = start(None);
    let (mut held, mut others) = (server.client(), server.client());
    for key in ["held", "free"] {
        assert_eq!(others.call(&["SET", key, "before"]), Value::ok());
    }
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db0").expect("a table"))
    });
    let requests: [&[&[u8]]; 4] = [
        &[b"GET", b"held"],
        &[b"APPEND", b"held", b"!"],
        &[b"SET", b"new", b"in the range"],
        &[b"MSET", b"free", b"after", b"held", b"after"],
    ];
    for request in requests {
        let mut holder = session.begin().expect("begins");
        let mut tx = holder.tx().expect("open");
        if request[1] == b"new" {
            let mut range = tx.range(table, &b"i"[..]..).expect("ordered");
            while range.next_record().expect("free").is_some() {}
        } else {
            assert!(tx.delete(table, b"held").expect("free"));
        }
        held.send(request);
        for turn in 0..50 {
            assert_eq!(others.call(&["SET", "another", &turn.to_string()]), Value::ok());
            RealClock.sleep(Duration::from_millis(1));
        }
        assert!(!held.has_reply(), "{request:?}");
        drop(tx);
        drop(holder);
        let reply = held.read();
        assert!(!matches!(reply, Value::Error(_) | Value::Null), "{request:?}: {reply:?}");
    }
    // So does a flush, and a scan waits for nobody.
    let mut holder = session.begin().expect("begins");
    assert!(holder.tx().expect("open").delete(table, b"held").expect("free"));
    holder.tx().expect("open").put(table, b"newer", b"mine").expect("free");
    held.send(&[b"FLUSHDB"]);
    for turn in 0..50 {
        assert_eq!(others.call(&["SET", "another", &turn.to_string()]), Value::ok());
        let found = others.call(&["SCAN", "0"]);
        let found: Vec<String> = found.items()[1].items().iter().map(Value::text).collect();
        assert_eq!(found, ["another", "free", "held", "new"]);
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(!held.has_reply());
    drop(holder);
    assert_eq!(held.read(), Value::ok());
    assert_eq!(held.call(&["DBSIZE"]), Value::Int(0));
    for key in ["held", "free"] {
        assert_eq!(others.call(&["SET", key, "after"]), Value::ok());
    }
    // So does a transaction of the client.
    let mut holder = session.begin().expect("begins");
    assert!(holder.tx().expect("open").delete(table, b"held").expect("free"));
    held.call(&["MULTI"]);
    held.call(&["INCR", "counter"]);
    held.call(&["GET", "held"]);
    held.send(&[b"EXEC"]);
    for _ in 0..20 {
        assert_eq!(others.call(&["GET", "free"]), Value::bulk("after"));
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(!held.has_reply());
    drop(holder);
    assert_eq!(held.read(), Value::Array(vec![Value::Int(1), Value::bulk("after")]));
}

/// A queue with commands over whole databases is parked as a whole, with one writing step or several.
#[test]
fn a_queue_with_a_flush_that_meets_an_open_transaction_is_parked() {
    let server = start(None);
    let (mut held, mut others) = (server.client(), server.client());
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db0").expect("a table"))
    });
    for later in [None, Some(["SET", "later", "value"])] {
        for key in ["held", "free"] {
            assert_eq!(others.call(&["SET", key, "after"]), Value::ok());
        }
        let mut holder = session.begin().expect("begins");
        assert!(holder.tx().expect("open").delete(table, b"held").expect("free"));
        held.call(&["MULTI"]);
        held.call(&["GET", "free"]);
        held.call(&["FLUSHDB"]);
        later.iter().for_each(|request| drop(held.call(request)));
        held.send(&[b"EXEC"]);
        for turn in 0..20 {
            assert_eq!(others.call(&["GET", "free"]), Value::bulk("after"), "{turn}");
            RealClock.sleep(Duration::from_millis(1));
        }
        assert!(!held.has_reply());
        drop(holder);
        let mut replies = vec![Value::bulk("after"), Value::ok()];
        replies.extend(later.map(|_| Value::ok()));
        assert_eq!(held.read(), Value::Array(replies));
        assert_eq!(held.call(&["DBSIZE"]), Value::Int(later.iter().len() as i64));
        assert_eq!(held.call(&["EXEC"]).text(), "ERR EXEC without MULTI");
    }
}

/// A queue whose last step reads what an open transaction holds is parked before its first step writes.
#[test]
fn a_queue_that_reads_behind_a_flush_is_parked_before_it_flushes() {
    let server = start(Some(Duration::from_secs(20)));
    let (mut held, mut others) = (server.client(), server.client());
    assert_eq!(others.call(&["SET", "free", "value"]), Value::ok());
    others.call(&["SELECT", "1"]);
    assert_eq!(others.call(&["SET", "held", "value"]), Value::ok());
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db1").expect("a table"))
    });
    let mut holder = session.begin().expect("begins");
    assert!(holder.tx().expect("open").delete(table, b"held").expect("free"));
    for request in [&["MULTI"][..], &["FLUSHDB"], &["SELECT", "1"], &["GET", "held"]] {
        held.call(request);
    }
    held.send(&[b"EXEC"]);
    others.call(&["SELECT", "0"]);
    for _ in 0..20 {
        assert_eq!(others.call(&["GET", "free"]), Value::bulk("value"));
        RealClock.sleep(Duration::from_millis(1));
    }
    assert!(!held.has_reply());
    drop(holder);
    let replies = vec![Value::ok(), Value::ok(), Value::bulk("value")];
    assert_eq!(held.read(), Value::Array(replies));
    assert_eq!(others.call(&["DBSIZE"]), Value::Int(0));
}

/// A program that sees the first step of a queue locks what the last one reads. No client waits for the program,
/// since both steps are one transaction.
#[test]
fn a_queue_that_reads_behind_a_flush_is_one_transaction() {
    let server = start(Some(Duration::from_secs(2)));
    let (mut client, mut others) = (server.client(), server.client());
    for (db, keys) in [("2", 2000), ("1", 1), ("0", 1)] {
        others.call(&["SELECT", db]);
        (0..keys).for_each(|number| drop(others.call(&["SET", &format!("key {number}"), "value"])));
    }
    let (mut session, mut look, [flushed, read]) = server.look(|engine| {
        let sessions = [(); 2].map(|()| engine.session().expect("a session"));
        let [session, look] = sessions;
        (session, look, ["db0", "db1"].map(|name| engine.table(name).expect("a table")))
    });
    let queue = [&["MULTI"][..], &["FLUSHDB"], &["SELECT", "2"], &["KEYS", "*"], &["SELECT", "1"]];
    queue.iter().for_each(|request| drop(client.call(request)));
    client.call(&["GET", "key 0"]);
    client.send(&[b"EXEC"]);
    // Often, since the steps would follow each other soon.
    let is_flushed = (0..100_000).any(|_| {
        RealClock.sleep(Duration::from_micros(50));
        look.read(flushed, b"key 0", &mut Vec::new()).expect("reads").is_none()
    });
    assert!(is_flushed);
    let mut holder = session.begin().expect("begins");
    holder.tx().expect("open").put(read, b"key 0", b"mine").expect("free");
    let reply = client.read();
    assert_eq!(reply.items().len(), 5, "{reply:?}");
    assert_eq!(reply.items()[4], Value::bulk("value"));
    assert_eq!(others.call(&["DBSIZE"]), Value::Int(0));
}

/// After the longest wait the client gets an error, and nothing has changed. Others were served.
#[test]
fn a_client_waits_for_no_longer_than_the_settings_say() {
    let server = start(Some(Duration::from_millis(300)));
    let (mut held, mut others) = (server.client(), server.client());
    let (mut session, table) = server.look(|engine| {
        (engine.session().expect("a session"), engine.table("db0").expect("a table"))
    });
    let mut holder = session.begin().expect("begins");
    holder.tx().expect("open").put(table, b"held", b"mine").expect("free");
    let begin_ns = RealClock.monotonic_ns();
    held.send(&[b"SET", b"held", b"value"]);
    let mut served = 0;
    eventually("a reply", || {
        assert_eq!(others.call(&["INCR", "counter"]), Value::Int(served + 1));
        served += 1;
        held.has_reply()
    });
    let waited_ms = (RealClock.monotonic_ns() - begin_ns) / 1_000_000;
    let reply = held.read();
    assert!(reply.text().contains("another transaction holds a lock"), "{reply:?}");
    assert!(waited_ms >= 300 && served > 5, "{waited_ms} ms, {served} served");
    held.send(&[b"FLUSHALL"]);
    eventually("a reply", || {
        assert_eq!(others.call(&["INCR", "counter"]), Value::Int(served + 1));
        served += 1;
        held.has_reply()
    });
    let reply = held.read();
    assert!(reply.text().contains("another transaction holds a lock"), "{reply:?}");
    drop(holder);
    assert_eq!(held.call(&["GET", "held"]), Value::Null);
}
