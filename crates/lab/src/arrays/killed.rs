//! A child process runs a state and is killed in the middle; what it leaves behind must be the
//! load's own state at a tick that is not before the last one that the child called durable.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stillpoint_mem::PageSize;
use stillpoint_state::{Config, Scheme, registry};

use super::check::{failed, open, recovers};
use super::load::Load;
use super::trace::{Trace, TraceLoad};
use super::zipf::ZipfAccesses;
use crate::context::Context;
use crate::error::LabResult;
use crate::process::kill_when;
use crate::result::ExperimentResult;
use crate::sys;

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

/// Kills a child of each scheme once, and notes it in the result.
///
/// # Errors
/// When a child cannot be run, or what it leaves behind is wrong: then nothing is a figure.
pub fn check_schemes(
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
        ticks += check(context, scheme)?;
        context.note(format!("{scheme}: killed with an image under way, and recovered"));
    }
    result.note(format!(
        "{}: killed (kill −9) with an image under way; what came back, {ticks} ticks in all, was \
         compared word by word with the load, and no durable tick was missing.",
        schemes.join(", ")
    ));
    Ok(())
}

/// Ticks that came back.
fn check(context: &Context, scheme: &str) -> LabResult<u64> {
    let dir = context.fresh_dir(&format!("killed-{scheme}"))?;
    let mut command = Command::new(&context.binary);
    command.args(["lab", "child", "arrays", "--scheme", scheme, "--dir"]).arg(&dir);
    let mut durable = 0;
    kill_when(&mut command, Duration::from_millis(7), |text| {
        let (tick, images) = heard(text)?;
        durable = tick;
        Some(images >= IMAGES)
    })?;
    let ticks = registry::run(scheme, Recover { scheme, dir: &dir, durable });
    let ticks = ticks.map_err(|e| failed(scheme, e))??;
    sys::remove_dir_all(&dir)?;
    Ok(ticks)
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

/// What the child does, until it is killed or nobody listens: ticks, and a line every now and then.
///
/// # Errors
/// An unknown scheme, or a disk that refuses.
pub fn child(scheme: &str, dir: &Path, output: &mut dyn Write) -> LabResult<()> {
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
    use crate::error::LabError;
    use crate::process::tests::Lines;

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
