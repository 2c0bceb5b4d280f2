//! Tests of part files. Written records are read back, and damage is reported and never returned as
//! a record.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    DamageCause, LoadError, LoadOptions, LoadedRecord, Progress, Verified, Visit, VisitError,
    for_each_record, load, registry, verify,
};
use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::{CheckpointEntry, TableGeneration};
use stillpoint_format::names::{CheckpointKind, checkpoint_dir};
use stillpoint_format::part::Codec;
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, SimDisk, read_all};
use stillpoint_store::{TableId, Worker};

use crate::bank::{Share, rows_that_take_checkpoints};
use crate::model::{State, assert_same};
use crate::world::{Collector, World, entry, load_state, options};

/// Lengths of values around every limit: empty, inline, large, copied or not, whole or in
/// fragments.
const LENS: [usize; 13] =
    [0, 1, 7, 8, 100, 2044, 2045, 16_384, 16_385, 70_000, 1 << 20, (1 << 20) + 1, 3_500_000];

fn fill(worker: &mut Worker, small: u32) {
    for (at, &len) in LENS.iter().enumerate() {
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + at) as u8).collect();
        let key = vec![b'a' + at as u8; [0, 1, 9, 3000, 65_536][at % 5]];
        worker.transact(|tx| tx.put_tagged(TableId(2), &key, at as u8, &value)).expect("memory");
    }
    for number in 0..small {
        let key = number.to_be_bytes();
        worker.transact(|tx| tx.put(TableId(0), &key, &[number as u8; 100])).expect("memory");
    }
}

fn calc_world(seed: u64) -> World {
    World::new(registry::REGISTRY.find("calc").expect("it is in the table"), seed)
}

/// A small checkpoint, its disk, and its expected content.
fn small_checkpoint(codec: Codec) -> (SimDisk, CheckpointEntry, State) {
    let mut world = calc_world(1);
    world.config.codec = codec;
    world.config.parts = 2;
    let mut worker = world.worker(0);
    for number in 0..60u32 {
        let value = vec![number as u8; 10 + number as usize];
        worker
            .transact(|tx| tx.put_tagged(TableId(0), &number.to_be_bytes(), 3, &value))
            .expect("memory");
    }
    let (written, _) = world.take().expect("no fault was injected");
    (world.sim.clone(), entry(written), world.history.state())
}

/// A checkpoint in one part, with more units than a load has buffers.
fn large_checkpoint() -> (SimDisk, CheckpointEntry) {
    let mut world = calc_world(1);
    world.config.parts = 1;
    let mut worker = world.worker(0);
    for number in 0..8u8 {
        let value = vec![number; 1_500_000];
        worker.transact(|tx| tx.put(TableId(0), &[number], &value)).expect("memory");
    }
    let (written, _) = world.take().expect("no fault was injected");
    (world.sim.clone(), entry(written))
}

#[test]
fn values_of_all_sizes_come_back_with_every_codec() {
    for row in rows_that_take_checkpoints() {
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            let mut world = World::new(row, 1);
            world.config.codec = codec;
            let mut worker = world.worker(0);
            fill(&mut worker, 3000);
            let (written, captured) = world.take().expect("no fault was injected");
            let expected = world.expected(captured.epoch);
            assert_eq!(written.records, expected.len() as u64);
            let bytes: usize = expected.values().map(|(_, value)| value.len()).sum();
            assert_eq!(written.value_bytes, bytes as u64);
            let entry = entry(written);
            let context = format!("{} {codec:?}", row.name);
            assert_same(&world.load(&entry), &expected, &context);
            let mut walked = State::new();
            for_each_record(&*world.disk, &entry, &options(), &mut |record| {
                let key = (record.table, record.key.to_vec());
                let value = record.value.ok_or("a deletion")?;
                walked.insert(key, (record.label, value.to_vec()));
                Ok(())
            })
            .expect("an intact checkpoint");
            assert_same(&walked, &expected, &context);
            let verified = verify(&world.disk, &entry, &options(), 3, &Arc::default());
            let verified = verified.and_then(Verified::sound).expect("intact");
            assert_eq!(verified.records, entry.records);
        }
    }
}

#[test]
fn an_empty_store_has_an_empty_checkpoint() {
    let world = calc_world(1);
    let (written, _) = world.take().expect("no fault was injected");
    assert_eq!((written.records, written.parts.len()), (0, 1));
    assert!(world.load(&entry(written)).is_empty());
}

#[test]
fn the_real_disk_serves_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = calc_world(1);
    world.disk = Arc::new(RealDisk::new(dir.path()).expect("a disk"));
    let mut worker = world.worker(0);
    fill(&mut worker, 20_000);
    let (epoch, state) = world.take_and_load();
    assert_same(&state, &world.expected(epoch), "real disk");
}

/// No power loss damages a checkpoint that was finished.
#[test]
fn a_finished_checkpoint_survives_any_power_loss() {
    let (sim, entry, expected) = small_checkpoint(Codec::None);
    assert_eq!((sim.unflushed_sectors(), sim.unflushed_names()), (0, 0));
    for after in sim.crash_states(0..50) {
        let disk: Arc<dyn Disk> = Arc::new(after);
        let state = load_state(&disk, &entry).expect("it was durable");
        assert_same(&state, &expected, "after a power loss");
    }
}

#[test]
fn records_of_flushed_tables_are_skipped_and_counted() {
    let (sim, entry, expected) = small_checkpoint(Codec::None);
    let disk: Arc<dyn Disk> = Arc::new(sim);
    for generations in [vec![], vec![TableGeneration { table: 0, generation: 2 }]] {
        let options = LoadOptions { generations: Some(generations), ..options() };
        let walked = for_each_record(&*disk, &entry, &options, &mut |_| Err("it is void".into()));
        let walked = walked.expect("intact");
        assert_eq!((walked.records, walked.stale_records), (0, expected.len() as u64));
        let verified = verify(&disk, &entry, &options, 1, &Arc::default());
        let verified = verified.and_then(Verified::sound).expect("intact");
        assert_eq!((verified.records, verified.stale_records), (expected.len() as u64, 0));
    }
}

fn parts(entry: &CheckpointEntry) -> Vec<PathBuf> {
    let dir = PathBuf::from(checkpoint_dir(entry.serial, entry.kind));
    entry.parts.iter().map(|part| dir.join(&part.file)).collect()
}

/// The disk with the file's content replaced.
fn with_content(sim: &SimDisk, path: &Path, bytes: &[u8]) -> Arc<dyn Disk> {
    let disk = sim.crash_image(1);
    disk.remove(path).expect("a disk without faults");
    let file = disk.open(path, OpenMode::CreateNew, Caching::Buffered);
    file.and_then(|file| file.write_at(bytes, 0)).expect("a disk without faults");
    Arc::new(disk)
}

fn load_error(disk: &Arc<dyn Disk>, entry: &CheckpointEntry) -> LoadError {
    match load_state(disk, entry) {
        Ok(_) => panic!("damage was not seen"),
        Err(error) => error,
    }
}

/// Flips the bits `bits` of every `step`-th byte of the format, and of every 97th byte of padding.
/// Of each byte those in the share are flipped. Each flip must be reported.
fn flip_bits(codec: Codec, step: usize, bits: std::ops::Range<u8>, share: Share) {
    let (sim, entry, _) = small_checkpoint(codec);
    for path in parts(&entry) {
        let sound = read_all(&sim, &path).expect("it is there");
        let disk = sim.crash_image(1);
        let file = disk.open(&path, OpenMode::ReadWrite, Caching::Buffered).expect("it is there");
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let meant = (0..sound.len()).filter(|&at| sound[at] != 0).step_by(step);
        let rest = (0..sound.len()).step_by(97).filter(|&at| sound[at] == 0).step_by(step);
        for at in meant.chain(rest) {
            for bit in bits.clone().filter(|&bit| share.has(at as u64 + u64::from(bit))) {
                file.write_at(&[sound[at] ^ 1 << bit], at as u64).expect("no fault");
                let error = load_error(&disk, &entry);
                assert!(matches!(error, LoadError::Damaged(_)), "byte {at} bit {bit}: {error}");
                assert!(error.to_string().contains("part-00"), "{error}");
            }
            file.write_at(&sound[at..=at], at as u64).expect("no fault");
        }
        assert!(load_state(&disk, &entry).is_ok());
    }
}

#[test]
fn every_flipped_bit_is_reported() {
    for codec in [Codec::None, Codec::Lz4] {
        flip_bits(codec, 1, 0..8, Share::of_run());
    }
}

/// A sample of these flips, for short runs.
#[test]
fn a_sample_of_flipped_bits_is_reported() {
    flip_bits(Codec::None, 53, 3..4, Share { k: 0, n: 1 });
}

#[test]
fn files_that_are_missing_cut_or_swapped_are_reported() {
    let (sim, entry, _) = small_checkpoint(Codec::None);
    let paths = parts(&entry);
    let disk = sim.crash_image(1);
    disk.remove(&paths[0]).expect("no fault");
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let LoadError::Damaged(damage) = load_error(&disk, &entry) else {
        panic!("another error");
    };
    assert_eq!(damage.cause, DamageCause::Missing);
    assert!(damage.to_string().contains("stillpoint restore"), "{damage}");

    let sound = read_all(&sim, &paths[0]).expect("it is there");
    for len in [0, 1, 4095, 4096, sound.len() - 4096, sound.len() - 1, sound.len() + 4096] {
        let mut bytes = sound.clone();
        bytes.resize(len, 0);
        let error = load_error(&with_content(&sim, &paths[0], &bytes), &entry);
        assert!(matches!(error, LoadError::Damaged(_)), "length {len}: {error}");
    }
    if let Some(second) = paths.get(1) {
        let other = read_all(&sim, second).expect("it is there");
        let mut entry = entry.clone();
        entry.parts[0].bytes = other.len() as u64;
        let error = load_error(&with_content(&sim, &paths[0], &other), &entry);
        assert!(error.to_string().contains("renamed or swapped"), "{error}");
    }
}

/// The files are intact, but differ from the entry of the manifest.
#[test]
fn what_the_manifest_says_is_compared() {
    let (sim, entry, _) = small_checkpoint(Codec::None);
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let changes: [fn(&mut CheckpointEntry); 6] = [
        |entry| entry.records += 1,
        |entry| entry.value_bytes -= 1,
        |entry| entry.parts[0].bytes += 4096,
        |entry| entry.parts[0].crc ^= 1,
        |entry| entry.partitions_log2 += 1,
        |entry| {
            entry.parts.truncate(1);
            entry.parts[0].file = "part-077".into();
        },
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut changed = entry.clone();
        change(&mut changed);
        let error = load_error(&disk, &changed);
        assert!(matches!(error, LoadError::Damaged(_)), "change {at}: {error}");
    }
    let others = [
        LoadOptions { store: StoreId([9; 16]), ..options() },
        LoadOptions { hash_seed: 1, ..options() },
    ];
    for options in others {
        let verified = verify(&disk, &entry, &options, 1, &Arc::default()).expect("readable");
        assert_eq!(verified.damage.len(), entry.parts.len(), "{verified:?}");
        let error = verified.sound();
        assert!(matches!(error, Err(LoadError::Damaged(_))), "{error:?}");
    }
}

/// A visitor that refuses or panics ends the load, and so does a cancellation. No thread is left
/// behind.
#[test]
fn a_visitor_may_end_the_loading() {
    struct Refuses;
    impl Visit for Refuses {
        fn records(&mut self, _: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
            Err("no more room".into())
        }
    }
    struct Panics;
    impl Visit for Panics {
        fn records(&mut self, _: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
            panic!("as the test wants it")
        }
    }
    // Read threads wait for buffers that no load thread gives back any more.
    let (sim, entry) = large_checkpoint();
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let load = |visitor: Box<dyn Visit>, progress: Arc<Progress>| {
        load(&disk, &entry, &options(), vec![visitor], &progress)
    };
    let progress = Arc::new(Progress::default());
    let summary = load(Box::<Collector>::default(), progress.clone()).expect("intact");
    let loaded = progress.snapshot();
    assert!(loaded.units_total > 3, "one unit for each thread is too few");
    let file_bytes: u64 = entry.parts.iter().map(|part| part.bytes).sum();
    assert_eq!((summary.file_bytes, summary.value_bytes), (file_bytes, entry.value_bytes));
    assert!((entry.value_bytes..file_bytes).contains(&loaded.written_bytes), "{loaded:?}");
    let error = load(Box::new(Refuses), Arc::default());
    assert!(matches!(&error, Err(LoadError::Visitor(_))), "{error:?}");
    let error = load(Box::new(Panics), Arc::default());
    assert!(matches!(&error, Err(LoadError::Thread(_))), "{error:?}");
    let progress = Arc::new(Progress::default());
    progress.cancel();
    let error = load(Box::new(Refuses), progress);
    assert!(matches!(&error, Err(LoadError::Cancelled)), "{error:?}");
}

#[test]
fn batches_are_of_many_records() {
    struct Counts(Arc<Mutex<Vec<usize>>>);
    impl Visit for Counts {
        fn records(&mut self, batch: &[LoadedRecord<'_>]) -> Result<(), VisitError> {
            self.0.lock().push(batch.len());
            Ok(())
        }
    }
    let (sim, entry, expected) = small_checkpoint(Codec::None);
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let batches: Arc<Mutex<Vec<usize>>> = Arc::default();
    let visitor = Box::new(Counts(batches.clone()));
    let progress = Arc::new(Progress::default());
    load(&disk, &entry, &options(), vec![visitor], &progress).expect("intact");
    let batches = batches.lock();
    assert_eq!(batches.iter().sum::<usize>(), expected.len());
    assert!(batches.iter().max() > Some(&5), "{batches:?}");
    let snapshot = progress.snapshot();
    assert_eq!(snapshot.records, expected.len() as u64);
    assert_eq!(snapshot.units_done, snapshot.units_total);
}

#[test]
fn removed_files_are_gone_for_good() {
    let world = calc_world(1);
    let mut worker = world.worker(0);
    fill(&mut worker, 10);
    let (written, _) = world.take().expect("no fault");
    let dir = PathBuf::from(checkpoint_dir(written.serial, CheckpointKind::Full));
    assert!(world.disk.exists(&dir).expect("no fault"));
    stillpoint_checkpoint::remove_checkpoint(&*world.disk, written.serial, CheckpointKind::Full)
        .expect("no fault");
    assert!(!world.disk.exists(&dir).expect("no fault"));
    for after in world.sim.crash_states(0..20) {
        assert!(!after.exists(&dir).expect("no fault"));
    }
}
