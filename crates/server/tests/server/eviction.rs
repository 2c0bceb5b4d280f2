//! Tests of what a full cache gives up.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Durability};
use stillpoint_io::{Call, Clock, Disk, RealClock, SimDisk};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field, opened};

/// Replies that are read together.
const PIPELINE: usize = 200;
const VALUE_BYTES: usize = 300;

fn key(number: u64) -> String {
    format!("key:{number:08}")
}

/// Random numbers of a fixed stream.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    /// A number below `n`, smaller ones far more often: about as in Zipf's law.
    fn skewed(&mut self, n: u64) -> u64 {
        let uniform = self.next() as f64 / (1u64 << 31) as f64;
        ((n as f64).powf(uniform) as u64 - 1).min(n - 1)
    }
}

fn evicted(c: &mut Client) -> u64 {
    field(&c.call(&["INFO", "stats"]).text(), "evicted_keys")
}

/// Sends requests as pipelines. Returns the replies that are errors.
fn errors_of(c: &mut Client, requests: impl Iterator<Item = Vec<u8>>) -> Vec<String> {
    let mut errors = Vec::new();
    let requests: Vec<Vec<u8>> = requests.collect();
    for some in requests.chunks(PIPELINE) {
        c.send_raw(&some.concat());
        for _ in some {
            if let Value::Error(error) = c.read() {
                errors.push(error);
            }
        }
    }
    errors
}

fn set(number: u64) -> Vec<u8> {
    encode(&[b"SET", key(number).as_bytes(), &value(number)])
}

fn set_for(number: u64, seconds: u64) -> Vec<u8> {
    let seconds = seconds.to_string();
    encode(&[b"SET", key(number).as_bytes(), &value(number), b"EX", seconds.as_bytes()])
}

fn value(number: u64) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; VALUE_BYTES]
}

/// Which of these keys exist.
fn existing(c: &mut Client, numbers: impl Iterator<Item = u64>) -> HashSet<u64> {
    let numbers: Vec<u64> = numbers.collect();
    let mut found = HashSet::new();
    for some in numbers.chunks(PIPELINE) {
        c.send_raw(
            &some.iter().flat_map(|&n| encode(&[b"GET", key(n).as_bytes()])).collect::<Vec<_>>(),
        );
        for &number in some {
            match c.read() {
                Value::Null => {}
                Value::Bulk(bytes) => {
                    assert_eq!(bytes, value(number));
                    found.insert(number);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    found
}

fn full(c: &mut Client, policy: &str) {
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-policy", policy]), Value::ok());
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory", "24mb"]), Value::ok());
}

#[test]
fn policies_are_chosen_and_told() {
    let mut at_start = config();
    at_start.max_memory_policy = "Volatile-TTL".to_owned();
    let server = TestServer::with(at_start);
    let mut c = server.client();
    let told = |c: &mut Client| c.call(&["CONFIG", "GET", "maxmemory-policy"]).items()[1].text();
    assert_eq!(told(&mut c), "volatile-ttl");
    for policy in stillpoint_server::eviction_policies() {
        assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-policy", policy]), Value::ok());
        assert_eq!(told(&mut c), policy);
        let info = c.call(&["INFO", "memory"]).text();
        assert!(info.contains(&format!("maxmemory_policy:{policy}\r\n")), "{info}");
    }
    let refused = c.call(&["CONFIG", "SET", "maxmemory-policy", "lru"]).text();
    assert!(refused.contains("allkeys-lru, "), "{refused}");
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-samples", "10"]), Value::ok());
    assert_eq!(c.call(&["CONFIG", "GET", "maxmemory-samples"]).items()[1], Value::bulk("10"));
    assert!(c.call(&["CONFIG", "SET", "maxmemory-samples", "0"]).text().starts_with("ERR "));
}

/// Some keys are used again and again, and others are set once. Memory is full most of the time.
#[test]
fn a_full_cache_keeps_what_is_used_and_refuses_nothing() {
    const HOT: u64 = 2_000;
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        let server = TestServer::start();
        let mut c = server.client();
        full(&mut c, policy);
        let mut random = Random(7);
        assert_eq!(errors_of(&mut c, (0..HOT).map(set)), [""; 0]);
        let (mut next, mut evicted_first) = (HOT, 0);
        for round in 0..12 {
            let requests = (0..10_000).map(|_| {
                if random.next().is_multiple_of(3) {
                    return encode(&[b"GET", key(random.skewed(HOT)).as_bytes()]);
                }
                next += 1;
                set(next)
            });
            assert_eq!(errors_of(&mut c, requests), [""; 0], "{policy}, round {round}");
            if evicted_first == 0 && evicted(&mut c) > 0 {
                evicted_first = next;
            }
        }
        let gone = evicted(&mut c);
        assert!(gone > (next - evicted_first) / 2, "{policy}: {gone} of {next} keys");
        let hot = existing(&mut c, 0..100);
        assert!(hot.len() > 90, "{policy}: of the hottest 100 keys {} are there", hot.len());
        let old = existing(&mut c, HOT..HOT + 10_000);
        // Of the keys that were used once, LFU gives up any, whatever their age.
        let most = if policy == "allkeys-lru" { 5_000 } else { 7_500 };
        assert!(old.len() < most, "{policy}: {} of 10,000 old keys are there", old.len());
        let used = field(&c.call(&["INFO", "memory"]).text(), "used_memory");
        assert!(used < 48 << 20, "{policy}: {used} bytes");
    }
}

/// Sets by Zipf's law, by several clients, at full memory.
#[test]
fn no_client_is_refused_at_full_memory() {
    let server = TestServer::start();
    full(&mut server.client(), "allkeys-lru");
    let port = server.port;
    let clients: Vec<_> = (0..3)
        .map(|number| {
            let run = move || {
                let (mut c, mut random) = (Client::connect(port), Random(number));
                let requests = (0..60_000).map(|_| {
                    let key = key(random.skewed(1_000_000_000));
                    let bytes = 100 * (1 + random.next() as usize % 3);
                    encode(&[b"SET", key.as_bytes(), &vec![b'v'; bytes]])
                });
                errors_of(&mut c, requests)
            };
            stillpoint_io::spawn("client", run).expect("a thread")
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("no panic"), [""; 0]);
    }
    let gone = evicted(&mut server.client());
    assert!(gone > 1_000, "{gone}");
}

#[test]
fn volatile_policies_leave_keys_without_expiry_alone() {
    for policy in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        let server = TestServer::start();
        let mut c = server.client();
        full(&mut c, policy);
        assert_eq!(errors_of(&mut c, (0..5_000).map(set)), [""; 0]);
        // Keys with later numbers expire later.
        let expiring = (5_000..85_000).map(|n| set_for(n, 1_000 + n));
        assert_eq!(errors_of(&mut c, expiring), [""; 0], "{policy}");
        let gone = evicted(&mut c);
        assert!(gone > 15_000, "{policy}: {gone}");
        assert_eq!(existing(&mut c, 0..5_000).len(), 5_000, "{policy}");
        if policy == "volatile-ttl" {
            // With all keys in sight, those that expire first would have gone: as many as are gone. With
            // five samples and sixteen candidates seven tenths of them go, by chance a quarter.
            let first = 5_000..5_000 + gone;
            let left = existing(&mut c, first.clone().step_by(7)).len() as u64;
            let looked_at = first.step_by(7).count() as u64;
            assert!(left * 2 < looked_at, "{left} of {looked_at} that expire first are left");
        }
    }
}

/// Nothing can be given up, so writes are refused as without a policy, and soon.
#[test]
fn without_a_key_to_give_up_writes_are_refused() {
    for policy in ["noeviction", "volatile-lru"] {
        let server = TestServer::start();
        let mut c = server.client();
        full(&mut c, policy);
        let errors = errors_of(&mut c, (0..120_000).map(set));
        assert!(errors.len() > 1_000 && errors.iter().all(|error| error.starts_with("OOM ")));
        assert_eq!(evicted(&mut c), 0);
        assert!(c.call(&["SET", "another", &"x".repeat(VALUE_BYTES)]).text().starts_with("OOM "));
        assert_eq!(c.call(&["DEL", &key(0)]), Value::Int(1));
    }
}

/// Collections are given up with all of their nodes.
#[test]
fn collections_make_room_for_each_other() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-random");
    c.call(&["CONFIG", "SET", "maxmemory", "48mb"]);
    let fields: Vec<String> = (0..100).map(|field| format!("field {field}")).collect();
    let long = "v".repeat(100);
    let hashes = (0..6_000u64).map(|number| {
        let key = key(number);
        let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
        fields.iter().for_each(|field| words.extend([field.as_bytes(), long.as_bytes()]));
        encode(&words)
    });
    assert_eq!(errors_of(&mut c, hashes), [""; 0]);
    let gone = evicted(&mut c);
    assert!(gone > 1_000, "{gone}");
    // Each takes about 14 KB, nodes included. What is given up is what is needed, and not much more.
    let Value::Int(left) = c.call(&["DBSIZE"]) else { panic!("a number") };
    assert!(left > 1_200, "{left} hashes are left");
}

#[test]
fn keys_with_expiry_are_found_after_a_restart() {
    let disk = SimDisk::new(3);
    let server = server_on(&disk, Durability::Strict);
    let mut c = server.client();
    full(&mut c, "volatile-ttl");
    assert_eq!(errors_of(&mut c, (0..40_000).map(|n| set_for(n, 10_000 + n))), [""; 0]);
    let after = disk.crash(3);
    let _ = server.end();
    let server = server_on(&after, Durability::Strict);
    let mut c = server.client();
    full(&mut c, "volatile-ttl");
    // No scan has counted the keys with an expiry yet.
    assert_eq!(errors_of(&mut c, (40_000..50_000).map(|n| set_for(n, 90_000))), [""; 0]);
}

#[test]
fn a_cache_of_few_long_values_refuses_nothing() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    // Each key is used again while others are chosen.
    for round in 0..8 {
        for number in 0..30 {
            c.send(&[b"SET", key(number).as_bytes(), &vec![b'l'; 1 << 20]]);
            assert_eq!(c.read(), Value::ok(), "{round}, {number}");
            c.call(&["STRLEN", &key(number / 2)]);
        }
    }
}

#[test]
fn long_values_make_room_for_each_other() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    for number in 0..60 {
        c.send(&[b"SET", key(number).as_bytes(), &vec![b'l'; 1 << 20]]);
        assert_eq!(c.read(), Value::ok(), "{number}");
    }
    let there = (0..60).filter(|&n| c.call(&["STRLEN", &key(n)]) != Value::Int(0)).count();
    assert!((10..30).contains(&there), "{there}");
}

/// A value that can never fit is refused, and nothing is given up for it.
#[test]
fn a_value_beyond_the_limit_empties_no_cache() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    assert_eq!(errors_of(&mut c, (0..30_000).map(set)), [""; 0]);
    let before = c.call(&["DBSIZE"]).int();
    for bytes in [23 << 20, 40 << 20] {
        c.send(&[b"SET", b"huge", &vec![b'h'; bytes]]);
        assert!(c.read().text().starts_with("OOM "), "{bytes}");
    }
    let after = c.call(&["DBSIZE"]).int();
    assert!(after > before * 9 / 10, "{after} of {before} keys are left");
}

/// A client that writes in transactions alone is refused nothing, either.
#[test]
fn transactions_find_room() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    let transactions = (0..3_000u64).map(|number| {
        let sets = (0..40).flat_map(|i| set(number * 40 + i));
        let multi = encode(&[b"MULTI"]).into_iter().chain(sets);
        multi.chain(encode(&[b"EXEC"])).collect::<Vec<u8>>()
    });
    for transaction in transactions {
        c.send_raw(&transaction);
        (0..41).for_each(|_| drop(c.read()));
        let results = c.read();
        assert!(!matches!(results, Value::Error(_)), "{results:?}");
    }
    assert!(evicted(&mut c) > 10_000);
}

/// Without any policy, memory of deleted short values serves long ones.
#[test]
fn memory_of_deleted_keys_serves_other_sizes() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "noeviction");
    let refused = errors_of(&mut c, (0..80_000).map(set)).len() as u64;
    let stored = 80_000 - refused;
    assert!(refused > 0 && stored > 40_000, "{stored}");
    let dels = (0..80_000).filter(|n| n % 10 != 0);
    assert_eq!(errors_of(&mut c, dels.map(|n| encode(&[b"DEL", key(n).as_bytes()]))), [""; 0]);
    let long = vec![b'l'; 2_000];
    let mut count = 0;
    eventually("long values fill the memory", || {
        while count < 7_000 {
            c.send(&[b"SET", format!("long:{count}").as_bytes(), &long]);
            if matches!(c.read(), Value::Error(_)) {
                return false;
            }
            count += 1;
        }
        true
    });
    let kept = existing(&mut c, (0..80_000).step_by(10)).len() as u64;
    assert!(kept >= stored / 10, "{kept} of {stored}");
}

#[test]
fn the_use_of_keys_is_told() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "before", "v"]);
    c.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    c.call(&["SET", "k", "v"]);
    RealClock.sleep(Duration::from_millis(2_300));
    let idle = |c: &mut Client, key: &str| c.call(&["OBJECT", "IDLETIME", key]);
    // None of these is a use.
    for command in [&["EXISTS", "k"][..], &["TTL", "k"], &["TYPE", "k"], &["MEMORY", "USAGE", "k"]]
    {
        c.call(command);
    }
    assert_eq!(idle(&mut c, "k"), Value::Int(2));
    assert_eq!(idle(&mut c, "before"), Value::Int(2), "since the policy was chosen");
    assert_eq!(idle(&mut c, "no such key"), Value::Null);
    // The value outgrows its cell.
    c.call(&["APPEND", "k", &"x".repeat(500)]);
    assert_eq!(idle(&mut c, "k"), Value::Int(0));
    c.call(&["GET", "before"]);
    assert_eq!(idle(&mut c, "before"), Value::Int(0));
    let refused = c.call(&["OBJECT", "FREQ", "k"]).text();
    assert!(refused.starts_with("ERR An LFU maxmemory policy is not selected"), "{refused}");

    c.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lfu"]);
    c.call(&["SET", "new", "v"]);
    assert_eq!(c.call(&["OBJECT", "FREQ", "new"]), Value::Int(5), "as in Redis");
    assert_eq!(c.call(&["OBJECT", "FREQ", "before"]), Value::Int(0), "not used since");
    for _ in 0..2_000 {
        c.send(&[b"GET", b"new"]);
    }
    (0..2_000).for_each(|_| drop(c.read()));
    let often = c.call(&["OBJECT", "FREQ", "new"]).int();
    assert!((12..40).contains(&often), "{often}");
    c.call(&["APPEND", "new", &"x".repeat(1_500)]);
    let kept = c.call(&["OBJECT", "FREQ", "new"]).int();
    assert!((often..=often + 1).contains(&kept), "another cell keeps the mark: {often}, {kept}");
    c.call(&["DEL", "new"]);
    c.call(&["SET", "new", "v"]);
    assert_eq!(c.call(&["OBJECT", "FREQ", "new"]), Value::Int(5), "a key that is new again");
    let refused = c.call(&["OBJECT", "IDLETIME", "k"]).text();
    assert!(refused.starts_with("ERR An LFU maxmemory policy is selected"), "{refused}");
}

/// A crash brings back nothing that was given up before, and loses nothing else.
#[test]
fn what_was_given_up_stays_away_after_a_crash() {
    for (seed, durability) in [(1, Durability::Strict), (2, Durability::Relaxed)] {
        let disk = SimDisk::new(seed);
        let server = server_on(&disk, durability);
        let mut c = server.client();
        full(&mut c, "allkeys-lru");
        const KEYS: u64 = 65_000;
        let requests = (0..KEYS).map(set);
        assert_eq!(errors_of(&mut c, requests), [""; 0]);
        if seed == 2 {
            assert_eq!(c.call(&["SAVE"]), Value::ok());
            assert_eq!(errors_of(&mut c, (KEYS..KEYS + 20_000).map(set)), [""; 0]);
        }
        let mut last = 0;
        eventually("nothing more is given up", || {
            RealClock.sleep(Duration::from_millis(50));
            let now = evicted(&mut c);
            std::mem::replace(&mut last, now) == now
        });
        assert!(last > 2_000, "{last}");
        // The log is flushed at this age of a record.
        RealClock.sleep(Duration::from_millis(1_200));
        let all = KEYS + 20_000;
        let before = existing(&mut c, 0..all);
        let after = disk.crash(seed);
        let _ = server.end();
        let server = server_on(&after, durability);
        let mut c = server.client();
        let now = existing(&mut c, 0..all);
        let back: Vec<_> = now.difference(&before).collect();
        assert!(back.is_empty(), "{durability:?}: {} keys are back", back.len());
        let lost: Vec<_> = before.difference(&now).collect();
        assert!(lost.is_empty(), "{durability:?}: {} keys are lost", lost.len());
    }
}

/// While a checkpoint is taken, memory of deleted keys may come back late. Nothing is given up for it twice.
#[test]
fn a_checkpoint_empties_no_cache() {
    let mut met = 0;
    for scheme in ["calc", "calc:partial"] {
        let disk = SimDisk::new(4);
        let mut engine = EngineConfig::new("data");
        engine.checkpoint = scheme.to_owned();
        engine.durability = Durability::Relaxed;
        engine.checkpoint_pace = Some(48 << 20);
        engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
        let server = TestServer::around(config(), opened(engine), None);
        let mut c = server.client();
        full(&mut c, "allkeys-lru");
        let errors = errors_of(&mut c, (0..70_000).map(set));
        assert!(errors.is_empty(), "{scheme}: {} of {:?}", errors.len(), errors.first());
        let before = c.call(&["DBSIZE"]).int();
        assert_eq!(c.call(&["BGSAVE"]).text(), "Background saving started");
        let (mut next, mut least) = (70_000, before);
        let saves = |c: &mut Client| {
            field(&c.call(&["INFO", "persistence"]).text(), "rdb_bgsave_in_progress") == 1
        };
        while saves(&mut c) {
            errors_of(&mut c, (next..next + 200).map(set));
            next += 200;
            least = least.min(c.call(&["DBSIZE"]).int());
        }
        met += usize::from(next > 71_000);
        assert!(least * 2 > before, "{scheme}: {least} of {before} keys were left");
    }
    assert!(met > 0, "each checkpoint was over at once");
}

/// Writers that wait for memory while the device stalls stand in no other client's way, and are not refused
/// after a second.
#[test]
fn writers_that_wait_hold_nobody_up() {
    const WRITERS: u64 = 40;
    let disk = SimDisk::new(5);
    let server = server_on(&disk, Durability::Relaxed);
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    assert_eq!(errors_of(&mut c, (0..70_000).map(set)), [""; 0]);
    let mut writers: Vec<Client> = (0..WRITERS).map(|_| server.client()).collect();
    // Writers wait for deletions that are made while the device stalls, and for no earlier ones.
    eventually("all memory is back", || {
        server.look(|engine| engine.memory_room().returning_bytes == 0)
    });
    // No deletion is closed, so no memory comes back.
    disk.stall(&[Call::Write, Call::Sync]);
    let start_ns = RealClock.monotonic_ns();
    for (number, writer) in (0u64..).zip(&mut writers) {
        let requests = (0..200).flat_map(|i| set(100_000 + number * 200 + i));
        writer.send_raw(&requests.collect::<Vec<u8>>());
    }
    RealClock.sleep(Duration::from_millis(1_200));
    let is_early = RealClock.monotonic_ns() - start_ns < 5_000_000_000;
    assert!(c.call(&["KEYS", "key:*7"]).items().len() > 1_000);
    let (mut waiting, mut refused) = (0, Vec::new());
    let mut left = [200; WRITERS as usize];
    for (writer, left) in writers.iter_mut().zip(&mut left) {
        while writer.has_reply() {
            refused.extend(error_of(writer.read()));
            *left -= 1;
        }
        waiting += usize::from(*left > 0);
    }
    assert!(refused.is_empty() || !is_early, "a command that only reads has waited for memory");
    disk.resume();
    for (writer, left) in writers.iter_mut().zip(left) {
        refused.extend((0..left).filter_map(|_| error_of(writer.read())));
    }
    let passed_ms = (RealClock.monotonic_ns() - start_ns) / 1_000_000;
    // On a machine that needed longer, some were refused rightly.
    if passed_ms < 9_000 {
        assert_eq!(refused, [""; 0], "refused before their time, within {passed_ms} ms");
        assert!(waiting > 4, "{waiting} writers wait, and a long command is answered");
    }
}

fn error_of(reply: Value) -> Option<String> {
    if let Value::Error(error) = reply { Some(error) } else { None }
}

/// Large collections are given up one at a time, and no more of them than there is need.
#[test]
fn large_collections_are_not_given_up_in_vain() {
    let server = TestServer::start();
    let mut c = server.client();
    let long = "v".repeat(1_000);
    let fields: Vec<String> = (0..500).map(|field| format!("field {field}")).collect();
    for number in 0..12 {
        for part in 0..10 {
            let names: Vec<String> = fields.iter().map(|field| format!("{part}{field}")).collect();
            let key = key(number);
            let mut words = vec!["HSET", &key];
            names.iter().for_each(|name| words.extend([name.as_str(), &long]));
            assert_eq!(c.call(&words), Value::Int(500));
        }
    }
    // Each hash has five megabytes, and the new limit is as much below what they take.
    let used = field(&c.call(&["INFO", "memory"]).text(), "used_memory");
    assert!(used > 60_000_000, "{used}");
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), Value::ok());
    assert_eq!(
        c.call(&["CONFIG", "SET", "maxmemory", &(used - 5_000_000).to_string()]),
        Value::ok()
    );
    eventually("a hash is given up", || evicted(&mut c) > 0);
    assert_eq!(errors_of(&mut c, (1_000..4_000).map(set)), [""; 0]);
    RealClock.sleep(Duration::from_millis(200));
    let gone = evicted(&mut c);
    assert!(gone < 6, "{gone} of 12 hashes were given up");
}

/// Members that are long lie in nodes of their own. A collection of them is counted by its bytes, whether its nodes
/// go with it or later.
#[test]
fn collections_of_long_members_are_not_given_up_in_vain() {
    for (hashes, fields) in [(24, 20), (10, 60)] {
        let server = TestServer::start();
        let mut c = server.client();
        let long = vec![b'v'; 60_000];
        for number in 0..hashes {
            for field in 0..fields {
                let (key, field) = (key(number), format!("field {field}"));
                c.send(&[b"HSET", key.as_bytes(), field.as_bytes(), &long]);
                assert_eq!(c.read(), Value::Int(1));
            }
        }
        let used = field(&c.call(&["INFO", "memory"]).text(), "used_memory");
        assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]), Value::ok());
        let limit = (used - 4_000_000).to_string();
        assert_eq!(c.call(&["CONFIG", "SET", "maxmemory", &limit]), Value::ok());
        eventually("a hash is given up", || evicted(&mut c) > 0);
        assert_eq!(errors_of(&mut c, (1_000..2_000).map(set)), [""; 0]);
        RealClock.sleep(Duration::from_millis(200));
        // Some of the other keys may be given up, too, while memory comes back.
        let keys: Vec<String> = (0..hashes).map(key).collect();
        let words: Vec<&str> =
            ["EXISTS"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        let Value::Int(left) = c.call(&words) else { panic!("a number") };
        assert!(left * 2 >= hashes as i64, "{left} of {hashes} hashes of {fields} fields are left");
    }
}

/// No key could be given up once. Keys that came later make room, although there was room enough for others meanwhile.
#[test]
fn keys_that_came_later_make_room_for_a_long_value() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "volatile-lru");
    let errors = errors_of(&mut c, (0..90_000).map(set));
    assert!(errors.len() > 1_000 && evicted(&mut c) == 0, "{}", errors.len());
    let dels = (0..25_000).map(|number| encode(&[b"DEL", key(number).as_bytes()]));
    assert_eq!(errors_of(&mut c, dels), [""; 0]);
    let long = vec![b'l'; 1 << 20];
    for name in ["first", "second", "third"] {
        eventually("memory of the deleted keys", || {
            c.send(&[b"SET", name.as_bytes(), &long, b"EX", b"10000"]);
            c.read() == Value::ok()
        });
    }
    // What is still spare does not suffice for this one.
    let longer = vec![b'l'; 6 << 20];
    eventually("a key with an expiry is given up", || {
        c.send(&[b"SET", b"longer", &longer]);
        c.read() == Value::ok()
    });
    assert!(evicted(&mut c) > 0);
}

/// The queue of a transaction waits for room of any size, as a single command does.
#[test]
fn transactions_of_many_sizes_find_room() {
    let server = TestServer::start();
    let mut c = server.client();
    full(&mut c, "allkeys-lru");
    let mut random = Random(11);
    let mut refused = Vec::new();
    for number in 0..4_000u64 {
        c.send(&[b"MULTI"]);
        for i in 0..10 {
            // Again and again other sizes are wanted.
            let bytes = 20 + (number / 400 * 370 + random.next() % 150) as usize % 3_500;
            c.send(&[b"SET", key(number * 10 + i).as_bytes(), &vec![b'v'; bytes]]);
        }
        c.send(&[b"EXEC"]);
        (0..11).for_each(|_| drop(c.read()));
        if let Value::Error(error) = c.read() {
            refused.push((number, error));
        }
    }
    // On a busy machine a transaction waits in vain at times.
    assert!(refused.len() < 40, "{}: {:?}", refused.len(), refused.first());
    assert!(evicted(&mut c) > 1_000);
}

/// A few keys with an expiry lie among a great many without one. They are found, and writes are not refused.
#[test]
fn few_keys_with_an_expiry_make_room_among_many_without() {
    const BYTES: usize = 1_500_000;
    for policy in ["volatile-lru", "volatile-ttl", "volatile-random"] {
        let server = TestServer::start();
        let mut c = server.client();
        full(&mut c, policy);
        // The keys that stay take three quarters of the memory.
        let stays = |n: u64| encode(&[b"SET", key(n).as_bytes(), b"v"]);
        assert_eq!(errors_of(&mut c, (0..250_000).map(stays)), [""; 0], "{policy}");
        let long = vec![b'l'; BYTES];
        for number in 0..24 {
            let name = format!("long:{number}");
            c.send(&[b"SET", name.as_bytes(), &long, b"EX", b"10000"]);
            assert_eq!(c.read(), Value::ok(), "{policy}: {number}");
        }
        assert!(evicted(&mut c) > 15, "{policy}");
        assert_eq!(c.call(&["EXISTS", &key(0), &key(249_999)]), Value::Int(2));
    }
}

fn server_on(disk: &SimDisk, durability: Durability) -> TestServer {
    let mut engine = EngineConfig::new("data");
    engine.durability = durability;
    engine.environment.disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
    TestServer::around(config(), opened(engine), None)
}
