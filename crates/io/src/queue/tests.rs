//! Tests of the three engines, with the same steps for each.

use std::path::Path;
use std::sync::Arc;

use stillpoint_mem::Frames;

use super::*;
use crate::disk::{Caching, OpenMode};
use crate::rng::{Rng, SeededRng};
use crate::sim::{Call, Fault, FaultPlan, Lasts};
use crate::{RealDisk, SimDisk, in_parallel};

const PAGE: usize = 4096;

fn page(fill: u8) -> AlignedBuf {
    let mut page = AlignedBuf::new();
    page.resize(PAGE, fill);
    page
}

fn open(disk: &dyn Disk) -> Arc<dyn DiskFile> {
    disk.open(Path::new("pages"), OpenMode::CreateNew, Caching::Direct).expect("a new file")
}

fn first_byte(frames: &Frames, frame: usize) -> u8 {
    let mut bytes = [0; PAGE];
    stillpoint_mem::words::read_into(frames.words(frame), 0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one page in one frame");
    bytes[0]
}

fn result(queue: &Queue, transfer: &Transfer) -> crate::DiskResult<usize> {
    queue.wait(transfer);
    transfer.take().expect("has ended").result
}

/// Runs `test` with each engine: the one of this machine, threads, and a simulated disk.
fn with_each(test: impl Fn(&dyn Disk, Arc<Queue>)) {
    let scratch = tempfile::tempdir().expect("a directory");
    let own = RealDisk::new(scratch.path().join("own")).expect("a disk");
    test(&own, Queue::of(&own, "test", 8).expect("a queue"));
    let threaded = RealDisk::new(scratch.path().join("threads")).expect("a disk");
    test(&threaded, Queue::by_threads("test", 4).expect("a queue"));
    let simulated = SimDisk::new(5);
    test(&simulated, Queue::of(&simulated, "test", 8).expect("a queue"));
}

#[test]
fn what_is_written_is_read_at_every_depth() {
    with_each(|disk, queue| {
        let file = open(disk);
        let writes: Vec<_> =
            (0..50).map(|n| queue.write(&file, page(n + 1), u64::from(n) * PAGE as u64)).collect();
        for write in &writes {
            queue.wait(write);
            let ended = write.take().expect("has ended");
            assert_eq!(ended.result.expect("written"), PAGE);
            assert_eq!(ended.buf.expect("the buffer comes back").len(), PAGE);
            assert!(write.take().is_none(), "only once");
        }
        let frames = Frames::new(50, PAGE).expect("memory");
        let rng = SeededRng::new(9);
        for _ in 0..20 {
            let wanted: Vec<u64> = (0..rng.below(40) + 1).map(|_| rng.below(50)).collect();
            let reads: Vec<_> = wanted
                .iter()
                .enumerate()
                .map(|(at, n)| queue.read(&file, frames.target(at), n * PAGE as u64))
                .collect();
            queue.submit();
            while !reads[0].has_ended() {
                queue.poll();
            }
            for (at, read) in reads.iter().enumerate() {
                assert_eq!(result(&queue, read).expect("read"), PAGE);
                assert_eq!(u64::from(first_byte(&frames, at)), wanted[at] + 1);
            }
        }
    });
}

#[test]
fn the_end_of_the_file_is_a_short_read_and_errors_name_the_file() {
    with_each(|disk, queue| {
        let file = open(disk);
        result(&queue, &queue.write(&file, page(1), 0)).expect("written");
        let frames = Frames::new(1, 4 * PAGE).expect("memory");
        assert_eq!(result(&queue, &queue.read(&file, frames.target(0), 0)).expect("read"), PAGE);
        let beyond = queue.read(&file, frames.target(0), 64 * PAGE as u64);
        assert_eq!(result(&queue, &beyond).expect("read"), 0);
        let ragged =
            result(&queue, &queue.read(&file, frames.target(0), 7)).expect_err("unaligned");
        assert!(ragged.to_string().contains("pages: direct I/O needs"), "{ragged}");
        let reader = disk.open(Path::new("pages"), OpenMode::Read, Caching::Direct).expect("there");
        let refused = result(&queue, &queue.write(&reader, page(1), 0)).expect_err("for reads");
        assert!(refused.to_string().contains("opened for reads only"), "{refused}");
    });
}

#[test]
fn threads_end_each_others_transfers() {
    with_each(|disk, queue| {
        let file = open(disk);
        let writes: Vec<_> =
            (0..17u8).map(|n| queue.write(&file, page(n), u64::from(n) * PAGE as u64)).collect();
        for write in &writes {
            assert_eq!(result(&queue, write).expect("written"), PAGE);
        }
        let frames = Frames::new(4 * 32, PAGE).expect("memory");
        let readers = (0..4).map(|thread| {
            let (queue, file, frames) = (&queue, &file, &frames);
            move || {
                let rng = SeededRng::new(thread);
                for _ in 0..40 {
                    let wanted: Vec<u64> = (0..rng.below(31) + 1).map(|_| rng.below(17)).collect();
                    let first = thread as usize * 32;
                    let reads: Vec<_> = (wanted.iter().enumerate())
                        .map(|(at, n)| queue.read(file, frames.target(first + at), n * PAGE as u64))
                        .collect();
                    queue.submit();
                    for (at, read) in reads.iter().enumerate().rev() {
                        result(queue, read).expect("read");
                        let found = u64::from(first_byte(frames, first + at));
                        assert_eq!(found, wanted[at]);
                    }
                }
            }
        });
        in_parallel("reader", readers.collect()).expect("no panic");
    });
}

#[test]
fn a_seed_decides_the_order_of_a_simulated_disk() {
    let order_of = |seed| {
        let disk = SimDisk::new(seed);
        let file = open(&disk);
        let queue = Queue::of(&disk, "test", 8).expect("a queue");
        let writes: Vec<_> = (0..9u8).map(|n| queue.write(&file, page(n), 0)).collect();
        assert_eq!(queue.poll(), 0, "nothing was submitted");
        queue.submit();
        let mut order = Vec::new();
        while order.len() < writes.len() {
            queue.poll();
            let ended = (0..writes.len()).filter(|at| writes[*at].has_ended());
            order.extend(ended.filter(|at| !order.contains(at)).collect::<Vec<_>>());
        }
        order
    };
    assert_eq!(order_of(3), order_of(3));
    assert!((0..20).any(|seed| order_of(seed) != order_of(3)));
    assert!((0..20).any(|seed| order_of(seed) != (0..9).collect::<Vec<_>>()));
}

#[test]
fn faults_and_crashes_end_transfers() {
    for fault in [Fault::DiskFull, Fault::InputOutput, Fault::PowerLoss] {
        let disk = SimDisk::new(1);
        let file = open(&disk);
        let queue = Queue::of(&disk, "test", 8).expect("a queue");
        result(&queue, &queue.write(&file, page(1), 0)).expect("written");
        let calls = vec![Call::Read, Call::Write];
        disk.inject(FaultPlan { calls, nth: 2, fault, lasts: Lasts::Once });
        let frames = Frames::new(3, PAGE).expect("memory");
        let reads = [0, 1, 2].map(|frame| queue.read(&file, frames.target(frame), 0));
        let ended = reads.map(|read| result(&queue, &read));
        let failed = ended.iter().filter(|ended| ended.is_err()).count();
        assert_eq!(failed, if fault == Fault::PowerLoss { 2 } else { 1 }, "{fault:?}");
    }
}

#[test]
fn a_panic_of_the_disk_ends_the_transfer() {
    let disk = SimDisk::new(1);
    let file = open(&disk);
    let plan =
        |nth| FaultPlan { calls: vec![Call::Write], nth, fault: Fault::Panic, lasts: Lasts::Once };
    for queue in [Queue::of(&disk, "test", 8), Queue::by_threads("test", 2)] {
        let queue = queue.expect("a queue");
        disk.inject(plan(1));
        let write = queue.write(&file, page(1), 0);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.wait(&write)));
        let ended = write.take().expect("has ended");
        assert!(ended.result.expect_err("panicked").to_string().contains("panicked"));
        result(&queue, &queue.write(&file, page(2), 0)).expect("the queue goes on");
    }
}

#[test]
fn what_is_under_way_is_awaited_by_the_drop() {
    let scratch = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::new(scratch.path()).expect("a disk");
    let file = open(&disk);
    for queue in [Queue::of(&disk, "test", 64), Queue::by_threads("test", 2)] {
        let queue = queue.expect("a queue");
        let writes: Vec<_> =
            (0..64u64).map(|n| queue.write(&file, page(9), n * PAGE as u64)).collect();
        queue.submit();
        drop(queue);
        assert!(writes.iter().all(Transfer::has_ended));
    }
}
