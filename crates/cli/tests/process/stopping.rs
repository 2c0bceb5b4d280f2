//! Tests of signals.

use crate::common::{Serving, wait_for};

#[test]
fn signals_that_mean_nothing_here_do_no_harm() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut serving = Serving::start(dir.path(), &[]);
    let mut client = serving.client();
    for (number, signal) in ["HUP", "USR1", "USR2", "PIPE"].into_iter().enumerate() {
        let key = format!("key {number}");
        assert_eq!(client.ask(&["SET", &key, signal]), "OK");
        serving.signal(signal);
        assert_eq!(client.ask(&["GET", &key]), signal);
    }
    assert!(serving.runs());
    serving.signal("TERM");
    let (status, said, errors) = serving.ended();
    assert!(status.success() && said.contains("has saved everything"), "{said} {errors}");
    assert!(errors.contains("a signal that means nothing here"), "{errors}");
    let serving = Serving::start(dir.path(), &[]);
    assert_eq!(serving.client().ask(&["DBSIZE"]), ":4");
}

#[test]
fn both_signals_of_an_end_save() {
    for signal in ["TERM", "INT"] {
        let dir = tempfile::tempdir().expect("a directory");
        let serving = Serving::start(dir.path(), &["--journal", "none"]);
        assert_eq!(serving.client().ask(&["SET", "a", "1"]), "OK");
        serving.signal(signal);
        let (status, _, said) = serving.ended();
        assert!(status.success(), "{said}");
        assert!(said.contains(&format!("signal=SIG{signal}")), "{said}");
        let serving = Serving::start(dir.path(), &["--journal", "none"]);
        assert_eq!(serving.client().ask(&["GET", "a"]), "1");
    }
}

/// After the first signal the server waits for a client that does not read its replies. The second
/// signal ends the server at once.
#[test]
fn a_second_signal_ends_at_once_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("server.log");
    let path = log.display().to_string();
    let serving = Serving::start(&dir.path().join("data"), &["--log-file", &path]);
    let mut stuck = serving.client();
    assert_eq!(stuck.ask(&["SETRANGE", "big", "20000000", "x"]), ":20000001");
    stuck.send(&["GET", "big"]);
    let mut other = serving.client();
    wait_for("a reply that waits", || {
        let list = other.ask(&["CLIENT", "LIST"]);
        list.lines().any(|line| !line.contains(" omem=0 ")).then_some(())
    });
    serving.signal("TERM");
    wait_for("the line of the first signal", || {
        crate::log::text_of(&log).contains("a second one ends it at once").then_some(())
    });
    serving.signal("TERM");
    let (status, said, errors) = serving.ended();
    assert_eq!(status.code(), Some(128 + 15), "{said} {errors}");
    assert!(crate::log::text_of(&log).contains("ends at once, without waiting"));
    drop(stuck);
    let serving = Serving::start(&dir.path().join("data"), &[]);
    assert_eq!(serving.client().ask(&["STRLEN", "big"]), ":20000001");
}
