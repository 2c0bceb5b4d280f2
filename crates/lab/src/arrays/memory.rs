//! Overhead in memory alone, as SIGMOD 2011 measures it (§5.1): ticks at full speed, without disk.
//!
//! The paper turns its asynchronous writer off once the checkpoint interval is known to suffice. Here
//! a capture is open from one point of consistency to the next, and its image is taken between the
//! two in no measured time. The image of each rate's first period, which is not measured, must be the
//! raw loop's state at its point of consistency. Piggyback's copier runs at the beginning of a period, unmeasured.

use std::sync::Arc;

use stillpoint_mem::PageSize;
use stillpoint_state::{Array, Arrays, Capture, Content, Scheme, registry};

use super::check::{Raw, failed, raw};
use super::load::Load;
use super::trace::{Access, Trace, TraceLoad};
use crate::error::LabResult;
use crate::stats::Spread;
use crate::sys;

/// How overhead is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Updates per second.
    pub rates: Vec<u64>,
    /// Ticks per second.
    pub ticks_per_s: u64,
    /// Ticks between two points of consistency.
    pub period_ticks: u64,
    /// Measured periods of the rate that floors are about.
    pub periods: usize,
    /// That rate; others have two periods, and one if they are very high.
    pub floor_rate: u64,
    /// Pages of memory.
    pub pages: PageSize,
}

impl Sweep {
    /// A point of consistency every 4 s, ticks of 0.1 s.
    pub fn paper(rates: Vec<u64>, floor_rate: u64, periods: usize) -> Sweep {
        let (ticks_per_s, period_ticks, pages) = (10, 40, PageSize::Huge);
        Sweep { rates, ticks_per_s, period_ticks, periods, floor_rate, pages }
    }

    fn periods_of(&self, rate: u64) -> usize {
        /// Updates of a period, beyond which one suffices.
        const MANY: u64 = 15_000_000;
        let updates = rate / self.ticks_per_s * self.period_ticks;
        match rate {
            _ if rate == self.floor_rate => self.periods,
            _ if updates > MANY => 1,
            _ => self.periods.min(2),
        }
    }
}

/// What a scheme costs at a rate of updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Updates per second.
    pub rate: u64,
    /// Updates of a period.
    pub updates: u64,
    /// Milliseconds of CPU beyond the raw loop's, of each period.
    pub overhead_ms: Vec<f64>,
    /// Milliseconds of the ends of ticks at which captures began, of each period.
    pub boundary_ms: Vec<f64>,
    /// Milliseconds of the raw loop's CPU, of each period.
    pub raw_ms: Vec<f64>,
}

fn middle(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

impl Cost {
    /// Overhead per checkpoint, the median.
    pub fn overhead(&self) -> f64 {
        middle(&self.overhead_ms)
    }

    /// Of it, the tick at which a capture begins: copying or negating in bulk.
    pub fn boundary(&self) -> f64 {
        middle(&self.boundary_ms)
    }

    /// The rest, per update, in nanoseconds.
    pub fn update_ns(&self) -> f64 {
        let updates = self.overhead_ms.iter().zip(&self.boundary_ms);
        let rest: Vec<f64> = updates.map(|(all, boundary)| all - boundary).collect();
        middle(&rest) * 1e6 / self.updates as f64
    }

    /// What an update costs the raw loop, in nanoseconds.
    pub fn raw_update_ns(&self) -> f64 {
        middle(&self.raw_ms) * 1e6 / self.updates as f64
    }
}

/// A scheme at all rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The registered name.
    pub scheme: String,
    /// By rate.
    pub points: Vec<Cost>,
    /// Bytes of one copy.
    pub state_bytes: u64,
    /// Bytes of copies and marks.
    pub held_bytes: u64,
}

impl Costs {
    /// The cost at a rate that was measured.
    pub fn at(&self, rate: u64) -> Option<&Cost> {
        self.points.iter().find(|cost| cost.rate == rate)
    }
}

/// Measures a scheme at all rates on a state of `words` words, with updates from a pool.
///
/// # Errors
/// An unknown scheme or one that takes no captures, no memory, and an image or memory that differs
/// from the raw loop's.
pub fn run(pool: &Arc<Vec<Access>>, words: usize, scheme: &str, sweep: &Sweep) -> LabResult<Costs> {
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
        let mut bed = Bed::<S>::new(&self)?;
        let mut points = Vec::new();
        let load = |rate: u64| {
            let per_tick = (rate / self.sweep.ticks_per_s) as usize;
            TraceLoad::new(Trace::equal(self.pool.clone(), per_tick), self.words)
        };
        for &rate in &self.sweep.rates {
            let periods = self.sweep.periods_of(rate);
            points.push(bed.at_rate(&load(rate), rate, periods, self.sweep)?);
        }
        if let Some(&rate) = self.sweep.rates.first() {
            // The image of the last measured period is part of what this one compares.
            bed.at_rate(&load(rate), rate, 0, self.sweep)?;
        }
        Ok(Costs {
            scheme: self.name.to_owned(),
            points,
            state_bytes: bed.cells.state_bytes(),
            held_bytes: bed.cells.len_bytes() as u64,
        })
    }
}

/// A scheme's arrays and the raw loop's, at the same tick, and the image so far.
struct Bed<'a, S: Scheme> {
    name: &'a str,
    cells: Arrays<S>,
    array: Array<u32>,
    raw: Arrays<Raw>,
    raw_array: Array<u32>,
    capture: Option<Capture<S>>,
    image: Vec<u8>,
}

/// Nanoseconds of a tick of the scheme: CPU in all, wall time of its end; and CPU of the raw loop.
struct TickCost {
    cpu_ns: u64,
    boundary_ns: u64,
    raw_cpu_ns: u64,
}

impl<'a, S: Scheme> Bed<'a, S> {
    fn new(program: &Program<'a>) -> LabResult<Self> {
        let load = TraceLoad::<u32>::new(Trace::equal(program.pool.clone(), 0), program.words);
        let mut builder = Arrays::<S>::builder();
        builder.pages(program.sweep.pages);
        let array = load.declare(&mut builder);
        let mut cells = builder.build().map_err(|e| failed(program.name, e))?;
        load.first(array, &mut cells);
        let (raw, raw_array) = raw(&load, program.sweep.pages)?;
        let image = vec![0; program.words * 4];
        Ok(Bed { name: program.name, cells, array, raw, raw_array, capture: None, image })
    }

    /// A first period warms up, and its image is compared with the raw loop.
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

    /// One tick on both; at its end a capture begins if it `captures`.
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

    /// The image must be what the raw loop had at the cut, the memory what it has now.
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
    use crate::arrays::zipf::ZipfAccesses;

    fn sweep() -> Sweep {
        Sweep { period_ticks: 4, ..Sweep::paper(vec![1_000, 40_000], 40_000, 2) }
    }

    #[test]
    fn every_scheme_has_its_costs_at_every_rate() -> LabResult<()> {
        let zipf = ZipfAccesses::objects(20, 30_000, 1);
        let pool = zipf.make()?;
        for name in registry::names().filter(|name| *name != "none") {
            let costs = run(&pool, zipf.words(), name, &sweep())?;
            assert_eq!(costs.state_bytes, 160_000, "{name}");
            let copies = registry::find(name).expect("a row").needs(4).copies as u64;
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
    fn the_rate_of_the_floors_has_most_periods() {
        let sweep = Sweep::paper(Vec::new(), 320_000, 5);
        let periods = [10_000, 320_000, 10_240_000].map(|rate| sweep.periods_of(rate));
        assert_eq!(periods, [2, 5, 1]);
        assert_eq!(Sweep { periods: 1, ..sweep }.periods_of(10_000), 1);
    }
}
