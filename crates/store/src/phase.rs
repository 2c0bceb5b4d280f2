//! Phases of a checkpoint, and the word that says which one it is.
//!
//! ```text
//! REST ── PREPARE ──▶│ RESOLVE ── CAPTURE ── COMPLETE ──▶ REST
//!   epoch e          │   epoch e + 1
//!                    └ point of consistency
//! ```
//! A transaction reads the word at its commit, holding all its locks. Suppose that T2 saw a write
//! of T1. Then T1 read the word before it released the lock, and T2 read it afterwards. So the
//! phase of T1 is not later than that of T2. So the commits of epochs up to e are closed under
//! dependencies, and the checkpoint of e + 1 holds exactly these. (CALC, SIGMOD 2016, §2.2; see
//! docs/decisions/0001 for what deferred updates change.)

use stillpoint_sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use stillpoint_sync::{CachePadded, Mutex, MutexGuard, ReadSections, mutant};
use stillpoint_txn::Patience;

use crate::planted::{self, Bug, Planted};
use crate::rules::status;

/// Where a checkpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// No checkpoint is being taken.
    Rest = 0,
    /// A checkpoint is about to begin.
    Prepare = 1,
    /// The point of consistency has passed, and earlier commits may still be under way.
    Resolve = 2,
    /// All commits from before the point of consistency have ended. The capture scan runs.
    Capture = 3,
    /// Every record is captured.
    Complete = 4,
}

/// Phase and epoch as one word, as a commit reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseWord(u64);

const GATE: u64 = 1 << 3;
/// One transaction has the permit of the whole store.
const PERMIT: u64 = 1 << 4;
/// The checkpoint under way is one of changes.
const CHANGES: u64 = 1 << 5;
/// The status of records that the latest full checkpoint has.
const CAPTURED: u64 = 1 << 6;
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

    /// Whether a transaction or a checkpoint has the permit of the whole store, so that no other
    /// transaction begins.
    #[inline]
    pub fn is_permitted(self) -> bool {
        self.0 & PERMIT != 0
    }

    /// Whether the checkpoint under way is one of changes.
    #[inline]
    pub fn is_of_changes(self) -> bool {
        self.0 & CHANGES != 0
    }

    /// The status of records that the latest full checkpoint has: one bit, whose meaning alternates
    /// with every full checkpoint.
    #[inline]
    pub(crate) fn captured(self) -> u8 {
        if self.0 & CAPTURED != 0 { status::CAPTURED } else { 0 }
    }

    /// Whether a commit must save the before-image of a record that is not marked.
    #[inline]
    pub(crate) fn is_capturing(self) -> bool {
        matches!(self.phase(), Phase::Resolve | Phase::Capture)
    }
}

/// The phase, the read sections, and the right to change the phase.
#[derive(Debug)]
pub struct PhaseDriver {
    word: CachePadded<AtomicU64>,
    read_sections: ReadSections,
    moving: Mutex<()>,
    turn: Mutex<()>,
    /// The last epoch whose checkpoint lacks a record; 0 for none.
    spoilt: AtomicU64,
    permit: Mutex<()>,
    /// Commits that have waited outside of their read sections, with their locks held, and have not
    /// ended yet.
    waiting_commits: AtomicUsize,
    planted: Planted,
}

/// The right to change the phase, from REST to REST.
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

    /// Takes the right to change the phase, which is held until the checkpoint has ended. `None`
    /// while another thread has the right.
    pub fn try_permit(&self) -> Option<CheckpointPermit<'_>> {
        self.turn.try_lock().map(|held| CheckpointPermit { _held: held })
    }

    /// Notes that the checkpoint which began `epoch` lacks a record, so that the checkpoint is
    /// given up. `u64::MAX` means that no checkpoint can be taken any more.
    pub fn spoil(&self, epoch: u64) {
        // Release: partner of the Acquire in `is_spoilt`.
        self.spoilt.fetch_max(epoch, Release);
    }

    /// True if the checkpoint that began `epoch` lacks a record.
    pub fn is_spoilt(&self, epoch: u64) -> bool {
        // Acquire: partner of the Release in `spoil`.
        self.spoilt.load(Acquire) >= epoch
    }

    /// Plants a bug, so that a test can show that the checkers see it.
    #[cfg(any(feature = "planted-bugs", all(test, shuttle)))]
    pub fn plant(&self, bug: Bug) {
        self.planted.plant(bug);
    }

    /// True if a test planted this bug.
    #[inline]
    pub fn has_planted(&self, bug: Bug) -> bool {
        self.planted.has(bug)
    }

    /// For the planted bug `PhaseReadBeforeLocks`: this worker's transaction, which begins now,
    /// will commit in the present phase.
    pub(crate) fn note_phase(&self, worker: usize) {
        self.planted.note_phase(worker, self.now().0);
    }

    /// The phase that was noted last for this worker.
    pub(crate) fn noted_phase(&self, worker: usize) -> PhaseWord {
        PhaseWord(self.planted.noted_phase(worker))
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

    /// Decides whether the checkpoint that is about to begin is one of changes. Called before the
    /// checkpoint's point of consistency, by the thread that changes the phase.
    pub fn choose_changes(&self, changes: bool) {
        let _moving = self.moving.lock();
        assert!(self.now().phase() <= Phase::Prepare, "the checkpoint has begun");
        // SeqCst: as in `advance`. Nobody reads the bit before the point of consistency.
        match changes {
            true => self.word.fetch_or(CHANGES, SeqCst),
            false => self.word.fetch_and(!CHANGES, SeqCst),
        };
    }

    /// Enters the next phase and waits until no commit that saw the previous one is under way.
    /// Entering [`Phase::Resolve`] is the point of consistency and begins the next epoch.
    pub fn advance(&self, phase: Phase) -> PhaseWord {
        let moving = self.moving.lock();
        let now = self.now();
        let legal = now.phase() as u8 + 1 == phase as u8
            || (now.phase(), phase) == (Phase::Complete, Phase::Rest);
        assert!(legal, "no way from {:?} to {phase:?}", now.phase());
        let begins = phase == Phase::Resolve;
        let kept = now.0 & (CHANGES | CAPTURED);
        // With every full checkpoint the marks change their meaning.
        let flipped = if begins && !now.is_of_changes() { CAPTURED } else { 0 };
        let next =
            PhaseWord(PhaseWord::new(phase, now.epoch() + u64::from(begins)).0 | (kept ^ flipped));
        // SeqCst with the fence in `ReadSections::token`: partner of the fence in
        // `ReadSections::enter`. An exchange of the changed bits only: the bits of a quiesce and of
        // the permit change at any moment.
        self.word.fetch_xor((now.0 ^ next.0) & !(GATE | PERMIT), SeqCst);
        drop(moving);
        let is_of_capture = matches!(phase, Phase::Resolve | Phase::Capture);
        mutant!(in self; NoGracePeriod => if is_of_capture { return next });
        self.read_sections.wait_grace_period();
        next
    }

    /// Holds every worker outside its read section until the guard is dropped: a physical point of
    /// consistency. With deferred updates an open transaction has changed nothing, so this waits
    /// for commits under way, not for transactions.
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
    /// A commit announces its wait inside of a read section that was open before the quiesce began.
    /// The commit takes its announcement back after it has ended and has left the read section that
    /// it entered in spite of the quiesce. So if there is no announcement after a grace period, no
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

    /// Announces that a commit leaves its read section with its locks held. The announcement counts
    /// until [`end_wait`](Self::end_wait). Called inside of that section.
    pub(crate) fn announce_wait(&self) {
        // Relaxed: the end of the read section publishes the count; partner: the grace period in
        // `wait_for_commits`.
        self.waiting_commits.fetch_add(1, Relaxed);
    }

    /// Takes an announcement back: the commit has ended, and has left its read section.
    pub(crate) fn end_wait(&self) {
        // Release: publishes the end of the commit; partner of the Acquire in `wait_for_commits`.
        self.waiting_commits.fetch_sub(1, Release);
    }

    /// Enters the read section of a commit that has announced its wait, even while the store is
    /// being quiesced. The quiesce waits for the commit.
    pub(crate) fn enter_to_end(&self, slot: usize) {
        self.read_sections.enter(slot);
    }

    /// Takes the permit of the whole store, after a wait for its holder. While the permit is held,
    /// no other transaction [begins](Self::try_enter_to_begin). So transactions that hold locks end,
    /// and no new ones come.
    pub(crate) fn take_permit(&self) -> Permit<'_> {
        let turn = self.permit.lock();
        // SeqCst: with the phase, as in `advance`. A transaction that begins later sees the permit.
        // The holder waits for the locks of a transaction that began earlier.
        self.word.fetch_or(PERMIT, SeqCst);
        Permit { driver: self, _permit: turn }
    }

    /// As [`take_permit`](Self::take_permit), for a checkpoint. `None` while another thread has the
    /// permit.
    pub(crate) fn try_take_permit(&self) -> Option<Permit<'_>> {
        let turn = self.permit.try_lock()?;
        // SeqCst: as in `take_permit`.
        self.word.fetch_or(PERMIT, SeqCst);
        Some(Permit { driver: self, _permit: turn })
    }

    /// Opens a worker's read section. Waits while the store is quiesced.
    #[inline]
    pub(crate) fn enter(&self, slot: usize) {
        while !self.enter_unless(slot, GATE) {
            let open = self.wait_while(GATE, Patience::Endless);
            debug_assert!(open, "an endless wait ends with an open store");
        }
    }

    /// As [`enter`](Self::enter), for a worker that holds no locks and is about to take some. False if
    /// the store is quiesced, or if the permit is taken: the worker is outside of its read section, and
    /// [waits](Self::wait_to_begin).
    #[inline]
    pub(crate) fn try_enter_to_begin(&self, slot: usize) -> bool {
        self.enter_unless(slot, GATE | PERMIT)
    }

    /// Waits until a transaction may begin. False if `patience` was over before.
    pub(crate) fn wait_to_begin(&self, patience: Patience) -> bool {
        self.wait_while(GATE | PERMIT, patience)
    }

    #[inline]
    fn enter_unless(&self, slot: usize, closed: u64) -> bool {
        self.read_sections.enter(slot);
        if self.now().0 & closed == 0 {
            return true;
        }
        self.read_sections.exit(slot);
        false
    }

    /// Waits while one of these bits is set; false if `patience` was over first.
    #[cold]
    fn wait_while(&self, closed: u64, patience: Patience) -> bool {
        let mut backoff = stillpoint_sync::Backoff::new();
        while self.now().0 & closed != 0 {
            // Only the holder of the permit may wait for an open transaction.
            if self.now().is_permitted() && patience.is_over(backoff.turns()) {
                return false;
            }
            backoff.wait();
        }
        true
    }

    #[inline]
    pub(crate) fn exit(&self, slot: usize) {
        self.read_sections.exit(slot);
    }
}

/// The right of one transaction to wait for any lock. Meanwhile other transactions give their locks
/// back rather than wait, and none begins.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    driver: &'a PhaseDriver,
    _permit: MutexGuard<'a, ()>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.driver.word.fetch_and(!PERMIT, SeqCst);
    }
}

/// While this value lives, no worker is in its read section.
#[derive(Debug)]
pub struct Quiesced<'a> {
    driver: &'a PhaseDriver,
}

impl Quiesced<'_> {
    /// Whether the quiesced store is that of this driver.
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
        let epochs = pass(&driver, false).map(PhaseWord::epoch);
        assert_eq!(epochs, [7, 8, 8, 8, 8]);
        assert_eq!(driver.now().phase(), Phase::Rest);
    }

    /// Goes through all phases of a checkpoint.
    fn pass(driver: &PhaseDriver, changes: bool) -> [PhaseWord; 5] {
        driver.choose_changes(changes);
        let phases = [Phase::Prepare, Phase::Resolve, Phase::Capture, Phase::Complete, Phase::Rest];
        phases.map(|phase| {
            let now = driver.advance(phase);
            assert_eq!(now.phase(), phase);
            now
        })
    }

    #[test]
    fn marks_change_their_meaning_with_every_full_checkpoint() {
        let driver = PhaseDriver::new(2, 7);
        let captured = |changes| pass(&driver, changes).map(PhaseWord::captured);
        assert_eq!(captured(false), [0, 1, 1, 1, 1]);
        assert_eq!(captured(true), [1; 5]);
        assert!(driver.now().is_of_changes());
        assert_eq!(captured(true), [1; 5]);
        assert_eq!(captured(false), [1, 0, 0, 0, 0]);
        assert!(!driver.now().is_of_changes());
        assert_eq!(driver.now().epoch(), 11);
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
