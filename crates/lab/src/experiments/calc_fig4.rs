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
//! depend on them, as long as it ends before the next one begins. The result has a note where one does not.
//!
//! The engine takes a full checkpoint instead of one of changes in two cases. More than half of the records
//! have changed, or the chain's checkpoints of changes have more bytes than its full one. The result has a
//! note on each such checkpoint. A merge then begins with the full one, and needs a checkpoint after it.

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::{
    Compared, JOINED, joined, linearity, loss_between, rate, time_line,
};
use crate::experiments::calc_measures::{
    capture_lost, checkpoint_cpu_s, loss_bound, lost_in_captures, lost_share, lost_transactions,
    merge_loss_percent,
};
use crate::experiments::partial_cost::chain_loads;
use crate::harness::{Harness, Instance};
use crate::measure::stats::{ends, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Series, Table};
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
            // A full checkpoint takes up to 7.5 s. A merge takes up to 12.5 s, and one of half of the records 3 s.
            gap_s: 8.0,
            merge_delay_s: 1.0,
            after_s: 17.5,
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
            let of = |&(_, checkpoints, hot_share): &Asked| {
                rounds(bench, plan, pair, (checkpoints as usize, hot_share))
            };
            asked.iter().map(of).collect::<LabResult<Vec<Compared>>>()
        })?;
        let mut all: Vec<(Asked, Vec<&Compared>)> = Vec::new();
        for (number, &asked) in asked.iter().enumerate() {
            all.push((asked, compared.iter().map(|row| &row[number]).collect()));
        }
        for (asked, rows) in &all {
            result.in_part(asked.0, |result| {
                add(plan, *asked, rows, result);
                Ok(())
            })?;
        }
        across(&all, result);
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
    all.sort_by(|a, b| a.2.total_cmp(&b.2));
    all
}

/// Up to this share of hot records, the paper finds partial checkpoints much cheaper.
const HIGH_SKEW_MAX: f64 = 0.2;
/// The row of calc's checkpoints of changes.
const PCALC: &str = "calc:partial, paced";
const LOST_IN_CHECKPOINTS: ClaimRow =
    ClaimRow::new("share of transactions lost within checkpoints", SOURCE, Bound::AtMost(1.0))
        .between(PCALC, CALC_PACED)
        .paper(Paper::words("partial checkpoints lose less"));
const LOST_WITH_MERGE: ClaimRow =
    ClaimRow::new("share of transactions lost, the merge included", SOURCE, Bound::AtMost(0.6))
        .between(PCALC, CALC_PACED)
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

/// The runs of a row by name.
fn runs_of<'a>(rows: &[&'a Compared], name: &str) -> &'a [Outcome] {
    rows.iter().find(|it| it.row.name == name).map_or(&[], |it| &it.runs)
}

/// Whether every run of both rows took all its checkpoints, and ended after the last of them.
fn are_taken(checkpoints: u32, rows: &[&Compared]) -> bool {
    let is_taken = |run: &Outcome| {
        run.captures.len() == checkpoints as usize
            && run.captures.iter().all(|it| it.to_s <= run.seconds)
    };
    [PCALC, CALC_PACED].iter().all(|name| runs_of(rows, name).iter().all(is_taken))
}

/// As [`are_taken`], with a merge in every run of calc's checkpoints of changes that ended before the run.
fn are_merged(checkpoints: u32, rows: &[&Compared]) -> bool {
    let is_merged = |run: &Outcome| {
        !run.merges.is_empty() && run.merges.iter().all(|it| it.to_s <= run.seconds)
    };
    are_taken(checkpoints, rows) && runs_of(rows, PCALC).iter().all(is_merged)
}

/// A checkpoint of more than this share of the bytes of a full one is itself full. The engine makes one of
/// changes of half of the records at most.
const FULL_SHARE_MIN: f64 = 0.75;

/// How many of a run's checkpoints were full ones, beside those of a row that takes full ones alone.
fn full_ones(run: &Outcome, rows: &[&Compared]) -> usize {
    let all = runs_of(rows, CALC_PACED).iter().flat_map(|full| &full.captures);
    let full_bytes = all.map(|it| it.bytes).max().unwrap_or(u64::MAX) as f64;
    run.captures.iter().filter(|it| it.bytes as f64 > FULL_SHARE_MIN * full_bytes).count()
}

/// Sentences on what did not end in its time, and on checkpoints of changes that were full ones.
fn remarks(plan: &Plan, checkpoints: u32, rows: &[&Compared]) -> Vec<String> {
    let due = plan.times(checkpoints as usize).0;
    let mut remarks = Vec::new();
    for it in rows {
        let name = it.row.name;
        for run in &it.runs {
            let missed = due.len() - run.captures.len();
            if missed > 0 {
                remarks.push(format!("{name}: {missed} of {checkpoints} never began."));
            }
            let late =
                run.captures.iter().zip(due.iter().skip(1)).filter(|(it, due)| it.to_s > **due);
            match late.count() {
                0 => {}
                late => remarks.push(format!(
                    "{name}: {late} of {checkpoints} ended after the next one was due, which began later."
                )),
            }
            if run.captures.last().is_some_and(|it| it.to_s > run.seconds) {
                remarks.push(format!("{name}: the last one ended after the run."));
            }
            if it.row.takes_changes {
                remarks.extend(of_chain(name, run, full_ones(run, rows)));
            }
        }
    }
    remarks
}

/// Sentences on the chain of a run of checkpoints of changes, of which so many were full ones.
fn of_chain(name: &str, run: &Outcome, full: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    if full > 0 {
        remarks.push(format!(
            "{name}: {} of {} held all records, as the engine's rule wants it: more than half of them had \
             changed, or the changes since the last full one had more bytes than it. A merge takes those since \
             the last full one alone.",
            full,
            run.captures.len()
        ));
    }
    if run.merges.is_empty() {
        remarks.push(format!(
            "{name}: no merge took place. So no claim on a loss with a merge is made of this run."
        ));
    } else if run.merges.iter().any(|it| it.to_s > run.seconds) {
        remarks.push(format!(
            "{name}: the merge ended after the run. So no claim on a loss with a merge is made of it."
        ));
    }
    remarks
}

/// The claims across numbers of checkpoints, and across shares of hot records.
fn across(all: &[(Asked, Vec<&Compared>)], result: &mut ExperimentResult) {
    // The runs are in the order of their shares, and of their numbers within a share.
    let Some(((_, fewest, share), first)) = all.first() else { return };
    let many = all.iter().rfind(|(it, _)| it.2.to_bits() == share.to_bits());
    let hot = all.iter().rfind(|(it, _)| it.1 == *fewest);
    let of_both = |(asked, rows): &(Asked, Vec<&Compared>)| {
        let ratio = |rows: &[&Compared]| loss_between(rows, (PCALC, CALC_PACED), lost_share);
        let merged = are_merged(asked.1, rows) && are_merged(*fewest, first);
        merged.then(|| ratio(rows) / ratio(first))
    };
    if let Some(many) = many.filter(|(it, _)| it.1 != *fewest)
        && let Some(ratio) = of_both(many)
    {
        let at = format!("{} ÷ {fewest}, {:.0} % hot", many.0.1, share * 100.0);
        result.claims.push(IMPROVES.claim(&at).measured(ratio));
    }
    if let Some(hot) = hot.filter(|(it, _)| it.2 > *share)
        && let Some(ratio) = of_both(hot)
    {
        let at = format!("{:.0} % ÷ {:.0} %", hot.0.2 * 100.0, share * 100.0);
        result.claims.push(LESS_ADVANTAGE.claim(&at).measured(ratio));
    }
}

const LINEAR: ClaimRow = ClaimRow::new(
    "r² of a rising line: time of a start by number of checkpoints of changes",
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
    // Otherwise the first checkpoint would hold what the run before had changed.
    pair[1].take_base()?;
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

/// Claims, a figure, a table and notes of one number of checkpoints and one share.
fn add(plan: &Plan, asked: Asked, all: &[&Compared], result: &mut ExperimentResult) {
    let (_, checkpoints, hot_share) = asked;
    let at = format!("{checkpoints} checkpoints, {:.0} % hot", hot_share * 100.0);
    for remark in remarks(plan, checkpoints, all) {
        result.note(format!("{at}: {remark}"));
    }
    claims(&at, asked, all, result);
    let rows = joined(all);
    let rows: Vec<(&str, &[Outcome])> = rows.iter().map(|(name, runs)| (*name, &**runs)).collect();
    let words = if hot_share <= HIGH_SKEW_MAX {
        "The paper: the cost, the merge included, is much smaller than with full checkpoints."
    } else {
        "The paper: less advantage than with fewer hot records."
    };
    let caption = format!("The first run of each row; shaded: its checkpoints. {JOINED} {words}");
    time_line(&format!("Throughput, {at}"), &caption, &rows, result);
    result.tables.push(table(&at, all));
}

/// Claims of one number of checkpoints and one share. Half a checkpoint has no loss to compare.
fn claims(
    at: &str,
    (_, checkpoints, hot_share): Asked,
    all: &[&Compared],
    result: &mut ExperimentResult,
) {
    let both = (PCALC, CALC_PACED);
    if are_taken(checkpoints, all) {
        let claim = ClaimRow { bound: loss_bound(hot_share), ..LOST_IN_CHECKPOINTS };
        let ratio = loss_between(all, both, lost_in_captures);
        result.claims.push(claim.claim(at).measured(ratio));
    }
    if hot_share <= HIGH_SKEW_MAX && are_merged(checkpoints, all) {
        let ratio = loss_between(all, both, lost_share);
        result.claims.push(LOST_WITH_MERGE.claim(at).measured(ratio));
    }
}

/// The numbers of one number of checkpoints and one share.
fn table(at: &str, all: &[&Compared]) -> Table {
    let columns = [
        "row",
        "txn/s",
        "÷ none",
        "lost",
        "lost in checkpoints",
        "full ones",
        "checkpoint CPU s",
        "merges",
        "merge s",
        "in merge %",
    ];
    let mut table = Table {
        title: format!("Transactions lost, {at}"),
        columns: columns.map(String::from).to_vec(),
        ..Table::default()
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
            runs.iter().map(|run| full_ones(run, all)).sum::<usize>().to_string(),
            format!("{:.2}", median(&compared.over(checkpoint_cpu_s))),
            merges.len().to_string(),
            if merges.is_empty() { "—".into() } else { format!("{:.2}", median(&merges)) },
            if in_merge.is_nan() { "—".into() } else { format!("{in_merge:.1}") },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::Capture;
    use crate::experiments::run_plan;
    use crate::measure::stats::WINDOW_NS;
    use crate::subjects::records::row;

    /// A plan with a checkpoint each second, the first after one second, and two more seconds.
    fn plan() -> Plan {
        Plan { first_s: 1.0, gap_s: 1.0, after_s: 2.0, ..CalcFig4::quick() }
    }

    /// A run of four checkpoints of half a second beside a baseline of `count` transactions a window. The
    /// run loses this share of them. A merge begins after 4.7 s.
    fn pair(name: &'static str, count: u64, lost: f64, merged_s: Option<f64>) -> Compared {
        let (begins, seconds) = plan().times(4);
        let outcome = |share: f64| {
            let mut outcome = Outcome { seconds, ..Outcome::default() };
            for window in 0..(seconds * 10.0) as u64 {
                outcome.windows.add(window * WINDOW_NS, (count as f64 * share) as u64);
            }
            outcome
        };
        let bytes = if name == PCALC { 100 } else { 1_000 };
        let of = |from_s: f64, to_s: f64| Capture { from_s, to_s, bytes, ..Capture::default() };
        let captures = begins.iter().map(|&at| of(at, at + 0.5)).collect();
        let merges = merged_s.map(|to_s| of(4.7, to_s)).into_iter().collect();
        let run = Outcome { captures, merges, ..outcome(1.0 - lost) };
        Compared { row: row(name), baseline: vec![outcome(1.0)], runs: vec![run] }
    }

    fn added(hot_share: f64, rows: &[&Compared]) -> ExperimentResult {
        let mut result = crate::report::tests::sample();
        (result.claims, result.notes) = (Vec::new(), Vec::new());
        add(&plan(), ("4", 4, hot_share), rows, &mut result);
        result
    }

    #[test]
    fn losses_are_compared_as_shares_of_their_own_baselines() {
        // The machine was four times as fast when the full checkpoints ran.
        let (full, calc) = (pair(CALC_PACED, 4_000, 0.2, None), pair(PCALC, 1_000, 0.1, Some(5.5)));
        let result = added(0.2, &[&full, &calc]);
        let measured: Vec<f64> = result.claims.iter().filter_map(|claim| claim.measured).collect();
        let [within, whole] = measured[..] else { panic!("{:?}", result.claims) };
        assert!((within - 0.5).abs() < 1e-9 && (whole - 0.5).abs() < 1e-9, "{measured:?}");
        assert_eq!(result.notes, []);
    }

    #[test]
    fn a_merge_that_outlasts_its_run_is_in_no_claim() {
        let full = pair(CALC_PACED, 1_000, 0.2, None);
        let whole = pair(PCALC, 1_000, 0.1, Some(5.5));
        for (merged_s, words) in [(None, "no merge took place"), (Some(6.5), "after the run")] {
            let calc = pair(PCALC, 1_000, 0.1, merged_s);
            let mut result = added(0.1, &[&full, &calc]);
            assert_eq!(result.claims.len(), 1, "the loss within checkpoints: {:?}", result.claims);
            let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
            assert!(note.text.starts_with("4 checkpoints, 10 % hot: calc:partial"), "{note:?}");
            assert!(note.text.contains(words), "{note:?}");

            let merged = |share| (("4", 4, share), vec![&full, &whole]);
            across(&[merged(0.1), (("4", 4, 0.5), vec![&full, &calc])], &mut result);
            assert_eq!(result.claims.len(), 1, "nor in the claim across shares");
            across(&[merged(0.1), merged(0.5)], &mut result);
            assert_eq!(result.claims.len(), 2);
        }
    }

    #[test]
    fn checkpoints_that_are_late_or_full_are_named() {
        let full = pair(CALC_PACED, 1_000, 0.2, None);
        let mut calc = pair(PCALC, 1_000, 0.1, Some(5.5));
        (calc.runs[0].captures[0].bytes, calc.runs[0].captures[1].to_s) = (990, 3.2);
        let result = added(0.5, &[&full, &calc]);
        let notes: Vec<&str> = result.notes.iter().map(|note| &*note.text).collect();
        let [late, held] = notes[..] else { panic!("{notes:?}") };
        assert!(late.contains("calc:partial, paced: 1 of 4 ended after the next one"), "{late}");
        assert!(held.contains("calc:partial, paced: 1 of 4 held all records"), "{held}");
        assert_eq!(result.tables.last().expect("a table").rows[1][5], "1");

        calc.runs[0].captures.pop();
        let result = added(0.1, &[&full, &calc]);
        assert_eq!(result.claims, [], "three of four checkpoints");
    }

    #[test]
    fn a_full_run_has_time_for_its_checkpoints_and_the_merge() {
        // As measured with five million records.
        let (full_s, changes_s, merge_s) = (7.2, 2.9, 12.3);
        let plan = CalcFig4::full();
        assert!(plan.gap_s > full_s && plan.after_s > full_s);
        let (begins, end) = plan.times(4);
        assert!(begins[3] + changes_s + plan.merge_delay_s + merge_s < end);
    }

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
        assert_eq!((result.tables.len(), rows.len()), (1, 2));
        let all_ended = !result.notes.iter().any(|note| note.text.contains("ended after the run"));
        assert!(result.claims.len() == 2 || !all_ended, "{:?}", result.claims);
        let merges: Vec<&str> = rows.iter().map(|row| &*row[7]).collect();
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
