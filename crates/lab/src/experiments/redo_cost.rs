//! `redo-cost`: the cost of the redo log to the microbenchmark.
//!
//! Two engines with the same scheme run in turn on the same data: one without a journal, one with
//! redo. With changed ranges a transaction logs 8 of 100 bytes of each record, and the log must
//! cost little. With whole values of 1,000 bytes the device is the limit, and the log must come
//! close to it. Whole values of 100 bytes cannot reach the device's limit on these processors. An
//! uncounted checkpoint between the runs gives the log its segments back.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::{Harness, Instance};
use crate::measure::device;
use crate::measure::stats::{Spread, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::records::{CALC_UNPACED, Row, data_bytes, row as row_of};
use crate::workloads::calc::{Change, LARGE_VALUE_BYTES};

const SOURCE: &str = "Stillpoint";

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Records of 8 + 1,000 bytes.
    pub(crate) large_records: u64,
    /// Pairs of runs.
    pub(crate) runs: usize,
    /// Length of a run with changed ranges.
    pub(crate) run_s: f64,
    /// Length of a run with whole values. Such a run writes some GB per second.
    pub(crate) run_whole_values_s: f64,
    /// Bytes written to measure the device, next to every run with large values.
    pub(crate) device_bytes: u64,
}

/// The engines with values that make the device the limit.
fn large_row() -> Row {
    Row { name: "calc, large values", value_bytes: LARGE_VALUE_BYTES, ..row_of(CALC_UNPACED) }
}

/// The experiment.
pub(crate) struct RedoCost;

impl Experiment for RedoCost {
    const ID: &'static str = "redo-cost";
    const TITLE: &'static str = "What the redo log costs";
    const PAPER: &'static str =
        "The project's own bounds; workload of Ren et al., SIGMOD 2016 (CALC), §5.1";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            large_records: 2_000_000,
            runs: 5,
            run_s: 10.0,
            run_whole_values_s: 3.0,
            device_bytes: 4 << 30,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            large_records: 10_000,
            runs: 1,
            run_s: 0.3,
            run_whole_values_s: 0.3,
            device_bytes: 16 << 20,
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        // The same scheme for both engines.
        let compared = row_of(CALC_UNPACED);
        result.parameter("scheme", compared.scheme);
        result.parameter("durability", "relaxed");
        crash::check_rows(bench, &[compared], "redo", plan.records.min(1_000_000), result)?;
        let columns = ["workers", "changed", "none txn/s", "redo txn/s", "redo ÷ none", "log MB/s"];
        let mut table = Table {
            title: "Throughput with and without the redo log".into(),
            columns: columns.map(String::from).to_vec(),
            rows: Vec::new(),
            ..Table::default()
        };
        let beds = beds(bench, compared, plan.records)?;
        for workers in [1, 2] {
            let pairs = pairs(bench, plan, &beds, workers, Change::Counter, plan.run_s)?;
            table.rows.push(row(workers, "8 of 100 bytes", &pairs));
            let of = if workers == 1 { "1 worker" } else { "2 workers" };
            let claim = CHANGED_RANGES.claim(&format!("changed ranges, {of}"));
            result.claims.push(claim.measured_runs(&ratios(&pairs)));
        }
        let pairs = pairs(bench, plan, &beds, 2, Change::Whole, plan.run_whole_values_s)?;
        table.rows.push(row(2, "100 of 100 bytes", &pairs));
        beds.into_iter().try_for_each(Instance::clear)?;
        large_values(bench, plan, &mut table, result)?;
        result.tables.push(table);
        Ok(())
    }
}

const CHANGED_RANGES: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(0.85)).between("redo", "no journal");
const LOG_RATE: ClaimRow = ClaimRow::new(
    "redo, whole values of 1,000 bytes: rate of the log ÷ write rate of the device",
    SOURCE,
    Bound::AtLeast(0.8),
);

/// An engine without a journal and one with the redo log.
fn beds<'a>(bench: &'a Harness<'_>, row: Row, records: u64) -> LabResult<[Instance<'a>; 2]> {
    Ok([bench.open_loaded(row, records, "none")?, bench.open_loaded(row, records, "redo")?])
}

/// Whole values of 1,000 bytes, and the device beside them, in turn.
fn large_values(
    bench: &Harness<'_>,
    plan: &Plan,
    table: &mut Table,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let beds = beds(bench, large_row(), plan.large_records)?;
    let device_dir = bench.context.fresh_dir("device")?;
    let (mut all, mut device, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..plan.runs {
        let drive = Drive { seed: run as u64 + 1, ..Drive::new(plan.large_records) };
        let pair =
            pair(bench, &beds, Drive { change: Change::Whole, ..drive }, plan.run_whole_values_s)?;
        let rate = device::write_bytes_per_s(&device_dir, 2, plan.device_bytes)?;
        bench.context.note(format!("the device writes {:.0} MB/s", rate / 1e6));
        shares.push(log_bytes_per_s(&pair[1]) / rate);
        device.push(rate);
        all.push(pair);
    }
    table.rows.push(row(2, "1,000 of 1,000 bytes", &all));
    let device_bytes_per_s = median(&device).round();
    result.parameters.insert("device_write_bytes_per_s".into(), device_bytes_per_s.into());
    result.claims.push(LOG_RATE.claim("").measured_runs(&shares));
    beds.into_iter().try_for_each(Instance::clear)
}

/// Without and with the log, in turn.
type Pair = [Outcome; 2];

fn pairs(
    bench: &Harness<'_>,
    plan: &Plan,
    beds: &[Instance<'_>; 2],
    workers: usize,
    change: Change,
    seconds: f64,
) -> LabResult<Vec<Pair>> {
    let drive = Drive { workers, change, ..Drive::new(plan.records) };
    (0..plan.runs)
        .map(|run| pair(bench, beds, Drive { seed: run as u64 + 1, ..drive.clone() }, seconds))
        .collect()
}

fn pair(
    bench: &Harness<'_>,
    beds: &[Instance<'_>; 2],
    drive: Drive,
    seconds: f64,
) -> LabResult<Pair> {
    let drive = Drive { seconds, warm_up_s: seconds / 20.0, ..drive };
    let one = |bed: &Instance<'_>| -> LabResult<Outcome> {
        let outcome = transactions::run(&*bed.engine, &drive)?;
        bed.take_checkpoint()?;
        Ok(outcome)
    };
    let pair = [one(&beds[0])?, one(&beds[1])?];
    bench.context.note(format!(
        "{} workers, {:?}: none {:.0} txn/s, redo {:.0} txn/s, log {:.0} MB/s",
        drive.workers,
        drive.change,
        pair[0].rate(),
        pair[1].rate(),
        log_bytes_per_s(&pair[1]) / 1e6
    ));
    Ok(pair)
}

fn log_bytes_per_s(outcome: &Outcome) -> f64 {
    outcome.journal_bytes as f64 / outcome.seconds
}

fn ratios(pairs: &[Pair]) -> Vec<f64> {
    pairs.iter().map(|[none, redo]| redo.rate() / none.rate()).collect()
}

fn row(workers: usize, changed: &str, pairs: &[Pair]) -> Vec<String> {
    let rate = |which: usize| median(&pairs.iter().map(|p| p[which].rate()).collect::<Vec<_>>());
    let log = median(&pairs.iter().map(|p| log_bytes_per_s(&p[1])).collect::<Vec<_>>());
    let ratio = Spread::of(&ratios(pairs));
    vec![
        workers.to_string(),
        changed.to_owned(),
        grouped(rate(0) as u64),
        grouped(rate(1) as u64),
        ratio.map_or("—".into(), |r| format!("{:.3} ({:.3} – {:.3})", r.median, r.low, r.high)),
        format!("{:.0}", log / 1e6),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn every_claim_is_measured() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let records = 5_000;
        let plan =
            Plan { records, large_records: records, device_bytes: 4 << 20, ..RedoCost::quick() };
        let result = run_plan::<RedoCost>(&bench, &plan)?;
        assert_eq!(result.claims.len(), 3);
        assert!(result.claims.iter().all(|claim| claim.met.is_some()));
        assert_eq!(result.tables[0].rows.len(), 4);
        assert!(result.tables[0].rows.iter().all(|r| r.len() == result.tables[0].columns.len()));
        Ok(())
    }
}
