//! `calc-fig4`: several checkpoints, and a merge of those of changes (CALC paper, §5.1.3, Figure 4).
//!
//! A run takes 4, 8 or 16 checkpoints at equal distances. The merge of a chain begins 5 s after the
//! last checkpoint, as published. A row that takes full checkpoints has nothing to merge.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{Compared, JOINED, joined, over, rate, time_line};
use crate::experiments::calc_measures::{
    capture_lost, checkpoint_cpu_s, loss_bound, lost_transactions, merge_loss_percent,
};
use crate::harness::{Harness, Instance};
use crate::measure::stats::{cost_ratio, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Claim, ExperimentResult, Table};
use crate::subjects::records::{BASELINE, CALC_PACED, Row, data_bytes, paced_rows};

const SOURCE: &str = "CALC paper, §5.1.3, Figure 4";
/// Numbers of checkpoints before a merge.
const PARTS: [&str; 3] = ["4", "8", "16"];

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Shares of the records that transactions update.
    pub(crate) hot_shares: Vec<f64>,
    /// Runs of each row, share and number of checkpoints.
    pub(crate) runs: usize,
    /// When the first checkpoint begins.
    pub(crate) first_s: f64,
    /// Time between the begins of two checkpoints.
    pub(crate) gap_s: f64,
    /// Time from the end of the last checkpoint to the begin of the merge.
    pub(crate) merge_delay_s: f64,
    /// Time from the begin of the last checkpoint to the end of the run.
    pub(crate) after_s: f64,
}

impl Plan {
    /// When the checkpoints of a run begin, and when the run ends.
    fn times(&self, checkpoints: usize) -> (Vec<f64>, f64) {
        let at = |n: usize| self.first_s + self.gap_s * n as f64;
        ((0..checkpoints).map(at).collect(), at(checkpoints - 1) + self.after_s)
    }
}

/// The experiment.
pub(crate) struct CalcFig4;

impl Experiment for CalcFig4 {
    const ID: &'static str = "calc-fig4";
    const TITLE: &'static str = "Checkpoints of changes, and their merge";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.3, Figure 4";
    const PARTS: &'static [&'static str] = &PARTS;
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            hot_shares: vec![0.1, 0.2, 0.5],
            runs: 1,
            first_s: 10.0,
            gap_s: 70.0,
            merge_delay_s: 5.0,
            after_s: 80.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            hot_shares: vec![0.1],
            first_s: 0.1,
            gap_s: 0.1,
            merge_delay_s: 0.05,
            after_s: 0.3,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        if let Some(seconds) = asked.seconds {
            // The requested seconds are those between two checkpoints.
            let factor = seconds / plan.gap_s;
            plan.first_s *= factor;
            plan.gap_s *= factor;
            plan.after_s = plan.after_s * factor + plan.merge_delay_s;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("journal", "none");
        let rows: Vec<Row> = paced_rows()
            .into_iter()
            .filter(|row| row.takes_changes || [BASELINE, CALC_PACED].contains(&row.name))
            .collect();
        crash::check_rows(bench, &rows[1..], "none", plan.records.min(200_000), result)?;
        let parts: Vec<&str> = PARTS.into_iter().filter(|part| bench.context.wants(part)).collect();
        let shares = |part| plan.hot_shares.iter().map(move |&hot_share| (part, hot_share));
        let asked: Vec<(&str, f64)> = parts.into_iter().flat_map(shares).collect();
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            pair[1].take_base()?;
            let of = |&(part, hot_share): &(&str, f64)| {
                let checkpoints = part.parse().expect("a number");
                rounds(bench, plan, pair, (checkpoints, hot_share))
            };
            asked.iter().map(of).collect::<LabResult<Vec<Compared>>>()
        })?;
        for (number, &(part, hot_share)) in asked.iter().enumerate() {
            let all: Vec<&Compared> = compared.iter().map(|row| &row[number]).collect();
            add((part, hot_share, &all), result);
        }
        Ok(())
    }
}

fn rounds(
    bench: &Harness<'_>,
    plan: &Plan,
    pair: [&Instance<'_>; 2],
    (checkpoints, hot_share): (usize, f64),
) -> LabResult<Compared> {
    let (begins, seconds) = plan.times(checkpoints);
    let what = format!("{checkpoints}, hot {hot_share}");
    Compared::in_turn(bench, pair, (plan.runs, &what), |run, row| Drive {
        workers: plan.workers,
        seconds,
        hot_share,
        checkpoints_at_s: if row.takes_checkpoints { begins.clone() } else { vec![] },
        merge_delay_s: row.takes_changes.then_some(plan.merge_delay_s),
        seed: run as u64 + 1,
        ..Drive::new(plan.records)
    })
}

/// Claims, figures and a table of one number of checkpoints and one share.
fn add((part, hot_share, all): (&str, f64, &[&Compared]), result: &mut ExperimentResult) {
    let percent = hot_share * 100.0;
    let full = over(all, CALC_PACED, capture_lost);
    let at = format!("{part} checkpoints, {percent:.0} % hot");
    for compared in all.iter().filter(|it| it.row.takes_changes) {
        let changes = compared.over(capture_lost);
        let ratios: Vec<f64> = changes.iter().zip(&full).map(|(c, f)| cost_ratio(*c, *f)).collect();
        let title = format!("lost within checkpoints: {} ÷ {CALC_PACED}, {at}", compared.row.name);
        let claim =
            Claim::new(title, SOURCE, loss_bound(hot_share)).paper("partial checkpoints lose less");
        result.claims.push(Claim { part: part.into(), ..claim.measured_runs(&ratios) });
    }
    let rows = joined(all);
    let rows: Vec<(&str, &[Outcome])> = rows.iter().map(|(name, runs)| (*name, &**runs)).collect();
    let caption = format!("The first run of each row; shaded: its checkpoints. {JOINED}");
    let figures = result.figures.len();
    time_line(&format!("Throughput, {at}"), &caption, &rows, result);
    result.figures[figures..].iter_mut().for_each(|figure| figure.part = part.into());
    let columns = [
        "row",
        "txn/s",
        "÷ none",
        "lost",
        "lost in checkpoints",
        "checkpoint CPU s",
        "merges",
        "merge s",
        "in merge %",
    ];
    let mut table = Table {
        title: format!("Transactions lost, {at}"),
        part: part.into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
    };
    for compared in all {
        let runs = &compared.runs;
        let merges: Vec<f64> =
            runs.iter().flat_map(|run| &run.merges).map(|merge| merge.seconds()).collect();
        let of = |measure| grouped(median(&compared.over(measure)).max(0.0) as u64);
        let in_merge = median(&compared.over(merge_loss_percent));
        let share = median(&compared.over(|baseline, run| run.rate() / baseline.rate()));
        table.rows.push(vec![
            compared.row.name.to_owned(),
            grouped(rate(runs) as u64),
            format!("{share:.3}"),
            of(lost_transactions),
            of(capture_lost),
            format!("{:.2}", median(&compared.over(checkpoint_cpu_s))),
            merges.len().to_string(),
            if merges.is_empty() { "—".into() } else { format!("{:.2}", median(&merges)) },
            if in_merge.is_nan() { "—".into() } else { format!("{in_merge:.1}") },
        ]);
    }
    result.tables.push(table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;

    #[test]
    fn checkpoints_of_changes_are_merged_after_the_last_one() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        context.part = Some("4".into());
        let open = &crate::subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        // Under other tests, checkpoints may take long.
        let plan = Plan { records: 5_000, after_s: 3.0, ..CalcFig4::quick() };
        let result = run_plan::<CalcFig4>(&bench, &plan)?;
        let rows = &result.tables[0].rows;
        assert_eq!((result.claims.len(), result.tables.len(), rows.len()), (1, 1, 2));
        let merges: Vec<&str> = rows.iter().map(|row| &*row[6]).collect();
        assert_eq!(merges, ["0", "1"], "only the chain of changes is merged");
        Ok(())
    }

    #[test]
    fn the_times_are_those_of_the_paper() {
        let (begins, end) = CalcFig4::full().times(4);
        assert_eq!((begins, end), (vec![10.0, 80.0, 150.0, 220.0], 300.0));
    }
}
