//! TPC-C's NewOrder and Payment in the records of the engine, as procedures with declared keys
//! (SIGMOD 2016, §5.2). The transactions are those of the arrays:
//! [`transactions`](crate::workloads::tpcc::transactions).
//!
//! A row is a record, and its key is the row's number. A secondary record maps the last name of a
//! district's customers to their numbers.
//!
//! A transaction must declare its keys before it reads. But only a read can tell two parts of the
//! keys. One part is the number of the next order or row of history, and the other is the customer
//! of a last name. The [`terminal`] reads both parts beforehand and passes them to the
//! [`procedure`] as an expectation. The procedure compares the parts under its locks. If the
//! expectation does not hold, the procedure writes nothing and the terminal tries again.

mod check;
pub(crate) mod full;
mod load;
mod procedure;
mod slots;
mod terminal;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use stillpoint::{Durability, Engine};
use stillpoint_checkpoint::registry::REGISTRY;

use crate::error::LabResult;
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::subjects::records::USUAL;
use crate::subjects::stillpoint::{failed, measured, start_checkpoint, status};
use crate::workloads::tpcc::check::Checked;
use crate::workloads::tpcc::load::Population;
use procedure::{NEW_ORDER, PAYMENT, Procedure, Tpcc};
use terminal::Terminal;

/// A scheme, a journal and a durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The row's name in figures and commands.
    pub(crate) name: &'static str,
    /// The scheme's registered name.
    pub(crate) scheme: &'static str,
    /// The journal's registered name.
    pub(crate) journal: &'static str,
    /// Durability of commits.
    pub(crate) durability: Durability,
    /// Whether the scheme takes checkpoints.
    pub(crate) takes_checkpoints: bool,
}

/// The scheme of the rows with a journal.
const WITH_JOURNAL: &str = "calc";

/// A further scheme of the paper's Figure 7.
const OF_THE_PAPER: &str = "ping-pong";

/// All rows: First comes each usual checkpoint scheme by itself, the baseline before all.
/// Then comes CALC with each journal that keeps commits, in each of the journal's durabilities.
pub(crate) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let journals = &stillpoint_journal::registry::REGISTRY;
    let keeps = |journal: &&stillpoint_journal::registry::Row| journal.capabilities.records_commits;
    let none = journals.iter().find(|journal| !keeps(journal)).map_or("none", |row| row.name);
    let mut rows = Vec::new();
    let is_compared = |name: &str| USUAL.contains(&name) || name == OF_THE_PAPER;
    for scheme in REGISTRY.iter().filter(|scheme| is_compared(scheme.name)) {
        let takes_checkpoints = scheme.capabilities.takes_checkpoints();
        let (name, durability) = (scheme.name, Durability::Relaxed);
        let row = Row { name, scheme: name, journal: none, durability, takes_checkpoints };
        rows.insert(if takes_checkpoints { rows.len() } else { 0 }, row);
        if name != WITH_JOURNAL {
            continue;
        }
        for journal in journals.iter().filter(keeps) {
            for &durability in journal.durabilities {
                // The table is made once, and its names stay for the whole run.
                let name = format!("{name}, {} {}", journal.name, durability.as_str()).leak();
                rows.push(Row { name, journal: journal.name, durability, ..row });
            }
        }
    }
    rows
});

/// The row of a name that claims and experiments give.
///
/// # Panics
/// If the registries have no such row.
pub(crate) fn row(name: &str) -> Row {
    let found = ROWS.iter().find(|row| row.name == name);
    *found.unwrap_or_else(|| panic!("the registries have no row {name:?}"))
}

/// An engine with TPC-C's tables.
struct Bed {
    name: &'static str,
    engine: Engine,
    tpcc: Tpcc,
}

/// The engine with TPC-C's tables and procedures.
pub(crate) struct TpccRecords {
    bed: Bed,
    is_strict: bool,
    /// Number of attempts whose expectation did not hold.
    retries: Mutex<u64>,
}

impl TpccRecords {
    /// Opens the engine and recovers the data in the directory.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn open(
        row: Row,
        population: &Arc<Population>,
        dir: &Path,
        pace_bytes_per_s: Option<u64>,
    ) -> LabResult<Self> {
        let mut config = measured(dir, row.scheme, row.journal);
        config.durability = row.durability;
        config.checkpoint_pace = pace_bytes_per_s;
        config.sessions = 16;
        let mut builder = Engine::builder(config);
        for name in [NEW_ORDER, PAYMENT] {
            let population = Arc::clone(population);
            builder = builder.procedure(name, move |tables| {
                Tpcc::new(|name| tables.table(name), population).map(Procedure)
            });
        }
        let opened = |e| failed(row.name, e);
        let engine = builder.open().map_err(opened)?;
        let population = Arc::clone(population);
        let tpcc = Tpcc::new(|name| engine.table(name), population).map_err(opened)?;
        let is_strict = row.durability == Durability::Strict;
        let bed = Bed { name: row.name, engine, tpcc };
        Ok(TpccRecords { bed, is_strict, retries: Mutex::default() })
    }

    /// Writes the first value of every row that the load has.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn load(&self) -> LabResult<()> {
        load::load(&self.bed)
    }

    /// The client of one of `workers` workers. The client's terminals belong to the worker's own
    /// share of the warehouses. With fewer warehouses than workers, terminals may belong to any
    /// warehouse.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn client(
        &self,
        workers: usize,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        Ok(Box::new(Terminal::new(self, workers, worker, seed)?))
    }

    /// A client that draws NewOrder alone.
    ///
    /// # Errors
    /// When there are too many sessions.
    pub(crate) fn orders(&self, seed: u64) -> LabResult<Box<dyn Client + '_>> {
        Ok(Box::new(Terminal::new(self, 1, 0, seed)?.of_orders()))
    }

    /// Checks the specification's consistency conditions.
    ///
    /// # Errors
    /// The first condition that does not hold.
    pub(crate) fn check(&self) -> LabResult<Checked> {
        check::check(&self.bed)
    }

    /// Orders taken and payments made since the load.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) fn committed(&self) -> LabResult<u64> {
        check::committed(&self.bed)
    }

    /// Number of repeated attempts, made because an expectation did not hold.
    pub(crate) fn retries(&self) -> u64 {
        *self.retries.lock()
    }
}

impl Checkpointed for TpccRecords {
    fn start_checkpoint(&self) -> LabResult<()> {
        start_checkpoint(self.bed.name, &self.bed.engine)
    }

    fn status(&self) -> Status {
        status(&self.bed.engine)
    }
}

#[cfg(test)]
mod tests;
