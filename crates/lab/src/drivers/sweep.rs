//! Measures overhead in memory alone, as SIGMOD 2011 does (§5.1): ticks at full speed, without a disk.
//!
//! The paper turns its asynchronous writer off once it knows a sufficient checkpoint interval. Here
//! a capture is open from one point of consistency to the next. The driver takes the image between
//! these two points, in no measured time. The first period of each rate is not measured: its image
//! must be the baseline's state at its point of consistency. Piggyback's copier runs at the
//! beginning of a period, unmeasured.

use std::sync::Arc;

use stillpoint_mem::PageSize;
use stillpoint_state::{Array, Arrays, Capture, Content, Scheme, registry};

use crate::error::LabResult;
use crate::measure::stats::Spread;
use crate::subjects::arrays::{Raw, failed, raw};
use crate::sys;
use crate::workloads::load::Load;
use crate::workloads::trace::{Access, Trace, TraceLoad};

/// Plan of a measurement of overhead.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sweep {
    /// Updates per second.
    pub(crate) rates: Vec<u64>,
    /// Ticks per second.
    pub(crate) ticks_per_s: u64,
    /// Ticks between two points of consistency.
    pub(crate) period_ticks: u64,
    /// Number of measured periods at the rate that the bounds refer to.
    pub(crate) periods: usize,
    /// The rate that the bounds refer to. Other rates have two periods, and very high rates have
    /// one.
    pub(crate) bound_rate: u64,
    /// Size of memory pages.
    pub(crate) pages: PageSize,
}

impl Sweep {
    /// A point of consistency every 4 s, ticks of 0.1 s.
    pub(crate) fn paper(rates: Vec<u64>, bound_rate: u64, periods: usize) -> Sweep {
        let (ticks_per_s, period_ticks, pages) = (10, 40, PageSize::Huge);
        Sweep { rates, ticks_per_s, period_ticks, periods, bound_rate, pages }
    }

    fn periods_of(&self, rate: u64) -> usize {
        /// Updates of a period above which one period suffices.
        const MANY: u64 = 15_000_000;
        let updates = rate / self.ticks_per_s * self.period_ticks;
        match rate {
            _ if rate == self.bound_rate => self.periods,
            _ if updates > MANY => 1,
            _ => self.periods.min(2),
        }
    }
}

/// Costs of a scheme at one rate of updates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Updates per second.
    pub(crate) rate: u64,
    /// Updates of a period.
    pub(crate) updates: u64,
    /// Milliseconds of CPU beyond the baseline's, of each period.
    pub(crate) overhead_ms: Vec<f64>,
    /// Milliseconds of the ends of ticks at which captures began, of each period.
    pub(crate) boundary_ms: Vec<f64>,
    /// Milliseconds of the baseline's CPU, of each period.
    pub(crate) raw_ms: Vec<f64>,
}

fn middle(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

impl Cost {
    /// Overhead per checkpoint, the median.
    pub(crate) fn overhead(&self) -> f64 {
        middle(&self.overhead_ms)
    }

    /// The part of the overhead in the tick at which a capture begins: bulk copying or negating.
    pub(crate) fn boundary(&self) -> f64 {
        middle(&self.boundary_ms)
    }

    /// The rest of the overhead, per update, in nanoseconds.
    pub(crate) fn update_ns(&self) -> f64 {
        let updates = self.overhead_ms.iter().zip(&self.boundary_ms);
        let rest: Vec<f64> = updates.map(|(all, boundary)| all - boundary).collect();
        middle(&rest) * 1e6 / self.updates as f64
    }

    /// The mutator's time ÷ the baseline's, of each period.
    pub(crate) fn times_of_raw(&self) -> Vec<f64> {
        self.overhead_ms.iter().zip(&self.raw_ms).map(|(more, raw)| (raw + more) / raw).collect()
    }

    /// Cost of an update in the baseline, in nanoseconds.
    pub(crate) fn raw_update_ns(&self) -> f64 {
        middle(&self.raw_ms) * 1e6 / self.updates as f64
    }
}

/// A scheme at all rates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs {
    /// The registered name.
    pub(crate) scheme: String,
    /// Costs in the order of the rates.
    pub(crate) points: Vec<Cost>,
    /// Bytes of one copy.
    pub(crate) state_bytes: u64,
    /// Bytes of copies and marks.
    pub(crate) held_bytes: u64,
    /// Bytes of the process on huge pages (AnonHugePages) after the run, the baseline's arrays
    /// included.
    pub(crate) huge_page_bytes: u64,
}

impl Costs {
    /// The cost at a rate that was measured.
    pub(crate) fn at(&self, rate: u64) -> Option<&Cost> {
        self.points.iter().find(|cost| cost.rate == rate)
    }
}

/// Measures a scheme at all rates on a state of `words` words, with updates from a pool.
///
/// # Errors
/// An unknown scheme or one that takes no captures, no memory, and an image or memory that differs
/// from the baseline's.
pub(crate) fn run(
    pool: &Arc<Vec<Access>>,
    words: usize,
    scheme: &str,
    sweep: &Sweep,
) -> LabResult<Costs> {
    let program = Program { pool, words, name: scheme, sweep };
    registry::run(scheme, program).map_err(|e| failed(scheme, e))?
}

struct Program<'a> {
    pool: &'a Arc<Vec<Access>>,
    words: usize,
    name: &'a str,
    sweep: &'a Sweep,
}

impl registry::Program for Program<'_> {
    type Output = LabResult<Costs>;

    fn run<S: Scheme>(self) -> LabResult<Costs> {
        if S::CONTENT == Content::Nothing {
            return Err(failed(self.name, "it takes no captures"));
        }
        let mut arrays = SideBySide::<S>::new(&self)?;
        let mut points = Vec::new();
        let load = |rate: u64| {
            let per_tick = (rate / self.sweep.ticks_per_s) as usize;
            TraceLoad::new(Trace::equal(self.pool.clone(), per_tick), self.words)
        };
        for &rate in &self.sweep.rates {
            let periods = self.sweep.periods_of(rate);
            points.push(arrays.at_rate(&load(rate), rate, periods, self.sweep)?);
        }
        if let Some(&rate) = self.sweep.rates.first() {
            // This comparison covers the image of the last measured period, too.
            arrays.at_rate(&load(rate), rate, 0, self.sweep)?;
        }
        Ok(Costs {
            scheme: self.name.to_owned(),
            points,
            state_bytes: arrays.cells.state_bytes(),
            held_bytes: arrays.cells.len_bytes() as u64,
            huge_page_bytes: crate::measure::process::own_huge_page_bytes(),
        })
    }
}

/// A scheme's arrays and the baseline's at the same tick, and the part of the image that was
/// captured so far.
struct SideBySide<'a, S: Scheme> {
    name: &'a str,
    cells: Arrays<S>,
    array: Array<u32>,
    raw: Arrays<Raw>,
    raw_array: Array<u32>,
    capture: Option<Capture<S>>,
    image: Vec<u8>,
}

/// Nanoseconds of a tick: the scheme's CPU time, the wall time of the tick's end, and the
/// baseline's CPU time.
struct TickCost {
    cpu_ns: u64,
    boundary_ns: u64,
    raw_cpu_ns: u64,
}

impl<'a, S: Scheme> SideBySide<'a, S> {
    fn new(program: &Program<'a>) -> LabResult<Self> {
        let load = TraceLoad::<u32>::new(Trace::equal(program.pool.clone(), 0), program.words);
        let mut builder = Arrays::<S>::builder();
        builder.pages(program.sweep.pages);
        let array = load.declare(&mut builder);
        let mut cells = builder.build().map_err(|e| failed(program.name, e))?;
        load.first(array, &mut cells);
        let (raw, raw_array) = raw(&load, program.sweep.pages)?;
        let image = vec![0; program.words * 4];
        Ok(SideBySide { name: program.name, cells, array, raw, raw_array, capture: None, image })
    }

    /// Warms up with a first period, and compares the image of that period with the baseline.
    fn at_rate(
        &mut self,
        load: &TraceLoad<u32>,
        rate: u64,
        periods: usize,
        sweep: &Sweep,
    ) -> LabResult<Cost> {
        let updates = rate / sweep.ticks_per_s * sweep.period_ticks;
        let (overhead_ms, boundary_ms, raw_ms) = (Vec::new(), Vec::new(), Vec::new());
        let mut cost = Cost { rate, updates, overhead_ms, boundary_ms, raw_ms };
        self.take_image()?;
        self.tick(load, true, true)?;
        let at_cut: Vec<u32> = self.raw.iter(self.raw_array).collect();
        for number in 1..sweep.period_ticks {
            self.tick(load, false, number % 2 == 0)?;
        }
        self.check(&at_cut)?;
        drop(at_cut);
        for _ in 0..periods {
            self.take_image()?;
            let (mut cpu_ns, mut raw_cpu_ns, mut boundary_ns) = (0, 0, 0);
            for number in 0..sweep.period_ticks {
                let tick = self.tick(load, number == 0, number % 2 == 0)?;
                cpu_ns += tick.cpu_ns;
                raw_cpu_ns += tick.raw_cpu_ns;
                if number == 0 {
                    boundary_ns = tick.boundary_ns;
                }
            }
            cost.overhead_ms.push((cpu_ns as f64 - raw_cpu_ns as f64) / 1e6);
            cost.boundary_ms.push(boundary_ns as f64 / 1e6);
            cost.raw_ms.push(raw_cpu_ns as f64 / 1e6);
        }
        Ok(cost)
    }

    /// Runs one tick on both. A capture begins at its end if `captures` is true.
    fn tick(
        &mut self,
        load: &TraceLoad<u32>,
        captures: bool,
        is_scheme_first: bool,
    ) -> LabResult<TickCost> {
        let number = self.cells.ticks() + 1;
        let mut tick = TickCost { cpu_ns: 0, boundary_ns: 0, raw_cpu_ns: 0 };
        for is_scheme in [is_scheme_first, !is_scheme_first] {
            let start_ns = sys::thread_cpu_ns();
            if is_scheme {
                load.step(self.array, &mut self.cells, number);
                let worked_ns = sys::now_ns();
                self.cells.end_tick();
                if captures {
                    self.capture = self.cells.point_of_consistency();
                }
                tick.boundary_ns = sys::now_ns() - worked_ns;
                tick.cpu_ns = sys::thread_cpu_ns() - start_ns;
            } else {
                load.step(self.raw_array, &mut self.raw, number);
                self.raw.end_tick();
                tick.raw_cpu_ns = sys::thread_cpu_ns() - start_ns;
            }
        }
        if captures {
            let capture = self.capture.as_ref();
            capture.ok_or_else(|| failed(self.name, "no capture began"))?.copy_over();
        }
        Ok(tick)
    }

    /// Ends the capture under way, if there is one.
    fn take_image(&mut self) -> LabResult<()> {
        if let Some(capture) = self.capture.take() {
            let written =
                capture.write_to_stable_storage(0, 0..self.image.len() / 4, &mut self.image);
            written.map_err(|e| failed(self.name, e))?;
            capture.durable();
        }
        Ok(())
    }

    /// Compares the image with the baseline at the cut, and the cells with the baseline now.
    fn check(&mut self, at_cut: &[u32]) -> LabResult<()> {
        self.take_image()?;
        let image = self.image.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        if let Some(word) = image.zip(at_cut).position(|(image, raw)| image != *raw) {
            return Err(failed(self.name, format!("word {word} of its image differs")));
        }
        let (ours, raws) = (self.cells.iter(self.array), self.raw.iter(self.raw_array));
        match ours.zip(raws).position(|(ours, raw)| ours != raw) {
            Some(word) => Err(failed(self.name, format!("word {word} in memory differs"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::zipf::ZipfAccesses;

    fn sweep() -> Sweep {
        Sweep { period_ticks: 4, ..Sweep::paper(vec![1_000, 40_000], 40_000, 2) }
    }

    #[test]
    fn every_scheme_has_its_costs_at_every_rate() -> LabResult<()> {
        let zipf = ZipfAccesses::objects(20, 30_000, 1);
        let pool = zipf.make()?;
        for name in registry::names_here().filter(|name| *name != "none") {
            let costs = run(&pool, zipf.words(), name, &sweep())?;
            assert_eq!(costs.state_bytes, 160_000, "{name}");
            let copies = registry::REGISTRY.find(name).expect("a row").needs(4).copies as u64;
            assert!(costs.held_bytes >= copies * costs.state_bytes, "{name}");
            let cost = costs.at(40_000).expect("it was measured");
            assert_eq!((cost.updates, cost.overhead_ms.len()), (16_000, 2), "{name}");
            assert!(cost.raw_update_ns() > 0.0 && cost.boundary() > 0.0, "{name}");
        }
        Ok(())
    }

    #[test]
    fn a_scheme_without_captures_is_refused() -> LabResult<()> {
        let zipf = ZipfAccesses::objects(2, 100, 1);
        let error = run(&zipf.make()?, zipf.words(), "none", &sweep()).expect_err("no captures");
        assert!(error.to_string().contains("takes no captures"), "{error}");
        Ok(())
    }

    #[test]
    fn the_rate_of_the_bounds_has_most_periods() {
        let sweep = Sweep::paper(Vec::new(), 320_000, 5);
        let periods = [10_000, 320_000, 10_240_000].map(|rate| sweep.periods_of(rate));
        assert_eq!(periods, [2, 5, 1]);
        assert_eq!(Sweep { periods: 1, ..sweep }.periods_of(10_000), 1);
    }
}
