//! `snapshot-cost`: what a snapshot that is read to its end costs the transactions beside it.
//!
//! | part | what is compared |
//! |---|---|
//! | beside | latencies at half load while a snapshot is read, with such without a snapshot |
//! | bound | the memory of a snapshot beside saturated writers, with its limit |

use serde::Serialize;

use crate::context::Context;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::{cost_ratio, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Table};
use crate::subjects::adapter::LabEngine;
use crate::subjects::records::{CALC_UNPACED, data_bytes, row, setup};
use crate::subjects::stillpoint::{WithSnapshots, open_with_snapshots};
use crate::sys;

const SOURCE: &str = "Stillpoint";
/// The limit of part `beside`: the default.
const LIMIT_BYTES: usize = 256 << 20;
/// The limit of part `bound`.
const SMALL_LIMIT_BYTES: usize = 32 << 20;
/// Load of part `beside`, as a share of the saturated workers' throughput.
const LOAD_SHARE: f64 = 0.5;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Runs without and with a snapshot, in turn.
    pub(crate) runs: usize,
    /// Length of a run. The snapshot begins after a fifth of it.
    pub(crate) run_s: f64,
}

/// The experiment.
pub(crate) struct SnapshotCost;

impl Experiment for SnapshotCost {
    const ID: &'static str = "snapshot-cost";
    const TITLE: &'static str = "What a snapshot costs the transactions beside it";
    const PAPER: &'static str = "The project's own bounds";
    const PARTS: &'static [&'static str] = &["beside", "bound"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan { records: 20_000_000, runs: 5, run_s: 15.0 }
    }

    fn quick() -> Plan {
        Plan { records: 100_000, runs: 1, run_s: 0.5 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("scheme", row(CALC_UNPACED).scheme);
        result.parameter("journal", "none");
        if bench.context.wants("beside") {
            result.in_part("beside", |result| beside(bench, plan, result))?;
        }
        if bench.context.wants("bound") {
            result.in_part("bound", |result| bound(bench, plan, result))?;
        }
        Ok(())
    }
}

/// Loads an engine, gives it to `with`, and removes it.
fn with_engine<R>(
    bench: &Harness<'_>,
    plan: &Plan,
    limit_bytes: usize,
    with: impl FnOnce(&WithSnapshots) -> LabResult<R>,
) -> LabResult<R> {
    let dir = bench.context.fresh_dir("snapshots")?;
    let setup = setup(row(CALC_UNPACED), plan.records, "none", dir.clone());
    let engine = open_with_snapshots(&setup, limit_bytes)?;
    bench.context.note(format!("loading {} records", plan.records));
    engine.load(plan.records)?;
    let result = with(&engine)?;
    drop(engine);
    sys::remove_dir_all(&dir)?;
    Ok(result)
}

/// A run with a snapshot, or without.
fn drive(plan: &Plan, seed: u64, rate_per_s: Option<f64>, has_snapshot: bool) -> Drive {
    let begins = if has_snapshot { vec![plan.run_s / 5.0] } else { Vec::new() };
    Drive {
        seconds: plan.run_s,
        rate_per_s,
        checkpoints_at_s: begins,
        seed,
        ..Drive::new(plan.records)
    }
}

/// p99.9 of latency, in milliseconds, while the snapshot was read. Without one, in the whole run.
fn p999_ms(run: &Outcome) -> f64 {
    let within: Vec<[f64; 2]> = run.captures.iter().map(|c| [c.from_s, c.to_s]).collect();
    match &within[..] {
        [] => run.latencies.all().p999_ms(),
        within => run.latencies.within(within).p999_ms(),
    }
}

fn beside(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut table = Table {
        title: "Transactions at half load beside a snapshot".into(),
        columns: ["snapshot", "txn/s", "p99 ms", "p99.9 ms", "read s", "MB/s", "waiting MB"]
            .map(String::from)
            .to_vec(),
        ..Table::default()
    };
    let mut ratios = Vec::new();
    with_engine(bench, plan, LIMIT_BYTES, |engine| {
        let saturated = transactions::run(engine, &drive(plan, 1, None, false))?;
        let rate = Some(saturated.rate() * LOAD_SHARE);
        for run in 0..plan.runs as u64 {
            let rest = transactions::run(engine, &drive(plan, run + 1, rate, false))?;
            let beside = transactions::run(engine, &drive(plan, run + 1, rate, true))?;
            let last = engine.last();
            if let Some(reason) = last.ended {
                return Err(LabError::Engine { engine: "snapshot".into(), reason });
            }
            if last.records != plan.records {
                let reason = format!("{} of {} records", last.records, plan.records);
                return Err(LabError::Engine { engine: "snapshot".into(), reason });
            }
            let ratio = cost_ratio(p999_ms(&beside), p999_ms(&rest));
            bench.context.note(format!("p99.9 beside a snapshot: {ratio:.2} of without"));
            ratios.push(ratio);
            for (name, outcome) in [("none", &rest), ("read", &beside)] {
                let read_s = outcome.captures.first().map(transactions::Capture::seconds);
                let of_read = |show: &dyn Fn(f64) -> String| read_s.map_or("–".into(), show);
                let within: Vec<[f64; 2]> =
                    outcome.captures.iter().map(|c| [c.from_s, c.to_s]).collect();
                let latencies = match &within[..] {
                    [] => outcome.latencies.all(),
                    within => outcome.latencies.within(within),
                };
                table.rows.push(vec![
                    name.into(),
                    grouped(outcome.rate() as u64),
                    format!("{:.3}", latencies.p99_ms()),
                    format!("{:.3}", latencies.p999_ms()),
                    of_read(&|s| format!("{s:.2}")),
                    of_read(&|s| format!("{:.0}", last.bytes as f64 / s / 1e6)),
                    of_read(&|_| format!("{:.1}", last.waiting_bytes_max as f64 / 1e6)),
                ]);
            }
        }
        Ok(())
    })?;
    let claim =
        Claim::new("p99.9 beside a snapshot ÷ without, half load", SOURCE, Bound::AtMost(1.2));
    result.claims.push(claim.measured_runs(&ratios));
    result.tables.push(table);
    Ok(())
}

fn bound(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut table = Table {
        title: "A snapshot beside saturated writers of all records".into(),
        columns: ["limit MB", "waiting MB", "records read", "ended by"].map(String::from).to_vec(),
        ..Table::default()
    };
    let mut shares = Vec::new();
    with_engine(bench, plan, SMALL_LIMIT_BYTES, |engine| {
        for run in 0..plan.runs as u64 {
            transactions::run(engine, &drive(plan, run + 1, None, true))?;
            let last = engine.last();
            shares.push(last.waiting_bytes_max as f64 / SMALL_LIMIT_BYTES as f64);
            table.rows.push(vec![
                format!("{:.1}", SMALL_LIMIT_BYTES as f64 / 1e6),
                format!("{:.1}", last.waiting_bytes_max as f64 / 1e6),
                grouped(last.records),
                last.ended.unwrap_or_else(|| "its end".into()),
            ]);
        }
        Ok(())
    })?;
    result.parameter("waiting_share_median", median(&shares));
    let claim = Claim::new("waiting bytes ÷ limit, saturated writers", SOURCE, Bound::AtMost(1.0));
    result.claims.push(claim.measured_runs(&shares));
    result.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn a_snapshot_is_read_beside_transactions() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records: 20_000, ..SnapshotCost::quick() };
        let result = run_plan::<SnapshotCost>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.tables.len()), (2, 2));
        let rows = &result.tables[0].rows;
        assert_eq!(rows.iter().map(|row| &*row[0]).collect::<Vec<_>>(), ["none", "read"]);
        assert_eq!(result.tables[1].rows[0][2], "20,000", "too few records to reach the limit");
        Ok(())
    }
}
