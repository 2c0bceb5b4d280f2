//! Finds the files of the logs that matter, by their names.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{SegmentEnd, Tail};
use stillpoint_format::names;
use stillpoint_io::Disk;

use super::ScanInput;
use super::error::ScanError;
use super::loss::Judge;
use super::segment::SegmentFile;
use super::walk::WINDOW_BYTES;

/// A segment, described by its file name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) log: u8,
    pub(crate) incarnation: u32,
    pub(crate) first_gsn: u64,
    pub(crate) path: PathBuf,
    /// Batches with this number or a greater one do not count, since another file has them.
    pub(crate) below_batch: u64,
}

/// Where a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBegin {
    /// Number of the segment's first batch. Batches are numbered per incarnation and log, from 1
    /// on.
    pub first_batch: u64,
    /// Epoch of the segment's first record, if the segment has a record.
    pub first_epoch: Option<u64>,
}

/// Reads where a segment begins: a file of the store with that incarnation, log and first gsn.
///
/// # Errors
/// [`ScanError::Malformed`] if the header is not that of such a segment, or the disk refuses.
pub fn segment_begin(
    disk: &dyn Disk,
    path: &Path,
    store: StoreId,
    who: (u32, u8, u64),
) -> Result<SegmentBegin, ScanError> {
    let file = SegmentFile::open(disk, path, store, who)?;
    let mut first_epoch = None;
    file.walk(file.begin(), WINDOW_BYTES, |batch, _| {
        first_epoch = Some(batch.epochs().0);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(SegmentBegin { first_batch: file.header.first_batch, first_epoch })
}

/// Per incarnation and log, the segments that may hold a record that matters, in order.
pub(crate) type PerLog<T> = Vec<Vec<Vec<T>>>;

/// Logs with a directory.
pub(crate) fn list_logs(disk: &dyn Disk) -> Result<Vec<u8>, ScanError> {
    match disk.list(Path::new(names::LOG_DIR)) {
        Ok(found) => Ok(found.iter().filter_map(|name| names::parse_log_name(name)).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Lists the segments that matter.
pub(crate) fn list_segments(
    disk: &dyn Disk,
    input: &ScanInput<'_>,
    judge: &mut Judge,
) -> Result<PerLog<Named>, ScanError> {
    let empty = |logs: u8| vec![Vec::new(); usize::from(logs)];
    let mut listed: PerLog<Named> =
        input.incarnations.iter().map(|entry| empty(entry.logs)).collect();
    for log in list_logs(disk)? {
        let segments = named_segments(disk, input, log, judge)?;
        let position = input.start.read_position(log);
        for (at, segment) in segments.iter().enumerate() {
            // The next segment's name bounds the end of this one. A freed segment may have been
            // overwritten already, so it is not even opened.
            let superseded = segments
                .get(at + 1)
                .is_some_and(|next| next.first_gsn <= position.saturating_add(1));
            // Segments of unknown, older incarnations were freed long ago.
            let known = input.incarnations.iter().position(|e| e.number == segment.incarnation);
            if let Some(known) = known.filter(|_| !superseded) {
                let last = input.kept_before(&input.incarnations[known], log);
                if last.is_none_or(|last| last > position && segment.first_gsn <= last) {
                    listed[known][usize::from(log)].push(segment.clone());
                }
            }
        }
    }
    Ok(listed)
}

/// The segments of a log in order. Each incarnation ends where the manifest says.
fn named_segments(
    disk: &dyn Disk,
    input: &ScanInput<'_>,
    log: u8,
    judge: &mut Judge,
) -> Result<Vec<Named>, ScanError> {
    let dir = PathBuf::from(names::log_dir(log));
    let found = disk.list(&dir)?;
    let mut segments: Vec<Named> = Vec::new();
    let latest = input.incarnations.last().map_or(0, |entry| entry.number);
    for name in &found {
        let path = dir.join(name);
        if let Some((made_by, _)) = names::parse_tail_name(name)
            && made_by > latest.saturating_add(1)
        {
            give_up_newer(disk, &path, (made_by, latest), (log, 0), judge)?;
        }
        let Some((incarnation, first_gsn)) = names::parse_segment_name(name) else {
            continue;
        };
        judge.has_later |= incarnation > latest;
        let entry = input.incarnations.iter().find(|entry| entry.number == incarnation);
        let named = entry.is_some_and(|entry| log < entry.logs);
        if !named && incarnation > latest.saturating_add(1) {
            give_up_newer(disk, &path, (incarnation, latest), (log, first_gsn), judge)?;
            continue;
        }
        if !named && (entry.is_some() || incarnation > latest) {
            if let Err(why) = expect_no_batch(disk, &path, input, (incarnation, log, first_gsn)) {
                judge.unnamed = judge.unnamed.max(incarnation);
                judge.give_up(why, (incarnation, log), first_gsn.saturating_sub(1), None)?;
            }
            continue;
        }
        let tail = entry.and_then(|entry| entry.tails.iter().find(|tail| tail.log == log));
        if tail.is_some_and(|tail| first_gsn >= tail.first_gsn) {
            continue;
        }
        let below_batch = tail.map_or(u64::MAX, |tail| tail.first_batch);
        segments.push(Named { log, incarnation, first_gsn, path, below_batch });
    }
    for entry in input.incarnations {
        for tail in entry.tails.iter().filter(|tail| tail.log == log) {
            let name = names::tail_name(tail.made_by, entry.number);
            if found.contains(&name) {
                segments.push(Named {
                    log,
                    incarnation: entry.number,
                    first_gsn: tail.first_gsn,
                    path: dir.join(name),
                    below_batch: u64::MAX,
                });
            }
        }
    }
    segments.sort_by_key(|segment| (segment.incarnation, segment.first_gsn));
    Ok(segments)
}

/// Gives up a file of an incarnation after the manifest's next one, or refuses it. A failed start
/// leaves files of the next incarnation only, so the manifest is older than the logs.
fn give_up_newer(
    disk: &dyn Disk,
    path: &Path,
    (incarnation, latest): (u32, u32),
    (log, first_gsn): (u8, u64),
    judge: &mut Judge,
) -> Result<(), ScanError> {
    judge.unnamed = judge.unnamed.max(incarnation);
    let why = ScanError::NewerLog { path: disk.describe(path), incarnation, latest };
    judge.give_up(why, (incarnation, log), first_gsn.saturating_sub(1), None)
}

/// A failed start leaves segments without a batch, of an incarnation that no manifest names.
fn expect_no_batch(
    disk: &dyn Disk,
    path: &Path,
    input: &ScanInput<'_>,
    who: (u32, u8, u64),
) -> Result<(), ScanError> {
    let file = SegmentFile::open(disk, path, input.store, who)?;
    if !file.holds_batch()? {
        return Ok(());
    }
    let latest = input.incarnations.last().map_or(0, |entry| entry.number);
    Err(ScanError::NewerLog { path: file.shown, incarnation: who.0, latest })
}

impl SegmentFile {
    /// Whether the file holds a valid batch anywhere.
    fn holds_batch(&self) -> Result<bool, ScanError> {
        let mut found = false;
        let (end, cause) = self.walk(self.begin(), WINDOW_BYTES, |_, _| {
            found = true;
            Ok(ControlFlow::Break(()))
        })?;
        let Some(cause) = cause.filter(|_| !found) else {
            return Ok(found);
        };
        let end = SegmentEnd { offset: end.offset, next_number: end.number, cause };
        Ok(self.tail(end.offset, &end)? != Tail::End)
    }
}
