//! Tests of `stillpoint repair`.

use std::path::Path;
use std::process::{Command, Output};

use stillpoint::{Config, Durability, Engine};
use stillpoint_io::{Disk, RealDisk};

fn run(arguments: &[&str], dir: &Path) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_stillpoint"))
        .args(arguments)
        .arg(dir)
        .output()
        .expect("the binary runs");
    (status.code(), String::from_utf8([stdout, stderr].concat()).expect("text"))
}

/// All tools refuse a lost log, and repair gives the log up only on request.
#[test]
fn gives_up_a_lost_log_when_told_to() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path();
    let mut config = Config::new(dir);
    (config.durability, config.checkpoint_every) = (Durability::Strict, None);
    let engine = Engine::open(config).expect("an empty directory");
    let table = engine.table("db0").expect("a table");
    let mut session = engine.session().expect("a session");
    for key in 0..4u8 {
        session.transact(|tx| tx.put(table, &[key], b"v")).expect("commits");
        if key == 1 {
            engine.checkpoint().expect("a checkpoint");
        }
    }
    drop((session, engine));
    RealDisk::new(dir).expect("a disk").remove(Path::new("log")).expect("removes");

    let (code, said) = run(&["check"], dir);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("has no segment") && said.contains("repair --accept-loss"), "{said}");
    assert_eq!(run(&["dump"], dir).0, Some(1));
    let (code, said) = run(&["repair"], dir);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("would be given up: log 0, all gsns above"), "{said}");
    assert!(said.contains("nothing was changed"), "{said}");
    let (code, said) = run(&["repair", "--accept-loss"], dir);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("given up: log 0") && said.contains("with 2 records"), "{said}");
    assert_eq!(run(&["check"], dir).0, Some(0));
    let (code, said) = run(&["repair"], dir);
    assert!(code == Some(0) && said.contains("nothing has to be given up"), "{said}");
    assert_eq!(run(&["dump"], dir).1.matches("\"key\"").count(), 2);
}
