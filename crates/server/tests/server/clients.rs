//! Tests with widely used clients: the redis crate, redis-cli, redis-benchmark, jedis.

use std::collections::{HashMap, HashSet};

use redis::Commands;

use crate::common::{TestServer, config, skipped, tool};

#[test]
fn the_redis_crate_works() {
    redis_crate_works_with(&TestServer::start());
}

pub(crate) fn redis_crate_works_with(server: &TestServer) {
    for query in ["", "?protocol=resp3"] {
        let url = format!("redis://127.0.0.1:{}/0{query}", server.port);
        let client = redis::Client::open(url).expect("address");
        let mut con = client.get_connection().expect("connects");
        let _: () = con.set("k", 41).expect("set");
        let n: i64 = con.incr("k", 1).expect("incr");
        assert_eq!(n, 42);
        let (a, b): (i64, Option<String>) = redis::pipe()
            .atomic()
            .incr("k", 1)
            .get("missing")
            .query(&mut con)
            .expect("transaction");
        assert_eq!((a, b), (43, None));
        let found: Vec<String> = con.scan_match::<_, String>("k*").expect("scan").collect();
        assert_eq!(found, ["k"]);
        let _: () = con.del(&["list", "set", "hash", "sorted"]).expect("deleted");
        let len: i64 = con.rpush("list", &["a", "b"]).expect("pushed");
        let all: Vec<String> = con.lrange("list", 0, -1).expect("a range");
        assert_eq!((len, all), (2, vec!["a".to_owned(), "b".to_owned()]));
        let _: () = con.sadd("set", "member").expect("added");
        let members: HashSet<String> = con.smembers("set").expect("members");
        assert_eq!(members, HashSet::from(["member".to_owned()]));
        let _: () = con.hset("hash", "field", 1.5).expect("set");
        let fields: HashMap<String, f64> = con.hgetall("hash").expect("fields");
        assert_eq!(fields, HashMap::from([("field".to_owned(), 1.5)]));
        let _: () = con.zadd("sorted", "member", 2.5).expect("added");
        let scored: Vec<(String, f64)> = con.zrange_withscores("sorted", 0, -1).expect("a range");
        assert_eq!(scored, [("member".to_owned(), 2.5)]);
        let error =
            redis::cmd("XLEN").arg("stream").query::<i64>(&mut con).expect_err("no streams yet");
        assert!(error.to_string().contains("unknown command"), "{error}");
    }
}

#[test]
fn redis_cli_works() {
    let server = TestServer::start();
    let port = server.port.to_string();
    let run = |args: &[&str]| {
        let mut all = vec!["-p", port.as_str()];
        all.extend(args);
        tool("redis-cli", &all)
    };
    let Some(pong) = run(&["PING"]) else { return };
    assert_eq!(pong.trim(), "PONG");
    assert_eq!(run(&["-3", "SET", "k", "v"]).expect("cli").trim(), "OK");
    assert_eq!(run(&["-n", "2", "GET", "k"]).expect("cli").trim(), "");
    assert!(run(&["INFO", "server"]).expect("cli").contains("redis_version"));
    assert!(run(&["--scan"]).expect("cli").contains('k'));
    assert!(run(&["--bigkeys"]).expect("cli").contains("Biggest string found"));
    assert!(run(&["HELP", "GET"]).is_some());
}

#[test]
fn redis_benchmark_works() {
    let server = TestServer::start();
    let port = server.port.to_string();
    let names =
        "set,get,incr,mset,ping,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100";
    let args = ["-p", &port, "-n", "20000", "-c", "20", "-P", "16", "-t", names, "-q"];
    let Some(output) = tool("redis-benchmark", &args) else {
        return;
    };
    assert!(output.matches("requests per second").count() >= 15, "{output}");
    assert!(!output.contains("Error"), "{output}");
}

/// `STILLPOINT_JEDIS` names the directory of jedis and its dependencies. `mvn -f
/// crates/server/tests/server/jedis dependency:copy-dependencies` fetches both.
#[test]
fn jedis_works() {
    let Ok(jars) = std::env::var("STILLPOINT_JEDIS") else {
        return skipped("jedis (STILLPOINT_JEDIS names no directory)");
    };
    let mut config = config();
    config.requirepass = Some("a password".to_owned());
    let server = TestServer::with(config);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/jedis/JedisWorks.java");
    let args = ["-cp", &format!("{jars}/*"), program, &server.port.to_string(), "a password"];
    let Some(output) = tool("java", &args) else { return };
    assert!(output.lines().any(|line| line == "jedis works"), "{output}");
}
