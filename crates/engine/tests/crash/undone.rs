//! Commits that a checkpoint without a point of consistency holds, and that a crash takes away.
//!
//! A guest acts in the middle of a checkpoint. Each time a session writes a key to a log of its own, and
//! two sessions with other logs read that key and change others. The log of the first session need not
//! be flushed when the checkpoint is published. A crash that takes its end away takes away what the
//! others have done, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stillpoint::{
    Config, Durability, Engine, KeySet, Label, Mode, Procedure, Session, Slot, Stamp, TableId, Tx,
    TxError, ValueRef,
};
use stillpoint_format::LogGsn;
use stillpoint_format::manifest::Manifest;
use stillpoint_format::names::log_dir;
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, SeededRng, SimDisk};

use crate::lives::configure;
use crate::settings::Setting;
use crate::stage::{Guest, Moment, copy, while_visiting};

/// Crashes of each situation.
const CRASHES: u64 = 6;
/// Most acts of the guest whose sources are flushed.
const FLUSHED_MAX: u64 = 12;
/// Bytes of a value: the keys that are changed lie in another slab than those that are read.
const VALUE_BYTES: usize = 600;
/// Bytes of a value in blocks.
const LARGE_BYTES: usize = 5_000;
const KEYS: [&[u8]; 8] = [
    b"put",
    b"deleted",
    b"inserted",
    b"patched",
    b"appended",
    b"spliced",
    b"with a deadline",
    b"large, with a deadline",
];

/// The records that the steps change: deadline and value.
type State = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn settings(setting: &Setting, disk: &SimDisk, seed: u64) -> Config {
    let mut config = configure(setting, disk, &SeededRng::new(seed), 4);
    (config.logs, config.keep_checkpoints, config.merge_after) = (3, 1, None);
    // The scan looks at the clock, so that guests act in the middle of it.
    config.checkpoint_pace = Some(1 << 20);
    config
}

/// The value of a step, whose number stands at its begin.
fn value(step: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![step as u8; bytes];
    value[..8].copy_from_slice(&step.to_le_bytes());
    value
}

/// What a step does with each key, on a model or in a transaction.
enum Change {
    Put(Vec<u8>),
    Delete,
    Patch(usize, [u8; 8]),
    Append([u8; 8]),
    /// Bytes from the hundredth on are replaced by others.
    Splice(usize, Vec<u8>),
    PutUntil(Vec<u8>, u64),
    Until(u64),
    UntilAndPatch(u64, [u8; 8]),
}

/// Where splices begin.
const SPLICED_AT: usize = 100;

/// A change of a deadline, of a value of so many bytes.
fn change_of_deadline(step: u64, bytes: usize) -> Change {
    match step % 3 {
        0 => Change::PutUntil(value(step, bytes), step),
        1 => Change::Until(1_000 + step),
        _ => Change::UntilAndPatch(0, step.to_le_bytes()),
    }
}

fn changes(step: u64) -> [Change; 8] {
    let long = if step.is_multiple_of(3) { 20_000 } else { VALUE_BYTES };
    [
        Change::Put(value(step, long)),
        if step.is_multiple_of(2) {
            Change::Delete
        } else {
            Change::Put(value(step, VALUE_BYTES + step as usize))
        },
        if step % 4 == 2 { Change::Delete } else { Change::Put(value(step, VALUE_BYTES)) },
        Change::Patch(8 * (step as usize % 5), step.to_le_bytes()),
        Change::Append(step.to_le_bytes()),
        Change::Splice(step as usize % 7, vec![step as u8; step as usize % 5]),
        change_of_deadline(step, VALUE_BYTES),
        change_of_deadline(step + 1, LARGE_BYTES),
    ]
}

/// Deadline and value after a change.
fn after(now: Option<(u64, Vec<u8>)>, change: Change) -> Option<(u64, Vec<u8>)> {
    let there = || now.clone().expect("it is there");
    let patched = |at: usize, bytes: [u8; 8]| {
        let (deadline, mut value) = there();
        value[at..at + 8].copy_from_slice(&bytes);
        (deadline, value)
    };
    Some(match change {
        Change::Put(value) => (0, value),
        Change::PutUntil(value, deadline) => (deadline, value),
        Change::Delete => return None,
        Change::Patch(at, bytes) => patched(at, bytes),
        Change::Append(bytes) => (there().0, [there().1, bytes.to_vec()].concat()),
        Change::Splice(removed, bytes) => {
            let (deadline, mut value) = there();
            value.splice(SPLICED_AT..SPLICED_AT + removed, bytes);
            (deadline, value)
        }
        Change::Until(deadline) => (deadline, there().1),
        Change::UntilAndPatch(deadline, bytes) => (deadline, patched(0, bytes).1),
    })
}

/// Bytes of a key's first value.
fn len_of(key: &[u8]) -> usize {
    if key == KEYS[7] { LARGE_BYTES } else { VALUE_BYTES }
}

/// The state after the steps up to number `last`.
fn model(last: u64) -> State {
    let mut state = State::new();
    for key in KEYS.into_iter().filter(|key| *key != KEYS[2]) {
        state.insert(key.to_vec(), (0, value(0, len_of(key))));
    }
    for step in 1..=last {
        for (key, change) in KEYS.into_iter().zip(changes(step)) {
            let now = state.get(key).cloned();
            match after(now, change) {
                Some(now) => drop(state.insert(key.to_vec(), now)),
                None => drop(state.remove(key)),
            }
        }
    }
    state
}

/// Reads the source and makes a step. The commit is not flushed.
struct MakeStep {
    table: TableId,
    source: Vec<u8>,
    step: u64,
}

impl Procedure for MakeStep {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, &self.source, Mode::Read, 0);
        for key in KEYS {
            keys.push(self.table, key, Mode::Write, VALUE_BYTES);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        assert!(tx.value(Slot(0)).is_some(), "the source is there");
        for (at, change) in (1..).zip(changes(self.step)) {
            match change {
                Change::Put(value) => tx.put_slot(Slot(at), &value)?,
                Change::Delete => drop(tx.delete_slot(Slot(at))?),
                Change::Patch(offset, bytes) => tx.patch_slot(Slot(at), offset, &bytes)?,
                Change::Append(bytes) => {
                    let end = tx.value(Slot(at)).expect("it is there").len();
                    tx.patch_slot(Slot(at), end, &bytes)?;
                }
                Change::Splice(removed, bytes) => {
                    tx.splice_slot(Slot(at), SPLICED_AT, removed, &bytes)?;
                }
                Change::PutUntil(value, deadline) => {
                    tx.put_slot_labelled(Slot(at), Label { tag: 0, deadline }, &value)?;
                }
                Change::Until(deadline) => tx.set_slot_deadline(Slot(at), deadline)?,
                Change::UntilAndPatch(deadline, bytes) => {
                    tx.set_slot_deadline(Slot(at), deadline)?;
                    tx.patch_slot(Slot(at), 0, &bytes)?;
                }
            }
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

/// Puts the source. The commit is not flushed.
struct PutSource(TableId, Vec<u8>);

impl Procedure for PutSource {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.0, &self.1, Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), b"source")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

fn source(act: u64) -> Vec<u8> {
    format!("source {act}").into_bytes()
}

/// Steps of each act of the guest.
const STEPS: u64 = 3;

struct Visitor {
    table: TableId,
    sessions: [Session; 3],
    acts: u64,
    /// The sources of so many acts are flushed.
    flushed: u64,
}

impl Guest for Visitor {
    fn act(&mut self, _: Moment) {
        let (table, act) = (self.table, self.acts);
        self.acts += 1;
        let [first, second, third] = &mut self.sessions;
        if act <= self.flushed {
            second.flush().expect("flushes");
        }
        second.execute(&mut [PutSource(table, source(act))][..]);
        for at in 1..=STEPS {
            let step = act * STEPS + at;
            // One session overwrites what another one has written, in another log.
            let by = if at == 2 { &mut *third } else { &mut *first };
            by.execute(&mut [MakeStep { table, source: source(act), step }][..]);
        }
    }
}

/// A state after a crash: the sources, the other records, and how many keys the start has undone.
struct Found {
    engine: Engine,
    sources: usize,
    state: State,
    undone: u64,
}

fn open(setting: &Setting, disk: &SimDisk, context: &str) -> Found {
    let engine = Engine::open(settings(setting, disk, 2));
    let engine = engine.unwrap_or_else(|error| panic!("{context}: {error}"));
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    let (mut sources, mut state, mut cursor) = (0, State::new(), 0);
    loop {
        let visit = &mut |key: &[u8], value: ValueRef<'_>| {
            if key.starts_with(b"source") {
                sources += 1;
            } else if KEYS.contains(&key) {
                state.insert(key.to_vec(), (value.label().deadline, value.to_vec()));
            }
        };
        cursor = session.scan(table, cursor, 1000, visit).expect("a table");
        if cursor == 0 {
            break;
        }
    }
    let undone = engine.stats().recovered.keys_undone;
    Found { engine, sources, state, undone }
}

/// The last step whose effects a state has. Each step is there as a whole or not at all.
fn last_step(found: &Found, acts: u64, context: &str) -> u64 {
    let last = (0..=acts * STEPS).find(|&step| model(step) == found.state);
    let last = last.unwrap_or_else(|| {
        let short = |(key, (deadline, value)): (&Vec<u8>, &(u64, Vec<u8>))| {
            let key = String::from_utf8_lossy(key).into_owned();
            (key, *deadline, value.len(), value[..8].to_vec())
        };
        let found: Vec<_> = found.state.iter().map(short).collect();
        panic!("{context}: a part of a step: {found:?}")
    });
    let needed = last.div_ceil(STEPS) as usize;
    let sources = found.sources;
    assert!(needed <= sources, "{context}: step {last} without its source, of {sources} sources");
    last
}

/// Runs the situation. The sources of the first `flushed` acts are flushed at the next act. Returns in how many crashes something was undone.
fn run(setting: &Setting, flushed: u64) -> usize {
    let disk = SimDisk::new(1);
    let engine = Engine::open(settings(setting, &disk, 1)).expect("opens");
    let table = engine.table("things").expect("a table");
    let mut sessions = [(); 3].map(|()| engine.session().expect("a session"));
    // The slabs: small values, then what fills a pace, then the keys that are changed.
    sessions[0].transact(|tx| tx.put(table, b"small", b"value")).expect("commits");
    for filler in 0..200u8 {
        sessions[0].transact(|tx| tx.put(table, &[filler], &[filler; 300])).expect("commits");
    }
    engine.checkpoint().expect("a checkpoint");
    sessions[0]
        .transact(|tx| {
            // Of one key only the cell is left, which a full scan visits after the fillers.
            KEYS.into_iter().try_for_each(|key| tx.put(table, key, &value(0, len_of(key))))
        })
        .expect("commits");
    sessions[0].transact(|tx| tx.delete(table, KEYS[2]).map(drop)).expect("commits");
    let guest = Box::new(Visitor { table, sessions, acts: 0, flushed });
    let (taken, guest) = while_visiting(guest, || engine.checkpoint());
    taken.expect("a checkpoint");
    let guest: Box<dyn std::any::Any> = guest;
    let acts = guest.downcast::<Visitor>().expect("the same comes back").acts;
    assert!(acts > 2, "before, between and after the phases");
    let (mut undone, active) = (0, active(&disk));
    for seed in 0..CRASHES {
        let context = format!("{setting:?}, {flushed} flushed, crash {seed}");
        let after = disk.crash(seed);
        let found = open(setting, &after, &context);
        let last = last_step(&found, acts, &context);
        let was_undone = found.undone > 0;
        // What a crash takes away was not closed when the checkpoint was published.
        assert!(!was_undone || !active.is_empty(), "{context}: no commit was active");
        undone += usize::from(was_undone);
        // What was served survives every later crash, and nothing is undone twice.
        drop(found.engine);
        let after = after.crash(seed);
        if seed == 0 && was_undone {
            assert_a_repair_tells_of_the_lost_undo(&after, &context);
        }
        let found = open(setting, &after, &context);
        let again = last_step(&found, acts, &context);
        assert_eq!((again, found.undone), (last, 0), "{context}: a second crash");
        // A checkpoint of the new run goes on from there.
        let table = found.engine.table("things").expect("a table");
        let mut session = found.engine.session().expect("a session");
        session.transact(|tx| tx.put(table, b"small", b"later")).expect("commits");
        found.engine.checkpoint().expect("a checkpoint");
        drop((session, found.engine));
        let found = open(setting, &after.crash(seed), &context);
        assert_eq!(last_step(&found, acts, &context), last, "{context}: a third crash");
    }
    undone
}

/// The commits that the newest checkpoint may hold and that were not closed at its publication.
fn active(disk: &SimDisk) -> Vec<LogGsn> {
    let file = disk.open(Path::new("MANIFEST"), OpenMode::Read, Caching::Buffered);
    let file = file.expect("a manifest");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    let manifest = Manifest::decode(&bytes).expect("sound");
    manifest.newest_chain().last().map_or(Vec::new(), |newest| newest.active.clone())
}

/// Damages the small checkpoint of a start. A repair goes back to the one before it, which holds what the
/// start has undone, and says so.
#[expect(clippy::disallowed_methods, reason = "damages a file behind the engine's back")]
fn assert_a_repair_tells_of_the_lost_undo(disk: &SimDisk, context: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    copy(disk, directory.path());
    let sound = stillpoint::offline::repair(directory.path(), false).expect(context);
    assert_eq!(sound.gives_up, [""; 0], "{context}");
    let names = disk.list(Path::new("checkpoint")).expect("checkpoints");
    let newest = directory.path().join("checkpoint").join(names.iter().max().expect("two"));
    std::fs::write(newest.join("part-000"), b"damaged").expect("written");
    let repaired = stillpoint::offline::repair(directory.path(), false).expect(context);
    let tells = repaired.gives_up.iter().any(|lost| lost.starts_with("the undo of commits"));
    assert!(tells, "{context}: {repaired:?}");
}

/// Writes, and deletes a key, in the middle of a checkpoint.
struct Burst {
    table: TableId,
    session: Session,
}

/// Commits of each act of a [`Burst`].
const BURST: u64 = 200;

impl Guest for Burst {
    fn act(&mut self, _: Moment) {
        let table = self.table;
        self.session.transact(|tx| tx.put(table, KEYS[1], b"short")).expect("commits");
        for n in 0..BURST {
            self.session.transact(|tx| tx.put(table, KEYS[0], &n.to_le_bytes())).expect("commits");
        }
        self.session.transact(|tx| tx.delete(table, KEYS[1]).map(drop)).expect("commits");
        self.session.flush().expect("flushes");
    }
}

/// A checkpoint without a point of consistency may have commits of a log that a repair gives up. What is
/// committed after the repair is newer than they are, so a later start replays it.
#[expect(clippy::disallowed_methods, reason = "removes files behind the engine's back")]
pub(crate) fn commits_after_a_repair_are_newer_than_what_a_checkpoint_has() {
    for (scheme, journal) in [("fuzzy", "redo"), ("fuzzy-undo", "undo-redo")] {
        let setting = Setting { scheme, journal, durability: Durability::Strict };
        let disk = SimDisk::new(1);
        let one_log = |config: Config| Config { logs: 1, ..config };
        let engine = Engine::open(one_log(settings(&setting, &disk, 1))).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        for filler in 0..200u8 {
            session.transact(|tx| tx.put(table, &[filler], &[filler; 300])).expect("commits");
        }
        session.transact(|tx| tx.put(table, KEYS[1], b"short")).expect("commits");
        let (taken, guest) =
            while_visiting(Box::new(Burst { table, session }), || engine.checkpoint());
        taken.expect("a checkpoint");
        drop((guest, engine));
        let directory = tempfile::tempdir().expect("a directory");
        copy(&disk.kill(), directory.path());
        let log = directory.path().join(log_dir(0));
        for segment in std::fs::read_dir(&log).expect("a log") {
            std::fs::remove_file(segment.expect("an entry").path()).expect("removed");
        }
        let repaired = stillpoint::offline::repair(directory.path(), true).expect("repairs");
        assert!(repaired.done && !repaired.gives_up.is_empty(), "{scheme}: {repaired:?}");
        let open = || {
            let mut config = one_log(settings(&setting, &SimDisk::new(1), 2));
            let real = RealDisk::new(directory.path()).expect("a directory");
            config.environment.disk = Some(Arc::new(real));
            let engine = Engine::open(config).expect("opens");
            let table = engine.table("things").expect("a table");
            let session = engine.session().expect("a session");
            (engine, table, session)
        };
        let (engine, table, mut session) = open();
        // Meanwhile the cell of the deleted key is reclaimed.
        for n in 0..BURST / 10 {
            session.transact(|tx| tx.put(table, KEYS[2], &n.to_le_bytes())).expect("commits");
            session.flush().expect("flushes");
        }
        session.transact(|tx| tx.put(table, KEYS[1], b"back")).expect("commits");
        session.flush().expect("flushes");
        drop((session, engine));
        let (_engine, table, mut session) = open();
        let mut found = Vec::new();
        let seen = session.read(table, KEYS[1], &mut found).expect("reads");
        assert!(seen.is_some() && found == b"back", "{scheme}: an acknowledged commit is gone");
    }
}

fn with_undo(scheme: &'static str) -> Setting {
    Setting { scheme, journal: "undo-redo", durability: Durability::Strict }
}

/// A start undoes what the checkpoint holds and the crash took away, and keeps that.
pub(crate) fn what_a_checkpoint_holds_beyond_the_cut_is_undone() {
    for scheme in ["fuzzy-undo", "fuzzy-undo:partial"] {
        // Which acts are flushed decides which log the publication flushes.
        let undone: usize = (0..FLUSHED_MAX).map(|flushed| run(&with_undo(scheme), flushed)).sum();
        assert!(undone > 0, "{scheme}: no crash showed an undo");
    }
}

/// Without undo a checkpoint is published only once all that it holds is closed.
pub(crate) fn what_a_fuzzy_checkpoint_holds_is_closed() {
    for scheme in ["fuzzy", "fuzzy:partial"] {
        let setting = Setting { scheme, journal: "redo", durability: Durability::Strict };
        for flushed in 0..FLUSHED_MAX {
            assert_eq!(run(&setting, flushed), 0, "{scheme}");
        }
    }
}
