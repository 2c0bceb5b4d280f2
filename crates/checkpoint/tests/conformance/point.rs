//! The two forms of a physical point of consistency: one waits for commits under way, and one, as
//! published, for open transactions.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_checkpoint::{
    CheckpointError, Cycle, Pace, Progress, QuiesceFor, Row, Wanted, run_checkpoint,
    work_after_capture,
};
use stillpoint_io::{Clock, JoinHandle, ManualClock, RealClock, spawn};
use stillpoint_store::{Checkpointer, Outcome, Phase, PointOfConsistency, Sink, TableId};

use crate::bank::{self, Plan, rows_that_take_checkpoints};
use crate::deleted::Interrupted;
use crate::memory::MemorySink;
use crate::model::assert_same;
use crate::world::{World, entry};

const T: TableId = TableId(0);
const OPEN_FOR: Duration = Duration::from_millis(20);

/// Rows with a physical point of consistency, as published.
fn rows_that_stop() -> impl Iterator<Item = &'static Row> {
    rows_that_take_checkpoints().filter(|row| {
        let scheme = row.build().checkpointer.expect("it takes checkpoints");
        scheme.published_point().stops_commits()
    })
}

/// A transaction that has written and stays open until it is told to commit.
struct Open {
    commits: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Open {
    fn begin(world: &World) -> Self {
        let (mut worker, commits) = (world.worker(1), Arc::new(AtomicBool::new(false)));
        let (may_commit, has_begun) = (commits.clone(), Arc::new(AtomicBool::new(false)));
        let begun = has_begun.clone();
        let run = move || {
            let done = worker.transact(|tx| {
                tx.put(T, b"long", b"of an open transaction")?;
                begun.store(true, SeqCst);
                wait_until(&|| may_commit.load(SeqCst));
                Ok(())
            });
            done.expect("memory");
        };
        let thread = spawn("open", run).expect("a thread");
        wait_until(&|| has_begun.load(SeqCst));
        Self { commits, thread }
    }

    fn commit(self) {
        self.commits.store(true, SeqCst);
        self.thread.join().expect("no panic");
    }
}

fn wait_until(is_so: &dyn Fn() -> bool) {
    while !is_so() {
        RealClock.sleep(Duration::from_micros(200));
    }
}

/// A world with some records.
fn world(row: &Row, quiesce_for: QuiesceFor) -> Arc<World> {
    let mut world = World::new(row, 1);
    world.quiesce_for = quiesce_for;
    let mut worker = world.worker(0);
    for key in 0..50u8 {
        worker.transact(|tx| tx.put(T, &[key], &[key; 60])).expect("memory");
    }
    drop(worker);
    Arc::new(world)
}

#[test]
fn a_point_that_waits_for_commits_passes_an_open_transaction() {
    for row in rows_that_take_checkpoints() {
        let world = world(row, QuiesceFor::Commits);
        let open = Open::begin(&world);
        let (written, captured) = world.take().expect("no fault was injected");
        let stops = row.capabilities.stops_commits();
        assert_eq!(captured.stopped_ns > 0, stops, "{}: {} ns", row.name, captured.stopped_ns);
        open.commit();
        let expected = world.expected(written.epoch);
        assert_same(&world.load(&entry(written)), &expected, row.name);
    }
}

#[test]
fn a_published_point_waits_for_open_transactions_and_holds_new_ones() {
    for row in rows_that_stop() {
        let world = world(row, QuiesceFor::Transactions);
        let open = Open::begin(&world);
        let (taking, has_taken) = (world.clone(), Arc::new(AtomicBool::new(false)));
        let taken = has_taken.clone();
        let checkpoint = spawn("checkpoint", move || {
            let done = taking.take();
            taken.store(true, SeqCst);
            done.expect("no fault was injected")
        });
        let driver = world.store.driver();
        wait_until(&|| driver.now().is_permitted());
        let (mut worker, has_begun) = (world.worker(2), Arc::new(AtomicBool::new(false)));
        let begun = has_begun.clone();
        let new = spawn("new", move || {
            let put = worker.transact(|tx| {
                tx.put(T, b"new", b"value")?;
                begun.store(true, SeqCst);
                Ok(())
            });
            put.expect("memory");
        });
        RealClock.sleep(OPEN_FOR);
        assert!(!has_taken.load(SeqCst) && !has_begun.load(SeqCst), "{}", row.name);
        // fuzzy-undo waits before it keeps flushes of tables away, and so before PREPARE.
        let waits_first = row.name.starts_with("fuzzy-undo");
        let expected = if waits_first { Phase::Rest } else { Phase::Prepare };
        assert_eq!(driver.now().phase(), expected, "{}", row.name);
        open.commit();
        let (written, captured) = checkpoint.expect("a thread").join().expect("no panic");
        new.expect("a thread").join().expect("no panic");
        let stopped = Duration::from_nanos(captured.stopped_ns);
        assert!(stopped >= OPEN_FOR, "{}: {stopped:?}", row.name);
        let (epoch, expected) = (written.epoch, world.expected(written.epoch));
        assert!(expected.contains_key(&(T.0, b"long".to_vec())), "{}", row.name);
        assert_same(&world.load(&entry(written)), &expected, row.name);
        assert!(driver.now().epoch() == epoch && !driver.now().is_permitted());
    }
}

#[test]
fn a_wait_for_open_transactions_can_be_cancelled() {
    for row in rows_that_stop() {
        let world = world(row, QuiesceFor::Transactions);
        let open = Open::begin(&world);
        let mut cycle = world.cycle();
        cycle.progress = Arc::new(Progress::default());
        let progress = cycle.progress.clone();
        let taking = world.clone();
        let checkpoint = spawn("checkpoint", move || taking.take_with(&cycle));
        wait_until(&|| world.store.driver().now().is_permitted());
        progress.cancel();
        let taken = checkpoint.expect("a thread").join().expect("no panic");
        assert!(matches!(taken, Err(CheckpointError::Cancelled)), "{}", row.name);
        let mut worker = world.worker(2);
        worker.transact(|tx| tx.put(T, b"new", b"value")).expect("it begins");
        open.commit();
        let (epoch, found) = world.take_and_load();
        assert_same(&found, &world.expected(epoch), row.name);
    }
}

#[test]
fn a_bank_goes_on_with_published_points() {
    for row in rows_that_stop() {
        let mut world = World::new(row, 7);
        world.quiesce_for = QuiesceFor::Transactions;
        let plan = Plan { checkpoints: 3, deeds_max: 5_000, ..Plan::new(7) };
        let outcome = bank::run(&mut world, plan);
        bank::check(&world, plan, &outcome);
    }
}

/// Long work in PREPARE is over when the point of consistency is announced. So whoever must not meet
/// the point, as a flush of tables, does not wait for the work.
#[test]
fn long_work_comes_before_the_announcement_of_the_point() {
    for row in rows_that_take_checkpoints() {
        let world = world(row, QuiesceFor::Commits);
        let events = Arc::<Mutex<Vec<&str>>>::default();
        let (visits, points) = (events.clone(), events.clone());
        let store = world.store.clone();
        let mut cycle = world.cycle();
        let scheme = world.scheme().clone();
        let note = move || {
            if store.driver().now().phase() == Phase::Prepare {
                visits.lock().push("visit");
            }
        };
        cycle.scheme = Arc::new(Interrupted { scheme, work: Box::new(note) });
        cycle.before_point = Some(Arc::new(move || points.lock().push("point")));
        (cycle.wanted, cycle.threads) = (Wanted::Full, 1);
        let sink: Arc<dyn Sink> = Arc::<MemorySink>::default();
        let captured = run_checkpoint(&cycle, &sink).expect("no fault was injected");
        cycle.ended(captured.epoch, Outcome::Published);
        let events = events.lock();
        assert_eq!(events.last(), Some(&"point"), "{}: {events:?}", row.name);
        let points = events.iter().filter(|event| **event == "point").count();
        assert_eq!(points, 1, "{}: {events:?}", row.name);
        if row.capabilities.point != Some(PointOfConsistency::PhysicalThroughout) {
            continue;
        }
        assert!(
            captured.stopped_ns >= captured.capture_ns,
            "{}: commits wait throughout",
            row.name
        );
    }
}

/// A world under piggyback with so many values of 1,000 bytes, whose last checkpoint has copied nothing.
fn with_work_left(values: u32) -> (Arc<World>, Arc<dyn Sink>) {
    let row = rows_that_take_checkpoints().find(|row| row.name == "piggyback").expect("a row");
    let world = world(row, QuiesceFor::Commits);
    let mut worker = world.worker(1);
    for key in 0..values {
        worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &[1; 1_000])).expect("memory");
    }
    drop(worker);
    let sink: Arc<dyn Sink> = Arc::new(MemorySink::default());
    let cycle = world.cycle();
    let captured = run_checkpoint(&cycle, &sink).expect("no fault was injected");
    cycle.ended(captured.epoch, Outcome::Abandoned);
    (world, sink)
}

/// What a checkpoint has left to copy is copied before the next one enters PREPARE. That can be cancelled.
/// Nothing has changed then.
#[test]
fn copying_that_is_left_can_be_cancelled() {
    let (world, sink) = with_work_left(100);
    let progress = Arc::new(Progress::default());
    let cancelling = progress.clone();
    let scheme: Arc<dyn Checkpointer> = Arc::new(Interrupted {
        scheme: world.scheme().clone(),
        work: Box::new(move || cancelling.cancel()),
    });
    let cycle = Cycle { scheme, progress, threads: 1, ..world.cycle() };
    let before = world.store.driver().now();
    let cut_off = run_checkpoint(&cycle, &sink).expect_err("it was cancelled");
    assert!(matches!(cut_off, CheckpointError::Cancelled), "{cut_off}");
    assert_eq!(world.store.driver().now(), before, "it has not begun");
    assert!(world.scheme().has_work_left(before.epoch()));
    let (epoch, found) = world.take_and_load();
    assert_same(&found, &world.expected(epoch), "piggyback");
}

/// The log or the memory may wait for the checkpoint. So what has to be copied before has no pace.
#[test]
fn copying_that_is_left_has_no_pace() {
    let (world, sink) = with_work_left(100);
    let progress = Arc::new(Progress::default());
    let (begun, late) = (progress.clone(), progress.clone());
    let mut cycle = Cycle { pace: Pace::BytesPerSecond(1), progress, ..world.cycle() };
    cycle.observer = Some(Arc::new(move |phase, _| {
        if phase == Phase::Prepare {
            begun.change_pace(Pace::Unpaced);
        }
    }));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let watch = spawn("watch", move || {
        // At the pace the copying takes a day.
        for _ in 0..1_000 {
            if over.load(SeqCst) {
                return;
            }
            RealClock.sleep(OPEN_FOR);
        }
        late.cancel();
    });
    let taken = run_checkpoint(&cycle, &sink);
    is_over.store(true, SeqCst);
    let captured = taken.expect("it went ahead at once");
    cycle.ended(captured.epoch, Outcome::Abandoned);
    watch.expect("a thread").join().expect("no panic");
}

/// The copier after a capture keeps the pace, and several threads share its work.
#[test]
fn a_copier_keeps_the_pace_with_several_threads() {
    // More than two groups of slabs.
    const VALUES: u32 = 6_000;
    let (world, _) = with_work_left(VALUES);
    let threads = Arc::<Mutex<HashSet<ThreadId>>>::default();
    let seen = threads.clone();
    let note = move || {
        seen.lock().insert(std::thread::current().id());
        // The first thread leaves a unit to another one.
        for _ in 0..5_000 {
            if seen.lock().len() > 1 {
                break;
            }
            RealClock.sleep(Duration::from_millis(1));
        }
    };
    let scheme = Arc::new(Interrupted { scheme: world.scheme().clone(), work: Box::new(note) });
    let clock = Arc::new(ManualClock::self_advancing(0));
    let pace = Pace::BytesPerSecond(1_000_000);
    let cycle = Cycle { scheme, threads: 3, pace, clock: clock.clone(), ..world.cycle() };
    let before_ns = clock.monotonic_ns();
    work_after_capture(&cycle).expect("no fault was injected");
    let seconds = (clock.monotonic_ns() - before_ns) as f64 / 1e9;
    // Each sleeper moves the clock, so three of them may sleep thrice the time.
    assert!((5.8..30.0).contains(&seconds), "{seconds} s for 6 MB at 1 MB/s");
    assert!(threads.lock().len() > 1, "one thread has copied everything");
    assert!(!world.scheme().has_work_left(world.store.driver().now().epoch()));
}
