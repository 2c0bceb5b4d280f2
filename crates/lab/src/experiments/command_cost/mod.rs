//! `command-cost`: the cost of a log of calls to the microbenchmark, beside redo.
//!
//! | part | what is compared |
//! |---|---|
//! | throughput | transactions and bytes of log with calls, without a journal, and with redo |
//! | replay | the replay of calls with their first run, and with the replay of redo |
//! | long | bytes of log of a long transaction |
//! | bytes | bytes of log of other transactions and of commands of the server |
//!
//! Engines with the same scheme run in turn on the same data. All bytes of an updated value change,
//! which is the most for redo and nothing more for a call. An uncounted checkpoint between the runs
//! gives the logs their segments back.

mod bytes;
mod replay;
mod throughput;

use serde::Serialize;

use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::records::{CALC_UNPACED, Row, row as row_of};
use crate::sys;
use crate::workloads::calc::{Change, LongTransaction};

const SOURCE: &str = "Stillpoint";
const PARTS: [&str; 4] = ["throughput", "replay", "long", "bytes"];
/// Transactions that the part `long` runs.
const LONG_TRANSACTIONS: u64 = 100;
/// Time after which relaxed durability has written every commit.
const WRITTEN: std::time::Duration = std::time::Duration::from_millis(1_500);

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Runs of each journal.
    pub(crate) runs: usize,
    /// Length of a run.
    pub(crate) run_s: f64,
    /// Records of part `replay`.
    pub(crate) replay_records: u64,
    /// Length of the run whose log is replayed.
    pub(crate) replayed_s: f64,
    /// Runs and replays of each journal and kind of transaction.
    pub(crate) replays: usize,
    /// Records that the transactions of part `replay` update, of ten that they read.
    pub(crate) replay_writes: Vec<usize>,
    /// Records that a long transaction updates.
    pub(crate) long_writes: u64,
    /// Transactions of each kind in part `bytes`.
    pub(crate) logged: u64,
}

/// The experiment.
pub(crate) struct CommandCost;

impl Experiment for CommandCost {
    const ID: &'static str = "command-cost";
    const TITLE: &'static str = "The cost of a log of calls";
    const PAPER: &'static str =
        "The project's own bounds; workload of Ren et al., SIGMOD 2016 (CALC), §5.1";
    const PARTS: &'static [&'static str] = &PARTS;
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 5_000_000,
            runs: 5,
            run_s: 5.0,
            replay_records: 2_000_000,
            replayed_s: 2.0,
            replays: 3,
            replay_writes: vec![1, 2, 4, 7, 10],
            long_writes: 1_000,
            logged: 20_000,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            runs: 1,
            run_s: 0.3,
            replay_records: 20_000,
            replayed_s: 0.3,
            replays: 1,
            replay_writes: vec![1, 10],
            logged: 800,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.replays = asked.runs.unwrap_or(plan.replays).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("scheme", compared().scheme);
        result.parameter("durability", "relaxed");
        let parts = [throughput::throughput, replay::replay, long, bytes::bytes];
        for (name, part) in PARTS.iter().zip(parts) {
            if bench.context.wants(name) {
                result.in_part(name, |result| part(bench, plan, result))?;
            }
        }
        Ok(())
    }
}

/// The scheme of all engines.
fn compared() -> Row {
    row_of(CALC_UNPACED)
}

fn table(title: &str, columns: &[&str]) -> Table {
    let columns = columns.iter().map(|&column| column.into()).collect();
    Table { title: title.into(), columns, ..Table::default() }
}

const LONG_BYTES: ClaimRow =
    ClaimRow::new("bytes of log of a long transaction", SOURCE, Bound::AtMost(0.01))
        .between("command", "redo");

/// Bytes of log of the batch writes of calc-fig2, without their pauses.
fn long(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let records = plan.long_writes * 10;
    let mut table = table("Bytes of log of a long transaction", &["journal", "updates", "bytes"]);
    let mut all = Vec::new();
    for journal in ["command", "redo"] {
        let bed = bench.open_loaded(compared(), records, journal)?;
        sys::sleep(WRITTEN);
        let before = bed.engine.status().journal_bytes;
        let mut session = bed.engine.session()?;
        for n in 0..LONG_TRANSACTIONS {
            let first = n * 7 % (records - plan.long_writes);
            let transaction = LongTransaction { keys: (first..first + plan.long_writes).collect() };
            session.run_long(&transaction, Change::Whole, &mut || ())?;
        }
        drop(session);
        sys::sleep(WRITTEN);
        let bytes = (bed.engine.status().journal_bytes - before) as f64 / LONG_TRANSACTIONS as f64;
        table.rows.push(vec![journal.into(), grouped(plan.long_writes), format!("{bytes:.0}")]);
        all.push(bytes);
        bed.clear()?;
    }
    result.claims.push(LONG_BYTES.claim("").measured(all[0] / all[1]));
    result.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;

    #[test]
    fn every_claim_is_measured() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let open = &crate::subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        let result = run_plan::<CommandCost>(&bench, &CommandCost::quick())?;
        assert_eq!(result.claims.len(), 5 + 2 + 1 + 1);
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()), "{:?}", result.claims);
        assert_eq!(result.tables.len(), 5);
        let rows = result.tables.iter().map(|table| table.rows.len());
        assert_eq!(rows.collect::<Vec<_>>(), [4, 6, 2, 2, 4]);
        let is_whole = |table: &Table| table.rows.iter().all(|r| r.len() == table.columns.len());
        assert!(result.tables.iter().all(is_whole));
        // A long transaction's record is short, and holds none of its thousand values.
        let long = result.claims.get(7).and_then(|claim| claim.measured);
        assert!(long.is_some_and(|ratio| ratio < 0.01), "{long:?}");
        Ok(())
    }
}
