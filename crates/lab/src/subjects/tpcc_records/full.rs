//! All five transactions of TPC-C, on tables of any kind. A transaction finds its keys on the way, and runs
//! again after a conflict.
//!
//! The code of the transactions is that of the arrays
//! ([`transactions`](crate::workloads::tpcc::transactions)), with its deviations. A row of NEW-ORDER stays
//! after the delivery, and is zero then.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::{
    Config, Durability, Engine, Kind, Mode, PoolStats, Session, Slot, TableId, Tx, TxError,
};
use stillpoint_state::{Field, FieldValue, Intent};

use crate::error::LabResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::paged::pool_of;
use crate::subjects::stillpoint::{failed, start_checkpoint, status};
use crate::subjects::tpcc_records::Bed;
use crate::subjects::tpcc_records::check::{check, committed};
use crate::subjects::tpcc_records::load::load;
use crate::subjects::tpcc_records::procedure::{Tpcc, middle_of};
use crate::subjects::tpcc_records::slots::{key, name_key};
use crate::workloads::random::Random;
use crate::workloads::tpcc::check::Checked;
use crate::workloads::tpcc::input::Transaction;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::memory::{Memory, Rows};
use crate::workloads::tpcc::schema::{LINES_MAX, OrderLine, Scale, TableRow};
use crate::workloads::tpcc::transactions::{self, Done, Kind as Ended};

/// The engine with TPC-C's tables, and the transactions that have ended.
pub(crate) struct FullTpcc {
    bed: Bed,
    is_strict: bool,
    /// Orders taken and payments made.
    taken: Mutex<u64>,
}

impl FullTpcc {
    /// Opens the engine with these settings, with tables of this kind.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open(
        name: &'static str,
        config: Config,
        kind: Kind,
        population: &Arc<Population>,
    ) -> LabResult<Self> {
        let is_strict = config.durability == Durability::Strict;
        let engine = Engine::open(config).map_err(|e| failed(name, e))?;
        let tpcc = Tpcc::new(|table| engine.table_with(table, kind), Arc::clone(population));
        let tpcc = tpcc.map_err(|e| failed(name, e))?;
        Ok(FullTpcc { bed: Bed { name, engine, tpcc }, is_strict, taken: Mutex::default() })
    }

    /// Writes the first value of every row that the load has, and takes a checkpoint.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn load(&self) -> LabResult<()> {
        load(&self.bed)?;
        self.checkpoint()
    }

    /// Takes a checkpoint.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn checkpoint(&self) -> LabResult<()> {
        self.bed.engine.checkpoint().map_err(|e| failed(self.bed.name, e)).map(drop)
    }

    /// The client of a worker, whose terminals belong to the worker's own share of the warehouses. With
    /// fewer warehouses than workers, terminals may belong to any warehouse.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn client(
        &self,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        let warehouses = self.bed.tpcc.population.scale.warehouses;
        let part = |n: usize| warehouses * n / workers;
        let homes =
            if warehouses < workers { 0..warehouses } else { part(worker)..part(worker + 1) };
        Ok(Box::new(Terminals {
            subject: self,
            session: self.bed.engine.session().map_err(|e| failed(self.bed.name, e))?,
            random: Random::for_thread(seed, worker),
            first_home: homes.start as u64,
            homes: homes.len() as u64,
            drawn: 0,
        }))
    }

    /// Checks the specification's consistency conditions, and that each order and each payment that was
    /// told is there.
    ///
    /// # Errors
    /// The first condition that does not hold.
    pub(crate) fn check(&self) -> LabResult<Checked> {
        let checked = check(&self.bed)?;
        let (there, taken) = (committed(&self.bed)?, *self.taken.lock());
        if there != taken {
            let reason = format!("{there} orders and payments are there, {taken} were told");
            return Err(failed(self.bed.name, reason));
        }
        Ok(checked)
    }

    /// Counts what an earlier opening has taken.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn go_on(&self) -> LabResult<()> {
        *self.taken.lock() = committed(&self.bed)?;
        Ok(())
    }

    /// Numbers of the pool.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn pool(&self) -> LabResult<PoolStats> {
        pool_of(self.bed.name, &self.bed.engine)
    }

    /// Closes the engine.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn close(self) -> LabResult<()> {
        self.bed.engine.close().map_err(|e| failed(self.bed.name, e))
    }
}

impl Checkpointed for FullTpcc {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(self.bed.name, &self.bed.engine)
    }

    fn status(&self) -> Status {
        status(&self.bed.engine)
    }
}

/// The terminals of a worker.
struct Terminals<'a> {
    subject: &'a FullTpcc,
    session: Session,
    random: Random,
    first_home: u64,
    homes: u64,
    drawn: u64,
}

impl Client for Terminals<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let Bed { name, tpcc, .. } = &self.subject.bed;
        let (mut ended, mut taken) = (0, 0);
        for _ in 0..count {
            let warehouse = (self.first_home + self.random.below(self.homes)) as u32;
            self.drawn += 1;
            let scale = &tpcc.population.scale;
            let drawn = Transaction::draw_of(scale, &mut self.random, warehouse, self.drawn);
            let done = self.session.transact(|tx| run(tpcc, &drawn, tx));
            let done = done.map_err(|e| failed(name, e))?;
            ended += usize::from(done.kind != Ended::RolledBack);
            taken += u64::from(matches!(done.kind, Ended::NewOrder | Ended::Payment));
        }
        *self.subject.taken.lock() += taken;
        if self.subject.is_strict {
            self.session.flush().map_err(|e| failed(name, e))?;
        }
        Ok(ended)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

/// Runs a transaction.
///
/// # Errors
/// A conflict, or the engine's refusal. The transaction is rolled back.
fn run(tpcc: &Tpcc, transaction: &Transaction, tx: &mut Tx<'_>) -> Result<Done, TxError> {
    let mut memory = InTables {
        tpcc,
        tx: RefCell::new(tx),
        failed: Cell::new(None),
        has_failed: Cell::new(false),
        announced: RefCell::default(),
        latest: Default::default(),
    };
    transactions::announce(&memory, &tpcc.population, transaction);
    let done = transactions::run(&mut memory, &tpcc.population, transaction);
    if done.kind == Ended::Refused {
        memory.fail(TxError::abandon("the district has no room for an order".to_owned()));
    }
    memory.failed.take().map_or(Ok(done), Err)
}

/// Rows that a transaction has announced.
#[derive(Default)]
struct Announced {
    /// Those of which the engine was not told yet.
    pending: Vec<(TableId, [u8; 8])>,
    /// Those that the transaction will write.
    written: Vec<(TableId, [u8; 8])>,
}

/// A row of a table that the transaction has locked.
#[derive(Clone, Copy)]
struct Locked {
    row: usize,
    slot: Slot,
    mode: Mode,
}

/// The rows of a transaction. The first failure is kept, and ends the transaction after it has run: all
/// reads give zeros from there on.
struct InTables<'a, 't> {
    tpcc: &'a Tpcc,
    tx: RefCell<&'a mut Tx<'t>>,
    failed: Cell<Option<TxError>>,
    has_failed: Cell<bool>,
    announced: RefCell<Announced>,
    /// The latest row of each table.
    latest: [Cell<Option<Locked>>; 10],
}

impl InTables<'_, '_> {
    #[cold]
    fn fail(&self, error: TxError) {
        self.has_failed.set(true);
        let first = self.failed.take();
        self.failed.set(first.or(Some(error)));
    }

    /// Locks a row, for writing if the transaction has announced that. `None` after a failure.
    fn slot<T: TableRow>(&self, row: usize, mode: Mode) -> Option<Slot> {
        if self.has_failed.get() {
            return None;
        }
        let latest = &self.latest[usize::from(T::TABLE)];
        if let Some(locked) = latest.get()
            && locked.row == row
            && locked.mode >= mode
        {
            return Some(locked.slot);
        }
        let (table, key) = (self.tpcc.table::<T>(), key(row));
        let mut tx = self.tx.borrow_mut();
        let announced = &mut *self.announced.borrow_mut();
        if !announced.pending.is_empty() {
            tx.prefetch(announced.pending.iter().copied());
            announced.pending.clear();
        }
        let mode = if announced.written.contains(&(table, key)) { Mode::Write } else { mode };
        match tx.key(table, &key, mode) {
            Ok(slot) => {
                latest.set(Some(Locked { row, slot, mode }));
                Some(slot)
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn read<T: TableRow>(&self, row: usize, offset: usize, bytes: &mut [u8]) {
        let Some(slot) = self.slot::<T>(row, Mode::Read) else { return };
        match self.tx.borrow_mut().value(slot) {
            Some(value) if value.len() == T::PACKED_BYTES => value.read_range(offset, bytes),
            _ => self.fail(TxError::abandon(format!("row {row} of {} is not there", T::NAME))),
        }
    }

    fn write<T: TableRow>(
        &self,
        row: usize,
        write: impl FnOnce(&mut Tx<'_>, Slot) -> Result<(), TxError>,
    ) {
        if let Some(slot) = self.slot::<T>(row, Mode::Write)
            && let Err(error) = write(&mut self.tx.borrow_mut(), slot)
        {
            self.fail(error);
        }
    }
}

impl Rows for InTables<'_, '_> {
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        F::read_with(|bytes| self.read::<T>(row, column.offset(), bytes))
    }

    fn row<T: TableRow>(&self, row: usize) -> T {
        T::read_with(|bytes| self.read::<T>(row, 0, bytes))
    }
}

impl Memory for InTables<'_, '_> {
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        value.write_with(|bytes| {
            self.write::<T>(row, |tx, slot| tx.patch_slot(slot, column.offset(), bytes));
        });
    }

    fn put<T: TableRow>(&mut self, row: usize, value: T) {
        value.write_with(|bytes| self.write::<T>(row, |tx, slot| tx.put_slot(slot, bytes)));
    }

    fn announce<T: TableRow, F: FieldValue>(&self, row: usize, _: Field<T, F>, intent: Intent) {
        let it = (self.tpcc.table::<T>(), key(row));
        let mut announced = self.announced.borrow_mut();
        if announced.pending.last() != Some(&it) {
            announced.pending.push(it);
        }
        if intent == Intent::Write {
            announced.written.push(it);
        }
    }

    /// The lines of orders that follow each other are a range of their table.
    fn items_of(
        &self,
        scale: &Scale,
        district: usize,
        orders: Range<u32>,
        items: &mut [u32; 20 * LINES_MAX],
    ) -> usize {
        let row = |order: u32| key(scale.order_row(district, order) * LINES_MAX);
        let (first, end) = (row(orders.start), row(orders.end));
        let mut count = 0;
        let mut read = || -> Result<(), TxError> {
            let mut tx = self.tx.borrow_mut();
            let mut lines = tx.range(self.tpcc.table::<OrderLine>(), &first[..]..&end[..])?;
            while let Some((_, line)) = lines.next_record()? {
                let Some(item) = items.get_mut(count) else { break };
                *item = u32::read_with(|bytes| line.read_range(OrderLine::ITEM.offset(), bytes));
                count += 1;
            }
            Ok(())
        };
        if !self.has_failed.get()
            && let Err(error) = read()
        {
            self.fail(error);
        }
        count
    }

    fn named(&self, _: &Population, district: usize, name: u32) -> u32 {
        if self.has_failed.get() {
            return 0;
        }
        let mut tx = self.tx.borrow_mut();
        let found = match tx.get(self.tpcc.names, &name_key(district, name)) {
            Ok(found) => found.and_then(middle_of).ok_or_else(|| {
                let what = format!("nobody in district {district} has last name {name}");
                TxError::abandon(what)
            }),
            Err(error) => Err(error),
        };
        found.unwrap_or_else(|error| {
            self.fail(error);
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::{Drive, run_clients};
    use crate::subjects::paged::{PoolSize, with_pool};
    use crate::workloads::tpcc::schema::Scale;

    #[test]
    fn conditions_hold_on_pages_larger_than_the_pool_and_after_a_crash() -> LabResult<()> {
        let population = Arc::new(Population::new(Scale::small(2).unbounded(), 3));
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let pool = PoolSize { pool_bytes: 1 << 20, page_bytes: 4096 };
        let open = || {
            let mut config = with_pool(dir.path(), pool);
            config.durability = Durability::Strict;
            config.page_growth_bytes = 1 << 20;
            FullTpcc::open("paged", config, Kind::Paged, &population)
        };
        let subject = open()?;
        subject.load()?;
        let at_first = subject.check()?;
        assert_eq!((at_first.orders, at_first.balances), (20 * 120, 20 * 120));
        let drive = Drive { seconds: 0.3, warm_up_s: 0.0, batch: 1, ..Drive::new(0) };
        let outcome = run_clients(&subject, &drive, &|worker| subject.client(2, worker, 5))?;
        assert!(outcome.transactions > 50, "{}", outcome.transactions);
        let checked = subject.check()?;
        assert!(checked.orders > at_first.orders && checked.history);
        assert!(subject.pool()?.evictions > 100, "{:?}", subject.pool()?);
        // A drop is like a crash.
        drop(subject);
        let subject = open()?;
        subject.go_on()?;
        assert_eq!(subject.check()?, checked);
        Ok(())
    }
}
