//! The head of a record, and the kinds of its body.

use crate::error::DecodeCause;
use crate::{GSN_MAX, LOG_NONE, LogGsn};

/// Bytes of a record's head.
pub const RECORD_HEAD_BYTES: usize = 16;

/// Longest record, head and dependencies included (4 GiB − 128 KiB): it must
/// fit a batch, whose length is a `u32`.
pub const RECORD_BYTES_MAX: usize = u32::MAX as usize - 128 * 1024;

/// Bytes of a packed dependency.
pub(crate) const DEP_BYTES: usize = 8;

/// The kind of a record's body. Unused numbers are reserved (`docs/formats.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The writes of one transaction: after-images and changed ranges ([`super::WriteIter`]).
    Writes = 1,
    /// The call of a procedure or of a command, and the writes of its transaction
    /// ([`super::LoggedCall`]).
    Command = 2,
    /// The before-images and the writes of one transaction ([`super::Record::before_images`]).
    UndoWrites = 3,
    /// An operation on a table whose kind writes in place ([`super::LoggedOperation`]).
    Operation = 4,
    /// The undo of a record of [`RecordKind::Operation`] ([`super::LoggedOperation`]).
    Undo = 7,
    /// The end of a transaction with operations, and its writes ([`super::LoggedEnd`]).
    End = 8,
    /// A note of a checkpoint scheme: bytes that the scheme interprets. Replay skips such records.
    Scheme = 10,
    /// As [`RecordKind::Command`], behind the before-images of its writes
    /// ([`super::Record::before_images`]).
    UndoCommand = 12,
    /// The call of a procedure, which replay makes again ([`super::CallToRepeat`]).
    Call = 13,
}

impl RecordKind {
    /// The kind of a code.
    ///
    /// # Errors
    /// [`DecodeCause::Unknown`].
    pub fn from_code(code: u8) -> Result<Self, DecodeCause> {
        match code {
            1 => Ok(RecordKind::Writes),
            2 => Ok(RecordKind::Command),
            3 => Ok(RecordKind::UndoWrites),
            4 => Ok(RecordKind::Operation),
            7 => Ok(RecordKind::Undo),
            8 => Ok(RecordKind::End),
            10 => Ok(RecordKind::Scheme),
            12 => Ok(RecordKind::UndoCommand),
            13 => Ok(RecordKind::Call),
            _ => Err(DecodeCause::Unknown { field: "record kind", value: u64::from(code) }),
        }
    }
}

/// Log number in the top byte, gsn below.
pub(crate) fn pack_dep(dep: LogGsn) -> u64 {
    u64::from(dep.log) << 56 | dep.gsn
}

pub(super) fn unpack_dep(word: u64) -> LogGsn {
    LogGsn { log: (word >> 56) as u8, gsn: word & ((1 << 56) - 1) }
}

/// Whether the dependency names a log and a gsn that can exist.
pub(crate) fn dep_is_legal(dep: LogGsn) -> bool {
    dep.log != LOG_NONE && (1..=GSN_MAX).contains(&dep.gsn)
}

/// Dependencies of a record or of a batch: checked when it was decoded.
#[derive(Clone, Debug)]
pub struct DepIter<'a> {
    packed: std::slice::ChunksExact<'a, u8>,
}

impl<'a> DepIter<'a> {
    /// The dependencies in `bytes`; `None` if one of them is impossible.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let iter = DepIter { packed: bytes.chunks_exact(DEP_BYTES) };
        iter.clone().all(dep_is_legal).then_some(iter)
    }
}

impl Iterator for DepIter<'_> {
    type Item = LogGsn;

    fn next(&mut self) -> Option<LogGsn> {
        self.packed.next().map(|bytes| unpack_dep(crate::bytes::u64_at(bytes, 0)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.packed.size_hint()
    }
}

impl ExactSizeIterator for DepIter<'_> {}
