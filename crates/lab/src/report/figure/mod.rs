//! Draws figures as SVG. The lab draws curves and bars only. A page full of figures must stay
//! small, sharp and readable in dark mode.
//!
//! Colours are CSS variables (`--series-1` … `--ink`, `--grid`), which the report's page declares.
//! A standalone file contains their values, for light and dark mode.

pub(crate) mod axis;
mod bars;
mod curves;
mod legend;
pub(crate) mod look;

use std::fmt::Write;

use self::legend::Legend;
use crate::report::result::{Figure, Scale, Series};

/// The surroundings of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Embedding {
    /// A standalone file, with its style inside.
    Standalone,
    /// The report, whose style it uses.
    Page,
}

/// Width of every figure in SVG units.
pub(crate) const WIDTH: f64 = 760.0;
/// Height of a figure whose legend has one row.
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;

/// The colours of a page or a file: light, then dark.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The area that values are drawn in, below the legend.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Upper edge of the area.
    top: f64,
    /// Lower edge of the area.
    base: f64,
}

impl Frame {
    fn below(legend: &Legend<'_>) -> Frame {
        let top = TOP + legend.extra_height();
        Frame { top, base: top + HEIGHT - TOP - BOTTOM }
    }

    /// The height of the whole figure.
    fn height(self) -> f64 {
        self.base + BOTTOM
    }
}

/// Draws one figure from the series of its result.
pub(crate) fn render(figure: &Figure, series: &[Series], embedding: Embedding) -> String {
    let mut body = String::new();
    let height = if figure.bars.is_empty() {
        curves::draw(&mut body, figure, series)
    } else {
        bars::draw(&mut body, figure)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" role=\"img\" \
         viewBox=\"0 0 {WIDTH} {height}\" aria-label=\"{}\">",
        escape(&figure.title)
    );
    if embedding == Embedding::Standalone {
        let _ = write!(svg, "<style>{}</style>", standalone_style());
    }
    svg.push_str(&body);
    svg.push_str("</svg>");
    svg
}

/// The style of a standalone file: the rules in light colours, and again in dark ones. The style
/// holds no CSS variables, since many viewers and converters of SVG do not know them.
fn standalone_style() -> String {
    const DARK: &str = "@media (prefers-color-scheme: dark) {";
    let (light, rest) = STYLE.split_once(DARK).expect("light colours first");
    let (dark, rules) = rest.split_once("} }").expect("dark colours next");
    let rules = format!("{rules}svg {{ background: var(--paper); }}");
    format!("{}\n{DARK}{} }}", with_colours(&rules, light), with_colours(&rules, dark))
}

/// CSS rules with the values of their variables, which `colours` declares.
fn with_colours(rules: &str, colours: &str) -> String {
    let declared = colours.split("--").skip(1).filter_map(|text| text.split_once(": "));
    declared.fold(rules.to_owned(), |rules, (name, value)| {
        let value = value.split(';').next().unwrap_or_default();
        rules.replace(&format!("var(--{name})"), value)
    })
}

/// A sentence about measured values that a logarithmic axis cannot show. `None` if there are none.
pub(crate) fn hidden_values(figure: &Figure, series: &[Series]) -> Option<String> {
    if figure.y_scale == Scale::Linear {
        return None;
    }
    let hidden = |series: &Series| {
        let values = series.points.iter().filter(|point| point[1] <= 0.0);
        let at: Vec<String> = values.map(|point| axis::short(point[0])).collect();
        (!at.is_empty()).then(|| format!("{} at {}", series.label(), at.join(", ")))
    };
    let named = figure.series.iter().filter_map(|name| series.iter().find(|s| &s.name == name));
    let hidden: Vec<String> = named.filter_map(hidden).collect();
    (!hidden.is_empty())
        .then(|| format!("Not drawn, since they are zero or below it: {}.", hidden.join("; ")))
}

/// Escapes text for HTML and SVG.
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

/// Draws a horizontal line with its number, for each tick of the y axis.
fn y_grid(svg: &mut String, axis: &axis::Axis, frame: Frame, label: &str) {
    for tick in axis.ticks() {
        let y = axis.position(tick);
        let right = WIDTH - RIGHT;
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>"
        );
        text(svg, LEFT - 8.0, y + 4.0, "tick end", &axis::short(tick));
    }
    let middle = (frame.top + frame.base) / 2.0;
    let _ = write!(
        svg,
        "<text transform=\"translate(14 {middle}) rotate(-90)\" class=\"label middle\">{}</text>",
        escape(label)
    );
}

/// Draws the line from which bars and curves rise.
fn base_line(svg: &mut String, y: f64) {
    let right = WIDTH - RIGHT;
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"base\"/>"
    );
}

#[cfg(test)]
mod tests;
