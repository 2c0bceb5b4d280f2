//! Copying and renaming keys of any kind.

use stillpoint::{Tx, TxError};

use super::access::Keys;
use super::elements::{Contents, earliest_expiry};
use crate::config::Db;
use crate::error::CmdError;

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
        let mut value = self.take_scratch();
        if let Some(entry) = self.lookup(tx, 0, first) {
            entry.copy_to(&mut value);
            let (kind, expire_at_ms) = (entry.kind(), entry.expire_at_ms);
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
    pub(crate) fn rename_first_to_second(
        &mut self,
        tx: &mut Tx<'_>,
        first: &[u8],
    ) -> Result<(), TxError> {
        let mut value = self.take_scratch();
        if let Some(entry) = self.lookup(tx, 0, first) {
            entry.copy_to(&mut value);
            let (kind, expire_at_ms) = (entry.kind(), entry.expire_at_ms);
            if earliest_expiry(&entry).is_some() {
                self.elements_expire();
            }
            self.put(tx, 1, kind, expire_at_ms, &value)?;
            // The nodes of a collection go with its header.
            self.remove(tx, 0)?;
        }
        self.give_scratch(value);
        Ok(())
    }
}
