//! Restarts at any instant, judged from outside: the server is killed while it opens, loads, serves,
//! writes a checkpoint or merges some. Nothing that was acknowledged is lost, nothing stale comes back,
//! and the number of keys and their names are exact.
//!
//! Ten minutes:
//! `STILLPOINT_RESTART_SECONDS=600 cargo test --release -p stillpoint-cli --test process restarts`
//! The lives from a seed: `STILLPOINT_RESTART_SEED=<seed>` before the command.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stillpoint_io::{Clock, RealClock, RealRng, Rng, SeededRng, spawn};

use crate::common::{Client, Serving, wait_for};

/// Seconds of restarts, unless the environment names others.
const SECONDS: u64 = 3;
const SIREN_SECONDS: u64 = 2;
/// Keys of database 0. Long hunts have more, so that a load takes longer.
const KEYS: u64 = 15_000;
const LONG_KEYS: u64 = 200_000;
/// Keys of database 1, which is emptied now and then.
const FLUSHED_KEYS: u64 = 50;
/// Hashes of database 0, and fields of each. They are trees of several nodes.
const HASHES: u64 = 4;
const FIELDS: u64 = 300;
/// Most commands that are sent at once.
const TOGETHER: u64 = 20;
/// Values that are compared in a life.
const SAMPLE: u64 = 100;

/// The place of a value: a key of a database, or a field of a hash of database 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Key(u8, u64),
    Field(u64, u64),
}

impl Target {
    fn db(self) -> u8 {
        match self {
            Self::Key(db, _) => db,
            Self::Field(..) => 0,
        }
    }

    fn key(self) -> String {
        match self {
            Self::Key(_, number) => format!("key {number}"),
            Self::Field(hash, _) => format!("hash {hash}"),
        }
    }

    /// A command on the place: its words with the command of keys or of fields, and more arguments.
    fn command(self, of_key: &str, of_field: &str, more: &[&str]) -> Vec<String> {
        let mut words = match self {
            Self::Key(..) => vec![of_key.to_owned(), self.key()],
            Self::Field(_, field) => {
                vec![of_field.to_owned(), self.key(), format!("field {field}")]
            }
        };
        words.extend(more.iter().map(|&word| word.to_owned()));
        words
    }
}

/// A value; `None` for none.
type Text = Option<String>;

/// A command on one place.
#[derive(Clone, Debug)]
enum Act {
    Get,
    Put(String),
    PutNew(String),
    Append(String),
    Overwrite(usize, String),
    Expire,
    Delete,
}

fn int(number: usize) -> String {
    format!(":{number}")
}

impl Act {
    fn random(place: Target, rng: &SeededRng) -> Self {
        let (word, len) = (format!("{:016x}", rng.next_u64()), 1 + rng.below(30) as usize);
        match (rng.below(10), place) {
            (0..=2, _) => Self::Get,
            (3..=4, _) => Self::Put(word.repeat(len)),
            (5, _) => Self::PutNew(word),
            (6, _) => Self::Delete,
            (7, Target::Key(..)) => Self::Append(word),
            (8, Target::Key(..)) => Self::Overwrite(rng.below(300) as usize, word),
            (9, Target::Key(..)) => Self::Expire,
            (_, _) => Self::Get,
        }
    }

    fn words(&self, place: Target) -> Vec<String> {
        match self {
            Self::Get => place.command("GET", "HGET", &[]),
            Self::Put(value) => place.command("SET", "HSET", &[value]),
            Self::PutNew(value) => place.command("SETNX", "HSETNX", &[value]),
            Self::Append(value) => place.command("APPEND", "", &[value]),
            Self::Overwrite(at, value) => place.command("SETRANGE", "", &[&at.to_string(), value]),
            Self::Expire => place.command("EXPIRE", "", &["86400"]),
            Self::Delete => place.command("DEL", "HDEL", &[]),
        }
    }

    /// What a value becomes, and the reply.
    fn apply(&self, place: Target, now: &Text) -> (Text, String) {
        let is_there = usize::from(now.is_some());
        match self {
            Self::Get => (now.clone(), now.clone().unwrap_or_else(|| "(nil)".to_owned())),
            Self::Put(value) => {
                let reply = match place {
                    Target::Key(..) => "OK".to_owned(),
                    Target::Field(..) => int(1 - is_there),
                };
                (Some(value.clone()), reply)
            }
            Self::PutNew(value) => (now.clone().or_else(|| Some(value.clone())), int(1 - is_there)),
            Self::Append(more) => {
                let new = now.clone().unwrap_or_default() + more;
                let len = new.len();
                (Some(new), int(len))
            }
            Self::Overwrite(at, bytes) => {
                let mut new = now.clone().unwrap_or_default().into_bytes();
                new.resize(new.len().max(at + bytes.len()), 0);
                new[*at..at + bytes.len()].copy_from_slice(bytes.as_bytes());
                let len = new.len();
                (Some(String::from_utf8(new).expect("text")), int(len))
            }
            Self::Expire => (now.clone(), int(is_there)),
            Self::Delete => (None, int(is_there)),
        }
    }
}

/// What each place may have. A place without an entry has nothing.
#[derive(Debug, Default)]
struct Oracle(BTreeMap<Target, Vec<Text>>);

impl Oracle {
    fn possible(&self, place: Target) -> Vec<Text> {
        self.0.get(&place).cloned().unwrap_or_else(|| vec![None])
    }

    fn set(&mut self, place: Target, mut possible: Vec<Text>) {
        possible.sort();
        possible.dedup();
        if possible == [None] {
            self.0.remove(&place);
        } else {
            self.0.insert(place, possible);
        }
    }

    /// Notes the reply to a command.
    fn acknowledged(&mut self, place: Target, act: &Act, reply: &str) {
        let before = self.possible(place);
        let after: Vec<Text> = before
            .iter()
            .map(|now| act.apply(place, now))
            .filter(|(_, expected)| expected == reply)
            .map(|(new, _)| new)
            .collect();
        assert!(!after.is_empty(), "{place:?} {act:?}: {reply:?}, and it may have {before:?}");
        self.set(place, after);
    }

    /// Notes that nobody knows whether a command has happened.
    fn unknown(&mut self, place: Target, act: &Act) {
        let mut possible = self.possible(place);
        let after: Vec<Text> = possible.iter().map(|now| act.apply(place, now).0).collect();
        possible.extend(after);
        self.set(place, possible);
    }

    /// Notes that a database was emptied, or may have been.
    fn flushed(&mut self, db: u8, is_known: bool) {
        let places: Vec<Target> = self.0.keys().copied().filter(|place| place.db() == db).collect();
        for place in places {
            let mut possible = if is_known { Vec::new() } else { self.possible(place) };
            possible.push(None);
            self.set(place, possible);
        }
    }

    fn doubtful(&self) -> Vec<Target> {
        self.0.iter().filter(|(_, possible)| possible.len() > 1).map(|(&place, _)| place).collect()
    }

    /// The names of the keys of a database of which everything is known.
    fn names(&self, db: u8) -> BTreeSet<String> {
        self.0.keys().filter(|place| place.db() == db).map(|place| place.key()).collect()
    }
}

/// The counts of a hunt, for whoever reads its output.
#[derive(Debug, Default)]
struct Counts {
    lives: u64,
    killed_opening: u64,
    killed_loading: u64,
    killed_saving: u64,
    verified: u64,
    commands: u64,
}

struct Hunt {
    rng: SeededRng,
    /// The checkpoints, one of which each life has.
    checkpoints: &'static [&'static str],
    keys: u64,
    /// Hashes that are trees. Without such hashes, no key gets a deadline either.
    hashes: u64,
    oracle: Oracle,
    counts: Counts,
}

/// The end of a connection.
struct Gone;

impl Hunt {
    fn place(&self) -> Target {
        match self.rng.below(10) {
            0 => Target::Key(1, self.rng.below(FLUSHED_KEYS)),
            1 if self.hashes > 0 => {
                Target::Field(self.rng.below(self.hashes), self.rng.below(FIELDS))
            }
            _ => Target::Key(0, self.rng.below(self.keys)),
        }
    }

    /// Sends commands on places of one database, and notes the replies.
    fn send(&mut self, client: &mut Client, acts: &[(Target, Act)]) -> Result<(), Gone> {
        let db = acts.first().map_or(0, |(place, _)| place.db());
        let mut requests = vec![vec!["SELECT".to_owned(), db.to_string()]];
        let words = acts.iter().map(|(place, act)| act.words(*place));
        let is_transaction = acts.len() > 1 && self.rng.below(6) == 0;
        let mut replies = if is_transaction {
            requests.push(vec!["MULTI".to_owned()]);
            requests.extend(words);
            requests.push(vec!["EXEC".to_owned()]);
            let mut replies = client.try_ask_all(&requests);
            // All of its commands have replies, or none.
            let has_run = replies.len() == requests.len();
            replies.truncate(1);
            if has_run {
                replies.extend((0..acts.len()).map_while(|_| client.reply().ok()));
            }
            replies.into_iter()
        } else {
            requests.extend(words);
            client.try_ask_all(&requests).into_iter()
        };
        // The reply to the choice of the database.
        let mut is_gone = replies.next().is_none();
        for (place, act) in acts {
            match replies.next() {
                Some(reply) => self.oracle.acknowledged(*place, act, &reply),
                None => {
                    is_gone = true;
                    self.oracle.unknown(*place, act);
                }
            }
        }
        self.counts.commands += acts.len() as u64;
        if is_gone { Err(Gone) } else { Ok(()) }
    }

    fn fill(&mut self, client: &mut Client) {
        let put = |place| (place, Act::Put(format!("{place:?}").repeat(15)));
        let keys = (0..self.keys).map(|number| Target::Key(0, number));
        let fields = (0..self.hashes)
            .flat_map(|hash| (0..FIELDS).map(move |field| Target::Field(hash, field)));
        let all: Vec<(Target, Act)> = keys.chain(fields).map(put).collect();
        for some in all.chunks(500) {
            assert!(self.send(client, some).is_ok(), "the server lives");
        }
    }

    /// One batch of commands.
    fn step(&mut self, client: &mut Client) -> Result<(), Gone> {
        let first = self.place();
        if first.db() == 1 && self.rng.below(8) == 0 {
            let requests = [["SELECT", "1"], ["FLUSHDB", "ASYNC"]];
            let requests = requests.map(|words| words.map(str::to_owned).to_vec());
            let is_known = client.try_ask_all(&requests).get(1).is_some_and(|reply| reply == "OK");
            self.oracle.flushed(1, is_known);
            return if is_known { Ok(()) } else { Err(Gone) };
        }
        if self.rng.below(30) == 0 {
            client.try_ask(&["BGSAVE"]).map_err(|_| Gone)?;
        }
        let more = (0..self.rng.below(TOGETHER)).map(|_| self.place());
        let places = std::iter::once(first).chain(more).filter(|place| place.db() == first.db());
        let acts = places.map(|place| (place, Act::random(place, &self.rng)));
        let is_possible = |act: &Act| self.hashes > 0 || !matches!(act, Act::Expire);
        let acts: Vec<(Target, Act)> = acts.filter(|(_, act)| is_possible(act)).collect();
        self.send(client, &acts)
    }

    /// Compares what the server has with what it may have.
    fn verify(&mut self, client: &mut Client, whole: bool) -> Result<(), Gone> {
        let mut places = self.oracle.doubtful();
        match whole {
            true => places.extend(self.oracle.0.keys().copied()),
            false => places.extend((0..SAMPLE).map(|_| self.place())),
        }
        for db in [0, 1] {
            let here: Vec<(Target, Act)> = places
                .iter()
                .filter(|place| place.db() == db)
                .map(|&place| (place, Act::Get))
                .collect();
            for some in here.chunks(500) {
                self.send(client, some)?;
            }
        }
        for db in [0, 1] {
            let expected = self.oracle.names(db);
            client.try_ask(&["SELECT", &db.to_string()]).map_err(|_| Gone)?;
            let size = client.try_ask(&["DBSIZE"]).map_err(|_| Gone)?;
            assert_eq!(size, int(expected.len()), "keys of database {db}");
            let found = scan(client)?;
            let wrong: Vec<&String> = found.symmetric_difference(&expected).take(5).collect();
            assert!(wrong.is_empty(), "database {db} lacks, or has too many: {wrong:?}");
        }
        self.counts.verified += 1;
        Ok(())
    }

    /// One life of the server, until it is killed.
    fn live(&mut self, data: &Path) {
        let wait =
            if self.rng.below(8) == 0 { "--wait-for-load=true" } else { "--wait-for-load=false" };
        let mut arguments = vec!["--durability", "strict", "--merge-after", "2", wait];
        let checkpoint = self.checkpoints[self.rng.below(self.checkpoints.len() as u64) as usize];
        arguments.extend(["--checkpoint-every", "86400s", "--checkpoint", checkpoint]);
        let serving = Serving::begin(data, &arguments);
        self.counts.lives += 1;
        let most_ms = [30, 150, 600][self.rng.below(3) as usize];
        if self.rng.below(4) == 0 {
            RealClock.sleep(Duration::from_micros(self.rng.below(most_ms * 1_000)));
            self.counts.killed_opening += 1;
            return;
        }
        let mut client = serving.client();
        wait_for("the first answer", || {
            let reply = client.try_ask(&["GET", "key 0"]).ok()?;
            (!reply.contains("LOADING")).then_some(())
        });
        // Some lives are judged to the end before they are killed, and others are killed meanwhile.
        let judges = self.rng.below(8);
        if judges == 0 {
            assert!(self.verify(&mut client, false).is_ok(), "the server lives");
        }
        let killer = {
            let (pid, after_us) = (serving.child.id().to_string(), self.rng.below(most_ms * 1_000));
            let kill = move || {
                RealClock.sleep(Duration::from_micros(after_us));
                Command::new("kill").args(["-s", "KILL", &pid]).status().is_ok()
            };
            spawn("kills", kill).expect("a thread")
        };
        let mut state = String::new();
        if judges != 1 || self.verify(&mut client, false).is_ok() {
            while self.step(&mut client).is_ok() {
                if self.rng.below(4) == 0
                    && let Ok(info) = client.try_ask(&["INFO", "persistence"])
                {
                    state = info;
                }
            }
        }
        assert!(killer.join().expect("no panic"));
        self.counts.killed_loading += u64::from(state.contains("async_loading:1"));
        self.counts.killed_saving += u64::from(state.contains("rdb_bgsave_in_progress:1"));
        let (status, _, errors) = serving.ended();
        assert!(!errors.contains("panicked") && status.code().is_none(), "{status}: {errors}");
    }
}

/// The names of all keys of the chosen database.
fn scan(client: &mut Client) -> Result<BTreeSet<String>, Gone> {
    let (mut names, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        client.try_ask(&["SCAN", &cursor, "COUNT", "1000"]).map_err(|_| Gone)?;
        cursor = client.reply().map_err(|_| Gone)?;
        let head = client.reply().map_err(|_| Gone)?;
        let count: usize = head.trim_start_matches('*').parse().expect("a number of keys");
        for _ in 0..count {
            let name = client.reply().map_err(|_| Gone)?;
            assert!(names.insert(name.clone()), "{name} comes twice");
        }
        if cursor == "0" {
            return Ok(names);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Shows a line to whoever runs the test.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("somebody reads it");
}

#[test]
fn restarts_at_any_instant_lose_nothing_and_bring_nothing_back() {
    hunt(&["calc:partial"], HASHES, SECONDS);
}

/// The same with databases that are SIREN tables. They have no deadlines and no trees.
#[test]
fn restarts_of_siren_stores_lose_nothing_and_bring_nothing_back() {
    hunt(&["siren", "siren-semi-fuzzy"], 0, SIREN_SECONDS);
}

fn hunt(checkpoints: &'static [&'static str], hashes: u64, seconds: u64) {
    let seconds = number("STILLPOINT_RESTART_SECONDS").unwrap_or(seconds);
    let seed = number("STILLPOINT_RESTART_SEED").unwrap_or_else(|| RealRng.next_u64());
    say(&format!("STILLPOINT_RESTART_SEED={seed}"));
    let dir = tempfile::tempdir().expect("a directory");
    let keys = if seconds > 60 { LONG_KEYS } else { KEYS };
    let mut hunt = Hunt {
        rng: SeededRng::new(seed),
        checkpoints,
        keys,
        hashes,
        oracle: Oracle::default(),
        counts: Counts::default(),
    };
    let arguments = ["--durability", "strict", "--checkpoint", checkpoints[0]];
    let serving = Serving::start(dir.path(), &arguments);
    let mut client = serving.client();
    hunt.fill(&mut client);
    assert_eq!(client.ask(&["SAVE"]), "OK");
    drop((client, serving));
    let until_ns = RealClock.monotonic_ns() + seconds * 1_000_000_000;
    while RealClock.monotonic_ns() < until_ns {
        hunt.live(dir.path());
    }
    let serving = Serving::start(dir.path(), &arguments);
    assert!(hunt.verify(&mut serving.client(), true).is_ok(), "the server lives");
    say(&format!("{:?}", hunt.counts));
}
