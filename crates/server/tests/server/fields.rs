//! Fields of hashes that expire. The redis-server of the comparisons does not know such fields:
//! what is expected here is what the vendor's documentation says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Engine};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng};
use stillpoint_server::ServerConfig;

use crate::common::{Client, TestServer, Value, config, eventually, field, verify};

/// A clock whose time of day moves only when the test moves it.
#[derive(Debug, Default)]
struct Calendar {
    ms: AtomicU64,
}

impl Clock for Calendar {
    fn monotonic_ns(&self) -> u64 {
        RealClock.monotonic_ns()
    }

    fn wall_ms(&self) -> u64 {
        self.ms.load(Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

/// The first moment of every test, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;

fn calendar() -> (Arc<Calendar>, ServerConfig) {
    let clock = Arc::new(Calendar { ms: AtomicU64::new(START_MS) });
    let mut config = config();
    config.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    (clock, config)
}

fn call(client: &mut Client, line: &str) -> Value {
    client.call(&line.split(' ').collect::<Vec<_>>())
}

fn error(text: &str) -> Value {
    Value::Error(text.to_owned())
}

fn ints(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
}

fn bulks(texts: &[&str]) -> Value {
    let text = |text: &&str| if text.is_empty() { Value::Null } else { Value::bulk(text) };
    Value::Array(texts.iter().map(text).collect())
}

fn check(lines: &[(&str, Value)]) {
    let (_clock, config) = calendar();
    let server = TestServer::with(config);
    let mut client = server.client();
    for (line, expected) in lines {
        assert_eq!(call(&mut client, line), *expected, "{line}");
    }
}

/// `HEXPIRE`: "-2 if no such field exists in the provided hash key, or the provided key does not
/// exist. 0 if the specified NX | XX | GT | LT condition has not been met. 1 if the expiration time
/// was set/updated. 2 when HEXPIRE/HPEXPIRE is called with 0 seconds/milliseconds or when
/// HEXPIREAT/HPEXPIREAT is called with a past Unix time".
#[test]
fn an_expiry_is_set_on_conditions() {
    check(&[
        ("HEXPIRE no-key 20 NX FIELDS 2 field1 field2", ints(&[-2, -2])),
        ("HSET mykey field1 hello field2 world", Value::Int(2)),
        ("HEXPIRE mykey 10 FIELDS 3 field1 field2 field3", ints(&[1, 1, -2])),
        ("HTTL mykey FIELDS 3 field1 field2 field3", ints(&[10, 10, -2])),
        ("HGETALL mykey", bulks(&["field1", "hello", "field2", "world"])),
        ("HSET h a 1 b 2 c 3 d 4", Value::Int(4)),
        ("HEXPIRE h 100 XX FIELDS 1 a", ints(&[0])),
        ("HEXPIRE h 100 GT FIELDS 1 a", ints(&[0])),
        ("HEXPIRE h 100 LT FIELDS 1 a", ints(&[1])),
        ("HEXPIRE h 200 NX FIELDS 2 a b", ints(&[0, 1])),
        ("HEXPIRE h 100 GT FIELDS 2 a b", ints(&[0, 0])),
        ("HEXPIRE h 150 GT FIELDS 2 a b", ints(&[1, 0])),
        ("HEXPIRE h 150 LT FIELDS 2 a b", ints(&[0, 1])),
        ("HEXPIRE h 20 XX FIELDS 3 a b c", ints(&[1, 1, 0])),
        ("HEXPIRE h 30 fields 1 c nx", ints(&[1])),
        ("HTTL h FIELDS 4 a b c d", ints(&[20, 20, 30, -1])),
        ("HEXPIRE h 0 NX FIELDS 2 a d", ints(&[0, 2])),
        ("HPEXPIREAT h 5 FIELDS 2 a x", ints(&[2, -2])),
        ("HGETALL h", bulks(&["b", "2", "c", "3"])),
        ("HPEXPIRE h 0 FIELDS 2 b c", ints(&[2, 2])),
        ("EXISTS h", Value::Int(0)),
    ]);
}

/// `HTTL`: "-2 if no such field exists in the provided hash key, or the provided key does not exist.
/// -1 if the field exists but has no associated expiration set. The TTL in seconds."
/// `HPERSIST`: "1 the expiration was removed."
#[test]
fn an_expiry_is_told_in_each_unit_and_taken_off() {
    check(&[
        ("HTTL no-key FIELDS 3 field1 field2 field3", ints(&[-2, -2, -2])),
        ("HPERSIST no-key FIELDS 1 f", ints(&[-2])),
        ("HSET h a 1 b 2", Value::Int(2)),
        ("HPEXPIREAT h 1700000001500 FIELDS 1 a", ints(&[1])),
        ("HPEXPIRETIME h FIELDS 3 a b c", ints(&[1_700_000_001_500, -1, -2])),
        ("HEXPIRETIME h FIELDS 1 a", ints(&[1_700_000_002])),
        ("HTTL h FIELDS 1 a", ints(&[2])),
        ("HPTTL h FIELDS 1 a", ints(&[1500])),
        ("HEXPIREAT h 1700000007 FIELDS 1 a", ints(&[1])),
        ("HPTTL h FIELDS 1 a", ints(&[7000])),
        ("OBJECT ENCODING h", Value::bulk("listpackex")),
        ("HPERSIST h FIELDS 3 a b c", ints(&[1, -1, -2])),
        ("HTTL h FIELDS 1 a", ints(&[-1])),
        ("OBJECT ENCODING h", Value::bulk("listpackex")),
    ]);
}

#[test]
fn a_field_is_set_and_read_with_an_expiry() {
    let only = |word: &str| {
        error(&format!("ERR Only one of EX, PX, EXAT, PXAT or {word} arguments can be specified"))
    };
    check(&[
        ("HSETEX h FXX EX 10 FIELDS 1 a 1", Value::Int(0)),
        ("EXISTS h", Value::Int(0)),
        ("HSETEX h FNX EX 10 FIELDS 2 a 1 b 2", Value::Int(1)),
        ("HSETEX h FNX EX 60 FIELDS 2 a 3 c 3", Value::Int(0)),
        ("HSETEX h FXX EX 60 FIELDS 2 a 3 c 3", Value::Int(0)),
        ("HSETEX h FXX KEEPTTL FIELDS 2 a 3 b 4", Value::Int(1)),
        ("HTTL h FIELDS 2 a b", ints(&[10, 10])),
        ("HSETEX h FIELDS 1 a 5", Value::Int(1)),
        ("HSETEX h FIELDS 1 c 6 PX 2500", Value::Int(1)),
        ("HTTL h FIELDS 3 a b c", ints(&[-1, 10, 3])),
        ("HGETEX h FIELDS 4 a b c d", bulks(&["5", "4", "6", ""])),
        ("HGETEX h EX 50 FIELDS 2 a d", bulks(&["5", ""])),
        ("HGETEX h PERSIST FIELDS 2 b c", bulks(&["4", "6"])),
        ("HTTL h FIELDS 3 a b c", ints(&[50, -1, -1])),
        ("HGETEX h PXAT 5 FIELDS 1 a", bulks(&["5"])),
        ("HSETEX h PXAT 5 FIELDS 2 b 9 x 9", Value::Int(1)),
        ("HGETALL h", bulks(&["c", "6"])),
        ("HGETDEL h FIELDS 2 c d", bulks(&["6", ""])),
        ("HSETEX h PXAT 5 FIELDS 1 a 9", Value::Int(1)),
        ("EXISTS h", Value::Int(0)),
        ("HGETEX no-key EX 5 FIELDS 2 a b", bulks(&["", ""])),
        ("HSETEX h FXX EX 60 KEEPTTL FIELDS 1 a 1", only("KEEPTTL")),
        ("HGETEX h PERSIST PX 5 FIELDS 1 a", only("PERSIST")),
    ]);
}

#[test]
fn wrong_arguments_are_told() {
    let arity = |name: &str| error(&format!("ERR wrong number of arguments for '{name}' command"));
    let invalid = |name: &str| error(&format!("ERR invalid expire time in '{name}' command"));
    let integer = error("ERR value is not an integer or out of range");
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let mandatory = "ERR Mandatory argument FIELDS is missing or not at the right position";
    check(&[
        ("HEXPIRE h -5 FIELDS 1 a", error("ERR invalid expire time, must be >= 0")),
        ("HEXPIRE h 99999999999999999 FIELDS 1 a", invalid("hexpire")),
        ("HPEXPIREAT h 70368744177664 FIELDS 1 a", invalid("hpexpireat")),
        ("HPEXPIREAT h 70368744177663 FIELDS 1 a", ints(&[-2])),
        ("HEXPIRE h x FIELDS 1 a", integer),
        ("HEXPIRE h 1 FIELDS 0 a", error("ERR Parameter `numFields` should be greater than 0")),
        ("HEXPIRE h 1 FIELDS 3 a", error("ERR wrong number of arguments")),
        ("HEXPIRE h 1 FIELDS 1 a b", error("ERR unknown argument: b")),
        ("HEXPIRE h 1 a", arity("hexpire")),
        ("HEXPIRE h 1 ZZ FIELDS 1 a", error("ERR unknown argument: ZZ")),
        ("HEXPIRE h 1 NX XX FIELDS 1 a", error("ERR Multiple condition flags specified")),
        ("HEXPIRE h 1 FIELDS 1 a FIELDS 1 b", error("ERR FIELDS keyword specified multiple times")),
        ("HTTL h FIELD 1 a", error(mandatory)),
        ("HPERSIST h FIELDS x a", error("ERR Number of fields must be a positive integer")),
        (
            "HTTL h FIELDS 2 a",
            error("ERR The `numfields` parameter must match the number of arguments"),
        ),
        ("HSETEX h BOGUS FIELDS 1 f v", error("ERR unknown argument: BOGUS")),
        (
            "HSETEX h FNX FXX FIELDS 1 f v",
            error("ERR Only one of FXX or FNX arguments can be specified"),
        ),
        ("HSETEX h FIELDS abc f v", error("ERR invalid number of fields")),
        ("HGETEX h FIELDS 0 f", error("ERR invalid number of fields")),
        ("HSETEX h FIELDS 2 f v", arity("hsetex")),
        ("HSETEX h EX -1 FIELDS 1 f v", error("ERR invalid expire time, must be >= 0")),
        ("HGETEX h EX 99999999999999999 FIELDS 1 f", invalid("hgetex")),
        ("SET s a", Value::ok()),
        ("HEXPIRE s 100 FIELDS 1 a", error(wrong)),
        ("HTTL s FIELDS 1 a", error(wrong)),
        ("HPERSIST s FIELDS 1 a", error(wrong)),
        ("HSETEX s FIELDS 1 a b", error(wrong)),
        ("HGETEX s FIELDS 1 a", error(wrong)),
    ]);
}

/// A hash in the model: value and expiry of each field.
type Model = BTreeMap<String, (String, Option<u64>)>;

fn live(model: &Model, now_ms: u64) -> BTreeMap<&String, &(String, Option<u64>)> {
    model.iter().filter(|(_, (_, at))| at.is_none_or(|at| at > now_ms)).collect()
}

/// One random change of the hash `h`, in the model and in the server.
fn change(client: &mut Client, rng: &SeededRng, model: &mut Model, (names, now_ms): (u64, u64)) {
    model.retain(|_, (_, at)| at.is_none_or(|at| at > now_ms));
    let name = format!("field{}", rng.below(names));
    let value = format!("{}{}", rng.below(1000), "v".repeat(rng.below(40) as usize));
    let at = now_ms + 1 + rng.below(60_000);
    let old = model.get(&name).cloned();
    let there = old.is_some();
    let old_at = old.as_ref().and_then(|(_, at)| *at);
    let (line, expected) = match rng.below(12) {
        0..3 => {
            model.insert(name.clone(), (value.clone(), None));
            (format!("HSET h {name} {value}"), Value::Int(i64::from(!there)))
        }
        3..6 => {
            model.insert(name.clone(), (value.clone(), Some(at)));
            (format!("HSETEX h PXAT {at} FIELDS 1 {name} {value}"), Value::Int(1))
        }
        6 | 7 => {
            let sets = old_at.is_none_or(|old| at < old);
            if let Some(field) = model.get_mut(&name).filter(|_| sets) {
                field.1 = Some(at);
            }
            let code = if there { i64::from(sets) } else { -2 };
            (format!("HPEXPIREAT h {at} LT FIELDS 1 {name}"), ints(&[code]))
        }
        8 => {
            if let Some(field) = model.get_mut(&name) {
                field.1 = None;
            }
            let code = if old_at.is_some() {
                1
            } else if there {
                -1
            } else {
                -2
            };
            (format!("HPERSIST h FIELDS 1 {name}"), ints(&[code]))
        }
        9 => {
            model.remove(&name);
            (format!("HDEL h {name}"), Value::Int(i64::from(there)))
        }
        10 => {
            if !there {
                model.insert(name.clone(), (value.clone(), None));
            }
            (format!("HSETNX h {name} {value}"), Value::Int(i64::from(!there)))
        }
        _ => {
            if let Some((value, _)) = model.get_mut(&name) {
                value.clear();
                value.push_str("new");
            } else {
                model.insert(name.clone(), ("new".to_owned(), None));
            }
            (format!("HSETEX h KEEPTTL FIELDS 1 {name} new"), Value::Int(1))
        }
    };
    assert_eq!(call(client, &line), expected, "{line}");
}

/// The pairs of a reply of names and values in turn.
fn pairs(reply: &Value) -> BTreeMap<String, String> {
    reply.items().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// Compares the hash `h` with the model, in each way of reading it.
fn compare(client: &mut Client, rng: &SeededRng, model: &Model, now_ms: u64) {
    let live = live(model, now_ms);
    let want: BTreeMap<String, String> =
        live.iter().map(|(name, (value, _))| ((*name).clone(), value.clone())).collect();
    let all = call(client, "HGETALL h");
    assert_eq!(all.items().len(), 2 * want.len());
    assert_eq!(pairs(&all), want);
    let Value::Array(scan) = call(client, "HSCAN h 0 COUNT 1000000") else { panic!("a scan") };
    assert_eq!(pairs(&scan[1]), want);
    assert_eq!(call(client, "HVALS h").items().len(), want.len());
    let Value::Int(len) = call(client, "HLEN h") else { panic!("a number") };
    assert!((want.len()..=model.len()).contains(&(len as usize)), "{len}");
    for (name, (value, at)) in model {
        let expected = if live.contains_key(name) { Value::bulk(value) } else { Value::Null };
        assert_eq!(call(client, &format!("HGET h {name}")), expected);
        let code = match (live.contains_key(name), at) {
            (false, _) => -2,
            (true, None) => -1,
            (true, Some(at)) => *at as i64,
        };
        assert_eq!(call(client, &format!("HPEXPIRETIME h FIELDS 1 {name}")), ints(&[code]));
    }
    for count in [rng.below(9) as i64, -(rng.below(9) as i64), 1_000_000] {
        let drawn = call(client, &format!("HRANDFIELD h {count}"));
        let wanted = match count {
            ..0 if want.is_empty() => 0,
            ..0 => count.unsigned_abs() as usize,
            _ => want.len().min(count as usize),
        };
        assert_eq!(drawn.items().len(), wanted);
        let drawn: Vec<String> = drawn.items().iter().map(Value::text).collect();
        assert!(drawn.iter().all(|name| want.contains_key(name)));
        let differ: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert!(count < 0 || differ.len() == drawn.len());
    }
    let one = call(client, "HRANDFIELD h");
    assert_eq!(one == Value::Null, want.is_empty());
}

/// Makes the hash `h` anew out of itself.
fn move_around(client: &mut Client, rng: &SeededRng) {
    match rng.below(4) {
        0 => {
            assert_eq!(call(client, "COPY h other REPLACE"), Value::Int(1));
            assert_eq!(call(client, "RENAME other h"), Value::ok());
        }
        1 => {
            let Value::Bulk(payload) = call(client, "DUMP h") else { return };
            client.send(&[b"RESTORE", b"h", b"0", &payload, b"REPLACE"]);
            assert_eq!(client.read(), Value::ok());
        }
        2 => {
            assert_eq!(call(client, "MOVE h 1"), Value::Int(1));
            call(client, "SELECT 1");
            assert_eq!(call(client, "MOVE h 0"), Value::Int(1));
            call(client, "SELECT 0");
        }
        _ => {
            assert_eq!(call(client, "RENAME h other"), Value::ok());
            assert_eq!(call(client, "RENAME other h"), Value::ok());
        }
    }
}

/// Random changes of small and of large hashes, while time goes on: every way of reading tells what
/// the model holds. The stored collection is sound after each change, and after a restart.
#[test]
fn hashes_are_as_a_model_while_time_goes_on() {
    for seed in 0..6 {
        let rng = SeededRng::new(seed);
        let names = [6, 60, 900][seed as usize % 3];
        let (clock, config) = calendar();
        let directory = tempfile::tempdir().expect("a directory");
        let open = || {
            let mut engine = EngineConfig::new("unused");
            engine.data = directory.path().join("data");
            Engine::open(engine).expect("the engine opens")
        };
        let server = TestServer::around(config, open(), None);
        let mut client = server.client();
        if seed % 2 == 0 {
            // Only readers and writers delete what has expired.
            call(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
        }
        let (mut model, mut now_ms) = (Model::new(), START_MS);
        for round in 0..30 {
            for _ in 0..rng.below(2 * names) {
                change(&mut client, &rng, &mut model, (names, now_ms));
            }
            now_ms += rng.below(20_000) * rng.below(2);
            clock.ms.store(now_ms, Ordering::Relaxed);
            compare(&mut client, &rng, &model, now_ms);
            if round % 3 == 0 && call(&mut client, "EXISTS h") == Value::Int(1) {
                let is_empty = live(&model, now_ms).is_empty();
                if !is_empty {
                    move_around(&mut client, &rng);
                    compare(&mut client, &rng, &model, now_ms);
                }
            }
        }
        drop(client);
        server.end().expect("it ends");
        verify(&open());
    }
}

/// "a hash whose last field expires is removed", however many fields expire at once, and a client
/// that watches the key notices.
#[test]
fn expired_fields_go_in_the_background() {
    let (clock, config) = calendar();
    let server = TestServer::with(config);
    let mut client = server.client();
    for from in (0..20_000).step_by(1000) {
        let mut words = vec!["HSETEX".to_owned(), "h".into(), "PX".into(), "1000".into()];
        words.extend(["FIELDS".into(), "1000".into()]);
        words.extend((from..from + 1000).flat_map(|i| [format!("field{i}"), "value".into()]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(client.call(&words), Value::Int(1));
    }
    assert_eq!(call(&mut client, "HSETEX small EX 1 FIELDS 1 a b"), Value::Int(1));
    assert_eq!(call(&mut client, "HSET h stays here"), Value::Int(1));
    assert_eq!(call(&mut client, "HLEN h"), Value::Int(20_001));
    assert_eq!(call(&mut client, "HRANDFIELD h 2").items().len(), 2);
    let mut watcher = server.client();
    assert_eq!(call(&mut watcher, "WATCH small"), Value::ok());
    assert_eq!(call(&mut watcher, "MULTI"), Value::ok());
    clock.ms.fetch_add(1000, Ordering::Relaxed);
    assert_eq!(call(&mut client, "HGETALL h"), bulks(&["stays", "here"]));
    assert_eq!(call(&mut client, "HRANDFIELD h"), Value::bulk("stays"));
    assert_eq!(call(&mut client, "HGET small a"), Value::Null);
    eventually("the fields are deleted", || call(&mut client, "HLEN h") == Value::Int(1));
    eventually("the hash is deleted", || call(&mut client, "DBSIZE") == Value::Int(1));
    assert_eq!(call(&mut watcher, "EXEC"), Value::Null);
    let info = call(&mut client, "INFO stats").text();
    assert_eq!(field(&info, "expired_subkeys"), 20_001);
    assert_eq!(field(&info, "expired_keys"), 0);
    eventually("the nodes are reclaimed", || server.records("db0.nodes") < 4);
}

/// A number keeps its expiry; a new value drops it.
#[test]
fn numbers_keep_their_expiry_and_new_values_do_not() {
    check(&[
        ("HSETEX h1 EX 10 FIELDS 3 n 5 f 1 s 1", Value::Int(1)),
        ("HINCRBY h1 n 2", Value::Int(7)),
        ("HINCRBYFLOAT h1 f 0.5", Value::bulk("1.5")),
        ("HSET h1 s 2", Value::Int(0)),
        ("HTTL h1 FIELDS 3 n f s", ints(&[10, 10, -1])),
        ("RPUSH l 1", Value::Int(1)),
        ("SORT l BY nosort GET h*->n", bulks(&["7"])),
    ]);
}
