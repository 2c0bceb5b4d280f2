//! Code shared by the store's tests: seeds, a log that checks its commits, and a sink and a scan
//! that gather a checkpoint in memory.
#![expect(dead_code, reason = "no test file uses all of it")]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stillpoint_store::{
    Capture, CellRules, Change, Commit, CommitLog, DeletedKey, Label, Lane, LogRefused, Phase,
    RecordImage, Sink, Splices, Stamp, Store, StoreConfig, TableId, Worker,
};

/// Table and key.
pub(crate) type Key = (u16, Vec<u8>);
/// Tag and value.
pub(crate) type Value = (Label, Vec<u8>);
/// Contents of all tables.
pub(crate) type Contents = BTreeMap<Key, Value>;

/// Random numbers of one test (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// Runs a test for each of `count` seeds, or for the seed in STORE_TEST_SEED. Prints a failing
/// seed.
pub(crate) fn for_seeds(count: u64, test: impl Fn(u64)) {
    let given = std::env::var("STORE_TEST_SEED").ok();
    let seeds: Vec<u64> = match given.and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    };
    for seed in seeds {
        let failing = NameSeed(seed);
        test(seed);
        std::mem::forget(failing);
    }
}

struct NameSeed(u64);

impl Drop for NameSeed {
    #[expect(clippy::print_stderr, reason = "how to repeat a failure")]
    fn drop(&mut self) {
        eprintln!("failed with STORE_TEST_SEED={}", self.0);
    }
}

/// A store of the given limit and number of workers, with tables 0 and 1 of generation 1.
pub(crate) fn store_of(max_memory_bytes: usize, workers: usize, seed: u64) -> Arc<Store> {
    store_with(max_memory_bytes, workers, seed, CellRules::IN_PLACE)
}

pub(crate) fn store_with(
    max_memory_bytes: usize,
    workers: usize,
    seed: u64,
    rules: CellRules,
) -> Arc<Store> {
    let config = StoreConfig {
        max_memory_bytes,
        workers,
        hash_seed: seed,
        epoch: 1 + seed % 2,
        ..StoreConfig::default()
    };
    let store = Arc::new(Store::new(&config, rules).expect("address space"));
    for table in 0..2 {
        store.add_table(TableId(table), 1).expect("address space");
    }
    store
}

/// All records of tables 0 and 1, by scanning.
pub(crate) fn contents_of(worker: &mut Worker) -> Contents {
    let mut contents = Contents::new();
    for table in 0..2 {
        let mut cursor = 0;
        loop {
            cursor = worker
                .scan(TableId(table), cursor, 100, &mut |key, value| {
                    contents.insert((table, key.to_vec()), (value.label(), value.to_vec()));
                })
                .expect("the table exists");
            if cursor == 0 {
                break;
            }
        }
    }
    contents
}

/// Compares two states, without megabytes of output.
#[track_caller]
pub(crate) fn assert_same(got: &Contents, expected: &Contents, what: &str) {
    for (key, value) in expected {
        let found = got.get(key);
        assert!(
            found == Some(value),
            "{what}: table {} key {:?}…({}) has {:?}, expected {:?}",
            key.0,
            &key.1[..key.1.len().min(16)],
            key.1.len(),
            found.map(brief),
            brief(value)
        );
    }
    let extra = got.keys().find(|key| !expected.contains_key(*key));
    assert!(
        extra.is_none(),
        "{what}: unexpected key {:?}",
        extra.map(|key| (key.0, &key.1[..key.1.len().min(16)]))
    );
}

/// Tag, length and first bytes.
pub(crate) fn brief(value: &Value) -> (Label, usize, &[u8]) {
    (value.0, value.1.len(), &value.1[..value.1.len().min(16)])
}

/// State shared by the logs of one store.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    /// Result of a replay of all commits so far.
    pub(crate) replica: Contents,
    /// Last gsn that wrote a key of a table's generation.
    pub(crate) last: BTreeMap<(u32, Key), u64>,
    /// Number of commits.
    pub(crate) commits: u64,
    /// Whether to refuse the next commit.
    pub(crate) refuse: bool,
}

/// A log that keeps a replica and checks the order of gsns. Deletions up to `closed` may be
/// reclaimed.
#[derive(Debug)]
pub(crate) struct CheckingLog {
    pub(crate) number: u8,
    pub(crate) gsn: u64,
    pub(crate) state: Arc<Mutex<LogState>>,
    pub(crate) closed: Arc<AtomicU64>,
}

impl CheckingLog {
    pub(crate) fn new(
        number: u8,
        state: &Arc<Mutex<LogState>>,
        closed: &Arc<AtomicU64>,
    ) -> Box<Self> {
        Box::new(Self { number, gsn: 0, state: state.clone(), closed: closed.clone() })
    }
}

impl CommitLog for CheckingLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.refuse) {
            return Err(LogRefused::Refused("refused by the test".into()));
        }
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max();
        self.gsn = self.gsn.max(touched.unwrap_or(0)) + 1;
        state.commits += 1;
        assert!(!commit.writes.is_empty(), "nothing to log");
        assert_eq!(commit.writes.len(), commit.writes.iter().count());
        for write in commit.writes.iter() {
            let key = (write.table, write.key.to_vec());
            let of = (write.generation, key.clone());
            let last = state.last.insert(of, self.gsn).unwrap_or(0);
            assert!(last < self.gsn, "gsn {} after {last} for one key", self.gsn);
            if let Some(splices) = write.splices {
                let before = state.replica.get(&key).expect("spliced what is not there");
                let spliced = (before.0, spliced(&before.1, splices));
                replay(&mut state.replica, key.clone(), write.change);
                assert_eq!(state.replica.get(&key), Some(&spliced));
                continue;
            }
            replay(&mut state.replica, key, write.change);
        }
        Ok(Stamp::new(self.gsn, self.number))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, stamp: Stamp) -> bool {
        stamp.is_none() || stamp.gsn() <= self.closed.load(Ordering::SeqCst)
    }
}

/// A value after splices.
fn spliced(value: &[u8], splices: Splices<'_>) -> Vec<u8> {
    let mut value = value.to_vec();
    for (offset, removed, bytes) in splices {
        value.splice(offset..offset + removed, bytes.iter().copied());
    }
    value
}

/// Applies one logged change.
pub(crate) fn replay(contents: &mut Contents, key: Key, change: Change<'_>) {
    match change {
        Change::Put { label, value } => {
            contents.insert(key, (label, value.to_vec()));
        }
        Change::Share { label, value } => {
            contents.insert(key, (label, value.to_vec()));
        }
        Change::Delete => assert!(contents.remove(&key).is_some(), "deleted what was not there"),
        Change::Patch(patches) | Change::Until { ranges: patches, .. } => {
            let (label, value) = contents.get_mut(&key).expect("patched what is not there");
            if let Change::Until { deadline, .. } = change {
                label.deadline = deadline;
            }
            for (offset, bytes) in patches {
                assert!(offset <= value.len(), "a gap");
                let end = offset + bytes.len();
                value.resize(value.len().max(end), 0);
                value[offset..end].copy_from_slice(bytes);
            }
        }
    }
}

/// Gathers a checkpoint in memory: before-images of commits, and records of the scan.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Generation, key, value.
    records: Mutex<BTreeMap<(u32, Key), Value>>,
    /// Before-images saved by writers.
    pub(crate) saved: AtomicU64,
}

impl Gathered {
    fn take(&self, (place, value): Record) {
        let before = self.records.lock().insert(place.clone(), value);
        assert!(before.is_none(), "captured twice: {place:?}");
    }

    /// Takes the gathered records of the tables' present generations.
    pub(crate) fn contents(&self, store: &Store) -> Contents {
        let of_now =
            |generation: u32, key: &Key| store.generation(TableId(key.0)) == Some(generation);
        let records = std::mem::take(&mut *self.records.lock());
        records
            .into_iter()
            .filter(|((generation, key), _)| of_now(*generation, key))
            .map(|((_, key), value)| (key, value))
            .collect()
    }
}

impl Gathered {
    fn open_lane(&self, of_writer: bool, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut lane = GatheredLane { to: self, of_writer, last: None };
        with(&mut lane);
        lane.settle();
    }
}

impl Sink for Gathered {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.open_lane(true, with);
    }
}

/// Generation, key, value.
type Record = ((u32, Key), Value);

/// A lane, which holds the last record, since it may be taken back.
struct GatheredLane<'a> {
    to: &'a Gathered,
    /// Whether the lane belongs to a writer, not to the scan.
    of_writer: bool,
    last: Option<Record>,
}

impl GatheredLane<'_> {
    fn settle(&mut self) {
        if let Some(record) = self.last.take() {
            self.to.take(record);
        }
    }
}

impl Lane for GatheredLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.settle();
        if self.of_writer {
            self.to.saved.fetch_add(1, Ordering::Relaxed);
        }
        let key = (record.table, record.key.to_vec());
        let value = (record.value.label(), record.value.to_vec());
        self.last = Some(((record.generation, key), value));
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a checkpoint of everything");
    }
    fn take_back(&mut self) {
        assert!(self.last.take().is_some(), "nothing to take back");
    }
}

struct CaptureScan<'a> {
    slot: usize,
    to: &'a Gathered,
}

impl Capture for CaptureScan<'_> {
    fn slot(&self) -> usize {
        self.slot
    }
    fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
        self.to.open_lane(false, with);
    }
    fn pause(&mut self) {}
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// The scan of a checkpoint: every slab, in the phase CAPTURE.
pub(crate) fn walk(store: &Store, gathered: &Gathered) {
    let slot = store.driver().read_sections().claim().expect("a free slot");
    let mut walk = CaptureScan { slot, to: gathered };
    for slab in 0..store.group_count() {
        store.capture_unmarked(slab, &mut walk);
    }
    store.driver().read_sections().unclaim(slot);
}

/// A checkpoint from rest to rest. `at` is called right after the entry to each phase.
pub(crate) fn checkpoint(
    store: &Store,
    gathered: &Arc<Gathered>,
    at: impl FnMut(Phase),
) -> Contents {
    checkpoint_into(store, gathered, gathered.clone(), at)
}

/// As [`checkpoint`], with another sink for the writers.
pub(crate) fn checkpoint_into(
    store: &Store,
    gathered: &Gathered,
    sink: Arc<dyn Sink>,
    mut at: impl FnMut(Phase),
) -> Contents {
    gathered.contents(store);
    store.set_sink(Some(sink));
    for phase in [Phase::Prepare, Phase::Resolve, Phase::Capture] {
        store.driver().advance(phase);
        at(phase);
    }
    walk(store, gathered);
    for phase in [Phase::Complete, Phase::Rest] {
        store.driver().advance(phase);
        at(phase);
    }
    store.set_sink(None);
    gathered.contents(store)
}

/// A number from the environment, to make a test longer.
pub(crate) fn env_or(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(default)
}
