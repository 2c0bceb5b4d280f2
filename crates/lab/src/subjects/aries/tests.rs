use std::sync::Arc;

use stillpoint_io::{Disk, SimDisk, seeded_rounds};
use stillpoint_state::schemes::NoCheckpoints;
use stillpoint_state::{Arrays, Naive};

use super::Aries;
use super::redo::{read_batch, segment_path, segments};
use crate::workloads::tpcc::check::check;
use crate::workloads::tpcc::input::{Trace, Transaction};
use crate::workloads::tpcc::load::{Population, digest};
use crate::workloads::tpcc::memory::InCells;
use crate::workloads::tpcc::schema::{Scale, Tables};
use crate::workloads::tpcc::transactions::run;

const BATCH: u64 = 20;

fn run_batch(aries: &mut Aries, population: &Population, trace: &Trace) {
    let first = aries.batches() * BATCH;
    let ran = aries.batch(|aries| {
        for number in first..first + BATCH {
            let transaction = Transaction::decode(trace.get(number)).expect("of the trace");
            run(aries, population, &transaction);
        }
    });
    ran.expect("the disk takes it");
}

/// Contents of the tables after this number of batches, computed without a log.
fn oracle(population: &Population, trace: &Trace, batches: u64) -> Vec<(&'static str, u64)> {
    let mut builder = Arrays::<NoCheckpoints<Naive>>::builder();
    let tables = Tables::declare(&mut builder, &population.scale);
    let mut arrays = builder.build().expect("memory");
    population.fill(&mut arrays, &tables).expect("no tick has ended");
    let mut memory = InCells { cells: &mut arrays, tables: &tables };
    for number in 0..batches * BATCH {
        let transaction = Transaction::decode(trace.get(number)).expect("of the trace");
        run(&mut memory, population, &transaction);
    }
    digest(&arrays, &tables)
}

fn scale() -> Scale {
    Scale { items: 200, customers: 30, ring: 64, history: 1_024, ..Scale::small(1) }
}

#[test]
fn what_was_durable_is_there_after_a_power_loss() {
    seeded_rounds(10, |seed| {
        let population = Population::new(scale(), seed);
        let trace = Trace::new(&population.scale, seed, 4_000);
        let mut disk = SimDisk::new(seed);
        let mut least = 0;
        for crash in 0..4 {
            let mut aries = Aries::open(Arc::new(disk.clone()), &population).expect("it opens");
            let batches = aries.batches();
            assert!(batches >= least, "seed {seed}: batch {batches}, {least} was durable");
            let found = digest(aries.cells(), aries.tables());
            assert_eq!(found, oracle(&population, &trace, batches), "seed {seed}, crash {crash}");
            check(&aries, &population.scale).expect("consistent");
            for number in 0..30 {
                run_batch(&mut aries, &population, &trace);
                if number % 7 == seed % 7 {
                    aries.checkpoint().expect("the disk takes it");
                }
            }
            least = aries.durable();
            assert!(least + 1 >= aries.batches(), "at most one batch is not durable");
            disk = disk.crash(seed + crash);
            drop(aries);
        }
    });
}

#[test]
fn checkpoints_write_what_changed_and_take_the_log_with_them() {
    let population = Population::new(scale(), 1);
    let trace = Trace::new(&population.scale, 1, 4_000);
    let disk = SimDisk::new(1);
    let mut aries = Aries::open(Arc::new(disk.clone()), &population).expect("it opens");
    let mut bytes = Vec::new();
    for checkpoint in 1..=3 {
        run_batch(&mut aries, &population, &trace);
        assert!(aries.checkpoint().expect("the disk takes it"));
        while aries.taken().checkpoints < checkpoint {
            run_batch(&mut aries, &population, &trace);
        }
        bytes.push(aries.taken().bytes);
    }
    let (first, second, third) = (bytes[0], bytes[1] - bytes[0], bytes[2] - bytes[1]);
    assert_eq!(first, second, "each file takes everything once");
    assert!(third < first, "items never change: {bytes:?}");
    aries.wait_durable().expect("the disk takes it");
    let left = segments(&disk).expect("a list");
    assert!(left[0] > 1, "the first segment is gone: {left:?}");
    assert!(aries.logged_bytes() > 0);
}

#[test]
fn a_batch_that_is_missing_is_found() {
    let population = Population::new(scale(), 2);
    let trace = Trace::new(&population.scale, 2, 1_000);
    let disk = SimDisk::new(2);
    for _ in 0..2 {
        let mut aries = Aries::open(Arc::new(disk.clone()), &population).expect("it opens");
        run_batch(&mut aries, &population, &trace);
        aries.wait_durable().expect("the disk takes it");
    }
    assert_eq!(segments(&disk).expect("a list"), [1, 2]);
    disk.remove(&segment_path(1)).expect("removed");
    let error = Aries::open(Arc::new(disk), &population).expect_err("a gap").to_string();
    assert!(error.contains("batch 2 follows batch 0"), "{error}");
}

#[test]
fn a_batch_is_read_whole_or_not_at_all() {
    assert_eq!(read_batch(&[]), None);
    assert_eq!(read_batch(&[0; 64]), None);
    let population = Population::new(scale(), 3);
    let trace = Trace::new(&population.scale, 3, 1_000);
    let disk = SimDisk::new(3);
    let mut aries = Aries::open(Arc::new(disk.clone()), &population).expect("it opens");
    run_batch(&mut aries, &population, &trace);
    aries.wait_durable().expect("the disk takes it");
    let bytes = stillpoint_io::read_all(&disk, &segment_path(1)).expect("the segment");
    let (number, records, len) = read_batch(&bytes).expect("a batch");
    assert_eq!((number, len), (1, (records.len() + 20).next_multiple_of(4_096)));
    assert!(read_batch(&bytes[len..]).is_none());
    let end = 20 + records.len();
    for at in [0, 5, 9, 17, 20, end - 1] {
        let mut spoiled = bytes[..end].to_vec();
        spoiled[at] ^= 1;
        assert!(read_batch(&spoiled).is_none(), "byte {at}");
        assert!(read_batch(&bytes[..at]).is_none(), "cut at {at}");
    }
}
