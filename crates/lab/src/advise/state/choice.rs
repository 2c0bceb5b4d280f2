//! From figures to a recommendation.

use stillpoint_state::registry;

use super::Measured;
use crate::advise::Choice;

/// The limits that a scheme must keep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// Longest work of a tick, in microseconds.
    pub(super) worst_tick_us: Option<f64>,
    /// Most memory, as a multiple of the state.
    pub(super) copies_max: Option<f64>,
}

/// Overheads that differ by less than this, in percent of a tick, count as equal: ticks vary by as
/// much.
const SAME_PERCENT: f64 = 0.05;

/// The scheme with the least overhead among those within the limits. Among equal overheads the
/// least memory decides. If no scheme keeps the limits, the shortest worst tick decides. `None` for
/// no schemes.
pub(super) fn choose(measured: &[Measured], limits: &Limits) -> Option<Choice> {
    let fits_memory = |it: &&Measured| limits.copies_max.is_none_or(|most| it.copies <= most);
    let is_in_time =
        |it: &&Measured| limits.worst_tick_us.is_none_or(|most| it.worst_tick_us <= most);
    let fitting: Vec<&Measured> = measured.iter().filter(fits_memory).collect();
    let within: Vec<&Measured> = fitting.iter().copied().filter(is_in_time).collect();
    if let Some(choice) = cheapest(&within) {
        return Some(choice);
    }
    let by_worst = |a: &&Measured, b: &&Measured| a.worst_tick_us.total_cmp(&b.worst_tick_us);
    if let Some(best) = fitting.into_iter().min_by(by_worst) {
        let reason = format!(
            "no scheme keeps the worst tick within {:.0} us; {} comes closest with {:.0} us, where \
             the baseline without checkpoints had {:.0} us. {}",
            limits.worst_tick_us.unwrap_or(f64::INFINITY),
            best.scheme,
            best.worst_tick_us,
            best.raw_worst_tick_us,
            about(&best.scheme),
        );
        return Some(Choice { recommended: best.scheme.clone(), reason, is_within_limits: false });
    }
    let best = measured.iter().min_by(|a, b| a.copies.total_cmp(&b.copies))?;
    let reason = format!(
        "no scheme holds the state within {} times its size; {} needs the least, {:.2} times. {}",
        limits.copies_max.unwrap_or(f64::INFINITY),
        best.scheme,
        best.copies,
        about(&best.scheme),
    );
    Some(Choice { recommended: best.scheme.clone(), reason, is_within_limits: false })
}

fn cheapest(within: &[&Measured]) -> Option<Choice> {
    let least = within.iter().map(|it| it.overhead_percent).min_by(f64::total_cmp)?;
    let mut best: Vec<&Measured> = within.to_vec();
    best.retain(|it| it.overhead_percent <= least + SAME_PERCENT);
    best.sort_by(|a, b| {
        a.copies.total_cmp(&b.copies).then(a.worst_tick_us.total_cmp(&b.worst_tick_us))
    });
    let taken = best.first()?;
    let others = best.len() - 1;
    let why = match others {
        0 => "the least overhead".to_owned(),
        1 => "of the two with the least overhead, the one that holds less memory".to_owned(),
        _ => format!(
            "of the {} with the least overhead, the one that holds the least memory",
            others + 1
        ),
    };
    let reason = format!(
        "{why}: {:.3} % of a tick, worst tick {:.0} us (baseline {:.0} us), {:.2} times the state. {}",
        taken.overhead_percent,
        taken.worst_tick_us,
        taken.raw_worst_tick_us,
        taken.copies,
        about(&taken.scheme),
    );
    Some(Choice { recommended: taken.scheme.clone(), reason, is_within_limits: true })
}

/// The registry's description of a scheme.
fn about(name: &str) -> String {
    registry::REGISTRY
        .find(name)
        .map_or(String::new(), |row| format!("{}: {}.", row.scheme, row.about))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(scheme: &str, overhead_percent: f64, worst_tick_us: f64, copies: f64) -> Measured {
        Measured {
            scheme: scheme.into(),
            overhead_percent,
            mean_tick_us: 100.0,
            worst_tick_us,
            raw_worst_tick_us: 150.0,
            boundary_us: 1.0,
            memory_bytes: 1,
            copies,
            image_s: 0.1,
            recovery_s: 0.1,
        }
    }

    fn all() -> Vec<Measured> {
        vec![
            measured("ns", 0.20, 25_000.0, 2.0),
            measured("ipp", 0.10, 200.0, 3.5),
            measured("hg", 0.12, 210.0, 2.8),
            measured("pb", 0.30, 190.0, 2.3),
        ]
    }

    fn taken(worst_tick_us: Option<f64>, copies_max: Option<f64>) -> (String, bool) {
        let choice = choose(&all(), &Limits { worst_tick_us, copies_max }).expect("there are some");
        assert!(choice.reason.contains("times") || choice.reason.contains("us"), "{choice:?}");
        (choice.recommended, choice.is_within_limits)
    }

    #[test]
    fn the_cheapest_within_the_limits_is_taken_and_of_equals_the_smallest() {
        assert_eq!(taken(Some(500.0), None), ("hg".into(), true), "ipp costs the same, holds more");
        assert_eq!(taken(Some(205.0), None), ("ipp".into(), true));
        assert_eq!(taken(Some(500.0), Some(2.5)), ("pb".into(), true));
        assert_eq!(taken(None, Some(2.1)), ("ns".into(), true));
    }

    #[test]
    fn without_any_the_nearest_is_named() {
        assert_eq!(taken(Some(100.0), None), ("pb".into(), false));
        assert_eq!(taken(Some(100.0), Some(2.1)), ("ns".into(), false));
        assert_eq!(taken(Some(500.0), Some(1.5)), ("ns".into(), false));
        assert_eq!(choose(&[], &Limits::default()), None);
    }
}
