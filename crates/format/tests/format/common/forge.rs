//! Corrects checksums, so that changed bytes reach the decoders behind them.

use stillpoint_format::ident::{HEADER_BYTES, Identity};
use stillpoint_format::log::SegmentHeader;
use stillpoint_format::part::{
    BLOCK_HEADER_BYTES, BlockEntry, IndexBuilder, PartHeader, TRAILER_BYTES,
};

const BATCH_HEADER_BYTES: usize = 64;

/// A manifest with a right first line around the given document.
pub(crate) fn forge_manifest(document: &[u8]) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&2u32.to_le_bytes()), document);
    let first = format!("stillpoint-manifest 2 crc32c={crc:08x} len={}\n", document.len());
    [first.as_bytes(), document].concat()
}

/// Corrects the checksum of the block that segments and parts begin with.
pub(crate) fn forge_file_header(file: &mut [u8]) {
    if let Some(block) = file.first_chunk_mut::<HEADER_BYTES>() {
        let crc = crc32c::crc32c(&block[..HEADER_BYTES - 4]);
        block[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Writes the magic and the length of a batch that fills `batch`.
pub(crate) fn forge_batch_name(batch: &mut [u8]) {
    batch[..4].copy_from_slice(b"SPLB");
    let bytes = batch.len() as u32;
    batch[12..16].copy_from_slice(&bytes.to_le_bytes());
}

/// Corrects both checksums of a batch at `offset`.
pub(crate) fn forge_batch(header: &SegmentHeader, offset: u64, batch: &mut [u8]) {
    let crc = |bytes: &[u8]| header.identity().checksum(offset, bytes).to_le_bytes();
    let payload_crc = crc(&batch[BATCH_HEADER_BYTES..]);
    batch[8..12].copy_from_slice(&payload_crc);
    let header_crc = crc(&batch[8..BATCH_HEADER_BYTES]);
    batch[4..8].copy_from_slice(&header_crc);
}

/// Corrects every batch of a segment. A batch is as long as it says, or extends to the end if its
/// length is impossible.
pub(crate) fn forge_batches(header: &SegmentHeader, segment: &mut [u8]) {
    let mut at = HEADER_BYTES;
    while segment.len().saturating_sub(at) >= BATCH_HEADER_BYTES {
        let rest = (segment.len() - at) & !7;
        let said = u32_at(segment, at + 12) as usize;
        let fits = (BATCH_HEADER_BYTES..=rest).contains(&said) && said.is_multiple_of(8);
        let end = at + if fits { said } else { rest };
        let batch = &mut segment[at..end];
        // An unwritten part of a segment holds no batch.
        if batch[..BATCH_HEADER_BYTES].iter().any(|byte| *byte != 0) {
            forge_batch_name(batch);
            forge_batch(header, at as u64, batch);
        }
        at = end;
    }
}

/// Corrects magic, length and both checksums of a block at `offset`, and its entry in the index,
/// even if its numbers contradict each other.
pub(crate) fn forge_block(identity: Identity, offset: u64, block: &mut [u8]) -> BlockEntry {
    let bytes = block.len() as u32;
    let (header, payload) = block.split_at_mut(BLOCK_HEADER_BYTES);
    header[..4].copy_from_slice(b"SPCB");
    header[8..12].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let header_crc = identity.checksum(offset, &header[8..]);
    header[4..8].copy_from_slice(&header_crc.to_le_bytes());
    let [entries, tombstones] = [20, 24].map(|at| u32_at(header, at));
    let continued = u32_at(header, 36) >> 16;
    BlockEntry {
        partition: u32_at(header, 32),
        header_crc,
        offset,
        bytes,
        uncompressed_bytes: u32_at(header, 16),
        values: entries.wrapping_sub(tombstones).wrapping_sub(continued),
        tombstones,
        value_bytes: u32_at(header, 28),
    }
}

/// A part of the blocks in `blocks`. A block is as long as it says, or extends to the end if its
/// length is impossible. Also returns the checksum of the index.
pub(crate) fn forge_part(header: &PartHeader, blocks: &[u8]) -> (Vec<u8>, u32) {
    let identity = header.identity();
    let mut file = header.encode().to_vec();
    let mut index = IndexBuilder::default();
    let mut rest = blocks;
    while rest.len() >= BLOCK_HEADER_BYTES {
        let said = (u32_at(rest, 12) as usize).saturating_add(BLOCK_HEADER_BYTES);
        let (block, after) = rest.split_at(said.min(rest.len()));
        let at = file.len();
        file.extend_from_slice(block);
        index.push(forge_block(identity, at as u64, &mut file[at..]));
        rest = after;
    }
    let (tail, crc) = index.finish(identity, file.len() as u64);
    file.extend_from_slice(&tail);
    (file, crc)
}

/// The blocks of a part, as its trailer bounds them.
pub(crate) fn blocks_of(part: &[u8]) -> &[u8] {
    let Some(trailer) = part.len().checked_sub(TRAILER_BYTES) else {
        return &[];
    };
    let footer = u64::from_le_bytes(*part[trailer + 8..].first_chunk().expect("eight bytes"));
    part.get(HEADER_BYTES..footer.try_into().unwrap_or(usize::MAX)).unwrap_or(&[])
}

/// Corrects both checksums of a part's index, at the position that its trailer names.
pub(crate) fn forge_index(identity: Identity, part: &mut [u8]) {
    let Some(trailer_at) = part.len().checked_sub(TRAILER_BYTES) else {
        return;
    };
    let footer_at = part.len() - TRAILER_BYTES - {
        let said = u64::from_le_bytes(*part[trailer_at + 16..].first_chunk().expect("eight bytes"));
        (said as usize).min(trailer_at)
    };
    for at in [footer_at..trailer_at, trailer_at..part.len()] {
        let offset = at.start as u64;
        if let Some((head, covered)) = part[at].split_first_chunk_mut::<8>() {
            head[..4].copy_from_slice(if offset == footer_at as u64 { b"SPCF" } else { b"SPCT" });
            head[4..].copy_from_slice(&identity.checksum(offset, covered).to_le_bytes());
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}
