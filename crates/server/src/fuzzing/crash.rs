//! Crashes in the middle of work on collections. After each recovery the collections are as one of the
//! commands had left them, every tree is sound, and no node is lost.

use std::time::Duration;

use stillpoint::{Config, Session};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use super::alone::{Alone, Client, Server};
use crate::keyspace::{CollectionCheck, VerifiedCollections};
use crate::planted::{Bug, plant};

/// Lives of a machine, each with crashes at several moments.
const LIVES: u64 = 40;
const COMMANDS: usize = 90;
const CRASHES: u64 = 6;
/// Requests that show the value of each key, with the elements in their stored order.
const LOOK: &[u8] = b"DUMP a\r\nDUMP b\r\nDUMP c\r\nDUMP d\r\n";
/// Turns of the event loop after which every reclaim has ended.
const RECLAIM_TURNS: usize = 400;

/// Name of a checkpoint scheme, and of a journal.
type Scheme = (&'static str, &'static str);

fn config((checkpoint, journal): Scheme) -> Config {
    let mut config = Config::new("unused");
    config.checkpoint = checkpoint.to_owned();
    config.journal = journal.to_owned();
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
pub(super) fn ask(server: &mut Server, client: &mut [Client], request: &[u8]) -> Vec<u8> {
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
pub(super) fn verified(alone: &Alone, session: &mut Session) -> VerifiedCollections {
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
fn recover(seed: u64, disk: SimDisk, scheme: Scheme, history: &History) {
    let alone = Alone::over(config(scheme), disk);
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

/// One life of a machine, with crashes. Gives the number of recoveries.
fn live(seed: u64) -> usize {
    let mut recovered = 0;
    let rng = SeededRng::new(seed);
    let checkpoint = ["calc", "calc:partial"][seed as usize % 2];
    let scheme = (checkpoint, ["redo", "command"][seed as usize / 2 % 2]);
    let disk = SimDisk::new(seed);
    let alone = Alone::over(config(scheme), disk.clone());
    let mut session = alone.engine.session().expect("a session");
    let mut server = Server::new(&alone);
    let mut client = [server.connect()];
    let mut history = History::default();
    history.looks.push(ask(&mut server, &mut client, LOOK));
    for _ in 0..COMMANDS {
        ask(&mut server, &mut client, &group(&rng));
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
            recover(seed, image, scheme, &history);
            recovered += 1;
        }
    }
    assert_eq!(verified(&alone, &mut session).damage, []);
    recovered
}

/// A command, or several on one key. These are one transaction, which a crash keeps or loses whole.
pub(super) fn group(rng: &SeededRng) -> Vec<u8> {
    if rng.below(3) > 0 {
        return command(rng);
    }
    let key = ["a", "b", "c", "d"][rng.below(4) as usize];
    let kind = rng.below(4);
    let mut group = Vec::new();
    for _ in 0..2 + rng.below(20) {
        let member = format!("member:{:06}", rng.below(400));
        let line = match (kind, rng.below(4)) {
            (0, 0) => format!("ZREM {key} {member}"),
            (0, _) => format!("ZADD {key} {} {member}", rng.below(100)),
            (1, 0) => format!("HDEL {key} {member}"),
            (1, _) => format!("HSET {key} {member} {}", "x".repeat(rng.below(40) as usize)),
            (2, 0) => format!("SREM {key} {member}"),
            (2, _) => format!("SADD {key} {member}"),
            (_, 0) => format!("LPOP {key}"),
            (_, 1) => format!("LSET {key} {} {member}", rng.below(50)),
            _ => format!("RPUSH {key} {member}"),
        };
        group.extend([line.as_bytes(), b"\r\n"].concat());
    }
    group
}

#[test]
fn collections_are_whole_after_every_crash() {
    let recovered: usize = (0..LIVES).map(live).sum();
    assert!(recovered > 3 * LIVES as usize, "{recovered}");
}

/// A watched key has changed if one of its nodes has, and its own record tells it.
fn a_change_of_a_node_alone_is_watched() {
    let alone = Alone::new();
    let mut server = Server::new(&alone);
    let mut clients = [server.connect(), server.connect()];
    let fields: String = (0..200).map(|i| format!(" field:{i:04} {i:04}")).collect();
    let replies =
        ask(&mut server, &mut clients, format!("HSET h{fields}\r\nWATCH h\r\n").as_bytes());
    assert_eq!(replies, b":200\r\n+OK\r\n");
    clients.swap(0, 1);
    assert_eq!(ask(&mut server, &mut clients, b"HSET h field:0007 7777\r\n"), b":0\r\n");
    clients.swap(0, 1);
    let replies = ask(&mut server, &mut clients, b"MULTI\r\nGET x\r\nEXEC\r\n");
    assert_eq!(replies, b"+OK\r\n+QUEUED\r\n*-1\r\n");
}

/// While the nodes of a deleted collection are removed, its grave says whose they are.
fn a_grave_names_the_nodes_that_are_left() {
    const FIELDS: usize = 20_000;
    let alone = Alone::new();
    let mut session = alone.engine.session().expect("a session");
    let mut server = Server::new(&alone);
    let mut client = [server.connect()];
    for from in (0..FIELDS).step_by(500) {
        let fields: String = (from..from + 500).map(|i| format!(" field:{i:08} v")).collect();
        ask(&mut server, &mut client, format!("HSET h{fields}\r\n").as_bytes());
    }
    assert_eq!(ask(&mut server, &mut client, b"DEL h\r\n"), b":1\r\n");
    for _ in 0..RECLAIM_TURNS {
        let found = verified(&alone, &mut session);
        assert_eq!(found.damage, []);
        if found.graves == 0 {
            break;
        }
        server.clock.advance(Duration::from_millis(100));
        server.turn(&mut client);
    }
    assert_eq!(verified(&alone, &mut session).nodes, 0);
}

#[test]
fn deleted_collections_are_removed_under_their_grave() {
    a_grave_names_the_nodes_that_are_left();
}

#[test]
fn watched_collections_tell_changes_of_their_nodes() {
    a_change_of_a_node_alone_is_watched();
}

/// Each planted bug is seen by one of the checks.
#[test]
fn each_planted_bug_is_seen() {
    let bugs =
        [Bug::IncarnationReused, Bug::KeyNotStamped, Bug::HeaderBeforeNodes, Bug::GraveForgotten];
    for bug in bugs {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(|| {
            a_change_of_a_node_alone_is_watched();
            a_grave_names_the_nodes_that_are_left();
            for seed in 0..LIVES {
                live(seed);
            }
        });
        plant(None);
        assert!(seen.is_err(), "{bug:?} is not seen");
    }
}
