//! The bodies of records that hold calls. A [`Command`](super::RecordKind::Command) names the call
//! beside the writes of the transaction that it was. A [`Call`](super::RecordKind::Call) has the call
//! instead of the writes.
//!
//! ```text
//! command = name length u8 · name · version u32 · arguments length u32 · arguments
//!         · inputs length u32 · inputs · writes
//! call    = name length u8 · name · version u32 · inputs length u8 · inputs · digest u32
//!         · shared u8 · arguments
//! ```
//! A call with the name and version of the call before it in its batch leaves them out: the length of its
//! name is 0. It may also leave out the first bytes of its arguments, if they are those of the call
//! before it: *shared* is their number.

use std::borrow::Cow;

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

/// Fewer shared bytes are not left out, since a reader would copy the arguments for them.
const SHARED_BYTES_MIN: usize = 8;
const SHARED_BYTES_MAX: usize = u8::MAX as usize;
const VERSION_BYTES: usize = 4;
const DIGEST_BYTES: usize = 4;

/// A call that replay makes again, instead of applying writes.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub arguments: Cow<'a, [u8]>,
}

impl CallToRepeat<'_> {
    /// Appends the body of the record, with nothing left out.
    ///
    /// # Errors
    /// [`EncodeError::CallTooLong`] if name or inputs are longer than their lengths can say, or the
    /// name is empty. Nothing was appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let CallToRepeat { name, version, inputs, digest, arguments } = self;
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
        out.push(0);
        out.extend_from_slice(arguments);
        Ok(())
    }
}

/// What the next call of a batch may leave out.
#[derive(Clone, Debug, Default)]
pub(super) struct CallBefore {
    /// Name and version, as encoded.
    named: Vec<u8>,
    /// The first bytes of the arguments.
    arguments: Vec<u8>,
}

impl CallBefore {
    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.arguments.clear();
    }

    /// Shortens the body of a call that begins at `start` and ends with the buffer. Bytes that are no
    /// whole call stay as they are.
    pub(super) fn shorten(&mut self, buf: &mut Vec<u8>, start: usize) {
        let body = &buf[start..];
        let length = |at: usize| body.get(at).map(|&len| usize::from(len));
        let name_end = length(0).map(|len| 1 + len + VERSION_BYTES);
        let digest_at = name_end.and_then(|end| Some(end + 1 + length(end)?));
        let (Some(name_end), Some(digest_at)) = (name_end, digest_at) else { return self.clear() };
        let shared_at = digest_at + DIGEST_BYTES;
        let Some(arguments) = body.get(shared_at + 1..) else { return self.clear() };
        let kept = &arguments[..arguments.len().min(SHARED_BYTES_MAX)];
        if self.named != body[..name_end] {
            self.clear();
            self.named.extend_from_slice(&body[..name_end]);
            self.arguments.extend_from_slice(kept);
            return;
        }
        let shared = shared_bytes(&self.arguments, kept);
        self.arguments.truncate(shared);
        self.arguments.extend_from_slice(&kept[shared..]);
        buf[start] = 0;
        buf[start + shared_at] = shared as u8;
        let arguments_at = start + shared_at + 1;
        buf.copy_within(start + name_end..arguments_at, start + 1);
        buf.copy_within(arguments_at + shared.., arguments_at + 1 - name_end);
        buf.truncate(buf.len() + 1 - name_end - shared);
    }
}

/// How many of the first bytes are equal. 0 for few.
fn shared_bytes(before: &[u8], now: &[u8]) -> usize {
    let first = |of: &[u8]| of.first_chunk::<SHARED_BYTES_MIN>().copied();
    match (first(before), first(now)) {
        (Some(before), Some(now)) if before == now => {}
        _ => return 0,
    }
    before.iter().zip(now).take_while(|(before, now)| before == now).count()
}

/// Decodes the calls of a batch, one after the other from its first record on.
#[derive(Clone, Debug, Default)]
pub struct CallReader<'a> {
    named: Option<(&'a str, u32)>,
    /// The first bytes of the arguments of the call before.
    arguments: Vec<u8>,
}

impl<'a> CallReader<'a> {
    /// The call of a record of kind [`Call`](super::RecordKind::Call), the next one of its batch.
    ///
    /// # Errors
    /// The body encodes no call.
    pub fn decode(&mut self, record: &Record<'a>) -> Result<CallToRepeat<'a>, DecodeError> {
        let mut rest = Cursor::new(record.body, record.body_offset, WHAT);
        let inconsistent = |rest: &Cursor<'_>, why| Err(rest.error(DecodeCause::Inconsistent(why)));
        let is_named = record.body.first() != Some(&0);
        let (name, version) = if is_named {
            let named = (decode_name(&mut rest)?, rest.u32()?);
            self.arguments.clear();
            self.named = Some(named);
            named
        } else {
            rest.u8()?;
            let Some(named) = self.named else {
                return inconsistent(&rest, "a call without a name and without one before it");
            };
            named
        };
        let inputs_len = usize::from(rest.u8()?);
        let inputs = rest.take(inputs_len)?;
        let digest = rest.u32()?;
        let shared = usize::from(rest.u8()?);
        if shared > self.arguments.len() {
            return inconsistent(&rest, "a call that shares more than the call before it has");
        }
        let own = rest.rest();
        self.arguments.truncate(shared);
        let arguments = if shared == 0 {
            Cow::Borrowed(own)
        } else {
            [&self.arguments[..], own].concat().into()
        };
        let kept = own.len().min(SHARED_BYTES_MAX - shared);
        self.arguments.extend_from_slice(&own[..kept]);
        Ok(CallToRepeat { name, version, inputs, digest, arguments })
    }
}

fn decode_name<'a>(rest: &mut Cursor<'a>) -> Result<&'a str, DecodeError> {
    let len = usize::from(rest.u8()?);
    let name = std::str::from_utf8(rest.take(len)?).ok().filter(|name| !name.is_empty());
    name.ok_or_else(|| rest.error(DecodeCause::Inconsistent("a call without a readable name")))
}
