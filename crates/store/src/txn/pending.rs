//! The private writes of a transaction until its commit.

use crate::memory::blob::VALUE_BYTES_MAX;

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
    pub(crate) tag: u8,
    pub(crate) offset: u32,
    /// The next patch of the same key; 0 for none.
    pub(crate) next: u32,
    /// Of the first patch of a key: the last one.
    last: u32,
    /// Of the first patch of a key: where the farthest reaches to. Of a put: the bytes set aside.
    extent: u32,
    len: u32,
    start: usize,
}

// Values, offsets and their sums are below 2^32: a value has 512 MiB at most.
const _: () = assert!(size_of::<Op>() == 32 && VALUE_BYTES_MAX < 1 << 31);

/// Number of no operation.
pub(crate) const NONE: u32 = 0;

/// Operations and their bytes. Operations are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    ops: Vec<Op>,
    data: Vec<u8>,
}

impl Pending {
    pub(crate) fn clear(&mut self) {
        self.ops.clear();
        self.data.clear();
        // The buffer of a large transaction is not kept for small transactions.
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

    #[inline]
    pub(crate) fn add(&mut self, kind: OpKind, tag: u8, offset: usize, bytes: &[u8]) -> u32 {
        let start = self.data.len();
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
        let last = std::mem::replace(&mut head.last, number);
        self.ops[last as usize - 1].next = number;
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
                // Room for twice as much: a value that grows often is moved seldom.
                let room = (2 * end).min(VALUE_BYTES_MAX);
                let start = self.data.len();
                self.data.extend_from_within(op.start..op.start + op.len as usize);
                self.data.resize(start + room, 0);
                (op.start, op.extent) = (start, room as u32);
            }
        }
        op.len = op.len.max(end as u32);
        let start = op.start + offset;
        self.data[start..start + bytes.len()].copy_from_slice(bytes);
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
