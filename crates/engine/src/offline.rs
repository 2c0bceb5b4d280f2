//! Work on data directories that are not open: check, inspect, calls, dump, load, merge, restore, repair.

mod calls;
mod kinds;
mod load;
mod look;
mod merge;
mod repair;
mod restore;
mod siren;

use std::path::Path;
use std::sync::Arc;

use stillpoint_checkpoint::LoadOptions;
use stillpoint_format::manifest::Manifest;
use stillpoint_format::names;
use stillpoint_io::{Disk, RealDisk, cpu_count};
use stillpoint_recovery::Plan;

use crate::catalog;
use crate::error::Error;

pub use calls::calls;
pub use load::Loader;
pub use look::{
    Checked, DumpVisit, Dumped, Extent, InspectedLogs, InspectedPages, Inspection, VerifiedPages,
    VerifiedTree, check, dump, inspect,
};
pub(crate) use look::{check_with, dump_with};
pub use merge::{adopt, merge};
pub use repair::{Repair, repair};
pub use restore::restore;
pub use siren::{InspectedSiren, VerifiedSiren, VerifiedSirenTable};

/// A data directory, locked while this value lives.
struct Directory {
    disk: Arc<dyn Disk>,
    manifest: Manifest,
    _lock: Box<dyn Send + Sync>,
}

/// A directory whose MANIFEST has not been read, locked while `_lock` lives.
struct LockedDisk {
    disk: Arc<dyn Disk>,
    _lock: Box<dyn Send + Sync>,
}

/// Locks the directory.
fn lock(dir: &Path) -> Result<LockedDisk, Error> {
    if !dir.is_dir() {
        return Err(Error::NoStore(dir.to_owned()));
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir)?);
    let lock = disk.lock(Path::new(names::LOCK))?.ok_or_else(|| Error::InUse(dir.to_owned()))?;
    Ok(LockedDisk { disk, _lock: lock })
}

fn open(dir: &Path) -> Result<Directory, Error> {
    let LockedDisk { disk, _lock } = lock(dir)?;
    let manifest = catalog::read(&*disk)?.ok_or_else(|| Error::NoStore(dir.to_owned()))?;
    Ok(Directory { disk, manifest, _lock })
}

fn plan(directory: &Directory) -> Result<Plan, Error> {
    let (disk, manifest) = (&directory.disk, directory.manifest.clone());
    Ok(stillpoint_recovery::plan(disk, manifest, cpu_count(), &|_, _| {})?)
}

fn load_options(manifest: &Manifest) -> LoadOptions {
    LoadOptions { store: manifest.store, hash_seed: manifest.hash_seed, generations: None }
}
