//! Checks the fields of a manifest against each other.

use std::collections::HashSet;

use super::{
    CheckpointEntry, CheckpointKind, Emptied, IncarnationEntry, KindEntry, LogPositions, Manifest,
    ManifestError, Partitioning, TableEntry, TableKind, TableRecords,
};
use crate::names::parse_part_name;
use crate::{GSN_MAX, LOG_NONE, LogGsn, PARTITIONS_LOG2_MAX};

impl Manifest {
    /// Checks that the fields fit each other.
    ///
    /// # Errors
    /// [`ManifestError::Inconsistent`] names the field and the reason.
    pub fn validate(&self) -> Result<(), ManifestError> {
        if self.next_epoch == u64::MAX {
            return inconsistent("there is no epoch after the next one".into());
        }
        self.validate_tables()?;
        self.validate_incarnations()?;
        let (mut seen, mut serials) = (HashSet::new(), HashSet::new());
        for checkpoint in &self.checkpoints {
            checkpoint.validate().map_err(|why| {
                let (epoch, kind) = (checkpoint.epoch, checkpoint.kind.as_str());
                ManifestError::Inconsistent(format!("{kind} checkpoint {epoch}: {why}"))
            })?;
            if !seen.insert((checkpoint.epoch, checkpoint.kind)) {
                return inconsistent(format!("checkpoint {} is listed twice", checkpoint.epoch));
            }
            let serial = checkpoint.serial;
            if serial >= self.next_serial || !serials.insert(serial) {
                let (epoch, next) = (checkpoint.epoch, self.next_serial);
                return inconsistent(format!(
                    "checkpoint {epoch} has serial {serial}, which is another's or not below the \
                     next one, {next}"
                ));
            }
            if checkpoint.epoch > self.next_epoch {
                let next = self.next_epoch;
                return inconsistent(format!(
                    "checkpoint {} is later than the next epoch, {next}",
                    checkpoint.epoch
                ));
            }
        }
        if !self.checkpoints.is_sorted_by_key(|checkpoint| checkpoint.epoch) {
            return inconsistent("the checkpoints are not sorted by epoch".into());
        }
        self.validate_chains()
    }

    /// Checks that each partial checkpoint has its base and continues from it.
    fn validate_chains(&self) -> Result<(), ManifestError> {
        for checkpoint in &self.checkpoints {
            let Some(epoch) = checkpoint.base else { continue };
            let Some(base) = self.at_epoch(epoch) else {
                return inconsistent(format!(
                    "partial checkpoint {} needs checkpoint {epoch}, which is not listed: the \
                     chain has a gap",
                    checkpoint.epoch
                ));
            };
            if let Some(why) = checkpoint.goes_back_behind(base) {
                return inconsistent(format!(
                    "partial checkpoint {} is older than checkpoint {epoch}, its base: {why}",
                    checkpoint.epoch
                ));
            }
        }
        Ok(())
    }

    fn validate_tables(&self) -> Result<(), ManifestError> {
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for table in &self.tables {
            if table.name.is_empty() {
                return inconsistent(format!("table {} has no name", table.id));
            }
            if let Some(what) = table.unsupported() {
                return Err(ManifestError::Unsupported { what });
            }
            if !table.emptied_in_order() {
                let (id, name) = (table.id, &table.name);
                return inconsistent(format!(
                    "table {id} ({name:?}): the times at which it was emptied do not lead to \
                     generation {}",
                    table.generation
                ));
            }
            if !ids.insert(table.id) || !names.insert(&table.name) {
                let (id, name) = (table.id, &table.name);
                return inconsistent(format!("table {id} ({name:?}) is listed twice"));
            }
        }
        self.validate_kinds()
    }

    fn validate_kinds(&self) -> Result<(), ManifestError> {
        let mut names = HashSet::from(["memory"]);
        for KindEntry { name, gsn_floor, positions } in &self.kinds {
            if name.is_empty() || !names.insert(name) {
                return inconsistent(format!("kind {name:?} is listed twice, or has no name"));
            }
            if *gsn_floor > GSN_MAX {
                return inconsistent(format!("kind {name:?}: gsn floor above 2^52"));
            }
            if let Some(why) = bad_positions(positions) {
                return inconsistent(format!("kind {name:?}: {why}"));
            }
        }
        Ok(())
    }

    fn validate_incarnations(&self) -> Result<(), ManifestError> {
        for pair in self.incarnations.windows(2) {
            let (older, newer) = (&pair[0], &pair[1]);
            if older.number >= newer.number || older.gsn_floor > newer.gsn_floor {
                let (a, b) = (older.number, newer.number);
                return inconsistent(format!("incarnations {a} and {b} are out of order"));
            }
            let Some(cut) = &older.cut else {
                return inconsistent(format!(
                    "incarnation {} is over but has no cut",
                    older.number
                ));
            };
            if let Some(beyond) = cut.iter().find(|kept| kept.gsn > newer.gsn_floor) {
                return inconsistent(format!(
                    "incarnation {} kept gsn {} of log {}, above the floor of the next, {}",
                    older.number, beyond.gsn, beyond.log, newer.gsn_floor
                ));
            }
        }
        for incarnation in &self.incarnations {
            let what = || format!("incarnation {}", incarnation.number);
            if incarnation.number == u32::MAX {
                return inconsistent(format!("{}: there is none after it", what()));
            }
            if incarnation.gsn_floor > GSN_MAX {
                return inconsistent(format!("{}: gsn floor above 2^52", what()));
            }
            if let Some(why) = incarnation.cut.as_deref().and_then(bad_positions) {
                return inconsistent(format!("{}: cut: {why}", what()));
            }
            if let Some(why) = incarnation.bad_logs() {
                return inconsistent(format!("{}: {why}", what()));
            }
        }
        if let Some(shutdown) = &self.clean_shutdown {
            if self.incarnation().map(|last| last.number) != Some(shutdown.incarnation) {
                let number = shutdown.incarnation;
                return inconsistent(format!("shut down by incarnation {number}, not the latest"));
            }
            if let Some(why) = bad_positions(&shutdown.last) {
                return inconsistent(format!("clean shutdown: {why}"));
            }
        }
        Ok(())
    }
}

impl TableEntry {
    /// The table's kind, if it is neither `memory` nor one of `kinds`.
    pub(super) fn unknown_kind(&self, kinds: &[&str]) -> Option<String> {
        let name = &self.name;
        match &self.kind {
            TableKind::Other(kind) if !kinds.contains(&kind.as_str()) => {
                Some(format!("kind {kind:?} of table {name:?}"))
            }
            TableKind::Other(_) | TableKind::Memory | TableKind::Ordered => None,
        }
    }

    /// Whether the noted generations follow each other up to the present one, at growing gsns.
    fn emptied_in_order(&self) -> bool {
        let ends = self.emptied.last().is_none_or(|last| last.generation == self.generation);
        let follows = |pair: &[Emptied]| {
            pair[0].generation.checked_add(1) == Some(pair[1].generation)
                && pair[0].gsn <= pair[1].gsn
        };
        let in_range = |of: &Emptied| of.generation > 0 && of.gsn <= GSN_MAX;
        ends && self.emptied.windows(2).all(follows) && self.emptied.iter().all(in_range)
    }

    /// The part of the manifest that this build does not know, if there is one.
    fn unsupported(&self) -> Option<String> {
        let name = &self.name;
        if let Partitioning::Other(function) = &self.partitioning {
            return Some(format!("partitioning {function:?} of table {name:?}"));
        }
        let is_alien = self.kind.is_in_memory() && self.private.is_some();
        is_alien.then(|| format!("the private section of table {name:?}"))
    }
}

impl IncarnationEntry {
    /// The reason why logs, cut and tails of the incarnation do not fit each other.
    fn bad_logs(&self) -> Option<String> {
        let kept = self.cut.as_deref().unwrap_or_default();
        if let Some(beyond) = kept.iter().find(|kept| kept.log >= self.logs) {
            return Some(format!("it kept records of log {}, of {} logs", beyond.log, self.logs));
        }
        let mut logs = HashSet::new();
        self.tails.iter().find_map(|tail| {
            let log = tail.log;
            let kept = kept.iter().find(|kept| kept.log == log);
            if !logs.insert(log) {
                Some(format!("log {log} has two ends"))
            } else if tail.made_by <= self.number {
                Some(format!("the end of log {log} was copied by incarnation {}", tail.made_by))
            } else if kept.is_none_or(|kept| kept.gsn < tail.first_gsn) {
                Some(format!("the end of log {log} begins above what was kept"))
            } else {
                None
            }
        })
    }
}

impl CheckpointEntry {
    /// The field that shows a point of consistency before that of `base`, if there is one. The base
    /// may list incarnations that no longer matter.
    fn goes_back_behind(&self, base: &CheckpointEntry) -> Option<String> {
        if self.gsn_floor < base.gsn_floor {
            return Some(format!("gsn floor {} after {}", self.gsn_floor, base.gsn_floor));
        }
        for LogPositions { incarnation, logs } in &base.positions {
            if !self.positions.iter().any(|own| own.incarnation == *incarnation) {
                continue;
            }
            // A log that is not listed is at its beginning.
            let own = |log| self.position(*incarnation, log).unwrap_or(0);
            if let Some(LogGsn { log, gsn }) = logs.iter().find(|of| own(of.log) < of.gsn) {
                let own = own(*log);
                return Some(format!(
                    "gsn {own} of log {log} in incarnation {incarnation} after {gsn}"
                ));
            }
        }
        base.generations.iter().find_map(|of| {
            let own = self.generations.iter().find(|own| own.table == of.table)?;
            (own.generation < of.generation).then(|| {
                let (table, own, of) = (of.table, own.generation, of.generation);
                format!("generation {own} of table {table} after {of}")
            })
        })
    }

    fn validate(&self) -> Result<(), String> {
        match (self.kind, self.base) {
            (CheckpointKind::Full, Some(_)) => return Err("a full one has no base".into()),
            (CheckpointKind::Partial, None) => return Err("a partial one needs a base".into()),
            (CheckpointKind::Partial, Some(base)) if base >= self.epoch => {
                return Err(format!("its base {base} is not earlier"));
            }
            _ => {}
        }
        if self.partitions_log2 > PARTITIONS_LOG2_MAX {
            return Err(format!("2^{} partitions", self.partitions_log2));
        }
        if self.gsn_floor > GSN_MAX {
            return Err("gsn floor above 2^52".into());
        }
        if let Some(why) = bad_positions(&self.active) {
            return Err(format!("active: {why}"));
        }
        if !self.active.is_empty() && !self.fuzzy {
            return Err("commits are active, though it is not fuzzy".into());
        }
        let mut files = HashSet::new();
        let mut records = 0u64;
        for part in &self.parts {
            if parse_part_name(&part.file).is_none() || !files.insert(&part.file) {
                return Err(format!("bad or repeated part name {:?}", part.file));
            }
            records = records.saturating_add(part.records);
        }
        if records != self.records {
            let stated = self.records;
            return Err(format!("its parts have {records} records, it states {stated}"));
        }
        let mut tables = HashSet::new();
        let mut of_tables = 0u64;
        for TableRecords { table, records } in &self.table_records {
            if !tables.insert(table) {
                return Err(format!("records of table {table} are listed twice"));
            }
            of_tables = of_tables.saturating_add(*records);
        }
        if of_tables != self.records {
            let stated = self.records;
            return Err(format!("its tables have {of_tables} records, it states {stated}"));
        }
        let mut tables = HashSet::new();
        if let Some(twice) = self.generations.iter().find(|entry| !tables.insert(entry.table)) {
            return Err(format!("two generations of table {}", twice.table));
        }
        let mut incarnations = HashSet::new();
        for positions in &self.positions {
            if !incarnations.insert(positions.incarnation) {
                return Err(format!("two positions in incarnation {}", positions.incarnation));
            }
            if let Some(why) = bad_positions(&positions.logs) {
                return Err(format!("positions in incarnation {}: {why}", positions.incarnation));
            }
        }
        Ok(())
    }
}

/// Checks that each log is listed at most once, with possible gsns.
fn bad_positions(positions: &[LogGsn]) -> Option<String> {
    let mut logs = HashSet::new();
    positions.iter().find_map(|position| {
        let LogGsn { log, gsn } = *position;
        if log == LOG_NONE || gsn > GSN_MAX {
            Some(format!("impossible position {log}@{gsn}"))
        } else if !logs.insert(log) {
            Some(format!("log {log} is listed twice"))
        } else {
            None
        }
    })
}

fn inconsistent(why: String) -> Result<(), ManifestError> {
    Err(ManifestError::Inconsistent(why))
}
