//! Commands that wait for keys.

use std::time::Duration;

use stillpoint_io::{Clock, RealClock};

use crate::common::{Client, RealRedis, TestServer, Value};

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

fn send(client: &mut Client, command: &str) {
    let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    client.send(&args);
}

/// Waits until that many clients wait.
fn await_blocked(client: &mut Client, count: usize) {
    let expected = format!("blocked_clients:{count}\r\n");
    for _ in 0..400 {
        let Value::Bulk(info) = client.call(&["INFO", "clients"]) else { panic!("INFO") };
        if String::from_utf8_lossy(&info).contains(&expected) {
            return;
        }
        RealClock.sleep(Duration::from_millis(5));
    }
    panic!("{count} clients do not wait");
}

/// A command that waits, and a command that ends the wait.
const WAITS_AND_MAKES: &[(&str, &str)] = &[
    ("BLPOP a 0", "RPUSH a 1"),
    ("BRPOP b a 5", "LPUSH a 1 2"),
    ("BLMOVE a b LEFT RIGHT 0", "RPUSH a x"),
    ("BRPOPLPUSH a a 0", "RPUSH a y z"),
    ("BLMPOP 0 2 b a LEFT COUNT 2", "RPUSH a 1 2 3"),
    ("BZPOPMIN a b 0", "ZADD b 1 one 2 two"),
    ("BZPOPMAX a b 0", "ZADD b 1 one 2 two"),
    ("BZMPOP 0 2 a b MIN COUNT 2", "ZADD b 1 one 2 two 3 three"),
    ("BLPOP a 0", "COPY c a"),
    ("BLPOP a 0", "RENAME c a"),
    ("BZPOPMIN a 0", "ZUNIONSTORE a 2 z z"),
];

/// Commands that are answered without another client.
const COMMANDS: &[&str] = &[
    "BLPOP a 0.01",
    "BLMOVE a b LEFT LEFT 0.01",
    "BZPOPMIN a b 0.01",
    "BLPOP a x",
    "BLPOP a -1",
    "BLPOP a 1e300",
    "BLMPOP 0 0 a LEFT",
    "BLMOVE a b UP LEFT 0",
    "MULTI",
    "BLPOP a 0",
    "BRPOPLPUSH a b 0",
    "BZMPOP 0 1 a MIN",
    "EXEC",
];

/// Runs the same script against one server: several clients wait, and one makes keys.
fn script(port: u16) -> Vec<Value> {
    let mut waiting: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    let mut maker = Client::connect(port);
    let mut seen = Vec::new();
    for (waits, makes) in WAITS_AND_MAKES {
        maker.call(&words("DEL a b c z"));
        maker.call(&words("RPUSH c element"));
        maker.call(&words("ZADD z 1.5 member"));
        send(&mut waiting[0], waits);
        await_blocked(&mut maker, 1);
        seen.push(maker.call(&words(makes)));
        seen.push(waiting[0].read());
        seen.push(maker.call(&words("LRANGE a 0 -1")));
        seen.push(maker.call(&words("ZRANGE b 0 -1")));
    }
    // Clients are served in the order in which they came, and remaining elements stay.
    maker.call(&words("DEL a b"));
    for (i, client) in waiting.iter_mut().enumerate() {
        send(client, "BLPOP a 0");
        await_blocked(&mut maker, i + 1);
    }
    seen.push(maker.call(&words("RPUSH a first second third fourth")));
    seen.extend(waiting.iter_mut().map(Client::read));
    seen.push(maker.call(&words("LRANGE a 0 -1")));
    // A key of another kind does not wake waiting clients.
    maker.call(&words("DEL a"));
    send(&mut waiting[0], "BLPOP a 0");
    await_blocked(&mut maker, 1);
    send(&mut waiting[1], "BZPOPMIN a 0");
    await_blocked(&mut maker, 2);
    seen.push(maker.call(&words("ZADD a 1 m")));
    seen.push(waiting[1].read());
    seen.push(maker.call(&words("RPUSH a element")));
    seen.push(waiting[0].read());
    seen.extend(rest_of_script(waiting, maker));
    seen
}

/// Timeouts, errors, transactions, requests behind the one that waits, and clients that leave.
fn rest_of_script(mut waiting: Vec<Client>, mut maker: Client) -> Vec<Value> {
    let mut seen = Vec::new();
    for command in COMMANDS {
        seen.push(waiting[0].call(&words(command)));
    }
    send(&mut waiting[0], "BLPOP a 0");
    send(&mut waiting[0], "PING");
    await_blocked(&mut maker, 1);
    seen.push(maker.call(&words("RPUSH a element")));
    seen.extend([waiting[0].read(), waiting[0].read()]);
    let Value::Int(id) = waiting[0].call(&words("CLIENT ID")) else { panic!("an id") };
    for how in ["TIMEOUT", "ERROR"] {
        send(&mut waiting[0], "BLPOP a 0");
        await_blocked(&mut maker, 1);
        seen.push(maker.call(&["CLIENT", "UNBLOCK", &id.to_string(), how]));
        seen.push(waiting[0].read());
    }
    seen.push(maker.call(&["CLIENT", "UNBLOCK", &id.to_string()]));
    // A client that is gone takes nothing.
    for client in &mut waiting {
        send(client, "BRPOP a 0");
    }
    await_blocked(&mut maker, 3);
    drop(waiting);
    await_blocked(&mut maker, 0);
    seen.push(maker.call(&words("RPUSH a element")));
    seen.push(maker.call(&words("LLEN a")));
    seen
}

/// Two clients that wait in this order, and commands after which each of them has a reply.
const CHAINS: &[([&str; 2], &[&str])] = &[
    // The command of the client that is woken first ends in an error, or moves within one list.
    (["BLMOVE a s LEFT RIGHT 0", "BLPOP a 0"], &["RPUSH a 1 2"]),
    (["BRPOPLPUSH a s 0", "BLPOP b a 0"], &["RPUSH a 1"]),
    (["BLMOVE a a LEFT RIGHT 0", "BLPOP a 0"], &["RPUSH a x y"]),
    (["BRPOPLPUSH a a 0", "BLPOP a 0"], &["RPUSH a x"]),
    // The key has a value of another kind before the list comes to it.
    (["BLPOP a 0", "BLPOP a 0"], &["SET a x", "RENAME l a"]),
    (["BLPOP a 0", "BRPOP a 0"], &["SADD a x", "COPY l a REPLACE"]),
    (["BZPOPMIN a 0", "BZPOPMAX a 0"], &["RPUSH a x", "RENAME z a"]),
    (["BLPOP a 0", "BLPOP a 0"], &["ZADD a 1 m", "COPY l a REPLACE"]),
];

/// Runs chains of clients that wait against one server.
fn chains(port: u16) -> Vec<Value> {
    let mut waiting: Vec<Client> = (0..2).map(|_| Client::connect(port)).collect();
    let mut maker = Client::connect(port);
    let mut seen = Vec::new();
    for (waits, makes) in CHAINS {
        for command in
            ["DEL a b l z", "SET s string", "RPUSH l 1 2 3", "ZADD z 1 one 2 two 3 three"]
        {
            maker.call(&words(command));
        }
        for (i, client) in waiting.iter_mut().enumerate() {
            send(client, waits[i]);
            await_blocked(&mut maker, i + 1);
        }
        seen.extend(makes.iter().map(|command| maker.call(&words(command))));
        seen.extend(waiting.iter_mut().map(Client::read));
        seen.push(maker.call(&words("EXISTS a")));
        seen.push(maker.call(&words("TYPE a")));
    }
    seen
}

/// Clients that wait in this order, each for one reply, and commands that one client sends at once. What it reads
/// behind the command that makes a key shows that the clients were served with it.
const SERVED: &[(&[&str], &[&str])] = &[
    (&["BLPOP a 0"], &["RPUSH a x", "LLEN a", "RPUSH a y", "EXISTS a"]),
    (&["BRPOP a 0", "BLPOP a 0"], &["RPUSH a 1 2 3", "LRANGE a 0 -1", "RPUSH a 4", "LLEN a"]),
    (&["BLMPOP 0 2 b a LEFT COUNT 2"], &["RPUSH a 1 2 3", "LLEN a"]),
    (&["BZPOPMIN z 0", "BZPOPMAX z 0"], &["ZADD z 1.5 one 2 two 3 three", "ZRANGE z 0 -1"]),
    (
        &["BZMPOP 0 1 z MAX COUNT 9"],
        &["ZADD z 1 one 2 two", "EXISTS z", "ZADD z 3 three", "ZCARD z"],
    ),
    // An element goes from list to list.
    (
        &["BLMOVE a b LEFT RIGHT 0", "BLMOVE b c LEFT RIGHT 0", "BLPOP c 0"],
        &["RPUSH a x", "EXISTS a b c"],
    ),
    (
        &["BLMOVE a b LEFT LEFT 0", "BLMOVE b a RIGHT RIGHT 0"],
        &["RPUSH a x", "LRANGE a 0 -1", "EXISTS b"],
    ),
    (&["BLMOVE a a LEFT RIGHT 0", "BRPOP a 0"], &["RPUSH a x y", "LRANGE a 0 -1"]),
    (&["BRPOPLPUSH a s 0", "BLPOP a 0"], &["RPUSH a 1 2", "LRANGE a 0 -1", "GET s"]),
    // Other commands than pushes.
    (&["BLPOP a 0"], &["COPY l a", "LRANGE a 0 -1"]),
    (&["BLMOVE a b LEFT RIGHT 0", "BLPOP b 0"], &["RENAME l a", "LRANGE a 0 -1", "EXISTS b l"]),
    (&["BLPOP a 0"], &["SORT l STORE a", "LLEN a"]),
    (&["BLPOP b 0"], &["LMOVE l b LEFT LEFT", "EXISTS b"]),
    (&["BZPOPMAX z 0"], &["ZUNIONSTORE z 1 y", "ZCARD z"]),
    // A queue serves at its end, the key first that it has made first.
    (
        &["BLPOP b a 0", "BLPOP b 0"],
        &["MULTI", "RPUSH a 1", "LLEN a", "RPUSH b 2", "EXEC", "EXISTS a b"],
    ),
    (&["BLPOP a 0"], &["MULTI", "RPUSH a 1", "DEL a", "RPUSH a 2 3", "EXEC", "LLEN a"]),
    (
        &["BLPOP a 0"],
        &["MULTI", "RPUSH a 1", "LPOP a", "EXEC", "EXISTS a", "RPUSH a 2", "EXISTS a"],
    ),
    (
        &["BLMOVE a b LEFT LEFT 0", "BLPOP b 0"],
        &["MULTI", "SET t 1", "RPUSH a 1", "EXEC", "EXISTS a b"],
    ),
    (&["BLPOP a 0"], &["MULTI", "SADD a 1", "EXEC", "DEL a", "RPUSH a x", "LLEN a"]),
];

/// Runs these against one server. Every second time the clients that wait speak RESP3.
fn served(port: u16) -> Vec<Value> {
    let mut waiting: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    let mut maker = Client::connect(port);
    let mut seen = Vec::new();
    for (i, (waits, makes)) in SERVED.iter().chain(SERVED).enumerate() {
        for command in ["FLUSHALL", "SET s string", "RPUSH l 1 2 3", "ZADD y 1 one 2.5 two"] {
            maker.call(&words(command));
        }
        for (k, command) in waits.iter().enumerate() {
            waiting[k].call(&["HELLO", if i < SERVED.len() { "2" } else { "3" }]);
            send(&mut waiting[k], command);
            await_blocked(&mut maker, k + 1);
        }
        makes.iter().for_each(|command| send(&mut maker, command));
        seen.extend(makes.iter().map(|_| maker.read()));
        seen.extend(waiting[..waits.len()].iter_mut().map(Client::read));
    }
    seen
}

#[test]
fn clients_wait_as_those_of_redis() {
    let server = TestServer::start();
    let all = |port| [script(port), chains(port), served(port)].concat();
    let ours = all(server.port);
    let Some(redis) = RealRedis::start(&[]) else { return };
    let theirs = all(redis.port);
    for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "reply {i}");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Each element goes to exactly one client, whichever event loops serve the clients.
#[test]
fn elements_go_to_one_client_each() {
    const CONSUMERS: usize = 8;
    const ELEMENTS: usize = 2000;
    let server = TestServer::start();
    let port = server.port;
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|i| {
            let work = move || {
                let mut client = Client::connect(port);
                let mut taken = Vec::new();
                loop {
                    match client.call(&words("BLPOP queue 20")) {
                        Value::Array(pair) => match &pair[1] {
                            Value::Bulk(element) if element == b"end" => return taken,
                            element => taken.push(format!("{element:?}")),
                        },
                        other => panic!("{other:?}"),
                    }
                }
            };
            stillpoint_io::spawn(&format!("consumer-{i}"), work).expect("a thread")
        })
        .collect();
    let mut producers = [Client::connect(port), Client::connect(port)];
    for i in 0..ELEMENTS {
        let element = i.to_string();
        let pushed = producers[i % 2].call(&["RPUSH", "queue", &element]);
        assert!(matches!(pushed, Value::Int(_)), "{pushed:?}");
    }
    for _ in 0..CONSUMERS {
        producers[0].call(&["RPUSH", "queue", "end"]);
    }
    let mut taken: Vec<String> =
        consumers.into_iter().flat_map(|consumer| consumer.join().expect("it ends")).collect();
    let count = taken.len();
    taken.sort();
    taken.dedup();
    assert_eq!((count, taken.len()), (ELEMENTS, ELEMENTS));
    assert_eq!(producers[0].call(&["EXISTS", "queue"]), Value::Int(0));
}

/// A command with very many keys waits as any other, although it runs beside the event loops.
#[test]
fn a_command_with_thousands_of_keys_waits() {
    let server = TestServer::start();
    let (mut maker, mut waiting) = (server.client(), server.client());
    let keys: Vec<String> = (0..3_000).map(|number| format!("key{number}")).collect();
    let mut request = vec!["BLPOP"];
    request.extend(keys.iter().map(String::as_str));
    for (last, timeout) in [(true, "0.05"), (false, "0")] {
        let mut request = request.clone();
        request.push(timeout);
        waiting.send(&request.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        if last {
            assert_eq!(waiting.read(), Value::Null);
        }
    }
    await_blocked(&mut maker, 1);
    assert_eq!(maker.call(&words("RPUSH key2999 element")), Value::Int(1));
    let popped = Value::Array(vec![Value::bulk("key2999"), Value::bulk("element")]);
    assert_eq!(waiting.read(), popped);
}

/// Whoever makes a key serves the client that waits for it, whichever event loop has the client. A client that was
/// killed gets nothing, and one that has left neither.
#[test]
fn what_is_pushed_is_gone_behind_the_push() {
    let server = TestServer::start();
    let mut maker = server.client();
    let mut waiting: Vec<Client> = (0..4).map(|_| server.client()).collect();
    let id = waiting[3].call(&words("CLIENT ID")).int();
    for round in 0..50 {
        for client in &mut waiting[..2] {
            send(client, "BLMOVE a b LEFT RIGHT 0");
        }
        send(&mut waiting[2], "BLPOP b 0");
        await_blocked(&mut maker, 3);
        for command in ["RPUSH a one", "LLEN a", "LPUSH a two", "EXISTS a", "LLEN b", "DEL b"] {
            send(&mut maker, command);
        }
        let seen: Vec<i64> = (0..6).map(|_| maker.read().int()).collect();
        assert_eq!(seen, [1, 0, 1, 0, 1, 1], "round {round}");
        assert!(waiting[..3].iter_mut().all(|client| client.read() != Value::Null));
    }
    send(&mut waiting[3], "BLPOP a 0");
    await_blocked(&mut maker, 1);
    maker.send(&[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]);
    send(&mut maker, "RPUSH a one");
    send(&mut maker, "LLEN a");
    assert_eq!((0..3).map(|_| maker.read().int()).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(waiting[3].read(), Value::Closed);
}

/// Clients that wait keep their places when databases are exchanged, theirs or others.
#[test]
fn an_exchange_of_databases_leaves_waiters_their_order() {
    let server = TestServer::start();
    let mut maker = server.client();
    let mut waiting: Vec<Client> = (0..12).map(|_| server.client()).collect();
    for exchange in ["SWAPDB 5 6", "SWAPDB 0 1"] {
        for (i, client) in waiting.iter_mut().enumerate() {
            send(client, "BLPOP a b 0");
            await_blocked(&mut maker, i + 1);
        }
        assert_eq!(maker.call(&words(exchange)), Value::ok());
        // Each looks at its keys first.
        RealClock.sleep(Duration::from_millis(50));
        maker.call(&words("RPUSH a 0 1 2 3 4 5 6 7 8 9 10 11"));
        for (i, client) in waiting.iter_mut().enumerate() {
            assert_eq!(client.read().items()[1].text(), i.to_string(), "{exchange}");
        }
    }
}

/// Elements go from one list to another while clients leave, time out, and push on several event loops. None is lost,
/// and none is there twice.
#[test]
fn no_element_is_lost_between_lists() {
    const ELEMENTS: usize = 400;
    let server = TestServer::start();
    let port = server.port;
    let movers = (0..4).map(|i| {
        let work = move || {
            let mut client = Client::connect(port);
            for turn in 0..60 {
                let timeout = ["0", "0.002", "0.01"][(i + turn) % 3];
                send(&mut client, &format!("BLMOVE a b LEFT RIGHT {timeout}"));
                if timeout != "0" {
                    client.read();
                } else {
                    // It leaves while it waits, or while it is served.
                    RealClock.sleep(Duration::from_micros(300));
                    client = Client::connect(port);
                }
            }
        };
        stillpoint_io::spawn(&format!("mover-{i}"), work).expect("a thread")
    });
    let movers: Vec<_> = movers.collect();
    let mut pushers = [server.client(), server.client()];
    for i in 0..ELEMENTS {
        let pushed = pushers[i % 2].call(&["RPUSH", "a", &i.to_string()]);
        assert!(matches!(pushed, Value::Int(_)), "{pushed:?}");
        if i % 8 == 0 {
            RealClock.sleep(Duration::from_millis(1));
        }
    }
    movers.into_iter().for_each(|mover| mover.join().expect("it ends"));
    await_blocked(&mut pushers[0], 0);
    let mut all = Vec::new();
    for list in ["a", "b"] {
        let elements = pushers[0].call(&["LRANGE", list, "0", "-1"]);
        all.extend(elements.items().iter().map(Value::text));
    }
    assert_eq!(all.len(), ELEMENTS);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), ELEMENTS);
}
