//! Advice on state arrays: one thread that changes arrays in ticks.

mod choice;

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stillpoint_state::{Content, registry};

use super::{Advice, Column, Measurement, refused};
use crate::context::Context;
use crate::drivers::ticks::{self, Drive, Images};
use crate::error::LabResult;
use crate::measure::durations::LONGEST_S;
use crate::measure::machine::available_bytes;
use crate::measure::outcome::Outcome;
use crate::measure::stats::median;
use crate::subjects::arrays::refusals;
use crate::sys;
use crate::workloads::trace::{Trace, TraceLoad, WordCell};
use crate::workloads::zipf::ZipfAccesses;

use choice::Limits;

/// Sizes of the pieces into which cells are divided for the measurement, in words. Each size is
/// compiled once for every scheme and layout, so there are few.
const PIECE_WORDS: [usize; 5] = [1, 2, 16, 128, 1024];

/// Shortest tick that can be asked for, in milliseconds.
const TICK_MIN_MS: f64 = 0.001;

/// A load on state arrays, and the limits that a scheme must keep under it.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "State arrays")]
pub(crate) struct OfState {
    /// Advise on state arrays: one thread that changes arrays in ticks.
    #[arg(long, required_unless_present = "records", conflicts_with = "records")]
    pub(crate) state: bool,
    /// Cells of the state.
    #[arg(long, value_name = "N", required_if_eq("state", "true"))]
    pub(crate) cells: Option<usize>,
    /// Bytes of a cell. Cells are measured in the longest pieces that fit: 4, 8, 64, 512 or 4096
    /// bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4)]
    pub(crate) cell_bytes: usize,
    /// Updates per second. An update writes 4 bytes of a cell.
    #[arg(long, value_name = "N", required_if_eq("state", "true"))]
    pub(crate) updates_per_second: Option<u64>,
    /// Share of all accesses that read, from 0 to below 1. Reads come on top of the updates.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) reads: f64,
    /// Exponent of the Zipf law of the cells' popularity. With 0 all cells are equally popular.
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.5)]
    pub(crate) zipf: f64,
    /// Length of a tick, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    pub(crate) tick_ms: f64,
    /// Time from one image to the next, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) image_every_ms: u64,
    /// Limit of the work of a tick, in microseconds.
    #[arg(long, value_name = "US")]
    pub(crate) worst_tick_us: Option<f64>,
    /// Limit of memory, as a multiple of the state.
    #[arg(long, value_name = "COPIES")]
    pub(crate) copies_max: Option<f64>,
    /// Measure every layout, not only the first of each scheme.
    #[arg(long)]
    pub(crate) all_layouts: bool,
}

/// Figures of a scheme under the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// The registered name.
    pub(crate) scheme: String,
    /// CPU time of the mutator beyond the baseline's, in percent of a tick.
    pub(crate) overhead_percent: f64,
    /// Mean work of a tick, in microseconds.
    pub(crate) mean_tick_us: f64,
    /// Worst work of a tick, in microseconds.
    pub(crate) worst_tick_us: f64,
    /// Worst work of a tick of the baseline in the same run, in microseconds.
    pub(crate) raw_worst_tick_us: f64,
    /// Median time of a tick's end at which an image begins, in microseconds.
    pub(crate) boundary_us: f64,
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
    /// Memory as a multiple of the state.
    pub(crate) copies: f64,
    /// Median seconds until an image is durable.
    pub(crate) image_s: f64,
    /// Seconds to read an image back.
    pub(crate) recovery_s: f64,
}

impl Measured {
    fn of(outcome: &Outcome, tick_s: f64) -> Measured {
        let all = outcome.all();
        Measured {
            scheme: outcome.scheme.clone(),
            overhead_percent: 100.0 * all.overhead_share(tick_s),
            mean_tick_us: all.mean_ms() * 1e3,
            worst_tick_us: all.max_ms() * 1e3,
            raw_worst_tick_us: all.raw_max_ms() * 1e3,
            boundary_us: median(&all.boundaries_us()),
            memory_bytes: outcome.held_bytes,
            copies: outcome.held_bytes as f64 / outcome.state_bytes as f64,
            image_s: median(&outcome.image_s),
            recovery_s: outcome.recovery.map_or(f64::NAN, |recovery| recovery.seconds()),
        }
    }
}

impl OfState {
    fn check(&self) -> LabResult<()> {
        let positive = [
            ("--cells", self.cells() as f64),
            ("--cell-bytes", self.cell_bytes as f64),
            ("--updates-per-second", self.updates_per_second() as f64),
        ];
        for (option, value) in positive {
            if value <= 0.0 || value > 1e15 {
                return Err(refused(
                    format!("{option} {value}"),
                    "give a number above 0, and no more than 10^15",
                ));
            }
        }
        let milliseconds =
            [("--tick-ms", self.tick_ms), ("--image-every-ms", self.image_every_ms as f64)];
        for (option, value) in milliseconds {
            if !(TICK_MIN_MS..=LONGEST_S * 1e3).contains(&value) {
                let cure = format!("give milliseconds from {TICK_MIN_MS} to {}", LONGEST_S * 1e3);
                return Err(refused(format!("{option} {value}"), &cure));
            }
        }
        if !(0.0..1.0).contains(&self.reads) {
            let cure = "give the share of reads: at least 0 and below 1";
            return Err(refused(format!("--reads {}", self.reads), cure));
        }
        if !(0.0..=10.0).contains(&self.zipf) {
            return Err(refused(format!("--zipf {}", self.zipf), "give an exponent from 0 to 10"));
        }
        Ok(())
    }

    fn cells(&self) -> usize {
        self.cells.unwrap_or(0)
    }

    fn updates_per_second(&self) -> u64 {
        self.updates_per_second.unwrap_or(0)
    }

    /// Words of a measured piece, and number of pieces.
    fn shape(&self) -> (usize, usize) {
        let piece_words = PIECE_WORDS.into_iter().rev().find(|words| words * 4 <= self.cell_bytes);
        let piece_words = piece_words.unwrap_or(1);
        let pieces = self.cell_bytes.div_ceil(piece_words * 4).max(1);
        (piece_words, self.cells().saturating_mul(pieces))
    }

    fn drive(&self, seconds: f64) -> Drive {
        let ticks_of = |ms: f64| (ms / self.tick_ms).round().max(1.0) as u64;
        let period_ticks = ticks_of(self.image_every_ms as f64);
        Drive {
            ticks: ticks_of(seconds * 1e3).max(period_ticks + 1),
            warm_up_images: 1,
            tick: Some(Duration::from_secs_f64(self.tick_ms / 1e3)),
            images: Images::EveryTicks(period_ticks),
            ..Drive::paper(1)
        }
    }

    fn schemes(&self) -> Vec<&'static str> {
        let rows = registry::REGISTRY
            .iter()
            .filter(|row| row.content != Content::Nothing && row.check_system().is_ok());
        let layouts = if self.all_layouts { usize::MAX } else { 1 };
        rows.flat_map(|row| row.layouts.iter().take(layouts).map(|layout| layout.name)).collect()
    }

    fn limits(&self) -> Limits {
        Limits { worst_tick_us: self.worst_tick_us, copies_max: self.copies_max }
    }
}

/// Measures the schemes under the load, each for so many seconds, and chooses one.
///
/// # Errors
/// When the load makes no sense, the memory is too small, or the disk fails.
pub(super) fn advise(
    question: &OfState,
    seconds: f64,
    context: &Context,
) -> LabResult<Advice<Measured>> {
    question.check()?;
    let (words, _) = question.shape();
    match words {
        1 => measure::<u32>(question, seconds, context),
        2 => measure::<[u32; 2]>(question, seconds, context),
        16 => measure::<[u32; 16]>(question, seconds, context),
        128 => measure::<[u32; 128]>(question, seconds, context),
        _ => measure::<[u32; 1024]>(question, seconds, context),
    }
}

fn measure<C: WordCell>(
    question: &OfState,
    seconds: f64,
    context: &Context,
) -> LabResult<Advice<Measured>> {
    let (object_words, objects) = question.shape();
    let state_bytes = objects.saturating_mul(object_words * 4) as u64;
    let needed = state_bytes.saturating_mul(4);
    if needed > available_bytes() {
        let cure = "ask for fewer cells: ping-pong's three copies and the baseline must fit";
        return Err(refused(format!("{needed} bytes of memory are not there"), cure));
    }
    let drive = question.drive(seconds);
    let accesses_per_s = question.updates_per_second() as f64 / (1.0 - question.reads);
    let per_tick = (accesses_per_s * question.tick_ms / 1e3).round().max(1.0) as usize;
    let zipf = ZipfAccesses {
        objects,
        object_words,
        object_exponent: question.zipf,
        word_exponent: 0.0,
        read_share: question.reads,
        count: per_tick.saturating_mul(drive.ticks as usize).min(16_000_000),
        seed: 1,
    };
    let load = TraceLoad::<C>::new(Trace::equal(zipf.make()?, per_tick), zipf.words());
    let mut measured = Vec::new();
    for refusal in refusals() {
        context.note(refusal);
    }
    for scheme in question.schemes() {
        context.note(format!("measuring {scheme} for {seconds} s"));
        let dir = context.fresh_dir(scheme)?;
        let outcome = ticks::run(&load, scheme, &drive, &dir)?;
        sys::remove_dir_all(&dir)?;
        measured.push(Measured::of(&outcome, question.tick_ms / 1e3));
    }
    let choice = choice::choose(&measured, &question.limits())
        .ok_or_else(|| refused("no scheme was measured".into(), "build with one"))?;
    Ok(Advice { measured, choice })
}

impl Measurement for Measured {
    const COLUMNS: &'static [Column<Self>] = &[
        ("scheme", |it| it.scheme.clone()),
        ("overhead %", |it| format!("{:.3}", it.overhead_percent)),
        ("mean us", |it| format!("{:.0}", it.mean_tick_us)),
        ("worst us", |it| format!("{:.0}", it.worst_tick_us)),
        ("raw worst us", |it| format!("{:.0}", it.raw_worst_tick_us)),
        ("boundary us", |it| format!("{:.1}", it.boundary_us)),
        ("copies", |it| format!("{:.2}", it.copies)),
        ("MiB", |it| format!("{}", it.memory_bytes >> 20)),
        ("image s", |it| format!("{:.3}", it.image_s)),
        ("recovery s", |it| format!("{:.3}", it.recovery_s)),
    ];
}

#[cfg(test)]
mod tests;
