//! The joined segments of one log of one incarnation. This module finds the log's end, and judges
//! whether the log may end there.

use std::ops::ControlFlow;
use std::path::Path;

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{EndCause, SegmentEnd, Tail};
use stillpoint_format::{DecodeCause, DecodeError, names};
use stillpoint_io::Disk;

use super::error::{Proof, ScanError};
use super::segment::{LogOffset, SegmentFile};
use super::walk::{WINDOW_BYTES, Walked};

/// A log of one incarnation, with its valid and its kept part.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) log: u8,
    /// The gsn up to which replay needs no record, whatever kind of table the record is of.
    pub(crate) base: u64,
    /// The gsn up to which the checkpoint has the records' writes to the memory store. Not less
    /// than `base`.
    pub(crate) loaded_gsn: u64,
    /// Segments with valid records, in order.
    pub(crate) segments: Vec<Walked>,
    /// The last valid gsn. `base` if there is no valid gsn above `base`.
    pub(crate) valid_gsn: u64,
    /// The last gsn that is kept.
    pub(crate) kept_gsn: u64,
    /// A valid batch states that all batches with smaller numbers were flushed.
    pub(crate) flushed_below: u64,
}

impl Chain {
    /// The walked segments of a log, not yet joined.
    pub(crate) fn new(log: u8, base: u64, segments: Vec<Walked>) -> Self {
        Chain {
            log,
            base,
            loaded_gsn: base,
            segments,
            valid_gsn: base,
            kept_gsn: base,
            flushed_below: 0,
        }
    }

    /// Joins the segments. Records up to `kept` must exist, and later ones do not count. After an
    /// error the chain ends before the damage.
    pub(crate) fn join(&mut self, disk: &dyn Disk, kept: Option<u64>) -> Result<(), ScanError> {
        let joined = self.find_end(disk, kept);
        self.valid_gsn = kept.map_or(self.valid_gsn, |kept| kept.min(self.valid_gsn));
        self.kept_gsn = self.valid_gsn;
        joined
    }

    fn find_end(&mut self, disk: &dyn Disk, kept: Option<u64>) -> Result<(), ScanError> {
        if let Some(first) = self.segments.first() {
            if first.file.header.first_gsn > self.base + 1 {
                return Err(self.missing(disk, self.base, Some(first.file.header.first_gsn)));
            }
        } else if let Some(kept) = kept.filter(|&kept| kept > self.base) {
            return Err(self.missing(disk, self.base.min(kept), None));
        }
        let mut last = 0;
        while last < self.segments.len() {
            let (end, next) = (self.segments[last].end, self.segments.get(last + 1));
            self.valid_gsn = self.valid_gsn.max(end.last_gsn);
            self.flushed_below = self.flushed_below.max(self.segments[last].flushed_below);
            if kept.is_some_and(|kept| kept <= self.valid_gsn) {
                break;
            }
            if let Some(EndCause::Continued { first_gsn }) = self.segments[last].cause {
                let found = next.map(|next| next.file.header.first_gsn);
                if found != Some(first_gsn) {
                    return Err(self.missing(disk, end.last_gsn, found));
                }
            }
            if let Some(next) = next
                && next.file.begin().number == end.number
            {
                if next.file.begin().last_gsn != end.last_gsn {
                    return Err(contradiction(&next.file, "its first gsn and batch number"));
                }
                last += 1;
                continue;
            }
            if next.is_some_and(|next| next.file.begin().number < end.number) {
                return Err(contradiction(&self.segments[last + 1].file, "its first batch number"));
            }
            self.judge_end(last)?;
            break;
        }
        if let Some(kept) = kept.filter(|&kept| self.valid_gsn < kept) {
            return Err(self.short(last, kept));
        }
        self.segments.truncate(last + 1);
        Ok(())
    }

    /// Judges whether the log may end in the segment at `at`, before an invalid batch.
    fn judge_end(&self, at: usize) -> Result<(), ScanError> {
        let ended = &self.segments[at];
        let Some(cause) = ended.cause.clone() else {
            return Ok(());
        };
        let damaged = |proof: Option<Proof>| {
            Err(ScanError::Damaged {
                path: ended.file.shown.clone(),
                log: self.log,
                offset: ended.end.offset,
                last_gsn: ended.end.last_gsn,
                cause: Box::new(cause.clone()),
                proof: proof.map(Box::new),
            })
        };
        // Space is allocated durably before a segment gets its name.
        if matches!(cause, EndCause::Truncated { .. }) {
            return damaged(None);
        }
        let end = SegmentEnd {
            offset: ended.end.offset,
            next_number: ended.end.number,
            cause: cause.clone(),
        };
        for (later, segment) in self.segments.iter().enumerate().skip(at) {
            let from = if later == at { end.offset } else { HEADER_BYTES as u64 };
            match segment.file.tail(from, &end)? {
                Tail::End | Tail::OutOfOrder(_) => {}
                Tail::Damaged(proof) => {
                    let path = segment.file.shown.clone();
                    return damaged(proof.map(|batch| Proof { path, batch }));
                }
            }
        }
        Ok(())
    }

    /// A log that was opened has a segment, since the newest one is never freed. The log reaches
    /// the position that was flushed before a checkpoint was published.
    pub(crate) fn expect_end(&self, disk: &dyn Disk, flushed_gsn: u64) -> Result<(), ScanError> {
        match self.segments.last() {
            None => Err(self.missing(disk, self.base, None)),
            Some(last) if last.end.last_gsn < flushed_gsn => {
                Err(self.short(self.segments.len() - 1, flushed_gsn))
            }
            Some(_) => Ok(()),
        }
    }

    /// The space of a segment is allocated durably before the segment gets its name.
    pub(crate) fn expect_whole(&self) -> Result<(), ScanError> {
        match self.segments.last().filter(|last| last.file.is_cut_off()) {
            None => Ok(()),
            Some(last) => Err(ScanError::Damaged {
                path: last.file.shown.clone(),
                log: self.log,
                offset: last.end.offset,
                last_gsn: last.end.last_gsn,
                cause: Box::new(EndCause::Exhausted),
                proof: None,
            }),
        }
    }

    fn missing(&self, disk: &dyn Disk, after_gsn: u64, found_gsn: Option<u64>) -> ScanError {
        let dir = disk.describe(Path::new(&names::log_dir(self.log)));
        ScanError::Missing { dir, log: self.log, after_gsn, found_gsn }
    }

    fn short(&self, last: usize, kept_gsn: u64) -> ScanError {
        let ended = &self.segments[last.min(self.segments.len() - 1)];
        ScanError::Short {
            path: ended.file.shown.clone(),
            log: self.log,
            offset: ended.end.offset,
            last_gsn: ended.end.last_gsn,
            kept_gsn,
        }
    }

    /// Shortens the chain to its kept part.
    pub(crate) fn drop_beyond_end(&mut self) {
        let kept_gsn = self.kept_gsn;
        let keep = |segment: &&Walked| segment.file.header.first_gsn <= kept_gsn;
        let from = self.segments.iter().take_while(keep).count();
        self.segments.truncate(from);
    }

    /// Bytes between the first batch that may matter and the last valid one.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |of: &Walked| of.end.offset.saturating_sub(of.begin.offset);
        self.segments.iter().map(bytes).sum()
    }

    /// The last gsn of a record before `gsn`. `base` if there is no such gsn above `base`.
    pub(crate) fn last_gsn_below(&self, gsn: u64) -> Result<u64, ScanError> {
        let mut last = self.base;
        for segment in &self.segments {
            segment.file.walk(segment.begin, WINDOW_BYTES, |batch, _| {
                for record in batch.records() {
                    let record = record.map_err(|source| segment.file.malformed(source))?;
                    if record.gsn >= gsn {
                        return Ok(ControlFlow::Break(()));
                    }
                    last = last.max(record.gsn);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(last)
    }

    /// The place behind the last batch with a kept record in the last segment with one.
    pub(crate) fn end_of_kept(&self) -> Result<Option<LogOffset>, ScanError> {
        let Some(last) = self.segments.last() else {
            return Ok(None);
        };
        if last.end.last_gsn <= self.kept_gsn {
            return Ok(Some(last.end));
        }
        let (end, _) = last.file.walk(last.begin, WINDOW_BYTES, |batch, _| {
            let beyond = batch.first_gsn() > self.kept_gsn;
            Ok(if beyond { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(Some(end))
    }
}

fn contradiction(file: &SegmentFile, what: &'static str) -> ScanError {
    let cause = DecodeCause::Inconsistent(what);
    let source = DecodeError { what: "log segment header", offset: 0, cause };
    ScanError::Malformed { path: file.shown.clone(), source }
}
