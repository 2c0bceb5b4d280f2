//! `calc-fig5`: the distribution of latency with a checkpoint under way (CALC paper, §5.1.4,
//! Figure 5).
//!
//! Transactions arrive at random at 90 % and at 70 % of the baseline's capacity, with and without
//! transactions of two seconds. A latency counts from the time at which a transaction was due.
//!
//! The capacity is measured right before each pair of runs, since the machine gets faster and slower. So is
//! the row's own. A row whose capacity is below the load queues all the time, and its latencies say nothing
//! of checkpoints. The result has notes on such rows, and on baselines that queue.
//!
//! Points of consistency are as published if the command line asks for it: then zigzag and ping-pong wait
//! for long transactions, as in the paper.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{Compared, rate};
use crate::harness::{Harness, Instance};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, Claim, ClaimRow, ExperimentResult, Figure, Paper, Scale, Series, Table,
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
    /// Seconds in which each capacity is measured.
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
            capacity_s: 2.5,
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
        let loads: Vec<Load> = each_load(plan).collect();
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            loads
                .iter()
                .map(|load| one(bench, plan, pair, load))
                .collect::<LabResult<Vec<Loaded>>>()
        })?;
        let by_load: Vec<Vec<&Loaded>> = (0..loads.len())
            .map(|number| compared.iter().map(|row| &row[number]).collect())
            .collect();
        let mut table = table();
        for (load, all) in loads.iter().zip(&by_load) {
            remarks(load, all, result);
            claims(load, all, result);
            figure(load, all, result);
            table.rows.extend(table_rows(load, all));
        }
        across(&loads, &by_load, result);
        let points =
            if bench.context.published_points { "as published" } else { "of commits under way" };
        result.parameter("points_of_consistency", points);
        result.tables.push(table);
        Ok(())
    }
}

/// The rows of the paper that need no log here.
const ROWS: [&str; 5] = [BASELINE, CALC_PACED, NAIVE_PACED, ZIGZAG_PACED, PING_PONG_PACED];

/// A share of the baseline's capacity, without or with long transactions.
struct Load {
    share: f64,
    long: Option<LongTransactions>,
}

impl Load {
    fn name(&self) -> String {
        let long = if self.long.is_some() { ", long ones" } else { "" };
        format!("{:.0} %{long}", self.share * 100.0)
    }

    /// The paper's picture of this load.
    fn source(&self) -> &'static str {
        match ((self.share * 100.0).round() as u64, self.long.is_some()) {
            (90, false) => "CALC paper, §5.1.4, Figure 5(a)",
            (90, true) => "CALC paper, §5.1.4, Figure 5(b)",
            (70, false) => "CALC paper, §5.1.4, Figure 5(c)",
            (70, true) => "CALC paper, §5.1.4, Figure 5(d)",
            _ => SOURCE,
        }
    }
}

fn each_load(plan: &Plan) -> impl Iterator<Item = Load> {
    let both = move |&share: &f64| [None, Some(plan.long)].map(|long| Load { share, long });
    plan.load_shares.iter().flat_map(both)
}

/// A run of a row and one of the baseline at one load.
struct Loaded {
    compared: Compared,
    /// Transactions per second of saturated workers on the baseline, right before the two runs.
    capacity: f64,
    /// The same of the row, while no checkpoint is under way.
    own_capacity: f64,
    /// Transactions per second that arrive.
    offered: f64,
}

impl Loaded {
    fn name(&self) -> &'static str {
        self.compared.row.name
    }

    /// Whether the row could do what arrives if it took no checkpoint.
    fn carries(&self) -> bool {
        self.own_capacity >= self.offered
    }

    /// A quantile of the row's latencies in ms.
    fn ms(&self, q: f64) -> f64 {
        self.compared.runs[0].latencies.all().ms(q)
    }

    /// A quantile of the latencies of the row's own baseline in ms.
    fn baseline_ms(&self, q: f64) -> f64 {
        self.compared.baseline[0].latencies.all().ms(q)
    }
}

/// Transactions per second of saturated workers.
fn capacity_of(plan: &Plan, bed: &Instance<'_>) -> LabResult<f64> {
    let saturated =
        Drive { workers: plan.workers, seconds: plan.capacity_s, ..Drive::new(plan.records) };
    Ok(rate(&[transactions::run(&*bed.engine, &saturated)?]))
}

/// The capacities, one run of the baseline and one of the row beside it.
fn one(
    bench: &Harness<'_>,
    plan: &Plan,
    pair: [&Instance<'_>; 2],
    load: &Load,
) -> LabResult<Loaded> {
    // The baseline's comes last, since the load follows from it.
    let own_capacity = capacity_of(plan, pair[1])?;
    let capacity = capacity_of(plan, pair[0])?;
    let offered = capacity * load.share;
    let what = format!("load {}, {offered:.0} txn/s", load.name());
    let compared = Compared::in_turn(bench, pair, (1, &what), |_, row| {
        let checkpoint = row.takes_checkpoints.then_some(plan.checkpoint_at_s);
        Drive {
            workers: plan.workers,
            seconds: plan.run_s,
            rate_per_s: Some(offered),
            checkpoints_at_s: checkpoint.into_iter().collect(),
            long: load.long,
            ..Drive::new(plan.records)
        }
    })?;
    let all = compared.runs[0].latencies.all();
    let (p50, p99, worst) = (all.ms(0.5), all.p99_ms(), all.max_ms());
    bench.context.note(format!("{what}: p50 {p50:.3} ms, p99 {p99:.3} ms, worst {worst:.1} ms"));
    Ok(Loaded { compared, capacity, own_capacity, offered })
}

/// A baseline whose median latency is above so many milliseconds queues without any checkpoint.
const QUEUES_MS: f64 = 5.0;

/// Notes on rows that do not carry the load, and on baselines that queue.
fn remarks(load: &Load, all: &[&Loaded], result: &mut ExperimentResult) {
    let name = load.name();
    for it in all {
        if !it.carries() {
            result.note(format!(
                "{}, load {name}: the row does not carry the load even at rest, {} of {} transactions/s. Its \
                 queue grows all the time. So no claim on what checkpoints do to its latencies is made.",
                it.name(),
                grouped(it.own_capacity as u64),
                grouped(it.offered as u64)
            ));
        }
        let p50 = it.baseline_ms(0.5);
        if p50 > QUEUES_MS {
            result.note(format!(
                "{}, load {name}: its baseline queues, with a median latency of {p50:.0} ms. The machine was \
                 slower in the pair's runs than in the measurement of its capacity.",
                it.name()
            ));
        }
    }
}

const P99: ClaimRow = like_baseline("p99 of latency");
const P999: ClaimRow = like_baseline("p99.9 of latency");
/// The latencies of naive ÷ those of calc.
const NAIVE: ClaimRow = ClaimRow::new("p99 of latency", SOURCE, Bound::AtLeast(2.0));
const VERY_POOR: Paper = Paper::words("very poor, since naive quiesces the database");
const NAIVE_WORST: ClaimRow = ClaimRow::new("p99 of latency", SOURCE, Bound::AtLeast(1.0))
    .paper(Paper::words("the latencies for the naive algorithm are the worst"));
/// Claims on the loads with long transactions: the others wait for them.
const WITH_LONG: ClaimRow = ClaimRow::new("p99.9 of latency", SOURCE, Bound::AtLeast(2.0));
const POOR: Paper = Paper::words("poor latency with long transactions");
/// At the lower load.
const TOLL: Paper = Paper::words("much better than at 90 %, but the unavailability takes its toll");
/// The tail of a row at the lower load ÷ that at the higher one.
const CATCHES_UP: ClaimRow =
    ClaimRow::new("p99 of latency, lower ÷ higher load", SOURCE, Bound::AtMost(0.6))
        .paper(Paper::words("much better at 70 % than at 90 %"));

const fn like_baseline(metric: &'static str) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(1.1))
        .between(CALC_PACED, BASELINE)
        .paper(Paper::words("very similar to no checkpointing"))
}

/// Claims of one load. Those beside the baseline compare the runs of one pair. The others compare latencies
/// in ms, as the paper does.
fn claims(load: &Load, all: &[&Loaded], result: &mut ExperimentResult) {
    let at = format!("load {}", load.name());
    let mut add = |claim: Claim, measured: f64| {
        let claim = Claim { source: load.source().to_owned(), ..claim };
        result.claims.push(claim.measured(measured));
    };
    let find = |name: &str| all.iter().find(|it| it.name() == name);
    let ms = |name: &str, q: f64| find(name).map_or(f64::NAN, |it| it.ms(q));
    let baseline_ms = |q: f64| find(CALC_PACED).map_or(f64::NAN, |it| it.baseline_ms(q));
    for (claim, q) in [(P99, 0.99), (P999, 0.999)] {
        add(claim.claim(&at), ms(CALC_PACED, q) / baseline_ms(q));
    }
    let carries = |name: &str| find(name).is_none_or(|it| it.carries());
    let is_high = load.share >= HIGH_LOAD_MIN;
    if carries(NAIVE_PACED) {
        let naive = ms(NAIVE_PACED, 0.99);
        let claim = NAIVE.paper(if is_high { VERY_POOR } else { TOLL });
        add(claim.claim_of((NAIVE_PACED, CALC_PACED), &at), naive / ms(CALC_PACED, 0.99));
        let others = all.iter().filter(|it| it.name() != NAIVE_PACED).map(|it| it.ms(0.99));
        let worst = others.fold(f64::NAN, f64::max);
        add(NAIVE_WORST.claim_of((NAIVE_PACED, "the worst other row"), &at), naive / worst);
    }
    for other in [ZIGZAG_PACED, PING_PONG_PACED] {
        if load.long.is_some() && carries(other) {
            let claim = WITH_LONG.paper(if is_high { POOR } else { TOLL });
            let ratio = ms(other, 0.999) / ms(CALC_PACED, 0.999);
            add(claim.claim_of((other, CALC_PACED), &at), ratio);
        }
    }
}

/// Loads from this share on leave the database no time to catch up.
const HIGH_LOAD_MIN: f64 = 0.8;

/// Compares the first load with the last one: naive without long transactions, and with them the schemes
/// that wait for them.
fn across(loads: &[Load], by_load: &[Vec<&Loaded>], result: &mut ExperimentResult) {
    for (name, has_long) in [(NAIVE_PACED, false), (ZIGZAG_PACED, true), (PING_PONG_PACED, true)] {
        let of_kind = loads.iter().zip(by_load).filter(|(load, _)| load.long.is_some() == has_long);
        let of_kind: Vec<_> = of_kind.collect();
        let [(higher, at_higher), .., (lower, at_lower)] = of_kind[..] else { continue };
        let find = |all: &[&Loaded]| all.iter().position(|it| it.name() == name);
        let (Some(first), Some(last)) = (find(at_higher), find(at_lower)) else { continue };
        let (first, last) = (at_higher[first], at_lower[last]);
        if higher.share > lower.share && first.carries() && last.carries() {
            let at = if has_long { "long ones" } else { "" };
            let claim = CATCHES_UP.claim_of((name, ""), at);
            let claim = Claim { source: lower.source().to_owned(), ..claim };
            result.claims.push(claim.measured(last.ms(0.99) / first.ms(0.99)));
        }
    }
}

/// The distributions of all rows at one load, and of the first row's baseline.
fn figure(load: &Load, all: &[&Loaded], result: &mut ExperimentResult) {
    let words = match (load.share >= HIGH_LOAD_MIN, load.long.is_some()) {
        (true, false) => "calc lies on no checkpointing, and naive is the worst",
        (true, true) => {
            "calc lies on no checkpointing; zigzag and IPP are poor, and naive is the worst"
        }
        (false, _) => {
            "calc lies on no checkpointing; the others are much better than at 90 %, and their unavailability \
             still shows"
        }
    };
    let long = if load.long.is_some() { ", with long transactions" } else { "" };
    let mut figure = Figure {
        title: format!("Latencies at {:.0} % of capacity{long}", load.share * 100.0),
        caption: format!(
            "Share of transactions that were not slower; queueing included, counted from the time at which each \
             was due. The paper: {words}."
        ),
        x_label: "latency in ms".into(),
        y_label: "share of transactions".into(),
        x_scale: Scale::Log,
        ..Figure::default()
    };
    for (row, outcome) in outcomes(all) {
        let name = format!("{row}, load {}", load.name());
        let points = outcome.latencies.all().tail_points();
        result.series.push(Series {
            name: name.clone(),
            label: row.to_owned(),
            x_unit: "ms".into(),
            y_unit: "share".into(),
            points: points.into_iter().map(|[ms, slower]| [ms, 1.0 - slower]).collect(),
            ..Series::default()
        });
        figure.series.push(name);
    }
    result.figures.push(figure);
}

/// The first row's baseline, and all rows.
fn outcomes<'a>(all: &[&'a Loaded]) -> Vec<(&'static str, &'a Outcome)> {
    let first = all.iter().take(1).map(|it| (BASELINE, &it.compared.baseline[0]));
    first.chain(all.iter().map(|it| (it.name(), &it.compared.runs[0]))).collect()
}

/// The table without its rows.
fn table() -> Table {
    let columns = [
        "load",
        "row",
        "arriving/s",
        "own capacity/s",
        "txn/s",
        "p50",
        "p99",
        "p99.9",
        "worst",
        "p50 of its none",
        "p99 of its none",
    ];
    Table {
        title: "Latencies in ms".into(),
        columns: columns.map(String::from).to_vec(),
        ..Table::default()
    }
}

/// The cells of one load, row by row.
fn table_rows(load: &Load, all: &[&Loaded]) -> Vec<Vec<String>> {
    let ms = |ms: f64| format!("{ms:.3}");
    let cells = |it: &Loaded, row: &str, own_capacity: f64, outcome: &Outcome| {
        let all = outcome.latencies.all();
        vec![
            load.name(),
            row.to_owned(),
            grouped(it.offered as u64),
            grouped(own_capacity as u64),
            grouped(outcome.rate() as u64),
            ms(all.ms(0.5)),
            ms(all.p99_ms()),
            ms(all.p999_ms()),
            ms(all.max_ms()),
            ms(it.baseline_ms(0.5)),
            ms(it.baseline_ms(0.99)),
        ]
    };
    let first = all.iter().take(1);
    let baseline = first.map(|it| cells(it, BASELINE, it.capacity, &it.compared.baseline[0]));
    let rows = all.iter().map(|it| cells(it, it.name(), it.own_capacity, &it.compared.runs[0]));
    baseline.chain(rows).collect()
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
        // The toys' capacities are the machine's at the moment, so some rows may not carry the load.
        assert!((2 * 2..=2 * 4 + 2).contains(&result.claims.len()), "{:?}", result.claims);
        assert_eq!((result.figures.len(), result.tables[0].rows.len()), (2, 2 * ROWS.len()));
        let rows = result.tables[0].rows.iter();
        let arriving: std::collections::BTreeSet<&String> = rows.map(|row| &row[2]).collect();
        assert!(arriving.len() > 2, "each pair has the load of its own capacity: {arriving:?}");
        assert_eq!(result.series.len(), 2 * ROWS.len());
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()));
        for series in &result.series {
            let rises = series.points.windows(2).all(|two| two[0][1] <= two[1][1]);
            assert!(rises && series.points.len() > 2, "{}: a distribution rises", series.name);
        }
        Ok(())
    }

    const LOW: Load = Load { share: 0.7, long: None };

    fn with_long(share: f64) -> Load {
        Load { share, long: Some(LongTransactions::of_the_paper()) }
    }

    /// Runs whose latencies are all the same, in ms, at 900 transactions a second.
    fn loaded(name: &'static str, baseline_ms: u64, ms: u64, own_capacity: f64) -> Loaded {
        let outcome = |ms: u64| {
            let mut outcome = Outcome { seconds: 1.0, ..Outcome::default() };
            outcome.latencies.record_many(0, ms * 1_000_000, 1_000);
            outcome
        };
        let (baseline, runs) = (vec![outcome(baseline_ms)], vec![outcome(ms)]);
        let compared = Compared { row: row(name), baseline, runs };
        Loaded { compared, capacity: 1_000.0, own_capacity, offered: 900.0 }
    }

    /// The claims and notes of one load.
    fn of_load(load: &Load, all: &[&Loaded]) -> ExperimentResult {
        let mut result = crate::report::tests::sample();
        (result.claims, result.notes) = (Vec::new(), Vec::new());
        remarks(load, all, &mut result);
        claims(load, all, &mut result);
        result
    }

    /// The measured value of the claim whose text begins so. The steps of latencies are 1 %.
    fn is_near(result: &ExperimentResult, text: &str, wanted: f64) -> bool {
        let found = result.claims.iter().find(|claim| claim.claim.starts_with(text));
        let measured = found.and_then(|claim| claim.measured);
        measured.is_some_and(|it| (it / wanted - 1.0).abs() < 0.03)
    }

    #[test]
    fn naive_is_compared_in_milliseconds_with_calc_and_with_the_worst() {
        // The baseline beside naive queued, and that beside calc did not.
        let calc = loaded(CALC_PACED, 1, 2, 1_000.0);
        let naive = loaded(NAIVE_PACED, 100, 40, 1_000.0);
        let zigzag = loaded(ZIGZAG_PACED, 1, 80, 1_000.0);
        let result = of_load(&Load { share: 0.9, long: None }, &[&calc, &naive, &zigzag]);
        assert!(is_near(&result, "p99 of latency: calc, paced ÷ none", 2.0), "{result:?}");
        assert!(is_near(&result, "p99 of latency: naive, paced ÷ calc, paced", 20.0));
        assert!(is_near(&result, "p99 of latency: naive, paced ÷ the worst other row", 0.5));
        let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
        assert!(note.text.starts_with("naive, paced, load 90 %: its baseline queues"), "{note:?}");
        assert!(result.claims.iter().all(|claim| claim.source.ends_with("Figure 5(a)")));
    }

    #[test]
    fn a_row_that_does_not_carry_the_load_has_no_claim_on_checkpoints() {
        let calc = loaded(CALC_PACED, 1, 2, 1_000.0);
        let (zigzag, ping_pong) =
            (loaded(ZIGZAG_PACED, 1, 8, 950.0), loaded(PING_PONG_PACED, 1, 900, 600.0));
        let result = of_load(&with_long(0.7), &[&calc, &zigzag, &ping_pong]);
        assert!(is_near(&result, "p99.9 of latency: zigzag, paced ÷ calc, paced", 4.0));
        assert!(!result.claims.iter().any(|claim| claim.subject == PING_PONG_PACED));
        let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
        assert!(
            note.text.starts_with("ping-pong, paced, load 70 %, long ones: the row"),
            "{note:?}"
        );
        assert!(result.claims.iter().all(|claim| claim.source.ends_with("Figure 5(d)")));
    }

    #[test]
    fn loads_are_compared_in_milliseconds() {
        // The baseline queued at the higher load alone.
        let (high, low) =
            (loaded(NAIVE_PACED, 100, 80, 1_000.0), loaded(NAIVE_PACED, 1, 20, 1_000.0));
        let (full, weak) =
            (loaded(ZIGZAG_PACED, 1, 80, 600.0), loaded(ZIGZAG_PACED, 1, 2, 1_000.0));
        let loads = [Load { share: 0.9, long: None }, with_long(0.9), LOW, with_long(0.7)];
        let mut result = crate::report::tests::sample();
        result.claims = Vec::new();
        across(&loads, &[vec![&high], vec![&full], vec![&low], vec![&weak]], &mut result);
        assert!(is_near(&result, "naive, paced: p99 of latency, lower ÷ higher load", 0.25));
        assert_eq!(result.claims.len(), 1, "zigzag does not carry the higher load");
        assert!(result.claims[0].source.ends_with("Figure 5(c)"));
    }
}
