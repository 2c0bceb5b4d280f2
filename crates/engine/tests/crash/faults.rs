//! Tests with a disk that fails or fills up. Errors are typed and name a file, no acknowledged
//! commit is lost, and reads are served. A failed flush is final, and a full disk is not.

use std::sync::Arc;

use stillpoint::{Durability, Engine, Error, TableId};
use stillpoint_io::{Fault, Rng, SeededRng, SimDisk};

use crate::history::{History, MARKS, State};
use crate::lives::{self, configure, open_and_read};
use crate::settings::{Setting, matrix};
use crate::share;
use crate::steps::open;
use crate::workload::{TABLES, Workload, scan_table};

const SESSIONS: usize = 3;
const STEPS: u64 = 90;

const REDO: Setting =
    Setting { scheme: "calc:partial", journal: "redo", durability: Durability::Strict };
const NONE: Setting =
    Setting { scheme: "calc:partial", journal: "none", durability: Durability::Checkpoint };

/// Opens a store and works on it, always with the same calls.
fn begin(setting: &Setting, disk: &SimDisk) -> Result<Workload, Error> {
    let rng = Arc::new(SeededRng::new(11));
    let engine = open(configure(setting, disk, &rng, SESSIONS))?;
    for name in TABLES {
        engine.table(name)?;
    }
    let history = History::new(State::new());
    Workload::new(Arc::new(engine), history, rng, 0, SESSIONS)
}

impl Workload {
    /// Checks that reads are served, with the right values.
    pub(crate) fn confirm_reads(&mut self, context: &str) {
        let player = self.players[0].as_mut().expect("no transaction is open");
        let mut found = State::new();
        for table in 0..4 {
            found.append(&mut scan_table(&mut player.session, table).expect("nothing fails"));
        }
        assert!(found == self.history.now, "{context}: reads differ");
    }

    /// Checks that nothing is acknowledged any more, and that commits which might be lost are
    /// refused.
    pub(crate) fn confirm_refusal(&mut self, context: &str) {
        for player in self.players.iter_mut().flatten() {
            let key = player.mark.1.clone();
            let refused = player.session.transact(|tx| tx.put(TableId(MARKS), &key, b"late"));
            assert!(refused.is_err(), "{context}: a store that has failed takes a commit");
        }
        let refused = self.engine.checkpoint();
        assert!(refused.is_err(), "{context}: a store that has failed takes a checkpoint");
        assert!(self.engine.health().is_err(), "{context}: a failure is final");
    }
}

/// Recovers from a crash and judges the recovered records.
fn judge(setting: &Setting, disk: &SimDisk, history: &History, context: &str) {
    let rng = SeededRng::new(5);
    for _ in 0..2 {
        let after = disk.crash(rng.next_u64());
        let found = open_and_read(setting, &after, &rng);
        let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
        let judged = lives::judge(setting, history, &found);
        judged.unwrap_or_else(|why| panic!("{context}: {why}"));
    }
}

/// The first of `calls` calls to fail, and the distance to the next. By default 60 calls fail.
/// `STILLPOINT_FAULTS_ALL=1` lets each call fail, and `STILLPOINT_FAULTS_ALL=K/N` each N-th, from
/// the K-th on.
fn chosen(calls: u64) -> (u64, usize) {
    match std::env::var("STILLPOINT_FAULTS_ALL").as_deref() {
        Err(_) => (1, calls.div_ceil(60) as usize),
        Ok("1") => (1, 1),
        Ok(_) => {
            let (k, n) = share("STILLPOINT_FAULTS_ALL").expect("it is set");
            (k as u64 + 1, n)
        }
    }
}

/// Fails some calls, one after the other. `chosen` gives the first and the distance to the next.
fn fail_calls(setting: &Setting, chosen: impl Fn(u64) -> (u64, usize)) {
    let disk = SimDisk::new(3);
    let mut whole = begin(setting, &disk).expect("a sound disk");
    whole.run(STEPS);
    assert!(whole.ended.is_none(), "{:?}", whole.ended);
    drop(whole);
    let calls = disk.call_counts().changes();
    let (first, each) = chosen(calls);
    for nth in (first..=calls).step_by(each) {
        for fault in [Fault::InputOutput, Fault::DiskFull] {
            fail_one_call(setting, nth, fault);
        }
    }
}

fn fail_one_call(setting: &Setting, nth: u64, fault: Fault) {
    let context = format!("{}, {} {fault:?} at call {nth}", setting.scheme, setting.journal);
    let disk = SimDisk::new(3);
    disk.fail_at(nth, fault);
    let mut workload = match begin(setting, &disk) {
        Ok(workload) => workload,
        Err(error) => {
            assert!(error.to_string().contains("/sim"), "{context}: names no file: {error}");
            disk.clear_faults();
            let again = disk.kill();
            drop(
                begin(setting, &again).unwrap_or_else(|error| panic!("{context}, again: {error}")),
            );
            return;
        }
    };
    workload.run(STEPS);
    if let Some(error) = workload.ended.take() {
        assert!(error.to_string().contains("/sim"), "{context}: names no file: {error}");
        workload.confirm_reads(&context);
        disk.clear_faults();
        if workload.engine.health().is_err() {
            workload.confirm_refusal(&context);
        } else {
            workload.run(20);
            if let Some(error) = &workload.ended {
                // After a failed flush of its directory, no checkpoint is taken before the next
                // start.
                let of_checkpoint = matches!(error, Error::Checkpoint(_));
                let failed = workload.engine.health().is_err();
                assert!(of_checkpoint || failed, "{context}: {error}");
            }
            workload.confirm_reads(&context);
        }
    }
    judge(setting, &disk, &workload.history, &context);
}

#[test]
fn a_failing_call_loses_nothing_acknowledged_with_redo() {
    fail_calls(&REDO, chosen);
}

#[test]
fn a_failing_call_loses_nothing_published_without_a_journal() {
    fail_calls(&NONE, chosen);
}

/// One call with each scheme and journal. With `STILLPOINT_FAULTS_ROWS=K/N` every N-th, from another one on
/// with each setting.
#[test]
fn each_scheme_loses_nothing_at_a_failing_call() {
    let share = share("STILLPOINT_FAULTS_ROWS");
    let settings = matrix().into_iter().filter(|it| it.durability != Durability::Relaxed);
    for (at, setting) in settings.enumerate() {
        fail_calls(&setting, |calls| match share {
            Some((k, n)) => (1 + ((k + at) % n) as u64 % calls, n),
            None => (1 + 37 * at as u64 % calls, calls as usize),
        });
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_resumes() {
    let disk = SimDisk::new(9);
    let mut workload = begin(&REDO, &disk).expect("a sound disk");
    workload.run(40);
    let published = workload.engine.checkpoint().expect("a checkpoint").epoch;
    workload.history.checkpoints_begun.insert(published);
    disk.set_capacity(Some(disk.used_bytes()));
    let mut refused = 0;
    for _ in 0..200 {
        workload.run(20);
        if workload.ended.take().is_some() {
            refused += 1;
            workload.confirm_reads("full");
        }
        if refused > 5 {
            break;
        }
    }
    assert!(refused > 5, "the disk never filled up");
    let mut session = workload.engine.session().expect("a session");
    let (_, table) = workload.engine.tables().remove(0);
    let read = session.transact(|tx| tx.get(table, b"a key").map(|value| value.is_some()));
    assert!(read.is_ok(), "a transaction that only reads is refused: {read:?}");
    drop(session);
    assert!(workload.engine.checkpoint().is_err(), "there is no space for a checkpoint");
    workload.engine.health().expect("a full disk is no failure");
    disk.set_capacity(None);
    workload.run(100);
    assert!(workload.ended.is_none(), "does not resume: {:?}", workload.ended);
    workload.engine.checkpoint().expect("a checkpoint");
    judge(&REDO, &disk, &workload.history, "after the disk was full");
}

/// Room beside the data. The store keeps a part of it free of logs, for checkpoints.
const SPACE_BYTES: u64 = 6 << 20;

/// Once the logs have no space, a checkpoint frees them. That holds for schemes that write into the log
/// themselves, too.
#[test]
fn a_checkpoint_makes_room_on_a_full_disk() {
    for (scheme, journal) in [
        ("calc:partial", "redo"),
        ("fuzzy", "redo"),
        ("fuzzy:partial", "redo"),
        ("fuzzy-undo", "undo-redo"),
        ("fuzzy-undo:partial", "undo-redo"),
    ] {
        let setting = Setting { scheme, journal, durability: Durability::Strict };
        let disk = SimDisk::new(9);
        let rng = SeededRng::new(11);
        let engine = open(configure(&setting, &disk, &rng, SESSIONS)).expect("a sound disk");
        let table = engine.table(TABLES[0]).expect("a table");
        let mut session = engine.session().expect("a session");
        let mut put = |number: u32| {
            let key = (number % 50).to_le_bytes();
            session.transact(|tx| tx.put(table, &key, &[number as u8; 1_000]))?;
            session.flush()
        };
        (0..50).for_each(|number| put(number).expect("a sound disk"));
        engine.checkpoint().expect("a checkpoint");
        disk.set_capacity(Some(disk.used_bytes() + SPACE_BYTES));
        let full = (50..50_000).find_map(|number| put(number).err().map(|error| (number, error)));
        let (last, error) = full.unwrap_or_else(|| panic!("{scheme}: the disk never filled up"));
        assert!(error.is_disk_full(), "{scheme}: {error}");
        let taken = engine.checkpoint();
        taken.unwrap_or_else(|error| panic!("{scheme}: no way out of a full disk: {error}"));
        put(last).unwrap_or_else(|error| panic!("{scheme} does not resume: {error}"));
        drop((session, engine));
        let engine = Engine::open(configure(&setting, &disk.crash(3), &rng, SESSIONS));
        let engine = engine.unwrap_or_else(|error| panic!("{scheme}: {error}"));
        let mut found = Vec::new();
        let key = (last % 50).to_le_bytes();
        let seen = engine.session().expect("a session").read(table, &key, &mut found);
        assert!(seen.expect("reads").is_some() && found == [last as u8; 1_000], "{scheme}");
    }
}
