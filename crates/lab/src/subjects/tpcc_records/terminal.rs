//! The terminals of one worker. The terminals draw transactions, read what each transaction must
//! expect, and try again if the expectation did not hold.

use stillpoint::{Arguments, Batch, Call, KeySet, Session, Stamp, StoredProcedure, Tx, TxError};

use crate::error::LabResult;
use crate::subjects::adapter::Client;
use crate::subjects::stillpoint::failed;
use crate::subjects::tpcc_records::TpccRecords;
use crate::subjects::tpcc_records::procedure::{Asked, NEW_ORDER, PAYMENT, Procedure, Tpcc};
use crate::subjects::tpcc_records::slots::{key, name_key};
use crate::workloads::random::Random;
use crate::workloads::tpcc::input::{CustomerKey, Transaction};
use crate::workloads::tpcc::memory::middle;
use crate::workloads::tpcc::schema::{Counters, DISTRICTS, District, TableRow};
use crate::workloads::tpcc::transactions::Kind;

/// Number of attempts after which the terminal reports an error.
const ROUNDS_MAX: usize = 1_000;

/// The terminals of a worker.
pub(super) struct Terminal<'a> {
    subject: &'a TpccRecords,
    session: Session,
    random: Random,
    /// Warehouses of the terminals.
    first_home: u64,
    homes: u64,
    drawn: u64,
    /// Whether the terminals draw NewOrder alone.
    orders_alone: bool,
    /// Expected number of each district's next order. `None` if it was not read yet.
    next_orders: Vec<Option<u64>>,
    /// Expected rows of history of each warehouse.
    histories: Vec<Option<u64>>,
    batch: Vec<Asked>,
    bytes: Vec<u8>,
}

impl<'a> Terminal<'a> {
    /// The terminals of worker number `worker` out of `workers`.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(super) fn new(
        subject: &'a TpccRecords,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<Self> {
        let scale = subject.bed.tpcc.population.scale;
        let warehouses = scale.warehouses;
        let part = |n: usize| warehouses * n / workers;
        let homes =
            if warehouses < workers { 0..warehouses } else { part(worker)..part(worker + 1) };
        Ok(Terminal {
            subject,
            session: subject.bed.engine.session().map_err(|e| failed(subject.bed.name, e))?,
            random: Random::for_thread(seed, worker),
            first_home: homes.start as u64,
            homes: homes.len() as u64,
            drawn: 0,
            orders_alone: false,
            next_orders: vec![None; scale.districts()],
            histories: vec![None; warehouses],
            batch: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// The same terminals, with NewOrder alone.
    pub(super) fn of_orders(self) -> Self {
        Terminal { orders_alone: true, ..self }
    }

    pub(super) fn draw(&mut self) -> Transaction {
        let warehouse = (self.first_home + self.random.below(self.homes)) as u32;
        self.drawn += 1;
        let scale = &self.subject.bed.tpcc.population.scale;
        loop {
            let drawn = Transaction::draw_half(scale, &mut self.random, warehouse, self.drawn);
            if !self.orders_alone || matches!(drawn, Transaction::NewOrder { .. }) {
                return drawn;
            }
        }
    }

    /// A transaction with its expectation, which assumes that all transactions before it in the
    /// batch commit.
    fn expect(&mut self, transaction: Transaction) -> LabResult<Asked> {
        let items = self.subject.bed.tpcc.population.scale.items;
        match transaction {
            Transaction::Payment { district, customer_district, who, .. } => {
                let customer = match who {
                    CustomerKey::Number(number) => number,
                    CustomerKey::Name(name) => self.named(customer_district as usize, name)?,
                };
                let warehouse = district as usize / DISTRICTS;
                let expected = match self.histories[warehouse] {
                    Some(known) => known,
                    None => self.column::<Counters>(warehouse, Counters::HISTORY.offset(), 8)?,
                };
                self.histories[warehouse] = Some(expected + 1);
                Ok(Asked { transaction, expected, customer })
            }
            Transaction::NewOrder { district, count, lines, .. } => {
                let district = district as usize;
                let expected = match self.next_orders[district] {
                    Some(known) => known,
                    None => self.column::<District>(district, District::NEXT_ORDER.offset(), 4)?,
                };
                let mut lines = lines[..usize::from(count)].iter();
                let is_taken = lines.all(|line| (line.item as usize) < items);
                self.next_orders[district] = Some(expected + u64::from(is_taken));
                Ok(Asked { transaction, expected, customer: 0 })
            }
            other => Err(failed(self.subject.bed.name, format!("no terminal asks for {other:?}"))),
        }
    }

    /// Forgets the expectations on the district and warehouse of a transaction.
    fn forget(&mut self, transaction: &Transaction) {
        match *transaction {
            Transaction::Payment { district, .. } => {
                self.histories[district as usize / DISTRICTS] = None;
            }
            Transaction::NewOrder { district, .. } => self.next_orders[district as usize] = None,
            _ => {}
        }
    }

    /// The customer in the middle of those of a last name, from the secondary record.
    pub(super) fn named(&mut self, district: usize, name: u32) -> LabResult<u32> {
        self.bytes.clear();
        let key = name_key(district, name);
        let found = self.session.read(self.subject.bed.tpcc.names, &key, &mut self.bytes);
        found.map_err(|e| failed(self.subject.bed.name, e))?;
        let numbers: Vec<u32> =
            self.bytes.as_chunks::<4>().0.iter().map(|n| u32::from_le_bytes(*n)).collect();
        if numbers.is_empty() {
            let reason = format!("nobody in district {district} has last name {name}");
            return Err(failed(self.subject.bed.name, reason));
        }
        Ok(middle(&numbers))
    }

    /// Reads the number in some bytes of a record.
    fn column<T: TableRow>(&mut self, row: usize, offset: usize, len: usize) -> LabResult<u64> {
        self.bytes.clear();
        let table = self.subject.bed.tpcc.table::<T>();
        let found = self.session.read(table, &key(row), &mut self.bytes);
        found.map_err(|e| failed(self.subject.bed.name, e))?;
        let mut number = [0; 8];
        match self.bytes.get(offset..offset + len) {
            Some(bytes) => number[..len].copy_from_slice(bytes),
            None => {
                let reason = format!("row {row} of {} is not there", T::NAME);
                return Err(failed(self.subject.bed.name, reason));
            }
        }
        Ok(u64::from_le_bytes(number))
    }

    /// Runs the batch. Transactions whose expectation did not hold stay in the batch. Returns how
    /// many committed.
    fn execute(&mut self) -> LabResult<usize> {
        let moved = vec![false; self.batch.len()];
        let mut running = Running {
            tpcc: &self.subject.bed.tpcc,
            batch: &self.batch,
            moved,
            committed: 0,
            failed: None,
        };
        self.session.execute(&mut running);
        let Running { moved, committed, failed: refused, .. } = running;
        if let Some(reason) = refused {
            return Err(failed(self.subject.bed.name, reason));
        }
        let mut moved = moved.into_iter();
        self.batch.retain(|_| moved.next().unwrap_or(false));
        Ok(committed)
    }

    /// Reads new expectations for the transactions that stayed in the batch.
    fn expect_anew(&mut self) -> LabResult<()> {
        *self.subject.retries.lock() += self.batch.len() as u64;
        let batch = std::mem::take(&mut self.batch);
        batch.iter().for_each(|asked| self.forget(&asked.transaction));
        for asked in batch {
            let asked = self.expect(asked.transaction)?;
            self.batch.push(asked);
        }
        Ok(())
    }

    /// Calls the procedure of one drawn transaction by its name, until the expectation holds.
    ///
    /// # Errors
    /// When the engine refuses.
    #[cfg(test)]
    pub(super) fn call(&mut self) -> LabResult<u64> {
        let transaction = self.draw();
        let name = name_of(&transaction);
        loop {
            let asked = self.expect(transaction)?;
            let answer: Option<u64> =
                self.session.call(name, &asked).map_err(|e| failed(self.subject.bed.name, e))?;
            match answer {
                Some(answer) => return Ok(answer),
                None => self.forget(&transaction),
            }
        }
    }
}

impl Client for Terminal<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        for _ in 0..count {
            let transaction = self.draw();
            let asked = self.expect(transaction)?;
            self.batch.push(asked);
        }
        let mut committed = self.execute()?;
        let mut rounds = 0;
        while !self.batch.is_empty() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                let reason = format!("{:?} never finds what it expects", self.batch[0]);
                return Err(failed(self.subject.bed.name, reason));
            }
            self.expect_anew()?;
            committed += self.execute()?;
        }
        if self.subject.is_strict {
            self.session.flush().map_err(|e| failed(self.subject.bed.name, e))?;
        }
        Ok(committed)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

/// The procedure of a transaction.
fn name_of(transaction: &Transaction) -> &'static str {
    if matches!(transaction, Transaction::Payment { .. }) { PAYMENT } else { NEW_ORDER }
}

/// A batch of transactions that run the code of the procedures.
struct Running<'a> {
    tpcc: &'a Tpcc,
    batch: &'a [Asked],
    /// Transactions whose expectation did not hold.
    moved: Vec<bool>,
    /// Orders taken and payments made.
    committed: usize,
    failed: Option<String>,
}

impl Batch for Running<'_> {
    fn len(&self) -> usize {
        self.batch.len()
    }

    #[inline]
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.tpcc.declare(&self.batch[index], keys);
    }

    fn call(&mut self, index: usize, call: &mut Call) {
        let asked = &self.batch[index];
        call.set_procedure(name_of(&asked.transaction), <Procedure as StoredProcedure>::VERSION);
        asked.encode(&mut call.arguments);
    }

    #[inline]
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let done = self.tpcc.run(&self.batch[index], tx)?;
        self.moved[index] = done.is_none();
        self.committed += usize::from(done.is_some_and(|done| done.kind != Kind::RolledBack));
        Ok(())
    }

    fn ended(&mut self, _index: usize, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.to_string());
        }
    }
}
