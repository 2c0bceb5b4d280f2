//! Curves over a common x axis, with shaded stretches behind them.

use std::fmt::Write;

use super::axis::{Axis, short};
use super::legend::Legend;
use super::look::{self, COLOURS, Look};
use super::{BOTTOM, Frame, LEFT, RIGHT, WIDTH, base_line, escape, text, y_grid};
use crate::report::result::{Figure, Series};

/// Draws the curves and returns the figure's height.
pub(super) fn draw(svg: &mut String, figure: &Figure, all: &[Series]) -> f64 {
    let chosen: Vec<&Series> = figure
        .series
        .iter()
        .filter_map(|name| all.iter().find(|series| &series.name == name))
        .collect();
    let values = |axis: usize| -> Vec<f64> {
        let points = chosen.iter().flat_map(|s| s.points.iter().map(move |point| point[axis]));
        points.chain(figure.paper.iter().map(|point| point.at[axis])).collect()
    };
    let looks = look::of_all(chosen.iter().map(|series| series.label()));
    let names = chosen.iter().map(|series| series.label()).zip(looks.iter().copied());
    let legend = Legend::new(names, !figure.paper.is_empty());
    let frame = Frame::below(&legend);
    let x = Axis::new(figure.x_scale, &values(0), LEFT, WIDTH - RIGHT, false);
    let y = Axis::new(figure.y_scale, &values(1), frame.base, frame.top, true);

    shade(svg, figure, &chosen, &looks, &x, frame);
    y_grid(svg, &y, frame, &figure.y_label);
    base_line(svg, frame.base);
    for tick in x.ticks() {
        text(svg, x.position(tick), frame.base + 16.0, "tick middle", &short(tick));
    }
    let label_y = frame.base + BOTTOM - 10.0;
    text(svg, (LEFT + WIDTH - RIGHT) / 2.0, label_y, "label middle", &figure.x_label);
    for (number, (series, look)) in chosen.iter().zip(&looks).enumerate() {
        path(svg, series, &x, &y, *look, number);
    }
    for (series, look) in chosen.iter().zip(&looks) {
        whiskers(svg, series, &x, &y, *look);
        for point in figure.paper.iter().filter(|point| point.label == series.label()) {
            let [at_x, at_y] = point.at;
            if x.shows(at_x) && y.shows(at_y) {
                look.ring(svg, x.position(at_x), y.position(at_y), &point.text);
            }
        }
    }
    labels(svg, figure, &x, frame);
    legend.draw(svg, true);
    frame.height()
}

/// The position of each span, and the row of its label.
fn spans<'a>(
    figure: &'a Figure,
    x: &Axis,
) -> Vec<(&'a crate::report::result::Span, f64, f64, usize)> {
    // The right end of the last label in each row.
    let (mut rows, mut placed): (Vec<f64>, Vec<_>) = (Vec::new(), Vec::new());
    for span in &figure.spans {
        let (from, to) = (x.position(span.from).max(LEFT), x.position(span.to).min(WIDTH - RIGHT));
        if !(from.is_finite() && to.is_finite() && to > from) {
            continue;
        }
        let row = rows.iter().position(|&taken| taken < from).unwrap_or(rows.len());
        rows.resize(rows.len().max(row + 1), 0.0);
        rows[row] = to.max(from + label_width(span)) + 6.0;
        placed.push((span, from, to, row));
    }
    placed
}

fn label_width(span: &crate::report::result::Span) -> f64 {
    5.6 * span.label.chars().count() as f64
}

fn shade(
    svg: &mut String,
    figure: &Figure,
    chosen: &[&Series],
    looks: &[Look],
    x: &Axis,
    frame: Frame,
) {
    for (span, from, to, row) in spans(figure, x) {
        let owner = span.series.as_ref().and_then(|n| chosen.iter().position(|s| &s.name == n));
        let colour = owner.map_or(COLOURS, |index| looks[index].colour);
        let row_y = frame.top + 19.0 * row as f64;
        let width = (to - from).max(1.0);
        let (top, height) = (frame.top, frame.base - frame.top);
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" \
             class=\"shade fill-{colour}\"><title>{}</title></rect>\
             <rect x=\"{from:.1}\" y=\"{row_y}\" width=\"{width:.1}\" height=\"3\" \
             class=\"fill-{colour}\"/>",
            escape(&span.label)
        );
    }
}

/// The labels of the spans. The labels lie over the curves and have a rim in the colour of the
/// background, so that curves do not cross them out.
fn labels(svg: &mut String, figure: &Figure, x: &Axis, frame: Frame) {
    for (span, from, _, row) in spans(figure, x) {
        let label_x = (from + 4.0).min(WIDTH - RIGHT - label_width(span));
        text(svg, label_x, frame.top + 19.0 * row as f64 + 14.0, "span", &span.label);
    }
}

/// Draws a curve with its markers. The curve has a gap at values that cannot be shown.
fn path(svg: &mut String, series: &Series, x: &Axis, y: &Axis, look: Look, number: usize) {
    let mut line = String::new();
    let mut marked: Vec<[f64; 2]> = Vec::new();
    for run in series.points.split(|point| !(x.shows(point[0]) && y.shows(point[1]))) {
        let places: Vec<[f64; 2]> =
            run.iter().map(|point| [x.position(point[0]), y.position(point[1])]).collect();
        for (index, [px, py]) in thin(&places).into_iter().enumerate() {
            let step = if index == 0 { 'M' } else { 'L' };
            let _ = write!(line, "{step}{px:.1} {py:.1}");
        }
        marked.extend(markers(&places, number));
    }
    look.line(svg, &line, &series.name);
    for [px, py] in marked {
        look.mark(svg, px, py);
    }
}

/// Draws a line from the least to the greatest value at each point.
fn whiskers(svg: &mut String, series: &Series, x: &Axis, y: &Axis, look: Look) {
    for (point, [low, high]) in series.points.iter().zip(&series.spreads) {
        if !(x.shows(point[0]) && y.shows(*low) && y.shows(*high)) || low == high {
            continue;
        }
        let (at, top, base) = (x.position(point[0]), y.position(*high), y.position(*low));
        look.line(svg, &format!("M{at:.1} {top:.1}V{base:.1}"), "least and greatest value");
    }
}

/// The points with a marker. A sparse curve has markers at all points. A dense curve has a marker
/// now and then, and each curve at other places.
fn markers(places: &[[f64; 2]], number: usize) -> Vec<[f64; 2]> {
    /// More points than this are a dense curve.
    const FEW: usize = 24;
    /// Units of x between two markers of a dense curve.
    const APART: f64 = 110.0;
    if places.len() <= FEW {
        return places.to_vec();
    }
    let (mut next, mut kept) = (LEFT + (12.0 + 17.0 * number as f64) % APART, Vec::new());
    for &place in places {
        if place[0] >= next {
            kept.push(place);
            next = place[0] + APART;
        }
    }
    kept
}

/// Keeps the first, the extremes and the last of each half unit of x. So no dip or spike is lost,
/// however many points there are.
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
