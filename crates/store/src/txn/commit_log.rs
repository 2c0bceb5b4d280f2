//! The interface of a commit to the journal, which the store does not know.

use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_txn::{KeySet, LogRefused, MemoryLimit, TableId};

use crate::catalog::Tables;
use crate::memory::Memory;
use crate::memory::arena::Allowance;
use crate::memory::cell::Record;
use crate::memory::value::ValueRef;
use crate::record::{Ranges, RecordChange};
use crate::txn::LockedKey;
use crate::txn::pending::{NONE, Op, OpKind, Pending, Splices};

/// A transaction that is about to commit, with all its locks held.
#[derive(Debug)]
pub struct Commit<'a> {
    /// The epoch of the commit.
    pub epoch: u64,
    /// Stamps of every record read or overwritten. The commit's own gsn must exceed the gsns of all
    /// these stamps.
    pub touched: &'a [Stamp],
    /// The call that the transaction is, as [`Tx::call`](crate::Tx::call) got it. Empty for none.
    pub call: &'a [u8],
    /// The writes of the commit.
    pub writes: WriteSet<'a>,
}

/// A log of commits, in an order that respects their locks.
pub trait CommitLog: Send {
    /// Takes a commit and gives it a gsn above all touched stamps and above the last gsn of its
    /// log. Called inside a read section with all locks held, so it only appends to memory.
    ///
    /// # Errors
    /// [`LogRefused::NoRoom`]: nothing was appended, and the commit is tried again after
    /// [`wait_for_room`](Self::wait_for_room). Otherwise the transaction is rolled back.
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused>;

    /// Waits until a commit that found no room is worth another try. Called outside of the read
    /// section, with all locks held, so that no grace period and no phase waits with the commit.
    ///
    /// # Errors
    /// There will be no room: the transaction is rolled back.
    fn wait_for_room(&mut self) -> Result<(), LogRefused>;

    /// Encodes a long commit before the read section in which the log takes it, so that the section is
    /// short. Called outside of any read section, with all locks held. The next
    /// [`append`](Self::append) is that of this commit, or [`forget_ahead`](Self::forget_ahead) follows.
    fn encode_ahead(&mut self, commit: &Commit<'_>) {
        let _ = commit;
    }

    /// Forgets a commit that was [encoded ahead](Self::encode_ahead).
    fn forget_ahead(&mut self) {}

    /// Whether the commit of this stamp survives any crash. Records that the commit deleted may
    /// then be reclaimed.
    fn is_closed(&self, stamp: Stamp) -> bool;

    /// Whether the gsns of this log must be a serial order with what transactions have read, in a store
    /// with [`serial_gsns`](crate::StoreConfig::serial_gsns). The gsns of a replay are one already.
    fn orders_reads(&self) -> bool {
        true
    }

    /// Whether workers must collect the stamps that their answers depend on.
    fn wants_dependencies(&self) -> bool {
        false
    }
}

/// One write of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// Key.
    pub key: &'a [u8],
    /// The change of the key.
    pub change: Change<'a>,
    /// If the change puts a value, perhaps the splices that make this value of the one before. They
    /// are shorter than the value.
    pub splices: Option<Splices<'a>>,
}

/// A change of a key.
pub type Change<'a> = RecordChange<'a, Patches<'a>>;

/// Changed ranges of a value: pairs of offset and bytes. A range begins inside the value or at its
/// end, and may make the value longer.
#[derive(Clone, Copy, Debug)]
pub struct Patches<'a> {
    pending: &'a Pending,
    next: u32,
}

impl<'a> Patches<'a> {
    /// The single remaining range. `None` if there are several.
    #[inline]
    pub fn only(&self) -> Option<(usize, &'a [u8])> {
        let op = self.pending.op(self.next).filter(|op| op.next == NONE)?;
        Some((op.offset as usize, self.pending.bytes(op)))
    }
}

impl<'a> Ranges<'a> for Patches<'a> {
    #[inline]
    fn ranges(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self
    }
}

impl<'a> Iterator for Patches<'a> {
    type Item = (usize, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let op = self.pending.op(self.next)?;
        self.next = op.next;
        Some((op.offset as usize, self.pending.bytes(op)))
    }
}

impl<'a> Change<'a> {
    /// The change equal to the pending operations from `first` on.
    #[inline]
    pub(crate) fn of(memory: &'a Memory, pending: &'a Pending, first: u32) -> Self {
        let op = pending.op(first).expect("a written key has an operation");
        match op.kind {
            OpKind::Put => Self::Put { label: pending.label(op), value: pending.bytes(op) },
            OpKind::Splice => unreachable!("a splice follows a put"),
            OpKind::Delete => Self::Delete,
            OpKind::Patch => Self::Patch(Patches { pending, next: first }),
            OpKind::Share | OpKind::Until => Self::of_label(memory, pending, op),
        }
    }

    /// The change equal to an operation on label or blocks alone. In a call of its own, so that
    /// [`of`](Self::of) is inlined.
    #[cold]
    fn of_label(memory: &'a Memory, pending: &'a Pending, op: &Op) -> Self {
        if let Some(blob) = pending.shared(op) {
            let label = pending.label(op);
            return Self::Share { label, value: ValueRef::large(memory, blob, label) };
        }
        let ranges = Patches { pending, next: op.next };
        Self::Until { deadline: pending.deadline(op), ranges }
    }
}

/// The records that a transaction has locked.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a> {
    /// The locked records, from key number `first_key` on.
    pub(crate) held: &'a [LockedKey],
    pub(crate) first_key: usize,
    pub(crate) memory: &'a Memory,
}

impl std::fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locked").field("first_key", &self.first_key).finish_non_exhaustive()
    }
}

/// The writes of a transaction, in the order of its keys.
#[derive(Clone, Copy, Debug)]
pub struct WriteSet<'a> {
    pub(crate) locked: Locked<'a>,
    pub(crate) keys: &'a KeySet,
    /// Key index and first pending operation of every key written.
    pub(crate) written: &'a [(usize, u32)],
    pub(crate) pending: &'a Pending,
    pub(crate) tables: &'a Tables,
}

impl<'a> WriteSet<'a> {
    /// The writes.
    #[inline]
    pub fn iter(&self) -> Writes<'a> {
        Writes { set: *self, rest: self.written.iter(), table: None }
    }

    /// The writes, each with the value that it overwrites: `None` for a key without one. Call this
    /// before the writes are installed, while the transaction holds its locks.
    pub fn with_before_images(&self) -> impl Iterator<Item = (Write<'a>, Option<ValueRef<'a>>)> {
        let Locked { held, first_key, memory } = self.locked;
        let before =
            move |&(key, _): &(usize, u32)| Record::at(memory, held[key - first_key].place).value();
        self.iter().zip(self.written.iter().map(before))
    }

    /// The stamps of the values that the writes overwrite.
    pub fn overwritten(&self) -> impl Iterator<Item = Stamp> {
        let Locked { held, first_key, .. } = self.locked;
        self.written.iter().map(move |&(key, _)| Stamp::from_bits(held[key - first_key].stamp_word))
    }

    /// Bytes of the values that the writes overwrite, all together. Call this as
    /// [`with_before_images`](Self::with_before_images).
    pub fn overwritten_bytes(&self) -> usize {
        let Locked { held, first_key, memory } = self.locked;
        let value = |key: usize| Record::at(memory, held[key - first_key].place).value();
        self.written.iter().map(|&(key, _)| value(key).map_or(0, |value| value.len())).sum()
    }

    /// Whether the transaction only deletes.
    pub fn only_deletes(&self) -> bool {
        let deletes = |first| self.pending.op(first).is_some_and(|op| op.kind == OpKind::Delete);
        self.written.iter().all(|&(_, first)| deletes(first))
    }

    /// Refuses `bytes` more bytes for the commit's record if they exceed the memory limit. A transaction
    /// that only deletes may use the reserve, since it is about to free memory.
    ///
    /// # Errors
    /// They exceed it.
    pub fn check_room(&self, bytes: usize) -> Result<(), MemoryLimit> {
        let allowance = if self.only_deletes() { Allowance::Reserve } else { Allowance::Limit };
        self.locked.memory.arena.check_room(bytes, allowance)
    }

    /// Number of keys written.
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }
}

/// Iterator over the writes of a transaction.
#[derive(Clone, Debug)]
pub struct Writes<'a> {
    set: WriteSet<'a>,
    rest: std::slice::Iter<'a, (usize, u32)>,
    /// Table of the previous write, and its generation.
    table: Option<(TableId, u32)>,
}

impl<'a> Iterator for Writes<'a> {
    type Item = Write<'a>;

    #[inline]
    fn next(&mut self) -> Option<Write<'a>> {
        let WriteSet { keys, pending, tables, .. } = self.set;
        let &(key, first) = self.rest.next()?;
        let table = keys.declared()[key].table;
        let generation = match self.table {
            Some((known, generation)) if known == table => generation,
            _ => {
                let generation = tables.get(table).expect("checked by the commit").generation;
                self.table = Some((table, generation));
                generation
            }
        };
        let change = Change::of(self.set.locked.memory, pending, first);
        let splices = match change {
            Change::Put { .. } => pending.op(first).and_then(|op| pending.splices(op)),
            _ => None,
        };
        Some(Write { table: table.0, generation, key: keys.key(key), change, splices })
    }
}

/// A log that keeps nothing and only counts.
#[derive(Debug, Default)]
pub struct NoLog {
    gsn: u64,
}

impl NoLog {
    /// A log whose gsns begin above `floor`.
    pub fn above(floor: u64) -> Self {
        Self { gsn: floor }
    }
}

impl CommitLog for NoLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max().unwrap_or(0);
        self.gsn = self.gsn.max(touched) + 1;
        Ok(Stamp::new(self.gsn, LOG_NONE))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}
