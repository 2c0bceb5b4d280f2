//! Recovery of a store that is served while its checkpoints are loaded (decision 0038).
//!
//! ```text
//! indexes and key maps of all parts read ─▶ logs read, their writes wait beside the store ─▶ served
//!   ─▶ keys are loaded when somebody asks for them, and all of them in the background
//!   ─▶ keys that only the logs have enter the store
//! ```

use std::sync::Arc;
use std::time::Duration;

use stillpoint_checkpoint::{Found, LoadSummary, LoadedRecord, OpenChain, SoughtKey, Visit};
use stillpoint_format::manifest::{CheckpointEntry, Manifest, TableGeneration};
use stillpoint_io::{Clock, Disk, ask_for_short_slices, go_behind, spawn};
use stillpoint_store::{
    BesideRecord, ColdRecords, FoundRecord, Store, TableId, TakeBeside, UnreadableRecord,
};
use stillpoint_sync::{mutant, planted};

use crate::error::RecoveryError;
use crate::gather::{
    enter_replayed, enter_waiting, gather, populate_indexes, read_waiting, sort_waiting,
};
use crate::gathered::RECORD_BYTES;
use crate::load::Loading;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::run::{LOOK_EVERY, RecoverySummary, load_options, loaders, reserve};

/// Longest time for which the load waits while clients ask for keys. They have waited for the start.
const FIRST_CLIENTS: Duration = Duration::from_secs(1);
/// If nobody has asked for a key within this time, the load begins.
const ASKED_WITHIN: Duration = Duration::from_millis(50);

/// A store is loaded before it is served, although the settings allow more: the reason.
pub type NotServed = &'static str;

/// The checkpoints of a served store.
#[derive(Debug)]
struct Checkpoints {
    chain: Arc<OpenChain>,
    /// The tables whose records count.
    generations: Vec<TableGeneration>,
}

impl ColdRecords for Checkpoints {
    fn may_have(&self, table: TableId, generation: u32) -> bool {
        self.generations.contains(&TableGeneration { table: table.0, generation })
    }

    fn reads_for(&self, hash: u64) -> bool {
        self.chain.reads_for(hash)
    }

    fn find(
        &self,
        table: TableId,
        generation: u32,
        hash: u64,
        key: &[u8],
        beside: &mut TakeBeside<'_>,
    ) -> Result<FoundRecord, UnreadableRecord> {
        let take = &mut |records: &[LoadedRecord<'_>]| {
            let of = |record: &LoadedRecord<'_>| (record.table, record.generation);
            records.chunk_by(|one, next| of(one) == of(next)).fold(true, |all, run| {
                let (table, generation) = of(&run[0]);
                let values = run.iter().filter_map(|record| {
                    let &LoadedRecord { hash, key, label, .. } = record;
                    Some(BesideRecord { hash, key, label, value: record.value? })
                });
                beside((TableId(table), generation), &values.collect::<Vec<_>>()) && all
            })
        };
        match self.chain.find(&SoughtKey { table: table.0, generation, hash, key }, take)? {
            Found::Nothing | Found::Deletion => Ok(None),
            Found::Value { label, value } => Ok(Some((label, value))),
        }
    }
}

/// The checkpoints that a served store has still to load.
#[derive(Debug)]
pub struct Remaining {
    chain: Arc<OpenChain>,
    manifest: Manifest,
    /// The tables with records in one of the checkpoints, and the number of these records.
    filled: Vec<(TableGeneration, u64)>,
    threads: usize,
    /// Bytes of memory that the records take, about.
    record_bytes: u64,
}

/// As [`run`](crate::run), but loads no checkpoint: the store can be served at once, and
/// [`Remaining::load`] loads the rest. The logs hold no calls. Does nothing, and says why, if the
/// checkpoints must be loaded first.
///
/// # Errors
/// As [`run`](crate::run).
pub fn run_served(
    disk: &Arc<dyn Disk>,
    plan: &Plan,
    store: &Arc<Store>,
    threads: usize,
    clock: &dyn Clock,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Result<(RecoverySummary, Remaining), NotServed>, RecoveryError> {
    let threads = threads.max(1);
    let manifest = &plan.manifest;
    let chain: Vec<CheckpointEntry> = manifest.newest_chain().into_iter().cloned().collect();
    let Some(newest) = chain.last() else { return Ok(Err("there is no checkpoint")) };
    if plan.may_undo() || chain.iter().any(|entry| entry.fuzzy) {
        return Ok(Err("a checkpoint may hold what a crash took away"));
    }
    let options = load_options(manifest);
    let generations = options.generations.clone().unwrap_or_default();
    let links: Vec<&CheckpointEntry> = chain.iter().collect();
    let Some(open) = OpenChain::open(disk, &links, &options, threads)? else {
        return Ok(Err("a checkpoint was written by an earlier release, without maps of its keys"));
    };
    let open = Arc::new(open);
    let (records, bytes) = open.newest_records_and_bytes();
    let record_bytes = bytes + bytes / 8 + records * RECORD_BYTES;
    let needed = record_bytes + open.held_bytes() as u64;
    let too_large = Ok(Err("its records may need all memory that max_memory allows"));
    if needed + plan.replay_bytes() > store.max_memory_bytes() as u64 {
        return too_large;
    }
    let mut summary = RecoverySummary { checkpoint: Some(newest.epoch), ..Default::default() };
    let room = (threads, store.max_memory_bytes() - needed as usize);
    let Some(waiting) = gather(plan, room, clock, report, &mut summary)? else {
        return too_large;
    };
    reserve(store, manifest, &chain);
    let records = Arc::new(Checkpoints { chain: open.clone(), generations });
    store.begin_load(records, waiting, needed as usize);
    let records_of = |of: TableGeneration| {
        let all = chain.iter().flat_map(|entry| &entry.table_records);
        (of, all.filter(|room| room.table == of.table).map(|room| room.records).sum())
    };
    let tables = load_options(manifest).generations.unwrap_or_default();
    let mut filled: Vec<(TableGeneration, u64)> = tables.into_iter().map(records_of).collect();
    filled.retain(|&(_, records)| records > 0);
    let manifest = manifest.clone();
    Ok(Ok((summary, Remaining { chain: open, manifest, filled, threads, record_bytes })))
}

/// Waits as long as clients ask for keys. `asked` counts these keys, and `is_over` ends the wait early.
fn wait_for_first_clients(clock: &dyn Clock, asked: impl Fn() -> u64, is_over: impl Fn() -> bool) {
    for _ in 0..FIRST_CLIENTS.as_millis() / ASKED_WITHIN.as_millis() {
        let before = asked();
        clock.sleep(ASKED_WITHIN);
        if is_over() || asked() == before {
            return;
        }
    }
}

/// Whether a table was emptied since it had this generation.
fn is_emptied(store: &Store, of: TableGeneration) -> bool {
    store.generation(TableId(of.table)).is_some_and(|now| now != of.generation)
}

impl Remaining {
    /// Bytes of the files.
    pub fn file_bytes(&self) -> u64 {
        self.chain.file_bytes()
    }

    /// Bytes of indexes and key maps.
    pub fn index_bytes(&self) -> u64 {
        self.chain.held_bytes() as u64
    }

    /// Keys that somebody has asked for, and blocks that were read for them.
    pub fn asked(&self) -> (u64, u64) {
        let counts = self.chain.counts();
        (counts.keys, counts.blocks)
    }

    /// Whether all tables with records in the checkpoints have been emptied since the start.
    pub fn is_empty(&self, store: &Store) -> bool {
        self.filled.iter().all(|&(of, _)| is_emptied(store, of))
    }

    /// Keeps memory for the records that are not loaded yet, once so many bytes of the files are. Records
    /// of emptied tables need none.
    pub fn keep_memory(&self, store: &Store, bytes_done: u64) {
        let total = self.file_bytes().max(1);
        let left = total - bytes_done.min(total);
        let (mut all, mut count) = (0, 0);
        for &(of, records) in &self.filled {
            all += records;
            count += if is_emptied(store, of) { 0 } else { records };
        }
        let count = mutant!(count, FlushKeepsMemory => all);
        let share = |whole: u64, (part, of): (u64, u64)| {
            (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
        };
        let bytes = share(share(self.record_bytes, (left, total)), (count, all));
        store.reserve_for_load(bytes as usize + self.chain.held_bytes());
    }

    /// Has all writes of the logs enter the store, each with its record, whatever else is still to be
    /// loaded. So every change since the newest checkpoint is marked in memory. `is_over` ends the work
    /// early.
    ///
    /// # Errors
    /// A record that the writes need is damaged, or they do not fit it; a disk that refuses; too little
    /// memory. The call can be repeated.
    pub fn enter_replayed(
        &self,
        store: &Arc<Store>,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), RecoveryError> {
        enter_replayed(store, self.threads, is_over)
    }

    /// Ends the load: every record is in memory, or its table was emptied.
    ///
    /// # Errors
    /// The log changes a part of a value that no checkpoint has.
    pub fn end(&self, store: &Arc<Store>) -> Result<(), RecoveryError> {
        enter_waiting(store, self.threads)?;
        store.end_load();
        Ok(())
    }

    /// Loads everything while the store is served, on threads that leave the CPU time to others. As long as
    /// clients ask for keys, up to a second, the load only prepares for them.
    /// `progress` counts the bytes and cancels the load. Ends the load as soon as all tables with records
    /// are emptied, and calls `emptied`. Then waits for the reads that were begun.
    ///
    /// # Errors
    /// Damage, or a disk that refuses. Some records are loaded then, and others can be found.
    pub fn load(
        &self,
        store: &Arc<Store>,
        clock: &Arc<dyn Clock>,
        progress: &Arc<stillpoint_checkpoint::Progress>,
        emptied: &dyn Fn(),
    ) -> Result<RecoverySummary, RecoveryError> {
        let start_ns = clock.monotonic_ns();
        let visitors: Vec<Box<dyn Visit>> = loaders(store, self.threads)?
            .into_iter()
            .map(|loader| {
                // Checkpoints with stamps are loaded before the store is served.
                Box::new(Loading { loader, gsn_max: Arc::default() }) as Box<dyn Visit>
            })
            .collect();
        let (chain, watched) = (self.chain.clone(), progress.clone());
        let (prepared, threads, clock_of_load) =
            (Arc::clone(store), self.threads, Arc::clone(clock));
        let loading = spawn("load", move || -> Result<LoadSummary, RecoveryError> {
            populate_indexes(&prepared, threads)?;
            let asked = || chain.counts().keys;
            wait_for_first_clients(&*clock_of_load, asked, || watched.is_cancelled());
            // Until this is done, each look for a key costs more, and brings fewer records into the store.
            // So these threads have the priority of clients.
            ask_for_short_slices();
            sort_waiting(&prepared, threads)?;
            read_waiting(&prepared, threads, &watched)?;
            go_behind();
            Ok(chain.load(visitors, &watched)?)
        })?;
        let mut has_ended = false;
        while !loading.is_finished() {
            if !has_ended && self.is_empty(store) {
                // Nothing of the files counts any more, so the threads of the load enter nothing.
                progress.cancel();
                self.end(store)?;
                has_ended = true;
                emptied();
            }
            if !has_ended {
                self.keep_memory(store, progress.snapshot().written_bytes);
            }
            clock.sleep(LOOK_EVERY);
        }
        let loaded = match loading.join()? {
            Err(_) if self.is_empty(store) => LoadSummary::default(),
            loaded => loaded?,
        };
        if !has_ended {
            self.end(store)?;
        }
        Ok(RecoverySummary {
            checkpoint: self.manifest.newest_chain().last().map(|newest| newest.epoch),
            records_loaded: loaded.records,
            stale: loaded.stale_records,
            checkpoint_bytes: loaded.file_bytes,
            load_time: Duration::from_nanos(clock.monotonic_ns() - start_ns),
            ..RecoverySummary::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use stillpoint_io::ManualClock;

    use super::*;

    #[test]
    fn the_load_waits_for_the_first_clients_as_long_as_they_ask() {
        let waited = |asks_until: u64, is_over: bool| {
            let (clock, keys) = (ManualClock::self_advancing(0), Cell::new(0));
            let asked = || {
                let has_asked = clock.monotonic_ns() <= asks_until;
                keys.set(keys.get() + u64::from(has_asked));
                keys.get()
            };
            wait_for_first_clients(&clock, asked, || is_over);
            Duration::from_nanos(clock.monotonic_ns())
        };
        assert_eq!(waited(u64::MAX, false), FIRST_CLIENTS);
        assert_eq!(waited(u64::MAX, true), ASKED_WITHIN);
        let some = 3 * ASKED_WITHIN;
        assert_eq!(waited(some.as_nanos() as u64, false), some + ASKED_WITHIN);
    }
}
