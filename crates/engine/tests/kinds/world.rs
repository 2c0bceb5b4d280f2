//! An engine with two kinds of tables on a simulated disk.

use std::sync::Arc;

use stillpoint::{Config, Durability, Engine, Environment, Error, Kind, TableId};
use stillpoint_io::{ManualClock, SeededRng, SimDisk};

use crate::in_place::{InPlace, NAME};

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) kind: Arc<InPlace>,
    /// Numbers of the table in memory and of the table in place.
    pub(crate) tables: [TableId; 2],
    /// Numbers of the paged table and of the SIREN table, if the settings have these kinds.
    of_engine: Option<[TableId; 2]>,
}

/// Pages of the pool: few, so that tables are larger than the pool.
const POOL_PAGES: usize = 16;
const PAGE_BYTES: usize = 4096;
const SIREN_BYTES: usize = 16 << 20;

pub(crate) fn configure(disk: &SimDisk, seed: u64, logs: usize) -> Config {
    // With huge pages, small stores would spend most of their time on clearing pages.
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new("unused");
    // The records of other kinds have no before-images.
    let rows = stillpoint_checkpoint::registry::REGISTRY.iter();
    let schemes: Vec<_> = rows.filter(|row| !row.capabilities.needs_before_images()).collect();
    config.checkpoint = schemes[seed as usize % schemes.len()].name.to_owned();
    config.checkpoint_every = None;
    config.durability = Durability::Strict;
    config.sessions = 8;
    config.logs = logs;
    config.recovery_threads = 1 + (seed % 3) as usize;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = 16 << 10;
    config.environment = Environment {
        disk: Some(Arc::new(disk.clone())),
        clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
        rng: Arc::new(SeededRng::new(seed)),
        background: false,
        ..config.environment
    };
    config
}

/// As [`configure`], with the engine's own kinds, too.
pub(crate) fn configure_all(disk: &SimDisk, seed: u64, logs: usize) -> Config {
    let mut config = configure(disk, seed, logs);
    config.page_bytes = Some(PAGE_BYTES);
    config.pool_bytes = Some(POOL_PAGES * PAGE_BYTES);
    config.page_growth_bytes = 1 << 20;
    config.siren_bytes = Some(SIREN_BYTES);
    config
}

impl World {
    /// The table of a kind: 0 in memory, 1 in place, 2 paged, 3 SIREN. A further kind gets a number here.
    pub(crate) fn table_of(&self, kind: usize) -> TableId {
        match kind.checked_sub(2) {
            Some(of_engine) => self.of_engine.expect("a world with all kinds")[of_engine],
            None => self.tables[kind],
        }
    }

    /// As [`open`](Self::open), with the engine's own kinds, too.
    pub(crate) fn open_all(
        disk: &SimDisk,
        seed: u64,
        logs: usize,
        absences: u64,
    ) -> Result<Self, Error> {
        Self::open_with(configure_all(disk, seed, logs), seed, absences)
    }

    /// The seed chooses the checkpoint scheme, and all else that varies.
    pub(crate) fn open(
        disk: &SimDisk,
        seed: u64,
        logs: usize,
        absences: u64,
    ) -> Result<Self, Error> {
        Self::open_with(configure(disk, seed, logs), seed, absences)
    }

    pub(crate) fn open_with(config: Config, seed: u64, absences: u64) -> Result<Self, Error> {
        let kind = InPlace::new(seed, absences);
        let has_all = config.pool_bytes.is_some();
        let engine = Engine::builder(config).table_kind(kind.clone()).open()?;
        let of_engine = match has_all {
            true => Some([
                engine.table_with("paged", Kind::Paged)?,
                engine.table_with("siren", Kind::Siren)?,
            ]),
            false => None,
        };
        let tables = [engine.table("in memory")?, engine.table_of_kind("in place", NAME)?];
        Ok(Self { engine, kind, tables, of_engine })
    }
}
