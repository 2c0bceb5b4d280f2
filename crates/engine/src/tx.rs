//! A running transaction in its body's view, for tables of all kinds.

mod on_all;

use std::mem::ManuallyDrop;
use std::ops::RangeBounds;

use stillpoint_format::Label;
use stillpoint_format::log::WritesDigest;
use stillpoint_store::{Mode, Slot, Stamp, TableId, TxError, ValueRef};

use crate::call::Call;
use crate::inputs::Inputs;
use crate::kinds::{KeyLocation, PartsOf};
use crate::range::Range;

/// A running transaction. Reads see the transaction's own writes; nobody else sees the writes
/// before the commit.
pub struct Tx<'t> {
    memory: stillpoint_store::Tx<'t>,
    /// The parts of other kinds of tables in the transaction. `None` if all its keys are in memory.
    parts: Option<PartsOf<'t>>,
    /// The inputs of the transaction, if its keys are declared.
    inputs: Option<&'t mut Inputs>,
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl<'t> Tx<'t> {
    #[inline]
    pub(crate) fn new(memory: stillpoint_store::Tx<'t>) -> Self {
        Self { memory, parts: None, inputs: None }
    }

    /// As [`new`](Self::new). No drop looks for parts, which this transaction does not have.
    #[inline]
    pub(crate) fn in_memory(memory: stillpoint_store::Tx<'t>) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self::new(memory))
    }

    /// A transaction that may touch tables of all kinds.
    pub(crate) fn on_all(memory: stillpoint_store::Tx<'t>, parts: PartsOf<'t>) -> Self {
        Self { memory, parts: Some(parts), inputs: None }
    }

    /// The same transaction as a call with these inputs.
    pub(crate) fn with_inputs<'i>(&'i mut self, inputs: &'i mut Inputs) -> Tx<'i> {
        let parts = self.parts.as_deref_mut().map(PartsOf::Run);
        Tx { memory: self.memory.reborrow(), parts, inputs: Some(inputs) }
    }

    /// Whether all keys of the transaction are in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.parts.is_none()
    }

    /// Whether the transaction has written anything, or may have written to a table of another kind.
    pub(crate) fn may_have_written(&self) -> bool {
        self.memory.has_written()
            || self.parts.as_ref().is_some_and(|parts| parts.may_have_written())
    }

    /// Forgets all writes, for another run. Call this only if all keys are in memory.
    pub(crate) fn discard_writes(&mut self) {
        self.memory.discard_writes();
    }

    /// The call as the log of the commit gets it.
    pub(crate) fn encoded_call(&mut self) -> &mut Vec<u8> {
        self.memory.call()
    }

    /// Wall clock in milliseconds since the Unix epoch, the same during the whole run. An input of the
    /// call, which a log of calls keeps.
    ///
    /// # Errors
    /// [`TxError::NoCall`] in a transaction without declared keys.
    pub fn time_ms(&mut self) -> Result<u64, TxError> {
        self.inputs.as_mut().and_then(|inputs| inputs.time_ms()).ok_or(TxError::NoCall)
    }

    /// A random number. The seed of a call's numbers is an input of the call, which a log of calls
    /// keeps. Not for secrets.
    ///
    /// # Errors
    /// As [`time_ms`](Self::time_ms).
    pub fn random(&mut self) -> Result<u64, TxError> {
        self.inputs.as_mut().and_then(|inputs| inputs.random()).ok_or(TxError::NoCall)
    }

    #[inline]
    fn takes_digest(&self) -> bool {
        self.inputs.as_ref().is_some_and(|inputs| inputs.takes_digest)
    }

    /// Notes a write of a call, or that the write has failed. What a call does after a failure may
    /// depend on memory or space, and a log of calls has neither.
    #[inline]
    fn note_write(&mut self, slot: Slot, failed: bool, add: impl FnOnce(&mut WritesDigest, u64)) {
        if failed {
            return self.depends_on_more();
        }
        let hash = self.key_hash(slot);
        if let Some(inputs) = &mut self.inputs {
            add(&mut inputs.digest, hash);
        }
    }

    /// Notes that a call depends on something that a log of calls does not have.
    #[cold]
    fn depends_on_more(&self) {
        if let Some(inputs) = &self.inputs {
            inputs.depends_on_more.set(true);
        }
    }

    /// Makes the log name this call besides the transaction's writes.
    pub(crate) fn carry(&mut self, call: &Call) -> Result<(), TxError> {
        let encoded = self.memory.call();
        // A run without locks may have failed before.
        encoded.clear();
        call.encode(encoded)
    }

    /// Lets this transaction use memory beyond the limit, from here to its end. The permission is
    /// for small writes that must go on at full memory, such as an expiry or a rename. Such writes
    /// are refused only when the reserve is used up, too. The reserve is a sixteenth of the limit,
    /// but at least 16 MiB and at most 1 GiB.
    pub fn use_reserve(&mut self) {
        self.memory.use_reserve();
    }

    /// Refuses `bytes` more bytes of values if it is already clear that they do not fit. Ask before
    /// you build a long value.
    ///
    /// # Errors
    /// [`TxError::Memory`]: the store, the writes of this transaction and those bytes exceed the
    /// limit.
    pub fn check_room(&self, bytes: usize) -> Result<(), TxError> {
        self.memory.check_room(bytes).inspect_err(|_| self.depends_on_more())
    }

    // ── keys by slot: declared ones, and those found with `key` ──

    /// The value of a declared key.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn value(&mut self, slot: Slot) -> Option<ValueRef<'_>> {
        match self.parts {
            None => self.memory.value(slot),
            Some(_) => self.value_on_all(slot),
        }
    }

    /// Stamp of the last writer of the key, or of its removal, before this transaction.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn stamp(&self, slot: Slot) -> Stamp {
        self.depends_on_more();
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.stamp(slot),
            KeyLocation::Part(part, slot) => self.part(part).stamp(slot),
        }
    }

    /// The hash of the key and its table, keyed by the store's seed.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn key_hash(&self, slot: Slot) -> u64 {
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.key_hash(slot),
            KeyLocation::Part(..) => self.parts.as_ref().map_or(0, |parts| parts.key_hash(slot)),
        }
    }

    /// The access mark of the key: what was [set](Self::set_access) last, 0 for nothing. `None` if the
    /// engine [keeps](crate::Engine::keep_accesses) no marks, if the store has nothing of the key, or if
    /// its table is of another kind.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn access(&self, slot: Slot) -> Option<u32> {
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.access(slot),
            KeyLocation::Part(..) => None,
        }
    }

    /// Bytes of memory that the record of the key takes before this transaction. Its share of the index
    /// is not among them. Gives 0 if the store has nothing of the key, or if its table is of another
    /// kind.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn taken_bytes(&self, slot: Slot) -> usize {
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.taken_bytes(slot),
            KeyLocation::Part(..) => 0,
        }
    }

    /// Sets the access mark of the key, at once and whatever becomes of the transaction. Marks are for
    /// choices such as what a cache gives up. They are no data: no log and no checkpoint has them, and
    /// another thread's mark may take the place of this one.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn set_access(&mut self, slot: Slot, mark: u32) {
        if let KeyLocation::Memory(slot) = self.place(slot) {
            self.memory.set_access(slot, mark);
        }
    }

    /// Whether the key had a value before this transaction. A large transaction without declared keys forgets
    /// what it has put or deleted by the key itself. If it asks for the slot after that, the slot knows the key
    /// as it was then.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn existed(&self, slot: Slot) -> bool {
        match self.place(slot) {
            KeyLocation::Memory(slot) => self.memory.existed(slot),
            KeyLocation::Part(part, slot) => self.part(part).existed(slot),
        }
    }

    /// Gives the key a value, with tag 0.
    ///
    /// # Errors
    /// As [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot(&mut self, slot: Slot, value: &[u8]) -> Result<(), TxError> {
        self.put_slot_tagged(slot, 0, value)
    }

    /// Gives the key a value with a tag. A tag is a byte for the program's own use, such as a type.
    /// The tag is stored with the value, and [`ValueRef::tag`] reads it.
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; [`TxError::Memory`] if what this transaction writes does not fit;
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn put_slot_tagged(&mut self, slot: Slot, tag: u8, value: &[u8]) -> Result<(), TxError> {
        let put = match self.parts {
            None => self.memory.put_slot_tagged(slot, tag, value),
            Some(_) => self.put_on_all(slot, tag, value),
        };
        if self.takes_digest() {
            self.note_write(slot, put.is_err(), |to, hash| to.put(hash, tag, value));
        }
        put
    }

    /// Gives the key a value with a tag and a deadline. A deadline is a number for the program's own use,
    /// such as the time at which a record expires, 0 for none. The engine deletes nothing: whoever reads
    /// asks [`ValueRef::deadline`]. Checkpoints, logs, dumps and restores keep the deadline. A later put
    /// without one takes it away, and a patch keeps it.
    ///
    /// # Errors
    /// As [`put_slot_tagged`](Self::put_slot_tagged). [`TxError::NoDeadlines`] for a deadline in a table
    /// of another kind than the memory store.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn put_slot_labelled(
        &mut self,
        slot: Slot,
        label: Label,
        value: &[u8],
    ) -> Result<(), TxError> {
        if label.deadline == 0 {
            return self.put_slot_tagged(slot, label.tag, value);
        }
        let KeyLocation::Memory(in_memory) = self.place(slot) else {
            return Err(TxError::NoDeadlines(self.kind_of(slot)));
        };
        self.note_memory_write();
        let put = self.memory.put_slot_labelled(in_memory, label, value);
        if self.takes_digest() {
            self.note_write(slot, put.is_err(), |to, hash| to.put(hash, label, value));
        }
        put
    }

    /// Whether key `to` can [share](Self::share_slot) the value of key `from`: a large one that the
    /// transaction has not changed, of the same table in memory. The log of the transaction is none of
    /// calls.
    ///
    /// # Panics
    /// If the transaction has no such slots.
    pub fn can_share_slot(&self, from: Slot, to: Slot) -> bool {
        match (self.place(from), self.place(to)) {
            (KeyLocation::Memory(from), KeyLocation::Memory(to)) => {
                !self.takes_digest() && self.memory.can_share_slot(from, to)
            }
            _ => false,
        }
    }

    /// Gives key `to` the value of key `from`, and this label. Both share the blocks of the value, which is
    /// not copied in memory. The journal gets the value. Delete `from` in the same transaction: blocks that two
    /// records share are counted once, and a start has memory for each. Returns false if they
    /// [cannot](Self::can_share_slot): then nothing has changed, and the caller puts a copy.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if `to` is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slots.
    pub fn share_slot(&mut self, from: Slot, to: Slot, label: Label) -> Result<bool, TxError> {
        match (self.place(from), self.place(to)) {
            (KeyLocation::Memory(source), KeyLocation::Memory(target)) if !self.takes_digest() => {
                self.note_memory_write();
                self.memory.share_slot(source, target, label)
            }
            _ => Ok(false),
        }
    }

    /// Gives the key another deadline, 0 for none. The value stays, and the journal gets the deadline
    /// alone. A large value shares its blocks with the one before.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value. [`TxError::NoDeadlines`] in a table of
    /// another kind than the memory store. Else as [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn set_slot_deadline(&mut self, slot: Slot, deadline: u64) -> Result<(), TxError> {
        let KeyLocation::Memory(in_memory) = self.place(slot) else {
            return Err(TxError::NoDeadlines(self.kind_of(slot)));
        };
        self.note_memory_write();
        let set = self.memory.set_slot_deadline(in_memory, deadline);
        if self.takes_digest() {
            self.note_write(slot, set.is_err(), |to, hash| to.until(hash, deadline));
        }
        set
    }

    /// Overwrites a range of the key's value. The range must begin inside the value or at its end,
    /// and may make the value longer. The journal gets the range, not the value.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value or the value ends before `offset`;
    /// else as [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn patch_slot(&mut self, slot: Slot, offset: usize, bytes: &[u8]) -> Result<(), TxError> {
        let patched = match self.parts {
            None => self.memory.patch_slot(slot, offset, bytes),
            Some(_) => self.patch_on_all(slot, offset, bytes),
        };
        if self.takes_digest() {
            self.note_write(slot, patched.is_err(), |to, hash| to.patch(hash, offset, bytes));
        }
        patched
    }

    /// Replaces `removed` bytes of the key's value, from `offset` on, by `bytes`. The journal gets
    /// the splice and not the value, unless the value is shorter than all its splices. On tables of
    /// other kinds than the memory store this is a put of the whole value.
    ///
    /// # Errors
    /// [`TxError::PatchOutsideValue`] if the key has no value or the value ends before the replaced
    /// bytes do; else as [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Panics
    /// If the transaction has no such slot.
    pub fn splice_slot(
        &mut self,
        slot: Slot,
        offset: usize,
        removed: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        if let KeyLocation::Memory(in_memory) = self.place(slot) {
            let spliced = self.memory.splice_slot(in_memory, offset, removed, bytes);
            self.note_memory_write();
            if self.takes_digest() {
                let add = |to: &mut WritesDigest, hash| to.splice(hash, offset, removed, bytes);
                self.note_write(slot, spliced.is_err(), add);
            }
            return spliced;
        }
        let Some(value) = self.value(slot) else {
            return Err(TxError::PatchOutsideValue { offset, len: 0 });
        };
        let (tag, mut whole) = (value.tag(), value.to_vec());
        if removed > whole.len() || offset > whole.len() - removed {
            let len = whole.len();
            return Err(TxError::PatchOutsideValue { offset: offset + removed, len });
        }
        whole.splice(offset..offset + removed, bytes.iter().copied());
        self.put_slot_tagged(slot, tag, &whole)
    }

    /// Removes the key's value. Returns whether the key had a value.
    ///
    /// # Errors
    /// [`TxError::DeclaredForReading`] if the key is not locked for writing.
    ///
    /// # Panics
    /// If the transaction has no such slot.
    #[inline]
    pub fn delete_slot(&mut self, slot: Slot) -> Result<bool, TxError> {
        let deleted = match self.place(slot) {
            KeyLocation::Memory(slot) => {
                self.note_memory_write();
                self.memory.delete_slot(slot)
            }
            KeyLocation::Part(part, slot) => self.in_parts().delete(part, slot),
        };
        if self.takes_digest() {
            self.note_write(slot, deleted.is_err(), |to, hash| to.delete(hash));
        }
        deleted
    }

    // ── keys found on the way ──

    /// Locks a key and returns its slot. A transaction with declared keys can lock only these.
    ///
    /// # Errors
    /// [`TxError::NotDeclared`] or [`TxError::DeclaredForReading`] in a transaction with declared
    /// keys. [`TxError::Conflict`], which the body must return: the transaction is tried again.
    /// [`TxError::NoSuchTable`], [`TxError::KeyTooLong`], [`TxError::KeysTooLong`];
    /// [`TxError::Memory`] and [`TxError::IndexFull`] if a missing key finds no room.
    #[inline]
    pub fn key(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<Slot, TxError> {
        let slot = self.met_key(table, key, mode)?;
        if let Some(parts) = &mut self.parts {
            parts.give_out(slot);
        }
        Ok(slot)
    }

    /// As [`key`](Self::key). The slot may be forgotten when the next key is locked.
    #[inline]
    fn met_key(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<Slot, TxError> {
        match self.parts {
            None => self.memory.key(table, key, mode),
            Some(_) => self.key_on_all(table, key, mode),
        }
    }

    /// Locks a key that only holders of the lock of `parent` ever lock, and returns its slot. The
    /// lock is exclusive if that of `parent` is. A transaction with declared keys may find such
    /// keys on the way: no cycle of waits goes through them. Both keys are in tables in memory. A
    /// new record has room for a value of `value_len` bytes.
    ///
    /// # Errors
    /// [`TxError::NotLocked`] if `parent` was read without its lock: pass it on, and the transaction
    /// runs again with the lock. Or call [`read_under`](Self::read_under). [`TxError::NotLoaded`] if the record is on the disk: pass it on, too. The
    /// transaction gives its locks back, loads the record, and runs again. [`TxError::NoKeysUnder`] if
    /// `parent` is not in memory. Else as for [`key`](Self::key), but never [`TxError::NotDeclared`].
    ///
    /// # Panics
    /// If the transaction has no slot `parent`.
    pub fn key_under(
        &mut self,
        parent: Slot,
        table: TableId,
        key: &[u8],
        value_len: usize,
    ) -> Result<Slot, TxError> {
        // A log of calls has the declared keys alone, by which a replay orders its calls.
        self.depends_on_more();
        let KeyLocation::Memory(in_memory) = self.place(parent) else {
            return Err(TxError::NoKeysUnder(self.kind_of(parent)));
        };
        let parent = in_memory;
        let slot = self.memory.key_under(parent, table, key, value_len)?;
        Ok(match &mut self.parts {
            None => slot,
            Some(parts) => parts.slot_in_memory(slot),
        })
    }

    /// Appends the value of a key under `parent` to `out`, where [`key_under`](Self::key_under) would lock
    /// the key. Returns whether there is a value. If `parent` was read without its lock, so is this key. Then
    /// the value belongs to what was read of `parent`, as long as every change of such a key changes its
    /// parent, too.
    ///
    /// # Errors
    /// [`TxError::NotLocked`] if `parent` has changed since it was read without its lock: pass it on, and the
    /// transaction runs again. Else as for [`key_under`](Self::key_under).
    ///
    /// # Panics
    /// If the transaction has no slot `parent`.
    pub fn read_under(
        &mut self,
        parent: Slot,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, TxError> {
        // As in `key_under`.
        self.depends_on_more();
        match self.place(parent) {
            KeyLocation::Memory(parent) => self.memory.read_under(parent, table, key, out),
            KeyLocation::Part(..) => Err(TxError::NoKeysUnder(self.kind_of(parent))),
        }
    }

    /// Whether the record of a key is in memory, or there is none. False while a store is
    /// [served and loaded](crate::Config::serve_while_loading), if the record is on the disk. Then it is
    /// loaded with the others that this run has missed, if the run ends with [`TxError::NotLoaded`]. So a
    /// run that will need many records asks for all of them before it ends.
    pub fn ask_for(&mut self, table: TableId, key: &[u8]) -> bool {
        self.memory.ask_for(table, key)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    #[inline]
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<ValueRef<'_>>, TxError> {
        let slot = self.met_key(table, key, Mode::Read)?;
        Ok(self.value(slot))
    }

    /// The records of a range of an [ordered](crate::Kind::Ordered), [paged](crate::Kind::Paged) or
    /// [SIREN](crate::Kind::Siren) table, in the ascending order of their keys. Keys are ordered bytewise.
    /// No other transaction adds, changes or removes a record of the part that was read before this
    /// transaction has ended. The transaction's own writes are seen.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// # let scores = engine.table_with("scores", stillpoint::Kind::Ordered)?;
    /// # let mut session = engine.session()?;
    /// session.transact(|tx| {
    ///     for score in [300u32, 100, 200] {
    ///         tx.put(scores, &score.to_be_bytes(), b"somebody")?;
    ///     }
    ///     let mut best = tx.range_descending(scores, ..)?;
    ///     let (key, _) = best.next_record()?.expect("three records");
    ///     assert_eq!(key, 300u32.to_be_bytes());
    ///     Ok(())
    /// })?;
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TxError::RangeDeclared`] in a transaction with declared keys. [`TxError::NoSuchTable`],
    /// [`TxError::NotOrdered`]. [`TxError::WaitsForItself`] as for [`Session::transact`].
    ///
    /// [`Session::transact`]: crate::Session::transact
    pub fn range<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<Range<'_>, TxError> {
        if let Some(kind) = self.parts.as_ref().and_then(|parts| parts.kinds.of(table)) {
            return Ok(Range::in_part(self.in_parts(), (kind, table), &bounds, false));
        }
        self.refuse_parts(table)?;
        self.memory.range(table, bounds).map(Range::in_memory)
    }

    /// As [`range`](Self::range), from the greatest key down.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn range_descending<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<Range<'_>, TxError> {
        if let Some(kind) = self.parts.as_ref().and_then(|parts| parts.kinds.of(table)) {
            return Ok(Range::in_part(self.in_parts(), (kind, table), &bounds, true));
        }
        self.refuse_parts(table)?;
        self.memory.range_descending(table, bounds).map(Range::in_memory)
    }

    /// Number of records in a range of an ordered table. Takes logarithmic time, and time for each record
    /// that the transaction itself has added or removed. No other transaction adds or removes a record of
    /// the table before this transaction has ended.
    ///
    /// # Errors
    /// As [`range`](Self::range). [`TxError::Conflict`], which the body must return: the transaction is
    /// tried again.
    pub fn count<'k>(
        &mut self,
        table: TableId,
        bounds: impl RangeBounds<&'k [u8]>,
    ) -> Result<u64, TxError> {
        self.refuse_parts(table)?;
        self.memory.count(table, bounds)
    }

    /// The key of the record of this number in an ordered table, counted from 0 in the order of keys.
    /// `None` if the table has fewer records. Time and locks are those of [`count`](Self::count).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// # let names = engine.table_with("names", stillpoint::Kind::Ordered)?;
    /// # let mut session = engine.session()?;
    /// session.transact(|tx| {
    ///     for name in ["cleo", "anna", "bert"] {
    ///         tx.put(names, name.as_bytes(), b"")?;
    ///     }
    ///     assert_eq!(tx.nth(names, 1)?.as_deref(), Some(&b"bert"[..]));
    ///     assert_eq!(tx.count(names, ..&b"c"[..])?, 2);
    ///     Ok(())
    /// })?;
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub fn nth(&mut self, table: TableId, number: u64) -> Result<Option<Vec<u8>>, TxError> {
        self.refuse_parts(table)?;
        self.memory.nth(table, number)
    }

    /// Refuses a range of a table of another kind. Notes locks of such tables, which the holder of the
    /// store's permit may wait for.
    fn refuse_parts(&mut self, table: TableId) -> Result<(), TxError> {
        let Some(parts) = &self.parts else { return Ok(()) };
        if parts.kinds.of(table).is_some() {
            return Err(TxError::NotOrdered(table));
        }
        if parts.holds_locks {
            self.memory.note_locks();
        }
        Ok(())
    }

    /// Gives a key a value, with tag 0.
    ///
    /// # Errors
    /// As [`put_tagged`](Self::put_tagged).
    #[inline]
    pub fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), TxError> {
        self.put_tagged(table, key, 0, value)
    }

    /// Gives a key a value with a tag; see [`put_slot_tagged`](Self::put_slot_tagged).
    ///
    /// # Errors
    /// [`TxError::ValueTooLong`]; those of [`key`](Self::key).
    #[inline]
    pub fn put_tagged(
        &mut self,
        table: TableId,
        key: &[u8],
        tag: u8,
        value: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.met_key(table, key, Mode::Write)?;
        self.put_slot_tagged(slot, tag, value)
    }

    /// Gives a key a value with tag 0 and a deadline; see [`put_slot_labelled`](Self::put_slot_labelled).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// # let sessions = engine.table("sessions")?;
    /// # let mut session = engine.session()?;
    /// session.transact(|tx| tx.put_until(sessions, b"anna", b"token", 1_800_000_000))?;
    /// session.transact(|tx| tx.set_deadline(sessions, b"anna", 1_800_000_060))?;
    /// session.transact(|tx| {
    ///     let value = tx.get(sessions, b"anna")?.expect("was put");
    ///     assert_eq!((value.to_vec(), value.deadline()), (b"token".to_vec(), Some(1_800_000_060)));
    ///     Ok(())
    /// })?;
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put_slot_labelled`](Self::put_slot_labelled) and [`key`](Self::key).
    pub fn put_until(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        deadline: u64,
    ) -> Result<(), TxError> {
        self.put_labelled(table, key, Label { tag: 0, deadline }, value)
    }

    /// Gives a key a value with a tag and a deadline; see
    /// [`put_slot_labelled`](Self::put_slot_labelled).
    ///
    /// # Errors
    /// As [`put_slot_labelled`](Self::put_slot_labelled) and [`key`](Self::key).
    pub fn put_labelled(
        &mut self,
        table: TableId,
        key: &[u8],
        label: Label,
        value: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.met_key(table, key, Mode::Write)?;
        self.put_slot_labelled(slot, label, value)
    }

    /// Gives a key another deadline; see [`set_slot_deadline`](Self::set_slot_deadline).
    ///
    /// # Errors
    /// As [`set_slot_deadline`](Self::set_slot_deadline) and [`key`](Self::key).
    pub fn set_deadline(
        &mut self,
        table: TableId,
        key: &[u8],
        deadline: u64,
    ) -> Result<(), TxError> {
        let slot = self.met_key(table, key, Mode::Write)?;
        self.set_slot_deadline(slot, deadline)
    }

    /// Overwrites a range of a key's value; see [`patch_slot`](Self::patch_slot).
    ///
    /// # Errors
    /// As [`key`](Self::key) and [`patch_slot`](Self::patch_slot).
    #[inline]
    pub fn patch(
        &mut self,
        table: TableId,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.met_key(table, key, Mode::Write)?;
        self.patch_slot(slot, offset, bytes)
    }

    /// Removes a key's value. Returns whether the key had a value.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    #[inline]
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<bool, TxError> {
        let slot = self.met_key(table, key, Mode::Write)?;
        self.delete_slot(slot)
    }
}
