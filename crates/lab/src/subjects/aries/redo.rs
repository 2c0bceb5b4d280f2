//! The redo log, written by a thread of its own. The logger flushes each batch of records before it
//! writes the next. The mutator runs the next batch meanwhile, and waits if it finishes first
//! (SIGMOD 2011, §5.1).
//!
//! ```text
//! redo-N     file, N the first batch's number in 20 digits; batches one behind the other
//! batch      magic (4) | length (4) | number (8) | CRC-32C of number and records (4) | records,
//!            then nothing up to a multiple of 4096 bytes: no sector belongs to two flushes
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{Caching, Disk, DiskError, DiskFile, JoinHandle, OpenMode, spawn};

use crate::error::{LabError, LabResult};

const MAGIC: u32 = 0x4f44_4552;
const HEAD_BYTES: usize = 20;
const ALIGN_BYTES: usize = 4096;
/// Bytes reserved for a segment at a time.
const SEGMENT_BYTES: u64 = 64 << 20;

pub(super) fn failed(reason: impl ToString) -> LabError {
    LabError::Engine { engine: "aries".into(), reason: reason.to_string() }
}

/// The file of the segment that begins with this batch.
pub(super) fn segment_path(first: u64) -> PathBuf {
    format!("redo-{first:020}").into()
}

/// Numbers of the first batches of all existing segments, in order.
pub(super) fn segments(disk: &dyn Disk) -> Result<Vec<u64>, DiskError> {
    let names = disk.list("".as_ref())?;
    let mut firsts: Vec<u64> =
        names.iter().filter_map(|name| name.strip_prefix("redo-")?.parse().ok()).collect();
    firsts.sort_unstable();
    Ok(firsts)
}

fn checksum(number: u64, records: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), records)
}

/// The batch at the front of these bytes: its number, its records, and the position of the next
/// batch. `None` at the end, or if a crash has cut the batch off.
pub(super) fn read_batch(bytes: &[u8]) -> Option<(u64, &[u8], usize)> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let number = u64::from(word(8)) | u64::from(word(12)) << 32;
    let records = rest.get(..word(4) as usize)?;
    let is_whole = word(0) == MAGIC && word(16) == checksum(number, records);
    let len = (HEAD_BYTES + records.len()).next_multiple_of(ALIGN_BYTES);
    is_whole.then_some((number, records, len))
}

/// State shared by mutator, logger and checkpointer.
#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The next batch to write.
    next: Option<(u64, Vec<u8>)>,
    /// An empty buffer for the mutator.
    spare: Vec<u8>,
    begins_segment: bool,
    durable: u64,
    bytes: u64,
    stops: bool,
    error: Option<String>,
}

impl Log {
    pub(super) fn new(durable: u64) -> Self {
        let state = State { durable, ..State::default() };
        Log { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until the batch before is durable, then passes this batch to the logger. Returns an
    /// empty buffer.
    pub(super) fn push(&self, number: u64, records: Vec<u8>) -> LabResult<Vec<u8>> {
        let mut state = self.wait_for(number - 1)?;
        state.next = Some((number, records));
        self.changed.notify_all();
        Ok(std::mem::take(&mut state.spare))
    }

    /// Lets the next batch begin another segment.
    pub(super) fn end_segment(&self) {
        self.state.lock().begins_segment = true;
    }

    /// Waits until a batch is durable.
    #[cfg(test)]
    pub(super) fn wait_durable(&self, number: u64) -> LabResult<()> {
        self.wait_for(number).map(drop)
    }

    fn wait_for(&self, number: u64) -> LabResult<parking_lot::MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        while state.durable < number {
            if let Some(error) = &state.error {
                return Err(failed(error));
            }
            if state.stops && state.next.is_none() {
                return Err(failed("the log has ended"));
            }
            self.changed.wait(&mut state);
        }
        Ok(state)
    }

    pub(super) fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    pub(super) fn stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_all();
    }

    /// The next batch, and whether it begins a segment. `None` at the end.
    fn take(&self) -> Option<(u64, Vec<u8>, bool)> {
        let mut state = self.state.lock();
        loop {
            if let Some((number, records)) = state.next.take() {
                let begins = std::mem::take(&mut state.begins_segment);
                return Some((number, records, begins));
            }
            if state.stops {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

struct Segment {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

/// Starts the logger's thread.
pub(super) fn start(disk: Arc<dyn Disk>, log: Arc<Log>) -> LabResult<JoinHandle<()>> {
    let body = move || {
        if let Err(error) = run(&*disk, &log) {
            log.state.lock().error = Some(error.to_string());
            log.changed.notify_all();
        }
    };
    spawn("aries-logger", body).map_err(failed)
}

fn run(disk: &dyn Disk, log: &Log) -> Result<(), DiskError> {
    let (mut segment, mut frame): (Option<Segment>, Vec<u8>) = (None, Vec::new());
    while let Some((number, mut records, begins)) = log.take() {
        frame.clear();
        frame.extend(MAGIC.to_le_bytes());
        frame.extend((records.len() as u32).to_le_bytes());
        frame.extend(number.to_le_bytes());
        frame.extend(checksum(number, &records).to_le_bytes());
        frame.extend(&records);
        frame.resize(frame.len().next_multiple_of(ALIGN_BYTES), 0);
        if begins || segment.as_ref().is_some_and(|it| it.offset >= SEGMENT_BYTES) {
            segment = None;
        }
        let is_new = segment.is_none();
        let segment = match &mut segment {
            Some(segment) => segment,
            none => none.insert(begin(disk, number)?),
        };
        segment.file.write_at(&frame, segment.offset)?;
        segment.file.sync()?;
        if is_new {
            disk.sync_dir("".as_ref())?;
        }
        segment.offset += frame.len() as u64;
        records.clear();
        let mut state = log.state.lock();
        state.durable = number;
        state.bytes += frame.len() as u64;
        state.spare = records;
        log.changed.notify_all();
    }
    Ok(())
}

fn begin(disk: &dyn Disk, number: u64) -> Result<Segment, DiskError> {
    let path = segment_path(number);
    disk.remove(&path)?;
    let file = disk.open(&path, OpenMode::CreateNew, Caching::Buffered)?;
    file.allocate(SEGMENT_BYTES)?;
    Ok(Segment { file, offset: 0 })
}
