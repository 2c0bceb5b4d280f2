//! Random transactions of sessions on several logs, with crashes at any moment and no flush before them.
//!
//! Each transaction leaves a key of its own, its *mark*. So a crash tells which transactions it has left. These
//! must be closed: whoever read or overwrote what another has written needs the other. All that was acknowledged
//! must be there. And the records must be those of the transactions that are left, in the order of their commits.
//! Nothing else ties one transaction to another, so a dependency that a log forgets shows.

use std::collections::{BTreeMap, BTreeSet};

use stillpoint::{
    Config, Durability, Engine, Error, Kind, Session, TableId, Transaction, Tx, TxError,
};
use stillpoint_io::{Fault, Rng, SeededRng, SimDisk};

use super::configure;

/// Keys that transactions share.
const KEYS: u64 = 150;
/// Sessions whose transactions stay open, and others.
const SESSIONS: [usize; 2] = [5, 2];
const LIVES: u64 = 2;
/// Crash states of each setting, unless it is chosen.
const FEW: u64 = 60;
const MANY: u64 = 1000;

/// Which tables take part, and when a commit is acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Kind of the second table.
    second: Kind,
    durability: Durability,
}

/// Paged tables alone, and together with a table in memory, for each durability.
fn settings() -> Vec<Setting> {
    let of = |durability| [Kind::Paged, Kind::Memory].map(|second| Setting { second, durability });
    [Durability::Strict, Durability::Relaxed].into_iter().flat_map(of).collect()
}

/// A key: the number of its table, and its bytes.
type Key = (usize, Vec<u8>);

/// What a transaction that has committed has written, and which others it needs.
#[derive(Clone, Debug, Default)]
struct Committed {
    number: u64,
    writes: BTreeMap<Key, Option<Vec<u8>>>,
    needs: BTreeSet<u64>,
}

/// What a transaction does. Reads come from keys without a value.
#[derive(Clone, Debug)]
enum Step {
    Read(Key),
    Write(Key, Option<Vec<u8>>),
}

type Records = BTreeMap<Key, Vec<u8>>;

/// Everything that is known of a store.
#[derive(Clone, Debug, Default)]
struct History {
    /// The records at the begin of this life.
    begin: Records,
    committed: Vec<Committed>,
    /// The transaction that wrote a key last.
    writers: BTreeMap<Key, u64>,
    acknowledged: BTreeSet<u64>,
    next: u64,
}

fn mark(number: u64) -> Vec<u8> {
    [b"mark", &number.to_be_bytes()[..]].concat()
}

impl History {
    /// Notes a commit, in the order of commits.
    fn commit(&mut self, number: u64, steps: &[Step], is_acknowledged: bool) {
        let mut committed = Committed { number, ..Committed::default() };
        for step in steps {
            let (Step::Read(key) | Step::Write(key, _)) = step;
            committed.needs.extend(self.writers.get(key));
            if let Step::Write(key, value) = step {
                committed.writes.insert(key.clone(), value.clone());
            }
        }
        committed.needs.remove(&number);
        self.writers.extend(committed.writes.keys().map(|key| (key.clone(), number)));
        if is_acknowledged {
            self.acknowledged.insert(number);
        }
        self.committed.push(committed);
    }

    /// Judges what a crash has left.
    fn judge(&self, found: &Records, context: &str) {
        let is_there = |number| (0..2).any(|table| found.contains_key(&(table, mark(number))));
        let mut expected = self.begin.clone();
        for committed in &self.committed {
            let Committed { number, writes, needs } = committed;
            let is_left = is_there(*number);
            let is_acknowledged = self.acknowledged.contains(number);
            assert!(is_left || !is_acknowledged, "{context}: transaction {number} is lost");
            if !is_left {
                continue;
            }
            let missing = needs.iter().find(|&&need| !is_there(need));
            assert_eq!(missing, None, "{context}: {number} is left without what it needs");
            for (key, value) in writes {
                match value {
                    Some(value) => drop(expected.insert(key.clone(), value.clone())),
                    None => drop(expected.remove(key)),
                }
            }
        }
        if *found != expected {
            let differs = |key: &&Key| found.get(*key) != expected.get(*key);
            let keys: Vec<_> = found.keys().chain(expected.keys()).filter(differs).collect();
            panic!("{context}: {} records differ, the first is {:?}", keys.len(), keys[0]);
        }
    }
}

/// An open store.
struct Store {
    engine: Engine,
    tables: [TableId; 2],
}

fn config(disk: &SimDisk, setting: Setting, logs: usize) -> Config {
    let mut config = configure(disk, 16);
    (config.durability, config.logs) = (setting.durability, logs);
    config
}

fn open(disk: &SimDisk, setting: Setting, logs: usize) -> Store {
    let engine = Engine::open(config(disk, setting, logs))
        .unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    let first = engine.table_with("first", Kind::Paged).expect("a table");
    let second = engine.table_with("second", setting.second).expect("a table");
    Store { engine, tables: [first, second] }
}

impl Store {
    /// All records.
    fn records(&self) -> Records {
        let mut session = self.engine.session().expect("a session");
        let mut records = Records::new();
        for (number, &table) in self.tables.iter().enumerate() {
            let (mut cursor, mut count) = (0, 0);
            loop {
                let note = &mut |key: &[u8], value: stillpoint::ValueRef<'_>| {
                    records.insert((number, key.to_vec()), value.to_vec());
                    count += 1;
                };
                cursor = session.scan(table, cursor, 50, note).expect("a sound store");
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(session.len(table).expect("a sound store"), count, "{table:?}");
        }
        records
    }
}

/// A transaction that stays open while others run.
struct Open<'s> {
    transaction: Transaction<'s>,
    number: u64,
    steps: Vec<Step>,
    done: usize,
}

impl Open<'_> {
    /// Takes the next step, or ends. Another one may have its keys, and then it is rolled back.
    fn go_on(
        mut self,
        store: &Store,
        rng: &SeededRng,
        history: &mut History,
        is_strict: bool,
    ) -> Option<Self> {
        if let Some(step) = self.steps.get(self.done) {
            let taken = {
                let mut tx = self.transaction.tx().expect("no batch");
                take(&mut tx, store.tables, step)
            };
            self.done += 1;
            return taken.is_ok().then_some(self);
        }
        let Open { transaction, number, steps, .. } = self;
        if rng.below(4) > 0 && transaction.commit().is_ok() {
            history.commit(number, &steps, is_strict);
        }
        None
    }
}

fn take(tx: &mut Tx<'_>, tables: [TableId; 2], step: &Step) -> Result<(), TxError> {
    match step {
        Step::Read((table, key)) => tx.get(tables[*table], key).map(drop),
        Step::Write((table, key), Some(value)) => tx.put(tables[*table], key, value),
        Step::Write((table, key), None) => tx.delete(tables[*table], key).map(drop),
    }
}

fn choose(rng: &SeededRng, number: u64) -> Vec<Step> {
    let key = || {
        let key = rng.below(KEYS).to_be_bytes().to_vec();
        (rng.below(2) as usize, key)
    };
    let mut steps = vec![Step::Write((rng.below(2) as usize, mark(number)), Some(vec![1; 20]))];
    for _ in 0..rng.below(6) {
        steps.push(match rng.below(6) {
            0 | 1 => Step::Read(key()),
            2 => Step::Write(key(), None),
            _ => {
                let longest = if rng.below(20) == 0 { 9000 } else { 900 };
                let mut value = match rng.below(2) {
                    // The log gets the bytes alone in which such values differ.
                    0 => vec![7; 40],
                    _ => vec![number as u8; 8 + rng.below(longest) as usize],
                };
                value[..8].copy_from_slice(&number.to_le_bytes());
                Step::Write(key(), Some(value))
            }
        });
    }
    // A key is touched once, so that steps may come in any order.
    let mut touched = BTreeSet::new();
    steps.retain(|step| {
        let (Step::Read(key) | Step::Write(key, _)) = step;
        touched.insert(key.clone())
    });
    steps
}

/// Runs transactions until the machine stops. Returns the states at the crashes.
fn live(
    disk: &SimDisk,
    store: &Store,
    (setting, rng): (Setting, &SeededRng),
    history: &mut History,
) -> Vec<(SimDisk, History)> {
    let is_strict = setting.durability == Durability::Strict;
    let mut sessions: Vec<Session> =
        (0..SESSIONS.iter().sum()).map(|_| store.engine.session().expect("a session")).collect();
    let mut images = Vec::new();
    let (of_open, of_others) = sessions.split_at_mut(SESSIONS[0]);
    let mut idle: Vec<&mut Session> = of_open.iter_mut().collect();
    let mut open: Vec<Open<'_>> = Vec::new();
    for _ in 0..40 + rng.below(40) {
        match rng.below(10) {
            0 if !idle.is_empty() && open.is_empty() => {
                let session = idle.swap_remove(rng.below(idle.len() as u64) as usize);
                let number = history.next;
                history.next += 1;
                let steps = choose(rng, number);
                let transaction = session.begin().expect("begins");
                open.push(Open { transaction, number, steps, done: 0 });
            }
            1..=4 if !open.is_empty() => {
                let one = open.pop().expect("one");
                open.extend(one.go_on(store, rng, history, is_strict));
            }
            5 => images.push((disk.crash_image(rng.next_u64()), history.clone())),
            6 if rng.below(6) == 0 => {
                store.engine.checkpoint().expect("a sound disk");
                history.acknowledged.extend(history.committed.iter().map(|one| one.number));
            }
            _ => {
                let session = &mut of_others[rng.below(2) as usize];
                let number = history.next;
                history.next += 1;
                let (steps, fails) = (choose(rng, number), rng.below(6) == 0);
                let ended = session.transact(|tx| {
                    steps.iter().try_for_each(|step| take(tx, store.tables, step))?;
                    if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
                });
                match ended {
                    Ok(()) => history.commit(number, &steps, is_strict),
                    // It would wait for the open one of this thread.
                    Err(Error::Transaction(TxError::WaitsForItself)) => open.clear(),
                    Err(error) => assert!(fails, "{error}"),
                }
            }
        }
    }
    images.push((disk.crash_image(rng.next_u64()), history.clone()));
    drop(open);
    images
}

/// The machine stops again, amid the replay or the undo.
fn stopped_while_opening(
    image: &SimDisk,
    (setting, logs): (Setting, usize),
    rng: &SeededRng,
) -> SimDisk {
    let copy = image.crash_image(rng.next_u64());
    copy.fail_at(1 + rng.below(60), Fault::PowerLoss);
    drop(Engine::open(config(&copy, setting, logs)));
    copy.crash(rng.next_u64())
}

/// Runs one store from its making to its last crash. Returns the number of crash states.
fn run_seed(seed: u64, setting: Setting) -> u64 {
    let rng = SeededRng::new(seed);
    let (logs, mut judged) = (1 + rng.below(3) as usize, 0);
    let mut disk = SimDisk::new(rng.next_u64());
    let mut next = 1;
    for _ in 0..LIVES {
        let store = open(&disk, setting, logs);
        let mut history = History { begin: store.records(), next, ..History::default() };
        let images = live(&disk, &store, (setting, &rng), &mut history);
        next = history.next;
        drop(store);
        disk = images.last().expect("one at least").0.crash_image(rng.next_u64());
        for (image, history) in images {
            let context = format!("{setting:?}, seed {seed}, crash state {judged}");
            let image = match rng.below(3) {
                0 => stopped_while_opening(&image, (setting, logs), &rng),
                _ => image,
            };
            let found = open(&image, setting, logs).records();
            history.judge(&found, &context);
            judged += 1;
        }
    }
    judged
}

/// The share `K/N` that an environment variable names.
fn share(name: &str) -> Option<(usize, usize)> {
    let text = std::env::var(name).ok()?;
    let (k, n) = text.split_once('/')?;
    Some((k.parse().ok()?, n.parse().ok()?))
}

/// `STILLPOINT_CRASH_STATES` sets the crash states of each setting. Otherwise the share that
/// `STILLPOINT_CRASH_SHARE=K/N` chooses has 1,000, and the others have 60.
pub(crate) fn what_a_crash_leaves_is_closed_and_has_all_that_was_acknowledged() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (wanted, only) = (number("STILLPOINT_CRASH_STATES"), number("STILLPOINT_CRASH_SEED"));
    let share = share("STILLPOINT_CRASH_SHARE");
    let settings = settings();
    for (at, &setting) in settings.iter().enumerate() {
        let is_chosen = share.is_some_and(|(k, _)| at == k % settings.len());
        let wanted = wanted.unwrap_or(if is_chosen { MANY } else { FEW });
        let (mut states, mut seed) = (0, only.unwrap_or(0));
        while states < wanted {
            let ran = std::panic::catch_unwind(|| run_seed(seed, setting));
            states += ran.unwrap_or_else(|_| {
                panic!(
                    "{setting:?} fails; again: STILLPOINT_CRASH_SEED={seed} cargo test -p stillpoint \
                     --test paged crash_leaves"
                )
            });
            seed += 1;
            if only.is_some() {
                break;
            }
        }
    }
}
