//! The progress of a scheme's copier in a period. Away from the copier's place, the mutator needs
//! only plain stores.
//!
//! ```text
//! marks:   done ............. | the stretch under way             | not reached ............
//!                             |  done  [piece under way]  ahead   |
//!                             ^ done    ^ copying                  ^ announced
//! ```
//!
//! The copier goes through the marks in order. The copier *announces* a stretch before it touches
//! any cell of that stretch, and goes through the stretch piece by piece. Before the mutator
//! changes a mark or a cell, it stores the piece in `writing` and then loads the copier's place.
//! The copier stores its place and then loads `writing`. A piece is in one of three regions:
//!
//! - done: only the mutator changes the piece until the next period. The mutator need not store
//!   `writing`.
//! - not reached: the mutator may write. If the copier announces the stretch meanwhile, it finds
//!   the mutator in `writing` when it comes to the piece. The copier waits for the end of this one
//!   write.
//! - in the stretch: the mutator loads the piece under way. If that is its own piece, the mutator
//!   withdraws and waits until the copier has left the piece.
//!
//! Each side stores first and then loads the value of the other side, so each must keep its load
//! behind its store (Dekker). Inside a stretch, which is small, each side has an ordinary fence
//! between store and load. Nearly all writes are outside. There the mutator has only the light
//! fence of the [`AsymmetricFences`], so several stores may wait for their cache lines at the same
//! time. A claim of each block would have the stores wait one after the other. The copier pays for
//! both fences, once per stretch.
//!
//! A period ends with all marks done. The next period, in which the other copy collects updates, begins
//! with no mark done. Every other period stores the limits as complements. So the two limits of the
//! last period already mean 0 in the next one. A point of consistency stores nothing in the copier's
//! line.
//!
//! Several threads that write side by side have no `writing` each. Such threads *hold* the copier
//! off instead: the mutator stores `is_held` and waits until the copier is in no piece. The copier
//! stores its place, loads `is_held`, and leaves again while that is set. Each side has an ordinary
//! fence between the two.
//!
//! The copier cannot overlook a write:
//!
//! 1. The mutator has found its mark not announced. So its store to `writing` came before the copier's
//!    heavy fence; otherwise the mutator would have found the mark announced.
//! 2. The copier loads `writing` only after that fence, so it sees this write or a later one.
//! 3. Every store to `writing` is Release. With a later write the copier sees all of this one, too.
//! 4. Inside a stretch the ordinary fences give the same guarantee.

use std::ops::Range;

use stillpoint_sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{self, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use stillpoint_sync::mutant;
use stillpoint_sync::{AsymmetricFences, Backoff, CachePadded, Mutex};

use crate::live_copy::LiveCopy;
use crate::planted;

/// A write that takes long enough for the copier to meet it: part of a planted bug. A model's
/// scheduler needs no such help.
fn write_for_long() {
    if !cfg!(any(loom, shuttle)) {
        (0..500).for_each(|_| stillpoint_sync::atomic::spin());
    }
}

/// Stretches of an array. A period has this many heavy fences, and one in about this many writes
/// takes an ordinary fence.
#[cfg(not(any(loom, shuttle)))]
const STRETCHES: usize = 64;
/// In models a few marks make a stretch of several.
#[cfg(any(loom, shuttle))]
const STRETCHES: usize = 2;

/// No piece at all.
const NOWHERE: usize = usize::MAX;
/// Behind all marks.
const END: usize = usize::MAX;

/// Where the copier and the mutator of a grid work, and which marks the copier has done.
#[derive(Debug)]
pub struct Frontier {
    fences: AsymmetricFences,
    marks: usize,
    /// log2 of the marks of a piece.
    piece_log2: u32,
    /// Number of marks of a stretch, which is a number of whole pieces.
    stretch: usize,
    /// The mutator loads the limits at every write, and the copier stores them once per stretch. The
    /// mutator holds the copier off at most once for each array that its threads divide.
    limits: CachePadded<Limits>,
    /// The piece that the copier is at, while it is inside a stretch.
    copying: CachePadded<AtomicUsize>,
    /// The piece in which the mutator is writing, unless the copier is done with that piece.
    writing: CachePadded<AtomicUsize>,
    /// One copier at a time.
    copier: Mutex<()>,
}

/// Marks below `done` are done, those from `announced` on are not reached.
#[derive(Debug)]
struct Limits {
    done: Limit,
    announced: Limit,
    is_held: AtomicBool,
}

/// A limit that goes from 0 to [`END`] in each period. In every other period the limit is stored as its
/// complement, so that it is 0 again when the period begins.
#[derive(Debug)]
struct Limit(AtomicUsize);

impl Limit {
    fn kept(turn: LiveCopy, mark: usize) -> usize {
        mark ^ turn.up.wrapping_neg()
    }

    #[inline(always)]
    fn load(&self, turn: LiveCopy, ordering: Ordering) -> usize {
        Self::kept(turn, self.0.load(ordering))
    }

    fn store(&self, turn: LiveCopy, mark: usize, ordering: Ordering) {
        self.0.store(Self::kept(turn, mark), ordering);
    }
}

/// A guard of a write by the mutator. The copier stays away from the piece until this value is
/// dropped.
#[derive(Debug)]
#[must_use]
pub struct Writing<'a>(Option<&'a Frontier>);

impl Drop for Writing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(frontier) = self.0 {
            // Release: pairs with the Acquire in `come_to`, so that the copier sees the written
            // values.
            frontier.writing.store(NOWHERE, Release);
        }
    }
}

/// A guard of writes by several threads. The copier stays away from all pieces until this value is
/// dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct FrontierHold<'a>(&'a Frontier);

impl Drop for FrontierHold<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `come_to`, so that the copier sees the written values.
        self.0.limits.is_held.store(false, Release);
    }
}

impl Frontier {
    /// The frontier of `marks` marks, in pieces of about `piece_marks`, rounded up to a power of
    /// two. The first period has no copier, so all marks are done in it.
    pub fn new(marks: usize, piece_marks: usize) -> Self {
        let piece = piece_marks.max(1).next_power_of_two();
        let stretch = marks.div_ceil(STRETCHES).max(1).next_multiple_of(piece);
        let done = || Limit(AtomicUsize::new(Limit::kept(LiveCopy::FIRST, END)));
        let limits = Limits { done: done(), announced: done(), is_held: AtomicBool::new(false) };
        Self {
            fences: AsymmetricFences::new(),
            marks,
            piece_log2: piece.trailing_zeros(),
            stretch,
            limits: CachePadded::new(limits),
            copying: CachePadded::new(AtomicUsize::new(NOWHERE)),
            writing: CachePadded::new(AtomicUsize::new(NOWHERE)),
            copier: Mutex::new(()),
        }
    }

    /// True if the copier is done with all marks.
    #[inline(always)]
    pub fn is_all_done(&self, turn: LiveCopy) -> bool {
        self.is_done(turn, END - 1)
    }

    /// True if the copier is done with a mark. The mark belongs to the mutator until the next period.
    #[inline(always)]
    pub fn is_done(&self, turn: LiveCopy, mark: usize) -> bool {
        mutant!(PiggybackSettlesTooEarly => return true);
        // Acquire: pairs with the Release in `copy_until`, so that the mutator sees the copied
        // values.
        mark < self.limits.done.load(turn, Acquire)
    }

    /// The first mark behind the piece that a mark lies in.
    #[inline]
    pub fn end_of_piece(&self, mark: usize) -> usize {
        ((mark >> self.piece_log2) + 1) << self.piece_log2
    }

    /// The mutator calls this before it looks at a mark that it is about to change. Keeps the copier
    /// away from the mark's piece, and waits while the copier is in that piece.
    #[inline(always)]
    pub fn enter(&self, turn: LiveCopy, mark: usize) -> Writing<'_> {
        // Relaxed: this thread has called `hold`, or was started by the thread that has called it.
        if self.limits.is_held.load(Relaxed) {
            return Writing(None);
        }
        let piece = mark >> self.piece_log2;
        // Release: the copier may see this instead of the end of the write before.
        self.writing.store(piece, Release);
        self.fences.light(); // partner of the heavy one in `copy_until`
        // Relaxed: the load of `copying` makes the copier's changes of this piece visible.
        if mark < self.limits.announced.load(turn, Relaxed) {
            self.enter_stretch(piece);
        }
        mutant!(PiggybackOverlooksTheWriter => write_for_long());
        Writing(Some(self))
    }

    /// Keeps the copier out of all pieces until the value is dropped, so that several threads may write.
    /// Waits while the copier is in a piece. The mutator calls this, and once at a time.
    pub(crate) fn hold(&self) -> FrontierHold<'_> {
        // Relaxed: the fence orders it, partner of the one in `come_to`.
        self.limits.is_held.store(true, Relaxed);
        fence(SeqCst); // partner of the one in `come_to`
        mutant!(ChunksIgnoreTheCopier => return FrontierHold(self));
        let mut backoff = Backoff::new();
        // Acquire: pairs with the Release of the store that has left the last piece.
        while self.copying.load(Acquire) != NOWHERE {
            backoff.wait();
        }
        FrontierHold(self)
    }

    /// The rare part of `enter`, for a mark in the stretch under way.
    #[cold]
    #[inline(never)]
    fn enter_stretch(&self, piece: usize) {
        mutant!(PiggybackIgnoresThePieceUnderWay => return);
        // Partner of the fence in `come_to`. The light fence in `enter` is effective only against
        // the heavy fence.
        fence(SeqCst);
        // Acquire: pairs with the Release of the store that has left the piece.
        if self.copying.load(Acquire) != piece {
            return;
        }
        // The copier may be waiting until `writing` leaves this piece. The copier either has not
        // begun the piece or is about to end it, and does not return to it in this period. So the
        // mutator may write the piece without `writing` once `copying` has left the piece.
        self.writing.store(NOWHERE, Release); // as in `enter`
        let mut backoff = Backoff::new();
        while self.copying.load(Acquire) == piece {
            backoff.wait();
        }
    }

    /// Lets the copier go on, stretch by stretch, until at least this many marks are done. Calls
    /// `copy` with ranges of marks that no other thread changes meanwhile and that only readers
    /// look at. Further threads that call this wait.
    pub fn copy_until(&self, turn: LiveCopy, end: usize, mut copy: impl FnMut(Range<usize>)) {
        let _copier = self.copier.lock();
        let end = end.min(self.marks);
        // Relaxed: in a period only copiers change it, and the lock orders those.
        let mut at = self.limits.done.load(turn, Relaxed);
        while at < end {
            let stretch = at..(at + self.stretch).min(self.marks);
            // Numbers behind the last mark name no mark.
            let stretch_end = if stretch.end == self.marks { END } else { stretch.end };
            mutant!(self.announce(turn, stretch_end), PiggybackAnnouncesTooLate => ());
            for piece in stretch.start >> self.piece_log2..=(stretch.end - 1) >> self.piece_log2 {
                let first = piece << self.piece_log2;
                self.come_to(piece);
                copy(first..(first + (1 << self.piece_log2)).min(stretch.end));
            }
            // Release: pairs with the Acquire in `enter_stretch`.
            self.copying.store(NOWHERE, Release);
            mutant!(PiggybackAnnouncesTooLate => self.announce(turn, stretch_end));
            at = stretch_end;
            self.limits.done.store(turn, at, Release); // pairs with the Acquire in `is_done`
        }
    }

    fn announce(&self, turn: LiveCopy, end: usize) {
        // Relaxed: the fence orders it, partner of the light one in `enter`.
        self.limits.announced.store(turn, end, Relaxed);
        self.fences.heavy();
    }

    /// Leaves the previous piece, announces that the copier is at this piece, and waits for the end
    /// of a write in this piece. Waits outside of all pieces while the copier is held off.
    fn come_to(&self, piece: usize) {
        loop {
            // Release: as the store that leaves the last piece.
            self.copying.store(piece, Release);
            fence(SeqCst); // partner of those in `enter_stretch` and `hold`
            mutant!(ChunksIgnoreTheCopier => break);
            // Acquire: pairs with the Release in the drop of `FrontierHold`.
            if !self.limits.is_held.load(Acquire) {
                break;
            }
            self.copying.store(NOWHERE, Release); // pairs with the Acquire in `hold`
            // The copier stays outside until the hold ends, so `hold` waits for one piece at most.
            let mut backoff = Backoff::new();
            while self.limits.is_held.load(Relaxed) {
                backoff.wait();
            }
        }
        mutant!(PiggybackOverlooksTheWriter => return);
        let mut backoff = Backoff::new();
        // Acquire: pairs with the Release in every store to `writing`.
        while self.writing.load(Acquire) == piece {
            backoff.wait();
        }
    }
}

/// Every schedule of a mutator and a copier over a few marks, and every value that their loads may
/// see. Both asymmetric fences are ordinary fences here. So a write in the stretch leaves out the
/// light fence, which in reality has no effect there. With LOOM_MAX_PREEMPTIONS=3, as in `.ci/run`,
/// the models take seconds.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::{sync::Arc, thread};

    /// The second period, which is the first that has a copier.
    const TURN: LiveCopy = LiveCopy { up: 1, period: 1 };

    const DOWN: usize = 1;
    const UP: usize = 2;
    const EQUAL: usize = 0;

    /// The data of a period: a block of two cells for each mark.
    struct Period {
        frontier: Frontier,
        marks: Vec<AtomicUsize>,
        up: Vec<[AtomicUsize; 2]>,
    }

    /// The values in D[d].
    fn down(mark: usize) -> [usize; 2] {
        [10 + mark, 20 + mark]
    }

    impl Period {
        fn new(marks: usize) -> Self {
            Self {
                frontier: Frontier::new(marks, 1),
                marks: (0..marks).map(|_| AtomicUsize::new(DOWN)).collect(),
                up: (0..marks).map(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]).collect(),
            }
        }

        /// Checks that the copier has come to the end. Each mark must have its last write, or the
        /// earlier value.
        fn check(&self, writes: &[usize]) {
            assert!(self.frontier.is_all_done(TURN));
            for mark in 0..self.marks.len() {
                let last = writes.iter().rposition(|write| *write == mark);
                let wanted = last.map_or(down(mark)[0], |nth| 100 + nth);
                let found = [0, 1].map(|at| self.up[mark][at].load(Relaxed));
                assert_eq!(found, [wanted, down(mark)[1]], "mark {mark}");
            }
        }

        fn bring_over(&self, mark: usize) {
            for (cell, value) in self.up[mark].iter().zip(down(mark)) {
                cell.store(value, Relaxed);
            }
        }

        fn write(&self, mark: usize, value: usize, is_announced: bool) {
            let writing = (!self.frontier.is_done(TURN, mark)).then(|| {
                if !is_announced {
                    return self.frontier.enter(TURN, mark);
                }
                self.frontier.writing.store(mark, Release);
                self.frontier.enter_stretch(mark);
                Writing(Some(&self.frontier))
            });
            if writing.is_some() && self.marks[mark].load(Relaxed) == DOWN {
                self.bring_over(mark);
            }
            self.marks[mark].store(UP, Relaxed);
            self.up[mark][0].store(value, Relaxed);
            // The mutator sees the rest of the block, which the copier has brought over.
            assert_eq!(self.up[mark][1].load(Relaxed), down(mark)[1], "mark {mark}");
            drop(writing);
        }

        fn copy(&self) {
            self.frontier.copy_until(TURN, self.marks.len(), |piece| {
                for mark in piece {
                    if self.marks[mark].load(Relaxed) == DOWN {
                        self.bring_over(mark);
                        self.marks[mark].store(EQUAL, Relaxed);
                    }
                }
            });
        }
    }

    fn side_by_side(marks: usize, writes: &'static [usize], is_announced: bool) {
        loom::model(move || {
            let period = Arc::new(Period::new(marks));
            if is_announced {
                period.frontier.announce(TURN, END);
            }
            let copier = {
                let period = period.clone();
                thread::spawn(move || period.copy())
            };
            for (nth, mark) in writes.iter().enumerate() {
                period.write(*mark, 100 + nth, is_announced);
                assert_eq!(period.marks[*mark].load(Relaxed), UP);
            }
            copier.join().expect("no panic");
            period.check(writes);
        });
    }

    /// A mutator holds the copier off, writes without `writing`, and ends the hold.
    fn held_off(marks: usize, writes: &'static [usize]) {
        loom::model(move || {
            let period = Arc::new(Period::new(marks));
            let copier = {
                let period = period.clone();
                thread::spawn(move || period.copy())
            };
            let held = period.frontier.hold();
            for (nth, mark) in writes.iter().enumerate() {
                period.write(*mark, 100 + nth, false);
            }
            drop(held);
            copier.join().expect("no panic");
            period.check(writes);
        });
    }

    #[test]
    fn one_piece_held_off() {
        held_off(1, &[0]);
    }

    #[test]
    fn two_stretches_held_off() {
        held_off(2, &[0, 1]);
    }

    #[test]
    fn one_piece() {
        side_by_side(1, &[0, 0], false);
    }

    #[test]
    fn two_stretches() {
        side_by_side(2, &[1], false);
    }

    #[test]
    fn two_writes_in_two_stretches() {
        side_by_side(2, &[0, 1], false);
    }

    #[test]
    fn two_pieces_of_a_stretch() {
        side_by_side(3, &[1], false);
    }

    #[test]
    fn a_stretch_that_is_announced() {
        side_by_side(1, &[0, 0], true);
    }
}
