//! Looks of schemes: a scheme has the same colour, dash and marker in every figure, and a name in
//! words.

use std::fmt::Write;

use super::escape;

/// Different colours: `--series-1` … `--series-10`.
pub(super) const COLOURS: usize = 10;
/// Number of different markers.
const MARKERS: usize = 8;
/// Dash patterns. The first is a solid line.
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// A colour, a dash and a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// From 1 to [`COLOURS`].
    pub(super) colour: usize,
    /// An index of [`DASHES`].
    dash: usize,
    /// Number of the marker, below [`MARKERS`].
    marker: usize,
}

/// A subject of many figures, with its name in words.
struct Known {
    /// The name in results: the paper's abbreviation.
    name: &'static str,
    words: &'static str,
    look: Look,
}

const fn known(
    name: &'static str,
    words: &'static str,
    (colour, dash, marker): (usize, usize, usize),
) -> Known {
    Known { name, words, look: Look { colour, dash, marker } }
}

/// Schemes, competitors and baselines. No two look alike.
const KNOWN: &[Known] = &[
    known("none", "no checkpoints", (6, 0, 0)),
    known("baseline", "no checkpoints, bare arrays", (10, 2, 1)),
    known("ns", "naive snapshot", (2, 0, 1)),
    known("cou", "copy on update", (5, 1, 2)),
    known("bacou", "copy on update, bit array", (5, 0, 2)),
    known("fork", "fork", (9, 0, 3)),
    known("uffd-wp", "written pages", (9, 2, 2)),
    known("nzz", "zigzag, naive layout", (2, 1, 4)),
    known("izz", "zigzag, interleaved", (7, 1, 5)),
    known("pzz", "zigzag, packed", (1, 1, 6)),
    known("bazz", "zigzag, bit array", (3, 0, 4)),
    known("npp", "ping-pong, naive layout", (7, 1, 7)),
    known("ipp", "ping-pong, interleaved", (4, 0, 0)),
    known("hg", "hourglass", (8, 0, 5)),
    known("hg, copy", "hourglass, keeps a copy", (8, 2, 5)),
    known("hg, merge", "hourglass, merges from disk", (8, 3, 6)),
    known("hg-interleaved", "hourglass, interleaved", (8, 1, 5)),
    known("hg-naive", "hourglass, naive layout", (8, 2, 4)),
    known("pb", "piggyback", (1, 0, 6)),
    known("pb-bits", "piggyback, bit array", (1, 1, 4)),
    known("pb-interleaved", "piggyback, interleaved", (1, 2, 6)),
    known("pb-packed", "piggyback, packed", (1, 3, 6)),
    known("ipp, idle", "ping-pong, never capturing", (10, 2, 0)),
    known("ipp, copy", "ping-pong, keeps a copy", (4, 0, 7)),
    known("ipp, merge", "ping-pong, merges from disk", (7, 0, 3)),
    known("aries", "ARIES: redo log, fuzzy checkpoints", (9, 1, 1)),
    known("naive, paced", "naive snapshot, paced", (5, 1, 0)),
    known("naive, unpaced", "naive snapshot, unpaced", (2, 0, 2)),
    known("calc, paced", "CALC, paced", (8, 1, 3)),
    known("calc, unpaced", "CALC, unpaced", (1, 0, 4)),
    known("calc:partial, paced", "CALC of changes, paced", (4, 1, 3)),
    known("calc:partial, unpaced", "CALC of changes, unpaced", (9, 0, 4)),
    known("zigzag, paced", "zigzag, paced", (3, 1, 4)),
    known("zigzag, unpaced", "zigzag, unpaced", (7, 0, 5)),
    known("naive:partial, paced", "naive snapshot of changes, paced", (2, 1, 1)),
    known("naive:partial, unpaced", "naive snapshot of changes, unpaced", (5, 0, 1)),
    known("cou, paced", "copy on update, paced", (5, 3, 2)),
    known("cou, unpaced", "copy on update, unpaced", (5, 1, 6)),
    known("cou:partial, paced", "copy on update of changes, paced", (6, 1, 2)),
    known("cou:partial, unpaced", "copy on update of changes, unpaced", (6, 0, 2)),
    known("zigzag:partial, paced", "zigzag of changes, paced", (3, 1, 0)),
    known("zigzag:partial, unpaced", "zigzag of changes, unpaced", (7, 0, 0)),
    known("ping-pong, paced", "ping-pong, paced", (4, 1, 5)),
    known("ping-pong, unpaced", "ping-pong, unpaced", (4, 0, 5)),
    known("ping-pong:partial, paced", "ping-pong of changes, paced", (10, 1, 6)),
    known("ping-pong:partial, unpaced", "ping-pong of changes, unpaced", (10, 0, 6)),
    known("hourglass, paced", "hourglass, paced", (8, 1, 6)),
    known("hourglass, unpaced", "hourglass, unpaced", (8, 0, 6)),
    known("piggyback, paced", "piggyback, paced", (1, 1, 7)),
    known("piggyback, unpaced", "piggyback, unpaced", (1, 0, 7)),
    known("calc-stored, paced", "CALC as published, paced", (6, 3, 3)),
    known("calc-stored, unpaced", "CALC as published, unpaced", (6, 2, 3)),
    known("calc-stored:partial, paced", "CALC of changes as published, paced", (10, 3, 4)),
    known("calc-stored:partial, unpaced", "CALC of changes as published, unpaced", (10, 2, 4)),
    known("fork, paced", "fork, paced", (9, 3, 3)),
    known("fork, unpaced", "fork, unpaced", (9, 2, 3)),
    known("fork, 2 MiB", "fork, pages of 2 MiB", (9, 1, 4)),
    known("hourglass", "hourglass", (8, 0, 1)),
    known("piggyback", "piggyback", (1, 0, 5)),
    known("calc", "CALC", (4, 0, 3)),
    known("siren", "SIREN", (3, 2, 2)),
    known("siren-semi-fuzzy", "SIREN, semi-fuzzy", (3, 3, 6)),
    known("fuzzy, undo/redo", "fuzzy, undo/redo log", (3, 1, 3)),
    known("copy-on-update of pages", "copy-on-update of pages", (5, 2, 2)),
    known("stillpoint", "Stillpoint", (1, 0, 0)),
    known("redis", "Redis", (2, 0, 3)),
    known("stillpoint, relaxed log", "Stillpoint, relaxed log", (8, 1, 0)),
    known("stillpoint, strict", "Stillpoint, strict", (4, 1, 0)),
    known("redis, fsync always", "Redis, fsync always", (9, 1, 3)),
];

fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|it| it.name == name)
}

/// The name in words, followed by the abbreviation if that adds information.
pub(crate) fn words(name: &str) -> (&str, &str) {
    match find(name) {
        Some(it) if says_the_same(it.words, name) => (it.words, ""),
        Some(it) => (it.words, it.name),
        None => (name, ""),
    }
}

/// Whether the words begin with the abbreviation, which then adds no information.
fn says_the_same(words: &str, name: &str) -> bool {
    let first = |text: &str| text.split([' ', ',', ':']).next().unwrap_or("").to_lowercase();
    first(words) == first(name)
}

/// The looks of the names of one figure. Known names have their fixed looks. Others take free
/// colours and markers.
pub(super) fn of_all<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Look> {
    let found: Vec<Option<Look>> = names.map(|name| find(name).map(|it| it.look)).collect();
    let taken = |colour: usize| found.iter().flatten().any(|look| look.colour == colour);
    let free: Vec<usize> = (1..=COLOURS).filter(|&colour| !taken(colour)).collect();
    let mut others = 0;
    let mut look = |found: Option<Look>| {
        found.unwrap_or_else(|| {
            let number = others;
            others += 1;
            let colours = if free.is_empty() { COLOURS } else { free.len() };
            let round = number / colours;
            let colour = free.get(number % colours).copied().unwrap_or(number % COLOURS + 1);
            Look { colour, dash: round % DASHES.len(), marker: (number + round) % MARKERS }
        })
    };
    found.iter().copied().map(&mut look).collect()
}

impl Look {
    /// Draws a line, whose name appears under the mouse pointer.
    pub(super) fn line(self, svg: &mut String, line: &str, name: &str) {
        let colour = self.colour;
        let _ = write!(svg, "<path d=\"{line}\" class=\"line-{colour}\"");
        if !DASHES[self.dash].is_empty() {
            let _ = write!(svg, " stroke-dasharray=\"{}\"", DASHES[self.dash]);
        }
        let _ = write!(svg, "><title>{}</title></path>", escape(name));
    }

    /// Draws a ring around a value of the paper.
    pub(super) fn ring(self, svg: &mut String, x: f64, y: f64, text: &str) {
        let _ = write!(
            svg,
            "<path d=\"M{:.1} {y:.1}a7 7 0 1 0 14 0a7 7 0 1 0 -14 0Z\" class=\"ring line-{}\"><title>paper: {}</title></path>",
            x - 7.0,
            self.colour,
            escape(text)
        );
    }

    /// Draws the marker around a point.
    pub(super) fn mark(self, svg: &mut String, x: f64, y: f64) {
        let shape: &[[f64; 2]] = match self.marker {
            0 => &[],
            1 => &[[-3.0, -3.0], [3.0, -3.0], [3.0, 3.0], [-3.0, 3.0]],
            2 => &[[0.0, -4.0], [3.6, 2.8], [-3.6, 2.8]],
            3 => &[[0.0, -4.2], [4.2, 0.0], [0.0, 4.2], [-4.2, 0.0]],
            4 => &[[0.0, 4.0], [3.6, -2.8], [-3.6, -2.8]],
            5 => &[[-4.0, 0.0], [2.8, -3.6], [2.8, 3.6]],
            6 => &[[4.0, 0.0], [-2.8, -3.6], [-2.8, 3.6]],
            _ => &[[-3.6, -3.6], [3.6, 3.6], [0.0, 0.0], [-3.6, 3.6], [3.6, -3.6], [0.0, 0.0]],
        };
        let mut line = String::new();
        if shape.is_empty() {
            let _ = write!(line, "M{:.1} {y:.1}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0", x - 3.2);
        }
        for (number, [dx, dy]) in shape.iter().enumerate() {
            let step = if number == 0 { 'M' } else { 'L' };
            let _ = write!(line, "{step}{:.1} {:.1}", x + dx, y + dy);
        }
        let _ = write!(svg, "<path d=\"{line}Z\" class=\"mark line-{}\"/>", self.colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::records::{ALL_ROWS, ROWS, Row};
    use std::collections::BTreeSet;

    #[test]
    fn no_two_known_names_look_alike() {
        for (number, one) in KNOWN.iter().enumerate() {
            assert!(one.look.colour <= COLOURS && one.look.marker < MARKERS, "{}", one.name);
            for other in &KNOWN[..number] {
                assert!(one.name != other.name && one.look != other.look, "{}", one.name);
            }
        }
    }

    #[test]
    fn every_scheme_has_its_look() {
        let of_states = stillpoint_state::registry::REGISTRY.names();
        let of_records = ALL_ROWS.iter().map(|row| row.name);
        for name in of_states.chain(of_records) {
            assert!(find(name).is_some(), "{name} has no colour and marker of its own");
        }
        // Bars have a colour and nothing else.
        let colour = |row: &Row| find(row.name).map(|it| it.look.colour);
        let colours: BTreeSet<Option<usize>> = ROWS.iter().map(colour).collect();
        assert_eq!(colours.len(), ROWS.len(), "rows of one figure have colours of their own");
    }

    #[test]
    fn unknown_names_take_what_is_free() {
        let names = ["x", "pb", "y"];
        let looks = of_all(names.into_iter());
        assert_eq!(looks[1], of_all(["pb"].into_iter())[0], "a scheme looks the same everywhere");
        assert!(looks[0] != looks[2] && looks[0].colour != 1 && looks[2].colour != 1);
        let many: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let looks = of_all(many.iter().map(String::as_str));
        for (number, look) in looks.iter().enumerate() {
            assert!(!looks[..number].contains(look), "{number}: {look:?}");
        }
    }

    #[test]
    fn names_are_told_in_words() {
        assert_eq!(words("ipp"), ("ping-pong, interleaved", "ipp"));
        assert_eq!((words("redis"), words("fork")), (("Redis", ""), ("fork", "")));
        assert_eq!(words("naive, paced"), ("naive snapshot, paced", ""));
        assert_eq!(words("r = 1"), ("r = 1", ""));
    }
}
