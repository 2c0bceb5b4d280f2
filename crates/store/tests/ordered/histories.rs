//! Histories of lists whose elements are records of their own, judged by the checker `adya`, a port of
//! Elle. (Kingsbury, Alvaro: "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB
//! 2020.) A read of a list is a range, and an append adds a key at its end. So an anomaly is a phantom.

use std::fmt::Write;
use std::sync::Arc;

use adya::{History, Opts, Valid, Workload, check};
use parking_lot::Mutex;
use stillpoint_store::{KeySet, Mode, Procedure, Stamp, Store, Tx, TxError};

use crate::common::{Random, env_or};
use crate::worlds::{PLAIN, T, ordered_store, worker_of};

/// One transaction: reads and appends, in this order.
struct Lists {
    /// Number of a list, and the element to append.
    steps: Vec<(u8, Option<u32>)>,
    found: Vec<Vec<u32>>,
}

/// Key of the element at a place of a list.
fn key(list: u8, place: u32) -> [u8; 5] {
    let [a, b, c, d] = place.to_be_bytes();
    [list, a, b, c, d]
}

impl Lists {
    fn run(&mut self, tx: &mut Tx<'_>, random: &mut Random) -> Result<(), TxError> {
        self.found.clear();
        for &(list, element) in &self.steps {
            let [start, end] = [key(list, 0), key(list, u32::MAX)];
            let bounds = &start[..]..&end[..];
            if let Some(element) = element {
                let mut last = tx.range_descending(T, bounds)?;
                let place = last.next_record()?.map_or(0, |(key, _)| {
                    u32::from_be_bytes(key[1..].try_into().expect("four bytes")) + 1
                });
                if random.one_in(2) {
                    std::thread::yield_now();
                }
                tx.put(T, &key(list, place), &element.to_le_bytes())?;
                self.found.push(Vec::new());
                continue;
            }
            let mut found = Vec::new();
            let mut range = tx.range(T, bounds)?;
            while let Some((_, value)) = range.next_record()? {
                let bytes = value.to_vec();
                found.push(u32::from_le_bytes(bytes[..].try_into().expect("four bytes")));
            }
            self.found.push(found);
            std::thread::yield_now();
        }
        Ok(())
    }

    fn line(&self, kind: &str, process: usize) -> String {
        let mut line = format!(r#"{{"type":"{kind}","process":{process},"value":["#);
        for (at, (list, new)) in self.steps.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let ended = match (new, self.found.get(at)) {
                (Some(new), _) => write!(line, r#"{comma}["append","{list}",{new}]"#),
                (None, Some(found)) => write!(line, r#"{comma}["r","{list}",{found:?}]"#),
                (None, None) => write!(line, r#"{comma}["r","{list}",null]"#),
            };
            ended.expect("strings grow");
        }
        line + "]}\n"
    }
}

/// A declared transaction that adds and removes keys that no list has, amid those of the lists.
struct Disturbs(Vec<u8>);

impl Procedure for Disturbs {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(T, &self.0, Mode::Write, 8);
        keys.push(PLAIN, b"turns", Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let slot = stillpoint_store::Slot(0);
        if tx.value(slot).is_some() {
            return tx.delete_slot(slot).map(|_| ());
        }
        tx.put_slot(slot, b"x")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

fn work(store: &Arc<Store>, history: &Mutex<String>, process: usize, seed: u64, count: u64) {
    let mut random = Random::new(seed * 10 + process as u64);
    let mut worker = worker_of(store);
    let mut next = (process as u32) << 24;
    for turn in 0..count {
        let mut element = || {
            next += 1;
            next
        };
        let steps = (0..1 + random.below(4)).map(|_| {
            let list = random.below(3) as u8 + (turn / 40 * 3) as u8;
            (list, random.one_in(2).then(&mut element))
        });
        let mut lists = Lists { steps: steps.collect(), found: Vec::new() };
        history.lock().push_str(&lists.line("invoke", process));
        let ended = worker.transact(|tx| lists.run(tx, &mut random));
        ended.expect("it is tried until it commits");
        history.lock().push_str(&lists.line("ok", process));
        if random.one_in(4) {
            // Keys between the lists change the leaves, and no list has them.
            let mut key = vec![random.below(4) as u8 + (turn / 40 * 3) as u8];
            key.extend([0xff; 5]);
            worker.execute(std::slice::from_mut(&mut Disturbs(key)));
        }
    }
}

/// The anomalies of a run of three threads.
fn anomalies(seed: u64, count: u64) -> (Valid, Vec<String>) {
    let store = ordered_store(4, seed);
    let history = Arc::new(Mutex::new(String::new()));
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
    let history = History::from_json(&history.lock()).expect("a well-formed history");
    let report = check(&history, Workload::ListAppend, &opts);
    (report.valid, report.anomaly_types.iter().map(ToString::to_string).collect())
}

/// Ranges and insertions of several threads are strictly serializable.
pub(crate) fn no_phantom(seed: u64) {
    let (valid, found) = anomalies(seed, env_or("STORE_TEST_TRANSACTIONS", 800));
    assert_eq!(valid, Valid::True, "{found:?}");
}
