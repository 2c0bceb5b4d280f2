//! Tests of tables that are emptied while a checkpoint is under way.

use std::any::Any;
use std::sync::Arc;

use stillpoint::{Config, Durability, Engine, Error, Session, TableId, Tx, offline};
use stillpoint_io::{Fault, SeededRng, SimDisk};
use stillpoint_store::Phase;

use crate::lives::{configure, open_and_read};
use crate::settings::Setting;
use crate::stage::{Guest, Moment, copy, elsewhere, while_visiting};

const REDO: Setting = Setting { scheme: "calc", journal: "redo", durability: Durability::Strict };

/// Expected records before the first step, and after each step.
const KEYS_AFTER: [&[u8]; 6] = [b"abc", b"abcd", b"abcde", b"cd", b"cdf", b"cdfg"];

/// Moments of a checkpoint at which these tests empty a table. The moments are before the
/// checkpoint's phases, at the begin of CAPTURE, after the capture, and after the writing.
const MOMENTS: usize = 4;

/// Commits, empties the first table and commits again, at the `at`-th of the moments. After an
/// error the guest does nothing more.
struct Guesting {
    engine: Arc<Engine>,
    session: Session,
    first: TableId,
    second: TableId,
    /// Keys of the first table that are put right before it is emptied. The checkpoint gets the
    /// before-image of a.
    overwritten: &'static [u8],
    at: usize,
    asked: usize,
    /// Number of acknowledged steps.
    done: usize,
    /// Bytes in use right before the first table was emptied, and right after.
    held_bytes: [usize; 2],
}

impl Guest for Guesting {
    fn act(&mut self, moment: Moment) {
        let running = self.engine.stats().checkpoints.running;
        // From PREPARE to the point of consistency a flush would have to wait.
        if moment != Moment::Phases || running.is_some_and(|now| now.phase == Phase::Prepare) {
            return;
        }
        self.asked += 1;
        while self.asked == self.at && self.done + 1 < KEYS_AFTER.len() {
            if self.step().is_err() {
                return;
            }
            self.done += 1;
        }
    }
}

impl Guesting {
    fn step(&mut self) -> Result<(), Error> {
        let (table, keys): (TableId, &[u8]) = match self.done {
            0 => (self.second, b"d"),
            1 => (self.first, self.overwritten),
            2 => return self.empty_first(),
            3 => (self.first, b"f"),
            _ => (self.second, b"g"),
        };
        let put = |tx: &mut Tx<'_>| keys.iter().try_for_each(|key| tx.put(table, &[*key], b"new"));
        self.session.transact(put)
    }

    fn empty_first(&mut self) -> Result<(), Error> {
        let (engine, first) = (self.engine.clone(), self.first);
        self.held_bytes[0] = engine.stats().memory_bytes;
        let emptied = elsewhere(move || engine.flush_tables(&[first]));
        self.held_bytes[1] = self.engine.stats().memory_bytes;
        emptied
    }
}

/// A store with a, b and c, whose values have `len` bytes, and the guest who acts in its next
/// checkpoint.
fn prepare(disk: &SimDisk, len: usize, at: usize) -> Guesting {
    let mut config = configure(&REDO, disk, &SeededRng::new(1), 3);
    config.log_segment_bytes = config.log_segment_bytes.max(4 * len as u64);
    let engine = Arc::new(Engine::open(config).expect("opens"));
    let first = engine.table("first").expect("a table");
    let second = engine.table("second").expect("a table");
    let mut session = engine.session().expect("a session");
    for (table, key) in [(first, b"a"), (first, b"b"), (second, b"c")] {
        session.transact(|tx| tx.put(table, key, &vec![7; len])).expect("commits");
    }
    let (overwritten, held_bytes) = (b"ae", [0; 2]);
    Guesting { engine, session, first, second, overwritten, at, asked: 0, done: 0, held_bytes }
}

/// Takes a checkpoint, in which the guest acts.
fn checkpoint(guest: Guesting) -> (bool, Guesting) {
    let engine = guest.engine.clone();
    let guest: Box<dyn Guest> = Box::new(guest);
    let (taken, guest) = elsewhere(move || while_visiting(guest, || engine.checkpoint()));
    let guest: Box<dyn Any> = guest;
    (taken.is_ok(), *guest.downcast::<Guesting>().expect("the same comes back"))
}

fn keys_in(disk: &SimDisk, seed: u64) -> Vec<u8> {
    let found = open_and_read(&REDO, disk, &SeededRng::new(seed)).expect("recovers");
    found.state.keys().map(|key| key.1[0]).collect()
}

/// A table is emptied at any moment between two phases, and the power is lost at any later call of
/// the disk. A recovered step must come with all steps before it.
pub(crate) fn a_checkpoint_cut_off_at_any_call_around_an_emptied_table() {
    for at in 1..=MOMENTS {
        let disk = SimDisk::new(1);
        let guest = prepare(&disk, 10, at);
        let before = disk.call_counts().changes();
        let (taken, guest) = checkpoint(guest);
        assert!(taken && guest.done + 1 == KEYS_AFTER.len(), "{at}: {} steps", guest.done);
        assert_eq!(guest.asked, MOMENTS);
        let calls = disk.call_counts().changes() - before;
        for nth in 1..=calls {
            let disk = SimDisk::new(1);
            let guest = prepare(&disk, 10, at);
            disk.fail_at(nth, Fault::PowerLoss);
            let (_, guest) = checkpoint(guest);
            for seed in 0..3 {
                let mut found = keys_in(&disk.crash(seed), seed);
                found.sort_unstable();
                let (told, next) = (guest.done, (guest.done + 1).min(KEYS_AFTER.len() - 1));
                let is_right = found == KEYS_AFTER[told] || found == KEYS_AFTER[next];
                let found = String::from_utf8_lossy(&found);
                assert!(is_right, "asked {at}, call {nth}, crash {seed}, {told} steps: {found}");
            }
        }
    }
}

/// The memory of a table is free as soon as the table is emptied, at any point of a checkpoint.
/// Only large values that wait to be written are freed later. The checkpoint is still taken.
pub(crate) fn an_emptied_table_is_free_at_once() {
    const LEN: usize = 3 << 20;
    const INDEX: usize = 64 << 10;
    // At the third moment large values may wait.
    for at in [1, 2, 4] {
        let disk = SimDisk::new(1);
        // No large value is saved here, so none waits for the disk.
        let guest = Guesting { overwritten: b"e", ..prepare(&disk, LEN, at) };
        let (taken, guest) = checkpoint(guest);
        assert!(taken, "{at}: no checkpoint");
        let [before, after] = guest.held_bytes;
        // The empty table has an index.
        assert!(after + 2 * LEN <= before + INDEX, "{at}: {before} bytes before, {after} after");
        drop(guest);
        let found = keys_in(&disk.crash(1), 1);
        assert_eq!(found.len(), 4, "{at}: {found:?}");
    }
}

/// A table is emptied between a checkpoint's point of consistency and its publication. The
/// checkpoint then holds nothing of the table, whatever its parts contain.
pub(crate) fn a_restored_checkpoint_has_nothing_of_a_table_emptied_meanwhile() {
    for at in 1..=MOMENTS {
        let disk = SimDisk::new(1);
        let (taken, guest) = checkpoint(prepare(&disk, 10, at));
        assert!(taken, "{at}: no checkpoint");
        let epoch = guest.engine.stats().checkpoints.last.expect("one was taken").epoch;
        drop(guest);
        let dirs = tempfile::tempdir().expect("a directory");
        let (from, to) = (dirs.path().join("from"), dirs.path().join("to"));
        copy(&disk, &from);
        offline::restore(&from, epoch, &to).expect("restores");
        let engine = Engine::open(Config::new(&to)).expect("opens");
        let mut session = engine.session().expect("a session");
        let mut keys = Vec::new();
        for (_, table) in engine.tables() {
            session.scan(table, 0, 10_000, &mut |key, _| keys.push(key[0])).expect("the table");
        }
        keys.sort_unstable();
        // At the first moment all steps come before the point of consistency.
        let expected: &[u8] = if at == 1 { b"cdfg" } else { b"c" };
        assert_eq!(keys, expected, "{at}");
    }
}
