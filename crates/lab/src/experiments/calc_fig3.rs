//! `calc-fig3`: checkpoints where only a share of the records is updated (CALC paper, §5.1.2,
//! Figure 3).
//!
//! The paper measures the partial variants of its schemes, with long transactions beside. Here calc's full
//! checkpoint stands beside them: its cost must *not* follow the share of hot records, and that of
//! checkpoints of changes must. A row that takes changes has a full checkpoint before the first run.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{
    Compared, JOINED, bars, joined, loss_between, over, rate, time_line,
};
use crate::experiments::calc_measures::{
    capture_kept, capture_loss_percent, capture_seconds, checkpoint_cpu_s, loss_bound,
    lost_in_captures, lost_share, lost_transactions,
};
use crate::harness::{Harness, Instance};
use crate::measure::stats::{median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Table};
use crate::subjects::records::{BASELINE, CALC_PACED, Row, data_bytes, row};
use crate::workloads::calc::LongTransactions;

const SOURCE: &str = "CALC paper, §5.1.2, Figure 3";

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Shares of the records that transactions update.
    pub(crate) hot_shares: Vec<f64>,
    /// Runs of each row and share.
    pub(crate) runs: usize,
    /// Length of each run.
    pub(crate) run_s: f64,
    /// When the checkpoint begins.
    pub(crate) checkpoint_at_s: f64,
    /// The long transactions.
    pub(crate) long: LongTransactions,
}

/// The row of calc's checkpoints of changes.
const PCALC: &str = "calc:partial, paced";
/// The rows of changes that the paper compares with it.
const OTHERS: [&str; 3] =
    ["naive:partial, paced", "zigzag:partial, paced", "ping-pong:partial, paced"];

/// The baseline, calc's full checkpoint, and the rows of changes.
fn rows() -> Vec<Row> {
    [BASELINE, CALC_PACED, PCALC].into_iter().chain(OTHERS).map(row).collect()
}

/// The experiment.
pub(crate) struct CalcFig3;

impl Experiment for CalcFig3 {
    const ID: &'static str = "calc-fig3";
    const TITLE: &'static str = "Checkpoints where a tenth or a fifth of the records is hot";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.2, Figure 3";
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            hot_shares: vec![0.1, 0.2],
            runs: 1,
            // A full checkpoint takes up to 28 s.
            run_s: 31.0,
            checkpoint_at_s: 2.0,
            long: LongTransactions::of_the_paper(),
        }
    }

    fn quick() -> Plan {
        let paper = LongTransactions::of_the_paper();
        let long = LongTransactions { seconds: 0.2, writes: 100, ..paper };
        Plan { records: 100_000, run_s: 0.8, checkpoint_at_s: 0.2, long, ..Self::full() }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        if let Some(seconds) = asked.seconds {
            plan.checkpoint_at_s *= seconds / plan.run_s;
            plan.run_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("journal", "none");
        result.note("pFuzzy is left out: it needs a log here, as fuzzy does in Figure 2.");
        result.note(FULL_FORMS);
        let rows = rows();
        crash::check_rows(bench, &rows[1..], "none", plan.records.min(200_000), result)?;
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            pair[1].take_base()?;
            let of_share = |&hot_share: &f64| rounds(bench, plan, pair, hot_share);
            plan.hot_shares.iter().map(of_share).collect::<LabResult<Vec<Compared>>>()
        })?;
        let mut table = table();
        let by_share: Vec<Vec<&Compared>> = (0..plan.hot_shares.len())
            .map(|number| compared.iter().map(|row| &row[number]).collect())
            .collect();
        for (&hot_share, all) in plan.hot_shares.iter().zip(&by_share) {
            claims(hot_share, all, result);
            figures(plan, (hot_share, all), result);
            table.rows.extend(all.iter().map(|it| table_row(hot_share, it)));
        }
        by_skew(&by_share, result);
        result.tables.push(table);
        Ok(())
    }
}

fn rounds(
    bench: &Harness<'_>,
    plan: &Plan,
    pair: [&Instance<'_>; 2],
    hot_share: f64,
) -> LabResult<Compared> {
    let what = format!("hot {hot_share}");
    Compared::in_turn(bench, pair, (plan.runs, &what), |run, row| {
        let checkpoint = row.takes_checkpoints.then_some(plan.checkpoint_at_s);
        Drive {
            workers: plan.workers,
            seconds: plan.run_s,
            hot_share,
            checkpoints_at_s: checkpoint.into_iter().collect(),
            long: Some(plan.long),
            seed: run as u64 + 1,
            ..Drive::new(plan.records)
        }
    })
}

/// The note on the paper's claim that is not measured for all schemes.
const FULL_FORMS: &str = "The paper finds the cost of partial checkpoints reduced in proportion for all five \
     schemes. Here only calc has its full form beside the partial one; of naive, zigzag and ping-pong the \
     partial form alone runs.";

const LOST: ClaimRow = ClaimRow::new("share of transactions lost", SOURCE, Bound::AtMost(0.6))
    .paper(Paper::words("pCALC loses least of the partial forms"))
    .goal(Bound::AtMost(0.25));
const KEPT_IN_CAPTURE: ClaimRow =
    ClaimRow::new("throughput kept inside the capture window", SOURCE, Bound::AtLeast(0.88))
        .between(PCALC, "")
        .paper(Paper::ratio("7 % to 10 % lower than maximum capacity", 0.9));
/// The loss of pCALC ÷ that of another, with fewer hot records ÷ with more.
const BY_SKEW: ClaimRow = ClaimRow::new(
    "share of transactions lost, fewest ÷ most hot records",
    SOURCE,
    Bound::AtMost(1.0),
)
.paper(Paper::words("as skew increases, the cost of CALC relative to the others improves"));
/// The claim on calc's checkpoints of changes. The share of hot records gives its bound.
const LOST_IN_CHECKPOINT: ClaimRow =
    ClaimRow::new("share of transactions lost within the checkpoint", SOURCE, Bound::AtMost(1.0))
        .paper(Paper::words("partial checkpoints lose less"));

/// Compares the greatest skew, the first of the shares, with the least.
fn by_skew(by_share: &[Vec<&Compared>], result: &mut ExperimentResult) {
    let [most_skewed, .., least_skewed] = by_share else { return };
    for other in OTHERS {
        let both = (PCALC, other);
        let known = |all: &Vec<&Compared>| are_whole(all, both);
        if known(most_skewed) && known(least_skewed) {
            let ratio = |all: &[&Compared]| loss_between(all, both, lost_share);
            let of_skew = ratio(most_skewed) / ratio(least_skewed);
            result.claims.push(BY_SKEW.claim_of(both, "").measured(of_skew));
        }
    }
}

/// Whether a row's checkpoint ended after the row's run.
fn outlasts(compared: &Compared) -> bool {
    compared.runs.iter().any(|run| run.captures.iter().any(|it| it.to_s > run.seconds))
}

/// Whether the runs of both rows hold the whole checkpoints. A loss of half a checkpoint is none to compare.
fn are_whole(all: &[&Compared], (one, other): (&str, &str)) -> bool {
    !all.iter().any(|it| [one, other].contains(&it.row.name) && outlasts(it))
}

/// The words of claims on a share of hot records.
fn at(hot_share: f64) -> String {
    format!("{:.0} % hot", hot_share * 100.0)
}

/// Claims of one share, and notes on checkpoints that outlasted their runs.
fn claims(hot_share: f64, all: &[&Compared], result: &mut ExperimentResult) {
    let at = at(hot_share);
    for it in all.iter().filter(|it| outlasts(it)) {
        result.note(format!(
            "{}, {at}: the checkpoint ended after the run. So no claim compares its loss.",
            it.row.name
        ));
    }
    let beside = OTHERS.map(|other| (LOST, other, lost_share as Measure));
    let in_checkpoint = ClaimRow { bound: loss_bound(hot_share), ..LOST_IN_CHECKPOINT };
    let beside_full = (in_checkpoint, CALC_PACED, lost_in_captures as Measure);
    for (claim, other, measure) in beside.into_iter().chain([beside_full]) {
        let both = (PCALC, other);
        if are_whole(all, both) {
            let ratio = loss_between(all, both, measure);
            result.claims.push(claim.claim_of(both, &at).measured(ratio));
        }
    }
    let kept = over(all, PCALC, capture_kept);
    result.claims.push(KEPT_IN_CAPTURE.claim(&at).measured_runs(&kept));
}

/// A measure of a run beside its baseline.
type Measure = fn(&Outcome, &Outcome) -> f64;

/// Row, whether within the checkpoint or before it, share of the baseline, and the paper's words. The paper finds
/// the relative performance of the partial forms to be that of the full ones in §5.1.1.
const RINGS: [(&str, bool, f64, &str); 4] = [
    (PCALC, true, 0.9, "7 % to 10 % less within the checkpoint"),
    (OTHERS[0], true, 0.0, "quiesced within the checkpoint"),
    (OTHERS[1], false, 0.96, "4 % less at rest"),
    (OTHERS[2], false, 0.75, "25 % less at rest"),
];

/// The paper's points in a picture of throughput. The baseline is the first of the rows.
fn rings(rows: &[(&str, &[Outcome])]) -> Vec<PaperPoint> {
    let Some(baseline) = rows.first().map(|(_, runs)| rate(runs)) else { return Vec::new() };
    let ring = |(name, runs): &(&str, &[Outcome])| {
        let (_, within, share, words) = *RINGS.iter().find(|ring| ring.0 == *name)?;
        let capture = runs.first()?.captures.first()?;
        let at_s = if within { capture.from_s + capture.to_s } else { capture.from_s } / 2.0;
        let text = format!("{name}: {words}");
        Some(PaperPoint { label: (*name).into(), at: [at_s, baseline * share], text })
    };
    rows.iter().filter_map(ring).collect()
}

/// The pictures of one share.
fn figures(plan: &Plan, (hot_share, all): (f64, &[&Compared]), result: &mut ExperimentResult) {
    let percent = hot_share * 100.0;
    let rows = joined(all);
    let rows: Vec<(&str, &[Outcome])> = rows.iter().map(|(name, runs)| (*name, &**runs)).collect();
    let caption = format!(
        "The first run of each row; shaded: its checkpoint. {JOINED} The paper's rings: its share of the \
         baseline."
    );
    time_line(&format!("Throughput, {percent:.0} % of the records hot"), &caption, &rows, result);
    if let Some(figure) = result.figures.last_mut() {
        figure.paper = rings(&rows);
    }
    let lost = |it: &&Compared| {
        let percent = it.over(lost_share).iter().map(|share| share * 100.0).collect();
        (it.row.name.to_owned(), percent)
    };
    result.figures.push(Figure {
        title: format!("Transactions lost, {percent:.0} % of the records hot"),
        caption: format!(
            "Share of the own baseline's transactions, {:.0} s with one checkpoint; {}. The paper: the cost of \
             partial checkpoints is reduced in proportion, and pCALC's is the least.",
            plan.run_s,
            spread_of(plan.runs)
        ),
        y_label: "% of the baseline's transactions".into(),
        bars: bars(all.iter().map(lost)),
        ..Figure::default()
    });
}

/// The table without its rows.
fn table() -> Table {
    let columns = [
        "hot share",
        "row",
        "txn/s",
        "÷ none",
        "capture s",
        "lost in capture %",
        "lost",
        "checkpoint CPU s",
    ];
    Table {
        title: "Checkpoints by share of hot records".into(),
        columns: columns.map(String::from).to_vec(),
        ..Table::default()
    }
}

/// The cells of one row.
fn table_row(hot_share: f64, compared: &Compared) -> Vec<String> {
    let figure = |measure, digits: usize| {
        let value = median(&compared.over(measure));
        format!("{value:.digits$}")
    };
    vec![
        hot_share.to_string(),
        compared.row.name.to_owned(),
        grouped(rate(&compared.runs) as u64),
        figure(|baseline, run| run.rate() / baseline.rate(), 3),
        figure(|_, run| capture_seconds(run), 2),
        figure(capture_loss_percent, 1),
        figure(lost_transactions, 0),
        figure(checkpoint_cpu_s, 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::Capture;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;
    use crate::measure::stats::WINDOW_NS;

    #[test]
    fn every_share_has_its_claim_its_curves_and_its_bars() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records: 5_000, run_s: 0.4, ..CalcFig3::quick() };
        let long = LongTransactions { seconds: 0.05, writes: 10, open_max: 1, ..plan.long };
        let plan = Plan { checkpoint_at_s: 0.1, hot_shares: vec![0.1, 1.0], long, ..plan };
        let result = run_plan::<CalcFig3>(&bench, &plan)?;
        assert_eq!(result.figures.len(), 4);
        // Beside other tests a checkpoint may outlast its run, and then it has no claim.
        let all_ended = !result.notes.iter().any(|note| note.text.contains("ended after the run"));
        let claims = result.claims.len();
        assert!(claims == 2 * 5 + 3 || !all_ended && claims >= 2, "{:?}", result.claims);
        let rows = rows().len();
        assert_eq!((result.series.len(), result.tables[0].rows.len()), (2 * rows, 2 * (rows - 1)));
        let has = |text: &str| result.claims.iter().any(|claim| claim.claim.contains(text));
        let beside = "calc:partial, paced ÷ ping-pong:partial, paced, 10 % hot";
        assert!(!all_ended || has(beside), "{result:?}");
        assert!(result.notes.iter().any(|note| note.text == FULL_FORMS));
        assert_eq!(result.figures[0].paper.len(), RINGS.len());
        Ok(())
    }

    /// A run of two seconds beside a baseline of `count` transactions a window. The run loses this share of
    /// them in its second half, in which its checkpoint is under way until `to_s`.
    fn pair(name: &'static str, count: u64, lost: f64, to_s: f64) -> Compared {
        let outcome = |share: f64| {
            let mut outcome = Outcome { seconds: 2.0, ..Outcome::default() };
            for window in 0..20 {
                let share = if window < 10 { 1.0 } else { share };
                outcome.windows.add(window * WINDOW_NS, (count as f64 * share) as u64);
            }
            outcome
        };
        let capture = Capture { from_s: 1.0, to_s, ..Capture::default() };
        let run = Outcome { captures: vec![capture], ..outcome(1.0 - lost) };
        Compared { row: row(name), baseline: vec![outcome(1.0)], runs: vec![run] }
    }

    fn measured(result: &ExperimentResult, text: &str) -> Option<f64> {
        result.claims.iter().find(|claim| claim.claim.contains(text)).and_then(|it| it.measured)
    }

    #[test]
    fn losses_are_compared_as_shares_of_their_own_baselines() {
        // The machine was four times as fast when the full checkpoint and naive ran.
        let calc = pair(PCALC, 1_000, 0.1, 2.0);
        let (full, naive) = (pair(CALC_PACED, 4_000, 0.2, 2.0), pair(OTHERS[0], 4_000, 0.4, 2.0));
        let mut result = crate::report::tests::sample();
        claims(0.1, &[&full, &calc, &naive], &mut result);
        let near = |text: &str, wanted: f64| {
            let value = measured(&result, text);
            assert!(value.is_some_and(|it| (it - wanted).abs() < 1e-9), "{text}: {value:?}");
        };
        near("lost: calc:partial, paced ÷ naive:partial", 0.25);
        near("within the checkpoint: calc:partial, paced ÷ calc, paced", 0.5);
        near("kept inside the capture window", 0.9);
    }

    #[test]
    fn the_cost_by_skew_is_a_number_where_one_side_loses_nothing() {
        let naive = || pair(OTHERS[0], 4_000, 0.4, 2.0);
        let (none, some) = (pair(PCALC, 1_000, 0.0, 2.0), pair(PCALC, 1_000, 0.2, 2.0));
        let (first, last) = (naive(), naive());
        let mut result = crate::report::tests::sample();
        by_skew(&[vec![&none, &first], vec![&some, &last]], &mut result);
        let of_skew = measured(&result, "fewest ÷ most hot records");
        assert!(of_skew.is_some_and(|it| (it - 0.01).abs() < 1e-9), "{of_skew:?}");
    }

    #[test]
    fn half_a_checkpoint_is_not_compared() {
        let (calc, full) = (pair(PCALC, 1_000, 0.1, 2.0), pair(CALC_PACED, 1_000, 0.2, 2.5));
        let mut result = crate::report::tests::sample();
        (result.claims, result.notes) = (Vec::new(), Vec::new());
        claims(0.1, &[&full, &calc], &mut result);
        assert!(!result.claims.iter().any(|claim| claim.claim.contains("within the checkpoint")));
        let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
        assert!(note.text.starts_with("calc, paced, 10 % hot"), "{note:?}");
    }
}
