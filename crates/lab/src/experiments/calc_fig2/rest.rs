//! What each row costs between its checkpoints: throughput in pairs with the baseline, and instructions
//! per transaction.
//!
//! Each row takes a checkpoint first. So its bits, copies and marks are those of a store that has been
//! running, and not those of a fresh load.

use super::Plan;
use super::report::SOURCE;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive};
use crate::error::LabResult;
use crate::experiments::calc_figures::bars;
use crate::experiments::instructions;
use crate::harness::{Harness, Instance};
use crate::measure::stats::{ends, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Table};
use crate::subjects::records::{BASELINE, Row};

const NO_DEGRADATION: Paper = Paper::ratio("no degradation of the baseline", 1.0);
const INSTRUCTIONS: ClaimRow =
    ClaimRow::new("instructions per transaction at rest", SOURCE, Bound::AtMost(1.01))
        .between("calc", BASELINE)
        .paper(NO_DEGRADATION);
const AT_REST: ClaimRow = ClaimRow::new("throughput at rest", SOURCE, Bound::AtLeast(0.98))
    .between("calc", BASELINE)
    .paper(NO_DEGRADATION);
const ORDER: ClaimRow = ClaimRow::new("throughput at rest", SOURCE, Bound::AtLeast(1.0))
    .paper(Paper::words("calc, then zigzag, then IPP"));

/// Records of the check of what a killed child leaves.
const KILLED_RECORDS_MAX: u64 = 200_000;

/// Throughput of a row ÷ the baseline's, pair by pair.
struct Resting {
    scheme: &'static str,
    ratios: Vec<f64>,
}

/// Measures the rows that write as fast as they can: at rest a pace makes no difference.
pub(super) fn run(
    bench: &Harness<'_>,
    plan: &Plan,
    rows: &[Row],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let rows: Vec<Row> = rows.iter().copied().filter(|row| !row.is_paced()).collect();
    let killed = plan.rest_records.min(KILLED_RECORDS_MAX);
    crash::check_rows(bench, &rows[1..], "none", killed, result)?;
    let counts = instructions::of_rows(bench, &rows, "none", result)?;
    let resting = bench.in_pairs(&rows, plan.rest_records, result, |[baseline, subject]| {
        subject.take_checkpoint()?;
        let rates = in_rotation(plan, plan.rest_records, &[baseline, subject])?;
        let scheme = subject.row.scheme;
        let ratios = over(&rates[1], &rates[0]);
        let (ratio, pairs) = (median(&ratios), ratios.len());
        bench.context.note(format!("at rest: {scheme} does {ratio:.4} of none, {pairs} pairs"));
        Ok(Resting { scheme, ratios })
    })?;
    let counts: Vec<_> = rows.iter().map(|row| row.scheme).zip(counts).collect();
    claims(&resting, &counts, result);
    show(plan, &resting, &counts, result);
    Ok(())
}

/// Transactions per second of each engine, round by round, without checkpoints. The engines of a round run
/// one after the other, and each round begins with the next one.
pub(super) fn in_rotation(
    plan: &Plan,
    records: u64,
    beds: &[&Instance<'_>],
) -> LabResult<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); beds.len()];
    for round in 0..plan.rest_pairs {
        let (warm_up_s, seed) = (plan.rest_s / 10.0, round as u64);
        let drive = Drive { records, warm_up_s, seed, ..plan.drive(plan.rest_s) };
        for turn in 0..beds.len() {
            let number = (round + turn) % beds.len();
            rates[number].push(transactions::run(&*beds[number].engine, &drive)?.rate());
        }
    }
    Ok(rates)
}

/// Each value of a round ÷ that of another engine in the same round.
pub(super) fn over(values: &[f64], others: &[f64]) -> Vec<f64> {
    values.iter().zip(others).map(|(value, other)| value / other).collect()
}

fn claims(resting: &[Resting], counts: &[(&str, f64)], result: &mut ExperimentResult) {
    let ratios = |scheme: &str| resting.iter().find(|it| it.scheme == scheme).map(|it| &*it.ratios);
    let count = |scheme: &str| counts.iter().find(|it| it.0 == scheme).map(|it| it.1);
    let mut claim = INSTRUCTIONS.claim("");
    if let (Some(calc), Some(none)) = (count("calc"), count(BASELINE)) {
        claim = claim.measured(calc / none);
    }
    result.claims.push(claim);
    result.claims.push(AT_REST.claim("").measured_runs(ratios("calc").unwrap_or_default()));
    for (first, second) in [("calc", "zigzag"), ("zigzag", "ping-pong")] {
        if let (Some(ahead), Some(behind)) = (ratios(first), ratios(second)) {
            let ratio = median(ahead) / median(behind);
            result.claims.push(ORDER.claim_of((first, second), "").measured(ratio));
        }
    }
}

fn show(plan: &Plan, resting: &[Resting], counts: &[(&str, f64)], result: &mut ExperimentResult) {
    result.figures.push(Figure {
        title: "Throughput at rest".into(),
        caption: format!(
            "÷ that of none, {} pairs of {} s in turn, after a first checkpoint.",
            plan.rest_pairs, plan.rest_s
        ),
        y_label: "÷ none".into(),
        bars: bars(resting.iter().map(|it| (it.scheme.to_owned(), it.ratios.clone()))),
        ..Figure::default()
    });
    let none = counts.first().map_or(f64::NAN, |it| it.1);
    let shown = |value: f64, text: String| if value.is_finite() { text } else { "–".into() };
    let row = |it: &Resting| {
        let [least, greatest] = ends(&it.ratios);
        let count = counts.iter().find(|(scheme, _)| *scheme == it.scheme);
        let count = count.map_or(f64::NAN, |it| it.1);
        vec![
            it.scheme.to_owned(),
            format!("{:.4}", median(&it.ratios)),
            format!("{least:.3} to {greatest:.3}"),
            shown(count, grouped(count as u64)),
            shown(count, format!("{:.4}", count / none)),
        ]
    };
    let columns = ["row", "txn/s ÷ none", "of the pairs", "instructions", "÷ none"];
    result.tables.push(Table {
        title: "At rest".into(),
        columns: columns.map(String::from).to_vec(),
        rows: resting.iter().map(row).collect(),
        ..Table::default()
    });
}
