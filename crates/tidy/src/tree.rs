//! The files of the repository, as text.

use std::path::{Path, PathBuf};

/// One text file of the repository.
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Path from the repository's root, with `/` between its parts.
    pub path: String,
    /// The whole content.
    pub text: String,
}

impl TextFile {
    /// A file that exists only in a test of a rule.
    pub fn sample(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Whether the whole file is test, benchmark or example code.
    pub fn is_test(&self) -> bool {
        let inside = |dir: &str| self.path.contains(&format!("/{dir}/"));
        inside("tests")
            || inside("benches")
            || inside("examples")
            || inside("fuzz_targets")
            || self.path.ends_with("/tests.rs")
            || self.path.ends_with("_tests.rs")
    }

    /// Whether the file is Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The directory under `crates/` that the file lies in.
    pub fn crate_dir(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

/// The root of the repository that this crate was built in.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors().nth(2).map_or(here.clone(), Path::to_path_buf)
}

/// Every UTF-8 file below `root`, ordered by path. Files that git ignores and build directories
/// (with cargo's `CACHEDIR.TAG`) are left out.
///
/// # Errors
/// When a directory or a file cannot be read.
pub fn text_files(root: &Path) -> std::io::Result<Vec<TextFile>> {
    let ignored = ignored_names(&read(&root.join(".gitignore")).unwrap_or_default());
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        if dir.join("CACHEDIR.TAG").exists() {
            continue;
        }
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = entry.path();
            let Some(relative) = relative_name(root, &path) else {
                continue;
            };
            if relative == ".git" || ignored.contains(&relative) {
                continue;
            }
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && let Ok(text) = read(&path)
            {
                found.push(TextFile { path: relative, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn relative_name(root: &Path, path: &Path) -> Option<String> {
    let parts = path.strip_prefix(root).ok()?;
    let parts: Option<Vec<&str>> = parts.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

/// Names that `.gitignore` ignores at the root (`/target` and the like).
fn ignored_names(gitignore: &str) -> Vec<String> {
    gitignore
        .lines()
        .filter_map(|line| line.trim().strip_prefix('/'))
        .map(|name| name.trim_end_matches('/').to_owned())
        .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the rules look at the sources themselves; no disk of the engine is involved"
)]
fn read(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_the_sources_and_skips_what_is_built() {
        let files = text_files(&root()).expect("the repository is readable");
        let has = |name: &str| files.iter().any(|file| file.path == name);
        assert!(has("Cargo.toml") && has("crates/tidy/src/tree.rs") && has(".gitignore"));
        assert!(!files.iter().any(|file| file.path.starts_with("target/")));
        assert!(!files.iter().any(|file| file.path.starts_with(".git/")));
    }

    #[test]
    fn test_files_are_known_by_their_place() {
        let test = |path: &str| TextFile::sample(path, "").is_test();
        assert!(test("crates/store/tests/mirror.rs"));
        assert!(test("crates/store/src/index/tests.rs"));
        assert!(test("crates/store/benches/index.rs"));
        assert!(!test("crates/store/src/index.rs"));
        assert!(!test("crates/tidy/src/contests.rs"));
    }

    #[test]
    fn only_names_at_the_root_are_ignored() {
        assert_eq!(ignored_names("/target\n/data/\n*.swp\n"), ["target", "data"]);
    }
}
