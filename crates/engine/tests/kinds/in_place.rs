//! A kind of table for tests, unlike the memory store. The kind writes in place, logs each
//! operation, and undoes on abort and after a crash. The kind keeps its locks in a table of its
//! own, and answers "not here yet" at random. At a checkpoint the kind writes the records of each
//! table to a file. Each record has the gsn of the operation that changed it last, also if the key
//! was deleted.
//!
//! `redo` leaves out operations that a file holds. `redo` refuses any other operation whose
//! before-image differs from the table's value. So a replay in a wrong order is noticed at once.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use stillpoint::{
    Arrival, Discipline, KeyList, KindKey, KindPart, KindTable, LockedTables, LogRefused, Mode,
    Operation, OperationLog, Presence, Sections, Stamp, TableId, TableKind, TxError,
};
use stillpoint_io::{Disk, DiskError, Rng, SeededRng, read_all, write_file_durably};
use stillpoint_sync::Backoff;
use stillpoint_sync::lock_word::{self, Contended, Priority};

pub(crate) const NAME: &str = "in-place";

/// Number of locks, small so that keys share locks.
const LOCKS: usize = 64;

/// Prefix of the names of the kind's files.
const PREFIX: &str = "in-place-";
/// Records that a checkpoint copies at a time.
const COPIED: usize = 3;

type Key = (TableId, Vec<u8>);
pub(crate) type Value = Option<(u8, Vec<u8>)>;

/// The value of a key, and the operation that changed it last. The record stays when the value is
/// deleted.
#[derive(Clone, Debug, Default)]
struct Record {
    gsn: u64,
    value: Value,
}

type Records = BTreeMap<Key, Record>;
type Hook = Mutex<Option<Arc<dyn Fn() + Send + Sync>>>;

#[derive(Debug)]
struct Lock {
    word: AtomicU64,
    /// The end of the last transaction that changed a key under this lock.
    stamp: AtomicU64,
}

/// The kind.
pub(crate) struct InPlace {
    records: Mutex<Records>,
    generations: Mutex<HashMap<u16, u32>>,
    /// The files that sections name, and those of the checkpoint under way.
    files: Mutex<[HashMap<u16, PathBuf>; 2]>,
    serial: AtomicU64,
    /// Values that open transactions have added, minus those that they have removed.
    uncommitted: AtomicI64,
    is_serving: AtomicBool,
    locks: Vec<Lock>,
    rng: SeededRng,
    /// Share of lookups answered with "not here", in percent.
    absences: u64,
    /// Called in a wait for an arrival.
    pub(crate) on_wait: Hook,
    /// Called by a checkpoint that has copied a part of a table.
    pub(crate) on_copy: Hook,
    pub(crate) waits: AtomicU64,
    /// Operations that a replay has repeated, and those that a file had already.
    pub(crate) redone: AtomicU64,
    pub(crate) left_out: AtomicU64,
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
            files: Mutex::default(),
            serial: AtomicU64::new(0),
            uncommitted: AtomicI64::new(0),
            is_serving: AtomicBool::new(false),
            locks: (0..LOCKS).map(lock).collect(),
            rng: SeededRng::new(seed),
            absences,
            on_wait: Mutex::default(),
            on_copy: Mutex::default(),
            waits: AtomicU64::new(0),
            redone: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            undone: AtomicU64::new(0),
        })
    }

    /// All records of a table.
    pub(crate) fn state(&self, table: TableId) -> BTreeMap<Vec<u8>, (u8, Vec<u8>)> {
        let records = self.records.lock();
        let mine = records.iter().filter(|((of, _), _)| *of == table);
        mine.filter_map(|((_, key), record)| Some((key.clone(), record.value.clone()?))).collect()
    }

    /// Copies all records of a table, a few at a time. Transactions go on in between.
    fn copy(&self, table: TableId) -> Vec<u8> {
        let mut out = Vec::new();
        let mut from = (table, Vec::new());
        loop {
            let records = self.records.lock();
            let mut last = None;
            for (key, record) in records.range(from.clone()..).take(COPIED) {
                if key.0 != table {
                    break;
                }
                out.extend_from_slice(&record.gsn.to_le_bytes());
                let value = record.value.clone();
                out.extend(Change { key: key.1.clone(), before: None, after: value }.encode());
                last = Some(key.1.clone());
            }
            drop(records);
            let Some(mut next) = last else { return out };
            next.push(0);
            from.1 = next;
            if let Some(on_copy) = self.on_copy.lock().clone() {
                on_copy();
            }
        }
    }

    /// Loads the records that a checkpoint has copied.
    fn load(&self, table: TableId, mut bytes: &[u8]) -> Option<()> {
        let mut records = self.records.lock();
        while let Some((gsn, mut rest)) = bytes.split_first_chunk() {
            let Change { key, after, .. } = Change::take(&mut rest)?;
            let record = Record { gsn: u64::from_le_bytes(*gsn), value: after };
            records.insert((table, key), record);
            bytes = rest;
        }
        bytes.is_empty().then_some(())
    }

    fn hash(table: TableId, key: &[u8]) -> u64 {
        let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        key.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(table.0), fold)
    }

    /// Counts the change of a value by a transaction that has not ended; gives the count.
    fn count(&self, before: &Value, after: &Value) -> i64 {
        let more = i64::from(after.is_some()) - i64::from(before.is_some());
        if self.is_serving.load(Relaxed) {
            self.uncommitted.fetch_add(more, Relaxed);
        }
        more
    }

    fn remove_files(disk: &dyn Disk, files: &HashMap<u16, PathBuf>) {
        // The next opening removes files that stay.
        files.values().for_each(|path| drop(disk.remove(path)));
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
        Self::hash(table, key) as usize % LOCKS
    }

    fn check_table(&self, table: TableId) -> Result<u32, TxError> {
        let generation = self.generations.lock().get(&table.0).copied();
        generation.ok_or(TxError::NoSuchTable(table))
    }

    fn absence(self: &Arc<Self>) -> Option<Arc<dyn Arrival>> {
        (self.rng.below(100) < self.absences)
            .then(|| Arc::new(OnTheWay { kind: self.clone() }) as Arc<dyn Arrival>)
    }

    fn set(records: &mut Records, key: Key, value: Value, stamp: Stamp) {
        records.insert(key, Record { gsn: stamp.gsn(), value });
    }

    fn get(records: &Records, key: &Key) -> Record {
        records.get(key).cloned().unwrap_or_default()
    }
}

fn refused(error: DiskError) -> TxError {
    TxError::abandon(error)
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
        let change = Self::take(&mut body)?;
        body.is_empty().then_some(change)
    }

    fn take(body: &mut &[u8]) -> Option<Self> {
        let mut take = || {
            let (len, rest) = body.split_first_chunk()?;
            let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            *body = rest;
            Some(bytes)
        };
        let key = take()?.to_vec();
        let mut value = || match take()? {
            [] => Some(None),
            [1, tag, bytes @ ..] => Some(Some((*tag, bytes.to_vec()))),
            _ => None,
        };
        let (before, after) = (value()?, value()?);
        Some(Self { key, before, after })
    }
}

impl TableKind for InPlace {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add_table(&self, table: &KindTable<'_>, disk: &dyn Disk) -> Result<(), TxError> {
        let KindTable { id, generation, section } = *table;
        let before = self.generations.lock().insert(id.0, generation);
        assert_eq!(before, None, "a table is added once");
        let mine = format!("{PREFIX}{}-", id.0);
        for name in disk.list(Path::new("")).map_err(refused)? {
            let Some(number) = name.strip_prefix(&mine) else { continue };
            let number: u64 = number.trim_end_matches(".next").parse().expect("a serial");
            self.serial.fetch_max(number, Relaxed);
            if section != Some(&*name) {
                disk.remove(Path::new(&name)).map_err(refused)?;
            }
        }
        let Some(section) = section else { return Ok(()) };
        let bytes = read_all(disk, Path::new(section)).map_err(refused)?;
        self.load(id, &bytes).ok_or_else(|| TxError::abandon("no file of records"))?;
        self.files.lock()[0].insert(id.0, section.into());
        Ok(())
    }

    fn lock_tables(
        &self,
        tables: &[TableId],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Box<dyn LockedTables + '_>, TxError> {
        tables.iter().try_for_each(|&table| self.check_table(table).map(drop))?;
        for (at, lock) in self.locks.iter().enumerate() {
            let mut backoff = Backoff::new();
            while lock_word::try_exclusive(&lock.word, Priority::DECLARED).is_err() {
                if !may_wait() {
                    let taken = self.locks[..at].iter();
                    taken.for_each(|lock| lock_word::release_exclusive(&lock.word));
                    return Err(TxError::Conflict);
                }
                lock_word::await_sharers(&lock.word, Priority::DECLARED);
                backoff.wait();
            }
        }
        Ok(Box::new(AllLocked { kind: self, tables: tables.to_vec() }))
    }

    fn keys(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Presence<u64>, TxError> {
        self.check_table(table)?;
        let records = self.records.lock();
        let mine = records.keys().filter(|(of, _)| *of == table);
        let mut hashed: Vec<_> = mine.map(|(_, key)| (Self::hash(table, key), key)).collect();
        hashed.retain(|(hash, _)| *hash >= cursor);
        hashed.sort_unstable();
        let last = hashed.get(count.saturating_sub(1)).map_or(u64::MAX, |(hash, _)| *hash);
        out.extend(hashed.iter().filter(|(hash, _)| *hash <= last).map(|(_, key)| key.to_vec()));
        Ok(Presence::Here(last.wrapping_add(1)))
    }

    fn record_count(&self, table: TableId) -> u64 {
        let all = self.state(table).len() as i64;
        // Uncommitted records of all tables. The tests count only while no transaction is open in
        // another table.
        (all - self.uncommitted.load(Relaxed)) as u64
    }

    fn new_part(self: Arc<Self>) -> Box<dyn KindPart> {
        self.is_serving.store(true, Relaxed);
        Box::new(Part {
            kind: self,
            more: 0,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            held: Vec::new(),
            slots: Vec::new(),
        })
    }

    fn redo(&self, table: TableId, stamp: Stamp, body: &[u8]) -> Result<(), TxError> {
        let change = Change::decode(body).ok_or_else(|| TxError::abandon("no operation"))?;
        let mut records = self.records.lock();
        let key = (table, change.key);
        let record = Self::get(&records, &key);
        if record.gsn >= stamp.gsn() {
            self.left_out.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.redone.fetch_add(1, Relaxed);
        if record.value != change.before {
            return Err(TxError::abandon(format!("redo of {key:?} does not fit what is there")));
        }
        Self::set(&mut records, key, change.after, stamp);
        Ok(())
    }

    fn undo(&self, table: TableId, body: &[u8], log: &mut dyn OperationLog) -> Result<(), TxError> {
        let Change { key, before, after } =
            Change::decode(body).ok_or_else(|| TxError::abandon("no operation"))?;
        let back = Change { key: key.clone(), before: after.clone(), after: before.clone() };
        let body = back.encode();
        let generation = self.check_table(table)?;
        let (undo, undo_bytes) = (&body[..], body.len());
        let operation =
            Operation { table, generation, touched: &[], body: &body, undo, undo_bytes };
        loop {
            let mut records = self.records.lock();
            let record = Self::get(&records, &(table, key.clone()));
            assert_eq!(record.value, after, "undo out of order");
            match log.append(&operation) {
                Ok(stamp) => {
                    let lock = &self.locks[Self::lock_of(table, &key)];
                    lock.stamp.store(stamp.to_bits(), Relaxed);
                    self.count(&after, &before);
                    Self::set(&mut records, (table, key), before, stamp);
                    self.undone.fetch_add(1, Relaxed);
                    return Ok(());
                }
                Err(LogRefused::NoRoom) => drop(records),
                Err(refused) => return Err(refused.into()),
            }
            log.wait_for_room()?;
        }
    }

    fn checkpoint(&self, disk: &dyn Disk) -> Result<Option<Sections>, TxError> {
        let sections = self.write_files(disk);
        if sections.is_err() {
            self.checkpoint_ended(disk, false);
        }
        sections.map(Some)
    }

    fn checkpoint_ended(&self, disk: &dyn Disk, is_published: bool) {
        let mut files = self.files.lock();
        let [before, next] = &mut *files;
        let next = std::mem::take(next);
        if is_published {
            Self::remove_files(disk, before);
            *before = next;
        } else {
            Self::remove_files(disk, &next);
        }
    }
}

impl InPlace {
    /// Writes a file for each table.
    fn write_files(&self, disk: &dyn Disk) -> Result<Sections, TxError> {
        let tables: Vec<u16> = self.generations.lock().keys().copied().collect();
        let mut sections = Vec::new();
        for table in tables {
            let serial = self.serial.fetch_add(1, Relaxed) + 1;
            let name = format!("{PREFIX}{table}-{serial}");
            let path = PathBuf::from(&name);
            self.files.lock()[1].insert(table, path.clone());
            let bytes = self.copy(TableId(table));
            write_file_durably(disk, &path, &bytes).map_err(refused)?;
            sections.push((TableId(table), name));
        }
        Ok(sections)
    }
}

/// All locks of the kind, held for some tables.
struct AllLocked<'k> {
    kind: &'k InPlace,
    tables: Vec<TableId>,
}

impl LockedTables for AllLocked<'_> {
    fn empty(&mut self, generations: &[u32]) {
        for (table, &generation) in self.tables.iter().zip(generations) {
            self.kind.generations.lock().insert(table.0, generation);
            self.kind.records.lock().retain(|(of, _), _| of != table);
        }
    }
}

impl Drop for AllLocked<'_> {
    fn drop(&mut self) {
        self.kind.locks.iter().for_each(|lock| lock_word::release_exclusive(&lock.word));
    }
}

#[derive(Debug)]
struct HeldLock {
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
    /// Values that the transaction has added, minus those that it has removed.
    more: i64,
    priority: Priority,
    discipline: Discipline,
    held: Vec<HeldLock>,
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
        self.held.push(HeldLock { lock, is_exclusive, stamp, has_changed: false });
        Ok(self.held.len() - 1)
    }

    fn record(&self, slot: &Slot) -> Value {
        InPlace::get(&self.kind.records.lock(), &(slot.table, slot.key.clone())).value
    }
}

impl KindPart for Part {
    fn begin(&mut self, priority: Priority, discipline: Discipline) {
        assert!(self.held.is_empty() && self.slots.is_empty(), "a run was not ended");
        (self.priority, self.discipline) = (priority, discipline);
    }

    fn ask(&mut self, keys: &KeyList, missing: &mut dyn FnMut(usize, Arc<dyn Arrival>)) {
        for number in 0..keys.len() {
            if let Some(arrival) = self.kind.absence() {
                missing(number, arrival);
            }
        }
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
        keys: &KeyList,
        may_wait: &dyn Fn() -> bool,
        slots: &mut Vec<u32>,
    ) -> Result<Presence<()>, TxError> {
        let mut order: BTreeMap<usize, Mode> = BTreeMap::new();
        for key in keys.iter() {
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
        slots.clear();
        for key in keys.iter() {
            match self.lock(key, &|| false)? {
                Presence::Here(slot) => slots.push(slot),
                Presence::NotHere(arrival) => return Ok(Presence::NotHere(arrival)),
            }
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
        _: &dyn Fn() -> bool,
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
            let before = InPlace::get(&records, &key).value;
            let after = value.map(|(tag, bytes)| (tag, bytes.to_vec()));
            let change = Change { key: at.key.clone(), before, after };
            let body = change.encode();
            let (table, touched) = (at.table, &touched[..]);
            let (undo, undo_bytes) = (&body[..], body.len());
            let operation = Operation { table, generation, touched, body: &body, undo, undo_bytes };
            match log.append(&operation) {
                Ok(stamp) => {
                    self.more += self.kind.count(&change.before, &change.after);
                    InPlace::set(&mut records, key, change.after, stamp);
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
        // A panic here ends the process. One test provokes the panic.
        let behind = self.held.iter().filter(|held| held.stamp.gsn() >= stamp.gsn()).count();
        self.kind.behind.fetch_add(behind as u64, Relaxed);
        self.kind.uncommitted.fetch_sub(self.more, Relaxed);
    }

    fn release(&mut self, end: Option<Stamp>) {
        self.slots.clear();
        self.more = 0;
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
