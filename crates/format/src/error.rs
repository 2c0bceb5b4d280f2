//! Typed errors. Each names the structure, the offset and the defect.

use crate::ident::StoreId;

/// Bytes that cannot be decoded. The caller adds the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}: {cause}")]
pub struct DecodeError {
    /// The structure that was being decoded: `"log segment header"`.
    pub what: &'static str,
    /// Byte offset of that structure in its file; inside a decompressed block,
    /// the offset in the block's payload.
    pub offset: u64,
    /// The defect.
    pub cause: DecodeCause,
}

/// The defect of some bytes, and for some defects the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeCause {
    /// The first bytes are not those of this structure.
    #[error("bad magic {found:#018x}: these bytes are not what the name of the file says")]
    BadMagic {
        /// The bytes found, as a little-endian number.
        found: u64,
    },
    /// The file was written by another release.
    #[error(
        "unknown format version {found} (this build reads {reads}): dump the store with the release \
         that wrote the file, and load the dump with this one"
    )]
    UnknownVersion {
        /// The version that the file claims.
        found: u32,
        /// The version that this build reads.
        reads: u32,
    },
    /// The bytes are damaged, stale, or belong somewhere else.
    #[error("checksum mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        /// The checksum that the bytes carry.
        stored: u32,
        /// The checksum of the bytes that were read.
        computed: u32,
    },
    /// The bytes end too early.
    #[error("truncated: {needed} bytes needed, {available} there")]
    Truncated {
        /// Bytes that the structure needs.
        needed: u64,
        /// Bytes that exist.
        available: u64,
    },
    /// A number is outside the range that the format allows.
    #[error("{field} is {value}, allowed is {min}..={max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Smallest legal value.
        min: u64,
        /// Largest legal value.
        max: u64,
    },
    /// A code that this build does not know.
    #[error("unknown {field} {value}: the file may come from a newer release")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// The file belongs to another store.
    #[error("belongs to store {found}, expected {expected}: do not mix data directories")]
    WrongStore {
        /// The store that the file names.
        found: StoreId,
        /// The store that was opened.
        expected: StoreId,
    },
    /// An intact file other than the requested one.
    #[error("{field} is {found}, expected {expected}: the file was renamed or swapped")]
    WrongFile {
        /// The field.
        field: &'static str,
        /// Value of the field.
        found: u64,
        /// The requested value.
        expected: u64,
    },
    /// An intact page of another time: an older write, or one that was lost.
    #[error(
        "the page has gsn {found}, and the map names one with the low bits {expected}: the page is stale"
    )]
    StalePage {
        /// The page's gsn.
        found: u64,
        /// The low 24 bits of the gsn that the map names.
        expected: u64,
    },
    /// Intact bytes that contradict each other.
    #[error("inconsistent: {0}")]
    Inconsistent(&'static str),
    /// A compressed payload that does not decompress to the announced length.
    #[error("{codec} payload does not decompress to {expected} bytes")]
    Decompress {
        /// The codec.
        codec: &'static str,
        /// Announced length in bytes.
        expected: u64,
    },
}

/// Input that the format cannot hold. Nothing was appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The key is too long.
    #[error("key of {bytes} bytes: at most {} are allowed", crate::KEY_BYTES_MAX)]
    KeyTooLong {
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// The value, or the end of a patched range, is too long.
    #[error("value of {bytes} bytes: at most {} are allowed", crate::VALUE_BYTES_MAX)]
    ValueTooLong {
        /// Length of the value, in bytes.
        bytes: usize,
    },
    /// The name, the arguments or the inputs of a call do not fit their lengths, or it has no name.
    #[error("call of {bytes} bytes: a name has 1 to 255 bytes, arguments less than 4 GiB")]
    CallTooLong {
        /// Length of name, arguments and inputs, in bytes.
        bytes: usize,
    },
    /// One transaction writes more than a log record can hold.
    #[error("log record of {bytes} bytes: at most {max} are allowed; write less per transaction")]
    RecordTooLong {
        /// Length of the record, in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The batch has no room for the record. Seal the batch and append to an empty batch.
    #[error("the batch is full")]
    BatchFull,
    /// The block has no room for the entry. Seal and reset the block, and append again.
    #[error("the block is full")]
    BlockFull,
    /// The record's epoch is too far from those in the batch. Seal the batch and append to an empty
    /// batch.
    #[error("epoch {epoch} is more than 32767 away from the batch's first, {base}")]
    EpochSpan {
        /// The record's epoch.
        epoch: u64,
        /// The epoch of the batch's first record.
        base: u64,
    },
    /// A log's sequence numbers must grow, and stay below 2^52.
    #[error("gsn {gsn} after {last}: a log's gsns grow strictly and are below 2^52")]
    GsnOrder {
        /// The record's gsn.
        gsn: u64,
        /// Gsn of the record before the refused one.
        last: u64,
    },
    /// More dependencies than there can be logs, or a dependency on no log.
    #[error("bad dependency {log}@{gsn}: a record names each of at most 255 logs once")]
    Dependency {
        /// Number of the log.
        log: u8,
        /// Global sequence number.
        gsn: u64,
    },
    /// The partition, the part or another number does not fit its field.
    #[error("{field} is {value}, at most {max} is allowed")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// The compressor failed.
    #[error("{codec} compression failed: {reason}")]
    Compress {
        /// The codec.
        codec: &'static str,
        /// The message of the compressor.
        reason: String,
    },
}
