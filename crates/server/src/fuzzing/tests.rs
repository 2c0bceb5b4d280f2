use stillpoint_io::{Rng, SeededRng, seeded_rounds};

use super::*;
use crate::planted::{Bug, plant};

#[test]
fn clients_take_turns() {
    let alone = Alone::new();
    let [first, second] = alone.serve(
        b"SET k 1\r\nWATCH k\r\n\xFFINCR k\r\n\xFFMULTI\r\nINCR k\r\nEXEC\r\n\xFFHELLO 3\r\nGET x\r\n",
    );
    assert_eq!(first, b"+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
    assert!(second.starts_with(b":2\r\n%7\r\n"), "{}", String::from_utf8_lossy(&second));
    assert!(second.ends_with(b"_\r\n"), "{}", String::from_utf8_lossy(&second));
    assert_eq!(alone.serve(b"GET k\r\n\xFFDBSIZE\r\n"), [b"$-1\r\n".to_vec(), b":0\r\n".to_vec()]);
}

#[test]
fn a_pause_a_password_and_a_shutdown_end_with_their_server() {
    let alone = Alone::new();
    alone.serve(b"CLIENT PAUSE 100000000\r\nGET k\r\n\xFFCONFIG SET requirepass x\r\n");
    assert_eq!(alone.serve(b"PING\r\nSHUTDOWN NOSAVE\r\n\xFFPING\r\n")[0], b"+PONG\r\n");
    assert_eq!(alone.serve(b"PING\r\n")[0], b"+PONG\r\n");
}

#[test]
fn what_is_no_reply_is_seen() {
    for good in
        ["", "+OK\r\n:-1\r\n$-1\r\n", "*2\r\n$2\r\n\r\n\r\n*0\r\n", "%1\r\n+a\r\n_\r\n#t\r\n"]
    {
        check_replies(good.as_bytes()).expect(good);
    }
    for bad in [
        "OK\r\n",
        "+OK",
        "$3\r\nab\r\n",
        "*2\r\n:1\r\n",
        ":x\r\n",
        ":01\r\n",
        "%1\r\n:1\r\n",
        "+\n\r\n",
    ] {
        check_replies(bad.as_bytes()).expect_err(bad);
    }
}

/// Runs for the seconds of `STILLPOINT_FUZZ_SECONDS`.
#[test]
fn requests_get_replies_and_harm_nobody_for_long() {
    let alone = Alone::new();
    let mut bytes = 0;
    seeded_rounds(1000, |seed| {
        let mut stream = sample_stream(seed);
        let rng = SeededRng::new(!seed);
        for _ in 0..rng.below(4) {
            let at = rng.below(stream.len() as u64) as usize;
            stream[at] = rng.next_u64() as u8;
        }
        let [first, second] = alone.serve(&stream);
        bytes += first.len() + second.len();
    });
    assert!(bytes > 1000, "only {bytes} bytes of replies");
}

/// A renamed or copied key expires when it did before, whether its value lies in a cell or in blocks.
#[test]
fn a_renamed_key_keeps_its_expiry() {
    let check = || {
        for bytes in [1, 5_000] {
            let value = "v".repeat(bytes);
            let requests = format!(
                "SET a {value} PXAT 32503680000000\nRENAME a b\nCOPY b c\nPEXPIRETIME b\nPEXPIRETIME c\n"
            );
            let [replies, _] = Alone::new().serve(requests.replace('\n', "\r\n").as_bytes());
            let told = "+OK\r\n+OK\r\n:1\r\n:32503680000000\r\n:32503680000000\r\n";
            assert_eq!(String::from_utf8_lossy(&replies), told, "{bytes}");
        }
    };
    check();
    plant(Some(Bug::ExpiryNotRenamed));
    let seen = std::panic::catch_unwind(check);
    plant(None);
    assert!(seen.is_err(), "the planted bug is not seen");
}
