//! Named threads, whose panics become errors of `join`, with core affinity and priority.

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;

#[cfg(target_os = "linux")]
use crate::slice;

/// The reason why a thread has no result.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The system refused another thread.
    #[error(
        "cannot start thread {name}: {source}; raise the limit on threads or use fewer workers"
    )]
    Start {
        /// The thread's name.
        name: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The thread panicked.
    #[error("thread {name} panicked: {message}")]
    Panicked {
        /// The thread's name.
        name: String,
        /// The panic's message.
        message: String,
    },
}

/// A running thread. Dropping the handle lets the thread run on.
#[derive(Debug)]
#[must_use = "join it, or its panic goes unseen"]
pub struct JoinHandle<T> {
    name: String,
    inner: std::thread::JoinHandle<T>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread and returns its result, or its panic as an error.
    ///
    /// # Errors
    /// [`ThreadError::Panicked`], with the panic's message.
    pub fn join(self) -> Result<T, ThreadError> {
        let Self { name, inner } = self;
        inner.join().map_err(|payload| ThreadError::Panicked { name, message: message(&*payload) })
    }

    /// Whether the thread has ended. [`join`](Self::join) then returns at once.
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Starts a thread. Debuggers and `top` show the first 15 bytes of its name.
///
/// # Errors
/// The system refuses the thread: no memory, no address space, or too many threads.
///
/// ```
/// let worker = stillpoint_io::spawn("worker-0", || 6 * 7)?;
/// assert_eq!(worker.join()?, 42);
/// # Ok::<(), stillpoint_io::ThreadError>(())
/// ```
#[expect(clippy::disallowed_methods, reason = "this is the spawn that the lint points to")]
pub fn spawn<T, F>(name: &str, f: F) -> Result<JoinHandle<T>, ThreadError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let name = name.replace('\0', "?");
    match std::thread::Builder::new().name(name.clone()).spawn(f) {
        Ok(inner) => Ok(JoinHandle { name, inner }),
        Err(source) => Err(ThreadError::Start { name, source }),
    }
}

/// Runs `f` and turns its panic into an error that names `name`.
///
/// The caller must assume that data which `f` was changing is half changed.
///
/// ```
/// let ended = stillpoint_io::catch_panic("divider", || 1 / std::hint::black_box(0));
/// assert!(ended.unwrap_err().to_string().starts_with("thread divider panicked"));
/// ```
///
/// # Errors
/// [`ThreadError::Panicked`].
pub fn catch_panic<T>(name: &str, f: impl FnOnce() -> T) -> Result<T, ThreadError> {
    std::panic::catch_unwind(AssertUnwindSafe(f)).map_err(|payload| ThreadError::Panicked {
        name: name.to_owned(),
        message: message(&*payload),
    })
}

/// The text of a panic's payload.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(a panic without text)".to_owned()
    }
}

/// Cores that this process may use; at least 1.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Binds the calling thread to the `n`-th of the cores that it may use now, counted from 0 and
/// going round after the last one. A thread bound once has a single core left, so call this in
/// each thread for itself.
///
/// # Errors
/// When the system refuses, or has no such call.
pub fn pin_to_core(n: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let usable = sched_getaffinity(None)?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| usable.is_set(core)).collect();
        let Some(&core) = cores.get(n % cores.len().max(1)) else {
            return Err(io::Error::other("the system names no core for this thread"));
        };
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)?;
        Ok(())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = n;
        Err(io::Error::new(io::ErrorKind::Unsupported, "no thread placement on this system"))
    }
}

/// Nice value of threads that go behind.
const BEHIND: i32 = 2;

/// Short slices, in nanoseconds: the least that the scheduler grants.
const SLICE_NS: u64 = 100_000;

/// Nice value of threads that go far behind.
const FAR_BEHIND: i32 = 10;

/// Lowers the priority of the calling thread, and of threads that it starts (nice value 2). On a
/// contended core such threads get about 40 % of the time, and on an idle core all of it. If the
/// scheduler has slices, a waking thread preempts them without a wait for the next tick, see
/// [`is_interrupted_soon`]. Does nothing on a system without priorities of threads.
pub fn go_behind() {
    lower_priority(BEHIND);
}

/// As [`go_behind`], for work that nobody waits for (nice value 10). On a contended core such threads
/// get about 10 % of the time.
pub fn go_far_behind() {
    lower_priority(FAR_BEHIND);
}

/// Gives the calling thread this nice value and short slices. A lower priority stays.
fn lower_priority(to: i32) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let this = Some(rustix::thread::gettid());
        // After a refusal the priority stays unchanged, which only makes answers slower.
        if getpriority_process(this).is_ok_and(|nice| nice < to) {
            let _ = setpriority_process(this, to);
        }
        ask_for_short_slices();
    }
    #[cfg(not(target_os = "linux"))]
    let _ = to;
}

/// Requests the shortest time slices for the calling thread. Short slices suit a thread that sleeps
/// often and must answer soon. On its wake-up such a thread preempts threads with longer slices at
/// once. The thread's share of the core stays the same. Does nothing on a system without slices of
/// threads (Linux has them from 6.12 on).
pub fn ask_for_short_slices() {
    // After a refusal the slices stay unchanged, which only makes answers slower.
    #[cfg(target_os = "linux")]
    if let Ok(nice) = rustix::process::getpriority_process(Some(rustix::thread::gettid())) {
        slice::ask(nice, SLICE_NS);
    }
}

/// Whether a thread that wakes up on the calling thread's core waits for at most a tenth of a
/// millisecond. The wait is so short if the caller has [short slices](ask_for_short_slices), on
/// Linux 6.12 or later. Elsewhere a thread with long work must rest now and then, or others wait
/// milliseconds for the scheduler's tick.
pub fn is_interrupted_soon() -> bool {
    #[cfg(target_os = "linux")]
    {
        slice::granted().is_some_and(|slice_ns| slice_ns <= SLICE_NS)
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_name_and_text() {
        let thread = spawn("doomed", || panic!("number {}", 3)).expect("thread starts");
        let error = thread.join().expect_err("it panicked");
        assert_eq!(error.to_string(), "thread doomed panicked: number 3");
        let thread = spawn("curt", || std::panic::panic_any(5u8)).expect("thread starts");
        let error = thread.join().expect_err("it panicked");
        assert_eq!(error.to_string(), "thread curt panicked: (a panic without text)");
    }

    #[test]
    fn a_thread_carries_its_name_even_a_bad_one() {
        let thread = spawn("a\0b", || std::thread::current().name().map(str::to_owned))
            .expect("thread starts");
        assert_eq!(thread.name(), "a?b");
        assert_eq!(thread.join().expect("no panic").as_deref(), Some("a?b"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_goes_behind_takes_its_own_threads_along_and_nobody_else() {
        use rustix::process::getpriority_process;
        let nice = || getpriority_process(Some(rustix::thread::gettid())).expect("a priority");
        let own = nice();
        let behind = spawn("behind", move || {
            go_behind();
            let child = spawn("child", nice).expect("thread starts").join().expect("no panic");
            let first = nice();
            go_far_behind();
            let far = nice();
            go_behind();
            (first, child, far, nice())
        });
        let of_thread = behind.expect("thread starts").join().expect("no panic");
        let (near, far) = (own.max(BEHIND), own.max(FAR_BEHIND));
        assert_eq!(of_thread, (near, near, far, far), "a lower priority stays");
        assert_eq!(nice(), own);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn short_slices_interrupt_soon_where_they_are_known_with_its_own_threads() {
        let slices = slice::granted().is_some();
        assert!(!is_interrupted_soon(), "a thread like any other");
        for ask in [go_behind, ask_for_short_slices] {
            let short = spawn("short", move || {
                ask();
                let child = spawn("child", is_interrupted_soon).expect("thread starts");
                (is_interrupted_soon(), child.join().expect("no panic"))
            });
            let short = short.expect("thread starts").join().expect("no panic");
            assert_eq!(short, (slices, slices));
        }
        assert!(!is_interrupted_soon(), "and nobody else");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pinning_leaves_one_core() {
        for n in [0, 1, 1_000_003] {
            let cores = spawn("pinned", move || {
                pin_to_core(n).map(|()| std::thread::available_parallelism().map_or(0, usize::from))
            })
            .expect("thread starts")
            .join()
            .expect("no panic");
            assert_eq!(cores.expect("pinned"), 1);
        }
        assert!(cpu_count() >= 1);
    }
}
