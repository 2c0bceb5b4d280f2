//! The words that one session's transaction holds.

use stillpoint_format::Stamp;
use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::lock_word::{self, Contended, Priority};
use stillpoint_sync::{Backoff, mutant};
use stillpoint_txn::{Discipline, Lookup, Mode, TableId, TxError};

use crate::locks::{Blocked, LockTable, Name};
use crate::planted;

/// Held words up to which a search looks at each of them.
const SEARCHED: usize = 16;

#[derive(Debug)]
struct HeldLock {
    name: Name,
    is_exclusive: bool,
    has_changed: bool,
    /// The stamp of the word when it was taken.
    stamp: Stamp,
}

/// The words that a transaction holds, and how it may wait for others.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    pub(crate) priority: Priority,
    pub(crate) discipline: Discipline,
    held: Vec<HeldLock>,
    /// Numbers of held words by name. Used for more than [`SEARCHED`].
    at: Lookup,
}

impl HeldLocks {
    pub(crate) fn new() -> Self {
        Self {
            priority: Priority::DECLARED,
            discipline: Discipline::Declared,
            held: Vec::new(),
            at: Lookup::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The number of a held word.
    #[inline]
    pub(crate) fn find(&mut self, name: Name) -> Option<usize> {
        if self.held.len() <= SEARCHED {
            return self.held.iter().position(|held| held.name == name);
        }
        let Self { held, at, .. } = self;
        while at.covered() < held.len() {
            let hash = held[at.covered()].name.hash();
            at.cover(Some(hash), |number| held[number].name.hash());
        }
        at.find(name.hash(), |number| held[number].name == name)
    }

    /// The stamp of a held word when it was taken.
    #[inline]
    pub(crate) fn stamp(&self, number: usize) -> Stamp {
        self.held[number].stamp
    }

    /// Notes that a key of a held word has changed.
    pub(crate) fn note_change(&mut self, number: usize) {
        self.held[number].has_changed = true;
    }

    /// Takes a word, or makes it exclusive. Returns its number among the held ones.
    ///
    /// # Errors
    /// [`TxError::Conflict`] if the discipline allows no wait.
    #[inline]
    pub(crate) fn take(
        &mut self,
        table: &LockTable,
        name: Name,
        mode: Mode,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<usize, TxError> {
        match self.try_take(table, name, mode) {
            Ok(number) => Ok(number),
            Err(blocked) => self.wait_and_take(table, blocked, mode, may_wait),
        }
    }

    /// As [`take`](Self::take), in the order of names, after the words that are held already.
    #[inline]
    pub(crate) fn take_next(
        &mut self,
        table: &LockTable,
        name: Name,
        mode: Mode,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<usize, TxError> {
        match self.held.last() {
            Some(last) if last.name == name && (last.is_exclusive || mode == Mode::Read) => {
                Ok(self.held.len() - 1)
            }
            Some(last) if last.name >= name => self.take(table, name, mode, may_wait),
            _ => match self.try_add(table, name, mode) {
                Ok(number) => Ok(number),
                Err(blocked) => self.wait_and_take(table, blocked, mode, may_wait),
            },
        }
    }

    #[cold]
    fn wait_and_take(
        &mut self,
        table: &LockTable,
        (name, mut by): Blocked,
        mode: Mode,
        may_wait: &dyn Fn() -> bool,
    ) -> Result<usize, TxError> {
        let mut backoff = Backoff::new();
        loop {
            self.wait(table, (name, by), (mode, &mut backoff), may_wait)?;
            match self.try_take(table, name, mode) {
                Ok(number) => return Ok(number),
                Err((_, now)) => by = now,
            }
        }
    }

    /// Waits a turn for a word that another transaction holds.
    ///
    /// # Errors
    /// [`TxError::Conflict`] if the discipline allows no wait.
    pub(crate) fn wait(
        &self,
        table: &LockTable,
        (name, by): Blocked,
        (mode, backoff): (Mode, &mut Backoff),
        may_wait: &dyn Fn() -> bool,
    ) -> Result<(), TxError> {
        let is_spinning = backoff.is_spinning();
        // A claim of a stretch ends by itself.
        let may_end_soon = name.is_stretch() && is_spinning;
        let waits = may_end_soon || self.discipline.may_wait_for(self.priority, by, is_spinning);
        if !waits || !may_wait() {
            if mode == Mode::Write && backoff.turns() > 0 {
                // The sharers may stay for minutes, and others share the word meanwhile.
                lock_word::await_no_longer(table.word(name));
            }
            return Err(TxError::Conflict);
        }
        if mode == Mode::Write {
            lock_word::await_sharers(table.word(name), self.priority);
        }
        backoff.wait();
        Ok(())
    }

    /// Takes a word, or makes it exclusive, without a wait.
    #[inline]
    fn try_take(&mut self, table: &LockTable, name: Name, mode: Mode) -> Result<usize, Blocked> {
        let Some(known) = self.find(name) else { return self.try_add(table, name, mode) };
        let held = &mut self.held[known];
        if mode == Mode::Write && !held.is_exclusive {
            lock_word::try_upgrade(table.word(name), self.priority)
                .map_err(|Contended(by)| (name, by))?;
            held.is_exclusive = true;
        }
        Ok(known)
    }

    /// Takes a word that is not held yet.
    #[inline]
    fn try_add(&mut self, table: &LockTable, name: Name, mode: Mode) -> Result<usize, Blocked> {
        let word = table.word(name);
        let taken = match mode {
            Mode::Read => lock_word::try_shared(word, self.priority),
            Mode::Write => lock_word::try_exclusive(word, self.priority),
        };
        taken.map_err(|Contended(by)| (name, by))?;
        let (stamp, is_exclusive) = (table.stamp(name), mode == Mode::Write);
        self.held.push(HeldLock { name, is_exclusive, has_changed: false, stamp });
        Ok(self.held.len() - 1)
    }

    /// Notes the stamp of a word that was free during a read. Returns its number among the held ones.
    #[inline]
    pub(crate) fn note_read(&mut self, stamp: Stamp) -> usize {
        let (name, is_exclusive, has_changed) = (Name::NONE, false, false);
        self.held.push(HeldLock { name, is_exclusive, has_changed, stamp });
        self.held.len() - 1
    }

    /// Appends the stamps of all held words.
    pub(crate) fn touched(&self, out: &mut Vec<Stamp>) {
        out.extend(self.held.iter().map(|held| held.stamp).filter(|stamp| !stamp.is_none()));
    }

    /// Gives all words back. `end` is the end of a transaction that has changed something.
    pub(crate) fn release(&mut self, table: &LockTable, end: Option<Stamp>) {
        for held in self.held.drain(..) {
            if held.name == Name::NONE {
                continue;
            }
            if mutant!(held.has_changed, StampsLeft => false)
                && let Some(end) = end
            {
                table.set_stamp(held.name, end);
            }
            let word = table.word(held.name);
            match held.is_exclusive {
                true => lock_word::release_exclusive(word),
                false => lock_word::release_shared(word),
            }
        }
        if !self.at.is_empty() {
            self.at.clear();
        }
    }
}

/// The way to claim stretches for a transaction, with latches held. A claim never waits.
pub(crate) struct Claims<'t, 'h> {
    pub(crate) table: &'t LockTable,
    pub(crate) held: &'h mut HeldLocks,
}

/// A claimed stretch, until its drop.
#[derive(Debug)]
pub(crate) struct Claimed<'t>(Option<&'t AtomicU64>);

impl<'t> Claims<'t, '_> {
    /// Claims the stretch of a leaf that is latched and about to change. `new` is a page that is about to
    /// take over a part of the stretch.
    ///
    /// # Errors
    /// Another transaction shares or claims the stretch.
    pub(crate) fn claim(&mut self, page: u64, new: Option<u64>) -> Result<Claimed<'t>, Blocked> {
        let name = self.table.stretch(page);
        if self.held.find(name).is_none() {
            let word = self.table.word(name);
            mutant!(StretchUnclaimed => return Ok(Claimed(None)));
            return match lock_word::try_exclusive(word, self.held.priority) {
                Ok(()) => Ok(Claimed(Some(word))),
                Err(Contended(by)) => Err((name, by)),
            };
        }
        // The transaction has read the stretch, so it keeps it, and its part on the new page.
        self.held.try_take(self.table, name, Mode::Write)?;
        if let Some(new) = new {
            mutant!(NewStretchNotShared => return Ok(Claimed(None)));
            self.held.try_take(self.table, self.table.stretch(new), Mode::Read)?;
        }
        Ok(Claimed(None))
    }
}

impl<'t> Claims<'t, '_> {
    /// Claims the stretches of two leaves that are latched and about to become one. Who has read the right one
    /// keeps the left one from then on.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub(crate) fn claim_both(
        &mut self,
        left: u64,
        right: u64,
    ) -> Result<[Claimed<'t>; 2], Blocked> {
        let [left_name, right_name] = [left, right].map(|page| self.table.stretch(page));
        mutant!(MergesUnclaimed => return Ok([Claimed(None), Claimed(None)]));
        if left_name == right_name {
            return Ok([self.claim(left, None)?, Claimed(None)]);
        }
        let keeps = mutant!(self.held.find(right_name).is_some(), MergedStretchNotKept => false);
        if keeps {
            self.held.try_take(self.table, right_name, Mode::Write)?;
            self.held.try_take(self.table, left_name, Mode::Write)?;
            return Ok([Claimed(None), Claimed(None)]);
        }
        Ok([self.claim(left, None)?, self.claim(right, None)?])
    }

    /// The end of the last transaction that has changed a key. `None` if that one may be open.
    pub(crate) fn end_of(&mut self, table: TableId, key: &[u8]) -> Option<Stamp> {
        let name = self.table.key(self.table.hash(table, key));
        let is_own = mutant!(self.held.find(name).is_some(), PurgesOpenGhosts => false);
        if is_own {
            return None;
        }
        mutant!(PurgesOpenGhosts => return Some(Stamp::NONE));
        self.table.stamp_if_free(name)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            lock_word::release_exclusive(word);
        }
    }
}
