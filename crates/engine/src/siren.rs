//! The kind of SIREN's tables as a part of the engine: its settings, its files, and its figures.

use std::sync::Arc;

use stillpoint_format::manifest::{Manifest, TableKind as KindName};
use stillpoint_io::{Disk, OpenMode, Pace};
use stillpoint_paged::PAGE_BYTES_DEFAULT;
use stillpoint_siren::{KIND_NAME, KindConfig, Siren};
use stillpoint_store::TableId;
use stillpoint_txn::KindTable;

use crate::config::Config;
use crate::error::Error;

/// Least memory of the tuples.
const BYTES_MIN: usize = 1 << 20;

impl Config {
    /// The kind's name, if the settings have it.
    pub(crate) fn siren_kind(&self) -> Option<&'static str> {
        self.siren_bytes.map(|_| KIND_NAME)
    }

    /// Checks the settings of the kind.
    pub(crate) fn check_siren(&self, logs_calls_alone: bool) -> Result<(), Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let Some(bytes) = self.siren_bytes else { return Ok(()) };
        if bytes < BYTES_MIN {
            let reason = format!("{bytes} bytes hold no table: at least {BYTES_MIN}");
            return refuse("siren_memory", reason);
        }
        let pool = self.pool_bytes.unwrap_or(0);
        if bytes > self.max_memory_bytes / 2 || pool + bytes > self.max_memory_bytes / 4 * 3 {
            let reason = format!(
                "{bytes} bytes, and {pool} of the pool, are too much of max_memory, which has them"
            );
            return refuse("siren_memory", reason);
        }
        if logs_calls_alone {
            let reason = format!(
                "journal {} makes calls again on records in memory alone, and there may be tables of \
                 kind {KIND_NAME}: choose journal redo",
                self.journal
            );
            return refuse("journal", reason);
        }
        Ok(())
    }
}

/// Opens the kind over the pages that the MANIFEST names. `None` if the settings do not have it.
///
/// # Errors
/// The pages cannot be read.
pub(crate) fn open(
    config: &Config,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<Option<Arc<Siren>>, Error> {
    let Some(memory_bytes) = config.siren_bytes else { return Ok(None) };
    let settings = stillpoint_siren::Config {
        page_bytes: config.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT) as u32,
        pace: config.checkpoint_pace.map_or(Pace::Unpaced, Pace::BytesPerSecond),
        sessions: config.sessions,
        recovery_threads: config.recovery_threads,
        clock: config.environment.clock.clone(),
        ..stillpoint_siren::Config::default()
    };
    let settings = KindConfig { store: manifest.store, memory_bytes, config: settings };
    let tables = tables_of(manifest);
    Ok(Some(Siren::open(&**disk, settings, OpenMode::ReadWrite, &tables)?))
}

/// The tables of the kind in a MANIFEST.
fn tables_of(manifest: &Manifest) -> Vec<KindTable<'_>> {
    let of_kind = manifest
        .tables
        .iter()
        .filter(|table| matches!(&table.kind, KindName::Other(name) if name == KIND_NAME));
    let table = of_kind.map(|table| KindTable {
        id: TableId(table.id),
        generation: table.generation,
        section: table.private.as_deref(),
    });
    table.collect()
}
