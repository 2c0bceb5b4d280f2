//! The threads of the writer and the logger.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{JoinHandle, Meter, Pace, WriteBehind, go_behind, spawn};

use crate::capture::Capture;
use crate::config::{Config, Every};
use crate::error::StateError;
use crate::files::Files;
use crate::logger::{self, LogWriter};
use crate::mailbox::Mailbox;
use crate::progress::Progress;
use crate::scheme::{Content, Scheme};
use crate::writer::{Advance, ImageWriter, WRITES};

/// The writer's pause after a failure. Each further failure in a row doubles the pause, up to the
/// maximum.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
const AFTER_FAILURES_MAX: Duration = Duration::from_secs(60);

/// The writer and the logger: threads of their own, or objects that the caller advances.
#[derive(Debug)]
pub(crate) enum BackgroundWork<S: Scheme> {
    Threads { writer: Option<JoinHandle<()>>, logger: Option<JoinHandle<()>> },
    Own { writer: Box<ImageWriter<S>>, log: Option<LogWriter>, every: Every },
}

pub(crate) fn start_threads<S: Scheme>(
    files: &Arc<Files>,
    progress: &Arc<Progress>,
    mailbox: &Arc<Mailbox<S>>,
    config: &Config,
    writer: ImageWriter<S>,
    log: Option<LogWriter>,
) -> Result<BackgroundWork<S>, StateError> {
    let (every, pace, interval) = (config.every, config.pace, config.flush_interval);
    let writer = (S::CONTENT != Content::Nothing).then(|| {
        let (files, mailbox, progress) = (files.clone(), mailbox.clone(), progress.clone());
        let mut writer = writer;
        writer.set_behind(WriteBehind::start("state-image", WRITES)?);
        let thread = WriterThread { files, mailbox, progress, every, pace };
        spawn("state-writer", move || thread.run(writer))
    });
    let writer = writer.transpose()?;
    let logger = log.map(|log| spawn("state-logger", move || logger::run(log, interval)));
    match logger.transpose() {
        Ok(logger) => Ok(BackgroundWork::Threads { writer, logger }),
        Err(error) => {
            mailbox.stop();
            if let Some(writer) = writer {
                let _ = writer.join();
            }
            Err(error.into())
        }
    }
}

/// The writer's thread.
struct WriterThread<S: Scheme> {
    files: Arc<Files>,
    mailbox: Arc<Mailbox<S>>,
    progress: Arc<Progress>,
    every: Every,
    pace: Pace,
}

/// The drop of this value in a writer that panics ends all waits for the writer, and the next tick
/// returns an error.
struct TellOnPanic<S: Scheme>(Arc<Mailbox<S>>);

impl<S: Scheme> Drop for TellOnPanic<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.die();
        }
    }
}

impl<S: Scheme> WriterThread<S> {
    fn run(self, mut writer: ImageWriter<S>) {
        let _guard = TellOnPanic(self.mailbox.clone());
        go_behind();
        let mut may_begin_ns = 0;
        while let Some(capture) = self.wait(may_begin_ns) {
            let begun_ns = self.files.now_ns();
            writer.begin(capture);
            let is_durable = self.write(&mut writer, begun_ns);
            self.mailbox.tell_ended();
            may_begin_ns = match self.every {
                Every::Interval(interval) => begun_ns.saturating_add(nanos(interval)),
                Every::Continuous | Every::OnRequest => 0,
            };
            if !is_durable {
                let pause_ns = nanos(after_failures(self.progress.failures_in_a_row()));
                may_begin_ns = may_begin_ns.max(self.files.now_ns().saturating_add(pause_ns));
            }
        }
    }

    /// Waits for the next capture, and asks the mutator for one in time; `None` at the end.
    fn wait(&self, may_begin_ns: u64) -> Option<Capture<S>> {
        loop {
            if self.mailbox.stops() {
                return None;
            }
            if let Some(capture) = self.mailbox.take() {
                return Some(capture);
            }
            if self.every != Every::OnRequest && self.files.now_ns() >= may_begin_ns {
                self.mailbox.want(true);
            }
            self.mailbox.wait_for_look();
        }
    }

    /// Writes an image; false if that failed, or if the end of the thread cut it short.
    fn write(&self, writer: &mut ImageWriter<S>, begun_ns: u64) -> bool {
        loop {
            match writer.advance() {
                Ok(Advance::Wrote { bytes }) => self.keep_pace(bytes, begun_ns),
                Ok(Advance::Durable { .. }) => return true,
                Ok(Advance::Idle) | Err(_) => return false,
            }
            if self.mailbox.stops() {
                return false;
            }
        }
    }

    fn keep_pace(&self, bytes: u64, begun_ns: u64) {
        let clock = self.files.environment.clock.clone();
        let is_called = || self.mailbox.stops() || self.mailbox.is_urgent();
        Meter::since(self.pace, clock, begun_ns).wait(|| bytes, is_called);
    }
}

/// The pause after a number of failures in a row.
fn after_failures(failures: u64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    AFTER_FAILURE.saturating_mul(1 << doublings).min(AFTER_FAILURES_MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses =
            [1, 2, 3, 10, 11, u64::MAX].map(|failures| after_failures(failures).as_millis());
        assert_eq!(pauses, [100, 200, 400, 51_200, 60_000, 60_000]);
    }
}
