//! `calc-fig5`: the distribution of latency with a checkpoint under way (CALC paper, §5.1.4,
//! Figure 5).
//!
//! Transactions arrive at random at 90 % and at 70 % of the baseline's capacity, with and without
//! transactions of two seconds. A latency counts from the time at which a transaction was due.
//!
//! Points of consistency are as published if the command line asks for it: then zigzag and ping-pong wait
//! for long transactions, as in the paper.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{Compared, rate};
use crate::harness::{Harness, Instance};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, Scale, Series, Table,
};
use crate::subjects::records::{
    BASELINE, CALC_PACED, NAIVE_PACED, PING_PONG_PACED, Row, ZIGZAG_PACED, data_bytes, row,
};
use crate::workloads::calc::LongTransactions;

const SOURCE: &str = "CALC paper, §5.1.4, Figure 5";

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
            records: 10_000_000,
            workers: 2,
            load_shares: vec![0.9, 0.7],
            capacity_s: 5.0,
            run_s: 24.0,
            checkpoint_at_s: 7.0,
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
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("journal", "none");
        let rows: Vec<Row> = ROWS.into_iter().map(row).collect();
        crash::check_rows(bench, &rows[1..], "none", plan.records.min(200_000), result)?;
        let mut capacity = None;
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            let capacity = match capacity {
                Some(known) => known,
                None => *capacity.insert(capacity_of(plan, pair[0])?),
            };
            each_load(plan)
                .map(|load| one(bench, plan, pair, (capacity, &load)))
                .collect::<LabResult<Vec<Compared>>>()
        })?;
        result.parameter("capacity_transactions_per_s", capacity.unwrap_or_default());
        let mut table = Table {
            title: "Latencies in ms".into(),
            columns: ["load", "row", "txn/s", "p50", "p99", "p99.9", "worst"]
                .map(String::from)
                .to_vec(),
            ..Table::default()
        };
        for (number, load) in each_load(plan).enumerate() {
            let all: Vec<&Compared> = compared.iter().map(|row| &row[number]).collect();
            add(&load.name, &all, &mut table, result);
        }
        by_load(plan, &compared, result);
        let points =
            if bench.context.published_points { "as published" } else { "of commits under way" };
        result.parameter("points_of_consistency", points);
        result.tables.push(table);
        Ok(())
    }
}

/// The rows of the paper that need no log here.
const ROWS: [&str; 5] = [BASELINE, CALC_PACED, NAIVE_PACED, ZIGZAG_PACED, PING_PONG_PACED];

/// The end of the name of a load with long transactions.
const LONG: &str = ", long ones";

/// A share of the baseline's capacity, without or with long transactions.
struct Load {
    share: f64,
    long: Option<LongTransactions>,
    name: String,
}

fn each_load(plan: &Plan) -> impl Iterator<Item = Load> {
    let both = move |&share: &f64| {
        [None, Some(plan.long)].map(|long| {
            let name = format!("{:.0} %{}", share * 100.0, long.map_or("", |_| LONG));
            Load { share, long, name }
        })
    };
    plan.load_shares.iter().flat_map(both)
}

/// Transactions per second of saturated workers on the baseline.
fn capacity_of(plan: &Plan, baseline: &Instance<'_>) -> LabResult<f64> {
    let saturated =
        Drive { workers: plan.workers, seconds: plan.capacity_s, ..Drive::new(plan.records) };
    Ok(rate(&[transactions::run(&*baseline.engine, &saturated)?]))
}

/// One run of the baseline and one of the row beside it.
fn one(
    bench: &Harness<'_>,
    plan: &Plan,
    pair: [&Instance<'_>; 2],
    (capacity, load): (f64, &Load),
) -> LabResult<Compared> {
    let what = format!("load {}", load.name);
    let compared = Compared::in_turn(bench, pair, (1, &what), |_, row| {
        let checkpoint = row.takes_checkpoints.then_some(plan.checkpoint_at_s);
        Drive {
            workers: plan.workers,
            seconds: plan.run_s,
            rate_per_s: Some(capacity * load.share),
            checkpoints_at_s: checkpoint.into_iter().collect(),
            long: load.long,
            ..Drive::new(plan.records)
        }
    })?;
    let all = compared.runs[0].latencies.all();
    let (p50, p99, worst) = (all.ms(0.5), all.p99_ms(), all.max_ms());
    bench.context.note(format!("{what}: p50 {p50:.3} ms, p99 {p99:.3} ms, worst {worst:.1} ms"));
    Ok(compared)
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

/// Claims on the loads with long transactions: the others wait for them.
const WITH_LONG: ClaimRow = ClaimRow::new("p99.9 of latency", SOURCE, Bound::AtLeast(2.0))
    .paper(Paper::words("poor latency with long transactions, Figure 5(b)"));
/// The tail of naive at the lower load ÷ that at the higher one, each beside its baseline.
const CATCHES_UP: ClaimRow = ClaimRow::new(
    "p99 of latency, beside none, at the lower ÷ the higher load",
    SOURCE,
    Bound::AtMost(1.0),
)
.between(NAIVE_PACED, "")
.paper(Paper::words("much better at 70 % than at 90 %"));

/// A quantile of a row ÷ that of its own baseline.
fn beside(all: &[&Compared], name: &str, q: f64) -> f64 {
    let Some(it) = all.iter().find(|it| it.row.name == name) else { return f64::NAN };
    it.runs[0].latencies.all().ms(q) / it.baseline[0].latencies.all().ms(q)
}

/// Compares the first load with the last one, without long transactions.
fn by_load(plan: &Plan, compared: &[Vec<Compared>], result: &mut ExperimentResult) {
    let of = |share: f64| {
        let number = each_load(plan).position(|load| load.share <= share && load.long.is_none());
        let all: Vec<&Compared> =
            number.map_or(Vec::new(), |n| compared.iter().map(|row| &row[n]).collect());
        beside(&all, NAIVE_PACED, 0.99)
    };
    let (Some(first), Some(last)) = (plan.load_shares.first(), plan.load_shares.last()) else {
        return;
    };
    if first > last {
        result.claims.push(CATCHES_UP.claim("").measured(of(*last) / of(*first)));
    }
}

const fn like_baseline(metric: &'static str) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(1.1))
        .between(CALC_PACED, BASELINE)
        .paper(Paper::words("very similar to no checkpointing"))
}

/// Claims and the figure of one load.
fn add(load: &str, all: &[&Compared], table: &mut Table, result: &mut ExperimentResult) {
    for (q, row) in CLAIMS {
        let baseline = if row.baseline == BASELINE { 1.0 } else { beside(all, row.baseline, q) };
        let ratio = beside(all, row.subject, q) / baseline;
        result.claims.push(row.claim(&format!("load {load}")).measured(ratio));
    }
    for other in [ZIGZAG_PACED, PING_PONG_PACED] {
        if load.ends_with(LONG) {
            let ratio = beside(all, other, 0.999) / beside(all, CALC_PACED, 0.999);
            let claim = WITH_LONG.claim_of((other, CALC_PACED), &format!("load {load}"));
            result.claims.push(claim.measured(ratio));
        }
    }
    let mut figure = Figure {
        title: format!("Latencies at {load} of capacity"),
        caption: "Share of transactions that were not slower; queueing included, counted from the \
                  time at which each was due. The paper: calc lies on no checkpointing, and naive is \
                  the worst."
            .into(),
        x_label: "latency in ms".into(),
        y_label: "share of transactions".into(),
        x_scale: Scale::Log,
        ..Figure::default()
    };
    let first = all.iter().take(1).map(|it| (BASELINE, &it.baseline[0]));
    for (row, outcome) in first.chain(all.iter().map(|it| (it.row.name, &it.runs[0]))) {
        let name = format!("{row}, load {load}");
        let all = outcome.latencies.all();
        let points = all.tail_points().into_iter().map(|[ms, slower]| [ms, 1.0 - slower]);
        result.series.push(Series {
            name: name.clone(),
            label: row.to_owned(),
            x_unit: "ms".into(),
            y_unit: "share".into(),
            points: points.collect(),
            ..Series::default()
        });
        figure.series.push(name);
        let ms = |ms: f64| format!("{ms:.3}");
        table.rows.push(vec![
            load.to_owned(),
            row.to_owned(),
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
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let long = LongTransactions { seconds: 0.05, writes: 10, ..CalcFig5::quick().long };
        let plan = Plan { records: 5_000, load_shares: vec![0.2], run_s: 0.4, ..CalcFig5::quick() };
        let plan = Plan { checkpoint_at_s: 0.1, capacity_s: 0.2, long, ..plan };
        let result = run_plan::<CalcFig5>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.figures.len()), (2 * 3 + 2, 2));
        assert_eq!(result.series.len(), 2 * ROWS.len());
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()));
        for series in &result.series {
            let rises = series.points.windows(2).all(|two| two[0][1] <= two[1][1]);
            assert!(rises && series.points.len() > 2, "{}: a distribution rises", series.name);
        }
        Ok(())
    }
}
