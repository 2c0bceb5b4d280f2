//! Applies rounds of log to the store, each partition of the keys by its own thread.

use std::cmp::Ordering;

use stillpoint_format::log::{Write, WriteOp};
use stillpoint_journal::{ReplayWrite, Round};
use stillpoint_store::{Loader, Replayed, TableId};
use stillpoint_sync::{mutant, planted};

use crate::error::RecoveryError;

/// Writes whose index lines are prefetched together.
const BATCH: usize = 32;

/// What the replay of a round has applied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Applied {
    pub(crate) writes: u64,
    /// Writes of emptied generations of tables.
    pub(crate) stale: u64,
}

/// Applies one partition of a round, up to gsn `last`.
pub(crate) fn apply_partition(
    loader: &mut Loader,
    round: &Round<'_>,
    partition: usize,
    last: u64,
) -> Result<Applied, RecoveryError> {
    let mut applied = Applied::default();
    let mut writes = round.partition(partition).take_while(|write| write.gsn <= last);
    let mut batch: Vec<(&ReplayWrite<'_>, u64)> = Vec::with_capacity(BATCH);
    loop {
        batch.clear();
        for write in writes.by_ref().take(BATCH) {
            let table = TableId(write.write.table);
            let hash = loader.hash(table, write.write.key);
            loader.prefetch(table, hash);
            batch.push((write, hash));
        }
        if batch.is_empty() {
            return Ok(applied);
        }
        for &(write, hash) in &batch {
            let now = loader.generation(TableId(write.write.table));
            match now.map(|now| write.write.generation.cmp(&now)) {
                Some(Ordering::Equal) => {
                    apply(loader, write, hash)?;
                    applied.writes += 1;
                }
                Some(Ordering::Less) => applied.stale += 1,
                Some(Ordering::Greater) | None => return Err(newer_table(write)),
            }
        }
    }
}

/// The record of a table, or of a generation, that the manifest does not know.
pub(crate) fn newer_table(write: &ReplayWrite<'_>) -> RecoveryError {
    let Write { table, generation, .. } = write.write;
    RecoveryError::NewerTable { log: write.log, gsn: write.gsn, table, generation }
}

fn apply(loader: &mut Loader, write: &ReplayWrite<'_>, hash: u64) -> Result<(), RecoveryError> {
    let table = write.write.table;
    let refused = |source| RecoveryError::Apply { table, gsn: write.gsn, source };
    let ranges: Vec<(usize, &[u8])>;
    let change = match &write.write.op {
        WriteOp::Put { label, value } => Replayed::Put { label: *label, value },
        WriteOp::Delete => Replayed::Delete,
        WriteOp::Patch(patches) => {
            ranges = patches.clone().map(|range| (range.offset as usize, range.bytes)).collect();
            Replayed::Patch(&ranges)
        }
        WriteOp::Until { deadline, ranges: of } => {
            ranges = of.clone().map(|range| (range.offset as usize, range.bytes)).collect();
            let until = Replayed::Until { deadline: *deadline, ranges: &ranges };
            mutant!(until, DeadlineNotReplayed => Replayed::Patch(&ranges))
        }
        WriteOp::Splice(splices) => {
            let splices = splices
                .clone()
                .map(|of| (of.offset as usize, of.removed as usize, of.bytes))
                .collect::<Vec<_>>();
            return loader
                .splice(TableId(table), hash, write.write.key, write.gsn, &splices)
                .map_err(refused);
        }
    };
    loader.apply(TableId(table), hash, write.write.key, write.gsn, change).map_err(refused)
}
