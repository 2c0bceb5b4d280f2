//! Code shared by the figures of the CALC paper's experiments.

use crate::drivers::transactions::{self, Drive, Outcome};
use crate::error::LabResult;
use crate::harness::{Harness, Instance};
use crate::measure::stats::{Spread, loss_ratio, median};
use crate::report::result::{Bar, ExperimentResult, Figure, Series, Span};
use crate::subjects::records::{BASELINE, Row};

/// The runs of a row, each with a run of the baseline in turn with it.
#[derive(Debug)]
pub(crate) struct Compared {
    /// The row.
    pub(crate) row: Row,
    /// The runs of the baseline beside the row's.
    pub(crate) baseline: Vec<Outcome>,
    /// The runs of the row.
    pub(crate) runs: Vec<Outcome>,
}

impl Compared {
    /// Runs the baseline and the row in turn. The drive of each run follows from its number, and from
    /// whether the row takes checkpoints.
    ///
    /// # Errors
    /// When an engine fails.
    pub(crate) fn in_turn(
        bench: &Harness<'_>,
        [baseline, subject]: [&Instance<'_>; 2],
        (runs, what): (usize, &str),
        drive: impl Fn(usize, Row) -> Drive,
    ) -> LabResult<Compared> {
        let (row, none) = (subject.row, Vec::new);
        let mut compared = Compared { row, baseline: none(), runs: none() };
        for run in 0..runs {
            for (bed, outcomes) in
                [(baseline, &mut compared.baseline), (subject, &mut compared.runs)]
            {
                let outcome = transactions::run(&*bed.engine, &drive(run, bed.row))?;
                let captures: Vec<String> =
                    outcome.captures.iter().map(|c| format!("{:.2} s", c.seconds())).collect();
                bench.context.note(format!(
                    "{what}: {} {:.0} txn/s, checkpoints [{}]",
                    bed.row.name,
                    outcome.rate(),
                    captures.join(", ")
                ));
                outcomes.push(outcome);
            }
        }
        Ok(compared)
    }

    /// A measure computed from each run and the baseline's run beside it.
    pub(crate) fn over(&self, measure: fn(&Outcome, &Outcome) -> f64) -> Vec<f64> {
        over_baseline(&self.baseline, &self.runs, measure)
    }
}

/// A measure of the row of this name; no values if it was left out.
pub(crate) fn over(
    all: &[&Compared],
    name: &str,
    measure: fn(&Outcome, &Outcome) -> f64,
) -> Vec<f64> {
    let found = all.iter().find(|it| it.row.name == name);
    found.map(|it| it.over(measure)).unwrap_or_default()
}

/// What a row lost ÷ what another lost: the ratio of the medians of a measure that gives shares of the baselines.
/// The machine was faster for some pairs than for others, so numbers of transactions are not compared.
pub(crate) fn loss_between(
    all: &[&Compared],
    (subject, other): (&str, &str),
    measure: fn(&Outcome, &Outcome) -> f64,
) -> f64 {
    loss_ratio(median(&over(all, subject, measure)), median(&over(all, other, measure)))
}

/// A sentence for the captions of figures of [`joined`] rows.
pub(crate) const JOINED: &str = "Each row ran in turn with a baseline of its own. Its rates are multiplied so that all baselines \
     have one height.";

/// The outcomes of all rows as if all had run beside one baseline, the first: rates are multiplied by the
/// first baseline's ÷ their own. The baseline is the first entry.
pub(crate) fn joined(all: &[&Compared]) -> Vec<(&'static str, Vec<Outcome>)> {
    let Some(first) = all.first() else { return Vec::new() };
    let common = rate(&first.baseline);
    let mut rows = vec![(BASELINE, first.baseline.clone())];
    for it in all {
        let factor = common / rate(&it.baseline);
        let scaled = |run: &Outcome| Outcome { windows: run.windows.scaled(factor), ..run.clone() };
        rows.push((it.row.name, it.runs.iter().map(scaled).collect()));
    }
    rows
}

/// A measure computed from each run and the baseline's run in the same round.
pub(crate) fn over_baseline(
    baseline: &[Outcome],
    runs: &[Outcome],
    measure: fn(&Outcome, &Outcome) -> f64,
) -> Vec<f64> {
    baseline.iter().zip(runs).map(|(baseline, run)| measure(baseline, run)).collect()
}

/// Median transactions per second of some runs.
pub(crate) fn rate(runs: &[Outcome]) -> f64 {
    median(&runs.iter().map(Outcome::rate).collect::<Vec<_>>())
}

/// Bars, each the spread of a row's values; a row without values has none.
pub(crate) fn bars(rows: impl IntoIterator<Item = (String, Vec<f64>)>) -> Vec<Bar> {
    let bar = |(name, values): (String, Vec<f64>)| {
        Some(Bar { group: String::new(), name, value: Spread::of(&values)? })
    };
    rows.into_iter().filter_map(bar).collect()
}

/// Adds a figure of throughput over time with the first run of each row, and shades its checkpoints.
pub(crate) fn time_line(
    title: &str,
    caption: &str,
    rows: &[(&str, &[Outcome])],
    result: &mut ExperimentResult,
) {
    let mut figure = Figure {
        title: title.into(),
        caption: caption.into(),
        x_label: "seconds".into(),
        y_label: "transactions/s".into(),
        ..Figure::default()
    };
    for (row, runs) in rows {
        let Some(run) = runs.first() else { continue };
        let name = format!("{title}: {row}");
        result.series.push(Series {
            name: name.clone(),
            label: (*row).to_owned(),
            x_unit: "s".into(),
            y_unit: "txn/s".into(),
            points: run.windows.points(),
            ..Series::default()
        });
        figure.spans.extend(run.captures.iter().map(|capture| Span {
            label: format!("checkpoint of {row}"),
            from: capture.from_s,
            to: capture.to_s,
            series: Some(name.clone()),
        }));
        figure.series.push(name);
    }
    result.figures.push(figure);
}

/// Coefficient of determination (r²) of a straight line through the points. 0 if the line falls: costs that
/// grow with a size are claimed.
pub(crate) fn linearity(points: &[[f64; 2]]) -> f64 {
    let count = points.len() as f64;
    let mean = |at: usize| points.iter().map(|point| point[at]).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(0), mean(1));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for [x, y] in points {
        let (dx, dy) = (x - mean_x, y - mean_y);
        xx += dx * dx;
        xy += dx * dy;
        yy += dy * dy;
    }
    if xy < 0.0 { 0.0 } else { xy * xy / (xx * yy) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::calc_measures::lost_transactions;
    use crate::subjects::records::{CALC_PACED, NAIVE_PACED, row};

    #[test]
    fn a_rising_line_is_linear_and_a_peak_is_not() {
        let line = linearity(&[[1.0, 3.0], [2.0, 5.0], [4.0, 9.0]]);
        assert!((line - 1.0).abs() < 1e-12, "{line}");
        assert!(linearity(&[[1.0, 1.0], [2.0, 9.0], [3.0, 1.0]]) < 0.01);
        assert_eq!(linearity(&[[1.0, 9.0], [2.0, 7.0], [4.0, 3.0]]), 0.0, "a falling line");
        assert!(linearity(&[[1.0, 1.0]]).is_nan(), "one point is no line");
    }

    #[test]
    fn rows_are_joined_by_their_baselines() {
        let outcome = |count: u64| {
            let mut outcome = Outcome { seconds: 0.1, ..Outcome::default() };
            outcome.windows.add(0, count);
            outcome
        };
        let compared = |name: &'static str, baseline, run| Compared {
            row: row(name),
            baseline: vec![outcome(baseline)],
            runs: vec![outcome(run)],
        };
        // The machine had become half as fast when the second pair ran.
        let (calc, naive) = (compared(CALC_PACED, 1_000, 900), compared(NAIVE_PACED, 500, 300));
        let all = [&calc, &naive];
        let rows = joined(&all);
        let totals: Vec<(&str, u64)> =
            rows.iter().map(|(name, runs)| (*name, runs[0].windows.total())).collect();
        assert_eq!(totals, [(BASELINE, 1_000), (CALC_PACED, 900), (NAIVE_PACED, 600)]);
        let lost = over(&all, NAIVE_PACED, lost_transactions);
        assert!((lost[0] - 200.0).abs() < 1e-9, "beside its own baseline: {lost:?}");
        assert_eq!(over(&all[..1], NAIVE_PACED, lost_transactions), Vec::<f64>::new());
    }

    #[test]
    fn rows_without_values_have_no_bar() {
        let bars = bars([("a".to_owned(), vec![1.0, 3.0, 2.0]), ("b".to_owned(), Vec::new())]);
        assert_eq!(bars.len(), 1);
        assert!((bars[0].value.median - 2.0).abs() < 1e-12);
    }
}
