//! A store with a scheme, on a simulated disk, and the history of its commits and checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    Captured, CheckpointError, Cycle, LoadOptions, LoadedRecord, NoSchemeLog, Pace, Progress,
    QuiesceFor, Row, Scheme, Visit, VisitError, Wanted, WriterConfig, Written, load,
    take_checkpoint, work_after_capture,
};
use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_format::names::CheckpointKind;
use stillpoint_io::{Clock, Disk, RealClock, SimDisk};
use stillpoint_store::{
    Capture, Checkpointer, DeletedKey, Lane, LogRefused, Outcome, Phase, PointOfConsistency,
    RecordImage, SchemeLog, Stamp, Store, StoreConfig, TableId, Worker, WriteRule,
};

use crate::memory::MemorySink;
use crate::model::{Changes, History, Key, RecordingLog, State, apply, state_of};

pub(crate) const STORE: StoreId = StoreId(*b"conformance-test");
pub(crate) const HASH_SEED: u64 = 77;
pub(crate) const TABLES: u16 = 3;
/// Read section slots of workers and capture threads.
pub(crate) const SLOTS: usize = 16;

/// Whether an observer of this phase may commit under a scheme with this point of consistency.
pub(crate) fn may_commit(point: Option<PointOfConsistency>, phase: Phase) -> bool {
    match point {
        None
        | Some(
            PointOfConsistency::Virtual
            | PointOfConsistency::Fuzzy
            | PointOfConsistency::FuzzyUndone,
        ) => true,
        Some(PointOfConsistency::Physical) => phase != Phase::Resolve,
        Some(PointOfConsistency::PhysicalThroughout) => {
            !matches!(phase, Phase::Resolve | Phase::Capture)
        }
    }
}

pub(crate) struct World {
    pub(crate) store: Arc<Store>,
    pub(crate) scheme: Option<Arc<dyn Checkpointer>>,
    pub(crate) sim: SimDisk,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) history: Arc<History>,
    pub(crate) config: WriterConfig,
    pub(crate) threads: usize,
    pub(crate) pace: Pace,
    pub(crate) quiesce_for: QuiesceFor,
    pub(crate) progress: Arc<Progress>,
    pub(crate) clock: Arc<dyn Clock>,
    /// For a scheme without a point of consistency: where each checkpoint begins and ends.
    fuzzy: Option<Arc<Spans>>,
    marks: bool,
    /// Published checkpoints, by epoch.
    published: Mutex<BTreeMap<u64, (CheckpointKind, Link)>>,
}

/// Where fuzzy checkpoints begin and end, by epoch.
#[derive(Default)]
struct Spans {
    history: Arc<History>,
    spans: Mutex<BTreeMap<u64, Span>>,
}

/// A fuzzy checkpoint: the logs' positions at its begin, and the number of commits when it was
/// published or first needed.
struct Span {
    positions: BTreeMap<u8, u64>,
    commits: Option<usize>,
}

impl Spans {
    /// The number of commits that a recovery from this checkpoint must have.
    fn commits(&self, epoch: u64) -> usize {
        let mut spans = self.spans.lock();
        let span = spans.get_mut(&epoch).expect("it has begun");
        *span.commits.get_or_insert_with(|| self.history.count())
    }

    /// The state after a load of the checkpoint and a replay of the commits since its begin.
    fn recover(&self, epoch: u64, changes: &Changes, gsns: &BTreeMap<Key, u64>) -> State {
        let mut state = state_of(std::iter::once(changes));
        let commits = self.history.first(self.commits(epoch));
        let spans = self.spans.lock();
        let positions = &spans[&epoch].positions;
        for commit in &commits {
            let (log, gsn) = (commit.stamp.log(), commit.stamp.gsn());
            if gsn <= positions.get(&log).copied().unwrap_or(0) {
                continue;
            }
            let newer = |key: &Key| gsns.get(key).is_none_or(|&of| gsn > of);
            for (key, op) in commit.writes.iter().filter(|(key, _)| newer(key)) {
                apply(&mut state, key, op);
            }
        }
        state
    }
}

/// Notes where a fuzzy checkpoint begins, instead of keeping the scheme's record.
impl SchemeLog for Spans {
    fn append(&self, body: &[u8]) -> Result<Stamp, LogRefused> {
        let epoch = u64::from_le_bytes(body.try_into().expect("the number of an epoch"));
        let span = Span { positions: self.history.positions(), commits: None };
        self.spans.lock().insert(epoch, span);
        Ok(Stamp::NONE)
    }
}

/// The content of a published checkpoint, or the entry of its files.
enum Link {
    Files(Box<CheckpointEntry>),
    Memory(Stamped),
}

/// The changes of a checkpoint, with the gsns of fuzzy ones.
type Stamped = (Changes, BTreeMap<Key, u64>);

/// Epochs between two full checkpoints of a scheme that takes checkpoints of changes.
const FULL_EVERY: u64 = 4;

impl World {
    pub(crate) fn new(row: &Row, seed: u64) -> Self {
        Self::with_scheme(row.build(), seed)
    }

    pub(crate) fn with_scheme(scheme: Scheme, seed: u64) -> Self {
        Self::with_pool(scheme, seed, None)
    }

    /// A world whose pool of stable versions has so many bytes.
    pub(crate) fn with_pool(scheme: Scheme, seed: u64, stable_pool_bytes: Option<usize>) -> Self {
        let marks = matches!(
            scheme.cells.write,
            WriteRule::SaveBeforeImage | WriteRule::KeepShadow | WriteRule::StoreStable
        );
        let history = Arc::<History>::default();
        let point = scheme.checkpointer.as_ref().map(|it| it.point_of_consistency());
        let spans = || Arc::new(Spans { history: history.clone(), spans: Mutex::default() });
        let fuzzy = point.is_some_and(PointOfConsistency::is_fuzzy).then(spans);
        let config = StoreConfig {
            max_memory_bytes: 1 << 30,
            workers: SLOTS,
            hash_seed: HASH_SEED,
            stable_pool_bytes,
            ..StoreConfig::default()
        };
        let store = Arc::new(Store::new(&config, scheme.cells).expect("address space"));
        for table in 0..TABLES {
            store.add_table(TableId(table), 1).expect("address space");
        }
        store.note_loaded_chain(true);
        let sim = SimDisk::new(seed);
        let mut config = WriterConfig::new(STORE, HASH_SEED, 0);
        // Small blocks, so that lanes and writers exchange many.
        config.block_bytes = 2 << 10;
        config.write_bytes = 16 << 10;
        config.partitions_log2 = 2;
        Self {
            store,
            scheme: scheme.checkpointer,
            disk: Arc::new(sim.clone()),
            sim,
            history,
            fuzzy,
            config,
            threads: 2,
            pace: Pace::Unpaced,
            quiesce_for: QuiesceFor::Commits,
            progress: Arc::default(),
            clock: Arc::new(RealClock),
            marks,
            published: Mutex::default(),
        }
    }

    /// A worker whose commits go to log `log` and to the history.
    pub(crate) fn worker(&self, log: u8) -> Worker {
        self.worker_with(self.history.log(log))
    }

    pub(crate) fn worker_with(&self, log: RecordingLog) -> Worker {
        Worker::new(self.store.clone(), Box::new(log)).expect("a free slot")
    }

    pub(crate) fn scheme(&self) -> &Arc<dyn Checkpointer> {
        self.scheme.as_ref().expect("the scheme takes checkpoints")
    }

    pub(crate) fn cycle(&self) -> Cycle {
        Cycle {
            store: self.store.clone(),
            scheme: self.scheme().clone(),
            wanted: self.wanted(),
            clock: self.clock.clone(),
            threads: self.threads,
            pace: self.pace,
            progress: self.progress.clone(),
            log: self.log(),
            quiesce_for: self.quiesce_for,
            observer: None,
            before_point: None,
        }
    }

    /// A checkpoint of changes, if the scheme takes them and has published a base. Every few epochs
    /// a full one.
    pub(crate) fn wanted(&self) -> Wanted {
        let epoch = self.store.driver().now().epoch() + 1;
        match self.published.lock().is_empty() || epoch.is_multiple_of(FULL_EVERY) {
            true => Wanted::Full,
            false => Wanted::Changes { percent_max: u64::MAX },
        }
    }

    /// The log of the scheme's own records.
    pub(crate) fn log(&self) -> Arc<dyn SchemeLog + Send + Sync> {
        match &self.fuzzy {
            Some(spans) => spans.clone(),
            None => Arc::new(NoSchemeLog),
        }
    }

    pub(crate) fn is_fuzzy(&self) -> bool {
        self.fuzzy.is_some()
    }

    /// The state that a recovery from the checkpoint of this epoch gives: the one at its point of
    /// consistency. A fuzzy checkpoint has none, and gives the state of all commits until its
    /// publication.
    pub(crate) fn expected(&self, epoch: u64) -> State {
        match &self.fuzzy {
            Some(spans) => self.history.state_after(spans.commits(epoch)),
            None => self.history.state_before(epoch),
        }
    }

    pub(crate) fn take(&self) -> Result<(Written, Captured), CheckpointError> {
        self.take_with(&self.cycle())
    }

    pub(crate) fn take_with(&self, cycle: &Cycle) -> Result<(Written, Captured), CheckpointError> {
        let serial = self.store.driver().now().epoch() + 1;
        let config = WriterConfig { serial, ..self.config.clone() };
        let taken = take_checkpoint(cycle, &self.disk, &config);
        if let Ok((written, _)) = &taken {
            let link = Link::Files(Box::new(entry(written.clone())));
            self.published.lock().insert(written.epoch, (written.kind, link));
            if let Some(spans) = &self.fuzzy {
                spans.commits(written.epoch);
            }
            assert_eq!(written.stats.pool_bytes, 0, "the pool is at rest");
            cycle.ended(written.epoch, Outcome::Published);
            // The work after the capture is sometimes cut off. The next checkpoint finishes that
            // work.
            if !cycle.progress.is_cancelled() {
                work_after_capture(cycle).expect("nothing is in the way");
            }
        }
        taken
    }

    /// Takes a checkpoint and loads it.
    pub(crate) fn take_and_load(&self) -> (u64, State) {
        let (written, _) = self.take().expect("no fault was injected");
        let epoch = written.epoch;
        (epoch, self.load(&entry(written)))
    }

    /// Publishes a checkpoint in memory. Returns the state that a recovery from it gives.
    pub(crate) fn published(
        &self,
        sink: &MemorySink,
        (kind, epoch): (CheckpointKind, u64),
        context: &str,
    ) -> State {
        let link = Link::Memory((sink.changes(context), sink.gsns()));
        self.published.lock().insert(epoch, (kind, link));
        self.recovered(epoch, self.chain_until(epoch))
    }

    /// The state that a recovery from a chain of checkpoints gives, the newest of this epoch.
    fn recovered(&self, epoch: u64, chain: Vec<Stamped>) -> State {
        let Some(spans) = &self.fuzzy else {
            return state_of(chain.iter().map(|(changes, _)| changes));
        };
        let (mut all, mut all_gsns) = Stamped::default();
        for (changes, gsns) in chain {
            all.extend(changes);
            all_gsns.extend(gsns);
        }
        spans.recover(epoch, &all, &all_gsns)
    }

    /// The state that a recovery from a checkpoint in memory would give. The checkpoint is never
    /// published.
    pub(crate) fn unpublished(
        &self,
        sink: &MemorySink,
        (kind, epoch): (CheckpointKind, u64),
        context: &str,
    ) -> State {
        let mut chain = match kind {
            CheckpointKind::Full => Vec::new(),
            CheckpointKind::Partial => self.chain_until(u64::MAX),
        };
        chain.push((sink.changes(context), sink.gsns()));
        self.recovered(epoch, chain)
    }

    /// The contents of the published checkpoints, from the last full one up to that of this epoch.
    fn chain_until(&self, epoch: u64) -> Vec<Stamped> {
        let mut published = self.published.lock();
        let mut chain = Vec::new();
        for (_, (kind, link)) in published.range_mut(..=epoch).rev() {
            if let Link::Files(entry) = link {
                let changes = load_changes(&self.disk, entry).expect("an intact checkpoint");
                *link = Link::Memory(changes);
            }
            let Link::Memory(changes) = link else { unreachable!("it was loaded") };
            if *kind == CheckpointKind::Full && !self.is_fuzzy() {
                assert!(changes.0.values().all(Option::is_some), "a deletion in a full checkpoint");
            }
            chain.push(changes.clone());
            if *kind == CheckpointKind::Full {
                break;
            }
        }
        chain.reverse();
        chain
    }

    /// Loads a checkpoint with two threads, together with those that it goes on from.
    pub(crate) fn load(&self, entry: &CheckpointEntry) -> State {
        match entry.kind {
            CheckpointKind::Full if self.is_fuzzy() => {
                let changes = load_changes(&self.disk, entry).expect("an intact checkpoint");
                self.recovered(entry.epoch, vec![changes])
            }
            CheckpointKind::Full => load_state(&self.disk, entry).expect("an intact checkpoint"),
            CheckpointKind::Partial => self.recovered(entry.epoch, self.chain_until(entry.epoch)),
        }
    }

    /// Records without the mark of the last full checkpoint, if the scheme marks records and the
    /// last attempt was a full checkpoint. Called only while nothing runs.
    pub(crate) fn unmarked(&self) -> usize {
        if !self.marks || self.store.driver().now().is_of_changes() {
            return 0;
        }
        struct Count {
            slot: usize,
            records: usize,
        }
        impl Capture for Count {
            fn slot(&self) -> usize {
                self.slot
            }
            fn with_lane(&mut self, with: &mut dyn FnMut(&mut dyn Lane)) {
                with(self);
            }
            fn pause(&mut self) {}
            fn is_abandoned(&self) -> bool {
                false
            }
        }
        impl Lane for Count {
            fn emit(&mut self, _: &RecordImage<'_>) {
                self.records += 1;
            }
            fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
                unreachable!("a scheme that has every record");
            }
            fn take_back(&mut self) {
                unreachable!("nothing runs");
            }
        }
        let read_sections = self.store.driver().read_sections();
        let slot = read_sections.claim().expect("a free slot");
        let mut count = Count { slot, records: 0 };
        for slab in 0..self.store.group_count() {
            self.store.capture_unmarked(slab, &mut count);
        }
        read_sections.unclaim(slot);
        count.records
    }

    /// Everything that the store holds, read without locks.
    pub(crate) fn live(&self) -> State {
        self.live_to(&mut self.worker(254))
    }

    /// As [`live`](Self::live), read by this worker.
    pub(crate) fn live_to(&self, worker: &mut Worker) -> State {
        let mut state = State::new();
        for table in 0..TABLES {
            let mut cursor = 0;
            loop {
                cursor = worker
                    .scan(TableId(table), cursor, 64, &mut |key, value| {
                        state.insert((table, key.to_vec()), (value.label(), value.to_vec()));
                    })
                    .expect("the table exists");
                if cursor == 0 {
                    break;
                }
            }
        }
        state
    }
}

pub(crate) fn entry(written: Written) -> CheckpointEntry {
    let base = (written.kind == CheckpointKind::Partial).then(|| written.epoch - 1);
    written.into_entry("test", base, Vec::new(), Vec::new(), 0)
}

pub(crate) fn options() -> LoadOptions {
    LoadOptions { store: STORE, hash_seed: HASH_SEED, generations: None }
}

/// Collects records. A key that comes twice is an error.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<(Changes, BTreeMap<Key, u64>)>>);

impl Visit for Collector {
    fn records(&mut self, batch: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
        let (state, gsns) = &mut *self.0.lock();
        for record in batch {
            let key = (record.table, record.key.to_vec());
            let value = record.value.map(|value| (record.label, value.to_vec()));
            gsns.insert(key.clone(), record.gsn);
            if state.insert(key, value).is_some() {
                let key = String::from_utf8_lossy(record.key);
                return Err(format!("key {key:?} is in the checkpoint twice").into());
            }
        }
        Ok(())
    }
}

pub(crate) fn load_state(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
) -> Result<State, stillpoint_checkpoint::LoadError> {
    let (changes, _) = load_changes(disk, entry)?;
    assert!(changes.values().all(Option::is_some), "a deletion in a full checkpoint");
    Ok(state_of(std::iter::once(&changes)))
}

/// Loads the content of one checkpoint.
fn load_changes(
    disk: &Arc<dyn Disk>,
    entry: &CheckpointEntry,
) -> Result<(Changes, BTreeMap<Key, u64>), stillpoint_checkpoint::LoadError> {
    let collector = Collector::default();
    let visitors: Vec<Box<dyn Visit>> =
        vec![Box::new(collector.clone()), Box::new(collector.clone())];
    let progress = Arc::new(Progress::default());
    let summary = load(disk, entry, &options(), visitors, &progress)?;
    let changes = std::mem::take(&mut *collector.0.lock());
    assert_eq!(summary.records, changes.0.len() as u64);
    Ok(changes)
}

/// Money in all accounts: the first eight bytes of each value of table 0 and 1.
pub(crate) fn money(state: &State) -> u64 {
    let accounts = state.iter().filter(|((table, _), _)| *table < 2);
    accounts
        .map(|(_, (_, value))| u64::from_le_bytes(value[..8].try_into().expect("eight bytes")))
        .sum()
}
