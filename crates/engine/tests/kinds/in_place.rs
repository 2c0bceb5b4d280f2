//! A kind of table for tests, unlike the memory store. It writes in place, logs each operation, and
//! undoes on abort and after a crash. It keeps its locks in a table of its own, and answers "not
//! here yet" at random. Its records are in memory only, so a restart begins with the logs alone.
//!
//! `redo` refuses an operation whose before-image differs from the table's value. So a replay in a
//! wrong order is noticed at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use stillpoint::{
    Arrival, Discipline, KindKey, KindPart, LogRefused, Mode, Operation, OperationLog, Presence,
    Stamp, TableId, TableKind, TxError,
};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_sync::Backoff;
use stillpoint_sync::lock_word::{self, Contended, Priority};

pub(crate) const NAME: &str = "in-place";

/// Number of locks, small so that keys share locks.
const LOCKS: usize = 64;

type Key = (TableId, Vec<u8>);
pub(crate) type Value = Option<(u8, Vec<u8>)>;

#[derive(Debug)]
struct Lock {
    word: AtomicU64,
    /// The end of the last transaction that changed a key under this lock.
    stamp: AtomicU64,
}

/// The kind.
pub(crate) struct InPlace {
    records: Mutex<BTreeMap<Key, (u8, Vec<u8>)>>,
    generations: Mutex<HashMap<u16, u32>>,
    locks: Vec<Lock>,
    rng: SeededRng,
    /// Share of lookups answered with "not here", in percent.
    absences: u64,
    /// Called in a wait for an arrival.
    pub(crate) on_wait: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    pub(crate) waits: AtomicU64,
    /// Commits whose gsn was not above those of all keys.
    pub(crate) behind: AtomicU64,
    pub(crate) undone: AtomicU64,
}

impl std::fmt::Debug for InPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InPlace").finish_non_exhaustive()
    }
}

impl InPlace {
    pub(crate) fn new(seed: u64, absences: u64) -> Arc<Self> {
        let lock = |_| Lock {
            word: AtomicU64::new(lock_word::free(0, 0)),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
        };
        Arc::new(Self {
            records: Mutex::default(),
            generations: Mutex::default(),
            locks: (0..LOCKS).map(lock).collect(),
            rng: SeededRng::new(seed),
            absences,
            on_wait: Mutex::default(),
            waits: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            undone: AtomicU64::new(0),
        })
    }

    /// All records of a table.
    pub(crate) fn state(&self, table: TableId) -> BTreeMap<Vec<u8>, (u8, Vec<u8>)> {
        let records = self.records.lock();
        let mine = records.iter().filter(|((of, _), _)| *of == table);
        mine.map(|((_, key), value)| (key.clone(), value.clone())).collect()
    }

    /// Whether no lock is held.
    pub(crate) fn is_unlocked(&self) -> bool {
        let free = |lock: &Lock| lock_word::try_exclusive(&lock.word, Priority::DECLARED).is_ok();
        let all = self.locks.iter().all(free);
        if all {
            self.locks.iter().for_each(|lock| lock_word::release_exclusive(&lock.word));
        }
        all
    }

    fn lock_of(table: TableId, key: &[u8]) -> usize {
        let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        key.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(table.0), fold) as usize % LOCKS
    }

    fn check_table(&self, table: TableId) -> Result<u32, TxError> {
        let generation = self.generations.lock().get(&table.0).copied();
        generation.ok_or(TxError::NoSuchTable(table))
    }

    fn absence(self: &Arc<Self>) -> Option<Arc<dyn Arrival>> {
        (self.rng.below(100) < self.absences)
            .then(|| Arc::new(OnTheWay { kind: self.clone() }) as Arc<dyn Arrival>)
    }

    fn set(records: &mut BTreeMap<Key, (u8, Vec<u8>)>, key: Key, value: Value) {
        match value {
            Some(value) => drop(records.insert(key, value)),
            None => drop(records.remove(&key)),
        }
    }
}

#[derive(Debug)]
struct OnTheWay {
    kind: Arc<InPlace>,
}

impl Arrival for OnTheWay {
    fn has_arrived(&self) -> bool {
        true
    }
    fn wait(&self) -> Result<(), TxError> {
        self.kind.waits.fetch_add(1, Relaxed);
        let on_wait = self.kind.on_wait.lock().clone();
        if let Some(on_wait) = on_wait {
            on_wait();
        }
        Ok(())
    }
}

/// An operation: the key, and its value before and after.
struct Change {
    key: Vec<u8>,
    before: Value,
    after: Value,
}

impl Change {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut push = |bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        push(&self.key);
        for value in [&self.before, &self.after] {
            match value {
                None => push(&[]),
                Some((tag, bytes)) => push(&[&[1, *tag], &bytes[..]].concat()),
            }
        }
        out
    }

    fn decode(mut body: &[u8]) -> Option<Self> {
        let mut take = || {
            let (len, rest) = body.split_first_chunk()?;
            let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            body = rest;
            Some(bytes)
        };
        let key = take()?.to_vec();
        let mut value = || match take()? {
            [] => Some(None),
            [1, tag, bytes @ ..] => Some(Some((*tag, bytes.to_vec()))),
            _ => None,
        };
        let (before, after) = (value()?, value()?);
        body.is_empty().then_some(Self { key, before, after })
    }
}

impl TableKind for InPlace {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add_table(&self, table: TableId, generation: u32) -> Result<(), TxError> {
        let before = self.generations.lock().insert(table.0, generation);
        assert_eq!(before, None, "a table is added once");
        Ok(())
    }

    fn new_part(self: Arc<Self>) -> Box<dyn KindPart> {
        Box::new(Part {
            kind: self,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            held: Vec::new(),
            slots: Vec::new(),
        })
    }

    fn redo(&self, table: TableId, _: Stamp, body: &[u8]) -> Result<(), TxError> {
        let change = Change::decode(body).ok_or_else(|| TxError::abandon("no operation"))?;
        let mut records = self.records.lock();
        let key = (table, change.key);
        if records.get(&key).cloned() != change.before {
            return Err(TxError::abandon(format!("redo of {key:?} does not fit what is there")));
        }
        Self::set(&mut records, key, change.after);
        Ok(())
    }

    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError> {
        let Change { key, before, after } =
            Change::decode(body).ok_or_else(|| TxError::abandon("no operation"))?;
        let back = Change { key: key.clone(), before: after.clone(), after: before.clone() };
        let body = back.encode();
        let generation = self.check_table(table)?;
        let operation = Operation { table, generation, touched: &[], body: &body };
        loop {
            let mut records = self.records.lock();
            assert_eq!(records.get(&(table, key.clone())).cloned(), after, "undo out of order");
            match log.append(&operation) {
                Ok(stamp) => {
                    let lock = &self.locks[Self::lock_of(table, &key)];
                    lock.stamp.store(stamp.to_bits(), Relaxed);
                    Self::set(&mut records, (table, key), before);
                    self.undone.fetch_add(1, Relaxed);
                    return Ok(());
                }
                Err(LogRefused::NoRoom) => drop(records),
                Err(refused) => return Err(refused.into()),
            }
            log.wait_for_room()?;
        }
    }
}

#[derive(Debug)]
struct Held {
    lock: usize,
    is_exclusive: bool,
    /// The lock's stamp at the time when it was taken.
    stamp: Stamp,
    has_changed: bool,
}

#[derive(Debug)]
struct Slot {
    table: TableId,
    key: Vec<u8>,
    mode: Mode,
    held: usize,
    existed: bool,
}

struct Part {
    kind: Arc<InPlace>,
    priority: Priority,
    discipline: Discipline,
    held: Vec<Held>,
    slots: Vec<Slot>,
}

impl Part {
    /// Takes a lock, or makes it exclusive.
    fn take(
        &mut self,
        lock: usize,
        mode: Mode,
        discipline: Discipline,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<usize, TxError> {
        let known = self.held.iter().position(|held| held.lock == lock);
        if let Some(known) = known
            && (mode == Mode::Read || self.held[known].is_exclusive)
        {
            return Ok(known);
        }
        let word = &self.kind.locks[lock].word;
        let mut backoff = Backoff::new();
        loop {
            let taken = match (known, mode) {
                (Some(_), _) => lock_word::try_upgrade(word, self.priority),
                (None, Mode::Read) => lock_word::try_shared(word, self.priority),
                (None, Mode::Write) => lock_word::try_exclusive(word, self.priority),
            };
            let Err(Contended(by)) = taken else { break };
            let (own, is_spinning) = (self.priority, backoff.is_spinning());
            if !discipline.may_wait_for(own, by, is_spinning) || !may_wait() {
                return Err(TxError::Conflict);
            }
            if mode == Mode::Write {
                lock_word::await_sharers(word, own);
            }
            backoff.wait();
        }
        if let Some(known) = known {
            self.held[known].is_exclusive = true;
            return Ok(known);
        }
        let stamp = Stamp::from_bits(self.kind.locks[lock].stamp.load(Relaxed));
        let is_exclusive = mode == Mode::Write;
        self.held.push(Held { lock, is_exclusive, stamp, has_changed: false });
        Ok(self.held.len() - 1)
    }

    fn record(&self, slot: &Slot) -> Value {
        self.kind.records.lock().get(&(slot.table, slot.key.clone())).cloned()
    }
}

impl KindPart for Part {
    fn begin(&mut self, priority: Priority, discipline: Discipline) {
        assert!(self.held.is_empty() && self.slots.is_empty(), "a run was not ended");
        (self.priority, self.discipline) = (priority, discipline);
    }

    fn ask(&mut self, _: TableId, _: &[u8]) -> Presence<()> {
        self.kind.absence().map_or(Presence::Here(()), Presence::NotHere)
    }

    fn lock(
        &mut self,
        asked: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError> {
        let KindKey { table, key, mode } = asked;
        self.kind.check_table(table)?;
        let known = self.slots.iter().position(|slot| slot.table == table && slot.key == key);
        if known.is_none()
            && let Some(arrival) = self.kind.absence()
        {
            return Ok(Presence::NotHere(arrival));
        }
        let held = self.take(InPlace::lock_of(table, key), mode, self.discipline, may_wait)?;
        if let Some(known) = known {
            self.slots[known].mode = self.slots[known].mode.max(mode);
            return Ok(Presence::Here(known as u32));
        }
        let mut slot = Slot { table, key: key.to_vec(), mode, held, existed: false };
        slot.existed = self.record(&slot).is_some();
        self.slots.push(slot);
        Ok(Presence::Here(self.slots.len() as u32 - 1))
    }

    fn lock_all(
        &mut self,
        keys: &[KindKey<'_>],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError> {
        let mut order: BTreeMap<usize, Mode> = BTreeMap::new();
        for key in keys {
            self.kind.check_table(key.table)?;
            let mode = order.entry(InPlace::lock_of(key.table, key.key)).or_insert(key.mode);
            *mode = (*mode).max(key.mode);
        }
        for (lock, mode) in order {
            if let Some(arrival) = self.kind.absence() {
                return Ok(Presence::NotHere(arrival));
            }
            self.take(lock, mode, Discipline::Declared, may_wait)?;
        }
        Ok(Presence::Here(()))
    }

    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8> {
        let (tag, bytes) = self.record(&self.slots[slot as usize])?;
        out.extend_from_slice(&bytes);
        Some(tag)
    }

    fn stamp(&self, slot: u32) -> Stamp {
        self.held[self.slots[slot as usize].held].stamp
    }

    fn existed(&self, slot: u32) -> bool {
        self.slots[slot as usize].existed
    }

    fn put(
        &mut self,
        slot: u32,
        value: Option<(u8, &[u8])>,
        log: &mut dyn OperationLog,
    ) -> Result<Presence<()>, TxError> {
        let at = &self.slots[slot as usize];
        if at.mode == Mode::Read {
            return Err(TxError::DeclaredForReading { slot });
        }
        if let Some(arrival) = self.kind.absence() {
            return Ok(Presence::NotHere(arrival));
        }
        let generation = self.kind.check_table(at.table)?;
        let touched = [self.held[at.held].stamp];
        loop {
            let mut records = self.kind.records.lock();
            let key = (at.table, at.key.clone());
            let before = records.get(&key).cloned();
            let after = value.map(|(tag, bytes)| (tag, bytes.to_vec()));
            let body = Change { key: at.key.clone(), before, after: after.clone() }.encode();
            let operation =
                Operation { table: at.table, generation, touched: &touched, body: &body };
            match log.append(&operation) {
                Ok(_) => {
                    InPlace::set(&mut records, key, after);
                    self.held[at.held].has_changed = true;
                    return Ok(Presence::Here(()));
                }
                Err(LogRefused::NoRoom) => drop(records),
                Err(refused) => return Err(refused.into()),
            }
            log.wait_for_room()?;
        }
    }

    fn touched(&self, out: &mut Vec<Stamp>) {
        out.extend(self.held.iter().map(|held| held.stamp));
    }

    fn prepare(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    fn install(&mut self, stamp: Stamp) {
        // A panic here ends the process, and a test asks for it.
        let behind = self.held.iter().filter(|held| held.stamp.gsn() >= stamp.gsn()).count();
        self.kind.behind.fetch_add(behind as u64, Relaxed);
    }

    fn release(&mut self, end: Option<Stamp>) {
        self.slots.clear();
        for held in self.held.drain(..) {
            let lock = &self.kind.locks[held.lock];
            if held.has_changed {
                let end = end.expect("a change has an end");
                lock.stamp.store(end.to_bits(), Relaxed);
            }
            match held.is_exclusive {
                true => lock_word::release_exclusive(&lock.word),
                false => lock_word::release_shared(&lock.word),
            }
        }
    }
}
