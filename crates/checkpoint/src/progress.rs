//! The progress of a checkpoint or of a load: numbers that any thread may read at any time.

use stillpoint_format::names::CheckpointKind;
use stillpoint_io::Pace;
use stillpoint_store::Phase;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Numbers of a checkpoint or load under way, and the way to cancel it.
///
/// All counters are Relaxed: each is a figure of its own, and nothing else is published by them.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) phase: AtomicU64,
    /// 0 until the kind is chosen, 1 for a full checkpoint, 2 for one of changes.
    kind: AtomicU64,
    pub(crate) epoch: AtomicU64,
    pub(crate) units_done: AtomicU64,
    pub(crate) units_total: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) started_ns: AtomicU64,
    /// The pace that was set while the checkpoint is under way, in bytes per second: 0 if none was,
    /// and `UNPACED` without a limit.
    pace: AtomicU64,
    cancelled: AtomicBool,
}

const UNPACED: u64 = u64::MAX;

/// The numbers of a [`Progress`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressSnapshot {
    /// Phase of the checkpoint; [`Phase::Rest`] while none is under way.
    pub phase: Phase,
    /// Kind of the checkpoint, once it is chosen. `None` for a load or a merge.
    pub kind: Option<CheckpointKind>,
    /// Epoch of the checkpoint; 0 before the first.
    pub epoch: u64,
    /// Slabs captured, or file ranges loaded.
    pub units_done: u64,
    /// All slabs, or all file ranges. 0 while the number is not known.
    pub units_total: u64,
    /// Records taken (counted when their block is full) or loaded.
    pub records: u64,
    /// Bytes of the records, in plain form.
    pub bytes: u64,
    /// Bytes written to the disk, or read from it.
    pub written_bytes: u64,
    /// Monotonic clock when the checkpoint began, in nanoseconds. 0 before the first begins.
    pub started_ns: u64,
}

impl Progress {
    /// Notes that a checkpoint begins.
    pub(crate) fn begin(&self, epoch: u64, now_ns: u64) {
        Self::set(&self.epoch, epoch);
        Self::set(&self.kind, 0);
        Self::set(&self.units_done, 0);
        Self::set(&self.units_total, 0);
        Self::set(&self.started_ns, now_ns);
    }

    /// Notes the kind of the checkpoint.
    pub(crate) fn choose(&self, kind: CheckpointKind) {
        let number = match kind {
            CheckpointKind::Full => 1,
            CheckpointKind::Partial => 2,
        };
        Self::set(&self.kind, number);
    }

    /// Changes the pace of the checkpoint or merge under way. A capture for which commits wait has no
    /// pace.
    pub fn change_pace(&self, pace: Pace) {
        let rate = match pace {
            Pace::Unpaced => UNPACED,
            Pace::BytesPerSecond(rate) => rate.clamp(1, UNPACED - 1),
        };
        Self::set(&self.pace, rate);
    }

    /// The pace that was set last, or the one with which the checkpoint or merge began.
    pub(crate) fn pace(&self, at_begin: Pace) -> Pace {
        match self.pace.load(Relaxed) {
            0 => at_begin,
            UNPACED => Pace::Unpaced,
            rate => Pace::BytesPerSecond(rate),
        }
    }

    /// Cancels the checkpoint or load under way, which then returns an error that says so. A
    /// cancelled progress stays so: a later checkpoint or load with it is cancelled at once.
    pub fn cancel(&self) {
        self.cancelled.store(true, Release);
    }

    /// True once [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    /// The numbers now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let phase = match load(&self.phase) {
            0 => Phase::Rest,
            1 => Phase::Prepare,
            2 => Phase::Resolve,
            3 => Phase::Capture,
            _ => Phase::Complete,
        };
        let kind = match load(&self.kind) {
            0 => None,
            1 => Some(CheckpointKind::Full),
            _ => Some(CheckpointKind::Partial),
        };
        ProgressSnapshot {
            phase,
            kind,
            epoch: load(&self.epoch),
            units_done: load(&self.units_done),
            units_total: load(&self.units_total),
            records: load(&self.records),
            bytes: load(&self.bytes),
            written_bytes: load(&self.written_bytes),
            started_ns: load(&self.started_ns),
        }
    }

    pub(crate) fn set(counter: &AtomicU64, value: u64) {
        counter.store(value, Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Relaxed);
    }
}
