//! Replay of logs that hold calls, in an order that is equal to that of gsns, a serial order of all
//! transactions that write.
//!
//! ```text
//! analysis: names and versions of all calls ─▶ load: tables in the generations of the point of
//! consistency ─▶ records: a call runs again, other records write their values, each after all records
//! with smaller gsns that it has a key in common with; a table is emptied between two records
//! ```
//! A call may read what a table held before it was emptied. So the tables are loaded as they were at the
//! point of consistency, and emptied again when their time comes.

mod order;
mod schedule;
mod worker;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::log::CallToRepeat;
use stillpoint_format::manifest::{Emptied, IncarnationEntry, Manifest, TableEntry};
use stillpoint_io::{Clock, in_parallel};
use stillpoint_journal::{ReplayCall, ReplayOptions, Round};
use stillpoint_store::{KeySet, Replaced, Store, TableId, Tx, TxError};
use stillpoint_sync::{mutant, planted};

use crate::error::{ProcedureNeeded, RecoveryError};
use crate::plan::Plan;
use crate::progress::{Progress, Stage};
use crate::replay::newer_table;
use crate::run::{Operations, ROUND_BYTES, RecoverySummary};
use order::{InOrder, records_in_order};
use schedule::Schedule;
use worker::Repeater;

/// The procedures whose calls a replay makes again.
pub trait Calls: Sync {
    /// A call with decoded arguments and inputs.
    ///
    /// # Errors
    /// The procedure is not known, or its arguments or inputs cannot be read: the reason.
    fn prepare<'a>(&'a self, call: &CallToRepeat<'a>) -> Result<Box<dyn CallAgain + 'a>, String>;
}

/// A call that a replay makes again.
pub trait CallAgain {
    /// Declares the keys of the call.
    fn declare(&self, keys: &mut KeySet);
    /// Runs the call.
    ///
    /// # Errors
    /// The call fails, or writes something else than it has written.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError>;
}

/// A table is emptied after the last record with this gsn.
struct Emptying {
    gsn: u64,
    table: TableId,
    generation: u32,
}

impl Plan {
    /// The procedures whose calls the replay makes again. Reads the logs if they may hold calls.
    ///
    /// # Errors
    /// Damage, or a disk that refuses.
    pub fn procedures_needed(
        &self,
        threads: usize,
    ) -> Result<BTreeSet<ProcedureNeeded>, RecoveryError> {
        let mut needed = BTreeSet::new();
        if !self.manifest.may_hold_calls() {
            return Ok(needed);
        }
        let mut rounds = self.logs.replay(options(threads), &|_, _| 0);
        while let Some(round) = rounds.next_round()? {
            for ReplayCall { call, .. } in round.calls() {
                let is_known =
                    |of: &ProcedureNeeded| of.name == call.name && of.version == call.version;
                if !needed.iter().any(is_known) {
                    let (name, version) = (call.name.to_owned(), call.version);
                    needed.insert(ProcedureNeeded { name, version });
                }
            }
        }
        Ok(needed)
    }

    /// The tables as they were at the newest checkpoint's point of consistency, or at the beginning of
    /// the store. A replay of calls begins with these.
    pub fn tables_at_point(&self) -> Vec<TableEntry> {
        mutant!(EmptiedTooEarly => return self.manifest.tables.clone());
        let at_point = |table: &TableEntry| match self.emptied_since(table).first() {
            Some(first) => TableEntry {
                generation: first.generation - 1,
                emptied: Vec::new(),
                ..table.clone()
            },
            None => table.clone(),
        };
        self.manifest.tables.iter().map(at_point).collect()
    }

    /// The times at which a table was emptied after the point of consistency. The manifest may name
    /// earlier ones, for an older checkpoint.
    fn emptied_since<'t>(&self, table: &'t TableEntry) -> &'t [Emptied] {
        let newest = self.manifest.newest_chain().pop();
        let generations = newest.map_or(&[][..], |newest| &newest.generations);
        let then = generations.iter().find(|then| then.table == table.id);
        let then = then.map_or(0, |then| then.generation);
        let before = table.emptied.partition_point(|of| of.generation <= then);
        &table.emptied[before..]
    }

    /// The gsn up to which writes are replayed before any call is made again. Their stamps tell which of
    /// them a fuzzy checkpoint has. 0 for a checkpoint with a point of consistency.
    pub(crate) fn last_before_calls(&self) -> u64 {
        let newest = self.manifest.newest_chain().pop();
        let Some(fuzzy) = newest.filter(|newest| newest.fuzzy) else { return 0 };
        let taken_in = fuzzy.positions.iter().map(|at| at.incarnation).max();
        let is_later = |of: &&IncarnationEntry| of.calls && Some(of.number) > taken_in;
        self.manifest.incarnations.iter().find(is_later).map_or(u64::MAX, |of| of.gsn_floor)
    }

    pub(crate) fn manifest_at_point(&self) -> Manifest {
        Manifest { tables: self.tables_at_point(), ..self.manifest.clone() }
    }
}

fn options(threads: usize) -> ReplayOptions {
    ReplayOptions::new(1, ROUND_BYTES, threads)
}

/// Replays logs that hold calls. Records up to gsn `applied` have been replayed.
pub(crate) fn replay_with_calls(
    plan: &Plan,
    store: &Arc<Store>,
    (operations, (calls, applied)): (&mut dyn Operations, (&dyn Calls, u64)),
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
    summary: &mut RecoverySummary,
) -> Result<(), RecoveryError> {
    let start_ns = clock.monotonic_ns();
    let workers = (0..threads).map_while(|_| Repeater::new(store)).collect::<Vec<_>>();
    if workers.len() < threads {
        return Err(RecoveryError::NoSlot { wanted: threads, found: workers.len() });
    }
    let mut emptyings: Vec<Emptying> = plan
        .manifest
        .tables
        .iter()
        .filter(|table| table.kind.is_in_memory())
        .flat_map(|table| plan.emptied_since(table).iter().map(|at| (TableId(table.id), at)))
        .map(|(table, at)| Emptying { gsn: at.gsn, table, generation: at.generation })
        .collect();
    // The next one is the last.
    emptyings.sort_by_key(|of| std::cmp::Reverse((of.gsn, of.generation)));
    let mut replayer = Replayer { store, calls, applied, workers, emptyings };
    let mut rounds = plan.logs.replay(options(threads), &|_, _| 0);
    while let Some(round) = rounds.next_round()? {
        replayer.replay_round(&round, summary)?;
        round.operations().iter().try_for_each(|record| operations.hear(record))?;
        summary.commits_replayed += round.records();
        let (done, total) = round.progress();
        report(&Progress {
            stage: Stage::Replay,
            bytes_done: done,
            bytes_total: total,
            elapsed: Duration::from_nanos(clock.monotonic_ns() - start_ns),
        });
    }
    replayer.empty_before(u64::MAX)?;
    summary.log_bytes = plan.logs.replay_bytes();
    summary.replay_time = Duration::from_nanos(clock.monotonic_ns() - start_ns);
    Ok(())
}

struct Replayer<'a> {
    store: &'a Arc<Store>,
    calls: &'a dyn Calls,
    /// Records up to this gsn have been replayed.
    applied: u64,
    workers: Vec<Repeater>,
    /// Times at which tables were emptied, the next one last.
    emptyings: Vec<Emptying>,
}

impl Replayer<'_> {
    fn replay_round(
        &mut self,
        round: &Round<'_>,
        summary: &mut RecoverySummary,
    ) -> Result<(), RecoveryError> {
        let mut records = records_in_order(round);
        records.drain(..records.partition_point(|record| record.gsn() <= self.applied));
        mutant!(CallsOutOfOrder => records.sort_by_key(|record| (record.log(), record.gsn())));
        let mut rest = &mut records[..];
        while let Some(first) = rest.first() {
            self.empty_before(first.gsn())?;
            let next = self.emptyings.last().map_or(u64::MAX, |next| next.gsn);
            let count = rest.partition_point(|record| record.gsn() <= next);
            let (now, later) = rest.split_at_mut(count.max(1));
            self.replay_stretch(now, summary)?;
            rest = later;
        }
        Ok(())
    }

    /// Replays records between which no table is emptied.
    fn replay_stretch(
        &mut self,
        records: &mut [InOrder<'_, '_>],
        summary: &mut RecoverySummary,
    ) -> Result<(), RecoveryError> {
        let mut generations: BTreeMap<u16, Option<u32>> = BTreeMap::new();
        for record in &mut *records {
            record.retain_writes(|write| {
                let table = write.write.table;
                let now = generations
                    .entry(table)
                    .or_insert_with(|| self.store.generation(TableId(table)));
                match now.map(|now| write.write.generation.cmp(&now)) {
                    Some(Ordering::Equal) => summary.writes_replayed += 1,
                    // The table was emptied since.
                    Some(Ordering::Less) => {
                        summary.stale += 1;
                        return Ok(false);
                    }
                    Some(Ordering::Greater) | None => return Err(newer_table(write)),
                }
                Ok(true)
            })?;
        }
        let records = &*records;
        let schedule = &Schedule::new(records.len(), self.workers.len());
        let calls = self.calls;
        let work = |worker: &mut Repeater, thread| worker.work(records, calls, (schedule, thread));
        match &mut self.workers[..] {
            [only] => work(only, 0),
            workers => {
                let jobs = (0..).zip(workers).map(|(thread, worker)| move || work(worker, thread));
                let jobs = jobs.collect();
                in_parallel("replay", jobs)?;
            }
        }
        schedule.result()
    }

    /// Empties the tables that were emptied before a record with this gsn.
    fn empty_before(&mut self, gsn: u64) -> Result<(), RecoveryError> {
        while let Some(next) = self.emptyings.pop_if(|next| next.gsn < gsn) {
            let new = self.store.new_table(next.table, next.generation)?;
            let quiesced = self.store.driver().quiesce();
            self.store.replace_tables(&quiesced, vec![new], Replaced::Forgotten);
            drop(quiesced);
            self.store.maintain();
        }
        Ok(())
    }
}
