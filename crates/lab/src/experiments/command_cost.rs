//! `command-cost`: what a log of calls costs the microbenchmark, beside redo.
//!
//! Three engines with the same scheme run in turn on the same data: without a journal, with the calls of
//! procedures, and with the values that they write. All bytes of each value change, which is the most for
//! redo and nothing more for a call. An uncounted checkpoint between the runs gives the logs their
//! segments back.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::harness::{Harness, Instance};
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::records::{CALC_UNPACED, data_bytes, row as row_of};
use crate::sys;
use crate::workloads::calc::Change;

const SOURCE: &str = "Stillpoint";

/// The journals, in the order of the runs.
const JOURNALS: [&str; 3] = ["none", "command", "redo"];

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Runs of each journal.
    pub(crate) runs: usize,
    /// Length of a run.
    pub(crate) run_s: f64,
}

/// The experiment.
pub(crate) struct CommandCost;

impl Experiment for CommandCost {
    const ID: &'static str = "command-cost";
    const TITLE: &'static str = "What a log of calls costs";
    const PAPER: &'static str =
        "The project's own bounds; workload of Ren et al., SIGMOD 2016 (CALC), §5.1";
    type Plan = Plan;

    fn full() -> Plan {
        Plan { records: 5_000_000, runs: 5, run_s: 5.0 }
    }

    fn quick() -> Plan {
        Plan { records: 100_000, runs: 1, run_s: 0.3 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        let compared = row_of(CALC_UNPACED);
        result.parameter("scheme", compared.scheme);
        result.parameter("durability", "relaxed");
        crash::check_rows(bench, &[compared], "command", plan.records.min(1_000_000), result)?;
        let columns = ["workers", "none txn/s", "command txn/s", "redo txn/s", "command B/txn", "redo B/txn"];
        let mut table = Table {
            title: "Throughput and bytes of log by journal".into(),
            columns: columns.map(String::from).to_vec(),
            rows: Vec::new(),
            ..Table::default()
        };
        let beds = JOURNALS
            .iter()
            .map(|journal| bench.open_loaded(compared, plan.records, journal))
            .collect::<LabResult<Vec<_>>>()?;
        let mut shares = Vec::new();
        for workers in [1, 2] {
            let runs = runs(bench, plan, &beds, workers)?;
            let of = if workers == 1 { "1 worker" } else { "2 workers" };
            let ratios: Vec<f64> = runs.iter().map(|run| run[1].rate() / run[0].rate()).collect();
            result.claims.push(THROUGHPUT.claim(of).measured_runs(&ratios));
            shares.extend(runs.iter().map(|run| log_bytes(&run[1]) / log_bytes(&run[2])));
            table.rows.push(row(workers, &runs));
        }
        result.claims.push(BYTES.claim("").measured_runs(&shares));
        result.tables.push(table);
        beds.into_iter().try_for_each(Instance::clear)
    }
}

const THROUGHPUT: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(0.9)).between("command", "no journal");
const BYTES: ClaimRow =
    ClaimRow::new("bytes of log per transaction", SOURCE, Bound::AtMost(0.25))
        .between("command", "redo with whole values");

/// One run of each journal, in turn.
type Run = [Outcome; 3];

fn runs(
    bench: &Harness<'_>,
    plan: &Plan,
    beds: &[Instance<'_>],
    workers: usize,
) -> LabResult<Vec<Run>> {
    let seconds = plan.run_s;
    let drive = Drive { workers, change: Change::Whole, ..Drive::new(plan.records) };
    let one = |bed: &Instance<'_>, seed| -> LabResult<Outcome> {
        let drive = Drive { seed, seconds, warm_up_s: seconds / 20.0, ..drive.clone() };
        let outcome = transactions::run(&*bed.engine, &drive)?;
        take_checkpoint(bed)?;
        Ok(outcome)
    };
    (1..=plan.runs as u64)
        .map(|seed| {
            let run = [one(&beds[0], seed)?, one(&beds[1], seed)?, one(&beds[2], seed)?];
            let [none, command, redo] = &run;
            bench.context.note(format!(
                "{workers} workers: none {:.0} txn/s, command {:.0} txn/s and {:.0} B/txn, redo {:.0} \
                 txn/s and {:.0} B/txn",
                none.rate(),
                command.rate(),
                log_bytes(command),
                redo.rate(),
                log_bytes(redo)
            ));
            Ok(run)
        })
        .collect()
}

fn take_checkpoint(bed: &Instance<'_>) -> LabResult<()> {
    let before = bed.engine.status().checkpoints;
    bed.engine.start_checkpoint()?;
    loop {
        let status = bed.engine.status();
        if let Some(reason) = status.failed {
            return Err(LabError::Engine { engine: bed.row.name.into(), reason });
        }
        if status.checkpoints > before {
            return Ok(());
        }
        sys::sleep(std::time::Duration::from_millis(10));
    }
}

/// Bytes that the journal wrote for a transaction.
fn log_bytes(outcome: &Outcome) -> f64 {
    outcome.journal_bytes as f64 / (outcome.rate() * outcome.seconds)
}

fn row(workers: usize, runs: &[Run]) -> Vec<String> {
    let of = |measure: fn(&Outcome) -> f64, which: usize| {
        median(&runs.iter().map(|run| measure(&run[which])).collect::<Vec<_>>())
    };
    let rate = |which| grouped(of(Outcome::rate, which) as u64);
    let bytes = |which| format!("{:.0}", of(log_bytes, which));
    vec![workers.to_string(), rate(0), rate(1), rate(2), bytes(1), bytes(2)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn every_claim_is_measured() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records: 5_000, ..CommandCost::quick() };
        let result = run_plan::<CommandCost>(&bench, &plan)?;
        assert_eq!(result.claims.len(), 3);
        assert_eq!(result.tables[0].rows.len(), 2);
        assert!(result.tables[0].rows.iter().all(|r| r.len() == result.tables[0].columns.len()));
        Ok(())
    }
}
