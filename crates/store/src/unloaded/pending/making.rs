//! Values that are made of a record and the writes that have waited for it.

use stillpoint_format::Label;
use stillpoint_format::log::WriteOp;
use stillpoint_sync::{mutant, planted};

/// The patches of a key do not fit its record. The log or the checkpoint is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log changes a part of a value at offset {offset}, and the checkpoints have {len} bytes of it"
)]
pub struct PatchWithoutBase {
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// What the writes of a key make of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The label of the value; `None` if the key has none.
    pub(crate) label: Option<Label>,
    /// The gsn of the last write.
    pub(crate) gsn: u64,
    /// Number of the writes.
    pub(crate) writes: usize,
}

/// A value that is being made of a record and writes. Its bytes are the last ones of `out`.
pub(super) struct Making<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    /// `None` without a value.
    label: Option<Label>,
    pub(super) gsn: u64,
    pub(super) writes: usize,
    /// The first change that did not fit, if no whole value has come since.
    wrong: Option<PatchWithoutBase>,
}

impl<'a> Making<'a> {
    pub(super) fn new(base: Option<(Label, &[u8])>, out: &'a mut Vec<u8>) -> Self {
        let planted = || Some((Label::default(), &[0; 1 << 10][..]));
        let base = mutant!(base, PatchesWithoutBase => planted());
        let start = out.len();
        let label = base.map(|(label, value)| {
            out.extend_from_slice(value);
            label
        });
        Self { out, start, label, gsn: 0, writes: 0, wrong: None }
    }

    pub(super) fn apply(&mut self, op: WriteOp<'_>) {
        match op {
            WriteOp::Put { label, value } => {
                self.out.truncate(self.start);
                self.out.extend_from_slice(value);
                (self.label, self.wrong) = (Some(label), None);
            }
            WriteOp::Delete => {
                self.out.truncate(self.start);
                (self.label, self.wrong) = (None, None);
            }
            WriteOp::Patch(ranges) => {
                ranges.for_each(|range| self.change(range.offset, None, range.bytes));
            }
            WriteOp::Until { deadline, ranges } => {
                match &mut self.label {
                    Some(label) => {
                        mutant!(label.deadline = deadline, DeadlineNotReplayed => ());
                    }
                    None => self.misfit(0, 0),
                }
                ranges.for_each(|range| self.change(range.offset, None, range.bytes));
            }
            WriteOp::Splice(splices) => {
                splices.for_each(|of| self.change(of.offset, Some(of.removed), of.bytes));
            }
        }
    }

    /// Replaces bytes of the value. Without a number of removed bytes the bytes overwrite what is there,
    /// and may make the value longer.
    fn change(&mut self, offset: u32, removed: Option<u32>, bytes: &[u8]) {
        let (offset, len) = (offset as usize, self.out.len() - self.start);
        let end = match removed {
            Some(removed) => offset + removed as usize,
            None => len.min(offset + bytes.len()),
        };
        if self.label.is_none() || offset > end || end > len {
            return self.misfit(offset, len);
        }
        let at = self.start + offset;
        if end - offset == bytes.len() {
            self.out[at..at + bytes.len()].copy_from_slice(bytes);
        } else {
            self.out.splice(at..self.start + end, bytes.iter().copied());
        }
    }

    fn misfit(&mut self, offset: usize, len: usize) {
        self.wrong.get_or_insert(PatchWithoutBase { offset, len });
    }

    pub(super) fn give_up(self) {
        self.out.truncate(self.start);
    }

    pub(super) fn end(self) -> Result<Resolved, PatchWithoutBase> {
        match self.wrong {
            Some(wrong) => {
                self.out.truncate(self.start);
                Err(wrong)
            }
            None => {
                let Self { label, gsn, writes, .. } = self;
                Ok(Resolved { label, gsn, writes })
            }
        }
    }
}
