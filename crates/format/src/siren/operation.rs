//! Operations on tables of kind `siren`, as records of the engine's log have them.
//!
//! ```text
//! operation = code u8 · level u64 · transaction u64 · statement u32 · length of the key u32 · key
//!           · [tag u8 · value]
//! code      = 1 put, 2 delete, 3 undo; plus 4 if the operation took the place of an earlier one of
//!             its statement on this key
//! ```
//! Only a put has the part in brackets, up to the end. There are no before-images: the version before
//! an operation stays until the transaction has ended, and an undo removes the newest one.

use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError};

const WHAT: &str = "operation on a table of kind siren";
const PUT: u8 = 1;
const DELETE: u8 = 2;
const UNDO: u8 = 3;
const REPLACES: u8 = 4;
/// Bytes before the key.
const HEAD_BYTES: usize = 25;

/// What an operation does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TupleChange<'a> {
    /// Adds a version with this tag and value.
    Put(u8, &'a [u8]),
    /// Adds a delete mark.
    Delete,
    /// Takes the version of the transaction's statement back.
    Undo,
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TupleOperation<'a> {
    /// Level: a checkpoint of this level or of a higher one holds the operation.
    pub level: u64,
    /// The transaction's number among those of the kind.
    pub transaction: u64,
    /// The statement.
    pub statement: u32,
    /// Whether the operation took the place of an earlier one of its statement on this key.
    pub replaces: bool,
    /// The key.
    pub key: &'a [u8],
    /// What the operation does to the key.
    pub change: TupleChange<'a>,
}

impl<'a> TupleOperation<'a> {
    /// Appends the bytes of the operation.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let code = match self.change {
            TupleChange::Put(..) => PUT,
            TupleChange::Delete => DELETE,
            TupleChange::Undo => UNDO,
        };
        out.push(code | if self.replaces { REPLACES } else { 0 });
        out.extend_from_slice(&self.level.to_le_bytes());
        out.extend_from_slice(&self.transaction.to_le_bytes());
        out.extend_from_slice(&self.statement.to_le_bytes());
        out.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        out.extend_from_slice(self.key);
        if let TupleChange::Put(tag, value) = self.change {
            out.push(tag);
            out.extend_from_slice(value);
        }
    }

    /// The first bytes of the operation, which an undo needs: as many as the undo has.
    pub fn undo_bytes(&self) -> usize {
        HEAD_BYTES + self.key.len()
    }

    /// The undo of an operation, whose bytes begin with these.
    ///
    /// # Errors
    /// Anything but the begin of an operation.
    pub fn decode_undo(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (code, head) = Self::decode_head(&mut Cursor::new(bytes, 0, WHAT))?;
        match code & !REPLACES {
            PUT | DELETE | UNDO => Ok(head),
            _ => Err(unknown(code)),
        }
    }

    /// The code, and the parts that all operations have.
    fn decode_head(rest: &mut Cursor<'a>) -> Result<(u8, Self), DecodeError> {
        let code = rest.u8()?;
        let (level, transaction, statement) = (rest.u64()?, rest.u64()?, rest.u32()?);
        let len = rest.u32()? as usize;
        let (key, replaces, change) = (rest.take(len)?, code & REPLACES != 0, TupleChange::Undo);
        Ok((code, Self { level, transaction, statement, replaces, key, change }))
    }

    /// Decodes the bytes of an operation.
    ///
    /// # Errors
    /// Anything but the bytes of one operation.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(bytes, 0, WHAT);
        let (code, head) = Self::decode_head(&mut rest)?;
        let change = match code & !REPLACES {
            PUT => TupleChange::Put(rest.u8()?, rest.take(rest.rest().len())?),
            DELETE => TupleChange::Delete,
            UNDO => TupleChange::Undo,
            _ => return Err(unknown(code)),
        };
        if !rest.is_empty() {
            return Err(rest.error(DecodeCause::Inconsistent("bytes behind the operation")));
        }
        Ok(Self { change, ..head })
    }
}

fn unknown(code: u8) -> DecodeError {
    let cause = DecodeCause::Unknown { field: "code", value: u64::from(code) };
    DecodeError { what: WHAT, offset: 0, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_and_an_undo_is_no_longer_than_what_it_undoes() {
        for change in [TupleChange::Put(7, b"value"), TupleChange::Delete, TupleChange::Undo] {
            for (replaces, key) in [(false, &b""[..]), (true, b"key")] {
                let operation = TupleOperation {
                    level: 9,
                    transaction: u64::MAX,
                    statement: 3,
                    replaces,
                    key,
                    change,
                };
                let encode = |operation: &TupleOperation<'_>| {
                    let mut out = Vec::new();
                    operation.encode(&mut out);
                    out
                };
                let bytes = encode(&operation);
                assert_eq!(TupleOperation::decode(&bytes), Ok(operation));
                let undo = TupleOperation { change: TupleChange::Undo, ..operation };
                let begin = &bytes[..operation.undo_bytes()];
                assert_eq!(encode(&undo).len(), begin.len());
                assert_eq!(TupleOperation::decode_undo(begin), Ok(undo));
                assert_eq!(TupleOperation::decode_undo(&bytes), Ok(undo), "a start has all bytes");
                assert!(TupleOperation::decode_undo(&begin[..begin.len() - 1]).is_err());
                for len in 0..25 + key.len() {
                    assert!(TupleOperation::decode(&bytes[..len]).is_err(), "{len} bytes");
                }
            }
        }
        assert!(TupleOperation::decode(&[0; 25]).is_err(), "an unknown code");
        assert!(TupleOperation::decode_undo(&[0; 25]).is_err(), "an unknown code");
    }
}
