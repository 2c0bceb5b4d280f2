//! The deletion of what has expired: of keys, and of fields of hashes.
//!
//! Each deletion is a logged transaction, which looks at the key again under its lock.

use stillpoint::{Batch, KeySet, Mode, Session, Slot, Stamp, Tx, TxError};

use super::counts::KeyCounters;
use super::databases::Keyspace;
use super::elements::{Elements, Save, bury, earliest_expiry};
use super::value::{Entry, label_of};
use crate::config::Db;

/// Fields that one transaction deletes.
const FIELDS_AT_ONCE: u64 = 128;

/// What a deletion has done.
#[derive(Clone, Copy, Debug, Default)]
struct Deleted {
    /// Whether the key is gone because the key, not a field, had expired.
    key: bool,
    /// Whether the key is gone and had an expiry.
    expiring: bool,
    fields: u64,
    /// Whether further fields have expired.
    more: bool,
}

/// Deletes keys that have expired, and expired fields of hashes.
pub(super) struct Deletions<'a> {
    keys: &'a [(Db, Box<[u8]>)],
    now_ms: u64,
    keyspace: &'a Keyspace,
    counters: &'a KeyCounters,
    deleted: Vec<Deleted>,
}

impl<'a> Deletions<'a> {
    pub(super) fn new(
        (keyspace, counters): (&'a Keyspace, &'a KeyCounters),
        keys: &'a [(Db, Box<[u8]>)],
        now_ms: u64,
    ) -> Self {
        Self { keys, now_ms, keyspace, counters, deleted: vec![Deleted::default(); keys.len()] }
    }

    /// Deletes; gives, for each key, whether a further run has something to delete, and the number of keys
    /// of which something was deleted.
    pub(super) fn execute(mut self, session: &mut Session) -> (Vec<bool>, usize) {
        session.execute(&mut self);
        let done = self.deleted.iter().filter(|deleted| deleted.key || deleted.fields > 0).count();
        (self.deleted.iter().map(|deleted| deleted.more).collect(), done)
    }

    /// Deletes some expired fields of the hash at slot 0.
    fn delete_fields(&self, tx: &mut Tx<'_>, db: Db) -> Result<Deleted, TxError> {
        let nothing = Deleted::default();
        let Some(value) = tx.value(Slot(0)) else { return Ok(nothing) };
        let entry = Entry::new(value);
        if earliest_expiry(&entry).is_none_or(|at| at > self.now_ms) {
            return Ok(nothing);
        }
        let (kind, expire_at_ms, skip) = (entry.kind(), entry.expire_at_ms, entry.skip());
        let mut bytes = Vec::with_capacity(entry.len());
        entry.copy_to(&mut bytes);
        let place = (Slot(0), self.keyspace.nodes_table(db));
        let Some(mut hash) = Elements::new(kind, place, 0) else { return Ok(nothing) };
        hash.now_ms = self.now_ms;
        if !hash.read(bytes) {
            return Ok(nothing);
        }
        tx.use_reserve();
        let fields = hash.remove_expired(tx, FIELDS_AT_ONCE)?;
        let more = hash.earliest().is_some_and(|at| at <= self.now_ms);
        let mut deleted = Deleted { fields, more, ..nothing };
        match hash.begin_save(tx)? {
            Save::Nothing => {}
            Save::Delete => {
                deleted.expiring = expire_at_ms.is_some();
                tx.delete_slot(Slot(0))?;
            }
            Save::Patch(new) => hash.patch(tx, skip, &new)?,
            Save::Put(new) => tx.put_slot_labelled(Slot(0), label_of(kind, expire_at_ms), &new)?,
        }
        Ok(deleted)
    }
}

impl Batch for Deletions<'_> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn declare(&mut self, i: usize, keys: &mut KeySet) {
        let (db, key) = &self.keys[i];
        self.keyspace.declare(keys, *db, key, Mode::Write, 0);
    }

    fn run(&mut self, i: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let db = self.keys[i].0;
        let is_expired = tx.value(Slot(0)).is_some_and(|v| Entry::new(v).is_expired(self.now_ms));
        self.deleted[i] = if is_expired {
            tx.use_reserve();
            bury(tx, Slot(0), self.keyspace.remains(db))?;
            tx.delete_slot(Slot(0))?;
            Deleted { key: true, expiring: true, ..Deleted::default() }
        } else {
            self.delete_fields(tx, db)?
        };
        Ok(())
    }

    fn ended(&mut self, i: usize, result: Result<Option<Stamp>, TxError>) {
        // A key whose deletion is refused is met again later.
        let Ok(Some(_)) = result else {
            self.deleted[i] = Deleted::default();
            return;
        };
        let Deleted { key, expiring, fields, .. } = self.deleted[i];
        if key {
            self.counters.expired.add(1);
        }
        if expiring {
            self.counters.expiring_changed(self.keys[i].0, -1);
        }
        if fields > 0 {
            self.counters.expired_fields.add(fields);
        }
    }
}
