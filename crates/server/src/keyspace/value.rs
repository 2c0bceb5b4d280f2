//! How the values of keys lie in records of the store.
//!
//! The low 4 bits of a record's tag name the kind of the value. The record's deadline is the wall time in
//! milliseconds since the Unix epoch at which the key expires.
//!
//! Releases before the deadline put this time in front of the value instead: 8 bytes, little-endian,
//! which bit 7 of the tag announces. Such values are read, and the next write of the value or of the
//! expiry gives the record its deadline.

use stillpoint::{Label, ValueRef};

use super::kinds::Kind;
use crate::config::{DATABASES, Db};

/// The bit of a tag that says that an expiry precedes the value.
const EXPIRY_FIRST: u8 = 0x80;
/// Bytes of a record beside its key and value: cell header and index entry.
pub(super) const RECORD_OVERHEAD: usize = 24;
/// Bytes of a record's share of the index: 14 to 28.
pub(super) const INDEX_BYTES: usize = 20;
/// Bytes of an expiry that precedes the value.
pub(super) const EXPIRY_BYTES: usize = 8;

/// Name of a database's table.
pub(super) fn table_name(db: Db) -> String {
    format!("db{db}")
}

/// Name of the table with the nodes of the collections of a database.
pub(super) fn nodes_table_name(db: Db) -> String {
    format!("db{db}.nodes")
}

/// The database that a table of that name is.
pub(super) fn database_of(table: &str) -> Option<Db> {
    let db = table.strip_prefix("db").and_then(|number| number.parse::<Db>().ok());
    db.filter(|&db| db < DATABASES && table_name(db) == table)
}

/// The database whose nodes a table of that name holds.
pub(super) fn nodes_database_of(table: &str) -> Option<Db> {
    database_of(table.strip_suffix(".nodes")?)
}

/// Whether a table of that name is a database.
fn is_database(table: &str) -> bool {
    database_of(table).is_some()
}

/// A value, with its expiry set apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    value: ValueRef<'a>,
    /// When the key expires, in milliseconds since the Unix epoch.
    pub(crate) expire_at_ms: Option<u64>,
    skip: usize,
}

impl<'a> Entry<'a> {
    /// Looks at a stored value.
    #[inline]
    pub(super) fn new(value: ValueRef<'a>) -> Self {
        if value.tag() & EXPIRY_FIRST != 0 {
            return Self::of_earlier_release(value);
        }
        Self { value, expire_at_ms: value.deadline(), skip: 0 }
    }

    #[cold]
    fn of_earlier_release(value: ValueRef<'a>) -> Self {
        let expire_at_ms = value.u64_at(0);
        let skip = if expire_at_ms.is_some() { EXPIRY_BYTES } else { 0 };
        Self { value, expire_at_ms, skip }
    }

    /// The kind of the value.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.value.tag())
    }

    /// Whether the key has expired.
    #[inline]
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expire_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Length of the value without its expiry.
    pub(crate) fn len(&self) -> usize {
        self.value.len() - self.skip
    }

    /// Eight bytes at `offset` of the value without its expiry, as a little-endian integer.
    pub(super) fn u64_at(&self, offset: usize) -> Option<u64> {
        self.value.u64_at(self.skip + offset)
    }

    /// Bytes of the record before the value proper.
    pub(super) fn skip(&self) -> usize {
        self.skip
    }

    /// Appends the value without its expiry.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        self.value.copy_range_to(self.skip, self.len(), out);
    }

    /// Appends bytes `from..to` of the value without its expiry.
    pub(crate) fn copy_range_to(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        self.value.copy_range_to(self.skip + from, to - from, out);
    }
}

/// Whether the key of a stored value expires.
#[inline]
pub(super) fn has_expiry(value: &ValueRef<'_>) -> bool {
    value.deadline().is_some() || value.tag() & EXPIRY_FIRST != 0
}

/// The label of a value of that kind.
#[inline]
pub(super) fn label_of(kind: Kind, expire_at_ms: Option<u64>) -> Label {
    Label { tag: kind.tag(), deadline: expire_at_ms.unwrap_or(0) }
}

/// A value as a tool shows it: of a database, or of any other table.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue<'a> {
    entry: Entry<'a>,
}

impl<'a> StoredValue<'a> {
    /// A value of that table. A value of a database, `db0` and on, may begin with an expiry, if an earlier
    /// release has written it. A value of another table is taken as it is.
    pub fn of(table: &str, value: ValueRef<'a>) -> Self {
        let entry = if is_database(table) {
            Entry::new(value)
        } else {
            Entry { value, expire_at_ms: value.deadline(), skip: 0 }
        };
        Self { entry }
    }

    /// The label of a record of that table that expires at `expires_ms`, in milliseconds since the Unix
    /// epoch, or never.
    ///
    /// # Errors
    /// The tag of a value in a database says that an expiry precedes the value; the expiry is 0.
    pub fn label(table: &str, tag: u8, expires_ms: Option<u64>) -> Result<Label, String> {
        let Some(deadline) = expires_ms else { return Ok(Label::from(tag)) };
        if is_database(table) && tag & EXPIRY_FIRST != 0 {
            return Err(format!("tag {tag} stands for an expiry already: give one below 128"));
        }
        if deadline == 0 {
            return Err("an expiry of 0 stands for none: leave out expires_ms".to_owned());
        }
        Ok(Label { tag, deadline })
    }

    /// When the key expires, in milliseconds since the Unix epoch. In a table that is no database, the
    /// deadline of the record.
    pub fn expires_ms(&self) -> Option<u64> {
        self.entry.expire_at_ms
    }

    /// The tag, without the mark of an expiry in front of the value.
    pub fn tag(&self) -> u8 {
        let tag = self.entry.value.tag();
        if self.entry.skip == 0 { tag } else { tag & !EXPIRY_FIRST }
    }

    /// Appends the value, without its expiry.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        self.entry.copy_to(out);
    }
}
