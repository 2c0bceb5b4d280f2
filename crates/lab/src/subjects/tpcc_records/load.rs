//! The first rows, as records.

use std::ops::Range;

use stillpoint::{Batch, KeySet, Mode, Session, Slot, Stamp, TableId, Tx, TxError};

use crate::error::LabResult;
use crate::subjects::stillpoint::failed;
use crate::subjects::tpcc_records::Bed;
use crate::subjects::tpcc_records::slots::{key, name_key};
use crate::workloads::tpcc::input::names;
use crate::workloads::tpcc::load::First;
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, Item, LINES_MAX, NewOrder, Order, OrderLine,
    Stock, Warehouse,
};

/// Records that one transaction writes.
const RECORDS: usize = 16;

/// Writes all first rows. Each thread writes the rows of its warehouses.
///
/// # Errors
/// When the engine refuses.
pub(super) fn load(bed: &Bed) -> LabResult<()> {
    let warehouses = bed.tpcc.population.scale.warehouses;
    let threads = stillpoint_io::cpu_count().clamp(1, warehouses);
    let part = |n: usize| warehouses * n / threads;
    let jobs = (0..threads).map(|n| {
        move || {
            let session = bed.engine.session().map_err(|e| failed(bed.name, e))?;
            let mut loader = Loader { bed, session, records: Vec::new() };
            if n == 0 {
                loader.rows::<Item>(0..bed.tpcc.population.scale.items)?;
            }
            (part(n)..part(n + 1)).try_for_each(|warehouse| loader.warehouse(warehouse))?;
            loader.session.flush().map_err(|e| failed(bed.name, e))
        }
    });
    let done = stillpoint_io::in_parallel("load", jobs.collect());
    done.map_err(|e| failed(bed.name, e))?.into_iter().collect()
}

struct Loader<'a> {
    bed: &'a Bed,
    session: Session,
    records: Vec<Record>,
}

struct Record {
    table: TableId,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Loader<'_> {
    fn warehouse(&mut self, warehouse: usize) -> LabResult<()> {
        let bed = self.bed;
        let population = &bed.tpcc.population;
        let scale = population.scale;
        let districts = warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS;
        self.rows::<Warehouse>(warehouse..warehouse + 1)?;
        self.rows::<Counters>(warehouse..warehouse + 1)?;
        self.rows::<District>(districts.clone())?;
        self.rows::<Stock>(scale.stock_row(warehouse, 0)..scale.stock_row(warehouse + 1, 0))?;
        let first = scale.history_row(warehouse, 0);
        self.rows::<History>(first..first + DISTRICTS * scale.customers)?;
        for district in districts {
            let first = scale.customer_row(district, 0);
            self.rows::<Customer>(first..first + scale.customers)?;
            for name in 0..names(&scale) as u32 {
                let named = population.by_name(district, name);
                let value = named.iter().flat_map(|number| number.to_le_bytes()).collect();
                let key = name_key(district, name).to_vec();
                self.add(Record { table: bed.tpcc.names, key, value })?;
            }
            for order in (1..=scale.customers).map(|n| scale.order_row(district, n as u32)) {
                self.rows::<Order>(order..order + 1)?;
                if NewOrder::first(population, order).order != 0 {
                    self.rows::<NewOrder>(order..order + 1)?;
                }
                let lines = usize::from(Order::first(population, order).lines);
                self.rows::<OrderLine>(order * LINES_MAX..order * LINES_MAX + lines)?;
            }
        }
        self.write()
    }

    fn rows<T: First>(&mut self, rows: Range<usize>) -> LabResult<()> {
        let bed = self.bed;
        for row in rows {
            let mut value = vec![0; T::PACKED_BYTES];
            T::first(&bed.tpcc.population, row).into_bytes(&mut value);
            self.add(Record { table: bed.tpcc.table::<T>(), key: key(row).to_vec(), value })?;
        }
        Ok(())
    }

    fn add(&mut self, record: Record) -> LabResult<()> {
        self.records.push(record);
        if self.records.len() == 16 * RECORDS { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> LabResult<()> {
        let mut batch = Writing { records: &self.records, failed: None };
        self.session.execute(&mut batch);
        let refused = batch.failed;
        self.records.clear();
        refused.map_or(Ok(()), |reason| Err(failed(self.bed.name, reason)))
    }
}

struct Writing<'a> {
    records: &'a [Record],
    failed: Option<String>,
}

impl Writing<'_> {
    fn of(&self, index: usize) -> &[Record] {
        let end = self.records.len().min((index + 1) * RECORDS);
        &self.records[index * RECORDS..end]
    }
}

impl Batch for Writing<'_> {
    fn len(&self) -> usize {
        self.records.len().div_ceil(RECORDS)
    }

    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        for record in self.of(index) {
            keys.push(record.table, &record.key, Mode::Write, record.value.len());
        }
    }

    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut records = self.of(index).iter().enumerate();
        records.try_for_each(|(slot, record)| tx.put_slot(Slot(slot as u32), &record.value))
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}
