//! The kind of paged tables as a part of the engine: its settings, its page store, and its figures.

use std::sync::Arc;

use stillpoint_format::manifest::{Manifest, TableKind as KindName};
use stillpoint_io::Disk;
use stillpoint_paged::{
    KIND_NAME, POOL_PAGES_MIN, PageStore, PageStoreConfig, Paged, Pool, PoolStats,
};
use stillpoint_txn::TableKind;

use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::kinds::Kinds;

/// Smallest and largest page, in bytes.
const PAGE_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;

impl Config {
    /// Checks the settings together with the kinds of tables of the program, before anything is touched.
    /// Gives the names of all kinds besides those in memory.
    pub(crate) fn check_with(
        &self,
        kinds: &[Arc<dyn TableKind>],
    ) -> Result<Vec<&'static str>, Error> {
        self.check()?;
        Kinds::new(kinds.to_vec())?;
        let paged = self.pool_bytes.map(|_| KIND_NAME);
        let names: Vec<_> = kinds.iter().map(|kind| kind.name()).chain(paged).collect();
        self.check_kinds(&names)?;
        Ok(names)
    }

    /// Checks the settings of the pool.
    pub(crate) fn check_pool(&self, logs_calls_alone: bool) -> Result<(), Error> {
        let refuse = |setting, reason: String| Err(Error::Config { setting, reason });
        let Some(pool) = self.pool_bytes else { return Ok(()) };
        let page = self.page_bytes;
        if !PAGE_BYTES.contains(&page) || !page.is_power_of_two() {
            let reason = format!("{page} bytes are no page: a power of two from 4 to 64 KiB");
            return refuse("page_size", reason);
        }
        if pool / page < POOL_PAGES_MIN {
            let least = POOL_PAGES_MIN * page;
            let reason = format!(
                "{pool} bytes hold fewer than {POOL_PAGES_MIN} pages of {page} bytes: at least {least}"
            );
            return refuse("pool", reason);
        }
        if pool > self.max_memory_bytes / 2 {
            let reason = format!("{pool} bytes are more than half of max_memory, which has them");
            return refuse("pool", reason);
        }
        if logs_calls_alone {
            let reason = format!(
                "journal {} makes calls again on records in memory alone, and a pool is for paged \
                 tables: choose journal redo",
                self.journal
            );
            return refuse("journal", reason);
        }
        Ok(())
    }

    /// Bytes of the memory limit that are left for records in memory.
    pub(crate) fn store_memory_bytes(&self) -> usize {
        self.max_memory_bytes - self.pool_bytes.unwrap_or(0)
    }
}

/// All kinds of tables: those of the program, and that of paged tables if there is a pool.
///
/// # Errors
/// As [`open`].
pub(crate) fn add(
    kinds: Vec<Arc<dyn TableKind>>,
    config: &Config,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<(Arc<Kinds>, Option<Arc<Paged>>), Error> {
    let paged = open(config, disk, manifest)?;
    let of_engine = paged.iter().map(|paged| paged.clone() as Arc<dyn TableKind>);
    let kinds = Kinds::new(kinds.into_iter().chain(of_engine).collect())?;
    Ok((Arc::new(kinds), paged))
}

/// Opens the kind of paged tables over the pages that the MANIFEST names. `None` without a pool.
///
/// # Errors
/// The pages cannot be opened, or there is no address space for the pool.
fn open(
    config: &Config,
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
) -> Result<Option<Arc<Paged>>, Error> {
    let Some(pool_bytes) = config.pool_bytes else { return Ok(None) };
    let paged = manifest
        .tables
        .iter()
        .filter(|table| matches!(&table.kind, KindName::Other(name) if name == KIND_NAME));
    let sections = paged.filter_map(|table| table.private.as_deref());
    // Without a state that counts, the store of pages begins anew. So each section must be understood.
    let counts = sections
        .map(|section| {
            Paged::map_of(section).ok_or_else(|| {
                Error::Pages(format!("this build cannot read {section:?} of the MANIFEST"))
            })
        })
        .try_fold(None, |greatest, map| map.map(|map| greatest.max(Some(map))))?;
    let (page_bytes, frames) = (config.page_bytes, pool_bytes / config.page_bytes);
    let pages = PageStoreConfig {
        store: manifest.store,
        page_bytes,
        growth_bytes: config.page_growth_bytes,
        held_back: frames as u64 + 2 * 1024,
        counts,
    };
    let failed = |error: &dyn std::error::Error| Error::Pages(error.to_string());
    let store = PageStore::open(&**disk, pages).map_err(|error| failed(&error))?;
    let pool = Pool::new(frames, page_bytes, Arc::new(store)).map_err(|error| failed(&error))?;
    Ok(Some(Paged::new(pool, manifest.hash_seed)))
}

impl Engine {
    /// Numbers of the pool of paged tables. `None` without a pool.
    pub fn pool_stats(&self) -> Option<PoolStats> {
        self.shared.paged.as_ref().map(|paged| paged.stats())
    }
}
