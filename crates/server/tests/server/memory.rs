//! Tests that memory of deleted keys can be used again.

use stillpoint::Engine;

use crate::common::{Client, TestServer, Value, encode, eventually, field, verify};

fn used_memory(c: &mut Client) -> u64 {
    field(&c.call(&["INFO", "memory"]).text(), "used_memory")
}

fn key(number: usize) -> String {
    format!("key {number}")
}

/// Sets values of `len` bytes for the keys from `first` on. Returns the first key that finds no
/// memory.
fn fill(c: &mut Client, len: usize, first: usize) -> usize {
    let value = "x".repeat(len);
    let mut keys = first..1_000_000;
    keys.find(|&at| c.call(&["SET", &key(at), &value]) != Value::ok()).expect("the limit")
}

/// Deletes the keys below `count`.
fn delete(c: &mut Client, count: usize) {
    let keys: Vec<String> = (0..count).map(key).collect();
    for chunk in keys.chunks(1000) {
        let mut words = vec!["DEL"];
        words.extend(chunk.iter().map(String::as_str));
        assert_eq!(c.call(&words), Value::Int(chunk.len() as i64));
    }
}

#[test]
fn memory_of_deleted_keys_serves_values_of_any_size() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["CONFIG", "SET", "maxmemory", "24mb"]);
    for len in [1_800, 3_000, 100_000, 700, 1_800] {
        // Garbage waits until its read section has ended, so the first command may be too early.
        let mut fit = 0;
        eventually("room for values of another size", || {
            fit = fill(&mut c, len, fit);
            fit * len > 10_000_000
        });
        delete(&mut c, fit);
    }
}

/// `MEMORY USAGE` tells what a key takes, within a twentieth: many keys take that much together, but for the group
/// of slabs that was taken last. A record with its key and its share of the index takes little more than its
/// value.
#[test]
fn memory_usage_is_what_is_taken() {
    for len in [8, 100, 300, 1_100, 3_000, 8_300, 20_000, 100_000] {
        let server = TestServer::start();
        let mut c = server.client();
        // The slabs of all sizes that one key takes are there, and the indexes are counted.
        assert_eq!(c.call(&["SET", "first", &"x".repeat(len)]), Value::ok());
        eventually("the indexes are counted", || used_memory(&mut c) > 100_000);
        let before = used_memory(&mut c);
        let keys = (48 << 20) / (len + 100);
        let value = "x".repeat(len);
        for number in 0..keys {
            c.send(&[b"SET", format!("k{number:015}").as_bytes(), value.as_bytes()]);
            if number % 100 == 99 || number + 1 == keys {
                (0..=number % 100).for_each(|_| assert_eq!(c.read(), Value::ok()));
            }
        }
        let told = c.call(&["MEMORY", "USAGE", "k000000000000000"]).int() as u64;
        assert!(told <= len as u64 * 23 / 20 + 64, "{told} bytes for a value of {len}");
        let (mut taken, keys) = (0, keys as u64);
        eventually(&format!("values of {len} bytes take {told} bytes each"), || {
            taken = used_memory(&mut c) - before;
            (told * keys).abs_diff(taken) <= taken / 20 + (2 << 20)
        });
    }
}

/// A store with a few keys of every size holds a few MiB.
#[test]
fn a_few_keys_take_little_memory() {
    let server = TestServer::start();
    let mut c = server.client();
    eventually("the indexes are counted", || used_memory(&mut c) > 100_000);
    assert!(used_memory(&mut c) < 2 << 20, "{} bytes without a key", used_memory(&mut c));
    for len in [1, 50, 200, 700, 1_500, 3_000, 6_000, 12_000, 30_000, 60_000] {
        assert_eq!(c.call(&["SET", &key(len), &"x".repeat(len)]), Value::ok());
        assert_eq!(c.call(&["RPUSH", &format!("list {len}"), &"x".repeat(len)]), Value::Int(1));
    }
    let used = used_memory(&mut c);
    assert!(used < 14 << 20, "{used} bytes for a few keys");
}

/// The index shrinks once most keys are deleted, and `FLUSHALL` frees all of it.
#[test]
fn memory_of_the_index_comes_back() {
    const KEYS: usize = 100_000;
    let server = TestServer::start();
    let mut c = server.client();
    // The maintenance thread counts the indexes of all tables, which take more than this.
    eventually("the indexes are counted", || used_memory(&mut c) > 100_000);
    let before = used_memory(&mut c);
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let fill = |c: &mut Client| {
        for chunk in keys.chunks(1000) {
            let mut words = vec!["MSET"];
            chunk.iter().for_each(|key| words.extend([key.as_str(), "value"]));
            assert_eq!(c.call(&words), Value::ok());
        }
        assert!(used_memory(c) > before + 48 * KEYS as u64);
    };
    fill(&mut c);
    delete(&mut c, KEYS);
    assert_eq!(c.call(&["DBSIZE"]), Value::Int(0));
    // The index had 14 bytes for each key, at least.
    eventually("the index is small", || used_memory(&mut c) < before + 8 * KEYS as u64);
    fill(&mut c);
    let lost = keys.iter().step_by(97).find(|key| c.call(&["GET", key]) != Value::bulk("value"));
    assert_eq!(lost, None);
    assert_eq!(c.call(&["FLUSHALL"]), Value::ok());
    eventually("memory is free", || used_memory(&mut c) < before + 4 * KEYS as u64);
}

#[test]
fn a_write_after_a_flush_at_full_memory_is_not_refused() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["CONFIG", "SET", "maxmemory", "40mb"]);
    let fill = encode(&[b"SET", b"key", &vec![b'x'; 300 << 10]]);
    for round in 0..40 {
        let mut full = false;
        for i in 0..400 {
            let key = format!("k{i}");
            c.send(&[b"SET", key.as_bytes(), &vec![b'x'; 300 << 10]]);
            if c.read().text().starts_with("OOM ") {
                full = true;
                break;
            }
        }
        assert!(full, "round {round}");
        // In one pipeline, requests behind a waiting request are answered after it.
        let requests = [encode(&[b"FLUSHALL"]), fill.clone(), encode(&[b"INCR", b"n"])];
        c.send_raw(&[requests.concat(), encode(&[b"GET", b"n"])].concat());
        assert_eq!(c.read(), Value::ok());
        assert_eq!(c.read(), Value::ok(), "round {round}");
        assert_eq!(c.read(), Value::Int(1), "round {round}");
        assert_eq!(c.read(), Value::bulk("1"), "round {round}");
        for i in 0..25 {
            assert_eq!(c.call(&["SET", &format!("small{i}"), "x"]), Value::ok(), "round {round}");
        }
    }
    // By the replies, each command ran once.
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_incr:calls=40,"), "{stats}");
}

/// Fills memory with hashes of `fields` fields of 100 bytes; returns their number.
fn fill_hashes(c: &mut Client, fields: usize) -> usize {
    let value = "v".repeat(100);
    let names: Vec<String> = (0..fields).map(|field| format!("field {field}")).collect();
    let made = (0..1_000_000).find(|number| {
        let name = key(*number);
        let mut words = vec!["HSET", &name];
        names.iter().for_each(|field| words.extend([field.as_str(), &value]));
        match c.call(&words) {
            Value::Int(_) => false,
            Value::Error(error) => {
                assert!(error.starts_with("OOM "), "{error}");
                true
            }
            other => panic!("{other:?}"),
        }
    });
    made.expect("the limit")
}

/// Collections that are trees, of a few nodes and of hundreds, fill the memory. None of the commands
/// that delete is refused, and others can use the memory that these free.
#[test]
fn collections_are_deleted_at_full_memory() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["CONFIG", "SET", "maxmemory", "24mb"]);
    for fields in [12, 60, 3_000, 20] {
        let mut made = 0;
        eventually("room for collections", || {
            made = made.max(fill_hashes(&mut c, fields));
            made * fields * 100 > 4_000_000
        });
        // By now, commands that may use the reserve have used all that they may.
        for number in 0..made {
            match number % 4 {
                0 => assert_eq!(c.call(&["DEL", &key(number)]), Value::Int(1), "{number}"),
                1 => assert_eq!(c.call(&["UNLINK", &key(number)]), Value::Int(1), "{number}"),
                2 => assert_eq!(c.call(&["PEXPIRE", &key(number), "0"]), Value::Int(1)),
                _ => assert_eq!(c.call(&["RENAME", &key(number), "one"]), Value::ok(), "{number}"),
            }
        }
        assert_eq!(c.call(&["DEL", "one"]), Value::Int(i64::from(made > 3)));
        assert_eq!(c.call(&["DBSIZE"]), Value::Int(0));
        eventually("nodes are gone", || server.records("db0.nodes") == 0);
        assert_eq!(server.records("graves"), 0);
    }
}

/// Members of 60,000 bytes and more, which differ at their beginning or at their end.
fn long_names(differ_early: bool) -> Vec<String> {
    let long = "x".repeat(60_000);
    let name = |number: usize| match differ_early {
        true => format!("{number:04}{long}"),
        false => format!("{long}{number:04}"),
    };
    (0..12).map(name).collect()
}

/// Makes a collection whose header is longer than any node should be.
fn make_long(c: &mut Client, key: &str, kind: &str, names: &[String]) {
    let mut words = vec![kind, key];
    for name in names {
        words.extend(match kind {
            "ZADD" => ["1", name.as_str()],
            _ => [name.as_str(), "v"],
        });
    }
    assert_eq!(c.call(&words), Value::Int(names.len() as i64), "{kind}");
    if kind == "HSET" {
        let mut words = vec!["HEXPIRE", key, "1000", "FIELDS", "12"];
        words.extend(names.iter().map(String::as_str));
        assert_eq!(c.call(&words).items().len(), 12);
    }
}

/// Sorted sets of long members, and hashes with long fields that expire, leave nothing behind,
/// whichever way they go.
#[test]
fn collections_of_long_members_leave_nothing_when_they_go() {
    let server = TestServer::start();
    let mut c = server.client();
    let nodes_go = |way: &str| {
        eventually(way, || server.records("db0.nodes") == 0 && server.records("graves") == 0);
    };
    for differ_early in [true, false] {
        let names = long_names(differ_early);
        for kind in ["ZADD", "HSET"] {
            let makes = |c: &mut Client| make_long(c, "long", kind, &names);
            makes(&mut c);
            assert!(server.records("db0.nodes") > 10);
            assert_eq!(c.call(&["DEL", "long"]), Value::Int(1));
            nodes_go("DEL");
            makes(&mut c);
            assert_eq!(c.call(&["SET", "long", "short"]), Value::ok());
            nodes_go("SET");
            c.call(&["DEL", "long"]);
            makes(&mut c);
            c.call(&["SET", "other", "short"]);
            assert_eq!(c.call(&["RENAME", "other", "long"]), Value::ok());
            nodes_go("RENAME");
            c.call(&["DEL", "long"]);
            makes(&mut c);
            assert_eq!(c.call(&["PEXPIRE", "long", "1"]), Value::Int(1));
            nodes_go("expiry");
        }
    }
    server.look(|engine| assert_eq!(verify(engine), 0));
}

/// A full cache of sorted sets with long members gives up the old ones, and takes new ones.
#[test]
fn a_cache_gives_up_collections_of_long_members() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["CONFIG", "SET", "maxmemory", "32mb"]);
    c.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let names = long_names(false);
    for number in 0..60 {
        // On a busy machine a write waits in vain at times, until the memory of old keys is back.
        let key = key(number);
        let mut words = vec!["ZADD", &key];
        names.iter().for_each(|name| words.extend(["1", name.as_str()]));
        eventually("room for a sorted set", || c.call(&words) == Value::Int(12));
    }
    for number in 0..60 {
        c.call(&["DEL", &key(number)]);
    }
    eventually("nodes are gone", || server.records("db0.nodes") == 0);
    server.look(|engine| assert_eq!(verify(engine), 0));
}

/// A grave that cannot be read stays, and does not keep others from being read.
#[test]
fn a_grave_that_cannot_be_read_stays() {
    let server = TestServer::start();
    let mut c = server.client();
    let names: Vec<String> = (0..5_000).map(|number| format!("member {number}")).collect();
    let put = |engine: &Engine| {
        let graves = engine.table("graves").expect("the table of graves");
        let mut session = engine.session().expect("a session");
        for (grave, value) in [(7_u64, &b"no grave"[..]), (8, &[0, 0, 3, 1, 0, 0])] {
            let put = session.transact(|tx| tx.put(graves, &grave.to_be_bytes(), value));
            put.expect("room");
        }
    };
    server.look(put);
    make_long(&mut c, "set", "ZADD", &names);
    assert_eq!(c.call(&["DEL", "set"]), Value::Int(1));
    eventually("nodes are gone", || server.records("db0.nodes") == 0);
    eventually("the other grave is gone", || server.records("graves") == 2);
}
