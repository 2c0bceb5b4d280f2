//! The progress of loading: the loading thread writes it, and clients ask for it.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::Progress;
use stillpoint_io::Clock;

/// The progress of loading.
#[derive(Debug)]
pub(crate) struct LoadingProgress {
    clock: Arc<dyn Clock>,
    pub(crate) port: u16,
    pub(crate) started_ms: u64,
    now: Mutex<Option<Progress>>,
}

impl LoadingProgress {
    pub(crate) fn new(clock: Arc<dyn Clock>, port: u16) -> Self {
        let started_ms = clock.wall_ms();
        Self { clock, port, started_ms, now: Mutex::default() }
    }

    pub(crate) fn tell(&self, progress: &Progress) {
        *self.now.lock() = Some(*progress);
    }

    /// The progress at present; `None` before the first file is read.
    pub(crate) fn now(&self) -> Option<Progress> {
        *self.now.lock()
    }

    /// Seconds since loading began.
    pub(crate) fn uptime_s(&self) -> u64 {
        self.clock.wall_ms().saturating_sub(self.started_ms) / 1000
    }
}
