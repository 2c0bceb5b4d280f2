//! `calc-fig5`: the distribution of latency with a checkpoint under way (CALC paper, §5.1.4,
//! Figure 5).
//!
//! Transactions arrive at random at 90 % and at 70 % of the baseline's capacity, with and without
//! transactions of two seconds. A latency counts from the time at which a transaction was due.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::rate;
use crate::harness::{Harness, Instance, position};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, Scale, Series, Table,
};
use crate::subjects::records::{BASELINE, CALC_PACED, NAIVE_PACED, data_bytes, paced_rows};
use crate::workloads::calc::LongTransactions;

const SOURCE: &str = "CALC paper, §5.1.4, Figure 5";

/// The rows that the claims name.
const NAMED: [&str; 3] = [BASELINE, CALC_PACED, NAIVE_PACED];

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Loads, as shares of the baseline's capacity.
    pub(crate) load_shares: Vec<f64>,
    /// Seconds in which the capacity is measured.
    pub(crate) capacity_s: f64,
    /// Length of each run.
    pub(crate) run_s: f64,
    /// When the checkpoint begins.
    pub(crate) checkpoint_at_s: f64,
    /// The long transactions of half of the runs.
    pub(crate) long: LongTransactions,
}

/// The experiment.
pub(crate) struct CalcFig5;

impl Experiment for CalcFig5 {
    const ID: &'static str = "calc-fig5";
    const TITLE: &'static str = "Latency with a checkpoint, at 90 % and 70 % of capacity";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.4, Figure 5";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            load_shares: vec![0.9, 0.7],
            capacity_s: 10.0,
            run_s: 100.0,
            checkpoint_at_s: 30.0,
            long: LongTransactions::of_the_paper(),
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            capacity_s: 0.3,
            run_s: 0.8,
            checkpoint_at_s: 0.2,
            long: LongTransactions {
                seconds: 0.2,
                writes: 100,
                ..LongTransactions::of_the_paper()
            },
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(seconds) = asked.seconds {
            let share = seconds / plan.run_s;
            plan.checkpoint_at_s *= share;
            plan.run_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("journal", "none");
        let rows = paced_rows();
        crash::check_rows(bench, &rows[1..], "none", plan.records.min(200_000), result)?;
        let beds = bench.open_compared(&rows, &NAMED, plan.records, result)?;
        let saturated =
            Drive { workers: plan.workers, seconds: plan.capacity_s, ..Drive::new(plan.records) };
        let capacity = rate(&[transactions::run(&*beds[0].engine, &saturated)?]);
        result.parameter("capacity_transactions_per_s", capacity);
        let mut table = Table {
            title: "Latencies in ms".into(),
            columns: ["load", "row", "txn/s", "p50", "p99", "p99.9", "worst"]
                .map(String::from)
                .to_vec(),
            ..Table::default()
        };
        for &share in &plan.load_shares {
            for long in [None, Some(plan.long)] {
                let drive = Drive {
                    workers: plan.workers,
                    seconds: plan.run_s,
                    rate_per_s: Some(capacity * share),
                    checkpoints_at_s: vec![plan.checkpoint_at_s],
                    long,
                    ..Drive::new(plan.records)
                };
                let load = format!("{:.0} %{}", share * 100.0, long.map_or("", |_| ", long ones"));
                let outcomes = each(bench, &beds, &load, &drive)?;
                add(&load, (&beds, &outcomes), &mut table, result);
            }
        }
        result.tables.push(table);
        beds.into_iter().try_for_each(Instance::clear)
    }
}

/// One run of each row.
fn each(
    bench: &Harness<'_>,
    beds: &[Instance<'_>],
    load: &str,
    drive: &Drive,
) -> LabResult<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for bed in beds {
        let mut drive = drive.clone();
        if !bed.row.takes_checkpoints {
            drive.checkpoints_at_s.clear();
        }
        let outcome = transactions::run(&*bed.engine, &drive)?;
        let all = outcome.latencies.all();
        bench.context.note(format!(
            "load {load}: {}: p50 {:.3} ms, p99 {:.3} ms, worst {:.1} ms",
            bed.row.name,
            all.ms(0.5),
            all.p99_ms(),
            all.max_ms()
        ));
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The quantile of each claim, and the claim.
const CLAIMS: [(f64, ClaimRow); 3] = [
    (0.99, like_baseline("p99 of latency")),
    (0.999, like_baseline("p99.9 of latency")),
    (
        0.99,
        ClaimRow::new("p99 of latency", SOURCE, Bound::AtLeast(2.0))
            .between(NAIVE_PACED, CALC_PACED)
            .paper(Paper::words("naive has the worst latencies of all")),
    ),
];

const fn like_baseline(metric: &'static str) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(1.1))
        .between(CALC_PACED, BASELINE)
        .paper(Paper::words("very similar to no checkpointing"))
}

/// Claims and the figure of one load.
fn add(
    load: &str,
    (beds, outcomes): (&[Instance<'_>], &[Outcome]),
    table: &mut Table,
    result: &mut ExperimentResult,
) {
    let quantile = |name: &str, q: f64| outcomes[position(beds, name)].latencies.all().ms(q);
    for (q, row) in CLAIMS {
        let ratio = quantile(row.subject, q) / quantile(row.baseline, q);
        result.claims.push(row.claim(&format!("load {load}")).measured(ratio));
    }
    let mut figure = Figure {
        title: format!("Latencies at {load} of capacity"),
        caption: "Share of transactions that were not slower; queueing included, counted from the \
                  time at which each was due."
            .into(),
        x_label: "latency in ms".into(),
        y_label: "share of transactions".into(),
        x_scale: Scale::Log,
        ..Figure::default()
    };
    for (row, outcome) in beds.iter().map(|bed| bed.row).zip(outcomes) {
        let name = format!("{}, load {load}", row.name);
        let all = outcome.latencies.all();
        let points = all.tail_points().into_iter().map(|[ms, slower]| [ms, 1.0 - slower]);
        result.series.push(Series {
            name: name.clone(),
            label: row.name.to_owned(),
            x_unit: "ms".into(),
            y_unit: "share".into(),
            points: points.collect(),
            ..Series::default()
        });
        figure.series.push(name);
        let ms = |ms: f64| format!("{ms:.3}");
        table.rows.push(vec![
            load.to_owned(),
            row.name.to_owned(),
            grouped(outcome.rate() as u64),
            ms(all.ms(0.5)),
            ms(all.p99_ms()),
            ms(all.p999_ms()),
            ms(all.max_ms()),
        ]);
    }
    result.figures.push(figure);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn every_load_has_its_distributions() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let long = LongTransactions { seconds: 0.05, writes: 10, ..CalcFig5::quick().long };
        let plan = Plan { records: 5_000, load_shares: vec![0.2], run_s: 0.4, ..CalcFig5::quick() };
        let plan = Plan { checkpoint_at_s: 0.1, capacity_s: 0.2, long, ..plan };
        let result = run_plan::<CalcFig5>(&bench, &plan)?;
        let rows = paced_rows().len();
        assert_eq!((result.claims.len(), result.figures.len()), (6, 2));
        assert_eq!(result.series.len(), 2 * rows);
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()));
        for series in &result.series {
            let rises = series.points.windows(2).all(|two| two[0][1] <= two[1][1]);
            assert!(rises && series.points.len() > 2, "{}: a distribution rises", series.name);
        }
        Ok(())
    }
}
