//! The redo log of a SIREN store: one record for each operation, with transaction and statement.
//!
//! ```text
//! batch  = magic u32 · crc u32 · bytes of the records u32 · zero u32 · number u64 · flushed u64
//!        · records · zeros
//! record = kind u8 · level u64 · transaction u64 · fields of the kind
//! put    = statement u32 · table u16 · length of the key u32 · length of the value u32 · key · value
//! delete = statement u32 · table u16 · length of the key u32 · key
//! change = statement u32 · table u16 · length of the key u32 · flags u8 · lengths of before and after u32
//!        · key · before · after
//! rollback = statement u32        table = table u16 · length of the name u32 · name
//! ```
//! The level says which checkpoint holds an operation, so no mark between records is needed. A
//! batch begins at a multiple of 512 bytes, so a torn write spoils no batch before. All batches of
//! numbers below `flushed` were durable before the batch was written.

use crate::bytes::{Cursor, put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};

const WHAT: &str = "log segment of a SIREN store";
const MAGIC: u32 = u32::from_le_bytes(*b"SPSL");
/// Offset from which the checksum counts.
const CRC_FROM: usize = 8;

/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: usize = 32;
/// Batches begin at multiples of this in the file.
pub const BATCH_ALIGN: usize = 512;
/// Most bytes of a batch.
pub const BATCH_BYTES_MAX: usize = 1 << 31;

/// The file header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Number of the segment. Segments follow one another without a gap.
    pub number: u64,
    /// The opening of the store that wrote the segment. A new one has aborted all transactions.
    pub incarnation: u64,
}

impl SegmentHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; 16];
        put(&mut params, 0, &self.number.to_le_bytes());
        put(&mut params, 8, &self.incarnation.to_le_bytes());
        encode_header(FileKind::SirenLog, self.store, self.created_ms, &params)
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Anything but an intact header of this store and number.
    pub fn decode(bytes: &[u8], store: StoreId, number: u64) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::SirenLog, WHAT)?;
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        if header.store != store {
            return fail(DecodeCause::WrongStore { found: header.store, expected: store });
        }
        let found = u64_at(header.params, 0);
        if found != number {
            let field = "number of the segment";
            return fail(DecodeCause::WrongFile { field, found, expected: number });
        }
        let incarnation = u64_at(header.params, 8);
        Ok(Self { store, created_ms: header.created_ms, number, incarnation })
    }

    /// The seed of the checksums of the batches.
    pub fn identity(&self) -> Identity {
        let numbers = [self.number, self.incarnation, self.created_ms];
        Identity::new(FileKind::SirenLog, self.store, &numbers)
    }
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRecord<'a> {
    /// A statement gives a key a value.
    Put {
        /// Statement.
        statement: u32,
        /// Table.
        table: u16,
        /// Key.
        key: &'a [u8],
        /// Value.
        value: &'a [u8],
    },
    /// A statement deletes a key.
    Delete {
        /// Statement.
        statement: u32,
        /// Table.
        table: u16,
        /// Key.
        key: &'a [u8],
    },
    /// The transaction takes back what this statement and later ones have done.
    Rollback {
        /// Statement.
        statement: u32,
    },
    /// The transaction commits.
    Commit,
    /// The transaction aborts.
    Abort,
    /// A statement changes a key, with the value that it overwrites: a record of the fuzzy rival.
    Change {
        /// Statement.
        statement: u32,
        /// Table.
        table: u16,
        /// Key.
        key: &'a [u8],
        /// Value before. `None` if there was none.
        before: Option<&'a [u8]>,
        /// Value afterwards. `None` for a deletion.
        after: Option<&'a [u8]>,
    },
    /// A new table. Belongs to no transaction.
    Table {
        /// Table.
        table: u16,
        /// Name of the table.
        name: &'a str,
    },
}

impl<'a> LogRecord<'a> {
    /// Appends the record of an operation of this level and transaction.
    pub fn encode(&self, level: u64, transaction: u64, out: &mut Vec<u8>) {
        let kind = match self {
            LogRecord::Put { .. } => 1u8,
            LogRecord::Delete { .. } => 2,
            LogRecord::Rollback { .. } => 3,
            LogRecord::Commit => 4,
            LogRecord::Abort => 5,
            LogRecord::Table { .. } => 6,
            LogRecord::Change { .. } => 7,
        };
        out.push(kind);
        out.extend_from_slice(&level.to_le_bytes());
        out.extend_from_slice(&transaction.to_le_bytes());
        match *self {
            LogRecord::Put { statement, table, key, value } => {
                out.extend_from_slice(&statement.to_le_bytes());
                out.extend_from_slice(&table.to_le_bytes());
                out.extend_from_slice(&(key.len() as u32).to_le_bytes());
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            LogRecord::Delete { statement, table, key } => {
                out.extend_from_slice(&statement.to_le_bytes());
                out.extend_from_slice(&table.to_le_bytes());
                out.extend_from_slice(&(key.len() as u32).to_le_bytes());
                out.extend_from_slice(key);
            }
            LogRecord::Rollback { statement } => out.extend_from_slice(&statement.to_le_bytes()),
            LogRecord::Commit | LogRecord::Abort => {}
            LogRecord::Change { statement, table, key, before, after } => {
                out.extend_from_slice(&statement.to_le_bytes());
                out.extend_from_slice(&table.to_le_bytes());
                out.extend_from_slice(&(key.len() as u32).to_le_bytes());
                out.push(u8::from(before.is_some()) | u8::from(after.is_some()) << 1);
                for value in [before, after] {
                    let len = value.map_or(0, <[u8]>::len) as u32;
                    out.extend_from_slice(&len.to_le_bytes());
                }
                out.extend_from_slice(key);
                out.extend_from_slice(before.unwrap_or_default());
                out.extend_from_slice(after.unwrap_or_default());
            }
            LogRecord::Table { table, name } => {
                out.extend_from_slice(&table.to_le_bytes());
                out.extend_from_slice(&(name.len() as u32).to_le_bytes());
                out.extend_from_slice(name.as_bytes());
            }
        }
    }

    fn decode(rest: &mut Cursor<'a>) -> Result<(u64, u64, Self), DecodeError> {
        let kind = rest.u8()?;
        let (level, transaction) = (rest.u64()?, rest.u64()?);
        let record = match kind {
            1 => {
                let (statement, table) = (rest.u32()?, rest.u16()?);
                let (key, value) = (rest.u32()? as usize, rest.u32()? as usize);
                let (key, value) = (rest.take(key)?, rest.take(value)?);
                LogRecord::Put { statement, table, key, value }
            }
            2 => {
                let (statement, table) = (rest.u32()?, rest.u16()?);
                let len = rest.u32()? as usize;
                LogRecord::Delete { statement, table, key: rest.take(len)? }
            }
            3 => LogRecord::Rollback { statement: rest.u32()? },
            4 => LogRecord::Commit,
            5 => LogRecord::Abort,
            6 => {
                let table = rest.u16()?;
                let len = rest.u32()? as usize;
                let name = std::str::from_utf8(rest.take(len)?)
                    .map_err(|_| rest.error(DecodeCause::Inconsistent("a name is not UTF-8")))?;
                LogRecord::Table { table, name }
            }
            7 => {
                let (statement, table) = (rest.u32()?, rest.u16()?);
                let (key, flags) = (rest.u32()? as usize, rest.u8()?);
                let (before, after) = (rest.u32()? as usize, rest.u32()? as usize);
                let key = rest.take(key)?;
                let (before, after) = (rest.take(before)?, rest.take(after)?);
                let before = (flags & 1 != 0).then_some(before);
                let after = (flags & 2 != 0).then_some(after);
                LogRecord::Change { statement, table, key, before, after }
            }
            code => {
                let value = u64::from(code);
                return Err(rest.error(DecodeCause::Unknown { field: "record kind", value }));
            }
        };
        Ok((level, transaction, record))
    }
}

/// Completes a batch of this number. `batch` begins with [`BATCH_HEADER_BYTES`] bytes of room, which
/// the records follow. All batches of the segment below `flushed` are durable.
pub fn seal_batch(
    batch: &mut Vec<u8>,
    identity: Identity,
    offset: u64,
    (number, flushed): (u64, u64),
) {
    let records = batch.len() - BATCH_HEADER_BYTES;
    batch.resize(batch.len().next_multiple_of(BATCH_ALIGN), 0);
    put(batch, 0, &MAGIC.to_le_bytes());
    put(batch, 8, &(records as u32).to_le_bytes());
    put(batch, 12, &0u32.to_le_bytes());
    put(batch, 16, &number.to_le_bytes());
    put(batch, 24, &flushed.to_le_bytes());
    let crc = identity.checksum(offset, &batch[CRC_FROM..]);
    put(batch, 4, &crc.to_le_bytes());
}

/// Reads the batches of a segment up to its end: the first bytes that are no batch of it.
#[derive(Clone, Debug)]
pub struct BatchReader<'a> {
    identity: Identity,
    segment: &'a [u8],
    at: usize,
    number: u64,
}

/// A record with its level and its transaction.
pub type Logged<'a> = (u64, u64, LogRecord<'a>);

impl<'a> BatchReader<'a> {
    /// A reader of the whole bytes of a segment.
    pub fn new(header: &SegmentHeader, segment: &'a [u8]) -> Self {
        Self { identity: header.identity(), segment, at: HEADER_BYTES, number: 0 }
    }

    /// Offset of the next batch. At the end, the length of the valid bytes.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Number of the next batch.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends the records of the next batch. `false` at the end.
    ///
    /// # Errors
    /// A batch with a valid checksum whose bytes are no records.
    pub fn read(&mut self, out: &mut Vec<Logged<'a>>) -> Result<bool, DecodeError> {
        let Some((batch, number, _)) = self.batch_at(self.at) else {
            return Ok(false);
        };
        if number != self.number {
            return Ok(false);
        }
        let (offset, len) = (self.at as u64, batch.len());
        let records = u32_at(batch, 8) as usize;
        let payload = &batch[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + records];
        let mut rest = Cursor::new(payload, offset + BATCH_HEADER_BYTES as u64, WHAT);
        while !rest.is_empty() {
            out.push(LogRecord::decode(&mut rest)?);
        }
        self.at += len;
        self.number += 1;
        Ok(true)
    }

    /// The valid batch at an offset, with its number and how many were flushed before it.
    fn batch_at(&self, at: usize) -> Option<(&'a [u8], u64, u64)> {
        let rest = self.segment.get(at..)?;
        if rest.len() < BATCH_HEADER_BYTES || u32_at(rest, 0) != MAGIC {
            return None;
        }
        let len = BATCH_HEADER_BYTES + u32_at(rest, 8) as usize;
        let batch = rest.get(..len.next_multiple_of(BATCH_ALIGN))?;
        let crc = self.identity.checksum(at as u64, &batch[CRC_FROM..]);
        (u32_at(batch, 4) == crc).then(|| (batch, u64_at(batch, 16), u64_at(batch, 24)))
    }

    /// At the end: whether a later batch proves that the next one was durable once, so that this is
    /// damage and no torn write.
    pub fn is_damaged(&self) -> bool {
        let later = (self.at..self.segment.len()).step_by(BATCH_ALIGN);
        let mut proofs = later.filter_map(|at| self.batch_at(at));
        proofs.any(|(_, _, flushed)| flushed > self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_up_to_a_torn_batch() {
        let header =
            SegmentHeader { store: StoreId([2; 16]), created_ms: 1, number: 4, incarnation: 2 };
        assert_eq!(SegmentHeader::decode(&header.encode(), header.store, 4), Ok(header));
        assert!(SegmentHeader::decode(&header.encode(), header.store, 5).is_err());
        let records = [
            LogRecord::Table { table: 1, name: "t" },
            LogRecord::Put { statement: 1, table: 1, key: b"k", value: b"v" },
            LogRecord::Delete { statement: 2, table: 1, key: b"k" },
            LogRecord::Change {
                statement: 2,
                table: 1,
                key: b"k",
                before: Some(b"old"),
                after: None,
            },
            LogRecord::Rollback { statement: 2 },
            LogRecord::Commit,
            LogRecord::Abort,
        ];
        let mut segment = header.encode().to_vec();
        for number in 0..2 {
            let mut batch = vec![0; BATCH_HEADER_BYTES];
            records.iter().for_each(|record| record.encode(7, 9, &mut batch));
            seal_batch(&mut batch, header.identity(), segment.len() as u64, (number, number));
            segment.extend(batch);
        }
        let read = |segment: &[u8]| {
            let mut reader = BatchReader::new(&header, segment);
            let mut count = 0;
            loop {
                let mut out = Vec::new();
                if !reader.read(&mut out).expect("records") {
                    return (count, reader.offset());
                }
                assert!(out.iter().map(|it| it.2).eq(records), "{out:?}");
                assert!(out.iter().all(|it| (it.0, it.1) == (7, 9)));
                count += 1;
            }
        };
        assert_eq!(read(&segment), (2, segment.len() as u64));
        let first = HEADER_BYTES + BATCH_ALIGN;
        for at in first..first + 100 {
            let mut torn = segment.clone();
            torn[at] ^= 1;
            let seen = read(&torn);
            assert_eq!(seen, (1, first as u64), "byte {at}");
        }
        assert_eq!(read(&segment[..first + 3]), (1, first as u64));
        let mut damaged = segment.clone();
        damaged[HEADER_BYTES + 40] ^= 1;
        let mut reader = BatchReader::new(&header, &damaged);
        assert_eq!(reader.read(&mut Vec::new()), Ok(false));
        assert!(reader.is_damaged(), "the second batch says that the first one was flushed");
        let mut reader = BatchReader::new(&header, &segment);
        assert!(reader.read(&mut Vec::new()).is_ok() && !reader.is_damaged());
    }
}
