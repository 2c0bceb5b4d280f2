//! Claims, figures and tables of `calc-fig2`.

use super::{Findings, Plan, Rounds};
use crate::drivers::transactions::Outcome;
use crate::experiments::calc_figures::{
    Compared, JOINED, bars, joined, loss_between, rate, time_line,
};
use crate::experiments::calc_measures::{
    before_ratio, capture_kept, capture_loss_percent, capture_seconds, checkpoint_cpu_s,
    dirty_share, kept_ratio, lost_share, lost_transactions, ready_seconds, stopped_ms,
    worst_window_ratio,
};
use crate::measure::stats::{median, spread_of};
use crate::report::figure::axis::{grouped, short};
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Table};
use crate::subjects::records::{
    CALC_PACED, CALC_UNPACED, NAIVE_PACED, NAIVE_UNPACED, PING_PONG_PACED, Row, ZIGZAG_PACED,
};
use crate::workloads::calc::KEYS_PER_TRANSACTION;

pub(super) const SOURCE: &str = "CALC paper, §5.1.1, Figure 2";

/// A measure computed from each run of a row and the baseline's run in the same round.
fn over_baseline(rounds: &Rounds, name: &str, measure: fn(&Outcome, &Outcome) -> f64) -> Vec<f64> {
    let found = rounds.iter().find(|it| it.row.name == name);
    found.map(|it| it.over(measure)).unwrap_or_default()
}

/// Claims, figures and tables of the rounds with a checkpoint.
pub(super) fn add(plan: &Plan, found: &Findings, result: &mut ExperimentResult) {
    in_capture(found, result);
    long_transactions(found, result);
    before_the_checkpoint(found, result);
    shapes(&found.saturated, result);
    relative_to_others(&found.saturated, result);
    cut_off("saturated", &found.saturated, result);
    cut_off("with long transactions", &found.with_long, result);
    cut_off("at part of the load", &found.half, result);
    let paced: Vec<&Compared> = found.saturated.iter().filter(|it| it.row.is_paced()).collect();
    timeline("Throughput over time", &paced, result);
    let long: Vec<&Compared> = found.with_long.iter().filter(|it| it.row.is_paced()).collect();
    timeline("Throughput over time, calc with long transactions", &long, result);
    lost_bars(plan, &found.saturated, result);
    result.tables.push(table("Saturated", plan, &found.saturated));
    result.tables.push(table("With long transactions", plan, &found.with_long));
    let half = format!("At {:.0} % of the baseline's throughput", plan.load_share * 100.0);
    result.tables.push(table(&half, plan, &found.half));
}

const KEPT_IN_CAPTURE: ClaimRow = ClaimRow::new(
    "calc, paced: throughput kept inside the capture window",
    SOURCE,
    Bound::AtLeast(0.88),
)
.paper(Paper::ratio("10 % performance degradation", 0.9))
.goal(Bound::AtLeast(0.97));
const WINDOW: &str = "baseline's worst";
const WORST_SATURATED: ClaimRow = worst_window(0.55, 0.70);
const WORST_AT_HALF: ClaimRow = worst_window(0.90, 0.97);
const KEPT_BY_LONG: ClaimRow =
    by_long("throughput kept inside the capture window, with 2-second transactions ÷ without");
const WORST_BY_LONG: ClaimRow =
    by_long("worst 100 ms window ÷ baseline's worst, with 2-second transactions ÷ without");
const LOST: ClaimRow = ClaimRow::new("transactions lost", SOURCE, Bound::AtMost(0.5))
    .paper(Paper::ratio("2 to 10 times fewer", 0.5))
    .goal(Bound::AtMost(0.25));
const LOST_BESIDE_ZIGZAG: ClaimRow =
    ClaimRow { bound: Bound::AtMost(0.6), ..LOST }.paper(Paper::ratio("almost 40 % fewer", 0.6));
const LOST_UNPACED: ClaimRow = ClaimRow { bound: Bound::AtMost(0.8), ..LOST };
/// The paper says nothing of this scheme.
const LOST_BESIDE_OTHER: ClaimRow = ClaimRow { source: "Stillpoint", paper: None, ..LOST };
/// Schemes that the paper does not have, and that stop commits for a moment only: nothing is claimed of
/// the loss beside theirs. Nor is anything of checkpoints of changes, which write less.
const NOT_BESIDE: [&str; 4] = ["none", "calc", "hourglass", "piggyback"];

/// Whether the loss of calc is claimed to be less than that of this row.
pub(super) fn is_beside(row: &Row) -> bool {
    row.is_paced() && !NOT_BESIDE.contains(&row.scheme) && !row.scheme.ends_with(":partial")
}

/// The claim on what calc loses at the pace, ÷ what this scheme loses.
pub(super) fn lost_beside(scheme: &str) -> ClaimRow {
    match scheme {
        "zigzag" => LOST_BESIDE_ZIGZAG,
        "naive" | "ping-pong" => LOST,
        _ => LOST_BESIDE_OTHER,
    }
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
    ClaimRow::new(metric, SOURCE, Bound::AtLeast(0.95))
        .paper(Paper::words("similar for both versions"))
}

fn in_capture(found: &Findings, result: &mut ExperimentResult) {
    let kept = over_baseline(&found.saturated, CALC_PACED, capture_kept);
    result.claims.push(KEPT_IN_CAPTURE.claim("").measured_runs(&kept));
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

/// The rounds with long transactions beside those without. Each kind of round has its own baseline.
fn long_transactions(found: &Findings, result: &mut ExperimentResult) {
    for name in [CALC_PACED, CALC_UNPACED] {
        for (claim, measure) in
            [(KEPT_BY_LONG, capture_kept as Shape), (WORST_BY_LONG, worst_window_ratio)]
        {
            let of = |rounds| median(&over_baseline(rounds, name, measure));
            let ratio = of(&found.with_long) / of(&found.saturated);
            result.claims.push(claim.claim_of((name, ""), "").measured(ratio));
        }
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

/// The shapes of the curves in Figure 2(a).
const SHAPES: [(&str, &str, Shape, ClaimRow); 8] = [
    (NAIVE_PACED, "", worst_window_ratio, shape(WORST, Bound::AtMost(0.05)).paper(TO_ZERO)),
    (NAIVE_PACED, "", after_ratio, shape(AFTER, Bound::AtLeast(0.95)).paper(TO_NORMAL)),
    (ZIGZAG_PACED, "", worst_window_ratio, shape(WORST, Bound::AtLeast(0.5)).paper(NO_DROP)),
    (PING_PONG_PACED, "", worst_window_ratio, shape(WORST, Bound::AtLeast(0.5)).paper(NO_DROP)),
    (
        NAIVE_UNPACED,
        CALC_UNPACED,
        |_, run| capture_seconds(run),
        shape("time of a checkpoint", Bound::AtMost(1.0))
            .paper(Paper::words("naive's is very small, since it has all resources")),
    ),
    (
        ZIGZAG_PACED,
        PING_PONG_PACED,
        kept_ratio,
        shape(KEPT, Bound::AtMost(1.0)).paper(Paper::words("zigzag's drop is larger than IPP's")),
    ),
    (CALC_PACED, ZIGZAG_PACED, kept_ratio, shape(KEPT, Bound::AtLeast(0.95)).paper(LARGER)),
    (CALC_PACED, PING_PONG_PACED, kept_ratio, shape(KEPT, Bound::AtLeast(0.95)).paper(LARGER)),
];

/// A measure of a run beside its baseline.
type Shape = fn(&Outcome, &Outcome) -> f64;
const WORST: &str = "worst 100 ms window ÷ baseline's worst";
const KEPT: &str = "throughput in the checkpoint ÷ before it";
const AFTER: &str = "throughput after the checkpoint ÷ baseline's";
const TO_ZERO: Paper = Paper::words("throughput drops to 0");
const TO_NORMAL: Paper = Paper::words("after the checkpoint, throughput returns to normal");
const NO_DROP: Paper = Paper::words("no visible drop with short transactions");
/// §5.1.2 has the drops of all schemes as a range, 7 % to 10 %. The paper names no drop but calc's, so it
/// gives no ratio.
const LARGER: Paper = Paper::words("a slightly larger drop, and all drops are 7 % to 10 %");

const fn shape(metric: &'static str, bound: Bound) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, bound)
}

fn shapes(rounds: &Rounds, result: &mut ExperimentResult) {
    for (subject, beside, measure, claim) in SHAPES {
        let of = |name| over_baseline(rounds, name, measure);
        let (values, others) = (of(subject), of(beside));
        if values.is_empty() || (!beside.is_empty() && others.is_empty()) {
            continue;
        }
        let claim = claim.claim_of((subject, beside), "");
        result.claims.push(match beside.is_empty() {
            true => claim.measured_runs(&values),
            false => claim.measured(median(&values) / median(&others)),
        });
    }
}

/// The run's throughput after its last checkpoint ÷ the baseline's in the same time. Not-a-number if no time
/// is left.
fn after_ratio(baseline: &Outcome, run: &Outcome) -> f64 {
    let Some(capture) = run.captures.last() else { return f64::NAN };
    // The window in which the checkpoint ends belongs to the checkpoint.
    let width_s = run.windows.width_s();
    let from_s = (capture.to_s / width_s).ceil() * width_s;
    let after = |it: &Outcome| it.windows.mean_rate(from_s, run.seconds);
    after(run) / after(baseline)
}

/// Names the rows whose checkpoints went on when their rounds ended.
fn cut_off(what: &str, rounds: &Rounds, result: &mut ExperimentResult) {
    for it in rounds {
        let is_cut = |run: &Outcome| run.captures.iter().any(|it| it.to_s > run.seconds);
        let count = it.runs.iter().filter(|run| is_cut(run)).count();
        if count > 0 {
            result.note(format!(
                "{}, {what}: {count} of {} rounds ended before their checkpoints did, so a part of the \
                 loss is missing.",
                it.row.name,
                it.runs.len()
            ));
        }
    }
}

/// What calc loses, ÷ what each other scheme loses, each as a share of the own baseline. The rows have
/// different numbers of rounds, so medians are divided.
fn relative_to_others(rounds: &Rounds, result: &mut ExperimentResult) {
    let all: Vec<&Compared> = rounds.iter().collect();
    let paced = rounds.iter().map(|it| it.row).filter(is_beside);
    let paced = paced.map(|row| (CALC_PACED, row.name, row.scheme, "paced"));
    let unpaced = [(CALC_UNPACED, NAIVE_UNPACED, "naive", "unpaced")];
    for (calc, other, scheme, mode) in paced.chain(unpaced) {
        let ratio = loss_between(&all, (calc, other), lost_share);
        let claim = if mode == "unpaced" { LOST_UNPACED } else { lost_beside(scheme) };
        result.claims.push(claim.claim_of(("calc", scheme), mode).measured(ratio));
    }
}

/// The first round of each row.
pub(super) fn timeline(title: &str, rounds: &[&Compared], result: &mut ExperimentResult) {
    let rows = joined(rounds);
    let Some(baseline) = rows.first().map(|(_, runs)| rate(runs)) else { return };
    let rows: Vec<(&str, &[Outcome])> = rows.iter().map(|(name, runs)| (*name, &**runs)).collect();
    let caption = format!(
        "The first round of each row, with one checkpoint. Shaded: that of {CALC_PACED}. {JOINED} The \
         paper's rings: its share of the baseline."
    );
    time_line(title, &caption, &rows, result);
    let rings = rows.iter().filter_map(|(name, runs)| {
        let (_, in_capture, share, words) = *RINGS.iter().find(|ring| ring.0 == *name)?;
        let capture = runs.first()?.captures.first()?;
        let at_s =
            if in_capture { (capture.from_s + capture.to_s) / 2.0 } else { capture.from_s / 2.0 };
        let text = format!("{name}: {words}");
        Some(PaperPoint { label: (*name).into(), at: [at_s, baseline * share], text })
    });
    let rings = rings.collect();
    if let Some(figure) = result.figures.last_mut() {
        figure.paper = rings;
        figure.spans.retain(|span| span.label.ends_with(CALC_PACED));
    }
}

/// Row, whether within the checkpoint or before it, share of the baseline, and the paper's words.
const RINGS: [(&str, bool, f64, &str); 4] = [
    (NAIVE_PACED, true, 0.0, "0 within the checkpoint"),
    (CALC_PACED, true, 0.9, "10 % less within the checkpoint"),
    (ZIGZAG_PACED, false, 0.96, "4 % less at rest"),
    (PING_PONG_PACED, false, 0.75, "25 % less at rest"),
];

/// Share of the baseline's transactions that the run lost, in %.
pub(super) fn lost_percent(baseline: &Outcome, run: &Outcome) -> f64 {
    100.0 * lost_share(baseline, run)
}

/// Figure 2(c) of the paper, in shares: the machine was faster for some rows than for others.
fn lost_bars(plan: &Plan, rounds: &Rounds, result: &mut ExperimentResult) {
    let lost = |it: &Compared| (it.row.name.to_owned(), it.over(lost_percent));
    // "2 to 10 times fewer" than naive: the ring stands at half.
    let ring = |(calc, naive): (&str, &str)| {
        let lost = median(&over_baseline(rounds, naive, lost_percent));
        let text = format!("{calc}: at most half of {naive}");
        (lost > 0.0).then(|| PaperPoint { label: calc.into(), at: [0.0, lost / 2.0], text })
    };
    result.figures.push(Figure {
        title: "Transactions lost per checkpoint".into(),
        paper: [(CALC_PACED, NAIVE_PACED), (CALC_UNPACED, NAIVE_UNPACED)]
            .into_iter()
            .filter_map(ring)
            .collect(),
        caption: format!(
            "Area of the baseline minus area of the run, as a share of the baseline's, {:.0} s with one \
             checkpoint; {}. The paper's ring: at most half of naive.",
            plan.round_s,
            match plan.runs.max(plan.other_runs) {
                1 => spread_of(1),
                runs => format!("{} of the rows that bounds name", spread_of(runs)),
            },
        ),
        y_label: "% of the baseline's transactions".into(),
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
