//! Scans the segments that recovery may need.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_format::LogGsn;
use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{Batch, EndCause};
use stillpoint_io::{Disk, in_parallel};
use stillpoint_sync::atomic::{AtomicU64, Ordering};

use super::ScanInput;
use super::error::ScanError;
use super::listing::{Named, PerLog};
use super::loss::Judge;
use super::segment::{InWindow, LogOffset, SegmentFile, after};
use crate::content::{Kept, ReceiveWrites};

/// Bytes that a thread reads at once.
pub(crate) const WINDOW_BYTES: usize = 4 << 20;
/// Most runs of batches with dependencies that are kept apart in one segment.
const NEEDS_MAX: usize = 4096;

/// A run of batches, with the dependencies of its records.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The place before the run's first batch.
    pub(crate) from: LogOffset,
    /// The last gsn of the run.
    pub(crate) last_gsn: u64,
    /// Per log, the greatest named gsn, unless the named record certainly exists.
    pub(crate) deps: Vec<LogGsn>,
}

/// Contents of one segment.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) file: SegmentFile,
    /// The place before the first batch with a record that replay may need.
    pub(crate) begin: LogOffset,
    /// The place behind the last valid batch, or the last one of interest.
    pub(crate) end: LogOffset,
    /// The cause of the end, unless later batches were of no interest.
    pub(crate) cause: Option<EndCause>,
    pub(crate) needs: Vec<Dependency>,
    /// A batch of the segment states that all batches of the log with smaller numbers were flushed.
    pub(crate) flushed_below: u64,
    /// Closed positions of other logs, stated by the segment's batches.
    pub(crate) closed: Vec<LogGsn>,
    /// The greatest epoch of the segment's records.
    pub(crate) epoch_max: u64,
    /// The greatest gsn named by any record.
    named_max: u64,
}

impl Walked {
    /// The place before the batch of that number, if it is a valid batch of this segment.
    pub(crate) fn place_of(&self, number: u64) -> Result<Option<LogOffset>, ScanError> {
        if number == self.begin.number {
            return Ok(Some(self.begin));
        }
        let (place, cause) = self.file.walk(self.file.begin(), WINDOW_BYTES, |batch, _| {
            let there = batch.number() == number;
            Ok(if there { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(cause.is_none().then_some(place))
    }

    pub(crate) fn gsn_max(&self) -> u64 {
        self.end.last_gsn.max(self.named_max)
    }
}

/// What the batches of a segment say, up to the present one.
struct Noted {
    begin: LogOffset,
    needs: Dependencies,
    /// File offset up to which progress was told.
    told: u64,
    flushed_below: u64,
    epoch_max: u64,
    closed: Vec<LogGsn>,
}

impl Noted {
    fn new(file: &SegmentFile) -> Self {
        Self {
            begin: file.begin(),
            needs: Dependencies::default(),
            told: file.begin().offset,
            flushed_below: 0,
            epoch_max: 0,
            closed: Vec::new(),
        }
    }
}

/// State shared by all scanning threads.
struct Job<'a> {
    disk: &'a dyn Disk,
    store: StoreId,
    input: &'a ScanInput<'a>,
    /// Incarnation, log, and segment that remain to be scanned.
    todo: Mutex<Vec<(usize, Named)>>,
    done_bytes: AtomicU64,
    total_bytes: u64,
}

/// A receiver of the writes that one thread scans.
#[derive(Debug)]
pub(crate) struct Hearing<R> {
    pub(crate) receiver: R,
    pub(crate) commits: u64,
    /// Whether the receiver takes no more, or a record could not be decoded.
    pub(crate) is_over: bool,
}

impl<R: ReceiveWrites> Hearing<R> {
    fn hear(&mut self, all: &Kept, file: &SegmentFile, batch: (&[u8], &Batch<'_>)) {
        if !self.is_over {
            match all.hand_on(file, batch, &mut self.receiver) {
                Ok(commits) => self.commits += commits,
                Err(_) => self.is_over = true,
            }
        }
    }
}

/// Scans all segments with several threads. Keeps the order. Hands the writes of all valid records on,
/// whatever the cut will be, if there are receivers.
pub(crate) fn walk_all<R: ReceiveWrites>(
    disk: &Arc<dyn Disk>,
    input: &ScanInput<'_>,
    listed: PerLog<Named>,
    judge: &mut Judge,
    hearings: &mut [Hearing<R>],
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
    let goes_on = judge.accepts();
    let work = |mut hearing: Option<&mut Hearing<R>>| {
        let mut done = Vec::new();
        loop {
            let Some((incarnation, segment)) = job.todo.lock().pop() else {
                return done;
            };
            let walked = job.walk(incarnation, &segment, hearing.as_deref_mut());
            let segment = walked.map_err(|why| (segment, why));
            let failed = segment.is_err();
            done.push((incarnation, segment));
            if failed && !goes_on {
                return done;
            }
        }
    };
    let mut hearings = hearings.iter_mut();
    let work = &work;
    let jobs = (0..threads).map(|_| {
        let hearing = hearings.next();
        move || work(hearing)
    });
    let mut failed = Vec::new();
    for (incarnation, segment) in in_parallel("log-scan", jobs.collect())?.into_iter().flatten() {
        match segment {
            Ok(segment) => {
                walked[incarnation][usize::from(segment.file.header.log)].push(segment);
            }
            Err((segment, why)) => failed.push((incarnation, segment, why)),
        }
    }
    for segments in walked.iter_mut().flatten() {
        segments.sort_by_key(|segment| segment.file.header.first_gsn);
    }
    for (incarnation, Named { log, incarnation: number, first_gsn, .. }, why) in failed {
        judge.give_up(why, (number, log), first_gsn.saturating_sub(1), None)?;
        walked[incarnation][usize::from(log)].retain(|of| of.file.header.first_gsn < first_gsn);
    }
    Ok(walked)
}

impl Job<'_> {
    fn walk<R: ReceiveWrites>(
        &self,
        incarnation: usize,
        named: &Named,
        hearing: Option<&mut Hearing<R>>,
    ) -> Result<Walked, ScanError> {
        let who = (named.incarnation, named.log, named.first_gsn);
        let file = SegmentFile::open(self.disk, &named.path, self.store, who)?;
        let entry = &self.input.incarnations[incarnation];
        let position = self.input.start.read_position(named.log).max(entry.gsn_floor);
        let gsns = (position, u64::MAX);
        let all = Kept { log: named.log, gsns, start_epoch: self.input.start.epoch };
        let mut noted = Noted::new(&file);
        let note = |noted: &mut Noted, batch: &Batch<'_>, at: &LogOffset| {
            self.note(noted, (incarnation, named), &file, (batch, at))
        };
        let (end, cause) = match hearing {
            None => file.walk(file.begin(), WINDOW_BYTES, |batch, at| note(&mut noted, batch, at)),
            Some(hearing) => file.walk_windows(file.begin(), |come_to| {
                let (batch, at, window) = match come_to {
                    InWindow::Batch(batch, at, window) => (batch, at, window),
                    InWindow::End(describe) => {
                        hearing.receiver.end_window(describe);
                        return Ok(ControlFlow::Continue(()));
                    }
                };
                let flow = note(&mut noted, batch, at)?;
                if flow.is_continue() && batch.last_gsn() > position {
                    hearing.hear(&all, &file, (window, batch));
                }
                Ok(flow)
            }),
        }?;
        self.tell(file.bytes.saturating_sub(noted.told));
        let Noted { begin, needs, flushed_below, closed, epoch_max, .. } = noted;
        let Dependencies { runs: needs, named_max } = needs;
        Ok(Walked { file, begin, end, cause, needs, flushed_below, closed, epoch_max, named_max })
    }

    /// Notes what a batch says. Breaks at the first batch that is of no interest.
    fn note(
        &self,
        noted: &mut Noted,
        (incarnation, named): (usize, &Named),
        file: &SegmentFile,
        (batch, at): (&Batch<'_>, &LogOffset),
    ) -> Result<ControlFlow<()>, ScanError> {
        let (start, entry) = (self.input.start, &self.input.incarnations[incarnation]);
        if batch.number() >= named.below_batch {
            return Ok(ControlFlow::Break(()));
        }
        if batch.epochs().1 >= self.input.next_epoch {
            return Err(ScanError::NewerEpoch {
                path: file.shown.clone(),
                epoch: batch.epochs().1,
                next_epoch: self.input.next_epoch,
            });
        }
        noted.flushed_below = noted.flushed_below.max(batch.flushed_below());
        noted.epoch_max = noted.epoch_max.max(batch.epochs().1);
        batch.closed().for_each(|mark| raise(&mut noted.closed, mark));
        if batch.last_gsn() <= start.read_position(named.log).max(entry.gsn_floor) {
            noted.begin = after(batch);
        }
        let needs = &mut noted.needs;
        // Records up to the checkpoint's position were flushed, with all their dependencies.
        if batch.last_gsn() > start.position(named.log).max(entry.gsn_floor) {
            let settled =
                |dep: &LogGsn| dep.gsn <= entry.gsn_floor || dep.gsn <= start.position(dep.log);
            needs.add(batch.deps().filter(|dep| !settled(dep)), at, batch.last_gsn());
        }
        needs.named_max = batch.deps().map(|dep| dep.gsn).fold(needs.named_max, u64::max);
        if at.offset - noted.told >= WINDOW_BYTES as u64 {
            self.tell(at.offset - noted.told);
            noted.told = at.offset;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn tell(&self, bytes: u64) {
        // Relaxed: a figure for people.
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.input.progress)(done.min(self.total_bytes), self.total_bytes);
    }
}

/// Raises the position in a log to `to`, if it is greater.
pub(super) fn raise(positions: &mut Vec<LogGsn>, to: LogGsn) {
    match positions.iter_mut().find(|of| of.log == to.log) {
        Some(of) => of.gsn = of.gsn.max(to.gsn),
        None => positions.push(to),
    }
}

#[derive(Debug, Default)]
struct Dependencies {
    runs: Vec<Dependency>,
    named_max: u64,
}

impl Dependencies {
    fn add(&mut self, deps: impl Iterator<Item = LogGsn>, at: &LogOffset, last_gsn: u64) {
        let deps: Vec<LogGsn> = deps.collect();
        if deps.is_empty() {
            return;
        }
        self.runs.push(Dependency { from: *at, last_gsn, deps });
        if self.runs.len() > NEEDS_MAX {
            self.merge_pairs();
        }
    }

    /// Halves the number of runs. Batches without dependencies may come to lie within a run.
    fn merge_pairs(&mut self) {
        let merge = |pair: &[Dependency]| {
            let mut merged = pair[0].clone();
            for later in &pair[1..] {
                merged.last_gsn = later.last_gsn;
                later.deps.iter().for_each(|&dep| raise(&mut merged.deps, dep));
            }
            merged
        };
        self.runs = self.runs.chunks(2).map(merge).collect();
    }
}
