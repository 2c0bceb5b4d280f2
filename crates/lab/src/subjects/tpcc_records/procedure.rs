//! The procedures, and the rows that a transaction sees through its declared keys.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use stillpoint::{Arguments, Error, KeySet, Slot, StoredProcedure, TableId, Tx, TxError, ValueRef};
use stillpoint_state::{Field, FieldValue, Intent};

use crate::subjects::tpcc_records::slots::Slots;
use crate::workloads::tpcc::input::{CustomerKey, Transaction};
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::memory::{Memory, Rows};
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, Item, NewOrder, Order, OrderLine, Stock,
    TableRow, Warehouse,
};
use crate::workloads::tpcc::transactions::{Done, Kind, run};

/// The procedure that takes an order.
pub(super) const NEW_ORDER: &str = "new_order";
/// The procedure that makes a payment.
pub(super) const PAYMENT: &str = "payment";
/// The table of the secondary records.
const NAMES: &str = "customer_names";

/// A transaction with its terminal's expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The transaction.
    pub(super) transaction: Transaction,
    /// The number of the district's next order, or the rows of history that the warehouse has
    /// written.
    pub(super) expected: u64,
    /// The customer who pays.
    pub(super) customer: u32,
}

impl Arguments for Asked {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        self.transaction.encode(&mut bytes);
        (self.expected, self.customer, bytes).encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (expected, customer, bytes) = <(u64, u32, Vec<u8>)>::decode(bytes)?;
        Some(Asked { transaction: Transaction::decode(&bytes)?, expected, customer })
    }
}

/// The database of the transactions: its tables and its population.
#[derive(Clone, Debug)]
pub(super) struct Tpcc {
    pub(super) population: Arc<Population>,
    tables: [TableId; 10],
    /// Table of the secondary records: district and last name → numbers of customers.
    pub(super) names: TableId,
}

impl Tpcc {
    /// The database. `table` finds or creates its tables.
    ///
    /// # Errors
    /// The errors of `table`.
    pub(super) fn new(
        mut table: impl FnMut(&str) -> Result<TableId, Error>,
        population: Arc<Population>,
    ) -> Result<Self, Error> {
        // The tables stand in the order of their numbers.
        let tables = [
            table(Warehouse::NAME)?,
            table(District::NAME)?,
            table(Customer::NAME)?,
            table(History::NAME)?,
            table(NewOrder::NAME)?,
            table(Order::NAME)?,
            table(OrderLine::NAME)?,
            table(Item::NAME)?,
            table(Stock::NAME)?,
            table(Counters::NAME)?,
        ];
        Ok(Tpcc { population, tables, names: table(NAMES)? })
    }

    /// The table of a row.
    #[inline]
    pub(super) fn table<T: TableRow>(&self) -> TableId {
        self.tables[usize::from(T::TABLE)]
    }

    /// Declares the keys of a transaction.
    #[inline]
    pub(super) fn declare(&self, asked: &Asked, keys: &mut KeySet) {
        if let Some(slots) = Slots::of(&self.population.scale, asked) {
            slots.declare(self, keys);
        }
    }

    /// Runs a transaction. `None` if the expectation does not hold; then nothing was written.
    ///
    /// # Errors
    /// When the engine refuses, or a record is missing or was not declared. Then the transaction is
    /// rolled back.
    pub(super) fn run(&self, asked: &Asked, tx: &mut Tx<'_>) -> Result<Option<Done>, TxError> {
        let Some(slots) = Slots::of(&self.population.scale, asked) else {
            return Err(TxError::abandon("neither an order nor a payment".to_owned()));
        };
        let mut memory = InTransaction { tx: RefCell::new(tx), slots, failed: Cell::new(None) };
        if !self.holds(asked, &memory) {
            return memory.failed.take().map_or(Ok(None), Err);
        }
        let done = run(&mut memory, &self.population, &asked.transaction);
        if done.kind == Kind::Refused {
            memory.fail(TxError::abandon("the district has no room for an order".to_owned()));
        }
        memory.failed.take().map_or(Ok(Some(done)), Err)
    }

    /// Whether the expectation holds.
    #[inline]
    fn holds(&self, asked: &Asked, memory: &InTransaction<'_, '_>) -> bool {
        match asked.transaction {
            Transaction::NewOrder { district, .. } => {
                let next = memory.get(district as usize, District::NEXT_ORDER);
                // A transaction without a next order is rolled back, so its expectation does not
                // matter.
                u64::from(next) == asked.expected || memory.slots.rolls_back()
            }
            Transaction::Payment { district, customer_district, who, .. } => {
                let warehouse = district as usize / DISTRICTS;
                let customer = match who {
                    CustomerKey::Number(number) => number,
                    CustomerKey::Name(name) => {
                        memory.named(&self.population, customer_district as usize, name)
                    }
                };
                memory.get(warehouse, Counters::HISTORY) == asked.expected
                    && customer == asked.customer
            }
            _ => false,
        }
    }
}

/// A procedure of the engine. The procedure's result is the transaction's answer, or `None` if the
/// expectation does not hold.
#[derive(Debug)]
pub(super) struct Procedure(pub(super) Tpcc);

impl StoredProcedure for Procedure {
    type Input = Asked;
    type Output = Option<u64>;

    fn declare(&self, input: &Asked, keys: &mut KeySet) {
        self.0.declare(input, keys);
    }

    fn run(&self, input: &Asked, tx: &mut Tx<'_>) -> Result<Option<u64>, TxError> {
        Ok(self.0.run(input, tx)?.map(|done| done.answer))
    }
}

/// The rows of a transaction, read and written through its declared keys. The first failure is
/// kept, and ends the transaction after it has run.
struct InTransaction<'a, 't> {
    tx: RefCell<&'a mut Tx<'t>>,
    slots: Slots<'a>,
    failed: Cell<Option<TxError>>,
}

impl InTransaction<'_, '_> {
    #[cold]
    fn fail(&self, error: TxError) {
        let first = self.failed.take();
        self.failed.set(first.or(Some(error)));
    }

    #[cold]
    fn fail_at<T: TableRow>(&self, row: usize, what: &str) {
        self.fail(TxError::abandon(format!("row {row} of {} {what}", T::NAME)));
    }

    #[inline]
    fn slot<T: TableRow>(&self, row: usize) -> Option<Slot> {
        let slot = self.slots.slot::<T>(row);
        if slot.is_none() {
            self.fail_at::<T>(row, "was not declared");
        }
        slot
    }

    /// Reads bytes of a row, from an offset on.
    #[inline]
    fn read<T: TableRow>(&self, row: usize, offset: usize, bytes: &mut [u8]) {
        let Some(slot) = self.slot::<T>(row) else { return };
        match self.tx.borrow_mut().value(slot) {
            Some(value) if value.len() == T::PACKED_BYTES => value.read_range(offset, bytes),
            _ => self.fail_at::<T>(row, "is not there"),
        }
    }
}

impl Rows for InTransaction<'_, '_> {
    #[inline]
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        F::read_with(|bytes| self.read::<T>(row, column.offset(), bytes))
    }

    #[inline]
    fn row<T: TableRow>(&self, row: usize) -> T {
        T::read_with(|bytes| self.read::<T>(row, 0, bytes))
    }
}

impl Memory for InTransaction<'_, '_> {
    #[inline]
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        let Some(slot) = self.slot::<T>(row) else { return };
        value.write_with(|bytes| {
            let written = self.tx.borrow_mut().patch_slot(slot, column.offset(), bytes);
            if let Err(error) = written {
                self.fail(error);
            }
        });
    }

    #[inline]
    fn put<T: TableRow>(&mut self, row: usize, value: T) {
        let Some(slot) = self.slot::<T>(row) else { return };
        value.write_with(|bytes| {
            let written = self.tx.borrow_mut().put_slot(slot, bytes);
            if let Err(error) = written {
                self.fail(error);
            }
        });
    }

    /// The engine has prefetched the declared keys before.
    fn announce<T: TableRow, F: FieldValue>(&self, _: usize, _: Field<T, F>, _: Intent) {}

    fn named(&self, _: &Population, district: usize, name: u32) -> u32 {
        let slot = self.slots.name();
        let mut tx = self.tx.borrow_mut();
        let found = slot.and_then(|slot| middle_of(tx.value(slot)?));
        found.unwrap_or_else(|| {
            let what = format!("nobody in district {district} has last name {name}");
            self.fail(TxError::abandon(what));
            0
        })
    }
}

/// The customer in the middle of a secondary record.
pub(super) fn middle_of(value: ValueRef<'_>) -> Option<u32> {
    let last = (value.len() / 4).checked_sub(1)?;
    let mut number = [0; 4];
    value.read_range(last / 2 * 4, &mut number);
    Some(u32::from_le_bytes(number))
}
