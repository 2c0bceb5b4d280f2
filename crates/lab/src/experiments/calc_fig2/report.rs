//! Claims, figures and tables of `calc-fig2`.

use super::{Findings, Plan, Rounds};
use crate::drivers::transactions::Outcome;
use crate::experiments::calc_figures::{Compared, JOINED, bars, joined, rate};
use crate::experiments::calc_measures::{
    before_ratio, capture_loss_percent, capture_seconds, checkpoint_cpu_s, dirty_share,
    lost_transactions, ready_seconds, stopped_ms, worst_window_ratio,
};
use crate::measure::stats::{median, spread_of};
use crate::report::figure::axis::{grouped, short};
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Series, Span, Table,
};
use crate::subjects::records::{CALC_PACED, CALC_UNPACED, NAIVE_PACED, NAIVE_UNPACED, Row};
use crate::workloads::calc::KEYS_PER_TRANSACTION;

pub(super) const SOURCE: &str = "CALC paper, §5.1.1, Figure 2";

/// A measure computed from each run of a row and the baseline's run in the same round.
fn over_baseline(rounds: &Rounds, name: &str, measure: fn(&Outcome, &Outcome) -> f64) -> Vec<f64> {
    let found = rounds.iter().find(|it| it.row.name == name);
    found.map(|it| it.over(measure)).unwrap_or_default()
}

/// Claims, figures and tables of one part of the experiment.
pub(super) fn add(part: &str, plan: &Plan, found: &Findings, result: &mut ExperimentResult) {
    let lost = "Transactions lost per checkpoint";
    match part {
        "capture" => {
            in_capture(found, result);
            before_the_checkpoint(found, result);
            relative_to_others(found, result);
            lost_bars(lost, plan, &found.saturated, result);
            let half = format!("At {:.0} % of the baseline's throughput", plan.load_share * 100.0);
            result.tables.push(table("Saturated", plan, &found.saturated));
            result.tables.push(table(&half, plan, &found.half));
        }
        "long" => {
            long_transactions(found, result);
            lost_bars(&format!("{lost}, with long transactions"), plan, &found.with_long, result);
            result.tables.push(table("With long transactions", plan, &found.with_long));
        }
        _ => timeline(found, result),
    }
}

const LOST_IN_CAPTURE: ClaimRow = ClaimRow::new(
    "calc, paced: transactions lost inside the capture window",
    SOURCE,
    Bound::AtMost(12.0),
)
.paper(Paper::words("10 %"))
.goal(Bound::AtMost(3.0))
.unit("%");
const WINDOW: &str = "baseline's worst";
const WORST_SATURATED: ClaimRow = worst_window(0.55, 0.70);
const WORST_AT_HALF: ClaimRow = worst_window(0.90, 0.97);
const LOSS_ADDED: ClaimRow = by_long("loss added by 2-second transactions");
const WINDOW_LOWERED: ClaimRow = by_long("worst window lowered by 2-second transactions");
const LOST: ClaimRow = ClaimRow::new("transactions lost", SOURCE, Bound::AtMost(0.5))
    .paper(Paper::ratio("2 to 10 times fewer", 0.5))
    .goal(Bound::AtMost(0.25));
const LOST_BESIDE_ZIGZAG: ClaimRow =
    ClaimRow { bound: Bound::AtMost(0.6), ..LOST }.paper(Paper::ratio("almost 40 % fewer", 0.6));
const LOST_UNPACED: ClaimRow = ClaimRow { bound: Bound::AtMost(0.8), ..LOST };
/// Schemes that the paper does not have, and that stop commits for a moment only: nothing is claimed of
/// the loss beside theirs. Nor is anything of checkpoints of changes, which write less.
const NOT_BESIDE: [&str; 4] = ["none", "calc", "hourglass", "piggyback"];

/// Whether the loss of calc is claimed to be less than that of this row.
pub(super) fn is_beside(row: &Row) -> bool {
    row.is_paced() && !NOT_BESIDE.contains(&row.scheme) && !row.scheme.ends_with(":partial")
}

/// The claim on what calc loses at the pace, ÷ what this scheme loses.
pub(super) fn lost_beside(scheme: &str) -> ClaimRow {
    if scheme == "zigzag" { LOST_BESIDE_ZIGZAG } else { LOST }
}

/// Throughput before the checkpoint, with the paper's decrease.
const BEFORE: [(&str, ClaimRow); 2] = [
    ("zigzag", before(0.96, Paper::ratio("4 % decrease", 0.96)).goal(Bound::AtLeast(0.98))),
    ("ping-pong", before(0.75, Paper::ratio("around 25 % worse", 0.75)).goal(Bound::AtLeast(0.9))),
];
const ORDER: ClaimRow = before(1.0, Paper::words("calc, then zigzag, then IPP"));

const fn before(bound: f64, paper: Paper) -> ClaimRow {
    ClaimRow::new("throughput before the checkpoint", SOURCE, Bound::AtLeast(bound)).paper(paper)
}

const fn worst_window(bound: f64, goal: f64) -> ClaimRow {
    ClaimRow::new("worst 100 ms window", "Stillpoint", Bound::AtLeast(bound))
        .goal(Bound::AtLeast(goal))
}

const fn by_long(metric: &'static str) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(5.0))
        .paper(Paper::words("similar for both versions"))
        .unit("points")
}

fn in_capture(found: &Findings, result: &mut ExperimentResult) {
    let loss = over_baseline(&found.saturated, CALC_PACED, capture_loss_percent);
    result.claims.push(LOST_IN_CAPTURE.claim("").measured_runs(&loss));
    for name in [CALC_PACED, CALC_UNPACED] {
        for (row, rounds, at) in [
            (WORST_SATURATED, &found.saturated, "saturated"),
            (WORST_AT_HALF, &found.half, "half load"),
        ] {
            let worst = over_baseline(rounds, name, worst_window_ratio);
            result.claims.push(row.claim_of((name, WINDOW), at).measured_runs(&worst));
        }
    }
}

fn long_transactions(found: &Findings, result: &mut ExperimentResult) {
    let apart = |name: &str, measure: fn(&Outcome, &Outcome) -> f64, to_points: f64| -> Vec<f64> {
        let without = over_baseline(&found.saturated, name, measure);
        let with = over_baseline(&found.with_long, name, measure);
        // Only a loss of points counts; a gain is no miss.
        let median_without = median(&without);
        with.iter().map(|w| (w - median_without) * to_points).collect()
    };
    for name in [CALC_PACED, CALC_UNPACED] {
        let loss = apart(name, capture_loss_percent, 1.0);
        result.claims.push(LOSS_ADDED.claim_of((name, ""), "").measured_runs(&loss));
        let lowered = apart(name, worst_window_ratio, -100.0);
        result.claims.push(WINDOW_LOWERED.claim_of((name, ""), "").measured_runs(&lowered));
    }
}

/// The throughput of each scheme while no checkpoint is under way, ÷ that of none.
fn before_the_checkpoint(found: &Findings, result: &mut ExperimentResult) {
    let rest = |scheme: &str| -> Vec<f64> {
        let rounds = found.saturated.iter().filter(|it| it.row.scheme == scheme);
        rounds.flat_map(|it| it.over(before_ratio)).collect()
    };
    for (scheme, claim) in BEFORE {
        let ratios = rest(scheme);
        if !ratios.is_empty() {
            result.claims.push(claim.claim_of((scheme, "none"), "").measured_runs(&ratios));
        }
    }
    for (first, second) in [("calc", "zigzag"), ("zigzag", "ping-pong")] {
        let (ahead, behind) = (rest(first), rest(second));
        if !ahead.is_empty() && !behind.is_empty() {
            let ratio = median(&ahead) / median(&behind);
            result.claims.push(ORDER.claim_of((first, second), "").measured(ratio));
        }
    }
}

/// What calc loses, ÷ what each other scheme loses.
fn relative_to_others(found: &Findings, result: &mut ExperimentResult) {
    let lost = |row| over_baseline(&found.saturated, row, lost_transactions);
    let paced = found.saturated.iter().map(|it| it.row).filter(is_beside);
    let paced = paced.map(|row| (CALC_PACED, row.name, row.scheme, "paced"));
    let unpaced = [(CALC_UNPACED, NAIVE_UNPACED, "naive", "unpaced")];
    for (calc, other, scheme, mode) in paced.chain(unpaced) {
        // If the other lost nothing, the claim has no denominator.
        let ratio = |(calc, other): (&f64, f64)| if other > 0.0 { calc / other } else { f64::NAN };
        let ratios: Vec<f64> = lost(calc).iter().zip(lost(other)).map(ratio).collect();
        let claim = if mode == "unpaced" { LOST_UNPACED } else { lost_beside(scheme) };
        result.claims.push(claim.claim_of(("calc", scheme), mode).measured_runs(&ratios));
    }
}

fn timeline(found: &Findings, result: &mut ExperimentResult) {
    let parts = [
        ("Throughput over time", "", &found.timeline),
        ("Throughput over time with long transactions", ", long", &found.timeline_long),
    ];
    for (title, suffix, outcomes) in parts.into_iter().filter(|part| !part.2.is_empty()) {
        let mut figure = Figure {
            title: title.into(),
            caption: format!("Shaded: the checkpoints of {CALC_PACED}. {JOINED}"),
            x_label: "seconds".into(),
            y_label: "transactions/s".into(),
            ..Figure::default()
        };
        let rows = joined(&outcomes.iter().collect::<Vec<_>>());
        let first = rows.iter().filter_map(|(row, runs)| Some((*row, runs.first()?)));
        for (row, outcome) in first {
            let name = format!("{row}{suffix}");
            if row == CALC_PACED {
                figure.spans.extend(outcome.captures.iter().enumerate().map(|(n, c)| Span {
                    label: format!("checkpoint {}", n + 1),
                    from: c.from_s,
                    to: c.to_s,
                    series: Some(name.clone()),
                }));
            }
            figure.series.push(name.clone());
            let points = outcome.windows.points();
            let label = row.to_owned();
            let (x_unit, y_unit) = ("s".into(), "transactions/s".into());
            result.series.push(Series { name, label, x_unit, y_unit, points, ..Series::default() });
        }
        result.figures.push(figure);
    }
}

/// Figure 2(c) of the paper.
fn lost_bars(title: &str, plan: &Plan, rounds: &Rounds, result: &mut ExperimentResult) {
    let lost = |it: &Compared| (it.row.name.to_owned(), it.over(lost_transactions));
    // "2 to 10 times fewer" than naive: the ring stands at half.
    let ring = |(calc, naive): (&str, &str)| {
        let lost = median(&over_baseline(rounds, naive, lost_transactions));
        let text = format!("{calc}: at most half of {naive}");
        (lost > 0.0).then(|| PaperPoint { label: calc.into(), at: [0.0, lost / 2.0], text })
    };
    result.figures.push(Figure {
        title: title.into(),
        paper: [(CALC_PACED, NAIVE_PACED), (CALC_UNPACED, NAIVE_UNPACED)]
            .into_iter()
            .filter_map(ring)
            .collect(),
        caption: format!(
            "Area of the baseline minus area of the run, {:.0} s with one checkpoint; {}. The \
             paper's ring: at most half of naive.",
            plan.round_s,
            spread_of(plan.runs),
        ),
        y_label: "transactions lost".into(),
        bars: bars(rounds.iter().map(lost)),
        ..Figure::default()
    });
}

/// One row for each scheme. "Stopped" is the time in which no commit could begin: the median over the
/// rounds of a checkpoint's point of consistency. After "ready" the next checkpoint may begin.
fn table(title: &str, plan: &Plan, rounds: &Rounds) -> Table {
    let columns = [
        "row",
        "txn/s",
        "÷ none",
        "capture s",
        "ready s",
        "stopped ms",
        "lost in capture %",
        "lost",
        "worst window ÷ baseline's",
        "checkpoint CPU s",
        "lost per CPU s",
        "r",
        "dirty share",
        "long",
    ];
    let rows = rounds.iter().map(|compared| {
        let over = |f: fn(&Outcome, &Outcome) -> f64| median(&compared.over(f));
        let rate = rate(&compared.runs);
        let long: u64 = compared.runs.iter().map(|run| run.long_transactions).sum();
        let seconds = over(|_, run| capture_seconds(run));
        let (lost, cpu_s) = (over(lost_transactions), over(checkpoint_cpu_s));
        let r = rate * KEYS_PER_TRANSACTION as f64 * seconds / plan.records as f64;
        vec![
            compared.row.name.to_owned(),
            grouped(rate as u64),
            format!("{:.3}", over(|baseline, run| run.rate() / baseline.rate())),
            format!("{seconds:.2}"),
            format!("{:.2}", over(|_, run| ready_seconds(run))),
            format!("{:.3}", over(|_, run| stopped_ms(run))),
            format!("{:.1}", over(capture_loss_percent)),
            short(lost),
            format!("{:.2}", over(worst_window_ratio)),
            format!("{cpu_s:.2}"),
            short(lost / cpu_s),
            format!("{r:.2}"),
            format!("{:.2}", dirty_share(r)),
            long.to_string(),
        ]
    });
    Table {
        title: title.into(),
        columns: columns.map(String::from).to_vec(),
        rows: rows.collect(),
        ..Table::default()
    }
}
