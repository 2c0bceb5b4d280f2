//! Copying and renaming keys of any kind.

use stillpoint::{Slot, Tx, TxError};

use super::access::Keys;
use super::elements::{Contents, earliest_expiry};
use super::kinds::Kind;
use super::value::{Entry, label_of};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::planted::mutant;

/// Bytes of a string that take as long to log as a visit of an element.
const BYTES_AS_ELEMENT: u64 = 128;

impl Keys<'_> {
    /// Copies value and expiry of the first key to the second, whose own value is dropped. The first
    /// key keeps both. The second key may be of another database.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn copy_first_to_second(
        &mut self,
        tx: &mut Tx<'_>,
        first: &[u8],
        target: Db,
    ) -> Result<(), CmdError> {
        let second = self.slot(1);
        if let Some(mut source) = self.open_any(tx, 0, first)? {
            self.leave_if_long(source.len())?;
            let mut all = Contents::default();
            source.visit_all(tx, &mut |content| all.push(content))?;
            let mut keys = self.of(target, second);
            let mut copy = keys.new_elements(0, source.kind())?;
            copy.copy_from(tx, &source, &all)?;
            return Ok(keys.save(tx, 0, &copy)?);
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
