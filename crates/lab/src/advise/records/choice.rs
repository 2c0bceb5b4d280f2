//! From figures of schemes for records to a recommendation.

use stillpoint_checkpoint::registry::REGISTRY;

use super::Measured;
use crate::advise::Choice;

/// The limits that a scheme must keep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// Longest latency of a transaction, in milliseconds.
    pub(super) worst_ms: Option<f64>,
    /// Most memory.
    pub(super) memory_bytes: Option<u64>,
}

impl Limits {
    /// Whether the scheme keeps the rate, the interval of checkpoints and these limits.
    pub(super) fn are_kept_by(&self, it: &Measured) -> bool {
        it.keeps_rate
            && it.keeps_interval
            && self.memory_bytes.is_none_or(|most| it.memory_bytes <= most)
            && self.worst_ms.is_none_or(|most| it.worst_ms <= most)
    }
}

/// Processor times of which one is greater by less than this share count as equal: runs vary by as much.
const SAME_SHARE: f64 = 0.03;

/// The scheme with the least processor time for a transaction, among those that keep the rate, the interval
/// and the limits. Among equals the shorter worst latency decides. If none keeps them, the nearest is named:
/// first by the rate, then by the interval, the memory and the worst latency. `None` if no scheme takes
/// checkpoints.
pub(super) fn choose(measured: &[Measured], limits: &Limits) -> Option<Choice> {
    let schemes: Vec<&Measured> = measured.iter().filter(|it| it.takes_checkpoints).collect();
    let baseline = measured.iter().find(|it| !it.takes_checkpoints);
    let fast: Vec<&Measured> = schemes.iter().copied().filter(|it| it.keeps_rate).collect();
    let fits = |it: &&Measured| limits.memory_bytes.is_none_or(|most| it.memory_bytes <= most);
    let timely: Vec<&Measured> = fast.iter().copied().filter(|it| it.keeps_interval).collect();
    let fitting: Vec<&Measured> = timely.iter().copied().filter(fits).collect();
    let in_time = |it: &&Measured| limits.worst_ms.is_none_or(|most| it.worst_ms <= most);
    let within: Vec<&Measured> = fitting.iter().copied().filter(in_time).collect();
    if let Some(choice) = cheapest(&within, baseline) {
        return Some(choice);
    }
    let outside = |best: &Measured, why: String| {
        let reason = format!("{why} {}", about(&best.scheme));
        Choice { recommended: best.scheme.clone(), reason, is_within_limits: false }
    };
    if let Some(best) = least(&fitting, |it| it.worst_ms) {
        let without = baseline.map_or(String::new(), |none| {
            format!(", where {:.2} ms were the worst without checkpoints", none.worst_ms)
        });
        let (limit, name) = (limits.worst_ms.unwrap_or(f64::INFINITY), &best.scheme);
        let why = format!(
            "no scheme keeps the worst latency within {limit} ms; {name} comes closest with {:.2} \
             ms{without}.",
            best.worst_ms
        );
        return Some(outside(best, why));
    }
    if let Some(best) = least(&timely, |it| it.memory_bytes as f64) {
        let (limit, needed) =
            (limits.memory_bytes.unwrap_or(u64::MAX) >> 20, best.memory_bytes >> 20);
        let why = format!("no scheme keeps to {limit} MiB; {} needs {needed}.", best.scheme);
        return Some(outside(best, why));
    }
    if let Some(best) = least(&fast, |it| it.checkpoint_s) {
        let (name, seconds) = (&best.scheme, best.checkpoint_s);
        let why = format!(
            "no scheme takes checkpoints at the interval; {name} comes closest, and a checkpoint takes \
             {seconds:.2} s."
        );
        return Some(outside(best, why));
    }
    let best = least(&schemes, |it| -it.transactions_per_s)?;
    let rate = best.transactions_per_s;
    let why = format!("no scheme keeps the rate; {} reaches {rate:.0} per second.", best.scheme);
    Some(outside(best, why))
}

fn least<'a>(of: &[&'a Measured], figure: fn(&Measured) -> f64) -> Option<&'a Measured> {
    of.iter().copied().min_by(|a, b| figure(a).total_cmp(&figure(b)))
}

fn cheapest(within: &[&Measured], baseline: Option<&Measured>) -> Option<Choice> {
    let least_us = within.iter().map(|it| it.cpu_us).min_by(f64::total_cmp)?;
    let mut best: Vec<&Measured> = within.to_vec();
    best.retain(|it| it.cpu_us <= least_us * (1.0 + SAME_SHARE));
    let taken = least(&best, |it| it.worst_ms)?;
    let why = match best.len() {
        1 => "the least processor time for a transaction".to_owned(),
        count => format!(
            "of the {count} schemes with the least processor time for a transaction, the one with the \
             shortest worst latency"
        ),
    };
    let without = baseline.map_or(String::new(), |none| {
        format!(" (without checkpoints {:.2} us and {:.2} ms)", none.cpu_us, none.worst_ms)
    });
    let reason = format!(
        "{why}: {:.2} us, worst latency {:.2} ms{without}, {} MiB, recovery in {:.2} s. {}",
        taken.cpu_us,
        taken.worst_ms,
        taken.memory_bytes >> 20,
        taken.recovery_s,
        about(&taken.scheme),
    );
    Some(Choice { recommended: taken.scheme.clone(), reason, is_within_limits: true })
}

/// The registry's description of a scheme.
fn about(name: &str) -> String {
    REGISTRY.find(name).map_or(String::new(), |row| format!("{}: {}.", row.name, row.about))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(scheme: &str, cpu_us: f64, worst_ms: f64, mib: u64) -> Measured {
        Measured {
            scheme: scheme.into(),
            takes_checkpoints: scheme != "none",
            transactions_per_s: 1000.0,
            keeps_rate: true,
            checkpoints: 10,
            keeps_interval: true,
            cpu_us,
            p50_ms: 0.01,
            p999_ms: worst_ms / 2.0,
            worst_ms,
            checkpoint_s: 0.1,
            stopped_ms: 0.0,
            checkpoint_bytes: 1,
            memory_bytes: mib << 20,
            recovery_s: 0.1,
        }
    }

    fn all() -> Vec<Measured> {
        vec![
            measured("none", 1.0, 0.5, 100),
            measured("naive", 1.50, 200.0, 100),
            measured("calc", 1.60, 2.0, 101),
            measured("calc:partial", 1.59, 1.5, 110),
            measured("zigzag", 1.80, 1.0, 200),
        ]
    }

    fn taken(worst_ms: Option<f64>, mib: Option<u64>) -> (String, bool) {
        let limits = Limits { worst_ms, memory_bytes: mib.map(|mib| mib << 20) };
        let choice = choose(&all(), &limits).expect("there are some");
        assert!(choice.reason.contains(&format!("{}: ", choice.recommended)), "{choice:?}");
        (choice.recommended, choice.is_within_limits)
    }

    #[test]
    fn the_cheapest_within_the_limits_is_taken_and_of_equals_the_smoothest() {
        assert_eq!(taken(None, None), ("naive".into(), true), "none takes no checkpoints");
        assert_eq!(taken(Some(10.0), None), ("calc:partial".into(), true));
        assert_eq!(taken(Some(10.0), Some(105)), ("calc".into(), true));
        assert_eq!(taken(Some(1.2), None), ("zigzag".into(), true));
    }

    #[test]
    fn who_takes_fewer_checkpoints_is_no_cheaper() {
        let mut measured = all();
        measured[1].keeps_interval = false;
        let choice = choose(&measured, &Limits::default()).expect("there are some");
        assert_eq!((&*choice.recommended, choice.is_within_limits), ("calc:partial", true));
        assert!(!Limits::default().are_kept_by(&measured[1]));
        measured.iter_mut().for_each(|it| it.keeps_interval = false);
        measured[4].checkpoint_s = 0.05;
        let choice = choose(&measured, &Limits::default()).expect("there are some");
        assert_eq!((&*choice.recommended, choice.is_within_limits), ("zigzag", false));
        assert!(choice.reason.contains("at the interval"), "{}", choice.reason);
    }

    #[test]
    fn without_any_the_nearest_is_named() {
        assert_eq!(taken(Some(0.1), None), ("zigzag".into(), false));
        assert_eq!(taken(Some(0.1), Some(105)), ("calc".into(), false));
        assert_eq!(taken(None, Some(50)), ("naive".into(), false));
        let slow = |it: Measured| Measured { keeps_rate: false, ..it };
        let slow: Vec<Measured> = all().into_iter().map(slow).collect();
        let choice = choose(&slow, &Limits::default()).expect("one is the fastest");
        assert!(!choice.is_within_limits && choice.reason.contains("keeps the rate"));
        assert_eq!(choose(&all()[..1], &Limits::default()), None);
    }
}
