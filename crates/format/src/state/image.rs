//! An image: header block, blocks of cells at fixed places, trailer.

use super::schema::{ArraySchema, StateSchema, check};
use crate::bytes::{put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};

const WHAT: &str = "state image header";
const WHAT_BLOCK: &str = "state image block";
const WHAT_TRAILER: &str = "state image trailer";
const PARAMS_BYTES: usize = 48;
const BLOCK_MAGIC: [u8; 4] = *b"SPSI";
const TRAILER_MAGIC: [u8; 4] = *b"SPSF";
/// Blocks begin at multiples of this, for direct I/O.
const ALIGN: u64 = 4096;

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 64;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 4096;
/// Smallest block, in bytes.
pub const BLOCK_BYTES_MIN: u32 = 8192;
/// Largest block, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// Identity of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// The state.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Number of the capture. The number grows with each attempt, including failed ones.
    pub capture: u64,
    /// The image holds the effects of all ticks up to this one.
    pub tick: u64,
    /// [`StateSchema::checksum`].
    pub schema: u32,
    /// Bytes of a full block: a multiple of 4096.
    pub block_bytes: u32,
    /// Number of the image file.
    pub slot: u32,
}

impl ImageHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; PARAMS_BYTES];
        put(&mut params, 0, &self.capture.to_le_bytes());
        put(&mut params, 8, &self.tick.to_le_bytes());
        put(&mut params, 16, &self.schema.to_le_bytes());
        put(&mut params, 20, &self.block_bytes.to_le_bytes());
        put(&mut params, 24, &self.slot.to_le_bytes());
        encode_header(FileKind::StateImage, self.store, self.created_ms, &params)
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::StateImage, WHAT)?;
        let fail = |cause| DecodeError { what: WHAT, offset: 0, cause };
        let params = header.params;
        let block_bytes = u32_at(params, 20);
        let (min, max) = (u64::from(BLOCK_BYTES_MIN), u64::from(BLOCK_BYTES_MAX));
        check("bytes of a block", u64::from(block_bytes), min, max).map_err(fail)?;
        if !u64::from(block_bytes).is_multiple_of(ALIGN) {
            return Err(fail(DecodeCause::Inconsistent("blocks are not whole pages")));
        }
        Ok(Self {
            store: header.store,
            created_ms: header.created_ms,
            capture: u64_at(params, 0),
            tick: u64_at(params, 8),
            schema: u32_at(params, 16),
            block_bytes,
            slot: u32_at(params, 24),
        })
    }

    /// Checks that this is an image of that state in that file.
    ///
    /// # Errors
    /// [`DecodeCause::WrongStore`] or [`DecodeCause::WrongFile`].
    pub fn expect(&self, schema: &StateSchema, slot: u32) -> Result<(), DecodeError> {
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        if self.store != schema.store {
            return fail(DecodeCause::WrongStore { found: self.store, expected: schema.store });
        }
        let numbers = [
            ("schema checksum", self.schema, schema.checksum()),
            ("number of the image file", self.slot, slot),
        ];
        for (field, found, expected) in numbers {
            if found != expected {
                let (found, expected) = (u64::from(found), u64::from(expected));
                return fail(DecodeCause::WrongFile { field, found, expected });
            }
        }
        Ok(())
    }

    /// The seed of the checksums of the image's blocks and trailer.
    pub fn identity(&self) -> Identity {
        let numbers = [u64::from(self.slot), self.capture, self.tick, self.created_ms];
        Identity::new(FileKind::StateImage, self.store, &numbers)
    }
}

/// The positions of an image's blocks. The positions follow from the schema and the length of a
/// block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLayout {
    block_bytes: u32,
    arrays: Vec<Extent>,
    blocks: u64,
    trailer_at: u64,
}

/// The blocks of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    cell_bytes: u32,
    cells: u64,
    cells_per_block: u64,
    first_block: u64,
    offset: u64,
}

/// A block: its cells and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Number of the block in the image.
    pub block: u64,
    /// Number of the array.
    pub array: u32,
    /// First cell of the block.
    pub first_cell: u64,
    /// Cells in the block.
    pub cells: u64,
    /// Bytes of the cells.
    pub payload_bytes: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file: header, cells, padding.
    pub len: usize,
}

impl ImageLayout {
    /// The layout of images of these arrays in blocks of at most `block_bytes`, which must be a
    /// multiple of 4096 from [`BLOCK_BYTES_MIN`] to [`BLOCK_BYTES_MAX`].
    ///
    /// # Errors
    /// If the file would exceed the largest file size.
    pub fn new(arrays: &[ArraySchema], block_bytes: u32) -> Result<Self, DecodeError> {
        let too_large = || DecodeError {
            what: WHAT,
            offset: 0,
            cause: DecodeCause::Inconsistent("the image exceeds the largest file size"),
        };
        let payload_max = u64::from(block_bytes) - BLOCK_HEADER_BYTES as u64;
        let (mut blocks, mut offset) = (0, HEADER_BYTES as u64);
        let mut extents = Vec::with_capacity(arrays.len());
        for array in arrays {
            let cells_per_block = (payload_max / u64::from(array.cell_bytes)).max(1);
            extents.push(Extent {
                cell_bytes: array.cell_bytes,
                cells: array.cells,
                cells_per_block,
                first_block: blocks,
                offset,
            });
            let full = array.cells / cells_per_block;
            let rest = array.cells % cells_per_block;
            let full_bytes = full * Self::len_of(cells_per_block, array.cell_bytes);
            let rest_bytes = if rest > 0 { Self::len_of(rest, array.cell_bytes) } else { 0 };
            blocks += full + u64::from(rest > 0);
            offset = offset.checked_add(full_bytes + rest_bytes).ok_or_else(too_large)?;
        }
        if i64::try_from(offset + TRAILER_BYTES as u64).is_err() {
            return Err(too_large());
        }
        Ok(Self { block_bytes, arrays: extents, blocks, trailer_at: offset })
    }

    /// Bytes in the file of a block of so many cells.
    fn len_of(cells: u64, cell_bytes: u32) -> u64 {
        (BLOCK_HEADER_BYTES as u64 + cells * u64::from(cell_bytes)).next_multiple_of(ALIGN)
    }

    /// Most bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Offset of the trailer, with which the file ends.
    pub fn trailer_at(&self) -> u64 {
        self.trailer_at
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.trailer_at + TRAILER_BYTES as u64
    }

    /// The place of a block. `None` if no block has that number.
    pub fn place(&self, block: u64) -> Option<BlockPlace> {
        if block >= self.blocks {
            return None;
        }
        let array = self.arrays.partition_point(|extent| extent.first_block <= block) - 1;
        let extent = &self.arrays[array];
        let within = block - extent.first_block;
        let first_cell = within * extent.cells_per_block;
        let cells = (extent.cells - first_cell).min(extent.cells_per_block);
        let full = Self::len_of(extent.cells_per_block, extent.cell_bytes);
        Some(BlockPlace {
            block,
            array: array as u32,
            first_cell,
            cells,
            payload_bytes: (cells * u64::from(extent.cell_bytes)) as usize,
            offset: extent.offset + within * full,
            len: Self::len_of(cells, extent.cell_bytes) as usize,
        })
    }
}

/// Fills in a block's header. The cells already lie behind the header, and zeros behind the cells.
/// Returns the header's checksum, for the trailer.
///
/// # Panics
/// If the block is not as long as its place.
pub fn seal_block(identity: Identity, place: &BlockPlace, block: &mut [u8]) -> u32 {
    assert_eq!(block.len(), place.len, "a block fills its place");
    let payload = crc32c::crc32c(&block[BLOCK_HEADER_BYTES..]);
    block[..BLOCK_HEADER_BYTES].fill(0);
    put(block, 0, &BLOCK_MAGIC);
    put(block, 8, &payload.to_le_bytes());
    put(block, 12, &place.array.to_le_bytes());
    put(block, 16, &place.block.to_le_bytes());
    put(block, 24, &place.first_cell.to_le_bytes());
    put(block, 32, &place.cells.to_le_bytes());
    let checksum = identity.checksum(place.offset, &block[8..BLOCK_HEADER_BYTES]);
    put(block, 4, &checksum.to_le_bytes());
    checksum
}

/// Verifies a block. Returns the block's cells and the checksum of the block's header.
///
/// # Errors
/// Anything but the intact block of that place.
pub fn open_block<'a>(
    identity: Identity,
    place: &BlockPlace,
    block: &'a [u8],
) -> Result<(&'a [u8], u32), DecodeError> {
    let fail = |cause| Err(DecodeError { what: WHAT_BLOCK, offset: place.offset, cause });
    if block.len() != place.len {
        let (needed, available) = (place.len as u64, block.len() as u64);
        return fail(DecodeCause::Truncated { needed, available });
    }
    if block[..4] != BLOCK_MAGIC {
        return fail(DecodeCause::BadMagic { found: u64::from(u32_at(block, 0)) });
    }
    let stored = u32_at(block, 4);
    let computed = identity.checksum(place.offset, &block[8..BLOCK_HEADER_BYTES]);
    if stored != computed {
        return fail(DecodeCause::Checksum { stored, computed });
    }
    let numbers = [
        ("array", u64::from(u32_at(block, 12)), u64::from(place.array)),
        ("block number", u64_at(block, 16), place.block),
        ("first cell", u64_at(block, 24), place.first_cell),
        ("cells", u64_at(block, 32), place.cells),
    ];
    for (field, found, expected) in numbers {
        if found != expected {
            return fail(DecodeCause::WrongFile { field, found, expected });
        }
    }
    let payload = &block[BLOCK_HEADER_BYTES..];
    let (in_header, computed) = (u32_at(block, 8), crc32c::crc32c(payload));
    if in_header != computed {
        return fail(DecodeCause::Checksum { stored: in_header, computed });
    }
    Ok((&payload[..place.payload_bytes], stored))
}

/// The trailer of an image, written once all else is durable. The image exists if its trailer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTrailer {
    /// As in the header.
    pub capture: u64,
    /// As in the header.
    pub tick: u64,
    /// Blocks.
    pub blocks: u64,
    /// CRC32C of the checksums of all block headers, in order.
    pub chain: u32,
}

impl ImageTrailer {
    /// The trailer, which lies at [`ImageLayout::trailer_at`].
    pub fn encode(&self, identity: Identity, offset: u64) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        put(&mut bytes, 0, &TRAILER_MAGIC);
        put(&mut bytes, 8, &self.capture.to_le_bytes());
        put(&mut bytes, 16, &self.tick.to_le_bytes());
        put(&mut bytes, 24, &self.blocks.to_le_bytes());
        put(&mut bytes, 32, &self.chain.to_le_bytes());
        let checksum = identity.checksum(offset, &bytes[8..]);
        put(&mut bytes, 4, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes a trailer and compares it with the header.
    ///
    /// # Errors
    /// Anything but the intact trailer of that image.
    pub fn decode(
        header: &ImageHeader,
        layout: &ImageLayout,
        bytes: &[u8],
    ) -> Result<Self, DecodeError> {
        let offset = layout.trailer_at();
        let fail = |cause| Err(DecodeError { what: WHAT_TRAILER, offset, cause });
        let Some(bytes) = bytes.first_chunk::<TRAILER_BYTES>() else {
            let (needed, available) = (TRAILER_BYTES as u64, bytes.len() as u64);
            return fail(DecodeCause::Truncated { needed, available });
        };
        if bytes[..4] != TRAILER_MAGIC {
            return fail(DecodeCause::BadMagic { found: u64::from(u32_at(bytes, 0)) });
        }
        let (stored, computed) =
            (u32_at(bytes, 4), header.identity().checksum(offset, &bytes[8..]));
        if stored != computed {
            return fail(DecodeCause::Checksum { stored, computed });
        }
        let trailer = Self {
            capture: u64_at(bytes, 8),
            tick: u64_at(bytes, 16),
            blocks: u64_at(bytes, 24),
            chain: u32_at(bytes, 32),
        };
        let numbers = [
            ("capture", trailer.capture, header.capture),
            ("tick", trailer.tick, header.tick),
            ("number of blocks", trailer.blocks, layout.blocks()),
        ];
        for (field, found, expected) in numbers {
            if found != expected {
                return fail(DecodeCause::WrongFile { field, found, expected });
            }
        }
        Ok(trailer)
    }

    /// Compares the checksums of all block headers, in order, with the trailer's.
    ///
    /// # Errors
    /// [`DecodeCause::Checksum`].
    pub fn verify_chain(&self, layout: &ImageLayout, headers: &[u32]) -> Result<(), DecodeError> {
        let computed = Self::chain_of(headers);
        if computed == self.chain {
            return Ok(());
        }
        let cause = DecodeCause::Checksum { stored: self.chain, computed };
        Err(DecodeError { what: WHAT_TRAILER, offset: layout.trailer_at(), cause })
    }

    /// The trailer's checksum, computed over the checksums of all block headers in order.
    pub fn chain_of(headers: &[u32]) -> u32 {
        headers.iter().fold(0, |crc, header| crc32c::crc32c_append(crc, &header.to_le_bytes()))
    }
}
