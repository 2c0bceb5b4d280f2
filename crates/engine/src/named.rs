//! Named sessions. Each commit of a named session also puts the commit's serial into a table of the
//! engine, under the session's name. So the table says exactly which of the session's commits a
//! recovered state has, under every scheme and journal.
//!
//! ```text
//! table "stillpoint:sessions": name ─▶ serial of the last commit, u64 little-endian
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_store::{KeySet, Mode, TableId, TxError};
use stillpoint_sync::{mutant, planted};

use crate::error::Error;
use crate::tx::Tx;

/// The table of named sessions.
pub(crate) const SESSIONS: &str = "stillpoint:sessions";
/// Names of tables that begin so are the engine's own.
pub(crate) const OWN_TABLES: &str = "stillpoint:";
/// Longest name of a session, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The names of the sessions that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionNames(Arc<Mutex<BTreeSet<Arc<str>>>>);

/// The name of a session that lives. A drop lets another session have the name.
pub(crate) struct SessionName {
    name: Arc<str>,
    table: TableId,
    names: SessionNames,
}

impl fmt::Debug for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionName").field(&self.name).finish()
    }
}

impl SessionNames {
    /// Takes a name for a session, whose serials are in this table.
    ///
    /// # Errors
    /// [`Error::SessionName`] if a living session has the name.
    pub(crate) fn take(&self, name: &str, table: TableId) -> Result<SessionName, Error> {
        let name: Arc<str> = name.into();
        if !self.0.lock().insert(name.clone()) {
            return Err(refused(&name, "a session with that name lives: drop it first"));
        }
        Ok(SessionName { name, table, names: self.clone() })
    }
}

impl Drop for SessionName {
    fn drop(&mut self) {
        self.names.0.lock().remove(&self.name);
    }
}

/// Checks the length of a session's name.
///
/// # Errors
/// [`Error::SessionName`].
pub(crate) fn check_length(name: &str) -> Result<(), Error> {
    match name.len() {
        0 => Err(refused(name, "it is empty: a name has 1 to 255 bytes")),
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(refused(name, "it is too long: a name has 1 to 255 bytes")),
    }
}

impl SessionName {
    pub(crate) fn table(&self) -> TableId {
        self.table
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// The error for a record of the session that is no serial.
    pub(crate) fn is_damaged(&self) -> Error {
        let reason = "its record in table stillpoint:sessions is not 8 bytes long: another program has \
                      written it";
        refused(&self.name, reason)
    }

    /// Declares the session's record behind the keys of a transaction, from number `first` on, if
    /// the transaction may write any of them.
    pub(crate) fn declare(&self, first: usize, keys: &mut KeySet) {
        if keys.declared()[first..].iter().any(|key| key.mode == Mode::Write) {
            keys.push(self.table, self.name.as_bytes(), Mode::Write, size_of::<u64>());
        }
    }

    /// Puts the serial of a transaction into the session's record, if the transaction may have
    /// written.
    pub(crate) fn sign(&self, tx: &mut Tx<'_>, serial: u64) -> Result<(), TxError> {
        if !tx.may_have_written() {
            return Ok(());
        }
        let serial = mutant!(serial, SerialBeforeCommit => serial + 1);
        tx.put(self.table, self.name.as_bytes(), &serial.to_le_bytes())
    }
}

fn refused(name: &str, reason: &'static str) -> Error {
    Error::SessionName { name: name.to_owned(), reason }
}
