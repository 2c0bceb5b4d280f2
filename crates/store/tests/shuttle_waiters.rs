//! Clients that wait for keys, under random schedules: the server's queues of waiters, between two event loops and two
//! clients that push. One push is rolled back. Each key serves its waiters in the order in which they came, and only
//! while their connections are open. No element stays where somebody waits, and none is lost.
#![cfg(shuttle)]

#[expect(dead_code, reason = "the server uses more of it")]
#[path = "../../server/src/keyspace/waiters.rs"]
mod waiters;

use std::collections::BTreeMap;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use stillpoint_sync::Mutex;
use waiters::{Begun, Claim, NextWaiter, Served, WaiterId, Waiters, Waiting, Wanted, Wish};

const SCHEDULES: usize = 8_000;
const STEPS_MAX: usize = 100_000;

const ONE: u64 = 7;
const OTHER: u64 = 9;
/// Clients of each event loop, with the keys that they wait for.
const CLIENTS: [&[(u64, &[u64])]; 2] =
    [&[(1, &[ONE]), (3, &[ONE, OTHER])], &[(2, &[ONE, OTHER]), (4, &[OTHER])]];
/// The client of the first event loop that leaves.
const LEAVES: u64 = 1;
/// The keys that elements are pushed to by each of two clients, one after the other, and whether the transaction
/// commits.
const PUSHED: [&[(u64, bool)]; 2] =
    [&[(ONE, true), (OTHER, true), (ONE, true)], &[(ONE, false), (ONE, true), (ONE, false)]];

/// The lists at the keys, behind the lock of all keys.
#[derive(Default)]
struct Lists {
    elements: BTreeMap<u64, usize>,
    /// For each key, the clients that wait for it and are open, in the order in which they came.
    waiting: BTreeMap<u64, Vec<u64>>,
    /// Clients that a transaction serves which has not ended.
    claimed: Vec<u64>,
    /// Clients whose connections are closed.
    closed: Vec<u64>,
    /// Elements that clients have got.
    taken: usize,
    pushes: usize,
}

impl Lists {
    fn forget(&mut self, client: u64) {
        self.waiting.values_mut().for_each(|clients| clients.retain(|&other| other != client));
    }

    /// Whether nobody serves a client before its turn, or one that has left.
    fn check_turn(&self, key: u64, client: u64) {
        let waiting = self.waiting.get(&key).into_iter().flatten();
        let first = waiting.copied().find(|client| !self.claimed.contains(client));
        assert_eq!(first, Some(client), "served out of turn, or after it has left");
    }

    /// Whether nobody waits for an element that is there, and none will come.
    fn is_settled(&self) -> bool {
        let waits = |key| self.waiting.get(key).is_some_and(|clients| !clients.is_empty());
        self.pushes == PUSHED.iter().map(|pushes| pushes.len()).sum::<usize>()
            && self.claimed.is_empty()
            && self.elements.iter().all(|(key, &count)| count == 0 || !waits(key))
    }
}

struct World {
    lists: Mutex<Lists>,
    waiters: Arc<Waiters>,
}

/// A wait for an element of one of these lists.
fn wish(keys: &[u64]) -> Wish {
    let keys = keys.iter().map(|&hash| (hash, Box::default())).collect();
    Wish { keys, wanted: Wanted::Elements { from_right: false, most: None }, resp3: false }
}

impl World {
    /// A run of `BLPOP`, of a client that has waited or has come now. Gives its wait, if it goes on.
    fn run(&self, id: WaiterId, keys: &[u64], waiting: Option<Waiting>) -> Option<Waiting> {
        let mut lists = self.lists.lock();
        for key in keys {
            let count = lists.elements.get(key).copied().unwrap_or(0);
            if count == 0 || waiting.as_ref().is_some_and(|waiting| waiting.gives_way(*key)) {
                continue;
            }
            if waiting.is_some() {
                lists.check_turn(*key, id.client);
            }
            lists.elements.insert(*key, count - 1);
            if count > 1 && self.waiters.may_wait(*key) {
                self.waiters.wake(*key, 0);
            }
            lists.taken += 1;
            lists.forget(id.client);
            // The transaction ends before the wait does.
            drop(lists);
            waiting.iter().for_each(Waiting::settle_served);
            return None;
        }
        if let Some(waiting) = waiting {
            waiting.settle();
            return Some(waiting);
        }
        keys.iter().for_each(|key| lists.waiting.entry(*key).or_default().push(id.client));
        Some(self.waiters.enter(id, wish(keys)))
    }

    /// An event loop, until nobody waits for what is there.
    fn serve(&self, worker: usize) {
        let clients: BTreeMap<u64, &[u64]> = CLIENTS[worker].iter().copied().collect();
        let id = |client: u64| WaiterId { worker, client };
        let mut waits: BTreeMap<u64, Waiting> = BTreeMap::new();
        for (&client, keys) in &clients {
            waits.extend(self.run(id(client), keys, None).map(|waiting| (client, waiting)));
        }
        loop {
            for client in self.waiters.take_woken(worker) {
                let Some(waiting) = waits.remove(&client) else { continue };
                let waiting = match waiting.begin_run(false) {
                    Begun::Later => Some(waiting),
                    Begun::Served => {
                        assert!(waiting.take_served().is_some());
                        None
                    }
                    Begun::Runs => self.run(id(client), clients[&client], Some(waiting)),
                };
                waits.extend(waiting.map(|waiting| (client, waiting)));
            }
            self.close(&mut waits);
            if self.lists.lock().is_settled() {
                return;
            }
            thread::yield_now();
        }
    }

    /// Closes the connection of the client that leaves, unless a transaction serves it.
    fn close(&self, waits: &mut BTreeMap<u64, Waiting>) {
        let mut lists = self.lists.lock();
        if waits.get(&LEAVES).is_some_and(Waiting::leaves) {
            lists.forget(LEAVES);
            lists.closed.push(LEAVES);
            drop(lists);
            waits.remove(&LEAVES);
        }
    }

    /// Pushes elements, each in a transaction that serves who waits.
    fn push(&self, pushes: &[(u64, bool)]) {
        for &(key, commits) in pushes {
            // Some clients come first.
            (0..3).for_each(|_| thread::yield_now());
            let mut lists = self.lists.lock();
            let before = lists.elements.get(&key).copied().unwrap_or(0);
            let mut claims = Vec::new();
            let mut count = before + 1;
            // A list that was there has been offered already.
            while count > 0 && before == 0 && self.waiters.may_wait(key) {
                let last = claims.last().map_or(0, Claim::place);
                match self.waiters.claim(key, last, true) {
                    NextWaiter::Nobody => break,
                    NextWaiter::Awake => {
                        self.waiters.wake(key, 0);
                        break;
                    }
                    NextWaiter::Claimed(claim) => {
                        lists.check_turn(key, claim.client());
                        lists.claimed.push(claim.client());
                        claims.push(claim);
                        count -= 1;
                    }
                }
            }
            lists.elements.insert(key, if commits { count } else { before });
            lists.taken += if commits { claims.len() } else { 0 };
            // The locks are free before the waiters learn how the transaction has ended.
            drop(lists);
            let mut lists = self.lists.lock();
            for claim in claims {
                let client = claim.client();
                lists.claimed.retain(|&other| other != client);
                if commits {
                    assert!(!lists.closed.contains(&client), "served after it has left");
                    lists.forget(client);
                    claim.serve(Served { reply: Ok(Vec::new()), commit: None });
                }
            }
            lists.pushes += 1;
        }
    }
}

fn work() {
    let world = Arc::new(World { lists: Mutex::default(), waiters: Arc::new(Waiters::new(2)) });
    let loops = [0, 1].map(|worker| {
        let world = world.clone();
        thread::spawn(move || world.serve(worker))
    });
    let other = world.clone();
    let pusher = thread::spawn(move || other.push(PUSHED[1]));
    world.push(PUSHED[0]);
    for thread in loops.into_iter().chain([pusher]) {
        thread.join().expect("no panic");
    }
    let lists = world.lists.lock();
    assert!(lists.is_settled());
    let commits = PUSHED.iter().flat_map(|pushes| pushes.iter()).filter(|push| push.1).count();
    assert_eq!(lists.elements.values().sum::<usize>() + lists.taken, commits);
    assert!(
        world.waiters.len() == 0 && ![ONE, OTHER].iter().any(|key| world.waiters.may_wait(*key))
    );
}

fn explore(scheduler: impl Scheduler + 'static) {
    let mut config = shuttle::Config::default();
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    shuttle::Runner::new(scheduler, config).run(work);
}

#[test]
fn waiters_are_served_in_their_order_and_none_is_forgotten() {
    explore(RandomScheduler::new(SCHEDULES));
    explore(PctScheduler::new(3, SCHEDULES));
}
