//! The thread that gives up keys of a full cache, ahead of need.
//!
//! ```text
//! spare memory   ── below the mark ─▶ delete keys ─▶ deletions closed ─▶ memory is spare again
//! writer         ── finds no room ──▶ asks, waits for a moment, tries again
//! ```
//! The thread also moves records closer together where memory of deleted keys serves no other size.
//!
//! The memory of a deleted key is of use only once its deletion survives any crash. So keys are given
//! up while there is spare memory still, and if that is scarce, this thread has the log flushed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{MemoryRoom, Session, Stamp, Unflushed};

use crate::error::ServerError;
use crate::keyspace::{BuriedNodes, Victims, Woken};
use crate::shared::Shared;

/// The spare memory that is kept: this part of the limit, within the two bounds.
const SPARE_PART: usize = 32;
const SPARE_BYTES_MIN: usize = 1 << 20;
const SPARE_BYTES_MAX: usize = 256 << 20;
/// Keys that one turn gives up, about.
const TURN_KEYS: usize = 1024;
/// Time after which a turn begins no further choice, in nanoseconds.
const TURN_NS: u64 = 20_000_000;
/// Choices in one turn whose keys had all been used since they were drawn.
const VAIN_MAX: usize = 64;
/// Time between two looks while memory is scarce, and while it is not.
const SCARCE_LOOK: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(20);
/// Time between two looks while no policy gives up keys.
const IDLE_LOOK: Duration = Duration::from_millis(100);
/// Turns after which the memory of a closed deletion is counted as spare.
const TURNS_TO_FREE: u32 = 3;
/// The part of the spare memory that is given up for a writer that finds none.
const ASKED_PART: usize = 8;
/// While deleted keys that wait for a checkpoint take this part of the limit, and more than so many bytes, no
/// key is given up.
const WAITING_PART: usize = 8;
/// The same while writers press for memory.
const PRESSED_PART: usize = 4;
const WAITING_BYTES_MIN: usize = 32 << 20;
/// After writers have asked for so long, keys are given up for them whatever else may free memory.
const ASKS_PATIENCE: Duration = Duration::from_millis(50);
/// Writers that ask again after a longer time have found room meanwhile.
const ASKS_APART: Duration = Duration::from_millis(20);

/// Since when writers ask for room, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    since_ns: u64,
    last_ns: u64,
}

impl Asks {
    /// Notes that a writer asks. Whether writers have asked for long.
    fn note(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.last_ns) > ASKS_APART.as_nanos() as u64 {
            self.since_ns = now_ns;
        }
        self.last_ns = now_ns;
        now_ns - self.since_ns >= ASKS_PATIENCE.as_nanos() as u64
    }
}

/// Bytes that are on their way: of keys that were given up, and of nodes of deleted collections, at least.
#[derive(Clone, Copy, Debug, Default)]
struct Coming {
    deleted: usize,
    buried: usize,
}

impl Coming {
    /// Bytes to give up for a writer that asks. `moves` says that records move closer together, which is
    /// better than to give records up. `presses` says that writers have asked for long: perhaps nothing of
    /// all this frees memory of their size.
    fn asked(self, limit_bytes: usize, moves: bool, presses: bool) -> usize {
        let asked = asked_bytes(limit_bytes).saturating_sub(self.deleted);
        match (presses, moves) {
            (true, _) => asked,
            (false, true) => 0,
            (false, false) => asked.saturating_sub(self.buried),
        }
    }
}

/// The nodes of collections that were given up, and that are still to be removed.
#[derive(Clone, Copy, Debug, Default)]
struct Burials {
    left: BuriedNodes,
    /// Nodes of all collections at the last look.
    nodes: u64,
}

impl Burials {
    /// Notes that there are so many nodes of all collections now, and whether there are graves.
    fn look(&mut self, nodes: u64, has_graves: bool) {
        match has_graves {
            true => self.left.remove(self.nodes.saturating_sub(nodes) as usize),
            false => self.left = BuriedNodes::default(),
        }
        self.nodes = nodes;
    }
}

/// Deletions whose memory is not free yet.
#[derive(Debug)]
struct Deleted {
    last: Stamp,
    bytes: usize,
    /// Turns since the deletions were closed.
    turns: u32,
}

/// The thread that gives up keys.
#[derive(Debug)]
pub(crate) struct Evictor {
    number: usize,
    shared: Arc<Shared>,
    session: Session,
    victims: Victims,
    deleted: VecDeque<Deleted>,
    buried: Burials,
    asks: Asks,
    /// Whether records were still to be loaded at the last look.
    was_loading: bool,
}

impl Evictor {
    /// `number` is that of the thread among all that execute commands.
    pub(crate) fn new(number: usize, shared: Arc<Shared>, session: Session) -> Self {
        let seed = shared.config.rng.next_u64();
        let victims = Victims::new(seed, shared.keyspace.eviction.policy());
        let (deleted, buried, asks) = Default::default();
        Self { number, shared, session, victims, deleted, buried, asks, was_loading: false }
    }

    /// Runs until the server ends.
    ///
    /// # Errors
    /// When commits cannot be made durable.
    pub(crate) fn run(&mut self) -> Result<(), ServerError> {
        let mut wait = Duration::ZERO;
        loop {
            let eviction = &self.shared.keyspace.eviction;
            let woken = eviction.wait(wait);
            if woken == Woken::Over {
                return Ok(());
            }
            wait = if eviction.policy().evicts() {
                self.turn(woken == Woken::Asked)?
            } else {
                self.deleted.clear();
                IDLE_LOOK
            };
            if self.session.relocate() {
                wait = SCARCE_LOOK;
            }
        }
    }

    /// One look at the memory. Gives the time until the next one.
    fn turn(&mut self, is_asked: bool) -> Result<Duration, ServerError> {
        if !self.shared.keyspace.has_all() {
            // Memory that is kept for records to come is no sign that keys must go. And the keys in memory
            // are those that clients have just asked for. Writers that wait are refused.
            self.shared.keyspace.eviction.note_exhausted(true);
            self.was_loading = true;
            return Ok(LOOK);
        }
        let keyspace = &self.shared.keyspace;
        if std::mem::take(&mut self.was_loading) {
            keyspace.eviction.note_exhausted(false);
        }
        let room = keyspace.engine().memory_room();
        let kept = kept_bytes(room.limit_bytes);
        let deleted: usize = self.deleted.iter().map(|deleted| deleted.bytes).sum();
        self.buried.look(keyspace.nodes(), keyspace.has_graves());
        let coming =
            Coming { deleted, buried: keyspace.buried_bytes().max(self.buried.left.bytes) };
        if coming.buried > 0 && (is_asked || room.spare_bytes < kept) {
            keyspace.eviction.ask_to_bury();
            self.shared.mailboxes.wake(0);
        }
        // Memory that a checkpoint holds comes back with its end. Further deletions would not free it.
        let returning = deleted.max(room.returning_bytes) + room.child_bytes + coming.buried;
        let missing = kept.saturating_sub(room.spare_bytes + returning);
        // A writer may need memory of a size of which there is none, whatever else is spare.
        let presses = is_asked && self.asks.note(self.now_ns());
        let moves = is_asked && missing == 0 && self.session.relocate();
        let asked = if is_asked { coming.asked(room.limit_bytes, moves, presses) } else { 0 };
        let wanted = missing.max(asked);
        let mut found = true;
        if wanted > 0 && !waits_for_checkpoint(room, presses) {
            found = self.give_up(wanted);
            self.shared.keyspace.eviction.note_exhausted(!found);
            if is_asked {
                self.shared.keyspace.eviction.note_answer();
            }
        } else if wanted == 0 && !is_asked {
            // Whoever finds no room now may ask: there may be keys by now that were not there when the policy
            // found none.
            self.shared.keyspace.eviction.note_exhausted(false);
        }
        let is_scarce = room.spare_bytes < kept;
        if is_asked || room.spare_bytes < kept / 2 {
            // What was deleted counts as memory that comes back, so that writers wait while the device stalls.
            self.session.idle();
            self.close_deletions()?;
        }
        self.session.idle();
        self.settle();
        Ok(match (is_scarce || !self.deleted.is_empty(), found) {
            (true, true) => SCARCE_LOOK,
            _ => LOOK,
        })
    }

    /// Deletes keys that took `bytes`, or a turn's number of keys. Whether there was any to choose, or may be
    /// where it has yet to look.
    fn give_up(&mut self, bytes: usize) -> bool {
        let (mut keys, mut sum) = (0, 0);
        let (mut has_found, mut vain) = (false, 0);
        let (now_ms, start_ns) = (self.shared.config.clock.wall_ms(), self.now_ns());
        while keys < TURN_KEYS
            && sum < bytes
            && vain < VAIN_MAX
            && self.now_ns() - start_ns < TURN_NS
        {
            let Self { session, shared, victims, number, .. } = self;
            let place = (session, &shared.keyspace);
            let given_up = victims.delete_some(place, *number, bytes - sum, now_ms);
            has_found |= given_up.chosen > 0 || given_up.searches;
            if given_up.chosen == 0 {
                break;
            }
            // All that were chosen may have been used since they were drawn.
            let Some(last) = given_up.last else {
                vain += 1;
                continue;
            };
            keys += given_up.keys;
            sum += given_up.bytes + given_up.buried.bytes;
            self.buried.left.add(given_up.buried);
            self.deleted.push_back(Deleted { last, bytes: given_up.bytes, turns: 0 });
        }
        has_found
    }

    fn now_ns(&self) -> u64 {
        self.shared.config.clock.monotonic_ns()
    }

    /// Waits until the deletions are closed.
    fn close_deletions(&self) -> Result<(), ServerError> {
        let Some(newest) = self.deleted.back() else { return Ok(()) };
        let engine = self.shared.keyspace.engine();
        let done = engine.make_durable(&Unflushed::of(vec![newest.last]));
        done.map_err(|error| ServerError::Flush(error.to_string()))
    }

    /// Forgets the deletions whose memory is free by now.
    fn settle(&mut self) {
        let engine = self.shared.keyspace.engine();
        for deleted in &mut self.deleted {
            if deleted.turns == 0 && !engine.is_durable(&Unflushed::of(vec![deleted.last])) {
                break;
            }
            deleted.turns += 1;
        }
        while self.deleted.pop_front_if(|deleted| deleted.turns > TURNS_TO_FREE).is_some() {}
    }
}

/// Bytes of memory that are kept spare below this limit.
pub(super) fn kept_bytes(limit_bytes: usize) -> usize {
    (limit_bytes / SPARE_PART).clamp(SPARE_BYTES_MIN, SPARE_BYTES_MAX)
}

/// Bytes that are given up for one writer that finds no memory.
pub(super) fn asked_bytes(limit_bytes: usize) -> usize {
    kept_bytes(limit_bytes) / ASKED_PART
}

/// Whether so many deleted keys wait for a checkpoint that further deletions might free nothing. The
/// engine takes checkpoints for them. A key whose deletion has to wait frees its value at least, so more may wait
/// if a writer `presses`.
fn waits_for_checkpoint(room: MemoryRoom, presses: bool) -> bool {
    let part = if presses { PRESSED_PART } else { WAITING_PART };
    room.waiting_bytes > (room.limit_bytes / part).max(WAITING_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMIT: usize = 1 << 30;

    #[test]
    fn writers_that_ask_again_and_again_press_in_the_end() {
        let mut asks = Asks::default();
        for round in 1..4u64 {
            let begin = round * 10_000 * MS;
            assert!((0..50).all(|ms| !asks.note(begin + ms * MS)), "moves may still make room");
            assert!((50..900).all(|ms| asks.note(begin + ms * MS)));
        }
        // Each of these has found room soon.
        assert!((0..100).all(|turn| !asks.note(100_000 * MS + turn * 30 * MS)));
    }

    #[test]
    fn neither_moves_nor_graves_hold_up_who_presses() {
        let bytes = asked_bytes(LIMIT);
        let none = Coming::default();
        assert_eq!(none.asked(LIMIT, false, false), bytes);
        assert_eq!(none.asked(LIMIT, true, false), 0);
        assert_eq!(none.asked(LIMIT, true, true), bytes);
        let graves = Coming { buried: LIMIT, ..none };
        assert_eq!(graves.asked(LIMIT, false, false), 0);
        assert_eq!(graves.asked(LIMIT, false, true), bytes);
        assert_eq!(Coming { buried: 1, ..none }.asked(LIMIT, false, false), bytes - 1);
        // What was given up before is free soon.
        assert_eq!(Coming { deleted: bytes, ..none }.asked(LIMIT, true, true), 0);
    }

    #[test]
    fn more_may_wait_for_a_checkpoint_if_writers_press() {
        let room = |waiting_bytes| MemoryRoom {
            limit_bytes: LIMIT,
            spare_bytes: 0,
            returning_bytes: 0,
            waiting_bytes,
            child_bytes: 0,
        };
        assert!(!waits_for_checkpoint(room(LIMIT / 8), false));
        assert!(waits_for_checkpoint(room(LIMIT / 8 + 1), false));
        assert!(!waits_for_checkpoint(room(LIMIT / 4), true));
        assert!(waits_for_checkpoint(room(LIMIT / 4 + 1), true));
    }
}
