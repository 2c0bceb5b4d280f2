//! Compression of block payloads. Decompression is bounded by the announced
//! length, which is itself capped ([`super::BLOCK_BYTES_MAX`]).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{DecodeCause, EncodeError};
use crate::registry::{Named, Registry, UnknownName};

/// The compression of block payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Codec {
    /// No compression.
    None = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// Zstandard frame.
    Zstd = 2,
}

/// The codecs.
pub static CODECS: Registry<Codec> =
    Registry::new("codec", &[Codec::None, Codec::Lz4, Codec::Zstd]);

impl Named for Codec {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.as_str())
    }

    fn about(&self) -> &'static str {
        match self {
            Codec::None => "no compression",
            Codec::Lz4 => "fast, for disks slower than a core",
            Codec::Zstd => "smaller, for slow disks and archives",
        }
    }
}

impl FromStr for Codec {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        CODECS.find(name).copied()
    }
}

impl Codec {
    /// The codec of a code.
    ///
    /// # Errors
    /// [`DecodeCause::Unknown`].
    pub fn from_code(code: u8) -> Result<Self, DecodeCause> {
        match code {
            0 => Ok(Codec::None),
            1 => Ok(Codec::Lz4),
            2 => Ok(Codec::Zstd),
            _ => Err(DecodeCause::Unknown { field: "codec", value: u64::from(code) }),
        }
    }

    /// Name of the codec in options: [`CODECS`] lists all names.
    pub fn as_str(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

/// Compresses payloads and reuses the working memory. Each thread has a compressor of its own.
pub struct Compressor {
    codec: Codec,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("codec", &self.codec).finish_non_exhaustive()
    }
}

impl Compressor {
    /// A compressor of that codec. `level` is zstd's, 1 to 19, and ignored by the others.
    ///
    /// # Errors
    /// [`EncodeError::Compress`] if zstd refuses the level or has no memory.
    pub fn new(codec: Codec, level: i32) -> Result<Self, EncodeError> {
        let zstd = match codec {
            Codec::Zstd => Some(zstd::bulk::Compressor::new(level).map_err(zstd_error)?),
            Codec::None | Codec::Lz4 => None,
        };
        Ok(Compressor { codec, zstd, scratch: Vec::new() })
    }

    /// The requested codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The payload in its stored form: compressed if the compressed form is smaller.
    pub(super) fn compress<'a>(
        &'a mut self,
        payload: &'a [u8],
    ) -> Result<(Codec, &'a [u8]), EncodeError> {
        let len = match (&mut self.zstd, self.codec) {
            (Some(zstd), _) => {
                self.scratch.resize(zstd::zstd_safe::compress_bound(payload.len()), 0);
                zstd.compress_to_buffer(payload, &mut self.scratch[..]).map_err(zstd_error)?
            }
            (None, Codec::Lz4) => {
                grow(&mut self.scratch, lz4_flex::block::get_maximum_output_size(payload.len()));
                lz4_flex::block::compress_into(payload, &mut self.scratch).map_err(|error| {
                    EncodeError::Compress { codec: "lz4", reason: error.to_string() }
                })?
            }
            (None, _) => payload.len(),
        };
        if len < payload.len() {
            Ok((self.codec, &self.scratch[..len]))
        } else {
            Ok((Codec::None, payload))
        }
    }
}

/// Makes sure that the buffer has `len` bytes. Never shrinks the buffer, since growing again would
/// clear the memory each time.
fn grow(scratch: &mut Vec<u8>, len: usize) {
    if scratch.len() < len {
        scratch.resize(len, 0);
    }
}

fn zstd_error(error: std::io::Error) -> EncodeError {
    EncodeError::Compress { codec: "zstd", reason: error.to_string() }
}

/// Decompresses payloads and reuses the working memory.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    scratch: Vec<u8>,
}

impl Decompressor {
    /// A compressed payload in plain form; exactly `len` bytes, or an error.
    pub(super) fn decompress<'a>(
        &'a mut self,
        codec: Codec,
        payload: &'a [u8],
        len: usize,
    ) -> Result<&'a [u8], DecodeCause> {
        let failed = DecodeCause::Decompress { codec: codec.as_str(), expected: len as u64 };
        grow(&mut self.scratch, len);
        let plain = &mut self.scratch[..len];
        let done = match codec {
            Codec::Lz4 => lz4_flex::block::decompress_into(payload, plain).ok(),
            _ => unzstd(&mut self.zstd, payload, plain),
        };
        if done == Some(len) { Ok(plain) } else { Err(failed) }
    }
}

fn unzstd(
    zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    payload: &[u8],
    plain: &mut [u8],
) -> Option<usize> {
    if zstd.is_none() {
        *zstd = Some(zstd::bulk::Decompressor::new().ok()?);
    }
    zstd.as_mut()?.decompress_to_buffer(payload, plain).ok()
}
