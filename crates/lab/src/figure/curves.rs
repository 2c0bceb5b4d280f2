//! Curves over a common x axis, with shaded stretches behind them.

use std::fmt::Write;

use super::axis::{Axis, short};
use super::{BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, escape, legend, text, y_grid};
use crate::result::{Figure, Series};

pub(super) fn draw(svg: &mut String, figure: &Figure, all: &[Series]) {
    let chosen: Vec<&Series> = figure
        .series
        .iter()
        .filter_map(|name| all.iter().find(|series| &series.name == name))
        .collect();
    let values = |axis: usize| -> Vec<f64> {
        chosen.iter().flat_map(|s| s.points.iter().map(move |point| point[axis])).collect()
    };
    let x = Axis::new(figure.x_scale, &values(0), LEFT, WIDTH - RIGHT, false);
    let y = Axis::new(figure.y_scale, &values(1), HEIGHT - BOTTOM, TOP, true);

    shade(svg, figure, &chosen, &x);
    y_grid(svg, &y, &figure.y_label);
    let base = HEIGHT - BOTTOM;
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{base}\" y2=\"{base}\" class=\"base\"/>",
        WIDTH - RIGHT
    );
    for tick in x.ticks() {
        text(svg, x.place(tick), base + 16.0, "tick middle", &short(tick));
    }
    text(svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "label middle", &figure.x_label);
    for (index, series) in chosen.iter().enumerate() {
        path(svg, series, &x, &y, index % COLOURS + 1);
    }
    legend(svg, chosen.iter().map(|series| series.name.as_str()));
}

fn shade(svg: &mut String, figure: &Figure, chosen: &[&Series], x: &Axis) {
    // Where each row of labels is taken up to.
    let mut rows: Vec<f64> = Vec::new();
    for span in &figure.spans {
        let owner = span.series.as_ref().and_then(|n| chosen.iter().position(|s| &s.name == n));
        let colour = owner.map_or(COLOURS, |index| index % COLOURS + 1);
        let (from, to) = (x.place(span.from).max(LEFT), x.place(span.to).min(WIDTH - RIGHT));
        if !(from.is_finite() && to.is_finite() && to > from) {
            continue;
        }
        let label_width = 5.6 * span.label.chars().count() as f64;
        let row = rows.iter().position(|&taken| taken < from).unwrap_or(rows.len());
        rows.resize(rows.len().max(row + 1), 0.0);
        rows[row] = to.max(from + label_width) + 6.0;
        let row_y = TOP + 19.0 * row as f64;
        let width = (to - from).max(1.0);
        let height = HEIGHT - TOP - BOTTOM;
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\" \
             class=\"shade fill-{colour}\"><title>{}</title></rect>\
             <rect x=\"{from:.1}\" y=\"{row_y}\" width=\"{width:.1}\" height=\"3\" \
             class=\"fill-{colour}\"/>",
            escape(&span.label)
        );
        let label_x = (from + 4.0).min(WIDTH - RIGHT - label_width);
        text(svg, label_x, row_y + 14.0, "span", &span.label);
    }
}

fn path(svg: &mut String, series: &Series, x: &Axis, y: &Axis, colour: usize) {
    let places: Vec<[f64; 2]> = series
        .points
        .iter()
        .filter(|point| x.shows(point[0]) && y.shows(point[1]))
        .map(|point| [x.place(point[0]), y.place(point[1])])
        .collect();
    let mut line = String::new();
    for [px, py] in thin(&places) {
        let step = if line.is_empty() { 'M' } else { 'L' };
        let _ = write!(line, "{step}{px:.1} {py:.1}");
    }
    let _ = write!(
        svg,
        "<path d=\"{line}\" class=\"line-{colour}\"><title>{}</title></path>",
        escape(&series.name)
    );
}

/// Keeps the first, the extremes and the last of each half unit of x: no dip
/// or spike is lost, however many points there are.
pub(super) fn thin(places: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut kept: Vec<[f64; 2]> = Vec::new();
    for column in places.chunk_by(|a, b| (a[0] * 2.0).floor() == (b[0] * 2.0).floor()) {
        if column.len() <= 4 {
            kept.extend(column);
            continue;
        }
        let by_y = |a: &&[f64; 2], b: &&[f64; 2]| a[1].total_cmp(&b[1]);
        let index = |place: Option<&[f64; 2]>| {
            place.and_then(|p| column.iter().position(|q| q == p)).unwrap_or(0)
        };
        let mut four = [
            0,
            index(column.iter().min_by(by_y)),
            index(column.iter().max_by(by_y)),
            column.len() - 1,
        ];
        four.sort_unstable();
        kept.extend(four.iter().map(|&i| column[i]));
    }
    kept
}
