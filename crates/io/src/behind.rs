//! Asynchronous writes: background threads write buffers that their owner fills.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::aligned::AlignedBuf;
use crate::disk::{DiskError, DiskFile, DiskResult};
use crate::thread::{ThreadError, go_behind};
use crate::workers::{Work, Workers};

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
    workers: Workers<Writes>,
}

#[derive(Debug, Default)]
struct Writes {
    waiting: VecDeque<Job>,
    /// Number of writes that wait or are under way.
    under_way: usize,
    free: Vec<AlignedBuf>,
    failure: Option<DiskError>,
}

#[derive(Debug)]
struct Job {
    file: Arc<dyn DiskFile>,
    buf: AlignedBuf,
    offset: u64,
}

impl Work for Writes {
    type Job = Job;
    type Done = (AlignedBuf, DiskResult<()>);

    fn begin() {
        go_behind();
    }

    fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front()
    }

    fn run(_: &str, Job { file, buf, offset }: Job) -> Self::Done {
        let written = file.write_at(&buf, offset);
        (buf, written)
    }

    fn end(&mut self, (buf, written): Self::Done) {
        self.free.push(buf);
        self.under_way -= 1;
        if let Err(error) = written {
            self.failure.get_or_insert(error);
            self.under_way -= self.waiting.len();
            self.waiting.clear();
        }
    }
}

impl WriteBehind {
    /// Starts `threads` threads, each of which makes one write at a time.
    ///
    /// # Errors
    /// The system refuses a thread. Threads already started have ended.
    pub fn start(name: &str, threads: usize) -> Result<Self, ThreadError> {
        Ok(Self { workers: Workers::start(name, threads.max(1))? })
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
        let mut writes = self.workers.lock();
        while writes.under_way >= self.workers.count() && writes.failure.is_none() {
            writes.wait();
        }
        if let Some(error) = writes.failure.take() {
            while writes.under_way > 0 {
                writes.wait();
            }
            writes.failure = None;
            return Err(error);
        }
        writes.waiting.push_back(Job { file: file.clone(), buf, offset });
        writes.under_way += 1;
        writes.came(1);
        Ok(writes.free.pop().unwrap_or_default())
    }

    /// Writes that are under way.
    pub fn under_way(&self) -> usize {
        self.workers.lock().under_way
    }

    /// Waits until no write is under way.
    ///
    /// # Errors
    /// The error of the first write that failed since the last call.
    pub fn drain(&self) -> DiskResult<()> {
        let mut writes = self.workers.lock();
        while writes.under_way > 0 {
            writes.wait();
        }
        writes.failure.take().map_or(Ok(()), Err)
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
