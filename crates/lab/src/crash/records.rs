//! The crash check of an engine of records. A child process loads records, runs transactions and
//! takes checkpoints. The lab kills the child in the middle and recovers its data here. The
//! engine's promise must allow the recovered state.
//!
//! With a journal that keeps no commits the engine promises the last complete checkpoint. With
//! `redo` in relaxed durability the engine also promises every commit that is older than a second.
//! The check reads every record, asks that every transaction is whole, and that no promised commit
//! is missing.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::crash::{Killable, kill_and_check, words};
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::adapter::{Checkpointed, LabEngine, OpenEngine, Recovered, Setup};
use crate::subjects::records::{Row, records_commits, setup};
use crate::sys;
use crate::workloads::calc::{Change, KEYS_PER_TRANSACTION, Transactions};

/// Checkpoints that the child publishes before it is killed.
const CHECKPOINTS: usize = 2;

/// Age up to which a crash may lose a commit with the redo journal. The age is the second of
/// relaxed durability, plus the delay of the child's report.
const RELAXED_NS: u64 = 1_300_000_000;

/// Checks each row once and notes the outcome in the result. Returns what each start has recovered, row
/// by row; nothing if this program has no children.
///
/// # Errors
/// When a recovered state is wrong. Then no figure of the row counts.
pub(crate) fn check_rows(
    bench: &Harness<'_>,
    rows: &[Row],
    journal: &str,
    records: u64,
    result: &mut ExperimentResult,
) -> LabResult<Vec<Recovered>> {
    if !bench.children {
        result.note("Recovery was not checked in this run.");
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for &row in rows {
        let subject = Records { open: bench.open, row, journal, records };
        let (updates, recovered) = kill_and_check(bench.context, &subject)?;
        all.push(recovered);
        let note = format!(
            "{}, journal {journal}: killed with a checkpoint under way, recovered {records} \
             records with {updates} updates: all sound, no transaction in part, nothing missing \
             that was promised.",
            row.scheme
        );
        bench.context.note(&note);
        result.note(note);
    }
    Ok(all)
}

/// The child's reports so far.
#[derive(Default)]
pub(crate) struct Reported {
    published: usize,
    /// Updates that the last published checkpoint must hold.
    in_checkpoint: u64,
    /// Number of committed updates at each report, with the time of the report.
    committed: Vec<(u64, u64)>,
    /// Updates that must be there after the kill.
    pub(super) promised: u64,
}

impl Reported {
    /// Reads a line of the child. `None` for an unknown line.
    pub(super) fn line(&mut self, text: &str) -> Option<()> {
        let number = |text: &str| text.parse::<u64>().ok();
        if let Some(updates) = text.strip_prefix("published ") {
            self.in_checkpoint = number(updates)?;
            self.published += 1;
        } else if let Some(updates) = text.strip_prefix("committed ") {
            self.committed.push((sys::now_ns(), number(updates)?));
        }
        Some(())
    }

    /// Whether the lab may kill the child: right after the child has begun another checkpoint.
    pub(super) fn enough(&self, journal: &str) -> bool {
        let first = self.committed.first().map_or(u64::MAX, |c| c.0);
        let long = sys::now_ns().saturating_sub(first) > 2 * RELAXED_NS;
        self.published >= CHECKPOINTS && (long || !records_commits(journal))
    }

    /// The last reported number of commits.
    pub(super) fn last(&self) -> u64 {
        self.committed.last().map_or(0, |c| c.1)
    }

    /// Updates that must be there after a crash now.
    pub(super) fn promised(&self, journal: &str) -> u64 {
        let old = sys::now_ns().saturating_sub(RELAXED_NS);
        let is_kept = records_commits(journal);
        let relaxed = self.committed.iter().filter(|c| is_kept && c.0 <= old);
        relaxed.map(|c| c.1).max().unwrap_or(0).max(self.in_checkpoint)
    }
}

/// An engine of records, by its row and journal.
struct Records<'a> {
    open: &'a OpenEngine,
    row: Row,
    journal: &'a str,
    records: u64,
}

impl Killable for Records<'_> {
    type Reported = Reported;
    /// Updates in the recovered state, and what the start did.
    type Recovered = (u64, Recovered);

    fn name(&self) -> String {
        format!("{}-{}", self.row.scheme, self.journal)
    }

    fn arguments(&self) -> Vec<String> {
        let records = self.records.to_string();
        words([
            "crash",
            "--scheme",
            self.row.scheme,
            "--journal",
            self.journal,
            "--records",
            &records,
        ])
    }

    fn hear(&self, heard: &mut Reported, line: &str) -> Option<bool> {
        heard.line(line)?;
        let is_enough = line == "begun" && heard.enough(self.journal);
        if is_enough {
            heard.promised = heard.promised(self.journal);
        }
        Some(is_enough)
    }

    fn linger(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn recover(&self, heard: &Reported, dir: &Path) -> LabResult<(u64, Recovered)> {
        let setup = setup(self.row, self.records, self.journal, dir.to_owned());
        let engine = (self.open)(&setup)?;
        let recovered = engine.status().recovered;
        let check = engine.check(Change::Counter)?;
        let wrong = |reason| LabError::Engine { engine: self.row.scheme.into(), reason };
        check.finish(self.records, heard.promised, u64::MAX).map_err(wrong)?;
        Ok((check.updates, recovered))
    }
}

/// The child's work until it is killed. The child prints `begun` when a checkpoint begins, and
/// `published N` when the checkpoint is published. N counts the updates that committed before that
/// checkpoint began. In between the child prints `committed N`.
///
/// # Errors
/// When the engine refuses.
pub(crate) fn child(
    open: &OpenEngine,
    setup: &Setup,
    output: &mut (dyn Write + Send),
) -> LabResult<()> {
    let (engine, records) = (open(setup)?, setup.records);
    engine.load(records)?;
    let (engine, stop, committed) = (&*engine, AtomicBool::new(false), AtomicU64::new(0));
    let (stop, committed) = (&stop, &committed);
    let mut jobs: Vec<Box<dyn FnOnce() -> LabResult<()> + Send + '_>> = Vec::new();
    for number in 0..2 {
        jobs.push(Box::new(move || {
            let worked = work(engine, records, number, stop, committed);
            stop.store(true, Ordering::Release);
            worked
        }));
    }
    jobs.push(Box::new(move || {
        let ended = checkpoints(engine, stop, committed, output);
        stop.store(true, Ordering::Release);
        ended
    }));
    let done = stillpoint_io::in_parallel("crash", jobs);
    done.map_err(|e| LabError::process("crash child", e))?.into_iter().collect()
}

fn work(
    engine: &dyn LabEngine,
    records: u64,
    number: usize,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> LabResult<()> {
    let mut session = engine.session()?;
    let mut transactions = Transactions::new(records, 7, number);
    // Acquire pairs with the Release of the thread that ends the run.
    while !stop.load(Ordering::Acquire) {
        let batch = [transactions.draw(), transactions.draw()];
        session.run(&batch, Change::Counter)?;
        // AcqRel pairs with the Acquire of the thread that begins checkpoints: every counted update
        // has committed.
        committed.fetch_add((batch.len() * KEYS_PER_TRANSACTION) as u64, Ordering::AcqRel);
    }
    Ok(())
}

/// Takes checkpoints one after the other, and prints the number of commits every 5 ms.
///
/// # Errors
/// When a checkpoint fails, or the output is closed.
pub(super) fn checkpoints(
    engine: &dyn Checkpointed,
    stop: &AtomicBool,
    committed: &AtomicU64,
    output: &mut (dyn Write + Send),
) -> LabResult<()> {
    let mut say = |text: String| {
        let written = writeln!(output, "{text}").and_then(|()| output.flush());
        written.map_err(|e| LabError::process("crash child", e))
    };
    while !stop.load(Ordering::Acquire) {
        let before = engine.status().checkpoints;
        let updates = committed.load(Ordering::Acquire);
        engine.start_checkpoint()?;
        say("begun".into())?;
        loop {
            say(format!("committed {}", committed.load(Ordering::Acquire)))?;
            let status = engine.status();
            if let Some(reason) = status.failed {
                return Err(LabError::Engine { engine: "checkpoint".into(), reason });
            }
            if status.checkpoints > before {
                break;
            }
            sys::sleep(Duration::from_millis(5));
        }
        say(format!("published {updates}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::tests::Lines;
    use crate::drivers::transactions::tests::Toy;
    use crate::subjects::records::{CALC_UNPACED, row};

    #[test]
    fn the_child_says_what_must_be_there() {
        let mut said = Lines::before_closing(40);
        let setup = setup(row(CALC_UNPACED), 1_000, "none", "unused".into());
        assert!(child(&Toy::open, &setup, &mut said).is_err(), "a closed pipe ends it");
        let text = said.text();
        let (mut heard, mut begun) = (Reported::default(), 0);
        for line in text.lines() {
            heard.line(line).expect("understood");
            begun += usize::from(line == "begun");
        }
        assert!(begun >= 2 && heard.published >= 1 && !heard.committed.is_empty(), "{text}");
        assert!(heard.in_checkpoint.is_multiple_of(KEYS_PER_TRANSACTION as u64));
        assert!(heard.line("committed many").is_none());
    }

    #[test]
    fn the_promise_depends_on_the_journal() {
        let now_ns = sys::now_ns();
        let heard = Reported {
            published: 2,
            in_checkpoint: 10,
            committed: vec![(now_ns - 2 * RELAXED_NS, 50), (now_ns, 90)],
            promised: 0,
        };
        assert_eq!(heard.promised("none"), 10, "without a log only the checkpoint");
        assert_eq!(heard.promised("redo"), 50, "and with one all but the last second");
        assert!(heard.enough("none"));
        assert!(!Reported { published: 1, ..heard }.enough("none"));
    }
}
