//! How a change enters a record. Commits, loads and replays all take this one way.
//!
//! ```text
//! prepare finds memory and may fail ──▶ the log takes the commit ──▶ install cannot fail
//! ```
//! What `prepare` finds:
//!
//! | change | state of the record | memory |
//! |---|---|---|
//! | put | the cell has room for the value | none |
//! | put | the cell is too small | a larger cell, which replaces the old one in the index |
//! | put | a value, and the cell is far too large | a smaller cell, which replaces the old one |
//! | put | the value is too long for any cell | blocks of a large value |
//! | share | any | none, or a table of blocks with the same chunks |
//! | patch | the value is in the cell | none |
//! | patch | the value is large | a table of blocks that shares the untouched chunks |
//! | deadline | the value is in the cell | none |
//! | deadline | the value is large | a table of blocks that shares all chunks, and has the deadline |
//! | delete | any | none |
//!
//! A load has no log, so [`apply`] takes both steps at once.
//!
//! In a cell of several copies the write rule says which copies change. Such a cell is replaced only
//! if the key has no value and nobody needs the copies any more. The larger cell does not get them.
//! Where a cell must not be replaced, blocks of a large value take the value.

use stillpoint_format::{Label, Stamp};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use stillpoint_sync::lock_word::{self, Priority};
use stillpoint_txn::MemoryLimit;

use crate::memory::Memory;
use crate::memory::arena::{CellCache, Kind};
use crate::memory::blob::{self, Blob};
use crate::memory::cell::{Cell, INLINE_VALUE_BYTES_MAX, Record, live_copy};
use crate::memory::value::ValueRef;
use crate::phase::PhaseWord;
use crate::rules::{Claim, WriteRule, second_copy, status};
use crate::table::Table;

/// A change of one record. `R` gives the changed ranges of a patch.
#[derive(Clone, Copy, Debug)]
pub enum RecordChange<'a, R> {
    /// The key has this value from now on.
    Put {
        /// Tag and deadline of the value.
        label: Label,
        /// The value.
        value: &'a [u8],
    },
    /// The key has no value from now on.
    Delete,
    /// The key has the large value of another key, whose blocks both share, and this label.
    Share {
        /// Tag and deadline of the value.
        label: Label,
        /// The value of the other key.
        value: ValueRef<'a>,
    },
    /// Ranges of the value change, in this order.
    Patch(R),
    /// Ranges of the value change, in this order, perhaps none. The key has another deadline.
    Until {
        /// The deadline, 0 for none.
        deadline: u64,
        /// The ranges.
        ranges: R,
    },
}

impl<R> RecordChange<'_, R> {
    /// What the change adds to the number of records with a value.
    #[inline]
    pub(crate) fn added_records(&self, was_absent: bool) -> i64 {
        i64::from(was_absent) - i64::from(matches!(self, Self::Delete))
    }
}

/// The changed ranges of a patch, as pairs of an offset and bytes. A range begins inside the value
/// or at its end. A range that reaches beyond the end makes the value longer.
pub(crate) trait Ranges<'a>: Copy {
    fn ranges(self) -> impl Iterator<Item = (usize, &'a [u8])>;
}

impl<'a> Ranges<'a> for &'a [(usize, &'a [u8])] {
    #[inline]
    fn ranges(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.iter().copied()
    }
}

/// Memory that a change needs beyond its cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepared {
    /// A large value and its label.
    Large(Blob, Label),
    /// Blocks for a large value, still to be filled, and the value's label.
    Blocks(Blob, Label),
    /// A cell of another size for the key. The index does not name the cell yet.
    Cell(u64),
}

/// A cell to make for a key.
#[derive(Clone, Copy)]
pub(crate) struct NewCell<'a> {
    pub(crate) table: &'a Table,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// Bytes of value, deadline included, that the cell has room for.
    pub(crate) value_len: usize,
    pub(crate) kind: Kind,
    /// Priority of the transaction that holds the cell's lock; `None` for a free lock.
    pub(crate) locked_by: Option<Priority>,
    /// The status of the new cell.
    pub(crate) status: u8,
}

impl NewCell<'_> {
    /// Makes the cell: without a value, with the stamp that its table prescribes, and not in the
    /// index yet.
    pub(crate) fn make(&self, memory: &Memory, cache: &mut CellCache) -> Result<u64, MemoryLimit> {
        let (arena, owner) = (&memory.arena, self.table.owner);
        let bytes = memory.cell_bytes(self.key.len(), self.value_len);
        let number = cache.allocate(arena, owner, self.kind, bytes)?;
        let (code, block_bytes) = Cell::key_code_for(self.key);
        let block = match block_bytes {
            None => 0,
            Some(bytes) => {
                let kind = if self.kind == Kind::Lock { Kind::LockKey } else { Kind::Block };
                match cache.allocate(arena, owner, kind, bytes.next_multiple_of(8)) {
                    Ok(block) => block,
                    Err(full) => {
                        cache.free(arena, number);
                        return Err(full);
                    }
                }
            }
        };
        let lock = match self.locked_by {
            Some(priority) => lock_word::locked(code, self.status, priority),
            None => lock_word::free(code, self.status),
        };
        let stamp = self.table.floor_stamp(self.hash);
        arena.set_access(number, 0);
        Cell::new(memory, number).initialise(self.key, block, lock, stamp);
        Ok(number)
    }
}

/// Whether the cell itself has room for a change. The caller keeps all others from changing the
/// record.
#[inline]
pub(crate) fn is_enough<R>(
    memory: &Memory,
    number: u64,
    change: RecordChange<'_, R>,
    record: Record<'_>,
) -> bool {
    match change {
        RecordChange::Delete => true,
        RecordChange::Put { label, value } => {
            let (capacity, len) = (record.inline_capacity(), value.len() + label.deadline_bytes());
            // A cell made for a lock only holds no value: its memory is beyond the limit.
            let is_lock = || record.is_absent() && memory.arena.is_of_kind(number, Kind::Lock);
            let is_smaller = len + len / 2 + SPARE_BYTES < capacity;
            len <= capacity && !is_lock() && !(is_smaller && record.has_spare_room(len))
        }
        RecordChange::Patch(_) | RecordChange::Until { .. } => record.blob().is_none(),
        RecordChange::Share { .. } => false,
    }
}

/// A smaller cell replaces the cell of a shorter value if the cell has this much spare room. It is beyond one and a
/// half times the value's length. So half of a full node leaves its cell.
const SPARE_BYTES: usize = if cfg!(any(loom, shuttle)) { 8 } else { 128 };

/// Finds the memory that a change needs beyond its cell; `None` if the cell suffices. The caller
/// keeps all others from changing the record. `other` is called with a length in bytes, and makes a
/// cell of the same key with room for a value of that length. `other` is `None` if the cell must not
/// be replaced.
pub(crate) fn prepare<'a>(
    memory: &Memory,
    cache: &mut CellCache,
    number: u64,
    change: RecordChange<'a, impl Ranges<'a>>,
    record: Record<'_>,
    other: Option<impl FnOnce(&mut CellCache, usize) -> Result<u64, MemoryLimit>>,
) -> Result<Option<Prepared>, MemoryLimit> {
    if is_enough(memory, number, change, record) {
        return Ok(None);
    }
    let owner = memory.arena.owner_of(number);
    let prepared = match change {
        RecordChange::Delete => return Ok(None),
        RecordChange::Put { label, value } => {
            let len = value.len() + label.deadline_bytes();
            let is_absent = record.is_absent();
            let has_room = !is_absent && len <= record.inline_capacity();
            let was_refused = cache.was_refused;
            let other = other.filter(|_| len <= INLINE_VALUE_BYTES_MAX);
            match other.map(|other| other(cache, len)) {
                Some(Ok(number)) => Prepared::Cell(number),
                Some(Err(full)) if is_absent => return Err(full),
                _ if has_room => {
                    // The cell is too large and suffices. So a refusal is no sign that memory is missing.
                    cache.was_refused = was_refused;
                    return Ok(None);
                }
                _ => {
                    let shape = (value.len(), label.deadline);
                    Prepared::Blocks(blob::allocate(memory, cache, owner, shape)?, label)
                }
            }
        }
        RecordChange::Share { label, value } => {
            let (_, blob) = value.large_in().expect("only a large value is shared");
            Prepared::Large(share(memory, cache, owner, (blob, label.deadline))?, label)
        }
        RecordChange::Patch(ranges) => {
            let (old, label) = large_value(record);
            Prepared::Large(patch_large(memory, cache, owner, old, ranges)?, label)
        }
        RecordChange::Until { deadline, ranges } => {
            let (old, label) = large_value(record);
            let patched = patch_large(memory, cache, owner, old, ranges)?;
            let now = blob::with_deadline(memory, cache, owner, (patched, deadline));
            if patched != old {
                blob::release(memory, cache, patched);
            }
            Prepared::Large(now?, Label { deadline, ..label })
        }
    };
    Ok(Some(prepared))
}

/// Another reference to a large value, with this deadline.
fn share(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    (blob, deadline): (Blob, u64),
) -> Result<Blob, MemoryLimit> {
    debug_assert_eq!(memory.arena.owner_of(blob.table), owner, "blocks go with their table");
    if blob::deadline(memory, blob) == deadline {
        blob::retain(memory, blob);
        return Ok(blob);
    }
    blob::with_deadline(memory, cache, owner, (blob, deadline))
}

/// The large value of a record, and its label.
fn large_value(record: Record<'_>) -> (Blob, Label) {
    let blob = record.blob().expect("a change of a value in its cell needs no memory");
    (blob, record.value().expect("a large value has a label").label())
}

/// The large value after the patches. Untouched chunks are shared with the old value.
fn patch_large<'a>(
    memory: &Memory,
    cache: &mut CellCache,
    owner: u32,
    old: Blob,
    ranges: impl Ranges<'a>,
) -> Result<Blob, MemoryLimit> {
    let mut now = old;
    for (offset, bytes) in ranges.ranges() {
        let patched = blob::patched(memory, cache, owner, now, offset, bytes);
        if now != old {
            blob::release(memory, cache, now);
        }
        now = patched?;
    }
    Ok(now)
}

/// Makes the records busy before the first of them changes. A reader without locks that has seen
/// one of the new values therefore sees all of them.
#[inline]
pub(crate) fn begin_writes<'a>(records: impl Iterator<Item = Record<'a>>) {
    records.for_each(Record::begin_write);
    // Release: orders the busy stamps before the writes that follow; partner of the Acquire fence in
    // `Cell::read_optimistic`.
    fence(Release);
}

/// Puts a change into its record, which is busy, and ends the write with `stamp`. Returns the large
/// value that the record had. Once the present readers have ended, nobody can find that value any
/// more.
#[inline]
pub(crate) fn install<'a>(
    record: Record<'_>,
    change: RecordChange<'a, impl Ranges<'a>>,
    large: Option<(Blob, Label)>,
    stamp: Stamp,
) -> Option<Blob> {
    let old = record.blob();
    match (change, large) {
        (RecordChange::Delete, _) => {
            record.end_delete(stamp);
            return old;
        }
        (_, Some((blob, label))) => record.put_large(label, blob),
        (RecordChange::Put { label, value }, None) => record.put_inline(label, value),
        (RecordChange::Patch(ranges), None) => {
            for (offset, bytes) in ranges.ranges() {
                record.patch_inline(offset, bytes);
            }
        }
        (RecordChange::Until { deadline, ranges }, None) => {
            change_inline(record, deadline, ranges);
        }
        (RecordChange::Share { .. }, None) => unreachable!("blocks are prepared"),
    }
    record.end_write(stamp);
    old
}

/// Changes ranges and deadline of a value in its cell.
#[cold]
fn change_inline<'a>(record: Record<'_>, deadline: u64, ranges: impl Ranges<'a>) {
    for (offset, bytes) in ranges.ranges() {
        record.patch_inline(offset, bytes);
    }
    record.set_deadline(deadline);
}

/// A cell of several copies that is being written, by which rule, and in which phase.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) number: u64,
    pub(crate) rule: WriteRule,
    pub(crate) phase: PhaseWord,
    /// The bit that notes whether the full checkpoint under way has a key.
    pub(crate) noted: u8,
}

impl<'a> Writing<'a> {
    fn cell(&self) -> Cell<'a> {
        Cell::new(self.memory, self.number)
    }

    /// As [`install`], in a call of its own. `left` takes the replaced large values, which may be
    /// freed once the present readers have ended.
    #[inline(never)]
    pub(crate) fn install<'c>(
        self,
        change: RecordChange<'c, impl Ranges<'c>>,
        large: Option<(Blob, Label)>,
        stamp: Stamp,
        mut left: impl FnMut(Blob),
    ) {
        let cell = self.cell();
        let to = match self.rule {
            // Relaxed: the bit changes only while the store is quiesced, and this is a commit.
            WriteRule::SwitchCopies => {
                let status = lock_word::status(cell.lock().load(Relaxed));
                usize::from(status & status::NEXT_COPY != 0)
            }
            WriteRule::AlternateCopies => self.take_current(),
            _ => 0,
        };
        let second = match self.rule {
            WriteRule::WriteBoth => Some(second_copy(self.phase.epoch())),
            WriteRule::WriteAlongside => Some(self.take_current()),
            _ => None,
        };
        if self.rule == WriteRule::KeepShadow && self.phase.is_capturing() {
            self.keep_shadow(&mut left);
        }
        let (copy, live) = (cell.copy(to), live_copy(cell.stamp_word()));
        copy.copy_blob().into_iter().for_each(&mut left);
        match (change, large) {
            (RecordChange::Delete, _) => copy.put_nothing(),
            (_, Some((blob, label))) => copy.put_large(label, blob),
            (RecordChange::Put { label, value }, None) => copy.put_inline(label, value),
            (RecordChange::Share { .. }, None) => unreachable!("blocks are prepared"),
            (RecordChange::Patch(ranges) | RecordChange::Until { ranges, .. }, None) => {
                if to != live {
                    // A patch of a part keeps the rest of the newest value.
                    copy.put_copy(cell.copy(live));
                }
                for (offset, bytes) in ranges.ranges() {
                    copy.patch_inline(offset, bytes);
                }
                if let RecordChange::Until { deadline, .. } = change {
                    copy.set_deadline(deadline);
                }
            }
        }
        if let Some(second) = second {
            self.share_copy(0, second, &mut left);
        }
        if self.rule == WriteRule::WriteBoth {
            let dirty = status::dirty_in(self.phase.epoch());
            lock_word::claim(cell.lock(), dirty, dirty);
        }
        copy.end_in_copy(stamp, to, matches!(change, RecordChange::Delete));
    }

    /// The copy of the epoch's parity, once nobody else is about to write the copy.
    fn take_current(&self) -> usize {
        let (lock, epoch) = (self.cell().lock(), self.phase.epoch());
        if !Claim::of_copy(epoch).claim(lock, 0) {
            let mut backoff = Backoff::new();
            // Acquire: partner of the Release in `lock_word::claim`, by which the copier has ended.
            while lock_word::status(lock.load(Acquire)) & status::COPYING != 0 {
                backoff.wait();
            }
        }
        let (current, _) = self.rule.copies_of(epoch).expect("a rule with a current copy");
        current
    }

    /// Copies the old value to copy 1, unless the checkpoint has the record or does not want it. In a
    /// checkpoint of changes a shadow without a value stands for a deletion.
    fn keep_shadow(&self, left: &mut impl FnMut(Blob)) {
        let lock = self.cell().lock();
        let claim = Claim::of(self.phase).noting(self.noted);
        // Acquire: partner of the Release in `lock_word::claim_if`: the scan has read the value.
        if !claim.is_open(lock_word::status(lock.load(Acquire))) {
            return;
        }
        let has_value = self.cell().copy(0).copy_value().is_some();
        let is_kept = has_value || claim.has_deletions;
        if is_kept {
            self.share_copy(0, 1, left);
        }
        let shadow = if is_kept { status::SHADOW } else { 0 };
        if !claim.claim_record_with(lock, has_value, shadow) {
            // The scan was first, and has the value.
            let copy = self.cell().copy(1);
            copy.copy_blob().into_iter().for_each(left);
            copy.put_nothing();
        }
    }

    /// Makes copy `to` the value of copy `from`; blocks of a large value then have two references.
    pub(crate) fn share_copy(&self, from: usize, to: usize, left: &mut impl FnMut(Blob)) {
        let (from, to) = (self.cell().copy(from), self.cell().copy(to));
        to.copy_blob().into_iter().for_each(left);
        from.copy_blob().into_iter().for_each(|blob| blob::retain(self.memory, blob));
        to.put_copy(from);
    }
}

/// Puts a value into the prepared cell `new`, which replaces the cell `old` of the same key in the
/// index. A transaction that waits for the old cell's lock finds the cell dead and looks again. The
/// caller releases that lock and retires the old cell. Returns the large value that the key had, as
/// [`install`] does.
pub(crate) fn install_in_new_cell<'a>(
    new: Writing<'_>,
    (table, hash): (&Table, u64),
    old: u64,
    change: RecordChange<'a, impl Ranges<'a>>,
    stamp: Stamp,
) -> Option<Blob> {
    let RecordChange::Put { label, value } = change else {
        unreachable!("a cell is prepared for a whole value only");
    };
    let (memory, number) = (new.memory, new.number);
    let large = Cell::new(memory, old).record().blob();
    if let Some(mark) = memory.arena.access(old) {
        memory.arena.set_access(number, mark);
    }
    if memory.copies > 1 {
        new.install(change, None, stamp, |_| unreachable!("a new cell has no value"));
    } else {
        let record = new.cell().record();
        record.put_inline(label, value);
        record.end_write(stamp);
    }
    let replaced = table.index.replace(hash, (old, number), || Cell::new(memory, old).kill());
    debug_assert!(replaced, "the index names the cell of a key that cannot change meanwhile");
    large
}

/// Prepares and installs a change of the record in cell `number` while the store is not served.
/// Nobody reads meanwhile, so old large values are freed at once. Gives the number of the cell `other`
/// that has replaced the cell, if one has.
pub(crate) fn apply<'a>(
    memory: &Memory,
    cache: &mut CellCache,
    (number, rule, phase): (u64, WriteRule, PhaseWord),
    change: RecordChange<'a, impl Ranges<'a>>,
    stamp: Stamp,
    other: NewCell<'_>,
) -> Result<Option<u64>, MemoryLimit> {
    let record = Cell::new(memory, number).record();
    let make =
        |cache: &mut CellCache, value_len| NewCell { value_len, ..other }.make(memory, cache);
    let may_replace = record.is_absent() || rule.replaces_present_cells();
    let prepared = prepare(memory, cache, number, change, record, may_replace.then_some(make))?;
    let large = match prepared {
        Some(Prepared::Cell(new)) => {
            let place = (other.table, other.hash);
            let writing = Writing { memory, number: new, rule, phase, noted: 0 };
            if let Some(old) = install_in_new_cell(writing, place, number, change, stamp) {
                blob::release(memory, cache, old);
            }
            return Ok(Some(new));
        }
        Some(Prepared::Blocks(blob, label)) => {
            let RecordChange::Put { value, .. } = change else {
                unreachable!("blocks are prepared for a whole value only");
            };
            blob::fill(memory, blob, 0, value);
            Some((blob, label))
        }
        Some(Prepared::Large(blob, label)) => Some((blob, label)),
        None => None,
    };
    begin_writes(std::iter::once(record));
    let mut left = |blob| blob::release(memory, cache, blob);
    if memory.copies > 1 {
        let writing = Writing { memory, number, rule, phase, noted: 0 };
        writing.install(change, large, stamp, left);
    } else if let Some(old) = install(record, change, large, stamp) {
        left(old);
    }
    Ok(None)
}
