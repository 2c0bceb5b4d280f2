//! Undo of commits that a fuzzy checkpoint holds and a crash has taken away (ARIES, ACM TODS 1992, §6.3).
//!
//! ```text
//! checkpoints loaded ─▶ records beyond the cut, greatest gsn first: key newer than the value before the
//!   record? ─▶ before-image put back ─▶ replay
//! ```
//! A key whose last writer has a smaller gsn was taken before the commit, and stays. The value of before
//! has every kept commit on the key: a kept commit depends on no lost one. So the key is given the
//! greatest gsn below that of the undone commit, and a replay leaves it alone.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_checkpoint::UndoneRecord;
use stillpoint_format::log::{Write, WriteOp};
use stillpoint_journal::BeyondCut;
use stillpoint_store::{Before, Loader, Replayed, Store, TableId};
use stillpoint_sync::{mutant, planted};

use crate::error::RecoveryError;
use crate::plan::Plan;
use crate::verify::malformed;

/// Undoes what the loaded checkpoints hold of the records beyond the cut. Returns the keys that have
/// changed, with what they have now.
pub(crate) fn undo(plan: &Plan, store: &Arc<Store>) -> Result<Vec<UndoneRecord>, RecoveryError> {
    mutant!(UndoLeftOut => return Ok(Vec::new()));
    let beyond = plan.logs.beyond_cut();
    if beyond.is_empty() {
        return Ok(Vec::new());
    }
    let mut loader =
        Loader::new(store.clone()).ok_or(RecoveryError::NoSlot { wanted: 1, found: 0 })?;
    let mut undone = BTreeMap::new();
    let all: Vec<&BeyondCut> =
        mutant!(beyond.iter().collect(), UndoesUpwards => beyond.iter().rev().collect());
    for record in all {
        for image in record.before_images() {
            let image = image.map_err(|source| malformed(record, source))?;
            let now = loader.generation(TableId(image.table));
            // A table that was emptied since has nothing to undo. The manifest knows all others.
            if now.map(|now| image.generation.cmp(&now)) != Some(Ordering::Equal) {
                continue;
            }
            if put_back(&mut loader, (record.gsn, plan.logs.has_all_beyond()), &image)? {
                undone
                    .insert((image.table, image.key.to_vec()), (image.generation, record.gsn - 1));
            }
        }
    }
    let now = |((table, key), (generation, gsn)): ((u16, Vec<u8>), (u32, u64))| {
        let hash = loader.hash(TableId(table), &key);
        let value = loader.value(TableId(table), hash, &key);
        UndoneRecord { table, generation, hash, key, value, gsn }
    };
    Ok(undone.into_iter().map(now).collect())
}

/// Puts a before-image back. `has_all` says that no record beyond the cut is missing. Returns whether the
/// key has changed.
fn put_back(
    loader: &mut Loader,
    (gsn, has_all): (u64, bool),
    image: &Write<'_>,
) -> Result<bool, RecoveryError> {
    let table = TableId(image.table);
    let refused = |source| RecoveryError::Apply { table: image.table, gsn, source };
    let ranges: Vec<(usize, &[u8])>;
    let splices: Vec<(usize, usize, &[u8])>;
    let before = match &image.op {
        WriteOp::Put { label, value } => Before::Change(Replayed::Put { label: *label, value }),
        WriteOp::Delete => Before::Change(Replayed::Delete),
        WriteOp::Patch(of) => {
            ranges = of.clone().map(|range| (range.offset as usize, range.bytes)).collect();
            Before::Change(Replayed::Patch(&ranges))
        }
        WriteOp::Until { deadline, ranges: of } => {
            ranges = of.clone().map(|range| (range.offset as usize, range.bytes)).collect();
            let until = Replayed::Until { deadline: *deadline, ranges: &ranges };
            Before::Change(mutant!(until, DeadlineNotUndone => Replayed::Patch(&ranges)))
        }
        WriteOp::Splice(of) => {
            let owned = of.clone().map(|of| (of.offset as usize, of.removed as usize, of.bytes));
            splices = owned.collect();
            Before::Splices(&splices)
        }
    };
    let hash = loader.hash(table, image.key);
    loader.undo(table, (hash, image.key), gsn, before, has_all).map_err(refused)
}
