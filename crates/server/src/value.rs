//! How the protocol's values lie in the store's.
//!
//! The tag's low 4 bits name the type (0 string). Bit 7 says that the value begins
//! with 8 bytes, little-endian: the wall time in milliseconds since the Unix epoch
//! at which the key expires.

use stillpoint::ValueRef;

/// Type 0: a string of bytes.
pub(crate) const TYPE_STRING: u8 = 0;
/// The bits of a tag that name the type.
pub(crate) const TYPE_MASK: u8 = 0x0f;
/// The bit of a tag that says that an expiry time precedes the value.
pub(crate) const HAS_EXPIRY: u8 = 0x80;
/// Bytes of the expiry time.
pub(crate) const EXPIRY_BYTES: usize = 8;

/// The name of a type, as `TYPE` answers it.
pub(crate) fn type_name(tag: u8) -> &'static str {
    match tag & TYPE_MASK {
        TYPE_STRING => "string",
        1 => "list",
        2 => "set",
        3 => "zset",
        4 => "hash",
        5 => "stream",
        _ => "unknown",
    }
}

/// A value, its expiry set apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    value: ValueRef<'a>,
    /// When the key expires, in milliseconds since the Unix epoch.
    pub(crate) expire_at_ms: Option<u64>,
    skip: usize,
}

impl<'a> Entry<'a> {
    /// Looks at a stored value.
    pub(crate) fn new(value: ValueRef<'a>) -> Self {
        let expire_at_ms = expiry(&value);
        let skip = if expire_at_ms.is_some() { EXPIRY_BYTES } else { 0 };
        Self { value, expire_at_ms, skip }
    }

    /// The stored tag.
    pub(crate) fn tag(&self) -> u8 {
        self.value.tag()
    }

    /// True when the key's time has come.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expire_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// True for a string.
    pub(crate) fn is_string(&self) -> bool {
        self.value.tag() & TYPE_MASK == TYPE_STRING
    }

    /// Length of the value without its expiry.
    pub(crate) fn len(&self) -> usize {
        self.value.len() - self.skip
    }

    /// Bytes before the value proper.
    pub(crate) fn skip(&self) -> usize {
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

/// The expiry time of a stored value, if it has one.
pub(crate) fn expiry(value: &ValueRef<'_>) -> Option<u64> {
    if value.tag() & HAS_EXPIRY == 0 { None } else { value.u64_at(0) }
}

/// A value of a table of a server's, or of any other table, as a tool shows it.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue<'a> {
    entry: Entry<'a>,
}

impl<'a> StoredValue<'a> {
    /// A value of that table. Those of the databases, `db0` and on, may begin with a moment at which
    /// the key expires; those of other tables are taken as they are.
    pub fn of(table: &str, value: ValueRef<'a>) -> Self {
        let entry = if crate::databases::is_database(table) {
            Entry::new(value)
        } else {
            Entry { value, expire_at_ms: None, skip: 0 }
        };
        Self { entry }
    }

    /// Tag and bytes of a value of that table, for a key that expires at a moment in milliseconds
    /// since the Unix epoch: what [`of`](Self::of) takes apart.
    ///
    /// # Errors
    /// Keys of that table do not expire, or the tag has the mark of an expiry already.
    pub fn expiring(
        table: &str,
        tag: u8,
        at_ms: u64,
        value: &[u8],
    ) -> Result<(u8, Vec<u8>), String> {
        if !crate::databases::is_database(table) {
            return Err(format!("keys of table {table:?} do not expire: it is no database"));
        }
        if tag & HAS_EXPIRY != 0 {
            return Err(format!("tag {tag} stands for an expiry already: give one below 128"));
        }
        let mut bytes = at_ms.to_le_bytes().to_vec();
        bytes.extend_from_slice(value);
        Ok((tag | HAS_EXPIRY, bytes))
    }

    /// When the key expires, in milliseconds since the Unix epoch.
    pub fn expires_ms(&self) -> Option<u64> {
        self.entry.expire_at_ms
    }

    /// The tag, without the mark of an expiry.
    pub fn tag(&self) -> u8 {
        let tag = self.entry.tag();
        if self.entry.skip == 0 { tag } else { tag & !HAS_EXPIRY }
    }

    /// Appends the value, without its expiry.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        self.entry.copy_to(out);
    }
}
