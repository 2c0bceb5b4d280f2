//! The private writes of a transaction until its commit.

use stillpoint_format::Label;

use crate::memory::blob::{Blob, CHUNK_BYTES, VALUE_BYTES_MAX};

/// Kind of a pending write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// A new value. If it was made by splices of the old one, these follow the put.
    Put,
    Delete,
    Patch,
    /// Another deadline of a key that keeps its value. Patches of the key follow.
    Until,
    /// The blocks of another key's large value.
    Share,
    /// Bytes of a value that others replace. Follows a put that has the new value.
    Splice,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Of a put: the tag. Of the first patch of a key: how many patches follow it, at most 255.
    pub(crate) tag: u8,
    /// Of a put or a deadline: the number of the deadline, from 1 on, 0 for none.
    pub(crate) offset: u32,
    /// The next patch of the same key. Behind a put, the next splice. 0 for none.
    pub(crate) next: u32,
    /// For the first patch of a key, the last patch. For a put, the last splice.
    last: u32,
    /// For the first patch of a key, the farthest end of all its patches. For a put, the reserved
    /// bytes. For a splice, the number of the replaced bytes. For shared blocks, the length of the value.
    pub(crate) extent: u32,
    len: u32,
    /// Begin of the bytes. For shared blocks, the number of their table.
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
    /// Deadlines of keys, which have numbers from 1 on.
    deadlines: Vec<u64>,
}

/// Replaced bytes of a value, one splice after the other: offset, number of the replaced bytes, and
/// the bytes that replace them.
#[derive(Clone, Copy, Debug)]
pub struct Splices<'a> {
    pending: &'a Pending,
    next: u32,
}

impl<'a> Iterator for Splices<'a> {
    type Item = (usize, usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let op = self.pending.op(self.next)?;
        self.next = op.next;
        Some((op.offset as usize, op.extent as usize, self.pending.bytes(op)))
    }
}

/// Bytes of a piece in which a value is moved out: a multiple of a chunk of a large value.
const TAKEN_BYTES: usize = 64 * CHUNK_BYTES;

/// Least garbage for a compaction, which visits all operations.
const GARBAGE_BYTES_MIN: usize = 1 << 20;

impl Op {
    /// Bytes reserved for the operation.
    fn room(&self) -> usize {
        match self.kind {
            OpKind::Put => self.extent as usize,
            OpKind::Patch | OpKind::Splice => self.len as usize,
            OpKind::Delete | OpKind::Until | OpKind::Share => 0,
        }
    }
}

impl Pending {
    pub(crate) fn clear(&mut self) {
        self.garbage = 0;
        self.ops.clear();
        self.data.clear();
        self.deadlines.clear();
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
        self.shared(op).map_or(op.len as usize, |blob| blob.len)
    }

    /// The label of a put.
    #[inline]
    pub(crate) fn label(&self, put: &Op) -> Label {
        Label { tag: put.tag, deadline: self.deadline(put) }
    }

    /// The deadline of a put, or the one that an operation sets. 0 for none.
    #[inline]
    pub(crate) fn deadline(&self, op: &Op) -> u64 {
        if op.offset == 0 { 0 } else { self.deadlines[op.offset as usize - 1] }
    }

    /// Adds a put.
    #[inline]
    pub(crate) fn add_put(&mut self, label: Label, value: &[u8]) -> u32 {
        let put = self.add(OpKind::Put, label.tag, 0, value);
        if label.deadline != 0 {
            self.set_deadline(put, label.deadline);
        }
        put
    }

    /// Adds a put of another key's large value.
    pub(crate) fn add_share(&mut self, label: Label, blob: Blob) -> u32 {
        let number = self.add_put(label, &[]);
        let op = &mut self.ops[number as usize - 1];
        (op.kind, op.start, op.extent) = (OpKind::Share, blob.table as usize, blob.len as u32);
        number
    }

    /// The blocks that an operation shares with another key.
    pub(crate) fn shared(&self, op: &Op) -> Option<Blob> {
        let blob = Blob { table: op.start as u64, len: op.extent as usize };
        (op.kind == OpKind::Share).then_some(blob)
    }

    /// Sets the deadline of a put, or that of an operation that sets one.
    pub(crate) fn set_deadline(&mut self, number: u32, deadline: u64) {
        let at = self.ops[number as usize - 1].offset as usize;
        if at > 0 {
            self.deadlines[at - 1] = deadline;
        } else if deadline != 0 {
            self.deadlines.push(deadline);
            self.ops[number as usize - 1].offset = self.deadlines.len() as u32;
        }
    }

    /// Adds an operation that sets the deadline of a key. The patches of the key from `first` on follow
    /// it.
    pub(crate) fn add_deadline(&mut self, deadline: u64, first: u32) -> u32 {
        let number = self.add(OpKind::Until, 0, 0, &[]);
        self.set_deadline(number, deadline);
        if let Some(head) = self.op(first).copied() {
            let op = &mut self.ops[number as usize - 1];
            (op.next, op.last, op.extent) = (first, head.last, head.extent);
            op.tag = head.tag.saturating_add(1);
        }
        number
    }

    /// From here on the log gets the value of a put, and not its splices.
    pub(crate) fn forget_splices(&mut self, put: u32) {
        let first = std::mem::replace(&mut self.ops[put as usize - 1].next, NONE);
        self.discard(first);
    }

    /// Bytes of values that the log gets of these first operations of keys, about.
    pub(crate) fn logged_bytes(&self, firsts: impl Iterator<Item = u32>) -> usize {
        firsts.filter_map(|first| self.op(first)).map(|op| self.len_of(op)).sum()
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

    /// Puts bytes into the patches from `first` on, as a further patch would. False if none of these
    /// patches has the bytes' range, or ends at or in it.
    pub(crate) fn merge(&mut self, first: u32, offset: usize, bytes: &[u8]) -> bool {
        /// A patch of this length, at most, is moved to grow.
        const MOVED_BYTES_MAX: usize = 1024;
        let to = offset + bytes.len();
        let ends = |op: &Op| (op.offset as usize, op.offset as usize + op.len as usize);
        // Later patches overwrite earlier ones, so only the last one that meets the range may change.
        let (mut last, mut number) = (NONE, first);
        while let Some(op) = self.op(number) {
            let (start, end) = ends(op);
            if start <= to && offset <= end && op.kind == OpKind::Patch {
                last = number;
            }
            number = op.next;
        }
        let Some(op) = self.op(last).copied() else { return false };
        let (start, end) = ends(&op);
        if offset < start {
            return false;
        }
        let within = offset - start;
        if to > end {
            if to - start > MOVED_BYTES_MAX {
                return false;
            }
            let mut at = op.start;
            if at + op.len as usize != self.data.len() {
                self.garbage += op.len as usize;
                at = self.data.len();
                self.data.extend_from_within(op.start..op.start + op.len as usize);
            }
            self.data.resize(at + to - start, 0);
            let op = &mut self.ops[last as usize - 1];
            (op.start, op.len) = (at, (to - start) as u32);
            let head = &mut self.ops[first as usize - 1];
            head.extent = head.extent.max(to as u32);
        }
        let at = self.ops[last as usize - 1].start + within;
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Replaces bytes of the value of a put.
    pub(crate) fn splice_put(&mut self, number: u32, offset: usize, removed: usize, bytes: &[u8]) {
        let op = self.ops[number as usize - 1];
        let (len, end) = (op.len as usize, offset + removed);
        let new_len = len - removed + bytes.len();
        // Makes room for the longer value, whose last bytes are overwritten then.
        if new_len > len {
            self.patch_put(number, len, &bytes[..new_len - len]);
        }
        let op = &mut self.ops[number as usize - 1];
        op.len = new_len as u32;
        let start = op.start;
        self.data.copy_within(start + end..start + len, start + offset + bytes.len());
        self.data[start + offset..start + offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Notes that the value of a put comes from the old one by splices, of which this is the next.
    /// `is_first` says that it is the first one.
    pub(crate) fn note_splice(
        &mut self,
        number: u32,
        (offset, removed, bytes): (usize, usize, &[u8]),
        is_first: bool,
    ) {
        /// Bytes of a splice in the log beside its own.
        const SPLICE_BYTES: usize = 6;
        if !is_first && self.ops[number as usize - 1].next == NONE {
            return;
        }
        if !is_first && self.extend_splice(number, (offset, removed, bytes)) {
            return;
        }
        let splice = self.add(OpKind::Splice, 0, offset, bytes);
        self.ops[splice as usize - 1].extent = removed as u32;
        let put = &mut self.ops[number as usize - 1];
        let last = std::mem::replace(&mut put.last, splice);
        let behind = if is_first { number } else { last };
        self.ops[behind as usize - 1].next = splice;
        let put = &self.ops[number as usize - 1];
        let splices = std::iter::successors(self.op(put.next), |op| self.op(op.next));
        let logged: usize = splices.map(|op| SPLICE_BYTES + op.len as usize).sum();
        if logged >= put.len as usize {
            self.forget_splices(number);
        }
    }

    /// Makes the last splice of a put longer if the next one continues it.
    fn extend_splice(
        &mut self,
        number: u32,
        (offset, removed, bytes): (usize, usize, &[u8]),
    ) -> bool {
        let last = self.ops[number as usize - 1].last;
        let op = self.ops[last as usize - 1];
        let end = op.offset as usize + op.len as usize;
        let is_last = op.len == 0 || op.start + op.len as usize == self.data.len();
        if removed == 0 && offset == end && is_last && !bytes.is_empty() {
            let start = self.data.len() - op.len as usize;
            self.data.extend_from_slice(bytes);
            let op = &mut self.ops[last as usize - 1];
            (op.start, op.len) = (start, op.len + bytes.len() as u32);
            return true;
        }
        if bytes.is_empty() && op.len == 0 && offset == op.offset as usize {
            self.ops[last as usize - 1].extent += removed as u32;
            return true;
        }
        false
    }

    /// The splices by which the value of a put comes from the old one. `None` if the log gets the
    /// value.
    pub(crate) fn splices(&self, put: &Op) -> Option<Splices<'_>> {
        (put.kind == OpKind::Put && put.next != NONE)
            .then_some(Splices { pending: self, next: put.next })
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
            if op.kind == OpKind::Until {
                next = op.next;
                continue;
            }
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

    /// Chains of patches, merged or not, in comparison with plain values.
    #[test]
    fn merged_patches_are_as_if_each_came_after_the_others() {
        let mut random = 7u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % limit
        };
        let (mut merged, mut chained) = (0, 0);
        for round in 0..400 {
            let mut pending = Pending::default();
            let mut keys = [const { NONE }; 2];
            let old: Vec<u8> = (0..60).collect();
            let mut values = [old.clone(), old.clone()];
            for step in 0..40 {
                let key = below(2);
                let value = &mut values[key];
                let offset = below(value.len() + 1);
                let bytes = vec![100 + step; 1 + below(if round % 2 == 0 { 6 } else { 400 })];
                let first = keys[key];
                if first != NONE && pending.merge(first, offset, &bytes) {
                    merged += 1;
                } else {
                    let op = pending.add(OpKind::Patch, 0, offset, &bytes);
                    if first == NONE {
                        keys[key] = op;
                    } else {
                        chained += 1;
                        pending.chain(first, op);
                    }
                }
                value.resize(value.len().max(offset + bytes.len()), 0);
                value[offset..offset + bytes.len()].copy_from_slice(&bytes);
                for (first, value) in keys.iter().zip(&values) {
                    let mut found = old.clone();
                    pending.apply(*first, &mut found);
                    assert_eq!(&found, value, "round {round}");
                    assert!(pending.len_after(*first, old.len()) == value.len());
                }
            }
        }
        assert!(merged > 1_000 && chained > 1_000, "{merged} {chained}");
    }

    /// Splices of random values, in comparison with vectors: the put has the new value, and the
    /// noted splices make it of the old one.
    #[test]
    fn splices_make_the_new_value_of_the_old_one() {
        let mut random = 11u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % limit
        };
        let (mut spliced, mut whole) = (0, 0);
        for round in 0..2_000 {
            let mut pending = Pending::default();
            let old: Vec<u8> = (0..1 + below(300)).map(|at| at as u8).collect();
            let mut value = old.clone();
            let put = pending.add(OpKind::Put, 0, 0, &value);
            for step in 0..1 + below(12) {
                let offset = if below(3) == 0 { 0 } else { below(value.len() + 1) };
                let removed = below(20.min(value.len() - offset) + 1) * below(2);
                let bytes = vec![step as u8; below(30) * below(2)];
                pending.splice_put(put, offset, removed, &bytes);
                pending.note_splice(put, (offset, removed, &bytes), step == 0);
                value.splice(offset..offset + removed, bytes);
                if below(4) == 0 {
                    // Other writes of the transaction.
                    pending.add(OpKind::Put, 0, 0, b"other");
                }
            }
            let op = pending.op(put).copied().expect("was added");
            assert_eq!(pending.bytes(&op), value, "round {round}");
            let Some(splices) = pending.splices(&op) else {
                whole += 1;
                continue;
            };
            spliced += 1;
            let mut made = old;
            for (offset, removed, bytes) in splices {
                made.splice(offset..offset + removed, bytes.iter().copied());
            }
            assert_eq!(made, value, "round {round}");
        }
        assert!(spliced > 500 && whole > 100, "{spliced} {whole}");
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
