//! Empties tables, in the steps that the file of tables has for every change of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::MutexGuard;
use stillpoint_format::manifest::{Emptied, Manifest, TableEntry};
use stillpoint_store::{NewTable, Replaced, TableId, TxError};
use stillpoint_sync::{mutant, planted};

use crate::checkpoints::HeldPoint;
use crate::error::{Error, SnapshotEnd};
use crate::guards::Inside;
use crate::kinds::{Locked, LongWait, WaitLimits};
use crate::shared::Shared;

/// Empties tables: [`Engine::flush_tables`](crate::Engine::flush_tables).
pub(crate) fn empty(
    shared: &Arc<Shared>,
    tables: &[TableId],
    limits: &WaitLimits,
) -> Result<(), Error> {
    Inside::refuse_changing_tables("flush_tables", &shared.kinds)?;
    let (_changing, mut locked) = lock_to_empty(shared, tables, limits)?;
    let generation = |id: TableId| Some((id, shared.store.generation(id)? + 1));
    let next: BTreeMap<TableId, u32> = tables.iter().filter_map(|&id| generation(id)).collect();
    // Every step that can fail comes before the MANIFEST empties the tables.
    let emptied = next
        .iter()
        .map(|(&id, &generation)| shared.store.new_table(id, generation))
        .collect::<Result<Vec<NewTable>, _>>()?;
    let in_kinds: BTreeSet<TableId> = locked.iter().flat_map(|of| of.ids.clone()).collect();
    let _no_point_of_consistency = hold_point_of_consistency(shared, &next);
    let quiesced = shared.store.driver().quiesce();
    if shared.records_commits {
        // Commits before the flush must not be less durable than the flush itself.
        let flush_logs = || shared.journal.flush_all().map_err(|error| shared.note_failure(error));
        mutant!(flush_logs()?, EmptiesBeforeLogs => ());
        let gsn = last_gsn(shared);
        emptied.iter().for_each(|table| table.begin_above(gsn));
        shared.publish(|manifest| {
            let may_hold_calls = manifest.may_hold_calls();
            for entry in &mut manifest.tables {
                if let Some(&generation) = next.get(&TableId(entry.id)) {
                    entry.generation = generation;
                    if may_hold_calls {
                        entry.emptied.push(Emptied { generation, gsn });
                    } else {
                        entry.emptied.clear();
                    }
                } else if in_kinds.contains(&TableId(entry.id)) {
                    entry.generation += 1;
                    entry.private = shared.kinds.new_section(TableId(entry.id));
                }
            }
        })?;
    }
    let published = Published(shared);
    if !shared.records_commits {
        // Only the next checkpoint makes the flush durable, so the flush makes one due. Nobody may
        // see the empty tables before.
        shared.commits.lock().note_flush();
    }
    let replaced = match shared.records_commits && !shared.logs_calls_alone {
        // The MANIFEST makes the records void in every checkpoint.
        true => Replaced::Forgotten,
        // The next checkpoint makes the flush durable, like all commits. A checkpoint under way
        // that has captured everything already is published with the records. In a log of calls,
        // those of before the flush may read the records.
        false => Replaced::Captured,
    };
    shared.store.replace_tables(&quiesced, emptied, replaced);
    let now = shared.catalog.now();
    for of_kind in &mut locked {
        of_kind.empty(|table| now.table(table.0).map_or(1, |entry| entry.generation));
    }
    published.committed();
    drop(quiesced);
    if !shared.records_commits {
        // The checkpoint under way would keep the memory of old generations. The next
        // checkpoint holds the remaining records.
        shared.checkpoints.abandon();
    }
    tidy_up(shared, &now);
    Ok(())
}

/// Takes the right to change tables, and then the locks of those that are to be emptied and not in memory.
/// Like a declared transaction, this takes the locks of the kinds in their order, and no lock of the store.
///
/// A holder of such a lock may wait for the right to change tables, or for a person. So the right is given
/// back after a moment, and taken anew.
fn lock_to_empty<'s>(
    shared: &'s Shared,
    tables: &[TableId],
    limits: &WaitLimits,
) -> Result<(MutexGuard<'s, ()>, Vec<Locked<'s>>), Error> {
    let mut wait = LongWait::default();
    loop {
        let changing = shared.catalog.change_tables();
        if let Some(locked) = shared.kinds.lock_tables(tables, &shared.store, limits.leaves_held)? {
            return Ok((changing, locked));
        }
        drop(changing);
        if limits.leaves_held {
            return Err(TxError::Held.into());
        }
        wait.pause(limits)?;
    }
}

/// So many notes of tables that were emptied since the newest checkpoint make a full one due. Each flush
/// writes all notes.
const EMPTIED_NOTES_MAX: usize = 256;

/// Keeps checkpoints from their point of consistency. Then ends the open snapshot, which would lack
/// records of the tables that are emptied now.
fn hold_point_of_consistency<'a>(
    shared: &'a Shared,
    emptied: &BTreeMap<TableId, u32>,
) -> HeldPoint<'a> {
    let held = shared.checkpoints.hold_point_of_consistency();
    if !emptied.is_empty() {
        let end = || shared.checkpoints.end_view(SnapshotEnd::TablesEmptied);
        mutant!(end(), SnapshotSurvivesFlush => ());
    }
    held
}

/// Ends a flush of tables.
fn tidy_up(shared: &Shared, manifest: &Manifest) {
    shared.load.note_flush(shared);
    if notes_since_checkpoint(manifest) > EMPTIED_NOTES_MAX {
        shared.checkpoints.note_many_notes();
    }
    if !shared.config.environment.background {
        // Only this call frees the old generations.
        shared.store.maintain();
    }
}

/// Number of notes of tables that were emptied since the newest checkpoint.
fn notes_since_checkpoint(manifest: &Manifest) -> usize {
    let newest = manifest.newest_chain().pop();
    let generations = newest.map_or(&[][..], |newest| &newest.generations);
    let then = |table: &TableEntry| {
        let of_table = generations.iter().find(|then| then.table == table.id);
        of_table.map_or(0, |then| then.generation)
    };
    let since = |table: &TableEntry| {
        let then = then(table);
        table.emptied.iter().filter(|of| of.generation > then).count()
    };
    manifest.tables.iter().map(since).sum()
}

/// The greatest gsn of any commit. No commit is under way.
fn last_gsn(shared: &Shared) -> u64 {
    let lasts = shared.journal.positions_before_epoch(u64::MAX);
    lasts.iter().map(|last| last.gsn).fold(shared.floor, u64::max)
}

/// Guard between the publication of the MANIFEST and the change in memory. If the change never
/// comes, the store must fail: the next opening would lose commits to the old tables.
pub(crate) struct Published<'a>(pub(crate) &'a Shared);

impl Published<'_> {
    pub(crate) fn committed(self) {
        std::mem::forget(self);
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        self.0.fail("a change of tables is in the MANIFEST and not in memory".to_owned());
    }
}
