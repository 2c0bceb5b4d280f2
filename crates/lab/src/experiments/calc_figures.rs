//! Code shared by the figures of the CALC paper's experiments.

use crate::drivers::transactions::Outcome;
use crate::measure::stats::{Spread, median};
use crate::report::result::{Bar, ExperimentResult, Figure, Series, Span};

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

/// Coefficient of determination (r²) of a straight line through the points.
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
    xy * xy / (xx * yy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_linear_and_a_peak_is_not() {
        let line = linearity(&[[1.0, 3.0], [2.0, 5.0], [4.0, 9.0]]);
        assert!((line - 1.0).abs() < 1e-12, "{line}");
        assert!(linearity(&[[1.0, 1.0], [2.0, 9.0], [3.0, 1.0]]) < 0.01);
        assert!(linearity(&[[1.0, 1.0]]).is_nan(), "one point is no line");
    }

    #[test]
    fn rows_without_values_have_no_bar() {
        let bars = bars([("a".to_owned(), vec![1.0, 3.0, 2.0]), ("b".to_owned(), Vec::new())]);
        assert_eq!(bars.len(), 1);
        assert!((bars[0].value.median - 2.0).abs() < 1e-12);
    }
}
