//! The rule on retired words of docs/glossary.md: identifiers and headings must not hold them.

use crate::tokens::facts;
use crate::tree::TextFile;

/// A retired word, in lower case with `_` between its parts, and the term that replaces it.
pub const RETIRED: &[(&str, &str)] = &[
    ("hand_out", "save_before_image"),
    ("hands_out", "saves_before_image"),
    ("handed_out", "saved"),
    ("glance", "read_optimistic"),
    ("uneven", "asymmetric"),
    ("grace_token", "grace_period"),
    ("attic", "departed_caches"),
    ("orphans", "unreclaimed"),
    ("by_hand", "manual"),
];

/// Names that a type must not have as a whole: each once named several types that had nothing in common.
pub const RETIRED_TYPES: &[&str] =
    &["Gate", "Hand", "Held", "Place", "Seen", "Turn", "Walk", "Window"];

/// Complaints about retired words in identifiers of Rust files and in headings of documents, and
/// about retired names of types.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.path.ends_with("tidy/src/glossary.rs")) {
        let words: Vec<(String, usize)> = if file.is_rust() {
            facts(&file.text).map_or_else(|_| Vec::new(), |facts| facts.idents)
        } else if file.path.ends_with(".md") && file.path != "CHANGELOG.md" {
            headings(&file.text)
        } else {
            continue;
        };
        for pair in words.windows(2) {
            let [(keyword, _), (word, line)] = pair else { continue };
            let is_type = matches!(keyword.as_str(), "struct" | "enum" | "trait" | "type");
            if file.is_rust() && is_type && RETIRED_TYPES.contains(&word.as_str()) {
                found.push(format!("{}:{line}: {word}: name what the type is", file.path));
            }
        }
        for (word, line) in words {
            if let Some((old, new)) = retired(&word) {
                found.push(format!("{}:{line}: {word}: say {new} for {old}", file.path));
            }
        }
    }
    found
}

/// The first retired word that `name` holds as whole parts.
fn retired(name: &str) -> Option<&'static (&'static str, &'static str)> {
    let parts = format!("_{}_", snake_case(name));
    RETIRED.iter().find(|(old, _)| parts.contains(&format!("_{old}_")))
}

/// `SaveBeforeImage` → `save_before_image`.
fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 8);
    let mut before_lower = false;
    for char in name.chars() {
        if char.is_ascii_uppercase() && before_lower {
            out.push('_');
        }
        before_lower = char.is_ascii_lowercase() || char.is_ascii_digit();
        out.push(char.to_ascii_lowercase());
    }
    out
}

/// Each heading as one name, its words joined by `_`.
fn headings(text: &str) -> Vec<(String, usize)> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with('#'));
    lines
        .map(|(at, line)| (line.trim_start_matches('#').trim().replace([' ', '-'], "_"), at + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str, text: &str) -> usize {
        complaints(&[TextFile::sample(path, text)]).len()
    }

    #[test]
    fn a_retired_name_of_a_type_is_found_as_a_whole() {
        assert_eq!(judge("crates/a/src/lib.rs", "struct Place; enum Why { Held }"), 1);
        assert_eq!(judge("docs/a.md", "# Place\n"), 0);
    }

    #[test]
    fn a_retired_word_is_found_in_an_identifier() {
        assert_eq!(judge("crates/a/src/lib.rs", "fn before_hand_out() {}\nlet glance = 1;"), 2);
        assert_eq!(judge("crates/a/src/lib.rs", "struct UnevenFence; fn hand_out_from() {}"), 2);
    }

    #[test]
    fn comments_and_other_words_are_free() {
        assert_eq!(judge("crates/a/src/lib.rs", "// hand_out\nfn handout() { glances() }"), 0);
        assert_eq!(judge("docs/a.md", "text about uneven ground"), 0);
    }

    #[test]
    fn a_retired_word_is_found_in_a_heading() {
        assert_eq!(judge("docs/a.md", "## Uneven fences"), 1);
    }
}
