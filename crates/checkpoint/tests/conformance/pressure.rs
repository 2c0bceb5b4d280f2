//! Tests with a disk that is too slow. The capture scan waits first, then the workers, whose waits
//! are counted. Memory stays bounded. Also tests of the pace, which limits a checkpoint when the
//! disk does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stillpoint_checkpoint::{CheckpointError, Cycle, Pace, Wanted, registry, run_checkpoint};
use stillpoint_io::{Call, Clock, ManualClock, RealClock, spawn};
use stillpoint_store::{
    DeletedKey, Demand, Lane, Phase, PointOfConsistency, RecordImage, Sink, TableId, Tx, Worker,
};

use crate::model::assert_same;
use crate::world::{World, entry};

const TABLE: TableId = TableId(0);

/// Waits in counted steps of a millisecond, so that time in which the process is stopped does not
/// count.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        RealClock.sleep(Duration::from_millis(1));
    }
    panic!("waited in vain: {what}");
}

#[test]
fn a_slow_disk_slows_the_walk_and_then_the_workers() {
    const KEYS: u32 = 30_000;
    const VALUE: usize = 100;
    let mut world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    world.sim.stall(&[Call::Write]);
    world.config.pool_bytes_max = 256 << 10;
    world.config.write_bytes = 64 << 10;
    world.config.parts = 1;
    let mut worker = world.worker(0);
    for number in 0..KEYS {
        worker.transact(|tx| tx.put(TABLE, &number.to_be_bytes(), &[1; VALUE])).expect("memory");
    }
    let world = Arc::new(world);
    let start_ns = RealClock.monotonic_ns();
    let taking = {
        let world = world.clone();
        spawn("checkpoint", move || world.take()).expect("a thread")
    };
    // The scan fills half of the pool and then waits.
    let pool_half = world.config.pool_bytes_max as u64 / 2;
    wait_until("half a pool", || world.progress.snapshot().bytes > pool_half);
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    let walked = world.progress.snapshot().bytes;
    let mut reader = world.worker(1);
    // Before-images fill the pool further, and then the worker waits.
    let writing = spawn("worker", move || {
        for number in 0..KEYS {
            worker
                .transact(|tx| tx.put_tagged(TABLE, &number.to_be_bytes(), 1, &[2; VALUE]))
                .expect("memory");
        }
    })
    .expect("a thread");
    wait_until("before-images", || world.progress.snapshot().bytes > 3 * pool_half / 2);
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert!(!writing.is_finished());
    // The waiting worker has changed nothing yet, so reads go on.
    let reading = {
        let world = world.clone();
        // The reader must outlive the wait, since its end waits for the read sections of all other
        // workers.
        spawn("reader", move || (world.live_to(&mut reader).len(), reader)).expect("a thread")
    };
    wait_until("reads beside a worker that waits for room", || reading.is_finished());
    let (read, _reader) = reading.join().expect("no panic");
    assert_eq!(read, KEYS as usize);
    // Above three quarters no commit begins to save before-images. A commit that has begun may add
    // more.
    let (queued, limit) = (world.progress.snapshot().bytes, world.config.pool_bytes_max as u64);
    world.sim.resume();
    assert!(walked < pool_half / 2 * 3, "the walk did not wait: {walked} bytes");
    assert!(queued < limit / 8 * 7, "commits go on beside a full pool: {queued} bytes");
    writing.join().expect("no panic");
    let (written, _) = taking.join().expect("no panic").expect("no fault");
    let stats = written.stats;
    assert!(stats.worker_waits > 0 && stats.worker_wait_ns > 0, "{stats:?}");
    assert!(stats.worker_wait_ns <= RealClock.monotonic_ns() - start_ns, "one worker: {stats:?}");
    // The worker and two capture threads may exceed the limit by one block each.
    let bound = world.config.pool_bytes_max + 3 * world.config.block_bytes;
    assert!(stats.pool_bytes_peak <= bound as u64, "{stats:?}");
    let expected = world.expected(written.epoch);
    assert_same(&world.load(&entry(written)), &expected, "slow disk");
}

/// The pool has room for every before-image: no commit waits.
#[test]
fn nobody_waits_for_a_pool_that_has_room() {
    let world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    a_megabyte(&world);
    let (store, history) = (world.store.clone(), world.history.clone());
    let observer = move |phase, _| {
        if phase == Phase::Resolve {
            let mut worker = Worker::new(store.clone(), Box::new(history.log(0))).expect("a slot");
            for number in 0..1000u32 {
                let write = |tx: &mut Tx<'_>| tx.put(TABLE, &number.to_be_bytes(), &[2; 96]);
                worker.transact(write).expect("memory");
            }
        }
    };
    let cycle = Cycle { observer: Some(Arc::new(observer)), ..world.cycle() };
    let (written, _) = world.take_with(&cycle).expect("no fault");
    assert_eq!((written.stats.worker_waits, written.stats.worker_wait_ns), (0, 0));
    assert_eq!(world.progress.snapshot().records, written.records);
    let expected = world.expected(written.epoch);
    assert_same(&world.load(&entry(written)), &expected, "a pool with room");
}

/// One commit may save more than the pool holds. The commit waits in its middle, and the pool stays
/// within its bound.
#[test]
fn a_commit_larger_than_the_pool_waits_at_its_limit() {
    let mut world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    world.sim.stall(&[Call::Write]);
    world.config.pool_bytes_max = 64 << 10;
    world.config.parts = 1;
    let mut worker = world.worker(0);
    for number in 0..5000u32 {
        worker.transact(|tx| tx.put(TABLE, &number.to_be_bytes(), &[1; 100])).expect("memory");
    }
    let world = Arc::new(world);
    let taking = {
        let world = world.clone();
        spawn("checkpoint", move || world.take()).expect("a thread")
    };
    let limit = world.config.pool_bytes_max as u64;
    wait_until("half a pool", || world.progress.snapshot().bytes > limit / 2);
    let writing = spawn("worker", move || {
        let all = |tx: &mut Tx<'_>| {
            (0..5000u32).try_for_each(|number| tx.put(TABLE, &number.to_be_bytes(), &[2; 100]))
        };
        worker.transact(all).expect("memory");
    })
    .expect("a thread");
    wait_until("a full pool", || world.progress.snapshot().bytes > limit);
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert!(!writing.is_finished());
    world.sim.resume();
    writing.join().expect("no panic");
    let (written, _) = taking.join().expect("no panic").expect("no fault");
    let stats = written.stats;
    assert!(stats.worker_waits > 0, "{stats:?}");
    let bound = limit + 3 * world.config.block_bytes as u64;
    assert!((limit..=bound).contains(&stats.pool_bytes_peak), "{stats:?}");
    let expected = world.expected(written.epoch);
    assert_same(&world.load(&entry(written)), &expected, "a large commit");
}

/// A failing disk must not keep workers waiting for room that never comes.
#[test]
fn a_failure_frees_those_who_wait_for_room() {
    let mut world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    world.sim.stall(&[Call::Write]);
    world.config.pool_bytes_max = 64 << 10;
    let mut worker = world.worker(0);
    for number in 0..5000u32 {
        worker.transact(|tx| tx.put(TABLE, &number.to_be_bytes(), &[1; 100])).expect("memory");
    }
    let world = Arc::new(world);
    let taking = {
        let world = world.clone();
        spawn("checkpoint", move || world.take()).expect("a thread")
    };
    wait_until("a write", || world.sim.waiting_calls() > 0);
    let writing = spawn("worker", move || {
        for number in 0..5000u32 {
            worker
                .transact(|tx| tx.put_tagged(TABLE, &number.to_be_bytes(), 1, &[2; 100]))
                .expect("memory");
        }
    })
    .expect("a thread");
    world.sim.fail_at(1, stillpoint_io::Fault::DiskFull);
    world.sim.resume();
    writing.join().expect("no panic");
    let error = taking.join().expect("no panic").expect_err("the disk is full");
    assert!(error.to_string().contains("no space"), "{error}");
    let (epoch, state) = world.take_and_load();
    assert_same(&state, &world.expected(epoch), "after the failure");
}

/// Ten thousand records of a hundred bytes.
fn a_megabyte(world: &World) {
    let mut worker = world.worker(0);
    for number in 0..10_000u32 {
        worker.transact(|tx| tx.put(TABLE, &number.to_be_bytes(), &[1; 96])).expect("memory");
    }
}

/// A sink that seems to get a mebibyte of before-images between any two looks at its bytes, `saved`
/// times.
#[derive(Default)]
struct BusySink {
    looks: AtomicU64,
    saved: u64,
    walked_bytes: AtomicU64,
}

impl Sink for BusySink {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut BusyLane(self));
    }
    fn taken_bytes(&self) -> u64 {
        let saved = self.looks.fetch_add(1, SeqCst).min(self.saved) << 20;
        self.walked_bytes.load(SeqCst) + saved
    }
}

struct BusyLane<'a>(&'a BusySink);

impl Lane for BusyLane<'_> {
    fn emit(&mut self, record: &RecordImage<'_>) {
        self.0.walked_bytes.fetch_add((record.key.len() + record.value.len()) as u64, SeqCst);
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("nothing is deleted");
    }
    fn take_back(&mut self) {
        unreachable!("nobody commits");
    }
}

#[test]
fn the_walk_stands_back_while_much_is_saved() {
    let row = registry::REGISTRY.find("calc").expect("it is in the table");
    for saved in [0, 25] {
        let mut world = World::new(row, 1);
        let clock = Arc::new(ManualClock::self_advancing(0));
        world.clock = clock.clone();
        world.threads = 1;
        a_megabyte(&world);
        let sink = Arc::new(BusySink { saved, ..BusySink::default() });
        let as_sink: Arc<dyn Sink> = sink.clone();
        let captured = run_checkpoint(&world.cycle(), &as_sink).expect("no fault");
        assert_eq!(captured.epoch, world.store.driver().now().epoch());
        assert_eq!(sink.walked_bytes.load(SeqCst), 1_000_000, "it walks on in the end");
        let naps = clock.monotonic_ns() / 1_000_000;
        assert!((saved..saved + 2).contains(&naps), "{naps} naps for {saved}");
    }
}

/// A sink that has failed and gives up.
struct Full;

impl Sink for Full {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut BusyLane(&BusySink::default()));
    }
    fn demand(&self) -> Demand {
        Demand::GiveUp
    }
}

/// The error is that of the sink, and no error says that a record is missing, since none is.
#[test]
fn a_sink_that_gives_up_is_the_reason_that_is_told() {
    let world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    a_megabyte(&world);
    let sink: Arc<dyn Sink> = Arc::new(Full);
    let taken = run_checkpoint(&world.cycle(), &sink);
    assert!(matches!(taken, Err(CheckpointError::Sink)), "{taken:?}");
}

#[test]
fn a_paced_capture_takes_its_time() {
    for row in crate::bank::rows_that_take_checkpoints() {
        let mut world = World::new(row, 1);
        let clock = Arc::new(ManualClock::self_advancing(0));
        world.clock = clock.clone();
        world.threads = 1;
        // With this size the scan never waits for the writers.
        world.config.write_bytes = 1 << 20;
        a_megabyte(&world);
        world.pace = Pace::BytesPerSecond(500_000);
        let (_, captured) = world.take().expect("no fault");
        let seconds = captured.capture_ns as f64 / 1e9;
        let stops = row.capabilities.point == Some(PointOfConsistency::PhysicalThroughout);
        let expected = if stops { 0.0..0.01 } else { 1.9..2.1 };
        let name = row.name;
        assert!(expected.contains(&seconds), "{name}: 1 MB in {seconds} s");
        world.pace = Pace::Unpaced;
        let before_ns = clock.monotonic_ns();
        // Nothing has changed since the last checkpoint, so a full one is taken.
        let full = Cycle { wanted: Wanted::Full, ..world.cycle() };
        world.take_with(&full).expect("no fault");
        let passed_ns = clock.monotonic_ns() - before_ns;
        let rests_ns = if stops { 0..1 } else { 50_000..2_000_000 };
        assert!(rests_ns.contains(&passed_ns), "{name}: rests of {passed_ns} ns");
    }
}

/// A few records with many bytes are also a burst.
#[test]
fn the_walk_rests_after_many_bytes() {
    let mut world = World::new(registry::REGISTRY.find("calc").expect("it is in the table"), 1);
    let clock = Arc::new(ManualClock::self_advancing(0));
    world.clock = clock.clone();
    world.threads = 1;
    // With this size the scan never waits for the writers.
    world.config.write_bytes = 8 << 20;
    let mut worker = world.worker(0);
    let mut rests_with = |value: &[u8]| {
        for number in 0..4000u32 {
            worker.transact(|tx| tx.put(TABLE, &number.to_be_bytes(), value)).expect("memory");
        }
        let before_ns = clock.monotonic_ns();
        world.take().expect("no fault");
        (clock.monotonic_ns() - before_ns) / 50_000
    };
    let (few, many) = (rests_with(&[1; 1]), rests_with(&[1; 2000]));
    assert!(many >= few + 2, "{few} rests in 4 kB, {many} in 8 MB");
}
