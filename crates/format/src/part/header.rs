//! The header block of a checkpoint part.

use super::codec::Codec;
use crate::PARTITIONS_LOG2_MAX;
use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};
use crate::names::CheckpointKind;

const WHAT: &str = "checkpoint part header";
const PARAMS_BYTES: usize = 32;
/// Code of the function that assigns keys to partitions. Other codes are reserved.
const PARTITIONED_BY_KEY_HASH: u8 = 0;

/// Identity of a checkpoint part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHeader {
    /// The store.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The checkpoint's epoch. The checkpoint holds the commits of all earlier epochs.
    pub epoch: u64,
    /// Number of the part.
    pub part: u32,
    /// Full or partial.
    pub kind: CheckpointKind,
    /// The key hash has 2^this partitions.
    pub partitions_log2: u8,
    /// The requested codec. Each block names its own.
    pub codec: Codec,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Epoch of the checkpoint that one of changes goes on from. `None` if the file does not say.
    pub base: Option<u64>,
}

impl PartHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; PARAMS_BYTES];
        put(&mut params, 0, &self.epoch.to_le_bytes());
        put(&mut params, 8, &self.hash_seed.to_le_bytes());
        put(&mut params, 16, &self.part.to_le_bytes());
        params[20] = self.kind as u8;
        params[21] = self.partitions_log2;
        params[22] = self.codec as u8;
        params[23] = PARTITIONED_BY_KEY_HASH;
        put(&mut params, 24, &self.base.unwrap_or(0).to_le_bytes());
        encode_header(FileKind::CheckpointPart, self.store, self.created_ms, &params)
    }

    /// Decodes a header block: the first [`HEADER_BYTES`] of a part.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::CheckpointPart, WHAT)?;
        let params = header.params;
        let fail = |cause| DecodeError { what: WHAT, offset: 0, cause };
        let kind = match params[20] {
            1 => CheckpointKind::Full,
            2 => CheckpointKind::Partial,
            other => {
                let value = u64::from(other);
                return Err(fail(DecodeCause::Unknown { field: "checkpoint kind", value }));
            }
        };
        if params[23] != PARTITIONED_BY_KEY_HASH {
            let value = u64::from(params[23]);
            return Err(fail(DecodeCause::Unknown { field: "partition function", value }));
        }
        let partitions_log2 = params[21];
        if partitions_log2 > PARTITIONS_LOG2_MAX {
            return Err(fail(DecodeCause::OutOfRange {
                field: "partitions log2",
                value: u64::from(partitions_log2),
                min: 0,
                max: u64::from(PARTITIONS_LOG2_MAX),
            }));
        }
        Ok(PartHeader {
            store: header.store,
            created_ms: header.created_ms,
            epoch: u64_at(params, 0),
            part: u32_at(params, 16),
            kind,
            partitions_log2,
            codec: Codec::from_code(params[22]).map_err(fail)?,
            hash_seed: u64_at(params, 8),
            base: Some(u64_at(params, 24)).filter(|&base| base > 0),
        })
    }

    /// Checks that the part is the one that the manifest and its name say.
    ///
    /// # Errors
    /// [`DecodeCause::WrongStore`] or [`DecodeCause::WrongFile`].
    pub fn expect(
        &self,
        store: StoreId,
        epoch: u64,
        kind: CheckpointKind,
        part: u32,
    ) -> Result<(), DecodeError> {
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        if self.store != store {
            return fail(DecodeCause::WrongStore { found: self.store, expected: store });
        }
        let numbers = [
            ("epoch", self.epoch, epoch),
            ("checkpoint kind", self.kind as u64, kind as u64),
            ("part", u64::from(self.part), u64::from(part)),
        ];
        for (field, found, expected) in numbers {
            if found != expected {
                return fail(DecodeCause::WrongFile { field, found, expected });
            }
        }
        Ok(())
    }

    /// The seed of the checksums of the part's blocks. The seed contains the time of creation, so
    /// that blocks of an abandoned attempt at the same checkpoint do not match.
    pub fn identity(&self) -> Identity {
        let numbers = [self.epoch, self.kind as u64, u64::from(self.part), self.created_ms];
        Identity::new(FileKind::CheckpointPart, self.store, &numbers)
    }
}
