//! The context of an experiment's run: folders, lengths, the binary, and progress.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::LabResult;
use crate::measure::conditions::Conditions;
use crate::measure::machine::Machine;
use crate::report::result::ExperimentResult;
use crate::sys;

/// Folders, lengths and binary of an experiment's run.
pub(crate) struct Context {
    /// The folder of results.
    pub(crate) out: PathBuf,
    /// Whether this is a quick run: seconds that only show that everything still works.
    pub(crate) quick: bool,
    /// The `stillpoint` binary.
    pub(crate) binary: PathBuf,
    /// The commit that the binary was built from, or `unknown`.
    pub(crate) commit: String,
    /// Runs of each pair that a bound names, in place of the experiment's own number.
    pub(crate) runs: Option<usize>,
    /// Seconds of each run, in place of the experiment's own number.
    pub(crate) seconds: Option<f64>,
    /// The one part to run, for an experiment with parts. `None` runs all parts.
    pub(crate) part: Option<String>,
    /// The checkpoint schemes to compare, for an experiment over all of them. If empty, the experiment's
    /// own.
    pub(crate) schemes: Vec<String>,
    /// Whether checkpoint schemes stop as they were published: until no transaction is open.
    pub(crate) published_points: bool,
    /// Processes that run the experiment one after the other. With `None` the experiment runs in
    /// this process.
    pub(crate) processes: Option<usize>,
    /// The data directory of engines and servers under test. The lab empties the directory
    /// afterwards.
    pub(crate) work: PathBuf,
    progress: Mutex<Box<dyn Write + Send>>,
    huge_page_bytes_max: AtomicU64,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("out", &self.out).field("quick", &self.quick).finish()
    }
}

impl Context {
    /// A context whose data lie below `out/work` and whose progress goes to `progress`.
    pub(crate) fn new(
        out: &Path,
        quick: bool,
        binary: PathBuf,
        progress: Box<dyn Write + Send>,
    ) -> Self {
        Context {
            out: out.to_owned(),
            quick,
            binary,
            commit: "unknown".into(),
            runs: None,
            seconds: None,
            part: None,
            schemes: Vec::new(),
            published_points: false,
            processes: None,
            work: out.join("work"),
            progress: Mutex::new(progress),
            huge_page_bytes_max: AtomicU64::new(0),
        }
    }

    /// Writes a line of progress for the user.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        let mut progress = self.progress.lock();
        // A closed terminal is no reason to lose the experiment.
        let _ = writeln!(progress, "{text}").and_then(|()| progress.flush());
    }

    /// Notes how many bytes lie on huge pages at this moment. The result holds the maximum.
    pub(crate) fn saw_huge_pages(&self, bytes: u64) {
        // Relaxed: a maximum for the report, which publishes no other memory; its partner is the
        // load in `huge_page_bytes_max`, by the same thread.
        self.huge_page_bytes_max.fetch_max(bytes, Ordering::Relaxed);
    }

    /// The most bytes of all that [`Context::saw_huge_pages`] was told.
    pub(crate) fn huge_page_bytes_max(&self) -> u64 {
        // Relaxed: its partner is `saw_huge_pages`.
        self.huge_page_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether this part is to be run.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.part.as_ref().is_none_or(|only| only == part)
    }

    /// A fresh data directory of this name.
    ///
    /// # Errors
    /// When the directory cannot be emptied or made.
    pub(crate) fn fresh_dir(&self, name: &str) -> LabResult<PathBuf> {
        let dir = self.work.join(name);
        sys::remove_dir_all(&dir)?;
        sys::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// The arguments after `stillpoint` that run this experiment, but for the folder of results and the
    /// number of processes.
    pub(crate) fn arguments(&self, id: &str) -> Vec<String> {
        let mut arguments: Vec<String> = ["lab", "run", id].map(String::from).to_vec();
        if self.quick {
            arguments.push("--quick".into());
        }
        if self.published_points {
            arguments.push("--published-points".into());
        }
        let runs = self.runs.map(|runs| ("--runs", runs.to_string()));
        let seconds = self.seconds.map(|seconds| ("--seconds", seconds.to_string()));
        let part = self.part.clone().map(|part| ("--part", part));
        let schemes = Some(("--schemes", self.schemes.join(",")));
        let schemes = schemes.filter(|_| !self.schemes.is_empty());
        for (name, value) in [runs, seconds, part, schemes].into_iter().flatten() {
            arguments.extend([name.to_owned(), value]);
        }
        arguments
    }

    /// A result with its head filled in: machine, commit, command, time.
    pub(crate) fn result(&self, id: &str, title: &str, paper: &str) -> ExperimentResult {
        let command = format!("stillpoint {}", self.arguments(id).join(" "));
        ExperimentResult {
            id: id.to_owned(),
            title: title.to_owned(),
            paper: paper.to_owned(),
            commit: self.commit.clone(),
            command,
            quick: self.quick,
            skipped: None,
            started_ms: sys::wall_ms(),
            seconds: 0.0,
            machine: Machine::here(),
            conditions: Conditions::default(),
            parameters: Default::default(),
            series: Vec::new(),
            figures: Vec::new(),
            tables: Vec::new(),
            claims: Vec::new(),
            notes: Vec::new(),
            parts: Default::default(),
        }
    }
}
