//! A thread's participation in a store, below transactions. The participation has a slot among the
//! read sections, the tables that the thread sees, and free cells. The participation also holds
//! garbage to reclaim, and the dependencies of the thread's answers.

use std::sync::Arc;

use stillpoint_format::{Label, Stamp};
use stillpoint_sync::atomic::{Ordering::SeqCst, fence};
use stillpoint_txn::{Dependencies, Patience, TableId, TxError};

use crate::catalog::Tables;
use crate::memory::arena::CellCache;
use crate::memory::cell::{CellAddress, OptimisticRead, Record};
use crate::memory::pool::SlotCache;
use crate::read_stamps::ReadStamps;
use crate::reclaim::Reclaim;
use crate::sink::{NoSink, Sink};
use crate::store::Store;
use crate::table::Table;
use crate::unloaded::missed::Missed;

/// A thread's participation in a store.
pub(crate) struct Participant {
    pub(crate) store: Arc<Store>,
    /// Slot of the read sections, which is also the worker's number.
    pub(crate) number: usize,
    pub(crate) in_section: bool,
    /// The tables as of the last read section that began.
    pub(crate) tables: Tables,
    pub(crate) cache: CellCache,
    /// Free slots of the pool of stable versions.
    pub(crate) slots: SlotCache,
    pub(crate) reclaim: Reclaim,
    pub(crate) dependencies: Dependencies,
    /// Whether commits leave and heed stamps of reads.
    orders_reads: bool,
    /// How long the thread waits for other transactions.
    pub(crate) patience: Patience,
    /// Whether transactions with declared keys leave locks alone that others hold for long.
    pub(crate) leaves_held: bool,
    /// Whether the thread leaves records alone that are to be read from a disk.
    pub(crate) leaves_unloaded: bool,
    /// The keys whose records are on the disk, and that the thread has asked for.
    pub(crate) missed: Missed,
    /// The epoch in which a before-image was saved last, and the sink of its checkpoint.
    sink: Option<(u64, Arc<dyn Sink>)>,
}

impl std::fmt::Debug for Participant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Participant").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Participant {
    /// A participation in the store. `None` if all slots are taken.
    pub(crate) fn new(
        store: Arc<Store>,
        (wants_dependencies, orders_reads): (bool, bool),
    ) -> Option<Self> {
        let number = store.driver().read_sections().claim()?;
        let tables = store.catalog().tables();
        let mut reclaim = Reclaim::default();
        reclaim.adopt(store.catalog().take_absent());
        Some(Self {
            store,
            number,
            in_section: false,
            tables,
            cache: CellCache::default(),
            slots: SlotCache::default(),
            reclaim,
            dependencies: Dependencies::new(wants_dependencies),
            orders_reads,
            patience: Patience::Endless,
            leaves_held: false,
            leaves_unloaded: false,
            missed: Missed::default(),
            sink: None,
        })
    }

    /// The stamps of reads, if commits leave and heed them.
    #[inline]
    pub(crate) fn read_stamps(&self) -> Option<&ReadStamps> {
        self.store.read_stamps.as_ref().filter(|_| self.orders_reads)
    }

    /// The record at an address that was found while the record was locked.
    #[inline]
    pub(crate) fn record(&self, address: CellAddress) -> Record<'_> {
        Record::at(self.store.memory(), address)
    }

    /// Enters the read section, and takes the tables of the present catalog.
    #[inline]
    pub(crate) fn enter(&mut self) {
        self.store.driver().enter(self.number);
        self.entered();
    }

    /// As [`enter`](Self::enter), for a thread without locks that will take some. Waits for the
    /// holder of the store's permit.
    ///
    /// # Errors
    /// [`TxError::WaitsForItself`] if the permit did not become free within the thread's patience.
    /// Then the thread is outside of the read section.
    #[inline]
    pub(crate) fn enter_to_begin(&mut self) -> Result<(), TxError> {
        let patience = self.patience;
        if !self.store.driver().try_enter_to_begin(self.number) && !self.wait_to_begin(patience) {
            return Err(TxError::WaitsForItself);
        }
        self.entered();
        Ok(())
    }

    /// As [`enter_to_begin`](Self::enter_to_begin), for a transaction with declared keys.
    ///
    /// # Errors
    /// [`TxError::Held`] if the thread leaves locks alone that are held for long, and another one has the
    /// permit for longer than a moment. Else as [`enter_to_begin`](Self::enter_to_begin).
    #[inline]
    pub(crate) fn enter_to_begin_declared(&mut self) -> Result<(), TxError> {
        if !self.leaves_held {
            return self.enter_to_begin();
        }
        if !self.store.driver().try_enter_to_begin(self.number)
            && !self.wait_to_begin(Patience::Moment)
        {
            return Err(TxError::Held);
        }
        self.entered();
        Ok(())
    }

    /// As [`enter_to_begin`](Self::enter_to_begin), for a thread that begins to lock outside of the store:
    /// waits while another thread has the permit, and enters nothing.
    pub(crate) fn wait_for_permit(&self) -> Result<(), TxError> {
        let (driver, catalog) = (self.store.driver(), self.store.catalog());
        loop {
            // SeqCst: the announcement comes before the look. Partner: the exchange that takes the permit.
            fence(SeqCst);
            if !driver.now().is_permitted() {
                return Ok(());
            }
            let announced = catalog.withdraw_transaction(self.number);
            let may_begin = driver.wait_to_begin(self.patience);
            catalog.announce_transaction_again(self.number, announced);
            if !may_begin {
                return Err(TxError::WaitsForItself);
            }
        }
    }

    /// Waits until the thread may enter, and enters. Meanwhile its transaction is not announced, since it
    /// holds no lock. A checkpoint that waits for open transactions does not wait for it.
    #[cold]
    fn wait_to_begin(&self, patience: Patience) -> bool {
        let (driver, catalog) = (self.store.driver(), self.store.catalog());
        loop {
            let announced = catalog.withdraw_transaction(self.number);
            let may_begin = driver.wait_to_begin(patience);
            catalog.announce_transaction_again(self.number, announced);
            if !may_begin || driver.try_enter_to_begin(self.number) {
                return may_begin;
            }
        }
    }

    /// Enters the read section again to end a commit that has announced its wait.
    pub(crate) fn enter_to_end(&mut self) {
        self.store.driver().enter_to_end(self.number);
        self.entered();
    }

    #[inline]
    fn entered(&mut self) {
        self.in_section = true;
        if self.tables.version != self.store.catalog().version() {
            self.refresh_tables();
        }
    }

    #[cold]
    fn refresh_tables(&mut self) {
        let tables = self.store.catalog().tables();
        for owner in self.tables.owners_gone(&tables) {
            self.cache.forget_owner(owner);
            self.reclaim.forget_owner(owner);
        }
        self.count_waiting();
        self.tables = tables;
    }

    /// Leaves the read section.
    #[inline]
    pub(crate) fn exit(&mut self) {
        self.in_section = false;
        self.store.driver().exit(self.number);
    }

    /// Reads one key without a lock. If the key has a value, appends it and returns its label. Also
    /// returns the stamp, and the key's cell, 0 for none. `candidate` is a cell that may be the key's, 0
    /// for none. Call this inside a read section.
    #[inline]
    pub(crate) fn read_optimistic(
        &mut self,
        id: TableId,
        key: &[u8],
        hash: u64,
        candidate: u64,
        out: &mut Vec<u8>,
    ) -> Result<(Option<Label>, Stamp, u64), TxError> {
        let mut number = Some(candidate).filter(|&candidate| candidate != 0);
        loop {
            if let Some(number) = number {
                match self.store.cell(number).read_optimistic(key, out) {
                    OptimisticRead::Value(label, stamp) => {
                        return Ok((Some(label), stamp, number));
                    }
                    OptimisticRead::Absent(stamp) => return Ok((None, stamp, number)),
                    OptimisticRead::Other => {}
                }
            }
            number = self.find_loaded(id, key, hash)?;
            if number.is_none() {
                let table = self.tables.get(id).expect("found just now");
                return Ok((None, table.floor_stamp(hash), 0));
            }
        }
    }

    /// The cell of a key, if the key has one. Call this inside a read section.
    #[inline]
    pub(crate) fn find(&self, table: &Table, key: &[u8], hash: u64) -> Option<u64> {
        table.index.find(hash, |cell| self.is_cell_of(cell, key))
    }

    /// Whether the cell is the key's at this moment.
    #[inline]
    pub(crate) fn is_cell_of(&self, cell: u64, key: &[u8]) -> bool {
        self.store.cell(cell).is_of(key)
    }

    /// Drops a cell that never was in the index. A capture may still be reading the cell.
    pub(crate) fn retire_unpublished(&mut self, number: u64) {
        self.store.cell(number).kill();
        let owner = self.store.memory().arena.owner_of(number);
        self.reclaim.retire_cell(owner, number);
    }

    /// Looks up the sink of the checkpoint that began `epoch`.
    pub(crate) fn find_sink(&mut self, epoch: u64) {
        if self.sink.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.sink = self.store.sink().map(|sink| (epoch, sink));
        }
    }

    /// The sink that was looked up last.
    pub(crate) fn sink(&self) -> &dyn Sink {
        self.sink.as_ref().map_or(&NoSink, |(_, sink)| &**sink)
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.cache.drain(&self.store.memory().arena);
        if let Some(pool) = &self.store.memory().pool {
            pool.drain(&mut self.slots);
        }
        self.store.driver().read_sections().unclaim(self.number);
    }
}
