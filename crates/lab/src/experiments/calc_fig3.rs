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
use crate::experiments::calc_figures::{Compared, JOINED, bars, joined, over, rate, time_line};
use crate::experiments::calc_measures::{
    capture_loss_percent, capture_lost, capture_seconds, checkpoint_cpu_s, loss_bound,
    lost_transactions,
};
use crate::harness::{Harness, Instance};
use crate::measure::stats::{cost_ratio, median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Table};
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
            run_s: 25.0,
            checkpoint_at_s: 4.0,
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
        let rows = rows();
        crash::check_rows(bench, &rows[1..], "none", plan.records.min(200_000), result)?;
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            pair[1].take_base()?;
            let of_share = |&hot_share: &f64| rounds(bench, plan, pair, hot_share);
            plan.hot_shares.iter().map(of_share).collect::<LabResult<Vec<Compared>>>()
        })?;
        let mut table = Table {
            title: "Checkpoints by share of hot records".into(),
            columns: [
                "hot share",
                "row",
                "txn/s",
                "÷ none",
                "capture s",
                "lost in capture %",
                "lost",
                "checkpoint CPU s",
            ]
            .map(String::from)
            .to_vec(),
            ..Table::default()
        };
        for (number, &hot_share) in plan.hot_shares.iter().enumerate() {
            let of_share: Vec<&Compared> = compared.iter().map(|row| &row[number]).collect();
            add(plan, (hot_share, &of_share), &mut table, result);
        }
        by_skew(plan, &compared, result);
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

const LOST: ClaimRow = ClaimRow::new("transactions lost", SOURCE, Bound::AtMost(0.6))
    .paper(Paper::words("pCALC loses least of the partial forms"))
    .goal(Bound::AtMost(0.25));
const LOST_IN_CAPTURE: ClaimRow =
    ClaimRow::new("transactions lost inside the capture window", SOURCE, Bound::AtMost(12.0))
        .between(PCALC, "")
        .paper(Paper::words("7 % to 10 % lower than maximum capacity"))
        .unit("%");
/// The loss of pCALC ÷ that of another, with fewer hot records ÷ with more.
const BY_SKEW: ClaimRow =
    ClaimRow::new("transactions lost, fewest ÷ most hot records", SOURCE, Bound::AtMost(1.0))
        .paper(Paper::words("as skew increases, the cost of CALC relative to the others improves"));

/// Compares the greatest skew with the least.
fn by_skew(plan: &Plan, compared: &[Vec<Compared>], result: &mut ExperimentResult) {
    if plan.hot_shares.len() < 2 {
        return;
    }
    let lost = |name: &str, number: usize| {
        let row = compared.iter().find(|row| row[number].row.name == name);
        median(&row.map(|row| row[number].over(lost_transactions)).unwrap_or_default())
    };
    for other in OTHERS {
        let ratio = |number| cost_ratio(lost(PCALC, number), lost(other, number));
        let of_skew = ratio(0) / ratio(plan.hot_shares.len() - 1);
        result.claims.push(BY_SKEW.claim_of((PCALC, other), "").measured(of_skew));
    }
}

/// The claim on calc's checkpoints of changes. The share of hot records gives its bound.
const LOST_IN_CHECKPOINT: ClaimRow =
    ClaimRow::new("lost within the checkpoint", SOURCE, Bound::AtMost(1.0))
        .paper(Paper::words("partial checkpoints lose less"));

/// Claims and figures of one share.
fn add(
    plan: &Plan,
    (hot_share, all): (f64, &[&Compared]),
    table: &mut Table,
    result: &mut ExperimentResult,
) {
    let percent = hot_share * 100.0;
    let of = |name| over(all, name, lost_transactions);
    let at = format!("{percent:.0} % hot");
    for other in OTHERS {
        let (calc, other_lost) = (of(PCALC), of(other));
        let pairs = calc.iter().zip(&other_lost);
        let ratios: Vec<f64> = pairs.map(|(calc, other)| cost_ratio(*calc, *other)).collect();
        result.claims.push(LOST.claim_of((PCALC, other), &at).measured_runs(&ratios));
    }
    let in_capture = over(all, PCALC, capture_loss_percent);
    result.claims.push(LOST_IN_CAPTURE.claim(&at).measured_runs(&in_capture));
    let full = over(all, CALC_PACED, capture_lost);
    for compared in all.iter().filter(|it| it.row.name == PCALC) {
        let changes = compared.over(capture_lost);
        let ratios: Vec<f64> = changes.iter().zip(&full).map(|(c, f)| cost_ratio(*c, *f)).collect();
        let claim = ClaimRow { bound: loss_bound(hot_share), ..LOST_IN_CHECKPOINT };
        let both = (compared.row.name, CALC_PACED);
        let claim = claim.claim_of(both, &format!("{percent:.0} % hot"));
        result.claims.push(claim.measured_runs(&ratios));
    }
    let rows = joined(all);
    let rows: Vec<(&str, &[Outcome])> = rows.iter().map(|(name, runs)| (*name, &**runs)).collect();
    let caption = format!("The first run of each row; shaded: its checkpoint. {JOINED}");
    time_line(&format!("Throughput, {percent:.0} % of the records hot"), &caption, &rows, result);
    let lost = |it: &&Compared| (it.row.name.to_owned(), it.over(lost_transactions));
    result.figures.push(Figure {
        title: format!("Transactions lost, {percent:.0} % of the records hot"),
        caption: format!(
            "Area of the baseline minus area of the run, {:.0} s with one checkpoint; {}.",
            plan.run_s,
            spread_of(plan.runs)
        ),
        y_label: "transactions lost".into(),
        bars: bars(all.iter().map(lost)),
        ..Figure::default()
    });
    for compared in all {
        let figure = |measure, digits: usize| {
            let value = median(&compared.over(measure));
            format!("{value:.digits$}")
        };
        table.rows.push(vec![
            hot_share.to_string(),
            compared.row.name.to_owned(),
            grouped(rate(&compared.runs) as u64),
            figure(|baseline, run| run.rate() / baseline.rate(), 3),
            figure(|_, run| capture_seconds(run), 2),
            figure(capture_loss_percent, 1),
            figure(lost_transactions, 0),
            figure(checkpoint_cpu_s, 2),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

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
        assert_eq!((result.claims.len(), result.figures.len()), (2 * 5 + 3, 4));
        let rows = rows().len();
        assert_eq!((result.series.len(), result.tables[0].rows.len()), (2 * rows, 2 * (rows - 1)));
        let has = |text: &str| result.claims.iter().any(|claim| claim.claim.contains(text));
        assert!(has("calc:partial, paced ÷ ping-pong:partial, paced, 10 % hot"), "{result:?}");
        Ok(())
    }
}
