//! A pool of stable versions that is used up. No write is lost, and at most one checkpoint fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use stillpoint_checkpoint::registry::REGISTRY;
use stillpoint_checkpoint::{CheckpointError, Cycle, run_checkpoint};
use stillpoint_io::{Clock, JoinHandle, RealClock, spawn};
use stillpoint_store::{
    Commit, CommitLog, LogRefused, Phase, Replaced, Sink, Stamp, TableId, TxError, Worker,
    WriteRule,
};

use crate::deleted::Interrupted;
use crate::memory::MemorySink;
use crate::model::assert_same;
use crate::world::{World, entry};

const T: TableId = TableId(0);
const KEYS: usize = 200;
/// Room for the versions of about twenty records.
const POOL_BYTES: usize = 20 * 128;

fn worlds() -> impl Iterator<Item = (&'static str, Arc<World>)> {
    let stored =
        REGISTRY.iter().filter(|row| row.capabilities.cells.write == WriteRule::StoreStable);
    stored.map(|row| {
        let world = World::with_pool(row.build(), 1, Some(POOL_BYTES));
        let mut worker = world.worker(0);
        (0..KEYS).for_each(|key| put(&mut worker, key, 1));
        (row.name, Arc::new(world))
    })
}

fn put(worker: &mut Worker, key: usize, byte: u8) {
    let value = vec![byte; 20 + key];
    worker.transact(|tx| tx.put(T, &key.to_be_bytes(), &value)).expect("memory");
}

/// Overwrites all records, each in a transaction of its own.
fn overwrite(world: &Arc<World>, done: &Arc<AtomicUsize>) -> JoinHandle<()> {
    let (mut worker, done) = (world.worker(1), done.clone());
    let run = move || {
        for key in (0..KEYS).rev() {
            put(&mut worker, key, 2);
            done.fetch_add(1, SeqCst);
        }
    };
    spawn("overwrites", run).expect("a thread")
}

#[test]
fn a_write_waits_while_the_pool_is_used_up() {
    for (name, world) in worlds() {
        // Twice, so that the second one of a scheme that takes changes is one of changes.
        for _ in 0..2 {
            let done = Arc::<AtomicUsize>::default();
            let writer = Arc::<Mutex<Option<JoinHandle<()>>>>::default();
            let (begun, made, observed) = (writer.clone(), done.clone(), world.clone());
            let mut cycle = world.cycle();
            cycle.observer = Some(Arc::new(move |phase, _| {
                if phase == Phase::Complete {
                    // The scan has erased all versions, also those of the checkpoints after the first.
                    let used = observed.store.stable_pool_bytes().used_bytes;
                    assert!(used <= 8 * 128, "{used} bytes are not given back");
                }
                if phase != Phase::Capture {
                    return;
                }
                *begun.lock() = Some(overwrite(&observed, &made));
                let used = || observed.store.stable_pool_bytes().used_bytes;
                while used() < POOL_BYTES - 4 * 128 {
                    RealClock.sleep(std::time::Duration::from_micros(100));
                }
                // The scan has not begun, so that nothing gives slots back.
                RealClock.sleep(std::time::Duration::from_millis(5));
                assert!(made.load(SeqCst) < KEYS / 2, "the pool has no room for the rest");
            }));
            let (written, captured) = world.take_with(&cycle).expect("no fault was injected");
            writer.lock().take().expect("it began").join().expect("no panic");
            assert_eq!(done.load(SeqCst), KEYS, "{name}");
            assert!(captured.stable_peak_bytes <= POOL_BYTES, "{name}: {captured:?}");
            assert_same(&world.load(&entry(written)), &world.expected(captured.epoch), name);
            assert_same(&world.live(), &world.history.state(), name);
        }
    }
}

#[test]
fn a_transaction_beyond_the_pool_costs_that_checkpoint_alone() {
    for (name, world) in worlds() {
        world.take().expect("no fault was injected");
        (0..KEYS).for_each(|key| put(&mut world.worker(1), key, 2));
        let observed = world.clone();
        let mut cycle = world.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase == Phase::Capture {
                let mut worker = observed.worker(1);
                let all = worker.transact(|tx| {
                    (0..KEYS).try_for_each(|key| tx.put(T, &key.to_be_bytes(), &[3; 60]))
                });
                all.expect("it goes on");
                // The scan must not win a claim on what a commit has overwritten.
                assert_eq!(observed.unmarked(), 0);
                put(&mut worker, 0, 4);
            }
        }));
        let error = world.take_with(&cycle).expect_err("the versions do not fit");
        assert!(matches!(error, CheckpointError::StablePool { bytes: POOL_BYTES }), "{error}");
        assert_eq!(world.unmarked(), 0, "{name}");
        let (epoch, found) = world.take_and_load();
        assert_same(&found, &world.expected(epoch), name);
        assert_same(&world.live(), &world.history.state(), name);
    }
}

/// A flush of tables stops all commits, and waits for one that waits for slots. That costs the checkpoint,
/// and not the commits.
#[test]
fn a_stop_of_all_commits_does_not_wait_for_the_scan() {
    for (name, world) in worlds() {
        let done = Arc::<AtomicUsize>::default();
        let writer = Arc::<Mutex<Option<JoinHandle<()>>>>::default();
        let (begun, made, observed) = (writer.clone(), done.clone(), world.clone());
        let mut cycle = world.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase != Phase::Capture {
                return;
            }
            *begun.lock() = Some(overwrite(&observed, &made));
            let used = || observed.store.stable_pool_bytes().used_bytes;
            while used() < POOL_BYTES - 4 * 128 {
                RealClock.sleep(std::time::Duration::from_micros(100));
            }
            // The scan has not begun, so that nothing gives slots back.
            let quiesced = observed.store.driver().quiesce();
            assert!(made.load(SeqCst) < KEYS, "the pool has no room for the rest");
            drop(quiesced);
        }));
        let error = world.take_with(&cycle).expect_err("it was given up");
        assert!(matches!(error, CheckpointError::BeforeImage), "{error}");
        writer.lock().take().expect("it began").join().expect("no panic");
        assert_eq!(done.load(SeqCst), KEYS, "{name}");
        let (epoch, found) = world.take_and_load();
        assert_same(&found, &world.expected(epoch), name);
        assert_same(&world.live(), &world.history.state(), name);
    }
}

/// A log that refuses every commit.
struct Refusing;

impl CommitLog for Refusing {
    fn append(&mut self, _: &Commit<'_>) -> Result<Stamp, LogRefused> {
        Err(LogRefused::Refused("this log takes nothing".into()))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}

/// A commit beyond the pool that the log refuses costs no checkpoint.
#[test]
fn a_transaction_beyond_the_pool_that_the_log_refuses_costs_nothing() {
    for (name, world) in worlds() {
        let observed = world.clone();
        let mut cycle = world.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase == Phase::Capture {
                let log = Box::new(Refusing);
                let mut worker = Worker::new(observed.store.clone(), log).expect("a free slot");
                let refused = worker.transact(|tx| {
                    (0..KEYS).try_for_each(|key| tx.put(T, &key.to_be_bytes(), &[3; 60]))
                });
                assert!(matches!(refused, Err(TxError::Log(_))), "{refused:?}");
            }
        }));
        let (written, captured) = world.take_with(&cycle).expect("it goes on");
        assert_same(&world.load(&entry(written)), &world.expected(captured.epoch), name);
    }
}

/// No scan meets the stable versions of a table that was emptied. Their slots are free once nobody can reach
/// the table, and not only at the end of the checkpoint.
#[test]
fn slots_of_an_emptied_table_go_back() {
    for (name, world) in worlds() {
        // The second checkpoint: the pool has been reset by then. It may be one of changes.
        world.take().expect("no fault was injected");
        (0..10).for_each(|key| put(&mut world.worker(1), key, 2));
        let observed = world.clone();
        let mut cycle = world.cycle();
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase != Phase::Capture {
                return;
            }
            let store = &observed.store;
            let mut worker = observed.worker(1);
            (0..10).for_each(|key| put(&mut worker, key, 3));
            let used = || store.stable_pool_bytes().used_bytes;
            assert!(used() >= 10 * 128, "{}", used());
            let new = store.new_table(T, 1).expect("address space");
            let quiesced = store.driver().quiesce();
            store.replace_tables(&quiesced, vec![new], Replaced::Forgotten);
            drop(quiesced);
            while store.memory_returns() {
                store.maintain();
            }
            assert!(used() <= 2 * 128, "{} bytes are not given back", used());
            drop(worker);
            assert_eq!(used(), 0, "each slot was given back once");
        }));
        world.take_with(&cycle).expect(name);
    }
}

/// After a scan that panics twice, records still refer to slots, which the end of the checkpoint has made
/// free. A flush of the table gives none of them back once more.
#[test]
fn slots_are_given_back_once_after_a_scan_that_always_panics() {
    for (name, world) in worlds() {
        let (observed, store) = (world.clone(), world.store.clone());
        let panics = move || {
            if store.driver().now().phase() == Phase::Capture {
                // Unwinds like a panic, and prints no message.
                std::panic::resume_unwind(Box::new("injected panic"));
            }
        };
        let scheme = Interrupted { scheme: world.scheme().clone(), work: Box::new(panics) };
        let mut cycle = Cycle { scheme: Arc::new(scheme), threads: 1, ..world.cycle() };
        cycle.observer = Some(Arc::new(move |phase, _| {
            if phase == Phase::Capture {
                (0..5).for_each(|key| put(&mut observed.worker(1), key, 9));
            }
        }));
        let sink: Arc<dyn Sink> = Arc::new(MemorySink::default());
        let error = run_checkpoint(&cycle, &sink).expect_err("the scan panics");
        assert!(matches!(error, CheckpointError::MarksLost(_)), "{name}: {error}");
        let store = &world.store;
        let new = store.new_table(T, 1).expect("address space");
        let quiesced = store.driver().quiesce();
        store.replace_tables(&quiesced, vec![new], Replaced::Forgotten);
        drop(quiesced);
        while store.memory_returns() {
            store.maintain();
        }
        assert_eq!(store.stable_pool_bytes().used_bytes, 0, "{name}");
    }
}
