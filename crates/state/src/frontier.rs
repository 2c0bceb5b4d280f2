//! How far the copier of a scheme has come in a period, so that the mutator's stores are plain ones
//! in all places but the one where the copier is.
//!
//! ```text
//! marks:   done ............. | the stretch under way             | not reached ............
//!                             |  done  [piece under way]  ahead   |
//!                             ^ done    ^ copying                  ^ announced
//! ```
//!
//! The copier goes through the marks in order. It *announces* a stretch before it touches anything
//! of it, and inside the stretch goes from piece to piece. The mutator, before it changes a mark or a
//! cell, says in `writing` which piece that is in, and then looks where the copier is; the copier says
//! where it is, and then looks whether the mutator is writing there:
//!
//! - done: nobody but the mutator changes it until the next period. It need not even say anything.
//! - not reached: it may be written. Should the copier announce it meanwhile, it will find the
//!   mutator in `writing` when it comes to the piece, and wait for the end of this one write.
//! - in the stretch: the mutator looks for the piece under way, and if it is that one, withdraws and
//!   waits until the copier has left it.
//!
//! Both sides store first and then load what the other has stored, so each must keep its load behind
//! its store (Dekker). Inside a stretch, which is small, each has an ordinary fence in between.
//! Elsewhere, where nearly all writes go, the mutator has only the light one of two [`AsymmetricFences`]:
//! its stores wait for their cache lines side by side, where a claim of each block would have them wait
//! one after the other. The copier pays for both, once for each stretch.
//!
//! A period ends with all marks done, and the next one, in which the other copy collects updates, begins
//! with none: it counts the other way. So the same two numbers, untouched, mean the one before the
//! swap and the other after it, and a point of consistency has nothing to store where the copier was.
//!
//! Why the copier cannot overlook a write: if the mutator has found its mark not announced, its
//! store to `writing` came before the copier's heavy fence, or it would have found it announced. So
//! the copier, which looks at `writing` only after that fence, sees this write or a later one; every
//! store to `writing` is Release, so with a later one it sees all that this write has done. The same
//! holds inside a stretch, with the ordinary fences.

use std::ops::Range;

use stillpoint_sync::atomic::{
    AtomicUsize,
    Ordering::{self, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use stillpoint_sync::mutant;
use stillpoint_sync::{AsymmetricFences, Backoff, CachePadded, Mutex};

use crate::planted;
use crate::scheme::LiveCopy;

/// A write that takes long enough for the copier to meet it: part of a planted bug. A model's
/// scheduler needs no such help.
fn write_for_long() {
    if !cfg!(any(loom, shuttle)) {
        (0..500).for_each(|_| stillpoint_sync::atomic::spin());
    }
}

/// Stretches that an array is divided into: as many heavy fences a period, and the share of the
/// writes that take an ordinary one.
#[cfg(not(any(loom, shuttle)))]
const STRETCHES: usize = 64;
/// In models a few marks make a stretch of several.
#[cfg(any(loom, shuttle))]
const STRETCHES: usize = 2;

/// No piece at all.
const NOWHERE: usize = usize::MAX;
/// Behind all marks.
const END: usize = usize::MAX;

/// Where the copier of a grid is, and where the mutator.
#[derive(Debug)]
pub struct Frontier {
    fences: AsymmetricFences,
    marks: usize,
    /// log2 of the marks of a piece.
    piece_log2: u32,
    /// Marks of a stretch: whole pieces.
    stretch: usize,
    /// What the mutator looks at again and again, and the copier changes with each stretch.
    limits: CachePadded<Limits>,
    /// The piece that the copier is at, while it is inside a stretch.
    copying: CachePadded<AtomicUsize>,
    /// The piece that the mutator is writing in, unless the copier is done with it.
    writing: CachePadded<AtomicUsize>,
    /// One copier at a time.
    copier: Mutex<()>,
}

/// Marks below `done` are done, those from `announced` on are not reached.
#[derive(Debug)]
struct Limits {
    done: Limit,
    announced: Limit,
}

/// A limit that goes from 0 to [`END`] in each period, and so is at 0 again when the turn changes: in
/// every other period it is kept as its complement.
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

/// The mutator is writing: the copier stays away from the piece until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Writing<'a>(&'a Frontier);

impl Drop for Writing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `come_to`, which sees what was written.
        self.0.writing.store(NOWHERE, Release);
    }
}

impl Frontier {
    /// The frontier of so many marks, in pieces of about `piece_marks`, rounded up to a power of two;
    /// in the first turn, which has no copier, all of them are done.
    pub fn new(marks: usize, piece_marks: usize) -> Self {
        let piece = piece_marks.max(1).next_power_of_two();
        let stretch = marks.div_ceil(STRETCHES).max(1).next_multiple_of(piece);
        let done = || Limit(AtomicUsize::new(Limit::kept(LiveCopy::FIRST, END)));
        let limits = Limits { done: done(), announced: done() };
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

    /// True if the copier is done with a mark: until the next period it belongs to the mutator.
    #[inline(always)]
    pub fn is_done(&self, turn: LiveCopy, mark: usize) -> bool {
        mutant!(PiggybackSettlesTooEarly => return true);
        // Acquire: pairs with the Release in `copy_until`, so that what was copied is seen.
        mark < self.limits.done.load(turn, Acquire)
    }

    /// In the mutator's thread, before it looks at a mark that it is about to change: keeps the copier
    /// away from the piece that it is in, and waits for it if it is there.
    #[inline(always)]
    pub fn enter(&self, turn: LiveCopy, mark: usize) -> Writing<'_> {
        let piece = mark >> self.piece_log2;
        // Release: the copier may see this instead of the end of the write before.
        self.writing.store(piece, Release);
        self.fences.light(); // partner of the heavy one in `copy_until`
        // Relaxed: what the copier has done to this piece is seen by way of `copying`.
        if mark < self.limits.announced.load(turn, Relaxed) {
            self.enter_stretch(piece);
        }
        mutant!(PiggybackOverlooksTheWriter => write_for_long());
        Writing(self)
    }

    /// The rest of `enter` for the stretch under way.
    #[cold]
    #[inline(never)]
    fn enter_stretch(&self, piece: usize) {
        mutant!(PiggybackIgnoresThePieceUnderWay => return);
        // Partner of the one in `come_to`: the light one before holds against the heavy one only.
        fence(SeqCst);
        // Acquire: pairs with the Release of the store that has left the piece.
        if self.copying.load(Acquire) != piece {
            return;
        }
        // The copier may be waiting, too. It has not begun, or it comes to the end; it does not come
        // back in this period, so what follows needs no `writing`.
        self.writing.store(NOWHERE, Release); // as in `enter`
        let mut backoff = Backoff::new();
        while self.copying.load(Acquire) == piece {
            backoff.wait();
        }
    }

    /// In the copier's thread: goes on, stretch by stretch, until at least this many marks are done.
    /// `copy` is called with ranges of marks that nobody else looks at or changes meanwhile, but for
    /// readers. Other threads that do the same wait.
    pub fn copy_until(&self, turn: LiveCopy, end: usize, mut copy: impl FnMut(Range<usize>)) {
        let _copier = self.copier.lock();
        let end = end.min(self.marks);
        // Relaxed: in a period only copiers change it, and the lock orders those.
        let mut at = self.limits.done.load(turn, Relaxed);
        while at < end {
            let stretch = at..(at + self.stretch).min(self.marks);
            // What lies behind the last mark is no mark.
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

    /// Leaves the piece before, says that the copier is at this one, and waits for the end of a write
    /// in it.
    fn come_to(&self, piece: usize) {
        // Release: as the store that leaves the last piece.
        self.copying.store(piece, Release);
        fence(SeqCst); // partner of the one in `enter_stretch`
        mutant!(PiggybackOverlooksTheWriter => return);
        let mut backoff = Backoff::new();
        // Acquire: pairs with the Release in every store to `writing`.
        while self.writing.load(Acquire) == piece {
            backoff.wait();
        }
    }
}

/// Every schedule of a mutator and a copier over a few marks, and every value that their loads may see.
/// Both of the asymmetric fences are ordinary ones here; so the write that is known to be in the stretch
/// goes without the light one, as far as that one is of no use to it. With LOOM_MAX_PREEMPTIONS=3, as in
/// `.ci/run`, they take seconds.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::{sync::Arc, thread};

    /// The second turn: the first that has a copier.
    const TURN: LiveCopy = LiveCopy { up: 1, period: 1 };

    const DOWN: usize = 1;
    const UP: usize = 2;
    const EQUAL: usize = 0;

    /// What a period works on: a block of two cells to each mark.
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
                Writing(&self.frontier)
            });
            if writing.is_some() && self.marks[mark].load(Relaxed) == DOWN {
                self.bring_over(mark);
            }
            self.marks[mark].store(UP, Relaxed);
            self.up[mark][0].store(value, Relaxed);
            // The rest of the block is there, and seen.
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
            let period = Arc::new(Period {
                frontier: Frontier::new(marks, 1),
                marks: (0..marks).map(|_| AtomicUsize::new(DOWN)).collect(),
                up: (0..marks).map(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]).collect(),
            });
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
            assert!(period.frontier.is_all_done(TURN));
            for mark in 0..marks {
                let last = writes.iter().rposition(|write| *write == mark);
                let wanted = last.map_or(down(mark)[0], |nth| 100 + nth);
                let found = [0, 1].map(|at| period.up[mark][at].load(Relaxed));
                assert_eq!(found, [wanted, down(mark)[1]], "mark {mark}");
            }
        });
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
