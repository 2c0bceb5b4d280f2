//! Clients that wait for keys, under random schedules: the server's queues of waiters, between two event loops and a
//! client that pushes. Each key serves its waiters in the order in which they came, and only while their
//! connections are open. No element stays where somebody waits.
#![cfg(shuttle)]

#[expect(dead_code, reason = "the server uses more of it")]
#[path = "../../server/src/keyspace/waiters.rs"]
mod waiters;

use std::collections::BTreeMap;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use stillpoint_sync::Mutex;
use waiters::{WaiterId, Waiters, Waiting};

const SCHEDULES: usize = 1_500;
const STEPS_MAX: usize = 100_000;

const ONE: u64 = 7;
const OTHER: u64 = 9;
/// Clients of each event loop, with the keys that they wait for.
const CLIENTS: [&[(u64, &[u64])]; 2] =
    [&[(1, &[ONE]), (3, &[ONE, OTHER])], &[(2, &[ONE, OTHER]), (4, &[OTHER])]];
/// The client of the first event loop that leaves.
const LEAVES: u64 = 1;
/// The keys that elements are pushed to, one after the other.
const PUSHED: [u64; 4] = [ONE, OTHER, ONE, ONE];

/// The lists at the keys, behind the lock of all keys.
#[derive(Default)]
struct Lists {
    elements: BTreeMap<u64, usize>,
    /// For each key, the clients that wait for it and are open, in the order in which they came.
    waiting: BTreeMap<u64, Vec<u64>>,
    pushes: usize,
}

impl Lists {
    fn forget(&mut self, client: u64) {
        self.waiting.values_mut().for_each(|clients| clients.retain(|&other| other != client));
    }

    /// Whether nobody waits for an element that is there, and none will come.
    fn is_settled(&self) -> bool {
        let waits = |key| self.waiting.get(key).is_some_and(|clients| !clients.is_empty());
        self.pushes == PUSHED.len()
            && self.elements.iter().all(|(key, &count)| count == 0 || !waits(key))
    }
}

struct World {
    lists: Mutex<Lists>,
    waiters: Arc<Waiters>,
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
                let first = lists.waiting.get(key).and_then(|clients| clients.first().copied());
                assert_eq!(first, Some(id.client), "served out of turn, or after it has left");
            }
            lists.elements.insert(*key, count - 1);
            if count > 1 && self.waiters.may_wait(*key) {
                self.waiters.wake(*key, 0);
            }
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
        Some(self.waiters.enter(id, keys.to_vec()))
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
                let waiting = self.run(id(client), clients[&client], Some(waiting));
                waits.extend(waiting.map(|waiting| (client, waiting)));
            }
            if let Some(waiting) = waits.remove(&LEAVES) {
                self.lists.lock().forget(LEAVES);
                drop(waiting);
            }
            if self.lists.lock().is_settled() {
                return;
            }
            thread::yield_now();
        }
    }

    fn push(&self) {
        for key in PUSHED {
            let mut lists = self.lists.lock();
            lists.pushes += 1;
            let count = lists.elements.entry(key).or_default();
            *count += 1;
            if *count == 1 && self.waiters.may_wait(key) {
                self.waiters.wake(key, 0);
            }
        }
    }
}

fn work() {
    let world = Arc::new(World { lists: Mutex::default(), waiters: Arc::new(Waiters::new(2)) });
    let loops = [0, 1].map(|worker| {
        let world = world.clone();
        thread::spawn(move || world.serve(worker))
    });
    world.push();
    for event_loop in loops {
        event_loop.join().expect("no panic");
    }
    assert!(world.lists.lock().is_settled());
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
