//! `calc-fig8`: duration and cost of a checkpoint by size of the database (CALC paper, §5.1.5,
//! Figure 8).

use serde::Serialize;

use crate::context::Context;
use crate::crash::records as crash;
use crate::drivers::transactions::{self, Drive};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::linearity;
use crate::experiments::calc_measures::{capture_seconds, checkpoint_cpu_s, lost_transactions};
use crate::harness::Harness;
use crate::measure::machine::available_bytes;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Series, Table};
use crate::subjects::records::{CALC_PACED, PAPER_PACE_BYTES_PER_S, data_bytes, row};

const SOURCE: &str = "CALC paper, §5.1.5, Figure 8";
/// Bytes of memory that a record takes at most, with its index and its copies.
const RECORD_MEMORY_BYTES: u64 = 260;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Sizes: records of 8 + 100 bytes.
    pub(crate) records: Vec<u64>,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Length of each run at the greatest size. A smaller size has a shorter run.
    pub(crate) run_s: f64,
    /// When the checkpoint begins.
    pub(crate) checkpoint_at_s: f64,
    /// The shortest run.
    pub(crate) run_min_s: f64,
}

impl Plan {
    /// Length of the runs at a size: a checkpoint at the pace takes time in proportion to it.
    fn seconds(&self, records: u64) -> f64 {
        let greatest = self.records.iter().max().copied().unwrap_or(records);
        (self.run_s * records as f64 / greatest as f64).max(self.run_min_s).min(self.run_s)
    }
}

/// Outcome at one size of the database.
struct Point {
    records: u64,
    rate: f64,
    duration_s: f64,
    lost: f64,
    cpu_s: f64,
}

/// The figures to draw: title, unit, and the value at one size.
type Measure = (&'static str, &'static str, fn(&Point) -> f64);

/// The experiment.
pub(crate) struct CalcFig8;

impl Experiment for CalcFig8 {
    const ID: &'static str = "calc-fig8";
    const TITLE: &'static str = "A checkpoint's duration and cost by size of the database";
    const PAPER: &'static str = "Ren et al., SIGMOD 2016 (CALC), §5.1.5, Figure 8";
    type Plan = Plan;

    fn full() -> Plan {
        let records = vec![2_500_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000];
        Plan { records, workers: 2, run_s: 60.0, checkpoint_at_s: 2.0, run_min_s: 10.0 }
    }

    fn quick() -> Plan {
        let records = vec![50_000, 100_000, 200_000];
        Plan { records, run_s: 0.8, checkpoint_at_s: 0.1, run_min_s: 0.8, ..Self::full() }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(seconds) = asked.seconds {
            plan.checkpoint_at_s *= seconds / plan.run_s;
            plan.run_min_s *= seconds / plan.run_s;
            plan.run_s = seconds;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("paced_bytes_per_s", PAPER_PACE_BYTES_PER_S);
        result.parameter("journal", "none");
        crash::check_rows(bench, &[row(CALC_PACED)], "none", plan.records[0].min(200_000), result)?;
        let mut points = Vec::new();
        for &records in &plan.records {
            let needed = records * RECORD_MEMORY_BYTES;
            if needed > available_bytes() {
                let records = grouped(records);
                result.note(format!("{records} records need {needed} bytes: left out."));
                continue;
            }
            points.push(point(bench, plan, records)?);
        }
        claims(&points, result);
        figures(&points, result);
        Ok(())
    }
}

/// A run without a checkpoint and one with a checkpoint, on one engine.
fn point(bench: &Harness<'_>, plan: &Plan, records: u64) -> LabResult<Point> {
    let bed = bench.open_loaded(row(CALC_PACED), records, "none")?;
    let seconds = plan.seconds(records);
    let without = Drive { workers: plan.workers, seconds, ..Drive::new(records) };
    let with = Drive { checkpoints_at_s: vec![plan.checkpoint_at_s], ..without.clone() };
    let baseline = transactions::run(&*bed.engine, &without)?;
    let run = transactions::run(&*bed.engine, &with)?;
    bed.clear()?;
    let (duration_s, lost) = (capture_seconds(&run), lost_transactions(&baseline, &run));
    let cpu_s = checkpoint_cpu_s(&baseline, &run);
    bench.context.note(format!(
        "{records} records: checkpoint {duration_s:.2} s, {lost:.0} transactions lost"
    ));
    Ok(Point { records, rate: baseline.rate(), duration_s, lost, cpu_s })
}

fn of(points: &[Point], figure: fn(&Point) -> f64) -> Vec<[f64; 2]> {
    points.iter().map(|point| [point.records as f64 / 1e6, figure(point)]).collect()
}

const DURATION: ClaimRow =
    ClaimRow::new("r² of a rising line: duration by size", SOURCE, Bound::AtLeast(0.98))
        .paper(Paper::words("linearly scalable"));
const LOST: ClaimRow =
    ClaimRow::new("r² of a rising line: transactions lost by size", SOURCE, Bound::AtLeast(0.9))
        .paper(Paper::words("linear in database size"));

fn claims(points: &[Point], result: &mut ExperimentResult) {
    let duration = linearity(&of(points, |point| point.duration_s));
    let lost = linearity(&of(points, |point| point.lost));
    result.claims.push(DURATION.claim("").measured(duration));
    result.claims.push(LOST.claim("").measured(lost));
}

fn figures(points: &[Point], result: &mut ExperimentResult) {
    let measures: [Measure; 2] = [
        ("Duration of a checkpoint", "seconds", |point| point.duration_s),
        ("Transactions lost", "transactions", |point| point.lost),
    ];
    for (title, unit, figure) in measures {
        result.series.push(Series {
            name: title.into(),
            label: CALC_PACED.into(),
            x_unit: "million records".into(),
            y_unit: unit.into(),
            points: of(points, figure),
            ..Series::default()
        });
        result.figures.push(Figure {
            title: title.into(),
            caption:
                "One paced checkpoint under saturated workers; the baseline is the same engine \
                      without one. The paper: linear in the size."
                    .into(),
            x_label: "million records".into(),
            y_label: unit.into(),
            series: vec![title.into()],
            ..Figure::default()
        });
    }
    let row = |point: &Point| {
        vec![
            grouped(point.records),
            grouped(point.rate as u64),
            format!("{:.2}", point.duration_s),
            format!("{:.0}", point.lost),
            format!("{:.3}", point.lost / point.records as f64),
            format!("{:.2}", point.cpu_s),
            format!("{:.1}", result.per_cache(data_bytes(point.records))),
        ]
    };
    let rows = points.iter().map(row).collect();
    result.tables.push(Table {
        title: "By size".into(),
        columns: [
            "records",
            "txn/s",
            "checkpoint s",
            "lost",
            "lost per record",
            "checkpoint CPU s",
            "data ÷ last-level cache",
        ]
        .map(String::from)
        .to_vec(),
        rows,
        ..Table::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    fn run(records: Vec<u64>) -> LabResult<ExperimentResult> {
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records, run_s: 0.3, checkpoint_at_s: 0.1, ..CalcFig8::quick() };
        let plan = Plan { run_min_s: 0.3, ..plan };
        run_plan::<CalcFig8>(&bench, &plan)
    }

    #[test]
    fn every_size_is_a_point() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = run(vec![1_000, 2_000, 3_000])?;
        assert_eq!((result.claims.len(), result.figures.len()), (2, 2));
        assert!(result.series.iter().all(|series| series.points.len() == 3));
        Ok(())
    }

    #[test]
    fn smaller_sizes_have_shorter_runs() {
        let plan = CalcFig8::full();
        let seconds: Vec<f64> = plan.records.iter().map(|&records| plan.seconds(records)).collect();
        assert_eq!(seconds, [10.0, 10.0, 12.0, 24.0, 60.0]);
    }

    #[test]
    fn a_size_that_does_not_fit_is_left_out_and_named() -> LabResult<()> {
        let result = run(vec![1_000, 1 << 50])?;
        assert!(result.series.iter().all(|series| series.points.len() == 1));
        assert!(result.notes.iter().any(|note| note.text.contains("left out")));
        assert!(result.claims.iter().all(|claim| claim.measured.is_none()), "no line");
        Ok(())
    }
}
