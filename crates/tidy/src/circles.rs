//! The rule on circles of imports between the files of a crate: files that import each other,
//! directly or through others. A circle must be read and changed as one file, so the largest one
//! stays small.

use std::collections::{BTreeMap, BTreeSet};

use crate::rooms::product_lines;
use crate::tree::TextFile;

/// Most files in one circle of imports.
const CIRCLE_FILES_MAX: usize = 5;

/// Crate directory → most files in one circle of imports, for crates with a stricter limit or a
/// looser one.
pub const CIRCLES: &[(&str, usize)] = &[("store", 2)];

/// Complaints about circles with more files than the table allows.
pub fn complaints(files: &[TextFile], most: &[(&str, usize)]) -> Vec<String> {
    let mut found = Vec::new();
    let dirs: BTreeSet<&str> = files.iter().filter_map(TextFile::crate_dir).collect();
    for dir in dirs {
        let own = most.iter().find(|(named, _)| *named == dir);
        let most = own.map_or(CIRCLE_FILES_MAX, |(_, most)| *most);
        for circle in circles(files, dir).iter().filter(|circle| circle.len() > most) {
            found.push(format!(
                "crates/{dir}: {} files import each other in a circle, at most {most} may: {}",
                circle.len(),
                circle.join(", ")
            ));
        }
    }
    found
}

/// The circles of a crate, each with the paths of its files below `src`.
fn circles(files: &[TextFile], dir: &str) -> Vec<Vec<String>> {
    let prefix = format!("crates/{dir}/src/");
    let sources: Vec<(&str, &TextFile)> = files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test())
        .filter_map(|file| Some((file.path.strip_prefix(&prefix)?, file)))
        .filter(|(path, _)| !path.ends_with("models.rs") && !path.contains("models/"))
        .collect();
    let modules: BTreeMap<Vec<&str>, usize> =
        sources.iter().enumerate().map(|(at, (path, _))| (module_of(path), at)).collect();
    let count = sources.len();
    let mut knows = vec![vec![false; count]; count];
    for (at, (path, file)) in sources.iter().enumerate() {
        for to in imports(&module_of(path), file, &modules) {
            knows[at][to] |= to != at;
        }
    }
    // The transitive closure adds every file that is reached through others.
    for through in 0..count {
        let reached = knows[through].clone();
        for row in knows.iter_mut().filter(|row| row[through]) {
            row.iter_mut().zip(&reached).for_each(|(known, reached)| *known |= reached);
        }
    }
    let mut found = Vec::new();
    let mut taken = vec![false; count];
    for at in 0..count {
        if knows[at][at] && !taken[at] {
            let circle: Vec<usize> =
                (at..count).filter(|&to| knows[at][to] && knows[to][at]).collect();
            circle.iter().for_each(|&to| taken[to] = true);
            found.push(circle.iter().map(|&to| sources[to].0.to_owned()).collect());
        }
    }
    found
}

/// The path of the module in a file: `[txn, keys]` for `txn/keys.rs`, `[txn]` for `txn/mod.rs`, and `[]`
/// for `lib.rs`.
fn module_of(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.strip_suffix(".rs").unwrap_or(path).split('/').collect();
    if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
        parts.pop();
    }
    parts
}

/// The files that a file names by `crate::…`, by `super::…`, or by `use` of a module of its own.
fn imports(own: &[&str], file: &TextFile, modules: &BTreeMap<Vec<&str>, usize>) -> Vec<usize> {
    let mut found = Vec::new();
    let mut add = |base: &[&str], path: &str| {
        let mut parts = base.to_vec();
        parts.extend(path.split("::").map(|part| part.trim_end_matches(not_a_name)));
        while !parts.is_empty() {
            if let Some(&at) = modules.get(&parts) {
                found.push(at);
                return;
            }
            parts.pop();
        }
    };
    for (_, line) in product_lines(file) {
        for path in line.split("crate::").skip(1) {
            add(&[], until_end_of_path(path));
        }
        if let Some(path) = line.split("super::").nth(1) {
            add(&own[..own.len().saturating_sub(1)], until_end_of_path(path));
        }
        let child = line.trim_start().strip_prefix("use ").map(until_end_of_path);
        if let Some(path) = child {
            let mut module = own.to_vec();
            module.extend(path.split("::").next());
            if modules.contains_key(&module) {
                add(own, path);
            }
        }
    }
    found
}

fn not_a_name(char: char) -> bool {
    !(char.is_alphanumeric() || char == '_')
}

/// The path at the beginning of `text`: names with `::` between them.
fn until_end_of_path(text: &str) -> &str {
    let end = text.find(|char: char| char != ':' && not_a_name(char));
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(most: usize, files: &[(&str, &str)]) -> Vec<String> {
        let sample = |(path, text): &(&str, &str)| {
            TextFile::sample(&format!("crates/house/src/{path}"), text)
        };
        let files: Vec<TextFile> = files.iter().map(sample).collect();
        complaints(&files, &[("house", most)])
    }

    #[test]
    fn a_circle_through_a_third_file_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
            ("a.rs", "use crate::b::B;"),
            ("b/mod.rs", "use inner::I;\nmod inner;"),
            ("b/inner.rs", "fn f() { crate::c::g(); }"),
            ("c.rs", "use crate::{\n    Other,\n};\nuse crate::a::{A, C};"),
            ("d.rs", "use crate::a::A;"),
        ];
        assert_eq!(
            judge(3, &files),
            ["crates/house: 4 files import each other in a circle, at most 3 may: \
              a.rs, b/mod.rs, b/inner.rs, c.rs"]
        );
        assert!(judge(4, &files).is_empty());
    }

    #[test]
    fn tests_and_comments_make_no_circle() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ];
        assert!(judge(1, &files).is_empty());
    }

    #[test]
    fn a_file_that_names_its_parent_and_its_child_is_in_a_circle() {
        let files = [("a/mod.rs", "use b::B;"), ("a/b.rs", "use super::A;")];
        assert_eq!(judge(1, &files).len(), 1);
    }
}
