//! The MANIFEST in memory, and the publication of its changes.

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::Manifest;
use stillpoint_format::names;
use stillpoint_io::{Disk, Rng};

use crate::error::Error;
use crate::kinds::OF_ENGINE;

/// The one owner of the MANIFEST.
#[derive(Debug)]
pub(crate) struct Catalog {
    disk: Arc<dyn Disk>,
    now: Mutex<Manifest>,
    /// Lock of a change to the set of tables, in the MANIFEST and in the store.
    changing_tables: Mutex<()>,
}

/// Reads the MANIFEST; `None` in an empty directory.
pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Manifest>, Error> {
    read_with_kinds(disk, &[])
}

/// As [`read`], with further kinds of tables than those of the engine.
pub(crate) fn read_with_kinds(disk: &dyn Disk, kinds: &[&str]) -> Result<Option<Manifest>, Error> {
    let path = Path::new(names::MANIFEST);
    if !disk.exists(path)? {
        let mut left = disk.list(Path::new(""))?;
        let dirs = [names::CHECKPOINT_DIR, names::LOG_DIR, names::PAGES_DIR, names::SIREN_DIR];
        left.retain(|name| dirs.contains(&&**name));
        for at in (0..left.len()).rev() {
            if disk.list(Path::new(&left[at]))?.is_empty() {
                left.remove(at);
            }
        }
        if left.is_empty() {
            return Ok(None);
        }
        let directory = disk.describe(Path::new(""));
        return Err(Error::ManifestMissing { directory, found: left.join(" and ") });
    }
    let bytes = stillpoint_io::read_all(disk, path)?;
    let kinds: Vec<&str> = kinds.iter().copied().chain(OF_ENGINE).collect();
    Manifest::decode_with_kinds(&bytes, &kinds)
        .map(Some)
        .map_err(|source| Error::Manifest { file: disk.describe(path), source })
}

/// The MANIFEST of a store that does not exist yet.
pub(crate) fn fresh(rng: &dyn Rng, wall_ms: u64) -> Manifest {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    id[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
    Manifest {
        store: StoreId(id),
        hash_seed: rng.next_u64(),
        created_ms: wall_ms,
        next_epoch: 1,
        next_serial: 1,
        tables: Vec::new(),
        kinds: Vec::new(),
        checkpoints: Vec::new(),
        incarnations: Vec::new(),
        clean_shutdown: None,
    }
}

impl Catalog {
    pub(crate) fn new(disk: Arc<dyn Disk>, manifest: Manifest) -> Self {
        Self { disk, now: Mutex::new(manifest), changing_tables: Mutex::default() }
    }

    /// Takes the lock of a change to the set of tables. A change of tables takes this lock before
    /// any other lock or wait.
    pub(crate) fn change_tables(&self) -> MutexGuard<'_, ()> {
        self.changing_tables.lock()
    }

    /// A copy of the MANIFEST as it is on disk.
    pub(crate) fn now(&self) -> Manifest {
        self.now.lock().clone()
    }

    /// Changes the MANIFEST durably: written beside, flushed, renamed, the directory flushed.
    pub(crate) fn publish<R>(&self, change: impl FnOnce(&mut Manifest) -> R) -> Result<R, Error> {
        let mut now = self.now.lock();
        let mut next = now.clone();
        let result = change(&mut next);
        let path = Path::new(names::MANIFEST);
        let bytes = next
            .encode()
            .map_err(|source| Error::Manifest { file: self.disk.describe(path), source })?;
        // A failure before the rename leaves the old MANIFEST in force.
        let beside = stillpoint_io::write_beside(&*self.disk, path, &bytes)?;
        if let Err(source) = stillpoint_io::replace_by(&*self.disk, path, &beside) {
            return Err(if self.is_on_disk(&now) {
                source.into()
            } else {
                Error::ManifestUncertain { source }
            });
        }
        *now = next;
        Ok(result)
    }

    /// Whether the file on disk is still the old MANIFEST, or still missing.
    fn is_on_disk(&self, before: &Manifest) -> bool {
        let path = Path::new(names::MANIFEST);
        match self.disk.exists(path) {
            Ok(true) => stillpoint_io::read_all(&*self.disk, path)
                .is_ok_and(|found| before.encode().is_ok_and(|bytes| bytes == found)),
            Ok(false) => true,
            Err(_) => false,
        }
    }
}
