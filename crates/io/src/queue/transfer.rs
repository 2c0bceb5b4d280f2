//! One transfer: what is asked for, and how it ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use stillpoint_mem::Target;

use crate::aligned::AlignedBuf;
use crate::disk::{DiskError, DiskFile, DiskResult};

/// A transfer that was queued. Clones are the same transfer.
#[derive(Clone, Debug, Default)]
pub struct Transfer(Arc<State>);

#[derive(Debug, Default)]
struct State {
    has_ended: AtomicBool,
    ended: Mutex<Option<Ended>>,
}

/// The end of a transfer.
#[derive(Debug)]
pub struct Ended {
    /// Bytes transferred. A read beyond the end of the file is shorter than its target.
    pub result: DiskResult<usize>,
    /// The buffer of a write.
    pub buf: Option<AlignedBuf>,
}

impl Transfer {
    /// Whether the transfer has ended. Then what the device wrote is there for the caller.
    #[inline]
    pub fn has_ended(&self) -> bool {
        // Acquire: partner of the Release in `end`.
        self.0.has_ended.load(Ordering::Acquire)
    }

    /// How the transfer ended. `None` before its end, and after the first call that returned it.
    pub fn take(&self) -> Option<Ended> {
        if self.has_ended() { self.0.ended.lock().take() } else { None }
    }

    fn end(&self, ended: Ended) {
        *self.0.ended.lock() = Some(ended);
        // Release: partner of the Acquire in `has_ended`.
        self.0.has_ended.store(true, Ordering::Release);
    }
}

/// The memory of a transfer.
#[derive(Debug)]
pub(super) enum Memory {
    /// Filled by a read.
    Target(Target),
    /// Written.
    Buffer(AlignedBuf),
}

/// A transfer to be made.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) offset: u64,
    pub(super) memory: Memory,
    pub(super) transfer: Transfer,
}

impl Job {
    /// Bytes to be transferred.
    pub(super) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Target(target) => target.bytes(),
            Memory::Buffer(buf) => buf.len(),
        }
    }

    /// Makes the transfer by a blocking call, and ends it. A panic of the disk ends it, too.
    pub(super) fn run(self) {
        let file = self.file.clone();
        let mut running = Running(Some(self));
        let Some(Job { offset, memory, .. }) = &running.0 else { return };
        let result = match memory {
            Memory::Target(target) => file.read_into(target, *offset),
            Memory::Buffer(buf) => file.write_at(buf, *offset).map(|()| buf.len()),
        };
        if let Some(job) = running.0.take() {
            job.end(result);
        }
    }

    /// Ends the transfer.
    pub(super) fn end(self, result: DiskResult<usize>) {
        let buf = match self.memory {
            Memory::Target(_) => None,
            Memory::Buffer(buf) => Some(buf),
        };
        self.transfer.end(Ended { result, buf });
    }

    /// Ends the transfer with an error.
    pub(super) fn fail(self, source: io::Error) {
        let (bytes, offset) = (self.bytes(), self.offset);
        let verb = match self.memory {
            Memory::Target(_) => "read",
            Memory::Buffer(_) => "write",
        };
        let path = self.file.path().to_owned();
        self.end(Err(DiskError::new(format!("{verb} {bytes} bytes at {offset} of"), path, source)));
    }
}

/// A transfer under way in this thread. A panic ends it with an error, so that nobody waits for ever.
struct Running(Option<Job>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            job.fail(io::Error::other("the disk has panicked"));
        }
    }
}
