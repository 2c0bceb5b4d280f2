//! Asynchronous writes: background threads write buffers that their owner fills.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::aligned::AlignedBuf;
use crate::disk::{DiskError, DiskFile, DiskResult};
use crate::thread::{JoinHandle, ThreadError, go_behind, spawn};

/// Threads that write buffers into files, several at the same time, while their owner fills the
/// next one. The threads [go behind](go_behind) others.
///
/// Writes happen in any order. After a failed write the waiting ones are dropped, and the next call
/// returns the error.
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use stillpoint_io::{AlignedBuf, Caching, Disk, OpenMode, SimDisk, WriteBehind};
/// let disk = SimDisk::new(1);
/// let file = disk.open(Path::new("image"), OpenMode::CreateNew, Caching::Direct)?;
/// let behind = WriteBehind::start("image", 2)?;
/// let mut block = AlignedBuf::new();
/// for number in 0..10 {
///     block.clear();
///     block.resize(4096, number as u8);
///     block = behind.write(&file, block, number * 4096)?; // an empty one, or one to use again
/// }
/// behind.drain()?;
/// file.sync()?;
/// assert_eq!(file.len()?, 40960);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WriteBehind {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals a waiting write, or the end.
    came: Condvar,
    /// Signals the end of a write.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Number of writes that wait or are under way.
    under_way: usize,
    free: Vec<AlignedBuf>,
    failure: Option<DiskError>,
    stops: bool,
}

#[derive(Debug)]
struct Job {
    file: Arc<dyn DiskFile>,
    buf: AlignedBuf,
    offset: u64,
}

impl WriteBehind {
    /// Starts `threads` threads, each of which makes one write at a time.
    ///
    /// # Errors
    /// The system refuses a thread. Threads already started have ended.
    pub fn start(name: &str, threads: usize) -> Result<Self, ThreadError> {
        let mut this = Self { shared: Arc::default(), threads: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let shared = this.shared.clone();
            let thread = spawn(&format!("{name}-{number}"), move || shared.run())?;
            this.threads.push(thread);
        }
        Ok(this)
    }

    /// Queues a buffer to be written, and returns an empty one. Waits while all threads are
    /// writing.
    ///
    /// # Errors
    /// The error of an earlier write. This write is not made, and none is under way.
    pub fn write(
        &self,
        file: &Arc<dyn DiskFile>,
        buf: AlignedBuf,
        offset: u64,
    ) -> DiskResult<AlignedBuf> {
        let mut state = self.shared.state.lock();
        while state.under_way >= self.threads.len() && state.failure.is_none() {
            self.shared.ended.wait(&mut state);
        }
        if let Some(error) = state.failure.take() {
            while state.under_way > 0 {
                self.shared.ended.wait(&mut state);
            }
            state.failure = None;
            return Err(error);
        }
        state.waiting.push_back(Job { file: file.clone(), buf, offset });
        state.under_way += 1;
        self.shared.came.notify_one();
        Ok(state.free.pop().unwrap_or_default())
    }

    /// Writes that are under way.
    pub fn under_way(&self) -> usize {
        self.shared.state.lock().under_way
    }

    /// Waits until no write is under way.
    ///
    /// # Errors
    /// The error of the first write that failed since the last call.
    pub fn drain(&self) -> DiskResult<()> {
        let mut state = self.shared.state.lock();
        while state.under_way > 0 {
            self.shared.ended.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.state.lock().stops = true;
        self.shared.came.notify_all();
        for thread in self.threads.drain(..) {
            // The thread's panic was printed already, and no caller is left that could get the
            // error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        go_behind();
        let mut state = self.state.lock();
        loop {
            let Some(Job { file, buf, offset }) = state.waiting.pop_front() else {
                if state.stops {
                    return;
                }
                self.came.wait(&mut state);
                continue;
            };
            drop(state);
            let written = file.write_at(&buf, offset);
            state = self.state.lock();
            state.free.push(buf);
            state.under_way -= 1;
            if let Err(error) = written {
                state.failure.get_or_insert(error);
                state.under_way -= state.waiting.len();
                state.waiting.clear();
            }
            self.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Caching, Disk, OpenMode};
    use crate::sim::{Call, Fault, FaultPlan, Lasts, SimDisk};
    use std::path::Path;

    fn block(number: u64) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(4096);
        block.fill(number as u8);
        block
    }

    #[test]
    fn all_blocks_arrive_and_buffers_come_back() {
        let disk = SimDisk::new(3);
        let file = disk.open(Path::new("a"), OpenMode::CreateNew, Caching::Direct).expect("open");
        let behind = WriteBehind::start("test", 3).expect("threads");
        let mut reused = 0;
        for number in 0..100 {
            let next = behind.write(&file, block(number), number * 4096).expect("no failure");
            reused += usize::from(next.capacity() > 0);
            assert!(behind.under_way() <= 3);
        }
        behind.drain().expect("no failure");
        assert!(reused > 90, "{reused}");
        for number in 0..100 {
            let mut found = AlignedBuf::zeroed(4096);
            file.read_at(&mut found, number * 4096).expect("read");
            assert!(found.iter().all(|byte| u64::from(*byte) == number), "block {number}");
        }
    }

    #[test]
    fn a_failure_is_told_once_and_ends_what_waits() {
        let disk = SimDisk::new(4);
        let file = disk.open(Path::new("a"), OpenMode::CreateNew, Caching::Direct).expect("open");
        let behind = WriteBehind::start("test", 2).expect("threads");
        disk.inject(FaultPlan {
            calls: vec![Call::Write],
            nth: 3,
            fault: Fault::DiskFull,
            lasts: Lasts::Once,
        });
        let mut buf = block(1);
        let failed = (0..10u64).find_map(|number| {
            let next = behind.write(&file, std::mem::take(&mut buf), number * 4096);
            buf = block(1);
            next.err()
        });
        let failed = failed.or_else(|| behind.drain().err()).expect("one write failed");
        assert!(failed.is_disk_full(), "{failed}");
        behind.drain().expect("it has been told");
        behind.write(&file, block(7), 0).expect("writes are taken again");
        behind.drain().expect("no failure");
        let mut found = AlignedBuf::zeroed(4096);
        file.read_at(&mut found, 0).expect("read");
        assert_eq!(found[0], 7);
    }

    #[test]
    fn what_is_under_way_at_the_end_is_written() {
        let disk = SimDisk::new(5);
        let file = disk.open(Path::new("a"), OpenMode::CreateNew, Caching::Direct).expect("open");
        let behind = WriteBehind::start("test", 2).expect("threads");
        behind.write(&file, block(1), 0).expect("no failure");
        behind.write(&file, block(2), 4096).expect("no failure");
        drop(behind);
        assert_eq!(file.len().expect("length"), 8192);
    }
}
