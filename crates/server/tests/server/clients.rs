//! Tests with widely used clients: the redis crate, redis-cli, redis-benchmark, jedis, ioredis, go-redis, redis-py.

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

/// Runs a program that uses a client library against a server with a password. The program gets the port and the
/// password as its last arguments, and says that the library works.
fn program_works(library: &str, program: &str, args: &[&str]) {
    let mut config = config();
    config.requirepass = Some("a password".to_owned());
    let server = TestServer::with(config);
    let port = server.port.to_string();
    let args = [args, &[&port, "a password"]].concat();
    let Some(output) = tool(program, &args) else { return };
    let expected = format!("{library} works");
    assert!(output.lines().any(|line| line == expected), "{output}");
}

/// The files of a client library, which the environment names.
fn files_of(library: &str, variable: &str) -> Option<String> {
    let files = std::env::var(variable).ok();
    if files.is_none() {
        skipped(&format!("{library} ({variable} names no files)"));
    }
    files
}

/// Where the programs are.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server");

/// `STILLPOINT_JEDIS` names the directory of jedis and its dependencies. `mvn -f
/// crates/server/tests/server/jedis dependency:copy-dependencies` fetches both.
#[test]
fn jedis_works() {
    let Some(jars) = files_of("jedis", "STILLPOINT_JEDIS") else { return };
    let program = format!("{PROGRAMS}/jedis/JedisWorks.java");
    program_works("jedis", "java", &["-cp", &format!("{jars}/*"), &program]);
}

/// `STILLPOINT_IOREDIS` names the directory of modules that `npm install` has made beside a copy of
/// `crates/server/tests/server/ioredis/package.json`.
#[test]
fn ioredis_works() {
    let Some(modules) = files_of("ioredis", "STILLPOINT_IOREDIS") else { return };
    let program = format!("{PROGRAMS}/ioredis/works.js");
    program_works("ioredis", "env", &[&format!("NODE_PATH={modules}"), "node", &program]);
}

/// `STILLPOINT_GO_REDIS` names the program that `go build` has made in `crates/server/tests/server/goredis`.
#[test]
fn go_redis_works() {
    let Some(program) = files_of("go-redis", "STILLPOINT_GO_REDIS") else { return };
    program_works("go-redis", &program, &[]);
}

/// `STILLPOINT_REDIS_PY` names the directory of an unpacked source package of redis-py, with what its tests need in
/// its folder `site`. Its own tests of commands pass, but those in the list of what is not here.
#[test]
fn the_tests_of_redis_py_pass() {
    let Some(package) = files_of("redis-py", "STILLPOINT_REDIS_PY") else { return };
    let server = TestServer::start();
    let url = format!("--redis-url=redis://127.0.0.1:{}/9", server.port);
    let left_out: Vec<String> = include_str!("redis_py/left_out.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|name| format!("--deselect=tests/{name}"))
        .collect();
    let (site, rootdir) =
        (format!("PYTHONPATH={package}/site:{package}"), format!("--rootdir={package}"));
    let files = ["test_hash.py", "test_commands.py"].map(|file| format!("{package}/tests/{file}"));
    let mut args = vec![&*site, "PYTHONDONTWRITEBYTECODE=1", "python3", "-m", "pytest", "-q", "-c"];
    args.extend(["/dev/null", "-p", "no:cacheprovider", &rootdir, &url, &files[0], &files[1]]);
    args.extend(left_out.iter().map(|option| &**option));
    let Some(output) = tool("env", &args) else { return };
    let last = output.lines().rfind(|line| line.contains(" passed")).unwrap_or_default();
    let is_sound = ![" failed", " error"].iter().any(|word| last.contains(word));
    assert!(last.contains(" passed") && is_sound, "{output}");
}
