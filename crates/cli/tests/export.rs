//! Tests of `stillpoint export --arrow`. Those of `stillpoint-arrow` read files back.

use std::path::Path;
use std::process::{Command, Output};

use stillpoint::{Config, Engine, Kind};

fn export(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stillpoint"))
        .arg("export")
        .arg(dir)
        .args(arguments)
        .output()
        .expect("the binary runs")
}

#[test]
fn a_table_leaves_as_an_arrow_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::new(dir.path());
    config.pool_bytes = Some(1 << 20);
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("pets").expect("a table");
    let paged = engine.table_with("orders", Kind::Paged).expect("a table");
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, b"rex the dog", b"good")).expect("commits");
    session.transact(|tx| tx.put(paged, b"a dog collar", b"red")).expect("commits");
    drop(session);
    engine.close().expect("closes");

    let Output { status, stdout, stderr } = export(dir.path(), &["--table", "pets", "--arrow"]);
    assert_eq!((status.code(), &*stderr), (Some(0), &b""[..]));
    assert!(stdout.starts_with(b"ARROW1") && stdout.ends_with(b"ARROW1"));
    assert!(stdout.windows(11).any(|window| window == b"rex the dog"));

    let Output { status, stdout, .. } = export(dir.path(), &["--table", "orders", "--arrow"]);
    assert!(status.success() && stdout.windows(12).any(|window| window == b"a dog collar"));

    let Output { status, stderr, .. } = export(dir.path(), &["--table", "cats", "--arrow"]);
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(2));
    assert!(said.contains("cats"), "{said}");

    let Output { status, stderr, .. } =
        export(&dir.path().join("none"), &["--table", "t", "--arrow"]);
    assert_eq!(status.code(), Some(2));
    assert!(!stderr.is_empty());

    let Output { status, stderr, .. } = export(dir.path(), &["--table", "pets"]);
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(2));
    assert!(said.contains("--arrow"), "{said}");
}
