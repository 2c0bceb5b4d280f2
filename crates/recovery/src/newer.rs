//! Finds checkpoints that are newer than the manifest.

use std::path::{Path, PathBuf};

use stillpoint_format::manifest::Manifest;
use stillpoint_format::names;
use stillpoint_io::Disk;
use stillpoint_journal::ScanError;

use crate::error::RecoveryError;

/// The directory of a checkpoint that began after the manifest was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewerCheckpoint {
    /// Serial of the checkpoint's directory.
    pub serial: u64,
    /// The directory.
    pub path: PathBuf,
}

/// Lists the checkpoints whose serial is not below the manifest's next one. A manifest counts a
/// serial before the directory is made, so each of these checkpoints proves that there was a later
/// manifest.
///
/// # Errors
/// The disk refuses.
pub fn newer_checkpoints(
    disk: &dyn Disk,
    manifest: &Manifest,
) -> Result<Vec<NewerCheckpoint>, RecoveryError> {
    let dir = Path::new(names::CHECKPOINT_DIR);
    let found = match disk.list(dir) {
        Ok(found) => found,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(ScanError::from(error).into()),
    };
    let newer = found.iter().filter_map(|name| {
        let (serial, _) = names::parse_checkpoint_name(name)?;
        let path = dir.join(name);
        (serial >= manifest.next_serial).then_some(NewerCheckpoint { serial, path })
    });
    Ok(newer.collect())
}
