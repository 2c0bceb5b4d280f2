//! The rule on ordering notes: the partner that a note names exists.
//!
//! A note beside a Relaxed, SeqCst, Acquire or Release names its partner: "partner of the Release
//! in `drop`", "pairs with `publish_mark`". The name is a function, a type or a field of the same
//! crate, or `Type::function` of any crate of ours. Proofs depend on these notes, so an outdated
//! name is a complaint.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::TextFile;

/// Words after which a note names its partner.
const PHRASES: &[&str] = &["partner", "pairs with", "pair with"];

/// Complaints about partners that do not exist.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let mut by_crate: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let sources: Vec<(&TextFile, &str)> = files
        .iter()
        .filter(|file| file.is_rust())
        .filter_map(|file| Some((file, file.crate_dir()?)))
        .filter(|(_, dir)| *dir != "tidy")
        .collect();
    for (file, dir) in &sources {
        by_crate.entry(dir).or_default().extend(file.text.lines().flat_map(defined));
    }
    let mut found = Vec::new();
    for (file, dir) in &sources {
        for (line, name) in named(&file.text) {
            let exists = match name.split_once("::") {
                Some(("Self", function)) => by_crate[dir].contains(function),
                Some((first, second)) => {
                    by_crate.values().any(|known| known.contains(first) && known.contains(second))
                }
                None => by_crate[dir].contains(name.as_str()),
            };
            if !exists {
                found.push(format!(
                    "{}:{line}: the partner `{name}` does not exist; name the function, type or field that this is paired with",
                    file.path
                ));
            }
        }
    }
    found
}

/// The names that a line of code defines: functions, types, constants, and fields.
fn defined(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let words: Vec<&str> =
        code.split(|c: char| !is_name(c)).filter(|word| !word.is_empty()).collect();
    let item = words
        .windows(2)
        .find(|pair| {
            ["fn", "struct", "enum", "trait", "const", "static", "type", "mod"].contains(&pair[0])
        })
        .map(|pair| pair[1]);
    // A field is indented by one level. A parameter on a line of its own is indented deeper.
    let is_field = code.starts_with("    ") && !code.starts_with("     ");
    let trimmed = if is_field { code.trim_start() } else { "" };
    let trimmed = trimmed
        .split_once(") ")
        .map_or(trimmed, |(before, rest)| if before.starts_with("pub(") { rest } else { trimmed });
    let trimmed = trimmed.strip_prefix("pub ").unwrap_or(trimmed);
    let field = trimmed
        .split_once(": ")
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty() && name.chars().all(is_name));
    item.into_iter().chain(field)
}

/// The partners that comments name, with their lines.
fn named(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut note = String::new();
    let mut begins = 0;
    for (at, line) in text.lines().map(Some).chain([None]).enumerate() {
        let comment = line.and_then(|line| {
            let (before, comment) = line.split_once("//")?;
            // A trailing comment is a note of its own.
            Some((before.trim().is_empty(), comment.trim_start_matches(['/', '!'])))
        });
        let goes_on = matches!(comment, Some((true, _)));
        if !goes_on {
            found.extend(partners(&note).map(|name| (begins, name)));
            note.clear();
        }
        if let Some((_, comment)) = comment {
            if note.is_empty() {
                begins = at + 1;
            }
            note.push(' ');
            note.push_str(comment.trim());
        }
    }
    found
}

/// The names in a note, from the first phrase to the end of its sentence.
fn partners(note: &str) -> impl Iterator<Item = String> {
    let from = PHRASES.iter().filter_map(|phrase| note.find(phrase)).min();
    let sentence = from.map_or("", |from| &note[from..]);
    let end = sentence.find([';', ',']).into_iter().chain(sentence.find(". ")).min();
    let sentence = &sentence[..end.unwrap_or(sentence.len())];
    let quoted: Vec<String> = sentence
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.chars().all(|c| is_name(c) || c == ':'))
        .map(ToOwned::to_owned)
        .collect();
    quoted.into_iter()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str =
        "impl ReadSections {\n    pub fn enter(&self) {}\n}\nstruct ReadSections;\n";

    fn judge(text: &str) -> Vec<String> {
        complaints(&[
            TextFile::sample("crates/store/src/a.rs", text),
            TextFile::sample("crates/sync/src/b.rs", OTHER),
        ])
    }

    #[test]
    fn a_partner_in_the_same_crate_is_accepted() {
        let own = "// Release: partner of the Acquire in `take`.\nfn give() {}\nfn take() {}";
        assert_eq!(judge(own), [""; 0]);
        let field = "struct A {\n    pub(crate) word: u8,\n}\n// pairs with every store to `word`";
        assert_eq!(judge(field), [""; 0]);
        let linked = "/// pairs with [`publish`](Self::publish) only\nfn a() {}\nfn publish() {}";
        assert_eq!(judge(linked), [""; 0]);
    }

    #[test]
    fn a_partner_in_another_crate_is_named_with_its_type() {
        assert_eq!(judge("fence(SeqCst); // partner of the one in `ReadSections::enter`"), [""; 0]);
        let found = judge("fence(SeqCst); // partner of the one in `enter`");
        assert!(found[0].starts_with("crates/store/src/a.rs:1:"), "{found:?}");
        assert_eq!(judge("// partner: `ReadSections::leave`").len(), 1);
    }

    #[test]
    fn a_partner_that_was_renamed_is_found() {
        let found = judge("fn a() {}\n// The fence orders this store;\n// its partner: `retire`.");
        assert!(found[0].contains("`retire`") && found[0].contains(":2:"), "{found:?}");
    }

    #[test]
    fn other_names_in_a_note_are_not_partners() {
        assert_eq!(judge("// Relaxed: `gone` is a hint. It has no other side."), [""; 0]);
        assert_eq!(judge("// partner of `take`; `gone` is free then\nfn take() {}"), [""; 0]);
        assert_eq!(judge("// pairs with the Release in `CLIENT PAUSE`"), [""; 0]);
    }
}
