//! Four costs of a checkpoint: a commit's first write to a record after the point of consistency,
//! the capture scan, writing and loading. The last part compares the cost of a checkpoint of
//! changes with that of a full one.
//!
//! `cargo bench -p stillpoint-checkpoint -- [DIR] [RECORDS]`: DIR is on the device to measure
//! (default: the system's directory for temporary files), RECORDS of 8 + 100 bytes (default: two
//! million). Times are CPU times of the working thread, except those marked "wall".

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;

use stillpoint_checkpoint::{
    Cycle, Found, LoadOptions, LoadedRecord, NoSchemeLog, OpenChain, Pace, PartSink, Progress,
    QuiesceFor, SoughtKey, Visit, VisitError, Wanted, WriterConfig, load, registry, run_checkpoint,
    take_checkpoint, verify,
};
use stillpoint_format::ident::StoreId;
use stillpoint_format::names::CheckpointKind;
use stillpoint_io::{Clock, Disk, RealClock, RealDisk, process_cpu_ns, thread_cpu_ns};
use stillpoint_store::{
    Checkpointer, DeletedKey, KeyImage, KeySet, Lane, Loader, Mode, NoLog, Outcome, Phase,
    Procedure, RecordImage, Sink, Slot, Stamp, Store, StoreConfig, TableId, Tx, TxError, Worker,
};

const TABLE: TableId = TableId(0);
const STORE: StoreId = StoreId(*b"bench-checkpoint");
const HASH_SEED: u64 = 5;
const WORKERS: usize = 16;

/// A transaction on ten records that changes eight bytes of each.
struct Update(Vec<u64>);

impl Procedure for Update {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in &self.0 {
            keys.push(TABLE, &key.to_le_bytes(), Mode::Write, 100);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (0..self.0.len()).try_for_each(|at| tx.patch_slot(Slot(at as u32), 0, &[7; 8]))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("memory");
    }
}

/// A sink that takes all records and keeps none.
struct NullSink;

impl Sink for NullSink {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut NullLane);
    }
}

struct NullLane;

impl Lane for NullLane {
    fn emit(&mut self, _: &RecordImage<'_>) {}
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {}
    fn take_back(&mut self) {}
}

struct Bed {
    store: Arc<Store>,
    scheme: Arc<dyn Checkpointer>,
    disk: Arc<dyn Disk>,
    records: u64,
}

fn empty_store(scheme: &str) -> (Arc<Store>, Arc<dyn Checkpointer>) {
    let row = registry::REGISTRY.find(scheme).expect("it is in the table");
    let scheme = row.build();
    let config = StoreConfig { workers: WORKERS, hash_seed: HASH_SEED, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, scheme.cells).expect("address space"));
    store.add_table(TABLE, 1).expect("address space");
    (store, scheme.checkpointer.expect("it takes checkpoints"))
}

impl Bed {
    fn new(scheme: &str, dir: &str, records: u64) -> Self {
        let (store, scheme) = empty_store(scheme);
        let mut loader = Loader::new(store.clone()).expect("a free slot");
        for number in 0..records {
            let key = number.to_le_bytes();
            let hash = loader.hash(TABLE, &key);
            loader.put(TABLE, hash, &key, 0, &[7; 100]).expect("memory");
        }
        drop(loader);
        let disk = Arc::new(RealDisk::new(dir).expect("a directory"));
        Self { store, scheme, disk, records }
    }

    /// All records once, in random order, ten per transaction, eight transactions per batch.
    fn batches(&self) -> Vec<Vec<Update>> {
        let mut order: Vec<u64> = (0..self.records).collect();
        let mut state = 88_172_645_463_325_252u64;
        for at in (1..order.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(at, (state % (at as u64 + 1)) as usize);
        }
        let batch = |keys: &[u64]| keys.chunks(10).map(|ten| Update(ten.to_vec())).collect();
        order.chunks(80).map(batch).collect()
    }

    fn config(&self) -> WriterConfig {
        WriterConfig::new(STORE, HASH_SEED, self.store.driver().now().epoch() + 1)
    }

    fn cycle(&self, threads: usize) -> Cycle {
        Cycle {
            store: self.store.clone(),
            scheme: self.scheme.clone(),
            wanted: Wanted::Full,
            clock: Arc::new(RealClock),
            threads,
            pace: Pace::Unpaced,
            progress: Arc::default(),
            log: Arc::new(NoSchemeLog),
            quiesce_for: QuiesceFor::Commits,
            observer: None,
            before_point: None,
        }
    }

    fn part_sink(&self) -> Arc<PartSink> {
        let epoch = self.store.driver().now().epoch() + 1;
        let sink = PartSink::create(
            self.disk.clone(),
            self.store.clone(),
            Arc::new(RealClock),
            Arc::default(),
            epoch,
            CheckpointKind::Full,
            self.config(),
        );
        Arc::new(sink.expect("a disk"))
    }

    /// CPU nanoseconds per write: before a point of consistency, and the first after it.
    fn first_writes(&self, sink: &Arc<dyn Sink>) -> (u64, u64) {
        let mut batches = self.batches();
        let log = Box::new(NoLog::default());
        let mut worker = Worker::new(self.store.clone(), log).expect("a free slot");
        let mut all = || {
            let start_ns = thread_cpu_ns();
            for batch in &mut batches {
                worker.execute(&mut batch[..]);
            }
            (thread_cpu_ns() - start_ns) / self.records
        };
        let driver = self.store.driver();
        let before = all();
        self.store.set_sink(Some(sink.clone()));
        driver.advance(Phase::Prepare);
        driver.advance(Phase::Resolve);
        driver.advance(Phase::Capture);
        let first = all();
        driver.advance(Phase::Complete);
        sink.drain();
        driver.advance(Phase::Rest);
        self.store.set_sink(None);
        (before, first)
    }
}

struct Load(Loader);

impl Visit for Load {
    fn records(&mut self, batch: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
        let images = batch.iter().map(|record| KeyImage {
            hash: record.hash,
            key: record.key,
            label: record.label,
            value: record.value,
            gsn: 0,
        });
        Ok(self.0.load(TABLE, images)?)
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = args.next();
    let dir = dir.as_deref().or(temporary.path().to_str()).expect("UTF-8");
    let records = args.next().map_or(2_000_000, |count| count.parse().expect("a number"));
    let bed = Bed::new("calc", dir, records);

    let null: Arc<dyn Sink> = Arc::new(NullSink);
    let (before, first) = bed.first_writes(&null);
    println!("write at rest                     {before:>6} ns");
    println!("first write, handed to nobody     {first:>6} ns");
    let parts = bed.part_sink();
    let as_sink: Arc<dyn Sink> = parts.clone();
    let (_, first) = bed.first_writes(&as_sink);
    println!("first write, handed to the parts  {first:>6} ns");
    parts.abandon();

    let start_ns = thread_cpu_ns();
    run_checkpoint(&bed.cycle(1), &null).expect("nothing in the way");
    let walk = (thread_cpu_ns() - start_ns) / records;
    println!("walk, emitted to nobody           {walk:>6} ns per record");
    let start_ns = thread_cpu_ns();
    let taken = take_checkpoint(&bed.cycle(1), &bed.disk, &bed.config());
    let walk = (thread_cpu_ns() - start_ns) / records;
    println!("walk, emitted to the parts        {walk:>6} ns per record");
    drop(taken.expect("nothing in the way"));

    let start_ns = RealClock.monotonic_ns();
    let taken = take_checkpoint(&bed.cycle(2), &bed.disk, &bed.config());
    let wall_s = (RealClock.monotonic_ns() - start_ns) as f64 / 1e9;
    let (written, _) = taken.expect("nothing in the way");
    let peak = written.stats.pool_bytes_peak >> 20;
    let entry = written.into_entry("calc", None, Vec::new(), Vec::new(), 0);
    let mib = entry.parts.iter().map(|part| part.bytes).sum::<u64>() as f64 / f64::from(1 << 20);
    println!(
        "checkpoint, two threads, wall     {wall_s:>6.2} s, {:.0} MiB/s, pool {peak} MiB",
        mib / wall_s
    );
    reads(&bed, &entry, mib);
    finds(&bed, &entry);
    drop(bed);
    changes(&Bed::new("calc:partial", dir, records));
}

fn reads(bed: &Bed, entry: &stillpoint_format::manifest::CheckpointEntry, mib: f64) {
    let options = LoadOptions { store: STORE, hash_seed: HASH_SEED, generations: None };
    let timed = |what: &str, run: &mut dyn FnMut()| {
        let start_ns = RealClock.monotonic_ns();
        run();
        let wall_s = (RealClock.monotonic_ns() - start_ns) as f64 / 1e9;
        println!("{what:<33} {wall_s:>6.2} s, {:.0} MiB/s", mib / wall_s);
    };
    timed("verify, two threads, wall", &mut || {
        verify(&bed.disk, entry, &options, 2, &Arc::default()).expect("intact");
    });
    let (store, _) = empty_store("calc");
    store.reserve(TABLE, bed.records);
    timed("load, two threads, wall", &mut || {
        let loader = || Loader::new(store.clone()).expect("a free slot");
        let visitors: Vec<Box<dyn Visit>> =
            vec![Box::new(Load(loader())), Box::new(Load(loader()))];
        let progress = Arc::new(Progress::default());
        load(&bed.disk, entry, &options, visitors, &progress).expect("intact");
    });
    assert_eq!(store.record_count(TABLE), bed.records);
}

/// The time to open a checkpoint for single keys, and to find keys that it has and others, of which most are
/// in no block.
fn finds(bed: &Bed, entry: &stillpoint_format::manifest::CheckpointEntry) {
    const FINDS: u64 = 10_000;
    let options = LoadOptions { store: STORE, hash_seed: HASH_SEED, generations: None };
    let start_ns = RealClock.monotonic_ns();
    let open =
        OpenChain::open(&bed.disk, &[entry], &options, 1).expect("intact").expect("key maps");
    let opened_ms = (RealClock.monotonic_ns() - start_ns) as f64 / 1e6;
    let bytes = open.held_bytes() as f64 / bed.records as f64;
    println!("open for single keys, wall        {opened_ms:>6.1} ms, {bytes:.2} bytes a record");
    let generation = bed.store.generation(TABLE).expect("the table");
    for (what, first) in [("keys that it has", 0), ("keys that it lacks", bed.records)] {
        let before = open.counts().blocks;
        let start_ns = RealClock.monotonic_ns();
        for at in 0..FINDS {
            let key = (first + at * 7_919 % bed.records).to_le_bytes();
            let hash = bed.store.hash(TABLE, &key);
            let sought = SoughtKey { table: TABLE.0, generation, hash, key: &key };
            let found = open.find(&sought, &mut |_| false).expect("intact");
            assert_eq!(found == Found::Nothing, first > 0, "{what}");
        }
        let us = (RealClock.monotonic_ns() - start_ns) as f64 / 1e3 / FINDS as f64;
        let blocks = (open.counts().blocks - before) as f64 / FINDS as f64;
        println!("find {what:<28} {us:>6.1} us, {blocks:.4} blocks");
    }
}

/// The cost of a checkpoint of changes relative to a full one: bytes of files, and CPU time of the
/// process.
fn changes(bed: &Bed) {
    let take = |wanted| {
        let cycle = Cycle { wanted, ..bed.cycle(1) };
        let start_ns = process_cpu_ns();
        let taken = take_checkpoint(&cycle, &bed.disk, &bed.config());
        let cpu_ns = process_cpu_ns() - start_ns;
        let (written, captured) = taken.expect("nothing in the way");
        assert_eq!(written.kind == CheckpointKind::Partial, wanted != Wanted::Full);
        cycle.ended(captured.epoch, Outcome::Published);
        (written.parts.iter().map(|part| part.bytes).sum::<u64>() as f64, cpu_ns as f64)
    };
    // The first full checkpoint settles the marks that the load has left.
    take(Wanted::Full);
    let (full_bytes, full_ns) = take(Wanted::Full);
    println!(
        "full checkpoint, CPU              {:>6.0} ns per record",
        full_ns / bed.records as f64
    );
    let log = Box::new(NoLog::default());
    let mut worker = Worker::new(bed.store.clone(), log).expect("a free slot");
    for percent in [10, 1] {
        let mut batches = bed.batches();
        let some = batches.len() * percent / 100;
        batches[..some].iter_mut().for_each(|batch| worker.execute(&mut batch[..]));
        let (bytes, ns) = take(Wanted::Changes { percent_max: 100 });
        println!(
            "changes of {percent:>2} %: of a full one       {:>6.3} of the bytes, {:.3} of the CPU time",
            bytes / full_bytes,
            ns / full_ns
        );
    }
}
