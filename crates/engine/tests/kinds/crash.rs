//! Tests with crashes in the middle of transactions on two kinds of tables.
//!
//! All transactions form a chain. Each transaction reads the last number from its table, and writes
//! the next number to one of the tables, with other keys in both. So the recovered transactions
//! must be a prefix, and the greater number in the tables says which. Some transactions fail and
//! undo. A crash may come while a transaction is open and its operations are in the log already.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use stillpoint::{KeySet, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use crate::in_place::Value;
use crate::world::World;

const CHAIN: &[u8] = b"chain";
const KEYS: u64 = 12;
const LIVES: u64 = 3;

type State = [BTreeMap<Vec<u8>, (u8, Vec<u8>)>; 2];

/// A transaction: the tables of the last and of the next number, and the other writes.
#[derive(Debug)]
struct Step {
    next: u64,
    from: usize,
    to: usize,
    writes: Vec<(usize, Vec<u8>, Value)>,
    fails: bool,
    /// Called in the middle of the transaction.
    pauses: bool,
}

struct Life {
    world: Arc<World>,
    /// The table in memory, and that of the other kind.
    tables: [TableId; 2],
    sessions: Vec<Session>,
    rng: SeededRng,
    /// The states after each transaction of the chain, from `first` on.
    states: Vec<State>,
    first: u64,
    /// The last acknowledged transaction of the chain.
    acknowledged: u64,
    /// The table that has the last number of the chain.
    last: usize,
    disk: SimDisk,
    images: Vec<(SimDisk, u64)>,
}

fn apply(state: &mut State, writes: &[(usize, Vec<u8>, Value)]) {
    for (table, key, value) in writes {
        match value {
            Some(value) => drop(state[*table].insert(key.clone(), value.clone())),
            None => drop(state[*table].remove(key)),
        }
    }
}

fn number(value: Option<(u8, Vec<u8>)>) -> u64 {
    value.map_or(0, |(_, bytes)| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// All records of both tables.
fn state_of(world: &World, tables: [TableId; 2], session: &mut Session) -> State {
    let mut state = State::default();
    for (table, found) in tables.into_iter().zip(&mut state) {
        let mut cursor = 0;
        loop {
            let next = session.scan(table, cursor, 5, &mut |key, value| {
                found.insert(key.to_vec(), (value.tag(), value.to_vec()));
            });
            cursor = next.expect("a sound store");
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(session.len(table).expect("a sound store"), found.len() as u64, "{table:?}");
    }
    if tables == world.tables {
        assert_eq!(state[1], world.kind.state(world.tables[1]));
    }
    state
}

impl Life {
    /// `kind` is the number of the other kind.
    fn new(
        disk: SimDisk,
        seed: u64,
        absences: u64,
        (logs, kind): (usize, usize),
    ) -> Result<Self, String> {
        let opened = match kind {
            1 => World::open(&disk, seed, logs, absences),
            _ => World::open_all(&disk, seed, logs, absences),
        };
        let world = Arc::new(opened.map_err(|e| format!("opens: {e}"))?);
        let tables = [world.table_of(0), world.table_of(kind)];
        let session = || world.engine.session().expect("a session");
        let mut sessions: Vec<Session> = (0..3).map(|_| session()).collect();
        let state = state_of(&world, tables, &mut sessions[0]);
        let numbers = [0, 1].map(|table: usize| number(state[table].get(CHAIN).cloned()));
        let first = numbers[0].max(numbers[1]);
        Ok(Self {
            world,
            tables,
            sessions,
            rng: SeededRng::new(seed ^ 0x5eed),
            states: vec![state],
            first,
            acknowledged: first,
            last: usize::from(numbers[1] > numbers[0]),
            disk,
            images: Vec::new(),
        })
    }

    fn pick(&self, bound: u64) -> usize {
        self.rng.below(bound) as usize
    }

    fn choose(&self) -> Step {
        let (next, to) = (self.first + self.states.len() as u64, self.pick(2));
        let mut writes: BTreeMap<(usize, Vec<u8>), Value> = BTreeMap::new();
        for _ in 0..self.pick(5) {
            let key = (self.pick(2), vec![b'k', self.rng.below(KEYS) as u8]);
            // Pages have 4 KiB, so longer values split them, and the longest ones have pages of their own.
            let longest = match self.tables == self.world.tables {
                true => 60,
                false if self.tables[1] == self.world.table_of(2) && self.pick(6) == 0 => 9000,
                false => 900,
            };
            let value = vec![next as u8; self.pick(longest)];
            let value = (self.pick(4) > 0).then_some((self.pick(9) as u8, value));
            writes.insert(key, value);
        }
        let writes = writes.into_iter().map(|((table, key), value)| (table, key, value));
        let (from, writes) = (self.last, writes.collect());
        Step { next, from, to, writes, fails: self.pick(5) == 0, pauses: self.pick(6) == 0 }
    }

    /// The state on the disk if the machine stops now.
    fn stop_here(&mut self) {
        let image = self.disk.crash_image(self.rng.next_u64());
        self.images.push((image, self.acknowledged));
    }

    fn run(&mut self) {
        for _ in 0..10 + self.pick(20) {
            let step = self.choose();
            let at = self.pick(2);
            let mut session = self.sessions.remove(at);
            let result = if step.pauses || self.pick(2) == 0 {
                self.transact(&mut session, &step)
            } else {
                self.execute(&mut session, &step)
            };
            assert_eq!(result.is_err(), step.fails, "{result:?}");
            if !step.fails {
                let mut state = self.states.last().expect("one state at least").clone();
                apply(&mut state, &step.writes);
                let chain = (0, step.next.to_le_bytes().to_vec());
                state[step.to].insert(CHAIN.to_vec(), chain);
                self.states.push(state);
                self.last = step.to;
            }
            if self.pick(3) == 0 {
                session.flush().expect("a sound disk");
                self.acknowledged = self.first + self.states.len() as u64 - 1;
            }
            self.sessions.insert(at, session);
            if self.pick(6) == 0 {
                take_checkpoint(&self.world);
            }
            if self.pick(4) == 0 {
                self.stop_here();
            }
        }
        self.stop_here();
        let kind = &self.world.kind;
        assert!(kind.is_unlocked(), "a lock is left");
        assert_eq!(kind.behind.load(Relaxed), 0, "the clock went back");
    }

    /// Runs a transaction that finds its keys on the way. The transaction is not flushed at the
    /// end, unless the session is strict.
    fn transact(&mut self, session: &mut Session, step: &Step) -> Result<(), String> {
        let tables = self.tables;
        // A strict transaction is acknowledged when it returns, with all that it has read.
        let result = session.transact(|tx| {
            let last = tx.get(tables[step.from], CHAIN)?.and_then(|value| value.u64_at(0));
            assert_eq!(last.unwrap_or(0) + 1, step.next, "the chain is broken");
            tx.put(tables[step.to], CHAIN, &step.next.to_le_bytes())?;
            for (at, (table, key, value)) in step.writes.iter().enumerate() {
                if step.pauses && at == 1 {
                    self.pause();
                }
                write(tx, tables[*table], key, value)?;
            }
            if step.pauses {
                self.pause();
            }
            if step.fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
        });
        if result.is_ok() {
            self.acknowledged = step.next;
        }
        result.map_err(|error| error.to_string())
    }

    /// Another session makes the shared log durable, including open operations. Then the machine
    /// may stop.
    fn pause(&mut self) {
        let memory = self.world.tables[0];
        let noise = self.world.engine.table("noise").expect("made at the begin");
        assert_ne!(noise, memory);
        let other = self.sessions.last_mut().expect("three sessions");
        other.transact(|tx| tx.put(noise, b"noise", b"noise")).expect("a sound disk");
        if self.pick(3) == 0 {
            take_checkpoint(&self.world);
        }
        self.stop_here();
    }

    /// Runs a transaction with declared keys, without an acknowledgement.
    fn execute(&mut self, session: &mut Session, step: &Step) -> Result<(), String> {
        let mut declared = Declared { tables: self.tables, step, ended: None };
        session.execute(std::slice::from_mut(&mut declared));
        let ended = declared.ended.expect("it ends");
        ended.map(drop).map_err(|error| error.to_string())
    }
}

/// Takes a checkpoint, of the in-place tables alone if the scheme takes none. Does so on a thread of
/// its own, since the caller may be inside a transaction. Waits for the end.
fn take_checkpoint(world: &Arc<World>) {
    let world = world.clone();
    let take = move || world.engine.checkpoint().expect("a sound disk");
    stillpoint_io::spawn("checkpoint", take).expect("a thread").join().expect("no panic");
}

fn write(tx: &mut Tx<'_>, table: TableId, key: &[u8], value: &Value) -> Result<(), TxError> {
    match value {
        Some((tag, bytes)) => tx.put_tagged(table, key, *tag, bytes),
        None => tx.delete(table, key).map(drop),
    }
}

struct Declared<'a> {
    tables: [TableId; 2],
    step: &'a Step,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Declared<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.tables[self.step.from], CHAIN, Mode::Read, 8);
        keys.push(self.tables[self.step.to], CHAIN, Mode::Write, 8);
        for (table, key, _) in &self.step.writes {
            keys.push(self.tables[*table], key, Mode::Write, 0);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let last = tx.value(Slot(0)).and_then(|value| value.u64_at(0)).unwrap_or(0);
        assert_eq!(last + 1, self.step.next, "the chain is broken");
        tx.put_slot(Slot(1), &self.step.next.to_le_bytes())?;
        for (slot, (_, _, value)) in (2..).map(Slot).zip(&self.step.writes) {
            match value {
                Some((tag, bytes)) => tx.put_slot_tagged(slot, *tag, bytes)?,
                None => drop(tx.delete_slot(slot)?),
            }
        }
        if self.step.fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

/// Counts of events in the lives of a store.
#[derive(Debug, Default)]
struct Shown {
    /// Crash states that were judged.
    judged: u64,
    /// Operations that openings have undone.
    undone: u64,
    /// Operations that openings have found in the files of a checkpoint.
    left_out: u64,
    /// Segments of logs that were freed.
    freed: u64,
}

/// Runs one store from its making to its last crash.
fn run_seed(seed: u64, kind: usize, shown: &mut Shown) {
    let rng = SeededRng::new(seed);
    let logs = (1 + rng.below(2) as usize, kind);
    let mut disk = SimDisk::new(rng.next_u64());
    for _ in 0..LIVES {
        let mut life = Life::new(disk, rng.next_u64(), rng.below(30), logs).expect("opens");
        life.world.engine.table("noise").expect("a table");
        life.run();
        let live = state_of(&life.world, life.tables, &mut life.sessions[0]);
        assert_eq!(&live, life.states.last().expect("a state"), "seed {seed}: the live state");
        let (states, first) = (std::mem::take(&mut life.states), life.first);
        let images = std::mem::take(&mut life.images);
        shown.freed += life.world.engine.stats().journal.segments_reused;
        disk = images.last().expect("one at least").0.crash_image(rng.next_u64());
        drop(life);
        for (image, acknowledged) in images {
            let context = format!("seed {seed}, crash state {}", shown.judged);
            let found = Life::new(image, rng.next_u64(), 20, logs);
            let found = found.unwrap_or_else(|why| panic!("{context}: {why}"));
            assert!(found.first >= acknowledged, "{context}: {acknowledged} is lost");
            let expected = found.first.checked_sub(first).and_then(|at| states.get(at as usize));
            assert_eq!(found.states.first(), expected, "{context}: not a state of the chain");
            shown.undone += found.world.kind.undone.load(Relaxed);
            shown.left_out += found.world.kind.left_out.load(Relaxed);
            shown.judged += 1;
        }
    }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    match number("STILLPOINT_KINDS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STILLPOINT_KINDS_SEEDS").unwrap_or(usual),
    }
}

/// Runs random lives, each ended by a crash.
pub(crate) fn transactions_on_two_kinds() {
    let mut shown = Shown::default();
    seeds(30).for_each(|seed| run_seed(seed, 1, &mut shown));
    let Shown { judged, undone, left_out, freed } = shown;
    assert!(judged > 0 && undone > 0 && left_out > 0 && freed > 0, "{shown:?}");
}

/// The same with a paged table.
pub(crate) fn transactions_on_memory_and_pages() {
    let mut shown = Shown::default();
    seeds(30).for_each(|seed| run_seed(seed, 2, &mut shown));
    assert!(shown.judged > 0 && shown.freed > 0, "{shown:?}");
}

/// The same with a SIREN table.
pub(crate) fn transactions_on_memory_and_siren() {
    let mut shown = Shown::default();
    seeds(12).for_each(|seed| run_seed(seed, 3, &mut shown));
    assert!(shown.judged > 0 && shown.freed > 0, "{shown:?}");
}

/// The machine stops while a transaction with several operations on each of two keys is open. The
/// opening that undoes these operations is cut off after each of its calls of the disk.
pub(crate) fn a_crash_during_the_undo() {
    let disk = SimDisk::new(1);
    let world = World::open(&disk, 1, 1, 0).expect("opens");
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    let first = session.transact(|tx| {
        tx.put(memory, b"key", b"before")?;
        tx.put(in_place, b"key", b"before")
    });
    first.expect("commits");
    let mut image = None;
    let stopped = session.transact(|tx| {
        for turn in 0..4 {
            tx.put(in_place, b"key", &[turn; 9])?;
            tx.put(in_place, b"another", &[turn; 20])?;
            tx.put(memory, b"key", b"after")?;
        }
        other.transact(|tx| tx.put(memory, b"noise", b"noise")).expect("a sound disk");
        image = Some(disk.crash_image(7));
        Err::<(), _>(TxError::abandon("as the test wants it"))
    });
    assert!(stopped.is_err());
    let image = image.expect("the body has run");
    let expected = BTreeMap::from([(b"key".to_vec(), (0, b"before".to_vec()))]);
    let before = image.call_counts().changes();
    let judge = |disk: &SimDisk, context: &str| {
        let world = World::open(disk, 3, 1, 0).unwrap_or_else(|why| panic!("{context}: {why}"));
        assert_eq!(world.kind.state(in_place), expected, "{context}");
        let mut out = Vec::new();
        let mut session = world.engine.session().expect("a session");
        session.read(memory, b"key", &mut out).expect("reads");
        assert_eq!(out, b"before", "{context}");
        let more = session.transact(|tx| tx.put(in_place, b"key", b"later"));
        more.unwrap_or_else(|why| panic!("{context}: {why}"));
        drop(session);
        drop(world);
        let again = World::open(&disk.kill(), 4, 1, 0).expect("opens");
        let later = BTreeMap::from([(b"key".to_vec(), (0, b"later".to_vec()))]);
        assert_eq!(again.kind.state(in_place), later, "{context}, once more");
    };
    let mut seed = 0;
    for nth in 1.. {
        let copy = image.crash_image(seed);
        copy.fail_at(nth, stillpoint_io::Fault::PowerLoss);
        let opened = World::open(&copy, 2, 1, 0);
        let ended = opened.is_ok();
        drop(opened);
        for _ in 0..2 {
            seed += 1;
            judge(&copy.crash(seed), &format!("cut off at call {nth}, seed {seed}"));
        }
        if ended && nth > before + 200 || nth > 400 {
            return;
        }
    }
}
