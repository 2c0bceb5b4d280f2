//! A bank on several threads: transfers with declared and with undeclared keys, accounts opened,
//! closed and reopened, aborts, large values and reads. Long transactions hold locks across phases.
//! Checkpoints run all the while. Each checkpoint must equal the sequential model at its point of
//! consistency.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_checkpoint::{Captured, CheckpointError, Pace, Row, Written};
use stillpoint_format::{Label, Stamp};
use stillpoint_io::{Clock, JoinHandle, RealClock, Rng, SeededRng, spawn};
use stillpoint_store::{Bug, KeySet, Mode, Procedure, Slot, Store, TableId, Tx, TxError, Worker};

use crate::mirror::rename;
use crate::model::{History, Key, State, apply, assert_same, labelled};
use crate::world::{World, entry, money};

const FIXED: TableId = TableId(0);
const OPENED: TableId = TableId(1);
const BLOBS: TableId = TableId(2);
const OPENED_KEYS: u64 = 40;
const BLOB_KEYS: u64 = 12;
const BALANCE: u64 = 1000;

/// A clock that goes on by 20 µs with each transaction of a client. So a paced capture lasts a
/// number of transactions, however busy the machine is.
#[derive(Debug, Default)]
struct DeedClock {
    deeds: AtomicU64,
    given_up: AtomicU64,
}

const DEED_NS: u64 = 20_000;

impl Clock for DeedClock {
    fn monotonic_ns(&self) -> u64 {
        (self.deeds.load(Relaxed) + self.given_up.load(Relaxed)) * DEED_NS
    }

    fn wall_ms(&self) -> u64 {
        self.monotonic_ns() / 1_000_000
    }

    fn sleep(&self, duration: Duration) {
        let until_ns = self.monotonic_ns() + duration.as_nanos() as u64;
        for _ in 0..1000 {
            if self.monotonic_ns() >= until_ns {
                return;
            }
            RealClock.sleep(Duration::from_micros(50));
        }
        // The clients have ended, so this thread moves the clock.
        let missing_ns = until_ns.saturating_sub(self.monotonic_ns());
        self.given_up.fetch_add(missing_ns / DEED_NS + 1, Relaxed);
    }
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) accounts: u64,
    pub(crate) workers: u8,
    pub(crate) checkpoints: usize,
    /// Most transactions of each client. This maximum bounds the memory, and a run usually ends
    /// before.
    pub(crate) deeds_max: u64,
    /// Pace of the capture, by a clock on which a transaction takes 20 µs.
    pub(crate) bytes_per_s: u64,
    pub(crate) bug: Option<Bug>,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            accounts: 600,
            workers: 3,
            checkpoints: 4,
            deeds_max: 20_000,
            bytes_per_s: 20 << 20,
            bug: None,
        }
    }
}

pub(crate) fn rows_that_take_checkpoints() -> impl Iterator<Item = &'static Row> {
    REGISTRY.iter().filter(|row| row.capabilities.takes_checkpoints())
}

fn account(number: u64) -> Vec<u8> {
    format!("account {number}").into_bytes()
}

/// A balance, and bytes computed from it, so that a reader notices a torn value.
fn balance_value(balance: u64, len: usize) -> Vec<u8> {
    let mut value = balance.to_le_bytes().to_vec();
    value.resize(len.max(8), (balance % 251) as u8);
    value
}

/// Moves money between two declared accounts.
struct Transfer {
    from: Vec<u8>,
    to: Vec<u8>,
    amount: u64,
    len: usize,
    gives_up: bool,
    committed: bool,
}

impl Procedure for Transfer {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(FIXED, &self.from, Mode::Write, 100);
        keys.push(FIXED, &self.to, Mode::Write, 100);
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let balance = |tx: &mut Tx<'_>, slot| tx.value(slot).and_then(|value| value.u64_at(0));
        let from = balance(tx, Slot(0)).expect("fixed accounts stay");
        let amount = self.amount.min(from);
        tx.put_slot_tagged(Slot(0), 1, &balance_value(from - amount, self.len))?;
        if self.gives_up {
            return Err(TxError::abandon("as the test wants it"));
        }
        // The balance is read again, since both accounts may be the same.
        let to = balance(tx, Slot(1)).expect("fixed accounts stay");
        tx.put_slot_tagged(Slot(1), 2, &balance_value(to + amount, 100))
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        match result {
            Ok(_) => self.committed = true,
            Err(TxError::Abandoned(_)) if self.gives_up => {}
            Err(error) => panic!("a transfer failed: {error}"),
        }
    }
}

/// A key, and gsn and log of the commit that wrote it.
type Version = (Key, u64, u8);

/// The result of a read without a lock.
struct Sight {
    key: Key,
    stamp: Stamp,
    value: Option<(Label, Vec<u8>)>,
}

struct Client {
    worker: Worker,
    store: Arc<Store>,
    rng: SeededRng,
    plan: Plan,
    sights: Vec<Sight>,
}

impl Client {
    fn pick(&self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn one_deed(&mut self, long: bool) {
        match self.pick(100) {
            _ if long => self.long_transaction(),
            0..40 => self.transfers(),
            40..60 => self.open_or_close(),
            60..75 => self.undeclared_transfer(),
            75..79 => self.blob(),
            79..81 => self.abandoned(),
            81 => self.worker.relocate_all(),
            _ => self.read(),
        }
    }

    fn transfers(&mut self) {
        let count = self.pick(4) + 1;
        let mut batch: Vec<Transfer> = (0..count)
            .map(|_| Transfer {
                from: account(self.pick(self.plan.accounts)),
                to: account(self.pick(self.plan.accounts)),
                amount: self.pick(50),
                len: 8 + self.pick(120) as usize,
                gives_up: self.pick(20) == 0,
                committed: false,
            })
            .collect();
        self.worker.execute(&mut batch[..]);
        assert!(batch.iter().all(|one| one.committed != one.gives_up));
    }

    fn undeclared_transfer(&mut self) {
        let (from, to) =
            (account(self.pick(self.plan.accounts)), account(self.pick(self.plan.accounts)));
        let amount = self.pick(50);
        if from == to {
            return;
        }
        let moved = self.worker.transact(|tx| {
            let have = read_balance(tx, FIXED, &from)?.expect("fixed accounts stay");
            let amount = amount.min(have);
            // A patch changes the balance, and the rest of the value stays.
            write_balance(tx, FIXED, &from, have - amount)?;
            let there = read_balance(tx, FIXED, &to)?.expect("fixed accounts stay");
            write_balance(tx, FIXED, &to, there + amount)
        });
        moved.expect("memory");
    }

    /// Opens an account with money of a fixed account, or closes it and gives the money back.
    fn open_or_close(&mut self) {
        let (opened, fixed) =
            (account(self.pick(OPENED_KEYS)), account(self.pick(self.plan.accounts)));
        let (twice, len) = (self.pick(4) == 0, 8 + self.pick(400) as usize);
        let done = self.worker.transact(|tx| {
            let at_home = read_balance(tx, FIXED, &fixed)?.expect("fixed accounts stay");
            match read_balance(tx, OPENED, &opened)? {
                None => {
                    let amount = at_home.min(10);
                    write_balance(tx, FIXED, &fixed, at_home - amount)?;
                    tx.put_tagged(OPENED, &opened, 3, &balance_value(amount, len))
                }
                Some(amount) => {
                    tx.delete(OPENED, &opened)?;
                    if twice {
                        return tx.put_tagged(OPENED, &opened, 4, &balance_value(amount, len));
                    }
                    write_balance(tx, FIXED, &fixed, at_home + amount)
                }
            }
        });
        done.expect("memory");
    }

    fn blob(&mut self) {
        let key = account(self.pick(BLOB_KEYS));
        let other = account(self.pick(BLOB_KEYS));
        let (what, len) = (self.pick(7), self.pick(150_000) as usize + 1);
        let fill = self.pick(256) as u8;
        let done = self.worker.transact(|tx| match what {
            0 => tx.delete(BLOBS, &key).map(|_| ()),
            1 | 2 => {
                let Some(len) = tx.get(BLOBS, &key)?.map(|value| value.len()) else {
                    return Ok(());
                };
                tx.patch(BLOBS, &key, len / 2, &vec![fill; 3000])
            }
            3 => {
                let slot = tx.key(BLOBS, &key, Mode::Write)?;
                if tx.value(slot).is_none() {
                    return Ok(());
                }
                tx.set_slot_deadline(slot, u64::from(fill))
            }
            6 if other != key => rename(tx, BLOBS, &key, &other),
            _ => {
                let slot = tx.key(BLOBS, &key, Mode::Write)?;
                tx.put_slot_labelled(slot, labelled(fill), &vec![fill; len])
            }
        });
        done.expect("memory");
    }

    fn abandoned(&mut self) {
        let key = account(self.pick(self.plan.accounts));
        let done: Result<(), _> = self.worker.transact(|tx| {
            tx.put_tagged(FIXED, &key, 9, &balance_value(u64::MAX, 50))?;
            tx.delete(FIXED, &key)?;
            Err(TxError::abandon("as the test wants it"))
        });
        assert!(matches!(done, Err(TxError::Abandoned(_))));
    }

    /// Holds locks until the phase has changed, or for a number of yields.
    fn long_transaction(&mut self) {
        let keys: Vec<Vec<u8>> = (0..3).map(|_| account(self.pick(self.plan.accounts))).collect();
        let (store, turns) = (self.store.clone(), self.pick(400));
        let done = self.worker.transact(|tx| {
            let begun = store.driver().now();
            let mut sum = 0;
            let mut held = Vec::new();
            for key in &keys {
                if held.contains(&key) {
                    continue;
                }
                sum += read_balance(tx, FIXED, key)?.expect("fixed accounts stay");
                tx.key(FIXED, key, Mode::Write)?;
                held.push(key);
            }
            for _ in 0..turns {
                std::thread::yield_now();
                if store.driver().now() != begun {
                    break;
                }
            }
            for (at, key) in held.iter().enumerate() {
                let share =
                    if at == 0 { sum - (sum / 3) * (held.len() as u64 - 1) } else { sum / 3 };
                write_balance(tx, FIXED, key, share)?;
            }
            Ok(())
        });
        done.expect("memory");
    }

    fn read(&mut self) {
        let (table, key) = match self.pick(3) {
            0 => (OPENED, account(self.pick(OPENED_KEYS))),
            _ => (FIXED, account(self.pick(self.plan.accounts))),
        };
        let mut value = Vec::new();
        let seen = self.worker.read(table, &key, &mut value).expect("the table exists");
        if let Some(seen) = seen {
            self.sights.push(Sight {
                key: (table.0, key),
                stamp: seen.stamp,
                value: Some((Label { tag: seen.tag, deadline: seen.deadline }, value)),
            });
        }
    }
}

fn read_balance(tx: &mut Tx<'_>, table: TableId, key: &[u8]) -> Result<Option<u64>, TxError> {
    Ok(tx.get(table, key)?.and_then(|value| value.u64_at(0)))
}

/// Changes the balance, and the bytes computed from it.
fn write_balance(tx: &mut Tx<'_>, table: TableId, key: &[u8], balance: u64) -> Result<(), TxError> {
    let len = tx.get(table, key)?.expect("it has a balance").len();
    tx.patch(table, key, 0, &balance_value(balance, len))
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) checkpoints: Vec<(u64, State)>,
    sights: Vec<Vec<Sight>>,
    /// What the clients did.
    pub(crate) deeds: u64,
}

/// What the clients share.
#[derive(Clone, Default)]
struct Street {
    clock: Arc<DeedClock>,
    stop: Arc<AtomicBool>,
}

fn start_client(world: &World, plan: Plan, number: u8, street: &Street) -> JoinHandle<Vec<Sight>> {
    let mut client = Client {
        worker: world.worker(number),
        store: world.store.clone(),
        rng: SeededRng::new(plan.seed * 1000 + u64::from(number)),
        plan,
        sights: Vec::new(),
    };
    let street = street.clone();
    let run = move || {
        for _ in 0..plan.deeds_max {
            // Only the first client runs long transactions.
            client.one_deed(number == 0);
            street.clock.deeds.fetch_add(1, Relaxed);
            if street.stop.load(Relaxed) {
                break;
            }
        }
        client.sights
    };
    spawn(&format!("client-{number}"), run).expect("a thread")
}

/// Runs the bank and takes checkpoints meanwhile.
pub(crate) fn run(world: &mut World, plan: Plan) -> Outcome {
    if let Some(bug) = plan.bug {
        world.store.driver().plant(bug);
    }
    let street = Street::default();
    world.pace = Pace::BytesPerSecond(plan.bytes_per_s);
    world.clock = street.clock.clone();
    let mut worker = world.worker(200);
    for number in 0..plan.accounts {
        let value = balance_value(BALANCE, 100);
        worker.transact(|tx| tx.put(FIXED, &account(number), &value)).expect("memory");
    }
    drop(worker);
    let start = |number| start_client(world, plan, number, &street);
    let clients: Vec<_> = (0..plan.workers).map(start).collect();
    let mut taken = Vec::new();
    for _ in 0..plan.checkpoints {
        street.clock.sleep(Duration::from_nanos(100 * DEED_NS));
        taken.push(world.take());
    }
    street.stop.store(true, Relaxed);
    let sights =
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
    let load = |taken: Result<(Written, Captured), CheckpointError>| {
        let (written, _) = taken.expect("no fault was injected");
        (written.epoch, world.load(&entry(written)))
    };
    Outcome {
        checkpoints: taken.into_iter().map(load).collect(),
        sights,
        deeds: street.clock.deeds.load(Relaxed),
    }
}

/// Checks everything that must hold after a run.
pub(crate) fn check(world: &World, plan: Plan, outcome: &Outcome) {
    let seed = plan.seed;
    let total = plan.accounts * BALANCE;
    world.history.check_epochs_follow_dependencies(seed);
    for (epoch, state) in &outcome.checkpoints {
        let context = format!("seed {seed}, checkpoint of epoch {epoch}");
        assert_same(state, &world.expected(*epoch), &context);
        assert_eq!(money(state), total, "{context}: money came or went");
    }
    assert_same(&world.live(), &world.history.state(), &format!("seed {seed}, live state"));
    assert_eq!(world.unmarked(), 0, "seed {seed}: unmarked records are left");
    check_sights(&world.history, &outcome.sights, seed);
}

/// Checks that each read saw exactly the value of the commit that its stamp names. No client may
/// see an older version of a key than before.
fn check_sights(history: &History, sights: &[Vec<Sight>], seed: u64) {
    let mut versions: HashMap<Version, Option<(Label, Vec<u8>)>> = HashMap::new();
    let mut state = State::new();
    for commit in history.commits() {
        for (key, op) in &commit.writes {
            apply(&mut state, key, op);
            let at = (key.clone(), commit.stamp.gsn(), commit.stamp.log());
            versions.insert(at, state.get(key).cloned());
        }
    }
    for client in sights {
        let mut last: BTreeMap<&Key, u64> = BTreeMap::new();
        for sight in client {
            let at = (sight.key.clone(), sight.stamp.gsn(), sight.stamp.log());
            let written = versions.get(&at).expect("a read names the commit that it saw");
            assert_eq!(*written, sight.value, "seed {seed}: {:?} at {:?}", sight.key, sight.stamp);
            let before = last.insert(&sight.key, sight.stamp.gsn()).unwrap_or(0);
            assert!(before <= sight.stamp.gsn(), "seed {seed}: {:?} went back", sight.key);
        }
    }
}

/// The seeds of a test for each row, usually so many. `STILLPOINT_ROW_SEEDS=10000 cargo test -p
/// stillpoint-checkpoint bank` runs a campaign, and `STILLPOINT_ROW_SEEDS=<from>..<to>` a piece of one.
/// `STILLPOINT_ROW_SEED=<seed>` runs one seed again.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    if let Some(seed) = number("STILLPOINT_ROW_SEED") {
        return seed..seed + 1;
    }
    let asked = std::env::var("STILLPOINT_ROW_SEEDS").unwrap_or_else(|_| usual.to_string());
    let range = || {
        let (from, to) = asked.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    };
    let seeds = range().or_else(|| Some(1..1 + asked.parse::<u64>().ok()?));
    seeds.expect("STILLPOINT_ROW_SEEDS is a number of seeds, or FROM..TO")
}

/// The share of this run in what is too much for each run. `STILLPOINT_ROW_SHARE=K/N` is the K-th of N
/// shares, which CI takes from the commit; `0/1` is all. Without it, the first of eight.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub(crate) k: u64,
    pub(crate) n: u64,
}

impl Share {
    pub(crate) fn of_run() -> Self {
        let text = std::env::var("STILLPOINT_ROW_SHARE").unwrap_or_else(|_| "0/8".to_owned());
        let share =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let (k, n) = share.filter(|(k, n)| k < n).expect("STILLPOINT_ROW_SHARE is K/N, K below N");
        Self { k, n }
    }

    pub(crate) fn has(self, number: u64) -> bool {
        number % self.n == self.k
    }

    /// Seeds of a row: `all` if the row is in the share, and otherwise so few.
    pub(crate) fn seeds(self, row: &Row, all: u64, few: u64) -> std::ops::Range<u64> {
        let at = REGISTRY.iter().position(|it| it.name == row.name).expect("it is a row");
        seeds(if self.has(at as u64) { all } else { few })
    }
}

#[test]
fn checkpoints_under_concurrency_equal_the_model() {
    for row in rows_that_take_checkpoints() {
        for seed in Share::of_run().seeds(row, 3, 1) {
            let mut world = World::new(row, seed);
            let plan = Plan::new(seed);
            let outcome = run(&mut world, plan);
            check(&world, plan, &outcome);
            assert!(outcome.deeds > 100, "seed {seed}: nothing happened");
        }
    }
}
