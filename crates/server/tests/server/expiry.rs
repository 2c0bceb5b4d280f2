//! Expiry of long values, renames of them, and values that earlier releases have written.

use std::sync::Arc;

use stillpoint::{Config as EngineConfig, Durability, Engine, Label};
use stillpoint_io::{Disk, SimDisk};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field, opened};

/// A moment far ahead, in milliseconds since the Unix epoch.
const LATER_MS: u64 = 32_503_680_000_000;

fn log_bytes(c: &mut Client) -> u64 {
    field(&c.call(&["INFO", "persistence"]).text(), "aof_current_size")
}

fn used_memory(c: &mut Client) -> u64 {
    field(&c.call(&["INFO", "memory"]).text(), "used_memory")
}

fn value(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 3) as u8 ^ seed).collect()
}

fn set(c: &mut Client, key: &str, value: &[u8]) {
    c.send(&[b"SET", key.as_bytes(), value]);
    assert_eq!(c.read(), Value::ok());
}

fn is(c: &mut Client, key: &str, value: &[u8]) -> bool {
    c.send(&[b"GET", key.as_bytes()]);
    c.read() == Value::Bulk(value.to_vec())
}

fn on(disk: &SimDisk, journal: &str) -> TestServer {
    let mut engine = EngineConfig::new("data");
    engine.durability = Durability::Strict;
    engine.journal = journal.to_owned();
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    TestServer::around(config(), opened(engine), None)
}

/// The log gets the expiry, and not the value.
#[test]
fn the_expiry_of_a_long_value_costs_a_header() {
    for (journal, mebibytes) in [("redo", 100), ("undo-redo", 8), ("command", 8)] {
        let disk = SimDisk::new(1);
        let server = on(&disk, journal);
        let mut c = server.client();
        let long = value(mebibytes << 20, 1);
        set(&mut c, "k", &long);
        // A flush of the log is padded to a block.
        for words in ["PEXPIREAT k 32503680000001", "EXPIRE k 1000", "PEXPIREAT k 32503680000000"] {
            let before = log_bytes(&mut c);
            let request = encode(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
            c.send_raw(&request.repeat(100));
            (0..100).for_each(|_| assert_eq!(c.read(), Value::Int(1)));
            let bytes = (log_bytes(&mut c) - before) / 100;
            assert!((1..=4096).contains(&bytes), "{journal}: {words}: {bytes} bytes of log");
        }
        let before = log_bytes(&mut c);
        assert_eq!(c.call(&["PERSIST", "k"]), Value::Int(1));
        assert_eq!(c.call(&["PEXPIREAT", "k", "32503680000000"]), Value::Int(1));
        let bytes = log_bytes(&mut c) - before;
        assert!(bytes < 16 << 10, "{journal}: PERSIST: {bytes} bytes of log");
        if journal == "undo-redo" {
            let before = log_bytes(&mut c);
            c.send(&[b"GETEX", b"k", b"PERSIST"]);
            assert!(c.read() == Value::Bulk(long.clone()));
            c.send(&[b"GETEX", b"k", b"PXAT", b"32503680000000"]);
            assert!(c.read() == Value::Bulk(long.clone()));
            let bytes = log_bytes(&mut c) - before;
            assert!(bytes < 16 << 10, "{journal}: GETEX: {bytes} bytes of log");
        }
        let after = disk.crash(1);
        let _ = server.end();
        let server = on(&after, journal);
        let mut c = server.client();
        assert_eq!(c.call(&["PEXPIRETIME", "k"]), Value::Int(LATER_MS as i64), "{journal}");
        assert!(is(&mut c, "k", &long), "{journal}");
    }
}

/// A value of any length may expire, also the longest.
#[test]
fn a_long_value_is_set_with_an_expiry() {
    let server = TestServer::start();
    let mut c = server.client();
    for len in [2_036, 2_037, 2_044, 2_045, 65_528, 65_529, 3 << 20] {
        let long = value(len, 2);
        c.send(&[b"SET", b"k", &long, b"PXAT", b"32503680000000"]);
        assert_eq!(c.read(), Value::ok());
        assert_eq!(c.call(&["PEXPIRETIME", "k"]), Value::Int(LATER_MS as i64));
        assert_eq!(c.call(&["STRLEN", "k"]), Value::Int(len as i64));
        assert!(is(&mut c, "k", &long), "{len}");
        let at = (len - 3).to_string();
        assert_eq!(c.call(&["SETRANGE", "k", &at, "end"]), Value::Int(len as i64));
        assert_eq!(c.call(&["APPEND", "k", "more"]), Value::Int(len as i64 + 4));
        assert_eq!(c.call(&["PEXPIRETIME", "k"]), Value::Int(LATER_MS as i64), "{len}");
        let changed = [&long[..len - 3], b"endmore"].concat();
        assert!(is(&mut c, "k", &changed), "{len}");
        assert_eq!(c.call(&["SET", "k", "short", "KEEPTTL"]), Value::ok());
        assert_eq!(c.call(&["PEXPIRETIME", "k"]), Value::Int(LATER_MS as i64), "{len}");
        assert_eq!(c.call(&["SET", "k", "short"]), Value::ok());
        assert_eq!(c.call(&["TTL", "k"]), Value::Int(-1));
    }
}

/// The longest value may expire. `STILLPOINT_VALUE_MIB=512` runs this with the longest there is, and the test tells
/// the peak of the memory.
#[test]
#[expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "the peak is for whoever runs it"
)]
fn the_longest_value_expires() {
    let named = std::env::var("STILLPOINT_VALUE_MIB").ok().and_then(|text| text.parse().ok());
    let mib: usize = named.unwrap_or(24);
    let engine = || {
        let mut engine = EngineConfig::new("unused");
        engine.durability = Durability::Strict;
        engine.max_memory_bytes = (3 * mib + 64) << 20;
        engine
    };
    let server = TestServer::over(config(), engine());
    let mut c = server.client();
    let long = value(mib << 20, 5);
    c.send(&[b"SET", b"first", &long, b"PXAT", b"32503680000001"]);
    assert_eq!(c.read(), Value::ok());
    let before = log_bytes(&mut c);
    assert_eq!(c.call(&["PERSIST", "first"]), Value::Int(1));
    assert_eq!(c.call(&["PEXPIREAT", "first", "32503680000000"]), Value::Int(1));
    let logged = log_bytes(&mut c) - before;
    assert!(logged <= 16 << 10, "{logged} bytes of log");
    assert_eq!(c.call(&["RENAME", "first", "second"]), Value::ok());
    let server = server.restart(config(), engine());
    let mut c = server.client();
    assert_eq!(c.call(&["PEXPIRETIME", "second"]), Value::Int(LATER_MS as i64));
    assert_eq!(c.call(&["EXISTS", "first"]), Value::Int(0));
    assert!(is(&mut c, "second", &long));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    eprintln!("a value of {mib} MiB: {}", peak.unwrap_or("no peak is known"));
}

/// A rename moves no blocks. A copy has blocks of its own.
#[test]
fn a_renamed_value_is_not_copied_in_memory() {
    const LEN: usize = 12 << 20;
    for journal in ["redo", "undo-redo", "command"] {
        let disk = SimDisk::new(2);
        let server = on(&disk, journal);
        let mut c = server.client();
        let long = value(LEN, 3);
        set(&mut c, "first", &long);
        assert_eq!(c.call(&["PEXPIREAT", "first", "32503680000000"]), Value::Int(1));
        set(&mut c, "second", b"overwritten");
        assert_eq!(c.call(&["RENAME", "first", "second"]), Value::ok());
        assert_eq!(c.call(&["EXISTS", "first"]), Value::Int(0));
        eventually("the memory is that of one value", || used_memory(&mut c) < LEN as u64 * 3 / 2);
        assert_eq!(c.call(&["COPY", "second", "third"]), Value::Int(1));
        let used = used_memory(&mut c);
        assert!(used > LEN as u64 * 2, "{journal}: {used} bytes for two keys");
        // The copy changes, and gets another expiry.
        assert_eq!(c.call(&["SETRANGE", "third", "7", "changed"]), Value::Int(LEN as i64));
        assert_eq!(c.call(&["PERSIST", "third"]), Value::Int(1));
        // Another database has memory of its own.
        assert_eq!(c.call(&["COPY", "second", "second", "DB", "3"]), Value::Int(1));
        assert_eq!(c.call(&["MULTI"]), Value::ok());
        for words in ["RENAME second fourth", "APPEND fourth end", "EXPIREAT fourth 32503680001"] {
            c.call(&words.split(' ').collect::<Vec<_>>());
        }
        assert_eq!(c.call(&["EXEC"]).items().len(), 3);
        let mut changed = long.clone();
        changed[7..14].copy_from_slice(b"changed");
        let longer = [&long[..], b"end"].concat();
        let check = |c: &mut Client, what: &str| {
            assert_eq!(c.call(&["PEXPIRETIME", "fourth"]), Value::Int(LATER_MS as i64 + 1_000));
            assert_eq!(c.call(&["TTL", "third"]), Value::Int(-1), "{journal}, {what}");
            assert!(is(c, "third", &changed) && is(c, "fourth", &longer), "{journal}, {what}");
            assert_eq!(c.call(&["DBSIZE"]), Value::Int(2), "{journal}, {what}");
            c.call(&["SELECT", "3"]);
            assert!(is(c, "second", &long), "{journal}, {what}");
            assert_eq!(c.call(&["PEXPIRETIME", "second"]), Value::Int(LATER_MS as i64));
            c.call(&["SELECT", "0"]);
        };
        check(&mut c, "before the crash");
        let after = disk.crash(2);
        let _ = server.end();
        let server = on(&after, journal);
        let mut c = server.client();
        check(&mut c, "after the crash");
        c.call(&["FLUSHDB"]);
        c.call(&["SELECT", "3"]);
        assert!(is(&mut c, "second", &long), "another database is left alone");
    }
}

/// Each copy takes memory. So what fits into the memory fits into it after a start, too.
#[test]
fn copies_of_a_long_value_fit_after_a_start() {
    const LEN: usize = 8 << 20;
    let engine = || {
        let mut engine = EngineConfig::new("unused");
        engine.durability = Durability::Strict;
        engine.max_memory_bytes = 64 << 20;
        engine
    };
    let server = TestServer::over(config(), engine());
    let mut c = server.client();
    set(&mut c, "long", &value(LEN, 6));
    let mut refused = String::new();
    let copies =
        (0..20).take_while(|number| match c.call(&["COPY", "long", &format!("copy {number}")]) {
            Value::Int(copied) => copied == 1,
            other => {
                refused = other.text();
                false
            }
        });
    let copies = copies.count();
    assert!((3..8).contains(&copies) && refused.starts_with("OOM "), "{copies}, then {refused}");
    let server = server.restart(config(), engine());
    let mut c = server.client();
    for number in 0..copies {
        assert!(is(&mut c, &format!("copy {number}"), &value(LEN, 6)), "{number}");
    }
}

/// Earlier releases put the expiry in front of the value, and said so by bit 7 of the tag.
#[test]
fn values_of_earlier_releases_expire() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let mut engine = EngineConfig::new("unused");
        engine.data = directory.path().join("data");
        engine.durability = Durability::Strict;
        Engine::open(engine).expect("the engine opens")
    };
    // The server makes its tables.
    drop(TestServer::around(config(), open(), None));
    let engine = open();
    let table = engine.table("db0").expect("a table");
    let mut session = engine.session().expect("a session");
    let earlier = |at: u64, value: &[u8]| [&at.to_le_bytes(), value].concat();
    let long = value(300_000, 4);
    for (key, at, value) in [
        ("a", LATER_MS, &b"value"[..]),
        ("b", LATER_MS, b"10"),
        ("c", LATER_MS, &long),
        ("d", LATER_MS, &long),
        ("gone", 1, b"value"),
    ] {
        let value = earlier(at, value);
        session.transact(|tx| tx.put_tagged(table, key.as_bytes(), 0x80, &value)).expect("room");
    }
    drop(session);
    drop(engine);
    let server = TestServer::around(config(), open(), None);
    let mut c = server.client();
    let later = Value::Int(LATER_MS as i64);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(c.call(&["PEXPIRETIME", key]), later, "{key}");
    }
    assert_eq!(c.call(&["GET", "gone"]), Value::Null);
    assert_eq!(c.call(&["GET", "a"]), Value::bulk("value"));
    assert_eq!(c.call(&["APPEND", "a", " more"]), Value::Int(10));
    assert_eq!(c.call(&["SETRANGE", "a", "0", "V"]), Value::Int(10));
    assert_eq!(c.call(&["INCR", "b"]), Value::Int(11));
    assert!(is(&mut c, "c", &long));
    assert_eq!(c.call(&["PERSIST", "c"]), Value::Int(1));
    assert_eq!(c.call(&["RENAME", "d", "e"]), Value::ok());
    assert_eq!(c.call(&["EXPIREAT", "a", "32503680001"]), Value::Int(1));
    let told = |c: &mut Client| {
        assert_eq!(c.call(&["GET", "a"]), Value::bulk("Value more"));
        assert_eq!(c.call(&["PEXPIRETIME", "a"]), Value::Int(LATER_MS as i64 + 1_000));
        assert_eq!(c.call(&["PEXPIRETIME", "b"]), later);
        assert_eq!(c.call(&["TTL", "c"]), Value::Int(-1));
        assert!(is(c, "c", &long) && is(c, "e", &long));
        assert_eq!(c.call(&["PEXPIRETIME", "e"]), later);
    };
    told(&mut c);
    drop(server);
    let engine = open();
    let table = engine.table("db0").expect("a table");
    let mut session = engine.session().expect("a session");
    let label = |session: &mut stillpoint::Session, key: &str| {
        session
            .transact(|tx| Ok(tx.get(table, key.as_bytes())?.map(|value| value.label())))
            .expect("reads")
    };
    let expected = Label { tag: 0, deadline: LATER_MS + 1_000 };
    assert_eq!(label(&mut session, "a"), Some(expected), "what was changed has a deadline");
    assert_eq!(label(&mut session, "c"), Some(Label::default()));
    drop(session);
    drop(engine);
    let server = TestServer::around(config(), open(), None);
    told(&mut server.client());
}

/// Keys that expire all at once are deleted in steps, also while a checkpoint is taken, and clients are
/// served in between.
#[test]
fn many_keys_expire_in_steps_beside_a_checkpoint() {
    const KEYS: usize = 150_000;
    let disk = SimDisk::new(3);
    let mut engine = EngineConfig::new("data");
    engine.durability = Durability::Relaxed;
    engine.checkpoint_pace = Some(4 << 20);
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    let server = TestServer::around(config(), opened(engine), None);
    let mut c = server.client();
    let keys: Vec<usize> = (0..KEYS).collect();
    for some in keys.chunks(500) {
        let requests = some.iter().flat_map(|key| {
            encode(&[b"SET", format!("key:{key}").as_bytes(), &[b'v'; 60], b"PX", b"2500"])
        });
        c.send_raw(&requests.collect::<Vec<u8>>());
        some.iter().for_each(|_| assert_eq!(c.read(), Value::ok()));
    }
    assert_eq!(c.call(&["SET", "stays", "v"]), Value::ok());
    eventually("keys expire", || c.call(&["DBSIZE"]).int() <= KEYS as i64);
    assert_eq!(c.call(&["BGSAVE"]).text(), "Background saving started");
    let (mut before, mut largest, mut saving) = (c.call(&["DBSIZE"]).int(), 0, false);
    eventually("all keys are gone", || {
        let saves = field(&c.call(&["INFO", "persistence"]).text(), "rdb_bgsave_in_progress");
        let now = c.call(&["DBSIZE"]).int();
        saving |= saves == 1 && now < before;
        largest = largest.max(before - now);
        before = now;
        now == 1
    });
    assert!(saving, "no key expired while the checkpoint was taken");
    // A step is 25 ms of every 100 ms at most.
    assert!(largest < KEYS as i64 * 3 / 4, "{largest} keys at once");
    assert_eq!(c.call(&["GET", "stays"]), Value::bulk("v"));
    let stats = c.call(&["INFO", "stats"]).text();
    assert_eq!(field(&stats, "expired_keys"), KEYS as u64);
}

/// The nodes of a large collection that was deleted go in steps, also while a checkpoint is taken, and clients are
/// served in between.
#[test]
fn a_deleted_collection_goes_in_steps_beside_a_checkpoint() {
    const FIELDS: usize = 200_000;
    let disk = SimDisk::new(4);
    let mut engine = EngineConfig::new("data");
    engine.durability = Durability::Relaxed;
    engine.checkpoint_pace = Some(4 << 20);
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    let server = TestServer::around(config(), opened(engine), None);
    let mut c = server.client();
    let fields: Vec<String> = (0..FIELDS).map(|field| format!("field {field:06}")).collect();
    for some in fields.chunks(500) {
        let mut words = vec!["HSET", "hash"];
        some.iter().for_each(|field| words.extend([field.as_str(), "a value of some length"]));
        assert_eq!(c.call(&words), Value::Int(500));
    }
    assert_eq!(c.call(&["SET", "stays", "v"]), Value::ok());
    let all = server.records("db0.nodes");
    assert!(all > 1_000, "{all} nodes");
    assert_eq!(c.call(&["BGSAVE"]).text(), "Background saving started");
    assert_eq!(c.call(&["DEL", "hash"]), Value::Int(1));
    assert_eq!(c.call(&["DBSIZE"]), Value::Int(1), "it is gone at once");
    let (mut before, mut largest, mut saving) = (all, 0, false);
    eventually("all nodes are gone", || {
        let saves = field(&c.call(&["INFO", "persistence"]).text(), "rdb_bgsave_in_progress");
        let now = server.records("db0.nodes");
        saving |= saves == 1 && now < before;
        largest = largest.max(before - now);
        before = now;
        assert_eq!(c.call(&["GET", "stays"]), Value::bulk("v"));
        now == 0
    });
    assert!(saving, "no node went while the checkpoint was taken");
    assert!(largest < all * 3 / 4, "{largest} of {all} nodes at once");
    eventually("the grave is gone", || server.records("graves") == 0);
}
