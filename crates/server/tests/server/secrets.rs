//! Tests of passwords, of what logs show of them, and of commands that are for tests only.

use stillpoint_server::DebugCommand;

use crate::common::{Client, TestServer, Value, config, encode, eventually, field};

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn server_with_password() -> TestServer {
    let mut config = config();
    config.requirepass = Some("secret".to_owned());
    TestServer::with(config)
}

#[test]
fn a_right_password_is_admitted_while_another_client_guesses() {
    let server = server_with_password();
    let mut guessers: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for guesser in &mut guessers {
        guesser.send_raw(&encode(&[b"AUTH", b"guess"]).repeat(50));
        guesser.send_raw(&encode(&[b"HELLO", b"3", b"AUTH", b"default", b"guess"]));
    }
    for _ in 0..50 {
        assert_eq!(server.client().call(&["AUTH", "secret"]), Value::ok());
    }
    // A wrong password gets the reply of Redis, and gets it later than the right password.
    let (mut wrong, mut right) = (server.client(), server.client());
    wrong.send(&[b"AUTH", b"guess"]);
    wrong.send(&[b"AUTH", b"secret"]);
    assert_eq!(right.call(&["AUTH", "secret"]), Value::ok());
    let info = right.call(&["INFO", "commandstats"]).text();
    assert!(info.contains("cmdstat_auth"), "{info}");
    assert_eq!(wrong.read().text(), WRONG);
    assert_eq!(wrong.read(), Value::ok());
    assert_eq!(wrong.call(&["HELLO", "3", "AUTH", "default", "guess"]).text(), WRONG);
    assert_eq!(wrong.call(&["AUTH", "nobody", "secret"]).text(), WRONG);
}

#[test]
fn a_client_that_waits_for_its_refusal_does_not_keep_the_server_from_ending() {
    let server = server_with_password();
    let mut c = server.client();
    c.send_raw(&encode(&[b"AUTH", b"guess"]).repeat(1000));
    server.client().call(&["AUTH", "secret"]);
    server.end().expect("a clean end");
}

#[test]
fn a_client_that_came_before_the_password_was_removed_is_served() {
    let server = server_with_password();
    let mut early = server.client();
    assert_eq!(early.call(&["GET", "k"]).text(), "NOAUTH Authentication required.");
    let mut admin = server.client();
    assert_eq!(admin.call(&["AUTH", "secret"]), Value::ok());
    assert_eq!(admin.call(&["CONFIG", "SET", "requirepass", ""]), Value::ok());
    assert_eq!(early.call(&["SET", "k", &"x".repeat(20_000)]), Value::ok());
    assert!(matches!(early.call(&["HELLO", "2"]), Value::Array(_)));
    admin.call(&["CONFIG", "SET", "requirepass", "other"]);
    assert_eq!(early.call(&["GET", "k"]).text(), "NOAUTH Authentication required.");
    assert_eq!(admin.call(&["PING"]).text(), "PONG");
}

#[test]
fn a_refused_change_of_parameters_changes_none_of_them() {
    let server = server_with_password();
    let mut admin = server.client();
    assert_eq!(admin.call(&["AUTH", "secret"]), Value::ok());
    let words = ["CONFIG", "SET", "requirepass", "other", "timeout", "77", "maxmemory", "bad"];
    let refused = admin.call(&words).text();
    assert!(refused.contains("argument must be a memory value"), "{refused}");
    assert_eq!(admin.call(&["CONFIG", "GET", "timeout"]).items()[1], Value::bulk("0"));
    assert_eq!(server.client().call(&["AUTH", "other"]).text(), WRONG);
    assert_eq!(server.client().call(&["AUTH", "secret"]), Value::ok());
    // An unknown or repeated name is refused before anything changes, too.
    for (name, value) in [("no-such", "1"), ("timeout", "79")] {
        let words = ["CONFIG", "SET", "timeout", "78", "loglevel", "warning", name, value];
        assert!(matches!(admin.call(&words), Value::Error(_)), "{name}");
    }
    assert_eq!(admin.call(&["CONFIG", "GET", "timeout"]).items()[1], Value::bulk("0"));
    assert_eq!(admin.call(&["CONFIG", "SET", "timeout", "78", "maxclients", "99"]), Value::ok());
    assert_eq!(admin.call(&["CONFIG", "GET", "timeout"]).items()[1], Value::bulk("78"));
}

#[test]
fn the_slow_log_shows_no_secrets() {
    let server = server_with_password();
    let mut c = server.client();
    c.call(&["AUTH", "secret"]);
    c.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    c.call(&["AUTH", "secret"]);
    c.call(&["AUTH", "default", "secret"]);
    c.call(&["HELLO", "2", "auth", "default", "secret", "SETNAME", "me"]);
    c.call(&["HELLO", "2", "AUTH", "default", "secret-but-wrong"]);
    c.call(&["CONFIG", "SET", "timeout", "0", "RequirePass", "secret"]);
    c.call(&["CONFIG", "SET", "masterauth", "secret"]);
    let log = c.call(&["SLOWLOG", "GET", "100"]);
    let shown: Vec<String> = log.items().iter().map(|entry| words(&entry.items()[3])).collect();
    assert_eq!(
        shown[..6],
        [
            "CONFIG SET masterauth (redacted)",
            "CONFIG SET timeout 0 RequirePass (redacted)",
            "HELLO 2 AUTH (redacted) (redacted)",
            "HELLO 2 auth (redacted) (redacted) SETNAME me",
            "AUTH (redacted) (redacted)",
            "AUTH (redacted)",
        ]
    );
    assert!(!format!("{log:?}").contains("secret"));
}

fn words(args: &Value) -> String {
    args.items().iter().map(Value::text).collect::<Vec<_>>().join(" ")
}

#[test]
fn debug_is_refused_unless_it_was_asked_for() {
    for (allowed, name) in
        [(DebugCommand::No, "no"), (DebugCommand::Local, "local"), (DebugCommand::Yes, "yes")]
    {
        let mut config = config();
        config.debug_command = allowed;
        let server = TestServer::with(config);
        let mut c = server.client();
        let reply = c.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]).text();
        let refused = reply.starts_with("ERR DEBUG command not allowed. If the enable-debug-");
        assert_eq!(refused, allowed == DebugCommand::No, "{reply}");
        let shown = c.call(&["CONFIG", "GET", "enable-debug-command"]);
        assert_eq!(shown.items()[1], Value::bulk(name));
    }
}

#[test]
fn a_client_that_sleeps_keeps_nobody_from_anything() {
    let server = TestServer::start();
    let mut sleepers: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for sleeper in &mut sleepers {
        sleeper.send(&[b"DEBUG", b"SLEEP", b"50"]);
        sleeper.send(&[b"SET", b"k", b"v"]);
    }
    let mut c = server.client();
    eventually("they sleep", || {
        c.call(&["INFO", "commandstats"]).text().contains("cmdstat_debug|sleep:calls=4")
    });
    assert_eq!(c.call(&["GET", "k"]), Value::Null);
    assert_eq!(c.call(&["DEBUG", "SLEEP", "0.01"]), Value::ok());
    server.end().expect("a clean end");
}

#[test]
fn errors_are_counted_by_their_first_word() {
    let server = server_with_password();
    let mut c = server.client();
    c.call(&["GET", "k"]);
    c.call(&["AUTH", "guess"]);
    c.call(&["AUTH", "secret"]);
    c.call(&["NOSUCH"]);
    c.call(&["INCRBY", "k", "x"]);
    c.call(&["MULTI"]);
    c.call(&["INCRBY", "k", "x"]);
    c.call(&["EXEC"]);
    c.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(c.call(&["SET", "k", &"x".repeat(100_000)]).text().starts_with("OOM"));
    let info = c.call(&["INFO", "errorstats"]).text();
    let lines: Vec<&str> = info.lines().skip(1).collect();
    let counts = [("ERR", 3), ("NOAUTH", 1), ("OOM", 1), ("WRONGPASS", 1)];
    let expected = counts.map(|(code, count)| format!("errorstat_{code}:count={count}"));
    assert_eq!(lines, expected);
    assert_eq!(field(&c.call(&["INFO", "stats"]).text(), "total_error_replies"), 6);
    c.call(&["CONFIG", "RESETSTAT"]);
    assert_eq!(c.call(&["INFO", "errorstats"]).text().lines().count(), 1);
}
