//! The fuzzy checkpoint. The checkpointer copies pages that have changed since the last checkpoint
//! out of the arrays while transactions go on. The checkpointer writes the copies to their places
//! in one of two files in turn: "we use a double-backup organization for all of the algorithms"
//! (SIGMOD 2011, §2.2).
//!
//! - Write-ahead rule: a copy may hold effects of the batch that runs meanwhile. So the copy is
//!   written only once that batch's records are durable.
//! - A crash may tear the page that is being written. The other file is whole.
//! - A file takes the pages that have changed since it was last written: those of two periods.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{
    AlignedBuf, Caching, Disk, DiskFile, JoinHandle, OpenMode, go_behind, read_all, spawn,
    write_file_durably,
};
use stillpoint_state::{ArrayInfo, Capture, Cells, Scheme};

use super::fuzzy::Fuzzy;
use super::redo::{Log, failed, segment_path, segments};
use crate::error::LabResult;
use crate::workloads::tpcc::schema::Tables;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// Most bytes of one write.
const RUN_BYTES: usize = 1 << 20;
/// Runs that are copied before any is written, so that waits for the log are rare.
const RUNS: usize = 32;

/// The two files. The next checkpoint goes to the file that does not hold the last complete one.
const FILES: [&str; 2] = ["pages-0", "pages-1"];
/// File that names the last complete checkpoint: the last batch before it (8 bytes), its file (1),
/// CRC-32C (4).
const COMPLETE: &str = "checkpoint";
const COMPLETE_BYTES: usize = 13;

/// A complete checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Complete {
    /// The last batch before the checkpoint.
    pub(super) before: u64,
    /// Number of the checkpoint's file.
    pub(super) file: usize,
}

impl Complete {
    fn encode(self) -> Vec<u8> {
        let mut bytes = self.before.to_le_bytes().to_vec();
        bytes.push(self.file as u8);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<COMPLETE_BYTES>()?;
        let (before, file) = (bytes.first_chunk::<8>()?, usize::from(bytes[8]));
        let is_whole = crc32c::crc32c(&bytes[..9]).to_le_bytes() == bytes[9..];
        let before = u64::from_le_bytes(*before);
        (is_whole && file < FILES.len()).then_some(Complete { before, file })
    }
}

/// Positions of rows in the pages of a file.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    tables: Vec<TablePages>,
}

#[derive(Clone, Debug)]
struct TablePages {
    rows: usize,
    row_bytes: usize,
    rows_per_page: usize,
    first: usize,
}

impl TablePages {
    fn count(&self) -> usize {
        self.rows.div_ceil(self.rows_per_page)
    }

    fn rows_of(&self, page: usize) -> Range<usize> {
        let first = page * self.rows_per_page;
        first..(first + self.rows_per_page).min(self.rows)
    }

    fn offset(&self, page: usize) -> u64 {
        ((self.first + page) * PAGE_BYTES) as u64
    }
}

/// Pages that have changed, table by table: 1 for each changed page, 0 for others.
pub(super) type Dirty = Vec<Vec<u8>>;

impl Pages {
    pub(super) fn new<'a>(infos: impl Iterator<Item = &'a ArrayInfo>) -> Self {
        let mut first = 0;
        let table = |info: &ArrayInfo| {
            let rows_per_page = PAGE_BYTES / info.cell_bytes;
            let (rows, row_bytes) = (info.cells, info.cell_bytes);
            let table = TablePages { rows, row_bytes, rows_per_page, first };
            first += table.count();
            table
        };
        Pages { tables: infos.map(table).collect() }
    }

    /// All pages as changed or not.
    pub(super) fn all(&self, changed: u8) -> Dirty {
        self.tables.iter().map(|table| vec![changed; table.count()]).collect()
    }

    #[inline]
    pub(super) fn page_of(&self, table: u8, row: usize) -> usize {
        row / self.tables[usize::from(table)].rows_per_page
    }

    fn file_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.count() * PAGE_BYTES).sum::<usize>() as u64
    }

    /// Reads all pages of the last complete checkpoint into the cells. `None` if there is no
    /// checkpoint.
    pub(super) fn load<S: Scheme>(
        &self,
        disk: &dyn Disk,
        cells: &mut Cells<S>,
        tables: &Tables,
    ) -> LabResult<Option<Complete>> {
        if !disk.exists(Path::new(COMPLETE)).map_err(failed)? {
            return Ok(None);
        }
        let bytes = read_all(disk, Path::new(COMPLETE)).map_err(failed)?;
        let complete = Complete::decode(&bytes);
        let complete = complete.ok_or_else(|| failed("the checkpoint's record is damaged"))?;
        let path = Path::new(FILES[complete.file]);
        let file = disk.open(path, OpenMode::Read, Caching::Direct).map_err(failed)?;
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        for (table, it) in self.tables.iter().enumerate() {
            for number in 0..it.count() {
                let read = file.read_at(&mut page, it.offset(number)).map_err(failed)?;
                if read < PAGE_BYTES {
                    return Err(failed("the file of pages is too short"));
                }
                for (row, bytes) in it.rows_of(number).zip(page.chunks_exact(it.row_bytes)) {
                    tables.write(cells, table as u8, row, 0, bytes);
                }
            }
        }
        Ok(Some(complete))
    }
}

/// A requested checkpoint.
pub(super) struct Job {
    pub(super) capture: Capture<Fuzzy>,
    pub(super) dirty: Dirty,
    /// The last batch before the checkpoint.
    pub(super) before: u64,
}

/// Counts of the checkpointer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Checkpoints that are complete.
    pub(crate) checkpoints: u64,
    /// Bytes written.
    pub(crate) bytes: u64,
    /// Nanoseconds of the last checkpoint.
    pub(crate) last_ns: u64,
    /// CPU time of the checkpointer's thread, in nanoseconds, up to its last checkpoint.
    pub(crate) cpu_ns: u64,
}

/// State shared by mutator and checkpointer.
#[derive(Debug, Default)]
pub(super) struct WriteScheduler {
    state: Mutex<SchedulerState>,
    came: Condvar,
    /// Number of the running batch.
    running: AtomicU64,
}

#[derive(Default)]
struct SchedulerState {
    job: Option<Job>,
    stops: bool,
    taken: Taken,
    error: Option<String>,
}

impl std::fmt::Debug for SchedulerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedulerState").field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl WriteScheduler {
    pub(super) fn give(&self, job: Job) -> LabResult<()> {
        let mut state = self.state.lock();
        if let Some(error) = &state.error {
            return Err(failed(error));
        }
        state.job = Some(job);
        self.came.notify_one();
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.state.lock().stops = true;
        self.came.notify_one();
    }

    fn stops(&self) -> bool {
        self.state.lock().stops
    }

    pub(super) fn taken(&self) -> Taken {
        self.state.lock().taken
    }

    /// Sets the running batch, before any of its writes.
    pub(super) fn runs(&self, batch: u64) {
        self.running.store(batch, Ordering::Relaxed);
        // Release: pairs with the Acquire in `running`. A thread that sees a write of the batch
        // also sees its number.
        fence(Ordering::Release);
    }

    /// The newest batch of which the caller can have seen a write.
    fn running(&self) -> u64 {
        fence(Ordering::Acquire); // pairs with the Release in `runs`
        self.running.load(Ordering::Relaxed)
    }
}

/// Starts the checkpointer.
pub(super) fn start(
    disk: Arc<dyn Disk>,
    pages: Pages,
    log: Arc<Log>,
    scheduler: Arc<WriteScheduler>,
    newest: Option<Complete>,
) -> LabResult<JoinHandle<()>> {
    let body = move || {
        go_behind();
        let next = newest.map_or(0, |newest| 1 - newest.file);
        let files = [None, None];
        let mut checkpointer = Checkpointer { disk, pages, log, scheduler, files, next };
        if let Err(error) = checkpointer.run() {
            checkpointer.scheduler.state.lock().error = Some(error.to_string());
        }
    };
    spawn("aries-pages", body).map_err(failed)
}

struct Checkpointer {
    disk: Arc<dyn Disk>,
    pages: Pages,
    log: Arc<Log>,
    scheduler: Arc<WriteScheduler>,
    files: [Option<Arc<dyn DiskFile>>; 2],
    /// The file that is written next.
    next: usize,
}

/// A run of adjacent pages, copied.
struct Run {
    offset: u64,
    bytes: AlignedBuf,
}

impl Checkpointer {
    fn run(&mut self) -> LabResult<()> {
        loop {
            let job = {
                let mut state = self.scheduler.state.lock();
                loop {
                    if state.stops {
                        return Ok(());
                    }
                    if let Some(job) = state.job.take() {
                        break job;
                    }
                    self.scheduler.came.wait(&mut state);
                }
            };
            if !self.take(job)? {
                return Ok(());
            }
        }
    }

    /// Takes a checkpoint. Returns false if the checkpointer was stopped meanwhile.
    fn take(&mut self, job: Job) -> LabResult<bool> {
        let (began_ns, mut bytes) = (crate::sys::now_ns(), 0);
        let file = match &self.files[self.next] {
            Some(file) => file.clone(),
            None => {
                let file = self.open()?;
                self.files[self.next].insert(file).clone()
            }
        };
        let mut runs = Vec::with_capacity(RUNS);
        for (table, first, count) in self.dirty_runs(&job.dirty) {
            runs.push(self.copy(&job.capture, table, first, count));
            if runs.len() == RUNS {
                match self.write(&*file, &mut runs)? {
                    Some(written) => bytes += written,
                    None => return Ok(false),
                }
            }
        }
        match self.write(&*file, &mut runs)? {
            Some(written) => bytes += written,
            None => return Ok(false),
        }
        file.sync().map_err(failed)?;
        let record = Complete { before: job.before, file: self.next }.encode();
        write_file_durably(&*self.disk, Path::new(COMPLETE), &record).map_err(failed)?;
        self.next = 1 - self.next;
        self.remove_segments(job.before)?;
        let mut state = self.scheduler.state.lock();
        state.taken.checkpoints += 1;
        state.taken.bytes += bytes;
        state.taken.last_ns = crate::sys::now_ns() - began_ns;
        state.taken.cpu_ns = crate::sys::thread_cpu_ns();
        drop(state);
        job.capture.durable();
        Ok(true)
    }

    fn open(&self) -> LabResult<Arc<dyn DiskFile>> {
        let path = Path::new(FILES[self.next]);
        let mode = if self.disk.exists(path).map_err(failed)? {
            OpenMode::ReadWrite
        } else {
            OpenMode::CreateNew
        };
        let file = self.disk.open(path, mode, Caching::Direct).map_err(failed)?;
        file.allocate(self.pages.file_bytes()).map_err(failed)?;
        self.disk.sync_dir("".as_ref()).map_err(failed)?;
        Ok(file)
    }

    /// Changed pages that lie side by side: table, first page and number of pages.
    fn dirty_runs(&self, dirty: &Dirty) -> Vec<(usize, usize, usize)> {
        let mut runs = Vec::new();
        for (table, dirty) in dirty.iter().enumerate() {
            let mut page = 0;
            while page < dirty.len() {
                let most = (dirty.len() - page).min(RUN_BYTES / PAGE_BYTES);
                let count = dirty[page..page + most].iter().take_while(|&&it| it == 1).count();
                if count > 0 {
                    runs.push((table, page, count));
                }
                page += count.max(1);
            }
        }
        runs
    }

    fn copy(&self, capture: &Capture<Fuzzy>, table: usize, first: usize, count: usize) -> Run {
        let it = &self.pages.tables[table];
        let mut bytes = AlignedBuf::zeroed(count * PAGE_BYTES);
        for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            let rows = it.rows_of(first + number);
            let len = rows.len() * it.row_bytes;
            capture
                .write_to_stable_storage(table, rows, &mut page[..len])
                .expect("a fuzzy capture reads this process's memory");
        }
        Run { offset: it.offset(first), bytes }
    }

    /// Writes the copies, once the log holds every batch whose effects they may hold. Returns the
    /// bytes, or `None` if the checkpointer was stopped meanwhile.
    fn write(&self, file: &dyn DiskFile, runs: &mut Vec<Run>) -> LabResult<Option<u64>> {
        let running = self.scheduler.running();
        loop {
            if self.scheduler.stops() {
                return Ok(None);
            }
            if self.log.durable() >= running {
                break;
            }
            crate::sys::sleep(std::time::Duration::from_micros(500));
        }
        let mut written = 0;
        for run in runs.drain(..) {
            file.write_at(&run.bytes, run.offset).map_err(failed)?;
            written += run.bytes.len() as u64;
        }
        Ok(Some(written))
    }

    /// Removes segments that hold no batch after `before`.
    fn remove_segments(&self, before: u64) -> LabResult<()> {
        let segments = segments(&*self.disk).map_err(failed)?;
        for pair in segments.windows(2) {
            if pair[1] <= before + 1 {
                self.disk.remove(&segment_path(pair[0])).map_err(failed)?;
            }
        }
        Ok(())
    }
}
