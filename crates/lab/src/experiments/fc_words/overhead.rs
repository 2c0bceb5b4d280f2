//! Figures 3 to 7 and 14, Table 2: overhead per checkpoint, in memory.

use std::ops::RangeInclusive;

use stillpoint_mem::PageSize;

use super::{Plan, RATE, costs, costs_of, megabytes};
use crate::context::Context;
use crate::drivers::sweep::{Cost, Costs, Sweep};
use crate::error::LabResult;
use crate::measure::stats::{cost_ratio, ends, median};
use crate::report::draw::Drawing;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::arrays::{flat_schemes, further_layouts, is_from_2011, schemes_with_copies};
use crate::workloads::zipf::OBJECT_WORDS;

const UPDATES: (&str, &str) = ("updates", "per second");
const OVERHEAD: (&str, &str) = ("overhead per checkpoint", "ms");
/// Updates per second at which ns becomes cheaper than ipp. In §5.3, ns has 3 times ipp's overhead
/// at 320,000 updates/s, and ipp's overhead is linear: 960,000. The text on Figure 7 says that ns
/// dominates at 1,280,000.
const PAPER_CROSSOVER: &str = "about 960,000 updates/s, below 1,280,000";
const FIGURE_5: &str = "SIGMOD 2011, §5.3, Figure 5";
const FIGURE_3: &str = "SIGMOD 2011, §5.2, Figure 3";
const FIGURE_4: &str = "SIGMOD 2011, §5.2, Figure 4";
const TABLE_2: &str = "SIGMOD 2011, §5.2, Table 2";
/// The mutator's time ÷ the raw mutator's (§5.2.2).
const TABLE_2_TIMES: [ClaimRow; 2] =
    [of_raw("ipp", "43 % on top of raw", 1.43), of_raw("npp", "258 % on top of raw", 3.58)];

const fn of_raw(subject: &'static str, words: &'static str, ratio: f64) -> ClaimRow {
    ClaimRow::new("the mutator's time", TABLE_2, Bound::AtMost(ratio))
        .between(subject, "raw")
        .paper(Paper::ratio(words, ratio))
}
/// Updates per second above which ns is ahead of all but ipp (§5.3).
const NS_IS_AHEAD: u64 = 160_000;

const fn overhead(
    subject: &'static str,
    baseline: &'static str,
    source: &'static str,
    paper: &'static str,
    goal: f64,
) -> ClaimRow {
    ClaimRow::new("overhead", source, Bound::AtLeast(1.0))
        .between(subject, baseline)
        .paper(Paper::ratio(paper, goal))
        .goal(Bound::AtLeast(goal))
}

/// The ratios that §5.3 names.
const FIGURE_5_RATIOS: [ClaimRow; 3] = [
    overhead("bazz", "ipp", FIGURE_5, "8.4 ×", 8.4),
    overhead("bacou", "ipp", FIGURE_5, "9.6 ×", 9.6),
    overhead("ns", "ipp", FIGURE_5, "3 ×", 3.0),
];

/// Statements of §5.3 on other rates of Figure 5.
const FIGURE_5_AT: [(u64, ClaimRow); 4] = [
    (80_000, overhead("bazz", "ipp", FIGURE_5, "9 ×", 9.0)),
    (80_000, overhead("bacou", "ipp", FIGURE_5, "over 10 ×", 10.0)),
    (80_000, overhead("ns", "ipp", FIGURE_5, "over 10 ×", 10.0)),
    (10_000, overhead("ns", "bacou", FIGURE_5, "4 ×", 4.0)),
];

/// The ratios that §5.2 names.
const LAYOUT_RATIOS: [ClaimRow; 3] = [
    overhead("nzz", "bazz", FIGURE_3, "about 2 ×", 2.0),
    overhead("izz", "bazz", FIGURE_3, "about 3 ×", 3.0),
    overhead("npp", "ipp", FIGURE_4, "about 6 ×", 6.0),
];

const FIGURE_6: &str = "SIGMOD 2011, §5.3, Figure 6";
const FIGURE_14: &str = "SIGMOD 2011, §5.6, Figure 14";
const FIGURE_7: &str = "SIGMOD 2011, §5.3, Figure 7";

/// The paper's statements on the largest size (§5.3). At the low share ipp is ten times cheaper
/// than ns. At the high share ns is the cheapest. At both shares ipp is cheaper than bacou and
/// bazz.
const SIZE_RATIOS: [ClaimRow; 8] = [
    overhead("ns", "ipp", FIGURE_6, "10 ×", 10.0),
    dearer("bacou", "ipp", FIGURE_6),
    dearer("bazz", "ipp", FIGURE_6),
    dearer("bacou", "ns", FIGURE_7),
    dearer("bazz", "ns", FIGURE_7),
    dearer("ipp", "ns", FIGURE_7),
    dearer("bacou", "ipp", FIGURE_7),
    dearer("bazz", "ipp", FIGURE_7),
];

const fn dearer(subject: &'static str, baseline: &'static str, source: &'static str) -> ClaimRow {
    overhead(subject, baseline, source, "", 1.0).paper(Paper::words("dominated, whatever the size"))
}

const IPP_IS_BEST: ClaimRow = ClaimRow::new("overhead", FIGURE_5, Bound::AtMost(1.0))
    .between("ipp", "best of ns, bacou, bazz")
    .paper(Paper::words("below 1 at every rate"));
const NS_IS_NEXT: ClaimRow = ClaimRow::new("overhead", FIGURE_5, Bound::AtMost(1.0))
    .between("ns", "best of bacou, bazz")
    .paper(Paper::words("dominates all but ipp"));
/// A scheme of ours costs no more than one of the paper's.
const NO_DEARER: ClaimRow = ClaimRow::new("overhead", "Stillpoint", Bound::AtMost(1.0));
const NS_IS_CONSTANT: ClaimRow =
    ClaimRow::new("overhead: ns, highest ÷ lowest rate", FIGURE_5, Bound::AtMost(1.2))
        .paper(Paper::words("essentially constant"));
const IPP_IS_LINEAR: ClaimRow = ClaimRow::new(
    "overhead per update: ipp, highest rate ÷ 320,000 updates/s",
    FIGURE_5,
    Bound::AtMost(1.3),
)
.paper(Paper::words("scales linearly"));
const CROSSOVER: ClaimRow =
    ClaimRow::new("rate above which ns is cheaper than ipp", FIGURE_5, Bound::AtLeast(RATE as f64))
        .paper(Paper::words(PAPER_CROSSOVER))
        .unit("updates/s");
const PREDICTED_CROSSOVER: ClaimRow = ClaimRow::new(
    "crossover of ipp and ns: deviation from the rate that a copy and an update predict",
    "Stillpoint",
    Bound::AtMost(0.3),
)
.unit("of it");
const LARGE_PAGES: [ClaimRow; 2] = [by_pages("ipp", "0.2 ×", 0.2), by_pages("bazz", "0.6 ×", 0.6)];
const LITTLE_IMPACT: ClaimRow =
    ClaimRow::new("change of the overhead by pages of 2 MiB", FIGURE_14, Bound::AtMost(0.2))
        .paper(Paper::words("little impact"));
const BOUNDARY: ClaimRow = ClaimRow::new("tick boundary", FIGURE_14, Bound::AtLeast(100.0))
    .between("ns", "ipp")
    .paper(Paper::ratio("up to three orders of magnitude", 1_000.0))
    .goal(Bound::AtLeast(1_000.0));

const fn by_pages(subject: &'static str, words: &'static str, cut: f64) -> ClaimRow {
    ClaimRow::new("overhead, pages of 2 MiB ÷ pages of 4 KiB", FIGURE_14, Bound::AtMost(1.0))
        .between(subject, "")
        .paper(Paper::ratio(words, cut))
        .goal(Bound::AtMost(cut))
}

/// Runs the parts in memory that the context asks for.
pub(super) fn run(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    if context.wants("overhead") {
        let schemes = [schemes_with_copies(), further_layouts()].concat();
        let sweep = plan.sweep(plan.rates.clone());
        let all = costs(context, plan, plan.objects, &schemes, &sweep)?;
        result.in_part("overhead", |result| {
            by_rate(&all, plan, plan.objects, result);
            variants(&all, result);
            Ok(())
        })?;
    }
    if context.wants("large") {
        let sweep = Sweep { periods: plan.periods.min(3), ..plan.sweep(plan.few_rates.clone()) };
        let all = costs(context, plan, plan.large_objects, &schemes_with_copies(), &sweep)?;
        result.in_part("large", |result| {
            by_rate(&all, plan, plan.large_objects, result);
            Ok(())
        })?;
    }
    if context.wants("sizes") {
        result.in_part("sizes", |result| sizes(context, plan, result))?;
    }
    if context.wants("reads") {
        let sweep = Sweep { periods: plan.periods.min(3), ..plan.sweep(plan.few_rates.clone()) };
        let all = costs_of(context, plan, (plan.objects, 0.5), &schemes_with_copies(), &sweep)?;
        result.in_part("reads", |result| {
            half_reads(&all, result);
            Ok(())
        })?;
    }
    if context.wants("pages") {
        result.in_part("pages", |result| pages(context, plan, result))?;
    }
    Ok(())
}

fn of<'a>(all: &'a [Costs], scheme: &str) -> Option<&'a Costs> {
    all.iter().find(|costs| costs.scheme == scheme)
}

fn points(costs: &Costs) -> Vec<[f64; 2]> {
    costs.points.iter().map(|cost| [cost.rate as f64, cost.overhead()]).collect()
}

/// The least and the greatest overhead of the periods, for each point.
fn spreads(costs: &Costs) -> Vec<[f64; 2]> {
    costs.points.iter().map(|cost| ends(&cost.overhead_ms)).collect()
}

fn draw(
    all: &[Costs],
    schemes: &[&str],
    (title, suffix): (&str, &str),
    paper: &[(u64, &ClaimRow)],
    result: &mut ExperimentResult,
) {
    let caption = "The mutator's CPU time beyond the baseline's, from one point of consistency to \
                   the next; median, least and greatest of the periods. The paper names ratios: its rings \
                   stand at our overhead of the other scheme, multiplied by the paper's ratio.";
    let mut drawing = Drawing::new(result, title, suffix).axes(caption, UPDATES, OVERHEAD).log();
    for costs in schemes.iter().filter_map(|scheme| of(all, scheme)) {
        drawing.curve_with_spreads(&costs.scheme, points(costs), spreads(costs));
    }
    for (rate, compared) in paper {
        let ratio = compared.paper.and_then(Paper::ratio_of);
        let base = of(all, compared.baseline).and_then(|costs| costs.at(*rate));
        if let Some((ratio, base)) = ratio.zip(base) {
            let at = [*rate as f64, base.overhead() * ratio];
            let text = format!("{}: {ratio} × {}", compared.subject, compared.baseline);
            drawing.paper(compared.subject, at, &text);
        }
    }
    drawing.finish();
}

/// Figure 5, and a table of it.
fn by_rate(all: &[Costs], plan: &Plan, objects: usize, result: &mut ExperimentResult) {
    let size = megabytes(objects);
    let paper: Vec<(u64, &ClaimRow)> = FIGURE_5_RATIOS
        .iter()
        .map(|compared| (RATE, compared))
        .chain(FIGURE_5_AT.iter().map(|(rate, compared)| (*rate, compared)))
        .collect();
    let names = (&*format!("Overhead by rate, {size}"), &*format!(", {size}"));
    draw(all, &schemes_with_copies(), names, &paper, result);
    let mut table = Table {
        title: format!("Overhead per checkpoint in ms, {size}"),
        columns: vec!["scheme".into(), "memory ÷ state".into()],
        rows: Vec::new(),
        ..Table::default()
    };
    let rates = all.first().map(|costs| &costs.points[..]).unwrap_or_default();
    table.columns.extend(rates.iter().map(|cost| format!("{}/s", grouped(cost.rate))));
    for costs in all {
        let copies = costs.held_bytes as f64 / costs.state_bytes as f64;
        let mut row = vec![costs.scheme.clone(), format!("{copies:.2}")];
        row.extend(costs.points.iter().map(|cost| format!("{:.2}", cost.overhead())));
        table.rows.push(row);
    }
    result.tables.push(table);
    order(all, &size, result);
    crossover(all, plan, &size, result);
}

/// Overhead of one scheme ÷ that of another at a rate, period by period.
fn ratios(all: &[Costs], above: &str, below: &str, rate: u64) -> Vec<f64> {
    let (Some(above), Some(below)) =
        (of(all, above).and_then(|c| c.at(rate)), of(all, below).and_then(|c| c.at(rate)))
    else {
        return Vec::new();
    };
    above.overhead_ms.iter().zip(&below.overhead_ms).map(|(a, b)| cost_ratio(*a, *b)).collect()
}

/// IPP is the best of the paper's schemes up to 320,000 updates per second.
fn order(all: &[Costs], size: &str, result: &mut ExperimentResult) {
    for compared in &FIGURE_5_RATIOS {
        let ratios = ratios(all, compared.subject, compared.baseline, RATE);
        let claim = compared.claim(&format!("{size}, 320,000 updates/s"));
        result.claims.push(claim.measured_periods(&ratios));
    }
    let claim = IPP_IS_BEST.claim(&format!("worst rate up to 320,000/s, {size}"));
    let paper = Worst::of(all, "ipp", &["ns", "bacou", "bazz"], 0..=RATE);
    result.claims.push(paper.judge(claim));
    paper.note(size, result);
    let claim = NS_IS_NEXT.claim(&format!("worst rate above 160,000/s, {size}"));
    let paper = Worst::of(all, "ns", &["bacou", "bazz"], NS_IS_AHEAD + 1..=u64::MAX);
    result.claims.push(paper.judge(claim));
    paper.note(size, result);
    over_all_rates(all, size, result);
    let two_copies = flat_schemes().into_iter().filter(|name| !is_from_2011(name));
    for scheme in two_copies {
        let ours = Worst::of(all, scheme, &["ipp"], 0..=u64::MAX);
        let subject = format!("{scheme} (2 copies)");
        let both = (&*subject, "ipp (3 copies)");
        let claim = NO_DEARER.claim_of(both, &format!("worst rate, {size}"));
        result.claims.push(ours.judge(claim));
        ours.note(size, result);
    }
}

/// The claim of §5.3 on the curves over all rates: ns is constant, ipp linear.
fn over_all_rates(all: &[Costs], size: &str, result: &mut ExperimentResult) {
    if let Some(([first, ..], Some(last))) =
        of(all, "ns").map(|ns| (&ns.points[..], ns.points.last()))
    {
        let ratio = cost_ratio(last.overhead(), first.overhead());
        result.claims.push(NS_IS_CONSTANT.claim(size).measured(ratio));
    }
    let ends = of(all, "ipp").and_then(|ipp| ipp.at(RATE).zip(ipp.points.last()));
    if let Some((at_rate, last)) = ends {
        let per_update = |cost: &Cost| cost.overhead() / cost.updates as f64;
        let ratio = cost_ratio(per_update(last), per_update(at_rate));
        result.claims.push(IPP_IS_LINEAR.claim(size).measured(ratio));
    }
}

/// The worst ratio of a scheme's overhead to the best of some others', over many rates.
struct Worst<'a> {
    scheme: &'a str,
    ratio: Option<f64>,
    /// Rates at which an overhead is not above zero: there the noise is larger than the cost.
    left_out: Vec<u64>,
}

impl<'a> Worst<'a> {
    fn of(
        all: &[Costs],
        scheme: &'a str,
        others: &[&str],
        rates: RangeInclusive<u64>,
    ) -> Worst<'a> {
        let (mut ratio, mut left_out) = (None, Vec::new());
        let points = of(all, scheme).map_or(&[][..], |costs| &costs.points);
        for cost in points.iter().filter(|cost| rates.contains(&cost.rate)) {
            let theirs = |other: &&str| Some(of(all, other)?.at(cost.rate)?.overhead());
            let theirs: Vec<f64> = others.iter().filter_map(theirs).collect();
            let best = theirs.iter().copied().fold(f64::INFINITY, f64::min);
            match cost_ratio(cost.overhead(), best) {
                found if found.is_finite() => ratio = Some(found.max(ratio.unwrap_or(found))),
                _ => left_out.push(cost.rate),
            }
        }
        Worst { scheme, ratio, left_out }
    }

    fn judge(&self, claim: Claim) -> Claim {
        claim.measured(self.ratio.unwrap_or(f64::NAN))
    }

    fn note(&self, size: &str, result: &mut ExperimentResult) {
        if self.left_out.is_empty() {
            return;
        }
        let rates: Vec<String> = self.left_out.iter().map(|&rate| grouped(rate)).collect();
        result.note(format!(
            "{size}: no ratio was taken for {} at {} updates/s, since an overhead there is not \
             above zero: the noise is larger than the cost.",
            self.scheme,
            rates.join(", "),
        ));
    }
}

/// Where IPP's curve cuts NS's, and where the costs of a copy and of an update say it should.
fn crossover(all: &[Costs], plan: &Plan, size: &str, result: &mut ExperimentResult) {
    let (Some(ns), Some(ipp)) = (of(all, "ns"), of(all, "ipp")) else {
        return;
    };
    let copy_ms = median(&ns.points.iter().map(|cost| cost.boundary()).collect::<Vec<_>>());
    let Some(at_paper_rate) = ipp.at(RATE) else {
        return;
    };
    let update_ns = at_paper_rate.update_ns();
    let predicted = copy_ms * 1e6 / update_ns / plan.period_s();
    let measured = crossing(ipp, ns);
    result.note(format!(
        "{size}: a copy takes {copy_ms:.2} ms and ipp's second write {update_ns:.2} ns, which puts \
         the crossover of ipp and ns at {} updates/s; the curves cross at {}.",
        grouped(predicted.max(0.0) as u64),
        measured.map_or("no measured rate".into(), |rate| grouped(rate as u64)),
    ));
    let measured = measured.unwrap_or(f64::NAN);
    result.claims.push(CROSSOVER.claim(size).measured(measured));
    let deviation = (measured / predicted - 1.0).abs();
    result.claims.push(PREDICTED_CROSSOVER.claim(size).measured(deviation));
}

/// The rate at which a curve that was below another comes above it, between two points by ratio.
fn crossing(rising: &Costs, flat: &Costs) -> Option<f64> {
    let gap = |at: usize| {
        let (rising, flat) = (rising.points.get(at)?, flat.points.get(at)?);
        let ratio = cost_ratio(rising.overhead(), flat.overhead());
        (!ratio.is_nan()).then(|| (rising.rate as f64, ratio.ln()))
    };
    (1..rising.points.len()).find_map(|at| {
        let ((from, below), (to, above)) = gap(at - 1).zip(gap(at))?;
        let is_crossed = below < 0.0 && above >= 0.0;
        is_crossed.then(|| from * (to / from).powf(-below / (above - below)))
    })
}

/// Figures 3 and 4, and the subject of Table 2: the costs of updates and of negation, apart.
fn variants(all: &[Costs], result: &mut ExperimentResult) {
    let paper: Vec<(u64, &ClaimRow)> = LAYOUT_RATIOS.iter().map(|it| (RATE, it)).collect();
    let names = ("Layouts of zigzag", ", Figure 3");
    draw(all, &["nzz", "izz", "pzz", "bazz"], names, &paper[..2], result);
    // "Over all update rates" (§5.2).
    let rates = all.first().map_or(&[][..], |costs| &costs.points[..]);
    let paper: Vec<(u64, &ClaimRow)> =
        rates.iter().map(|cost| (cost.rate, &LAYOUT_RATIOS[2])).collect();
    draw(all, &["npp", "ipp"], ("Layouts of ping-pong", ", Figure 4"), &paper, result);
    for compared in &LAYOUT_RATIOS {
        let ratios = ratios(all, compared.subject, compared.baseline, RATE);
        result.claims.push(compared.claim("320,000 updates/s").measured_periods(&ratios));
    }
    for row in TABLE_2_TIMES {
        let costs = of(all, row.subject).and_then(|costs| costs.at(RATE));
        let times = costs.map(Cost::times_of_raw).unwrap_or_default();
        result.claims.push(row.claim("320,000 updates/s").measured_periods(&times));
    }
    let columns = ["scheme", "an update more, ns", "the tick of a capture, ms", "raw update, ns"];
    let mut table = Table {
        title: "What Table 2 is about: updates, and the bulk work of a point of consistency, at \
                320,000 updates/s"
            .into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for costs in all {
        let Some(cost) = costs.at(RATE) else { continue };
        table.rows.push(vec![
            costs.scheme.clone(),
            format!("{:.2}", cost.update_ns()),
            format!("{:.4}", cost.boundary()),
            format!("{:.2}", cost.raw_update_ns()),
        ]);
    }
    result.tables.push(table);
    result.note(
        "Table 2 has counters of cache and TLB misses. This machine offers none: the part `accesses` has \
         misses of a simulated cache, and the table here has the two phases in time.",
    );
}

/// What the paper leaves out: "we also do not model reads, which discounts the per-read overhead" (§5.3).
fn half_reads(all: &[Costs], result: &mut ExperimentResult) {
    let names = ("Overhead by rate, half of the accesses read", ", half reads");
    draw(all, &schemes_with_copies(), names, &[], result);
    for scheme in flat_schemes() {
        let ratios = ratios(all, scheme, "bazz", RATE);
        let claim = NO_DEARER.claim_of((scheme, "bazz"), "half reads, 320,000 accesses/s");
        result.claims.push(claim.measured_periods(&ratios));
    }
}

/// Figures 6 and 7: 0.08 % and 2.56 % of the words per second.
fn sizes(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let shares = [(8, "0.08 %", "Figure 6"), (256, "2.56 %", "Figure 7")];
    let schemes = schemes_with_copies();
    let mut by_share: Vec<Vec<Vec<Sized>>> = vec![vec![Vec::new(); schemes.len()]; 2];
    for &objects in &plan.sizes {
        let words = (objects * OBJECT_WORDS) as u64;
        let rates = shares.iter().map(|(per_10_000, ..)| words * per_10_000 / 10_000).collect();
        let sweep = Sweep { periods: plan.periods.min(3), ..plan.sweep(rates) };
        let all = costs(context, plan, objects, &schemes, &sweep)?;
        for (scheme, costs) in all.iter().enumerate() {
            for (share, cost) in costs.points.iter().enumerate() {
                let megabytes = costs.state_bytes as f64 / 1e6;
                let at = [megabytes, cost.overhead()];
                by_share[share][scheme].push((at, ends(&cost.overhead_ms)));
            }
        }
    }
    for ((_, share, figure), curves) in shares.iter().zip(by_share) {
        for compared in SIZE_RATIOS.iter().filter(|it| it.source.ends_with(figure)) {
            let last = |name: &str| {
                let at = schemes.iter().position(|scheme| *scheme == name)?;
                curves[at].last().map(|(at, _)| *at)
            };
            let Some(([size, above], [_, below])) =
                last(compared.subject).zip(last(compared.baseline))
            else {
                continue;
            };
            let claim = compared.claim(&format!("{size:.0} MB, {share} of the words per second"));
            result.claims.push(claim.measured(cost_ratio(above, below)));
        }
        let title = format!("Overhead by size, {share} of the words updated per second");
        let caption = "Overhead per checkpoint; the rate grows with the size.";
        let mut drawing = Drawing::new(result, &title, &format!(", {figure}"))
            .axes(caption, ("state", "MB"), OVERHEAD)
            .log();
        for (scheme, sized) in schemes.iter().zip(&curves) {
            let (points, spreads) = sized.iter().copied().unzip();
            drawing.curve_with_spreads(scheme, points, spreads);
        }
        rings_by_size(&mut drawing, &schemes, &curves, figure);
        drawing.finish();
    }
    Ok(())
}

/// A point of a curve by size, with the least and the greatest value of the periods.
type Sized = ([f64; 2], [f64; 2]);

/// The statements of §5.3 on all sizes. At the low rate ns stands at ten times ipp, at the high rate
/// below all others.
fn rings_by_size(drawing: &mut Drawing<'_>, schemes: &[&str], curves: &[Vec<Sized>], figure: &str) {
    let curve =
        |name: &str| schemes.iter().position(|scheme| *scheme == name).map(|at| &curves[at]);
    if figure == "Figure 6" {
        for ([size, overhead], _) in curve("ipp").into_iter().flatten() {
            drawing.paper("ns", [*size, 10.0 * overhead], "ns: 10 × ipp");
        }
        return;
    }
    let others: Vec<&Vec<Sized>> = ["bacou", "bazz", "ipp"].into_iter().filter_map(curve).collect();
    let sizes = others.first().map_or(0, |curve| curve.len());
    for at in 0..sizes {
        let size = others[0][at].0[0];
        let least = others.iter().map(|curve| curve[at].0[1]).fold(f64::INFINITY, f64::min);
        drawing.paper("ns", [size, least], "ns: below bacou, bazz and ipp");
    }
}

/// Figure 14: memory pages of 4 KiB and 2 MiB.
fn pages(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let of_size = |pages: PageSize| {
        let sweep = plan.sweep(plan.few_rates.clone());
        let sweep = Sweep { pages, periods: plan.periods.min(3), ..sweep };
        costs(context, plan, plan.objects, &schemes_with_copies(), &sweep)
    };
    let (small, huge) = (of_size(PageSize::Small)?, of_size(PageSize::Huge)?);
    let mut table = Table {
        title: "Overhead per checkpoint in ms with pages of 4 KiB → 2 MiB (Figure 14)".into(),
        columns: vec!["scheme".into()],
        rows: Vec::new(),
        ..Table::default()
    };
    table.columns.extend(plan.few_rates.iter().map(|rate| format!("{}/s", grouped(*rate))));
    for (small, huge) in small.iter().zip(&huge) {
        let pairs = small.points.iter().zip(&huge.points);
        let cell = |(s, h): (&Cost, &Cost)| format!("{:.2} → {:.2}", s.overhead(), h.overhead());
        let mut row = vec![small.scheme.clone()];
        row.extend(pairs.map(cell));
        table.rows.push(row);
    }
    result.tables.push(table);
    let caption = "Overhead with pages of 2 MiB ÷ overhead with pages of 4 KiB.";
    let mut drawing = Drawing::new(result, "What large pages save (Figure 14)", ", Figure 14")
        .axes(caption, UPDATES, ("overhead", "× that with pages of 4 KiB"))
        .log_x();
    for (small, huge) in small.iter().zip(&huge) {
        let pairs = small.points.iter().zip(&huge.points);
        let ratio =
            |(s, h): (&Cost, &Cost)| [s.rate as f64, cost_ratio(h.overhead(), s.overhead())];
        // The ends of a ratio: its least dividend by its greatest divisor, and the reverse.
        let spread = |(s, h): (&Cost, &Cost)| {
            let ([s_low, s_high], [h_low, h_high]) = (ends(&s.overhead_ms), ends(&h.overhead_ms));
            [cost_ratio(h_low, s_high), cost_ratio(h_high, s_low)]
        };
        let spreads = pairs.clone().map(spread).collect();
        drawing.curve_with_spreads(&small.scheme, pairs.map(ratio).collect(), spreads);
    }
    for rate in &plan.few_rates {
        drawing.paper("ipp", [*rate as f64, 0.2], "ipp: a cut of 80 %");
        drawing.paper("bazz", [*rate as f64, 0.5], "bazz: a cut of 40 to 60 %");
    }
    drawing.finish();
    let is_comparable = had_pages(&small, &huge);
    if !is_comparable {
        result.note(
            "The system did not give pages of 2 MiB to one side and pages of 4 KiB to the other: \
             the sizes of pages were not compared.",
        );
    }
    for row in LARGE_PAGES {
        let overhead = |all: &[Costs]| of(all, row.subject)?.at(RATE).map(|cost| cost.overhead());
        let ratio = overhead(&huge).zip(overhead(&small)).map(|(h, s)| cost_ratio(h, s));
        let ratio = ratio.filter(|_| is_comparable).unwrap_or(f64::NAN);
        result.claims.push(row.claim("320,000 updates/s").measured(ratio));
    }
    other_claims_on_pages((&small, &huge), is_comparable, result);
    Ok(())
}

/// §5.6 on the other schemes: large pages have little impact on ns and bacou. On large pages the peaks of
/// ns are up to three orders of magnitude above ipp's.
fn other_claims_on_pages(
    (small, huge): (&[Costs], &[Costs]),
    is_comparable: bool,
    result: &mut ExperimentResult,
) {
    for scheme in ["ns", "bacou"] {
        let overhead = |all: &[Costs]| of(all, scheme)?.at(RATE).map(|cost| cost.overhead());
        let ratio = overhead(huge).zip(overhead(small)).map(|(h, s)| cost_ratio(h, s));
        let deviation = ratio.filter(|_| is_comparable).map_or(f64::NAN, |it| (it - 1.0).abs());
        let claim = LITTLE_IMPACT.claim_of((scheme, ""), "320,000 updates/s");
        result.claims.push(claim.measured(deviation));
    }
    let boundary = |scheme: &str| of(huge, scheme)?.points.last().map(Cost::boundary);
    let ratio = boundary("ns").zip(boundary("ipp")).map(|(ns, ipp)| cost_ratio(ns, ipp));
    let claim = BOUNDARY.claim("pages of 2 MiB, highest rate");
    result.claims.push(claim.measured(ratio.unwrap_or(f64::NAN)));
}

/// Whether the memory lay on pages of the compared sizes.
fn had_pages(small: &[Costs], huge: &[Costs]) -> bool {
    let share = |it: &Costs| it.huge_page_bytes as f64 / it.held_bytes as f64;
    small.iter().all(|it| share(it) < 0.2) && huge.iter().all(|it| share(it) > 0.8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::sweep::Cost;

    fn costs(scheme: &str, overheads: [f64; 3]) -> Costs {
        let points = [10_000, 20_000, 40_000].into_iter().zip(overheads);
        let cost = |(rate, overhead): (u64, f64)| Cost {
            rate,
            updates: rate * 4,
            overhead_ms: vec![overhead],
            boundary_ms: vec![0.0],
            raw_ms: vec![1.0],
        };
        let points = points.map(cost).collect();
        Costs { scheme: scheme.into(), points, state_bytes: 1, held_bytes: 3, huge_page_bytes: 0 }
    }

    #[test]
    fn curves_cross_where_their_ratio_is_one() {
        let (ipp, ns) = (costs("ipp", [1.0, 2.0, 4.0]), costs("ns", [2.8, 2.8, 2.8]));
        let at = crossing(&ipp, &ns).expect("they cross");
        assert!((at / 28_000.0 - 1.0).abs() < 1e-9, "{at}");
        assert_eq!(crossing(&costs("ipp", [1.0, 2.0, 2.5]), &ns), None);
        assert_eq!(crossing(&costs("ipp", [3.0, 3.0, 4.0]), &ns), None, "it never was below");
        let noisy = costs("ipp", [-1.0, 2.0, 4.0]);
        let at = crossing(&noisy, &ns).expect("they cross between the other rates");
        assert!((at / 28_000.0 - 1.0).abs() < 1e-9, "{at}");
    }

    #[test]
    fn rates_at_which_a_cost_drowns_in_noise_are_left_out_and_said_so() {
        let all = [costs("ipp", [-0.1, 2.0, 4.0]), costs("pb", [5.0, 1.0, -0.5])];
        let worst = Worst::of(&all, "pb", &["ipp"], 0..=u64::MAX);
        assert_eq!(worst.ratio, Some(0.5));
        assert_eq!(worst.left_out, [10_000, 40_000]);
        let claim = Claim::new("c", "s", Bound::AtMost(1.0));
        assert_eq!(Worst::of(&all, "pb", &["ipp"], 0..=10_000).judge(claim).met, None);
    }

    #[test]
    fn page_sizes_are_compared_only_where_they_were_had() {
        let on = |huge_page_bytes: u64| Costs { huge_page_bytes, ..costs("ipp", [1.0; 3]) };
        assert!(had_pages(&[on(0)], &[on(3)]));
        assert!(!had_pages(&[on(0)], &[on(0)]), "the system gave no huge pages");
        assert!(!had_pages(&[on(3)], &[on(3)]), "it gave nothing else");
    }

    #[test]
    fn overheads_are_drawn_as_they_were_measured() {
        let values: Vec<f64> =
            points(&costs("pb", [-0.2, 0.0, 0.0005])).iter().map(|point| point[1]).collect();
        assert_eq!(values, [-0.2, 0.0, 0.0005]);
    }
}
