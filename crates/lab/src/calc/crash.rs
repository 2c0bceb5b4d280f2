//! The crash check: a child process loads, runs transactions and takes
//! checkpoints; it is killed in the middle, its data are recovered here, and
//! the recovered state must be one that the promise allows.
//!
//! With the journal `none` the promise is the last complete checkpoint: every
//! record sound, every transaction whole, nothing missing that had committed
//! when the last published checkpoint began, nothing there that never committed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Bench, Row, setup};
use crate::adapter::{LabEngine, OpenEngine};
use crate::error::{LabError, LabResult};
use crate::random::Choice;
use crate::result::ExperimentResult;
use crate::sys;
use crate::workload::calc::{Change, KEYS_PER_TRANSACTION, Transactions};

/// Checkpoints that the child publishes before it is killed.
const CHECKPOINTS: usize = 2;

/// Checks each row once and notes it in the result.
///
/// # Errors
/// When a recovered state is wrong: then nothing that follows would be a figure.
pub fn check_rows(
    bench: &Bench<'_>,
    rows: &[Row],
    records: u64,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if !bench.children {
        result
            .notes
            .push("Recovery was not checked in this run.".into());
        return Ok(());
    }
    for &row in rows {
        let updates = check(bench, row, records)?;
        let note = format!(
            "{} was killed with a checkpoint under way and recovered {records} records with \
             {updates} updates: all sound, no transaction in part, nothing promised missing.",
            row.scheme
        );
        bench.context.note(&note);
        result.notes.push(note);
    }
    Ok(())
}

fn check(bench: &Bench<'_>, row: Row, records: u64) -> LabResult<u64> {
    let dir = bench.context.fresh_dir(&format!("crash-{}", row.scheme))?;
    let mut command = Command::new(&bench.context.binary);
    command
        .args(["lab", "child", "crash", "--scheme", row.scheme])
        .args(["--records", &records.to_string(), "--dir"])
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let line = format!("{command:?}");
    let failed = |reason: String| LabError::process(&line, reason);
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let said = child
        .stdout
        .take()
        .ok_or_else(|| failed("no output".into()))?;
    let (mut floor, mut published) = (0, 0);
    for text in BufReader::new(said).lines().map_while(Result::ok) {
        if let Some(updates) = text.strip_prefix("published ") {
            floor = updates
                .parse()
                .map_err(|_| failed(format!("said {text:?}")))?;
            published += 1;
        }
        // The line after the last publication says that the next one has begun.
        if published == CHECKPOINTS && text.starts_with("begun") {
            break;
        }
    }
    sys::sleep(Duration::from_millis(20));
    let running = matches!(child.try_wait(), Ok(None));
    let _ = child.kill();
    let _ = child.wait();
    if !running || published < CHECKPOINTS {
        return Err(failed(format!(
            "ended by itself after {published} checkpoints"
        )));
    }
    let engine = (bench.open)(&setup(row, records, "none", dir.clone()))?;
    let check = engine.check(Change::Counter)?;
    let wrong = |reason| LabError::Engine {
        engine: row.scheme.into(),
        reason,
    };
    check.finish(records, floor, u64::MAX).map_err(wrong)?;
    drop(engine);
    sys::remove_dir_all(&dir)?;
    Ok(check.updates)
}

/// What the child does, until it is killed: says `begun` when a checkpoint has
/// begun, and `published N` when it is there, N being the updates that had
/// committed before it began.
///
/// # Errors
/// When the engine refuses.
pub fn child(
    open: &OpenEngine,
    scheme: Row,
    records: u64,
    dir: PathBuf,
    output: &mut (dyn Write + Send),
) -> LabResult<()> {
    let engine = open(&setup(scheme, records, "none", dir))?;
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
    done.map_err(|e| LabError::process("crash child", e))?
        .into_iter()
        .collect()
}

fn work(
    engine: &dyn LabEngine,
    records: u64,
    number: usize,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> LabResult<()> {
    let mut session = engine.session()?;
    let mut transactions = Transactions::new(records, Choice::Uniform, 7, number);
    // Acquire pairs with the Release of whoever ends.
    while !stop.load(Ordering::Acquire) {
        let batch = [transactions.draw(), transactions.draw()];
        session.run(&batch, Change::Counter)?;
        // AcqRel pairs with the Acquire of the thread that begins checkpoints: what
        // it counts has committed.
        committed.fetch_add(
            (batch.len() * KEYS_PER_TRANSACTION) as u64,
            Ordering::AcqRel,
        );
    }
    Ok(())
}

fn checkpoints(
    engine: &dyn LabEngine,
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
            let status = engine.status();
            if let Some(reason) = status.failed {
                return Err(LabError::Engine {
                    engine: "checkpoint".into(),
                    reason,
                });
            }
            if status.checkpoints > before {
                break;
            }
            sys::sleep(Duration::from_millis(1));
        }
        say(format!("published {updates}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calc::CALC_UNPACED;
    use crate::drive::tests::Toy;

    /// Takes three lines, then breaks as a closed pipe would.
    struct ThreeLines(Vec<u8>);

    impl Write for ThreeLines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.iter().filter(|&&b| b == b'\n').count() >= 3 {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_child_says_what_must_be_there() {
        let mut said = ThreeLines(Vec::new());
        let error = child(&Toy::open, CALC_UNPACED, 1_000, "unused".into(), &mut said);
        assert!(error.is_err(), "a closed pipe ends it");
        let text = String::from_utf8(said.0).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "begun");
        let updates: u64 = lines[1]
            .strip_prefix("published ")
            .and_then(|n| n.parse().ok())
            .expect("a number");
        assert!(updates.is_multiple_of(KEYS_PER_TRANSACTION as u64));
        assert_eq!(lines[2], "begun");
    }
}
