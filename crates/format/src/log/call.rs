//! The bodies of records that hold calls. A [`Command`](super::RecordKind::Command) names the call
//! beside the writes of the transaction that it was. A [`Call`](super::RecordKind::Call) has the call
//! instead of the writes.
//!
//! ```text
//! command = name length u8 · name · version u32 · arguments length u32 · arguments
//!         · inputs length u32 · inputs · writes
//! call    = name length u8 · name · version u32 · inputs length u8 · inputs · digest u32 · arguments
//! ```

use crate::bytes::Cursor;
use crate::error::{DecodeCause, DecodeError, EncodeError};

use super::read::Record;
use super::write::WriteIter;

const WHAT: &str = "log record of a call";

/// Most bytes of the inputs of a [`CallToRepeat`].
pub const CALL_INPUTS_BYTES_MAX: usize = u8::MAX as usize;

/// Longest name of a procedure or command, in bytes.
pub const CALL_NAME_BYTES_MAX: usize = u8::MAX as usize;

/// The call that a transaction was. The program that registered the name can read arguments and
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCall<'a> {
    /// Name of the procedure or command: 1 to [`CALL_NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
    /// Version of the procedure or command.
    pub version: u32,
    /// Encoded arguments of the call.
    pub arguments: &'a [u8],
    /// Other inputs of the call, such as the time, encoded.
    pub inputs: &'a [u8],
}

impl<'a> LoggedCall<'a> {
    /// Appends the head of a record's body. The writes follow.
    ///
    /// # Errors
    /// [`EncodeError::CallTooLong`] if a field is longer than its length can say, or the name is
    /// empty. Nothing was appended.
    pub fn encode_head(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let LoggedCall { name, version, arguments, inputs } = *self;
        let name_len = u8::try_from(name.len()).ok().filter(|&len| len > 0);
        let lens = u32::try_from(arguments.len()).ok().zip(u32::try_from(inputs.len()).ok());
        let Some((name_len, (arguments_len, inputs_len))) = name_len.zip(lens) else {
            let bytes = name.len() + arguments.len() + inputs.len();
            return Err(EncodeError::CallTooLong { bytes });
        };
        out.push(name_len);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&arguments_len.to_le_bytes());
        out.extend_from_slice(arguments);
        out.extend_from_slice(&inputs_len.to_le_bytes());
        out.extend_from_slice(inputs);
        Ok(())
    }

    /// The call and the writes of a record.
    #[inline]
    pub(super) fn decode(record: &Record<'a>) -> Result<(Self, WriteIter<'a>), DecodeError> {
        let mut rest = Cursor::new(record.body, record.body_offset, WHAT);
        let name = decode_name(&mut rest)?;
        let version = rest.u32()?;
        let arguments_len = rest.u32()? as usize;
        let arguments = rest.take(arguments_len)?;
        let inputs_len = rest.u32()? as usize;
        let inputs = rest.take(inputs_len)?;
        let writes = WriteIter::new(rest.rest(), rest.offset());
        Ok((LoggedCall { name, version, arguments, inputs }, writes))
    }
}

/// A call that replay makes again, instead of applying writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallToRepeat<'a> {
    /// Name of the procedure: 1 to [`CALL_NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
    /// Version of the procedure.
    pub version: u32,
    /// What the call has read of its surroundings, encoded: at most [`CALL_INPUTS_BYTES_MAX`] bytes.
    pub inputs: &'a [u8],
    /// Digest of the writes that the call has made. The call makes the same ones again.
    pub digest: u32,
    /// Encoded arguments of the call.
    pub arguments: &'a [u8],
}

impl<'a> CallToRepeat<'a> {
    /// Appends the body of the record.
    ///
    /// # Errors
    /// [`EncodeError::CallTooLong`] if name or inputs are longer than their lengths can say, or the
    /// name is empty. Nothing was appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let CallToRepeat { name, version, inputs, digest, arguments } = *self;
        let name_len = u8::try_from(name.len()).ok().filter(|&len| len > 0);
        let Some((name_len, inputs_len)) = name_len.zip(u8::try_from(inputs.len()).ok()) else {
            let bytes = name.len() + inputs.len() + arguments.len();
            return Err(EncodeError::CallTooLong { bytes });
        };
        out.push(name_len);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        out.push(inputs_len);
        out.extend_from_slice(inputs);
        out.extend_from_slice(&digest.to_le_bytes());
        out.extend_from_slice(arguments);
        Ok(())
    }

    pub(super) fn decode(record: &Record<'a>) -> Result<Self, DecodeError> {
        let mut rest = Cursor::new(record.body, record.body_offset, WHAT);
        let name = decode_name(&mut rest)?;
        let version = rest.u32()?;
        let inputs_len = usize::from(rest.u8()?);
        let inputs = rest.take(inputs_len)?;
        let digest = rest.u32()?;
        Ok(CallToRepeat { name, version, inputs, digest, arguments: rest.rest() })
    }
}

fn decode_name<'a>(rest: &mut Cursor<'a>) -> Result<&'a str, DecodeError> {
    let len = usize::from(rest.u8()?);
    let name = std::str::from_utf8(rest.take(len)?).ok().filter(|name| !name.is_empty());
    name.ok_or_else(|| rest.error(DecodeCause::Inconsistent("a call without a readable name")))
}
