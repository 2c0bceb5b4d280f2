//! Models of the protocol under loom (every schedule of a few threads) and shuttle (random
//! schedules of more). The models check that there are never two leaders, that no answer comes
//! before the flush that covers it, and that nobody waits for ever.

use std::collections::VecDeque;

use stillpoint_format::{LogGsn, Stamp};
use stillpoint_sync::atomic::{AtomicU64, Ordering};

use super::GroupCommit;
use crate::closing::{Closing, Named};
use crate::monitor::Monitor;

#[cfg(loom)]
use loom::{sync::Arc, thread};
#[cfg(shuttle)]
use shuttle::{sync::Arc, thread};

#[cfg(loom)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    loom::model(model);
}

#[cfg(shuttle)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(model, 20_000);
}

/// A log without a disk.
struct ToyLog {
    /// Last gsn, and the dependencies of records that no leader has taken yet.
    append: Monitor<(u64, VecDeque<Named>)>,
    group: GroupCommit,
    leaders: AtomicU64,
    failed: AtomicU64,
}

struct Toy {
    logs: Vec<ToyLog>,
    closing: Closing,
}

impl Toy {
    fn new(logs: u8) -> Arc<Self> {
        let log = |_| ToyLog {
            append: Monitor::new((0, VecDeque::new())),
            group: GroupCommit::new(),
            leaders: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Arc::new(Toy { logs: (0..logs).map(log).collect(), closing: Closing::new(logs, 0) })
    }

    fn append(&self, log: u8, on: Option<Stamp>) -> Stamp {
        let mut state = self.logs[usize::from(log)].append.lock();
        let gsn = state.0.max(on.map_or(0, Stamp::gsn)) + 1;
        state.0 = gsn;
        if let Some(on) = on.filter(|on| on.log() != log && !self.closing.is_closed(*on)) {
            let on = LogGsn { log: on.log(), gsn: on.gsn() };
            state.1.push_back(Named { gsn, on });
        }
        Stamp::new(gsn, log)
    }

    fn lead(&self, log: u8, fail: bool) -> Result<(), ()> {
        let of = &self.logs[usize::from(log)];
        assert_eq!(of.leaders.fetch_add(1, Ordering::SeqCst), 0, "two leaders at once");
        let (gsn, named) = {
            let mut state = of.append.lock();
            (state.0, std::mem::take(&mut state.1))
        };
        let done = if fail {
            of.failed.store(1, Ordering::SeqCst);
            Err(())
        } else {
            self.closing.record_flushed(log, gsn, named.into_iter());
            Ok(())
        };
        of.leaders.fetch_sub(1, Ordering::SeqCst);
        done
    }

    fn flush_to(&self, log: u8, gsn: u64, fail: bool) -> Result<(), ()> {
        let of = &self.logs[usize::from(log)];
        let done = || match of.failed.load(Ordering::SeqCst) {
            _ if self.closing.flushed(log) >= gsn => Ok(true),
            0 => Ok(false),
            _ => Err(()),
        };
        of.group.until(done, || self.lead(log, fail))
    }

    fn make_closed(&self, stamp: Stamp) {
        while let Some(next) = self.closing.blocker(stamp) {
            assert_eq!(self.flush_to(next.log, next.gsn, false), Ok(()));
        }
        assert!(self.closing.is_closed(stamp));
    }
}

#[test]
fn every_waiter_is_covered_and_none_is_forgotten() {
    explore(|| {
        let toy = Toy::new(1);
        let client = |toy: Arc<Toy>| {
            move || {
                let stamp = toy.append(0, None);
                assert_eq!(toy.flush_to(0, stamp.gsn(), false), Ok(()));
                assert!(toy.closing.flushed(0) >= stamp.gsn());
            }
        };
        let other = thread::spawn(client(toy.clone()));
        let third = thread::spawn(client(toy.clone()));
        client(toy.clone())();
        other.join().expect("no panic");
        third.join().expect("no panic");
        assert_eq!(toy.closing.closed(0), 3);
    });
}

#[test]
fn a_failed_leader_fails_everybody_and_leaves_nobody_waiting() {
    explore(|| {
        let toy = Toy::new(1);
        let client = |toy: Arc<Toy>| {
            move || {
                let stamp = toy.append(0, None);
                assert_eq!(toy.flush_to(0, stamp.gsn(), true), Err(()));
            }
        };
        let other = thread::spawn(client(toy.clone()));
        client(toy.clone())();
        other.join().expect("no panic");
        assert_eq!(toy.closing.flushed(0), 0);
    });
}

#[test]
fn logs_that_depend_on_each_other_close_each_other() {
    explore(|| {
        let toy = Toy::new(2);
        let first = toy.append(0, None);
        let second = toy.append(1, Some(first));
        let other = {
            let toy = toy.clone();
            thread::spawn(move || {
                let third = toy.append(0, Some(second));
                toy.make_closed(third);
            })
        };
        toy.make_closed(second);
        assert!(toy.closing.is_closed(first), "what it rests on is closed");
        other.join().expect("no panic");
        assert_eq!((toy.closing.closed(0), toy.closing.closed(1)), (3, 2));
    });
}
