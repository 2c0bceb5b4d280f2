//! The rule on things that a crate must not know, judged by its identifiers.

use crate::registry::schemes;
use crate::tokens::facts;
use crate::tree::TextFile;

/// Crate directory → paths into `std` that its product code must not use, and why.
pub const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("format", &["std::fs", "std::net", "std::thread"], "bytes know no I/O and no threads"),
    ("sync", &["std::fs", "std::net"], "locks know no data"),
    ("mem", &["std::fs", "std::net"], "memory knows no files"),
    ("node", &["std::fs", "std::net", "std::thread"], "nodes know no files and no threads"),
    ("store", &["std::fs", "std::net"], "files come through stillpoint_io"),
    ("checkpoint", &["std::fs", "std::net"], "files come through stillpoint_io"),
    ("journal", &["std::fs", "std::net"], "files come through stillpoint_io"),
    ("recovery", &["std::fs", "std::net"], "files come through stillpoint_io"),
    ("state", &["std::fs", "std::net"], "files come through stillpoint_io"),
    ("engine", &["std::net"], "sockets belong to the server"),
    ("server", &["std::fs"], "the server knows no files"),
];

/// Crates that may hold the keyword `unsafe`.
pub const UNSAFE_CRATES: &[&str] = &["sync", "mem", "io"];

/// Names of stillpoint_io that the server must not use, since it knows no files.
const FILE_NAMES: &[&str] = &["Disk", "DiskFile", "OpenMode"];

/// Names of schemes that are ordinary words as well.
const ORDINARY: &[&str] = &["none", "fuzzy"];

/// Complaints about product code that breaks the rule.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let algorithms = schemes(files, "crates/checkpoint/src");
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let (Some(dir), Ok(facts)) = (file.crate_dir(), facts(&file.text)) else {
            continue;
        };
        if !UNSAFE_CRATES.contains(&dir) {
            found.extend(facts.unsafe_lines.iter().map(|line| {
                format!("{}:{line}: `unsafe` outside of the crates {UNSAFE_CRATES:?}", file.path)
            }));
        }
        let is_product = |line: usize| {
            !file.is_test()
                && !facts.all_test
                && !facts.test_items.iter().any(|i| i.contains(&line))
        };
        for (_, paths, reason) in FORBIDDEN.iter().filter(|(name, ..)| *name == dir) {
            for (path, line) in &facts.std_paths {
                if paths.contains(&path.as_str()) && is_product(*line) {
                    found.push(format!("{}:{line}: {path}: {reason}", file.path));
                }
            }
        }
        for (ident, line) in facts.idents.iter().filter(|(_, line)| is_product(*line)) {
            let name = ident.to_lowercase();
            if dir == "store"
                && !ORDINARY.contains(&name.as_str())
                && algorithms.contains(name.as_str())
            {
                found.push(format!("{}:{line}: the store names the scheme {ident}", file.path));
            }
            if dir == "server" && FILE_NAMES.contains(&ident.as_str()) {
                found.push(format!("{}:{line}: {ident}: the server knows no files", file.path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str, text: &str) -> Vec<String> {
        let scheme =
            |name: &str| TextFile::sample(&format!("crates/checkpoint/src/schemes/{name}.rs"), "");
        complaints(&[scheme("calc"), scheme("none"), TextFile::sample(path, text)])
    }

    #[test]
    fn unsafe_outside_its_crates_is_found_in_tests_too() {
        let text = "fn a() { unsafe { b() } }";
        assert_eq!(judge("crates/store/src/lib.rs", text).len(), 1);
        assert_eq!(judge("crates/store/tests/a.rs", text).len(), 1);
        assert!(judge("crates/mem/src/lib.rs", text).is_empty());
    }

    #[test]
    fn a_path_that_a_crate_must_not_know_is_found() {
        let text = "use std::{fmt, thread};";
        assert_eq!(judge("crates/format/src/lib.rs", text).len(), 1);
        assert!(judge("crates/format/tests/a.rs", text).is_empty());
        assert!(judge("crates/lab/src/lib.rs", text).is_empty());
        assert_eq!(judge("crates/server/src/lib.rs", "use std::fs::File;").len(), 1);
    }

    #[test]
    fn the_server_takes_clocks_from_io_and_no_files() {
        let text = "use stillpoint_io::{Clock, Disk};";
        assert_eq!(judge("crates/server/src/lib.rs", text).len(), 1);
        assert!(judge("crates/server/tests/a.rs", text).is_empty());
        assert!(judge("crates/engine/src/lib.rs", text).is_empty());
    }

    #[test]
    fn the_store_names_no_scheme() {
        let found = judge("crates/store/src/lib.rs", "// calc in prose\nfn a(p: Calc) {}");
        assert_eq!(found, ["crates/store/src/lib.rs:2: the store names the scheme Calc"]);
        assert!(judge("crates/store/src/lib.rs", "fn a() { None::<u8> }").is_empty());
        assert!(judge("crates/store/src/lib.rs", "#[cfg(test)] mod t { use calc; }").is_empty());
    }
}
