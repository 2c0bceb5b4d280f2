//! Latencies by window, and their percentiles.

use hdrhistogram::Histogram;

use super::WINDOW_NS;

/// Latencies by window, so that percentiles of any stretch of the run can be computed.
///
/// A latency is counted in the window of its answer. Each latency is measured from the time at
/// which the request was *scheduled*. So a stalled server is charged for every request that it kept
/// waiting, sent or not.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    width_ns: u64,
    windows: Vec<Option<Histogram<u32>>>,
}

/// 1 µs to 1,000 s in steps of 1 %.
fn empty_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1_000, 1_000_000_000_000, 2).expect("constant bounds are valid")
}

impl Latencies {
    /// No latencies yet, in windows of [`WINDOW_NS`].
    pub(crate) fn new() -> Latencies {
        Latencies { width_ns: WINDOW_NS, windows: Vec::new() }
    }

    /// Counts one latency whose answer came `since_start_ns` after the start.
    pub(crate) fn record(&mut self, since_start_ns: u64, latency_ns: u64) {
        self.record_many(since_start_ns, latency_ns, 1);
    }

    /// Counts one latency `count` times, for requests that were sent as one batch.
    pub(crate) fn record_many(&mut self, since_start_ns: u64, latency_ns: u64, count: u32) {
        let window = (since_start_ns / self.width_ns) as usize;
        if window >= self.windows.len() {
            self.windows.resize(window + 1, None);
        }
        let histogram = self.windows[window].get_or_insert_with(empty_histogram);
        histogram.saturating_record_n(latency_ns, count);
    }

    /// Adds another thread's latencies.
    ///
    /// # Panics
    /// When the widths differ.
    pub(crate) fn merge(&mut self, other: &Latencies) {
        assert_eq!(self.width_ns, other.width_ns, "latencies of one run have one width");
        if other.windows.len() > self.windows.len() {
            self.windows.resize(other.windows.len(), None);
        }
        for (mine, theirs) in self.windows.iter_mut().zip(&other.windows) {
            match (mine.as_mut(), theirs) {
                (Some(mine), Some(theirs)) => mine.add(theirs).expect("equal bounds"),
                (None, Some(theirs)) => *mine = Some(theirs.clone()),
                (_, None) => {}
            }
        }
    }

    /// All latencies answered in windows that overlap one of these stretches `[from, to)`, in seconds.
    pub(crate) fn within(&self, stretches: &[[f64; 2]]) -> Percentiles {
        let width_s = self.width_ns as f64 / 1e9;
        let windows = |&[from_s, to_s]: &[f64; 2]| {
            let first = (from_s.max(0.0) / width_s + 1e-9).floor() as usize;
            first..(to_s.max(0.0) / width_s - 1e-9).ceil() as usize
        };
        let windows: Vec<_> = stretches.iter().map(windows).collect();
        let mut sum = empty_histogram_wide();
        for (window, histogram) in self.windows.iter().enumerate() {
            if !windows.iter().any(|stretch| stretch.contains(&window)) {
                continue;
            }
            for step in histogram.iter().flat_map(|histogram| histogram.iter_recorded()) {
                let count = u64::from(step.count_at_value());
                sum.saturating_record_n(step.value_iterated_to(), count);
            }
        }
        Percentiles { histogram: sum }
    }

    /// The distribution of all latencies.
    pub(crate) fn all(&self) -> Percentiles {
        self.within(&[[0.0, self.windows.len() as f64 * self.width_ns as f64 / 1e9]])
    }

    /// `[middle of the window in s, the q-th latency in ms]`, for a figure. Silent windows are left
    /// out.
    pub(crate) fn points_ms(&self, q: f64) -> Vec<[f64; 2]> {
        let width_s = self.width_ns as f64 / 1e9;
        let point = |(i, h): (usize, &Option<Histogram<u32>>)| {
            let h = h.as_ref()?;
            Some([(i as f64 + 0.5) * width_s, h.value_at_quantile(q) as f64 / 1e6])
        };
        self.windows.iter().enumerate().filter_map(point).collect()
    }
}

fn empty_histogram_wide() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 1_000_000_000_000, 2).expect("constant bounds are valid")
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

/// The distribution of the latencies of one stretch of a run.
#[derive(Clone, Debug)]
pub(crate) struct Percentiles {
    histogram: Histogram<u64>,
}

impl Percentiles {
    /// Number of latencies.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency in ms that the share `q` of the requests does not exceed; not-a-number for none.
    pub(crate) fn ms(&self, q: f64) -> f64 {
        if self.histogram.is_empty() {
            return f64::NAN;
        }
        self.histogram.value_at_quantile(q) as f64 / 1e6
    }

    /// The median latency in ms.
    #[cfg(test)]
    pub(crate) fn p50_ms(&self) -> f64 {
        self.ms(0.5)
    }

    /// The 99th percentile in ms.
    pub(crate) fn p99_ms(&self) -> f64 {
        self.ms(0.99)
    }

    /// The 99.9th percentile in ms.
    pub(crate) fn p999_ms(&self) -> f64 {
        self.ms(0.999)
    }

    /// The greatest latency in ms.
    pub(crate) fn max_ms(&self) -> f64 {
        if self.histogram.is_empty() { f64::NAN } else { self.histogram.max() as f64 / 1e6 }
    }

    /// `[latency in ms, share of requests that took longer]`: the tail, for a figure with log axes. A share that
    /// falls by less than a hundredth of all, and by less than a tenth, has no point of its own.
    pub(crate) fn tail_points(&self) -> Vec<[f64; 2]> {
        let total = self.histogram.len() as f64;
        let (mut seen, mut drawn) = (0, 1.0);
        let mut points: Vec<[f64; 2]> = Vec::new();
        for step in self.histogram.iter_recorded() {
            seen += step.count_at_value();
            let beyond = 1.0 - seen as f64 / total;
            if beyond <= 0.0 {
                break;
            }
            let point = [step.value_iterated_to() as f64 / 1e6, beyond];
            // The first point and the last stay.
            let falls = beyond <= drawn - 0.01 || beyond <= 0.9 * drawn || points.len() < 2;
            match points.last_mut().filter(|_| !falls) {
                Some(last) => *last = point,
                None => {
                    points.push(point);
                    drawn = beyond;
                }
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_belong_to_their_stretch() {
        let mut latencies = Latencies::new();
        for i in 0..1_000_u64 {
            latencies.record(i * 1_000_000, 1_000_000);
        }
        for i in 0..10_u64 {
            latencies.record(500_000_000 + i, 50_000_000);
        }
        let rest = latencies.within(&[[0.0, 0.5]]);
        assert_eq!(rest.count(), 500);
        assert!((rest.max_ms() - 1.0).abs() < 0.02, "{}", rest.max_ms());
        let save = latencies.within(&[[0.5, 0.6]]);
        assert_eq!(save.count(), 110);
        assert!((save.p99_ms() - 50.0).abs() < 1.0, "{}", save.p99_ms());
        assert!((save.p50_ms() - 1.0).abs() < 0.02);
        let apart = latencies.within(&[[0.5, 0.6], [0.9, 1.0], [0.91, 0.92]]);
        assert_eq!(apart.count(), 210, "each window once");
        assert_eq!(latencies.all().count(), 1_010);
        assert!(latencies.within(&[[7.0, 8.0]]).p50_ms().is_nan());
    }

    #[test]
    fn merged_latencies_add_up() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record_many(0, 2_000_000, 3);
        b.record(0, 4_000_000);
        b.record(WINDOW_NS, 8_000_000);
        a.merge(&b);
        assert_eq!(a.all().count(), 5);
        assert!((a.all().max_ms() - 8.0).abs() < 0.1);
        assert_eq!(a.points_ms(1.0).len(), 2);
        let tail = a.all().tail_points();
        assert!((tail[0][1] - 0.4).abs() < 1e-9, "{tail:?}");
    }

    #[test]
    fn a_tail_has_few_points() {
        let mut latencies = Latencies::new();
        (1..200_000_u64).for_each(|i| latencies.record(0, i * 1_000));
        let tail = latencies.all().tail_points();
        assert!((100..300).contains(&tail.len()), "{}", tail.len());
        assert!(tail.is_sorted_by(|a, b| a[0] < b[0] && a[1] > b[1]));
        assert!(tail[0][1] > 0.99 && tail[tail.len() - 1][1] < 0.01, "{tail:?}");
        let steps = tail.windows(2).skip(1).map(|two| two[0][1] - two[1][1]);
        assert!(steps.fold(0.0, f64::max) < 0.03);
    }
}
