//! The mirror: two schemes side by side on one schedule of transactions. After each round their
//! checkpoints and their live states are compared. The first difference fails the test.
//!
//! The schedule places transactions at points of a checkpoint: after the entry to each phase, and
//! in each pause of the scan. While a scheme stops the store, transactions are kept back and run
//! directly afterwards. That changes neither their order nor the point of consistency.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_checkpoint::{Cycle, Observer, Row, run_checkpoint};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_store::{
    Demand, Lane, Mode, Outcome, Phase, PointOfConsistency, Sink, TableId, Tx, TxError, Worker,
};

use crate::bank::{Share, rows_that_take_checkpoints};
use crate::memory::MemorySink;
use crate::model::{State, assert_same, labelled};
use crate::world::{World, may_commit};

const KEYS: u64 = 300;
const ROUNDS: usize = 6;
const PAUSES: usize = 40;

/// A transaction: its changes by key, and whether it commits.
#[derive(Clone, Debug)]
struct Action {
    writes: Vec<(u16, Vec<u8>, What)>,
    commits: bool,
    /// Whether records move to other cells before, as far as the scheme allows it.
    moves: bool,
}

#[derive(Clone, Debug)]
enum What {
    Put(u8, Vec<u8>),
    Delete,
    Patch(usize, Vec<u8>),
    Until(u64),
    /// Another key gets the value. Both then share the blocks of a large one, until the source is deleted.
    Rename(Vec<u8>),
}

/// The transactions of one round, by the point at which they run.
#[derive(Clone, Debug, Default)]
struct Round {
    rest: Vec<Action>,
    prepare: Vec<Action>,
    resolve: Vec<Action>,
    capture: Vec<Action>,
    pauses: Vec<Vec<Action>>,
    complete: Vec<Action>,
}

fn key_of(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(8 + number as usize % 40, b'k');
    key
}

fn deed(rng: &SeededRng) -> Action {
    let write = |_| {
        let table = rng.below(2) as u16;
        let key = key_of(rng.below(KEYS));
        let len = match rng.below(30) {
            0 => 60_000 + rng.below(60_000) as usize,
            1 => 3_000,
            _ => rng.below(200) as usize,
        };
        let what = match rng.below(7) {
            0 => What::Delete,
            6 => What::Rename(key_of(rng.below(KEYS))),
            2 => What::Until(rng.below(3)),
            1 => What::Patch(rng.below(100) as usize, vec![rng.below(256) as u8; len.min(300)]),
            _ => What::Put(rng.below(256) as u8, vec![rng.below(256) as u8; len]),
        };
        (table, key, what)
    };
    let writes = (0..rng.below(4) + 1).map(write).collect();
    Action { writes, commits: rng.below(8) != 0, moves: rng.below(12) == 0 }
}

fn deeds(rng: &SeededRng, most: u64) -> Vec<Action> {
    (0..rng.below(most + 1)).map(|_| deed(rng)).collect()
}

fn round(rng: &SeededRng) -> Round {
    Round {
        rest: deeds(rng, 200),
        prepare: deeds(rng, 30),
        resolve: deeds(rng, 30),
        capture: deeds(rng, 30),
        pauses: (0..PAUSES).map(|_| deeds(rng, 6)).collect(),
        complete: deeds(rng, 30),
    }
}

/// Gives key `to` the value of key `from`, which is deleted.
pub(crate) fn rename(
    tx: &mut Tx<'_>,
    table: TableId,
    from: &[u8],
    to: &[u8],
) -> Result<(), TxError> {
    let (source, target) = (tx.key(table, from, Mode::Write)?, tx.key(table, to, Mode::Write)?);
    let Some(label) = tx.value(source).map(|value| value.label()) else { return Ok(()) };
    if !tx.share_slot(source, target, label)? {
        let value = tx.value(source).expect("it is there").to_vec();
        tx.put_slot_labelled(target, label, &value)?;
    }
    tx.delete_slot(source).map(drop)
}

fn run(worker: &mut Worker, deeds: &[Action]) {
    for deed in deeds {
        if deed.moves {
            worker.relocate_all();
        }
        let done = worker.transact(|tx| {
            for (table, key, what) in &deed.writes {
                let table = TableId(*table);
                match what {
                    What::Put(tag, value) => {
                        let slot = tx.key(table, key, Mode::Write)?;
                        tx.put_slot_labelled(slot, labelled(*tag), value)?;
                    }
                    What::Until(deadline) => {
                        let slot = tx.key(table, key, Mode::Write)?;
                        if tx.value(slot).is_some() {
                            tx.set_slot_deadline(slot, *deadline)?;
                        }
                    }
                    What::Rename(to) if to == key => {}
                    What::Rename(to) => rename(tx, table, key, to)?,
                    What::Delete => drop(tx.delete(table, key)?),
                    What::Patch(offset, bytes) => {
                        let len = tx.get(table, key)?.map(|value| value.len());
                        if len.is_some_and(|len| *offset <= len) {
                            tx.patch(table, key, *offset, bytes)?;
                        }
                    }
                }
            }
            match deed.commits {
                true => Ok(()),
                false => Err(TxError::abandon("as the schedule wants it")),
            }
        });
        assert_eq!(done.is_ok(), deed.commits, "{done:?}");
    }
}

/// One of the two schemes, with its store.
struct Side {
    name: &'static str,
    world: World,
    worker: Arc<Mutex<Worker>>,
    point: Option<PointOfConsistency>,
}

/// Takes records into memory, and runs transactions when the scan pauses.
struct PausingSink<F> {
    memory: MemorySink,
    pause: F,
}

impl<F: Fn() + Send + Sync> Sink for PausingSink<F> {
    fn with_lane(&self, lane: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.memory.with_lane(lane, with);
    }
    fn demand(&self) -> Demand {
        (self.pause)();
        Demand::Go
    }
}

impl Side {
    fn new(row: &'static Row, seed: u64) -> Self {
        let mut world = World::new(row, seed);
        world.threads = 1;
        let worker = Arc::new(Mutex::new(world.worker(0)));
        Self { name: row.name, world, worker, point: row.capabilities.point }
    }

    /// Runs a round. Returns the checkpoint and the live state of the round.
    fn round(&self, round: &Round) -> (State, State) {
        run(&mut self.worker.lock(), &round.rest);
        // The transactions that wait until the store goes on, in order.
        let late: Arc<Mutex<Vec<Action>>> = Arc::default();
        let (worker, point) = (self.worker.clone(), self.point);
        let meanwhile = {
            let late = late.clone();
            Arc::new(move |phase, deeds: &[Action]| match may_commit(point, phase) {
                true => {
                    let late = std::mem::take(&mut *late.lock());
                    run(&mut worker.lock(), &late);
                    run(&mut worker.lock(), deeds);
                }
                false => late.lock().extend_from_slice(deeds),
            })
        };
        let pauses = Arc::new(Mutex::new(round.pauses.clone().into_iter()));
        let pause = {
            let (pauses, meanwhile) = (pauses.clone(), meanwhile.clone());
            move || {
                let next = pauses.lock().next();
                meanwhile(Phase::Capture, &next.unwrap_or_default());
            }
        };
        let sink = Arc::new(PausingSink { memory: MemorySink::default(), pause });
        let observer: Observer = {
            let (round, worker) = (round.clone(), self.worker.clone());
            Arc::new(move |phase, _| match phase {
                Phase::Prepare => run(&mut worker.lock(), &round.prepare),
                Phase::Resolve => meanwhile(phase, &round.resolve),
                Phase::Capture => meanwhile(phase, &round.capture),
                Phase::Complete => {
                    let late = std::mem::take(&mut *late.lock());
                    let rest: Vec<Action> = pauses.lock().by_ref().flatten().collect();
                    for deeds in [&late, &rest, &round.complete] {
                        run(&mut worker.lock(), deeds);
                    }
                }
                Phase::Rest => {}
            })
        };
        let cycle = Cycle { observer: Some(observer), ..self.world.cycle() };
        let as_sink: Arc<dyn Sink> = sink.clone();
        let captured = run_checkpoint(&cycle, &as_sink).expect("nothing fails here");
        self.world.cycle().ended(captured.epoch, Outcome::Published);
        let image = self.world.published(&sink.memory, (captured.kind, captured.epoch), self.name);
        (image, self.world.live())
    }
}

/// Compares a scheme, into whose store `plant` may put a bug, with `naive`.
pub(crate) fn compare(row: &'static Row, seed: u64, plant: &dyn Fn(&World)) {
    let reference = REGISTRY.find("naive").expect("it is in the table");
    let rng = SeededRng::new(seed);
    let (left, right) = (Side::new(reference, seed), Side::new(row, seed));
    plant(&right.world);
    for number in 0..ROUNDS {
        let round = round(&rng);
        let ((left_image, left_live), (right_image, right_live)) =
            (left.round(&round), right.round(&round));
        let context = format!("seed {seed}, round {number}: {} and {}", row.name, reference.name);
        assert!(!left_image.is_empty());
        // A recovery from a fuzzy checkpoint gives the state of all commits.
        let image = if right.world.is_fuzzy() { &left_live } else { &left_image };
        assert_same(&right_image, image, &context);
        assert_same(&right_live, &left_live, &format!("{context}, live"));
        assert_eq!(right.world.unmarked(), 0, "{context}");
    }
}

#[test]
fn schemes_agree_on_every_schedule() {
    for row in rows_that_take_checkpoints().filter(|row| row.name != "naive") {
        for seed in Share::of_run().seeds(row, 4, 1) {
            compare(row, seed, &|_| {});
        }
    }
}
