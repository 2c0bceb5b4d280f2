//! Ends of logs that may be in the page cache only. A start copies these ends.
//!
//! A flush may have failed in a process that is dead now. The bytes can still be read, but no later
//! flush makes them durable. The bytes may also be durable and acknowledged, so they must not be
//! overwritten. So a start copies these batches to a file of their own. The manifest that records
//! the cut names the copy.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use stillpoint_format::log::SegmentHeader;
use stillpoint_format::manifest::LogTail;
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, OpenMode};
use stillpoint_sync::{mutant, planted};

use super::Logs;
use super::chain::Chain;
use super::error::ScanError;
use super::listing::list_logs;
use super::segment::LogOffset;
use super::walk::WINDOW_BYTES;
use crate::journal::EarlierSegment;

/// Bytes of batches that are gathered for one write.
const WRITE_BYTES: usize = 4 << 20;

/// Copied ends of logs, and the files that hold the logs from then on.
#[derive(Debug, Default)]
pub struct Ends {
    /// The copies, for the manifest.
    pub tails: Vec<LogTail>,
    /// Files that replay reads once the manifest names the copies, and the originals of the copied
    /// bytes. The originals stay, in case the manifest before is put back.
    pub segments: Vec<EarlierSegment>,
}

impl Logs {
    /// Copies the kept batches of each log of the latest incarnation that are not known to be
    /// durable. Flushes the copies and their directories. No file that a manifest names changes.
    /// `made_by` is the starting incarnation.
    ///
    /// # Errors
    /// An error of the disk, also if it is full. Nothing is lost, and the call can be repeated.
    pub fn copy_ends(&self, made_by: u32, created_ms: u64) -> Result<Ends, ScanError> {
        let mut ends = Ends::default();
        for (at, (&incarnation, chains)) in self.numbers.iter().zip(&self.incarnations).enumerate()
        {
            let latest = at + 1 == self.numbers.len();
            for chain in chains.iter().filter(|chain| chain.kept_gsn > chain.base) {
                let unproven = if latest && !self.ended { chain.unproven()? } else { None };
                let end = if latest { chain.end_of_kept()? } else { None };
                ends.segments.extend(chain.segments_until(end));
                if let Some(from) = unproven {
                    let header = SegmentHeader {
                        store: self.store,
                        created_ms,
                        incarnation,
                        log: chain.log,
                        first_gsn: from.1.last_gsn + 1,
                        first_batch: from.1.number,
                        file_bytes: 0,
                    };
                    ends.copy(&*self.disk, chain, from, &header, made_by)?;
                }
            }
        }
        Ok(ends)
    }

    /// Removes files that a published manifest has given up: segments of incarnations before
    /// `incarnation`, and copies of ends, unless replay reads them. Frees the space behind the last
    /// kept batches. May be interrupted and repeated.
    ///
    /// # Errors
    /// An error of the disk.
    pub fn trim(&self, incarnation: u32, ends: &Ends) -> Result<(), ScanError> {
        mutant!(CutNotRecorded => return Ok(()));
        remove_strays(&*self.disk, incarnation, &ends.segments)?;
        let latest = self.numbers.last().copied();
        for kept in ends.segments.iter().filter(|of| Some(of.incarnation) == latest) {
            let file = self.disk.open(&kept.path, OpenMode::ReadWrite, Caching::Buffered)?;
            if kept.bytes < file.len()? {
                file.set_len(kept.bytes)?;
            }
        }
        Ok(())
    }
}

impl Ends {
    /// Copies the kept batches of a chain from a place on into a new file, and makes it durable.
    fn copy(
        &mut self,
        disk: &dyn Disk,
        chain: &Chain,
        (at, from): (usize, LogOffset),
        header: &SegmentHeader,
        made_by: u32,
    ) -> Result<(), ScanError> {
        let dir = PathBuf::from(names::log_dir(chain.log));
        let path = dir.join(names::tail_name(made_by, header.incarnation));
        // A failed start may have left a file of this name.
        disk.remove(&path)?;
        let file = disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
        let mut gathered = header.encode().to_vec();
        let mut written = 0;
        for segment in &chain.segments[at..] {
            let begin = if segment.begin.number < from.number { from } else { segment.begin };
            segment.file.walk(begin, WINDOW_BYTES, |batch, _| {
                if batch.number() >= segment.end.number || batch.first_gsn() > chain.kept_gsn {
                    return Ok(ControlFlow::Break(()));
                }
                batch.copy_to(header, written + gathered.len() as u64, &mut gathered);
                if gathered.len() >= WRITE_BYTES {
                    file.write_at(&gathered, written)?;
                    written += gathered.len() as u64;
                    gathered.clear();
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        file.write_at(&gathered, written)?;
        file.sync()?;
        disk.sync_dir(&dir)?;
        let bytes = written + gathered.len() as u64;
        self.segments.push(earlier(header, &path, bytes));
        self.tails.push(LogTail {
            log: chain.log,
            made_by,
            first_batch: header.first_batch,
            first_gsn: header.first_gsn,
        });
        Ok(())
    }
}

fn earlier(header: &SegmentHeader, path: &Path, bytes: u64) -> EarlierSegment {
    let SegmentHeader { log, incarnation, first_gsn, .. } = *header;
    EarlierSegment { log, incarnation, first_gsn, bytes, path: path.to_owned() }
}

/// Removes the files of logs that are older than an incarnation and not `kept`.
fn remove_strays(
    disk: &dyn Disk,
    incarnation: u32,
    kept: &[EarlierSegment],
) -> Result<(), ScanError> {
    for log in list_logs(disk)? {
        let dir = PathBuf::from(names::log_dir(log));
        for name in disk.list(&dir)? {
            let segment = names::parse_segment_name(&name).map(|(of, _)| of);
            let older = segment.is_some_and(|of| of < incarnation);
            let path = dir.join(&name);
            if (older || names::parse_tail_name(&name).is_some())
                && !kept.iter().any(|kept| kept.path == path)
            {
                disk.remove_soon(&path)?;
            }
        }
    }
    Ok(())
}

impl Chain {
    /// The segments of the chain, the last one up to `end`.
    fn segments_until(&self, end: Option<LogOffset>) -> impl Iterator<Item = EarlierSegment> {
        let last = self.segments.len().saturating_sub(1);
        self.segments.iter().enumerate().map(move |(at, segment)| {
            let bytes = match end {
                Some(end) if at == last => end.offset,
                _ => segment.file.bytes,
            };
            earlier(&segment.file.header, &segment.file.path, bytes)
        })
    }

    /// Begin of the kept part that is not known to be durable: the segment, and the place in that
    /// segment.
    fn unproven(&self) -> Result<Option<(usize, LogOffset)>, ScanError> {
        mutant!(EndsNotCopied => return Ok(None));
        for (at, segment) in self.segments.iter().enumerate() {
            let from = self.flushed_below.max(segment.begin.number);
            if from < segment.end.number
                && let Some(place) = segment.place_of(from)?
                && place.last_gsn < self.kept_gsn
            {
                return Ok(Some((at, place)));
            }
        }
        Ok(None)
    }
}
