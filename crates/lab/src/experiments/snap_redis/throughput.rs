//! `snap-fig5`: throughput of saturated clients while snapshots are taken.

use super::{
    CONSTANT, FORK, HUGE_FORK, Kind, NONE, PARTS, Plan, REDIS, Run, Subject, measure, part_of, run,
    shown,
};
use crate::context::Context;
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
pub(crate) struct SnapFig5;

impl Experiment for SnapFig5 {
    const ID: &'static str = "snap-fig5";
    const TITLE: &'static str = "Snapshots of a server under YCSB: throughput";
    const PAPER: &'static str = "Li et al., ICDE 2018, §III-C, Figure 5";
    const PARTS: &'static [&'static str] = &PARTS;
    type Plan = Plan;

    fn full() -> Plan {
        Plan { records: Plan::sizes(), update_shares: vec![0.1, 0.5], ..Plan::FULL }
    }

    fn quick() -> Plan {
        Plan { update_shares: vec![0.5], ..Self::full() }.quickly()
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.adjust(asked);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        measure(bench, plan, result, compare)
    }
}

const SIMILAR: ClaimRow =
    ClaimRow::new("throughput with snapshots", "ICDE 2018, §III-C, Figure 5", Bound::AtLeast(1.0))
        .paper(Paper::ratio("Redis-HG and Redis-PB are similar to Redis with fork", 1.0));
const BESIDE_REDIS: ClaimRow =
    ClaimRow::new("throughput with snapshots by fork", "Stillpoint", Bound::AtLeast(1.0))
        .between("this server", REDIS);
const NO_SLOWER: ClaimRow =
    ClaimRow::new("throughput with snapshots", "Stillpoint", Bound::AtLeast(1.0));
const DUMP: ClaimRow = ClaimRow::new("time of a dump", "Stillpoint", Bound::AtMost(1.05));

/// Figures of one run.
#[derive(Clone, Copy, Debug)]
struct Figures {
    rate: f64,
    /// Median seconds of a snapshot.
    dump_s: f64,
    snapshots_per_minute: f64,
    /// Peak of memory, that of children included and that of clients not.
    peak_bytes: f64,
    /// Processors that the server kept busy, and those that the clients did.
    server_cpus: f64,
    client_cpus: f64,
}

impl Figures {
    fn of(run: &Run, client_bytes: u64) -> Figures {
        let seconds = run.report.seconds;
        let dumps: Vec<f64> =
            run.snapshots.iter().map(|it| it.stretch[1] - it.stretch[0]).collect();
        let peak = run.memory.iter().map(|sample| sample.total_bytes()).max().unwrap_or(0);
        Figures {
            rate: run.report.rate(),
            dump_s: median(&dumps),
            snapshots_per_minute: run.snapshots.len() as f64 * 60.0 / seconds,
            peak_bytes: peak.saturating_sub(client_bytes) as f64,
            server_cpus: run.server_cpu_s / seconds,
            client_cpus: run.report.client_cpu_s / seconds,
        }
    }
}

/// One server at one size and share of updates.
#[derive(Clone, Debug)]
struct Point {
    name: String,
    records: u64,
    update_share: f64,
    /// The runs, and those of fork's server in turn with them.
    runs: Vec<Figures>,
    of_fork: Vec<Figures>,
}

impl Point {
    fn all(&self, figure: fn(&Figures) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }

    /// A figure of each run, divided by that of fork's run beside it.
    fn over_fork(&self, figure: fn(&Figures) -> f64) -> Vec<f64> {
        let pairs = self.runs.iter().zip(&self.of_fork);
        pairs.map(|(run, fork)| figure(run) / figure(fork)).collect()
    }

    fn is_at(&self, records: u64, update_share: f64) -> bool {
        self.records == records && self.update_share.to_bits() == update_share.to_bits()
    }
}

/// Measures all servers, each in turn with that of fork, and adds claims, figures and the table.
pub(super) fn compare(
    context: &Context,
    plan: &Plan,
    subjects: &[Subject],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let Some(fork) = subjects.iter().find(|it| it.name() == FORK) else { return Ok(()) };
    let mut points: Vec<Point> = Vec::new();
    for &records in &plan.records {
        if !fork.fits(records, None) {
            result.note(format!("{records} records were left out: no room for fork's copies"));
            continue;
        }
        let baseline = fork.start(context, plan, records)?;
        // The size of fork's pages is a matter of latency.
        for subject in subjects.iter().filter(|it| ![FORK, HUGE_FORK].contains(&it.name())) {
            if !subject.fits(records, Some(fork)) {
                let name = subject.name();
                result.note(format!("{name} was left out at {records} records: no room"));
                continue;
            }
            let server = subject.start(context, plan, records)?;
            let beds = [(fork, &baseline), (subject, &server)];
            for &update_share in &plan.update_shares {
                points.push(in_turn(context, plan, beds, (records, update_share))?);
            }
            subject.finish(context, server, records)?;
        }
        fork.finish(context, baseline, records)?;
    }
    add_fork(plan, &mut points);
    claims(plan, &points, result);
    // Two sizes make no curve.
    let shares = if part_of(context) == PARTS[0] { &*plan.update_shares } else { &[] };
    for &update_share in shares {
        figure(plan, subjects, &points, update_share, result);
    }
    table(&points, result);
    Ok(())
}

/// The runs of a server, in turn with those of fork's.
fn in_turn(
    context: &Context,
    plan: &Plan,
    [fork, subject]: [(&Subject, &Server); 2],
    (records, update_share): (u64, f64),
) -> LabResult<Point> {
    let name = subject.0.name().to_owned();
    let (runs, of_fork) = (Vec::new(), Vec::new());
    let mut point = Point { name, records, update_share, runs, of_fork };
    for seed in 1..=plan.runs as u64 {
        let kind = Kind { records, update_share, rate_per_s: None, watches_memory: true, seed };
        for (bed, into) in [(fork, &mut point.of_fork), (subject, &mut point.runs)] {
            let run = run(plan, bed.0, bed.1, kind)?;
            into.push(Figures::of(&run, client_bytes(bed.1)?));
        }
    }
    context.note(format!(
        "{}, {records} records, {update_share} updates: {:.0}/s, {:.3} of fork",
        point.name,
        median(&point.all(|run| run.rate)),
        median(&point.over_fork(|run| run.rate)),
    ));
    Ok(point)
}

/// Bytes that the server's clients have in its buffers.
fn client_bytes(server: &Server) -> LabResult<u64> {
    let fields = server.admin()?.info("memory")?;
    Ok(fields.get("mem_clients_normal").and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Fork's own points: its runs beside the first server of each size.
fn add_fork(plan: &Plan, points: &mut Vec<Point>) {
    for &records in &plan.records {
        for &update_share in &plan.update_shares {
            let Some(beside) = points.iter().find(|it| it.is_at(records, update_share)) else {
                continue;
            };
            let runs = beside.of_fork.clone();
            points.push(Point { name: FORK.into(), runs, ..beside.clone() });
        }
    }
}

fn claims(plan: &Plan, points: &[Point], result: &mut ExperimentResult) {
    for point in points.iter().filter(|it| it.name != FORK && it.name != NONE) {
        let at = format!("{} records, {} updates", grouped(point.records), point.update_share);
        if point.name == REDIS {
            let ours: Vec<f64> =
                point.over_fork(|run| run.rate).iter().map(|it| 1.0 / it).collect();
            result.claims.push(BESIDE_REDIS.claim(&at).measured_runs(&ours));
            continue;
        }
        let is_papers = CONSTANT.contains(&&*point.name);
        let row = if is_papers { SIMILAR } else { NO_SLOWER };
        let rates = point.over_fork(|run| run.rate);
        let names = (&*point.name, FORK);
        result.claims.push(row.claim_of(names, &at).measured_runs(&rates));
        if is_papers && Some(&point.records) == plan.records.last() {
            let dumps = point.over_fork(|run| run.dump_s);
            result.claims.push(DUMP.claim_of(names, &at).measured_runs(&dumps));
        }
    }
}

fn figure(
    plan: &Plan,
    subjects: &[Subject],
    points: &[Point],
    update_share: f64,
    result: &mut ExperimentResult,
) {
    let mut figure = Figure {
        title: format!("Records and throughput, {:.0} % updates", update_share * 100.0),
        caption: format!(
            "Saturated clients, a snapshot every {} s. The paper: Redis-HG and Redis-PB have the \
             throughput of Redis with fork.",
            plan.period_s
        ),
        x_label: "records".into(),
        y_label: "requests/s".into(),
        x_scale: Scale::Log,
        ..Figure::default()
    };
    for subject in subjects {
        let mut series = Series {
            name: format!("{}, {update_share} updates", subject.name()),
            label: subject.name().to_owned(),
            x_unit: "records".into(),
            y_unit: "/s".into(),
            ..Series::default()
        };
        for &records in &plan.records {
            let is_it = |it: &&Point| it.name == subject.name() && it.is_at(records, update_share);
            if let Some(point) = points.iter().find(is_it) {
                let rates = point.all(|run| run.rate);
                series.points.push([records as f64, median(&rates)]);
                series.spreads.push(ends(&rates));
            }
        }
        if !series.points.is_empty() {
            figure.series.push(series.name.clone());
            result.series.push(series);
        }
    }
    result.figures.push(figure);
}

fn table(points: &[Point], result: &mut ExperimentResult) {
    let columns = [
        "records",
        "updates",
        "server",
        "requests/s",
        "÷ fork",
        "dump s",
        "snapshots/min",
        "peak MiB",
        "server's CPUs",
        "clients' CPUs",
    ];
    let mut table = Table {
        title: "Saturated clients (medians)".into(),
        columns: columns.map(String::from).to_vec(),
        ..Table::default()
    };
    for point in points {
        let of = |figure| median(&point.all(figure));
        table.rows.push(vec![
            grouped(point.records),
            point.update_share.to_string(),
            point.name.clone(),
            grouped(of(|run| run.rate) as u64),
            shown(median(&point.over_fork(|run| run.rate)), 3),
            shown(of(|run| run.dump_s), 2),
            shown(of(|run| run.snapshots_per_minute), 1),
            grouped(of(|run| run.peak_bytes) as u64 >> 20),
            shown(of(|run| run.server_cpus), 2),
            shown(of(|run| run.client_cpus), 2),
        ]);
    }
    result.tables.push(table);
}
