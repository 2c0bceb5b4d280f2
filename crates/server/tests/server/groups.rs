//! Tests of groups: successive commands on one key, of one client or several, are one transaction.

use std::time::Duration;

use stillpoint_io::{Clock, RealClock, Rng, SeededRng};

use crate::common::{Client, TestServer, Value, config, encode, field, verify};

/// The requests as a client sends them.
fn encoded(requests: &[Vec<String>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        let words: Vec<&[u8]> = request.iter().map(String::as_bytes).collect();
        bytes.extend(encode(&words));
    }
    bytes
}

/// Sends requests together, and gives their replies.
fn pipeline(client: &mut Client, requests: &[Vec<String>]) -> Vec<Value> {
    client.send_raw(&encoded(requests));
    requests.iter().map(|_| client.read()).collect()
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Number of transactions that have written.
fn written(client: &mut Client) -> u64 {
    let info = client.call(&["INFO", "persistence"]).text();
    field(&info, "rdb_changes_since_last_save")
}

/// The replies are those of single commands.
#[test]
fn commands_on_one_key_are_one_transaction() {
    let server = TestServer::start();
    let mut c = server.client();
    let push = |key: &str| -> Vec<Vec<String>> {
        (0..30).map(|i| words(&format!("RPUSH {key} element-{i:08}"))).collect()
    };
    let want: Vec<Value> = (1..=30).map(Value::Int).collect();
    for request in push("alone") {
        pipeline(&mut c, &[request]);
    }
    let before = written(&mut c);
    assert!(before >= 30, "{before}");
    assert_eq!(pipeline(&mut c, &push("group")), want);
    // The requests may arrive in several pieces.
    let count = written(&mut c) - before;
    assert!((1..20).contains(&count), "{count}");
    let (a, b) = (c.call(&["LRANGE", "alone", "0", "-1"]), c.call(&["LRANGE", "group", "0", "-1"]));
    assert_eq!(a, b);
}

/// An error of one command leaves the others of its group as they are.
#[test]
fn an_error_concerns_its_own_command() {
    let server = TestServer::start();
    let mut c = server.client();
    let requests =
        ["SET k 5", "INCR k", "LPUSH k x", "INCRBY k x", "APPEND k 7", "GET k"].map(words);
    let replies = pipeline(&mut c, &requests);
    assert_eq!((&replies[0], &replies[1]), (&Value::ok(), &Value::Int(6)));
    assert!(matches!(&replies[2], Value::Error(text) if text.starts_with("WRONGTYPE")));
    assert!(matches!(&replies[3], Value::Error(text) if text.contains("not an integer")));
    assert_eq!((&replies[4], &replies[5]), (&Value::Int(2), &Value::bulk("67")));
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_incr:calls=1,"), "{stats}");
}

/// A command that leaves its event loop dissolves its group. Nothing of the group happens twice, and
/// the replies keep their order.
#[test]
fn a_long_command_dissolves_its_group() {
    const ELEMENTS: usize = 10_000;
    let server = TestServer::start();
    let mut c = server.client();
    for from in (0..ELEMENTS).step_by(1_000) {
        let mut push = words("RPUSH list");
        push.extend((from..from + 1_000).map(|i| i.to_string()));
        pipeline(&mut c, &[push]);
    }
    let requests = ["RPUSH list a", "LPUSH list b", "LRANGE list 0 -1", "RPOP list", "LPOP list"];
    let replies = pipeline(&mut c, &requests.map(words));
    let len = ELEMENTS as i64;
    assert_eq!((&replies[0], &replies[1]), (&Value::Int(len + 1), &Value::Int(len + 2)));
    assert_eq!(replies[2].items().len(), ELEMENTS + 2);
    assert_eq!((&replies[3], &replies[4]), (&Value::bulk("a"), &Value::bulk("b")));
    assert_eq!(c.call(&["LLEN", "list"]), Value::Int(len));
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_rpush:calls=11,"), "{stats}");
    assert!(stats.contains("cmdstat_lrange:calls=1,"), "{stats}");
}

/// Reads of a grown collection need its lock, which a group of reads takes in a second run.
#[test]
fn a_group_of_reads_runs_again_under_the_lock() {
    let server = TestServer::start();
    let mut c = server.client();
    for i in 0..200 {
        c.call(&["HSET", "hash", &format!("field-{i}"), &format!("value-{i}")]);
    }
    let requests = ["HLEN hash", "HGET hash field-7", "HEXISTS hash field-8", "HLEN hash"];
    let replies = pipeline(&mut c, &requests.map(words));
    let want = [Value::Int(200), Value::bulk("value-7"), Value::Int(1), Value::Int(200)];
    assert_eq!(replies, want);
    let stats = c.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_hlen:calls=2,"), "{stats}");
}

/// At full memory the commands of a group that find room succeed, and the others do not.
#[test]
fn full_memory_refuses_single_commands_of_a_group() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "1"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let long = "x".repeat(20_000);
    let requests = vec![words("GET k"), words(&format!("SETRANGE k 0 {long}")), words("STRLEN k")];
    let replies = pipeline(&mut c, &requests);
    assert_eq!(replies[0], Value::bulk("1"));
    match &replies[1] {
        Value::Error(text) => {
            assert!(text.starts_with("OOM"), "{text}");
            assert_eq!(replies[2], Value::Int(1));
        }
        done => panic!("there was room: {done:?}"),
    }
}

/// An error that dissolves a group counts once, and so do the errors before it.
#[test]
fn errors_of_a_dissolved_group_count_once() {
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SET", "k", "1"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    c.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    c.call(&["CONFIG", "RESETSTAT"]);
    c.call(&["SLOWLOG", "RESET"]);
    let long = "x".repeat(20_000);
    let requests = [words("STRLEN k"), words("LPUSH k x"), words(&format!("SETRANGE k 0 {long}"))];
    let replies = pipeline(&mut c, &requests);
    assert_eq!(replies[0], Value::Int(1));
    assert!(matches!(&replies[1], Value::Error(text) if text.starts_with("WRONGTYPE")));
    assert!(matches!(&replies[2], Value::Error(text) if text.starts_with("OOM")));
    // RESETSTAT and RESET were slow, too.
    let slow = c.call(&["SLOWLOG", "LEN"]);
    assert_eq!(slow, Value::Int(4));
    let stats = c.call(&["INFO", "commandstats"]).text();
    for command in ["lpush", "setrange"] {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let line = line.expect("the command ran");
        assert!(line.contains(":calls=1,") && line.contains("failed_calls=1"), "{line}");
    }
    let stats = c.call(&["INFO", "errorstats"]).text();
    assert!(
        stats.contains("errorstat_OOM:count=1") && stats.contains("WRONGTYPE:count=1"),
        "{stats}"
    );
}

/// Commands that change a long string are transactions of their own, since each command of a group
/// would copy the string.
#[test]
fn commands_on_a_long_string_are_no_group() {
    const COMMANDS: u64 = 30;
    let server = TestServer::start();
    let mut c = server.client();
    c.call(&["SETRANGE", "bits", "1000000", "x"]);
    let requests: Vec<Vec<String>> =
        (0..COMMANDS).map(|i| words(&format!("SETBIT bits {} 1", 9 * i))).collect();
    let before = written(&mut c);
    assert_eq!(pipeline(&mut c, &requests), vec![Value::Int(0); COMMANDS as usize]);
    assert_eq!(written(&mut c) - before, COMMANDS);
    assert_eq!(c.call(&["BITCOUNT", "bits", "0", "999"]), Value::Int(COMMANDS as i64));
}

/// Commands on one key `k` by its kind. `#` is a name of few, `%` a value, `@` a position.
const ON_A_KEY: [&[&str]; 4] = [
    &[
        "RPUSH k %",
        "LPUSH k % %",
        "RPOP k",
        "LPOP k",
        "LPOP k 3",
        "LINDEX k @",
        "LSET k @ %",
        "LRANGE k 0 -1",
        "LINSERT k BEFORE @ %",
        "LTRIM k 1 -2",
        "LLEN k",
        "LREM k 1 %",
        "HSET k # %",
        "DEL k",
        "RPUSHX k %",
        "TYPE k",
    ],
    &[
        "HSET k # %",
        "HSET k # % # %",
        "HDEL k #",
        "HGET k #",
        "HINCRBY k # 7",
        "HINCRBYFLOAT k # 0.5",
        "HSETNX k # %",
        "HMGET k # #",
        "HEXISTS k #",
        "HGETALL k",
        "HLEN k",
        "HSTRLEN k #",
        "LPUSH k %",
        "HDEL k # # #",
        "DEL k",
        "HPEXPIRE k 9999999 FIELDS 1 #",
    ],
    &[
        "SADD k #",
        "SADD k # # #",
        "SREM k #",
        "SISMEMBER k #",
        "SMISMEMBER k # #",
        "SMEMBERS k",
        "SCARD k",
        "ZADD k 1 #",
        "SREM k # # #",
        "DEL k",
        "OBJECT ENCODING k",
        "PERSIST k",
    ],
    &[
        "ZADD k @ #",
        "ZADD k @ # @ #",
        "ZADD k GT @ #",
        "ZINCRBY k @ #",
        "ZREM k #",
        "ZSCORE k #",
        "ZMSCORE k # #",
        "ZPOPMIN k",
        "ZPOPMAX k 2",
        "ZRANGE k 0 -1 WITHSCORES",
        "ZRANK k #",
        "ZCARD k",
        "ZCOUNT k 5 70",
        "ZADD k nan #",
        "SADD k #",
        "DEL k",
        "ZREMRANGEBYRANK k 0 0",
    ],
];

/// One command of a template, with random arguments.
fn made(template: &str, key: &str, rng: &SeededRng) -> Vec<String> {
    let word = |word: &str| match word {
        "k" => key.to_owned(),
        "#" => format!("name-{:03}", rng.below(300)),
        "%" => format!("{:0len$}", rng.below(90), len = 1 + rng.below(40) as usize),
        "@" => (rng.below(120) as i64 - 20).to_string(),
        word => word.to_owned(),
    };
    template.split(' ').map(word).collect()
}

/// Hashes and sets have no order.
fn in_order(command: &[String], reply: Value) -> Value {
    let Value::Array(items) = reply else { return reply };
    let step = match &*command[0] {
        "HGETALL" => 2,
        "SMEMBERS" => 1,
        _ => return Value::Array(items),
    };
    let mut parts: Vec<String> = items.chunks(step).map(|part| format!("{:?}", part)).collect();
    parts.sort_unstable();
    Value::Array(parts.iter().map(|part| Value::bulk(part)).collect())
}

/// Commands that leave the collection open for the next one do what single commands do, whatever comes between.
#[test]
fn groups_do_what_single_commands_do() {
    let server = TestServer::start();
    let (mut c, rng) = (server.client(), SeededRng::new(5));
    for round in 0..600 {
        let kind = rng.below(4) as usize;
        // Most commands are of the kind that the rows leave open. DEL comes rarely.
        let templates = ON_A_KEY[kind];
        let count = 2 + rng.below(40);
        let chosen: Vec<&str> = (0..count)
            .map(|_| templates[rng.below(templates.len() as u64) as usize])
            .map(
                |template| {
                    if template == "DEL k" && rng.below(20) > 0 { templates[0] } else { template }
                },
            )
            .collect();
        let seed = rng.below(u64::MAX);
        let commands = |key: &str| -> Vec<Vec<String>> {
            let rng = SeededRng::new(seed);
            chosen.iter().map(|template| made(template, &format!("{key}{kind}"), &rng)).collect()
        };
        let (alone, group) = (commands("alone"), commands("group"));
        let single: Vec<Value> = alone
            .iter()
            .flat_map(|command| pipeline(&mut c, std::slice::from_ref(command)))
            .collect();
        let together = pipeline(&mut c, &group);
        for ((command, single), together) in alone.iter().zip(single).zip(together) {
            let (single, together) = (in_order(command, single), in_order(command, together));
            assert_eq!(single, together, "round {round}: {command:?} of {alone:?}");
        }
    }
    assert!(server.look(verify) > 0, "collections have nodes");
}

/// A server with one event loop, whose rounds have the commands of all its clients.
fn one_loop() -> TestServer {
    let mut config = config();
    config.threads = 1;
    TestServer::with(config)
}

/// Sends requests of several clients, which run in one round.
pub(crate) fn send_in_one_round(
    control: &mut Client,
    clients: &mut [Client],
    requests: &[Vec<Vec<String>>],
) {
    control.call(&["CLIENT", "PAUSE", "60000", "ALL"]);
    for (client, requests) in clients.iter_mut().zip(requests) {
        client.send_raw(&encoded(requests));
    }
    // A request that comes later runs in a round of its own.
    RealClock.sleep(Duration::from_millis(5));
    control.call(&["CLIENT", "UNPAUSE"]);
}

/// As [`send_in_one_round`], and gives the replies of each client.
fn in_one_round(
    control: &mut Client,
    clients: &mut [Client],
    requests: &[Vec<Vec<String>>],
) -> Vec<Vec<Value>> {
    send_in_one_round(control, clients, requests);
    let read = |(client, requests): (&mut Client, &Vec<Vec<String>>)| {
        requests.iter().map(|_| client.read()).collect()
    };
    clients.iter_mut().zip(requests).map(read).collect()
}

/// Commands of several clients on one key are one transaction. Each client gets the replies to its own.
#[test]
fn clients_share_a_group() {
    const CLIENTS: usize = 20;
    let server = one_loop();
    let mut control = server.client();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    let before = written(&mut control);
    let requests: Vec<Vec<Vec<String>>> = (0..CLIENTS)
        .map(|i| match i % 4 {
            3 => vec![words("SADD list x")],
            _ => vec![words(&format!("RPUSH list {i}")), words("LINDEX list -1")],
        })
        .collect();
    let replies = in_one_round(&mut control, &mut clients, &requests);
    let list = control.call(&["LRANGE", "list", "0", "-1"]);
    for (i, replies) in replies.iter().enumerate() {
        match &replies[..] {
            [Value::Error(text)] => assert!(text.starts_with("WRONGTYPE"), "{text}"),
            // The set may come first.
            [Value::Int(1)] => panic!("the list comes first: it has the most clients"),
            [Value::Int(len), last] => {
                assert_eq!(list.items()[*len as usize - 1].text(), i.to_string());
                assert_eq!(last.text(), i.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(list.items().len(), CLIENTS - CLIENTS / 4);
    let count = written(&mut control) - before;
    assert!((1..10).contains(&count), "{count} transactions");
}

/// A command that leaves its event loop, of one client, dissolves the group of all.
#[test]
fn a_long_command_dissolves_the_group_of_several_clients() {
    const ELEMENTS: usize = 10_000;
    let server = one_loop();
    let mut control = server.client();
    let mut clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    for from in (0..ELEMENTS).step_by(1_000) {
        let mut push = words("RPUSH list");
        push.extend((from..from + 1_000).map(|i| i.to_string()));
        pipeline(&mut control, &[push]);
    }
    let requests: Vec<Vec<Vec<String>>> = (0..6)
        .map(|i| match i {
            3 => vec![words("RPUSH list 3"), words("LRANGE list 0 -1"), words("RPUSH list 3")],
            _ => vec![words(&format!("RPUSH list {i}")), words(&format!("RPUSH list {i}"))],
        })
        .collect();
    let replies = in_one_round(&mut control, &mut clients, &requests);
    let list = control.call(&["LRANGE", "list", "0", "-1"]);
    assert_eq!(list.items().len(), ELEMENTS + 12);
    for (i, replies) in replies.iter().enumerate() {
        let lens = replies.iter().filter_map(|reply| match reply {
            Value::Int(len) => Some(*len as usize),
            _ => None,
        });
        let lens: Vec<usize> = lens.collect();
        assert_eq!(lens.len(), 2, "client {i}");
        lens.iter().for_each(|len| assert_eq!(list.items()[len - 1].text(), i.to_string()));
        assert!(lens[0] < lens[1], "the replies of a client keep their order");
    }
    assert!(replies[3][1].items().len() > ELEMENTS);
    let stats = control.call(&["INFO", "commandstats"]).text();
    assert!(stats.contains("cmdstat_rpush:calls=22,"), "{stats}");
}

/// Three clients send random commands in one round. Their replies are those of single commands, in one of the
/// orders of the clients.
#[test]
fn groups_of_clients_are_serial() {
    const ORDERS: [[usize; 3]; 6] =
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let server = one_loop();
    let (mut control, rng) = (server.client(), SeededRng::new(9));
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    for round in 0..150 {
        let kind = rng.below(4) as usize;
        let (key, base) = (format!("k{kind}"), format!("base{kind}"));
        let templates: Vec<&str> =
            ON_A_KEY[kind].iter().copied().filter(|template| *template != "DEL k").collect();
        let requests: Vec<Vec<Vec<String>>> = (0..3)
            .map(|_| {
                let one = || templates[rng.below(templates.len() as u64) as usize];
                (0..1 + rng.below(7)).map(|_| made(one(), &key, &rng)).collect()
            })
            .collect();
        control.call(&["DEL", &base]);
        control.call(&["COPY", &key, &base]);
        let got = in_one_round(&mut control, &mut clients, &requests);
        let explains = |order: &[usize; 3], control: &mut Client| {
            control.call(&["DEL", "trial"]);
            control.call(&["COPY", &base, "trial"]);
            order.iter().all(|&client| {
                requests[client].iter().zip(&got[client]).all(|(request, got)| {
                    let own = |word: &String| match **word == key {
                        true => "trial".to_owned(),
                        false => word.clone(),
                    };
                    let request: Vec<String> = request.iter().map(own).collect();
                    let single = pipeline(control, std::slice::from_ref(&request)).remove(0);
                    in_order(&request, single) == in_order(&request, got.clone())
                })
            })
        };
        let found = ORDERS.iter().any(|order| explains(order, &mut control));
        assert!(found, "round {round}: no order explains {got:?} to {requests:?}");
    }
    assert!(server.look(verify) > 0, "collections have nodes");
}

/// What a dissolved group has noted is not counted with the group behind it, which cannot begin.
#[test]
fn a_group_that_cannot_begin_counts_nothing_of_the_one_before() {
    const ROUNDS: u64 = 20;
    let server = one_loop();
    let mut control = server.client();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    control.call(&["RPUSH", "list", "x", "y"]);
    let long_key = words(&format!("EXISTS {}", "k".repeat(65_537)));
    let fails = ["RPUSH list x", "LINDEX list word"].map(words).to_vec();
    let requests = vec![vec![long_key.clone()], fails, vec![long_key]];
    for _ in 0..ROUNDS {
        let replies = in_one_round(&mut control, &mut clients, &requests);
        assert!(matches!(replies[1][1], Value::Error(_)), "{replies:?}");
        assert!(matches!(replies[0][0], Value::Error(_)), "{replies:?}");
    }
    let stats = control.call(&["INFO", "commandstats"]).text();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_lindex:"));
    let line = line.expect("the command ran");
    assert!(line.contains(&format!(":calls={ROUNDS},")), "{line}");
    assert!(line.contains(&format!("failed_calls={ROUNDS}")), "{line}");
}
