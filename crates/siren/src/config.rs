//! What a store is told when it is opened.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::registry::{Named, Registry};
use stillpoint_io::{Clock, Pace, RealClock, RealRng, Rng};

/// What becomes of a tuple that is removed from a frozen page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removes {
    /// The tuple stays in memory until its page has been copied.
    Pend,
    /// The tuple goes to a page of pending removes of the same checkpoint.
    ToPages,
    /// The tuple goes at once: pages change in place, also while they are copied. This is a fuzzy
    /// checkpoint, the rival of the paper's §5. The log has before-images, too. The store is for
    /// measurements alone, and is not opened again: the paper did not build the rival's recovery.
    AtOnce,
}

/// A form of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    name: &'static str,
    about: &'static str,
    /// What becomes of a tuple that is removed from a frozen page.
    pub removes: Removes,
}

impl Named for Row {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name)
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

impl Row {
    /// The row's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The forms of the checkpoint, by name.
pub static ROWS: Registry<Row> = Registry::new(
    "SIREN checkpoint",
    &[
        Row {
            name: "siren",
            about: "consistent pages; removed tuples stay until their page is copied",
            removes: Removes::Pend,
        },
        Row {
            name: "siren-semi-fuzzy",
            about: "removed tuples go to pages of the same checkpoint",
            removes: Removes::ToPages,
        },
    ],
);

/// How operations are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logging {
    /// Not at all: a start finds the newest checkpoint.
    None,
    /// A commit does not wait for its log.
    Relaxed,
    /// A commit returns when its log is flushed.
    Strict,
}

impl Logging {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::None, Self::Relaxed, Self::Strict];
}

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// What becomes of a tuple that is removed from a frozen page.
    pub removes: Removes,
    /// How operations are logged.
    pub logging: Logging,
    /// Bytes of a disk page: a multiple of 4096, at most 1 MiB. A store keeps those of its creation.
    pub page_bytes: u32,
    /// A page with more than this share of its bytes is split, in percent.
    pub fill_percent: u32,
    /// Page buffers of a checkpoint.
    pub page_buffers: usize,
    /// How fast a checkpoint copies and writes.
    pub pace: Pace,
    /// Most sessions at a time.
    pub sessions: usize,
    /// Threads that read the pages of a checkpoint at the start.
    pub recovery_threads: usize,
    /// Longest wait for a lock.
    pub lock_timeout: Duration,
    /// Greatest age of a transaction.
    pub transaction_age_max: Duration,
    /// Most bytes of the keys and values that one transaction has written.
    pub transaction_bytes_max: usize,
    /// Log since the last checkpoint at which the next one is due, in bytes.
    pub checkpoint_log_bytes: u64,
    /// Bytes of pending removes, beyond which writers wait for the disk. Each write waits for at most
    /// [`slow_down_max`](Self::slow_down_max).
    pub removes_bytes_max: usize,
    /// Longest wait of a write for the pages of pending removes.
    pub slow_down_max: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers, for the identity of a new store.
    pub rng: Arc<dyn Rng>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            removes: Removes::ToPages,
            logging: Logging::Strict,
            page_bytes: 16 << 10,
            fill_percent: 100,
            page_buffers: 16,
            pace: Pace::Unpaced,
            sessions: 64,
            recovery_threads: 2,
            lock_timeout: Duration::from_secs(1),
            transaction_age_max: Duration::from_secs(3600),
            transaction_bytes_max: 64 << 20,
            checkpoint_log_bytes: 64 << 20,
            removes_bytes_max: 1 << 20,
            slow_down_max: Duration::from_millis(10),
            clock: Arc::new(RealClock),
            rng: Arc::new(RealRng),
        }
    }
}
