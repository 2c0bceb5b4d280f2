//! Figures as SVG, written by hand: curves and bars are all the lab draws, and
//! a page full of them must stay small, sharp and readable in the dark.
//!
//! Colours are CSS variables (`--series-1` … `--ink`, `--grid`). A standalone
//! file brings its own, for light and dark; in the report the page has them.

pub(crate) mod axis;
mod bars;
mod curves;

use std::fmt::Write;

use crate::result::{Figure, Series};

/// Where a figure will stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file of its own, with its style inside.
    Standalone,
    /// In the report, whose style it uses.
    Page,
}

/// Width of every figure in SVG units.
pub(crate) const WIDTH: f64 = 760.0;
/// Height of every figure.
pub(crate) const HEIGHT: f64 = 340.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;
/// Different colours; more series than this begin again.
const COLOURS: usize = 6;

/// The colours of a page or a file: light, then dark.
pub const STYLE: &str = include_str!("style.css");

/// Draws one figure from the series of its result.
pub fn render(figure: &Figure, series: &[Series], place: Place) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" role=\"img\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-label=\"{}\">",
        escape(&figure.title)
    );
    if place == Place::Standalone {
        let _ = write!(svg, "<style>{STYLE} svg {{ background: var(--paper); }}</style>");
    }
    if figure.bars.is_empty() {
        curves::draw(&mut svg, figure, series);
    } else {
        bars::draw(&mut svg, figure);
    }
    svg.push_str("</svg>");
    svg
}

/// Text made safe for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, body: &str) {
    let _ =
        write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(body));
}

/// Names with their colours along the top.
fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let (mut x, mut y) = (LEFT, 12.0);
    for (index, name) in names.enumerate() {
        let colour = index % COLOURS + 1;
        let width = 17.0 + 6.3 * name.chars().count() as f64;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + 15.0);
        }
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"12\" height=\"4\" rx=\"2\" class=\"fill-{colour}\"/>"
        );
        text(svg, x + 17.0, y + 6.0, "legend", name);
        x += width + 20.0;
    }
}

/// A horizontal line with its number, for each tick of the y axis.
fn y_grid(svg: &mut String, axis: &axis::Axis, label: &str) {
    for tick in axis.ticks() {
        let y = axis.place(tick);
        let right = WIDTH - RIGHT;
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>"
        );
        text(svg, LEFT - 8.0, y + 4.0, "tick end", &axis::short(tick));
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        svg,
        "<text transform=\"translate(14 {middle}) rotate(-90)\" class=\"label middle\">{}</text>",
        escape(label)
    );
}

#[cfg(test)]
mod tests;
