//! A snapshot of this process's memory, held by a forked child that does nothing else. ⚠ unsafe
//! lives here, in small documented blocks.
//!
//! ```text
//! parent  ── fork ── goes on, copying each page before its first write ── closes the pipe ── waits
//! child        └──── closes all files, waits for the end of the pipe ───────────────┴── ends
//! reader             └── /proc/<child>/mem: the child's pages, into a buffer ──┘
//! ```
//!
//! A child of a process with threads may call only functions that are safe in a signal handler.
//! Other threads may have held locks, such as the allocator's, and do not exist in the child to
//! release them. This child makes four system calls.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::clock::{Clock, RealClock};

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

/// The memory of this process could not be snapshotted or read.
#[derive(Clone, Debug)]
pub struct ForkError {
    op: &'static str,
    source: Arc<io::Error>,
}

impl ForkError {
    /// The failure of a call: what it was to do, and the reason of the system.
    pub fn new(op: &'static str, source: impl Into<io::Error>) -> Self {
        Self { op, source: Arc::new(source.into()) }
    }
}

impl fmt::Display for ForkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, source } = self;
        let cure = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "the system forbids reading a child's memory (kernel.yama.ptrace_scope above 1, or \
                 another rule against tracing)"
            }
            io::ErrorKind::Unsupported => "this system has no such call",
            _ => "memory or processes are short: raise the limits",
        };
        write!(f, "cannot {op}: {source}; {cure}, or take a scheme that forks nothing")
    }
}

impl std::error::Error for ForkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// A snapshot of all memory of this process at the call of [`fork`](Self::fork). A child process
/// holds the snapshot, and sleeps until this value is dropped or the parent dies.
///
/// The system copies each page when either side first writes to it. The fork itself copies the page
/// tables, so it takes longer with more memory.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use stillpoint_io::ForkedMemory;
/// let cells: Vec<AtomicU64> = (0..1000).map(AtomicU64::new).collect();
/// let forked = ForkedMemory::fork()?;
/// cells[7].store(70, Relaxed);
/// let mut bytes = [0; 80];
/// forked.read(&cells[..10], &mut bytes)?;
/// assert_eq!(bytes[56..64], 7u64.to_ne_bytes());
/// # Ok::<(), stillpoint_io::ForkError>(())
/// ```
#[derive(Debug)]
pub struct ForkedMemory {
    child: system::Child,
    fork_ns: u64,
}

impl ForkedMemory {
    /// Forks. All earlier writes of the calling thread are in the child's memory. Concurrent writes
    /// of other threads may or may not be.
    ///
    /// # Errors
    /// The system refuses a process or a pipe, or knows no fork.
    pub fn fork() -> Result<Self, ForkError> {
        let start_ns = RealClock.monotonic_ns();
        let child = system::Child::fork()?;
        Ok(Self { child, fork_ns: RealClock.monotonic_ns() - start_ns })
    }

    /// Nanoseconds for which the fork blocked the caller.
    pub fn fork_ns(&self) -> u64 {
        self.fork_ns
    }

    /// The bytes of `memory` at the time of the fork. If `memory` was allocated later, the result
    /// is what was at its address then.
    ///
    /// # Errors
    /// The child has ended (usually killed for lack of memory), or the system does not allow its
    /// memory to be read.
    ///
    /// # Panics
    /// If `bytes` is not as long as `memory`.
    pub fn read<T>(&self, memory: &[T], bytes: &mut [u8]) -> Result<(), ForkError> {
        assert_eq!(bytes.len(), size_of_val(memory), "room for those bytes");
        self.child.read(memory.as_ptr().addr(), bytes)
    }

    /// Bytes of pages copied so far because one side has written to them. Pages that another child
    /// still shares with this one are not counted. 0 if the system does not say. Walks all of the
    /// child's page tables.
    pub fn copied_bytes(&self) -> u64 {
        self.child.copied_bytes()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::ForkError;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::FileExt;
    use std::sync::OnceLock;

    use rustix::io::Errno;
    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    #[derive(Debug)]
    pub(super) struct Child {
        pid: Pid,
        /// End of a pipe. The child ends when the last copy of this end is closed.
        _hold: OwnedFd,
        memory: OnceLock<File>,
    }

    impl Child {
        pub(super) fn fork() -> Result<Self, ForkError> {
            let pipe = pipe_with(PipeFlags::CLOEXEC);
            let (wait, hold) = pipe.map_err(|errno| ForkError::new("make a pipe", errno))?;
            // The child must not run the program's signal handlers.
            let before = block_signals();
            // SAFETY: the child calls nothing but `sleep`, which is made of system calls.
            let forked = unsafe { libc::fork() };
            if forked == 0 {
                sleep(&wait, &hold);
            }
            let failure = io::Error::last_os_error();
            unblock_signals(&before);
            match Pid::from_raw(forked.max(0)) {
                Some(pid) => Ok(Self { pid, _hold: hold, memory: OnceLock::new() }),
                None => Err(ForkError::new("fork", failure)),
            }
        }

        /// Reads by way of a file (proc(5)). `process_vm_readv` would pin the child's pages, and the
        /// system copies each page that is still shared before it is pinned.
        pub(super) fn read(&self, address: usize, bytes: &mut [u8]) -> Result<(), ForkError> {
            let read = self.memory().and_then(|file| file.read_exact_at(bytes, address as u64));
            read.map_err(|error| ForkError::new("read a child's memory", error))
        }

        /// The file of the child's memory, opened at the first read. The system then ends the child, and
        /// not the parent, when memory runs out.
        #[expect(clippy::disallowed_methods, reason = "reads /proc, which is no part of the store")]
        fn memory(&self) -> io::Result<&File> {
            if let Some(file) = self.memory.get() {
                return Ok(file);
            }
            let pid = self.pid.as_raw_nonzero();
            let file = File::open(format!("/proc/{pid}/mem"))?;
            // A refusal leaves the choice to the system.
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
            Ok(self.memory.get_or_init(|| file))
        }

        #[expect(clippy::disallowed_methods, reason = "reads /proc, which is no part of the store")]
        pub(super) fn copied_bytes(&self) -> u64 {
            let path = format!("/proc/{}/smaps_rollup", self.pid.as_raw_nonzero());
            let text = std::fs::read_to_string(path).unwrap_or_default();
            // Pages that parent and child do not share any more (proc(5)).
            let pages = text.lines().filter_map(|line| line.strip_prefix("Private_"));
            let kibibytes =
                pages.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            1024 * kibibytes.sum::<u64>()
        }

        #[cfg(test)]
        pub(super) fn pid(&self) -> Pid {
            self.pid
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // The child holds nothing but memory. A refusal means that the child is gone already.
            let _ = kill_process(self.pid, Signal::KILL);
            while waitpid(Some(self.pid), WaitOptions::empty()).err() == Some(Errno::INTR) {}
        }
    }

    fn block_signals() -> libc::sigset_t {
        // SAFETY: a set of signals is plain data, for which zeros are a value.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: both point to sets that live here.
        unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        }
        before
    }

    fn unblock_signals(before: &libc::sigset_t) {
        // SAFETY: `before` points to a set; none is to be returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }

    /// The child's code, without allocation, lock or destructor.
    fn sleep(wait: &OwnedFd, hold: &OwnedFd) -> ! {
        // Closes all files of the child. Otherwise locks and connections that the parent has closed
        // would stay held. A kernel before 5.9 refuses, and locks and connections stay held.
        let (wait, hold) = (wait.as_raw_fd(), hold.as_raw_fd());
        let fd = wait.unsigned_abs();
        let mut byte = 0u8;
        // SAFETY: these are the child's own files, and nothing here uses them. `byte` has room for
        // the one byte that is read.
        unsafe {
            libc::close(hold);
            if fd > 0 {
                libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
            }
            libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
            // Nobody writes to the pipe, so the read returns when the other end is closed. All
            // signals are blocked.
            libc::read(wait, (&raw mut byte).cast(), 1);
            libc::_exit(0)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::ForkError;
    use std::io::ErrorKind::Unsupported;

    #[derive(Debug)]
    pub(super) enum Child {}

    impl Child {
        pub(super) fn fork() -> Result<Self, ForkError> {
            Err(ForkError::new("keep memory in a child", Unsupported))
        }

        pub(super) fn read(&self, _: usize, _: &mut [u8]) -> Result<(), ForkError> {
            match *self {}
        }

        pub(super) fn copied_bytes(&self) -> u64 {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect()
    }

    #[test]
    fn it_holds_what_was() {
        const WORDS: usize = 4 << 20;
        let cells: Vec<AtomicU32> = (0..WORDS as u32).map(AtomicU32::new).collect();
        let forked = ForkedMemory::fork().expect("fork");
        for cell in &cells[..WORDS / 2] {
            cell.store(7, Relaxed);
        }
        let mut bytes = vec![0; WORDS * 4];
        forked.read(&cells, &mut bytes).expect("read");
        assert!(words(&bytes).into_iter().eq(0..WORDS as u32));
        let other = ForkedMemory::fork().expect("two at a time");
        other.read(&cells, &mut bytes).expect("read");
        assert!(words(&bytes)[..WORDS / 2].iter().all(|&word| word == 7));
        forked.read(&cells[10..11], &mut bytes[..4]).expect("read");
        assert_eq!(words(&bytes)[0], 10);
    }

    #[test]
    fn reading_copies_no_page() {
        const BYTES: u64 = 128 << 20;
        let cells: Vec<AtomicU32> = (0..BYTES as u32 / 4).map(AtomicU32::new).collect();
        let forked = ForkedMemory::fork().expect("fork");
        let mut bytes = vec![0; 1 << 20];
        for cells in cells.chunks(1 << 18) {
            forked.read(cells, &mut bytes).expect("read");
        }
        // The count is of the whole process. Other tests write to their own memory meanwhile, and much
        // less than half of `BYTES`.
        let copied = forked.copied_bytes();
        assert!(copied < BYTES / 2, "{copied} of {BYTES}");
    }

    #[test]
    fn a_child_that_is_gone_is_told_of_and_none_stays_behind() {
        let cells: Vec<AtomicU32> = (0..10).map(AtomicU32::new).collect();
        let forked = ForkedMemory::fork().expect("fork");
        let pid = forked.child.pid();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
        // The child ends at once, or a little later.
        let read = || forked.read(&cells, &mut [0; 40]);
        let error = (0..).find_map(|_| read().err()).expect("at some time").to_string();
        assert!(
            error.contains("cannot read a child's memory") && error.contains("limits"),
            "{error}"
        );
        drop(forked);
        let gone = rustix::process::test_kill_process(pid);
        assert_eq!(gone, Err(rustix::io::Errno::SRCH), "it was waited for");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "reads /proc, which is no part of the store")]
    fn the_system_ends_the_child_first_when_memory_runs_out() {
        let cells: Vec<AtomicU32> = (0..10).map(AtomicU32::new).collect();
        let forked = ForkedMemory::fork().expect("fork");
        forked.read(&cells, &mut [0; 40]).expect("read");
        let path = format!("/proc/{}/oom_score_adj", forked.child.pid().as_raw_nonzero());
        assert_eq!(std::fs::read_to_string(path).expect("it is there").trim(), "1000");
    }

    #[test]
    fn the_child_holds_no_files() {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("a pipe");
        let forked = ForkedMemory::fork().expect("fork");
        drop(write);
        // The end of the pipe comes when nobody has it open any more: the child closes its own a
        // moment after the fork.
        let has_ended = (0..10_000).any(|_| {
            RealClock.sleep(Duration::from_millis(1));
            rustix::io::read(&read, &mut [0]) == Ok(0)
        });
        assert!(has_ended);
        drop(forked);
    }

    #[test]
    fn errors_say_what_to_do() {
        let text = |kind: io::ErrorKind| ForkError::new("fork", kind).to_string();
        assert!(text(io::ErrorKind::PermissionDenied).contains("ptrace_scope"));
        assert!(text(io::ErrorKind::Unsupported).contains("no such call"));
        assert!(text(io::ErrorKind::WouldBlock).contains("raise the limits"));
    }
}
