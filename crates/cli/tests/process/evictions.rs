//! A full cache that is saved and killed: no client is refused, and what was given up and is durable stays away.
//!
//! An hour: `STILLPOINT_CACHE_SECONDS=3600 cargo test --release -p stillpoint-cli --test process evictions`

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stillpoint_io::{Clock, RealClock, RealRng, Rng, SeededRng, spawn};

use crate::common::{Client, Serving, wait_for};

/// Seconds of load, unless the environment names others.
const SECONDS: u64 = 6;
const CLIENTS: u64 = 3;
/// Keys of each client. Memory has room for half of them, about.
const KEYS: u64 = 70_000;
/// Commands that a client sends at once.
const TOGETHER: usize = 16;
const FILLED_TOGETHER: usize = 500;
/// Lives of the server with each durability, each killed at its end, at least.
const LIVES_MIN: u64 = 2;
/// Longest life, and longest time between two checkpoints.
const LIFE_MAX: Duration = Duration::from_secs(300);
const SAVE_EVERY_MAX: Duration = Duration::from_secs(20);
/// Time between two commands of a client that wait for a flush of the relaxed log.
const FLUSH_EVERY_NS: u64 = 400_000_000;

/// What a reply has shown of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    /// It has this version.
    Is(u64),
    /// It is gone.
    Gone,
    /// Nobody knows whether it was set to this version.
    Perhaps(u64),
}

/// What the replies have shown of a key, each with its time, the newest last.
type Facts = Vec<(u64, Fact)>;

/// Whether a fact is durable, since it was known at this time.
fn is_settled(&(at, fact): &(u64, Fact), settled_ns: u64) -> bool {
    at <= settled_ns && !matches!(fact, Fact::Perhaps(_))
}

/// Notes a reply. Forgets what lies before the last fact that is durable.
fn note(facts: &mut Facts, now_ns: u64, fact: Fact, settled_ns: u64) {
    facts.push((now_ns, fact));
    if let Some(last) = facts.iter().rposition(|fact| is_settled(fact, settled_ns)) {
        facts.drain(..last);
    }
}

/// Whether a key may have this version, or be gone, after a crash. Any key may have been given up before.
fn may_be(facts: &Facts, found: Option<u64>, settled_ns: u64) -> bool {
    let Some(found) = found else { return true };
    let first = facts.iter().rposition(|fact| is_settled(fact, settled_ns)).unwrap_or(0);
    let has =
        |fact: Fact| matches!(fact, Fact::Is(version) | Fact::Perhaps(version) if version == found);
    facts[first..].iter().any(|&(_, fact)| has(fact))
}

/// A command: its key, the version that it sets, and its words.
type Act = (u64, Option<u64>, Vec<String>);

/// One client, which alone uses its keys.
struct Cached {
    number: u64,
    rng: SeededRng,
    keys: HashMap<u64, Facts>,
    version: u64,
    /// Whether every reply tells of what is durable.
    is_strict: bool,
    /// What was known at this time is durable.
    settled_ns: u64,
    commands: u64,
}

impl Cached {
    fn key(&self, key: u64) -> String {
        format!("client {} key {key:06}", self.number)
    }

    fn set(&mut self, key: u64) -> Act {
        self.version += 1;
        let version = self.version;
        let text = format!("{version} {}", "v".repeat(80 + key as usize % 200));
        (key, Some(version), ["SET", &self.key(key), &text].map(str::to_owned).into())
    }

    fn get(&self, key: u64) -> Act {
        (key, None, ["GET", &self.key(key)].map(str::to_owned).into())
    }

    /// Sends commands and judges the replies. False once the server is gone.
    fn send(&mut self, client: &mut Client, acts: Vec<Act>) -> bool {
        let requests: Vec<Vec<String>> = acts.iter().map(|(_, _, words)| words.clone()).collect();
        let replies = client.try_ask_all(&requests);
        let now_ns = RealClock.monotonic_ns();
        if self.is_strict {
            self.settled_ns = now_ns;
        }
        for (at, (key, version, words)) in acts.iter().enumerate() {
            let facts = self.keys.entry(*key).or_default();
            let Some(reply) = replies.get(at) else {
                if let Some(version) = version {
                    note(facts, now_ns, Fact::Perhaps(*version), self.settled_ns);
                }
                continue;
            };
            assert!(!reply.starts_with('-'), "{words:?}: {reply}");
            let fact = match (version, reply.as_str()) {
                (Some(version), "OK") => Fact::Is(*version),
                (None, "(nil)") => Fact::Gone,
                (None, text) => {
                    let version = text.split(' ').next().and_then(|digits| digits.parse().ok());
                    let last = facts.last().map(|&(_, fact)| fact);
                    assert_eq!(version.map(Fact::Is), last, "{words:?}: {text}");
                    continue;
                }
                (version, text) => panic!("{words:?} {version:?}: {text}"),
            };
            if facts.last().is_none_or(|&(_, last)| last != fact) {
                note(facts, now_ns, fact, self.settled_ns);
            }
        }
        self.commands += replies.len() as u64;
        replies.len() == acts.len()
    }

    /// Waits until all that is known is durable. False once the server is gone.
    fn settle(&mut self, client: &mut Client) -> bool {
        let known_ns = RealClock.monotonic_ns();
        // The reply is an array of two numbers.
        let replies: std::io::Result<Vec<String>> = client
            .try_ask(&["WAITAOF", "1", "0", "0"])
            .and_then(|head| Ok(vec![head, client.reply()?, client.reply()?]));
        let Ok(replies) = replies else { return false };
        assert_eq!(replies, ["*2", ":1", ":0"]);
        self.settled_ns = known_ns;
        true
    }

    fn fill(&mut self, client: &mut Client) {
        let keys: Vec<u64> = (0..KEYS).collect();
        for some in keys.chunks(FILLED_TOGETHER) {
            let acts = some.iter().map(|&key| self.set(key)).collect();
            assert!(self.send(client, acts), "the server lives");
        }
    }

    /// Compares all keys with what they may be after a crash. What is found is durable.
    fn judge(&mut self, client: &mut Client) -> usize {
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut gone = 0;
        for some in keys.chunks(FILLED_TOGETHER) {
            let requests: Vec<Vec<String>> = some.iter().map(|&key| self.get(key).2).collect();
            let replies = client.try_ask_all(&requests);
            assert_eq!(replies.len(), some.len(), "the server lives");
            for (&key, reply) in some.iter().zip(replies) {
                let found = match reply.as_str() {
                    "(nil)" => None,
                    text => text.split(' ').next().and_then(|digits| digits.parse().ok()),
                };
                let facts = self.keys.entry(key).or_default();
                let is_sound = may_be(facts, found, self.settled_ns);
                let since = self.settled_ns;
                assert!(is_sound, "key {key} is {reply:?}, settled at {since}: {facts:?}");
                gone += usize::from(found.is_none());
                *facts = vec![(0, found.map_or(Fact::Gone, Fact::Is))];
            }
        }
        gone
    }

    /// Reads and writes until the server is gone, or `over`. Small numbers are used far more often.
    fn run(&mut self, client: &mut Client, over: &AtomicBool) {
        while !over.load(SeqCst) {
            let is_due = self.settled_ns + FLUSH_EVERY_NS < RealClock.monotonic_ns();
            if !self.is_strict && is_due && !self.settle(client) {
                return;
            }
            let acts = (0..TOGETHER)
                .map(|_| {
                    let uniform = self.rng.below(1 << 30) as f64 / f64::from(1 << 30);
                    let key = ((KEYS as f64).powf(uniform) as u64 - 1).min(KEYS - 1);
                    if self.rng.below(3) == 0 { self.set(key) } else { self.get(key) }
                })
                .collect();
            if !self.send(client, acts) {
                return;
            }
        }
        assert!(self.is_strict || self.settle(client), "the server lives");
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("somebody reads it");
}

fn start(data: &Path, durability: &str) -> Serving {
    let serving = Serving::start(
        data,
        &[
            ["--durability", durability],
            ["--max-memory", "32MiB"],
            ["--max-memory-policy", "allkeys-lru"],
            ["--checkpoint-every", "86400s"],
        ]
        .concat(),
    );
    let mut client = serving.client();
    wait_for("the whole load", || {
        client.ask(&["INFO", "persistence"]).contains("async_loading:0\r\n").then_some(())
    });
    serving
}

/// One life of a server: clients load it, it saves now and then, and is killed. If it `stops`, all that the
/// clients know is durable before.
fn live(serving: Serving, clients: Vec<Cached>, life: Duration, stops: bool) -> Vec<Cached> {
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut cached| {
            let (mut client, over) = (serving.client(), over.clone());
            let run = move || {
                cached.run(&mut client, &over);
                cached
            };
            spawn("client", run).expect("a thread")
        })
        .collect();
    let mut admin = serving.client();
    let pause = SAVE_EVERY_MAX.min(life / 5);
    for _ in 0..life.as_nanos() / pause.as_nanos() {
        RealClock.sleep(pause);
        let _ = admin.try_ask(&["BGSAVE"]);
        if threads.iter().any(|thread| thread.is_finished()) {
            // A client has complained.
            break;
        }
    }
    let stats = admin.ask(&["INFO", "stats"]);
    assert!(!stats.contains("evicted_keys:0\r\n"), "{stats}");
    over.store(stops, SeqCst);
    if !stops {
        serving.signal("KILL");
    }
    let clients = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    if stops {
        serving.signal("KILL");
    }
    let (status, _, errors) = serving.ended();
    assert!(!errors.contains("panicked") && status.code().is_none(), "{status}: {errors}");
    clients
}

#[test]
fn a_full_cache_refuses_nothing_and_brings_nothing_back() {
    let named = std::env::var("STILLPOINT_CACHE_SECONDS");
    let seconds: u64 = named.ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let each = Duration::from_secs(seconds) / 2;
    let lives = LIVES_MIN.max(each.as_secs().div_ceil(LIFE_MAX.as_secs()));
    for durability in ["strict", "relaxed"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut clients: Vec<Cached> = (0..CLIENTS)
            .map(|number| Cached {
                number,
                rng: SeededRng::new(RealRng.next_u64()),
                keys: HashMap::new(),
                version: 0,
                is_strict: durability == "strict",
                settled_ns: 0,
                commands: 0,
            })
            .collect();
        let mut serving = start(dir.path(), durability);
        clients.iter_mut().for_each(|cached| cached.fill(&mut serving.client()));
        for life in 0..lives {
            clients = live(serving, clients, each / lives as u32, life % 2 == 0);
            serving = start(dir.path(), durability);
            let mut client = serving.client();
            let gone: usize = clients.iter_mut().map(|cached| cached.judge(&mut client)).sum();
            let commands: u64 = clients.iter().map(|cached| cached.commands).sum();
            say(&format!("{durability}: {commands} commands, {gone} keys are gone"));
            assert!(gone > 1_000, "the cache was not full");
        }
    }
}
