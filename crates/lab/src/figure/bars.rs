//! Bars in groups: medians, with whiskers from the smallest to the greatest run.

use std::fmt::Write;

use super::axis::{Axis, short};
use super::{BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, legend, text, y_grid};
use crate::result::Figure;

pub(super) fn draw(svg: &mut String, figure: &Figure) {
    let (mut groups, mut names): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for bar in &figure.bars {
        if !groups.contains(&bar.group.as_str()) {
            groups.push(&bar.group);
        }
        if !names.contains(&bar.name.as_str()) {
            names.push(&bar.name);
        }
    }
    let heights: Vec<f64> = figure.bars.iter().map(|bar| bar.value.high).collect();
    let y = Axis::new(figure.y_scale, &heights, HEIGHT - BOTTOM, TOP, true);
    y_grid(svg, &y, &figure.y_label);

    let group_width = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let bar_width = (group_width * 0.8 / names.len() as f64).min(64.0);
    let base = HEIGHT - BOTTOM;
    for bar in &figure.bars {
        let group = groups.iter().position(|g| *g == bar.group).unwrap_or(0);
        let name = names.iter().position(|n| *n == bar.name).unwrap_or(0);
        if !(y.shows(bar.value.median) && y.shows(bar.value.low) && y.shows(bar.value.high)) {
            continue;
        }
        let middle = LEFT + (group as f64 + 0.5) * group_width;
        let x = middle + (name as f64 - names.len() as f64 / 2.0) * bar_width;
        let top = y.place(bar.value.median);
        let _ = write!(
            svg,
            "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" \
             class=\"fill-{}\"/>",
            x + 1.5,
            bar_width - 3.0,
            (base - top).max(0.5),
            name % COLOURS + 1
        );
        let centre = x + bar_width / 2.0;
        let (low, high) = (y.place(bar.value.low), y.place(bar.value.high));
        if bar.value.runs > 1 {
            let _ = write!(
                svg,
                "<line x1=\"{centre:.1}\" x2=\"{centre:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" \
                 class=\"whisker\"/>"
            );
        }
        text(svg, centre, high - 4.0, "value middle", &short(bar.value.median));
    }
    for (index, group) in groups.iter().enumerate() {
        let x = LEFT + (index as f64 + 0.5) * group_width;
        text(svg, x, base + 17.0, "tick middle", group);
    }
    let right = WIDTH - RIGHT;
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{base}\" y2=\"{base}\" class=\"base\"/>"
    );
    legend(svg, names.into_iter());
}
