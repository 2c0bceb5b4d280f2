//! What a store and the kind of table have in common: tables, the checkpoint level, and what the
//! checkpointer knows of the disk.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::ident::StoreId;
use stillpoint_format::siren::PAGE_HEADER_BYTES;
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use stillpoint_sync::{Backoff, Mutex, MutexGuard, ReadSections, RwLock, mutant};

use crate::config::{Config, Removes};
use crate::copier::OnDisk;
use crate::error::{SirenError, SirenResult};
use crate::pages::Pages;
use crate::planted;
use crate::table::Table;

/// A pause of a thread that waits for another.
const PAUSE: Duration = Duration::from_micros(50);

/// What all tables share: the bytes that they hold, and a seed.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    /// Pending removes that are not written.
    pub(crate) removes: AtomicUsize,
    /// Tuples, with what belongs to them in memory.
    pub(crate) tuples: AtomicUsize,
    /// The seed of the hashes of keys.
    pub(crate) hash_seed: u64,
}

/// Tables, level and disk.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) config: Config,
    /// The present checkpoint level.
    pub(crate) level: AtomicU64,
    pub(crate) sections: ReadSections,
    pub(crate) tables: RwLock<Vec<Arc<Table>>>,
    /// One checkpoint at a time holds this.
    pub(crate) on_disk: Mutex<OnDisk>,
    pub(crate) held: Arc<HeldBytes>,
    pub(crate) slowed: AtomicU64,
    /// Whether checkpoints go on without a pace.
    pub(crate) hurries: AtomicBool,
}

impl HeldBytes {
    /// Nothing is held, in a store.
    pub(crate) fn of(store: StoreId) -> Arc<Self> {
        let seed = store.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (removes, tuples) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { removes, tuples, hash_seed: seed })
    }
}

impl Base {
    pub(crate) fn table(&self, id: u16) -> Option<Arc<Table>> {
        self.tables.read().iter().find(|table| table.id == id).cloned()
    }

    /// Empty pages of a table, whose operations begin at this level. Their numbers are above `numbers`.
    pub(crate) fn new_pages(&self, id: u16, level: u64, numbers: u64) -> Pages {
        new_pages(&self.config, &self.held, (id, level, numbers))
    }

    /// Runs an operation at the present level, in the read section of this slot.
    pub(crate) fn operate<R>(&self, slot: usize, act: impl FnOnce(u64) -> R) -> R {
        let _section = self.sections.read_section(slot);
        // SeqCst: behind the fence of the section; pairs with the change in `change_level`.
        act(self.level.load(SeqCst))
    }

    /// Takes the right to take a checkpoint.
    ///
    /// # Errors
    /// An earlier checkpoint is in doubt.
    pub(crate) fn lock_disk(&self) -> SirenResult<MutexGuard<'_, OnDisk>> {
        let on_disk = self.on_disk.lock();
        match &on_disk.in_doubt {
            Some(reason) => Err(SirenError::InDoubt { reason: reason.clone() }),
            None => Ok(on_disk),
        }
    }

    /// BEGIN-CHECKPOINT: changes the level, and waits for the operations of the old one, which it
    /// returns.
    pub(crate) fn change_level(&self) -> u64 {
        // SeqCst: the grace period orders it after; pairs with the load in `operate`.
        let level = self.level.fetch_add(1, SeqCst);
        mutant!(self.sections.wait_grace_period(), TakenBeforeSettled => ());
        level
    }

    /// A write waits while more pending removes wait for the disk than the limit allows.
    pub(crate) fn slow_down(&self) {
        let is_full = || self.held.removes.load(SeqCst) > self.config.removes_bytes_max;
        if self.config.removes != Removes::ToPages || !is_full() {
            return;
        }
        self.slowed.fetch_add(1, SeqCst);
        let begin_ns = self.config.clock.monotonic_ns();
        let limit_ns = self.config.slow_down_max.as_nanos() as u64;
        let mut backoff = Backoff::new();
        while is_full() && self.config.clock.monotonic_ns() - begin_ns < limit_ns {
            self.pause(&mut backoff);
        }
    }

    /// Waits a little for another thread, longer each time. The time of the clock passes.
    pub(crate) fn pause(&self, backoff: &mut Backoff) {
        backoff.wait();
        if !backoff.is_spinning() {
            self.config.clock.sleep(PAUSE);
        }
    }

    /// Checks the links, counts and versions of all tables, while nothing else runs.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.tables.read().iter().try_for_each(|table| table.check())
    }
}

/// As [`Base::new_pages`], before there is a base.
pub(crate) fn new_pages(
    config: &Config,
    held: &Arc<HeldBytes>,
    (id, level, numbers): (u16, u64, u64),
) -> Pages {
    Pages::new((id, level, numbers), capacity(config), config.removes, held.clone())
}

/// Bytes of tuples above which a page is split.
fn capacity(config: &Config) -> usize {
    config.page_bytes as usize * config.fill_percent as usize / 100 - PAGE_HEADER_BYTES
}
