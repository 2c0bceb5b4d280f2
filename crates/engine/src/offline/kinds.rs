//! The tables of other kinds in a data directory that is not open, brought to the end of the logs in memory.
//!
//! A checkpoint of such a kind is no state of its tables by itself, but only together with the logs. What the
//! replay changes stays in memory: nothing on the disk changes.

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
    Discipline, KindRange, LogRefused, Operation, OperationLog, Presence, RangeBatch,
};

use super::look::DumpVisit;
use crate::error::Error;
use crate::kinds::{KindReplay, Kinds, OF_ENGINE, OfEngine, TablesOfKind};
use crate::paged;

/// The tables of other kinds in a directory.
#[derive(Debug)]
pub(super) struct ReadTables {
    /// The kinds that have tables.
    pub(super) of_engine: OfEngine,
    kinds: Arc<Kinds>,
}

/// The paged tables with the pages that the MANIFEST names. `None` without such tables.
fn open_paged(disk: &dyn Disk, manifest: &Manifest) -> Result<Option<Arc<Paged>>, Error> {
    let tables = TablesOfKind::of(manifest, paged::KIND_NAME);
    if tables.is_empty() {
        return Ok(None);
    }
    let store = (manifest.store, manifest.hash_seed);
    Ok(Some(Paged::open_to_read(disk, store, tables.names.len(), &tables.sections())?))
}

impl ReadTables {
    /// The tables with what the MANIFEST names. `None` without such tables.
    ///
    /// # Errors
    /// The pages cannot be read, or are damaged.
    pub(super) fn open(disk: &dyn Disk, manifest: &Manifest) -> Result<Option<Self>, Error> {
        let (paged, siren) =
            (open_paged(disk, manifest)?, crate::siren::open_to_read(disk, manifest)?);
        if paged.is_none() && siren.is_none() {
            return Ok(None);
        }
        let of_engine = OfEngine { paged, siren };
        let kinds = Kinds::with_those_of_engine(Vec::new(), &of_engine)?;
        manifest.tables.iter().try_for_each(|table| kinds.add_table(table, disk))?;
        Ok(Some(Self { of_engine, kinds }))
    }

    /// A replay into the tables.
    pub(super) fn replay(&self, manifest: &Manifest) -> KindReplay {
        KindReplay::new(self.kinds.clone(), manifest, cpu_count(), None)
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
        let mut part = self.kinds.kind_of(table)?.clone().new_part();
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

/// Ends a replay, and undoes, in memory, the transactions that a crash has cut off.
pub(super) fn undo_losers(mut replay: KindReplay, plan: &Plan) -> Result<(), Error> {
    replay.end()?;
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

/// Refuses a directory with tables of other kinds than memory.
///
/// # Errors
/// [`Error::OtherKinds`].
pub(super) fn refuse(dir: &Path, manifest: &Manifest, reason: &str) -> Result<(), Error> {
    for kind in OF_ENGINE {
        let tables = TablesOfKind::of(manifest, kind);
        if !tables.is_empty() {
            let names = tables.names.iter().map(|&name| name.to_owned()).collect();
            let (dir, reason) = (dir.to_owned(), reason.to_owned());
            return Err(Error::OtherKinds { dir, kind, names, reason });
        }
    }
    Ok(())
}
