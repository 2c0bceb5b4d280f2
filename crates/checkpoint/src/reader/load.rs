//! Loading in parallel: read threads fill a bounded number of buffers, load threads empty them.
//!
//! A chain of checkpoints is loaded in stages, one for each checkpoint. Read threads read ahead. A
//! unit is decoded only after all units of earlier stages. Units are claimed in order, each with
//! its buffer. So the missing units of a stage are always being read or decoded, and no thread
//! waits for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{AlignedBuf, JoinHandle, spawn};

use super::decode::{BlockLocation, Decoder, Take};
use super::part::{Part, Unit};
use super::{LoadOptions, LoadSummary, LoadedRecord, Visit, VisitError};
use crate::error::LoadError;
use crate::progress::Progress;

/// Number of read threads, which keep a device busy and need little CPU time.
const READ_THREADS: usize = 4;

impl Take for Box<dyn Visit> {
    fn take(&mut self, _: BlockLocation, batch: &[LoadedRecord<'_>]) -> Result<(), LoadError> {
        let taken: Result<(), VisitError> = self.records(batch);
        taken.map_err(LoadError::Visitor)
    }
}

/// A part, and the stage in which it is loaded.
pub(super) struct StagedPart {
    pub(super) stage: usize,
    pub(super) part: Part,
}

/// A unit that was read, or a unit that is too long to be read as a whole.
struct Filled {
    stage: usize,
    part: usize,
    unit: Unit,
    /// Where in the buffer the unit begins; `None` if it is to be streamed.
    at: Option<usize>,
    buf: AlignedBuf,
}

#[derive(Default)]
struct State {
    next: usize,
    filled: VecDeque<Filled>,
    /// The stage whose units are decoded, and how many of them are not done.
    stage: usize,
    undone: usize,
    /// The summary of each stage.
    loaded: Vec<LoadSummary>,
    free: Vec<AlignedBuf>,
    /// Read threads that may still fill a buffer.
    readers: usize,
    failure: Option<LoadError>,
    /// Whether a load thread panicked. The join of that thread gives the message.
    panicked: bool,
}

impl State {
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.panicked
    }

    /// A unit of the present stage that was read.
    fn pop_filled(&mut self) -> Option<Filled> {
        let at = self.filled.iter().position(|filled| filled.stage == self.stage)?;
        self.filled.remove(at)
    }
}

/// What the threads share.
struct Pipe {
    parts: Arc<[StagedPart]>,
    /// Stage and unit, in the order of the stages.
    units: Vec<(usize, Unit)>,
    /// Units of each stage.
    of_stage: Vec<usize>,
    progress: Arc<Progress>,
    state: Mutex<State>,
    /// Signals that a buffer was filled, that a stage has ended, or that no more buffers will be
    /// filled.
    filled: Condvar,
    /// Signals that a buffer is free, or that nothing is left to be read.
    freed: Condvar,
}

/// Notes that a load of so many units begins.
pub(super) fn begin(progress: &Progress, units: usize) {
    Progress::set(&progress.units_done, 0);
    Progress::set(&progress.units_total, units as u64);
}

/// Loads all blocks of the parts, which are sorted by their `stages` stages. Returns the summary of
/// each stage.
pub(super) fn run(
    parts: Arc<[StagedPart]>,
    stages: usize,
    options: &LoadOptions,
    visitors: Vec<Box<dyn Take + Send>>,
    progress: &Arc<Progress>,
) -> Result<Vec<LoadSummary>, LoadError> {
    let of_part = |(at, staged): (usize, &StagedPart)| {
        staged.part.units().into_iter().map(move |unit| (at, unit))
    };
    let units: Vec<_> = parts.iter().enumerate().flat_map(of_part).collect();
    let mut loaded = vec![LoadSummary::default(); stages];
    let mut of_stage = vec![0; stages];
    for StagedPart { stage, part } in &*parts {
        loaded[*stage].file_bytes += part.file_bytes();
        of_stage[*stage] += part.units().len();
    }
    let stage = of_stage.iter().position(|&units| units > 0).unwrap_or(0);
    // With one visitor there is one read thread. So records and calls of the disk come in the same
    // order in every run.
    let readers = if visitors.len() == 1 { 1 } else { READ_THREADS };
    let pipe = Arc::new(Pipe {
        parts,
        units,
        progress: progress.clone(),
        state: Mutex::new(State {
            free: vec![AlignedBuf::new(); 2 * visitors.len() + readers],
            readers,
            stage,
            undone: of_stage.get(stage).copied().unwrap_or(0),
            loaded,
            ..State::default()
        }),
        of_stage,
        filled: Condvar::new(),
        freed: Condvar::new(),
    });
    let (threads, started) = start(&pipe, readers, visitors, options);
    if let Err(error) = started {
        pipe.fail(error);
    }
    // The drop of a visitor may free cells that records of older stages still need. So all visitors
    // live until the last thread has ended.
    let mut ended = Vec::new();
    for thread in threads {
        match thread.join() {
            Ok(visitor) => ended.push(visitor),
            Err(error) => pipe.fail(error.into()),
        }
    }
    let mut state = pipe.state.lock();
    let loaded = std::mem::take(&mut state.loaded);
    state.failure.take().map_or(Ok(loaded), Err)
}

/// A load thread gives its visitor back.
type Threads = Vec<JoinHandle<Option<Box<dyn Take + Send>>>>;

fn start(
    pipe: &Arc<Pipe>,
    readers: usize,
    visitors: Vec<Box<dyn Take + Send>>,
    options: &LoadOptions,
) -> (Threads, Result<(), LoadError>) {
    let mut threads = Threads::new();
    for reader in 0..readers {
        let pipe = pipe.clone();
        let read = move || {
            let _ended = Ended(&pipe);
            pipe.read();
            None
        };
        match spawn(&format!("read-{reader}"), read) {
            Ok(thread) => threads.push(thread),
            Err(error) => return (threads, Err(error.into())),
        }
    }
    for (at, visitor) in visitors.into_iter().enumerate() {
        let (pipe, mut decoder) = (pipe.clone(), Decoder::new(options));
        let mut visitor = visitor;
        let load = move || {
            let _panicking = Panicking(&pipe);
            pipe.load(&mut decoder, &mut *visitor).unwrap_or_else(|error| pipe.fail(error));
            Some(visitor)
        };
        match spawn(&format!("load-{at}"), load) {
            Ok(thread) => threads.push(thread),
            Err(error) => return (threads, Err(error.into())),
        }
    }
    (threads, Ok(()))
}

/// The drop of this value tells the load threads that a read thread has ended, with a panic or
/// without.
struct Ended<'a>(&'a Pipe);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.state.lock().readers -= 1;
        self.0.filled.notify_all();
    }
}

/// The drop of this value in a load thread that panics ends the other threads. The other threads
/// might wait for the buffers of the thread that panicked.
struct Panicking<'a>(&'a Pipe);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().panicked = true;
            self.0.filled.notify_all();
            self.0.freed.notify_all();
        }
    }
}

impl Pipe {
    fn fail(&self, error: LoadError) {
        self.state.lock().failure.get_or_insert(error);
        self.filled.notify_all();
        self.freed.notify_all();
    }

    fn read(&self) {
        while let Some((index, mut buf)) = self.claim() {
            let (at_part, unit) = self.units[index];
            let StagedPart { stage, part } = &self.parts[at_part];
            let at = if part.is_oversize(unit) {
                None
            } else {
                match part.read_blocks(part.blocks(unit), &mut buf) {
                    Ok(at) => Some(at),
                    Err(error) => return self.fail(error),
                }
            };
            let filled = Filled { stage: *stage, part: at_part, unit, at, buf };
            self.state.lock().filled.push_back(filled);
            // This wakes all load threads: the unit may be of a later stage than the
            // longest-waiting thread can take.
            self.filled.notify_all();
        }
    }

    /// The next unit to be read, and a buffer for it.
    fn claim(&self) -> Option<(usize, AlignedBuf)> {
        let mut state = self.state.lock();
        loop {
            if state.is_over() || state.next == self.units.len() {
                return None;
            }
            if let Some(buf) = state.free.pop() {
                state.next += 1;
                return Some((state.next - 1, buf));
            }
            self.freed.wait(&mut state);
        }
    }

    /// The next unit to be decoded.
    fn take(&self) -> Option<Filled> {
        let mut state = self.state.lock();
        loop {
            if state.is_over() {
                return None;
            }
            if let Some(filled) = state.pop_filled() {
                return Some(filled);
            }
            if state.readers == 0 && state.filled.is_empty() {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// Notes that a unit of the present stage is done, and gives its buffer back.
    fn end_unit(&self, summary: &LoadSummary, buf: AlignedBuf) {
        let mut state = self.state.lock();
        let stage = state.stage;
        state.loaded[stage].add(summary);
        state.undone -= 1;
        while state.undone == 0 && state.stage + 1 < self.of_stage.len() {
            state.stage += 1;
            state.undone = self.of_stage[state.stage];
            self.filled.notify_all();
        }
        state.free.push(buf);
        // This wakes all read threads: if this was the last unit, every waiting thread must see
        // that.
        self.freed.notify_all();
    }

    fn load(&self, decoder: &mut Decoder, visitor: &mut dyn Take) -> Result<(), LoadError> {
        while let Some(Filled { part: number, unit, at, buf, .. }) = self.take() {
            if self.progress.is_cancelled() {
                return Err(LoadError::Cancelled);
            }
            let part = &self.parts[number].part;
            let summary = match at {
                Some(at) => decoder.unit((number, part), unit, &buf[at..], visitor)?,
                None => decoder.stream_unit((number, part), unit, visitor)?,
            };
            self.end_unit(&summary, buf);
            Progress::add(&self.progress.units_done, 1);
            Progress::add(&self.progress.records, summary.records);
            Progress::add(&self.progress.bytes, summary.value_bytes);
            Progress::add(&self.progress.written_bytes, part.unit_bytes(unit));
        }
        Ok(())
    }
}
