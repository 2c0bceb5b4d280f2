//! Tests with two engines on the same directory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint::{Config, Engine, Error};
use stillpoint_io::{Clock, Disk, ManualClock, SimDisk};

/// A clock that moves by itself. The holder of the directory releases it after some sleeps of the
/// other engine.
#[derive(Debug)]
struct Patience {
    time: ManualClock,
    sleeps_left: AtomicU32,
    holder: Mutex<Option<Engine>>,
}

impl Clock for Patience {
    fn monotonic_ns(&self) -> u64 {
        self.time.monotonic_ns()
    }

    fn wall_ms(&self) -> u64 {
        self.time.wall_ms()
    }

    fn sleep(&self, duration: Duration) {
        if self.sleeps_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.holder.lock() = None;
        }
        self.time.sleep(duration);
    }
}

fn config(disk: &Arc<dyn Disk>, clock: Arc<dyn Clock>) -> Config {
    let mut config = Config::new("unused");
    config.environment.disk = Some(Arc::clone(disk));
    config.environment.clock = clock;
    config.environment.background = false;
    config
}

/// Opens a directory that stays in use for `sleeps` sleeps. Also returns the time of the wait.
fn open(sleeps: u32, lock_wait: Duration) -> (Result<Engine, Error>, Duration) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let idle = Arc::new(ManualClock::self_advancing(0));
    let holder = Engine::open(config(&disk, idle)).expect("an empty directory");
    let patience = Arc::new(Patience {
        time: ManualClock::self_advancing(0),
        sleeps_left: AtomicU32::new(sleeps),
        holder: Mutex::new(Some(holder)),
    });
    let mut config = config(&disk, Arc::clone(&patience) as Arc<_>);
    config.lock_wait = lock_wait;
    let opened = Engine::open(config);
    (opened, Duration::from_nanos(patience.monotonic_ns()))
}

#[test]
fn who_lets_go_soon_enough_is_waited_for() {
    let (opened, waited) = open(20, Duration::from_secs(2));
    opened.expect("the directory is free");
    assert!(waited > Duration::ZERO && waited < Duration::from_secs(2), "{waited:?}");
}

#[test]
fn who_does_not_is_named_after_the_wait() {
    for lock_wait in [Duration::ZERO, Duration::from_secs(2)] {
        let (opened, waited) = open(u32::MAX, lock_wait);
        let error = opened.expect_err("in use");
        assert!(matches!(&error, Error::InUse(dir) if dir != Path::new("")), "{error}");
        assert!(error.to_string().contains("is in use by another process: stop it"), "{error}");
        assert!(waited >= lock_wait && waited < lock_wait + Duration::from_millis(100));
    }
}
