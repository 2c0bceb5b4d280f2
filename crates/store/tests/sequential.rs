//! Tests of one worker in comparison with a sequential model: declared, undeclared and batched
//! transactions, and errors. Tables are flushed, checkpoints come at any moment, and workers are
//! replaced. Values have all sizes of cells.

mod common;

use common::{
    CheckingLog, Contents, Gathered, Key, LogState, Random, Value, assert_same, brief, contents_of,
    env_or, for_seeds, store_of, store_with, walk,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stillpoint_store::{
    Batch, CellRules, Change, Commit, CommitLog, FoundValue, KeySet, Label, LogRefused, Mode,
    NoLog, Phase, Procedure, Replaced, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

/// Lengths at which something changes: in words, inline keys, codes of lengths, blocks.
const KEY_LENS: [usize; 18] =
    [0, 1, 7, 8, 9, 15, 16, 17, 100, 1016, 1023, 1024, 1025, 2046, 2047, 2048, 65_535, 65_536];
/// Lengths of values at which something changes: inline, a larger cell, large; chunks of 64 KiB.
const VALUE_LENS: [usize; 20] = [
    0, 1, 3, 4, 5, 11, 12, 13, 100, 2043, 2044, 2045, 4096, 16_376, 16_377, 65_535, 65_536, 65_537,
    131_072, 1_000_000,
];

fn value_len(random: &mut Random) -> usize {
    match random.below(40) {
        0 => VALUE_LENS[random.below(VALUE_LENS.len())],
        1..=3 => VALUE_LENS[random.below(VALUE_LENS.len() - 3)],
        4 => random.below(200_000),
        5..=12 => random.below(3_000),
        13..=25 => 90 + random.below(30),
        _ => random.below(24),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Get,
    Put(Label, Vec<u8>),
    Until(u64),
    Patch(usize, Vec<u8>),
    Splice(usize, usize, Vec<u8>),
    Delete,
}

impl Op {
    fn writes(&self) -> bool {
        !matches!(self, Op::Get)
    }
}

/// Expected result of an operation.
#[derive(Debug, PartialEq)]
enum Answer {
    Value(Option<Value>),
    Done,
    Outside(usize),
    Existed(bool),
}

/// A transaction with its expected results.
struct Script {
    ops: Vec<(Key, Op, Answer)>,
    /// Length hints of the declaration.
    hints: Vec<usize>,
    abandon: bool,
    slots: Vec<Slot>,
    ended: Option<Result<Option<Stamp>, String>>,
    /// Use `get`, `put` … with keys instead of slots.
    by_key: bool,
}

impl Script {
    /// Operations with their expected results. Changes `model` to the state after a commit.
    fn new(random: &mut Random, keys: &[Key], model: &mut Contents) -> Self {
        let abandon = random.one_in(6);
        let mut overlay: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        let mut ops = Vec::new();
        let most = if random.one_in(10) { 60 } else { 6 };
        let count = 1 + random.below(most);
        for _ in 0..count {
            let key = keys[random.below(keys.len())].clone();
            let now = overlay.get(&key).cloned();
            let now = now.unwrap_or_else(|| model.get(&key).cloned());
            let op = random_op(random, now.as_ref());
            let (next, answer) = apply(&op, now);
            if op.writes() {
                overlay.insert(key.clone(), next);
            }
            ops.push((key, op, answer));
        }
        if !abandon {
            for (key, value) in overlay {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
        }
        let hints = ops.iter().map(|_| random.below(200)).collect();
        Self { ops, hints, abandon, slots: Vec::new(), ended: None, by_key: random.one_in(2) }
    }

    fn body(&self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for (at, ((table, key), op, expected)) in self.ops.iter().enumerate() {
            let slot = if self.by_key {
                let mode = if op.writes() { Mode::Write } else { Mode::Read };
                tx.key(TableId(*table), key, mode)?
            } else {
                self.slots[at]
            };
            let answer = answer_of(tx, slot, op)?;
            if answer != *expected {
                let shown = |answer: &Answer| match answer {
                    Answer::Value(Some(value)) => format!("{:?}", brief(value)),
                    other => format!("{other:?}"),
                };
                panic!(
                    "operation {at}, key of {} bytes: {}, expected {}",
                    key.len(),
                    shown(&answer),
                    shown(expected)
                );
            }
        }
        if self.abandon {
            return Err(TxError::abandon("the script says so"));
        }
        Ok(())
    }

    fn check_end(&self) {
        let ended = self.ended.as_ref().expect("it ended");
        match ended {
            Ok(stamp) => {
                assert!(!self.abandon);
                let wrote = self.ops.iter().any(|(_, op, _)| op.writes());
                assert!(wrote || stamp.is_none(), "a reader got a stamp");
            }
            Err(message) => {
                assert!(self.abandon, "{message}");
                assert!(message.contains("abandoned"), "{message}");
            }
        }
    }
}

fn random_op(random: &mut Random, now: Option<&Value>) -> Op {
    match random.below(10) {
        0..=2 => Op::Get,
        3 if random.one_in(3) => Op::Until(if random.one_in(3) { 0 } else { random.next() }),
        3 => Op::Delete,
        4..=6 if now.is_some() || random.one_in(10) => {
            let len = now.map_or(0, |value| value.1.len());
            let offset = match random.below(8) {
                0 => len,
                1 => len + 1 + random.below(9),
                _ => random.below(len + 1),
            };
            let count = match random.below(6) {
                0 => 0,
                1 => value_len(random).min(90_000),
                _ => 1 + random.below(20),
            };
            if random.one_in(2) {
                return Op::Splice(offset, random.below(30), random.bytes(count));
            }
            Op::Patch(offset, random.bytes(count))
        }
        _ => {
            let len = value_len(random);
            let deadline = if random.one_in(3) { random.next() } else { 0 };
            let label = Label { tag: random.next() as u8, deadline };
            Op::Put(label, random.bytes(len))
        }
    }
}

/// The value after an operation, and its answer.
fn apply(op: &Op, now: Option<Value>) -> (Option<Value>, Answer) {
    match op {
        Op::Get => (now.clone(), Answer::Value(now)),
        Op::Put(label, bytes) => (Some((*label, bytes.clone())), Answer::Done),
        Op::Until(deadline) => match now {
            Some((Label { tag, .. }, value)) => {
                (Some((Label { tag, deadline: *deadline }, value)), Answer::Done)
            }
            None => (None, Answer::Outside(0)),
        },
        Op::Delete => (None, Answer::Existed(now.is_some())),
        Op::Splice(offset, removed, bytes) => match now {
            Some((label, mut value)) if offset + removed <= value.len() => {
                value.splice(*offset..offset + removed, bytes.iter().copied());
                (Some((label, value)), Answer::Done)
            }
            now => {
                let len = now.as_ref().map_or(0, |value| value.1.len());
                (now, Answer::Outside(len))
            }
        },
        Op::Patch(offset, bytes) => match now {
            Some((label, mut value)) if *offset <= value.len() => {
                let end = offset + bytes.len();
                value.resize(value.len().max(end), 0);
                value[*offset..end].copy_from_slice(bytes);
                (Some((label, value)), Answer::Done)
            }
            now => {
                let len = now.as_ref().map_or(0, |value| value.1.len());
                (now, Answer::Outside(len))
            }
        },
    }
}

fn answer_of(tx: &mut Tx<'_>, slot: Slot, op: &Op) -> Result<Answer, TxError> {
    Ok(match op {
        Op::Get => Answer::Value(tx.value(slot).map(|value| (value.label(), value.to_vec()))),
        Op::Put(label, bytes) => {
            tx.put_slot_labelled(slot, *label, bytes)?;
            Answer::Done
        }
        Op::Until(deadline) => match tx.set_slot_deadline(slot, *deadline) {
            Ok(()) => Answer::Done,
            Err(TxError::PatchOutsideValue { len, .. }) => Answer::Outside(len),
            Err(other) => return Err(other),
        },
        Op::Delete => Answer::Existed(tx.delete_slot(slot)?),
        Op::Splice(offset, removed, bytes) => {
            match tx.splice_slot(slot, *offset, *removed, bytes) {
                Ok(()) => Answer::Done,
                Err(TxError::PatchOutsideValue { len, .. }) => Answer::Outside(len),
                Err(other) => return Err(other),
            }
        }
        Op::Patch(offset, bytes) => match tx.patch_slot(slot, *offset, bytes) {
            Ok(()) => Answer::Done,
            Err(TxError::PatchOutsideValue { len, .. }) => Answer::Outside(len),
            Err(other) => return Err(other),
        },
    })
}

impl Procedure for Script {
    fn declare(&mut self, keys: &mut KeySet) {
        assert!(keys.is_empty());
        self.slots.clear();
        for ((key, op, _), hint) in self.ops.iter().zip(&self.hints) {
            let mode = if op.writes() { Mode::Write } else { Mode::Read };
            let slot = keys.push(TableId(key.0), &key.1, mode, *hint);
            self.slots.push(slot);
        }
        assert_eq!(keys.len(), self.ops.len());
        // A declared key must be declared for writing if any operation writes it.
        self.by_key = false;
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.body(tx)
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result.map_err(|error| error.to_string()));
    }
}

/// The store, the model, and the state that a test's steps change.
struct Bench {
    random: Random,
    store: Arc<Store>,
    gathered: Arc<Gathered>,
    worker: Option<Worker>,
    logs: u8,
    log_state: Arc<Mutex<LogState>>,
    closed: Arc<AtomicU64>,
    keys: Vec<Key>,
    model: Contents,
    /// The model at the last point of consistency, while a checkpoint is under way.
    at_point: Option<Contents>,
    generation: u32,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let gathered = Arc::new(Gathered::default());
        let store = store_with(512 << 20, 4, seed, CellRules::BEFORE_IMAGES);
        let mut keys: Vec<Key> =
            KEY_LENS.iter().map(|&len| (random.below(2) as u16, random.bytes(len))).collect();
        for _ in 0..20 {
            keys.push((random.below(2) as u16, random.bytes(8)));
        }
        // The same bytes in both tables.
        keys.push((0, b"shared".to_vec()));
        keys.push((1, b"shared".to_vec()));
        Self {
            random,
            store,
            gathered,
            worker: None,
            logs: 0,
            log_state: Arc::default(),
            closed: Arc::default(),
            keys,
            model: Contents::new(),
            at_point: None,
            generation: 1,
        }
    }

    fn worker(&mut self) -> &mut Worker {
        if self.worker.is_none() {
            let log = CheckingLog::new(self.logs, &self.log_state, &self.closed);
            self.logs += 1;
            self.worker = Worker::new(self.store.clone(), log);
        }
        self.worker.as_mut().expect("a free slot")
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..=15 => self.undeclared(),
            16..=31 => self.batch(),
            32 => self.check(),
            33 => self.refused(),
            34 => self.move_phase(),
            35 => _ = self.worker().idle(),
            36 => {
                let now = self.log_state.lock().last.values().copied().max();
                self.closed.store(now.unwrap_or(0), Ordering::SeqCst);
            }
            37 if self.random.one_in(4) => self.worker = None,
            38 if self.random.one_in(4) => self.flush(),
            _ => {
                self.store.maintain();
            }
        }
    }

    fn undeclared(&mut self) {
        let before = self.random.one_in(3).then(|| self.model.clone());
        let mut script = Script::new(&mut self.random, &self.keys, &mut self.model);
        script.by_key = true;
        let ended = self.worker().transact_stamped(|tx| script.body(tx));
        let ended = ended.map(|((), stamp)| stamp);
        script.ended = Some(ended.map_err(|error| error.to_string()));
        script.check_end();
        if let (true, Some(before)) = (script.abandon, before) {
            assert_same(&contents_of(self.worker()), &before, "after a rollback");
        }
    }

    fn batch(&mut self) {
        let count = 1 + self.random.below(12);
        let mut scripts: Vec<Script> = (0..count)
            .map(|_| Script::new(&mut self.random, &self.keys, &mut self.model))
            .collect();
        self.worker().execute(&mut scripts[..]);
        for script in &scripts {
            script.check_end();
        }
    }

    /// A commit that the log refuses changes nothing.
    fn refused(&mut self) {
        let mut after = self.model.clone();
        let script = Script::new(&mut self.random, &self.keys, &mut after);
        self.log_state.lock().refuse = true;
        let ended = self.worker().transact(|tx| {
            let mut undeclared = Vec::new();
            for (key, op, _) in &script.ops {
                let mode = if op.writes() { Mode::Write } else { Mode::Read };
                undeclared.push(tx.key(TableId(key.0), &key.1, mode)?);
            }
            for (slot, (_, op, _)) in undeclared.iter().zip(&script.ops) {
                answer_of(tx, *slot, op)?;
            }
            Ok(())
        });
        let was_asked = !std::mem::take(&mut self.log_state.lock().refuse);
        assert_eq!(ended.is_err(), was_asked, "{ended:?}");
        assert!(!was_asked || matches!(ended, Err(TxError::Log(_))));
        self.check();
    }

    fn move_phase(&mut self) {
        let driver = self.store.driver();
        match driver.now().phase() {
            Phase::Rest => {
                self.store.set_sink(Some(self.gathered.clone()));
                driver.advance(Phase::Prepare);
            }
            Phase::Prepare => {
                driver.advance(Phase::Resolve);
                self.at_point = Some(self.model.clone());
            }
            Phase::Resolve => drop(driver.advance(Phase::Capture)),
            Phase::Capture => {
                walk(&self.store, &self.gathered);
                driver.advance(Phase::Complete);
                let captured = self.gathered.contents(&self.store);
                if let Some(expected) = self.at_point.take() {
                    assert_same(&captured, &expected, "the checkpoint");
                }
            }
            Phase::Complete => {
                driver.advance(Phase::Rest);
                self.store.set_sink(None);
            }
        }
    }

    /// Table 1 gets a new generation. Records of the old one in a checkpoint under way are ignored.
    fn flush(&mut self) {
        let quiesced = self.store.driver().quiesce();
        self.generation += 1;
        let table = TableId(1);
        let new = self.store.new_table(table, self.generation).expect("address space");
        self.store.replace_tables(&quiesced, vec![new], Replaced::Captured);
        drop(quiesced);
        assert_eq!(self.store.generation(table), Some(self.generation));
        self.model.retain(|key, _| key.0 == 0);
        self.log_state.lock().replica.retain(|key, _| key.0 == 0);
        if let Some(expected) = &mut self.at_point {
            expected.retain(|key, _| key.0 == 0);
        }
    }

    fn check(&mut self) {
        let contents = contents_of(self.worker());
        assert_same(&contents, &self.model, "the store");
        assert_same(&self.log_state.lock().replica, &self.model, "the log");
        for table in 0..2 {
            let count = self.model.keys().filter(|key| key.0 == table).count();
            assert_eq!(self.store.record_count(TableId(table)), count as u64);
        }
        let key = self.keys[self.random.below(self.keys.len())].clone();
        let mut value = vec![0xaa];
        let seen = self.worker().read(TableId(key.0), &key.1, &mut value);
        let seen = seen.expect("the table exists");
        let found = seen
            .map(|FoundValue { tag, deadline, .. }| (Label { tag, deadline }, value.split_off(1)));
        assert_eq!(
            found.as_ref().map(brief),
            self.model.get(&key).map(brief),
            "a read without lock"
        );
        assert_eq!(value, [0xaa], "what was in the buffer stays");
    }
}

#[test]
fn every_operation_answers_as_the_model_does() {
    for_seeds(env_or("STORE_TEST_SEEDS", 10), |seed| {
        let mut bench = Bench::new(seed);
        for _ in 0..400 {
            bench.step();
        }
        bench.check();
        // Finish a checkpoint that is under way, and take a whole one.
        for _ in 0..10 {
            bench.move_phase();
        }
        bench.check();
    });
}

#[test]
fn several_mebibytes_in_one_value() {
    for_seeds(2, |seed| {
        let mut random = Random::new(seed);
        let store = store_with(256 << 20, 4, seed, CellRules::BEFORE_IMAGES);
        let (state, closed) = (Arc::default(), Arc::default());
        let log = CheckingLog::new(0, &state, &closed);
        let mut worker = Worker::new(store.clone(), log).expect("a free slot");
        let mut model = random.bytes(3 << 20);
        let table = TableId(0);
        worker.transact(|tx| tx.put_tagged(table, b"k", 7, &model)).expect("memory");
        for _ in 0..60 {
            let offset = random.below(model.len() + 1);
            let len = match random.below(3) {
                0 => random.below(300_000),
                _ => random.below(100),
            };
            let patch = random.bytes(len);
            worker.transact(|tx| tx.patch(table, b"k", offset, &patch)).expect("memory");
            model.resize(model.len().max(offset + len), 0);
            model[offset..offset + len].copy_from_slice(&patch);
            let mut got = Vec::new();
            let seen = worker.read(table, b"k", &mut got).expect("a table");
            assert_eq!(seen.map(|seen| seen.tag), Some(7));
            assert!(got == model);
        }
        assert!(store.held_bytes() < 64 << 20, "replaced chunks are used again");
    });
}

/// Counts what its commits write: ranges of patches, and whole values.
struct CountingLog(NoLog, Arc<AtomicU64>);

impl CommitLog for CountingLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        for write in commit.writes.iter() {
            let entries = match write.change {
                Change::Patch(patches) => patches.count() as u64,
                _ => 1,
            };
            self.1.fetch_add(entries, Ordering::SeqCst);
        }
        self.0.append(commit)
    }
    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        self.0.wait_for_room()
    }
    fn is_closed(&self, stamp: Stamp) -> bool {
        self.0.is_closed(stamp)
    }
}

/// A transaction that patches and reads one key again and again takes linear time: it holds few
/// patches of the key, whatever their number.
#[test]
fn many_patches_of_one_key_become_one_value() {
    for (len, most) in [(8, 33), (500, 33), (4_000, 33), (9_000, 3_000)] {
        let store = store_with(64 << 20, 4, 1, CellRules::BEFORE_IMAGES);
        let entries = Arc::new(AtomicU64::new(0));
        let log = CountingLog(NoLog::default(), entries.clone());
        let mut worker = Worker::new(store.clone(), Box::new(log)).expect("a free slot");
        let (table, mut random) = (TableId(0), Random::new(len as u64));
        let mut model = random.bytes(len);
        worker.transact(|tx| tx.put_tagged(table, b"k", 7, &model)).expect("memory");
        entries.store(0, Ordering::SeqCst);
        worker
            .transact(|tx| {
                for _ in 0..3_000 {
                    let offset = random.below(model.len());
                    let count = 1 + random.below((len - offset).min(8));
                    let bytes = random.bytes(count);
                    tx.patch(table, b"k", offset, &bytes)?;
                    model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    let value = tx.get(table, b"k")?.expect("it has a value");
                    assert_eq!((value.tag(), value.to_vec()), (7, model.clone()));
                }
                Ok(())
            })
            .expect("memory");
        let entries = entries.load(Ordering::SeqCst);
        assert!((1..=most).contains(&entries), "{entries} entries for {len} bytes");
        let mut got = Vec::new();
        worker.read(table, b"k", &mut got).expect("a table");
        assert_eq!(got, model);
    }
}

/// A transaction starts without the call of the one before it, and a long call leaves no long buffer
/// behind.
#[test]
fn a_call_ends_with_its_transaction() {
    let store = store_with(64 << 20, 4, 1, CellRules::BEFORE_IMAGES);
    let mut worker = Worker::new(store, Box::new(NoLog::default())).expect("a free slot");
    for is_rolled_back in [false, true] {
        let ended = worker.transact(|tx| {
            tx.call().resize(8 << 20, 1);
            tx.put_tagged(TableId(0), b"k", 0, b"v")?;
            if is_rolled_back { Err(TxError::NotLocked) } else { Ok(()) }
        });
        assert_eq!(ended.is_err(), is_rolled_back);
        let buffer = worker.transact(|tx| Ok((tx.call().len(), tx.call().capacity())));
        let (len, capacity) = buffer.expect("nothing is refused");
        assert_eq!(len, 0);
        assert!(capacity <= 1 << 20, "{capacity} bytes are kept");
    }
}

/// One read section copies a bounded number of bytes, so the records of one position may need
/// several.
#[test]
fn a_scan_shows_each_of_many_long_values_once() {
    let store = store_of(256 << 20, 2, 1);
    let (state, closed) = (Arc::default(), Arc::default());
    let mut worker = Worker::new(store, CheckingLog::new(0, &state, &closed)).expect("a free slot");
    let table = TableId(0);
    for key in 0..60u8 {
        let value = vec![key; 400_000 + usize::from(key)];
        worker.transact(|tx| tx.put_tagged(table, &[key; 3], key, &value)).expect("memory");
    }
    let mut seen = Vec::new();
    let mut cursor = 0;
    loop {
        let visit = &mut |key: &[u8], value: stillpoint_store::ValueRef<'_>| {
            assert_eq!((key, value.tag()), (&[key[0]; 3][..], key[0]));
            assert!(value.to_vec() == vec![key[0]; 400_000 + usize::from(key[0])]);
            seen.push(key[0]);
        };
        cursor = worker.scan(table, cursor, 1, visit).expect("a table");
        if cursor == 0 {
            break;
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..60).collect::<Vec<u8>>());

    // The scan copies only the head of each value.
    let mut heads = Vec::new();
    let visit = &mut |key: &[u8], value: stillpoint_store::ValueRef<'_>| {
        assert_eq!((value.tag(), value.to_vec()), (key[0], vec![key[0]; 5]));
        heads.push(key[0]);
    };
    assert_eq!(worker.scan_heads(table, 0, usize::MAX, 5, visit).expect("a table"), 0);
    heads.sort_unstable();
    assert_eq!(heads, seen);
}

/// A batch that notes the length of each key's value, and runs nothing.
struct Asking {
    keys: u32,
    told: Vec<usize>,
}

impl Batch for Asking {
    fn len(&self) -> usize {
        self.keys as usize
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        keys.push(TableId(0), &(index as u32).to_be_bytes(), Mode::Read, 0);
    }
    fn begins(&mut self, index: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        assert_eq!(index, self.told.len());
        self.told.push(large_bytes());
        false
    }
    fn run(&mut self, index: usize, _: &mut Tx<'_>) -> Result<(), TxError> {
        panic!("{index} was not to begin");
    }
    fn ended(&mut self, index: usize, _: Result<Option<Stamp>, TxError>) {
        panic!("{index} did not begin");
    }
}

/// The length is also known for a key behind others with the same tag, and for a key in an overflow
/// bucket.
#[test]
fn a_batch_learns_the_length_of_every_large_value_before_it_begins() {
    const KEYS: u32 = 10_000;
    let store = store_of(256 << 20, 2, 1);
    let (state, closed) = (Arc::default(), Arc::default());
    let mut worker = Worker::new(store, CheckingLog::new(0, &state, &closed)).expect("a free slot");
    // Every second key has a large value, every fourth none.
    let len = |key: u32| [5_000, 10, 6_000, 0][key as usize % 4];
    for key in (0..KEYS).filter(|&key| len(key) > 0) {
        let value = vec![7; len(key)];
        worker.transact(|tx| tx.put(TableId(0), &key.to_be_bytes(), &value)).expect("memory");
    }
    let mut asking = Asking { keys: KEYS, told: Vec::new() };
    worker.execute(&mut asking);
    assert_eq!(asking.told.len(), KEYS as usize);
    for (key, told) in (0..).zip(asking.told) {
        assert_eq!(told, if len(key) > 10 { len(key) } else { 0 }, "key {key}");
    }
}
