//! The consistency conditions, on the records of the engine.

use std::cell::RefCell;

use stillpoint::{Session, TableId};
use stillpoint_state::{Field, FieldValue};

use crate::error::LabResult;
use crate::subjects::stillpoint::failed;
use crate::subjects::tpcc_records::Bed;
use crate::subjects::tpcc_records::slots::key;
use crate::workloads::tpcc::check::{Checked, check as check_conditions};
use crate::workloads::tpcc::memory::Rows;
use crate::workloads::tpcc::schema::{
    Counters, DISTRICTS, District, History, NewOrder, Order, TableRow,
};

/// Checks all conditions. Also checks that no rows exist but those of orders and of counted
/// history.
///
/// # Errors
/// The first condition that does not hold, or an error of the engine.
pub(super) fn check(bed: &Bed) -> LabResult<Checked> {
    let scale = bed.tpcc.population.scale;
    let rows = InStore::new(bed)?;
    let checked = check_conditions(&rows, &scale);
    rows.finish()?;
    let checked = checked.map_err(|reason| failed(bed.name, reason))?;
    let waiting = scale.districts() * (scale.customers - scale.delivered_at_first());
    let taken = checked.orders - (scale.districts() * scale.customers) as u64;
    let history = (0..scale.warehouses).map(|warehouse| rows.get(warehouse, Counters::HISTORY));
    let expected: [(&str, TableId, u64); 3] = [
        (Order::NAME, bed.tpcc.table::<Order>(), checked.orders),
        (NewOrder::NAME, bed.tpcc.table::<NewOrder>(), waiting as u64 + taken),
        (History::NAME, bed.tpcc.table::<History>(), history.sum()),
    ];
    rows.finish()?;
    for (name, table, expected) in expected {
        let found = bed.engine.len(table);
        if found != expected {
            let reason = format!("{name} has {found} records, not {expected}");
            return Err(failed(bed.name, reason));
        }
    }
    Ok(checked)
}

/// Orders taken and payments made since the load.
///
/// # Errors
/// An error of the engine.
pub(super) fn committed(bed: &Bed) -> LabResult<u64> {
    let scale = bed.tpcc.population.scale;
    let rows = InStore::new(bed)?;
    let next = |district| u64::from(rows.get(district, District::NEXT_ORDER));
    let orders: u64 = (0..scale.districts()).map(|d| next(d) - scale.customers as u64 - 1).sum();
    let history = (0..scale.warehouses).map(|warehouse| rows.get(warehouse, Counters::HISTORY));
    let payments = history.sum::<u64>() - (scale.warehouses * DISTRICTS * scale.customers) as u64;
    rows.finish()?;
    Ok(orders + payments)
}

/// The tables of an engine in which no transaction runs.
pub(super) struct InStore<'a> {
    bed: &'a Bed,
    reading: RefCell<Reading>,
}

struct Reading {
    session: Session,
    /// Decodes `bytes` into a row.
    last: Option<(u8, usize)>,
    bytes: Vec<u8>,
    failed: Option<String>,
}

impl<'a> InStore<'a> {
    /// The tables, read through a session of their own.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(super) fn new(bed: &'a Bed) -> LabResult<Self> {
        let session = bed.engine.session().map_err(|e| failed(bed.name, e))?;
        let reading = Reading { session, last: None, bytes: Vec::new(), failed: None };
        Ok(InStore { bed, reading: RefCell::new(reading) })
    }

    /// The error of a failed read.
    fn finish(&self) -> LabResult<()> {
        let reason = self.reading.borrow_mut().failed.take();
        reason.map_or(Ok(()), |reason| Err(failed(self.bed.name, reason)))
    }

    fn read<T: TableRow>(&self, row: usize, offset: usize, out: &mut [u8]) {
        let reading = &mut *self.reading.borrow_mut();
        if reading.last != Some((T::TABLE, row)) {
            reading.bytes.clear();
            let table = self.bed.tpcc.table::<T>();
            let found = reading.session.read(table, &key(row), &mut reading.bytes);
            if let Err(error) = found {
                reading.failed.get_or_insert(error.to_string());
            }
            reading.last = Some((T::TABLE, row));
        }
        match reading.bytes.get(offset..offset + out.len()) {
            Some(bytes) => out.copy_from_slice(bytes),
            None if reading.bytes.is_empty() => out.fill(0),
            None => {
                let reason = format!("row {row} of {} has another length", T::NAME);
                reading.failed.get_or_insert(reason);
            }
        }
    }
}

impl Rows for InStore<'_> {
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        F::read_with(|bytes| self.read::<T>(row, column.offset(), bytes))
    }

    fn row<T: TableRow>(&self, row: usize) -> T {
        T::read_with(|bytes| self.read::<T>(row, 0, bytes))
    }
}
