//! Tests of clients while data is loaded. A pipeline is answered to its end, and no client delays
//! the others or the end of loading.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stillpoint::{Config as EngineConfig, Engine};
use stillpoint_server::{Bound, Loading};

use crate::common::{Client, TestServer, Value, config, encode};

/// A server that is loading, and its port.
fn loading() -> (Loading, u16) {
    let bound = Bound::new(config()).expect("a free port");
    let port = bound.port();
    (bound.answer().expect("answers"), port)
}

/// Ends the loading. The server then serves an empty engine.
fn end(loading: Loading) -> TestServer {
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    let engine = Engine::open(EngineConfig::new(directory.path().join("data")));
    TestServer::after_loading(loading, engine.expect("opens"), directory)
}

#[test]
fn a_pipeline_is_answered_to_its_end_while_data_is_loaded() {
    let (_loading, port) = loading();
    let mut client = Client::connect(port);
    for (request, count) in [(&encode(&[b"GET", b"k"])[..], 3_000), (b"INFO\r\n", 1_000)] {
        client.send_whole(&request.repeat(count));
        for number in 0..count {
            let reply = client.read().text();
            let is_right = reply.starts_with("LOADING ") || reply.contains("loading:1");
            assert!(is_right, "request {number} of {count}: {reply}");
        }
    }
    // A client that has closed its sending side gets every reply, too.
    client.send_whole(&encode(&[b"GET", b"k"]).repeat(3_000));
    client.shutdown(Shutdown::Write);
    for number in 0..3_000 {
        assert!(client.read().text().starts_with("LOADING "), "request {number}");
    }
    assert_eq!(client.read(), Value::Closed);
}

#[test]
fn who_sends_without_end_holds_up_neither_others_nor_the_end_of_loading() {
    let (loading, port) = loading();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, flooding) = (stop.clone(), Client::connect(port));
    let mut draining = flooding.second_handle();
    let flood = stillpoint_io::spawn("flood", move || {
        let pings = encode(&[b"PING"]).repeat(4_600);
        let mut flooding = flooding;
        // The flood ends, so that a server that waits for it fails this test instead of hanging it.
        for _ in 0..2_000 {
            if stopping.load(Ordering::SeqCst) {
                return true;
            }
            flooding.send_raw(&pings);
        }
        false
    });
    let drain = stillpoint_io::spawn("drain", move || {
        let mut replies = 0;
        while draining.read() != Value::Closed {
            replies += 1;
        }
        replies
    });
    let mut bystander = Client::connect(port);
    for _ in 0..50 {
        assert_eq!(bystander.call(&["PING"]).text(), "PONG");
    }
    let server = end(loading);
    assert_eq!(bystander.call(&["SET", "k", "v"]), Value::ok());
    stop.store(true, Ordering::SeqCst);
    drop(server);
    assert!(flood.expect("a thread").join().expect("no panic"), "the flood was over before");
    assert!(drain.expect("a thread").join().expect("no panic") > 4_600);
}

#[test]
fn replies_that_a_client_has_not_taken_outlive_the_loading() {
    let (loading, port) = loading();
    let (mut slow, mut other) = (Client::connect(port), Client::connect(port));
    let count = 6_000;
    slow.send_whole(&b"INFO\r\n".repeat(count));
    for _ in 0..50 {
        other.call(&["PING"]);
    }
    let _server = end(loading);
    let (mut while_loading, mut after) = (0, 0);
    for number in 0..count {
        let info = slow.read().text();
        let is_loading = info.contains("loading:1");
        assert!(is_loading || info.contains("loading:0"), "reply {number}: {info}");
        *(if is_loading { &mut while_loading } else { &mut after }) += 1;
    }
    assert_eq!(while_loading + after, count);
}
