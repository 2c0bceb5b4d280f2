//! The check of the adviser: its recommendation beside the best row of longer runs of every scheme.

use super::{Limits, Measured, OfRecords, advise, measure_all};
use crate::context::Context;
use crate::error::LabResult;

/// A load whose recommendation is checked.
#[derive(Clone, Debug)]
pub(crate) struct CheckedLoad {
    /// Its name in tables.
    pub(crate) name: &'static str,
    question: OfRecords,
}

/// What came out for a load.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// The scheme that the adviser recommends.
    pub(crate) recommended: String,
    /// The scheme with the least processor time for a transaction in the longer runs, among those that keep
    /// the rate and the limits. `None` if no scheme keeps them.
    pub(crate) best: Option<String>,
    /// Processor time of the recommended scheme ÷ that of the best one, both in the longer runs.
    pub(crate) ratio: f64,
    /// Whether the recommended scheme keeps the rate and the limits in the longer run.
    pub(crate) keeps_limits: bool,
    /// Each scheme that takes checkpoints: microseconds for a transaction in the adviser's
    /// run and in the longer one, then the worst latency there in milliseconds.
    pub(crate) rows: Vec<(String, [f64; 3])>,
}

/// Three unlike loads. `share` of 1 is their full size.
pub(crate) fn loads(share: f64) -> [CheckedLoad; 3] {
    let scaled = |number: f64| Some((number * share).max(1_000.0) as u64);
    let of = |records: f64, rate: f64| OfRecords {
        records: scaled(records),
        value_bytes: 100,
        transactions_per_second: scaled(rate),
        touched: 10,
        updated: None,
        whole: false,
        hot: 1.0,
        checkpoint_every_ms: 1_000,
        pace_mb: None,
        journal: "redo".to_owned(),
        strict: false,
        worst_ms: None,
        memory_mib: None,
        schemes: Vec::new(),
    };
    [
        CheckedLoad { name: "uniform small updates, redo", question: of(1e6, 150e3) },
        CheckedLoad {
            name: "large values, read mostly, a tenth hot, redo",
            question: OfRecords {
                value_bytes: 1_000,
                updated: Some(1),
                whole: true,
                hot: 0.1,
                ..of(400e3, 60e3)
            },
        },
        CheckedLoad {
            name: "short transactions on a few hot records, no journal, 50 ms at worst",
            question: OfRecords {
                touched: 2,
                hot: 0.02,
                journal: "none".to_owned(),
                worst_ms: Some(50.0),
                ..of(2e6, 300e3)
            },
        },
    ]
}

/// Asks the adviser, and then measures every scheme for longer.
///
/// # Errors
/// The errors of [`advise`].
pub(crate) fn check(
    load: &CheckedLoad,
    [short_s, long_s]: [f64; 2],
    context: &Context,
) -> LabResult<Checked> {
    let advice = advise(&load.question, short_s, context)?;
    let long = measure_all(&load.question, long_s, context)?;
    Ok(judged(&advice.choice.recommended, [&advice.measured, &long], &load.question.limits()))
}

fn judged(recommended: &str, [short, long]: [&[Measured]; 2], limits: &Limits) -> Checked {
    let schemes = || long.iter().filter(|it| it.takes_checkpoints);
    let within = || schemes().filter(|it| limits.are_kept_by(it));
    let best = within().min_by(|a, b| a.cpu_us.total_cmp(&b.cpu_us));
    let taken = schemes().find(|it| it.scheme == recommended);
    let ratio = match (taken, best) {
        (Some(taken), Some(best)) => taken.cpu_us / best.cpu_us,
        _ => f64::NAN,
    };
    let row = |it: &Measured| {
        let of_short = short.iter().find(|other| other.scheme == it.scheme);
        (it.scheme.clone(), [of_short.map_or(f64::NAN, |it| it.cpu_us), it.cpu_us, it.worst_ms])
    };
    Checked {
        recommended: recommended.to_owned(),
        best: best.map(|it| it.scheme.clone()),
        ratio,
        keeps_limits: taken.is_some_and(|it| limits.are_kept_by(it)),
        rows: schemes().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(scheme: &str, cpu_us: f64, worst_ms: f64) -> Measured {
        Measured {
            scheme: scheme.to_owned(),
            takes_checkpoints: scheme != "none",
            transactions_per_s: 1000.0,
            keeps_rate: true,
            checkpoints: 10,
            keeps_interval: true,
            cpu_us,
            p50_ms: 0.01,
            p999_ms: 0.1,
            worst_ms,
            checkpoint_s: 0.1,
            stopped_ms: 0.0,
            checkpoint_bytes: 1,
            memory_bytes: 1,
            recovery_s: 0.1,
        }
    }

    #[test]
    fn the_best_row_is_one_within_the_limits() {
        let long = [
            measured("none", 1.0, 1.0),
            measured("naive", 2.0, 200.0),
            measured("calc", 2.5, 2.0),
            measured("zigzag", 3.0, 2.0),
        ];
        let limits = Limits { worst_ms: Some(50.0), memory_bytes: None };
        let all = [&long[..], &long[..]];
        let of = |scheme: &str| judged(scheme, all, &limits);
        let checked = of("zigzag");
        assert_eq!((checked.best.as_deref(), checked.keeps_limits), (Some("calc"), true));
        assert!((checked.ratio - 1.2).abs() < 1e-9 && checked.rows.len() == 3, "{checked:?}");
        assert!(!of("naive").keeps_limits, "its worst latency is too long");
        assert!(of("magic").ratio.is_nan());
        let slow = long.map(|it| Measured { keeps_rate: false, ..it });
        assert_eq!(judged("calc", [&slow, &slow], &limits).best, None);
    }
}
