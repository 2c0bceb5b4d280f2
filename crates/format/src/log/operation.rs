//! The bodies of [`Operation`](super::RecordKind::Operation), [`Undo`](super::RecordKind::Undo) and
//! [`End`](super::RecordKind::End) records: transactions on kinds of tables that write in place.
//!
//! ```text
//! operation = transaction u64 · table u16 · generation u32 · body of the kind
//! undo      = transaction u64 · undone u64 · next u64 · table u16 · generation u32 · body of the kind
//! end       = transaction u64 · outcome u8 · writes
//! ```
//!
//! A transaction is named by the place of its first record: the log in the top 8 bits, the gsn
//! below. In the first record itself that word is zero.

use crate::LogGsn;
use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError};

use super::read::Record;
use super::record::{dep_is_legal, pack_dep, unpack_dep};
use super::write::WriteIter;

const WHAT: &str = "log record of an operation";

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TransactionEnd {
    /// The transaction committed, together with the writes in the same record.
    Committed = 1,
    /// The transaction aborted. Each of its operations was undone before.
    Aborted = 2,
}

/// The operation of a transaction on a table, or the undo of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedOperation<'a> {
    /// The transaction's first record; `None` if this is the first.
    pub transaction: Option<LogGsn>,
    /// For an undo, the gsn of the undone operation, and the gsn of the next operation to undo, if
    /// there is one. Both are in the log of the undo or in the transaction's own log.
    pub undoes: Option<(u64, Option<u64>)>,
    /// Table.
    pub table: u16,
    /// Generation of the table.
    pub generation: u32,
    /// The bytes of the table's kind.
    pub body: &'a [u8],
}

impl<'a> LoggedOperation<'a> {
    /// Bytes at the begin of an undo's body, before the bytes of the kind of table.
    pub const UNDO_HEAD_BYTES: u64 = 8 + 8 + 8 + 2 + 4;

    /// Appends the body of the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.transaction.map_or(0, pack_dep).to_le_bytes());
        if let Some((undone, next)) = self.undoes {
            out.extend_from_slice(&undone.to_le_bytes());
            out.extend_from_slice(&next.unwrap_or(0).to_le_bytes());
        }
        out.extend_from_slice(&self.table.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(self.body);
    }

    /// Names the transaction in the body of an operation, of an undo or of an end, by its first record.
    ///
    /// # Panics
    /// If the bytes are shorter than the name.
    pub fn name_transaction(body: &mut [u8], first: LogGsn) {
        let name = pack_dep(first).to_le_bytes();
        body[..name.len()].copy_from_slice(&name);
    }

    pub(super) fn decode(record: &Record<'a>, is_undo: bool) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(record.body, record.body_offset, WHAT);
        let transaction = transaction(&mut rest)?;
        let undoes = if is_undo {
            let (undone, next) = (rest.u64()?, rest.u64()?);
            if undone == 0 || next >= undone || transaction.is_none() {
                return Err(rest.error(DecodeCause::Inconsistent("an undo of nothing")));
            }
            Some((undone, (next != 0).then_some(next)))
        } else {
            None
        };
        let (table, generation) = (rest.u16()?, rest.u32()?);
        let body = rest.rest();
        Ok(Self { transaction, undoes, table, generation, body })
    }
}

/// The end of a transaction that changed tables in place.
#[derive(Clone, Debug)]
pub struct LoggedEnd<'a> {
    /// The transaction's first record.
    pub transaction: LogGsn,
    /// How the transaction ended.
    pub outcome: TransactionEnd,
    /// The writes to records in memory. None if the transaction aborted.
    pub writes: WriteIter<'a>,
}

impl<'a> LoggedEnd<'a> {
    /// Bytes of the body of an abort's record.
    pub const ABORT_BYTES: u64 = 8 + 1;

    /// Appends the head of the record's body. The writes follow.
    pub fn encode_head(transaction: LogGsn, outcome: TransactionEnd, out: &mut Vec<u8>) {
        out.extend_from_slice(&pack_dep(transaction).to_le_bytes());
        out.push(outcome as u8);
    }

    pub(super) fn decode(record: &Record<'a>) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(record.body, record.body_offset, WHAT);
        let Some(transaction) = transaction(&mut rest)? else {
            return Err(rest.error(DecodeCause::Inconsistent("the end of no transaction")));
        };
        let outcome = match rest.u8()? {
            1 => TransactionEnd::Committed,
            2 => TransactionEnd::Aborted,
            code => {
                let value = u64::from(code);
                return Err(rest.error(DecodeCause::Unknown { field: "outcome", value }));
            }
        };
        let offset = rest.offset();
        let body = rest.rest();
        if outcome == TransactionEnd::Aborted && !body.is_empty() {
            return Err(rest.error(DecodeCause::Inconsistent("writes of an aborted transaction")));
        }
        Ok(Self { transaction, outcome, writes: WriteIter::new(body, offset) })
    }
}

/// The transaction that a record names; `None` for zero.
fn transaction(rest: &mut Cursor<'_>) -> Result<Option<LogGsn>, DecodeError> {
    match rest.u64()? {
        0 => Ok(None),
        word => {
            let place = unpack_dep(word);
            if !dep_is_legal(place) {
                return Err(rest.error(DecodeCause::Inconsistent("impossible transaction")));
            }
            Ok(Some(place))
        }
    }
}
