//! The part of paged tables in the transactions of one session.
//!
//! Strict two-phase locking with the words of [`LockTable`](crate::locks::LockTable). A change is made in
//! place, under the latch of its leaf: append, change, stamp, unlatch. The values of locked keys are kept
//! here, since their pages may be evicted.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::page_log::PageRecord;
use stillpoint_sync::lock_word::{self, Contended, Priority};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::{
    Discipline, KindKey, KindPart, KindRange, LogRefused, Mode, OperationLog, Presence, RangeBatch,
    TableId, TxError,
};

use crate::kind::Paged;
use crate::locks::{END, Name};
use crate::log::TableLog;
use crate::planted;
use crate::tables::Table;
use crate::tree::{Batch, Beyond, Leaf, PageLog, Pause, Value};

/// Records of a range that are read and locked together.
const BATCH: usize = if cfg!(any(loom, shuttle)) { 2 } else { 32 };

#[derive(Debug)]
struct HeldLock {
    name: Name,
    is_exclusive: bool,
    /// The stamp of the word when it was taken.
    stamp: Stamp,
    has_changed: bool,
}

#[derive(Debug)]
struct Slot {
    table: Arc<Table>,
    key: Vec<u8>,
    mode: Mode,
    held: usize,
    existed: bool,
    /// Tag and value, as the transaction sees them.
    value: Option<(u8, Vec<u8>)>,
}

/// What a change waits for, with no latch held.
enum Wait {
    Room,
    Gap(Name, Priority),
    Log,
    Beyond,
}

/// The part of the kind in one session's transactions.
pub(crate) struct Part {
    kind: Arc<Paged>,
    priority: Priority,
    discipline: Discipline,
    held: Vec<HeldLock>,
    held_at: HashMap<Name, usize>,
    slots: Vec<Slot>,
    slot_at: HashMap<u16, HashMap<Vec<u8>, u32>>,
    tables: HashMap<u16, Arc<Table>>,
    /// For each table, the records that the transaction has added, minus those that it has removed.
    added: HashMap<u16, i64>,
    batch: Batch,
}

impl Part {
    pub(crate) fn new(kind: Arc<Paged>) -> Self {
        Self {
            kind,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            held: Vec::new(),
            held_at: HashMap::new(),
            slots: Vec::new(),
            slot_at: HashMap::new(),
            tables: HashMap::new(),
            added: HashMap::new(),
            batch: Batch::default(),
        }
    }

    fn table(&mut self, id: TableId) -> Result<Arc<Table>, TxError> {
        if let Some(known) = self.tables.get(&id.0) {
            return Ok(known.clone());
        }
        let table = self.kind.tables.get(id)?;
        self.tables.insert(id.0, table.clone());
        Ok(table)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), TxError> {
        let (len, limit) = (key.len(), self.kind.pool.key_bytes_max());
        if len > limit {
            return Err(TxError::OrderedKeyTooLong { len, limit });
        }
        Ok(())
    }

    /// Takes a word, or makes it exclusive. Returns its number among the held ones.
    fn take(
        &mut self,
        name: Name,
        mode: Mode,
        discipline: Discipline,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<usize, TxError> {
        let mut backoff = Backoff::new();
        loop {
            let Err(Contended(by)) = self.try_take(name, mode) else {
                return Ok(self.held_at[&name]);
            };
            let (own, is_spinning) = (self.priority, backoff.is_spinning());
            if !discipline.may_wait_for(own, by, is_spinning) || !may_wait() {
                return Err(TxError::Conflict);
            }
            if mode == Mode::Write {
                lock_word::await_sharers(self.kind.locks.word(name), own);
            }
            backoff.wait();
        }
    }

    fn try_take(&mut self, name: Name, mode: Mode) -> Result<(), Contended> {
        let word = self.kind.locks.word(name);
        if let Some(&known) = self.held_at.get(&name) {
            if mode == Mode::Write && !self.held[known].is_exclusive {
                lock_word::try_upgrade(word, self.priority)?;
                self.held[known].is_exclusive = true;
            }
            return Ok(());
        }
        match mode {
            Mode::Read => lock_word::try_shared(word, self.priority)?,
            Mode::Write => lock_word::try_exclusive(word, self.priority)?,
        }
        let (stamp, is_exclusive) = (self.kind.locks.stamp(name), mode == Mode::Write);
        self.held_at.insert(name, self.held.len());
        self.held.push(HeldLock { name, is_exclusive, stamp, has_changed: false });
        Ok(())
    }

    /// Claims the gap that a new key falls into, for the moment of the change. The leaf is latched, so
    /// this does not wait. Returns the word to give back.
    ///
    /// # Errors
    /// Another transaction holds the gap.
    fn claim_gap(
        &mut self,
        table: TableId,
        key: &[u8],
        next: &[u8],
    ) -> Result<Option<Name>, (Name, Priority)> {
        let name = self.kind.locks.gap(table, next);
        if !self.held_at.contains_key(&name) {
            let word = self.kind.locks.word(name);
            let taken = lock_word::try_exclusive(word, self.priority);
            return taken.map(|()| Some(name)).map_err(|Contended(by)| (name, by));
        }
        // The transaction has read the gap, so it has read both gaps that the key makes of it.
        self.try_take(name, Mode::Write).map_err(|Contended(by)| (name, by))?;
        let own = self.kind.locks.gap(table, key);
        self.try_take(own, Mode::Read).map_err(|Contended(by)| (own, by))?;
        Ok(None)
    }

    /// The next key behind a key that a leaf does not have. `None` if the leaves behind must be read
    /// first.
    fn next_key(&self, leaf: &Leaf<'_>, beyond: Option<&Beyond>, out: &mut Vec<u8>) -> Option<()> {
        if leaf.next_key(out) {
            return Some(());
        }
        if mutant!(false, GapAtLeafEndUnchecked => true) {
            return Some(());
        }
        let beyond = beyond.filter(|beyond| self.kind.pool.is_beyond_still(leaf, beyond))?;
        out.extend_from_slice(if beyond.is_some { &beyond.key } else { END });
        Some(())
    }

    /// Changes the key of a slot, whose leaf is latched.
    fn change(
        &mut self,
        slot: usize,
        leaf: &Leaf<'_>,
        after: Value<'_>,
        (beyond, log): (Option<&Beyond>, &mut dyn OperationLog),
    ) -> Result<Result<(), Wait>, TxError> {
        let (table, key) = (self.slots[slot].table.clone(), self.slots[slot].key.clone());
        let mut bytes = Vec::new();
        let before = leaf.value(&mut bytes).map(|tag| (tag, &bytes[..]));
        if before.is_none() && after.is_none() {
            return Ok(Ok(()));
        }
        if leaf.needs(&key, after).is_some() {
            return Ok(Err(Wait::Room));
        }
        let mut claimed = None;
        if leaf.slot.is_err() {
            let mut next = Vec::new();
            if self.next_key(leaf, beyond, &mut next).is_none() {
                return Ok(Err(Wait::Beyond));
            }
            match self.claim_gap(table.id, &key, &next) {
                Ok(name) => claimed = name,
                Err((name, by)) => return Ok(Err(Wait::Gap(name, by))),
            }
        }
        let page = leaf.latched.header().page();
        let mut body = Vec::new();
        PageRecord::Change { page, key: &key, before, after }.encode(&mut body);
        let held = self.slots[slot].held;
        let touched = [self.held[held].stamp, leaf.latched.header().stamp()];
        let added = i64::from(after.is_some()) - i64::from(before.is_some());
        let mut log = TableLog { log, table: table.id, generation: table.generation() };
        let appended =
            self.kind.tables.append_counted(&table, added, || log.append(&touched, &body));
        if let Ok(stamp) = &appended {
            leaf.set(&key, after, *stamp).expect("its room was measured");
            self.held[held].has_changed = true;
            *self.added.entry(table.id.0).or_default() += added;
        }
        if let Some(name) = claimed {
            lock_word::release_exclusive(self.kind.locks.word(name));
        }
        match appended {
            Ok(_) => Ok(Ok(())),
            Err(LogRefused::NoRoom) => Ok(Err(Wait::Log)),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Waits for a gap that another transaction holds, as the discipline allows.
    fn wait_for_gap(
        &self,
        (name, by): (Name, Priority),
        backoff: &mut Backoff,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<(), TxError> {
        let own = self.priority;
        if !self.discipline.may_wait_for(own, by, backoff.is_spinning()) || !may_wait() {
            return Err(TxError::Conflict);
        }
        lock_word::await_sharers(self.kind.locks.word(name), own);
        backoff.wait();
        Ok(())
    }

    /// Makes the change of a put. Waits for nothing but room, gaps and the log.
    fn try_put(
        &mut self,
        slot: usize,
        after: Value<'_>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<(), Pause> {
        let pool = self.kind.pool.clone();
        let (table, key) = (self.slots[slot].table.clone(), self.slots[slot].key.clone());
        let (mut backoff, mut beyond) = (Backoff::new(), None);
        loop {
            let leaf = pool.latch_leaf(table.id, &key)?;
            let changed = self.change(slot, &leaf, after, (beyond.as_ref(), &mut *log));
            drop(leaf);
            match changed.map_err(Pause::Refused)? {
                Ok(()) => return Ok(()),
                Err(Wait::Room) => {
                    let generation = table.generation();
                    let mut log = TableLog { log: &mut *log, table: table.id, generation };
                    pool.make_room(table.id, &key, after, &mut log)?;
                }
                Err(Wait::Gap(name, by)) => {
                    self.wait_for_gap((name, by), &mut backoff, may_wait)
                        .map_err(Pause::Refused)?;
                }
                Err(Wait::Log) => return Err(Pause::LogFull),
                Err(Wait::Beyond) => {
                    let found = beyond.get_or_insert_with(Beyond::default);
                    pool.key_beyond_leaf(table.id, &key, found)?;
                }
            }
        }
    }

    /// Locks what a batch of a range has read, and the gaps between.
    fn lock_batch(
        &mut self,
        table: TableId,
        batch: &Batch,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<(), TxError> {
        let discipline = self.discipline;
        for at in 0..batch.len() {
            let locks = &self.kind.locks;
            let names = [locks.key(table, batch.key(at)), locks.gap(table, batch.key(at))];
            for name in names {
                self.take(name, Mode::Read, discipline, may_wait)?;
            }
        }
        if batch.is_end {
            let name = self.kind.locks.gap(table, batch.beyond().unwrap_or(END));
            self.take(name, Mode::Read, discipline, may_wait)?;
        }
        Ok(())
    }
}

impl KindPart for Part {
    fn begin(&mut self, priority: Priority, discipline: Discipline) {
        assert!(self.held.is_empty() && self.slots.is_empty(), "a run was not ended");
        (self.priority, self.discipline) = (priority, discipline);
    }

    fn ask(&mut self, table: TableId, key: &[u8]) -> Presence<()> {
        if self.check_key(key).is_err() || self.table(table).is_err() {
            return Presence::Here(());
        }
        self.kind.ask(table, key)
    }

    fn lock(
        &mut self,
        asked: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError> {
        let KindKey { table: id, key, mode } = asked;
        let table = self.table(id)?;
        self.check_key(key)?;
        let known = self.slot_at.get(&id.0).and_then(|slots| slots.get(key)).copied();
        if let Some(known) = known
            && self.slots[known as usize].mode >= mode
        {
            return Ok(Presence::Here(known));
        }
        let name = self.kind.locks.key(id, key);
        let held = self.take(name, mode, self.discipline, may_wait)?;
        if let Some(known) = known {
            self.slots[known as usize].mode = mode;
            return Ok(Presence::Here(known));
        }
        let mut value = Vec::new();
        let tag = match self.kind.here(|pool| pool.read(id, key, &mut value))? {
            Presence::Here(tag) => tag,
            Presence::NotHere(arrival) => return Ok(Presence::NotHere(arrival)),
        };
        let value = tag.map(|tag| (tag, value));
        let existed = value.is_some();
        let slot = self.slots.len() as u32;
        self.slots.push(Slot { table, key: key.to_vec(), mode, held, existed, value });
        self.slot_at.entry(id.0).or_default().insert(key.to_vec(), slot);
        Ok(Presence::Here(slot))
    }

    fn lock_all(
        &mut self,
        keys: &[KindKey<'_>],
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError> {
        let mut order = Vec::with_capacity(keys.len());
        for key in keys {
            self.table(key.table)?;
            self.check_key(key.key)?;
            order.push((self.kind.locks.key(key.table, key.key), key.mode));
        }
        // Of two accesses by one word, the exclusive one comes first.
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        for (name, mode) in order {
            self.take(name, mode, Discipline::Declared, may_wait)?;
        }
        Ok(Presence::Here(()))
    }

    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8> {
        let (tag, bytes) = self.slots[slot as usize].value.as_ref()?;
        out.extend_from_slice(bytes);
        Some(*tag)
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
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError> {
        if self.slots[slot as usize].mode == Mode::Read {
            return Err(TxError::DeclaredForReading { slot });
        }
        let (len, limit) =
            (value.map_or(0, |value| value.1.len()), self.kind.pool.value_bytes_max());
        if len > limit {
            return Err(TxError::PagedValueTooLong { len, limit });
        }
        loop {
            match self.try_put(slot as usize, value, log, may_wait) {
                Ok(()) => break,
                Err(Pause::LogFull) => log.wait_for_room()?,
                Err(Pause::Refused(error)) => return Err(error),
                Err(Pause::Missing(missing)) => {
                    if let Some(arrival) = self.kind.arrival(missing)? {
                        return Ok(Presence::NotHere(arrival));
                    }
                }
            }
        }
        self.slots[slot as usize].value = value.map(|(tag, bytes)| (tag, bytes.to_vec()));
        Ok(Presence::Here(()))
    }

    fn range(
        &mut self,
        range: &KindRange<'_>,
        may_wait: &dyn Fn() -> bool,
        out: &mut RangeBatch,
    ) -> Result<Presence<()>, TxError> {
        let KindRange { table, lower, upper } = *range;
        self.table(table)?;
        let mut batch = std::mem::take(&mut self.batch);
        let locked = loop {
            let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (lower, upper);
            match self.kind.here(|pool| pool.read_range(table, bounds, BATCH, &mut batch)) {
                Ok(Presence::Here(())) => {}
                other => break other,
            }
            if let Err(error) = self.lock_batch(table, &batch, may_wait) {
                break Err(error);
            }
            if mutant!(self.kind.pool.is_unchanged(&batch), RangeNotReadAgain => true) {
                break Ok(Presence::Here(()));
            }
        };
        if let Ok(Presence::Here(())) = locked {
            out.records.clear();
            for at in 0..batch.len() {
                if let Some((tag, value)) = batch.value(at) {
                    out.records.push((batch.key(at).to_vec(), tag, value.to_vec()));
                }
            }
            out.last.clear();
            if let Some(last) = batch.len().checked_sub(1) {
                out.last.extend_from_slice(batch.key(last));
            }
            out.is_end = batch.is_end;
        }
        self.batch = batch;
        locked
    }

    fn touched(&self, out: &mut Vec<Stamp>) {
        out.extend(self.held.iter().map(|held| held.stamp));
    }

    fn prepare(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    fn install(&mut self, _: Stamp) {
        for (table, added) in self.added.drain() {
            self.tables[&table].commit(added);
        }
    }

    fn release(&mut self, end: Option<Stamp>) {
        self.slots.clear();
        self.slot_at.clear();
        self.added.clear();
        self.held_at.clear();
        for held in self.held.drain(..) {
            if held.has_changed
                && let Some(end) = end
            {
                self.kind.locks.set_stamp(held.name, end);
            }
            let word = self.kind.locks.word(held.name);
            match held.is_exclusive {
                true => lock_word::release_exclusive(word),
                false => lock_word::release_shared(word),
            }
        }
    }
}
