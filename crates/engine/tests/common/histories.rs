//! Histories of lists in tables of two kinds, across crashes, judged by the checker `adya`, a port of
//! Elle. (Kingsbury, Alvaro: "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB
//! 2020.)
//!
//! The elements of a list are records of their own. A read of a list is a range, and an append adds a key at
//! its end. So an anomaly is a phantom, a lost append, or a transaction of which a crash has kept a half.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use adya::{History, Opts, Valid, Workload, check};
use parking_lot::Mutex;
use stillpoint::{
    Engine, Error, KeySet, Kind, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Rng, SeededRng, SimDisk};

const PROCESSES: usize = 3;
/// Lists that are in use at the same time. Even ones lie in the first table.
const LISTS: u64 = 4;
const LIVES: u64 = 3;

/// The tables of even and of odd lists.
type Tables = [TableId; 2];

/// The store of a history.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    /// Opens the store.
    pub(crate) open: fn(&SimDisk) -> Engine,
    /// The kinds of the tables of even and of odd lists.
    pub(crate) kinds: [Kind; 2],
    /// Whether every third transaction stays open across calls.
    pub(crate) stays_open: bool,
}

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
    fn run(&mut self, tx: &mut Tx<'_>, tables: Tables) -> Result<(), TxError> {
        self.found.clear();
        for &(list, element) in &self.steps {
            let table = tables[usize::from(list) % 2];
            let [start, end] = [key(list, 0), key(list, u32::MAX)];
            let (mut found, mut next) = (Vec::new(), 0);
            let mut range = tx.range(table, &start[..]..&end[..])?;
            while let Some((key, value)) = range.next_record()? {
                next = u32::from_be_bytes(key[1..].try_into().expect("four bytes")) + 1;
                let bytes = value.to_vec();
                found.push(u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")));
            }
            std::thread::yield_now();
            match element {
                // Long values split pages and fill the pool.
                Some(element) => {
                    let mut value = vec![7; 200];
                    value[..4].copy_from_slice(&element.to_le_bytes());
                    tx.put(table, &key(list, next), &value)?;
                    self.found.push(Vec::new());
                }
                None => self.found.push(found),
            }
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
struct Disturbs {
    tables: Tables,
    key: Vec<u8>,
}

impl Procedure for Disturbs {
    fn declare(&mut self, keys: &mut KeySet) {
        for table in self.tables {
            keys.push(table, &self.key, Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for slot in [Slot(0), Slot(1)] {
            if tx.value(slot).is_some() {
                tx.delete_slot(slot)?;
            } else {
                tx.put_slot(slot, b"x")?;
            }
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("a declared transaction commits");
    }
}

/// A history, and the transactions that have not ended.
#[derive(Clone, Default)]
struct Recorded {
    lines: String,
    /// The steps of the open transaction of each process, as a line that says that its end is unknown.
    open: Vec<Option<String>>,
    committed: u64,
}

/// Runs a transaction that stays open across calls. False if it met a conflict, and nothing of it has
/// happened.
fn run_open(session: &mut Session, lists: &mut Lists, tables: Tables) -> bool {
    let mut open = session.begin().expect("begins");
    let steps = std::mem::take(&mut lists.steps);
    let mut found = Vec::new();
    for step in &steps {
        lists.steps = vec![*step];
        let ended = lists.run(&mut open.tx().expect("open"), tables);
        if ended.is_err() {
            lists.steps = steps;
            return false;
        }
        found.append(&mut lists.found);
        std::thread::yield_now();
    }
    (lists.steps, lists.found) = (steps, found);
    match open.commit() {
        Ok(_) => true,
        Err(Error::Transaction(TxError::Conflict)) => false,
        Err(error) => panic!("a sound disk: {error}"),
    }
}

fn work(
    session: &mut Session,
    recorded: &Mutex<Recorded>,
    (tables, stays_open): (Tables, bool),
    (process, count): (usize, u64),
    rng: &SeededRng,
    done: &AtomicU64,
) {
    let mut next = (process as u32) << 20;
    for turn in 0..count {
        let mut element = || {
            next += 1;
            next
        };
        let steps = (0..1 + rng.below(4)).map(|_| {
            // Ranges of short lists meet each other. A list is left after a while.
            let list = rng.below(LISTS) + turn / 30 * LISTS;
            (list as u8, (rng.below(2) == 0).then(&mut element))
        });
        let mut lists = Lists { steps: steps.collect(), found: Vec::new() };
        {
            let mut recorded = recorded.lock();
            recorded.lines.push_str(&lists.line("invoke", process));
            let unknown = lists.line("info", process);
            recorded.open[process] = Some(unknown);
        }
        let happened = if stays_open && rng.below(3) == 0 {
            run_open(session, &mut lists, tables)
        } else {
            session.transact(|tx| lists.run(tx, tables)).expect("it is tried until it commits");
            true
        };
        session.flush().expect("a sound disk");
        {
            let mut recorded = recorded.lock();
            let ended = if happened { "ok" } else { "fail" };
            recorded.lines.push_str(&lists.line(ended, process));
            recorded.committed += u64::from(happened);
            recorded.open[process] = None;
        }
        if rng.below(4) == 0 {
            let mut key = vec![(rng.below(LISTS + 1) + turn / 30 * LISTS) as u8];
            key.extend([0xff; 5]);
            let mut disturbs = Disturbs { tables, key };
            session.execute(std::slice::from_mut(&mut disturbs));
        }
        done.fetch_add(1, SeqCst);
    }
}

/// Runs threads on a store, and stops the machine amid their work. Returns the disk after the crash, and
/// what was acknowledged before.
fn live(
    disk: &SimDisk,
    life: u64,
    mut before: Recorded,
    setting: Setting,
    count: u64,
    seed: u64,
) -> (SimDisk, Recorded) {
    let Setting { open, kinds, stays_open } = setting;
    let engine = Arc::new(open(disk));
    let tables = ["lists", "others"].into_iter().zip(kinds);
    let tables: Vec<TableId> =
        tables.map(|(name, kind)| engine.table_with(name, kind).expect("a table")).collect();
    let tables = [tables[0], tables[1]];
    before.open.resize((life as usize + 1) * PROCESSES, None);
    let recorded = Arc::new(Mutex::new(before));
    let done = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..PROCESSES)
        .map(|thread| {
            let process = life as usize * PROCESSES + thread;
            let rng = SeededRng::new(seed * 100 + process as u64);
            let mut session = engine.session().expect("a session");
            let (recorded, done) = (recorded.clone(), done.clone());
            let work = move || {
                let tables = (tables, stays_open);
                work(&mut session, &recorded, tables, (process, count), &rng, &done);
            };
            stillpoint_io::spawn(&format!("lists-{process}"), work).expect("a thread")
        })
        .collect();
    let all = PROCESSES as u64 * count;
    let mut crashed = None;
    let mut next_checkpoint = all / 5;
    while done.load(SeqCst) < all {
        if done.load(SeqCst) >= next_checkpoint {
            engine.checkpoint().expect("a sound disk");
            next_checkpoint += all / 5;
        }
        if crashed.is_none() && done.load(SeqCst) >= all * 2 / 3 {
            // What the history has as acknowledged is on the disk.
            let recorded = recorded.lock();
            crashed = Some((disk.crash_image(seed), recorded.clone()));
        }
        std::thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let recorded = recorded.lock().clone();
    crashed.unwrap_or_else(|| (disk.crash_image(seed), recorded))
}

/// Three lives of a store.
pub(crate) fn no_anomaly_across_crashes(setting: Setting, seed: u64, count: u64) {
    let (mut disk, mut recorded) = (SimDisk::new(seed), Recorded::default());
    for life in 0..LIVES {
        (disk, recorded) = live(&disk, life, recorded, setting, count, seed + life);
        for open in &mut recorded.open {
            recorded.lines.push_str(&open.take().unwrap_or_default());
        }
    }
    // Up to the last crash, two thirds of the transactions have ended.
    assert!(recorded.committed > count, "{} have committed", recorded.committed);
    let opts = Opts { models: vec!["strict-serializable".into()], ..Opts::default() };
    let history = History::from_json(&recorded.lines).expect("a well-formed history");
    let report = check(&history, Workload::ListAppend, &opts);
    let found: Vec<String> = report.anomaly_types.iter().map(ToString::to_string).collect();
    assert_eq!(report.valid, Valid::True, "seed {seed}: {found:?}");
}
