//! Tests of merges. The merged checkpoint must hold the content of its run, and every call of the
//! disk may fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    Cycle, LoadError, LoadedRecord, Merge, MergeError, Pace, Progress, Visit, VisitError, Wanted,
    WriterConfig, load_chain, registry, verify,
};
use stillpoint_format::manifest::{CheckpointEntry, TableGeneration};
use stillpoint_format::names::{CHECKPOINT_DIR, CheckpointKind, checkpoint_dir};
use stillpoint_format::part::Codec;
use stillpoint_io::{
    Call, Clock, Disk, Fault, FaultPlan, Lasts, ManualClock, RealClock, Rng, SeededRng,
};
use stillpoint_store::{Mode, TableId, Worker};

use crate::bank::Share;
use crate::model::{Changes, State, assert_same, labelled, state_of};
use crate::world::{HASH_SEED, STORE, TABLES, World, entry, options};

const KEYS: u64 = 200;

/// A chain of checkpoints, oldest first, and the state at each point of consistency.
pub(crate) struct Chain {
    pub(crate) world: World,
    pub(crate) entries: Vec<CheckpointEntry>,
    pub(crate) states: Vec<State>,
}

/// Changes some records. Deletions, long keys and large values are among the changes.
fn change(worker: &mut Worker, rng: &SeededRng, count: u64, large: bool) {
    for _ in 0..count {
        let number = rng.below(KEYS);
        let mut key = number.to_be_bytes().to_vec();
        key.resize(if number.is_multiple_of(19) { 3000 } else { 8 + number as usize % 20 }, b'k');
        let table = TableId(number as u16 % TABLES);
        let len = match rng.below(60) {
            0 if large => 2_200_000,
            1 if large => 40_000,
            _ => rng.below(150) as usize,
        };
        let done = worker.transact(|tx| match rng.below(3) {
            0 => tx.delete(table, &key).map(|_| ()),
            _ => {
                let slot = tx.key(table, &key, Mode::Write)?;
                let value = vec![rng.below(256) as u8; len];
                tx.put_slot_labelled(slot, labelled(number as u8), &value)
            }
        });
        done.expect("memory");
    }
}

impl Chain {
    pub(crate) fn new(seed: u64, links: usize, large: bool) -> Self {
        let row = registry::REGISTRY.find("calc:partial").expect("it is in the table");
        let world = World::new(row, seed);
        let rng = SeededRng::new(seed);
        let mut worker = world.worker(0);
        change(&mut worker, &rng, 400, large);
        let (mut entries, mut states) = (Vec::new(), Vec::new());
        for at in 0..=links {
            let wanted = match at {
                0 => Wanted::Full,
                _ => Wanted::Changes { percent_max: u64::MAX },
            };
            let cycle = Cycle { wanted, ..world.cycle() };
            let (written, _) = world.take_with(&cycle).expect("no fault");
            let mut entry = entry(written);
            let of = |table| TableGeneration { table, generation: 1 };
            entry.generations = (0..TABLES).map(of).collect();
            states.push(world.history.state_before(entry.epoch));
            entries.push(entry);
            let few = rng.below(2) == 0;
            change(&mut worker, &rng, if few { 3 } else { 60 }, large);
        }
        drop(worker);
        Self { world, entries, states }
    }

    pub(crate) fn merge(&self, serial: u64, codec: Codec, key_bytes_max: u64) -> Merge {
        let mut writer = WriterConfig::new(STORE, HASH_SEED, serial);
        writer.codec = codec;
        writer.block_bytes = 2 << 10;
        writer.partitions_log2 = 3;
        Merge {
            writer,
            clock: self.world.clock.clone(),
            pace: Pace::Unpaced,
            key_bytes_max,
            progress: Arc::default(),
        }
    }

    /// The chain with the merged checkpoint in place of a run.
    fn with(&self, run: std::ops::Range<usize>, merged: CheckpointEntry) -> Vec<CheckpointEntry> {
        let mut chain = self.entries.clone();
        chain.splice(run, [merged]);
        chain
    }
}

/// The state that a start would load. The first record of each key counts.
pub(crate) fn load_newest_first(disk: &Arc<dyn Disk>, chain: &[CheckpointEntry]) -> State {
    let first = First::default();
    let visitor = || -> Box<dyn Visit> { Box::new(first.clone()) };
    let chain: Vec<&CheckpointEntry> = chain.iter().collect();
    let visitors = vec![visitor(), visitor(), visitor()];
    let loaded = load_chain(disk, &chain, &options(), visitors, &Arc::default()).expect("intact");
    let records: u64 = chain.iter().map(|entry| entry.records).sum();
    assert_eq!(loaded.records, records);
    let found = first.0.lock();
    state_of(std::iter::once(&*found))
}

/// Keeps the first record of each key.
#[derive(Clone, Default)]
struct First(Arc<Mutex<Changes>>, Arc<AtomicBool>);

impl Drop for First {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

impl Visit for First {
    fn records(&mut self, batch: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
        // The sleep is long enough for the other threads to find that no work is left.
        RealClock.sleep(Duration::from_micros(100));
        assert!(!self.1.load(SeqCst), "a visitor was dropped while others had records to come");
        let mut found = self.0.lock();
        for record in batch {
            let key = (record.table, record.key.to_vec());
            let value = record.value.map(|value| (record.label, value.to_vec()));
            found.entry(key).or_insert(value);
        }
        Ok(())
    }
}

fn assert_sound(disk: &Arc<dyn Disk>, entry: &CheckpointEntry, context: &str) {
    let found = verify(disk, entry, &options(), 2, &Arc::default()).expect("readable");
    assert!(found.damage.is_empty(), "{context}: {:?}", found.damage);
}

#[test]
fn every_run_of_a_chain_merges_to_what_it_holds() {
    // One of three seeds at each run, or all.
    let share = Share::of_run();
    for seed in (1..=3).filter(|seed| share.n == 1 || seed % 3 == share.k % 3) {
        let chain = Chain::new(seed, 4, true);
        let disk = &chain.world.disk;
        let newest = chain.states.last().expect("a checkpoint");
        assert_same(&load_newest_first(disk, &chain.entries), newest, "as it was");
        let mut serial = 1000;
        for begin in 0..chain.entries.len() {
            for end in begin + 1..=chain.entries.len() {
                serial += 1;
                let context = format!("seed {seed}, run {begin} to {end}");
                // Every second merge has very little memory for keys.
                let key_bytes_max = if serial % 2 == 0 { 700 } else { 64 << 20 };
                let codec = if serial % 3 == 0 { Codec::Lz4 } else { Codec::None };
                let merge = chain.merge(serial, codec, key_bytes_max);
                let run: Vec<&CheckpointEntry> = chain.entries[begin..end].iter().collect();
                let merged = merge.run(disk, &run).expect("no fault");
                assert_eq!(merged.kind == CheckpointKind::Full, begin == 0, "{context}");
                assert_eq!(merged.base, chain.entries[begin].base, "{context}");
                assert_eq!(merged.epoch, chain.entries[end - 1].epoch, "{context}");
                assert_sound(disk, &merged, &context);
                let to_point = &chain.with(begin..end, merged.clone())[..=begin];
                let expected = &chain.states[end - 1];
                assert_same(&load_newest_first(disk, to_point), expected, &context);
                let whole = chain.with(begin..end, merged);
                assert_same(&load_newest_first(disk, &whole), newest, &context);
            }
        }
    }
}

/// A table is flushed within the run. A run with the full checkpoint keeps only the records of the
/// table's last generation. A run without the full checkpoint keeps the changes of all generations.
#[test]
fn superseded_generations_go_with_the_full_checkpoint_only() {
    let mut chain = Chain::new(5, 2, false);
    let flushed = TABLES - 1;
    for at in 1..chain.entries.len() {
        for of in &mut chain.entries[at].generations {
            of.generation = if of.table == flushed { 2 } else { 1 };
        }
    }
    let disk = &chain.world.disk;
    let records_of = |entry: &CheckpointEntry| {
        let of = entry.table_records.iter().find(|of| of.table == flushed);
        of.map_or(0, |of| of.records)
    };
    let run = |from: usize, serial| {
        let run: Vec<&CheckpointEntry> = chain.entries[from..].iter().collect();
        chain.merge(serial, Codec::None, 1 << 20).run(disk, &run).expect("no fault")
    };
    assert_eq!(records_of(&run(0, 2000)), 0, "all of it is of the first generation");
    assert!(records_of(&run(1, 2001)) > 0);
}

#[test]
fn a_merge_that_fails_anywhere_leaves_nothing() {
    let calls =
        vec![Call::Read, Call::Open, Call::Write, Call::Sync, Call::CreateDir, Call::SyncDir];
    let (mut nth, serial) = (0, 3000);
    loop {
        // Each of the first 29 calls, which include every kind of call, and then every fifth.
        nth += if nth < 30 { 1 } else { 5 };
        // A directory whose flush failed takes no more files: each call fails in a world of its own.
        let chain = Chain::new(7, 2, false);
        let disk = &chain.world.disk;
        let run: Vec<&CheckpointEntry> = chain.entries.iter().collect();
        chain.world.sim.inject(FaultPlan {
            calls: calls.clone(),
            nth,
            fault: Fault::InputOutput,
            lasts: Lasts::Once,
        });
        let merged = chain.merge(serial, Codec::None, 1 << 20).run(disk, &run);
        chain.world.sim.clear_faults();
        let left = disk.exists(Path::new(&checkpoint_dir(serial, CheckpointKind::Full)));
        match merged {
            Ok(merged) => {
                assert!(nth > 20, "the merge has more calls than {nth}");
                assert_sound(disk, &merged, "without a fault");
                break;
            }
            Err(error) => {
                assert!(error.to_string().contains("merge was given up"), "{error}");
                assert!(!left.expect("no fault"), "call {nth}: files are left");
                let expected = chain.states.last().expect("a checkpoint");
                assert_same(
                    &load_newest_first(disk, &chain.entries),
                    expected,
                    "the run is as it was",
                );
            }
        }
    }
}

#[test]
fn a_cancelled_merge_leaves_nothing() {
    let chain = Chain::new(8, 2, false);
    let disk = &chain.world.disk;
    let run: Vec<&CheckpointEntry> = chain.entries.iter().collect();
    let progress = Arc::new(Progress::default());
    progress.cancel();
    let merge = Merge { progress, ..chain.merge(4000, Codec::None, 1 << 20) };
    let error = merge.run(disk, &run).expect_err("it was cancelled");
    assert!(matches!(error, MergeError::Read(LoadError::Cancelled)), "{error}");
    let names = disk.list(Path::new(CHECKPOINT_DIR)).expect("no fault");
    assert!(names.iter().all(|name| !name.contains("4000")), "{names:?}");
}

/// A merge keeps no record, since the tables were emptied. It heeds its pace and its cancellation all the
/// same: both are looked at for what is read.
#[test]
fn a_merge_that_keeps_nothing_heeds_its_pace_and_its_end() {
    let mut chain = Chain::new(9, 2, false);
    let last = chain.entries.last_mut().expect("a checkpoint");
    last.generations.iter_mut().for_each(|of| of.generation = 2);
    let disk = &chain.world.disk;
    let run: Vec<&CheckpointEntry> = chain.entries.iter().collect();
    let cancelled = chain.merge(5000, Codec::None, 1 << 20);
    cancelled.progress.cancel();
    let error = cancelled.run(disk, &run).expect_err("it was cancelled");
    assert!(matches!(error, MergeError::Read(LoadError::Cancelled)), "{error}");
    let clock = Arc::new(ManualClock::self_advancing(0));
    let merge = chain.merge(5001, Codec::None, 1 << 20);
    let paced = Merge { pace: Pace::BytesPerSecond(1_000), clock: clock.clone(), ..merge };
    let merged = paced.run(disk, &run).expect("no fault");
    assert_eq!((merged.records, merged.parts.len()), (0, 1));
    let values: u64 = run.iter().map(|entry| entry.value_bytes).sum();
    let took_ms = clock.monotonic_ns() / 1_000_000;
    assert!(took_ms >= values, "{values} bytes at 1,000 a second in {took_ms} ms");
}

/// A pace that changes is heeded by the merge under way.
#[test]
fn the_pace_of_a_merge_may_change() {
    let chain = Chain::new(9, 2, false);
    let clock = Arc::new(ManualClock::self_advancing(0));
    let merge = chain.merge(5002, Codec::None, 1 << 20);
    let crawling = Merge { pace: Pace::BytesPerSecond(1), clock: clock.clone(), ..merge };
    crawling.progress.change_pace(Pace::Unpaced);
    let run: Vec<&CheckpointEntry> = chain.entries.iter().collect();
    crawling.run(&chain.world.disk, &run).expect("no fault");
    assert!(clock.monotonic_ns() < 1_000_000_000, "{}", clock.monotonic_ns());
}
