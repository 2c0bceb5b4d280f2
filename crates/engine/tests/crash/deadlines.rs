//! Deadlines of records, with every scheme and every journal: put, set, taken away, patched, and changed
//! while a checkpoint is under way.

use std::any::Any;
use std::collections::BTreeMap;

use stillpoint::{Durability, Engine, Label, Session, TableId, Tx, TxError};
use stillpoint_io::{SeededRng, SimDisk};
use stillpoint_store::PointOfConsistency;

use crate::lives::configure;
use crate::settings::{Setting, matrix};
use crate::stage::{Guest, Moment, while_visiting};

/// Lengths of values: in cells that are full or not, and in blocks.
const LENS: [usize; 10] = [0, 3, 12, 13, 100, 2036, 2037, 2044, 2045, 140_000];

/// Label and value of each key that has one.
type State = BTreeMap<Vec<u8>, (Label, Vec<u8>)>;

/// A change of one key, and its name.
#[derive(Clone, Copy, Debug)]
enum Change {
    Put(Label),
    Until(u64),
    UntilAndPatch(u64),
    PatchAndUntil(u64),
    Grow,
    Splice,
    Delete,
}

const CHANGES: [Change; 11] = [
    Change::Put(Label { tag: 1, deadline: 0 }),
    Change::Put(Label { tag: 2, deadline: 1_790_000_000_000 }),
    Change::Until(7),
    Change::Until(u64::MAX),
    Change::Until(0),
    Change::UntilAndPatch(8),
    Change::PatchAndUntil(9),
    Change::Grow,
    Change::Splice,
    Change::Delete,
    Change::Put(Label { tag: 3, deadline: 5 }),
];

fn put(
    tx: &mut Tx<'_>,
    table: TableId,
    key: &[u8],
    change: Change,
    len: usize,
) -> Result<(), TxError> {
    match change {
        Change::Put(label) => tx.put_labelled(table, key, label, &vec![label.tag; len]),
        Change::Until(deadline) => tx.set_deadline(table, key, deadline),
        Change::UntilAndPatch(deadline) => {
            tx.set_deadline(table, key, deadline)?;
            tx.patch(table, key, 0, b"both")
        }
        Change::PatchAndUntil(deadline) => {
            tx.patch(table, key, 0, b"too")?;
            tx.set_deadline(table, key, deadline)
        }
        Change::Grow => {
            let len = tx.get(table, key)?.map_or(0, |value| value.len());
            tx.patch(table, key, len, &[4; 11])
        }
        Change::Splice => {
            let slot = tx.key(table, key, stillpoint::Mode::Write)?;
            tx.splice_slot(slot, 0, 0, b"spliced")
        }
        Change::Delete => tx.delete(table, key).map(drop),
    }
}

fn patch(value: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    value.resize(value.len().max(at + bytes.len()), 0);
    value[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Changes the model in the same way. False if the key has no value to change.
fn change_model(state: &mut State, key: &[u8], change: Change, len: usize) -> bool {
    if let Change::Put(label) = change {
        state.insert(key.to_vec(), (label, vec![label.tag; len]));
        return true;
    }
    let Some((label, value)) = state.get_mut(key) else { return false };
    match change {
        Change::Put(_) => {}
        Change::Until(deadline) => label.deadline = deadline,
        Change::UntilAndPatch(deadline) => {
            label.deadline = deadline;
            patch(value, 0, b"both");
        }
        Change::PatchAndUntil(deadline) => {
            label.deadline = deadline;
            patch(value, 0, b"too");
        }
        Change::Grow => {
            let len = value.len();
            patch(value, len, &[4; 11]);
        }
        Change::Splice => drop(value.splice(0..0, *b"spliced")),
        Change::Delete => drop(state.remove(key)),
    }
    true
}

/// Changes keys one after the other, and their model.
struct Changer {
    session: Session,
    table: TableId,
    state: State,
    steps: usize,
    /// Acts between two phases of a checkpoint.
    acts_in_phases: usize,
}

impl Changer {
    /// Makes the next `count` changes.
    fn change(&mut self, count: usize) {
        for _ in 0..count {
            self.steps += 1;
            let key = [(self.steps * 7 % (2 * LENS.len())) as u8];
            let len = LENS[usize::from(key[0]) % LENS.len()];
            let change = CHANGES[self.steps * 3 % CHANGES.len()];
            let change =
                if self.state.contains_key(&key[..]) { change } else { CHANGES[self.steps % 2] };
            assert!(change_model(&mut self.state, &key, change, len));
            let table = self.table;
            let changed = self.session.transact(|tx| put(tx, table, &key, change, len));
            changed.unwrap_or_else(|error| panic!("{change:?} of {len} bytes: {error}"));
        }
    }

    /// Compares all records with the model.
    fn check(&mut self, context: &str) {
        let mut found = State::new();
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], value: stillpoint::ValueRef<'_>| {
                found.insert(key.to_vec(), (value.label(), value.to_vec()));
            };
            cursor = self.session.scan(self.table, cursor, 1000, visit).expect("a table");
            if cursor == 0 {
                break;
            }
        }
        let keys = found.keys().chain(self.state.keys());
        if let Some(key) = keys.into_iter().find(|key| found.get(*key) != self.state.get(*key)) {
            let brief = |state: &State| {
                state.get(key).map(|(label, value)| (*label, value.len(), value.first().copied()))
            };
            panic!(
                "{context}: key {key:?}: {:?}, expected {:?}",
                brief(&found),
                brief(&self.state)
            );
        }
    }
}

impl Guest for Changer {
    fn act(&mut self, moment: Moment) {
        self.acts_in_phases += usize::from(moment == Moment::Phases);
        self.change(1);
    }
}

fn open(setting: &Setting, disk: &SimDisk, state: State, steps: usize) -> (Engine, Box<Changer>) {
    let engine = Engine::open(configure(setting, disk, &SeededRng::new(1), 4)).expect("opens");
    let table = engine.table("things").expect("a table");
    let session = engine.session().expect("a session");
    (engine, Box::new(Changer { session, table, state, steps, acts_in_phases: 0 }))
}

/// Three lives: changes, a checkpoint with changes in its middle, further changes, and a crash.
fn lives(setting: &Setting) {
    let mut disk = SimDisk::new(1);
    let (mut state, mut steps) = (State::new(), 0);
    for life in 0..3u64 {
        let (engine, mut changer) = open(setting, &disk, state, steps);
        let context = format!("{} with {}, life {life}", setting.scheme, setting.journal);
        changer.check(&context);
        changer.change(60);
        changer.check(&format!("{context}, changed"));
        if setting.row().capabilities.takes_checkpoints() {
            let (taken, guest) = while_visiting(changer, || engine.checkpoint());
            taken.expect("a checkpoint");
            let guest: Box<dyn Any> = guest;
            changer = guest.downcast().expect("the same comes back");
            let stops =
                setting.row().capabilities.point == Some(PointOfConsistency::PhysicalThroughout);
            // At least one act lies between the point of consistency and the scan.
            assert!(stops || changer.acts_in_phases > 2, "{context}: nothing changed meanwhile");
        }
        changer.change(if life == 1 { 0 } else { 25 });
        changer.check(&format!("{context}, at its end"));
        (state, steps) = (changer.state, changer.steps);
        drop(changer.session);
        drop(engine);
        disk = disk.crash(life);
    }
}

/// Settings whose commits survive a crash.
fn settings() -> impl Iterator<Item = Setting> {
    matrix().into_iter().filter(|setting| setting.durability == Durability::Strict)
}

pub(crate) fn deadlines_survive_with_every_scheme_and_journal() {
    settings().for_each(|setting| lives(&setting));
}

/// The same with one setting.
pub(crate) fn deadlines_survive() {
    let some = |setting: &Setting| setting.scheme == "calc" && setting.journal == "redo";
    settings().filter(some).for_each(|setting| lives(&setting));
}

/// A full cache deletes keys by transactions of their own, which may use the reserve. Their memory serves
/// other keys once the deletions are durable. A crash brings none of them back.
pub(crate) fn what_is_given_up_stays_away() {
    let setting = Setting { scheme: "calc", journal: "redo", durability: Durability::Relaxed };
    let disk = SimDisk::new(1);
    let (engine, mut changer) = open(&setting, &disk, State::new(), 0);
    let Changer { session, table, state, .. } = &mut *changer;
    for key in 0..60u8 {
        let value = vec![key; 300];
        session.transact(|tx| tx.put(*table, &[key], &value)).expect("room");
        state.insert(vec![key], (Label::default(), value));
        if key >= 20 {
            // The oldest key makes room.
            let oldest = [key - 20];
            session
                .transact(|tx| {
                    tx.use_reserve();
                    tx.delete(*table, &oldest).map(drop)
                })
                .expect("deletes");
            state.remove(&oldest[..]);
        }
    }
    session.wait_durable(session.serial()).expect("a disk");
    changer.check("before the crash");
    let state = std::mem::take(&mut changer.state);
    drop(changer);
    drop(engine);
    for seed in 0..5 {
        let (_engine, mut changer) = open(&setting, &disk.crash(seed), state.clone(), 0);
        changer.check("after the crash");
    }
}

/// Blocks of large values move when much memory is free, and their deadlines with them.
pub(crate) fn deadlines_stay_when_blocks_move() {
    let setting = Setting { scheme: "none", journal: "redo", durability: Durability::Strict };
    let disk = SimDisk::new(1);
    let mut config = configure(&setting, &disk, &SeededRng::new(1), 4);
    config.log_limit_bytes = u64::MAX;
    let engine = Engine::open(config).expect("opens");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let keys = 0..400u64;
    for key in keys.clone() {
        let value = vec![key as u8; 100_000];
        session
            .transact(|tx| tx.put_until(table, &key.to_be_bytes(), &value, key + 1))
            .expect("room");
    }
    for key in keys.clone().filter(|key| key % 8 > 0) {
        session.transact(|tx| tx.delete(table, &key.to_be_bytes()).map(drop)).expect("commits");
    }
    for _ in 0..2_000 {
        session.idle();
        session.relocate();
    }
    for key in keys.filter(|key| key % 8 == 0) {
        session
            .transact(|tx| {
                let value = tx.get(table, &key.to_be_bytes())?.expect("it is there");
                assert_eq!(value.deadline(), Some(key + 1), "key {key}");
                assert!(value.to_vec() == vec![key as u8; 100_000], "key {key}");
                Ok(())
            })
            .expect("reads");
    }
}
