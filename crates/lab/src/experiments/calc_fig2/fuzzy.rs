//! The rows that need a journal, each in turn with the baseline under the same journal.
//!
//! Four numbers keep apart what such a row costs. They are the log itself, the marks of changes at rest,
//! the stop with which a checkpoint begins, and the loss beside one. A fifth is the undo after a crash, for
//! rows with before-images.
//!
//! The stop stands beside that of the naive scheme, which one further round measures.
//!
//! The baseline's log is never cut, since the baseline takes no checkpoints. So each row and each round has
//! a baseline of its own.

use super::report::SOURCE;
use super::rest::{in_rotation, over};
use super::{Plan, without_checkpoints};
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::calc_figures::{Compared, bars};
use crate::experiments::calc_measures::{
    capture_loss_percent, capture_seconds, checkpoint_cpu_s, lost_transactions, stopped_ms,
};
use crate::experiments::instructions;
use crate::harness::{Harness, Instance};
use crate::measure::stats::{WINDOW_NS, median};
use crate::report::figure::axis::{grouped, short};
use crate::report::result::{Bound, Claim, ClaimRow, ExperimentResult, Figure, Paper, Table};
use crate::subjects::adapter::Recovered;
use crate::subjects::records::{BASELINE, NAIVE_PACED, Row, row};

/// When the checkpoint of a round begins, as a share of the round.
const BEGIN_SHARE: f64 = 0.125;
/// Records of the check of what a killed child leaves.
const KILLED_RECORDS_MAX: u64 = 1_000_000;

const LOG: ClaimRow =
    ClaimRow::new("throughput under the journal", "Stillpoint", Bound::AtLeast(0.85))
        .between("redo", "no journal");

/// Schemes of the paper, which stop commits for a table of dirty records.
const FUZZY: &str = "fuzzy";
/// The paper's fuzzy scheme stops commits while it writes the table, and naive for its whole checkpoint.
const STOPPED: ClaimRow = ClaimRow::new("time stopped", SOURCE, Bound::AtMost(1.0))
    .paper(Paper::words("quiesced for less than naive"));
/// A shorter stop shows no drop in a window. The paper shows a sharp one, which is then beaten.
const VISIBLE_MS: f64 = WINDOW_NS as f64 / 1e6;
const STOPPED_UNSEEN: ClaimRow =
    STOPPED.paper(Paper::ratio("a sharp drop, quiesced for less than naive", 1.0));

/// What one row costs.
struct Costs {
    row: Row,
    /// The baseline with the journal ÷ without it, round by round.
    log: Vec<f64>,
    /// The row at rest ÷ the baseline with the same journal, round by round.
    marks: Vec<f64>,
    /// Bytes of log per transaction: of the baseline, and of the row.
    log_bytes: [f64; 2],
    /// Rounds with a checkpoint, with those of the baseline under the same journal.
    rounds: Compared,
    /// Instructions per transaction: of the baseline without and with the journal, and of the row.
    instructions: Option<[f64; 3]>,
    /// The start after a kill.
    recovered: Option<Recovered>,
}

/// Measures the rows at the pace of the paper's disk.
pub(super) fn run(
    bench: &Harness<'_>,
    plan: &Plan,
    rows: &[Row],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let bare = bench.open_loaded(row(BASELINE), plan.logged_records, "none")?;
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.is_paced()) {
        all.push(costs(bench, plan, (&bare, *row), result)?);
    }
    bare.clear()?;
    if let Some(costs) = all.iter().find(|it| it.row.journal == "redo") {
        result.claims.push(LOG.claim("").measured_runs(&costs.log));
    }
    let mut naive_ms = None;
    for it in all.iter().filter(|it| it.row.scheme.starts_with(FUZZY)) {
        let naive_ms = match naive_ms {
            Some(naive_ms) => naive_ms,
            None => *naive_ms.insert(naive_stopped_ms(bench, plan)?),
        };
        let stopped = median(&it.rounds.over(|_, run| stopped_ms(run)));
        result.claims.push(stop_claim(it.row.scheme, stopped, naive_ms));
    }
    show(plan, &all, result);
    Ok(())
}

/// The time that the naive scheme stops for a checkpoint of the same records at the same pace. The naive
/// scheme needs no journal.
fn naive_stopped_ms(bench: &Harness<'_>, plan: &Plan) -> LabResult<f64> {
    let naive = bench.open_loaded(row(NAIVE_PACED), plan.logged_records, "none")?;
    let outcome = transactions::run(&*naive.engine, &round(plan))?;
    naive.clear()?;
    Ok(stopped_ms(&outcome))
}

/// The claim on the stop of a scheme beside that of the naive one.
fn stop_claim(scheme: &str, stopped_ms: f64, naive_ms: f64) -> Claim {
    let claim = if stopped_ms < VISIBLE_MS { STOPPED_UNSEEN } else { STOPPED };
    claim.claim_of((scheme, "naive"), "").measured(stopped_ms / naive_ms)
}

/// The load of a round with its checkpoint.
fn round(plan: &Plan) -> Drive {
    Drive {
        records: plan.logged_records,
        checkpoints_at_s: vec![plan.logged_round_s * BEGIN_SHARE],
        ..plan.drive(plan.logged_round_s)
    }
}

fn costs(
    bench: &Harness<'_>,
    plan: &Plan,
    (bare, of): (&Instance<'_>, Row),
    result: &mut ExperimentResult,
) -> LabResult<Costs> {
    let (journal, records) = (of.journal, plan.logged_records);
    let recovered =
        crash::check_rows(bench, &[of], journal, records.min(KILLED_RECORDS_MAX), result)?;
    let baseline = row(BASELINE);
    let mut counts = instructions::of_rows(bench, &[baseline], "none", result)?;
    counts.extend(instructions::of_rows(bench, &[baseline, of], journal, result)?);
    let logged = bench.open_loaded(baseline, records, journal)?;
    let subject = bench.open_loaded(of, records, journal)?;
    // The first checkpoint also cuts what the load has logged.
    subject.take_checkpoint()?;
    let rates = in_rotation(plan, records, &[bare, &logged, &subject])?;
    let mut costs = Costs {
        row: of,
        log: over(&rates[1], &rates[0]),
        marks: over(&rates[2], &rates[1]),
        log_bytes: [f64::NAN; 2],
        rounds: Compared { row: of, baseline: Vec::new(), runs: Vec::new() },
        instructions: counts.try_into().ok(),
        recovered: recovered.first().copied(),
    };
    bench.context.note(format!(
        "{}: log {:.4}, marks {:.4}",
        of.scheme,
        median(&costs.log),
        median(&costs.marks)
    ));
    logged.clear()?;
    let drive = round(plan);
    for run in 0..plan.logged_runs {
        let logged = bench.open_loaded(baseline, records, journal)?;
        subject.take_checkpoint()?;
        let what = (1, "under a journal");
        let compared = Compared::in_turn(bench, [&logged, &subject], what, |_, row| Drive {
            seed: run as u64 + 1,
            ..without_checkpoints(row, &drive)
        })?;
        costs.rounds.baseline.extend(compared.baseline);
        costs.rounds.runs.extend(compared.runs);
        logged.clear()?;
    }
    let per_transaction = |outcomes: &[Outcome]| {
        let of = |it: &Outcome| it.journal_bytes as f64 / it.windows.total() as f64;
        median(&outcomes.iter().map(of).collect::<Vec<_>>())
    };
    costs.log_bytes = [&costs.rounds.baseline, &costs.rounds.runs].map(|it| per_transaction(it));
    subject.clear()?;
    Ok(costs)
}

fn show(plan: &Plan, all: &[Costs], result: &mut ExperimentResult) {
    let lost = |it: &Costs| (it.row.scheme.to_owned(), it.rounds.over(lost_transactions));
    result.figures.push(Figure {
        title: "Transactions lost under a journal".into(),
        caption: format!(
            "Area of the baseline under the same journal minus area of the run, {} s with one paced \
             checkpoint, {} records.",
            plan.logged_round_s,
            grouped(plan.logged_records)
        ),
        y_label: "transactions lost".into(),
        bars: bars(all.iter().map(lost)),
        ..Figure::default()
    });
    result.tables.push(costs_table(all));
    let recovered: Vec<_> = all.iter().filter_map(|it| Some((it.row, it.recovered?))).collect();
    if !recovered.is_empty() {
        result.tables.push(starts_table(&recovered));
    }
}

fn costs_table(all: &[Costs]) -> Table {
    let columns = [
        "row",
        "journal",
        "log: none with ÷ without",
        "marks: row ÷ none, both with",
        "instructions: none, with the log, of the row",
        "log bytes per transaction: none, row",
        "stopped ms",
        "capture s",
        "lost in capture %",
        "lost",
        "checkpoint CPU s",
    ];
    let row = |it: &Costs| {
        let over = |f: fn(&Outcome, &Outcome) -> f64| median(&it.rounds.over(f));
        let instructions = it.instructions.map_or("–".to_owned(), |[none, logged, row]| {
            format!("{none:.0}, {:.4} ×, {:.4} ×", logged / none, row / logged)
        });
        vec![
            it.row.scheme.to_owned(),
            it.row.journal.to_owned(),
            format!("{:.4}", median(&it.log)),
            format!("{:.4}", median(&it.marks)),
            instructions,
            it.log_bytes.map(|bytes| format!("{bytes:.0}")).join(", "),
            format!("{:.3}", over(|_, run| stopped_ms(run))),
            format!("{:.2}", over(|_, run| capture_seconds(run))),
            format!("{:.1}", over(capture_loss_percent)),
            short(over(lost_transactions)),
            format!("{:.2}", over(checkpoint_cpu_s)),
        ]
    };
    Table {
        title: "Under a journal".into(),
        columns: columns.map(String::from).to_vec(),
        rows: all.iter().map(row).collect(),
        ..Table::default()
    }
}

/// The starts after a kill with a checkpoint under way.
fn starts_table(recovered: &[(Row, Recovered)]) -> Table {
    let columns =
        ["row", "load s", "keys undone", "undo s", "commits replayed", "log MB", "replay s"];
    let row = |(row, it): &(Row, Recovered)| {
        vec![
            row.scheme.to_owned(),
            format!("{:.3}", it.load_s),
            grouped(it.keys_undone),
            format!("{:.3}", it.undo_s),
            grouped(it.commits),
            format!("{:.1}", it.log_bytes as f64 / 1e6),
            format!("{:.3}", it.replay_s),
        ]
    };
    Table {
        title: "Starts after a kill".into(),
        columns: columns.map(String::from).to_vec(),
        rows: recovered.iter().map(row).collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::Agreement;

    #[test]
    fn a_stop_is_compared_with_that_of_the_naive_scheme() {
        let cases = [
            (0.0, Agreement::Beaten, true),
            (5_000.0, Agreement::Reproduced, true),
            (30_000.0, Agreement::Reversed, false),
        ];
        for (stopped_ms, wanted, met) in cases {
            let claim = stop_claim("fuzzy", stopped_ms, 20_000.0);
            assert_eq!((Agreement::of(&claim), claim.met), (Some(wanted), Some(met)));
            assert_eq!(claim.claim, "time stopped: fuzzy ÷ naive");
        }
        assert_eq!(stop_claim("fuzzy", 0.0, 0.0).met, None, "naive stops, or is no naive scheme");
    }
}
