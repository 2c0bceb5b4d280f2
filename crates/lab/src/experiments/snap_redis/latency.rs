//! `snap-fig6`: the worst latency of each period with a snapshot, at half load.

use super::{
    CONSTANT, FORK, HUGE_FORK, Kind, NONE, PARTS, Plan, REDIS, Run, Subject, ends_of, measure,
    part_of, run, shown,
};
use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan, Until};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::{ends, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, Scale, Series, Table,
};
use crate::subjects::server::Server;

/// The experiment.
pub(crate) struct SnapFig6;

impl Experiment for SnapFig6 {
    const ID: &'static str = "snap-fig6";
    const TITLE: &'static str = "Snapshots of a server under YCSB: worst latency";
    const PAPER: &'static str = "Li et al., ICDE 2018, §III-C, Figure 6";
    const PARTS: &'static [&'static str] = &PARTS;
    type Plan = Plan;

    fn full() -> Plan {
        Plan { records: Plan::sizes(), update_shares: vec![0.1], snapshots: 6, ..Plan::FULL }
    }

    fn quick() -> Plan {
        Self::full().quickly()
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.adjust(asked);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        measure(bench, plan, result, compare)
    }
}

const SOURCE: &str = "ICDE 2018, §III-C, Figure 6";
const STOPPED: ClaimRow =
    ClaimRow::new("time stopped at the point of consistency", "Stillpoint", Bound::AtMost(1000.0))
        .unit("µs");
const STOPPED_GROWS: ClaimRow = ClaimRow::new(
    "time stopped at the point of consistency, greatest ÷ smallest size",
    "Stillpoint",
    Bound::AtMost(1.2),
);
/// The growth of the server without snapshots is that of the load and of the machine.
const STABLE: ClaimRow = ClaimRow::new(
    "worst latency, greatest ÷ smallest size, ÷ that of none",
    SOURCE,
    Bound::AtMost(1.2),
)
.paper(Paper::ratio("remains stable with the growth of the record count", 1.0));
const FORK_GROWS: ClaimRow =
    ClaimRow::new("worst latency, greatest ÷ smallest size", SOURCE, Bound::AtLeast(2.0))
        .paper(Paper::words("fork: dramatic increase from 8 million records on"));
const SPIKE: ClaimRow =
    ClaimRow::new("worst latency beyond that without snapshots", SOURCE, Bound::AtMost(1.0 / 7.0))
        .paper(Paper::words("fork's spike is gone"));
const SIMILAR: ClaimRow = ClaimRow::new("worst latency", SOURCE, Bound::AtMost(1.2))
    .between(CONSTANT[0], CONSTANT[1])
    .paper(Paper::words("Redis-HG and Redis-PB have similar maximum latencies"));
/// Who meets this shows no spike at all, whatever fork's is.
const WITHIN_SPREAD: ClaimRow = ClaimRow::new(
    "worst latency ÷ the greatest of equal stretches without snapshots",
    "Stillpoint",
    Bound::AtMost(1.0),
);

/// Times stopped below this do not differ: a thread that is woken takes as long. A scheme that stops nobody
/// has 0.
const SHORTEST_STOP_US: f64 = 50.0;
/// Excesses below this do not differ.
const SHORTEST_EXCESS_MS: f64 = 0.2;

/// One server at one size.
#[derive(Clone, Debug)]
struct Point {
    name: String,
    records: u64,
    rate_per_s: f64,
    p50_ms: f64,
    p999_ms: f64,
    /// The worst latency from each snapshot to the next.
    worst_ms: Vec<f64>,
    /// The worst latencies of stretches as long, on the server without snapshots.
    none_worst_ms: Vec<f64>,
    stopped_us: Vec<f64>,
    dump_s: f64,
}

impl Point {
    fn of(plan: &Plan, name: &str, (records, rate_per_s): (u64, f64), runs: &[Run]) -> Point {
        let all: Vec<_> = runs.iter().map(|run| run.report.latencies.all()).collect();
        let of_runs = |q: f64| median(&all.iter().map(|it| it.ms(q)).collect::<Vec<_>>());
        let snapshots = || runs.iter().flat_map(|run| &run.snapshots);
        let dumps: Vec<f64> = snapshots().map(|it| it.stretch[1] - it.stretch[0]).collect();
        Point {
            name: name.to_owned(),
            records,
            rate_per_s,
            p50_ms: of_runs(0.5),
            p999_ms: of_runs(0.999),
            worst_ms: worst(runs, |run| stretches(plan, run)),
            none_worst_ms: Vec::new(),
            stopped_us: snapshots().map(|it| it.stopped_ms * 1e3).collect(),
            dump_s: median(&dumps),
        }
    }

    fn stop_us(&self) -> f64 {
        median(&self.stopped_us)
    }

    /// The median worst latency of a stretch, beyond that of the server without snapshots.
    fn excess_ms(&self) -> f64 {
        median(&self.worst_ms) - median(&self.none_worst_ms)
    }
}

/// From the begin of each snapshot to that of the next one, or to the end. Without snapshots, from a tenth
/// of each period to its end.
fn stretches(plan: &Plan, run: &Run) -> Vec<[f64; 2]> {
    if run.snapshots.is_empty() {
        let period = |number: usize| number as f64 * plan.period_s;
        return (0..plan.snapshots)
            .map(|n| [period(n) + 0.1 * plan.period_s, period(n + 1)])
            .collect();
    }
    let begins: Vec<f64> = run.snapshots.iter().map(|it| it.stretch[0]).collect();
    let ends = begins[1..].iter().copied().chain([run.report.seconds]);
    begins.iter().copied().zip(ends).map(|(begin, end)| [begin, end]).collect()
}

/// The median length of the stretches of these runs, in seconds.
fn length_s(plan: &Plan, runs: &[Run]) -> f64 {
    let all = runs.iter().flat_map(|run| stretches(plan, run));
    median(&all.map(|[from, to]| to - from).collect::<Vec<_>>())
}

/// Stretches of this length, one after the other, in so many seconds. At least one.
fn cut(seconds: f64, length_s: f64) -> Vec<[f64; 2]> {
    let length_s = length_s.min(seconds);
    let whole = (seconds / length_s) as usize;
    (0..whole).map(|n| [n, n + 1].map(|n| n as f64 * length_s)).collect()
}

/// The worst latency of each stretch of the runs.
fn worst(runs: &[Run], stretches: impl Fn(&Run) -> Vec<[f64; 2]>) -> Vec<f64> {
    let of_run = |run: &Run| -> Vec<f64> {
        let of = |stretch| run.report.latencies.within(&[stretch]).max_ms();
        stretches(run).into_iter().map(of).filter(|ms| ms.is_finite()).collect()
    };
    runs.iter().flat_map(of_run).collect()
}

/// Measures all servers one after the other. The one without snapshots runs before and after them.
pub(super) fn compare(
    context: &Context,
    plan: &Plan,
    subjects: &[Subject],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let Some((none, others)) = subjects.split_first() else { return Ok(()) };
    result.parameter("load", format!("{} of each server's own capacity", plan.load_share));
    let mut points = Vec::new();
    for &records in &plan.records {
        if !none.fits(records, None) {
            result.note(format!("{records} records were left out: no room"));
            continue;
        }
        // Each server is alone in the memory.
        let (rate_per_s, mut of_none) = measured(context, plan, none, (records, 1))?;
        let mut of_others = Vec::new();
        for subject in others {
            if subject.fits(records, None) {
                let (rate_per_s, runs) = measured(context, plan, subject, (records, plan.runs))?;
                let point = Point::of(plan, subject.name(), (records, rate_per_s), &runs);
                of_others.push((noted(context, point), length_s(plan, &runs)));
            } else {
                let name = subject.name();
                result.note(format!("{name} was left out at {records} records: no room"));
            }
        }
        of_none.extend(measured(context, plan, none, (records, 1))?.1);
        for (mut point, length_s) in of_others {
            point.none_worst_ms = worst(&of_none, |run| cut(run.report.seconds, length_s));
            points.push(point);
        }
        let mut point = Point::of(plan, NONE, (records, rate_per_s), &of_none);
        point.none_worst_ms.clone_from(&point.worst_ms);
        points.push(noted(context, point));
    }
    claims(plan, &points, result);
    // Two sizes make no curve.
    if part_of(context) == PARTS[0] {
        figure(plan, subjects, &points, result);
    }
    table(&points, result);
    Ok(())
}

/// The runs of one server at a share of its own capacity, and the requests per second of them.
fn measured(
    context: &Context,
    plan: &Plan,
    subject: &Subject,
    (records, runs): (u64, usize),
) -> LabResult<(f64, Vec<Run>)> {
    let update_share = plan.update_shares.first().copied().unwrap_or(0.1);
    let server = subject.start(context, plan, records)?;
    let rate_per_s = capacity(plan, &server, (records, update_share))? * plan.load_share;
    let kind = |seed| Kind {
        records,
        update_share,
        rate_per_s: Some(rate_per_s),
        watches_memory: false,
        seed,
    };
    let done = (1..=runs as u64).map(|seed| run(plan, subject, &server, kind(seed)));
    let done = done.collect::<LabResult<Vec<Run>>>()?;
    subject.finish(context, server, records)?;
    Ok((rate_per_s, done))
}

fn noted(context: &Context, point: Point) -> Point {
    context.note(format!(
        "{}, {} records at {:.0}/s: worst beside a snapshot {:.2} ms, stopped {:.0} µs",
        point.name,
        point.records,
        point.rate_per_s,
        median(&point.worst_ms),
        point.stop_us(),
    ));
    point
}

/// Requests per second of saturated clients, without snapshots.
fn capacity(plan: &Plan, server: &Server, (records, share): (u64, f64)) -> LabResult<f64> {
    let seconds = std::time::Duration::from_secs_f64(plan.period_s / 2.0);
    let load =
        LoadPlan { set_share: share, until: Until::Elapsed(seconds), ..plan.load(server, records) };
    let report = resp::run(&load)?;
    report.expect_no_errors(server.address)?;
    Ok(report.rate())
}

fn claims(plan: &Plan, points: &[Point], result: &mut ExperimentResult) {
    let find = |name: &str, records: u64| {
        points.iter().find(|it| it.name == name && it.records == records)
    };
    let sizes: Vec<u64> =
        plan.records.iter().copied().filter(|&size| find(FORK, size).is_some()).collect();
    let Some([small, large]) = ends_of(&sizes) else { return };
    let grows = |name: &str, figure: fn(&Point) -> f64| match (find(name, small), find(name, large))
    {
        (Some(small), Some(large)) => figure(large) / figure(small),
        _ => f64::NAN,
    };
    let worst = |point: &Point| median(&point.worst_ms);
    for name in CONSTANT {
        for &records in &sizes {
            let stops = find(name, records).map_or(Vec::new(), |it| it.stopped_us.clone());
            let at = format!("{} records", grouped(records));
            result.claims.push(STOPPED.claim_of((name, ""), &at).measured_runs(&stops));
        }
        let ratio = grows(name, |point| point.stop_us().max(SHORTEST_STOP_US));
        result.claims.push(STOPPED_GROWS.claim_of((name, ""), "").measured(ratio));
        let beside_none = grows(name, worst) / grows(NONE, worst);
        result.claims.push(STABLE.claim_of((name, ""), "").measured(beside_none));
        let excess = |name: &str| {
            find(name, large).map_or(f64::NAN, |it| it.excess_ms().max(SHORTEST_EXCESS_MS))
        };
        let at = format!("{} records", grouped(large));
        for fork in [FORK, HUGE_FORK] {
            let claim = SPIKE.claim_of((name, fork), &at);
            result.claims.push(claim.measured(excess(name) / excess(fork)));
        }
        let beside = find(name, large)
            .map_or(f64::NAN, |it| median(&it.worst_ms) / ends(&it.none_worst_ms)[1]);
        result.claims.push(WITHIN_SPREAD.claim_of((name, ""), &at).measured(beside));
    }
    if let (Some(hourglass), Some(piggyback)) = (find(CONSTANT[0], large), find(CONSTANT[1], large))
    {
        let ratio = worst(hourglass) / worst(piggyback);
        let at = format!("{} records", grouped(large));
        // The paper says of neither that it is the better one.
        result.claims.push(SIMILAR.claim(&at).measured(ratio.max(1.0 / ratio)));
    }
    for name in [FORK, REDIS] {
        if find(name, large).is_some() {
            result.claims.push(FORK_GROWS.claim_of((name, ""), "").measured(grows(name, worst)));
        }
    }
    if let Some(none) = find(NONE, large) {
        let [low, high] = ends(&none.worst_ms);
        let text = format!(
            "Without snapshots the worst latencies of periods are {low:.2} to {high:.2} ms."
        );
        result.note(text);
    }
}

fn figure(plan: &Plan, subjects: &[Subject], points: &[Point], result: &mut ExperimentResult) {
    let mut figure = Figure {
        title: "Records and worst latency".into(),
        caption: format!(
            "Median and spread of the worst latency from a snapshot to the next, every {} s, open loop at \
             {:.0} % of each server's capacity. The paper: with fork it grows dramatically, with \
             hourglass and piggyback it remains stable.",
            plan.period_s,
            plan.load_share * 100.0
        ),
        x_label: "records".into(),
        y_label: "worst latency in ms".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        ..Figure::default()
    };
    for subject in subjects {
        let of_it: Vec<&Point> = points.iter().filter(|it| it.name == subject.name()).collect();
        if of_it.is_empty() {
            continue;
        }
        let name = format!("{}, worst latency", subject.name());
        figure.series.push(name.clone());
        result.series.push(Series {
            name,
            label: subject.name().to_owned(),
            x_unit: "records".into(),
            y_unit: "ms".into(),
            points: of_it.iter().map(|it| [it.records as f64, median(&it.worst_ms)]).collect(),
            spreads: of_it.iter().map(|it| ends(&it.worst_ms)).collect(),
            ..Series::default()
        });
    }
    result.figures.push(figure);
}

fn table(points: &[Point], result: &mut ExperimentResult) {
    let columns = [
        "records",
        "server",
        "requests/s",
        "p50 ms",
        "p99.9 ms",
        "worst from a snapshot to the next ms: median (greatest)",
        "beyond none ms",
        "none's worst of equal stretches ms: median (greatest)",
        "stopped µs: median (least to greatest)",
        "dump s",
    ];
    let mut table = Table {
        title: "At half load".into(),
        columns: columns.map(String::from).to_vec(),
        ..Table::default()
    };
    let stops = |values: &[f64]| {
        let [least, greatest] = ends(values);
        format!("{} ({} to {})", shown(median(values), 0), shown(least, 0), shown(greatest, 0))
    };
    for point in points {
        let of = |values: &[f64], digits| {
            let greatest = ends(values)[1];
            format!("{} ({})", shown(median(values), digits), shown(greatest, digits))
        };
        table.rows.push(vec![
            grouped(point.records),
            point.name.clone(),
            grouped(point.rate_per_s as u64),
            shown(point.p50_ms, 3),
            shown(point.p999_ms, 2),
            of(&point.worst_ms, 2),
            shown(point.excess_ms(), 2),
            of(&point.none_worst_ms, 2),
            stops(&point.stopped_us),
            shown(point.dump_s, 2),
        ]);
    }
    result.tables.push(table);
}
