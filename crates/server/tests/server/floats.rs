//! Compares INCRBYFLOAT with a real redis-server, digit by digit.

use stillpoint_io::{Rng, SeededRng};

use crate::common::{Client, RealRedis, TestServer, Value, encode};

/// Number of pairs of numbers. `STILLPOINT_FLOAT_PAIRS` sets another one.
const PAIRS: usize = 20_000;
const SEED: u64 = 14;

fn number(rng: &SeededRng) -> String {
    let digits =
        |n: u64| -> String { (0..n).map(|_| char::from(b'0' + rng.below(10) as u8)).collect() };
    let sign = ["", "-", "-", "+"][rng.below(4) as usize];
    match rng.below(12) {
        0 => format!("{sign}{}", digits(1 + rng.below(40))),
        1 => format!("{sign}{}.{}", digits(rng.below(25)), digits(rng.below(40))),
        2 => format!("{sign}{}e{}", digits(1 + rng.below(20)), rng.below(40) as i64 - 20),
        3 => format!("{sign}1.{}e{}", digits(30), rng.below(9960) as i64 - 4990),
        4 => format!("{sign}0x{:x}.{:x}p{}", rng.next_u64(), rng.below(4096), rng.below(60)),
        5 => format!("{sign}{}", rng.next_u64()),
        6 => ["inf", "-Infinity", "nan", "1e", "e5", ".", "1.5.1", " 1", "0x", "1e99999"]
            [rng.below(10) as usize]
            .to_owned(),
        // Numbers at which the last of 64 bits decides, or a half of it.
        7 => format!("{sign}{}.5", (1u64 << 62) + rng.below(16)),
        8 => format!("{sign}{}", u128::from(u64::MAX) + u128::from(rng.below(8))),
        9 => format!("{sign}.{}{}", "0".repeat(16), digits(3)),
        _ => format!("{sign}{}.{}", rng.below(1000), digits(rng.below(6))),
    }
}

fn replies(port: u16, pairs: &[(String, String)]) -> Vec<[Value; 2]> {
    let mut client = Client::connect(port);
    let mut all = Vec::new();
    for some in pairs.chunks(500) {
        let mut requests = Vec::new();
        for (a, b) in some {
            requests.extend(encode(&[b"SET", b"f", a.as_bytes()]));
            requests.extend(encode(&[b"INCRBYFLOAT", b"f", b.as_bytes()]));
            requests.extend(encode(&[b"GET", b"f"]));
        }
        client.send_raw(&requests);
        for _ in some {
            assert_eq!(client.read(), Value::ok());
            all.push([client.read(), client.read()]);
        }
    }
    all
}

#[test]
fn sums_of_floats_are_those_of_redis() {
    let Some(redis) = RealRedis::start(&[]) else { return };
    let count = std::env::var("STILLPOINT_FLOAT_PAIRS").ok().and_then(|n| n.parse().ok());
    let rng = SeededRng::new(SEED);
    let pairs: Vec<(String, String)> =
        (0..count.unwrap_or(PAIRS)).map(|_| (number(&rng), number(&rng))).collect();
    let server = TestServer::start();
    let (ours, theirs) = (replies(server.port, &pairs), replies(redis.port, &pairs));
    for ((pair, ours), theirs) in pairs.iter().zip(ours).zip(theirs) {
        assert_eq!(ours, theirs, "{pair:?}, seed {SEED}");
    }
}
