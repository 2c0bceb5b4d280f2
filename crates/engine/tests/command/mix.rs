//! A procedure with a sequential model, and stores that have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint::{
    Config, Durability, Engine, EngineBuilder, KeySet, Mode, Session, Slot, StoredProcedure,
    TableId, Tx, TxError,
};
use stillpoint_io::{ManualClock, SeededRng, SimDisk};

/// The tables of the tests.
pub(crate) const TABLES: [&str; 2] = ["one", "other"];
/// A table, by its number in `TABLES`, and a key.
pub(crate) type Key = (u8, Vec<u8>);
/// All records.
pub(crate) type State = BTreeMap<Key, Vec<u8>>;

/// The flag of a call that reads the time.
pub(crate) const TIME: u8 = 1;
/// The flag of a call that draws a random number.
pub(crate) const RANDOM: u8 = 2;

/// Reads some keys and writes others. What it writes follows from all that it reads.
pub(crate) struct Mix {
    pub(crate) tables: [TableId; 2],
}

/// What a call of `mix` does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) seed: u64,
    pub(crate) flags: u8,
    pub(crate) reads: Vec<Key>,
    pub(crate) writes: Vec<Key>,
}

/// A change of a value.
#[derive(Debug)]
enum Step {
    Put(Vec<u8>),
    Delete,
    Patch(usize, Vec<u8>),
    Splice(usize, usize, Vec<u8>),
}

impl Asked {
    /// The arguments: seed, flags, numbers and keys as bytes.
    pub(crate) fn input(&self) -> (u64, u8, Vec<u8>, Vec<u8>) {
        let pack = |keys: &[Key]| {
            let packed =
                keys.iter().flat_map(|(table, key)| [&[*table, key.len() as u8][..], key].concat());
            packed.collect::<Vec<u8>>()
        };
        (self.seed, self.flags, pack(&self.reads), pack(&self.writes))
    }

    fn of((seed, flags, reads, writes): &(u64, u8, Vec<u8>, Vec<u8>)) -> Self {
        let unpack = |mut bytes: &[u8]| {
            let mut keys = Vec::new();
            while let [table, len, rest @ ..] = bytes {
                let (key, behind) = rest.split_at(usize::from(*len));
                keys.push((*table, key.to_vec()));
                bytes = behind;
            }
            keys
        };
        Self { seed: *seed, flags: *flags, reads: unpack(reads), writes: unpack(writes) }
    }

    /// Runs the call on the model. `inputs` are time and random number.
    pub(crate) fn run_on(&self, state: &mut State, (time, random): (u64, u64)) -> u64 {
        let mut mixed = self.seed;
        for key in &self.reads {
            mixed = mix(mixed, state.get(key).map(|value| &value[..]));
        }
        mixed = mix(mixed, Some(&[time.to_le_bytes(), random.to_le_bytes()].concat()));
        for key in &self.writes {
            let old = state.get(key).cloned();
            mixed = mix(mixed, old.as_deref());
            match step(mixed, old.as_deref()) {
                Step::Put(value) => drop(state.insert(key.clone(), value)),
                Step::Delete => drop(state.remove(key)),
                Step::Patch(offset, bytes) => {
                    let value = state.get_mut(key).expect("only a value is patched");
                    value.resize(value.len().max(offset + bytes.len()), 0);
                    value[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Splice(offset, removed, bytes) => {
                    let value = state.get_mut(key).expect("only a value is spliced");
                    value.splice(offset..offset + removed, bytes);
                }
            }
        }
        mixed
    }
}

/// FNV-1a over the bytes, behind a finaliser.
fn mix(mixed: u64, value: Option<&[u8]>) -> u64 {
    let mut hash = mixed ^ value.map_or(1, |value| 2 + value.len() as u64);
    for &byte in value.unwrap_or_default() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 29;
    hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (hash >> 32)
}

fn step(mixed: u64, old: Option<&[u8]>) -> Step {
    let bytes = |len: u64| (0..len).map(|at| (mixed >> (at % 8 * 8)) as u8 ^ at as u8).collect();
    let below = |bound: usize| (mixed >> 20) as usize % bound;
    match (old, mixed % 8) {
        (Some(_), 0) => Step::Delete,
        (Some(old), 1 | 2) => Step::Patch(below(old.len() + 1), bytes(1 + (mixed >> 40) % 60)),
        (Some(old), 3) => {
            let offset = below(old.len() + 1);
            Step::Splice(offset, below(old.len() - offset + 1), bytes((mixed >> 40) % 30))
        }
        (_, 4) => Step::Put(bytes(3_000 + (mixed >> 40) % 8_000)),
        _ => Step::Put(bytes(8 + (mixed >> 40) % 100)),
    }
}

impl StoredProcedure for Mix {
    type Input = (u64, u8, Vec<u8>, Vec<u8>);
    /// Follows from all that the call has read; time and random number.
    type Output = (u64, u64, u64);

    fn declare(&self, input: &Self::Input, keys: &mut KeySet) {
        let asked = Asked::of(input);
        let mut push = |(table, key): &Key, mode| {
            keys.push(self.tables[usize::from(*table)], key, mode, 0);
        };
        asked.reads.iter().for_each(|key| push(key, Mode::Read));
        asked.writes.iter().for_each(|key| push(key, Mode::Write));
    }

    fn run(&self, input: &Self::Input, tx: &mut Tx<'_>) -> Result<(u64, u64, u64), TxError> {
        let asked = Asked::of(input);
        let mut mixed = asked.seed;
        let reads = asked.reads.len() as u32;
        for slot in 0..reads {
            let value = tx.value(Slot(slot)).map(|value| value.to_vec());
            mixed = mix(mixed, value.as_deref());
        }
        let time = if asked.flags & TIME != 0 { tx.time_ms()? } else { 0 };
        let random = if asked.flags & RANDOM != 0 { tx.random()? } else { 0 };
        mixed = mix(mixed, Some(&[time.to_le_bytes(), random.to_le_bytes()].concat()));
        for slot in reads..reads + asked.writes.len() as u32 {
            let slot = Slot(slot);
            let old = tx.value(slot).map(|value| value.to_vec());
            mixed = mix(mixed, old.as_deref());
            match step(mixed, old.as_deref()) {
                Step::Put(value) => tx.put_slot(slot, &value)?,
                Step::Delete => drop(tx.delete_slot(slot)?),
                Step::Patch(offset, bytes) => tx.patch_slot(slot, offset, &bytes)?,
                Step::Splice(offset, removed, bytes) => {
                    tx.splice_slot(slot, offset, removed, &bytes)?;
                }
            }
        }
        Ok((mixed, time, random))
    }
}

/// Makes the tables of the tests.
pub(crate) fn tables(of: &mut stillpoint::Tables<'_>) -> Result<[TableId; 2], stillpoint::Error> {
    Ok([of.table(TABLES[0])?, of.table(TABLES[1])?])
}

/// Settings of a store on a simulated disk, strict.
pub(crate) fn config(disk: &SimDisk, journal: &str, logs: usize) -> Config {
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new("unused");
    config.journal = journal.to_owned();
    config.durability = Durability::Strict;
    config.logs = logs;
    config.log_segment_bytes = 128 << 10;
    config.max_memory_bytes = 256 << 20;
    config.checkpoint_every = None;
    config.recovery_threads = 2;
    config.sessions = 16;
    config.environment.disk = Some(Arc::new(disk.clone()));
    config.environment.clock = Arc::new(ManualClock::self_advancing(1_700_000_000_000));
    config.environment.rng = Arc::new(SeededRng::new(1));
    config.environment.background = false;
    config
}

/// A builder that has `mix`.
pub(crate) fn with_mix<'a>(config: Config) -> EngineBuilder<'a> {
    Engine::builder(config).procedure("mix", |of| Ok(Mix { tables: tables(of)? }))
}

/// All records of the tests' tables.
pub(crate) fn state(engine: &Engine) -> State {
    let mut session = engine.session().expect("a session");
    let mut state = State::new();
    for (number, name) in (0..).zip(TABLES) {
        let table = engine.table(name).expect("a table");
        let mut cursor = 0;
        loop {
            let next = session.scan(table, cursor, 100, &mut |key, value| {
                state.insert((number, key.to_vec()), value.to_vec());
            });
            cursor = next.expect("a sound store");
            if cursor == 0 {
                break;
            }
        }
    }
    state
}

/// Calls `mix`, and runs the same on the model.
pub(crate) fn call(session: &mut Session, asked: &Asked, model: &mut State) {
    let called = session.call::<_, (u64, u64, u64)>("mix", &asked.input());
    let (mixed, time, random) = called.expect("commits");
    assert_eq!(asked.run_on(model, (time, random)), mixed, "{asked:?} has read something else");
}

/// A key of the tests.
pub(crate) fn key(table: u8, name: impl ToString) -> Key {
    (table, name.to_string().into_bytes())
}
