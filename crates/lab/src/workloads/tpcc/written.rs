//! Counts which rows the transactions of a trace write.

use std::collections::BTreeMap;

use stillpoint_state::{Field, FieldValue, Intent};

use crate::workloads::tpcc::memory::{Memory, Rows};
use crate::workloads::tpcc::schema::TableRow;

/// How much transactions have written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Written {
    /// Writes of rows or of their columns.
    pub(crate) writes: u64,
    /// Bytes of the rows that were written at least once.
    pub(crate) bytes: u64,
}

/// Tables that note which of their rows are written.
#[derive(Debug)]
pub(crate) struct Noting<M> {
    memory: M,
    /// Whether each row was written, for the number of each table.
    rows: BTreeMap<u8, Vec<bool>>,
    /// What has been written so far.
    pub(crate) written: Written,
}

impl<M: Memory> Noting<M> {
    /// Notes what is written to these tables from now on.
    pub(crate) fn new(memory: M) -> Self {
        Noting { memory, rows: BTreeMap::new(), written: Written::default() }
    }

    fn note<T: TableRow>(&mut self, row: usize) {
        self.written.writes += 1;
        let rows = self.rows.entry(T::TABLE).or_default();
        if row >= rows.len() {
            rows.resize(row + 1, false);
        }
        if !std::mem::replace(&mut rows[row], true) {
            self.written.bytes += T::BYTES as u64;
        }
    }
}

impl<M: Memory> Rows for Noting<M> {
    fn get<T: TableRow, F: FieldValue>(&self, row: usize, column: Field<T, F>) -> F {
        self.memory.get(row, column)
    }

    fn row<T: TableRow>(&self, row: usize) -> T {
        self.memory.row(row)
    }
}

impl<M: Memory> Memory for Noting<M> {
    fn set<T: TableRow, F: FieldValue>(&mut self, row: usize, column: Field<T, F>, value: F) {
        self.note::<T>(row);
        self.memory.set(row, column, value);
    }

    fn put<T: TableRow>(&mut self, row: usize, value: T) {
        self.note::<T>(row);
        self.memory.put(row, value);
    }

    fn announce<T: TableRow, F: FieldValue>(
        &self,
        row: usize,
        column: Field<T, F>,
        intent: Intent,
    ) {
        self.memory.announce(row, column, intent);
    }
}
