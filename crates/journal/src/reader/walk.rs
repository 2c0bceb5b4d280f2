//! From names to walked segments: which segments matter, and what is in each.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::ident::StoreId;
use stillpoint_format::log::EndCause;
use stillpoint_format::{LOG_NONE, LogGsn, names};
use stillpoint_io::{Disk, in_parallel};
use stillpoint_sync::atomic::{AtomicU64, Ordering};

use super::error::ScanError;
use super::segment::{Place, SegmentFile, after};
use super::{ScanInput, kept_before};

/// Bytes that a thread reads at once.
pub(crate) const WINDOW_BYTES: usize = 4 << 20;
/// Most runs of batches with dependencies that are told apart in one segment.
const NEEDS_MAX: usize = 4096;

/// A segment by its name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) log: u8,
    pub(crate) incarnation: u32,
    pub(crate) first_gsn: u64,
    pub(crate) path: PathBuf,
}

/// A run of batches with what they depend on.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    /// Before its first batch.
    pub(crate) from: Place,
    /// Its last gsn.
    pub(crate) last_gsn: u64,
    /// Per log, the greatest gsn named, where it was not certainly there.
    pub(crate) deps: Vec<LogGsn>,
}

/// What is in one segment.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) file: SegmentFile,
    /// Before the first batch with a record that the checkpoint may not hold.
    pub(crate) begin: Place,
    /// Behind the last valid batch, or the last one of interest.
    pub(crate) end: Place,
    /// Why it ends there, if not for lack of interest.
    pub(crate) cause: Option<EndCause>,
    pub(crate) needs: Vec<Need>,
    /// The greatest gsn named by any record.
    named_max: u64,
}

impl Walked {
    pub(crate) fn gsn_max(&self) -> u64 {
        self.end.last_gsn.max(self.named_max)
    }
}

/// Per incarnation and log, the segments that may hold a record that matters, in order.
pub(crate) type PerLog<T> = Vec<Vec<Vec<T>>>;

/// Lists the segments that matter.
pub(crate) fn list_segments(
    disk: &dyn Disk,
    input: &ScanInput<'_>,
) -> Result<PerLog<Named>, ScanError> {
    let empty = || vec![Vec::new(); usize::from(LOG_NONE)];
    let mut listed: PerLog<Named> = input.incarnations.iter().map(|_| empty()).collect();
    for log in 0..LOG_NONE {
        let dir = PathBuf::from(names::log_dir(log));
        let all = match disk.list(&dir) {
            Ok(all) => all,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        let mut segments: Vec<Named> = Vec::new();
        for name in all {
            if let Some((incarnation, first_gsn)) = names::parse_segment_name(&name) {
                segments.push(Named { log, incarnation, first_gsn, path: dir.join(name) });
            }
        }
        segments.sort_by_key(|segment| (segment.incarnation, segment.first_gsn));
        let position = input.start.position(log);
        for (at, segment) in segments.iter().enumerate() {
            // The next one's name tells where this one ends at the latest. A freed segment
            // may have been overwritten already, so it is not even opened.
            let superseded = segments
                .get(at + 1)
                .is_some_and(|next| next.first_gsn <= position.saturating_add(1));
            // Unknown incarnations: freed long ago, or begun by an opening that never served.
            let known = input.incarnations.iter().position(|e| e.number == segment.incarnation);
            if let Some(known) = known.filter(|_| !superseded) {
                let kept = kept_before(&input.incarnations[known], input.clean_shutdown);
                let last =
                    kept.map(|cut| cut.iter().find(|of| of.log == log).map_or(0, |of| of.gsn));
                if last.is_none_or(|last| last > position && segment.first_gsn <= last) {
                    listed[known][usize::from(log)].push(segment.clone());
                }
            }
        }
    }
    Ok(listed)
}

/// What every walking thread shares.
struct Job<'a> {
    disk: &'a dyn Disk,
    store: StoreId,
    input: &'a ScanInput<'a>,
    /// Incarnation, log, and segment still to be walked.
    todo: Mutex<Vec<(usize, Named)>>,
    done_bytes: AtomicU64,
    total_bytes: u64,
}

/// Walks all segments with several threads. Keeps the order.
pub(crate) fn walk_all(
    disk: &Arc<dyn Disk>,
    input: &ScanInput<'_>,
    listed: PerLog<Named>,
) -> Result<PerLog<Walked>, ScanError> {
    let mut todo = Vec::new();
    let mut walked: PerLog<Walked> = Vec::new();
    for (incarnation, logs) in listed.into_iter().enumerate() {
        walked.push(logs.iter().map(|_| Vec::new()).collect());
        todo.extend(logs.into_iter().flatten().map(|segment| (incarnation, segment)));
    }
    let mut total_bytes = 0;
    for (_, segment) in &todo {
        let mode = stillpoint_io::OpenMode::Read;
        total_bytes += disk.open(&segment.path, mode, stillpoint_io::Caching::Buffered)?.len()?;
    }
    let threads = input.threads.clamp(1, todo.len().max(1));
    let job = Job {
        disk: &**disk,
        store: input.store,
        input,
        todo: Mutex::new(todo),
        done_bytes: AtomicU64::new(0),
        total_bytes,
    };
    let work = || -> Result<Vec<(usize, Walked)>, ScanError> {
        let mut done = Vec::new();
        loop {
            let Some((incarnation, segment)) = job.todo.lock().pop() else {
                return Ok(done);
            };
            done.push((incarnation, job.walk(incarnation, &segment)?));
        }
    };
    for done in in_parallel("log-scan", (0..threads).map(|_| work).collect())? {
        for (incarnation, segment) in done? {
            let log = usize::from(segment.file.header.log);
            walked[incarnation][log].push(segment);
        }
    }
    for segments in walked.iter_mut().flatten() {
        segments.sort_by_key(|segment| segment.file.header.first_gsn);
    }
    Ok(walked)
}

impl Job<'_> {
    fn walk(&self, incarnation: usize, named: &Named) -> Result<Walked, ScanError> {
        let who = (named.incarnation, named.log, named.first_gsn);
        let file = SegmentFile::open(self.disk, &named.path, self.store, who)?;
        let entry = &self.input.incarnations[incarnation];
        let position = self.input.start.position(named.log).max(entry.gsn_floor);
        let settled = |dep: LogGsn| {
            dep.gsn <= entry.gsn_floor || dep.gsn <= self.input.start.position(dep.log)
        };
        let mut begin = file.begin();
        let mut needs = Needs::default();
        let mut told = file.begin().offset;
        let (end, cause) = file.walk(file.begin(), WINDOW_BYTES, |batch, at| {
            if batch.last_gsn() <= position {
                begin = after(batch);
            } else {
                needs.add(batch.deps().filter(|&dep| !settled(dep)), at, batch.last_gsn());
            }
            needs.named_max = batch.deps().map(|dep| dep.gsn).fold(needs.named_max, u64::max);
            if at.offset - told >= WINDOW_BYTES as u64 {
                self.tell(at.offset - told);
                told = at.offset;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.tell(file.bytes.saturating_sub(told));
        let Needs { runs, named_max } = needs;
        Ok(Walked { file, begin, end, cause, needs: runs, named_max })
    }

    fn tell(&self, bytes: u64) {
        // Relaxed: a figure for people.
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.input.progress)(done.min(self.total_bytes), self.total_bytes);
    }
}

#[derive(Debug, Default)]
struct Needs {
    runs: Vec<Need>,
    named_max: u64,
}

impl Needs {
    fn add(&mut self, deps: impl Iterator<Item = LogGsn>, at: &Place, last_gsn: u64) {
        let deps: Vec<LogGsn> = deps.collect();
        if deps.is_empty() {
            return;
        }
        self.runs.push(Need { from: *at, last_gsn, deps });
        if self.runs.len() > NEEDS_MAX {
            self.merge_pairs();
        }
    }

    /// Halves the number of runs. Batches without dependencies may come to lie within one.
    fn merge_pairs(&mut self) {
        let merge = |pair: &[Need]| {
            let mut merged = pair[0].clone();
            for later in &pair[1..] {
                merged.last_gsn = later.last_gsn;
                for dep in &later.deps {
                    match merged.deps.iter_mut().find(|of| of.log == dep.log) {
                        Some(of) => of.gsn = of.gsn.max(dep.gsn),
                        None => merged.deps.push(*dep),
                    }
                }
            }
            merged
        };
        self.runs = self.runs.chunks(2).map(merge).collect();
    }
}
