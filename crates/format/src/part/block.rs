//! The builder of a block. Entries of one partition are appended to a fixed buffer.

use super::codec::{Codec, Compressor};
use super::entry::{
    ENTRY_HEAD_BYTES, EntryIter, FLAG_DEADLINE, FLAG_FRAGMENT, FLAG_STAMP, FLAG_TOMBSTONE,
    FLAG_VALUE, FRAGMENT_BYTES, FRAGMENT_HEAD_BYTES, Fragment, STAMP_BYTES,
};
use super::index::BlockEntry;
use crate::bytes::put;
use crate::error::EncodeError;
use crate::ident::Identity;
use crate::{KEY_BYTES_MAX, Label, VALUE_BYTES_MAX};

/// Bytes of a block header.
pub const BLOCK_HEADER_BYTES: usize = 40;
/// Uncompressed bytes at which a block counts as full: 64 KiB with the header. A single entry may
/// be longer.
pub const BLOCK_TARGET_BYTES: usize = (64 << 10) - BLOCK_HEADER_BYTES;
/// Alignment in memory of a block, as direct I/O demands. The length of a block that was [sealed in
/// place](BlockBuilder::seal_in_place) is a multiple of the alignment.
pub(super) const BLOCK_ALIGN: usize = 4096;

/// First four bytes of a block: "SPCB".
pub(super) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"SPCB");
/// The header's checksum covers the header from here.
pub(super) const HEADER_CRC_FROM: usize = 8;

/// Byte offsets of the block header's fields.
pub(super) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const HEADER_CRC: usize = 4;
    pub(crate) const PAYLOAD_CRC: usize = 8;
    pub(crate) const PAYLOAD_LEN: usize = 12;
    pub(crate) const UNCOMPRESSED_LEN: usize = 16;
    pub(crate) const ENTRIES: usize = 20;
    pub(crate) const TOMBSTONES: usize = 24;
    pub(crate) const VALUE_BYTES: usize = 28;
    pub(crate) const PARTITION: usize = 32;
    pub(crate) const CODEC: usize = 36;
    pub(crate) const CONTINUATIONS: usize = 38;
}

const _: () = assert!(at::CONTINUATIONS + 2 == BLOCK_HEADER_BYTES);
const _: () = assert!(ENTRY_HEAD_BYTES == 2 + 1 + 1 + 4 + 4 + 4);
const _: () = assert!(FRAGMENT_HEAD_BYTES == size_of::<u32>() * 2);

/// A key, its table, and the table's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'a> {
    /// The table.
    pub table: u16,
    /// The table's generation. Entries of an older generation are void.
    pub generation: u32,
    /// The key.
    pub key: &'a [u8],
}

/// A state of a [`BlockBuilder`] to return to.
#[derive(Clone, Copy, Debug)]
pub struct BlockMark {
    at: usize,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    entries: u32,
    tombstones: u32,
    continuations: u16,
    value_bytes: u32,
}

/// Collects entries of one partition until the block is full.
///
/// The buffer is allocated once. An append is one bounds check and two copies, cheap enough for a
/// commit. Only an entry that alone exceeds the target makes the buffer grow, until the next
/// [`reset`](Self::reset).
#[derive(Debug)]
pub struct BlockBuilder {
    partition: u32,
    target: usize,
    /// Initialised bytes: unused ones up to `begin`, room for the header, the entries up to `at`,
    /// and room for more up to `full`.
    buf: Vec<u8>,
    begin: usize,
    at: usize,
    full: usize,
    counts: Counts,
}

impl BlockBuilder {
    /// An empty block of [`BLOCK_TARGET_BYTES`].
    pub fn new(partition: u32) -> Self {
        Self::with_target(partition, BLOCK_TARGET_BYTES)
    }

    /// An empty block that is full at `target` bytes, at most 1 MiB.
    pub fn with_target(partition: u32, target: usize) -> Self {
        Self::with_room(partition, target.min(FRAGMENT_BYTES), target.min(FRAGMENT_BYTES))
    }

    fn with_room(partition: u32, target: usize, room: usize) -> Self {
        let whole = (BLOCK_HEADER_BYTES + room).next_multiple_of(BLOCK_ALIGN);
        let buf = vec![0; whole + BLOCK_ALIGN];
        let address = buf.as_ptr().addr();
        let begin = address.next_multiple_of(BLOCK_ALIGN) - address;
        let at = begin + BLOCK_HEADER_BYTES;
        let counts = Counts::default();
        BlockBuilder { partition, target, buf, begin, at, full: at + room, counts }
    }

    /// Empties the block and gives it to a partition.
    pub fn reset(&mut self, partition: u32) {
        let first = self.begin + BLOCK_HEADER_BYTES;
        if self.full > first + self.target {
            *self = Self::with_target(partition, self.target);
        }
        (self.partition, self.counts) = (partition, Counts::default());
        self.at = self.begin + BLOCK_HEADER_BYTES;
    }

    /// Partition of the block.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// Whether the block holds no entry.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Uncompressed bytes so far.
    pub fn bytes(&self) -> usize {
        self.at - self.begin - BLOCK_HEADER_BYTES
    }

    /// Number of entries, each fragment counted.
    pub fn entry_count(&self) -> u32 {
        self.counts.entries
    }

    /// The entries so far.
    pub fn entries(&self) -> EntryIter<'_> {
        let first = self.begin + BLOCK_HEADER_BYTES;
        EntryIter::new(&self.buf[first..self.at], self.counts.entries)
    }

    /// The memory of the next entry, `bytes` bytes at most, to be prefetched.
    #[inline]
    pub fn tail(&self, bytes: usize) -> &[u8] {
        &self.buf[self.at..self.full.min(self.at + bytes)]
    }

    /// Appends a value of at most [`FRAGMENT_BYTES`].
    ///
    /// # Errors
    /// [`EncodeError::BlockFull`]: seal and reset the block first. An empty block is never full.
    /// Also if key or value is too long.
    #[inline]
    pub fn push_value(
        &mut self,
        key: KeyRef<'_>,
        label: impl Into<Label>,
        value: &[u8],
    ) -> Result<(), EncodeError> {
        let of = (key.table, key.generation);
        let (key_dst, value_dst) =
            self.reserve_record(of, key.key.len(), (label.into(), 0), value.len())?;
        key_dst.copy_from_slice(key.key);
        value_dst.copy_from_slice(value);
        Ok(())
    }

    /// Appends a value that the caller copies in, for sources that are no slices. Returns the
    /// memory of key and value. If the copy proves invalid, [`rollback`](Self::rollback) to a mark
    /// taken before.
    ///
    /// # Errors
    /// As [`push_value`](Self::push_value).
    #[inline]
    pub fn reserve_value(
        &mut self,
        table: u16,
        generation: u32,
        key_len: usize,
        tag: u8,
        value_len: usize,
    ) -> Result<(&mut [u8], &mut [u8]), EncodeError> {
        let head = Head { table, generation, flags: FLAG_VALUE, tag };
        let body = self.reserve(head, 0, key_len, value_len)?;
        Ok(body.split_at_mut(key_len))
    }

    /// As [`reserve_value`](Self::reserve_value), with a deadline, and with the gsn of the value's last
    /// writer, 0 for none.
    ///
    /// # Errors
    /// As [`push_value`](Self::push_value).
    #[inline]
    pub fn reserve_record(
        &mut self,
        (table, generation): (u16, u32),
        key_len: usize,
        (label, gsn): (Label, u64),
        value_len: usize,
    ) -> Result<(&mut [u8], &mut [u8]), EncodeError> {
        let (flags, extra, attributes) = attributes(label.deadline, gsn);
        let head = Head { table, generation, flags: FLAG_VALUE | flags, tag: label.tag };
        let body = self.reserve(head, extra, key_len, value_len)?;
        body[..extra].copy_from_slice(&attributes[..extra]);
        Ok(body[extra..].split_at_mut(key_len))
    }

    /// Appends a tombstone.
    ///
    /// # Errors
    /// As [`push_value`](Self::push_value).
    #[inline]
    pub fn push_tombstone(&mut self, key: KeyRef<'_>) -> Result<(), EncodeError> {
        self.push_stamped_tombstone(key, 0)
    }

    /// As [`push_tombstone`](Self::push_tombstone), with the gsn of the deletion; 0 for none.
    ///
    /// # Errors
    /// As [`push_value`](Self::push_value).
    pub fn push_stamped_tombstone(&mut self, key: KeyRef<'_>, gsn: u64) -> Result<(), EncodeError> {
        let KeyRef { table, generation, key } = key;
        let (flag, extra, attributes) = attributes(0, gsn);
        let head = Head { table, generation, flags: FLAG_TOMBSTONE | flag, tag: 0 };
        let body = self.reserve(head, extra, key.len(), 0)?;
        put(body, 0, &attributes[..extra]);
        put(body, extra, key);
        self.counts.tombstones += 1;
        Ok(())
    }

    /// Appends a fragment of a large value (see [`fragments`](super::fragments)). The fragments of
    /// a value go into adjacent blocks of one part. `gsn` is that of the value's last writer, 0 for
    /// none.
    ///
    /// # Errors
    /// As [`push_value`](Self::push_value).
    pub fn push_fragment(
        &mut self,
        key: KeyRef<'_>,
        (label, gsn): (Label, u64),
        fragment: Fragment,
        bytes: &[u8],
    ) -> Result<(), EncodeError> {
        let end = fragment.offset as usize + bytes.len();
        if end > fragment.total as usize || end > VALUE_BYTES_MAX {
            return Err(EncodeError::ValueTooLong { bytes: end });
        }
        let KeyRef { table, generation, key } = key;
        let (flags, extra, attributes) = attributes(label.deadline, gsn);
        let head = Head { table, generation, flags: FLAG_FRAGMENT | flags, tag: label.tag };
        let before_key = FRAGMENT_HEAD_BYTES + extra;
        let body = self.reserve(head, before_key, key.len(), bytes.len())?;
        put(body, 0, &fragment.offset.to_le_bytes());
        put(body, 4, &fragment.total.to_le_bytes());
        put(body, FRAGMENT_HEAD_BYTES, &attributes[..extra]);
        put(body, before_key, key);
        put(body, before_key + key.len(), bytes);
        self.counts.continuations += u16::from(fragment.offset > 0);
        Ok(())
    }

    /// The present state.
    #[inline]
    pub fn mark(&self) -> BlockMark {
        BlockMark { at: self.at, counts: self.counts }
    }

    /// Forgets the entries appended since the mark was taken (and no reset since).
    #[inline]
    pub fn rollback(&mut self, mark: BlockMark) {
        debug_assert!(mark.at <= self.at, "mark of another block");
        (self.at, self.counts) = (mark.at, mark.counts);
    }

    /// Appends the block, compressed if that makes it smaller, to `out`, for its place at `offset`
    /// of the part with that identity ([`PartHeader::identity`](super::PartHeader::identity)).
    /// Returns the block's index entry.
    ///
    /// # Errors
    /// [`EncodeError::Compress`]; `out` is unchanged.
    pub fn seal(
        &self,
        compressor: &mut Compressor,
        identity: Identity,
        offset: u64,
        out: &mut Vec<u8>,
    ) -> Result<BlockEntry, EncodeError> {
        self.seal_with(compressor, identity, offset, |bytes| out.extend_from_slice(bytes))
    }

    /// As [`seal`](Self::seal), for targets other than a `Vec`. `append` takes the header, then the
    /// payload.
    ///
    /// # Errors
    /// [`EncodeError::Compress`]; nothing was appended.
    pub fn seal_with(
        &self,
        compressor: &mut Compressor,
        identity: Identity,
        offset: u64,
        mut append: impl FnMut(&[u8]),
    ) -> Result<BlockEntry, EncodeError> {
        let entries = &self.buf[self.begin..self.at][BLOCK_HEADER_BYTES..];
        let (codec, payload) = compressor.compress(entries)?;
        let (header, entry) = self.header(codec, payload, identity, offset);
        append(&header);
        append(payload);
        Ok(entry)
    }

    /// Completes the block in its buffer, in plain form, padded with zeros to a multiple of 4096
    /// bytes. The block begins at a multiple of 4096 in memory. The block's place will be `offset`
    /// of the part with that identity. Returns the block with its index entry. No entry may follow
    /// before the next [`reset`](Self::reset).
    pub fn seal_in_place(&mut self, identity: Identity, offset: u64) -> (&[u8], BlockEntry) {
        let end = self.begin + (self.at - self.begin).next_multiple_of(BLOCK_ALIGN);
        self.buf[self.at..end].fill(0);
        let payload = &self.buf[self.begin..end][BLOCK_HEADER_BYTES..];
        let (header, entry) = self.header(Codec::None, payload, identity, offset);
        put(&mut self.buf, self.begin, &header);
        (&self.buf[self.begin..end], entry)
    }

    fn header(
        &self,
        codec: Codec,
        payload: &[u8],
        identity: Identity,
        offset: u64,
    ) -> ([u8; BLOCK_HEADER_BYTES], BlockEntry) {
        let Counts { entries, tombstones, continuations, value_bytes } = self.counts;
        let mut header = [0; BLOCK_HEADER_BYTES];
        put(&mut header, at::MAGIC, &BLOCK_MAGIC.to_le_bytes());
        put(&mut header, at::PAYLOAD_CRC, &crc32c::crc32c(payload).to_le_bytes());
        put(&mut header, at::PAYLOAD_LEN, &(payload.len() as u32).to_le_bytes());
        put(&mut header, at::UNCOMPRESSED_LEN, &(self.bytes() as u32).to_le_bytes());
        put(&mut header, at::ENTRIES, &entries.to_le_bytes());
        put(&mut header, at::TOMBSTONES, &tombstones.to_le_bytes());
        put(&mut header, at::VALUE_BYTES, &value_bytes.to_le_bytes());
        put(&mut header, at::PARTITION, &self.partition.to_le_bytes());
        header[at::CODEC] = codec as u8;
        put(&mut header, at::CONTINUATIONS, &continuations.to_le_bytes());
        let header_crc = identity.checksum(offset, &header[HEADER_CRC_FROM..]);
        put(&mut header, at::HEADER_CRC, &header_crc.to_le_bytes());
        let entry = BlockEntry {
            partition: self.partition,
            header_crc,
            offset,
            bytes: (BLOCK_HEADER_BYTES + payload.len()) as u32,
            uncompressed_bytes: self.bytes() as u32,
            values: entries - tombstones - u32::from(continuations),
            tombstones,
            value_bytes,
        };
        (header, entry)
    }

    /// Makes room for an entry and writes its head. `extra`, key and value follow.
    #[inline]
    fn reserve(
        &mut self,
        head: Head,
        extra: usize,
        key_len: usize,
        value_len: usize,
    ) -> Result<&mut [u8], EncodeError> {
        if key_len > KEY_BYTES_MAX || value_len > FRAGMENT_BYTES {
            return Err(too_long(key_len, value_len));
        }
        let need = ENTRY_HEAD_BYTES + extra + key_len + value_len;
        if self.full - self.at < need {
            self.make_room(need)?;
        }
        let entry = &mut self.buf[self.at..self.at + need];
        self.at += need;
        self.counts.entries += 1;
        self.counts.value_bytes += value_len as u32;
        let word = u128::from(head.table)
            | u128::from(head.flags) << 16
            | u128::from(head.tag) << 24
            | u128::from(head.generation) << 32
            | (key_len as u128) << 64
            | (value_len as u128) << 96;
        let (fixed, body) = entry.split_at_mut(ENTRY_HEAD_BYTES);
        fixed.copy_from_slice(&word.to_le_bytes());
        Ok(body)
    }

    /// An empty block takes any entry.
    #[cold]
    fn make_room(&mut self, need: usize) -> Result<(), EncodeError> {
        if !self.is_empty() {
            return Err(EncodeError::BlockFull);
        }
        *self = Self::with_room(self.partition, self.target, need);
        Ok(())
    }
}

/// The flags of a deadline and of a stamp, 0 for none, and their bytes before the key.
#[inline]
fn attributes(deadline: u64, gsn: u64) -> (u8, usize, [u8; ATTRIBUTES_BYTES]) {
    let (mut flags, mut extra, mut bytes) = (0, 0, [0; ATTRIBUTES_BYTES]);
    for (flag, word) in [(FLAG_DEADLINE, deadline), (FLAG_STAMP, gsn)] {
        if word != 0 {
            bytes[extra..extra + 8].copy_from_slice(&word.to_le_bytes());
            flags |= flag;
            extra += 8;
        }
    }
    (flags, extra, bytes)
}

/// Bytes of a deadline and a stamp.
const ATTRIBUTES_BYTES: usize = Label::DEADLINE_BYTES + STAMP_BYTES;

/// The fields of an entry's head that are not lengths.
#[derive(Clone, Copy)]
struct Head {
    table: u16,
    generation: u32,
    flags: u8,
    tag: u8,
}

#[cold]
fn too_long(key_len: usize, value_len: usize) -> EncodeError {
    if key_len > KEY_BYTES_MAX {
        EncodeError::KeyTooLong { bytes: key_len }
    } else {
        EncodeError::ValueTooLong { bytes: value_len }
    }
}
