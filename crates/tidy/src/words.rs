//! The rule on words that no tracked text may hold.

use crate::tree::TextFile;

/// Directories that exist on one machine only. Written in two halves, since this file is
/// tracked text as well.
const MACHINE_PATHS: &[&str] =
    &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Marks of work left for later.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Complaints about the words in `files`.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS.iter().filter(|path| has_path(line, path)) {
                found.push(format!(
                    "{}:{}: {path} is a path of one machine; write a relative one",
                    file.path,
                    at + 1
                ));
            }
            for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
                found.push(format!(
                    "{}:{}: {mark}: do it, or open an issue and say nothing here",
                    file.path,
                    at + 1
                ));
            }
        }
    }
    found
}

/// Whether `path` begins somewhere in `line`, rather than being a part of a longer path.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|char| !char.is_alphanumeric() && !"._-}*".contains(char))
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let is_letter = |char: char| char.is_alphanumeric() || char == '_';
        !line[..at].chars().next_back().is_some_and(is_letter)
            && !line[at + word.len()..].chars().next().is_some_and(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Vec<String> {
        complaints(&[TextFile::sample("docs/a.md", text)])
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        for dir in MACHINE_PATHS {
            assert_eq!(judge(&format!("first\nsee `{dir}a`")).len(), 1, "{dir}");
            assert_eq!(judge(&format!("{dir}a")).len(), 1, "{dir}");
            assert!(judge(&format!("crates{dir}a and ./src{dir}b")).is_empty(), "{dir}");
        }
    }

    #[test]
    fn a_mark_is_found_as_a_word() {
        for mark in MARKS {
            let found = judge(&format!("first\n// {mark}: later"));
            assert!(found[0].starts_with("docs/a.md:2:"), "{found:?}");
            assert!(judge(&format!("MY_{mark} and {mark}X")).is_empty(), "{mark}");
        }
    }
}
