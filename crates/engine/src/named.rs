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

use crate::engine::Engine;
use crate::error::Error;
use crate::guards::Inside;
use crate::session::Session;
use crate::tx::Tx;

/// The table of named sessions.
const SESSIONS: &str = "stillpoint:sessions";
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
    fn take(&self, name: &str, table: TableId) -> Result<SessionName, Error> {
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

impl SessionName {
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

impl Engine {
    /// A session for one thread, with a name of 1 to 255 bytes. The store keeps the serial of the
    /// session's last commit, exactly: the commit writes it. So after a crash, or after any other
    /// end, the program opens a session of that name, and [`Session::serial`] says where to go on.
    ///
    /// Each commit of the session writes one record more. A journal that logs calls gets the writes
    /// of a named session's calls. The session tracks its [durable serial](Session::durable_serial)
    /// from the beginning.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Durability, Engine};
    ///
    /// let inputs = ["rex", "tom", "kit"];
    /// let mut config = Config::new(directory.path());
    /// config.durability = Durability::Strict;
    /// for run in 0..2 {
    ///     let engine = Engine::open(config.clone())?;
    ///     let pets = engine.table("pets")?;
    ///     let mut session = engine.session_named("importer")?;
    ///     assert_eq!(session.serial(), 2 * run);
    ///     // Goes on with the first input that the store does not have.
    ///     for input in inputs.iter().skip(session.serial() as usize).take(2) {
    ///         session.transact(|tx| tx.put(pets, input.as_bytes(), b"pet"))?;
    ///     }
    ///     assert_eq!(engine.len(pets), 2 + run);
    ///     // A drop without a close is like a crash.
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SessionName`] if a living session has the name, or the name is empty or too long.
    /// [`Error::InsideTransaction`] from inside a transaction. [`Error::TooManySessions`]. The
    /// first session of a name also needs what a commit needs, and the first one of a store what a
    /// new table needs.
    pub fn session_named(&self, name: &str) -> Result<Session, Error> {
        Inside::refuse("session_named")?;
        match name.len() {
            0 => return Err(refused(name, "it is empty: a name has 1 to 255 bytes")),
            1..=NAME_BYTES_MAX => {}
            _ => return Err(refused(name, "it is too long: a name has 1 to 255 bytes")),
        }
        let table = self.find_or_make_tables(&[SESSIONS])?[0];
        let taken = self.shared.session_names.take(name, table)?;
        let mut session = self.session()?;
        session.track();
        let mut last = Vec::new();
        let found = session.read(table, name.as_bytes(), &mut last)?;
        let serial = match (found, <[u8; 8]>::try_from(&last[..])) {
            (Some(_), Ok(serial)) => u64::from_le_bytes(serial),
            (Some(_), Err(_)) => {
                let reason = "its record in table stillpoint:sessions is not 8 bytes long: another \
                              program has written it";
                return Err(refused(name, reason));
            }
            (None, _) => {
                // The commits of the session then overwrite 8 bytes, for which there is always memory.
                session.transact(|tx| tx.put(table, name.as_bytes(), &0u64.to_le_bytes()))?;
                0
            }
        };
        session.begin_named(taken, serial);
        Ok(session)
    }
}
