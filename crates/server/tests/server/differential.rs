//! Seeded random commands, sent to this server and to a real redis-server, compared
//! reply by reply.

use std::collections::VecDeque;
use std::time::Duration;

use crate::common::{Client, RealRedis, TestServer, Value, encode};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng};

/// Commands of one run.
const COMMANDS: usize = 6000;
/// Commands that a report shows, up to the one with another reply.
const HISTORY: usize = 8;

/// Templates of a family, and what comes before the names of its keys. Families with a prefix keep keys to
/// themselves: what others write there would have replies without a defined order.
pub(crate) type Family = (&'static str, &'static [&'static str]);

/// Names of keys that a prefix changes.
const PREFIXED: &[&str] = &["a", "b", "c", "d", "e", "f", "s"];

pub(crate) struct Generator {
    rng: SeededRng,
    families: Vec<Family>,
}

impl Generator {
    fn below(&self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn pick<'a>(&self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }

    fn key(&self) -> String {
        format!("k{}", self.below(8))
    }

    fn value(&self) -> String {
        match self.below(8) {
            0 => String::new(),
            1 => self.below(1000).to_string(),
            2 => format!("-{}", self.below(1000)),
            3 => format!("{}.{}", self.below(20), self.below(100)),
            4 => "x".repeat(self.below(200)),
            5 => "9223372036854775807".to_owned(),
            6 => format!("a b\r\n{}", self.below(10)),
            _ => self.pick(&["hello", "ohmytext", "mynewtext", "Hello World"]).to_owned(),
        }
    }

    fn number(&self) -> String {
        match self.below(12) {
            0 => "x".to_owned(),
            1 => "-9223372036854775808".to_owned(),
            2 => "9223372036854775807".to_owned(),
            3 => "1.5".to_owned(),
            4 => " 1".to_owned(),
            5 => "007".to_owned(),
            n => format!("{}", self.below(40) as i64 - 3 * n as i64),
        }
    }

    fn score(&self) -> String {
        match self.below(12) {
            0 => "inf".to_owned(),
            1 => "-inf".to_owned(),
            2 => "nan".to_owned(),
            3 => "x".to_owned(),
            4 => "1e20".to_owned(),
            5 | 6 => format!("{}.{}", self.below(9), self.below(100)),
            n => (self.below(20) as i64 - n as i64).to_string(),
        }
    }

    /// A number of seconds or milliseconds: far away, past, or wrong.
    fn ttl(&self) -> String {
        match self.below(8) {
            0 => "0".to_owned(),
            1 => "-5".to_owned(),
            2 => "nope".to_owned(),
            3 => "9223372036854775807".to_owned(),
            4 => "9223372036854775".to_owned(),
            _ => format!("{}00000", 1 + self.below(9)),
        }
    }

    fn moment(&self) -> String {
        match self.below(6) {
            0 => "1".to_owned(),
            1 => "-1".to_owned(),
            2 => "soon".to_owned(),
            _ => format!("{}0000000000000", 1 + self.below(9)),
        }
    }

    /// Expands a word of a template: chooses one of its alternatives, and replaces a word in `<>`.
    fn expand(&self, word: &str, args: &mut Vec<String>) {
        let alternatives: Vec<&str> = word.split('|').collect();
        let chosen = match self.pick(&alternatives) {
            "<key>" => self.key(),
            "<value>" => self.value(),
            "<number>" => self.number(),
            "<ttl>" => self.ttl(),
            "<moment>" => self.moment(),
            // The moment is in the future: with a past one, SET leaves an expired key in Redis and
            // none in this server.
            "<later>" => format!("{}0000000000000", 1 + self.below(9)),
            "<db>" => self.pick(&["0", "1", "2", "15", "16", "-1", "one"]).to_owned(),
            "<nothing>" => return,
            "<option>" => {
                let option = self.pick(OPTIONS);
                return option.split(' ').for_each(|word| self.expand(word, args));
            }
            "<field>" => format!("f{}", self.below(12)),
            "<many>" => format!("m{}", self.below(400)),
            "<score>" => self.score(),
            "<any>" => format!("e{}", self.below(1_000_000)),
            "<place>" => {
                // Coordinates so fine that no two distances are equal, since the order of equal
                // distances is undefined.
                let degrees = |least: i64, steps: usize| {
                    format!("{:.5}", least as f64 + self.below(steps * 1000) as f64 / 5e4)
                };
                args.push(degrees(10, 400));
                match self.below(30) {
                    0 => "91".to_owned(),
                    1 => "x".to_owned(),
                    _ => degrees(35, 300),
                }
            }
            "<long>" => "y".repeat(40 + self.below(400)),
            literal => literal.to_owned(),
        };
        args.push(chosen);
    }

    fn command(&self) -> Vec<String> {
        let mut args = Vec::new();
        let several = self.families.len() > 1;
        let (prefix, templates) =
            self.families[if several { self.below(self.families.len()) } else { 0 }];
        for word in self.pick(templates).split(' ') {
            let from = args.len();
            self.expand(word, &mut args);
            let names_keys = !prefix.is_empty() && word.contains('|');
            let is_name = |arg: &&mut String| names_keys && PREFIXED.contains(&&***arg);
            args[from..].iter_mut().filter(is_name).for_each(|arg| arg.insert_str(0, prefix));
        }
        match self.below(60) {
            0 if args.len() > 1 => drop(args.pop()),
            // ZRANK of Redis 7.0 has no option.
            1 if !args[0].contains("RANK") => args.push(self.value()),
            _ => {}
        }
        args
    }
}

/// Options of `SET`.
const OPTIONS: &[&str] = &[
    "<nothing>",
    "<nothing>",
    "NX",
    "xx",
    "GET",
    "KEEPTTL",
    "EX <ttl>",
    "px <ttl>",
    "EXAT <later>",
    "PXAT <later>",
    "EX",
    "WHAT",
];

/// Templates of commands: words, alternatives, and `<places>` for random arguments.
pub(crate) const TEMPLATES: &[&str] = &[
    "SET <key> <value>",
    "SET <key> <value>",
    "SET <key> <value> <option>",
    "SET <key> <value> <option> <option>",
    "get <key>",
    "GET <key>",
    "GETSET <key> <value>",
    "GETDEL <key>",
    "GETEX <key> PERSIST|junk|<nothing>",
    "GETEX <key> EX <ttl>",
    "GETEX <key> PXAT <moment>",
    "SETNX <key> <value>",
    "SETEX|PSETEX <key> <ttl> <value>",
    "MGET <key> <key> <key>",
    "MSET <key> <value> <key> <value>",
    "MSETNX <key> <value> <key> <value>",
    "MSET|MSETNX <key> <value> <key>",
    "APPEND <key> <value>",
    "APPEND <key> <value>",
    "STRLEN <key>",
    "INCR|DECR <key>",
    "INCR|DECR <key>",
    "INCRBY|DECRBY <key> <number>",
    "INCRBY|DECRBY <key> <number>",
    "INCRBYFLOAT f0|f1 1.5|-0.1|3|5.0e3|x|1e22|0.126",
    "SET f0 10.7|x|-3|2e2",
    "SETRANGE <key> <number> <value>",
    "GETRANGE <key> <number> <number>",
    "GETRANGE|SUBSTR <key> <number> <number>",
    "DEL|UNLINK <key> <key>",
    "EXISTS|TOUCH <key> <key>",
    "TYPE <key>",
    "EXPIRE|PEXPIRE <key> <ttl>",
    "EXPIRE|PEXPIRE <key> <ttl> NX|XX|GT|LT|ZZ",
    "EXPIRE|PEXPIRE <key> <ttl> NX|XX|GT|LT NX|XX|GT|LT",
    "EXPIREAT|PEXPIREAT <key> <moment> NX|XX|GT|LT|<nothing>",
    "TTL|PTTL <key>",
    "EXPIRETIME|PEXPIRETIME <key>",
    "PERSIST <key>",
    "KEYS *|k[0-3]|k?|z*|k[^1]",
    "RENAME|RENAMENX <key> <key>",
    "COPY <key> <key> REPLACE|JUNK|<nothing>",
    "COPY <key> <key> DB <db>",
    "MOVE <key> <db>",
    "DBSIZE",
    "FLUSHDB|FLUSHALL <nothing>|ASYNC|JUNK",
    "SELECT 0|0|0|1|16|x",
    "OBJECT FREQ|NOSUCH <key>",
    "SETBIT <key> 0|7|9|100|-1|x 0|1|2",
    "GETBIT <key> 0|7|9|100|-1|4294967296",
    "BITCOUNT <key>",
    "BITCOUNT <key> <number> <number> BIT|BYTE|JUNK|<nothing>",
    "BITPOS <key> 0|1|2 <number> <number> BIT|BYTE|<nothing>",
    "BITPOS <key> 0|1 <nothing>|<number>",
    "BITOP AND|OR|XOR|NOT|JUNK <key> <key> <key>",
    "BITOP NOT|AND <key> <key>",
    "BITFIELD <key> GET u8|i5|u63|i64|u64|x 0|#1|3|-1",
    "BITFIELD <key> OVERFLOW WRAP|SAT|FAIL|JUNK INCRBY u8|i5|i64|u1 0|#2|7 1|-100|9223372036854775807 GET u4 0",
    "BITFIELD <key> SET u8|i5|i64|u63 0|#1|9 <number>",
    // Redis saturates numbers near the least one upwards in a signed integer: its difference overflows.
    "BITFIELD <key> OVERFLOW SAT|FAIL|WRAP SET u8|i5|i64|u63 0|#1|9 0|-1|15|16|-17|255|256|-129|70000|-70000",
    "BITFIELD_RO <key> GET|SET u8 0",
    "LCS <key> <key> LEN|IDX|JUNK|<nothing>",
    "LCS <key> <key> IDX WITHMATCHLEN MINMATCHLEN <number>",
    "MULTI|EXEC|EXEC|DISCARD|UNWATCH",
    "MULTI|EXEC|EXEC",
    "MULTI|EXEC",
    "WATCH <key> <key>",
    "SCAN 0 COUNT 1000 MATCH k*|*1|k[2-4]",
    "SCAN x|-1|0 COUNT 0|x",
    "ECHO <value>",
    "PING|NOSUCHCOMMAND|CLIENT|OBJECT|GET",
    "COMMAND GETKEYS GET|MSET|FOO|PING a b c",
    "CLIENT GETNAME|SETNAME|FOO|NO-EVICT",
];

/// Makes replies comparable: sorts replies without a defined order, and rounds replies that depend
/// on the time.
fn normalised(command: &[String], reply: Value) -> Value {
    let name = command[0].to_ascii_uppercase();
    let reply = if name.starts_with('Z') { without_minus_zero(reply) } else { reply };
    let key = |v: &Value| format!("{v:?}");
    let coarse = |v: Value, unit: i64| match v {
        Value::Int(n) if n > 0 => Value::Int((n + unit) / (4 * unit)),
        other => other,
    };
    match (name.as_str(), reply) {
        ("KEYS", Value::Array(mut items)) => {
            items.sort_by_key(key);
            Value::Array(items)
        }
        ("SCAN", Value::Array(mut items)) => {
            if let Some(Value::Array(keys)) = items.get_mut(1) {
                keys.sort_by_key(key);
            }
            Value::Array(items)
        }
        (
            "SMEMBERS" | "SINTER" | "SUNION" | "SDIFF" | "HKEYS" | "HVALS" | "SPOP",
            Value::Array(mut items) | Value::Set(mut items),
        ) => {
            items.sort_by_key(key);
            Value::Array(items)
        }
        ("HGETALL", Value::Map(mut pairs)) => {
            pairs.sort_by_key(|pair| key(&pair.0));
            Value::Map(pairs)
        }
        ("HGETALL", Value::Array(items)) => sorted_pairs(items),
        ("HSCAN" | "ZSCAN", Value::Array(mut items)) if items.len() == 2 => {
            let elements = items.pop().map_or(Value::Null, |elements| match elements {
                Value::Array(elements) => sorted_pairs(elements),
                other => other,
            });
            Value::Array(vec![Value::Null, elements])
        }
        ("SSCAN", Value::Array(mut items)) if items.len() == 2 => {
            let elements = items.pop().map_or(Value::Null, |elements| match elements {
                Value::Array(mut elements) => {
                    elements.sort_by_key(key);
                    Value::Array(elements)
                }
                other => other,
            });
            Value::Array(vec![Value::Null, elements])
        }
        // Which elements are drawn is chance.
        ("HRANDFIELD" | "SRANDMEMBER" | "ZRANDMEMBER", Value::Array(items)) => {
            Value::Int(items.len() as i64)
        }
        ("HRANDFIELD" | "SRANDMEMBER" | "ZRANDMEMBER", Value::Bulk(_)) => Value::ok(),
        // Redis tells strings that were changed in place.
        ("OBJECT", Value::Bulk(text)) if text == b"embstr" => Value::bulk("raw"),
        // The count in the header of a HyperLogLog, which PFCOUNT of Redis writes.
        (_, Value::Bulk(mut bytes)) if bytes.starts_with(b"HYLL") && bytes.len() >= 16 => {
            bytes[8..16].fill(0);
            Value::Bulk(bytes)
        }
        // This server escapes control characters, and Redis replaces them by spaces.
        (_, Value::Error(text)) => Value::Error(text.replace("\\x0d\\x0a", "  ")),
        ("TTL" | "EXPIRETIME", reply) => coarse(reply, 5),
        ("PTTL" | "PEXPIRETIME", reply) => coarse(reply, 5000),
        (_, reply) => reply,
    }
}

/// Scores of minus zero are kept as zero.
fn without_minus_zero(reply: Value) -> Value {
    match reply {
        Value::Array(items) => Value::Array(items.into_iter().map(without_minus_zero).collect()),
        Value::Bulk(text) if text == b"-0" => Value::bulk("0"),
        Value::Double(text) if text == "-0" => Value::Double("0".to_owned()),
        other => other,
    }
}

/// An array of pairs, sorted by the first of each.
fn sorted_pairs(items: Vec<Value>) -> Value {
    let mut pairs: Vec<&[Value]> = items.chunks(2).collect();
    pairs.sort_by_key(|pair| format!("{:?}", pair[0]));
    Value::Array(pairs.concat())
}

/// Inside EXEC the replies belong to the queued commands.
fn normalised_exec(queue: &[Vec<String>], reply: Value) -> Value {
    match reply {
        Value::Array(items) if items.len() == queue.len() => {
            let pairs = queue.iter().zip(items);
            Value::Array(pairs.map(|(command, item)| normalised(command, item)).collect())
        }
        other => other,
    }
}

/// Two connections to each server, fed with the same commands.
struct Pair {
    ours: Client,
    theirs: Client,
    queue: Vec<Vec<String>>,
}

impl Pair {
    fn new(ours: u16, theirs: u16) -> Self {
        Self { ours: Client::connect(ours), theirs: Client::connect(theirs), queue: Vec::new() }
    }

    fn call(&mut self, command: &[String]) -> (Value, Value) {
        self.send(std::slice::from_ref(&command.to_vec()));
        self.read(command)
    }

    /// Restores the key at another one in each of the servers, from what the other server dumps.
    fn exchange(&mut self, key: &str, copy: &str) {
        let dumped = [&mut self.ours, &mut self.theirs].map(|client| client.call(&["DUMP", key]));
        for (client, payload) in [&mut self.theirs, &mut self.ours].into_iter().zip(dumped) {
            let Value::Bulk(payload) = payload else { panic!("a payload of {key:?}") };
            client.send(&[b"RESTORE", copy.as_bytes(), b"0", &payload, b"REPLACE"]);
            assert_eq!(client.read(), Value::ok(), "{key:?}");
        }
    }

    /// Sends commands together.
    fn send(&mut self, commands: &[Vec<String>]) {
        let mut requests = Vec::new();
        for command in commands {
            let words: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
            requests.extend(encode(&words));
        }
        self.ours.send_raw(&requests);
        self.theirs.send_raw(&requests);
    }

    /// Reads both replies to the next of the commands that were sent.
    fn read(&mut self, command: &[String]) -> (Value, Value) {
        let (mut ours, mut theirs) = (self.ours.read(), self.theirs.read());
        if command[0].eq_ignore_ascii_case("EXEC") {
            let queue = std::mem::take(&mut self.queue);
            ours = normalised_exec(&queue, ours);
            theirs = normalised_exec(&queue, theirs);
        } else if theirs == Value::Simple("QUEUED".to_owned()) {
            self.queue.push(command.to_vec());
        } else if ["MULTI", "DISCARD"].iter().any(|w| command[0].eq_ignore_ascii_case(w)) {
            if theirs == Value::ok() {
                self.queue.clear();
            }
        } else {
            ours = normalised(command, ours);
            theirs = normalised(command, theirs);
        }
        (ours, theirs)
    }
}

/// The keys of all databases, what they hold, and their payloads: Redis restores what this server dumps, and
/// this server what Redis dumps.
fn compare_contents(pair: &mut Pair) {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
    for db in 0..16 {
        pair.call(&words(&["SELECT", &db.to_string()]));
        let (ours, theirs) = pair.call(&words(&["KEYS", "*"]));
        assert_eq!(ours, theirs, "the keys of database {db}");
        for key in theirs.items().iter().map(Value::text) {
            let (kind, theirs) = pair.call(&words(&["TYPE", &key]));
            assert_eq!(kind, theirs, "{key:?}");
            let read = |key: &str| match &*kind.text() {
                "hash" => words(&["HGETALL", key]),
                "list" => words(&["LRANGE", key, "0", "-1"]),
                "set" => words(&["SMEMBERS", key]),
                "zset" => words(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
                _ => words(&["GET", key]),
            };
            let (ours, theirs) = pair.call(&read(&key));
            assert_eq!(ours, theirs, "{key:?}");
            let (expiry, of_theirs) = pair.call(&words(&["PEXPIRETIME", &key]));
            assert_eq!(expiry, of_theirs, "{key:?}");
            pair.exchange(&key, "a copy");
            let copies = pair.call(&read("a copy"));
            assert_eq!(copies, (theirs, ours), "the restored {key:?}");
            pair.call(&words(&["DEL", "a copy"]));
        }
    }
}

pub(crate) fn compare(seed: u64, resp3: bool, templates: &'static [&'static str], commands: usize) {
    compare_families(seed, resp3, vec![("", templates)], commands);
}

/// As [`compare`], for commands of several families between each other.
pub(crate) fn compare_families(seed: u64, resp3: bool, families: Vec<Family>, commands: usize) {
    let Some(redis) = RealRedis::start(&[]) else {
        return;
    };
    let server = TestServer::start();
    let mut pairs = [Pair::new(server.port, redis.port), Pair::new(server.port, redis.port)];
    if resp3 {
        for pair in &mut pairs {
            pair.ours.call(&["HELLO", "3"]);
            pair.theirs.call(&["HELLO", "3"]);
        }
    }
    let generator = Generator { rng: SeededRng::new(seed), families };
    let mut history: VecDeque<String> = VecDeque::new();
    let mut differences: Vec<String> = Vec::new();
    let mut sent: VecDeque<Vec<String>> = VecDeque::new();
    let mut sender = 0;
    for number in 0.. {
        if sent.is_empty() {
            // All that was sent is answered, or the contents would change while they are compared.
            if number >= commands {
                break;
            }
            // Half of the commands come in pipelines, whose commands on one key are one transaction.
            sender = usize::from(generator.below(5) == 0);
            let count = if generator.below(12) == 0 { 2 + generator.below(20) } else { 1 };
            sent.extend((0..count).map(|_| generator.command()));
            pairs[sender].send(sent.make_contiguous());
        }
        let Some(command) = sent.pop_front() else { break };
        history.push_back(format!("{command:?}"));
        if history.len() > HISTORY {
            history.pop_front();
        }
        let (ours, theirs) = pairs[sender].read(&command);
        if ours != theirs {
            let recent = history.make_contiguous().join("\n    ");
            differences.push(format!(
                "command {number}: {command:?}\n  ours   {ours:?}\n  theirs {theirs:?}\n  after\n    \
                 {recent}"
            ));
            if differences.len() >= 8 {
                break;
            }
        }
    }
    assert!(differences.is_empty(), "seed {seed}:\n{}", differences.join("\n"));
    compare_contents(&mut Pair::new(server.port, redis.port));
}

#[test]
fn random_commands_in_resp2_get_the_replies_of_redis() {
    for seed in 1..=3 {
        compare(seed, false, TEMPLATES, COMMANDS);
    }
}

#[test]
fn random_commands_in_resp3_get_the_replies_of_redis() {
    compare(77, true, TEMPLATES, COMMANDS);
}

/// Rounds of [`watched_keys_have_changed_where_redis_says_so`].
const WATCHES: usize = 1500;

/// Commands of one client while another watches.
const CHANGES: &[&str] = &[
    "SET <key> <value>",
    "SETNX <key> <value>",
    "SET <key> <value> XX",
    "APPEND|GETSET <key> x",
    "INCR <key>",
    "MSET <key> 1 <key> 2",
    "DEL|GETDEL|UNLINK <key>",
    "DEL|GETDEL|UNLINK <key>",
    "EXPIRE|PEXPIREAT <key> -1",
    "SET <key> <value> PX 1",
    "PEXPIRE <key> 1",
    "RENAME|RENAMENX <key> <key>",
    "COPY <key> <key>",
    "MOVE <key> 1",
    "GET|TTL|EXISTS <key>",
    "HSET|HSETNX <key> f 1",
    "HINCRBY|HINCRBYFLOAT <key> f 0",
    "HDEL <key> f",
    "SADD <key> 1",
    "ZADD <key> 1 m",
    "RPUSH <key> x",
    "LTRIM <key> 0 -1|5",
    "LSET <key> 0 x",
    "SETBIT <key> 7|40 0|1",
    "BITFIELD <key> SET u8 0 1|2",
    "SETRANGE <key> 0 1",
    "MULTI",
    "EXEC",
    "EXEC",
    "FLUSHDB",
];

/// A key that was made and deleted again has changed. A key that stayed missing has not.
#[test]
fn watched_keys_have_changed_where_redis_says_so() {
    let Some(redis) = RealRedis::start(&[]) else {
        return;
    };
    let server = TestServer::start();
    let (mut watching, mut changing) =
        (Pair::new(server.port, redis.port), Pair::new(server.port, redis.port));
    let generator = Generator { rng: SeededRng::new(5), families: vec![("", TEMPLATES)] };
    let few_keys = |template: &str| {
        let mut args = Vec::new();
        for word in template.split(' ') {
            match word {
                "<key>" => args.push(format!("w{}", generator.below(3))),
                word => generator.expand(word, &mut args),
            }
        }
        args
    };
    let mut outcomes = [0; 2];
    for round in 0..WATCHES {
        let mut history = Vec::new();
        let mut call = |pair: &mut Pair, command: Vec<String>| {
            let (ours, theirs) = pair.call(&command);
            history.push(format!("{command:?}"));
            assert_eq!(ours, theirs, "round {round}: {}", history.join(", "));
            ours
        };
        call(&mut watching, few_keys(generator.pick(&["WATCH <key>", "WATCH <key> <key>"])));
        let mut expires = false;
        for _ in 0..generator.below(5) {
            let command = few_keys(generator.pick(CHANGES));
            expires |= command.iter().any(|word| word == "PX" || word == "PEXPIRE");
            call(&mut changing, command);
            if expires {
                // Both servers have noticed the change by then.
                RealClock.sleep(Duration::from_millis(3));
            }
        }
        call(&mut changing, vec!["DISCARD".to_owned()]);
        call(&mut watching, vec!["MULTI".to_owned()]);
        let done = call(&mut watching, vec!["EXEC".to_owned()]);
        outcomes[usize::from(done == Value::Null)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > WATCHES / 10), "{outcomes:?}");
}
