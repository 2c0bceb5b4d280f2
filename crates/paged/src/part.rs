//! The part of paged tables in the transactions of one session.
//!
//! Strict two-phase locking with the words of [`LockTable`](crate::locks::LockTable). A change is made in
//! place, under the latch of its leaf: claim the stretch, append, change, stamp, unlatch. The values of
//! locked keys are kept here, since their pages may be evicted. No transaction of a usual size allocates
//! memory: all buffers are used again.

use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::large::LargeReference;
use stillpoint_format::page_log::{LoggedValue, PageRecord, StoredValue};
use stillpoint_format::{Stamp, VALUE_BYTES_MAX};
use stillpoint_sync::lock_word::Priority;
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::{
    Arrival, Discipline, KeyList, KindKey, KindPart, KindRange, Mode, OperationLog, Presence,
    RangeBatch, TableId, TxError, UnlockedRead,
};

use crate::ahead::Ahead;
use crate::held::{Claims, HeldLocks};
use crate::kind::Paged;
use crate::large::{LargePages, LargeReading, LargeWriting};
use crate::locks::{Blocked, Name};
use crate::log::TableLog;
use crate::open::Seat;
use crate::planted;
use crate::pool::{Pool, PoolError};
use crate::slots::Slots;
use crate::tables::Table;
use crate::tree::{KeyPlace, Leaf, LeafRange, PageLog, Pause, ReadAhead, Value, Wanted};

/// Fewest keys of a transaction whose descents are made together.
const TOGETHER_MIN: usize = 2;

/// A table that the session has used.
#[derive(Debug)]
struct UsedTable {
    table: Arc<Table>,
    /// The records that the transaction has added, minus those that it has removed.
    added: i64,
}

/// What a change waits for, with no latch held.
enum Wait {
    Room,
    Blocked(Blocked),
}

/// A key that a declared transaction locks: its word, the access, and its number in the list. In the order of
/// words. Of two accesses by one word, the exclusive one comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ordered(u64);

impl Ordered {
    const READ: u64 = 1 << 31;

    #[inline]
    fn new(name: Name, mode: Mode, number: usize) -> Self {
        let read = if mode == Mode::Read { Self::READ } else { 0 };
        Self(name.hash() << 32 | read | number as u64)
    }

    fn word(self) -> u64 {
        self.0 >> 32
    }

    fn mode(self) -> Mode {
        if self.0 & Self::READ == 0 { Mode::Write } else { Mode::Read }
    }

    fn number(self) -> usize {
        (self.0 as u32 & !(Self::READ as u32)) as usize
    }
}

/// The part of the kind in one session's transactions.
pub(crate) struct Part {
    kind: Arc<Paged>,
    seat: Seat,
    locks: HeldLocks,
    slots: Slots,
    /// Tables in the order of their numbers.
    tables: Vec<UsedTable>,
    ahead: Ahead,
    /// Whether the transaction has changed a page.
    has_changed: bool,
    /// Whether the transaction has read a range.
    has_ranged: bool,
    /// What the last range has asked for.
    read_ahead: ReadAhead,
    /// The large value that is being read. A value of that reference never changes.
    reading: Option<LargeReading>,
    /// The large value that is being written.
    writing: Option<LargeWriting>,
    /// Large values that the transaction has replaced. They are freed if it commits.
    replaced: Vec<LargePages>,
    /// Keys and leaves that were found.
    lookups: u64,
    // Buffers.
    order: Vec<Ordered>,
    hashes: Vec<u64>,
    body: Vec<u8>,
    key: Vec<u8>,
    names: Vec<Name>,
}

impl Part {
    pub(crate) fn new(kind: Arc<Paged>) -> Self {
        let seat = kind.open.sit();
        Self {
            kind,
            seat,
            locks: HeldLocks::new(),
            slots: Slots::default(),
            tables: Vec::new(),
            ahead: Ahead::default(),
            has_changed: false,
            has_ranged: false,
            read_ahead: ReadAhead::default(),
            reading: None,
            writing: None,
            replaced: Vec::new(),
            lookups: 0,
            order: Vec::new(),
            hashes: Vec::new(),
            body: Vec::new(),
            key: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Notes that the session uses a table. Gives its number among the used ones.
    #[inline]
    fn use_table(&mut self, id: TableId) -> Result<usize, TxError> {
        match self.tables.binary_search_by_key(&id.0, |used| used.table.id.0) {
            Ok(at) => Ok(at),
            Err(at) => {
                let table = self.kind.tables.get(id)?;
                self.tables.insert(at, UsedTable { table, added: 0 });
                Ok(at)
            }
        }
    }

    /// Refuses a key of a table that is not there, and a key that is too long.
    #[inline]
    fn check(&mut self, table: TableId, key: &[u8]) -> Result<(), TxError> {
        self.use_table(table)?;
        self.kind.check_key(key)
    }

    /// Reads the value of a key whose word is held, and makes a slot.
    fn add_slot(
        &mut self,
        KindKey { table, key, mode }: KindKey<'_>,
        (hash, held): (u64, usize),
        mut hint: Option<KeyPlace>,
    ) -> Result<Presence<u32>, TxError> {
        let Self { kind, slots, reading, lookups, .. } = self;
        let start = slots.values().len();
        loop {
            let place = match hint.take() {
                Some(place) => place,
                None => match kind.pool.place(table, key) {
                    Ok(place) => place,
                    Err(missing) => match kind.arrival(missing)? {
                        Some(arrival) => return Ok(Presence::NotHere(arrival)),
                        None => continue,
                    },
                },
            };
            let found = kind.pool.copy_value(place, slots.values());
            if !kind.pool.is_still(place.leaf) {
                slots.values().truncate(start);
                continue;
            }
            let tag = found.map(|found| found.tag);
            let mut pages = None;
            if found.is_some_and(|found| found.is_large) {
                let reference = reference_in(&slots.values()[start..])?;
                slots.values().truncate(start);
                // The key is locked, so the value stays.
                match read_large(kind, table, reference, reading)? {
                    Presence::Here((bytes, found)) => {
                        slots.values().extend_from_slice(&bytes);
                        pages = Some(found);
                    }
                    Presence::NotHere(arrival) => return Ok(Presence::NotHere(arrival)),
                }
            }
            *lookups += 1;
            let (key, place) = ((hash, table, key), (place, tag, start));
            return Ok(Presence::Here(slots.push(key, (mode, held), place, pages)));
        }
    }

    /// Makes the change of a put. Waits for nothing but room and stretches.
    fn try_put(
        &mut self,
        slot: usize,
        after: LoggedValue<'_>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<(), Pause> {
        let id = self.slots.get(slot).table;
        let at = self.use_table(id).map_err(Pause::Refused)?;
        let Self { kind, seat, locks, slots, tables, has_changed, body, .. } = self;
        let (mut place, held) = (slots.get_mut(slot).place.take(), slots.get(slot).held);
        let (key, before) = (slots.key(slot), slots.stored(slot));
        if before.is_none() && after.is_none() {
            return Ok(());
        }
        let UsedTable { table, added } = &mut tables[at];
        let mut log = TableLog { log, table: id, generation: table.generation() };
        let (pool, mut backoff) = (&kind.pool, Backoff::new());
        let mut may_merge = after.is_none();
        loop {
            let leaf = match place.take().and_then(|place| pool.latch_place(place)) {
                Some(leaf) => leaf,
                None => pool.latch_leaf(id, key)?,
            };
            let Some(mut leaf) = admitted(pool, leaf)? else { continue };
            let mut claims = Claims { table: &kind.locks, held: &mut *locks };
            if std::mem::take(&mut may_merge) && leaf.is_worth_a_merge() {
                leaf.release(false);
                unless_missing(pool.merge_sparse(id, key, (&mut log, &mut claims)))?;
                continue;
            }
            let purges = after.is_none() && leaf.is_worth_a_purge();
            if purges {
                pool.purge(&leaf.latched, id, &mut log, &mut claims)?;
                leaf.slot = leaf.latched.node().search(key);
            }
            let waits = if leaf.needs(key, after).is_some() {
                Wait::Room
            } else {
                match claims.claim(leaf.latched.header().page(), None) {
                    Ok(_claimed) => {
                        let page = leaf.latched.header().page();
                        let more = encode_change(page, key, [before, after], body);
                        let touched = [locks.stamp(held), leaf.latched.header().stamp()];
                        let stamp = kind
                            .tables
                            .append_counted(table, more, || log.append(&touched, body))?;
                        if !std::mem::replace(has_changed, true) {
                            kind.open.begin(*seat, stamp.gsn());
                        }
                        leaf.set(key, after, stamp).expect("its room was measured");
                        locks.note_change(held);
                        *added += more;
                        return Ok(());
                    }
                    Err(blocked) => Wait::Blocked(blocked),
                }
            };
            leaf.release(purges);
            let mut claims = Claims { table: &kind.locks, held: &mut *locks };
            let make_room = || pool.make_room(id, key, after, (&mut log, &mut claims));
            let Some(blocked) = blocked_by(waits, make_room)? else { continue };
            let waited = (Mode::Write, &mut backoff);
            locks.wait(&kind.locks, blocked, waited, may_wait).map_err(Pause::Refused)?;
        }
    }

    /// Makes the change of a put. The pages of a large value are written first. Returns them.
    fn try_put_any(
        &mut self,
        slot: usize,
        value: Value<'_>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Option<LargePages>, Pause> {
        let Some((tag, bytes)) = value else {
            return self.try_put(slot, None, log, may_wait).map(|()| None);
        };
        if bytes.len() <= self.kind.pool.value_bytes_max() {
            let value = StoredValue::in_leaf(tag, bytes);
            return self.try_put(slot, Some(value), log, may_wait).map(|()| None);
        }
        let id = self.slots.get(slot).table;
        let at = self.use_table(id).map_err(Pause::Refused)?;
        let Self { kind, tables, writing, .. } = self;
        let table = &*tables[at].table;
        let mut table_log = TableLog { log: &mut *log, table: id, generation: table.generation() };
        table.note_large();
        if writing.as_ref().is_none_or(|writing| writing.slot != slot) {
            *writing = Some(LargeWriting::new(slot));
        }
        let writing = writing.as_mut().expect("just begun");
        let pages = writing.go_on(&kind.pool, table, bytes, &mut table_log)?;
        let packed = pages.reference.pack();
        let value = StoredValue { tag, bytes: &packed, is_large: true };
        self.try_put(slot, Some(value), log, may_wait)?;
        self.writing = None;
        Ok(Some(pages))
    }

    /// Shares the stretch of a leaf, and reads the next records of a range from it. `Some` if another
    /// transaction has locked one of the keys, or if the leaf has changed.
    fn try_range(
        &mut self,
        range: &LeafRange<'_>,
        table: TableId,
        may_wait: &dyn Fn() -> bool,
        out: &mut RangeBatch,
    ) -> Result<Option<Again>, TxError> {
        let Self { kind, seat, locks, key, names, has_ranged, read_ahead, reading, .. } = self;
        let (pool, leaf) = (&kind.pool, range.place.leaf);
        let header = pool.header(leaf.frame);
        let (page, gsn) = (header.page(), header.stamp().gsn());
        if !pool.is_still(leaf) {
            return Ok(Some(Again::AtOnce));
        }
        *has_ranged = true;
        locks.take(&kind.locks, kind.locks.stretch(page), Mode::Read, may_wait)?;
        let (slots, is_large) = pool.read_leaf(range, Wanted::Records, out);
        let slots_of_leaf = pool.node(leaf.frame).slot_count();
        let is_leaf_read =
            if range.is_descending { slots.start == 0 } else { slots.end >= slots_of_leaf };
        let mut blocked = None;
        let is_committed = !kind.open.has_older_than(gsn, *seat);
        if !mutant!(is_committed, RangeOverOpenChanges => true) {
            names.clear();
            for slot in slots {
                key.clear();
                pool.read_key(range.place, slot, key);
                let name = kind.locks.key(kind.locks.hash(table, key));
                kind.locks.prefetch(name);
                names.push(name);
            }
            // Nobody else changes a key whose word is held here.
            let others = names.iter().filter(|&&name| locks.find(name).is_none());
            blocked =
                others.filter_map(|&name| Some((name, kind.locks.exclusive_holder(name)?))).next();
        }
        // The check comes last. A change before it that was undone meanwhile has made a new version.
        if !mutant!(pool.is_still(leaf), RangeNotReadAgain => true) {
            return Ok(Some(Again::AtOnce));
        }
        if let Some(blocked) = blocked {
            return Ok(Some(Again::After(blocked)));
        }
        if is_leaf_read && !out.is_end {
            pool.prefetch_next(table, &out.next, (range.is_descending, slots_of_leaf));
        }
        let count = read_ahead.note(page, out.most, pool.frame_count());
        if count > 0 && !out.is_end {
            let how = (range.is_descending, count);
            read_ahead.note_asked(pool.ask_for_leaves(table, &out.next, how));
        }
        if is_large {
            // The stretch is shared, so the value stays.
            let last = out.len() - 1;
            let reference = reference_in(out.record(last).2)?;
            match read_large(kind, table, reference, reading)? {
                Presence::Here((bytes, _)) => out.set_last_value(&bytes),
                Presence::NotHere(arrival) => return Ok(Some(Again::Arrived(arrival))),
            }
        }
        Ok(None)
    }
}

/// A leaf that may change. `None` if that needed room for a further copy, which there is now.
fn admitted<'p>(pool: &Pool, leaf: Leaf<'p>) -> Result<Option<Leaf<'p>>, Pause> {
    if leaf.latched.header().is_dirty() || pool.backing.has_room_for_change() {
        return Ok(Some(leaf));
    }
    leaf.release(false);
    pool.backing.admit_change()?;
    Ok(None)
}

/// Encodes the record of a change. Returns the number of records that it adds.
fn encode_change(
    page: u64,
    key: &[u8],
    [before, after]: [LoggedValue<'_>; 2],
    body: &mut Vec<u8>,
) -> i64 {
    body.clear();
    PageRecord::encode_change(page, key, [before, after], body);
    i64::from(after.is_some()) - i64::from(before.is_some())
}

/// Who keeps a change from being made, once there is room for it.
fn blocked_by(
    waits: Wait,
    make_room: impl FnOnce() -> Result<(), Pause>,
) -> Result<Option<Blocked>, Pause> {
    let made = match waits {
        Wait::Blocked(blocked) => return Ok(Some(blocked)),
        Wait::Room => make_room(),
    };
    match made {
        Err(Pause::Blocked(blocked)) => Ok(Some(blocked)),
        made => made.map(|()| None),
    }
}

/// The result of a merge, without which a deletion goes on. It waits for a missing page alone.
fn unless_missing(merged: Result<(), Pause>) -> Result<(), Pause> {
    match merged {
        Err(Pause::Missing(missing)) => Err(missing.into()),
        _ => Ok(()),
    }
}

/// When the reading of a leaf is tried again.
enum Again {
    AtOnce,
    After(Blocked),
    /// Once a page of a large value has come.
    Arrived(Arc<dyn Arrival>),
}

/// The reference in the bytes of a leaf.
fn reference_in(bytes: &[u8]) -> Result<LargeReference, TxError> {
    LargeReference::unpack(bytes).ok_or_else(|| {
        let why = "the reference to it has another length".to_owned();
        TxError::abandon(PoolError::Large { page: 0, why })
    })
}

/// Reads a large value that stays as it is. Goes on with what `begun` has of it, and leaves there what was
/// read before a wait. So a value may be larger than the pool.
fn read_large(
    kind: &Paged,
    table: TableId,
    reference: LargeReference,
    begun: &mut Option<LargeReading>,
) -> Result<Presence<(Vec<u8>, LargePages)>, TxError> {
    let mut reading = LargeReading::of(reference, begun.take());
    if let Some(loading) = reading.go_on(&kind.pool, table).map_err(TxError::abandon)? {
        *begun = Some(reading);
        kind.pool.note_wait();
        return Ok(Presence::NotHere(loading));
    }
    let bytes = std::mem::take(&mut reading.bytes);
    Ok(Presence::Here((bytes, reading.into_pages())))
}

/// Whether no key can be in a range.
fn is_empty(range: &KindRange<'_>) -> bool {
    match (range.lower, range.upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower > upper,
    }
}

impl KindPart for Part {
    fn begin(&mut self, priority: Priority, discipline: Discipline) {
        assert!(self.locks.is_empty() && self.slots.is_empty(), "a run was not ended");
        (self.locks.priority, self.locks.discipline) = (priority, discipline);
    }

    fn ask(&mut self, keys: &KeyList, missing: &mut dyn FnMut(usize, Arc<dyn Arrival>)) {
        let Self { kind, ahead, .. } = self;
        ahead.find_all(kind, keys, |number| {
            let KindKey { table, key, .. } = keys.get(number);
            if let Presence::NotHere(arrival) = kind.ask(table, key) {
                missing(number, arrival);
            }
        });
    }

    fn lock(
        &mut self,
        asked: KindKey<'_>,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<u32>, TxError> {
        let KindKey { table, key, mode } = asked;
        self.check(table, key)?;
        let hash = self.kind.locks.hash(table, key);
        let known = self.slots.find(hash, table, key);
        if let Some(known) = known
            && self.slots.get(known).mode >= mode
        {
            return Ok(Presence::Here(known as u32));
        }
        let name = self.kind.locks.key(hash);
        self.kind.locks.prefetch(name);
        // The word arrives meanwhile. A place is only a hint: the value is read once the word is held.
        let hint = match known {
            None => {
                let asked_for = self.ahead.take(hash, table, key);
                asked_for.or_else(|| self.kind.pool.place(table, key).ok())
            }
            Some(_) => None,
        };
        if mode == Mode::Write
            && let Some(place) = hint
        {
            let page = self.kind.pool.header(place.leaf.frame).page();
            self.kind.locks.prefetch(self.kind.locks.stretch(page));
        }
        let held = self.locks.take(&self.kind.locks, name, mode, may_wait)?;
        if let Some(known) = known {
            self.slots.get_mut(known).mode = mode;
            return Ok(Presence::Here(known as u32));
        }
        self.add_slot(asked, (hash, held), hint)
    }

    fn lock_all(
        &mut self,
        keys: &KeyList,
        may_wait: &dyn Fn() -> bool,
        slots: &mut Vec<u32>,
    ) -> Result<Presence<()>, TxError> {
        slots.clear();
        self.order.clear();
        self.hashes.clear();
        for (number, KindKey { table, key, mode }) in keys.iter().enumerate() {
            self.check(table, key)?;
            let hash = self.kind.locks.hash(table, key);
            self.order.push(Ordered::new(self.kind.locks.key(hash), mode, number));
            self.hashes.push(hash);
        }
        let Some(&first) = self.hashes.first() else { return Ok(Presence::Here(())) };
        let is_asked = self.ahead.is_next(first, keys.get(0).table);
        if !is_asked && keys.len() >= TOGETHER_MIN {
            self.ahead.find_all(&self.kind, keys, |_| {});
        }
        self.order.sort_unstable();
        slots.resize(keys.len(), 0);
        let discipline = std::mem::replace(&mut self.locks.discipline, Discipline::Declared);
        let taken: Result<(), TxError> = self.order.iter().try_for_each(|ordered| {
            let name = self.kind.locks.key(self.hashes[ordered.number()]);
            let held = self.locks.take_next(&self.kind.locks, name, ordered.mode(), may_wait)?;
            slots[ordered.number()] = held as u32;
            Ok(())
        });
        self.locks.discipline = discipline;
        taken?;
        // Keys with different words are different keys.
        let are_new = self.slots.is_empty()
            && self.order.windows(2).all(|two| two[0].word() != two[1].word());
        for (number, place) in slots.iter_mut().enumerate() {
            let (asked, hash) = (keys.get(number), self.hashes[number]);
            let hint = self.ahead.take(hash, asked.table, asked.key);
            let known = match are_new {
                true => None,
                false => self.slots.find(hash, asked.table, asked.key),
            };
            let slot = match known {
                Some(known) => {
                    let slot = self.slots.get_mut(known);
                    slot.mode = slot.mode.max(asked.mode);
                    known as u32
                }
                None => match self.add_slot(asked, (hash, *place as usize), hint)? {
                    Presence::Here(slot) => slot,
                    Presence::NotHere(arrival) => return Ok(Presence::NotHere(arrival)),
                },
            };
            *place = slot;
        }
        Ok(Presence::Here(()))
    }

    fn read_alone(
        &mut self,
        KindKey { table, key, mode }: KindKey<'_>,
    ) -> Result<Presence<Option<u32>>, TxError> {
        self.check(table, key)?;
        let Self { kind, locks, slots, ahead, lookups, .. } = self;
        let hash = kind.locks.hash(table, key);
        let hint = ahead.take(hash, table, key);
        let start = slots.values().len();
        let name = kind.locks.key(hash);
        let found = kind.read_unlocked((table, key), (name, hint), slots.values())?;
        Ok(found.map(|found| {
            found.map(|(UnlockedRead { tag, stamp }, place)| {
                *lookups += 1;
                let held = locks.note_read(stamp);
                slots.push((hash, table, key), (mode, held), (place, tag, start), None)
            })
        }))
    }

    fn forget(&mut self, slot: u32) -> bool {
        let is_forgotten = self.slots.forget(slot as usize);
        if is_forgotten && self.writing.as_ref().is_some_and(|it| it.slot == slot as usize) {
            self.writing = None;
        }
        is_forgotten
    }

    fn value(&mut self, slot: u32, out: &mut Vec<u8>) -> Option<u8> {
        let (tag, bytes) = self.slots.value(slot as usize)?;
        out.extend_from_slice(bytes);
        Some(tag)
    }

    fn stamp(&self, slot: u32) -> Stamp {
        self.locks.stamp(self.slots.get(slot as usize).held)
    }

    fn existed(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).existed
    }

    fn put(
        &mut self,
        slot: u32,
        value: Option<(u8, &[u8])>,
        log: &mut dyn OperationLog,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<Presence<()>, TxError> {
        if self.slots.get(slot as usize).mode == Mode::Read {
            return Err(TxError::DeclaredForReading { slot });
        }
        if let Some((_, bytes)) = value
            && bytes.len() > VALUE_BYTES_MAX
        {
            return Err(TxError::ValueTooLong { len: bytes.len() });
        }
        let large = loop {
            match self.try_put_any(slot as usize, value, log, may_wait) {
                Ok(large) => break large,
                Err(Pause::LogFull) => log.wait_for_room()?,
                Err(Pause::Refused(error)) => return Err(error),
                Err(Pause::Blocked(_)) => {}
                Err(Pause::Missing(missing)) => {
                    if let Some(arrival) = self.kind.arrival(missing)? {
                        return Ok(Presence::NotHere(arrival));
                    }
                }
            }
        };
        let before = self.slots.set(slot as usize, value, large);
        self.replaced.extend(before);
        Ok(Presence::Here(()))
    }

    fn range(
        &mut self,
        range: &KindRange<'_>,
        may_wait: &dyn Fn() -> bool,
        out: &mut RangeBatch,
    ) -> Result<Presence<()>, TxError> {
        let KindRange { table, lower, upper, is_descending } = *range;
        self.use_table(table)?;
        let mut backoff = Backoff::new();
        loop {
            out.clear();
            if is_empty(range) {
                out.is_end = true;
                break;
            }
            let place = match self.kind.pool.begin_of(range) {
                Ok(place) => place,
                Err(missing) => match self.kind.arrival(missing)? {
                    Some(arrival) => return Ok(Presence::NotHere(arrival)),
                    None => continue,
                },
            };
            let range = LeafRange { place, lower, upper, is_descending };
            match self.try_range(&range, table, may_wait, out)? {
                None => break,
                Some(Again::AtOnce) => {}
                Some(Again::After(blocked)) => {
                    let waited = (Mode::Read, &mut backoff);
                    self.locks.wait(&self.kind.locks, blocked, waited, may_wait)?;
                }
                Some(Again::Arrived(arrival)) => return Ok(Presence::NotHere(arrival)),
            }
        }
        self.lookups += 1;
        out.most = out.most.saturating_mul(2);
        Ok(Presence::Here(()))
    }

    fn touched(&self, out: &mut Vec<Stamp>) {
        self.locks.touched(out);
        if mutant!(self.has_ranged, RangeNamesNothing => false) {
            // A range depends on each change of its leaves, whoever has made it.
            self.kind.open.ends(out);
        }
    }

    fn prepare(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    fn install(&mut self, _: Stamp) {
        if self.has_changed {
            for used in &mut self.tables {
                used.table.commit(std::mem::take(&mut used.added));
            }
        }
        self.kind.note_replaced(&mut self.replaced);
    }

    fn release(&mut self, end: Option<Stamp>) {
        self.slots.clear();
        self.writing = None;
        self.replaced.clear();
        if self.lookups > 0 {
            let lookups = std::mem::take(&mut self.lookups);
            self.kind.pool.note_found(self.seat.map_or(0, |seat| seat as u64), lookups);
        }
        self.has_ranged = false;
        if std::mem::take(&mut self.has_changed) {
            self.kind.open.end(self.seat, end);
            self.tables.iter_mut().for_each(|used| used.added = 0);
        }
        self.locks.release(&self.kind.locks, end);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Who never ends a transaction keeps its place.
        if !self.has_changed {
            self.kind.open.leave(self.seat);
        }
    }
}
