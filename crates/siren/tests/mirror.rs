//! Random transactions and checkpoints in steps beside a sequential model, with faults and crashes. What
//! an opening finds must be a state that the model allows.
//!
//! One seed again: `STILLPOINT_FUZZ_SEED=<seed> cargo test -p stillpoint-siren --test mirror`. More:
//! `STILLPOINT_FUZZ_SECONDS=60`.

mod common;

use std::collections::BTreeMap;

use common::open;
use stillpoint_io::{Fault, Rng, SeededRng, SimDisk, seeded_rounds};
use stillpoint_siren::{
    Checkpoint, Logging, Progress, ROWS, Removes, Savepoint, Session, SirenError, Store, TableId,
    Transaction,
};

/// Keys of each table.
const KEYS: u64 = 24;
const TABLES: [&str; 2] = ["first", "second"];

type State = BTreeMap<(u16, Vec<u8>), Vec<u8>>;

/// Both rows with each logging.
fn settings() -> impl Iterator<Item = (Removes, Logging)> {
    ROWS.iter().flat_map(|row| Logging::ALL.map(|logging| (row.removes, logging)))
}

fn key(rng: &SeededRng) -> Vec<u8> {
    format!("key {:02}", rng.below(KEYS)).into_bytes()
}

/// The committed state.
fn state_of(store: &Store) -> State {
    let session = store.session().expect("a session");
    let mut transaction = session.begin();
    let mut state = State::new();
    for id in 1..=TABLES.len() as u16 {
        for number in 0..KEYS {
            let key = format!("key {number:02}").into_bytes();
            match transaction.get(TableId(id), &key) {
                Ok(Some(value)) => drop(state.insert((id, key), value.to_vec())),
                Ok(None) => {}
                Err(SirenError::NoSuchTable { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    state
}

/// A key, and its new value.
type Write = ((u16, Vec<u8>), Option<Vec<u8>>);

struct OpenTransaction<'s> {
    transaction: Transaction<'s>,
    savepoints: Vec<(Savepoint, usize)>,
    writes: Vec<Write>,
}

/// What the model knows of the commits of one opening.
#[derive(Clone, Debug)]
struct Model {
    /// The state after each commit, with the commit's level. The first is what the opening found.
    states: Vec<(u64, State)>,
    /// The level of the last checkpoint that was finished.
    level: u64,
    /// The level of a checkpoint whose end is unknown.
    level_in_doubt: Option<u64>,
    /// The state after a commit whose end is unknown.
    in_doubt: Option<State>,
}

impl Model {
    fn last(&self) -> &State {
        &self.states.last().expect("there is one").1
    }

    /// Checks what the next opening has found.
    fn check(&self, store: &Store, logging: Logging, what: &str) {
        store.check().unwrap_or_else(|error| panic!("{what}: {error}"));
        let level = store.recovered().level;
        let is_known = level == self.level || Some(level) == self.level_in_doubt;
        assert!(
            is_known,
            "{what}: checkpoint {level}, not {} or {:?}",
            self.level, self.level_in_doubt
        );
        let held = self.states.iter().rposition(|(of, _)| *of <= level).unwrap_or(0);
        let allowed = match logging {
            Logging::None => &self.states[held..=held],
            Logging::Relaxed => &self.states[held..],
            Logging::Strict => &self.states[self.states.len() - 1..],
        };
        let in_doubt = self.in_doubt.iter().filter(|_| logging != Logging::None);
        let found = state_of(store);
        let mut allowed = allowed.iter().map(|(_, state)| state).chain(in_doubt);
        assert!(
            allowed.any(|state| *state == found),
            "{what}: recovered {:?}\nfound {found:?}\nmodel {:?}",
            store.recovered(),
            self.last()
        );
    }
}

/// How a life of the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After all steps.
    Whole,
    /// With an error that is no conflict.
    Failed,
}

/// Runs random steps on an open store. `goes_on` says that errors of checkpoints do not end the life.
fn live(store: &Store, rng: &SeededRng, steps: u64, goes_on: bool) -> (Model, End) {
    let found = state_of(store);
    let level = store.recovered().level;
    let mut model = Model { states: vec![(0, found)], level, level_in_doubt: None, in_doubt: None };
    let sessions = [store.session().expect("a session"), store.session().expect("a session")];
    let mut life =
        Life { store, sessions: &sessions, rng, open: Vec::new(), checkpoint: None, goes_on };
    for name in TABLES {
        if store.table(name).is_err() {
            return (model, End::Failed);
        }
    }
    for _ in 0..steps {
        if life.step(&mut model).is_err() {
            return (model, End::Failed);
        }
    }
    (model, End::Whole)
}

struct Life<'s> {
    store: &'s Store,
    sessions: &'s [Session<'s>; 2],
    rng: &'s SeededRng,
    open: Vec<OpenTransaction<'s>>,
    checkpoint: Option<Checkpoint<'s>>,
    goes_on: bool,
}

/// An error of the disk.
struct Failed;

impl<'s> Life<'s> {
    fn step(&mut self, model: &mut Model) -> Result<(), Failed> {
        match self.rng.below(100) {
            0..8 if self.open.len() < 4 => {
                let transaction = self.sessions[self.rng.below(2) as usize].begin();
                let (savepoints, writes) = (Vec::new(), Vec::new());
                self.open.push(OpenTransaction { transaction, savepoints, writes });
                Ok(())
            }
            0..55 => self.operate(model),
            55..63 => self.commit(model),
            63..66 => {
                if let Some(at) = self.any() {
                    self.open.swap_remove(at).transaction.abort();
                }
                Ok(())
            }
            _ => self.advance_checkpoint(model),
        }
    }

    fn any(&self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.below(self.open.len() as u64) as usize)
    }

    fn operate(&mut self, model: &Model) -> Result<(), Failed> {
        let Some(at) = self.any() else { return Ok(()) };
        let (rng, one) = (self.rng, &mut self.open[at]);
        let id = rng.below(2) as u16 + 1;
        let key = key(rng);
        let place = (id, key.clone());
        let own = one.writes.iter().rev().find(|(of, _)| *of == place);
        let seen = match own {
            Some((_, value)) => value.as_ref(),
            None => model.last().get(&place),
        };
        let tx = &mut one.transaction;
        let result = match rng.below(10) {
            0..5 => {
                let len = rng.below(if rng.below(40) == 0 { 9000 } else { 60 }) as usize;
                let value = vec![rng.below(256) as u8; len];
                tx.put(TableId(id), &key, &value).map(|()| one.writes.push((place, Some(value))))
            }
            5..7 => {
                let had_value = seen.is_some();
                tx.delete(TableId(id), &key).map(|deleted| {
                    assert_eq!(deleted, had_value, "a deletion sees what is there");
                    if deleted {
                        one.writes.push((place, None));
                    }
                })
            }
            7 => {
                let savepoint = tx.savepoint();
                one.savepoints.push((savepoint, one.writes.len()));
                Ok(())
            }
            8 if !one.savepoints.is_empty() => {
                let to = rng.below(one.savepoints.len() as u64) as usize;
                let (savepoint, writes) = one.savepoints[to];
                tx.roll_back_to(savepoint).map(|()| {
                    one.savepoints.truncate(to + 1);
                    one.writes.truncate(writes);
                })
            }
            _ => tx.get(TableId(id), &key).map(|value| {
                assert_eq!(value.as_deref(), seen.map(|it| &it[..]), "a read of {place:?}");
            }),
        };
        self.judge(result)
    }

    fn judge(&self, result: Result<(), SirenError>) -> Result<(), Failed> {
        match result {
            Err(error) if !error.is_retryable() => Err(Failed),
            _ => Ok(()),
        }
    }

    fn commit(&mut self, model: &mut Model) -> Result<(), Failed> {
        let Some(at) = self.any() else { return Ok(()) };
        let OpenTransaction { transaction, writes, .. } = self.open.swap_remove(at);
        let mut state = model.last().clone();
        for (place, value) in writes {
            match value {
                Some(value) => drop(state.insert(place, value)),
                None => drop(state.remove(&place)),
            }
        }
        match transaction.commit() {
            Ok(committed) => {
                model.states.push((committed.level, state));
                Ok(())
            }
            Err(_) => {
                model.in_doubt = Some(state);
                Err(Failed)
            }
        }
    }

    fn advance_checkpoint(&mut self, model: &mut Model) -> Result<(), Failed> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return match self.store.begin_checkpoint() {
                Ok(checkpoint) => {
                    self.checkpoint = Some(checkpoint);
                    Ok(())
                }
                Err(_) => Err(Failed),
            };
        };
        if self.rng.below(200) == 0 {
            return Ok(()); // It is given up.
        }
        let level = checkpoint.level();
        let mut progress = Ok(Progress::More);
        for _ in 0..1 + self.rng.below(6) {
            progress = checkpoint.step();
            if !matches!(progress, Ok(Progress::More)) {
                break;
            }
        }
        let result = match progress {
            Ok(Progress::More) => {
                self.checkpoint = Some(checkpoint);
                return Ok(());
            }
            Ok(Progress::Copied) => {
                model.level_in_doubt = Some(level);
                checkpoint.finish().map(drop)
            }
            Err(error) => Err(error),
        };
        self.store.check().unwrap_or_else(|error| panic!("after a checkpoint: {error}"));
        match result {
            Ok(()) => {
                (model.level, model.level_in_doubt) = (level, None);
                Ok(())
            }
            Err(_) if self.goes_on => Ok(()),
            Err(_) => Err(Failed),
        }
    }
}

/// Several lives with a crash or a kill between them.
fn lives(removes: Removes, logging: Logging, seed: u64) {
    let rng = SeededRng::new(seed);
    let mut disk = SimDisk::new(seed);
    let mut store = open(&disk, removes, logging, seed);
    for number in 0..3 {
        let (model, end) = live(&store, &rng, 400, false);
        assert_eq!(end, End::Whole, "no fault was injected");
        let waited = store.waited_turns_max();
        assert_eq!(waited, 0, "one thread waits for nobody");
        disk = if rng.below(3) == 0 { disk.kill() } else { disk.crash(rng.next_u64()) };
        drop(store);
        store = open(&disk, removes, logging, seed);
        let what = format!("seed {seed}, {removes:?}, {logging:?}, life {number}");
        model.check(&store, logging, &what);
    }
}

/// A life with a fault at one call, a crash, and a further life.
fn with_fault(removes: Removes, logging: Logging, seed: u64, nth: u64, fault: Fault) {
    let rng = SeededRng::new(seed);
    let disk = SimDisk::new(seed);
    let store = open(&disk, removes, logging, seed);
    disk.fail_at(nth, fault);
    let goes_on = fault != Fault::PowerLoss;
    let (mut model, _) = live(&store, &rng, 250, goes_on);
    if goes_on {
        disk.clear_faults();
        // Whatever has failed: a checkpoint holds everything, or says that it cannot.
        if let Ok(checkpoint) = store.begin_checkpoint() {
            let level = checkpoint.level();
            match checkpoint.finish() {
                Ok(_) => (model.level, model.level_in_doubt) = (level, None),
                Err(_) => model.level_in_doubt = model.level_in_doubt.or(Some(level)),
            }
        }
        store.check().unwrap_or_else(|error| panic!("seed {seed}, call {nth}: {error}"));
    }
    let after = disk.crash(nth);
    drop(store);
    let store = open(&after, removes, logging, seed);
    let what = format!("seed {seed}, call {nth}, {fault:?}, {removes:?}, {logging:?}");
    model.check(&store, logging, &what);
    let (model, end) = live(&store, &rng, 60, false);
    assert_eq!(end, End::Whole, "{what}: no further fault");
    let last = after.crash(nth + 1);
    drop(store);
    let store = open(&last, removes, logging, seed);
    model.check(&store, logging, &format!("{what}, second life"));
}

/// The calls at which faults are injected, of so many: each, or the share that `STILLPOINT_SIREN_CALLS=K/N`
/// chooses.
fn injected(calls: u64) -> impl Iterator<Item = u64> {
    let share = std::env::var("STILLPOINT_SIREN_CALLS").ok().map(|text| {
        let parts =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let share: (u64, u64) = parts.unwrap_or_else(|| panic!("{text:?} is no share K/N"));
        assert!(share.0 < share.1, "{text:?} is no share K/N");
        share
    });
    let (k, n) = share.unwrap_or((0, 1));
    (1..=calls).filter(move |nth| nth % n == k)
}

/// Calls of a life that may change the disk.
fn calls(removes: Removes, logging: Logging, seed: u64) -> u64 {
    let disk = SimDisk::new(seed);
    let store = open(&disk, removes, logging, seed);
    let before = disk.call_counts().changes();
    live(&store, &SeededRng::new(seed), 250, false);
    disk.call_counts().changes() - before
}

#[test]
fn stores_equal_the_model_in_and_after_their_lives() {
    seeded_rounds(40, |seed| {
        for (removes, logging) in settings() {
            lives(removes, logging, seed);
        }
    });
}

#[test]
fn a_crash_at_every_call_is_survived() {
    for (removes, logging) in settings() {
        for seed in 1..=2 {
            for nth in injected(calls(removes, logging, seed)) {
                with_fault(removes, logging, seed, nth, Fault::PowerLoss);
            }
        }
    }
}

#[test]
fn an_error_at_every_call_loses_nothing() {
    for (removes, logging) in settings() {
        for nth in injected(calls(removes, logging, 3)) {
            for fault in [Fault::InputOutput, Fault::DiskFull] {
                with_fault(removes, logging, 3, nth, fault);
            }
        }
    }
}

/// Crash states that the test judges for each row and each logging. 10,000: `STILLPOINT_SIREN_CRASHES=10000`.
/// `STILLPOINT_SIREN_DAY` takes other seeds, as continuous integration does each day.
#[test]
fn crash_states_of_each_row_and_logging() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let wanted = number("STILLPOINT_SIREN_CRASHES").unwrap_or(1000);
    let first = number("STILLPOINT_SIREN_DAY").unwrap_or(0) << 32;
    for (removes, logging) in settings() {
        let (mut judged, mut seed) = (0, first + 1000);
        while judged < wanted {
            judged += crash_states(removes, logging, seed);
            seed += 1;
        }
    }
}

/// A life whose disk is taken away at several moments, with transactions open and checkpoints under way.
/// Judges what each opening finds; gives their number.
fn crash_states(removes: Removes, logging: Logging, seed: u64) -> u64 {
    let rng = SeededRng::new(seed);
    let mut disk = SimDisk::new(seed);
    let mut store = open(&disk, removes, logging, seed);
    let mut judged = 0;
    for _ in 0..4 {
        let steps = 20 + rng.below(150);
        let (model, end) = live(&store, &rng, steps, false);
        assert_eq!(end, End::Whole, "no fault was injected");
        let images: Vec<SimDisk> = (0..3).map(|_| disk.crash_image(rng.next_u64())).collect();
        drop(store);
        for image in &images {
            let what = format!("seed {seed}, {removes:?}, {logging:?}, state {judged}");
            model.check(&open(image, removes, logging, seed), logging, &what);
            judged += 1;
        }
        disk = images.into_iter().next().expect("three").crash(rng.next_u64());
        store = open(&disk, removes, logging, seed);
    }
    judged
}
