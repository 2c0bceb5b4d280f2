//! The legend: names in words along the top of a figure, in one or more rows.

use std::fmt::Write;

use super::look::{self, Look};
use super::{LEFT, WIDTH, escape};

/// Height of a row.
const ROW: f64 = 15.0;
/// Width of the sample before a name.
const SAMPLE: f64 = 24.0;

/// Entries with their positions.
pub(super) struct Legend<'a> {
    entries: Vec<Entry<'a>>,
    /// Where the ring of the paper's values is explained.
    paper: Option<[f64; 2]>,
    rows: usize,
}

struct Entry<'a> {
    words: &'a str,
    abbreviation: &'a str,
    look: Look,
    x: f64,
    y: f64,
}

impl<'a> Legend<'a> {
    /// Computes the positions of the names, each with its look, and of the sample of the paper's values.
    pub(super) fn new(names: impl Iterator<Item = (&'a str, Look)>, has_paper: bool) -> Legend<'a> {
        let (mut x, mut rows, mut entries) = (LEFT, 1, Vec::new());
        for (name, look) in names {
            let (words, abbreviation) = look::words(name);
            let letters = words.chars().count() + abbreviation.chars().count();
            let width = SAMPLE + 9.0 + 6.3 * letters as f64;
            if x > LEFT && x + width > WIDTH {
                (x, rows) = (LEFT, rows + 1);
            }
            let y = 12.0 + ROW * (rows - 1) as f64;
            entries.push(Entry { words, abbreviation, look, x, y });
            x += width + 12.0;
        }
        let paper = has_paper.then(|| {
            if x + SAMPLE + 80.0 > WIDTH {
                (x, rows) = (LEFT, rows + 1);
            }
            [x, 12.0 + ROW * (rows - 1) as f64]
        });
        Legend { entries, paper, rows }
    }

    /// Height of the legend beyond its first row.
    pub(super) fn extra_height(&self) -> f64 {
        ROW * (self.rows - 1) as f64
    }

    /// Draws the legend with samples of lines and markers, or of bars.
    pub(super) fn draw(&self, svg: &mut String, is_line: bool) {
        for Entry { words, abbreviation, look, x, y } in &self.entries {
            if is_line {
                look.line(svg, &format!("M{x:.1} {y}L{:.1} {y}", x + SAMPLE), "");
                look.mark(svg, x + SAMPLE / 2.0, *y);
            } else {
                let (left, top, colour) = (x + SAMPLE - 12.0, y - 4.0, look.colour);
                let _ = write!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top}\" width=\"12\" height=\"8\" rx=\"2\" \
                     class=\"fill-{colour}\"/>"
                );
            }
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"legend\">{}",
                x + SAMPLE + 5.0,
                y + 4.0,
                escape(words)
            );
            if !abbreviation.is_empty() {
                let _ = write!(svg, " <tspan class=\"short\">{}</tspan>", escape(abbreviation));
            }
            svg.push_str("</text>");
        }
        if let Some([x, y]) = self.paper {
            let _ = write!(
                svg,
                "<path d=\"M{:.1} {y:.1}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z\" class=\"ring\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" class=\"legend\">the paper</text>",
                x + SAMPLE - 14.0,
                x + SAMPLE + 5.0,
                y + 4.0
            );
        }
    }
}
