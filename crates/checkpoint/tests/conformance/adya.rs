//! Tests of list-append histories with an independent checker: `adya`, a port of Elle. (Kingsbury,
//! Alvaro: "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.) Every
//! transaction reads whole lists and appends to them. From the read lists the checker infers the
//! order of the writes. Each scheme takes checkpoints all the while.

use std::fmt::Write;
use std::sync::Arc;

use adya::{History, Opts, Valid, Workload, check};
use parking_lot::Mutex;
use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_io::{Clock, RealClock, Rng, SeededRng, spawn};
use stillpoint_store::{KeySet, Mode, Procedure, Slot, Stamp, TableId, Tx, TxError};

use crate::bank::seeds;
use crate::model::assert_same;
use crate::world::{World, entry};

const T: TableId = TableId(0);
const PROCESSES: u8 = 3;

/// One transaction: reads and appends, in this order.
struct Lists {
    /// Key, and the number to append.
    steps: Vec<(u64, Option<u32>)>,
    found: Vec<Vec<u32>>,
    slots: Vec<Slot>,
}

impl Lists {
    fn random(random: &SeededRng, next: &mut u32, keys: u64) -> Self {
        let count = 1 + random.below(5);
        let steps = (0..count).map(|_| {
            let key = random.below(keys);
            *next += 1;
            (key, (random.below(2) == 0).then_some(*next))
        });
        Self { steps: steps.collect(), found: Vec::new(), slots: Vec::new() }
    }

    fn step(&mut self, tx: &mut Tx<'_>, slot: Slot, at: usize) -> Result<(), TxError> {
        let bytes = tx.value(slot).map(|value| value.to_vec());
        let list = bytes.as_deref().unwrap_or(&[]);
        let number = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes"));
        self.found.push(list.chunks(4).map(number).collect());
        match self.steps[at].1 {
            Some(new) if bytes.is_some() => tx.patch_slot(slot, list.len(), &new.to_le_bytes()),
            Some(new) => tx.put_slot(slot, &new.to_le_bytes()),
            None => Ok(()),
        }
    }

    fn mode(step: (u64, Option<u32>)) -> Mode {
        if step.1.is_some() { Mode::Write } else { Mode::Read }
    }

    /// A line of the history.
    fn line(&self, kind: &str, process: usize) -> String {
        let mut line = format!(r#"{{"type":"{kind}","process":{process},"value":["#);
        for (at, (key, new)) in self.steps.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let ended = match (new, self.found.get(at)) {
                (Some(new), _) => write!(line, r#"{comma}["append","{key}",{new}]"#),
                (None, Some(list)) => write!(line, r#"{comma}["r","{key}",{list:?}]"#),
                (None, None) => write!(line, r#"{comma}["r","{key}",null]"#),
            };
            ended.expect("strings grow");
        }
        line + "]}\n"
    }
}

impl Procedure for Lists {
    fn declare(&mut self, keys: &mut KeySet) {
        for step in &self.steps {
            let slot = keys.push(T, &step.0.to_le_bytes(), Self::mode(*step), 100);
            self.slots.push(slot);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (0..self.steps.len()).try_for_each(|at| self.step(tx, self.slots[at], at))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

fn work(world: &World, history: &Mutex<String>, process: u8, seed: u64, count: u64) {
    let random = SeededRng::new(seed * 10 + u64::from(process));
    let mut worker = world.worker(process);
    let mut next = u32::from(process) << 24;
    for turn in 0..count {
        // Fresh keys now and then, so that lists stay short.
        let mut lists = Lists::random(&random, &mut next, 8);
        for step in &mut lists.steps {
            step.0 += turn / 100 * 8;
        }
        history.lock().push_str(&lists.line("invoke", process.into()));
        if random.below(2) == 0 {
            worker.execute(std::slice::from_mut(&mut lists));
        } else {
            let ended = worker.transact(|tx| {
                lists.found.clear();
                for at in 0..lists.steps.len() {
                    let step = lists.steps[at];
                    let slot = tx.key(T, &step.0.to_le_bytes(), Lists::mode(step))?;
                    lists.step(tx, slot, at)?;
                    std::thread::yield_now();
                }
                Ok(())
            });
            ended.expect("it is tried until it commits");
        }
        history.lock().push_str(&lists.line("ok", process.into()));
    }
}

/// Runs the processes, takes checkpoints until they have ended, and returns the history.
fn history_of(world: &Arc<World>, seed: u64, count: u64) -> String {
    let history = Arc::new(Mutex::new(String::new()));
    let start = |process: u8| {
        let (world, history) = (world.clone(), history.clone());
        let work = move || work(&world, &history, process, seed, count);
        spawn(&format!("lists-{process}"), work).expect("a thread")
    };
    let threads: Vec<_> = (0..PROCESSES).map(start).collect();
    while world.scheme.is_some() && !threads.iter().all(|thread| thread.is_finished()) {
        let (written, _) = world.take().expect("no fault was injected");
        let expected = world.expected(written.epoch);
        assert_same(&world.load(&entry(written)), &expected, "a checkpoint meanwhile");
        RealClock.sleep(std::time::Duration::from_millis(5));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    std::mem::take(&mut *history.lock())
}

#[test]
fn elle_finds_no_anomaly() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let count = number("STILLPOINT_ADYA_TRANSACTIONS").unwrap_or(500);
    let opts = Opts { models: vec!["strict-serializable".into()], ..Opts::default() };
    let judged = |text: &str| {
        let history = History::from_json(text).expect("a well-formed history");
        check(&history, Workload::ListAppend, &opts)
    };
    for (row, seed) in REGISTRY.iter().flat_map(|row| seeds(1).map(move |seed| (row, seed))) {
        let world = Arc::new(World::new(row, seed));
        let mut text = history_of(&world, seed, count);
        let report = judged(&text);
        assert_eq!(report.valid, Valid::True, "{}: {:?}", row.name, report.anomaly_types);
        // The checker detects an anomaly: two transactions that each miss the other's append.
        text.push_str(
            r#"{"type":"invoke","process":8,"value":[["r","no",null],["append","yes",1]]}
{"type":"invoke","process":9,"value":[["r","yes",null],["append","no",1]]}
{"type":"ok","process":8,"value":[["r","no",[]],["append","yes",1]]}
{"type":"ok","process":9,"value":[["r","yes",[]],["append","no",1]]}
"#,
        );
        let report = judged(&text);
        assert_eq!(
            (report.valid, &report.anomaly_types[..]),
            (Valid::False, &["G2-item".to_owned()][..])
        );
    }
}
