//! Wakes an event loop at a moment given in nanoseconds.
//!
//! The timeout of `epoll_wait` counts milliseconds, far too coarse for an open loop of 100,000
//! requests a second. A timer descriptor counts nanoseconds.

use std::io;

use mio::{Poll, Token};

/// A timer descriptor. A poll reports the descriptor as readable at the given moment.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Alarm {
    timer: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Alarm {
    pub(super) fn new(poll: &Poll, token: Token) -> io::Result<Alarm> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        use std::os::fd::AsRawFd;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let mut source = mio::unix::SourceFd(&timer.as_raw_fd());
        poll.registry().register(&mut source, token, mio::Interest::READABLE)?;
        Ok(Alarm { timer })
    }

    /// Sets the moment and replaces an earlier one.
    pub(super) fn set(&self, at_ns: u64) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let at = Timespec {
            tv_sec: (at_ns / 1_000_000_000) as i64,
            tv_nsec: (at_ns % 1_000_000_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

/// Other systems have no timer descriptor; there the poll's timeout of a millisecond must do.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(super) fn new(_poll: &Poll, _token: Token) -> io::Result<Alarm> {
        Ok(Alarm)
    }

    pub(super) fn set(&self, _at_ns: u64) -> io::Result<()> {
        Ok(())
    }
}
