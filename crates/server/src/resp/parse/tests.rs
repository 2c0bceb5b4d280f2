use super::*;
use crate::fuzzing::{Outcome, cut_anywhere, parse_in_pieces};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

fn parse(stream: &[u8]) -> Outcome {
    parse_in_pieces(stream, &[], &Limits::authenticated(512 << 20))
}

fn error_of(stream: &[u8]) -> String {
    parse(stream).1.map(|e| e.to_string()).unwrap_or_default()
}

fn words(requests: &[Vec<Vec<u8>>]) -> Vec<Vec<String>> {
    requests
        .iter()
        .map(|r| r.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect())
        .collect()
}

#[test]
fn multibulk_and_inline_requests_mix() {
    let (requests, error, left) =
        parse(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\nset a \"x\\x41\\n\" 'it\\'s'\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\n");
    assert_eq!(error, None);
    assert_eq!(left, 0);
    let expected: Vec<Vec<&str>> = vec![
        vec!["GET", "k"],
        vec!["PING"],
        vec![],
        vec!["set", "a", "xA\n", "it's"],
        vec![],
        vec![],
        vec![""],
    ];
    assert_eq!(words(&requests), expected);
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    assert_eq!(error_of(b"*x\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(error_of(b"*1048577\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(error_of(b"*1\r\nGET\r\n"), "Protocol error: expected '$', got 'G'");
    assert_eq!(error_of(b"*1\r\n$-1\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(error_of(b"*1\r\n$536870913\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(error_of(b"a \"b\r\n"), "Protocol error: unbalanced quotes in request");
    assert_eq!(error_of(b"a \"b\"c\r\n"), "Protocol error: unbalanced quotes in request");
    assert_eq!(error_of(&[b'a'; 64 << 10]), "Protocol error: too big inline request");
    assert_eq!(
        error_of(format!("*{}\r\n", "1".repeat(60)).as_bytes()),
        "Protocol error: too big mbulk count string"
    );
    assert_eq!(error_of(b"*1\r\n$1\r\nxyz"), "Protocol error: expected CRLF after bulk");
}

/// redis-server does the same: it looks for the end of the line as in a C string.
#[test]
fn an_inline_request_with_a_nul_has_no_end() {
    for request in [&b"PING\0\r\nPING\r\n"[..], b"\0PING\r\nPING\r\n", b"ECHO a\0b\n"] {
        let (requests, error, left) = parse(request);
        assert_eq!((requests.len(), error, left), (0, None, request.len()));
    }
    let (requests, error, left) = parse(b"ECHO \"a\\x00b\"\r\nPI\0NG\r\n");
    assert_eq!(
        (words(&requests), error, left),
        (vec![vec!["ECHO".into(), "a\0b".into()]], None, 7)
    );
    assert_eq!(error_of(&b"PI\0NG\r\n".repeat(10_000)), "Protocol error: too big inline request");
}

#[test]
fn before_authentication_ten_arguments_of_16_kib() {
    let parse = |s: &[u8]| parse_in_pieces(s, &[], &Limits::UNAUTHENTICATED).1;
    assert_eq!(parse(b"*11\r\n"), Some(ProtocolError::UnauthenticatedMultibulkLength));
    assert_eq!(parse(b"*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedBulkLength));
    assert_eq!(
        parse(b"1 2 3 4 5 6 7 8 9 10 11\r\n"),
        Some(ProtocolError::UnauthenticatedMultibulkLength)
    );
    assert_eq!(parse(b"*10\r\n$16384\r\n"), None);
}

#[test]
fn announced_lengths_take_no_memory() {
    let mut parser = Parser::default();
    let limits = Limits::authenticated(512 << 20);
    let mut stream = b"*1048576\r\n$536870912\r\nabc".to_vec();
    assert_eq!(parser.next(&mut stream, &limits), Ok(None));
    assert!(parser.memory() < 1024, "{} bytes for three received", parser.memory());
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6)
}

fn encode(request: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", request.len()).into_bytes();
    for arg in request {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Bytes that look like the protocol, so that random streams get past its first line.
fn protocol_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*1\r\n".to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"$3\r\nabc\r\n".to_vec()),
        Just(b"$1\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"'\\".to_vec()),
        Just(b"$-1\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..5),
        prop::collection::vec(prop::sample::select(b"*$0123456789 \r\n\"'\\xab".to_vec()), 0..50),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Runs for the seconds of `STILLPOINT_FUZZ_SECONDS`, or one round without it.
/// `STILLPOINT_FUZZ_SEED` sets the first seed. A failure prints the seed of its round.
#[test]
fn cutting_the_stream_changes_nothing_for_long() {
    let input = (protocol_like(), prop::collection::vec(any::<usize>(), 0..20), any::<bool>());
    stillpoint_io::seeded_rounds(1, |seed| {
        let rng = TestRng::from_seed(RngAlgorithm::XorShift, &u128::from(seed).to_le_bytes());
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
        let ran =
            TestRunner::new_with_rng(config, rng).run(&input, |(stream, cuts, authenticated)| {
                cut_anywhere(&stream, &cuts, authenticated);
                Ok(())
            });
        ran.unwrap_or_else(|error| panic!("{error}"));
    });
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(requests in prop::collection::vec(request(), 0..5),
                                 cuts in prop::collection::vec(any::<usize>(), 0..8)) {
        let stream: Vec<u8> = requests.iter().flat_map(|r| encode(r)).collect();
        let (parsed, error, left) = parse_in_pieces(&stream, &cuts, &Limits::authenticated(1 << 20));
        prop_assert_eq!(error, None);
        prop_assert_eq!(left, 0);
        prop_assert_eq!(parsed, requests);
    }

    #[test]
    fn cutting_the_stream_changes_nothing(stream in protocol_like(),
                                          cuts in prop::collection::vec(any::<usize>(), 0..20),
                                          authenticated in any::<bool>()) {
        cut_anywhere(&stream, &cuts, authenticated);
    }

    #[test]
    fn random_bytes_never_panic(stream in prop::collection::vec(any::<u8>(), 0..300)) {
        let (requests, _, left) = parse(&stream);
        prop_assert!(left <= stream.len());
        prop_assert!(requests.len() <= stream.len());
    }
}
