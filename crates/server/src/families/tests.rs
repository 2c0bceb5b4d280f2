use std::collections::HashSet;

use super::*;
use crate::resp::{Args, Span};
use crate::session::exec::writing_steps;
use crate::session::spec::{Flags, Handler, KeySpec};

#[test]
fn rows_have_unique_names_and_ids_and_are_found_in_any_case() {
    let mut ids = HashSet::new();
    let mut names = HashSet::new();
    for spec in COMMANDS.all() {
        assert!(ids.insert(spec.id), "{} shares its id", spec.full_name());
        assert!(names.insert(spec.full_name()), "{} is there twice", spec.full_name());
        assert!(usize::from(spec.id) < COMMANDS.rows());
        assert!(!spec.summary.is_empty() && spec.summary.ends_with('.'), "{}", spec.full_name());
        assert!(spec.arity != 0);
    }
    for spec in COMMANDS.top() {
        let upper = spec.name.to_ascii_uppercase();
        assert_eq!(COMMANDS.find(upper.as_bytes()).map(|s| s.id), Some(spec.id));
        assert_eq!(COMMANDS.find(spec.name.as_bytes()).map(|s| s.id), Some(spec.id));
    }
    for name in ["", "ge", "gett", "nosuch", "get\0", "client|list"] {
        assert!(COMMANDS.find(name.as_bytes()).is_none(), "{name}");
    }
}

#[test]
fn commands_that_write_declare_keys_or_concern_whole_tables() {
    for spec in COMMANDS.all() {
        let keyed = matches!(spec.handler, Handler::Keyed(_));
        assert_eq!(keyed, spec.keys.first > 0, "{}", spec.full_name());
        if spec.flags.has(Flags::WRITE) {
            assert!(keyed || matches!(spec.handler, Handler::Store(..)), "{}", spec.full_name());
        }
    }
}

#[test]
fn steps_that_write_are_counted() {
    let steps = |names: &str| {
        let spec = |name: &str| COMMANDS.find(name.as_bytes()).expect("a command");
        writing_steps(names.split_whitespace().map(spec))
    };
    for (names, expected) in [
        ("", 0),
        ("get dbsize get keys ping", 0),
        ("set get select set", 1),
        ("set set dbsize get scan", 1),
        ("keys get set", 1),
        ("flushdb", 1),
        ("get flushall dbsize get", 1),
        ("set flushdb", 2),
        ("flushdb set", 2),
        ("flushdb flushdb", 2),
        ("set dbsize set", 2),
        ("set flushall get set randomkey incr", 4),
    ] {
        assert_eq!(steps(names), expected, "{names}");
    }
}

#[test]
fn key_positions_follow_the_key_spec() {
    let at = |spec: KeySpec, argc| spec.positions(argc).collect::<Vec<_>>();
    assert_eq!(at(KeySpec::NONE, 5), Vec::<usize>::new());
    assert_eq!(at(KeySpec::ONE, 3), [1]);
    assert_eq!(at(KeySpec::TWO, 3), [1, 2]);
    assert_eq!(at(KeySpec::TWO, 2), [1]);
    assert_eq!(at(KeySpec::ALL, 4), [1, 2, 3]);
    assert_eq!(at(KeySpec::PAIRS, 5), [1, 3]);
    assert_eq!(at(KeySpec::PAIRS, 4), [1, 3]);
}

/// Resolves a request given as words.
fn resolved(words: &[&str]) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        spans.push(Span { start: bytes.len() as u32, len: word.len() as u32 });
        bytes.extend_from_slice(word.as_bytes());
    }
    match COMMANDS.resolve(Args::new(&bytes, &spans)) {
        Ok(spec) => Ok(spec.full_name()),
        Err(refusal) => Err(refusal.error.message().to_owned()),
    }
}

#[test]
fn requests_are_resolved_to_rows_or_refused_in_redis_words() {
    assert_eq!(resolved(&["GeT", "k"]), Ok("get".to_owned()));
    assert_eq!(resolved(&["client", "LIST"]), Ok("client|list".to_owned()));
    let error = |words: &[&str]| resolved(words).expect_err("refused");
    assert_eq!(error(&["get"]), "ERR wrong number of arguments for 'get' command");
    assert_eq!(error(&["client"]), "ERR wrong number of arguments for 'client' command");
    assert_eq!(
        error(&["client", "id", "x"]),
        "ERR wrong number of arguments for 'client|id' command"
    );
    assert_eq!(error(&["client", "x"]), "ERR unknown subcommand 'x'. Try CLIENT HELP.");
    assert_eq!(
        error(&["foo", "a", "b"]),
        "ERR unknown command 'foo', with args beginning with: 'a' 'b' "
    );
}

#[test]
fn errors_echo_little_and_only_printable_bytes() {
    let long = "x".repeat(10_000);
    assert!(resolved(&[&long, &long]).expect_err("unknown").len() < 400);
    let hostile = resolved(&["f\r\n+OK\r\n", "\0\u{1b}[2J"]).expect_err("unknown");
    assert!(hostile.bytes().all(|b| (b' '..=b'~').contains(&b)), "{hostile:?}");
}
