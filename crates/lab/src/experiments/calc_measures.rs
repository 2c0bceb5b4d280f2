//! Measures of a run relative to its baseline.

use crate::drivers::transactions::{Capture, Outcome};
use crate::measure::stats::lost;
use crate::report::result::Bound;

/// Transactions of a run in these seconds.
fn transactions(run: &Outcome, from_s: f64, to_s: f64) -> f64 {
    run.windows.rates_between(from_s, to_s).iter().sum::<f64>() * run.windows.width_s()
}

/// Share of the baseline's transactions in these seconds that the run lost.
fn lost_share_of(baseline: &Outcome, run: &Outcome, spans: &[(f64, f64)]) -> f64 {
    let (mut area, mut missing) = (0.0, 0.0);
    for &(from_s, to_s) in spans {
        area += transactions(baseline, from_s, to_s);
        missing += lost(&baseline.windows, &run.windows, from_s, to_s);
    }
    missing / area
}

/// Share of the baseline's transactions that the run lost while it captured. Not-a-number without a capture.
pub(crate) fn capture_lost_share(baseline: &Outcome, run: &Outcome) -> f64 {
    let spans: Vec<(f64, f64)> = run.captures.iter().map(|c| (c.from_s, c.to_s)).collect();
    lost_share_of(baseline, run, &spans)
}

/// Share of the baseline's transactions that the run lost over its whole length.
pub(crate) fn lost_share(baseline: &Outcome, run: &Outcome) -> f64 {
    lost_share_of(baseline, run, &[(0.0, run.seconds)])
}

/// What the run lost while it captured, as a share of the baseline's transactions over the whole length.
pub(crate) fn lost_in_captures(baseline: &Outcome, run: &Outcome) -> f64 {
    capture_lost(baseline, run) / transactions(baseline, 0.0, run.seconds)
}

/// Share of the baseline's transactions that the run lost while it captured, in %.
pub(crate) fn capture_loss_percent(baseline: &Outcome, run: &Outcome) -> f64 {
    100.0 * capture_lost_share(baseline, run)
}

/// Share of the baseline's transactions that the run did while it captured.
pub(crate) fn capture_kept(baseline: &Outcome, run: &Outcome) -> f64 {
    1.0 - capture_lost_share(baseline, run)
}

/// Transactions that the run lost while it captured.
pub(crate) fn capture_lost(baseline: &Outcome, run: &Outcome) -> f64 {
    let lost_in = |c: &Capture| lost(&baseline.windows, &run.windows, c.from_s, c.to_s);
    run.captures.iter().map(lost_in).sum()
}

/// The greatest loss of a checkpoint of changes ÷ that of a full one. The losses follow the share of
/// the records that have changed.
pub(crate) fn loss_bound(hot_share: f64) -> Bound {
    Bound::AtMost(((300.0 * hot_share).round() / 100.0).min(1.0))
}

/// Share of the baseline's transactions that the run lost while it merged, in %. Not-a-number
/// without a merge.
pub(crate) fn merge_loss_percent(baseline: &Outcome, run: &Outcome) -> f64 {
    let merging = Outcome { captures: run.merges.clone(), ..run.clone() };
    capture_loss_percent(baseline, &merging)
}

/// The run's throughput before its first checkpoint ÷ the baseline's in the same time.
pub(crate) fn before_ratio(baseline: &Outcome, run: &Outcome) -> f64 {
    let first_s = run.captures.first().map_or(run.seconds, |capture| capture.from_s);
    // The window in which the checkpoint begins belongs to the checkpoint.
    let width_s = run.windows.width_s();
    let until_s = (first_s / width_s).floor() * width_s;
    run.windows.mean_rate(0.0, until_s) / baseline.windows.mean_rate(0.0, until_s)
}

/// The run's throughput within its first checkpoint ÷ that before, beside the same of the baseline. Costs
/// at rest cancel out.
pub(crate) fn kept_ratio(baseline: &Outcome, run: &Outcome) -> f64 {
    let Some(capture) = run.captures.first() else { return f64::NAN };
    let within = |it: &Outcome| it.windows.mean_rate(capture.from_s, capture.to_s);
    within(run) / within(baseline) / before_ratio(baseline, run)
}

/// Transactions lost over the whole run.
pub(crate) fn lost_transactions(baseline: &Outcome, run: &Outcome) -> f64 {
    lost(&baseline.windows, &run.windows, 0.0, run.seconds)
}

/// The run's worst window while it captured ÷ the baseline's worst in the same time.
pub(crate) fn worst_window_ratio(baseline: &Outcome, run: &Outcome) -> f64 {
    let worst = |outcome: &Outcome| {
        let spans = run.captures.iter().map(|c| outcome.windows.worst_rate(c.from_s, c.to_s));
        spans.fold(f64::NAN, f64::min)
    };
    worst(run) / worst(baseline)
}

/// Seconds of the run's checkpoints, on average.
pub(crate) fn capture_seconds(run: &Outcome) -> f64 {
    run.captures.iter().map(|c| c.seconds()).sum::<f64>() / run.captures.len() as f64
}

/// Seconds from the begin of a checkpoint until the next one may begin, on average.
pub(crate) fn ready_seconds(run: &Outcome) -> f64 {
    run.captures.iter().map(|c| c.ready_s).sum::<f64>() / run.captures.len() as f64
}

/// Longest time in which no commit could begin in one of the run's checkpoints, in milliseconds.
pub(crate) fn stopped_ms(run: &Outcome) -> f64 {
    run.captures.iter().map(|c| c.stopped_s * 1e3).fold(0.0, f64::max)
}

/// CPU seconds of one checkpoint: what the run used in the background beyond the baseline.
pub(crate) fn checkpoint_cpu_s(baseline: &Outcome, run: &Outcome) -> f64 {
    (run.background_cpu_s - baseline.background_cpu_s).max(0.0) / run.captures.len() as f64
}

/// Expected peak of the copies that uniform updates need during a capture, as a share of the
/// database. The peak is the greatest (1 − x)(1 − e^(−r·x)) for x in [0, 1], with r the rate of
/// updates ÷ the rate of capture. The formula leaves out long transactions and before-images.
pub(crate) fn expected_copies(r: f64) -> f64 {
    let share = |x: f64| (1.0 - x) * (1.0 - (-r * x).exp());
    (0..=10_000).map(|i| share(f64::from(i) / 10_000.0)).fold(0.0, f64::max)
}

/// Share of the records that `r` updates per captured record touch at least once.
pub(crate) fn dirty_share(r: f64) -> f64 {
    1.0 - (-r).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::stats::WINDOW_NS;

    fn outcome(rates: &[u64], capture: Option<(f64, f64)>) -> Outcome {
        let mut outcome = Outcome { seconds: rates.len() as f64 / 10.0, ..Outcome::default() };
        for (window, &rate) in rates.iter().enumerate() {
            outcome.windows.add(window as u64 * WINDOW_NS, rate);
        }
        let capture = capture.map(|(from_s, to_s)| Capture { from_s, to_s, ..Capture::default() });
        outcome.captures.extend(capture);
        outcome
    }

    #[test]
    fn losses_are_those_of_the_capture() {
        let baseline = outcome(&[100, 100, 90, 100, 100], None);
        let run = outcome(&[100, 100, 81, 60, 90], Some((0.2, 0.4)));
        let loss = capture_loss_percent(&baseline, &run);
        assert!((loss - (9.0 + 40.0) / 190.0 * 100.0).abs() < 1e-9, "{loss}");
        assert!((capture_lost(&baseline, &run) - 49.0).abs() < 1e-9);
        assert!(merge_loss_percent(&baseline, &run).is_nan(), "nothing is merged");
        let merging = Outcome { merges: run.captures.clone(), captures: Vec::new(), ..run.clone() };
        assert!((merge_loss_percent(&baseline, &merging) - loss).abs() < 1e-9);
        assert!((lost_transactions(&baseline, &run) - 59.0).abs() < 1e-9);
        assert!((lost_share(&baseline, &run) - 59.0 / 490.0).abs() < 1e-9);
        assert!((lost_in_captures(&baseline, &run) - 49.0 / 490.0).abs() < 1e-9);
        assert!((capture_kept(&baseline, &run) - (1.0 - 49.0 / 190.0)).abs() < 1e-9);
        assert!((worst_window_ratio(&baseline, &run) - 60.0 / 90.0).abs() < 1e-9);
        assert!((capture_seconds(&run) - 0.2).abs() < 1e-9);
        let ready = |ready_s| Capture { ready_s, ..Capture::default() };
        let twice = Outcome { captures: vec![ready(0.2), ready(0.4)], ..run.clone() };
        assert!((ready_seconds(&twice) - 0.3).abs() < 1e-9);
        assert!(worst_window_ratio(&baseline, &baseline).is_nan(), "no capture, no figure");
    }

    #[test]
    fn what_comes_before_the_checkpoint_is_compared_alone() {
        let baseline = outcome(&[100, 100, 90, 100, 100], None);
        let run = outcome(&[96, 94, 10, 10, 90], Some((0.25, 0.4)));
        assert!((before_ratio(&baseline, &run) - 0.95).abs() < 1e-9);
        assert!((kept_ratio(&baseline, &run) - 20.0 / 190.0 / 0.95).abs() < 1e-9);
        let whole = Outcome { captures: Vec::new(), ..run };
        assert!((before_ratio(&baseline, &whole) - 300.0 / 490.0).abs() < 1e-9);
        assert!(kept_ratio(&baseline, &whole).is_nan(), "no checkpoint");
    }

    #[test]
    fn the_bound_of_a_loss_is_a_round_number() {
        let of = |hot_share| loss_bound(hot_share).to_string();
        assert_eq!([of(0.1), of(0.2), of(1.0)], ["≤ 0.3", "≤ 0.6", "≤ 1"]);
    }

    #[test]
    fn the_formula_gives_the_known_peak() {
        assert!((expected_copies(1.0) - 0.199).abs() < 0.001, "{}", expected_copies(1.0));
        assert!(expected_copies(0.0).abs() < 1e-12);
        assert!(expected_copies(4.0) > expected_copies(1.0));
        assert!((dirty_share(1.0) - 0.632).abs() < 0.001);
    }
}
