//! Tests of checkpoints that fail. The previous checkpoint stays, nothing is lost, and the next
//! checkpoint is right.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_checkpoint::{CheckpointError, Cycle, Observer, Progress};
use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_format::names::{CheckpointKind, checkpoint_dir};
use stillpoint_io::{Call, Fault, FaultPlan, Lasts};
use stillpoint_store::{Phase, PointOfConsistency, TableId, Worker};

use crate::bank::{Share, rows_that_take_checkpoints};
use crate::model::{State, assert_same};
use crate::world::{World, entry, may_commit};

const TABLE: TableId = TableId(0);
const KEYS: u32 = 400;

/// A world with some records, and a worker that changes some at each phase of a checkpoint.
struct Busy {
    world: World,
    worker: Arc<Mutex<Worker>>,
    point: Option<PointOfConsistency>,
}

/// Gives a record a value of this epoch, or deletes every fifth record.
fn put(worker: &mut Worker, number: u32, epoch: u64) {
    let key = number.to_be_bytes();
    let mut value = epoch.to_le_bytes().to_vec();
    value.resize(8 + number as usize % 150, number as u8);
    let deletes = epoch > 0 && (u64::from(number) + epoch).is_multiple_of(5);
    let done = worker.transact(|tx| match deletes {
        true => tx.delete(TABLE, &key).map(|_| ()),
        false => tx.put_tagged(TABLE, &key, number as u8, &value),
    });
    done.expect("memory");
}

impl Busy {
    fn new(row: &stillpoint_checkpoint::Row, seed: u64) -> Self {
        let world = World::new(row, seed);
        let worker = Arc::new(Mutex::new(world.worker(0)));
        let busy = Self { world, worker, point: row.capabilities.point };
        for number in 0..KEYS {
            put(&mut busy.worker.lock(), number, 0);
        }
        let large = vec![7; 300_000];
        busy.worker
            .lock()
            .transact(|tx| tx.put_tagged(TABLE, b"large", 1, &large))
            .expect("memory");
        busy
    }

    /// A cycle in each of whose phases the worker changes a seventh of the records, a different
    /// seventh each time.
    fn cycle(&self) -> Cycle {
        let (worker, point) = (self.worker.clone(), self.point);
        let observer: Observer = Arc::new(move |phase, epoch| {
            if !may_commit(point, phase) {
                return;
            }
            let mut worker = worker.lock();
            for number in (phase as u32..KEYS).step_by(7) {
                put(&mut worker, number, epoch);
            }
            let key = format!("large {}", phase as u8);
            worker
                .transact(|tx| {
                    tx.put_tagged(TABLE, key.as_bytes(), 1, &vec![phase as u8; 200_000])?;
                    tx.patch(TABLE, b"large", 150_000, &[epoch as u8; 20])
                })
                .expect("memory");
        });
        Cycle { observer: Some(observer), ..self.world.cycle() }
    }

    /// Calls that change the disk so far.
    fn calls(&self) -> u64 {
        let all = self.world.sim.call_counts();
        all.of(Call::Write) + all.of(Call::Open) + all.of(Call::Sync) + all.of(Call::CreateDir)
    }

    /// Takes a checkpoint, and checks its content.
    fn take(&self, context: &str) -> (CheckpointEntry, State) {
        let (written, _) = self
            .world
            .take_with(&self.cycle())
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let expected = self.world.expected(written.epoch);
        let entry = entry(written);
        assert_same(&self.world.load(&entry), &expected, context);
        (entry, expected)
    }

    /// Takes a checkpoint that must fail, and checks that it left no files behind.
    fn fail(&self, cycle: &Cycle, context: &str) -> CheckpointError {
        let epoch = self.world.store.driver().now().epoch() + 1;
        let error = match self.world.take_with(cycle) {
            Ok(_) => panic!("{context}: it did not fail"),
            Err(error) => error,
        };
        assert_eq!(self.world.store.driver().now().phase(), Phase::Rest, "{context}");
        assert_eq!(self.world.unmarked(), 0, "{context}: unmarked records are left");
        self.world.sim.clear_faults();
        for kind in [CheckpointKind::Full, CheckpointKind::Partial] {
            let dir = checkpoint_dir(epoch, kind);
            let left = self.world.disk.exists(Path::new(&dir)).expect("a disk without faults");
            assert!(!left, "{context}: files are left");
        }
        error
    }
}

/// Number of calls that change the disk in one checkpoint.
fn sites(busy: &Busy) -> u64 {
    let before = busy.calls();
    busy.take("without a fault");
    busy.calls() - before
}

#[test]
fn a_failed_call_costs_that_checkpoint_and_nothing_else() {
    let share = Share::of_run();
    for row in rows_that_take_checkpoints() {
        let busy = Busy::new(row, 3);
        let (mut previous, mut expected) = busy.take("the first");
        let mut tried = 0;
        let calls = vec![Call::Write, Call::Open, Call::Sync, Call::CreateDir];
        for fault in [Fault::InputOutput, Fault::DiskFull] {
            for nth in (1..=sites(&busy)).filter(|&nth| share.has(nth)) {
                let context = format!("{}, {fault:?} at call {nth}", row.name);
                let before = busy.calls();
                busy.world.sim.inject(FaultPlan {
                    calls: calls.clone(),
                    nth,
                    fault,
                    lasts: Lasts::Once,
                });
                // A run may make fewer calls than the counted run: the order of threads differs,
                // and a checkpoint of changes writes less.
                match busy.world.take_with(&busy.cycle()) {
                    Ok((written, _)) => {
                        busy.world.sim.clear_faults();
                        let made = busy.calls() - before;
                        assert!(made < nth, "{context}: {made} calls, and it did not fail");
                        expected = busy.world.expected(written.epoch);
                        previous = entry(written);
                        continue;
                    }
                    Err(CheckpointError::Disk(error)) => {
                        assert_eq!(error.is_disk_full(), fault == Fault::DiskFull, "{context}");
                    }
                    Err(error) => panic!("{context}: {error}"),
                }
                busy.world.sim.clear_faults();
                assert_eq!(busy.world.unmarked(), 0, "{context}: unmarked records");
                assert_same(&busy.world.load(&previous), &expected, &context);
                tried += 1;
                if tried % 4 == 0 {
                    (previous, expected) = busy.take(&context);
                }
            }
        }
        busy.take("the last");
    }
}

#[test]
fn a_failed_flush_of_a_directory_is_reported() {
    for row in rows_that_take_checkpoints() {
        for nth in 1..=3 {
            let busy = Busy::new(row, 4);
            let (previous, expected) = busy.take("the first");
            busy.world.sim.inject(FaultPlan {
                calls: vec![Call::SyncDir],
                nth,
                fault: Fault::InputOutput,
                lasts: Lasts::Once,
            });
            let error = busy.fail(&busy.cycle(), row.name);
            // The first directory belongs to one checkpoint. The other two serve every checkpoint,
            // so their failure is fatal.
            assert_eq!(error.is_fatal(), nth > 1, "{error}");
            assert_same(&busy.world.load(&previous), &expected, row.name);
        }
    }
}

/// The disk is full, and later has room again. Reads and writes of the store go on meanwhile.
#[test]
fn a_full_disk_is_no_end() {
    for row in rows_that_take_checkpoints() {
        let busy = Busy::new(row, 5);
        let (previous, expected) = busy.take("the first");
        let used = busy.world.sim.used_bytes();
        busy.world.sim.set_capacity(Some(used + 100_000));
        let error = busy.fail(&busy.cycle(), row.name);
        assert!(matches!(&error, CheckpointError::Disk(error) if error.is_disk_full()));
        assert_same(&busy.world.load(&previous), &expected, row.name);
        busy.world.sim.set_capacity(None);
        busy.take("with room again");
    }
}

/// Cancels a checkpoint in each phase. In CAPTURE only some of the records have their marks by
/// then.
pub(crate) fn cancel_everywhere(row: &stillpoint_checkpoint::Row, plant: &dyn Fn(&World)) {
    let busy = Busy::new(row, 6);
    plant(&busy.world);
    for at in [Phase::Prepare, Phase::Resolve, Phase::Capture, Phase::Complete] {
        let context = format!("{}, cancelled in {at:?}", row.name);
        // No later transaction writes this record. If the failed checkpoint loses its mark, later
        // checkpoints lack the record.
        put(&mut busy.worker.lock(), 10_000 + at as u32, 0);
        let mut cycle = busy.cycle();
        cycle.progress = Arc::new(Progress::default());
        let (deeds, progress) = (cycle.observer.take(), cycle.progress.clone());
        cycle.observer = Some(Arc::new(move |phase, epoch| {
            if let Some(deeds) = &deeds {
                deeds(phase, epoch);
            }
            if phase == at {
                progress.cancel();
            }
        }));
        if at == Phase::Complete {
            // Too late to cancel: everything is captured.
            let taken = busy.world.take_with(&cycle);
            assert!(taken.is_ok(), "{context}");
        } else {
            let error = busy.fail(&cycle, &context);
            assert!(matches!(error, CheckpointError::Cancelled), "{context}: {error}");
        }
        busy.take(&format!("after {context}"));
        busy.take(&format!("second after {context}"));
    }
}

#[test]
fn a_cancelled_checkpoint_is_walked_to_its_end() {
    for row in rows_that_take_checkpoints() {
        cancel_everywhere(row, &|_| {});
    }
}

#[test]
fn what_cannot_begin_changes_nothing() {
    for row in rows_that_take_checkpoints() {
        let busy = Busy::new(row, 7);
        let epoch = busy.world.store.driver().now().epoch();
        let progress = Arc::new(Progress::default());
        progress.cancel();
        let cycle = Cycle { progress, ..busy.world.cycle() };
        let error = busy.fail(&cycle, "cancelled before");
        assert!(matches!(error, CheckpointError::Cancelled));
        let read_sections = busy.world.store.driver().read_sections();
        let slots: Vec<usize> = std::iter::from_fn(|| read_sections.claim()).collect();
        let taken = busy.world.take();
        assert!(matches!(&taken, Err(CheckpointError::NoSlot { slots: 16 })), "{taken:?}");
        for slot in slots {
            read_sections.unclaim(slot);
        }
        let permit = busy.world.store.driver().try_permit();
        assert!(matches!(busy.world.take(), Err(CheckpointError::Busy)));
        drop(permit);
        assert_eq!(busy.world.store.driver().now().epoch(), epoch);
        busy.take("then");
    }
}
