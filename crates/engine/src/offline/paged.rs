//! The paged tables of a data directory that is not open, brought to the end of the logs in memory.
//!
//! A checkpoint names each page as it was when it was copied. So the pages make a state only together
//! with the logs. What the replay changes stays in memory: nothing on the disk changes.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::manifest::Manifest;
use stillpoint_io::{Disk, cpu_count};
use stillpoint_paged::Paged;
use stillpoint_recovery::Plan;
use stillpoint_store::{TableId, ValueRef};
use stillpoint_sync::lock_word::Priority;
use stillpoint_txn::{
    Discipline, KindRange, LogRefused, Operation, OperationLog, Presence, RangeBatch, TableKind,
};

use super::look::DumpVisit;
use crate::error::Error;
use crate::kinds::{KindReplay, Kinds};
use crate::paged::PagedTables;

/// The paged tables of a directory.
#[derive(Debug)]
pub(super) struct ReadTables {
    pub(super) paged: Arc<Paged>,
    kinds: Arc<Kinds>,
}

impl ReadTables {
    /// The tables with the pages that the MANIFEST names. `None` without such tables.
    ///
    /// # Errors
    /// The pages cannot be read, or are damaged.
    pub(super) fn open(disk: &dyn Disk, manifest: &Manifest) -> Result<Option<Self>, Error> {
        let tables = PagedTables::of(manifest);
        if tables.is_empty() {
            return Ok(None);
        }
        let store = (manifest.store, manifest.hash_seed);
        let paged = Paged::open_to_read(disk, store, tables.names.len(), &tables.sections())?;
        let kinds = Arc::new(Kinds::new(vec![paged.clone()])?);
        manifest.tables.iter().try_for_each(|table| kinds.add_table(table, disk))?;
        Ok(Some(Self { paged, kinds }))
    }

    /// A replay into the tables.
    pub(super) fn replay(&self, manifest: &Manifest) -> KindReplay {
        KindReplay::new(self.kinds.clone(), manifest)
    }

    /// Repeats what the logs have, and undoes what a crash has cut off.
    ///
    /// # Errors
    /// A page, or a record of a log, is damaged or cannot be read.
    pub(super) fn bring_to_end(&self, plan: &Plan) -> Result<(), Error> {
        let mut replay = self.replay(&plan.manifest);
        plan.replay_operations(cpu_count(), &mut replay)?;
        undo_losers(replay, plan)
    }

    /// Visits the records of a table, in the order of the keys.
    ///
    /// # Errors
    /// A page cannot be read, or `visit` fails.
    pub(super) fn visit(
        &self,
        table: TableId,
        name: &str,
        visit: &mut DumpVisit<'_>,
    ) -> Result<(), Error> {
        let mut part = self.paged.clone().new_part();
        let (mut batch, mut next) = (RangeBatch::default(), None::<Vec<u8>>);
        loop {
            let lower = next.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let range = KindRange { table, lower, upper: Bound::Unbounded, is_descending: false };
            part.begin(Priority::undeclared(1), Discipline::WaitDie);
            loop {
                match part.range(&range, &|| true, &mut batch)? {
                    Presence::Here(()) => break,
                    Presence::NotHere(arrival) => arrival.wait()?,
                }
            }
            part.release(None);
            for number in 0..batch.len() {
                let (key, tag, value) = batch.record(number);
                visit(name, key, ValueRef::from_bytes(tag, value)).map_err(Error::Output)?;
            }
            if batch.is_end {
                return Ok(());
            }
            next = Some(std::mem::take(&mut batch.next));
        }
    }
}

/// Undoes, in memory, the transactions that a crash has cut off.
pub(super) fn undo_losers(replay: KindReplay, plan: &Plan) -> Result<(), Error> {
    replay.undo_with(&mut Unlogged { gsn: plan.gsn_floor })
}

/// A log that gives stamps and keeps nothing.
struct Unlogged {
    gsn: u64,
}

impl OperationLog for Unlogged {
    fn append(&mut self, _: &Operation<'_>) -> Result<Stamp, LogRefused> {
        self.gsn += 1;
        Ok(Stamp::new(self.gsn, 0))
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
}

/// Refuses a directory with paged tables.
///
/// # Errors
/// [`Error::PagedTables`].
pub(super) fn refuse(dir: &Path, manifest: &Manifest, reason: &str) -> Result<(), Error> {
    let tables = PagedTables::of(manifest);
    if tables.is_empty() {
        return Ok(());
    }
    let names = tables.names.iter().map(|&name| name.to_owned()).collect();
    Err(Error::PagedTables { dir: dir.to_owned(), names, reason: reason.to_owned() })
}
