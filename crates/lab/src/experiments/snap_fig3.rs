//! `snap-fig3`: the schemes on pages of 4 KB (ICDE 2018, §III-B, Figures 3 and 4).
//!
//! | part | of the paper | |
//! |---|---|---|
//! | `sizes` | Figure 4 | 0.5 to 4 GB, 256 K updates in a tick of 0.1 s |
//! | `rates` | Figure 3 and its text | 1 GB, 16 K to 256 K updates in a tick |
//! | `reads` | — | the smallest and the largest size, half of the accesses reads |
//!
//! The published driver never reads, and the published hourglass reads without a look for the
//! newest page. Every read here is compared with the baseline's.

use std::time::Duration;

use serde::Serialize;
use stillpoint_state::registry;

use crate::context::Context;
use crate::drivers::ticks::{self, Drive, Images};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::machine::available_bytes;
use crate::measure::outcome::{Outcome, Ticks};
use crate::measure::stats::{ends, median};
use crate::report::draw::Drawing;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::arrays::{
    PROCESSES, flat_schemes, has_constant_tick, is_from_2011, is_from_a_paper, refusals, schemes,
};
use crate::sys;
use crate::workloads::trace::{Trace, TraceLoad};
use crate::workloads::zipf::{PAGE_WORDS, ZipfAccesses};

/// The scheme of the paper beside which the worst ticks of others stand.
const WITHOUT_PEAKS: &str = "hg";
/// The scheme that outperforms all older ones in the paper's first finding.
const FORK: &str = "fork";
const FIGURE_3: &str = "ICDE 2018, §III-B, Figure 3";
const SOURCE: &str = "ICDE 2018, §III-B, Figure 4 and finding 2";
/// A value for "several orders of magnitude", which the paper's text gives no number for.
const SEVERAL_ORDERS: f64 = 100.0;

type Page = [u32; PAGE_WORDS];
const PAGE_BYTES: usize = PAGE_WORDS * 4;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Numbers of pages of the measured states, in ascending order.
    pub(crate) pages: Vec<usize>,
    /// Pages of the state in the part `rates`.
    pub(crate) pages_of_rates: usize,
    /// Accesses of a tick. The part `sizes` takes the last number.
    pub(crate) accesses: Vec<usize>,
    /// Length of a tick, in ms.
    pub(crate) tick_ms: u64,
    /// Ticks between two points of consistency.
    pub(crate) period_ticks: u64,
    /// Periods of a run.
    pub(crate) periods: u64,
    /// Further points of consistency, for schemes whose boundary must be constant.
    pub(crate) further_boundaries: u64,
    /// Accesses in memory.
    pub(crate) pool: usize,
}

impl Plan {
    fn most_accesses(&self) -> usize {
        self.accesses.last().copied().unwrap_or(1)
    }

    fn drive(&self) -> Drive {
        Drive {
            ticks: self.period_ticks * self.periods,
            tick: Some(Duration::from_millis(self.tick_ms)),
            images: Images::EveryTicks(self.period_ticks),
            logs_actions: true,
            ..Drive::paper(self.periods)
        }
    }
}

/// A scheme at one size and rate.
struct Point {
    pages: usize,
    accesses: usize,
    /// Writes among the accesses.
    updates: f64,
    /// Share of the pages that the updates of a period touch.
    dirty_share: f64,
    outcome: Outcome,
}

impl Point {
    /// The median of the periods.
    fn middle<'a>(&'a self, figure: impl Fn(Ticks<'a>) -> f64) -> f64 {
        median(&self.outcome.of_periods(figure))
    }

    /// The x of a figure, the median of some values, and the least and the greatest of them.
    fn drawn(at: f64, values: &[f64]) -> Drawn {
        ([at, median(values)], ends(values))
    }

    /// Drawn from a figure of each period.
    fn drawn_periods<'a>(&'a self, at: f64, figure: impl Fn(Ticks<'a>) -> f64) -> Drawn {
        Self::drawn(at, &self.outcome.of_periods(figure))
    }

    fn boundary_us(&self) -> f64 {
        median(&self.outcome.all_boundaries_us())
    }

    fn other_ends_us(&self) -> f64 {
        median(&self.outcome.all().other_ends_us())
    }

    /// r: updates while one image is taken, per page of the state.
    fn update_rate(&self, tick_ms: u64) -> f64 {
        let ticks = median(&self.outcome.image_s) * 1e3 / tick_ms as f64;
        ticks * self.updates / self.pages as f64
    }

    fn gib(&self) -> f64 {
        (self.pages * PAGE_BYTES) as f64 / f64::from(1 << 30)
    }
}

/// A point of a curve, with the least and the greatest value.
type Drawn = ([f64; 2], [f64; 2]);

/// The experiment.
pub(crate) struct SnapFig3;

impl Experiment for SnapFig3 {
    const ID: &'static str = "snap-fig3";
    const TITLE: &'static str = "State arrays of pages: latency of ticks while images are taken";
    const PAPER: &'static str = "Li et al., ICDE 2018, §III-B, Figures 3 and 4";
    const PARTS: &'static [&'static str] = &["sizes", "rates", "reads"];
    const PROCESSES: usize = PROCESSES;
    type Plan = Plan;

    fn full() -> Plan {
        let gib = (1 << 30) / PAGE_BYTES;
        Plan {
            pages: vec![gib / 2, gib, 2 * gib, 4 * gib],
            pages_of_rates: gib,
            accesses: vec![16_000, 64_000, 256_000],
            tick_ms: 100,
            period_ticks: 50,
            periods: 3,
            further_boundaries: 12,
            pool: 16_000_000,
        }
    }

    fn quick() -> Plan {
        Plan {
            pages: vec![200, 400],
            pages_of_rates: 200,
            accesses: vec![500, 1_000],
            tick_ms: 5,
            period_ticks: 6,
            periods: 2,
            further_boundaries: 2,
            pool: 20_000,
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(seconds) = asked.seconds {
            let period_s = (plan.period_ticks * plan.tick_ms) as f64 / 1e3;
            plan.periods = (seconds / period_s).ceil().max(1.0) as u64;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        result.parameter("page_bytes", PAGE_BYTES);
        result.parameter("write_bytes", 4);
        result.parameter("zipf_exponent", 2.0);
        result.parameter("logs_actions", plan.drive().logs_actions);
        let per_cache = |pages: &usize| result.per_cache((pages * PAGE_BYTES) as u64);
        let per_cache: Vec<f64> = plan.pages.iter().map(per_cache).collect();
        result.parameter("state_per_last_level_cache", per_cache);
        result.note(
            "The action log is on, as by default: the end of a tick hands the tick over to the logger, \
             whose thread flushes it.",
        );
        refusals().into_iter().for_each(|refusal| result.note(refusal));
        if context.wants("sizes") {
            result.in_part("sizes", |result| sizes(context, plan, result))?;
        }
        if context.wants("rates") {
            result.in_part("rates", |result| rates(context, plan, result))?;
        }
        if context.wants("reads") {
            result.in_part("reads", |result| reads(context, plan, result))?;
        }
        Ok(())
    }
}

/// Runs every scheme at one size and rate. Notes the schemes for which the memory does not suffice.
fn points(
    context: &Context,
    plan: &Plan,
    (pages, accesses, read_share): (usize, usize, f64),
    result: &mut ExperimentResult,
) -> LabResult<Vec<Point>> {
    let zipf = ZipfAccesses::pages(pages, plan.pool, read_share, 1);
    let trace = Trace::equal(zipf.make()?, accesses);
    let load = TraceLoad::<Page>::new(trace.clone(), zipf.words());
    let updates = accesses as f64 * (1.0 - read_share);
    let dirty_share = trace.dirty_share(1..=plan.period_ticks, pages, PAGE_WORDS);
    let mut found = Vec::new();
    for scheme in schemes() {
        let copies =
            registry::REGISTRY.find(scheme).map_or(0, |row| row.needs(PAGE_BYTES).copies) + 1;
        let needed = (copies * pages * PAGE_BYTES) as u64 * 21 / 20;
        if needed > available_bytes() {
            result.note(format!(
                "{scheme} was left out at {pages} pages: it needs {} MB of memory",
                needed / 1_000_000
            ));
            continue;
        }
        let dir = context.fresh_dir(scheme)?;
        let is_flat = has_constant_tick(scheme);
        let further_boundaries = if is_flat { plan.further_boundaries } else { 0 };
        let drive = Drive { further_boundaries, ..plan.drive() };
        let outcome = ticks::run(&load, scheme, &drive, &dir)?;
        sys::remove_dir_all(&dir)?;
        context.saw_huge_pages(outcome.huge_page_bytes);
        let point = Point { pages, accesses, updates, dirty_share, outcome };
        context.note(format!(
            "{scheme}, {:.2} GiB, {accesses} accesses: mean {:.3} ms, worst {:.3} (raw {:.3}, {:.3}), boundary {:.2} us (other ends {:.2})",
            point.gib(),
            point.middle(Ticks::mean_ms),
            point.middle(Ticks::max_ms),
            point.middle(Ticks::raw_mean_ms),
            point.middle(Ticks::raw_max_ms),
            point.boundary_us(),
            point.other_ends_us(),
        ));
        found.push(point);
    }
    Ok(found)
}

fn table(title: String, points: &[Point], plan: &Plan) -> Table {
    let columns = [
        "GiB",
        "accesses of a tick",
        "scheme",
        "mean tick, ms",
        "worst tick, ms",
        "raw mean, ms",
        "raw worst, ms",
        "boundary, µs",
        "other ends, µs",
        "overhead, % of a tick",
        "image, s",
        "writer and copier CPU, s",
        "r",
        "dirty share of a period",
        "memory ÷ state",
        "recovery, s",
    ];
    let row = |point: &Point| {
        let outcome = &point.outcome;
        let share = outcome.all().overhead_share(plan.tick_ms as f64 / 1e3);
        vec![
            format!("{:.2}", point.gib()),
            grouped(point.accesses as u64),
            outcome.scheme.clone(),
            format!("{:.3}", point.middle(Ticks::mean_ms)),
            format!("{:.3}", point.middle(Ticks::max_ms)),
            format!("{:.3}", point.middle(Ticks::raw_mean_ms)),
            format!("{:.3}", point.middle(Ticks::raw_max_ms)),
            format!("{:.2}", point.boundary_us()),
            format!("{:.2}", point.other_ends_us()),
            format!("{:.3}", 100.0 * share),
            format!("{:.2}", median(&outcome.image_s)),
            format!("{:.2}", outcome.writer_cpu_s),
            format!("{:.2}", point.update_rate(plan.tick_ms)),
            format!("{:.3}", point.dirty_share),
            format!("{:.2}", outcome.held_bytes as f64 / outcome.state_bytes as f64),
            outcome.recovery.map_or("—".into(), |it| format!("{:.2}", it.seconds())),
        ]
    };
    let columns = columns.map(String::from).to_vec();
    Table { title, columns, rows: points.iter().map(row).collect(), ..Table::default() }
}

fn of<'a>(points: &'a [Point], scheme: &'a str) -> impl Iterator<Item = &'a Point> {
    points.iter().filter(move |point| point.outcome.scheme == scheme)
}

/// Adds a curve for each scheme.
fn curves(drawing: &mut Drawing<'_>, points: &[Point], at: impl Fn(&Point) -> Drawn) {
    for scheme in schemes() {
        let (curve, spreads) = of(points, scheme).map(&at).unzip();
        drawing.curve_with_spreads(scheme, curve, spreads);
    }
}

/// The schemes whose worst ticks the paper shows above those of hourglass.
fn with_peaks() -> impl Iterator<Item = &'static str> {
    schemes().into_iter().filter(|name| is_from_a_paper(name) && !has_constant_tick(name))
}

fn sizes(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut all = Vec::new();
    for &pages in &plan.pages {
        let what = (pages, plan.most_accesses(), 0.0);
        all.extend(points(context, plan, what, result)?);
    }
    let per_tick = grouped(plan.most_accesses() as u64);
    result.tables.push(table(format!("By size, {per_tick} updates in a tick"), &all, plan));
    worst_ticks(&all, result);
    let caption = "The end of the ticks at which captures begin, with the action log on; median.";
    let mut drawing = Drawing::new(result, "Tick boundary by size", ", boundary")
        .axes(caption, ("state", "GiB"), ("boundary", "µs"))
        .log();
    curves(&mut drawing, &all, |p| Point::drawn(p.gib(), &p.outcome.all_boundaries_us()));
    drawing.finish();
    if let Some(&pages) = plan.pages.iter().find(|&&pages| pages >= plan.pages_of_rates) {
        let mut drawing = Drawing::new(result, "Latency of each tick (Figure 3)", ", trace")
            .axes("Step and end of each tick.", ("time", "s"), ("latency", "ms"))
            .log_y();
        let drawn = || all.iter().filter(|point| point.pages == pages);
        for point in drawn() {
            drawing.curve(&point.outcome.scheme, point.outcome.latency_points());
        }
        let flat = drawn().find(|point| point.outcome.scheme == WITHOUT_PEAKS);
        for scheme in with_peaks() {
            let last_s = flat.and_then(|it| it.outcome.ticks.last()).map_or(f64::NAN, |it| it.at_s);
            let ms = flat.map_or(f64::NAN, |it| it.middle(Ticks::max_ms)) * SEVERAL_ORDERS;
            drawing.paper(scheme, [last_s, ms], &several_orders(scheme));
        }
        drawing.finish();
    }
    flat(&all, "updates only", result);
    spikes(&all, result);
    fork_outperforms(&all, result);
    Ok(())
}

fn several_orders(scheme: &str) -> String {
    format!("{scheme}: several orders of magnitude above {WITHOUT_PEAKS}, here {SEVERAL_ORDERS} ×")
}

/// Figure 4. The paper's text has no numbers. The rings of schemes with peaks stand at the worst tick of
/// hourglass, multiplied. Those of schemes that do not grow stand at the value of the smallest size.
fn worst_ticks(points: &[Point], result: &mut ExperimentResult) {
    let caption = "Median, least and greatest of the periods' worst ticks, with the writer on the \
                   disk. The paper's rings: no growth for hg and pb, and several orders of \
                   magnitude above hg for the others.";
    let mut drawing = Drawing::new(result, "Worst tick by size (Figure 4)", ", worst tick")
        .axes(caption, ("state", "GiB"), ("worst tick", "ms"))
        .log();
    curves(&mut drawing, points, |point| point.drawn_periods(point.gib(), Ticks::max_ms));
    let worst = |point: &Point| point.middle(Ticks::max_ms);
    let last = of(points, WITHOUT_PEAKS).last();
    for scheme in with_peaks() {
        let at = last.map_or([f64::NAN; 2], |it| [it.gib(), worst(it) * SEVERAL_ORDERS]);
        drawing.paper(scheme, at, &several_orders(scheme));
    }
    for scheme in flat_schemes() {
        let ends = of(points, scheme).next().zip(of(points, scheme).last());
        if let Some((first, last)) = ends.filter(|_| !is_from_2011(scheme)) {
            let text = format!("{scheme}: not affected by the data size");
            drawing.paper(scheme, [last.gib(), worst(first)], &text);
        }
    }
    drawing.finish();
}

/// A figure at the largest size ÷ the figure at the smallest.
fn growth(points: &[Point], scheme: &str, figure: impl Fn(&Point) -> f64) -> f64 {
    let found: Vec<&Point> = of(points, scheme).collect();
    match found[..] {
        [first, .., last] => figure(last) / figure(first),
        _ => f64::NAN,
    }
}

const LARGEST: &str = "largest size";
const BOUNDARY: ClaimRow =
    ClaimRow::new("tick boundary at the worst size", "Stillpoint", Bound::AtMost(1.0)).unit("µs");
const BOUNDARY_GROWS: ClaimRow = constant("tick boundary, largest ÷ smallest size");
const TICK_GROWS: ClaimRow = constant("worst tick, largest ÷ smallest size");
const OF_CAPTURE: ClaimRow =
    ClaimRow::new("worst tick of a capture", "Stillpoint", Bound::AtMost(1.5));
const NO_SPIKES: ClaimRow = ClaimRow::new("worst tick ÷ mean tick", FIGURE_3, Bound::AtMost(1.5))
    .paper(Paper::words("no spikes"));
const SPIKES: ClaimRow = ClaimRow::new("worst tick", FIGURE_3, Bound::AtLeast(10.0))
    .paper(Paper::words("several orders of magnitude"));
const GROWS_STEADILY: ClaimRow =
    ClaimRow::new("worst tick, largest ÷ smallest size", SOURCE, Bound::AtLeast(1.5))
        .paper(Paper::words("grows steadily with the data size"));
const OUTPERFORMED: ClaimRow =
    ClaimRow::new("mean tick", "ICDE 2018, §III-B, finding 1", Bound::AtLeast(1.0))
        .paper(Paper::words("fork outperforms NS, COU, ZZ and PP in latency and throughput"));

const fn constant(metric: &'static str) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(1.2))
        .paper(Paper::words("not affected by the data size"))
}

/// Claims that no cost of a scheme with a constant tick grows with the size.
fn flat(points: &[Point], what: &str, result: &mut ExperimentResult) {
    for scheme in flat_schemes() {
        let boundary = of(points, scheme).map(Point::boundary_us).fold(f64::NAN, f64::max);
        let at = format!("{what}, action log on");
        result.claims.push(BOUNDARY.claim_of((scheme, ""), &at).measured(boundary));
        let ratio = growth(points, scheme, Point::boundary_us);
        result.claims.push(BOUNDARY_GROWS.claim_of((scheme, ""), &at).measured(ratio));
        let ratio = growth(points, scheme, |point| point.middle(Ticks::max_ms));
        result.claims.push(TICK_GROWS.claim_of((scheme, ""), what).measured(ratio));
        let beside =
            |point: &Point| point.middle(|ticks| ticks.max_captured_ms() / ticks.raw_max_ms());
        let worst = of(points, scheme).map(beside).fold(f64::NAN, f64::max);
        let claim = OF_CAPTURE.claim_of((scheme, "baseline's worst tick"), what);
        result.claims.push(claim.measured(worst));
    }
}

/// Claims that the other schemes have peaks of latency.
fn spikes(points: &[Point], result: &mut ExperimentResult) {
    for scheme in flat_schemes() {
        let flat_at_end =
            of(points, scheme).last().map(|p| p.middle(|ticks| ticks.max_ms() / ticks.mean_ms()));
        let claim = NO_SPIKES.claim_of((scheme, ""), LARGEST);
        result.claims.push(claim.measured(flat_at_end.unwrap_or(f64::NAN)));
    }
    let worst = |scheme: &str| of(points, scheme).last().map(|p| p.middle(Ticks::max_ms));
    for scheme in with_peaks() {
        let Some(spike) = worst(scheme) else { continue };
        for flat in flat_schemes() {
            let ratio = worst(flat).map_or(f64::NAN, |flat| spike / flat);
            result.claims.push(SPIKES.claim_of((scheme, flat), LARGEST).measured(ratio));
        }
        let ratio = growth(points, scheme, |point| point.middle(Ticks::max_ms));
        result.claims.push(GROWS_STEADILY.claim_of((scheme, ""), "updates only").measured(ratio));
    }
}

/// The paper's first finding: fork outperforms the schemes that are older than the paper's own.
fn fork_outperforms(points: &[Point], result: &mut ExperimentResult) {
    let mean = |scheme: &str| of(points, scheme).last().map(|p| p.middle(Ticks::mean_ms));
    for scheme in schemes().into_iter().filter(|name| is_from_2011(name)) {
        let ratio = mean(scheme).zip(mean(FORK)).map(|(other, fork)| other / fork);
        let claim = OUTPERFORMED.claim_of((scheme, FORK), LARGEST);
        result.claims.push(claim.measured(ratio.unwrap_or(f64::NAN)));
    }
}

fn rates(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut all = Vec::new();
    for &accesses in &plan.accesses {
        let what = (plan.pages_of_rates, accesses, 0.0);
        all.extend(points(context, plan, what, result)?);
    }
    result.tables.push(table("By updates in a tick".into(), &all, plan));
    let caption = "Median, least and greatest of the periods. The paper's ring: fork is ahead of all \
                   schemes of SIGMOD 2011.";
    let mut drawing = Drawing::new(result, "Mean tick by updates in a tick", ", by rate")
        .axes(caption, ("updates", "in a tick"), ("mean tick", "ms"))
        .log();
    curves(&mut drawing, &all, |p| p.drawn_periods(p.accesses as f64, Ticks::mean_ms));
    for &accesses in &plan.accesses {
        let older = all.iter().filter(|point| is_from_2011(&point.outcome.scheme));
        let best = older
            .filter(|point| point.accesses == accesses)
            .map(|point| point.middle(Ticks::mean_ms))
            .fold(f64::INFINITY, f64::min);
        drawing.paper(FORK, [accesses as f64, best], "fork: below ns, cou, zigzag and ping-pong");
    }
    drawing.finish();
    Ok(())
}

fn reads(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let ends = [plan.pages.first(), plan.pages.last()];
    let mut all = Vec::new();
    for &pages in ends.into_iter().flatten() {
        let what = (pages, plan.most_accesses(), 0.5);
        all.extend(points(context, plan, what, result)?);
    }
    result.tables.push(table("Half of the accesses read".into(), &all, plan));
    flat(&all, "half reads", result);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;
    use crate::subjects;

    #[test]
    fn the_quick_mode_goes_through_all_parts() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let plan = SnapFig3::quick();
        let open = &subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        let result = run_plan::<SnapFig3>(&bench, &plan)?;
        assert_eq!((result.figures.len(), result.tables.len()), (4, 3));
        assert_eq!(result.tables[0].rows.len(), schemes().len() * plan.pages.len());
        assert_eq!(result.tables[2].rows.len(), schemes().len() * 2);
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()), "{:#?}", result.claims);
        assert!(sys::list_dir(&context.work).is_err(), "nothing is left behind");
        Ok(())
    }

    #[test]
    fn growth_is_the_last_beside_the_first() {
        let point = |pages| Point {
            pages,
            accesses: 1,
            updates: 1.0,
            dirty_share: 0.0,
            outcome: Outcome {
                scheme: "hg".into(),
                ticks: Vec::new(),
                image_s: Vec::new(),
                writer_cpu_s: 0.0,
                state_bytes: 0,
                held_bytes: 0,
                huge_page_bytes: 0,
                further: Vec::new(),
                recovery: None,
            },
        };
        let points = [point(4), point(20), point(10)];
        assert_eq!(growth(&points, "hg", |point| point.pages as f64), 2.5);
        assert!(growth(&points[..1], "hg", |_| 1.0).is_nan());
        assert!(growth(&points, "pb", |_| 1.0).is_nan());
    }
}
