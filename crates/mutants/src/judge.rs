//! Runs the tests of a mutant's area until one of them notices the mutant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::system::{self, Ended, Limits, Run};

/// The test program of one file of tests: crate directory, target and arguments.
type Program = (&'static str, &'static str, &'static [&'static str]);

/// The longest tests are left out: a fault or a panic at every call, and every flipped bit. So are
/// planted bugs, which prove the tests and not the code.
const CRASH: Program = ("engine", "crash", &["--skip", "faults::a_failing"]);
const CONFORMANCE: Program = (
    "checkpoint",
    "conformance",
    &["--skip", "every_flipped", "--skip", "a_panic_costs", "--skip", "planted::"],
);
const TRANSACTIONS: &[Program] = &[
    ("store", "lib", &[]),
    ("store", "sequential", &[]),
    ("store", "errors", &[]),
    ("store", "reclaim", &[]),
    ("store", "adya", &[]),
    ("store", "retries", &[]),
    ("store", "waiting", &[]),
    ("engine", "sessions", &[]),
    ("engine", "tables", &[]),
    CRASH,
    CONFORMANCE,
    ("store", "concurrent", &[]),
];

/// Area → the test programs that judge its mutants: those of its own crate, then those of the
/// engine.
const PROGRAMS: &[(&str, &[Program])] = &[
    ("commit", TRANSACTIONS),
    ("locking", TRANSACTIONS),
    (
        "journal",
        &[
            ("journal", "lib", &[]),
            ("journal", "redo", &[]),
            ("engine", "surgery", &[]),
            ("engine", "failing", &[]),
            CRASH,
            ("engine", "tables", &[]),
        ],
    ),
    (
        "recovery",
        &[
            ("recovery", "lib", &[]),
            ("engine", "recovered", &[]),
            ("engine", "cancel", &[]),
            ("engine", "surgery", &[]),
            ("engine", "hostile", &[]),
            CRASH,
        ],
    ),
    (
        "checkpoint",
        &[
            ("checkpoint", "lib", &[]),
            CONFORMANCE,
            ("engine", "surgery", &[]),
            ("engine", "failing", &[]),
            CRASH,
            ("engine", "hostile", &[]),
        ],
    ),
];

/// Verdict on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Caught,
    TimedOut,
    Survived,
}

/// The test programs of one build, and their times without a mutant.
pub(crate) struct Judge {
    /// Crate directory and target → the program, and its working directory.
    programs: BTreeMap<(String, String), (PathBuf, PathBuf)>,
    /// Processor time of each program without a mutant, in milliseconds.
    base_ms: BTreeMap<Program, u64>,
    output: PathBuf,
}

impl Judge {
    /// A judge with the test programs that `messages` names: the output of `cargo test --no-run
    /// --message-format=json`. The output of the tests goes to the file `output`.
    pub(crate) fn new(messages: &str, output: &Path) -> Self {
        let artifacts = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
        let programs = artifacts.filter_map(|artifact: Value| {
            let program = PathBuf::from(artifact["executable"].as_str()?);
            let dir = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned();
            let target = match artifact["target"]["kind"][0].as_str()? {
                "lib" => "lib",
                "test" => artifact["target"]["name"].as_str()?,
                _ => return None,
            };
            let name = dir.file_name()?.to_str()?.to_owned();
            Some(((name, target.to_owned()), (program, dir)))
        });
        Self { programs: programs.collect(), base_ms: BTreeMap::new(), output: output.to_owned() }
    }

    /// Judges one mutant of `area`. Returns the verdict, and the program and the test that noticed
    /// the mutant.
    ///
    /// # Errors
    /// A program is missing or cannot be started, or fails without a mutant.
    pub(crate) fn judge(&mut self, area: &str, number: u32) -> Result<(Verdict, String), String> {
        let (_, programs) = PROGRAMS
            .iter()
            .find(|(name, _)| *name == area)
            .ok_or_else(|| format!("no tests are named for the area '{area}'"))?;
        for program in *programs {
            let base_ms = self.base_ms(*program)?;
            let limits = Limits { cpu_ms: 3 * base_ms + 10_000, stall_ms: 20_000 };
            let verdict = match self.run(*program, &[], number, limits)?.0 {
                Ended::Well => continue,
                Ended::Badly => Verdict::Caught,
                Ended::Late => Verdict::TimedOut,
            };
            let failed = failed_test(&system::read(&self.output)?);
            // The tests failed with the mutant, but the failed test passes when it runs alone. So
            // other tests made it fail, its failure proves nothing, and the next program judges.
            if verdict == Verdict::Caught && self.passes_alone(*program, &failed, number, limits)? {
                continue;
            }
            return Ok((verdict, format!("{}:{} {failed}", program.0, program.1)));
        }
        Ok((Verdict::Survived, String::new()))
    }

    fn base_ms(&mut self, program: Program) -> Result<u64, String> {
        if let Some(ms) = self.base_ms.get(&program) {
            return Ok(*ms);
        }
        let limits = Limits { cpu_ms: 1_200_000, stall_ms: 60_000 };
        let (ended, ms) = self.run(program, &[], 0, limits)?;
        let failed = failed_test(&system::read(&self.output)?);
        if ended != Ended::Well && !self.passes_alone(program, &failed, 0, limits)? {
            return Err(format!("{}:{} fails without a mutant: {failed}", program.0, program.1));
        }
        self.base_ms.insert(program, ms);
        Ok(ms)
    }

    /// Whether the test `failed` passes when it runs alone. False if the output named no test.
    fn passes_alone(
        &self,
        program: Program,
        failed: &str,
        number: u32,
        limits: Limits,
    ) -> Result<bool, String> {
        if failed.is_empty() {
            return Ok(false);
        }
        Ok(self.run(program, &[failed, "--exact"], number, limits)?.0 == Ended::Well)
    }

    /// Runs the tests of a program with the mutant `number`, or those that `only` names.
    fn run(
        &self,
        program: Program,
        only: &[&str],
        number: u32,
        limits: Limits,
    ) -> Result<Run, String> {
        let (dir, target, arguments) = program;
        let arguments = [only, arguments].concat();
        let (path, home) = self
            .programs
            .get(&(dir.to_owned(), target.to_owned()))
            .ok_or_else(|| format!("the build made no program {dir}:{target}"))?;
        system::run(path, home, &arguments, number, &self.output, limits)
    }
}

/// The first failed test in the output.
fn failed_test(output: &str) -> String {
    let failed = output.lines().find_map(|line| {
        line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
    });
    failed.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_test_is_named() {
        assert_eq!(failed_test("test a ... ok\ntest b::c ... FAILED\n"), "b::c");
        assert_eq!(failed_test("running 1 test\n"), "");
    }

    #[test]
    fn a_program_without_tests_is_an_error() {
        let mut judge = Judge::new("{}", Path::new("out"));
        assert!(judge.judge("journal", 1).unwrap_err().contains("journal:lib"));
        assert!(judge.judge("elsewhere", 1).unwrap_err().contains("elsewhere"));
    }
}
