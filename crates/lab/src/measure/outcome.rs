//! Outcome of a run of state arrays, and the papers' figures computed from it.

/// One tick of a run, of the state and of the baseline beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tick {
    /// Begin of the tick's slot, in seconds of the measured time.
    pub(crate) at_s: f64,
    /// Nanoseconds of the step: reads, writes, and the handover of its actions.
    pub(crate) work_ns: u64,
    /// Nanoseconds of the tick's end, in which a capture may begin.
    pub(crate) boundary_ns: u64,
    /// CPU time of step and end, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Nanoseconds of the baseline: step and end.
    pub(crate) raw_ns: u64,
    /// CPU time of the baseline, in nanoseconds.
    pub(crate) raw_cpu_ns: u64,
    /// Whether a capture began at the end of the tick.
    pub(crate) begins_capture: bool,
    /// Whether a capture was under way during the step.
    pub(crate) is_captured: bool,
}

impl Tick {
    /// Nanoseconds of step and end: the latency of the papers' figures.
    pub(crate) fn latency_ns(&self) -> u64 {
        self.work_ns + self.boundary_ns
    }
}

/// Figures of a recovery whose state equalled the baseline's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Recovery {
    /// The tick that was recovered.
    pub(crate) tick: u64,
    /// Bytes of the image.
    pub(crate) image_bytes: u64,
    /// Seconds to load the image.
    pub(crate) image_s: f64,
    /// Ticks that were run again.
    pub(crate) replayed_ticks: u64,
    /// Seconds to run the ticks again.
    pub(crate) replay_s: f64,
}

impl Recovery {
    /// Seconds in all.
    pub(crate) fn seconds(&self) -> f64 {
        self.image_s + self.replay_s
    }
}

/// A run of a scheme.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The registered name.
    pub(crate) scheme: String,
    /// The measured ticks.
    pub(crate) ticks: Vec<Tick>,
    /// Seconds from the point of consistency until the image was durable, for each image of the
    /// measured time.
    pub(crate) image_s: Vec<f64>,
    /// CPU seconds of the writer's thread during the measured time.
    pub(crate) writer_cpu_s: f64,
    /// Bytes of one copy.
    pub(crate) state_bytes: u64,
    /// Bytes of copies, marks and the writer's buffers, and of the pages that the system copied
    /// during the last image.
    pub(crate) held_bytes: u64,
    /// Bytes of the process on huge pages (AnonHugePages) while the state was open. The baseline's
    /// arrays are included.
    pub(crate) huge_page_bytes: u64,
    /// The ticks of further points of consistency, after the measured ones.
    pub(crate) further: Vec<Tick>,
    /// The recovery after the end of the run. `None` without checkpoints.
    pub(crate) recovery: Option<Recovery>,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), v| (sum + v, count + 1));
    sum / f64::from(count)
}

fn max(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, f64::max)
}

impl Outcome {
    /// All measured ticks.
    pub(crate) fn all(&self) -> Ticks<'_> {
        Ticks(&self.ticks)
    }

    /// Microseconds of all tick ends at which captures began, measured and further ones.
    pub(crate) fn all_boundaries_us(&self) -> Vec<f64> {
        [self.all().boundaries_us(), Ticks(&self.further).boundaries_us()].concat()
    }

    /// The ticks of each period, from one point of consistency to the next. The last period lasts
    /// to the end.
    pub(crate) fn periods(&self) -> Vec<Ticks<'_>> {
        let begins = |at: &usize| self.ticks[*at].begins_capture;
        let starts: Vec<usize> = (0..self.ticks.len()).filter(begins).collect();
        let ends = starts.iter().skip(1).copied().chain([self.ticks.len()]);
        starts.iter().zip(ends).map(|(&start, end)| Ticks(&self.ticks[start..end])).collect()
    }

    /// A figure of each period.
    pub(crate) fn of_periods<'a>(&'a self, figure: impl Fn(Ticks<'a>) -> f64) -> Vec<f64> {
        self.periods().into_iter().map(figure).collect()
    }

    /// `[seconds, latency in ms]` of each tick.
    pub(crate) fn latency_points(&self) -> Vec<[f64; 2]> {
        self.ticks.iter().map(|tick| [tick.at_s, ms(tick.latency_ns())]).collect()
    }

    /// `[seconds, latency in ms]` of each tick of the baseline.
    pub(crate) fn raw_points(&self) -> Vec<[f64; 2]> {
        self.ticks.iter().map(|tick| [tick.at_s, ms(tick.raw_ns)]).collect()
    }
}

/// Some ticks of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks<'a>(pub(crate) &'a [Tick]);

impl Ticks<'_> {
    /// Points of consistency.
    pub(crate) fn captures(self) -> usize {
        self.0.iter().filter(|tick| tick.begins_capture).count()
    }

    /// Milliseconds of the mutator's CPU time beyond the baseline's, per point of consistency:
    /// "overhead per checkpoint".
    pub(crate) fn overhead_ms(self) -> f64 {
        let beyond = |tick: &Tick| ms(tick.cpu_ns) - ms(tick.raw_cpu_ns);
        self.0.iter().map(beyond).sum::<f64>() / self.captures() as f64
    }

    /// The mutator's CPU time beyond the baseline's, as a share of ticks of this length.
    pub(crate) fn overhead_share(self, tick_s: f64) -> f64 {
        let beyond = |tick: &Tick| tick.cpu_ns as f64 - tick.raw_cpu_ns as f64;
        mean(self.0.iter().map(beyond)) / 1e9 / tick_s
    }

    /// Mean latency of a tick, in ms.
    pub(crate) fn mean_ms(self) -> f64 {
        mean(self.0.iter().map(|tick| ms(tick.latency_ns())))
    }

    /// Greatest latency of a tick, in ms.
    pub(crate) fn max_ms(self) -> f64 {
        max(self.0.iter().map(|tick| ms(tick.latency_ns())))
    }

    /// Greatest latency of a tick during a capture or at its beginning, in ms.
    pub(crate) fn max_captured_ms(self) -> f64 {
        let captured = self.0.iter().filter(|tick| tick.is_captured || tick.begins_capture);
        max(captured.map(|tick| ms(tick.latency_ns())))
    }

    /// Mean latency of the baseline, in ms.
    pub(crate) fn raw_mean_ms(self) -> f64 {
        mean(self.0.iter().map(|tick| ms(tick.raw_ns)))
    }

    /// Greatest latency of the baseline, in ms.
    pub(crate) fn raw_max_ms(self) -> f64 {
        max(self.0.iter().map(|tick| ms(tick.raw_ns)))
    }

    /// Microseconds of the tick ends at which captures began.
    pub(crate) fn boundaries_us(self) -> Vec<f64> {
        let begun = self.0.iter().filter(|tick| tick.begins_capture);
        begun.map(|tick| tick.boundary_ns as f64 / 1e3).collect()
    }

    /// Microseconds of the tick ends at which no capture began.
    pub(crate) fn other_ends_us(self) -> Vec<f64> {
        let others = self.0.iter().filter(|tick| !tick.begins_capture);
        others.map(|tick| tick.boundary_ns as f64 / 1e3).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(work_ns: u64, boundary_ns: u64, begins_capture: bool) -> Tick {
        let (raw_ns, raw_cpu_ns) = (work_ns / 2, work_ns / 2);
        let cpu_ns = work_ns + boundary_ns;
        Tick { work_ns, boundary_ns, cpu_ns, raw_ns, raw_cpu_ns, begins_capture, ..Tick::default() }
    }

    #[test]
    fn periods_begin_with_their_captures() {
        let ms = 1_000_000;
        let ticks = vec![
            tick(9 * ms, 0, false), // before the first point of consistency: in no period
            tick(2 * ms, 3 * ms, true),
            tick(4 * ms, 0, false),
            tick(6 * ms, ms, true),
        ];
        let outcome = Outcome {
            scheme: "x".into(),
            ticks,
            image_s: Vec::new(),
            writer_cpu_s: 0.0,
            state_bytes: 1,
            held_bytes: 2,
            huge_page_bytes: 0,
            further: vec![tick(ms, 2 * ms, true)],
            recovery: None,
        };
        assert_eq!(outcome.of_periods(Ticks::overhead_ms), [6.0, 4.0]);
        assert_eq!(outcome.of_periods(Ticks::max_ms), [5.0, 7.0]);
        assert_eq!(outcome.of_periods(Ticks::raw_max_ms), [2.0, 3.0]);
        assert_eq!(outcome.all().boundaries_us(), [3000.0, 1000.0]);
        assert_eq!(outcome.all_boundaries_us(), [3000.0, 1000.0, 2000.0]);
        assert_eq!(outcome.all().other_ends_us(), [0.0, 0.0]);
        assert_eq!((outcome.all().captures(), outcome.all().max_captured_ms()), (2, 7.0));
        // 4.5 + 4 + 2 + 4 ms more in four ticks of 0.1 s.
        assert!((outcome.all().overhead_share(0.1) - 0.0145 / 0.4).abs() < 1e-12);
    }
}
