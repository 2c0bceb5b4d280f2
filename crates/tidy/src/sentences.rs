//! The rule on prose: a sentence of a comment or a document has at most 25 words.
//!
//! A quotation counts as one word, and so does a piece of code between backticks. Tables, diagrams
//! and code blocks are free.

use crate::tree::TextFile;

/// Most words of a sentence.
const WORDS_MAX: usize = 25;

/// Documents that are not checked: lists of survivors and their reasons, and what programs write.
const FREE_DOCUMENTS: &[&str] = &["docs/ledgers/", "docs/figures/"];

/// Complaints about the comments of Rust files and the prose of documents.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let paragraphs = if file.is_rust() {
            comments(&file.text)
        } else if file.path.ends_with(".md")
            && !FREE_DOCUMENTS.iter().any(|path| file.path.starts_with(path))
        {
            paragraphs(file.text.lines())
        } else {
            continue;
        };
        for (line, text) in paragraphs {
            for sentence in sentences(&text) {
                let words = sentence.split_whitespace().filter(|word| is_word(word)).count();
                if words > WORDS_MAX {
                    let begin: String = sentence.chars().take(60).collect();
                    found.push(format!(
                        "{}:{line}: a sentence of {words} words, more than {WORDS_MAX}; divide it: {begin}…",
                        file.path
                    ));
                }
            }
        }
    }
    found
}

/// The paragraphs of all comments that fill their lines, each with its first line.
fn comments(text: &str) -> Vec<(usize, String)> {
    let marker = |line: &str| {
        let line = line.trim_start();
        let marker = ["///", "//!", "//"].into_iter().find(|marker| line.starts_with(marker));
        marker.map_or("", |marker| marker).to_owned()
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let kind = marker(lines[at]);
        let end = (at..lines.len()).find(|&next| marker(lines[next]) != kind);
        let end = end.unwrap_or(lines.len());
        if !kind.is_empty() {
            let block = lines[at..end].iter().map(|line| {
                let rest = &line.trim_start()[kind.len()..];
                rest.strip_prefix(' ').unwrap_or(rest)
            });
            found.extend(paragraphs(block).into_iter().map(|(line, text)| (at + line, text)));
        }
        at = end;
    }
    found
}

/// The paragraphs and list items of Markdown, each with its first line, from 1.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (at, line) in lines.enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        is_code ^= is_fence;
        let is_apart = trimmed.is_empty()
            || trimmed.starts_with(['#', '|'])
            || line.starts_with("    ") && !is_open;
        if is_code || is_fence || is_apart {
            is_open = false;
        } else if is_open && !is_item(trimmed) {
            let (_, text) = found.last_mut().expect("an open paragraph");
            text.push(' ');
            text.push_str(trimmed);
        } else {
            found.push((at + 1, trimmed.to_owned()));
            is_open = true;
        }
    }
    found
}

/// Whether a line begins an item of a list.
fn is_item(line: &str) -> bool {
    let mark = line.split_once(' ').map_or(line, |(mark, _)| mark);
    let number = mark.trim_end_matches('.');
    matches!(mark, "-" | "*")
        || number.len() < mark.len() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The sentences of a paragraph, with code and quotations as one word each.
fn sentences(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut chars = plain(text).chars().collect::<Vec<_>>().into_iter().peekable();
    while let Some(char) = chars.next() {
        let sentence = found.last_mut().expect("one at least");
        sentence.push(char);
        let next = chars.peek().copied();
        if char.is_whitespace() && next.is_some_and(|next| ends(sentence, next)) {
            found.push(String::new());
        }
    }
    found
}

/// Whether a sentence ends here, before the character `next`.
fn ends(sentence: &str, next: char) -> bool {
    let before = sentence.trim_end().trim_end_matches(['*', ')', ']']);
    match before.chars().next_back() {
        Some('.' | '!' | '?') => next.is_uppercase() || "`\"([*_".contains(next),
        Some(':') => next.is_uppercase(),
        _ => false,
    }
}

/// A text whose pieces of code, quotations and targets of links are one word each.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (at, part) in text.split('`').enumerate() {
        plain.push_str(if at % 2 == 0 { part } else { "_code_" });
    }
    let mut quoted = String::new();
    for (at, part) in plain.split('"').enumerate() {
        quoted.push_str(if at % 2 == 0 { part } else { "_quotation_" });
    }
    let mut links = quoted.split("](");
    let mut out = links.next().unwrap_or_default().to_owned();
    for link in links {
        out.push(']');
        out.push_str(link.split_once(')').map_or("", |(_, rest)| rest));
    }
    out
}

fn is_word(token: &str) -> bool {
    token.chars().any(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str, text: &str) -> Vec<String> {
        complaints(&[TextFile::sample(path, text)])
    }

    fn sentence(words: usize) -> String {
        vec!["word"; words].join(" ")
    }

    #[test]
    fn a_sentence_of_twenty_six_words_is_found() {
        let (short, long) = (sentence(25), sentence(26));
        assert_eq!(judge("docs/a.md", &format!("{short}. The end.\n\n{short}")), [""; 0]);
        let found = judge("docs/a.md", &format!("First.\n\n{long}. The end."));
        assert!(found[0].starts_with("docs/a.md:3: a sentence of 26 words"), "{found:?}");
        let found =
            judge("crates/a/src/lib.rs", &format!("fn a() {{\n    // Short.\n    // {long}"));
        assert!(found[0].starts_with("crates/a/src/lib.rs:2:"), "{found:?}");
        assert_eq!(judge("crates/a/src/lib.rs", &format!("//! {short}.\n/// {short}")), [""; 0]);
        assert_eq!(judge("docs/ledgers/a.md", &long), [""; 0], "lists");
        assert_eq!(judge("CHANGELOG.md", &long).len(), 1);
    }

    #[test]
    fn lists_tables_and_code_are_apart() {
        let some = sentence(20);
        let list = format!("{some}\n- {some}\n- {some}\n1. {some}\n  {}", sentence(4));
        assert_eq!(judge("docs/a.md", &list), [""; 0]);
        let blocks =
            format!("{some}\n\n```\n{}\n```\n| {} |\n# {some}\n{some}", sentence(30), sentence(30));
        assert_eq!(judge("docs/a.md", &blocks), [""; 0]);
        assert_eq!(judge("docs/a.md", &format!("- {some}\n  {some}")).len(), 1, "one item");
    }

    #[test]
    fn code_and_quotations_are_one_word() {
        let (words, long) = (sentence(22), sentence(9));
        assert_eq!(
            judge("docs/a.md", &format!("{words} `{long}. A` \"{long}\" [a](b c)")),
            [""; 0]
        );
        assert_eq!(judge("docs/a.md", &format!("{words} `{long}` and two more words")).len(), 1);
    }
}
