//! Joins runs of the same experiment, each of a process of its own, into one result.
//!
//! A process has one placement in memory, and one state of the machine when it began. So a figure
//! that holds in several processes does not rest on one such chance. Joined are:
//! - claims: the median of the processes' figures, with the least and the greatest;
//! - curves whose points have the same x in all processes, and bars: likewise, point by point;
//! - cells of tables that are numbers in all processes: the median.
//!
//! Everything else is the first process's, such as curves over time.

use super::{Bar, Claim, ExperimentResult, Samples, Series, Table};
use crate::measure::conditions::Conditions;
use crate::measure::stats::{Spread, median};

/// The result of all these runs; `None` if there is none.
pub(crate) fn joined(runs: &[ExperimentResult]) -> Option<ExperimentResult> {
    let (first, rest) = runs.split_first()?;
    let mut result = first.clone();
    result.seconds = runs.iter().map(|run| run.seconds).sum();
    result.conditions =
        runs.iter().skip(1).fold(first.conditions.clone(), |all, run| both(all, &run.conditions));
    result.claims = first.claims.iter().map(|claim| claim_of(claim, runs)).collect();
    for claim in rest.iter().flat_map(|run| &run.claims) {
        if !result.claims.iter().any(|known| is_same(known, claim)) {
            result.claims.push(claim_of(claim, runs));
        }
    }
    for series in &mut result.series {
        join_series(series, runs);
    }
    for (number, figure) in result.figures.iter_mut().enumerate() {
        for bar in &mut figure.bars {
            join_bar(bar, runs, number);
        }
    }
    for (number, table) in result.tables.iter_mut().enumerate() {
        join_table(table, runs, number);
    }
    for note in rest.iter().flat_map(|run| &run.notes) {
        if !result.notes.contains(note) {
            result.notes.push(note.clone());
        }
    }
    result.parameter("processes", runs.len());
    Some(result)
}

/// The worse of two conditions.
fn both(one: Conditions, other: &Conditions) -> Conditions {
    Conditions {
        load_average_before: one.load_average_before.max(other.load_average_before),
        load_average_after: one.load_average_after.max(other.load_average_after),
        steal_share: one.steal_share.max(other.steal_share),
        other_processes_share: one.other_processes_share.max(other.other_processes_share),
        huge_page_bytes_max: one.huge_page_bytes_max.max(other.huge_page_bytes_max),
        huge_pages: one.huge_pages,
    }
}

fn is_same(one: &Claim, other: &Claim) -> bool {
    (&one.part, &one.claim) == (&other.part, &other.claim)
}

/// A claim with the figures of all processes that measured it.
fn claim_of(claim: &Claim, runs: &[ExperimentResult]) -> Claim {
    let of_run = |run: &ExperimentResult| {
        run.claims.iter().find(|it| is_same(it, claim)).and_then(|it| it.measured)
    };
    let figures: Vec<f64> = runs.iter().filter_map(of_run).collect();
    let unmeasured = Claim { measured: None, spread: None, met: None, ..claim.clone() };
    Claim { samples: Samples::Processes, ..unmeasured.measured_runs(&figures) }
}

/// Takes the medians of the points, if all processes have points at the same x.
fn join_series(series: &mut Series, runs: &[ExperimentResult]) {
    let find = |run: &ExperimentResult| {
        run.series.iter().find(|it| it.name == series.name && it.part == series.part).cloned()
    };
    let Some(all) = runs.iter().map(find).collect::<Option<Vec<Series>>>() else { return };
    let xs = |it: &Series| it.points.iter().map(|point| point[0]).collect::<Vec<f64>>();
    if all.iter().any(|it| xs(it) != xs(series)) {
        return;
    }
    let mut spreads = Vec::new();
    for at in 0..series.points.len() {
        let ys: Vec<f64> = all.iter().map(|it| it.points[at][1]).collect();
        let Some(spread) = Spread::of(&ys) else { return };
        spreads.push(spread);
    }
    for (point, spread) in series.points.iter_mut().zip(&spreads) {
        point[1] = spread.median;
    }
    series.spreads = spreads.iter().map(|spread| [spread.low, spread.high]).collect();
}

fn join_bar(bar: &mut Bar, runs: &[ExperimentResult], figure: usize) {
    let of_run = |run: &ExperimentResult| {
        let bars = &run.figures.get(figure)?.bars;
        bars.iter()
            .find(|it| (&it.group, &it.name) == (&bar.group, &bar.name))
            .map(|it| it.value.median)
    };
    let found: Vec<f64> = runs.iter().filter_map(of_run).collect();
    if let Some(spread) = Spread::of(&found) {
        bar.value = spread;
    }
}

/// Takes the medians of the cells, if all processes have a table of the same shape.
fn join_table(table: &mut Table, runs: &[ExperimentResult], number: usize) {
    let all: Vec<&Table> = runs.iter().filter_map(|run| run.tables.get(number)).collect();
    let is_alike = |it: &&Table| {
        (&it.title, &it.columns, it.rows.len()) == (&table.title, &table.columns, table.rows.len())
    };
    if all.len() < runs.len() || !all.iter().all(is_alike) {
        return;
    }
    for (row, cells) in table.rows.iter_mut().enumerate() {
        for (column, cell) in cells.iter_mut().enumerate() {
            let figures = all.iter().map(|it| it.rows[row].get(column)?.parse::<f64>().ok());
            if let Some(figures) = figures.collect::<Option<Vec<f64>>>() {
                let digits = cell.split_once('.').map_or(0, |(_, fraction)| fraction.len());
                *cell = format!("{:.digits$}", median(&figures));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::{Bound, Note};

    fn run(measured: f64, ys: [f64; 2], cell: &str) -> ExperimentResult {
        let mut run = ExperimentResult {
            claims: vec![
                Claim::new("a", "s", Bound::AtMost(2.0)).measured_periods(&[measured, measured]),
            ],
            series: vec![Series {
                name: "curve".into(),
                points: vec![[1.0, ys[0]], [2.0, ys[1]]],
                ..Series::default()
            }],
            tables: vec![Table {
                title: "t".into(),
                columns: vec!["scheme".into(), "ms".into()],
                rows: vec![vec!["hg".into(), cell.into()]],
                ..Table::default()
            }],
            ..crate::report::tests::sample()
        };
        run.notes = vec![Note { part: String::new(), text: "always".into() }];
        run
    }

    #[test]
    fn figures_are_medians_of_the_processes_with_their_spread() {
        let runs = [
            run(3.0, [1.0, 5.0], "1.50"),
            run(1.0, [2.0, 7.0], "2.50"),
            run(1.5, [9.0, 6.0], "2.00"),
        ];
        let all = joined(&runs).expect("three");
        let claim = &all.claims[0];
        let spread = claim.spread.expect("of three");
        assert_eq!(
            (claim.measured, claim.met, claim.samples),
            (Some(1.5), Some(true), Samples::Processes)
        );
        assert_eq!((spread.low, spread.high, spread.runs), (1.0, 3.0, 3));
        assert_eq!(all.series[0].points, [[1.0, 2.0], [2.0, 6.0]]);
        assert_eq!(all.series[0].spreads, [[1.0, 9.0], [5.0, 7.0]]);
        assert_eq!(all.tables[0].rows[0], ["hg", "2.00"]);
        assert_eq!((all.notes.len(), &all.parameters["processes"]), (1, &3.into()));
        assert_eq!(all.seconds, 3.0 * runs[0].seconds);
    }

    #[test]
    fn what_differs_in_shape_is_the_first_processs() {
        let mut later = run(1.0, [2.0, 7.0], "—");
        later.series[0].points[1][0] = 2.5;
        later.claims[0].claim = "b".into();
        let all = joined(&[run(3.0, [1.0, 5.0], "1.50"), later]).expect("two");
        assert_eq!(all.series[0].points, [[1.0, 1.0], [2.0, 5.0]]);
        assert_eq!(all.tables[0].rows[0], ["hg", "1.50"]);
        let figures: Vec<Option<f64>> = all.claims.iter().map(|claim| claim.measured).collect();
        assert_eq!(figures, [Some(3.0), Some(1.0)]);
        assert_eq!(joined(&[]), None);
    }
}
