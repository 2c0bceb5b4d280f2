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
//! that suffices. As in the paper, the keys and values of the records are 1. What a scheme holds beyond the
//! memory without checkpoints is added to the 1. So index and headers, which the paper does not count, cancel
//! out. A scheme of changes takes a first, full checkpoint before.

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
            "at rest, times the database",
            "peak, times the database",
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
        let database = data_bytes(plan.records) as f64;
        let times = |bytes| times_database(bytes, none_bytes, database);
        let (rest, peak) = (times(rest_bytes), times(point.peak(engine_bytes) * rest_bytes));
        if row.takes_checkpoints {
            of_row(row.scheme, [rest, peak], result);
            peaks.push((row.scheme.to_owned(), peak));
        }
        table.rows.push(vec![
            row.scheme.to_owned(),
            row.journal.to_owned(),
            row.copies.to_string(),
            format!("{rest_bytes:.0}"),
            format!("{rest:.3}"),
            if row.takes_checkpoints { format!("{peak:.3}") } else { String::new() },
            point.outcome.captures.first().map_or(String::new(), |c| format!("{:.2}", c.seconds())),
        ]);
    }
    result.tables.push(table);
    result.figures.push(peaks_figure(plan, peaks));
    result.note(CONTRADICTION);
    Ok(())
}

/// The two statements of the paper on the memory of CALC.
const CONTRADICTION: &str = "The paper contradicts itself on calc's memory, both in §5.1.6: calc \"requires no extra \
     space most of the time\", and \"in practice\" its usage is \"flat\" at 1.2 times the database. The claim on \
     memory at rest takes the first statement. The flat pool of the second is that of calc-stored, in the part \
     stored.";

/// Memory as a multiple of the database: 1, and what is held beyond the memory without checkpoints.
fn times_database(bytes: f64, none_bytes: f64, database_bytes: f64) -> f64 {
    1.0 + (bytes - none_bytes) / database_bytes
}

/// The peaks of all schemes, as multiples of the memory without checkpoints, with the paper's numbers.
fn peaks_figure(plan: &Plan, peaks: Vec<(String, f64)>) -> Figure {
    let at = |(scheme, .., times): &(&str, Beside, ClaimRow, f64)| PaperPoint {
        label: (*scheme).into(),
        at: [0.0, *times],
        text: format!("{scheme}: {times} times the database"),
    };
    Figure {
        title: "Peak of memory of each scheme".into(),
        caption: format!(
            "Keys and values of the records, and what is held beyond the memory without checkpoints; one \
             checkpoint, r = {}. The paper's rings: times the database. (Its fuzzy of Figure 6 contradicts \
             §4.1.2, where the full form keeps a further copy.)",
            plan.rows_r
        ),
        y_label: "times the database".into(),
        paper: ROWS_OF_PAPER.iter().filter(|it| it.1 != Beside::Rest).map(at).collect(),
        bars: bars(peaks.into_iter().map(|(scheme, times)| (scheme, vec![times]))),
        ..Figure::default()
    }
}

/// What a claim lays beside the paper's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// The memory at rest.
    Rest,
    /// The peak, with a bound above.
    Peak,
    /// The distance of the peak from the paper's number. A rival with less memory is not the rival of the paper.
    Distance,
}

/// Claims on the memory of each scheme. The last number is the paper's.
const ROWS_OF_PAPER: [(&str, Beside, ClaimRow, f64); 6] = [
    ("naive", Beside::Peak, peak(1.05, Paper::words("almost no extra space")), 1.0),
    ("fuzzy", Beside::Peak, peak(1.05, Paper::words("almost no extra space")), 1.0),
    ("zigzag", Beside::Distance, distance("2 times the database"), 2.0),
    ("ping-pong", Beside::Distance, distance("up to 4 times the database"), 4.0),
    ("calc", Beside::Peak, peak(1.25, Paper::ratio("1.2 times during its peak", 1.2)), 1.2),
    ("calc", Beside::Rest, AT_REST, 1.0),
];

const AT_REST: ClaimRow = memory("memory at rest, times the database", 1.02)
    .paper(Paper::words("no extra space most of the time"));

const fn peak(bound: f64, paper: Paper) -> ClaimRow {
    memory("peak of memory, times the database", bound).paper(paper)
}

const fn distance(words: &'static str) -> ClaimRow {
    memory("peak of memory, distance from the paper's figure ÷ that figure", 0.1)
        .paper(Paper::words(words))
}

const fn memory(metric: &'static str, bound: f64) -> ClaimRow {
    ClaimRow::new(metric, "CALC paper, §5.1.6, Figure 6", Bound::AtMost(bound))
}

/// The claims on one scheme, whose memory at rest and peak are multiples of the database.
fn of_row(scheme: &str, [rest, peak]: [f64; 2], result: &mut ExperimentResult) {
    for (_, beside, claim, times) in ROWS_OF_PAPER.iter().filter(|it| it.0 == scheme) {
        let measured = match beside {
            Beside::Rest => rest,
            Beside::Peak => peak,
            Beside::Distance => (peak / times - 1.0).abs(),
        };
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
        assert!(result.notes.iter().any(|note| note.part == "rows" && note.text == CONTRADICTION));
        Ok(())
    }

    #[test]
    fn rivals_are_as_far_from_the_paper_below_as_above() {
        // Half of the memory without checkpoints is index: a second copy is a whole database more.
        let times = [200.0, 300.0, 500.0].map(|bytes| times_database(bytes, 200.0, 100.0));
        assert_eq!(times, [1.0, 2.0, 4.0]);
        let dir = tempfile::tempdir().expect("a directory");
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let of = |scheme: &str, peak: f64| {
            let mut result = context.result("toy", "a toy", "none");
            of_row(scheme, [1.0, peak], &mut result);
            let claims = result.claims.iter().map(|it| (it.met, it.paper_ratio.is_some()));
            claims.collect::<Vec<_>>()
        };
        for (peak, met) in [(1.5, false), (1.81, true), (2.0, true), (2.19, true), (2.3, false)] {
            assert_eq!(of("zigzag", peak), [(Some(met), false)], "{peak}");
        }
        assert_eq!(of("ping-pong", 3.41), [(Some(false), false)]);
        assert_eq!(of("calc", 1.01), [(Some(true), true), (Some(true), false)]);
    }

    #[test]
    fn r_is_updates_per_captured_record() {
        let rate = CalcFig6::full().rate_per_s(1.0);
        assert!((rate * 10.0 * 108.0 - 125e6).abs() < 1.0, "{rate}");
    }
}
