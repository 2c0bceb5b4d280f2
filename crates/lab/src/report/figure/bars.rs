//! Bars in groups: medians, with whiskers from the smallest to the greatest run.

use std::fmt::Write;

use super::axis::{Axis, short};
use super::legend::Legend;
use super::{Frame, LEFT, RIGHT, WIDTH, base_line, look, text, y_grid};
use crate::report::result::{Bar, Figure, PaperPoint, Scale};

/// Draws the bars and returns the figure's height.
pub(super) fn draw(svg: &mut String, figure: &Figure) -> f64 {
    let (mut groups, mut names): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for bar in &figure.bars {
        if !groups.contains(&bar.group.as_str()) {
            groups.push(&bar.group);
        }
        if !names.contains(&bar.name.as_str()) {
            names.push(&bar.name);
        }
    }
    let looks = look::of_all(names.iter().copied());
    let has_paper = !figure.paper.is_empty();
    let legend = Legend::new(names.iter().copied().zip(looks.iter().copied()), has_paper);
    let frame = Frame::below(&legend);
    let ends = |bar: &Bar| [bar.value.low, bar.value.median, bar.value.high];
    let of_paper = figure.paper.iter().map(|point| point.at[1]);
    let values: Vec<f64> = figure.bars.iter().flat_map(ends).chain(of_paper).collect();
    let y = Axis::new(figure.y_scale, &values, frame.base, frame.top, true);
    y_grid(svg, &y, frame, &figure.y_label);

    // Bars begin at zero. Zero need not be the bottom edge, since a loss can be negative.
    let zero = if figure.y_scale == Scale::Linear { y.position(0.0) } else { frame.base };
    let group_width = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let width = (group_width * 0.8 / names.len() as f64).min(64.0);
    for bar in figure.bars.iter().filter(|bar| ends(bar).iter().all(|&value| y.shows(value))) {
        let group = groups.iter().position(|g| *g == bar.group).unwrap_or(0);
        let name = names.iter().position(|n| *n == bar.name).unwrap_or(0);
        let middle = LEFT + (group as f64 + 0.5) * group_width;
        let x = middle + (name as f64 - names.len() as f64 / 2.0) * width;
        one(svg, bar, &y, [x, width, zero], looks[name].colour);
        for point in figure.paper.iter().filter(|point| is_of(point, bar) && y.shows(point.at[1])) {
            looks[name].ring(svg, x + width / 2.0, y.position(point.at[1]), &point.text);
        }
    }
    for (index, group) in groups.iter().enumerate() {
        let x = LEFT + (index as f64 + 0.5) * group_width;
        text(svg, x, frame.base + 17.0, "tick middle", group);
    }
    base_line(svg, zero);
    legend.draw(svg, false);
    frame.height()
}

/// Whether the paper's value belongs to the bar, whose group or name it says.
fn is_of(point: &PaperPoint, bar: &Bar) -> bool {
    point.label == bar.group || point.label == bar.name
}

/// Draws a bar from zero to its median, with its whisker and its number.
fn one(svg: &mut String, bar: &Bar, y: &Axis, [x, width, zero]: [f64; 3], colour: usize) {
    let end = y.position(bar.value.median);
    let (top, height) = (end.min(zero), (end - zero).abs().max(0.5));
    let _ = write!(
        svg,
        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" rx=\"2\" \
         class=\"fill-{colour}\"/>",
        x + 1.5,
        width - 3.0,
    );
    let centre = x + width / 2.0;
    let (low, high) = (y.position(bar.value.low), y.position(bar.value.high));
    if bar.value.runs > 1 {
        let _ = write!(
            svg,
            "<line x1=\"{centre:.1}\" x2=\"{centre:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" \
             class=\"whisker\"/>"
        );
    }
    let is_below_zero = bar.value.median < 0.0;
    let number_y = if is_below_zero { low.max(end) + 12.0 } else { high.min(end) - 4.0 };
    text(svg, centre, number_y, "value middle", &short(bar.value.median));
}
