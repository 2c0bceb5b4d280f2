//! The mailbox by which points of consistency reach the writer's thread.
//!
//! The mutator's side costs a few plain loads and stores. A lock would have the mutator wait until all
//! stores of its step have reached their cache lines.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_mem::{prefetch, prefetch_to_write};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::arrays::Shared;
use crate::capture::{Capture, PointOfConsistency};
use crate::scheme::{Content, Frozen, LiveCopy, Scheme};

/// Pause between two looks of the writer into the mailbox.
const LOOK: Duration = Duration::from_millis(1);

/// Where the mutator leaves a point of consistency for the writer.
#[derive(Debug)]
pub(crate) struct Mailbox<S: Scheme> {
    shared: Arc<Shared<S>>,
    left: CachePadded<Slot<S::Frozen>>,
    hints: CachePadded<Hints>,
    /// Guards the sleep of both sides.
    sleep: Mutex<()>,
    /// Signals that the writer is to end, or that a thread waits for an image.
    came: Condvar,
    /// Signals that a capture has ended, or that the writer has panicked.
    ended: Condvar,
    /// Whether a thread waits for the image under way, so that the writer does not pace the image.
    is_urgent: AtomicBool,
    stops: AtomicBool,
}

/// Hints that the mutator reads in every tick and the writer seldom changes.
#[derive(Debug)]
struct Hints {
    /// True if the next tick is to begin a capture.
    is_wanted: AtomicBool,
    /// Whether the writer's thread has panicked.
    is_dead: AtomicBool,
}

impl<S: Scheme> Mailbox<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>, is_wanted: bool) -> Self {
        let is_wanted = AtomicBool::new(is_wanted && S::CONTENT != Content::Nothing);
        Self {
            shared,
            left: CachePadded::new(Slot::new()),
            hints: CachePadded::new(Hints { is_wanted, is_dead: AtomicBool::new(false) }),
            sleep: Mutex::new(()),
            came: Condvar::new(),
            ended: Condvar::new(),
            is_urgent: AtomicBool::new(false),
            stops: AtomicBool::new(false),
        }
    }

    /// Prefetches the memory that the end of a tick reads. After a long step that memory is not in
    /// the cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&*self.hints);
        prefetch_to_write(std::slice::from_ref(&*self.left));
        prefetch(&*self.shared.gate);
        prefetch(&*self.shared.slots);
    }

    /// True if the next tick is to begin a capture.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a hint. The state of the capture (`CaptureState`) orders the data of a capture.
        self.hints.is_wanted.load(Relaxed)
    }

    pub(crate) fn want(&self, is_wanted: bool) {
        self.hints.is_wanted.store(is_wanted, Relaxed); // a hint, as in `is_wanted`
    }

    /// Leaves a point of consistency for the writer, which looks here every millisecond. To wake
    /// the writer would cost the mutator a system call.
    pub(crate) fn put(&self, point: PointOfConsistency<S>) {
        self.left.put(point.turn, point.tick, point.frozen);
    }

    /// The capture of the point of consistency that the mutator has left.
    pub(crate) fn take(&self) -> Option<Capture<S>> {
        let (turn, tick, frozen) = self.left.take()?;
        Some(Capture::new(self.shared.clone(), PointOfConsistency { turn, tick, frozen }))
    }

    /// The writer sleeps until its next look, or until another thread wakes it.
    pub(crate) fn wait_for_look(&self) {
        self.came.wait_for(&mut self.sleep.lock(), LOOK);
    }

    /// Hurries the capture under way and waits until `has_ended` says that it has ended. False if the
    /// writer's thread has panicked.
    pub(crate) fn wait_for_end(&self, mut has_ended: impl FnMut() -> bool) -> bool {
        self.is_urgent.store(true, Relaxed); // Relaxed: a hint
        self.came.notify_one();
        let mut sleep = self.sleep.lock();
        let is_alive = loop {
            if self.is_dead() {
                break false;
            }
            if has_ended() {
                break true;
            }
            self.ended.wait_for(&mut sleep, LOOK);
        };
        self.is_urgent.store(false, Relaxed); // a hint, as above
        is_alive
    }

    /// Tells waiting threads that a capture has ended.
    pub(crate) fn tell_ended(&self) {
        self.ended.notify_all();
    }

    /// True if somebody waits for the image under way.
    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Relaxed) // a hint, as in `wait_for_end`
    }

    pub(crate) fn stop(&self) {
        self.stops.store(true, Release); // pairs with the Acquire in `stops`
        self.came.notify_one();
    }

    pub(crate) fn stops(&self) -> bool {
        self.stops.load(Acquire) // pairs with the Release in `stop`
    }

    /// Notes that the writer's thread has panicked. The next tick notices the panic, and all waits
    /// end.
    pub(crate) fn die(&self) {
        self.hints.is_dead.store(true, Release); // pairs with the Acquire in `is_dead`
        self.want(true);
        self.ended.notify_all();
    }

    /// True once the writer's thread has panicked.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.hints.is_dead.load(Acquire) // pairs with the Release in `die`
    }
}

/// Room for one point of consistency. The mutator fills the room, and the writer empties it. The
/// mutator does not fill the room twice, since the arrays' `CaptureState` forbids a capture before
/// the last one has ended.
#[derive(Debug)]
struct Slot<F> {
    /// [`EMPTY`], or the turn.
    turn: AtomicU64,
    tick: AtomicU64,
    /// The scheme's value of the capture, for schemes that have one.
    frozen: Mutex<Option<F>>,
}

const EMPTY: u64 = 0;

/// The turn as a word that is not [`EMPTY`].
fn encode(turn: LiveCopy) -> u64 {
    1 | (turn.up as u64) << 1 | u64::from(turn.period) << 8
}

fn decode(word: u64) -> LiveCopy {
    LiveCopy { up: (word >> 1 & 1) as usize, period: (word >> 8) as u8 }
}

impl<F: Frozen> Slot<F> {
    fn new() -> Self {
        Self { turn: AtomicU64::new(EMPTY), tick: AtomicU64::new(0), frozen: Mutex::new(None) }
    }

    fn put(&self, turn: LiveCopy, tick: u64, frozen: F) {
        if F::nothing().is_none() {
            *self.frozen.lock() = Some(frozen);
        }
        // Relaxed: the Release of the turn publishes the tick.
        self.tick.store(tick, Relaxed);
        // Release: pairs with the Acquire in `take`, which sees all that the mutator has written.
        self.turn.store(encode(turn), Release);
    }

    fn take(&self) -> Option<(LiveCopy, u64, F)> {
        let word = self.turn.load(Acquire); // pairs with the Release in `put`
        if word == EMPTY {
            return None;
        }
        let tick = self.tick.load(Relaxed); // published by the turn
        let frozen = F::nothing().or_else(|| self.frozen.lock().take());
        // Relaxed: the end of the capture orders this before the next `put`.
        self.turn.store(EMPTY, Relaxed);
        Some((decode(word), tick, frozen.expect("the mutator has left it")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_survives_its_word() {
        for up in [0, 1] {
            for period in [0, 1, 127, 255] {
                let turn = LiveCopy { up, period };
                assert!(decode(encode(turn)) == turn && encode(turn) != EMPTY);
            }
        }
    }
}

/// Every schedule of a mutator that leaves two points of consistency, and of a writer that looks a few
/// times. The mutator leaves the second one after the first capture has ended.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::capture::CaptureState;
    use crate::scheme::Last;
    use loom::{sync::Arc, thread};

    const FIRST: LiveCopy = LiveCopy { up: 1, period: 1 };

    #[test]
    fn the_writer_sees_what_the_mutator_has_left() {
        loom::model(|| {
            let shared = Arc::new((Slot::<()>::new(), CaptureState::new(), AtomicU64::new(0)));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (slot, gate, cells) = &*shared;
                    let (mut seen, mut looks) = (0, 0);
                    while looks < 3 {
                        looks += 1;
                        if let Some((turn, tick, ())) = slot.take() {
                            let wanted = if seen == 0 { FIRST } else { FIRST.swapped() };
                            seen += 1;
                            assert_eq!((turn, tick), (wanted, 10 * seen));
                            assert_eq!(cells.load(Relaxed), seen, "the cells as of the tick");
                            gate.end(Last::Durable);
                        }
                        thread::yield_now();
                    }
                })
            };
            let (slot, gate, cells) = &*shared;
            let (mut put, mut looks) = (0, 0);
            while put < 2 && looks < 3 {
                looks += 1;
                if gate.last().is_some() {
                    put += 1;
                    cells.store(put, Relaxed);
                    gate.begin();
                    slot.put(if put == 1 { FIRST } else { FIRST.swapped() }, 10 * put, ());
                }
                thread::yield_now();
            }
            writer.join().expect("no panic");
        });
    }
}
