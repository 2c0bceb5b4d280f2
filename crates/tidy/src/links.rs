//! The rule on links of documents: targets, files and functions that they name exist.

use std::collections::BTreeSet;

use crate::tokens::facts;
use crate::tree::TextFile;

/// Complaints about links in Markdown files, and about names of files in those of the root.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let known = Known::of(files);
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&file.text) {
            if let Some(complaint) = known.judge_link(file, &target) {
                found.push(format!("{}:{line}: {complaint}", file.path));
            }
        }
        for (line, path, function) in waypoints(&file.text) {
            if !known.has_function(&path, &function) {
                found.push(format!("{}:{line}: {path} has no function {function}", file.path));
            }
        }
        if !file.path.contains('/') {
            for (line, name) in named_files(&file.text) {
                if !known.exists(&name) {
                    found.push(format!("{}:{line}: names {name}, which does not exist", file.path));
                }
            }
        }
    }
    found
}

struct Known<'a> {
    files: &'a [TextFile],
    paths: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(files: &'a [TextFile]) -> Self {
        let mut paths = BTreeSet::new();
        for file in files {
            paths.insert(file.path.as_str());
            let ends = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
            paths.extend(ends);
        }
        Self { files, paths }
    }

    fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path.trim_end_matches('/'))
    }

    fn has_function(&self, path: &str, function: &str) -> bool {
        let file = self.files.iter().find(|file| file.path == path);
        let facts = file.and_then(|file| facts(&file.text).ok());
        let idents = facts.map_or_else(Vec::new, |facts| facts.idents);
        idents.windows(2).any(|pair| pair[0].0 == "fn" && pair[1].0 == function)
    }

    fn judge_link(&self, from: &TextFile, target: &str) -> Option<String> {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
        let path = if path.is_empty() { from.path.clone() } else { join(&from.path, path)? };
        if !self.exists(&path) {
            return Some(format!("the link {target} leads to {path}, which does not exist"));
        }
        let anchor = anchor?;
        let file = self.files.iter().find(|file| file.path == path)?;
        (path.ends_with(".md") && !anchors(&file.text).contains(anchor))
            .then(|| format!("the link {target} leads to no heading of {path}"))
    }
}

/// `path` relative to the directory of `from`. `None` if it leaves the repository.
fn join(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Lines of prose, numbered from 1, without code between fences.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((at + 1, line))
    })
}

/// Targets of `[text](target)` with their line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (at, opening) in line.match_indices("](") {
            let rest = &line[at + opening.len()..];
            if let Some(end) = rest.find(')') {
                let target = rest[..end].split_whitespace().next().unwrap_or_default();
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// Files of this repository that the prose names between backticks.
fn named_files(text: &str) -> Vec<(usize, String)> {
    let is_file = |name: &str| {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        plain && (name.ends_with(".md") || name.starts_with("crates/") || name.starts_with("docs/"))
    };
    prose(text)
        .flat_map(|(number, line)| {
            line.split('`').skip(1).step_by(2).map(move |name| (number, name.to_owned()))
        })
        .filter(|(_, name)| is_file(name))
        .collect()
}

/// Functions that the prose names as `file.rs::function`, or as `::function` of the file before.
fn waypoints(text: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut last = String::new();
    for (number, line) in prose(text) {
        for name in line.split('`').skip(1).step_by(2) {
            let Some((path, function)) = name.split_once("::") else { continue };
            let is_name = function.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if path.ends_with(".rs") && is_name {
                path.clone_into(&mut last);
            } else if !path.is_empty() || !is_name || last.is_empty() {
                continue;
            }
            found.push((number, last.clone(), function.to_owned()));
        }
    }
    found
}

/// Anchors of the headings, as the usual renderers form them.
fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str, text: &str) -> Vec<String> {
        complaints(&[
            TextFile::sample("README.md", "# The two commands\n"),
            TextFile::sample("docs/decisions/0001-a.md", "# A: b, `c`\n"),
            TextFile::sample(path, text),
        ])
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[a](../README.md) [b](decisions/) [c](decisions/0001-a.md#a-b-c) \
            [d](https://example.org/x) [e](#here)\n# Here\n```\n[f](nowhere.md)\n```\n";
        assert_eq!(judge("docs/a.md", text), [""; 0]);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let found = judge("docs/a.md", "first\n[a](README.md)");
        assert!(found[0].starts_with("docs/a.md:2: the link README.md leads to docs/README.md"));
    }

    #[test]
    fn a_link_to_no_heading_is_found() {
        assert_eq!(judge("docs/a.md", "[a](../README.md#three)").len(), 1);
        assert_eq!(judge("docs/a.md", "[a](../README.md#the-two-commands)").len(), 0);
        assert_eq!(judge("docs/a.md", "[a](#nowhere)").len(), 1);
    }

    #[test]
    fn a_waypoint_without_its_function_is_found() {
        let judge = |text: &str| {
            let source = TextFile::sample("crates/a/src/lib.rs", "fn go() {} trait T { fn on(); }");
            complaints(&[source, TextFile::sample("docs/a.md", text)]).len()
        };
        assert_eq!(judge("`crates/a/src/lib.rs::go` and `::on`, `Config::open`"), 0);
        assert_eq!(judge("`crates/a/src/lib.rs::gone` and `::off`"), 2);
        assert_eq!(judge("`crates/b/src/lib.rs::go`"), 1);
    }

    #[test]
    fn a_document_that_names_what_does_not_exist_is_found() {
        assert_eq!(judge("GUIDE.md", "see `docs/formats.md` and `README.md`").len(), 1);
        assert_eq!(judge("GUIDE.md", "see `crates/store`").len(), 1);
        assert_eq!(judge("GUIDE.md", "see `docs/decisions/` and `cargo test`").len(), 0);
    }
}
