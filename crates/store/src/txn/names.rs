//! Locks of names in a transaction: gaps between keys, and numbers of records. See
//! [`ordered::locks`](crate::ordered::locks).

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_sync::lock_word::{self, Contended, Priority};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::{Mode, TableId, TxError};

use crate::memory::stamp::ABSENT;
use crate::ordered::locks::{LockTable, NAMES, NUMBERS_PER_TABLE, Name};
use crate::ordered::planted;
use crate::ordered::{AddError, GapClaim, ORDERED_KEY_BYTES_MAX, OrderedIndex};
use crate::participant::Participant;
use crate::txn::{LockState, Transaction};

/// Attempts to add a key while another transaction holds the gap. Claims of others end meanwhile.
const CLAIM_TURNS: u32 = if cfg!(shuttle) { 1 } else { 16 };

/// The locks of names that a transaction holds.
#[derive(Debug, Default)]
pub(crate) struct HeldNames {
    /// Each held name, and whether it is held exclusively.
    held: Vec<(Name, bool)>,
    /// A bit for each held name.
    bits: Vec<u64>,
    /// The tables whose ranges or numbers the transaction has read, with the owners of their slabs.
    read: Vec<(TableId, u32)>,
    /// The tables whose numbers are held.
    counted: Vec<TableId>,
    /// The newest commits that have changed these numbers, one of each table and log.
    stamps: Vec<Stamp>,
}

impl HeldNames {
    /// Whether nothing is held and nothing was read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.read.is_empty()
    }

    /// Whether a name is held.
    #[inline]
    pub(crate) fn holds_some(&self) -> bool {
        !self.held.is_empty()
    }

    /// Notes that the transaction reads ranges or numbers of this generation of a table.
    pub(crate) fn note_read(&mut self, table: TableId, owner: u32) {
        if !self.read.contains(&(table, owner)) {
            self.read.push((table, owner));
        }
    }

    /// The generations of tables whose ranges or numbers were read.
    pub(crate) fn read(&self) -> &[(TableId, u32)] {
        &self.read
    }

    /// The commits that the transaction depends on since it has counted records.
    #[inline]
    pub(crate) fn stamps(&self) -> &[Stamp] {
        &self.stamps
    }

    fn holds(&self, name: Name) -> bool {
        self.bits.get(name.at() / 64).is_some_and(|bits| bits >> (name.at() % 64) & 1 == 1)
    }

    fn note(&mut self, name: Name, is_exclusive: bool) {
        if self.bits.is_empty() {
            self.bits = vec![0; NAMES.div_ceil(64)];
        }
        self.bits[name.at() / 64] |= 1 << (name.at() % 64);
        self.held.push((name, is_exclusive));
    }

    /// Takes a share of a name, unless the transaction holds the name.
    fn share(
        &mut self,
        locks: &LockTable,
        name: Name,
        priority: Priority,
    ) -> Result<(), Contended> {
        if self.holds(name) {
            return Ok(());
        }
        lock_word::try_shared(locks.word(name), priority)?;
        self.note(name, false);
        Ok(())
    }

    /// Takes a name exclusively, also if the transaction shares it.
    fn take(&mut self, locks: &LockTable, name: Name, priority: Priority) -> Result<(), Contended> {
        if !self.holds(name) {
            lock_word::try_exclusive(locks.word(name), priority)?;
            self.note(name, true);
            return Ok(());
        }
        let held =
            self.held.iter_mut().rev().find(|(held, _)| *held == name).expect("its bit is set");
        if !held.1 {
            lock_word::try_upgrade(locks.word(name), priority)?;
            held.1 = true;
        }
        Ok(())
    }

    /// Gives everything back.
    #[cold]
    pub(crate) fn release_all(&mut self, locks: &LockTable) {
        for (name, is_exclusive) in self.held.drain(..) {
            self.bits[name.at() / 64] = 0;
            match is_exclusive {
                true => lock_word::release_exclusive(locks.word(name)),
                false => lock_word::release_shared(locks.word(name)),
            }
        }
        self.read.clear();
        self.counted.clear();
        self.stamps.clear();
    }
}

/// A name that others hold, and the oldest of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldByOthers {
    name: Name,
    by: Priority,
}

/// The gap into which a transaction adds a key.
struct AddedKey<'a> {
    names: &'a mut HeldNames,
    locks: &'a LockTable,
    hasher: KeyHasher,
    table: TableId,
    /// The gap below the added key.
    own: Name,
    priority: Priority,
    /// A gap that is claimed for the moment of the change.
    claimed: Option<Name>,
    refused: Option<HeldByOthers>,
}

impl GapClaim for AddedKey<'_> {
    fn claim(&mut self, next: Option<&[u8]>) -> bool {
        let name = Name::gap(self.hasher.hash(self.table.0, next.unwrap_or(b"")));
        let Self { names, locks, priority, .. } = self;
        let refuse = |name, Contended(by)| HeldByOthers { name, by };
        self.refused = if names.holds(name) {
            // The transaction has read the gap, so it has read both gaps that the key makes of it.
            let upper = names.take(locks, name, *priority).map_err(|by| refuse(name, by));
            let share =
                |()| names.share(locks, self.own, *priority).map_err(|by| refuse(self.own, by));
            upper.and_then(share).err()
        } else {
            let taken = lock_word::try_exclusive(locks.word(name), *priority);
            self.claimed = taken.is_ok().then_some(name);
            taken.err().map(|by| refuse(name, by))
        };
        self.refused.is_none()
    }

    fn end(&mut self) {
        if let Some(name) = self.claimed.take() {
            lock_word::release_exclusive(self.locks.word(name));
        }
    }
}

/// Keeps new readers from a lock that a writer waits for. Called in the read section that found the
/// cell.
pub(crate) fn announce(local: &Participant, cell: u64, mode: Mode, priority: Priority) {
    if mode == Mode::Write {
        lock_word::await_sharers(local.store.cell(cell).lock(), priority);
    }
}

/// Lets new readers share a lock that a writer has given up. Whoever else waits announces it anew. Called in the
/// read section that found the cell.
pub(crate) fn announce_no_longer(local: &Participant, cell: u64, mode: Mode) {
    if mode == Mode::Write {
        lock_word::await_no_longer(local.store.cell(cell).lock());
    }
}

/// Takes [`Transaction::await_name`] back. Whoever else waits notes it anew.
pub(crate) fn await_name_no_longer(local: &Participant, held: HeldByOthers) {
    lock_word::await_no_longer(local.store.lock_table().word(held.name));
}

impl Transaction {
    /// Prepares the slots that are locked exclusively for additions and removals of records in ordered
    /// tables. Shares the numbers of these tables, and adds keys without values to their indexes. Call
    /// this inside a read section. Returns what others hold, if anything.
    ///
    /// # Errors
    /// A key is too long, or an index is full.
    pub(crate) fn enter_ordered(
        &mut self,
        local: &Participant,
        slots: std::ops::Range<usize>,
    ) -> Result<Option<HeldByOthers>, TxError> {
        let Self { keys, held, names, first_key, priority, .. } = self;
        for slot in slots {
            if held[slot].state != LockState::Exclusive {
                continue;
            }
            let declared = keys.declared()[*first_key + slot];
            let table = local.tables.get(declared.table);
            let Some(ordered) = table.and_then(|table| table.ordered.as_ref()) else { continue };
            let key = keys.key(*first_key + slot);
            if key.len() > ORDERED_KEY_BYTES_MAX {
                let (len, limit) = (key.len(), ORDERED_KEY_BYTES_MAX);
                return Err(TxError::OrderedKeyTooLong { len, limit });
            }
            let locks = local.store.lock_table();
            let number = Name::number(declared.table.0, local.number);
            if let Err(Contended(by)) = names.share(locks, number, *priority) {
                return Ok(Some(HeldByOthers { name: number, by }));
            }
            if held[slot].stamp_word & ABSENT == 0 {
                continue;
            }
            let (table, hasher) = (declared.table, local.store.hasher());
            let own = Name::gap(declared.hash);
            let priority = *priority;
            let (claimed, refused) = (None, None);
            let mut gaps =
                AddedKey { names, locks, hasher, table, own, priority, claimed, refused };
            // Claims of gaps last for a moment, and shares for a transaction.
            let mut backoff = Backoff::new();
            loop {
                match ordered.add(key, &mut gaps) {
                    Ok(()) => break,
                    Err(AddError::GapLocked) if backoff.turns() < CLAIM_TURNS => backoff.wait(),
                    Err(AddError::GapLocked) => return Ok(gaps.refused),
                    Err(AddError::Full) => return Err(TxError::IndexFull(table)),
                }
            }
        }
        Ok(None)
    }

    /// Keeps further sharers from a name that a declared transaction waits for.
    pub(crate) fn await_name(&self, local: &Participant, held: HeldByOthers) {
        lock_word::await_sharers(local.store.lock_table().word(held.name), self.priority);
    }

    /// Prepares a slot of an undeclared transaction, as [`enter_ordered`](Self::enter_ordered) does. Do
    /// not call this inside a read section.
    ///
    /// # Errors
    /// Those of `enter_ordered`; a conflict.
    pub(crate) fn enter_undeclared(
        &mut self,
        local: &mut Participant,
        slot: usize,
    ) -> Result<(), TxError> {
        self.until_free(local, |transaction, local| {
            local.enter();
            let is_changed = local.tables.version > transaction.locked_version;
            let checked = if is_changed { transaction.check_tables(local) } else { Ok(()) };
            let entered = checked.and_then(|()| transaction.enter_ordered(local, slot..slot + 1));
            local.exit();
            entered
        })
    }

    /// Tries again as long as others hold a name and the transaction may wait for them.
    fn until_free(
        &mut self,
        local: &mut Participant,
        mut attempt: impl FnMut(&mut Self, &mut Participant) -> Result<Option<HeldByOthers>, TxError>,
    ) -> Result<(), TxError> {
        let mut backoff = Backoff::new();
        loop {
            let Some(held) = attempt(self, local)? else { return Ok(()) };
            let may_wait = self.may_wait_for(held.by, &backoff);
            // A claim of a gap lasts for a moment, so that everybody may spin.
            let is_refused = !may_wait && !backoff.is_spinning();
            if is_refused || local.patience.is_over(backoff.turns()) {
                await_name_no_longer(local, held);
                return Err(if is_refused { TxError::Conflict } else { TxError::WaitsForItself });
            }
            if may_wait {
                self.await_name(local, held);
            }
            backoff.wait();
        }
    }

    /// Shares the gap below the key of this hash, if others let it.
    pub(crate) fn share_free_gap(&mut self, local: &Participant, hash: u64) -> bool {
        mutant!(GapNotLocked => return true);
        let Self { names, priority, .. } = self;
        names.share(local.store.lock_table(), Name::gap(hash), *priority).is_ok()
    }

    /// Shares the gap below a key, or the one above all keys for the empty key.
    ///
    /// # Errors
    /// A conflict.
    pub(crate) fn share_gap(
        &mut self,
        local: &mut Participant,
        table: TableId,
        key: &[u8],
    ) -> Result<(), TxError> {
        mutant!(GapNotLocked => return Ok(()));
        let name = Name::gap(local.store.hash(table, key));
        self.until_free(local, |transaction, local| {
            let Self { names, priority, .. } = transaction;
            let shared = names.share(local.store.lock_table(), name, *priority);
            Ok(shared.err().map(|Contended(by)| HeldByOthers { name, by }))
        })
    }

    /// Keeps the number of a table's records as it is until the end of the transaction, and notes the
    /// commits that it comes from. `ordered` is the index of the table.
    ///
    /// # Errors
    /// A conflict.
    pub(crate) fn hold_number(
        &mut self,
        local: &mut Participant,
        table: TableId,
        ordered: &OrderedIndex,
    ) -> Result<(), TxError> {
        if self.names.counted.contains(&table) {
            return Ok(());
        }
        (0..NUMBERS_PER_TABLE).try_for_each(|part| {
            let name = Name::number(table.0, part);
            self.until_free(local, |transaction, local| {
                let Self { names, priority, .. } = transaction;
                let taken = names.take(local.store.lock_table(), name, *priority);
                Ok(taken.err().map(|Contended(by)| HeldByOthers { name, by }))
            })
        })?;
        self.names.counted.push(table);
        self.names.stamps.extend(ordered.number_stamps.all());
        Ok(())
    }
}
