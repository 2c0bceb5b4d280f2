//! Handles signals, and does periodic work while the server serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;
use stillpoint_io::{Cancel, Clock, JoinHandle, RealClock};

use crate::error::CliError;
use crate::log::Log;

/// Interval of the thread's checks.
const TICK: Duration = Duration::from_millis(50);
/// Checks between two reports of events that the log left out.
const TICKS_PER_SECOND: u32 = 20;
/// Exit code after a second signal, as a shell reports the signal.
const ENDED_BY_SIGNAL: i32 = 128;

/// The ways to end the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    /// Set to end the event loops.
    pub(super) stopping: Arc<AtomicBool>,
    /// Cancels an opening of the store.
    pub(super) opening: Cancel,
}

/// The thread that waits for signals. A drop ends the thread.
pub(super) struct Watch {
    thread: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Installs the server's handling of signals.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn start(ends: Ends, log: Log) -> Result<Self, CliError> {
        let all = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXFSZ];
        let mut signals = Signals::new(all).map_err(CliError::Signals)?;
        let over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&over);
        let thread = stillpoint_io::spawn("signals", move || {
            let mut ticks = 0_u32;
            // Relaxed: `drop` sets the flag, and nothing clears it.
            while !its.load(Ordering::Relaxed) {
                for signal in signals.pending() {
                    heed(signal, &ends, &log);
                }
                RealClock.sleep(TICK);
                ticks += 1;
                if ticks.is_multiple_of(TICKS_PER_SECOND) {
                    log.tell_repeats();
                }
            }
            log.tell_all_repeats();
        });
        let thread = thread.map_err(stillpoint::Error::from)?;
        Ok(Self { thread: Some(thread), over })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Relaxed: its partner is the load in `start`, and no other memory is published.
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already and has no other effect.
            let _ = thread.join();
        }
    }
}

fn heed(signal: i32, ends: &Ends, log: &Log) {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    match signal {
        SIGTERM | SIGINT => {
            // Relaxed: nothing clears the flag, and the event loops read it each turn.
            if ends.stopping.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    signal = name,
                    "ends at once, without waiting for clients or files"
                );
                log.finish();
                std::process::exit(ENDED_BY_SIGNAL + signal);
            }
            tracing::info!(signal = name, "ends: a second one ends it at once");
            ends.opening.cancel();
            super::supervisor::tell(&[sd_notify::NotifyState::Stopping]);
        }
        SIGHUP => log.reopen(),
        // With the signal ignored, a write beyond the limit returns an error, as on a full disk.
        SIGXFSZ => tracing::error!("a file may not grow further (ulimit -f)"),
        _ => tracing::info!(signal = name, "a signal that means nothing here"),
    }
}
