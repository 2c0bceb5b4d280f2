//! Clients that wait for one of several keys to be made.
//!
//! A waiter is entered while it holds the locks of the keys, which are all missing. A transaction
//! that makes such a key holds its lock, so one of the two sees the other. That transaction wakes
//! the waiter of the key that came first. The waiter runs its command again, in its own event loop.
//! If the command takes elements and leaves more, the next waiter is woken. A waiter that finds
//! nothing keeps its place. A woken waiter that ends without success wakes the next one: its command
//! may have failed, or its client may be gone.
//!
//! While the first waiter is awake, nobody behind it is woken, or a faster event loop would serve them in
//! another order. What is made meanwhile wakes the next one when the first has ended.
//!
//! The tests of the store run this file under random schedules (`shuttle_waiters.rs`): a build of the server for
//! that would take minutes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(not(shuttle))]
use parking_lot::Mutex;
#[cfg(shuttle)]
use stillpoint_sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

/// A client that waits, known to its event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId {
    /// The event loop of the client.
    pub(crate) worker: usize,
    /// Number of the client.
    pub(crate) client: u64,
}

/// Counters of the filter.
const COUNTERS: usize = 1024;

#[derive(Debug, Default)]
struct Queues {
    /// Hash of a key → its waiters, in the order in which they came.
    by_key: HashMap<u64, BTreeMap<u64, WaiterId>>,
    /// Waiters that were woken and whose run has not ended, with the keys that woke each: the first, and
    /// those that were made since.
    woken: HashMap<u64, Vec<u64>>,
    /// Of waiters whose run leaves a key to one that came before: how many of their keys above the run has
    /// seen. What comes later may be the end of the one before.
    gave_way: HashMap<u64, usize>,
    /// Client → its place in the order, and its event loop.
    clients: HashMap<u64, (u64, usize)>,
    /// Clients that `CLIENT UNBLOCK` has chosen, with whether they get an error.
    unblocked: HashMap<u64, bool>,
    /// Waiters that came so far.
    last: u64,
    /// How often keys have moved to other tables, so that their hashes are others.
    moves: u64,
}

/// All waiters.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Number of waiters of keys that share some bits of the hash. A transaction that makes a key
    /// reads a counter first. Relaxed: waiter and maker hold the key's lock, which orders their
    /// accesses.
    counters: Box<[AtomicU32]>,
    queues: Mutex<Queues>,
    /// Waiters that were woken, by event loop.
    inboxes: Box<[Mutex<Vec<u64>>]>,
    /// Event loops of the waiters that those before them have woken at their end.
    passed_on: Mutex<Vec<usize>>,
    /// Whether `passed_on` has some. Relaxed: who sets it asks soon after.
    has_passed_on: AtomicBool,
}

impl Waiters {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            counters: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            queues: Mutex::default(),
            inboxes: (0..workers).map(|_| Mutex::default()).collect(),
            passed_on: Mutex::default(),
            has_passed_on: AtomicBool::new(false),
        }
    }

    fn counter(&self, hash: u64) -> &AtomicU32 {
        &self.counters[hash as usize % COUNTERS]
    }

    /// Whether somebody may wait for the key. The caller holds the key's lock.
    #[inline]
    pub(super) fn may_wait(&self, hash: u64) -> bool {
        self.counter(hash).load(Ordering::Relaxed) > 0
    }

    /// Enters a client as a waiter of keys, whose locks the caller holds.
    pub(super) fn enter(self: &Arc<Self>, id: WaiterId, mut keys: Vec<u64>) -> Waiting {
        keys.sort_unstable();
        keys.dedup();
        let mut queues = self.queues.lock();
        queues.last += 1;
        let place = queues.last;
        for &hash in &keys {
            self.counter(hash).fetch_add(1, Ordering::Relaxed);
            queues.by_key.entry(hash).or_default().insert(place, id);
        }
        queues.clients.insert(id.client, (place, id.worker));
        let moves = queues.moves;
        drop(queues);
        Waiting { place, client: id.client, keys, moves, of: Arc::clone(self) }
    }

    /// Lets all commands that wait run again, since keys have moved. The caller wakes the event loops.
    pub(super) fn start_again(&self) {
        let mut queues = self.queues.lock();
        queues.moves += 1;
        for (client, (_, worker)) in &queues.clients {
            self.inboxes[*worker].lock().push(*client);
        }
    }

    /// Wakes the first waiter of a key behind place `after`. Returns the waiter's event loop; `None` if there
    /// is no waiter, or if it is awake.
    pub(super) fn wake(&self, hash: u64, after: u64) -> Option<usize> {
        let mut queues = self.queues.lock();
        let Queues { by_key, woken, gave_way, .. } = &mut *queues;
        let (place, id) = by_key.get(&hash)?.range(after + 1..).next()?;
        let keys = woken.entry(*place).or_default();
        if !keys.is_empty() {
            // It finds the key as it is now, unless it has run: then its end wakes the next. If it has given
            // way, it runs again.
            let seen = gave_way.get(place).copied().unwrap_or(1).min(keys.len());
            if !keys[seen..].contains(&hash) {
                keys.push(hash);
            }
            return None;
        }
        keys.push(hash);
        self.inboxes[id.worker].lock().push(id.client);
        Some(id.worker)
    }

    /// Ends the wait of a client, with an error or as its timeout would. Gives the client's event
    /// loop; `None` if the client does not wait.
    pub(crate) fn unblock(&self, client: u64, with_error: bool) -> Option<usize> {
        let mut queues = self.queues.lock();
        let &(_, worker) = queues.clients.get(&client)?;
        queues.unblocked.insert(client, with_error);
        self.inboxes[worker].lock().push(client);
        Some(worker)
    }

    /// Clients that wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.lock().clients.len()
    }

    /// Notes an event loop to wake.
    fn pass_on(&self, worker: usize) {
        self.passed_on.lock().push(worker);
        self.has_passed_on.store(true, Ordering::Relaxed);
    }

    /// Takes the event loops to wake, since waiters that have ended have woken others.
    pub(crate) fn take_passed_on(&self) -> Vec<usize> {
        if !self.has_passed_on.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut passed_on = self.passed_on.lock();
        self.has_passed_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut passed_on)
    }

    /// Takes the clients of an event loop that were woken.
    pub(crate) fn take_woken(&self, worker: usize) -> Vec<u64> {
        std::mem::take(&mut *self.inboxes[worker].lock())
    }
}

/// A client that waits, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    place: u64,
    client: u64,
    keys: Vec<u64>,
    moves: u64,
    of: Arc<Waiters>,
}

impl Waiting {
    /// Whether a waiter of the key that came before is awake. It gets what there is, and this one is woken
    /// again when it has ended. The caller holds the key's lock.
    pub(super) fn gives_way(&self, hash: u64) -> bool {
        let mut queues = self.of.queues.lock();
        let Queues { by_key, woken, gave_way, .. } = &mut *queues;
        let Some(waiters) = by_key.get(&hash) else { return false };
        let is_before = |place: &u64| *place < self.place && waiters.contains_key(place);
        let seen = woken.get(&self.place).map_or(0, Vec::len);
        let Some((_, keys)) = woken.iter_mut().find(|(place, _)| is_before(place)) else {
            return false;
        };
        keys.push(hash);
        gave_way.entry(self.place).or_insert(seen);
        true
    }

    /// Whether `CLIENT UNBLOCK` has ended the wait, and whether with an error.
    pub(crate) fn take_unblocked(&self) -> Option<bool> {
        self.of.queues.lock().unblocked.remove(&self.client)
    }

    /// Notes that a run has found nothing. The caller holds the locks of the keys, and the client may be
    /// woken anew. It is at once, if one that it has given way to has ended meanwhile.
    pub(crate) fn settle(&self) {
        let mut queues = self.of.queues.lock();
        let Queues { woken, gave_way, clients, .. } = &mut *queues;
        let seen = gave_way.remove(&self.place).unwrap_or(usize::MAX);
        match woken.get_mut(&self.place) {
            Some(keys) if keys.len() > seen => drop(keys.drain(..seen)),
            _ => return drop(woken.remove(&self.place)),
        }
        if let Some((_, worker)) = clients.get(&self.client).copied() {
            self.of.inboxes[worker].lock().push(self.client);
            drop(queues);
            self.of.pass_on(worker);
        }
    }

    /// Notes that a run has taken what woke the client. What was made since wakes the next client at the end. Of
    /// several keys the run may have taken what was made since, and all of them wake their next clients.
    pub(crate) fn settle_served(&self) {
        if self.keys.len() > 1 {
            return;
        }
        if let Some(keys) = self.of.queues.lock().woken.get_mut(&self.place) {
            keys.drain(..keys.len().min(1));
        }
    }

    /// Whether keys have moved since the wait began, so that it waits for others.
    pub(crate) fn is_stale(&self) -> bool {
        self.of.queues.lock().moves != self.moves
    }

    /// The place in the order in which waiters came.
    pub(super) fn place(&self) -> u64 {
        self.place
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queues = self.of.queues.lock();
        for hash in &self.keys {
            self.of.counter(*hash).fetch_sub(1, Ordering::Relaxed);
            if let Some(waiters) = queues.by_key.get_mut(hash) {
                waiters.remove(&self.place);
                if waiters.is_empty() {
                    queues.by_key.remove(hash);
                }
            }
        }
        // The client may wait anew already, for keys that have moved.
        if queues.clients.get(&self.client).is_some_and(|(place, _)| *place == self.place) {
            queues.clients.remove(&self.client);
            queues.unblocked.remove(&self.client);
        }
        // If a woken client leaves without success, the key that woke it wakes the next waiter.
        let woken_by = queues.woken.remove(&self.place);
        queues.gave_way.remove(&self.place);
        drop(queues);
        for hash in woken_by.into_iter().flatten() {
            self.of.wake(hash, 0).into_iter().for_each(|worker| self.of.pass_on(worker));
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn id(client: u64) -> WaiterId {
        WaiterId { worker: client as usize % 2, client }
    }

    #[test]
    fn waiters_are_woken_in_their_order_and_once() {
        let waiters = Arc::new(Waiters::new(2));
        let (first, second) = (waiters.enter(id(1), vec![7, 7, 9]), waiters.enter(id(2), vec![7]));
        assert!(waiters.may_wait(7) && waiters.may_wait(9) && !waiters.may_wait(8));
        assert_eq!((waiters.wake(7, 0), waiters.take_woken(1)), (Some(1), vec![1]));
        assert_eq!((waiters.wake(7, 0), waiters.wake(8, 0)), (None, None), "the first is awake");
        // The first waiter finds nothing, wakes the next one, and keeps its place.
        assert_eq!(waiters.wake(7, first.place()), Some(0));
        assert_eq!(waiters.take_woken(0), [2]);
        assert!(second.gives_way(7) && !first.gives_way(7), "the first is awake still");
        first.settle();
        assert!(!second.gives_way(7));
        assert_eq!(waiters.wake(7, 0), Some(1));
        assert_eq!(waiters.wake(7, first.place()), None, "the second is awake");
        assert_eq!((second.take_unblocked(), waiters.unblock(2, true)), (None, Some(0)));
        let unblocked = (second.take_unblocked(), waiters.unblock(3, true), waiters.len());
        assert_eq!(unblocked, (Some(true), None, 2));
        drop(second);
        drop(first);
        assert!(waiters.take_passed_on().is_empty(), "the first was awake");
        assert!(!waiters.may_wait(7) && !waiters.may_wait(9));
        let queues = waiters.queues.lock();
        assert!(queues.by_key.is_empty() && queues.woken.is_empty() && queues.clients.is_empty());
    }

    #[test]
    fn waiters_start_again_when_keys_move() {
        let waiters = Arc::new(Waiters::new(2));
        let first = waiters.enter(id(1), vec![7]);
        assert!(!first.is_stale());
        waiters.start_again();
        assert_eq!((waiters.take_woken(1), first.is_stale()), (vec![1], true));
        // The client waits for other keys before it gives up the old ones.
        let again = waiters.enter(id(1), vec![8]);
        drop(first);
        assert_eq!((again.is_stale(), waiters.len()), (false, 1));
    }

    #[test]
    fn what_woke_a_client_that_is_gone_wakes_the_next() {
        let waiters = Arc::new(Waiters::new(2));
        let (first, second) = (waiters.enter(id(1), vec![7]), waiters.enter(id(2), vec![7]));
        assert_eq!(waiters.wake(7, 0), Some(1));
        drop(first);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![2], vec![0]));
        assert_eq!(waiters.take_woken(1), [1]);
        // A client that has taken something wakes nobody by leaving.
        let third = waiters.enter(id(3), vec![7, 9]);
        second.settle_served();
        drop(second);
        assert_eq!((waiters.take_woken(1), waiters.take_passed_on()), (vec![], vec![]));
        // But what was made while it was awake is the next one's, whether it was made before its run or after.
        let fourth = waiters.enter(id(4), vec![9]);
        assert_eq!((waiters.wake(7, 0), waiters.wake(9, 0)), (Some(1), None));
        third.settle_served();
        drop(third);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![4], vec![0]));
        fourth.settle();
        // One ends between the run that gives way to it and the end of that run.
        let (before, behind) =
            (waiters.enter(id(7), vec![9, 10]), waiters.enter(id(8), vec![10, 11]));
        assert_eq!((waiters.wake(10, 0), waiters.wake(11, 0)), (Some(1), Some(0)));
        assert_eq!((waiters.take_woken(0), waiters.take_woken(1)), (vec![8], vec![3, 7]));
        assert!(behind.gives_way(10));
        drop(before);
        behind.settle();
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![8], vec![0]));
        behind.settle();
        assert!(waiters.queues.lock().woken.is_empty(), "the second run has found nothing");
        drop(behind);
        // A client of several keys may have taken what was made after the key that woke it.
        let (fifth, sixth) = (waiters.enter(id(5), vec![7, 8]), waiters.enter(id(6), vec![8]));
        assert_eq!((waiters.wake(8, 0), waiters.wake(7, 0)), (Some(1), None));
        fifth.settle_served();
        drop(fifth);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![6], vec![0]));
        drop((fourth, sixth));
    }
}
