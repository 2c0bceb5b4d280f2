//! Tests with a disk that cannot list or open files for a while, for example without free
//! descriptors.

use std::path::Path;
use std::sync::Arc;

use stillpoint::{Config, Engine};
use stillpoint_io::{Call, Disk, Fault, FaultPlan, Lasts, SimDisk};

use crate::store::config;

fn on(disk: &SimDisk) -> Config {
    let mut config = config("unused".as_ref(), 1);
    config.environment.disk = Some(Arc::new(disk.clone()));
    config
}

/// A store without a MANIFEST is not taken for an empty one.
#[test]
fn what_cannot_be_listed_is_not_begun_anew() {
    let disk = SimDisk::new(1);
    let engine = Engine::open(on(&disk)).expect("opens");
    let table = engine.table("keys").expect("a table");
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, b"key", b"value")).expect("commits");
    engine.checkpoint().expect("a checkpoint");
    drop(session);
    drop(engine);
    let manifest = Path::new("MANIFEST");
    for nth in 1..=3 {
        let disk = disk.kill();
        disk.remove(manifest).expect("removes");
        let calls = vec![Call::List];
        disk.inject(FaultPlan {
            calls,
            nth,
            fault: Fault::InputOutput,
            lasts: Lasts::UntilCleared,
        });
        let refused = Engine::open(on(&disk)).expect_err("it holds a store");
        assert!(refused.is_damage() || matches!(refused, stillpoint::Error::Disk(_)), "{refused}");
        assert!(!disk.exists(manifest).expect("looks"), "call {nth}: a MANIFEST was made");
        disk.clear_faults();
        Engine::open(on(&disk)).expect_err("it has no MANIFEST");
    }
}

/// Until the rename of the new MANIFEST, the old one stays untouched.
#[test]
fn a_manifest_that_was_never_begun_is_not_in_doubt() {
    let disk = SimDisk::new(2);
    let engine = Engine::open(on(&disk)).expect("opens");
    let table = engine.table("keys").expect("a table");
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, b"key", b"value")).expect("commits");
    for calls in [vec![Call::Open], vec![Call::Open, Call::Exists], vec![Call::Remove]] {
        disk.inject(FaultPlan {
            calls: calls.clone(),
            nth: 1,
            fault: Fault::InputOutput,
            lasts: Lasts::UntilCleared,
        });
        engine.checkpoint().expect_err("no file can be made");
        engine.health().unwrap_or_else(|error| panic!("{calls:?}: {error}"));
        disk.clear_faults();
        session.transact(|tx| tx.put(table, b"key", b"other")).expect("commits");
        engine.checkpoint().expect("a checkpoint");
    }
}
