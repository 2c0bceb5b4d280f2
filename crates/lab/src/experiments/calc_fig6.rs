//! `calc-fig6`: memory during a checkpoint (CALC paper, §5.1.6, Figure 6).
//!
//! One checkpoint of a fixed pace, at several rates of update. The parameter r is the rate of
//! updated records ÷ the rate of captured ones. The memory at rest is 1. The peak is compared with
//! the paper's figure, and with the formula for copies of uniformly updated records
//! (`calc_measures::expected_copies`).
//!
//! The part `stored` does the same with `calc-stored`, which keeps old values in a pool as the paper
//! does. The most slots in use are compared with the formula, and shown beside the reserved bytes.
//!
//! A further part compares all schemes, one after the other, those that need a journal with the least
//! that suffices. Memory at rest and peak during a checkpoint are multiples of the memory without
//! checkpoints. A scheme of changes takes a first, full checkpoint before.

use serde::Serialize;

use crate::context::Context;
use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::bars;
use crate::experiments::calc_measures::{dirty_share, expected_copies};
use crate::harness::{Harness, Instance};
use crate::measure::stats::median;
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Series, Span, Table,
};
use crate::subjects::records::{
    CALC_PACED, PAPER_PACE_BYTES_PER_S, Row, STORED_PACED, data_bytes, journal_rows_of, row,
    rows_of, stable_bytes,
};
use crate::workloads::calc::{KEY_BYTES, KEYS_PER_TRANSACTION, VALUE_BYTES};

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Rates of update ÷ rate of capture.
    pub(crate) r: Vec<f64>,
    /// Length of each run.
    pub(crate) run_s: f64,
    /// When the checkpoint begins.
    pub(crate) checkpoint_at_s: f64,
    /// Rate of update ÷ rate of capture where the schemes are compared.
    pub(crate) rows_r: f64,
    /// Records where the schemes are compared.
    pub(crate) rows_records: u64,
    /// Length of each of these runs.
    pub(crate) rows_run_s: f64,
    /// When the checkpoint of such a run begins.
    pub(crate) rows_checkpoint_at_s: f64,
}

impl Plan {
    /// Transactions per second that update `r` records while one is captured.
    fn rate_per_s(&self, r: f64) -> f64 {
        let captured_per_s = PAPER_PACE_BYTES_PER_S as f64 / (KEY_BYTES + VALUE_BYTES) as f64;
        r * captured_per_s / KEYS_PER_TRANSACTION as f64
    }
}

/// Outcome at one rate of update.
struct Point {
    r: f64,
    /// The measured r during the capture.
    r_reached: f64,
    outcome: Outcome,
}

impl Point {
    /// Memory before the checkpoint.
    fn rest(&self, bytes: fn(&transactions::MemoryAt) -> u64) -> f64 {
        let before = self.outcome.captures.first().map_or(f64::MAX, |c| c.from_s);
        let at_rest = self.outcome.held.iter().filter(|h| h.at_s < before);
        median(&at_rest.map(|h| bytes(h) as f64).collect::<Vec<_>>())
    }

    fn share(&self, bytes: fn(&transactions::MemoryAt) -> u64) -> Vec<[f64; 2]> {
        let rest = self.rest(bytes);
        self.outcome.held.iter().map(|h| [h.at_s, bytes(h) as f64 / rest]).collect()
    }

    /// Greatest memory from the checkpoint's beginning on, as a multiple of the memory at rest.
    fn peak(&self, bytes: fn(&transactions::MemoryAt) -> u64) -> f64 {
        let from_s = self.outcome.captures.first().map_or(f64::MAX, |c| c.from_s);
        let during = self.share(bytes).into_iter().filter(|p| p[0] >= from_s);
        during.map(|p| p[1]).fold(f64::NAN, f64::max)
    }
}

fn engine_bytes(held: &transactions::MemoryAt) -> u64 {
    held.engine_bytes
}

fn process_bytes(held: &transactions::MemoryAt) -> u64 {
    held.process_bytes
}

/// The experiment.
pub(crate) struct CalcFig6;

impl Experiment for CalcFig6 {
    const ID: &'static str = "calc-fig6";
    const TITLE: &'static str = "Memory during a checkpoint";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.6, Figure 6";
    const PARTS: &'static [&'static str] = &["rates", "stored", "rows"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            workers: 2,
            r: vec![0.1, 0.5, 1.0, 2.0, 4.0],
            run_s: 26.0,
            checkpoint_at_s: 4.0,
            rows_r: 1.0,
            rows_records: 5_000_000,
            rows_run_s: 12.0,
            rows_checkpoint_at_s: 3.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            r: vec![0.5, 1.0],
            run_s: 1.0,
            checkpoint_at_s: 0.3,
            rows_records: 100_000,
            rows_run_s: 1.0,
            rows_checkpoint_at_s: 0.3,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(seconds) = asked.seconds {
            plan.rows_checkpoint_at_s *= seconds / plan.rows_run_s;
            plan.rows_run_s = seconds;
            plan.checkpoint_at_s *= seconds / plan.run_s;
            plan.run_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("data_bytes", data_bytes(plan.records));
        result.parameter("data_per_last_level_cache", result.per_cache(data_bytes(plan.records)));
        result.parameter("paced_bytes_per_s", PAPER_PACE_BYTES_PER_S);
        result.parameter("journal", "none");
        if bench.context.wants("rates") {
            result.in_part("rates", |result| rates(bench, plan, result))?;
        }
        if bench.context.wants("stored") {
            result.in_part("stored", |result| stored(bench, plan, result))?;
        }
        if bench.context.wants("rows") {
            result.in_part("rows", |result| rows(bench, plan, result))?;
        }
        Ok(())
    }
}

/// CALC at several rates of update.
fn rates(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let bed = bench.open_loaded(row(CALC_PACED), plan.records, "none")?;
    let mut points = Vec::new();
    for &r in &plan.r {
        points.push(point(bench, plan, &bed, r)?);
    }
    bed.clear()?;
    claims(&points, result);
    figures(&points, result);
    Ok(())
}

/// CALC as published at several rates of update: the pool of stable versions, and the formula.
fn stored(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let row = row(STORED_PACED);
    let bed = bench.open_loaded(row, plan.records, "none")?;
    let all_bytes = (plan.records as usize * stable_bytes(row.value_bytes)) as f64;
    let mut table = Table {
        title: "Pool of stable versions, of that of all records".into(),
        columns: ["r asked", "r reached", "reserved", "used at most", "f(r)", "÷ f(r)"]
            .map(String::from)
            .to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for &r in &plan.r {
        let point = point(bench, plan, &bed, r)?;
        let Some(capture) = point.outcome.captures.first() else { continue };
        let used = capture.stable_bytes_max as f64 / all_bytes;
        let expected = expected_copies(point.r_reached.max(0.0));
        let claim = POOL.claim(&format!("r = {r}"));
        result.claims.push(claim.measured((used / expected - 1.0).abs()));
        table.rows.push(vec![
            r.to_string(),
            format!("{:.2}", point.r_reached),
            format!("{:.3}", bed.engine.status().stable_pool_bytes as f64 / all_bytes),
            format!("{used:.4}"),
            format!("{expected:.4}"),
            format!("{:.3}", used / expected),
        ]);
    }
    bed.clear()?;
    result.tables.push(table);
    Ok(())
}

/// All schemes at one rate of update. Ten schemes of up to four copies do not fit into memory at
/// once, so each has the machine for itself.
fn rows(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let plan = &Plan {
        records: plan.rows_records,
        run_s: plan.rows_run_s,
        checkpoint_at_s: plan.rows_checkpoint_at_s,
        ..plan.clone()
    };
    let mut table = Table {
        title: format!("Memory of each scheme, r = {}", plan.rows_r),
        columns: [
            "scheme",
            "journal",
            "copies",
            "at rest, bytes",
            "at rest ÷ none",
            "peak ÷ none",
            "capture s",
        ]
        .map(String::from)
        .to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    let mut none_bytes = f64::NAN;
    let mut peaks: Vec<(String, f64)> = Vec::new();
    let is_compared = |row: &Row| !row.takes_checkpoints || row.is_paced();
    let schemes = &bench.context.schemes;
    let all = rows_of(schemes, bench.context.quick).into_iter().chain(journal_rows_of(schemes));
    for row in all.filter(is_compared) {
        let bed = bench.open_loaded(row, plan.records, row.journal)?;
        bed.take_base()?;
        let point = point(bench, plan, &bed, plan.rows_r)?;
        bed.clear()?;
        let rest_bytes = point.rest(engine_bytes);
        if !row.takes_checkpoints {
            none_bytes = rest_bytes;
        }
        let share = |bytes: f64| format!("{:.3}", bytes / none_bytes);
        let peak = point.peak(engine_bytes) * rest_bytes;
        if row.takes_checkpoints {
            of_row(row.scheme, [rest_bytes / none_bytes, peak / none_bytes], result);
            peaks.push((row.scheme.to_owned(), peak / none_bytes));
        }
        table.rows.push(vec![
            row.scheme.to_owned(),
            row.journal.to_owned(),
            row.copies.to_string(),
            format!("{rest_bytes:.0}"),
            share(rest_bytes),
            if row.takes_checkpoints { share(peak) } else { String::new() },
            point.outcome.captures.first().map_or(String::new(), |c| format!("{:.2}", c.seconds())),
        ]);
    }
    result.tables.push(table);
    result.figures.push(peaks_figure(plan, peaks));
    Ok(())
}

/// The peaks of all schemes, as multiples of the memory without checkpoints, with the paper's numbers.
fn peaks_figure(plan: &Plan, peaks: Vec<(String, f64)>) -> Figure {
    let at = |(scheme, .., times): &(&str, bool, ClaimRow, f64)| PaperPoint {
        label: (*scheme).into(),
        at: [0.0, *times],
        text: format!("{scheme}: {times} times the database"),
    };
    Figure {
        title: "Peak of memory of each scheme".into(),
        caption: format!(
            "÷ the memory without checkpoints, index and headers included; one checkpoint, r = {}. The \
             paper's rings: times the database. (Its fuzzy of Figure 6 contradicts §4.1.2, where the full \
             form keeps a further copy.)",
            plan.rows_r
        ),
        y_label: "÷ none".into(),
        paper: ROWS_OF_PAPER.iter().filter(|it| it.1).map(at).collect(),
        bars: bars(peaks.into_iter().map(|(scheme, times)| (scheme, vec![times]))),
        ..Figure::default()
    }
}

/// Claims on the memory of each scheme: the peak, or the memory at rest. The last number is the paper's.
const ROWS_OF_PAPER: [(&str, bool, ClaimRow, f64); 6] = [
    ("naive", true, memory(true, 1.05, Paper::words("almost no extra space")), 1.0),
    ("fuzzy", true, memory(true, 1.05, Paper::words("almost no extra space")), 1.0),
    ("zigzag", true, memory(true, 2.2, Paper::ratio("2 times the database", 2.0)), 2.0),
    ("ping-pong", true, memory(true, 4.4, Paper::ratio("up to 4 times the database", 4.0)), 4.0),
    ("calc", true, memory(true, 1.25, Paper::ratio("1.2 times during its peak", 1.2)), 1.2),
    ("calc", false, memory(false, 1.02, Paper::words("no extra space most of the time")), 1.0),
];

const fn memory(is_peak: bool, bound: f64, paper: Paper) -> ClaimRow {
    let metric = if is_peak { "peak of memory ÷ none" } else { "memory at rest ÷ none" };
    ClaimRow::new(metric, "CALC paper, §5.1.6, Figure 6", Bound::AtMost(bound)).paper(paper)
}

/// The claims on one scheme, whose memory at rest and peak are multiples of the baseline's.
fn of_row(scheme: &str, [rest, peak]: [f64; 2], result: &mut ExperimentResult) {
    for (_, is_peak, claim, _) in ROWS_OF_PAPER.iter().filter(|it| it.0 == scheme) {
        let measured = if *is_peak { peak } else { rest };
        result.claims.push(claim.claim_of((scheme, ""), "").measured(measured));
    }
}

fn point(bench: &Harness<'_>, plan: &Plan, bed: &Instance<'_>, r: f64) -> LabResult<Point> {
    let drive = Drive {
        workers: plan.workers,
        seconds: plan.run_s,
        warm_up_s: plan.run_s / 20.0,
        rate_per_s: Some(plan.rate_per_s(r)),
        checkpoints_at_s: match bed.row.takes_checkpoints {
            true => vec![plan.checkpoint_at_s],
            false => Vec::new(),
        },
        ..Drive::new(plan.records)
    };
    let outcome = transactions::run(&*bed.engine, &drive)?;
    let r_reached = outcome.captures.first().map_or(f64::NAN, |capture| {
        let rate = outcome.windows.mean_rate(capture.from_s, capture.to_s);
        rate * KEYS_PER_TRANSACTION as f64 * capture.captured_s() / plan.records as f64
    });
    let point = Point { r, r_reached, outcome };
    bench.context.note(format!(
        "memory: r = {r}: reached {r_reached:.2}, peak {:.3} of the memory at rest",
        point.peak(process_bytes)
    ));
    Ok(point)
}

/// The claim on each point. The formula gives its bound.
const PEAK: ClaimRow = ClaimRow::new(
    "peak of memory ÷ memory at rest",
    "CALC paper, §5.1.6, Figure 6; formula for uniform updates",
    Bound::AtMost(2.0),
)
.paper(Paper::ratio("1.2 ×", 1.2))
.goal(Bound::AtMost(1.02));

/// The claim on each point of the pool.
const POOL: ClaimRow = ClaimRow::new(
    "calc-stored: difference of the pool's peak from f(r), as a share of f(r)",
    "CALC paper, §5.1.6, Figure 6; formula for uniform updates",
    Bound::AtMost(0.15),
);

fn claims(points: &[Point], result: &mut ExperimentResult) {
    for point in points {
        let peak = point.peak(engine_bytes).max(point.peak(process_bytes));
        let bound = 1.0 + expected_copies(point.r_reached.max(0.0));
        let bound = (bound * 1e4).ceil() / 1e4;
        let row = ClaimRow { bound: Bound::AtMost(bound), ..PEAK };
        result.claims.push(row.claim(&format!("r = {}", point.r)).measured(peak));
    }
}

fn figures(points: &[Point], result: &mut ExperimentResult) {
    let mut figure = Figure {
        title: "Memory over time".into(),
        caption: "Resident memory of the process ÷ its median before the checkpoint; \
                  shaded: the checkpoint of the fastest updates."
            .into(),
        x_label: "seconds".into(),
        y_label: "memory ÷ memory at rest".into(),
        ..Figure::default()
    };
    let mut table = Table {
        title: "Peaks".into(),
        columns: [
            "r asked",
            "r reached",
            "dirty share",
            "capture s",
            "peak, process",
            "peak, engine",
            "1 + f(r)",
        ]
        .map(String::from)
        .to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for point in points {
        let name = format!("r = {}", point.r);
        figure.series.push(name.clone());
        let points = point.share(process_bytes);
        let (x_unit, y_unit) = ("s".into(), "×".into());
        result.series.push(Series {
            name: name.clone(),
            x_unit,
            y_unit,
            points,
            ..Series::default()
        });
        let Some(capture) = point.outcome.captures.first() else {
            continue;
        };
        // The paper says the peak of its load alone, without r.
        let text = "a peak of 1.2 times the database".to_owned();
        figure.paper = vec![PaperPoint { label: name.clone(), at: [capture.to_s, 1.2], text }];
        let label = format!("checkpoint at {name}");
        figure.spans =
            vec![Span { label, from: capture.from_s, to: capture.to_s, series: Some(name) }];
        table.rows.push(vec![
            point.r.to_string(),
            format!("{:.2}", point.r_reached),
            format!("{:.2}", dirty_share(point.r_reached)),
            format!("{:.2}", capture.seconds()),
            format!("{:.4}", point.peak(process_bytes)),
            format!("{:.4}", point.peak(engine_bytes)),
            format!("{:.4}", 1.0 + expected_copies(point.r_reached)),
        ]);
    }
    result.figures.push(figure);
    result.tables.push(table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;
    use crate::subjects::records::paced_rows;

    #[test]
    fn every_rate_has_its_claim_and_its_curve() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records: 5_000, r: vec![0.01, 0.02], run_s: 0.5, ..CalcFig6::quick() };
        let plan = Plan { rows_records: 5_000, rows_run_s: 0.5, rows_checkpoint_at_s: 0.2, ..plan };
        let result = run_plan::<CalcFig6>(&bench, &Plan { checkpoint_at_s: 0.2, ..plan })?;
        // The usual schemes of a quick run, and those with a journal. Ping-pong is none of them.
        assert_eq!(result.claims.len(), 4 + 5);
        // Other tests run in the same process, so the ratio may be anything.
        assert!(result.claims[..2].iter().all(|c| c.measured.is_some_and(|m| m > 0.0)));
        assert_eq!(result.figures[0].series.len(), 2);
        assert!(result.series.iter().all(|s| s.points.len() == 5));
        assert_eq!(result.tables[1].rows.len(), 2);
        let compared = &result.tables[2].rows;
        let needs = |row: &&Vec<String>| row[0].starts_with("fuzzy") || row[0].starts_with("siren");
        let with_journal = compared.iter().filter(needs);
        assert!(with_journal.clone().all(|row| row[1].ends_with("redo")), "{compared:?}");
        assert_eq!((compared.len(), with_journal.count()), (paced_rows().len() + 6, 6));
        assert!(compared.iter().all(|row| row[4] != "NaN"), "{compared:?}");
        Ok(())
    }

    #[test]
    fn r_is_updates_per_captured_record() {
        let rate = CalcFig6::full().rate_per_s(1.0);
        assert!((rate * 10.0 * 108.0 - 125e6).abs() < 1.0, "{rate}");
    }
}
