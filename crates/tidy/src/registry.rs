//! The rule on registries: one algorithm = one file + one row.
//!
//! A scheme is `schemes/<name>.rs` (or a directory `schemes/<name>/` once it outgrows a file). The
//! row of a scheme stands in a file beside ([`REGISTRIES`] says which). The row names the module
//! once, as `<name>::…`, outside of `use` lines and tests. A scheme may have a second row, for its form
//! of changes.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::TextFile;

/// Source directories of the crates that keep a registry, and the file with the rows.
pub const REGISTRIES: &[(&str, &str)] = &[
    ("crates/checkpoint/src", "registry.rs"),
    ("crates/journal/src", "registry.rs"),
    ("crates/state/src", "schemes/mod.rs"),
];

/// Names of the schemes below `source`, from their files.
pub fn schemes<'a>(files: &'a [TextFile], source: &str) -> BTreeSet<&'a str> {
    let prefix = format!("{source}/schemes/");
    files
        .iter()
        .filter_map(|file| file.path.strip_prefix(&prefix))
        .filter_map(|rest| rest.split('/').next())
        .map(|name| name.trim_end_matches(".rs"))
        .filter(|name| *name != "mod")
        .collect()
}

/// Complaints about the registry in `source`. There are none while the source has no scheme.
pub fn complaints(files: &[TextFile], source: &str, rows: &str) -> Vec<String> {
    let schemes = schemes(files, source);
    if schemes.is_empty() {
        return Vec::new();
    }
    let registry = format!("{source}/{rows}");
    let Some(file) = files.iter().find(|file| file.path == registry) else {
        return vec![format!("{registry} is missing, but {source}/schemes/ has {schemes:?}")];
    };
    let stream: TokenStream = match file.text.parse() {
        Ok(stream) => stream,
        Err(error) => {
            return vec![format!("{registry}: cannot be read as Rust tokens: {error}")];
        }
    };
    let mut mentions = Mentions::default();
    mentions.gather(stream);
    let mut found = Vec::new();
    for scheme in &schemes {
        let rows = mentions.segments.get(*scheme).copied().unwrap_or(0);
        if !(1..=2).contains(&rows) {
            found.push(format!(
                "{registry}: {rows} rows name `{scheme}::…`, and {source}/schemes/{scheme}.rs needs one, or two"
            ));
        }
    }
    for name in &mentions.after_schemes {
        if !schemes.contains(name.as_str()) {
            found.push(format!("{registry}: a row names `schemes::{name}`, which has no file"));
        }
    }
    found
}

#[derive(Default)]
struct Mentions {
    /// Identifier before `::` → how often.
    segments: BTreeMap<String, usize>,
    /// Identifiers behind `schemes::`.
    after_schemes: BTreeSet<String>,
}

impl Mentions {
    fn gather(&mut self, stream: TokenStream) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut skip_to_end_of_item = false;
        for (at, tree) in trees.iter().enumerate() {
            if skip_to_end_of_item {
                skip_to_end_of_item = !ends_item(tree);
                continue;
            }
            match tree {
                TokenTree::Ident(ident) if ident == "use" => skip_to_end_of_item = true,
                TokenTree::Ident(ident) if ident == "mod" => skip_to_end_of_item = true,
                TokenTree::Ident(ident) if is_path(&trees, at) => {
                    *self.segments.entry(ident.to_string()).or_default() += 1;
                    if let (true, Some(TokenTree::Ident(next))) =
                        (ident == "schemes", trees.get(at + 3))
                    {
                        self.after_schemes.insert(next.to_string());
                    }
                }
                TokenTree::Group(group) => self.gather(group.stream()),
                _ => {}
            }
        }
    }
}

fn is_path(trees: &[TokenTree], at: usize) -> bool {
    let colon =
        |at: usize| matches!(trees.get(at), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(at + 1) && colon(at + 2)
}

/// Whether the token ends an item: `;` ends a `use`, and `;` or the braces end a `mod`.
fn ends_item(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Group(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "crates/checkpoint/src";

    fn judge(schemes: &[&str], registry: Option<&str>) -> Vec<String> {
        let mut files: Vec<TextFile> = schemes
            .iter()
            .map(|name| TextFile::sample(&format!("{SOURCE}/schemes/{name}"), ""))
            .collect();
        if let Some(text) = registry {
            files.push(TextFile::sample(&format!("{SOURCE}/registry.rs"), text));
        }
        complaints(&files, SOURCE, "registry.rs")
    }

    const ROWS: &str = "use crate::schemes::{calc, none};\n\
        pub static REGISTRY: &[Row] = &[Row { build: none::new }, Row { build: calc::new }];\n\
        #[cfg(test)] mod tests { fn a() { calc::new(); } }";

    #[test]
    fn one_row_for_each_file_passes() {
        assert_eq!(judge(&["mod.rs", "none.rs", "calc.rs"], Some(ROWS)), [""; 0]);
        assert_eq!(judge(&["none.rs", "calc/mod.rs", "calc/dirty.rs"], Some(ROWS)), [""; 0]);
        assert_eq!(judge(&[], None), [""; 0]);
    }

    #[test]
    fn a_file_without_a_row_is_found() {
        let found = judge(&["none.rs", "calc.rs", "naive.rs"], Some(ROWS));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("0 rows name `naive::…`"));
    }

    #[test]
    fn a_third_row_for_a_file_is_found() {
        let twice = ROWS.replace("none::new", "calc::of_changes");
        assert_eq!(judge(&["calc.rs"], Some(&twice)), [""; 0]);
        let thrice = twice.replace("calc::new }", "calc::new }, Row { build: calc::old }");
        let found = judge(&["calc.rs"], Some(&thrice));
        assert!(found[0].contains("3 rows name `calc::…`"), "{found:?}");
    }

    #[test]
    fn a_row_without_a_file_is_found() {
        let rows = "static R: &[Row] = &[schemes::calc::ROW, schemes::gone::ROW];";
        let found = judge(&["calc.rs"], Some(rows));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`schemes::gone`, which has no file"));
    }

    #[test]
    fn schemes_without_a_registry_are_found() {
        assert!(judge(&["calc.rs"], None)[0].contains("registry.rs is missing"));
    }
}
