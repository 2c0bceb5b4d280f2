//! Opening the collection of a key, and saving it.
//!
//! Successive calls of one transaction on one key may leave the collection open. It is saved behind the last.

use stillpoint::{Tx, TxError};

use super::access::Keys;
use super::elements::{
    Elements, HEAD_BYTES_MAX, Save, SpareNodes, bury, earliest_expiry, len_in_head,
};
use super::kinds::Kind;
use super::value::Entry;
use crate::error::CmdError;

/// The collection that calls of one transaction on one key leave open.
#[derive(Debug, Default)]
pub(crate) struct LeftOpen {
    /// Whether calls leave their collection open.
    is_on: bool,
    collection: Option<Elements>,
    /// Whether a call has taken the collection with changes that are not saved, and has not closed it.
    is_owed: bool,
    /// Buffers for the nodes of the next one.
    spare: SpareNodes,
}

impl LeftOpen {
    /// Begins a transaction whose calls leave their collection open, or not.
    pub(crate) fn begin(&mut self, is_on: bool) {
        (self.is_on, self.collection, self.is_owed) = (is_on, None, false);
    }

    /// Whether a call has lost the changes of the calls before it. Then the transaction is to be rolled back.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_owed
    }
}

impl Keys<'_> {
    /// The collection of the `i`-th key, unless the key is missing or has expired.
    ///
    /// # Errors
    /// `WRONGTYPE` for a value of another kind; the value is damaged.
    pub(crate) fn open(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Elements>, CmdError> {
        if let Some(open) = self.take_left_open(tx, i, kind)? {
            return Ok(Some(open));
        }
        let entry = self.lookup_kind(tx, i, key, kind)?;
        let read = entry.map(|entry| read_value(&entry));
        read.map(|read| self.opened((i, key), kind, read)).transpose()
    }

    /// As [`open`](Self::open), counted as a hit or a miss.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_read(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Elements>, CmdError> {
        if let Some(open) = self.take_left_open(tx, i, kind)? {
            self.count_hit();
            return Ok(Some(open));
        }
        let entry = self.read_kind(tx, i, key, kind)?;
        let read = entry.map(|entry| read_value(&entry));
        read.map(|read| self.opened((i, key), kind, read)).transpose()
    }

    /// The number of elements of the `i`-th key's collection, counted as a hit or a miss. 0 if the key is
    /// missing. Reads the head of the collection alone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn read_len(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<u64, CmdError> {
        let Some(entry) = self.read_kind(tx, i, key, kind)? else { return Ok(0) };
        let mut head = Vec::with_capacity(HEAD_BYTES_MAX);
        entry.copy_range_to(0, entry.len().min(HEAD_BYTES_MAX), &mut head);
        if earliest_expiry(&entry).is_some_and(|at| at <= self.now_ms()) {
            self.met_expired(key);
        }
        len_in_head(&head).ok_or(CmdError::DAMAGED)
    }

    /// The collection of the `i`-th key, of whatever kind. `None` if the key has no value, or a
    /// value that is no collection. This is no use of the key.
    ///
    /// # Errors
    /// The value is damaged.
    pub(crate) fn open_any(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
    ) -> Result<Option<Elements>, CmdError> {
        let Some(entry) = self.peek(tx, i, key) else { return Ok(None) };
        let kind = entry.kind();
        if kind.elements().is_none() {
            return Ok(None);
        }
        let read = read_value(&entry);
        self.opened((i, key), kind, read).map(Some)
    }

    /// The collection of the `i`-th key, or a new one.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_or_new(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
        kind: Kind,
    ) -> Result<Elements, CmdError> {
        match self.open(tx, i, key, kind)? {
            Some(elements) => Ok(elements),
            None => self.new_elements(i, kind),
        }
    }

    /// A collection without elements, to be saved at the `i`-th key, whatever the key has.
    ///
    /// # Errors
    /// The kind has no elements.
    pub(crate) fn new_elements(&mut self, i: u32, kind: Kind) -> Result<Elements, CmdError> {
        let place = (self.slot(i), self.nodes_table());
        let mut elements = Elements::new(kind, place, self.next_incarnation());
        if let Some(elements) = &mut elements {
            elements.now_ms = self.now_ms();
            elements.small = self.small_limits();
        }
        elements.ok_or(CmdError::WRONG_TYPE)
    }

    fn opened(
        &mut self,
        (i, key): (u32, &[u8]),
        kind: Kind,
        (value, expire_at_ms): (Vec<u8>, Option<u64>),
    ) -> Result<Elements, CmdError> {
        let mut elements = self.new_elements(i, kind)?;
        elements.expire_at_ms = expire_at_ms;
        let left_open = self.left_open();
        if left_open.is_on {
            elements.give_spare(std::mem::take(&mut left_open.spare));
        }
        if !elements.read(value) {
            return Err(CmdError::DAMAGED);
        }
        if elements.earliest().is_some_and(|at| at <= elements.now_ms) {
            self.met_expired(key);
        }
        Ok(elements)
    }

    /// Saves a collection at the `i`-th key, at which it was opened or made. A collection without
    /// elements deletes the key.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) fn save(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        elements: &mut Elements,
    ) -> Result<(), TxError> {
        self.left_open().is_owed = false;
        if elements.expires_earlier() {
            self.elements_expire();
        }
        match elements.begin_save(tx)? {
            Save::Nothing => Ok(()),
            Save::Delete => self.remove(tx, i),
            Save::Put(new) if elements.is_new() => {
                self.put(tx, i, elements.kind(), elements.expire_at_ms, &new)
            }
            Save::Put(new) => self.replace(tx, i, elements.kind(), elements.expire_at_ms, &new),
            Save::Patch(new) => {
                let skip = tx.value(self.slot(i)).map_or(0, |value| Entry::new(value).skip());
                elements.patch(tx, skip, &new)
            }
        }
    }

    /// As [`save`](Self::save), at the end of a command whose row says that it leaves its collection open. The
    /// collection is saved later if further calls of the transaction may use it.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub(crate) fn close(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        mut elements: Elements,
    ) -> Result<(), TxError> {
        let left_open = self.left_open();
        if left_open.is_on && elements.may_stay_open() {
            (left_open.collection, left_open.is_owed) = (Some(elements), false);
            return Ok(());
        }
        self.save(tx, i, &mut elements)
    }

    /// Saves the collection that calls have left open, if there is one.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub(crate) fn save_left_open(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        match self.left_open().collection.take() {
            Some(mut elements) => {
                self.save(tx, 0, &mut elements)?;
                self.left_open().spare = elements.into_spare();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The collection that calls have left open, if it is that of the `i`-th key.
    ///
    /// # Errors
    /// `WRONGTYPE` for a collection of another kind.
    #[inline]
    fn take_left_open(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        kind: Kind,
    ) -> Result<Option<Elements>, CmdError> {
        let slot = self.slot(i);
        let left_open = self.left_open();
        let Some(elements) = left_open.collection.take_if(|open| open.slot() == slot) else {
            return Ok(None);
        };
        if elements.kind() != kind {
            left_open.collection = Some(elements);
            return Err(CmdError::WRONG_TYPE);
        }
        left_open.is_owed = elements.has_changed();
        self.touch(tx, i);
        Ok(Some(elements))
    }

    /// Removes the nodes of the collection that the `i`-th key has and is about to lose, now or in the
    /// background.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(super) fn bury(&mut self, tx: &mut Tx<'_>, i: u32) -> Result<(), TxError> {
        let slot = self.slot(i);
        match tx.value(slot) {
            Some(value) if Kind::of(value.tag()) != Kind::STRING => {
                bury(tx, slot, self.remains()).map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// The bytes of a value, and its expiry.
fn read_value(entry: &Entry<'_>) -> (Vec<u8>, Option<u64>) {
    let mut value = Vec::with_capacity(entry.len());
    entry.copy_to(&mut value);
    (value, entry.expire_at_ms)
}
