//! The crash check of state arrays. A child process runs a state and is killed in the middle of its
//! work. The recovered state must equal the load's own state at some tick. That tick must not be
//! older than the last tick that the child reported as durable.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use stillpoint_mem::PageSize;
use stillpoint_state::{Config, Scheme, registry};

use crate::context::Context;
use crate::crash::{Killable, kill_and_check, words};
use crate::error::LabResult;
use crate::report::result::ExperimentResult;
use crate::subjects::arrays::{failed, open, recovers};
use crate::sys;
use crate::workloads::load::Load;
use crate::workloads::trace::{Trace, TraceLoad};
use crate::workloads::zipf::ZipfAccesses;

/// Images that are durable before the child is killed.
const IMAGES: u64 = 2;
/// Ticks between two reports of the child.
const REPORT_TICKS: u64 = 10;
/// Length of the child's ticks.
const TICK: Duration = Duration::from_millis(1);

/// 2,500 objects of 8 KB, 500 updates in a tick.
fn load() -> LabResult<TraceLoad<u32>> {
    let zipf = ZipfAccesses::objects(2_500, 100_000, 1);
    Ok(TraceLoad::new(Trace::equal(zipf.make()?, 500), zipf.words()))
}

/// Images as often as possible, and every tick in the log.
fn config() -> Config {
    Config { flush_interval: Duration::from_millis(1), ..Config::default() }
}

/// Kills a child of each scheme once, and notes the outcome in the result.
///
/// # Errors
/// When a child cannot be run, or its recovered state is wrong. Then no figure of the
/// scheme counts.
pub(crate) fn check_schemes(
    context: &Context,
    schemes: &[&str],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if !context.binary.is_file() {
        result.note("Recovery after a kill was not checked in this run.");
        return Ok(());
    }
    let mut ticks = 0;
    for scheme in schemes {
        ticks += kill_and_check(context, &Arrays(scheme))?;
        context.note(format!("{scheme}: killed with an image under way, and recovered"));
    }
    result.note(format!(
        "{}: killed (kill −9) with an image under way; what came back, {ticks} ticks in all, was \
         compared word by word with the load, and no durable tick was missing.",
        schemes.join(", ")
    ));
    Ok(())
}

/// A state of this scheme.
struct Arrays<'a>(&'a str);

impl Killable for Arrays<'_> {
    /// The last tick that the child reported as durable.
    type Reported = u64;
    /// The tick of the recovered state.
    type Recovered = u64;

    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn arguments(&self) -> Vec<String> {
        words(["arrays", "--scheme", self.0])
    }

    fn hear(&self, durable: &mut u64, line: &str) -> Option<bool> {
        let (tick, images) = heard(line)?;
        *durable = tick;
        Some(images >= IMAGES)
    }

    fn linger(&self) -> Duration {
        Duration::from_millis(7)
    }

    fn recover(&self, durable: &u64, dir: &Path) -> LabResult<u64> {
        let recover = Recover { scheme: self.0, dir, durable: *durable };
        registry::run(self.0, recover).map_err(|e| failed(self.0, e))?
    }
}

/// `durable TICK images COUNT`.
fn heard(text: &str) -> Option<(u64, u64)> {
    let (tick, images) = text.strip_prefix("durable ")?.split_once(" images ")?;
    Some((tick.parse().ok()?, images.parse().ok()?))
}

struct Recover<'a> {
    scheme: &'a str,
    dir: &'a Path,
    durable: u64,
}

impl registry::Program for Recover<'_> {
    type Output = LabResult<u64>;

    fn run<S: Scheme>(self) -> LabResult<u64> {
        let Recover { scheme, dir, durable } = self;
        let ticks = durable..=u64::MAX;
        let (pages, config) = (PageSize::default(), config());
        Ok(recovers::<S, _>(&load()?, scheme, dir, pages, &config, ticks)?.tick)
    }
}

/// The child's work: it runs ticks and prints a line every few ticks, until it is killed or its
/// output is closed.
///
/// # Errors
/// An unknown scheme, or a disk that refuses.
pub(crate) fn child(scheme: &str, dir: &Path, output: &mut dyn Write) -> LabResult<()> {
    let run = Run { scheme, dir, output };
    registry::run(scheme, run).map_err(|e| failed(scheme, e))?
}

struct Run<'a> {
    scheme: &'a str,
    dir: &'a Path,
    output: &'a mut dyn Write,
}

impl registry::Program for Run<'_> {
    type Output = LabResult<()>;

    fn run<S: Scheme>(self) -> LabResult<()> {
        let load = load()?;
        let wrong = |e| failed(self.scheme, e);
        let opened = open::<S, _>(&load, self.dir, PageSize::default(), &config());
        let (mut state, arrays, _) = opened.map_err(wrong)?;
        loop {
            let tick = state.ticks() + 1;
            load.step(arrays, &mut state, tick);
            state.tick().map_err(wrong)?;
            if tick.is_multiple_of(REPORT_TICKS) {
                let (durable, images) = (state.durable_tick(), state.progress().snapshot().images);
                let said = writeln!(self.output, "durable {durable} images {images}");
                if said.and_then(|()| self.output.flush()).is_err() {
                    return Ok(());
                }
            }
            sys::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::tests::Lines;
    use crate::error::LabError;

    #[test]
    fn a_child_reports_and_what_it_leaves_is_recovered() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let mut lines = Lines::before_closing(20);
        child("pb", dir.path(), &mut lines)?;
        let text = lines.text();
        let reports: Option<Vec<_>> = text.lines().map(heard).collect();
        let (durable, _) = *reports.as_deref().and_then(<[_]>::last).expect("it reports");
        assert!(durable > 0, "{text}");
        let recover =
            |durable| registry::run("pb", Recover { scheme: "pb", dir: dir.path(), durable });
        assert!(recover(durable).map_err(|e| failed("pb", e))?? >= durable);
        let error = recover(1_000_000).expect("known").expect_err("never ran so far").to_string();
        assert!(error.contains("1000000"), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_report_is_seen() {
        assert_eq!(heard("durable 7 images 2"), Some((7, 2)));
        assert!(heard("durable x images 2").is_none() && heard("thread panicked").is_none());
    }
}
