//! Medians and spreads, windows of throughput, lost transactions, latencies.
//!
//! "Total transactions lost" is the CALC paper's measure (§5.1.1): the area
//! below the baseline's curve minus the area below the run's.

mod latencies;

use serde::{Deserialize, Serialize};

pub(crate) use latencies::{Latencies, Percentiles};

/// Width of a window in every experiment.
pub(crate) const WINDOW_NS: u64 = 100_000_000;

/// The median of several runs, with the smallest and the greatest.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Spread {
    /// Middle value; the mean of the middle two for an even count.
    pub(crate) median: f64,
    /// The smallest value.
    pub(crate) low: f64,
    /// The greatest value.
    pub(crate) high: f64,
    /// Number of values.
    pub(crate) runs: usize,
}

impl Spread {
    /// `None` for no values, or when one of them is no number.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: quantile(&sorted, 0.5),
            low: sorted[0],
            high: sorted[sorted.len() - 1],
            runs: sorted.len(),
        })
    }
}

/// A number with its noun in singular or plural: `1 run`, `5 runs`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// The words of a caption for this number of runs.
pub(crate) fn spread_of(runs: usize) -> String {
    if runs == 1 { "one run".into() } else { format!("median and spread of {runs} runs") }
}

/// `above ÷ below` of two measured costs. Not-a-number unless both are above zero, since a
/// difference that drowned in noise has no meaningful ratio.
pub(crate) fn cost_ratio(above: f64, below: f64) -> f64 {
    if above > 0.0 && below > 0.0 { above / below } else { f64::NAN }
}

/// A smaller loss, as a share of its baseline, is none: it drowns in noise.
const LEAST_LOSS: f64 = 0.001;

/// `above ÷ below` of two losses, each a share of its own baseline. A loss below a thousandth counts as a
/// thousandth. So who loses where the other does not is far above it, and who loses nothing is far below.
/// Not-a-number if neither loses, or if one of them is not known.
pub(crate) fn loss_ratio(above: f64, below: f64) -> f64 {
    let known = |loss: f64| if loss.is_nan() { loss } else { loss.max(LEAST_LOSS) };
    let has_one = above > LEAST_LOSS || below > LEAST_LOSS;
    if has_one { known(above) / known(below) } else { f64::NAN }
}

/// The least and the greatest value, or not-a-numbers for no values.
pub(crate) fn ends(values: &[f64]) -> [f64; 2] {
    Spread::of(values).map_or([f64::NAN; 2], |s| [s.low, s.high])
}

/// The median, or not-a-number for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    Spread::of(values).map_or(f64::NAN, |s| s.median)
}

/// The value below which the share `q` of the sorted values lies, interpolated.
///
/// # Panics
/// When `sorted` is empty.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Events counted in windows of equal width since a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    width_ns: u64,
    counts: Vec<u64>,
}

impl Windows {
    /// Empty windows of [`WINDOW_NS`].
    pub(crate) fn new() -> Windows {
        Windows::with_width(WINDOW_NS)
    }

    /// Empty windows of another width.
    ///
    /// # Panics
    /// When the width is zero.
    pub(crate) fn with_width(width_ns: u64) -> Windows {
        assert!(width_ns > 0, "windows need a width");
        Windows { width_ns, counts: Vec::new() }
    }

    /// The same windows with all counts multiplied.
    pub(crate) fn scaled(&self, factor: f64) -> Windows {
        let counts = self.counts.iter().map(|&count| (count as f64 * factor).round() as u64);
        Windows { width_ns: self.width_ns, counts: counts.collect() }
    }

    /// Counts `events` at a time since the start.
    pub(crate) fn add(&mut self, since_start_ns: u64, events: u64) {
        let window = (since_start_ns / self.width_ns) as usize;
        if window >= self.counts.len() {
            self.counts.resize(window + 1, 0);
        }
        self.counts[window] += events;
    }

    /// Makes the windows cover exactly `duration_ns`. Silent windows count zero, and a last window
    /// that the run filled only in part is dropped.
    pub(crate) fn fit(&mut self, duration_ns: u64) {
        self.counts.resize((duration_ns / self.width_ns) as usize, 0);
    }

    /// Adds the counts of another thread's windows.
    ///
    /// # Panics
    /// When the widths differ.
    pub(crate) fn merge(&mut self, other: &Windows) {
        assert_eq!(self.width_ns, other.width_ns, "windows of one run have one width");
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// The number of all events.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Width of one window in seconds.
    pub(crate) fn width_s(&self) -> f64 {
        self.width_ns as f64 / 1e9
    }

    /// Seconds that the windows cover.
    pub(crate) fn covered_s(&self) -> f64 {
        self.counts.len() as f64 * self.width_s()
    }

    /// Events per second, window by window.
    pub(crate) fn rates(&self) -> Vec<f64> {
        self.counts.iter().map(|&n| n as f64 / self.width_s()).collect()
    }

    /// `[middle of the window in s, events per second]`, for a figure.
    pub(crate) fn points(&self) -> Vec<[f64; 2]> {
        let middle = |i: usize| (i as f64 + 0.5) * self.width_s();
        self.rates().into_iter().enumerate().map(|(i, rate)| [middle(i), rate]).collect()
    }

    /// The rates of the windows that overlap `[from_s, to_s)`.
    pub(crate) fn rates_between(&self, from_s: f64, to_s: f64) -> Vec<f64> {
        let (first, last) = self.range(from_s, to_s);
        self.rates()[first..last].to_vec()
    }

    fn range(&self, from_s: f64, to_s: f64) -> (usize, usize) {
        let first = (from_s.max(0.0) / self.width_s() + 1e-9).floor() as usize;
        let last = (to_s.max(0.0) / self.width_s() - 1e-9).ceil() as usize;
        let last = last.min(self.counts.len());
        (first.min(last), last)
    }

    /// Mean rate over the windows that overlap `[from_s, to_s)`; not-a-number if there are none.
    pub(crate) fn mean_rate(&self, from_s: f64, to_s: f64) -> f64 {
        let rates = self.rates_between(from_s, to_s);
        rates.iter().sum::<f64>() / rates.len() as f64
    }

    /// The lowest rate of a window that overlaps `[from_s, to_s)`; not-a-number if there are none.
    pub(crate) fn worst_rate(&self, from_s: f64, to_s: f64) -> f64 {
        self.rates_between(from_s, to_s).into_iter().fold(f64::NAN, f64::min)
    }
}

impl Default for Windows {
    fn default() -> Self {
        Windows::new()
    }
}

/// Area of the baseline minus area of the run over `[from_s, to_s)`, in events.
/// Negative when the run did more than the baseline.
pub(crate) fn lost(baseline: &Windows, run: &Windows, from_s: f64, to_s: f64) -> f64 {
    let area = |w: &Windows| w.rates_between(from_s, to_s).iter().sum::<f64>() * w.width_s();
    area(baseline) - area(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_the_median_and_the_ends() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0, 10.0]).expect("numbers");
        assert_eq!((spread.median, spread.low, spread.high, spread.runs), (2.5, 1.0, 10.0, 4));
        assert_eq!(ends(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
        assert!(ends(&[]).iter().all(|it| it.is_nan()));
        assert!((quantile(&[0.0, 10.0], 0.25) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!((counted(1, "run"), counted(5, "run")), ("1 run".into(), "5 runs".into()));
        assert_eq!(spread_of(1), "one run");
    }

    #[test]
    fn a_ratio_of_costs_needs_two_costs() {
        assert_eq!(cost_ratio(3.0, 2.0), 1.5);
        for (above, below) in [(1.0, 0.0), (1.0, -2.0), (-1.0, 2.0), (-1.0, -2.0), (f64::NAN, 1.0)]
        {
            assert!(cost_ratio(above, below).is_nan(), "{above} ÷ {below}");
        }
    }

    #[test]
    fn losses_are_compared_where_one_is_there() {
        let cases = [(0.3, 0.2, 1.5), (-0.1, 0.2, 0.005), (0.0, 0.2, 0.005), (0.2, -0.1, 200.0)];
        for (above, below, wanted) in cases {
            assert!((loss_ratio(above, below) - wanted).abs() < 1e-9, "{above} ÷ {below}");
        }
        for (above, below) in [(-0.1, -0.2), (0.0005, 0.0), (f64::NAN, 0.1), (0.1, f64::NAN)] {
            assert!(loss_ratio(above, below).is_nan(), "{above} ÷ {below}");
        }
    }

    #[test]
    fn lost_is_the_area_between_two_curves() {
        let (mut base, mut run) = (Windows::new(), Windows::new());
        for window in 0..20 {
            base.add(window * WINDOW_NS, 1_000);
            let halved = (5..10).contains(&window);
            run.add(window * WINDOW_NS + 7, if halved { 500 } else { 1_000 });
        }
        assert!((lost(&base, &run, 0.0, 2.0) - 2_500.0).abs() < 1e-6);
        assert!((lost(&base, &run, 0.5, 1.0) - 2_500.0).abs() < 1e-6);
        assert!(lost(&base, &run, 1.0, 2.0).abs() < 1e-6);
        assert_eq!(run.worst_rate(0.0, 2.0), 5_000.0);
        assert_eq!(run.worst_rate(1.0, 2.0), 10_000.0);
        assert!((run.mean_rate(0.0, 1.0) - 7_500.0).abs() < 1e-6);
        assert!(run.worst_rate(5.0, 6.0).is_nan(), "no window, no figure");
    }

    #[test]
    fn silent_windows_count_zero_and_a_partial_one_is_dropped() {
        let mut windows = Windows::new();
        windows.add(0, 5);
        windows.add(3 * WINDOW_NS + 1, 1);
        windows.fit(3 * WINDOW_NS + 50);
        assert_eq!(windows.rates(), vec![50.0, 0.0, 0.0]);
        assert_eq!(windows.worst_rate(0.0, 0.3), 0.0);
    }

    #[test]
    fn merged_windows_add_up() {
        let (mut a, mut b) = (Windows::new(), Windows::new());
        a.add(0, 1);
        b.add(WINDOW_NS, 2);
        a.merge(&b);
        assert_eq!(a.rates(), vec![10.0, 20.0]);
        assert_eq!(a.total(), 3);
    }
}
