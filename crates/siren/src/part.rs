//! The part of the kind in the transactions of one session.
//!
//! Strict two-phase locks in the proxies. A key has a lock, and the gap below it has another one. The gap
//! ends at the next key that *delimits* gaps. Such a key has a version, or is still in the index after its
//! last one.
//!
//! 1. A new key claims the gap that it divides, for the moment in which it becomes a delimiter. So nobody
//!    holds the gap then. Whoever reads a range locks a delimiter and its gap, and then looks whether a new
//!    delimiter lies between.
//! 2. A transaction that holds the gap itself gets both parts of it.
//! 3. A key without versions leaves the index only while nobody has its lock or the lock of its gap. The gap
//!    joins the one above. Whoever holds that one holds more than it has read.
//! 4. What a purged key was last changed by is kept in its table, and whoever finds no such key depends on
//!    it.
//! 5. All locks follow the priorities of `stillpoint-txn`, so no cycle of waits closes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::siren::{TupleChange, TupleOperation};
use stillpoint_format::{KEY_BYTES_MAX, Stamp, VALUE_BYTES_MAX};
use stillpoint_sync::atomic::{AtomicU64, Ordering::SeqCst};
use stillpoint_sync::lock_word::{self, Contended, Priority};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::{
    Arrival, DeferredLog, Discipline, KeyList, KindKey, KindPart, KindRange, LogRefused, Mode,
    Operation, OperationLog, Presence, RangeBatch, TableId, TxError,
};

use crate::ahead::Ahead;
use crate::held::{Deferred, HeldKey};
use crate::index::prefix_of;
use crate::kind::Siren;
use crate::pages::new_tuple_bytes;
use crate::planted;
use crate::proxy::{Proxy, Value, untagged};
use crate::table::{Author, Table};

/// Turns for which any transaction waits for a declared one, which is gone soon. A wait with an end closes no
/// cycle. An open transaction, which nobody runs again, lives the longer.
const DECLARED_TURNS: u32 = 96;
/// Bytes of keys and values after which a batch of a range ends.
const BATCH_BYTES: usize = 64 << 10;
/// Bytes of values whose room is kept from one transaction to the next.
const KEPT_BYTES: usize = 1 << 20;
/// Keys up to which a search looks at each of them.
const SEARCHED: usize = 16;

/// A table that the transaction uses.
struct UsedTable {
    table: Arc<Table>,
    /// Whether the transaction has found no record somewhere, so that it depends on purged keys.
    needs_purged: bool,
}

/// A locked gap: below a key, or above all keys of a table.
struct HeldGap {
    table: Arc<Table>,
    proxy: Option<Arc<Proxy>>,
    is_exclusive: bool,
}

impl HeldGap {
    fn word(&self) -> &AtomicU64 {
        gap_of(&self.table, self.proxy.as_ref())
    }
}

fn gap_of<'w>(table: &'w Table, below: Option<&'w Arc<Proxy>>) -> &'w AtomicU64 {
    below.map_or(&table.gates.end_gap, |proxy| &proxy.gap)
}

/// A way to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    Share,
    Exclusive,
    Upgrade,
}

/// Where the reading of a range begins.
struct Begin {
    /// The key that ends the gap in which the range begins.
    ends_gap: Option<Arc<Proxy>>,
    /// The first key of the range.
    first: Option<Arc<Proxy>>,
}

impl Begin {
    fn find(table: &Table, range: &KindRange<'_>) -> Self {
        let index = &table.index;
        if !range.is_descending {
            let next = index.next_delimiter(range.lower);
            let first = next.clone().filter(|proxy| match range.upper {
                Bound::Unbounded => true,
                Bound::Included(key) => &*proxy.key <= key,
                Bound::Excluded(key) => &*proxy.key < key,
            });
            return Self { ends_gap: next, first };
        }
        let ends_gap = match range.upper {
            Bound::Unbounded => None,
            Bound::Included(key) => index.next_delimiter(Bound::Excluded(key)),
            Bound::Excluded(key) => index.next_delimiter(Bound::Included(key)),
        };
        let first = index.last_delimiter(range.upper).filter(|proxy| match range.lower {
            Bound::Unbounded => true,
            Bound::Included(key) => &*proxy.key >= key,
            Bound::Excluded(key) => &*proxy.key > key,
        });
        Self { ends_gap, first }
    }

    fn is(&self, other: &Self) -> bool {
        let keys = |begin: &Self| {
            let Self { ends_gap, first } = begin;
            (ends_gap.as_ref().map(Arc::as_ptr), first.as_ref().map(Arc::as_ptr))
        };
        keys(self) == keys(other)
    }
}

/// How a transaction waits for others.
#[derive(Clone, Copy)]
struct Waits<'w> {
    priority: Priority,
    discipline: Discipline,
    may_wait: &'w dyn Fn() -> bool,
}

impl Waits<'_> {
    fn attempt(&self, word: &AtomicU64, take: Take) -> Result<(), Contended> {
        match take {
            Take::Share => lock_word::try_shared(word, self.priority),
            Take::Exclusive => lock_word::try_exclusive(word, self.priority),
            Take::Upgrade => lock_word::try_upgrade(word, self.priority),
        }
    }

    /// Takes a lock. Waits for it as the discipline allows.
    fn take(&self, word: &AtomicU64, take: Take) -> Result<(), TxError> {
        let mut backoff = Backoff::new();
        while let Err(Contended(by)) = self.attempt(word, take) {
            self.wait(word, take, by, &mut backoff)?;
        }
        Ok(())
    }

    /// Waits a little for the holder of a lock.
    fn wait(
        &self,
        word: &AtomicU64,
        take: Take,
        by: Priority,
        backoff: &mut Backoff,
    ) -> Result<(), TxError> {
        let may_wait = self.discipline.may_wait_for(self.priority, by, backoff.is_spinning())
            || (by == Priority::DECLARED && backoff.turns() < DECLARED_TURNS);
        if !may_wait || !(self.may_wait)() {
            if take != Take::Share && backoff.turns() > 0 {
                // The sharers may stay for minutes, and others share the lock meanwhile.
                lock_word::await_no_longer(word);
            }
            return Err(TxError::Conflict);
        }
        if take != Take::Share {
            lock_word::await_sharers(word, self.priority);
        }
        backoff.wait();
        Ok(())
    }
}

/// The part of the kind in one session's transactions.
pub(crate) struct Part {
    kind: Arc<Siren>,
    /// The read section of the session.
    section: usize,
    priority: Priority,
    discipline: Discipline,
    /// Number of the transaction; 0 before its first write.
    transaction: u64,
    statement: u32,
    tables: Vec<UsedTable>,
    keys: Vec<HeldKey>,
    /// Number of a key, by the address of its proxy. Made for more than [`SEARCHED`] keys.
    by_proxy: BTreeMap<usize, u32>,
    gaps: Vec<HeldGap>,
    /// Number of a gap, by the address of its word.
    by_gap: BTreeMap<usize, usize>,
    /// Room for a record and its stamps, and for values.
    room: Room,
    ahead: Ahead,
}

/// Memory that is used again.
#[derive(Default)]
struct Room {
    body: Vec<u8>,
    touched: Vec<Stamp>,
    /// Values with their tags: those that wait for the commit of a declared transaction, or the present one.
    values: Vec<u8>,
    /// Bytes of the tuples that the commit of a declared transaction adds, beside their values.
    adds: usize,
    /// Table, first bytes and number of keys, in the order of their locks.
    order: Vec<(TableId, u64, usize)>,
}

impl Part {
    pub(crate) fn new(kind: Arc<Siren>) -> Self {
        Self {
            section: kind.claim_section(),
            kind,
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            transaction: 0,
            statement: 1,
            tables: Vec::new(),
            keys: Vec::new(),
            by_proxy: BTreeMap::new(),
            gaps: Vec::new(),
            by_gap: BTreeMap::new(),
            room: Room::default(),
            ahead: Ahead::default(),
        }
    }

    fn waits<'w>(&self, may_wait: &'w dyn Fn() -> bool) -> Waits<'w> {
        Waits { priority: self.priority, discipline: self.discipline, may_wait }
    }

    /// Number of a table among the used ones, with its gate held.
    fn table(&mut self, id: TableId, waits: Waits<'_>) -> Result<usize, TxError> {
        if let Some(known) = self.tables.iter().position(|used| used.table.id == id.0) {
            return Ok(known);
        }
        loop {
            let table = self.kind.table(id)?;
            let gate = table.gates.gate(self.section);
            waits.take(gate, Take::Share)?;
            if !table.gates.is_emptied() {
                self.tables.push(UsedTable { table, needs_purged: false });
                return Ok(self.tables.len() - 1);
            }
            lock_word::release_shared(gate);
        }
    }

    fn find(&self, proxy: &Arc<Proxy>) -> Option<u32> {
        if self.keys.len() <= SEARCHED {
            let found = self.keys.iter().position(|held| Arc::ptr_eq(&held.proxy, proxy));
            return found.map(|at| at as u32);
        }
        self.by_proxy.get(&Arc::as_ptr(proxy).addr()).copied()
    }

    fn push(&mut self, held: HeldKey) -> u32 {
        self.keys.push(held);
        let first = match self.keys.len() {
            ..=SEARCHED => self.keys.len(),
            count if count == SEARCHED + 1 => 0,
            count => count - 1,
        };
        for (at, held) in self.keys.iter().enumerate().skip(first) {
            self.by_proxy.insert(Arc::as_ptr(&held.proxy).addr(), at as u32);
        }
        self.keys.len() as u32 - 1
    }

    /// Locks the key of a proxy; its number. `None` if the proxy has left the index.
    fn lock_proxy(
        &mut self,
        table: usize,
        proxy: Arc<Proxy>,
        mode: Mode,
        waits: Waits<'_>,
    ) -> Result<Option<u32>, TxError> {
        let is_exclusive = mode == Mode::Write;
        if let Some(known) = self.find(&proxy) {
            if is_exclusive && !self.keys[known as usize].is_exclusive {
                waits.take(&proxy.lock, Take::Upgrade)?;
                self.keys[known as usize].is_exclusive = true;
            }
            return Ok(Some(known));
        }
        waits.take(&proxy.lock, if is_exclusive { Take::Exclusive } else { Take::Share })?;
        let existed = proxy.has_value();
        if proxy.is_dead() {
            release(&proxy.lock, is_exclusive);
            return Ok(None);
        }
        let stamp = proxy.stamp();
        self.tables[table].needs_purged |= stamp.is_none() && !existed;
        let is_written = false;
        let held =
            HeldKey { table, proxy, is_exclusive, is_written, existed, stamp, deferred: None };
        Ok(Some(self.push(held)))
    }

    /// Locks a key; its number. `ahead` is its number among the keys that were asked for.
    fn lock_key(
        &mut self,
        asked: KindKey<'_>,
        ahead: Option<usize>,
        waits: Waits<'_>,
    ) -> Result<u32, TxError> {
        let KindKey { table, key, mode } = asked;
        let len = key.len();
        if len > KEY_BYTES_MAX {
            return Err(TxError::KeyTooLong { len });
        }
        let number = self.table(table, waits)?;
        let table = &self.tables[number].table;
        let mut found = ahead.and_then(|ahead| self.ahead.take(ahead, table, key));
        loop {
            let index = &self.tables[number].table.index;
            let proxy = found.take().unwrap_or_else(|| index.find_or_insert(key));
            if let Some(slot) = self.lock_proxy(number, proxy, mode, waits)? {
                return Ok(slot);
            }
        }
    }

    fn gap(&self, word: &AtomicU64) -> Option<usize> {
        self.by_gap.get(&std::ptr::from_ref(word).addr()).copied()
    }

    /// Notes a gap whose lock was taken shared.
    fn push_gap(&mut self, table: &Arc<Table>, proxy: Option<&Arc<Proxy>>) {
        let held = HeldGap { table: table.clone(), proxy: proxy.cloned(), is_exclusive: false };
        self.by_gap.insert(std::ptr::from_ref(held.word()).addr(), self.gaps.len());
        self.gaps.push(held);
    }

    /// Lets a key without a version delimit gaps, before it gets one.
    fn claim_gap(
        &mut self,
        table: &Arc<Table>,
        proxy: &Arc<Proxy>,
        waits: Waits<'_>,
    ) -> Result<(), TxError> {
        let mut backoff = Backoff::new();
        while !proxy.delimits() && mutant!(true, GapUnclaimed => false) {
            let above = || table.index.next_delimiter(Bound::Excluded(&proxy.key));
            let next = above();
            let word = gap_of(table, next.as_ref());
            let is_next = || {
                let now = above();
                now.as_ref().map(Arc::as_ptr) == next.as_ref().map(Arc::as_ptr)
            };
            if let Some(held) = self.gap(word) {
                if !self.gaps[held].is_exclusive {
                    waits.take(word, Take::Upgrade)?;
                    self.gaps[held].is_exclusive = true;
                }
                if is_next() {
                    // Nobody but this transaction knows the gap of a key that delimits none.
                    waits.take(&proxy.gap, Take::Share)?;
                    self.push_gap(table, Some(proxy));
                    break;
                }
            } else if let Err(Contended(by)) = waits.attempt(word, Take::Exclusive) {
                waits.wait(word, Take::Exclusive, by, &mut backoff)?;
            } else {
                let is_next = is_next();
                if is_next {
                    proxy.set_delimits();
                }
                lock_word::release_exclusive(word);
                // Whoever has purged the key above meanwhile has found its gap locked.
                if let Some(next) = next.filter(|next| next.versions.lock().is_empty()) {
                    purge(table, &next, self.priority);
                }
                if is_next {
                    break;
                }
            }
        }
        proxy.set_delimits();
        Ok(())
    }

    /// Locks the gap at which a range begins, and the first key of the range. Returns the number of the
    /// key, `None` if no key is in the range.
    fn lock_next(
        &mut self,
        table: usize,
        range: &KindRange<'_>,
        waits: Waits<'_>,
    ) -> Result<Option<u32>, TxError> {
        let of_table = self.tables[table].table.clone();
        self.tables[table].needs_purged = true;
        loop {
            let begin = Begin::find(&of_table, range);
            let Begin { ends_gap, first } = &begin;
            let word = gap_of(&of_table, ends_gap.as_ref());
            if self.gap(word).is_none() {
                waits.take(word, Take::Share)?;
                self.push_gap(&of_table, ends_gap.as_ref());
            }
            let mut slot = None;
            if let Some(proxy) = first {
                slot = self.lock_proxy(table, proxy.clone(), Mode::Read, waits)?;
                if slot.is_none() {
                    continue;
                }
            }
            let is_it = begin.is(&Begin::find(&of_table, range));
            if mutant!(is_it, RangeNotReadAgain => true) {
                return Ok(slot);
            }
        }
    }

    /// Writes a value: the record of the operation, and then the version. Waits for room in the log.
    fn write(
        &mut self,
        slot: usize,
        value: &Value,
        log: &mut dyn OperationLog,
    ) -> Result<(), TxError> {
        if self.transaction == 0 {
            self.transaction = self.kind.new_transaction();
        }
        loop {
            match self.operate(slot, value, log) {
                Ok(()) => break,
                Err(LogRefused::NoRoom) => log.wait_for_room()?,
                Err(refused) => return Err(refused.into()),
            }
        }
        self.keys[slot].is_written = true;
        Ok(())
    }

    /// Writes the operation of a put: its record, and then its version.
    fn operate(
        &mut self,
        slot: usize,
        value: &Value,
        log: &mut dyn OperationLog,
    ) -> Result<(), LogRefused> {
        let Self { keys, tables, room, kind, section, .. } = self;
        let held = &keys[slot];
        let used = &tables[held.table];
        let (table, proxy) = (&used.table, &held.proxy);
        let (transaction, statement) = (self.transaction, self.statement);
        let replaces = held.is_written && {
            let versions = proxy.versions.lock();
            versions.open.last().is_some_and(|last| last.statement == statement)
        };
        let change = value.as_ref().map_or(TupleChange::Delete, |value| {
            let (tag, bytes) = untagged(value);
            TupleChange::Put(tag, bytes)
        });
        let Room { body, touched, .. } = room;
        touched.clear();
        touched.push(held.stamp);
        if used.needs_purged {
            table.gates.add_purged(touched);
        }
        kind.base.operate(*section, |level| {
            body.clear();
            let key = &proxy.key;
            let operation = TupleOperation { level, transaction, statement, replaces, key, change };
            operation.encode(body);
            let (id, generation) = (TableId(table.id), table.generation);
            let undo_bytes = operation.undo_bytes();
            let undo = &body[..undo_bytes];
            log.append(&Operation { table: id, generation, touched, body, undo, undo_bytes })?;
            table.write(level, proxy, value.clone(), Author { transaction, statement });
            Ok(())
        })
    }
}

impl KindPart for Part {
    fn begin(&mut self, priority: Priority, discipline: Discipline) {
        assert!(self.keys.is_empty() && self.tables.is_empty(), "a run was not ended");
        (self.priority, self.discipline) = (priority, discipline);
        (self.transaction, self.statement) = (0, 1);
    }

    fn ask(&mut self, keys: &KeyList, _: &mut dyn FnMut(usize, Arc<dyn Arrival>)) {
        // All keys are in memory, but not in the caches.
        self.ahead.prefetch(&self.kind, keys);
    }

    fn lock(
        &mut self,
        asked: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError> {
        self.lock_key(asked, None, self.waits(may_wait)).map(Presence::Here)
    }

    fn lock_all(
        &mut self,
        keys: &KeyList,
        may_wait: &dyn Fn() -> bool,
        slots: &mut Vec<u32>,
    ) -> Result<Presence<()>, TxError> {
        let waits = Waits { discipline: Discipline::Declared, ..self.waits(may_wait) };
        slots.clear();
        slots.resize(keys.len(), 0);
        let first = self.ahead.begin(keys.len());
        let mut order = std::mem::take(&mut self.room.order);
        order.clear();
        order.extend(
            keys.iter().enumerate().map(|(number, key)| (key.table, prefix_of(key.key), number)),
        );
        // Of two accesses to one key, the exclusive one comes first.
        order.sort_unstable_by(|a, b| {
            (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| {
                let (a, b) = (keys.get(a.2), keys.get(b.2));
                a.key.cmp(b.key).then(b.mode.cmp(&a.mode))
            })
        });
        // Who empties tables waits for gates, and is waited for at gates alone.
        let mut tables = order.chunk_by(|a, b| a.0 == b.0);
        let tables = tables.try_for_each(|of| self.table(of[0].0, waits).map(drop));
        let locked = tables.and_then(|()| {
            order.iter().try_for_each(|&(.., number)| {
                slots[number] = self.lock_key(keys.get(number), Some(first + number), waits)?;
                Ok(())
            })
        });
        self.room.order = order;
        locked.map(Presence::Here)
    }

    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8> {
        self.keys[slot as usize].with_value(&self.room.values, |value| {
            let (tag, bytes) = untagged(value?);
            out.extend_from_slice(bytes);
            Some(tag)
        })
    }

    fn stamp(&self, slot: u32) -> Stamp {
        self.keys[slot as usize].stamp
    }

    fn existed(&self, slot: u32) -> bool {
        self.keys[slot as usize].existed
    }

    fn put(
        &mut self,
        slot: u32,
        value: Option<(u8, &[u8])>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError> {
        let at = slot as usize;
        let held = &self.keys[at];
        if !held.is_exclusive {
            return Err(TxError::DeclaredForReading { slot });
        }
        let is_declared = self.discipline == Discipline::Declared;
        let len = value.map_or(0, |(_, value)| value.len());
        if len >= VALUE_BYTES_MAX {
            return Err(TxError::ValueTooLong { len });
        }
        if value.is_none() && held.with_value(&self.room.values, |value| value.is_none()) {
            return Ok(Presence::Here(()));
        }
        let is_new = value.is_some() && !held.existed && !held.is_written;
        let adds = if is_new { new_tuple_bytes(&held.proxy.key) } else { 0 };
        if value.is_some() {
            // What is deferred takes memory besides.
            let waiting = if is_declared { self.room.values.len() + self.room.adds } else { 0 };
            self.kind.check_room(adds + len + waiting)?;
        }
        self.kind.base.slow_down();
        if !held.proxy.delimits() {
            let (table, proxy) = (self.tables[held.table].table.clone(), held.proxy.clone());
            self.claim_gap(&table, &proxy, self.waits(may_wait))?;
        }
        let (held, values) = (&mut self.keys[at], &mut self.room.values);
        if is_declared {
            // Nobody sees it before the commit, and nothing is to be undone.
            held.deferred = Some(Deferred::replace(held.deferred, value, values));
            held.is_written = true;
            self.room.adds += adds;
        } else {
            values.clear();
            let value = Deferred::replace(None, value, values).value(values).map(Arc::from);
            self.write(at, &value, log)?;
        }
        Ok(Presence::Here(()))
    }

    fn range(
        &mut self,
        range: &KindRange<'_>,
        may_wait: &dyn Fn() -> bool,
        out: &mut RangeBatch,
    ) -> Result<Presence<()>, TxError> {
        let waits = self.waits(may_wait);
        let table = self.table(range.table, waits)?;
        out.clear();
        let (mut last, mut bytes) = (None::<Arc<Proxy>>, 0);
        for _ in 0..out.most {
            if bytes >= BATCH_BYTES {
                break;
            }
            let mut rest = *range;
            if let Some(last) = &last {
                let behind = Bound::Excluded(&last.key[..]);
                match range.is_descending {
                    true => rest.upper = behind,
                    false => rest.lower = behind,
                }
            }
            let Some(slot) = self.lock_next(table, &rest, waits)? else {
                out.is_end = true;
                break;
            };
            let held = &self.keys[slot as usize];
            let proxy = &held.proxy;
            held.with_value(&self.room.values, |value| {
                let Some(value) = value else { return };
                let (tag, of_value) = untagged(value);
                let (key_room, value_room) = out.push(tag, proxy.key.len(), of_value.len());
                key_room.copy_from_slice(&proxy.key);
                value_room.copy_from_slice(of_value);
                bytes += proxy.key.len() + of_value.len();
            });
            last = Some(proxy.clone());
        }
        if let Some(last) = last {
            out.next.extend_from_slice(&last.key);
            if !range.is_descending {
                // The least key above the last one.
                out.next.push(0);
            }
        }
        out.most = out.most.saturating_mul(2);
        Ok(Presence::Here(()))
    }

    fn begin_statement(&mut self) -> bool {
        let Some(next) = self.statement.checked_add(1) else { return false };
        self.statement = next;
        true
    }

    fn deferred_bytes(&self) -> usize {
        let deferred = self.keys.iter().filter_map(|held| {
            let deferred = held.deferred?;
            Some(held.proxy.key.len() + 1 + deferred.len())
        });
        deferred.sum()
    }

    fn log_deferred(&mut self, log: &mut dyn OperationLog) -> Result<(), TxError> {
        for slot in 0..self.keys.len() {
            if let Some(deferred) = self.keys[slot].deferred.take() {
                let value: Value = deferred.value(&self.room.values).map(Arc::from);
                self.keys[slot].is_written = false;
                // Each write before it has taken memory that no put has seen.
                if let Some(value) = &value {
                    self.kind.check_room(self.keys[slot].proxy.key.len() + value.len())?;
                }
                self.kind.base.slow_down();
                self.write(slot, &value, log)?;
            }
        }
        Ok(())
    }

    fn commit_deferred(&mut self, log: &mut dyn DeferredLog) -> Result<Stamp, LogRefused> {
        let Self { keys, tables, kind, section, room, .. } = self;
        let author = Author { transaction: kind.new_transaction(), statement: self.statement };
        kind.base.operate(*section, |level| {
            for held in keys.iter() {
                if let Some(operation) = held.operation(&room.values, level, author) {
                    let Table { id, generation, .. } = *tables[held.table].table;
                    log.add(TableId(id), generation, &mut |out| operation.encode(out));
                }
            }
            let stamp = log.commit()?;
            let level = mutant!(level, ChangesAtLaterLevel => kind.base.level.load(SeqCst));
            for keys in keys.chunk_by_mut(|a, b| a.table == b.table) {
                let table = &tables[keys[0].table].table;
                let deferred = keys.iter_mut().filter_map(|held| {
                    let value = held.deferred.take()?.value(&room.values);
                    Some((&held.proxy, value))
                });
                table.write_committed(level, deferred, author, stamp);
            }
            Ok(stamp)
        })
    }

    fn touched(&self, out: &mut Vec<Stamp>) {
        out.extend(self.keys.iter().map(|held| held.stamp));
        let needing = self.tables.iter().filter(|used| used.needs_purged);
        needing.for_each(|used| used.table.gates.add_purged(out));
    }

    fn prepare(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    fn install(&mut self, stamp: Stamp) {
        if self.transaction == 0 {
            return;
        }
        self.kind.base.operate(self.section, |level| {
            for keys in self.keys.chunk_by(|a, b| a.table == b.table) {
                let written = keys.iter().filter(|held| held.is_written);
                let table = &self.tables[keys[0].table].table;
                table.commit_all(level, written.map(|held| &held.proxy), stamp);
            }
        });
    }

    fn release(&mut self, end: Option<Stamp>) {
        self.ahead.end();
        self.by_proxy.clear();
        self.by_gap.clear();
        self.room.adds = 0;
        self.room.values.clear();
        self.room.values.shrink_to(KEPT_BYTES);
        let mut unused = Vec::new();
        for held in self.keys.drain(..) {
            let HeldKey { table, proxy, is_exclusive, is_written, existed, .. } = held;
            if is_written && let Some(end) = end {
                proxy.set_stamp(end);
            }
            // A value that was there stays while the key is locked, unless this transaction has taken it.
            let is_empty = (is_written || !existed) && !proxy.has_value();
            release(&proxy.lock, is_exclusive);
            if is_empty {
                unused.push((self.tables[table].table.clone(), proxy));
            }
        }
        for held in self.gaps.drain(..) {
            release(held.word(), held.is_exclusive);
            if let HeldGap { table, proxy: Some(proxy), .. } = held
                && proxy.versions.lock().is_empty()
            {
                unused.push((table, proxy));
            }
        }
        for (table, proxy) in unused {
            purge(&table, &proxy, self.priority);
        }
        for used in self.tables.drain(..) {
            lock_word::release_shared(used.table.gates.gate(self.section));
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kind.base.sections.unclaim(self.section);
    }
}

fn release(word: &AtomicU64, is_exclusive: bool) {
    match is_exclusive {
        true => lock_word::release_exclusive(word),
        false => lock_word::release_shared(word),
    }
}

/// Takes a key without versions out of the index, unless somebody has its lock or that of its gap. Whoever
/// has one of them does so later.
fn purge(table: &Table, proxy: &Proxy, priority: Priority) {
    if lock_word::try_exclusive(&proxy.lock, priority).is_err() {
        return;
    }
    let is_alone = lock_word::try_exclusive(&proxy.gap, priority).is_ok();
    let may_purge = is_alone || mutant!(false, PurgedUnderGapLock => true);
    if may_purge && proxy.versions.lock().is_empty() {
        table.gates.purge(proxy.stamp());
        table.index.forget(proxy);
    }
    if is_alone {
        lock_word::release_exclusive(&proxy.gap);
    }
    lock_word::release_exclusive(&proxy.lock);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// While an open transaction shares a lock, a writer gives up. Others go on to share the lock.
    #[test]
    fn who_gives_up_on_a_lock_holds_up_nobody() {
        let word = AtomicU64::new(lock_word::free(0, 0));
        let turns = Cell::new(0);
        let may_wait = || turns.replace(turns.get() + 1) < 3;
        let (priority, discipline) = (Priority::DECLARED, Discipline::Declared);
        let waits = Waits { priority, discipline, may_wait: &may_wait };
        assert!(waits.attempt(&word, Take::Share).is_ok());
        assert!(waits.take(&word, Take::Exclusive).is_err(), "the lock is shared");
        assert!(waits.attempt(&word, Take::Share).is_ok());
    }
}
