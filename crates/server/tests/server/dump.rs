//! DUMP and RESTORE in both directions between this server and a real redis-server.

use stillpoint::Config as EngineConfig;
use stillpoint_io::{Rng, SeededRng};

use crate::common::{Client, RealRedis, TestServer, Value, config};

/// A command that fills key `k` with `elements` elements.
fn fill(rng: &SeededRng, kind: usize, elements: usize) -> Vec<Vec<u8>> {
    let texts = rng.below(3);
    let text = |i: usize| match texts {
        // Integers of all widths, short texts, long ones that compress.
        0 => (rng.next_u64() as i64 >> rng.below(64)).to_string().into_bytes(),
        1 => format!("element {i}").into_bytes(),
        _ => {
            let mut text = vec![b'a' + rng.below(3) as u8; rng.below(300) as usize];
            text.extend_from_slice(&rng.next_u64().to_be_bytes());
            text
        }
    };
    let mut words = vec![["SET", "RPUSH", "SADD", "ZADD", "HSET"][kind].into(), b"k".to_vec()];
    for i in 0..elements {
        match kind {
            0 if i > 0 => words[2].extend(text(i)),
            3 => {
                let scores = ["inf", "-inf", "0", "-0.1", "1e300", "3"];
                let score = scores[rng.below(6) as usize].as_bytes().to_vec();
                words.extend([score, text(i)]);
            }
            4 => words.extend([text(i), text(i)]),
            _ => words.push(text(i)),
        }
    }
    words
}

fn call(client: &mut Client, words: &[Vec<u8>]) -> Value {
    client.send(&words.iter().map(|word| &word[..]).collect::<Vec<_>>());
    client.read()
}

/// All of a key, in an order that does not depend on the server.
fn contents(client: &mut Client, kind: usize) -> String {
    let command = [
        &["GET", "k"][..],
        &["LRANGE", "k", "0", "-1"],
        &["SORT", "k", "ALPHA"],
        &["ZRANGE", "k", "0", "-1", "WITHSCORES"],
        &["HGETALL", "k"],
    ][kind];
    match client.call(command) {
        Value::Array(items) if kind == 4 => {
            let mut pairs: Vec<String> = items.chunks(2).map(|pair| format!("{pair:?}")).collect();
            pairs.sort();
            pairs.concat()
        }
        reply => format!("{reply:?}"),
    }
}

#[test]
fn values_go_to_redis_and_come_from_there() {
    let Some(redis) = RealRedis::start(&[]) else {
        return;
    };
    let server = TestServer::start();
    let mut pair = [server.client(), Client::connect(redis.port)];
    let rng = SeededRng::new(11);
    for round in 0..120 {
        let kind = round % 5;
        let elements = [1, 3, 20, 130, 600, 3000][round / 5 % 6];
        for from in 0..2 {
            pair[from].call(&["DEL", "k"]);
            let words = fill(&rng, kind, elements);
            assert!(!matches!(call(&mut pair[from], &words), Value::Error(_)), "{round}");
            let expected = contents(&mut pair[from], kind);
            let Value::Bulk(payload) = pair[from].call(&["DUMP", "k"]) else { panic!("bytes") };
            for (to, client) in pair.iter_mut().enumerate() {
                let restore = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), payload.clone()];
                let mut restore = restore.to_vec();
                restore.push(b"REPLACE".to_vec());
                assert_eq!(call(client, &restore), Value::ok(), "{round}: {from} to {to}");
                assert_eq!(contents(client, kind), expected, "{round}: {from} to {to}");
                restore.pop();
                let busy = "BUSYKEY Target key name already exists.".to_owned();
                assert_eq!(call(client, &restore), Value::Error(busy));
            }
        }
    }
}

/// A payload of some hundred kilobytes that stands for many millions of elements is refused.
#[test]
fn a_payload_that_takes_too_much_memory_is_refused() {
    let mut engine = EngineConfig::new("unused");
    engine.max_memory_bytes = 256 << 20;
    let server = TestServer::over(config(), engine);
    let mut c = server.client();
    // A list of one listpack: its length, 0x0000 elements, the integer 0 again and again, and its end.
    // In LZF, copies of 264 bytes stand for the integers.
    let copies = 120_000_u32;
    let len = 6 + 2 + 264 * copies + 1;
    let mut packed = vec![7];
    packed.extend(len.to_le_bytes());
    packed.extend([0, 0, 0, 1]);
    packed.extend([0xe0, 0xff, 1].repeat(copies as usize));
    packed.extend([0, 0xff]);
    let mut payload = vec![18, 1, 2, 0xc3, 0x80];
    payload.extend((packed.len() as u32).to_be_bytes());
    payload.push(0x80);
    payload.extend(len.to_be_bytes());
    payload.extend(packed);
    payload.extend([10, 0]);
    payload.extend(crc64(&payload).to_le_bytes());
    c.send(&[b"RESTORE", b"k", b"0", &payload]);
    let reply = c.read();
    assert!(matches!(&reply, Value::Error(error) if error.starts_with("OOM ")), "{reply:?}");
    assert_eq!(c.call(&["EXISTS", "k"]), Value::Int(0));
}

/// The checksum of payloads: CRC-64 by Jones, bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x95ac_9329_ac4b_c9b5 } else { 0 }
        })
    })
}

#[test]
fn a_restored_key_expires_when_it_was_told() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["RPUSH", "k", "a", "b"]);
    let Value::Bulk(payload) = c.call(&["DUMP", "k"]) else { panic!("bytes") };
    let mut restore = |key: &str, words: &[&str]| {
        let mut args = vec![&b"RESTORE"[..], key.as_bytes(), words[0].as_bytes(), &payload];
        args.extend(words[1..].iter().map(|word| word.as_bytes()));
        c.send(&args);
        let reply = c.read();
        (reply, c.call(&["PTTL", key]).int(), c.call(&["LLEN", key]).int())
    };
    let (reply, ttl, len) = restore("relative", &["50000"]);
    assert_eq!((reply, len, (40_000..=50_000).contains(&ttl)), (Value::ok(), 2, true));
    assert_eq!(restore("for ever", &["0"]), (Value::ok(), -1, 2));
    assert_eq!(restore("gone", &["1", "ABSTTL"]), (Value::ok(), -2, 0));
    assert_eq!(restore("k", &["1", "REPLACE", "ABSTTL"]), (Value::ok(), -2, 0));
    let (_, ttl, _) = restore("far", &["99999999999999", "ABSTTL"]);
    assert!(ttl > 1 << 40);
}
