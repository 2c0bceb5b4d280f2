//! The share of kinds of tables in a checkpoint: sections of the MANIFEST, and holds on the logs.
//!
//! ```text
//! positions ─▶ each kind writes its files ─▶ all logs flushed ─▶ MANIFEST names positions, sections
//!                                                                ─▶ kinds hold the logs from there on
//! ```

use std::collections::HashMap;

use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{IncarnationEntry, KindEntry, Manifest};
use stillpoint_journal::{Hold, Journal, JournalError};
use stillpoint_store::{TableId, TxError};
use stillpoint_sync::{mutant, planted};

use crate::error::Error;
use crate::kinds::Kinds;
use crate::shared::Shared;

/// The new sections and log positions of the kinds that take part in a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct OfKinds {
    entries: Vec<KindEntry>,
    /// The sections, each for a generation of its table.
    sections: HashMap<TableId, (String, u32)>,
    /// The numbers of the kinds that have given anything.
    asked: Vec<usize>,
}

/// Asks each kind for its part in a checkpoint.
///
/// # Errors
/// A kind could not write its files; all kinds hear that the checkpoint is given up.
pub(crate) fn begin(shared: &Shared) -> Result<OfKinds, Error> {
    if shared.kinds.is_empty() {
        return Ok(OfKinds::default());
    }
    shared.open.end_oldest_in_time();
    let mut given = OfKinds::default();
    let too_early = mutant!(None, GenerationsBeforePositions => Some(generations(shared)));
    for (number, kind) in shared.kinds.kinds.iter().enumerate() {
        let before = shared.open.positions();
        // A table that is emptied or made between both counts as it is then, and the logs have all its
        // commits behind the positions. The other way round, it would get no section, and lose those
        // before the positions.
        let generations = too_early.clone().unwrap_or_else(|| generations(shared));
        let sections = kind.checkpoint(&*shared.disk).inspect_err(|error| {
            given.end(shared, false);
            note_failure(shared, error);
        })?;
        let positions = mutant!(before, KindPositionTooLate => shared.open.positions());
        let Some(sections) = sections else { continue };
        given.asked.push(number);
        given.sections.extend(sections.into_iter().filter_map(|(id, section)| {
            generations.get(&id).map(|&generation| (id, (section, generation)))
        }));
        let (name, gsn_floor) = (kind.name().to_owned(), shared.floor);
        given.entries.push(KindEntry { name, gsn_floor, positions });
    }
    Ok(given)
}

/// Fails the store after a failed flush of a kind's file: no further checkpoint would be taken, and the logs
/// would grow.
fn note_failure(shared: &Shared, error: &TxError) {
    if let TxError::Abandoned(reason) = error
        && stillpoint_siren::is_in_doubt(&**reason)
    {
        shared.fail(reason.to_string());
    }
}

impl OfKinds {
    /// Puts the sections and positions into the MANIFEST.
    pub(crate) fn publish(&self, manifest: &mut Manifest) {
        for entry in &self.entries {
            manifest.kinds.retain(|known| known.name != entry.name);
            manifest.kinds.push(entry.clone());
        }
        for table in &mut manifest.tables {
            let id = TableId(table.id);
            // If a table was emptied meanwhile, its files hold records of its old generation, which
            // do not count.
            if let Some((section, generation)) = self.sections.get(&id)
                && *generation == table.generation
            {
                table.private = Some(section.clone());
            }
        }
    }

    /// Positions of the logs before which no kind that took part needs a record.
    pub(crate) fn positions(&self) -> Vec<LogGsn> {
        let mut all = self.entries.iter().map(|entry| entry.positions.clone());
        let first = all.next().unwrap_or_default();
        all.fold(first, |mut least, next| {
            let pairs = least.iter_mut().zip(next);
            pairs.for_each(|(least, next)| least.gsn = least.gsn.min(next.gsn));
            least
        })
    }

    /// Tells the kinds how the checkpoint has ended.
    pub(crate) fn end(&self, shared: &Shared, is_published: bool) {
        for &number in &self.asked {
            shared.kinds.kinds[number].checkpoint_ended(&*shared.disk, is_published);
        }
    }

    /// After the publication: notes from which log positions on each kind that took part needs the
    /// logs.
    pub(crate) fn hold(&self, shared: &Shared) -> Result<(), JournalError> {
        let kinds = self.asked.iter().map(|&number| &shared.kinds.kinds[number]);
        let mut kinds = kinds.zip(&self.entries);
        kinds.try_for_each(|(kind, entry)| shared.journal.hold(hold_of(kind.name(), entry)))
    }
}

/// The generations of all tables. Waits while a table is being emptied.
fn generations(shared: &Shared) -> HashMap<TableId, u32> {
    let _unchanged = shared.catalog.change_tables();
    let tables = shared.catalog.now().tables;
    tables.iter().map(|table| (TableId(table.id), table.generation)).collect()
}

fn hold_of(holder: &'static str, entry: &KindEntry) -> Hold {
    Hold { holder, floor: entry.gsn_floor, positions: entry.positions.clone() }
}

/// When a store is opened: each kind holds the logs from where the MANIFEST says. A kind without a table
/// needs nothing from before this incarnation, which begins above `floor`.
pub(crate) fn hold_at_start(
    kinds: &Kinds,
    manifest: &Manifest,
    floor: u64,
    journal: &dyn Journal,
) -> Result<(), Error> {
    for kind in &kinds.kinds {
        let known = manifest.kinds.iter().find(|entry| entry.name == kind.name());
        let entry = known.cloned().unwrap_or_else(|| new_entry(kind.name(), floor));
        journal.hold(hold_of(kind.name(), &entry))?;
    }
    Ok(())
}

/// The entry of a kind that gets its first table in the incarnation above `floor`.
pub(crate) fn new_entry(kind: &str, floor: u64) -> KindEntry {
    KindEntry { name: kind.to_owned(), gsn_floor: floor, positions: Vec::new() }
}

/// True if a kind needs a record of an incarnation that is over.
pub(crate) fn needs(manifest: &Manifest, incarnation: &IncarnationEntry) -> bool {
    let cut = incarnation.cut.as_deref().unwrap_or_default();
    manifest.kinds.iter().any(|kind| cut.iter().any(|end| end.gsn > kind.position(end.log)))
}
