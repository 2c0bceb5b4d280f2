//! The keys of one command: look up, set, delete, rename, expire.

use std::sync::Arc;

use stillpoint::{Session, Slot, Stamp, TableId, Tx, TxError};

use super::counts::KeyCounters;
use super::databases::Keyspace;
use super::deletions::Deletions;
use super::elements::{Drafting, Remains};
use super::eviction::KeyUse;
use super::kinds::{Kind, SmallLimits};
use super::open::LeftOpen;
use super::serving::{ReadyKey, Serving};
use super::value::{Entry, INDEX_BYTES, has_expiry, label_of};
use super::waiters::{WaiterId, Waiting, Wanted, Wish};
use super::watch::Watched;
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::planted::mutant;

/// Expired keys that a pass remembers for deletion. Later passes meet the others again.
const EXPIRED_MAX: usize = 256;
/// Scratch memory that an event loop keeps between commands.
const SCRATCH_KEEP: usize = 1 << 20;

/// State of one event loop for its accesses to keys.
#[derive(Debug)]
pub(crate) struct LoopKeys {
    /// Wall time of this pass, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    /// Up to where collections are small, in this pass.
    pub(crate) small: SmallLimits,
    counters: Arc<KeyCounters>,
    /// Expired keys that commands met and that wait for their deletion.
    expired: Vec<(Db, Box<[u8]>)>,
    scratch: Vec<u8>,
    /// The incarnation of the next collection that becomes a tree.
    next_incarnation: u64,
    /// Event loops of clients that were woken or served.
    wakes: Vec<usize>,
    /// The clients that the transactions of this event loop serve.
    pub(crate) serving: Serving,
    /// Whether the command that runs may leave its event loop.
    pub(crate) may_leave: bool,
    /// The draft of the command that runs, on a thread for long commands.
    pub(crate) drafting: Drafting,
    /// Number of elements that the command will visit, if the command has just left its event loop.
    elements_ahead: u64,
    /// The slot of the key that the command has left the last mark of an access at.
    touched: Option<Slot>,
    /// The state of the random numbers for marks.
    luck: u64,
    /// The collection that the calls of a group leave open.
    pub(crate) left_open: LeftOpen,
}

/// Number of visited elements from which on a command leaves its event loop.
const ELEMENTS_LONG: u64 = 8192;

/// Difference between two successive incarnations of an event loop. The difference is odd, so every
/// number comes before one repeats.
const INCARNATION_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl LoopKeys {
    /// Incarnations begin at a random number, so that no two event loops, of this start or another,
    /// give the same one.
    pub(super) fn new(counters: Arc<KeyCounters>, first_incarnation: u64) -> Self {
        Self {
            now_ms: 0,
            small: SmallLimits::DEFAULT,
            counters,
            expired: Vec::new(),
            scratch: Vec::new(),
            next_incarnation: first_incarnation,
            wakes: Vec::new(),
            serving: Serving::default(),
            may_leave: false,
            drafting: Drafting::default(),
            elements_ahead: 0,
            touched: None,
            luck: first_incarnation | 1,
            left_open: LeftOpen::default(),
        }
    }

    /// Begins a command, which may leave its event loop or not.
    pub(crate) fn begin_command(&mut self, may_leave: bool) {
        self.may_leave = may_leave;
        self.touched = None;
    }

    /// Deletes the expired keys that commands met, and expired fields of the hashes that they met.
    pub(crate) fn delete_expired(&mut self, session: &mut Session, keyspace: &Keyspace) {
        let Self { expired, counters, now_ms, .. } = self;
        if !expired.is_empty() {
            Deletions::new((keyspace, counters), expired, *now_ms).execute(session);
            expired.clear();
        }
    }

    /// The elements that a command will visit, if the command has just left its event loop.
    pub(crate) fn take_elements_ahead(&mut self) -> u64 {
        std::mem::take(&mut self.elements_ahead)
    }

    /// Ends a transaction: the clients that it has served get their replies, or wait again.
    #[inline]
    pub(crate) fn end_serving(&mut self, result: &Result<Option<Stamp>, TxError>) {
        self.serving.end(result, &mut self.wakes);
    }

    /// The event loops of clients that commands have woken or served.
    pub(crate) fn take_wakes(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.wakes)
    }

    /// An empty buffer, which the caller gives back.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.scratch);
        buffer.clear();
        buffer
    }

    /// Takes a buffer back for the next command.
    pub(crate) fn give_scratch(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(SCRATCH_KEEP);
        self.scratch = buffer;
    }
}

/// The keys that one command declared, by their number among them.
#[derive(Debug)]
pub(crate) struct Keys<'a> {
    keyspace: &'a Keyspace,
    local: &'a mut LoopKeys,
    db: Db,
    /// The slot of the command's first key; beyond 0 only inside `EXEC`.
    first_slot: u32,
}

impl<'a> Keys<'a> {
    #[inline]
    pub(crate) fn new(
        keyspace: &'a Keyspace,
        local: &'a mut LoopKeys,
        db: Db,
        first_slot: u32,
    ) -> Self {
        Self { keyspace, local, db, first_slot }
    }

    /// The keys from `slot` on, of another database.
    pub(super) fn of(&mut self, db: Db, slot: Slot) -> Keys<'_> {
        Keys { keyspace: self.keyspace, local: self.local, db, first_slot: slot.0 }
    }

    #[inline]
    pub(super) fn slot(&self, i: u32) -> Slot {
        Slot(self.first_slot + i)
    }

    pub(super) fn db(&self) -> Db {
        self.db
    }

    pub(super) fn keyspace(&self) -> &'a Keyspace {
        self.keyspace
    }

    pub(super) fn drafting(&mut self) -> &mut Drafting {
        &mut self.local.drafting
    }

    pub(super) fn take_scratch(&mut self) -> Vec<u8> {
        self.local.take_scratch()
    }

    pub(super) fn give_scratch(&mut self, buffer: Vec<u8>) {
        self.local.give_scratch(buffer);
    }

    /// The table with the nodes of the collections of the keys.
    pub(super) fn nodes_table(&self) -> TableId {
        self.keyspace.nodes_table(self.db)
    }

    /// The tables for the nodes of collections that lose their key.
    pub(super) fn remains(&self) -> Remains {
        self.keyspace.remains(self.db)
    }

    /// An incarnation that no other collection has.
    pub(super) fn next_incarnation(&mut self) -> u64 {
        let next = self.local.next_incarnation;
        let step = mutant!(INCARNATION_STEP, IncarnationReused => 0);
        self.local.next_incarnation = next.wrapping_add(step);
        next
    }

    /// The value of the `i`-th key, unless the key is missing or has expired. This is a use of the key.
    #[inline]
    pub(crate) fn lookup<'t>(
        &mut self,
        tx: &'t mut Tx<'_>,
        i: u32,
        key: &[u8],
    ) -> Option<Entry<'t>> {
        self.touch(tx, i);
        self.peek(tx, i, key)
    }

    /// Leaves a mark at the `i`-th key that it was used, if the eviction policy needs marks.
    #[inline]
    pub(super) fn touch(&mut self, tx: &mut Tx<'_>, i: u32) {
        if self.keyspace.eviction.needs_marks() && self.local.touched != Some(self.slot(i)) {
            self.leave_mark(tx, i);
        }
    }

    #[inline(never)]
    fn leave_mark(&mut self, tx: &mut Tx<'_>, i: u32) {
        let slot = self.slot(i);
        self.local.touched = Some(slot);
        let Some(mark) = tx.access(slot) else { return };
        // The memory of a deleted key may still have a mark.
        let mark = if tx.existed(slot) { mark } else { 0 };
        let luck = &mut self.local.luck;
        // Marsaglia's xorshift: good enough for a counter, and no call of the system.
        let random = || {
            *luck ^= *luck << 13;
            *luck ^= *luck >> 7;
            *luck ^= *luck << 17;
            *luck
        };
        let next = self.keyspace.eviction.mark_after(mark, self.local.now_ms, random);
        if next != mark {
            tx.set_access(slot, next);
        }
    }

    /// What the marks of the `i`-th key tell of its use.
    pub(crate) fn key_use(&self, tx: &Tx<'_>, i: u32) -> KeyUse {
        let mark = tx.access(self.slot(i)).unwrap_or(0);
        self.keyspace.eviction.key_use(mark, self.local.now_ms)
    }

    /// Bytes of memory that the record of the `i`-th key takes, its share of the index included, about.
    pub(crate) fn record_bytes(&self, tx: &Tx<'_>, i: u32) -> usize {
        tx.taken_bytes(self.slot(i)) + INDEX_BYTES
    }

    /// As [`lookup`](Self::lookup), but no use of the key.
    #[inline]
    pub(crate) fn peek<'t>(&mut self, tx: &'t mut Tx<'_>, i: u32, key: &[u8]) -> Option<Entry<'t>> {
        let entry = Entry::new(tx.value(self.slot(i))?);
        if entry.is_expired(self.local.now_ms) {
            note_expired(self.local, self.db, key);
            return None;
        }
        Some(entry)
    }

    /// Ends a run in an event loop if the command is about to visit many elements. The command has
    /// written nothing yet.
    ///
    /// # Errors
    /// The command is to run again on a thread for long commands, and must pass this on.
    pub(crate) fn leave_if_long(&mut self, elements: u64) -> CmdResult {
        if elements < ELEMENTS_LONG || !self.local.may_leave {
            return Ok(());
        }
        self.local.elements_ahead = elements;
        Err(CmdError::LEAVES)
    }

    /// Remembers a key whose value has expired, or a part of it.
    pub(super) fn met_expired(&mut self, key: &[u8]) {
        note_expired(self.local, self.db, key);
    }

    /// Notes that an element of a collection expires, and earlier than others did before.
    pub(super) fn elements_expire(&self) {
        self.local.counters.fields_expire(self.db);
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.local.now_ms
    }

    pub(super) fn left_open(&mut self) -> &mut LeftOpen {
        &mut self.local.left_open
    }

    /// Counts a use of a key that has a value.
    pub(super) fn count_hit(&self) {
        self.local.counters.count_lookup(true);
    }

    pub(super) fn small_limits(&self) -> SmallLimits {
        self.local.small
    }

    /// As [`lookup`](Self::lookup), for a value of one kind.
    ///
    /// # Errors
    /// `WRONGTYPE` for a value of another kind.
    #[inline]
    pub(crate) fn lookup_kind<'t>(
        &mut self,
        tx: &'t mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Entry<'t>>, CmdError> {
        of_kind(self.lookup(tx, i, key), kind)
    }

    /// As [`lookup`](Self::lookup), counted as a hit or a miss.
    #[inline]
    pub(crate) fn read<'t>(&mut self, tx: &'t mut Tx<'_>, i: u32, key: &[u8]) -> Option<Entry<'t>> {
        let entry = self.lookup(tx, i, key);
        self.local.counters.count_lookup(entry.is_some());
        entry
    }

    /// Whether the `i`-th key has a value, counted as a hit or a miss, and no use of the key.
    pub(crate) fn exists(&mut self, tx: &mut Tx<'_>, i: u32, key: &[u8]) -> bool {
        let exists = self.peek(tx, i, key).is_some();
        self.local.counters.count_lookup(exists);
        exists
    }

    /// As [`lookup_kind`](Self::lookup_kind), counted as a hit or a miss.
    ///
    /// # Errors
    /// `WRONGTYPE` for a value of another kind.
    #[inline]
    pub(crate) fn read_kind<'t>(
        &mut self,
        tx: &'t mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Entry<'t>>, CmdError> {
        of_kind(self.read(tx, i, key), kind)
    }

    /// Sets the `i`-th key to a value. An expiry that has passed deletes the key.
    ///
    /// # Errors
    /// The store refuses the write.
    #[inline]
    pub(crate) fn put(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        kind: Kind,
        expire_at_ms: Option<u64>,
        value: &[u8],
    ) -> Result<(), TxError> {
        self.bury(tx, i)?;
        self.touch(tx, i);
        self.replace(tx, i, kind, expire_at_ms, value)
    }

    /// As [`put`](Self::put), for a key whose collection has no nodes, or keeps them.
    ///
    /// # Errors
    /// The store refuses the write.
    #[inline]
    pub(super) fn replace(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        kind: Kind,
        expire_at_ms: Option<u64>,
        value: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.slot(i);
        self.tell_watchers(tx, slot, kind);
        let Some(at) = expire_at_ms else {
            self.count_expiry(tx, slot, false);
            return tx.put_slot_tagged(slot, kind.tag(), value);
        };
        self.put_expiring(tx, i, kind, at, value)
    }

    /// Does what comes before a write of the `i`-th key that gives it a value of that kind.
    pub(super) fn note_put(&mut self, tx: &mut Tx<'_>, i: u32, kind: Kind, expires: bool) {
        let slot = self.slot(i);
        self.touch(tx, i);
        self.tell_watchers(tx, slot, kind);
        self.count_expiry(tx, slot, expires);
    }

    fn put_expiring(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        kind: Kind,
        at: u64,
        value: &[u8],
    ) -> Result<(), TxError> {
        if at <= self.local.now_ms {
            return self.delete(tx, i);
        }
        let slot = self.slot(i);
        self.count_expiry(tx, slot, true);
        tx.put_slot_labelled(slot, label_of(kind, Some(at)), value)
    }

    /// Deletes the `i`-th key, expired or not.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn delete(&mut self, tx: &mut Tx<'_>, i: u32) -> Result<(), TxError> {
        self.bury(tx, i)?;
        self.remove(tx, i)
    }

    /// As [`delete`](Self::delete), for a key whose collection has no nodes, or whose nodes go on under
    /// another key.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(super) fn remove(&mut self, tx: &mut Tx<'_>, i: u32) -> Result<(), TxError> {
        let slot = self.slot(i);
        self.count_expiry(tx, slot, false);
        tx.delete_slot(slot)?;
        Ok(())
    }

    /// Overwrites the value of the `i`-th key, which exists, from byte `offset` on. The value
    /// grows to hold `bytes`; `offset` is at most its length.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn patch(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.slot(i);
        let skip = tx.value(slot).map_or(0, |value| Entry::new(value).skip());
        tx.patch_slot(slot, skip + offset, bytes)
    }

    /// Changes the expiry of the `i`-th key, which exists. An expiry that has passed deletes the
    /// key.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn set_expiry(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        expire_at_ms: Option<u64>,
    ) -> Result<(), TxError> {
        let slot = self.slot(i);
        let Some(value) = tx.value(slot) else {
            return Ok(());
        };
        if expire_at_ms.is_some_and(|at| at <= self.local.now_ms) {
            return self.delete(tx, i);
        }
        let entry = Entry::new(value);
        if entry.skip() == 0 {
            self.count_expiry(tx, slot, expire_at_ms.is_some());
            return tx.set_slot_deadline(slot, expire_at_ms.unwrap_or(0));
        }
        let kind = entry.kind();
        let mut bytes = self.local.take_scratch();
        entry.copy_to(&mut bytes);
        self.replace(tx, i, kind, expire_at_ms, &bytes)?;
        self.local.give_scratch(bytes);
        Ok(())
    }

    /// The observation that a client which watches the `i`-th key keeps. The key is locked for
    /// writing.
    pub(crate) fn watch(&self, tx: &mut Tx<'_>, i: u32, key: &[u8]) -> Watched {
        let missing_keys = &self.keyspace.missing_keys;
        Watched::new(missing_keys, tx, self.slot(i), (self.db, key), self.local.now_ms)
    }

    /// Tells the clients that watch a missing key that the key is made. A key that now has a value of that kind, and
    /// had none, is noted. The transaction serves the clients that wait for it at its end.
    ///
    /// If this transaction does not commit, the transactions of these clients fail without need.
    #[inline]
    fn tell_watchers(&mut self, tx: &mut Tx<'_>, slot: Slot, kind: Kind) {
        let Keyspace { missing_keys, waiters, .. } = self.keyspace;
        let (hash, now_ms) = (tx.key_hash(slot), self.local.now_ms);
        if missing_keys.may_watch(hash) || waiters.may_wait(hash) {
            let old = tx.value(slot).map(Entry::new).filter(|old| !old.is_expired(now_ms));
            let old = old.map(|old| old.kind());
            if old.is_none() {
                missing_keys.made(hash);
            }
            if old != Some(kind) && kind.is_waited_for() && waiters.may_wait(hash) {
                self.local.serving.note_ready(ReadyKey { db: self.db, slot, hash, kind });
            }
        }
    }

    /// Wakes the next client that waits for the `i`-th key, which exists. Only clients that came
    /// later than `after` count.
    pub(crate) fn wake_next(&mut self, tx: &mut Tx<'_>, i: u32, after: Option<&Waiting>) {
        let hash = tx.key_hash(self.slot(i));
        if !self.keyspace.waiters.may_wait(hash) {
            return;
        }
        let after = after.map_or(0, Waiting::place);
        self.local.wakes.extend(self.keyspace.waiters.wake(hash, after));
    }

    /// Whether a client that waits for the `i`-th key leaves it to one that came before, and is awake.
    pub(crate) fn gives_way(&self, tx: &Tx<'_>, i: u32, waiting: &Waiting) -> bool {
        waiting.gives_way(tx.key_hash(self.slot(i)))
    }

    /// Makes a client wait for any of the first of its keys.
    pub(crate) fn wait_for<'k>(
        &self,
        tx: &mut Tx<'_>,
        keys: impl Iterator<Item = &'k [u8]>,
        (wanted, resp3): (Wanted, bool),
        id: WaiterId,
    ) -> Waiting {
        let keys = self.with_hashes(tx, keys);
        self.keyspace.waiters.enter(id, Wish { keys, wanted, resp3 })
    }

    /// Makes a client whose keys have moved wait for them where they are now.
    pub(crate) fn wait_elsewhere<'k>(
        &self,
        tx: &Tx<'_>,
        keys: impl Iterator<Item = &'k [u8]>,
        waiting: &mut Waiting,
    ) {
        waiting.move_to(self.with_hashes(tx, keys));
    }

    /// The first of the keys, with their hashes.
    fn with_hashes<'k>(
        &self,
        tx: &Tx<'_>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Vec<(u64, Box<[u8]>)> {
        let hash = |(i, key)| (tx.key_hash(self.slot(i)), Box::from(key));
        (0..).zip(keys).map(hash).collect()
    }

    /// Whether the `i`-th key has a value of that kind. This is no use of the key.
    pub(crate) fn has_kind(&self, tx: &mut Tx<'_>, i: u32, kind: Kind) -> bool {
        let entry = tx.value(self.slot(i)).map(Entry::new);
        entry.is_some_and(|entry| !entry.is_expired(self.local.now_ms) && entry.kind() == kind)
    }

    /// The slot of a key of the same database that the transaction has declared for clients that wait.
    pub(crate) fn target_for_waiters(&self, key: &[u8]) -> Option<Slot> {
        self.local.serving.target(self.keyspace.table(self.db), key)
    }

    /// Keeps the count of keys with an expiry.
    #[inline]
    fn count_expiry(&mut self, tx: &mut Tx<'_>, slot: Slot, will_have: bool) {
        let has = tx.value(slot).is_some_and(|old| has_expiry(&old));
        if has != will_have {
            self.local.counters.expiring_changed(self.db, if will_have { 1 } else { -1 });
        }
    }
}

fn note_expired(local: &mut LoopKeys, db: Db, key: &[u8]) {
    if local.expired.len() < EXPIRED_MAX {
        local.expired.push((db, key.into()));
    }
}

/// The value, if it is of that kind.
#[inline]
fn of_kind(entry: Option<Entry<'_>>, kind: Kind) -> Result<Option<Entry<'_>>, CmdError> {
    match entry {
        Some(entry) if entry.kind() != kind => Err(CmdError::WRONG_TYPE),
        entry => Ok(entry),
    }
}
