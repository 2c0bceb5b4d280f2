//! Copying and renaming keys of any kind, and collections that a command makes as a whole.

use stillpoint::{Slot, Tx, TxError};

use super::access::Keys;
use super::elements::{Contents, Draft, KeyStamps, earliest_expiry};
use super::kinds::Kind;
use super::value::{Entry, label_of};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::planted::mutant;

/// Bytes of a string that take as long to log as a visit of an element.
const BYTES_AS_ELEMENT: u64 = 128;

/// A collection that a command makes as a whole.
#[derive(Debug)]
pub(crate) struct NewElements<'c> {
    pub(crate) kind: Kind,
    /// Its elements. Those of a list are in their order, and others have different names.
    pub(crate) contents: &'c Contents,
    /// Milliseconds since the Unix epoch.
    pub(crate) expire_at_ms: Option<u64>,
    /// Whether `OBJECT ENCODING` calls it large for ever; `None` if its elements tell.
    pub(crate) is_large: Option<bool>,
    /// Whether the command does nothing else. Then a large collection may be built before its key has it.
    pub(crate) is_all: bool,
}

impl<'c> NewElements<'c> {
    /// What a command stores, and does nothing else.
    pub(crate) fn of(kind: Kind, contents: &'c Contents) -> Self {
        Self { kind, contents, expire_at_ms: None, is_large: None, is_all: true }
    }
}

impl Keys<'_> {
    /// Gives the `i`-th key a collection in place of its value. Without elements, the key is deleted. On a
    /// thread for long commands, this may make a draft and change nothing.
    ///
    /// # Errors
    /// The store refuses the write, or the collection has too many elements.
    pub(crate) fn store(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        new: &NewElements<'_>,
    ) -> Result<(), CmdError> {
        if new.is_all && self.makes_draft(tx, i, new)? {
            return Ok(());
        }
        self.delete(tx, i)?;
        self.put_new(tx, i, new)
    }

    /// As [`store`](Self::store), in this transaction. Logs of calls tell the writes of `COPY` from those of a
    /// deletion and an insertion.
    fn put_new(&mut self, tx: &mut Tx<'_>, i: u32, new: &NewElements<'_>) -> Result<(), CmdError> {
        let mut made = self.new_elements(i, new.kind)?;
        made.fill(tx, new.contents.iter().collect())?;
        made.expire_at_ms = new.expire_at_ms;
        new.is_large.into_iter().for_each(|is_large| made.set_large(is_large));
        Ok(self.save(tx, i, &mut made)?)
    }

    /// Makes a draft of a collection that the `i`-th key is to have, if the collection is large. Returns whether
    /// it has.
    fn makes_draft(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        new: &NewElements<'_>,
    ) -> Result<bool, CmdError> {
        if !self.drafting().begins(new.contents) {
            return Ok(false);
        }
        let (declared, now_ms) = (self.drafting().keys, self.now_ms());
        let Some(seen) = KeyStamps::now(tx, declared, self.keyspace(), now_ms) else {
            return Ok(false);
        };
        let mut made = self.new_elements(i, new.kind)?;
        made.expire_at_ms = new.expire_at_ms;
        let place = (self.db(), self.slot(i), self.remains());
        let constructions = &self.keyspace().constructions;
        let Some(mut draft) = Draft::new(made, new.contents, place, seen, constructions)? else {
            return Ok(false);
        };
        new.is_large.into_iter().for_each(|is_large| draft.elements.set_large(is_large));
        // A table that takes no such collection refuses it here.
        draft.grave(tx)?;
        self.drafting().made = Some(Box::new(draft));
        Ok(true)
    }

    /// Gives the key of a draft its collection, if no key of the command has changed since the draft was made.
    /// Returns whether it has.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn link(&mut self, tx: &mut Tx<'_>, draft: &Draft) -> Result<bool, CmdError> {
        let now_ms = self.now_ms();
        if !draft.is_current(tx, self.keyspace(), now_ms) {
            return Ok(false);
        }
        let grave = draft.grave(tx)?;
        if tx.value(grave).is_none() {
            return Ok(false);
        }
        let mut keys = self.of(draft.db, draft.slot);
        keys.delete(tx, 0)?;
        tx.delete_slot(grave)?;
        let Draft { elements, .. } = draft;
        if elements.expires_earlier() {
            keys.elements_expire();
        }
        keys.put(tx, 0, elements.kind(), elements.expire_at_ms, &elements.value())?;
        Ok(true)
    }

    /// Copies value and expiry of the first key to the second, whose own value is dropped. The first
    /// key keeps both. The second key may be of another database. `is_all` says that the command does nothing
    /// else.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn copy_first_to_second(
        &mut self,
        tx: &mut Tx<'_>,
        first: &[u8],
        (target, is_all): (Db, bool),
    ) -> Result<(), CmdError> {
        let second = self.slot(1);
        if let Some(mut source) = self.open_any(tx, 0, first)? {
            self.leave_if_long(source.len())?;
            let mut all = Contents::default();
            source.visit_all(tx, &mut |content| all.push(content))?;
            let new = NewElements {
                kind: source.kind(),
                contents: &all,
                expire_at_ms: source.expire_at_ms,
                is_large: Some(source.is_large()),
                is_all,
            };
            let mut keys = self.of(target, second);
            if is_all && keys.makes_draft(tx, 0, &new)? {
                return Ok(());
            }
            return keys.put_new(tx, 0, &new);
        }
        let Some(entry) = self.lookup(tx, 0, first) else { return Ok(()) };
        let (kind, bytes) = (entry.kind(), entry.len());
        let expire_at_ms = mutant!(entry.expire_at_ms, ExpiryNotRenamed => None);
        self.leave_if_long(bytes as u64 / BYTES_AS_ELEMENT)?;
        // Two keys do not share blocks: the log, checkpoints and a start have the value twice, so memory has
        // to have room for both.
        let mut value = self.take_scratch();
        if let Some(entry) = self.lookup(tx, 0, first) {
            entry.copy_to(&mut value);
            self.of(target, second).put(tx, 0, kind, expire_at_ms, &value)?;
        }
        self.give_scratch(value);
        Ok(())
    }

    /// Moves the value and the expiry of the first key to the second, of the same database. The old
    /// value of the second key is removed.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn rename_first_to_second(&mut self, tx: &mut Tx<'_>, first: &[u8]) -> CmdResult {
        let Some(entry) = self.lookup(tx, 0, first) else { return Ok(()) };
        let (kind, bytes) = (entry.kind(), entry.len());
        let expire_at_ms = mutant!(entry.expire_at_ms, ExpiryNotRenamed => None);
        let elements_expire = earliest_expiry(&entry).is_some();
        self.leave_if_long(bytes as u64 / BYTES_AS_ELEMENT)?;
        if elements_expire {
            self.elements_expire();
        }
        let slot = self.slot(0);
        if !self.share(tx, (slot, 1), kind, expire_at_ms)? {
            let mut value = self.take_scratch();
            if let Some(entry) = self.lookup(tx, 0, first) {
                entry.copy_to(&mut value);
            }
            self.put(tx, 1, kind, expire_at_ms, &value)?;
            self.give_scratch(value);
        }
        // The nodes of a collection go with its header.
        self.remove(tx, 0)?;
        Ok(())
    }

    /// Gives the `i`-th key the value of the key at `from`, if that is a large one whose blocks both can
    /// share. Returns whether it is.
    fn share(
        &mut self,
        tx: &mut Tx<'_>,
        (from, i): (Slot, u32),
        kind: Kind,
        expire_at_ms: Option<u64>,
    ) -> Result<bool, TxError> {
        let slot = self.slot(i);
        let is_plain = tx.value(from).is_some_and(|value| Entry::new(value).skip() == 0);
        if !is_plain || !tx.can_share_slot(from, slot) {
            return Ok(false);
        }
        self.bury(tx, i)?;
        self.note_put(tx, i, kind, expire_at_ms.is_some());
        tx.share_slot(from, slot, label_of(kind, expire_at_ms))
    }
}
