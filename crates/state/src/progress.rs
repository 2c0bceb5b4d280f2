//! How far the writer and the logger have come. Any thread may read these numbers at any time.

use parking_lot::Mutex;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::error::StateError;

/// Numbers of a state on a disk.
///
/// All numbers but the durable tick are Relaxed: each is a figure of its own, and publishes no
/// other memory.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) blocks_done: AtomicU64,
    pub(crate) blocks_total: AtomicU64,
    pub(crate) images: AtomicU64,
    failures: AtomicU64,
    failures_in_a_row: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) image_ns: AtomicU64,
    pub(crate) writer_cpu_ns: AtomicU64,
    pub(crate) fork_ns: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    image_tick: AtomicU64,
    durable_tick: AtomicU64,
    pub(crate) logged_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    last_failure: Mutex<Option<StateError>>,
}

/// The numbers of a [`Progress`] at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProgressSnapshot {
    /// Blocks of the image under way that are written. Equal to `blocks_total` once the image is
    /// durable.
    pub blocks_done: u64,
    /// All blocks of the image under way.
    pub blocks_total: u64,
    /// Images that became durable since the state was opened.
    pub images: u64,
    /// Captures that failed.
    pub failures: u64,
    /// Captures that failed since the last durable image.
    pub failures_in_a_row: u64,
    /// The reason of the last failure.
    pub last_failure: Option<StateError>,
    /// Bytes of images written.
    pub written_bytes: u64,
    /// Nanoseconds that the last durable image took, from when the writer took it up. The writer
    /// looks for a capture every millisecond, and its thread has a low priority.
    pub image_ns: u64,
    /// CPU time of the writer's thread, in nanoseconds.
    pub writer_cpu_ns: u64,
    /// Nanoseconds that fork took for the last durable image; 0 for other schemes.
    pub fork_ns: u64,
    /// Bytes of pages that the system copied while that image was taken; 0 for other schemes.
    pub copied_bytes: u64,
    /// Tick of the last durable image.
    pub image_tick: u64,
    /// All ticks up to this one survive any crash.
    pub durable_tick: u64,
    /// Bytes of actions written, headers and padding included.
    pub logged_bytes: u64,
    /// Flushes of the log of actions.
    pub flushes: u64,
}

impl Progress {
    /// The numbers now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        ProgressSnapshot {
            blocks_done: load(&self.blocks_done),
            blocks_total: load(&self.blocks_total),
            images: load(&self.images),
            failures: load(&self.failures),
            failures_in_a_row: self.failures_in_a_row(),
            last_failure: self.last_failure(),
            written_bytes: load(&self.written_bytes),
            image_ns: load(&self.image_ns),
            writer_cpu_ns: load(&self.writer_cpu_ns),
            fork_ns: load(&self.fork_ns),
            copied_bytes: load(&self.copied_bytes),
            image_tick: load(&self.image_tick),
            durable_tick: self.durable_tick(),
            logged_bytes: load(&self.logged_bytes),
            flushes: load(&self.flushes),
        }
    }

    /// All ticks up to this one survive any crash.
    pub fn durable_tick(&self) -> u64 {
        self.durable_tick.load(Acquire) // pairs with the Release in `ticks_are_durable`
    }

    /// Ticks up to this one are durable, in the log or in an image.
    pub(crate) fn ticks_are_durable(&self, tick: u64) {
        self.durable_tick.fetch_max(tick, Release); // pairs with the Acquire in `durable_tick`
    }

    pub(crate) fn image_is_durable(&self, tick: u64) {
        self.image_tick.store(tick, Relaxed);
        self.images.fetch_add(1, Relaxed);
        self.failures_in_a_row.store(0, Relaxed);
        self.ticks_are_durable(tick);
    }

    pub(crate) fn starts_from(&self, image_tick: u64, tick: u64) {
        self.image_tick.store(image_tick, Relaxed);
        self.ticks_are_durable(tick);
    }

    pub(crate) fn capture_failed(&self, error: StateError) {
        *self.last_failure.lock() = Some(error);
        self.failures.fetch_add(1, Relaxed);
        self.failures_in_a_row.fetch_add(1, Relaxed);
    }

    pub(crate) fn failures_in_a_row(&self) -> u64 {
        self.failures_in_a_row.load(Relaxed)
    }

    pub(crate) fn last_failure(&self) -> Option<StateError> {
        self.last_failure.lock().clone()
    }

    pub(crate) fn set(counter: &AtomicU64, value: u64) {
        counter.store(value, Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Relaxed);
    }
}
