//! Clients that wait for one of several keys to be made.
//!
//! A waiter is entered while it holds the locks of the keys, which are all missing. A transaction
//! that makes such a key holds its lock, so one of the two sees the other. That transaction serves the
//! waiters of the key at its end, in the order in which they came, as long as there are elements.
//!
//! ```text
//! waits ─ claim ─ claimed ─ commit ─ served ─ the event loop sends the reply
//!   │                └───── rollback: waits again
//!   └─ woken, or the wait is over ─ runs or ends: nobody claims it
//! ```
//! A transaction *claims* a waiter before it takes elements for it. Nobody else serves the waiter then, and its
//! event loop neither runs its command nor closes its connection before the transaction has ended. So who is
//! served had an open connection when the transaction committed.
//!
//! Some waiters are woken instead, and run their command again, as a transaction of their own. So it is when
//! databases were exchanged, and when a transaction cannot serve a waiter. Then whoever makes the key wakes the
//! waiter that came first. If its command takes elements and leaves more, the next waiter is woken. A waiter that
//! finds nothing keeps its place. A woken waiter that ends without success wakes the next one: its command
//! may have failed, or its client may be gone.
//!
//! While the first waiter is awake, nobody behind it is woken or claimed, or a faster event loop would serve them
//! in another order. What is made meanwhile wakes the next one when the first has ended.
//!
//! The tests of the store run this file under random schedules (`shuttle_waiters.rs`): a build of the server for
//! that would take minutes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(not(shuttle))]
use parking_lot::Mutex;
#[cfg(not(shuttle))]
use stillpoint::Stamp;
#[cfg(shuttle)]
use stillpoint_format::Stamp;
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

/// What a client that waits wants of one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Elements off an end of a list: one, or up to a number of them as an array.
    Elements { from_right: bool, most: Option<u64> },
    /// An element off an end of a list, for an end of the list at `target`.
    Move { from_right: bool, to_right: bool, target: Box<[u8]> },
    /// Members of a sorted set, those with the highest scores or with the lowest: one, or up to a number of
    /// them as an array.
    Members { highest: bool, most: Option<u64> },
}

impl Wanted {
    fn is_of_list(&self) -> bool {
        !matches!(self, Self::Members { .. })
    }

    /// The key of another list that the client changes.
    fn target(&self) -> Option<&[u8]> {
        match self {
            Self::Move { target, .. } => Some(target),
            Self::Elements { .. } | Self::Members { .. } => None,
        }
    }
}

/// A wait: the hashes of the keys with the keys, and what the client wants of the first that is made.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) keys: Vec<(u64, Box<[u8]>)>,
    pub(crate) wanted: Wanted,
    /// Whether the reply is in RESP3.
    pub(crate) resp3: bool,
}

/// What a client has got that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The reply in its encoding, or the text of an error.
    pub(crate) reply: Result<Vec<u8>, String>,
    /// The commit that has served it, which the reply depends on. `None` if that has written nothing.
    pub(crate) commit: Option<Stamp>,
}

/// The state of a waiter.
#[derive(Debug)]
enum State {
    /// The transaction that makes one of its keys serves it.
    Waits,
    /// Its command runs again, as a transaction of its own.
    Runs,
    /// Its wait is over, or its client leaves. Nobody serves it.
    Ends,
    /// A transaction serves it, and has not ended yet.
    Claimed,
    /// A transaction has served it. Its event loop has not taken the reply yet.
    Served(Served),
}

#[derive(Debug)]
struct Entry {
    wish: Wish,
    /// [`Queues::moves`] when it came.
    moves: u64,
    state: State,
}

/// How the run of a waiter begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Its command runs.
    Runs,
    /// A transaction has served it.
    Served,
    /// A transaction serves it now. The event loop looks again when the transaction has ended.
    Later,
}

/// Who is to be served next.
#[derive(Debug)]
pub(crate) enum NextWaiter {
    Nobody,
    /// One that is awake, and takes what there is.
    Awake,
    Claimed(Claim),
}

/// Most keys of other lists that one transaction changes for waiters. Others are woken.
const TARGETS_MAX: usize = 64;

/// Counters of the filter.
const COUNTERS: usize = 1024;

#[derive(Debug, Default)]
struct Queues {
    /// All waiters, by their places in the order in which they came.
    entries: BTreeMap<u64, Entry>,
    /// Waiters that were served, and whose event loops have not taken the replies yet.
    served: usize,
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

impl Queues {
    /// Lets nobody claim a waiter any more. False if a transaction has served it, or is about to.
    fn end(&mut self, place: u64) -> bool {
        match self.entries.get_mut(&place).map(|entry| &mut entry.state) {
            Some(State::Claimed | State::Served(_)) => false,
            Some(state) => {
                *state = State::Ends;
                true
            }
            None => true,
        }
    }
}

/// All waiters.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Number of waiters of keys that share some bits of the hash. A transaction that makes a key
    /// reads a counter first. Relaxed: waiter and maker hold the key's lock, which orders their
    /// accesses.
    counters: Box<[AtomicU32]>,
    /// All waiters, and those of them that change a list at another key. Relaxed: who reads too little finds a
    /// waiter later, while it holds the key's lock, and runs again.
    all: AtomicU32,
    movers: AtomicU32,
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
            all: AtomicU32::new(0),
            movers: AtomicU32::new(0),
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

    /// Whether anybody waits.
    pub(crate) fn has_any(&self) -> bool {
        self.all.load(Ordering::Relaxed) > 0
    }

    /// Whether anybody waits who changes a list at another key.
    pub(crate) fn has_movers(&self) -> bool {
        self.movers.load(Ordering::Relaxed) > 0
    }

    /// Enters a client as a waiter of keys, whose locks the caller holds.
    pub(super) fn enter(self: &Arc<Self>, id: WaiterId, mut wish: Wish) -> Waiting {
        wish.keys.sort_unstable();
        wish.keys.dedup_by_key(|(hash, _)| *hash);
        let keys: Vec<u64> = wish.keys.iter().map(|(hash, _)| *hash).collect();
        let moves_elements = wish.wanted.target().is_some();
        self.all.fetch_add(1, Ordering::Relaxed);
        self.movers.fetch_add(u32::from(moves_elements), Ordering::Relaxed);
        let mut queues = self.queues.lock();
        queues.last += 1;
        let place = queues.last;
        self.wait_for(&mut queues, (place, id), &keys);
        queues.clients.insert(id.client, (place, id.worker));
        let moves = queues.moves;
        queues.entries.insert(place, Entry { wish, moves, state: State::Waits });
        drop(queues);
        Waiting { place, client: id.client, keys, moves, moves_elements, of: Arc::clone(self) }
    }

    /// Enters a waiter at keys.
    fn wait_for(&self, queues: &mut Queues, (place, id): (u64, WaiterId), keys: &[u64]) {
        for &hash in keys {
            self.counter(hash).fetch_add(1, Ordering::Relaxed);
            queues.by_key.entry(hash).or_default().insert(place, id);
        }
    }

    /// Takes a waiter away from keys.
    fn leave_keys(&self, queues: &mut Queues, place: u64, keys: &[u64]) {
        for hash in keys {
            self.counter(*hash).fetch_sub(1, Ordering::Relaxed);
            if let Some(waiters) = queues.by_key.get_mut(hash) {
                waiters.remove(&place);
                if waiters.is_empty() {
                    queues.by_key.remove(hash);
                }
            }
        }
    }

    /// Wakes the next waiters of the keys that have woken one which does not take their elements.
    fn wake_next(&self, woken_by: Option<Vec<u64>>) {
        for hash in woken_by.into_iter().flatten() {
            self.wake(hash, 0).into_iter().for_each(|worker| self.pass_on(worker));
        }
    }

    /// The keys of other lists that waiters of a key change.
    pub(super) fn targets(&self, hash: u64) -> Vec<Box<[u8]>> {
        let queues = self.queues.lock();
        let places = queues.by_key.get(&hash).into_iter().flat_map(BTreeMap::keys);
        let entries = places.filter_map(|place| queues.entries.get(place));
        let targets = entries.filter_map(|entry| entry.wish.wanted.target());
        targets.take(TARGETS_MAX).map(Box::from).collect()
    }

    /// Claims the first waiter of a list's or a sorted set's key behind place `after`. The caller holds the lock
    /// of the key.
    pub(crate) fn claim(self: &Arc<Self>, hash: u64, after: u64, is_list: bool) -> NextWaiter {
        let mut queues = self.queues.lock();
        let Queues { by_key, woken, entries, moves, .. } = &mut *queues;
        let Some(waiters) = by_key.get(&hash) else { return NextWaiter::Nobody };
        for (&place, id) in waiters.range(after + 1..) {
            let Some(entry) = entries.get_mut(&place) else { continue };
            // One whose key has moved waits for another.
            if entry.wish.wanted.is_of_list() != is_list || entry.moves != *moves {
                continue;
            }
            match entry.state {
                State::Ends | State::Claimed | State::Served(_) => continue,
                State::Runs => return NextWaiter::Awake,
                State::Waits if woken.contains_key(&place) => return NextWaiter::Awake,
                State::Waits => {}
            }
            entry.state = State::Claimed;
            let Wish { keys, wanted, resp3 } = &entry.wish;
            let key = keys.iter().find(|(of, _)| *of == hash).map(|(_, key)| key.clone());
            return NextWaiter::Claimed(Claim {
                place,
                id: *id,
                key: key.unwrap_or_default(),
                wanted: wanted.clone(),
                resp3: *resp3,
                of: Arc::clone(self),
            });
        }
        NextWaiter::Nobody
    }

    /// Lets nobody serve a client any more, since its connection is about to be closed.
    pub(crate) fn leave(&self, client: u64) {
        let mut queues = self.queues.lock();
        let Some(&(place, _)) = queues.clients.get(&client) else { return };
        queues.end(place);
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
    /// loop; `None` if the client does not wait any more, or is being served.
    pub(crate) fn unblock(&self, client: u64, with_error: bool) -> Option<usize> {
        let mut queues = self.queues.lock();
        let &(place, worker) = queues.clients.get(&client)?;
        if queues.unblocked.contains_key(&client) || !queues.end(place) {
            return None;
        }
        queues.unblocked.insert(client, with_error);
        self.inboxes[worker].lock().push(client);
        Some(worker)
    }

    /// Clients that wait.
    pub(crate) fn len(&self) -> usize {
        let queues = self.queues.lock();
        queues.clients.len() - queues.served
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

/// A waiter that a transaction serves. If this value is dropped, the transaction has failed, and the waiter waits
/// again.
#[derive(Debug)]
pub(crate) struct Claim {
    place: u64,
    id: WaiterId,
    /// The key that was made.
    pub(crate) key: Box<[u8]>,
    pub(crate) wanted: Wanted,
    pub(crate) resp3: bool,
    of: Arc<Waiters>,
}

impl Claim {
    /// The place in the order in which waiters came.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    /// The number of the client.
    #[cfg(shuttle)]
    pub(crate) fn client(&self) -> u64 {
        self.id.client
    }

    /// Gives the waiter its reply: the transaction has committed. Returns the event loop, which the caller wakes.
    pub(crate) fn serve(self, served: Served) -> usize {
        let mut queues = self.of.queues.lock();
        let Queues { entries, served: count, .. } = &mut *queues;
        if let Some(entry) = entries.get_mut(&self.place) {
            entry.state = State::Served(served);
            *count += 1;
        }
        drop(queues);
        self.of.inboxes[self.id.worker].lock().push(self.id.client);
        self.id.worker
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut queues = self.of.queues.lock();
        let Some(entry) = queues.entries.get_mut(&self.place) else { return };
        if !matches!(entry.state, State::Claimed) {
            return;
        }
        entry.state = State::Waits;
        drop(queues);
        // Others may have passed it over meanwhile, or its wait may be over. So its command runs.
        self.of.inboxes[self.id.worker].lock().push(self.id.client);
        self.of.pass_on(self.id.worker);
    }
}

/// A client that waits, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    place: u64,
    client: u64,
    keys: Vec<u64>,
    moves: u64,
    /// Whether the client changes a list at another key.
    moves_elements: bool,
    of: Arc<Waiters>,
}

impl Waiting {
    /// Begins a run of the command, unless a transaction serves the client. `ends` says that the command does not
    /// wait afterwards.
    pub(crate) fn begin_run(&self, ends: bool) -> Begun {
        let mut queues = self.of.queues.lock();
        let Some(entry) = queues.entries.get_mut(&self.place) else { return Begun::Runs };
        match entry.state {
            State::Claimed => Begun::Later,
            State::Served(_) => Begun::Served,
            // `CLIENT UNBLOCK` or `CLIENT KILL` has chosen it.
            State::Ends => Begun::Runs,
            State::Waits | State::Runs => {
                entry.state = if ends { State::Ends } else { State::Runs };
                Begun::Runs
            }
        }
    }

    /// Ends the wait, since the connection is closed. False while a transaction serves the client: then the
    /// connection stays open until that has ended.
    pub(crate) fn leaves(&self) -> bool {
        let mut queues = self.of.queues.lock();
        let is_claimed = |entry: &Entry| matches!(entry.state, State::Claimed);
        let stays = queues.entries.get(&self.place).is_some_and(is_claimed);
        if !stays {
            queues.end(self.place);
        }
        !stays
    }

    /// Takes what the client has got from a transaction that has served it.
    pub(crate) fn take_served(&self) -> Option<Served> {
        let mut queues = self.of.queues.lock();
        let Queues { entries, served, .. } = &mut *queues;
        let entry = entries.get_mut(&self.place)?;
        match std::mem::replace(&mut entry.state, State::Ends) {
            State::Served(got) => {
                *served -= 1;
                Some(got)
            }
            other => {
                entry.state = other;
                None
            }
        }
    }

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
    /// woken anew. It is at once, if one that it has given way to has ended meanwhile, or if `CLIENT UNBLOCK` has
    /// chosen it during the run.
    pub(crate) fn settle(&self) {
        let mut queues = self.of.queues.lock();
        let Queues { woken, gave_way, clients, entries, unblocked, .. } = &mut *queues;
        if let Some(entry) = entries.get_mut(&self.place)
            && matches!(entry.state, State::Runs)
        {
            entry.state = State::Waits;
        }
        let seen = gave_way.remove(&self.place).unwrap_or(usize::MAX);
        let is_woken = match woken.get_mut(&self.place) {
            Some(keys) if keys.len() > seen => {
                keys.drain(..seen);
                true
            }
            _ => {
                woken.remove(&self.place);
                false
            }
        };
        if !is_woken && !unblocked.contains_key(&self.client) {
            return;
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

    /// Waits for the keys where they are now, at the same place in the order. The caller holds the locks of
    /// these keys.
    pub(super) fn move_to(&mut self, mut keys: Vec<(u64, Box<[u8]>)>) {
        keys.sort_unstable();
        keys.dedup_by_key(|(hash, _)| *hash);
        let hashes: Vec<u64> = keys.iter().map(|(hash, _)| *hash).collect();
        let mut queues = self.of.queues.lock();
        self.of.leave_keys(&mut queues, self.place, &self.keys);
        let Some(&(_, worker)) = queues.clients.get(&self.client) else { return };
        let id = WaiterId { worker, client: self.client };
        self.of.wait_for(&mut queues, (self.place, id), &hashes);
        let moves = queues.moves;
        if let Some(entry) = queues.entries.get_mut(&self.place) {
            (entry.wish.keys, entry.moves) = (keys, moves);
        }
        (self.keys, self.moves) = (hashes, moves);
        // What is at the old keys is for others.
        let woken_by = queues.woken.remove(&self.place);
        queues.gave_way.remove(&self.place);
        drop(queues);
        self.of.wake_next(woken_by);
    }

    /// The place in the order in which waiters came.
    pub(super) fn place(&self) -> u64 {
        self.place
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queues = self.of.queues.lock();
        self.of.all.fetch_sub(1, Ordering::Relaxed);
        self.of.movers.fetch_sub(u32::from(self.moves_elements), Ordering::Relaxed);
        let entry = queues.entries.remove(&self.place);
        queues.served -= usize::from(entry.is_some_and(|it| matches!(it.state, State::Served(_))));
        self.of.leave_keys(&mut queues, self.place, &self.keys);
        queues.clients.remove(&self.client);
        queues.unblocked.remove(&self.client);
        // If a woken client leaves without success, the key that woke it wakes the next waiter.
        let woken_by = queues.woken.remove(&self.place);
        queues.gave_way.remove(&self.place);
        drop(queues);
        self.of.wake_next(woken_by);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn id(client: u64) -> WaiterId {
        WaiterId { worker: client as usize % 2, client }
    }

    /// A wait for an element of one of these lists.
    fn wish(keys: &[u64]) -> Wish {
        let keys = keys.iter().map(|&hash| (hash, Box::from(&hash.to_le_bytes()[..]))).collect();
        let wanted = Wanted::Elements { from_right: false, most: None };
        Wish { keys, wanted, resp3: false }
    }

    fn claimed(waiters: &Arc<Waiters>, hash: u64, after: u64) -> Claim {
        match waiters.claim(hash, after, true) {
            NextWaiter::Claimed(claim) => claim,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waiters_are_woken_in_their_order_and_once() {
        let waiters = Arc::new(Waiters::new(2));
        let (first, second) =
            (waiters.enter(id(1), wish(&[7, 7, 9])), waiters.enter(id(2), wish(&[7])));
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
        assert_eq!(waiters.unblock(2, true), None, "its wait has ended");
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
        let mut first = waiters.enter(id(1), wish(&[7]));
        let mut second = waiters.enter(id(2), wish(&[7]));
        assert!(!first.is_stale());
        waiters.start_again();
        assert_eq!((waiters.take_woken(1), first.is_stale()), (vec![1], true));
        // They keep their order, whoever looks first.
        second.move_to(wish(&[8]).keys);
        first.move_to(wish(&[8]).keys);
        assert_eq!((first.is_stale(), waiters.len(), waiters.may_wait(7)), (false, 2, false));
        assert_eq!(claimed(&waiters, 8, 0).place(), first.place());
        drop((first, second));
        assert!(!waiters.may_wait(8) && !waiters.has_any());
    }

    #[test]
    fn what_woke_a_client_that_is_gone_wakes_the_next() {
        let waiters = Arc::new(Waiters::new(2));
        let (first, second) = (waiters.enter(id(1), wish(&[7])), waiters.enter(id(2), wish(&[7])));
        assert_eq!(waiters.wake(7, 0), Some(1));
        drop(first);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![2], vec![0]));
        assert_eq!(waiters.take_woken(1), [1]);
        // A client that has taken something wakes nobody by leaving.
        let third = waiters.enter(id(3), wish(&[7, 9]));
        second.settle_served();
        drop(second);
        assert_eq!((waiters.take_woken(1), waiters.take_passed_on()), (vec![], vec![]));
        // But what was made while it was awake is the next one's, whether it was made before its run or after.
        let fourth = waiters.enter(id(4), wish(&[9]));
        assert_eq!((waiters.wake(7, 0), waiters.wake(9, 0)), (Some(1), None));
        third.settle_served();
        drop(third);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![4], vec![0]));
        fourth.settle();
        // One ends between the run that gives way to it and the end of that run.
        let (before, behind) =
            (waiters.enter(id(7), wish(&[9, 10])), waiters.enter(id(8), wish(&[10, 11])));
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
        let (fifth, sixth) =
            (waiters.enter(id(5), wish(&[7, 8])), waiters.enter(id(6), wish(&[8])));
        assert_eq!((waiters.wake(8, 0), waiters.wake(7, 0)), (Some(1), None));
        fifth.settle_served();
        drop(fifth);
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![6], vec![0]));
        drop((fourth, sixth));
    }

    #[test]
    fn a_claimed_waiter_is_served_or_waits_again() {
        let waiters = Arc::new(Waiters::new(2));
        let (first, second) =
            (waiters.enter(id(1), wish(&[7, 9])), waiters.enter(id(2), wish(&[7])));
        assert!(waiters.has_any() && !waiters.has_movers());
        assert!(matches!(waiters.claim(7, 0, false), NextWaiter::Nobody), "it is no sorted set");
        let claim = claimed(&waiters, 7, 0);
        assert_eq!((claim.place(), &claim.key[..]), (first.place(), &7_u64.to_le_bytes()[..]));
        assert!(matches!(waiters.claim(9, 0, true), NextWaiter::Nobody), "it is claimed already");
        assert_eq!((first.begin_run(true), first.leaves()), (Begun::Later, false));
        assert_eq!((waiters.unblock(1, false), waiters.len()), (None, 2));
        // A rollback: its event loop looks again.
        drop(claim);
        assert_eq!((waiters.take_woken(1), waiters.take_passed_on()), (vec![1], vec![1]));
        let (claim, next) = (claimed(&waiters, 7, 0), claimed(&waiters, 7, first.place()));
        assert_eq!(next.place(), second.place());
        let served = Served { reply: Ok(b"reply".to_vec()), commit: None };
        assert_eq!((claim.serve(served.clone()), waiters.len()), (1, 1));
        assert_eq!((first.begin_run(false), first.leaves()), (Begun::Served, true));
        assert_eq!((first.take_served(), first.take_served()), (Some(served.clone()), None));
        // The other is gone before it takes its reply.
        assert_eq!(next.serve(served), 0);
        drop(first);
        drop(second);
        let queues = waiters.queues.lock();
        assert!(queues.entries.is_empty() && queues.by_key.is_empty() && queues.served == 0);
        assert!(!waiters.has_any());
    }

    #[test]
    fn who_is_unblocked_or_leaves_while_its_command_runs_stays_so() {
        let waiters = Arc::new(Waiters::new(1));
        let waiter = waiters.enter(WaiterId { worker: 0, client: 1 }, wish(&[7]));
        // The event loop takes the message before the run that it has begun.
        assert_eq!(waiter.begin_run(false), Begun::Runs);
        assert_eq!((waiters.unblock(1, true), waiters.take_woken(0)), (Some(0), vec![1]));
        waiter.settle();
        assert_eq!((waiters.take_woken(0), waiters.take_passed_on()), (vec![1], vec![0]));
        assert_eq!((waiter.take_unblocked(), waiter.begin_run(true)), (Some(true), Begun::Runs));
        drop(waiter);
        // A client that is killed may be woken once more.
        let waiter = waiters.enter(WaiterId { worker: 0, client: 2 }, wish(&[7]));
        waiters.leave(2);
        assert_eq!(waiter.begin_run(false), Begun::Runs);
        waiter.settle();
        assert!(matches!(waiters.claim(7, 0, true), NextWaiter::Nobody));
        assert_eq!(waiters.take_woken(0), [0_u64; 0]);
    }

    #[test]
    fn nobody_claims_who_leaves_runs_or_waits_for_a_key_that_has_moved() {
        let waiters = Arc::new(Waiters::new(1));
        let id = |client| WaiterId { worker: 0, client };
        let target =
            Wanted::Move { from_right: true, to_right: false, target: Box::from(&b"t"[..]) };
        let all = [1, 2, 3, 4].map(|client| {
            let wanted = target.clone();
            waiters.enter(id(client), Wish { wanted, ..wish(&[7]) })
        });
        assert!(waiters.has_movers());
        assert_eq!(waiters.targets(7), [(); 4].map(|()| Box::from(&b"t"[..])));
        waiters.leave(1);
        assert_eq!(waiters.unblock(2, true), Some(0));
        assert!(all[2].leaves());
        assert_eq!(claimed(&waiters, 7, 0).place(), all[3].place());
        // While one runs, or is woken, it takes what there is.
        assert_eq!(all[3].begin_run(false), Begun::Runs);
        assert!(matches!(waiters.claim(7, 0, true), NextWaiter::Awake));
        all[3].settle();
        assert_eq!(waiters.wake(7, all[2].place()), Some(0));
        assert!(matches!(waiters.claim(7, 0, true), NextWaiter::Awake));
        all[3].settle();
        assert_eq!(claimed(&waiters, 7, 0).place(), all[3].place());
        waiters.start_again();
        assert!(matches!(waiters.claim(7, 0, true), NextWaiter::Nobody));
    }
}
