//! The physical point of consistency: the time in which no commit begins, and what is done in it.

use std::sync::Arc;

use stillpoint_io::{Clock, JoinHandle, spawn};
use stillpoint_store::{Checkpointer, HeldTransactions, PointOfConsistency, Quiesced, Store};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::walk::Slots;
use super::{Cycle, ran};
use crate::error::CheckpointError;

/// What a physical point of consistency waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuiesceFor {
    /// Commits under way. An open transaction has changed nothing, so it may stay open.
    #[default]
    Commits,
    /// Open transactions, as published (CALC, SIGMOD 2016, §4.1.4). New ones do not begin meanwhile.
    /// Schemes that were published with a physical point of consistency have one.
    Transactions,
}

impl QuiesceFor {
    /// How the point of consistency of a scheme then comes about.
    pub fn point_of(self, scheme: &dyn Checkpointer) -> PointOfConsistency {
        match self {
            Self::Commits => scheme.point_of_consistency(),
            Self::Transactions => scheme.published_point(),
        }
    }
}

/// The time in which no commit begins.
pub(super) struct Stop<'a> {
    clock: &'a dyn Clock,
    held: Option<HeldTransactions<'a>>,
    quiesced: Option<Quiesced<'a>>,
    since_ns: u64,
    pub(super) stopped_ns: u64,
}

impl<'a> Stop<'a> {
    pub(super) fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, held: None, quiesced: None, since_ns: 0, stopped_ns: 0 }
    }

    /// Waits for open transactions, if the cycle says so, and holds new ones. Called before flushes of
    /// tables are kept away: an open transaction may wait for one.
    ///
    /// # Errors
    /// The checkpoint was cancelled during the wait.
    pub(super) fn hold(&mut self, cycle: &'a Cycle) -> Result<(), CheckpointError> {
        if cycle.quiesce_for == QuiesceFor::Transactions && self.held.is_none() {
            self.since_ns = self.clock.monotonic_ns();
            let gives_up = || cycle.progress.is_cancelled();
            let held = cycle.store.hold_transactions(&gives_up);
            self.held = Some(held.ok_or(CheckpointError::Cancelled)?);
        }
        Ok(())
    }

    /// Waits as the cycle says, and calls `before_quiesce` when only commits under way are left.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub(super) fn begin(
        &mut self,
        cycle: &'a Cycle,
        before_quiesce: impl FnOnce(),
    ) -> Result<(), CheckpointError> {
        self.hold(cycle)?;
        before_quiesce();
        if self.held.is_none() {
            self.since_ns = self.clock.monotonic_ns();
        }
        self.quiesced = Some(cycle.store.driver().quiesce());
        Ok(())
    }

    /// Lets commits go on, if they wait.
    pub(super) fn end(&mut self) {
        if self.quiesced.take().is_some() {
            self.held = None;
            self.stopped_ns = self.clock.monotonic_ns() - self.since_ns;
        }
    }
}

const WAITS: usize = 0;
const RUNS: usize = 1;
const ENDS: usize = 2;

/// The visit of all units at a point of consistency. Its threads start before, so that commits do not
/// wait for them.
pub(super) struct PointPass {
    shared: Arc<Shared>,
    own: usize,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    store: Arc<Store>,
    scheme: Arc<dyn Checkpointer>,
    next: AtomicUsize,
    units: AtomicUsize,
    state: AtomicUsize,
    /// Threads that may yet visit a unit.
    at_work: AtomicUsize,
    has_panicked: AtomicBool,
}

/// Counts a thread as done, also if it panics.
struct AtWork<'a>(&'a Shared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_panicked.store(true, Relaxed);
        }
        // Release: partner of the Acquire in `PointPass::run`, which then sees all visits.
        self.0.at_work.fetch_sub(1, Release);
    }
}

impl Shared {
    fn visit(&self, slot: usize) {
        // Relaxed: the thread that has set the number has released it with the state.
        let units = self.units.load(Relaxed);
        loop {
            let unit = self.next.fetch_add(1, Relaxed);
            if unit >= units {
                return;
            }
            self.scheme.at_point_of_consistency(&self.store, unit, slot);
        }
    }

    fn help(&self, slot: usize) {
        let _at_work = AtWork(self);
        let mut backoff = Backoff::new();
        loop {
            // Acquire: partner of the Release in `PointPass::run`.
            match self.state.load(Acquire) {
                WAITS => backoff.wait(),
                RUNS => return self.visit(slot),
                _ => return,
            }
        }
    }
}

impl PointPass {
    /// Starts a thread for each slot but that of the caller.
    pub(super) fn start(cycle: &Cycle, slots: &Slots) -> Self {
        let shared = Arc::new(Shared {
            store: cycle.store.clone(),
            scheme: cycle.scheme.clone(),
            next: AtomicUsize::new(0),
            units: AtomicUsize::new(0),
            state: AtomicUsize::new(WAITS),
            at_work: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
        });
        let start = |&slot: &usize| {
            let helper = shared.clone();
            shared.at_work.fetch_add(1, Relaxed);
            let started = spawn("point-of-consistency", move || helper.help(slot)).ok();
            if started.is_none() {
                // If a thread cannot be started, the others do its work.
                shared.at_work.fetch_sub(1, Relaxed);
            }
            started
        };
        let threads = slots.others().iter().filter_map(start).collect();
        Self { shared, own: slots.own(), threads }
    }

    /// Visits all units, while commits wait.
    ///
    /// # Errors
    /// A visit panics. The point of consistency is not passed, and the checkpoint is given up.
    pub(super) fn run(&mut self) -> Result<(), CheckpointError> {
        let shared = self.shared.clone();
        shared.units.store(shared.store.group_count(), Relaxed);
        // Release: partner of the Acquire in `help`.
        shared.state.store(RUNS, Release);
        let visited = ran(|| shared.visit(self.own));
        let mut backoff = Backoff::new();
        // Acquire: partner of the Release in `AtWork`.
        while shared.at_work.load(Acquire) != 0 {
            backoff.wait();
        }
        if shared.has_panicked.load(Relaxed) {
            return visited.and(self.join());
        }
        visited
    }

    /// Waits for the ends of the threads.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(super) fn end(mut self) -> Result<(), CheckpointError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), CheckpointError> {
        self.shared.state.store(ENDS, Release);
        let mut ended = Ok(());
        for thread in std::mem::take(&mut self.threads) {
            ended = ended.and(thread.join().map_err(Into::into));
        }
        ended
    }
}

impl Drop for PointPass {
    fn drop(&mut self) {
        let _ = self.join();
    }
}
