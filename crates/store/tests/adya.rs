//! Tests of list-append histories with an independent checker: `adya`, a port of Elle. (Kingsbury,
//! Alvaro: "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.) Every
//! transaction reads whole lists and appends to them. From the read lists the checker infers the
//! order of the writes.

mod common;

use adya::{History, Opts, Valid, Workload, check};
use common::{Random, env_or, for_seeds, store_of};
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::Arc;
use stillpoint_store::{
    KeySet, Mode, NoLog, Procedure, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);

/// One transaction: reads and appends, in this order.
struct Lists {
    /// Key, and the number to append.
    steps: Vec<(u64, Option<u32>)>,
    found: Vec<Vec<u32>>,
    slots: Vec<Slot>,
}

impl Lists {
    fn random(random: &mut Random, next: &mut u32, keys: u64) -> Self {
        let count = 1 + random.below(5);
        let steps = (0..count).map(|_| {
            let key = random.below(keys as usize) as u64;
            *next += 1;
            (key, random.one_in(2).then_some(*next))
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

fn work(store: &Arc<Store>, history: &Mutex<String>, process: usize, seed: u64, count: u64) {
    let mut random = Random::new(seed * 10 + process as u64);
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot");
    let mut next = (process as u32) << 24;
    for turn in 0..count {
        // Fresh keys now and then, so that lists stay short.
        let mut lists = Lists::random(&mut random, &mut next, 8);
        for step in &mut lists.steps {
            step.0 += turn / 100 * 8;
        }
        history.lock().push_str(&lists.line("invoke", process));
        if random.one_in(2) {
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
        history.lock().push_str(&lists.line("ok", process));
    }
}

#[test]
fn elle_finds_no_anomaly() {
    for_seeds(4, |seed| {
        let store = store_of(1 << 30, 4, seed);
        let history = Arc::new(Mutex::new(String::new()));
        let count = env_or("STORE_TEST_TRANSACTIONS", 1_000);
        let threads: Vec<_> = (0..3)
            .map(|process| {
                let (store, history) = (store.clone(), history.clone());
                let work = move || work(&store, &history, process, seed, count);
                stillpoint_io::spawn(&format!("lists-{process}"), work).expect("a thread")
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let opts = Opts { models: vec!["strict-serializable".into()], ..Opts::default() };
        let mut text = history.lock().clone();
        let judged = |text: &str| {
            let history = History::from_json(text).expect("a well-formed history");
            check(&history, Workload::ListAppend, &opts)
        };
        let report = judged(&text);
        assert_eq!(report.valid, Valid::True, "{:?}", report.anomaly_types);
        // The checker detects an anomaly: two transactions that each miss the other's append.
        text.push_str(
            r#"{"type":"invoke","process":8,"value":[["r","no",null],["append","yes",1]]}
{"type":"invoke","process":9,"value":[["r","yes",null],["append","no",1]]}
{"type":"ok","process":8,"value":[["r","no",[]],["append","yes",1]]}
{"type":"ok","process":9,"value":[["r","yes",[]],["append","no",1]]}
"#,
        );
        let report = judged(&text);
        assert_eq!(report.valid, Valid::False);
        assert_eq!(report.anomaly_types, ["G2-item"]);
    });
}
