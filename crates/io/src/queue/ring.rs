//! The engine on io_uring (Axboe, *Efficient IO with io_uring*, 2019). ⚠ unsafe lives here, in small
//! documented blocks.
//!
//! One lock guards both rings and the table of transfers under way. One thread at a time, the
//! *leader*, ends transfers or sleeps in the system until one has completed. So nobody else takes
//! the completion that the leader sleeps for. Others wait for the leader to end a round.
//!
//! A transfer that the system did not make as a whole is made by a blocking call. So short
//! transfers, interruptions and file systems that refuse direct I/O have one treatment, that of
//! [`DiskFile`](crate::DiskFile). Errors of the device are final.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::transfer::{Job, Memory, Transfer};
use crate::disk::DiskResult;

/// Most transfers under way.
const DEPTH_MAX: usize = 4096;

pub(super) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
    leader: Mutex<()>,
    /// Rounds that leaders have ended.
    rounds: Mutex<u64>,
    round_ended: Condvar,
}

struct State {
    queued: VecDeque<Job>,
    /// Transfers that the system has, each at the number that its entry carries. The system uses
    /// their memory and files until they are taken out.
    under_way: Vec<Option<Job>>,
    free: Vec<usize>,
}

impl State {
    fn count(&self) -> usize {
        self.under_way.len() - self.free.len()
    }
}

impl Ring {
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX).next_power_of_two();
        let ring = IoUring::new(depth as u32)?;
        let state = State {
            queued: VecDeque::new(),
            under_way: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        };
        Ok(Self {
            ring,
            state: Mutex::new(state),
            leader: Mutex::new(()),
            rounds: Mutex::new(0),
            round_ended: Condvar::new(),
        })
    }

    pub(super) fn queue(&self, job: Job) {
        self.state.lock().queued.push_back(job);
    }

    pub(super) fn submit(&self) {
        let mut refused = Vec::new();
        let pushed = self.push(&mut self.state.lock(), &mut refused);
        if pushed > 0 {
            // A refusal (too many completions wait, no memory) leaves the entries in the ring. The
            // leader's call submits them.
            let _ = self.ring.submit();
        }
        refused.into_iter().for_each(|refusal| refusal.end());
    }

    /// Moves queued transfers into the submission ring, as far as the depth allows. Returns how many.
    /// Transfers that may not be made come back in `refused`.
    fn push(&self, state: &mut State, refused: &mut Vec<Refusal>) -> usize {
        let mut pushed = 0;
        while let Some(number) = state.free.last().copied() {
            let Some(job) = state.queued.pop_front() else { break };
            let entry = match entry_of(&job) {
                Ok(Some(entry)) => entry.user_data(number as u64),
                Ok(None) => {
                    refused.push(Refusal::NoDescriptor(job));
                    continue;
                }
                Err(error) => {
                    refused.push(Refusal::Error(job, error));
                    continue;
                }
            };
            state.free.pop();
            state.under_way[number] = Some(job);
            // SAFETY: the state's lock is held, and every access to the submission ring holds it.
            let mut submission = unsafe { self.ring.submission_shared() };
            // SAFETY: the entry's file and memory belong to the job, which stays in `under_way` until
            // the completion of the entry was seen. `drop` waits for all completions.
            let full = unsafe { submission.push(&entry) }.is_err();
            assert!(!full, "the ring has an entry for each number");
            pushed += 1;
        }
        pushed
    }

    pub(super) fn poll(&self) -> usize {
        match self.leader.try_lock() {
            Some(leader) => {
                let ended = self.end_completed();
                drop(leader);
                self.end_round();
                ended
            }
            // The leader ends all that has completed.
            None => 0,
        }
    }

    pub(super) fn wait(&self, transfer: &Transfer) {
        self.submit();
        while !transfer.has_ended() {
            if let Some(leader) = self.leader.try_lock() {
                self.lead(transfer);
                drop(leader);
                self.end_round();
                continue;
            }
            let mut rounds = self.rounds.lock();
            // A leader that ends after this look ends a round after it, too.
            if transfer.has_ended() || !self.leader.is_locked() {
                continue;
            }
            self.round_ended.wait(&mut rounds);
        }
    }

    /// Ends transfers, and sleeps while there are none, until this one has ended.
    fn lead(&self, transfer: &Transfer) {
        loop {
            let ended = self.end_completed();
            if transfer.has_ended() {
                return;
            }
            if ended > 0 {
                // Others may wait for what has ended.
                self.end_round();
                continue;
            }
            self.submit();
            if self.state.lock().count() > 0 {
                // An error (an interruption, no memory) is followed by another try.
                let _ = self.ring.submit_and_wait(1);
            } else {
                // Another thread makes the transfer by a blocking call.
                std::thread::yield_now();
            }
        }
    }

    fn end_round(&self) {
        *self.rounds.lock() += 1;
        self.round_ended.notify_all();
    }

    /// Ends what the system has completed. The caller is the leader.
    fn end_completed(&self) -> usize {
        let mut completed = Vec::new();
        let mut refused = Vec::new();
        let pushed = {
            let mut state = self.state.lock();
            // SAFETY: the state's lock is held, and every access to the completion ring holds it.
            let completion = unsafe { self.ring.completion_shared() };
            for entry in completion {
                let number = entry.user_data() as usize;
                if let Some(job) = state.under_way.get_mut(number).and_then(Option::take) {
                    state.free.push(number);
                    completed.push((job, entry.result()));
                }
            }
            self.push(&mut state, &mut refused)
        };
        if pushed > 0 {
            // As in `submit`.
            let _ = self.ring.submit();
        }
        let count = completed.len() + refused.len();
        completed.into_iter().for_each(|(job, result)| end(job, result));
        refused.into_iter().for_each(|refusal| refusal.end());
        count
    }
}

/// A transfer that the ring does not make.
enum Refusal {
    /// The file has no descriptor.
    NoDescriptor(Job),
    /// The file takes no such transfer.
    Error(Job, crate::disk::DiskError),
}

impl Refusal {
    fn end(self) {
        match self {
            Refusal::NoDescriptor(job) => job.run(),
            Refusal::Error(job, error) => job.end(Err(error)),
        }
    }
}

/// The entry of a transfer. `None` if the file has no descriptor.
fn entry_of(job: &Job) -> DiskResult<Option<squeue::Entry>> {
    let writes = matches!(job.memory, Memory::Buffer(_));
    let Some(descriptor) = job.file.descriptor(writes)? else { return Ok(None) };
    let Ok(bytes) = u32::try_from(job.bytes()) else { return Ok(None) };
    let file = types::Fd(descriptor.as_raw_fd());
    Ok(Some(match &job.memory {
        #[cfg(not(any(loom, shuttle)))]
        Memory::Target(target) => {
            let address = target.address().as_ptr();
            opcode::Read::new(file, address, bytes).offset(job.offset).build()
        }
        #[cfg(any(loom, shuttle))]
        Memory::Target(_) => return Ok(None),
        Memory::Buffer(buf) => {
            opcode::Write::new(file, buf.as_ptr(), bytes).offset(job.offset).build()
        }
    }))
}

/// Ends a transfer with what the system says of it.
fn end(job: Job, result: i32) {
    match usize::try_from(result) {
        Ok(bytes) if bytes == job.bytes() => job.end(Ok(bytes)),
        Ok(_) => job.run(),
        Err(_) => {
            // A thread that ends has its waiting transfers cancelled.
            let cancelled = Errno::CANCELED;
            let passing = [Errno::AGAIN, Errno::INTR, Errno::INVAL, Errno::OPNOTSUPP, cancelled];
            let errno = result.wrapping_neg();
            match passing.iter().any(|passing| passing.raw_os_error() == errno) {
                true => job.run(),
                false => job.fail(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The system must not use memory and files that are about to go.
        while self.state.lock().count() > 0 {
            let _ = self.ring.submit_and_wait(1);
            self.end_completed();
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Ring")
            .field("queued", &state.queued.len())
            .field("under_way", &state.count())
            .finish_non_exhaustive()
    }
}
