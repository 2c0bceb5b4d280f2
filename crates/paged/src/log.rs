//! The log of a table's changes, as the tree sees it.

use stillpoint_format::Stamp;
use stillpoint_format::page_log::ToUndo;
use stillpoint_txn::{LogRefused, Operation, OperationLog, TableId};

use crate::tree::PageLog;

/// The log of a transaction, for changes of one table.
pub(crate) struct TableLog<'l> {
    pub(crate) log: &'l mut dyn OperationLog,
    pub(crate) table: TableId,
    pub(crate) generation: u32,
}

impl PageLog for TableLog<'_> {
    fn append(&mut self, touched: &[Stamp], body: &[u8]) -> Result<Stamp, LogRefused> {
        let Self { table, generation, .. } = *self;
        let undo = ToUndo::part_of(body);
        let undo_bytes = ToUndo::record_bytes(undo);
        self.log.append(&Operation { table, generation, touched, body, undo, undo_bytes })
    }
}
