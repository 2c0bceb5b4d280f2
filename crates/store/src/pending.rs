//! The private writes of a transaction, until it commits.

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
    start: usize,
    len: usize,
}

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
        // A large transaction's buffer is not kept for the small ones after it.
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
        &self.data[op.start..op.start + op.len]
    }

    pub(crate) fn len_of(&self, op: &Op) -> usize {
        op.len
    }

    #[inline]
    pub(crate) fn add(&mut self, kind: OpKind, tag: u8, offset: usize, bytes: &[u8]) -> u32 {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let offset = offset as u32;
        self.ops.push(Op { kind, tag, offset, next: NONE, start, len: bytes.len() });
        self.ops.len() as u32
    }

    /// Appends a patch to the chain that begins at `first`.
    pub(crate) fn chain(&mut self, first: u32, number: u32) {
        let mut at = first;
        while self.ops[at as usize - 1].next != NONE {
            at = self.ops[at as usize - 1].next;
        }
        self.ops[at as usize - 1].next = number;
    }

    /// Overwrites part of a pending value, which may grow by it.
    pub(crate) fn patch_put(&mut self, number: u32, offset: usize, bytes: &[u8]) {
        let op = self.ops[number as usize - 1];
        let end = offset + bytes.len();
        if end > op.len {
            if op.start + op.len != self.data.len() {
                let start = self.data.len();
                self.data.extend_from_within(op.start..op.start + op.len);
                self.ops[number as usize - 1].start = start;
            }
            let start = self.ops[number as usize - 1].start;
            self.data.resize(start + end, 0);
            self.ops[number as usize - 1].len = end;
        }
        let start = self.ops[number as usize - 1].start + offset;
        self.data[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Length of a value of `len` bytes after the patches from `first` on.
    pub(crate) fn len_after(&self, first: u32, len: usize) -> usize {
        let mut len = len;
        let mut next = first;
        while let Some(op) = self.op(next) {
            len = len.max(op.offset as usize + op.len);
            next = op.next;
        }
        len
    }

    /// Applies the patches from `first` on to a value.
    pub(crate) fn apply(&self, first: u32, value: &mut Vec<u8>) {
        let mut next = first;
        while let Some(op) = self.op(next) {
            let (from, to) = (op.offset as usize, op.offset as usize + op.len);
            if value.len() < to {
                value.resize(to, 0);
            }
            value[from..to].copy_from_slice(self.bytes(op));
            next = op.next;
        }
    }
}
