//! All keys of some databases, as keys of one transaction.
//!
//! Inside an `EXEC` that writes, a command over whole databases works on declared keys. So `KEYS`
//! sees what earlier commands of the queue wrote, and `FLUSHDB` deletes key by key in the same
//! commit. The list costs time and memory for each key. Beyond a limit the transaction is refused,
//! because the alternative would not be atomic.

use std::collections::HashSet;

use stillpoint::{KeySet, Mode, Session, Slot, Tx, TxError};

use super::access::Keys;
use super::databases::Keyspace;
use super::value::Entry;
use crate::config::{DATABASES, Db};
use crate::error::CmdError;

/// Most keys of the listed databases.
const KEYS_MAX: u64 = 100_000;
/// Most bytes of the names of these keys.
const KEY_BYTES_MAX: usize = 64 << 20;
/// Keys that one step of the scan looks at.
const STEP: usize = 1024;

type Name = (Db, Box<[u8]>);

/// The keys of some databases before the transaction, by name.
#[derive(Debug, Default)]
pub(crate) struct ListedNames {
    names: Vec<Name>,
    /// Number of keys of each database, listed or not.
    len_before: [u64; DATABASES as usize],
}

impl ListedNames {
    /// Finds all keys of the databases that `listed` names. Nobody else changes the keyspace
    /// before the transaction has ended.
    ///
    /// # Errors
    /// There are too many keys.
    pub(crate) fn find(
        keyspace: &Keyspace,
        session: &mut Session,
        listed: [bool; DATABASES as usize],
    ) -> Result<Self, CmdError> {
        let dbs = || (0..DATABASES).filter(|&db| listed[usize::from(db)]);
        let mut names = Vec::new();
        let mut bytes = 0;
        let mut count = 0;
        for db in dbs() {
            count += keyspace.exact_len(session, db)?;
        }
        for db in dbs().take_while(|_| count <= KEYS_MAX) {
            let mut cursor = 0;
            loop {
                let step = keyspace.scan_all(session, db, cursor, STEP, &mut |key, _| {
                    bytes += key.len();
                    if bytes <= KEY_BYTES_MAX {
                        names.push((db, key.into()));
                    }
                })?;
                cursor = step.next;
                if cursor == 0 {
                    break;
                }
            }
        }
        if count > KEYS_MAX || bytes > KEY_BYTES_MAX {
            return Err(CmdError::text(format!(
                "EXECABORT Transaction discarded because it writes, and lists or empties databases \
                 of {count} keys: that is atomic up to {KEYS_MAX} keys of {KEY_BYTES_MAX} bytes in \
                 all. Send KEYS, SCAN, RANDOMKEY, FLUSHDB and FLUSHALL outside of it."
            )));
        }
        let mut len_before = [0; DATABASES as usize];
        for (len, db) in len_before.iter_mut().zip(0..) {
            *len = keyspace.exact_len(session, db)?;
        }
        Ok(Self { names, len_before })
    }

    /// Declares the listed keys in addition to those in `keys`, which the commands of the queue
    /// name.
    pub(crate) fn declare(&mut self, keyspace: &Keyspace, keys: &mut KeySet) -> ListedKeys {
        let named = keys
            .iter()
            .filter_map(|(table, key)| Some((keyspace.database(table)?, Box::<[u8]>::from(key))));
        let all: Vec<Name> = self.names.drain(..).chain(named).collect();
        let mut listed = ListedKeys { keys: Vec::new(), len_before: self.len_before };
        let mut seen: HashSet<&Name> = HashSet::with_capacity(all.len());
        for name @ (db, key) in &all {
            if seen.insert(name) {
                // If a command has named the key, this second slot is the same record.
                let slot = keyspace.declare(keys, *db, key, Mode::Write, 0);
                listed.keys.push((*db, key.clone(), slot));
            }
        }
        listed
    }
}

/// The databases, as the transaction knows them.
#[derive(Debug, Default)]
pub(crate) struct ListedKeys {
    /// Each key once, with its slot: all keys of the listed databases, and the keys that commands
    /// of the queue name.
    keys: Vec<(Db, Box<[u8]>, Slot)>,
    len_before: [u64; DATABASES as usize],
}

impl ListedKeys {
    fn of(&self, db: Db) -> impl Iterator<Item = (&[u8], Slot)> {
        let own = self.keys.iter().filter(move |(of, ..)| *of == db);
        own.map(|(_, key, slot)| (&**key, *slot))
    }

    /// The keys of a database that have a value which `fits`.
    ///
    /// # Errors
    /// What `fits` gives.
    pub(crate) fn present<'k>(
        &'k self,
        tx: &mut Tx<'_>,
        db: Db,
        now_ms: u64,
        mut fits: impl FnMut(&[u8], &Entry<'_>) -> Result<bool, CmdError>,
    ) -> Result<Vec<&'k [u8]>, CmdError> {
        let mut found = Vec::new();
        for (key, slot) in self.of(db) {
            let Some(value) = tx.value(slot) else { continue };
            let entry = Entry::new(value);
            if !entry.is_expired(now_ms) && fits(key, &entry)? {
                found.push(key);
            }
        }
        Ok(found)
    }

    /// The number of keys of a database, expired ones included.
    pub(crate) fn len(&self, tx: &mut Tx<'_>, db: Db) -> i64 {
        let mut len = self.len_before[usize::from(db)] as i64;
        for (_, slot) in self.of(db) {
            len += i64::from(tx.value(slot).is_some()) - i64::from(tx.existed(slot));
        }
        len.max(0)
    }

    /// Deletes all keys of a database.
    ///
    /// # Errors
    /// The store refuses a write.
    pub(crate) fn flush(
        &self,
        keys: &mut Keys<'_>,
        tx: &mut Tx<'_>,
        db: Db,
    ) -> Result<(), TxError> {
        self.of(db).try_for_each(|(_, slot)| keys.of(db, slot).delete(tx, 0))
    }
}
