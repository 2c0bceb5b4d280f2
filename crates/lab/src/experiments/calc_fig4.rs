//! `calc-fig4`: several checkpoints, and a merge of those of changes (CALC paper, §5.1.3, Figure 4).
//!
//! A run takes 4, 8 or 16 checkpoints at equal distances. The merge of a chain begins some seconds after
//! the last checkpoint. A row that takes full checkpoints has nothing to merge. Four checkpoints run with
//! each share of hot records, and more of them with the least share.
//!
//! The part `recovery` has the paper's numbers above the bars: how long a start takes with 4, 8 and 16
//! checkpoints that nobody has merged.
//!
//! The paper's distances are 70 s, and those of a whole run here are shorter. A checkpoint's cost does not
//! depend on them, as long as it ends before the next one begins.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{
    Compared, JOINED, joined, linearity, over, rate, time_line,
};
use crate::experiments::calc_measures::{
    capture_lost, checkpoint_cpu_s, loss_bound, lost_transactions, merge_loss_percent,
};
use crate::experiments::partial_cost::chain_loads;
use crate::harness::{Harness, Instance};
use crate::measure::stats::{cost_ratio, ends, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, Claim, ClaimRow, ExperimentResult, Figure, Paper, Series, Table,
};
use crate::subjects::records::{BASELINE, CALC_PACED, Row, data_bytes, paced_rows};

const SOURCE: &str = "CALC paper, §5.1.3, Figure 4";
/// Numbers of checkpoints before a merge, and the starts without one.
const PARTS: [&str; 4] = ["4", "8", "16", RECOVERY];
const RECOVERY: &str = "recovery";
/// Checkpoints of the runs that take place with every share.
const OF_ALL_SHARES: u32 = 4;

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
    /// Records of the starts without a merge.
    pub(crate) recovery_records: u64,
    /// Starts of each chain.
    pub(crate) recovery_runs: usize,
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
            records: 5_000_000,
            workers: 2,
            hot_shares: vec![0.1, 0.2, 0.5],
            runs: 1,
            first_s: 1.0,
            gap_s: 5.5,
            merge_delay_s: 1.0,
            after_s: 9.0,
            recovery_records: 5_000_000,
            recovery_runs: 3,
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
            recovery_records: 20_000,
            recovery_runs: 1,
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
        if asked.part.as_deref() == Some(RECOVERY) {
            plan.recovery_runs = asked.runs.unwrap_or(plan.recovery_runs).max(1);
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
        if bench.context.wants(RECOVERY) {
            result.in_part(RECOVERY, |result| recovery(bench, plan, result))?;
        }
        let asked = asked(bench.context, plan);
        if asked.is_empty() {
            return Ok(());
        }
        let compared = bench.in_pairs(&rows, plan.records, result, |pair| {
            pair[1].take_base()?;
            let of = |&(_, checkpoints, hot_share): &Asked| {
                rounds(bench, plan, pair, (checkpoints as usize, hot_share))
            };
            asked.iter().map(of).collect::<LabResult<Vec<Compared>>>()
        })?;
        for (number, &(part, _, hot_share)) in asked.iter().enumerate() {
            let all: Vec<&Compared> = compared.iter().map(|row| &row[number]).collect();
            add((part, hot_share, &all), result);
        }
        across(&asked, &compared, result);
        Ok(())
    }
}

/// A part with its number of checkpoints, and a share of hot records.
type Asked = (&'static str, u32, f64);

/// The runs of the parts that are asked for.
fn asked(context: &Context, plan: &Plan) -> Vec<Asked> {
    let mut all = Vec::new();
    for part in PARTS.into_iter().filter(|part| context.wants(part)) {
        let Ok(checkpoints) = part.parse::<u32>() else { continue };
        let shares = if checkpoints > OF_ALL_SHARES { 1 } else { plan.hot_shares.len() };
        all.extend(plan.hot_shares.iter().take(shares).map(|&share| (part, checkpoints, share)));
    }
    // A run leaves its changes to the next one's first checkpoint, so the small shares come first.
    all.sort_by(|a, b| a.2.total_cmp(&b.2));
    all
}

/// Up to this share of hot records, the paper finds partial checkpoints much cheaper.
const HIGH_SKEW_MAX: f64 = 0.2;
const LOST_WITH_MERGE: ClaimRow =
    ClaimRow::new("transactions lost, the merge included", SOURCE, Bound::AtMost(1.0))
        .paper(Paper::words("much smaller than with full checkpoints at 10 % and 20 %"));
const IMPROVES: ClaimRow = ClaimRow::new(
    "loss of pCALC ÷ loss of CALC, most ÷ fewest checkpoints before a merge",
    SOURCE,
    Bound::AtMost(1.0),
)
.paper(Paper::words("the improvement increases with the number that is merged"));

const LESS_ADVANTAGE: ClaimRow = ClaimRow::new(
    "loss of pCALC ÷ loss of CALC, most ÷ fewest hot records",
    SOURCE,
    Bound::AtLeast(1.0),
)
.paper(Paper::words("less advantage for pCALC where half of the records is hot"));

/// The claims across numbers of checkpoints, and across shares of hot records.
fn across(asked: &[Asked], compared: &[Vec<Compared>], result: &mut ExperimentResult) {
    // The runs are in the order of their shares, and of their numbers within a share.
    let Some(&(_, fewest, share)) = asked.first() else { return };
    let many = asked.iter().rposition(|it| it.2.to_bits() == share.to_bits()).unwrap_or(0);
    let hot = asked.iter().rposition(|it| it.1 == fewest).unwrap_or(0);
    let lost = |is_it: fn(&Row) -> bool, number: usize| {
        let row = compared.iter().find(|row| is_it(&row[number].row));
        median(&row.map(|row| row[number].over(lost_transactions)).unwrap_or_default())
    };
    let ratio = |number| {
        cost_ratio(
            lost(|row| row.takes_changes, number),
            lost(|row| row.name == CALC_PACED, number),
        )
    };
    if asked[many].1 != fewest {
        let at = format!("{} ÷ {fewest}, {:.0} % hot", asked[many].1, share * 100.0);
        result.claims.push(IMPROVES.claim(&at).measured(ratio(many) / ratio(0)));
    }
    if hot > 0 && asked[hot].2 > share {
        let at = format!("{:.0} % ÷ {:.0} %", asked[hot].2 * 100.0, share * 100.0);
        result.claims.push(LESS_ADVANTAGE.claim(&at).measured(ratio(hot) / ratio(0)));
    }
}

const LINEAR: ClaimRow = ClaimRow::new(
    "r² of a line: time of a start by number of checkpoints of changes",
    SOURCE,
    Bound::AtLeast(0.9),
)
.paper(Paper::words("recovery time increases linearly"));

/// Starts from chains of 4, 8 and 16 checkpoints of changes, each of a thirty-second of the records.
fn recovery(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let (mut points, mut spreads, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for links in PARTS.iter().filter_map(|part| part.parse::<u32>().ok()) {
        let (records, runs) = (plan.recovery_records, plan.recovery_runs);
        let (times, bytes) = chain_loads(bench, records, links.into(), runs)?;
        points.push([f64::from(links), median(&times)]);
        spreads.push(ends(&times));
        let seconds = format!("{:.3}", median(&times));
        rows.push(vec![links.to_string(), format!("{:.1}", bytes / 1e6), seconds]);
    }
    result.claims.push(LINEAR.claim("").measured(linearity(&points)));
    let title = "Time of a start by number of checkpoints";
    result.series.push(Series {
        name: title.into(),
        label: "calc:partial".into(),
        x_unit: "checkpoints of changes".into(),
        y_unit: "s".into(),
        points,
        spreads,
        ..Series::default()
    });
    result.figures.push(Figure {
        title: title.into(),
        caption: format!(
            "A full checkpoint and some of changes, {} records, each of a thirty-second of them; no merge. \
             The paper: recovery time increases linearly.",
            grouped(plan.recovery_records)
        ),
        x_label: "checkpoints of changes".into(),
        y_label: "seconds".into(),
        series: vec![title.into()],
        ..Figure::default()
    });
    result.tables.push(Table {
        title: "Starts without a merge".into(),
        columns: ["checkpoints of changes", "files MB", "start s"].map(String::from).to_vec(),
        rows,
        ..Table::default()
    });
    Ok(())
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
        if hot_share <= HIGH_SKEW_MAX {
            let lost = compared.over(lost_transactions);
            let of_full = over(all, CALC_PACED, lost_transactions);
            let pairs = lost.iter().zip(&of_full);
            let ratios: Vec<f64> = pairs.map(|(lost, full)| cost_ratio(*lost, *full)).collect();
            let claim = LOST_WITH_MERGE.claim_of((compared.row.name, CALC_PACED), &at);
            result.claims.push(Claim { part: part.into(), ..claim.measured_runs(&ratios) });
        }
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
        assert_eq!((result.claims.len(), result.tables.len(), rows.len()), (2, 1, 2));
        let merges: Vec<&str> = rows.iter().map(|row| &*row[6]).collect();
        assert_eq!(merges, ["0", "1"], "only the chain of changes is merged");
        Ok(())
    }

    #[test]
    fn starts_from_chains_are_a_curve_with_a_claim() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        context.part = Some(RECOVERY.into());
        let open = &crate::subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        let plan = Plan { records: 5_000, recovery_records: 5_000, ..CalcFig4::quick() };
        let result = run_plan::<CalcFig4>(&bench, &plan)?;
        let at: Vec<f64> = result.series[0].points.iter().map(|point| point[0]).collect();
        assert_eq!((at, result.claims.len()), (vec![4.0, 8.0, 16.0], 1));
        assert!(result.claims[0].measured.is_some());
        Ok(())
    }

    #[test]
    fn more_checkpoints_run_with_the_least_share_alone() {
        let mut context =
            Context::new("out".as_ref(), true, "none".into(), Box::new(std::io::sink()));
        let all = asked(&context, &CalcFig4::full());
        let wanted = [("4", 4, 0.1), ("8", 8, 0.1), ("16", 16, 0.1), ("4", 4, 0.2), ("4", 4, 0.5)];
        assert_eq!(all, wanted);
        context.part = Some(RECOVERY.into());
        assert_eq!(asked(&context, &CalcFig4::full()), []);
    }

    #[test]
    fn the_times_of_the_paper_are_70_seconds_apart() {
        let paper = Plan { first_s: 10.0, gap_s: 70.0, after_s: 80.0, ..CalcFig4::full() };
        let (begins, end) = paper.times(4);
        assert_eq!((begins, end), (vec![10.0, 80.0, 150.0, 220.0], 300.0));
    }
}
