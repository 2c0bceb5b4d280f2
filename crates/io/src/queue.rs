//! Many transfers at a time: submit, poll, wait.
//!
//! ```text
//! read, write ──▶ queued ── submit ──▶ under way ── poll, wait ──▶ ended
//! ```
//! A thread queues transfers and submits all of them with one call of the system. Any thread may
//! then poll, and so end the transfers of others. A read goes into a frame by its address, so no
//! reference to bytes that others may see exists ([`Target`]).
//!
//! Three engines do the work. io_uring is used where the system allows it. Elsewhere threads make
//! blocking calls. On a simulated disk nothing happens by itself: whoever polls or waits runs
//! transfers in an order that a seed decides.
//!
//! Files are flushed by [`DiskFile::sync`], after the writes have ended.

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the system reads and writes by address, see the notes there")]
mod ring;
mod seeded;
mod threads;
mod transfer;

use std::sync::Arc;

use stillpoint_mem::Target;

use crate::aligned::AlignedBuf;
use crate::disk::{Disk, DiskFile};
use crate::thread::ThreadError;

use self::seeded::Seeded;
use self::threads::Threads;
use self::transfer::{Job, Memory};

pub use self::transfer::{Ended, Transfer};

/// Most threads of a queue without io_uring. A thread makes one transfer at a time.
const THREADS_MAX: usize = 32;

/// Transfers between a device and memory, many of which are under way at the same time.
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use stillpoint_io::{AlignedBuf, Caching, Disk, OpenMode, Queue, RealDisk};
/// use stillpoint_mem::Frames;
/// # let scratch = tempfile::tempdir()?;
/// let disk = RealDisk::new(scratch.path())?;
/// let file = disk.open(Path::new("pages"), OpenMode::CreateNew, Caching::Direct)?;
/// let queue = Queue::of(&disk, "pages", 64)?;
/// let mut page = AlignedBuf::zeroed(4096);
/// page[0] = 7;
/// let write = queue.write(&file, page, 4096);
/// queue.wait(&write);
/// write.take().expect("has ended").result?;
///
/// let frames = Frames::new(2, 4096)?;
/// let reads: Vec<_> = (0..2).map(|at| queue.read(&file, frames.target(at), at as u64 * 4096)).collect();
/// queue.submit(); // both with one call of the system
/// for read in &reads {
///     queue.wait(read);
///     assert_eq!(read.take().expect("has ended").result?, 4096);
/// }
/// # use std::sync::atomic::Ordering::Relaxed;
/// assert_eq!(frames.words(1)[0].load(Relaxed), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    #[cfg(target_os = "linux")]
    Ring(Box<ring::Ring>),
    Threads(Threads),
    Seeded(Seeded),
}

impl Queue {
    /// A queue that fits the disk, with at most `depth` transfers under way. More may be queued.
    ///
    /// # Errors
    /// The system refuses threads, where there is no io_uring.
    pub fn of(disk: &dyn Disk, name: &str, depth: usize) -> Result<Arc<Self>, ThreadError> {
        if let Some(seed) = disk.simulation_seed() {
            return Ok(Arc::new(Self { engine: Engine::Seeded(Seeded::new(seed)) }));
        }
        #[cfg(target_os = "linux")]
        match ring::Ring::new(depth) {
            Ok(ring) => return Ok(Arc::new(Self { engine: Engine::Ring(Box::new(ring)) })),
            Err(error) => {
                tracing::info!(%error, "no io_uring here: threads read and write pages");
            }
        }
        Self::by_threads(name, depth)
    }

    /// A queue of blocking calls, as it is used where there is no io_uring. At most 32 threads make
    /// one transfer each.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn by_threads(name: &str, depth: usize) -> Result<Arc<Self>, ThreadError> {
        let threads = Threads::start(name, depth.clamp(1, THREADS_MAX))?;
        Ok(Arc::new(Self { engine: Engine::Threads(threads) }))
    }

    /// Whether the transfers go through io_uring.
    pub fn is_ring(&self) -> bool {
        match &self.engine {
            #[cfg(target_os = "linux")]
            Engine::Ring(_) => true,
            Engine::Threads(_) | Engine::Seeded(_) => false,
        }
    }

    /// Queues a read of the target's bytes from `offset` on. Offset and length must suit the file's
    /// caching ([`DIRECT_ALIGN`](crate::DIRECT_ALIGN)).
    pub fn read(&self, file: &Arc<dyn DiskFile>, target: Target, offset: u64) -> Transfer {
        self.queue(file, Memory::Target(target), offset)
    }

    /// Queues a write of all bytes of the buffer. [`Ended::buf`] gives the buffer back.
    pub fn write(&self, file: &Arc<dyn DiskFile>, buf: AlignedBuf, offset: u64) -> Transfer {
        self.queue(file, Memory::Buffer(buf), offset)
    }

    fn queue(&self, file: &Arc<dyn DiskFile>, memory: Memory, offset: u64) -> Transfer {
        let transfer = Transfer::default();
        let job = Job { file: file.clone(), offset, memory, transfer: transfer.clone() };
        match &self.engine {
            #[cfg(target_os = "linux")]
            Engine::Ring(ring) => ring.queue(job),
            Engine::Threads(threads) => threads.queue(job),
            Engine::Seeded(seeded) => seeded.queue(job),
        }
        transfer
    }

    /// Gives the system all queued transfers.
    pub fn submit(&self) {
        match &self.engine {
            #[cfg(target_os = "linux")]
            Engine::Ring(ring) => ring.submit(),
            Engine::Threads(threads) => threads.submit(),
            Engine::Seeded(seeded) => seeded.submit(),
        }
    }

    /// Ends the transfers that the system has completed, without a wait. Returns how many.
    pub fn poll(&self) -> usize {
        match &self.engine {
            #[cfg(target_os = "linux")]
            Engine::Ring(ring) => ring.poll(),
            Engine::Threads(threads) => threads.poll(),
            Engine::Seeded(seeded) => seeded.poll(),
        }
    }

    /// Submits what is queued, and waits until the transfer has ended. Ends others on the way.
    pub fn wait(&self, transfer: &Transfer) {
        match &self.engine {
            #[cfg(target_os = "linux")]
            Engine::Ring(ring) => ring.wait(transfer),
            Engine::Threads(threads) => threads.wait(transfer),
            Engine::Seeded(seeded) => seeded.wait(transfer),
        }
    }
}

#[cfg(test)]
mod tests;
