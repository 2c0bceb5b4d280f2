//! `redo-cost`: what the redo log costs the microbenchmark.
//!
//! Two engines with the same scheme, one without a journal and one with redo,
//! in turn on the same data. With changed ranges a transaction logs 8 of 100
//! bytes of each record, and the log must cost little. With whole values of
//! 1,000 bytes the device is the limit, and the log must come close to it; with
//! those of 100 bytes the processors cannot ask for as much. A checkpoint
//! between the runs, which is not counted, gives the log its segments back.

use serde_json::json;

use crate::calc::{Bed, Bench, CALC_UNPACED, Row, crash, data_bytes};
use crate::context::Context;
use crate::device;
use crate::drive::{self, Drive, Outcome};
use crate::error::{LabError, LabResult};
use crate::figure::axis::grouped;
use crate::result::{Bound, Claim, ExperimentResult, Table};
use crate::stats::{Spread, median};
use crate::sys;
use crate::workload::calc::{Change, LARGE_VALUE_BYTES};

/// The registered name.
pub const ID: &str = "redo-cost";
/// The headline.
pub const TITLE: &str = "What the redo log costs";
/// Where the claims come from.
pub const PAPER: &str =
    "The project's own floors; workload of Ren et al., SIGMOD 2016 (CALC), §5.1";

const SOURCE: &str = "Stillpoint";

/// How much is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Records of 8 + 100 bytes.
    pub records: u64,
    /// Records of 8 + 1,000 bytes.
    pub large_records: u64,
    /// Pairs of runs.
    pub runs: usize,
    /// Length of a run with changed ranges.
    pub seconds: f64,
    /// Length of a run with whole values, which writes some GB per second.
    pub whole_s: f64,
    /// Bytes written to measure the device, beside every run with large values.
    pub device_bytes: u64,
}

impl Plan {
    /// What the floors ask for. Runs are short, since the log of a minute would not fit every disk.
    pub fn full() -> Plan {
        Plan {
            records: 20_000_000,
            large_records: 2_000_000,
            runs: 5,
            seconds: 10.0,
            whole_s: 3.0,
            device_bytes: 4 << 30,
        }
    }

    /// Seconds in all.
    pub fn quick() -> Plan {
        Plan {
            records: 100_000,
            large_records: 10_000,
            runs: 1,
            seconds: 0.3,
            whole_s: 0.3,
            device_bytes: 16 << 20,
        }
    }

    /// The context's mode, with its number and length of runs.
    pub fn of(context: &Context) -> Plan {
        let mut plan = if context.quick { Plan::quick() } else { Plan::full() };
        plan.runs = context.runs.unwrap_or(plan.runs).max(1);
        plan.seconds = context.seconds.unwrap_or(plan.seconds);
        plan
    }
}

/// The same scheme for both engines.
const ROW: Row = CALC_UNPACED;
/// With values that make the device the limit.
const LARGE: Row =
    Row { name: "calc, large values", value_bytes: LARGE_VALUE_BYTES, ..CALC_UNPACED };

/// Runs the experiment.
///
/// # Errors
/// When an engine or the disk fails.
pub fn run(bench: &Bench<'_>, plan: &Plan) -> LabResult<ExperimentResult> {
    let mut result = bench.context.result(ID, TITLE, PAPER);
    let parameters = json!({
        "records": plan.records,
        "large_records": plan.large_records,
        "data_bytes": data_bytes(plan.records),
        "runs": plan.runs,
        "run_s": plan.seconds,
        "run_whole_values_s": plan.whole_s,
        "scheme": ROW.scheme,
        "durability": "relaxed",
    });
    if let serde_json::Value::Object(fields) = parameters {
        result.parameters.extend(fields);
    }
    crash::check_rows(bench, &[ROW], "redo", plan.records.min(1_000_000), &mut result)?;
    let columns = ["workers", "changed", "none txn/s", "redo txn/s", "redo ÷ none", "log MB/s"];
    let mut table = Table {
        title: "Throughput with and without the redo log".into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    let beds = beds(bench, ROW, plan.records)?;
    for workers in [1, 2] {
        let pairs = pairs(bench, plan, &beds, workers, Change::Counter, plan.seconds)?;
        table.rows.push(row(workers, "8 of 100 bytes", &pairs));
        let of = if workers == 1 { "1 worker" } else { "2 workers" };
        let claim = format!("throughput: redo ÷ no journal, changed ranges, {of}");
        result
            .claims
            .push(Claim::new(claim, SOURCE, Bound::AtLeast(0.85)).measured_runs(&ratios(&pairs)));
    }
    let pairs = pairs(bench, plan, &beds, 2, Change::Whole, plan.whole_s)?;
    table.rows.push(row(2, "100 of 100 bytes", &pairs));
    beds.into_iter().try_for_each(Bed::clear)?;
    large_values(bench, plan, &mut table, &mut result)?;
    result.tables.push(table);
    sys::remove_dir_all(&bench.context.work)?;
    Ok(result)
}

/// Without a journal and with it.
fn beds<'a>(bench: &'a Bench<'_>, row: Row, records: u64) -> LabResult<[Bed<'a>; 2]> {
    Ok([bench.bed(row, records, "none")?, bench.bed(row, records, "redo")?])
}

/// Whole values of 1,000 bytes, and the device beside them, in turn.
fn large_values(
    bench: &Bench<'_>,
    plan: &Plan,
    table: &mut Table,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let beds = beds(bench, LARGE, plan.large_records)?;
    let device_dir = bench.context.fresh_dir("device")?;
    let (mut all, mut device, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..plan.runs {
        let drive = Drive { seed: run as u64 + 1, ..Drive::new(plan.large_records) };
        let pair = pair(bench, &beds, Drive { change: Change::Whole, ..drive }, plan.whole_s)?;
        let rate = device::write_bytes_per_s(&device_dir, 2, plan.device_bytes)?;
        bench.context.note(format!("the device writes {:.0} MB/s", rate / 1e6));
        shares.push(log_bytes_per_s(&pair[1]) / rate);
        device.push(rate);
        all.push(pair);
    }
    table.rows.push(row(2, "1,000 of 1,000 bytes", &all));
    let device_bytes_per_s = median(&device).round();
    result.parameters.insert("device_write_bytes_per_s".into(), device_bytes_per_s.into());
    let claim = "redo, whole values of 1,000 bytes: log beside the device's write rate";
    result.claims.push(Claim::new(claim, SOURCE, Bound::AtLeast(0.8)).measured_runs(&shares));
    beds.into_iter().try_for_each(Bed::clear)
}

/// Without and with the log, in turn.
type Pair = [Outcome; 2];

fn pairs(
    bench: &Bench<'_>,
    plan: &Plan,
    beds: &[Bed<'_>; 2],
    workers: usize,
    change: Change,
    seconds: f64,
) -> LabResult<Vec<Pair>> {
    let drive = Drive { workers, change, ..Drive::new(plan.records) };
    (0..plan.runs)
        .map(|run| pair(bench, beds, Drive { seed: run as u64 + 1, ..drive.clone() }, seconds))
        .collect()
}

fn pair(bench: &Bench<'_>, beds: &[Bed<'_>; 2], drive: Drive, seconds: f64) -> LabResult<Pair> {
    let drive = Drive { seconds, warm_up_s: seconds / 20.0, ..drive };
    let one = |bed: &Bed<'_>| -> LabResult<Outcome> {
        let outcome = drive::run(&*bed.engine, &drive)?;
        take_checkpoint(bed)?;
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

fn take_checkpoint(bed: &Bed<'_>) -> LabResult<()> {
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
    use crate::drive::tests::Toy;

    #[test]
    fn every_claim_is_measured() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Bench { context: &context, open: &Toy::open, children: false };
        let records = 5_000;
        let plan = Plan { records, large_records: records, device_bytes: 4 << 20, ..Plan::quick() };
        let result = run(&bench, &plan)?;
        assert_eq!(result.claims.len(), 3);
        assert!(result.claims.iter().all(|claim| claim.met.is_some()));
        assert_eq!(result.tables[0].rows.len(), 4);
        assert!(result.tables[0].rows.iter().all(|r| r.len() == result.tables[0].columns.len()));
        Ok(())
    }
}
