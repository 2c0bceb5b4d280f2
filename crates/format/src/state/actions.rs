//! The log of actions: segments of batches, each of whole ticks.

use super::schema::check;
use crate::bytes::{Cursor, put, u32_at, u64_at};
use crate::error::{DecodeCause, DecodeError};
use crate::ident::{FileKind, HEADER_BYTES, Identity, StoreId, decode_header, encode_header};

const WHAT: &str = "action segment header";
const WHAT_BATCH: &str = "action batch";
const PARAMS_BYTES: usize = 16;
const BATCH_MAGIC: [u8; 4] = *b"SPSA";
const BATCH_HEADER_BYTES: usize = 64;
/// Greatest tick with which a batch may begin.
const TICK_MAX: u64 = 1 << 62;

/// Unit of a batch's offset and length, so that no two batches share a block of the device.
pub const ACTIONS_ALIGN: usize = 4096;
/// Bytes that a tick with actions takes in addition to the actions.
pub const FRAME_BYTES: usize = 8;
/// Most bytes of frames in a batch.
pub const BATCH_PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Identity of a segment of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionSegmentHeader {
    /// The state.
    pub store: StoreId,
    /// Wall clock at creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The tick with which the segment's first batch begins.
    pub first_tick: u64,
    /// A random number that tells segments of a state apart, whatever the clock says.
    pub nonce: u64,
}

impl ActionSegmentHeader {
    /// The header block.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut params = [0; PARAMS_BYTES];
        put(&mut params, 0, &self.first_tick.to_le_bytes());
        put(&mut params, 8, &self.nonce.to_le_bytes());
        encode_header(FileKind::StateActions, self.store, self.created_ms, &params)
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Anything but an intact header of this format version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = decode_header(bytes, FileKind::StateActions, WHAT)?;
        Ok(Self {
            store: header.store,
            created_ms: header.created_ms,
            first_tick: u64_at(header.params, 0),
            nonce: u64_at(header.params, 8),
        })
    }

    /// Checks that this is the segment of that state and name.
    ///
    /// # Errors
    /// [`DecodeCause::WrongStore`] or [`DecodeCause::WrongFile`].
    pub fn expect(&self, store: StoreId, first_tick: u64) -> Result<(), DecodeError> {
        let fail = |cause| Err(DecodeError { what: WHAT, offset: 0, cause });
        if self.store != store {
            return fail(DecodeCause::WrongStore { found: self.store, expected: store });
        }
        if self.first_tick != first_tick {
            let (found, expected) = (self.first_tick, first_tick);
            return fail(DecodeCause::WrongFile { field: "first tick", found, expected });
        }
        Ok(())
    }

    /// The seed of the checksums of the segment's batches.
    pub fn identity(&self) -> Identity {
        let numbers = [self.first_tick, self.nonce, self.created_ms];
        Identity::new(FileKind::StateActions, self.store, &numbers)
    }
}

/// The builder of a batch of ticks and their actions. Ticks come in order, each once. Ticks without
/// actions take no room.
#[derive(Debug, Default)]
pub struct ActionBatchBuilder {
    /// A header's room, then frames.
    bytes: Vec<u8>,
    payload: usize,
    ticks: Option<(u64, u64)>,
}

impl ActionBatchBuilder {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ticks and actions of an intact batch, to be sealed for another place.
    pub fn copy_of(batch: &ActionBatch<'_>) -> Self {
        let mut bytes = vec![0; BATCH_HEADER_BYTES];
        bytes.extend_from_slice(batch.payload);
        let ticks = Some((batch.first_tick, batch.last_tick));
        Self { bytes, payload: batch.payload.len(), ticks }
    }

    /// Whether the batch holds no tick.
    pub fn is_empty(&self) -> bool {
        self.ticks.is_none()
    }

    /// The first tick in the batch.
    pub fn first_tick(&self) -> Option<u64> {
        self.ticks.map(|(first, _)| first)
    }

    /// The last tick in the batch.
    pub fn last_tick(&self) -> Option<u64> {
        self.ticks.map(|(_, last)| last)
    }

    /// Bytes of frames in the batch.
    pub fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// Adds a tick. `actions` come from [`put_action`](Self::put_action). Returns false and adds
    /// nothing if the batch has no room; then it must be sealed first. An empty batch has room for
    /// any tick of at most [`BATCH_PAYLOAD_BYTES_MAX`] − [`FRAME_BYTES`].
    ///
    /// # Panics
    /// If the tick is not the one after the last.
    pub fn push(&mut self, tick: u64, actions: &[u8]) -> bool {
        let frame = if actions.is_empty() { 0 } else { FRAME_BYTES + actions.len() };
        let (first, last) = self.ticks.unwrap_or((tick, tick.wrapping_sub(1)));
        assert_eq!(tick, last.wrapping_add(1), "ticks come in order");
        let Ok(offset) = u32::try_from(tick - first) else { return false };
        if self.payload_bytes() + frame > BATCH_PAYLOAD_BYTES_MAX {
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes.resize(BATCH_HEADER_BYTES, 0);
        }
        if !actions.is_empty() {
            self.bytes.extend_from_slice(&offset.to_le_bytes());
            self.bytes.extend_from_slice(&(actions.len() as u32).to_le_bytes());
            self.bytes.extend_from_slice(actions);
            self.payload += frame;
        }
        self.ticks = Some((first, tick));
        true
    }

    /// Appends an action to those of a tick.
    ///
    /// # Panics
    /// If the action has 2³² bytes or more.
    pub fn put_action(actions: &mut Vec<u8>, action: &[u8]) {
        let len = u32::try_from(action.len()).expect("the caller has measured it");
        actions.extend_from_slice(&len.to_le_bytes());
        actions.extend_from_slice(action);
    }

    /// The padded batch, to be written at `offset` of its segment as number `number`. The batch may
    /// be sealed again for another place, but no more ticks can be added.
    ///
    /// # Panics
    /// If the batch is empty.
    pub fn seal(&mut self, identity: Identity, offset: u64, number: u64) -> &[u8] {
        let (first, last) = self.ticks.expect("a batch has ticks");
        let payload = self.payload_bytes();
        let len = self.sealed_bytes();
        let bytes = &mut self.bytes;
        bytes.truncate(BATCH_HEADER_BYTES + payload);
        bytes.resize(len, 0);
        put(bytes, 0, &BATCH_MAGIC);
        let checksum = identity.checksum(offset, &bytes[BATCH_HEADER_BYTES..]);
        put(bytes, 8, &checksum.to_le_bytes());
        put(bytes, 12, &(len as u32).to_le_bytes());
        put(bytes, 16, &(payload as u32).to_le_bytes());
        put(bytes, 24, &number.to_le_bytes());
        put(bytes, 32, &first.to_le_bytes());
        put(bytes, 40, &last.to_le_bytes());
        let checksum = identity.checksum(offset, &bytes[8..BATCH_HEADER_BYTES]);
        put(bytes, 4, &checksum.to_le_bytes());
        bytes
    }

    /// Bytes of the batch once it is sealed.
    pub fn sealed_bytes(&self) -> usize {
        (BATCH_HEADER_BYTES + self.payload).next_multiple_of(ACTIONS_ALIGN)
    }

    /// Empties the batch and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.payload = 0;
        self.ticks = None;
    }
}

/// An intact batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionBatch<'a> {
    /// Number of the batch in the segment, from 0.
    pub number: u64,
    /// First tick of the batch.
    pub first_tick: u64,
    /// Last tick of the batch.
    pub last_tick: u64,
    /// Bytes in the file.
    pub len: usize,
    payload: &'a [u8],
    /// Offset of the payload in the file.
    payload_at: u64,
}

impl<'a> ActionBatch<'a> {
    /// Calls `each` with every tick that has actions, and with these actions. An action is a length
    /// as u32 and that many bytes, and the actions are verified to fill their frame. Ends with an
    /// error where frames contradict the header or each other. The ticks before that place have
    /// been passed to `each` then.
    ///
    /// # Errors
    /// The error of `each`, or contradicting frames.
    pub fn for_each_step<E>(
        &self,
        mut each: impl FnMut(Result<ActionStep<'a>, DecodeError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursor = Cursor::new(self.payload, self.payload_at, WHAT_BATCH);
        let mut after = self.first_tick;
        while !cursor.is_empty() {
            let step = self.next_step(&mut cursor, after);
            let is_bad = step.is_err();
            after = step.as_ref().map_or(after, |step| step.tick + 1);
            each(step)?;
            if is_bad {
                break;
            }
        }
        Ok(())
    }

    fn next_step(
        &self,
        cursor: &mut Cursor<'a>,
        after: u64,
    ) -> Result<ActionStep<'a>, DecodeError> {
        // Below 2^63, since `intact` has looked at the header.
        let tick = self.first_tick + u64::from(cursor.u32()?);
        if tick < after || tick > self.last_tick {
            let why = "ticks out of order, or outside of the batch's range";
            return Err(cursor.error(DecodeCause::Inconsistent(why)));
        }
        let len = cursor.u32()? as usize;
        let offset = cursor.offset();
        let actions = cursor.take(len)?;
        let mut within = Cursor::new(actions, offset, WHAT_BATCH);
        while !within.is_empty() {
            let len = within.u32()? as usize;
            within.take(len)?;
        }
        Ok(ActionStep { tick, actions })
    }
}

/// The actions of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionStep<'a> {
    /// The tick.
    pub tick: u64,
    /// The tick's actions, each a length as u32 and that many bytes.
    pub actions: &'a [u8],
}

/// The length that the first bytes of a batch announce, unverified. `None` if they are not the
/// first bytes of a batch.
pub fn announced_batch_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<BATCH_HEADER_BYTES>()?;
    (head[..4] == BATCH_MAGIC).then(|| u32_at(head, 12) as usize)
}

/// The batch at `offset` of a segment, of which `bytes` is the rest from there on.
///
/// # Errors
/// Anything but an intact batch with that number.
pub fn read_action_batch<'a>(
    identity: Identity,
    offset: u64,
    number: u64,
    bytes: &'a [u8],
) -> Result<ActionBatch<'a>, DecodeError> {
    let fail = |cause| Err(DecodeError { what: WHAT_BATCH, offset, cause });
    let batch = intact(identity, offset, bytes)?;
    if batch.number != number {
        let (found, expected) = (batch.number, number);
        return fail(DecodeCause::WrongFile { field: "batch number", found, expected });
    }
    Ok(batch)
}

fn intact<'a>(
    identity: Identity,
    offset: u64,
    bytes: &'a [u8],
) -> Result<ActionBatch<'a>, DecodeError> {
    let fail = |cause| DecodeError { what: WHAT_BATCH, offset, cause };
    let truncated = |needed| {
        let (needed, available) = (needed as u64, bytes.len() as u64);
        fail(DecodeCause::Truncated { needed, available })
    };
    let head = bytes.first_chunk::<BATCH_HEADER_BYTES>();
    let head = head.ok_or_else(|| truncated(BATCH_HEADER_BYTES))?;
    if head[..4] != BATCH_MAGIC {
        return Err(fail(DecodeCause::BadMagic { found: u64::from(u32_at(head, 0)) }));
    }
    let (stored, computed) = (u32_at(head, 4), identity.checksum(offset, &head[8..]));
    if stored != computed {
        return Err(fail(DecodeCause::Checksum { stored, computed }));
    }
    let (len, payload) = (u32_at(head, 12) as usize, u32_at(head, 16) as usize);
    check("bytes of frames", payload as u64, 0, BATCH_PAYLOAD_BYTES_MAX as u64).map_err(fail)?;
    if len != (BATCH_HEADER_BYTES + payload).next_multiple_of(ACTIONS_ALIGN) {
        return Err(fail(DecodeCause::Inconsistent("the batch's length")));
    }
    let whole = bytes.get(..len).ok_or_else(|| truncated(len))?;
    let stored = u32_at(head, 8);
    let computed = identity.checksum(offset, &whole[BATCH_HEADER_BYTES..]);
    if stored != computed {
        return Err(fail(DecodeCause::Checksum { stored, computed }));
    }
    let (first_tick, last_tick) = (u64_at(head, 32), u64_at(head, 40));
    check("first tick", first_tick, 1, TICK_MAX).map_err(fail)?;
    let last = first_tick + u64::from(u32::MAX);
    check("last tick", last_tick, first_tick, last).map_err(fail)?;
    Ok(ActionBatch {
        number: u64_at(head, 24),
        first_tick,
        last_tick,
        len,
        payload: &whole[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + payload],
        payload_at: offset + BATCH_HEADER_BYTES as u64,
    })
}

/// Looks for an intact batch behind a place where batch `number` is missing. Such a batch proves
/// that the missing one was flushed once, since a batch is written only after the one before was
/// flushed. Returns the offset of the first one found.
pub fn valid_batch_behind(
    identity: Identity,
    offset: u64,
    number: u64,
    bytes: &[u8],
) -> Option<u64> {
    let places = (0..bytes.len()).step_by(ACTIONS_ALIGN).skip(1);
    places.map(|at| (at, offset + at as u64)).find_map(|(at, place)| {
        let batch = intact(identity, place, &bytes[at..]).ok()?;
        (batch.number > number).then_some(place)
    })
}
