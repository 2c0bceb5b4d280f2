//! Phases of a checkpoint, and the word with the present phase.
//!
//! ```text
//! REST ── PREPARE ──▶│ RESOLVE ── CAPTURE ── COMPLETE ──▶ REST
//!   epoch e          │   epoch e + 1
//!                    └ point of consistency
//! ```
//! A transaction T2 reads the word at its commit, with all its locks held. If T2 saw a write of T1,
//! then T1 released the lock after it had read the word. So T1's phase is not later than T2's.
//! Hence the commits of epochs up to e are closed under dependencies, and the checkpoint of e + 1
//! holds exactly them. (CALC, SIGMOD 2016, §2.2; docs/decisions/0001 describes the changes by
//! deferred updates.)

use stillpoint_sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use stillpoint_sync::{CachePadded, Mutex, MutexGuard, ReadSections, mutant};

use crate::planted::{self, Bug, Planted};

/// The phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// No checkpoint is being taken.
    Rest = 0,
    /// A checkpoint is about to begin.
    Prepare = 1,
    /// The point of consistency has passed, and commits from before it may still be under way.
    Resolve = 2,
    /// All commits from before the point of consistency have ended, and the capture scans.
    Capture = 3,
    /// Every record is captured.
    Complete = 4,
}

/// Phase and epoch in one word, which a commit reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseWord(u64);

const GATE: u64 = 1 << 3;
/// One transaction has the permit of the whole store.
const PERMIT: u64 = 1 << 4;
const PHASE_MASK: u64 = 7;
const EPOCH_SHIFT: u32 = 8;

impl PhaseWord {
    fn new(phase: Phase, epoch: u64) -> Self {
        Self(phase as u64 | epoch << EPOCH_SHIFT)
    }

    /// The phase.
    #[inline]
    pub fn phase(self) -> Phase {
        match self.0 & PHASE_MASK {
            0 => Phase::Rest,
            1 => Phase::Prepare,
            2 => Phase::Resolve,
            3 => Phase::Capture,
            _ => Phase::Complete,
        }
    }

    /// Number of the checkpoint period. The checkpoint of epoch e holds the commits of epochs < e.
    #[inline]
    pub fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    #[inline]
    pub(crate) fn is_gated(self) -> bool {
        self.0 & GATE != 0
    }

    /// Whether a transaction has the permit of the whole store, so that no other begins.
    #[inline]
    pub fn is_permitted(self) -> bool {
        self.0 & PERMIT != 0
    }

    /// Whether a commit must emit an unmarked record before it changes the record.
    #[inline]
    pub(crate) fn is_capturing(self) -> bool {
        matches!(self.phase(), Phase::Resolve | Phase::Capture)
    }
}

/// The phase driver: the phase, the read sections, and the lock of the thread that moves the phase.
#[derive(Debug)]
pub struct PhaseDriver {
    word: CachePadded<AtomicU64>,
    read_sections: ReadSections,
    moving: Mutex<()>,
    turn: Mutex<()>,
    /// The last epoch whose checkpoint lacks a record. 0 for none.
    spoilt: AtomicU64,
    permit: Mutex<()>,
    /// Commits that have waited outside of their read sections, with their locks held, and have not
    /// ended yet.
    waiting_commits: AtomicUsize,
    planted: Planted,
}

/// Lock of the thread that moves the phases, from rest to rest.
#[derive(Debug)]
pub struct CheckpointPermit<'a> {
    _held: MutexGuard<'a, ()>,
}

impl PhaseDriver {
    pub(crate) fn new(workers: usize, epoch: u64) -> Self {
        Self {
            word: CachePadded::new(AtomicU64::new(PhaseWord::new(Phase::Rest, epoch).0)),
            read_sections: ReadSections::new(workers),
            moving: Mutex::new(()),
            turn: Mutex::new(()),
            spoilt: AtomicU64::new(0),
            permit: Mutex::new(()),
            waiting_commits: AtomicUsize::new(0),
            planted: Planted::default(),
        }
    }

    /// Takes the lock of a checkpoint, held until the checkpoint is over. `None` while another
    /// thread holds it.
    pub fn try_turn(&self) -> Option<CheckpointPermit<'_>> {
        self.turn.try_lock().map(|held| CheckpointPermit { _held: held })
    }

    /// Notes that the checkpoint which began `epoch` lacks a record, so that it is given up. For
    /// `u64::MAX`, that no checkpoint can be taken any more.
    pub fn spoil(&self, epoch: u64) {
        // Release: partner of the Acquire in `is_spoilt`.
        self.spoilt.fetch_max(epoch, Release);
    }

    /// Whether the checkpoint that began `epoch` lacks a record.
    pub fn is_spoilt(&self, epoch: u64) -> bool {
        // Acquire: partner of the Release in `spoil`.
        self.spoilt.load(Acquire) >= epoch
    }

    /// Plants a bug, for a test that shows that it is found.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub fn plant(&self, bug: Bug) {
        self.planted.plant(bug);
    }

    /// True if a test planted this bug.
    #[inline]
    pub fn has_planted(&self, bug: Bug) -> bool {
        self.planted.has(bug)
    }

    /// True if a planted bug forgets the before-image of such a write.
    #[inline]
    pub(crate) fn forgets_before_image(
        &self,
        stamp_word: u64,
        deletes: impl FnOnce() -> bool,
    ) -> bool {
        self.planted.forgets_before_image(stamp_word, deletes)
    }

    /// The workers' read sections.
    pub fn read_sections(&self) -> &ReadSections {
        &self.read_sections
    }

    /// Phase and epoch now.
    #[inline]
    pub fn now(&self) -> PhaseWord {
        PhaseWord(self.word.load(Acquire))
    }

    /// Sets the epoch before any worker exists.
    pub fn start_at(&self, epoch: u64) {
        self.word.store(PhaseWord::new(Phase::Rest, epoch).0, SeqCst);
    }

    /// Enters the next phase and waits until no commit that saw the previous one is under way. The
    /// entry to [`Phase::Resolve`] is the point of consistency and begins the next epoch.
    pub fn advance(&self, phase: Phase) -> PhaseWord {
        let moving = self.moving.lock();
        let now = self.now();
        let legal = now.phase() as u8 + 1 == phase as u8
            || (now.phase(), phase) == (Phase::Complete, Phase::Rest);
        assert!(legal, "no way from {:?} to {phase:?}", now.phase());
        let epoch = now.epoch() + u64::from(phase == Phase::Resolve);
        let next = PhaseWord::new(phase, epoch);
        // SeqCst with the fence in `ReadSections::token`: partner of the fence in
        // `ReadSections::enter`. Only the changed bits are exchanged, since the gate and the permit
        // may change at any moment.
        self.word.fetch_xor((now.0 ^ next.0) & !(GATE | PERMIT), SeqCst);
        drop(moving);
        mutant!(in self; self.read_sections.wait_grace_period(), NoGracePeriod => {
            if !matches!(phase, Phase::Resolve | Phase::Capture) {
                self.read_sections.wait_grace_period();
            }
        });
        next
    }

    /// Quiesces the store for a physical point of consistency: every worker stays outside of its
    /// read section until the guard is dropped. With deferred updates an open transaction has
    /// changed nothing, so this waits for commits under way, not for transactions.
    pub fn quiesce(&self) -> Quiesced<'_> {
        loop {
            let moving = self.moving.lock();
            if !self.now().is_gated() {
                self.word.fetch_or(GATE, SeqCst);
                drop(moving);
                let quiesced = Quiesced { driver: self };
                self.wait_for_commits();
                return quiesced;
            }
            drop(moving);
            let mut backoff = stillpoint_sync::Backoff::new();
            while self.now().is_gated() {
                backoff.wait();
            }
        }
    }

    /// Waits until no commit is under way, neither inside of a read section nor waiting outside.
    ///
    /// A commit announces its wait inside of a read section that was open before the gate closed.
    /// The announcement stands until the commit has ended and has left its last read section, which
    /// it may enter in spite of the gate. So if there is no announcement after a grace period, no
    /// read section is open.
    fn wait_for_commits(&self) {
        let mut backoff = stillpoint_sync::Backoff::new();
        loop {
            self.read_sections.wait_grace_period();
            // Acquire: partner of the Release in `end_wait`.
            if self.waiting_commits.load(Acquire) == 0 {
                return;
            }
            backoff.wait();
        }
    }

    /// Announces that a commit leaves its read section with its locks held, until it has
    /// [ended](Self::end_wait). Called inside of that section.
    pub(crate) fn announce_wait(&self) {
        // Relaxed: the end of the read section publishes the count. Its partner is the grace period
        // in `wait_for_commits`.
        self.waiting_commits.fetch_add(1, Relaxed);
    }

    /// Ends an announcement, after the commit has ended and has left its read section.
    pub(crate) fn end_wait(&self) {
        // Release: publishes the end of the commit; partner of the Acquire in `wait_for_commits`.
        self.waiting_commits.fetch_sub(1, Release);
    }

    /// Enters the read section of a commit that has announced its wait, also while the store is
    /// being quiesced, since the quiesce waits for the commit.
    pub(crate) fn enter_to_end(&self, slot: usize) {
        self.read_sections.enter(slot);
    }

    /// Takes the permit of the whole store, and waits for its holder. While it is held, no other
    /// transaction [begins](Self::enter_to_begin). Those that hold locks end, and no new ones come.
    pub(crate) fn take_permit(&self) -> Permit<'_> {
        let turn = self.permit.lock();
        // SeqCst: with the phase, as in `advance`. A thread that enters later sees the permit. A
        // thread that entered before is waited for through its locks.
        self.word.fetch_or(PERMIT, SeqCst);
        Permit { driver: self, _turn: turn }
    }

    /// Opens a worker's read section. Waits while the store is quiesced.
    #[inline]
    pub(crate) fn enter(&self, slot: usize) -> PhaseWord {
        self.enter_unless(slot, GATE)
    }

    /// As [`enter`](Self::enter), for a thread without locks that is about to take some. Also waits
    /// for the holder of the permit.
    #[inline]
    pub(crate) fn enter_to_begin(&self, slot: usize) -> PhaseWord {
        self.enter_unless(slot, GATE | PERMIT)
    }

    #[inline]
    fn enter_unless(&self, slot: usize, closed: u64) -> PhaseWord {
        loop {
            self.read_sections.enter(slot);
            let now = self.now();
            if now.0 & closed == 0 {
                return now;
            }
            self.read_sections.exit(slot);
            self.wait_while(closed);
        }
    }

    #[cold]
    fn wait_while(&self, closed: u64) {
        let mut backoff = stillpoint_sync::Backoff::new();
        while self.now().0 & closed != 0 {
            backoff.wait();
        }
    }

    #[inline]
    pub(crate) fn exit(&self, slot: usize) {
        self.read_sections.exit(slot);
    }
}

/// The permit of one transaction to wait for any lock. Others that hold locks release them rather
/// than wait, and no transaction begins.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    driver: &'a PhaseDriver,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.driver.word.fetch_and(!PERMIT, SeqCst);
    }
}

/// Guard during which no worker is in its read section.
#[derive(Debug)]
pub struct Quiesced<'a> {
    driver: &'a PhaseDriver,
}

impl Quiesced<'_> {
    /// Whether this driver's store is the quiesced one.
    pub(crate) fn is_of(&self, driver: &PhaseDriver) -> bool {
        std::ptr::eq(self.driver, driver)
    }
}

impl Drop for Quiesced<'_> {
    fn drop(&mut self) {
        self.driver.word.fetch_and(!GATE, SeqCst);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_begins_at_the_point_of_consistency() {
        let driver = PhaseDriver::new(2, 7);
        assert_eq!(driver.advance(Phase::Prepare), PhaseWord::new(Phase::Prepare, 7));
        assert_eq!(driver.advance(Phase::Resolve), PhaseWord::new(Phase::Resolve, 8));
        assert_eq!(driver.advance(Phase::Capture).epoch(), 8);
        assert_eq!(driver.advance(Phase::Complete).epoch(), 8);
        assert_eq!(driver.advance(Phase::Rest), PhaseWord::new(Phase::Rest, 8));
    }

    #[test]
    fn a_quiesced_store_lets_nobody_in() {
        let driver = std::sync::Arc::new(PhaseDriver::new(2, 1));
        let slot = driver.read_sections().claim().expect("room");
        let quiesced = driver.quiesce();
        let other = driver.clone();
        let entered = std::sync::Arc::new(AtomicU64::new(0));
        let mark = entered.clone();
        let thread = stillpoint_io::spawn("enter", move || {
            other.enter(slot);
            mark.store(1, SeqCst);
            other.exit(slot);
        })
        .expect("a thread");
        for _ in 0..1000 {
            std::thread::yield_now();
            assert_eq!(entered.load(SeqCst), 0);
        }
        driver.advance(Phase::Prepare);
        assert!(driver.now().is_gated(), "moving the phase keeps the gate");
        drop(quiesced);
        thread.join().expect("no panic");
        assert_eq!(entered.load(SeqCst), 1);
    }
}
