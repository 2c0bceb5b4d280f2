//! The kind of SIREN's tables as a part of the engine: its settings, its files, and its figures.

use std::sync::Arc;

use stillpoint_format::manifest::{Manifest, TableKind as KindName};
use stillpoint_io::{Disk, OpenMode, Pace, cpu_count};
use stillpoint_paged::PAGE_BYTES_DEFAULT;
use stillpoint_siren::{KindConfig, Removes, Siren};

use crate::config::Config;
use crate::error::Error;
use crate::kinds::TablesOfKind;
use crate::named::OWN_TABLES;

pub(crate) use stillpoint_siren::KIND_NAME;

/// Least memory of the tuples.
const BYTES_MIN: usize = 1 << 20;

/// Memory that is left for all else when tables are of this kind, at least.
const REST_BYTES_MIN: usize = 16 << 20;
/// Names of tables that a refusal shows.
const SHOWN: usize = 4;

impl Config {
    /// The form of SIREN's checkpoint that the settings choose, if they choose one. Then tables are of this
    /// kind where a program names none.
    pub(crate) fn siren_row(&self) -> Option<&'static stillpoint_siren::Row> {
        stillpoint_siren::ROWS.find(&self.checkpoint).ok()
    }

    /// The kind of a table that is made without the name of a kind.
    pub(crate) fn usual_kind(&self) -> KindName {
        match self.siren_row() {
            Some(_) => KindName::Other(KIND_NAME.to_owned()),
            None => KindName::Memory,
        }
    }

    /// Bytes of memory of the tuples. `None` without the kind.
    pub(crate) fn siren_memory_bytes(&self) -> Option<usize> {
        self.siren_share(self.max_memory_bytes)
    }

    /// Bytes of memory of the tuples under another limit of all memory.
    pub(crate) fn siren_share(&self, max_memory_bytes: usize) -> Option<usize> {
        let rest = (max_memory_bytes / 8).max(REST_BYTES_MIN) + self.pool_bytes.unwrap_or(0);
        let all_but_rest = |_| max_memory_bytes.saturating_sub(rest);
        self.siren_bytes.or_else(|| self.siren_row().map(all_but_rest))
    }

    /// The kind's name, if the settings have it.
    pub(crate) fn siren_kind(&self) -> Option<&'static str> {
        self.siren_memory_bytes().map(|_| KIND_NAME)
    }

    /// Checks the settings of the kind.
    pub(crate) fn check_siren(&self, logs_calls_alone: bool) -> Result<(), Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let Some(bytes) = self.siren_memory_bytes() else { return Ok(()) };
        if bytes < BYTES_MIN {
            let reason = format!("{bytes} bytes hold no table: at least {BYTES_MIN}");
            return refuse("siren_memory", reason);
        }
        let pool = self.pool_bytes.unwrap_or(0);
        let is_too_much = match self.siren_row() {
            Some(_) => pool.saturating_add(bytes) > self.max_memory_bytes - REST_BYTES_MIN,
            None => {
                bytes > self.max_memory_bytes / 2 || pool + bytes > self.max_memory_bytes / 4 * 3
            }
        };
        if is_too_much {
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
    let tables = TablesOfKind::of(manifest, KIND_NAME);
    let Some(memory_bytes) = config.siren_memory_bytes() else {
        if tables.is_empty() {
            return Ok(None);
        }
        let reason = format!(
            "the store has tables of kind {KIND_NAME} ({}), which need memory: choose checkpoint \
             {KIND_NAME}, or set its size; or load what `stillpoint dump` gives into another directory",
            shown(&tables.names)
        );
        return Err(Error::Config { setting: "siren_memory", reason });
    };
    refuse_others(config, manifest)?;
    let settings = stillpoint_siren::Config {
        removes: config.siren_row().map_or(Removes::ToPages, |row| row.removes),
        page_bytes: config.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT) as u32,
        pace: config.checkpoint_pace.map_or(Pace::Unpaced, Pace::BytesPerSecond),
        sessions: config.sessions,
        recovery_threads: config.recovery_threads,
        clock: config.environment.clock.clone(),
        ..stillpoint_siren::Config::default()
    };
    let settings = KindConfig { store: manifest.store, memory_bytes, config: settings };
    Ok(Some(Siren::open(&**disk, settings, OpenMode::ReadWrite, &tables.tables)?))
}

/// The first names, and how many more there are.
fn shown(names: &[&str]) -> String {
    let mut shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = names.len().checked_sub(SHOWN) {
        shown.push_str(&format!(" and {more} more"));
    }
    shown
}

/// Refuses a store with tables in memory if the settings choose a form of SIREN's checkpoint. The engine's
/// own tables are always in memory.
fn refuse_others(config: &Config, manifest: &Manifest) -> Result<(), Error> {
    let Some(row) = config.siren_row() else { return Ok(()) };
    let in_memory = manifest.tables.iter().filter(|table| table.kind.is_in_memory());
    let of_program = in_memory.filter(|table| !table.name.starts_with(OWN_TABLES));
    let names: Vec<&str> = of_program.map(|table| &*table.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let reason = format!(
        "{} is for tables of kind {KIND_NAME}, and the store has others ({}): choose checkpoint {}, or take \
         an empty directory and write what `stillpoint dump` gives into it",
        row.name(),
        shown(&names),
        crate::CHECKPOINT_SCHEME_DEFAULT,
    );
    Err(Error::Config { setting: "checkpoint", reason })
}

/// The tables of a store that is only read, over the pages that the MANIFEST names. `None` without such
/// tables.
///
/// # Errors
/// The pages cannot be read, or are damaged.
pub(crate) fn open_to_read(
    disk: &dyn Disk,
    manifest: &Manifest,
) -> Result<Option<Arc<Siren>>, Error> {
    let tables = TablesOfKind::of(manifest, KIND_NAME);
    if tables.is_empty() {
        return Ok(None);
    }
    let config = stillpoint_siren::Config {
        sessions: 2,
        recovery_threads: cpu_count(),
        ..stillpoint_siren::Config::default()
    };
    let settings = KindConfig { store: manifest.store, memory_bytes: usize::MAX, config };
    Ok(Some(Siren::open(disk, settings, OpenMode::Read, &tables.tables)?))
}
