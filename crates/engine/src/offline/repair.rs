//! Repairs a refused directory: gives up unreadable data, with the operator's consent.

use std::path::Path;
use std::sync::Arc;

use stillpoint_format::manifest::{IncarnationEntry, Manifest};
use stillpoint_format::names;
use stillpoint_format::pages::pages_map_path;
use stillpoint_format::part::Codec;
use stillpoint_io::{Caching, Clock, Disk, OpenMode, RealClock, cpu_count};
use stillpoint_journal::Loss;
use stillpoint_recovery::{NewerCheckpoint, Plan, RecoveryError};

use super::look::new_store;
use super::{LockedDisk, kinds, load_options, lock};
use crate::catalog::{self, Catalog};
use crate::error::Error;
use crate::kinds::TablesOfKind;
use crate::undone;
use crate::{paged, siren};

/// Result of a repair, or of its preview.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// The losses, in sentences: checkpoints, and records by log and gsn. Empty if the directory is
    /// sound.
    pub gives_up: Vec<String>,
    /// The checkpoint that remains to be loaded, if any does.
    pub checkpoint: Option<u64>,
    /// Records of the kept checkpoint.
    pub checkpoint_records: u64,
    /// Bytes of log that remain to be replayed.
    pub replay_bytes: u64,
    /// Whether the repair was carried out.
    pub done: bool,
}

/// Finds the recoverable part of a data directory with damaged or missing files, or with files
/// newer than the MANIFEST. With `accept_loss` the rest is given up, and the next start finds a
/// sound store. Otherwise nothing changes. A missing or damaged MANIFEST is rebuilt from the other
/// files.
///
/// # Errors
/// The directory is in use, is no store, or is of another release, or the disk refuses.
/// [`Error::OtherKinds`] if something of a store with paged tables or SIREN tables would have to be given up.
pub fn repair(dir: &Path, accept_loss: bool) -> Result<Repair, Error> {
    let LockedDisk { disk, _lock } = lock(dir)?;
    let mut found = Repair::default();
    let (manifest, logs_are_lost) = match catalog::read(&*disk) {
        Ok(manifest) => (manifest.ok_or_else(|| Error::NoStore(dir.to_owned()))?, false),
        Err(why) => rebuilt(dir, &disk, why, &mut found)?,
    };
    refuse_damaged_pages(dir, &disk, &manifest)?;
    let mut left = manifest.clone();
    loop {
        let Some((epoch, why)) = first_damaged(&disk, &left)? else { break };
        found.gives_up.push(format!("checkpoint {epoch}: {why}"));
        left.checkpoints.retain(|entry| entry.epoch != epoch && entry.base != Some(epoch));
        drop_without_base(&mut left);
    }
    let only_in_lost = only_in_lost(&left, &manifest);
    let goes_back = only_in_lost.is_some();
    found.gives_up.extend(only_in_lost);
    let newer = stillpoint_recovery::newer_checkpoints(&*disk, &manifest)?;
    for NewerCheckpoint { serial, path } in &newer {
        let path = path.display();
        found.gives_up.push(format!(
            "{path}, a checkpoint that the MANIFEST is too old for; its files are kept, in \
             {path}-set-aside"
        ));
        left.next_serial = left.next_serial.max(serial.saturating_add(1));
    }
    let (plan, losses) = stillpoint_recovery::plan_accepting_loss(
        &disk,
        left,
        &manifest,
        logs_are_lost,
        cpu_count(),
    )?;
    found.gives_up.extend(losses.iter().map(said_of));
    found.gives_up.extend(plan.brings_back().filter(|_| goes_back).map(|epoch| {
        format!(
            "the undo of commits that checkpoint {epoch} holds and an earlier crash took away: a lost \
             checkpoint had it, and the keys that they wrote may have their values again"
        )
    }));
    if plan.manifest.next_epoch != manifest.next_epoch && found.gives_up.is_empty() {
        let (known, next) = (manifest.next_epoch, plan.manifest.next_epoch);
        found.gives_up.push(format!(
            "nothing, but the MANIFEST is older than the log: it says that epoch {known} has not \
             begun, and {next} is the first that has not"
        ));
    }
    found.gives_up.first().map_or(Ok(()), |loss| refuse_loss(dir, &manifest, loss))?;
    let newest = plan.manifest.newest_chain();
    found.checkpoint = newest.last().map(|entry| entry.epoch);
    found.checkpoint_records = newest.iter().map(|entry| entry.records).sum();
    found.replay_bytes = plan.replay_bytes();
    if found.checkpoint.is_none() && found.replay_bytes == 0 && !found.gives_up.is_empty() {
        found.gives_up.push("nothing is left: the store will be empty".to_owned());
    }
    if accept_loss && !found.gives_up.is_empty() {
        set_aside(&*disk, &newer)?;
        publish(&disk, &manifest, plan)?;
        found.done = true;
    }
    Ok(found)
}

/// The records of a log that would be given up.
fn said_of(loss: &Loss) -> String {
    let up_to = match loss.up_to_gsn {
        Some(gsn) => format!("gsns {} to {gsn}", loss.above_gsn + 1),
        None => format!("all gsns above {}", loss.above_gsn),
    };
    let (log, incarnation) = (loss.log, loss.incarnation);
    format!("log {log}, {up_to} of incarnation {incarnation}: {}", loss.why)
}

/// A rebuilt MANIFEST, if the present one is missing or damaged, and whether the logs do not go on
/// from its newest checkpoint.
fn rebuilt(
    dir: &Path,
    disk: &Arc<dyn Disk>,
    why: Error,
    found: &mut Repair,
) -> Result<(Manifest, bool), Error> {
    let tables = match &why {
        Error::ManifestMissing { .. } => Vec::new(),
        // A file of another release is not damaged.
        Error::Manifest { source, .. } if source.is_damage() => {
            let bytes = stillpoint_io::read_all(&**disk, Path::new(names::MANIFEST))?;
            Manifest::tables_of_damaged(&bytes)
        }
        _ => return Err(why),
    };
    for (kind, path) in
        [(paged::KIND_NAME, pages_map_path()), (siren::KIND_NAME, names::SIREN_PAGES.to_owned())]
    {
        if has_bytes(&**disk, Path::new(&path))? {
            let names = Vec::new();
            let reason = format!(
                "no file but the MANIFEST says which state of their pages counts: put a copy of the data \
                 directory, or the newest MANIFEST, back; {why}"
            );
            return Err(Error::OtherKinds { dir: dir.to_owned(), kind, names, reason });
        }
    }
    let Some(rebuilt) = stillpoint_recovery::rebuild(disk, &tables, cpu_count())? else {
        return Err(why);
    };
    found.gives_up.push(format!("the MANIFEST, which is made anew from the other files: {why}"));
    found.gives_up.extend(rebuilt.gives_up);
    Ok((rebuilt.manifest, rebuilt.logs_are_lost))
}

/// Whether a file is there and not empty. The map of pages of a store without paged tables is empty.
fn has_bytes(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    if !disk.exists(path)? {
        return Ok(false);
    }
    Ok(disk.open(path, OpenMode::Read, Caching::Buffered)?.len()? > 0)
}

/// Refuses a store whose map or pages are damaged.
fn refuse_damaged_pages(
    dir: &Path,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<(), Error> {
    let tables = TablesOfKind::of(manifest, paged::KIND_NAME).tables;
    let checked = stillpoint_paged::check_pages(&**disk, manifest.store, &tables)?;
    if let Some(damage) = checked.as_ref().and_then(|checked| checked.damage.first()) {
        refuse_loss(dir, manifest, &damage.to_string())?;
    }
    let tables = TablesOfKind::of(manifest, siren::KIND_NAME).tables;
    match stillpoint_siren::check_pages(&**disk, manifest.store, &tables) {
        Ok(checked) => match checked.as_ref().and_then(|checked| checked.damage.first()) {
            Some(damage) => refuse_loss(dir, manifest, &damage.to_string()),
            None => Ok(()),
        },
        Err(error) if error.is_damage() => refuse_loss(dir, manifest, &error.to_string()),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to give anything up in a store with tables of other kinds than memory. Their pages make a state only together with
/// all of the logs, and they share transactions with the other tables.
fn refuse_loss(dir: &Path, manifest: &Manifest, loss: &str) -> Result<(), Error> {
    let reason = format!(
        "nothing of such a store is given up, since pages, logs and checkpoints make a state only \
         together: put a copy of the data directory back; what is lost: {loss}"
    );
    kinds::refuse(dir, manifest, &reason)
}

/// The newest checkpoint of the chain to load that is damaged, and its first damage.
fn first_damaged(
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<Option<(u64, String)>, Error> {
    let options = load_options(manifest);
    for entry in manifest.newest_chain() {
        let verified =
            stillpoint_checkpoint::verify(disk, entry, &options, cpu_count(), &Arc::default());
        let verified = verified.map_err(RecoveryError::from)?;
        if let Some(damage) = verified.damage.first() {
            return Ok(Some((entry.epoch, damage.to_string())));
        }
    }
    Ok(None)
}

/// The loss of the newest published checkpoint, if it is not among those `left`.
fn only_in_lost(left: &Manifest, published: &Manifest) -> Option<String> {
    let epoch = |of: &Manifest| of.newest_chain().last().map(|newest| newest.epoch);
    let lost = epoch(published).filter(|_| epoch(published) != epoch(left))?;
    let after = epoch(left).map_or_else(String::new, |left| format!(" after checkpoint {left}"));
    Some(format!(
        "all that was committed{after} and is in no log: publishing checkpoint {lost} has freed the \
         logs before it"
    ))
}

/// Renames the directories of checkpoints, so that no start removes them.
fn set_aside(disk: &dyn Disk, newer: &[NewerCheckpoint]) -> Result<(), Error> {
    for NewerCheckpoint { path, .. } in newer {
        let mut to = path.clone().into_os_string();
        to.push("-set-aside");
        while disk.exists(Path::new(&to))? {
            to.push("-again");
        }
        disk.rename(path, Path::new(&to))?;
    }
    if newer.is_empty() { Ok(()) } else { Ok(disk.sync_dir(Path::new(names::CHECKPOINT_DIR))?) }
}

/// Removes partial checkpoints without their base from the list.
fn drop_without_base(manifest: &mut Manifest) {
    loop {
        let epochs: Vec<u64> = manifest.checkpoints.iter().map(|entry| entry.epoch).collect();
        let count = epochs.len();
        manifest.checkpoints.retain(|entry| entry.base.is_none_or(|base| epochs.contains(&base)));
        if manifest.checkpoints.len() == count {
            return;
        }
    }
}

/// Publishes the remaining part and removes the rest, in the same order as a start.
fn publish(disk: &Arc<dyn Disk>, before: &Manifest, mut plan: Plan) -> Result<(), Error> {
    if plan.may_undo() {
        let (store, clock, quiet) = (new_store(&plan.manifest)?, &RealClock, &mut |_: &_| {});
        let recovered =
            stillpoint_recovery::run(disk, &plan, &store, None, cpu_count(), clock, quiet)?;
        if !recovered.undone.is_empty() {
            undone::keep(disk, clock, Codec::None, &mut plan, &recovered.undone)?;
        }
    }
    let ends = plan.copy_ends(RealClock.wall_ms())?;
    let mut next = plan.successor((0, false), &ends);
    if let Some(IncarnationEntry { cut, .. }) = next.incarnations.last_mut() {
        *cut = Some(Vec::new());
    }
    Catalog::new(disk.clone(), before.clone()).publish(|manifest| *manifest = next.clone())?;
    plan.trim(&ends)?;
    Ok(crate::checkpoints::remove_strays(&**disk, &next)?)
}
