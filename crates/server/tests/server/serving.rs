//! A server that serves while its records are loaded. The load is held, so that clients meet it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::Config as EngineConfig;
use stillpoint_io::{Caching, Clock, Disk, OpenMode, RealClock, SimDisk};

use crate::common::{Client, TestServer, Value, config, eventually, field, opened};
use crate::gate::{GatedDisk, ReadGate};

fn server_on(disk: &SimDisk, gate: &Arc<ReadGate>) -> TestServer {
    let mut engine = EngineConfig::new("simulated");
    engine.serve_while_loading = true;
    engine.checkpoint_every = None;
    let inner: Arc<dyn Disk> = Arc::new(disk.clone());
    engine.environment.disk = Some(Arc::new(GatedDisk(inner, gate.clone())));
    TestServer::around(config(), opened(engine), None)
}

/// A store with a checkpoint, and a log behind it. Two databases were exchanged.
fn filled() -> SimDisk {
    filled_with(true)
}

/// As [`filled`], and each database is at its own place.
fn filled_in_order() -> SimDisk {
    filled_with(false)
}

fn opened_gate() -> Arc<ReadGate> {
    let gate = Arc::<ReadGate>::default();
    gate.open();
    gate
}

fn filled_with(exchanges: bool) -> SimDisk {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, &Arc::default());
    let mut client = server.client();
    for number in 0..200 {
        client.call(&["SET", &format!("key {number}"), &format!("value {number}")]);
    }
    for number in 0..2_000 {
        client.call(&["HSET", "hash", &format!("field {number}"), &"x".repeat(100)]);
    }
    client.call(&["RPUSH", "list", "a", "b", "c"]);
    client.call(&["SET", "short", "lived", "PX", "1"]);
    client.call(&["SELECT", "1"]);
    client.call(&["SET", "other", "database"]);
    if exchanges {
        assert_eq!(client.call(&["SWAPDB", "1", "2"]), Value::ok());
    }
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    client.call(&["SELECT", "0"]);
    client.call(&["APPEND", "key 1", " and more"]);
    client.call(&["DEL", "key 2"]);
    client.call(&["RPUSH", "list", "d"]);
    // The end of a server without a close flushes nothing.
    client.call(&["WAITAOF", "1", "0", "0"]);
    drop(client);
    server.end().expect("it ends");
    disk
}

fn is_loading(client: &mut Client) -> bool {
    field(&client.call(&["INFO", "persistence"]).text(), "async_loading") == 1
}

/// Damages a block of the newest checkpoint.
fn damage(disk: &SimDisk) {
    let directory = Path::new("checkpoint");
    let newest = disk.list(directory).expect("a directory").into_iter().max().expect("one");
    let directory = directory.join(newest);
    let files = disk.list(&directory).expect("a checkpoint");
    let part = files.into_iter().find(|file| file.starts_with("part-")).expect("a part");
    let part = directory.join(part);
    let file = disk.open(&part, OpenMode::ReadWrite, Caching::Buffered).expect("it is there");
    file.write_at(&[0xA5; 64], 4096 + 500).expect("writes");
    file.sync().expect("flushes");
}

/// Whoever fails must not leave the load waiting.
struct Opens(Arc<ReadGate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.release();
        self.0.open();
    }
}

#[test]
fn keys_are_served_while_commands_over_all_keys_wait() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let (mut client, mut counting, mut queued) =
        (server.client(), server.client(), server.client());
    let info = client.call(&["INFO", "persistence"]).text();
    assert_eq!((field(&info, "async_loading"), field(&info, "load_loaded_bytes")), (1, 0));
    counting.send(&[b"DBSIZE"]);
    counting.send(&[b"GET", b"key 5"]);
    for words in [&["MULTI"][..], &["SET", "key 7", "new"], &["DBSIZE"]] {
        queued.call(words);
    }
    queued.send(&[b"EXEC"]);
    assert_eq!(client.call(&["GET", "key 0"]), Value::bulk("value 0"));
    assert_eq!(client.call(&["GET", "key 1"]), Value::bulk("value 1 and more"));
    assert_eq!(client.call(&["GET", "key 2"]), Value::Null);
    assert_eq!(client.call(&["GET", "short"]), Value::Null, "it has expired");
    assert_eq!(client.call(&["SETNX", "key 3", "new"]).int(), 0);
    assert_eq!(client.call(&["SETNX", "key 2", "new"]).int(), 1);
    assert_eq!(client.call(&["DEL", "key 4", "nothing"]).int(), 1);
    assert_eq!(client.call(&["DEL", "key 4"]).int(), 0);
    assert_eq!(client.call(&["HGET", "hash", "field 1234"]), Value::bulk(&"x".repeat(100)));
    assert_eq!(client.call(&["HLEN", "hash"]).int(), 2_000);
    assert_eq!(client.call(&["HDEL", "hash", "field 1"]).int(), 1);
    let list: Vec<Value> = ["a", "b", "c", "d"].iter().map(|text| Value::bulk(text)).collect();
    assert_eq!(client.call(&["LRANGE", "list", "0", "-1"]), Value::Array(list));
    client.call(&["SELECT", "2"]);
    assert_eq!(client.call(&["GET", "other"]), Value::bulk("database"), "databases stay swapped");
    client.call(&["SELECT", "0"]);
    let info = client.call(&["INFO", "persistence"]).text();
    assert_eq!(field(&info, "async_loading"), 1);
    assert!(field(&info, "load_keys_asked") >= 2 && field(&info, "load_blocks_read") >= 2);
    assert!(!counting.has_reply() && !queued.has_reply(), "not all keys are known");
    gate.open();
    // 200 keys less one, hash and list; one more that expires, unless a read has deleted it.
    let count = counting.read().int();
    assert!((201..=202).contains(&count), "{count} keys");
    assert_eq!(counting.read(), Value::bulk("value 5"), "replies keep their order");
    assert_eq!(queued.read().items()[1].int(), count);
    eventually("everything is loaded", || {
        field(&client.call(&["INFO", "persistence"]).text(), "async_loading") == 0
    });
    assert_eq!(client.call(&["GET", "key 4"]), Value::Null, "the load has brought it back");
    assert_eq!(client.call(&["GET", "key 7"]), Value::bulk("new"));
    assert_eq!(client.call(&["HLEN", "hash"]).int(), 1_999);
    assert_eq!(client.call(&["SAVE"]), Value::ok());
}

#[test]
fn a_client_that_waits_for_the_disk_holds_up_nobody() {
    // The places of exchanged databases would be read, and with them other records of their block.
    let disk = filled_in_order();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let (mut waiting, mut exec) = (server.client(), server.client());
    // The log alone has it. From then on it is in memory.
    assert_eq!(waiting.call(&["GET", "key 2"]), Value::Null);
    // Threads for long commands read the disk, and event loops do not.
    gate.hold("long-");
    waiting.send(&[b"GET", b"key 5"]);
    waiting.send(&[b"SET", b"key 5", b"new"]);
    waiting.send(&[b"GET", b"key 5"]);
    waiting.send(&[b"PING"]);
    for words in [&["MULTI"][..], &["APPEND", "key 6", "!"], &["GET", "key 6"]] {
        exec.call(words);
    }
    exec.send(&[b"EXEC"]);
    gate.await_held(1);
    // More clients than there are event loops, so each loop has one at least.
    for number in 0..4 {
        let mut client = server.client();
        assert_eq!(client.call(&["PING"]), Value::Simple("PONG".to_owned()));
        assert_eq!(client.call(&["GET", "key 2"]), Value::Null);
        let mine = format!("mine {number}");
        assert_eq!(client.call(&["SET", &mine, "value"]), Value::ok());
        assert_eq!(client.call(&["INCR", &format!("count {number}")]).int(), 1);
    }
    assert!(!waiting.has_reply() && !exec.has_reply(), "the record was read");
    gate.release();
    assert_eq!(waiting.read(), Value::bulk("value 5"), "replies keep their order");
    assert_eq!(waiting.read(), Value::ok());
    assert_eq!(waiting.read(), Value::bulk("new"));
    assert_eq!(waiting.read(), Value::Simple("PONG".to_owned()));
    let replies = exec.read();
    assert_eq!(replies.items()[0].int(), "value 6!".len() as i64);
    assert_eq!(replies.items()[1], Value::bulk("value 6!"));
    // A group of calls that meets a node on its way.
    for number in 0..3 {
        let field = format!("field {}", 700 * number);
        waiting.send(&[b"HGET", b"hash", field.as_bytes()]);
    }
    for _ in 0..3 {
        assert_eq!(waiting.read(), Value::bulk(&"x".repeat(100)));
    }
    let stats = waiting.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_hget:calls=3,"), "a call counts once: {stats}");
}

/// A command that walks through a large collection on the disk holds no lock while it reads. So nobody waits
/// for it but who needs the same records.
#[test]
fn a_walk_through_a_collection_holds_up_nobody() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let mut walks = [server.client(), server.client()];
    let (mut writer, mut exec) = (server.client(), server.client());
    let mut client = server.client();
    // The record of the key is in memory, and the nodes are not.
    assert_eq!(client.call(&["HLEN", "hash"]).int(), 2_000);
    gate.hold("long-");
    for walk in &mut walks {
        walk.send(&[b"HGETALL", b"hash"]);
    }
    gate.await_held(1);
    writer.send(&[b"HSET", b"hash", b"field 1", b"new"]);
    writer.send(&[b"PING"]);
    // More clients than there are event loops, so each loop has one at least.
    for number in 0..4 {
        let mut client = server.client();
        assert_eq!(client.call(&["EXPIRE", "hash", "1000"]).int(), 1, "the lock is free");
        assert_eq!(client.call(&["HLEN", "hash"]).int(), 2_000);
        assert_eq!(client.call(&["SET", "mine", &format!("{number}")]), Value::ok());
    }
    client.call(&["SELECT", "1"]);
    assert_eq!(client.call(&["FLUSHDB"]), Value::ok());
    assert_eq!(client.call(&["SWAPDB", "3", "4"]), Value::ok());
    // Keys in memory need no disk, also in a transaction.
    for words in [&["MULTI"][..], &["APPEND", "mine", "!"], &["SELECT", "1"], &["GET", "mine"]] {
        exec.call(words);
    }
    let replies = exec.call(&["EXEC"]);
    assert_eq!(replies.items()[0].int(), 2);
    assert_eq!(replies.items()[2], Value::Null);
    assert!(walks.iter_mut().all(|walk| !walk.has_reply()) && !writer.has_reply());
    gate.release();
    for walk in &mut walks {
        let all = walk.read();
        assert_eq!(all.items().len(), 4_000);
    }
    assert_eq!(writer.read().int(), 0, "the field was there");
    assert_eq!(writer.read(), Value::Simple("PONG".to_owned()), "replies keep their order");
    assert_eq!(writer.call(&["HGET", "hash", "field 1"]), Value::bulk("new"));
    let stats = writer.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_hgetall:calls=2,"), "a call counts once: {stats}");
    assert!(stats.contains("cmdstat_append:calls=1,"), "a call counts once: {stats}");
}

/// A transaction that misses records on its way runs again as a whole, in the database that it began in.
#[test]
fn a_transaction_runs_again_from_its_begin() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let mut client = server.client();
    let mine = &["HSET", "hash", "field 3", "mine"][..];
    let requests = [&["MULTI"][..], mine, &["SELECT", "1"], &["HGET", "hash", "field 5"]];
    requests.iter().for_each(|words| drop(client.call(words)));
    let replies = client.call(&["EXEC"]);
    assert_eq!(replies.items()[0].int(), 0, "the field was there");
    assert_eq!(replies.items()[2], Value::Null, "in the other database");
    assert_eq!(client.call(&["HGET", "hash", "field 3"]), Value::Null);
    client.call(&["SELECT", "0"]);
    assert_eq!(client.call(&["HGET", "hash", "field 3"]), Value::bulk("mine"));
    let stats = client.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_hset:calls=1,"), "a call counts once: {stats}");
}

/// A client that `CLIENT UNBLOCK` has chosen waits no longer in the next run of the queue.
#[test]
fn a_transaction_that_runs_again_unblocks_once() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let (mut client, mut waiting) = (server.client(), server.client());
    let id = waiting.call(&["CLIENT", "ID"]).int().to_string();
    waiting.send(&[b"BLPOP", b"nothing", b"0"]);
    eventually("it waits", || {
        field(&client.call(&["INFO", "clients"]).text(), "blocked_clients") == 1
    });
    let unblock = &["CLIENT", "UNBLOCK", &id][..];
    let requests = [&["MULTI"][..], unblock, unblock, &["HSET", "hash", "field 3", "mine"]];
    requests.iter().for_each(|words| drop(client.call(words)));
    let replies: Vec<i64> = client.call(&["EXEC"]).items().iter().map(Value::int).collect();
    assert_eq!(replies, [1, 0, 0]);
    assert_eq!(waiting.read(), Value::Null);
}

#[test]
fn watched_keys_and_waiting_clients_need_no_whole_load() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let (mut client, mut other, mut waiting) = (server.client(), server.client(), server.client());
    let exec = |client: &mut Client| {
        client.call(&["MULTI"]);
        client.call(&["SET", "done", "yes"]);
        client.call(&["EXEC"])
    };
    client.call(&["WATCH", "key 20", "key 21", "nothing"]);
    assert_eq!(exec(&mut client).items().len(), 1, "nobody has changed them");
    client.call(&["WATCH", "key 20"]);
    other.call(&["DEL", "key 20"]);
    other.call(&["SET", "key 20", "value 20"]);
    assert_eq!(exec(&mut client), Value::Null, "it was made anew");
    client.call(&["WATCH", "key 22"]);
    client.call(&["WATCH", "key 2"]);
    other.call(&["SET", "key 2", "made"]);
    assert_eq!(exec(&mut client), Value::Null, "the missing key was made");
    waiting.send(&[b"BLPOP", b"list", b"0"]);
    assert_eq!(waiting.read().items()[1], Value::bulk("a"));
    waiting.send(&[b"BLPOP", b"nothing", b"0"]);
    other.call(&["RPUSH", "nothing", "something"]);
    assert_eq!(waiting.read().items()[1], Value::bulk("something"));
    client.call(&["WATCH", "key 23"]);
    assert_eq!(other.call(&["FLUSHALL"]), Value::ok());
    assert_eq!(exec(&mut client), Value::Null, "it was removed");
    assert_eq!(other.call(&["GET", "key 24"]), Value::Null);
}

#[test]
fn keys_that_follow_from_others_are_loaded_too() {
    let disk = SimDisk::new(1);
    let server = server_on(&disk, &opened_gate());
    let mut client = server.client();
    for number in 0..40 {
        client.call(&["RPUSH", "numbers", &format!("{number}")]);
        client.call(&["SET", &format!("weight {number}"), &format!("{}", 100 - number)]);
        client.call(&["HSET", &format!("hash {number}"), "name", &format!("name {number}")]);
    }
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    drop(client);
    server.end().expect("it ends");
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let mut client = server.client();
    let sort = ["SORT", "numbers", "BY", "weight *", "GET", "hash *->name", "GET", "#"];
    let sorted = client.call(&sort);
    let expected: Vec<Value> = (0..40)
        .rev()
        .flat_map(|number| [format!("name {number}"), format!("{number}")])
        .map(|text| Value::bulk(&text))
        .collect();
    assert_eq!(sorted, Value::Array(expected));
}

/// A large collection that is deleted while its nodes are on the disk leaves a grave. After a crash during
/// the load, all nodes go.
#[test]
fn nodes_of_a_deleted_collection_go_after_a_crash_during_the_load() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    {
        let _opens = Opens(gate.clone());
        let mut client = server.client();
        assert_eq!(client.call(&["DEL", "hash"]).int(), 1);
        assert_eq!(client.call(&["EXISTS", "hash"]).int(), 0);
        client.call(&["WAITAOF", "1", "0", "0"]);
        assert!(is_loading(&mut client));
    }
    server.end().expect("it ends");
    let server = server_on(&disk.crash(3), &opened_gate());
    let mut client = server.client();
    assert_eq!(client.call(&["EXISTS", "hash"]).int(), 0);
    eventually("its nodes go", || {
        server.records("db0.nodes") == 0 && server.records("graves") == 0
    });
    assert_eq!(client.call(&["HSET", "hash", "field 1", "new"]).int(), 1);
    assert_eq!(client.call(&["HLEN", "hash"]).int(), 1);
}

/// Expired keys go while the load stands still, although nobody reads them.
#[test]
fn keys_expire_while_the_load_stands_still() {
    // The places of exchanged databases would be read, and with them perhaps a key that has expired.
    let disk = filled_in_order();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let mut client = server.client();
    let before = server.records("db0");
    for number in 0..50 {
        client.call(&["SET", &format!("mortal {number}"), "value", "PX", "20"]);
    }
    client.call(&["SET", "immortal", "value"]);
    eventually("they expire", || server.records("db0") == before + 1);
    let expired = field(&client.call(&["INFO", "stats"]).text(), "expired_keys");
    assert_eq!(expired, 50);
    assert!(is_loading(&mut client));
}

/// A flush of all databases ends the load at once, although a read stands still.
#[test]
fn a_flush_of_all_ends_the_load() {
    // In the second store databases are exchanged.
    for disk in [filled_in_order(), filled()] {
        flush_ends_the_load(&disk);
    }
}

fn flush_ends_the_load(disk: &SimDisk) {
    let gate = Arc::<ReadGate>::default();
    let server = server_on(disk, &gate);
    let opens = Opens(gate.clone());
    let mut client = server.client();
    assert_eq!(client.call(&["DEL", "hash"]).int(), 1, "it leaves a grave");
    assert_eq!(client.call(&["FLUSHALL"]), Value::ok());
    eventually("the load ends", || !is_loading(&mut client));
    client.call(&["SELECT", "1"]);
    client.call(&["SET", "key 10", "new"]);
    assert_eq!(client.call(&["DBSIZE"]).int(), 1);
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    drop((client, opens));
    server.end().expect("it ends");
    let server = server_on(&disk.crash(3), &opened_gate());
    let mut client = server.client();
    client.call(&["SELECT", "1"]);
    assert_eq!(client.call(&["GET", "key 10"]), Value::bulk("new"));
    assert_eq!(client.call(&["INFO", "keyspace"]).text().matches("keys=").count(), 1);
}

#[test]
fn a_flush_cancels_what_is_still_to_load() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let mut client = server.client();
    assert_eq!(client.call(&["GET", "key 9"]), Value::bulk("value 9"));
    // A part of the load comes before the flush.
    gate.let_pass(1);
    assert_eq!(client.call(&["FLUSHALL"]), Value::ok());
    assert_eq!(client.call(&["GET", "key 9"]), Value::Null);
    assert_eq!(client.call(&["GET", "key 10"]), Value::Null);
    client.call(&["SET", "key 10", "new"]);
    gate.open();
    assert_eq!(client.call(&["DBSIZE"]).int(), 1);
    assert_eq!(client.call(&["GET", "key 10"]), Value::bulk("new"));
}

#[test]
fn a_save_of_changes_waits_for_no_load() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let opens = Opens(gate.clone());
    let mut client = server.client();
    client.call(&["SET", "key 3", "new"]);
    assert_eq!(client.call(&["SAVE"]), Value::ok());
    assert!(is_loading(&mut client), "it has waited for the load");
    client.call(&["SET", "key 4", "newer"]);
    client.call(&["WAITAOF", "1", "0", "0"]);
    drop((client, opens));
    server.end().expect("it ends");
    let server = server_on(&disk, &opened_gate());
    let mut client = server.client();
    for (key, value) in [("key 1", "value 1 and more"), ("key 3", "new"), ("key 4", "newer")] {
        assert_eq!(client.call(&["GET", key]), Value::bulk(value));
    }
    assert_eq!(client.call(&["EXISTS", "key 2"]).int(), 0);
    assert_eq!(client.call(&["LLEN", "list"]).int(), 4);
}

#[test]
fn a_full_save_that_was_asked_for_comes_after_the_load() {
    let disk = filled();
    let gate = Arc::<ReadGate>::default();
    let server = server_on(&disk, &gate);
    let _opens = Opens(gate.clone());
    let (mut client, mut saving) = (server.client(), server.client());
    let saves =
        |client: &mut Client| field(&client.call(&["INFO", "persistence"]).text(), "rdb_saves");
    saving.send(&[b"SAVE", b"FULL"]);
    // Longer than the thread of checkpoints waits between two looks.
    RealClock.sleep(Duration::from_millis(200));
    assert!(saves(&mut client) == 0 && !saving.has_reply(), "a record would be missing");
    let busy = client.call(&["BGSAVE"]);
    assert_eq!(busy, Value::Error("ERR Background save already in progress".to_owned()));
    gate.open();
    assert_eq!(saving.read(), Value::ok());
    assert_eq!(saves(&mut client), 1);
}

#[test]
fn a_load_that_stops_is_told() {
    // Places of exchanged databases may lie in the damaged block. Then the server does not start.
    let disk = filled_in_order();
    damage(&disk);
    let gate = Arc::<ReadGate>::default();
    gate.open();
    let server = server_on(&disk, &gate);
    let mut client = server.client();
    eventually("the damage is found", || {
        client.call(&["INFO", "persistence"]).text().contains("is damaged")
    });
    for words in [&["SAVE"][..], &["BGSAVE"], &["DBSIZE"], &["KEYS", "*"]] {
        let reply = client.call(words).text();
        assert!(reply.contains("not all loaded"), "{words:?}: {reply}");
    }
    let unreadable = (0..200).filter(|number| {
        let reply = client.call(&["GET", &format!("key {number}")]);
        matches!(reply, Value::Error(text) if text.contains("damaged"))
    });
    let unreadable = unreadable.count();
    assert!((1..200).contains(&unreadable), "{unreadable} keys cannot be read");
    assert_eq!(client.call(&["SET", "another", "key"]), Value::ok());
    // Keys go on to expire.
    client.call(&["SET", "mortal", "value", "PX", "20"]);
    let before = field(&client.call(&["INFO", "stats"]).text(), "expired_keys");
    eventually("it expires", || {
        field(&client.call(&["INFO", "stats"]).text(), "expired_keys") > before
    });
}

/// Once everything that a damaged checkpoint has was removed, the server is as any other.
#[test]
fn a_flush_of_all_heals_a_load_that_has_stopped() {
    let disk = filled_in_order();
    damage(&disk);
    let server = server_on(&disk, &opened_gate());
    let mut client = server.client();
    eventually("the damage is found", || {
        client.call(&["INFO", "persistence"]).text().contains("is damaged")
    });
    assert_eq!(client.call(&["FLUSHALL"]), Value::ok());
    assert!(!is_loading(&mut client));
    assert!(!client.call(&["INFO", "persistence"]).text().contains("is damaged"));
    client.call(&["SET", "key 10", "new"]);
    assert_eq!(client.call(&["DBSIZE"]).int(), 1);
    assert_eq!(client.call(&["SAVE"]), Value::ok());
}
