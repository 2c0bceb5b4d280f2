//! The log fails while a transaction is open: its statements can still be taken back in memory, but their undos
//! are not logged. From there on the transaction can only be rolled back.

use stillpoint::{Config, Engine, Error, Kind, LogRefused, Session, TableId, TxError};
use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};

use super::{Records, configure, put};

/// A store whose sessions share one log.
fn open(disk: &SimDisk) -> (Engine, TableId) {
    let engine = Engine::open(Config { logs: 1, ..configure(disk) }).expect("opens");
    let table = engine.table_with("orders", Kind::Siren).expect("a table");
    (engine, table)
}

/// Fails a flush of the one log, so that it takes nothing more.
fn fail_log(engine: &Engine, table: TableId, disk: &SimDisk) {
    let (calls, lasts) = (vec![Call::Sync], Lasts::UntilCleared);
    disk.inject(FaultPlan { calls, nth: 1, fault: Fault::InputOutput, lasts });
    std::thread::scope(|scope| {
        let failed = scope.spawn(|| {
            let mut other = engine.session().expect("a session");
            other.transact(|tx| tx.put(table, b"other", b"not acknowledged"))
        });
        assert!(failed.join().expect("no panic").is_err(), "the log has failed");
    });
}

fn refused(written: Result<impl std::fmt::Debug, TxError>) {
    let written = written.expect_err("no undo of it would be logged");
    assert!(matches!(written, TxError::Log(LogRefused::UndoLost(_))), "{written:?}");
    let message = written.to_string();
    assert!(message.contains("roll it back") && message.contains("injected"), "{message}");
}

/// What a failed store shows of the keys of the transaction.
fn shown(session: &mut Session, table: TableId) -> Records {
    let mut shown = Records::new();
    for key in [&b"base"[..], b"first", b"second", b"third"] {
        let mut value = Vec::new();
        if session.read(table, key, &mut value).expect("reads are served").is_some() {
            shown.insert(key.to_vec(), value);
        }
    }
    shown
}

/// Loses the undo of a statement, and then commits the transaction or drops it.
fn lose_undo(commits: bool) {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    put(&mut session, table, b"base", b"old");
    let before = shown(&mut session, table);

    let mut lost = session.begin().expect("begins");
    lost.tx().expect("open").put(table, b"first", b"new").expect("free");
    let savepoint = lost.savepoint().expect("open");
    lost.tx().expect("open").put(table, b"second", b"new").expect("free");
    fail_log(&engine, table, &disk);
    lost.roll_back_to(savepoint).expect("in memory");

    let mut tx = lost.tx().expect("open");
    refused(tx.put(table, b"third", b"new"));
    refused(tx.put(table, b"base", b"new"));
    refused(tx.patch(table, b"base", 0, b"N"));
    refused(tx.delete(table, b"base"));
    refused(tx.delete(table, b"first"));
    for (key, value) in [(&b"base"[..], &b"old"[..]), (b"first", b"new")] {
        let found = tx.get(table, key).expect("in memory").map(|value| value.to_vec());
        assert_eq!(found.as_deref(), Some(value), "{key:?}");
    }
    drop(tx);
    match commits {
        true => assert!(lost.commit().is_err(), "half of it is lost"),
        false => drop(lost),
    }

    assert_eq!(shown(&mut session, table), before, "a rollback leaves nothing in memory");
    let failed = session.transact(|tx| tx.put(table, b"third", b"new"));
    assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    drop(session);
    drop(engine);
    let (engine, table) = open(&disk.kill());
    let mut session = engine.session().expect("a session");
    assert_eq!(shown(&mut session, table), before, "a start undoes it");
}

#[test]
fn a_transaction_with_a_lost_undo_writes_no_more_and_its_rollback_leaves_nothing() {
    lose_undo(false);
}

#[test]
fn a_transaction_with_a_lost_undo_does_not_commit() {
    lose_undo(true);
}
