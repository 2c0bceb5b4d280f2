//! Tests of commands that the random comparison with Redis does not reach.

use std::collections::HashSet;
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability};
use stillpoint_io::{Clock, RealClock};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field};

/// The journal gets the appended bytes, not the whole value.
#[test]
fn a_long_value_that_grows_is_not_written_anew() {
    let mut engine = EngineConfig::new("unused");
    engine.durability = Durability::Strict;
    let server = TestServer::over(config(), engine);
    let mut c = server.client();
    let long = "x".repeat(1 << 20);
    c.call(&["SET", "k", &long]);
    c.call(&["SET", "expires", &long, "EX", "1000"]);
    let written =
        |c: &mut Client| field(&c.call(&["INFO", "persistence"]).text(), "aof_current_size");
    let before = written(&mut c);
    for round in 1..=50i64 {
        for key in ["k", "expires"] {
            let len = (1 << 20) + 3 * (round - 1);
            assert_eq!(c.call(&["APPEND", key, "y"]), Value::Int(len + 1));
            assert_eq!(
                c.call(&["SETRANGE", key, &(len + 2).to_string(), "z"]),
                Value::Int(len + 3)
            );
        }
    }
    let more = written(&mut c) - before;
    assert!(more < 1 << 20, "{more} bytes for 200 additions of a few bytes");
    for key in ["k", "expires"] {
        assert_eq!(c.call(&["GETRANGE", key, "1048574", "1048581"]), Value::bulk("xxy\0zy\0z"));
        assert_eq!(c.call(&["SETRANGE", key, "1048575", "long"]), Value::Int((1 << 20) + 150));
        assert_eq!(c.call(&["GETRANGE", key, "1048574", "1048580"]), Value::bulk("xlongy\0"));
    }
    assert!(c.call(&["TTL", "expires"]).int() > 900);
    // An expired key counts as missing.
    c.call(&["SET", "gone", &long, "PX", "1"]);
    RealClock.sleep(Duration::from_millis(20));
    assert_eq!(c.call(&["APPEND", "gone", "y"]), Value::Int(1));
    assert_eq!(c.call(&["TTL", "gone"]), Value::Int(-1));
    assert_eq!(c.call(&["APPEND", "made", ""]), Value::Int(0));
    assert_eq!(c.call(&["SETRANGE", "zeros", "2", "x"]), Value::Int(3));
    assert_eq!(c.call(&["GET", "zeros"]), Value::bulk("\0\0x"));
}

#[test]
fn pipelines_are_answered_in_order() {
    let server = TestServer::start();
    let mut c = server.client();
    let mut bytes = Vec::new();
    for i in 0..5000 {
        let n = i.to_string();
        match i % 5 {
            0 => bytes.extend(encode(&[b"SET", b"k", n.as_bytes()])),
            1 => bytes.extend(encode(&[b"GET", b"k"])),
            2 => bytes.extend(encode(&[b"ECHO", n.as_bytes()])),
            3 => bytes.extend(encode(&[b"NOSUCH"])),
            _ => bytes.extend(encode(&[b"DBSIZE"])),
        }
    }
    c.send_raw(&bytes);
    for i in 0..5000 {
        let reply = c.read();
        match i % 5 {
            0 => assert_eq!(reply, Value::ok()),
            1 => assert_eq!(reply, Value::bulk(&(i - 1).to_string())),
            2 => assert_eq!(reply, Value::bulk(&i.to_string())),
            3 => assert!(reply.text().starts_with("ERR unknown command 'NOSUCH'")),
            _ => assert_eq!(reply, Value::Int(1)),
        }
    }
}

#[test]
fn scan_meets_every_key_that_stays() {
    let server = TestServer::start();
    let (mut c, mut noise) = (server.client(), server.client());
    for i in 0..3000 {
        c.send(&[b"SET", format!("stay{i}").as_bytes(), b"v"]);
    }
    for _ in 0..3000 {
        c.read();
    }
    let mut met = HashSet::new();
    let mut cursor = "0".to_owned();
    let mut round = 0;
    loop {
        let reply = c.call(&["SCAN", &cursor, "MATCH", "stay*", "COUNT", "50"]);
        cursor = reply.items()[0].text();
        met.extend(reply.items()[1].items().iter().map(Value::text));
        for i in 0..40 {
            noise.call(&["SET", &format!("noise{round}:{i}"), "v"]);
        }
        round += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(met.len(), 3000);
    let keys = c.call(&["KEYS", "stay1?"]);
    assert_eq!(keys.items().len(), 10);
    assert!(c.call(&["RANDOMKEY"]).text().len() > 4);
}

#[test]
fn expired_keys_vanish_by_themselves() {
    let server = TestServer::start();
    let mut c = server.client();
    for i in 0..500 {
        c.call(&["SET", &format!("t{i}"), "v", "PX", "50"]);
        c.call(&["SET", &format!("p{i}"), "v"]);
    }
    c.call(&["SET", "later", "v", "EX", "1000"]);
    let info = c.call(&["INFO", "keyspace"]).text();
    assert!(info.contains(",expires="), "{info}");
    eventually("active expiry", || c.call(&["DBSIZE"]) == Value::Int(501));
    let info = c.call(&["INFO", "stats"]).text();
    assert!(info.contains("expired_keys:500"), "{info}");
    eventually("the count settles", || {
        c.call(&["INFO", "keyspace"]).text().contains("db0:keys=501,expires=1,")
    });
    c.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    c.call(&["SET", "lazy", "v", "PX", "1"]);
    eventually("lazy expiry", || c.call(&["GET", "lazy"]) == Value::Null);
    eventually("its deletion", || c.call(&["DBSIZE"]) == Value::Int(501));
}

#[test]
fn hello_switches_the_protocol() {
    let server = TestServer::start();
    let mut c = server.client();
    assert_eq!(c.call(&["GET", "missing"]), Value::Null);
    let Value::Map(fields) = c.call(&["HELLO", "3"]) else { panic!("no map") };
    let names: Vec<String> = fields.iter().map(|(name, _)| name.text()).collect();
    assert_eq!(names, ["server", "version", "proto", "id", "mode", "role", "modules"]);
    c.send(&[b"GET", b"missing"]);
    assert_eq!(c.read(), Value::Null);
    assert!(matches!(c.call(&["CONFIG", "GET", "save"]), Value::Map(_)));
    assert!(matches!(c.call(&["INFO"]), Value::Verbatim(_)));
    assert_eq!(c.call(&["HELLO", "4"]).text(), "NOPROTO unsupported protocol version");
    assert_eq!(c.call(&["RESET"]).text(), "RESET");
    assert!(matches!(c.call(&["CONFIG", "GET", "save"]), Value::Array(_)));
}

/// Without a policy that asks for it, the server measures no idle time, so it must not reply a number.
#[test]
fn what_is_not_tracked_is_said_to_be_not_tracked() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "v"]);
    for (what, error) in [
        ("IDLETIME", "ERR Reads leave no trace in this store, idle time not tracked."),
        ("FREQ", "ERR An LFU maxmemory policy is not selected, access frequency not tracked."),
    ] {
        let said = c.call(&["OBJECT", what, "k"]).text();
        assert!(said.starts_with(error), "{said}");
        assert_eq!(c.call(&["OBJECT", what, "no such key"]), Value::Null);
    }
    let docs = c.call(&["COMMAND", "DOCS", "OBJECT|IDLETIME"]);
    let summary = docs.items()[1].items()[1].text();
    assert!(summary.ends_with("is not tracked."), "{summary}");
    // An error of one command leaves the other commands alone.
    for command in [&["MULTI"][..], &["OBJECT", "IDLETIME", "k"], &["GET", "k"]] {
        c.call(command);
    }
    let replies = c.call(&["EXEC"]);
    assert!(replies.items()[0].text().contains("idle time not tracked."), "{replies:?}");
    assert_eq!(replies.items()[1], Value::bulk("v"));
}

#[test]
fn administration_answers_what_dashboards_read() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "v"]);
    let info = c.call(&["INFO", "everything"]).text();
    for name in [
        "redis_version:7",
        "stillpoint_version:",
        "uptime_in_seconds:",
        "connected_clients:1",
        "used_memory:",
        "used_memory_rss:",
        "maxmemory:",
        "rdb_last_save_time:",
        "rdb_bgsave_in_progress:0",
        "aof_enabled:",
        "total_commands_processed:",
        "instantaneous_ops_per_sec:",
        "keyspace_hits:",
        "evicted_keys:0",
        "role:master",
        "used_cpu_user:",
        "cmdstat_set:calls=1,",
        "db0:keys=1,expires=0",
        "cluster_enabled:0",
    ] {
        assert!(info.contains(name), "{name} is missing in {info}");
    }
    assert_eq!(c.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]), Value::ok());
    c.call(&["GET", "k"]);
    let slow = c.call(&["SLOWLOG", "GET", "1"]);
    assert_eq!(
        slow.items()[0].items()[3],
        Value::Array(vec![Value::bulk("GET"), Value::bulk("k")])
    );
    assert_eq!(
        c.call(&["CONFIG", "SET", "port", "1"]).text(),
        "ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config"
    );
    c.call(&["CONFIG", "SET", "latency-monitor-threshold", "1"]);
    c.call(&["MSET", "text1", &"ab".repeat(2000), "text2", &"ba".repeat(2000)]);
    c.call(&["LCS", "text1", "text2", "LEN"]);
    assert_eq!(c.call(&["LATENCY", "LATEST"]).items().len(), 1);
    assert!(c.call(&["MEMORY", "USAGE", "k"]).int() > 0);
    assert!(c.call(&["LASTSAVE"]).int() > 1_600_000_000);
    assert!(c.call(&["COMMAND", "COUNT"]).int() > 80);
    assert_eq!(
        c.call(&["SUBSCRIBE", "news"]).text(),
        "ERR SUBSCRIBE is not supported yet by this server"
    );
    let histogram = c.call(&["LATENCY", "HISTOGRAM", "get"]);
    assert_eq!(histogram.items()[0], Value::bulk("get"));
}

#[test]
fn memory_beyond_the_limit_refuses_writes_only() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "v"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let big = "x".repeat(200_000);
    let mut refused = None;
    for i in 0..3000 {
        let reply = c.call(&["SET", &format!("fill{i}"), &big]);
        if reply != Value::ok() {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("memory is limited");
    assert_eq!(refused.text(), "OOM command not allowed when used memory > 'maxmemory'.");
    assert_eq!(c.call(&["GET", "k"]), Value::bulk("v"));
    c.call(&["MULTI"]);
    c.call(&["DEL", "k"]);
    c.call(&["SET", "more", &big]);
    assert!(c.call(&["EXEC"]).text().starts_with("OOM "), "nothing of the transaction is kept");
    assert_eq!(c.call(&["GET", "k"]), Value::bulk("v"));
    assert_eq!(c.call(&["DEL", "k"]), Value::Int(1));
}

#[test]
fn save_makes_only_its_own_client_wait() {
    let server = TestServer::start();
    let (mut saver, mut other) = (server.client(), server.client());
    for i in 0..100 {
        other.call(&["SET", &format!("k{i}"), "v"]);
    }
    saver.send(&[b"SAVE"]);
    saver.send(&[b"PING"]);
    for _ in 0..100 {
        assert_eq!(other.call(&["GET", "k1"]), Value::bulk("v"));
    }
    assert_eq!(saver.read(), Value::ok());
    assert_eq!(saver.read().text(), "PONG");
    assert!(other.call(&["INFO", "persistence"]).text().contains("rdb_last_bgsave_status:ok"));
}

/// KEYS scans the index while another event loop makes it grow.
#[test]
fn keys_names_each_key_once_though_the_index_grows() {
    let server = TestServer::start();
    let (mut writer, mut reader) = (server.client(), server.client());
    for n in 0..1000 {
        writer.call(&["SET", &format!("lasting {n}"), "v"]);
    }
    // A value longer than the part that a scan copies.
    writer.call(&["SET", "lasting long", &"x".repeat(200_000), "EX", "1000"]);
    let made = stillpoint_io::spawn("writer", move || {
        for n in 0..40_000 {
            writer.send(&[b"SET", format!("new {n}").as_bytes(), b"v"]);
        }
        (0..40_000).for_each(|_| assert_eq!(writer.read(), Value::ok()));
    });
    let made = made.expect("a thread");
    let mut found = 0;
    while found < 41_001 {
        let reply = reader.call(&["KEYS", "*"]);
        let names: Vec<String> = reply.items().iter().map(Value::text).collect();
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "a key is named twice");
        let lasting = names.iter().filter(|name| name.starts_with("lasting")).count();
        assert_eq!(lasting, 1001, "a key is missing");
        found = names.len();
    }
    made.join().expect("no panic");
}

/// A long request frees its memory before its commit. Requests before and behind the long one stay
/// intact.
#[test]
fn long_values_go_in_and_out_between_other_requests() {
    let server = TestServer::start();
    let mut c = server.client();
    let mut value: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7) as u8).collect();
    let long = value.clone();
    let tail: Vec<u8> = (0..2 << 20).map(|n: u32| (n / 3) as u8).collect();
    for expiry in [&[][..], &[&b"EX"[..], &b"1000"[..]]] {
        let set = [&[&b"SET"[..], b"long", &long][..], expiry].concat();
        // Three ways to send: all at once, the long request last, and the long request followed by
        // the first bytes of another.
        let mut requests = [encode(&[b"INCR", b"n"]), encode(&set), encode(&[b"GET", b"long"])];
        c.send_raw(&requests.concat());
        c.read();
        assert_eq!(c.read(), Value::ok());
        assert_eq!(c.read(), Value::Bulk(long.clone()));
        c.send_raw(&requests[1]);
        assert_eq!(c.read(), Value::ok());
        let (begun, rest) = requests[2].split_at(9);
        c.send_raw(&[&requests[1], begun].concat());
        assert_eq!(c.read(), Value::ok());
        c.send_raw(rest);
        assert_eq!(c.read(), Value::Bulk(long.clone()));

        requests[0] = encode(&[b"APPEND", b"long", &tail]);
        requests[1] = encode(&[b"SETRANGE", b"long", b"6000000", b"far"]);
        c.send_raw(&requests.concat());
        value.clone_from(&long);
        value.extend_from_slice(&tail);
        assert_eq!(c.read().int(), value.len() as i64);
        value.resize(6_000_000, 0);
        value.extend_from_slice(b"far");
        assert_eq!(c.read().int(), value.len() as i64);
        assert_eq!(c.read(), Value::Bulk(value.clone()));
        let ttl = c.call(&["TTL", "long"]).int();
        assert_eq!(ttl > 0, !expiry.is_empty(), "APPEND and SETRANGE leave the expiry alone");
        assert_eq!(c.call(&["SETRANGE", "made", "100000", "x"]).int(), 100_001);
        assert_eq!(c.call(&["APPEND", "made", ""]).int(), 100_001);
        assert_eq!(c.call(&["DEL", "made"]).int(), 1);
    }
}
