//! The rule on sizes of files and functions.

use crate::tokens::{Facts, facts};
use crate::tree::TextFile;

/// Most lines of a file outside its tests.
pub const FILE_LINES_MAX: usize = 800;
/// Most lines of a function, from `fn` to the closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Most lines of tests inside a file of product code.
pub const INLINE_TEST_LINES_MAX: usize = 200;

/// A file that may be longer, and why.
pub type LongFile = (&'static str, &'static str);
/// A function that may be longer: file, name, and why.
pub type LongFunction = (&'static str, &'static str, &'static str);

/// Files that may be longer than [`FILE_LINES_MAX`].
pub const LONG_FILES: &[LongFile] = &[];
/// Functions that may be longer than [`FUNCTION_LINES_MAX`].
pub const LONG_FUNCTIONS: &[LongFunction] = &[];

/// Complaints about the sizes in `files`, and about exceptions that are no longer needed.
pub fn complaints(
    files: &[TextFile],
    long_files: &[LongFile],
    long_functions: &[LongFunction],
) -> Vec<String> {
    let mut judge = Judge { long_files, long_functions, needed: Vec::new(), found: Vec::new() };
    for file in files.iter().filter(|file| file.is_rust()) {
        match facts(&file.text) {
            Ok(facts) => {
                judge.file(file, &facts);
                judge.functions(file, &facts);
            }
            Err(error) => judge.found.push(format!("{}: {error}", file.path)),
        }
    }
    judge.stale_exceptions();
    judge.found
}

struct Judge<'a> {
    long_files: &'a [LongFile],
    long_functions: &'a [LongFunction],
    /// Exceptions that were needed, as (path, function or nothing).
    needed: Vec<(&'a str, &'a str)>,
    found: Vec<String>,
}

impl Judge<'_> {
    fn file(&mut self, file: &TextFile, facts: &Facts) {
        if file.is_test() || facts.all_test {
            return;
        }
        let (product, tests) = count(&file.text, facts);
        if product > FILE_LINES_MAX {
            match self.long_files.iter().find(|(path, _)| *path == file.path) {
                Some((path, _)) => self.needed.push((path, "")),
                None => self.found.push(format!(
                    "{}: {product} lines outside its tests, at most {FILE_LINES_MAX}: split it, or give the reason in LONG_FILES of crates/tidy/src/sizes.rs",
                    file.path
                )),
            }
        }
        if tests > INLINE_TEST_LINES_MAX {
            self.found.push(format!(
                "{}: {tests} lines of tests, at most {INLINE_TEST_LINES_MAX}: move them to a file of their own",
                file.path
            ));
        }
    }

    fn functions(&mut self, file: &TextFile, facts: &Facts) {
        for function in &facts.functions {
            let lines = function.lines.clone().count();
            if lines <= FUNCTION_LINES_MAX {
                continue;
            }
            let excepted =
                |(path, name, _): &&LongFunction| *path == file.path && *name == function.name;
            match self.long_functions.iter().find(excepted) {
                Some((path, name, _)) => self.needed.push((path, name)),
                None => self.found.push(format!(
                    "{}:{}: fn {} has {lines} lines, at most {FUNCTION_LINES_MAX}: divide it, or give the reason in LONG_FUNCTIONS of crates/tidy/src/sizes.rs",
                    file.path,
                    function.lines.start(),
                    function.name
                )),
            }
        }
    }

    fn stale_exceptions(&mut self) {
        let files = self.long_files.iter().map(|(path, _)| (*path, ""));
        let functions = self.long_functions.iter().map(|(path, name, _)| (*path, *name));
        for (path, name) in files.chain(functions) {
            if !self.needed.contains(&(path, name)) {
                self.found.push(format!("exception {path} {name}: short enough now, or gone"));
            }
        }
    }
}

/// Lines outside and inside the test items.
fn count(text: &str, facts: &Facts) -> (usize, usize) {
    let tests = facts.test_items.iter().map(|item| item.clone().count()).sum();
    (text.lines().count().saturating_sub(tests), tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str, text: &str) -> Vec<String> {
        complaints(&[TextFile::sample(path, text)], &[], &[])
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_seventy_one_lines_is_found() {
        assert!(judge("crates/a/src/lib.rs", &function(70)).is_empty());
        let found = judge("crates/a/src/lib.rs", &function(71));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/src/lib.rs:1: fn long has 71 lines"));
        assert_eq!(judge("crates/a/tests/b.rs", &function(71)).len(), 1);
    }

    #[test]
    fn a_file_too_long_is_found_and_its_tests_are_not_counted() {
        let code = "const A: u8 = 0;\n".repeat(FILE_LINES_MAX);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert!(judge("crates/a/src/lib.rs", &format!("{code}{tests}")).is_empty());
        let found = judge("crates/a/src/lib.rs", &format!("{code}const B: u8 = 0;\n{tests}"));
        assert!(found[0].contains("801 lines outside its tests"), "{found:?}");
        assert!(judge("crates/a/tests/a.rs", &format!("{code}{code}")).is_empty());
    }

    #[test]
    fn long_tests_leave_the_file() {
        let body = "    const A: u8 = 0;\n".repeat(INLINE_TEST_LINES_MAX);
        let found =
            judge("crates/a/src/lib.rs", &format!("#[cfg(test)]\nmod tests {{\n{body}}}\n"));
        assert!(found[0].contains("203 lines of tests"), "{found:?}");
    }

    #[test]
    fn an_exception_holds_while_it_is_needed() {
        let file = TextFile::sample("crates/a/src/lib.rs", &function(71));
        let exception: LongFunction = ("crates/a/src/lib.rs", "long", "a table in disguise");
        assert!(complaints(std::slice::from_ref(&file), &[], &[exception]).is_empty());
        let short = TextFile::sample("crates/a/src/lib.rs", &function(10));
        let found = complaints(&[short], &[("crates/a/src/lib.rs", "a list")], &[exception]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_file_that_is_not_rust_is_found() {
        assert!(judge("crates/a/src/lib.rs", "fn a() { (").len() == 1);
    }
}
