//! A thread of a replay of calls: runs records as transactions, which commit with the gsns of their
//! records.

use std::sync::Arc;

use stillpoint_format::log::WriteOp;
use stillpoint_format::{LOG_NONE, Stamp};
use stillpoint_io::catch_panic;
use stillpoint_journal::ReplayWrite;
use stillpoint_store::{
    Batch, Commit, CommitLog, KeySet, LogRefused, Mode, Slot, Store, TableId, Tx, TxError, Worker,
};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::order::{InOrder, diverged};
use super::schedule::{Runner, Schedule, Waits};
use super::{CallAgain, Calls};
use crate::error::RecoveryError;

/// The log of a record that is replayed: the commit gets its gsn.
struct LogOfReplayed(Arc<AtomicU64>);

impl CommitLog for LogOfReplayed {
    fn append(&mut self, _: &Commit<'_>) -> Result<Stamp, LogRefused> {
        // Relaxed: the same thread has stored the gsn.
        Ok(Stamp::new(self.0.load(Relaxed), LOG_NONE))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, _: Stamp) -> bool {
        true
    }

    fn orders_reads(&self) -> bool {
        false
    }
}

/// A thread's worker of the store that is being recovered.
pub(super) struct Repeater {
    worker: Worker,
    gsn: Arc<AtomicU64>,
}

impl Repeater {
    /// `None` if the store has no free worker.
    pub(super) fn new(store: &Arc<Store>) -> Option<Self> {
        let gsn = Arc::<AtomicU64>::default();
        let worker = Worker::new(store.clone(), Box::new(LogOfReplayed(gsn.clone())))?;
        Some(Self { worker, gsn })
    }

    /// Replays records until none is left, or one fails.
    pub(super) fn work(
        &mut self,
        records: &[InOrder<'_, '_>],
        calls: &dyn Calls,
        (schedule, thread): (&Schedule<RecoveryError>, usize),
    ) {
        let (mut runner, mut waits) = (Runner::new(schedule, thread), Vec::new());
        while let Some(numbers) = runner.take() {
            let first = numbers.start;
            waits.resize_with(waits.len().max(numbers.len()), Waits::default);
            let mut taken = Taken {
                first,
                records: &records[numbers],
                calls,
                schedule,
                runner: &mut runner,
                gsn: &self.gsn,
                prepared: Vec::new(),
                ends: Vec::new(),
                waits: &mut waits,
                has_declared: false,
                running: first,
            };
            let worker = &mut self.worker;
            if let Err(panic) = catch_panic("replay", || worker.execute(&mut taken)) {
                let (running, why) = (taken.running, panic.to_string());
                let error = match &records[running] {
                    InOrder::Call(call) => diverged(call, why),
                    InOrder::Writes(_) => panic.into(),
                };
                schedule.fail(running, error);
            }
        }
    }
}

/// Records that a thread has taken, as a batch of transactions.
struct Taken<'a, 's, 'm, 'r> {
    /// The number of the first record in its stretch.
    first: usize,
    records: &'a [InOrder<'m, 'r>],
    calls: &'a dyn Calls,
    schedule: &'a Schedule<RecoveryError>,
    runner: &'a mut Runner<'s, RecoveryError>,
    gsn: &'a AtomicU64,
    /// The calls that were declared, by index.
    prepared: Vec<Option<Box<dyn CallAgain + 'a>>>,
    /// The end of each record's keys among those of all the records.
    ends: Vec<usize>,
    /// Whom each of the records waits for.
    waits: &'a mut [Waits],
    /// Whether the schedule has the keys of all the records.
    has_declared: bool,
    /// The number of the record that runs.
    running: usize,
}

impl Taken<'_, '_, '_, '_> {
    fn fail(&self, index: usize, error: RecoveryError) {
        self.schedule.fail(self.first + index, error);
    }
}

impl<'a, 'm: 'a, 'r: 'a> Batch for Taken<'a, '_, 'm, 'r> {
    fn len(&self) -> usize {
        self.records.len()
    }

    /// Other threads wait until all of these records are declared, in one turn. So none runs before.
    fn keys_together(&self) -> usize {
        usize::MAX
    }

    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.running = self.first + index;
        let mut prepared = None;
        let before = keys.declared().len();
        self.prepared.truncate(index);
        self.ends.truncate(index);
        match &self.records[index] {
            InOrder::Call(call) => match self.calls.prepare(&call.call) {
                Ok(call) => {
                    call.declare(keys);
                    prepared = Some(call);
                }
                Err(why) => self.fail(index, diverged(call, why)),
            },
            InOrder::Writes(writes) => {
                for write in writes {
                    let len = match &write.write.op {
                        WriteOp::Put { label, value } => value.len() + label.deadline_bytes(),
                        _ => 0,
                    };
                    keys.push(TableId(write.write.table), write.write.key, Mode::Write, len);
                }
            }
        }
        self.prepared.push(prepared);
        let declared = keys.declared();
        declared[before..].iter().for_each(|key| self.runner.prefetch(key.hash));
        self.ends.push(declared.len());
        if self.ends.len() == self.records.len() {
            let of = |index: usize| {
                let from = if index == 0 { 0 } else { self.ends[index - 1] };
                declared[from..self.ends[index]].iter().map(|key| (key.hash, key.mode))
            };
            self.has_declared = self.runner.declare(of, self.waits);
        }
    }

    fn begins(&mut self, index: usize, _: &dyn Fn() -> usize) -> bool {
        self.running = self.first + index;
        let all = self.ends.len() == self.records.len();
        assert!(all, "a thread runs something before it has declared all that it has taken");
        // After a failure nothing runs.
        self.has_declared && self.runner.wait_for_turn(self.running, &self.waits[index])
    }

    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let record = &self.records[index];
        // Relaxed: the same thread commits.
        self.gsn.store(record.gsn(), Relaxed);
        match self.prepared[index].as_mut() {
            Some(call) => call.run(tx),
            None => (0..)
                .zip(record.writes())
                .try_for_each(|(slot, write)| apply(tx, Slot(slot), write)),
        }
    }

    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        let error = match (&self.records[index], result) {
            (InOrder::Call(_), Ok(Some(_))) | (InOrder::Writes(_), Ok(_)) => {
                return self.runner.note_ended(self.first + index);
            }
            (InOrder::Call(call), Ok(None)) => {
                diverged(call, "it has written something, and now writes nothing".to_owned())
            }
            (InOrder::Call(call), Err(error)) => {
                diverged(call, format!("it has committed, and now fails: {error}"))
            }
            (InOrder::Writes(writes), Err(source)) => RecoveryError::Apply {
                table: writes.first().map_or(0, |write| write.write.table),
                gsn: self.records[index].gsn(),
                source,
            },
        };
        self.fail(index, error);
    }
}

/// Applies a write, which is newer than what the table has. Stamps do not count: an absent key has that
/// of another key's deletion.
fn apply(tx: &mut Tx<'_>, slot: Slot, write: &ReplayWrite<'_>) -> Result<(), TxError> {
    match &write.write.op {
        WriteOp::Put { label, value } => tx.put_slot_labelled(slot, *label, value),
        WriteOp::Delete => tx.delete_slot(slot).map(drop),
        WriteOp::Patch(ranges) => ranges
            .clone()
            .try_for_each(|range| tx.patch_slot(slot, range.offset as usize, range.bytes)),
        WriteOp::Until { deadline, ranges } => {
            ranges
                .clone()
                .try_for_each(|range| tx.patch_slot(slot, range.offset as usize, range.bytes))?;
            tx.set_slot_deadline(slot, *deadline)
        }
        WriteOp::Splice(splices) => splices.clone().try_for_each(|of| {
            tx.splice_slot(slot, of.offset as usize, of.removed as usize, of.bytes)
        }),
    }
}
