//! The list of mutants that `cargo mutants --list --json` prints.

use serde::Deserialize;

/// A line and a column in a source file. Both begin at 1; columns count characters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Position {
    pub line: usize,
    pub column: usize,
}

/// A range of a source file, without its end.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Span {
    pub start: Position,
    pub end: Position,
}

/// The kind of a mutant's change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Genre {
    /// The body of a function is replaced by a value.
    FnValue,
    /// An operator between two operands is replaced by another.
    BinaryOperator,
    /// A `!` or a `-` is deleted.
    UnaryOperator,
    /// The guard of an arm of a match is replaced by `true` or by `false`.
    MatchArmGuard,
    /// An arm of a match is deleted.
    MatchArm,
    /// A field of a struct expression with a base is deleted.
    StructField,
}

/// One mutant.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// Number of the mutant in the list, from 1. A run with `STILLPOINT_MUTANT` = 0 has no mutant.
    #[serde(skip)]
    pub number: u32,
    pub name: String,
    pub file: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Span,
}

impl Mutant {
    /// The area of the campaign to which the mutant's file belongs.
    pub(crate) fn area(&self) -> &str {
        let file = self.file.strip_prefix("crates/").unwrap_or(&self.file);
        let (dir, path) = file.split_once('/').unwrap_or((file, ""));
        match dir {
            "journal" | "recovery" | "checkpoint" => dir,
            _ if path.contains("locking") => "locking",
            _ => "commit",
        }
    }
}

/// The mutants of a list, numbered.
///
/// # Errors
/// The text is not what `cargo mutants --list --json` prints.
pub(crate) fn parse(json: &str) -> serde_json::Result<Vec<Mutant>> {
    let mut mutants: Vec<Mutant> = serde_json::from_str(json)?;
    for (mutant, number) in mutants.iter_mut().zip(1..) {
        mutant.number = number;
    }
    Ok(mutants)
}

/// Every `shards`-th of `mutants`, beginning with the `shard`-th. The order of the chosen mutants
/// depends only on the shard, so that an interrupted run has judged a random sample.
pub(crate) fn sample(mutants: &[Mutant], shard: u32, shards: u32) -> Vec<&Mutant> {
    let chosen = mutants.iter().zip(0..).filter(|(_, index)| index % shards == shard);
    let mut chosen: Vec<&Mutant> = chosen.map(|(mutant, _)| mutant).collect();
    // A linear congruential generator (Knuth's constants), of which the high bits decide.
    let mut state = u64::from(shard) + 1;
    for end in (2..=chosen.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chosen.swap(end - 1, (state >> 33) as usize % end);
    }
    chosen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A mutant of the text at `start..start + len` in the line `line`.
    pub(crate) fn mutant(genre: Genre, line: usize, columns: (usize, usize), with: &str) -> Mutant {
        let span = Span {
            start: Position { line, column: columns.0 },
            end: Position { line, column: columns.1 },
        };
        let file = "crates/journal/src/log.rs".to_owned();
        let replacement = with.to_owned();
        Mutant { number: 1, name: String::new(), file, genre, replacement, span }
    }

    #[test]
    fn files_belong_to_areas() {
        let mut one = mutant(Genre::FnValue, 1, (1, 2), "()");
        for (file, area) in [
            ("crates/journal/src/reader/walk.rs", "journal"),
            ("crates/store/src/txn/locking/word.rs", "locking"),
            ("crates/store/src/txn/commit_log.rs", "commit"),
        ] {
            one.file = file.to_owned();
            assert_eq!(one.area(), area);
        }
    }

    #[test]
    fn shards_share_the_list_and_keep_their_order() {
        let one = mutant(Genre::FnValue, 1, (1, 2), "()");
        let list: Vec<Mutant> = (1..=25).map(|number| Mutant { number, ..one.clone() }).collect();
        let numbers = |shard| sample(&list, shard, 4).iter().map(|m| m.number).collect::<Vec<_>>();
        let mut all: Vec<u32> = (0..4).flat_map(numbers).collect();
        assert_ne!(numbers(1), [2, 6, 10, 14, 18, 22]);
        assert_eq!(numbers(1), numbers(1));
        all.sort_unstable();
        assert_eq!(all, (1..=25).collect::<Vec<_>>());
    }
}
