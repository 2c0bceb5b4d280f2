//! Sorted sets whose members share scores and tags, beside a map.

use std::collections::{BTreeMap, BTreeSet};

use stillpoint_io::{Rng, SeededRng};

use super::alone::{Alone, Server};
use super::crash::{ask, verified};
use crate::planted::{Bug, plant};

const SEEDS: u64 = 8;
const STEPS: usize = 400;
const MEMBERS: u64 = 500;

/// The strings of a reply, in its order.
fn strings(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply);
    let mut lines = text.split("\r\n");
    let mut strings = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with('$') && line != "$-1" {
            strings.extend(lines.next().map(str::to_owned));
        }
    }
    strings
}

/// A scan over all members, one call at a time, while the set changes.
#[derive(Default)]
struct Scan {
    cursor: String,
    met: BTreeSet<String>,
    /// The members that have been there since the beginning.
    stayed: BTreeSet<String>,
}

impl Scan {
    /// Takes the reply of a call; `all` has the members at this moment.
    fn take(&mut self, reply: &[u8], all: &BTreeMap<String, u64>) {
        let mut strings = strings(reply).into_iter();
        self.cursor = strings.next().expect("a cursor");
        while let (Some(member), Some(score)) = (strings.next(), strings.next()) {
            assert_eq!(all.get(&member).map(u64::to_string), Some(score), "{member}");
            self.met.insert(member);
        }
        self.stayed.retain(|member| all.contains_key(member));
        if self.cursor == "0" {
            assert!(self.stayed.is_subset(&self.met), "a member that stayed was not met");
            self.met.clear();
            self.stayed = all.keys().cloned().collect();
        }
    }
}

/// A command that changes the set, and the map after it.
fn change(rng: &SeededRng, scores: u64, map: &mut BTreeMap<String, u64>) -> String {
    let member = |rng: &SeededRng| format!("member:{:04}", rng.below(MEMBERS));
    let mut sorted: Vec<(u64, String)> = map.iter().map(|(m, s)| (*s, m.clone())).collect();
    sorted.sort();
    match rng.below(10) {
        0 => {
            let gone = member(rng);
            map.remove(&gone);
            format!("ZREM k {gone}")
        }
        1 => {
            let (from, count) = (rng.below(MEMBERS) as usize, rng.below(40) as usize);
            sorted
                .iter()
                .skip(from)
                .take(count + 1)
                .for_each(|(_, m)| assert!(map.remove(m).is_some()));
            format!("ZREMRANGEBYRANK k {from} {}", from + count)
        }
        2 => {
            let count = rng.below(3) as usize;
            sorted.iter().take(count).for_each(|(_, m)| assert!(map.remove(m).is_some()));
            format!("ZPOPMIN k {count}")
        }
        _ => {
            let mut command = "ZADD k".to_owned();
            for _ in 0..1 + rng.below(20) {
                let (score, member) = (rng.below(scores), member(rng));
                command += &format!(" {score} {member}");
                map.insert(member, score);
            }
            command
        }
    }
}

/// The life of a sorted set with so many different scores.
fn live(seed: u64) {
    let scores = [1, 4, 60, 1 << 40][seed as usize % 4];
    let rng = SeededRng::new(seed);
    let alone = Alone::new();
    let mut session = alone.engine.session().expect("a session");
    let mut server = Server::new(&alone);
    let mut client = [server.connect()];
    let mut map = BTreeMap::new();
    let mut scan = Scan { cursor: "0".to_owned(), ..Scan::default() };
    for step in 0..STEPS {
        let command = change(&rng, scores, &mut map);
        let reply = ask(&mut server, &mut client, format!("{command}\r\n").as_bytes());
        assert!(!reply.starts_with(b"-"), "{command}: {}", String::from_utf8_lossy(&reply));
        let request = format!("ZSCAN k {} COUNT 20\r\n", scan.cursor);
        scan.take(&ask(&mut server, &mut client, request.as_bytes()), &map);
        let sought = format!("member:{:04}", rng.below(MEMBERS));
        let reply = ask(&mut server, &mut client, format!("ZSCORE k {sought}\r\n").as_bytes());
        assert_eq!(strings(&reply).pop(), map.get(&sought).map(u64::to_string), "{sought}");
        if step % 20 == 0 {
            let found = verified(&alone, &mut session);
            assert!(found.damage.is_empty(), "seed {seed}, step {step}: {}", found.damage[0]);
            let all = strings(&ask(&mut server, &mut client, b"ZRANGE k 0 -1\r\n"));
            let mut want: Vec<&String> = map.keys().collect();
            want.sort_by_key(|member| (map[*member], *member));
            assert!(all.iter().eq(want), "seed {seed}, step {step}");
        }
    }
}

#[test]
fn members_of_one_score_are_found_and_scanned() {
    (0..SEEDS).for_each(live);
}

#[test]
fn each_planted_bug_of_short_elements_is_seen() {
    for bug in [Bug::TwinsStayShort, Bug::DividedStayShort] {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(|| (0..SEEDS).for_each(live));
        plant(None);
        assert!(seen.is_err(), "{bug:?} is not seen");
    }
}
