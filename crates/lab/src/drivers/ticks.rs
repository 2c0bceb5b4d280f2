//! Runs a load on a state and, tick by tick, on the baseline.
//!
//! In each slot of time the driver runs the tick on both. The state runs first in one slot, the
//! baseline in the next, so that other work of the machine hits both alike. The state's own writer
//! takes images on the real disk. The measured time begins after the images that warm up the files.

use std::path::Path;
use std::time::Duration;

use stillpoint_mem::PageSize;
use stillpoint_state::{Arrays, Config, Content, Every, Merge, Pace, Scheme, State, registry};

use crate::error::LabResult;
use crate::measure::outcome::{Outcome, Tick};
use crate::subjects::arrays::{Raw, failed, open, raw, recovers};
use crate::sys;
use crate::workloads::load::Load;

/// Rule that says when the writer takes images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Images {
    /// At the end of the first measured tick, and then every given number of ticks. If the last
    /// image is not durable yet, the writer waits for it. The ticks are the same for every scheme.
    EveryTicks(u64),
    /// As soon as the last image is durable.
    #[cfg(test)]
    AsOftenAsPossible,
}

/// Plan of a run of a load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drive {
    /// Measured ticks.
    pub(crate) ticks: u64,
    /// Ticks before the measured time, at full speed.
    pub(crate) warm_up_ticks: u64,
    /// Images before the measured time: two, since there are two files.
    pub(crate) warm_up_images: u64,
    /// Length of a tick. The driver sleeps for the rest of a tick. Without a length the driver runs
    /// at full speed.
    pub(crate) tick: Option<Duration>,
    /// Rule that says when the writer takes images.
    pub(crate) images: Images,
    /// Points of consistency after the measured time, which has few of them. Each is at the end of one
    /// tick, once the last image is durable.
    pub(crate) further_boundaries: u64,
    /// How fast the writer writes images.
    pub(crate) pace: Pace,
    /// How the writer makes images of changes full.
    pub(crate) merge: Merge,
    /// True if the state logs ticks and their actions. Otherwise a crash loses the ticks since the last
    /// image.
    pub(crate) logs_actions: bool,
    /// Size of memory pages.
    pub(crate) pages: PageSize,
}

impl Drive {
    /// Ticks of 0.1 s and `images` images, one every 4 s, as in SIGMOD 2011.
    pub(crate) fn paper(images: u64) -> Drive {
        Drive {
            ticks: 40 * images,
            warm_up_ticks: 3,
            warm_up_images: 2,
            tick: Some(Duration::from_millis(100)),
            images: Images::EveryTicks(40),
            further_boundaries: 0,
            pace: Pace::Unpaced,
            merge: Merge::default(),
            logs_actions: false,
            pages: PageSize::Huge,
        }
    }

    fn config(&self) -> Config {
        let every = match self.images {
            Images::EveryTicks(_) => Every::OnRequest,
            #[cfg(test)]
            Images::AsOftenAsPossible => Every::Continuous,
        };
        let (pace, merge, logs_actions) = (self.pace, self.merge, self.logs_actions);
        Config { every, pace, merge, logs_actions, ..Config::default() }
    }
}

/// Runs a load under the scheme of this name. The files are in `dir`, which must be empty, and stay
/// there.
///
/// # Errors
/// An unknown scheme, a disk or memory that refuses, and a scheme that reads, holds or recovers
/// anything but what the baseline does.
pub(crate) fn run<L: Load>(
    load: &L,
    scheme: &str,
    drive: &Drive,
    dir: &Path,
) -> LabResult<Outcome> {
    let program = Program { load, name: scheme, drive, dir };
    registry::run(scheme, program).map_err(|e| failed(scheme, e))?
}

struct Program<'a, L> {
    load: &'a L,
    name: &'a str,
    drive: &'a Drive,
    dir: &'a Path,
}

impl<L: Load> registry::Program for Program<'_, L> {
    type Output = LabResult<Outcome>;

    fn run<S: Scheme>(self) -> LabResult<Outcome> {
        let Program { load, name, drive, dir } = self;
        let mut rig = Rig::<S, L>::new(load, name, drive, dir)?;
        rig.warm_up()?;
        let before = rig.state.progress().snapshot();
        let (ticks, mut image_s) = rig.measure()?;
        rig.settle()?;
        let progress = rig.state.progress().snapshot();
        // The image that was under way at the end.
        if progress.images - before.images > image_s.len() as u64 {
            image_s.push(progress.image_ns as f64 / 1e9);
        }
        let mut outcome = Outcome {
            scheme: name.to_owned(),
            ticks,
            image_s,
            writer_cpu_s: (progress.writer_cpu_ns - before.writer_cpu_ns) as f64 / 1e9,
            state_bytes: rig.state.state_bytes(),
            held_bytes: rig.held_bytes() + progress.copied_bytes,
            huge_page_bytes: rig.huge_page_bytes,
            further: Vec::new(),
            recovery: None,
        };
        outcome.further = rig.further()?;
        let durable_tick = rig.end()?;
        if S::CONTENT != Content::Nothing || drive.logs_actions {
            let (pages, config) = (drive.pages, drive.config());
            let ticks = durable_tick..=durable_tick;
            let recovery = recovers::<S, L>(load, name, dir, pages, &config, ticks)?;
            outcome.recovery = Some(recovery);
        }
        Ok(outcome)
    }
}

/// A state and the baseline, at the same tick.
struct Rig<'a, S: Scheme, L: Load> {
    load: &'a L,
    name: &'a str,
    drive: &'a Drive,
    state: State<S>,
    arrays: L::Arrays,
    raw: Arrays<Raw>,
    raw_arrays: L::Arrays,
    huge_page_bytes: u64,
}

/// Longest wait for an image. After that the driver takes the disk for stuck.
const PATIENCE_NS: u64 = 600_000_000_000;

impl<'a, S: Scheme, L: Load> Rig<'a, S, L> {
    fn new(load: &'a L, name: &'a str, drive: &'a Drive, dir: &Path) -> LabResult<Self> {
        let (raw, raw_arrays) = raw(load, drive.pages)?;
        let opened = open::<S, L>(load, dir, drive.pages, &drive.config());
        let (state, arrays, recovered) = opened.map_err(|e| failed(name, e))?;
        if !recovered.is_new {
            return Err(failed(name, format!("{} holds a state already", dir.display())));
        }
        let huge_page_bytes = crate::measure::process::own_huge_page_bytes();
        Ok(Rig { load, name, drive, state, arrays, raw, raw_arrays, huge_page_bytes })
    }

    /// Runs one tick on both.
    fn tick(&mut self, is_state_first: bool) -> LabResult<Tick> {
        let mut tick = Tick { is_captured: self.is_capturing(), ..Tick::default() };
        let reads = if is_state_first {
            let read = self.state_tick(&mut tick)?;
            (read, self.raw_tick(&mut tick))
        } else {
            let raw_read = self.raw_tick(&mut tick);
            (self.state_tick(&mut tick)?, raw_read)
        };
        if reads.0 != reads.1 {
            let reason = format!("tick {} read otherwise than the baseline", self.state.ticks());
            return Err(failed(self.name, reason));
        }
        Ok(tick)
    }

    fn is_capturing(&self) -> bool {
        S::CONTENT != Content::Nothing && self.state.last_capture().is_none()
    }

    fn state_tick(&mut self, tick: &mut Tick) -> LabResult<u64> {
        let was_capturing = self.is_capturing();
        let Rig { load, name, state, arrays, .. } = self;
        let number = state.ticks() + 1;
        let mut logged = Ok(());
        let cpu_ns = sys::thread_cpu_ns();
        let start_ns = sys::now_ns();
        load.actions(number, &mut |action| {
            if logged.is_ok() {
                logged = state.log(action);
            }
        });
        let read = load.step(*arrays, state, number);
        // a first call brings the clock's own memory into the cache, so that the end does not pay
        // for it
        sys::now_ns();
        let worked_ns = sys::now_ns();
        let ended = state.tick();
        let ended_ns = sys::now_ns();
        tick.cpu_ns = sys::thread_cpu_ns() - cpu_ns;
        logged.and(ended.map(drop)).map_err(|e| failed(name, e))?;
        tick.work_ns = worked_ns - start_ns;
        tick.boundary_ns = ended_ns - worked_ns;
        tick.begins_capture = !was_capturing && self.is_capturing();
        Ok(read)
    }

    fn raw_tick(&mut self, tick: &mut Tick) -> u64 {
        let number = self.raw.ticks() + 1;
        let cpu_ns = sys::thread_cpu_ns();
        let start_ns = sys::now_ns();
        let read = self.load.step(self.raw_arrays, &mut self.raw, number);
        self.raw.end_tick();
        tick.raw_ns = sys::now_ns() - start_ns;
        tick.raw_cpu_ns = sys::thread_cpu_ns() - cpu_ns;
        read
    }

    /// Images that are durable so far.
    fn images(&self) -> LabResult<u64> {
        let progress = self.state.progress().snapshot();
        match progress.last_failure {
            Some(error) => Err(failed(self.name, error)),
            None => Ok(progress.images),
        }
    }

    fn warm_up(&mut self) -> LabResult<()> {
        for _ in 0..self.drive.warm_up_ticks {
            self.tick(true)?;
        }
        if S::CONTENT == Content::Nothing {
            return Ok(());
        }
        let began_ns = sys::now_ns();
        for wanted in 1..=self.drive.warm_up_images {
            self.state.checkpoint();
            while self.images()? < wanted {
                self.tick(true)?;
                sys::sleep(Duration::from_millis(5));
                self.check_patience(began_ns)?;
            }
        }
        Ok(())
    }

    fn check_patience(&self, began_ns: u64) -> LabResult<()> {
        if sys::now_ns() - began_ns > PATIENCE_NS {
            return Err(failed(self.name, "an image has taken ten minutes: is the disk stuck?"));
        }
        Ok(())
    }

    /// The measured ticks, and the seconds of the images that became durable.
    fn measure(&mut self) -> LabResult<(Vec<Tick>, Vec<f64>)> {
        let mut ticks = Vec::with_capacity(self.drive.ticks as usize);
        let mut image_s = Vec::new();
        let mut images = self.images()?;
        let start_ns = sys::now_ns();
        for number in 0..self.drive.ticks {
            if let Some(tick) = self.drive.tick {
                sys::sleep_until(start_ns + number * tick.as_nanos() as u64);
            }
            if let Images::EveryTicks(every) = self.drive.images
                && number.is_multiple_of(every.max(1))
            {
                self.state.checkpoint();
            }
            let at_s = (sys::now_ns() - start_ns) as f64 / 1e9;
            ticks.push(Tick { at_s, ..self.tick(number % 2 == 0)? });
            let durable = self.images()?;
            if durable > images {
                images = durable;
                image_s.push(self.state.progress().snapshot().image_ns as f64 / 1e9);
            }
        }
        Ok((ticks, image_s))
    }

    /// Waits until the image under way and the log are durable.
    fn settle(&mut self) -> LabResult<()> {
        let began_ns = sys::now_ns();
        while self.is_capturing() {
            self.images()?;
            sys::sleep(Duration::from_millis(1));
            self.check_patience(began_ns)?;
        }
        if self.drive.logs_actions {
            let tick = self.state.ticks();
            self.state.wait_durable(tick).map_err(|e| failed(self.name, e))?;
        }
        self.images().map(drop)
    }

    /// The ticks of further points of consistency.
    fn further(&mut self) -> LabResult<Vec<Tick>> {
        let mut ticks = Vec::new();
        for _ in 0..self.drive.further_boundaries {
            self.state.checkpoint();
            ticks.push(self.tick(false)?);
            self.settle()?;
        }
        Ok(ticks)
    }

    fn held_bytes(&self) -> u64 {
        let is_copied = S::CONTENT == Content::Changes && self.drive.merge == Merge::Copy;
        let copy = if is_copied { self.state.state_bytes() } else { 0 };
        self.state.len_bytes() as u64 + copy
    }

    /// Compares the cells in memory and drops the state. Returns the tick that must come back.
    fn end(self) -> LabResult<u64> {
        let Rig { load, name, state, arrays, raw, raw_arrays, .. } = self;
        if let Some(place) = load.first_difference((arrays, &state), (raw_arrays, &raw)) {
            let reason =
                format!("after tick {} it differs from the baseline: {place}", raw.ticks());
            return Err(failed(name, reason));
        }
        Ok(state.durable_tick())
    }
}

#[cfg(test)]
mod tests;
