//! The private writes of a transaction until its commit.

use crate::memory::blob::{CHUNK_BYTES, VALUE_BYTES_MAX};

/// Kind of a pending write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Put,
    Delete,
    Patch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Of a put: the tag. Of the first patch of a key: how many patches follow it, at most 255.
    pub(crate) tag: u8,
    pub(crate) offset: u32,
    /// The next patch of the same key. 0 for none.
    pub(crate) next: u32,
    /// For the first patch of a key, the last patch.
    last: u32,
    /// For the first patch of a key, the farthest end of all its patches. For a put, the reserved
    /// bytes.
    extent: u32,
    len: u32,
    start: usize,
}

// Values, offsets and their sums are below 2^32: a value has 512 MiB at most.
const _: () = assert!(size_of::<Op>() == 32 && VALUE_BYTES_MAX < 1 << 31);

/// The number that stands for no operation.
pub(crate) const NONE: u32 = 0;

/// Operations and their bytes. Operations are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    ops: Vec<Op>,
    data: Vec<u8>,
    /// Garbage bytes of `data`, which belong to no operation any more.
    garbage: usize,
}

/// Bytes of a piece in which a value is moved out: a multiple of a chunk of a large value.
const TAKEN_BYTES: usize = 4 << 20;
const _: () = assert!(TAKEN_BYTES.is_multiple_of(CHUNK_BYTES));

/// Least garbage for a compaction, which visits all operations.
const GARBAGE_BYTES_MIN: usize = 1 << 20;

impl Op {
    /// Bytes reserved for the operation.
    fn room(&self) -> usize {
        match self.kind {
            OpKind::Put => self.extent as usize,
            OpKind::Patch => self.len as usize,
            OpKind::Delete => 0,
        }
    }
}

impl Pending {
    pub(crate) fn clear(&mut self) {
        self.garbage = 0;
        self.ops.clear();
        self.data.clear();
        // The buffer of a large transaction is freed, not kept for small transactions.
        const KEEP_BYTES: usize = 1 << 20;
        if self.data.capacity() > KEEP_BYTES {
            self.data.shrink_to(KEEP_BYTES);
        }
    }

    #[inline]
    pub(crate) fn op(&self, number: u32) -> Option<&Op> {
        self.ops.get((number as usize).wrapping_sub(1))
    }

    #[inline]
    pub(crate) fn bytes(&self, op: &Op) -> &[u8] {
        &self.data[op.start..op.start + op.len as usize]
    }

    pub(crate) fn len_of(&self, op: &Op) -> usize {
        op.len as usize
    }

    /// Bytes that the pending writes take.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.data.len() + self.ops.len() * size_of::<Op>()
    }

    /// Bytes reserved for the operations from `first` on.
    pub(crate) fn room_of(&self, first: u32) -> usize {
        let chain = std::iter::successors(self.op(first), |op| self.op(op.next));
        chain.map(Op::room).sum()
    }

    /// Drops the unused operations from `first` on, and uses their bytes again.
    pub(crate) fn discard(&mut self, first: u32) {
        let mut next = first;
        while let Some(op) = self.ops.get_mut((next as usize).wrapping_sub(1)) {
            let room = op.room();
            if op.start + room == self.data.len() {
                self.data.truncate(op.start);
            } else {
                self.garbage += room;
            }
            next = op.next;
            (op.kind, op.start, op.len, op.extent) = (OpKind::Delete, 0, 0, 0);
        }
        if self.garbage > GARBAGE_BYTES_MIN && 2 * self.garbage > self.held_bytes() {
            self.compact();
        }
    }

    #[cold]
    fn compact(&mut self) {
        let mut data = Vec::with_capacity(self.data.len() - self.garbage);
        for op in self.ops.iter_mut().filter(|op| op.room() > 0) {
            let start = data.len();
            data.extend_from_slice(&self.data[op.start..op.start + op.room()]);
            op.start = start;
        }
        (self.data, self.garbage) = (data, 0);
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, kind: OpKind, tag: u8, offset: usize, bytes: &[u8]) -> u32 {
        // When the last bytes of the data are dropped, the end of the data moves back, and so does
        // an empty operation there.
        let start = if bytes.is_empty() { 0 } else { self.data.len() };
        self.data.extend_from_slice(bytes);
        let (offset, len) = (offset as u32, bytes.len() as u32);
        let number = self.ops.len() as u32 + 1;
        let extent = offset + len;
        self.ops.push(Op { kind, tag, offset, next: NONE, last: number, extent, len, start });
        number
    }

    /// Appends a patch to the chain that begins at `first`.
    pub(crate) fn chain(&mut self, first: u32, number: u32) {
        let extent = self.ops[number as usize - 1].extent;
        let head = &mut self.ops[first as usize - 1];
        head.extent = head.extent.max(extent);
        head.tag = head.tag.saturating_add(1);
        let last = std::mem::replace(&mut head.last, number);
        self.ops[last as usize - 1].next = number;
    }

    /// True if a key has so many patches, from `first` on, that each read pays for their number.
    pub(crate) fn is_long(&self, first: u32) -> bool {
        const PATCHES_MAX: u8 = 32;
        self.op(first).is_some_and(|head| head.tag >= PATCHES_MAX)
    }

    /// Overwrites part of a pending value. The value may grow.
    pub(crate) fn patch_put(&mut self, number: u32, offset: usize, bytes: &[u8]) {
        let op = &mut self.ops[number as usize - 1];
        let end = offset + bytes.len();
        if end > op.extent as usize {
            if op.start + op.extent as usize == self.data.len() {
                self.data.resize(op.start + end, 0);
                op.extent = end as u32;
            } else {
                // Reserves twice the length, so that a value that grows often is rarely moved.
                let room = (2 * end).min(VALUE_BYTES_MAX);
                let start = self.data.len();
                self.garbage += op.extent as usize;
                self.data.extend_from_within(op.start..op.start + op.len as usize);
                self.data.resize(start + room, 0);
                (op.start, op.extent) = (start, room as u32);
            }
        }
        op.len = op.len.max(end as u32);
        let start = op.start + offset;
        self.data[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Moves out the value of a put: calls `take` with offsets and pieces, the last piece first.
    /// Frees the memory of a long value piece by piece, if nothing is pending behind it.
    pub(crate) fn take_value(&mut self, number: u32, mut take: impl FnMut(usize, &[u8])) {
        let Some(op) = self.ops.get_mut((number as usize).wrapping_sub(1)) else { return };
        let (start, len, is_last) =
            (op.start, op.len as usize, op.start + op.extent as usize == self.data.len());
        (op.start, op.len, op.extent) = (0, 0, 0);
        for from in (0..len).step_by(TAKEN_BYTES).rev() {
            let to = len.min(from + TAKEN_BYTES);
            take(from, &self.data[start + from..start + to]);
            if is_last && len > TAKEN_BYTES {
                self.data.truncate(start + from);
                self.data.shrink_to_fit();
            }
        }
    }

    /// Length of a value of `len` bytes after the patches from `first` on.
    pub(crate) fn len_after(&self, first: u32, len: usize) -> usize {
        self.op(first).map_or(len, |head| len.max(head.extent as usize))
    }

    /// Applies the patches from `first` on to a value.
    pub(crate) fn apply(&self, first: u32, value: &mut Vec<u8>) {
        let mut next = first;
        while let Some(op) = self.op(next) {
            let (from, to) = (op.offset as usize, op.offset as usize + op.len as usize);
            if value.len() < to {
                value.resize(to, 0);
            }
            value[from..to].copy_from_slice(self.bytes(op));
            next = op.next;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Puts, patches and deletions of three keys in turn, in comparison with plain values.
    #[test]
    fn bytes_of_replaced_writes_are_used_again() {
        let mut pending = Pending::default();
        let mut keys = [const { (NONE, Vec::<u8>::new()) }; 3];
        let mut random = 1u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        for round in 0..3_000u32 {
            let (number, value) = &mut keys[below(3) as usize];
            let len = if below(5) == 0 { 0 } else { below(200_000) };
            let bytes = vec![round as u8; len as usize];
            match below(4) {
                0 if *number != NONE => {
                    let offset = below(value.len() as u64 + 1) as usize;
                    pending.patch_put(*number, offset, &bytes);
                    let kept = (offset + bytes.len()).max(value.len()).min(1 << 20);
                    if kept < offset + bytes.len() {
                        // The value is long enough, so it is put anew.
                        pending.discard(*number);
                        *number = NONE;
                    } else {
                        value.resize(kept, 0);
                        value[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                1 if *number != NONE => {
                    pending.discard(*number);
                    *number = NONE;
                }
                _ => {
                    pending.discard(*number);
                    *number = pending.add(OpKind::Put, 0, 0, &bytes);
                    *value = bytes;
                }
            }
            for (number, value) in &keys {
                let found = pending.op(*number).map(|op| pending.bytes(op));
                assert!(found.is_none_or(|found| found == value), "round {round}");
            }
            // The bound: three values with twice their length reserved, the same amount of garbage,
            // and the newest value.
            assert!(pending.held_bytes() < 24 << 20, "round {round}: {}", pending.held_bytes());
        }
    }

    /// A long value is never in memory twice, and operations before it stay.
    #[test]
    fn a_value_is_given_away_piece_by_piece() {
        for len in [0, 1, 70_000, TAKEN_BYTES, TAKEN_BYTES + 1, 3 * TAKEN_BYTES - 5] {
            let value: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
            for is_last in [true, false] {
                let mut pending = Pending::default();
                let before = pending.add(OpKind::Put, 0, 0, b"before");
                let number = pending.add(OpKind::Put, 3, 0, &value);
                let after = if is_last { before } else { pending.add(OpKind::Put, 0, 0, b"after") };
                let mut taken = vec![0; len];
                let mut left = len;
                pending.take_value(number, |offset, piece| {
                    assert_eq!((offset + piece.len(), offset % TAKEN_BYTES), (left, 0));
                    taken[offset..left].copy_from_slice(piece);
                    left = offset;
                });
                assert!(left == 0 && taken == value, "{len} {is_last}");
                if is_last && len > TAKEN_BYTES {
                    assert!(pending.data.capacity() < 100, "{len}: its memory is free");
                }
                let bytes = |number| pending.op(number).map(|op| pending.bytes(op));
                assert_eq!(bytes(before), Some(&b"before"[..]));
                assert_eq!(bytes(number), Some(&b""[..]));
                assert!(is_last || bytes(after) == Some(&b"after"[..]));
            }
        }
    }

    #[test]
    fn a_dropped_chain_of_patches_leaves_nothing() {
        let mut pending = Pending::default();
        let first = pending.add(OpKind::Patch, 0, 7, &[1; 300]);
        let other = pending.add(OpKind::Put, 0, 0, b"other");
        for _ in 0..2_000 {
            let patch = pending.add(OpKind::Patch, 0, 0, &[2; 1_000]);
            pending.chain(first, patch);
        }
        assert_eq!(pending.room_of(first), 300 + 2_000 * 1_000);
        pending.discard(first);
        assert_eq!(pending.room_of(first), 0);
        assert_eq!(pending.op(other).map(|op| pending.bytes(op)), Some(&b"other"[..]));
        assert!(pending.data.len() < 1_000 && pending.garbage == 0);
    }
}
