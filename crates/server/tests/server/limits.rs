//! Tests of limits with hostile and careless clients.

use std::time::Duration;

use stillpoint_io::{Clock, RealClock, Rng, SeededRng};

use crate::common::{Client, TestServer, Value, config, encode, eventually, field};

#[test]
fn before_authentication_little_is_taken() {
    let mut config = config();
    config.requirepass = Some("secret".to_owned());
    let server = TestServer::with(config);
    let mut c = server.client();
    assert_eq!(c.call(&["GET", "k"]).text(), "NOAUTH Authentication required.");
    assert_eq!(c.call(&["NOSUCH"]).text(), "NOAUTH Authentication required.");
    assert_eq!(
        c.call(&["AUTH", "wrong"]).text(),
        "WRONGPASS invalid username-password pair or user is disabled."
    );
    c.send_raw(b"*11\r\n");
    assert_eq!(c.read().text(), "ERR Protocol error: unauthenticated multibulk length");
    assert!(c.is_closed());
    let mut c = server.client();
    c.send_raw(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    assert_eq!(c.read().text(), "ERR Protocol error: unauthenticated bulk length");
    let mut c = server.client();
    assert_eq!(c.call(&["AUTH", "secret"]), Value::ok());
    assert_eq!(c.call(&["SET", "k", &"x".repeat(20_000)]), Value::ok());
    let mut c = server.client();
    let hello = c.call(&["HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"]);
    assert!(matches!(hello, Value::Map(_)), "{hello:?}");
    assert_eq!(c.call(&["CLIENT", "GETNAME"]), Value::bulk("me"));
}

#[test]
fn random_bytes_get_an_error_or_a_closed_connection_and_harm_nobody() {
    let server = TestServer::start();
    let mut witness = server.client();
    witness.call(&["SET", "k", "v"]);
    for seed in 0..200 {
        let rng = SeededRng::new(seed);
        let mut c = server.client();
        let mut bytes = Vec::new();
        for _ in 0..rng.below(60) {
            match rng.below(6) {
                0 => bytes.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
                1 => bytes.extend_from_slice(format!("*{}\r\n", rng.next_u64() as i32).as_bytes()),
                2 => bytes.extend_from_slice(format!("${}\r\n", rng.below(50)).as_bytes()),
                3 => bytes.extend_from_slice(b"\r\n"),
                _ => bytes.push(rng.next_u64() as u8),
            }
        }
        c.send_raw(&bytes);
        c.send_raw(b"\r\nQUIT\r\n");
        // The server must not panic, and must serve the witness. The client's own replies do not
        // matter.
        drop(c);
        assert_eq!(witness.call(&["GET", "k"]), Value::bulk("v"), "seed {seed}");
    }
}

#[test]
fn an_unfinished_request_may_not_grow_for_ever() {
    let mut config = config();
    config.query_buffer_bytes = 1 << 20;
    let server = TestServer::with(config);
    let mut c = server.client();
    c.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000000\r\n");
    let chunk = vec![b'x'; 64 << 10];
    for _ in 0..40 {
        c.send_raw(&chunk);
    }
    assert!(c.is_closed());
    assert_eq!(server.client().call(&["GET", "k"]), Value::Null);
}

#[test]
fn a_client_that_does_not_read_is_held_back_and_then_dropped() {
    let mut config = config();
    config.slow_reader_s = 1;
    config.output_buffer_bytes = 16 << 20;
    let server = TestServer::with(config);
    let mut slow = server.client();
    let mut other = server.client();
    other.call(&["SET", "big", &"x".repeat(1 << 20)]);
    let request = encode(&[b"GET", b"big"]);
    for _ in 0..64 {
        slow.send_raw(&request);
    }
    // The replies wait in bounded memory.
    let info = other.call(&["INFO", "memory"]).text();
    let clients: u64 = field(&info, "mem_clients_normal");
    assert!(clients < 16 << 20, "{clients} bytes for clients");
    eventually("the slow reader is dropped", || {
        field(&other.call(&["INFO", "stats"]).text(), "client_output_buffer_limit_disconnections")
            > 0
    });
    assert_eq!(other.call(&["PING"]).text(), "PONG");
}

#[test]
fn a_reply_beyond_the_limit_ends_the_connection() {
    let mut config = config();
    config.output_buffer_bytes = 4 << 20;
    let server = TestServer::with(config);
    let mut c = server.client();
    c.call(&["SET", "big", &"x".repeat(1 << 20)]);
    let mut mget = vec!["MGET"];
    mget.extend(vec!["big"; 20]);
    c.send(&mget.iter().map(|w| w.as_bytes()).collect::<Vec<_>>());
    while !c.is_closed() {
        c.skip_buffered();
    }
    assert_eq!(server.client().call(&["PING"]).text(), "PONG");
}

#[test]
fn too_many_clients_and_idle_clients_are_turned_away() {
    let mut config = config();
    config.maxclients = 3;
    config.timeout_s = 1;
    let server = TestServer::with(config);
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for c in &mut clients {
        assert_eq!(c.call(&["PING"]).text(), "PONG");
    }
    let mut refused = server.client();
    assert_eq!(refused.read().text(), "ERR max number of clients reached");
    assert!(refused.is_closed());
    assert!(clients[0].is_closed(), "an idle client is disconnected");
    eventually("room is made", || server.client().call(&["PING"]).text() == "PONG");
}

#[test]
fn clients_can_be_paused_killed_and_made_silent() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let id = b.call(&["CLIENT", "ID"]).int().to_string();
    b.call(&["CLIENT", "SETNAME", "victim"]);
    let list = a.call(&["CLIENT", "LIST"]).text();
    assert!(list.contains("name=victim") && list.lines().count() == 2, "{list}");
    assert_eq!(a.call(&["CLIENT", "KILL", "ID", &id]), Value::Int(1));
    assert!(b.is_closed());
    let mut b = server.client();
    b.send(&[b"CLIENT", b"REPLY", b"OFF"]);
    b.send(&[b"SET", b"k", b"1"]);
    b.send(&[b"CLIENT", b"REPLY", b"ON"]);
    assert_eq!(b.read(), Value::ok());
    b.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    b.send(&[b"INCR", b"k"]);
    assert_eq!(b.call(&["GET", "k"]), Value::bulk("2"));
    // As in Redis, the reply to RESET can be skipped; RESET ends OFF.
    b.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    b.send(&[b"RESET"]);
    assert_eq!(b.call(&["GET", "k"]), Value::bulk("2"));
    b.send(&[b"CLIENT", b"REPLY", b"OFF"]);
    assert_eq!(b.call(&["RESET"]).text(), "RESET");
    a.call(&["CLIENT", "PAUSE", "300", "WRITE"]);
    let start = RealClock.monotonic_ns();
    assert_eq!(b.call(&["GET", "k"]), Value::bulk("2"));
    b.call(&["SET", "k", "3"]);
    let waited = Duration::from_nanos(RealClock.monotonic_ns() - start);
    assert!(waited >= Duration::from_millis(250), "{waited:?}");
}

#[test]
fn shutdown_drains() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "big", &"x".repeat(1 << 20)]);
    for _ in 0..8 {
        c.send(&[b"GET", b"big"]);
    }
    c.send(&[b"SHUTDOWN"]);
    for _ in 0..8 {
        assert!(matches!(c.read(), Value::Bulk(bytes) if bytes.len() == 1 << 20));
    }
    assert!(c.is_closed());
    server.end().expect("a clean end");
}

/// The replies before a command that waits are those of commands that have committed.
#[test]
fn shutdown_drains_a_client_whose_last_command_waits() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "big", &"x".repeat(1 << 20)]);
    for _ in 0..24 {
        c.send(&[b"GET", b"big"]);
    }
    c.send(&[b"BLPOP", b"none", b"0"]);
    let mut admin = server.client();
    eventually("the client waits", || {
        field(&admin.call(&["INFO", "clients"]).text(), "blocked_clients") == 1
    });
    admin.send(&[b"SHUTDOWN"]);
    for _ in 0..24 {
        assert!(matches!(c.read(), Value::Bulk(bytes) if bytes.len() == 1 << 20));
    }
    assert!(c.is_closed());
    server.end().expect("a clean end");
}

/// What a client sends after the answer to the kill does not run.
#[test]
fn a_killed_client_runs_nothing_more() {
    let server = TestServer::start();
    let mut admin = server.client();
    for _ in 0..20 {
        let mut victim = server.client();
        let id = victim.call(&["CLIENT", "ID"]);
        let Value::Int(id) = id else { panic!("{id:?}") };
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id.to_string()]), Value::Int(1));
        victim.send(&[b"SET", b"after", b"1"]);
        assert_eq!(victim.read(), Value::Closed);
        assert_eq!(admin.call(&["EXISTS", "after"]), Value::Int(0));
    }
}

#[test]
fn large_values_and_keys_travel_whole() {
    let server = TestServer::start();
    let mut c = server.client();
    let value: Vec<u8> = (0..40_000_000u32).map(|i| (i * 7) as u8).collect();
    c.send(&[b"SET", b"large", &value]);
    assert_eq!(c.read(), Value::ok());
    c.send(&[b"GET", b"large"]);
    assert_eq!(c.read(), Value::Bulk(value));
    let key = "k".repeat(65_536);
    assert_eq!(c.call(&["SET", &key, "v"]), Value::ok());
    assert_eq!(c.call(&["GET", &key]), Value::bulk("v"));
    let long = "k".repeat(65_537);
    assert!(c.call(&["SET", &long, "v"]).text().starts_with("ERR a key of 65537 bytes"));
    assert_eq!(c.call(&["PING"]).text(), "PONG");
}

#[test]
fn a_web_page_cannot_send_commands() {
    let server = TestServer::start();
    let mut c = server.client();
    c.send_raw(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET k evil\r\n");
    assert!(c.read().text().starts_with("ERR unknown command 'POST'"));
    assert!(c.is_closed());
    assert_eq!(server.client().call(&["GET", "k"]), Value::Null);
}

#[test]
fn all_clients_together_have_a_limit() {
    let mut config = config();
    config.client_memory_bytes = Some(4 << 20);
    let server = TestServer::with(config);
    let mut witness = server.client();
    let unfinished = [b"*2\r\n$3\r\nGET\r\n$9999999\r\n".to_vec(), vec![b'x'; 600 << 10]].concat();
    let clients: Vec<Client> = (0..40)
        .map(|_| {
            let mut c = server.client();
            c.send_raw(&unfinished);
            c
        })
        .collect();
    eventually("large clients are turned away", || {
        field(&witness.call(&["INFO", "stats"]).text(), "evicted_clients") > 10
    });
    let info = witness.call(&["INFO", "memory"]).text();
    assert!(field(&info, "mem_clients_normal") < 12 << 20, "{info}");
    drop(clients);
    eventually("their memory is given back", || {
        field(&witness.call(&["INFO", "memory"]).text(), "mem_clients_normal") < 1 << 20
    });
}

#[test]
fn a_tiny_limit_for_all_clients_disconnects_nobody() {
    let server = TestServer::start();
    let mut c = server.client();
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-clients", "512"]), Value::ok());
    let mut another = server.client();
    assert_eq!(another.call(&["PING"]).text(), "PONG");
    assert_eq!(c.call(&["CONFIG", "GET", "maxmemory-clients"]).items()[1], Value::bulk("512"));
    assert_eq!(c.call(&["CONFIG", "SET", "maxmemory-clients", "0"]), Value::ok());
}

#[test]
fn clients_are_listed_by_id_once_each() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let (first, second) = (a.call(&["CLIENT", "ID"]).text(), b.call(&["CLIENT", "ID"]).text());
    let words = ["CLIENT", "LIST", "ID", &second, "999999", &first, &second, &second];
    let list = a.call(&words).text();
    let ids: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    let mut expected = [first.parse::<u64>().expect("a number"), second.parse().expect("one")];
    expected.sort_unstable();
    assert_eq!(ids, expected.map(|id| format!("id={id}")));
}

/// A request for more than the limit is refused before the value is made.
#[test]
fn a_value_beyond_the_memory_limit_is_refused_at_once() {
    let mut engine = stillpoint::Config::new("unused");
    engine.max_memory_bytes = 64 << 20;
    let server = TestServer::over(config(), engine);
    let mut c = server.client();
    assert!(c.call(&["SETRANGE", "k", "536870911", "x"]).text().starts_with("OOM "));
    assert_eq!(c.call(&["SETRANGE", "there", "1000000", "x"]), Value::Int(1_000_001));
    assert!(c.call(&["SETRANGE", "there", "400000000", "x"]).text().starts_with("OOM "));
    assert_eq!(c.call(&["STRLEN", "there"]), Value::Int(1_000_001));
    c.call(&["MULTI"]);
    for key in ["a", "b"] {
        c.call(&["SETRANGE", key, "35000000", "x"]);
    }
    assert!(c.call(&["EXEC"]).text().starts_with("OOM "), "each fits, both do not");
    assert_eq!(c.call(&["EXISTS", "a", "b", "there"]), Value::Int(1));
    c.call(&["MULTI"]);
    // The replaced value does not count.
    for part in ["x", "y", "z"] {
        c.call(&["DEL", "a"]);
        c.call(&["SETRANGE", "a", "20000000", part]);
    }
    assert!(matches!(c.call(&["EXEC"]), Value::Array(_)));
    assert_eq!(c.call(&["GETRANGE", "a", "20000000", "-1"]), Value::bulk("z"));
}

#[test]
fn a_client_that_leaves_with_its_last_words_is_let_go() {
    let server = TestServer::start();
    let mut witness = server.client();
    // Bytes and end of input often arrive together.
    for _ in 0..500 {
        server.client().send_raw(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$9\r\nunfin");
    }
    eventually("every client but one is gone", || {
        field(&witness.call(&["INFO", "clients"]).text(), "connected_clients") == 1
    });
}

#[test]
fn a_client_that_reads_late_is_served_on() {
    let server = TestServer::start();
    let mut c = server.client();
    let value = "x".repeat(3 << 20);
    c.call(&["SET", "big", &value]);
    for _ in 0..4 {
        // The reply to each request exceeds the socket's buffer. So the next request finds the
        // client held back, with nothing left to execute.
        c.send(&[b"GET", b"big"]);
        RealClock.sleep(Duration::from_millis(30));
    }
    for _ in 0..4 {
        assert!(matches!(c.read(), Value::Bulk(bytes) if bytes.len() == value.len()));
    }
    assert_eq!(c.call(&["PING"]).text(), "PONG");
}

#[test]
fn at_full_memory_keys_can_be_given_an_end_and_another_name() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["CONFIG", "SET", "maxmemory", "40mb"]);
    let value = "x".repeat(100);
    let mut made = 0;
    while c.call(&["SET", &format!("k{made}"), &value]) == Value::ok() {
        made += 1;
    }
    assert!(made > 1000, "{made}");
    let refused = |reply: Value| reply.text().starts_with("OOM ");
    for (words, expected) in [
        (&["EXPIRE", "k1", "1000"][..], Value::Int(1)),
        (&["PEXPIRE", "k2", "1000000"], Value::Int(1)),
        (&["EXPIREAT", "k3", "9000000000"], Value::Int(1)),
        (&["PEXPIREAT", "k4", "9000000000000"], Value::Int(1)),
        (&["GETEX", "k5", "EX", "1000"], Value::bulk(&value)),
        (&["PERSIST", "k1"], Value::Int(1)),
        (&["RENAME", "k6", "another6"], Value::ok()),
        (&["RENAMENX", "k7", "another7"], Value::Int(1)),
        (&["MOVE", "k8", "1"], Value::Int(1)),
    ] {
        assert_eq!(c.call(words), expected, "{words:?}");
        let mut full = 0;
        while !refused(c.call(&["SET", &format!("more{full}"), &value])) {
            full += 1;
        }
    }
    assert_eq!(c.call(&["MULTI"]), Value::ok());
    c.call(&["EXPIRE", "k9", "1000"]);
    assert_eq!(c.call(&["EXEC"]), Value::Array(vec![Value::Int(1)]));
    // The slab that the last command took from the reserve has room for some records.
    assert!((0..100_000).any(|i| refused(c.call(&["COPY", "k10", &format!("copy{i}")]))));
}
