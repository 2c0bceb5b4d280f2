//! Tests of unread replies: the memory that they may hold, and the choice of the client to
//! disconnect.

use std::time::Duration;

use stillpoint_io::{Clock, RealClock};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field};

/// Sends requests from a thread while nothing is read.
fn send_all(mut client: Client, bytes: Vec<u8>) -> Client {
    client.write_timeout(Duration::from_secs(20));
    client.send_whole(&bytes);
    client
}

#[test]
fn a_pipeline_is_answered_that_is_written_before_it_is_read() {
    let server = TestServer::start();
    let mut c = server.client();
    let value = "x".repeat(100);
    c.call(&["SET", "k", &value]);
    let count = 600_000;
    let c = send_all(c, encode(&[b"GET", b"k"]).repeat(count));
    let expected = format!("$100\r\n{value}\r\n");
    let replies = c.read_bytes(count * expected.len());
    assert!(replies.chunks(expected.len()).all(|reply| reply == expected.as_bytes()));
}

#[test]
fn a_round_stops_when_its_client_has_enough_to_take() {
    let mut config = config();
    config.output_buffer_bytes = 16 << 20;
    let server = TestServer::with(config);
    let (mut c, mut witness) = (server.client(), server.client());
    let value = "x".repeat(1 << 20);
    c.call(&["SET", "big", &value]);
    // Requests of every kind between the large ones; order and effect are those of a client that
    // waits for each reply.
    let mut requests = Vec::new();
    for i in 0..60 {
        requests.extend(encode(&[b"GET", b"big"]).repeat(4));
        requests.extend_from_slice(b"INCR \"n\\x41\"\r\n\r\n");
        if i % 10 == 0 {
            requests.extend(encode(&[b"MULTI"]));
            requests.extend(encode(&[b"INCR", b"m"]));
            requests.extend(encode(&[b"GET", b"big"]));
            requests.extend(encode(&[b"EXEC"]));
            requests.extend(encode(&[b"CLIENT", b"REPLY", b"SKIP"]));
            requests.extend(encode(&[b"INCR", b"m"]));
        }
        requests.extend(encode(&[b"DBSIZE"]));
    }
    let mut c = send_all(c, requests);
    for _ in 0..20 {
        let held = field(&witness.call(&["INFO", "memory"]).text(), "mem_clients_normal");
        assert!(held < 12 << 20, "{held} bytes for clients");
        RealClock.sleep(Duration::from_millis(5));
    }
    let big = || Value::bulk(&value);
    let mut m = 0;
    for i in 0..60 {
        for _ in 0..4 {
            assert!(c.read() == big(), "round {i}");
        }
        assert_eq!(c.read(), Value::Int(i + 1));
        if i % 10 == 0 {
            assert_eq!(c.read(), Value::ok());
            assert_eq!(c.read(), Value::Simple("QUEUED".to_owned()));
            assert_eq!(c.read(), Value::Simple("QUEUED".to_owned()));
            m += 1;
            assert!(c.read() == Value::Array(vec![Value::Int(m), big()]));
            m += 1;
        }
        assert_eq!(c.read(), Value::Int(3), "round {i}");
    }
    assert_eq!(c.call(&["GET", "nA"]), Value::bulk("60"));
}

#[test]
fn clients_that_read_nothing_share_half_of_the_limit() {
    let mut config = config();
    config.output_buffer_bytes = 32 << 20;
    config.client_memory_bytes = Some(64 << 20);
    let server = TestServer::with(config);
    let mut witness = server.client();
    witness.call(&["SET", "big", &"x".repeat(1 << 20)]);
    let mut uploader = server.client();
    let value = "y".repeat(300 << 10);
    let hogs: Vec<Client> =
        (0..8).map(|_| send_all(server.client(), encode(&[b"GET", b"big"]).repeat(90))).collect();
    for i in 0..30 {
        // Clients with buffers of their own, old and new, are served throughout.
        assert_eq!(uploader.call(&["SET", "u", &value]), Value::ok(), "round {i}");
        assert_eq!(server.client().call(&["SET", "v", &value]), Value::ok(), "round {i}");
    }
    // A client may exceed its share by the work of one round and by one reply.
    let held = |c: &mut Client| field(&c.call(&["INFO", "memory"]).text(), "mem_clients_normal");
    assert!(held(&mut witness) < 56 << 20, "{} bytes", held(&mut witness));
    let evicted = field(&witness.call(&["INFO", "stats"]).text(), "evicted_clients");
    assert_eq!(evicted, 0, "nobody has to go");
    // A client that reads at last gets all replies.
    for hog in hogs {
        let expected = 90 * ("$1048576\r\n\r\n".len() + (1 << 20));
        assert_eq!(hog.read_bytes(expected).len(), expected);
    }
    eventually("the memory is given back", || held(&mut witness) < 2 << 20);
}

#[test]
fn a_client_has_its_turn_between_the_large_replies_of_others() {
    let mut config = config();
    config.threads = 1;
    let server = TestServer::with(config);
    let mut witness = server.client();
    witness.call(&["SET", "big", &"x".repeat(4 << 20)]);
    let hogs: Vec<Client> =
        (0..4).map(|_| send_all(server.client(), encode(&[b"GET", b"big"]).repeat(100))).collect();
    // Each reply to this client comes after a few replies to the others at most.
    let calls = |info: &str| -> u64 {
        let at = info.find("cmdstat_get:calls=").map_or("", |at| &info[at + 18..]);
        at.split(',').next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let mut before = calls(&witness.call(&["INFO", "commandstats"]).text());
    for i in 0..20 {
        let now = calls(&witness.call(&["INFO", "commandstats"]).text());
        assert!(now - before <= 8, "call {i} waited for {} large replies", now - before);
        before = now;
    }
    drop(hogs);
}

/// GETs that the server has run.
fn gets(client: &mut Client) -> u64 {
    let info = client.call(&["INFO", "commandstats"]).text();
    let at = info.find("cmdstat_get:calls=").map_or("", |at| &info[at + 18..]);
    at.split(',').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn who_asks_little_goes_before_who_was_served_much() {
    let mut config = config();
    config.threads = 1;
    let server = TestServer::with(config);
    let (mut c, mut counter) = (server.client(), server.client());
    c.call(&["SET", "big", &"x".repeat(512 << 10)]);
    c.call(&["SET", "small", "here"]);
    let hogs: Vec<_> = (0..6)
        .map(|_| {
            let mut hog = server.client();
            let run = move || {
                hog.send_whole(&encode(&[b"GET", b"big"]).repeat(300));
                hog.read_bytes(300 * ("$524288\r\n\r\n".len() + (512 << 10))).len()
            };
            stillpoint_io::spawn("hog", run).expect("a thread")
        })
        .collect();
    eventually("the large replies have begun", || gets(&mut counter) > 6);
    let mut worst = 0;
    for _ in 0..30 {
        let before = gets(&mut counter);
        assert_eq!(c.call(&["GET", "small"]), Value::bulk("here"));
        // Requests of this client, and requests between the two counts.
        worst = worst.max(gets(&mut counter) - before);
    }
    // This thread may lose its processor between two counts. A starving client waits for most of
    // 1,800 requests.
    assert!(worst <= 600, "a small request waited for {worst} others");
    for hog in hogs {
        hog.join().expect("a client with all its replies");
    }
}

/// A command whose reply does not fit takes nothing: what nobody has seen is still there.
#[test]
fn a_command_whose_reply_does_not_fit_changes_nothing() {
    let mut config = config();
    config.output_buffer_bytes = 1 << 20;
    let server = TestServer::with(config);
    let mut c = server.client();
    let half = "x".repeat(600 << 10);
    let ends = |requests: &[&[&str]]| {
        let mut c = server.client();
        let encoded =
            |words: &&[&str]| encode(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        // The server meets all of them in one pass.
        c.send_raw(&requests.iter().flat_map(encoded).collect::<Vec<u8>>());
        let queued = requests.len() - 1;
        for _ in 0..queued {
            let reply = c.read();
            assert!(matches!(reply, Value::Simple(_)), "{requests:?}: {reply:?}");
        }
        assert!(c.is_closed(), "{:?}", requests[queued]);
    };
    let (one, two) = (format!("1{half}"), format!("2{half}"));
    c.call(&["RPUSH", "list", &one, &two]);
    c.call(&["SADD", "set", &one, &two]);
    c.call(&["ZADD", "sorted", "1", &one, "2", &two]);
    c.call(&["HSET", "hash", "a", &one, "b", &two]);
    c.call(&["SET", "string", &half]);
    c.call(&["APPEND", "string", &half]);
    ends(&[&["LPOP", "list", "2"]]);
    ends(&[&["RPOP", "list", "2"]]);
    ends(&[&["LMPOP", "1", "list", "LEFT", "COUNT", "2"]]);
    ends(&[&["BLMPOP", "0", "1", "list", "LEFT", "COUNT", "2"]]);
    ends(&[&["SPOP", "set", "2"]]);
    ends(&[&["ZPOPMIN", "sorted", "2"]]);
    ends(&[&["ZMPOP", "1", "sorted", "MIN", "COUNT", "2"]]);
    ends(&[&["HGETDEL", "hash", "FIELDS", "2", "a", "b"]]);
    ends(&[&["GETDEL", "string"]]);
    ends(&[&["SET", "string", "new", "GET"]]);
    // Two commands whose replies fit one by one, in one transaction.
    ends(&[&["MULTI"], &["SET", "other", "x"], &["LPOP", "list"], &["LPOP", "list"], &["EXEC"]]);
    // `KEYS` makes `EXEC` a transaction that runs alone, and `FLUSHDB` one over whole databases.
    let keys: &[&str] = &["KEYS", "*"];
    ends(&[&["MULTI"], &["LPOP", "list"], &["LPOP", "list"], keys, &["EXEC"]]);
    let flush: &[&str] = &["FLUSHDB"];
    ends(&[&["MULTI"], &["LPOP", "list"], &["LPOP", "list"], flush, &["SET", "k", "v"], &["EXEC"]]);
    assert_eq!(c.call(&["LLEN", "list"]), Value::Int(2));
    assert_eq!(c.call(&["SCARD", "set"]), Value::Int(2));
    assert_eq!(c.call(&["ZCARD", "sorted"]), Value::Int(2));
    assert_eq!(c.call(&["HLEN", "hash"]), Value::Int(2));
    assert_eq!(c.call(&["STRLEN", "string"]), Value::Int(1200 << 10));
    assert_eq!(c.call(&["EXISTS", "other", "k"]), Value::Int(0));
}
