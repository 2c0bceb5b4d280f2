//! The kind of paged tables as a part of the engine: its settings, its page store, and its figures.

use std::sync::Arc;

use stillpoint_format::manifest::Manifest;
use stillpoint_format::pages::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use stillpoint_io::Disk;
use stillpoint_paged::{
    NamedPages, PAGE_BYTES_DEFAULT, POOL_PAGES_MIN, PageStore, PageStoreConfig, Paged, Pool,
};
use stillpoint_txn::TableKind;

use crate::config::Config;
use crate::error::Error;
use crate::kinds::{Kinds, TablesOfKind};

pub(crate) use stillpoint_paged::KIND_NAME;

/// Memory that a pool leaves for records in memory, at least.
pub(crate) const STORE_BYTES_MIN: usize = 32 << 20;

/// What the sections of paged tables say of the pages.
///
/// # Errors
/// A section cannot be read, or contradicts the others.
pub(crate) fn named(tables: &TablesOfKind<'_>) -> Result<NamedPages, Error> {
    Ok(NamedPages::of(&tables.sections())?)
}

/// The size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSize {
    frames: usize,
    page_bytes: usize,
}

impl Config {
    /// Checks the settings together with the kinds of tables of the program, before anything is touched.
    /// Gives the names of these kinds.
    pub(crate) fn check_with(
        &self,
        kinds: &[Arc<dyn TableKind>],
    ) -> Result<Vec<&'static str>, Error> {
        self.check()?;
        Kinds::new(kinds.to_vec())?;
        let siren = self.siren_kind();
        let names: Vec<_> = kinds.iter().map(|kind| kind.name()).chain(siren).collect();
        self.check_kinds(&names)?;
        Ok(names)
    }

    /// Checks the settings of the pool, with all others that do not fit a pool. `tables` are those of the
    /// store, and `None` before the store is read. Gives the size of the pool; `None` without one.
    pub(crate) fn check_pool(
        &self,
        tables: Option<&TablesOfKind<'_>>,
    ) -> Result<Option<PoolSize>, Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let Some(pool) = self.pool_bytes else {
            return match tables {
                Some(tables) if !tables.is_empty() => {
                    let names = tables.names.join(", ");
                    let reason = format!(
                        "the store has paged tables ({names}), whose pages are held by a pool: set its size"
                    );
                    refuse("pool", reason)
                }
                _ => Ok(None),
            };
        };
        if let Some(page) = self.page_bytes
            && !((PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page) && page.is_power_of_two())
        {
            let reason = format!("{page} bytes are no page: a power of two from 4 to 64 KiB");
            return refuse("page_size", reason);
        }
        let of_store = tables.map_or(Ok(NamedPages::default()), named)?.page_bytes;
        if let (Some(asked), Some(found)) = (self.page_bytes, of_store)
            && asked != found
        {
            let reason = format!(
                "the paged tables of the store have pages of {found} bytes, and {asked} are asked for: \
                 the first paged table fixes the size, so leave the setting out"
            );
            return refuse("page_size", reason);
        }
        // Before the store is read, its pages may still turn out small.
        let default = if tables.is_some() { PAGE_BYTES_DEFAULT } else { PAGE_BYTES_MIN };
        let page_bytes = self.page_bytes.or(of_store).unwrap_or(default);
        let frames = pool / page_bytes;
        if frames < POOL_PAGES_MIN {
            let least = POOL_PAGES_MIN * page_bytes;
            let reason = format!(
                "{pool} bytes hold fewer than {POOL_PAGES_MIN} pages of {page_bytes} bytes: at least {least}"
            );
            return refuse("pool", reason);
        }
        if self.max_memory_bytes.saturating_sub(pool) < STORE_BYTES_MIN {
            let max = self.max_memory_bytes;
            let reason = format!(
                "{pool} bytes leave less than 32 MiB of max_memory for the rest, which has {max}"
            );
            return refuse("pool", reason);
        }
        self.check_kinds(&[KIND_NAME])?;
        if crate::journal_row(&self.journal)?.capabilities.logs_calls_alone {
            let reason = format!(
                "journal {} makes calls again on records in memory alone, and a pool is for paged \
                 tables: choose journal redo",
                self.journal
            );
            return refuse("journal", reason);
        }
        Ok(Some(PoolSize { frames, page_bytes }))
    }

    /// Bytes of the memory limit that are left for records in memory.
    pub(crate) fn store_memory_bytes(&self) -> usize {
        self.max_memory_bytes
            - self.pool_bytes.unwrap_or(0)
            - self.siren_memory_bytes().unwrap_or(0)
    }
}

/// Opens the kind of paged tables over the pages that the MANIFEST names. `None` without a pool.
///
/// # Errors
/// The settings do not fit the tables of the store. The pages cannot be opened, or there is no address
/// space for the pool.
pub(crate) fn open(
    config: &Config,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<Option<Arc<Paged>>, Error> {
    let tables = TablesOfKind::of(manifest, KIND_NAME);
    let Some(PoolSize { frames, page_bytes }) = config.check_pool(Some(&tables))? else {
        return Ok(None);
    };
    let pages = PageStoreConfig {
        store: manifest.store,
        page_bytes,
        growth_bytes: config.page_growth_bytes,
        held_back: frames as u64 + 1024,
        rollback: frames as u64 + 1024,
        counts: named(&tables)?.map,
    };
    let store = PageStore::open(&**disk, pages)?;
    let pool = Pool::new(frames, page_bytes, Arc::new(store))?;
    Ok(Some(Paged::new(pool, manifest.hash_seed)))
}
