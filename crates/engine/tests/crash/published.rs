//! Tests of publications and of the logs' contents. Each planted bug of publication has one
//! situation, so that no seed decides whether the suite sees it.

use stillpoint::{Durability, Engine, Session, TableId};
use stillpoint_io::{SeededRng, SimDisk};

use crate::lives::{Found, configure, open_and_read};
use crate::settings::Setting;
use crate::stage::{Guest, Moment, while_visiting};

const REDO: Setting = Setting { scheme: "calc", journal: "redo", durability: Durability::Strict };
/// Crashes of one situation.
const CRASHES: u64 = 30;

fn open(disk: &SimDisk) -> (Engine, TableId, Session) {
    let engine = Engine::open(configure(&REDO, disk, &SeededRng::new(1), 4)).expect("opens");
    let table = engine.table("things").expect("a table");
    let session = engine.session().expect("a session");
    (engine, table, session)
}

fn put(session: &mut Session, table: TableId, key: &[u8], value: &[u8]) {
    session.transact(|tx| tx.put(table, key, value)).expect("commits");
}

/// Recovered states after some crashes.
fn after_crashes(disk: &SimDisk) -> impl Iterator<Item = (u64, Found)> {
    (0..CRASHES).map(|seed| {
        let found = open_and_read(&REDO, &disk.crash(seed), &SeededRng::new(seed));
        (seed, found.unwrap_or_else(|error| panic!("crash {seed}: {error}")))
    })
}

fn has(found: &Found, table: TableId, key: &[u8]) -> bool {
    found.state.contains_key(&(table.0, key.to_vec()))
}

/// A commit that was acknowledged survives every crash.
pub(crate) fn an_acknowledged_commit() {
    let disk = SimDisk::new(1);
    let (_engine, table, mut session) = open(&disk);
    put(&mut session, table, b"a", b"acknowledged");
    for (seed, found) in after_crashes(&disk) {
        assert!(has(&found, table, b"a"), "crash {seed}");
    }
}

/// A guest that commits whenever a checkpoint lets it.
struct Visitor {
    session: Session,
    table: TableId,
    committed: u8,
}

impl Guest for Visitor {
    fn act(&mut self, _: Moment) {
        put(&mut self.session, self.table, &[self.committed], b"committed meanwhile");
        self.committed += 1;
    }
}

/// Commits during a checkpoint are acknowledged. The checkpoint holds those before its point of
/// consistency, and the log must hold the rest.
pub(crate) fn commits_during_a_checkpoint() {
    let disk = SimDisk::new(1);
    let (engine, table, session) = open(&disk);
    let guest = Box::new(Visitor { session, table, committed: 0 });
    let (taken, guest) = while_visiting(guest, || engine.checkpoint());
    taken.expect("a checkpoint");
    let guest: Box<dyn std::any::Any> = guest;
    let committed = guest.downcast::<Visitor>().expect("the same comes back").committed;
    assert!(committed > 2, "between phases, and before the publication");
    for (seed, found) in after_crashes(&disk) {
        for key in 0..committed {
            assert!(has(&found, table, &[key]), "crash {seed}: commit {key} of {committed}");
        }
    }
}

/// Checkpoints have replaced the first segments. Replay begins at the checkpoint's positions, not
/// at the beginning.
pub(crate) fn a_log_without_its_beginning() {
    let disk = SimDisk::new(1);
    let (engine, table, mut session) = open(&disk);
    for key in 0..6 {
        // Three of these records fill a segment.
        (0..6).for_each(|_| put(&mut session, table, &[key], &[key; 40_000]));
        engine.checkpoint().expect("a checkpoint");
    }
    for (seed, found) in after_crashes(&disk).take(3) {
        for key in 0..6 {
            assert!(has(&found, table, &[key]), "crash {seed}: key {key}");
        }
    }
}

/// A flush of tables is durable only after all earlier commits.
pub(crate) fn a_flush_of_tables_comes_after_what_was_committed() {
    let disk = SimDisk::new(1);
    let (engine, table, mut session) = open(&disk);
    let other = engine.table("emptied").expect("a table");
    put(&mut session, other, b"gone", b"until the flush");
    crate::pointed::copy(&mut session, table, b"nothing", b"earlier");
    engine.flush_tables(&[other]).expect("flushes");
    for (seed, found) in after_crashes(&disk) {
        assert!(has(&found, table, b"earlier"), "crash {seed}");
        assert!(!has(&found, other, b"gone"), "crash {seed}");
    }
}
