//! Reads everything that replay would apply, without a store.

use std::collections::HashMap;
use std::sync::Arc;

use stillpoint_checkpoint::{LoadOptions, for_each_record};
use stillpoint_format::DecodeError;
use stillpoint_format::log::{CallToRepeat, LoggedCall, WriteOp};
use stillpoint_format::manifest::{Manifest, TableEntry, TableGeneration};
use stillpoint_io::Disk;
use stillpoint_journal::{
    BeyondCut, OperationRecord, ReplayCall, ReplayOperation, ReplayOptions, ReplayWrite, ScanError,
};
use stillpoint_store::TxError;

use crate::error::RecoveryError;
use crate::plan::Plan;
use crate::replay::newer_table;
use crate::run::{Operations, ROUND_BYTES, unknown_kind};

/// Keys whose values the logs change in part, by table.
type Patched = HashMap<(u16, Vec<u8>), Length>;

/// Knowledge of the length of a value, in bytes.
#[derive(Clone, Copy, Debug)]
enum Length {
    /// The unknown length of the checkpoint's value. The length must be at least `needed`, and the
    /// logs have written bytes up to `reached`. Splices have made the value longer by `added`.
    OfCheckpoint { needed: usize, reached: usize, added: isize, gsn: u64 },
    /// The exact length. `None` if the key was deleted.
    Known(Option<usize>),
}

impl Length {
    /// The knowledge after a write to bytes of the value.
    fn patched(self, ranges: &[(usize, usize)], gsn: u64) -> Result<Self, TxError> {
        let mut length = self;
        for &(offset, bytes) in ranges {
            let end = offset + bytes;
            length = match length {
                Length::Known(Some(len)) if offset <= len => Length::Known(Some(len.max(end))),
                Length::Known(len) => {
                    return Err(TxError::PatchOutsideValue { offset, len: len.unwrap_or(0) });
                }
                Length::OfCheckpoint { needed, reached, added, .. } => {
                    let needed = if offset > reached {
                        needed.max(offset.saturating_add_signed(-added))
                    } else {
                        needed
                    };
                    Length::OfCheckpoint { needed, reached: reached.max(end), added, gsn }
                }
            };
        }
        Ok(length)
    }

    /// The knowledge after bytes of the value were replaced: offset, number of the replaced bytes, and
    /// number of the bytes that replace them.
    fn spliced(self, splices: &[(usize, usize, usize)], gsn: u64) -> Result<Self, TxError> {
        let mut length = self;
        for &(offset, removed, bytes) in splices {
            let end = offset + removed;
            length = match length {
                Length::Known(Some(len)) if end <= len => {
                    Length::Known(Some(len - removed + bytes))
                }
                Length::Known(len) => {
                    return Err(TxError::PatchOutsideValue { offset: end, len: len.unwrap_or(0) });
                }
                Length::OfCheckpoint { needed, reached, added, .. } => {
                    let of_checkpoint = end.saturating_add_signed(-added);
                    let needed = if end > reached { needed.max(of_checkpoint) } else { needed };
                    let reached = reached.max(end) - removed + bytes;
                    let added = added + bytes as isize - removed as isize;
                    Length::OfCheckpoint { needed, reached, added, gsn }
                }
            };
        }
        Ok(length)
    }
}

/// Options of a replay that reads every write, in one partition.
pub(crate) fn read_all(threads: usize) -> ReplayOptions {
    ReplayOptions::new(1, ROUND_BYTES, threads)
}

impl Plan {
    /// Reads every record that replay would apply. The record must decode, the manifest must know
    /// its tables, and changed bytes of a value must lie inside it. Takes memory for the keys whose
    /// values the logs change in part. Before-images are not read. Of operations on tables of other
    /// kinds, the tables alone are looked at: [`replay_operations`](Self::replay_operations) makes them.
    ///
    /// # Errors
    /// Damage, a record of an unknown table, a change of bytes beyond the end of a value, or a disk
    /// that refuses. [`RecoveryError::UnknownKind`] for an operation on a table in memory.
    pub fn verify_records(
        &self,
        disk: &Arc<dyn Disk>,
        threads: usize,
    ) -> Result<(), RecoveryError> {
        let mut patched = Patched::new();
        self.each_write(threads, |write| {
            if !is_known(&self.manifest, write) {
                return Err(newer_table(write));
            }
            let needs_value = !matches!(write.write.op, WriteOp::Put { .. } | WriteOp::Delete);
            if needs_value && is_current(&self.manifest, write) {
                let gsn = write.gsn;
                let of_checkpoint = Length::OfCheckpoint { needed: 0, reached: 0, added: 0, gsn };
                patched.insert((write.write.table, write.write.key.to_vec()), of_checkpoint);
            }
            Ok(())
        })?;
        // What a call writes shows only when it is made again.
        if patched.is_empty() || !self.procedures_needed(threads)?.is_empty() {
            return Ok(());
        }
        self.each_write(threads, |write| self.follow_length(&mut patched, write))?;
        self.look_up(&**disk, patched)
    }

    /// Decodes the before-images of all records that are kept. Also decodes those beyond the cut with which
    /// a start would undo.
    ///
    /// # Errors
    /// Damage, or a disk that refuses.
    pub fn verify_before_images(&self, threads: usize) -> Result<(), RecoveryError> {
        let options = ReplayOptions { checks_before_images: true, ..read_all(threads) };
        let mut rounds = self.logs.replay(options, &|_, _| 0);
        while rounds.next_round()?.is_some() {}
        for record in self.logs.beyond_cut() {
            for image in record.before_images() {
                image.map_err(|source| malformed(record, source))?;
            }
        }
        Ok(())
    }

    /// Visits the calls that the kept records name, in gsn order: log, gsn and call.
    ///
    /// # Errors
    /// Damage, or a disk that refuses.
    pub fn each_call(
        &self,
        threads: usize,
        visit: &mut dyn FnMut(u8, u64, &LoggedCall<'_>),
    ) -> Result<(), RecoveryError> {
        let options = ReplayOptions { with_calls: true, ..read_all(threads) };
        let mut rounds = self.logs.replay(options, &|_, _| 0);
        while let Some(round) = rounds.next_round()? {
            let mut calls: Vec<(u8, u64, LoggedCall<'_>)> = Vec::new();
            for ReplayOperation { log, gsn, record } in round.operations() {
                if let OperationRecord::Call(call) = record {
                    calls.push((*log, *gsn, *call));
                }
            }
            for ReplayCall { log, gsn, call } in round.calls() {
                let CallToRepeat { name, version, inputs, arguments, .. } = call;
                let call = LoggedCall { name, version: *version, arguments, inputs };
                calls.push((*log, *gsn, call));
            }
            calls.sort_by_key(|&(log, gsn, _)| (gsn, log));
            calls.iter().for_each(|(log, gsn, call)| visit(*log, *gsn, call));
        }
        Ok(())
    }

    fn each_write(
        &self,
        threads: usize,
        mut visit: impl FnMut(&ReplayWrite<'_>) -> Result<(), RecoveryError>,
    ) -> Result<(), RecoveryError> {
        let mut rounds = self.logs.replay(read_all(threads), &|_, _| 0);
        while let Some(round) = rounds.next_round()? {
            round.operations().iter().try_for_each(|record| self.verify_operation(record))?;
            round.partition(0).try_for_each(&mut visit)?;
        }
        Ok(())
    }

    /// Whether the manifest knows the table of an operation.
    fn verify_operation(&self, record: &ReplayOperation<'_>) -> Result<(), RecoveryError> {
        let OperationRecord::Operation(operation) = &record.record else { return Ok(()) };
        let (log, gsn) = (record.log, record.gsn);
        let (table, generation) = (operation.table, operation.generation);
        match self.manifest.table(table) {
            Some(known) if known.kind.is_in_memory() => Err(unknown_kind(record)),
            Some(known) if generation <= known.generation => Ok(()),
            _ => Err(RecoveryError::NewerTable { log, gsn, table, generation }),
        }
    }

    /// Gives `operations` all records on tables of other kinds that replay would give, in gsn order, and
    /// nothing else of the logs. Needs no store.
    ///
    /// # Errors
    /// Damage, a disk that refuses, or an error of `operations`.
    pub fn replay_operations(
        &self,
        threads: usize,
        operations: &mut dyn Operations,
    ) -> Result<(), RecoveryError> {
        let mut rounds = self.logs.replay(read_all(threads), &|_, _| 0);
        while let Some(round) = rounds.next_round()? {
            round.operations().iter().try_for_each(|record| operations.hear(record))?;
        }
        Ok(())
    }

    fn follow_length(
        &self,
        patched: &mut Patched,
        write: &ReplayWrite<'_>,
    ) -> Result<(), RecoveryError> {
        let (table, gsn) = (write.write.table, write.gsn);
        let length = patched.get_mut(&(table, write.write.key.to_vec()));
        let Some(length) = length.filter(|_| is_current(&self.manifest, write)) else {
            return Ok(());
        };
        *length = match &write.write.op {
            WriteOp::Put { value, .. } => Length::Known(Some(value.len())),
            WriteOp::Delete => Length::Known(None),
            WriteOp::Patch(ranges) | WriteOp::Until { ranges, .. } => {
                let ranges = ranges.clone().map(|of| (of.offset as usize, of.bytes.len()));
                let ranges: Vec<_> = ranges.collect();
                let patched = length.patched(&ranges, gsn);
                patched.map_err(|source| RecoveryError::Apply { table, gsn, source })?
            }
            WriteOp::Splice(splices) => {
                let splices = splices
                    .clone()
                    .map(|of| (of.offset as usize, of.removed as usize, of.bytes.len()))
                    .collect::<Vec<_>>();
                let spliced = length.spliced(&splices, gsn);
                spliced.map_err(|source| RecoveryError::Apply { table, gsn, source })?
            }
        };
        Ok(())
    }

    /// Compares the lengths of values that records of patches presuppose with those of the values
    /// in the checkpoints. A difference is damage.
    fn look_up(&self, disk: &dyn Disk, mut patched: Patched) -> Result<(), RecoveryError> {
        let generation =
            |of: &TableEntry| TableGeneration { table: of.id, generation: of.generation };
        let options = LoadOptions {
            store: self.manifest.store,
            hash_seed: self.manifest.hash_seed,
            generations: Some(self.manifest.tables.iter().map(generation).collect()),
        };
        if self.manifest.newest_chain().iter().any(|entry| entry.fuzzy) {
            // A value in a fuzzy checkpoint may be newer than the patch, and of another length.
            return Ok(());
        }
        patched.retain(|_, length| matches!(length, Length::OfCheckpoint { .. }));
        let mut found: HashMap<(u16, Vec<u8>), Option<usize>> = HashMap::new();
        for entry in self.manifest.newest_chain() {
            for_each_record(disk, entry, &options, &mut |record| {
                let key = (record.table, record.key.to_vec());
                if patched.contains_key(&key) {
                    found.insert(key, record.value.map(<[u8]>::len));
                }
                Ok(())
            })?;
        }
        for (key, length) in patched {
            let there = found.get(&key).copied().flatten();
            if let Length::OfCheckpoint { needed, gsn, .. } = length
                && there.is_none_or(|len| len < needed)
            {
                let len = there.unwrap_or(0);
                let source = TxError::PatchOutsideValue { offset: needed, len };
                return Err(RecoveryError::Apply { table: key.0, gsn, source });
            }
        }
        Ok(())
    }
}

/// The error of a record beyond the cut whose before-images do not decode.
pub(crate) fn malformed(record: &BeyondCut, source: DecodeError) -> ScanError {
    ScanError::Malformed { path: record.path.clone(), source }
}

fn is_known(manifest: &Manifest, write: &ReplayWrite<'_>) -> bool {
    let table = manifest.table(write.write.table);
    table.is_some_and(|table| write.write.generation <= table.generation)
}

/// Whether a write is of the table's present generation. A table that is emptied gets a new
/// generation.
fn is_current(manifest: &Manifest, write: &ReplayWrite<'_>) -> bool {
    let table = manifest.table(write.write.table);
    table.is_some_and(|table| write.write.generation == table.generation)
}
