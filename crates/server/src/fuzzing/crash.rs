//! Crashes in the middle of work on collections. After each recovery the collections are as one of the
//! commands had left them, every tree is sound, and no node is lost.

use std::time::Duration;

use stillpoint::{Config, Session};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use super::alone::{Alone, Client, Server};
use crate::keyspace::{CollectionCheck, VerifiedCollections};

/// Lives of a machine, each with crashes at several moments.
const LIVES: u64 = 40;
const COMMANDS: usize = 90;
const CRASHES: u64 = 6;
/// Requests that show the value of each key, with the elements in their stored order.
const LOOK: &[u8] = b"DUMP a\r\nDUMP b\r\nDUMP c\r\nDUMP d\r\n";
/// Turns of the event loop after which every reclaim has ended.
const RECLAIM_TURNS: usize = 400;

fn config(checkpoint: &str) -> Config {
    let mut config = Config::new("unused");
    config.checkpoint = checkpoint.to_owned();
    config.journal = "redo".to_owned();
    config
}

/// A command, in the form of a line.
fn command(rng: &SeededRng) -> Vec<u8> {
    let key = ["a", "b", "c", "d"][rng.below(4) as usize];
    let other = ["a", "b", "c", "d"][rng.below(4) as usize];
    let count = 1 + rng.below(70);
    let first = rng.below(400);
    let many = |text: &dyn Fn(u64) -> String| -> String {
        (first..first + count).map(|i| format!(" {}", text(i))).collect()
    };
    let member = |i: u64| format!("member:{i:06}");
    let (from, len) = (rng.below(300) as i64 - 50, rng.below(200) as i64);
    let line = match rng.below(20) {
        0..3 => format!("ZADD {key}{}", many(&|i| format!("{} {}", i % 37, member(i)))),
        3..5 => format!("HSET {key}{}", many(&|i| format!("{} {i}", member(i)))),
        5..7 => format!("SADD {key}{}", many(&member)),
        7..9 => format!("RPUSH {key}{}", many(&member)),
        9 => format!("LPUSH {key} {}", "x".repeat(1 + rng.below(3000) as usize)),
        10 => format!("ZREMRANGEBYRANK {key} {from} {}", from + len),
        11 => format!("LTRIM {key} {from} {}", from + 2 * len),
        12 => format!("SPOP {key} {count}"),
        13 => format!("HDEL {key}{}", many(&member)),
        14 => format!("ZREM {key}{}", many(&member)),
        15 => format!("DEL {key}"),
        16 => format!("RENAME {key} {other}"),
        17 => format!("COPY {key} {other} REPLACE"),
        18 => format!("ZUNIONSTORE {key} 2 {key} {other}"),
        _ => format!("SUNIONSTORE {key} {key} {other}"),
    };
    [line.as_bytes(), b"\r\n"].concat()
}

/// Sends a request and gives all that comes back.
fn ask(server: &mut Server, client: &mut [Client], request: &[u8]) -> Vec<u8> {
    client[0].replies.clear();
    client[0].send(request);
    let mut seen = 0;
    while seen == 0 || client[0].replies.len() > seen {
        seen = client[0].replies.len();
        server.turn(client);
        server.turn(client);
    }
    assert!(!client[0].replies.is_empty(), "an answer to {}", String::from_utf8_lossy(request));
    std::mem::take(&mut client[0].replies)
}

/// Verifies all trees of an engine.
fn verified(alone: &Alone, session: &mut Session) -> VerifiedCollections {
    let mut check = CollectionCheck::default();
    for name in ["db0", "db0.nodes", "graves"] {
        let table = alone.engine.table(name).expect("a table");
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], value: stillpoint::ValueRef<'_>| {
                check.add(name, key, value);
            };
            cursor = session.scan(table, cursor, 1000, visit).expect("memory");
            if cursor == 0 {
                break;
            }
        }
    }
    check.finish()
}

/// The values of the keys after each command so far, and the range of these states that a crash may
/// bring back.
#[derive(Default)]
struct History {
    looks: Vec<Vec<u8>>,
    /// Commands that were durable at some moment.
    durable: usize,
}

/// Recovers a disk after a crash, and compares.
fn recover(seed: u64, disk: SimDisk, checkpoint: &str, history: &History) {
    let alone = Alone::over(config(checkpoint), disk);
    let mut session = alone.engine.session().expect("a session");
    let found = verified(&alone, &mut session);
    assert!(found.damage.is_empty(), "seed {seed}: {}", found.damage[0]);
    let mut server = Server::new(&alone);
    let mut client = [server.connect()];
    let look = ask(&mut server, &mut client, LOOK);
    let allowed = &history.looks[history.durable..];
    assert!(allowed.contains(&look), "seed {seed}: no state from {} on", history.durable);
    // The nodes of deleted collections are removed, and nothing else.
    for _ in 0..RECLAIM_TURNS {
        if alone.engine.len(alone.engine.table("graves").expect("a table")) == 0 {
            break;
        }
        server.clock.advance(Duration::from_millis(100));
        server.turn(&mut client);
    }
    let found = verified(&alone, &mut session);
    assert!(found.damage.is_empty(), "seed {seed}: {}", found.damage[0]);
    assert_eq!(found.graves, 0, "seed {seed}");
    assert_eq!(ask(&mut server, &mut client, LOOK), look, "seed {seed}");
}

#[test]
fn collections_are_whole_after_every_crash() {
    let mut recovered = 0;
    for seed in 0..LIVES {
        let rng = SeededRng::new(seed);
        let checkpoint = ["calc", "calc:partial"][seed as usize % 2];
        let disk = SimDisk::new(seed);
        let alone = Alone::over(config(checkpoint), disk.clone());
        let mut session = alone.engine.session().expect("a session");
        let mut server = Server::new(&alone);
        let mut client = [server.connect()];
        let mut history = History::default();
        history.looks.push(ask(&mut server, &mut client, LOOK));
        for _ in 0..COMMANDS {
            ask(&mut server, &mut client, &command(&rng));
            history.looks.push(ask(&mut server, &mut client, LOOK));
            match rng.below(12) {
                0 => {
                    alone.engine.checkpoint().expect("a checkpoint");
                    history.durable = history.looks.len() - 1;
                }
                1..5 => {
                    // The event loop removes some nodes of deleted collections.
                    server.clock.advance(Duration::from_millis(100));
                    server.turn(&mut client);
                }
                _ => {}
            }
            if rng.below(COMMANDS as u64) < CRASHES {
                let image = disk.crash_image(rng.next_u64());
                recover(seed, image, checkpoint, &history);
                recovered += 1;
            }
        }
        assert_eq!(verified(&alone, &mut session).damage, []);
    }
    assert!(recovered > 3 * LIVES, "{recovered}");
}
